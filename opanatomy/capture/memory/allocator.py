"""What the allocator of an accelerator says of itself: which one it is, its blocks, its totals, BLAS workspaces.

Nothing here raises: what a backend does not report is `None`. Only torch's own caching allocator has blocks and reports
them to the profiler. `cudaMallocAsync` refuses `snapshot` and reports nothing (c10/cuda/CUDAMallocAsyncAllocator.cpp),
a pluggable allocator refuses the statistics too, and without caching nothing is counted at all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

#: torch's own caching allocator, as `torch.cuda.get_allocator_backend` calls it.
NATIVE: Final = "native"
#: Our name for torch's own one when caching is turned off: each allocation is one of the driver's.
UNCACHED: Final = "uncached"
#: The variables that name a backend; the first since torch 2.9.
_CONFIGURED_BY: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_KIB: Final = 1 << 10
_MIB: Final = 1 << 20


class AllocatedBlock(Struct, frozen=True, kw_only=True):
    """A block that is handed out: rounded to 512 bytes, more where what would be left over is too small to split.

    `requested_bytes` is the requested size; `None` where the snapshot does not say (before torch 2.1).
    """

    address: int
    bytes: int
    requested_bytes: int | None = None


class DeviceAllocator(Struct, frozen=True):
    """The allocator of one accelerator that torch calls `cuda`, on ROCm too."""

    device: str

    @property
    def backend(self) -> str | None:
        """`native`, `cudaMallocAsync`, `pluggable`, or `uncached`; `None` where torch does not say."""
        import torch

        name: str | None = _answer(torch.cuda.get_allocator_backend)
        # CUDACachingAllocator.cpp, `forceUncachedAllocator`: the variable counts, whatever it is set to.
        if name != NATIVE or "PYTORCH_NO_CUDA_MEMORY_CACHING" not in os.environ:
            return name
        return name if _answer(lambda: torch.cuda.memory_allocated(self.device)) else UNCACHED

    @property
    def index(self) -> int:
        """The number of the device among torch's."""
        import torch

        number = torch.device(self.device).index
        return number if number is not None else _answer(torch.cuda.current_device) or 0

    def allocated_bytes(self) -> int | None:
        """What is handed out now."""
        import torch

        return self._counted(torch.cuda.memory_allocated)

    def reserved_bytes(self) -> int | None:
        """What is held of the device now."""
        import torch

        return self._counted(torch.cuda.memory_reserved)

    def peak_bytes(self) -> int | None:
        """The maximum that was handed out since `reset_peak`."""
        import torch

        return self._counted(torch.cuda.max_memory_allocated)

    def reserved_peak_bytes(self) -> int | None:
        """The maximum that was held of the device since `reset_peak`."""
        import torch

        return self._counted(torch.cuda.max_memory_reserved)

    def reset_peak(self) -> None:
        """Forget the peaks so far."""
        import torch

        _answer(lambda: torch.cuda.reset_peak_memory_stats(self.device))

    def blocks(self) -> tuple[AllocatedBlock, ...] | None:
        """Every block that is handed out now, by address; `None` where the backend does not know them.

        A block that waits for a stream (`active_pending_free`) is not handed out: the allocator took it from its total
        when it was freed (`DeviceCachingAllocator::free`). Unmapped parts of expandable segments are no blocks.
        """
        import torch

        read: Any = torch.cuda.memory_snapshot  # has no types
        segments = _answer(read)
        if segments is None or self.backend == UNCACHED:
            return None
        of_device = (segment for segment in segments if segment["device"] == self.index)
        blocks = (block for segment in of_device for block in _handed_out(segment))
        return tuple(sorted(blocks, key=lambda block: block.address))

    def workspaces(self) -> frozenset[int]:
        """The sizes that a workspace of a BLAS library can have: as torch says (from 2.13 on), else by its rules."""
        import torch

        settings: Any = torch.backends.cuda
        asked = [
            _answer(getattr(settings, name))
            for name in ("cublas_workspace_size", "cublaslt_workspace_size")
            if hasattr(settings, name)
        ]
        answers = frozenset(size for size in asked if size)
        return answers or workspace_sizes(self.architecture(), os.environ)

    def _counted(self, figure: Callable[[str], int]) -> int | None:
        # Where there is no CUDA torch counts 0 of anything.
        return None if self.backend in (UNCACHED, None) else _answer(lambda: int(figure(self.device)))

    def architecture(self) -> str | int | None:
        """`gfx942` of an AMD device, the major compute capability of an NVIDIA one."""
        import torch

        properties: Any = _answer(lambda: torch.cuda.get_device_properties(self.index))
        named = getattr(properties, "gcnArchName", None) if _on_rocm() else None
        return named or getattr(properties, "major", None)


