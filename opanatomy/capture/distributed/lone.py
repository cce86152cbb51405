"""A process that was meant to be one of several: `accelerate launch --cpu --num_processes 2` silently starts one."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import PurePath
from typing import Any

from msgspec import Struct

from opanatomy.launched import launched


class Meant(Struct, frozen=True, kw_only=True):
    """What `accelerate launch` was given: how many processes of which command."""

    processes: int
    command: tuple[str, ...]


def lone_process() -> tuple[str, ...]:
    """What to say of a run on one process whose launcher was told to start several; nothing where all is well."""
    if launched() is not None or not any(name.startswith("ACCELERATE_") for name in os.environ):
        return ()
    meant = meant_by(_parents_command())
    if meant is None or meant.processes < 2:
        return ()
    several = ["accelerate", "launch", "--multi_gpu", "--num_processes", str(meant.processes), *meant.command]
    return (
        f"1 process ran, not the {meant.processes} that accelerate launch was told to start: without several GPUs it"
        f" starts one (accelerate#2741); that many run with: ACCELERATE_USE_CPU=true {shlex.join(several)}",
    )


def meant_by(command: Sequence[str]) -> Meant | None:
    """What a command line of `accelerate launch` asks for, its configuration file read; `None` for another one."""
    words = _of_launch(command)
    if words is None:
        return None
    try:
        from accelerate.commands.launch import _validate_launch_command, launch_command_parser

        with _silence():
            arguments: Any = launch_command_parser().parse_args(words)
            arguments = _validate_launch_command(arguments)[0]
    except (Exception, SystemExit):
        return None
    script = (*(("--module",) if arguments.module else ()), arguments.training_script, *arguments.training_script_args)
    return Meant(processes=arguments.num_processes or 1, command=tuple(script))


def _of_launch(command: Sequence[str]) -> list[str] | None:
    """The words after `accelerate launch`, however it was invoked."""
    for place, word in enumerate(command[:4]):
        name = PurePath(word).name
        if name in ("accelerate-launch", "accelerate.commands.launch") or word.endswith("commands/launch.py"):
            return list(command[place + 1 :])
        if name in ("accelerate", "accelerate_cli.py", "accelerate.commands.accelerate_cli"):
            return list(command[place + 2 :]) if command[place + 1 : place + 2] == ["launch"] else None
    return None


def _parents_command() -> list[str]:
    try:
        import psutil  # Accelerate needs it too

        parent = psutil.Process().parent()
        return [] if parent is None else list(parent.cmdline())
    except Exception:
        return []


@contextmanager
def _silence() -> Iterator[None]:
    """Accelerate complains of what was left out once more."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(before)
