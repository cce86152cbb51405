"""The figures of one step are means over the same steps: parts sum to at most their whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins

from opanatomy.analysis.step import step_of_rows
from opanatomy.pipeline import analyze_trace, analyze_traces
from opanatomy.records.anatomy import Anatomy, StepRow
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import METADATA_KEY, Capture, Environment, Workload
from opanatomy.report import terminal_report
from tests.handmade import HandMade

US = 1000
MATRIX = {"shapes": [[8, 4], [4, 2]], "types": ["float", "float"]}


def capture(*plain_us: int) -> Capture:
    return Capture(
        version="0", command="opanatomy profile x", created="", environment=Environment(device_kind="cpu"),
        workload=Workload(batch=4), unprofiled_step_ns=tuple(US * one for one in plain_us),
    )  # fmt: skip


def on_cpu(
    *walls: int, parts: tuple[float, float, float] = (0.2, 0.6, 0.1), plain_us: tuple[int, ...] = ()
) -> HandMade:
    """Steps on the CPU: forward, backward and optimizer take these parts of them, operators half of each."""
    trace = HandMade()
    trace.metadata[METADATA_KEY] = to_builtins(capture(*plain_us))
    begin = 1000
    for number, wall in enumerate(walls):
        trace.annotation(f"ProfilerStep#{number}", begin, wall)
        at = float(begin)
        for phase, part in zip(("forward", "backward", "optimizer"), parts, strict=True):
            trace.host(f"opanatomy.phase/{phase}", at, part * wall)
            trace.host("aten::mm", at, part * wall / 2, **MATRIX)
            at += part * wall
        begin += 2 * wall
    return trace


def analyzed(trace: HandMade, folder: Path) -> Anatomy:
    return analyze_trace(trace.write(folder / "trace.json"))


def test_phases_and_step_come_from_the_same_steps(tmp_path: Path) -> None:
    """The third holds a pause and is in neither: its phases alone made forward and backward 133 % of the step."""
    step = analyzed(on_cpu(100, 100, 300), tmp_path).step
    assert [row.set_aside for row in step.steps] == [None, None, "a pause is in it"]
    assert step.wall_ns == 100 * US
    assert step.phase_ns == {"forward": 20 * US, "backward": 60 * US, "optimizer": 10 * US}
    assert (step.kernel_time_ns, step.busy_ns, step.framework_ns) == (45 * US, 45 * US, 55 * US)


def test_what_runs_outside_of_the_steps_is_none_of_them(tmp_path: Path) -> None:
    trace = on_cpu(100, 100)
    for begin in (10, 9_000):
        trace.host("aten::mm", begin, 500, **MATRIX)
    trace.host("aten::add", 9_600, 500, **MATRIX)
    anatomy = analyzed(trace, tmp_path)
    assert {row.operator for row in anatomy.operators} == {"aten::mm"}
    assert sum(row.calls for row in anatomy.operators) == 6
    assert sum(row.time_ns for row in anatomy.operators) == 2 * 45 * US


def test_it_is_the_mean_of_the_steps_that_count(tmp_path: Path) -> None:
    """Of 100, 900, 200 and 300 us two are more than twice as long as the first, most of that between operators."""
    step = analyzed(on_cpu(100, 900, 200, 300), tmp_path).step
    assert [row.set_aside for row in step.steps] == [None, "a pause is in it", None, "a pause is in it"]
    assert (step.count, step.wall_ns, step.wall_min_ns, step.wall_max_ns) == (2, 150 * US, 100 * US, 200 * US)
    assert step.phase_ns == {"forward": 30 * US, "backward": 90 * US, "optimizer": 15 * US}
    assert (step.kernel_time_ns, step.framework_ns) == (67_500, 82_500)


def test_each_step_has_its_parts(tmp_path: Path) -> None:
    rows = analyzed(on_cpu(100, 300), tmp_path).step.steps
    assert [row.phase_ns for row in rows] == [
        {"forward": 20 * US, "backward": 60 * US, "optimizer": 10 * US},
        {"forward": 60 * US, "backward": 180 * US, "optimizer": 30 * US},
    ]
    assert [(row.wall_ns, row.busy_ns, row.framework_ns) for row in rows] == [
        (100 * US, 45 * US, 55 * US), (300 * US, 135 * US, 165 * US),
    ]  # fmt: skip


def test_ranges_of_other_steps_are_of_other_steps(tmp_path: Path) -> None:
    """A warm-up in front of the annotated steps: its forward was counted as the step's, 300 of 100 us."""
    trace = on_cpu(100)
    trace.host("opanatomy.phase/forward", 100, 280)
    trace.host("aten::mm", 150, 100, **MATRIX)
    trace.host("opanatomy.phase/backward", 1090, 700)
    step = analyzed(trace, tmp_path).step
    assert step.phase_ns == {"forward": 20 * US, "backward": 70 * US, "optimizer": 10 * US}
    assert (step.wall_ns, step.kernel_time_ns) == (100 * US, 45 * US)


def test_a_closure_inside_the_optimizer_counts_once(tmp_path: Path) -> None:
    trace = HandMade()
    trace.annotation("ProfilerStep#0", 1000, 100)
    trace.host("opanatomy.phase/optimizer", 1000, 90)
    trace.host("opanatomy.phase/forward", 1010, 20)
    trace.host("opanatomy.phase/backward", 1030, 40)
    trace.host("aten::mm", 1012, 10, **MATRIX)
    step = analyzed(trace, tmp_path).step
    assert step.phase_ns == {"forward": 20 * US, "backward": 40 * US, "optimizer": 30 * US}


