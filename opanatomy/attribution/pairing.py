"""Which operator of the forward each autograd node differentiates: by the trace's own flows, else by numbers."""

from __future__ import annotations

import numpy as np

from opanatomy.attribution.nesting import nearest_above
from opanatomy.attribution.rows import HostRows, above, last_started, latest
from opanatomy.records.columns import Bool, Flows, Int64

#: An operator and the parts of it that begin in the same nanosecond.
_NESTED = 16
#: No program runs forwards on more threads than this; a trace that says so is damaged.
_MOST_THREADS = 1000


def forward_of(rows: HostRows, is_node: Bool, same_node: Int64, flows: Flows) -> Int64:
    """For each node the row of the operator whose result it differentiates, -1 for other rows and where not known.

    The profiler links them by `fwdbwd` flows. Sequence numbers are the second source: they are counted thread by
    thread, and the last operator with a node's number on the thread that made the node is the one. What ran in the same
    place as the node goes first: outside of all nodes, or in the node in which checkpointing differentiates what it
    recomputed. A number that recomputation took again on the device thread is not mistaken for one of the forward.
    """
    found = np.full(len(rows.name), -1, dtype=np.int64)
    _by_flows(rows, is_node, flows, found)
    inside = _inside(rows, is_node, same_node)
    _by_numbers(rows, is_node, inside, found)
    _by_numbers(rows, is_node, np.full(len(inside), -1, dtype=np.int64), found)
    _within_evaluations(rows, is_node, same_node, found)
    return found


def _by_flows(rows: HostRows, is_node: Bool, flows: Flows, found: Int64) -> None:
    node = _starting(rows, flows.backward_thread, flows.backward_ns, is_node, None)
    number = above(rows.sequence, node)
    forward = _starting(rows, flows.forward_thread, flows.forward_ns, ~is_node, np.where(number >= 0, number, -2))
    known = (node >= 0) & (forward >= 0)
    found[node[known]] = forward[known]


def _starting(rows: HostRows, thread: Int64, time_ns: Int64, wanted: Bool, sequence: Int64 | None) -> Int64:
    """The innermost wanted row (with this sequence number) that starts at each time on each thread; -1 where none."""
    row = last_started(rows, thread, time_ns)
    for _ in range(_NESTED):
        here = (row >= 0) & (above(rows.start_ns, row) == time_ns) & (above(rows.thread, row) == thread)
        row = np.where(here, row, -1)
        fits = (row >= 0) & wanted[row] if len(wanted) else row >= 0
        if sequence is not None:
            fits &= above(rows.sequence, row) == sequence
        if (fits | (row < 0)).all():
            break
        row = np.where(fits | (row < 0), row, row - 1)
    return np.where(fits, row, -1) if len(row) else row


def _inside(rows: HostRows, is_node: Bool, same_node: Int64) -> Int64:
    """For each row the innermost node around it, for a node around its evaluation; -1 outside of all nodes."""
    outer = above(nearest_above(is_node, rows.parent), rows.parent)
    evaluated = is_node & (above(same_node, outer) == rows.name) & (outer >= 0)
    return np.where(evaluated, above(outer, outer), outer)


def _by_numbers(rows: HostRows, is_node: Bool, inside: Int64, found: Int64) -> None:
    """Pair the nodes that have no operator yet with those of their number in the same place, which `inside` numbers."""
    nodes = np.flatnonzero(is_node & (rows.sequence >= 0))
    operators = np.flatnonzero(~is_node & (rows.sequence >= 0))
    operators = operators[np.isin(rows.sequence[operators], rows.sequence[nodes])]
    key = _keys(rows.sequence, inside)
    threads = _threads(rows, key, nodes, operators, found)
    for made_on, thread in threads.items():
        among = operators[rows.thread[operators] == thread] if thread is not None else operators
        left = nodes[(rows.forward_thread[nodes] == made_on) & (found[nodes] < 0)]
        last = latest(rows, key, among)
        if len(last) and len(left):
            at = np.minimum(np.searchsorted(key[last], key[left]), len(last) - 1)
            known = (key[last[at]] == key[left]) & (rows.start_ns[last[at]] < rows.start_ns[left])
            found[left[known]] = last[at[known]]


def _keys(sequence: Int64, inside: Int64) -> Int64:
    """One number for each sequence number and place."""
    numbers, place = np.unique(sequence, return_inverse=True)
    return np.asarray(place.reshape(-1) + len(numbers) * (inside + 1), dtype=np.int64)


def _threads(rows: HostRows, key: Int64, nodes: Int64, operators: Int64, found: Int64) -> dict[int, int | None]:
    """The thread of the operators that each number of a forward thread means: by flows, else the one on which most of
    its nodes' numbers are; those with most nodes choose first. `None` where a trace does not number threads."""
    made_on, counts = np.unique(rows.forward_thread[nodes], return_counts=True)
    chosen: dict[int, int | None] = {}
    for number in made_on[np.argsort(-counts, kind="stable")][:_MOST_THREADS].tolist():
        if number <= 0:
            chosen[number] = None
            continue
        mine = nodes[rows.forward_thread[nodes] == number]
        paired = found[mine][found[mine] >= 0]
        free = operators[~np.isin(rows.thread[operators], [t for t in chosen.values() if t is not None])]
        votes = rows.thread[paired] if len(paired) else rows.thread[_distinct(rows, key, free, mine)]
        if len(votes):
            chosen[number] = int(np.bincount(votes).argmax())
    return chosen


def _distinct(rows: HostRows, key: Int64, among: Int64, nodes: Int64) -> Int64:
    """Of the rows `among` one for each thread and key of the nodes."""
    among = among[np.isin(key[among], key[nodes])]
    order = among[np.lexsort((key[among], rows.thread[among]))]
    thread, number = rows.thread[order], key[order]
    first = np.append(True, (thread[1:] != thread[:-1]) | (number[1:] != number[:-1]))
    one_each: Int64 = order[first[: len(order)]]
    return one_each


def _within_evaluations(rows: HostRows, is_node: Bool, same_node: Int64, found: Int64) -> None:
    """An evaluation and the node that it runs have the same forward operator."""
    nodes = np.flatnonzero(is_node & (rows.parent >= 0))
    outer = nearest_above(is_node, rows.parent)[rows.parent[nodes]]
    same = (outer >= 0) & (above(same_node, outer) == rows.name[nodes])
    inner, outer = nodes[same], outer[same]
    known = np.maximum(found[inner], found[outer])
    found[inner] = np.where(found[inner] < 0, known, found[inner])
    found[outer] = np.where(found[outer] < 0, known, found[outer])
