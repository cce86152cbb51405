"""Two steps next to each other: what was changed comes back to the nanosecond, named first; what may be compared."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from msgspec.structs import replace

import opanatomy
from opanatomy.analysis.statistics import interleaved, interval_of_median, mann_whitney
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.comparison import Cause, Comparison, Decomposition, FigureRow, Part
from opanatomy.records.memory import Memory
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.records.workload import MachineLoad
from opanatomy.report.formats import format_named
from opanatomy.report.section import Page
from opanatomy.results import as_public
from tests.support import anatomies
from tests.support.made_trace import GEMM, MAP, TraceBuilder
from tests.support.paths import SHARED, TRACES
from tests.support.pauses import DLRM, Events, events_of, moment, pause, running

BESIDE: Final = SHARED / "more_traces" / "compare"
RANKS: Final = tuple(TRACES / f"gpu_v100_dlrm_rank{rank}of8.json.gz" for rank in (0, 1))
CPU: Final = TRACES / "bert_cpu.json.gz"


@pytest.fixture(scope="module")
def on_cpu() -> Anatomy:
    """One profiled step on the CPU, timed without the profiler too."""
    return opanatomy.analyze(CPU)


@pytest.fixture(scope="module")
def on_device() -> Anatomy:
    return opanatomy.analyze(DLRM)


def parts_of(comparison: Comparison) -> Decomposition:
    """The decomposition, whose sums are the steps."""
    parts = comparison.decomposition
    assert parts is not None
    assert sum(part.before_ns for part in parts.parts) == parts.before_ns
    assert sum(part.after_ns for part in parts.parts) == parts.after_ns
    return parts


def differing(comparison: Comparison) -> list[Part]:
    return [part for part in parts_of(comparison).parts if part.change_ns]


def figure(comparison: Comparison, name: str) -> FigureRow:
    return next(row for row in comparison.figures if row.name == name)


def page(comparison: Comparison, format_name: str = "terminal", **options: Any) -> str:
    text = format_named(format_name).write(comparison, Page(width=120, **options))
    return " ".join(text.split()) if format_name == "terminal" else text


# ------------------------------------------------------------------------------------------ time put into a real trace


def longer(tmp_path: Path, wanted: Callable[[Events], bool]) -> tuple[Comparison, list[str]]:
    """The step against itself with 700 us more at such a moment, and the kernels that ran then."""
    document = events_of(DLRM)
    at = moment(document["traceEvents"], wanted)
    names = sorted(event["name"] for event in running(document["traceEvents"], at))
    pause(document["traceEvents"], at, 700)
    (tmp_path / "after.json").write_text(json.dumps(document))
    return opanatomy.compare(DLRM, tmp_path / "after.json"), names


@pytest.mark.parametrize("name", ["gemm", "AllReduce", "elementwise"])
def test_time_inside_a_kernel_is_that_of_its_operator(tmp_path: Path, name: str) -> None:
    comparison, _ = longer(tmp_path, lambda work: len(work) == 1 and name in work[0]["name"])
    (part,) = differing(comparison)
    assert (part.cause, part.change_ns) == (Cause.SAME_CALLS, 700_000)
    assert part.after is not None
    assert any(name in kernel for kernel in part.after.kernels)


def test_time_between_kernels_is_idle(tmp_path: Path) -> None:
    (part,) = differing(longer(tmp_path, lambda work: not work)[0])
    assert part.cause in (Cause.HOST_IDLE, Cause.STREAM_IDLE, Cause.OTHER_IDLE)
    assert part.change_ns == 700_000


def test_time_under_two_kernels_is_that_of_both_and_of_their_overlap(tmp_path: Path) -> None:
    comparison, names = longer(tmp_path, lambda work: len(work) == 2)
    work = [part for part in differing(comparison) if part.cause is Cause.SAME_CALLS]
    (overlap,) = [part for part in differing(comparison) if part.cause is Cause.OVERLAP]
    assert sorted(kernel for part in work for kernel in (part.after.kernels if part.after else ())) == names
    assert [part.change_ns for part in work] == [700_000, 700_000]
    assert (overlap.pair, overlap.change_ns) == (("compute", "communication"), -700_000)
    assert parts_of(comparison).change_ns == 700_000


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("gpu_v100_dlrm_rank0of8", "gpu_v100_dlrm_rank1of8"),
        ("bert_cpu", "bert_checkpointing_amp_cpu"),
        ("gpu_mi300_graph", "gpu_mi210_device_only"),
        ("gpu_mi250_training", "gpu_v100_resnet_2021"),
        ("gpu_v100_dlrm_rank0of8", "gpu_v100_dlrm_rank0of8"),
    ],
)
def test_exchanged_sides_are_the_negative_part_by_part(before: str, after: str) -> None:
    each = [opanatomy.analyze(TRACES / f"{name}.json.gz") for name in (before, after)]
    anatomies = [replace(one, workload=replace(one.workload, model="one name for both")) for one in each]
    there, back = (parts_of(opanatomy.compare(*sides)) for sides in (anatomies, anatomies[::-1]))
    exchanged = {
        Cause.NEW: Cause.GONE,
        Cause.GONE: Cause.NEW,
        Cause.MORE_CALLS: Cause.FEWER_CALLS,
        Cause.FEWER_CALLS: Cause.MORE_CALLS,
    }

    def listed(parts: Decomposition, sign: int) -> list[tuple[str, ...]]:
        return sorted(
            (
                str(exchanged.get(part.cause, part.cause) if sign < 0 else part.cause),
                str(part.pair),
                *(str(side) for side in (part.before, part.after)[::sign]),
                str(sign * part.change_ns),
            )
            for part in parts.parts
        )

    assert listed(there, 1) == listed(back, -1)
    assert there.change_ns == -back.change_ns
    if before == after:
        assert not any(part.change_ns for part in there.parts)


# ------------------------------------------------------------------------------------------------- the cause of a part

#: Work: its operator, its kernel, the shapes of its arguments, how long it takes (us), and its phase.
Work: TypeAlias = "tuple[Any, ...]"
NORM, FLASH, TRITON = "layer_norm_kernel", "flash_fwd_kernel", "triton_poi_fused_add_0"
SGD = "void at::native::multi_tensor_apply_kernel<...>"
MM: Final = ("aten::mm", GEMM, [[64, 32], [32, 32]], 50)
ADD: Final = ("aten::add", MAP, [[64, 32], [64, 32]], 10)
LAYER: Final = (MM, ADD, ("aten::native_layer_norm", NORM, [], 10))
STEP: Final = (*LAYER, *LAYER, ("aten::_foreach_add_", SGD, [], 5))


def made(
    folder: Path,
    name: str,
    work: tuple[Work, ...],
    *,
    steps: int = 1,
    annotated: bool = True,
    kernels: bool = True,
    runtime: bool = True,
    device: str = "NVIDIA H100 80GB HBM3",
    before: bool = False,
    **workload: int | str,
) -> Anatomy:
    """The anatomy of a trace of so many steps of 1 ms that do this work one after the other."""
    trace = TraceBuilder()
    trace.metadata["deviceProperties"] = [{"id": 0, "name": device}] if runtime else []
    for stream in (7, 20) if before else ():
        trace.run(GEMM, -100, -90, 40, stream=stream)
    correlation = len(trace.events)
    for step in range(steps):
        begin = 1_000.0 * step
        if annotated:
            trace.step(begin, 1_000, step)
        for index, (operator, kernel, shapes, length, *phase) in enumerate(work):
            at, correlation = begin + 10 + 60 * index, correlation + 1
            trace.host(f"opanatomy.phase/{phase[0] if phase else 'forward'}", at - 1, 25)
            trace.host(operator, at, 20, shapes=shapes, types=["float"] * len(shapes))
            if runtime:
                trace.launch(at + 2, correlation)
            if kernels:
                trace.kernel(kernel, at + 5, length, correlation)
    anatomy = opanatomy.analyze(trace.write(folder / f"{name}.json"))
    return replace(anatomy, workload=replace(anatomy.workload, **workload))


SHAPE, BIGGER = [[64, 32]], [[64, 64]]
MUL: Final = ("aten::mul", MAP, SHAPE, 10)
OLD, NEW = "triton_poi_fused_add_mul_3", "triton_poi_fused_add_mul_17"
#: What the second side has in the place of what the first one has, and the causes of the parts that have work.
CAUSES: dict[str, tuple[tuple[Work, ...], tuple[Work, ...], dict[Cause, int]]] = {
    "longer": ((MUL,), ((*MUL[:3], 30),), {Cause.SAME_CALLS: 20}),
    "another operator": ((MUL,), (("aten::mul_", *MUL[1:3], 30),), {Cause.ANOTHER_OPERATOR: 20}),
    "moved": ((MUL,), ((*MUL[:3], 30, "backward"),), {Cause.MOVED: 20}),
    "another kernel": ((MUL,), ((MUL[0], "other", SHAPE, 30),), {Cause.ANOTHER_KERNEL: 20}),
    "another signature": ((MUL,), ((*MUL[:2], BIGGER, 30),), {Cause.ANOTHER_SIGNATURE: 20}),
    "another signature and kernel": ((MUL,), ((MUL[0], "other", BIGGER, 30),), {Cause.ANOTHER_SIGNATURE: 20}),
    "nothing like it": ((MUL,), (("aten::cat", "copy", [[3, 4]], 30, "optimizer"),), {Cause.GONE: -10, Cause.NEW: 30}),
    "more calls": ((MUL,), (MUL, MUL, MUL), {Cause.MORE_CALLS: 20}),
    "a part of the calls": ((MUL,) * 4, (MUL, MUL, MUL, (*MUL[:3], 20, "backward")), {Cause.MOVED: 10}),
    # The compiler numbers kernels in its turn: equal names with other arguments are not the same kernel.
    "renumbered": (((OLD, OLD, SHAPE, 10),), ((NEW, NEW, SHAPE, 30),), {Cause.SAME_CALLS: 20}),
    "the same number": (((OLD, OLD, SHAPE, 10),), ((OLD, OLD, BIGGER, 30),), {Cause.ANOTHER_SIGNATURE: 20}),
    # Without arguments and module much unlike work has one name: a copy to the host, a cast.
    "a name alone": ((("aten::_to_copy", "Memcpy", [], 10),), (("aten::_to_copy", "cast", [], 30),),
                     {Cause.GONE: -10, Cause.NEW: 30}),
    # One kernel under two operators: the time of each is counted in its class.
    "unlike classes": ((("aten::sum", MAP, [], 10),), (("aten::mul", MAP, [], 30),), {Cause.GONE: -10, Cause.NEW: 30}),
    # Arguments that one side alone knows are not asked for.
    "no arguments": ((MUL,), ((*MUL[:2], [], 30),), {Cause.SAME_CALLS: 20}),
}  # fmt: skip


@pytest.mark.parametrize("name", CAUSES)
def test_the_closest_match_is_taken(name: str, tmp_path: Path) -> None:
    before, after, expected = CAUSES[name]
    sides = [made(tmp_path, side, (*LAYER, *work)) for side, work in (("a", before), ("b", after))]
    for pair, sign in ((sides, 1), (sides[::-1], -1)):
        changes = {
            part.cause: part.change_ns // 1000 for part in differing(opanatomy.compare(*pair)) if part.cause.is_work
        }
        back = {Cause.NEW: Cause.GONE, Cause.GONE: Cause.NEW, Cause.MORE_CALLS: Cause.FEWER_CALLS}
        assert changes == {cause if sign > 0 else back.get(cause, cause): sign * us for cause, us in expected.items()}


def test_work_in_front_of_the_steps_is_no_part_of_them(tmp_path: Path) -> None:
    """Two kernels at once, 100 us before the first of two steps."""
    sides = [made(tmp_path, name, STEP, steps=2, before=name == "b") for name in "ab"]
    assert differing(opanatomy.compare(*sides)) == []


# ------------------------------------------------------------------------------------------------------ real pairs


@pytest.mark.skipif(not BESIDE.exists(), reason="the shared traces are not here")
def test_a_compiled_gpt_before_and_after() -> None:
    """Published: the gradients' synchronization moved from the optimizer into backward hooks."""
    names = (f"train_h100_compile_gpt_rank0of8_{side}.json.gz" for side in ("before", "after"))
    comparison = opanatomy.compare(*(BESIDE / name for name in names))
    parts = parts_of(comparison)
    assert (parts.before_ns, parts.after_ns, parts.change_ns) == (62_468_395, 61_594_261, -874_134)
    assert parts.before_steps == parts.after_steps == (11, 13)
    moved = [part for part in parts.parts if part.cause is Cause.MOVED]
    assert sum(part.change_ns for part in moved) == pytest.approx(20_000, abs=1_000)
    assert sum(part.after_ns for part in moved) == pytest.approx(2_250_000, abs=10_000)
    assert sum(part.after.calls for part in moved if part.after) == 6  # a step
    products = [
        part.change_ns
        for part in parts.parts
        if part.cause is Cause.SAME_CALLS and part.operator_class is OperatorClass.TENSOR_CONTRACTION
    ]
    assert sum(products) == pytest.approx(-399_000, abs=5_000)
    assert figure(comparison, "exposed_communication_ns").ranges == "overlapping"


