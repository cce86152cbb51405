"""A trace file -> `Trace`: events of every schema since 2021 sorted into columns."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Sequence
from decimal import Decimal
from math import nan
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from opanatomy.errors import TraceError
from opanatomy.model import METADATA_KEY, Capture, Environment
from opanatomy.tables import DeviceWork, HostEvents, Launches, Message
from opanatomy.trace.columns import Trace
from opanatomy.trace.messages import Messages
from opanatomy.trace.observed import tell_observed
from opanatomy.trace.plausible import check_density, told_share, without_negative
from opanatomy.trace.schema import Args, Event
from opanatomy.trace.signatures import RawArguments, parse_signatures
from opanatomy.trace.stream import EventStream

IGNORED, OPERATOR, ANNOTATION, LAUNCH, KERNEL, MEMCPY, MEMSET = range(-1, 6)

#: Categories of 2021 (capitalized) and of today; of one that is not here, events on a stream are read as kernels.
CATEGORIES = {
    "cpu_op": OPERATOR, "operator": OPERATOR, "user_annotation": ANNOTATION,
    "cuda_runtime": LAUNCH, "cuda_driver": LAUNCH, "runtime": LAUNCH, "hip_runtime": LAUNCH, "driver": LAUNCH,
    "xpu_runtime": LAUNCH, "mtia_runtime": LAUNCH, "privateuse1_runtime": LAUNCH, "privateuse1_driver": LAUNCH,
    "hpu_op": LAUNCH, "glow_runtime": LAUNCH,
    "kernel": KERNEL, "gpu_memcpy": MEMCPY, "memcpy": MEMCPY, "gpu_memset": MEMSET, "memset": MEMSET,
    "concurrent_kernel": KERNEL, "mtia_insight": KERNEL, "mtia_ccp_events": KERNEL, "hpu_kernel": KERNEL,
    "python_function": IGNORED, "gpu_user_annotation": IGNORED, "cuda_sync": IGNORED, "cuda_event": IGNORED,
    "cuda_profiler_range": IGNORED, "overhead": IGNORED, "trace": IGNORED, "cpu_instant_event": IGNORED,
    "external_correlation": IGNORED, "collective_comm": IGNORED, "gpu_pm_counter": IGNORED,
}  # fmt: skip

_HOST = (
    "name",
    "thread",
    "start_ns",
    "duration_ns",
    "external_id",
    "sequence",
    "forward_thread",
    "signature",
    "annotation",
)
_LAUNCH = ("name", "thread", "start_ns", "duration_ns", "correlation", "external_id")
_WORK = ("name", "device", "stream", "start_ns", "duration_ns", "correlation", "external_id", "kind")
_FILL = ("blocks_per_sm", "occupancy")
_NO_ARGS = Args()

Columns = TypeVar("Columns", HostEvents, Launches, DeviceWork)


def read_trace(path: str | Path) -> Trace:
    """The trace in `path` (`.json`, `.json.gz`); `TraceError` where it cannot be read."""
    source = Path(path)
    if not source.is_file():
        raise TraceError(f"cannot read the trace {source}: no such file")
    stream = EventStream(source)
    builder = _Builder()
    enabled = gc.isenabled()
    gc.disable()
    try:
        for events in stream:
            builder.add(events)
            check_density(source, builder.kept, stream.text_bytes)
    finally:
        if enabled:
            gc.enable()
    return builder.finish(stream)


class _Builder:
    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.threads: dict[tuple[Any, Any], int] = {}
        self.signatures: dict[RawArguments, int] = {}
        self.host = [array("q") for _ in _HOST]
        self.launches = [array("q") for _ in _LAUNCH]
        self.work = [array("q") for _ in _WORK]
        self.fill = [array("d") for _ in _FILL]
        self.raw_signatures: list[RawArguments] = []
        self.messages = Messages()
        self.host_messages: dict[tuple[int, int], Message] = {}
        self.work_messages: dict[int, Message] = {}
        self.untimed = 0
        self.foreign: dict[str, int] = {}

    def add(self, events: list[Event]) -> None:
        for event in events:
            if event.ph != "X" or event.cat is None:
                continue
            kind = CATEGORIES.get(event.cat)
            if kind is None:
                kind = self._kind(event.cat, event.args)
            if kind == IGNORED:
                continue
            if event.ts is None or event.name is None:
                self.untimed += 1
                continue
            if kind <= ANNOTATION:
                self._host(event, kind)
            elif kind == LAUNCH:
                self._launch(event)
            else:
                self._work(event, kind - KERNEL)

    @property
    def kept(self) -> int:
        """How many events are in the columns."""
        return len(self.host[0]) + len(self.launches[0]) + len(self.work[0])

    def _kind(self, category: str, args: Args | None) -> int:
        """Of a category in other letters, or of an accelerator that is not known: its work runs on a stream."""
        kind = CATEGORIES.get(category.lower())
        if kind is None and args is not None and args.stream is not None:
            self.foreign[category] = self.foreign.get(category, 0) + 1
            return KERNEL
        return IGNORED if kind is None else kind

    def _host(self, event: Event, kind: int) -> None:
        args = event.args or _NO_ARGS
        sequence = args.sequence if args.sequence is not None else args.sequence_2021
        _append(
            self.host, self._name(event.name), self._thread(event), _nanoseconds(event.ts), _nanoseconds(event.dur),
            _external(args), _known(sequence), _known(args.forward_thread), self._signature(args), kind,
        )  # fmt: skip
        if args.collective and (message := self.messages.of(args)):
            self.host_messages[self.host[1][-1], self.host[2][-1]] = message

    def _launch(self, event: Event) -> None:
        args = event.args or _NO_ARGS
        _append(
            self.launches, self._name(event.name), self._thread(event), _nanoseconds(event.ts),
            _nanoseconds(event.dur), _known(args.correlation), _external(args),
        )  # fmt: skip

    def _work(self, event: Event, kind: int) -> None:
        args = event.args or _NO_ARGS
        device = args.device if args.device is not None else event.pid
        stream = args.stream if args.stream is not None else event.tid
        _append(
            self.work, self._name(event.name), _number(device), _number(stream), _nanoseconds(event.ts),
            _nanoseconds(event.dur), _known(args.correlation), _external(args), kind,
        )  # fmt: skip
        self.fill[0].append(_fraction(args.blocks_per_sm))
        self.fill[1].append(_fraction(args.occupancy))
        if args.collective and (message := self.messages.of(args)):
            self.work_messages[len(self.work[0]) - 1] = message

    def _name(self, name: str | None) -> int:
        return self.names.setdefault(name or "", len(self.names))

    def _thread(self, event: Event) -> int:
        return self.threads.setdefault((event.pid, event.tid), len(self.threads))

    def _signature(self, args: Args) -> int:
        dims = args.dims or args.dims_2021
        if not dims:
            return -1
        raw = (bytes(dims), bytes(args.types), bytes(args.strides), bytes(args.constants), "")
        return self.signatures.setdefault(raw, len(self.signatures))

    def finish(self, stream: EventStream) -> Trace:
        metadata = stream.metadata
        self._tell(stream.warnings)
        capture = _capture(metadata, stream.warnings)
        host = without_negative(_columns(HostEvents, _HOST, self.host), stream.warnings)
        launches = without_negative(_columns(Launches, _LAUNCH, self.launches), stream.warnings)
        work = _columns(DeviceWork, (*_WORK, *_FILL), [*self.work, *self.fill])
        work = without_negative(work, stream.warnings)
        told_share(stream.cut_off, launches.correlation, work.correlation, stream.warnings)
        raw_signatures = list(self.signatures)
        if capture and capture.list_arguments:
            _tell_lists(host, raw_signatures, capture)
        signatures = parse_signatures(raw_signatures, stream.warnings)
        if capture and capture.observed:
            tell_observed(list(self.names), host, signatures, capture.observed)
        return Trace(
            names=list(self.names),
            threads=list(self.threads),
            host=host,
            launches=launches,
            work=work,
            environment=capture.environment if capture else _environment(metadata),
            capture=capture,
            metadata=metadata,
            warnings=stream.warnings,
            text_bytes=stream.text_bytes,
            signatures=signatures,
            work_messages=self.work_messages,
            host_messages=self.host_messages,
        )

    def _tell(self, warnings: list[str]) -> None:
        if self.untimed:
            warnings.append(f"{self.untimed:,} events without a readable name or time were left out")
        for category, count in sorted(self.foreign.items())[:5]:
            warnings.append(f"{count:,} events of the unknown category {category[:40]} were read as kernels")


def _append(columns: list[array[int]], *values: int) -> None:
    for column, value in zip(columns, values, strict=True):
        column.append(value)


def _columns(
    record: Callable[..., Columns], names: tuple[str, ...], columns: Sequence[array[int] | array[float]]
) -> Columns:
    arrays = {name: np.array(column, dtype=column.typecode) for name, column in zip(names, columns, strict=True)}
    return record(**arrays)


def _known(value: int | None) -> int:
    return -1 if value is None else value


def _fraction(value: float | str | None) -> float:
    return nan if value is None or isinstance(value, str) else value


def _external(args: Args) -> int:
    return _known(args.external_id if args.external_id is not None else args.external_id_2021)


def _number(value: object) -> int:
    """A device or stream number; text that is none gets a number of its own below -1."""
    if isinstance(value, int):
        return value
    text = str(value)
    digits = text.split()[-1] if text.split() else ""
    return int(digits) if digits.isdecimal() and len(digits) < 19 else -2 - (sum(text.encode()) % 1000)


def _nanoseconds(value: float | Decimal | None) -> int:
    if value is None:
        return 0
    whole = int(value)
    return whole * 1000 + round((value - whole) * 1000)


def _capture(metadata: dict[str, object], warnings: list[str]) -> Capture | None:
    raw = metadata.get(METADATA_KEY)
    if not isinstance(raw, dict):
        return None
    try:
        return msgspec.convert(raw, type=Capture)
    except msgspec.ValidationError as error:
        warnings.append(f"the trace's own metadata ({METADATA_KEY}) cannot be used: {error}")
        return None


def _environment(metadata: dict[str, Any]) -> Environment:
    devices = metadata.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], dict) else {}
    name = first.get("name")
    cuda = metadata.get("cuda_runtime_version")
    driver = metadata.get("cuda_driver_version")
    memory = first.get("totalGlobalMem")
    return Environment(
        device=name if isinstance(name, str) else None,
        device_kind=_device_kind(name, metadata),
        device_count=len(devices) if isinstance(devices, list) and devices else None,
        device_memory_bytes=memory if type(memory) is int and memory > 0 else None,
        cuda=_version(cuda),
        driver=_version(driver),
    )


def _device_kind(name: object, metadata: dict[str, Any]) -> str | None:
    if "hip_runtime_version" in metadata or (isinstance(name, str) and "AMD" in name.upper()):
        return "rocm"
    return "cuda" if isinstance(name, str) else None


def _version(value: object) -> str | None:
    return f"{value // 1000}.{value % 1000 // 10}" if type(value) is int else None


def _tell_lists(host: HostEvents, raw: list[RawArguments], capture: Capture) -> None:
    """Number the signatures with tensor lists anew, one for each content of the lists."""
    fresh: dict[RawArguments, int] = {}
    by_external = {
        int(key): "|".join(capture.lists[number] for number in numbers)
        for key, numbers in capture.list_arguments.items()
        if key.isdecimal() and len(key) < 19 and all(0 <= number < len(capture.lists) for number in numbers)
    }
    for row in np.flatnonzero(np.isin(host.external_id, np.array(list(by_external), dtype=np.int64))):
        signature = int(host.signature[row])
        if signature < 0:
            continue
        told = (*raw[signature][:4], by_external[int(host.external_id[row])])
        host.signature[row] = fresh.setdefault(told, len(raw) + len(fresh))
    raw.extend(fresh)
