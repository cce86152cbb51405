"""One step over time: lanes with what ran in each, and every event's name, call and origin."""

from __future__ import annotations

from enum import auto
from typing import Final

from msgspec import field

from opanatomy.records.codec import Record
from opanatomy.records.signature import SignatureText
from opanatomy.records.table import Column, Table, empty
from opanatomy.records.taxonomy import IdleCause, OperatorClass, Phase, StrEnum


class LaneKind(StrEnum):
    """What a lane shows: the phases of the step, a device (one per rank), one of its streams, or a thread."""

    PHASES = auto()
    DEVICE = auto()
    STREAM = auto()
    HOST = auto()


class Lane(Record, frozen=True, kw_only=True):
    """A place where something happened during the step.

    of: `phases`, `device`, `stream` or `host`.
    name: the name of the phase lane, device, stream or thread.
    bin_ns: set if the lane has more spans than the report keeps. Its spans are then the times of each kind within bins
        of this length, without names and in no particular order.
    count: how many spans it has, kept or not.
    """

    of: LaneKind
    name: str
    bin_ns: int | None = None
    count: int = 0


#: Kinds of spans other than phases, classes of work and causes of idle time.
COMPUTING, EXPOSED, WAITING_FOR_RANKS, COPIES = (
    "computing",
    "exposed_communication",
    "waiting_for_ranks",
    "exposed_copies",
)
OUTSIDE_WORK, UNRECORDED, IDLE = "outside", "unrecorded", "idle_"
OPERATORS, LAUNCHING, WAITING, RUNTIME, PYTHON = "operators", "launching", "waiting", "runtime", "python"
FRAMEWORK, INPUT = "framework", "input"
_KINDS: Final = {
    COMPUTING, EXPOSED, WAITING_FOR_RANKS, COPIES, OUTSIDE_WORK, UNRECORDED, OPERATORS, LAUNCHING, WAITING, RUNTIME,
    PYTHON, FRAMEWORK, INPUT, *Phase, *OperatorClass, *(f"{IDLE}{cause.value}" for cause in IdleCause),
}  # fmt: skip


def span_kind(value: str) -> str:
    """Return a kind of spans; raise `ValueError` for any other text."""
    if value not in _KINDS:
        raise ValueError(f"{value!r} is not a kind of span")
    return value


class SpanTable(Table):
    """What happened in the lanes: one row per span, sorted by lane and then by start."""

    __slots__ = ()


#: The columns of a table of spans.
SPAN_COLUMNS: Final = (
    Column(name="lane", meaning="the name of the lane", text="name", known_with=("length_ns",)),
    Column(name="kind", known_with=("lane",), values=span_kind, meaning=(
        "what happened: a phase, a class of work, `computing`, `exposed_communication`, `waiting_for_ranks`, "
        "`exposed_copies`, `outside`, `unrecorded`, `idle_CAUSE`; on the host `operators`, `launching`, `waiting`, "
        "`runtime`, `python`, `framework`, `input`"
    )),
    Column(name="name", meaning="the kernel, copy or fill; on the host the innermost event", text="name"),
    Column(name="operator", meaning="the operator that launched it, or the event around a runtime call", text="name"),
    Column(name="signature", meaning="the arguments of the operator", text="arguments", values=SignatureText),
    Column(name="module", meaning="the path of the operator's module", text="module"),
    Column(name="phase", meaning="the phase", values=Phase),
    Column(name="grid", meaning="the grid of a kernel, and its threads per block"),
    Column(name="cause", meaning=(
        "the lane that it comes from: the thread that launched the work, the stream whose work ended idle time or a "
        "wait, or the rank that others waited for"
    ), text="name"),
    Column(name="begin_ns", unit="ns", meaning="when the span began, from the start of the step", known_with=("lane",)),
    Column(name="length_ns", unit="ns", meaning="how long the span lasted within the step", known_with=("lane",)),
    Column(name="cause_ns", unit="ns", meaning="when its cause began, from the start of the step; negative if earlier"),
)  # fmt: skip
NO_SPANS: Final = empty(SpanTable, SPAN_COLUMNS)


class Lanes(Record, frozen=True, kw_only=True):
    """The counted step whose time is closest to the mean.

    step: its number; `begin_ns` is when it began in the trace's time (with several ranks, the first rank's time, on the
        common clock), `wall_ns` its time.
    lanes: the lanes from top to bottom; `hidden` more, those with the least work, are left out.
    spans: what happened in the lanes. Spans of one lane are disjoint, except for work that ran concurrently on one
        stream, and those of a device fill the step.
    on_one_clock: whether the lanes of several ranks share a common clock, as set in `waiting.clocks`; otherwise each
        lane begins with its rank's step.
    """

    step: int | None
    wall_ns: int
    lanes: tuple[Lane, ...]
    spans: SpanTable = field(default_factory=lambda: NO_SPANS)
    begin_ns: int | None = None
    hidden: int = 0
    on_one_clock: bool = False
