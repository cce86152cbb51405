"""Define the records of a comparison of runs, and of the causes of their difference in step time."""

from __future__ import annotations

from enum import auto

from opanatomy.records.anatomy import Better
from opanatomy.records.codec import SCHEMA, Record
from opanatomy.records.experiment import StepFigures, TechniqueRow
from opanatomy.records.taxonomy import OperatorClass, StrEnum

#: A difference with a smaller p-value is significant: of twenty comparisons without effect, about one in six has one.
SIGNIFICANT = 0.01


class Cause(StrEnum):
    """The cause of a part of a difference; all parts sum to the wall time of a step, overlaps being negative."""

    #: Work of the same operator, signature, module, phase and kernel, called as often.
    SAME_CALLS = auto()
    #: The same work, called more or less often.
    MORE_CALLS = auto()
    FEWER_CALLS = auto()
    #: The same work in another phase.
    MOVED = auto()
    ANOTHER_SIGNATURE = auto()
    ANOTHER_KERNEL = auto()
    #: Another operator with the same kernel, signature and phase.
    ANOTHER_OPERATOR = auto()
    NEW = auto()
    GONE = auto()
    #: Two kinds of work at once.
    OVERLAP = auto()
    HOST_IDLE = auto()
    STREAM_IDLE = auto()
    OTHER_IDLE = auto()
    #: Work of other steps.
    OUTSIDE = auto()
    #: Time from launches whose work is missing from the trace to the next recorded work.
    UNRECORDED = auto()
    FRAMEWORK = auto()
    #: The profiler's overhead, if known of both sides.
    PROFILER = auto()

    @property
    def is_work(self) -> bool:
        """Return True if the part is operator work."""
        return self in _WORK


_WORK = frozenset(
    (
        Cause.SAME_CALLS, Cause.MORE_CALLS, Cause.FEWER_CALLS, Cause.MOVED, Cause.ANOTHER_SIGNATURE,
        Cause.ANOTHER_KERNEL, Cause.ANOTHER_OPERATOR, Cause.NEW, Cause.GONE,
    )
)  # fmt: skip


class Work(Record, frozen=True, kw_only=True):
    """The work of a part on one side; if the part consists of several kinds of work, each is named."""

    operators: tuple[str, ...] = ()
    signatures: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    #: Calls of the operator per step; kernels if unknown or if it ran more than one kernel.
    calls: float = 0.0
    #: FLOPs of one call, if its cost is known.
    flops: float | None = None
    bytes: float | None = None


class Part(Record, frozen=True, kw_only=True):
    """A part of a step, before and after, in nanoseconds per step (mean); `change_ns = after_ns - before_ns`.

    The times of an overlap are negative; `pair` names the two kinds of work that overlap.
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
        """Return the part's contribution to the difference."""
        return self.after_ns - self.before_ns


class Sample(Record, frozen=True, kw_only=True):
    """One step, or one run, of one side."""

    label: str
    value: float
    set_aside: str | None = None


class Spread(Record, frozen=True, kw_only=True):
    """A quantity of one side over its samples; `interval`, if given, contains the median with 95 % confidence."""

    median: float
    low: float
    high: float
    count: int
    interval: tuple[float, float] | None = None


class FigureRow(Record, frozen=True, kw_only=True):
    """One quantity on all sides; `None` for a side that lacks it.

    `better` is "lower" or "higher". `all_steps` marks a quantity that is known only for all steps together, including
    other kinds, not for similar steps. `lower_bounds` says for each side whether its value is a lower bound, and
    `at_most` gives the upper limit where that is known; both are empty if no value is a lower bound. `exact` marks
    counts of FLOPs and bytes, in which any change is real. `ranges` is "apart" or "overlapping" if both of two sides
    have several measured samples; `p` is the p-value of a Mann-Whitney test, given if there are enough runs for a
    claim.
    """

    name: str
    unit: str
    better: Better | None
    values: tuple[float | None, ...]
    all_steps: bool = False
    lower_bounds: tuple[bool, ...] = ()
    at_most: tuple[float | None, ...] = ()
    exact: bool = False
    spreads: tuple[Spread | None, ...] = ()
    ranges: str | None = None
    p: float | None = None

    @property
    def change(self) -> float | None:
        """Return the relative change between two sides: after / before - 1."""
        before, after = self.values[0], self.values[-1]
        return None if before is None or after is None or not before else after / before - 1


class Side(Record, frozen=True, kw_only=True):
    """One side of a comparison: its runs, their device, and its similar steps."""

    name: str
    model: str | None
    device: str | None
    software: str | None
    runs: int
    ranks: int
    began_ns: tuple[int | None, ...] = ()
    #: All steps of the compared kind.
    steps: tuple[Sample, ...] = ()