def test_threads_at_once_leave_no_negative_framework(tmp_path: Path) -> None:
    trace = on_cpu(100)
    for thread in (2, 3, 4):
        trace.host("aten::mm", 1005, 90, thread=thread, **MATRIX)
    step = analyzed(trace, tmp_path).step
    assert (step.kernel_time_ns, step.busy_ns, step.framework_ns) == (315 * US, 100 * US, 0)


def test_ranks_give_the_mean_of_their_steps(tmp_path: Path) -> None:
    """Medians figure by figure over ranks: 50 + 50 + 50 of steps of 100. Forward is (50 + 50.5 + 0) / 3 us, backward
    (50 + 0 + 51) / 3 us, the optimizer (0 + 50.5 + 51) / 3 us."""
    parts = ((0.5, 0.5, 0.0), (0.5, 0.0, 0.5), (0.0, 0.5, 0.5))
    paths = []
    for rank, one in enumerate(parts):
        trace = on_cpu(100 + rank, parts=one)
        trace.metadata["distributedInfo"] = {"rank": rank, "world_size": 3}
        paths.append(trace.write(tmp_path / f"rank{rank}.json"))
    step = analyze_traces(paths).step
    assert step.wall_ns == 101 * US
    assert step.phase_ns == {"forward": 33_500, "backward": 33_666, "optimizer": 33_833}
    assert (step.wall_ns or 0) == (step.busy_ns or 0) + (step.framework_ns or 0)


WALLS = st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=9)


@settings(deadline=None)
@given(WALLS, st.lists(st.integers(1, 2000), max_size=4), st.floats(0, 1))
def test_parts_never_exceed_their_step(walls: list[tuple[int, int, int]], plain: list[int], outside: float) -> None:
    rows = tuple(
        StepRow(
            number=None, wall_ns=wall,
            phase_ns={Phase.FORWARD: wall * min(a, b) // 1000,
                      Phase.BACKWARD: wall * (max(a, b) - min(a, b)) // 1000,
                      Phase.OPTIMIZER: wall * (1000 - max(a, b)) // 1000},
            busy_ns=wall * a // 1000, kernel_time_ns=wall * a // 1000, framework_ns=wall - wall * a // 1000,
        )
        for wall, a, b in walls
    )  # fmt: skip
    told = Capture(
        version="0", command="", created="", environment=Environment(), workload=Workload(),
        unprofiled_step_ns=tuple(plain),
    )  # fmt: skip
    step = step_of_rows(rows, told, recording_outside=outside)
    wall, busy, framework = step.wall_ns or 0, step.busy_ns or 0, step.framework_ns or 0
    assert sum(step.phase_ns.values()) <= wall
    assert wall == busy + framework + (step.profiler_ns or 0)
    assert min(busy, framework, step.profiler_ns or 0) >= 0


# ------------------------------------------------------------------------------------------------ the profiler's own


@pytest.mark.parametrize(
    ("plain", "count", "expected"),
    [
        ((), None, None),
        ((60,), 1, None),  # how much plain steps differ is not known
        ((60, 70), 2, 27_500),
        ((60, 99), 2, 16_107),  # as far apart as they are, none is as slow as the profiled step
        ((60, 100), 2, None),
        ((60, 400), 1, None),  # the second holds a pause
        ((60, 70, 400), 2, 27_500),
        ((210, 220, 190), 3, None),  # "profiled -53 %" is no overhead
        ((10, 12), 2, 55_000),  # never more than there is next to operators
    ],
)
def test_what_the_profiler_costs(
    plain: tuple[int, ...], count: int | None, expected: int | None, tmp_path: Path
) -> None:
    """Framework was all of the 55 us. 7 events, 3 of them operators: 3 of 14 halves of the recording are in these."""
    anatomy = analyzed(on_cpu(100, plain_us=plain), tmp_path)
    assert anatomy.step.unprofiled_count == count
    assert (anatomy.step.profiler_ns, anatomy.step.framework_ns) == (expected, 55 * US - (expected or 0))
    text = " ".join(terminal_report(anatomy, width=80).split())
    assert ("less than steps differ among themselves" in text) is ((count or 0) > 1 and expected is None)
    assert ("not known how much: the one step without it" in text) is (count == 1)
    assert ("an estimate of its own time outside operators" in text) is (expected is not None)
    assert ("profiler in framework" in text) is (expected is None)


def test_a_profiled_step_that_was_faster_is_no_overhead(tmp_path: Path) -> None:
    text = terminal_report(analyzed(on_cpu(100, plain_us=(212, 213)), tmp_path), width=80)
    assert "step       212 us plain, 100 us profiled" in text
    assert "profiler   in framework; less than steps differ among themselves\n" in text
    assert "-5" not in text.split("framework")[0]


def test_recording_inside_operators_is_theirs(tmp_path: Path) -> None:
    trace = on_cpu(100, plain_us=(80, 81))
    for at in (1001, 1002, 1003, 1004):
        trace.host("aten::empty", at, 0.5)
    step = analyzed(trace, tmp_path).step
    # 11 events; in operators: 3 operators' own halves and the halves around the 4 inside one
    assert step.profiler_ns == round((1 - 7 / 22) * 19_500)


def test_on_an_accelerator_it_is_the_whole_difference() -> None:
    rows = tuple(StepRow(number=one, wall_ns=(100 + one) * US, busy_ns=50 * US) for one in range(3))
    step = step_of_rows(rows, capture(60, 61))
    assert (step.wall_ns, step.profiler_ns, step.framework_ns) == (101 * US, 40_500, None)
