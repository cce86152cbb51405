"""Stream a trace file as batches of events and, at the end, its metadata; memory does not grow with the text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from opanatomy.errors import TraceError
from opanatomy.records.columns import Bool, DeviceWork, HostEvents, Int64, Launches, isin
from opanatomy.records.patterns import regex
from opanatomy.records.run import RunClock
from opanatomy.records.workload import (
    Capture,
    Compilation,
    Environment,
    MemoryObservations,
    StepObservations,
    Workload,
)
from opanatomy.trace.devices import UnreadRows
from opanatomy.trace.salvage import NOT_DECODABLE, Damaged, EventDecoder, last_boundary, mend, single_events
from opanatomy.trace.schema import Event

# The SHA-256 of a file, computed while it is read.


_CHUNK: Final = 1 << 20


class HashedFile:
    """A file that is read once from beginning to end and hashed on the way."""

    def __init__(self, raw: BufferedReader) -> None:
        self._raw = raw
        self._hash = hashlib.sha256()

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, none at the end."""
        chunk = self._raw.read(size)
        self._hash.update(chunk)
        return chunk

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes, or all that are left, without consuming them."""
        return self._raw.peek(size)[:size]

    def tell(self) -> int:
        """Return how many bytes were read."""
        return self._raw.tell()

    def hexdigest(self) -> str:
        """Return the SHA-256 of the whole file; read the rest first."""
        while self.read(_CHUNK):
            pass
        return self._hash.hexdigest()


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as raw:
        return HashedFile(raw).hexdigest()


# The bytes of a trace file, unpacked if it is gzip.


#: The damage that leaves everything before it whole.
ENDS_EARLY: Final = "it ends early"
_MAGIC = b"\x1f\x8b"
#: Small, because a damaged chunk is lost as a whole.
_PACKED_CHUNK = 1 << 14


class Decompressor(Protocol):
    """A file object to read decompressed bytes from."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, none at the end."""
        ...


