"""A trace file as a stream of event batches and, at the end, its metadata; memory does not grow with the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from opanatomy.errors import TraceError
from opanatomy.trace.decoding import EventDecoder
from opanatomy.trace.gunzip import ENDS_EARLY, Decompressor, open_text
from opanatomy.trace.hashing import HashedFile
from opanatomy.trace.header import LONGEST_METADATA, read_metadata
from opanatomy.trace.salvage import last_boundary, next_boundary, salvage
from opanatomy.trace.schema import Event
from opanatomy.trace.validation import MIN_EVENT_BYTES

#: Small enough that the events of a batch stay in the processor's caches.
CHUNK = 1 << 18
#: gzip packs traces 15 to 75 times; what it packs better than this, beyond the first megabytes, is a bomb.
_MAX_PACKED: Final = 200
_PACKED_FROM: Final = 16 << 20
#: From this many entries on that are no events, most of them and shorter than any event, a file is no trace.
_MAX_LOST: Final = 5_000
#: `}, {` with as much white space as anybody writes.
_LONGEST_BOUNDARY: Final = 256

_EVENTS_KEY = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
#: How a JSON report of ours begins.
_REPORT_KEYS: Final = re.compile(rb'\s*\{\s*"(?:schema"\s*:\s*\d+\s*,\s*"(?:caveats|provenance)"\s*:|sides"\s*:\s*\[)')
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
        self._lost = 0
        self._damage = ""
        self._closed = False
        self._buffer = b""
        self._file_bytes = 0
        self._ended = False
        self._adrift = False
        self._decoder = EventDecoder()
        self._raw: HashedFile
        #: That of the file, once all of it is read.
        self.sha256 = ""

    def __iter__(self) -> Iterator[list[Event]]:
        try:
            with self.path.open("rb") as raw:
                self._file_bytes = raw.seek(0, 2)
                raw.seek(0)
                self._raw = HashedFile(raw)
                yield from self._batches(open_text(self._raw))
                self.sha256 = self._raw.hexdigest()
        except OSError as error:
            raise TraceError(f"cannot read the trace {self.path}: {error.strerror or error}") from error

    def _batches(self, text: Decompressor) -> Iterator[list[Event]]:
        head = self._find_events(text)
        while True:
            before = len(self._buffer)
            events = self._take()
            self.events += len(events)
            if events:
                yield events
            if self._closed or self._ended:
                break
            # An event that is not complete is looked at again when its text has doubled.
            self._more(text, before or 1 if len(self._buffer) == before else 1)
        if self._closed:
            self._finish(head, text)
        else:
            self.cut_off = True
            self._tell_cut()
            self.metadata = read_metadata(head, b"}", self.warnings) if head else {}
        self._tell_lost()

    def _find_events(self, text: Decompressor) -> bytes:
        """The text before the first event; the buffer then starts at that event."""
        self._more(text)
        self._buffer = self._buffer.removeprefix(_BYTE_ORDER_MARK)
        while True:
            start = self._buffer.lstrip()[:1]
            if start == b"[":
                self._buffer = self._buffer.lstrip()[1:]
                return b""
            if start and start != b"{":
                raise TraceError(f"{self.path} is not a trace: it starts with {start!r}, not with '{{' or '['")
            match = _EVENTS_KEY.search(self._buffer)
            if match:
                head, self._buffer = self._buffer[: match.start()], self._buffer[match.end() :]
                return head
            if self._damage:
                raise TraceError(
                    f"cannot read {self.path}: the compressed file is damaged or cut off before its events"
                    f" ({self._damage})"
                )
            if self._ended or len(self._buffer) > LONGEST_METADATA:
                if _REPORT_KEYS.match(self._buffer):
                    raise TraceError(
                        f"{self.path} is not a trace but a report of opanatomy - give its trace, or that file alone"
                    )
                where = "" if self._ended else f" in its first {LONGEST_METADATA >> 20} MiB"
                raise TraceError(
                    f'{self.path} is not a trace: it has no "traceEvents"{where} - give a torch.profiler trace'
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
                f"cannot read {self.path}: {packed / 1e6:.2f} MB of it unpack to more than"
                f" {self.text_bytes / 1e6:.0f} MB, as no trace does - is this a gzip bomb?"
            )

    def _take(self) -> list[Event]:
        """The events of the buffer, which is then what is left of it."""
        if self._adrift:
            boundary = next_boundary(self._buffer)
            if boundary < 0:
                self._buffer = self._buffer[-_LONGEST_BOUNDARY:]
                return []
            self._buffer, self._adrift = self._buffer[boundary:], False
        self._buffer = self._buffer.lstrip(_SEPARATORS)
        cut = 0 if self._ended else last_boundary(self._buffer)
        events = self._decoder.many(memoryview(self._buffer)[:cut]) if cut else None
        if events is not None:
            self._buffer = self._buffer[cut:].lstrip(_SEPARATORS)
            return events
        return self._salvage()

    def _salvage(self) -> list[Event]:
        patience = max(_MAX_LOST, self.text_bytes // (4 * MIN_EVENT_BYTES), self.events)
        salvaged = salvage(self._buffer, self._decoder, patience - self._lost)
        self._lost += salvaged.lost
        self._closed, self._adrift = salvaged.closed, salvaged.adrift
        self._buffer = self._buffer[salvaged.rest + salvaged.closed :]
        if self._lost > patience + len(salvaged.events):
            raise TraceError(
                f"cannot read {self.path}: {self._lost:,} of its entries are not events - is this a trace?"
            )
        return salvaged.events

    def _finish(self, head: bytes, text: Decompressor) -> None:
        """Read what follows the events; the metadata are before and after them."""
        while not self._ended and len(self._buffer) <= LONGEST_METADATA:
            self._more(text)
        tail, self._buffer = self._buffer, b""
        if len(tail) > LONGEST_METADATA:
            self.warnings.append(f"more than {LONGEST_METADATA >> 20} MiB follow the events; they are left out")
            tail = b"}"
        elif self._damage:
            wrong = "" if self._damage == ENDS_EARLY else ", some of which may be wrong"
            self.caveats.append(
                f"the compressed file is damaged or cut off after its {self.events:,} events{wrong} ({self._damage})"
            )
        if head:
            self.metadata = read_metadata(head, tail if tail.strip() else b"}", self.warnings)

    def _tell_cut(self) -> None:
        inside = " inside an event" if self._buffer.strip() else ""
        inside = " inside an entry that cannot be read" if self._adrift else inside
        read = f"{self.events:,} events in {self.text_bytes / 1e6:.2f} MB of text"
        if not self._damage:
            self.caveats.append(f"the file is cut off{inside}; it is read up to the cut: {read}")
            return
        at = self._raw.tell()
        place = f" after {100 * at / self._file_bytes:.1f} % of its bytes" if at < self._file_bytes else ""
        wrong = "" if self._damage == ENDS_EARLY else ", some of which may be wrong"
        self.caveats.append(
            f"the compressed file is damaged or cut off{place} ({self._damage}); it is read up to there: {read}{wrong}"
        )

    def _tell_lost(self) -> None:
        if self._lost:
            entries = (
                "entry is not a valid event and was" if self._lost == 1 else "entries are not valid events and were"
            )
            self.warnings.append(f"{self._lost:,} {entries} left out")
