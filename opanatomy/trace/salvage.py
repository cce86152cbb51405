"""Events out of text that does not decode as it stands: the end of the array, and whatever is damaged."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from opanatomy.trace.decoding import EventDecoder
from opanatomy.trace.schema import Event

#: A single event larger than this is damage.
LONGEST_EVENT: Final = 8 << 20
#: Events are written `}, {`; inside one, only a list of objects looks the same, and not after more text than this.
_LONGEST_NESTED: Final = 1 << 20
#: How much text is looked at twice in one piece of text before brackets are no longer counted.
_BUDGET: Final = 2 << 20
#: No event has more brackets and strings than this.
_MOST_TOKENS: Final = 1 << 20

_BOUNDARY = re.compile(rb"\}\s*,\s*\{")
_BACKSLASH: Final = ord("\\")
_GAP = re.compile(rb"[\s,]*")
_TOKEN = re.compile(rb'[\[\]{}"]')
_SCALAR = re.compile(rb'[^\s,\[\]{}"]+')


@dataclass(slots=True, kw_only=True)
class Salvaged:
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
    end, step = len(buffer) if end is None else min(end, len(buffer)), 1 << 14
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


def salvage(buffer: bytes, decoder: EventDecoder, *, whole: bool) -> Salvaged:
    """All that can be read of `buffer`, which begins between two events; `whole` where no more text will come.

    Large pieces are tried first, smaller ones where they do not decode, single events last; behind an entry that
    cannot be read, reading goes on at the next `}, {`.
    """
    return _Salvage(buffer, decoder, whole).run()


class _Salvage:
    def __init__(self, buffer: bytes, decoder: EventDecoder, whole: bool) -> None:
        self.buffer = buffer
        self.decoder = decoder
        self.whole = whole
        self.found = Salvaged()
        self.budget = _BUDGET
        self._boundary = 0
        self._hopeless = False

    def run(self) -> Salvaged:
        at, size = 0, len(self.buffer)
        while (at := _end_of(_GAP, self.buffer, at)) < len(self.buffer):
            if self.buffer[at : at + 1] == b"]":
                self.found.closed = True
                break
            first = self._next_boundary(at)
            cut = last_boundary(self.buffer, at, at + size) if 0 < first < at + size else 0
            events = self.decoder.many(self.buffer[at:cut]) if cut else None
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
        end, boundary = self._end_of_value(at), self._next_boundary(at)
        if end is not None and self._take(at, end):
            return end
        short = len(self.buffer) - at <= LONGEST_EVENT and not self._hopeless
        if end is None and boundary < 0 and short:
            return None
        self.found.lost += 1
        places = [place for place in (end, boundary) if place is not None and place > 0]
        self.found.adrift = not places
        return min(places, default=len(self.buffer))

    def _take(self, start: int, end: int) -> bool:
        event = self.decoder.one(self.buffer[start:end]) if self.buffer[start : start + 1] == b"{" else None
        if event is not None:
            self.found.events.append(event)
        return event is not None

    def _next_boundary(self, at: int) -> int:
        if 0 <= self._boundary <= at:
            self._boundary = next_boundary(self.buffer, at)
        return self._boundary

    def _end_of_value(self, at: int) -> int | None:
        """Where the value at `at` ends, brackets and strings matched; `None` where it does not."""
        if self.buffer[at : at + 1] not in (b"{", b"[", b'"'):
            return max(_end_of(_SCALAR, self.buffer, at), at + 1)
        followed = self._next_boundary(at) > 0
        reach = min(self.budget, _LONGEST_NESTED) if followed else LONGEST_EVENT
        depth, tokens, place, stop = 0, 0, at, min(at + reach, len(self.buffer))
        while tokens < _MOST_TOKENS and (match := _TOKEN.search(self.buffer, place, stop)):
            token, place, tokens = match[0], match.end(), tokens + 1
            if token == b'"':
                place = _end_of_string(self.buffer, place, stop)
                if place < 0:
                    break
            else:
                depth += 1 if token in b"{[" else -1
            if depth <= 0:
                return place
        self._hopeless = tokens == _MOST_TOKENS
        self.budget -= stop - at if followed else 0
        return None


def _end_of_string(text: bytes, start: int, stop: int) -> int:
    """Behind the quote that closes the string whose text begins at `start`; -1 where none does."""
    quote = text.find(b'"', start, stop)
    while quote >= 0:
        behind = quote
        while behind > start and text[behind - 1] == _BACKSLASH:
            behind -= 1
        if (quote - behind) % 2 == 0:
            return quote + 1
        quote = text.find(b'"', quote + 1, stop)
    return -1


def _end_of(pattern: re.Pattern[bytes], text: bytes, start: int) -> int:
    found = pattern.match(text, start)
    return found.end() if found else start
