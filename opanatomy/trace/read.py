"""Read a trace file into a `Trace`: events of every schema since 2018, sorted into columns."""

from __future__ import annotations

import gc
import os
import re
import struct
import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from decimal import Decimal
from itertools import takewhile
from math import nan
from pathlib import Path
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from opanatomy.errors import TraceError
from opanatomy.records import columns
from opanatomy.records.columns import (
    NO_FLOWS,
    NO_MEMORY_EVENTS,
    NO_PROFILER_EVENTS,
    CollectiveArguments,
    DeviceWork,
    Float64,
    Flows,
    HostEvents,
    Int64,
    Launches,
    MemoryEvents,
    ProfilerEvents,
    TraceDevice,
    isin,
    starts_work,
)
from opanatomy.records.patterns import regex
from opanatomy.records.signature import Signature
from opanatomy.records.workload import LINE_RANGE, METADATA_KEY, Capture, Environment, GraphNode
from opanatomy.trace.devices import UnreadRows, devices_of, environment_of, unread_rows
from opanatomy.trace.salvage import NOT_DECODABLE
from opanatomy.trace.schema import (
    ANNOTATION,
    DIFFERENTIATION_FLOWS,
    FOREIGN,
    HOST_NODE,
    IGNORED,
    INSTANT,
    KERNEL,
    LAUNCH,
    LEGACY_FLOW,
    LEGACY_OPERATORS,
    MEMCPY,
    MEMORY,
    MEMSET,
    OPERATOR,
    OVERHEAD,
    PYTHON,
    Args,
    Event,
    Kinds,
    category_of,
)
from opanatomy.trace.signatures import RawArguments, fill_in_observed, parse_signatures
from opanatomy.trace.stream import (
    EventStream,
    check_content,
    check_density,
    told_share,
    with_possible_numbers,
    without_negative,
)

# Tables that grow batch by batch: a value takes the eight bytes of its column, without an object.


Key = TypeVar("Key", bound=Hashable)
Record = TypeVar("Record", HostEvents, Launches, DeviceWork, MemoryEvents, ProfilerEvents)

#: Batch size for conversion of times to nanoseconds.
_TIMES_AT_ONCE: Final = 1 << 14


class Interner(dict[Key, int]):
    """Numbers values in the order of their first use."""

    def __missing__(self, key: Key) -> int:
        self[key] = number = len(self)
        return number

    def of(self, keys: Iterable[Key]) -> list[int]:
        """Return the number of each key."""
        return list(map(self.__getitem__, keys))


def _node_of(args: Args) -> int:
    """Return a CUDA graph node with its graph above 32 bits, as in Kineto; Cuspy writes two numbers."""
    graph, node = max(args.graph or 0, 0), max(args.node or 0, 0)
    return node if node >> 32 else (graph << 32) | node if graph else 0


def _with_nodes(work: DeviceWork, scopes: tuple[str, ...], nodes: Mapping[str, GraphNode]) -> Scoped:
    """Return the work with a capture's annotations of graph nodes, and the scopes including theirs."""
    numbers = Interner[str]()
    numbers.of(scopes)
    scope, of_backward = work.scope.tolist(), work.of_backward.tolist()
    for row, key in enumerate(work.node.tolist()):
        known = nodes.get(str(key)) if key else None
        if known is not None:
            scope[row] = numbers[_common_module(known.scope)] if known.scope else scope[row]
            of_backward[row] = max(int(known.of_backward), of_backward[row])
    columns = (np.array(column, dtype=np.int64) for column in (scope, of_backward))
    return replace(work, **dict(zip(("scope", "of_backward"), columns, strict=True))), tuple(numbers)


def _common_module(text: str) -> str:
    """Return the module that all of several joined by ` + ` are in, without Dynamo's name of the model."""
    paths = [re.sub(r"^L(?:\['self'\])?\.", "", path).split(".") for path in text.split(" + ")]
    return ".".join(parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False)))