def allocator_name(allocator: DeviceAllocator) -> str:
    """What the report calls the allocator."""
    kind = "HIP" if _on_rocm() else "CUDA"
    match allocator.backend:
        case "cudaMallocAsync":
            return f"{kind} memory pool (cudaMallocAsync)"
        case "pluggable":
            return "an allocator plugged into torch"
        case backend if backend == UNCACHED:
            return f"no allocator ({kind} without caching)"
        case _:
            return f"{kind} caching allocator"


def why_no_blocks(allocator: DeviceAllocator) -> str:
    """Why the blocks of a step are not known, and what would make them known."""
    match allocator.backend:
        case "cudaMallocAsync":
            variable = next((name for name in _CONFIGURED_BY if "cudaMallocAsync" in os.environ.get(name, "")), None)
            what = f"take backend:cudaMallocAsync out of {variable}" if variable else "run with the native backend"
            text = f"cudaMallocAsync reports no blocks - {what}"
        case "pluggable":
            text = "the allocator that is plugged into torch reports no blocks - run without it"
        case backend if backend == UNCACHED:
            text = "torch counts nothing without caching - unset PYTORCH_NO_CUDA_MEMORY_CACHING"
        case backend if backend == NATIVE:
            text = f"torch's allocator reported no allocation of {allocator.device} to the profiler"
        case _:
            text = "torch has no snapshot of its allocator"
    return f"what is live at the peak of {allocator.device} is not known: {text}"


def _on_rocm() -> bool:
    import torch

    return bool(torch.version.hip)


def _answer(ask: Callable[[], Any]) -> Any:
    """The answer; `None` where torch has none: a CPU build asserts, the backends raise errors of their own."""
    try:
        return ask()
    except Exception:
        return None


def _handed_out(segment: Mapping[str, Any]) -> list[AllocatedBlock]:
    """The blocks of one segment that are handed out; blocks without an address (before torch 2.1) lie side by side."""
    blocks = []
    address = segment["address"]
    for block in segment["blocks"]:
        address = block.get("address", address)
        if block["state"] == "active_allocated":
            requested = block.get("requested_size")
            blocks.append(AllocatedBlock(address=address, bytes=block["size"], requested_bytes=requested))
        address += block["size"]
    return blocks


def workspace_sizes(architecture: str | int | None, environment: Mapping[str, str]) -> frozenset[int]:
    """The sizes by torch's rules: `parseChosenWorkspaceSize` and `parseCUDABlasLtWorkspaceSize` (2.6 to 2.13).

    Both are in aten/src/ATen/cuda/CublasHandlePool.cpp, before torch 2.9 the second in CUDABlas.cpp. `architecture` is
    a name (`gfx942`) on ROCm, else the major compute capability. The rules changed with the releases: it is all that
    some release gives by default, and only what a variable says where one is set.
    """
    on_rocm = isinstance(architecture, str)
    if on_rocm:
        large = str(architecture).startswith(("gfx94", "gfx95"))
        first, second = {128 * _MIB if large else 32 * _MIB}, {76 * _MIB, 32 * _MIB, _MIB}
    else:
        large = architecture in (9, 10, 12)
        first = {32 * _MIB} if large else {2 * 4096 * _KIB + 8 * 16 * _KIB}
        second = {_MIB, *first}
    names = ("CUBLAS_WORKSPACE_CONFIG", *(("HIPBLAS_WORKSPACE_CONFIG", "ROCBLAS_WORKSPACE_CONFIG") if on_rocm else ()))
    configured = _first(environment, names)
    if configured is not None and (pools := re.findall(r":([0-9]+):([0-9]+)", configured)):
        first = {sum(int(size) * _KIB * int(count) for size, count in pools)}
        second = second if on_rocm else {_MIB, *first}
    names = ("CUBLASLT_WORKSPACE_SIZE", *(("HIPBLASLT_WORKSPACE_SIZE",) if on_rocm else ()))
    configured = _first(environment, names)
    if configured is not None and (number := re.match(r"\s*\+?([0-9]+)", configured)):
        second = {int(number[1]) * _KIB}
    return frozenset(size for size in first | second if size)


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environment[name] for name in names if name in environment), None)
