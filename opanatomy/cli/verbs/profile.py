"""Run `opanatomy profile MODEL`: capture one forward and backward pass, then report from its trace."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opanatomy.errors import GateError, OpanatomyError, OutOfMemory, UsageError
from opanatomy.options import (
    PROCESSES,
    PROFILE,
    RUN,
    RunOptions,
    as_flag,
    check_fit,
    check_several,
    check_together,
)

if TYPE_CHECKING:
    from opanatomy.capture.distributed.launched import Launched
    from opanatomy.capture.distributed.ranks import RankGroup
    from opanatomy.cli.output import Destination
    from opanatomy.devices.overrides import Overrides
    from opanatomy.io.files import OutputFile
    from opanatomy.records.anatomy import Anatomy

#: Minimum time for predictions.
_LEAST_BUDGET_S: Final = 10.0
DESCRIPTION: Final = (
    "Run one training step of a model (forward and backward, with --optimizer also the update) under torch.profiler and"
    " report where its time, FLOPs, memory traffic and memory go."
)
OPTIONS: Final = PROFILE
#: The options that help shows first, by name.
MOST_USED: Final = (
    *("batch", "seq", "optimizer", "amp", "compile", "checkpointing", "memory", "lines", "device", "steps"),
    *("output", "full", "limit"),
)
EXAMPLES: Final = (
    ("BERT-large, with four sequences of 512 tokens", "opanatomy profile google-bert/bert-large-uncased --batch 4"),
    ("your own function that returns (module, inputs)", "opanatomy profile my_model.py:make --optimizer adamw"),
    (
        "does GPT-2 XL fit in 80 GB, and with which batch? (predicted, not run)",
        "opanatomy profile gpt2-xl --optimizer adamw --for 80GB --find batch",
    ),
)


def run(arguments: argparse.Namespace) -> None:
    """Make the cheap checks, check the outputs, capture, analyze the written trace, show it."""
    from opanatomy.capture.distributed.launched import launched
    from opanatomy.cli.gates import enforce_gates, gates_on_report
    from opanatomy.cli.output import destination, note, stem_of_model
    from opanatomy.cli.stdout import kept_for_the_report
    from opanatomy.io.files import check_no_address

    check_together(arguments, as_flag)
    check_fit(arguments, as_flag)
    options = run_options(arguments)
    if arguments.limit is not None:
        _will_it_fit(arguments, options)
        return
    gates = gates_on_report(arguments)
    check_no_address("MODEL", options.model)
    place = launched()
    _check_processes(arguments, place)
    if place is not None:
        _on_a_rank(arguments, options, place)
        return
    if (arguments.processes or 1) > 1:
        from opanatomy.capture.distributed.ranks import launch
        from opanatomy.cli.output import typed_words

        launch(typed_words(), arguments.processes, options.device)
        return
    with ExitStack() as stack:
        # stdout is the report's: output of a model and its children goes to stderr.
        stream = stack.enter_context(kept_for_the_report())
        trace = None if arguments.no_trace else stack.enter_context(_trace_file(arguments))
        where = stack.enter_context(
            destination(
                arguments,
                stem=stem_of_model(arguments.model),
                traces=[trace.target] if trace else [],
                stream=stream,
                gates=gates,
            )
        )
        from opanatomy.devices.overrides import parse_overrides

        ceilings = parse_overrides(arguments.peak, arguments.bandwidth)
        take = (options, where, ceilings, arguments.suggest)
        if arguments.oom:
            from opanatomy.capture.memory.history import is_recordable
            from opanatomy.recorder import oom_report

            if is_recordable():
                stack.enter_context(oom_report("profile", trace.path if trace else None, "report"))
            else:
                note("--oom-report has no effect: it needs torch's CUDA allocator, and torch finds no CUDA device here")
        anatomy = _published_anatomy(trace, *take) if trace else _not_kept(*take)
    enforce_gates(anatomy, arguments)
    if trace is not None:
        note(f"next: opanatomy analyze {shlex.quote(str(trace.path))} -f json")


def _will_it_fit(arguments: argparse.Namespace, options: RunOptions) -> None:
    """Show the predicted peak next to the limit, with what would make it fit; raise `GateError` if it does not."""
    from opanatomy.cli.output import destination, show, stem_of_model, typed_command
    from opanatomy.cli.progress import Display
    from opanatomy.cli.stdout import kept_for_the_report
    from opanatomy.io.files import check_no_address
    from opanatomy.predict.fit import fit_of, limit_of, why_not

    limit = limit_of(arguments.limit)
    check_no_address("MODEL", options.model)
    stem = stem_of_model(arguments.model)
    with kept_for_the_report() as stream, destination(arguments, stem=stem, stream=stream) as where:
        with Display() as display:
            report = fit_of(options, limit, find=arguments.find, command=typed_command(), stage=display.stage)
        show(report, where)
    if (reason := why_not(report)) is not None:
        raise GateError(reason)


def _check_processes(arguments: argparse.Namespace, place: Launched | None) -> None:
    """Refuse two numbers of processes, and for one process options that need several."""
    processes = arguments.processes
    if place is not None:
        if processes not in (None, place.world_size):
            raise UsageError(
                f"{as_flag(PROCESSES, processes)}: a launcher has already started {place.world_size} processes -"
                " leave it out"
            )
        processes = place.world_size
    check_several(arguments, processes or 1, as_flag)


def _on_a_rank(arguments: argparse.Namespace, options: RunOptions, place: Launched) -> None:
    """Run on one of several ranks: each captures and analyzes its own trace, the first shows the merged report."""
    from opanatomy.capture.distributed.ranks import options_from_launcher, rank_group
    from opanatomy.cli.gates import enforce_gates, gates_on_report
    from opanatomy.cli.output import destination, note, show, stem_of_model
    from opanatomy.cli.stdout import kept_for_the_report
    from opanatomy.devices.overrides import parse_overrides

    ceilings = parse_overrides(arguments.peak, arguments.bandwidth)
    gates = gates_on_report(arguments)
    options = options_from_launcher(options)
    with ExitStack() as stack:
        stream = stack.enter_context(kept_for_the_report())
        trace = where = None
        if place.is_first:
            trace = None if arguments.no_trace else stack.enter_context(_trace_file(arguments, place))
            targets = [trace.target] if trace else []
            stem = stem_of_model(arguments.model)
            where = stack.enter_context(destination(arguments, stem=stem, traces=targets, stream=stream, gates=gates))
        group = stack.enter_context(rank_group(options, place))
        ranks = group.ranks
        name = ranks.all_gathered(None if trace is None else trace.path.name)[0]
        if name is not None and trace is None:
            trace = stack.enter_context(_trace_file(arguments, place, name))
        summaries = ranks.gathered(_summary(options, trace, where, group))
        if where is None:
            return
        from opanatomy.pipeline import anatomy_of_ranks

        anatomy = anatomy_of_ranks(summaries, ceilings=ceilings, redact=options.redact)
        if trace is None:
            show(_without_trace(anatomy), where)
        else:
            show(anatomy, _destination_of_all_ranks(where, trace, place.world_size, redact=options.redact))
        if trace is not None:
            note(f"traces: {trace.path}, with the other ranks' traces next to it")
    enforce_gates(anatomy, arguments)


def _destination_of_all_ranks(where: Destination, first: OutputFile, ranks: int, *, redact: bool) -> Destination:
    """Return the destination of a report whose commands name all ranks' traces, if those are next to the first."""
    from msgspec.structs import replace

    from opanatomy.cli.output import source_of_files
    from opanatomy.io.files import name_of_rank

    names = [name_of_rank(first.path, rank) for rank in range(ranks)]
    source = None if redact else source_of_files(names)
    return replace(where, page=replace(where.page, source=source))


