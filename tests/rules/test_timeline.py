"""Busy, idle and exposed time, why the device was idle, and the steps: one hand-made trace a rule, its times constants.

Times in the traces are in microseconds.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import opanatomy
from opanatomy.analysis.intervals import union
from opanatomy.records.anatomy import Anatomy, Gap
from opanatomy.records.taxonomy import IdleCause, OperatorClass
from tests.support.made_trace import (
    GEMM,
    H100,
    MAP,
    MATRICES,
    NCCL,
    US,
    TraceBuilder,
    device_times,
    on_gpu,
    page,
    training_step,
)
from tests.support.paths import TRACES

TO_DEVICE = "Memcpy HtoD (Pinned -> Device)"
COPY = {"category": "gpu_memcpy", "call": "cudaMemcpyAsync"}
PAUSE, HARDLY = "it contains a pause", "it contains almost no work"


def made(*work: tuple[Any, ...], steps: tuple[tuple[float, float], ...] = ((100, 100),)) -> TraceBuilder:
    """A trace with these steps and this work: a name, launch, start, duration, and options of `run`."""
    trace = on_gpu()
    for number, (start, duration) in enumerate(steps, 1):
        trace.step(start, duration, number)
    for name, launch, start, duration, *options in work:
        trace.run(name, launch, start, duration, **(options[0] if options else {}))
    return trace


# ------------------------------------------------------------------------------------------------------ busy and idle

IDLE: dict[str, tuple[tuple[tuple[Any, ...], ...], tuple[int, int, int, int]]] = {
    # 20 before the first, 20 between the two, 30 after the last until the step ends
    "launched after the gap began": (((GEMM, 110, 120, 10), (GEMM, 140, 150, 20)), (30, 70, 0, 0)),
    "another stream worked last": (((GEMM, 100, 100, 40), (MAP, 110, 145, 55, {"stream": 20})), (95, 0, 5, 0)),
    "one stream": (((GEMM, 100, 100, 40), (MAP, 110, 142, 58)), (98, 0, 0, 2)),
    "what worked longest, not what began last": (
        ((GEMM, 100, 100, 50), (MAP, 101, 110, 10, {"stream": 20}), (MAP, 102, 153, 47, {"stream": 20})),
        (97, 0, 3, 0),
    ),
    "no launch record": (((GEMM, 100, 100, 40), (MAP, None, 150, 50)), (90, 0, 0, 10)),
}


@pytest.mark.parametrize("name", IDLE)
def test_idle_time_is_the_hosts_another_streams_or_neither(name: str, tmp_path: Path) -> None:
    work, expected = IDLE[name]
    timeline = made(*work).analyze(tmp_path).timeline
    found = timeline.busy_ns, timeline.host_idle_ns, timeline.stream_idle_ns, timeline.other_idle_ns
    assert found == tuple(US * one for one in expected)
    assert (timeline.idle_ns, timeline.unrecorded_ns) == (US * sum(expected[1:]), 0)


def test_work_of_the_step_before_is_no_idleness(tmp_path: Path) -> None:
    """The second was launched at 120, so it waited for the stream from 150 on."""
    anatomy = made((GEMM, 50, 90, 60), (GEMM, 120, 160, 40)).analyze(tmp_path)
    timeline = anatomy.timeline
    assert (anatomy.ledger.outside_window_ns, timeline.busy_ns, timeline.outside_ns) == (60 * US, 40 * US, 50 * US)
    assert (timeline.other_idle_ns, timeline.host_idle_ns) == (10 * US, 0)


def test_what_no_other_work_hides_is_exposed(tmp_path: Path) -> None:
    anatomy = made(
        (GEMM, 100, 100, 50),
        (NCCL, 101, 140, 40, {"stream": 20}),
        ("Memcpy HtoD (Pinned -> Device)", 102, 170, 30, {"stream": 22, **COPY}),
        ("Memset (Device)", 103, 250, 10, {"category": "gpu_memset", "call": "cudaMemsetAsync"}),
        steps=((100, 200),),
    ).analyze(tmp_path)
    timeline, (step,) = anatomy.timeline, anatomy.step.steps
    assert (timeline.communication_ns, timeline.exposed_communication_ns) == (40 * US, 20 * US)
    assert (timeline.memcpy_ns, timeline.exposed_memcpy_ns, timeline.computation_ns) == (30 * US, 20 * US, 60 * US)
    assert (timeline.kernel_time_ns, timeline.busy_ns) == (130 * US, 110 * US)
    assert (step.kernel_ns, step.memcpy_ns, step.memset_ns) == (90 * US, 30 * US, 10 * US)


def test_other_steps_work_neither_counts_as_communication_nor_hides_it(tmp_path: Path) -> None:
    """A collective and a product launched by the step before, which run in this one."""
    anatomy = made(
        (NCCL, 50, 110, 30, {"stream": 20}),
        (GEMM, 60, 150, 10),
        (GEMM, 101, 160, 20),
        (NCCL, 102, 140, 40, {"stream": 20}),
        steps=((100, 200),),
    ).analyze(tmp_path)
    timeline, communication = anatomy.timeline, anatomy.communication
    assert communication is not None
    assert [phase.calls for phase in communication.phases] == [1]
    assert communication.running_ns == timeline.communication_ns == 40 * US
    assert communication.exposed_ns == timeline.exposed_communication_ns == 20 * US


def test_work_is_of_the_step_that_launched_it_at_time_0_too(tmp_path: Path) -> None:
    trace = made((GEMM, 0, 150, 10), (MAP, 110, 170, 5), steps=((0, 100), (100, 100)))
    assert [step.kernel_ns for step in trace.analyze(tmp_path).step.steps] == [10 * US, 5 * US]


def test_each_stream_has_a_row(tmp_path: Path) -> None:
    work = (MAP, 100, 110, 10), (GEMM, 101, 120, 30), (NCCL, 102, 120, 50, {"stream": 20})
    first, second = made(*work, steps=((100, 200),)).analyze(tmp_path).timeline.streams
    assert (first.device, first.stream, first.work, first.busy_ns) == (0, 20, 1, 50 * US)
    assert (second.stream, second.work, second.kernel_time_ns) == (7, 2, 40 * US)
    assert second.classes == {OperatorClass.TENSOR_CONTRACTION: 30 * US, OperatorClass.ELEMENTWISE: 10 * US}


def test_several_devices_are_averaged_and_one_that_only_copies_is_not_counted(tmp_path: Path) -> None:
    trace = made(
        (GEMM, 100, 100, 80), (GEMM, 101, 140, 40, {"device": 1}), ("Memcpy PtoP", 102, 150, 10, {"device": 2, **COPY})
    )
    trace.host("opanatomy.phase/forward", 100, 20)
    anatomy = trace.analyze(tmp_path)
    timeline = anatomy.timeline
    assert (timeline.window_ns, timeline.busy_ns, timeline.idle_ns) == (100 * US, 60 * US, 40 * US)
    # device 0 after its work; device 1 before and after, for its work was launched at 101
    assert timeline.host_idle_ns == (20 + 60) // 2 * US
    assert [(row.device, row.busy_ns) for row in timeline.devices] == [(0, 80 * US), (1, 40 * US), (2, 10 * US)]
    assert timeline.kernel_time_ns == anatomy.step.kernel_time_ns == 130 * US
    assert (anatomy.step.busy_ns, anatomy.step.phase_ns) == (60 * US, {"forward": 60 * US})
    assert anatomy.device.utilization == pytest.approx(0.6)


def test_launches_are_counted_and_timed(tmp_path: Path) -> None:
    trace = made((GEMM, 110, 120, 20), (MAP, 112, 140, 4), ("Memcpy DtoH", 116, 145, 2, COPY), steps=((100, 200),))
    trace.launch(50, 999)  # before the window
    trace.launch(200, 1000, name="cudaLaunchHostFunc")
    trace.launch(210, 1001, name="cudaStreamSynchronize")
    trace.run(GEMM, 220, 225, 10, call="cuLaunchKernelEx")
    launching = trace.analyze(tmp_path).timeline.launching
    assert launching is not None
    assert (launching.calls, launching.graph_calls, launching.call_ns) == (3, 0, 6 * US)
    assert (launching.synchronizing_calls, launching.synchronizing_ns) == (1, 2 * US)
    assert (launching.delayed, launching.delay_ns, launching.median_delay_ns) == (3, 43 * US, 10 * US)
    assert (launching.longest_queue, launching.kernels, launching.kernel_ns) == (2, 3, 34 * US)
    assert (launching.tiny_kernels, launching.tiny_kernel_ns, launching.tiny_below_ns) == (1, 4 * US, 10 * US)


def test_a_graph_is_one_launch_with_the_delay_of_its_first_kernel(tmp_path: Path) -> None:
    trace = made(steps=((100, 200),))
    trace.launch(110, 5, name="cudaGraphLaunch")
    for start in (130, 160, 145):
        trace.kernel(MAP, start, 10, 5)
    launching = trace.analyze(tmp_path).timeline.launching
    assert launching is not None
    assert (launching.calls, launching.graph_calls, launching.kernels) == (1, 1, 3)
    assert (launching.delayed, launching.delay_ns, launching.longest_queue) == (1, 20 * US, 1)


# --------------------------------------------------------------------------------------------------------- occupancy


def test_occupancy_is_weighted_by_time(tmp_path: Path) -> None:
    full = {"blocks per SM": 4.5, "est. achieved occupancy %": 50}
    half = {"blocks per SM": 0.5, "est. achieved occupancy %": 25.0}
    product = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
    device = (
        made((product, 100, 110, 30, full), (MAP, 101, 150, 10, half), (MAP, 102, 170, 20)).analyze(tmp_path).device
    )
    assert device.utilization == pytest.approx(0.6)
    assert device.sm_efficiency == pytest.approx((30 + 0.5 * 10) / 100)
    assert device.occupancy == pytest.approx((0.5 * 30 + 0.25 * 10) / 40)
    assert (device.dimensioned_ns, device.tensor_core_ns) == (40 * US, 30 * US)


@pytest.mark.parametrize(
    ("work", "efficiency"),
    [
        # From 190 on the third is alone, from 192 to 195 the fourth runs next to it. Summed it was 157.5 % of the time.
        (
            (
                (MAP, 100, 90, 7, 0, 2.0),
                (MAP, 105, 60, 13, 0, 2.0),
                (GEMM, 150, 45, 20, 0, 0.5),
                (GEMM, 192, 5, 21, 0, 0.1),
            ),
            (90 + 0.5 * 2 + 0.6 * 3 + 0.1 * 2) / 100,
        ),
        (((MAP, 110, 80, 7, 0, 1.0), (MAP, 110, 40, 7, 1, 1.0)), 0.6),  # of two devices
        (((GEMM, 110, 30, 7, 0, "?"),), None),
    ],
)
def test_kernels_at_once_fill_no_more_than_their_device(
    work: tuple[tuple[Any, ...], ...], efficiency: float | None, tmp_path: Path
) -> None:
    trace = made()
    for name, start, duration, stream, device, blocks in work:
        trace.run(name, 100, start, duration, stream=stream, device=device, **{"blocks per SM": blocks})
    found = trace.analyze(tmp_path).device
    assert found.sm_efficiency == (None if efficiency is None else pytest.approx(efficiency))
    assert found.dimensioned_ns == (0 if efficiency is None else US * sum(one[2] for one in work))


@pytest.mark.parametrize(
    ("names", "known", "unknown", "line"),
    [
        (("nvjet_tst_128x64_64x4_NNT", MAP, "my_own_gemm"), 61, 12, "61.0 % of kernel time (12.0 % unknown)"),
        ((MAP, MAP, "my_own_gemm"), None, 12, None),  # no name tells of any
    ],
)
def test_what_of_the_time_on_tensor_cores_is_not_known_is_said(
    names: tuple[str, ...], known: int | None, unknown: int, line: str | None, tmp_path: Path
) -> None:
    trace = made()
    for index, (name, long) in enumerate(zip(names, (61, 27, 12), strict=True)):
        trace.run(name, 100 + index, 100 + 70 * index, long)
    anatomy = trace.analyze(tmp_path)
    device = anatomy.device
    assert (device.tensor_core_ns, device.tensor_core_unknown_ns) == (known and known * US, unknown * US)
    text = page(anatomy, "idle")
    assert f"tensor cores {line}" in text if line else "tensor cores" not in text


@pytest.mark.parametrize(
    ("device", "lacks"),
    [
        ("Tesla P100-SXM2-16GB", True),
        ("NVIDIA GeForce GTX 1660 SUPER", True),
        ("NVIDIA GeForce MX450", True),
        ("NVIDIA T1000 8GB", True),
        ("Tesla K80", True),
        ("AMD Instinct MI50/MI60", True),
        ("AMD Radeon RX 6800 XT", True),
        ("Tesla V100-SXM2-16GB", False),
        ("Tesla T4", False),
        ("Quadro RTX 4000", False),
        ("NVIDIA GeForce RTX 2060", False),
        ("AMD Instinct MI250X", False),
        ("AMD Radeon RX 7900 XTX", False),
    ],
)
def test_a_device_without_tensor_cores_has_no_share_of_them(device: str, lacks: bool, tmp_path: Path) -> None:
    trace = made((GEMM, 100, 110, 30))
    trace.metadata["deviceProperties"] = [{"id": 0, "name": device}]
    figures = trace.analyze(tmp_path).device
    assert (figures.tensor_core_ns, figures.tensor_core_unknown_ns) == ((None, None) if lacks else (0, 0))


# --------------------------------------------------------------------------------------------------- why it was idle


def gap(meanwhile: Callable[[TraceBuilder], None] = lambda trace: None) -> TraceBuilder:
    """A step of 10 ms: kernel A runs from 20 to 1,020, kernel B, launched at 5,010 by the same thread, from 5,020 to
    10,000. What the host does from 1,000 to 5,000 is the cause of the 4,000 us between them."""
    trace = made(steps=((0, 10_000),))
    trace.host("aten::mm", 5, 15)
    trace.run(GEMM, 10, 20, 1_000)
    meanwhile(trace)
    trace.host("aten::mm", 5_000, 20)
    trace.run(GEMM, 5_010, 5_020, 4_980)
    return trace


def call(name: str) -> Callable[[TraceBuilder], None]:
    return lambda trace: trace.launch(1_000, 0, name=name, duration=4_000)


def other(category: str, name: str) -> Callable[[TraceBuilder], None]:
    return lambda trace: trace.event(category, name, 1_000, 4_000, {})


def python_calls(trace: TraceBuilder) -> None:
    for start in range(1_010, 5_000):
        trace.event("python_function", "torch/nn/modules/module.py(1): _call_impl", start, 1, {})


def copies_in(trace: TraceBuilder) -> None:
    """A copy from memory that is not pinned: the call stages it, the device copies for 100 us at its end."""
    trace.launch(1_000, 77, name="cudaMemcpyAsync", duration=4_000)
    trace.kernel("Memcpy HtoD (Pageable -> Device)", 4_900, 100, 77, category="gpu_memcpy")


def many_operators(trace: TraceBuilder) -> None:
    for start in range(1_000, 5_000, 100):
        trace.host("aten::view", start, 98)


LOADER, LIGHTNING = "enumerate(DataLoader)#_Iter.__next__", "[pl][profile][_TrainingEpochLoop].train_dataloader_next"
#: What the host does meanwhile, the cause, its idle time (us), and what the first screen says.
CAUSES: dict[str, tuple[Callable[[TraceBuilder], None], str, int, str]] = {
    **{name: (call(name), "allocator", 3_980, f"while the host allocates or frees memory ({name}, 1 call)")
       for name in ("cudaMalloc", "cudaFree", "cudaHostAlloc")},
    **{name: (call(name), "slow_launch", 3_980, f"while one slow call launches or loads a kernel ({name}, 3.98 ms)")
       for name in ("cudaLaunchKernel", "cuModuleLoadData")},
    "lazy loading": (other("overhead", "Lazy Function Loading"), "slow_launch", 3_980,
                     "while one slow call launches or loads a kernel (Lazy Function Loading, 3.98 ms)"),
    "synchronization": (call("cudaMemcpy"), "synchronization", 3_980,
                        "while the host waits for the device (cudaMemcpy, 1 call)"),
    **{name: (other("user_annotation", name), "input", 3_980,
     f"while the host loads or copies input (all in {name})")
       for name in (LOADER, LIGHTNING)},
    "copies": (copies_in, "input", 3_880, "while the host loads or copies input (all in cudaMemcpyAsync)"),
    "compilation": (other("cpu_op", "_compile.compile_inner"), "compilation", 3_980,
                    "while code is compiled (all in _compile.compile_inner)"),
    "profiler": (other("overhead", "Buffer Flush"), "profiler", 3_980,
                 "while the profiler writes its records (all in Buffer Flush)"),
    "Python's stack": (python_calls, "profiler", 3_980,
                       "while the profiler records Python's stack (3,980 calls, up to 1 us each)"),
    "collective": (other("cpu_op", "c10d::barrier"), "collective", 3_980,
                   "while the host calls collectives (all in c10d::barrier)"),
    "operators": (many_operators, "operators", 3_920,
     "while the host runs operators and launches kernels (mostly in view)"),
    "Python": (other("user_annotation", "compute metrics"), "python", 3_980,
               "while the host is between operators, in Python (mostly in compute metrics)"),
    "nothing": (lambda trace: None, "unknown", 3_980, "at times that the trace does not explain"),
}  # fmt: skip


def test_every_cause_has_a_case() -> None:
    """Those of the device have tests of their own below."""
    assert {cause for _, cause, _, _ in CAUSES.values()} | {"stream", "device"} == set(IdleCause)


@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_is_what_the_host_did_in_the_gap(name: str, tmp_path: Path) -> None:
    meanwhile, cause, spent_us, said = CAUSES[name]
    anatomy = gap(meanwhile).analyze(tmp_path)
    first, *others = anatomy.timeline.causes
    assert (first.cause, first.time_ns) == (cause, pytest.approx(spent_us * US, rel=0.01))
    assert first.time_ns + sum(row.time_ns for row in others) == anatomy.timeline.idle_ns
    assert not [row for row in others if row.time_ns > 0.03 * anatomy.timeline.idle_ns]
    screen = page(anatomy, brief=True, width=80)
    assert said in screen
    # "... is idle 40.2 % of the step, mostly while ...": one cause, that one.
    headline = screen.partition(" advice ")[0]
    assert headline.count(" while ") + headline.count("in Python") <= said.count(" while ") + 1 + said.count(
        "in Python"
    )


def test_a_copy_of_input_may_be_the_first_call_of_a_trace(tmp_path: Path) -> None:
    """It holds the host from 1,000 to 5,000, and its copy runs from 4,900 on."""
    trace = made(steps=((0, 10_000),))
    copies_in(trace)
    trace.run(GEMM, 5_010, 5_020, 4_980)
    causes = {str(row.cause): row.time_ns for row in trace.analyze(tmp_path).timeline.causes}
    assert causes["input"] == 3_900 * US


def test_what_ran_before_a_gap_is_what_ended_last(tmp_path: Path) -> None:
    """The second kernel runs beside the first, on another stream, and ends before it."""
    work = (GEMM, 10, 20, 1_000), (MAP, 15, 30, 10, {"stream": 20}), (NCCL, 5_010, 5_020, 4_980)
    anatomy = made(*work, steps=((0, 10_000),)).analyze(tmp_path)
    (between,) = [gap for gap in anatomy.timeline.gaps if gap.time_ns == 4_000 * US]
    assert (between.after, between.before) == (GEMM, NCCL)


def test_which_threads_are_looked_at(tmp_path: Path) -> None:
    """Where autograd's thread launches B, the main thread counts too; one that launches nothing is no cause."""
    trace = gap(call("cudaMalloc"))
    next(event for event in trace.events if event["ts"] == 5_010)["tid"] = 2
    row = trace.analyze(tmp_path).timeline.causes[0]
    assert (row.cause, row.time_ns) == ("allocator", 3_980 * US)
    pinning = gap(lambda trace: trace.launch(1_000, 0, name="cudaHostAlloc", duration=4_000, thread=9))
    assert pinning.analyze(tmp_path).timeline.causes[0].cause == "unknown"


