"""Sides of a comparison -> their figures, where the difference between two comes from, and what can be claimed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Final

from msgspec.structs import replace

from opanatomy.comparison.kinds import paired
from opanatomy.comparison.matching import unsigned_operators
from opanatomy.comparison.parts import Stepped, costs_of, decomposed
from opanatomy.comparison.runs import (
    counted_once,
    not_comparable,
    on_two_sides,
    timed_otherwise,
    unlike_runs,
    unlike_work,
)
from opanatomy.comparison.sides import RunInput, SideInput
from opanatomy.comparison.statistics import RUNS_NEEDED, interleaved, mann_whitney, ranges_of, spread_of
from opanatomy.records.breakdown import Breakdown, LikeStep, StepKind
from opanatomy.records.breakdown_sums import BreakdownSums
from opanatomy.records.compared import Comparison, Decomposition, FigureRow, Kinds, Sample, Side
from opanatomy.records.metric import Metric
from opanatomy.records.taxonomy import OperatorClass, Phase

_TIME, _PROFILED = "step_time_ns", "step_profiled_ns"
_PLAIN: Final = "step_unprofiled_ns"
#: Units of figures that depend on which steps they are of, and the figures that are of steps without the profiler.
_OF_TIME: Final = frozenset({"ns", "fraction", "ratio"})
_WITHOUT_PROFILER: Final = ("step_unprofiled", "first_token", "token", "texts.", "mfu_covered")
_PROFILER: Final = "profiler_ns"
#: What `_PEAK` is: the first of these that a run has; older reports do not say.
_PEAK: Final = "peak_memory_bytes"
_PEAKS: Final = ("allocator_peak_bytes", "process_peak_bytes")
#: The figures that each like step has, and where.
_OF_STEP: Final = {
    _PROFILED: "wall_ns", "idle_ns": "idle_ns", "exposed_communication_ns": "exposed_communication_ns",
    "forward_time_ns": "forward_ns", "backward_time_ns": "backward_ns", "optimizer_time_ns": "optimizer_ns",
}  # fmt: skip


def compared(sides: Sequence[SideInput]) -> Comparison:
    """The sides next to each other; of two what makes their difference. Copies of a run count as one.

    Of sides that cannot be compared there are the figures alone.
    """
    sides, copies = counted_once(sides)
    shared = on_two_sides(sides)
    breakdowns = [_breakdown(side) for side in sides]
    kinds = _kinds(breakdowns)
    decomposition: Decomposition | None = None
    others: tuple[Kinds, ...] = ()
    reasons, questions = list(not_comparable(sides, breakdowns)), []
    if len(sides) == 2 and kinds is not None and not reasons:
        decomposition, others = _decomposition(sides, breakdowns, kinds)
        little, other_models = unlike_work(sides, decomposition)
        if little is not None and other_models:
            reasons, decomposition, others = [f"{little}: these are other models"], None, ()
        elif little is not None:
            questions = [f"{little}: is it the same model?"]
    chosen: list[StepKind | None] = list(kinds[0]) if kinds else [_most(breakdown) for breakdown in breakdowns]
    no_claim = _no_claim(sides, independent=not shared)
    return Comparison(
        not_comparable=tuple(reasons),
        sides=tuple(_side(side, kind) for side, kind in zip(sides, chosen, strict=True)),
        figures=_figures(sides, chosen, claims=no_claim is None, comparable=not reasons),
        decomposition=decomposition, other_kinds=others, no_claim=no_claim,
        warnings=(
            *copies, *shared, *(text for side in sides for text in unlike_runs(side)),
            *(() if reasons else timed_otherwise(sides)), *_warnings(sides, breakdowns), *_left_out(sides, chosen),
            *_unsigned(breakdowns, kinds if decomposition is not None else None), *questions,
        ),
    )  # fmt: skip


def _breakdown(side: SideInput) -> Breakdown | None:
    """The breakdown of all runs of a side together."""
    if len(side.runs) == 1:
        return side.runs[0].anatomy.breakdown
    sums = BreakdownSums()
    for place, run in enumerate(side.runs):
        sums.add(run.anatomy.breakdown, run=place)
    return sums.breakdown()


def _kinds(breakdowns: Sequence[Breakdown | None]) -> list[tuple[StepKind, ...]] | None:
    """The pairs of kinds of two sides, those to compare first."""
    if len(breakdowns) != 2 or breakdowns[0] is None or breakdowns[1] is None:
        return None
    pairs: list[tuple[StepKind, ...]] = list(paired(breakdowns[0], breakdowns[1]))
    return pairs or None


def _most(breakdown: Breakdown | None) -> StepKind | None:
    return breakdown.kinds[0] if breakdown is not None and breakdown.kinds else None


def _decomposition(
    sides: Sequence[SideInput], breakdowns: Sequence[Breakdown | None], kinds: Sequence[Sequence[StepKind]]
) -> tuple[Decomposition, tuple[Kinds, ...]]:
    stepped = [
        Stepped(
            breakdown=breakdown, kind=kind,
            costs=costs_of([row for run in side.runs for row in run.anatomy.operators]),
            profiler_ns=_profiler_ns(side),
        )
        for side, breakdown, kind in zip(sides, breakdowns, kinds[0], strict=True)
        if breakdown is not None
    ]  # fmt: skip
    others = tuple(
        Kinds(
            before_steps=first.counted, after_steps=second.counted,
            before_ns=round(first.wall_ns / first.count), after_ns=round(second.wall_ns / second.count),
        )
        for first, second in kinds[1:]
    )  # fmt: skip
    return decomposed(*stepped), others


def _profiler_ns(side: SideInput) -> int | None:
    """What the profiler adds to the mean step of a side; `None` where one of its runs does not know it."""
    each = [run.metrics[_PROFILER].value if _PROFILER in run.metrics else None for run in side.runs]
    known = [value for value in each if value is not None]
    return round(fmean(known)) if len(known) == len(each) else None


# ------------------------------------------------------------------------------------------------------------- a side


def _side(side: SideInput, kind: StepKind | None) -> Side:
    anatomies = [run.anatomy for run in side.runs]
    environment = anatomies[0].environment
    software = ", ".join(filter(None, (_named("torch", environment.torch), _named("CUDA", environment.cuda))))
    return Side(
        name=side.name, model=anatomies[0].workload.model, device=environment.device, software=software or None,
        runs=len(anatomies), ranks=max(len(anatomy.ranks) for anatomy in anatomies),
        began_ns=tuple(anatomy.provenance.begin_unix_ns for anatomy in anatomies),
        steps=() if kind is None else _samples_of(kind),
    )  # fmt: skip


def _named(what: str, version: str | None) -> str | None:
    return None if version is None else f"{what} {version}"


def _samples_of(kind: StepKind) -> tuple[Sample, ...]:
    """Each like step, of several ranks and devices their mean; one that is set aside on any is."""
    samples = []
    for (run, number), steps in _grouped(kind.steps).items():
        label = "-" if number is None else f"{number}"
        aside = next((step.set_aside for step in steps if step.set_aside is not None), None)
        samples.append(
            Sample(
                label=label if run is None else f"{label} of run {run + 1}", set_aside=aside,
                value=fmean(step.wall_ns for step in steps),
            )
        )  # fmt: skip
    return tuple(samples)


def _grouped(steps: Iterable[LikeStep]) -> dict[tuple[int | None, int | None], list[LikeStep]]:
    """The steps of one run and number together: those of its ranks are no samples of their own."""
    groups: dict[tuple[int | None, int | None], list[LikeStep]] = {}
    for step in steps:
        groups.setdefault((step.run, step.number), []).append(step)
    return groups


# ------------------------------------------------------------------------------------------------------------ figures


def _figures(
    sides: Sequence[SideInput], kinds: Sequence[StepKind | None], *, claims: bool, comparable: bool
) -> tuple[FigureRow, ...]:
    samples = [_samples(side, kind) for side, kind in zip(sides, kinds, strict=True)]
    if _unlike_peaks(sides):
        samples = [{name: values for name, values in side.items() if name != _PEAK} for side in samples]
    of_all = {name for side, kind in zip(sides, kinds, strict=True) for name in _of_all_steps(side, kind)}
    names = dict.fromkeys(name for side in samples for name in side)
    units = {name: metric for side in sides for run in side.runs for name, metric in run.metrics.items()}
    rows = (_figure(name, units[name], [side.get(name) for side in samples], claims=claims) for name in names)
    return tuple(
        replace(
            row, all_steps=row.name in of_all, lower_bounds=_lower_bounds(row.name, sides),
            ranges=row.ranges if comparable else None, p=row.p if comparable else None,
        )
        for row in rows
    )  # fmt: skip


def _lower_bounds(name: str, sides: Sequence[SideInput]) -> tuple[bool, ...]:
    """Of which sides a figure is a lower bound, as it is of one of their runs; none where it is of none."""
    known = [[run.metrics[name] for run in side.runs if name in run.metrics] for side in sides]
    bounds = tuple(any(metric.lower_bound for metric in metrics) for metrics in known)
    return bounds if any(bounds) else ()


def _unlike_peaks(sides: Sequence[SideInput]) -> bool:
    """Whether the peak of memory is an allocator's in one run and that of the whole process in another."""
    runs = [run.metrics for side in sides for run in side.runs if _PEAK in run.metrics]
    return len({next((name for name in _PEAKS if name in metrics), None) for metrics in runs} - {None}) > 1


