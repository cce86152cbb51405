"""`--trace`: the source comes back whole, and what is added is what a viewer can read and what the report says."""

from __future__ import annotations

import gzip
import itertools
import json
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opanatomy.attribution.table import divided
from opanatomy.pipeline import analyze_trace
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.columns import Overlay
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.trace.write import (
    CLASS_COLOURS,
    FIRST_PROCESS,
    PHASE_COLOURS,
    POINTS,
    Annotated,
    lanes,
    rate_over_time,
    write_trace,
)
from tests.command import run
from tests.handmade import HandMade, training_step
from tests.test_cli import left_in

#: Of the names that Chrome's trace viewer reserves (tr.b.ColorScheme), those in use here.
RESERVED_COLOURS = {
    "thread_state_running", "thread_state_iowait", "rail_response", "rail_animation", "rail_load", "yellow", "grey",
    "good", "bad", "terrible", "vsync_highlight_color",
}  # fmt: skip

Event = dict[str, Any]


def annotate(source: Path, target: Path, *, redact: bool = False) -> tuple[Anatomy, dict[str, Any]]:
    anatomy = analyze_trace(source, annotated=Annotated(path=target, redact=redact))
    data = target.read_bytes()
    return anatomy, json.loads(gzip.decompress(data) if target.name.endswith(".gz") else data)


def split(written: dict[str, Any]) -> tuple[list[Event], list[Event]]:
    """(events of the source, events that were added)."""
    events = written["traceEvents"]
    return (
        [event for event in events if event.get("cat") != "opanatomy"],
        [event for event in events if event.get("cat") == "opanatomy"],
    )


def pieces(added: list[Event]) -> list[Event]:
    return [event for event in added if event["ph"] == "X" and "pieces" not in event["args"]]


@pytest.fixture
def written(tmp_path: Path) -> tuple[HandMade, Anatomy, dict[str, Any]]:
    trace = training_step()
    anatomy, told = annotate(trace.write(tmp_path / "step.json"), tmp_path / "out.json")
    return trace, anatomy, told


def test_the_source_comes_back(written: tuple[HandMade, Anatomy, dict[str, Any]]) -> None:
    trace, _, told = written
    assert split(told)[0] == trace.events
    assert {key: told[key] for key in trace.metadata} == trace.metadata


def test_each_piece_of_work_is_named_by_its_class(written: tuple[HandMade, Anatomy, dict[str, Any]]) -> None:
    _trace, anatomy, told = written
    found = pieces(split(told)[1])
    assert [(event["name"], event["ts"], event["dur"]) for event in found] == [
        ("tensor contraction", 140, 10), ("tensor contraction", 250, 20), ("elementwise", 440, 5),
    ]  # fmt: skip
    assert [event["args"]["phase"] for event in found] == ["forward", "backward", "optimizer"]
    assert found[0]["args"] == {
        "phase": "forward", "operator": "aten::mm", "module": "head", "FLOPs": 2 * 8 * 4 * 2,
        "bytes": 4 * (8 * 4 + 4 * 2 + 8 * 2),
    }  # fmt: skip
    assert sum(event["args"].get("FLOPs", 0) for event in found) == sum(row.flops or 0 for row in anatomy.classes)


def test_colours_are_those_of_the_viewers() -> None:
    assert set(CLASS_COLOURS) == set(OperatorClass)
    assert set(PHASE_COLOURS) == set(Phase)
    assert {*CLASS_COLOURS.values(), *PHASE_COLOURS.values()} == RESERVED_COLOURS
    assert len(set(CLASS_COLOURS.values())) == len(OperatorClass)


def test_phases_are_merged_spans(tmp_path: Path) -> None:
    trace = training_step()
    trace.launch(150, 9)
    trace.kernel("ampere_sgemm_128x64_nn", 160, 7, 9)
    _, told = annotate(trace.write(tmp_path / "step.json"), tmp_path / "out.json")
    spans = [event for event in split(told)[1] if "pieces" in event["args"]]
    assert [(event["name"], event["ts"], event["dur"], event["args"]["pieces"]) for event in spans] == [
        ("forward", 140, 27, 2), ("backward", 250, 20, 1), ("optimizer", 440, 5, 1),
    ]  # fmt: skip


def test_processes_and_threads_are_named_and_new(tmp_path: Path) -> None:
    trace = training_step()
    trace.events.append({"ph": "M", "name": "process_name", "pid": FIRST_PROCESS, "args": {"name": "mine"}})
    trace.events.append({"ph": "X", "name": "x", "cat": "other", "pid": str(FIRST_PROCESS + 1), "ts": 1, "dur": 1})
    _, told = annotate(trace.write(tmp_path / "step.json"), tmp_path / "out.json")
    added = split(told)[1]
    assert {event["pid"] for event in added} == {FIRST_PROCESS + 2}
    names = {event["tid"]: event["args"]["name"] for event in added if event["name"] == "thread_name"}
    assert sorted(names.values()) == ["device 0 stream 7: classes", "device 0 stream 7: phases"]
    assert {event["tid"] for event in added if event["ph"] == "X"} == set(names)
    assert [event["args"]["name"] for event in added if event["name"] == "process_name"] == ["opanatomy"]


