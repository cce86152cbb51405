"""Batches of events -> tables: a field of all events of a batch is appended to its column at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec.structs import replace

from opanatomy.records import columns
from opanatomy.records.columns import (
    CollectiveArguments,
    DeviceWork,
    Flows,
    HostEvents,
    Int64,
    Launches,
    ProfilerEvents,
)
from opanatomy.records.memory_columns import MemoryEvents
from opanatomy.trace.categories import (
    ANNOTATION,
    DIFFERENTIATION_FLOWS,
    FOREIGN,
    HOST_NODE,
    IGNORED,
    INSTANT,
    KERNEL,
    LAUNCH,
    MEMCPY,
    MEMORY,
    MEMSET,
    OPERATOR,
    OVERHEAD,
    PYTHON,
    Kinds,
)
from opanatomy.trace.collectives import Collectives
from opanatomy.trace.growing import Numbers, Table, nanoseconds
from opanatomy.trace.schema import Args, Event, category_of
from opanatomy.trace.signatures import RawArguments

_NO_ARGS: Final = Args()
#: Stands between the raw texts of a signature; JSON has no such byte.
_BETWEEN: Final = b"\0"
#: Takes what is not needed.
_forget: Final = deque[object](maxlen=0).append
_KIND_OF_WORK: Final = {MEMCPY: columns.MEMCPY, MEMSET: columns.MEMSET}


class Collector:
    """The columns of a trace, batch by batch."""

    def __init__(self) -> None:
        self.names: Numbers[str] = Numbers()
        self.threads: Numbers[tuple[int | str | None, int | str | None]] = Numbers()
        #: The collectives among device work, by row.
        self.work_collectives: dict[int, CollectiveArguments] = {}
        self.kept = 0
        self.untimed = 0
        self.foreign: dict[str, int] = {}
        self._signatures: Numbers[bytes] = Numbers()
        self._texts: Numbers[str] = Numbers()
        self._collectives = Collectives()
        self._host_collectives: dict[int, CollectiveArguments] = {}
        self._kinds = Kinds()
        self._host = Table(HostEvents)
        self._launches = Table(Launches)
        self._work = Table(DeviceWork, fractions=("blocks_per_sm", "occupancy"))
        self._memory = Table(MemoryEvents)
        self._profiler = Table(ProfilerEvents)
        self._flow_starts: list[Event] = []
        self._flow_ends: list[Event] = []
        #: The events of a batch by table, and the places of annotations among those of the host.
        self._host_events: list[Event] = []
        self._annotations: list[int] = []
        self._launch_events: list[Event] = []
        self._work_events: list[Event] = []
        self._instants: list[Event] = []
        self._of_profiler: list[Event] = []
        self._host_nodes: list[Event] = []
        self._host_nodes_ns: list[tuple[int, int]] = []
        self._batch: Final = {
            OPERATOR: self._host_events, LAUNCH: self._launch_events, KERNEL: self._work_events,
            MEMCPY: self._work_events, MEMSET: self._work_events, HOST_NODE: self._host_nodes,
            PYTHON: self._of_profiler, OVERHEAD: self._of_profiler,
        }  # fmt: skip

    def add(self, events: list[Event]) -> None:
        """Take what some stage needs of a batch."""
        takers = _Takers(self._taker_of)
        for event in events:
            takers[type(event)](event)
        memory = [
            event for event in self._instants if event.name == MEMORY and event.ts is not None and event.ph != "X"
        ]
        self.kept += len(self._host_events) + len(self._launch_events) + len(self._work_events) + len(memory)
        self._add_host(self._host_events)
        self._add_launches(self._launch_events)
        self._add_work(self._work_events)
        self._add_memory(memory)
        self._add_profiler([event for event in self._of_profiler if event.ts is not None])
        self._host_nodes_ns.extend((nanoseconds(event.ts), nanoseconds(event.dur)) for event in self._host_nodes)
        for batch in (
            self._host_events, self._annotations, self._launch_events, self._work_events, self._instants,
            self._of_profiler, self._host_nodes,
        ):  # fmt: skip
            batch.clear()

    def host(self) -> HostEvents:
        """Operators and annotations in the order of the file."""
        return self._host.record()

    def launches(self) -> Launches:
        """Runtime and driver calls in the order of the file."""
        return self._launches.record()

    def work(self) -> DeviceWork:
        """Kernels, copies and fills in the order of the file."""
        return self._work.record()

    def profiler(self) -> ProfilerEvents:
        """What the profiler recorded of itself and of Python's stack, in the order of the file."""
        return self._profiler.record()

    def graph_host_ns(self) -> Int64:
        """The start and duration of each callback on the host that a graph ran."""
        return np.array(self._host_nodes_ns, dtype=np.int64).reshape(-1, 2)

    def memory(self) -> MemoryEvents:
        """What the allocators gave and took back, in the order of the file."""
        memory = self._memory.record()
        # In 2021 the thread of an operator was text, that of a memory event a number.
        numbers = dict(self.threads)
        as_text = np.array([numbers.get((pid, str(tid)), number) for (pid, tid), number in numbers.items()])
        return replace(memory, thread=as_text[memory.thread]) if len(numbers) else memory

    def host_collectives(self, host: HostEvents) -> dict[tuple[int, int], CollectiveArguments]:
        """The collectives among host events, by thread and start."""
        rows = list(self._host_collectives)
        keys = zip(host.thread[rows].tolist(), host.start_ns[rows].tolist(), strict=True)
        return dict(zip(keys, self._host_collectives.values(), strict=True)) if rows else {}

    def flows(self) -> Flows:
        """From operators to the nodes that differentiate them, those of which both ends are known."""
        threads = self.threads
        starts = {event.id: event for event in self._flow_starts if (event.pid, event.tid) in threads}
        ends = [event for event in self._flow_ends if (event.pid, event.tid) in threads and event.id in starts]
        begins = [starts[event.id] for event in ends]
        return Flows(
            forward_thread=np.array([threads[event.pid, event.tid] for event in begins], dtype=np.int64),
            forward_ns=np.array([nanoseconds(event.ts) for event in begins], dtype=np.int64),
            backward_thread=np.array([threads[event.pid, event.tid] for event in ends], dtype=np.int64),
            backward_ns=np.array([nanoseconds(event.ts) for event in ends], dtype=np.int64),
        )

    def raw_signatures(self) -> list[RawArguments]:
        """The distinct arguments, as `HostEvents.signature` numbers them."""
        split = (key.split(_BETWEEN) for key in self._signatures)
        return [(dims, types, strides, constants, "") for dims, types, strides, constants in split]

    def _taker_of(self, event: type[Event]) -> Callable[[Event], object]:
        """What takes the events of one type: those that are of one category need no look at each."""
        category = category_of(event)
        kind = FOREIGN if category is None else self._kinds[category]
        if category == INSTANT:
            return self._instants.append
        if kind == IGNORED:
            return _forget
        if kind == FOREIGN:
            return self._take
        return self._take_annotation if kind == ANNOTATION else self._batch[kind].append

    def _take(self, event: Event) -> None:
        """Take an event of any category."""
        if event.ph == "X":
            kind = self._kinds[event.cat]
            if kind == FOREIGN and self._on_stream(event):
                kind = KERNEL
            if kind in (PYTHON, OVERHEAD):
                self._of_profiler.append(event)
                return
            if kind >= IGNORED:
                return
            if event.ts is None or event.name is None:
                self.untimed += 1
            elif kind == ANNOTATION:
                self._take_annotation(event)
            else:
                self._batch[kind].append(event)
        elif event.ts is not None:
            if event.name == MEMORY:
                self._instants.append(event)
            elif event.cat in DIFFERENTIATION_FLOWS and event.id is not None:
                (self._flow_starts if event.ph == "s" else self._flow_ends).append(event)

    def _take_annotation(self, event: Event) -> None:
        self._annotations.append(len(self._host_events))
        self._host_events.append(event)

    def _on_stream(self, event: Event) -> bool:
        """Whether an event is of an accelerator that is not known: its work runs on a stream."""
        if event.cat is None or event.args is None or event.args.stream is None:
            return False
        self.foreign[event.cat] = self.foreign.get(event.cat, 0) + 1
        return True

    def _add_host(self, events: list[Event]) -> None:
        args = _args_of(events)
        for row, collective in self._collectives_in(args, self._host.rows):
            self._host_collectives[row] = collective
        annotation = [0] * len(events)
        for place in self._annotations:
            annotation[place] = 1
        self._host.extend(
            len(events),
            name=self.names.of(_names_of(events)),
            thread=self._threads_of(events),
            start_ns=[event.ts for event in events],
            duration_ns=[event.dur for event in events],
            external_id=_external_ids(args),
            sequence=_sequence_numbers(args),
            forward_thread=[item.forward_thread for item in args],
            signature=self._signatures_of(args),
            annotation=annotation,
        )

    def _add_launches(self, events: list[Event]) -> None:
        args = _args_of(events)
        self._launches.extend(
            len(events),
            name=self.names.of(_names_of(events)),
            thread=self._threads_of(events),
            start_ns=[event.ts for event in events],
            duration_ns=[event.dur for event in events],
            correlation=[item.correlation for item in args],
            external_id=_external_ids(args),
        )

    def _add_work(self, events: list[Event]) -> None:
        args = _args_of(events)
        for row, collective in self._collectives_in(args, self._work.rows):
            self.work_collectives[row] = collective
        devices = [event.pid if item.device is None else item.device for event, item in zip(events, args, strict=True)]
        streams = [event.tid if item.stream is None else item.stream for event, item in zip(events, args, strict=True)]
        self._work.extend(
            len(events),
            name=self.names.of(_names_of_work(events)),
            device=[number if isinstance(number, int) else self._of_text(number) for number in devices],
            stream=[number if isinstance(number, int) else self._of_text(number) for number in streams],
            start_ns=[event.ts for event in events],
            duration_ns=[event.dur for event in events],
            correlation=[item.correlation for item in args],
            external_id=_external_ids(args),
            kind=[_KIND_OF_WORK.get(self._kinds[event.cat], columns.KERNEL) for event in events],
            blocks_per_sm=[item.blocks_per_sm for item in args],
            occupancy=[item.occupancy for item in args],
        )

    def _add_memory(self, events: list[Event]) -> None:
        args = _args_of(events)
        self._memory.extend(
            len(events),
            time_ns=[event.ts for event in events],
            thread=self._threads_of(events),
            bytes=[item.bytes or 0 for item in args],
            address=[item.address for item in args],
            total_allocated=[item.total_allocated for item in args],
            total_reserved=[item.total_reserved for item in args],
            device_type=[item.device_type for item in args],
            device=[item.device_id for item in args],
        )

    def _add_profiler(self, events: list[Event]) -> None:
        python = [self._kinds[event.cat] == PYTHON for event in events]
        self._profiler.extend(
            len(events),
            name=[-1 if stack else self.names[event.name or ""] for event, stack in zip(events, python, strict=True)],
            start_ns=[event.ts for event in events],
            duration_ns=[0 if stack else event.dur for event, stack in zip(events, python, strict=True)],
        )

    def _threads_of(self, events: list[Event]) -> list[int]:
        processes, threads = [event.pid for event in events], [event.tid for event in events]
        if processes.count(processes[0] if processes else None) < len(processes):
            return self.threads.of(zip(processes, threads, strict=True))
        number = {thread: self.threads[processes[0], thread] for thread in dict.fromkeys(threads)}
        return list(map(number.__getitem__, threads))

    def _of_text(self, value: str | None) -> int:
        """The number of a device or stream in its text; one of its own, below -1, for a text without any."""
        text = "" if value is None else value
        digits = text.split()[-1] if text.split() else ""
        return int(digits) if digits.isdecimal() and len(digits) < 19 else -2 - self._texts[text]

    def _collectives_in(self, args: list[Args], first_row: int) -> list[tuple[int, CollectiveArguments]]:
        """(row, collective) of the collectives."""
        rows = [(row, self._collectives.of(item)) for row, item in enumerate(args, first_row) if item.collective]
        return [(row, collective) for row, collective in rows if collective]

    def _signatures_of(self, args: list[Args]) -> list[int]:
        dims = [item.dims or item.dims_2021 for item in args]
        if not any(dims):
            return [-1] * len(args)
        return [
            self._signatures[_BETWEEN.join((sizes, item.types, item.strides, item.constants))] if sizes else -1
            for sizes, item in zip(dims, args, strict=True)
        ]


