"""Ask NVML (the driver's management library) about a torch device, found by UUID.

CUDA and NVML order devices differently - CUDA the fastest first, NVML by slot - and `CUDA_VISIBLE_DEVICES` renumbers
only those of CUDA.

Nothing here raises: without an answer from NVML, the result says why. UUIDs and MIG devices as in NVIDIA's NVML API
reference (`nvmlDeviceGetHandleByUUID`, "Multi Instance GPU Management") and `cuDeviceGetUuid_v2`, which gives the UUID
of the MIG instance if the device is one (before CUDA 12 that of the whole GPU).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from msgspec import Struct

#: `PROC_PID_INIT_INO` of Linux: in any other namespace our process ids differ from the driver's.
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
#: CUDA and NVML differ in the memory of an instance by the driver's reserve.
_OF_A_SIZE: Final = 0.05
_COMPUTE_MODES: Final = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}


class NvmlProcess(Struct, frozen=True, kw_only=True):
    """A process with a context on a device; fields unknown to NVML (another user's, in a container) are `None`."""

    pid: int
    name: str | None = None
    used_bytes: int | None = None


class NvmlDevice(Struct, frozen=True, kw_only=True):
    """One device, or the MIG instance of a partitioned one, whose bytes are then the instance's.

    `used_bytes` counts every process and the driver's reserve (version 1 of NVML's record); it and `total_bytes` are
    `None` if the memory is the host's (GB10, Jetson) and NVML does not answer.
    """

    uuid: str
    name: str
    used_bytes: int | None
    total_bytes: int | None
    #: NVML's figure for this process, its context included; `None` if unknown.
    process_bytes: int | None
    mig: bool
    processes: tuple[NvmlProcess, ...] = ()
    #: One of `default`, `exclusive process`, `prohibited`, `exclusive thread`.
    compute_mode: str | None = None


class Driver(Struct, frozen=True, kw_only=True):
    """The driver, the newest CUDA that it supports (`13.0`), and the names of its GPUs in NVML's order."""

    version: str | None = None
    cuda: str | None = None
    gpus: tuple[str, ...] = ()
    #: Those split by MIG without an instance: CUDA does not see them.
    without_instance: tuple[str, ...] = ()


class Answer(Struct, frozen=True, kw_only=True):
    """A device, or why NVML has none."""

    device: NvmlDevice | None = None
    why_not: str | None = None


class Reading(NamedTuple):
    """What a device reports now, in MHz, W, degrees Celsius and J since the driver was loaded; `None` if it does not.

    `reasons` are the words of `REASONS` for a lower clock.
    """

    clock_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    energy_j: float | None
    reasons: tuple[str, ...]


class Limits(NamedTuple):
    """The maximum clocks of a device, the enforced power limit, and the slowdown temperature."""

    clock_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    slowdown_c: int | None


#: Bits of `nvmlDeviceGetCurrentClocksEventReasons` (nvml.h): why the clock is lower than it could be.
REASONS: Final = {
    0x1: "idle", 0x2: "set clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "heat", 0x40: "heat", 0x80: "power brake", 0x100: "display clocks",
}  # fmt: skip


@contextmanager
def readable(torch_device_index: int) -> Iterator[tuple[Limits, Callable[[], Reading]]]:
    """Give the limits of `cuda:<index>` and what reads it; of a MIG instance the GPU is read, without its power.

    Raises an error whose text says why where NVML does not answer.
    """
    import torch

    properties: Any = torch.cuda.get_device_properties(torch_device_index)
    with _library() as nvml:
        handle, mig = _handle(nvml, str(properties.uuid), properties.total_memory)
        if mig:
            handle = _ask(nvml, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) or handle

        def asked(function: str, *arguments: Any, per: int = 1) -> Any:
            answer = _ask(nvml, function, handle, *arguments)
            return None if answer is None else answer / per if per > 1 else int(answer)

        def read() -> Reading:
            held = asked("nvmlDeviceGetCurrentClocksEventReasons")
            if held is None:  # before driver 535
                held = asked("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
            return Reading(
                clock_mhz=asked("nvmlDeviceGetClockInfo", _SM),
                memory_clock_mhz=asked("nvmlDeviceGetClockInfo", _MEMORY),
                power_w=None if mig else asked("nvmlDeviceGetPowerUsage", per=1000),
                temperature_c=asked("nvmlDeviceGetTemperature", 0),
                energy_j=None if mig else asked("nvmlDeviceGetTotalEnergyConsumption", per=1000),
                reasons=tuple(dict.fromkeys(name for bit, name in REASONS.items() if held & bit)),
            )

        limits = Limits(
            clock_mhz=asked("nvmlDeviceGetMaxClockInfo", _SM),
            memory_clock_mhz=asked("nvmlDeviceGetMaxClockInfo", _MEMORY),
            power_w=None if mig else asked("nvmlDeviceGetEnforcedPowerLimit", per=1000),
            slowdown_c=asked("nvmlDeviceGetTemperatureThreshold", 1),
        )
        yield limits, read


#: `nvmlClockType_t`.
_SM, _MEMORY = 1, 2


def device(torch_device_index: int) -> NvmlDevice | None:
    """Return NVML's view of `cuda:<index>`; `None` if it has none."""
    return answer(torch_device_index).device


def answer(torch_device_index: int) -> Answer:
    """Return NVML's view of `cuda:<index>`, or why it has none; loads the CUDA driver without creating a context."""
    import torch

    if torch.version.hip:
        return Answer(why_not="NVML does not support AMD devices")
    try:
        properties: Any = torch.cuda.get_device_properties(torch_device_index)
    except Exception as error:  # a CPU build asserts, CUDA raises errors of its own
        return Answer(why_not=f"CUDA cannot identify device cuda:{torch_device_index} ({_text(error)})")
    uuid = str(getattr(properties, "uuid", "") or "")
    if not uuid:
        return Answer(why_not=f"this torch does not report the UUID of cuda:{torch_device_index}")
    try:
        with _library() as nvml:
            handle, mig = _handle(nvml, uuid, properties.total_memory)
            return Answer(device=_read(nvml, handle, mig=mig))
    except Exception as error:  # pynvml's errors are its own classes, and it may be missing
        return Answer(why_not=reason_of(error))


def driver() -> Driver | str:
    """Return the driver and its GPUs without torch, or why NVML does not answer."""
    try:
        with _library() as nvml:
            number = _ask(nvml, "nvmlSystemGetCudaDriverVersion_v2")
            handles = [_ask(nvml, "nvmlDeviceGetHandleByIndex", at) for at in range(nvml.nvmlDeviceGetCount())]
            return Driver(
                version=_decoded(_ask(nvml, "nvmlSystemGetDriverVersion") or "") or None,
                cuda=None if not number else f"{number // 1000}.{number % 1000 // 10}",
                gpus=tuple(_name(nvml, handle) for handle in handles),
                without_instance=tuple(
                    _name(nvml, handle)
                    for handle in handles
                    if _is_split(nvml, handle) and not _instances(nvml, handle)
                ),
            )
    except Exception as error:  # as above
        return reason_of(error)


def knows(uuid: str) -> bool | None:
    """Return whether a device (by UUID or its beginning) or MIG instance exists; `None` if NVML does not answer."""
    try:
        with _library() as nvml:
            if uuid.startswith("MIG-"):
                return _ask(nvml, "nvmlDeviceGetHandleByUUID", uuid) is not None
            handles = [_ask(nvml, "nvmlDeviceGetHandleByIndex", at) for at in range(nvml.nvmlDeviceGetCount())]
            return any(
                _decoded(_ask(nvml, "nvmlDeviceGetUUID", handle) or "").startswith(uuid) for handle in handles if handle
            )
    except Exception:  # as above
        return None


@contextmanager
def _library() -> Iterator[Any]:
    import pynvml

    pynvml.nvmlInit()
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


class _NotFoundError(Exception):
    """The reason for a missing handle, as a sentence."""


def _handle(nvml: Any, uuid: str, total_bytes: int) -> tuple[Any, bool]:
    """Return the handle of the device that CUDA calls `uuid`, and whether it is a MIG instance."""
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    if instance := _ask(nvml, "nvmlDeviceGetHandleByUUID", f"MIG-{bare}"):
        return instance, True
    whole = _ask(nvml, "nvmlDeviceGetHandleByUUID", f"GPU-{bare}")
    if whole is None:
        raise _NotFoundError(f"NVML cannot find device GPU-{bare}")
    if not _is_split(nvml, whole):
        return whole, False
    return _instance(nvml, whole, total_bytes), True


def _instance(nvml: Any, whole: Any, total_bytes: int) -> Any:
    """Return the MIG instance of `whole` that CUDA uses: by `CUDA_VISIBLE_DEVICES`, else by uniqueness or size."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    named = _ask(nvml, "nvmlDeviceGetHandleByUUID", first) if first.startswith("MIG-") else None
    if named:
        return named
    instances = _instances(nvml, whole)
    fitting = []
    for instance in instances:
        memory = _ask(nvml, "nvmlDeviceGetMemoryInfo", instance)
        if memory is not None and abs(memory.total - total_bytes) < _OF_A_SIZE * total_bytes:
            fitting.append(instance)
    if len(instances) == 1 or len(fitting) == 1:
        return (fitting or instances)[0]
    raise _NotFoundError(
        f"the GPU has {len(instances)} MIG instances, and CUDA does not say which one it uses (set"
        " CUDA_VISIBLE_DEVICES=MIG-...)"
    )


def _is_split(nvml: Any, whole: Any) -> bool:
    """Return whether MIG is on now."""
    return bool((_ask(nvml, "nvmlDeviceGetMigMode", whole) or [0])[0])


def _instances(nvml: Any, whole: Any) -> list[Any]:
    indices = range(_ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", whole) or 0)
    instances = [_ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", whole, index) for index in indices]
    return [instance for instance in instances if instance]


def _read(nvml: Any, handle: Any, *, mig: bool) -> NvmlDevice:
    memory = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    running: dict[int, Any] = {}
    for listed in ("nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetComputeRunningProcesses"):
        running |= {process.pid: process for process in _ask(nvml, listed, handle) or ()}
    processes = [
        NvmlProcess(
            pid=pid,
            name=_decoded(_ask(nvml, "nvmlSystemGetProcessName", pid) or "") or None,
            used_bytes=None if process.usedGpuMemory is None else int(process.usedGpuMemory),
        )
        for pid, process in running.items()
    ]
    processes.sort(key=lambda process: (-(process.used_bytes or 0), process.pid))
    return NvmlDevice(
        uuid=_decoded(nvml.nvmlDeviceGetUUID(handle)),
        name=_decoded(nvml.nvmlDeviceGetName(handle)),
        used_bytes=None if memory is None else int(memory.used),
        total_bytes=None if memory is None else int(memory.total),
        process_bytes=_own_bytes(processes),
        mig=mig,
        processes=tuple(processes),
        compute_mode=_COMPUTE_MODES.get(_ask(nvml, "nvmlDeviceGetComputeMode", handle)),
    )


def _own_bytes(processes: Sequence[NvmlProcess]) -> int | None:
    """Return this process's bytes; in a container its process id differs from the driver's."""
    with suppress(OSError):
        if os.readlink("/proc/self/ns/pid") != _FIRST_PID_NAMESPACE:
            return None
    return next((process.used_bytes for process in processes if process.pid == os.getpid()), None)


def _name(nvml: Any, handle: Any) -> str:
    return _decoded(_ask(nvml, "nvmlDeviceGetName", handle) or "a GPU that NVML cannot read")


def _ask(nvml: Any, function: str, *arguments: Any) -> Any:
    """Call one NVML function; return `None` if it has no answer for this library, driver, device or user."""
    try:
        return getattr(nvml, function)(*arguments)
    except Exception:  # pynvml has a class for each code; older ones lack functions
        return None


def reason_of(error: Exception) -> str:
    """Return why NVML did not answer, as a sentence."""
    if isinstance(error, _NotFoundError):
        return str(error)
    if isinstance(error, ImportError):
        return "NVML is unavailable: pynvml is not installed - pip install nvidia-ml-py"
    return f"NVML does not answer ({_text(error)})"


def _text(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _decoded(text: Any) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)
