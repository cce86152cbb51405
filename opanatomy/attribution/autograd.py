"""Find autograd nodes, the operators that they differentiate, and what is recomputed inside them."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from opanatomy.attribution.names import NameKinds
from opanatomy.attribution.nesting import NEVER, HostRows, contains, last_started, latest, nearest_above
from opanatomy.records.columns import Bool, Categorical, Flows, Int64, at, distinct, is_among, rows_by_value
from opanatomy.records.taxonomy import BACKWARD

# ----- forward operators of nodes


#: Events that may start in the same nanosecond: an operator and its parts.
_NESTED = 16
#: The most forward threads of a program; a trace with more is damaged.
MAX_THREADS = 1000


def forward_of(rows: HostRows, is_node: Bool, same_node: Int64, flows: Flows) -> Int64:
    """Return for each node the row of the operator that it differentiates; -1 for other rows and if unknown.

    The profiler links them by `fwdbwd` flows. Sequence numbers are the second source: they are counted per thread, and
    the last operator with a node's number on the thread that made the node matches. Operators in the same place as the
    node are tried first: outside all nodes, or in the node where checkpointing differentiates what it recomputed. So a
    number that recomputation reused on the device thread is not mistaken for one of the forward.
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
    """Return the innermost wanted row (with this sequence number) that starts at each time on each thread, else -1."""
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
    """Return the innermost node around each row (for a node, around its evaluation); -1 outside all nodes."""
    outer = at(nearest_above(is_node, rows.parent), rows.parent)
    evaluated = is_node & (at(same_node, outer) == rows.name) & (outer >= 0)
    return np.where(evaluated, at(outer, outer), outer)


def _by_numbers(rows: HostRows, is_node: Bool, inside: Int64, forward: Int64) -> None:
    """Pair nodes that have no operator yet with operators of the same number and place (`inside`)."""
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
    """Number each pair of sequence number and place."""
    numbers = distinct(sequence)
    return numbers.inverse + len(numbers.values) * (inside + 1)


def _threads(
    rows: HostRows, key: Int64, made: dict[int, Int64], operators: Int64, forward: Int64
) -> dict[int, int | None]:
    """Map each forward thread number to the thread of its operators; `None` if the trace does not number threads.

    Flows decide, else the thread with most of the nodes' numbers; numbers with most nodes choose first.
    """
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
    """Return one of the rows `among` for each key and thread, sorted by key."""
    order = among[np.lexsort((rows.thread[among], key[among]))]
    thread, number = rows.thread[order], key[order]
    first = np.append(True, (thread[1:] != thread[:-1]) | (number[1:] != number[:-1]))
    first_rows: Int64 = order[first[: len(order)]]
    return first_rows


def _among(keys: Int64, wanted: Int64) -> Int64:
    """Return the places of the wanted keys in `keys`, which are sorted."""
    low, high = np.searchsorted(keys, wanted), np.searchsorted(keys, wanted, side="right")
    counts = high - low
    begins = np.cumsum(counts) - counts
    places: Int64 = np.arange(int(counts.sum())) + np.repeat(low - begins, counts)
    return places


def _within_evaluations(rows: HostRows, is_node: Bool, same_node: Int64, forward: Int64) -> None:
    """Give an evaluation and the node that it runs the same forward operator."""
    nodes = np.flatnonzero(is_node & (rows.parent >= 0))
    outer = nearest_above(is_node, rows.parent)[rows.parent[nodes]]
    same = (outer >= 0) & (at(same_node, outer) == rows.name[nodes])
    inner, outer = nodes[same], outer[same]
    known = np.maximum(forward[inner], forward[outer])
    forward[inner] = np.where(forward[inner] < 0, known, forward[inner])
    forward[outer] = np.where(forward[outer] < 0, known, forward[outer])


#: The forward thread of events that are not nodes; nodes have the thread that made them.
_FORWARD_THREAD = 0


class Nodes(Struct, frozen=True):
    """Autograd nodes, the innermost node and module range around each host row, and each node's forward operator.

    A node encloses itself; -1 is none.
    """

    is_node: Bool
    enclosing: Int64
    module: Int64
    forward: Int64