#: A function of a recorded Python stack: its file, the line where it begins, its name.
_FUNCTION: Final = regex(r"(.+\.py|<(?:stdin|ipython-input-|python-input-).*)\((\d+)\): (.+)", re.DOTALL)
_INSTALLED: Final = regex(r"[\\/](?:site|dist)-packages[\\/]")
#: Torch's own files and Python's, wherever they are installed.
_OF_PYTHON: Final = regex(
    r"[\\/]lib[\\/]python[\d.]+[\\/](?!(?:site|dist)-)|-packages[\\/](?:torch|functorch|triton|opanatomy)[\\/]"
)
#: Packages that run a model, as the profiler writes their files: relative to the installation folder.
_TORCH: Final = frozenset(("torch", "functorch", "triton", "opanatomy", *sys.stdlib_module_names)) - {
    "cmd",
    "code",
    "profile",
    "sched",
    "statistics",
    "test",
    "trace",  # names that a program's own file may have
}
_LIBRARIES: Final = frozenset((
    "IPython", "PIL", "_distutils_hack", "_pytest", "absl", "accelerate", "apex", "bitsandbytes", "click", "coverage",
    "cv2", "datasets", "debugpy", "deepspeed", "diffusers", "einops", "fairscale", "flash_attn", "fsspec",
    "huggingface_hub", "hydra", "ipykernel", "lightning", "lightning_fabric", "networkx", "numpy", "omegaconf",
    "packaging", "pandas", "peft", "pkg_resources", "pluggy", "pydantic", "pytest", "pytorch_lightning", "ray",
    "requests", "rich", "safetensors", "scipy", "setuptools", "sklearn", "sympy", "tensorboard", "timm", "tokenizers",
    "torchaudio", "torchmetrics", "torchvision", "tornado", "tqdm", "traitlets", "transformer_engine", "transformers",
    "trl", "typing_extensions", "unsloth", "urllib3", "vllm", "wandb", "xformers", "yaml", "zmq",
))  # fmt: skip


#: Device work, and the scopes that it numbers.
Scoped: TypeAlias = "tuple[DeviceWork, tuple[str, ...]]"


