"""Redact the events and metadata of a trace."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from opanatomy.records.workload import METADATA_KEY, Capture
from opanatomy.trace.redact import (
    ALWAYS_SET,
    DEEPEST,
    REDACTED,
    Secrecy,
    Texts,
    frame_without_file,
    is_amount,
    is_environment,
    is_plain_constant,
    is_variable,
    looks_like_environment,
    plain_label,
    secrecy_of,
    without_addresses,
)
from opanatomy.trace.redact_records import redacted

#: With escapes in the text, quotes alone do not tell where a string ends.
_STRINGS: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)


#: The number of clean strings to remember, and their greatest length.
_REMEMBERED, _REMEMBERED_LENGTH = 200_000, 1000


#: Strings that make an event worth examining: keys of environments, and the category of our own tracks.
_LOOKED_AT: Final = frozenset({b"opanatomy", *(name.encode() for name in ALWAYS_SET)})


class Strings:
    """Finds the strings, in the text of whole events, whose events need redaction."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._triggers = [word.encode() for word in texts.triggers]
        self._clean: set[bytes] = set()

    def dirty_in(self, text: bytes) -> set[bytes]:
        """Return the strings, as they are in the text, that must not be written unchanged."""
        if b"\\" in text:
            distinct = set(_STRINGS.findall(text))
        else:
            parts = text.split(b'"')
            distinct = set(parts[1::2] if len(parts) % 2 else parts)
        fresh = distinct - self._clean
        dirty = fresh & _LOOKED_AT
        joined = b"\n".join(fresh).lower()
        words = [word for word in self._triggers if word in joined]
        if words or b"\\" in joined or not joined.isascii():
            dirty |= {one for one in fresh if self._is_dirty(one, words)}
        if len(self._clean) > _REMEMBERED:
            self._clean.clear()
        self._clean |= {one for one in fresh - dirty if len(one) <= _REMEMBERED_LENGTH}
        return dirty

    def _is_dirty(self, one: bytes, words: list[bytes]) -> bool:
        if b"\\" in one:
            return self._is_dirty_decoded(one)
        lower = one.lower()
        if one.isascii() and not any(word in lower for word in words):
            return False
        try:
            return not self._texts.is_clean(one.decode())
        except UnicodeDecodeError:
            return True

    def _is_dirty_decoded(self, one: bytes) -> bool:
        """Return whether a string with escapes is dirty; JSON inside it is parsed."""
        try:
            text: str = msgspec.json.decode(b'"' + one + b'"')
        except (msgspec.DecodeError, UnicodeDecodeError):
            return True
        return text[:1] in ("{", "[") or not self._texts.is_clean(text)


#: With more strings than this, examining every event is as fast as searching.
_MAX_DIRTY: Final = 20


