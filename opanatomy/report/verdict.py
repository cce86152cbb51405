"""The anatomy in one sentence: the first of these findings that holds, the most disturbing first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from opanatomy.records.anatomy import Anatomy, ClassRow
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report.classes import LABEL
from opanatomy.report.totals import Total, total
from opanatomy.report.units import share

#: The part of the time from which a finding is the story of the step.
UNEXPLAINED, WAITING, EXPOSED, UPDATING, RECOMPUTING, CONTRACTING = 0.2, 0.4, 0.25, 1 / 3, 0.25, 0.85
#: The part of the time whose FLOPs must be known to speak of all the arithmetic.
COSTED = 0.99


def verdict(anatomy: Anatomy) -> str:
    """One sentence that says what the time of the step goes to."""
    return next(sentence for finding in _FINDINGS if (sentence := finding(anatomy)))


def _nothing(anatomy: Anatomy) -> str | None:
    if _time(anatomy.classes):
        return None
    failure = anatomy.memory.failure
    if failure is None:
        return "There is no device work in this trace: nothing to explain."
    fitting = next((one.option for one in anatomy.memory.savings if one.fits is not False), None)
    return f"The step does not fit{f': try {fitting}' if fitting else ''}."


def _unexplained(anatomy: Anatomy) -> str | None:
    whole = _time(anatomy.classes)
    if anatomy.ledger.unknown_ns < UNEXPLAINED * whole:
        return None
    return f"No rule knows {share(anatomy.ledger.unknown_ns, whole)} of the device work: the figures say little yet."


def _waiting(anatomy: Anatomy) -> str | None:
    """On the CPU the framework around the operators, elsewhere the time without device work."""
    step, timeline = anatomy.step, anatomy.timeline
    if anatomy.environment.device_kind == "cpu":
        if step.framework_ns is None or not step.wall_ns or step.framework_ns < WAITING * step.wall_ns:
            return None
        framework = share(step.framework_ns, step.wall_ns)
        return f"{framework} of the step is framework (dispatch, autograd, Python), not operators."
    waiting_ns = timeline.idle_ns if timeline.host_idle_ns is None else timeline.host_idle_ns
    if waiting_ns < WAITING * timeline.window_ns or not timeline.window_ns:
        return None
    return f"The device waits for the host {share(waiting_ns, timeline.window_ns)} of the step."


def _exposed(anatomy: Anatomy) -> str | None:
    exposed, window = anatomy.timeline.exposed_communication_ns, anatomy.timeline.window_ns
    if exposed is None or not window or exposed < EXPOSED * window:
        return None
    return f"Communication that no computation hides takes {share(exposed, window)} of the time."


def _updating(anatomy: Anatomy) -> str | None:
    return _phase(anatomy, Phase.OPTIMIZER, UPDATING, "The optimizer takes {} of the device time.")


def _recomputing(anatomy: Anatomy) -> str | None:
    return _phase(anatomy, Phase.RECOMPUTE, RECOMPUTING, "Computing activations again takes {} of the device time.")


def _contracting(anatomy: Anatomy) -> str | None:
    contraction, everything = _contraction(anatomy), total(anatomy.classes)
    if contraction.time_ns < CONTRACTING * everything.time_ns:
        return None
    sentence = f"Tensor contraction takes {share(contraction.time_ns, everything.time_ns)} of the time"
    if contraction.flops and everything.flops_cover:
        sentence += f" for {share(contraction.flops, everything.flops)} of the {_arithmetic_of(everything)}"
    if contraction.reached:
        sentence += f", at {share(contraction.reached, 1)} of what the device could do"
        if contraction.covered != 1:
            sentence += f" in {share(contraction.covered, 1)} of it"
    return f"{sentence}."


def _arithmetic(anatomy: Anatomy) -> str | None:
    """All that is no contraction, as the paper puts it."""
    contraction, everything = _contraction(anatomy), total(anatomy.classes)
    if not contraction.flops or not everything.flops or everything.flops == contraction.flops:
        return None
    if not everything.flops_cover:
        return None
    rest_ns = everything.time_ns - contraction.time_ns
    flops = share(everything.flops - contraction.flops, everything.flops)
    sentence = f"{flops} of the {_arithmetic_of(everything)} takes {share(rest_ns, everything.time_ns)} of the time"
    rest = [row for row in anatomy.classes if row.operator_class is not OperatorClass.TENSOR_CONTRACTION]
    most = _most(rest)
    mostly = 2 * _time(row for row in rest if row.operator_class is most) > rest_ns
    return f"{sentence}, most of it {LABEL[most]}." if mostly else f"{sentence}."


def _contraction(anatomy: Anatomy) -> Total:
    return total(row for row in anatomy.classes if row.operator_class is OperatorClass.TENSOR_CONTRACTION)


def _arithmetic_of(everything: Total) -> str:
    """What the FLOPs are of: all the arithmetic, or only what has a formula."""
    return "arithmetic" if everything.costed_ns >= COSTED * everything.time_ns else "counted arithmetic"


def _largest(anatomy: Anatomy) -> str:
    most = _most(anatomy.classes)
    time = _time(row for row in anatomy.classes if row.operator_class is most)
    return f"{share(time, _time(anatomy.classes))} of the time is {LABEL[most]}."


def _phase(anatomy: Anatomy, phase: Phase, least: float, sentence: str) -> str | None:
    part, whole = _time(row for row in anatomy.classes if row.phase is phase), _time(anatomy.classes)
    return None if part < least * whole else sentence.format(share(part, whole))


def _most(rows: Iterable[ClassRow]) -> OperatorClass:
    rows = tuple(rows)
    return max(OperatorClass, key=lambda item: _time(row for row in rows if row.operator_class is item))


def _time(rows: Iterable[ClassRow]) -> int:
    return sum(row.time_ns for row in rows)


_FINDINGS: Final[tuple[Callable[[Anatomy], str | None], ...]] = (
    _nothing, _unexplained, _waiting, _exposed, _updating, _recomputing, _contracting, _arithmetic, _largest,
)  # fmt: skip
