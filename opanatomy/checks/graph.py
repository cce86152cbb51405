"""Autograd's graph in a trace: what runs below which backward node, and which operator a node is the backward of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.attribution.matching import last_of
from opanatomy.attribution.names import kinds_of
from opanatomy.attribution.nesting import nearest_above
from opanatomy.records.columns import Bool, HostTable, Int64, distinct, is_among, marked

ENGINE = "autograd::engine::evaluate_function: "
#: How the forward operator of a node was found, or why not.
PAIRED, UNNUMBERED, LOST, BEFORE, AMBIGUOUS, LATE = range(6)


class Graph(Struct, frozen=True, kw_only=True):
    """One entry a host row; -1 is "none"."""

    #: Whether the row is a node of autograd: the engine's event of it, or where there is none the node's own.
    is_node: Bool
    #: The node that each row runs below.
    node: Int64
    #: Whether the row is part of what the node computes; beside it run the hooks.
    in_body: Bool
    #: Of a node the operator it is the backward of.
    forward: Int64
    #: Of a node one of the states above.
    state: Int64
    #: Of a node the sequence number of its forward operator; the engine's event may lack what the node's own has.
    sequence: Int64
    #: The innermost row at or above each that autograd gave a number and that is no node.
    numbered: Int64
    #: Whether the node's own operators were differentiated too (`create_graph`). One with nodes below it runs a forward
    #: and its backward (reentrant checkpointing) instead.
    differentiated: Bool


def graph_of(names: Sequence[str], host: HostTable, *, may_be_cut: bool = True) -> Graph:
    """The nodes of the trace and their forward operators, by structure and sequence numbers.

    A trace that `may_be_cut` can begin after a forward; that of a capture begins with it.
    """
    row = np.arange(len(host.name))
    engine, is_inner, is_node = _nodes(names, host)
    of_node = is_node | is_inner
    outer = np.where(is_inner, host.parent, row)
    above = np.where(host.parent >= 0, nearest_above(of_node, host.parent)[host.parent], -1)
    node = np.where(above >= 0, outer[above], -1)
    bare = engine & ~marked(host.parent[is_inner], len(host.name))
    in_body = (above >= 0) & (~engine[above] | bare[above])
    numbered = (host.sequence >= 0) & ~of_node
    is_node = is_node & ~is_inner
    number = _of_nodes(host.sequence, host, is_inner)
    paired = replace(host, sequence=number, forward_thread=_of_nodes(host.forward_thread, host, is_inner))
    forward, state = _pair(names, paired, np.flatnonzero(is_node & (number >= 0)), np.flatnonzero(numbered))
    if not may_be_cut:
        state[state == BEFORE] = LOST
    return Graph(
        is_node=is_node, node=node, in_body=in_body, forward=forward, state=state, sequence=number,
        numbered=nearest_above(numbered, host.parent),
        differentiated=_differentiated(host, in_body & ~of_node & (above == host.parent), numbered, node)
        & ~marked(node[is_node & (node >= 0)], len(host.name)),
    )  # fmt: skip


def _nodes(names: Sequence[str], host: HostTable) -> tuple[Bool, Bool, Bool]:
    """(the engine's events, the nodes' own events inside them, all events of nodes)."""
    numbers = {name: number for number, name in enumerate(names)}
    inner = np.array([numbers.get(n.removeprefix(ENGINE), -1) if n.startswith(ENGINE) else -1 for n in names])
    engine = np.array([n.startswith(ENGINE) for n in names], dtype=bool)
    above = np.where(host.parent >= 0, host.name[host.parent], -1)
    is_inner = (above >= 0) & (inner[above] == host.name)
    return engine[host.name], is_inner, kinds_of(names).node[host.name]


def _of_nodes(column: Int64, host: HostTable, is_inner: Bool) -> Int64:
    """The column, the engine's events with what the nodes' own inside them have."""
    inner = np.flatnonzero(is_inner & (column >= 0))
    inner = inner[column[host.parent[inner]] < 0]
    found = column.copy()
    found[host.parent[inner]] = column[inner]
    return found


def _differentiated(host: HostTable, is_direct: Bool, numbered: Bool, node: Int64) -> Bool:
    """Whether the last operator directly in a node's body has a number: what is recomputed there comes first."""
    direct = np.flatnonzero(is_direct)
    # rows are in the order of time on each thread, so the last assignment is the last operator
    last = np.full(len(node), -1, dtype=np.int64)
    last[node[direct]] = direct
    found: Bool = (last >= 0) & numbered[last]
    return found


