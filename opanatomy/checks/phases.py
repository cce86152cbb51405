"""The phases that contractions were given, beside what autograd's structure says of them."""

from __future__ import annotations

import numpy as np

from opanatomy.checks.contractions import Contractions
from opanatomy.checks.findings import Finding, Tally, Verdict
from opanatomy.checks.graph import PAIRED
from opanatomy.records.taxonomy import Phase

IN_FORWARD = "a gradient that is taken inside the forward range of the trace"
DIFFERENTIATED = "its backward is differentiated itself (create_graph), so that its operators look like a forward's"


def judge_phases(contractions: Contractions) -> Tally:
    """What a node computes is backward; what a node that ran is the backward of is forward."""
    tally = Tally()
    host, graph = contractions.host, contractions.graph
    for row in contractions.rows[contractions.is_gradient].tolist():
        if host.phase[row] is Phase.BACKWARD:
            tally.compared, tally.equal = tally.compared + 1, tally.equal + 1
            continue
        node, cause = int(graph.node[row]), None
        if graph.differentiated[node] and host.phase[row] is Phase.RECOMPUTE:
            cause = DIFFERENTIATED
        elif host.phase[row] is Phase.FORWARD and host.phase[node] is Phase.FORWARD:
            cause = IN_FORWARD
        _add(tally, contractions, row, Phase.BACKWARD, cause)
    paired = graph.forward[graph.is_node & (graph.state == PAIRED)]
    outside = np.unique(paired[(paired >= 0) & (graph.node[paired] < 0)])
    for operator in outside.tolist():
        for row in contractions.forwards.get(operator, ()):
            _add(tally, contractions, row, Phase.FORWARD, None)
    return tally


def _add(tally: Tally, contractions: Contractions, row: int, phase: Phase, cause: str | None) -> None:
    given = contractions.host.phase[row]
    if given is phase:
        tally.compared += 1
        tally.equal += 1
        return
    one = contractions.at(row)
    finding = Finding(
        operator=one.operator, phase=given, ours=1, other=0, cause=cause,
        evidence=f"{one.shapes} is {phase} by autograd's structure",
    )  # fmt: skip
    tally.add(Verdict(compared=1, findings=(finding,)), contractions.where(row))
