"""The anatomies of several ranks -> one over all of them, with a row for each and the spread between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from statistics import median
from typing import Any, Final, TypeVar

from msgspec.structs import fields, replace

from opanatomy.anatomy.build import check_conservation
from opanatomy.anatomy.collectives import World, merged_collectives
from opanatomy.anatomy.ratios import ratios_of
from opanatomy.anatomy.steps import mean, middle
from opanatomy.anatomy.unlike import Candidate, unlike_warnings, why_no_ranks
from opanatomy.errors import UsageError
from opanatomy.records.anatomy import Anatomy, ClassRow, KernelRow, ModuleRow, OperatorRow, Provenance, Ratio, Step
from opanatomy.records.checks import Check
from opanatomy.records.device import DeviceFigures
from opanatomy.records.ranks import Rank, Spread
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.timeline import Launching, Ledger, Timeline
from opanatomy.records.workload import Environment, Workload

_NUMBERED: Final = re.compile(r"(?:rank|worker|gpu)[-_. ]?(\d+)", re.IGNORECASE)
#: The figures whose spread is given, `Rank.a_step` of each.
FIGURES: Final = ("step", "own", "busy", "kernel_time", "communication", "exposed_communication", "idle")
_THEORY: Final = ("theory_flops", "theory_bytes")
_WHOLE: Final = (int, int | None)
_FRACTION: Final = (float, float | None)
_CLASS_ORDER: Final = {name: place for place, name in enumerate(OperatorClass)}
_PHASE_ORDER: Final = {name: place for place, name in enumerate(Phase)}

Row = TypeVar("Row", ClassRow, OperatorRow, KernelRow, ModuleRow)
Record = TypeVar("Record", Ledger, Launching, Step, Timeline, DeviceFigures, Environment)


# ------------------------------------------------------------------------------------------------------- one rank


def world_of(metadata: Mapping[str, object]) -> World:
    """What a trace's `distributedInfo` says of the ranks."""
    distributed = metadata.get("distributedInfo")
    size = _number(distributed, "world_size")
    return World(size if size else None, _number(distributed, "pg_count") == 1)


def with_rank(anatomy: Anatomy, metadata: Mapping[str, object]) -> Anatomy:
    """The anatomy of one trace with the rank that the trace says it is of, if it says one."""
    rank = _number(metadata.get("distributedInfo"), "rank")
    if rank is None:
        return anatomy
    return replace(anatomy, ranks=(_row(anatomy, rank, world_of(metadata).size),))


def _number(distributed: object, key: str) -> int | None:
    value = distributed.get(key) if isinstance(distributed, dict) else None
    if isinstance(value, str) and value.isdecimal() and len(value) < 14:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40 else None


def _row(anatomy: Anatomy, rank: int | None, world: int | None) -> Rank:
    step, timeline = anatomy.step, anatomy.timeline
    return Rank(
        rank=rank, world_size=world, trace=anatomy.provenance.trace, trace_sha256=anatomy.provenance.trace_sha256,
        device=anatomy.environment.device, steps=step.count, wall_ns=step.wall_ns, window_ns=timeline.window_ns,
        busy_ns=timeline.busy_ns, idle_ns=timeline.idle_ns, kernel_time_ns=sum(row.time_ns for row in anatomy.classes),
        communication_ns=timeline.communication_ns, exposed_communication_ns=timeline.exposed_communication_ns,
        exposed_memcpy_ns=timeline.exposed_memcpy_ns,
    )  # fmt: skip


def _candidate(anatomy: Anatomy) -> Candidate:
    """A trace among others: where it does not say its rank, its file's name may."""
    if anatomy.ranks:
        return Candidate(anatomy.ranks[0], anatomy, stated=True)
    numbers = _NUMBERED.findall(anatomy.provenance.trace or "")
    return Candidate(_row(anatomy, int(numbers[-1]) if numbers else None, None), anatomy, stated=False)


# -------------------------------------------------------------------------------------------------------- together


