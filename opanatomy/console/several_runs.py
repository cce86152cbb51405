"""`profile --runs N`: the runs, their reports in a folder, and the report of the median one on stdout."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from opanatomy.errors import CaptureError, UsageError
from opanatomy.option_values import as_flag
from opanatomy.options import RUNS, TRACE
from opanatomy.report.units import duration, noun, share
from opanatomy.run_options import RunOptions

if TYPE_CHECKING:
    from opanatomy.gates.judging import Gate
    from opanatomy.repeated import Repetition, Run


def run_several(arguments: argparse.Namespace, options: RunOptions, gates: tuple[Gate, ...]) -> None:
    """Run, keep each report, show that of the median run and how far the step times are apart; then the gates.

    A run that fails, or Ctrl-C, ends it: what was finished is kept.
    """
    from opanatomy.console.destination import destination, note, show, stem_of_model
    from opanatomy.console.gated import hold_to_gates
    from opanatomy.console.progress import Display
    from opanatomy.console.stdout import kept_for_the_report
    from opanatomy.repeated import median_run, repeated

    repetition = _repetition(arguments, options)
    shown = argparse.Namespace(**{**vars(arguments), "output": None})
    with kept_for_the_report() as stream:
        stem = stem_of_model(arguments.model)
        with destination(shown, stem=stem, stream=stream, gates=gates) as where:
            runs: list[Run] = []
            try:
                with Display() as display:
                    repeated(repetition, display, runs.append)
            except CaptureError as error:
                raise CaptureError(f"{error}; {_kept(runs, repetition)}") from error
            except KeyboardInterrupt as error:
                raise KeyboardInterrupt(_kept(runs, repetition)) from error
            middle = median_run(runs)
            show(middle.anatomy, where)
        note(_spread(runs, middle))
        note(f"next: opanatomy compare {shlex.quote(f'{repetition.folder}/')} OTHER_RUNS/")
    hold_to_gates(middle.anatomy, arguments)


def _repetition(arguments: argparse.Namespace, options: RunOptions) -> Repetition:
    from opanatomy.console.destination import typed_command
    from opanatomy.device import parse_overrides
    from opanatomy.repeated import Repetition, made_folder

    ceilings = parse_overrides(arguments.peak, arguments.bandwidth)
    folder = _folder("-o", arguments.output, arguments.runs)
    traces = None if arguments.trace is None else _folder(TRACE.flags[-1], arguments.trace, arguments.runs)
    return Repetition(
        options=options, runs=arguments.runs, folder=made_folder(folder),
        traces=None if traces is None else made_folder(traces), command=typed_command(), ceilings=ceilings,
        force=arguments.force,
    )  # fmt: skip


def _folder(flag: str, name: str | None, runs: int) -> Path:
    """The folder that an option names; raises where it names a file, or none at all."""
    from opanatomy.files.addresses import check_no_address

    what = as_flag(RUNS, runs)
    if not name:
        raise UsageError(f"{what} keeps a report of each run: give a folder for them, {flag} runs/")
    check_no_address(flag, name)
    if not os.path.isdir(name) and (os.path.lexists(name) or name == "-" or Path(name).suffix in (".json", ".gz")):
        raise UsageError(f"{flag} {name}: {what} needs a folder, which this is not - give one, such as {flag} runs/")
    return Path(name)


def _kept(runs: list[Run], repetition: Repetition) -> str:
    return f"{noun(len(runs), 'report')} kept in {repetition.folder}" if runs else "no report was kept"


def _spread(runs: list[Run], middle: Run) -> str:
    """A line on the times of the runs' steps."""
    times = [run.step_ns for run in runs]
    names = f"{runs[0].report}" if len(runs) == 1 else f"{runs[0].report} to {runs[-1].report.name}"
    if len(runs) == 1:
        return f"1 run, step {duration(times[0])}: {names}"
    middle_ns = median(times)
    which = "" if len(runs) % 2 else ", the slower of the two in the middle"
    return (
        f"{noun(len(runs), 'run')}, median step {duration(middle_ns)}, {duration(min(times))} to {duration(max(times))}"
        f" ({share(max(times) - min(times), middle_ns)} of it): {names};"
        f" shown is {middle.report.name}{which}"
    )
