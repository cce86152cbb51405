"""Define the tables between the stages: events of a trace, their attribution, calls and kernels, memory events.

Names are indices into the trace's list of names, times int64 nanoseconds; -1 is "not recorded".
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from opanatomy.records.runtime_calls import STARTS_WORK
from opanatomy.records.signature import SignatureText
from opanatomy.records.taxonomy import OperatorClass, Phase

Int64: TypeAlias = "npt.NDArray[np.int64]"
Bool: TypeAlias = "npt.NDArray[np.bool_]"
Float64: TypeAlias = "npt.NDArray[np.float64]"
#: Value of `tensor_cores` for a kernel on a device without tensor cores.
NO_UNITS: Final = -2
#: The type of the values of a categorical column.
Value = TypeVar("Value")


#: Times before and after all others.
BEFORE_ALL: Final = int(np.iinfo(np.int64).min)
AFTER_ALL: Final = int(np.iinfo(np.int64).max)


class HostEvents(Struct, frozen=True, kw_only=True):
    """Operators, autograd nodes and ranges on the host, in the order of the file."""

    name: Int64
    thread: Int64
    start_ns: Int64
    duration_ns: Int64
    external_id: Int64
    sequence: Int64
    forward_thread: Int64
    signature: Int64
    #: 1 for a user annotation (`record_function`), 0 for an operator.
    annotation: Int64

    @property
    def is_operator(self) -> Bool:
        """Return a mask of the operators; the others are annotations."""
        operators: Bool = self.annotation == 0
        return operators


class Flows(Struct, frozen=True, kw_only=True):
    """The profiler's flow arrows from a forward operator to its autograd node: thread and start of both events."""

    forward_thread: Int64
    forward_ns: Int64
    backward_thread: Int64
    backward_ns: Int64


NO_FLOWS = Flows(**{name: np.zeros(0, dtype=np.int64) for name in Flows.__struct_fields__})


class Launches(Struct, frozen=True, kw_only=True):
    """Calls of the device's runtime or driver on the host."""

    name: Int64
    thread: Int64
    start_ns: Int64
    duration_ns: Int64
    correlation: Int64
    external_id: Int64


class ProfilerEvents(Struct, frozen=True, kw_only=True):
    """The profiler's events about itself ("Buffer Flush"; `thread` is -1), and the starts of Python functions.

    Library functions that take less than 0.1 ms have no name (-1) and no duration, other library functions no name.
    """

    name: Int64
    start_ns: Int64
    duration_ns: Int64
    thread: Int64
    #: Index in `Trace.functions` of a function outside libraries, else -1.
    function: Int64


NO_PROFILER_EVENTS = ProfilerEvents(**{name: np.zeros(0, dtype=np.int64) for name in ProfilerEvents.__struct_fields__})

#: Kinds of device work.
KERNEL, MEMCPY, MEMSET = range(3)


class DeviceWork(Struct, frozen=True, kw_only=True):
    """Kernels, copies and fills on the device."""

    name: Int64
    device: Int64
    stream: Int64
    start_ns: Int64
    duration_ns: Int64
    correlation: Int64
    external_id: Int64
    #: `KERNEL`, `MEMCPY` or `MEMSET`.
    kind: Int64
    #: Thread blocks launched for each multiprocessor, and the estimated occupancy in percent; NaN is "not recorded".
    blocks_per_sm: Float64
    occupancy: Float64
    #: The number of its grid and block in `Trace.grids`, -1 if not recorded.
    grid: Int64
    #: The node of a CUDA graph, its graph above 32 bits (0: none); and from torch's annotations: the index of its
    #: module or marked name in `Trace.scopes`, -1 for none, and 1 for work of autograd's backward.
    node: Int64
    scope: Int64
    of_backward: Int64


