"""Autograd's graph in a trace: what runs below which backward node, and which operator a node is the backward of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.attribution.names import are_nodes
from opanatomy.attribution.nesting import nearest_above
from opanatomy.attribution.ownership import above_any
from opanatomy.attribution.pairing import MAX_THREADS
from opanatomy.calls.trace_calls import TraceCalls
from opanatomy.records.columns import Bool, HostTable, Int64, distinct, is_among, marked, rows_by_value

#: Ranges in which `torch.compile` traces and compiles: the operators there are called with tensors without data.
_COMPILING = re.compile(r"\(dynamo_timed\)$|compile_inner|call_user_compiler|create_aot_dispatcher_function|compile_fx")
ENGINE = "autograd::engine::evaluate_function: "
#: How the forward operator of a node was found, or why not.
PAIRED, UNNUMBERED, LOST, BEFORE, AMBIGUOUS, LATE = range(6)


class Graph(Struct, frozen=True, kw_only=True):
    """One entry a host row; -1 is "none"."""

    #: Whether the row is a node of autograd: the engine's event of it, or where there is none the node's own.
    is_node: Bool
    #: The node that each row runs below.
    node: Int64
    #: Whether the row is part of what the node computes; its hooks are not.
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
    silent = _silent(names, host, numbered, node) & ~marked(forward[forward >= 0], len(host.name))
    silent &= ~_saves_again(names, host, np.where(node >= 0, forward[node], -1))
    return Graph(
        is_node=is_node, node=node, in_body=in_body, forward=forward, state=state, sequence=number,
        numbered=nearest_above(numbered & ~silent, host.parent),
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
    return engine[host.name], is_inner, are_nodes(names)[host.name]


def _of_nodes(column: Int64, host: HostTable, is_inner: Bool) -> Int64:
    """The column, the engine's events with what the nodes' own inside them have."""
    inner = np.flatnonzero(is_inner & (column >= 0))
    inner = inner[column[host.parent[inner]] < 0]
    numbers = column.copy()
    numbers[host.parent[inner]] = column[inner]
    return numbers


def _silent(names: Sequence[str], host: HostTable, numbered: Bool, node: Int64) -> Bool:
    """Which Python functions in a node or in another one have no operator with a number in them.

    A function has a number of its own also where no gradients are recorded.
    """
    dispatched = np.array(["::" in name for name in names], dtype=bool)[host.name]
    functions = numbered & ~dispatched
    function = nearest_above(functions, host.parent)
    enclosing = function[numbered & dispatched]
    inside = (node >= 0) | ((host.parent >= 0) & (function[host.parent] >= 0))
    silent: Bool = functions & inside & ~marked(enclosing[enclosing >= 0], len(host.name))
    return silent


def _saves_again(names: Sequence[str], host: HostTable, forward: Int64) -> Bool:
    """Which rows run the function again whose node they are in: checkpointing detaches what it saves, at its end."""
    detach = np.array([name == "aten::detach" for name in names], dtype=bool)
    last = np.full(len(host.name), -1, dtype=np.int64)
    last[host.parent[host.parent >= 0]] = np.flatnonzero(host.parent >= 0)
    detaches = (last >= 0) & detach[host.name[last]]
    rows: Bool = (forward >= 0) & (host.name[forward] == host.name) & detaches & ~detaches[forward]
    return rows


def _differentiated(host: HostTable, is_direct: Bool, numbered: Bool, node: Int64) -> Bool:
    """Whether the last operator directly in a node's body has a number: what is recomputed there comes first."""
    direct = np.flatnonzero(is_direct)
    # rows are in the order of time on each thread, so the last assignment is the last operator
    last = np.full(len(node), -1, dtype=np.int64)
    last[node[direct]] = direct
    rows: Bool = (last >= 0) & numbered[last]
    return rows


