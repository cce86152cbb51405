"""Break the time of like steps down into work, overlaps and idle time by cause.

The sums are the steps' wall times exactly, checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any, Final

import numpy as np
from msgspec import Struct

from opanatomy.analysis.intervals import within
from opanatomy.analysis.step import OTHERS_WORK, PAUSE, kinds_of, step_at
from opanatomy.analysis.timeline import DeviceTime, StepWindow
from opanatomy.analysis.work import JoinedWork, work_table
from opanatomy.records.anatomy import StepRow
from opanatomy.records.columns import CallTable, Categorical, Int64, mask_of, take, unique
from opanatomy.records.table import Table, concatenated
from opanatomy.records.taxonomy import CLASS_CODE, OperatorClass
from opanatomy.records.work import NO_WORK, LikeStep, Overlap, StepKind

# ----- overlaps, which the sum of all durations counts more than once


#: Kinds of device work whose overlaps are counted separately; of three at once the first overlaps with both others.
COMPUTE, COMMUNICATION, COPY = range(3)
KINDS: Final = ("compute", "communication", "copy")
PAIRS: Final = tuple(combinations_with_replacement(range(len(KINDS)), 2))


def overlaps_of(
    kind: Int64, start_ns: Int64, end_ns: Int64, span_start_ns: Int64, span_end_ns: Int64
) -> tuple[Int64, Int64]:
    """Return for each span the overlap time of each pair in `PAIRS`, and the time each kind ran alone.

    The shapes are (spans, pairs) and (spans, kinds). `kind` is that of each work item; the spans are disjoint and
    sorted. If n items run at once, n - 1 overlaps count: among the items of one kind, and one between the kinds, each
    with the first of them.
    """
    moments = np.concatenate((start_ns, end_ns, span_start_ns, span_end_ns))
    order = np.argsort(moments, kind="stable")
    at = moments[order]
    length = np.diff(at, append=at[-1:])
    # How many items of each kind run from each moment to the next.
    change = np.zeros((len(KINDS), len(order)), dtype=np.int64)
    for number in range(len(KINDS)):
        change[number, : len(kind)] = kind == number
    change[:, len(kind) : 2 * len(kind)] = -change[:, : len(kind)]
    running = np.cumsum(change[:, order], axis=1)
    span = np.searchsorted(span_start_ns, at, side="right") - 1
    inside = (span >= 0) & (length > 0)
    inside[inside] = at[inside] < span_end_ns[span[inside]]
    running, length, span = running[:, inside], length[inside], span[inside]
    overlapped = np.zeros((len(span_start_ns), len(PAIRS)), dtype=np.int64)
    for index, (first, second) in enumerate(PAIRS):
        np.add.at(overlapped[:, index], span, length * _times(running, first, second))
    alone = np.zeros((len(span_start_ns), len(KINDS)), dtype=np.int64)
    for number in range(len(KINDS)):
        others = np.delete(running, number, axis=0).sum(axis=0)
        np.add.at(alone[:, number], span, length * ((running[number] > 0) & (others == 0)))
    return overlapped, alone


def _times(running: Int64, first: int, second: int) -> Int64:
    """Return how often a pair overlaps in each stretch."""
    if first == second:
        more: Int64 = np.maximum(running[first] - 1, 0)
        return more
    both = (running[first] > 0) & (running[second] > 0)
    if first != COMPUTE:  # two kinds that overlap with the same computation do not count again
        both &= running[COMPUTE] == 0
    total: Int64 = both.astype(np.int64)
    return total


THREADS: Final = "threads"


class _Steps(Struct, frozen=True, kw_only=True):
    """The parts of each step of one device, one entry per step; `time_in` gives the time of each device event of the
    steps, on the CPU of each call, in some steps."""

    device: int | None
    wall_ns: Int64
    outside_ns: Int64
    unrecorded_ns: Int64
    idle_ns: tuple[Int64, Int64, Int64]
    framework_ns: Int64
    overlaps_ns: dict[tuple[str, str], Int64]
    exposed_ns: Int64 | None
    time_in: Callable[[Int64], Int64]


def step_kinds(step_window: StepWindow, calls: CallTable, time: DeviceTime | None) -> list[list[int]]:
    """Group the steps, by number from 0, that made the same calls; those with most steps first."""
    if time is None:
        begins, ends = step_window.bounds
        step, name, signature = step_at(begins, ends, calls.start_ns), _operators_within(calls), calls.signature
        ran = np.flatnonzero(step >= 0)
        return kinds_of(step[ran], name.codes[ran] + 1, signature.codes[ran], len(begins))
    # Times in whole microseconds do not tell which operator around a launch is the innermost: kernels say more.
    inside = np.flatnonzero(time.steps.step >= 0)
    kernel, signature = time.work.kernel.take(inside), time.work.signature.take(inside)
    return kinds_of(time.step, kernel.codes + 1, signature.codes, len(time.step_start))


class LikeSteps(Struct, frozen=True, kw_only=True):
    """The steps by kind, the kind of each step, and the work of like steps."""

    kinds: tuple[StepKind, ...]
    of_step: Int64
    work: Table


def like_steps(
    steps: Sequence[StepRow],
    kinds: Sequence[Sequence[int]],
    step_window: StepWindow,
    joined: JoinedWork,
    calls: CallTable,
    time: DeviceTime | None,
    module_kinds: Mapping[str, str],
) -> LikeSteps:
    """Sum the work of like steps by kind; without `time`, on the CPU."""
    if time is None:
        each, step = [_host_steps(steps, step_window, calls)], step_at(*step_window.bounds, calls.start_ns)
        called, events = np.ones(len(step), dtype=np.int64), np.zeros(len(step), dtype=np.int64)
        row = joined.call
    else:
        each = [_device_steps(time, device) for device in time.devices if device.number in time.computing]
        step, called, events = time.step, _first_of_launches(time), np.ones(len(time.step), dtype=np.int64)
        position = np.cumsum(time.steps.step >= 0) - 1  # of each event of the trace among those of the steps
        row = take(position, joined.event)
    made = [(*_kind([(number, steps[number]) for number in numbers], each), numbers) for numbers in kinds if each]
    made.sort(key=lambda one: (-one[0].count, -one[0].wall_ns))
    of_step, keys, tables = np.full(len(steps), -1, dtype=np.int64), joined.keys(module_kinds), list[Table]()
    for index, (kind, kept, numbers) in enumerate(made):
        of_step[numbers] = index
        spent = np.sum([device.time_in(np.sort(kept)) for device in each], axis=0)
        launched = np.isin(step, kept)
        liked = np.append((spent > 0) | launched, False)[row]
        figures = {
            "like_calls": np.where(launched, called, 0)[row],
            "like_events": np.where(launched, events, 0)[row],
            "like_ns": spent[row],
        }
        rows = Table(keys, figures).where(np.flatnonzero(liked))
        check_breakdown(kind, int(rows.figures["like_ns"].sum()))
        tables.append(work_table(rows.keys, rows.figures, np.full(len(rows), index)))
    work = concatenated(tables or [NO_WORK])
    return LikeSteps(kinds=tuple(kind for kind, _, _ in made), of_step=of_step, work=work)


def _host_steps(steps: Sequence[StepRow], step_window: StepWindow, calls: CallTable) -> _Steps:
    """Return the parts of the steps on the host; work is the self time of the calls that began in a step."""
    begins, ends = step_window.bounds
    step = step_at(begins, ends, calls.start_ns)
    framework = np.array([row.framework_ns or 0 for row in steps], dtype=np.int64)
    spent = np.array([row.kernel_time_ns or 0 for row in steps], dtype=np.int64)
    zeros = np.zeros(len(steps), dtype=np.int64)
    return _Steps(
        device=None,
        wall_ns=ends - begins,
        outside_ns=zeros,
        unrecorded_ns=zeros,
        idle_ns=(zeros, zeros, zeros),
        framework_ns=framework,
        overlaps_ns={(THREADS, THREADS): spent + framework - (ends - begins)},
        exposed_ns=None,
        time_in=lambda chosen: np.where(np.isin(step, chosen), calls.time_ns, 0),
    )


def _operators_within(calls: CallTable) -> Categorical[str]:
    """Return the operator of each call; calls inside another call of the same class get the outer call's name."""
    outer = calls.part_of.codes
    pairs = unique(calls.operator.codes * (len(calls.part_of.values) + 1) + outer + 1)
    names = []
    for row in pairs.first.tolist():
        name, owner = calls.operator.at(row) or "", calls.part_of.at(row)
        names.append(name if owner is None else f"{name} in {owner}")
    return Categorical(pairs.inverse, tuple(names))