class Functions(dict["str | None", int]):
    """Number the functions of recorded Python stacks by event name; torch's and Python's are -1."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.of_library: list[bool] = []

    def __missing__(self, name: str | None) -> int:
        found = _FUNCTION.fullmatch(name or "")
        top = found[1].replace("\\", "/").partition("/")[0].removesuffix(".py") if found else ""
        if found is None or top in _TORCH or _OF_PYTHON.search(found[1]):
            number = -1
        else:
            number = len(self.texts)
            file = re.split(r"[\\/]", found[1])[-1]
            self.texts.append(f"{file}:{found[2]} {found[3]}")
            self.of_library.append(top in _LIBRARIES or bool(_INSTALLED.search(found[1])))
        self[name] = number
        return number


class Table(Generic[Record]):
    """A record of columns that grow together: `..._ns` are times, the others integers unless named otherwise."""

    def __init__(self, record: type[Record], *, fractions: Collection[str] = ()) -> None:
        self.rows = 0
        self._record: Callable[..., Record] = record
        self._columns: dict[str, _Integers | _Times | _Fractions] = {
            name: _Times() if name.endswith("_ns") else _Fractions() if name in fractions else _Integers()
            for name in record.__struct_fields__
        }

    def extend(self, rows: int, **columns: list[Any]) -> None:
        """Append rows, column by column."""
        self.rows += rows
        for name, values in columns.items():
            self._columns[name].extend(values)

    def record(self) -> Record:
        """Return the columns as writable arrays; afterwards nothing can be appended."""
        return self._record(**{name: column.array() for name, column in self._columns.items()})


class _Packed:
    """A column of eight bytes a value, filled batch by batch."""

    def __init__(self) -> None:
        self._packed: list[bytes] = []

    def _joined(self) -> bytearray:
        joined = bytearray().join(self._packed)
        self._packed.clear()
        return joined


class _Integers(_Packed):
    """Integers, -1 if missing."""

    def extend(self, values: list[Any]) -> None:
        try:
            self._packed.append(struct.pack(f"{len(values)}q", *values))
        except struct.error:
            self._packed.append(struct.pack(f"{len(values)}q", *(-1 if value is None else value for value in values)))

    def array(self) -> Int64:
        return np.frombuffer(self._joined(), dtype=np.int64)


class _Fractions(_Packed):
    """Fractions, NaN if missing or text."""

    def extend(self, values: list[Any]) -> None:
        numbers = [nan if value is None or isinstance(value, str) else value for value in values]
        self._packed.append(struct.pack(f"{len(values)}d", *numbers))

    def array(self) -> Float64:
        return np.frombuffer(self._joined(), dtype=np.float64)


class _Times(_Packed):
    """Microseconds, as floats or from some batch on as decimals -> whole nanoseconds, 0 if missing."""

    def __init__(self) -> None:
        super().__init__()
        self._us: list[bytes] = []
        self._waiting = 0
        self._exact = False

    def extend(self, values: list[Any]) -> None:
        if not self._exact:
            try:
                sum(values, 0.0)  # fails if one is a decimal or missing
            except TypeError:
                self._exact = Decimal in map(type, values)
        if self._exact:
            self._round()
            self._packed.append(struct.pack(f"{len(values)}q", *map(nanoseconds, values)))
            return
        try:
            self._us.append(struct.pack(f"{len(values)}d", *values))
        except struct.error:
            self._us.append(struct.pack(f"{len(values)}d", *(0.0 if value is None else value for value in values)))
        self._waiting += len(values)
        if self._waiting > _TIMES_AT_ONCE:
            self._round()

    def _round(self) -> None:
        us = np.frombuffer(b"".join(self._us))
        whole = us.astype(np.int64)
        self._packed.append((whole * 1000 + np.rint((us - whole) * 1000).astype(np.int64)).tobytes())
        self._us, self._waiting = [], 0

    def array(self) -> Int64:
        self._round()
        return np.frombuffer(self._joined(), dtype=np.int64)


def nanoseconds(us: float | Decimal | None) -> int:
    """Convert microseconds to whole nanoseconds."""
    if us is None:
        return 0
    whole = int(us)
    return whole * 1000 + round((us - whole) * 1000)


# What a collective's event records of its message, from the raw texts of its arguments.


#: Minimum duration in microseconds of Python functions that are named.
LONG_PYTHON_US: Final = 100
_ADDRESS: Final = regex(r" object at 0x[0-9a-f]+")
#: Raw JSON of "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Name",
#: "Process Group Ranks", "Seq".
RawCollective: TypeAlias = "tuple[bytes, ...]"


class Collectives:
    """The arguments of a trace's collectives; equal ones are kept once."""

    def __init__(self) -> None:
        self._known: dict[RawCollective, CollectiveArguments | None] = {}

    def of(self, args: Args) -> CollectiveArguments | None:
        """Return the collective of an event; `None` if its arguments name none."""
        raw = (
            bytes(args.collective), bytes(args.in_elements), bytes(args.out_elements), bytes(args.group_size),
            bytes(args.collective_dtype), bytes(args.group_name), bytes(args.group_ranks), bytes(args.group_sequence),
        )  # fmt: skip
        if raw not in self._known:
            collective, sent, got, size, dtype, name, ranks, sequence = map(_decode, raw)
            # A group is its name and its ranks, as far as known: other ranks use the same name again.
            group = [str(text) for text in (name, ranks) if isinstance(text, (str, int)) and str(text)]
            known = None
            if isinstance(collective, str) and collective:
                known = CollectiveArguments(
                    collective=collective,
                    in_elements=_count(sent),
                    out_elements=_count(got),
                    group_size=_count(size) or None,
                    dtype=dtype if isinstance(dtype, str) else None,
                    group=" ".join(group) or None,
                    sequence=_count(sequence),
                )
            self._known[raw] = known
        return self._known[raw]


def _decode(raw: bytes) -> object:
    try:
        return msgspec.json.decode(raw) if raw else None
    except NOT_DECODABLE:
        return None


