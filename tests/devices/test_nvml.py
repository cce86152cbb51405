"""NVML: the device of a torch index found by UUID, MIG instances, and why there is no answer."""

from __future__ import annotations

import os

import pynvml
import pytest
import torch
from msgspec.structs import replace

from opanatomy.capture.device import nvml
from opanatomy.capture.device.environment import environment_of
from tests.support.fake_cuda import GIB, FakeGpu, FakeInstance, FakeMachine, FakeProcess, install

SLOW = FakeGpu(name="NVIDIA T400", uuid="aaaaaaaa-0000-0000-0000-000000000000", total_bytes=4 * GIB, used_bytes=3 * GIB)
FAST = FakeGpu(uuid="bbbbbbbb-0000-0000-0000-000000000000", used_bytes=9 * GIB)
SMALL = FakeInstance(uuid="cccccccc-0000-0000-0000-000000000000", total_bytes=10 * GIB, used_bytes=GIB)
LARGE = FakeInstance(uuid="dddddddd-0000-0000-0000-000000000000", total_bytes=40 * GIB, used_bytes=2 * GIB)
SPLIT = replace(FAST, mig=True, instances=(SMALL, LARGE))


def found(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, index: int = 0) -> nvml.NvmlDevice:
    install(machine, monkeypatch)
    device = nvml.device(index)
    assert device is not None
    return device


def test_the_device_is_found_by_uuid_where_nvml_orders_by_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine(gpus=(SLOW, FAST), cuda_order=(1, 0))
    first, second = found(machine, monkeypatch, 0), found(machine, monkeypatch, 1)
    assert (first.uuid, first.name) == ("GPU-bbbbbbbb-0000-0000-0000-000000000000", "NVIDIA H100 80GB HBM3")
    assert (first.used_bytes, first.total_bytes, first.mig) == (9 * GIB, 80 * GIB, False)
    assert (second.name, second.used_bytes) == ("NVIDIA T400", 3 * GIB)


def test_the_environment_names_the_device_that_cuda_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    install(FakeMachine(gpus=(SLOW, replace(FAST, mig=True, instances=(LARGE,))), cuda_order=(1, 0)), monkeypatch)
    environment = environment_of("cuda:0")
    assert (environment.device, environment.driver, environment.device_count) == (
        "NVIDIA H100 80GB HBM3",
        "580.65.06",
        2,
    )
    assert (environment.multiprocessors, environment.architecture, environment.mig) == (132, "sm_90", True)
    assert environment_of("cuda:1").mig is False


def test_tf32_that_the_driver_libraries_are_told_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever torch asks of them."""
    install(FakeMachine(gpus=(FAST,)), monkeypatch)
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        asked = environment_of("cuda:0").matmul_float32
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
        assert (asked, environment_of("cuda:0").matmul_float32) == ("tf32", "ieee")
    finally:
        matmul.fp32_precision = before


@pytest.mark.parametrize(
    ("gpu", "visible", "uuid"),
    [
        (replace(SPLIT, cuda_total_bytes=39 * GIB), None, LARGE.uuid),
        (replace(SPLIT, cuda_total_bytes=39 * GIB), f"MIG-{SMALL.uuid}", SMALL.uuid),
        (replace(FAST, mig=True, instances=(SMALL,)), None, SMALL.uuid),
        (replace(SPLIT, cuda_uuid=SMALL.uuid), None, SMALL.uuid),
    ],
    ids=["by its size", "by CUDA_VISIBLE_DEVICES", "the only one", "by the UUID that CUDA 12 gives"],
)
def test_a_mig_instance_is_the_device(
    gpu: FakeGpu, visible: str | None, uuid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(FakeMachine(gpus=(gpu,)), monkeypatch)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    device = nvml.device(0)
    assert device is not None
    assert (device.uuid, device.mig) == (f"MIG-{uuid}", True)
    assert device.used_bytes == (GIB if uuid == SMALL.uuid else 2 * GIB)


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        (
            FakeMachine(nvml_error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND),
            "NVML does not answer (NVML Shared Library Not Found)",
        ),
        (
            FakeMachine(nvml_error="package"),
            "NVML is unavailable: pynvml is not installed - pip install nvidia-ml-py",
        ),
        (FakeMachine(hip="6.4", cuda=None), "NVML does not support AMD devices"),
        (
            FakeMachine(gpus=(replace(FAST, cuda_uuid="eeeeeeee"),)),
            "NVML cannot find device GPU-eeeeeeee",
        ),
        (
            FakeMachine(gpus=(replace(FAST, mig=True, instances=(SMALL, SMALL), cuda_total_bytes=10 * GIB),)),
            "the GPU has 2 MIG instances, and CUDA does not say which one it uses (set CUDA_VISIBLE_DEVICES=MIG-...)",
        ),
    ],
    ids=["no library", "no package", "AMD", "unknown", "two alike"],
)
def test_without_an_answer_there_is_a_reason(machine: FakeMachine, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(machine, monkeypatch)
    assert nvml.answer(0) == nvml.Answer(why_not=why)
    assert nvml.device(0) is None


@pytest.mark.parametrize(
    ("namespace", "own"), [("pid:[4026531836]", 5 * GIB), ("pid:[4026532999]", None)], ids=["host", "container"]
)
def test_our_own_bytes_are_told_where_process_ids_are_the_drivers(
    namespace: str, own: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = (FakeProcess(pid=4242, used_bytes=GIB), FakeProcess(pid=os.getpid(), used_bytes=5 * GIB))
    monkeypatch.setattr(os, "readlink", lambda path: namespace)
    device = found(FakeMachine(gpus=(replace(FAST, processes=processes),)), monkeypatch)
    assert device.process_bytes == own
    assert [process.pid for process in device.processes] == [os.getpid(), 4242]


def test_memory_that_nvml_does_not_tell_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """On GB10 and Jetson the memory is the host's."""
    install(FakeMachine(gpus=(FAST,)), monkeypatch)

    def not_supported(handle: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", not_supported)
    device = nvml.device(0)
    assert device is not None
    assert (device.used_bytes, device.total_bytes, device.uuid) == (None, None, f"GPU-{FAST.uuid}")
