"""An oracle: contractions of a trace against the forward operator of the same autograd node, and each other.

It pairs nodes and operators in a way of its own, and knows what each operator's backward costs; `oracle` takes a trace.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Final, Literal

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from opanatomy.attribution.attribute import attribute
from opanatomy.attribution.calls import TraceCalls, trace_calls_of
from opanatomy.attribution.nesting import nearest_above
from opanatomy.attribution.phases import MAX_THREADS, are_nodes
from opanatomy.checks.counts import without_data
from opanatomy.cost.convolution import output_shape
from opanatomy.cost.operands import flag, integer
from opanatomy.records.anatomy import Check, Difference
from opanatomy.records.columns import Bool, HostTable, Int64, isin, mask_of, rows_by_value, unique
from opanatomy.records.signature import Signature, Tensor
from opanatomy.records.taxonomy import CLASS_CODE, PHASE_CODE, PHASES, OperatorClass, Phase
from opanatomy.trace.read import read_trace

# ----- autograd's graph: nodes, what runs below them, and their forward operators


ENGINE = "autograd::engine::evaluate_function: "
#: How the forward operator of a node was found, or why not.
PAIRED, UNNUMBERED, LOST, BEFORE, AMBIGUOUS, LATE = range(6)


class Graph(Struct, frozen=True, kw_only=True):
    """Autograd's graph, one entry per host row; -1 is none."""

    #: Whether the row is a node of autograd: the engine's event of it, or if there is none the node's own.
    is_node: Bool
    #: The node that each row runs below.
    node: Int64
    #: Whether the row is part of what the node computes; its hooks are not.
    in_body: Bool
    #: The operator that a node is the backward of.
    forward: Int64
    #: The state of a node, one of those above.
    state: Int64
    #: The sequence number of a node's forward operator, which the engine's event may lack and the node's own have.
    sequence: Int64
    #: The innermost row at or above each that has a number of autograd and is no node.
    numbered: Int64
    #: Whether the node's own operators were differentiated too (`create_graph`). One with nodes below it runs a forward
    #: and its backward (reentrant checkpointing) instead.
    differentiated: Bool


def graph_of(names: Sequence[str], host: HostTable, *, may_be_cut: bool = True) -> Graph:
    """Find the nodes of the trace and their forward operators, by structure and sequence numbers.

    A trace that `may_be_cut` can begin after a forward; that of a capture begins with it.
    """
    row = np.arange(len(host.name))
    engine, is_inner, is_node = _nodes(names, host)
    of_node = is_node | is_inner
    outer = np.where(is_inner, host.parent, row)
    above = np.where(host.parent >= 0, nearest_above(of_node, host.parent)[host.parent], -1)
    node = np.where(above >= 0, outer[above], -1)
    bare = engine & ~mask_of(host.parent[is_inner], len(host.name))
    in_body = (above >= 0) & (~engine[above] | bare[above])
    numbered = (host.sequence >= 0) & ~of_node
    is_node = is_node & ~is_inner
    number = _of_nodes(host.sequence, host, is_inner)
    paired = replace(host, sequence=number, forward_thread=_of_nodes(host.forward_thread, host, is_inner))
    forward, state = _pair(names, paired, np.flatnonzero(is_node & (number >= 0)), np.flatnonzero(numbered))
    if not may_be_cut:
        state[state == BEFORE] = LOST
    silent = _silent(names, host, numbered, node) & ~mask_of(forward[forward >= 0], len(host.name))
    silent &= ~_saves_again(names, host, np.where(node >= 0, forward[node], -1))
    return Graph(
        is_node=is_node,
        node=node,
        in_body=in_body,
        forward=forward,
        state=state,
        sequence=number,
        numbered=nearest_above(numbered & ~silent, host.parent),
        differentiated=_differentiated(host, in_body & ~of_node & (above == host.parent), numbered, node)
        & ~mask_of(node[is_node & (node >= 0)], len(host.name)),
    )


def _nodes(names: Sequence[str], host: HostTable) -> tuple[Bool, Bool, Bool]:
    """Return (the engine's events, the nodes' own events inside them, all events of nodes)."""
    numbers = {name: number for number, name in enumerate(names)}
    inner = np.array([numbers.get(n.removeprefix(ENGINE), -1) if n.startswith(ENGINE) else -1 for n in names])
    engine = np.array([n.startswith(ENGINE) for n in names], dtype=bool)
    above = np.where(host.parent >= 0, host.name[host.parent], -1)
    is_inner = (above >= 0) & (inner[above] == host.name)
    return engine[host.name], is_inner, are_nodes(names)[host.name]


def _of_nodes(column: Int64, host: HostTable, is_inner: Bool) -> Int64:
    """Return the column with gaps in the engine's events filled from the nodes' own events inside them."""
    inner = np.flatnonzero(is_inner & (column >= 0))
    inner = inner[column[host.parent[inner]] < 0]
    numbers = column.copy()
    numbers[host.parent[inner]] = column[inner]
    return numbers


def _silent(names: Sequence[str], host: HostTable, numbered: Bool, node: Int64) -> Bool:
    """Return which Python functions inside a node or another function have no operator with a number in them.

    A function has its own number even if no gradients are recorded.
    """
    dispatched = np.array(["::" in name for name in names], dtype=bool)[host.name]
    functions = numbered & ~dispatched
    function = nearest_above(functions, host.parent)
    enclosing = function[numbered & dispatched]
    inside = (node >= 0) | ((host.parent >= 0) & (function[host.parent] >= 0))
    silent: Bool = functions & inside & ~mask_of(enclosing[enclosing >= 0], len(host.name))
    return silent


def _saves_again(names: Sequence[str], host: HostTable, forward: Int64) -> Bool:
    """Return which rows run their node's own function again: checkpointing detaches what it saves, at its end."""
    detach = np.array([name == "aten::detach" for name in names], dtype=bool)
    last = np.full(len(host.name), -1, dtype=np.int64)
    last[host.parent[host.parent >= 0]] = np.flatnonzero(host.parent >= 0)
    detaches = (last >= 0) & detach[host.name[last]]
    rows: Bool = (forward >= 0) & (host.name[forward] == host.name) & detaches & ~detaches[forward]
    return rows


def _differentiated(host: HostTable, is_direct: Bool, numbered: Bool, node: Int64) -> Bool:
    """Return whether the last operator directly in a node's body has a number; what is recomputed there comes first."""
    direct = np.flatnonzero(is_direct)
    # rows are in the order of time on each thread, so the last assignment is the last operator
    last = np.full(len(node), -1, dtype=np.int64)
    last[node[direct]] = direct
    rows: Bool = (last >= 0) & numbered[last]
    return rows


def _pair(names: Sequence[str], host: HostTable, nodes: Int64, operators: Int64) -> tuple[Int64, Int64]:
    """Return (forward operator, state) of each node: the last operator with its number on the forward's thread."""
    forward, state = np.full(len(host.name), -1, dtype=np.int64), np.full(len(host.name), UNNUMBERED, dtype=np.int64)
    if not len(nodes):
        return forward, state
    state[nodes] = LOST
    alike, by_number = _Alike(names), _by_number(host, operators)
    known = isin(host.sequence, host.sequence[operators])
    first = _smallest(host.sequence[operators])
    first_on = {thread: _smallest(host.sequence[operators[at]]) for thread, at in rows_by_value(host.thread[operators])}
    by_forward_thread = [nodes[indices] for _, indices in rows_by_value(host.forward_thread[nodes])]
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
        state[_cut_off(host, made[~isin(made, node[on_thread])], first_on[thread])] = BEFORE
        node, operator = node[on_thread & fits], operator[on_thread & fits]
        forward[node] = operator
        state[node] = np.where(host.start_ns[operator] > host.start_ns[node], LATE, PAIRED)
    return forward, state


