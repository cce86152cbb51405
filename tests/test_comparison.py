"""Two steps next to each other: what was planted comes back to the nanosecond, named first; identities and symmetry."""

from __future__ import annotations

import copy
import csv
import gzip
import json
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from msgspec.structs import replace

import opanatomy
from opanatomy.api import comparison_of, held
from opanatomy.pipeline import analyze_trace
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.comparison import Cause, Comparison, Decomposition, Part
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report import read_anatomy
from opanatomy.report.formats import format_named
from opanatomy.report.section import Page
from opanatomy.report.sections.comparison import groups_of
from tests.command import run
from tests.tiny import BERT, TINY

TRACES: Final = Path(__file__).parent / "traces"
SHARED: Final = Path(__file__).parent.parent.parent / "shared" / "more_traces" / "compare"
DLRM: Final = TRACES / "gpu_v100_dlrm_rank0of8.json.gz"
_ON_DEVICE: Final = ("kernel", "gpu_memcpy", "gpu_memset")
Events: TypeAlias = "list[dict[str, Any]]"


def events_of(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return document


def on_device(events: Events) -> Events:
    return sorted((event for event in events if event.get("cat") in _ON_DEVICE), key=lambda event: event["ts"])


def pause(events: Events, at: int, length: int) -> None:
    """Time inserted into all clocks at a moment (us): what runs then lasts longer, what comes later is later."""
    for event in events:
        if "ts" not in event:
            continue
        if event["ts"] > at:
            event["ts"] += length
        elif event.get("ph") == "X" and event["ts"] + event.get("dur", 0) > at:
            event["dur"] += length


def running(events: Events, at: float) -> Events:
    return [event for event in on_device(events) if event["ts"] <= at < event["ts"] + event["dur"]]


def moment(events: Events, wanted: Callable[[Events], bool]) -> int:
    """The middle of the longest time in which what runs on the device is as wanted."""
    bounds = sorted({time for event in on_device(events) for time in (event["ts"], event["ts"] + event["dur"])})
    spans = [
        (end - begin, begin) for begin, end in pairwise(bounds)
        if end - begin > 1 and wanted(running(events, begin))
    ]  # fmt: skip
    length, begin = max(spans)
    return int(begin + length // 2)


def changed(tmp_path: Path, change: Callable[[Events], Any], source: Path = DLRM) -> tuple[Comparison, Any]:
    document = events_of(source)
    planted = change(document["traceEvents"])
    target = tmp_path / "after.json"
    target.write_text(json.dumps(document))
    return comparison_of([source, target]), planted


def parts_of(comparison: Comparison) -> Decomposition:
    """The decomposition, whose sums are the steps and whose exchange is its negative."""
    parts = comparison.decomposition
    assert parts is not None
    assert sum(part.before_ns for part in parts.parts) == parts.before_ns
    assert sum(part.after_ns for part in parts.parts) == parts.after_ns
    return parts


def differing(parts: Decomposition) -> list[Part]:
    return [part for part in parts.parts if part.change_ns]


def first(parts: Decomposition) -> Part:
    """The part that the first sentence of the report is about."""
    return groups_of(parts.parts)[0].parts[0]


@pytest.mark.parametrize("name", ["gemm", "AllReduce", "elementwise"])
def test_time_inside_a_kernel_is_that_of_its_operator(tmp_path: Path, name: str) -> None:
    def plant(events: Events) -> None:
        pause(events, moment(events, lambda work: len(work) == 1 and name in work[0]["name"]), 700)

    parts = parts_of(changed(tmp_path, plant)[0])
    (part,) = differing(parts)
    assert part is first(parts)
    assert (part.cause, part.change_ns, parts.change_ns) == (Cause.SAME_CALLS, 700_000, 700_000)
    assert part.after is not None
    assert any(name in kernel for kernel in part.after.kernels)


def test_time_between_kernels_is_idle(tmp_path: Path) -> None:
    parts = parts_of(changed(tmp_path, lambda events: pause(events, moment(events, lambda work: not work), 700))[0])
    (part,) = differing(parts)
    assert part.cause in (Cause.HOST_IDLE, Cause.STREAM_IDLE, Cause.OTHER_IDLE)
    assert (part.change_ns, parts.change_ns) == (700_000, 700_000)


def test_time_under_two_kernels_is_that_of_both_and_of_their_overlap(tmp_path: Path) -> None:
    def plant(events: Events) -> list[str]:
        at = moment(events, lambda work: len(work) == 2)
        names = sorted(event["name"] for event in running(events, at))
        pause(events, at, 700)
        return names

    comparison, names = changed(tmp_path, plant)
    parts = parts_of(comparison)
    work = [part for part in differing(parts) if part.cause is Cause.SAME_CALLS]
    (overlap,) = [part for part in differing(parts) if part.cause is Cause.OVERLAP]
    assert sorted(kernel for part in work for kernel in (part.after.kernels if part.after else ())) == names
    assert [part.change_ns for part in work] == [700_000, 700_000]
    assert (overlap.pair, overlap.change_ns) == (("compute", "communication"), -700_000)
    assert parts.change_ns == 700_000


def test_calls_that_were_added_are_more_calls(tmp_path: Path) -> None:
    """The device does nothing else meanwhile: the rest of the time that they take is idle."""

    def plant(events: Events) -> int:
        kernel = next(event for event in on_device(events) if "elementwise" in event["name"])
        return again(events, kernel, times=2)

    comparison, planted = changed(tmp_path, plant)
    parts = parts_of(comparison)
    work = [part for part in differing(parts) if part.cause.is_work]
    assert [part.cause for part in work] == [Cause.MORE_CALLS]
    assert sum(part.change_ns for part in work) == 1000 * planted
    assert work[0].after is not None
    assert work[0].after.calls == 2  # behind the last phase, where there were none
    assert parts.change_ns == sum(part.change_ns for part in differing(parts))


def again(events: Events, kernel: dict[str, Any], *, times: int) -> int:
    """The call of a kernel made again behind all others, and what belongs to it; the time that its kernels take."""
    correlation = kernel["args"]["correlation"]
    launch = next(
        event for event in events
        if event.get("cat") == "cuda_runtime" and event["args"].get("correlation") == correlation
    )  # fmt: skip
    operator = max(
        (event for event in events if event.get("cat") == "cpu_op" and event["tid"] == launch["tid"]
         and event["ts"] <= launch["ts"] and event["ts"] + event["dur"] >= launch["ts"] + launch["dur"]),
        key=lambda event: event["ts"],
    )  # fmt: skip
    length = 10 * times * kernel["dur"]
    end = max(event["ts"] + event["dur"] for event in on_device(events))
    step = next(event for event in events if event.get("name", "").startswith("ProfilerStep"))
    at = max(end, step["ts"] + step["dur"]) + 5
    for number in range(times):
        shift = at - operator["ts"] + number * (length // times)
        for event in (operator, launch, kernel):
            made = copy.deepcopy(event)
            made["ts"] = event["ts"] + shift if event is not kernel else at + number * (length // times) + kernel["dur"]
            made["args"]["External id"] = made["args"].get("External id", 0) + 10_000_000 + number
            if "correlation" in made["args"]:
                made["args"]["correlation"] += 10_000_000 + number
            events.append(made)
    step["dur"] = at + length - step["ts"]
    return int(times * kernel["dur"])


def test_enlarged_shapes_are_other_arguments_of_the_same_operator(tmp_path: Path) -> None:
    def plant(events: Events) -> None:
        at = moment(events, lambda work: len(work) == 1 and "gemm" in work[0]["name"])
        (kernel,) = running(events, at)
        launch = next(
            event for event in events
            if event.get("cat") == "cuda_runtime" and event["args"].get("correlation") == kernel["args"]["correlation"]
        )  # fmt: skip
        enlarged = [
            event for event in events
            if event.get("cat") == "cpu_op" and event["ts"] <= launch["ts"] < event["ts"] + event["dur"]
            and event["tid"] == launch["tid"] and event["name"] in ("aten::addmm", "aten::mm", "aten::linear")
        ]  # fmt: skip
        assert enlarged
        for event in enlarged:
            event["args"]["Input Dims"] = [[2 * size for size in dims] for dims in event["args"]["Input Dims"]]
        pause(events, at, 700)

    parts = parts_of(changed(tmp_path, plant)[0])
    assert first(parts).cause is Cause.ANOTHER_SIGNATURE
    assert first(parts).operator_class is OperatorClass.TENSOR_CONTRACTION
    assert parts.change_ns == sum(part.change_ns for part in differing(parts)) == 700_000
    before, after = first(parts).before, first(parts).after
    assert before is not None
    assert after is not None
    assert before.flops is not None
    assert after.flops is not None
    assert after.flops == 8 * before.flops


def test_a_run_with_itself_does_not_differ() -> None:
    comparison = comparison_of([DLRM, DLRM])
    assert not differing(parts_of(comparison))
    assert all(len(set(row.values)) == 1 for row in comparison.figures)
    assert [side.name for side in comparison.sides] == [f"{DLRM.name} (1)", f"{DLRM.name} (2)"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("gpu_v100_dlrm_rank0of8", "gpu_v100_dlrm_rank1of8"),
        ("bert_cpu", "bert_checkpointing_amp_cpu"),
        ("gpu_mi300_graph", "gpu_mi210_device_only"),
        ("gpu_mi250_training", "gpu_v100_resnet_2021"),
        ("gpu_h100_bert_inference_memory", "gpu_v100_resnet_2021"),
    ],
)
def test_exchanged_sides_are_the_negative_part_by_part(before: str, after: str) -> None:
    each = [analyze_trace(TRACES / f"{name}.json.gz") for name in (before, after)]
    anatomies = [replace(one, workload=replace(one.workload, model="one name for both")) for one in each]
    there, back = (parts_of(comparison_of(sides)) for sides in (anatomies, anatomies[::-1]))
    exchanged = {Cause.NEW: Cause.GONE, Cause.GONE: Cause.NEW, Cause.MORE_CALLS: Cause.FEWER_CALLS,
                 Cause.FEWER_CALLS: Cause.MORE_CALLS}  # fmt: skip

    def listed(parts: Decomposition, sign: int) -> list[tuple[str, ...]]:
        return sorted(
            (str(exchanged.get(part.cause, part.cause) if sign < 0 else part.cause), str(part.pair),
             *(str(side) for side in (part.before, part.after)[::sign]), str(sign * part.change_ns))
            for part in parts.parts
        )  # fmt: skip

    assert listed(there, 1) == listed(back, -1)
    assert there.change_ns == -back.change_ns


def test_a_report_is_compared_as_its_trace_is(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text(format_named("json").write(analyze_trace(DLRM), Page()))
    other = TRACES / "gpu_v100_dlrm_rank1of8.json.gz"
    assert comparison_of([report, other]).decomposition == comparison_of([DLRM, other]).decomposition


# ------------------------------------------------------------------------------------------------------ real pairs


def shared(*names: str) -> list[Path]:
    paths = [SHARED / name for name in names]
    if not all(path.exists() for path in paths):
        pytest.skip("the shared traces are not here")
    return paths


def test_a_compiled_gpt_before_and_after() -> None:
    """Published: the gradients' synchronization moved from the optimizer into backward hooks."""
    comparison = comparison_of(
        shared(*(f"train_h100_compile_gpt_rank0of8_{side}.json.gz" for side in ("before", "after")))
    )
    parts = parts_of(comparison)
    assert (parts.before_ns, parts.after_ns, parts.change_ns) == (62_468_395, 61_594_261, -874_134)
    assert parts.before_steps == parts.after_steps == (11, 13)
    groups = groups_of(parts.parts)
    assert groups[0].parts[0].pair == ("compute", "communication")
    assert round(groups[0].change_ns / 1000) == -445
    assert (groups[1].cause, groups[1].operator_class) == (Cause.SAME_CALLS, OperatorClass.TENSOR_CONTRACTION)
    assert groups[1].change_ns == pytest.approx(-399_000, abs=5_000)
    (moved,) = (group for group in groups if group.cause is Cause.MOVED)
    assert moved.change_ns == pytest.approx(20_000, abs=1_000)
    assert moved.after_ns == pytest.approx(2_250_000, abs=10_000)
    assert sum(part.after.calls for part in moved.parts if part.after) == 6  # a step
    (exposed,) = (row for row in comparison.figures if row.name == "exposed_communication_ns")
    assert exposed.ranges == "overlapping"


def test_quantized_communication_on_four_ranks() -> None:
    comparison = comparison_of(shared("train_v100_a2a_plain", "train_v100_a2a_quantized"))
    parts = parts_of(comparison)
    assert (parts.before_steps, parts.after_steps) == ((5, 6), (6,))
    exchanged = [
        part for part in parts.parts
        if part.after and "SendRecv" in "".join(part.after.kernels) and part.after.phases != ("other",)
    ]  # fmt: skip
    assert [part.after.phases for part in exchanged if part.after] == [("forward",), ("backward",)]
    assert all(-6_000_000 < part.change_ns < -3_500_000 for part in exchanged)
    more = sum(part.change_ns for part in parts.parts if part.cause in (Cause.NEW, Cause.MORE_CALLS))
    assert more == pytest.approx(17_000_000, abs=1_500_000)
    assert comparison.no_claim is not None
    assert all(row.ranges is None and row.p is None for row in comparison.figures)


@pytest.fixture(scope="module")
def attentions(tmp_path_factory: pytest.TempPathFactory) -> list[Anatomy]:
    """A tiny BERT with eager and with fused attention."""
    folder = tmp_path_factory.mktemp("attentions")
    settings = [
        word for pair in (*TINY[BERT], ("attention_probs_dropout_prob", "0")) for word in ("--set", "=".join(pair))
    ]
    for kind in ("eager", "sdpa"):
        done = run("profile", BERT, *settings, "--seq", "16", "--batch", "2", "--attention", kind, "--no-trace",
                   "--suggest", "0", "-o", f"{kind}.json", cwd=folder)  # fmt: skip
        assert not done.returncode, done.stderr
    return [read_anatomy((folder / f"{kind}.json").read_bytes()) for kind in ("eager", "sdpa")]


def test_fused_attention_takes_the_place_of_its_operators(attentions: list[Anatomy]) -> None:
    comparison = comparison_of(attentions)
    parts = parts_of(comparison)
    calls: dict[tuple[Cause, str], float] = {}
    for part in parts.parts:
        for side in (part.before, part.after):
            if side is not None and part.cause in (Cause.NEW, Cause.GONE):
                (operator,) = side.operators
                calls[part.cause, operator.removeprefix("aten::")] = calls.get((part.cause, operator), 0) + side.calls
    gone = {name for cause, name in calls if cause is Cause.GONE}
    new = {name for cause, name in calls if cause is Cause.NEW}
    assert {"bmm", "_softmax", "_softmax_backward_data"} <= gone
    fused = "_scaled_dot_product_flash_attention_for_cpu"
    assert {fused, f"{fused}_backward"} <= new
    assert not gone & new & {"bmm", fused}
    figures = {row.name: row.values for row in comparison.figures}
    for what in ("flops", "bytes"):
        by_class = [row.values for name, row in zip(figures, comparison.figures, strict=True)
                    if name.startswith("class.") and name.endswith(f".{what}")]  # fmt: skip
        assert [sum(value or 0 for value in side) for side in zip(*by_class, strict=True)] == list(figures[what])


# -------------------------------------------------------------------------------------------------------------- Python


def test_a_comparison_in_python() -> None:
    before, after = (opanatomy.analyze(TRACES / f"gpu_v100_dlrm_rank{rank}of8.json.gz") for rank in (0, 1))
    comparison = opanatomy.compare(before, after)
    assert repr(comparison) == (
        "<Comparison of gpu_v100_dlrm_rank0of8.json.gz against gpu_v100_dlrm_rank1of8.json.gz: step 14.5 ms to 19.9 ms,"
        " +5.45 ms (+37.7 %)>"
    )
    plain = comparison.to_dict()
    parts = plain["decomposition"]["parts"]
    assert sum(part["after_ns"] - part["before_ns"] for part in parts) == 5_446_000
    assert comparison == opanatomy.compare(before, after)
    assert hash(comparison) == hash(opanatomy.compare(before, after))
    assert "5.45 ms longer" in comparison._repr_html_()
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


def begun(anatomy: Anatomy, place: int) -> Anatomy:
    """The run as if it had begun at another time."""
    return replace(anatomy, provenance=replace(anatomy.provenance, begin_unix_ns=place))


def in_turns(anatomy: Anatomy, runs: int) -> list[list[Anatomy]]:
    return [[begun(anatomy, 2 * place + side) for place in range(runs)] for side in (0, 1)]


@pytest.mark.parametrize("digest", [True, False])
def test_copies_of_a_run_count_as_one(tmp_path: Path, digest: bool) -> None:
    """By the digest of the trace; of ranks, whose report has none, by all that it says."""
    before, after = (
        [run if digest else replace(run, provenance=replace(run.provenance, trace_sha256=None)) for run in runs]
        for runs in in_turns(analyze_trace(DLRM), 4)
    )
    assert opanatomy.compare(before, after).no_claim is None
    copied = opanatomy.compare([before[0], before[1], before[2], before[2], before[1], before[2]], after)
    assert [side.runs for side in copied.sides] == [3, 4]
    assert copied.no_claim is not None
    assert copied.warnings == (
        f"{DLRM.name} (1): run 5 is the same run as run 2, counted once",
        f"{DLRM.name} (1): run 4 and run 6 are the same run as run 3, counted once",
    )
    for place, anatomy in enumerate((before[0], before[1], before[0]), 1):
        held(anatomy).to_json(tmp_path / f"run-{place}.report.json")
    (of_files,) = opanatomy.compare(tmp_path, after).warnings
    assert of_files.endswith(": run-3.report.json is the same run as run-1.report.json, counted once")


def test_a_run_on_both_sides_allows_no_claim() -> None:
    before, after = in_turns(analyze_trace(DLRM), 5)
    comparison = opanatomy.compare(before, [*after[:4], before[3]])
    assert comparison.no_claim == "a run is on both sides: they are not independent"
    assert all(row.p is None for row in comparison.figures)
    (warning,) = comparison.warnings
    assert warning == f"run 4 of {DLRM.name} (1) and run 5 of {DLRM.name} (2) are the same run"
    (warning,) = opanatomy.compare(before, before).warnings
    assert warning.endswith("are the same run, and so are 4 more")
    (warning,) = opanatomy.compare(before[0], after[0], before[0]).warnings
    assert warning == f"{DLRM.name} (1) and {DLRM.name} (3) are the same run"


def test_runs_of_a_side_that_differ_are_named() -> None:
    """Which run differs from the others, and in what; FLOPs by more than 1 %."""
    before, after = in_turns(analyze_trace(DLRM), 4)
    assert not opanatomy.compare(before, after).warnings
    workload = replace(before[0].workload, model="gpt2", batch=8, sequence_length=128)
    same = [replace(run, workload=workload) for run in before]
    device = replace(same[1].environment, device="another")
    other = replace(same[1], workload=replace(workload, model="gpt2-xl", batch=16), environment=device)
    (warning,) = opanatomy.compare([same[0], other, *same[2:]], after).warnings
    name = f"{DLRM.name} (1)"
    assert warning == (
        f"{name}: run 2 differs from the other runs in the model (gpt2-xl, not gpt2), the batch (16, not 8) and the"
        f" device (another, not {same[0].environment.device})"
    )
    lengths = [replace(run, workload=replace(workload, sequence_length=length)) for run, length in
               zip(before, (128, 128, 256, 512), strict=True)]  # fmt: skip
    (warning,) = opanatomy.compare(lengths, after).warnings
    assert warning == f"{name}: run 3 and run 4 differ from the other runs in the sequence length (256, 512, not 128)"


@pytest.mark.parametrize(("factor", "said"), [(1.005, False), (1.5, True)])
def test_runs_of_a_side_that_do_another_amount_of_work_are_named(factor: float, said: bool) -> None:
    before, after = in_turns(analyze_trace(DLRM), 4)
    more = tuple(
        replace(row, flops=None if row.flops is None else round(factor * row.flops)) for row in before[3].classes
    )
    warnings = opanatomy.compare([*before[:3], replace(before[3], classes=more)], after).warnings
    assert len(warnings) == said
    assert all("run 4 differs from the other runs in the FLOPs of a step (" in text for text in warnings)


def timed(anatomy: Anatomy, *, plain: bool) -> Anatomy:
    """The run with its step timed without the profiler as well, or not."""
    step = replace(
        anatomy.step, unprofiled_wall_ns=10_000_000 if plain else None, unprofiled_count=1 if plain else None
    )
    return replace(anatomy, step=step)


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        ([[False], [False]], None),
        ([[True], [True], [True]], None),
        ([[True], [False]], "{name} (2); without it: {name} (1)"),
        ([[True], [False], [False]], "{name} (2) and {name} (3); without it: {name} (1)"),
        ([[True, False], [True, True]], "1 of 2 runs of {name} (1); without it: 1 of 2 runs of {name} (1)"
                                        " and {name} (2)"),
        ([[True, False], [True, False]], "1 of 2 runs of {name} (1) and 1 of 2 runs of {name} (2); without it: 1 of 2"
                                         " runs of {name} (1) and 1 of 2 runs of {name} (2)"),
    ],
)  # fmt: skip
def test_sides_that_are_timed_in_other_ways_are_said(plain: list[list[bool]], says: str | None) -> None:
    anatomy, place, sides = analyze_trace(DLRM), count(), []
    for side in plain:
        sides.append([timed(begun(anatomy, next(place)), plain=each) for each in side])
    warnings = opanatomy.compare(*sides).warnings
    if says is None:
        assert not warnings
    else:
        named = says.format(name=DLRM.name)
        assert warnings == (
            f"timed under the profiler alone: {named}; so the step times cannot be compared - use the figure profiled",
        )


def test_runs_whose_steps_have_other_numbers_are_missed_aloud() -> None:
    """The parts are of steps with the same numbers: runs that lack them are not in the mean, and that is said."""
    before, after = (opanatomy.analyze(path) for path in RANKS)
    breakdown = after.breakdown
    assert breakdown is not None
    (kind,) = breakdown.kinds
    renumbered = replace(kind, steps=tuple(replace(step, number=99) for step in kind.steps))
    again = begun(after, 1)
    other = replace(again, breakdown=replace(breakdown, kinds=(renumbered,)))
    assert not opanatomy.compare(before, [after, again]).warnings
    (warning,) = opanatomy.compare(before, [after, other]).warnings
    assert "the parts are of 1 of 2 runs" in warning


def test_redacted_sides_have_numbers_for_names() -> None:
    comparison = opanatomy.compare(*RANKS, redact=True)
    assert [side.name for side in comparison.sides] == ["side 1", "side 2"]
    assert comparison.decomposition == opanatomy.compare(*RANKS).decomposition


def test_reports_of_an_older_release_have_figures_alone() -> None:
    """They do not have what their time was made of: that is said, and the figures are compared."""
    before, after = (replace(opanatomy.analyze(path), breakdown=None) for path in RANKS)
    comparison = opanatomy.compare(before, after)
    assert comparison.decomposition is None
    assert all("older opanatomy" in text for text in comparison.warnings)
    assert "14.5 ms before and 19.7 ms after (+36.3 %)" in format_named("terminal").write(comparison, Page())


def test_several_runs_a_side_that_took_turns_are_tested() -> None:
    """Four runs each, the slower side 700 us longer in each: p is that of two of the 70 ways to divide eight."""
    anatomy = analyze_trace(DLRM)

    def run_of(place: int, more_us: int) -> Anatomy:
        longer = anatomy.step.wall_ns or 0
        step = replace(anatomy.step, unprofiled_wall_ns=longer + 1000 * (more_us + place), unprofiled_count=1)
        began = replace(anatomy.provenance, begin_unix_ns=place)
        return replace(anatomy, step=step, provenance=began)

    turns = [run_of(2 * place, 0) for place in range(4)], [run_of(2 * place + 1, 700) for place in range(4)]
    comparison = opanatomy.compare(*turns)
    assert comparison.no_claim is None
    (row,) = (row for row in comparison.figures if row.name == "step_time_ns")
    assert row.p == pytest.approx(2 / 70)
    assert (row.values[1] or 0) - (row.values[0] or 0) == 701_000
    assert (comparison.sides[0].runs, row.ranges) == (4, "apart")
    blocks = [run_of(place, 0) for place in range(4)], [run_of(4 + place, 700) for place in range(4)]
    in_blocks = opanatomy.compare(*blocks)
    assert in_blocks.no_claim is not None
    assert all(row.p is None for row in in_blocks.figures)


# ------------------------------------------------------------------------------------------------------------ the page


CPU: Final = TRACES / "bert_cpu.json.gz"
RANKS: Final = tuple(TRACES / f"gpu_v100_dlrm_rank{rank}of8.json.gz" for rank in (0, 1))


@pytest.mark.parametrize(("name", "sides"), [("two_sides", RANKS), ("three_sides", (*RANKS, CPU))])
def test_the_page(name: str, sides: tuple[Path, ...], golden: Callable[[str, str], None]) -> None:
    comparison = comparison_of(sides)
    pages = [format_named("terminal").write(comparison, Page(width=width)) for width in (80, 120)]
    assert all(len(line) <= width for page, width in zip(pages, (80, 120), strict=True) for line in page.splitlines())
    golden(f"compare.{name}.80.txt", pages[0])


@pytest.mark.parametrize("name", ["markdown", "digest"])
def test_formats_for_people(name: str) -> None:
    for sides in (RANKS, (*RANKS, RANKS[0])):
        comparison = comparison_of(sides)
        text = format_named(name).write(comparison, Page())
        assert all(side.name in text for side in comparison.sides)
        assert "5.45 ms longer" in text or len(sides) > 2
        assert len(text.encode()) <= (4096 if name == "digest" else 65_536)


@pytest.mark.parametrize(
    ("times", "says"),
    [
        ((10, 10, 10), "The step takes 10 ms on all 3 sides."),
        ((10, 10.000_001, 10.000_002), "The step takes 10 ms on all 3 sides."),
        ((10, 12, 10.000_001), "The step is shortest on A and C, 10 ms, and longest on B, 12 ms."),
        ((12, 10, 12, 12, 12), "The step is shortest on B, 10 ms, and longest on A, C, D and 1 more, 12 ms."),
    ],
)
def test_sides_that_are_shown_equal_are_called_equal(times: tuple[float, ...], says: str) -> None:
    anatomy = analyze_trace(DLRM)
    sides = [
        replace(begun(anatomy, place), step=replace(anatomy.step, unprofiled_wall_ns=round(time * 1e6)))
        for place, time in enumerate(times)
    ]
    comparison = opanatomy.compare(*sides)
    named = tuple(replace(side, name=name) for side, name in zip(comparison.sides, "ABCDE", strict=False))
    page = format_named("terminal").write(replace(comparison, sides=named), Page(width=120))
    assert says in page.replace("10.0 ms", "10 ms").replace("12.0 ms", "12 ms")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ((10e6, 12e6, None), "The step is shortest on A, 10.0 ms, and longest on B, 12.0 ms."),
        ((10e6, 10e6, None), "The step takes 10.0 ms on all 2 sides that have its time."),
    ],
)
def test_of_several_sides_those_without_a_time_are_not_counted(values: tuple[float | None, ...], says: str) -> None:
    anatomy = analyze_trace(DLRM)
    comparison = opanatomy.compare(*(begun(anatomy, place) for place in range(3)))
    named = tuple(replace(side, name=name) for side, name in zip(comparison.sides, "ABC", strict=True))
    rows = tuple(replace(row, values=values) if row.name == "step_time_ns" else row for row in comparison.figures)
    page = format_named("terminal").write(replace(comparison, sides=named, figures=rows), Page(width=120))
    assert says in page