class TraceDevice(Struct, frozen=True, kw_only=True):
    """A device that ran work, with its data from the trace's header; `None` means not recorded.

    `unnamed` has the candidate names if the trace does not show which of them belongs to this device number.
    """

    number: int
    kernel_ns: int
    name: str | None = None
    memory_bytes: int | None = None
    multiprocessors: int | None = None
    unnamed: tuple[str, ...] = ()


class CollectiveArguments(Struct, frozen=True):
    """The arguments that a collective's event records; `None` means not recorded."""

    collective: str
    in_elements: int | None = None
    out_elements: int | None = None
    group_size: int | None = None
    dtype: str | None = None
    #: The process group: its name and its ranks.
    group: str | None = None
    #: The number of the call within its group.
    sequence: int | None = None


class Categorical(Struct, Generic[Value], frozen=True):
    """A column with few distinct values: each row is a code, an index into `values`; -1 is "none"."""

    codes: Int64
    #: Distinct values.
    values: Sequence[Value]

    def equals(self, value: Value) -> Bool:
        """Return a mask of the rows with this value."""
        code = self.values.index(value) if value in self.values else len(self.values)
        rows: Bool = self.codes == code
        return rows

    def at(self, row: int) -> Value | None:
        """Return the value of a row."""
        code = int(self.codes[row])
        return None if code < 0 else self.values[code]

    def decoded(self) -> list[Value | None]:
        """Return the value of each row."""
        values = (*self.values, None)
        return [values[code] for code in self.codes.tolist()]

    def take(self, rows: Int64) -> Categorical[Value]:
        """Return the column of these rows; row -1 has no value."""
        return Categorical(take(self.codes, rows), self.values)


def categorical_of(values: Sequence[Value], codes: Int64) -> Categorical[Value]:
    """Build a column from values, which may repeat, and codes into them; -1 is none."""
    numbers: dict[Value, int] = {}
    first = np.array([*(numbers.setdefault(value, len(numbers)) for value in values), -1], dtype=np.int64)
    return Categorical(first[codes], tuple(numbers))


def arranged(column: Categorical[Value], values: Sequence[Value]) -> Categorical[Value]:
    """Return the column with its values in this order."""
    position = {value: index for index, value in enumerate(values)}
    codes = np.array([*(position[value] for value in column.values), -1], dtype=np.int64)
    return Categorical(codes[column.codes], tuple(values))


def concat(*columns: Categorical[Value]) -> Categorical[Value]:
    """Concatenate columns."""
    if all(column.values is columns[0].values for column in columns):
        return Categorical(np.concatenate([column.codes for column in columns]), columns[0].values)
    begins = np.cumsum([0, *(len(column.values) for column in columns)]).tolist()
    codes = [np.where(each.codes >= 0, each.codes + begin, -1) for each, begin in zip(columns, begins, strict=False)]
    return categorical_of([value for column in columns for value in column.values], np.concatenate(codes))


def take(column: Int64, rows: Int64) -> Int64:
    """Return the column's value at each of `rows`, -1 for row -1."""
    return np.where(rows >= 0, column[rows], -1) if len(column) else np.full(len(rows), -1, dtype=np.int64)


class Unique(Struct, frozen=True):
    """The distinct values of a column, in order."""

    values: Int64
    #: The first row of each value.
    first: Int64
    #: For each row of the column the index of its value in `values`.
    inverse: Int64


def order_by(keys: Sequence[Int64], ties: Sequence[Int64]) -> Int64:
    """Return the rows sorted by the first key, then the next; `ties` are read only for rows equal in all keys."""
    order: Int64 = np.lexsort(tuple(reversed(keys)))
    same = np.ones(max(len(order) - 1, 0), dtype=bool)
    for key in keys:
        same &= key[order[1:]] == key[order[:-1]]
    if same.any():
        alike = np.flatnonzero(np.append(same, False) | np.append(False, same))
        rows, run = order[alike], np.cumsum(np.append(True, ~same))[alike]
        order[alike] = rows[np.lexsort((*(tie[rows] for tie in reversed(ties)), run))]
    return order