def test_tiny_kernels_are_evidence_only_where_launching_fills_the_gaps(tmp_path: Path) -> None:
    trace = gap(call("cudaMalloc"))
    for index in range(300):
        trace.run(MAP, 6_000 + 10 * index, 7_000 + index, 0.5, stream=8)
    screen = page(trace.analyze(tmp_path), brief=True)
    assert "while the host allocates or frees memory" in screen
    assert "launches a step" not in screen


def test_the_calls_of_several_steps_are_said_to_be_so(tmp_path: Path) -> None:
    """Two steps like those above, 1 ms apart: 2 x 3,980 us, a call in each."""
    trace = gap(call("cudaMalloc"))
    for event in list(trace.events):
        args = {key: 1_000 + value if value else value for key, value in event["args"].items() if key != "stream"}
        name = event["name"].replace("#1", "#2")
        trace.events.append({**event, "name": name, "ts": event["ts"] + 11_000, "args": {**event["args"], **args}})
    for event in trace.events:
        event["args"]["device"] = 0
    anatomy = trace.analyze(tmp_path)
    assert {row.cause: (row.time_ns, row.events) for row in anatomy.timeline.causes}["allocator"] == (2 * 3_980 * US, 2)
    assert "(cudaMalloc, 2 calls in 2 steps)" in page(anatomy, brief=True)


