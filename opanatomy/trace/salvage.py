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
#: How much text is looked at twice in one piece of text before brackets are no longer counted.
_BUDGET: Final = 2 << 20
#: So many brackets and strings are counted one by one, those behind them in pieces from so many bytes to so many.
_FEW_TOKENS: Final = 24
_LEAST_PIECE: Final = 1 << 9
_MOST_PIECE: Final = 1 << 16

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
        found = [match.start() for match in _BOUNDARY.finditer(buffer, low, end)]
        if found:
            return found[-1] + 1
        step *= 8
    return 0


def next_boundary(buffer: bytes, start: int = 0) -> int:
    """The end of the first event at or behind `start` that another one follows; -1 where there is none."""
    found = _BOUNDARY.search(buffer, start)
    return found.start() + 1 if found else -1


def salvage(buffer: bytes, decoder: EventDecoder, patience: int) -> Salvaged:
    """All that can be read of `buffer`, which begins between two events, until `patience` more entries than events
    could not be read.

    Large pieces are tried first, smaller ones where they do not decode, single events last; behind an entry that
    cannot be read, reading goes on at the next `}, {`.
    """
    return _Salvage(buffer, decoder, patience).run()


class _Salvage:
    def __init__(self, buffer: bytes, decoder: EventDecoder, patience: int) -> None:
        self.buffer = buffer
        self.decoder = decoder
        self.patience = patience
        self.found = Salvaged()
        self.budget = _BUDGET
        self._boundary = 0

    def run(self) -> Salvaged:
        at, size = 0, len(self.buffer)
        while (at := _end_of(_GAP, self.buffer, at)) < len(self.buffer):
            if self.buffer[at : at + 1] == b"]":
                self.found.closed = True
                break
            if self.found.lost > self.patience + len(self.found.events):
                break
            first = self._next_boundary(at)
            cut = last_boundary(self.buffer, at, at + size) if 0 < first < at + size else 0
            events = self.decoder.many(self.buffer[at:cut]) if cut > first > 0 else None
            if events is not None:
                self.found.events.extend(events)
                at, size = cut, 2 * max(size, cut - at)
            elif cut > first > 0:
                size = (cut - at) // 4
            else:
                lost = self.found.lost
                end = self._one(at)
                if end is None:
                    break
                size = 2 * max(size if self.found.lost == lost else 0, end - at)
                at = end
        self.found.rest = at
        return self.found

    def _one(self, at: int) -> int | None:
        """The end of the entry at `at`, read or given up; `None` where more text may complete it."""
        debris = _end_of(_DEBRIS, self.buffer, at)
        if debris > at:
            self.found.lost += sum(1 for _ in _SCALAR.finditer(self.buffer, at, debris))
            return debris
        end, boundary = self._end_of_value(at), self._next_boundary(at)
        if end is not None and self._take(at, end):
            return end
        if end is None and boundary < 0 and len(self.buffer) - at <= LONGEST_EVENT:
            return None
        self.found.lost += 1
        if end is not None and boundary > 0:
            self.budget -= max(end - boundary, 0)
        places = [place for place in (end, boundary) if place is not None and place > 0]
        self.found.adrift = not places
        return min(places, default=len(self.buffer))

    def _take(self, start: int, end: int) -> bool:
        if end - start < _SHORTEST_EVENT or self.buffer[start : start + 1] != b"{":
            return False
        event = self.decoder.one(self.buffer[start:end])
        if event is not None:
            self.found.events.append(event)
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
    """Behind the bracket or quote that closes the one at `start`; `None` where none does before `stop`."""
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
    return _end_by_pieces(text, place, stop, depth, quoted=quoted)


def _is_escaped(text: bytes, place: int) -> bool:
    """Whether an odd number of backslashes is before `place`."""
    behind = place
    while behind > 0 and text[behind - 1] == _BACKSLASH:
        behind -= 1
    return (place - behind) % 2 == 1


def _end_by_pieces(text: bytes, place: int, stop: int, depth: int, *, quoted: bool) -> int | None:
    """The same from `place` on, which is so many brackets deep and maybe in a string."""
    size = _LEAST_PIECE
    while place < stop:
        piece = text[place : min(place + size, stop)]
        if b"\\" in piece:
            piece = _ESCAPED.sub(b"  ", piece)
        codes = np.frombuffer(piece, dtype=np.uint8)
        inside = np.logical_xor.accumulate(codes == _QUOTE)
        if quoted:
            inside = ~inside
        depths = np.cumsum(np.where(inside, 0, _STEPS[codes]), dtype=np.int32) + depth
        closed = (depths <= 0) & ~inside
        first = int(closed.argmax())
        if closed[first]:
            return place + first + 1
        # What a backslash at the end of the piece escapes is the first byte of the next one.
        place += len(piece) + piece.endswith(b"\\")
        size, depth, quoted = min(4 * size, _MOST_PIECE), int(depths[-1]), bool(inside[-1])
    return None


def _end_of(pattern: re.Pattern[bytes], text: bytes, start: int) -> int:
    found = pattern.match(text, start)
    return found.end() if found else start