def _first_of_launches(time: DeviceTime) -> Int64:
    """Return 1 for the first device event of each launching host row and for events without one, else 0."""
    kernels, inside = time.work, np.flatnonzero(time.steps.step >= 0)
    launched_by = kernels.launched_by[inside]
    order = np.lexsort((kernels.start_ns[inside], launched_by))
    first = np.ones(len(inside), dtype=np.int64)
    first[order[1:]] = np.diff(launched_by[order]) != 0
    first[launched_by < 0] = 1
    return first


def _device_steps(time: DeviceTime, device: Any) -> _Steps:
    """Return the parts of the steps on one device."""
    begin, end, events = time.step_start, time.step_end, device.events
    start, stop = time.start, time.start + time.duration
    kind = np.where(
        time.operator_class == CLASS_CODE[OperatorClass.COMMUNICATION],
        COMMUNICATION,
        np.where(time.copies, COPY, COMPUTE),
    )
    overlapped, alone = overlaps_of(kind[events], start[events], stop[events], begin, end)
    _, outside, unrecorded, *idle = device.parts(begin, end)
    on_device = mask_of(events, len(start))
    return _Steps(
        device=device.number,
        wall_ns=end - begin,
        outside_ns=outside,
        unrecorded_ns=unrecorded,
        idle_ns=(idle[0], idle[1], idle[2]),
        framework_ns=np.zeros(len(begin), dtype=np.int64),
        overlaps_ns={(KINDS[a], KINDS[b]): overlapped[:, index] for index, (a, b) in enumerate(PAIRS)},
        exposed_ns=alone[:, COMMUNICATION] if (kind == COMMUNICATION).any() else None,
        time_in=lambda chosen: np.where(on_device, within((begin[chosen], end[chosen]), start, stop), 0),
    )


