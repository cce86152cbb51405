"""JSON text of events -> typed events: strictly first, then with what is known to be broken in traces mended.

What still does not fit is decoded field by field, so that one odd value costs itself and not its event.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import cache
from typing import Any, Final, TypeAlias, Union, cast

import msgspec
import numpy as np
from msgspec import Raw, Struct, field

from opanatomy.trace.schema import LONGEST_US, TIMES_US, Args, Event, ExactEvent, event_of_category

#: Text that is not copied where it is only looked at.
Buffer: TypeAlias = "bytes | memoryview"
#: What msgspec raises on text that is no JSON, does not fit, is no UTF-8 or nests too deep.
NOT_DECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_NOT_JSON = re.compile(rb"(?<=[:,\[\s])(?:NaN|[+-]?Infinity|[+-]?inf|[+-]?nan)(?=[,\]}\s])")
#: The same, or a whole string, in which such a word is only a word.
_STRING_OR_NOT_JSON = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\Z)|' + _NOT_JSON.pattern, re.DOTALL)
_CONTROL = bytes(32 if code < 32 else code for code in range(256))
#: A backslash that begins no escape of JSON, and half of a surrogate pair without the other half.
_NO_ESCAPE = re.compile(rb'(?<!\\)((?:\\\\){0,50})\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_HALF_PAIR = re.compile(
    rb"(?<!\\)((?:\\\\){0,50})\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
#: How many escapes are mended in one batch of text: more are damage, and take memory.
_MAX_MENDED: Final = 10_000
#: Categories of a trace beyond which its events are decoded in full, and texts that may not fit for each that does.
_MAX_CATEGORIES: Final = 40
_MISFITS: Final = 8


def listed(text: Buffer) -> bytes:
    """Events with commas between as a JSON array."""
    return b"".join((b"[", text, b"]"))


def mend(text: bytes) -> bytes:
    """The text without control characters, bare `NaN`, bytes that are no UTF-8 and escapes that JSON does not have."""
    text = text.translate(_CONTROL)
    if _NOT_JSON.search(text):
        text = _STRING_OR_NOT_JSON.sub(lambda match: match[0] if match[0][:1] == b'"' else b"null", text)
    try:
        text.decode()
    except UnicodeDecodeError:
        text = text.decode(errors="replace").encode()
    if b"\\" in text:
        text = _NO_ESCAPE.sub(rb"\1\\\\", text, count=_MAX_MENDED)
        text = _HALF_PAIR.sub(rb"\1\\ufffd", text, count=_MAX_MENDED)
    return text


class EventDecoder:
    """Decodes events; from the first time that a float cannot hold on, times are exact decimals."""

    def __init__(self) -> None:
        self._event: type[Event] = Event
        self._by_category: _CategoryDecoder | None = _CategoryDecoder()
        self._make()

    def _make(self) -> None:
        self._strict: msgspec.json.Decoder[list[Event]] = msgspec.json.Decoder(list[self._event])  # type: ignore[name-defined]
        self._lenient: msgspec.json.Decoder[list[Event]] = msgspec.json.Decoder(list[self._event], strict=False)  # type: ignore[name-defined]
        self._single: msgspec.json.Decoder[Event] = msgspec.json.Decoder(self._event)

    def many(self, text: Buffer) -> list[Event] | None:
        """The events of a text of whole events with commas between; `None` where one of them does not fit."""
        array = listed(text)
        events = self._by_category.decode(array) if self._by_category else None
        if events is None:
            events = self._in_full(array)
            if events is None:
                return None
            if self._by_category and not self._by_category.learn(events):
                self._by_category = None
        return self.many(text) if self._became_exact(events) else self._within(events)

    def _in_full(self, array: bytes) -> list[Event] | None:
        try:
            return self._strict.decode(array)
        except NOT_DECODABLE:
            try:
                return self._lenient.decode(mend(array))
            except NOT_DECODABLE:
                return None

    def one(self, text: bytes) -> Event | None:
        """An event without the fields that do not fit; `None` where the text is no JSON object at all."""
        try:
            event: Event | None = self._single.decode(text)
        except NOT_DECODABLE:
            event = _loose(self._event).decode(mend(text))
        if event is None:
            return None
        return self.one(text) if self._became_exact([event]) else self._within([event])[0]

    def _became_exact(self, events: list[Event]) -> bool:
        """Whether a time has a fraction and is so large that a float cannot hold its nanoseconds."""
        if self._event is ExactEvent or not any(
            type(event.ts) is float and event.ts > 9e12 and event.ts % 1 != 0 for event in events[:200]
        ):
            return False
        self._event, self._by_category = ExactEvent, None
        self._make()
        return True

    def _within(self, events: list[Event]) -> list[Event]:
        """The events, those without time whose decimals are out of range (floats are checked as they are decoded)."""
        if self._event is ExactEvent:
            for event in events:
                if not (_is_within(event.ts, *TIMES_US) and _is_within(event.dur, -LONGEST_US, LONGEST_US)):
                    event.ts = None
        return events


class _CategoryDecoder:
    """Decodes events each by its category, of those categories that were learned."""

    def __init__(self) -> None:
        self._events: dict[str, type[Event]] = {}
        self._decoder: msgspec.json.Decoder[list[Event]] | None = None
        #: How many texts fit, less those that did not though all their categories were known.
        self._fitting = _MISFITS

    def decode(self, array: bytes) -> list[Event] | None:
        """The events; `None` where a category is not known, or an event has none or does not fit."""
        if self._decoder is None:
            return None
        try:
            events = self._decoder.decode(array)
        except NOT_DECODABLE:
            return None
        self._fitting += 1
        return events

    def learn(self, events: list[Event]) -> bool:
        """Know the categories of events that were decoded in full; whether it is worth it to go on."""
        fresh = {event.cat for event in events} - self._events.keys() - {None}
        if not fresh:
            self._fitting -= 1
            return self._fitting > 0
        if len(self._events) + len(fresh) > _MAX_CATEGORIES:
            return False
        self._events.update((category, event_of_category(category)) for category in fresh if category is not None)
        self._decoder = msgspec.json.Decoder(list[Union[tuple(self._events.values())]])  # type: ignore[misc]  # noqa: UP007
        return True


def _is_within(value: Any, low: float, high: float) -> bool:
    return value is None or (value.is_finite() and low <= value <= high if isinstance(value, Decimal) else True)


class _Loose:
    """Decodes one event field by field."""

    def __init__(self, event: type[Event]) -> None:
        self._event = event
        self._raw = msgspec.json.Decoder(_raw_twin(event))
        self._raw_args = msgspec.json.Decoder(_raw_twin(Args))
        self._fields = _decoders(event)
        self._args_fields = _decoders(Args)

    def decode(self, text: bytes) -> Event | None:
        try:
            raw = self._raw.decode(text)
        except NOT_DECODABLE:
            return None
        fields = _fitting(raw, self._fields)
        if not _absent(raw.dur) and "dur" not in fields:
            fields.pop("ts", None)
        try:
            fields["args"] = Args(**_fitting(self._raw_args.decode(raw.args), self._args_fields))
        except NOT_DECODABLE:
            fields.pop("args", None)
        return self._event(**fields)


@cache
def _loose(event: type[Event]) -> _Loose:
    """What decodes such events field by field; few traces need it."""
    return _Loose(event)


def _absent(raw: Raw) -> bool:
    return bytes(raw) in (b"", b"null")


def _raw_twin(struct: type[msgspec.Struct]) -> Any:
    """The same fields, none of them decoded."""
    fields = [
        (item.name, Raw, msgspec.field(default=Raw(), name=item.encode_name)) for item in msgspec.structs.fields(struct)
    ]
    return msgspec.defstruct("Raw" + struct.__name__, cast("Any", fields))


def _decoders(struct: type[msgspec.Struct]) -> dict[str, msgspec.json.Decoder[Any]]:
    return {
        item.name: msgspec.json.Decoder(item.type, strict=False)
        for item in msgspec.structs.fields(struct)
        if item.name != "args"
    }


def _fitting(raw: msgspec.Struct, decoders: dict[str, msgspec.json.Decoder[Any]]) -> dict[str, Any]:
    """The values that fit their types, by field."""
    values = {}
    for name, decoder in decoders.items():
        value: Raw = getattr(raw, name)
        if _absent(value):
            continue
        try:
            values[name] = decoder.decode(value)
        except NOT_DECODABLE:
            continue
    return values


# Events out of text that does not decode as it stands: the end of the array, and whatever is damaged.


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
