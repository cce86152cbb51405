"""Events out of text that does not decode as it stands: the end of the array, and whatever is damaged."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from msgspec import Struct, field

from opanatomy.trace.decoding import EventDecoder
from opanatomy.trace.schema import Event

#: A single event larger than this is damage.
LONGEST_EVENT: Final = 8 << 20
#: An event has at least `"ph":"X"` and a time.
_SHORTEST_EVENT: Final = 16
#: Events are written `}, {`; inside one, only a list of objects looks the same, and not after more text than this.
_LONGEST_NESTED: Final = 1 << 20
#: How much text is looked at twice in one part of the text before brackets are no longer counted.
_BUDGET: Final = 2 << 20
#: This many brackets and strings are counted one by one, those after them in parts from this many bytes to this many.
_FEW_TOKENS: Final = 24
_MIN_PART: Final = 1 << 9
_MAX_PART: Final = 1 << 16

_BOUNDARY = re.compile(rb"\}\s*,\s*\{")
_GAP = re.compile(rb"[\s,]*")
#: What begins no value: numbers and words, closing braces.
_DEBRIS = re.compile(rb'[^\[\]{"]*')
_SCALAR = re.compile(rb"[^\s,}]+|\}")
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_TOKEN = re.compile(rb'[\[\]{}"]')
_STEPS_OF: Final = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
#: How much deeper a byte leads.
_STEPS: Final = np.array([(code in b"[{") - (code in b"]}") for code in range(256)], dtype=np.int8)


class Salvaged(Struct, kw_only=True):
    """The events found, how many entries were none, where the text starts that is not used up yet, and whether the
    array ended there."""

    events: list[Event] = field(default_factory=list)
    lost: int = 0
    rest: int = 0
    closed: bool = False
    #: Whether the rest begins inside an event that cannot be read.
    adrift: bool = False


def last_boundary(buffer: bytes, start: int = 0, end: int | None = None) -> int:
    """Where to cut so that the text before holds whole events, most likely; 0 where there is no such place."""
    end, step = len(buffer) if end is None else min(end, len(buffer)), 1 << 11
    low = end
    while low > start:
        low = max(start, end - step)
        boundaries = [match.start() for match in _BOUNDARY.finditer(buffer, low, end)]
        if boundaries:
            return boundaries[-1] + 1
        step *= 8
    return 0


def next_boundary(buffer: bytes, start: int = 0) -> int:
    """The end of the first event at or after `start` that another one follows; -1 where there is none."""
    boundary = _BOUNDARY.search(buffer, start)
    return boundary.start() + 1 if boundary else -1


def salvage(buffer: bytes, decoder: EventDecoder, patience: int) -> Salvaged:
    """All that can be read of `buffer`, which begins between two events, until `patience` more entries than events
    could not be read.

    Large parts are tried first, smaller ones where they do not decode, single events last; after an entry that
    cannot be read, reading goes on at the next `}, {`.
    """
    return _Salvage(buffer, decoder, patience).run()


class _Salvage:
    def __init__(self, buffer: bytes, decoder: EventDecoder, patience: int) -> None:
        self.buffer = buffer
        self.decoder = decoder
        self.patience = patience
        self.salvaged = Salvaged()
        self.budget = _BUDGET
        self._boundary = 0

    def run(self) -> Salvaged:
        at, size = 0, len(self.buffer)
        while (at := _end_of(_GAP, self.buffer, at)) < len(self.buffer):
            if self.buffer[at : at + 1] == b"]":
                self.salvaged.closed = True
                break
            if self.salvaged.lost > self.patience + len(self.salvaged.events):
                break
            first = self._next_boundary(at)
            cut = last_boundary(self.buffer, at, at + size) if 0 < first < at + size else 0
            events = self.decoder.many(self.buffer[at:cut]) if cut > first > 0 else None
            if events is not None:
                self.salvaged.events.extend(events)
                at, size = cut, 2 * max(size, cut - at)
            elif cut > first > 0:
                size = (cut - at) // 4
            else:
                lost = self.salvaged.lost
                end = self._one(at)
                if end is None:
                    break
                size = 2 * max(size if self.salvaged.lost == lost else 0, end - at)
                at = end
        self.salvaged.rest = at
        return self.salvaged

    def _one(self, at: int) -> int | None:
        """The end of the entry at `at`, read or given up; `None` where more text may complete it."""
        debris = _end_of(_DEBRIS, self.buffer, at)
        if debris > at:
            self.salvaged.lost += sum(1 for _ in _SCALAR.finditer(self.buffer, at, debris))
            return debris
        end, boundary = self._end_of_value(at), self._next_boundary(at)
        if end is not None and self._take(at, end):
            return end
        if end is None and boundary < 0 and len(self.buffer) - at <= LONGEST_EVENT:
            return None
        self.salvaged.lost += 1
        if end is not None and boundary > 0:
            self.budget -= max(end - boundary, 0)
        places = [place for place in (end, boundary) if place is not None and place > 0]
        self.salvaged.adrift = not places
        return min(places, default=len(self.buffer))

    def _take(self, start: int, end: int) -> bool:
        if end - start < _SHORTEST_EVENT or self.buffer[start : start + 1] != b"{":
            return False
        event = self.decoder.one(self.buffer[start:end])
        if event is not None:
            self.salvaged.events.append(event)
        return event is not None

    def _next_boundary(self, at: int) -> int:
        if 0 <= self._boundary <= at:
            self._boundary = next_boundary(self.buffer, at)
        return self._boundary

    def _end_of_value(self, at: int) -> int | None:
        """Where the value at `at` ends, brackets and strings matched; `None` where it does not."""
        boundary, reach = self._next_boundary(at), LONGEST_EVENT
        if boundary > 0:
            reach = max(min(self.budget, _LONGEST_NESTED), boundary - at)
        end = _end_of_brackets(self.buffer, at, min(at + reach, len(self.buffer)))
        if end is None and boundary > 0:
            self.budget -= at + reach - boundary
        return end


def _end_of_brackets(text: bytes, start: int, stop: int) -> int | None:
    """After the bracket or quote that closes the one at `start`; `None` where none does before `stop`."""
    place, depth, quoted = start, 0, False
    for _ in range(_FEW_TOKENS):
        if quoted:
            place = text.find(b'"', place, stop) + 1
            if not place:
                return None
            quoted = _is_escaped(text, place - 1)
        else:
            token = _TOKEN.search(text, place, stop)
            if token is None:
                return None
            place, quoted = token.end(), token[0] == b'"'
            depth += _STEPS_OF.get(token[0], 0)
        if depth <= 0 and not quoted:
            return place
    return _end_by_parts(text, place, stop, depth, quoted=quoted)


def _is_escaped(text: bytes, place: int) -> bool:
    """Whether an odd number of backslashes is before `place`."""
    first = place
    while first > 0 and text[first - 1] == _BACKSLASH:
        first -= 1
    return (place - first) % 2 == 1


def _end_by_parts(text: bytes, place: int, stop: int, depth: int, *, quoted: bool) -> int | None:
    """The same from `place` on, which is that many brackets deep and maybe in a string."""
    size = _MIN_PART
    while place < stop:
        part = text[place : min(place + size, stop)]
        if b"\\" in part:
            part = _ESCAPED.sub(b"  ", part)
        codes = np.frombuffer(part, dtype=np.uint8)
        inside = np.logical_xor.accumulate(codes == _QUOTE)
        if quoted:
            inside = ~inside
        depths = np.cumsum(np.where(inside, 0, _STEPS[codes]), dtype=np.int32) + depth
        closed = (depths <= 0) & ~inside
        first = int(closed.argmax())
        if closed[first]:
            return place + first + 1
        # What a backslash at the end of the part escapes is the first byte of the next one.
        place += len(part) + part.endswith(b"\\")
        size, depth, quoted = min(4 * size, _MAX_PART), int(depths[-1]), bool(inside[-1])
    return None


def _end_of(pattern: re.Pattern[bytes], text: bytes, start: int) -> int:
    match = pattern.match(text, start)
    return match.end() if match else start
