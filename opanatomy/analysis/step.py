"""Choose the steps that count, and compute the figures of one step: means whose parts sum to their whole.

A step does not count if other steps' work or a pause is in it, if it does hardly anything, or if it makes other calls
than most.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from statistics import median_low
from typing import Final

import numpy as np

from opanatomy.analysis.intervals import union, within
from opanatomy.records.anatomy import Step, StepRow
from opanatomy.records.columns import CallTable, Int64, rows_by_value
from opanatomy.records.taxonomy import STEP_PHASES, IdleCause, Phase
from opanatomy.records.workload import Capture

#: With fewer plain steps it is unknown how much they differ.
_MIN_PLAIN_STEPS = 2
#: If other steps' work fills more than this fraction of a step, its times are not its own.
_FOREIGN: Final = 0.01
#: A step this many times as long as a like one, and idle for most of the difference, holds a pause.
_PAUSED: Final = 2
#: Steps with other calls are compared for a pause if they do at least this part of the work.
_MIN_LIKE_WORK: Final = 0.8
#: A step with less than this part of the work of the largest one does hardly anything.
_MIN_WORK_SHARE: Final = 0.1
OTHERS_WORK: Final = "it contains other steps' work"
PAUSE: Final = "it contains a pause"
HARDLY_ANY: Final = "it contains almost no work"
UNLIKE: Final = "it makes different calls"
OTHER_RANKS: Final = "another rank excludes it"


def kinds_of(step: Int64, name: Int64, signature: Int64, count: int) -> list[list[int]]:
    """Group the steps by the calls they made, numbered from 0, largest group first.

    `step`, `name` and `signature` have an entry per kernel, on the CPU per operator call. If hardly two steps have the
    same arguments (batches of varying length) only names are compared.
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
    """Return why each step is disturbed, `None` if it is not; at least one step of each kind is undisturbed.

    It only counts as a pause if at most half of the steps have it.
    """
    reasons: list[str | None] = [None] * len(rows)
    for kind in kinds:
        foreign = [index for index in kind if (rows[index].outside_ns or 0) > _FOREIGN * rows[index].wall_ns]
        if len(foreign) < len(kind):
            for index in foreign:
                reasons[index] = OTHERS_WORK
    clean = [row for row, reason in zip(rows, reasons, strict=True) if reason is None]
    by_work = sorted(clean, key=lambda row: row.kernel_time_ns or 0)
    works = [row.kernel_time_ns or 0 for row in by_work]
    # For each step, the shortest of those that do at least its work.
    shortest = list(accumulate(reversed(by_work), _shorter))[::-1]
    for kind in kinds:
        like = [index for index in kind if reasons[index] is None]
        own = min((rows[index] for index in like), key=_wall_ns, default=None)
        for index in like:
            as_much = bisect_left(works, _MIN_LIKE_WORK * (rows[index].kernel_time_ns or 0))
            if _holds_pause(rows[index], own) or _holds_pause(rows[index], shortest[as_much]):
                reasons[index] = PAUSE
    if 2 * reasons.count(PAUSE) > len(rows):  # what most steps do is no pause
        reasons = [None if reason == PAUSE else reason for reason in reasons]
    return reasons


def _wall_ns(row: StepRow) -> int:
    return row.wall_ns


def _shorter(one: StepRow, other: StepRow) -> StepRow:
    return one if one.wall_ns <= other.wall_ns else other


def _holds_pause(row: StepRow, other: StepRow | None) -> bool:
    """Return whether a step is many times as long as a like one, and idle for most of the difference."""
    if other is None or row.wall_ns <= _PAUSED * other.wall_ns:
        return False
    return 2 * (_idle_ns(row) - _idle_ns(other)) > row.wall_ns - other.wall_ns


def _idle_ns(row: StepRow) -> int:
    """Return the time in which a step did nothing, on the CPU nothing that an operator explains.

    Waiting for input is the training's own: no pause.
    """
    waited_ns = row.idle_causes.get(IdleCause.INPUT, 0) + (row.loading_ns or 0)
    return row.wall_ns - (row.busy_ns or 0) - (row.outside_ns or 0) - (row.unrecorded_ns or 0) - waited_ns


