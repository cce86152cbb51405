"""Events and metadata of a trace without what they must not give away.

By default: environment, hosts, users, addresses, command lines and job ids among the metadata, access tokens
everywhere. With `everything` also paths, call stacks, argument strings and names that people chose for processes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from opanatomy.model import METADATA_KEY, Capture
from opanatomy.trace import sensitive
from opanatomy.trace.decoding import NOT_DECODABLE
from opanatomy.trace.sensitive import REDACTED, Secrecy, secrecy_of

#: Deeper than this nothing is looked at, so nothing is written.
_DEEPEST: Final = 32
_CACHED, _CACHED_LENGTH = 20_000, 1000
#: A text longer than this is no name; `everything` leaves it out as it is.
_LONGEST: Final = 1 << 16
#: How many values are learned.
_LEARNED_MOST: Final = 500
#: A value learned from the environment is looked for elsewhere from this length on.
_LEARNED_LEAST: Final = 8
_NAME_LEAST: Final = 4
_COMMON: Final = sensitive.words(
    "root user users admin ubuntu nobody localhost local localdomain host hostname python default none true false null"
    " train training worker main node rank cuda linux"
)

_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Redaction:
    """The redaction of one trace, told of its metadata first."""

    def __init__(self, metadata: Mapping[str, object], *, everything: bool = False) -> None:
        self.everything = everything
        #: How many entries and values were left out or changed.
        self.changes = 0
        secrets, names = _learned(metadata)
        self._secrets = _any_of(secrets)
        self._names = _any_of(names) if everything else None
        words = [*sensitive.TRIGGERS, '"opanatomy"', *(_quoted(secret) for secret in sorted(secrets)[:_LEARNED_MOST])]
        self._words = [word.lower().encode() for word in words]
        self._trigger = re.compile(b"|".join(map(re.escape, self._words)), re.IGNORECASE)
        self._texts: dict[str, str] = {}
        self._metadata = metadata

    # ------------------------------------------------------------------------------------------------- metadata

    def metadata(self) -> dict[str, object]:
        """The metadata that may be written."""
        found: dict[str, object] = {}
        for key, value in self._metadata.items():
            if key == METADATA_KEY and (capture := _as_capture(value)) is not None:
                found[key] = self._capture(capture)
            elif key == "traceName" or sensitive.is_variable(key):
                self.changes += 1
            else:
                self._keep(found, key, value, 0, is_metadata=True)
        return found

    def _capture(self, value: object) -> object:
        """What a capture of ours told: its records are known, only their texts are looked at."""
        if isinstance(value, dict):
            return {key: self._capture(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._capture(item) for item in value]
        return self._metadata_text(value) if isinstance(value, str) else value

    def _keep(self, found: dict[str, Any], key: str, value: object, depth: int, *, is_metadata: bool) -> None:
        secrecy = secrecy_of(key)
        if secrecy is not None and not sensitive.is_amount(key, value) and self._is_out(secrecy, value, is_metadata):
            self.changes += 1
            if secrecy is Secrecy.SECRET:
                found[self.text(key)] = REDACTED
        elif key == "Concrete Inputs" and self.everything:
            found[key] = self._constants(value)
        else:
            found[self.text(key)] = self._value(value, depth + 1, is_metadata=is_metadata)

    def _is_out(self, secrecy: Secrecy, value: object, is_metadata: bool) -> bool:
        if secrecy is Secrecy.SECRET:
            return bool(value)
        if secrecy is Secrecy.ENVIRONMENT:
            return is_metadata or isinstance(value, str | dict | list)
        if secrecy is Secrecy.IDENTITY:
            return is_metadata or (self.everything and isinstance(value, str | dict | list))
        return self.everything and isinstance(value, str | dict | list)

    # --------------------------------------------------------------------------------------------------- events

    def events(self, events: Sequence[msgspec.Raw]) -> bytes:
        """Events as they may be written, commas between; the text of each as it is unless something is left out."""
        text = b",\n".join(events)
        if not self.everything:
            lower = text.lower()
            if not any(word in lower for word in self._words):
                return text
        kept = []
        for raw in events:
            if self.everything or self._trigger.search(raw):
                event = self._event(raw)
                if event is not None:
                    kept.append(event)
            else:
                kept.append(bytes(raw))
        return b",\n".join(kept)

    def _event(self, raw: msgspec.Raw) -> bytes | None:
        """One event; `None` for one that this project added to the trace before."""
        fields = _fields.decode(raw)
        if bytes(fields.get("cat", b"")) == b'"opanatomy"':
            return None
        found: dict[str, Any] = {}
        for key, value in fields.items():
            if memoryview(value)[0] not in b'"{[':
                found[self.text(key)] = value
                continue
            try:
                decoded = msgspec.json.decode(value)
            except NOT_DECODABLE:
                self.changes += 1
                continue
            if key == "args":
                found[key] = self._value(decoded, 0, is_metadata=False)
            else:
                self._keep(found, key, decoded, 0, is_metadata=False)
        if self.everything:
            self._without_labels(found)
        return msgspec.json.encode(found)

    def _without_labels(self, event: dict[str, Any]) -> None:
        """Take what a user chose out of the names of Python frames, processes and threads."""
        if event.get("cat") == "python_function" and isinstance(event.get("name"), str):
            event["name"] = sensitive.frame_without_file(event["name"])
        arguments = event.get("args")
        if event.get("ph") == "M" and isinstance(arguments, dict):
            for key in ("name", "labels"):
                if isinstance(arguments.get(key), str):
                    arguments[key] = sensitive.plain_label(arguments[key])

    # ---------------------------------------------------------------------------------------------------- values

    def _value(self, value: Any, depth: int, *, is_metadata: bool) -> Any:
        if depth > _DEEPEST:
            return REDACTED
        if isinstance(value, str):
            return self._nested_json(value, depth, is_metadata=is_metadata)
        if isinstance(value, list):
            return [self._value(item, depth + 1, is_metadata=is_metadata) for item in value]
        if not isinstance(value, dict):
            return value
        if sensitive.is_environment(value):
            self.changes += 1
            return {}
        found: dict[str, Any] = {}
        for key, item in value.items():
            self._keep(found, key, item, depth, is_metadata=is_metadata)
        return found

    def _nested_json(self, text: str, depth: int, *, is_metadata: bool) -> str:
        """The text; JSON inside it is looked at as JSON."""
        if text[:1] in ("{", "[") and '"' in text:
            try:
                inner = msgspec.json.decode(text)
            except NOT_DECODABLE:
                inner = None
            if inner is not None:
                told = self._value(inner, depth + 1, is_metadata=is_metadata)
                return text if told == inner else msgspec.json.encode(told).decode()
        return self._metadata_text(text) if is_metadata else self.text(text)

    def _metadata_text(self, text: str) -> str:
        if _looks_like_environment(text):
            self.changes += 1
            return REDACTED
        return sensitive.without_addresses(self.text(text))

    def _constants(self, value: object) -> object:
        if isinstance(value, list):
            return [self._constants(item) for item in value]
        if isinstance(value, str) and not sensitive.is_plain_constant(value):
            self.changes += 1
            return ""
        return value

    def text(self, text: str) -> str:
        """A text that may be written."""
        known = self._texts.get(text)
        if known is None:
            known = self._text(text)
            if len(self._texts) >= _CACHED:
                self._texts.clear()
            if len(text) <= _CACHED_LENGTH:
                self._texts[text] = known
        self.changes += known != text
        return known

    def _text(self, text: str) -> str:
        if self.everything and len(text) > _LONGEST:
            return REDACTED
        told = sensitive.without_tokens(text)
        if self._secrets is not None:
            told = self._secrets.sub(REDACTED, told)
        if self.everything:
            told = sensitive.without_paths(sensitive.without_addresses(told))
            if self._names is not None:
                told = self._names.sub(sensitive.USER, told)
        return told


def _as_capture(value: object) -> object:
    """What a capture of ours told, without keys that it does not have; `None` where the value is something else."""
    try:
        return msgspec.to_builtins(msgspec.convert(value, type=Capture))
    except (msgspec.ValidationError, RecursionError):
        return None


_ASSIGNMENTS: Final = re.compile(r"(?:^|[\s,;{(\"'])([A-Z][A-Z0-9_]{2,128})[\"']?\s{0,8}[=:]")


def _looks_like_environment(text: str) -> bool:
    """Whether a text is a list of variables: `environ({...})`, `HOME=/root PATH=/bin ...`."""
    return "environ(" in text or len(_ASSIGNMENTS.findall(text)) >= 2 or bool(re.match(r"^[A-Z][A-Z0-9_]{2,}=", text))


def _learned(metadata: Mapping[str, object]) -> tuple[set[str], set[str]]:
    """(secrets, names of hosts and users) that the metadata tells; they are looked for in the events too."""
    secrets: set[str] = set()
    names: set[str] = set()

    def look(key: str, value: object, depth: int) -> None:
        if depth > _DEEPEST:
            return
        if isinstance(value, dict):
            for inner, item in value.items():
                look(str(inner), item, depth + 1)
        elif isinstance(value, list):
            for item in value:
                look(key, item, depth + 1)
        elif isinstance(value, str):
            _learn(key, value.strip(), secrets, names)
            if value[:1] == "{":
                try:
                    look(key, msgspec.json.decode(value), depth + 1)
                except NOT_DECODABLE:
                    return

    for key, value in metadata.items():
        if key != METADATA_KEY:
            look(key, value, 0)
    return secrets, names


_WHO: Final = frozenset({"user", "username", "logname", "login", "host", "hostname", "nodename", "fqdn"})


def _learn(key: str, value: str, secrets: set[str], names: set[str]) -> None:
    if secrecy_of(key) is Secrecy.SECRET and len(value) >= _LEARNED_LEAST and not value.isdigit():
        secrets.add(value)
    words = set(re.split(r"[^a-z]+", key.lower()))
    if words & _WHO and len(value) >= _NAME_LEAST and value.lower() not in _COMMON and " " not in value:
        names.add(value)


def _any_of(texts: set[str]) -> re.Pattern[str] | None:
    if not texts:
        return None
    longest_first = sorted(texts, key=lambda text: (-len(text), text))[:_LEARNED_MOST]
    return re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, longest_first))})(?![A-Za-z0-9])")


def _quoted(text: str) -> str:
    """The text as it stands inside JSON."""
    return msgspec.json.encode(text)[1:-1].decode()
