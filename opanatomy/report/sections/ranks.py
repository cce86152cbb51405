"""Several ranks: a row for each, the spread over them, and the slowest by name."""

from __future__ import annotations

from typing import Final

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.ranks import Rank, Spread
from opanatomy.report.section import Cell, Change, Column, Count, Holds, Note, Row, Section, Time, Tone, phrase

#: More ranks than this are shown by the slowest of them.
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
    shown = anatomy.ranks
    if len(shown) > _SHOWN:
        shown = tuple(sorted(shown, key=lambda rank: -(rank.wall_ns or 0))[: _SHOWN // 2])
    names = [name for name, _ in figures]
    rows = (*(_row(rank, names) for rank in shown), *_summaries([spread[name] for name in names]))
    notes = []
    if len(shown) < len(anatomy.ranks):
        more = phrase(
            "the {} slowest of {} ranks, all of them in -f json", Count(len(shown)), Count(len(anatomy.ranks))
        )
        notes.append(Note(text=more))
    if "own" in spread:
        notes.append(Note(text="own: the step less exposed communication"))
    return Section(
        name="ranks", title="Ranks", columns=columns, rows=rows, notes=(*notes, *_conclusions(anatomy, spread))
    )


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
    """The slowest rank, and where nothing better tells for whom the others wait, the one that waits least."""
    notes = []
    step, own = spread.get("step"), spread.get("own")
    if step is not None:
        name = _name(step.max_rank, step.max_trace, "rank ")
        text = phrase(
            "The slowest is {}: {} a step, {} to the median.",
            name,
            Time(step.max_ns),
            Change(step.max_ns, step.median_ns),
        )
        notes.append(Note(text=text, tone=Tone.CONCLUSION))
    if anatomy.waiting is None and own is not None and own.max_ns > own.min_ns:
        name = _name(own.max_rank, own.max_trace, "rank ")
        text = phrase(
            "Of all ranks {} waits least in communication ({} of its own a step): if others wait, it is for this one.",
            name,
            Time(own.max_ns),
        )
        notes.append(Note(text=text, tone=Tone.CONCLUSION))
    return notes


def _name(rank: int | None, trace: str | None, before: str = "") -> str:
    return (trace or "?") if rank is None else f"{before}{rank}"
