"""A part of the report as data: columns, rows, facts and notes with typed, unrounded cells.

A format lays a section out; it decides on widths, colours and wording of numbers (`units.text_of` writes a quantity).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from typing import Final, TypeAlias, TypeVar

from msgspec import Struct

from opanatomy.analysis.costs import Costs, steps_of
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.comparison import GateResult
from opanatomy.records.memory import MemoryPoint
from opanatomy.records.patterns import regex
from opanatomy.records.reports import Report
from opanatomy.records.taxonomy import OperatorClass

# --------------------------------------------------------------------------- quantities; `None` is what is unknown


class Time(Struct, frozen=True):
    """A duration in nanoseconds."""

    ns: float | None


class Bytes(Struct, frozen=True):
    """A number of bytes; with `at_least` a lower bound."""

    bytes: float | None
    at_least: bool = False


class Flops(Struct, frozen=True):
    """Floating-point operations; with `at_least` a lower bound."""

    flops: float | None
    at_least: bool = False


class FlopRate(Struct, frozen=True):
    """Floating-point operations a second."""

    flops_per_second: float | None


class ByteRate(Struct, frozen=True):
    """Bytes a second."""

    bytes_per_second: float | None


class Rate(Struct, frozen=True):
    """A rate of `what` per second."""

    per_second: float
    what: str


class Count(Struct, frozen=True):
    """A number of things, each a `noun` if that is shown; `assumed` if not recorded in the trace."""

    number: float | None
    noun: str = ""
    assumed: bool = False
    at_least: bool = False


class Ratio(Struct, frozen=True):
    """A quotient without a unit."""

    value: float | None
    at_least: bool = False


class Share(Struct, frozen=True):
    """`part` of `whole`, with this many `decimals` of a percent; known for `covered` of the whole.

    With `at_least` it is a lower bound.
    """

    part: float | None
    whole: float | None
    decimals: int = 1
    covered: float | None = None
    at_least: bool = False

    @property
    def partial(self) -> bool:
        """Return whether it is known for only part of the whole."""
        return self.covered not in (None, 1)


class Change(Struct, frozen=True):
    """The difference of `new` and `old`, as a part of `old`."""

    new: float | None
    old: float | None


class TimeChange(Struct, frozen=True):
    """A difference of durations in nanoseconds, with its sign."""

    ns: float | None


class BytesChange(Struct, frozen=True):
    """A difference of sizes in bytes, with its sign."""

    bytes: float | None


class Figure(Struct, frozen=True):
    """A published figure in the unit of its source; a `difference` of two has a sign."""

    value: float | None
    unit: str
    difference: bool = False


class Exact(Struct, frozen=True):
    """A whole number of some `unit` in which every digit may count: one side of a comparison."""

    number: int | None
    unit: str = ""


Quantity: TypeAlias = (
    Time
    | Bytes
    | Flops
    | FlopRate
    | ByteRate
    | Rate
    | Count
    | Ratio
    | Share
    | Change
    | TimeChange
    | BytesChange
    | Figure
    | Exact
)


def value_of(quantity: Quantity) -> float | None:
    """Return the value of a quantity, which is its first field; `None` if it is unknown."""
    value: float | None = getattr(quantity, quantity.__struct_fields__[0])
    return value


# ------------------------------------------------------------------------------------------------------- cells, text


class Name(Struct, frozen=True):
    """The name of an operator or a kernel, which a format may shorten."""

    name: str


_LOADER: Final = regex(r"^enumerate\(DataLoader\)#_(Single|Multi)Process\w*\.__next__$")


def said(name: str) -> Name:
    """Return a name as used in sentences: an operator without namespace, a loader by its kind."""
    loader = _LOADER.match(name)
    if loader is not None:
        return Name(f"DataLoader ({'workers' if loader[1] == 'Multi' else 'single process'})")
    return Name(name.removeprefix("aten::"))


class Phrase(Struct, frozen=True):
    """Words with names and quantities between them."""

    parts: tuple[str | OperatorClass | Name | Quantity, ...]


Cell: TypeAlias = str | OperatorClass | Name | Quantity | Phrase | None
"""What a place of a table holds; `None` where it is to be empty."""


def phrase(template: str, *parts: str | OperatorClass | Name | Quantity | Phrase) -> Phrase:
    """Fill the template's `{}` with the parts."""
    words = template.split("{}")
    if len(words) != len(parts) + 1:
        raise ValueError(f"{len(parts)} parts for {template!r}")
    words_and_parts: list[str | OperatorClass | Name | Quantity] = [words[0]]
    for part, text in zip(parts, words[1:], strict=True):
        words_and_parts += [*(part.parts if isinstance(part, Phrase) else (part,)), text]
    return Phrase(tuple(part for part in words_and_parts if part != ""))


def joined(phrases: Iterable[str | Phrase | None], by: str = ", ") -> Phrase | None:
    """Join the phrases by `by`, leaving out `None` and empty ones; return `None` if none is left."""
    kept = [item if isinstance(item, Phrase) else Phrase((item,)) for item in phrases if item]
    return phrase(by.join("{}" for _ in kept), *kept) if kept else None