def _of_all_steps(side: SideInput, kind: StepKind | None) -> set[str]:
    """The figures of the profiled steps' time that are of other steps too than those that are compared."""
    names: set[str] = set()
    for run in side.runs:
        kinds = () if run.anatomy.breakdown is None else run.anatomy.breakdown.kinds
        counted = {step.number for kind in kinds for step in kind.steps if step.left_out is None}
        if kind is None or counted == {step.number for step in kind.steps if step.set_aside is None}:
            continue
        of_like = _of_like_steps(run, kind.numbers)
        names |= {
            name
            for name, metric in run.metrics.items()
            if metric.unit in _OF_TIME and name not in of_like and not name.startswith(_WITHOUT_PROFILER)
        }
    return names


def _samples(side: SideInput, kind: StepKind | None) -> dict[str, list[float]]:
    """The values of each figure: one a run; of one run those of its like steps, where a step has them."""
    each = [_of_run(run, None if kind is None else kind.numbers) for run in side.runs]
    if len(each) == 1:
        return each[0]
    return {name: [fmean(run[name]) for run in each] for name in each[0] if all(name in run for run in each)}


def _of_run(run: RunInput, numbers: tuple[int, ...] | None) -> dict[str, list[float]]:
    """The figures of a run, those of its like steps in place of the ones of all its steps."""
    return {**{name: [float(metric.value)] for name, metric in run.metrics.items()}, **_of_like_steps(run, numbers)}


