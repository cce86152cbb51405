"""Compare classes and operators with the ceilings of their device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from opanatomy.records.anatomy import COMPUTE, MEMORY, Anatomy, ClassRow, OperatorRow
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report import units
from opanatomy.report.section import (
    ByteRate,
    Cell,
    Column,
    ColumnKind,
    FlopRate,
    Name,
    Note,
    Phrase,
    Ratio,
    Row,
    Section,
    Share,
    Time,
    Total,
    per_step,
    phrase,
    steps_of,
    total,
)
from opanatomy.report.sections.classes import PARTLY, by_class
from opanatomy.report.sections.operators import Group, grouped, spare_ns
from opanatomy.report.terms import note

#: Phases with different bounds: many tokens at once, and one by one.
_OF_GENERATION: Final = (Phase.PREFILL, Phase.DECODING)
_NOTE: Final = note("bounds", "bound", "ceiling", "headroom")


def roofline(anatomy: Anatomy, top: int) -> Section | None:
    """Return each class, then the operators with most to win: rates reached, bounds, and how near they are to them."""
    if all(row.bound_ns is None for row in anatomy.classes):
        return None
    lines = [*_classes(anatomy), *_operators(anatomy, top)]
    columns = (
        Column(header="roofline", holds=ColumnKind.NAMES),
        Column(header="FLOP/B", drop_order=3),
        Column(header="FLOP/s", unit="FLOP/s", drop_order=4),
        Column(header="B/s", unit="B/s", drop_order=5),
        Column(header="bound by", drop_order=2),
        Column(header="ceiling"),
        Column(header="headroom", drop_order=1),
    )
    steps = steps_of(anatomy)
    rows = tuple(
        Row(cells=_cells(line, steps), operator_class=line.operator_class, summary=line.operator_class is None)
        for line in lines
    )
    partly = any(line.part.reached is not None and line.part.covered != 1 for line in lines)
    notes = (Note(text=_NOTE), *((Note(text=PARTLY),) if partly else ()))
    return Section(name="bounds", title="Roofline", scope=per_step(anatomy), columns=columns, rows=rows, notes=notes)


class _Line(Struct, frozen=True):
    """One line of the table; `bound_by` names the bound, `operator_class` is `None` for the total."""

    name: OperatorClass | Phrase | str
    part: Total
    headroom_ns: int
    bound_by: str | Phrase
    operator_class: OperatorClass | None


def _classes(anatomy: Anatomy) -> list[_Line]:
    groups: list[tuple[OperatorClass | str, OperatorClass | None, Sequence[ClassRow]]] = [
        (item, item, rows) for item, rows in by_class(anatomy) if any(row.bound_ns is not None for row in rows)
    ]
    for phase in _OF_GENERATION:
        rows = [row for row in anatomy.classes if row.phase is phase]
        if any(row.bound_ns is not None for row in rows):
            groups.append((str(phase), None, rows))
    groups.append(("total", None, anatomy.classes))
    return [_Line(name, total(rows), _headroom_ns(rows), _class_bound(rows), item) for name, item, rows in groups]


def _operators(anatomy: Anatomy, top: int) -> list[_Line]:
    return [
        _Line(phrase("{} {}", Name(name), phase.value), total(rows), spare_ns(rows), _operator_bound(rows), item)
        for (item, name, phase), rows in _most_to_win(anatomy.operators)[:top]
    ]


def _most_to_win(rows: Sequence[OperatorRow]) -> list[tuple[Group, list[OperatorRow]]]:
    bounded = [group for group in grouped(rows).items() if any(row.bound_ns is not None for row in group[1])]
    return sorted(bounded, key=lambda group: -spare_ns(group[1]))


def _cells(line: _Line, steps: int) -> tuple[Cell, ...]:
    part = line.part
    # The rate of a small part of the time is not that of the whole.
    flops, moved = (part.flops, part.bytes) if part.flops_cover else (None, None)
    return (
        line.name,
        Ratio(part.intensity if part.flops_cover else None),
        FlopRate(units.per_second(flops, part.costed_ns)),
        ByteRate(units.per_second(moved, part.costed_ns)),
        line.bound_by,
        Share(part.reached, 1, covered=part.covered),
        Time(line.headroom_ns / steps),
    )


def _headroom_ns(rows: Sequence[ClassRow]) -> int:
    return sum(row.headroom_ns or 0 for row in rows)


def _class_bound(rows: Sequence[ClassRow]) -> str | Phrase:
    """Return the bound of a class: by name, or the share of its bound that memory sets."""
    return _bound_by(sum(row.memory_bound_ns or 0 for row in rows), sum(row.bound_ns or 0 for row in rows))


def _operator_bound(rows: Sequence[OperatorRow]) -> str | Phrase:
    by_memory = sum(row.bound_ns or 0 for row in rows if row.bound_by == MEMORY)
    return _bound_by(by_memory, sum(row.bound_ns or 0 for row in rows))


def _bound_by(memory_ns: int, whole_ns: int) -> str | Phrase:
    if not whole_ns:
        return units.UNKNOWN
    if memory_ns == whole_ns:
        return MEMORY
    return phrase("memory {}", Share(memory_ns, whole_ns, decimals=0)) if memory_ns else COMPUTE
