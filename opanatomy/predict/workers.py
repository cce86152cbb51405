"""One fresh process a job: what one run leaves behind (a cache, a setting, an override) no other one sees."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.errors import CaptureError, OpanatomyError, OutOfMemory
from opanatomy.options import RunOptions
from opanatomy.records.experiment import Sameness, SimulatedStep, Underflow

Result = TypeVar("Result")

#: How long a process that is done may take to end.
_GRACE_S: Final = 30
#: The module whose imports each process begins with.
_PRELOAD: Final = "opanatomy.predict.preload"


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


# What a fresh process does for an experiment: follow a step on fake tensors, capture one, or time some.


class Planned(Struct, frozen=True, kw_only=True):
    """What a run will run, as far as that is known without weights."""

    device: str
    batch: int
    #: Those of the longest stack; `None` where no stack is known.
    layers: int | None
    #: Those that freezing counts: of an encoder and a decoder all, of several towers those of the shortest.
    freezable_layers: int | None
    #: The implementation of attention in force.
    attention: str | None


def planned(options: RunOptions) -> Planned:
    """The device, the batch and the layers of a run; raises where the model cannot be."""
    from opanatomy.capture.device.environment import choose_device
    from opanatomy.capture.model.workload import BATCH, plan_of

    plan = plan_of(options)
    stacks = () if plan is None else plan.stacks
    through_all = plan is not None and bool(getattr(plan.config, "is_encoder_decoder", False))
    return Planned(
        device=choose_device(options.device), batch=options.batch or BATCH, layers=max(stacks, default=None),
        freezable_layers=(sum(stacks) if through_all else min(stacks)) if stacks else None,
        attention=None if plan is None else plan.attention,
    )  # fmt: skip


def simulated(options: RunOptions) -> SimulatedStep:
    """What the step would call and allocate."""
    from opanatomy.predict.fake import simulate

    return simulate(options)


def captured(options: RunOptions, trace: str, command: str) -> None:
    """Capture the step into the file `trace`, its memory with it."""
    from opanatomy.capture.run.profile import capture_model
    from opanatomy.capture.run.progress import NullProgress

    capture_model(options, Path(trace), NullProgress(), lambda text: None, command=command)


def timed(options: RunOptions) -> tuple[int, ...]:
    """The wall times of some steps after the warm-up, in nanoseconds."""
    from opanatomy.capture.run.unprofiled import step_times

    return step_times(options)


def followed(runs: Sequence[RunOptions]) -> Iterator[SimulatedStep | str]:
    """`simulated` of each run in turn, or why it cannot be: fake tensors leave nothing behind for the next."""
    for options in runs:
        try:
            yield simulated(options)
        except OpanatomyError as error:
            yield str(error)


def kept_outcome(options: RunOptions, folder: str) -> float | None:
    """Keep what one step makes in the folder; its loss."""
    from opanatomy.capture.run.unprofiled import keep_outcome

    return keep_outcome(options, Path(folder))


def compared(options: RunOptions, baseline: RunOptions, folder: str, loss: float | None) -> Sameness:
    """What one step makes compared with what was kept, and the first operator that makes a difference."""
    from opanatomy.capture.run.unprofiled import compare_outcome, first_difference

    sameness = compare_outcome(options, Path(folder), loss)
    return sameness if sameness.same else replace(sameness, first_operator=first_difference(options, baseline))


def losses(options: RunOptions, steps: int) -> tuple[float, ...]:
    """The losses of some steps."""
    from opanatomy.capture.run import unprofiled

    return unprofiled.losses(options, steps)


def underflow(options: RunOptions) -> Underflow:
    """The gradients that float16 makes zero."""
    from opanatomy.capture.run.unprofiled import gradient_underflow

    return gradient_underflow(options)