# ---------------------------------------------------------------------------------------------------------- sections


class ColumnKind(Enum):
    """The contents of a column: numbers, names that may be shortened, formulas that are shown whole or not at all."""

    NUMBERS = auto()
    NAMES = auto()
    FORMULAS = auto()


class Column(Struct, frozen=True, kw_only=True):
    """A table column: if space is short, columns are dropped by descending `drop_order`, never with 0.

    If it has a `unit`, all its cells are in that unit and need not repeat it. Names are cut to `least` cells, not
    further. `key` is for a second column of the same header.
    """

    header: str
    key: str = ""
    unit: str = ""
    holds: ColumnKind = ColumnKind.NUMBERS
    least: int = 12
    drop_order: int = 0

    @property
    def name(self) -> str:
        """Return the key of its cells in a row."""
        return self.key or self.header


class Row(Struct, frozen=True, kw_only=True):
    """Cells by column key; `fraction` is the row's share of the whole table, for a bar, and a `summary` totals other
    rows. Missing columns are empty. `key` identifies the row across tables and charts."""

    cells: Mapping[str, Cell]
    operator_class: OperatorClass | None = None
    fraction: float | None = None
    summary: bool = False
    key: str = ""

    def cell(self, column: Column) -> Cell:
        """Return its cell of a column."""
        return self.cells.get(column.name)


Item = TypeVar("Item")
#: A table's columns in order, each with the function that computes its cell from a row's item.
Columns: TypeAlias = Mapping[Column, Callable[[Item], Cell]]


def cells_of(columns: Columns[Item], item: Item) -> dict[str, Cell]:
    """Return the cells of an item's row."""
    return {column.name: cell(item) for column, cell in columns.items()}


class Fact(Struct, frozen=True, kw_only=True):
    """A line with a `label` and its text; advice has a `cure` on a line of its own.

    If it has `most_lines` for its text and one for its cure, a terminal ends both at a clause.
    """

    label: str
    text: str | Phrase
    warning: bool = False
    cure: str | Phrase | None = None
    most_lines: int | None = None

    @property
    def whole(self) -> str | Phrase:
        """Return the text and the cure."""
        return self.text if self.cure is None else phrase("{} {}", self.text, self.cure)


#: Stands before options to type with a command that cannot be written whole.
WITH: Final = "show the report with"


class NoteKind(Enum):
    """The kind of a note: plain text, the title, the meaning of marks in a table, a remark, a warning, a conclusion, a
    command to type next, or options to make the report with next."""

    PLAIN = auto()
    TITLE = auto()
    FOOTNOTE = auto()
    REMARK = auto()
    WARNING = auto()
    CONCLUSION = auto()
    COMMAND = auto()
    OPTIONS = auto()


class Note(Struct, frozen=True, kw_only=True):
    """A sentence beside the table; a note on a `column` is only shown with that column.

    A terminal ends it at a clause after `most_lines`.
    """

    text: str | Phrase
    kind: NoteKind = NoteKind.FOOTNOTE
    column: str | None = None
    most_lines: int | None = None


class Section(Struct, frozen=True, kw_only=True):
    """One part of the report: a table, facts or a curve, and notes. `name` is the user's name for it.

    Consecutive parts with the same `heading`, the user's name for them all, are shown together; an `open` part is never
    collapsed. These three come from the list of sections, `sections.PARTS`. `scope` states which steps the figures
    cover, if there are several, and what shares refer to.
    """

    name: str = ""
    title: str
    heading: str = ""
    open: bool = False
    scope: str = ""
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    facts: tuple[Fact, ...] = ()
    curve: tuple[MemoryPoint, ...] = ()
    notes: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        keys = {column.name for column in self.columns}
        for row in self.rows:
            if unknown := row.cells.keys() - keys:
                raise ValueError(f"{self.title}: cells {sorted(unknown)} have no column")

    @property
    def empty(self) -> bool:
        """Return whether it is empty."""
        return not (self.rows or self.facts or self.curve or self.notes)

    @property
    def shown_columns(self) -> tuple[Column, ...]:
        """Return the columns with a non-empty cell, and those that are never dropped."""
        return tuple(
            column
            for column in self.columns
            if not column.drop_order or any(is_known(row.cell(column)) for row in self.rows)
        )


def is_known(cell: Cell) -> bool:
    """Return whether a cell is neither empty nor an unknown quantity."""
    if cell is None or isinstance(cell, (str, OperatorClass, Name, Phrase)):
        return cell is not None
    if isinstance(cell, Share):
        return cell.part is not None and bool(cell.whole)
    if isinstance(cell, Change):
        return cell.new is not None and bool(cell.old)
    return value_of(cell) is not None


def facts_of(*pairs: tuple[str, str | Phrase | None]) -> tuple[Fact, ...]:
    """Return (label, text) pairs as facts, without empty ones."""
    return tuple(Fact(label=label, text=text) for label, text in pairs if text)


