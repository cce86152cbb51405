"""Phase and module ranges in the trace, at 2.5 us each: `_RecordFunctionFast` is what torch itself uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opanatomy.capture.model.wrappers import class_name, own_modules
from opanatomy.capture.step.compiled_parts import compiled_modules, has_compiled_parts
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import MODULE_RANGE, PHASE_RANGE

if TYPE_CHECKING:
    import torch


@contextmanager
def phase_range(phase: Phase) -> Iterator[None]:
    """Mark what runs inside as `phase`."""
    from torch._C._profiler import _RecordFunctionFast

    with _RecordFunctionFast(PHASE_RANGE + phase):
        yield


class OpenRanges:
    """The ranges of the modules that run now; `names` has the name of each range by the `id` of its module."""

    def __init__(self, names: dict[int, str]) -> None:
        self.names = names
        self._open: list[tuple[int, Any]] = []

    def enter(self, child: torch.nn.Module, _inputs: object) -> None:
        """The forward of a module begins."""
        from torch._C._profiler import _RecordFunctionFast

        name = self.names.get(id(child))
        if name is not None:
            entered = _RecordFunctionFast(name)
            entered.__enter__()
            self._open.append((id(child), entered))

    def leave(self, child: torch.nn.Module, *_: object) -> None:
        """The forward of a module is done."""
        if self._open and self._open[-1][0] == id(child):
            self._open.pop()[1].__exit__(None, None, None)

    def close(self) -> None:
        """End all that are open."""
        while self._open:
            self._open.pop()[1].__exit__(None, None, None)


@contextmanager
def open_phase(enter: Callable[[Phase], None], first: Phase) -> Iterator[Callable[[Phase], None]]:
    """Mark what runs inside as `first`, and from each call of what this gives on as the phase that it is given.

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
    """Mark the forward of every submodule while inside; gives module path -> class name.

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
    """Call `before` and `after` around the forward of submodules while inside, `after` one that fails if `always`.

    Global hooks, not hooks of the modules: `nn.TransformerEncoderLayer` and others take another path through their
    code when they have a hook, copies that a forward makes of its modules would have them too, and nothing must
    stay behind on the user's model. Global hooks make `torch.compile` compile again: a model with compiled parts has
    hooks on the modules outside of these.
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