@pytest.mark.parametrize(
    ("launch", "start", "stream", "cause", "spent_us"),
    [(10, 1_080, 7, "device", 80), (10, 1_080, 8, "stream", 80), (1_010, 4_000, 7, "device", 2_985)],
)
def test_what_the_device_waits_for_itself(
    launch: int, start: int, stream: int, cause: str, spent_us: int, tmp_path: Path
) -> None:
    """B is launched while A runs, on A's stream or another one; or long before it starts, after A ended."""
    trace = made((GEMM, 0, 0, 1_000), steps=((0, 5_000),))
    trace.launch(launch, 99, duration=5)
    trace.kernel(GEMM, start, 5_000 - start, 99, stream=stream)
    assert {row.cause: row.time_ns for row in trace.analyze(tmp_path).timeline.causes}[cause] == spent_us * US


# ------------------------------------------------------------------------------------------- what is not in the trace


@pytest.mark.parametrize(("launch", "unrecorded", "idle"), [(1_100, 3_920, 100), (500, 4_000, 20)])
def test_a_graph_whose_nodes_were_not_recorded_is_no_idle_time(
    launch: int, unrecorded: int, idle: int, tmp_path: Path
) -> None:
    """From its launch, or the end of the work before it, until B starts it is unknown what the device did."""
    graph = gap(lambda trace: trace.launch(launch, 99, name="cudaGraphLaunch", duration=50))
    anatomy = graph.analyze(tmp_path)
    timeline = anatomy.timeline
    assert (timeline.unrecorded_ns, timeline.idle_ns) == (unrecorded * US, idle * US)
    assert timeline.busy_ns + timeline.unrecorded_ns + timeline.idle_ns == timeline.window_ns == 10_000 * US
    share = f"{unrecorded / 100:.1f} % not recorded: the work of some launches is not in the trace"
    assert share in page(anatomy, brief=True)


