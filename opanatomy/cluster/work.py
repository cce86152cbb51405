"""What is done with one trace, wherever that is: its summary is read if it was kept, else made, and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.cluster.code import code_digest
from opanatomy.cluster.kept import KeptSummaries
from opanatomy.cluster.packing import packed_summary
from opanatomy.errors import OpanatomyError, TraceError
from opanatomy.records.rank_summary import RankSummary
from opanatomy.trace.sources import Source


class Reduced(Struct, frozen=True, kw_only=True):
    """A trace's summary without the secrets that its metadata tell, these, and the hosts and users that they name."""

    summary: RankSummary
    secrets: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()


#: How a trace is reduced to its summary; `TraceError` where it cannot be read.
Reduce: TypeAlias = Callable[[Source], Reduced]


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of the `place`-th trace: its summary, packed where it comes from afar, or why there is none (`lost`).

    `not_kept` says why the summary could not be kept. `code` is the digest of the code that made it.
    """

    place: int
    summary: RankSummary | bytes | None = None
    secrets: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    lost: str | None = None
    not_kept: str | None = None
    code: str | None = None


class Task(Struct, frozen=True, kw_only=True):
    """One trace to reduce, and where its summary is kept."""

    place: int
    source: Source
    reduce: Reduce
    kept: KeptSummaries | None = None


def known(task: Task) -> Outcome | None:
    """The outcome of a trace whose summary was kept."""
    summary = None if task.kept is None else task.kept.load(task.source)
    if summary is None:
        return None
    return Outcome(place=task.place, summary=summary.summary, names=summary.names, code=code_digest())


def packed_done(task: Task) -> Outcome:
    """The outcome of a trace as it goes to another process."""
    outcome = done(task)
    if not isinstance(outcome.summary, RankSummary):
        return outcome
    return replace(outcome, summary=packed_summary(outcome.summary))


def done(task: Task) -> Outcome:
    """The outcome of a trace. Whatever is wrong with it costs this rank alone; only what the user can act on for all
    of them, such as a full disk, is raised."""
    try:
        return known(task) or _made(task)
    except TraceError as error:
        return Outcome(place=task.place, lost=str(error), code=code_digest())
    except OpanatomyError:
        raise
    except MemoryError:
        return Outcome(place=task.place, lost="not enough memory to analyze it", code=code_digest())
    except Exception as error:
        # Its message may have anything of the trace in it.
        message = f"opanatomy failed on it ({type(error).__name__}) - analyze it alone to see where"
        return Outcome(place=task.place, lost=message, code=code_digest())


def _made(task: Task) -> Outcome:
    before = None if task.kept is None else task.kept.stamp_of(task.source)
    reduced = task.reduce(task.source)
    not_kept = None
    if task.kept is not None and before is not None and not reduced.secrets:
        not_kept = task.kept.save(task.source, reduced.summary, reduced.names, before)
    return Outcome(
        place=task.place, summary=reduced.summary, secrets=reduced.secrets, names=reduced.names,
        not_kept=not_kept, code=code_digest(),
    )  # fmt: skip
