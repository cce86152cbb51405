"""`opanatomy profile MODEL`: capture one forward and backward pass, then report from its trace."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from opanatomy.commands.output import check_writable, written_whole
from opanatomy.commands.progress import Display
from opanatomy.commands.show import check_output, note, show
from opanatomy.errors import UsageError


def run(arguments: argparse.Namespace) -> None:
    """Check everything that is cheap, capture, analyze the trace that was written, show."""
    _check_numbers(arguments)
    check_output(arguments)
    trace = _trace_path(arguments)
    check_writable(trace, force=arguments.force)
    from opanatomy.capture.profile import Wanted, capture_model

    wanted = Wanted(
        model=arguments.model, batch=arguments.batch, seq=arguments.seq, task=arguments.task, seed=arguments.seed,
        layers=arguments.layers, settings=_settings(arguments.set), dtype=arguments.dtype,
        attention=arguments.attention, pretrained=arguments.weights == "pretrained", hub=arguments.hub,
        trust_remote_code=arguments.trust_remote_code, device=arguments.device, amp=arguments.amp,
        checkpointing=arguments.checkpointing, compiled=arguments.compile, optimizer=arguments.optimizer,
        inference=arguments.inference, steps=arguments.steps, warmup=arguments.warmup, command=_command(),
    )  # fmt: skip
    with written_whole(trace) as partial, Display() as display:
        capture_model(wanted, partial, display, note)
    from opanatomy.pipeline import analyze_trace

    show(analyze_trace(trace), arguments)
    note(f"trace: {trace} (open it in ui.perfetto.dev)")
    note(f"next: opanatomy analyze {shlex.quote(str(trace))} -f json")


@dataclass(frozen=True, slots=True)
class _Bound:
    option: str
    least: int


_BOUNDS = (_Bound("batch", 1), _Bound("seq", 1), _Bound("steps", 1), _Bound("warmup", 0), _Bound("layers", 1))


def _check_numbers(arguments: argparse.Namespace) -> None:
    for bound in _BOUNDS:
        value = getattr(arguments, bound.option)
        if value is not None and value < bound.least:
            raise UsageError(f"--{bound.option} {value}: must be at least {bound.least}")
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
        if not path.name.endswith((".json", ".json.gz")):
            raise UsageError(f"--trace {path}: the name must end in .json or .json.gz")
        return path
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", arguments.model.rstrip("/").rsplit("/", 1)[-1].removesuffix(".json"))
    stem = words.strip("-.") or "model"
    path, number = Path(f"{stem}.trace.json.gz"), 1
    while path.exists() and not arguments.force:
        number += 1
        path = Path(f"{stem}-{number}.trace.json.gz")
    return path


def _command() -> str:
    return shlex.join(["opanatomy", *sys.argv[1:]])
