"""Operators that call the one that computes: both record their arguments, and both formulas must agree."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from opanatomy.attribution.nesting import nearest_above
from opanatomy.attribution.ownership import above_any
from opanatomy.checks.contractions import Contractions
from opanatomy.checks.findings import Finding, Tally, Verdict
from opanatomy.checks.graph import base
from opanatomy.checks.matrices import AGAIN
from opanatomy.checks.pairs import Contraction
from opanatomy.records.columns import Bool, Int64, distinct
from opanatomy.records.taxonomy import Phase

#: Composite operators of one contraction, whose own arguments say its FLOPs, and the most arguments that they take.
COSTED = {
    "linear": 3, "matmul": 3, "convolution": 9, "_convolution": 13, "convolution_backward": 11,
    "cudnn_convolution_backward": 11, "miopen_convolution_backward": 11, "mkldnn_convolution_backward": 11,
}  # fmt: skip
#: Those that call one of the former, or one fused operator.
ENCLOSING = {"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
             "scaled_dot_product_attention"}  # fmt: skip
STOPPED = "recomputation stops before the kernel: nothing in backward needs its result"
ANSWERED = "Python answered it in place of a kernel: tensors without data, as in tracing, or a result that was kept"
NOTHING = "nothing was launched below it: it ran on the host, or on tensors without data"
ELSEWHERE = "operators that no rule knows compute it"
CUT = "the layer is cut over the ranks: its shapes are those of all ranks, the calls below it those of one"
SCRIPTED = "operators of TorchScript, whose events have more arguments than they take"


#: What the dispatcher records around the Python code of a dispatch mode or a tensor subclass.
_PYTHON = frozenset({"PythonDispatchMode", "PythonSubclass"})


def judge_composites(contractions: Contractions, ranks: int = 1) -> Tally:
    """The FLOPs of the calls below each composite against those of its own arguments.

    A composite inside another call (`aten::linalg_matrix_exp`) is part of that and not looked at. Where layers are cut
    over `ranks`, its arguments may be those of all of them.
    """
    tally = Tally(time_of=contractions.time_ns)
    host = contractions.host
    wanted = {f"aten::{name}" for name in (*COSTED, *ENCLOSING)}
    named = np.array([name in wanted for name in contractions.names], dtype=bool)[host.name]
    above = np.where(host.parent >= 0, nearest_above(named, host.parent)[host.parent], -1)
    below = _grouped(above[contractions.rows], contractions.rows)
    inner = _grouped(above[named], np.flatnonzero(named))
    owners = set(contractions.rows.tolist())
    has_work = nearest_above(named, host.parent)[contractions.rows]
    busy = _upward(has_work[has_work >= 0], above)
    owner = contractions.calls.owner
    stopped = _upward(above[contractions.unrun], above) | contractions.childless
    python = np.array([name in _PYTHON for name in contractions.names], dtype=bool)[host.name]
    answered = above_any(python, host.parent)
    foreign = above[_foreign(contractions)]
    computed = _upward(foreign[foreign >= 0], above)
    started = above_any(contractions.calls.starts_work, host.parent) | contractions.calls.starts_work
    judged = named & ~contractions.without_data & ((owner < 0) | (owner >= np.arange(len(owner))))
    for row in np.flatnonzero(judged).tolist():
        calls = [contractions.at(place) for place in below.get(row, ())]
        verdict = _judge(contractions, row, calls, bool(inner.get(row)), row in owners, bool(busy[row]))
        if not busy[row] and (stopped[row] or answered[row]):
            verdict = verdict.explained(STOPPED if stopped[row] else ANSWERED)
        elif not busy[row] and (computed[row] or contractions.calls.on_device):
            verdict = verdict.explained(ELSEWHERE if computed[row] or started[row] else NOTHING)
        if ranks > 1 and all(one.ours and one.ours * ranks == one.other for one in verdict.findings):
            verdict = verdict.explained(CUT)
        tally.add(verdict, below.get(row) or (row,), contractions.where(row))
    return tally


def _foreign(contractions: Contractions) -> Bool:
    """Which rows are of operators that are neither torch's own nor known."""
    foreign = [
        "::" in name and not name.startswith(("aten::", "prim::", "prims::", "autograd::", "torch::autograd"))
        for name in contractions.names
    ]
    rows: Bool = np.array(foreign, dtype=bool)[contractions.host.name] & (contractions.host.annotation == 0)
    return rows


