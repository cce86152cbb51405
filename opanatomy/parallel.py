"""Reduce the traces of a run to summaries: cached ones first, the others on all cores or on Dask.

A bad trace only affects its own rank, and the order of outcomes does not matter.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import re
import signal
import struct
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias, get_type_hints

import msgspec
import numpy as np
from isal import isal_zlib
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.errors import OpanatomyError, TraceError, UsageError
from opanatomy.io.files import Address, cache_folder, identity_of, read_bytes, replacing, write_bytes
from opanatomy.io.sources import Source
from opanatomy.options import as_asked
from opanatomy.records.anatomy import Anatomy, RankSummary
from opanatomy.records.columns import Categorical, Int64
from opanatomy.records.work import plain, typed
from opanatomy.trace.stream import sha256_of


@cache
def code_digest() -> str:
    """Return a digest of the program's own files: summaries of other code are not used."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


# A rank's summary as bytes, and back: MessagePack, with the bytes of its columns.


#: Names of the fields of a column: its numbers, truths, or codes and values.
_NUMBERS, _TRUTHS, _CODES, _VALUES = "numbers", "truths", "codes", "values"


def packed_summary(summary: RankSummary) -> bytes:
    """Pack the summary in few bytes."""
    values: dict[str, Any] = {}
    for name in RankSummary.__struct_fields__:
        value = getattr(summary, name)
        if is_table(type(value)):
            value = {column: _packed_column(getattr(value, column)) for column in value.__struct_fields__}
        values[name] = value
    data: bytes = isal_zlib.compress(msgspec.msgpack.encode(values, enc_hook=plain), 1)
    return data


def unpacked_summary(data: bytes) -> RankSummary:
    """Unpack a summary; raise an error of any kind for other bytes."""
    kinds = kinds_of_fields()
    raw = msgspec.msgpack.decode(isal_zlib.decompress(data), type=dict[str, msgspec.Raw])
    values: dict[str, Any] = {}
    for name, value in raw.items():
        if is_table(kinds[name]):
            columns = _decoder(dict[str, dict[str, Any]]).decode(value)
            values[name] = kinds[name](**{column: _unpacked_column(each) for column, each in columns.items()})
        else:
            values[name] = _decoder(kinds[name]).decode(value)
    return RankSummary(**values)


@cache
def kinds_of_fields() -> dict[str, Any]:
    """Return the type of each field of a summary."""
    return get_type_hints(RankSummary)


def is_table(kind: Any) -> bool:
    """Return whether it is a record of columns."""
    return isinstance(kind, type) and issubclass(kind, Struct) and kind is not Anatomy


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind, dec_hook=typed)


def _packed_column(column: Any) -> dict[str, Any]:
    numbers = column.codes if isinstance(column, Categorical) else column
    data: bytes = np.asarray(numbers, dtype="<i8").tobytes()
    if isinstance(column, Categorical):
        return {_CODES: data, _VALUES: list(column.values)}
    return {_TRUTHS if column.dtype == np.bool_ else _NUMBERS: data}


def _unpacked_column(column: dict[str, Any]) -> Any:
    if _CODES in column:
        return Categorical(_numbers(column[_CODES]), tuple(column[_VALUES]))
    return _numbers(column[_TRUTHS]).astype(np.bool_) if _TRUTHS in column else _numbers(column[_NUMBERS])


def _numbers(data: bytes) -> Int64:
    return np.frombuffer(data, dtype="<i8").astype(np.int64, copy=False)


# Detect changed traces without rereading them.
#
# A local file is the same while its size, its inode, and its times of modification and of change (which no program can
# set) are; an object of a store by the identity or the time that the store gives it. A file read within moments of its
# time may have changed since: then the digest of the content decides, as it does for another stamp.


#: File systems' clocks tick, and differ from the machine's own, by less.
_MOMENT_NS: Final = 10 * 10**9


class Stamp(Struct, frozen=True):
    """The state of a trace at one time; only a `settled` one shows that nothing was changed since."""

    identity: str
    settled: bool

    def proves_same(self, other: Stamp) -> bool:
        """Return whether a trace with the stamp `other` is the one that had this stamp."""
        return self.settled and self.identity == other.identity


