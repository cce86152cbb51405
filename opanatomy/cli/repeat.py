"""Run `profile --runs N`: the same run several times, each in a fresh process, and the report of the median one."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from statistics import median, median_high
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.capture.run.progress import Progress
from opanatomy.devices.overrides import Overrides
from opanatomy.errors import CaptureError, OutputError, UsageError
from opanatomy.options import RUNS, TRACE, RunOptions, as_flag
from opanatomy.pipeline import analyze_traces
from opanatomy.predict import workers
from opanatomy.predict.workers import JobFailed, run_job
from opanatomy.records.anatomy import Anatomy
from opanatomy.report.formats import format_named
from opanatomy.report.metrics import metrics_of
from opanatomy.report.section import Page
from opanatomy.report.units import duration, noun, share
from opanatomy.trace.files import OutputFile, output_file, temporary

if TYPE_CHECKING:
    from opanatomy.report.gates import Gate


def run_several(arguments: argparse.Namespace, options: RunOptions, gates: tuple[Gate, ...]) -> None:
    """Run, keep each report, show that of the median run and the spread of the step times; then the gates.

    A failed run, or Ctrl-C, ends it; finished runs are kept.
    """
    from opanatomy.cli.gated import hold_to_gates
    from opanatomy.cli.output import destination, note, show, stem_of_model
    from opanatomy.cli.progress import Display
    from opanatomy.cli.stdout import kept_for_the_report

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
                raise CaptureError(f"{error}; {_kept_reports(runs, repetition)}") from error
            except KeyboardInterrupt as error:
                raise KeyboardInterrupt(_kept_reports(runs, repetition)) from error
            middle = median_run(runs)
            show(middle.anatomy, where)
        note(_spread(runs, middle))
        note(f"next: opanatomy compare {shlex.quote(f'{repetition.folder}/')} OTHER_RUNS/")
    hold_to_gates(middle.anatomy, arguments)


def _repetition(arguments: argparse.Namespace, options: RunOptions) -> Repetition:
    from opanatomy.cli.output import typed_command
    from opanatomy.devices.overrides import parse_overrides

    ceilings = parse_overrides(arguments.peak, arguments.bandwidth)
    folder = _folder("-o", arguments.output, arguments.runs)
    traces = None if arguments.trace is None else _folder(TRACE.flags[-1], arguments.trace, arguments.runs)
    return Repetition(
        options=options, runs=arguments.runs, folder=made_folder(folder),
        traces=None if traces is None else made_folder(traces), command=typed_command(), ceilings=ceilings,
        force=arguments.force,
    )  # fmt: skip


def _folder(flag: str, name: str | None, runs: int) -> Path:
    """Return the folder that an option names; raise if it names a file, or nothing."""
    from opanatomy.trace.files import check_no_address

    what = as_flag(RUNS, runs)
    if not name:
        raise UsageError(f"{what} keeps a report of each run: give a folder for them, {flag} runs/")
    check_no_address(flag, name)
    if not os.path.isdir(name) and (os.path.lexists(name) or name == "-" or Path(name).suffix in (".json", ".gz")):
        raise UsageError(f"{flag} {name}: {what} needs a folder, which this is not - give one, such as {flag} runs/")
    return Path(name)


def _kept_reports(runs: list[Run], repetition: Repetition) -> str:
    return f"{noun(len(runs), 'report')} kept in {repetition.folder}" if runs else "no report was kept"


def _spread(runs: list[Run], middle: Run) -> str:
    """Return a line on the times of the runs' steps."""
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


_TIME: Final = "step_time_ns"


class Repetition(Struct, frozen=True, kw_only=True):
    """The run to repeat, how often, and where its reports, and its traces if wanted, go."""

    options: RunOptions
    runs: int
    folder: Path
    traces: Path | None
    command: str
    ceilings: Overrides
    force: bool = False


class Run(Struct, frozen=True, kw_only=True):
    """One finished run: its report and the report's name."""

    report: Path
    anatomy: Anatomy

    @property
    def step_ns(self) -> float:
        """Return the time of its step, without the profiler if that was measured."""
        return metrics_of(self.anatomy)[_TIME].value


def repeated(repetition: Repetition, progress: Progress, keep: Callable[[Run], None]) -> None:
    """Run it, and give each run to `keep` as soon as its report is written.

    Raises `CaptureError` for the first run that fails; runs kept before stay.
    """
    number = 0
    for place in range(1, repetition.runs + 1):
        progress.stage(f"run {place} of {repetition.runs}", steps_after=repetition.runs - place)
        number = _next_number(repetition, number)
        name, name_of_trace = _names(repetition, number)
        report = output_file(name, force=repetition.force, needed_bytes=1 << 20)
        trace = None if name_of_trace is None else output_file(name_of_trace, force=repetition.force)
        try:
            anatomy = _captured(repetition, trace)
        except JobFailed as error:
            raise CaptureError(f"run {place} of {repetition.runs}: {error}") from error
        with report.written() as partial:
            partial.write_text(format_named("json").write(anatomy, Page()), encoding="utf-8")
        keep(Run(report=report.path, anatomy=anatomy))


def median_run(runs: list[Run]) -> Run:
    """Return the run with the median step; of an even number of runs the slower of the two in the middle.

    Gates judge it: with the faster one, of two runs the better, a change for the worse would pass.
    """
    middle = median_high(run.step_ns for run in runs)
    return next(run for run in runs if run.step_ns == middle)


def _next_number(repetition: Repetition, before: int) -> int:
    """Return the next number without a report or a trace; with `force` simply the next."""
    number = before + 1
    while not repetition.force and any(os.path.lexists(name) for name in _names(repetition, number) if name):
        number += 1
    return number


def _names(repetition: Repetition, number: int) -> tuple[Path, Path | None]:
    traces = repetition.traces
    trace = None if traces is None else traces / f"run-{number}.trace.json.gz"
    return repetition.folder / f"run-{number}.report.json", trace


def _captured(repetition: Repetition, output: OutputFile | None) -> Anatomy:
    """Return the anatomy of one run; its trace stays if it is wanted."""
    if output is not None:
        with output.written() as partial:
            _capture_run(repetition, partial)
        return _analyzed(repetition, output.target)
    with temporary("step.trace.json.gz", "the trace") as path:
        _capture_run(repetition, path)
        anatomy = _analyzed(repetition, path)
    return replace(anatomy, provenance=replace(anatomy.provenance, trace=None))


def _capture_run(repetition: Repetition, trace: Path) -> None:
    run_job(workers.captured, repetition.options, str(trace), repetition.command)


def _analyzed(repetition: Repetition, trace: Path) -> Anatomy:
    return analyze_traces([trace], ceilings=repetition.ceilings, redact=repetition.options.redact)


def made_folder(folder: Path) -> Path:
    """Return the folder, made if it is missing; raise `OutputError` if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {folder}: {error.strerror or error} - choose another one") from error
    return folder