@pytest.mark.skipif(not BESIDE.exists(), reason="the shared traces are not here")
def test_quantized_communication_on_four_ranks() -> None:
    """Of three steps one or two are set aside: 31.8 % idle stood beside 6.23 ms idle of 156 ms."""
    comparison = opanatomy.compare(BESIDE / "train_v100_a2a_plain", BESIDE / "train_v100_a2a_quantized")
    parts = parts_of(comparison)
    assert (parts.before_steps, parts.after_steps) == ((5, 6), (6,))
    exchanged = [
        part
        for part in parts.parts
        if part.after and "SendRecv" in "".join(part.after.kernels) and part.after.phases != ("other",)
    ]
    assert [part.after.phases for part in exchanged if part.after] == [("forward",), ("backward",)]
    assert all(-6_000_000 < part.change_ns < -3_500_000 for part in exchanged)
    more = sum(part.change_ns for part in parts.parts if part.cause in (Cause.NEW, Cause.MORE_CALLS))
    assert more == pytest.approx(17_000_000, abs=1_500_000)
    assert comparison.no_claim is not None
    assert all(row.ranges is None and row.p is None for row in comparison.figures)
    for index in (0, 1):
        idle, step, share = (
            figure(comparison, name).values[index] or 0 for name in ("idle_ns", "step_time_ns", "idle_share")
        )
        assert share == pytest.approx(idle / step, rel=0.01)


