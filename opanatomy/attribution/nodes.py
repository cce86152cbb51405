"""Autograd's nodes in a trace: what runs in which, which operators each differentiates, what is run again in them."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from opanatomy.attribution.names import NameKinds
from opanatomy.attribution.nesting import nearest_above
from opanatomy.attribution.pairing import forward_of
from opanatomy.attribution.rows import NEVER, HostRows, contains
from opanatomy.records.columns import Bool, Categorical, Flows, Int64, at
from opanatomy.records.taxonomy import BACKWARD

#: What takes part in no forward: operators carry this number where nodes have the thread that made them.
_FORWARD_THREAD = 0


class Nodes(Struct, frozen=True):
    """For each host row: whether it is a node, the innermost node that encloses it (itself included), the innermost
    module range, and for nodes the operator that each differentiates; -1 is none."""

    is_node: Bool
    enclosing: Int64
    module: Int64
    forward: Int64


def nodes_of(rows: HostRows, kinds: NameKinds, flows: Flows) -> Nodes:
    """The nodes of a trace."""
    is_node = kinds.node[rows.name] & (rows.annotation == 0)
    is_module = np.array([path is not None for path in kinds.module], dtype=bool)[rows.name]
    return Nodes(
        is_node=is_node,
        enclosing=nearest_above(is_node, rows.parent),
        module=nearest_above(is_module, rows.parent),
        forward=forward_of(rows, is_node, kinds.same_node[rows.name], flows),
    )


def recomputed(rows: HostRows, kinds: NameKinds, nodes: Nodes) -> Bool:
    """Whether an event runs forward operators again inside an autograd node.

    Backward runs without gradient mode, so an operator below a node that was dispatched with a sequence number of its
    own is a recomputed forward; what ran between the node's start and the last such operator is recomputation too
    (a `torch.no_grad` part of the forward has no numbers). A module range inside a node says the same. Collectives
    have numbers without being forward, and so has all that runs in a backward in gradient mode (`create_graph`,
    `torch.func.grad`) or in one that differentiates a scalar of its own.
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
    """Whether a number of an operator below a node says that it is of a forward.

    A Python function has one whether gradients are recorded or not: it is of a forward where an operator in it is,
    where a node inside the same one differentiates it, or where checkpointing keeps what it saves.
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
    """Whether a node applies the function that it differentiates, and detaches what this saves.

    Checkpointing does so (without reentry), at the end of the function and only when it runs again.
    """
    last = np.full(len(rows.name), -1, dtype=np.int64)
    below = np.flatnonzero(rows.parent >= 0)
    last[rows.parent[below]] = below
    detaches = (last >= 0) & kinds.detach[rows.name[last]]
    forward = at(nodes.forward, nodes.enclosing)
    same: Bool = (forward >= 0) & (at(rows.name, forward) == rows.name) & ~kinds.dispatched[rows.name]
    return same & detaches & ~detaches[forward]


def _differentiates_own_scalar(rows: HostRows, kinds: NameKinds, nodes: Nodes) -> Bool:
    """Which nodes start a backward from ones: their derivative is that of a scalar which they compute for it.

    What is run again to be differentiated gets the gradient that came in.
    """
    ones = np.flatnonzero(kinds.ones[rows.name] & (nodes.enclosing >= 0))
    following = np.minimum(rows.last[ones] + 1, len(rows.name) - 1)
    ones = ones[nodes.is_node[following] & (rows.parent[following] == rows.parent[ones])]
    differentiates = np.zeros(len(rows.name), dtype=bool)
    differentiates[nodes.enclosing[ones]] = True
    return differentiates


def _with_gradients(rows: HostRows, kinds: NameKinds, nodes: Nodes) -> Bool:
    """Which nodes ran in gradient mode: the last operator that a node of torch's own calls has a number.

    What a node runs again comes before its derivative, which has none. Python functions, which say nothing, are as the
    node before (else after) them in their pass: what runs without an operator with a number in between, on the same
    level of nesting.
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
    """For each node the evaluation that runs it, itself where there is none; -1 for other rows."""
    place = np.arange(len(rows.name))
    outer = np.where(rows.parent >= 0, nodes.enclosing[rows.parent], -1)
    same = (outer >= 0) & (at(kinds.same_node, at(rows.name, outer)) == rows.name)
    return np.where(nodes.is_node, np.where(same, outer, place), -1)


def modules_of(rows: HostRows, kinds: NameKinds, nodes: Nodes) -> Categorical[str]:
    """Module paths: the innermost range in forward; in backward that of the operator which the node differentiates,
    which may lie in another node itself."""
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
        # What is differentiated ran before; a trace in which it did not has no end of it.
        deeper = (within >= 0) & (at(rows.start_ns, within) < at(rows.start_ns, of_node))
        wanted, of_node = wanted[deeper], within[deeper]
    place = np.cumsum([path is not None for path in kinds.module]) - 1
    return Categorical(at(place[rows.name], innermost), paths)
