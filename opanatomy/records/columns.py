"""The columns that the reading of a trace hands to attribution.

Strings are numbers into a list of names, times int64 nanoseconds, -1 is "not recorded".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import fields

#: Calls of a runtime or driver that start work on a device: CUDA, HIP, and Intel's `ur...` and `pi...`.
STARTS_WORK: Final = re.compile(
    r"Launch(?!HostFunc)|Memcpy|Memset|USMFill|EnqueueMem|CommandBufferEnqueue", re.IGNORECASE
)

Int64: TypeAlias = "npt.NDArray[np.int64]"
Bool: TypeAlias = "npt.NDArray[np.bool_]"
Float64: TypeAlias = "npt.NDArray[np.float64]"


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
    #: 1 where the event is a user annotation (`record_function`), 0 where it is an operator.
    annotation: Int64


class Flows(Struct, frozen=True, kw_only=True):
    """The profiler's arrows from an operator of the forward to the autograd node that differentiates it: the threads
    and starts of both events."""

    forward_thread: Int64
    forward_ns: Int64
    backward_thread: Int64
    backward_ns: Int64


NO_FLOWS = Flows(**{field.name: np.zeros(0, dtype=np.int64) for field in fields(Flows)})


class Launches(Struct, frozen=True, kw_only=True):
    """Calls of the device's runtime or driver on the host."""

    name: Int64
    thread: Int64
    start_ns: Int64
    duration_ns: Int64
    correlation: Int64
    external_id: Int64


#: The kinds of device work.
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
    #: Thread blocks launched for each multiprocessor, and the occupancy estimated in percent; NaN is "not recorded".
    blocks_per_sm: Float64
    occupancy: Float64


class TraceDevice(Struct, frozen=True, kw_only=True):
    """A device that worked, and what the trace's header says of it; `None` is what it does not say.

    `unnamed` has the names among which the trace does not tell whose this number is.
    """

    number: int
    kernel_ns: int
    name: str | None = None
    memory_bytes: int | None = None
    multiprocessors: int | None = None
    unnamed: tuple[str, ...] = ()


class CollectiveArguments(Struct, frozen=True):
    """What a collective says of itself in the arguments of its event; `None` where it does not."""

    collective: str
    in_elements: int | None = None
    out_elements: int | None = None
    group_size: int | None = None
    dtype: str | None = None


class Categorical(Struct, frozen=True):
    """A column of text: each row a place in `texts`, which are distinct; -1 is "none"."""

    places: Int64
    texts: Sequence[str]

    def equals(self, text: str) -> Bool:
        """Which rows are this text."""
        place = self.texts.index(text) if text in self.texts else len(self.texts)
        found: Bool = self.places == place
        return found

    def at(self, row: int) -> str | None:
        """The text of a row."""
        place = int(self.places[row])
        return None if place < 0 else self.texts[place]


def categorical_of(texts: Sequence[str], places: Int64) -> Categorical:
    """The texts at these places, -1 being none; `texts` may have doubles."""
    numbers: dict[str, int] = {}
    distinct = np.array([*(numbers.setdefault(text, len(numbers)) for text in texts), -1], dtype=np.int64)
    return Categorical(distinct[places], tuple(numbers))


def categorical(values: Iterable[str | None]) -> Categorical:
    """The values as a column."""
    numbers: dict[str | None, int] = {None: -1}
    places = [numbers.setdefault(value, len(numbers) - 1) for value in values]
    return Categorical(np.array(places, dtype=np.int64), tuple(text for text in numbers if text is not None))


def joined(first: Categorical, second: Categorical) -> Categorical:
    """One column under the other."""
    texts = (*first.texts, *second.texts)
    below = np.where(second.places >= 0, second.places + len(first.texts), -1)
    return categorical_of(texts, np.concatenate((first.places, below)))


class Distinct(Struct, frozen=True):
    """The distinct values of a column, in order."""

    values: Int64
    #: The first row of each value.
    first: Int64
    #: For each row of the column the place of its value among `values`.
    inverse: Int64


def distinct(column: Int64) -> Distinct:
    """The distinct values of a column, by sorting it."""
    order = np.argsort(column, kind="stable")
    ordered = column[order]
    new = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    inverse = np.empty(len(column), dtype=np.int64)
    inverse[order] = np.cumsum(new) - 1
    return Distinct(ordered[new], order[new], inverse)


def rows_by_value(column: Int64) -> Iterator[tuple[int, Int64]]:
    """Each distinct value of a column, in order, and its rows."""
    order = np.argsort(column, kind="stable")
    ordered = column[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    for value, begin, end in zip(
        ordered[begins].tolist(), begins.tolist(), [*begins[1:].tolist(), len(order)], strict=False
    ):
        yield value, order[begin:end]


class CallTable(Struct, frozen=True, kw_only=True):
    """One row a call: an operator call with work of its own, or device work without an operator."""

    operator: Categorical
    signature: Categorical
    phase: Categorical
    module: Categorical
    operator_class: Categorical
    rule: Categorical
    #: The operator that computes where this one is called by it.
    part_of: Categorical
    #: The row of the host table, -1 for device work without an operator.
    host_row: Int64
    start_ns: Int64
    time_ns: Int64
    kernels: Int64
    inner: Bool
    costed: Bool
    #: By the names of `Cost`; -1 is "not known".
    costs: dict[str, Int64]
    #: What float32 operands were computed in, as far as the kernels' names tell.
    compute_type: Categorical


class KernelTable(Struct, frozen=True, kw_only=True):
    """One row a piece of device work in the window; `operator_class` is that of its call."""

    kernel: Categorical
    operator: Categorical
    phase: Categorical
    operator_class: Categorical
    #: By the kernel's name alone.
    kernel_class: Categorical
    kernel_rule: Categorical
    duration_ns: Int64


class Overlay(Struct, frozen=True, kw_only=True):
    """What an annotated trace adds to its source: each piece of device work (on the CPU: each call) as it was
    attributed. `flops` and `bytes` are the piece's share of its call by time, so that they add up; -1 is "not known".
    """

    #: What `track` and the like number: a stream of a device, or a thread of the host.
    tracks: tuple[str, ...]
    operators: tuple[str, ...]
    modules: tuple[str, ...]
    track: Int64
    start_ns: Int64
    duration_ns: Int64
    operator: Int64
    module: Int64
    #: Places in `OperatorClass` and `Phase`.
    operator_class: Int64
    phase: Int64
    flops: Int64
    bytes: Int64
    #: Whether the piece counts in the report: it was launched in the window.
    inside: Bool


class MemoryEvents(Struct, frozen=True, kw_only=True):
    """What the allocators gave (`bytes` above 0) and took back (below 0), in the order of the file.

    `address`, `total_allocated` and `total_reserved` are -1 where the trace does not record them, as in 2021. On the
    CPU `total_allocated` is what was given since memory was first profiled. `device_type` is torch's number of it.
    """

    time_ns: Int64
    thread: Int64
    bytes: Int64
    address: Int64
    total_allocated: Int64
    total_reserved: Int64
    device_type: Int64
    device: Int64


NO_MEMORY_EVENTS = MemoryEvents(**{field.name: np.zeros(0, dtype=np.int64) for field in fields(MemoryEvents)})
