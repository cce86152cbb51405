"""Which operator of the forward each autograd node differentiates: by the trace's own flows, else by numbers."""

from __future__ import annotations

import numpy as np

from opanatomy.attribution.nesting import nearest_above
from opanatomy.attribution.rows import HostRows, last_started, latest
from opanatomy.records.columns import Bool, Flows, Int64, at, distinct, is_among, rows_by_value

#: An operator and the parts of it that begin in the same nanosecond.
_NESTED = 16
#: No program runs forwards on more threads than this; a trace that says so is damaged.
MAX_THREADS = 1000


def forward_of(rows: HostRows, is_node: Bool, same_node: Int64, flows: Flows) -> Int64:
    """For each node the row of the operator whose result it differentiates, -1 for other rows and where not known.

    The profiler links them by `fwdbwd` flows. Sequence numbers are the second source: they are counted thread by
    thread, and the last operator with a node's number on the thread that made the node is the one. What ran in the same
    place as the node goes first: outside of all nodes, or in the node in which checkpointing differentiates what it
    recomputed. A number that recomputation took again on the device thread is not mistaken for one of the forward.
    """
    forward = np.full(len(rows.name), -1, dtype=np.int64)
    _by_flows(rows, is_node, flows, forward)
    inside = _inside(rows, is_node, same_node)
    _by_numbers(rows, is_node, inside, forward)
    _by_numbers(rows, is_node, np.full(len(inside), -1, dtype=np.int64), forward)
    _within_evaluations(rows, is_node, same_node, forward)
    return forward


def _by_flows(rows: HostRows, is_node: Bool, flows: Flows, forward: Int64) -> None:
    node = _starting(rows, flows.backward_thread, flows.backward_ns, is_node, None)
    number = at(rows.sequence, node)
    operator = _starting(rows, flows.forward_thread, flows.forward_ns, ~is_node, np.where(number >= 0, number, -2))
    known = (node >= 0) & (operator >= 0)
    forward[node[known]] = operator[known]


def _starting(rows: HostRows, thread: Int64, time_ns: Int64, wanted: Bool, sequence: Int64 | None) -> Int64:
    """The innermost wanted row (with this sequence number) that starts at each time on each thread; -1 where none."""
    row = last_started(rows.thread, rows.start_ns, (thread, time_ns))
    for _ in range(_NESTED):
        here = (row >= 0) & (at(rows.start_ns, row) == time_ns) & (at(rows.thread, row) == thread)
        row = np.where(here, row, -1)
        fits = (row >= 0) & wanted[row] if len(wanted) else row >= 0
        if sequence is not None:
            fits &= at(rows.sequence, row) == sequence
        if (fits | (row < 0)).all():
            break
        row = np.where(fits | (row < 0), row, row - 1)
    return np.where(fits, row, -1) if len(row) else row


def _inside(rows: HostRows, is_node: Bool, same_node: Int64) -> Int64:
    """For each row the innermost node around it, for a node around its evaluation; -1 outside of all nodes."""
    outer = at(nearest_above(is_node, rows.parent), rows.parent)
    evaluated = is_node & (at(same_node, outer) == rows.name) & (outer >= 0)
    return np.where(evaluated, at(outer, outer), outer)


def _by_numbers(rows: HostRows, is_node: Bool, inside: Int64, forward: Int64) -> None:
    """Pair the nodes that have no operator yet with those of their number in the same place, which `inside` numbers."""
    nodes = np.flatnonzero(is_node & (rows.sequence >= 0))
    operators = np.flatnonzero(~is_node & (rows.sequence >= 0))
    operators = operators[is_among(rows.sequence[operators], rows.sequence[nodes])]
    key = _keys(rows.sequence, inside)
    by_thread = {thread: operators[places] for thread, places in rows_by_value(rows.thread[operators])}
    made = {number: nodes[places] for number, places in rows_by_value(rows.forward_thread[nodes])}
    for made_on, thread in _threads(rows, key, made, operators, forward).items():
        among = operators if thread is None else by_thread.get(thread, operators[:0])
        left = made[made_on][forward[made[made_on]] < 0]
        last = latest(rows, key, among)
        if len(last) and len(left):
            place = np.minimum(np.searchsorted(key[last], key[left]), len(last) - 1)
            known = (key[last[place]] == key[left]) & (rows.start_ns[last[place]] < rows.start_ns[left])
            forward[left[known]] = last[place[known]]


def _keys(sequence: Int64, inside: Int64) -> Int64:
    """One number for each sequence number and place."""
    numbers = distinct(sequence)
    return numbers.inverse + len(numbers.values) * (inside + 1)


def _threads(
    rows: HostRows, key: Int64, made: dict[int, Int64], operators: Int64, forward: Int64
) -> dict[int, int | None]:
    """The thread of the operators that each number of a forward thread means: by flows, else the one on which most of
    its nodes' numbers are; those with most nodes choose first. `None` where a trace does not number threads."""
    candidates = _first_each(rows, key, operators)
    threads, keys = rows.thread[candidates], key[candidates]
    free = np.ones(int(threads.max(initial=-1)) + 1, dtype=bool)
    chosen: dict[int, int | None] = {}
    for number in sorted(made, key=lambda number: (-len(made[number]), number))[:MAX_THREADS]:
        if number <= 0:
            chosen[number] = None
            continue
        paired = forward[made[number]][forward[made[number]] >= 0]
        votes = rows.thread[paired] if len(paired) else threads[_among(keys, distinct(key[made[number]]).values)]
        votes = votes if len(paired) else votes[free[votes]]
        if len(votes):
            thread = int(np.bincount(votes).argmax())
            chosen[number] = thread
            free[thread : thread + 1] = False
    return chosen


def _first_each(rows: HostRows, key: Int64, among: Int64) -> Int64:
    """Of the rows `among` one for each key and thread, by the keys."""
    order = among[np.lexsort((rows.thread[among], key[among]))]
    thread, number = rows.thread[order], key[order]
    first = np.append(True, (thread[1:] != thread[:-1]) | (number[1:] != number[:-1]))
    first_rows: Int64 = order[first[: len(order)]]
    return first_rows


def _among(keys: Int64, wanted: Int64) -> Int64:
    """The places of the wanted keys in `keys`, which are in order."""
    low, high = np.searchsorted(keys, wanted), np.searchsorted(keys, wanted, side="right")
    counts = high - low
    begins = np.cumsum(counts) - counts
    places: Int64 = np.arange(int(counts.sum())) + np.repeat(low - begins, counts)
    return places


def _within_evaluations(rows: HostRows, is_node: Bool, same_node: Int64, forward: Int64) -> None:
    """An evaluation and the node that it runs have the same forward operator."""
    nodes = np.flatnonzero(is_node & (rows.parent >= 0))
    outer = nearest_above(is_node, rows.parent)[rows.parent[nodes]]
    same = (outer >= 0) & (at(same_node, outer) == rows.name[nodes])
    inner, outer = nodes[same], outer[same]
    known = np.maximum(forward[inner], forward[outer])
    forward[inner] = np.where(forward[inner] < 0, known, forward[inner])
    forward[outer] = np.where(forward[outer] < 0, known, forward[outer])
