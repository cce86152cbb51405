"""Redact the metadata and events of a trace: of the metadata what is listed stays, in events every text is masked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from opanatomy.records.patterns import regex
from opanatomy.records.workload import METADATA_KEY, Capture
from opanatomy.trace.redact import PATH, REDACTED, Texts, is_plain_constant, is_secret_name, words
from opanatomy.trace.redact_records import redacted

#: The errors of msgspec on text that is not JSON, is not UTF-8 or nests too deep.
NOT_DECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])

#: What profilers write of themselves; all other metadata, those of the user too, are left out.
_METADATA: Final = words(
    "schemaVersion deviceProperties distributedInfo displayTimeUnit baseTimeNanoseconds trace_id record_shapes"
    " profile_memory with_stack with_flops with_modules"
)
#: The arguments of events that are texts, or have some in them, and that `everything` keeps; numbers always stay.
_ARGUMENTS: Final = frozenset((
    "name", "labels", "Input Dims", "Input dims", "Input type", "Input Strides", "Concrete Inputs", "Collective name",
    "dtype", "Process Group Name", "Process Group Description", "Process Group Ranks", "In split size",
    "Out split size", "Module Hierarchy", "Trace name", "device", "stream", "kernel", "kernel_name", "kernel_backend",
    "kernel_hash", "kernel_kwargs", "kernel_file", "grid", "block", "blocks per SM", "est. achieved occupancy %",
    "kind", "copy kind", "scope", "cuda_sync_kind", "size", "bytes", "src", "dst", "ptr",
))  # fmt: skip
#: The keys of an event whose texts `everything` keeps.
_EVENT: Final = words("ph cat name pid tid ts dur id bp s cname args")
_ENVIRONMENT: Final = words("env environ environment")
#: Never deeper than this.
_DEEPEST: Final = 32

_PYTHON_FRAME: Final = regex(r"^.*?\((\d+)\): ")
_PROCESS: Final = regex(r"python[\d.]*|CPU|[A-Z]{2,5}(?: \d+)?|Spans|Traces|opanatomy")
_THREAD: Final = regex(r"((?:thread|stream) -?\w+)(?: .*)?")

#: The strings of JSON. With escapes in the text, quotes alone do not tell where one ends.
_STRINGS: Final = regex(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
#: The number of clean strings to remember, and their greatest length.
_REMEMBERED, _REMEMBERED_LENGTH = 200_000, 1000
#: With more strings than this, decoding every event is as fast as searching.
_MAX_DIRTY: Final = 20


class Redaction:
    """The redaction of one trace; it takes the metadata first."""

    def __init__(self, metadata: Mapping[str, object], *, everything: bool = False) -> None:
        self.everything = everything
        self.texts = Texts(metadata, everything=everything)
        self._triggers = [word.encode() for word in self.texts.triggers]
        self._clean: set[bytes] = set()
        self._metadata = metadata
        self._left_out = 0

    @property
    def changes(self) -> int:
        """Return the number of entries and values left out or changed."""
        return self._left_out + self.texts.changes

    def metadata(self, metadata: Mapping[str, object] | None = None) -> dict[str, object]:
        """Return the metadata, or those given, redacted."""
        kept: dict[str, object] = {}
        for key, value in (self._metadata if metadata is None else metadata).items():
            if key == METADATA_KEY and (capture := _as_capture(value)) is not None:
                kept[key] = msgspec.to_builtins(redacted(capture, self.texts))
            elif key in _METADATA or (key.endswith("_version") and not isinstance(value, list | dict)):
                kept[key] = self._value(key, value, self.texts.sentence)
            else:
                self._left_out += 1
        return kept

    def touches(self, text: bytes) -> bool:
        """Return whether anything in the text of whole events must not be written."""
        return self.everything or bool(self._dirty_in(text))

    def events(self, events: Sequence[msgspec.Raw | bytes]) -> bytes:
        """Return events redacted, separated by commas; an event keeps its text if nothing is left out."""
        text = b",\n".join(events)
        dirty = [b'"' + one + b'"' for one in self._dirty_in(text)] if not self.everything else []
        if not dirty and not self.everything:
            return text
        every = self.everything or len(dirty) > _MAX_DIRTY
        kept = (self._event(raw) if every or any(one in raw for one in dirty) else raw for raw in map(bytes, events))
        return b",\n".join(filter(None, kept))

    def _dirty_in(self, text: bytes) -> list[bytes]:
        """Return the strings, as they are in the text of events, that must not be written unchanged."""
        if b"\\" in text:
            distinct = set(_STRINGS.findall(text))
        else:
            parts = text.split(b'"')
            distinct = set(parts[1::2] if len(parts) % 2 else parts)
        fresh = distinct - self._clean
        joined = b"\n".join(fresh).lower()
        triggers = [word for word in self._triggers if word in joined]
        dirty = [one for one in fresh if one == b"opanatomy" or self._is_dirty(one, triggers)]
        if len(self._clean) > _REMEMBERED:
            self._clean.clear()
        self._clean |= {one for one in fresh.difference(dirty) if len(one) <= _REMEMBERED_LENGTH}
        return dirty

    def _is_dirty(self, one: bytes, triggers: list[bytes]) -> bool:
        if b"\\" not in one and one.isascii():
            lower = one.lower()
            if not any(word in lower for word in triggers):
                return False
        try:
            text: str = msgspec.json.decode(b'"' + one + b'"')
        except NOT_DECODABLE:
            return True
        return text in _ENVIRONMENT or not self.texts.is_clean(text)

    def _event(self, raw: bytes) -> bytes | None:
        """Redact one event. Return `None` for our own events and for invalid JSON."""
        try:
            # A number keeps its text: times have more digits than a float.
            event: dict[str, Any] = {
                key: msgspec.json.decode(value) if memoryview(value)[0] in b'"{[' else value
                for key, value in _decoder.decode(raw).items()
            }
        except NOT_DECODABLE:
            self._left_out += 1
            return None
        if event.get("cat") == "opanatomy":
            return None
        if self.everything:
            event = self._listed(event, _EVENT)
            arguments = event.get("args")
            if isinstance(arguments, dict):
                arguments = event["args"] = self._listed(arguments, _ARGUMENTS)
                if event.get("ph") == "M":
                    event["args"] = {key: _label(value) for key, value in arguments.items()}
                elif "Concrete Inputs" in arguments:
                    arguments["Concrete Inputs"] = self._constants(arguments["Concrete Inputs"])
            if event.get("cat") == "python_function" and isinstance(event.get("name"), str):
                event["name"] = _PYTHON_FRAME.sub(rf"{PATH}(\1): ", event["name"])
        return msgspec.json.encode(self._value("", event, self.texts.text))

    def _listed(self, values: dict[str, Any], keys: frozenset[str]) -> dict[str, Any]:
        """Return the values under known keys, and all numbers."""
        kept = {key: value for key, value in values.items() if key in keys or not isinstance(value, str | list | dict)}
        self._left_out += len(values) - len(kept)
        return kept

    def _constants(self, value: object) -> object:
        if isinstance(value, list):
            return [self._constants(item) for item in value]
        if isinstance(value, str) and not is_plain_constant(value):
            self._left_out += 1
            return ""
        return value

    def _value(self, key: str, value: Any, mask: Callable[[str], str], depth: int = 0) -> Any:
        """Return a value with every text in it masked, and nothing of one under the name of a secret."""
        if depth > _DEEPEST or (value and (is_secret_name(key) or key in _ENVIRONMENT)):
            self._left_out += 1
            return REDACTED
        if isinstance(value, str):
            return mask(value)
        if isinstance(value, list):
            return [self._value("", item, mask, depth + 1) for item in value]
        if isinstance(value, dict):
            return {mask(name): self._value(name, item, mask, depth + 1) for name, item in value.items()}
        return value


def _label(value: object) -> object:
    """Return the label of a process or a thread without anything that a user chose."""
    if not isinstance(value, str) or _PROCESS.fullmatch(value):
        return value
    thread = _THREAD.fullmatch(value)
    return thread[1] if thread else ""


def _as_capture(value: object) -> Capture | None:
    """Return what our capture recorded, without unknown keys; `None` if the value is something else."""
    try:
        return msgspec.convert(value, type=Capture)
    except (msgspec.ValidationError, RecursionError):
        return None