def test_counters_integrate_to_what_the_report_says(written: tuple[HandMade, Anatomy, dict[str, Any]]) -> None:
    _, anatomy, told = written
    counters = [event for event in split(told)[1] if event["ph"] == "C"]
    assert {event["name"] for event in counters} == {"FLOP/s", "GB/s"}
    for name, unit, total in (
        ("FLOP/s", 1, sum(row.flops or 0 for row in anatomy.classes)),
        ("GB/s", 1e9, sum((row.read_bytes or 0) + (row.written_bytes or 0) for row in anatomy.classes)),
    ):
        points = [(event["ts"], event["args"][name]) for event in counters if event["name"] == name]
        assert len(points) <= POINTS
        assert points == sorted(points)
        assert points[-1][1] == 0
        area = sum(value * unit * (after - at) * 1e-6 for (at, value), (after, _) in itertools.pairwise(points))
        assert area == pytest.approx(total, rel=1e-2)


def test_work_outside_the_window_says_so(tmp_path: Path) -> None:
    trace = training_step()
    trace.launch(20, 8)
    trace.kernel("ampere_sgemm_128x64_nn", 30, 10, 8)
    anatomy, told = annotate(trace.write(tmp_path / "step.json"), tmp_path / "out.json")
    assert anatomy.ledger.outside_window_ns == 10_000
    assert [event["args"]["phase"] for event in pieces(split(told)[1])].count("outside the window") == 1


def test_work_that_overlaps_on_a_stream_gets_a_second_thread(tmp_path: Path) -> None:
    trace = training_step()
    trace.launch(150, 9)
    trace.kernel("ampere_sgemm_128x64_nn", 145, 60, 9)
    _, told = annotate(trace.write(tmp_path / "step.json"), tmp_path / "out.json")
    added = split(told)[1]
    names = {event["tid"]: event["args"]["name"] for event in added if event["name"] == "thread_name"}
    assert "device 0 stream 7: classes (2)" in names.values()
    for thread in names:
        spans = sorted(
            (event["ts"], event["ts"] + event["dur"])
            for event in added
            if event["ph"] == "X" and event["tid"] == thread
        )
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_a_trace_of_the_cpu_has_a_track_for_each_thread(tmp_path: Path) -> None:
    trace = HandMade()
    shapes = {"shapes": [[8, 4], [4, 2]], "types": ["float", "float"]}
    trace.host("aten::linear", 100, 60)
    trace.host("aten::mm", 110, 40, **shapes)
    trace.host("aten::mm", 110, 40, thread=2, **shapes)
    anatomy, told = annotate(trace.write(tmp_path / "cpu.json"), tmp_path / "out.json")
    added = split(told)[1]
    assert [event["name"] for event in pieces(added)] == ["tensor contraction"] * 2
    assert {event["args"]["name"] for event in added if event["name"] == "thread_name"} == {
        "thread 1: phases", "thread 1: classes", "thread 2: phases", "thread 2: classes",
    }  # fmt: skip
    assert sum(event["args"]["FLOPs"] for event in pieces(added)) == sum(row.flops or 0 for row in anatomy.classes)


def test_the_annotated_trace_gives_the_same_report(tmp_path: Path) -> None:
    source = training_step().write(tmp_path / "step.json.gz")
    first, _ = annotate(source, tmp_path / "once.json")
    second, _ = annotate(tmp_path / "once.json", tmp_path / "twice.json")
    assert (first.classes, first.operators, first.kernels, first.ledger) == (
        second.classes, second.operators, second.kernels, second.ledger,
    )  # fmt: skip
    assert (tmp_path / "once.json").read_bytes() == (tmp_path / "twice.json").read_bytes()


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    source = training_step().write(tmp_path / "step.json")
    for name in ("a.json.gz", "b.json.gz"):
        annotate(source, tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_numbers_keep_their_digits(tmp_path: Path) -> None:
    source = tmp_path / "digits.json"
    event = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1682725897235145.620, "dur": 1.50}'
    source.write_text(f'{{"traceEvents": [{event}]}}')
    annotate(source, tmp_path / "out.json")
    text = (tmp_path / "out.json").read_text()
    assert event in text
    assert '"ts":1682725897235145.620,"dur":1.500' in text


