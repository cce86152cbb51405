"""A comparison: what changed in a sentence, what was compared, where the difference comes from, the figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from opanatomy.records.compared import SIGNIFICANT, Cause, Comparison, Decomposition, FigureRow, Part, Side, Work
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report.section import (
    Bytes,
    Cell,
    Change,
    Column,
    Count,
    Fact,
    Figure,
    Flops,
    Holds,
    Name,
    Note,
    Phrase,
    Quantity,
    Row,
    Section,
    Share,
    Time,
    TimeChange,
    Tone,
    joined,
    phrase,
)
from opanatomy.report.sections.causes import bare, groups_of, name_of_part, named, sentence_of

#: Causes that are told in sentences.
TOLD: Final = 3
#: A difference of figures of which nothing can be claimed.
_NOT_CLAIMED: Final = "~"
#: Steps that have a row.
_STEPS: Final = 24
#: Contractions with another kernel that are listed.
_KERNELS: Final = 8
#: The figures of more than two sides, and what heads their columns; more are in the JSON report.
_OF_MANY: Final = {
    "step_time_ns": "step", "samples_per_second": "samples", "idle_ns": "idle", "framework_ns": "framework",
    "exposed_communication_ns": "exposed", "flops": "FLOP", "bytes": "bytes", "mfu": "MFU", "peak_memory_bytes": "peak",
}  # fmt: skip
#: Figures on the page, in this order; all of them are in the JSON report.
_SHOWN: Final = (
    "step_time_ns", "step_profiled_ns", "samples_per_second", "forward_time_ns", "backward_time_ns",
    "optimizer_time_ns", "busy_ns", "idle_ns", "host_idle_ns", "framework_ns", "exposed_communication_ns",
    "exposed_memcpy_ns", "kernel_time_ns", "flops", "bytes", "mfu", "hfu", "peak_memory_bytes",
)  # fmt: skip
_FAMILIES: Final = (("class.", ".time_ns"), ("class.", ".flops"), ("class.", ".bytes"), ("memory.", "_bytes"))


def sections_of_comparison(comparison: Comparison, top: int) -> tuple[Section, ...]:
    """The sections of a comparison, in the order of the page."""
    parts = comparison.decomposition
    if len(comparison.sides) > 2:
        tables = [_many(comparison)]
    else:
        causes = [] if parts is None else [_causes(parts), _largest(parts, top), _kernels(parts)]
        tables = [*causes, _steps(comparison), _figures(comparison), _families(comparison)]
    sections = (
        _title(comparison), _what_changed(comparison), _gates(comparison), _sides(comparison), *tables,
        _warnings(comparison),
    )  # fmt: skip
    return tuple(section for section in sections if not section.empty)


def _title(comparison: Comparison) -> Section:
    names = [Name(side.name) for side in comparison.sides]
    text = phrase(" against ".join("{}" for _ in names), *names)
    return Section(name="title", title="Comparison", notes=(Note(text=text, tone=Tone.TITLE),))


def _what_changed(comparison: Comparison) -> Section:
    """The difference of the step in a sentence, the largest causes in one each."""
    parts = comparison.decomposition
    if parts is None:
        return Section(name="changed", title="What changed", notes=_extremes(comparison))
    told = [phrase("{}.", sentence_of(group)) for group in groups_of(parts)[:TOLD] if group.change_ns]
    notes = [Note(text=headline(comparison, parts), tone=Tone.CONCLUSION)]
    notes += [Note(text=text, tone=Tone.PLAIN) for text in told]
    if comparison.no_claim is not None and parts.change_ns:
        notes.append(Note(text=f"Nothing is called significant: {comparison.no_claim}.", tone=Tone.REMARK))
    return Section(name="changed", title="What changed", notes=tuple(notes))


def _extremes(comparison: Comparison) -> tuple[Note, ...]:
    """Of more than two sides the one with the shortest step and the one with the longest."""
    row = next((row for row in comparison.figures if row.name == "step_time_ns"), None)
    values = [] if row is None else list(zip(row.values, comparison.sides, strict=True))
    known = [(value, side.name) for value, side in values if value is not None]
    if len(known) < 2:
        return ()
    if len(known) == 2:
        (before, _), (after, _) = known
        text = phrase("The step takes {} before and {} after ({}).", Time(before), Time(after), Change(after, before))
        return (Note(text=text, tone=Tone.CONCLUSION),)
    (least, shortest), (most, longest) = min(known), max(known)
    text = phrase(
        "The step is shortest on {}, {}, and longest on {}, {}.", Name(shortest), Time(least), Name(longest), Time(most)
    )
    return (Note(text=text, tone=Tone.CONCLUSION),)


def headline(comparison: Comparison, parts: Decomposition) -> Phrase:
    """The difference of the step in a sentence."""
    if not parts.change_ns:
        same = ", and so does each part of it" if not any(part.change_ns for part in parts.parts) else ""
        return phrase("The step takes {} on both sides{}.", Time(parts.before_ns), same)
    how = "longer" if parts.change_ns > 0 else "shorter"
    step = next((row for row in comparison.figures if row.name == "step_profiled_ns"), None)
    ranges: Phrase | str = ""
    if step is not None and step.p is not None:
        ranges = f"; over the runs p = {step.p:.2g}{'' if step.p < SIGNIFICANT else ', which may be chance'}"
    elif step is not None and step.ranges:
        ranges = phrase("; the ranges of the like steps are {}", step.ranges)
    elif any(len(steps) == 1 for steps in (parts.before_steps, parts.after_steps)):
        ranges = "; one step does not tell a change from chance"
    return phrase(
        "The step is {} {} ({}): {} before, {} after{}.",
        Time(abs(parts.change_ns)), how, Change(parts.after_ns, parts.before_ns), Time(parts.before_ns),
        Time(parts.after_ns), ranges,
    )  # fmt: skip


def _sides(comparison: Comparison) -> Section:
    facts = []
    for place, side in enumerate(comparison.sides):
        label = ("before", "after")[place] if len(comparison.sides) == 2 else f"{place + 1}"
        what = joined(
            (
                phrase("{}", Name(side.name)), side.model, side.device, side.software,
                phrase("{}", Count(side.ranks, "rank")) if side.ranks > 1 else None,
                phrase("{}", Count(side.runs, "run")) if side.runs > 1 else None,
            )
        )  # fmt: skip
        facts.append(Fact(label=label, text=what or ""))
    parts = comparison.decomposition
    if parts is not None:
        facts.append(Fact(label="steps", text=_what_is_compared(comparison, parts)))
    return Section(name="sides", title="What is compared", facts=tuple(facts))


def _what_is_compared(comparison: Comparison, parts: Decomposition) -> Phrase:
    """Which steps the means are of."""
    sides = [
        phrase("{}{}", _numbers(numbers), _aside(side))
        for numbers, side in zip((parts.before_steps, parts.after_steps), comparison.sides, strict=True)
    ]
    others = joined(
        phrase("{} to {} ({})", Time(kind.before_ns), Time(kind.after_ns), _numbers(kind.before_steps))
        for kind in comparison.other_kinds
    )
    return phrase("{} against {}{}", *sides, phrase("; of another kind: {}", others) if others else "")


def _numbers(steps: Sequence[int]) -> str:
    shown = ", ".join(map(str, steps[:6])) + (f" and {len(steps) - 6} more" if len(steps) > 6 else "")
    if not steps:
        return "the whole trace"
    return f"{'step' if len(steps) == 1 else 'the mean of steps'} {shown}"


def _aside(side: Side) -> str:
    count = sum(step.set_aside is not None for step in side.steps)
    return f" ({count} set aside)" if count else ""


# --------------------------------------------------------------------------------------- where the difference is from


def _causes(parts: Decomposition) -> Section:
    """One row for the parts of one cause and class; they sum to the difference."""
    groups = groups_of(parts)
    rows = [
        Row(
            cells=(group.name, Time(group.before_ns), Time(group.after_ns), TimeChange(group.change_ns)),
            operator_class=group.operator_class,
        )
        for group in groups
        if group.change_ns
    ]
    if same := [group for group in groups if not group.change_ns]:
        before = sum(group.before_ns for group in same)
        rows.append(Row(cells=("without a difference", Time(before), Time(before), TimeChange(0))))
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


def _largest(parts: Decomposition, top: int) -> Section:
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
    return Section(name="changes", title="What changed most", heading="changes", columns=columns, rows=tuple(rows))


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


def _kernels(parts: Decomposition) -> Section:
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
        rows=tuple(rows[:_KERNELS]), notes=_more(len(rows) - _KERNELS),
    )  # fmt: skip


def _more(count: int) -> tuple[Note, ...]:
    """How many rows are left out."""
    text = phrase("and {} more, in the JSON report", Count(count))
    return (Note(text=text, tone=Tone.REMARK),) if count > 0 else ()


def _signature(work: Work) -> Name | None:
    return Name(work.signatures[0]) if work.signatures else None


# ------------------------------------------------------------------------------------------------------------ figures


def _steps(comparison: Comparison) -> Section:
    """Every like step, of a few; of many the range is in the figures."""
    rows = []
    for side in comparison.sides:
        for step in side.steps:
            text = step.set_aside and f"set aside: {step.set_aside}"
            rows.append(Row(cells=(Name(side.name), step.label, Time(step.value), text)))
    columns = (
        Column(header="side", holds=Holds.NAMES), Column(header="step", holds=Holds.NAMES), Column(header="time"),
        Column(header="", holds=Holds.NAMES, expendable=1),
    )  # fmt: skip
    return Section(
        name="steps", title="Like steps", heading="steps", columns=columns, rows=tuple(rows[:_STEPS]),
        notes=_more(len(rows) - _STEPS),
    )  # fmt: skip


def _figures(comparison: Comparison) -> Section:
    section = _table(shown_figures(comparison), "figures", "Figures of one step")
    note = Note(text="of one step, called what --fail-if takes; all of them are in the JSON report")
    return replace(section, notes=(*section.notes, note))


def shown_figures(comparison: Comparison) -> list[FigureRow]:
    """The figures that the page has, in its order."""
    known = {row.name: row for row in comparison.figures}
    return [known[name] for name in _SHOWN if name in known]


def _families(comparison: Comparison) -> Section:
    """Time, FLOPs and bytes by class, memory by component."""
    rows = [
        row for begin, end in _FAMILIES for row in comparison.figures
        if row.name.startswith(begin) and row.name.endswith(end) and any(row.values)
    ]  # fmt: skip
    return _table(rows, "classes", "By class and component")


def _many(comparison: Comparison) -> Section:
    """A row a side with its most telling figures; the first that do not fit are those furthest to the right."""
    known = {row.name: row for row in comparison.figures}
    rows = [known[name] for name in _OF_MANY if name in known]
    columns = [Column(header="side", holds=Holds.NAMES)]
    columns += [Column(header=_OF_MANY[row.name], expendable=place) for place, row in enumerate(rows)]
    cells = [
        Row(cells=(phrase("{} {}", Count(place + 1), Name(side.name)), *(_cell(row, place) for row in rows)))
        for place, side in enumerate(comparison.sides)
    ]  # fmt: skip
    note = Note(text="of one step; all figures are in the JSON report")
    return Section(
        name="figures", title="Figures of one step", heading="figures", columns=tuple(columns), rows=tuple(cells),
        notes=(note,),
    )  # fmt: skip


def _cell(row: FigureRow, place: int) -> Cell:
    value = row.values[place]
    return None if value is None else quantity(row.unit, value)


def _table(rows: Sequence[FigureRow], name: str, title: str) -> Section:
    """The figures that differ between two sides."""
    columns = (
        Column(header="figure", holds=Holds.NAMES), Column(header="before"), Column(header="after"),
        Column(header="change"), Column(header="ranges", holds=Holds.NAMES, expendable=1),
    )  # fmt: skip
    changed = [row for row in rows if len(set(row.values)) > 1]
    cells = tuple(
        Row(cells=(row.name, _cell(row, 0), _cell(row, 1), Change(row.values[1], row.values[0]), _ranges(row)))
        for row in changed
    )
    notes = []
    if any(row.p is not None and row.p >= SIGNIFICANT for row in changed):
        notes.append(Note(text=f"{_NOT_CLAIMED}: no difference beyond chance (p >= {SIGNIFICANT})"))
    if same := len(rows) - len(changed):
        notes.append(Note(text=phrase("{} without a difference", Count(same, "figure"))))
    return Section(name=name, title=title, heading=name, columns=columns, rows=cells, notes=tuple(notes))


def _ranges(row: FigureRow) -> str | None:
    """What can be said of the difference: of runs the test, of like steps whether their ranges overlap."""
    if row.p is None:
        return row.ranges
    return f"{_NOT_CLAIMED} p={row.p:.2g}" if row.p >= SIGNIFICANT else f"p={row.p:.2g}"


_QUANTITIES: Final[dict[str, Callable[[float], Quantity]]] = {
    "ns": Time, "bytes": Bytes, "flop": Flops, "fraction": lambda value: Share(value, 1),
}  # fmt: skip


def quantity(unit: str, value: float) -> Quantity:
    """A figure in its unit."""
    made = _QUANTITIES.get(unit)
    return Figure(value, unit) if made is None else made(value)


def _gates(comparison: Comparison) -> Section:
    facts = [
        Fact(label="gate", text=f"{'met' if gate.met else 'NOT MET'}: {gate.gate}: {gate.reason}", warning=not gate.met)
        for gate in comparison.gates
    ]
    return Section(name="gates", title="Gates", facts=tuple(facts))


def _warnings(comparison: Comparison) -> Section:
    facts = [Fact(label="warning", text=text, warning=True) for text in comparison.warnings]
    return Section(name="warnings", title="Warnings", facts=tuple(facts))