@pytest.mark.parametrize(
    ("begin", "again", "unrecorded", "idle"),
    [(1_200, None, 900, 3_120), (1_050, None, 3_920, 50), (1_200, 3_000, 2_920, 1_100)],
)
def test_what_a_lost_launch_may_cover_ends_where_the_host_has_waited_for_it(
    begin: int, again: int | None, unrecorded: int, idle: int, tmp_path: Path
) -> None:
    """The wait returns at 2 ms. If it began before the launch at 1.1 ms, or there is another at 3 ms, it is unknown
    what the device did until B starts."""

    def launches(trace: TraceBuilder) -> None:
        trace.launch(1_100, 99, duration=50)
        trace.launch(begin, 0, name="cudaDeviceSynchronize", duration=2_000 - begin)
        if again:
            trace.launch(again, 100)

    timeline = gap(launches).analyze(tmp_path).timeline
    assert (timeline.unrecorded_ns - timeline.awaited_ns, timeline.idle_ns) == (unrecorded * US, idle * US)
    assert timeline.busy_ns + timeline.unrecorded_ns + timeline.idle_ns == timeline.window_ns
    assert sum(row.time_ns for row in timeline.causes) == timeline.idle_ns


@pytest.mark.parametrize(
    ("begin", "end", "unrecorded", "idle"),
    [
        (1_000, 5_000, 3_980, 40),  # the wait lasts 3,980 us past A, and B starts 20 us after it
        (1_000, 1_200, 0, 4_020),  # it returns as late as waits do
        (3_000, 4_000, 1_000, 3_020),  # it begins while nothing that is recorded runs
        (9_900, 10_400, 0, 4_020),  # it lasts past the end of the step
    ],
)
def test_a_wait_past_the_last_recorded_work_is_no_idle_time(
    begin: int, end: int, unrecorded: int, idle: int, tmp_path: Path
) -> None:
    """The host waits for the device: that is at work, whatever the trace has of it."""
    trace = gap(lambda trace: trace.launch(begin, 0, name="cudaDeviceSynchronize", duration=end - begin))
    timeline = (anatomy := trace.analyze(tmp_path)).timeline
    assert (timeline.unrecorded_ns, timeline.idle_ns) == (unrecorded * US, idle * US)
    assert timeline.awaited_ns == timeline.unrecorded_ns
    said = f"{unrecorded / 100:.1f} % not recorded: the host waits for work that is not in the trace"
    assert (said in page(anatomy, brief=True)) is bool(unrecorded)
    assert sum(len(check.unexplained) for check in anatomy.checks) == bool(unrecorded)
    assert timeline.lacks_work is bool(unrecorded)


@pytest.mark.parametrize(("waits", "unrecorded", "idle"), [(True, 3_040, 30), (False, 0, 3_070)])
def test_time_around_a_graphs_nodes_while_the_host_waits_is_no_idle_time(
    waits: bool, unrecorded: int, idle: int, tmp_path: Path
) -> None:
    """Launched from 0 to 10, waited for from 20 on; nodes run from 1,000 to 3,000, 10 us apart, and from 5,060."""
    trace = made(steps=((0, 10_000),))
    trace.launch(0, 99, name="cudaGraphLaunch", duration=10)
    for start, end in ((1_000, 2_000), (2_010, 3_000), (5_060, 10_000)):
        trace.kernel(GEMM, start, end - start, 99)
    if waits:
        trace.launch(20, 0, name="cudaStreamSynchronize", duration=9_985)
    timeline = trace.analyze(tmp_path).timeline
    assert (timeline.unrecorded_ns, timeline.idle_ns) == (unrecorded * US, idle * US)
    assert timeline.busy_ns + (timeline.unrecorded_ns or 0) + timeline.idle_ns == timeline.window_ns == 10_000 * US


def test_the_longest_gaps_are_named_with_what_filled_them(tmp_path: Path) -> None:
    """In each of two steps: 3,000 and 3,500 us in an operator on the CPU, behind a wait, and a launch of 1,000 us."""
    trace = on_gpu()
    for number, (begin, made) in enumerate(((0, 3_000), (10_000, 3_500)), start=1):
        trace.step(begin, 10_000, number)
        trace.host("aten::relu", begin, 20)
        trace.run(MAP, begin + 5, begin + 10, 100)
        trace.launch(begin + 22, 99, name="cudaStreamSynchronize", duration=90)
        trace.host("aten::normal_", begin + 120, made)
        after = begin + 120 + made
        trace.host("aten::copy_", after + 1, 20)
        trace.run(TO_DEVICE, after + 5, after + 10, 100, **COPY)  # a gap of 20 + made us
        trace.host("aten::mul", after + 120, 1_010)
        trace.launch(after + 125, 1_000 + number, duration=1_000)
        trace.kernel(MAP, after + 1_126, begin + 10_000 - after - 1_126, 1_000 + number)
    timeline = trace.analyze(tmp_path).timeline
    first, second, third = timeline.gaps
    assert first == Gap(
        time_ns=3_270 * US,
        count=1,
        cause=IdleCause.OPERATORS,
        cause_ns=3_259 * US,
        name="aten::normal_",
        before=TO_DEVICE,
        after=MAP,
        drained=True,
        begin_ns=110 * US,
        step=2,
    )
    assert second == Gap(
        time_ns=1_016 * US,
        count=1,
        cause=IdleCause.SLOW_LAUNCH,
        cause_ns=1_000 * US,
        name="aten::mul",
        call="cudaLaunchKernel",
        before=MAP,
        after=TO_DEVICE,
        launch_ns=1_000 * US,
        begin_ns=3_230 * US,
        step=1,
    )
    assert (third.time_ns, third.count, third.name) == (10 * US, 1, "aten::relu")
    assert sum(gap.time_ns * gap.count for gap in timeline.gaps) * 2 == timeline.idle_ns
    causes = {row.cause: row for row in timeline.causes}
    assert (causes[IdleCause.OPERATORS].short_ns, causes[IdleCause.OPERATORS].drained_ns) == (2 * 10 * US, 0)


