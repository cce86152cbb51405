"""Report several ranks: a row each, or per group of like ranks, the spread over them, the longest step."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Final

import numpy as np
from msgspec import Struct

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.communication import (
    MatchedCollective,
    Rank,
    RankWaiting,
    Spread,
    Straggler,
    Waiting,
    numbers_in_short,
)
from opanatomy.report import units
from opanatomy.report.section import (
    ByteRate,
    Bytes,
    Cell,
    Change,
    Column,
    ColumnKind,
    Columns,
    Count,
    Note,
    NoteKind,
    Phrase,
    Row,
    Section,
    Share,
    Time,
    cells_of,
    joined,
    phrase,
)
from opanatomy.report.terms import note

# The rank that the others wait for in words: the same on the page, in the digest and in worked figures.


#: With less of the charged waiting lost within its steps, nothing that a rank does in them is the cause.
WITHIN: Final = 0.1


#: Less of the charged waiting than this was hardly there when a step began.
_MIN_WAITING_SHARE: Final = 0.01


def name_of(rank: Straggler | Rank | RankWaiting) -> str:
    """Return the rank's number, or its trace's name if it has none."""
    return rank.trace or "?" if rank.rank is None else f"rank {rank.rank}"


def how_late(straggler: Straggler, waiting: Waiting) -> Phrase:
    """Describe how often a rank comes last, by how much and since when, and what takes it longer than the others.

    `it starts 5 of 8 collectives last, a median of 505 us after the rank before it; 56.4 % of all waiting accrues
    before its step starts, 19.5 % during the step; in its step it is idle 1.14 ms longer than the median of the others`
    """
    every = Count(waiting.by_number + waiting.by_order + waiting.by_time, "collective")
    last = phrase("it starts {} of {} last", Count(straggler.last), every)
    by = phrase("a median of {} after the rank before it", Time(straggler.lead_ns))
    several = max(len(rank.steps) for rank in waiting.each) > 1

    # The waiting that was there when its step began, as a share of all waiting.
    since, before = None, straggler.before_ns
    if before is not None and before >= _MIN_WAITING_SHARE * straggler.charged_ns:
        shares = (Share(ns, straggler.waiting_ns) for ns in (before, straggler.charged_ns - before))
        its = "its steps start, {} during the steps" if several else "its step starts, {} during the step"
        since = phrase("{} of all waiting accrues before " + its, *shares)

    # What it does longer than the others; nothing if it was late before its steps began.
    longer, within = None, straggler.charged_ns - (before or 0)
    computing, idle = straggler.computing_longer_ns, straggler.idle_longer_ns
    if max(computing, idle) > 0 and within >= WITHIN * straggler.charged_ns:
        does, ns = ("computes", computing) if computing >= idle else ("is idle", idle)
        its = (
            "its steps it {} {} longer than the median of the others in total"
            if several
            else "its step it {} {} longer than the median of the others"
        )
        longer = phrase("in " + its, does, Time(ns))
    return joined((joined((last, by)), since, longer), "; ") or last


# Many ranks -> groups of like ones, so that a report of thousands is readable.


#: Figures of like ranks differ by no more than this part of the median step.
LIKE: Final = 0.05
#: At most this many numbers or spans of numbers are written.
_MAX_NUMBERS: Final = 12


class Group(Struct, frozen=True, kw_only=True):
    """Like ranks, in order, and the median of each figure over them."""

    ranks: tuple[Rank, ...]
    medians: tuple[int, ...]

    @property
    def members(self) -> str:
        """Return its members: `ranks 0-124, 127`."""
        names = _progression(self.ranks) or names_of(self.ranks)
        more = f" and {len(names) - _MAX_NUMBERS} more" if len(names) > _MAX_NUMBERS else ""
        return f"ranks {', '.join(names[:_MAX_NUMBERS])}{more}"


def names_of(ranks: Sequence[Rank]) -> list[str]:
    """Return their numbers as ranges, and the traces of unnumbered ones."""
    numbers = numbers_in_short(rank.rank for rank in ranks if rank.rank is not None)
    return [*numbers, *(rank.trace or "?" for rank in ranks if rank.rank is None)]


def _progression(ranks: Sequence[Rank]) -> list[str] | None:
    """Return evenly spaced rank numbers compactly, such as the same position on each node."""
    numbers = [rank.rank for rank in ranks if rank.rank is not None]
    steps = {after - before for before, after in pairwise(numbers)}
    if len(numbers) < max(len(ranks), 3) or len(steps) != 1 or steps == {1}:
        return None
    return [f"{numbers[0]} to {numbers[-1]} in steps of {steps.pop()}"]


def groups_of(ranks: Sequence[Rank], figures: Sequence[str]) -> list[Group]:
    """Return the ranks in groups, the largest first.

    A group consists of the most typical rank, nearest to the medians of all figures, and all ranks whose common figures
    differ from its own by at most `LIKE` of the median step; then the most typical of the others forms the next group,
    and so on.
    """
    values = np.array([[rank.per_step(figure) or 0 for figure in figures] for rank in ranks], dtype=np.float64)
    walls = [wall for rank in ranks if (wall := rank.wall_ns or rank.window_ns)]
    allowed = LIKE * median(walls) if walls else 0.0
    away = np.abs(values - np.median(values, axis=0)).max(axis=1, initial=0.0)
    left = np.argsort(away, kind="stable")
    groups = []
    while len(left):
        like = np.abs(values[left] - values[left[0]]).max(axis=1, initial=0.0) <= allowed
        own = np.sort(left[like])
        medians = tuple(int(value) for value in np.median(values[own], axis=0))
        groups.append(Group(ranks=tuple(ranks[index] for index in own.tolist()), medians=medians))
        left = left[~like]
    return sorted(groups, key=lambda group: -len(group.ranks))


#: With more ranks than this only groups of like ones are shown, largest first.
_MAX_RANKS: Final = 16
#: Figures with column headers.
_FIGURES: Final = {
    "step": "step",
    "own": "own",
    "busy": "busy",
    "kernel_time": "kernels",
    "communication": "comm",
    "exposed_communication": "exposed",
    "idle": "idle",
}


def ranks(anatomy: Anatomy) -> Section | None:
    """Return a step of each rank, the spread, and the slowest rank; for several ranks only."""
    if len(anatomy.ranks) < 2:
        return None
    spread = {row.figure: row for row in anatomy.spread}
    figures = [name for name in _FIGURES if name in spread]
    headers = [_FIGURES[name] for name in figures]
    lines, notes = _lines(anatomy.ranks, figures)
    rows = [
        Row(cells={"a step of rank": name, **dict(zip(headers, map(Time, times), strict=True))})
        for name, times in lines
    ]
    for name in ("min", "median", "max"):
        times = {_FIGURES[figure]: Time(getattr(spread[figure], f"{name}_ns")) for figure in figures}
        rows.append(Row(cells={"a step of rank": name, **times}, summary=True))
    if "own" in spread:
        notes.append(Note(text=note("ranks", "own")))
    return Section(
        title="Ranks",
        rows=tuple(rows),
        notes=(*notes, *_conclusions(anatomy, spread)),
        columns=(
            Column(header="a step of rank", holds=ColumnKind.NAMES, least=8),
            *(Column(header=name, drop_order=index and len(_FIGURES) - index) for index, name in enumerate(headers)),
        ),
    )


def _lines(ranks: tuple[Rank, ...], figures: list[str]) -> tuple[list[tuple[str, Sequence[int | None]]], list[Note]]:
    """Return name and figures of each rank, or each group of like ones, with remarks."""
    if len(ranks) <= _MAX_RANKS:
        return [(_name(rank.rank, rank.trace), [*map(rank.per_step, figures)]) for rank in ranks], []
    groups = groups_of(ranks, figures)
    lines: list[tuple[str, Sequence[int | None]]] = []
    notes = []
    for letter, group in zip(string.ascii_uppercase, groups[:_MAX_RANKS], strict=False):
        only = len(group.ranks) == 1
        name = _name(group.ranks[0].rank, group.ranks[0].trace) if only else f"{letter}: {len(group.ranks)} ranks"
        lines.append((name, group.medians))
        if not only:
            notes.append(Note(text=f"{letter}: {group.members}", kind=NoteKind.REMARK))
    text = phrase(
        "similar ranks are grouped (no time differs from that of the group's most typical rank by more than {} of the"
        " median step time); rows show the median of each group; use -f json for all {} ranks",
        Share(LIKE, 1, 0),
        Count(len(ranks)),
    )
    rest = sum(len(group.ranks) for group in groups[_MAX_RANKS:])
    more = phrase(
        "not shown: {} in {} no larger than those shown",
        Count(rest, "more rank"),
        Count(len(groups) - _MAX_RANKS, "group"),
    )
    return lines, [Note(text=text), *([Note(text=more)] if rest else []), *notes]


def _conclusions(anatomy: Anatomy, spread: dict[str, Spread]) -> list[Note]:
    """Return the longest step, and without better evidence of whom the others wait for, the rank that waits least."""
    notes = []
    sized = sorted((rank for rank in anatomy.ranks if rank.host_bytes), key=lambda rank: rank.host_bytes or 0)
    if len(sized) > 1:
        text = phrase(
            "Peak host memory is {} to {} per rank, highest on {}.",
            Bytes(sized[0].host_bytes),
            Bytes(sized[-1].host_bytes),
            _name(sized[-1].rank, sized[-1].trace, "rank "),
        )
        notes.append(Note(text=text, kind=NoteKind.CONCLUSION))
    step, own = spread.get("step"), spread.get("own")
    if step is not None:
        # A rank that waits has a long step without being the slow one.
        text = phrase(
            "The longest step is on {}: {} ({} vs. the median)",
            _name(step.max_rank, step.max_trace, "rank "),
            Time(step.max_ns),
            Change(step.max_ns, step.median_ns),
        )
        each = () if anatomy.waiting is None else anatomy.waiting.each
        slowest = (row for row in each if _name(row.rank, row.trace) == _name(step.max_rank, step.max_trace))
        waits_ns = fmean(part.waiting_ns for row in slowest for part in row.steps or ()) if each else 0
        if waits_ns and anatomy.waiting is not None:
            least = "at least " if anatomy.waiting.is_lower_bound else ""
            text = phrase("{}, including " + least + "{} of waiting for other ranks", text, Time(waits_ns))
        notes.append(Note(text=phrase("{}.", text), kind=NoteKind.CONCLUSION))
    if anatomy.waiting is None and own is not None and own.max_ns > own.min_ns:
        name = _name(own.max_rank, own.max_trace, "rank ")
        text = phrase(
            "{} waits least in communication ({} per step outside exposed communication): if other ranks wait,"
            " they wait for it.",
            name,
            Time(own.max_ns),
        )
        notes.append(Note(text=text, kind=NoteKind.CONCLUSION))
    return notes


def _name(rank: int | None, trace: str | None, before: str = "") -> str:
    return (trace or "?") if rank is None else f"{before}{rank}"


# Several ranks: their steps with waiting and transferring apart, and who was waited for.


def steps(anatomy: Anatomy) -> Section | None:
    """Return each rank's step by parts, and how long the others waited for it."""
    waiting = anatomy.waiting
    if waiting is None:
        return None
    shown = waiting.each
    if len(shown) > _MAX_RANKS:
        shown = tuple(sorted(shown, key=lambda row: -row.charged_ns)[: _MAX_RANKS // 2])
    unmatched = any(step.unmatched_ns for row in waiting.each for step in row.steps)

    def mean(field: str) -> Callable[[RankWaiting], Cell]:
        return lambda rank: Time(fmean(getattr(step, field) for step in rank.steps) if rank.steps else None)

    columns: Columns[RankWaiting] = {
        Column(header="a step of rank", holds=ColumnKind.NAMES, least=8): lambda rank: _name(rank.rank, rank.trace),
        Column(header="step"): mean("wall_ns"),
        Column(header="other work", drop_order=3): mean("other_work_ns"),
        Column(header="transfer", drop_order=1): mean("transfer_ns"),
        Column(header="waiting"): mean("waiting_ns"),
        Column(header="unmatched", drop_order=4): mean("unmatched_ns") if unmatched else lambda rank: None,
        Column(header="idle", drop_order=2): mean("idle_ns"),
        Column(header="waited for"): lambda rank: Time(rank.charged_ns // max(len(rank.steps), 1)),
    }
    texts: list[str | Phrase] = []
    if len(shown) < len(waiting.each):
        texts.append(
            phrase(
                "only the {} of {} ranks that the others wait for most are shown",
                Count(len(shown)),
                Count(len(waiting.each)),
            )
        )
    texts.append(f"means over the steps; {note('waiting-steps', 'transfer and waiting', 'waited for')}")
    if waiting.is_lower_bound:
        given = Count(waiting.ranks), Count(waiting.world_size)
        texts.append(phrase("{} of {} ranks are present, so waiting is a lower bound", *given))
    matched = joined(
        phrase("{} by " + how, Count(count))
        for count, how in (
            (waiting.by_number, "their number in the group"),
            (waiting.by_order, "order"),
            (waiting.by_time, "time"),
        )
        if count
    )
    if matched is not None:
        clocks = waiting.clocks
        agree = phrase("are aligned by the ends of collectives" if clocks.was_set else "agree")
        if clocks.within_ns is not None:
            agree = phrase("{} to within {}", agree, Time(clocks.within_ns))
        if clocks.ended_too_early:
            agree = phrase(
                "{} ({} ended before the last rank started)", agree, Count(clocks.ended_too_early, "collective")
            )
        texts.append(phrase("collectives matched: {}; clocks {}", matched, agree))
    notes = [Note(text=text) for text in texts]
    straggler = waiting.straggler
    if straggler is not None:
        share = Share(straggler.charged_ns, straggler.waiting_ns)
        late = how_late(straggler, waiting)
        text = phrase("The other ranks wait for {} ({} of all waiting): {}.", name_of(straggler), share, late)
        notes.append(Note(text=text, kind=NoteKind.CONCLUSION))
    elif waiting.no_straggler:
        notes.append(Note(text=f"no straggler is named: {waiting.no_straggler}"))
    return Section(
        title="Waiting",
        columns=tuple(columns),
        rows=tuple(Row(cells=cells_of(columns, rank)) for rank in shown),
        notes=tuple(notes),
    )


def collectives(anatomy: Anatomy) -> Section | None:
    """Return the matched collectives: the part of their time in which data could flow, and the bandwidth of that."""
    waiting = anatomy.waiting
    if waiting is None:
        return None
    columns: Columns[MatchedCollective] = {
        Column(header="matched", holds=ColumnKind.NAMES, least=10): lambda row: row.collective.replace("_", " "),
        Column(header="type", drop_order=4): lambda row: row.dtype or units.UNKNOWN,
        Column(header="ranks", drop_order=3): lambda row: Count(row.group_size),
        Column(header="number", drop_order=5): lambda row: Count(row.collectives),
        Column(header="time"): lambda row: Time(row.duration_ns),
        Column(header="waiting"): lambda row: Share(row.waiting_ns, row.duration_ns),
        Column(header="bytes", drop_order=2): lambda row: Bytes(row.bytes),
        Column(header="bus", drop_order=1): lambda row: ByteRate(row.bus_bytes_per_second),
        Column(header="bus in transfer"): lambda row: ByteRate(row.transfer_bus_bytes_per_second),
    }
    rows = tuple(Row(cells=cells_of(columns, row)) for row in waiting.collectives)
    notes = (Note(text=note("matched", "time and waiting", "bus in transfer")),)
    return Section(title="Collectives of all ranks", columns=tuple(columns), rows=rows, notes=notes)
