"""Measure the memory of a step: live bytes, the peak, and a limit that turns the kernel's kill into an error."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from opanatomy.capture.device import accelerators, nvml
from opanatomy.capture.device.accelerators import is_cuda
from opanatomy.capture.memory.storages import Holders, on_device, unpacked
from opanatomy.records.memory import CONTEXT, START, MemorySnapshot
from opanatomy.records.workload import MemoryObservations

if TYPE_CHECKING:
    import torch


# Ask the allocator of an accelerator about itself: its backend, its blocks, its totals, BLAS workspaces.
#
# Nothing here raises: a backend without an answer gives `None`. Only torch's own caching allocator has blocks and
# reports them to the profiler. `cudaMallocAsync` refuses `snapshot` and reports nothing
# (c10/cuda/CUDAMallocAsyncAllocator.cpp), a pluggable allocator refuses the statistics too, and without caching nothing
# is counted at all.


#: torch's own caching allocator, as `torch.cuda.get_allocator_backend` calls it.
NATIVE: Final = "native"
#: Our name for torch's allocator without caching: each allocation goes to the driver.
UNCACHED: Final = "uncached"
#: The variables that name a backend; the first since torch 2.9.
_CONFIGURED_BY: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_KIB: Final = 1 << 10
_MIB: Final = 1 << 20


class AllocatedBlock(Struct, frozen=True, kw_only=True):
    """An allocated block: rounded to 512 bytes, more if the rest would be too small to split.

    `requested_bytes` is the requested size; `None` if the snapshot lacks it (before torch 2.1).
    """

    address: int
    bytes: int
    requested_bytes: int | None = None


class DeviceAllocator(Struct, frozen=True):
    """The allocator of an accelerator called `cuda` in torch, including ROCm."""

    device: str

    @property
    def backend(self) -> str | None:
        """Return `native`, `cudaMallocAsync`, `pluggable`, or `uncached`; `None` if torch does not report it."""
        import torch

        name: str | None = _answer(torch.cuda.get_allocator_backend)
        # CUDACachingAllocator.cpp, `forceUncachedAllocator`: the variable counts, whatever its value.
        if name != NATIVE or "PYTORCH_NO_CUDA_MEMORY_CACHING" not in os.environ:
            return name
        return name if _answer(lambda: torch.cuda.memory_allocated(self.device)) else UNCACHED

    @property
    def index(self) -> int:
        """Return the number of the device among torch's."""
        import torch

        number = torch.device(self.device).index
        return number if number is not None else _answer(torch.cuda.current_device) or 0

    def allocated_bytes(self) -> int | None:
        """Return the bytes allocated now."""
        import torch

        return self._counted(torch.cuda.memory_allocated)

    def reserved_bytes(self) -> int | None:
        """Return the bytes reserved on the device now."""
        import torch

        return self._counted(torch.cuda.memory_reserved)

    def peak_bytes(self) -> int | None:
        """Return the peak of allocated bytes since `reset_peak`."""
        import torch

        return self._counted(torch.cuda.max_memory_allocated)

    def reserved_peak_bytes(self) -> int | None:
        """Return the peak of reserved bytes since `reset_peak`."""
        import torch

        return self._counted(torch.cuda.max_memory_reserved)

    def reset_peak(self) -> None:
        """Reset the peaks."""
        import torch

        _answer(lambda: torch.cuda.reset_peak_memory_stats(self.device))

    def blocks(self) -> tuple[AllocatedBlock, ...] | None:
        """Return every allocated block, by address; `None` if the backend does not know them.

        A block that waits for a stream (`active_pending_free`) is not allocated: the allocator took it from its total
        when it was freed (`DeviceCachingAllocator::free`). Unmapped parts of expandable segments are no blocks.
        """
        import torch

        read: Any = torch.cuda.memory_snapshot  # has no types
        segments = _answer(read)
        if segments is None or self.backend == UNCACHED:
            return None
        blocks = []
        for segment in segments:
            if segment["device"] != self.index:
                continue
            address = segment["address"]
            for block in segment["blocks"]:
                # Without addresses (before torch 2.1) the blocks of a segment lie side by side.
                address = block.get("address", address)
                if block["state"] == "active_allocated":
                    requested = block.get("requested_size")
                    blocks.append(AllocatedBlock(address=address, bytes=block["size"], requested_bytes=requested))
                address += block["size"]
        return tuple(sorted(blocks, key=lambda block: block.address))

    def workspaces(self) -> frozenset[int]:
        """Return the sizes that a BLAS workspace can have: from torch (from 2.13 on), else by its rules."""
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
        # Without CUDA torch counts 0 for everything.
        return None if self.backend in (UNCACHED, None) else _answer(lambda: int(figure(self.device)))

    def architecture(self) -> str | int | None:
        """Return `gfx942` for an AMD device, the major compute capability for an NVIDIA one."""
        import torch

        properties: Any = _answer(lambda: torch.cuda.get_device_properties(self.index))
        named = getattr(properties, "gcnArchName", None) if torch.version.hip else None
        return named or getattr(properties, "major", None)


