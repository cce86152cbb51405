"""Several ranks: a row for each, of many one for those that are alike, the spread over them, the longest step."""

from __future__ import annotations

import string
from statistics import fmean
from typing import Final

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.ranks import Rank, Spread
from opanatomy.report.glossary import note
from opanatomy.report.like_ranks import LIKE, Group, groups_of
from opanatomy.report.section import (
    Cell,
    Change,
    Column,
    Count,
    Holds,
    Note,
    Phrase,
    Row,
    Section,
    Share,
    Time,
    Tone,
    phrase,
)

#: More ranks than this are shown in groups of like ones, the largest of them.
_SHOWN: Final = 16
_FIGURES: Final = (
    ("step", "step"), ("own", "own"), ("busy", "busy"), ("kernel_time", "kernels"), ("communication", "comm"),
    ("exposed_communication", "exposed"), ("idle", "idle"),
)  # fmt: skip


def ranks(anatomy: Anatomy) -> Section | None:
    """A step of each rank, the spread over them, and which rank is the slowest; for several ranks only."""
    if len(anatomy.ranks) < 2:
        return None
    spread = {row.figure: row for row in anatomy.spread}
    figures = [(name, header) for name, header in _FIGURES if name in spread]
    columns = (
        Column(header="a step of rank", holds=Holds.NAMES),
        *(
            Column(header=header, expendable=place and len(_FIGURES) - place)
            for place, (_, header) in enumerate(figures)
        ),
    )
    names = [name for name, _ in figures]
    shown, notes = _rows(anatomy.ranks, names)
    rows = (*shown, *_summaries([spread[name] for name in names]))
    if "own" in spread:
        notes.append(Note(text=note("ranks", "own")))
    return Section(
        name="ranks", title="Ranks", columns=columns, rows=rows, notes=(*notes, *_conclusions(anatomy, spread))
    )


def _rows(ranks: tuple[Rank, ...], figures: list[str]) -> tuple[list[Row], list[Note]]:
    """A row a rank, or a group of like ones, and what to say of that."""
    if len(ranks) <= _SHOWN:
        return [_row(rank, figures) for rank in ranks], []
    groups = groups_of(ranks, figures)
    shown = groups[:_SHOWN]
    letters = [string.ascii_uppercase[place] if len(group.ranks) > 1 else "" for place, group in enumerate(shown)]
    rows = [
        Row(cells=(_group_name(group, letter), *map(Time, group.medians)))
        for group, letter in zip(shown, letters, strict=True)
    ]
    notes = [
        Note(text=f"{letter}: {group.members}", tone=Tone.REMARK)
        for group, letter in zip(shown, letters, strict=True)
        if letter
    ]
    text = phrase(
        "like ranks together: no figure is more than {} of the median step away from that of the most typical of them;"
        " medians; all {} ranks are in -f json",
        Share(LIKE, 1, 0),
        Count(len(ranks)),
    )
    rest = sum(len(group.ranks) for group in groups[_SHOWN:])
    more = phrase("{} more ranks in {} groups, none larger, are not shown", Count(rest), Count(len(groups) - _SHOWN))
    return rows, [Note(text=text), *([Note(text=more)] if rest else []), *notes]


def _group_name(group: Group, letter: str) -> str:
    """`A: 126 ranks`; of one rank its own."""
    only = group.ranks[0]
    return f"{letter}: {len(group.ranks)} ranks" if letter else _name(only.rank, only.trace)


def _row(rank: Rank, figures: list[str]) -> Row:
    times: list[Cell] = [Time(rank.a_step(figure)) for figure in figures]
    return Row(cells=(_name(rank.rank, rank.trace), *times))


def _summaries(spreads: list[Spread]) -> tuple[Row, ...]:
    times = {
        "min": [spread.min_ns for spread in spreads],
        "median": [spread.median_ns for spread in spreads],
        "max": [spread.max_ns for spread in spreads],
    }
    return tuple(Row(cells=(name, *map(Time, values)), summary=True) for name, values in times.items())


def _conclusions(anatomy: Anatomy, spread: dict[str, Spread]) -> list[Note]:
    """The longest step, and where nothing better says for whom the others wait, the rank that waits least."""
    notes = []
    step, own = spread.get("step"), spread.get("own")
    if step is not None:
        notes.append(Note(text=_longest(anatomy, step), tone=Tone.CONCLUSION))
    if anatomy.waiting is None and own is not None and own.max_ns > own.min_ns:
        name = _name(own.max_rank, own.max_trace, "rank ")
        text = phrase(
            "Of all ranks {} waits least in communication ({} of its own a step): if others wait, it is for this one.",
            name,
            Time(own.max_ns),
        )
        notes.append(Note(text=text, tone=Tone.CONCLUSION))
    return notes


def _longest(anatomy: Anatomy, step: Spread) -> Phrase:
    """The rank with the longest step; a rank that waits has a long step without being the one that is slow."""
    name = _name(step.max_rank, step.max_trace, "rank ")
    text = phrase(
        "The longest step is that of {}: {}, {} to the median",
        name, Time(step.max_ns), Change(step.max_ns, step.median_ns),
    )  # fmt: skip
    each = () if anatomy.waiting is None else anatomy.waiting.each
    own = (row for row in each if _name(row.rank, row.trace) == _name(step.max_rank, step.max_trace))
    waits_ns = fmean(part.waiting_ns for row in own for part in row.steps or ()) if each else 0
    if not waits_ns or anatomy.waiting is None:
        return phrase("{}.", text)
    least = "at least " if anatomy.waiting.is_lower_bound else ""
    return phrase("{}; it waits " + least + "{} of it for others.", text, Time(waits_ns))


def _name(rank: int | None, trace: str | None, before: str = "") -> str:
    return (trace or "?") if rank is None else f"{before}{rank}"