def _of_like_steps(run: RunInput, numbers: tuple[int, ...] | None) -> dict[str, list[float]]:
    """The figures of a run's steps of this kind, those that are set aside left out."""
    kinds = () if run.anatomy.breakdown is None else run.anatomy.breakdown.kinds
    kind = next((kind for kind in kinds if kind.numbers == numbers), None)
    return {} if kind is None else _of_steps(kind, run.metrics)


def _of_steps(kind: StepKind, known: Mapping[str, Metric]) -> dict[str, list[float]]:
    steps = list(_grouped(step for step in kind.steps if step.set_aside is None).values())
    columns: dict[str, list[float]] = {}
    for name, field in _OF_STEP.items():
        times = [[getattr(step, field) for step in each] for each in steps]
        if not any(None in each for each in times):
            columns[name] = [fmean(each) for each in times]
    if _PLAIN not in known:
        columns[_TIME] = columns[_PROFILED]
    profiler = known[_PROFILER].value if _PROFILER in known else 0
    sums = _sums(kind, round(profiler * kind.count))
    columns = {**{name: [time / kind.count] for name, time in sums.items()}, **columns}
    columns.update({name: [share] for name, share in _shares(kind, sums).items()})
    return {name: column for name, column in columns.items() if name in known}


def _sums(kind: StepKind, profiler_ns: int) -> dict[str, int]:
    """The sums over the steps that count, of figures that a step does not have by itself.

    `profiler_ns` is what the profiler adds to them, which is no time of the framework.
    """
    classes = {f"class.{item}.time_ns": 0 for item in OperatorClass} | {f"phase.{item}.time_ns": 0 for item in Phase}
    for row in kind.rows:
        classes[f"class.{row.operator_class}.time_ns"] += row.time_ns
        classes[f"phase.{row.phase}.time_ns"] += row.time_ns
    work = sum(row.time_ns for row in kind.rows)
    return {
        **{name: getattr(kind, name) for name in ("outside_ns", "host_idle_ns", "stream_idle_ns", "other_idle_ns")},
        **classes, "kernel_time_ns": work, "busy_ns": work - sum(overlap.time_ns for overlap in kind.overlaps),
        "idle_ns": kind.host_idle_ns + kind.stream_idle_ns + kind.other_idle_ns, "window_ns": kind.wall_ns,
        "framework_ns": max(kind.framework_ns - profiler_ns, 0),
    }  # fmt: skip


