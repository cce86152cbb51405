"""`python -m opanatomy ...` as a process: forked from one that has imported torch, or started from nothing.

Where a test is of what the command says and does, a fork of a process that has all modules saves the seconds in which
torch and transformers are imported; nothing else of that process has run. Where it is of the start, of limits or of
signals, `started` is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
#: One thread each: where all cores have a test to run, more threads only wait for each other.
ENVIRONMENT: Final = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "COLUMNS": "80", "OMP_NUM_THREADS": "1"}
_SERVED = "import tests.command as command; command.serve()"


def started(*arguments: str, cwd: Path, timeout: float = 120, **options: Any) -> subprocess.CompletedProcess[str]:
    """What the command did, as a process of its own from the first import on."""
    return subprocess.run(
        [sys.executable, "-m", "opanatomy", *arguments],
        cwd=cwd, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=timeout, check=False,
        **options,
    )  # fmt: skip


def run(
    *arguments: str, cwd: Path, timeout: float = 120, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What the command did, as a fork."""
    if not hasattr(os, "fork"):
        return started(*arguments, cwd=cwd, timeout=timeout)
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder, name)) for name in ("stdout", "stderr")]
        code = _server().ask([list(arguments), str(cwd), {**ENVIRONMENT, **(environment or {})}, files, timeout])
        out, err = (Path(file).read_bytes().decode() for file in files)
    return subprocess.CompletedProcess(["opanatomy", *arguments], code, out, err)


class Server:
    """A process that forks one child for each request and says how it ended."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVED], cwd=ROOT, env={**os.environ, **ENVIRONMENT}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, request: list[Any]) -> int:
        """The exit code of a command."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


@cache
def _server() -> Server:
    return Server()


# ------------------------------------------------------------------------------------------------- inside the server


def serve() -> None:
    """Fork a child for each line on stdin, one after the other; its exit code on stdout, below 0 a signal's number."""
    _import_all()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _be_the_command(*request)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)


def _import_all() -> None:
    """All of this project, and of others what a run on the CPU imports, so that no child has to."""
    import importlib
    import pkgutil

    import transformers.models.bert.modeling_bert  # noqa: F401  # the model that most of these runs build

    import opanatomy

    for module in pkgutil.walk_packages(opanatomy.__path__, "opanatomy."):
        importlib.import_module(module.name)


def _be_the_command(
    arguments: list[str], cwd: str, environment: Mapping[str, str], files: list[str], timeout: float
) -> None:
    import atexit
    import signal

    from opanatomy.__main__ import main

    code: Any = 1
    try:
        signal.alarm(round(timeout))
        os.chdir(cwd)
        os.environ.update(environment)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, file in enumerate(files, start=1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
        sys.argv = ["opanatomy", *arguments]
        sys.path[0] = cwd
        code = main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]  # there is an exception
    finally:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code if isinstance(code, int) else 1)
