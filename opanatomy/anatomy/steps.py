"""The figures of one step: all of them from the same steps, the one in the middle by wall time (or the two).

Medians taken figure by figure do not add up: of three steps of 100, 100 and 300 ns the median is 100 ns and the mean of
their forward and backward may be 167. The middle step's parts sum to that step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, TypeVar

import numpy as np

from opanatomy.anatomy.intervals import Intervals, union, within
from opanatomy.records.anatomy import Step, StepRow
from opanatomy.records.columns import CallTable, Int64
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import Capture

#: The phases whose time a step has. One inside another is its own: a closure's forward and backward in the optimizer.
MEASURED: Final = (Phase.BACKWARD, Phase.FORWARD, Phase.OPTIMIZER, Phase.PREFILL, Phase.DECODING)
#: With fewer plain steps it is not known how much they differ among themselves.
_MIN_PLAIN_STEPS = 2

Item = TypeVar("Item")


def middle(items: Sequence[Item], wall_ns: Callable[[Item], int]) -> list[Item]:
    """The item in the middle by wall time; the two in the middle of an even number."""
    ordered = sorted(items, key=wall_ns)
    return ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]


def mean(values: Sequence[int | None]) -> int | None:
    """The mean, rounded down so that parts never sum to more than their whole; `None` where one is not known."""
    known = [value for value in values if value is not None]
    return sum(known) // len(known) if known and len(known) == len(values) else None


def step_of_rows(rows: tuple[StepRow, ...], capture: Capture | None, *, recording_outside: float = 1.0) -> Step:
    """Figures of one step, those of the middle step, and how far the wall times of all of them lie apart.

    On the CPU `recording_outside` of what the profiler adds is taken out of the framework's time, never more than that.
    """
    walls = [row.wall_ns for row in rows]
    chosen = middle(rows, lambda row: row.wall_ns)
    plain = list(capture.unprofiled_step_ns) if capture else []
    wall, plain_wall = mean([row.wall_ns for row in chosen]), _median(plain)
    busy, profiler = mean([row.busy_ns for row in chosen]), _profiler_ns(walls, plain)
    framework = None
    if wall is not None and busy is not None and rows[0].framework_ns is not None:
        profiler = None if profiler is None else min(round(recording_outside * profiler), wall - busy)
        framework = wall - busy - (profiler or 0)
    return Step(
        count=len(rows), wall_ns=wall, wall_min_ns=min(walls), wall_max_ns=max(walls),
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
        rows.append(
            StepRow(
                number=numbers[index] if index < len(numbers) else None, wall_ns=wall, busy_ns=busy,
                kernel_time_ns=spent[index], framework_ns=wall - busy,
                **{phase_field(phase): times[index] for phase, times in phases.items()},
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
    step = np.searchsorted(begins, calls.start_ns, side="right") - 1
    return np.where((step >= 0) & (calls.start_ns <= ends[np.maximum(step, 0)]), step, -1)


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
    return int(median(profiled)) - int(median(plain))


def _median(values: Sequence[int]) -> int | None:
    return int(median(values)) if values else None


def _rate(capture: Capture | None, wall_ns: int | None) -> float | None:
    """Samples a second, of all ranks together where that is known."""
    samples = None if capture is None else capture.workload.samples_together or capture.workload.batch
    return samples * 1e9 / wall_ns if samples and wall_ns else None
