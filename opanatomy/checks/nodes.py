"""Operators and nodes that miss each other: a forward without its backward, a node without either, events twice."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from opanatomy.attribution.ownership import above_any
from opanatomy.checks.contractions import Contractions
from opanatomy.checks.findings import Finding, Tally, Verdict
from opanatomy.checks.graph import ENGINE
from opanatomy.checks.matrices import AGAIN
from opanatomy.records.columns import Bool, Int64, distinct, marked
from opanatomy.records.taxonomy import Phase

AFTER_TRACE = "the trace ends before its backward"
NO_LOSS = "no node around it ran either: its result may not have reached the loss"
CUT_OFF = "the trace ends before its device work"
NO_LAUNCH = "nothing was launched: it ran on the host, or on tensors without data"
MERGED = "the trace numbers many events alike, as those of several processes are"
CAPTURED = "the trace launches graphs, and what is captured into one does not run"
#: This many, and this part of all, are no single mistake.
_MANY, _MUCH = 10, 0.1
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
    """Events that are in the trace twice: by Kineto's number of them, or by what the others of their number do."""
    host = contractions.host
    numbered = np.flatnonzero((host.external_id > 0) & (host.annotation == 0))
    known = distinct(host.external_id[numbered])
    counts = np.bincount(known.inverse, minlength=len(known.values))

    def time_ns(rows: Iterable[int]) -> int:
        return sum(int(contractions.call_ns[row]) for row in rows)

    tally = Tally(time_of=time_ns, compared=len(counts), equal=int((counts == 1).sum()))
    several = np.flatnonzero(counts > 1)
    merged = len(several) >= _MANY and len(several) > _MUCH * len(counts)
    for place in several.tolist():
        row = int(numbered[known.first[place]])
        verdict = Verdict(findings=(_twice(contractions, row, int(counts[place])),))
        tally.add(verdict.explained(MERGED) if merged else verdict, (row,), contractions.where(row))
    times = dict(zip(known.values.tolist(), counts.tolist(), strict=True))
    for row in distinct(np.concatenate((_inside_itself(contractions), _twins(contractions)))).values.tolist():
        if times.get(number := int(host.external_id[row]), 1) == 1:
            tally.equal -= number in times
            tally.compared += number not in times
            tally.add(Verdict(findings=(_twice(contractions, row, 2),)), (row,), contractions.where(row))
    return tally


def _twice(contractions: Contractions, row: int, times: int) -> Finding:
    contraction = contractions.at(row)
    return Finding(
        operator=contraction.operator, phase=contractions.phase(row), ours=times, other=1,
        evidence=f"{times} times in the trace: {contraction.shapes}",
    )  # fmt: skip


def _inside_itself(contractions: Contractions) -> Int64:
    """Contractions in an event that is theirs to the nanosecond."""
    host, rows = contractions.host, contractions.rows
    parent = host.parent[rows]
    same = (parent >= 0) & (host.duration_ns[rows] > 0)
    for column in (host.name, host.signature, host.start_ns, host.duration_ns):
        same &= column[rows] == column[parent]
    own: Int64 = rows[same]
    # many of them are how these operators are dispatched, in a trace whose times are whole microseconds
    return own if len(own) < _MANY or len(own) < _MUCH * len(rows) else own[:0]


def _twins(contractions: Contractions) -> Int64:
    """Contractions that have the number, name and arguments of a differentiated or recomputed one, but not its place.

    Autograd counts on with each node it makes, so that only what is not differentiated shares a number; and that is
    called as the differentiated one is, by an operator of its own.
    """
    host, rows = contractions.host, contractions.rows[contractions.host.sequence[contractions.rows] >= 0]
    forward = contractions.graph.forward
    done = marked(np.concatenate((forward[forward >= 0], contractions.recomputed)), len(host.name))
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


