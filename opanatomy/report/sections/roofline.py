"""Compare classes and operators with the ceilings of their device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from opanatomy.analysis.costs import steps_of
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import OF_GENERATION, OperatorClass, Phase
from opanatomy.records.work import COMPUTE, MEMORY, ClassRow
from opanatomy.report import units
from opanatomy.report.section import (
    ByteRate,
    Column,
    ColumnKind,
    Columns,
    FlopRate,
    Name,
    Note,
    Page,
    Phrase,
    Ratio,
    Row,
    Section,
    Share,
    Time,
    cells_of,
    phrase,
    scope_per_step,
)
from opanatomy.report.sections.classes import PARTLY, by_class, why_above
from opanatomy.report.sections.operators import grouped, key_of, spare_ns
from opanatomy.report.terms import note
from opanatomy.report.totals import Total, total

_NOTE: Final = note("bounds", "bound", "of peak", "headroom")


def roofline(anatomy: Anatomy, page: Page) -> Section | None:
    """Return each class, then the operators with most headroom: rates reached, bounds, and their ratio."""
    if all(row.bound_ns is None for row in anatomy.classes):
        return None
    steps = steps_of(anatomy)
    columns: Columns[_Line] = {
        Column(header="roofline", holds=ColumnKind.NAMES, least=16): lambda line: line.name,
        Column(header="FLOP/B", drop_order=3): lambda line: Ratio(line.part.intensity),
        Column(header="FLOP/s", unit="FLOP/s", drop_order=4): lambda line: FlopRate(line.part.rate(line.part.flops)),
        Column(header="B/s", unit="B/s", drop_order=5): lambda line: ByteRate(line.part.rate(line.part.bytes)),
        Column(header="bound by", drop_order=2): lambda line: line.bound_by,
        Column(header="of peak"): lambda line: Share(line.part.reached, 1, covered=line.part.covered),
        Column(header="headroom", drop_order=1): lambda line: Time(line.headroom_ns / steps),
    }
    groups: list[tuple[OperatorClass | str, OperatorClass | None, Phase | None, Sequence[ClassRow]]] = [
        (item, item, None, rows) for item, rows in by_class(anatomy) if any(row.bound_ns is not None for row in rows)
    ]
    for phase in OF_GENERATION:
        members = [row for row in anatomy.classes if row.phase is phase]
        if any(row.bound_ns is not None for row in members):
            groups.append((str(phase), None, phase, members))
    groups.append(("total", None, None, anatomy.classes))
    lines = [
        _Line(
            name,
            (part := total(rows)),
            sum(row.headroom_ns or 0 for row in rows),
            _bound_by(sum(row.memory_bound_ns or 0 for row in rows), part),
            item,
            (item, phase, None),
        )
        for name, item, phase, rows in groups
    ]

    bounded = [
        group for group in grouped(anatomy.operators).items() if any(row.bound_ns is not None for row in group[1])
    ]
    lines += [
        _Line(
            phrase("{} {}", Name(name), phase.value),
            (part := total(rows)),
            spare_ns(rows),
            _bound_by(sum(row.bound_ns or 0 for row in rows if row.bound_by == MEMORY), part),
            item,
            (item, phase, name),
            key_of((item, name, phase)),
        )
        for (item, name, phase), rows in sorted(bounded, key=lambda group: -spare_ns(group[1]))[: page.top]
    ]
    rows = tuple(
        Row(
            cells=cells_of(columns, line),
            operator_class=line.operator_class,
            summary=line.operator_class is None,
            key=line.key,
        )
        for line in lines
    )
    partly = any(line.part.reached is not None and line.part.covered != 1 for line in lines)
    shown = [(line.name, line.above) for line in lines]
    notes = (*why_above(anatomy, shown), Note(text=_NOTE), *((Note(text=PARTLY),) if partly else ()))
    return Section(title="Roofline", scope=scope_per_step(anatomy), columns=tuple(columns), rows=rows, notes=notes)


class _Line(Struct, frozen=True):
    """One line of the table; `bound_by` names the bound, `operator_class` is `None` for the total."""

    name: OperatorClass | Phrase | str
    part: Total
    headroom_ns: int
    bound_by: str | Phrase
    operator_class: OperatorClass | None
    #: Key of the work in `device.above`: its class, phase and operator.
    above: tuple[OperatorClass | None, Phase | None, str | None]
    key: str = ""


def _bound_by(memory_ns: int, part: Total) -> str | Phrase:
    """Return the bound's name, or the share of it set by memory."""
    if not part.bound_ns:
        return units.UNKNOWN
    if memory_ns == part.bound_ns:
        return MEMORY
    return phrase("memory {}", Share(memory_ns, part.bound_ns, decimals=0)) if memory_ns else COMPUTE