def over_ranks(anatomies: Sequence[Anatomy], *, name: str, warnings: Iterable[str] = ()) -> Anatomy:
    """One anatomy over those of several ranks; `name` is what the report calls them together.

    Classes, operators, kernels, modules and the ledger are sums over the ranks and balance as those of one rank do;
    the step is that of the middle rank by its wall time; the timeline is the mean over the ranks. `UsageError` where
    two of them cannot be ranks of one run.
    """
    rows = [_candidate(anatomy) for anatomy in anatomies]
    if (refusal := why_no_ranks(rows)) is not None:
        raise UsageError(refusal)
    rows.sort(key=lambda row: (row.rank.rank is None, row.rank.rank or 0, row.rank.trace or ""))
    ranks, each = tuple(row.rank for row in rows), [row.anatomy for row in rows]
    first = each[0]
    workload = _workload([anatomy.workload for anatomy in each])
    classes = _classes(each)
    together = Anatomy(
        provenance=Provenance(opanatomy=first.provenance.opanatomy, command=first.provenance.command, trace=name),
        environment=_alike([anatomy.environment for anatomy in each]),
        workload=workload,
        step=_step([anatomy.step for anatomy in each]),
        classes=classes,
        ratios=_ratios(classes, workload, each),
        operators=_operators(each),
        kernels=_kernels(each),
        modules=_summed(row for anatomy in each for row in anatomy.modules),
        memory=max(each, key=lambda anatomy: anatomy.memory.peak_bytes or 0).memory,
        timeline=_timeline([anatomy.timeline for anatomy in each]),
        device=_figures(each),
        ledger=_ledger([anatomy.ledger for anatomy in each]),
        conventions=first.conventions,
        collectives=merged_collectives(row for anatomy in each for row in anatomy.collectives),
        ranks=ranks,
        spread=spread_of(ranks),
        checks=_checks(each),
        warnings=(*warnings, *unlike_warnings(rows), *_of_the_set(ranks), *_warnings(ranks, each)),
    )
    check_conservation(together)
    return together


def _ratios(classes: tuple[ClassRow, ...], workload: Workload, each: Sequence[Anatomy]) -> tuple[Ratio, ...]:
    """The ratios of the sums, with the theory of the ranks' steps where it is the same for all."""
    ratios = []
    for ratio in ratios_of(classes, workload):
        like = [row for anatomy in each for row in anatomy.ratios if row.operator_class is ratio.operator_class]
        flops, moved = (_same([getattr(row, name) for row in like]) if like else None for name in _THEORY)
        ratios.append(replace(ratio, theory_flops=flops, theory_bytes=moved))
    return tuple(ratios)


def _classes(each: Sequence[Anatomy]) -> tuple[ClassRow, ...]:
    rows = _summed(row for anatomy in each for row in anatomy.classes)
    return tuple(sorted(rows, key=lambda row: (_CLASS_ORDER[row.operator_class], _PHASE_ORDER[row.phase])))


def _operators(each: Sequence[Anatomy]) -> tuple[OperatorRow, ...]:
    rows = _summed(row for anatomy in each for row in anatomy.operators)
    return tuple(
        sorted(
            rows, key=lambda row: (-row.time_ns, row.operator, row.signature, row.phase, row.rule, row.part_of or "")
        )
    )


def _kernels(each: Sequence[Anatomy]) -> tuple[KernelRow, ...]:
    rows = [row for anatomy in each for row in anatomy.kernels]
    launchers: dict[str, set[str]] = {}
    for row in rows:
        launchers.setdefault(row.kernel, set()).update(row.operators)
    merged = _summed(replace(row, operators=tuple(sorted(launchers[row.kernel]))) for row in rows)
    return tuple(sorted(merged, key=lambda row: (-row.time_ns, row.kernel)))


