"""`python -m opanatomy ...` as a process: forked from one that has imported torch, or started from nothing.

Where a test is of what the command says and does, a fork of a process that has all modules saves the seconds in which
torch and transformers are imported; nothing else of that process has run. Where it is of the start, of limits or of
signals, `started` is a process of its own.
"""

from __future__ import annotations

import atexit
import multiprocessing.forkserver
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from tests.support.paths import ROOT

#: One thread each: where all cores have a test to run, more threads only wait for each other.
ENVIRONMENT: Final = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "COLUMNS": "80", "OMP_NUM_THREADS": "1"}
#: Runs a script, behind the words of a launcher.
UNDER: Final = ("-m", "opanatomy", "run")
#: That of no test.
_AT_FIRST: Final = dict(os.environ)


def started(*arguments: str, cwd: Path, timeout: float = 120, **options: Any) -> subprocess.CompletedProcess[str]:
    """What the command did, as a process of its own from the first import on."""
    return subprocess.run(
        [sys.executable, "-m", "opanatomy", *arguments],
        cwd=cwd,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        **options,
    )


def run(
    *arguments: str,
    cwd: Path,
    timeout: float = 120,
    environment: Mapping[str, str] | None = None,
    data_bytes: int | None = None,
) -> subprocess.CompletedProcess[str]:
    """What the command did, as a fork; with `data_bytes` it may have no more private memory (RLIMIT_DATA)."""
    if not hasattr(os, "fork") and data_bytes is None:
        return started(*arguments, cwd=cwd, timeout=timeout)
    return Fork(*arguments, cwd=cwd, timeout=timeout, environment=environment, data_bytes=data_bytes).wait()


def run_code(code: str, *arguments: str, cwd: Path = ROOT, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """What `python -c` does with this code, as a fork."""
    return Fork(*arguments, cwd=cwd, timeout=timeout, code=code).wait()


def python(*words: str | Path, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """What a Python of its own did with these words; gloo's threads may abort a process that is done, then again."""
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, *map(str, words)],
            cwd=cwd,
            env={**os.environ, **ENVIRONMENT},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if "terminate called without an active exception" not in done.stderr:
            break
    return done


def left_in(folder: Path) -> list[str]:
    """The names of what is in a folder."""
    return sorted(path.name for path in folder.iterdir())


class Fork:
    """A command, or some code, that runs as a fork."""

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        timeout: float = 120,
        code: str | None = None,
        environment: Mapping[str, str] | None = None,
        data_bytes: int | None = None,
    ) -> None:
        self._arguments = arguments
        self._folder = tempfile.TemporaryDirectory()
        self.stdout, self.stderr = (Path(self._folder.name, name) for name in ("stdout", "stderr"))
        for file in (self.stdout, self.stderr):
            file.touch()
        request = {
            "arguments": arguments,
            "cwd": str(cwd),
            "environment": {**ENVIRONMENT, **(environment or {})},
            "files": [str(self.stdout), str(self.stderr)],
            "timeout": timeout,
            "code": code,
            "data_bytes": data_bytes,
        }
        self.pid = _server().ask(request)

    def wait(self) -> subprocess.CompletedProcess[str]:
        """What it did, when it has ended."""
        exit_code = _server().ask({"wait": self.pid})
        out, err = (file.read_bytes().decode() for file in (self.stdout, self.stderr))
        self._folder.cleanup()
        return subprocess.CompletedProcess(["opanatomy", *self._arguments], exit_code, out, err)


def begun(context: Any) -> Any:
    """The context of an experiment's processes, whose server is begun as of no test.

    In the folder of a test it would not find what it is to import, and each process would import all by itself.
    """
    now = dict(os.environ)
    try:
        os.environ.clear()
        os.environ.update({**_AT_FIRST, **ENVIRONMENT})
        multiprocessing.forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(now)
    return context


class Server:
    """A process that forks one child for each request and says how it ended.

    It is one that the server of an experiment's processes forks (`workers._context`): both have the same imports, which
    take seconds.
    """

    def __init__(self) -> None:
        from opanatomy.predict import workers

        context = workers._context()
        self._connection, theirs = context.Pipe()
        context.Process(target=serve, args=(theirs,)).start()
        theirs.close()
        # The process ends with the connection, and this one waits for it.
        atexit.register(self._connection.close)

    def ask(self, request: Mapping[str, Any]) -> int:
        """The number of the process that begins, or the exit code of the one to wait for."""
        self._connection.send(request)
        answer: int = self._connection.recv()
        return answer


@cache
def _server() -> Server:
    return Server()


# ------------------------------------------------------------------------------------------------- inside the server


def serve(connection: Connection) -> None:
    """Answer each request: a child that is forked by its number, one that is waited for by its exit code."""
    import tests.support.preload

    sys.path[:] = tests.support.preload.PATH
    _fork_jobs()
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])  # below 0 a signal's number
        else:
            answer = os.fork()
            if answer == 0:
                connection.close()
                _be_the_command(**request)
        connection.send(answer)


def _fork_jobs() -> None:
    """The processes that a command begins (`run_job`) are forks of it: it has the imports that their server would make.

    `test_techniques.py` begins its own with the server itself.
    """
    from opanatomy.predict import workers

    workers._context = lambda: multiprocessing.get_context("fork")  # type: ignore[assignment]


def _be_the_command(
    arguments: list[str],
    cwd: str,
    environment: Mapping[str, str],
    files: list[str],
    timeout: float,
    code: str | None,
    data_bytes: int | None,
) -> None:
    import signal

    exit_code: Any = 1
    try:
        signal.alarm(round(timeout))
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the server ignores it
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
