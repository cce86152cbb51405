"""One fresh process a job: what one run leaves behind (a cache, a setting, an override) no other one sees."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any, Final, TypeVar

from msgspec import Struct

from opanatomy.errors import CaptureError, OpanatomyError, OutOfMemory

Result = TypeVar("Result")

#: How long a process that is done may take to end.
_GRACE_S: Final = 30
#: The module whose imports each process begins with.
_PRELOAD: Final = "opanatomy.techniques.preload"


class JobFailed(OpanatomyError):
    """A job that did not end well; the message says why."""


class _Outcome(Struct, frozen=True, kw_only=True):
    """What a process sends back."""

    value: Any = None
    done: bool = False
    error: str | None = None


@cache
def _context() -> Any:
    """Processes forked from a server that has imported torch and run nothing; new interpreters where there is none."""
    if sys.platform == "win32":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_PRELOAD])
    return context


def run_job(job: Callable[..., Result], *arguments: Any) -> Result:
    """What `job`, a function of a module, gives in a fresh process; `JobFailed` where it does not."""
    results: list[Result] = list(run_jobs(_once, job, *arguments))
    return results[0]


def _once(job: Callable[..., Result], *arguments: Any) -> Iterator[Result]:
    yield job(*arguments)


def run_jobs(job: Callable[..., Iterable[Result]], *arguments: Any) -> Iterator[Result]:
    """Each thing that `job` gives in a fresh process, as soon as it is there; `JobFailed` where it breaks off."""
    context = _context()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, dict(os.environ), job, arguments), daemon=False)
    process.start()
    theirs.close()
    try:
        while True:
            outcome = _received(ours)
            if outcome is None:
                process.join(timeout=_GRACE_S)
                raise JobFailed(_died(process.exitcode))
            if outcome.error is not None:
                raise JobFailed(outcome.error)
            if outcome.done:
                return
            yield outcome.value
    finally:
        ours.close()
        _end(process)


def _received(connection: Any) -> _Outcome | None:
    try:
        outcome: _Outcome = connection.recv()
    except (EOFError, OSError):
        return None
    return outcome


def _end(process: Any) -> None:
    """Wait for the process; one that an interrupt leaves behind is ended."""
    process.join(timeout=_GRACE_S)
    if process.is_alive():
        process.terminate()
        process.join()


def _died(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        cause = ": the system ends a process so when memory runs out" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{cause}"
    return f"its process ended with exit code {code}"


def _child(connection: Any, environment: dict[str, str], job: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Run the job and send what it gives, one thing after the other, then what became of it.

    The server keeps the environment in which it was begun; a secret is known by that of the process that asks.
    """
    os.environ.clear()
    os.environ.update(environment)
    try:
        for value in job(*arguments):
            connection.send(_Outcome(value=value))
        outcome = _Outcome(done=True)
    except BrokenPipeError:
        return  # nobody waits any more
    except KeyboardInterrupt:
        return
    except (OutOfMemory, CaptureError, OpanatomyError) as error:
        outcome = _Outcome(error=str(error))
    except Exception as error:
        outcome = _Outcome(error=f"{type(error).__name__}: {error}")
    with suppress(BrokenPipeError):  # nobody waits any more
        connection.send(outcome)
    connection.close()
