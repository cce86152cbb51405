"""Record what torch's CUDA allocator does, and write it as a snapshot: at the end, or where memory runs out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opanatomy.errors import CaptureError
from opanatomy.io.files import replacing
from opanatomy.records.snapshot import MODULE_METADATA

if TYPE_CHECKING:
    import torch

#: Number of latest events kept: some steps of a large model, and some hundred megabytes of host memory.
MOST_EVENTS: Final = 500_000


def is_recordable() -> bool:
    """Return whether torch has an accelerator whose allocator records history."""
    import torch

    return torch.cuda.is_available() and hasattr(torch.cuda.memory, "_record_memory_history")


class AllocatorHistory:
    """The history of torch's CUDA allocator from `start()` to `stop()`.

    Where memory runs out meanwhile, the allocator's state is written to `where_it_ends` at once, the first time alone:
    when the error arrives, what filled the memory is freed.
    """

    #: Torch cannot remove observers; this one is shared, and inactive without a running history.
    _running: AllocatorHistory | None = None
    _is_observed = False

    def __init__(self, where_it_ends: Path) -> None:
        self.where_it_ends = where_it_ends
        self.is_written = False

    def start(self) -> None:
        """Begin; raise `CaptureError` where another one runs, or torch has no such allocator."""
        import torch

        if not is_recordable():
            raise CaptureError("memory history needs torch's CUDA allocator, but this torch sees no CUDA device")
        if AllocatorHistory._running is not None:
            raise CaptureError("memory history is already being recorded - end that recording first")
        record: Any = torch.cuda.memory._record_memory_history  # has no types
        record(max_entries=MOST_EVENTS)
        AllocatorHistory._running = self
        if not AllocatorHistory._is_observed:
            attach: Any = getattr(torch._C, "_cuda_attach_out_of_memory_observer")  # noqa: B009  # of CUDA builds alone
            attach(_observed)
            AllocatorHistory._is_observed = True

    def stop(self) -> None:
        """End the recording."""
        import torch

        if AllocatorHistory._running is self:
            AllocatorHistory._running = None
            record: Any = torch.cuda.memory._record_memory_history
            record(enabled=None)

    def write(self, path: Path) -> None:
        """Write the snapshot of now."""
        import pickle

        import torch

        take: Any = torch.cuda.memory._snapshot
        with replacing(path) as partial, partial.open("wb") as file:
            pickle.dump(take(), file)

    def ends(self) -> None:
        """Write the state when memory runs out, once; errors here never hide that error."""
        if not self.is_written:
            with suppress(Exception):
                self.write(self.where_it_ends)
                self.is_written = True


def _observed(*_: int) -> None:
    if AllocatorHistory._running is not None:
        AllocatorHistory._running.ends()


@contextmanager
def modules_noted(modules: Mapping[str, torch.nn.Module]) -> Iterator[None]:
    """Attach the running module's path to allocations inside the block, where torch supports it (from 2.10 on)."""
    import torch

    note: Any = getattr(torch.cuda.memory, "_set_memory_metadata", None)
    if note is None or not modules:
        yield
        return
    paths = {
        part: f"{MODULE_METADATA}{'.'.join(filter(None, (name, path)))}"
        for name, module in modules.items()
        for path, part in module.named_modules()
    }
    open_: list[str] = []

    def enter(module: torch.nn.Module, _: Any) -> None:
        open_.append(paths.get(module, open_[-1] if open_ else ""))
        note(open_[-1])

    def leave(module: torch.nn.Module, _: Any, __: Any) -> None:
        if open_:
            open_.pop()
        note(open_[-1] if open_ else "")

    hooks = [
        torch.nn.modules.module.register_module_forward_pre_hook(enter),
        torch.nn.modules.module.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        note("")