class _Takers(dict["type[Event]", "Callable[[Event], object]"]):
    """What takes the events of each type."""

    def __init__(self, taker_of: Callable[[type[Event]], Callable[[Event], object]]) -> None:
        self._taker_of = taker_of

    def __missing__(self, event: type[Event]) -> Callable[[Event], object]:
        self[event] = taker = self._taker_of(event)
        return taker


def _names_of(events: list[Event]) -> list[str]:
    """The names of events that were seen to have one."""
    return [event.name for event in events if event.name is not None]


def _names_of_work(events: list[Event]) -> list[str]:
    """The names of device work; of copies that are all called `Memcpy` with what they were between."""
    return [
        f"Memcpy {event.args.copy_kind}" if name == "Memcpy" and event.args and event.args.copy_kind else name
        for event, name in zip(events, _names_of(events), strict=True)
    ]


def _args_of(events: list[Event]) -> list[Args]:
    return [event.args or _NO_ARGS for event in events]


def _external_ids(args: list[Args]) -> list[int | None]:
    ids = [item.external_id for item in args]
    if -1 not in ids and None not in ids:
        return ids
    return _filled(ids, [item.external_id_2021 for item in args])


def _sequence_numbers(args: list[Args]) -> list[int | None]:
    numbers = [item.sequence for item in args]
    if -1 not in numbers and None not in numbers:
        return numbers
    return _filled(numbers, [item.sequence_2021 for item in args])


def _filled(numbers: list[int | None], numbers_2021: list[int | None]) -> list[int | None]:
    """The numbers, and where they are missing those under the key of 2021."""
    if numbers_2021.count(-1) == len(numbers_2021):
        return numbers
    return [old if new in (-1, None) else new for new, old in zip(numbers, numbers_2021, strict=True)]
