"""Batches of events -> columns: a field of all events of a batch becomes an array at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from decimal import Decimal
from math import nan
from operator import attrgetter
from typing import TypeAlias, TypeVar

import numpy as np
from msgspec.structs import replace

from opanatomy.records.columns import (
    CollectiveArguments,
    DeviceWork,
    Float64,
    Flows,
    HostEvents,
    Int64,
    Launches,
    MemoryEvents,
)
from opanatomy.trace.collectives import Messages
from opanatomy.trace.schema import Args, Event
from opanatomy.trace.signatures import RawArguments

OPERATOR, ANNOTATION, LAUNCH, KERNEL, MEMCPY, MEMSET, IGNORED, FOREIGN = range(8)

#: Categories of 2021 (capitalized) and of today; of one that is not here, events on a stream are read as kernels.
CATEGORIES = {
    "cpu_op": OPERATOR, "operator": OPERATOR, "user_annotation": ANNOTATION,
    "cuda_runtime": LAUNCH, "cuda_driver": LAUNCH, "runtime": LAUNCH, "hip_runtime": LAUNCH, "driver": LAUNCH,
    "xpu_runtime": LAUNCH, "xpu_driver": LAUNCH, "mtia_runtime": LAUNCH, "privateuse1_runtime": LAUNCH,
    "privateuse1_driver": LAUNCH, "hpu_op": LAUNCH, "glow_runtime": LAUNCH,
    "kernel": KERNEL, "gpu_memcpy": MEMCPY, "memcpy": MEMCPY, "gpu_memset": MEMSET, "memset": MEMSET,
    "concurrent_kernel": KERNEL, "mtia_insight": KERNEL, "mtia_ccp_events": KERNEL, "hpu_kernel": KERNEL,
    "python_function": IGNORED, "gpu_user_annotation": IGNORED, "cuda_sync": IGNORED, "cuda_event": IGNORED,
    "xpu_sync": IGNORED, "cuda_profiler_range": IGNORED, "overhead": IGNORED, "trace": IGNORED,
    "cpu_instant_event": IGNORED, "external_correlation": IGNORED, "collective_comm": IGNORED,
    "gpu_pm_counter": IGNORED,
}  # fmt: skip

#: The categories, of today and of 2022, of the flows from an operator to its autograd node.
DIFFERENTIATES = frozenset(("fwdbwd", "forward_backward"))

#: The name, in all years, of the instants at which an allocator gave or took back memory.
MEMORY = "[memory]"

_NO_ARGS = Args()
#: Stands between the raw texts of a signature; JSON has no such byte.
_BETWEEN = b"\0"

Key = TypeVar("Key", bound=Hashable)
Columns = TypeVar("Columns", HostEvents, Launches, DeviceWork, MemoryEvents)
Block: TypeAlias = "dict[str, Int64 | Float64]"


class Numbers(dict[Key, int]):
    """Numbers for values in the order in which they are first asked for."""

    def __missing__(self, key: Key) -> int:
        self[key] = number = len(self)
        return number

    def of(self, keys: list[Key]) -> Int64:
        """The number of each key."""
        return np.fromiter(map(self.__getitem__, keys), dtype=np.int64, count=len(keys))


class _Kinds(dict["str | None", int]):
    """The kind of each category, looked at once."""

    def __missing__(self, category: str | None) -> int:
        self[category] = kind = IGNORED if category is None else CATEGORIES.get(category.lower(), FOREIGN)
        return kind


class Collector:
    """The columns of a trace, batch by batch."""

    def __init__(self) -> None:
        self.names: Numbers[str] = Numbers()
        self.threads: Numbers[tuple[int | str | None, int | str | None]] = Numbers()
        self.host_collectives: dict[tuple[int, int], CollectiveArguments] = {}
        self.work_collectives: dict[int, CollectiveArguments] = {}
        self.kept = 0
        self.untimed = 0
        self.foreign: dict[str, int] = {}
        self._signatures: Numbers[bytes] = Numbers()
        self._texts: Numbers[str] = Numbers()
        self._messages = Messages()
        self._kinds = _Kinds()
        self._host: list[Block] = []
        self._launches: list[Block] = []
        self._work: list[Block] = []
        self._memory: list[Block] = []
        self._pieces = 0
        self._flow_ends: dict[bool, list[Event]] = {True: [], False: []}

    def add(self, events: list[Event]) -> None:
        """Take what some stage needs of a batch."""
        host: list[Event] = []
        launches: list[Event] = []
        work: list[Event] = []
        memory: list[Event] = []
        into = (host, host, launches, work, work, work)
        kinds = self._kinds
        for event in events:
            if event.ph != "X":
                if event.name == MEMORY and event.ts is not None:
                    memory.append(event)
                elif event.cat in DIFFERENTIATES and event.ts is not None and event.id is not None:
                    self._flow_ends[event.ph == "s"].append(event)
                continue
            kind = kinds[event.cat]
            if kind >= IGNORED:
                if kind == IGNORED or not self._on_stream(event):
                    continue
                kind = KERNEL
            if event.ts is None or event.name is None:
                self.untimed += 1
            else:
                into[kind].append(event)
        self.kept += len(host) + len(launches) + len(work) + len(memory)
        for found, blocks, block in (
            (host, self._host, self._host_block),
            (launches, self._launches, self._launch_block),
            (work, self._work, self._work_block),
            (memory, self._memory, self._memory_block),
        ):
            if found:
                blocks.append(block(found))

    def host(self) -> HostEvents:
        """Operators and annotations in the order of the file."""
        return _joined(HostEvents, self._host or [self._host_block([])])

    def launches(self) -> Launches:
        """Runtime and driver calls in the order of the file."""
        return _joined(Launches, self._launches or [self._launch_block([])])

    def work(self) -> DeviceWork:
        """Kernels, copies and fills in the order of the file."""
        return _joined(DeviceWork, self._work or [self._work_block([])])

    def memory(self) -> MemoryEvents:
        """What the allocators gave and took back, in the order of the file."""
        found = _joined(MemoryEvents, self._memory or [self._memory_block([])])
        # In 2021 the thread of an operator was text, that of a memory event a number.
        known = dict(self.threads)
        as_text = np.array([known.get((process, str(thread)), known[process, thread]) for process, thread in known])
        return replace(found, thread=as_text[found.thread]) if len(known) else found

    def flows(self) -> Flows:
        """From operators to the nodes that differentiate them, those of which both ends are known."""
        known = self.threads
        starts = {event.id: event for event in self._flow_ends[True] if (event.pid, event.tid) in known}
        ends = [event for event in self._flow_ends[False] if (event.pid, event.tid) in known]
        pairs = [(starts[event.id], event) for event in ends if event.id in starts]
        forward, backward = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        return Flows(
            forward_thread=known.of([(event.pid, event.tid) for event in forward]),
            forward_ns=nanoseconds([event.ts for event in forward]),
            backward_thread=known.of([(event.pid, event.tid) for event in backward]),
            backward_ns=nanoseconds([event.ts for event in backward]),
        )

    def raw_signatures(self) -> list[RawArguments]:
        """The distinct arguments, as `HostEvents.signature` numbers them."""
        split = (key.split(_BETWEEN) for key in self._signatures)
        return [(dims, types, strides, constants, "") for dims, types, strides, constants in split]

    def _on_stream(self, event: Event) -> bool:
        """Whether an event is of an accelerator that is not known: its work runs on a stream."""
        if event.cat is None or event.args is None or event.args.stream is None:
            return False
        self.foreign[event.cat] = self.foreign.get(event.cat, 0) + 1
        return True

    def _common(self, events: list[Event], args: list[Args]) -> Block:
        return {
            "name": self.names.of([event.name or "" for event in events]),
            "start_ns": nanoseconds([event.ts for event in events]),
            "duration_ns": nanoseconds([event.dur for event in events]),
            "external_id": _either("external_id", "external_id_2021", args),
        }

    def _host_block(self, events: list[Event]) -> Block:
        args = _args(events)
        block = {
            **self._common(events, args),
            "thread": self.threads.of([(event.pid, event.tid) for event in events]),
            "sequence": _either("sequence", "sequence_2021", args),
            "forward_thread": _integers([one.forward_thread for one in args]),
            "signature": np.fromiter(map(self._signature, args), dtype=np.int64, count=len(args)),
            "annotation": self._kind(events),
        }
        for place, message in self._told(args):
            self.host_collectives[int(block["thread"][place]), int(block["start_ns"][place])] = message
        return block

    def _launch_block(self, events: list[Event]) -> Block:
        args = _args(events)
        return {
            **self._common(events, args),
            "thread": self.threads.of([(event.pid, event.tid) for event in events]),
            "correlation": _integers([one.correlation for one in args]),
        }

    def _work_block(self, events: list[Event]) -> Block:
        args = _args(events)
        pairs = list(zip(events, args, strict=True))
        for place, message in self._told(args):
            self.work_collectives[self._pieces + place] = message
        self._pieces += len(events)
        return {
            **self._common(events, args),
            "device": self._number([event.pid if one.device is None else one.device for event, one in pairs]),
            "stream": self._number([event.tid if one.stream is None else one.stream for event, one in pairs]),
            "correlation": _integers([one.correlation for one in args]),
            "kind": np.maximum(np.where((kind := self._kind(events)) == FOREIGN, KERNEL, kind) - KERNEL, 0),
            "blocks_per_sm": _fractions([one.blocks_per_sm for one in args]),
            "occupancy": _fractions([one.occupancy for one in args]),
        }

    def _memory_block(self, events: list[Event]) -> Block:
        args = _args(events)
        return {
            "time_ns": nanoseconds([event.ts for event in events]),
            "thread": self.threads.of([(event.pid, event.tid) for event in events]),
            "bytes": _integers([one.bytes or 0 for one in args]),
            "address": _integers([one.address for one in args]),
            "total_allocated": _integers([one.total_allocated for one in args]),
            "total_reserved": _integers([one.total_reserved for one in args]),
            "device_type": _integers([one.device_type for one in args]),
            "device": _integers([one.device_id for one in args]),
        }

    def _number(self, values: list[int | str | None]) -> Int64:
        """Device or stream numbers; text without one gets a number of its own below -1."""
        return np.array([one if isinstance(one, int) else self._of_text(one) for one in values], dtype=np.int64)

    def _of_text(self, value: str | None) -> int:
        text = "" if value is None else value
        digits = text.split()[-1] if text.split() else ""
        return int(digits) if digits.isdecimal() and len(digits) < 19 else -2 - self._texts[text]

    def _told(self, args: list[Args]) -> list[tuple[int, CollectiveArguments]]:
        """(place, message) of the collectives."""
        found = ((place, self._messages.of(one)) for place, one in enumerate(args) if one.collective)
        return [(place, message) for place, message in found if message]

    def _kind(self, events: list[Event]) -> Int64:
        return np.fromiter(map(self._kinds.__getitem__, [event.cat for event in events]), np.int64, len(events))

    def _signature(self, args: Args) -> int:
        dims = args.dims or args.dims_2021
        if not dims:
            return -1
        return self._signatures[_BETWEEN.join((dims, args.types, args.strides, args.constants))]


def nanoseconds(values: list[float | None] | list[Decimal | None]) -> Int64:
    """Times in microseconds as whole nanoseconds, 0 for one that is missing."""
    column = np.array(values)
    if column.dtype != np.float64:
        return np.array([_nanoseconds(value) for value in values], dtype=np.int64)
    whole = column.astype(np.int64)
    return whole * 1000 + np.rint((column - whole) * 1000).astype(np.int64)


def _nanoseconds(value: float | Decimal | None) -> int:
    if value is None:
        return 0
    whole = int(value)
    return whole * 1000 + round((value - whole) * 1000)


def _args(events: list[Event]) -> list[Args]:
    return [event.args or _NO_ARGS for event in events]


def _either(name: str, name_2021: str, args: list[Args]) -> Int64:
    """A number under its name of today or, where that is missing, of 2021."""
    values = _integers(list(map(attrgetter(name), args)))
    missing = values == -1
    return np.where(missing, _integers(list(map(attrgetter(name_2021), args))), values) if missing.any() else values


def _integers(values: list[int] | list[int | None]) -> Int64:
    """The values as a column, -1 where there is none."""
    try:
        return np.array(values, dtype=np.int64)
    except TypeError:
        return np.array([-1 if value is None else value for value in values], dtype=np.int64)


def _fractions(values: Iterable[float | str | None]) -> Float64:
    """The values as a column, NaN where there is none."""
    return np.array([nan if value is None or isinstance(value, str) else value for value in values], dtype=np.float64)


def _joined(record: Callable[..., Columns], blocks: list[Block]) -> Columns:
    return record(**{name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]})
