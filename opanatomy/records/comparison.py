"""Two runs or more side by side, and where the difference of the step time between two comes from."""

from __future__ import annotations

from enum import auto
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from opanatomy.records.anatomy import Better, Breakdown, LikeStep, Overlap, StepKind, WorkRow
from opanatomy.records.codec import Record
from opanatomy.records.experiment import StepFigures, TechniqueRow
from opanatomy.records.taxonomy import OperatorClass, StrEnum

COMPARISON_SCHEMA = 1
#: A difference with a smaller p is called significant.
SIGNIFICANT = 0.05


class Cause(StrEnum):
    """The cause of a part of a difference: the wall time of a step is the sum of all parts, overlaps being negative."""

    #: Work of the same operator, signature, module, phase and kernel, as often.
    SAME_CALLS = auto()
    #: The same, more or less often.
    MORE_CALLS = auto()
    FEWER_CALLS = auto()
    #: The same in another phase.
    MOVED = auto()
    ANOTHER_SIGNATURE = auto()
    ANOTHER_KERNEL = auto()
    #: The same kernel, signature and phase.
    ANOTHER_OPERATOR = auto()
    NEW = auto()
    GONE = auto()
    #: Two kinds of work at once.
    OVERLAP = auto()
    HOST_IDLE = auto()
    STREAM_IDLE = auto()
    OTHER_IDLE = auto()
    #: The work of other steps.
    OUTSIDE = auto()
    #: From launches whose work is not in the trace to the next work that is.
    UNRECORDED = auto()
    FRAMEWORK = auto()
    #: What the profiler adds, where that is known of both sides.
    PROFILER = auto()

    @property
    def is_work(self) -> bool:
        """Whether it is of operators."""
        return self in _WORK


_WORK = frozenset(
    (
        Cause.SAME_CALLS, Cause.MORE_CALLS, Cause.FEWER_CALLS, Cause.MOVED, Cause.ANOTHER_SIGNATURE,
        Cause.ANOTHER_KERNEL, Cause.ANOTHER_OPERATOR, Cause.NEW, Cause.GONE,
    )
)  # fmt: skip


class Work(Record, frozen=True, kw_only=True):
    """What a part of the work was on one side; where it was several things, each of them is named."""

    operators: tuple[str, ...] = ()
    signatures: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    #: A step's calls of the operator, kernels where that is not known or not of one kernel alone.
    calls: float = 0.0
    #: Of one call, where its cost is known.
    flops: float | None = None
    bytes: float | None = None


class Part(Record, frozen=True, kw_only=True):
    """A part of a step, before and after, in nanoseconds of the mean step; `change_ns = after_ns - before_ns`.

    Of an overlap the times are negative, `pair` says what overlaps.
    """

    cause: Cause
    before_ns: int
    after_ns: int
    operator_class: OperatorClass | None = None
    pair: tuple[str, str] | None = None
    before: Work | None = None
    after: Work | None = None

    @property
    def change_ns(self) -> int:
        """What it adds to the difference."""
        return self.after_ns - self.before_ns


class Sample(Record, frozen=True, kw_only=True):
    """One step of one side, or one run of it."""

    label: str
    value: float
    set_aside: str | None = None


class Spread(Record, frozen=True, kw_only=True):
    """A figure of one side over its samples. With `interval` the median has that range with 95 % confidence."""

    median: float
    low: float
    high: float
    count: int
    interval: tuple[float, float] | None = None


class FigureRow(Record, frozen=True, kw_only=True):
    """One figure on all sides; `None` where a side does not have it.

    `better` is "lower" or "higher". `all_steps` marks a figure that a like step does not have by itself, where steps
    of other kinds count too: it is of all of them. `lower_bounds` says of each side whether the figure is no
    less than its value; empty where none is. `exact` marks counts of FLOPs and bytes: any change of them is one.
    `ranges` is "apart" or "overlapping" where both of two sides have several samples of what is measured; `p` is that
    of a Mann-Whitney test, where there are runs enough to claim something.
    """

    name: str
    unit: str
    better: Better | None
    values: tuple[float | None, ...]
    all_steps: bool = False
    lower_bounds: tuple[bool, ...] = ()
    exact: bool = False
    spreads: tuple[Spread | None, ...] = ()
    ranges: str | None = None
    p: float | None = None

    @property
    def change(self) -> float | None:
        """Of two sides: after over before, less one."""
        before, after = self.values[0], self.values[-1]
        return None if before is None or after is None or not before else after / before - 1


