"""The table of the terminal report that sets classes and operators beside the ceilings of their device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from opanatomy.model import Anatomy, ClassRow, OperatorClass, OperatorRow, Phase
from opanatomy.report import units
from opanatomy.report.classes import COLOUR, LABEL, SHORT_LABEL
from opanatomy.report.table import Column, Row, prose, table
from opanatomy.report.totals import Total, total

_ROOMY: Final = 100
_MEMORY: Final = "memory"
_NOTE: Final = (
    "bound: the longer of FLOP / peak and bytes / bandwidth; of: bound / time - where memory bounds, the paper's MUE,"
    " whose factors (needless traffic, reached bandwidth) only hardware counters tell apart; headroom: time - bound"
)

Group = tuple[OperatorClass, str, Phase]


def roofline_table(anatomy: Anatomy, width: int, swatches: bool, top: int) -> list[Text] | None:
    """Each class, then the operators with most to win: rates reached, what bounds them, how near they are to it."""
    if all(row.bound_ns is None for row in anatomy.classes):
        return None
    classes = [(item, [row for row in anatomy.classes if row.operator_class is item]) for item in OperatorClass]
    rows = [
        Row(cells=_class_cells(item, members, width), mark=COLOUR[item])
        for item, members in classes
        if any(row.bound_ns is not None for row in members)
    ]
    every = _cells("total", total(anatomy.classes), _headroom(anatomy.classes), _bound(anatomy.classes))
    rows.append(Row(cells=every, strong=True))
    for (item, name, phase), members in _most_to_win(anatomy.operators)[:top]:
        label = f"{name if width >= _ROOMY else name.removeprefix('aten::')} {phase.value}"
        cells = _cells(label, total(members), spare(members), _operator_bound(members))
        rows.append(Row(cells=cells, mark=COLOUR[item]))
    columns = [
        Column(header="roofline", name=True, least=16),
        Column(header="FLOP/B", drop=2),
        Column(header="FLOP/s", drop=3),
        Column(header="B/s", drop=4),
        Column(header="bound by", drop=1),
        Column(header="of"),
        Column(header="headroom"),
    ]
    return [*table(columns, rows, width, swatches=swatches), *prose(_NOTE, width, style="dim")]


def spare(rows: Sequence[OperatorRow]) -> int:
    """Time above the bounds of some operator rows; never below 0."""
    return max(sum(row.time_ns - row.bound_ns for row in rows if row.bound_ns is not None), 0)


def _most_to_win(rows: Sequence[OperatorRow]) -> list[tuple[Group, list[OperatorRow]]]:
    groups: dict[Group, list[OperatorRow]] = {}
    for row in rows:
        if row.bound_ns is not None:
            groups.setdefault((row.operator_class, row.part_of or row.operator, row.phase), []).append(row)
    return sorted(groups.items(), key=lambda group: -spare(group[1]))


def _class_cells(item: OperatorClass, rows: list[ClassRow], width: int) -> tuple[str, ...]:
    name = (LABEL if width >= _ROOMY else SHORT_LABEL)[item]
    return _cells(name, total(rows), _headroom(rows), _bound(rows))


def _cells(name: str, part: Total, headroom: int, bound: str) -> tuple[str, ...]:
    return (
        name,
        units.ratio(part.intensity),
        units.prefixed(units.per_second(part.flops, part.costed_ns)),
        units.prefixed(units.per_second(part.bytes, part.costed_ns)),
        bound,
        units.share(part.bound_ns, part.bounded_ns),
        units.duration(headroom),
    )


def _headroom(rows: Sequence[ClassRow]) -> int:
    return sum(row.headroom_ns or 0 for row in rows)


def _bound(rows: Sequence[ClassRow]) -> str:
    """What bounds a class: by name, or the share of its bound that memory sets."""
    return _named(sum(row.memory_bound_ns or 0 for row in rows), sum(row.bound_ns or 0 for row in rows))


def _operator_bound(rows: Sequence[OperatorRow]) -> str:
    by_memory = sum(row.bound_ns or 0 for row in rows if row.bound_by == _MEMORY)
    return _named(by_memory, sum(row.bound_ns or 0 for row in rows))


def _named(memory_ns: int, whole_ns: int) -> str:
    if not whole_ns:
        return units.UNKNOWN
    if memory_ns == whole_ns:
        return _MEMORY
    return "compute" if not memory_ns else f"memory {units.share(memory_ns, whole_ns, decimals=0)}"
