"""What a part of the report says, as data: columns, rows, facts and notes, whose cells are typed and not yet rounded.

A format lays a section out; widths, colours and wording of numbers are its own (`units.text_of` writes a quantity).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final, TypeAlias

from msgspec import Struct

from opanatomy.records.memory import MemoryPoint
from opanatomy.records.taxonomy import OperatorClass

# --------------------------------------------------------------------------- quantities; `None` is what is not known


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
    """How many `what` a second."""

    per_second: float
    what: str


class Count(Struct, frozen=True):
    """A number of things, each a `noun` where that is to be said; `assumed` where the trace does not say it."""

    number: float | None
    noun: str = ""
    assumed: bool = False


class Ratio(Struct, frozen=True):
    """A quotient without a unit."""

    value: float | None


class Share(Struct, frozen=True):
    """`part` of `whole`, to so many `decimals` of a percent; of `covered` of the whole it is known at all."""

    part: float | None
    whole: float | None
    decimals: int = 1
    covered: float | None = None

    @property
    def partial(self) -> bool:
        """Whether it is known of a part of the whole only."""
        return self.covered not in (None, 1)


class Change(Struct, frozen=True):
    """What `new` is more or less than `old`."""

    new: float | None
    old: float | None


class TimeChange(Struct, frozen=True):
    """A difference of durations in nanoseconds, with its sign."""

    ns: float | None


class Figure(Struct, frozen=True):
    """A published figure in the unit of its source; a `difference` of two has a sign."""

    value: float | None
    unit: str
    difference: bool = False


class Exact(Struct, frozen=True):
    """A whole number of some `unit` of which every digit may count: one side of a comparison."""

    number: int | None
    unit: str = ""


Quantity: TypeAlias = (
    Time | Bytes | Flops | FlopRate | ByteRate | Rate | Count | Ratio | Share | Change | TimeChange | Figure | Exact
)

# ------------------------------------------------------------------------------------------------------- cells, text


class Name(Struct, frozen=True):
    """The name of an operator or a kernel, which a format may shorten."""

    name: str


class Phrase(Struct, frozen=True):
    """Words with names and quantities between them."""

    parts: tuple[str | OperatorClass | Name | Quantity, ...]


Cell: TypeAlias = str | OperatorClass | Name | Quantity | Phrase | None
"""What a place of a table holds; `None` where it is to be empty."""


def phrase(template: str, *parts: str | OperatorClass | Name | Quantity | Phrase) -> Phrase:
    """The template with the parts in the places of its `{}`."""
    words = template.split("{}")
    if len(words) != len(parts) + 1:
        raise ValueError(f"{len(parts)} parts for {template!r}")
    words_and_parts: list[str | OperatorClass | Name | Quantity] = [words[0]]
    for part, text in zip(parts, words[1:], strict=True):
        words_and_parts += [*(part.parts if isinstance(part, Phrase) else (part,)), text]
    return Phrase(tuple(part for part in words_and_parts if part != ""))


def joined(phrases: Iterable[str | Phrase | None], by: str = ", ") -> Phrase | None:
    """The phrases with `by` between them, those that are `None` or empty left out; `None` where none is left."""
    kept = [item if isinstance(item, Phrase) else Phrase((item,)) for item in phrases if item]
    return phrase(by.join("{}" for _ in kept), *kept) if kept else None


# ---------------------------------------------------------------------------------------------------------- sections


class Holds(Enum):
    """What a column holds: numbers, names that may be shortened, formulas that are shown whole or not at all."""

    NUMBERS = auto()
    NAMES = auto()
    FORMULAS = auto()


class Column(Struct, frozen=True, kw_only=True):
    """A column of a table: where room is short the one that is most `expendable` goes first, one of 0 never.

    Its cells are all in `unit` where one is said, so that they need not say it themselves.
    """

    header: str
    unit: str = ""
    holds: Holds = Holds.NUMBERS
    expendable: int = 0


class Row(Struct, frozen=True, kw_only=True):
    """A cell for each column; `fraction` is its part of the whole table, for a bar, and a `summary` sums up others."""

    cells: tuple[Cell, ...]
    operator_class: OperatorClass | None = None
    fraction: float | None = None
    summary: bool = False


class Fact(Struct, frozen=True, kw_only=True):
    """A line of its own: what `label` is."""

    label: str
    text: str | Phrase
    warning: bool = False


#: What stands before options that a command is to be typed with, where it cannot be said whole.
WITH: Final = "the report with"


class Tone(Enum):
    """How a note is meant: as plain text, the title, what marks in a table mean, a remark, a warning, a conclusion,
    a command to type next, or the options that the report is to be made with next."""

    PLAIN = auto()
    TITLE = auto()
    FOOTNOTE = auto()
    REMARK = auto()
    WARNING = auto()
    CONCLUSION = auto()
    COMMAND = auto()
    OPTIONS = auto()


class Note(Struct, frozen=True, kw_only=True):
    """A sentence next to the table; one about a `column` goes where that column is shown."""

    text: str | Phrase
    tone: Tone = Tone.FOOTNOTE
    column: str | None = None


class Section(Struct, frozen=True, kw_only=True):
    """One part of the report: a table, facts or a curve, and notes. `name` is what a user calls it by.

    Parts that follow each other under one `heading` are shown together, `heading` being what a user calls them all by;
    `scope` says of which steps the figures are, where there are several, and what shares are of.
    """

    name: str
    title: str
    heading: str = ""
    scope: str = ""
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    facts: tuple[Fact, ...] = ()
    curve: tuple[MemoryPoint, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether it says nothing."""
        return not (self.rows or self.facts or self.curve or self.notes)

    @property
    def shown_columns(self) -> tuple[int, ...]:
        """The places of the columns that hold something in a row, and of those that are never left out."""
        return tuple(
            place
            for place, column in enumerate(self.columns)
            if not column.expendable or any(is_known(row.cells[place]) for row in self.rows)
        )


def is_known(cell: Cell) -> bool:
    """Whether a cell says something: no empty one, and no quantity that is not known."""
    if cell is None or isinstance(cell, (str, OperatorClass, Name, Phrase)):
        return cell is not None
    if isinstance(cell, Share):
        return cell.part is not None and bool(cell.whole)
    if isinstance(cell, Change):
        return cell.new is not None and bool(cell.old)
    return getattr(cell, cell.__struct_fields__[0]) is not None


def facts_of(*pairs: tuple[str, str | Phrase | None]) -> tuple[Fact, ...]:
    """(label, text) as facts, without those that have no text."""
    return tuple(Fact(label=label, text=text) for label, text in pairs if text)