def _grouped(keys: Int64, rows: Int64) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for key, row in zip(keys.tolist(), rows.tolist(), strict=True):
        groups.setdefault(key, []).append(row)
    return groups


def _upward(rows: Int64, above: Int64) -> Bool:
    """Whether each row is one of `rows` or above one, going up by `above`."""
    reached = np.zeros(len(above), dtype=bool)
    while len(rows):
        rows = distinct(rows[~reached[rows]]).values
        reached[rows] = True
        rows = above[rows]
        rows = rows[rows >= 0]
    return reached


def _judge(
    contractions: Contractions, row: int, calls: list[Contraction], has_inner: bool, is_owner: bool, busy: bool
) -> Verdict:
    """The calls directly below a composite against its own cost; none may be missing."""
    whole, phase = contractions.at(row), contractions.phase(row)
    if whole.base in ENCLOSING:
        extra = tuple(_too_many(whole, calls, has_inner, phase))
        return Verdict(compared=len(extra), findings=extra)
    if whole.flops is None:
        return Verdict()
    if whole.signature is None or len(whole.signature.arguments) > COSTED[whole.base]:
        return Verdict(not_checked=(SCRIPTED,) if calls else ())
    if is_owner:
        lost = _left_alone(whole)
        return Verdict(compared=1, equal=int(not lost), findings=(_finding(whole, phase, None, lost),) if lost else ())
    if not busy:
        text = "no contraction ran below it"
        return Verdict(compared=1, findings=(_finding(whole, phase, 0, text),)) if whole.flops else Verdict()
    if not calls or (has_inner and not calls):
        return Verdict()
    return _compared(whole, calls, phase)


def _compared(whole: Contraction, calls: list[Contraction], phase: Phase) -> Verdict:
    spent: int | None = 0
    for call in calls:
        spent = None if spent is None or call.flops is None else spent + call.flops
    if spent is None and not all(call.complete for call in calls):
        return Verdict()
    if spent == whole.flops:
        return Verdict(compared=len(calls), equal=len(calls))
    finding = Finding(
        operator=calls[0].operator, phase=phase, ours=spent, other=whole.flops,
        cause=AGAIN if whole.again or any(call.again for call in calls) else None,
        evidence=f"{'; '.join(call.shapes for call in calls)} in {whole.shapes}",
    )  # fmt: skip
    return Verdict(compared=len(calls), equal=len(calls) - 1, findings=(finding,))


def _finding(whole: Contraction, phase: Phase, ours: int | None, text: str) -> Finding:
    cause = AGAIN if whole.again else None
    evidence = f"{text}: {whole.shapes}"
    return Finding(operator=whole.operator, phase=phase, ours=ours, other=whole.flops, cause=cause, evidence=evidence)


def _left_alone(whole: Contraction) -> str:
    """What is wrong with a composite that computes itself: torch's convolutions call a backend that has an event.

    Transposed ones of oneDNN have none, and other devices may compute a `linear` or `matmul` whole.
    """
    transposed = whole.signature is not None and whole.signature.get(6) in (True, "True", 1)
    plain = whole.base == "convolution" or (whole.base == "_convolution" and not transposed)
    return "the operator that computes has no event" if plain and whole.flops else ""


def _too_many(whole: Contraction, calls: list[Contraction], has_inner: bool, phase: Phase) -> Iterator[Finding]:
    """Calls besides the one that such a composite makes."""
    attention = base(whole.operator) == "scaled_dot_product_attention"
    extra = len([call for call in calls if "attention" in call.base]) - 1 if attention else len(calls) - (not has_inner)
    if extra > 0:
        call = calls[-1]
        yield Finding(
            operator=call.operator, phase=phase, ours=None if call.flops is None else call.flops * (extra + 1),
            other=call.flops, evidence=f"{extra + 1} calls in one {whole.operator}: {call.shapes}",
        )  # fmt: skip
