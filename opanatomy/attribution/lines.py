"""Find the line of user code behind each call, from a step traced line by line or from recorded stacks.

A backward call gets the line of its forward. The times of a step traced line by line are distorted, so its lines are
transferred to the other steps by call order: the n-th of the calls that are alike (operator, arguments, phase, module)
gets the line of the n-th such call of that step, if their counts agree, else none. Calls with arguments that do not
occur in that step (numbers that change from step to step) are matched without arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.attribution.attribute import Attribution
from opanatomy.attribution.calls import TraceCalls
from opanatomy.attribution.nesting import HostRows, innermost_at, last_inside, order_within_ranges, parents_of
from opanatomy.attribution.phases import kinds_of, modules_of, nodes_of
from opanatomy.attribution.table import call_table, kernel_table
from opanatomy.records.columns import (
    LINKED,
    OUTSIDE,
    CallTable,
    Categorical,
    HostEvents,
    HostTable,
    Int64,
    KernelTable,
    concat,
    isin,
    take,
    unique,
)
from opanatomy.records.workload import LINE_RANGE, LINES_STEP, LineFrame
from opanatomy.trace.read import Trace


class Stacks(Struct, frozen=True, kw_only=True):
    """The lines of host rows as texts, -1 for none, and the step whose lines are transferred to the others.

    Without such a step each row has its own.
    """

    of_row: Categorical[str]
    step: tuple[int, int] | None


def stacks_of(trace: Trace, host: HostTable) -> Stacks | None:
    """Return the lines of the trace's host rows; `None` without a step traced line by line or recorded stacks."""
    frames = trace.capture.lines if trace.capture is not None else ()
    if frames and LINES_STEP in trace.names:
        rows = np.flatnonzero(host.name == trace.names.index(LINES_STEP))
        # The number in the name of a line's range; no other name has one.
        numbers = [name.removeprefix(LINE_RANGE) if name.startswith(LINE_RANGE) else "" for name in trace.names]
        texts = [one if one.isdecimal() and int(one) < len(frames) else None for one in numbers]
        if len(rows):
            begin = int(host.start_ns[rows[0]])
            own = _innermost(trace, host, None, texts)
            return Stacks(of_row=_texts(own, frames), step=(begin, begin + int(host.duration_ns[rows[0]])))
    if trace.functions:
        functions, stacks = _chains(trace)
        labels = [*[None] * len(trace.names), *map(str, range(len(stacks)))]
        return Stacks(of_row=_texts(_innermost(trace, host, functions, labels), stacks), step=None)
    return None


def _innermost(
    trace: Trace, host: HostTable, functions: HostEvents | None, labels: Sequence[str | None]
) -> Categorical[str]:
    """Return the innermost labelled range around each host row; inside a backward, the range of its forward.

    `functions` are further ranges, by thread and time; `labels` gives the label of each name, first of the trace's
    names.
    """
    columns = ("name", "thread", "start_ns", "duration_ns", "sequence", "forward_thread", "annotation")
    count = len(host.name)
    values = {name: getattr(host, name) for name in columns}
    if functions is not None:
        values = {name: np.concatenate((values[name], getattr(functions, name))) for name in columns}
    none = np.zeros(len(values["name"]), dtype=np.int64)
    order, start = order_within_ranges(HostEvents(**values, external_id=none, signature=none))
    thread, duration = values["thread"][order], values["duration_ns"][order]
    rows = HostRows(
        name=values["name"][order],
        thread=thread,
        start_ns=start,
        end_ns=start + duration,
        sequence=values["sequence"][order],
        forward_thread=values["forward_thread"][order],
        parent=parents_of(thread, start, duration),
        annotation=values["annotation"][order],
        last=last_inside(thread, start, start + duration),
    )
    names = [*trace.names, *("" for _ in range(len(labels) - len(trace.names)))]
    kinds = replace(kinds_of(names), module=list(labels))
    nodes = nodes_of(rows, kinds, trace.flows)
    made = modules_of(rows, kinds, nodes)
    # A node whose forward is unknown (one that adds up a gradient) comes from where backward was called.
    index = np.cumsum([label is not None for label in labels]) - 1
    around = np.where(nodes.module >= 0, index[take(rows.name, nodes.module)], -1)
    codes = np.empty(len(order), dtype=np.int64)
    codes[order] = np.where(made.codes >= 0, made.codes, around)
    return Categorical(codes[:count], made.values)