def _count(value: object) -> int | None:
    """Return a count if it is possible: a trace writes -1 for an unknown one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else None


# Batches of events -> tables: each field of a batch is appended to its column at once.


_NO_ARGS: Final = Args()
#: Separates a signature's raw texts; JSON contains no such byte.
_BETWEEN: Final = b"\0"
#: Exhausts an iterator and discards its items.
_forget: Final = deque[object](maxlen=0).append
_KIND_OF_WORK: Final = {MEMCPY: columns.MEMCPY, MEMSET: columns.MEMSET}


class Collector:
    """Collects the columns of a trace, batch by batch."""

    def __init__(self) -> None:
        self.names: Interner[str] = Interner()
        self.threads: Interner[tuple[int | str | None, int | str | None]] = Interner()
        #: The collectives among device work, by row.
        self.work_collectives: dict[int, CollectiveArguments] = {}
        self.kept = 0
        self.untimed = 0
        self.foreign: dict[str, int] = {}
        #: The processes of device work, each with the number of the device.
        self._work_processes: set[tuple[int | str | None, int]] = set()
        self._signatures: Interner[bytes] = Interner()
        self._texts: Interner[str] = Interner()
        self._grids: Interner[tuple[bytes, bytes]] = Interner()
        self._functions = Functions()
        self._scopes: Interner[str] = Interner()
        self._collectives = Collectives()
        self._host_collectives: dict[int, CollectiveArguments] = {}
        self._kinds = Kinds()
        self._host = Table(HostEvents)
        self._launches = Table(Launches)
        self._work = Table(DeviceWork, fractions=("blocks_per_sm", "occupancy"))
        self._memory = Table(MemoryEvents)
        self._profiler = Table(ProfilerEvents)
        #: Names and labels of each process; and by process and category the number of intervals that no rule reads,
        #: their nanoseconds, and how many of them have arguments of device work.
        self._processes: dict[int | str | None, list[str]] = {}
        self._unread: dict[tuple[int | str | None, str | None], tuple[int, int, int]] = {}
        self._flow_starts: list[Event] = []
        self._flow_ends: list[Event] = []
        #: The events of a batch by table, and the places of annotations among the host's.
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
        """Add the fields of a batch that some stage needs."""
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
            self._host_events,
            self._annotations,
            self._launch_events,
            self._work_events,
            self._instants,
            self._of_profiler,
            self._host_nodes,
        ):
            batch.clear()

    def host(self) -> HostEvents:
        """Return operators and annotations in the order of the file."""
        events = self._host.record()
        lines = [number for name, number in self.names.items() if name.startswith(LINE_RANGE)]
        events.annotation[isin(events.name, np.array(lines, dtype=np.int64))] = 1
        return events

    def launches(self) -> Launches:
        """Return runtime and driver calls in the order of the file."""
        return self._launches.record()

    def work(self) -> DeviceWork:
        """Return kernels, copies and fills in the order of the file."""
        return self._work.record()

    def profiler(self) -> ProfilerEvents:
        """Return the profiler's own events and the Python stack's, in file order.

        Library functions are dropped if user functions are recorded.
        """
        events = self._profiler.record()
        of_library = np.array([*self._functions.of_library, False], dtype=bool)
        if of_library[:-1].all():
            return events
        return replace(events, function=np.where(of_library[events.function], -1, events.function))

    def graph_host_ns(self) -> Int64:
        """Return the start and duration of each host callback that a graph ran."""
        return np.array(self._host_nodes_ns, dtype=np.int64).reshape(-1, 2)

    def memory(self) -> MemoryEvents:
        """Return allocations and frees in the order of the file."""
        memory = self._memory.record()
        # In 2021 an operator's thread was text, a memory event's a number.
        numbers = dict(self.threads)
        as_text = np.array([numbers.get((pid, str(tid)), number) for (pid, tid), number in numbers.items()])
        return replace(memory, thread=as_text[memory.thread]) if len(numbers) else memory

    def host_collectives(self, host: HostEvents) -> dict[tuple[int, int], CollectiveArguments]:
        """Return the collectives among host events, by thread and start."""
        rows = list(self._host_collectives)
        keys = zip(host.thread[rows].tolist(), host.start_ns[rows].tolist(), strict=True)
        return dict(zip(keys, self._host_collectives.values(), strict=True)) if rows else {}

    def flows(self) -> Flows:
        """Return the flows from operators to the autograd nodes that differentiate them, if both ends are known."""
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

    def work_processes(self) -> int:
        """Return the number of processes with work on the same device: one, unless traces were merged."""
        return max(Counter(device for _, device in self._work_processes).values(), default=0)

    def unread(self) -> tuple[UnreadRows, ...]:
        """Return the intervals that no rule reads, those with the longest sum first.

        If their origin is unknown, and the trace has no device work, a process without operators counts as a device.
        """
        hosts = {process for process, _ in self.threads}
        rows: dict[tuple[bool, str], UnreadRows] = {}
        for (process, category), (events, ns, tasks) in self._unread.items():
            called = [*self._processes.get(process, ()), *([process] if isinstance(process, str) else [])]
            beside = process in hosts
            one = unread_rows(category, called, events, ns, of_device=tasks > 0, beside_host=beside)
            if (known := rows.get((beside, one.name))) is not None:
                events, ns = events + known.events, ns + known.duration_ns
                one = replace(one, events=events, duration_ns=ns, of_device=one.of_device or known.of_device)
            rows[beside, one.name] = one
        if not self._work.rows and not any(one.of_device for one in rows.values()):
            rows = {key: replace(one, of_device=not key[0]) for key, one in rows.items()}
        timed = [one for one in rows.values() if one.of_device and one.duration_ns]
        shown = [one for one in rows.values() if one.duration_ns or not timed]  # flows lead to rows that are there
        return tuple(sorted(shown, key=lambda one: (-one.duration_ns, -one.events, one.name)))

    def raw_signatures(self) -> list[RawArguments]:
        """Return the distinct arguments, as indexed by `HostEvents.signature`."""
        split = (key.split(_BETWEEN) for key in self._signatures)
        return [(dims, types, strides, constants, "") for dims, types, strides, constants in split]

    def _taker_of(self, event: type[Event]) -> Callable[[Event], object]:
        """Return the function that processes events of one type; those of a known category are not examined singly."""
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
            if kind == FOREIGN and event.cat is not None and event.args and event.args.stream is not None:
                # Work of an unknown accelerator: it runs on a stream.
                self.foreign[event.cat] = self.foreign.get(event.cat, 0) + 1
                kind = KERNEL
            elif event.cat is None and event.pid == LEGACY_OPERATORS:
                kind = OPERATOR
            elif kind == FOREIGN or event.cat is None:
                self._count_unread(event, event.cat)
                kind = IGNORED
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
        elif event.ph == "M":
            args = event.args or _NO_ARGS
            text = _decode(bytes(args.process_name if event.name == "process_name" else args.process_labels))
            if event.name in ("process_name", "process_labels") and isinstance(text, str) and text:
                self._processes.setdefault(event.pid, []).append(text)
        elif event.ts is not None:
            if event.name == MEMORY:
                self._instants.append(event)
            elif event.cat in DIFFERENTIATION_FLOWS and event.id is not None:
                (self._flow_starts if event.ph == "s" else self._flow_ends).append(event)
            elif event.ph == "s" and event.cat is not None and event.cat.startswith(LEGACY_FLOW):
                self._count_unread(event, f"{event.cat.removeprefix(LEGACY_FLOW)} (flows)")

    def _count_unread(self, event: Event, category: str | None) -> None:
        events, ns, tasks = self._unread.get((event.pid, category), (0, 0, 0))
        task = event.args is not None and (bool(event.args.task_type) or event.args.stream is not None)
        self._unread[event.pid, category] = events + 1, ns + max(nanoseconds(event.dur), 0), tasks + task

    def _take_annotation(self, event: Event) -> None:
        self._annotations.append(len(self._host_events))
        self._host_events.append(event)

    def _add_host(self, events: list[Event]) -> None:
        args = _args_of(events)
        for row, collective in self._collectives_in(args, self._host.rows):
            self._host_collectives[row] = collective
        annotation = [0] * len(events)
        for index in self._annotations:
            annotation[index] = 1
        sequence = [item.sequence for item in args]
        if -1 in sequence or None in sequence:
            sequence = _filled(sequence, [item.sequence_2021 for item in args])
        signature = [-1] * len(events)
        dims = [item.dims or item.dims_2021 for item in args]
        if any(dims):
            signature = [
                self._signatures[_BETWEEN.join((sizes, item.types, item.strides, item.constants))] if sizes else -1
                for sizes, item in zip(dims, args, strict=True)
            ]
        self._host.extend(
            len(events),
            name=self.names.of(_names_of(events)),
            thread=self._threads_of(events),
            start_ns=[event.ts for event in events],
            duration_ns=[event.dur for event in events],
            external_id=_external_ids(args),
            sequence=sequence,
            forward_thread=[item.forward_thread for item in args],
            signature=signature,
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
        # Copies that are all called `Memcpy` get their two ends.
        names = [
            f"Memcpy {item.copy_kind}" if name == "Memcpy" and item.copy_kind else name
            for name, item in zip(_names_of(events), args, strict=True)
        ]
        streams = [event.tid if item.stream is None else item.stream for event, item in zip(events, args, strict=True)]
        numbers = [number if isinstance(number, int) else self._number_in_text(number) for number in devices]
        self._work_processes.update(zip([event.pid for event in events], numbers, strict=True))
        self._work.extend(
            len(events),
            name=self.names.of(names),
            device=numbers,
            stream=[number if isinstance(number, int) else self._number_in_text(number) for number in streams],
            start_ns=[event.ts for event in events],
            duration_ns=[event.dur for event in events],
            correlation=[item.correlation for item in args],
            external_id=_external_ids(args),
            kind=[_KIND_OF_WORK.get(self._kinds[event.cat], columns.KERNEL) for event in events],
            blocks_per_sm=[item.blocks_per_sm for item in args],
            occupancy=[item.occupancy for item in args],
            node=[_node_of(item) for item in args],
            scope=[self._scope(item) for item in args],
            of_backward=[int(b"backward" in bytes(item.autograd_phase)) for item in args],
            grid=[self._grids[bytes(item.grid), bytes(item.block)] if item.grid else -1 for item in args],
        )

    def functions(self) -> tuple[str, ...]:
        """Return the recorded Python functions outside libraries, by number."""
        return tuple(self._functions.texts)

    def grids(self) -> tuple[str, ...]:
        """Return the distinct kernel grids and blocks as text."""
        shown = []
        for pair in self._grids:
            texts = (text.decode(errors="replace").strip("[] ") for text in pair if text)
            shown.append(" of ".join(re.sub(r"\s*,\s*", " x ", text) for text in texts))
        return tuple(shown)

    def _scope(self, args: Args) -> int:
        """Return the number of the module, else of the name, that torch's annotations give work in a CUDA graph."""
        said = args.module_fqn or args.module_name or args.process_name or args.marked
        if not said or not _node_of(args):
            return -1
        text = msgspec.json.decode(said)
        return self._scopes[_common_module(text)] if isinstance(text, str) and text else -1

    def scopes(self) -> tuple[str, ...]:
        """Return the modules and marked names of work in CUDA graphs, by number."""
        return tuple(self._scopes)

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
        stack = [self._kinds[event.cat] == PYTHON for event in events]
        long = [not python or (event.dur or 0) >= LONG_PYTHON_US for event, python in zip(events, stack, strict=True)]
        function = [self._functions[event.name] if of else -1 for event, of in zip(events, stack, strict=True)]
        timed = [kept or number >= 0 for kept, number in zip(long, function, strict=True)]
        # A Python function is named without its file's folders and its object's address.
        name = [
            self.names[_ADDRESS.sub("", (event.name or "").rpartition("/")[2])] if kept else -1
            for event, kept in zip(events, long, strict=True)
        ]
        self._profiler.extend(
            len(events),
            name=name,
            start_ns=[event.ts for event in events],
            duration_ns=[event.dur if kept else 0 for event, kept in zip(events, timed, strict=True)],
            function=function,
            thread=[thread if python else -1 for thread, python in zip(self._threads_of(events), stack, strict=True)],
        )

    def _threads_of(self, events: list[Event]) -> list[int]:
        processes, threads = [event.pid for event in events], [event.tid for event in events]
        if processes.count(processes[0] if processes else None) < len(processes):
            return self.threads.of(zip(processes, threads, strict=True))
        number = {thread: self.threads[processes[0], thread] for thread in dict.fromkeys(threads)}
        return list(map(number.__getitem__, threads))

    def _number_in_text(self, value: str | None) -> int:
        """Return the number in a device's or stream's text; for text without one a new number below -1."""
        text = "" if value is None else value
        digits = text.split()[-1] if text.split() else ""
        return int(digits) if digits.isdecimal() and len(digits) < 19 else -2 - self._texts[text]

    def _collectives_in(self, args: list[Args], first_row: int) -> list[tuple[int, CollectiveArguments]]:
        """Return the row and the collective of each event that has one."""
        rows = [(row, self._collectives.of(item)) for row, item in enumerate(args, first_row) if item.collective]
        return [(row, collective) for row, collective in rows if collective]


