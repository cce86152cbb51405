"""Break the time of like steps down into work, overlaps and idle time by cause.

Work is by operator, signature, module, phase and kernel. The sums are the steps' wall times exactly, checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement
from typing import Any, Final

import numpy as np
from msgspec import Struct

from opanatomy.analysis.intervals import within
from opanatomy.analysis.step import OTHERS_WORK, PAUSE, kinds_of, step_of_calls
from opanatomy.analysis.timeline import DeviceTime, StepWindow
from opanatomy.records.anatomy import Breakdown, LikeStep, Overlap, StepKind, StepRow, WorkRow
from opanatomy.records.columns import CallTable, Categorical, Int64, unique
from opanatomy.records.signature import NO_SIGNATURE, SignatureText
from opanatomy.records.table import Table
from opanatomy.records.taxonomy import CLASS_CODE, OperatorClass, Phase

# ----- overlaps, which the sum of all durations counts more than once


#: The kinds of device work whose overlaps are told apart; of three at once the first overlaps with both others.
COMPUTE, COMMUNICATION, COPY = range(3)
KINDS: Final = ("compute", "communication", "copy")
PAIRS: Final = tuple(combinations_with_replacement(range(len(KINDS)), 2))


def overlaps_of(
    kind: Int64, start_ns: Int64, end_ns: Int64, span_start_ns: Int64, span_end_ns: Int64
) -> tuple[Int64, Int64]:
    """Return the time in each span in which pairs of `PAIRS` overlapped, and in which each kind ran alone.

    The shapes are (spans, pairs) and (spans, kinds). `kind` is that of each work item; the spans are disjoint and
    sorted. If n items run at once, n - 1 overlaps count: among the items of one kind, and one between the kinds, each
    with the first of them.
    """
    moments = np.concatenate((start_ns, end_ns, span_start_ns, span_end_ns))
    order = np.argsort(moments, kind="stable")
    at = moments[order]
    length = np.diff(at, append=at[-1:])
    running = np.stack([_running(kind == number, start_ns, end_ns, order) for number in range(len(KINDS))])
    span = np.searchsorted(span_start_ns, at, side="right") - 1
    inside = (span >= 0) & (length > 0)
    inside[inside] = at[inside] < span_end_ns[span[inside]]
    running, length, span = running[:, inside], length[inside], span[inside]
    overlapped = np.zeros((len(span_start_ns), len(PAIRS)), dtype=np.int64)
    for place, (first, second) in enumerate(PAIRS):
        np.add.at(overlapped[:, place], span, length * _times(running, first, second))
    alone = np.zeros((len(span_start_ns), len(KINDS)), dtype=np.int64)
    for number in range(len(KINDS)):
        others = np.delete(running, number, axis=0).sum(axis=0)
        np.add.at(alone[:, number], span, length * ((running[number] > 0) & (others == 0)))
    return overlapped, alone


def _running(chosen: Sequence[bool] | Int64, start_ns: Int64, end_ns: Int64, order: Int64) -> Int64:
    """Return how many of the chosen items run from each moment to the next."""
    step = np.zeros(len(order), dtype=np.int64)
    count = len(start_ns)
    step[:count] = chosen
    step[count : count + len(end_ns)] = -step[:count]
    running: Int64 = np.cumsum(step[order])
    return running


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


_COMMUNICATES: Final = CLASS_CODE[OperatorClass.COMMUNICATION]
THREADS: Final = "threads"


class _Work(Struct, frozen=True, kw_only=True):
    """The work of the window, one row per device event, on the CPU per call."""

    operator: Categorical[str]
    signature: Categorical[SignatureText]
    module: Categorical[str]
    phase: Categorical[Phase]
    operator_class: Categorical[OperatorClass]
    kernel: Categorical[str]
    #: The step that launched it, -1 if none.
    step: Int64
    #: Whether it is the first device event of a call.
    called: Int64
    events: Int64


class _Steps(Struct, frozen=True, kw_only=True):
    """The parts of each step of one device, one entry per step; `time_in` gives each work row's time in some steps."""

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
        begins, ends = _bounds(step_window)
        step, name, signature = step_of_calls(begins, ends, calls), _operators_within(calls), calls.signature
        ran = np.flatnonzero(step >= 0)
        return kinds_of(step[ran], name.codes[ran] + 1, signature.codes[ran], len(begins))
    # Times in whole microseconds do not tell which operator around a launch is the innermost: kernels say more.
    inside = np.flatnonzero(time.steps.step >= 0)
    kernel, signature = time.work.kernel.take(inside), time.work.signature.take(inside)
    return kinds_of(time.step, kernel.codes + 1, signature.codes, len(time.step_start))