# How page figures are normalized (per step, all ranks), and the heading text for it.
#
# All figures are means over the steps that count, of all ranks, so that parts sum to their whole; a step that holds
# other steps' work or a pause, or makes other calls than most, does not count.


#: Time of other steps' work is shown from this part of the window on.
_FOREIGN: Final = 0.01


def scope_per_step(anatomy: Anatomy) -> str:
    """Return a heading's scope for sums: `per step, mean of 4`; empty for a single step."""
    steps, ranks = steps_of(anatomy), len(anatomy.ranks)
    if steps == 1:
        return ""
    return f"per step and rank, mean of {steps:,}" if ranks > 1 else f"per step, mean of {steps:,}"


def shares_of_work(anatomy: Anatomy) -> str:
    """Return a heading's words for a table with shares of the device work, on the CPU of the operators' time."""
    return "; ".join(filter(None, (scope_per_step(anatomy), f"shares of the {work_of(anatomy)}")))


def work_of(anatomy: Anatomy) -> str:
    """Return what the time of all classes is called: device work, on the CPU operator time, else host time."""
    if anatomy.environment.host_only:
        return "host time in operators"
    return "operator time" if anatomy.environment.device_kind == "cpu" else "device work"


def whole_of(costs: Costs) -> str:
    """Return the whole of a screen's shares: the step without other steps' work, else first to last device work."""
    return "the trace" if costs.of_trace else "the step"


def scope_all_steps(anatomy: Anatomy) -> str:
    """Return a heading's scope for undivided sums."""
    steps = steps_of(anatomy)
    return "" if steps == 1 else f"all {steps:,} steps together"


def has_foreign_work(anatomy: Anatomy) -> bool:
    """Return whether the device did only other steps' work for enough of the steps to mention it."""
    timeline = anatomy.timeline
    return (timeline.outside_ns or 0) >= _FOREIGN * timeline.window_ns > 0


def calls_of(calls: float, *, at_least: bool = False) -> Count | Ratio:
    """Return the calls per mean step: an integer if it is the same in all steps."""
    return Ratio(calls, at_least) if calls % 1 else Count(int(calls), at_least=at_least)


# The look of an operator class in every format: its name, a short one for narrow places, its colour.


LABEL: Final = {
    OperatorClass.TENSOR_CONTRACTION: "tensor contraction",
    OperatorClass.STATISTICAL_NORMALIZATION: "statistical normalization",
    OperatorClass.ELEMENTWISE: "element-wise",
    OperatorClass.DATA_MOVEMENT: "data movement",
    OperatorClass.COMMUNICATION: "communication",
    OperatorClass.OTHER: "other",
    OperatorClass.UNKNOWN: "unknown",
}

SHORT_LABEL: Final = LABEL | {
    OperatorClass.TENSOR_CONTRACTION: "contraction",
    OperatorClass.STATISTICAL_NORMALIZATION: "normalization",
}

#: The palette of Okabe and Ito, which colour-blind readers can distinguish; the warning colour is for unknown work.
COLOUR: Final = {
    OperatorClass.TENSOR_CONTRACTION: "#0072b2",
    OperatorClass.STATISTICAL_NORMALIZATION: "#e69f00",
    OperatorClass.ELEMENTWISE: "#009e73",
    OperatorClass.DATA_MOVEMENT: "#56b4e9",
    OperatorClass.COMMUNICATION: "#cc79a7",
    OperatorClass.OTHER: "#888888",
    OperatorClass.UNKNOWN: "#d55e00",
}


class Page(Struct, frozen=True, kw_only=True):
    """How a human-readable format lays a report out: its width in characters, whether it shows color, what it includes.

    `brief` selects only the first screen, `full` the entire report; with neither, a terminal shows the first screen.
    `sections` selects sections by name (from `sections.SECTIONS`). Tables have `top` rows, operators are sorted by
    `sort`, and `advice` is the number of pieces of advice at the beginning. `source` is the trace's file name as the
    report's commands show it, and `sides` has that of each side of a comparison (`None` if a side has no file). If the
    first screen has more than `height` lines, its tables get fewer rows. With `more`, the first screen ends with the
    command that shows the rest. `gates` are gates on a single report. `chart` is the chart shown by an image format.
    """

    width: int = 80
    color: bool = False
    brief: bool = False
    full: bool = False
    sections: tuple[str, ...] = ()
    top: int = 8
    advice: int = 3
    sort: str = "time"
    source: str | None = None
    sides: tuple[str | None, ...] = ()
    height: int | None = None
    more: bool = False
    gates: tuple[GateResult, ...] = ()
    chart: str | None = None


class Format(Struct, frozen=True, kw_only=True):
    """A report format: its file extension, the function that creates its text (or bytes, for an image), and whether it
    is machine-readable. Each file in `formats/` declares its format as `FORMAT`."""

    ending: str
    write: Callable[[Report, Page], str | bytes]
    machine_readable: bool

    def encoded(self, report: Report, page: Page) -> bytes:
        """Return the report as the bytes of its file, with text in UTF-8."""
        made = self.write(report, page)
        return made if isinstance(made, bytes) else made.encode()
