"""The checks that a trace makes possible of itself, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from msgspec.structs import replace

from opanatomy.calls.trace_calls import TraceCalls
from opanatomy.checks.composites import judge_composites
from opanatomy.checks.contractions import Contractions
from opanatomy.checks.findings import Finding, Tally, Verdict
from opanatomy.checks.fused import judge_attention, judge_convolution, judge_recurrent
from opanatomy.checks.graph import AMBIGUOUS, BEFORE, LATE, LOST, PAIRED, UNNUMBERED, Graph, base, graph_of
from opanatomy.checks.matrices import AGAIN, judge_alike, judge_product
from opanatomy.checks.nodes import judge_forwards, judge_twice, judge_work, lost_operators
from opanatomy.checks.pairs import MATRICES, Contraction, Pair
from opanatomy.checks.phases import judge_phases
from opanatomy.checks.regions import OWN, judge_region, reason_of
from opanatomy.records.checks import Check
from opanatomy.records.taxonomy import Phase

BEFORE_TRACE = "its forward ran before the trace began"
SCRIPTED = "one node for a graph of TorchScript, whose forward operators have no number of their own"
FORWARD_MODE = "forward-mode differentiation computes tangents, which have no backward of their own"
THINNED = "the trace lacks the forward operators of many nodes: someone thinned it out, or a thread was not recorded"
HOOK = "a hook of autograd computes in addition to the node"
#: Operators without products of their own whose gradients have some, as torch's formulas for them are written.
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


def self_checks(calls: TraceCalls, *, may_be_cut: bool = True, ranks: int = 1) -> tuple[Check, ...]:
    """What the trace says twice, compared; nothing for a trace without contractions.

    A trace that `may_be_cut` can begin after a forward; that of a capture begins with it. Layers may be cut over
    `ranks`.
    """
    if not len(calls.host.name):
        return ()
    graph = graph_of(calls.names, calls.host, may_be_cut=may_be_cut)
    contractions = Contractions(calls, graph)
    checks = [
        judge_composites(contractions, ranks).check("composite FLOPs", "the operators that call them", "FLOPs"),
        judge_twice(contractions).check("operator events", "Kineto's own numbers of them", "calls"),
    ]
    if calls.on_device:
        checks.append(judge_work(contractions).check("device work of contractions", "their operators' events", "calls"))
    if graph.is_node.any():
        checks += [
            _backward(contractions).check("backward contractions", "the forward of the same autograd node", "FLOPs"),
            judge_forwards(contractions).check("forward contractions", "the backward nodes that ran", "calls"),
            judge_phases(contractions).check("phases of contractions", "the structure of autograd", "calls"),
        ]
    checks = [check for check in checks if check.compared or check.not_checked]
    if not _differentiates_forward(calls.names):
        return tuple(checks)
    unchecked = {"compared": 0, "equal": 0, "differences": (), "not_checked": FORWARD_MODE}
    return tuple(replace(check, **unchecked) if check.unexplained else check for check in checks)


def _differentiates_forward(names: Sequence[str]) -> bool:
    """Whether tangents were computed, by operators that no backward node belongs to."""
    return any(name in ("aten::_make_dual", "aten::_fw_primal") for name in names)


def _backward(contractions: Contractions) -> Tally:
    """Every contraction below a node against its forward."""
    tally = Tally(time_of=contractions.time_ns)
    outside = contractions.rows[contractions.graph.node[contractions.rows] < 0]
    forwards = Counter(map(contractions.at, outside.tolist())) if len(contractions.recomputed) else Counter()
    pairs = list(contractions.pairs())
    lost = list(_lost(contractions.graph, contractions))
    missing = sum(pair.state in (LOST, LATE) for _, pair in pairs) + len(lost)
    thinned = missing >= _MANY and missing > _MUCH * (len(pairs) + len(lost))
    known: dict[Pair, Verdict] = {}
    for node, pair in pairs:
        if pair not in known:
            verdict, reason = _judge(pair), reason_of(pair.node)
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
    """Whether what a region computes is compared by the sizes of its forward's products."""
    return pair.state == PAIRED and bool(pair.forward) and is_region(pair)


