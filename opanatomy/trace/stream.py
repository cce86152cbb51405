"""A trace file as a stream of event batches and, at the end, its metadata; memory does not grow with the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import msgspec

from opanatomy.errors import TraceError
from opanatomy.trace.schema import Event, ExactEvent

CHUNK = 4 << 20
#: A single event larger than this is no trace.
LONGEST_EVENT = 64 << 20

_EVENTS_KEY = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_BOUNDARY = re.compile(rb"\}\s*,\s*\{")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_NOT_JSON = re.compile(rb"(?<=[:,\[\s])(?:NaN|-?Infinity|-?inf|-?nan)(?=[,\]}\s])")
_CONTROL = bytes(32 if code < 32 else code for code in range(256))


class Decompressor(Protocol):
    """A file object to read decompressed bytes from."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, none at the end."""
        ...


class EventStream:
    """The events of one trace in batches; after the last batch `metadata` and `warnings` are complete."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, object] = {}
        self.warnings: list[str] = []
        self.text_bytes = 0
        self._buffer = b""
        self._ended = False
        self._exact = False
        self._decoder: msgspec.json.Decoder[list[Event]] = msgspec.json.Decoder(list[Event])

    def __iter__(self) -> Iterator[list[Event]]:
        try:
            with self.path.open("rb") as raw:
                yield from self._batches(_open_text(raw))
        except OSError as error:
            raise TraceError(f"cannot read the trace {self.path}: {error.strerror or error}") from error

    def _batches(self, text: Decompressor) -> Iterator[list[Event]]:
        head = self._find_events(text)
        tail: bytes | None = None
        wanted = 0
        while tail is None:
            if self._ended or len(self._buffer) >= wanted:
                events, self._buffer, tail = self._take()
                wanted = 0 if events else 2 * len(self._buffer)
                if events:
                    yield events
                if tail is None and self._ended:
                    inside = " inside an event" if self._buffer.strip() else ""
                    self.warnings.append(f"the file is cut off{inside}; it is read up to the cut")
                    return
            if tail is None:
                self._more(text)
        self._buffer = tail
        while self._more(text):
            pass
        self._finish(head, self._buffer)

    def _find_events(self, text: Decompressor) -> bytes:
        """The text before the first event; the buffer then starts at that event."""
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
            if not self._more(text):
                raise TraceError(f'{self.path} is not a trace: it has no "traceEvents" - give a torch.profiler trace')

    def _more(self, text: Decompressor) -> bool:
        if self._ended:
            return False
        try:
            chunk = text.read(CHUNK)
        except (EOFError, OSError) as error:
            self.warnings.append(f"the compressed file is damaged or cut off ({error}); read up to there")
            chunk = b""
        self._ended = not chunk
        self.text_bytes += len(chunk)
        self._buffer += chunk
        if len(self._buffer) > LONGEST_EVENT:
            raise TraceError(f"cannot read {self.path}: one entry is larger than 64 MiB - is this a trace?")
        return bool(chunk)

    def _take(self) -> tuple[list[Event], bytes, bytes | None]:
        """(events decoded, text left, text behind the array where it ended)."""
        cut = 0 if self._ended else _last_boundary(self._buffer)
        if cut:
            events = self._decode(self._buffer[:cut])
            if events is not None:
                return events, self._buffer[cut:].lstrip(b", \t\r\n"), None
        return self._take_slowly()

    def _take_slowly(self) -> tuple[list[Event], bytes, bytes | None]:
        """The same by matching brackets: for the end of the array and for text that is not quite JSON."""
        buffer = self._buffer
        cuts, array_end = _match_events(buffer)
        stop = array_end if array_end is not None else (cuts[-1] if cuts else 0)
        events = self._decode(buffer[:stop])
        if events is None:
            events = self._decode_each(cuts)
        if array_end is not None:
            return events, b"", buffer[array_end + 1 :]
        return events, buffer[stop:].lstrip(b", \t\r\n"), None

    def _decode(self, text: bytes) -> list[Event] | None:
        try:
            events = self._decoder.decode(b"[" + text.rstrip(b", \t\r\n") + b"]")
        except (msgspec.DecodeError, RecursionError):
            try:
                repaired = _NOT_JSON.sub(b"null", text.translate(_CONTROL))
                events = self._decoder.decode(b"[" + repaired.rstrip(b", ") + b"]")
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                return None
        except UnicodeDecodeError:
            return None
        if not self._exact and _needs_exact(events):
            self._exact = True
            self._decoder = cast("msgspec.json.Decoder[list[Event]]", msgspec.json.Decoder(list[ExactEvent]))
            return self._decode(text)
        return events

    def _decode_each(self, cuts: list[int]) -> list[Event]:
        found: list[Event] = []
        lost = 0
        start = 0
        for cut in cuts:
            events = self._decode(self._buffer[start:cut].lstrip(b", \t\r\n"))
            lost += events is None
            found.extend(events or ())
            start = cut
        if lost:
            self.warnings.append(f"{lost} events are not valid JSON and were left out")
        return found

    def _finish(self, head: bytes, tail: bytes) -> None:
        if not head:
            return
        closing = tail if tail.strip() else b"}"
        text = (head + b'"traceEvents":[]' + closing).translate(_CONTROL)
        try:
            self.metadata = msgspec.json.decode(_NOT_JSON.sub(b"null", text), type=dict[str, object])
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            self.warnings.append(f"the trace's metadata cannot be read ({error})")


class Gunzip:
    """Decompressed bytes of a gzip file; what comes before damage is given before the damage is raised."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._member = _new_member()

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, none at the end; `EOFError` where the file is cut off or damaged."""
        while True:
            packed = self._member.unconsumed_tail or (b"" if self._member.eof else self._raw.read(1 << 18))
            if self._member.eof:
                packed = self._member.unused_data or self._raw.read(1 << 18)
                if packed[:2] != b"\x1f\x8b":
                    return b""
                self._member = _new_member()
            elif not packed:
                raise EOFError("it ends early")
            text = self._decompress(packed, size)
            if text:
                return text

    def _decompress(self, packed: bytes, size: int) -> bytes:
        from isal import isal_zlib

        try:
            text: bytes = self._member.decompress(packed, size)
        except isal_zlib.error as error:  # type: ignore[misc]  # the stub calls it a value
            raise EOFError(str(error)) from error
        return text


def _new_member() -> Any:
    from isal import isal_zlib

    return isal_zlib.decompressobj(31)


def _open_text(raw: BinaryIO) -> Decompressor:
    magic = raw.read(2)
    raw.seek(0)
    return Gunzip(raw) if magic == b"\x1f\x8b" else raw


def _last_boundary(buffer: bytes) -> int:
    """Where to cut so that the text before holds whole events, most likely; 0 where there is no such place."""
    end, step = len(buffer), 1 << 14
    while end > 0:
        low = max(0, end - step)
        matches = list(_BOUNDARY.finditer(buffer, low, end))
        if matches:
            return matches[-1].start() + 1
        if low == 0:
            break
        step *= 8
    return 0


def _match_events(buffer: bytes) -> tuple[list[int], int | None]:
    """(the ends of the whole events, where the array closes) by counting brackets outside strings."""
    depth = 0
    cuts: list[int] = []
    for match in _TOKEN.finditer(buffer):
        token = match[0]
        if token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                cuts.append(match.end())
            elif depth < 0:
                return cuts, match.start()
    return cuts, None


def _needs_exact(events: list[Event]) -> bool:
    """Whether a time has a fraction and is so large that a float cannot hold its nanoseconds."""
    return any(type(event.ts) is float and event.ts > 9e12 and event.ts % 1 != 0 for event in events[:200])