def _smallest(numbers: Int64) -> int:
    return int(numbers.min(initial=np.iinfo(np.int64).max))


def _cut_off(host: HostTable, nodes: Int64, first: int) -> Int64:
    """Return the nodes whose operators ran before the trace: their numbers are below the first recorded one.

    The beginning of a trace cuts off more than one; a single one was lost.
    """
    before: Int64 = nodes[host.sequence[nodes] < first]
    return before if len(unique(host.sequence[before]).values) > 1 else before[:0]


def _by_number(host: HostTable, operators: Int64) -> Int64:
    """Return the last operator with each number on each thread, sorted by number."""
    order = operators[np.lexsort((host.start_ns[operators], host.thread[operators], host.sequence[operators]))]
    thread, number = host.thread[order], host.sequence[order]
    last: Int64 = order[np.append((thread[1:] != thread[:-1]) | (number[1:] != number[:-1]), True)[: len(order)]]
    return last


def _candidates(host: HostTable, nodes: Int64, by_number: Int64) -> tuple[Int64, Int64]:
    """Return (node, operator) for each operator with a node's number, one on each thread."""
    numbers = host.sequence[by_number]
    low, high = (np.searchsorted(numbers, host.sequence[nodes], side=side) for side in _SIDES)
    counts = high - low
    begins = np.cumsum(counts) - counts
    indices = np.arange(int(counts.sum())) + np.repeat(low - begins, counts)
    return np.repeat(nodes, counts), by_number[indices]


_SIDES: Final[tuple[Literal["left", "right"], ...]] = ("left", "right")


def _clear_choice(votes: Int64) -> int | None:
    """Return the thread whose operators fit clearly best, if any: numbers are per thread and collide."""
    threads = unique(votes)
    counts = np.bincount(threads.inverse, minlength=2)
    best = int(counts.argmax())
    is_clear = len(votes) and counts[best] > 2 * np.delete(counts, best).max()
    return int(threads.values[best]) if is_clear else None


class _Alike:
    """The names of a trace, to match nodes with operators."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def rows(self, host: HostTable, nodes: Int64, operators: Int64) -> Bool:
        """Return whether each node is by name that of its operator; a missing operator does not match."""
        width = len(self._names)
        keys = host.name[nodes] * width + host.name[np.maximum(operators, 0)]
        pairs = unique(keys)
        fits = [_is_backward_of(self._names[key // width], self._names[key % width]) for key in pairs.values.tolist()]
        rows: Bool = np.array(fits, dtype=bool)[pairs.inverse] & (operators >= 0)
        return rows


@cache
def _is_backward_of(node: str, operator: str) -> bool:
    """Return whether a node is by its name that of an operator (`AddmmBackward0`: `aten::addmm_`).

    Nodes of C++ functions and of TorchScript have other names and match every operator.
    """
    own = node.removeprefix(ENGINE)
    if own.startswith("torch::"):
        return True
    backward, forward = plain(re.sub(r"Backward\w*$", "", own)), plain(operator)
    return backward == forward or (bool(backward) and forward.startswith(backward))


def plain(name: str) -> str:
    """Return a name without its namespace, underscores and capitals."""
    return name.rpartition("::")[2].replace("_", "").lower()


def base(name: str) -> str:
    """Return the name of an operator without its namespace and the mark of being in place."""
    own = name.rpartition("::")[2]
    return own[:-1] if own.endswith("_") and not own.endswith("__") else own


def is_own(node: str) -> bool:
    """Return whether a node is of a user's function: names of library nodes end in a number."""
    name = node.removeprefix(ENGINE)
    return "::" not in name and not name[-1:].isdigit() and not name.startswith("CompiledFunction")


# ----- contractions of a forward operator and of its backward node


#: Products of two matrices, and the place of the first among the arguments; the second follows it.
MATRICES = {
    "mm": 0,
    "bmm": 0,
    "addmm": 1,
    "baddbmm": 1,
    "_addmm_activation": 1,
    "_scaled_mm": 0,
    "_scaled_mm_v2": 0,
    "_int_mm": 0,
}


class Contraction(Struct, frozen=True, eq=False):
    """Contracting calls of one operator with the same arguments; a trace has one record for them.

    `signature` is `None` if it was not recorded, `flops` if they are unknown.
    """

    operator: str
    signature: Signature | None
    flops: int | None
    #: Whether an operator of the same name called it with a part of its tensors, or with more of them: a tensor
    #: subclass or a transform dispatched it again. Autocast does so too, with the same shapes.
    again: bool
    #: The operator's name without namespace and mark of being in place.
    base: str
    #: (batch, rows, inner, columns) of a product of matrices; `None` for others, or without shapes.
    dims: tuple[int, int, int, int] | None
    #: The sizes of a product in order, which it has in common with its two gradients.
    key: tuple[object, ...] | None

    @property
    def shapes(self) -> str:
        """Return the shapes of its tensors as text."""
        if self.signature is None:
            return f"{self.base}, no shapes recorded"
        return f"{self.base}({', '.join(map(str, self.signature.tensors()))})"

    @property
    def complete(self) -> bool:
        """Return whether the arguments were recorded, constants included if there are any."""
        if self.signature is None:
            return False
        return self.base in MATRICES or any(
            value is not None and not isinstance(value, Tensor) for value in self.signature.arguments
        )


def contraction(operator: str, signature: Signature | None, flops: int | None, again: bool) -> Contraction:
    """Return the record of calls of an operator with these arguments."""
    name = base(operator)
    dims = _dims(name, signature)
    key = None if dims is None else (dims[0], *sorted(dims[1:]))
    return Contraction(operator, signature, flops, again, name, dims, key)


def shared_out(whole: Signature | None, part: Signature | None) -> bool:
    """Return whether the tensors of one call are a share of another's: other dimensions or whole fractions of sizes."""
    outer, inner = (tuple(tensor.shape for tensor in each.tensors()) if each else () for each in (whole, part))
    if outer == inner:
        return False
    if tuple(map(len, outer)) != tuple(map(len, inner)):
        return True
    sizes = [(a, b) for shape, other in zip(outer, inner, strict=True) for a, b in zip(shape, other, strict=True)]
    return all(min(pair) > 0 and max(pair) % min(pair) == 0 for pair in sizes)


def grown(name: str, signature: Signature | None) -> bool:
    """Return whether a product has the tensors of two calls, which the transforms of torch.func record."""
    own = base(name)
    if own not in ("mm", "bmm", "addmm", "baddbmm") or signature is None:
        return False
    return len(signature.tensors()) >= 2 * (MATRICES[own] + 2)


def _dims(name: str, signature: Signature | None) -> tuple[int, int, int, int] | None:
    place = MATRICES.get(name)
    if place is None or signature is None:
        return None
    a, b = signature.get(place), signature.get(place + 1)
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or not len(a.shape) == len(b.shape) in (2, 3):
        return None
    if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        return None
    return (a.shape[0] if len(a.shape) == 3 else 1), a.shape[-2], a.shape[-1], b.shape[-1]


class Pair(Struct, frozen=True):
    """A node and its forward operator, each with its contractions in the order of time.

    `transposed` counts the operands that the node's body transposed: by `aten::t` and by `aten::transpose`.
    """

    node: str
    operator: str | None
    state: int
    forward: tuple[Contraction, ...]
    backward: tuple[Contraction, ...]
    transposed: tuple[int, int] = (0, 0)


# ----- contractions of a trace by autograd node and forward operator


#: In place of a signature without a call; -1 is a call without a signature.
_NO_CALL = -2