def why_set_aside(
    rows: Sequence[StepRow], kinds: Sequence[Sequence[int]], *, may_begin_within: bool = False
) -> list[str | None]:
    """Return why each step does not count; `None` if it does.

    Besides disturbed steps those that do hardly anything are set aside (on the CPU if by other calls), and if most make
    the same calls those that make others. If these have a phase that most lack (every fourth step updates the weights)
    all count. If the trace `may_begin_within` the first step, that does not count if it makes other calls and does
    far less work than the others, or more.
    """
    if may_begin_within and [0] in kinds and len(rows) > 1:
        first, *works = (row.kernel_time_ns or 0 for row in rows)
        if first < _MIN_LIKE_WORK * min(works) or max(works) < _MIN_LIKE_WORK * first:
            later = [[index - 1 for index in kind] for kind in kinds if kind != [0]]
            return [UNLIKE, *why_set_aside(rows[1:], later)]
    reasons = disturbed(rows, kinds)
    left = [index for index, reason in enumerate(reasons) if reason is None]
    longest = max(left, key=lambda index: rows[index].kernel_time_ns or 0, default=0)
    kind_of = {index: number for number, kind in enumerate(kinds) for index in kind}
    for index in left:
        # A processor is taken away from an operator, a device from no kernel: then it is the longest that was held up.
        alike = rows[index].framework_ns is not None and kind_of.get(index) == kind_of.get(longest)
        # A step between two rollouts has each phase that one with a rollout has.
        alike |= _phases_of(rows[index]) >= _phases_of(rows[longest]) >= {Phase.BACKWARD}
        if not alike and (rows[index].kernel_time_ns or 0) < _MIN_WORK_SHARE * (rows[longest].kernel_time_ns or 0):
            reasons[index] = HARDLY_ANY
    like = [[index for index in kind if reasons[index] is None] for kind in kinds]
    main = max(like, key=lambda kind: (len(kind), sum(rows[index].wall_ns for index in kind)), default=[])
    others = [index for kind in like for index in kind if kind is not main]
    lacking = {phase for index in others for phase in _phases_of(rows[index])}
    lacking -= {phase for index in main for phase in _phases_of(rows[index])}
    if len(main) > len(others) and not lacking:
        for index in others:
            reasons[index] = UNLIKE
    return reasons


def _phases_of(row: StepRow) -> set[Phase]:
    return {phase for phase, time_ns in row.phase_ns.items() if time_ns}


