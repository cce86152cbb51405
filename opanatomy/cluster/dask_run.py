"""The same work on Dask: a scheduler that runs somewhere, or workers on this machine's cores."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from typing import Any, Final

from opanatomy.cluster.work import Outcome, Task, packed_done
from opanatomy.errors import OpanatomyError, UsageError
from opanatomy.option_values import as_asked

LOCAL: Final = "local"
_INSTALL: Final = "pip install 'opanatomy[cluster]'"
_CONNECT_SECONDS: Final = 20


def on_dask(tasks: Sequence[Task], address: str, workers: int) -> Generator[Outcome, None, None]:
    """The outcomes as they come, by the workers of the scheduler at an address, or by `workers` here (`local`).

    A worker that is lost is Dask's to replace; a trace that several are lost on costs its rank. `UsageError` where
    there is no scheduler, `OpanatomyError` where its workers cannot do this work.
    """
    try:
        from distributed import as_completed
    except ImportError as error:
        raise UsageError(f"{asked(address)}: that needs dask and distributed - {_INSTALL}") from error
    with ExitStack() as stack:
        client = _client(stack, address, workers)
        futures = client.map(packed_done, tasks, pure=False, retries=1, key="opanatomy")
        places = {future.key: task.place for future, task in zip(futures, tasks, strict=True)}
        completed = as_completed(futures, loop=client.loop)
        del futures  # each is released when its outcome is here
        for future in completed:
            yield _outcome(future, places[future.key], address)


def asked(address: str | None) -> str:
    """The scheduler as the user gave it."""
    return as_asked(f"--dask {address}", f"dask={address!r}")


def _client(stack: ExitStack, address: str, workers: int) -> Any:
    """A client of the scheduler, closed with the stack."""
    from distributed import Client, LocalCluster

    try:
        if address.lower() == LOCAL:
            address = stack.enter_context(
                LocalCluster(
                    n_workers=workers, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL
                )
            ).scheduler_address
        return stack.enter_context(Client(address, timeout=_CONNECT_SECONDS, set_as_default=False))
    except (OSError, TimeoutError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"{asked(address)}: no scheduler answers there ({reason}) - start one (dask scheduler), or give local"
        ) from error


def _outcome(future: Any, place: int, address: str) -> Outcome:
    from distributed import KilledWorker

    try:
        outcome: Outcome = future.result()
    except KilledWorker as error:
        return Outcome(place=place, lost=f"Dask lost {error.allowed_failures + 1} workers on it: not enough memory?")
    except OpanatomyError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OpanatomyError(
            f"{asked(address)}: a worker cannot do the work ({type(error).__name__}: {reason}) - install this opanatomy"
            " on all workers, and look at the scheduler's log"
        ) from error
    finally:
        future.release()
    return outcome
