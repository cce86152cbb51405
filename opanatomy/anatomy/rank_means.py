"""The steps, timelines and device figures of several ranks -> those of all of them together; their spread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Final

from msgspec.structs import replace

from opanatomy.anatomy.row_sums import FRACTION, WHOLE, merged, same, sum_of
from opanatomy.anatomy.steps import mean
from opanatomy.records.anatomy import Step
from opanatomy.records.device import DeviceFigures
from opanatomy.records.ranks import Rank, Spread
from opanatomy.records.taxonomy import IdleCause
from opanatomy.records.timeline import IdleRow, Launching, Timeline

#: The figures whose spread is given, `Rank.a_step` of each.
FIGURES: Final = ("step", "own", "busy", "kernel_time", "communication", "exposed_communication", "idle")


def step_over(records: Sequence[Step]) -> Step:
    """The mean over the ranks, so that parts add up."""
    means: dict[Any, Callable[[list[Any]], Any]] = dict.fromkeys(WHOLE, mean)
    means |= dict.fromkeys(FRACTION, _mean_fraction)
    step: Step = merged([replace(record, steps=()) for record in records], means)
    framework = step.framework_ns
    if None not in (framework, step.wall_ns, step.busy_ns):
        framework = (step.wall_ns or 0) - (step.busy_ns or 0) - (step.profiler_ns or 0)
    return replace(
        step, count=sum(record.count for record in records), framework_ns=framework,
        wall_min_ns=_known(min, [record.wall_min_ns for record in records]),
        wall_max_ns=_known(max, [record.wall_max_ns for record in records]),
        unprofiled_wall_min_ns=_known(min, [record.unprofiled_wall_min_ns for record in records]),
        unprofiled_wall_max_ns=_known(max, [record.unprofiled_wall_max_ns for record in records]),
    )  # fmt: skip


def _known(choose: Callable[[list[int]], int], values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return choose(known) if known else None


def timeline_over(records: Sequence[Timeline]) -> Timeline:
    """Means whose parts add up: what rounding leaves is other idle time."""
    bare = [replace(record, launching=None, devices=(), streams=(), causes=()) for record in records]
    timeline: Timeline = merged(bare, dict.fromkeys(WHOLE, _mean))
    kinds = (timeline.outside_ns, timeline.host_idle_ns, timeline.stream_idle_ns)
    idle = timeline.window_ns - timeline.busy_ns - (timeline.outside_ns or 0) - (timeline.unrecorded_ns or 0)
    other = None if None in kinds else idle - sum(kind or 0 for kind in kinds[1:])
    launching = [record.launching for record in records if record.launching]
    return replace(
        timeline, idle_ns=idle, other_idle_ns=other, causes=_causes([record.causes for record in records], idle),
        kernel_time_ns=sum_of([record.kernel_time_ns for record in records]),
        launching=_launching(launching) if launching else None,
    )  # fmt: skip


def _causes(each: Sequence[Sequence[IdleRow]], idle_ns: int) -> tuple[IdleRow, ...]:
    """The means by cause, named as on the rank with most of it; what rounding leaves is of the longest."""
    rows: dict[IdleCause, list[IdleRow]] = {}
    for row in (row for causes in each for row in causes):
        rows.setdefault(row.cause, []).append(row)
    made = [
        replace(max(found, key=lambda row: row.time_ns), time_ns=sum(row.time_ns for row in found) // len(each))
        for found in rows.values()
    ]
    made.sort(key=lambda row: (-row.time_ns, row.cause))
    if made:
        made[0] = replace(made[0], time_ns=made[0].time_ns + idle_ns - sum(row.time_ns for row in made))
    return tuple(made)


def _launching(records: list[Launching]) -> Launching:
    sums: Launching = merged(records, dict.fromkeys(WHOLE, sum_of))
    return replace(
        sums, median_delay_ns=_median([record.median_delay_ns for record in records]),
        longest_queue=max(record.longest_queue for record in records), tiny_below_ns=records[0].tiny_below_ns,
    )  # fmt: skip


def figures_over(records: Sequence[DeviceFigures], times: Sequence[int]) -> DeviceFigures:
    """Fractions are means weighted by the times of the steps, the occupancy by that of the kernels it is known of."""

    def weighted(values: list[float | None], weights: Sequence[int]) -> float | None:
        known = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
        whole = sum(weight for _, weight in known)
        return sum(value * weight for value, weight in known) / whole if whole else None

    bandwidth = same([record.bandwidth_bytes_per_second for record in records])
    rules: dict[Any, Callable[[list[Any]], Any]] = dict.fromkeys(WHOLE, sum_of)
    rules[float | None] = lambda values: weighted(values, times)
    figures: DeviceFigures = merged(records, rules)
    return replace(
        figures, bandwidth_bytes_per_second=bandwidth, peak_flops_per_second=figures.peak_flops_per_second or {},
        occupancy=weighted(
            [record.occupancy for record in records], [record.dimensioned_ns or 0 for record in records]
        ),
    )  # fmt: skip


def spread_of(ranks: Sequence[Rank]) -> tuple[Spread, ...]:
    """Each figure of a step over the ranks that all of them have; first the step itself."""
    spreads = []
    for figure in FIGURES:
        known = [time for rank in ranks if (time := rank.a_step(figure)) is not None]
        if len(known) == len(ranks):
            longest = ranks[known.index(max(known))]
            spreads.append(
                Spread(
                    figure=figure, min_ns=min(known), median_ns=int(median(known)), max_ns=max(known),
                    max_rank=longest.rank, max_trace=longest.trace,
                )
            )  # fmt: skip
    return tuple(spreads)


def _median(values: list[Any]) -> Any:
    known = [value for value in values if value is not None]
    return (int(median(known)) if isinstance(known[0], int) else median(known)) if known else None


def _mean_fraction(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _mean(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) // len(known) if known else None
