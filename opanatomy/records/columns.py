"""The columns that the reading of a trace hands to attribution.

Strings are numbers into a list of names, times int64 nanoseconds, -1 is "not recorded".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import fields

from opanatomy.records.taxonomy import Phase

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


class MemoryMarks(Struct, frozen=True, kw_only=True):
    """What a capture noted among the memory events of a step: a row for each storage, one without an address (-1)
    where there is none. `event` is the row of the mark among the events, `kind` a place in `MARK_KINDS`, `tensor` a
    place in a list of shapes and data types, -1 is none.
    """

    event: Int64
    kind: Int64
    address: Int64
    bytes: Int64
    tensor: Int64


class HostCalls(Struct, frozen=True, kw_only=True):
    """The host events around the memory events of a trace: each row's parent comes before it, -1 is none."""

    name: Categorical
    module: Categorical
    parent: Int64
    thread: Int64
    start_ns: Int64
    end_ns: Int64
    #: Not 0 where a row is a user annotation.
    annotation: Int64
    #: A place in `Phase`.
    phase: Int64


class StepCalls(Struct, frozen=True, kw_only=True):
    """The operators around the memory events of a looked-at step: one row for like calls, its caller (-1 none) before.

    `recomputed_until_ns` is the end of the outermost module range inside a backward, -1 outside of one.
    """

    name: Categorical
    module: Categorical
    parent: Int64
    casts_weight: Bool
    recomputed_until_ns: Int64


NO_MEMORY_EVENTS = MemoryEvents(**{field.name: np.zeros(0, dtype=np.int64) for field in fields(MemoryEvents)})


class MemoryTable(Struct, frozen=True, kw_only=True):
    """Memory events, what encloses each (`call`, a row of `calls`, -1 none), and a capture's marks and phase ranges."""

    events: MemoryEvents
    call: Int64
    calls: HostCalls | StepCalls
    marks: MemoryMarks | None = None
    #: (begin, end, phase) in ns.
    spans: tuple[tuple[int, int, Phase], ...] = ()
