"""The captures that the checks look at, through the command line, each trace analyzed again from its file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from msgspec import Struct

from opanatomy.errors import OpanatomyError
from opanatomy.records.anatomy import Anatomy
from opanatomy.report import read_anatomy
from tests.support.paths import ROOT

_LONGEST_S = 300


class Run(Struct, frozen=True, kw_only=True):
    """What one command left: its report, where it could be read, its exit code and its notes."""

    command: str
    anatomy: Anatomy | None
    code: int
    notes: str
    trace: Path

    @property
    def last_line(self) -> str:
        """The last thing it said."""
        return (self.notes.strip().splitlines() or ["nothing"])[-1]


def profile(name: str, folder: Path, *words: str) -> Run:
    """Run `opanatomy profile` in a process of its own; files are called `name`."""
    trace = folder / f"{name}.trace.json.gz"
    command = [sys.executable, "-m", "opanatomy", "profile", *words, "--trace", str(trace), "--force", "-f", "json"]
    command += ["--suggest", "0"]  # predictions take as long as the run
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Run(command=" ".join(words), anatomy=None, code=-1, notes=f"longer than {_LONGEST_S} s", trace=trace)
    (folder / f"{name}.json").write_text(done.stdout)
    return Run(
        command=" ".join(words), anatomy=_report(done.stdout), code=done.returncode, notes=done.stderr, trace=trace
    )


def _report(text: str) -> Anatomy | None:
    try:
        return read_anatomy(text.encode())
    except OpanatomyError:
        return None
