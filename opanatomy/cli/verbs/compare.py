"""Run `opanatomy compare A B...`: what changed, where the difference comes from, and gates on it."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opanatomy.errors import CaptureError, UsageError
from opanatomy.io.sources import STDIN
from opanatomy.options import (
    COMPARE,
    FAIL_IF,
    PAGE,
    REPORT,
    RUNS_FOLDER,
    TIMES,
    TRACE,
    TURNS_SEED,
    as_flag,
    check_together,
)

if TYPE_CHECKING:
    from opanatomy.cli.repeat import Command
    from opanatomy.records.comparison import Comparison

DESCRIPTION: Final = (
    "Compare the first report, trace or folder of ranks with each of the others. With two sides, the difference in step"
    " time is split into parts that add up to it. A folder of reports counts as several runs of one side; use --run"
    " to make such runs, interleaved."
)
OPTIONS: Final = COMPARE
#: Options of `profile` for its report and gates, which belong to the comparison here.
_NOT_OF_A_RUN: Final = (
    *(option for option in REPORT if option.name in ("output", "format", "force")),
    *PAGE,
    FAIL_IF,
    TRACE,
)
EXAMPLES: Final = (
    ("where the difference between two runs comes from", "opanatomy compare before.json after.json"),
    (
        "in CI: exit 3 if the step takes more than 5% longer",
        "opanatomy compare before.json after.json --fail-if 'time > +5%'",
    ),
    ("five runs of each side, interleaved", "opanatomy compare --run 'profile gpt2' --run 'profile gpt2 --amp bf16'"),
)


def run(arguments: argparse.Namespace) -> None:
    """Read the sides, or run them interleaved; compare, show the result, and check the gates."""
    from opanatomy.cli.limits import keep_to_limits
    from opanatomy.cli.output import destination, show, stem_of
    from opanatomy.report.gates import gates_of, judged, require_met

    names = list(arguments.sides)
    _check_sides(names, arguments)
    gates = gates_of(arguments.fail_if)
    if not arguments.run:
        keep_to_limits()
    ends = ("runs",) if arguments.run else (stem_of(names[0]) or "before", stem_of(names[-1]) or "after")
    with destination(arguments, stem=f"{'-'.join(ends)}.comparison") as where:
        comparison = judged(_compare_runs(arguments) if arguments.run else _compare_files(names, arguments), gates)
        show(comparison, where)
    require_met(comparison.gates)


def _check_sides(names: list[str], arguments: argparse.Namespace) -> None:
    if arguments.run and names:
        raise UsageError(
            f"compare {names[0]} --run ...: sides are either files or runs - pass files or use --run, not both"
        )
    if len(arguments.run) == 1:
        raise UsageError(
            f"--run {arguments.run[0]!r}: only one side - use --run twice, the second time with the change"
        )
    if arguments.run:
        return
    for option in (TIMES, TURNS_SEED, RUNS_FOLDER):
        if (value := getattr(arguments, option.name)) != option.default:
            raise UsageError(f"{as_flag(option, value)} needs --run - use --run 'profile MODEL ...' twice")
    if not names:
        raise UsageError("compare: no sides - pass at least two (compare BEFORE AFTER), or use --run CMD twice")
    if "" in names:
        raise UsageError("compare: the name of a side is empty - pass a report, a trace or a folder")
    if len(names) < 2:
        raise UsageError(f"compare {names[0]}: only one side - pass at least two (compare BEFORE AFTER)")
    if names.count(STDIN) > 1:
        raise UsageError("compare - -: stdin can be read only once - use only one -")


def _compare_files(names: list[str], arguments: argparse.Namespace) -> Comparison:
    from opanatomy.api import comparison_of
    from opanatomy.cli.progress import Display

    with Display() as display:
        display.stage("reading the sides")
        return comparison_of(names, advance=display.advance, redact=arguments.redact)


def _compare_runs(arguments: argparse.Namespace) -> Comparison:
    """Run the sides in turns, and compare the folders of their reports."""
    from opanatomy.api import comparison_of
    from opanatomy.cli.output import note
    from opanatomy.cli.progress import Display
    from opanatomy.cli.repeat import Turns, command_of, folders_for, kept_reports, run_in_turns
    from opanatomy.report.units import noun

    commands = tuple(map(command_of, arguments.run))
    for command in commands:
        if not command.is_script:
            _check_profile(command, arguments)
    with folders_for(arguments.folder, len(commands)) as folders:
        turns = Turns(commands=commands, times=arguments.times, seed=arguments.seed, folders=folders)
        each = noun(arguments.times, "run")
        note(f"{len(commands)} sides, {each} each, in random order (--seed {arguments.seed})")
        reports: list[Path] = []
        try:
            with Display() as display:
                for report in run_in_turns(turns, display):
                    reports.append(report)
        except CaptureError as error:
            raise CaptureError(f"{error}; {kept_reports(reports, arguments.folder)}") from error
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(kept_reports(reports, arguments.folder)) from error
        if arguments.folder is not None:
            note(f"reports: {shlex.join(map(str, folders))}")
        return comparison_of(folders, names=arguments.run, redact=arguments.redact)


def _check_profile(command: Command, arguments: argparse.Namespace) -> None:
    """Validate the arguments as `opanatomy profile` would, at no cost; reject options that belong to the comparison."""
    from opanatomy.cli.verbs.profile import run_options

    given = arguments.parse(command.words)
    for option in _NOT_OF_A_RUN:
        if getattr(given, option.name) not in (option.default, False, []):
            raise UsageError(
                f"--run {command.text!r}: {option.flags[-1]} is not an option of a run - leave it out, or use it with"
                " compare"
            )
    if given.limit is not None:
        raise UsageError(f"--run {command.text!r}: --for runs nothing - leave it out")
    check_together(given, as_flag)
    run_options(given)
