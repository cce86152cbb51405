"""When a forward, a backward and an update begin and end, whatever thread they run on."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from opanatomy.attribution.names import NameKinds
from opanatomy.attribution.nodes import Nodes
from opanatomy.attribution.rows import HostRows, contains
from opanatomy.records.columns import Bool, Int64, distinct, is_among, rows_by_value
from opanatomy.records.taxonomy import BACKWARD, FORWARD, OPTIMIZER


class Spans(Struct, frozen=True):
    """Intervals in the order of their starts, none inside another."""

    start_ns: Int64
    end_ns: Int64

    def at(self, time_ns: Int64) -> Int64:
        """The interval that encloses each time, -1 where there is none."""
        if not len(self.start_ns):
            return np.full(len(time_ns), -1, dtype=np.int64)
        place = np.searchsorted(self.start_ns, time_ns, side="right") - 1
        return np.where((place >= 0) & (time_ns < self.end_ns[np.maximum(place, 0)]), place, -1)


class Moments(Struct, frozen=True):
    """What a trace shows of its training loop. Times are in order."""

    #: Starts of nodes, and of nodes and optimizers' ranges: no forward goes on beyond them.
    nodes: Int64
    breaks: Int64
    steps: Int64
    #: The time from a backward to the update that follows it.
    updates: Spans
    #: Optimizers' steps that run the forward themselves, each until its last backward ends.
    closures: Spans
    #: By thread the starts of the operators that are differentiated, and the latest end so far.
    forward: dict[int, tuple[Int64, Int64]]
    #: Threads that only run autograd's nodes.
    autograd: Int64
    #: What the last of them to begin was, whatever its thread: starts and phases.
    marks: tuple[Int64, Int64]
    #: Threads on which a backward runs; on the CPU that of the loop.
    backward: Int64


def moments_of(rows: HostRows, kinds: NameKinds, nodes: Nodes, known: Int64, differentiated: Bool) -> Moments:
    """The moments; `known` is the phase of a framework's range, `differentiated` marks operators of a forward."""
    optimizer, backward = known == OPTIMIZER, nodes.is_node | (known == BACKWARD)
    is_step = np.array([number is not None for number in kinds.step], dtype=bool)[rows.name]
    marks = np.flatnonzero(backward | optimizer | differentiated)
    marks = marks[np.argsort(rows.start_ns[marks], kind="stable")]
    phase = np.select([backward[marks], optimizer[marks]], [BACKWARD, OPTIMIZER], FORWARD)
    forward = {}
    operators = np.flatnonzero(differentiated)
    for thread, places in rows_by_value(rows.thread[operators]):
        on_thread = operators[places]
        forward[thread] = (rows.start_ns[on_thread], np.maximum.accumulate(rows.end_ns[on_thread]))
    steps_of_optimizer = _outermost(rows, optimizer & ~kinds.dispatched[rows.name])
    return Moments(
        nodes=np.sort(rows.start_ns[nodes.is_node]),
        breaks=np.sort(rows.start_ns[nodes.is_node | optimizer]),
        steps=np.sort(rows.start_ns[is_step]),
        updates=_updates(rows, kinds, backward, optimizer, differentiated, steps_of_optimizer),
        closures=_closures(rows, nodes, differentiated, steps_of_optimizer),
        forward=forward,
        autograd=_autograd_threads(rows, kinds, nodes, known, differentiated | is_step),
        marks=(rows.start_ns[marks], phase),
        backward=distinct(rows.thread[backward]).values,
    )


def _outermost(rows: HostRows, marked: Bool) -> Spans:
    """The marked rows that lie in no other one."""
    order = np.flatnonzero(marked)
    order = order[np.argsort(rows.start_ns[order], kind="stable")]
    start, end = rows.start_ns[order], np.maximum.accumulate(rows.end_ns[order]) if len(order) else order
    outer = np.append(True, start[1:] >= end[:-1])[: len(order)]
    places = np.flatnonzero(outer)
    return Spans(start[places], end[np.append(places[1:], len(order)) - 1] if len(order) else end)


def _updates(
    rows: HostRows, kinds: NameKinds, backward: Bool, optimizer: Bool, differentiated: Bool, steps: Spans
) -> Spans:
    """From the last node or forward operator to the optimizer: clipping and unscaling are part of the update. None
    where that node ran inside an optimizer's step: what follows is of the next step."""
    order = np.flatnonzero(optimizer)
    order = order[np.argsort(rows.start_ns[order], kind="stable")]
    start = rows.start_ns[order]
    node_ends, forward_ends = np.sort(rows.end_ns[backward]), np.sort(rows.end_ns[differentiated])
    begin = _last_before(node_ends, start)
    usable = (begin >= 0) & (steps.at(begin - 1) < 0) if len(begin) else np.zeros(0, dtype=bool)
    begin = np.maximum(begin, _last_before(forward_ends, start))
    # After an operator that is part of an update (unscaling) more of it follows; after a whole step none does.
    goes_on = np.append(True, kinds.dispatched[rows.name[order[:-1]]]) if len(order) else usable
    again = np.append(False, begin[1:] == begin[:-1]) if len(order) else usable
    usable &= ~again | goes_on
    begin = np.where(again, np.append(start[:1], start[:-1]), begin)
    return Spans(begin[usable], start[usable])


def _last_before(times: Int64, limit: Int64) -> Int64:
    """The last of the times (in order) up to each limit; -1 where there is none."""
    place = np.searchsorted(times, limit, side="right") - 1
    return np.where(place >= 0, times[np.maximum(place, 0)], -1) if len(times) else np.full(len(limit), -1)


def _closures(rows: HostRows, nodes: Nodes, differentiated: Bool, steps: Spans) -> Spans:
    """Steps of an optimizer in which forward operators run, until the last node (or operator) in them ends."""
    end = np.full(len(steps.start_ns), -1, dtype=np.int64)
    for marked in (differentiated, nodes.is_node):
        place = steps.at(rows.start_ns[marked])
        inside = place >= 0
        last = np.full(len(end), -1, dtype=np.int64)
        np.maximum.at(last, place[inside], rows.end_ns[marked][inside])
        end = np.where((end >= 0) | (marked is differentiated), np.maximum(end, last), end)
    runs = end >= 0
    return Spans(steps.start_ns[runs], end[runs])


def _autograd_threads(rows: HostRows, kinds: NameKinds, nodes: Nodes, known: Int64, of_loop: Bool) -> Int64:
    """Threads with nodes and nothing of the training loop: neither forward operators nor steps nor a user's range
    around nodes."""
    outside = nodes.enclosing < 0
    ranges = (rows.annotation != 0) & ~kinds.machinery[rows.name] & contains(rows, nodes.is_node)
    loop = outside & (of_loop | ranges | ((known >= 0) & (known != BACKWARD)))
    threads = distinct(rows.thread[nodes.is_node]).values
    return threads[~is_among(threads, rows.thread[loop])]