def judge_work(contractions: Contractions) -> Tally:
    """On an accelerator every contraction launches work; one without counts nowhere."""
    tally, calls, host = Tally(time_of=contractions.time_ns), contractions.calls, contractions.host
    if not len(calls.work.name):
        return tally
    working = np.flatnonzero((calls.launched > 0) & (calls.owner >= 0))
    busy = marked(calls.owner[working], len(host.name))[contractions.rows]
    inside = contractions.host.in_window[contractions.rows]
    busy &= inside
    tally.compared, tally.equal = int(inside.sum()), int(busy.sum())
    last = int(host.start_ns[working].max()) if len(working) else 0
    graphs = any("GraphLaunch" in name or "BeginCapture" in name for name in contractions.names)
    launched = calls.starts_work | above_any(calls.starts_work, host.parent)
    for row in contractions.rows[inside & ~busy].tolist():
        contraction = contractions.at(row)
        if contraction.flops == 0:
            tally.equal += 1
            continue
        cause = CUT_OFF if host.start_ns[row] > last else CAPTURED if graphs else None
        cause = cause if launched[row] else NO_LAUNCH
        finding = Finding(operator=contraction.operator, phase=contractions.phase(row), ours=0, other=1, cause=cause,
                          evidence=f"no device work of {contraction.shapes}")  # fmt: skip
        tally.add(Verdict(findings=(finding,)), (row,), contractions.where(row))
    return tally


def judge_forwards(contractions: Contractions) -> Tally:
    """Differentiated contractions against the nodes that ran: each should have one."""
    graph, host = contractions.graph, contractions.host
    tally = Tally(time_of=contractions.time_ns)
    ran = marked(graph.forward[graph.forward >= 0], len(host.name))
    if not ran.any():
        return tally
    for operator in np.flatnonzero(ran).tolist():
        ran[list(contractions.forwards.get(operator, ()))] = True
    last_node = int(host.start_ns[np.flatnonzero(graph.is_node & (graph.forward >= 0))].max())
    outer = np.flatnonzero(_made_a_node(contractions))
    waiting = outer[marked(_keys(contractions.forwards), len(host.name))[outer]]
    done = ran[waiting]
    tally.compared, tally.equal = len(waiting), int(done.sum())
    operators = _operators(contractions)
    numbers = set(graph.sequence[graph.is_node & (graph.forward >= 0)].tolist())
    for row in waiting[~done].tolist():
        contraction = contractions.at(contractions.forwards[row][0])
        after = bool(host.start_ns[row] > last_node)
        unused = AGAIN if contraction.again else _unused(contractions, row, operators, numbers)
        finding = Finding(
            operator=contraction.operator, phase=Phase.FORWARD, ours=1, other=0, cause=AFTER_TRACE if after else unused,
            evidence=f"no backward node of {contraction.shapes} ran",
        )  # fmt: skip
        tally.add(Verdict(findings=(finding,)), (row,), contractions.where(row))
    return tally


def _keys(groups: dict[int, list[int]]) -> Int64:
    return np.array(list(groups), dtype=np.int64)


def _operators(contractions: Contractions) -> tuple[Int64, Int64]:
    """The operators with numbers that are no nodes, by thread, number and time; and their places by row."""
    host = contractions.host
    rows = np.flatnonzero(contractions.graph.numbered == np.arange(len(host.name)))
    order = rows[np.lexsort((host.start_ns[rows], host.sequence[rows], host.thread[rows]))]
    place = np.full(len(host.name), -1, dtype=np.int64)
    place[order] = np.arange(len(order))
    return order, place


def _made_a_node(contractions: Contractions) -> Bool:
    """Whether autograd made a node for the operator at a row: the next operator of its thread has a higher number."""
    host = contractions.host
    order, _ = _operators(contractions)
    made = np.zeros(len(host.name), dtype=bool)
    if len(order) > 1:
        same = host.thread[order[1:]] == host.thread[order[:-1]]
        counted = host.sequence[order[1:]] > host.sequence[order[:-1]]
        made[order[:-1][same & counted]] = True
    below = contractions.graph.node
    return made & ((below < 0) | contractions.graph.differentiated[np.maximum(below, 0)])


def _unused(contractions: Contractions, row: int, operators: tuple[Int64, Int64], ran: set[int]) -> str | None:
    """Why no backward came: unless the nodes before and after it ran, its result may not have been used."""
    host, (order, place) = contractions.host, operators
    for step in (-1, 1):
        other = int(place[row])
        while 0 <= other < len(order) and host.sequence[order[other]] == host.sequence[row]:
            other += step
        if not 0 <= other < len(order) or int(host.sequence[order[other]]) not in ran:
            return NO_LOSS
    return None
