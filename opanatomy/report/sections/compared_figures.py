"""The figures of all sides next to each other: like steps, metrics, classes and components."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from opanatomy.records.compared import SIGNIFICANT, Comparison, FigureRow
from opanatomy.report.section import (
    Bytes,
    Cell,
    Change,
    Column,
    Count,
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
    phrase,
)
from opanatomy.report.sections.compared_parts import more_rows

#: A difference of figures of which nothing can be claimed.
_NOT_CLAIMED: Final = "~"
#: What is said of a figure that a like step does not have.
_ALL_STEPS: Final = "of all steps"
#: Steps that have a row.
_STEPS: Final = 24
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


def steps_table(comparison: Comparison) -> Section:
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
        notes=more_rows(len(rows) - _STEPS),
    )  # fmt: skip


def figures_table(comparison: Comparison) -> Section:
    """The figures of one step that differ, and how many do not."""
    section = _table(comparison, shown_figures(comparison), "figures", "Figures of one step")
    note = Note(text="of one step, called what --fail-if takes; all of them are in the JSON report")
    return replace(section, notes=(*section.notes, note))


def shown_figures(comparison: Comparison) -> list[FigureRow]:
    """The figures that the page has, in its order."""
    known = {row.name: row for row in comparison.figures}
    return [known[name] for name in _SHOWN if name in known]


def families_table(comparison: Comparison) -> Section:
    """Time, FLOPs and bytes by class, memory by component."""
    rows = [
        row for begin, end in _FAMILIES for row in comparison.figures
        if row.name.startswith(begin) and row.name.endswith(end) and any(row.values)
    ]  # fmt: skip
    return _table(comparison, rows, "classes", "By class and component")


def figures_of_many(comparison: Comparison) -> Section:
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
    return None if value is None else with_bound(row, place)


def with_bound(row: FigureRow, place: int) -> Phrase:
    """A figure of one side, `≥` before one that is a lower bound."""
    value = row.values[place]
    if value is None:
        return phrase("-")
    bound = "≥ " if row.lower_bounds and row.lower_bounds[place] else ""
    return phrase(bound + "{}", quantity(row.unit, value))


def _table(comparison: Comparison, rows: Sequence[FigureRow], name: str, title: str) -> Section:
    """The figures that differ between two sides, with their changes where these are of the same."""
    columns = [
        Column(header="figure", holds=Holds.NAMES), Column(header="before", expendable=1), Column(header="after"),
        Column(header="change"), Column(header="ranges", holds=Holds.NAMES, expendable=2),
    ]  # fmt: skip
    if comparison.not_comparable:
        columns = columns[:3]
    changed = [row for row in rows if len(set(row.values)) > 1]
    each = (
        (row.name, _cell(row, 0), _cell(row, 1), Change(row.values[1], row.values[0]), _ranges(row)) for row in changed
    )
    cells = tuple(Row(cells=cells[: len(columns)]) for cells in each)
    notes = []
    if any(row.all_steps for row in changed):
        notes.append(Note(text=f"{_ALL_STEPS}: unlike ones too, a like step does not have the figure"))
    if any(row.p is not None and row.p >= SIGNIFICANT for row in changed):
        notes.append(Note(text=f"{_NOT_CLAIMED}: no difference beyond chance (p >= {SIGNIFICANT})"))
    if same := len(rows) - len(changed):
        notes.append(Note(text=phrase("{} without a difference", Count(same, "figure"))))
    return Section(name=name, title=title, heading=name, columns=tuple(columns), rows=cells, notes=tuple(notes))


def _ranges(row: FigureRow) -> str | None:
    """What can be said of the difference: of runs the test, of like steps whether their ranges overlap."""
    if row.all_steps:
        return _ALL_STEPS
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