class _Takers(dict["type[Event]", "Callable[[Event], object]"]):
    """The function that takes the events of each type."""

    def __init__(self, taker_of: Callable[[type[Event]], Callable[[Event], object]]) -> None:
        self._taker_of = taker_of

    def __missing__(self, event: type[Event]) -> Callable[[Event], object]:
        self[event] = taker = self._taker_of(event)
        return taker


def _names_of(events: list[Event]) -> list[str]:
    """Return the names of events, all of which have one."""
    return [event.name for event in events if event.name is not None]


def _args_of(events: list[Event]) -> list[Args]:
    return [event.args or _NO_ARGS for event in events]


def _external_ids(args: list[Args]) -> list[int | None]:
    ids = [item.external_id for item in args]
    if -1 not in ids and None not in ids:
        return ids
    return _filled(ids, [item.external_id_2021 for item in args])


def _filled(numbers: list[int | None], numbers_2021: list[int | None]) -> list[int | None]:
    """Fill missing numbers with those under the key of 2021."""
    if numbers_2021.count(-1) == len(numbers_2021):
        return numbers
    return [old if new in (-1, None) else new for new, old in zip(numbers, numbers_2021, strict=True)]


# One trace as columns.


class Trace(Struct, kw_only=True):
    """One trace in columns. `names[i]` is the text of name `i`, `threads[i]` the (process, thread) of thread `i`."""

    names: list[str]
    threads: list[tuple[int | str | None, int | str | None]]
    host: HostEvents
    launches: Launches
    work: DeviceWork
    environment: Environment
    capture: Capture | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    #: Caveats on all figures: the trace is truncated, or has only the host.
    caveats: list[str] = field(default_factory=list)
    text_bytes: int = 0
    #: Digest of the file on disk, compressed or not.
    sha256: str = ""
    #: The distinct argument lists of the operators, numbered by `host.signature`.
    signatures: list[Signature | None] = field(default_factory=list)
    #: The messages of collectives, by row of `work` and by thread and start of a host event.
    work_collectives: dict[int, CollectiveArguments] = field(default_factory=dict)
    host_collectives: dict[tuple[int, int], CollectiveArguments] = field(default_factory=dict)
    memory: MemoryEvents = NO_MEMORY_EVENTS
    flows: Flows = NO_FLOWS
    profiler: ProfilerEvents = NO_PROFILER_EVENTS
    #: The start and duration of each host callback that a graph ran: its stream waited and did no work.
    graph_host_ns: Int64 = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    #: The devices that worked, the busiest first.
    devices: tuple[TraceDevice, ...] = ()
    #: Recorded Python functions outside libraries: `model.py:12 forward`.
    functions: tuple[str, ...] = ()
    #: Modules and marked names of work in CUDA graphs, numbered by `work.scope`.
    scopes: tuple[str, ...] = ()
    #: Distinct kernel grids and blocks as text, indexed by `work.grid`.
    grids: tuple[str, ...] = ()
    #: Number of processes with work on the same device: one, unless traces were merged.
    work_processes: int = 0
    #: Intervals that no rule reads: an accelerator's, or another program's.
    unread: tuple[UnreadRows, ...] = ()
    #: Whether the trace has an accelerator's work, or launches whose work was not recorded. Calls that only query or
    #: wait do not count: a profiler looking for a device makes them too.
    on_device: bool = False
    #: Whether the file ends before its events do.
    cut_off: bool = False