class Gunzip:
    """Decompresses a gzip file; returns all bytes before damage, then raises."""

    def __init__(self, raw: Decompressor) -> None:
        self._raw = raw
        self._member = _new_member()
        self._damage: EOFError | None = None

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, none at the end; raise `EOFError` if the file is cut off or damaged."""
        chunks: list[bytes] = []
        missing = size
        while missing > 0 and self._damage is None:
            try:
                text = self._next(missing)
            except EOFError as error:
                self._damage = error
                break
            if text is None:
                break
            chunks.append(text)
            missing -= len(text)
        if self._damage and missing == size:
            raise self._damage
        return b"".join(chunks)

    def _next(self, size: int) -> bytes | None:
        """Return some text, maybe empty; `None` at the end of the last member."""
        from isal import isal_zlib

        packed = self._member.unconsumed_tail
        if self._member.eof:
            packed = self._member.unused_data
            if len(packed) < len(_MAGIC):
                packed += self._raw.read(_PACKED_CHUNK)
            if packed[:2] != _MAGIC:
                return None
            self._member = _new_member()
        elif not packed:
            packed = self._raw.read(_PACKED_CHUNK)
            if not packed:
                raise EOFError(ENDS_EARLY)
        try:
            text: bytes = self._member.decompress(packed, size)
        except isal_zlib.error as error:  # type: ignore[misc]  # the stub calls it a value
            raise EOFError(str(error)) from error
        return text


def _new_member() -> Any:
    from isal import isal_zlib

    return isal_zlib.decompressobj(31)


def open_text(raw: HashedFile) -> Decompressor:
    """Return a reader of the text in `raw`, gzip or plain."""
    return Gunzip(raw) if raw.peek(len(_MAGIC)) == _MAGIC else raw


# The keys of a trace before and after `traceEvents`.


#: Larger text before or after the events is not examined.
LONGEST_METADATA: Final = 16 << 20
#: Maximum bytes of decoded metadata.
_HEAVIEST: Final = 48 << 20


def read_metadata(head: bytes, tail: bytes, warnings: list[str]) -> dict[str, object]:
    """Return the keys of the text before the events (from its brace on) and after them (to its brace)."""
    metadata: dict[str, object] = {}
    left = _HEAVIEST
    for text in (head.rstrip(b", \t\r\n") + b"}", b"{" + tail.lstrip(b", \t\r\n")):
        try:
            keys = msgspec.json.decode(mend(text), type=dict[str, msgspec.Raw])
        except NOT_DECODABLE as error:
            warnings.append(f"the trace's metadata cannot be read ({error})")
            continue
        for key, raw in keys.items():
            value_text = bytes(raw)
            # Roughly how many bytes the decoded value takes at most.
            weight = len(value_text) + 240 * value_text.count(b"{")
            weight += 90 * value_text.count(b"[") + 60 * value_text.count(b",")
            if weight > left:
                warnings.append(f"the trace's metadata entry {key[:40]} is too large ({len(value_text) / 1e6:.1f} MB)")
                continue
            left -= weight
            try:
                value = msgspec.json.decode(raw)
                msgspec.json.encode(value)
            except (*NOT_DECODABLE, OverflowError) as error:
                warnings.append(f"the trace's metadata entry {key[:40]} cannot be read ({error})")
                continue
            metadata[key] = value
    return metadata


# Values that no profiler writes, and columns without them: the sums of later stages must fit int64.


#: A profiler writes 200 to 3000 bytes an event; a file of some thousands of smaller ones is made to fill memory.
MIN_EVENT_BYTES: Final = 64
_MANY_EVENTS: Final = 150_000
#: Nanoseconds that durations may add up to: half the range of int64, 146 years.
_MAX_NS: Final = 2**62
#: The largest plausible bytes, parameters or nanoseconds of a step; JSON readers hold it exactly.
_MAX_COUNTED: Final = 2**53

Part = TypeVar("Part", Environment, Workload, MemoryObservations)
Columns = TypeVar("Columns", HostEvents, Launches, DeviceWork)


def check_density(path: Path, events: int, text_bytes: int) -> None:
    """Raise `TraceError` if the text has more events than any profiler writes."""
    if events > max(_MANY_EVENTS, text_bytes // MIN_EVENT_BYTES):
        raise TraceError(
            f"cannot read {path}: {events:,} events in {text_bytes / 1e6:.1f} MB, less than {MIN_EVENT_BYTES} bytes"
            " each - is this a trace?"
        )


def without_negative(columns: Columns, warnings: list[str]) -> Columns:
    """Return the columns with nonnegative durations; raise `TraceError` if their sum exceeds int64."""
    negative = int((columns.duration_ns < 0).sum())
    if negative:
        events = "1 event has" if negative == 1 else f"{negative:,} events have"
        warnings.append(f"{events} a negative duration, which is treated as 0")
        columns = replace(columns, duration_ns=np.maximum(columns.duration_ns, 0))
    if float(columns.duration_ns.astype(np.float64).sum()) > _MAX_NS:
        raise TraceError("cannot read the trace: its durations add up to more than 146 years - is this a trace?")
    return columns


def told_share(cut_off: bool, launches: Int64, work: Int64, caveats: list[str]) -> None:
    """Warn, for a trace that is cut off, how many launches (correlation ids) have their device work before the cut."""
    known = launches[launches > 0]
    if cut_off and len(known) and len(work):
        recorded = int(isin(known, work).sum())
        caveats.append(f"the truncated trace contains the device work of {recorded:,} of its {len(known):,} launches")


def check_content(
    path: Path, host: HostEvents, starting: Bool, work: DeviceWork, unread: Sequence[UnreadRows], warnings: list[str]
) -> None:
    """Raise `TraceError` if there is nothing to analyze: no operator that took time, no launch and no device work.

    `starting` are the launches that start work: the calls that only ask or wait may be the profiler's own.
    """
    operators = host.duration_ns[host.is_operator]
    if len(work.name) or starting.any() or operators.any():
        return
    left_out = (f"not read: {rows.text}" for rows in unread[:1])
    why = next((f" ({reason})" for reason in (*left_out, *warnings) if reason.isprintable()), "")
    timed = "that took time" if len(operators) else "and no device work that opanatomy recognizes"
    raise TraceError(f"{path} has no operator {timed}{why} - pass a torch.profiler trace of a step")


def with_possible_numbers(capture: Capture, name: str, warnings: list[str]) -> Capture:
    """Return a capture's metadata stored under `name`, without impossible counts, sizes and times."""
    wrong: list[str] = []
    parts: dict[str, Any] = {
        "environment": _possible(capture.environment, wrong),
        "workload": _possible(capture.workload, wrong),
        "memory": _possible_memory(capture.memory, wrong),
    }
    for key in ("unprofiled_step_ns", "profiled_step_ns"):
        parts[key] = tuple(value for value in getattr(capture, key) if 0 < value <= _MAX_COUNTED)
        if len(parts[key]) < len(getattr(capture, key)):
            wrong.append(key)
    if capture.run is not None and not _run_is_possible(capture.run):
        parts["run"] = None
        wrong.append("run")
    if capture.compilation is not None and not _compilation_is_possible(capture.compilation):
        parts["compilation"] = None
        wrong.append("compilation")
    if not wrong:
        return capture
    warnings.append(
        f"opanatomy's metadata in the trace ({name}) contains impossible numbers, which are left out:"
        f" {', '.join(wrong)}"
    )
    return replace(capture, **parts)