def test_a_gap_that_no_event_fills_has_no_name(tmp_path: Path) -> None:
    trace = on_gpu()
    trace.step(0, 10_000)
    for begin in (0, 5_000):
        trace.host("aten::relu", begin, 20)
        trace.run(MAP, begin + 5, begin + 10, 100)
    gap, *_ = trace.analyze(tmp_path).timeline.gaps
    assert (gap.time_ns, gap.cause, gap.name, gap.call, gap.before) == (4_900 * US, IdleCause.UNKNOWN, None, None, MAP)


def test_a_trace_that_is_cut_off_has_no_idle_time_after_the_cut(tmp_path: Path) -> None:
    """The file ends before the events of B and of what was launched after it: 5,020 to 10,000 are unknown."""
    text = gap().text()
    (tmp_path / "cut.json").write_text(text[: text.rindex('"name": "ampere')])
    anatomy = opanatomy.analyze(tmp_path / "cut.json")
    assert (anatomy.timeline.unrecorded_ns, anatomy.timeline.idle_ns) == (4_990 * US, (20 + 3_990) * US)
    assert anatomy.caveats[0].startswith("the file is truncated")


@pytest.mark.parametrize(
    ("operator", "host_only"),
    [
        ("aten::cudnn_convolution", True),
        ("aten::mkldnn_convolution", False),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", False),
    ],
)
def test_a_host_only_trace_of_a_gpu_is_none_of_a_cpu(operator: str, host_only: bool, tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.host("aten::conv2d", 0, 100)
    trace.host(operator, 10, 80)
    anatomy = trace.analyze(tmp_path)
    assert (anatomy.environment.host_only, bool(anatomy.caveats)) == (host_only, host_only)
    text = page(anatomy)
    said = f"only the host was recorded: the trace has {operator}", "Device activity is unknown. The host spends"
    for words in said:
        assert (words in text) is host_only
    assert ("no GPU used" in text) is not host_only


# ------------------------------------------------------------------------------------------------- steps on a device


def test_a_step_lasts_until_its_last_device_work_ends(tmp_path: Path) -> None:
    """The first ends at 230, the second begins there; the third has no work and is there all the same. Beside the 110
    us of the first 10 and 0 are hardly any work: it alone counts."""
    trace = made((GEMM, 110, 120, 110), (GEMM, 210, 235, 10), steps=((100, 100), (200, 100), (300, 50)))
    anatomy = trace.analyze(tmp_path)
    first, second, third = anatomy.step.steps
    assert [step.number for step in anatomy.step.steps] == [1, 2, 3]
    assert (first.wall_ns, first.busy_ns, first.kernel_time_ns, first.work) == (130 * US, 110 * US, 110 * US, 1)
    assert (second.wall_ns, second.busy_ns, second.other_idle_ns, second.host_idle_ns) == (
        70 * US,
        10 * US,
        5 * US,
        55 * US,
    )
    assert (third.wall_ns, third.busy_ns, third.work) == (50 * US, 0, 0)
    assert [step.set_aside for step in anatomy.step.steps] == [None, HARDLY, HARDLY]
    assert (anatomy.step.count, anatomy.step.wall_ns, anatomy.timeline.window_ns) == (1, 130 * US, 130 * US)


def test_work_between_two_steps_belongs_to_the_step_before(tmp_path: Path) -> None:
    trace = made((GEMM, 160, 170, 10), (GEMM, 210, 220, 30), steps=((100, 50), (200, 50)))
    steps = trace.analyze(tmp_path).step.steps
    assert [(row.wall_ns, row.kernel_time_ns) for row in steps] == [(80 * US, 10 * US), (50 * US, 30 * US)]


def test_a_trace_without_steps_is_from_its_first_device_work_to_the_last(tmp_path: Path) -> None:
    """Busy, phases and SM efficiency are of the same 2 ms; 9.12 ms lie around them."""
    trace = on_gpu()
    for start in (0, 9_500, 11_100):
        trace.host("aten::mm", start, 20)
    trace.run(GEMM, 10, 9_000, 1_000, **{"blocks per SM": 2.0})
    trace.run(GEMM, 9_510, 10_000, 1_000, **{"blocks per SM": 2.0})
    anatomy = trace.analyze(tmp_path)
    timeline, (step,) = anatomy.timeline, anatomy.step.steps
    assert (step.number, anatomy.step.wall_ns, timeline.window_ns) == (None, 2_000 * US, 2_000 * US)
    assert (timeline.busy_ns, timeline.around_ns, timeline.idle_ns) == (2_000 * US, 9_120 * US, 0)
    assert anatomy.device.sm_efficiency == anatomy.device.utilization == 1


UNLIKE = "it makes different calls"
PARAMETER = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def loop(*updates: tuple[int, int, str], begin: int = 0, behind: int = 30) -> TraceBuilder:
    """A loop without annotated steps: for each update how many backwards of 100 us it has, of how many parameters, and
    the optimizer's name; `begin` cuts off what was launched before, and `behind` the last one comes a kernel."""
    trace, at = on_gpu(), 0
    for backwards, parameters, optimizer in updates:
        for _ in range(backwards):
            if at >= begin:
                trace.host("aten::mm", at, 20)
                trace.run(GEMM, at + 10, at + 20, 40)
            for index in range(parameters if at >= begin else 0):
                trace.host(PARAMETER, at + 70 + index, 1, thread=2)
            at += 100
        if optimizer:
            trace.annotation(f"Optimizer.step#{optimizer}.step", at, 30)
            trace.host("aten::add_", at + 5, 20)
            trace.run(MAP, at + 10, at + 15, 10)
        at += 30
    trace.host("aten::item", at, 20)
    trace.run(MAP, at + 10, at + 15, behind)
    return trace


ONE, D, G = (1, 2, "SGD"), (2, 2, "Adam"), (1, 5, "Adam")
LOOPS: dict[str, tuple[tuple[tuple[int, int, str], ...], list[int]]] = {
    "one optimizer": ((ONE, ONE, ONE), [130, 130, 130]),
    "gradients of four batches": (((4, 2, "SGD"),) * 2, [430, 430]),
    "two in turns": (((1, 2, "SGD"), (1, 2, "AdamW")) * 2, [260, 260]),
    "two of one name in turns": ((D, G) * 2, [360, 360]),
    "a critic five times": (((*(D,) * 5, G) * 2), [1280, 1280]),
    "the last cycle is not over": ((D, G, D, G, D), [360, 360]),
    "graphs that differ": (((1, 3, "SGD"), (2, 1, "SGD"), (1, 3, "SGD"), (3, 1, "SGD")), []),
    "no order": (((1, 2, "SGD"), (1, 2, "SGD"), (1, 2, "Adam"), (1, 2, "SGD")), []),
    "two without a second turn": ((D, G), []),
    "one update": ((ONE, (1, 2, "")), []),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_steps_that_are_not_annotated_end_with_the_optimizers_updates(name: str, tmp_path: Path) -> None:
    """What follows the last update is in none; without a regular order of updates the trace is one step."""
    updates, walls = LOOPS[name]
    anatomy = loop(*updates).analyze(tmp_path)
    rows = [(row.number, row.wall_ns) for row in anatomy.step.steps]
    if not walls:
        assert [number for number, _ in rows] == [None]
        assert "the entire trace counts as one" in page(anatomy)
        assert ("steps" in anatomy.conventions, anatomy.ledger.outside_window_ns) == (False, 0)
        return
    assert rows == [(number, wall * US) for number, wall in enumerate(walls, 1)]
    assert anatomy.step.count == len(walls)
    assert anatomy.conventions["steps"] == "not annotated: each is assumed to end with Optimizer.step"
    assert f"{len(walls)} steps by Optimizer.step" in page(anatomy, brief=True)
    assert "no step is annotated, so each is assumed to end with Optimizer.step" in page(anatomy)
    assert anatomy.ledger.outside_window_ns >= 30 * US


def test_steps_of_a_real_loop_end_with_the_second_of_its_optimizers() -> None:
    """Two Adams over networks of as many parameters; `loss.item()` follows each update of the generator."""
    path = TRACES / "gan_cpu.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)["traceEvents"]
    updates = sorted(
        int(1000 * (event["ts"] + event["dur"])) for event in events if event["name"] == "Optimizer.step#Adam.step"
    )
    ends = updates[1::2]
    anatomy = opanatomy.analyze(path)
    walls = [row.wall_ns for row in anatomy.step.steps]
    assert (len(updates), len(walls)) == (8, 4)
    assert walls[1:] == [after - before for before, after in pairwise(ends)]
    assert (set_aside(anatomy), anatomy.step.wall_ns) == ([UNLIKE, None, None, None], (ends[3] - ends[0]) // 3)


def test_updates_of_single_parameters_in_backward_end_no_step(tmp_path: Path) -> None:
    """Nor does an optimizer that another one calls; an annotated step is what it says."""
    trace = loop(ONE, ONE)
    for at in (70, 200):
        trace.host(PARAMETER, at, 20)
        trace.annotation("Optimizer.step#SGD.step", at + 5, 10)
        trace.annotation("Optimizer.step#Inner.step", at + 31, 5)
    assert [row.wall_ns for row in trace.analyze(tmp_path).step.steps] == [130 * US, 130 * US]
    trace.step(0, 200, 4)
    anatomy = trace.analyze(tmp_path)
    assert ([row.number for row in anatomy.step.steps], "steps" in anatomy.conventions) == ([4], False)


@pytest.mark.parametrize(
    ("updates", "begin", "expected"),
    [
        # It lacks the call that follows the update before, cut off in its last of four backwards it lacks more.
        ((ONE, ONE), 0, [None, None]),
        (((4, 2, "SGD"),) * 3, 300, [UNLIKE, None, None]),
        (((4, 0, "SGD"),) * 2, 300, [UNLIKE, None]),
        # An evaluation before the loop, longer than all of it.
        (((40, 0, ""), ONE, ONE), 0, [UNLIKE, None]),
    ],
)
def test_the_first_step_counts_if_it_is_a_whole_one(
    updates: tuple[tuple[int, int, str], ...], begin: int, expected: list[str | None], tmp_path: Path
) -> None:
    trace = loop(*updates, begin=begin)
    ends = [event["ts"] + event["dur"] for event in trace.events if event["name"].startswith("Optimizer.step")]
    for end in ends[:-1]:
        trace.host("aten::item", end + 1, 4)
        trace.run(MAP, end + 2, end + 3, 1)
    assert set_aside(trace.analyze(tmp_path)) == expected


def steps(lengths: list[int], *, busy: int = 800, before: int = 0) -> TraceBuilder:
    """Steps of these lengths one after the other, each with one kernel of `busy` us from its begin on; `before` is work
    of the step before, which runs first on the device."""
    trace, at, free = made(steps=()), 0, before
    if before:
        trace.run(GEMM, -before - 20, 0, before)
    for number, length in enumerate(lengths, 1):
        trace.step(at, length, number)
        trace.host("aten::mm", at, 20)
        trace.run(GEMM, at, max(at, free), busy)
        at, free = at + length, max(at, free) + busy
    return trace


def set_aside(anatomy: Anatomy) -> list[str | None]:
    return [row.set_aside for row in anatomy.step.steps]


def on_the_cpu(*steps: tuple[float, float, str]) -> TraceBuilder:
    """Steps of the CPU: the time of a call, of a range before it, and the name of that range."""
    trace, begin = TraceBuilder(), 0.0
    for busy, waited, name in steps:
        trace.step(begin, busy + waited + 20)
        trace.host(name, begin, waited, category="user_annotation")
        trace.host("aten::relu", begin + waited + 10, busy, shapes=[[8]], types=["float"])
        begin += busy + waited + 20
    return trace


def test_a_step_of_the_same_calls_does_as_much(tmp_path: Path) -> None:
    """Where another process has taken the processor from one call, the others are not hardly any work."""
    held_up = on_the_cpu((10, 5, "mine"), (300, 5, "mine"), (11, 5, "mine")).analyze(tmp_path)
    assert set_aside(held_up) == [None, None, None]


def test_steps_between_rollouts_are_steps(tmp_path: Path) -> None:
    """One of three computes 40 times as much before its backward: the two that train as much count, it does not."""
    trace, begin = TraceBuilder(), 0.0
    for number, calls in enumerate((1, 40, 1), 1):
        trace.step(begin, 120 + 20 * calls, number)
        for at in (begin + 5 + 20 * call for call in range(calls)):
            trace.host("aten::mm", at, 6)
            trace.run(GEMM, at + 1, at + 4, 14)
        at = begin + 20 * calls + 20
        trace.host("autograd::engine::evaluate_function: MmBackward0", at, 20)
        trace.host("MmBackward0", at + 1, 18)
        trace.host("aten::mm", at + 2, 16)
        trace.run(GEMM, at + 3, at + 10, 5)
        begin += 120 + 20 * calls
    anatomy = trace.analyze(tmp_path)
    assert set(anatomy.step.phase_ns) == {"forward", "backward"}
    assert set_aside(anatomy) == [None, "it makes different calls", None]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("mine", [None, PAUSE, None]), ("enumerate(DataLoader)#_Iter.__next__", [None, None, None])],
)
def test_waiting_for_input_is_no_pause(name: str, expected: list[str | None], tmp_path: Path) -> None:
    anatomy = on_the_cpu((100, 10, name), (100, 900, name), (100, 10, name)).analyze(tmp_path)
    assert set_aside(anatomy) == expected
    if expected[1] is None:
        assert [row.loading_ns for row in anatomy.step.steps] == [10 * US, 900 * US, 10 * US]


def test_a_step_with_a_pause_is_named_and_gives_no_figure(tmp_path: Path) -> None:
    anatomy = steps([1_000, 9_000, 1_100]).analyze(tmp_path)
    assert set_aside(anatomy) == [None, PAUSE, None]
    step, timeline = anatomy.step, anatomy.timeline
    assert (step.count, step.wall_ns, timeline.window_ns) == (2, 1_050 * US, 2_100 * US)
    assert (timeline.busy_ns, timeline.idle_ns, sum(device_times(anatomy).values())) == (
        1_600 * US,
        500 * US,
        1_600 * US,
    )
    assert (anatomy.ledger.outside_window_ns, anatomy.ledger.set_aside_ns) == (800 * US, 800 * US)
    screen = page(anatomy, brief=True)
    for words in ("step 2 (9.00 ms) excluded: it contains a pause", "1.05 ms a step, 2 steps", "idle 23.8 %"):
        assert words in screen


def test_the_work_of_another_step_is_not_the_steps(tmp_path: Path) -> None:
    """The device is 600 us behind when the trace begins: the first of three does not count, one alone is without it."""
    anatomy = steps([1_000, 1_000, 1_000], before=600).analyze(tmp_path)
    assert set_aside(anatomy) == ["it contains other steps' work", None, None]
    assert (anatomy.step.wall_ns, anatomy.step.count) == (800 * US, 2)
    alone = steps([1_000], before=600).analyze(tmp_path).step
    assert (alone.steps[0].wall_ns, alone.steps[0].outside_ns, alone.steps[0].set_aside) == (1_400 * US, 600 * US, None)
    assert alone.wall_ns == 800 * US


def test_what_runs_before_its_step_takes_nothing_of_it(tmp_path: Path) -> None:
    """Two collectives of 100 us in the second step, which begins on the device amid the other at 1,400."""
    trace = steps([1_000, 1_000, 1_000], before=600)
    trace.host("c10d::allreduce_", 1_005, 20)
    for launch, start in ((1_010, 1_050), (1_020, 1_350)):
        trace.run(NCCL, launch, start, 100, stream=9)
    timeline = trace.analyze(tmp_path).timeline
    assert (timeline.communication_ns, timeline.exposed_communication_ns) == (50 * US, 0)
    assert timeline.computation_ns == timeline.busy_ns == 1_600 * US


def test_which_steps_are_like_each_other(tmp_path: Path) -> None:
    """Three micro-steps and one with the optimizer are of one cycle; other calls, or hardly any work, are not."""
    trace = steps([1_000] * 4)
    trace.annotation("Optimizer.step#SGD.step", 3_100, 300)
    trace.host("aten::add_", 3_150, 20)
    trace.run(MAP, 3_160, 3_900, 50)
    anatomy = trace.analyze(tmp_path)
    assert (set_aside(anatomy), anatomy.step.phase_ns["optimizer"]) == ([None] * 4, 50 * US // 4)
    trace = steps([1_000] * 4)
    for index in range(3):
        trace.run(MAP, 2_100 + index, 2_850 + 20 * index, 10)
    assert set_aside(trace.analyze(tmp_path)) == [None, None, "it makes different calls", None]
    trace = steps([1_000])
    trace.step(1_000, 100, 2)
    trace.run(MAP, 1_010, 1_020, 5)
    assert set_aside(trace.analyze(tmp_path)) == [None, HARDLY]


def test_a_step_that_does_not_count_on_one_rank_counts_on_none(tmp_path: Path) -> None:
    for rank in range(2):
        trace = steps([1_000, 9_000 if rank else 1_000, 1_000])
        trace.metadata["distributedInfo"] = {"rank": rank, "world_size": 2}
        trace.write(tmp_path / f"rank-{rank}.json")
    assert [opanatomy.analyze(tmp_path / f"rank-{rank}.json").step.count for rank in range(2)] == [3, 2]
    anatomy = opanatomy.analyze(tmp_path)
    assert (anatomy.step.count, anatomy.step.wall_ns, [rank.steps for rank in anatomy.ranks]) == (4, 1_000 * US, [2, 2])


def test_a_training_step_has_every_figure(tmp_path: Path) -> None:
    anatomy = training_step().analyze(tmp_path)
    assert anatomy.step.phase_ns == {"forward": 10 * US, "backward": 20 * US, "optimizer": 5 * US}
    assert (anatomy.timeline.busy_ns, anatomy.timeline.host_idle_ns) == (35 * US, 865 * US)


PIECES = st.lists(
    st.tuples(
        st.sampled_from([GEMM, MAP, NCCL]),
        st.none() | st.integers(0, 500),
        st.integers(0, 600),
        st.integers(0, 60),
        st.builds(
            lambda stream, device: {"stream": stream, "device": device}, st.sampled_from([7, 20]), st.integers(0, 2)
        ),
    ),
    max_size=15,
)


@settings(max_examples=60, deadline=None)
@given(PIECES, st.integers(0, 3))
def test_every_nanosecond_of_the_window_has_one_cause(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[Any, ...]], steps: int
) -> None:
    trace = made(*pieces, steps=tuple((50 + 150 * number, 130) for number in range(steps)))
    trace.host("aten::mm", 0, 600)
    anatomy = trace.analyze(tmp_path_factory.mktemp("law"))
    timeline, inside = anatomy.timeline, anatomy.ledger.device_work_ns - anatomy.ledger.outside_window_ns
    if timeline.outside_ns is None:
        return
    counted = [row for row in anatomy.step.steps if row.set_aside is None]
    for row in (timeline, *timeline.devices, *anatomy.step.steps):
        idle = [row.host_idle_ns or 0, row.stream_idle_ns or 0, row.other_idle_ns or 0]
        parts = [row.busy_ns or 0, row.outside_ns or 0, row.unrecorded_ns or 0, *idle]
        assert min(parts) >= 0
        assert sum(parts) == getattr(row, "wall_ns", timeline.window_ns)
        assert sum(idle) == sum(row.idle_causes.values()) if hasattr(row, "idle_causes") else True
    assert sum(row.time_ns for row in timeline.causes) == timeline.idle_ns
    for rows in (timeline.streams, timeline.devices, counted):
        assert inside == timeline.kernel_time_ns == sum(row.kernel_time_ns or 0 for row in rows)
    set_aside_ns = sum(row.kernel_time_ns or 0 for row in anatomy.step.steps) - inside
    assert set_aside_ns == anatomy.ledger.set_aside_ns <= anatomy.ledger.outside_window_ns
    assert sum(sum(row.classes.values()) for row in timeline.streams) == inside
    assert sum(row.wall_ns for row in counted) == timeline.window_ns
    assert (anatomy.step.count, len(anatomy.step.steps)) == (len(counted), max(steps, 1))


# ------------------------------------------------------------------------------------------------- steps on the CPU


def on_cpu(
    *walls: int, parts: tuple[float, float, float] = (0.2, 0.6, 0.1), plain_us: tuple[int, ...] = ()
) -> TraceBuilder:
    """Steps on the CPU: forward, backward and optimizer take these parts of them, operators half of each."""
    trace = TraceBuilder()
    trace.metadata["opanatomy"] = capture("cpu", plain_us)
    begin = 1000
    for number, wall in enumerate(walls):
        trace.step(begin, wall, number)
        at = float(begin)
        for phase, part in zip(("forward", "backward", "optimizer"), parts, strict=True):
            trace.host(f"opanatomy.phase/{phase}", at, part * wall)
            trace.host("aten::mm", at, part * wall / 2, **MATRICES)
            at += part * wall
        begin += 2 * wall
    return trace


def capture(kind: str, plain_us: tuple[int, ...]) -> dict[str, Any]:
    """The record of a capture whose steps took this long without the profiler."""
    return {
        "version": "0",
        "command": "opanatomy profile x",
        "created": "",
        "workload": {"batch": 4},
        "environment": {"device_kind": kind, **({"device": H100["name"]} if kind == "cuda" else {})},
        "unprofiled_step_ns": [US * one for one in plain_us],
    }


PHASES = {"forward": 20 * US, "backward": 60 * US, "optimizer": 10 * US}


def times(factor: float) -> dict[str, float]:
    return {phase: factor * ns for phase, ns in PHASES.items()}


@pytest.mark.parametrize(
    ("walls", "aside", "factor", "wall", "busy"),
    [
        # The third holds a pause and is in neither: its phases alone made forward and backward 133 % of the step.
        ((100, 100, 300), [None, None, PAUSE], 1, 100_000, 45_000),
        # Two are more than twice as long as the first, most of that between operators.
        ((100, 900, 200, 300), [None, PAUSE, None, PAUSE], 1.5, 150_000, 67_500),
    ],
)
def test_a_step_is_the_mean_of_those_that_count(
    walls: tuple[int, ...], aside: list[str | None], factor: float, wall: int, busy: int, tmp_path: Path
) -> None:
    anatomy = on_cpu(*walls).analyze(tmp_path)
    step = anatomy.step
    assert set_aside(anatomy) == aside
    assert (step.wall_ns, step.kernel_time_ns, step.busy_ns, step.framework_ns) == (wall, busy, busy, wall - busy)
    assert [(row.wall_ns, row.busy_ns) for row in step.steps] == [(US * one, 450 * one) for one in walls]
    assert anatomy.step.phase_ns == times(factor)
    assert anatomy.timeline.launching is anatomy.device.utilization is None


def test_what_runs_outside_of_the_steps_is_none_of_them(tmp_path: Path) -> None:
    """Nor are the ranges of a warm-up in front of them: its forward was counted as the step's, 300 of 100 us."""
    trace = on_cpu(100, 100)
    for begin, name in ((10, "aten::mm"), (9_000, "aten::mm"), (9_600, "aten::add")):
        trace.host(name, begin, 500, **MATRICES)
    anatomy = trace.analyze(tmp_path)
    assert {(row.operator, row.calls) for row in anatomy.operators} == {("aten::mm", 2)}
    assert sum(row.time_ns for row in anatomy.operators) == 2 * 45 * US
    trace = on_cpu(100)
    trace.host("opanatomy.phase/forward", 100, 280)
    trace.host("aten::mm", 150, 100, **MATRICES)
    trace.host("opanatomy.phase/backward", 1090, 700)
    anatomy = trace.analyze(tmp_path)
    assert anatomy.step.phase_ns == {**PHASES, "backward": 70 * US}
    assert (anatomy.step.wall_ns, anatomy.step.kernel_time_ns) == (100 * US, 45 * US)


def test_a_closure_inside_the_optimizer_counts_once(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.step(1000, 100)
    trace.host("opanatomy.phase/optimizer", 1000, 90)
    trace.host("opanatomy.phase/forward", 1010, 20)
    trace.host("opanatomy.phase/backward", 1030, 40)
    trace.host("aten::mm", 1012, 10, **MATRICES)
    assert trace.analyze(tmp_path).step.phase_ns == {"forward": 20 * US, "backward": 40 * US, "optimizer": 30 * US}


def test_threads_at_once_leave_no_negative_framework(tmp_path: Path) -> None:
    trace = on_cpu(100)
    for thread in (2, 3, 4):
        trace.host("aten::mm", 1005, 90, thread=thread, **MATRICES)
    step = trace.analyze(tmp_path).step
    assert (step.kernel_time_ns, step.busy_ns, step.framework_ns) == (315 * US, 100 * US, 0)


def test_ranks_give_the_mean_of_their_steps(tmp_path: Path) -> None:
    """Medians figure by figure over ranks: 50 + 50 + 50 of steps of 100. Forward is (50 + 50.5 + 0) / 3 us, backward
    (50 + 0 + 51) / 3 us, the optimizer (0 + 50.5 + 51) / 3 us."""
    for rank, parts in enumerate(((0.5, 0.5, 0.0), (0.5, 0.0, 0.5), (0.0, 0.5, 0.5))):
        trace = on_cpu(100 + rank, parts=parts)
        trace.metadata["distributedInfo"] = {"rank": rank, "world_size": 3}
        trace.write(tmp_path / f"rank{rank}.json")
    anatomy = opanatomy.analyze(tmp_path)
    assert anatomy.step.phase_ns == {"forward": 33_500, "backward": 33_666, "optimizer": 33_833}
    assert anatomy.step.wall_ns == 101 * US == (anatomy.step.busy_ns or 0) + (anatomy.step.framework_ns or 0)


@pytest.mark.parametrize(
    ("plain", "count", "expected"),
    [
        ((), None, None),
        ((60,), 1, None),  # how much plain steps differ is unknown
        ((60, 70), 2, 27_500),
        ((60, 99), 2, 16_107),  # as far apart as they are, none is as slow as the profiled step
        ((60, 100), 2, None),
        ((60, 400), 1, None),  # the second holds a pause
        ((210, 220, 190), 3, None),  # "profiled -53 %" is no overhead
        ((10, 12), 2, 55_000),  # never more than there is next to operators
    ],
)
def test_what_the_profiler_costs(
    plain: tuple[int, ...], count: int | None, expected: int | None, tmp_path: Path
) -> None:
    """Framework was all of the 55 us. 7 events, 3 of them operators: 3 of 14 halves of the recording are in these."""
    anatomy = on_cpu(100, plain_us=plain).analyze(tmp_path)
    assert anatomy.step.unprofiled_count == count
    assert (anatomy.step.profiler_ns, anatomy.step.framework_ns) == (expected, 55 * US - (expected or 0))
    text = page(anatomy, width=80)
    assert ("smaller than step-to-step variation" in text) is ((count or 0) > 1 and expected is None)
    assert ("not measurable (" in text) is (count == 1)
    assert ("its estimated overhead outside operators" in text) is (expected is not None)
    assert ("; included in framework" in " ".join(text.split())) is (expected is None)


def test_recording_inside_operators_is_theirs(tmp_path: Path) -> None:
    """11 events; in operators: 3 operators' own halves and the halves around the 4 inside one."""
    trace = on_cpu(100, plain_us=(80, 81))
    for at in (1001, 1002, 1003, 1004):
        trace.host("aten::empty", at, 0.5)
    assert trace.analyze(tmp_path).step.profiler_ns == round((1 - 7 / 22) * 19_500)


def test_on_an_accelerator_the_profiler_costs_the_whole_difference(tmp_path: Path) -> None:
    trace = steps([1_000, 1_000])
    trace.metadata["opanatomy"] = capture("cuda", (960, 961))
    step = trace.analyze(tmp_path).step
    assert (step.wall_ns, step.profiler_ns, step.framework_ns) == (1_000 * US, 39_500, None)


def test_intervals_that_touch_are_one() -> None:
    """Kernels on end are one busy time, without a gap of 0 ns between them."""
    start, end = union(np.array([10, 0, 30]), np.array([5, 10, 5]))
    assert (start.tolist(), end.tolist()) == ([0, 30], [15, 35])
