"""`--trace`: the source comes back whole, and what is added is what a viewer can read and what the report says."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import opanatomy
from opanatomy.__main__ import main
from tests.support.command import left_in, run
from tests.support.made_trace import GEMM, MATRICES, TraceBuilder, training_step

#: Of the names that Chrome's trace viewer reserves (tr.b.ColorScheme), those in use here.
RESERVED_COLOURS = {
    "thread_state_running", "thread_state_iowait", "rail_response", "rail_animation", "rail_load", "yellow", "grey",
    "good", "bad", "terrible", "vsync_highlight_color",
}  # fmt: skip
Event = dict[str, Any]


def annotated(trace: TraceBuilder | Path, folder: Path, target: str = "out.json") -> tuple[list[Event], list[Event]]:
    """The events of the source and those that were added."""
    source = trace if isinstance(trace, Path) else trace.write(folder / "step.json")
    assert main(["analyze", str(source), "--trace", str(folder / target), "--force", "--brief"]) == 0
    events = json.loads((folder / target).read_bytes())["traceEvents"]
    added = [event for event in events if event.get("cat") == "opanatomy"]
    assert {event.get("cname") for event in added if event["ph"] == "X"} <= RESERVED_COLOURS
    return [event for event in events if event.get("cat") != "opanatomy"], added


def pieces(added: list[Event], *, phases: bool = False) -> list[Event]:
    return [event for event in added if event["ph"] == "X" and ("pieces" in event["args"]) is phases]


def threads(added: list[Event]) -> dict[int, str]:
    return {event["tid"]: event["args"]["name"] for event in added if event["name"] == "thread_name"}


def test_each_piece_of_work_is_named_by_its_class_and_phases_are_merged(tmp_path: Path) -> None:
    trace = training_step()
    trace.run(GEMM, 150, 160, 7)
    source, added = annotated(trace, tmp_path)
    assert source == trace.events
    written = json.loads((tmp_path / "out.json").read_bytes())
    assert {key: written[key] for key in trace.metadata} == trace.metadata
    found = pieces(added)
    assert [(event["name"], event["ts"], event["dur"], event["args"]["phase"]) for event in found] == [
        ("tensor contraction", 140, 10, "forward"),
        ("tensor contraction", 160, 7, "forward"),
        ("tensor contraction", 250, 20, "backward"),
        ("elementwise", 440, 5, "optimizer"),
    ]
    assert [
        (event["name"], event["ts"], event["dur"], event["args"]["pieces"]) for event in pieces(added, phases=True)
    ] == [("forward", 140, 27, 2), ("backward", 250, 20, 1), ("optimizer", 440, 5, 1)]
    # The FLOPs and bytes of a call are those of its pieces, and of the classes in the report.
    assert (found[2]["args"]["operator"], found[2]["args"]["module"]) == ("aten::mm", "head")
    anatomy = opanatomy.analyze(tmp_path / "step.json")
    totals = {
        "FLOPs": sum(row.flops or 0 for row in anatomy.classes),
        "bytes": sum((row.read_bytes or 0) + (row.written_bytes or 0) for row in anatomy.classes),
    }
    for name, total in totals.items():
        assert sum(event["args"].get(name, 0) for event in found) == total
    # So are the areas below the counters.
    for name, unit, total in (("FLOP/s", 1, totals["FLOPs"]), ("GB/s", 1e9, totals["bytes"])):
        points = [(event["ts"], event["args"][name]) for event in added if event["ph"] == "C" and event["name"] == name]
        assert points == sorted(points)
        assert points[-1][1] == 0
        area = sum(value * unit * (after - at) * 1e-6 for (at, value), (after, _) in itertools.pairwise(points))
        assert area == pytest.approx(total, rel=1e-2)


def test_processes_and_threads_are_named_and_new(tmp_path: Path) -> None:
    trace = training_step()
    _, added = annotated(trace, tmp_path)
    (process,) = {event["pid"] for event in added}
    trace.events.append({"ph": "M", "name": "process_name", "pid": process, "args": {"name": "mine"}})
    trace.events.append({"ph": "X", "name": "x", "cat": "other", "pid": str(process + 1), "ts": 1, "dur": 1})
    _, added = annotated(trace, tmp_path)
    assert {event["pid"] for event in added} == {process + 2}
    assert sorted(threads(added).values()) == ["device 0 stream 7: classes", "device 0 stream 7: phases"]
    assert {event["tid"] for event in added if event["ph"] == "X"} == set(threads(added))
    assert [event["args"]["name"] for event in added if event["name"] == "process_name"] == ["opanatomy"]


def test_work_outside_the_window_says_so(tmp_path: Path) -> None:
    trace = training_step()
    trace.run(GEMM, 20, 30, 10)
    assert [piece["phase"] for piece in trace.placed(tmp_path)].count("outside the window") == 1


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 60)), min_size=1, max_size=12))
def test_no_two_of_a_thread_overlap(tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, int]]) -> None:
    trace, folder = TraceBuilder(), tmp_path_factory.mktemp("lanes")
    for start, duration in spans:
        trace.run(GEMM, start, start + 5, duration)
    _, added = annotated(trace, folder)
    assert len(pieces(added)) == len(spans)
    for thread in threads(added):
        own = sorted(
            (event["ts"], event["ts"] + event["dur"])
            for event in added
            if event["ph"] == "X" and event["tid"] == thread
        )
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(own))


def test_a_trace_of_the_cpu_has_a_track_for_each_thread(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.host("aten::linear", 100, 60)
    for thread in (1, 2):
        trace.host("aten::mm", 110, 40, thread=thread, **MATRICES)
    _, added = annotated(trace, tmp_path)
    assert [(event["name"], event["args"]["FLOPs"]) for event in pieces(added)] == [("tensor contraction", 128)] * 2
    assert set(threads(added).values()) == {
        f"thread {thread}: {what}" for thread in (1, 2) for what in ("phases", "classes")
    }


def test_the_annotated_trace_gives_the_same_report_and_the_same_bytes(tmp_path: Path) -> None:
    source = training_step().write(tmp_path / "step.json.gz")
    annotated(source, tmp_path, "once.json")
    annotated(tmp_path / "once.json", tmp_path, "twice.json")
    first, second = (opanatomy.analyze(path) for path in (source, tmp_path / "once.json"))
    assert (first.classes, first.operators, first.kernels, first.ledger) == (
        second.classes,
        second.operators,
        second.kernels,
        second.ledger,
    )
    assert (tmp_path / "once.json").read_bytes() == (tmp_path / "twice.json").read_bytes()


def test_numbers_keep_their_digits(tmp_path: Path) -> None:
    event = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1682725897235145.620, "dur": 1.50}'
    (tmp_path / "digits.json").write_text(f'{{"traceEvents": [{event}]}}')
    annotated(tmp_path / "digits.json", tmp_path)
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
)
def test_text_that_is_not_quite_json_comes_out_as_json(tmp_path: Path, broken: str, events: list[Event]) -> None:
    work: Event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    (tmp_path / "broken.json").write_text(broken.replace("[", f"[{json.dumps(work)}, ", 1))
    assert annotated(tmp_path / "broken.json", tmp_path)[0] == [work, *events]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["step.json", "--trace", "annotated.json.gz"], 0, "annotated.json.gz"),
        (["step.json", "--trace", "step.json", "--force"], 2, "this is the trace to read"),
        (["step.json", "--trace", "link.json", "--force"], 2, "this is the trace to read"),
        (["folder", "--trace", "folder/rank0.json", "--force"], 2, "this is the trace to read"),
        (["step.json", "--trace", "old.json"], 1, "already exists"),
        (["step.json", "--trace", "out.txt"], 2, "must end in .json or .json.gz"),
        (["step.json", "--trace", "out.json", "-o", "out.json"], 2, "the report is also written there"),
        (["step.json", "other.json", "--trace", "out.json"], 2, "needs a single trace, but 2 are given"),
        (["broken.json", "--trace", "out.json"], 1, "is not a trace"),
        (["missing.json", "--trace", "out.json"], 1, "no such file"),
    ],
)
def test_the_command(tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    source = training_step().write(tmp_path / "step.json")
    training_step().write(tmp_path / "other.json")
    (tmp_path / "folder").mkdir()
    training_step().write(tmp_path / "folder" / "rank0.json")
    (tmp_path / "broken.json").write_text("no trace")
    (tmp_path / "old.json").write_text("{}")
    (tmp_path / "link.json").symlink_to(source)
    files, before = left_in(tmp_path), {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    done = run("analyze", *arguments, cwd=tmp_path)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (code, 1), done.stderr
    assert words in done.stderr
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before
    assert left_in(tmp_path) == sorted([*files, *(["annotated.json.gz"] if code == 0 else [])])
