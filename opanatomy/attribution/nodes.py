"""Autograd's nodes in a trace: what runs in which, which operators each differentiates, what is run again in them."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from opanatomy.attribution.names import NameKinds
from opanatomy.attribution.nesting import nearest_above
from opanatomy.attribution.pairing import forward_of
from opanatomy.attribution.rows import NEVER, HostRows, contains
from opanatomy.records.columns import Bool, Categorical, Flows, Int64, at, is_among
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
    (a `torch.no_grad` part of the forward has no numbers). A module range inside a node says the same. Collectives and
    functions that a node's own backward applies have numbers without being forward, and so has all that runs in a
    backward whose result is differentiated again (`create_graph`).
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
    """Whether a number of an operator below a node says that it is of a forward."""
    communicates = kinds.communication[rows.name]
    numbered = (rows.sequence >= 0) & (rows.forward_thread == _FORWARD_THREAD) & (nodes.enclosing >= 0) & ~nodes.is_node
    plain = ~communicates & (kinds.dispatched[rows.name] | ~_applied_in_backward(rows, kinds, nodes, numbered))
    of_forward: Bool = numbered & plain & ~_differentiated_again(rows, kinds, nodes)[nodes.enclosing]
    return of_forward


def _applied_in_backward(rows: HostRows, kinds: NameKinds, nodes: Nodes, numbered: Bool) -> Bool:
    """Which Python functions a node's backward applies for itself: they communicate, are the node's own function, or
    leave the thread's count of numbers as it was."""
    functions = np.flatnonzero(numbered & ~kinds.dispatched[rows.name])
    if not len(functions):
        return np.zeros(len(rows.name), dtype=bool)
    applied = contains(rows, kinds.communication[rows.name])
    with_number = np.flatnonzero((rows.sequence >= 0) & ~nodes.is_node)
    following = with_number[np.minimum(np.searchsorted(with_number, functions, side="right"), len(with_number) - 1)]
    applied[functions] |= (
        (following > functions)
        & (rows.thread[following] == rows.thread[functions])
        & (rows.sequence[following] == rows.sequence[functions])
        & (rows.start_ns[following] >= rows.end_ns[functions])
    )
    differentiated = nodes.forward[nodes.enclosing[functions]]
    applied[functions] |= (differentiated >= 0) & (at(rows.name, differentiated) == rows.name[functions])
    return applied


def _differentiated_again(rows: HostRows, kinds: NameKinds, nodes: Nodes) -> Bool:
    """Which nodes ran with `create_graph`: an operator in one of their pass is differentiated by a node outside.

    A pass is what runs without an operator with a number in between, on the same level of nesting.
    """
    count = len(rows.name)
    root_of = _root(rows, kinds, nodes)
    pairs = np.flatnonzero(nodes.is_node & (nodes.forward >= 0))
    inside = nodes.enclosing[nodes.forward[pairs]]
    root = at(root_of, inside)
    evidence = root[(root >= 0) & (rows.start_ns[pairs] >= at(rows.end_ns, root))]
    if not len(evidence):
        return np.zeros(count, dtype=bool)
    level = at(root_of, np.where(rows.parent >= 0, nodes.enclosing[rows.parent], -1))
    order = np.lexsort((rows.start_ns, level))
    begins = ~nodes.is_node & (rows.sequence >= 0)
    begins = begins[order] | np.append(True, np.diff(level[order]) != 0)
    passes = np.empty(count, dtype=np.int64)
    passes[order] = np.cumsum(begins)
    again = is_among(passes, passes[evidence])
    again_below: Bool = nodes.is_node & again[np.maximum(root_of, 0)]
    return again_below


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
