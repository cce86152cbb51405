"""The same run several times, each in a fresh process with a report of its own: what `compare` takes for one side."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median_high
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.device import Overrides
from opanatomy.errors import CaptureError, OutputError
from opanatomy.files.outputs import Claim, claimed, temporary
from opanatomy.pipeline import analyze_traces
from opanatomy.records.anatomy import Anatomy
from opanatomy.report import format_named
from opanatomy.report.format import Page
from opanatomy.report.metrics import metrics_of
from opanatomy.run_options import RunOptions
from opanatomy.techniques import jobs
from opanatomy.techniques.workers import JobFailed, run_job

_TIME: Final = "step_time_ns"


class Stages(Protocol):
    """Is called with how far the runs are."""

    def stage(self, text: str, *, steps_after: int = 0, expected_ns: int | None = None) -> None:
        """The stage `text` begins."""


class Repetition(Struct, frozen=True, kw_only=True):
    """What is run how often, and where its reports, and the traces if they are wanted, go."""

    options: RunOptions
    runs: int
    folder: Path
    traces: Path | None
    command: str
    ceilings: Overrides
    force: bool = False


class Run(Struct, frozen=True, kw_only=True):
    """One run that is done: its report and what that is called."""

    report: Path
    anatomy: Anatomy

    @property
    def step_ns(self) -> float:
        """The time of its step, without the profiler where that was measured."""
        return metrics_of(self.anatomy)[_TIME].value


def repeated(repetition: Repetition, progress: Stages, keep: Callable[[Run], None]) -> None:
    """Run it, and give each run to `keep` as soon as its report is written.

    Raises `CaptureError` for the first run that fails: what was kept before stays.
    """
    number = 0
    for place in range(1, repetition.runs + 1):
        progress.stage(f"run {place} of {repetition.runs}", steps_after=repetition.runs - place)
        number = _next_number(repetition, number)
        with _claims(repetition, number) as (report, trace):
            try:
                anatomy = _captured(repetition, trace)
            except JobFailed as error:
                raise CaptureError(f"run {place} of {repetition.runs}: {error}") from error
            with report.written() as partial:
                partial.write_text(format_named("json").write(anatomy, Page()), encoding="utf-8")
        keep(Run(report=report.path, anatomy=anatomy))


def median_run(runs: list[Run]) -> Run:
    """The run whose step is the median; of an even number of runs the slower of the two in the middle.

    Gates judge it: by the faster one, of two runs the better, a change for the worse would pass.
    """
    middle = median_high(run.step_ns for run in runs)
    return next(run for run in runs if run.step_ns == middle)


def _next_number(repetition: Repetition, before: int) -> int:
    """The next number of which neither a report nor a trace is there; with `force` simply the next."""
    number = before + 1
    while not repetition.force and any(os.path.lexists(name) for name in _names(repetition, number) if name):
        number += 1
    return number


def _names(repetition: Repetition, number: int) -> tuple[Path, Path | None]:
    traces = repetition.traces
    trace = None if traces is None else traces / f"run-{number}.trace.json.gz"
    return repetition.folder / f"run-{number}.report.json", trace


@contextmanager
def _claims(repetition: Repetition, number: int) -> Iterator[tuple[Claim, Claim | None]]:
    report, trace = _names(repetition, number)
    with ExitStack() as stack:
        claim = stack.enter_context(claimed(report, force=repetition.force, needed_bytes=1 << 20))
        of_trace = None if trace is None else stack.enter_context(claimed(trace, force=repetition.force))
        yield claim, of_trace


def _captured(repetition: Repetition, claim: Claim | None) -> Anatomy:
    """The anatomy of one run, whose trace stays where it is wanted."""
    if claim is not None:
        with claim.written() as partial:
            _capture(repetition, partial)
        return _analyzed(repetition, claim.target)
    with temporary("step.trace.json.gz", "the trace") as path:
        _capture(repetition, path)
        anatomy = _analyzed(repetition, path)
    return replace(anatomy, provenance=replace(anatomy.provenance, trace=None))


def _capture(repetition: Repetition, trace: Path) -> None:
    run_job(jobs.captured, repetition.options, str(trace), repetition.command)


def _analyzed(repetition: Repetition, trace: Path) -> Anatomy:
    return analyze_traces([trace], ceilings=repetition.ceilings, redact=repetition.options.redact)


def made_folder(folder: Path) -> Path:
    """The folder, made where it is not there; `OutputError` where it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {folder}: {error.strerror or error} - choose another one") from error
    return folder
