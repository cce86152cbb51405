"""The gate of `--check`: what no second source confirms ends in exit code 3."""

from __future__ import annotations

from opanatomy.errors import GateError
from opanatomy.option_values import as_asked
from opanatomy.records.anatomy import Anatomy


def require_agreement(anatomy: Anatomy) -> None:
    """Raise `GateError` where a second source does not agree with the report and no known cause explains it."""
    unexplained = [(check, difference) for check in anatomy.checks for difference in check.unexplained]
    if not unexplained:
        return
    check, first = unexplained[0]
    where = f" in {first.phase}" if first.phase is not None else ""
    figures = (
        f"{'unknown' if value is None else format(value, ',')} {check.unit}" for value in (first.ours, first.other)
    )
    raise GateError(
        f"check: {len(unexplained):,} figure{'s are' if len(unexplained) > 1 else ' is'} not confirmed; the first:"
        f" {check.quantity} of {first.operator}{where}, {' here and '.join(figures)} by {check.source} - "
        + as_asked("see the top of the report", "leave check out, and see Anatomy.checks")
    )
