"""The contractions of a trace, sorted by autograd node and forward operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from opanatomy.attribution.ownership import above_any
from opanatomy.calls.trace_calls import TraceCalls
from opanatomy.checks.graph import LATE, PAIRED, Graph, base, without_data
from opanatomy.checks.pairs import Contraction, Pair, contraction, grown, shared_out
from opanatomy.records.columns import Int64, marked
from opanatomy.records.signature import Signature
from opanatomy.records.taxonomy import CLASS_CODE, PHASE_CODE, PHASES, OperatorClass, Phase

#: Stands for the signature of no call; -1 is a call without one.
_NO_CALL = -2


class Contractions:
    """Every call that contracts, by the node it runs below or the operator it is the work of."""

    def __init__(self, calls: TraceCalls, graph: Graph) -> None:
        self.calls = calls
        self.host = calls.host
        self.names = calls.names
        self.graph = graph
        self._known: dict[tuple[int, int, bool], Contraction] = {}
        #: Whether calls of a name and signature, below a call of the same name with another one, are dispatched again.
        self._again: dict[tuple[int, int, int], bool] = {}
        owners = np.flatnonzero(calls.owner == np.arange(len(self.host.name)))
        owning = marked(self.host.name[owners], len(self.names))
        contracts = owning & (calls.operators.operator_class == CLASS_CODE[OperatorClass.TENSOR_CONTRACTION])
        #: Rows in a compilation, which compute nothing.
        self.without_data = without_data(calls)
        #: Rows of the calls that contract.
        self.rows = owners[contracts[self.host.name[owners]] & ~self.without_data[owners]]
        again = self.host.phase == PHASE_CODE[Phase.RECOMPUTE]
        #: Of the same operators those in recomputation that are no call: their kernel never ran.
        self.unrun = np.flatnonzero((calls.owner < 0) & contracts[self.host.name] & again)
        #: In recomputation with no operator below that computes: one that calls a backend did not get there.
        busy = owning[self.host.name]
        self.childless = again & ~above_any(busy, self.host.parent)
        #: The time of each call with all that is part of it, 0 of what is no call.
        self.call_ns = np.zeros(len(self.host.name), dtype=np.int64)
        owned = np.flatnonzero(calls.owner >= 0)
        np.add.at(self.call_ns, calls.owner[owned], calls.time_ns[owned])
        self._sort()

    def _sort(self) -> None:
        """Tell the gradients of a node from operators of their own: those have a number and are differentiated."""
        graph, rows = self.graph, self.rows
        node, number = graph.node[rows], graph.numbered[rows]
        own_number = (number >= 0) & (number > node)
        own_number |= (node >= 0) & (rows < self._last_numbered()[node])
        self.is_gradient = (node >= 0) & graph.in_body[rows] & (~own_number | graph.differentiated[node])
        #: Below a node, but dispatched as in forward: run again by checkpointing.
        self.recomputed = rows[(node >= 0) & own_number & ~graph.differentiated[node]]
        #: Below a node, but run by a hook in addition to what it computes.
        self.of_hooks = rows[(node >= 0) & ~graph.in_body[rows] & ~own_number]
        self.gradients = _grouped(node[self.is_gradient], rows[self.is_gradient])
        self.forwards = _grouped(number[number > node], rows[number > node])
        self._add_dispatched_again()

    def _last_numbered(self) -> Int64:
        """For each node the last operator below it that has a number: what ran before it without one is as it is."""
        graph = self.graph
        numbered = np.flatnonzero((graph.numbered == np.arange(len(graph.node))) & (graph.numbered > graph.node))
        last = np.full(len(graph.node), -1, dtype=np.int64)
        np.maximum.at(last, graph.node[numbered], numbered)
        return last

    def _add_dispatched_again(self) -> None:
        """What an operator of the same name called is its work too: transforms dispatch level by level."""
        name, parent = self.host.name, self.host.parent
        for row in self.rows[(parent[self.rows] >= 0) & (name[parent[self.rows]] == name[self.rows])].tolist():
            above = int(parent[row])
            while above >= 0 and name[above] == name[row] and above not in self.forwards:
                self.forwards[above] = [row]
                above = int(parent[above])

    def at(self, row: int) -> Contraction:
        """The contraction at a row."""
        name, number = int(self.host.name[row]), int(self.host.signature[row])
        key = (name, number, self._is_again(row))
        if key not in self._known:
            flops = self.calls.costs.flops_at(row)
            self._known[key] = contraction(self.names[name], self.signature(row), flops, key[2])
        return self._known[key]

    def _is_again(self, row: int) -> bool:
        """Whether a subclass or a transform dispatched the call at a row again."""
        host, parent = self.host, int(self.host.parent[row])
        inner = parent >= 0 and bool(host.name[parent] == host.name[row])
        key = int(host.name[row]), int(host.signature[row]), int(host.signature[parent]) if inner else _NO_CALL
        if key not in self._again:
            shared = inner and shared_out(self.signature(parent), self.signature(row))
            self._again[key] = shared or grown(self.names[key[0]], self.signature(row))
        return self._again[key]

    def signature(self, row: int) -> Signature | None:
        """What the trace recorded of the arguments of a row."""
        number = int(self.host.signature[row])
        return self.calls.signatures[number] if number >= 0 else None

    def time_ns(self, rows: Iterable[int]) -> int | None:
        """The time of the calls at these rows; one whose work the trace lacks takes as long as others like it.

        What is outside the window is in no figure.
        """
        total: int | None = 0
        for row in rows:
            time = (int(self.call_ns[row]) or self._like(row)) if self.host.in_window[row] else 0
            total = None if total is None or time is None else total + time
        return total

    def _like(self, row: int) -> int | None:
        """The mean time of the calls with the name and arguments of a row, else of those with its name, else of all."""
        known = self.rows[self.call_ns[self.rows] > 0]
        named = known[self.host.name[known] == self.host.name[row]]
        alike = named[self.host.signature[named] == self.host.signature[row]]
        for calls in (alike, named, known):
            if len(calls):
                return int(self.call_ns[calls].mean())
        return None

    def of_node(self, node: int) -> Sequence[int]:
        """The gradients of a node, where there are none the contractions of its forward, else the node."""
        return self.gradients.get(node) or self.forwards.get(int(self.graph.forward[node])) or (node,)

    def name_of_node(self, row: int) -> str:
        """The name of the node that a row runs below; empty where there is none."""
        node = int(self.graph.node[row])
        return self.names[int(self.host.name[node])] if node >= 0 else ""

    def where(self, row: int) -> str | None:
        """The module that a row runs in."""
        return self.host.module.at(row) or None

    def phase(self, row: int) -> Phase:
        """The phase that a row was placed in."""
        return PHASES[int(self.host.phase[row])]

    def pairs(self) -> Iterator[tuple[int, Pair]]:
        """(the row of the node, the node with its operator) of each node with a contraction on either side."""
        graph = self.graph
        turned = self._turned()
        nodes = np.flatnonzero(graph.is_node)
        forward = graph.forward[nodes]
        forward = np.where(forward >= 0, self._owning_call(forward), -1)
        count = len(self.host.name)
        has_forward = marked(np.array(list(self.forwards), dtype=np.int64), count)[forward] & (forward >= 0)
        busy = marked(np.array(list(self.gradients), dtype=np.int64), count)[nodes] | has_forward
        for node, operator in zip(nodes[busy].tolist(), forward[busy].tolist(), strict=True):
            state = int(graph.state[node])
            paired = state in (PAIRED, LATE)
            yield node, Pair(
                node=self.names[int(self.host.name[node])].rpartition(": ")[2],
                operator=self.names[int(self.host.name[operator])] if paired else None,
                state=state,
                forward=tuple(map(self.at, self.forwards.get(operator, ()))) if paired else (),
                backward=tuple(map(self.at, self.gradients.get(node, ()))),
                transposed=(int(turned[0][node]), int(turned[1][node])),
            )  # fmt: skip

    def _owning_call(self, operators: Int64) -> Int64:
        """The operators, or the calls with the same number that they are part of."""
        owner = self.calls.owner[operators]
        return np.where((owner >= 0) & (self.host.sequence[owner] == self.host.sequence[operators])
                        & (owner < operators), owner, operators)  # fmt: skip

    def _turned(self) -> tuple[Int64, Int64]:
        """For each row the operands that the body of the node there turned, by `aten::t` and `aten::transpose`."""
        host, graph = self.host, self.graph
        count = len(host.name)
        is_marked = np.zeros(count, dtype=bool)
        inside = np.flatnonzero((graph.node >= 0) & graph.in_body & (host.parent >= 0))
        # directly in the body: the parent is the node or the node's own event, neither of which is an operator
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
    """The rows of each key, in their order."""
    groups: dict[int, list[int]] = {}
    for key, row in zip(keys.tolist(), rows.tolist(), strict=True):
        groups.setdefault(key, []).append(row)
    return groups
