"""Phases where no range of a capture says them: by autograd's nodes, optimizers' ranges and what was differentiated."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from opanatomy.attribution.moments import Moments, moments_of
from opanatomy.attribution.names import NameKinds
from opanatomy.attribution.nesting import nearest_above
from opanatomy.attribution.nodes import Nodes
from opanatomy.attribution.rows import HostRows, contains
from opanatomy.records.columns import Bool, Int64, at, is_among, rows_by_value
from opanatomy.records.taxonomy import BACKWARD, FORWARD, OPTIMIZER, OTHER


class Inference(Struct, frozen=True):
    """The phase of each host row."""

    phase: Int64
    #: Rows that enclose others which say their phase, where nothing says that of the row: a step, a range of the loop.
    wraps: Bool
    moments: Moments
    #: Whether anything is known of a forward. Where not, all that nothing else is said of is forward.
    differentiates: bool

    def at(self, thread: Int64, time_ns: Int64) -> Int64:
        """The phase of what begins at a time on a thread outside of all marked events."""
        phase = _by_time(self.moments, thread, time_ns)
        return np.where(phase >= 0, phase, OTHER if self.differentiates else FORWARD)


def infer(rows: HostRows, kinds: NameKinds, nodes: Nodes) -> Inference:
    """The phases of all host rows; the innermost wins among nodes, ranges of optimizers and differentiated operators.

    A trace without a backward is of inference: all of it is forward but what a range says otherwise of.
    """
    known = kinds.known[rows.name]
    differentiated = differentiated_operators(nodes)
    moments = moments_of(rows, kinds, nodes, known, differentiated)
    code = np.where(nodes.is_node, BACKWARD, known)
    code[differentiated] = FORWARD
    code[(code < 0) & _encloses_forward(rows, kinds, differentiated, moments)] = FORWARD
    marker = nearest_above(code >= 0, rows.parent)
    phase = at(code, marker)
    in_closure = (phase == OPTIMIZER) & (moments.closures.at(rows.start_ns) >= 0)
    places = np.flatnonzero((phase < 0) | in_closure)
    if differentiated.any():
        inferred = _unmarked(rows, kinds, nodes, differentiated, moments, places, in_closure[places])
    else:
        inferred = _by_time(moments, rows.thread[places], rows.start_ns[places])
        inferred = np.where(inferred >= 0, inferred, FORWARD)
    phase[places] = np.where(inferred >= 0, inferred, phase[places])
    phase[_seeds(rows, kinds, moments) & (nodes.enclosing < 0)] = BACKWARD
    helpers, launched = _helpers(rows, kinds, np.flatnonzero(marker < 0))
    phase[helpers] = phase[launched]
    wraps = (marker < 0) & contains(rows, code >= 0)
    return Inference(phase, wraps, moments, bool(differentiated.any()))


def differentiated_operators(nodes: Nodes) -> Bool:
    """Operators outside of all nodes whose result a node differentiates."""
    operators = np.zeros(len(nodes.forward), dtype=bool)
    operators[nodes.forward[nodes.forward >= 0]] = True
    return operators & (nodes.enclosing < 0)


def _encloses_forward(rows: HostRows, kinds: NameKinds, differentiated: Bool, moments: Moments) -> Bool:
    """Events that enclose operators of a forward in which no backward and no update begins; a step is none."""
    is_step = np.array([number is not None for number in kinds.step], dtype=bool)[rows.name]
    enclosing = np.flatnonzero(contains(rows, differentiated) & ~is_step)
    begun, ended = (np.searchsorted(moments.breaks, times[enclosing]) for times in (rows.start_ns, rows.end_ns))
    encloses = np.zeros(len(rows.name), dtype=bool)
    encloses[enclosing[begun == ended]] = True
    return encloses


def _by_time(moments: Moments, thread: Int64, time_ns: Int64) -> Int64:
    """The phase of times outside of marked events: backward on autograd's threads, optimizer before an update, forward
    between two operators of one forward; else -1."""
    on_autograd = is_among(thread, moments.autograd)
    updating = moments.updates.at(time_ns) >= 0
    before, after = _between_forward(moments, thread, time_ns)
    return np.select([on_autograd, updating, before & after], [BACKWARD, OPTIMIZER, FORWARD], -1)


def _between_forward(moments: Moments, thread: Int64, time_ns: Int64) -> tuple[Bool, Bool]:
    """Whether an operator of a forward came before on the thread, and comes after, with no backward or update in
    between."""
    before, after = np.zeros(len(time_ns), dtype=bool), np.zeros(len(time_ns), dtype=bool)
    breaks = np.searchsorted(moments.breaks, time_ns, side="right")
    for here, start, end in _forward_on(moments, thread):
        place = np.searchsorted(start, time_ns[here], side="right")
        last, following = np.maximum(place - 1, 0), np.minimum(place, len(start) - 1)
        before[here] = (place > 0) & (np.searchsorted(moments.breaks, end[last]) == breaks[here])
        after[here] = (place < len(start)) & (np.searchsorted(moments.breaks, start[following]) == breaks[here])
    return before, after


def _unmarked(
    rows: HostRows, kinds: NameKinds, nodes: Nodes, differentiated: Bool, moments: Moments, places: Int64, inside: Bool
) -> Int64:
    """The phases of rows that nothing enclosing them says; -1 for those `inside` an optimizer that are its own."""
    thread, start = rows.thread[places], rows.start_ns[places]
    by_time = _by_time(moments, thread, start)
    before, after = _between_forward(moments, thread, start)
    same_step = np.searchsorted(moments.steps, start, side="right") == np.searchsorted(
        moments.steps, _next_forward(moments, thread, start), side="right"
    )
    numbered = within(rows, (rows.sequence >= 0) | kinds.sharded[rows.name])[places]
    aside = _aside(rows, kinds, nodes, differentiated)[places] & ~inside
    last_mark, next_mark = _marks_with(moments, start)
    sends, receives = (within(rows, kind[rows.name])[places] for kind in (kinds.sends, kinds.receives))
    passes = np.array([FORWARD, BACKWARD])
    within_backward = (last_mark == BACKWARD) & (next_mark == BACKWARD) & is_among(thread, moments.backward)
    updated = ~before & _after_backward(moments, start)
    return np.select(
        [
            sends & is_among(last_mark, passes),
            receives & is_among(next_mark, passes),
            (by_time == BACKWARD) | ((by_time == OPTIMIZER) & ~inside),
            aside,
            by_time == FORWARD,
            numbered & (before | (after & same_step)),
            within_backward & ~inside,
            inside & updated,
        ],
        [last_mark, next_mark, by_time, OTHER, FORWARD, FORWARD, BACKWARD, -1],
        OTHER,
    )


def _next_forward(moments: Moments, thread: Int64, time_ns: Int64) -> Int64:
    """When the next operator of a forward on the thread starts; the time itself where none does."""
    following = time_ns.copy()
    for here, start, _ in _forward_on(moments, thread):
        place = np.searchsorted(start, time_ns[here], side="right")
        following[here] = np.where(place < len(start), start[np.minimum(place, len(start) - 1)], time_ns[here])
    return following


def _forward_on(moments: Moments, thread: Int64) -> Iterator[tuple[Int64, Int64, Int64]]:
    """For each thread with a forward its places in `thread`, and the starts and latest ends of its operators."""
    for number, places in rows_by_value(thread):
        if number in moments.forward:
            yield places, *moments.forward[number]


def _after_backward(moments: Moments, time_ns: Int64) -> Bool:
    """Whether the last to begin before each time, of nodes and optimizers, was a node."""
    breaks = np.searchsorted(moments.breaks, time_ns, side="right") - 1
    last = np.where(breaks >= 0, moments.breaks[np.maximum(breaks, 0)], -1) if len(moments.breaks) else breaks
    return is_among(last, moments.nodes)


def _marks_with(moments: Moments, time_ns: Int64) -> tuple[Int64, Int64]:
    """The phases of what began last before each time, and of what begins next."""
    starts, phases = moments.marks
    place = np.searchsorted(starts, time_ns, side="right")
    padded = np.concatenate(([OTHER], phases, [OTHER]))
    return padded[place], padded[place + 1]


def _helpers(rows: HostRows, kinds: NameKinds, unmarked: Int64) -> tuple[Int64, Int64]:
    """The annotations of a backend on threads of its own, and the collective started last before each."""
    helpers = unmarked[kinds.backend[rows.name[unmarked]] & (rows.parent[unmarked] < 0)]
    launches = np.flatnonzero(kinds.communication[rows.name] & ~kinds.backend[rows.name])
    launches = launches[np.argsort(rows.start_ns[launches], kind="stable")]
    place = np.searchsorted(rows.start_ns[launches], rows.start_ns[helpers], side="right") - 1
    return helpers[place >= 0], launches[place[place >= 0]]


def within(rows: HostRows, marked: Bool) -> Bool:
    """Whether a row is marked or inside a marked one."""
    inside: Bool = nearest_above(marked, rows.parent) >= 0
    return inside


def _aside(rows: HostRows, kinds: NameKinds, nodes: Nodes, differentiated: Bool) -> Bool:
    """Whether an event lies in an annotation of the loop in which nothing was differentiated: loading, metrics."""
    is_step = np.array([number is not None for number in kinds.step], dtype=bool)[rows.name]
    operator = nearest_above((rows.sequence >= 0) & (rows.annotation == 0), rows.parent)
    ranges = (rows.annotation != 0) & ~is_step & ~kinds.machinery[rows.name] & ~kinds.backend[rows.name]
    ranges &= (operator < 0) & (kinds.known[rows.name] < 0) & (nodes.module != np.arange(len(rows.name)))
    return within(rows, ranges & ~contains(rows, differentiated))


def _seeds(rows: HostRows, kinds: NameKinds, moments: Moments) -> Bool:
    """The gradient of ones that a backward starts from: made right before its first node."""
    ones = np.flatnonzero(kinds.ones[rows.name] & (rows.sequence < 0))
    following = rows.last[ones] + 1
    next_place = np.minimum(following, len(rows.name) - 1)
    there = (following < len(rows.name)) & (rows.thread[next_place] == rows.thread[ones])
    place = np.searchsorted(moments.nodes, rows.end_ns[ones])
    node = moments.nodes[np.minimum(place, len(moments.nodes) - 1)] if len(moments.nodes) else rows.end_ns[ones]
    starts = (place < len(moments.nodes)) & (~there | (rows.start_ns[next_place] >= node))
    marked = np.zeros(len(rows.name), dtype=bool)
    marked[ones[starts]] = True
    return within(rows, marked)
