"""Where the difference of two sides comes from: the causes, the largest changes, other kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from opanatomy.records.compared import Cause, Decomposition, Part, Work
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report.section import (
    Cell,
    Column,
    Count,
    Holds,
    Name,
    Note,
    Row,
    Section,
    Time,
    TimeChange,
    Tone,
    phrase,
)
from opanatomy.report.sections.causes import Group, bare, groups_of, name_of_part, named

_ELSEWHERE: Final = (
    "calls that take 0 ns ran before the step or after it on the device: of each event the part in the step counts"
)
#: Of the largest change: causes that change less are one row.
_SMALLEST: Final = 1e-3
#: Contractions with another kernel that are listed.
_KERNELS: Final = 8


def causes_table(parts: Decomposition) -> Section:
    """One row for the parts of one cause and class; they sum to the difference."""
    groups = groups_of(parts.parts)
    smallest = _SMALLEST * max((abs(group.change_ns) for group in groups), default=0)
    shown = [group for group in groups if group.change_ns and abs(group.change_ns) >= smallest]
    rows = [
        Row(
            cells=(group.name, Time(group.before_ns), Time(group.after_ns), TimeChange(group.change_ns)),
            operator_class=group.operator_class,
        )
        for group in shown
    ]
    if small := [group for group in groups if 0 < abs(group.change_ns) < smallest]:
        rows.append(_summed(phrase("and {} smaller", Count(len(small))), small))
    if same := [group for group in groups if not group.change_ns]:
        rows.append(_summed("without a difference", same))
    rows.append(
        Row(cells=("step", Time(parts.before_ns), Time(parts.after_ns), TimeChange(parts.change_ns)), summary=True)
    )
    columns = (
        Column(header="where the difference is from", holds=Holds.NAMES), Column(header="before", expendable=2),
        Column(header="after", expendable=1), Column(header="change"),
    )  # fmt: skip
    notes = (Note(text="of the mean step; what overlaps is counted in each, and taken off once"),)
    return Section(
        name="causes", title="Where the difference comes from", columns=columns, rows=tuple(rows), notes=notes
    )


def _summed(name: Cell, groups: Sequence[Group]) -> Row:
    before, after = sum(group.before_ns for group in groups), sum(group.after_ns for group in groups)
    return Row(cells=(name, Time(before), Time(after), TimeChange(after - before)))


def changes_table(parts: Decomposition, top: int) -> Section:
    """The largest changes by name: of an operator those of one kind and phase together, in whatever modules."""
    groups: dict[tuple[Cell, ...], list[Part]] = {}
    for part in parts.parts:
        if part.change_ns and part.cause.is_work:
            groups.setdefault((name_of_part(part), part.cause, _what(part), _phases(part)), []).append(part)
    changed = sorted(groups.values(), key=lambda group: -abs(_change(group)))
    rows = [_group(group) for group in changed[:top]]
    if others := changed[top:]:
        more = sum(_change(group) for group in others)
        blank = (None,) * 5
        rows.append(Row(cells=(phrase("and {} more", Count(len(others))), *blank, TimeChange(more))))
    columns = (
        Column(header="work", holds=Holds.NAMES),
        Column(header="what changed", holds=Holds.NAMES),
        Column(header="phase", holds=Holds.NAMES, expendable=2),
        Column(header="calls", holds=Holds.NAMES, expendable=3),
        Column(header="before", expendable=5),
        Column(header="after", expendable=4),
        Column(header="change"),
    )
    elsewhere = any(_ran_elsewhere(part) for group in changed[:top] for part in group)
    return Section(
        name="changes", title="What changed most", heading="changes", columns=columns, rows=tuple(rows),
        notes=(Note(text=_ELSEWHERE),) if elsewhere else (),
    )  # fmt: skip


def _ran_elsewhere(part: Part) -> bool:
    """Whether one side calls the work and has none of its time."""
    sides = (part.before, part.before_ns), (part.after, part.after_ns)
    return any(work is not None and work.calls and not spent for work, spent in sides)


def _change(group: Sequence[Part]) -> int:
    return sum(part.change_ns for part in group)


def _group(group: Sequence[Part]) -> Row:
    first = group[0]
    return Row(
        cells=(
            Name(name_of_part(first)), _what(first), _phases(first), _calls(group),
            Time(sum(part.before_ns for part in group)), Time(sum(part.after_ns for part in group)),
            TimeChange(_change(group)),
        ),
        operator_class=first.operator_class,
    )  # fmt: skip


def _what(part: Part) -> str:
    before, after = part.before, part.after
    if part.cause is Cause.ANOTHER_SIGNATURE and before is not None and after is not None:
        if before.flops and after.flops and before.flops != after.flops:
            return f"{after.flops / before.flops:.3g} x the FLOPs"
        if before.bytes and after.bytes and before.bytes != after.bytes:
            return f"{after.bytes / before.bytes:.3g} x the bytes"
    if part.cause is Cause.MOVED and before is not None:
        return f"moved from {'/'.join(before.phases)}"
    return named(part.cause)


def _phases(part: Part) -> str:
    """That of the work after, of what is gone that before."""
    side = part.after if part.after is not None else part.before
    return "" if side is None else "/".join(side.phases)


def _calls(group: Sequence[Part]) -> str:
    sides = [sum(side.calls for part in group if (side := getattr(part, name))) for name in ("before", "after")]
    return " to ".join(dict.fromkeys(f"{calls:.3g}" for calls in sides))


def kernels_table(parts: Decomposition) -> Section:
    """The contractions for which the library chose another kernel."""
    rows = []
    for part in parts.parts:
        before, after = part.before, part.after
        if part.operator_class is not OperatorClass.TENSOR_CONTRACTION or before is None or after is None:
            continue
        if before.kernels and after.kernels and before.kernels[0] != after.kernels[0]:
            kernels = (Name(bare(side.kernels[0])) for side in (before, after))
            cells = (Name(name_of_part(part)), _signature(after), *kernels, TimeChange(part.change_ns))
            rows.append(Row(cells=cells, operator_class=part.operator_class))
    columns = (
        Column(header="another kernel", holds=Holds.NAMES), Column(header="signature", holds=Holds.NAMES, expendable=1),
        Column(header="before", holds=Holds.NAMES), Column(header="after", holds=Holds.NAMES), Column(header="change"),
    )  # fmt: skip
    return Section(
        name="kernels-changed", title="Other kernels", heading="kernels", columns=columns,
        rows=tuple(rows[:_KERNELS]), notes=more_rows(len(rows) - _KERNELS),
    )  # fmt: skip


def more_rows(count: int) -> tuple[Note, ...]:
    """How many rows are left out."""
    text = phrase("and {} more, in the JSON report", Count(count))
    return (Note(text=text, tone=Tone.REMARK),) if count > 0 else ()


def _signature(work: Work) -> Name | None:
    return Name(work.signatures[0]) if work.signatures else None