class Contractions:
    """All calls that contract, by the node that they run below or the operator whose work they are."""

    def __init__(self, calls: TraceCalls, graph: Graph) -> None:
        self.calls = calls
        self.host = calls.host
        self.names = calls.names
        self.graph = graph
        self._known: dict[tuple[int, int, bool], Contraction] = {}
        #: Whether calls of a name and signature, below one of that name with another, are dispatched again.
        self._again: dict[tuple[int, int, int], bool] = {}
        owners = np.flatnonzero(calls.owner == np.arange(len(self.host.name)))
        owning = mask_of(self.host.name[owners], len(self.names))
        contracts = owning & (calls.operators.operator_class == CLASS_CODE[OperatorClass.TENSOR_CONTRACTION])
        #: Rows in a compilation, which compute nothing.
        self.without_data = without_data(calls)
        #: Rows of the calls that contract.
        self.rows = owners[contracts[self.host.name[owners]] & ~self.without_data[owners]]
        #: The time of each call with all its parts, 0 for rows that are no call.
        self.call_ns = np.zeros(len(self.host.name), dtype=np.int64)
        owned = np.flatnonzero(calls.owner >= 0)
        np.add.at(self.call_ns, calls.owner[owned], calls.time_ns[owned])
        self._sort()

    def _sort(self) -> None:
        """Tell the gradients of a node from operators that have a number and are differentiated themselves."""
        graph, rows = self.graph, self.rows
        node, number = graph.node[rows], graph.numbered[rows]
        own_number = (number >= 0) & (number > node)
        own_number |= (node >= 0) & (rows < self._last_numbered()[node])
        self.is_gradient = (node >= 0) & graph.in_body[rows] & (~own_number | graph.differentiated[node])
        #: Below a node, but dispatched as in forward: run again by checkpointing.
        self.recomputed = rows[(node >= 0) & own_number & ~graph.differentiated[node]]
        #: Below a node, but run by a hook besides what the node computes.
        self.of_hooks = rows[(node >= 0) & ~graph.in_body[rows] & ~own_number]
        self.gradients = _grouped(node[self.is_gradient], rows[self.is_gradient])
        self.forwards = _grouped(number[number > node], rows[number > node])
        self._add_dispatched_again()

    def _last_numbered(self) -> Int64:
        """Return the last numbered operator below each node; what ran before it without a number counts like it."""
        graph = self.graph
        numbered = np.flatnonzero((graph.numbered == np.arange(len(graph.node))) & (graph.numbered > graph.node))
        last = np.full(len(graph.node), -1, dtype=np.int64)
        np.maximum.at(last, graph.node[numbered], numbered)
        return last

    def _add_dispatched_again(self) -> None:
        """Add calls of the same name below an operator to its work: transforms dispatch level by level."""
        name, parent = self.host.name, self.host.parent
        for row in self.rows[(parent[self.rows] >= 0) & (name[parent[self.rows]] == name[self.rows])].tolist():
            above = int(parent[row])
            while above >= 0 and name[above] == name[row] and above not in self.forwards:
                self.forwards[above] = [row]
                above = int(parent[above])

    def at(self, row: int) -> Contraction:
        """Return the contraction at a row."""
        name, number = int(self.host.name[row]), int(self.host.signature[row])
        key = (name, number, self._is_again(row))
        if key not in self._known:
            flops = int(self.calls.costs.flops[self.calls.costs.row[row]])
            known = flops if flops >= 0 else None
            self._known[key] = contraction(self.names[name], self.signature(row), known, key[2])
        return self._known[key]

    def _is_again(self, row: int) -> bool:
        """Return whether a subclass or a transform dispatched the call at a row again."""
        host, parent = self.host, int(self.host.parent[row])
        inner = parent >= 0 and bool(host.name[parent] == host.name[row])
        key = int(host.name[row]), int(host.signature[row]), int(host.signature[parent]) if inner else _NO_CALL
        if key not in self._again:
            shared = inner and shared_out(self.signature(parent), self.signature(row))
            self._again[key] = shared or grown(self.names[key[0]], self.signature(row))
        return self._again[key]

    def signature(self, row: int) -> Signature | None:
        """Return the recorded arguments of a row."""
        number = int(self.host.signature[row])
        return self.calls.signatures[number] if number >= 0 else None

    def time_ns(self, rows: Iterable[int]) -> int | None:
        """Return the time of the calls at these rows; one whose work the trace lacks takes as long as others like it.

        Calls outside the window add nothing.
        """
        total: int | None = 0
        for row in rows:
            time = (int(self.call_ns[row]) or self._like(row)) if self.host.in_window[row] else 0
            total = None if total is None or time is None else total + time
        return total

    def _like(self, row: int) -> int | None:
        """Return the mean time of the calls with the name and arguments of a row, else with its name, else of all."""
        known = self.rows[self.call_ns[self.rows] > 0]
        named = known[self.host.name[known] == self.host.name[row]]
        alike = named[self.host.signature[named] == self.host.signature[row]]
        for calls in (alike, named, known):
            if len(calls):
                return int(self.call_ns[calls].mean())
        return None

    def of_node(self, node: int) -> Sequence[int]:
        """Return the gradients of a node, else the contractions of its forward, else the node."""
        return self.gradients.get(node) or self.forwards.get(int(self.graph.forward[node])) or (node,)

    def name_of_node(self, row: int) -> str:
        """Return the name of the node that a row runs below; empty if there is none."""
        node = int(self.graph.node[row])
        return self.names[int(self.host.name[node])] if node >= 0 else ""

    def where(self, row: int) -> str | None:
        """Return the module that a row runs in."""
        return self.host.module.at(row) or None

    def phase(self, row: int) -> Phase:
        """Return the phase of a row."""
        return PHASES[int(self.host.phase[row])]

    def pairs(self) -> Iterator[tuple[int, Pair]]:
        """Yield (the row of the node, the node with its operator) for each node with a contraction on either side."""
        graph = self.graph
        turned = self._turned()
        nodes = np.flatnonzero(graph.is_node)
        forward = graph.forward[nodes]
        forward = np.where(forward >= 0, self._owning_call(forward), -1)
        count = len(self.host.name)
        has_forward = mask_of(np.array(list(self.forwards), dtype=np.int64), count)[forward] & (forward >= 0)
        busy = mask_of(np.array(list(self.gradients), dtype=np.int64), count)[nodes] | has_forward
        for node, operator in zip(nodes[busy].tolist(), forward[busy].tolist(), strict=True):
            state = int(graph.state[node])
            paired = state in (PAIRED, LATE)
            yield (
                node,
                Pair(
                    node=self.names[int(self.host.name[node])].rpartition(": ")[2],
                    operator=self.names[int(self.host.name[operator])] if paired else None,
                    state=state,
                    forward=tuple(map(self.at, self.forwards.get(operator, ()))) if paired else (),
                    backward=tuple(map(self.at, self.gradients.get(node, ()))),
                    transposed=(int(turned[0][node]), int(turned[1][node])),
                ),
            )

    def _owning_call(self, operators: Int64) -> Int64:
        """Return the operators, or the calls with the same number that they are part of."""
        owner = self.calls.owner[operators]
        return np.where(
            (owner >= 0) & (self.host.sequence[owner] == self.host.sequence[operators]) & (owner < operators),
            owner,
            operators,
        )

    def _turned(self) -> tuple[Int64, Int64]:
        """Return how many operands each node's body transposed, by `aten::t` and by `aten::transpose`."""
        host, graph = self.host, self.graph
        count = len(host.name)
        is_marked = np.zeros(count, dtype=bool)
        inside = np.flatnonzero((graph.node >= 0) & graph.in_body & (host.parent >= 0))
        # directly in the body: the parent is the node or the node's own event, and neither is an operator
        parent = host.parent[inside]
        is_marked[inside] = (parent == graph.node[inside]) | (
            (graph.node[parent] == graph.node[inside]) & ~graph.in_body[parent]
        )
        turned = []
        for name in ("t", "transpose"):
            named = np.array([base(operator) == name for operator in self.names], dtype=bool)
            own = (graph.numbered < np.arange(count)) | graph.differentiated[np.maximum(graph.node, 0)]
            rows = np.flatnonzero(is_marked & named[host.name] & own)
            turned.append(np.bincount(graph.node[rows], minlength=count).astype(np.int64))
        return turned[0], turned[1]