def _shares(kind: StepKind, sums: Mapping[str, int]) -> dict[str, float]:
    """The shares that metrics have, of these sums: of the steps without other steps' work, of all work, of the step."""
    own, work = kind.wall_ns - kind.outside_ns, sums["kernel_time_ns"]
    exposed = [step.exposed_communication_ns for step in kind.steps if step.set_aside is None]
    shares = {"idle_share": (sums["idle_ns"], own), "framework_share": (sums["framework_ns"], kind.wall_ns)}
    if None not in exposed:
        shares["exposed_communication_share"] = (sum(filter(None, exposed)), own)
    for item in OperatorClass:
        shares[f"class.{item}.time_share"] = (sums[f"class.{item}.time_ns"], work)
    return {name: part / whole for name, (part, whole) in shares.items() if whole}


def _figure(name: str, metric: Metric, samples: Sequence[Sequence[float] | None], *, claims: bool) -> FigureRow:
    """The mean of a run's steps or of the runs; where something can be claimed of the runs, their median."""
    values = [None if not each else (median(each) if claims else fmean(each)) for each in samples]
    row = FigureRow(name=name, unit=metric.unit, better=metric.better, values=tuple(values), exact=metric.exact)
    if not any(each is not None and len(each) > 1 for each in samples):
        return row
    spreads = tuple(None if not each else spread_of(each) for each in samples)
    row = replace(row, spreads=spreads)
    if (
        row.exact
        or len(samples) != 2
        or spreads[0] is None
        or spreads[1] is None
        or samples[0] is None
        or samples[1] is None
    ):
        return row
    several = min(len(each) for each in samples if each is not None) > 1
    return replace(
        row, ranges=ranges_of(spreads[0], spreads[1]) if several else None,
        p=mann_whitney(samples[0], samples[1]) if claims else None,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- claims


def _no_claim(sides: Sequence[SideInput], *, independent: bool) -> str | None:
    """Why nothing is called significant; `None` where the runs allow it."""
    if len(sides) != 2:
        return "only two sides are tested"
    fewest = min(len(side.runs) for side in sides)
    if fewest < RUNS_NEEDED:
        return f"{RUNS_NEEDED} runs a side are needed, interleaved: steps of one run are not independent"
    if not independent:
        return "a run is on both sides: they are not independent"
    began = [[run.anatomy.provenance.begin_unix_ns for run in side.runs] for side in sides]
    if not interleaved(*began):
        return "the runs were not interleaved: a drift of the machine is a difference as well"
    return None


def _left_out(sides: Sequence[SideInput], kinds: Sequence[StepKind | None]) -> Iterable[str]:
    """Which runs and ranks have no step among those whose parts are compared: theirs have other numbers."""
    for side, kind in zip(sides, kinds, strict=True):
        if kind is None:
            continue
        ranks = max(len(run.anatomy.ranks) for run in side.runs)
        for what, count, have in (
            ("runs", len(side.runs), {step.run for step in kind.steps}),
            ("ranks", ranks, {step.rank for step in kind.steps}),
        ):
            if 1 < count > len(have):
                yield f"{side.name}: the parts are of {len(have)} of {count} {what}, the others have no like steps"


def _unsigned(breakdowns: Sequence[Breakdown | None], kinds: Sequence[Sequence[StepKind]] | None) -> Iterable[str]:
    """What is matched with less than it should be: a trace without shapes against one with them."""
    if kinds is None:
        return
    sides = [(each, kind) for each, kind in zip(breakdowns, kinds[0], strict=True) if each is not None]
    if count := len(unsigned_operators(*sides)):
        what = "operator has" if count == 1 else "operators have"
        yield f"{count} {what} shapes on one side alone: their calls are matched without them"


def _warnings(sides: Sequence[SideInput], breakdowns: Sequence[Breakdown | None]) -> tuple[str, ...]:
    lines = []
    for what, values in (
        ("devices", [side.runs[0].anatomy.environment.device for side in sides]),
        ("torch releases", [side.runs[0].anatomy.environment.torch for side in sides]),
        ("models", [side.runs[0].anatomy.workload.model for side in sides]),
        ("batches", [side.runs[0].anatomy.workload.batch for side in sides]),
        ("sequence lengths", [side.runs[0].anatomy.workload.sequence_length for side in sides]),
    ):
        known = [f"{value}" for value in values if value]
        if len(set(known)) > 1:
            lines.append(f"the {what} differ: {', '.join(dict.fromkeys(known))}")
    if _unlike_peaks(sides):
        lines.append("the peak of memory is an allocator's on one side and the whole process's on the other")
    for side, breakdown in zip(sides, breakdowns, strict=True):
        if breakdown is None:
            lines.append(f"{side.name} was written by an older opanatomy: where its time went is not in it")
    return tuple(lines)
