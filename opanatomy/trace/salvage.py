"""Decode JSON text into typed events: strictly first, then after repairing known defects of traces.

What still does not fit is decoded field by field, so that an odd value loses one field, not its event.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from functools import cache
from itertools import islice
from typing import Any, Final, TypeAlias, Union, cast

import msgspec
from msgspec import Raw, Struct, field

from opanatomy.records.patterns import regex
from opanatomy.trace.schema import LONGEST_US, TIMES_US, Args, Event, ExactEvent, event_of_category

#: Text that is not copied for reading.
Buffer: TypeAlias = "bytes | memoryview"
#: The errors of msgspec on text that is not JSON, does not fit, is not UTF-8 or nests too deep.
NOT_DECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_NOT_JSON = regex(rb"(?<=[:,\[\s])(?:NaN|[+-]?Infinity|[+-]?inf|[+-]?nan)(?=[,\]}\s])")
#: The same, or a whole string, inside which the word is only text.
_STRING_OR_NOT_JSON = regex(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\Z)|' + _NOT_JSON.pattern, re.DOTALL)
_CONTROL = bytes(32 if code < 32 else code for code in range(256))
#: A backslash that does not begin a JSON escape, and an unpaired surrogate.
_NO_ESCAPE = regex(rb'(?<!\\)((?:\\\\){0,50})\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_HALF_PAIR = regex(
    rb"(?<!\\)((?:\\\\){0,50})\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
#: Maximum number of escapes repaired per batch: more means damage, and takes memory.
_MAX_MENDED: Final = 10_000
#: With more categories than this, events are decoded in full; so are they after this many more misfits than fits.
_MAX_CATEGORIES: Final = 40
_MISFITS: Final = 8


def listed(text: Buffer) -> bytes:
    """Return events separated by commas as a JSON array."""
    return b"".join((b"[", text, b"]"))


def mend(text: bytes) -> bytes:
    """Return the text without control characters, bare `NaN`, invalid UTF-8 and escapes that JSON does not have."""
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
    """Decode events; times become exact decimals from the first one that a float cannot represent."""

    def __init__(self) -> None:
        self._event: type[Event] = Event
        self._by_category: _CategoryDecoder | None = _CategoryDecoder()
        self._make()

    def _make(self) -> None:
        self._strict: msgspec.json.Decoder[list[Event]] = msgspec.json.Decoder(list[self._event])  # type: ignore[name-defined]
        self._lenient: msgspec.json.Decoder[list[Event]] = msgspec.json.Decoder(list[self._event], strict=False)  # type: ignore[name-defined]
        self._single: msgspec.json.Decoder[Event] = msgspec.json.Decoder(self._event)

    def many(self, text: Buffer) -> list[Event] | None:
        """Decode a text of whole comma-separated events; return `None` if one does not match."""
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
        """Decode an event without its mismatched fields; return `None` if the text is not a JSON object."""
        try:
            event: Event | None = self._single.decode(text)
        except NOT_DECODABLE:
            event = _loose(self._event).decode(mend(text))
        if event is None:
            return None
        return self.one(text) if self._became_exact([event]) else self._within([event])[0]

    def _became_exact(self, events: list[Event]) -> bool:
        """Return whether a time has a fraction and is so large that a float cannot hold its nanoseconds."""
        if self._event is ExactEvent or not any(
            type(event.ts) is float and event.ts > 9e12 and event.ts % 1 != 0 for event in events[:200]
        ):
            return False
        self._event, self._by_category = ExactEvent, None
        self._make()
        return True

    def _within(self, events: list[Event]) -> list[Event]:
        """Return the events; drop decimal times that are out of range (floats are checked while decoding)."""
        if self._event is ExactEvent:
            for event in events:
                if not (_is_within(event.ts, *TIMES_US) and _is_within(event.dur, -LONGEST_US, LONGEST_US)):
                    event.ts = None
        return events


class _CategoryDecoder:
    """Decodes each event by its category, for the categories learned so far."""

    def __init__(self) -> None:
        self._events: dict[str, type[Event]] = {}
        self._decoder: msgspec.json.Decoder[list[Event]] | None = None
        #: Matching texts minus texts that did not match although all their categories were known.
        self._fitting = _MISFITS

    def decode(self, array: bytes) -> list[Event] | None:
        """Return the events; `None` if a category is unknown or missing, or an event does not fit."""
        if self._decoder is None:
            return None
        try:
            events = self._decoder.decode(array)
        except NOT_DECODABLE:
            return None
        self._fitting += 1
        return events

    def learn(self, events: list[Event]) -> bool:
        """Learn the categories of events that were decoded in full; return whether to go on this way."""
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
    """Return the decoder of such events field by field; few traces need it."""
    return _Loose(event)


def _absent(raw: Raw) -> bool:
    return bytes(raw) in (b"", b"null")


def _raw_twin(struct: type[msgspec.Struct]) -> Any:
    """Return a type with the same fields, all undecoded."""
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
    """Return the values that fit their types, by field."""
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


# ------------------------------------------------------------------------------------------------------ single events


#: A larger event is damage.
LONGEST_EVENT: Final = 8 << 20
#: Events are separated by `}, {`, but so are the objects of a list inside one.
_BOUNDARY = regex(rb"\}\s*,\s*\{")
_GAP = regex(rb"[\s,]*")
#: A name up to the next key, whatever quotes it contains.
_NAME = regex(rb'("name"\s*:\s*")(.*?)("\s*,\s*"(?:ph|cat|pid|tid|ts|dur|id|args|s|bp)"\s*:)', re.DOTALL)
_scan: Final = json.JSONDecoder(strict=False).raw_decode


class Damaged(Exception):
    """An entry that is not an event; `position` is its start in the text."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position