def mean(values: Sequence[int | None]) -> int | None:
    """Return the mean, rounded down so that parts never sum to more than their whole; `None` if one is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) // len(known) if known and len(known) == len(values) else None


def step_of_rows(rows: tuple[StepRow, ...], capture: Capture | None, *, recording_outside: float = 1.0) -> Step:
    """Return one step as means over the counted steps, and the range of their wall times.

    Time in which the device did only other steps' work is excluded. On the CPU the fraction `recording_outside` of the
    profiler overhead is subtracted from framework time, at most all of it.
    """
    chosen, aside = [row for row in rows if row.set_aside is None], [row for row in rows if row.set_aside is not None]
    walls = [row.wall_ns - (row.outside_ns or 0) for row in chosen]
    plain = without_pauses(capture.unprofiled_step_ns) if capture else []
    used = [use for use in capture.unprofiled_system if use.page_faults] if capture else []
    wall, plain_wall = mean(walls), mean(plain)
    busy = mean([row.busy_ns for row in chosen])
    # What the profiler adds to a step; unknown if the steps' own differences hide it.
    framework = profiler = None
    if len(plain) >= _MIN_PLAIN_STEPS and min(walls) > max(plain):
        profiler = sum(walls) // len(walls) - sum(plain) // len(plain)
    if wall is not None and busy is not None and rows[0].framework_ns is not None:
        profiler = None if profiler is None else min(round(recording_outside * profiler), wall - busy)
        framework = wall - busy - (profiler or 0)
    samples = None if capture is None else capture.workload.samples_together or capture.workload.batch
    timed_ns = plain_wall or wall
    return Step(
        count=len(chosen),
        wall_ns=wall,
        wall_min_ns=min(walls),
        wall_max_ns=max(walls),
        unprofiled_wall_ns=plain_wall,
        unprofiled_wall_min_ns=min(plain, default=None),
        unprofiled_wall_max_ns=max(plain, default=None),
        unprofiled_count=len(plain) or None,
        system_ns=median_low([use.system_ns for use in used]) if used else None,
        page_faults=median_low([use.page_faults for use in used]) if used else None,
        phase_ns=mean_phases([row.phase_ns for row in chosen]),
        busy_ns=busy,
        kernel_time_ns=mean([row.kernel_time_ns for row in chosen]),
        framework_ns=framework,
        profiler_ns=profiler,
        samples_per_second=samples * 1e9 / timed_ns if samples and timed_ns else None,
        aside_count=len(aside),
        aside_wall_ns=mean([row.wall_ns for row in aside]),
        aside_idle_ns=mean_causes([row.idle_causes for row in aside]),
        steps=rows,
    )


def mean_phases(steps: Sequence[dict[Phase, int]]) -> dict[Phase, int]:
    """Return the mean time of each phase that all of the steps have."""
    return {
        phase: sum(step[phase] for step in steps) // len(steps)
        for phase in STEP_PHASES
        if steps and all(phase in step for step in steps)
    }


def mean_causes(steps: Sequence[dict[IdleCause, int]]) -> dict[IdleCause, int]:
    """Return the mean idle time of each cause that any of the steps has."""
    causes = dict.fromkeys(cause for step in steps for cause in step)
    return {cause: sum(step.get(cause, 0) for step in steps) // len(steps) for cause in causes}


def host_steps(
    steps: Sequence[tuple[int, int]],
    numbers: Sequence[int],
    spans: Sequence[tuple[int, int, Phase]],
    calls: CallTable,
) -> tuple[StepRow, ...]:
    """Return one row per step on the CPU; its wall time is exactly operators plus framework."""
    begins, ends = (np.array([step[edge] for step in steps], dtype=np.int64) for edge in (0, 1))
    # The time of the calls that began in each step; calls between two steps are in none.
    step = step_at(begins, ends, calls.start_ns)
    sums = np.zeros(len(begins), dtype=np.int64)
    np.add.at(sums, step[step >= 0], calls.time_ns[step >= 0])

    # The wall time in each step of the phases that have a range.
    phases: dict[Phase, list[int]] = {}
    seen = np.zeros((0, 2), dtype=np.int64)
    before = np.zeros(len(begins), dtype=np.int64)
    # A nested phase counts for itself: backward in a closure's forward, and both in the optimizer.
    for phase in sorted(STEP_PHASES, key=lambda phase: phase is not Phase.BACKWARD):
        ranges = np.array([(start, end) for start, end, of in spans if of is phase], dtype=np.int64).reshape(-1, 2)
        seen = np.concatenate((seen, ranges))
        covered = within(union(seen[:, 0], seen[:, 1] - seen[:, 0]), begins, ends)
        if len(ranges):
            phases[phase] = (covered - before).tolist()
        before = covered
    rows = []
    for index, (wall, spent) in enumerate(zip((ends - begins).tolist(), sums.tolist(), strict=True)):
        # Operators of several threads at once sum to more than the time they take together.
        busy = min(spent, wall)
        rows.append(
            StepRow(
                number=numbers[index] if index < len(numbers) else None,
                wall_ns=wall,
                busy_ns=busy,
                kernel_time_ns=spent,
                framework_ns=wall - busy,
                phase_ns={phase: times[index] for phase, times in phases.items()},
            )
        )
    return tuple(rows)


def step_at(begins: Int64, ends: Int64, times_ns: Int64) -> Int64:
    """Return the step at each time on the host, -1 between two steps."""
    step = np.searchsorted(begins, times_ns, side="right") - 1
    return np.where((step >= 0) & (times_ns <= ends[np.maximum(step, 0)]), step, -1)


def without_pauses(plain: Sequence[int]) -> list[int]:
    """Return the steps without the profiler that are not many times as long as the shortest."""
    return [ns for ns in plain if ns <= _PAUSED * min(plain)]
