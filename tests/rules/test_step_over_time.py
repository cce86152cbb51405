"""Lanes: one step over time, on made traces with the spans worked out by hand, and on real ones by their sums."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import opanatomy
from opanatomy.analysis.lanes import MOST_SPANS, fewer
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.lanes import LaneKind
from tests.support.made_steps import many_kernels
from tests.support.made_trace import GEMM, MAP, NCCL, US, TraceBuilder, on_gpu
from tests.support.paths import KEPT

Row: TypeAlias = "dict[str, Any]"


def lane(anatomy: Anatomy, of: LaneKind, name: str = "") -> list[Row]:
    """The spans of the first lane of a kind whose name has these letters."""
    assert anatomy.lanes is not None
    named = next(each.name for each in anatomy.lanes.lanes if each.of is of and name in each.name)
    return spans_of(anatomy, named)


def spans_of(anatomy: Anatomy, name: str) -> list[Row]:
    assert anatomy.lanes is not None
    return [span for span in anatomy.lanes.spans.rows() if span["lane"] == name]


def in_us(spans: list[Row]) -> list[tuple[float, float, str]]:
    return [(row["begin_ns"] / US, (row["begin_ns"] + row["length_ns"]) / US, row["kind"]) for row in spans]


def spent(spans: list[Row]) -> dict[str, int]:
    """The time of each kind."""
    times: Counter[str] = Counter()
    for span in spans:
        times[span["kind"]] += span["length_ns"]
    return dict(times)


def check(spans: list[Row], wall_ns: int) -> None:
    """Spans are in order and within the step."""
    begun = 0
    for span in spans:
        assert begun <= span["begin_ns"]
        assert span["length_ns"] > 0
        assert span["begin_ns"] + span["length_ns"] <= wall_ns
        begun = span["begin_ns"]


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
        (10, 40, "computing"),
        (40, 60, "exposed_communication"),
        (60, 80, "computing"),
        (95, 100, "exposed_copies"),
    ]
    assert sum(spent(device).values()) == (anatomy.step.wall_ns or 0) == 100 * US
    assert spent(device)["exposed_communication"] == anatomy.timeline.exposed_communication_ns == 20 * US
    assert spent(device)["exposed_copies"] == anatomy.timeline.exposed_memcpy_ns == 5 * US


def test_each_stream_has_its_work_by_class(tmp_path: Path) -> None:
    anatomy = two_streams().analyze(tmp_path)
    assert in_us(lane(anatomy, LaneKind.STREAM, "7")) == [
        (10, 40, "tensor_contraction"),
        (60, 80, "elementwise"),
        (95, 100, "data_movement"),
    ]
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
        (0, 10, "python"),
        (10, 20, "python"),
        (20, 25, "operators"),
        (25, 27, "launching"),
        (27, 40, "operators"),
        (40, 50, "python"),
        (50, 52, "python"),
        (52, 58, "waiting"),
        (58, 60, "python"),
    ]


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
    """More spans than a report keeps: of the lanes that do not fit, in parts of the step, each kind as long as before;
    all of them where that is asked for. Work of streams has room of its own."""
    many_kernels().write(tmp_path / "trace.json")
    anatomy = opanatomy.analyze(tmp_path / "trace.json")
    assert anatomy.lanes is not None
    assert len(anatomy.lanes.spans) - len(lane(anatomy, LaneKind.STREAM)) <= MOST_SPANS
    assert len(lane(anatomy, LaneKind.STREAM)) == 16_000
    whole = opanatomy.analyze(tmp_path / "trace.json", timeline="full")
    assert whole.lanes is not None
    assert not [each for each in whole.lanes.lanes if each.bin_ns is not None]
    assert len(whole.lanes.spans) == sum(each.count for each in anatomy.lanes.lanes) > MOST_SPANS
    assert [each.name for each in anatomy.lanes.lanes if each.bin_ns is not None]
    for each in anatomy.lanes.lanes:
        spans = spans_of(anatomy, each.name)
        check(spans, anatomy.lanes.wall_ns)
        assert spent(spans) == spent(spans_of(whole, each.name))
        assert each.bin_ns is None or all(span["name"] is None for span in spans)


def test_a_picture_has_room_for_every_lane(tmp_path: Path) -> None:
    """Of lanes that are too much together each has so many parts: the last one's begin is where it was."""
    many_kernels().write(tmp_path / "trace.json")
    whole = opanatomy.analyze(tmp_path / "trace.json", timeline="full").lanes
    assert whole is not None
    binned = 400 // len(whole.lanes)
    drawn = fewer(whole, 400, binned=binned)
    assert len(drawn.spans) <= 400
    for each in drawn.lanes:
        rows = [row for row in drawn.spans.rows() if row["lane"] == each.name]
        true = [row for row in whole.spans.rows() if row["lane"] == each.name]
        assert spent(rows) == spent(true)
        assert each.bin_ns is None or each.bin_ns <= whole.wall_ns / (binned // 8)
        room = each.bin_ns or 0
        assert true[0]["begin_ns"] - room <= rows[0]["begin_ns"] <= true[0]["begin_ns"]


def test_a_span_has_its_names_and_what_it_comes_from(tmp_path: Path) -> None:
    """A kernel its operator, launch, grid; an idle time the work that ends it; a wait what it waited for."""
    trace = on_gpu()
    trace.step(0, 60)
    trace.annotation("opanatomy.module:layer.0", 0, 50)
    trace.host("aten::mm", 2, 6, shapes=[[4, 8], [8, 2]], types=["float"] * 2)
    trace.run(GEMM, 4, 10, 20, grid=[3, 1, 1], block=[128, 1, 1])
    trace.launch(12, 99, name="cudaDeviceSynchronize", duration=20)
    trace.host("aten::add", 34, 6)
    trace.run(MAP, 36, 45, 5)
    anatomy = trace.analyze(tmp_path)
    first, second = lane(anatomy, LaneKind.STREAM)
    assert first["name"] == GEMM
    assert (first["operator"], first["phase"], first["grid"]) == ("aten::mm", "forward", "3 x 1 x 1 of 128 x 1 x 1")
    assert str(first["signature"]) == "float32[4,8], float32[8,2]"
    assert first["cause_ns"] == 4 * US
    assert (second["name"], second["cause_ns"]) == (MAP, 36 * US)
    idle = [span for span in lane(anatomy, LaneKind.DEVICE) if span["kind"].startswith("idle_")]
    ended = {(span["cause"], span["cause_ns"]) for span in idle if 30 * US <= span["begin_ns"] < 45 * US}
    assert ended == {("stream 7", 45 * US)}
    (wait,) = [span for span in lane(anatomy, LaneKind.HOST) if span["kind"] == "waiting"]
    assert (wait["name"], wait["cause"], wait["cause_ns"]) == ("cudaDeviceSynchronize", "stream 7", 10 * US)
    assert first["cause"] == wait["lane"]


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_lanes_of_real_traces(path: Path) -> None:
    """Each device fills the step, its idle time is that of the step by cause; streams have the events of the file."""
    anatomy = opanatomy.analyze(path)
    lanes = anatomy.lanes
    if lanes is None:
        assert not anatomy.step.count or not anatomy.step.wall_ns
        return
    devices = [each for each in lanes.lanes if each.of is LaneKind.DEVICE]
    for each in lanes.lanes:
        check(spans_of(anatomy, each.name), lanes.wall_ns)
    for each in devices:
        assert sum(spent(spans_of(anatomy, each.name)).values()) == lanes.wall_ns
    (row,) = [row for row in anatomy.step.steps if row.number == lanes.step and row.set_aside is None][:1]
    assert row.wall_ns == lanes.wall_ns
    if len(devices) == 1:
        times = spent(spans_of(anatomy, devices[0].name))
        idle = {kind.removeprefix("idle_"): ns for kind, ns in times.items() if kind.startswith("idle_")}
        assert idle == {cause.value: ns for cause, ns in row.idle_causes.items() if ns}
        assert times.get("outside", 0) == row.outside_ns
    streams = [each.name for each in lanes.lanes if each.of is LaneKind.STREAM and each.bin_ns is None]
    if streams and not lanes.hidden:
        raw = raw_work(path)
        for name in streams:
            for span in spans_of(anatomy, name):
                began = (lanes.begin_ns or 0) + span["begin_ns"]
                assert (span["name"], began, span["length_ns"]) in raw


def raw_work(path: Path) -> set[tuple[str, int, int]]:
    """The name, begin and length (ns) of each event of a device, by the file alone."""
    text = gzip.decompress(path.read_bytes())
    events = json.loads(text, parse_float=Decimal)
    events = events["traceEvents"] if isinstance(events, dict) else events
    made = set()
    for event in events:
        if event.get("ph") == "X" and "stream" in event.get("args", {}):
            begin, length = (round(Decimal(event.get(key, 0)) * 1000) for key in ("ts", "dur"))
            made.add((event["name"], begin, length))
    return made


def test_ranks_are_on_one_clock_and_show_their_waiting() -> None:
    """Each rank's lane begins when its step did on the clock of all; it waits as long as the report says."""
    ranks = [path for path in KEPT if "dlrm_rank" in path.name]
    anatomy = opanatomy.analyze(ranks)
    lanes, waiting = anatomy.lanes, anatomy.waiting
    assert lanes is not None
    assert waiting is not None
    assert lanes.on_one_clock
    assert [each.name for each in lanes.lanes] == ["rank 0", "rank 1"]
    assert all(each.of is LaneKind.DEVICE for each in lanes.lanes)
    begins = []
    for path, each, rank in zip(sorted(ranks), lanes.lanes, waiting.each, strict=True):
        alone = opanatomy.analyze(path).lanes
        assert alone is not None
        spans = spans_of(anatomy, each.name)
        (parts,) = [step for step in rank.steps if step.number == lanes.step]
        assert spent(spans).get("waiting_for_ranks", 0) == parts.waiting_ns
        begins.append(spans[0]["begin_ns"])
        if alone.step == lanes.step:
            assert spans[0]["begin_ns"] == (alone.begin_ns or 0) - rank.clock_offset_ns - (lanes.begin_ns or 0)
    assert min(begins) == 0