def _grouped(keys: Int64, rows: Int64) -> dict[int, list[int]]:
    """Return the rows of each key, in their order."""
    groups: dict[int, list[int]] = {}
    for key, row in zip(keys.tolist(), rows.tolist(), strict=True):
        groups.setdefault(key, []).append(row)
    return groups


# ----- differences, with like ones counted in one row


#: The most rows of a check; the others are summed.
MAX_ROWS = 20


class Mismatch(Struct, frozen=True, kw_only=True):
    """One call that a second source does not confirm; `cause` as in `Difference`."""

    operator: str
    phase: Phase
    ours: int | None = None
    other: int | None = None
    cause: str | None = None
    evidence: str = ""


class CheckResult(Struct, frozen=True, kw_only=True):
    """The result for one pair: figures compared, those equal, those not, and why others could not be compared."""

    compared: int = 0
    equal: int = 0
    findings: tuple[Mismatch, ...] = ()
    not_checked: tuple[str, ...] = ()

    def explained(self, cause: str) -> CheckResult:
        """Return the verdict with this cause for its findings."""
        return replace(self, findings=tuple(replace(finding, cause=cause) for finding in self.findings))

    def unjudged(self, reason: str) -> CheckResult:
        """Return the verdict with findings that have no cause counted as not checked, for this reason."""
        kept = tuple(finding for finding in self.findings if finding.cause is not None)
        left = len(self.findings) - len(kept)
        return CheckResult(
            compared=self.compared - left,
            equal=self.equal,
            findings=kept,
            not_checked=(*self.not_checked, *(reason,) * left),
        )


class Tally(Struct):
    """The sum of verdicts; `time_of` returns the time of the calls at some rows."""

    time_of: Callable[[Iterable[int]], int | None]
    compared: int = 0
    equal: int = 0
    findings: Counter[Mismatch] = field(default_factory=Counter)
    times_ns: dict[Mismatch, int | None] = field(default_factory=dict)
    where: dict[Mismatch, str] = field(default_factory=dict)
    not_checked: Counter[str] = field(default_factory=Counter)

    def add(self, verdict: CheckResult, rows: Collection[int], where: str | None = None) -> None:
        """Add a verdict on the calls at these rows; `where` is their module."""
        self.compared += verdict.compared
        self.equal += verdict.equal
        time_ns = self.time_of(rows) if verdict.findings else None
        for finding in verdict.findings:
            self.findings[finding] += 1
            known = self.times_ns.get(finding, 0)
            part_ns = None if time_ns is None else time_ns // len(verdict.findings)
            self.times_ns[finding] = None if known is None or part_ns is None else known + part_ns
            if where:
                self.where.setdefault(finding, where)
        for reason in verdict.not_checked:
            self.not_checked[reason] += 1

    def check(self, quantity: str, source: str, unit: str) -> Check:
        """Return the check, the unexplained, longest and most frequent differences first."""
        ranked = sorted(
            self.findings.items(),
            key=lambda item: (item[0].cause is not None, -(self.times_ns[item[0]] or 0), -item[1]),
        )
        rows = [self._row(finding, calls) for finding, calls in ranked[:MAX_ROWS]]
        rows += self._rest(ranked[MAX_ROWS:])
        why = "; ".join(f"{calls:,} {reason}" for reason, calls in self.not_checked.most_common())
        return Check(
            quantity=quantity,
            source=source,
            unit=unit,
            compared=self.compared,
            equal=self.equal,
            differences=tuple(rows),
            not_checked=why or None,
        )

    def _row(self, finding: Mismatch, calls: int) -> Difference:
        module = self.where.get(finding)
        parts = [f"{calls:,} call{'s' if calls > 1 else ''}", finding.evidence, f"first in {module}" if module else ""]
        return Difference(
            operator=finding.operator,
            phase=finding.phase,
            ours=finding.ours,
            other=finding.other,
            cause=finding.cause,
            evidence=": ".join(part for part in parts if part),
            time_ns=self.times_ns[finding],
        )

    def _rest(self, ranked: list[tuple[Mismatch, int]]) -> list[Difference]:
        """Return the findings beyond the rows: one row of the unexplained, one of the explained."""
        rows = []
        for explained in (False, True):
            some = [(finding, calls) for finding, calls in ranked if (finding.cause is not None) is explained]
            if some:
                rows.append(
                    Difference(
                        operator="others",
                        ours=_sum((finding.ours, calls) for finding, calls in some),
                        other=_sum((finding.other, calls) for finding, calls in some),
                        cause="causes named above" if explained else None,
                        evidence=f"{sum(calls for _, calls in some):,} calls of {len(some):,} kinds",
                        time_ns=_sum((self.times_ns[finding], 1) for finding, _ in some),
                    )
                )
        return rows


def _sum(figures: Iterable[tuple[int | None, int]]) -> int | None:
    total = 0
    for figure, calls in figures:
        if figure is None:
            return None
        total += figure * calls
    return total


# ----- products of matrices and their gradients: one product each, with the FLOPs of the forward


AGAIN = "dispatched again by a tensor subclass or a transform, which shares the product out in its own way"
NO_COST = "products without known FLOPs"
NO_SHAPES = "products without recorded shapes"
#: The view (a place in `transposed`) that turns an operand of a gradient: `mm` writes `t`, `bmm` `transpose(1, 2)`.
_TURNS = {"mm": 0, "addmm": 0, "bmm": 1, "baddbmm": 1}


def judge_product(pair: Pair) -> CheckResult:
    """Compare each product below the node with its forward's, and find missing and extra products."""
    (forward,) = pair.forward
    compared = equal = 0
    findings: list[Mismatch] = []
    reasons: list[str] = []
    cost = next((product.flops for product in pair.backward if product.flops is not None), None)
    if (forward.flops is None or not _bias_fits(forward)) and (forward.complete or cost is not None):
        findings.append(
            Mismatch(
                operator=forward.operator,
                phase=Phase.FORWARD,
                other=cost,
                cause=_cause(pair),
                evidence=f"the shapes do not fit: {forward.shapes}",
            )
        )
        return CheckResult(compared=1, findings=tuple(findings))
    for product in pair.backward:
        if forward.flops is None or (product.flops is None and not (product.complete and is_product(product))):
            reasons.append(NO_COST if product.signature else NO_SHAPES)
            continue
        compared += 1
        if product.flops == forward.flops and _same_sizes(product, forward):
            equal += 1
            continue
        text = f"{product.shapes} below {pair.node}, forward {forward.shapes}"
        findings.append(
            Mismatch(
                operator=product.operator,
                phase=Phase.BACKWARD,
                ours=product.flops,
                other=forward.flops,
                cause=_cause(pair),
                evidence=text,
            )
        )
    missing = list(_missing(pair, forward))
    excess = bool(missing) and missing[0].ours != 0 and equal > 0
    return CheckResult(
        compared=compared + (0 if excess else len(missing)),
        equal=equal - excess,
        findings=(*findings, *missing),
        not_checked=tuple(reasons),
    )