def _texts(own: Categorical[str], frames: Sequence[LineFrame]) -> Categorical[str]:
    """Return the stacks with these numbers as texts."""

    @cache
    def text(number: int) -> str:
        frame = frames[number]
        line = f"{frame.line} {frame.function}".replace(";", ",")
        return line if not -1 < frame.parent < number else f"{text(frame.parent)};{line}"

    texts = [text(number) for number in range(len(frames))]
    numbers = np.array([*(int(value) for value in own.values), -1], dtype=np.int64)[own.codes]
    return Categorical(numbers, texts)


def _chains(trace: Trace) -> tuple[HostEvents, list[LineFrame]]:
    """Return the functions of the recorded stacks as ranges, each named by the number of its stack, and the stacks."""
    profiler = trace.profiler
    rows = np.flatnonzero(profiler.function >= 0)
    values = {"thread": profiler.thread[rows], "start_ns": profiler.start_ns[rows]}
    none = np.zeros(len(rows), dtype=np.int64)
    events = HostEvents(
        name=profiler.function[rows],
        **values,
        duration_ns=profiler.duration_ns[rows],
        external_id=none,
        sequence=none - 1,
        forward_thread=none - 1,
        signature=none,
        annotation=none + 1,
    )
    order, start = order_within_ranges(events)
    events = HostEvents(**{name: getattr(events, name)[order] for name in HostEvents.__struct_fields__})
    parent = parents_of(events.thread, start, events.duration_ns)
    numbers: dict[tuple[int, int], int] = {}
    chain: list[int] = []
    for function, outer in zip(events.name.tolist(), parent.tolist(), strict=True):
        key = function, chain[outer] if outer >= 0 else -1
        chain.append(numbers.setdefault(key, len(numbers)))
    frames = []
    for function, above in numbers:
        line, _, name = trace.functions[function].partition(" ")
        frames.append(LineFrame(line=line, function=name, parent=above))
    return replace(events, name=len(trace.names) + np.array(chain, dtype=np.int64), start_ns=start), frames


# ----- from a step that ran line by line to the others


def with_lines(
    table: CallTable,
    stacks: Stacks,
    trace: Trace,
    attribution: Attribution,
    calls: TraceCalls,
    kernels: KernelTable | None,
    steps: tuple[Int64, Int64],
) -> CallTable:
    """Return the calls of these steps (begin and end on the host) with their lines.

    `calls` and `kernels` are the sources of the table.
    """
    if stacks.step is None:
        return replace(table, stack=stacks.of_row.take(_rows_of(table, trace, calls, kernels)))
    begin, end = stacks.step
    inside = (calls.host.start_ns >= begin) & (calls.host.start_ns < end)
    launched = take(trace.launches.start_ns, attribution.work.launch)
    ours = (launched >= begin) & (launched < end)
    by_line = replace(
        calls,
        host=replace(calls.host, in_window=inside),
        work=replace(calls.work, link=np.where(ours, LINKED, OUTSIDE)),
    )
    if calls.on_device:
        host_row = calls.work.host[ours]
        by_line = replace(by_line, launched=np.bincount(host_row[host_row >= 0], minlength=len(calls.host.name)))
    their_kernels = None if kernels is None else kernel_table(by_line, trace.devices)
    theirs = call_table(trace, by_line, their_kernels)
    stack = stacks.of_row.take(_rows_of(theirs, trace, by_line, their_kernels))
    their_ns, own_ns = _moments(theirs, trace, by_line, their_kernels), _moments(table, trace, calls, kernels)
    key = _keys(theirs, table, _ALIKE)
    made = _by_order(key, stack, their_ns, own_ns, steps)
    their_key, own_key = key[: len(their_ns)], key[len(their_ns) :]
    their_left = np.flatnonzero(~isin(their_key, unique(own_key).values))
    own_left = np.flatnonzero(~isin(own_key, unique(their_key).values))
    if len(own_left):
        rest = _keys(_rows(theirs, their_left), _rows(table, own_left), _ALIKE_BUT_FOR_ARGUMENTS)
        told = _by_order(rest, stack.take(their_left), their_ns[their_left], own_ns[own_left], steps)
        made.codes[own_left] = told.codes
    return replace(table, stack=made)


def _rows(table: CallTable, rows: Int64) -> dict[str, Categorical[Any]]:
    return {name: getattr(table, name).take(rows) for name in _ALIKE}