def breakdown_of(
    steps: Sequence[StepRow],
    kinds: Sequence[Sequence[int]],
    step_window: StepWindow,
    calls: CallTable,
    time: DeviceTime | None,
) -> Breakdown:
    """Return the breakdown of all steps by kind; without `time` that of the CPU."""
    if time is None:
        return _breakdown(steps, kinds, *_of_host(steps, step_window, calls))
    each = [_device_steps(time, device) for device in time.devices if device.number in time.computing]
    if not each:  # the trace of an accelerator on which nothing ran
        return Breakdown(operators=(), signatures=(), modules=(), kernels=(), kinds=())
    return _breakdown(steps, kinds, _device_work(time), each)


def _bounds(step_window: StepWindow) -> tuple[Int64, Int64]:
    spans = step_window.steps or (step_window.window,)
    begins, ends = (np.array([span[edge] for span in spans], dtype=np.int64) for edge in (0, 1))
    return begins, ends


def _of_host(steps: Sequence[StepRow], step_window: StepWindow, calls: CallTable) -> tuple[_Work, list[_Steps]]:
    """Return the self times of the calls that began in each step, and the other parts of the steps."""
    begins, ends = _bounds(step_window)
    step = step_of_calls(begins, ends, calls)
    work = _Work(
        operator=_operators_within(calls), signature=calls.signature, module=calls.module, phase=calls.phase,
        operator_class=calls.operator_class, kernel=Categorical(np.full(len(step), -1, dtype=np.int64), ()), step=step,
        called=np.ones(len(step), dtype=np.int64), events=np.zeros(len(step), dtype=np.int64),
    )  # fmt: skip
    framework = np.array([row.framework_ns or 0 for row in steps], dtype=np.int64)
    spent = np.array([row.kernel_time_ns or 0 for row in steps], dtype=np.int64)
    zeros = np.zeros(len(steps), dtype=np.int64)
    of_process = _Steps(
        device=None, wall_ns=ends - begins, outside_ns=zeros, unrecorded_ns=zeros, idle_ns=(zeros, zeros, zeros),
        framework_ns=framework,
        overlaps_ns={(THREADS, THREADS): spent + framework - (ends - begins)}, exposed_ns=None,
        time_in=lambda chosen: np.where(np.isin(step, chosen), calls.time_ns, 0),
    )  # fmt: skip
    return work, [of_process]


def _operators_within(calls: CallTable) -> Categorical[str]:
    """Return the operator of each call; a part of another call also has that call's name, as it has its class."""
    outer = calls.part_of.codes
    pairs = unique(calls.operator.codes * (len(calls.part_of.values) + 1) + outer + 1)
    names = []
    for row in pairs.first.tolist():
        name, owner = calls.operator.at(row) or "", calls.part_of.at(row)
        names.append(name if owner is None else f"{name} in {owner}")
    return Categorical(pairs.inverse, tuple(names))


def _device_work(time: DeviceTime) -> _Work:
    kernels, inside = time.work, np.flatnonzero(time.steps.step >= 0)
    launched_by = kernels.launched_by[inside]
    order = np.lexsort((kernels.start_ns[inside], launched_by))
    called = np.ones(len(inside), dtype=np.int64)
    called[order[1:]] = np.diff(launched_by[order]) != 0
    called[launched_by < 0] = 1
    return _Work(
        operator=kernels.operator.take(inside), signature=kernels.signature.take(inside),
        module=kernels.module.take(inside), phase=kernels.phase.take(inside),
        operator_class=kernels.operator_class.take(inside), kernel=kernels.kernel.take(inside), step=time.step,
        called=called, events=np.ones(len(inside), dtype=np.int64),
    )  # fmt: skip


def _device_steps(time: DeviceTime, device: Any) -> _Steps:
    """Return the parts of the steps on one device."""
    begin, end, events = time.step_start, time.step_end, device.events
    start, stop = time.start, time.start + time.duration
    kind = np.where(time.operator_class == _COMMUNICATES, COMMUNICATION, np.where(time.copies, COPY, COMPUTE))
    overlapped, alone = overlaps_of(kind[events], start[events], stop[events], begin, end)
    _, outside, unrecorded, *idle = device.parts(begin, end)
    on_device = np.zeros(len(start), dtype=bool)
    on_device[events] = True
    return _Steps(
        device=device.number, wall_ns=end - begin, outside_ns=outside, unrecorded_ns=unrecorded,
        idle_ns=(idle[0], idle[1], idle[2]),
        framework_ns=np.zeros(len(begin), dtype=np.int64),
        overlaps_ns={(KINDS[a], KINDS[b]): overlapped[:, place] for place, (a, b) in enumerate(PAIRS)},
        exposed_ns=alone[:, COMMUNICATION] if (kind == COMMUNICATION).any() else None,
        time_in=lambda chosen: np.where(on_device, within((begin[chosen], end[chosen]), start, stop), 0),
    )  # fmt: skip


# ----- by kind


