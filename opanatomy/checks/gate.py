"""The gate of `--check`: what no second source confirms ends in exit code 3."""

from __future__ import annotations

from opanatomy.errors import GateError
from opanatomy.option_values import as_asked
from opanatomy.records.anatomy import Anatomy


def require_agreement(anatomy: Anatomy) -> None:
    """Raise `GateError` where figures that touch 1 % of the work or more are not confirmed and no cause is known."""
    alarms = anatomy.alarms
    if not alarms:
        return
    work_ns = sum(row.time_ns for row in anatomy.classes)
    count = sum(len(check.unexplained) for check in alarms)
    check = max(alarms, key=lambda check: check.share(work_ns))
    first = max(check.unexplained, key=lambda difference: difference.share(work_ns))
    where = f" in {first.phase}" if first.phase is not None else ""
    figures = (
        f"{'unknown' if value is None else format(value, ',')} {check.unit}" for value in (first.ours, first.other)
    )
    raise GateError(
        f"check: {count:,} figure{'s are' if count > 1 else ' is'} not confirmed; the first:"
        f" {check.quantity} of {first.operator}{where}, {' here and '.join(figures)} by {check.source}"
        f"{_and(below_alarm(anatomy))} - "
        + as_asked("see the top of the report", "leave check out, and see Anatomy.checks")
    )


def below_alarm(anatomy: Anatomy) -> str:
    """How many figures are not confirmed that touch too little to fail for; empty where there is none."""
    alarms = anatomy.alarms
    count = sum(len(check.unexplained) for check in anatomy.checks if check not in alarms)
    if not count:
        return ""
    one = count == 1
    return f"{count:,} {'figure' if one else 'figures'} below 1 % of the work {'is' if one else 'are'} not confirmed"


def _and(text: str) -> str:
    return f"; {text}" if text else ""
