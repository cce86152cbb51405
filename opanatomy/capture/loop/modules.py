"""Track the modules of a loop (given, or discovered by their calls): names and hooks."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any

from opanatomy.capture.loop.phases import unseen
from opanatomy.capture.model.parts import class_name, own_modules
from opanatomy.capture.step.ranges import compiled_modules, has_compiled_parts
from opanatomy.records.workload import MODULE_RANGE

if TYPE_CHECKING:
    import torch

#: Called on entering a module, and on leaving it with positional and keyword arguments and output.
_Enter = Callable[["torch.nn.Module"], None]
_Leave = Callable[["torch.nn.Module", tuple[Any, ...], dict[str, Any], Any], None]


@dataclass(slots=True)
class LoopModules:
    """The outermost modules: those given, else all that the loop calls."""

    given: Mapping[str, torch.nn.Module] = field(default_factory=dict)
    #: In order of first call.
    called: list[torch.nn.Module] = field(default_factory=list)
    #: Path -> module, for all inside the outermost ones; those inside compiled code are separate.
    paths: dict[str, torch.nn.Module] = field(default_factory=dict)
    compiled: bool = False
    _ids: dict[int, str] = field(default_factory=dict)
    _known: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.given:
            self._name(self.given)

    @property
    def outermost(self) -> tuple[torch.nn.Module, ...]:
        """Return the given modules, else those that the loop called."""
        return tuple(self.given.values()) or tuple(self.called)

    @property
    def trained(self) -> tuple[torch.nn.Module, ...]:
        """Return the outermost modules with parameters; a loss has none."""
        return tuple(module for module in self.outermost if _is_trained(module))

    @property
    def range_names(self) -> dict[int, str]:
        """Return the name of the range of each module by its `id`."""
        return {number: MODULE_RANGE + path for number, path in self._ids.items()}

    @property
    def path_of(self) -> Mapping[int, str]:
        """Return the path of each module by its `id`."""
        return self._ids

    def knows(self, module: torch.nn.Module) -> bool:
        """Return whether a module belongs to the loop."""
        return id(module) in self._known

    def add(self, module: torch.nn.Module) -> bool:
        """Register a module called by the loop; return `False` if modules were given and this is not among them.

        Other modules keep their names, which ranges already use.
        """
        if self.given:
            return False
        like = next((other for other in self.called if _is_like(other, module)), None)
        self.called.append(module)
        if like is not None:
            self._ids[id(module)] = self._ids[id(like)]
            self._known.add(id(module))
            return True
        name = "" if _is_trained(module) and not any(map(_is_trained, self.called[:-1])) else class_name(module)
        self._name_all(_unused(name, class_name(module), self.paths), module)
        return True

    def rename(self) -> None:
        """Rename the loop's modules, now that all are known."""
        if self.given:
            return
        inside = {id(part) for module in self.called for part in module.modules() if part is not module}
        self.called = [module for module in self.called if id(module) not in inside]
        distinct = [
            module
            for index, module in enumerate(self.called)
            if not any(_is_like(other, module) for other in self.called[:index])
        ]
        self._name(by_class(distinct))
        self.called = distinct

    def kinds(self) -> dict[str, str]:
        """Return path -> class name."""
        return {path: class_name(module) for path, module in self.paths.items()}

    def _name(self, outermost: Mapping[str, torch.nn.Module]) -> None:
        """Give every module its path."""
        self.paths, self._ids, self._known = {}, {}, set()
        self.compiled = False
        for name, module in outermost.items():
            self._name_all(name, module)

    def _name_all(self, name: str, module: torch.nn.Module) -> None:
        """Assign paths to the modules inside one, unless they have one."""
        inside = compiled_modules(module)
        self.compiled |= has_compiled_parts(module)
        self._known.update(id(part) for part in module.modules())
        for path, part in own_modules(module):
            if id(part) not in inside and id(part) not in self._ids:
                full = ".".join(segment for segment in (name, path) if segment)
                self.paths[full], self._ids[id(part)] = part, full


def by_class(modules: Sequence[torch.nn.Module]) -> dict[str, torch.nn.Module]:
    """Return the modules by class name; a single module with parameters is the model and has an empty name."""
    trained = [module for module in modules if _is_trained(module)]
    named: dict[str, torch.nn.Module] = {}
    for module in modules:
        kind = class_name(module)
        named[_unused("" if trained == [module] else kind, kind, named)] = module
    return named


