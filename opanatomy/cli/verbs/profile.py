"""`opanatomy profile MODEL`: capture one forward and backward pass, then report from its trace."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from statistics import median, median_high
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.capture.distributed.ranks import Launched, launched
from opanatomy.cli.parser import add_options
from opanatomy.devices.overrides import Overrides
from opanatomy.errors import CaptureError, OpanatomyError, OutOfMemory, OutputError, UsageError
from opanatomy.options import PROCESSES, PROFILE, RUN, RUNS, TRACE, RunOptions, as_flag, check_several, check_together
from opanatomy.pipeline import analyze_traces
from opanatomy.predict import workers
from opanatomy.predict.workers import JobFailed, run_job
from opanatomy.records.anatomy import Anatomy
from opanatomy.report.formats import format_named
from opanatomy.report.metrics import metrics_of
from opanatomy.report.section import Page
from opanatomy.report.units import duration, noun, share
from opanatomy.trace.files import Claim, claimed, temporary

if TYPE_CHECKING:
    from opanatomy.capture.distributed.ranks import Joined
    from opanatomy.cli.output import Destination
    from opanatomy.devices.overrides import Overrides
    from opanatomy.records.anatomy import Anatomy
    from opanatomy.report.gates import Gate
    from opanatomy.trace.files import Claim

SUMMARY: Final = "run one forward and backward pass of a model and report"
EXAMPLES: Final = (
    ("BERT-large, four sequences of 512 tokens", "opanatomy profile google-bert/bert-large-uncased --batch 4"),
    ("a function of yours that returns (module, inputs)", "opanatomy profile my_model.py:make --optimizer adamw"),
    ("GPT-2 on two processes, the report as JSON", "opanatomy profile gpt2 --processes 2 -o gpt2.json"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.description = "Run one forward and backward pass under torch.profiler and report its anatomy."
    add_options(parser, PROFILE)


def run(arguments: argparse.Namespace) -> None:
    """Check everything that is cheap, claim the outputs, capture, analyze the trace that was written, show."""
    from opanatomy.cli.gated import gates_on_report, hold_to_gates
    from opanatomy.cli.output import destination, kept_for_the_report, note, stem_of_model
    from opanatomy.trace.files import check_no_address

    check_together(arguments, as_flag)
    options = run_options(arguments)
    gates = gates_on_report(arguments)
    check_no_address("MODEL", options.model)
    place = launched()
    _check_processes(arguments, place)
    if place is not None:
        _on_a_rank(arguments, options, place)
        return
    if arguments.runs is not None:
        run_several(arguments, options, gates)
        return
    if (arguments.processes or 1) > 1:
        from opanatomy.capture.distributed.ranks import launch
        from opanatomy.cli.output import typed_words

        launch(typed_words(), arguments.processes, options.device)
        return
    with ExitStack() as stack:
        # stdout is the report's: what a model and its children print goes to stderr.
        stream = stack.enter_context(kept_for_the_report())
        trace = None if arguments.no_trace else stack.enter_context(_claimed_trace(arguments))
        where = stack.enter_context(
            destination(
                arguments, stem=stem_of_model(arguments.model), traces=[trace.target] if trace else [], stream=stream,
                gates=gates,
            )
        )  # fmt: skip
        if trace is not None and not trace.alone:
            folder = trace.target.parent
            note(f"no file locks in {folder}: another run that writes {trace.path} is noticed at the end only")
        from opanatomy.devices.overrides import parse_overrides

        ceilings = parse_overrides(arguments.peak, arguments.bandwidth)
        take = (options, where, ceilings, arguments.suggest)
        anatomy = _published_anatomy(trace, *take) if trace else _not_kept(*take)
    hold_to_gates(anatomy, arguments)
    if trace is not None:
        note(f"next: opanatomy analyze {shlex.quote(str(trace.path))} -f json")


def _check_processes(arguments: argparse.Namespace, place: Launched | None) -> None:
    """Refuse two numbers of processes, and what only several of them can do where there is one."""
    processes = arguments.processes
    if arguments.runs is not None and (place is not None or (processes or 1) > 1):
        raise UsageError(
            f"{as_flag(RUNS, arguments.runs)} starts each run itself, as one process - leave it out, and start the run"
            " on several processes as often as wanted"
        )
    if place is not None:
        if processes not in (None, place.world_size):
            raise UsageError(
                f"{as_flag(PROCESSES, processes)}: a launcher has started {place.world_size} already - leave it out"
            )
        processes = place.world_size
    check_several(arguments, processes or 1, as_flag)


def _on_a_rank(arguments: argparse.Namespace, options: RunOptions, place: Launched) -> None:
    """The same on one of several ranks: each captures and analyzes its own trace, the first shows all together."""
    from opanatomy.capture.distributed.ranks import asked_of_launcher, joined
    from opanatomy.cli.gated import gates_on_report, hold_to_gates
    from opanatomy.cli.output import destination, kept_for_the_report, note, show, stem_of_model
    from opanatomy.devices.overrides import parse_overrides

    ceilings = parse_overrides(arguments.peak, arguments.bandwidth)
    gates = gates_on_report(arguments)
    options = asked_of_launcher(options)
    with ExitStack() as stack:
        stream = stack.enter_context(kept_for_the_report())
        trace = where = None
        if place.is_first:
            trace = None if arguments.no_trace else stack.enter_context(_claimed_trace(arguments, place))
            targets = [trace.target] if trace else []
            stem = stem_of_model(arguments.model)
            where = stack.enter_context(destination(arguments, stem=stem, traces=targets, stream=stream, gates=gates))
        group = stack.enter_context(joined(options, place))
        ranks = group.ranks
        name = ranks.all_gathered(None if trace is None else trace.path.name)[0]
        if name is not None and trace is None:
            trace = stack.enter_context(_claimed_trace(arguments, place, name))
        summaries = ranks.gathered(_summary(options, trace, where, group))
        if where is None:
            return
        from opanatomy.pipeline import anatomy_of_ranks

        anatomy = anatomy_of_ranks(summaries, ceilings=ceilings, redact=options.redact)
        if trace is None:
            show(_without_trace(anatomy), where)
        else:
            show(anatomy, _of_all_ranks(where, trace, place.world_size, redact=options.redact))
        if trace is not None:
            note(f"traces: {trace.path}, and next to it those of the other ranks")
    hold_to_gates(anatomy, arguments)


def _of_all_ranks(where: Destination, first: Claim, ranks: int, *, redact: bool) -> Destination:
    """The destination of a report whose commands name the traces of all ranks, where those are next to the first."""
    from msgspec.structs import replace

    from opanatomy.cli.output import source_of_files
    from opanatomy.trace.files import name_of_rank

    names = [name_of_rank(first.path, rank) for rank in range(ranks)]
    source = None if redact else source_of_files(names)
    return replace(where, page=replace(where.page, source=source))


def _summary(options: RunOptions, trace: Claim | None, where: Destination | None, group: Joined) -> bytes:
    """What the capture of this rank comes to."""
    from opanatomy.pipeline import packed_summary_of
    from opanatomy.trace.files import temporary

    if trace is None:
        with temporary(f"step.rank{group.ranks.rank}.trace.json.gz", "the trace") as path:
            _capture(options, path, where, group)
            return packed_summary_of(path, redact=options.redact)
    with trace.written() as partial:
        _capture(options, partial, where, group)
    return packed_summary_of(trace.target, redact=options.redact)


def run_options(arguments: argparse.Namespace) -> RunOptions:
    """The options of the run, of all that was parsed."""
    values = {option.name: getattr(arguments, option.name) for option in RUN}
    return RunOptions(**{**values, "settings": tuple(arguments.settings)})


def _capture(options: RunOptions, trace: Path, where: Destination | None, group: Joined | None = None) -> None:
    """Capture; without a place `where` the report goes, of one of the other ranks, nothing is shown meanwhile."""
    from opanatomy.capture.run.profile import capture_model
    from opanatomy.capture.run.progress import NullProgress
    from opanatomy.cli.output import note, typed_command
    from opanatomy.cli.progress import Display

    try:
        with Display() if where else nullcontext(NullProgress()) as display:
            speak = note if where else _say_nothing
            capture_model(options, trace, display, speak, command=typed_command(), joined=group)
    except OutOfMemory as error:
        if where is not None:
            _show_failure(error, where, redact=options.redact)
        raise


def _say_nothing(_text: str) -> None:
    """The first rank says it."""


def _published_anatomy(
    trace: Claim, options: RunOptions, where: Destination, ceilings: Overrides, suggest_s: int
) -> Anatomy:
    """The anatomy of a capture whose trace is published before it is analyzed."""
    from opanatomy.cli.output import note, show
    from opanatomy.pipeline import analyze_traces

    with trace.written() as partial:
        _capture(options, partial, where)
    try:
        anatomy = analyze_traces([trace.target], ceilings=ceilings, redact=options.redact)
        anatomy = _with_suggestions(anatomy, options, trace.target, suggest_s)
        show(anatomy, where)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("the trace is written, the report is not") from error
    finally:
        note(f"trace: {trace.path} (open it in ui.perfetto.dev)")
    return anatomy


def _not_kept(options: RunOptions, where: Destination, ceilings: Overrides, suggest_s: int) -> Anatomy:
    """The anatomy of a capture whose trace is gone afterwards."""
    from opanatomy.cli.output import show
    from opanatomy.pipeline import analyze_traces
    from opanatomy.trace.files import temporary

    with temporary("step.trace.json.gz", "the trace") as trace:
        _capture(options, trace, where)
        anatomy = analyze_traces([trace], ceilings=ceilings, redact=options.redact)
        anatomy = _with_suggestions(anatomy, options, trace, suggest_s)
    anatomy = _without_trace(anatomy)
    show(anatomy, where)
    return anatomy


def _without_trace(anatomy: Anatomy) -> Anatomy:
    """The anatomy of a trace that is gone."""
    from msgspec.structs import replace

    return replace(anatomy, provenance=replace(anatomy.provenance, trace=None))


def _with_suggestions(anatomy: Anatomy, options: RunOptions, trace: Path, budget_s: int) -> Anatomy:
    """The anatomy with the techniques that would save most of this run.

    Where these cannot be told, or Ctrl-C is pressed, they are left out, which is said, and nothing else.
    """
    from msgspec.structs import replace

    from opanatomy.cli.output import note
    from opanatomy.cli.progress import Display
    from opanatomy.predict.suggestions import suggestions_for

    if not budget_s:
        return anatomy
    try:
        with Display() as display:
            display.stage("what would save most")
            return replace(anatomy, suggestions=suggestions_for(options, anatomy, trace, budget_s))
    except OpanatomyError as error:
        note(f"what would save most is not known: {error}")
        return anatomy
    except KeyboardInterrupt:
        note("interrupted while predicting what would save most: the report is without it")
        return anatomy


def _show_failure(error: OutOfMemory, where: Destination, *, redact: bool) -> None:
    """The report of a step that did not fit, as far as one could begin."""
    from opanatomy.capture.memory.failure import StepOutOfMemory
    from opanatomy.cli.output import show, typed_command
    from opanatomy.pipeline import anatomy_of_failure

    if isinstance(error, StepOutOfMemory) and error.memory is not None:
        anatomy = anatomy_of_failure(error.memory, error.workload, error.environment, typed_command(), redact=redact)
        show(anatomy, where)


@contextmanager
def _claimed_trace(
    arguments: argparse.Namespace, place: Launched | None = None, first: str | None = None
) -> Iterator[Claim]:
    """The file of `--trace`; else, and in a folder, a name from the model that is not taken yet.

    That of a rank says which it is; `first` is what that of the first rank is called, after which it takes its own.
    """
    from opanatomy.cli.output import in_folder, stem_of_model
    from opanatomy.trace.files import check_no_address, claimed, name_of_rank

    default = first or f"{stem_of_model(arguments.model)}.trace.json.gz"
    if place is not None:
        default = name_of_rank(Path(default), place.rank).name
    if arguments.trace is None:
        with claimed(Path(default), force=arguments.force, numbered=first is None) as claim:
            yield claim
        return
    if not arguments.trace:
        raise UsageError("--trace: the name is empty - give a file name")
    check_no_address("--trace", arguments.trace)
    with in_folder(arguments.trace, default) as (path, numbered):
        if not path.name.endswith((".json", ".json.gz")):
            raise UsageError(f"--trace {path}: the name must end in .json or .json.gz")
        path = path if place is None else name_of_rank(path, place.rank)
        with claimed(path, force=arguments.force, numbered=numbered and first is None) as claim:
            if claim.lock is None:
                raise UsageError(f"--trace {path}: it is a pipe or a device, which the report cannot be read from")
            yield claim


# `profile --runs N`: the runs, their reports in a folder, and the report of the median one on stdout.


def run_several(arguments: argparse.Namespace, options: RunOptions, gates: tuple[Gate, ...]) -> None:
    """Run, keep each report, show that of the median run and how far the step times are apart; then the gates.

    A run that fails, or Ctrl-C, ends it: what was finished is kept.
    """
    from opanatomy.cli.gated import hold_to_gates
    from opanatomy.cli.output import destination, kept_for_the_report, note, show, stem_of_model
    from opanatomy.cli.progress import Display

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
    """The folder that an option names; raises where it names a file, or none at all."""
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


# The same run several times, each in a fresh process with a report of its own: what `compare` takes for one side.


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
            _capture_run(repetition, partial)
        return _analyzed(repetition, claim.target)
    with temporary("step.trace.json.gz", "the trace") as path:
        _capture_run(repetition, path)
        anatomy = _analyzed(repetition, path)
    return replace(anatomy, provenance=replace(anatomy.provenance, trace=None))


def _capture_run(repetition: Repetition, trace: Path) -> None:
    run_job(workers.captured, repetition.options, str(trace), repetition.command)


def _analyzed(repetition: Repetition, trace: Path) -> Anatomy:
    return analyze_traces([trace], ceilings=repetition.ceilings, redact=repetition.options.redact)


def made_folder(folder: Path) -> Path:
    """The folder, made where it is not there; `OutputError` where it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {folder}: {error.strerror or error} - choose another one") from error
    return folder
