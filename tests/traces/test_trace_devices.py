"""Which device a trace is of: the one that ran its kernels, and none where there is no event of any."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import opanatomy
from opanatomy.records.anatomy import Anatomy
from tests.support.made_trace import H100, TraceBuilder, page, training_step
from tests.support.paths import TRACES

A100 = {"name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 84_974_239_744, "numSms": 108}
RTX = {"name": "NVIDIA GeForce RTX 3090", "totalGlobalMem": 25_438_126_080, "numSms": 82}
MI210 = {"name": "AMD Instinct MI210", "totalGlobalMem": 68_702_699_520, "numSms": 104}
RADEON = {"name": "AMD Radeon PRO W6800", "totalGlobalMem": 34_342_961_152, "numSms": 30}


def entries(*kinds: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"id": number, **kind} for number, kind in enumerate(kinds)]


def on_devices(properties: list[Any], *numbers: int, **metadata: Any) -> TraceBuilder:
    """The step of `training_step` with its kernels (10, 20 and 5 us) on these devices in turn."""
    trace = training_step()
    trace.metadata |= {"deviceProperties": properties, **metadata}
    kernels = [event for event in trace.events if event["cat"] == "kernel"]
    for index, event in enumerate(kernels):
        event["args"]["device"] = event["pid"] = numbers[index % len(numbers)]
    return trace


def told(anatomy: Anatomy) -> tuple[str | None, int | None, int | None]:
    environment = anatomy.environment
    return environment.device, environment.multiprocessors, environment.device_memory_bytes


IS_A100 = (A100["name"], 108, 84_974_239_744)


@pytest.mark.parametrize(
    ("properties", "device"),
    [
        (entries(RTX, RTX, RTX, A100, RTX, RTX, RTX, RTX), 3),
        (entries(RTX, A100)[::-1], 1),
        ([{key: value for key, value in one.items() if key != "id"} for one in entries(RTX, RTX, A100)], 2),
        # What is alike needs no number: `CUDA_VISIBLE_DEVICES` hides the others, or a trace was merged.
        (entries(A100), 5),
        (entries(A100, A100), 7),
    ],
)
def test_the_device_is_that_of_the_kernels(properties: list[Any], device: int, tmp_path: Path) -> None:
    """It was the first entry: an RTX 3090 of 35.6 TFLOP/s where an A100 of 19.5 ran, or the other way round."""
    anatomy = on_devices(properties, device).analyze(tmp_path)
    assert told(anatomy) == IS_A100
    assert anatomy.device.peak_flops_per_second["float32"] == 19.5e12
    assert anatomy.caveats == anatomy.warnings == ()
    assert [(row.device, row.name) for row in anatomy.timeline.devices] == [(device, A100["name"])]


def test_of_several_devices_the_busiest_and_the_others_are_said(tmp_path: Path) -> None:
    anatomy = on_devices(entries(RTX, A100), 0, 1, 0).analyze(tmp_path)
    assert told(anatomy) == IS_A100
    (caveat,) = anatomy.caveats
    assert (
        "57.1% of their time on device 1 (NVIDIA A100-SXM4-80GB), 42.9% on device 0 (NVIDIA GeForce RTX 3090)" in caveat
    )
    assert [(row.device, row.name) for row in anatomy.timeline.devices] == [(0, RTX["name"]), (1, A100["name"])]


def test_devices_of_two_kinds_have_no_common_peak(tmp_path: Path) -> None:
    """MFU was that of two devices of the first kind."""
    alike, unlike = (on_devices(entries(kind, A100), 0, 1).analyze(tmp_path) for kind in (A100, RTX))
    assert unlike.device.mfu is None
    assert alike.device.mfu == pytest.approx(256 / (2 * 19.5e12 * 900e-6), rel=1e-12)
    assert alike.caveats == alike.warnings == ()


@pytest.mark.parametrize(
    ("properties", "device", "metadata"),
    [
        (entries(RTX, A100), 3, {}),
        # roctracer numbers the processors first.
        (entries(MI210, RADEON), 1, {"hip_runtime_version": 60443483}),
        ([{"id": 0, **RTX}, {"id": 0, **A100}], 0, {}),
        ([{"id": "x", **RTX}, {"id": None, **A100}], 1, {}),
    ],
)
def test_a_number_that_names_no_entry(
    properties: list[Any], device: int, metadata: dict[str, Any], tmp_path: Path
) -> None:
    anatomy = on_devices(properties, device, **metadata).analyze(tmp_path)
    assert told(anatomy) == (None, None, None)
    assert f"the kernels ran on device {device}, but the trace does not say which" in anatomy.caveats[0]
    assert str(properties[0]["name"]) in anatomy.caveats[0]
    assert anatomy.device.no_ceilings is not None
    assert all(row.bound_ns is None for row in anatomy.classes)


@pytest.mark.parametrize("properties", [None, "x", [], [1, "x"], [{}], [{"name": 5, "numSms": "x"}]])
def test_a_header_that_says_nothing(properties: Any, tmp_path: Path) -> None:
    trace = on_devices([], 0)
    trace.metadata["deviceProperties"] = properties
    assert told(trace.analyze(tmp_path)) == (None, None, None)


def test_devices_of_roctracer_that_are_all_alike(tmp_path: Path) -> None:
    anatomy = on_devices(entries(MI210, MI210), 3, hip_runtime_version=1).analyze(tmp_path)
    assert (told(anatomy), anatomy.environment.device_kind) == ((MI210["name"], 104, 68_702_699_520), "rocm")


# --------------------------------------------------------------------------------------------- without device events


def without_device_events(trace: TraceBuilder, *, keep: str | None = None) -> TraceBuilder:
    """What is left where CUPTI recorded nothing; with one call of the runtime in an operator where `keep` names it."""
    trace.events = [event for event in trace.events if event["cat"] not in ("kernel", "cuda_runtime")]
    if keep is not None:
        trace.launch(130, 77, name=keep)
    return trace


@pytest.mark.parametrize("keep", ["cudaDeviceSynchronize", "cudaStreamSynchronize"])
def test_host_times_are_not_those_of_a_gpu(keep: str, tmp_path: Path) -> None:
    """Self times of operators that only launch stood under the name of the GPU, held against its peaks; with a single
    call that waits there was no time at all."""
    anatomy = without_device_events(training_step(), keep=keep).analyze(tmp_path)
    assert (told(anatomy), anatomy.environment.device_kind) == ((None, None, None), "cpu")
    assert sum(row.time_ns for row in anatomy.classes) == 150_000
    assert anatomy.device.no_ceilings is not None
    assert (anatomy.device.peak_flops_per_second, anatomy.device.mfu) == ({}, None)
    assert anatomy.environment.host_only
    (caveat,) = anatomy.caveats
    begin = f"only the host was recorded: the trace contains {keep} inside an operator but has no GPU events."
    assert caveat.startswith(begin)
    text = page(anatomy)
    assert "device a GPU without recorded work: host times only" in text
    assert (text.count(begin), text.count("H100")) == (1, 0)


def test_memory_of_a_gpu_without_its_events(tmp_path: Path) -> None:
    trace = without_device_events(training_step())
    trace.metadata["deviceProperties"] = []
    args = {"Bytes": 512, "Addr": 1, "Device Type": 1, "Device Id": 0, "Total Allocated": 512, "Total Reserved": 512}
    trace.events.append(
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 7, "tid": 1, "ts": 126, "args": args}
    )
    (caveat,) = trace.analyze(tmp_path).caveats
    assert caveat.startswith("only the host was recorded: the trace has GPU memory events but has no GPU events")


def test_launches_without_kernels_are_said(tmp_path: Path) -> None:
    trace = training_step()
    trace.events = [event for event in trace.events if event["cat"] != "kernel"]
    for number, call in enumerate(("cudaStreamIsCapturing", "cudaEventQuery", "cudaStreamSynchronize"), 4):
        trace.launch(600 + number, number, name=call)
    anatomy = trace.analyze(tmp_path)
    assert anatomy.caveats == (
        "no device work was recorded, only 3 launches: what the device did and when it was idle are"
        " unknown - record again where CUPTI (or roctracer) works",
    )
    assert (anatomy.timeline.idle_ns, anatomy.timeline.unrecorded_ns) == (0, 900_000)
    assert sum(row.time_ns for row in anatomy.classes) == 0
    assert anatomy.device.mfu is None


def test_the_cpu_is_the_cpu_on_a_machine_with_a_gpu(tmp_path: Path) -> None:
    """A capture knows that it ran on the CPU; what the machine has next to says nothing."""
    document = json.loads(gzip.decompress((TRACES / "bert_cpu.json.gz").read_bytes()))
    document["deviceProperties"] = entries(A100)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    anatomy = opanatomy.analyze(path)
    assert (anatomy.environment.device_kind, anatomy.caveats, anatomy.warnings) == ("cpu", (), ())
    assert anatomy.environment.processor is not None


def captured(device: str, kind: str) -> TraceBuilder:
    """A step with the record of a capture on this device."""
    trace = training_step()
    environment = {"device": device, "device_kind": kind, "multiprocessors": 82}
    trace.metadata["opanatomy"] = {
        "version": "0",
        "command": "",
        "created": "",
        "environment": environment,
        "workload": {},
    }
    return trace


def test_a_capture_whose_kernels_did_not_come(tmp_path: Path) -> None:
    trace = without_device_events(captured(str(H100["name"]), "cuda"))
    del trace.metadata["deviceProperties"]
    anatomy = trace.analyze(tmp_path)
    assert (anatomy.environment.device, anatomy.environment.device_kind) == (None, "cpu")
    assert f"the trace is from a GPU ({H100['name']}) but has no GPU events" in anatomy.caveats[0]
    assert all(row.bound_ns is None for row in anatomy.classes)


@pytest.mark.parametrize("said", [("NVIDIA GeForce RTX 3090", "cuda"), ("AMD EPYC 7B13", "cpu")])
def test_a_capture_whose_kernels_ran_elsewhere(said: tuple[str, str], tmp_path: Path) -> None:
    """The user's function may use another device than the capture was told."""
    anatomy = captured(*said).analyze(tmp_path)
    assert told(anatomy) == (H100["name"], 132, 85_018_279_936)
    assert anatomy.environment.device_kind == "cuda"
    assert anatomy.device.peak_flops_per_second["bfloat16"] == 989.4e12
    assert f"the capture names {said[0]}, but the kernels ran on {H100['name']}" in anatomy.caveats[0]
