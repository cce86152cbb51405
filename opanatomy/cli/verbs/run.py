"""Run `opanatomy run train.py ARGS...`: hand this process to Python and the script, followed from inside."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from opanatomy.errors import UsageError
from opanatomy.options import PAGE, REDACT, REPORT, SCRIPT, Kind, Option

if TYPE_CHECKING:
    from opanatomy.script import RunSettings

DESCRIPTION: Final = (
    "Run an unmodified training script, profile some of its steps and report on them when it ends. Its output, exit"
    " code, signals and results are unchanged; the report goes to stderr. With several ranks: torchrun ... -m opanatomy"
    " run train.py, or accelerate launch ... -m opanatomy run train.py."
)
OPTIONS: Final = SCRIPT
#: The options that help shows first, by name.
MOST_USED: Final = ("steps", "after", "stop", "memory", "lines", "output", "full")
EXAMPLES: Final = (
    ("a script with its arguments", "opanatomy run train.py --lr 1e-4"),
    ("steps 101 to 103, as an interactive page, then stop", "opanatomy run --after 100 --stop -o step.html train.py"),
    ("five steps of a module", "opanatomy run --steps 5 -m project.train --lr 1e-4"),
)


def run(arguments: argparse.Namespace) -> None:
    """Check what can be known before, and become the script."""
    from opanatomy.cli.output import destination, in_folder, stem_of, typed_command
    from opanatomy.io.files import output_file
    from opanatomy.script import RunSettings

    given = arguments.script[arguments.script[:1] == ["--"] :]
    if not given:
        raise UsageError("run: no script - write opanatomy run [options] train.py [its arguments]")
    if not arguments.module and not os.path.exists(given[0]):
        python = os.path.basename(given[0]).startswith("python") and len(given) > 1
        todo = f"leave out {given[0]}" if python else "pass the path of a script; its options follow its name"
        raise UsageError(f"run: no script {given[0]} - {todo}")
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise UsageError("run: python -E, -I and -S prevent opanatomy from following the script - leave them out")
    name = given[0].rsplit(".", 1)[-1] if arguments.module else os.path.basename(given[0])
    stem = stem_of(name.removesuffix(".py")) or "script"
    with in_folder(arguments.trace or os.curdir, f"{stem}.trace.json.gz") as (trace, numbered):
        if not trace.name.endswith((".json", ".json.gz")):
            raise UsageError(f"--trace {trace}: the name must end in .json or .json.gz")
        instead = "write the trace elsewhere with --trace FILE"
        output_file(trace, force=arguments.force, numbered=numbered, instead=instead)
        with destination(arguments, stem=stem, traces=[trace], stream=sys.stderr):
            pass
        settings = RunSettings(
            process=os.getpid(),
            path=os.environ.get("PYTHONPATH"),
            folder=os.getcwd(),
            trace=os.path.abspath(trace),
            numbered=numbered,
            command=typed_command(),
            words=tuple(_words(arguments)),
            steps=arguments.steps,
            after=arguments.after,
            stop=arguments.stop,
            memory=arguments.memory,
            lines=arguments.lines,
            check=not arguments.no_check,
            redact=arguments.redact,
            force=arguments.force,
        )
    _become([*_interpreter(), *(["-m"] if arguments.module else []), *given], settings)


def _words(arguments: argparse.Namespace) -> list[str]:
    """Return the report options as arguments of `analyze`."""
    words: list[str] = []
    for option in (*REPORT, *PAGE, REDACT):
        value = getattr(arguments, option.name)
        if value != option.default and value:
            words += _spelled(option, value)
    return words


def _spelled(option: Option, value: Any) -> list[str]:
    flag = option.flags[-1]
    if option.kind is Kind.SWITCH:
        return [flag]
    return [word for one in (value if isinstance(value, list) else [value]) for word in (flag, str(one))]


def _interpreter() -> list[str]:
    """Return this Python with the options that it was started with."""
    words, kept = iter(sys.orig_argv[1:]), [sys.executable]
    for word in words:
        if not word.startswith("-") or word.startswith(("-m", "-c")):
            break
        kept += [word, next(words)] if word in ("-W", "-X") else [word]
    return kept


def _become(words: list[str], settings: RunSettings) -> None:
    from opanatomy.capture import loop

    start = os.path.join(os.path.dirname(os.path.abspath(loop.__file__)), "start")
    path = os.pathsep.join(filter(None, (start, settings.path)))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(
        sys.executable,
        words,
        {**os.environ, "PYTHONPATH": path, "OPANATOMY_RUN": settings.text},
    )
