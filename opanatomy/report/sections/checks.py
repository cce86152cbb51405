"""What second sources say of the report: disagreements before all else, agreement in one line.

A ceiling of the user's own is no second source: that the trace is above one is said of the option that gave it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.checks import Check, Difference
from opanatomy.records.device import BANDWIDTH, ExceededCeiling
from opanatomy.report.section import (
    ByteRate,
    Column,
    Count,
    Exact,
    FlopRate,
    Holds,
    Name,
    Note,
    Phrase,
    Row,
    Section,
    Tone,
    joined,
    phrase,
)

#: Rows of the table of disagreements.
_LISTED: Final = 12
#: Causes of differences, and operators of one.
_CAUSES, _NAMES = 6, 3
_MEANS: Final = (
    "not confirmed by a second source, and no known cause explains it: an error of this tool, a damaged trace, or a"
    " step that did not repeat itself. Figures that rest on these operators are uncertain"
)


def given_ceilings(anatomy: Anatomy) -> Section | None:
    """The ceilings that the user gave and that the trace is above: a sentence for each option."""
    exceeded = anatomy.device.exceeded
    if not exceeded:
        return None
    options: dict[str, list[ExceededCeiling]] = {}
    for one in exceeded:
        options.setdefault(one.option, []).append(one)
    notes = tuple(Note(text=_exceeded(*item), tone=Tone.WARNING) for item in options.items())
    return Section(name="given-ceilings", title="Ceilings that were given", notes=notes)


def _exceeded(option: str, ceilings: Sequence[ExceededCeiling]) -> Phrase:
    of_products = any(one.ceiling != BANDWIDTH for one in ceilings)
    return phrase(
        "{} is below what was measured in this trace: {}. It is most likely too low, and what rests on it is no figure"
        " of the device: bounds, their shares{} and headroom.",
        option, joined((_reached(one) for one in ceilings), "; ") or "", ", MFU" if of_products else "",
    )  # fmt: skip


def exceeded_texts(anatomy: Anatomy) -> Iterator[Phrase]:
    """A sentence for each ceiling that the user gave and that the trace is above, the furthest first."""
    for one in anatomy.device.exceeded:
        yield phrase("{} is below what was measured: {}", one.option, _reached(one))


def _reached(one: ExceededCeiling) -> Phrase:
    """The rate that an operator reached, and what is known of the device without the option."""
    rate = ByteRate if one.ceiling == BANDWIDTH else FlopRate
    of = "" if one.ceiling == BANDWIDTH else f" of {one.ceiling}"
    known: Phrase | str = ""
    if one.known_per_second is not None:
        known = phrase(" (ceiling without the option: {})", rate(one.known_per_second))
    name = Name(one.operator.removeprefix("aten::"))
    return phrase("{} in {} reaches at least {}{}{}", name, one.phase.value, rate(one.reached_per_second), of, known)


def disagreements(anatomy: Anatomy) -> Section | None:
    """The figures that a second source does not confirm, those that no known cause explains."""
    pairs = [(check, difference) for check in anatomy.checks for difference in check.unexplained]
    if not pairs:
        return None
    columns = (
        Column(header="does not agree", holds=Holds.NAMES),
        Column(header="phase", holds=Holds.NAMES, expendable=2),
        Column(header="figure", holds=Holds.NAMES, expendable=1),
        Column(header="here"),
        Column(header="2nd source"),
    )
    rows = [_row(check, difference) for check, difference in pairs[:_LISTED]]
    if len(pairs) > _LISTED:
        rows.append(Row(cells=(phrase("and {} more", Count(len(pairs) - _LISTED)), None, None, None, None)))
    evidence = dict.fromkeys(difference.evidence for _, difference in pairs[:_LISTED] if difference.evidence)
    sources = dict.fromkeys(check.source for check, _ in pairs)
    texts = [_MEANS, f"second source: {'; '.join(sources)}", *(f"evidence: {text}" for text in evidence)]
    return Section(
        name="disagreements",
        title="What does not agree",
        columns=columns,
        rows=tuple(rows),
        notes=tuple(Note(text=text, tone=Tone.WARNING) for text in texts),
    )


def _row(check: Check, difference: Difference) -> Row:
    figures = (Exact(difference.ours, check.unit), Exact(difference.other, check.unit))
    phase = None if difference.phase is None else difference.phase.value
    return Row(cells=(difference.operator, phase, check.quantity, *figures))


def check_facts(anatomy: Anatomy) -> Iterator[tuple[str, Phrase | None]]:
    """(label, text): what was confirmed, what differs for a known cause, and what was not checked."""
    compared = [check for check in anatomy.checks if check.compared]
    if compared:
        equal = Count(sum(check.equal for check in compared))
        parts = joined(phrase("{} {}", _equal(check), check.quantity) for check in compared)
        yield "confirmed", phrase("{} figures by second sources: {}", equal, parts or "")
    causes = _causes(anatomy)
    for cause, names in list(causes.items())[:_CAUSES]:
        more = phrase(" and {} more", Count(len(names) - _NAMES)) if len(names) > _NAMES else ""
        listed = joined(phrase("{}", Name(name)) for name in names[:_NAMES])
        yield "explained", phrase("{}{}: {}", listed or "", more, cause)
    if len(causes) > _CAUSES:
        more = phrase("{} causes more (all are in the JSON report)", Count(len(causes) - _CAUSES))
        yield "explained", more
    reasons: dict[str, list[str]] = {}
    for check in anatomy.checks:
        if check.not_checked:
            reasons.setdefault(check.not_checked, []).append(check.quantity)
    for reason, quantities in reasons.items():
        yield "unchecked", phrase("{}: {}", ", ".join(quantities), reason)


def _equal(check: Check) -> Phrase:
    if check.equal == check.compared:
        return phrase("{}", Count(check.equal))
    return phrase("{} of {}", Count(check.equal), Count(check.compared))


def _causes(anatomy: Anatomy) -> dict[str, list[str]]:
    """The operators by the cause of their differences."""
    causes: dict[str, list[str]] = {}
    for check in anatomy.checks:
        for difference in check.differences:
            if difference.cause is not None:
                names = causes.setdefault(difference.cause, [])
                if difference.operator not in names:
                    names.append(difference.operator)
    return causes