def allocator_name(allocator: DeviceAllocator) -> str:
    """Return the allocator's name in the report."""
    import torch

    kind = "HIP" if torch.version.hip else "CUDA"
    match allocator.backend:
        case "cudaMallocAsync":
            return f"{kind} memory pool (cudaMallocAsync)"
        case "pluggable":
            return "a custom allocator plugged into torch"
        case backend if backend == UNCACHED:
            return f"no allocator ({kind} without caching)"
        case _:
            return f"{kind} caching allocator"


def why_no_blocks(allocator: DeviceAllocator) -> str:
    """Return why a step's blocks are unknown, and the remedy."""
    match allocator.backend:
        case "cudaMallocAsync":
            variable = next((name for name in _CONFIGURED_BY if "cudaMallocAsync" in os.environ.get(name, "")), None)
            what = f"remove backend:cudaMallocAsync from {variable}" if variable else "run with the native backend"
            text = f"cudaMallocAsync reports no blocks - {what}"
        case "pluggable":
            text = "a pluggable allocator is in use, and it reports no blocks - run without it"
        case backend if backend == UNCACHED:
            text = "torch counts no memory while caching is off - unset PYTORCH_NO_CUDA_MEMORY_CACHING"
        case backend if backend == NATIVE:
            text = f"torch's allocator reported no allocations on {allocator.device} to the profiler"
        case _:
            text = "torch cannot take a snapshot of its allocator"
    return f"cannot tell what is live at the peak of {allocator.device}: {text}"


def _answer(ask: Callable[[], Any]) -> Any:
    """Return the answer; `None` if torch has none: a CPU build asserts, backends raise their own errors."""
    try:
        return ask()
    except Exception:
        return None


def workspace_sizes(architecture: str | int | None, environment: Mapping[str, str]) -> frozenset[int]:
    """Return the sizes by torch's rules: `parseChosenWorkspaceSize` and `parseCUDABlasLtWorkspaceSize` (2.6 to 2.13).

    Both are in aten/src/ATen/cuda/CublasHandlePool.cpp, before torch 2.9 the second in CUDABlas.cpp. `architecture` is
    a name (`gfx942`) on ROCm, else the major compute capability. The rules changed with the releases: the result has
    the defaults of all releases, or only the value of a variable if it is set.
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


if sys.platform != "win32":
    import resource

#: Left free below the limit, for other processes and the kernel.
RESERVE_BYTES = 256 << 20


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the distinct storages under `tensors` (tied weights once, wrapper subclasses unpacked)."""
    held = {}
    for tensor in unpacked(tensors):
        storage = tensor.untyped_storage()
        held[storage._cdata] = (storage, storage.nbytes())
    return sum(size for _, size in held.values())


class PeakMeter:
    """The peak of a step: the allocator's on an accelerator, the process's resident set on the CPU."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.on_host, self.on_cuda = not accelerators.is_accelerator(device), accelerators.is_cuda(device)
        #: Bytes of the process not due to the step: copies kept by the recording.
        self.own_bytes = 0

    @property
    def measured_by(self) -> str | None:
        """Return how the figure is measured; `None` if the device does not report it."""
        if self.on_host:
            return "the process's resident set size (RSS)"
        if self.on_cuda:
            return allocator_name(DeviceAllocator(self.device))
        return accelerators.allocator_name(self.device)

    def reset(self) -> None:
        """Reset the peak."""
        if self.on_cuda:
            DeviceAllocator(self.device).reset_peak()
            return
        if not self.on_host:
            accelerators.reset_peak(self.device)
            return
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def peak(self) -> int | None:
        """Return the bytes at the peak since the last reset; `None` if the allocator does not report them."""
        if self.on_cuda:
            return DeviceAllocator(self.device).peak_bytes()
        if not self.on_host:
            return accelerators.peak_bytes(self.device)
        peak = _status_bytes("VmHWM")
        if not peak and sys.platform != "win32":
            # A system that cannot reset its peak has the highest of the process's life: KiB, on macOS bytes.
            highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            peak = highest if sys.platform == "darwin" else highest * 1024
        return None if peak is None else max(peak - self.own_bytes, 0)


def _status_bytes(key: str) -> int | None:
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    return None


def available_bytes() -> int | None:
    """Return the memory still available to this process: the host's, within its own limits (`ulimit -d`, `-v`)."""
    host = _host_bytes()
    limits = [] if host is None else [host]
    if sys.platform != "win32":
        for limit, key in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
            soft, held = resource.getrlimit(limit)[0], _status_bytes(key)
            if soft != resource.RLIM_INFINITY and held is not None:
                limits.append(max(soft - held, 0))
    return min(limits) if limits else None


