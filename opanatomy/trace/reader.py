"""A trace file -> `Trace`: events of every schema since 2021 sorted into columns."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from opanatomy.errors import TraceError
from opanatomy.model import METADATA_KEY, Capture, Environment
from opanatomy.tables import DeviceWork, HostEvents, Launches
from opanatomy.trace.columns import Trace
from opanatomy.trace.schema import Args, Event
from opanatomy.trace.signatures import RawArguments, parse_signature
from opanatomy.trace.stream import EventStream

OPERATOR, ANNOTATION, LAUNCH, KERNEL, MEMCPY, MEMSET = range(6)

#: Categories of 2021 (capitalized) and of today; what is not here is not read.
CATEGORIES = {
    "cpu_op": OPERATOR, "operator": OPERATOR, "user_annotation": ANNOTATION,
    "cuda_runtime": LAUNCH, "cuda_driver": LAUNCH, "runtime": LAUNCH, "hip_runtime": LAUNCH, "driver": LAUNCH,
    "xpu_runtime": LAUNCH, "mtia_runtime": LAUNCH, "privateuse1_runtime": LAUNCH, "privateuse1_driver": LAUNCH,
    "hpu_op": LAUNCH, "glow_runtime": LAUNCH,
    "kernel": KERNEL, "gpu_memcpy": MEMCPY, "memcpy": MEMCPY, "gpu_memset": MEMSET, "memset": MEMSET,
    "concurrent_kernel": KERNEL, "mtia_insight": KERNEL, "hpu_kernel": KERNEL,
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
        self.raw_signatures: list[RawArguments] = []

    def add(self, events: list[Event]) -> None:
        for event in events:
            if event.ph != "X" or event.cat is None:
                continue
            kind = CATEGORIES.get(event.cat)
            if kind is None:
                kind = CATEGORIES.get(event.cat.lower())
                if kind is None:
                    continue
            if event.ts is None or event.name is None:
                continue
            if kind <= ANNOTATION:
                self._host(event, kind)
            elif kind == LAUNCH:
                self._launch(event)
            else:
                self._work(event, kind - KERNEL)

    def _host(self, event: Event, kind: int) -> None:
        args = event.args or _NO_ARGS
        sequence = args.sequence if args.sequence is not None else args.sequence_2021
        _append(
            self.host, self._name(event.name), self._thread(event), _nanoseconds(event.ts), _nanoseconds(event.dur),
            _external(args), _known(sequence), _known(args.forward_thread), self._signature(args), kind,
        )  # fmt: skip

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
        capture = _capture(metadata, stream.warnings)
        host = _columns(HostEvents, _HOST, self.host)
        raw_signatures = list(self.signatures)
        if capture and capture.list_arguments:
            _tell_lists(host, raw_signatures, capture)
        return Trace(
            names=list(self.names),
            threads=list(self.threads),
            host=host,
            launches=_columns(Launches, _LAUNCH, self.launches),
            work=_columns(DeviceWork, _WORK, self.work),
            environment=capture.environment if capture else _environment(metadata),
            capture=capture,
            metadata=metadata,
            warnings=stream.warnings,
            text_bytes=stream.text_bytes,
            signatures=[parse_signature(raw) for raw in raw_signatures],
        )


def _append(columns: list[array[int]], *values: int) -> None:
    for column, value in zip(columns, values, strict=True):
        column.append(value)


def _columns(record: Callable[..., Columns], names: tuple[str, ...], columns: list[array[int]]) -> Columns:
    arrays = {name: np.array(column, dtype=np.int64) for name, column in zip(names, columns, strict=True)}
    return record(**arrays)


def _known(value: int | None) -> int:
    return -1 if value is None else value


def _external(args: Args) -> int:
    return _known(args.external_id if args.external_id is not None else args.external_id_2021)


def _number(value: object) -> int:
    """A device or stream number; text that is none gets a number of its own below -1."""
    if isinstance(value, int):
        return value
    text = str(value)
    digits = text.split()[-1] if text.split() else ""
    return int(digits) if digits.isdigit() else -2 - (sum(text.encode()) % 1000)


def _nanoseconds(value: float | str | Decimal | None) -> int:
    if value is None:
        return 0
    try:
        if isinstance(value, str):
            value = Decimal(value)
        whole = int(value)
        return whole * 1000 + round((value - whole) * 1000)
    except (ArithmeticError, ValueError):
        return 0


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
        device_memory_bytes=memory if isinstance(memory, int) else None,
        cuda=_version(cuda),
        driver=_version(driver),
    )


def _device_kind(name: object, metadata: dict[str, Any]) -> str | None:
    if "hip_runtime_version" in metadata or (isinstance(name, str) and "AMD" in name.upper()):
        return "rocm"
    return "cuda" if isinstance(name, str) else None


def _version(value: object) -> str | None:
    return f"{value // 1000}.{value % 1000 // 10}" if isinstance(value, int) else None


def _tell_lists(host: HostEvents, raw: list[RawArguments], capture: Capture) -> None:
    """Number the signatures with tensor lists anew, one for each content of the lists."""
    fresh: dict[RawArguments, int] = {}
    by_external = {
        int(key): "|".join(capture.lists[number] for number in numbers)
        for key, numbers in capture.list_arguments.items()
    }
    for row in np.flatnonzero(np.isin(host.external_id, np.array(list(by_external), dtype=np.int64))):
        signature = int(host.signature[row])
        if signature < 0:
            continue
        told = (*raw[signature][:4], by_external[int(host.external_id[row])])
        host.signature[row] = fresh.setdefault(told, len(raw) + len(fresh))
    raw.extend(fresh)
