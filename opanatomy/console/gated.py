"""The gates on one report, `--fail-if` and `--check`: parsed before the run, checked after the report."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opanatomy.gates.judging import Gate
    from opanatomy.records.anatomy import Anatomy


def gates_on_report(arguments: argparse.Namespace) -> tuple[Gate, ...]:
    """The gates of `--fail-if` on values; raises `UsageError` for what is none, and for one on a change."""
    if not arguments.fail_if:
        return ()
    from opanatomy.gates.judging import gates_of_one

    return gates_of_one(arguments.fail_if)


def hold_to_gates(anatomy: Anatomy, arguments: argparse.Namespace) -> None:
    """Raise `GateError` with a reason for each gate that is not met and, with `--check`, for what is not confirmed."""
    from opanatomy.errors import GateError

    reasons: list[str] = []
    if arguments.check:
        from opanatomy.checks import require_agreement
        from opanatomy.console.destination import note

        for option in dict.fromkeys(one.option for one in anatomy.device.exceeded):
            note(f"check: {option} is below what was measured in the trace, which is no disagreement of two sources")
        try:
            require_agreement(anatomy)
        except GateError as error:
            reasons += error.reasons
    if arguments.fail_if:
        from opanatomy.gates.judging import judged_report, require_met

        try:
            require_met(judged_report(anatomy, gates_on_report(arguments)))
        except GateError as error:
            reasons += error.reasons
    if reasons:
        raise GateError(*reasons)