def test_the_digest_counts_ranks_and_runs_where_there_are_several() -> None:
    """As the page does: a single process has no ranks, which are none, not zero."""
    single = analyze_trace(DLRM)
    ranks = opanatomy.analyze(list(RANKS))
    digest = format_named("digest").write(opanatomy.compare(single, [ranks, begun(ranks, 1)]), Page())
    first, second = (line for line in digest.splitlines() if line.startswith("- side "))
    assert "rank" not in first.removeprefix(f"- side 1: `{DLRM.name}`")
    assert "run" not in first
    assert second.endswith(", 2 ranks, 2 runs")


def test_formats_for_machines_have_each_nanosecond() -> None:
    comparison = comparison_of(RANKS)
    report = json.loads(format_named("json").write(comparison, Page()))
    assert report["comparison_schema"] == 1
    assert sum(part["after_ns"] - part["before_ns"] for part in report["decomposition"]["parts"]) == 5_446_000
    rows = list(csv.DictReader(format_named("csv").write(comparison, Page()).splitlines()))
    assert sum(int(row["change_ns"]) for row in rows) == 5_446_000
    figures = csv.DictReader(format_named("csv").write(comparison_of((*RANKS, CPU)), Page()).splitlines())
    assert [row[RANKS[1].name] for row in figures if row["figure"] == "step_profiled_ns"] == ["19901000"]


def test_sides_with_little_in_common_are_said() -> None:
    """Another model on the other side is a mistake of the reader's more often than what he asks about."""
    sides = [analyze_trace(path) for path in (TRACES / "gpu_v100_resnet_2021.json.gz", RANKS[0])]
    (reason,) = comparison_of(sides).not_comparable
    assert reason.endswith(f"% of the work of {RANKS[0].name} is on the other side too: these are other models")
    named = comparison_of([replace(side, workload=replace(side.workload, model="mine")) for side in sides])
    assert not named.not_comparable
    (devices, question) = named.warnings
    assert devices.startswith("the devices differ: ")
    assert question.endswith(f"% of the work of {RANKS[0].name} is on the other side too: is it the same model?")
    assert not comparison_of(RANKS).warnings