def _possible_memory(memory: MemoryObservations, wrong: list[str]) -> MemoryObservations:
    """Return the observations without impossible numbers, rows and parts."""
    changed: dict[str, Any] = {
        "storage_bytes": {name: size for name, size in memory.storage_bytes.items() if 0 <= size <= _MAX_COUNTED},
        "snapshots": tuple(snapshot for snapshot in memory.snapshots if _all_possible(snapshot)),
    }
    wrong.extend(f"memory.{name}" for name, rows in changed.items() if len(rows) < len(getattr(memory, name)))
    parts = {"shape": memory.shape, "failure": memory.failure}
    impossible = {name for name, part in parts.items() if part is not None and not _all_possible(part)}
    if memory.shape is not None and min(memory.shape.layers, memory.shape.hidden, memory.shape.heads) < 1:
        impossible.add("shape")
    if memory.step is not None and not _step_is_possible(memory.step):
        impossible.add("step")
    wrong.extend(f"memory.{name}" for name in sorted(impossible))
    changed |= dict.fromkeys(impossible)
    return replace(_possible(memory, wrong), **changed)


def _run_is_possible(run: RunClock) -> bool:
    """Return whether the sums of a run are plausible for its steps; without steps there is no mean."""
    ends = [end for end in (run.start, run.end) if end is not None]
    parts = (run, *run.slow, *ends, *run.graph_breaks, *run.recompilations, *run.lengths, *run.updated_by)
    columns = [] if run.series is None else [getattr(run.series, name) for name in run.series.__struct_fields__]
    numbers = all(0 <= number <= _MAX_COUNTED for column in columns for number in column)
    alike = len(set(map(len, columns))) <= 1 and not (columns and (not columns[0] or min(columns[1]) < 1))
    return run.steps > 0 and 0 <= run.input_ns <= run.wall_ns and numbers and alike and all(map(_all_possible, parts))


def _compilation_is_possible(made: Compilation) -> bool:
    """Return whether compiled steps exist, and compiled and uncompiled steps took time."""
    times = (*made.compiled_step_ns, *made.uncompiled_step_ns)
    return bool(made.compiled_step_ns) and _all_possible(made) and all(0 < ns <= _MAX_COUNTED for ns in times)


def _step_is_possible(step: StepObservations) -> bool:
    """Return whether a memory step's plain numbers are possible; its columns are checked when they are unpacked."""
    allocator = step.allocator
    workspaces = all(0 <= size <= _MAX_COUNTED for size in allocator.workspace_bytes)
    spans = all(0 <= span.begin_ns <= span.end_ns <= _MAX_NS for span in step.phases)
    return workspaces and spans and _all_possible(allocator) and _all_possible(step)


