"""A trace file -> `Trace`: events of every schema since 2021 sorted into columns."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import msgspec
import numpy as np

from opanatomy.errors import TraceError
from opanatomy.records.columns import HostEvents, is_among, starts_work
from opanatomy.records.workload import METADATA_KEY, Capture
from opanatomy.trace.collect import Collector
from opanatomy.trace.columns import Trace
from opanatomy.trace.devices import devices_of, environment_of
from opanatomy.trace.observed import fill_in_observed
from opanatomy.trace.signatures import RawArguments, parse_signatures
from opanatomy.trace.stream import EventStream
from opanatomy.trace.validation import check_content, check_density, told_share, with_possible_numbers, without_negative

#: What captures wrote of memory before they wrote what they had observed.
_OLD_MEMORY = frozenset({"components", "timeline", "check_points"})


def _why_not(source: Path) -> str:
    """Why it is no file that can be read."""
    try:
        os.stat(source)
    except (FileNotFoundError, NotADirectoryError):
        return "no such file"
    except OSError as error:
        return error.strerror or str(error)
    return "it is not a file"


def read_trace(path: str | Path) -> Trace:
    """The trace in `path` (`.json`, `.json.gz`); `TraceError` where it cannot be read."""
    source = Path(path)
    if not os.path.isfile(source):
        raise TraceError(f"cannot read the trace {source}: {_why_not(source)}")
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
    return _trace(collector, stream)


def _trace(collector: Collector, stream: EventStream) -> Trace:
    metadata = stream.metadata
    _tell(collector, stream.warnings)
    capture = _capture(metadata, stream.warnings)
    host = without_negative(collector.host(), stream.warnings)
    launches = without_negative(collector.launches(), stream.warnings)
    work = without_negative(collector.work(), stream.warnings)
    check_content(stream.path, host, launches, work, [*stream.caveats, *stream.warnings])
    names = list(collector.names)
    starting = starts_work(names, launches)
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
        on_device=len(work.name) > 0 or bool(starting.any()),
    )


def _tell(collector: Collector, warnings: list[str]) -> None:
    if collector.untimed:
        events = "1 event" if collector.untimed == 1 else f"{collector.untimed:,} events"
        was = "was" if collector.untimed == 1 else "were"
        warnings.append(f"{events} without a readable name or time {was} left out")
    if len(nodes := collector.graph_host_ns()):
        many = "1 graph host node" if len(nodes) == 1 else f"{len(nodes):,} graph host nodes"
        took = f"{int(nodes[:, 1].sum()) / 1e6:,.3f} ms"
        warnings.append(f"{many} ({took}): callbacks on the host that a graph waited for, no device work")
    for category, count in sorted(collector.foreign.items())[:5]:
        warnings.append(f"{count:,} events of the unknown category {category[:40]} were read as kernels")


def _capture(metadata: dict[str, object], warnings: list[str]) -> Capture | None:
    raw = metadata.get(METADATA_KEY)
    if not isinstance(raw, dict):
        return None
    if isinstance(memory := raw.get("memory"), dict) and not _OLD_MEMORY.isdisjoint(memory):
        raw = {**raw, "memory": {}}
        warnings.append(
            f"the memory in the trace's own metadata ({METADATA_KEY}) is in an older form, which is not read - profile"
            " the model again"
        )
    try:
        return with_possible_numbers(msgspec.convert(raw, type=Capture), METADATA_KEY, warnings)
    except msgspec.ValidationError as error:
        warnings.append(f"the trace's own metadata ({METADATA_KEY}) cannot be used: {error}")
        return None


def _tell_lists(host: HostEvents, raw: list[RawArguments], capture: Capture) -> None:
    """Number the signatures with tensor lists anew, one for each content of the lists."""
    fresh: dict[RawArguments, int] = {}
    by_external = {
        int(key): "|".join(capture.lists[number] for number in numbers)
        for key, numbers in capture.list_arguments.items()
        if key.isdecimal() and len(key) < 19 and all(0 <= number < len(capture.lists) for number in numbers)
    }
    for row in np.flatnonzero(is_among(host.external_id, np.array(list(by_external), dtype=np.int64))):
        signature = int(host.signature[row])
        if signature < 0:
            continue
        texts = (*raw[signature][:4], by_external[int(host.external_id[row])])
        host.signature[row] = fresh.setdefault(texts, len(raw) + len(fresh))
    raw.extend(fresh)