def _summed(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows that differ in whole numbers only as one with their sums, in the order of their first."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        key = tuple(getattr(row, name) for name, kind in _types(type(row)) if kind not in (*_WHOLE, *_FRACTION))
        groups.setdefault(key, []).append(row)
    return tuple(_merged(group, dict.fromkeys(_WHOLE, _sum)) for group in groups.values())


def _merged(records: Sequence[Any], by_type: Mapping[Any, Callable[[list[Any]], Any]]) -> Any:
    """One record for several: each field by the rule for its type; without one, the value if all have the same."""
    record: type = type(records[0])
    merged = {}
    for name, kind in _types(record):
        values = [getattr(record, name) for record in records]
        merged[name] = by_type.get(kind, _same)(values)
    return record(**merged)


@cache
def _types(record: type[Any]) -> tuple[tuple[str, Any], ...]:
    """The name and type of each field; finding them out takes time."""
    return tuple((field.name, field.type) for field in fields(record))


def _sum(values: list[int | None]) -> int | None:
    """The sum of the known values; `None` where none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _same(values: list[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else None


def _median(values: list[Any]) -> Any:
    known = [value for value in values if value is not None]
    return (int(median(known)) if isinstance(known[0], int) else median(known)) if known else None


def _mean(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) // len(known) if known else None


def _alike(records: list[Environment]) -> Environment:
    common: Environment = _merged(records, {})
    return common


def _workload(records: list[Workload]) -> Workload:
    """What all ranks ran; where they did not run the same, only what they have in common."""
    if all(record == records[0] for record in records):
        return records[0]
    lists = {tuple[str, ...]: lambda values: values[0] if all(value == values[0] for value in values) else ()}
    common: Workload = _merged(records, lists)
    return common


def _ledger(records: list[Ledger]) -> Ledger:
    sums: Ledger = _merged(records, {int: _sum})
    return sums


def _step(records: list[Step]) -> Step:
    """The step of the middle rank by wall time, of an even number the means of the two: parts of one step add up."""
    chosen = middle(records, lambda record: record.wall_ns or 0)
    means: dict[Any, Callable[[list[Any]], Any]] = dict.fromkeys(_WHOLE, mean)
    means |= dict.fromkeys(_FRACTION, _median)
    step: Step = _merged([replace(record, steps=()) for record in chosen], means)
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


def _timeline(records: list[Timeline]) -> Timeline:
    """Means whose parts add up: what rounding leaves is other idle time."""
    bare = [replace(record, launching=None, devices=(), streams=()) for record in records]
    timeline: Timeline = _merged(bare, dict.fromkeys(_WHOLE, _mean))
    causes = (timeline.outside_ns, timeline.host_idle_ns, timeline.stream_idle_ns)
    idle = timeline.window_ns - timeline.busy_ns - (timeline.outside_ns or 0)
    other = None if None in causes else idle - sum(cause or 0 for cause in causes[1:])
    launching = [record.launching for record in records if record.launching]
    return replace(
        timeline, idle_ns=idle, other_idle_ns=other,
        kernel_time_ns=_sum([record.kernel_time_ns for record in records]),
        launching=_launching(launching) if launching else None,
    )  # fmt: skip


def _launching(records: list[Launching]) -> Launching:
    sums: Launching = _merged(records, dict.fromkeys(_WHOLE, _sum))
    return replace(
        sums, median_delay_ns=_median([record.median_delay_ns for record in records]),
        longest_queue=max(record.longest_queue for record in records), tiny_below_ns=records[0].tiny_below_ns,
    )  # fmt: skip


def _figures(each: Sequence[Anatomy]) -> DeviceFigures:
    """Fractions are means weighted by the time of the steps, the occupancy by that of the kernels it is known of."""
    records = [anatomy.device for anatomy in each]
    times = [(anatomy.step.wall_ns or 0) * anatomy.step.count for anatomy in each]

    def weighted(values: list[float | None], weights: list[int]) -> float | None:
        known = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
        whole = sum(weight for _, weight in known)
        return sum(value * weight for value, weight in known) / whole if whole else None

    bandwidth = _same([record.bandwidth_bytes_per_second for record in records])
    rules: dict[Any, Callable[[list[Any]], Any]] = dict.fromkeys(_WHOLE, _sum)
    rules[float | None] = lambda values: weighted(values, times)
    figures: DeviceFigures = _merged(records, rules)
    return replace(
        figures, bandwidth_bytes_per_second=bandwidth, peak_flops_per_second=figures.peak_flops_per_second or {},
        occupancy=weighted(
            [record.occupancy for record in records], [record.dimensioned_ns or 0 for record in records]
        ),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- spread


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


# -------------------------------------------------------------------------------------------------------- warnings


def _of_the_set(ranks: Sequence[Rank]) -> list[str]:
    """What is odd about the set of ranks."""
    files: dict[int, list[str]] = {}
    for rank in ranks:
        if rank.rank is not None:
            files.setdefault(rank.rank, []).append(rank.trace or "?")
    warnings = [f"rank {rank} is in {len(names)} files, all are counted: {', '.join(names)}"
              for rank, names in files.items() if len(names) > 1]  # fmt: skip
    steps = {rank.steps for rank in ranks}
    if len(steps) > 1:
        warnings.append(f"the ranks have {min(steps)} to {max(steps)} steps: sums weigh those with more steps more")
    return warnings


def _warnings(ranks: Sequence[Rank], each: Sequence[Anatomy]) -> list[str]:
    """The warnings of the ranks, one that several have once."""
    who: dict[str, list[str]] = {}
    for rank, anatomy in zip(ranks, each, strict=True):
        for text in anatomy.warnings:
            who.setdefault(text, []).append(str(rank.trace) if rank.rank is None else str(rank.rank))
    return [f"{_whose(names, len(ranks))}: {text}" for text, names in who.items()]


def _checks(each: Sequence[Anatomy]) -> tuple[Check, ...]:
    """The checks of the ranks, those of one quantity and source as one; like differences of several ranks once each."""
    groups: dict[tuple[str, str, str], list[Check]] = {}
    for anatomy in each:
        for check in anatomy.checks:
            groups.setdefault((check.quantity, check.source, check.unit), []).append(check)
    return tuple(
        Check(
            quantity=quantity, source=source, unit=unit, compared=sum(check.compared for check in checks),
            equal=sum(check.equal for check in checks),
            differences=tuple(dict.fromkeys(difference for check in checks for difference in check.differences)),
            not_checked="; ".join(dict.fromkeys(check.not_checked for check in checks if check.not_checked)) or None,
        )
        for (quantity, source, unit), checks in groups.items()
    )  # fmt: skip


def _whose(names: list[str], count: int) -> str:
    if len(names) == count:
        return "all ranks"
    return f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names)}"