def _summary(options: RunOptions, trace: OutputFile | None, where: Destination | None, group: RankGroup) -> bytes:
    """Return the packed summary of this rank's capture."""
    from opanatomy.io.files import temporary
    from opanatomy.pipeline import packed_summary_of

    if trace is None:
        with temporary(f"step.rank{group.ranks.rank}.trace.json.gz", "the trace") as path:
            _capture(options, path, where, group)
            return packed_summary_of(path, redact=options.redact)
    with trace.written() as partial:
        _capture(options, partial, where, group)
    return packed_summary_of(trace.target, redact=options.redact)


def run_options(arguments: argparse.Namespace) -> RunOptions:
    """Return the options of the run from all parsed arguments."""
    values = {option.name: getattr(arguments, option.name) for option in RUN}
    return RunOptions(**{**values, "settings": tuple(arguments.settings)})


def _capture(options: RunOptions, trace: Path, where: Destination | None, group: RankGroup | None = None) -> None:
    """Capture; on other ranks than the first, which have no `where`, nothing is shown meanwhile."""
    from opanatomy.capture.run.profile import capture_model
    from opanatomy.capture.run.progress import NullProgress
    from opanatomy.cli.output import note, typed_command
    from opanatomy.cli.progress import Display

    try:
        with Display() if where else nullcontext(NullProgress()) as display:
            speak = note if where else _say_nothing
            capture_model(options, trace, display, speak, command=typed_command(), group=group)
    except OutOfMemory as error:
        if where is not None:
            _show_failure(error, where, redact=options.redact)
        raise


def _say_nothing(_text: str) -> None:
    """Print nothing: the first rank prints it."""


