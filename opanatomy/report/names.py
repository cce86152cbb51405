"""Write names from anywhere in visible characters, and cut them to fit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from opanatomy.records.patterns import regex

_MARK: Final = "\N{REPLACEMENT CHARACTER}"
#: Printable by their category, but invisible (Unicode's Default_Ignorable_Code_Point, without Cf).
_UNSEEN: Final = regex(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
#: Minimum width of a name if nothing else can be shortened.
SHORTEST: Final = 8
#: Number of characters shown of a word before the position in which two names differ.
_MAX_WORD_BEFORE: Final = 6


def printable(text: str) -> str:
    """Return the text with a mark for each active or invisible character: escapes, line ends, writing directions."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSEEN.sub(_MARK, "".join(character if character.isprintable() else _MARK for character in text))


def cut(name: str, width: int) -> str:
    """Cut the name to at most `width` cells, keeping both ends joined by an ellipsis."""
    from rich.cells import cell_len

    if cell_len(name) <= width:
        return name
    tail = max(width - 1, 0) // 2
    head = max(width - 1 - tail, 0)
    return f"{crop(name, head)}…{crop(name[::-1], tail)[::-1]}"


def cut_apart(names: Sequence[str], width: int) -> dict[str, str]:
    """Cut each name to at most `width` cells; if cutting would make names equal, the differing part is kept."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(cut(name, width), []).append(name)
    texts: dict[str, str] = {}
    for text, group in groups.items():
        texts |= dict.fromkeys(group, text) if len(group) == 1 else _cut_at_difference(group, width)
    return texts


def _cut_at_difference(names: Sequence[str], width: int) -> dict[str, str]:
    """Cut names with common beginning and end: keep the beginning, and the text from the first pairwise difference."""
    from rich.cells import cell_len

    index, head = min(_first_difference(names[0], name) for name in names[1:]), width // 3
    begin = re.search(r"[^\W_]*\Z", names[0][:index])
    index = max(begin.start() if begin else index, index - _MAX_WORD_BEFORE)
    groups: dict[str, list[str]] = {}
    for name in names:
        rest, room = name[index:], width - head - 1
        rest = rest if cell_len(rest) <= room else f"{crop(rest, room - 1)}…"
        groups.setdefault(f"{crop(name, head)}…{rest}", []).append(name)
    texts: dict[str, str] = {}
    for text, group in groups.items():
        again = 1 < len(group) < len(names)
        texts |= _cut_at_difference(group, width) if again else dict.fromkeys(group, text)
    return texts


def _first_difference(name: str, other: str) -> int:
    """Return the index of the first letter in which two names differ."""
    return next(i for i, (one, two) in enumerate(zip_longest(name, other)) if one != two)


def crop(text: str, width: int) -> str:
    """Return the longest beginning of the text that fits `width` cells."""
    from rich.cells import cell_len

    end, used = 0, 0
    for character in text:
        used += cell_len(character)
        if used > width:
            break
        end += 1
    return text[:end]
