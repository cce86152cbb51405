"""The anatomy in one sentence: the first of these findings that holds, the most disturbing first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from opanatomy.records.anatomy import Anatomy, ClassRow
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report.section import Bytes, Note, Phrase, Section, Share, Tone, phrase
from opanatomy.report.totals import Total, total

#: The part of the time from which a finding is the story of the step.
UNEXPLAINED, WAITING, EXPOSED, UPDATING, RECOMPUTING, CONTRACTING = 0.2, 0.4, 0.25, 1 / 3, 0.25, 0.85
DECODING: Final = 0.5
#: The part of the time whose FLOPs must be known to speak of all the arithmetic.
COSTED = 0.99


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that costs time or memory: in a sentence, what shows it, and the command that says more of it."""

    name: str
    text: Phrase
    evidence: Phrase | None = None
    next_command: str | None = None


def findings(anatomy: Anatomy) -> tuple[Finding, ...]:
    """What costs most, the largest first."""
    return (Finding(name="verdict", text=verdict(anatomy)),)


def conclusion(anatomy: Anatomy) -> Section:
    """The verdict as the part of the report that it is."""
    return Section(name="verdict", title="Verdict", notes=(Note(text=verdict(anatomy), tone=Tone.CONCLUSION),))


def verdict(anatomy: Anatomy) -> Phrase:
    """One sentence that says what the time of the step goes to."""
    return next(sentence for finding in _FINDINGS if (sentence := finding(anatomy)))


def _nothing(anatomy: Anatomy) -> Phrase | None:
    if _time(anatomy.classes):
        return None
    failure = anatomy.memory.failure
    if failure is None:
        return phrase("There is no device work in this trace: nothing to explain.")
    fitting = next((saving.option for saving in anatomy.memory.savings if saving.fits is not False), None)
    return phrase("The step does not fit: try {}.", fitting) if fitting else phrase("The step does not fit.")


def _unexplained(anatomy: Anatomy) -> Phrase | None:
    whole = _time(anatomy.classes)
    if anatomy.ledger.unknown_ns < UNEXPLAINED * whole:
        return None
    unknown = Share(anatomy.ledger.unknown_ns, whole)
    return phrase("No rule knows {} of the device work: the figures say little yet.", unknown)


def _waiting(anatomy: Anatomy) -> Phrase | None:
    """On the CPU the framework around the operators, elsewhere the time without device work."""
    step, timeline = anatomy.step, anatomy.timeline
    if anatomy.environment.device_kind == "cpu":
        if step.framework_ns is None or not step.wall_ns or step.framework_ns < WAITING * step.wall_ns:
            return None
        framework = Share(step.framework_ns, step.wall_ns)
        return phrase("{} of the step is framework (dispatch, autograd, Python), not operators.", framework)
    waiting_ns = timeline.idle_ns if timeline.host_idle_ns is None else timeline.host_idle_ns
    if waiting_ns < WAITING * timeline.window_ns or not timeline.window_ns:
        return None
    return phrase("The device waits for the host {} of the step.", Share(waiting_ns, timeline.window_ns))


def _exposed(anatomy: Anatomy) -> Phrase | None:
    exposed, window = anatomy.timeline.exposed_communication_ns, anatomy.timeline.window_ns
    if exposed is None or not window or exposed < EXPOSED * window:
        return None
    return phrase("Communication that no computation hides takes {} of the time.", Share(exposed, window))


def _updating(anatomy: Anatomy) -> Phrase | None:
    return _phase(anatomy, Phase.OPTIMIZER, UPDATING, "The optimizer takes {} of the device time.")


def _recomputing(anatomy: Anatomy) -> Phrase | None:
    return _phase(anatomy, Phase.RECOMPUTE, RECOMPUTING, "Computing activations again takes {} of the device time.")


