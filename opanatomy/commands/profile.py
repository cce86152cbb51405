"""`opanatomy profile MODEL`: capture one forward and backward pass, then report from its trace."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from opanatomy.commands.output import check_writable, written_whole
from opanatomy.commands.progress import Display
from opanatomy.commands.show import check_output, note, show
from opanatomy.errors import OutOfMemory, UsageError


def run(arguments: argparse.Namespace) -> None:
    """Check everything that is cheap, capture, analyze the trace that was written, show."""
    _check_numbers(arguments)
    settings = _settings(arguments.set)
    trace = _trace_path(arguments)
    check_output(arguments, [trace])
    check_writable(trace, force=arguments.force)
    from opanatomy.device import parse_overrides

    ceilings = parse_overrides(arguments.peak, arguments.bandwidth)
    from opanatomy.capture.profile import Wanted, capture_model
    from opanatomy.capture.stepper import check_optimizer

    check_optimizer(arguments.optimizer)
    wanted = Wanted(
        model=arguments.model, batch=arguments.batch, seq=arguments.seq, task=arguments.task, seed=arguments.seed,
        layers=arguments.layers, settings=settings, dtype=arguments.dtype,
        attention=arguments.attention, pretrained=arguments.weights == "pretrained", hub=arguments.hub,
        trust_remote_code=arguments.trust_remote_code, device=arguments.device, amp=arguments.amp,
        checkpointing=arguments.checkpointing, compiled=arguments.compile, optimizer=arguments.optimizer,
        inference=arguments.inference, memory=arguments.memory,
        steps=arguments.steps, warmup=arguments.warmup,
        command=_command(),
    )  # fmt: skip
    try:
        # stdout is the report's: what a model prints goes to stderr.
        with written_whole(trace) as partial, redirect_stdout(sys.stderr), Display() as display:
            capture_model(wanted, partial, display, note)
    except OutOfMemory as error:
        _show_failure(error, arguments)
        raise
    try:
        from opanatomy.fleet import analyze_traces

        anatomy = analyze_traces([trace], ceilings=ceilings)
        show(anatomy, arguments)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("the trace is written, the report is not") from error
    finally:
        note(f"trace: {trace} (open it in ui.perfetto.dev)")
    if arguments.check:
        from opanatomy.checks import require_agreement

        require_agreement(anatomy)
    note(f"next: opanatomy analyze {shlex.quote(str(trace))} -f json")


def _show_failure(error: OutOfMemory, arguments: argparse.Namespace) -> None:
    """The report of a step that did not fit, as far as one could begin."""
    from opanatomy.capture.memory_failure import StepOutOfMemory
    from opanatomy.pipeline import anatomy_of_failure

    if isinstance(error, StepOutOfMemory) and error.memory is not None:
        show(anatomy_of_failure(error.memory, error.workload, error.environment, _command()), arguments)


@dataclass(frozen=True, slots=True)
class _Bound:
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


def _settings(texts: list[str]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {text}: not of the form key=value")
        pairs.append((key, value))
    return tuple(pairs)


def _trace_path(arguments: argparse.Namespace) -> Path:
    """The file of `--trace`; else a name from the model that does not exist yet."""
    if arguments.trace is not None:
        path = Path(arguments.trace)
        if not arguments.trace:
            raise UsageError("--trace: the name is empty - give a file name")
        if not path.name.endswith((".json", ".json.gz")):
            raise UsageError(f"--trace {path}: the name must end in .json or .json.gz")
        return path
    from opanatomy.privacy.texts import spoken

    model = spoken(arguments.model.rstrip("/").rsplit("/", 1)[-1].removesuffix(".json"))
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", model)
    stem = words.strip("-.") or "model"
    path, number = Path(f"{stem}.trace.json.gz"), 1
    while path.exists() and not arguments.force:
        number += 1
        path = Path(f"{stem}-{number}.trace.json.gz")
    return path


def _command() -> str:
    """The command as typed; a name that is no text keeps a mark for each such byte."""
    return shlex.join(["opanatomy", *sys.argv[1:]]).encode("utf-8", "replace").decode()