def _all_possible(part: Any) -> bool:
    values = [getattr(part, name) for name in part.__struct_fields__]
    numbers = [number for value in values for number in (value.values() if isinstance(value, dict) else (value,))]
    return all(0 <= number <= _MAX_COUNTED for number in numbers if type(number) is int)


def _possible(part: Part, wrong: list[str]) -> Part:
    """Return the part with `None` for each impossible number; add the names of these to `wrong`."""
    bad = [
        name
        for name in part.__struct_fields__
        if type(value := getattr(part, name)) is int and not 0 <= value <= _MAX_COUNTED and name != "seed"
    ]
    wrong.extend(bad)
    nothing: dict[str, Any] = dict.fromkeys(bad)
    return replace(part, **nothing)


#: Small enough to keep a batch's events in the CPU caches.
CHUNK = 1 << 18
#: gzip packs traces 15 to 75 times; a file packed better than this, after the first megabytes, is a bomb.
_MAX_PACKED: Final = 200
_PACKED_FROM: Final = 16 << 20

_EVENTS_KEY = regex(rb'(?<!\\)"traceEvents"\s*:\s*\[')
#: The beginning of our JSON reports.
_REPORT_KEYS: Final = regex(
    rb'\s*\{\s*"(?:kind"\s*:\s*"(?:anatomy|comparison|techniques)"'
    rb'|schema"\s*:\s*\d+\s*,\s*"(?:caveats|provenance)"\s*:|sides"\s*:\s*\[)'
)
_SEPARATORS: Final = b", \t\r\n"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class EventStream:
    """The events of one trace in batches; after the last batch `metadata` and `warnings` are complete."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, object] = {}
        self.warnings: list[str] = []
        self.caveats: list[str] = []
        self.text_bytes = 0
        self.events = 0
        #: Whether the text ends before the array of events does.
        self.cut_off = False
        self._damage = ""
        self._closed = False
        self._buffer = b""
        self._file_bytes = 0
        self._ended = False
        self._decoder = EventDecoder()
        self._raw: HashedFile
        #: The hash of the file, set once all of it is read.
        self.sha256 = ""

    def __iter__(self) -> Iterator[list[Event]]:
        try:
            with self.path.open("rb") as raw:
                self._file_bytes = raw.seek(0, 2)
                raw.seek(0)
                self._raw = HashedFile(raw)
                text = open_text(self._raw)
                head = self._find_events(text)
                while True:
                    before = len(self._buffer)
                    events = self._take()
                    self.events += len(events)
                    if events:
                        yield events
                    if self._closed or self._ended:
                        break
                    # An incomplete event is tried again when its text has doubled.
                    self._more(text, before or 1 if len(self._buffer) == before else 1)
                if self._closed:
                    self._finish(head, text)
                else:
                    self.cut_off = True
                    self._tell_cut()
                    self.metadata = read_metadata(head, b"}", self.warnings) if head else {}
                self.sha256 = self._raw.hexdigest()
        except OSError as error:
            raise TraceError(f"cannot read the trace {self.path}: {error.strerror or error}") from error

    def _find_events(self, text: Decompressor) -> bytes:
        """Return the text before the first event, and move the buffer to that event."""
        self._more(text)
        self._buffer = self._buffer.removeprefix(_BYTE_ORDER_MARK)
        while True:
            start = self._buffer.lstrip()[:1]
            if start == b"[":
                self._buffer = self._buffer.lstrip()[1:]
                return b""
            if start and start != b"{":
                begin = start.decode(errors="replace")
                raise TraceError(f"{self.path} is not a trace: it starts with {begin!r}, not with '{{' or '['")
            match = _EVENTS_KEY.search(self._buffer)
            if match:
                head, self._buffer = self._buffer[: match.start()], self._buffer[match.end() :]
                return head
            if self._damage:
                raise TraceError(
                    f"cannot read {self.path}: the compressed file is damaged or truncated before its events"
                    f" ({self._damage})"
                )
            if self._ended and not start:
                raise TraceError(f"{self.path} is empty - pass a torch.profiler trace")
            if self._ended or len(self._buffer) > LONGEST_METADATA:
                if _REPORT_KEYS.match(self._buffer):
                    raise TraceError(
                        f"{self.path} is an opanatomy report, not a trace - pass its trace, or only the report"
                    )
                where = "" if self._ended else f" in its first {LONGEST_METADATA >> 20} MiB"
                raise TraceError(
                    f'{self.path} is not a trace: it has no "traceEvents"{where} - pass a torch.profiler trace'
                )
            self._more(text, len(self._buffer) or 1)

    def _more(self, text: Decompressor, minimum: int = 1) -> None:
        """Append at least that many bytes to the buffer, fewer at the end of the text."""
        chunks = [self._buffer]
        while minimum > 0 and not self._ended:
            try:
                chunk = text.read(CHUNK)
            except (EOFError, OSError) as error:
                self._damage = str(error)
                chunk = b""
            self._ended = not chunk
            minimum -= len(chunk)
            self.text_bytes += len(chunk)
            chunks.append(chunk)
        self._buffer = b"".join(chunks)
        packed = self._raw.tell()
        if self.text_bytes > max(_PACKED_FROM, _MAX_PACKED * packed):
            raise TraceError(
                f"cannot read {self.path}: {packed / 1e6:.2f} MB of the file unpack to more than"
                f" {self.text_bytes / 1e6:.0f} MB, which no trace does - is this a gzip bomb?"
            )

    def _take(self) -> list[Event]:
        """Return the events in the buffer, leaving what follows them."""
        self._buffer = self._buffer.lstrip(_SEPARATORS)
        cut = 0 if self._ended else last_boundary(self._buffer)
        events = self._decoder.many(memoryview(self._buffer)[:cut]) if cut else None
        if events is not None:
            self._buffer = self._buffer[cut:].lstrip(_SEPARATORS)
            return events
        try:
            salvaged = single_events(mend(self._buffer), self._decoder, ended=self._ended)
        except Damaged as error:
            position = self.text_bytes - len(self._buffer) + error.position
            raise TraceError(
                f"cannot read {self.path}: the entry near byte {position:,} of its text is not an event ({error}) -"
                " copy or record the trace again"
            ) from error
        self._buffer = mend(self._buffer)[salvaged.rest + salvaged.closed :]
        self._closed = salvaged.closed
        return salvaged.events

    def _finish(self, head: bytes, text: Decompressor) -> None:
        """Read the text after the events, and the metadata before and after them."""
        while not self._ended and len(self._buffer) <= LONGEST_METADATA:
            self._more(text)
        tail, self._buffer = self._buffer, b""
        if len(tail) > LONGEST_METADATA:
            self.warnings.append(f"more than {LONGEST_METADATA >> 20} MiB of text follow the events and are not read")
            tail = b"}"
        elif self._damage:
            wrong = "" if self._damage == ENDS_EARLY else ", some of which may be wrong"
            self.caveats.append(
                f"the compressed file is damaged or truncated after its {self.events:,} events{wrong} ({self._damage})"
            )
        if head:
            self.metadata = read_metadata(head, tail if tail.strip() else b"}", self.warnings)

    def _tell_cut(self) -> None:
        inside = " inside an event" if self._buffer.strip() else ""
        read = f"{self.events:,} events in {self.text_bytes / 1e6:.2f} MB of text"
        if not self._damage:
            self.caveats.append(f"the file is truncated{inside}; it was read up to that point: {read}")
            return
        at = self._raw.tell()
        place = f" after {100 * at / self._file_bytes:.1f} % of its bytes" if at < self._file_bytes else ""
        wrong = "" if self._damage == ENDS_EARLY else ", some of which may be wrong"
        self.caveats.append(
            f"the compressed file is damaged or truncated{place} ({self._damage}); it was read up to that"
            f" point: {read}{wrong}"
        )