def _decoding(anatomy: Anatomy) -> Phrase | None:
    """Of a generation that one token after the other takes its time, and what bounds that where it is known."""
    made, rows = anatomy.generation, [row for row in anatomy.classes if row.phase is Phase.DECODING]
    whole, part_ns, bound_ns = _time(anatomy.classes), _time(rows), sum(row.bound_ns or 0 for row in rows)
    if made is None or made.token_read_bytes is None or part_ns < DECODING * whole:
        return None
    by_memory = bound_ns > 0 and sum(row.memory_bound_ns or 0 for row in rows) >= DECODING * bound_ns
    return phrase(
        "Decoding takes {} of the time{}: each token reads {}.",
        Share(part_ns, whole),
        ", bound by memory" if by_memory else "",
        Bytes(made.token_read_bytes),
    )


def _contracting(anatomy: Anatomy) -> Phrase | None:
    contraction, everything = _contraction(anatomy), total(anatomy.classes)
    if contraction.time_ns < CONTRACTING * everything.time_ns:
        return None
    time = Share(contraction.time_ns, everything.time_ns)
    arithmetic: Phrase | str = ""
    if contraction.flops and everything.flops_cover:
        flops = Share(contraction.flops, everything.flops)
        arithmetic = phrase(" for {} of the {}", flops, _arithmetic_of(everything))
    return phrase("Tensor contraction takes {} of the time{}{}.", time, arithmetic, _reached(contraction))


def _reached(part: Total) -> Phrase | str:
    if not part.reached:
        return ""
    known = "" if part.covered == 1 else phrase(" in {} of it", Share(part.covered, 1))
    return phrase(", at {} of what the device could do{}", Share(part.reached, 1), known)


def _arithmetic(anatomy: Anatomy) -> Phrase | None:
    """All that is no contraction, as the paper puts it."""
    contraction, everything = _contraction(anatomy), total(anatomy.classes)
    if not contraction.flops or not everything.flops or everything.flops == contraction.flops:
        return None
    if not everything.flops_cover:
        return None
    rest_ns = everything.time_ns - contraction.time_ns
    flops = Share(everything.flops - contraction.flops, everything.flops)
    rest = [row for row in anatomy.classes if row.operator_class is not OperatorClass.TENSOR_CONTRACTION]
    largest = _largest_class(rest)
    mostly = 2 * _time(row for row in rest if row.operator_class is largest) > rest_ns
    return phrase(
        "{} of the {} takes {} of the time{}.",
        flops,
        _arithmetic_of(everything),
        Share(rest_ns, everything.time_ns),
        phrase(", most of it {}", largest) if mostly else "",
    )


def _contraction(anatomy: Anatomy) -> Total:
    return total(row for row in anatomy.classes if row.operator_class is OperatorClass.TENSOR_CONTRACTION)


def _arithmetic_of(everything: Total) -> str:
    """What the FLOPs are of: all the arithmetic, or only what has a formula."""
    return "arithmetic" if everything.costed_ns >= COSTED * everything.time_ns else "counted arithmetic"


def _largest(anatomy: Anatomy) -> Phrase:
    largest = _largest_class(anatomy.classes)
    time = _time(row for row in anatomy.classes if row.operator_class is largest)
    return phrase("{} of the time is {}.", Share(time, _time(anatomy.classes)), largest)


def _phase(anatomy: Anatomy, phase: Phase, least: float, sentence: str) -> Phrase | None:
    part, whole = _time(row for row in anatomy.classes if row.phase is phase), _time(anatomy.classes)
    return None if part < least * whole else phrase(sentence, Share(part, whole))


def _largest_class(rows: Iterable[ClassRow]) -> OperatorClass:
    rows = tuple(rows)
    return max(OperatorClass, key=lambda item: _time(row for row in rows if row.operator_class is item))


def _time(rows: Iterable[ClassRow]) -> int:
    return sum(row.time_ns for row in rows)


_FINDINGS: Final[tuple[Callable[[Anatomy], Phrase | None], ...]] = (
    _nothing, _unexplained, _waiting, _exposed, _decoding, _updating, _recomputing, _contracting, _arithmetic, _largest,
)  # fmt: skip