def judge_alike(pair: Pair) -> CheckResult:
    """Compare each product below the node, two at most, with its forward's FLOPs, as no views tell more."""
    cost = sum(product.flops or 0 for product in pair.forward)
    known = [product for product in pair.backward if product.flops is not None]
    if not cost or any(product.flops is None for product in pair.forward):
        return CheckResult(not_checked=(NO_COST,) * len(pair.backward))
    odd = tuple(
        Mismatch(
            operator=product.operator,
            phase=Phase.BACKWARD,
            ours=product.flops,
            other=cost,
            cause=_cause(pair),
            evidence=f"{product.shapes} below {pair.node}, forward {'; '.join(o.shapes for o in pair.forward)}",
        )
        for index, product in enumerate(known)
        if product.flops != cost or index > 1
    )
    rest = (NO_COST,) * (len(pair.backward) - len(known))
    return CheckResult(compared=len(known), equal=len(known) - len(odd), findings=odd, not_checked=rest)


def _cause(pair: Pair) -> str | None:
    return AGAIN if any(product.again for product in (*pair.forward, *pair.backward)) else None


def _bias_fits(forward: Contraction) -> bool:
    """Return whether the added tensor has the columns of the product, or one for all."""
    added, dims = forward.signature.get(0) if forward.signature else None, forward.dims
    if MATRICES[forward.base] == 0 or dims is None or not isinstance(added, Tensor) or not added.shape:
        return True
    return added.shape[-1] in (1, dims[3])


def _same_sizes(product: Contraction, forward: Contraction) -> bool:
    return product.key is None or forward.key is None or product.key == forward.key


def _missing(pair: Pair, forward: Contraction) -> Iterator[Mismatch]:
    """Yield products that are missing while a view was made for their operand, and products without their view."""
    products, turned = len(pair.backward), pair.transposed[_TURNS.get(forward.base, 0)]
    if forward.base not in _TURNS or any(product.again for product in pair.backward):
        return
    minimum, maximum = _turns(pair, forward)
    cost = forward.flops
    if turned > maximum:
        lost = 2 if not products and turned > 2 - _TURNS[forward.base] else 1
        for _ in range(lost):
            yield Mismatch(
                operator=forward.operator,
                phase=Phase.BACKWARD,
                ours=0,
                other=cost,
                evidence=(
                    f"{products} of {products + lost} products below {pair.node}, whose body turned {turned} operands; "
                    f"forward {forward.shapes}"
                ),
            )
    elif products > 2 or (turned and turned < minimum) or _twice_the_same(pair, forward):
        yield Mismatch(
            operator=forward.operator,
            phase=Phase.BACKWARD,
            ours=None if cost is None else products * cost,
            other=None if cost is None else min(products - 1, 2) * cost,
            evidence=f"{products} products below {pair.node}, whose body turned {turned} operands; {forward.shapes}",
        )


def _turns(pair: Pair, forward: Contraction) -> tuple[int, int]:
    """Return the least and the most operands that autograd turns for the products that are there.

    `grad.mm(b.t())` and `a.t().mm(grad)` turn one; for an operand that is stored by columns they are written
    `b.mm(grad.t()).t()` and `grad.t().mm(a).t()` and turn two, which the order of the sizes shows.
    """
    if _TURNS[forward.base]:
        return len(pair.backward), len(pair.backward)
    counts = [{turns for _, turns in _forms(product, forward)} or {1, 2} for product in pair.backward]
    return sum(min(count) for count in counts), sum(max(count) for count in counts)


def _forms(product: Contraction, forward: Contraction) -> list[tuple[str, int]]:
    """Return (the operand whose gradient it is, operands turned) for every possible origin of the product."""
    ours, dims = product.dims, forward.dims
    if ours is None or dims is None:
        return []
    # (m, k) @ (k, n)
    _, m, k, n = dims
    forms = {("a", 1): (m, n, k), ("a", 2): (k, n, m), ("b", 1): (k, m, n), ("b", 2): (n, m, k)}
    return [form for form, sizes in forms.items() if sizes == ours[1:]]


def _twice_the_same(pair: Pair, forward: Contraction) -> bool:
    """Return whether both products are the gradient of one operand."""
    if len(pair.backward) != 2:
        return False
    first, second = ({operand for operand, _ in _forms(product, forward)} for product in pair.backward)
    return first == second and len(first) == 1


def is_product(product: Contraction) -> bool:
    """Return whether a contraction is a product of two matrices."""
    return product.base in MATRICES


# ----- convolutions, fused attention and recurrent layers: backward costs by the gradients computed


NO_CONSTANTS = "convolutions without recorded constants (stride, mask); their shapes agree"
NO_FUSED_SHAPES = "convolutions without recorded shapes"
NO_FUSED_COST = "fused operators without known FLOPs"
#: The places of (input, weight) among the arguments of the backward of a convolution; others are not looked at.
_OPERANDS: dict[str, tuple[int | None, int | None]] = {
    "convolution_backward": (1, 2), "convolution_backward_overrideable": (1, 2), "_slow_conv2d_backward": (1, 2),
    "cudnn_convolution_backward": (0, 2), "miopen_convolution_backward": (0, 2), "mkldnn_convolution_backward": (0, 2),
    "cudnn_convolution_backward_input": (None, 2), "cudnn_convolution_backward_weight": (2, None),
    "miopen_convolution_backward_input": (None, 2), "miopen_convolution_backward_weight": (2, None),
}  # fmt: skip
#: Convolutions whose third argument is the bias.
_WITH_BIAS = {"convolution", "_convolution", "mkldnn_convolution", "miopen_convolution"}


def judge_convolution(pair: Pair) -> CheckResult:
    """Check that the gradients cost 0, 1 or 2 times the forward, in one call each and on the same tensors."""
    absent = _absent(pair)
    if absent is not None:
        return absent
    odd = _other_operands(pair) or _called_twice(pair) or _misfit(pair)
    whole = _flops_of(pair.forward)
    spent = _flops_of(pair.backward)
    if odd is None and whole is not None and spent is not None:
        if spent in (0, whole, 2 * whole):
            return CheckResult(compared=1, equal=1)
        odd = "0, 1 or 2 times the forward"
    if odd is None and any(map(_refused, (*pair.forward, *pair.backward))):
        odd = "the shapes do not fit"
    if odd is None:
        recorded = all(contraction.signature for contraction in (*pair.forward, *pair.backward))
        return CheckResult(not_checked=(NO_CONSTANTS if recorded else NO_FUSED_SHAPES,))
    nearest = None if not whole or spent is None else whole * max(1, min(2, round(spent / whole)))
    return _wrong(pair, spent, nearest, odd)


def judge_attention(pair: Pair) -> CheckResult:
    """Check for one backward of five products to a forward of two, on the same query, key and value."""
    return _absent(pair) or _exact(pair, _attention_ratio(pair.forward[0], pair.backward[0]))


def _attention_ratio(forward: Contraction, backward: Contraction) -> tuple[int, int] | None:
    """Return (3 d + 2 dv) / (d + dv) for heads of size d, of the value dv; `None` if the tensors are not the same."""
    q, k, v = (_shape(forward, index) for index in range(3))
    grad, *again = (_shape(backward, index) for index in range(4))
    if not q or not v or [q, k, v] != again or grad != (*q[:-1], v[-1]):
        return None
    return 3 * q[-1] + 2 * v[-1], q[-1] + v[-1]


def judge_recurrent(pair: Pair) -> CheckResult:
    """Check for twice the forward, or once if no gradient of the weights is computed."""
    absent = _absent(pair)
    if absent is not None:
        return absent
    forward, backward = pair.forward[0], pair.backward[0]
    if forward.base == "mkldnn_rnn_layer" and any(_shape(forward, at) != _shape(backward, at) for at in range(7)):
        return _exact(pair, None)
    weights = backward.signature.get(21) if backward.signature else None
    asked = weights[3] if isinstance(weights, tuple) and len(weights) == 4 else True
    return _exact(pair, (2 if asked else 1, 1))


