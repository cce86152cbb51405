"""The gate of `--check`: what no second source confirms ends in exit code 3."""

from __future__ import annotations

from opanatomy.errors import GateError
from opanatomy.records.anatomy import Anatomy


def require_agreement(anatomy: Anatomy) -> None:
    """Raise `GateError` where a second source does not agree with the report and no known cause explains it."""
    found = [(check, one) for check in anatomy.checks for one in check.unexplained]
    if not found:
        return
    check, first = found[0]
    where = f" in {first.phase}" if first.phase is not None else ""
    figures = (
        f"{'unknown' if value is None else format(value, ',')} {check.unit}" for value in (first.ours, first.other)
    )
    raise GateError(
        f"check: {len(found):,} figure{'s are' if len(found) > 1 else ' is'} not confirmed; the first: {check.quantity}"
        f" of {first.operator}{where}, {' here and '.join(figures)} by {check.source} - see the top of the report"
    )