def _breakdown(
    steps: Sequence[StepRow], kinds: Sequence[Sequence[int]], work: _Work, each: Sequence[_Steps]
) -> Breakdown:
    operators, signatures, modules, kernels = (_Names() for _ in range(4))
    made = [_kind([(number, steps[number]) for number in kind], work, each, (operators, signatures, modules, kernels))
            for kind in kinds]  # fmt: skip
    return Breakdown(
        operators=tuple(operators.texts), modules=tuple(modules.texts), kernels=tuple(kernels.texts),
        signatures=tuple(signatures.texts),
        kinds=tuple(sorted(made, key=lambda kind: (-kind.count, -kind.wall_ns))),
    )  # fmt: skip


class _Names:
    """Texts by number, in the order of their first use."""

    def __init__(self) -> None:
        self.texts: dict[Any, int] = {}

    def number(self, text: Any) -> int:
        """Return the number of a text; -1 for `None`."""
        return -1 if text is None else self.texts.setdefault(text, len(self.texts))


def _kind(
    chosen: Sequence[tuple[int, StepRow]], work: _Work, each: Sequence[_Steps], names: tuple[_Names, ...]
) -> StepKind:
    """Return the sums over like steps, on all devices."""
    numbers = np.array([number for number, _ in chosen], dtype=np.int64)
    idle = [np.sum(device.idle_ns, axis=0) for device in each]
    reasons = [row.set_aside if row.set_aside in (OTHERS_WORK, PAUSE) else None for _, row in chosen]
    if None not in reasons:
        reasons = [None] * len(reasons)
    kept = numbers[[reason is None for reason in reasons]]
    kind = StepKind(
        steps=tuple(
            _like_step(device, int(number), row, spent, reason)
            for device, spent in zip(each, idle, strict=True)
            for (number, row), reason in zip(chosen, reasons, strict=True)
        ),
        count=len(kept) * len(each),
        wall_ns=_sum([device.wall_ns for device in each], kept),
        outside_ns=_sum([device.outside_ns for device in each], kept),
        unrecorded_ns=_sum([device.unrecorded_ns for device in each], kept),
        host_idle_ns=_sum([device.idle_ns[0] for device in each], kept),
        stream_idle_ns=_sum([device.idle_ns[1] for device in each], kept),
        other_idle_ns=_sum([device.idle_ns[2] for device in each], kept),
        framework_ns=_sum([device.framework_ns for device in each], kept),
        overlaps=_overlaps(each, kept),
        rows=_rows(work, each, kept, names),
    )  # fmt: skip
    check_breakdown(kind)
    return kind


def _like_step(device: _Steps, number: int, row: StepRow, idle: Int64, reason: str | None) -> LikeStep:
    return LikeStep(
        number=row.number, wall_ns=int(device.wall_ns[number]), idle_ns=int(idle[number]), device=device.device,
        exposed_communication_ns=None if device.exposed_ns is None else int(device.exposed_ns[number]),
        phase_ns=row.phase_ns, set_aside=reason, left_out=row.set_aside,
    )  # fmt: skip


def _sum(columns: Sequence[Int64], steps: Int64) -> int:
    return sum(int(column[steps].sum()) for column in columns)


def _overlaps(each: Sequence[_Steps], steps: Int64) -> tuple[Overlap, ...]:
    sums = {pair: _sum([device.overlaps_ns[pair] for device in each], steps) for pair in each[0].overlaps_ns}
    return tuple(Overlap(first=first, second=second, time_ns=time) for (first, second), time in sums.items() if time)


def _rows(work: _Work, each: Sequence[_Steps], steps: Int64, names: tuple[_Names, ...]) -> tuple[WorkRow, ...]:
    chosen = np.sort(steps)
    time = np.sum([device.time_in(chosen) for device in each], axis=0)
    launched = np.isin(work.step, steps)
    rows = np.flatnonzero((time > 0) | launched)
    keys = ("operator", "signature", "module", "kernel", "phase", "operator_class")
    figures = {
        "calls": np.where(launched, work.called, 0), "events": np.where(launched, work.events, 0), "time_ns": time,
    }  # fmt: skip
    table = Table({name: getattr(work, name) for name in keys}, figures).where(rows).by(*keys)
    return tuple(
        WorkRow(
            **row | {
                "operator": names[0].number(row["operator"]), "module": names[2].number(row["module"]),
                "signature": names[1].number(row["signature"] or NO_SIGNATURE),
                "kernel": names[3].number(row["kernel"]),
            }
        )
        for row in table.rows()
    )  # fmt: skip


def check_breakdown(kind: StepKind) -> None:
    """Raise `AssertionError` unless the parts sum to the steps."""
    spent = sum(row.time_ns for row in kind.rows) - sum(overlap.time_ns for overlap in kind.overlaps)
    idle = kind.host_idle_ns + kind.stream_idle_ns + kind.other_idle_ns
    if kind.wall_ns != spent + idle + kind.outside_ns + kind.unrecorded_ns + kind.framework_ns:
        raise AssertionError(f"the steps {kind.numbers} are {kind.wall_ns} ns, their parts {spent + idle} ns")