# -------------------------------------------------------------------------------------------------------------- Python


def test_a_comparison_in_python(tmp_path: Path) -> None:
    before, after = (opanatomy.analyze(path) for path in RANKS)
    comparison = opanatomy.compare(before, after)
    assert repr(comparison) == (
        "<Comparison of gpu_v100_dlrm_rank0of8.json.gz against gpu_v100_dlrm_rank1of8.json.gz: step 14.5 ms to 19.9 ms,"
        " +5.45 ms (+37.7 %)>"
    )
    parts = comparison.to_dict()["decomposition"]["parts"]
    assert sum(part["after_ns"] - part["before_ns"] for part in parts) == 5_446_000
    assert comparison == opanatomy.compare(before, after)
    assert hash(comparison) == hash(opanatomy.compare(before, after))
    assert "5.45 ms longer" in comparison._repr_html_()
    before.to_json(tmp_path / "report.json")
    assert opanatomy.compare(tmp_path / "report.json", RANKS[1]).decomposition == comparison.decomposition
    redacted = opanatomy.compare(*RANKS, redact=True)
    assert [side.name for side in redacted.sides] == ["side 1", "side 2"]
    assert redacted.decomposition == comparison.decomposition
    assert [side.name for side in opanatomy.compare(DLRM, DLRM).sides] == [f"{DLRM.name} (1)", f"{DLRM.name} (2)"]
    with pytest.raises(opanatomy.GateError, match="time"):
        opanatomy.compare(before, after, fail_if="time > +5%")
    assert opanatomy.compare(before, after, fail_if=["time > +50%", "flops > +10%"]).gates[0].met
    with pytest.raises(opanatomy.UsageError, match="two sides"):
        opanatomy.compare(before)
    with pytest.raises(opanatomy.UsageError, match="no runs"):
        opanatomy.compare(before, [])
    for wrong in (None, 3, b"trace.json", [None]):
        with pytest.raises(opanatomy.UsageError, match="compare: a "):
            opanatomy.compare(before, wrong)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------- runs of each side


def begun(anatomy: Anatomy, index: int) -> Anatomy:
    """The run as if it had begun at another time."""
    return replace(anatomy, provenance=replace(anatomy.provenance, begin_unix_ns=index))


def with_step(anatomy: Anatomy, **fields: int | None) -> Anatomy:
    return replace(anatomy, step=replace(anatomy.step, **fields))


def in_turns(anatomy: Anatomy, runs: int) -> list[list[Anatomy]]:
    return [[begun(anatomy, 2 * index + side) for index in range(runs)] for side in (0, 1)]


NAME: Final = f"{DLRM.name} (1)"


@pytest.mark.parametrize("digest", [True, False])
def test_copies_of_a_run_count_as_one(on_device: Anatomy, tmp_path: Path, digest: bool) -> None:
    """By the digest of the trace; of ranks, whose report has none, by all that it says."""
    sha = on_device.provenance.trace_sha256 if digest else None
    same = replace(on_device, provenance=replace(on_device.provenance, trace_sha256=sha))
    before, after = in_turns(same, 5)
    assert opanatomy.compare(before, after).no_claim is None
    copied = opanatomy.compare([before[0], before[1], before[2], before[2], before[1], before[2]], after)
    assert [side.runs for side in copied.sides] == [3, 5]
    assert copied.no_claim is not None
    assert copied.warnings == (
        f"{NAME}: run 5 is the same run as run 2; this run is counted once",
        f"{NAME}: run 4 and run 6 are the same run as run 3; this run is counted once",
    )
    for index, anatomy in enumerate((before[0], before[1], before[0]), 1):
        as_public(anatomy).to_json(tmp_path / f"run-{index}.report.json")
    (of_files,) = opanatomy.compare(tmp_path, after).warnings
    assert of_files.endswith(": run-3.report.json is the same run as run-1.report.json; this run is counted once")


