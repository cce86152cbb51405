"""Check points of a run: what the allocator, the whole device and the process hold at one moment."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opanatomy.capture.accelerators import is_cuda
from opanatomy.model import MemoryCheckPoint

#: The check points in the order of a run.
START, CONTEXT, WEIGHTS = "before_the_device", "context", "weights"
AFTER_FORWARD, AFTER_BACKWARD, AFTER_OPTIMIZER, PEAK = "after_forward", "after_backward", "after_optimizer", "peak"


@dataclass(slots=True)
class CheckPoints:
    """Takes check points on one device; one that is taken again takes the place of the first."""

    device: str
    taken: tuple[MemoryCheckPoint, ...] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def on_cuda(self) -> bool:
        """Whether the device has an allocator that says what it holds."""
        return is_cuda(self.device)

    def start(self) -> None:
        """Take the point before the device is touched, then make its context and take that."""
        self.take(START, touched=False)
        if self.on_cuda:
            import torch

            torch.empty(1, device=self.device)
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
        self.take(CONTEXT)

    def take(self, name: str, *, allocated_bytes: int | None = None, touched: bool = True) -> None:
        """Note what is in use now; on the CPU `allocated_bytes` is what the caller knows of torch's allocator."""
        allocated, reserved = allocated_bytes, None
        if self.on_cuda:
            import torch

            allocated = torch.cuda.memory_allocated(self.device) if touched else 0
            reserved = torch.cuda.memory_reserved(self.device) if touched else 0
        point = MemoryCheckPoint(
            name=name, allocated_bytes=allocated, reserved_bytes=reserved,
            nvml_used_bytes=self.nvml_used_bytes(), rss_bytes=resident_bytes(),
        )  # fmt: skip
        self.taken = (*(taken for taken in self.taken if taken.name != name), point)

    def nvml_used_bytes(self) -> int | None:
        """Used memory of the whole device; `None` and a note where NVML does not say."""
        if not self.on_cuda:
            return None
        try:
            return _nvml_used(self.device)
        except Exception as error:  # pynvml's errors are its own classes, and it may be missing
            note = f"NVML does not say what of {self.device} is used ({type(error).__name__}: {error})"
            if note not in self.notes:
                self.notes.append(note)
            return None


def _nvml_used(device: str) -> int:
    import torch

    if torch.version.hip:
        raise RuntimeError("an AMD device has none")
    import pynvml

    # Reads CUDA_VISIBLE_DEVICES without touching the device; torch has no public function for it.
    index: int = torch.cuda._get_nvml_device_index(device)
    pynvml.nvmlInit()
    try:
        info: Any = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(index))
        return int(info.used)
    finally:
        pynvml.nvmlShutdown()


def resident_bytes() -> int | None:
    """The process's resident set; `None` where the system does not say."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return None
