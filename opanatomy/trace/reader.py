"""A trace file -> `Trace`: events of every schema since 2021 sorted into columns."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from opanatomy.errors import TraceError
from opanatomy.model import METADATA_KEY, Capture, Environment
from opanatomy.tables import HostEvents
from opanatomy.trace.collect import Collector
from opanatomy.trace.columns import Trace
from opanatomy.trace.observed import tell_observed
from opanatomy.trace.plausible import (
    check_content,
    check_density,
    told_share,
    with_possible_numbers,
    without_negative,
)
from opanatomy.trace.signatures import RawArguments, parse_signatures
from opanatomy.trace.stream import EventStream


def read_trace(path: str | Path) -> Trace:
    """The trace in `path` (`.json`, `.json.gz`); `TraceError` where it cannot be read."""
    source = Path(path)
    if not os.path.isfile(source):
        raise TraceError(f"cannot read the trace {source}: no such file")
    stream = EventStream(source)
    found = Collector()
    enabled = gc.isenabled()
    gc.disable()
    try:
        for events in stream:
            found.add(events)
            check_density(source, found.kept, stream.text_bytes)
    finally:
        if enabled:
            gc.enable()
    return _trace(found, stream)


def _trace(found: Collector, stream: EventStream) -> Trace:
    metadata = stream.metadata
    _tell(found, stream.warnings)
    capture = _capture(metadata, stream.warnings)
    host = without_negative(found.host(), stream.warnings)
    launches = without_negative(found.launches(), stream.warnings)
    work = without_negative(found.work(), stream.warnings)
    check_content(stream.path, host, launches, work, stream.warnings)
    told_share(stream.cut_off, launches.correlation, work.correlation, stream.warnings)
    raw_signatures = found.raw_signatures()
    if capture and capture.list_arguments:
        _tell_lists(host, raw_signatures, capture)
    signatures = parse_signatures(raw_signatures, stream.warnings)
    if capture and capture.observed:
        tell_observed(list(found.names), host, signatures, capture.observed)
    return Trace(
        names=list(found.names),
        threads=list(found.threads),
        host=host,
        launches=launches,
        work=work,
        environment=capture.environment if capture else _environment(metadata),
        capture=capture,
        metadata=metadata,
        warnings=stream.warnings,
        text_bytes=stream.text_bytes,
        signatures=signatures,
        memory=found.memory(),
        flows=found.flows(),
        work_messages=found.work_messages,
        host_messages=found.host_messages,
    )


def _tell(found: Collector, warnings: list[str]) -> None:
    if found.untimed:
        events = "1 event" if found.untimed == 1 else f"{found.untimed:,} events"
        was = "was" if found.untimed == 1 else "were"
        warnings.append(f"{events} without a readable name or time {was} left out")
    for category, count in sorted(found.foreign.items())[:5]:
        warnings.append(f"{count:,} events of the unknown category {category[:40]} were read as kernels")


def _capture(metadata: dict[str, object], warnings: list[str]) -> Capture | None:
    raw = metadata.get(METADATA_KEY)
    if not isinstance(raw, dict):
        return None
    try:
        return with_possible_numbers(msgspec.convert(raw, type=Capture), METADATA_KEY, warnings)
    except msgspec.ValidationError as error:
        warnings.append(f"the trace's own metadata ({METADATA_KEY}) cannot be used: {error}")
        return None


def _environment(metadata: dict[str, Any]) -> Environment:
    devices = metadata.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], dict) else {}
    name = first.get("name")
    cuda = metadata.get("cuda_runtime_version")
    driver = metadata.get("cuda_driver_version")
    memory, units = first.get("totalGlobalMem"), first.get("numSms")
    return Environment(
        device=name if isinstance(name, str) else None,
        device_kind=_device_kind(name, metadata),
        device_count=len(devices) if isinstance(devices, list) and devices else None,
        device_memory_bytes=memory if type(memory) is int and memory > 0 else None,
        multiprocessors=units if type(units) is int and units > 0 else None,
        cuda=_version(cuda),
        driver=_version(driver),
    )


def _device_kind(name: object, metadata: dict[str, Any]) -> str | None:
    if "hip_runtime_version" in metadata or (isinstance(name, str) and "AMD" in name.upper()):
        return "rocm"
    if "xpupti_version" in metadata or (isinstance(name, str) and "INTEL" in name.upper()):
        return "xpu"  # Kineto's plug-in for XPU leaves its version (XpuptiActivityProfilerSession)
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
