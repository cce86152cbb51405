"""Devices other than CUDA: named, or refused with one line, and never called the CPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import opanatomy
from opanatomy.capture.device import accelerators
from opanatomy.capture.device.environment import choose_device, environment_of
from opanatomy.errors import CaptureError, OpanatomyError, UsageError
from opanatomy.pipeline import summary_of_trace
from opanatomy.records.taxonomy import OperatorClass, Phase
from tests.support.made_trace import TraceBuilder

US = 1000


def refused(device: str, kind: type[OpanatomyError]) -> str:
    with pytest.raises(kind) as caught:
        choose_device(device)
    message = str(caught.value)
    assert "\n" not in message
    assert " - " in message
    return message


@pytest.mark.parametrize(
    ("device", "kind", "said"),
    [
        ("xpu:1", CaptureError, f"device xpu:1: this torch ({torch.__version__}) sees no xpu device"),
        ("mps", CaptureError, f"device mps: this torch ({torch.__version__}) sees no mps device"),
        ("meta", UsageError, "steps cannot run on meta"),
        ("npu", UsageError, "torch has no such device"),
        ("cpu:first", UsageError, "torch has no such device"),
    ],
)
def test_a_device_that_this_torch_has_not_is_refused(device: str, kind: type[OpanatomyError], said: str) -> None:
    assert said in refused(device, kind)


def test_a_device_that_the_profiler_does_not_record_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profiler has no activity for MPS, which is not here: the host's times would stand under its name."""
    monkeypatch.setattr(torch.mps, "is_available", lambda: True)
    assert "does not record mps device work" in refused("mps", CaptureError)
    with pytest.raises(UsageError, match="steps cannot run on meta"):
        opanatomy.profile(torch.nn.Identity(), torch.zeros(2, 2, device="meta"))


@pytest.fixture
def xpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two devices of XPU, with what torch says of them (`torch/xpu/__init__.py`, `torch/xpu/memory.py`)."""
    from torch.profiler import ProfilerActivity

    both = {ProfilerActivity.CPU, ProfilerActivity.XPU}
    properties = SimpleNamespace(
        name="Intel(R) Data Center GPU Max 1550", total_memory=68_719_476_736, gpu_subslice_count=128
    )
    monkeypatch.setattr(torch.autograd, "_supported_activities", lambda: both)
    for name, answer in (
        ("is_available", True),
        ("device_count", 2),
        ("get_device_properties", properties),
        ("max_memory_allocated", 123),
        ("reset_peak_memory_stats", None),
    ):
        monkeypatch.setattr(torch.xpu, name, lambda *_, answer=answer: answer)


@pytest.mark.usefixtures("xpu")
def test_xpu_is_named_as_such() -> None:
    from torch.profiler import ProfilerActivity

    assert choose_device("xpu:1") == "xpu:1"
    assert "there are 2 xpu devices" in refused("xpu:2", CaptureError)
    environment = environment_of("xpu:1")
    assert environment.device == "Intel(R) Data Center GPU Max 1550"
    assert (environment.device_kind, environment.device_count) == ("xpu", 2)
    assert environment.device_memory_bytes == 68_719_476_736
    assert environment.cuda is None
    assert accelerators.multiprocessors("xpu:1") == 128
    assert accelerators.profiler_activities("xpu:1") == [ProfilerActivity.CPU, ProfilerActivity.XPU]
    assert (accelerators.allocator_name("xpu:1"), accelerators.peak_bytes("xpu:1")) == ("xpu allocator", 123)
    with pytest.raises(UsageError, match="memory: the xpu allocator cannot be traced"):
        accelerators.check_memory_in_depth("xpu:1")
    with pytest.raises(UsageError, match="cannot measure the peaks of xpu devices"):
        accelerators.check_measurable("xpu:1")


def xpu_trace() -> TraceBuilder:
    """One product as Kineto writes it for XPU: the runtime's call and, in it, the driver's, which share a correlation;
    streams are SYCL queues. Hand-made after libkineto/src/plugin/xpupti/XpuptiActivityHandlers.cpp, until a device
    renews it."""
    trace = TraceBuilder()
    trace.metadata |= {
        "xpupti_version": "0.16.0",
        "deviceProperties": [{"id": 0, "name": "Intel(R) Data Center GPU Max 1550", "totalGlobalMem": 68719476736}],
    }
    trace.annotation("ProfilerStep#1", 100, 100)
    matrix = {"shapes": [[8, 4], [4, 2]], "types": ["float", "float"]}
    trace.host("aten::mm", 110, 50, sequence=5, **matrix)
    trace.launch(120, 9, name="urEnqueueKernelLaunch")
    trace.events[-1] |= {"cat": "xpu_runtime", "dur": 20}
    trace.launch(125, 9, name="zeCommandListAppendLaunchKernel")
    trace.events[-1] |= {"cat": "xpu_driver", "dur": 10}
    trace.kernel("gemm_kernel", 140, 10, 9)
    trace.launch(170, 10, name="zeCommandListHostSynchronize")
    trace.events[-1] |= {"cat": "xpu_driver", "dur": 5}
    trace.events.append({**trace.events[-1], "cat": "xpu_sync", "pid": -1})
    return trace


def test_calls_of_the_xpu_driver_are_launches(tmp_path: Path) -> None:
    anatomy = summary_of_trace(xpu_trace().write(tmp_path / "xpu.json")).anatomy
    assert anatomy.environment.device_kind == "xpu"
    launching = anatomy.timeline.launching
    assert launching is not None
    # One launch, however many layers of it are recorded, with the time of the outer one.
    assert (launching.calls, launching.call_ns) == (1, 20 * US)
    assert (launching.synchronizing_calls, launching.synchronizing_ns) == (1, 5 * US)
    assert (launching.kernels, launching.delayed) == (1, 1)
    assert anatomy.ledger.linked_ns == anatomy.ledger.device_work_ns == 10 * US
    assert anatomy.warnings == ()


def test_a_launch_by_the_driver_alone_links_its_kernel(tmp_path: Path) -> None:
    trace = xpu_trace()
    trace.events = [event for event in trace.events if event["cat"] != "xpu_runtime"]
    anatomy = summary_of_trace(trace.write(tmp_path / "xpu.json")).anatomy
    assert anatomy.timeline.launching is not None
    assert (anatomy.timeline.launching.calls, anatomy.timeline.launching.call_ns) == (1, 10 * US)
    row = next(row for row in anatomy.classes if row.operator_class is OperatorClass.TENSOR_CONTRACTION)
    assert (row.time_ns, row.flops, row.phase) == (10 * US, 2 * 8 * 4 * 2, Phase.FORWARD)
    assert anatomy.ledger.linked_ns == 10 * US
