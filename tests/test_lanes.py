"""Lanes: one step over time, on made traces with the spans worked out by hand, and on real ones by their sums."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import opanatomy
from opanatomy.records.anatomy import Anatomy, Lane, LaneKind
from tests.made_trace import GEMM, MAP, NCCL, US, TraceBuilder, on_gpu
from tests.test_golden_traces import TRACES as KEPT


def lane(anatomy: Anatomy, of: LaneKind, name: str = "") -> Lane:
    assert anatomy.lanes is not None
    return next(each for each in anatomy.lanes.lanes if each.of is of and name in each.name)


def in_us(each: Lane) -> list[tuple[float, float, str]]:
    return [(begin / US, (begin + ns) / US, each.kinds[kind]) for begin, ns, kind in each.spans]


def spent(each: Lane) -> dict[str, int]:
    """The time of each kind."""
    times: Counter[str] = Counter()
    for _, ns, kind in each.spans:
        times[each.kinds[kind]] += ns
    return dict(times)


def check(each: Lane, wall_ns: int) -> None:
    """Spans are in order, disjoint, within the step, and of kinds that the lane names."""
    reached = 0
    for begin, ns, kind in each.spans:
        assert begin >= reached
        assert ns > 0
        assert 0 <= kind < len(each.kinds)
        reached = begin + ns
    assert reached <= wall_ns


def two_streams() -> TraceBuilder:
    """A step of 100 us: compute 10-40 and 60-80, a collective 30-70 on another stream, nothing to 95, a copy to 100."""
    trace = on_gpu()
    trace.step(0, 90)
    trace.host("aten::mm", 2, 6)
    trace.run(GEMM, 4, 10, 30)
    trace.host("c10d::allreduce_", 12, 6)
    trace.run(NCCL, 14, 30, 40, stream=20)
    trace.host("aten::add", 22, 6)
    trace.run(MAP, 24, 60, 20)
    trace.host("aten::copy_", 80, 8)
    trace.run("Memcpy DtoH (Device -> Pageable)", 82, 95, 5, category="gpu_memcpy", call="cudaMemcpyAsync")
    return trace


def test_a_device_fills_the_step(tmp_path: Path) -> None:
    """What computes hides communication; each gap has its cause; a copy is exposed while nothing else runs."""
    anatomy = two_streams().analyze(tmp_path)
    device = lane(anatomy, LaneKind.DEVICE)
    work = [span for span in in_us(device) if not span[2].startswith("idle_")]
    assert work == [
        (10, 40, "computing"), (40, 60, "exposed_communication"), (60, 80, "computing"), (95, 100, "exposed_copies"),
    ]  # fmt: skip
    assert sum(spent(device).values()) == (anatomy.step.wall_ns or 0) == 100 * US
    assert spent(device)["exposed_communication"] == anatomy.timeline.exposed_communication_ns == 20 * US
    assert spent(device)["exposed_copies"] == anatomy.timeline.exposed_memcpy_ns == 5 * US


def test_each_stream_has_its_work_by_class(tmp_path: Path) -> None:
    anatomy = two_streams().analyze(tmp_path)
    assert in_us(lane(anatomy, LaneKind.STREAM, "7")) == [
        (10, 40, "tensor_contraction"), (60, 80, "elementwise"), (95, 100, "data_movement"),
    ]  # fmt: skip
    assert in_us(lane(anatomy, LaneKind.STREAM, "20")) == [(30, 70, "communication")]


def test_a_thread_shows_what_is_innermost(tmp_path: Path) -> None:
    """A launch hides the operator around it, that the range around it; after the last range there is nothing."""
    trace = on_gpu()
    trace.step(0, 60)
    trace.annotation("my range", 10, 40)
    trace.host("aten::mm", 20, 20)
    trace.run(GEMM, 25, 30, 20)
    trace.launch(52, 99, name="cudaDeviceSynchronize", duration=6)
    thread = lane(trace.analyze(tmp_path), LaneKind.HOST)
    assert in_us(thread) == [
        (0, 20, "python"), (20, 25, "operators"), (25, 27, "launching"), (27, 40, "operators"), (40, 52, "python"),
        (52, 58, "waiting"), (58, 60, "python"),
    ]  # fmt: skip


def test_on_the_cpu_a_thread_shows_classes_and_the_framework(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.step(0, 100)
    trace.host("opanatomy.phase/forward", 5, 45)
    trace.host("aten::linear", 10, 30)
    trace.host("aten::addmm", 15, 20, shapes=[[4], [8, 4], [4, 4]], types=["float"] * 3)
    trace.host("opanatomy.phase/backward", 50, 45)
    trace.host("aten::mul", 60, 30, shapes=[[8, 4], [8, 4]], types=["float"] * 2)
    anatomy = trace.analyze(tmp_path)
    assert in_us(lane(anatomy, LaneKind.PHASES)) == [(5, 50, "forward"), (50, 95, "backward")]
    thread = spent(lane(anatomy, LaneKind.HOST))
    by_class = {row.operator_class.value: row.time_ns for row in anatomy.classes}
    assert {kind: ns for kind, ns in thread.items() if kind in by_class} == by_class


def test_the_step_nearest_to_the_mean_is_drawn(tmp_path: Path) -> None:
    trace = on_gpu()
    for number, (begin, duration) in enumerate(((0, 100), (200, 130), (400, 112)), 1):
        trace.step(begin, duration, number)
        trace.host("aten::mm", begin + 2, 6)
        trace.run(GEMM, begin + 4, begin + 10, duration - 10)
    lanes = trace.analyze(tmp_path).lanes
    assert lanes is not None
    assert (lanes.step, lanes.wall_ns) == (3, 112 * US)


def test_of_many_spans_the_times_stay_exact(tmp_path: Path) -> None:
    """5,000 kernels of 1 us with 1 us between them: in parts of the step, each kind as long as before."""
    trace = on_gpu()
    trace.step(0, 10_100)
    for place in range(5_000):
        trace.host("aten::mm", 2 * place, 1)
        trace.run((GEMM, MAP)[place % 2], 2 * place + 0.5, 2 * place + 1, 1)
    anatomy = trace.analyze(tmp_path)
    stream, device = lane(anatomy, LaneKind.STREAM), lane(anatomy, LaneKind.DEVICE)
    assert anatomy.lanes is not None
    assert sum(len(each.spans) for each in anatomy.lanes.lanes) <= 2400
    assert stream.bin_ns is not None
    assert sum(spent(stream).values()) == 5_000 * US
    assert sum(spent(device).values()) == anatomy.lanes.wall_ns
    for each in anatomy.lanes.lanes:
        check(each, anatomy.lanes.wall_ns)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_lanes_of_real_traces(path: Path) -> None:
    """Spans are disjoint, each device fills the step, and its idle time is that of the step by cause."""
    anatomy = opanatomy.analyze(path)
    lanes = anatomy.lanes
    if lanes is None:
        assert not anatomy.step.count or not anatomy.step.wall_ns
        return
    devices = [each for each in lanes.lanes if each.of is LaneKind.DEVICE]
    for each in lanes.lanes:
        check(each, lanes.wall_ns)
    for each in devices:
        assert sum(spent(each).values()) == lanes.wall_ns
    (row,) = [row for row in anatomy.step.steps if row.number == lanes.step and row.set_aside is None][:1]
    assert row.wall_ns == lanes.wall_ns
    if len(devices) == 1:
        idle = {kind.removeprefix("idle_"): ns for kind, ns in spent(devices[0]).items() if kind.startswith("idle_")}
        assert idle == {cause.value: ns for cause, ns in row.idle_causes.items() if ns}
        assert spent(devices[0]).get("outside", 0) == row.outside_ns


def test_ranks_have_a_lane_each() -> None:
    ranks = [path for path in KEPT if "dlrm_rank" in path.name]
    lanes = opanatomy.analyze(ranks).lanes if len(ranks) > 1 else None
    assert lanes is not None
    assert [each.name for each in lanes.lanes] == ["rank 0", "rank 1"]
    assert all(each.of is LaneKind.DEVICE for each in lanes.lanes)