def _unused(name: str, kind: str, used: Container[str]) -> str:
    """Return an unused name: the class, with a number if needed."""
    number = 1
    while name in used:
        number += 1
        name = kind if number == 2 and name != kind else f"{kind}-{number}"
    return name


def _is_trained(module: torch.nn.Module) -> bool:
    """Return whether a module has parameters; a loss has none."""
    return next(module.parameters(), None) is not None


def _is_like(module: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Return whether both have the same class and no parameters, such as losses created at each call."""
    return type(module) is type(other) and not _is_trained(module) and not _is_trained(other)


@contextmanager
def hooked(modules: LoopModules, enter: _Enter, leave: _Leave) -> Iterator[None]:
    """Report the calls of all modules inside the block.

    Uses global hooks, for the reasons of `forward_hooks`; if a module is compiled, hooks on the modules outside
    compiled code and on the compiled module, which runs them before and after its code.
    """
    from torch.nn.modules.module import (
        _global_forward_hooks_with_kwargs,
        register_module_forward_hook,
        register_module_forward_pre_hook,
    )

    with ExitStack() as stack, ExitStack() as everywhere:

        def before(module: torch.nn.Module, _inputs: object) -> None:
            if everywhere_hooks and not modules.given and has_compiled_parts(module):
                everywhere.close()
                everywhere_hooks.clear()
                modules.add(module)
                _hook_outside(stack, modules.outermost, before, after)
            enter(module)

        def after(module: torch.nn.Module, args: tuple[Any, ...], *kwargs_and_output: Any) -> None:
            # torch omits the keyword arguments after a failed forward.
            *kwargs, output = kwargs_and_output
            leave(module, args, kwargs[0] if kwargs else {}, output)

        everywhere_hooks: list[Any] = []
        if modules.compiled:
            _hook_outside(stack, modules.outermost, before, after)
        else:
            everywhere_hooks += [
                register_module_forward_pre_hook(before),
                register_module_forward_hook(after, with_kwargs=True, always_call=True),
            ]
            for hook in everywhere_hooks:
                everywhere.callback(hook.remove)
                # torch forgets this entry when the hook is removed, and then warns anyone who compiles a module.
                everywhere.callback(_global_forward_hooks_with_kwargs.pop, hook.id, None)
            _quiet_about_hooks(everywhere)
            _unseen_hooks(everywhere)
        yield


def _unseen_hooks(stack: ExitStack) -> None:
    """Make warnings in a forward point at its caller despite hooks, which add a frame inside torch."""
    import torch

    call: Any = torch.nn.Module._call_impl
    code = call.__code__
    call.__code__ = code.replace(
        co_consts=tuple(unseen(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    )
    stack.callback(setattr, call, "__code__", code)


def _quiet_about_hooks(stack: ExitStack) -> None:
    """Keep a compiled module from warning of global hooks: `hooked` removes them when it meets one."""
    import torch.nn.modules.module as torch_module

    original = getattr(torch_module, "_has_any_global_hook", None)
    if original is not None:
        torch_module._has_any_global_hook = lambda: False
        stack.callback(setattr, torch_module, "_has_any_global_hook", original)


def _hook_outside(
    stack: ExitStack, modules: Sequence[torch.nn.Module], before: Callable[..., None], after: Callable[..., None]
) -> None:
    """Add hooks to the modules that run outside compiled code, and to those that are compiled code themselves."""
    for module in modules:
        inside = compiled_modules(module)
        for part in module.modules():
            if getattr(part, "_compiled_call_impl", None) is not None:
                _hook_compiled_call(stack, part, before, after)
                continue
            if id(part) in inside and not hasattr(part, "_orig_mod"):
                continue
            stack.callback(part.register_forward_pre_hook(before).remove)
            stack.callback(part.register_forward_hook(after, with_kwargs=True, always_call=True).remove)


def _hook_compiled_call(stack: ExitStack, module: Any, before: Callable[..., None], after: Callable[..., None]) -> None:
    """Hook a module compiled in place, whose own hooks are part of its compiled code."""
    original = module._compiled_call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        before(module, args)
        output = None
        try:
            output = original(*args, **kwargs)
            return output
        finally:
            after(module, args, kwargs, output)

    module._compiled_call_impl = call
    stack.callback(setattr, module, "_compiled_call_impl", original)
