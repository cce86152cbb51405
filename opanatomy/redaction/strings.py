"""Which of the distinct strings in JSON text must not be written: a trace repeats few strings very often."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from opanatomy.redaction.keys import ALWAYS_SET
from opanatomy.redaction.texts import Texts

#: With escapes in the text, quotes alone do not tell where a string ends.
_STRINGS: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
#: How many clean strings are remembered, and how long ones.
_REMEMBERED, _REMEMBERED_LENGTH = 200_000, 1000
#: Strings that make an event worth a look by themselves: keys of environments, and the category of our own tracks.
_LOOKED_AT: Final = frozenset({b"opanatomy", *(name.encode() for name in ALWAYS_SET)})


class Strings:
    """Finds, in the text of whole events, the strings that redaction has to look at in their events."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._triggers = [word.encode() for word in texts.triggers]
        self._clean: set[bytes] = set()

    def dirty_in(self, text: bytes) -> set[bytes]:
        """The strings, as they stand in the text, that are not to be written as they are."""
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
        """The same of a string with escapes; JSON inside of it is looked at as JSON."""
        try:
            text: str = msgspec.json.decode(b'"' + one + b'"')
        except (msgspec.DecodeError, UnicodeDecodeError):
            return True
        return text[:1] in ("{", "[") or not self._texts.is_clean(text)
