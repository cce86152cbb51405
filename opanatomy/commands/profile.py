"""`opanatomy profile MODEL`: capture one forward and backward pass, then report from its trace."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.commands.progress import Display
from opanatomy.commands.show import Destination, destination, in_folder, note, show, stem_of
from opanatomy.commands.stdout import kept_for_the_report
from opanatomy.errors import OutOfMemory, UsageError
from opanatomy.files.addresses import check_no_address
from opanatomy.files.outputs import Claim, claimed, temporary
from opanatomy.records.anatomy import Anatomy

if TYPE_CHECKING:
    from opanatomy.capture.step.profile import Wanted
    from opanatomy.device import Overrides


def run(arguments: argparse.Namespace) -> None:
    """Check everything that is cheap, claim the outputs, capture, analyze the trace that was written, show."""
    _check_numbers(arguments)
    check_no_address("MODEL", arguments.model)
    settings = _settings(arguments.set)
    with ExitStack() as stack:
        # stdout is the report's: what a model and its children print goes to stderr.
        stream = stack.enter_context(kept_for_the_report())
        trace = None if arguments.no_trace else stack.enter_context(_claimed_trace(arguments))
        where = stack.enter_context(
            destination(
                arguments, stem=_stem(arguments), traces=[trace.target] if trace else [], stream=stream
            )
        )  # fmt: skip
        if trace is not None and not trace.alone:
            folder = trace.target.parent
            note(f"no file locks in {folder}: another run that writes {trace.path} is noticed at the end only")
        from opanatomy.device import parse_overrides

        ceilings = parse_overrides(arguments.peak, arguments.bandwidth)
        wanted = _wanted(arguments, settings)
        anatomy = _kept(wanted, trace, where, ceilings) if trace else _not_kept(wanted, where, ceilings)
    if arguments.check:
        from opanatomy.checks import require_agreement

        require_agreement(anatomy)
    if trace is not None:
        note(f"next: opanatomy analyze {shlex.quote(str(trace.path))} -f json")


def _wanted(arguments: argparse.Namespace, settings: tuple[tuple[str, str], ...]) -> Wanted:
    from opanatomy.capture.step.profile import Wanted
    from opanatomy.capture.step.stepper import check_optimizer

    check_optimizer(arguments.optimizer)
    return Wanted(
        model=arguments.model, batch=arguments.batch, seq=arguments.seq, task=arguments.task, seed=arguments.seed,
        layers=arguments.layers, settings=settings, dtype=arguments.dtype,
        attention=arguments.attention, pretrained=arguments.weights == "pretrained", hub=arguments.hub,
        trust_remote_code=arguments.trust_remote_code, device=arguments.device, amp=arguments.amp,
        checkpointing=arguments.checkpointing, compiled=arguments.compile, optimizer=arguments.optimizer,
        inference=arguments.inference, memory=arguments.memory,
        steps=arguments.steps, warmup=arguments.warmup,
        command=_command(), redact=arguments.redact,
    )  # fmt: skip


def _capture(wanted: Wanted, trace: Path, where: Destination) -> None:
    from opanatomy.capture.step.profile import capture_model

    try:
        with Display() as display:
            capture_model(wanted, trace, display, note)
    except OutOfMemory as error:
        _show_failure(error, where, redact=wanted.redact)
        raise


def _kept(wanted: Wanted, trace: Claim, where: Destination, ceilings: Overrides) -> Anatomy:
    """The anatomy of a capture whose trace is published before it is analyzed."""
    from opanatomy.pipeline import analyze_traces

    with trace.written() as partial:
        _capture(wanted, partial, where)
    try:
        anatomy = analyze_traces([trace.target], ceilings=ceilings, redact=wanted.redact)
        show(anatomy, where)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("the trace is written, the report is not") from error
    finally:
        note(f"trace: {trace.path} (open it in ui.perfetto.dev)")
    return anatomy


def _not_kept(wanted: Wanted, where: Destination, ceilings: Overrides) -> Anatomy:
    """The anatomy of a capture whose trace is gone afterwards."""
    from opanatomy.pipeline import analyze_traces

    with temporary("step.trace.json.gz", "the trace") as trace:
        _capture(wanted, trace, where)
        anatomy = analyze_traces([trace], ceilings=ceilings, redact=wanted.redact)
    anatomy = replace(anatomy, provenance=replace(anatomy.provenance, trace=None))
    show(anatomy, where)
    return anatomy


def _show_failure(error: OutOfMemory, where: Destination, *, redact: bool) -> None:
    """The report of a step that did not fit, as far as one could begin."""
    from opanatomy.capture.memory.failure import StepOutOfMemory
    from opanatomy.pipeline import anatomy_of_failure

    if isinstance(error, StepOutOfMemory) and error.memory is not None:
        anatomy = anatomy_of_failure(error.memory, error.workload, error.environment, _command(), redact=redact)
        show(anatomy, where)


class _Bound(Struct, frozen=True):
    option: str
    least: int
    most: int = 2**31 - 1


_BOUNDS = (
    _Bound("batch", 1), _Bound("seq", 1), _Bound("steps", 1), _Bound("warmup", 0), _Bound("layers", 1),
    _Bound("seed", 0, 2**32 - 1),
)  # fmt: skip


def _check_numbers(arguments: argparse.Namespace) -> None:
    for bound in _BOUNDS:
        value = getattr(arguments, bound.option)
        if value is not None and value < bound.least:
            raise UsageError(f"--{bound.option} {value}: must be at least {bound.least}")
        if value is not None and value > bound.most:
            raise UsageError(f"--{bound.option} {value}: must be at most {bound.most}")
    if arguments.inference and (arguments.optimizer or arguments.checkpointing):
        raise UsageError("--inference has no backward: leave out --optimizer and --checkpointing")
    if arguments.no_trace and arguments.trace is not None:
        raise UsageError(f"--no-trace keeps no trace, --trace {arguments.trace} does - leave one out")


def _settings(texts: list[str]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {text}: not of the form key=value")
        pairs.append((key, value))
    return tuple(pairs)


@contextmanager
def _claimed_trace(arguments: argparse.Namespace) -> Iterator[Claim]:
    """The file of `--trace`; else, and in a folder, a name from the model that is not taken yet."""
    default = f"{_stem(arguments)}.trace.json.gz"
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


def _stem(arguments: argparse.Namespace) -> str:
    from opanatomy.redaction.texts import spoken

    return stem_of(spoken(arguments.model).replace(":", "-")) or "model"


def _command() -> str:
    """The command as typed; a name that is no text keeps a mark for each such byte."""
    return shlex.join(["opanatomy", *sys.argv[1:]]).encode("utf-8", "replace").decode()
