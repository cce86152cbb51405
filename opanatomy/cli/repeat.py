"""Run the sides of `compare --run` interleaved, each run in a fresh process, with a report for each."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Final

from msgspec import Struct

from opanatomy.capture.run.progress import Progress
from opanatomy.errors import CaptureError, OutputError, TraceError, UsageError
from opanatomy.io.files import TRACES_FOLDER, temporary
from opanatomy.options import RUNS_FOLDER, as_flag
from opanatomy.pipeline import analyze_traces
from opanatomy.records.patterns import regex
from opanatomy.report.formats import format_named
from opanatomy.report.section import Page
from opanatomy.report.units import noun

#: The last lines of a failed run that are shown.
_MAX_SHOWN_LINES: Final = 12
_ASSIGNMENT: Final = regex(r"[A-Za-z_]\w*=")


class Command(Struct, frozen=True, kw_only=True):
    """The command of one `--run`: arguments of `opanatomy profile`, or a script's with its environment."""

    text: str
    words: tuple[str, ...]
    environment: dict[str, str]
    is_script: bool


def command_of(text: str) -> Command:
    """Parse a `--run` command; raise `UsageError` if it is invalid."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--run {text!r}: {str(error).lower()} - quote the command as in a shell") from None
    if words[:1] == ["profile"]:
        return Command(text=text, words=tuple(words), environment={}, is_script=False)
    if words[:1] != ["--"]:
        raise UsageError(
            f"--run {text!r}: neither a profile command nor a script - write 'profile MODEL ...' or"
            " '-- [NAME=VALUE ...] python train.py ...'"
        )
    script = words[1:]
    environment = {}
    while script and _ASSIGNMENT.match(script[0]):
        name, _, value = script.pop(0).partition("=")
        environment[name] = value
    if not script:
        raise UsageError(f"--run {text!r}: no program after -- - write '-- python train.py ...'")
    return Command(text=text, words=tuple(script), environment=environment, is_script=True)


class Turns(Struct, frozen=True, kw_only=True):
    """Number of rounds, seed of their order, and the folder of each side."""

    commands: tuple[Command, ...]
    times: int
    seed: int
    folders: tuple[Path, ...]

    @property
    def order(self) -> list[tuple[int, int]]:
        """Return each run as (round, side): each round has every side once, in random order."""
        random = Random(self.seed)
        indices = range(len(self.commands))
        return [(turn, side) for turn in range(self.times) for side in random.sample(indices, len(indices))]


@contextmanager
def folders_for(name: str | None, sides: int) -> Iterator[tuple[Path, ...]]:
    """Give a new folder for each side: in the named one, which stays, or in a temporary one."""
    if name is None:
        with temporary("runs", "the reports of the runs") as folder:
            yield _made(folder, sides)
        return
    if not name:
        raise UsageError(f"{RUNS_FOLDER.flags[-1]}: the name is empty - pass the name of a folder")
    yield _made(Path(name), sides)


def _made(folder: Path, sides: int) -> tuple[Path, ...]:
    folders = tuple(folder / f"side-{index}" for index in range(1, sides + 1))
    try:
        for side in folders:
            side.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(
            f"{as_flag(RUNS_FOLDER, str(folder))}: it already contains runs - choose another folder"
        ) from None
    except OSError as error:
        raise OutputError(
            f"cannot create the folder {folder}: {error.strerror or error} - choose another one"
        ) from error
    return folders


def run_in_turns(turns: Turns, progress: Progress) -> Iterator[Path]:
    """Run all sides in turns; yield each run's report as soon as it is written.

    Raises `CaptureError` for the first run that fails, after its last lines on stderr.
    """
    spent: list[list[int]] = [[] for _ in turns.commands]
    order = turns.order
    for index, (turn, side) in enumerate(order):
        command = turns.commands[side]
        known = [time for times in spent for time in times]
        what = f"run {index + 1} of {len(order)} ({command.text})"
        expected_ns = round(fmean(spent[side] or known)) if known else None
        progress.stage(what, steps_after=len(order) - index - 1, expected_ns=expected_ns)
        begin = time.perf_counter_ns()
        report = turns.folders[side] / f"run-{turn + 1}.report.json"
        if command.is_script:
            _run_script(command, report, what)
        else:
            own = ("-o", os.path.abspath(report), "--no-trace", "--suggest", "0")
            _run([sys.executable, "-m", "opanatomy", *command.words, *own], {}, what)
        spent[side].append(time.perf_counter_ns() - begin)
        yield report


def _run_script(command: Command, report: Path, what: str) -> None:
    """Run a script whose recorder writes its traces into a folder of ours; write the report of these."""
    with temporary("traces", "the traces of the script") as folder:
        folder.mkdir()
        _run(command.words, {**command.environment, TRACES_FOLDER: str(folder)}, what)
        traces = sorted(folder.rglob("*.json.gz"), key=lambda path: path.name)
        if not traces:
            raise CaptureError(
                f"{what} wrote no trace - wrap the script's steps in opanatomy.record(...), or add"
                " opanatomy.TrainerCallback() to its Trainer"
            )
        if len({path.name for path in traces}) < len(traces):
            raise CaptureError(f"{what} recorded more than once - keep only one recording in the script")
        try:
            anatomy = analyze_traces(traces)
        except TraceError as error:
            raise CaptureError(f"{what}: {error}") from error
    report.write_bytes(format_named("json").encoded(anatomy, Page()))


def _run(words: Sequence[str], environment: dict[str, str], what: str) -> None:
    """Run a process to its end; if it fails, show its last lines and raise `CaptureError`."""
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env={**os.environ, **environment}
            )
        except OSError as error:
            raise CaptureError(f"{what} cannot start: {words[0]}: {error.strerror or error}") from error
        with process:
            try:
                code = process.wait()
            except BaseException:
                process.terminate()
                raise
        if code:
            from opanatomy.cli.output import note

            said.seek(0)
            for line in said.read().decode(errors="replace").splitlines()[-_MAX_SHOWN_LINES:]:
                note(f"  {line}")
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise CaptureError(f"{what} {how}")


def kept_reports(reports: Sequence[Path], folder: str | None) -> str:
    """Return which reports of runs stay."""
    return f"{noun(len(reports), 'report')} kept in {folder}" if reports and folder else "no report was kept"
