"""Run `opanatomy compare A B...`: what changed, where the difference comes from, and gates on it."""

from __future__ import annotations

import argparse
from typing import Final

from opanatomy.errors import UsageError
from opanatomy.options import COMPARE

DESCRIPTION: Final = (
    "Compare reports, traces or folders of ranks, the first with each of the others. Of two, the difference of the"
    " step is shown in parts that sum to it. A folder of reports is several runs of one side."
)
OPTIONS: Final = COMPARE
EXAMPLES: Final = (
    ("where the difference of two runs comes from", "opanatomy compare before.json after.json"),
    ("a gate: exit 3 where the step is 5 % longer", "opanatomy compare before.json after.json --fail-if 'time > +5%'"),
    ("several runs of each side, in folders of reports", "opanatomy compare before/ after/"),
)


def run(arguments: argparse.Namespace) -> None:
    """Read the sides, compare them, show that, and judge the gates."""
    from opanatomy.api import comparison_of
    from opanatomy.cli.limits import keep_to_limits
    from opanatomy.cli.output import destination, show, stem_of
    from opanatomy.cli.progress import Display
    from opanatomy.report.gates import gates_of, judged, require_met
    from opanatomy.trace.sources import STDIN

    keep_to_limits()
    names = list(arguments.sides)
    if "" in names:
        raise UsageError("compare: the name of a side is empty - give a report, a trace or a folder")
    if len(names) < 2:
        raise UsageError(f"compare {names[0]}: one side is given - give two at least: compare BEFORE AFTER")
    if names.count(STDIN) > 1:
        raise UsageError("compare - -: stdin can be read once - give it once")
    gates = gates_of(arguments.fail_if)
    stem = f"{stem_of(names[0]) or 'before'}-{stem_of(names[-1]) or 'after'}.comparison"
    with destination(arguments, stem=stem) as where:
        with Display() as display:
            display.stage("reading the sides")
            comparison = comparison_of(names, advance=display.advance, redact=arguments.redact)
        comparison = judged(comparison, gates)
        show(comparison, where)
    require_met(comparison.gates)
