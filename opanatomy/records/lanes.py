"""One step over time: lanes with what ran in each, every event with its name, its call and where it came from."""

from __future__ import annotations

from enum import auto
from typing import Final

from msgspec import field

from opanatomy.records.codec import Record
from opanatomy.records.signature import SignatureText
from opanatomy.records.table import Column, Table, empty
from opanatomy.records.taxonomy import Phase, StrEnum


class LaneKind(StrEnum):
    """What a lane shows: the phases of the step, a device (of ranks each one's), one of its streams, a thread."""

    PHASES = auto()
    DEVICE = auto()
    STREAM = auto()
    HOST = auto()


class Lane(Record, frozen=True, kw_only=True):
    """A place where something happened during the step.

    of: `phases`, `device`, `stream` or `host`.
    name: which one.
    bin_ns: set where the lane has more spans than the report keeps: these are then the times of each kind in parts of
        the step of this length, without names and in no order.
    count: how many spans it has, whether they are kept or not.
    """

    of: LaneKind
    name: str
    bin_ns: int | None = None
    count: int = 0


class SpanTable(Table):
    """What happened in the lanes: a row for each span, by lane and then by begin."""

    __slots__ = ()


#: The columns of a table of spans.
SPAN_COLUMNS: Final = (
    Column(name="lane", meaning="the name of the lane", text="name", known_with=("length_ns",)),
    Column(name="kind", known_with=("lane",), meaning=(
        "what happened: a phase, a class of work, `computing`, `exposed_communication`, `waiting_for_ranks`, "
        "`exposed_copies`, `outside`, `unrecorded`, `idle_CAUSE`; on the host `operators`, `launching`, `waiting`, "
        "`runtime`, `python`, `framework`"
    )),
    Column(name="name", meaning="the kernel, copy or fill; on the host the innermost event", text="name"),
    Column(name="operator", meaning="the operator that launched it, or the event around a runtime call", text="name"),
    Column(name="signature", meaning="the arguments of the operator", text="arguments", values=SignatureText),
    Column(name="module", meaning="the path of its module", text="module"),
    Column(name="phase", meaning="its phase", values=Phase),
    Column(name="grid", meaning="the grid of a kernel and the threads of a block"),
    Column(name="cause", meaning=(
        "the lane of what it comes from: the thread that launched work, the stream whose work ended an idle time or a "
        "wait, the rank that others waited for"
    ), text="name"),
    Column(name="begin_ns", unit="ns", meaning="when it began, from the start of the step", known_with=("lane",)),
    Column(name="length_ns", unit="ns", meaning="how long it took in the step", known_with=("lane",)),
    Column(name="cause_ns", unit="ns", meaning="when that began, from the start of the step; negative before it"),
)  # fmt: skip
NO_SPANS: Final = empty(SpanTable, SPAN_COLUMNS)


class Lanes(Record, frozen=True, kw_only=True):
    """The step, of those that count, whose time is nearest to their mean.

    step: its number; `begin_ns` is when it began in the time of the trace (of several ranks the first one's, on the
        clock of all), `wall_ns` its time.
    lanes: from top to bottom; `hidden` more are left out, those with least work.
    spans: what happened in them. Spans of one lane are disjoint but for work of one stream that ran at once, and those
        of a device fill the step.
    on_one_clock: whether the lanes of several ranks are on the clock of all, as `waiting.clocks` has it; else each
        begins with the step of its rank.
    """

    step: int | None
    wall_ns: int
    lanes: tuple[Lane, ...]
    spans: SpanTable = field(default_factory=lambda: NO_SPANS)
    begin_ns: int | None = None
    hidden: int = 0
    on_one_clock: bool = False
