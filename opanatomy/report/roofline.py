"""The table of the terminal report that sets classes and operators beside the ceilings of their device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct
from rich.text import Text

from opanatomy.records.anatomy import Anatomy, ClassRow, OperatorRow
from opanatomy.records.taxonomy import OperatorClass, Phase
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

#: What a share of a ceiling with another one behind it means.
PARTLY: Final = "(n %): the part of the time whose bound is known, nothing where that is less than half"

Group = tuple[OperatorClass, str, Phase]


def roofline_table(anatomy: Anatomy, width: int, swatches: bool, top: int) -> list[Text] | None:
    """Each class, then the operators with most to win: rates reached, what bounds them, how near they are to it."""
    if all(row.bound_ns is None for row in anatomy.classes):
        return None
    lines = _lines(anatomy, width, top)
    reached = reached_shares(line.part for line in lines)
    rows = [
        Row(cells=_cells(line, share), mark=line.mark, strong=line.mark is None)
        for line, share in zip(lines, reached, strict=True)
    ]
    columns = [
        Column(header="roofline", name=True, least=16),
        Column(header="FLOP/B", drop=3),
        Column(header="FLOP/s", drop=4),
        Column(header="B/s", drop=5),
        Column(header="bound by", drop=2),
        Column(header="of"),
        Column(header="headroom", drop=1),
    ]
    note = f"{_NOTE}; {PARTLY}" if any("(" in share for share in reached) else _NOTE
    return [*table(columns, rows, width, swatches=swatches), *prose(note, width, style="dim")]


class _Line(Struct, frozen=True):
    """One line of the table; `bound` names what bounds it, `mark` is `None` for the total."""

    name: str
    part: Total
    headroom: int
    bound: str
    mark: str | None = None


def _lines(anatomy: Anatomy, width: int, top: int) -> list[_Line]:
    names = LABEL if width >= _ROOMY else SHORT_LABEL
    classes = [(item, [row for row in anatomy.classes if row.operator_class is item]) for item in OperatorClass]
    lines = [
        _Line(names[item], total(members), _headroom(members), _bound(members), COLOUR[item])
        for item, members in classes
        if any(row.bound_ns is not None for row in members)
    ]
    lines.append(_Line("total", total(anatomy.classes), _headroom(anatomy.classes), _bound(anatomy.classes)))
    for (item, name, phase), members in _most_to_win(anatomy.operators)[:top]:
        label = f"{name if width >= _ROOMY else name.removeprefix('aten::')} {phase.value}"
        lines.append(_Line(label, total(members), spare(members), _operator_bound(members), COLOUR[item]))
    return lines


def reached_shares(parts: Iterable[Total]) -> list[str]:
    """How near to its bound each part is, and of how much of its time that is known where not of all: `61.2 % (95 %)`.

    All have one width, so that the shares stand below each other.
    """
    parts = tuple(parts)
    coverage = ["" if part.covered in (None, 1) else f" ({units.share(part.covered, 1, decimals=0)})" for part in parts]
    widest = max(map(len, coverage), default=0)
    return [units.share(part.reached, 1) + covered.ljust(widest) for part, covered in zip(parts, coverage, strict=True)]


def spare(rows: Sequence[OperatorRow]) -> int:
    """Time above the bounds of some operator rows; never below 0."""
    return max(sum(row.bounded_ns - row.bound_ns for row in rows if row.bound_ns is not None), 0)


def _most_to_win(rows: Sequence[OperatorRow]) -> list[tuple[Group, list[OperatorRow]]]:
    groups: dict[Group, list[OperatorRow]] = {}
    for row in rows:
        groups.setdefault((row.operator_class, row.part_of or row.operator, row.phase), []).append(row)
    bounded = [group for group in groups.items() if any(row.bound_ns is not None for row in group[1])]
    return sorted(bounded, key=lambda group: -spare(group[1]))


def _cells(line: _Line, reached: str) -> tuple[str, ...]:
    part = line.part
    return (
        line.name,
        units.ratio(part.intensity),
        units.prefixed(units.per_second(part.flops, part.costed_ns)),
        units.prefixed(units.per_second(part.bytes, part.costed_ns)),
        line.bound,
        reached,
        units.duration(line.headroom),
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