def test_a_run_on_both_sides_allows_no_claim(on_device: Anatomy) -> None:
    before, after = in_turns(on_device, 5)
    comparison = opanatomy.compare(before, [*after[:4], before[3]])
    assert comparison.no_claim == "a run is on both sides, so the sides are not independent"
    assert all(row.p is None for row in comparison.figures)
    assert comparison.warnings == (f"run 4 of {NAME} and run 5 of {DLRM.name} (2) are the same run",)
    (warning,) = opanatomy.compare(before, before).warnings
    assert warning.endswith("are the same run, and so are 4 other pairs of runs")
    assert opanatomy.compare(before[0], after[0], before[0]).warnings == (
        f"{NAME} and {DLRM.name} (3) are the same run",
    )


def test_runs_of_a_side_that_differ_are_named(on_device: Anatomy) -> None:
    """Which run differs from the others, and in what; FLOPs by more than 1 %."""
    before, after = in_turns(on_device, 4)
    assert not opanatomy.compare(before, after).warnings
    workload = replace(on_device.workload, model="gpt2", batch=8, sequence_length=128)
    same = [replace(run, workload=workload) for run in before]
    device = replace(same[1].environment, device="another")
    other = replace(same[1], workload=replace(workload, model="gpt2-xl", batch=16), environment=device)
    assert opanatomy.compare([same[0], other, *same[2:]], after).warnings == (
        f"{NAME}: run 2 differs from the other runs in the model (gpt2-xl, not gpt2), the batch (16, not 8) and the"
        f" device (another, not {same[0].environment.device})",
    )
    lengths = [
        replace(run, workload=replace(workload, sequence_length=length))
        for run, length in zip(before, (128, 128, 256, 512), strict=True)
    ]
    assert opanatomy.compare(lengths, after).warnings == (
        f"{NAME}: run 3 and run 4 differ from the other runs in the sequence length (256, 512, not 128)",
    )
    for factor, said in ((1.005, False), (1.5, True)):
        rows = tuple(replace(row, flops=row.flops and round(factor * row.flops)) for row in before[3].classes)
        warnings = opanatomy.compare([*before[:3], anatomies.with_tables(before[3], classes=rows)], after).warnings
        assert [text.partition(" per step (")[0] for text in warnings] == [
            f"{NAME}: run 4 differs from the other runs in the FLOPs"
        ] * said


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        ([[False], [False]], None),
        ([[True], [True], [True]], None),
        ([[True], [False]], "{name} (2) were measured only under the profiler, those of {name} (1)"),
        (
            [[True], [False], [False]],
            "{name} (2) and {name} (3) were measured only under the profiler, those of {name} (1)",
        ),
        (
            [[True, False], [True, True]],
            "1 of 2 runs of {name} (1) were measured only under the profiler, those of 1 of 2 runs of {name} (1) and"
            " {name} (2)",
        ),
    ],
)
def test_sides_that_are_timed_in_other_ways_are_said(
    plain: list[list[bool]], says: str | None, on_device: Anatomy
) -> None:
    index = count()
    sides = [
        [
            with_step(
                begun(on_device, next(index)),
                unprofiled_wall_ns=10_000_000 if each else None,
                unprofiled_count=1 if each else None,
            )
            for each in side
        ]
        for side in plain
    ]
    told = (says or "").format(name=DLRM.name)
    assert opanatomy.compare(*sides).warnings == (
        f"the step times of {told} without it: these cannot be compared - use the `profiled` number",
    ) * bool(says)


def test_what_a_report_lacks_is_said() -> None:
    """Steps with the same numbers on both sides; a report of an older release has figures alone."""
    before, after = (opanatomy.analyze(path) for path in RANKS)
    breakdown = after.breakdown
    assert breakdown is not None
    (kind,) = breakdown.kinds
    renumbered = replace(kind, steps=tuple(replace(step, number=99) for step in kind.steps))
    other = anatomies.with_tables(begun(after, 1), breakdown=replace(breakdown, kinds=(renumbered,)))
    assert not opanatomy.compare(before, [after, begun(after, 1)]).warnings
    (warning,) = opanatomy.compare(before, [after, other]).warnings
    assert "the parts cover 1 of 2 runs" in warning
    older = opanatomy.compare(replace(before, step_kinds=None), replace(after, step_kinds=None))
    assert older.decomposition is None
    assert all("older opanatomy" in text for text in older.warnings)
    assert "14.5 ms before and 19.7 ms after (+36.3 %)" in page(older)


def test_several_runs_a_side_that_took_turns_are_tested(on_device: Anatomy) -> None:
    """Five runs each, the slower side 700 us longer in each: p is that of two of the 252 ways to divide ten."""

    def run_of(index: int, more_us: int) -> Anatomy:
        ns = (on_device.step.wall_ns or 0) + 1000 * (more_us + index)
        return begun(with_step(on_device, unprofiled_wall_ns=ns, unprofiled_count=1), index)

    comparison = opanatomy.compare(
        [run_of(2 * index, 0) for index in range(5)], [run_of(2 * index + 1, 700) for index in range(5)]
    )
    row = figure(comparison, "step_time_ns")
    assert (comparison.no_claim, comparison.sides[0].runs, row.ranges) == (None, 5, "apart")
    assert row.p == pytest.approx(2 / 252)
    assert (row.values[1] or 0) - (row.values[0] or 0) == 701_000
    in_blocks = opanatomy.compare(
        [run_of(index, 0) for index in range(5)], [run_of(5 + index, 700) for index in range(5)]
    )
    assert in_blocks.no_claim is not None
    assert all(row.p is None for row in in_blocks.figures)
    few = opanatomy.compare(
        [run_of(2 * index, 0) for index in range(4)], [run_of(2 * index + 1, 700) for index in range(4)]
    )
    assert few.no_claim == "5 interleaved runs per side are needed (steps of one run are correlated)"


