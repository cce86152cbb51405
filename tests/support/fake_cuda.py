"""Answers of `torch.cuda` and NVML for machines that are not here: what a scenario says, and nothing else.

Hand-made after the sources named below, until a device renews them: error texts of `cudaGetErrorString` and of
`torch.AcceleratorError`, codes of NVML as `pynvml` has them, UUIDs as `torch.cuda.get_device_properties` prints them
(without the prefix that NVML's have). CUDA numbers devices by speed (`cuda_order`), NVML by slot (the order of `gpus`).
"""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec import Struct

GIB = 1 << 30

NO_KERNEL_IMAGE = (
    "CUDA error: no kernel image is available for execution on the device\nSearch for `cudaErrorNoKernelImageForDevice'"
    " in https://docs.nvidia.com/cuda/ for more information."
)
BUSY = (
    "CUDA error: CUDA-capable device(s) is/are busy or unavailable\nSearch for `cudaErrorDevicesUnavailable' in https"
)
CONTEXT_OUT_OF_MEMORY = "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https"
UNCORRECTABLE = "CUDA error: uncorrectable ECC error encountered\nSearch for `cudaErrorECCUncorrectable' in https"
TOO_OLD = (
    "CUDA initialization: The NVIDIA driver on your system is too old (found version 12040). Please update your GPU"
    " driver by downloading and installing a new version (Triggered internally at CUDAFunctions.cpp:119.)"
)

NOT_READY = (
    "CUDA initialization: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling"
    " NumCudaDevices() that might have already set an error? Error 802: system not yet initialized (Triggered"
    " internally at CUDAFunctions.cpp:119.)"
)


class FakeProcess(Struct, frozen=True, kw_only=True):
    pid: int
    name: str = "python"
    used_bytes: int | None = None


class FakeInstance(Struct, frozen=True, kw_only=True):
    """A MIG instance; `uuid` without its prefix."""

    uuid: str
    total_bytes: int
    used_bytes: int = 0


class FakeGpu(Struct, frozen=True, kw_only=True):
    name: str = "NVIDIA H100 80GB HBM3"
    uuid: str = "00000000-0000-0000-0000-000000000001"
    capability: tuple[int, int] = (9, 0)
    gcn: str = ""
    multiprocessors: int = 132
    total_bytes: int = 80 * GIB
    used_bytes: int = 0
    processes: tuple[FakeProcess, ...] = ()
    #: NVML_COMPUTEMODE_*: 0 default, 2 prohibited, 3 exclusive process.
    compute_mode: int = 0
    mig: bool = False
    instances: tuple[FakeInstance, ...] = ()
    #: Its clocks in MHz, power in W, temperature, bits of the reasons for a lower clock; `None` is not reported.
    sm_clock: int | None = 1755
    sm_clock_limit: int | None = 1980
    power: float | None = 610.0
    power_limit: float | None = 700.0
    temperature: int | None = 58
    reasons: int = 0
    #: Cools by so many degrees each time it is asked.
    cools: int = 0
    #: What CUDA gives as the UUID where it is another: on CUDA 12 that of the MIG instance.
    cuda_uuid: str | None = None
    cuda_total_bytes: int | None = None


@dataclass(slots=True, kw_only=True)
class FakeMachine:
    gpus: tuple[FakeGpu, ...] = (FakeGpu(),)
    #: The places in `gpus` of cuda:0, cuda:1, ...; what is not in it torch does not see.
    cuda_order: tuple[int, ...] = (0,)
    cuda: str | None = "13.0"
    hip: str | None = None
    arch_list: tuple[str, ...] = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
    driver: str = "580.65.06"
    #: 13000 is CUDA 13.0.
    driver_cuda: int = 13000
    #: The code with which NVML does not start; "package" is a Python without pynvml.
    nvml_error: int | str | None = None
    #: What torch warns of when it looks for devices.
    warning: str | None = None
    #: What the first allocation, which makes the context, and the first kernel raise.
    context_error: str | None = None
    kernel_error: str | None = None
    #: What was called, in order.
    calls: list[str] = field(default_factory=list)
    #: How often NVML was asked for a clock.
    readings: int = 0

    def visible(self) -> tuple[FakeGpu, ...]:
        return tuple(self.gpus[index] for index in self.cuda_order)