def _of_a_hook(contractions: Contractions, row: int) -> Verdict:
    """The verdict on a contraction next to a node, which may be whatever a hook computes."""
    contraction = contractions.at(row)
    finding = Finding(
        operator=contraction.operator, phase=Phase.BACKWARD, ours=contraction.flops, cause=HOOK,
        evidence=f"{contraction.shapes} next to {contractions.name_of_node(row)}",
    )  # fmt: skip
    return Verdict(compared=1, findings=(finding,))


def _recomputed(forwards: Counter[Contraction], contractions: Contractions, row: int) -> Verdict:
    """The verdict on a contraction that is run again: the forward has one of the same arguments for each."""
    contraction = contractions.at(row)
    forwards[contraction] -= 1
    if forwards[contraction] >= 0:
        return Verdict(compared=1, equal=1)
    cut = bool((contractions.graph.state == BEFORE).any())
    finding = Finding(
        operator=contraction.operator, phase=Phase.RECOMPUTE, ours=contraction.flops,
        cause=BEFORE_TRACE if cut else None,
        evidence=f"{contraction.shapes} is run again, but not in the forward",
    )  # fmt: skip
    return Verdict(compared=1, findings=(finding,))


def _lost(graph: Graph, contractions: Contractions) -> Iterator[tuple[str, int]]:
    """Nodes of contractions that compute nothing and whose forward operator is not there either."""
    nodes = np.flatnonzero(graph.is_node & (graph.state == LOST) & ~contractions.without_data)
    for row in nodes.tolist():
        if row in contractions.gradients:
            continue
        yield contractions.names[int(contractions.host.name[row])], row


def is_region(pair: Pair) -> bool:
    """Whether the operator of a node is not one of a library: a compiled or an own function."""
    return pair.operator is None or "::" not in pair.operator


def _judge(pair: Pair) -> Verdict:
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
        return Verdict(not_checked=("second derivatives of fused operators",))
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


def _not_ruled(pair: Pair) -> Verdict:
    count = max(len(pair.backward), 1)
    return Verdict(not_checked=(f"contractions below {pair.node}: no rule says what its backward costs",) * count)


def _unpaired(pair: Pair) -> Verdict:
    """The verdict where the forward operator of a node with contractions is not known, or ran after it."""
    if pair.state in _UNPAIRED:
        return Verdict(not_checked=(_UNPAIRED[pair.state],) * len(pair.backward))
    calls = pair.backward or pair.forward
    cause = BEFORE_TRACE if pair.state == BEFORE else SCRIPTED if pair.node.startswith("torch::jit") else None
    why = "its forward runs after it" if pair.state == LATE else "no forward operator has its number"
    findings = tuple(
        Finding(operator=contraction.operator, phase=Phase.BACKWARD, ours=contraction.flops, cause=cause,
                evidence=f"{contraction.shapes} below {pair.node}: {cause or why}")
        for contraction in calls
    )  # fmt: skip
    return Verdict(compared=len(findings), findings=findings)


def _without_forward(pair: Pair) -> Verdict:
    """The verdict on contractions below the node of an operator that has none."""
    own = pair.node.lower().replace("_", "")
    rewritten = pair.operator is not None and base(pair.operator) in MATRICES
    cause = AGAIN if rewritten or any(contraction.again for contraction in pair.backward) else None
    if own.startswith(_WITH_PRODUCTS):
        cause = "the gradient of this operator is made of products, as torch writes it"
    elif own.startswith("torch::"):
        return Verdict(not_checked=(OWN,) * len(pair.backward))
    findings = tuple(
        Finding(operator=contraction.operator, phase=Phase.BACKWARD, ours=contraction.flops, other=0, cause=cause,
                evidence=f"{contraction.shapes} below {pair.node}, whose operator {pair.operator} contracts nothing")
        for contraction in pair.backward
    )  # fmt: skip
    return Verdict(compared=len(findings), findings=findings)