def _published_anatomy(
    trace: OutputFile, options: RunOptions, where: Destination, ceilings: Overrides, suggest_s: int | None
) -> Anatomy:
    """Return the anatomy of a capture whose trace is published before it is analyzed."""
    from opanatomy.cli.output import note, show
    from opanatomy.pipeline import analyze_traces

    begun = time.monotonic()
    with trace.written() as partial:
        _capture(options, partial, where)
    try:
        anatomy = analyze_traces([trace.target], ceilings=ceilings, redact=options.redact)
        anatomy = _with_suggestions(anatomy, options, trace.target, _budget_s(suggest_s, begun))
        show(anatomy, where)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("the trace was written, but the report was not") from error
    finally:
        note(f"trace: {trace.path} (open it in ui.perfetto.dev)")
    return anatomy


def _not_kept(options: RunOptions, where: Destination, ceilings: Overrides, suggest_s: int | None) -> Anatomy:
    """Return the anatomy of a capture with a temporary trace."""
    from opanatomy.cli.output import show
    from opanatomy.io.files import temporary
    from opanatomy.pipeline import analyze_traces

    begun = time.monotonic()
    with temporary("step.trace.json.gz", "the trace") as trace:
        _capture(options, trace, where)
        anatomy = analyze_traces([trace], ceilings=ceilings, redact=options.redact)
        anatomy = _with_suggestions(anatomy, options, trace, _budget_s(suggest_s, begun))
    anatomy = _without_trace(anatomy)
    show(anatomy, where)
    return anatomy


def _budget_s(asked: int | None, begun: float) -> float:
    """Return the seconds for predictions: as requested, else in proportion to the run's duration."""
    return asked if asked is not None else max(_LEAST_BUDGET_S, (time.monotonic() - begun) / 10)


def _without_trace(anatomy: Anatomy) -> Anatomy:
    """Return the anatomy without its trace, which is gone."""
    from msgspec.structs import replace

    return replace(anatomy, provenance=replace(anatomy.provenance, trace=None))


def _with_suggestions(anatomy: Anatomy, options: RunOptions, trace: Path, budget_s: float) -> Anatomy:
    """Return the anatomy with the techniques that would save most of this run.

    If these cannot be computed, or Ctrl-C is pressed, they alone are left out, with a message.
    """
    from msgspec.structs import replace

    from opanatomy.analysis.advice import ordered
    from opanatomy.cli.output import note
    from opanatomy.cli.progress import Display
    from opanatomy.predict.suggestions import suggestions_for

    if not budget_s:
        return anatomy
    try:
        with Display() as display:
            display.stage("what would save most")
            predicted = suggestions_for(options, anatomy, trace, budget_s)
        return replace(anatomy, advice=ordered((*anatomy.advice, *predicted)))
    except OpanatomyError as error:
        note(f"cannot tell what would save most: {error}")
        return anatomy
    except KeyboardInterrupt:
        note("interrupted while predicting what would save most: the report does not include these predictions")
        return anatomy


def _show_failure(error: OutOfMemory, where: Destination, *, redact: bool) -> None:
    """Show the report of a step that did not fit, as far as it began."""
    from opanatomy.capture.memory.failure import StepOutOfMemory
    from opanatomy.cli.output import show, typed_command
    from opanatomy.pipeline import anatomy_of_failure

    if isinstance(error, StepOutOfMemory) and error.memory is not None:
        anatomy = anatomy_of_failure(error.memory, error.workload, error.environment, typed_command(), redact=redact)
        show(anatomy, where)


@contextmanager
def _trace_file(
    arguments: argparse.Namespace, place: Launched | None = None, first: str | None = None
) -> Iterator[OutputFile]:
    """Give the file of `--trace`; else, and in a folder, a new name made from the model.

    A rank's name contains its number; it is made from `first`, the name of the first rank's file, and taken after that.
    """
    from opanatomy.cli.output import in_folder, stem_of_model
    from opanatomy.io.files import check_no_address, name_of_rank, output_file

    default = first or f"{stem_of_model(arguments.model)}.trace.json.gz"
    if place is not None:
        default = name_of_rank(Path(default), place.rank).name
    if arguments.trace is None:
        instead = "write the trace elsewhere with --trace FILE, or write none with --no-trace"
        yield output_file(Path(default), force=arguments.force, numbered=first is None, instead=instead)
        return
    if not arguments.trace:
        raise UsageError("--trace: the name is empty - pass a file name")
    check_no_address("--trace", arguments.trace)
    with in_folder(arguments.trace, default) as (path, numbered):
        if not path.name.endswith((".json", ".json.gz")):
            raise UsageError(f"--trace {path}: the name must end in .json or .json.gz")
        path = path if place is None else name_of_rank(path, place.rank)
        output = output_file(path, force=arguments.force, numbered=numbered and first is None)
        if output.is_stream:
            raise UsageError(f"--trace {path}: a pipe or a device cannot be read again for the report - pass a file")
        yield output
