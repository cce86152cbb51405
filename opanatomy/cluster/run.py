"""The traces of a run -> the outcome of each: kept summaries first, the others on all cores or on Dask."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.cluster.code import code_digest
from opanatomy.cluster.kept import EXTRA, can_keep, kept_summaries
from opanatomy.cluster.work import Outcome, Reduce, Task, done, known
from opanatomy.errors import OpanatomyError
from opanatomy.files.remote import Address
from opanatomy.option_values import as_asked
from opanatomy.trace.sources import Source

#: What a process must have to do, in bytes of packed traces, to be worth its start; text is this many times larger.
_WORTH_BYTES: Final = 256 << 10
_PACKING: Final = 10
#: From here on a trace that takes all memory is kept from taking the run with it, on one core too.
_LARGE_BYTES: Final = 8 << 20


class ClusterSettings(Struct, frozen=True, kw_only=True):
    """How the ranks of a run are read.

    Summaries are kept in the folder (or at the address) `summaries`, without one in the user's cache folder, unless
    `keep` is off. `dask` is the address of a scheduler, or `local`. `jobs` is the number of processes; by default as
    many as there are cores, and none where there is little to do.
    """

    summaries: str | None = None
    dask: str | None = None
    jobs: int | None = None
    keep: bool = True


def outcomes(
    sources: Sequence[Source],
    reduce: Reduce,
    rules: str,
    settings: ClusterSettings,
    note: Callable[[str], None] = lambda text: None,
) -> Generator[Outcome, None, None]:
    """The outcome of each source, in any order; `rules` are what `reduce` goes by besides the trace.

    A `note` is told what does not change the report, once: that no summaries can be kept, and why.
    """
    key = hashlib.sha256(f"{code_digest()}\0{rules}".encode()).hexdigest()
    kept = kept_summaries(settings.summaries, key) if settings.keep or settings.summaries else None
    if kept is None and settings.keep and not can_keep():
        note(f"no summaries of the {len(sources)} traces are kept for the next time: that needs pyarrow - {EXTRA}")
    tasks = [Task(place=place, source=source, reduce=reduce, kept=kept) for place, source in enumerate(sources)]
    left: list[Task] = []
    for task in tasks:
        outcome = known(task)
        if outcome is None:
            left.append(task)
        else:
            yield outcome
    said = False
    with closing(_by(left, settings)) as made:
        for outcome in made:
            if outcome.code is not None and outcome.code != code_digest():
                from opanatomy.cluster.dask_run import asked

                raise OpanatomyError(
                    f"{asked(settings.dask)}: a worker has another opanatomy - install this one on all workers"
                )
            if outcome.not_kept and not said:
                said = True
                folder = as_asked("--summaries DIR", "summaries=")
                note(f"summaries are not kept: {outcome.not_kept} - give another folder by {folder}")
            yield outcome


def _by(tasks: list[Task], settings: ClusterSettings) -> Generator[Outcome, None, None]:
    """The outcomes by whatever does the work."""
    cores = _cores()
    if not tasks:
        return
    if settings.dask is not None:
        from opanatomy.cluster.dask_run import on_dask

        yield from on_dask([_anywhere(task) for task in tasks], settings.dask, settings.jobs or cores)
        return
    weight = _weight(tasks)
    jobs = settings.jobs or min(cores, max(weight // _WORTH_BYTES, int(weight >= _LARGE_BYTES)))
    jobs = min(jobs, len(tasks))
    pays = settings.jobs is not None or jobs > 1 or weight >= _LARGE_BYTES
    if pays and len(tasks) > 1 and sys.executable and not any(map(_in_memory, tasks)):
        from opanatomy.cluster.pool import pooled

        yield from pooled(tasks, jobs)
        return
    yield from map(done, tasks)


def _in_memory(task: Task) -> bool:
    """Whether the trace is in the memory of this process (`memory://`), where no other one finds it."""
    path = task.source.path
    return isinstance(path, Address) and "memory:" in path.text


def _anywhere(task: Task) -> Task:
    """The task with names that another process of this machine, or one that shares its folders, understands."""
    path = task.source.path
    return (
        replace(task, source=replace(task.source, path=Path(os.path.abspath(path)))) if isinstance(path, Path) else task
    )


def _weight(tasks: Sequence[Task]) -> int:
    """The bytes of the traces as if all were packed; of those at addresses as much as makes processes worth it."""
    sizes: dict[Path | Address, int] = {}
    for task in tasks:
        path = task.source.path
        if isinstance(path, Address):
            sizes[path] = _WORTH_BYTES
        elif path not in sizes:
            sizes[path] = _size(path)
    return sum(sizes.values())


def _size(path: Path) -> int:
    try:
        return os.path.getsize(path) // (_PACKING if path.suffix == ".json" else 1)
    except OSError:
        return 0


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # no Linux
        return os.cpu_count() or 1