def order_of_values(column: Int64) -> Int64:
    """Return the rows of a column in stable order of their values; a small range of values is sorted by counting."""
    if len(column) and (least := int(column.min())) > int(column.max()) - (1 << 16):
        return np.argsort((column - least).astype(np.uint16), kind="stable")  # numpy sorts 16-bit integers by counting
    return np.argsort(column, kind="stable")


def unique(column: Int64) -> Unique:
    """Return the distinct values of a column, by sorting it."""
    order = order_of_values(column)
    ordered = column[order]
    new = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    inverse = np.empty(len(column), dtype=np.int64)
    inverse[order] = np.cumsum(new) - 1
    return Unique(ordered[new], order[new], inverse)


def rows_by_value(column: Int64) -> Iterator[tuple[int, Int64]]:
    """Yield each distinct value of a column, in order, with its rows."""
    order = np.argsort(column, kind="stable")
    ordered = column[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    for value, begin, end in zip(
        ordered[begins].tolist(), begins.tolist(), [*begins[1:].tolist(), len(order)], strict=False
    ):
        yield value, order[begin:end]


def isin(column: Int64, values: Int64) -> Bool:
    """Return a mask of the rows whose value is one of `values`."""
    if not len(values):
        return np.zeros(len(column), dtype=bool)
    known = np.sort(values)
    among: Bool = known[np.minimum(np.searchsorted(known, column), len(known) - 1)] == column
    return among


def rows_named(pattern: re.Pattern[str], names: Sequence[str], column: Int64) -> Bool:
    """Return a mask of the rows of a column of `names` whose name matches; each name is searched once."""
    fits = np.zeros(len(names), dtype=bool)
    for number in np.flatnonzero(np.bincount(column, minlength=len(names))).tolist():
        fits[number] = pattern.search(names[number]) is not None
    rows: Bool = fits[column]
    return rows


def starts_work(names: Sequence[str], launches: Launches) -> Bool:
    """Return which calls of the runtime or driver start a kernel, a graph, a copy or a fill."""
    return rows_named(STARTS_WORK, names, launches.name)


def mask_of(rows: Int64, count: int) -> Bool:
    """Return a mask of length `count` that is set at `rows`."""
    marks = np.zeros(count, dtype=bool)
    marks[rows] = True
    return marks


#: How a device event was linked to its launch: codes of `DeviceEvents.link`, and their names.
LINKED, GRAPH, NO_LAUNCH, OUTSIDE = range(4)


class HostTable(Struct, frozen=True, kw_only=True):
    """Host events in nesting order (parents before children), with phase and module."""

    name: Int64
    thread: Int64
    start_ns: Int64
    duration_ns: Int64
    self_ns: Int64
    signature: Int64
    annotation: Int64
    #: Kineto's number of the event; its sequence number (of an autograd node: its forward operator's); and for a node
    #: the thread that ran the forward, as numbered by the profiler. Below 1: none.
    external_id: Int64
    sequence: Int64
    forward_thread: Int64
    parent: Int64
    #: Indices into `PHASES`.
    phase: Int64
    module: Categorical[str]
    in_window: Bool

    @property
    def is_operator(self) -> Bool:
        """Return a mask of the operators; the others are annotations."""
        operators: Bool = self.annotation == 0
        return operators

    @property
    def end_ns(self) -> Int64:
        """Return when each event ends."""
        return self.start_ns + self.duration_ns


_NO_ROWS: Final = np.zeros(0, dtype=np.int64)
NO_HOST = HostTable(
    **{name: _NO_ROWS for name in HostTable.__struct_fields__ if name not in ("module", "in_window")},
    module=Categorical(_NO_ROWS, ()),
    in_window=np.zeros(0, dtype=bool),
)


class WorkTable(Struct, frozen=True, kw_only=True):
    """Device work in the order of the file, with its operator call and launch.

    `host` is a row of the host events or -1, `link` one of `LINKED` to `OUTSIDE`, `launch` a row of the launches or -1.
    `ambiguous` is set if launches of other operators fit as well.
    """

    name: Int64
    device: Int64
    stream: Int64
    start_ns: Int64
    duration_ns: Int64
    host: Int64
    link: Int64
    launch: Int64
    ambiguous: Bool
    #: Indices into `PHASES`.
    phase: Int64
    module: Categorical[str]


class CallTable(Struct, frozen=True, kw_only=True):
    """One row for each call: an operator call that does work itself, or device work without an operator.

    Costs are per call, 0 for a call that is part of another one; -1 means unknown.
    """

    operator: Categorical[str]
    signature: Categorical[SignatureText]
    phase: Categorical[Phase]
    module: Categorical[str]
    operator_class: Categorical[OperatorClass]
    rule: Categorical[str]
    #: The operator that computes, if it calls this one as a part.
    part_of: Categorical[str]
    #: Row in the host events, -1 for device work without an operator.
    host_row: Int64
    start_ns: Int64
    time_ns: Int64
    #: Number of device events that it launched.
    kernels: Int64
    inner: Bool
    costed: Bool
    flops: Int64
    read_bytes: Int64
    written_bytes: Int64
    causal_flops: Int64
    normalization_flops: Int64
    #: True for copies between host and device, which no bandwidth of the device bounds.
    crosses_host_link: Bool
    #: Compute type of float32 operands, as far as kernel names show it.
    compute_type: Categorical[str]
    #: Originating lines of user code, outermost first: `train.py:31 main;model.py:12 forward`.
    stack: Categorical[str]


class KernelTable(Struct, frozen=True, kw_only=True):
    """One row for each device event, in the order of the file, with its call or the reason why it has none."""

    kernel: Categorical[str]
    device: Int64
    stream: Int64
    start_ns: Int64
    duration_ns: Int64
    #: `LINKED` to `OUTSIDE`.
    link: Int64
    #: The host row of its call; -1 if its launch only dispatches, or is unknown.
    call: Int64
    #: The row of its call that launched it, without a call the innermost operator around its launch; and its arguments.
    operator: Categorical[str]
    signature: Categorical[SignatureText]
    #: The row in the host events that launched it, -1 if not known.
    launched_by: Int64
    phase: Categorical[Phase]
    module: Categorical[str]
    #: The class of its call; without a call the class by its name.
    operator_class: Categorical[OperatorClass]
    #: Class by kernel name; if the name is uninformative, by its call.
    kernel_class: Categorical[OperatorClass]
    kernel_rule: Categorical[str]
    #: 1 if its name shows use of tensor cores, 0 if it rules it out, -1 if it is inconclusive, `NO_UNITS` on a device
    #: without them.
    tensor_cores: Int64

    @property
    def inside(self) -> Bool:
        """Return a mask of the device events that belong to the window."""
        rows: Bool = self.link != OUTSIDE
        return rows


class CollectiveTable(Struct, frozen=True, kw_only=True):
    """One row for each device event of a collective in the window; on the CPU for each annotation of the backend."""

    kernel: Categorical[str]
    duration_ns: Int64
    #: Rows with the same number are parts of one collective call.
    call: Int64
    arguments: Categorical[CollectiveArguments]


class Overlay(Struct, frozen=True, kw_only=True):
    """The attribution added to a trace: one row per device event, on the CPU per call.

    `flops` and `bytes` are the event's share of its call by time, so that they add up; -1 means unknown.
    """

    #: Names indexed by `track`: a stream of a device, or a host thread.
    tracks: tuple[str, ...]
    operators: tuple[str, ...]
    modules: tuple[str, ...]
    track: Int64
    start_ns: Int64
    duration_ns: Int64
    operator: Int64
    module: Int64
    #: Indices into `OperatorClass` and `Phase`.
    operator_class: Int64
    phase: Int64
    flops: Int64
    bytes: Int64
    #: True for events that count in the report: launched in the window.
    inside: Bool


# --- memory tables: allocator events, capture marks, enclosing host events ---


class MemoryEvents(Struct, frozen=True, kw_only=True):
    """Allocations (`bytes` above 0) and frees (below 0) by the allocators, in file order.

    `address`, `total_allocated` and `total_reserved` are -1 if the trace does not record them, as in 2021. On the CPU
    `total_allocated` counts from when memory was first profiled. `device_type` is torch's number of the type.
    """

    time_ns: Int64
    thread: Int64
    bytes: Int64
    address: Int64
    total_allocated: Int64
    total_reserved: Int64
    device_type: Int64
    device: Int64


class MemoryMarks(Struct, frozen=True, kw_only=True):
    """Marks of a capture among a step's memory events: one row per storage, address -1 without storages.

    `event` is the row of the mark among the events, `kind` an index into `MARK_KINDS`, `tensor` an index into a list of
    shapes and data types; -1 is none.
    """

    event: Int64
    kind: Int64
    address: Int64
    bytes: Int64
    tensor: Int64


class HostCalls(Struct, frozen=True, kw_only=True):
    """Host events around a trace's memory events: parents come before children, -1 means none."""

    name: Categorical[str]
    module: Categorical[str]
    parent: Int64
    thread: Int64
    start_ns: Int64
    end_ns: Int64
    #: Not 0 for a user annotation.
    annotation: Int64
    #: Indices into `PHASES`.
    phase: Int64


class StepCalls(Struct, frozen=True, kw_only=True):
    """Operators around the memory events of an observed step: one row per like calls, after their caller (-1 none).

    `recomputed_until_ns` is the end of the outermost module range inside a backward, -1 outside of one.
    """

    name: Categorical[str]
    module: Categorical[str]
    parent: Int64
    casts_weight: Bool
    recomputed_until_ns: Int64
    #: The line of the user's code and its function: `model.py:31 forward`.
    line: Categorical[str]


NO_MEMORY_EVENTS = MemoryEvents(**{name: np.zeros(0, dtype=np.int64) for name in MemoryEvents.__struct_fields__})


class MemoryTable(Struct, frozen=True, kw_only=True):
    """Memory events, the call around each (row of `calls`, -1 none), and a capture's marks and phase ranges."""

    events: MemoryEvents
    call: Int64
    calls: HostCalls | StepCalls
    marks: MemoryMarks | None = None
    #: (begin, end, phase) in ns.
    spans: tuple[tuple[int, int, Phase], ...] = ()


# --- packed columns: integers in a trace's metadata, small and quick to read ---


#: No step has more events: data that unpacks to more was made to fill memory.
_MAX_ROWS: Final = 1 << 24
_BYTES: Final = 8


def packed(values: Int64 | Sequence[int]) -> bytes:
    """Pack a column: differences of neighbours, stored by byte position (lowest first) and compressed."""
    column = np.asarray(values, dtype=np.int64)
    steps = np.diff(column, prepend=np.int64(0)).astype("<i8")
    return zlib.compress(steps.view(np.uint8).reshape(-1, _BYTES).T.tobytes(), 6)


def unpacked(data: bytes) -> Int64:
    """Unpack a packed column; raise `ValueError` if the bytes are not one."""
    decoder = zlib.decompressobj()
    try:
        plain = decoder.decompress(data, _MAX_ROWS * _BYTES)
    except zlib.error as error:
        raise ValueError(f"not a packed column: {error}") from error
    if not decoder.eof or decoder.unused_data or len(plain) % _BYTES:
        raise ValueError("not a packed column: it is truncated or too long")
    steps = np.frombuffer(plain, dtype=np.uint8).reshape(_BYTES, -1).T.copy().view("<i8").reshape(-1)
    return np.cumsum(steps.astype(np.int64), dtype=np.int64)


def is_packed(data: bytes) -> bool:
    """Return True if the bytes are a packed column."""
    try:
        unpacked(data)
    except ValueError:
        return False
    return True