class Side(Record, frozen=True, kw_only=True):
    """One side of a comparison: its runs, what they ran on, and its like steps."""

    name: str
    model: str | None
    device: str | None
    software: str | None
    runs: int
    ranks: int
    began_ns: tuple[int | None, ...] = ()
    #: All steps of the kind that is compared.
    steps: tuple[Sample, ...] = ()


class Decomposition(Record, frozen=True, kw_only=True):
    """Where the difference of two steps comes from; the parts sum to both, in whole nanoseconds.

    The steps are the means over like steps: `before_steps` and `after_steps` have the numbers of those that count,
    `before_count` and `after_count` how many that are on all devices, ranks and runs.
    """

    before_ns: int
    after_ns: int
    before_count: int
    after_count: int
    before_steps: tuple[int, ...]
    after_steps: tuple[int, ...]
    parts: tuple[Part, ...]

    @property
    def change_ns(self) -> int:
        """After less before."""
        return self.after_ns - self.before_ns


class Kinds(Record, frozen=True, kw_only=True):
    """Steps of another kind, of which both sides have some, and their means."""

    before_steps: tuple[int, ...]
    after_steps: tuple[int, ...]
    before_ns: int
    after_ns: int


class GateResult(Record, frozen=True, kw_only=True):
    """A gate and whether it was met; `unknown` where it was not as its condition cannot be decided.

    `measured` is what its condition is about, the figure or its change; `reason` says which figure, and the rest.
    """

    gate: str
    met: bool
    reason: str
    unknown: bool = False
    measured: str | None = None

    @property
    def line(self) -> str:
        """`FAILED: time > +5% (is +6.5 %): ...`; of a gate that was met and of one that is unknown the same."""
        verdict = "passed" if self.met else "UNKNOWN" if self.unknown else "FAILED"
        measured = "" if self.measured is None else f" (is {self.measured})"
        return f"{verdict}: {self.gate}{measured}: {self.reason}"


class Comparison(Record, frozen=True, kw_only=True):
    """Sides next to each other: the figures of all of them, and of two where the difference of the step comes from.

    not_comparable: why the sides are not of the same, if they are not: there are no changes, causes and claims then.
    sides: what is compared, in the order in which it was given.
    figures: each figure on all sides; `None` where a side does not have it.
    decomposition: of two sides the parts that sum to the difference; `None` of more, and where it is not known.
    other_kinds: steps of other kinds than those that are compared, of which both sides have some.
    no_claim: why nothing is called significant; `None` where the runs allow it.
    gates: what was asked for with `fail_if`, and whether it was met.
    warnings: what a reader must know of the figures.
    comparison_schema: the version of the JSON report.
    """

    not_comparable: tuple[str, ...] = ()
    sides: tuple[Side, ...]
    figures: tuple[FigureRow, ...]
    decomposition: Decomposition | None = None
    other_kinds: tuple[Kinds, ...] = ()
    no_claim: str | None = None
    gates: tuple[GateResult, ...] = ()
    warnings: tuple[str, ...] = ()
    comparison_schema: int = COMPARISON_SCHEMA


# How far two runs are apart, and whether that is more than the noise.


#: A prediction of memory that is off by more disagrees; one of time where the measured time is out of its range.
MEMORY_AGREES = 0.02


def figures_of(row: TechniqueRow) -> StepFigures | None:
    """The measured figures, those of the prediction where nothing was measured."""
    return row.measured if row.measured is not None else row.predicted


def within_noise(one: StepFigures, other: StepFigures) -> bool:
    """Whether the ranges of the repetitions overlap."""
    if one.low_ns is None or one.high_ns is None or other.low_ns is None or other.high_ns is None:
        return False
    return one.low_ns <= other.high_ns and other.low_ns <= one.high_ns


def memory_error(row: TechniqueRow) -> float | None:
    """Predicted over measured peak, less one."""
    if row.predicted is None or row.measured is None or not row.measured.peak_bytes:
        return None
    return None if row.predicted.peak_bytes is None else row.predicted.peak_bytes / row.measured.peak_bytes - 1


def time_error(row: TechniqueRow, baseline: TechniqueRow) -> float | None:
    """Predicted over measured change of the time, less one: the machine's drift since the baseline's capture is out."""
    predicted, measured = row.predicted, row.measured
    if predicted is None or measured is None or not measured.step_ns or predicted.step_ns is None:
        return None
    theirs = baseline.measured
    begun = baseline.predicted.step_ns if baseline.predicted is not None else None
    if theirs is None or not theirs.step_ns or not begun:
        return None
    return (predicted.step_ns / begun) / (measured.step_ns / theirs.step_ns) - 1