def _exact(pair: Pair, ratio: tuple[int, int] | None) -> CheckResult:
    """Check for one call below the node whose FLOPs are those of the forward in this ratio."""
    whole, spent = _flops_of(pair.forward), _flops_of(pair.backward)
    if not all("backward" in contraction.base for contraction in pair.backward):
        return _wrong(pair, spent, whole, "not only a backward")
    if spent is None or whole is None:
        refused = any(map(_refused, (*pair.forward, *pair.backward)))
        if refused and (spent is None) != (whole is None):
            return _wrong(pair, spent, None, "the shapes do not fit")
        return CheckResult(not_checked=(NO_FUSED_COST,))
    if ratio is None:
        return _wrong(pair, spent, None, "the tensors are not those of the forward")
    expected = whole * ratio[0] // ratio[1]
    if len(pair.backward) == 1 and spent == expected:
        return CheckResult(compared=1, equal=1)
    return _wrong(pair, spent, expected, f"{len(pair.backward)} calls for one")


def _absent(pair: Pair) -> CheckResult | None:
    """Return the verdict on a node without its contraction; `None` if it has one."""
    if pair.backward:
        return None
    return _wrong(pair, 0, _flops_of(pair.forward), "the node computes nothing")


def _wrong(pair: Pair, ours: int | None, other: int | None, why: str) -> CheckResult:
    forward, backward = ("; ".join(call.shapes for call in calls) for calls in (pair.forward, pair.backward))
    evidence = f"{why}: {backward or 'none'} below {pair.node}, forward {forward}"
    operator = pair.backward[0].operator if pair.backward else pair.node
    finding = Mismatch(operator=operator, phase=Phase.BACKWARD, ours=ours, other=other, evidence=evidence)
    return CheckResult(compared=1, findings=(finding,))


def _flops_of(calls: tuple[Contraction, ...]) -> int | None:
    total = 0
    for contraction in calls:
        if contraction.flops is None:
            return None
        total += contraction.flops
    return total


def _refused(contraction: Contraction) -> bool:
    """Return whether a formula had all it needs and yet no answer."""
    return contraction.flops is None and contraction.complete


def _shape(contraction: Contraction, index: int) -> tuple[int, ...] | None:
    value = contraction.signature.get(index) if contraction.signature else None
    return value.shape if isinstance(value, Tensor) else None


def _other_operands(pair: Pair) -> str | None:
    """Return a reason if a gradient used another input or weight than the forward, else `None`."""
    x, weight = _shape(pair.forward[0], 0), _shape(pair.forward[0], 1)
    for contraction in pair.backward if len(pair.forward) == 1 else ():
        indices = _OPERANDS.get(contraction.base, (None, None))
        for index, shape in zip(indices, (x, weight), strict=True):
            other = None if index is None else _shape(contraction, index)
            if other is not None and shape is not None and _squeezed(other) != _squeezed(shape):
                return "the tensors are not those of the forward"
    return None


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape without ones: a convolution in one dimension is run as one in two."""
    return tuple(size for size in shape if size != 1)


def _misfit(pair: Pair) -> str | None:
    """Return a reason if the gradient has not the shape of the output, or the bias not its channels, else `None`."""
    forward = pair.forward[0] if len(pair.forward) == 1 and pair.forward[0].base in _WITH_BIAS else None
    bias = _shape(forward, 2) if forward else None
    for contraction in pair.backward:
        if contraction.base != "convolution_backward" or not contraction.complete or contraction.signature is None:
            continue
        grad, output = _shape(contraction, 0), _output(contraction)
        if grad is not None and output is not None and grad != output:
            return "the gradient has not the shape of the output"
        weight = _shape(contraction, 2)
        if bias and output and weight and bias != (output[len(output) - len(weight) + 1],):
            return "the bias has not the channels of the output"
    return None


def _output(contraction: Contraction) -> tuple[int, ...] | None:
    """Return the output's shape of the convolution that a call is the backward of."""
    x, weight = _shape(contraction, 1), _shape(contraction, 2)
    get = contraction.signature.get if contraction.signature else None
    if x is None or weight is None or get is None:
        return None
    try:
        return output_shape(x, weight, get(4), get(5), get(6), flag(get(7)), get(8), integer(get(9)))
    except (LookupError, TypeError, ValueError, ArithmeticError):
        return None


def _called_twice(pair: Pair) -> str | None:
    if not all("backward" in contraction.base for contraction in pair.backward):
        return "not only gradients"
    names = [contraction.base for contraction in pair.backward if contraction.base in _OPERANDS]
    if len(pair.forward) == 1 and len(set(names)) < len(names):
        return "called twice"
    return None


# ----- nodes that lost both their work and their forward


#: Nodes of contractions, by the beginning of their names.
_CONTRACTING = (
    "Addmm", "Mm", "Bmm", "Baddbmm", "Convolution", "CudnnConvolution", "MiopenConvolution", "MkldnnConvolution",
    "ScaledDotProduct", "CudnnRnn", "MiopenRnn", "MkldnnRnnLayer", "Linear",
)  # fmt: skip


def lost_operators(name: str) -> CheckResult:
    """Return the verdict on a node without work and forward operator: a contraction's has lost both."""
    own = name.removeprefix(ENGINE)
    if not own.startswith(_CONTRACTING):
        return CheckResult()
    finding = Mismatch(operator=own, phase=Phase.BACKWARD, ours=0, evidence="neither its forward nor its products")
    return CheckResult(compared=1, findings=(finding,))


# ----- events that are in the trace twice


MERGED = "the trace numbers many events alike, as those of several processes are"


def judge_twice(contractions: Contractions) -> Tally:
    """Find events that are in the trace twice, by Kineto's numbers or by what others of their number do."""
    host = contractions.host
    numbered = np.flatnonzero((host.external_id > 0) & (host.annotation == 0))
    known = unique(host.external_id[numbered])
    counts = np.bincount(known.inverse, minlength=len(known.values))

    def time_ns(rows: Iterable[int]) -> int:
        return sum(int(contractions.call_ns[row]) for row in rows)

    tally = Tally(time_of=time_ns, compared=len(counts), equal=int((counts == 1).sum()))
    several = np.flatnonzero(counts > 1)
    merged = len(several) >= _MANY and len(several) > _MUCH * len(counts)
    for index in several.tolist():
        row = int(numbered[known.first[index]])
        verdict = CheckResult(findings=(_twice(contractions, row, int(counts[index])),))
        tally.add(verdict.explained(MERGED) if merged else verdict, (row,), contractions.where(row))
    suspects = unique(np.concatenate((_inside_itself(contractions), _twins(contractions)))).values.tolist()
    times = dict(zip(known.values.tolist(), counts.tolist(), strict=True)) if suspects else {}
    for row in suspects:
        if times.get(number := int(host.external_id[row]), 1) == 1:
            tally.equal -= number in times
            tally.compared += number not in times
            tally.add(CheckResult(findings=(_twice(contractions, row, 2),)), (row,), contractions.where(row))
    return tally


def _twice(contractions: Contractions, row: int, times: int) -> Mismatch:
    contraction = contractions.at(row)
    return Mismatch(
        operator=contraction.operator,
        phase=contractions.phase(row),
        ours=times,
        other=1,
        evidence=f"{times} times in the trace: {contraction.shapes}",
    )


def _inside_itself(contractions: Contractions) -> Int64:
    """Return contractions in an event that equals them to the nanosecond."""
    host, rows = contractions.host, contractions.rows
    parent = host.parent[rows]
    same = (parent >= 0) & (host.duration_ns[rows] > 0)
    for column in (host.name, host.signature, host.start_ns, host.duration_ns):
        same &= column[rows] == column[parent]
    own: Int64 = rows[same]
    # if there are many, these operators are dispatched so, in a trace whose times are whole microseconds
    return own if len(own) < _MANY or len(own) < _MUCH * len(rows) else own[:0]


