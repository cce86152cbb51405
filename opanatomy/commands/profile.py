"""`opanatomy profile MODEL`: capture one forward and backward pass, then report from its trace."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opanatomy.console.parser import add_options
from opanatomy.errors import OpanatomyError, OutOfMemory, UsageError
from opanatomy.option_values import as_flag
from opanatomy.options import PROFILE, RUN, RunOptions, check_together

if TYPE_CHECKING:
    from opanatomy.console.destination import Destination
    from opanatomy.device import Overrides
    from opanatomy.files.outputs import Claim
    from opanatomy.records.anatomy import Anatomy

SUMMARY: Final = "run one forward and backward pass of a model and report"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.description = "Run one forward and backward pass under torch.profiler and report its anatomy."
    add_options(parser, PROFILE)


def run(arguments: argparse.Namespace) -> None:
    """Check everything that is cheap, claim the outputs, capture, analyze the trace that was written, show."""
    from opanatomy.console.destination import destination, note, stem_of_model
    from opanatomy.console.stdout import kept_for_the_report
    from opanatomy.files.addresses import check_no_address

    check_together(arguments, as_flag)
    options = run_options(arguments)
    check_no_address("MODEL", options.model)
    with ExitStack() as stack:
        # stdout is the report's: what a model and its children print goes to stderr.
        stream = stack.enter_context(kept_for_the_report())
        trace = None if arguments.no_trace else stack.enter_context(_claimed_trace(arguments))
        where = stack.enter_context(
            destination(
                arguments, stem=stem_of_model(arguments.model), traces=[trace.target] if trace else [], stream=stream
            )
        )  # fmt: skip
        if trace is not None and not trace.alone:
            folder = trace.target.parent
            note(f"no file locks in {folder}: another run that writes {trace.path} is noticed at the end only")
        from opanatomy.device import parse_overrides

        ceilings = parse_overrides(arguments.peak, arguments.bandwidth)
        take = (options, where, ceilings, arguments.suggest)
        anatomy = _kept(trace, *take) if trace else _not_kept(*take)
    if options.check:
        from opanatomy.checks import require_agreement

        require_agreement(anatomy)
    if trace is not None:
        note(f"next: opanatomy analyze {shlex.quote(str(trace.path))} -f json")


def run_options(arguments: argparse.Namespace) -> RunOptions:
    """The options of the run, of all that was parsed."""
    values = {option.name: getattr(arguments, option.name) for option in RUN}
    return RunOptions(**{**values, "settings": tuple(arguments.settings)})


def _capture(options: RunOptions, trace: Path, where: Destination) -> None:
    from opanatomy.capture.step.profile import capture_model
    from opanatomy.console.destination import note, typed_command
    from opanatomy.console.progress import Display

    try:
        with Display() as display:
            capture_model(options, trace, display, note, command=typed_command())
    except OutOfMemory as error:
        _show_failure(error, where, redact=options.redact)
        raise


def _kept(trace: Claim, options: RunOptions, where: Destination, ceilings: Overrides, suggest_s: int) -> Anatomy:
    """The anatomy of a capture whose trace is published before it is analyzed."""
    from opanatomy.console.destination import note, show
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
    from msgspec.structs import replace

    from opanatomy.console.destination import show
    from opanatomy.files.outputs import temporary
    from opanatomy.pipeline import analyze_traces

    with temporary("step.trace.json.gz", "the trace") as trace:
        _capture(options, trace, where)
        anatomy = analyze_traces([trace], ceilings=ceilings, redact=options.redact)
        anatomy = _with_suggestions(anatomy, options, trace, suggest_s)
    anatomy = replace(anatomy, provenance=replace(anatomy.provenance, trace=None))
    show(anatomy, where)
    return anatomy


def _with_suggestions(anatomy: Anatomy, options: RunOptions, trace: Path, budget_s: int) -> Anatomy:
    """The anatomy with the techniques that would save most of this run.

    Where these cannot be told, or Ctrl-C is pressed, they are left out, which is said, and nothing else.
    """
    from msgspec.structs import replace

    from opanatomy.console.destination import note
    from opanatomy.console.progress import Display
    from opanatomy.techniques.suggestions import suggestions_for

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
        note("interrupted while it looked for what would save most: the report is without it")
        return anatomy


def _show_failure(error: OutOfMemory, where: Destination, *, redact: bool) -> None:
    """The report of a step that did not fit, as far as one could begin."""
    from opanatomy.capture.memory.failure import StepOutOfMemory
    from opanatomy.console.destination import show, typed_command
    from opanatomy.pipeline import anatomy_of_failure

    if isinstance(error, StepOutOfMemory) and error.memory is not None:
        anatomy = anatomy_of_failure(error.memory, error.workload, error.environment, typed_command(), redact=redact)
        show(anatomy, where)


@contextmanager
def _claimed_trace(arguments: argparse.Namespace) -> Iterator[Claim]:
    """The file of `--trace`; else, and in a folder, a name from the model that is not taken yet."""
    from opanatomy.console.destination import in_folder, stem_of_model
    from opanatomy.files.addresses import check_no_address
    from opanatomy.files.outputs import claimed

    default = f"{stem_of_model(arguments.model)}.trace.json.gz"
    if arguments.trace is None:
        with claimed(Path(default), force=arguments.force, numbered=True) as claim:
            yield claim
        return
    if not arguments.trace:
        raise UsageError("--trace: the name is empty - give a file name")
    check_no_address("--trace", arguments.trace)
    with in_folder(arguments.trace, default) as (path, numbered):
        if not path.name.endswith((".json", ".json.gz")):
            raise UsageError(f"--trace {path}: the name must end in .json or .json.gz")
        with claimed(path, force=arguments.force, numbered=numbered) as claim:
            if claim.lock is None:
                raise UsageError(f"--trace {path}: it is a pipe or a device, which the report cannot be read from")
            yield claim
