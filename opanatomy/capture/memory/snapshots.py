"""Snapshots of a run: what the allocator, the whole device and the process hold at one moment."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opanatomy.capture.device import nvml
from opanatomy.capture.device.accelerators import is_cuda
from opanatomy.capture.device.nvml import NvmlDevice
from opanatomy.capture.memory.allocator import DeviceAllocator
from opanatomy.records.memory import CONTEXT, START, MemorySnapshot


@dataclass(slots=True)
class Snapshots:
    """Takes snapshots of one device; one that is taken again takes the place of the first."""

    device: str
    taken: tuple[MemorySnapshot, ...] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def on_cuda(self) -> bool:
        """Whether the device has an allocator that says what it holds."""
        return is_cuda(self.device)

    def start(self) -> None:
        """Take the snapshot before the device is touched, then make its context and take that."""
        # Where there is a context already, the device's used bytes are not those of others alone.
        if not self.on_cuda or not _has_context(DeviceAllocator(self.device).index):
            self.take(START, touched=False)
        if self.on_cuda:
            import torch

            torch.empty(1, device=self.device)
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
        self.take(CONTEXT)

    def take(self, name: str, *, touched: bool = True) -> None:
        """Note what is in use now; of a device that was not `touched` yet torch's allocator has nothing."""
        allocated, reserved = None, None
        if self.on_cuda:
            allocator = DeviceAllocator(self.device)
            allocated = allocator.allocated_bytes() if touched else 0
            reserved = allocator.reserved_bytes() if touched else 0
        occupied = self._occupied()
        snapshot = MemorySnapshot(
            name=name, allocated_bytes=allocated, reserved_bytes=reserved,
            nvml_used_bytes=None if occupied is None else occupied.used_bytes,
            nvml_process_bytes=None if occupied is None else occupied.process_bytes, rss_bytes=resident_bytes(),
        )  # fmt: skip
        self.taken = (*(taken for taken in self.taken if taken.name != name), snapshot)

    def _occupied(self) -> NvmlDevice | None:
        """What NVML says of the device; `None` and a note where it does not say."""
        if not self.on_cuda:
            return None
        answer = nvml.answer(DeviceAllocator(self.device).index)
        if answer.device is None:
            note = f"what of {self.device} is occupied is not known, nor the device's context: {answer.why_not}"
            if note not in self.notes:
                self.notes.append(note)
        return answer.device


def _has_context(index: int) -> bool:
    """Whether this process has a context on the device already; asking makes none."""
    import torch

    cuda: Any = torch.cuda  # its functions have no types
    ask = getattr(torch._C, "_cuda_hasPrimaryContext", None)  # in CUDA builds
    try:
        return cuda.is_initialized() and (ask is None or bool(ask(index)))
    except Exception:  # what cannot be asked may have one
        return True


def resident_bytes() -> int | None:
    """The process's resident set; `None` where the system does not say."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return None