def _twins(contractions: Contractions) -> Int64:
    """Return contractions with the number, name and arguments of a differentiated or recomputed one elsewhere.

    Autograd counts on with each node it makes, so that only operators that are not differentiated share a number. Like
    the differentiated one, each of these has its own caller.
    """
    host, rows = contractions.host, contractions.rows[contractions.host.sequence[contractions.rows] >= 0]
    forward = contractions.graph.forward
    done = mask_of(np.concatenate((forward[forward >= 0], contractions.recomputed)), len(host.name))
    order = rows[np.lexsort((rows, host.signature[rows], host.name[rows], host.sequence[rows], host.thread[rows]))]
    first, second = order[:-1], order[1:]
    same = done[first] | done[second]
    for column in (host.thread, host.sequence, host.name, host.signature):
        same &= column[first] == column[second]
    first, second = first[same], second[same]
    callers = np.where(host.parent >= 0, host.name[host.parent], -1)
    library = np.array([name.startswith("aten::") for name in contractions.names], dtype=bool)
    siblings = (host.parent[first] == host.parent[second]) & library[np.maximum(callers[first], 0)]
    twins: Int64 = second[(siblings | (callers[first] != callers[second])) & (host.parent[second] != first)]
    return twins


# ----- regions with many contractions in one node: compiled functions and functions of the model
#
# Their products are told apart by size, not by structure: a gradient has the sizes of its forward in another order, and
# each forward product has two at most. Other work of a region's backward (its forward again, other products, nothing)
# is not checked.


OWN = "contractions of a function of the model's own: its backward need not be made of the forward's"
COMPILED = "contractions of a compiled region: the compiler may write them in another way"
NO_FORMULA = "contractions in compiled regions or own functions that are no plain products of known shapes"


def reason_of(node: str) -> str | None:
    """Return why work below a node need not match its forward; `None` for the node of a library's operator."""
    if is_own(node):
        return OWN
    return COMPILED if "CompiledFunction" in node else None


def judge_region(pair: Pair) -> CheckResult:
    """Compare each product of the backward that has the sizes of a forward product with its FLOPs."""
    products = [contraction for contraction in pair.forward if is_product(contraction)]
    allowed = Counter(contraction.key for contraction in products)
    costs = {contraction.key: contraction.flops for contraction in products}
    given: Counter[object] = Counter()
    findings: list[Mismatch] = []
    reasons: list[str] = []
    equal = 0
    for contraction in pair.backward:
        key = contraction.key
        given[key] += 1
        if key is None or contraction.flops is None:
            reasons.append(NO_FORMULA if contraction.signature else NO_SHAPES)
        elif given[key] > 2 * allowed[key]:
            reasons.append(reason_of(pair.node) or OWN)
        elif contraction.flops == costs[key]:
            equal += 1
        else:
            evidence = f"{contraction.shapes} below {pair.node} has other FLOPs than the product of these sizes there"
            findings.append(
                Mismatch(
                    operator=contraction.operator,
                    phase=Phase.BACKWARD,
                    ours=contraction.flops,
                    other=costs[key],
                    evidence=evidence,
                )
            )
    return CheckResult(
        compared=equal + len(findings), equal=equal, findings=tuple(findings), not_checked=tuple(reasons)
    )


# ----- phases of contractions against autograd's structure


IN_FORWARD = "a gradient that is taken inside the forward range of the trace"
OWN_FUNCTION = "a function of the model's own, or a compiled one, that runs its forward again in its backward"
DIFFERENTIATED = "its backward is differentiated itself (create_graph), so that its operators look like a forward's"
RUN_AGAIN = "it runs again, to be differentiated, in a range that the trace calls backward"


def judge_phases(contractions: Contractions) -> Tally:
    """Check that a node's work is in backward, and the work of its forward operator in forward."""
    tally = Tally(time_of=contractions.time_ns)
    host, graph = contractions.host, contractions.graph
    gradients = contractions.rows[contractions.is_gradient]
    as_said = host.phase[gradients] == PHASE_CODE[Phase.BACKWARD]
    tally.compared = tally.equal = int(as_said.sum())
    for row in gradients[~as_said].tolist():
        node, cause = int(graph.node[row]), None
        if contractions.phase(row) is Phase.RECOMPUTE and graph.differentiated[node]:
            cause = DIFFERENTIATED
        elif contractions.phase(row) is Phase.RECOMPUTE and reason_of(contractions.name_of_node(row)):
            cause = OWN_FUNCTION
        elif contractions.phase(row) is contractions.phase(node) is Phase.FORWARD:
            cause = IN_FORWARD
        _add(tally, contractions, row, Phase.BACKWARD, cause)
    paired = graph.forward[graph.is_node & (graph.state == PAIRED)]
    outside = unique(paired[(paired >= 0) & (graph.node[paired] < 0)])
    for operator in outside.values.tolist():
        for row in contractions.forwards.get(operator, ()):
            # Recompute outside all nodes comes from a range of the trace.
            cause = RUN_AGAIN if contractions.phase(row) is Phase.RECOMPUTE else None
            _add(tally, contractions, row, Phase.FORWARD, cause)
    return tally


def _add(tally: Tally, contractions: Contractions, row: int, phase: Phase, cause: str | None) -> None:
    given = contractions.phase(row)
    if given is phase:
        tally.compared += 1
        tally.equal += 1
        return
    contraction = contractions.at(row)
    finding = Mismatch(
        operator=contraction.operator,
        phase=given,
        ours=1,
        other=0,
        cause=cause,
        evidence=f"{contraction.shapes} is {phase} by autograd's structure",
    )
    tally.add(CheckResult(compared=1, findings=(finding,)), (row,), contractions.where(row))


BEFORE_TRACE = "its forward ran before the trace began"
SCRIPTED = "one node for a graph of TorchScript, whose forward operators have no number of their own"
FORWARD_MODE = "forward-mode differentiation computes tangents, which have no backward of their own"
THINNED = "the trace lacks the forward operators of many nodes: someone thinned it out, or a thread was not recorded"
HOOK = "a hook of autograd computes in addition to the node"
#: Operators without products whose gradients have some, by torch's formulas for them.
_WITH_PRODUCTS = (
    "linalg", "cholesky", "inverse", "triangular", "lu", "svd", "eig", "qr", "ormqr", "householder", "cdist", "pdist",
    "euclideandist", "affinegrid", "addr", "trilinear", "prod", "renorm", "pinverse", "logdet", "slogdet", "det",
    "solve",
)  # fmt: skip
#: Products whose gradients are products of as many FLOPs, or maps.
_VECTORS = {"mv", "dot", "vdot", "addmv", "addbmm", "_grouped_mm", "linear", "mkldnn_linear"}
#: This many nodes, and this part of all, are no single mistake.
_MANY, _MUCH = 10, 0.1
_UNPAIRED = {
    UNNUMBERED: "backward products whose node has no sequence number",
    AMBIGUOUS: "backward products whose sequence number several threads used",
}


def oracle(path: Path) -> dict[str, Check]:
    """Return what a trace says twice of its contractions, by the name of the check."""
    trace = read_trace(path)
    attribution = attribute(trace.names, trace.host, trace.launches, trace.work, trace.flows, (), trace.scopes)
    calls, _ = trace_calls_of(trace, attribution)
    return {check.quantity: check for check in self_checks(calls, may_be_cut=trace.capture is None)}


