"""The tables of the terminal report; each is `None` where the anatomy has nothing to put into it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.text import Text

from opanatomy.records.anatomy import Anatomy, ClassRow, OperatorRow
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report import units
from opanatomy.report.classes import COLOUR, LABEL, SHORT_LABEL
from opanatomy.report.roofline import PARTLY, reached_shares
from opanatomy.report.table import Column, Row, prose, table
from opanatomy.report.totals import Total, total

#: From this width on, classes have their full names.
_ROOMY: Final = 100
#: Shares of FLOPs and time, Ivanov et al., arXiv 2007.00072, table 1: a BERT-large encoder layer on a V100.
_PAPER: Final = {
    OperatorClass.TENSOR_CONTRACTION: ("99.80 %", "61.0 %"),
    OperatorClass.STATISTICAL_NORMALIZATION: ("0.17 %", "25.5 %"),
    OperatorClass.ELEMENTWISE: ("0.03 %", "13.5 %"),
}
_NO_RATIO: Final = "-: a part without formula, or a forward of less than 1 % of the backward"
_PAPER_IS: Final = "paper: arXiv 2007.00072, BERT-large encoder layer, V100"


def class_table(anatomy: Anatomy, width: int, swatches: bool) -> list[Text] | None:
    """Time, FLOPs and bytes by operator class, and how near to the ceiling of the device where that is known."""
    if not anatomy.classes:
        return None
    whole = total(anatomy.classes)
    parts = [(item, total(members)) for item, members in _by_class(anatomy)]
    ceilings = reached_shares([*(part for _, part in parts), whole])
    rows = [
        Row(
            cells=_class_cells(_name(item, width), part, whole, ceiling),
            mark=COLOUR[item],
            bar=part.time_ns / whole.time_ns if whole.time_ns else 0.0,
        )
        for (item, part), ceiling in zip(parts, ceilings[:-1], strict=True)
    ]
    rows.append(Row(cells=_class_cells("total", whole, whole, ceilings[-1]), strong=True))
    columns = [
        Column(header="class", name=True, least=13),
        Column(header="calls", drop=7),
        Column(header="time"),
        Column(header="share"),
        Column(header="FLOP", drop=1),
        Column(header="share", drop=4),
        Column(header="bytes", drop=2),
        Column(header="FLOP/B", drop=3),
    ]
    if whole.bound_ns is not None:
        # The table of the roofline has the intensity again; a share of the ceiling stands with what it covers.
        columns[-1] = Column(header="FLOP/B", drop=6)
        columns.append(Column(header="ceiling", drop=5))
    else:
        rows = [Row(cells=row.cells[:-1], mark=row.mark, bar=row.bar, strong=row.strong) for row in rows]
    notes = [f"all {units.count(anatomy.step.count)} steps together" if anatomy.step.count > 1 else ""]
    notes.append("≥ some of the time has no formula" if any(row.cells[4].startswith("≥") for row in rows) else "")
    lines = table(columns, rows, width, swatches=swatches)
    shown = "ceiling" in lines[0].plain
    notes.append(PARTLY if shown and any("(" in ceiling for ceiling in ceilings) else "")
    note = "; ".join(filter(None, notes))
    return [*lines, *(prose(note, width, style="dim") if note else ())]


def _class_cells(name: str, part: Total, whole: Total, ceiling: str) -> tuple[str, ...]:
    partly = "" if part.flops is None or part.flops_are_all else "≥"
    return (
        name,
        units.count(part.calls),
        units.duration(part.time_ns),
        units.share(part.time_ns, whole.time_ns),
        partly + units.prefixed(part.flops),
        units.share(part.flops, whole.flops if whole.flops_cover else None),
        partly + units.size(part.bytes),
        units.ratio(part.intensity),
        ceiling,
    )


def phase_table(anatomy: Anatomy, width: int, swatches: bool) -> list[Text] | None:
    """Time by class and phase, where there is more than one phase."""
    phases = [phase for phase in Phase if any(row.phase is phase for row in anatomy.classes)]
    if len(phases) < 2:
        return None

    def cells(name: str, rows: Iterable[ClassRow]) -> tuple[str, ...]:
        rows = tuple(rows)
        parts = [total(row for row in rows if row.phase is phase).time_ns for phase in phases]
        return (name, *(units.duration(part) if part else units.UNKNOWN for part in parts))

    rows = [Row(cells=cells(_name(item, width), members), mark=COLOUR[item]) for item, members in _by_class(anatomy)]
    rows.append(Row(cells=cells("total", anatomy.classes), strong=True))
    columns = [
        Column(header="time by phase", name=True, least=13),
        *(Column(header=phase.value, drop=index) for index, phase in enumerate(phases)),
    ]
    return table(columns, rows, width, swatches=swatches)


def ratio_table(anatomy: Anatomy, width: int, swatches: bool) -> list[Text] | None:
    """Backward over forward by class, beside what theory says."""
    known = [row for row in anatomy.ratios if (row.time, row.flops, row.bytes) != (None, None, None)]
    if not known:
        return None
    columns = [
        Column(header="backward / forward", name=True, least=13),
        Column(header="time"),
        Column(header="FLOP", drop=1),
        Column(header="theory", drop=3),
        Column(header="bytes", drop=2),
        Column(header="theory", drop=4),
    ]
    rows = [
        Row(
            cells=(
                _name(row.operator_class, width),
                *map(units.ratio, (row.time, row.flops, row.theory_flops, row.bytes, row.theory_bytes)),
            ),
            mark=COLOUR[row.operator_class],
        )
        for row in known
    ]
    left_out = any(None in (row.time, row.bytes, row.flops if row.operator_class in _PAPER else 0) for row in known)
    note = prose(_NO_RATIO, width, style="dim") if left_out else ()
    return [*table(columns, rows, width, swatches=swatches), *note]


def paper_table(anatomy: Anatomy, width: int, swatches: bool) -> list[Text] | None:
    """The three classes of the paper among themselves, without the optimizer, beside what the paper found.

    `None` where the FLOPs of one of them are those of less than half of its time: they have no shares then.
    """
    rows = [row for row in anatomy.classes if row.operator_class in _PAPER and row.phase is not Phase.OPTIMIZER]
    parts = {item: total(row for row in rows if row.operator_class is item) for item in _PAPER}
    whole = total(rows)
    if not all(part.time_ns and part.flops and part.flops_cover for part in parts.values()):
        return None
    columns = [
        Column(header="the paper's classes", name=True, least=13),
        Column(header="FLOP"),
        Column(header="paper", drop=1),
        Column(header="time"),
        Column(header="paper", drop=1),
    ]
    shares = [
        Row(
            cells=(
                _name(item, width),
                units.share(part.flops, whole.flops, decimals=2),
                _PAPER[item][0],
                units.share(part.time_ns, whole.time_ns),
                _PAPER[item][1],
            ),
            mark=COLOUR[item],
        )
        for item, part in parts.items()
    ]
    return [*table(columns, shares, width, swatches=swatches), *prose(_PAPER_IS, width, style="dim")]


def operator_table(anatomy: Anatomy, width: int, swatches: bool, top: int) -> list[Text] | None:
    """The operators that take most of the time, with their parts, all signatures in one phase together."""
    groups: dict[tuple[OperatorClass, str, Phase], list[OperatorRow]] = {}
    for row in anatomy.operators:
        groups.setdefault((row.operator_class, row.part_of or row.operator, row.phase), []).append(row)
    if not groups or top < 1:
        return None
    whole_ns = total(anatomy.classes).time_ns
    # Ties in the order of the anatomy: sorting is stable.
    ranked = sorted(groups, key=lambda key: -total(groups[key]).time_ns)
    columns = [
        Column(header="operator", name=True, least=18),
        Column(header="class", name=True, least=13, drop=4),
        Column(header="phase", name=True, least=9, drop=3),
        Column(header="calls", drop=5),
        Column(header="time"),
        Column(header="share"),
        Column(header="FLOP/s", drop=1),
        Column(header="B/s", drop=2),
    ]
    rows = [
        Row(cells=(_operator(name, width), SHORT_LABEL[item], phase.value, *cells), mark=COLOUR[item])
        for item, name, phase in ranked[:top]
        for cells in [_operator_cells(groups[item, name, phase], whole_ns)]
    ]
    if rest := [row for key in ranked[top:] for row in groups[key]]:
        rows.append(Row(cells=(f"and {units.count(len(ranked) - top)} more", "", "", *_operator_cells(rest, whole_ns))))
    return table(columns, rows, width, swatches=swatches)


def _operator_cells(rows: list[OperatorRow], whole_ns: int) -> tuple[str, ...]:
    part = total(rows)
    return (
        units.count(sum(row.calls for row in rows if row.part_of is None)),
        units.duration(part.time_ns),
        units.share(part.time_ns, whole_ns),
        units.prefixed(units.per_second(part.flops, part.costed_ns)),
        units.prefixed(units.per_second(part.bytes, part.costed_ns)),
    )


def _by_class(anatomy: Anatomy) -> list[tuple[OperatorClass, list[ClassRow]]]:
    groups = [(item, [row for row in anatomy.classes if row.operator_class is item]) for item in OperatorClass]
    return [(item, rows) for item, rows in groups if rows]


def _name(item: OperatorClass, width: int) -> str:
    return (LABEL if width >= _ROOMY else SHORT_LABEL)[item]


def _operator(name: str, width: int) -> str:
    """The name of an operator, where room is scarce without the name space that nearly all share."""
    return name if width >= _ROOMY else name.removeprefix("aten::")