def _alone(calls: TraceCalls, kernels: KernelTable | None) -> Int64:
    """Return the device events that are rows of their own because they have no call."""
    return np.flatnonzero(kernels.inside & (kernels.call < 0)) if kernels is not None else np.zeros(0, dtype=np.int64)


def _rows_of(table: CallTable, trace: Trace, calls: TraceCalls, kernels: KernelTable | None) -> Int64:
    """Return the host row of each call, for a device event without a call the row around its launch; -1 if none."""
    events = _alone(calls, kernels)
    if not len(events):
        return table.host_row
    host, launches, launch = calls.host, trace.launches, calls.work.launch[events]
    around = innermost_at(host, take(launches.thread, launch), take(launches.start_ns, launch))
    return np.concatenate((table.host_row[: len(table.host_row) - len(events)], np.where(launch >= 0, around, -1)))


def _moments(table: CallTable, trace: Trace, calls: TraceCalls, kernels: KernelTable | None) -> Int64:
    """Return when the host made each call, or launched an event without a call."""
    events = _alone(calls, kernels)
    launched = take(trace.launches.start_ns, calls.work.launch[events])
    own = table.start_ns[: len(table.start_ns) - len(events)]
    return np.concatenate((own, np.where(launched >= 0, launched, calls.work.start_ns[events])))


#: The columns that calls share which only their order distinguishes.
_ALIKE_BUT_FOR_ARGUMENTS: Final = ("operator", "phase", "module", "part_of", "operator_class")
_ALIKE: Final = (*_ALIKE_BUT_FOR_ARGUMENTS, "signature")


def _keys(
    theirs: CallTable | Mapping[str, Categorical[Any]],
    table: CallTable | Mapping[str, Categorical[Any]],
    names: Sequence[str],
) -> Int64:
    """Return a number per row, `theirs` first, equal for rows that are equal in these columns."""
    columns = [
        [each[name] if isinstance(each, Mapping) else getattr(each, name) for each in (theirs, table)] for name in names
    ]
    key = np.zeros(sum(len(column.codes) for column in columns[0]), dtype=np.int64)
    for pair in columns:
        column: Categorical[Any] = concat(*pair)
        key = unique(key * (len(column.values) + 1) + column.codes + 1).inverse
    return key


def _by_order(
    key: Int64, stack: Categorical[str], their_ns: Int64, own_ns: Int64, steps: tuple[Int64, Int64]
) -> Categorical[str]:
    """Return the stack of each of our calls, from the call at the same position among their like calls.

    `key` numbers like calls, theirs first; `stack` is their stack.
    """
    count = len(their_ns)
    begins, ends = steps
    step = np.searchsorted(begins, own_ns, side="right") - 1
    step = np.where((step >= 0) & (own_ns <= take(ends, step)), step, -1)
    step = np.concatenate((np.full(count, len(begins)), step))
    order = np.lexsort((np.concatenate((their_ns, own_ns)), key, step))
    group = unique(step * (int(key.max(initial=0)) + 1) + key)
    # The place of each call among those of its group, and how many these are.
    first = np.full(len(group.values), len(order), dtype=np.int64)
    np.minimum.at(first, group.inverse[order], np.arange(len(order)))
    index = np.empty(len(order), dtype=np.int64)
    index[order] = np.arange(len(order)) - first[group.inverse[order]]
    size = np.bincount(group.inverse)[group.inverse]
    # Theirs by group and place, one after the other.
    by_index = np.lexsort((index[:count], key[:count]))
    begin_of, size_of = (np.full(int(key.max(initial=0)) + 1, fill, dtype=np.int64) for fill in (-1, 0))
    ordered = key[:count][by_index]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    begin_of[ordered[starts]], size_of[ordered[starts]] = starts, np.diff(np.append(starts, len(ordered)))
    own_key, codes = key[count:], stack.codes[by_index]
    # All alike come from one line: then the count does not matter.
    lowest, highest = (reduce.reduceat(codes, starts) if len(starts) else codes for reduce in (np.minimum, np.maximum))
    one = np.zeros(len(begin_of), dtype=bool)
    one[ordered[starts]] = lowest == highest
    known = (begin_of[own_key] >= 0) & (step[count:] >= 0) & ((size[count:] == size_of[own_key]) | one[own_key])
    wanted = np.where(known, begin_of[own_key] + np.where(one[own_key], 0, index[count:]), -1)
    return Categorical(take(codes, wanted), stack.values)