def _pair(names: Sequence[str], host: HostTable, nodes: Int64, operators: Int64) -> tuple[Int64, Int64]:
    """(forward operator, state) of each node: the last operator with its number on the thread that ran the forward."""
    forward, state = np.full(len(host.name), -1, dtype=np.int64), np.full(len(host.name), UNNUMBERED, dtype=np.int64)
    if not len(nodes):
        return forward, state
    state[nodes] = LOST
    order = operators[np.lexsort((host.start_ns[operators], host.sequence[operators], host.thread[operators]))]
    alike = _Alike(names)
    threads = distinct(host.thread[operators]).values.tolist()
    candidates = {thread: _by_number(host, order, thread, nodes) for thread in threads}
    votes = {thread: alike.rows(host, nodes, rows) for thread, rows in candidates.items()}
    for number in distinct(host.forward_thread[nodes]).values.tolist():
        mine = host.forward_thread[nodes] == number
        thread = _thread_of({thread: int(votes[thread][mine].sum()) for thread in threads})
        if thread is None:
            known = is_among(host.sequence[nodes], host.sequence[operators])
            state[nodes[mine & known]] = AMBIGUOUS
            state[_cut_off(host, nodes[mine & ~known], operators)] = BEFORE
            continue
        rows, matches = candidates[thread], votes[thread] & mine
        forward[nodes[matches]] = rows[matches]
        state[_cut_off(host, nodes[mine & (rows < 0)], operators[host.thread[operators] == thread])] = BEFORE
        late = host.start_ns[np.maximum(rows, 0)] > host.start_ns[nodes]
        state[nodes[matches]] = np.where(late[matches], LATE, PAIRED)
    return forward, state


def _cut_off(host: HostTable, nodes: Int64, operators: Int64) -> Int64:
    """The nodes whose operators ran before the trace began: their numbers are below all that are in it.

    The beginning of a trace cuts off more than one; one alone was lost.
    """
    first = host.sequence[operators].min(initial=np.iinfo(np.int64).max)
    before: Int64 = nodes[host.sequence[nodes] < first]
    return before if len(distinct(host.sequence[before]).values) > 1 else before[:0]


def _by_number(host: HostTable, order: Int64, thread: int, nodes: Int64) -> Int64:
    """For each node the last operator on a thread with its number; -1 where there is none."""
    mine = order[host.thread[order] == thread]
    found = last_of(host.sequence[mine], host.sequence[nodes])
    return np.where(found >= 0, mine[np.maximum(found, 0)], -1)


def _thread_of(votes: dict[int, int]) -> int | None:
    """The thread whose operators fit clearly better than those of every other: numbers are per thread and collide."""
    ranked = sorted(votes.items(), key=lambda item: -item[1])
    if not ranked or not ranked[0][1]:
        return None
    return ranked[0][0] if len(ranked) == 1 or ranked[0][1] > 2 * ranked[1][1] else None


class _Alike:
    """Which nodes are by their names the backward of which operators."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def rows(self, host: HostTable, nodes: Int64, operators: Int64) -> Bool:
        """Whether each node is that of the operator beside it; no operator is no match."""
        width = len(self._names)
        keys = host.name[nodes] * width + host.name[np.maximum(operators, 0)]
        pairs = distinct(keys)
        fits = [_is_backward_of(self._names[key // width], self._names[key % width]) for key in pairs.values.tolist()]
        rows: Bool = np.array(fits, dtype=bool)[pairs.inverse] & (operators >= 0)
        return rows


@cache
def _is_backward_of(node: str, operator: str) -> bool:
    """Whether a node is by its name that of an operator (`AddmmBackward0`: `aten::addmm_`).

    Nodes of C++ functions and of TorchScript have names of their own and fit every operator.
    """
    own = node.removeprefix(ENGINE)
    if own.startswith("torch::"):
        return True
    backward, forward = plain(re.sub(r"Backward\w*$", "", own)), plain(operator)
    return backward == forward or (bool(backward) and forward.startswith(backward))


def plain(name: str) -> str:
    """A name without its namespace, underscores and capitals."""
    return name.rpartition("::")[2].replace("_", "").lower()


def base(name: str) -> str:
    """The name of an operator without its namespace and the mark of being in place."""
    own = name.rpartition("::")[2]
    return own[:-1] if own.endswith("_") and not own.endswith("__") else own
