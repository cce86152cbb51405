"""The phases that contractions were given, against what autograd's structure says of them."""

from __future__ import annotations

from opanatomy.checks.contractions import Contractions
from opanatomy.checks.findings import Finding, Tally, Verdict
from opanatomy.checks.graph import PAIRED
from opanatomy.records.columns import distinct
from opanatomy.records.taxonomy import PHASE_CODE, Phase

IN_FORWARD = "a gradient that is taken inside the forward range of the trace"
DIFFERENTIATED = "its backward is differentiated itself (create_graph), so that its operators look like a forward's"


def judge_phases(contractions: Contractions) -> Tally:
    """What a node computes is backward; what a node that ran is the backward of is forward."""
    tally = Tally()
    host, graph = contractions.host, contractions.graph
    gradients = contractions.rows[contractions.is_gradient]
    as_said = host.phase[gradients] == PHASE_CODE[Phase.BACKWARD]
    tally.compared = tally.equal = int(as_said.sum())
    for row in gradients[~as_said].tolist():
        node, cause = int(graph.node[row]), None
        if graph.differentiated[node] and contractions.phase(row) is Phase.RECOMPUTE:
            cause = DIFFERENTIATED
        elif contractions.phase(row) is contractions.phase(node) is Phase.FORWARD:
            cause = IN_FORWARD
        _add(tally, contractions, row, Phase.BACKWARD, cause)
    paired = graph.forward[graph.is_node & (graph.state == PAIRED)]
    outside = distinct(paired[(paired >= 0) & (graph.node[paired] < 0)])
    for operator in outside.values.tolist():
        for row in contractions.forwards.get(operator, ()):
            _add(tally, contractions, row, Phase.FORWARD, None)
    return tally


def _add(tally: Tally, contractions: Contractions, row: int, phase: Phase, cause: str | None) -> None:
    given = contractions.phase(row)
    if given is phase:
        tally.compared += 1
        tally.equal += 1
        return
    contraction = contractions.at(row)
    finding = Finding(
        operator=contraction.operator, phase=given, ours=1, other=0, cause=cause,
        evidence=f"{contraction.shapes} is {phase} by autograd's structure",
    )  # fmt: skip
    tally.add(Verdict(compared=1, findings=(finding,)), contractions.where(row))