def stamp_of(source: Source) -> Stamp | None:
    """Return the stamp of a trace as it is now; `None` if it cannot be read."""
    now = time.time_ns()
    if isinstance(source.path, Address):
        at_address = identity_of(source.path)
        if at_address is None:
            return None
        changed_ns = at_address.changed_ns
        settled = at_address.by_content or (changed_ns is not None and now - changed_ns > _MOMENT_NS)
        return Stamp(at_address.text, settled)
    try:
        status = os.stat(source.path)
    except OSError:
        return None
    changed = max(status.st_mtime_ns, status.st_ctime_ns)
    identity = (status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    return Stamp("-".join(map(str, identity)), now - changed > _MOMENT_NS)


def digest_of(source: Source) -> str:
    """Return the SHA-256 of the trace as an analysis reads it."""
    with source.opened() as path:
        return sha256_of(path)


# Summaries that are kept: one file a trace, in a folder or at an address, whole or not at all.


_CHECKSUM: Final = struct.Struct("<L")


class SummaryEntry(Struct, frozen=True, kw_only=True):
    """A serialized summary with what validates it: the code and rules that made it (`key`), the trace's state
    (`identity`, sufficient if it is `settled`), and the trace's SHA-256."""

    key: str
    identity: str
    settled: bool
    sha256: str
    #: The hosts and users that the trace's metadata name.
    names: tuple[str, ...]
    summary: bytes


class KeptSummaries(Struct, frozen=True):
    """A folder (or address) of summaries; `key` is a digest of the code and rules that made them."""

    folder: Path | Address
    key: str

    def load(self, source: Source) -> Outcome | None:
        """Return the outcome of an unchanged trace; `None` without a usable summary."""
        now = stamp_of(source)
        kept = None if now is None else self._read(source)
        if now is None or kept is None or kept.key != self.key:
            return None
        try:
            if not Stamp(kept.identity, kept.settled).proves_same(now):
                if kept.sha256 != digest_of(source) or stamp_of(source) != now:
                    return None
                self._write(source, replace(kept, identity=now.identity, settled=now.settled))
            return Outcome(index=0, summary=unpacked_summary(kept.summary), names=frozenset(kept.names))
        except Exception:  # of a store, of whatever wrote such a file: the summary is made again
            return None

    def save(self, source: Source, summary: RankSummary, names: frozenset[str], before: Stamp) -> str | None:
        """Store a summary unless the trace has changed since; return why that failed, if it did."""
        after = stamp_of(source)
        sha256 = summary.anatomy.provenance.trace_sha256
        if after is None or after.identity != before.identity or sha256 is None:
            return None
        kept = SummaryEntry(
            key=self.key,
            identity=before.identity,
            settled=before.settled,
            sha256=sha256,
            names=tuple(sorted(names)),
            summary=packed_summary(summary),
        )
        return self._write(source, kept)

    def _read(self, source: Source) -> SummaryEntry | None:
        """Return the kept summary of a trace; `None` if the file is damaged or of another program."""
        try:
            data = read_bytes(self._file(source))
            if data is None:
                return None
            body = data[_CHECKSUM.size :]
            whole = _CHECKSUM.unpack(data[: _CHECKSUM.size])[0] == zlib.crc32(body)
            return msgspec.msgpack.decode(body, type=SummaryEntry) if whole else None
        except Exception:  # of a store, of whatever wrote such a file
            return None

    def _write(self, source: Source, kept: SummaryEntry) -> str | None:
        body = msgspec.msgpack.encode(kept)
        data = _CHECKSUM.pack(zlib.crc32(body)) + body
        file = self._file(source)
        try:
            if isinstance(file, Address):
                write_bytes(file, data)
                return None
            file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(file) as partial:
                partial.write_bytes(data)
        except Exception as error:  # of a store: keeping is for the next run, this one goes on
            return f"{getattr(error, 'strerror', None) or error} ({self.folder})"
        return None

    def _file(self, source: Source) -> Path | Address:
        """Return the file for a trace: its name for readability, and a digest of its location and name."""
        place = source.path.text if isinstance(source.path, Address) else os.path.abspath(source.path)
        identity = "\0".join((place, source.member or "", source.name))
        digest = hashlib.sha256(os.fsencode(identity)).hexdigest()[:20]
        name = re.sub(r"[^a-z0-9]+", "-", source.name.lower()).strip("-")[-48:]
        return self.folder / f"{name or 'trace'}-{digest}.summary"


def kept_summaries(folder: str | None, key: str) -> KeptSummaries | None:
    """Return the summaries in `folder`, by default in the user's cache folder; `None` for a user without one.

    Raise `UsageError` if `folder` cannot be a folder.
    """
    if folder is None:
        kept = cache_folder("summaries")
        return None if kept is None else KeptSummaries(kept, key)
    asked = as_asked(f"--summaries {folder}", f"summaries={folder!r}")
    if (address := Address.of(folder, asked)) is not None:
        return KeptSummaries(address, key)
    path = Path(folder).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{asked}: {error.strerror or error} - pass a folder") from error
    return KeptSummaries(path, key)


# The work on one trace, wherever it runs: read its summary if it was kept, else make it and keep it.


class Reduced(Struct, frozen=True, kw_only=True):
    """A trace's summary without the secrets in its metadata, these, and the hosts and users that they name."""

    summary: RankSummary
    secrets: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()


#: Reduces a trace to its summary; raises `TraceError` if it cannot be read.
Reduce: TypeAlias = Callable[[Source], Reduced]


class Outcome(Struct, frozen=True, kw_only=True):
    """The outcome of the `index`-th trace: its summary, packed if from elsewhere, or why there is none (`lost`).

    `not_kept` says why the summary could not be kept. `code` is the digest of the code that made it.
    """

    index: int
    summary: RankSummary | bytes | None = None
    secrets: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    lost: str | None = None
    not_kept: str | None = None
    code: str | None = None


class Task(Struct, frozen=True, kw_only=True):
    """One trace to reduce, and where to keep its summary."""

    index: int
    source: Source
    reduce: Reduce
    kept: KeptSummaries | None = None


def known(task: Task) -> Outcome | None:
    """Return the outcome of a trace with a stored summary."""
    outcome = None if task.kept is None else task.kept.load(task.source)
    return None if outcome is None else replace(outcome, index=task.index, code=code_digest())


def packed_done(task: Task) -> Outcome:
    """Return a trace's outcome serialized for another process."""
    outcome = done(task)
    if not isinstance(outcome.summary, RankSummary):
        return outcome
    return replace(outcome, summary=packed_summary(outcome.summary))


def done(task: Task) -> Outcome:
    """Return the outcome of a trace. An error only affects this rank; only errors that the user can fix for all ranks,
    such as a full disk, are raised."""
    try:
        outcome = known(task)
        if outcome is not None:
            return outcome
        before = None if task.kept is None else stamp_of(task.source)
        reduced = task.reduce(task.source)
        not_kept = None
        if task.kept is not None and before is not None and not reduced.secrets:
            not_kept = task.kept.save(task.source, reduced.summary, reduced.names, before)
        return Outcome(
            index=task.index,
            summary=reduced.summary,
            secrets=reduced.secrets,
            names=reduced.names,
            not_kept=not_kept,
            code=code_digest(),
        )
    except TraceError as error:
        return Outcome(index=task.index, lost=str(error), code=code_digest())
    except OpanatomyError:
        raise
    except MemoryError:
        return Outcome(index=task.index, lost="not enough memory to analyze it", code=code_digest())
    except Exception as error:
        # Its message may hold anything from the trace.
        message = f"opanatomy failed on it ({type(error).__name__}) - analyze it by itself to see where"
        return Outcome(index=task.index, lost=message, code=code_digest())


#: A process needs at least this much to do, in bytes of packed traces, to be worth its start: it imports all that an
#: analysis does, in the time in which it reads as much. Text is this many times larger.
_WORTH_BYTES: Final = 1 << 20
_PACKING: Final = 10
#: A trace of at least this size is analyzed in its own process even on one core, in case it takes all memory.
_LARGE_BYTES: Final = 8 << 20


class ClusterSettings(Struct, frozen=True, kw_only=True):
    """How the ranks of a run are read.

    Summaries are stored in the folder (or at the address) `summaries`, by default in the user's cache folder, unless
    `keep` is off. `dask` is the address of a scheduler, or `local`. `jobs` is the number of processes; by default one
    per core, and none if there is little to do.
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
    """Yield the outcome of each source, in any order; `rules` are what `reduce` depends on besides the trace.

    `note` is called once with the reason if summaries cannot be stored, which does not affect the report.
    """
    key = hashlib.sha256(f"{code_digest()}\0{rules}".encode()).hexdigest()
    kept = kept_summaries(settings.summaries, key) if settings.keep or settings.summaries else None
    tasks = [Task(index=index, source=source, reduce=reduce, kept=kept) for index, source in enumerate(sources)]
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
                raise OpanatomyError(
                    f"{asked(settings.dask)}: a worker has a different opanatomy version installed - install this"
                    " version on all workers"
                )
            if outcome.not_kept and not said:
                said = True
                folder = as_asked("--summaries DIR", "summaries=")
                note(f"summaries are not kept: {outcome.not_kept} - choose another folder with {folder}")
            yield outcome


def _by(tasks: list[Task], settings: ClusterSettings) -> Generator[Outcome, None, None]:
    """Yield the outcomes, by this process, by several or by Dask."""
    if not tasks:
        return
    cores = _cores()
    if settings.dask is not None:
        yield from on_dask([_anywhere(task) for task in tasks], settings.dask, settings.jobs or cores)
        return
    # The bytes of the traces as if all were packed; those at addresses count enough to pay for processes.
    sizes: dict[Path | Address, int] = {}
    for task in tasks:
        path = task.source.path
        if isinstance(path, Address):
            sizes[path] = _WORTH_BYTES
        elif path not in sizes:
            sizes[path] = 0
            with suppress(OSError):
                sizes[path] = os.path.getsize(path) // (_PACKING if path.suffix == ".json" else 1)
    weight = sum(sizes.values())
    jobs = settings.jobs or min(cores, max(weight // _WORTH_BYTES, int(weight >= _LARGE_BYTES)))
    pays = settings.jobs is not None or jobs > 1 or weight >= _LARGE_BYTES
    # No other process can read a trace in the memory of this one (`memory://`).
    in_memory = any(isinstance(path, Address) and "memory:" in path.text for path in sizes)
    if pays and len(tasks) > 1 and not in_memory:
        yield from pooled(tasks, min(jobs, len(tasks)))
    else:
        yield from map(done, tasks)


def pooled(tasks: Sequence[Task], jobs: int) -> Generator[Outcome, None, None]:
    """Yield the outcomes as they complete, from this many processes, which do not run the caller's main module.

    If one of them dies, the remaining traces are retried one by one, so that only the faulty one loses its rank.
    """
    from concurrent.futures import as_completed
    from concurrent.futures.process import BrokenProcessPool

    left = {task.index: task for task in tasks}
    with _processes(jobs) as executor:
        futures = [executor.submit(packed_done, task) for task in tasks]
        with suppress(BrokenProcessPool):
            for future in as_completed(futures):
                outcome = future.result()
                del left[outcome.index]
                yield outcome
    for task in left.values():
        with _processes(1) as executor:
            try:
                yield executor.submit(packed_done, task).result()
            except BrokenProcessPool:
                yield Outcome(index=task.index, lost="the process that analyzed it was killed: not enough memory?")


@contextmanager
def _processes(jobs: int) -> Iterator[Any]:
    """Yield an executor whose processes have ended by the end of the block."""
    from loky import ProcessPoolExecutor

    executor = ProcessPoolExecutor(max_workers=jobs, initializer=_begin_worker)
    try:
        yield executor
    finally:
        executor.shutdown(kill_workers=True)


def _begin_worker() -> None:
    """Leave Ctrl-C to the parent and stdout to the report; disable garbage collection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    gc.disable()


def _anywhere(task: Task) -> Task:
    """Return the task with absolute names that another process here, or one with shared folders, can use."""
    path = task.source.path
    return (
        replace(task, source=replace(task.source, path=Path(os.path.abspath(path)))) if isinstance(path, Path) else task
    )


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


# The same work on Dask: a scheduler that runs somewhere, or workers on this machine's cores.


LOCAL: Final = "local"
_INSTALL: Final = "pip install 'opanatomy[cluster]'"
_CONNECT_SECONDS: Final = 20


def on_dask(tasks: Sequence[Task], address: str, workers: int) -> Generator[Outcome, None, None]:
    """Yield the outcomes as they come, from the workers of the scheduler at an address, or `workers` here (`local`).

    Dask replaces a lost worker; a trace that several are lost on costs its rank. Raises `UsageError` without a
    scheduler, `OpanatomyError` if its workers cannot do this work.
    """
    try:
        from distributed import Client, LocalCluster, as_completed
    except ImportError as error:
        raise UsageError(f"{asked(address)}: needs dask and distributed - {_INSTALL}") from error
    with ExitStack() as stack:
        scheduler = address
        try:
            if address.lower() == LOCAL:
                cluster = LocalCluster(
                    n_workers=workers, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL
                )
                scheduler = stack.enter_context(cluster).scheduler_address
            client = stack.enter_context(Client(scheduler, timeout=_CONNECT_SECONDS, set_as_default=False))
        except (OSError, TimeoutError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UsageError(
                f"{asked(scheduler)}: no scheduler responds there ({reason}) - start one (dask scheduler), or use local"
            ) from error
        futures = client.map(packed_done, tasks, pure=False, retries=1, key="opanatomy")
        indices = {future.key: task.index for future, task in zip(futures, tasks, strict=True)}
        completed = as_completed(futures, loop=client.loop)
        del futures  # each is released when its outcome is here
        for future in completed:
            yield _outcome(future, indices[future.key], address)


def asked(address: str | None) -> str:
    """Return the scheduler as the user gave it."""
    return as_asked(f"--dask {address}", f"dask={address!r}")


def _outcome(future: Any, index: int, address: str) -> Outcome:
    from distributed import KilledWorker

    try:
        outcome: Outcome = future.result()
    except KilledWorker as error:
        workers = error.allowed_failures + 1
        return Outcome(index=index, lost=f"Dask lost {workers} workers analyzing it: not enough memory?")
    except OpanatomyError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OpanatomyError(
            f"{asked(address)}: a worker failed ({type(error).__name__}: {reason}) - install this opanatomy version"
            " on all workers, and check the scheduler's log"
        ) from error
    finally:
        future.release()
    return outcome
