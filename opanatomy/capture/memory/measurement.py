"""Memory of a step: what lives when, the peak, and a limit that turns the kernel's kill into an error."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from opanatomy.capture.device import accelerators
from opanatomy.capture.memory.allocator import DeviceAllocator, allocator_name
from opanatomy.capture.memory.holders import Holders
from opanatomy.capture.memory.storages import on_device, unpacked
from opanatomy.records.memory_observations import MemoryObservations

if TYPE_CHECKING:
    import torch

if sys.platform != "win32":
    import resource

#: Left free below the limit, for what other processes and the kernel need.
RESERVE_BYTES = 256 << 20


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the distinct storages under `tensors` (tied weights once, wrapper subclasses unpacked)."""
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
        #: Bytes of the process that are none of the step's: copies that the recording keeps.
        self.own_bytes = 0

    @property
    def measured_by(self) -> str | None:
        """What the figure is; `None` where the device does not say."""
        if self.on_host:
            return "resident set of the process"
        if self.on_cuda:
            return allocator_name(DeviceAllocator(self.device))
        return accelerators.allocator_name(self.device)

    def reset(self) -> None:
        """Forget the peak so far."""
        if self.on_cuda:
            DeviceAllocator(self.device).reset_peak()
            return
        if not self.on_host:
            accelerators.reset_peak(self.device)
            return
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def peak(self) -> int | None:
        """Bytes at the peak since the last reset; `None` where the allocator does not say."""
        if self.on_cuda:
            return DeviceAllocator(self.device).peak_bytes()
        if not self.on_host:
            return accelerators.peak_bytes(self.device)
        peak = _status_bytes("VmHWM") or _highest_resident_bytes()
        return None if peak is None else max(peak - self.own_bytes, 0)


def _highest_resident_bytes() -> int | None:
    """The highest resident set of the process's life, where the system does not let it be reset."""
    if sys.platform == "win32":
        return None
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else highest * 1024


def _status_bytes(key: str) -> int | None:
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    return None


def available_bytes() -> int | None:
    """Memory this process may still take: what the host has, and what its own limits (`ulimit -d`, `-v`) leave."""
    host = _host_bytes()
    limits = [] if host is None else [host]
    if sys.platform != "win32":
        for limit, key in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
            soft, held = resource.getrlimit(limit)[0], _status_bytes(key)
            if soft != resource.RLIM_INFINITY and held is not None:
                limits.append(max(soft - held, 0))
    return min(limits) if limits else None


def _host_bytes() -> int | None:
    """Free pages and caches on the host, less where the control group allows less."""
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
    """Make an allocation beyond the host's memory fail while inside, where the kernel would kill the process.

    Linux counts private writable pages against `RLIMIT_DATA`; the limit is what the process holds plus what is
    available now, less a reserve. A limit that is already lower stays. Elsewhere nothing is limited.
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
    """Let the process take `extra_bytes` more than its limit while inside, as far as its hard limit lets it."""
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
    """Have the C library give back what was freed: until then it is the process's, and counts against its limit."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def could_have(extra_bytes: int) -> bool:
    """Whether `room_for` can give the process that much."""
    if sys.platform == "win32":
        return True
    hard, held = resource.getrlimit(resource.RLIMIT_DATA)[1], held_bytes()
    return hard == resource.RLIM_INFINITY or held is None or hard - held > extra_bytes


def held_bytes() -> int | None:
    """What counts against `RLIMIT_DATA`."""
    return _status_bytes("VmData")


def storages_observed(
    holders: Holders, saved_bytes: int | None = None, cast_bytes: int | None = None
) -> MemoryObservations:
    """The storages on a device as they stand after a step, by component, and the elements of its parameters.

    `saved_bytes` are those that forward saved, `cast_bytes` those of autocast's casts of weights.
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
    """The elements of the tensors times the bytes of one."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
