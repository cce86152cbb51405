"""Which steps count, and the figures of one step: means over those that do, so that parts sum to their whole.

A step does not count where other steps' work or a pause is in it, where it does hardly anything, or where it makes
other calls than most.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np

from opanatomy.analysis.intervals import Intervals, union, within
from opanatomy.records.anatomy import Step, StepRow
from opanatomy.records.columns import CallTable, Int64, rows_by_value
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import Capture

#: The phases whose time a step has. One inside another is its own: a closure's forward and backward in the optimizer.
MEASURED: Final = (Phase.BACKWARD, Phase.FORWARD, Phase.OPTIMIZER, Phase.PREFILL, Phase.DECODING)
#: With fewer plain steps it is not known how much they differ among themselves.
_MIN_PLAIN_STEPS = 2
#: Work of other steps that fills more than this part of a step makes its times another step's.
_FOREIGN: Final = 0.01
#: A step that is as many times as long as a like one, and idle for most of the difference, holds a pause.
_PAUSED: Final = 2
#: Steps of other calls are compared for a pause where they do at least this part of the work.
_AS_MUCH: Final = 0.8
#: A step with less than this part of the work of the one with most does hardly anything.
_HARDLY: Final = 0.1
OTHERS_WORK: Final = "other steps' work is in it"
PAUSE: Final = "a pause is in it"
HARDLY_ANY: Final = "hardly any work is in it"
UNLIKE: Final = "it makes other calls"
OTHER_RANKS: Final = "it does not count on another rank"


def kinds_of(step: Int64, name: Int64, signature: Int64, count: int) -> list[list[int]]:
    """Group the steps, by number from 0, that made the same calls; those with most steps first.

    `step`, `name` and `signature` are those of each kernel, on the CPU of each operator call. Where hardly two steps
    have the same arguments (batches of any length) the names alone decide.
    """
    width = int(signature.max(initial=-1)) + 2
    exact = _alike(step, name * width + signature + 1, count)
    if 2 * sum(len(kind) for kind in exact if len(kind) > 1) >= count:
        return exact
    return _alike(step, name, count)


def _alike(step: Int64, call: Int64, count: int) -> list[list[int]]:
    kinds: dict[tuple[bytes, bytes], list[int]] = {}
    calls = {number: call[rows] for number, rows in rows_by_value(step)}
    for number in range(count):
        values, times = np.unique(calls.get(number, call[:0]), return_counts=True)
        kinds.setdefault((values.tobytes(), times.tobytes()), []).append(number)
    return sorted(kinds.values(), key=lambda kind: (-len(kind), kind))


def disturbed(rows: Sequence[StepRow], kinds: Sequence[Sequence[int]]) -> list[str | None]:
    """Say why each step's times are not its own; `None` where they are, which of each kind one step's at least are."""
    reasons: list[str | None] = [None] * len(rows)
    for kind in kinds:
        foreign = [place for place in kind if (rows[place].outside_ns or 0) > _FOREIGN * rows[place].wall_ns]
        if len(foreign) < len(kind):
            for place in foreign:
                reasons[place] = OTHERS_WORK
    clean = [row for row, reason in zip(rows, reasons, strict=True) if reason is None]
    by_work = sorted(clean, key=lambda row: row.kernel_time_ns or 0)
    works = [row.kernel_time_ns or 0 for row in by_work]
    # Of the steps that do at least the work of each the shortest.
    shortest = list(accumulate(reversed(by_work), _shorter))[::-1]
    for kind in kinds:
        like = [place for place in kind if reasons[place] is None]
        own = min((rows[place] for place in like), key=_wall_ns, default=None)
        for place in like:
            as_much = bisect_left(works, _AS_MUCH * (rows[place].kernel_time_ns or 0))
            if _holds_pause(rows[place], own) or _holds_pause(rows[place], shortest[as_much]):
                reasons[place] = PAUSE
    return reasons


def _wall_ns(row: StepRow) -> int:
    return row.wall_ns


def _shorter(one: StepRow, other: StepRow) -> StepRow:
    return one if one.wall_ns <= other.wall_ns else other


def _holds_pause(row: StepRow, other: StepRow | None) -> bool:
    """Tell whether a step is many times as long as one that should be like it, and idle for most of the difference."""
    if other is None or row.wall_ns <= _PAUSED * other.wall_ns:
        return False
    return 2 * (_idle_ns(row) - _idle_ns(other)) > row.wall_ns - other.wall_ns


def _idle_ns(row: StepRow) -> int:
    """The time in which a step did nothing, on the CPU nothing that an operator explains."""
    return row.wall_ns - (row.busy_ns or 0) - (row.outside_ns or 0) - (row.unrecorded_ns or 0)


def why_set_aside(rows: Sequence[StepRow], kinds: Sequence[Sequence[int]]) -> list[str | None]:
    """Say why each step does not count; `None` where it does.

    Besides disturbed steps those that do hardly anything are set aside, and where most make the same calls those that
    make others. Where these have a phase that most lack (every fourth step updates the weights) all count.
    """
    reasons = disturbed(rows, kinds)
    left = [place for place, reason in enumerate(reasons) if reason is None]
    most = max((rows[place].kernel_time_ns or 0 for place in left), default=0)
    for place in left:
        if (rows[place].kernel_time_ns or 0) < _HARDLY * most:
            reasons[place] = HARDLY_ANY
    like = [[place for place in kind if reasons[place] is None] for kind in kinds]
    main = max(like, key=lambda kind: (len(kind), sum(rows[place].wall_ns for place in kind)), default=[])
    others = [place for kind in like for place in kind if kind is not main]
    lacking = {phase for place in others for phase in _phases_of(rows[place])}
    lacking -= {phase for place in main for phase in _phases_of(rows[place])}
    if len(main) > len(others) and not lacking:
        for place in others:
            reasons[place] = UNLIKE
    return reasons


def _phases_of(row: StepRow) -> set[Phase]:
    return {phase for phase in MEASURED if getattr(row, phase_field(phase))}


def mean(values: Sequence[int | None]) -> int | None:
    """The mean, rounded down so that parts never sum to more than their whole; `None` where one is not known."""
    known = [value for value in values if value is not None]
    return sum(known) // len(known) if known and len(known) == len(values) else None


def step_of_rows(rows: tuple[StepRow, ...], capture: Capture | None, *, recording_outside: float = 1.0) -> Step:
    """Figures of one step, the means over those that count, and how far the wall times of these lie apart.

    The time in which the device did other steps' work only is not the step's. On the CPU `recording_outside` of what
    the profiler adds is taken out of the framework's time, never more than that.
    """
    chosen = [row for row in rows if row.set_aside is None]
    walls = [row.wall_ns - (row.outside_ns or 0) for row in chosen]
    plain = without_pauses(capture.unprofiled_step_ns) if capture else []
    wall, plain_wall = mean(walls), mean(plain)
    busy, profiler = mean([row.busy_ns for row in chosen]), _profiler_ns(walls, plain)
    framework = None
    if wall is not None and busy is not None and rows[0].framework_ns is not None:
        profiler = None if profiler is None else min(round(recording_outside * profiler), wall - busy)
        framework = wall - busy - (profiler or 0)
    return Step(
        count=len(chosen), wall_ns=wall, wall_min_ns=min(walls), wall_max_ns=max(walls),
        unprofiled_wall_ns=plain_wall, unprofiled_wall_min_ns=min(plain, default=None),
        unprofiled_wall_max_ns=max(plain, default=None), unprofiled_count=len(plain) or None,
        **{name: mean([getattr(row, name) for row in chosen]) for name in map(phase_field, MEASURED)},
        busy_ns=busy, kernel_time_ns=mean([row.kernel_time_ns for row in chosen]),
        framework_ns=framework, profiler_ns=profiler,
        samples_per_second=_rate(capture, plain_wall or wall),
        steps=rows,
    )  # fmt: skip


def phase_field(phase: Phase) -> str:
    """The field of a step that has the time of a phase."""
    return f"{phase}_ns"


def host_steps(
    steps: Sequence[tuple[int, int]],
    numbers: Sequence[int],
    spans: Sequence[tuple[int, int, Phase]],
    calls: CallTable,
) -> tuple[StepRow, ...]:
    """One row a step on the CPU: its wall time is that of its operators and the framework around them, exactly."""
    begins, ends = (np.array([step[edge] for step in steps], dtype=np.int64) for edge in (0, 1))
    spent = _operator_time(begins, ends, calls)
    phases = _phase_times(begins, ends, spans)
    rows = []
    for index, wall in enumerate((ends - begins).tolist()):
        # Operators of several threads at once sum to more than the time they take together.
        busy = min(spent[index], wall)
        of_phases: dict[str, Any] = {phase_field(phase): times[index] for phase, times in phases.items()}
        rows.append(
            StepRow(
                number=numbers[index] if index < len(numbers) else None, wall_ns=wall, busy_ns=busy,
                kernel_time_ns=spent[index], framework_ns=wall - busy, **of_phases,
            )
        )  # fmt: skip
    return tuple(rows)


def _operator_time(begins: Int64, ends: Int64, calls: CallTable) -> list[int]:
    """The time of the calls that began in each step; what ran between two steps is of none."""
    step = step_of_calls(begins, ends, calls)
    spent = np.zeros(len(begins), dtype=np.int64)
    np.add.at(spent, step[step >= 0], calls.time_ns[step >= 0])
    by_step: list[int] = spent.tolist()
    return by_step


def step_of_calls(begins: Int64, ends: Int64, calls: CallTable) -> Int64:
    """The step in which each call began, -1 where that is between two."""
    return step_at(begins, ends, calls.start_ns)


def step_at(begins: Int64, ends: Int64, times_ns: Int64) -> Int64:
    """The step at each time on the host, -1 between two."""
    step = np.searchsorted(begins, times_ns, side="right") - 1
    return np.where((step >= 0) & (times_ns <= ends[np.maximum(step, 0)]), step, -1)


def _phase_times(begins: Int64, ends: Int64, spans: Sequence[tuple[int, int, Phase]]) -> dict[Phase, list[int]]:
    """Wall time in each step of the phases that have a range."""
    times: dict[Phase, list[int]] = {}
    seen: list[tuple[int, int]] = []
    before = np.zeros(len(begins), dtype=np.int64)
    for phase in MEASURED:
        ranges = [(start, end) for start, end, of in spans if of is phase]
        seen += ranges
        covered = within(_union(seen), begins, ends)
        if ranges:
            times[phase] = (covered - before).tolist()
        before = covered
    return times


def _union(spans: Sequence[tuple[int, int]]) -> Intervals:
    edges = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return union(edges[:, 0], edges[:, 1] - edges[:, 0])


def _profiler_ns(profiled: Sequence[int], plain: Sequence[int]) -> int | None:
    """What the profiler adds to a step; `None` where the steps' own differences hide it, or are not known."""
    if len(plain) < _MIN_PLAIN_STEPS or min(profiled) <= max(plain):
        return None
    return sum(profiled) // len(profiled) - sum(plain) // len(plain)


def without_pauses(plain: Sequence[int]) -> list[int]:
    """The steps without the profiler that are not many times as long as the shortest."""
    return [ns for ns in plain if ns <= _PAUSED * min(plain)]


def _rate(capture: Capture | None, wall_ns: int | None) -> float | None:
    """Samples a second, of all ranks together where that is known."""
    samples = None if capture is None else capture.workload.samples_together or capture.workload.batch
    return samples * 1e9 / wall_ns if samples and wall_ns else None
