"""The operators that take most of the time, all signatures in one phase together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from opanatomy.records.anatomy import Anatomy, OperatorRow
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report import units
from opanatomy.report.section import (
    ByteRate,
    Cell,
    Column,
    Count,
    FlopRate,
    Holds,
    Name,
    Row,
    Section,
    Share,
    Time,
    phrase,
)
from opanatomy.report.totals import total

Group: TypeAlias = tuple[OperatorClass, str, Phase]


def operators(anatomy: Anatomy, top: int) -> Section | None:
    """The `top` operators by time, with their parts, and what the others take together."""
    groups = grouped(anatomy.operators)
    if not groups or top < 1:
        return None
    whole_ns = total(anatomy.classes).time_ns
    # Ties in the order of the anatomy: sorting is stable.
    ranked = sorted(groups.items(), key=lambda group: -total(group[1]).time_ns)
    rows = [
        Row(cells=(Name(name), item, phase.value, *_cells(members, whole_ns)), operator_class=item)
        for (item, name, phase), members in ranked[:top]
    ]
    if others := [row for _, members in ranked[top:] for row in members]:
        more = phrase("and {} more", Count(len(ranked) - top))
        rows.append(Row(cells=(more, None, None, *_cells(others, whole_ns))))
    columns = (
        Column(header="operator", holds=Holds.NAMES),
        Column(header="class", holds=Holds.NAMES, expendable=4),
        Column(header="phase", holds=Holds.NAMES, expendable=3),
        Column(header="calls", expendable=5),
        Column(header="time"),
        Column(header="share"),
        Column(header="FLOP/s", unit="FLOP/s", expendable=1),
        Column(header="B/s", unit="B/s", expendable=2),
    )
    return Section(name="operators", title="The operators that take most", columns=columns, rows=tuple(rows))


def grouped(rows: Iterable[OperatorRow]) -> dict[Group, list[OperatorRow]]:
    """The rows of each operator in each phase, parts with the operator that they are a part of."""
    groups: dict[Group, list[OperatorRow]] = {}
    for row in rows:
        groups.setdefault((row.operator_class, row.part_of or row.operator, row.phase), []).append(row)
    return groups


def _cells(rows: list[OperatorRow], whole_ns: int) -> tuple[Cell, ...]:
    part = total(rows)
    return (
        Count(sum(row.calls for row in rows if row.part_of is None)),
        Time(part.time_ns),
        Share(part.time_ns, whole_ns),
        FlopRate(units.per_second(part.flops, part.costed_ns)),
        ByteRate(units.per_second(part.bytes, part.costed_ns)),
    )