def nodes_of(rows: HostRows, kinds: NameKinds, flows: Flows) -> Nodes:
    """Return the autograd nodes of a trace."""
    is_node = kinds.node[rows.name] & (rows.annotation == 0)
    is_module = np.array([path is not None for path in kinds.module], dtype=bool)[rows.name]
    return Nodes(
        is_node=is_node,
        enclosing=nearest_above(is_node, rows.parent),
        module=nearest_above(is_module, rows.parent),
        forward=forward_of(rows, is_node, kinds.same_node[rows.name], flows),
    )


def recomputed(rows: HostRows, kinds: NameKinds, nodes: Nodes) -> Bool:
    """Return which events run forward operators again inside an autograd node.

    Backward runs without gradient mode, so an operator below a node that was dispatched with its own sequence number is
    a recomputed forward. Everything between the node's start and the last such operator is recomputation too (a
    `torch.no_grad` part of the forward has no numbers), and so is a module range inside a node. Collectives have
    numbers without being forward, and so does everything in a backward that runs in gradient mode (`create_graph`,
    `torch.func.grad`) or differentiates its own scalar.
    """
    node = nodes.enclosing
    below = (node >= 0) & (node != np.arange(len(node)))
    runs_forward = (nodes.module > node) | kinds.sharded[rows.name] | _own_numbers(rows, kinds, nodes)
    forward = below & ~nodes.is_node & runs_forward
    last_forward = np.full(len(node), NEVER, dtype=np.int64)
    np.maximum.at(last_forward, node[forward], rows.end_ns[forward])
    again: Bool = forward | (below & (rows.end_ns <= last_forward[node]))
    # Sharded weights are gathered for the backward where a node begins, before its forward is run again.
    gathers = kinds.known[rows.name] == BACKWARD
    return again & (nearest_above(gathers, rows.parent) <= node) if gathers.any() else again


def _own_numbers(rows: HostRows, kinds: NameKinds, nodes: Nodes) -> Bool:
    """Return whether the number of an operator below a node marks it as forward.

    A Python function has a number whether gradients are recorded or not. It is forward if an operator in it is, if a
    node inside the same node differentiates it, or if checkpointing keeps what it saves.
    """
    numbered = (rows.sequence >= 0) & (rows.forward_thread == _FORWARD_THREAD) & (nodes.enclosing >= 0) & ~nodes.is_node
    numbered &= ~kinds.communication[rows.name]
    numbered &= ~(_with_gradients(rows, kinds, nodes) | _differentiates_own_scalar(rows, kinds, nodes))[nodes.enclosing]
    operators = numbered & kinds.dispatched[rows.name]
    nested = nodes.is_node & (rows.parent >= 0) & (nodes.enclosing[rows.parent] >= 0)
    functions = contains(rows, operators) | _saves_again(rows, kinds, nodes)
    functions[nodes.forward[nested & (nodes.forward >= 0)]] = True
    of_forward: Bool = operators | (numbered & functions)
    return of_forward


def _saves_again(rows: HostRows, kinds: NameKinds, nodes: Nodes) -> Bool:
    """Return which rows apply the function that their node differentiates, and detach what it saves.

    Checkpointing without reentry does so, at the end of the function and only when it runs again.
    """
    last = np.full(len(rows.name), -1, dtype=np.int64)
    below = np.flatnonzero(rows.parent >= 0)
    last[rows.parent[below]] = below
    detaches = (last >= 0) & kinds.detach[rows.name[last]]
    forward = at(nodes.forward, nodes.enclosing)
    same: Bool = (forward >= 0) & (at(rows.name, forward) == rows.name) & ~kinds.dispatched[rows.name]
    return same & detaches & ~detaches[forward]


def _differentiates_own_scalar(rows: HostRows, kinds: NameKinds, nodes: Nodes) -> Bool:
    """Return which nodes start a backward from ones, to differentiate a scalar that they compute for it.

    A forward that is run again to be differentiated gets the incoming gradient instead.
    """
    ones = np.flatnonzero(kinds.ones[rows.name] & (nodes.enclosing >= 0))
    following = np.minimum(rows.last[ones] + 1, len(rows.name) - 1)
    ones = ones[nodes.is_node[following] & (rows.parent[following] == rows.parent[ones])]
    differentiates = np.zeros(len(rows.name), dtype=bool)
    differentiates[nodes.enclosing[ones]] = True
    return differentiates