class Salvaged(Struct, kw_only=True):
    """The events of a text, the start of the text that is left, and whether the array ended there."""

    events: list[Event] = field(default_factory=list)
    rest: int = 0
    closed: bool = False


def last_boundary(buffer: bytes) -> int:
    """Return a position that most likely ends a whole event; 0 without a boundary."""
    low = end = len(buffer)
    step = 1 << 11
    while low > 0:
        low = max(0, end - step)
        boundaries = [match.start() for match in _BOUNDARY.finditer(buffer, low, end)]
        if boundaries:
            return boundaries[-1] + 1
        step *= 8
    return 0


def single_events(text: bytes, decoder: EventDecoder, *, ended: bool) -> Salvaged:
    """Read a text that begins between two events, one event at a time, up to an incomplete one.

    Raise `Damaged` for an entry that is not an event, unless the text has `ended` in it. A name with unescaped quotes
    is read literally.
    """
    salvaged, characters = Salvaged(), text.decode("latin-1")  # one character a byte
    while True:
        gap = _GAP.match(text, salvaged.rest)
        at = salvaged.rest = gap.end() if gap else salvaged.rest
        if at == len(text):
            return salvaged
        if text[at : at + 1] == b"]":
            salvaged.closed = True
            return salvaged
        try:
            end = _scan(characters, at)[1]
            event = decoder.one(text[at:end])
        except (ValueError, RecursionError):
            named = _with_escaped_name(text, at, decoder)
            if named is None:
                others = ended and any(_is_event(characters, match.end() - 1) for match in _BOUNDARY.finditer(text, at))
                if others or len(text) - at > LONGEST_EVENT:
                    raise Damaged(at, "it is not JSON") from None
                return salvaged
            event, end = named
        if event is None:
            raise Damaged(at, f"it is not an object: {text[at : at + 20]!r}")
        salvaged.events.append(event)
        salvaged.rest = end


def _is_event(characters: str, position: int) -> bool:
    try:
        return "ph" in _scan(characters, position)[0]
    except (ValueError, RecursionError):
        return False


def _with_escaped_name(text: bytes, start: int, decoder: EventDecoder) -> tuple[Event, int] | None:
    """Return the event at a place, with the quotes of its name escaped, and its end; `None` if it does not decode."""
    for boundary in islice(_BOUNDARY.finditer(text, start), 4):
        end = boundary.start() + 1
        fixed = _NAME.sub(_escaped, text[start:end], count=1)
        try:
            event = decoder.one(fixed) if _scan(fixed.decode("latin-1"))[1] == len(fixed) else None
        except (ValueError, RecursionError):
            continue
        if event is not None:
            return event, end
    return None


def _escaped(match: re.Match[bytes]) -> bytes:
    return match[1] + re.sub(rb'(?<!\\)"', rb'\\"', match[2]) + match[3]