@pytest.mark.parametrize(
    ("broken", "events"),
    [
        ('{"traceEvents": [{"ph": "i", "name": "a\x01b", "ts": 1}]}', [{"ph": "i", "name": "a b", "ts": 1}]),
        ('{"traceEvents": [{"ph": "i", "name": "n", "ts": NaN}]}', [{"ph": "i", "name": "n", "ts": None}]),
        ('[{"ph": "i", "name": "bare"}]', [{"ph": "i", "name": "bare"}]),
        ('{"traceEvents": [{"ph": "i", "name": "whole"}, {"ph": "i", "na', [{"ph": "i", "name": "whole"}]),
        ('{"traceEvents": [{"ph": "i", "name": "half \\ud800"}]}', [{"ph": "i", "name": "half \ufffd"}]),
    ],
)  # fmt: skip
def test_text_that_is_not_quite_json_comes_out_as_json(tmp_path: Path, broken: str, events: list[Event]) -> None:
    source = tmp_path / "broken.json"
    work: Event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    source.write_text(broken.replace("[", f"[{json.dumps(work)}, ", 1))
    assert split(annotate(source, tmp_path / "out.json")[1])[0] == [work, *events]


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    empty = np.zeros(0, dtype=np.int64)
    nothing = Overlay(
        tracks=(), operators=(), modules=(), track=empty, start_ns=empty, duration_ns=empty, operator=empty,
        module=empty, operator_class=empty, phase=empty, flops=empty, bytes=empty, inside=empty.astype(bool),
    )  # fmt: skip
    peaks = []
    for count in (15_000, 45_000):
        source = tmp_path / f"{count}.json"
        events = [
            {"ph": "X", "cat": "cpu_op", "name": f"op{n % 50}", "ts": n, "dur": 1, "pid": 1, "args": {"External id": n}}
            for n in range(count)
        ]
        source.write_text(json.dumps({"traceEvents": events}))
        tracemalloc.start()
        write_trace(source, Annotated(path=tmp_path / "out.json.gz"), nothing, {})
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


@given(st.integers(0, 10**15), st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_parts_of_a_call_sum_to_the_call(amount: int, times: list[int]) -> None:
    parts = divided(amount, times)
    assert sum(parts) == amount
    assert min(parts) >= 0


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 60)), min_size=1, max_size=40))
def test_no_two_of_a_lane_overlap(spans: list[tuple[int, int]]) -> None:
    start, duration = np.array(sorted(spans), dtype=np.int64).T
    found = lanes(start, duration)
    assert Counter(row for lane in found for row in lane.tolist()) == Counter(range(len(start)))
    for lane in found:
        assert (start[lane][1:] >= (start + duration)[lane][:-1]).all()


@given(
    st.lists(st.tuples(st.integers(0, 10**8), st.integers(1, 10**7), st.integers(1, 10**12)), min_size=1, max_size=30)
)
def test_rates_integrate_to_the_amounts(pieces: list[tuple[int, int, int]]) -> None:
    start, duration, amount = np.array(pieces, dtype=np.int64).T
    edges, rates = rate_over_time(start, duration, amount)
    assert len(edges) == len(rates) + 1 <= POINTS
    assert (rates * np.diff(edges)).sum() == pytest.approx(int(amount.sum()))


# ------------------------------------------------------------------------------------------------- the command line


def test_the_command_writes_both(tmp_path: Path) -> None:
    training_step().write(tmp_path / "step.json.gz")
    done = run("analyze", "step.json.gz", "--trace", "annotated.json.gz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "annotated.json.gz" in done.stderr
    assert "contraction" in done.stdout
    assert left_in(tmp_path) == ["annotated.json.gz", "step.json.gz"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["step.json", "--trace", "step.json", "--force"], 2, "that is the trace to read"),
        (["step.json", "--trace", "link.json", "--force"], 2, "that is the trace to read"),
        (["folder", "--trace", "folder/rank0.json", "--force"], 2, "that is the trace to read"),
        (["step.json", "--trace", "old.json"], 1, "exists already"),
        (["step.json", "--trace", "out.txt"], 2, "must end in .json or .json.gz"),
        (["step.json", "--trace", "out.json", "-o", "out.json"], 2, "the report goes there"),
        (["step.json", "other.json", "--trace", "out.json"], 2, "2 traces are given"),
        (["broken.json", "--trace", "out.json"], 1, "is not a trace"),
        (["missing.json", "--trace", "out.json"], 1, "no such file"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    source = training_step().write(tmp_path / "step.json")
    training_step().write(tmp_path / "other.json")
    (tmp_path / "folder").mkdir()
    training_step().write(tmp_path / "folder" / "rank0.json")
    (tmp_path / "broken.json").write_text("no trace")
    (tmp_path / "old.json").write_text("{}")
    (tmp_path / "link.json").symlink_to(source)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    done = run("analyze", *arguments, cwd=tmp_path)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (code, 1), done.stderr
    assert words in done.stderr
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before
    assert not list(tmp_path.rglob("*partial*"))