class Decomposition(Record, frozen=True, kw_only=True):
    """The parts of the difference of two steps, which sum to both steps in whole nanoseconds.

    The steps are means over similar steps: `before_steps` and `after_steps` have the numbers of the counted steps,
    `before_count` and `after_count` how many there are on all devices, ranks and runs.
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
        """Return the time after minus the time before."""
        return self.after_ns - self.before_ns


class Kinds(Record, frozen=True, kw_only=True):
    """Steps of another kind that both sides have, and their means."""

    before_steps: tuple[int, ...]
    after_steps: tuple[int, ...]
    before_ns: int
    after_ns: int


class GateResult(Record, frozen=True, kw_only=True):
    """A gate and its outcome; `unknown` if its condition cannot be decided.

    `measured` is the value that the condition tests, a quantity or its change; `reason` says which, with details.
    """

    gate: str
    met: bool
    reason: str
    unknown: bool = False
    measured: str | None = None

    @property
    def line(self) -> str:
        """Return the outcome as one line: `FAILED: time > +5% (is +6.5 %): ...`, likewise for met and unknown gates."""
        verdict = "passed" if self.met else "UNKNOWN" if self.unknown else "FAILED"
        measured = "" if self.measured is None else f" (is {self.measured})"
        return f"{verdict}: {self.gate}{measured}: {self.reason}"


class MemoryChange(Record, frozen=True, kw_only=True):
    """How much of a component one line of the program allocated, at the peaks of two memory snapshots.

    `line` is `None` if no stack was recorded. `line_after` is the line in the second snapshot if it differs but has the
    same function or the same blocks: two scripts, or one that was edited.
    """

    line: str | None
    component: str
    before_bytes: int
    after_bytes: int
    line_after: str | None = None

    @property
    def change_bytes(self) -> int:
        """Return the difference; over all lines these sum to the difference of the peaks."""
        return self.after_bytes - self.before_bytes


class Comparison(Record, frozen=True, kw_only=True, tag_field="kind", tag="comparison"):
    """Two or more runs next to each other: their numbers, and for two runs the causes of the difference in step time.

    not_comparable: why the sides cannot be compared; the comparison then has no changes, causes or claims.
    sides: the compared sides, in the order in which they were given.
    figures: each quantity on all sides; `None` for a side that lacks it.
    decomposition: for two sides, the parts that sum to the difference; `None` for more than two, or if it is unknown.
    other_kinds: steps of other kinds than the compared one that both sides have.
    peak_parts: for two memory snapshots, the parts that sum to the difference of their peaks.
    peak_moments: the moment of these parts on each side, such as "at the end", if one of them is not the peak.
    no_claim: why significance was not tested; `None` if the runs allow it.
    clock_change: the SM clock of the second side over that of the first, minus 1, if they differ by more than 2 %: this
        alone changes kernel times.
    gates: the gates given by `fail_if`, and their outcomes.
    warnings: what a reader must know about the numbers.
    schema: the version of the JSON report.
    """

    not_comparable: tuple[str, ...] = ()
    sides: tuple[Side, ...]
    figures: tuple[FigureRow, ...]
    decomposition: Decomposition | None = None
    other_kinds: tuple[Kinds, ...] = ()
    peak_parts: tuple[MemoryChange, ...] = ()
    peak_moments: tuple[str, ...] = ()
    no_claim: str | None = None
    clock_change: float | None = None
    gates: tuple[GateResult, ...] = ()
    warnings: tuple[str, ...] = ()
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        for row in self.figures:
            for name in ("values", "lower_bounds", "at_most", "spreads"):
                count = len(getattr(row, name))
                if count != len(self.sides) and (count or name == "values"):
                    raise ValueError(f"`{name}` of {row.name} has {count} values for {len(self.sides)} sides")
        if self.decomposition is not None and len(self.sides) != 2:
            raise ValueError(f"`decomposition` requires two sides, but there are {len(self.sides)}")


# --- differences and noise of technique runs ---


#: A memory prediction with a larger error disagrees; a time prediction disagrees if the measured time is out of its
#: range.
MEMORY_AGREES = 0.02


def figures_of(row: TechniqueRow) -> StepFigures | None:
    """Return the measured figures, or the predicted ones if nothing was measured."""
    return row.measured if row.measured is not None else row.predicted


def within_noise(one: StepFigures, other: StepFigures) -> bool:
    """Return True if the ranges of the repetitions overlap, or the machine was busy."""
    if one.busy or other.busy:
        return True
    if one.low_ns is None or one.high_ns is None or other.low_ns is None or other.high_ns is None:
        return False
    return one.low_ns <= other.high_ns and other.low_ns <= one.high_ns


def memory_error(row: TechniqueRow) -> float | None:
    """Return predicted / measured peak - 1."""
    if row.predicted is None or row.measured is None or not row.measured.peak_bytes:
        return None
    return None if row.predicted.peak_bytes is None else row.predicted.peak_bytes / row.measured.peak_bytes - 1


def time_error(row: TechniqueRow, baseline: TechniqueRow) -> float | None:
    """Return predicted / measured change of the time - 1; dividing by the baseline cancels machine drift."""
    predicted, measured = row.predicted, row.measured
    if predicted is None or measured is None or not measured.step_ns or predicted.step_ns is None:
        return None
    theirs = baseline.measured
    begun = baseline.predicted.step_ns if baseline.predicted is not None else None
    if theirs is None or not theirs.step_ns or not begun:
        return None
    return (predicted.step_ns / begun) / (measured.step_ns / theirs.step_ns) - 1


def time_agrees(row: TechniqueRow, baseline: TechniqueRow) -> bool | None:
    """Return True if the measured time, relative to the baseline's, is within the predicted range."""
    predicted, error = row.predicted, time_error(row, baseline)
    if error is None or error <= -1 or predicted is None or predicted.low_ns is None or predicted.high_ns is None:
        return None
    assert predicted.step_ns is not None
    measured = predicted.step_ns / (1 + error)
    return predicted.low_ns <= measured <= predicted.high_ns


def peaks_differ(predicted: int | None, measured: int | None) -> bool:
    """Return True if a predicted peak is off by more than 2 % of the measured one; False if either is unknown."""
    if predicted is None or not measured:
        return False
    return abs(predicted / measured - 1) > MEMORY_AGREES


def memory_agrees(row: TechniqueRow) -> bool | None:
    """Return True if the predicted peak is within 2 % of the measured one."""
    error = memory_error(row)
    return None if error is None else abs(error) <= MEMORY_AGREES
