"""What second sources say of the report: a disagreement as a table before all else, agreement as one line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.text import Text

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.checks import Check, Difference
from opanatomy.report import units
from opanatomy.report.table import Column, Row, cut, prose, table

#: Rows of the table of disagreements.
_LISTED: Final = 12
#: Causes of differences, operators of one, and cells of a name.
_CAUSES, _NAMES, _WIDTH = 6, 3, 40
_MEANS: Final = (
    "not confirmed by a second source, and no known cause explains it: an error of this tool, a damaged trace, or a"
    " step that did not repeat itself. Figures that rest on these operators are in doubt"
)


def disagreement_table(anatomy: Anatomy, width: int) -> list[Text] | None:
    """The figures that a second source does not confirm, those that no known cause explains."""
    pairs = [(check, one) for check in anatomy.checks for one in check.unexplained]
    if not pairs:
        return None
    columns = [
        Column(header="does not agree", name=True, least=12),
        Column(header="phase", name=True, least=8, drop=2),
        Column(header="figure", name=True, least=8, drop=1),
        Column(header="here"),
        Column(header="2nd source"),
    ]
    rows = [_row(check, one) for check, one in pairs[:_LISTED]]
    if len(pairs) > _LISTED:
        rows.append(Row(cells=(f"and {len(pairs) - _LISTED:,} more", "", "", "", "")))
    evidence = dict.fromkeys(one.evidence for _, one in pairs[:_LISTED] if one.evidence)
    sources = dict.fromkeys(check.source for check, _ in pairs)
    notes = [_MEANS, f"second source: {'; '.join(sources)}", *(f"evidence: {text}" for text in evidence)]
    lines = [line for note in notes for line in prose(note, width, style="yellow")]
    return [*table(columns, rows, width), *lines]


def _row(check: Check, one: Difference) -> Row:
    figures = (_figure(one.ours, check.unit), _figure(one.other, check.unit))
    return Row(cells=(one.operator, str(one.phase or ""), check.quantity, *figures))


def _figure(value: int | None, unit: str) -> str:
    if value is None:
        return "unknown"
    return units.duration(value) if unit == "ns" and abs(value) >= 1_000_000 else f"{value:,}"


def check_facts(anatomy: Anatomy) -> Iterator[tuple[str, str]]:
    """(label, text): what was confirmed, what differs for a known cause, and what was not checked."""
    compared = [check for check in anatomy.checks if check.compared]
    if compared:
        parts = [f"{_share(check)} {check.quantity}" for check in compared]
        yield "confirmed", f"{sum(check.equal for check in compared):,} figures by second sources: {', '.join(parts)}"
    causes = _causes(anatomy)
    for cause, names in list(causes.items())[:_CAUSES]:
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        yield "explained", f"{', '.join(cut(name, _WIDTH) for name in names[:_NAMES])}{more}: {cause}"
    if len(causes) > _CAUSES:
        yield "explained", f"{len(causes) - _CAUSES} causes more (all are in the JSON report)"
    reasons: dict[str, list[str]] = {}
    for check in anatomy.checks:
        if check.not_checked:
            reasons.setdefault(check.not_checked, []).append(check.quantity)
    for reason, quantities in reasons.items():
        yield "unchecked", f"{', '.join(quantities)}: {reason}"


def _share(check: Check) -> str:
    return f"{check.equal:,}" if check.equal == check.compared else f"{check.equal:,} of {check.compared:,}"


def _causes(anatomy: Anatomy) -> dict[str, list[str]]:
    """The operators by the cause of their differences."""
    found: dict[str, list[str]] = {}
    for check in anatomy.checks:
        for one in check.differences:
            if one.cause is not None:
                names = found.setdefault(one.cause, [])
                if one.operator not in names:
                    names.append(one.operator)
    return found