#: Keys of the memory that captures wrote before they wrote observations.
_OLD_MEMORY = frozenset({"components", "timeline", "check_points"})


def read_trace(path: str | Path) -> Trace:
    """Read the trace in `path` (`.json`, `.json.gz`); raise `TraceError` if it cannot be read."""
    source = Path(path)
    if not os.path.isfile(source):
        try:
            os.stat(source)
            reason = "it is not a file"
        except (FileNotFoundError, NotADirectoryError):
            reason = "no such file"
        except OSError as error:
            reason = error.strerror or str(error)
        raise TraceError(f"cannot read the trace {source}: {reason}")
    stream = EventStream(source)
    collector = Collector()
    enabled = gc.isenabled()
    gc.disable()
    try:
        for events in stream:
            collector.add(events)
            check_density(source, collector.kept, stream.text_bytes)
    finally:
        if enabled:
            gc.enable()

    metadata = stream.metadata
    _tell(collector, stream.warnings)
    capture, scopes = _capture(metadata, stream.warnings), collector.scopes()
    host = without_negative(collector.host(), stream.warnings)
    launches = without_negative(collector.launches(), stream.warnings)
    work = without_negative(collector.work(), stream.warnings)
    if capture is not None and capture.graph_nodes:
        work, scopes = _with_nodes(work, scopes, capture.graph_nodes)
    names = list(collector.names)
    starting = starts_work(names, launches)
    unread = collector.unread()
    check_content(stream.path, host, starting, work, unread, [*stream.caveats, *stream.warnings])
    told_share(stream.cut_off, launches.correlation[starting], work.correlation, stream.caveats)
    raw_signatures = collector.raw_signatures()
    if capture and capture.list_arguments:
        _tell_lists(host, raw_signatures, capture)
    signatures = parse_signatures(raw_signatures, stream.warnings)
    if capture and capture.observed:
        fill_in_observed(list(collector.names), host, signatures, capture.observed)
    memory = collector.memory()
    devices = devices_of(metadata, work)
    return Trace(
        names=names,
        threads=list(collector.threads),
        host=host,
        launches=launches,
        work=work,
        environment=capture.environment if capture else environment_of(metadata, devices, memory),
        capture=capture,
        metadata=metadata,
        warnings=stream.warnings,
        caveats=stream.caveats,
        text_bytes=stream.text_bytes,
        sha256=stream.sha256,
        signatures=signatures,
        memory=memory,
        flows=collector.flows(),
        profiler=collector.profiler(),
        work_collectives=collector.work_collectives,
        host_collectives=collector.host_collectives(host),
        graph_host_ns=collector.graph_host_ns(),
        devices=devices,
        grids=collector.grids(),
        functions=collector.functions(),
        scopes=scopes,
        unread=unread,
        work_processes=collector.work_processes(),
        on_device=len(work.name) > 0 or bool(starting.any()),
        cut_off=stream.cut_off,
    )


