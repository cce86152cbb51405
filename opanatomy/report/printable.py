"""Names from anywhere as characters that can be seen."""

from __future__ import annotations

import re
from typing import Final

_MARK: Final = "\N{REPLACEMENT CHARACTER}"
#: Printable by their category, but nothing is seen of them (Unicode's Default_Ignorable_Code_Point, without Cf).
_UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def printable(text: str) -> str:
    """The text with a mark for each character that is acted on or not seen: escapes, line ends, writing directions."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSEEN.sub(_MARK, "".join(character if character.isprintable() else _MARK for character in text))
