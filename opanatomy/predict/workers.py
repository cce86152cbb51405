"""Run each job in a fresh process, so that no cache, setting or override of one run affects another."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from multiprocessing import forkserver
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.errors import CaptureError, OpanatomyError, OutOfMemory, failed_import
from opanatomy.levers import Context
from opanatomy.options import RunOptions
from opanatomy.predict.absent import Gpu
from opanatomy.predict.price import CallKey
from opanatomy.records.experiment import Repetition, Sameness, SimulatedStep, Underflow

Result = TypeVar("Result")

#: The seconds that a finished process may take to end.
_GRACE_S: Final = 30
#: The module imported in advance in each process.
_PRELOAD: Final = "opanatomy.predict.preload"


class JobFailed(OpanatomyError):
    """Raised for a job that failed; the message says why."""


class _Outcome(Struct, frozen=True, kw_only=True):
    """The result that a process sends back."""

    value: Any = None
    done: bool = False
    error: str | None = None


@cache
def _context() -> Any:
    """Return a context that forks processes from a server with torch imported, else new interpreters."""
    if sys.platform == "win32":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_PRELOAD])
    # The server imports torch for seconds: an interrupt, which the terminal sends to all, would be a traceback there.
    with _without_interrupts():
        forkserver.ensure_running()
    return context


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ignore SIGINT in the block, and in a process that it begins; not in another thread, which cannot set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the program's main module, which a new process would run again; no job needs it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def run_job(job: Callable[..., Result], *arguments: Any) -> Result:
    """Return the result of `job`, a module's function, in a fresh process; raise `JobFailed` if it fails."""
    results: list[Result] = list(run_jobs(_once, job, *arguments))
    return results[0]


def _once(job: Callable[..., Result], *arguments: Any) -> Iterator[Result]:
    yield job(*arguments)


def run_jobs(job: Callable[..., Iterable[Result]], *arguments: Any) -> Iterator[Result]:
    """Yield each result of `job` in a fresh process as it arrives; raise `JobFailed` if the job fails."""
    context = _context()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, dict(os.environ), job, arguments), daemon=False)
    with _without_main():
        process.start()
    theirs.close()
    try:
        while True:
            try:
                outcome: _Outcome = ours.recv()
            except (EOFError, OSError):
                process.join(timeout=_GRACE_S)
                raise JobFailed(_died(process.exitcode)) from None
            if outcome.error is not None:
                raise JobFailed(outcome.error)
            if outcome.done:
                return
            yield outcome.value
    finally:
        ours.close()
        process.join(timeout=_GRACE_S)
        if process.is_alive():  # an interrupt left it behind
            process.terminate()
            process.join()