def _with_gradients(rows: HostRows, kinds: NameKinds, nodes: Nodes) -> Bool:
    """Return which nodes ran in gradient mode: the last operator that a node of torch's own calls has a number.

    What a node runs again comes before its derivative, which has no number. Python functions say nothing and follow the
    node before (else after) them in their pass: nodes on one level of nesting with no numbered operator in between.
    """
    count = len(rows.name)
    called = np.flatnonzero((rows.parent >= 0) & kinds.dispatched[rows.name] & ~nodes.is_node)
    called = called[kinds.derivative[rows.name[rows.parent[called]]] & nodes.is_node[rows.parent[called]]]
    last = np.full(count, -1, dtype=np.int64)
    last[rows.parent[called]] = called  # in nesting order: the last one stays
    root = _root(rows, kinds, nodes)
    known = np.flatnonzero(last >= 0)
    mode = np.full(count, -1, dtype=np.int64)
    mode[root[known]] = rows.sequence[last[known]] >= 0
    if not (mode > 0).any():
        return np.zeros(count, dtype=bool)
    level = at(root, np.where(rows.parent >= 0, nodes.enclosing[rows.parent], -1))
    order = np.lexsort((rows.start_ns, level))
    begins = (~nodes.is_node & (rows.sequence >= 0))[order] | np.append(True, np.diff(level[order]) != 0)
    passes, mode = np.cumsum(begins), mode[order]
    place = np.arange(count)
    before = np.maximum.accumulate(np.where(mode >= 0, place, -1))
    after = np.minimum.accumulate(np.where(mode >= 0, place, count - 1)[::-1])[::-1]
    in_pass = (before >= 0) & (passes[before] == passes)
    nearest = np.where(in_pass, mode[before], np.where(passes[after] == passes, mode[after], 0))
    with_gradients = np.empty(count, dtype=bool)
    with_gradients[order] = nearest > 0
    of_nodes: Bool = nodes.is_node & with_gradients[np.maximum(root, 0)]
    return of_nodes


def _root(rows: HostRows, kinds: NameKinds, nodes: Nodes) -> Int64:
    """Return for each node the evaluation that runs it, or the node itself; -1 for other rows."""
    place = np.arange(len(rows.name))
    outer = np.where(rows.parent >= 0, nodes.enclosing[rows.parent], -1)
    same = (outer >= 0) & (at(kinds.same_node, at(rows.name, outer)) == rows.name)
    return np.where(nodes.is_node, np.where(same, outer, place), -1)


def modules_of(rows: HostRows, kinds: NameKinds, nodes: Nodes) -> Categorical[str]:
    """Return module paths: the innermost range, in backward that of the forward operator (itself maybe in a node)."""
    module, node = nodes.module, nodes.enclosing
    paths = tuple(path for path in kinds.module if path is not None)
    if not (module >= 0).any():
        return Categorical(np.full(len(module), -1, dtype=np.int64), paths)
    inside = np.flatnonzero((node >= 0) & (module <= node))
    current = np.full(len(module), -1, dtype=np.int64)
    # A node without a number (one that accumulates a gradient) follows the one before it on its thread.
    numbered = np.where(rows.sequence[node[inside]] >= 0, np.arange(len(inside)), -1)
    before = np.maximum.accumulate(numbered)
    same_thread = (before >= 0) & (rows.thread[inside[before]] == rows.thread[inside]) if len(inside) else before >= 0
    current[inside] = np.where(same_thread, node[inside[before]], -1) if len(inside) else -1
    innermost = np.where(module > node, module, -1)
    wanted, of_node = inside, current[inside]
    while len(wanted):
        forward = at(nodes.forward, of_node)
        within = at(current, forward)
        innermost[wanted] = np.where(within < 0, at(innermost, forward), -1)
        # The forward ran before its node; in a damaged trace where it did not, the loop would not end.
        deeper = (within >= 0) & (at(rows.start_ns, within) < at(rows.start_ns, of_node))
        wanted, of_node = wanted[deeper], within[deeper]
    place = np.cumsum([path is not None for path in kinds.module]) - 1
    return Categorical(at(place[rows.name], innermost), paths)