def time_agrees(row: TechniqueRow, baseline: TechniqueRow) -> bool | None:
    """Whether the measured time, in parts of the baseline's, is within the predicted range."""
    predicted, error = row.predicted, time_error(row, baseline)
    if error is None or predicted is None or predicted.low_ns is None or predicted.high_ns is None:
        return None
    assert predicted.step_ns is not None
    measured = predicted.step_ns / (1 + error)
    return predicted.low_ns <= measured <= predicted.high_ns


def peaks_differ(predicted: int | None, measured: int | None) -> bool:
    """Whether a predicted peak is off by more than 2 % of the measured; not where one is not known."""
    if predicted is None or not measured:
        return False
    return abs(predicted / measured - 1) > MEMORY_AGREES


def memory_agrees(row: TechniqueRow) -> bool | None:
    """Whether the predicted peak is within 2 % of the measured."""
    error = memory_error(row)
    return None if error is None else abs(error) <= MEMORY_AGREES


# The breakdowns of several ranks or runs, taken one at a time -> that of their steps together.


_SUMS: Final = (
    "count", "wall_ns", "outside_ns", "unrecorded_ns", "host_idle_ns", "stream_idle_ns", "other_idle_ns",
    "framework_ns",
)  # fmt: skip


class _Kind(Struct):
    """The sums of the steps of one kind; work by the texts of its names."""

    steps: list[LikeStep] = field(default_factory=list)
    sums: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_SUMS, 0))
    overlaps: dict[tuple[str, str], int] = field(default_factory=dict)
    work: dict[tuple[Any, ...], list[int]] = field(default_factory=dict)


class BreakdownSums:
    """Steps are of one kind where they have the same numbers in all that are added."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[int, ...], _Kind] = {}

    def add(self, breakdown: Breakdown | None, *, rank: int | None = None, run: int | None = None) -> None:
        """Take one more; its steps are those of this rank or run."""
        if breakdown is None:
            return
        for kind in breakdown.kinds:
            known = self._kinds.setdefault(kind.numbers, _Kind())
            known.steps += [
                replace(step, rank=step.rank if rank is None else rank, run=step.run if run is None else run)
                for step in kind.steps
            ]
            for name in _SUMS:
                known.sums[name] += getattr(kind, name)
            for overlap in kind.overlaps:
                pair = overlap.first, overlap.second
                known.overlaps[pair] = known.overlaps.get(pair, 0) + overlap.time_ns
            _add_rows(known.work, breakdown, kind)

    def breakdown(self) -> Breakdown | None:
        """The sums, whatever the order in which they came; `None` where nothing was added."""
        if not self._kinds:
            return None
        names: tuple[dict[Any, int], ...] = ({}, {}, {}, {})
        kinds = [
            StepKind(
                steps=tuple(sorted(kind.steps, key=_place)), **kind.sums, rows=_rows(kind, names),
                overlaps=tuple(
                    Overlap(first=first, second=second, time_ns=time)
                    for (first, second), time in sorted(kind.overlaps.items())
                ),
            )
            for _, kind in sorted(self._kinds.items())
        ]  # fmt: skip
        operators, signatures, modules, kernels = map(tuple, names)
        return Breakdown(
            operators=operators, signatures=signatures, modules=modules, kernels=kernels,
            kinds=tuple(sorted(kinds, key=lambda kind: (-kind.count, -kind.wall_ns))),
        )  # fmt: skip


def _add_rows(work: dict[tuple[Any, ...], list[int]], breakdown: Breakdown, kind: StepKind) -> None:
    texts = (breakdown.operators, breakdown.signatures, breakdown.modules, breakdown.kernels)
    for row in kind.rows:
        named = (
            None if number < 0 else text[number]
            for text, number in zip(texts, (row.operator, row.signature, row.module, row.kernel), strict=True)
        )
        sums = work.setdefault((*named, row.phase, row.operator_class), [0, 0, 0])
        for place, value in enumerate((row.calls, row.events, row.time_ns)):
            sums[place] += value


def _rows(kind: _Kind, names: tuple[dict[Any, int], ...]) -> tuple[WorkRow, ...]:
    rows = []
    ordered = sorted(kind.work.items(), key=lambda item: (-item[1][2], *(str(part) for part in item[0])))
    for (*texts, phase, operator_class), sums in ordered:
        operator, signature, module, kernel = (
            -1 if text is None else known.setdefault(text, len(known)) for known, text in zip(names, texts, strict=True)
        )
        rows.append(WorkRow(operator, signature, module, phase, operator_class, kernel, *sums))
    return tuple(rows)


def _place(step: LikeStep) -> tuple[int, ...]:
    return tuple(-1 if part is None else part for part in (step.run, step.rank, step.device, step.number))