def self_checks(calls: TraceCalls, *, may_be_cut: bool = True) -> tuple[Check, ...]:
    """Compare what the trace says twice; return no checks for a trace without contractions.

    A trace that `may_be_cut` can begin after a forward; that of a capture begins with it.
    """
    if not len(calls.host.name):
        return ()
    graph = graph_of(calls.names, calls.host, may_be_cut=may_be_cut)
    contractions = Contractions(calls, graph)
    checks = [judge_twice(contractions).check("operator events", "Kineto's own numbers of them", "calls")]
    if graph.is_node.any():
        checks += [
            _backward(contractions).check("backward contractions", "the forward of the same autograd node", "FLOPs"),
            judge_phases(contractions).check("phases of contractions", "the structure of autograd", "calls"),
        ]
    checks = [check for check in checks if check.compared or check.not_checked]
    if not _differentiates_forward(calls.names):
        return tuple(checks)
    unchecked = {"compared": 0, "equal": 0, "differences": (), "not_checked": FORWARD_MODE}
    return tuple(replace(check, **unchecked) if check.unexplained else check for check in checks)


def _differentiates_forward(names: Sequence[str]) -> bool:
    """Return whether tangents were computed, by operators that no backward node belongs to."""
    return any(name in ("aten::_make_dual", "aten::_fw_primal") for name in names)


def _backward(contractions: Contractions) -> Tally:
    """Compare every contraction below a node with its forward."""
    tally = Tally(time_of=contractions.time_ns)
    outside = contractions.rows[contractions.graph.node[contractions.rows] < 0]
    forwards = Counter(map(contractions.at, outside.tolist())) if len(contractions.recomputed) else Counter()
    pairs = list(contractions.pairs())
    lost = list(_lost(contractions.graph, contractions))
    missing = sum(pair.state in (LOST, LATE) for _, pair in pairs) + len(lost)
    thinned = missing >= _MANY and missing > _MUCH * (len(pairs) + len(lost))
    known: dict[Pair, CheckResult] = {}
    for node, pair in pairs:
        if pair not in known:
            verdict, reason = _judge_pair(pair), reason_of(pair.node)
            if pair.state in (LOST, LATE) and thinned:
                verdict = verdict.explained(THINNED)
            known[pair] = verdict if reason is None or _is_judged(pair) else verdict.unjudged(reason)
        tally.add(known[pair], contractions.of_node(node), contractions.where(node))
    for rows, judge in ((contractions.of_hooks, _of_a_hook), (contractions.recomputed, partial(_recomputed, forwards))):
        for row in rows.tolist():
            verdict, reason = judge(contractions, row), reason_of(contractions.name_of_node(row))
            tally.add(verdict if reason is None else verdict.unjudged(reason), (row,), contractions.where(row))
    for name, row in lost:
        verdict = lost_operators(name)
        tally.add(verdict.explained(THINNED) if thinned else verdict, (row,), contractions.where(row))
    return tally


def _is_judged(pair: Pair) -> bool:
    """Return whether the work of a region is compared by the sizes of its forward's products."""
    return pair.state == PAIRED and bool(pair.forward) and is_region(pair)


def _of_a_hook(contractions: Contractions, row: int) -> CheckResult:
    """Return the verdict on a contraction next to a node, which may be anything that a hook computes."""
    contraction = contractions.at(row)
    finding = Mismatch(
        operator=contraction.operator,
        phase=Phase.BACKWARD,
        ours=contraction.flops,
        cause=HOOK,
        evidence=f"{contraction.shapes} next to {contractions.name_of_node(row)}",
    )
    return CheckResult(compared=1, findings=(finding,))


def _recomputed(forwards: Counter[Contraction], contractions: Contractions, row: int) -> CheckResult:
    """Return the verdict on a contraction that is run again: the forward has one of the same arguments for each."""
    contraction = contractions.at(row)
    forwards[contraction] -= 1
    if forwards[contraction] >= 0:
        return CheckResult(compared=1, equal=1)
    cut = bool((contractions.graph.state == BEFORE).any())
    finding = Mismatch(
        operator=contraction.operator,
        phase=Phase.RECOMPUTE,
        ours=contraction.flops,
        cause=BEFORE_TRACE if cut else None,
        evidence=f"{contraction.shapes} is run again, but not in the forward",
    )
    return CheckResult(compared=1, findings=(finding,))


def _lost(graph: Graph, contractions: Contractions) -> Iterator[tuple[str, int]]:
    """Yield nodes of contractions that compute nothing and have no forward operator either."""
    nodes = np.flatnonzero(graph.is_node & (graph.state == LOST) & ~contractions.without_data)
    for row in nodes.tolist():
        if row in contractions.gradients:
            continue
        yield contractions.names[int(contractions.host.name[row])], row


def is_region(pair: Pair) -> bool:
    """Return whether the operator of a node is not a library's: a compiled function or one of the model."""
    return pair.operator is None or "::" not in pair.operator


def _judge_pair(pair: Pair) -> CheckResult:
    if pair.state != PAIRED:
        return _unpaired(pair)
    if not pair.forward:
        return _without_forward(pair)
    if is_region(pair):
        return judge_region(pair)
    bases = {contraction.base for contraction in pair.forward}
    if pair.node.lower().replace("_", "").startswith(_WITH_PRODUCTS):
        return _not_ruled(pair)
    if "BackwardBackward" in pair.node or "DoubleBackward" in pair.node:
        return CheckResult(not_checked=("second derivatives of fused operators",))
    if len(pair.forward) == 1 and bases <= MATRICES.keys():
        return judge_product(pair)
    if all("conv" in name for name in bases):
        return judge_convolution(pair)
    if len(pair.forward) == 1 and all("attention" in name for name in bases):
        return judge_attention(pair)
    if all("rnn" in name for name in bases):
        return judge_recurrent(pair)
    if len(pair.forward) == 1 and bases <= _VECTORS:
        return judge_alike(pair)
    return _not_ruled(pair)


def _not_ruled(pair: Pair) -> CheckResult:
    count = max(len(pair.backward), 1)
    return CheckResult(not_checked=(f"contractions below {pair.node}: no rule says what its backward costs",) * count)


def _unpaired(pair: Pair) -> CheckResult:
    """Return the verdict on a node whose forward operator is unknown, or ran after it."""
    if pair.state in _UNPAIRED:
        return CheckResult(not_checked=(_UNPAIRED[pair.state],) * len(pair.backward))
    calls = pair.backward or pair.forward
    cause = BEFORE_TRACE if pair.state == BEFORE else SCRIPTED if pair.node.startswith("torch::jit") else None
    why = "its forward runs after it" if pair.state == LATE else "no forward operator has its number"
    findings = tuple(
        Mismatch(
            operator=contraction.operator,
            phase=Phase.BACKWARD,
            ours=contraction.flops,
            cause=cause,
            evidence=f"{contraction.shapes} below {pair.node}: {cause or why}",
        )
        for contraction in calls
    )
    return CheckResult(compared=len(findings), findings=findings)


def _without_forward(pair: Pair) -> CheckResult:
    """Return the verdict on contractions below the node of an operator that has none."""
    own = pair.node.lower().replace("_", "")
    rewritten = pair.operator is not None and base(pair.operator) in MATRICES
    cause = AGAIN if rewritten or any(contraction.again for contraction in pair.backward) else None
    if own.startswith(_WITH_PRODUCTS):
        cause = "the gradient of this operator is made of products, as torch writes it"
    elif own.startswith("torch::"):
        return CheckResult(not_checked=(OWN,) * len(pair.backward))
    findings = tuple(
        Mismatch(
            operator=contraction.operator,
            phase=Phase.BACKWARD,
            ours=contraction.flops,
            other=0,
            cause=cause,
            evidence=f"{contraction.shapes} below {pair.node}, whose operator {pair.operator} contracts nothing",
        )
        for contraction in pair.backward
    )
    return CheckResult(compared=len(findings), findings=findings)
