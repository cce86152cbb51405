"""The terminal report's part on several ranks: a row for each, the spread, the slowest by name; and collectives."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.ranks import Spread
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report import units
from opanatomy.report.classes import COLOUR
from opanatomy.report.table import Column, Row, prose, table

#: More ranks than this are shown by the slowest of them.
_SHOWN: Final = 16
_FIGURES: Final = (
    ("step", "step"), ("own", "own"), ("busy", "busy"), ("kernel_time", "kernels"), ("communication", "comm"),
    ("exposed_communication", "exposed"), ("idle", "idle"),
)  # fmt: skip


def rank_table(anatomy: Anatomy, width: int) -> list[Text] | None:
    """A step of each rank, the spread over them, and which rank is the slowest; for several ranks only."""
    ranks = anatomy.ranks
    if len(ranks) < 2:
        return None
    spread = {row.figure: row for row in anatomy.spread}
    figures = [(name, header) for name, header in _FIGURES if name in spread]
    columns = [
        Column(header="a step of rank", name=True, least=8),
        *(Column(header=header, drop=place and len(_FIGURES) - place) for place, (_, header) in enumerate(figures)),
    ]
    shown = ranks
    if len(ranks) > _SHOWN:
        shown = tuple(sorted(ranks, key=lambda rank: -(rank.wall_ns or 0))[: _SHOWN // 2])
    rows = [
        Row(cells=(_name(rank.rank, rank.trace), *(units.duration(rank.a_step(name)) for name, _ in figures)))
        for rank in shown
    ]
    for label, least in (("min", "min_ns"), ("median", "median_ns"), ("max", "max_ns")):
        cells = (units.duration(getattr(spread[name], least)) for name, _ in figures)
        rows.append(Row(cells=(label, *cells), strong=True))
    notes = []
    if len(shown) < len(ranks):
        notes.append(f"the {len(shown)} slowest of {units.count(len(ranks))} ranks; all of them in -f json")
    if "own" in spread:
        notes.append("own: the step less exposed communication")
    lines = [*table(columns, rows, width), *(prose(", ".join(notes), width, style="dim") if notes else ())]
    return [*lines, *(line for text in _verdicts(spread) for line in prose(text, width, style="bold"))]


def _verdicts(spread: dict[str, Spread]) -> list[str]:
    """The slowest rank, and the one that the others wait for."""
    found = []
    step, own = spread.get("step"), spread.get("own")
    if step is not None:
        name = _name(step.max_rank, step.max_trace, "rank ")
        more = units.change(step.max_ns, step.median_ns)
        found.append(f"The slowest is {name}: {units.duration(step.max_ns)} a step, {more} to the median.")
    if own is not None and own.max_ns > own.min_ns:
        name = _name(own.max_rank, own.max_trace, "rank ")
        found.append(
            f"Of all ranks {name} waits least in communication ({units.duration(own.max_ns)} of its own a step):"
            " if others wait, it is for this one."
        )
    return found


def _name(rank: int | None, trace: str | None, before: str = "") -> str:
    return (trace or "?") if rank is None else f"{before}{rank}"


def collective_table(anatomy: Anatomy, width: int, swatches: bool) -> list[Text] | None:
    """Communication by collective: calls, time, bytes and bus bandwidth."""
    if not anatomy.collectives:
        return None
    columns = [
        Column(header="collective", name=True, least=10),
        Column(header="type", drop=5),
        Column(header="ranks", drop=3),
        Column(header="calls", drop=4),
        Column(header="time"),
        Column(header="bytes", drop=1),
        Column(header="bus", drop=2),
    ]
    rows = [
        Row(
            cells=(
                row.collective.replace("_", " "),
                row.dtype or units.UNKNOWN,
                ("~" if row.group_assumed else "") + units.count(row.group_size),
                units.count(row.calls),
                units.duration(row.time_ns),
                units.size(row.bytes),
                units.byte_rate(row.bus_bytes_per_second),
            ),
            mark=COLOUR[OperatorClass.COMMUNICATION],
        )
        for row in anatomy.collectives
    ]  # fmt: skip
    notes = ["waiting for the slowest rank included"]
    if any(row.group_assumed for row in anatomy.collectives):
        notes.append("~ the trace names no group: all ranks are taken")
    return [*table(columns, rows, width, swatches=swatches), *prose("; ".join(notes), width, style="dim")]
