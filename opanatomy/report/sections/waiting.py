"""Several ranks: where their steps went once waiting is separated from transferring, and who was waited for."""

from __future__ import annotations

from typing import Final

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.waiting import RankWaiting, StepParts, Straggler, Waiting
from opanatomy.report import units
from opanatomy.report.glossary import note
from opanatomy.report.section import (
    ByteRate,
    Bytes,
    Cell,
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
    joined,
    phrase,
)
from opanatomy.report.straggler import how_late, name_of

#: More ranks than this are shown by those that are charged most.
_SHOWN: Final = 16


def steps(anatomy: Anatomy) -> Section | None:
    """A step of each rank in its parts, and how long the others waited for it."""
    waiting = anatomy.waiting
    if waiting is None:
        return None
    shown = waiting.each
    if len(shown) > _SHOWN:
        shown = tuple(sorted(shown, key=lambda row: -row.charged_ns)[: _SHOWN // 2])
    columns = (
        Column(header="a step of rank", holds=Holds.NAMES), Column(header="step"),
        Column(header="other work", expendable=3), Column(header="transfer", expendable=1), Column(header="waiting"),
        Column(header="unmatched", expendable=4),
        Column(header="idle", expendable=2), Column(header="waited for"),
    )  # fmt: skip
    notes = [Note(text=text) for text in _notes(waiting, len(shown))]
    return Section(
        name="waiting-steps", title="Waiting", columns=columns, rows=tuple(_row(rank, waiting) for rank in shown),
        notes=(*notes, *_conclusions(waiting)),
    )  # fmt: skip


def collectives(anatomy: Anatomy) -> Section | None:
    """The matched collectives: what of their time data could flow in, and the bandwidth of that."""
    waiting = anatomy.waiting
    if waiting is None:
        return None
    columns = (
        Column(header="matched", holds=Holds.NAMES), Column(header="type", expendable=4),
        Column(header="ranks", expendable=3), Column(header="number", expendable=5), Column(header="time"),
        Column(header="waiting"), Column(header="bytes", expendable=2), Column(header="bus", expendable=1),
        Column(header="bus in transfer"),
    )  # fmt: skip
    rows = tuple(
        Row(
            cells=(
                row.collective.replace("_", " "), row.dtype or units.UNKNOWN, Count(row.group_size),
                Count(row.collectives), Time(row.duration_ns), Share(row.waiting_ns, row.duration_ns),
                Bytes(row.bytes), ByteRate(row.bus_bytes_per_second), ByteRate(row.transfer_bus_bytes_per_second),
            )
        )
        for row in waiting.collectives
    )  # fmt: skip
    notes = (Note(text=note("matched", "time and waiting", "bus in transfer")),)
    return Section(name="matched", title="Collectives of all ranks", columns=columns, rows=rows, notes=notes)


def _row(rank: RankWaiting, waiting: Waiting) -> Row:
    name = rank.trace or "?" if rank.rank is None else str(rank.rank)
    fields = ("wall_ns", "other_work_ns", "transfer_ns", "waiting_ns", "unmatched_ns", "idle_ns")
    times: list[Cell] = [Time(_mean(rank.steps, field)) for field in fields]
    if not any(step.unmatched_ns for row in waiting.each for step in row.steps):
        times[fields.index("unmatched_ns")] = None
    return Row(cells=(name, *times, Time(rank.charged_ns // max(len(rank.steps), 1))))


def _mean(steps: tuple[StepParts, ...], field: str) -> float | None:
    return sum(getattr(step, field) for step in steps) / len(steps) if steps else None


def _notes(waiting: Waiting, shown: int) -> list[str | Phrase]:
    notes: list[str | Phrase] = []
    if shown < len(waiting.each):
        notes.append(phrase("the {} that were waited for most of {} ranks", Count(shown), Count(len(waiting.each))))
    notes.append(f"means of the steps; {note('waiting-steps', 'transfer and waiting', 'waited for')}")
    if waiting.is_lower_bound:
        notes.append(
            phrase(
                "{} of {} ranks were given: waiting is a lower bound", Count(waiting.ranks), Count(waiting.world_size)
            )
        )
    matched = joined(
        phrase("{} by " + how, Count(count))
        for count, how in (
            (waiting.by_number, "their number in the group"), (waiting.by_order, "order"), (waiting.by_time, "time"),
        )
        if count
    )  # fmt: skip
    if matched is not None:
        notes.append(phrase("collectives matched: {}; clocks: {}", matched, _clocks(waiting)))
    return notes


def _clocks(waiting: Waiting) -> Phrase:
    clocks = waiting.clocks
    how = "set by the ends of collectives" if clocks.was_set else "agree as they are"
    within = phrase("{}, to within {}", how, Time(clocks.within_ns)) if clocks.within_ns is not None else phrase(how)
    if not clocks.ended_too_early:
        return within
    return phrase("{}; {} end before they have begun on every rank", within, Count(clocks.ended_too_early))


def _conclusions(waiting: Waiting) -> list[Note]:
    if waiting.straggler is not None:
        return [Note(text=_straggler(waiting.straggler, waiting), tone=Tone.CONCLUSION)]
    return [Note(text=f"no straggler is named: {waiting.no_straggler}")] if waiting.no_straggler else []


def _straggler(straggler: Straggler, waiting: Waiting) -> Phrase:
    """Who was waited for, how often, and since when it was late."""
    share = Share(straggler.charged_ns, straggler.waiting_ns)
    return phrase("The others wait for {}, {} of all waiting: {}.", name_of(straggler), share,
                  how_late(straggler, waiting))  # fmt: skip
