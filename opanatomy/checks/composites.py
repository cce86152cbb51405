"""Operators that call the one that computes: both record their arguments, and both formulas must agree."""

from __future__ import annotations

import numpy as np

from opanatomy.attribution.nesting import nearest_above
from opanatomy.checks.contractions import Contractions
from opanatomy.checks.findings import Finding, Tally, Verdict
from opanatomy.checks.graph import base
from opanatomy.checks.matrices import AGAIN
from opanatomy.tables import Int64

#: Composite operators of one contraction, whose own arguments say its FLOPs.
COMPOSITES = {
    "linear", "matmul", "convolution", "_convolution", "convolution_backward", "cudnn_convolution_backward",
    "miopen_convolution_backward", "mkldnn_convolution_backward", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "_convolution_mode",
}  # fmt: skip


def judge_composites(contractions: Contractions) -> Tally:
    """The FLOPs of the calls below each composite beside those of its own arguments."""
    tally = Tally()
    host = contractions.host
    named = np.array([base(name) in COMPOSITES and name.startswith("aten::") for name in contractions.names], dtype=bool)
    above = np.where(host.parent >= 0, nearest_above(named[host.name], host.parent)[host.parent], -1)
    rows = contractions.rows[above[contractions.rows] >= 0]
    for composite, inside in _runs(above[rows], rows):
        tally.add(_judge(contractions, composite, inside), contractions.where(composite))
    return tally


def _runs(keys: Int64, rows: Int64) -> list[tuple[int, list[int]]]:
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order])) + 1
    return [(int(keys[run[0]]), rows[run].tolist()) for run in np.split(order, starts) if len(run)]


def _judge(contractions: Contractions, composite: int, inside: list[int]) -> Verdict:
    whole = contractions.at(composite)
    calls = [contractions.at(row) for row in inside]
    spent: int | None = 0
    for one in calls:
        spent = None if spent is None or one.flops is None else spent + one.flops
    if whole.flops is None or (spent is None and not all(one.complete for one in calls)):
        return Verdict()
    if spent == whole.flops:
        return Verdict(compared=len(calls), equal=len(calls))
    finding = Finding(
        operator=calls[0].operator, phase=contractions.host.phase[inside[0]], ours=spent, other=whole.flops,
        cause=AGAIN if whole.again or any(one.again for one in calls) else None,
        evidence=f"{'; '.join(one.shapes for one in calls)} in {whole.shapes}",
    )  # fmt: skip
    return Verdict(compared=len(calls), equal=len(calls) - 1, findings=(finding,))