def install(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """Have `torch.cuda` and `pynvml` answer as on `machine`; the variables that hide devices are unset first."""
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    _install_torch(machine, monkeypatch)
    if machine.nvml_error == "package":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    else:
        _install_nvml(machine, monkeypatch)
    return machine


# -------------------------------------------------------------------------------------------------------- torch.cuda


def _install_torch(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    current = [0]

    def properties(device: Any = None) -> Any:
        gpu = machine.visible()[_index(device)]
        return SimpleNamespace(
            name=gpu.name,
            uuid=gpu.cuda_uuid or gpu.uuid,
            major=gpu.capability[0],
            minor=gpu.capability[1],
            gcnArchName=gpu.gcn,
            multi_processor_count=gpu.multiprocessors,
            total_memory=gpu.cuda_total_bytes or gpu.total_bytes,
        )

    def available() -> bool:
        if machine.warning is not None:
            warnings.warn(machine.warning, stacklevel=1)
        return bool(machine.cuda_order) and (machine.cuda or machine.hip) is not None

    def touch(device: Any) -> None:
        machine.calls.append(f"touch {torch.device(device)}")
        if machine.context_error is not None:
            raise _error(machine.context_error)

    @contextlib.contextmanager
    def guard(device: Any) -> Iterator[None]:
        before, current[0] = current[0], _index(device)
        machine.calls.append(f"current cuda:{current[0]}")
        try:
            yield
        finally:
            current[0] = before
            machine.calls.append(f"current cuda:{before}")

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        gpu = machine.visible()[_index(device)]
        if machine.context_error is not None:
            raise _error(machine.context_error)
        return gpu.total_bytes - gpu.used_bytes, gpu.total_bytes

    answers: dict[str, Any] = {
        "is_available": available, "device_count": lambda: len(machine.cuda_order), "get_device_properties": properties,
        "get_device_capability": lambda device=None: machine.visible()[_index(device)].capability,
        "get_arch_list": lambda: list(machine.arch_list), "mem_get_info": mem_get_info, "device": guard,
        "synchronize": lambda device=None: machine.calls.append(f"synchronize {device}"),
        "memory_allocated": lambda device=None: 0, "memory_reserved": lambda device=None: 0,
        "empty_cache": lambda: None, "current_device": lambda: current[0],
    }  # fmt: skip
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(torch.version, "cuda", machine.cuda)
    monkeypatch.setattr(torch.version, "hip", machine.hip)
    _install_allocations(machine, monkeypatch, touch)


def _install_allocations(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, touch: Any) -> None:
    """`torch.empty` makes the context, `torch.zeros` launches the first kernel; there is no tensor on a fake GPU."""
    empty, zeros = torch.empty, torch.zeros

    def fake_empty(*shape: Any, device: Any = None, **options: Any) -> torch.Tensor:
        if device is not None and torch.device(device).type == "cuda":
            touch(device)
            device = "cpu"
        return empty(*shape, device=device, **options)

    def fake_zeros(*shape: Any, device: Any = None, **options: Any) -> torch.Tensor:
        if device is not None and torch.device(device).type == "cuda":
            touch(device)
            device = "cpu"
            if machine.kernel_error is not None:
                raise _error(machine.kernel_error)
        return zeros(*shape, device=device, **options)

    monkeypatch.setattr(torch, "empty", fake_empty)
    monkeypatch.setattr(torch, "zeros", fake_zeros)


def _index(device: Any) -> int:
    return device if isinstance(device, int) else torch.device(device or "cuda").index or 0


def _error(text: str) -> Exception:
    kind: Any = getattr(torch, "AcceleratorError", RuntimeError)  # torch 2.8 and later
    made: Exception = kind(text)
    return made


# -------------------------------------------------------------------------------------------------------------- NVML


def _install_nvml(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def start() -> None:
        if machine.nvml_error is not None:
            raise pynvml.NVMLError(machine.nvml_error)

    def by_uuid(uuid: str) -> Any:
        for gpu in machine.gpus:
            if uuid == f"GPU-{gpu.uuid}":
                return gpu
            for instance in gpu.instances:
                if uuid == f"MIG-{instance.uuid}":
                    return instance
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def instance_at(gpu: FakeGpu, index: int) -> FakeInstance:
        if index >= len(gpu.instances):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return gpu.instances[index]

    def processes(handle: Any) -> list[Any]:
        running = handle.processes if isinstance(handle, FakeGpu) else ()
        return [SimpleNamespace(pid=one.pid, usedGpuMemory=one.used_bytes) for one in running]

    def process_name(pid: int) -> str:
        named = {process.pid: process.name for gpu in machine.gpus for process in gpu.processes}
        if pid not in named:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return named[pid]

    def known(value: Any) -> Any:
        if value is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return value

    def sensor(name: str, per: int = 1) -> Any:
        def read(handle: Any, *_: Any) -> Any:
            if not isinstance(handle, FakeGpu):  # NVML has none of these for a MIG instance
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return round(known(getattr(handle, name)) * per)

        return read

    def clock(handle: Any, kind: int) -> int:
        machine.readings += kind == 1
        return 2619 if kind == 2 else int(sensor("sm_clock")(handle))

    def temperature(handle: Any, _: int) -> int:
        return max(int(sensor("temperature")(handle)) - machine.readings * handle.cools, 30)

    def energy(handle: Any) -> int:
        """Millijoules since some time ago, at the power of the device."""
        return round(sensor("power", 1000)(handle) * time.monotonic())

    def whole(instance: Any) -> FakeGpu:
        return next(gpu for gpu in machine.gpus if instance in gpu.instances)

    answers: dict[str, Any] = {
        "nvmlDeviceGetClockInfo": clock, "nvmlDeviceGetTemperature": temperature,
        "nvmlDeviceGetMaxClockInfo": lambda one, kind: 2619 if kind == 2 else sensor("sm_clock_limit")(one),
        "nvmlDeviceGetPowerUsage": sensor("power", 1000), "nvmlDeviceGetTotalEnergyConsumption": energy,
        "nvmlDeviceGetEnforcedPowerLimit": sensor("power_limit", 1000),
        "nvmlDeviceGetTemperatureThreshold": lambda one, kind: 87,
        "nvmlDeviceGetCurrentClocksEventReasons": sensor("reasons"),
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": whole,
        "nvmlInit": start, "nvmlShutdown": lambda: None, "nvmlDeviceGetCount": lambda: len(machine.gpus),
        "nvmlDeviceGetHandleByIndex": lambda index: machine.gpus[index], "nvmlDeviceGetHandleByUUID": by_uuid,
        "nvmlDeviceGetUUID": lambda one: f"{'GPU' if isinstance(one, FakeGpu) else 'MIG'}-{one.uuid}",
        "nvmlDeviceGetName": lambda one: one.name if isinstance(one, FakeGpu) else "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "nvmlDeviceGetMemoryInfo": lambda one: SimpleNamespace(used=one.used_bytes, total=one.total_bytes),
        "nvmlDeviceGetMigMode": lambda one: [int(one.mig), int(one.mig)],
        "nvmlDeviceGetMaxMigDeviceCount": lambda one: 7, "nvmlDeviceGetMigDeviceHandleByIndex": instance_at,
        "nvmlDeviceGetComputeMode": lambda one: one.compute_mode,
        "nvmlDeviceGetComputeRunningProcesses": processes, "nvmlDeviceGetGraphicsRunningProcesses": lambda one: [],
        "nvmlSystemGetProcessName": process_name, "nvmlSystemGetDriverVersion": lambda: machine.driver,
        "nvmlSystemGetCudaDriverVersion_v2": lambda: machine.driver_cuda,
    }  # fmt: skip
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