def test_a_part_is_claimed_only_of_a_step_that_is(on_device: Anatomy) -> None:
    """Of a hundred figures one is apart by chance: where the step may be the same, its parts may be too."""

    def run_of(index: int, step_ns: int, idle_ns: int) -> Anatomy:
        anatomy = begun(with_step(on_device, unprofiled_wall_ns=step_ns, unprofiled_count=1), index)
        breakdown = anatomy.breakdown
        assert breakdown is not None
        (kind,) = breakdown.kinds
        more = replace(kind, host_idle_ns=kind.host_idle_ns + idle_ns, wall_ns=kind.wall_ns + idle_ns)
        return anatomies.with_tables(anatomy, breakdown=replace(breakdown, kinds=(more,)))

    def sides(step_ns: int) -> Comparison:
        return opanatomy.compare(
            *(
                [run_of(2 * index + side, 10**7 + index + side * step_ns, side * 10**6) for index in range(5)]
                for side in (0, 1)
            )
        )

    claimed, same = sides(700), sides(0)
    apart = figure(claimed, "host_idle_ns")
    assert (figure(claimed, "step_time_ns").p, apart.p) == (pytest.approx(2 / 252), pytest.approx(2 / 252))
    assert figure(same, "step_time_ns").p == 1
    assert (figure(same, "host_idle_ns").ranges, figure(same, "host_idle_ns").p) == (apart.ranges, 1)


@pytest.mark.parametrize(("peak", "p"), [("allocator_peak_bytes", 2 / 252), ("process_peak_bytes", 1)])
def test_what_a_process_has_resident_is_claimed_only_of_a_step_that_is(on_device: Anatomy, peak: str, p: float) -> None:
    """An allocator counts exactly; what is resident differs by chance, like times."""

    def run_of(index: int, side: int) -> Anatomy:
        anatomy = with_step(on_device, unprofiled_wall_ns=10**7 + index, unprofiled_count=1)
        of_peak = 10**9 + index + side * 10**6
        return replace(begun(anatomy, 2 * index + side), memory=Memory(**{"peak_bytes": of_peak, peak: of_peak}))

    comparison = opanatomy.compare(*([run_of(index, side) for index in range(5)] for side in (0, 1)))
    assert figure(comparison, "step_time_ns").p == 1
    assert [figure(comparison, name).p for name in (peak, "peak_memory_bytes")] == [pytest.approx(p)] * 2


@pytest.mark.parametrize(("busy", "claims"), [((), True), ((0, 1), True), ((0, 1, 2), False), ((0, 1, 2, 3, 4), False)])
def test_nothing_is_claimed_of_a_side_whose_machine_was_busy(
    busy: tuple[int, ...], claims: bool, on_device: Anatomy
) -> None:
    """Half of its runs or more; counts are claimed all the same. A run that does not say is not busy."""
    before, after = in_turns(on_device, 5)
    loads = [MachineLoad(before=0.02, after=0.48 if index in busy else 0.03) for index in range(5)]
    other = [
        replace(run, environment=replace(run.environment, load=load)) for run, load in zip(after, loads, strict=True)
    ]
    comparison = opanatomy.compare(before, other)
    assert (comparison.no_claim is None) is claims
    assert (figure(comparison, "step_time_ns").p is None) is not claims
    if claims:
        assert comparison.warnings == ()
        return
    assert comparison.no_claim == "the machine was busy: rerun both sides on an idle machine"
    assert comparison.warnings == (
        f"{DLRM.name} (2): the machine was busy in {len(busy)} of 5 runs; in the busiest,"
        " utilization by other work was 2 % before and 48 % after the steps",
    )
    assert figure(comparison, "flops").exact


#: What each of five runs says of other work; the run that is named, `None` where half of those that say are not busy.
LOADS: Final = [
    ([(0.02, 0.48), (0.6, 0.02), (0.5, None), (None, 0.4), (0.02, 0.02)], "60 % before and 2 % after"),
    ([(0.02, 0.48), (0.3, None), (None, 0.4), (0.02, 0.02), (0.02, 0.02)], "2 % before and 48 % after"),
    ([(0.02, 0.3), (0.7, None), (0.3, 0.02), (None, 0.4), (0.02, 0.02)], "70 % before"),
    ([(0.02, 0.48), (0.02, 0.3), (0.02, 0.02), (0.02, 0.02), None], "2 % before and 48 % after"),
    ([(0.02, 0.48), (0.02, 0.3), (0.02, 0.02), (0.02, 0.02), (0.02, 0.02)], None),
]


@pytest.mark.parametrize(("loads", "said"), LOADS)
def test_the_busiest_run_is_named(
    loads: list[tuple[float | None, float | None] | None], said: str | None, on_device: Anatomy
) -> None:
    before, after = in_turns(on_device, 5)
    other = [
        replace(run, environment=replace(run.environment, load=load and MachineLoad(before=load[0], after=load[1])))
        for run, load in zip(after, loads, strict=True)
    ]
    warnings = [line for line in opanatomy.compare(before, other).warnings if "busy" in line]
    assert [line.partition("other work was ")[2] for line in warnings] == (
        [] if said is None else [f"{said} the steps"]
    )


@pytest.mark.parametrize(
    ("before", "after", "p"),
    [
        # scipy.stats.mannwhitneyu(..., method="exact") of samples without ties
        ([1, 2, 3, 4], [5, 6, 7, 8], 0.02857142857142857),
        ([1, 3, 5, 7], [2, 4, 6, 8], 0.6857142857142857),
        ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], 0.007936507936507936),
        ([1, 1, 1, 1], [1, 1, 1, 1], 1.0),
        # scipy.stats.mannwhitneyu(..., method=PermutationMethod()), which counts all divisions with their ties
        ([1, 3, 4], [5, 5, 5, 5, 4], 0.07142857142857142),
        # scipy.stats.mannwhitneyu(..., method="asymptotic")
        (list(range(40)), list(range(10, 50)), 0.0007691714821234269),
    ],
)
def test_the_test_of_two_samples(before: list[float], after: list[float], p: float) -> None:
    assert mann_whitney(before, after) == mann_whitney(after, before) == pytest.approx(p)