# ----- by kind


def _kind(chosen: Sequence[tuple[int, StepRow]], each: Sequence[_Steps]) -> tuple[StepKind, Int64]:
    """Sum a kind of like steps over all devices; return it with the numbers of the steps included."""
    numbers = np.array([number for number, _ in chosen], dtype=np.int64)
    reasons = [row.set_aside if row.set_aside in (OTHERS_WORK, PAUSE) else None for _, row in chosen]
    if None not in reasons:
        reasons = [None] * len(reasons)
    kept = numbers[[reason is None for reason in reasons]]
    steps = []
    for device in each:
        idle = np.sum(device.idle_ns, axis=0)
        for (number, row), reason in zip(chosen, reasons, strict=True):
            steps.append(
                LikeStep(
                    number=row.number,
                    wall_ns=int(device.wall_ns[number]),
                    idle_ns=int(idle[number]),
                    device=device.device,
                    exposed_communication_ns=None if device.exposed_ns is None else int(device.exposed_ns[number]),
                    phase_ns=row.phase_ns,
                    set_aside=reason,
                    left_out=row.set_aside,
                )
            )
    overlaps = {pair: _sum([device.overlaps_ns[pair] for device in each], kept) for pair in each[0].overlaps_ns}
    kind = StepKind(
        steps=tuple(steps),
        count=len(kept) * len(each),
        wall_ns=_sum([device.wall_ns for device in each], kept),
        outside_ns=_sum([device.outside_ns for device in each], kept),
        unrecorded_ns=_sum([device.unrecorded_ns for device in each], kept),
        host_idle_ns=_sum([device.idle_ns[0] for device in each], kept),
        stream_idle_ns=_sum([device.idle_ns[1] for device in each], kept),
        other_idle_ns=_sum([device.idle_ns[2] for device in each], kept),
        framework_ns=_sum([device.framework_ns for device in each], kept),
        overlaps=tuple(Overlap(first=a, second=b, time_ns=time) for (a, b), time in overlaps.items() if time),
    )
    return kind, kept


def _sum(columns: Sequence[Int64], steps: Int64) -> int:
    return sum(int(column[steps].sum()) for column in columns)


def check_breakdown(kind: StepKind, work_ns: int) -> None:
    """Raise `AssertionError` unless the parts sum to the steps."""
    spent = work_ns - sum(overlap.time_ns for overlap in kind.overlaps)
    idle = kind.host_idle_ns + kind.stream_idle_ns + kind.other_idle_ns
    if kind.wall_ns != spent + idle + kind.outside_ns + kind.unrecorded_ns + kind.framework_ns:
        raise AssertionError(f"the steps {kind.numbers} are {kind.wall_ns} ns, their parts {spent + idle} ns")
