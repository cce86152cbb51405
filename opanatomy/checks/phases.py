"""The phases that contractions were given, against what autograd's structure says of them."""

from __future__ import annotations

from opanatomy.checks.contractions import Contractions
from opanatomy.checks.findings import Finding, Tally, Verdict
from opanatomy.checks.graph import PAIRED
from opanatomy.checks.regions import reason_of
from opanatomy.records.columns import distinct
from opanatomy.records.taxonomy import PHASE_CODE, Phase

IN_FORWARD = "a gradient that is taken inside the forward range of the trace"
RUN_AGAIN = "a function of the model's own, or a compiled one, that runs its forward again in its backward"
DIFFERENTIATED = "its backward is differentiated itself (create_graph), so that its operators look like a forward's"
RUN_AGAIN = "it runs again, to be differentiated, in a range that the trace calls backward"


def judge_phases(contractions: Contractions) -> Tally:
    """What a node computes is backward; what a node that ran is the backward of is forward."""
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
            cause = RUN_AGAIN
        elif contractions.phase(row) is contractions.phase(node) is Phase.FORWARD:
            cause = IN_FORWARD
        _add(tally, contractions, row, Phase.BACKWARD, cause)
    paired = graph.forward[graph.is_node & (graph.state == PAIRED)]
    outside = distinct(paired[(paired >= 0) & (graph.node[paired] < 0)])
    for operator in outside.values.tolist():
        for row in contractions.forwards.get(operator, ()):
            # Recompute outside of all nodes is what a range of the trace states.
            _add(
                tally,
                contractions,
                row,
                Phase.FORWARD,
                RUN_AGAIN if contractions.phase(row) is Phase.RECOMPUTE else None,
            )
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
    tally.add(Verdict(compared=1, findings=(finding,)), (row,), contractions.where(row))