def _tell(collector: Collector, warnings: list[str]) -> None:
    if collector.untimed:
        events = "1 event" if collector.untimed == 1 else f"{collector.untimed:,} events"
        was = "was" if collector.untimed == 1 else "were"
        warnings.append(f"{events} without a readable name or time {was} left out")
    if len(nodes := collector.graph_host_ns()):
        many = "1 graph host node" if len(nodes) == 1 else f"{len(nodes):,} graph host nodes"
        took = f"{int(nodes[:, 1].sum()) / 1e6:,.3f} ms"
        warnings.append(f"device work excludes {many} ({took}): callbacks on the host that a graph waited for")
    for rows in [rows for rows in collector.unread() if not rows.of_device and rows.duration_ns][:3]:
        warnings.append(f"not recognized and therefore not read: {rows.text}")
    for category, count in sorted(collector.foreign.items())[:5]:
        warnings.append(f"read as kernels: {count:,} events of the unknown category {category[:40]}")


def _capture(metadata: dict[str, object], warnings: list[str]) -> Capture | None:
    raw = metadata.get(METADATA_KEY)
    if not isinstance(raw, dict):
        return None
    if isinstance(memory := raw.get("memory"), dict) and not _OLD_MEMORY.isdisjoint(memory):
        raw = {**raw, "memory": {}}
        warnings.append(
            f"the memory records in opanatomy's metadata in the trace ({METADATA_KEY}) use an older format, which"
            " opanatomy no longer reads - profile the model again"
        )
    try:
        return with_possible_numbers(msgspec.convert(raw, type=Capture), METADATA_KEY, warnings)
    except msgspec.ValidationError as error:
        warnings.append(f"opanatomy's metadata in the trace ({METADATA_KEY}) cannot be used: {error}")
        return None


def _tell_lists(host: HostEvents, raw: list[RawArguments], capture: Capture) -> None:
    """Renumber the signatures with tensor lists, one per distinct list content."""
    fresh: dict[RawArguments, int] = {}
    by_external = {
        int(key): "|".join(capture.lists[number] for number in numbers)
        for key, numbers in capture.list_arguments.items()
        if key.isdecimal() and len(key) < 19 and all(0 <= number < len(capture.lists) for number in numbers)
    }
    for row in np.flatnonzero(isin(host.external_id, np.array(list(by_external), dtype=np.int64))):
        signature = int(host.signature[row])
        if signature < 0:
            continue
        texts = (*raw[signature][:4], by_external[int(host.external_id[row])])
        host.signature[row] = fresh.setdefault(texts, len(raw) + len(fresh))
    raw.extend(fresh)
