"""`python -m opanatomy ...` as a process: forked from one that has imported torch, or started from nothing.

Where a test is of what the command says and does, a fork of a process that has all modules saves the seconds in which
torch and transformers are imported; nothing else of that process has run. Where it is of the start, of limits or of
signals, `started` is a process of its own.
"""

from __future__ import annotations

import gc
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
    *arguments: str, cwd: Path, timeout: float = 120, environment: Mapping[str, str] | None = None,
    data_bytes: int | None = None,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """What the command did, as a fork; with `data_bytes` it may have no more private memory (RLIMIT_DATA)."""
    if not hasattr(os, "fork") and data_bytes is None:
        return started(*arguments, cwd=cwd, timeout=timeout)
    return Fork(*arguments, cwd=cwd, timeout=timeout, environment=environment, data_bytes=data_bytes).wait()


def run_code(code: str, *arguments: str, cwd: Path = ROOT, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """What `python -c` does with this code, as a fork."""
    return Fork(*arguments, cwd=cwd, timeout=timeout, code=code).wait()


class Fork:
    """A command, or some code, that runs as a fork."""

    def __init__(
        self, *arguments: str, cwd: Path, timeout: float = 120, code: str | None = None,
        environment: Mapping[str, str] | None = None, data_bytes: int | None = None,
    ) -> None:  # fmt: skip
        self._arguments = arguments
        self._folder = tempfile.TemporaryDirectory()
        self.stdout, self.stderr = (Path(self._folder.name, name) for name in ("stdout", "stderr"))
        for file in (self.stdout, self.stderr):
            file.touch()
        request = {
            "arguments": arguments, "cwd": str(cwd), "environment": {**ENVIRONMENT, **(environment or {})},
            "files": [str(self.stdout), str(self.stderr)], "timeout": timeout, "code": code, "data_bytes": data_bytes,
        }  # fmt: skip
        self.pid = _server().ask(request)

    def wait(self) -> subprocess.CompletedProcess[str]:
        """What it did, when it has ended."""
        exit_code = _server().ask({"wait": self.pid})
        out, err = (file.read_bytes().decode() for file in (self.stdout, self.stderr))
        self._folder.cleanup()
        return subprocess.CompletedProcess(["opanatomy", *self._arguments], exit_code, out, err)


class Server:
    """A process that forks one child for each request and says how it ended."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVED], cwd=ROOT, env={**os.environ, **ENVIRONMENT}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, request: Mapping[str, Any]) -> int:
        """The number of the process that begins, or the exit code of the one to wait for."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


@cache
def _server() -> Server:
    return Server()


# ------------------------------------------------------------------------------------------------- inside the server


def serve() -> None:
    """Answer each line on stdin: a child that is forked by its number, one that is waited for by its exit code."""
    _import_all()
    # What was imported is not looked at by each collection of each child, which would copy its pages too.
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])  # below 0 a signal's number
        else:
            answer = os.fork()
            if answer == 0:
                _be_the_command(**request)
        print(answer, file=answers, flush=True)


def _import_all() -> None:
    """All of this project, and of others what a run on the CPU imports, so that no child has to."""
    import importlib
    import pkgutil

    import accelerate  # noqa: F401  # of runs on several ranks
    import transformers.models.bert.modeling_bert  # noqa: F401  # the model that most of these runs build

    import opanatomy

    for module in pkgutil.walk_packages(opanatomy.__path__, "opanatomy."):
        importlib.import_module(module.name)


def _be_the_command(
    arguments: list[str], cwd: str, environment: Mapping[str, str], files: list[str], timeout: float, code: str | None,
    data_bytes: int | None,
) -> None:  # fmt: skip
    import atexit
    import signal

    exit_code: Any = 1
    try:
        signal.alarm(round(timeout))
        os.chdir(cwd)
        os.environ.update(environment)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, file in enumerate(files, start=1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
        sys.path[0] = cwd
        if data_bytes is not None:
            import resource

            resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
        exit_code = _main(arguments) if code is None else _exec(code, arguments)
    except SystemExit as end:
        exit_code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]  # there is an exception
    finally:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(exit_code if isinstance(exit_code, int) else exit_code is not None)


def _main(arguments: list[str]) -> int:
    from opanatomy.__main__ import main

    sys.argv = ["opanatomy", *arguments]
    return main()


def _exec(code: str, arguments: list[str]) -> int:
    sys.argv = ["-c", *arguments]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    return 0