def _died(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        cause = ": the system kills processes this way when memory runs out" if name == "SIGKILL" else ""
        return f"its process was killed by {name}{cause}"
    return f"its process ended with exit code {code}"


def _child(connection: Any, environment: dict[str, str], job: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Run the job and send its results one after the other, then its outcome.

    The server keeps its initial environment; secrets are taken from the requesting process's environment.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server ignores it
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
        outcome = _Outcome(error=failed_import(error) or f"{type(error).__name__}: {error}")
    with suppress(BrokenPipeError):  # nobody waits any more
        connection.send(outcome)
    connection.close()


# The jobs of an experiment: follow a step on fake tensors, capture one, or time some.


def lever_context(options: RunOptions) -> Context:
    """Return what levers apply to, as far as known without weights; raise if the model cannot be made."""
    from opanatomy.capture.device.environment import choose_device
    from opanatomy.capture.model.workload import BATCH, plan_of

    plan = plan_of(options)
    stacks = () if plan is None else plan.stacks
    through_all = plan is not None and bool(getattr(plan.config, "is_encoder_decoder", False))
    return Context(
        run=options,
        batch=options.batch or BATCH,
        layers=max(stacks, default=None),
        freezable_layers=(sum(stacks) if through_all else min(stacks)) if stacks else None,
        attention=None if plan is None else plan.attention,
        on_cpu=choose_device(options.device) == "cpu",
    )


def captured(options: RunOptions, trace: str, command: str) -> None:
    """Capture the step, with its memory, into the file `trace`."""
    from opanatomy.capture.run.profile import capture_model
    from opanatomy.capture.run.progress import NullProgress

    capture_model(options, Path(trace), NullProgress(), lambda text: None, command=command)


def timed(options: RunOptions) -> Repetition:
    """Return the wall times of some steps after the warm-up, and the load of the machine."""
    from opanatomy.capture.run.unprofiled import step_times

    return step_times(options)


_INTERRUPTED: Final = "the process that simulates steps on fake tensors ended before this step"
#: Which calls of a step to run by themselves.
Samples: TypeAlias = Literal["all", "foreign", "none"]


class Followed(Struct, frozen=True, kw_only=True):
    """A step on fake tensors, or why it cannot be followed, and the calls that were run by themselves for it.

    `load` is the share of the device taken by other work during sampling.
    """

    step: SimulatedStep | str
    sampled: dict[CallKey, float] = {}
    load: float = 0.0


def followed(
    runs: Iterable[RunOptions],
    deadline: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    *,
    samples: Samples = "all",
    gpu: Gpu | None = None,
) -> Iterator[Followed]:
    """Yield each run's simulated step in turn; fake tensors leave nothing behind for the next.

    Calls are sampled until `deadline`, and a step that would end later, judging by the previous one, is not simulated;
    the first two always are. `samples` selects all calls, only those of other libraries' operators, whose memory fake
    tensors do not show, or none. With a `gpu` the steps run on that simulated GPU, and nothing is sampled.
    """
    from opanatomy.capture.device.environment import choose_device
    from opanatomy.predict.fake import simulate
    from opanatomy.predict.sampling import Sampling

    sampling, took = None, 0.0
    for index, options in enumerate(runs):
        begun = clock()
        if index > 1 and deadline is not None and begun + took * options.accumulate > deadline:
            yield Followed(step="the time budget ran out before this step could be simulated")
            continue
        try:
            if sampling is None and gpu is None:
                device = choose_device(options.device)
                sampling = Sampling(device, whole=samples == "all", deadline=deadline, clock=clock)
            known = set() if sampling is None else set(sampling.times)
            step = simulate(options, None if samples == "none" else sampling, gpu)
            took = (clock() - begun) / options.accumulate
            if sampling is None:
                yield Followed(step=step)
                continue
            new = {key: sampling.times[key] for key in sampling.times.keys() - known}
            yield Followed(step=step, sampled=new, load=sampling.load)
        except OpanatomyError as error:
            yield Followed(step=str(error))


def simulate_in_process(
    runs: Sequence[RunOptions], samples: Samples = "all", deadline: float | None = None, gpu: Gpu | None = None
) -> Iterator[Followed]:
    """Yield `followed` of each run in turn, from a fresh process.

    If that process dies, a call crashed on arbitrary values: the remaining runs are simulated without samples.
    """
    left = list(runs)
    while left:
        results = run_jobs(partial(followed, deadline=deadline, samples=samples, gpu=gpu), tuple(left))
        try:
            for _ in tuple(left):
                yield next(results)
                left.pop(0)
        except JobFailed as error:
            if samples == "none":
                yield from [Followed(step=str(error)), *[Followed(step=_INTERRUPTED)] * (len(left) - 1)]
                return
            samples = "none"


def kept_outcome(options: RunOptions, folder: str) -> float | None:
    """Keep the result of one step in the folder; return its loss."""
    from opanatomy.capture.run.unprofiled import keep_outcome

    return keep_outcome(options, Path(folder))


def compared(options: RunOptions, baseline: RunOptions, folder: str, loss: float | None) -> Sameness:
    """Compare one step's outcome with the stored one, and find the first operator that differs."""
    from opanatomy.capture.run.unprofiled import compare_outcome, first_difference

    sameness = compare_outcome(options, Path(folder), loss)
    return sameness if sameness.same else replace(sameness, first_operator=first_difference(options, baseline))


def losses(options: RunOptions, steps: int) -> tuple[float, ...]:
    """Return the losses of some steps."""
    from opanatomy.capture.run import unprofiled

    return unprofiled.losses(options, steps)


def underflow(options: RunOptions) -> Underflow:
    """Return the gradients that underflow in float16."""
    from opanatomy.capture.run.unprofiled import gradient_underflow

    return gradient_underflow(options)
