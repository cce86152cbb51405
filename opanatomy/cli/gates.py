"""Handle the gates on one report, `--fail-if` and `--check`: parsed before the run, checked after the report.

On a saved comparison they work as in `compare`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.comparison import Comparison

if TYPE_CHECKING:
    from opanatomy.records.reports import Report
    from opanatomy.report.gates import Gate


def check_gates(arguments: argparse.Namespace) -> None:
    """Raise `UsageError` for an invalid gate on any kind of report."""
    if arguments.fail_if:
        from opanatomy.report.gates import gates_of

        gates_of(arguments.fail_if)


def gates_on_report(arguments: argparse.Namespace) -> tuple[Gate, ...]:
    """Return the `--fail-if` gates on values; raise `UsageError` for an invalid gate or a gate on a change."""
    if not arguments.fail_if:
        return ()
    from opanatomy.report.gates import gates_of_one

    return gates_of_one(arguments.fail_if)


def with_gates(comparison: Comparison, arguments: argparse.Namespace) -> Comparison:
    """Return the comparison with results of the `--fail-if` gates, or without any, with its own."""
    if not arguments.fail_if:
        return comparison
    from opanatomy.report.gates import gates_of, judged

    return judged(comparison, gates_of(arguments.fail_if))


def enforce_gates(report: Report, arguments: argparse.Namespace) -> None:
    """Raise `GateError` with a reason for each gate that is not met and, with `--check`, for unconfirmed figures."""
    from opanatomy.errors import GateError

    if isinstance(report, Comparison):
        from opanatomy.report.gates import require_met

        require_met(report.gates)
        return
    if not isinstance(report, Anatomy):
        return
    reasons: list[str] = []
    if arguments.check:
        from opanatomy.checks.counts import below_alarm, require_agreement
        from opanatomy.cli.output import note

        for option in dict.fromkeys(one.option for one in report.device.exceeded):
            note(
                f"check: {option} is lower than the throughput reached in the trace; this alone does not fail the check"
            )
        try:
            require_agreement(report)
            if below := below_alarm(report):
                note(f"check: {below} - for details, use --section ledger")
        except GateError as error:
            reasons += error.reasons
    if arguments.fail_if:
        from opanatomy.report.gates import judged_report, require_met

        try:
            require_met(judged_report(report, gates_on_report(arguments)))
        except GateError as error:
            reasons += error.reasons
    if reasons:
        raise GateError(*reasons)
