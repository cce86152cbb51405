"""Operators and nodes that miss each other: a forward without its backward, a node without either, events twice."""

from __future__ import annotations

import numpy as np

from opanatomy.checks.contractions import Contractions
from opanatomy.checks.findings import Finding, Tally, Verdict
from opanatomy.checks.graph import ENGINE
from opanatomy.model import Phase
from opanatomy.tables import Int64

AFTER_TRACE = "the trace ends before its backward"
NO_LOSS = "its result did not reach the loss"
#: Nodes of contractions, by the beginning of their names.
_CONTRACTING = (
    "Addmm", "Mm", "Bmm", "Baddbmm", "Convolution", "CudnnConvolution", "MiopenConvolution", "MkldnnConvolution",
    "ScaledDotProduct", "CudnnRnn", "MiopenRnn", "MkldnnRnnLayer", "Linear",
)  # fmt: skip


def lost_operators(name: str) -> Verdict:
    """The verdict on a node that computes nothing and has no forward operator: a contraction's has lost both."""
    own = name.removeprefix(ENGINE)
    if not own.startswith(_CONTRACTING):
        return Verdict()
    finding = Finding(operator=own, phase=Phase.BACKWARD, ours=0, evidence="neither its forward nor its products")
    return Verdict(compared=1, findings=(finding,))


def judge_twice(contractions: Contractions) -> Tally:
    """Contractions whose event has Kineto's number of another one: each event has its own."""
    host = contractions.host
    numbered = np.flatnonzero((host.external_id > 0) & (host.annotation == 0))
    _, first, counts = np.unique(host.external_id[numbered], return_index=True, return_counts=True)
    tally = Tally(compared=len(counts), equal=int((counts == 1).sum()))
    contracts = set(contractions.rows.tolist())
    for place in np.flatnonzero(counts > 1).tolist():
        row = int(numbered[first[place]])
        one = contractions.at(row)
        kind = "a contraction" if row in contracts else "an operator"
        finding = Finding(
            operator=one.operator, phase=host.phase[row], ours=int(counts[place]), other=1,
            evidence=f"{kind} that is {int(counts[place])} times in the trace: {one.shapes}",
        )  # fmt: skip
        tally.add(Verdict(findings=(finding,)), contractions.where(row))
    return tally


def judge_forwards(contractions: Contractions) -> Tally:
    """Differentiated contractions beside the nodes that ran: each should have one."""
    graph, host = contractions.graph, contractions.host
    tally = Tally()
    ran = np.unique(graph.forward[graph.forward >= 0])
    if not len(ran):
        return tally
    last_node = int(host.start_ns[np.flatnonzero(graph.is_node & (graph.forward >= 0))].max())
    outer = np.flatnonzero(_made_a_node(contractions))
    waiting = outer[np.isin(outer, list(contractions.forwards))]
    done = np.isin(waiting, ran)
    tally.compared, tally.equal = len(waiting), int(done.sum())
    order, numbers = _operators(contractions)
    for row in waiting[~done].tolist():
        one = contractions.at(contractions.forwards[row][0])
        finding = Finding(
            operator=one.operator, phase=Phase.FORWARD, ours=1, other=0,
            cause=AFTER_TRACE if host.start_ns[row] > last_node else _unused(contractions, row, order, numbers),
            evidence=f"no backward node of {one.shapes} ran",
        )  # fmt: skip
        tally.add(Verdict(findings=(finding,)), contractions.where(row))
    return tally


def _operators(contractions: Contractions) -> tuple[Int64, Int64]:
    """The operators with numbers that are no nodes, by thread, number and time; and their places by row."""
    host = contractions.host
    rows = np.flatnonzero(contractions.graph.numbered == np.arange(len(host.name)))
    order = rows[np.lexsort((host.start_ns[rows], host.sequence[rows], host.thread[rows]))]
    place = np.full(len(host.name), -1, dtype=np.int64)
    place[order] = np.arange(len(order))
    return order, place


def _made_a_node(contractions: Contractions) -> np.ndarray:
    """Whether autograd made a node for the operator at a row: the next operator of its thread has a higher number."""
    host = contractions.host
    order, _ = _operators(contractions)
    found = np.zeros(len(host.name), dtype=bool)
    if len(order) > 1:
        same = host.thread[order[1:]] == host.thread[order[:-1]]
        counted = host.sequence[order[1:]] > host.sequence[order[:-1]]
        found[order[:-1][same & counted]] = True
    below = contractions.graph.node
    return found & ((below < 0) | contractions.graph.differentiated[np.maximum(below, 0)])


def _unused(contractions: Contractions, row: int, order: Int64, place: Int64) -> str | None:
    """Why no backward came: unless the nodes before and after it ran, its result was not used."""
    host, at = contractions.host, int(place[row])
    ran = contractions.graph.forward
    around = []
    for step in (-1, 1):
        other = at + step
        while 0 <= other < len(order) and host.sequence[order[other]] == host.sequence[row]:
            other += step
        around.append(int(order[other]) if 0 <= other < len(order) else -1)
    numbers = {int(host.sequence[one]) for one in around if one >= 0 and host.thread[one] == host.thread[row]}
    nodes = set(host.sequence[contractions.graph.is_node & (ran >= 0)].tolist()) if numbers else set()
    return None if numbers <= nodes else NO_LOSS