def _host_bytes() -> int | None:
    """Return free pages and caches on the host, less if the control group allows less."""
    limits = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits.append(int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024)
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limits.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(limits) if limits else None


@contextmanager
def limited_to_available() -> Iterator[None]:
    """Make an allocation beyond the host's memory fail inside the block, instead of the kernel killing the process.

    Linux counts private writable pages against `RLIMIT_DATA`; the limit is the process's use plus the available memory,
    less a reserve. A lower existing limit stays. Other systems get no limit.
    """
    available, held = _host_bytes(), _status_bytes("VmData")
    if sys.platform == "win32" or available is None or held is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    known = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([held + max(available - RESERVE_BYTES, 0), *known]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@contextmanager
def room_for(extra_bytes: int) -> Iterator[None]:
    """Raise the process's limit by `extra_bytes` inside the block, up to its hard limit."""
    if sys.platform == "win32":
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY:
        yield
        return
    more = soft + extra_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (more if hard == resource.RLIM_INFINITY else min(more, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def give_back() -> None:
    """Make the C library return freed memory: until then it counts against the process's limit."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def could_have(extra_bytes: int) -> bool:
    """Return whether `room_for` can raise the limit by this much."""
    if sys.platform == "win32":
        return True
    hard, held = resource.getrlimit(resource.RLIMIT_DATA)[1], held_bytes()
    return hard == resource.RLIM_INFINITY or held is None or hard - held > extra_bytes


def held_bytes() -> int | None:
    """Return the bytes that count against `RLIMIT_DATA`."""
    return _status_bytes("VmData")


def storages_observed(
    holders: Holders, saved_bytes: int | None = None, cast_bytes: int | None = None
) -> MemoryObservations:
    """Return the storages on a device after a step, by component, and the elements of its parameters.

    `saved_bytes` are saved by forward, `cast_bytes` belong to autocast's weight casts.
    """
    device = holders.device
    parameters = on_device(holders.parameters(), device)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    sizes = {"weights": storage_bytes(parameters), "buffers": storage_bytes(on_device(holders.buffers(), device))}
    if gradients:
        sizes["gradients"] = storage_bytes(gradients)
    if holders.optimizers:
        sizes["optimizer_state"] = storage_bytes(on_device(holders.optimizer_tensors()[0], device))
    if saved_bytes is not None:
        sizes["forward_activations"] = saved_bytes
        if cast_bytes:
            sizes["autocast_weight_casts"] = cast_bytes
    return MemoryObservations(
        device=device,
        storage_bytes=sizes,
        parameter_bytes=element_bytes(parameters),
        trainable_bytes=element_bytes(parameter for parameter in parameters if parameter.requires_grad),
    )


def element_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the elements of the tensors times the bytes of each."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# Snapshots of a run: the memory of the allocator, the whole device and the process at one moment.


@dataclass(slots=True)
class Snapshots:
    """Snapshots of one device; taking one again replaces it."""

    device: str
    taken: tuple[MemorySnapshot, ...] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def on_cuda(self) -> bool:
        """Return whether the device has an allocator that reports its memory."""
        return is_cuda(self.device)

    def start(self) -> None:
        """Take the snapshot before the device is touched, then make its context and take that."""
        # With an existing context the device's used bytes are not those of others alone.
        if not self.on_cuda or not _has_context(DeviceAllocator(self.device).index):
            self.take(START, touched=False)
        if self.on_cuda:
            import torch

            torch.empty(1, device=self.device)
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
        self.take(CONTEXT)

    def take(self, name: str, *, touched: bool = True) -> None:
        """Note the memory in use now; before the device is `touched`, torch's allocator has nothing."""
        allocated, reserved, occupied = None, None, None
        if self.on_cuda:
            allocator = DeviceAllocator(self.device)
            allocated = allocator.allocated_bytes() if touched else 0
            reserved = allocator.reserved_bytes() if touched else 0
            answer = nvml.answer(allocator.index)
            occupied = answer.device
            if occupied is None:
                note = f"cannot tell the memory use or context size of {self.device}: {answer.why_not}"
                if note not in self.notes:
                    self.notes.append(note)
        snapshot = MemorySnapshot(
            name=name,
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            nvml_used_bytes=None if occupied is None else occupied.used_bytes,
            nvml_process_bytes=None if occupied is None else occupied.process_bytes,
            rss_bytes=_status_bytes("VmRSS"),
        )
        self.taken = (*(taken for taken in self.taken if taken.name != name), snapshot)


def _has_context(index: int) -> bool:
    """Return whether this process already has a context on the device, without creating one."""
    import torch

    cuda: Any = torch.cuda  # its functions have no types
    ask = getattr(torch._C, "_cuda_hasPrimaryContext", None)  # in CUDA builds
    try:
        return cuda.is_initialized() and (ask is None or bool(ask(index)))
    except Exception:  # assume a context if unknown
        return True