#: The errors of msgspec on text that is not JSON, is not UTF-8 or nests too deep.
NOT_DECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Redaction:
    """The redaction of one trace; it takes the metadata first."""

    def __init__(self, metadata: Mapping[str, object], *, everything: bool = False) -> None:
        self.everything = everything
        self.texts = Texts(metadata, everything=everything)
        self._strings = Strings(self.texts)
        self._metadata = metadata
        self._left_out = 0

    @property
    def changes(self) -> int:
        """Return the number of entries and values left out or changed."""
        return self._left_out + self.texts.changes

    # ------------------------------------------------------------------------------------------------- metadata

    def metadata(self, metadata: Mapping[str, object] | None = None) -> dict[str, object]:
        """Return the metadata, or those given, redacted."""
        kept: dict[str, object] = {}
        for key, value in (self._metadata if metadata is None else metadata).items():
            if key == METADATA_KEY and (capture := _as_capture(value)) is not None:
                kept[key] = msgspec.to_builtins(redacted(capture, self.texts))
            elif key == "traceName" or is_variable(key):
                self._left_out += 1
            else:
                self._keep(kept, key, value, 0, is_metadata=True)
        return kept

    def _keep(self, kept: dict[str, Any], key: str, value: object, depth: int, *, is_metadata: bool) -> None:
        secrecy = secrecy_of(key)
        if secrecy is not None and not is_amount(key, value) and self._is_out(secrecy, value, is_metadata):
            self._left_out += 1
            if secrecy is Secrecy.SECRET:
                kept[self.texts.text(key)] = REDACTED
        elif key == "Concrete Inputs" and self.everything:
            kept[key] = self._constants(value)
        else:
            kept[self.texts.text(key)] = self._value(value, depth + 1, is_metadata=is_metadata)

    def _is_out(self, secrecy: Secrecy, value: object, is_metadata: bool) -> bool:
        if secrecy is Secrecy.SECRET:
            return bool(value)
        if secrecy is Secrecy.ENVIRONMENT:
            return is_metadata or isinstance(value, str | dict | list)
        if secrecy is Secrecy.IDENTITY:
            return is_metadata or (self.everything and isinstance(value, str | dict | list))
        return self.everything and isinstance(value, str | dict | list)

    # --------------------------------------------------------------------------------------------------- events

    def touches(self, text: bytes) -> bool:
        """Return whether anything in the text of whole events must not be written."""
        return self.everything or bool(self._strings.dirty_in(text))

    def events(self, events: Sequence[msgspec.Raw | bytes]) -> bytes:
        """Return events redacted, separated by commas; an event keeps its text if nothing is left out."""
        text = b",\n".join(events)
        dirty = () if self.everything else self._strings.dirty_in(text)
        if not self.everything and not dirty:
            return text
        every = self.everything or len(dirty) > _MAX_DIRTY
        quoted = [b'"' + one + b'"' for one in dirty]
        kept = []
        for raw in map(bytes, events):
            event = self._event(raw) if every or any(one in raw for one in quoted) else raw
            if event is not None:
                kept.append(event)
        return b",\n".join(kept)

    def _event(self, raw: bytes) -> bytes | None:
        """Redact one event. Return `None` for our own events and for invalid JSON."""
        try:
            fields = _fields.decode(raw)
        except NOT_DECODABLE:
            self._left_out += 1
            return None
        if bytes(fields.get("cat", b"")) == b'"opanatomy"':
            return None
        kept: dict[str, Any] = {}
        for key, value in fields.items():
            if memoryview(value)[0] not in b'"{[':
                kept[self.texts.text(key)] = value
                continue
            try:
                decoded = msgspec.json.decode(value)
            except NOT_DECODABLE:
                self._left_out += 1
                continue
            if key == "args":
                kept[key] = self._value(decoded, 0, is_metadata=False)
            else:
                self._keep(kept, key, decoded, 0, is_metadata=False)
        if self.everything:
            self._without_labels(kept)
        return msgspec.json.encode(kept)

    def _without_labels(self, event: dict[str, Any]) -> None:
        """Remove what a user chose from the names of Python frames, processes and threads."""
        if event.get("cat") == "python_function" and isinstance(event.get("name"), str):
            event["name"] = frame_without_file(event["name"])
        arguments = event.get("args")
        if event.get("ph") == "M" and isinstance(arguments, dict):
            for key in ("name", "labels"):
                if isinstance(arguments.get(key), str):
                    arguments[key] = plain_label(arguments[key])

    # ---------------------------------------------------------------------------------------------------- values

    def _value(self, value: Any, depth: int, *, is_metadata: bool) -> Any:
        if depth > DEEPEST:
            return REDACTED
        if isinstance(value, str):
            return self._nested_json(value, depth, is_metadata=is_metadata)
        if isinstance(value, list):
            return [self._value(item, depth + 1, is_metadata=is_metadata) for item in value]
        if not isinstance(value, dict):
            return value
        if is_environment(value):
            self._left_out += 1
            return {}
        kept: dict[str, Any] = {}
        for key, item in value.items():
            self._keep(kept, key, item, depth, is_metadata=is_metadata)
        return kept

    def _nested_json(self, text: str, depth: int, *, is_metadata: bool) -> str:
        """Return the text redacted; JSON inside it is parsed."""
        if text[:1] in ("{", "[") and '"' in text:
            try:
                inner = msgspec.json.decode(text)
            except NOT_DECODABLE:
                inner = None
            if inner is not None:
                redacted = self._value(inner, depth + 1, is_metadata=is_metadata)
                text = text if redacted == inner else msgspec.json.encode(redacted).decode()
                return self.texts.text(text)  # all of it may be a secret's value
        return self._metadata_text(text) if is_metadata else self.texts.text(text)

    def _metadata_text(self, text: str) -> str:
        if looks_like_environment(text):
            self._left_out += 1
            return REDACTED
        return without_addresses(self.texts.text(text))

    def _constants(self, value: object) -> object:
        if isinstance(value, list):
            return [self._constants(item) for item in value]
        if isinstance(value, str) and not is_plain_constant(value):
            self._left_out += 1
            return ""
        return value


def _as_capture(value: object) -> Capture | None:
    """Return what our capture recorded, without unknown keys; `None` if the value is something else."""
    try:
        return msgspec.convert(value, type=Capture)
    except (msgspec.ValidationError, RecursionError):
        return None
