"""A text as it may be written: without secrets, and on request without paths, addresses and people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from opanatomy.redaction import places, values
from opanatomy.redaction.forms import REDACTED, TRIGGERS, values_by_key, without_tokens
from opanatomy.redaction.keys import Secrecy, secrecy_of

_CACHED, _CACHED_LENGTH = 20_000, 1000
#: A text longer than this is no name; `everything` leaves it out as it is.
_LONGEST: Final = 1 << 16
_MODULE: Final = "opanatomy.module/"
_ASSIGNMENTS: Final = re.compile(r"(?:^|[\s,;{(\"'])([A-Z][A-Z0-9_]{2,128})[\"']?\s{0,8}[=:]")


class Texts:
    """The texts of one report, trace or message; given the metadata of traces, it finds their secrets too.

    The secrets of the process itself, in its environment and on its command line, are always known. With `everything`
    paths, addresses, hosts and users are left out as well.
    """

    def __init__(self, metadata: Mapping[str, object] | None = None, *, everything: bool = False) -> None:
        self.everything = everything
        #: How many entries and values were left out or changed.
        self.changes = 0
        self._secrets = values.of_process()
        self._names: set[str] = set()
        #: From the metadata of traces: secrets, hosts and users.
        self.trace_secrets: set[str] = set()
        self.trace_names: set[str] = set()
        self._learned()
        if metadata:
            self.learn(metadata)

    def learn(self, metadata: Mapping[str, object]) -> None:
        """Know the secrets in the metadata of a trace, and the hosts and users that they name."""
        from opanatomy.records.workload import METADATA_KEY

        secrets, names = values.of_metadata({key: value for key, value in metadata.items() if key != METADATA_KEY})
        own = metadata.get(METADATA_KEY)
        if isinstance(own, dict):
            secrets |= {value for value in values_by_key(str(own.get("command"))) if values.is_worth(value)}
        self.know(secrets, names)

    def know(self, secrets: Iterable[str], names: Iterable[str]) -> None:
        """Know secrets, hosts and users from the metadata of a trace."""
        self.trace_secrets |= set(secrets)
        self.trace_names |= set(names)
        if not (self.trace_secrets <= self._secrets and self.trace_names <= self._names):
            self._secrets |= self.trace_secrets
            self._names |= self.trace_names
            self._learned()

    def _learned(self) -> None:
        self._known: dict[str, str] = {}
        self._by_value = values.pattern_of(self._secrets)
        self._cut_off = values.cut_pattern(self._secrets)
        self._by_name = values.names_pattern(self._names) if self.everything else None
        own_words = sorted({values.trigger_of(secret) for secret in self._secrets})
        #: A text without any of these, in small letters, has no secret.
        self.triggers: tuple[str, ...] = (*TRIGGERS, *own_words)

    def text(self, text: str) -> str:
        """A text that may be written."""
        known = self.without_secrets(text)
        self.changes += known != text
        return known

    def without_secrets(self, text: str) -> str:
        """The same, not counted."""
        known = self._known.get(text)
        if known is None:
            known = self._text(text)
            if len(self._known) >= _CACHED:
                self._known.clear()
            if len(text) <= _CACHED_LENGTH:
                self._known[text] = known
        return known

    def sentence(self, text: str) -> str:
        """A message or a setting that may be written: it may end within a secret, and name homes and addresses."""
        return places.without_addresses(self._line(text))

    def line(self, text: str) -> str:
        """A message for the user's own eyes: it may name files, but no secrets."""
        redacted = self._line(text)
        self.changes += redacted != text
        return redacted

    def _line(self, text: str) -> str:
        redacted = text
        if self._cut_off is not None:
            redacted = self._by_value.sub(REDACTED, redacted) if self._by_value else redacted
            redacted = self._cut_off.sub(REDACTED, redacted)
        for value in values_by_key(redacted):
            if values.is_worth(value):
                redacted = redacted.replace(value, REDACTED)
        return self.text(redacted)

    def module(self, path: str) -> str:
        """The path of a module, as its range in the trace is written."""
        return self.text(f"{_MODULE}{path}").removeprefix(_MODULE)

    def is_clean(self, text: str) -> bool:
        """Whether a text may be written as it is, be it a value or a key."""
        return self.without_secrets(text) == text and secrecy_of(text) not in (Secrecy.SECRET, Secrecy.ENVIRONMENT)

    def _text(self, text: str) -> str:
        if self.everything and len(text) > _LONGEST:
            return REDACTED
        lower, redacted = text.lower(), text
        if any(word in lower for word in self.triggers):
            if self._by_value is not None:
                redacted = self._by_value.sub(REDACTED, redacted)
            redacted = without_tokens(redacted)
        if self.everything:
            redacted = places.without_paths(places.without_addresses(redacted))
            if self._by_name is not None:
                redacted = self._by_name.sub(places.USER, redacted)
        return redacted


def looks_like_environment(text: str) -> bool:
    """Whether a text is a list of variables: `environ({...})`, `HOME=/root PATH=/bin ...`."""
    return "environ(" in text or len(_ASSIGNMENTS.findall(text)) >= 2 or bool(re.match(r"^[A-Z][A-Z0-9_]{2,}=", text))


def spoken(text: str) -> str:
    """A line for stderr without the secrets of this process and what has the form of one."""
    return Texts().line(text)