def test_the_median_has_an_interval_from_six_samples_on() -> None:
    """1 - 2 / 2^n: 93.75 % of five, 96.9 % of six."""
    assert interval_of_median([5, 1, 4, 2, 3]) is None
    assert interval_of_median([6, 5, 1, 4, 2, 3]) == (1, 6)
    assert interval_of_median(range(1, 11)) == (2, 9)


TURNS = [
    "ABABABAB",
    "BABABABA",
    "ABBAABBA",
    "ABABABABABABABABABAB",
    "ABABABABA",
    "ABABAABAB",
    "ABBABBABBABB",
    "ABBABAAB",
]
BLOCKS = ["AAAABBBB", "AABBAABB", "AABBBBAA", "ABAABBAB", "ABABABABBBBBBBBB", "BBBBBBBBABABABAB", "ABABABABBB"]


@pytest.mark.parametrize("order", [*TURNS, *BLOCKS])
def test_runs_take_turns_or_do_not(order: str) -> None:
    """Nothing but a drift would be significant in the others."""
    sides = ([index for index, side in enumerate(order) if side == name] for name in "AB")
    assert interleaved(*sides) is (order in TURNS)
    assert not interleaved([1, 3, 5, None], [2, 4, 6, 8])


# ------------------------------------------------------------------------------------------------------------ the page


@pytest.mark.parametrize(("name", "sides"), [("two_sides", RANKS), ("three_sides", (*RANKS, CPU))])
def test_the_page(name: str, sides: tuple[Path, ...], golden: Callable[[str, str], None]) -> None:
    comparison = opanatomy.compare(*sides)
    golden(f"compare.{name}.80.txt", format_named("terminal").write(comparison, Page(width=80)))
    for format_name, most in (("markdown", 65_536), ("digest", 4096)):
        text = page(comparison, format_name)
        assert all(side.name in text for side in comparison.sides)
        assert "5.45 ms longer" in text or len(sides) > 2
        assert len(text.encode()) <= most
    if len(sides) == 2:
        golden(f"compare.{name}.digest.md", page(comparison, "digest", sides=("before.json", "'the other.json'")))


def test_formats_for_machines_have_each_nanosecond() -> None:
    comparison = opanatomy.compare(*RANKS)
    report = json.loads(page(comparison, "json"))
    assert (report["kind"], report["schema"]) == ("comparison", 3)
    assert sum(part["after_ns"] - part["before_ns"] for part in report["decomposition"]["parts"]) == 5_446_000
    rows = list(csv.DictReader(page(comparison, "csv").splitlines()))
    assert sum(int(row["change_ns"]) for row in rows) == 5_446_000
    figures = csv.DictReader(page(opanatomy.compare(*RANKS, CPU), "csv").splitlines())
    assert [row[RANKS[1].name] for row in figures if row["figure"] == "step_profiled_ns"] == ["19901000"]


@pytest.mark.parametrize(
    ("times", "says"),
    [
        ((10, 10, 10), "The step takes 10.0 ms on all 3 sides."),
        ((10, 10.000_001, 10.000_002), "The step takes 10.0 ms on all 3 sides."),
        ((10, 12, 10.000_001), "The step is shortest on A and C, 10.0 ms, and longest on B, 12.0 ms."),
        ((12, 10, 12, 12, 12), "The step is shortest on B, 10.0 ms, and longest on A, C, D and 1 more, 12.0 ms."),
        ((10, 12, None), "The step is shortest on A, 10.0 ms, and longest on B, 12.0 ms."),
        ((10, 10, None), "The step takes 10.0 ms on all 2 sides whose step time is known."),
    ],
)
def test_sides_that_are_shown_equal_are_called_equal(
    times: tuple[float | None, ...], says: str, on_device: Anatomy
) -> None:
    comparison = opanatomy.compare(
        *(with_step(begun(on_device, index), unprofiled_wall_ns=1) for index in range(len(times)))
    )
    sides = tuple(replace(side, name=name) for side, name in zip(comparison.sides, "ABCDE", strict=False))
    values = tuple(None if time is None else round(time * 1e6) for time in times)
    rows = tuple(replace(row, values=values) if row.name == "step_time_ns" else row for row in comparison.figures)
    text = page(replace(comparison, sides=sides, figures=rows))
    assert says in text.replace("10 ms", "10.0 ms").replace("12 ms", "12.0 ms")


def test_the_digest_counts_ranks_and_runs_where_there_are_several() -> None:
    """As the page does: a single process has no ranks, which are none, not zero."""
    ranks = opanatomy.analyze(list(RANKS))
    digest = page(opanatomy.compare(DLRM, [ranks, begun(ranks, 1)]), "digest")
    first, second = (line for line in digest.splitlines() if line.startswith("- side "))
    assert "rank" not in first.removeprefix(f"- side 1: `{DLRM.name}`")
    assert "run" not in first
    assert second.endswith(", 2 ranks, 2 runs")


# ----------------------------------------------------------------------------------------- which step, and which steps


