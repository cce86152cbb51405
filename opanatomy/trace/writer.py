"""A trace -> the same trace with tracks of operator classes and phases and with rates; memory does not grow with it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedWriter
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.records.columns import Overlay
from opanatomy.redaction.events import Redaction
from opanatomy.trace.decoding import NOT_DECODABLE, Buffer, EventDecoder, listed, mend
from opanatomy.trace.stream import EventStream
from opanatomy.trace.tracks import overlay_events

_PROCESS: Final = re.compile(rb'"pid"\s*:\s*"?(\d{1,18})')
#: The first process number tried: no operating system and no profiler gives one so large.
FIRST_PROCESS: Final = 1_000_000_000
#: What it and the next ones begin with: a text without this has none of them.
_PREFIX: Final = b"1000000"
_BATCH: Final = 4096
_PACKED_AT_ONCE: Final = 1 << 20
_BRACE: Final = ord("{")


class Annotated(Struct, frozen=True, kw_only=True):
    """The annotated trace that is wanted: where to, and whether to leave out paths, stacks and names too."""

    path: Path
    redact: bool = False


def write_trace(source: Path, wanted: Annotated, overlay: Overlay, metadata: Mapping[str, object]) -> int:
    """Write the trace in `source` and its overlay to `wanted.path`; how many values redaction left out or changed.

    The text of an event is kept as it is unless redaction changes it; events that are not valid JSON are left out.
    """
    redaction = Redaction(metadata, everything=wanted.redact)
    processes: set[int] = set()
    with _opened(wanted.path) as target:
        target.write(b"{")
        for key, value in redaction.metadata().items():
            target.write(msgspec.json.encode(key) + b":" + msgspec.json.encode(value) + b",\n")
        target.write(b'"traceEvents":[')
        separator = b"\n"
        for events in _events(source):
            text = redaction.events(events)
            if _PREFIX in text:
                processes.update(map(int, _PROCESS.findall(text)))
            if text:
                target.write(separator + text)
                separator = b",\n"
        process = next(number for number in _numbers() if number not in processes)
        for batch in _batches(overlay_events(_redacted(overlay, redaction), process)):
            target.write(separator + ",\n".join(batch).encode())
            separator = b",\n"
        target.write(b"\n]}\n")
    return redaction.changes


class _TextDecoder(EventDecoder):
    """Checks events and leaves them the text that they are."""

    _texts: Final = msgspec.json.Decoder(list[msgspec.Raw])

    def many(self, text: Buffer) -> list[Any] | None:
        """The text of each event; `None` where they are not JSON objects with commas between."""
        array = listed(text)
        for mended in (False, True):
            try:
                texts = self._texts.decode(_checked(mend(array) if mended else array))
            except NOT_DECODABLE:
                continue
            return texts if all(memoryview(raw)[0] == _BRACE for raw in texts) else None
        return None

    def one(self, text: bytes) -> Any:
        """The text of one event; `None` where it is no JSON object."""
        texts = self.many(text)
        return texts[0] if texts is not None and len(texts) == 1 else None


class _Texts(EventStream):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._decoder = _TextDecoder()


def _events(source: Path) -> Iterator[list[msgspec.Raw]]:
    """The events of a trace as checked JSON text, about a megabyte at a time."""
    for texts in _Texts(source):
        yield cast("list[msgspec.Raw]", texts)


def _checked(text: bytes) -> bytes:
    """The text, if all of it is UTF-8: in what it skips, the decoder does not look."""
    if not text.isascii():
        text.decode()
    return text


def _redacted(overlay: Overlay, redaction: Redaction) -> Overlay:
    texts = redaction.texts
    return replace(
        overlay,
        tracks=tuple(map(texts.text, overlay.tracks)),
        operators=tuple(map(texts.text, overlay.operators)),
        modules=tuple(map(texts.module, overlay.modules)),
    )


def _numbers() -> Iterator[int]:
    number = FIRST_PROCESS
    while True:
        yield number
        number += 1


def _batches(events: Iterable[str]) -> Iterator[list[str]]:
    events = iter(events)
    while batch := list(islice(events, _BATCH)):
        yield batch


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    with path.open("wb") as file:
        if not path.name.endswith(".gz"):
            yield file
            return
        from isal import igzip

        # Neither the name of the file nor the time: the same input gives the same bytes. Small writes pack badly.
        packed = igzip.IGzipFile(filename="", fileobj=file, mode="wb", compresslevel=2, mtime=0)
        with packed, BufferedWriter(packed, _PACKED_AT_ONCE) as buffered:
            yield buffered
