"""Phase and module ranges in the trace, at 2.5 us each: `_RecordFunctionFast` is what torch itself uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opanatomy.model import MODULE_RANGE, PHASE_RANGE, Phase

if TYPE_CHECKING:
    import torch


@contextmanager
def phase_range(phase: Phase) -> Iterator[None]:
    """Mark what runs inside as `phase`."""
    from torch._C._profiler import _RecordFunctionFast

    with _RecordFunctionFast(PHASE_RANGE + phase):
        yield


@contextmanager
def module_ranges(module: torch.nn.Module) -> Iterator[dict[str, str]]:
    """Mark the forward of every submodule while inside; gives module path -> class name.

    Global hooks, not hooks of the modules: `nn.TransformerEncoderLayer` and others take another path through their
    code when a hook hangs on them, and nothing must stay behind on the user's model.
    """
    from torch._C._profiler import _RecordFunctionFast
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    names = {id(child): MODULE_RANGE + path for path, child in module.named_modules()}
    open_ranges: list[tuple[int, Any]] = []

    def enter(child: torch.nn.Module, _inputs: object) -> None:
        name = names.get(id(child))
        if name is not None:
            entered = _RecordFunctionFast(name)
            entered.__enter__()
            open_ranges.append((id(child), entered))

    def leave(child: torch.nn.Module, _inputs: object, _output: object) -> None:
        if open_ranges and open_ranges[-1][0] == id(child):
            open_ranges.pop()[1].__exit__(None, None, None)

    before = register_module_forward_pre_hook(enter)
    after = register_module_forward_hook(leave, always_call=True)
    try:
        yield {path: type(child).__name__ for path, child in module.named_modules()}
    finally:
        before.remove()
        after.remove()
        while open_ranges:
            open_ranges.pop()[1].__exit__(None, None, None)
