"""Mark phase and module ranges in the trace, at 2.5 us each by `_RecordFunctionFast`, as torch itself does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opanatomy.capture.model.parts import class_name, own_modules
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import MODULE_RANGE, PHASE_RANGE

if TYPE_CHECKING:
    import torch

# Find the parts of a model run by `torch.compile`, and whether it compiled while a step ran.


#: `torch.compile` leaves this on the function that it returns, `torch.compiler.disable` does not.
_MARK = "get_compiler_config"


def compiled_modules(module: torch.nn.Module) -> frozenset[int]:
    """Return the `id` of every module that may run inside compiled code: hooks on these would compile it again."""
    compiled: set[int] = set()
    for part in module.modules():
        if id(part) not in compiled and _runs_compiled(part):
            compiled.update(id(inner) for inner in part.modules())
    return frozenset(compiled)


def has_compiled_parts(module: torch.nn.Module) -> bool:
    """Return whether a module or a function that the model's code calls is compiled."""
    if compiled_modules(module):
        return True
    # The code of a class sees a compiled function as a global of it, or in its closure.
    kinds = {kind for part in module.modules() for kind in _own_classes(part)}
    return any(_is_compiled(value) for kind in kinds for value in _seen_by(kind))


def _runs_compiled(part: torch.nn.Module) -> bool:
    """Return whether the module, its forward or a function among its attributes is compiled."""
    if getattr(part, "_compiled_call_impl", None) is not None or hasattr(part, "_orig_mod"):
        return True
    attributes = [*vars(part).values(), *(value for kind in _own_classes(part) for value in vars(kind).values())]
    return any(_is_compiled(value) for value in attributes)


def _own_classes(part: torch.nn.Module) -> list[type]:
    """Return the classes of a module that are not torch's own."""
    return [kind for kind in type(part).__mro__ if kind.__module__.partition(".")[0] not in ("torch", "builtins")]


def _seen_by(kind: type) -> Iterator[Any]:
    for method in vars(kind).values():
        code = getattr(method, "__code__", None)
        if code is None:
            continue
        space = getattr(method, "__globals__", {})
        for name in code.co_names:
            if name in space:
                yield space[name]
        for cell in getattr(method, "__closure__", None) or ():
            try:
                yield cell.cell_contents
            except ValueError:  # a cell that is not filled yet
                continue


def _is_compiled(value: Any) -> bool:
    value = getattr(value, "__func__", value)
    return callable(value) and not isinstance(value, type) and _MARK in getattr(value, "__dict__", {})


def compilations() -> int:
    """Return the number of `torch.compile` compilations in this process, without disabled code."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["frames"]["total"])


def compiling_ns() -> int:
    """Return the time spent in `torch.compile` in this process, by torch's own record."""
    times = getattr(sys.modules.get("torch._dynamo.utils"), "cumulative_time_spent_ns", None)
    return int(times.get("entire_frame_compile", 0) + times.get("entire_backward_compile", 0)) if times else 0


def mode_keeps_compiled() -> bool:
    """Return whether a dispatch mode can keep compiled code compiled in this torch."""
    from torch.utils._python_dispatch import TorchDispatchMode

    return hasattr(TorchDispatchMode, "ignore_compile_internals")


@contextmanager
def phase_range(phase: Phase) -> Iterator[None]:
    """Mark the work inside the block as `phase`."""
    from torch._C._profiler import _RecordFunctionFast

    with _RecordFunctionFast(PHASE_RANGE + phase):
        yield


class OpenRanges:
    """Ranges of the running modules; `names` gives each module's range name by `id`."""

    def __init__(self, names: dict[int, str]) -> None:
        self.names = names
        self._open: list[tuple[int, Any]] = []

    def enter(self, child: torch.nn.Module, _inputs: object) -> None:
        """Begin the forward of a module."""
        from torch._C._profiler import _RecordFunctionFast

        name = self.names.get(id(child))
        if name is not None:
            entered = _RecordFunctionFast(name)
            entered.__enter__()
            self._open.append((id(child), entered))

    def leave(self, child: torch.nn.Module, *_: object) -> None:
        """End the forward of a module."""
        if self._open and self._open[-1][0] == id(child):
            self._open.pop()[1].__exit__(None, None, None)

    def close(self) -> None:
        """End all open ranges."""
        while self._open:
            self._open.pop()[1].__exit__(None, None, None)


@contextmanager
def open_phase(enter: Callable[[Phase], None], first: Phase) -> Iterator[Callable[[Phase], None]]:
    """Mark the work inside the block as `first`, then as each phase passed to the yielded function.

    `enter` is called with each phase that begins.
    """
    from torch._C._profiler import _RecordFunctionFast

    running: list[Any] = []

    def switch(phase: Phase) -> None:
        if running:
            running.pop().__exit__(None, None, None)
        enter(phase)
        running.append(_RecordFunctionFast(PHASE_RANGE + phase))
        running[-1].__enter__()

    switch(first)
    try:
        yield switch
    finally:
        running.pop().__exit__(None, None, None)


@contextmanager
def module_ranges(module: torch.nn.Module) -> Iterator[dict[str, str]]:
    """Mark the forward of every submodule inside the block; yield module path -> class name.

    Submodules inside compiled code are left out: their ranges would be compiled into it.
    """
    inside = compiled_modules(module)
    marked = {path: child for path, child in own_modules(module) if id(child) not in inside}
    ranges = OpenRanges({id(child): MODULE_RANGE + path for path, child in marked.items()})
    with forward_hooks(module, ranges.enter, ranges.leave, always=True):
        try:
            yield {path: class_name(child) for path, child in marked.items()}
        finally:
            ranges.close()


@contextmanager
def forward_hooks(
    module: torch.nn.Module, before: Callable[..., None] | None, after: Callable[..., None], *, always: bool
) -> Iterator[None]:
    """Call `before` and `after` around the forward of submodules inside the block; with `always` also if it fails.

    These are global hooks, not module hooks: `nn.TransformerEncoderLayer` and others take another code path when they
    have a hook, copies made of modules in a forward would inherit them, and nothing must stay on the user's model.
    Global hooks make `torch.compile` recompile: in a model with compiled parts the modules outside these are hooked
    instead.
    """
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    handles: list[Any] = []
    try:
        if has_compiled_parts(module):
            inside = compiled_modules(module)
            outside = [child for child in module.modules() if id(child) not in inside]
            handles += [child.register_forward_pre_hook(before) for child in outside if before is not None]
            handles += [child.register_forward_hook(after, always_call=always) for child in outside]
        else:
            handles += [register_module_forward_pre_hook(before)] if before is not None else []
            handles.append(register_module_forward_hook(after, always_call=always))
        yield
    finally:
        for handle in handles:
            handle.remove()