def test_the_first_sentence_is_about_the_step_without_the_profiler(on_cpu: Anatomy) -> None:
    """The profiled step, which has the parts, is the same on both sides, or goes the other way."""
    plain = on_cpu.step.unprofiled_wall_ns
    assert plain is not None
    text = page(opanatomy.compare(on_cpu, with_step(on_cpu, unprofiled_wall_ns=2 * plain)))
    assert "longer (+100.0 %) without the profiler: " in text
    assert "The profiled step, whose parts follow, takes " in text
    text = page(opanatomy.compare(on_cpu, with_step(on_cpu, unprofiled_wall_ns=plain // 2)))
    assert "shorter (-50.0 %) without the profiler: " in text
    longer = with_step(opanatomy.analyze(TRACES / "bert_checkpointing_amp_cpu.json.gz"), unprofiled_wall_ns=plain // 2)
    comparison = opanatomy.compare(on_cpu, longer)
    assert parts_of(comparison).change_ns > 0
    assert "But the profiled step, whose parts follow, is " in page(comparison)
    assert repr(comparison).endswith("-50.0 %)>")
    without = with_step(on_cpu, unprofiled_wall_ns=None)
    assert "The profiled step takes " in page(opanatomy.compare(on_cpu, without))
    assert "The step takes " in page(opanatomy.compare(without, without))


def test_an_allocators_peak_is_not_compared_with_that_of_the_process(on_cpu: Anatomy) -> None:
    deep = replace(on_cpu, memory=replace(on_cpu.memory, peak_bytes=4_000_000, allocator_peak_bytes=4_000_000))
    comparison = opanatomy.compare(on_cpu, deep)
    names = [row.name for row in comparison.figures]
    assert ("peak_memory_bytes" in names, "process_peak_bytes" in names) == (False, True)
    assert any("peak memory is that of the allocator on one side" in line for line in comparison.warnings)
    assert figure(opanatomy.compare(deep, begun(deep, 1)), "peak_memory_bytes").values == (4_000_000, 4_000_000)


def test_what_the_profiler_adds_is_no_time_of_the_framework(on_cpu: Anatomy) -> None:
    """The figure is the report's, and the two parts are what no operator explains; one part if a side does not know."""
    known = on_cpu.step.framework_ns, on_cpu.step.profiler_ns
    assert all(known)
    comparison = opanatomy.compare(on_cpu, on_cpu)
    assert figure(comparison, "framework_ns").values == pytest.approx((known[0], known[0]), abs=1)
    parts = {part.cause: part.before_ns for part in parts_of(comparison).parts if not part.cause.is_work}
    assert (parts[Cause.FRAMEWORK], parts[Cause.PROFILER]) == pytest.approx(known, abs=1)
    causes = [part.cause for part in parts_of(opanatomy.compare(on_cpu, with_step(on_cpu, profiler_ns=None))).parts]
    assert (Cause.FRAMEWORK in causes, Cause.PROFILER in causes) == (True, False)
    # An operator within another is called so: a copy inside of a product counts as the product.
    assert on_cpu.breakdown is not None
    inner = {f"{row.operator} in {row.part_of}" for row in on_cpu.operators if row.part_of is not None}
    assert inner
    assert inner <= set(on_cpu.breakdown.operators)


def aside(anatomy: Anatomy, left_out: str | None = None) -> Anatomy:
    """The same, with one more step: set aside among like ones and, if it is left out, in the report as well."""
    breakdown = anatomy.breakdown
    assert breakdown is not None
    (kind,) = breakdown.kinds
    outlier = replace(
        kind.steps[0], number=99, wall_ns=10 * kind.steps[0].wall_ns, set_aside="it contains a pause", left_out=left_out
    )
    return replace(anatomy, step_kinds=(replace(kind.kind, steps=(*kind.steps, outlier)),))


def test_figures_that_no_like_step_has_are_marked_where_steps_are_set_aside(on_device: Anatomy) -> None:
    comparison = opanatomy.compare(aside(on_device), on_device)
    of_all = {row.name for row in comparison.figures if row.all_steps}
    assert {"exposed_memcpy_ns", "communication_ns", "launch_time_ns"} <= of_all
    assert not of_all & {
        "step_time_ns",
        "step_profiled_ns",
        "idle_ns",
        "idle_share",
        "window_ns",
        "exposed_communication_ns",
        "class.communication.time_share",
        "phase.forward.time_ns",
        "peak_memory_bytes",
        "flops",
        "steps",
    }
    (gate,) = opanatomy.compare(aside(on_device), on_device, fail_if="exposed_memcpy > 1s").gates
    assert gate.reason.endswith(", over all steps, including dissimilar ones")
    for other in (aside(on_device, "it contains a pause"), on_device):
        assert not any(row.all_steps for row in opanatomy.compare(other, on_device).figures)
    # Shares are those of the times of the like steps; where no step is set aside they are the report's, too.
    rows, known = {row.name: row.values[0] for row in comparison.figures}, as_public(on_device).metrics()
    assert rows["idle_share"] == pytest.approx(
        (rows["idle_ns"] or 0) / ((rows["window_ns"] or 0) - (rows["outside_ns"] or 0))
    )
    for name in ("idle_share", "exposed_communication_share", "class.communication.time_share", "window_ns"):
        assert rows[name] == pytest.approx(known[name]), name


# -------------------------------------------------------------------------------------------------- of the same work

DEEP: Final = (*LAYER, *LAYER, *LAYER, *LAYER, STEP[-1])
CONV: Final = tuple(("aten::cudnn_convolution", "implicit_convolve_sgemm", [], 50) for _ in range(4))
COMPILED: Final = (MM, (TRITON, TRITON, [], 8), MM, ("triton_poi_fused_add_1", TRITON, [], 8))
#: Less of its time in products: what is fused is most of the work.
EAGER: Final = tuple((*row[:3], 200 if row[0] != "aten::mm" else 20) for row in STEP)
NO_KERNELS: Final = {"kernels": False}
HOST: Final = {"kernels": False, "runtime": False}
WHOLE: Final = {"steps": 30, "annotated": False}


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ((STEP, {}), (STEP, NO_KERNELS), "b.json has no kernels: device work was not recorded"),
        (
            (STEP, NO_KERNELS),
            (STEP, NO_KERNELS),
            "a.json and b.json have no kernels: device work was not recorded",
        ),
        (
            (CONV, HOST),
            (CONV, {}),
            "a.json has only host times: for device work these are launch times",
        ),
        (
            (STEP, HOST),
            (STEP, {}),
            "a.json ran on the CPU but b.json did not, and operator times cannot be compared with kernel times",
        ),
        (
            (STEP, WHOLE),
            (STEP, {"steps": 3}),
            "a.json is an entire trace taken as one step: it makes 30 times as many calls as b.json",
        ),
        # Of five calls the three that are most have twice as many.
        (
            ((MM, ADD), {}),
            ((MM, ADD, ADD), {"annotated": False}),
            "b.json is an entire trace taken as one step: it makes 2 times as many calls as a.json",
        ),
        (
            (STEP, {"annotated": False}),
            (STEP, WHOLE),
            "a step of b.json makes every call 30 times as often as a step of a.json, so it spans 30 iterations",
        ),
        (
            (STEP, {"steps": 2, "annotated": False}),
            (STEP, {"annotated": False}),
            "a step of a.json makes every call 2 times as often as a step of b.json, so it spans 2 iterations",
        ),
        (
            (STEP, {"annotated": False}),
            (STEP, {"steps": 2, "annotated": False}),
            "a step of b.json makes every call 2 times as often as a step of a.json, so it spans 2 iterations",
        ),
        ((STEP, {}), (CONV, {}), "only 0.0 % of the work of a.json is also on the other side: these are different"),
        ((STEP, {}), (CONV, {"model": "b"}), "only 0.0 % of the work of a.json is also on the other side: these"),
        # What is to stay silent.
        ((STEP, {}), (STEP, {"steps": 3}), None),
        ((STEP, {"annotated": False}), (STEP, {}), None),
        ((STEP, {}), (DEEP, {}), None),
        ((STEP, {}), ((*LAYER, *STEP), {}), None),
        ((EAGER, {}), (COMPILED, {}), None),
        ((STEP, {"model": "mine"}), (CONV, {"model": "mine"}), None),
    ],
)
def test_sides_that_are_not_of_the_same_work(before: Any, after: Any, says: str | None, tmp_path: Path) -> None:
    """Said first, with figures and without changes, causes and claims; a gate on a change is unknown."""
    sides = [made(tmp_path, name, work, **options) for name, (work, options) in zip("ab", (before, after), strict=True)]
    comparison = opanatomy.compare(*sides)
    if says is None:
        assert not comparison.not_comparable
        assert comparison.decomposition is not None
        return
    (reason,) = comparison.not_comparable
    assert reason.startswith(says)
    assert comparison.decomposition is None
    assert all(row.p is None and row.ranges is None for row in comparison.figures)
    assert not [name for name in comparison.metrics() if ".change" in name]
    assert figure(comparison, "step_time_ns").values[0] is not None
    with pytest.raises(opanatomy.GateError, match=r"UNKNOWN: time > .5%: the sides cannot be compared: "):
        opanatomy.compare(*sides, fail_if="time > +5%")
    assert f"Not comparable: {reason}. Numbers are only shown side by side: " in page(comparison)
    digest = page(comparison, "digest")
    assert digest.index("- not comparable: ") < digest.index("- side 1: ")
    assert "(+" not in digest
    assert json.loads(page(comparison, "json"))["not_comparable"] == [reason]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": "NVIDIA A100-SXM4-80GB"}, "the devices differ: NVIDIA H100 80GB HBM3, NVIDIA A100-SXM4-80GB"),
        ({"batch": 16}, "the batches differ: 8, 16"),
        ({"model": "other"}, "the models differ: mine, other"),
        ({"sequence_length": 256}, "the sequence lengths differ: 128, 256"),
    ],
)
def test_what_differs_of_sides_that_are_comparable_is_said(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    same: dict[str, Any] = {"batch": 8, "sequence_length": 128, "model": "mine"}
    comparison = opanatomy.compare(
        *(made(tmp_path, name, STEP, **same | more) for name, more in (("a", {}), ("b", options)))
    )
    assert says in comparison.warnings
    assert (comparison.not_comparable, comparison.decomposition is None) == ((), False)


def test_of_several_sides_one_that_is_not_of_the_same_is_said(tmp_path: Path) -> None:
    comparison = opanatomy.compare(*(made(tmp_path, name, STEP, kernels=name != "c") for name in "abc"))
    assert comparison.not_comparable == ("c.json has no kernels: device work was not recorded",)


def test_flops_and_bytes_are_counts_that_need_no_test(tmp_path: Path) -> None:
    """Five runs a side in turns: of times there is a p, of FLOPs and bytes a change."""
    anatomy = made(tmp_path, "a", STEP)
    more = anatomies.with_tables(
        anatomy, classes=tuple(replace(row, flops=row.flops and 2 * row.flops) for row in anatomy.classes)
    )
    sides = [[begun(side, 2 * run + index) for run in range(5)] for index, side in enumerate((anatomy, more))]
    comparison = opanatomy.compare(*sides)
    assert comparison.no_claim is None
    assert {row.name for row in comparison.figures if row.exact} >= {"flops", "bytes", "class.tensor_contraction.flops"}
    row = figure(comparison, "flops")
    assert (row.p, row.ranges, row.change) == (None, None, 1.0)
    assert figure(comparison, "step_time_ns").p is not None
    assert opanatomy.compare(*sides, fail_if="bytes > +0% if significant").gates[0].met
    with pytest.raises(opanatomy.GateError) as caught:
        opanatomy.compare(*sides, fail_if="flops > +50% if significant")
    assert not [word for word in ("significant (p", "chance", "ranges") if word in str(caught.value)]


def test_lower_bounds_are_those_of_the_sides(tmp_path: Path) -> None:
    anatomy = made(tmp_path, "a", STEP)
    comparison = opanatomy.compare(
        *(
            replace(anatomy, device=replace(anatomy.device, mfu=mfu, mfu_covered=covered))
            for mfu, covered in ((0.4, 1.0), (0.369, 0.7))
        )
    )
    row = figure(comparison, "mfu")
    assert (row.values, row.lower_bounds, figure(comparison, "flops").lower_bounds) == ((0.4, 0.369), (False, True), ())
    assert comparison.metrics()["mfu_covered.after"] == 0.7
    assert "≥ 36.9 %" in page(comparison)
    assert "mfu: 40.0 % -> ≥ 36.9 %" in page(comparison, "digest")


def test_the_work_of_like_steps_by_class_and_phase_is_that_of_the_reports() -> None:
    sides = [opanatomy.analyze(TRACES / f"{name}.json.gz") for name in ("bert_cpu", "bert_checkpointing_amp_cpu")]
    figures = {row.name: row.values for row in opanatomy.compare(*sides).figures}
    compared = [name for name in figures if name.startswith(("class.", "phase.")) and name.endswith(".time_ns")]
    assert len(compared) > 6
    for name in compared:
        known = [side.metrics().get(name) for side in sides]
        assert [value for value in figures[name] if value is not None] == [
            value for value in known if value is not None
        ]