def _pair(names: Sequence[str], host: HostTable, nodes: Int64, operators: Int64) -> tuple[Int64, Int64]:
    """(forward operator, state) of each node: the last operator with its number on the thread that ran the forward."""
    forward, state = np.full(len(host.name), -1, dtype=np.int64), np.full(len(host.name), UNNUMBERED, dtype=np.int64)
    if not len(nodes):
        return forward, state
    state[nodes] = LOST
    alike, by_number = _Alike(names), _by_number(host, operators)
    known = is_among(host.sequence, host.sequence[operators])
    first = _smallest(host.sequence[operators])
    first_on = {thread: _smallest(host.sequence[operators[at]]) for thread, at in rows_by_value(host.thread[operators])}
    by_forward_thread = [nodes[places] for _, places in rows_by_value(host.forward_thread[nodes])]
    by_forward_thread.sort(key=len, reverse=True)
    for made in by_forward_thread[MAX_THREADS:]:
        state[made] = AMBIGUOUS
    for made in by_forward_thread[:MAX_THREADS]:
        node, operator = _candidates(host, made, by_number)
        fits = alike.rows(host, node, operator)
        thread = _clear_choice(host.thread[operator[fits]])
        if thread is None:
            state[made[known[made]]] = AMBIGUOUS
            state[_cut_off(host, made[~known[made]], first)] = BEFORE
            continue
        on_thread = host.thread[operator] == thread
        state[_cut_off(host, made[~is_among(made, node[on_thread])], first_on[thread])] = BEFORE
        node, operator = node[on_thread & fits], operator[on_thread & fits]
        forward[node] = operator
        state[node] = np.where(host.start_ns[operator] > host.start_ns[node], LATE, PAIRED)
    return forward, state


def _smallest(numbers: Int64) -> int:
    return int(numbers.min(initial=np.iinfo(np.int64).max))


def _cut_off(host: HostTable, nodes: Int64, first: int) -> Int64:
    """The nodes whose operators ran before the trace began: their numbers are below the first that is in it.

    The beginning of a trace cuts off more than one; one alone was lost.
    """
    before: Int64 = nodes[host.sequence[nodes] < first]
    return before if len(distinct(host.sequence[before]).values) > 1 else before[:0]


def _by_number(host: HostTable, operators: Int64) -> Int64:
    """The last operator with each number on each thread, in the order of the numbers."""
    order = operators[np.lexsort((host.start_ns[operators], host.thread[operators], host.sequence[operators]))]
    thread, number = host.thread[order], host.sequence[order]
    last: Int64 = order[np.append((thread[1:] != thread[:-1]) | (number[1:] != number[:-1]), True)[: len(order)]]
    return last


def _candidates(host: HostTable, nodes: Int64, by_number: Int64) -> tuple[Int64, Int64]:
    """(node, operator) for each operator with a node's number, one on each thread."""
    numbers = host.sequence[by_number]
    low, high = (np.searchsorted(numbers, host.sequence[nodes], side=side) for side in _SIDES)
    counts = high - low
    begins = np.cumsum(counts) - counts
    places = np.arange(int(counts.sum())) + np.repeat(low - begins, counts)
    return np.repeat(nodes, counts), by_number[places]


_SIDES: Final[tuple[Literal["left", "right"], ...]] = ("left", "right")


def _clear_choice(votes: Int64) -> int | None:
    """The thread whose operators fit clearly better than those of every other: numbers are per thread and collide."""
    threads = distinct(votes)
    counts = np.bincount(threads.inverse, minlength=2)
    best = int(counts.argmax())
    is_clear = len(votes) and counts[best] > 2 * np.delete(counts, best).max()
    return int(threads.values[best]) if is_clear else None


class _Alike:
    """Which nodes are by their names the backward of which operators."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def rows(self, host: HostTable, nodes: Int64, operators: Int64) -> Bool:
        """Whether each node is that of its operator; no operator is no match."""
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


def without_data(calls: TraceCalls) -> Bool:
    """Which rows lie in a compilation and started no device work: operators on tensors without data."""
    host = calls.host
    compiles = np.array([_COMPILING.search(name) is not None for name in calls.names], dtype=bool)[host.name]
    rows: Bool = nearest_above(compiles, host.parent) >= 0
    if not calls.on_device or not rows.any():
        return rows
    return rows & ~calls.starts_work & ~above_any(calls.starts_work, host.parent)


def is_own(node: str) -> bool:
    """Whether the name of a node is that of a function which someone wrote: those of a library end in a number."""
    name = node.removeprefix(ENGINE)
    return "::" not in name and not name[-1:].isdigit() and not name.startswith("CompiledFunction")
