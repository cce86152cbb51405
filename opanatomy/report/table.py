"""A text table that fits: numbers keep every digit, names give way first, columns drop last."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len
from rich.text import Text

from opanatomy.report.section import printable

#: Prose and rules are not wider than this, however wide the terminal.
PAGE: Final = 100
#: Of a word in which two names differ, so much before that place is shown.
_WORD: Final = 6
#: What is longer is no prose: a device name of a megabyte.
_LONGEST: Final = 4000
_GAP: Final = 2
#: The least cells of names that are shown whole or not at all.
WHOLE: Final = sys.maxsize
#: The least cells of a name where nothing else can give way.
_SHORTEST: Final = 8
#: The words of a command as a shell reads them, quotes and all.
_ARGUMENT: Final = re.compile(r"(?:[^\s'\"]|'[^']*'|\"[^\"]*\"|['\"])+")
#: The space after a number, and the character that stands for it while lines are broken.
_NUMBER: Final = re.compile(r"(?<=\d) (?=[%\w])")
_GLUE: Final = "\N{NO-BREAK SPACE}"
_BLOCKS: Final = " ▏▎▍▌▋▊▉"
_BAR_LEAST, _BAR_MOST = 8, 24


class Column(Struct, frozen=True, kw_only=True):
    """A column of numbers, right-aligned; with `name` one of text that may be cut, down to `least` cells (`WHOLE`: not
    at all).

    Where the table is too wide still, the column with the highest `drop` goes first; those of `drop` 0 only where names
    that are as short as can be leave no room for them, the last one first. The first column always stays.
    """

    header: str
    name: bool = False
    least: int = 12
    drop: int = 0


class Row(Struct, frozen=True, kw_only=True):
    """The cells of a row, one for each column; `mark` colours a swatch before the first cell and the bar."""

    cells: tuple[str, ...]
    mark: str | None = None
    bar: float | None = None
    strong: bool = False


def table(
    columns: Sequence[Column], rows: Sequence[Row], width: int, *, swatches: bool = False, ruled: bool = True
) -> tuple[list[Text], set[str]]:
    """The table as lines of at most `width` cells, and the headers of the columns that there was room for.

    `swatches` puts a coloured square before the first cell of each row that has a mark; where room is left and rows
    have a `bar` (0 to 1), a bar is drawn at the right. `ruled` draws a line below the headers.
    """
    header = Row(cells=tuple(printable(column.header) for column in columns), strong=True)
    rows = [replace(row, cells=tuple(map(printable, row.cells))) for row in rows]
    natural = {i: max(cell_len(row.cells[i]) for row in (header, *rows)) for i in range(len(columns))}
    indent = _GAP if swatches else 0
    widths = _fit(columns, natural, width - indent)
    used = indent + sum(widths.values()) + _GAP * (len(widths) - 1)
    bar = min(width - used - _GAP, _BAR_MOST)
    rows = _shortened(rows, columns, widths)
    title = _line(header, columns, widths, swatches=swatches)
    title.stylize("not bold dim", indent + widths[0])
    title.rstrip()
    lines = [title, Text("─" * used, style="dim")] if ruled else [title]
    for row in rows:
        line = _line(row, columns, widths, swatches=swatches)
        if bar >= _BAR_LEAST and row.bar is not None:
            line.append(" " * _GAP)
            line.append(_bar(row.bar, bar), style=row.mark)
        line.rstrip()
        lines.append(line)
    return lines, {columns[i].header for i in widths}


def prose(text: str, width: int, *, style: str = "") -> list[Text]:
    """The text as lines of at most `width` cells, broken between words, never between a number and its unit."""
    width = min(max(width, 8), PAGE)
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    lines = [""]
    for word in _NUMBER.sub(_GLUE, printable(text)).split(" "):
        if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
            continue
        if lines[-1]:
            lines.append("")
        while cell_len(word) > width:
            lines[-1] = _crop(word, width)
            word = word[len(lines[-1]) :]
            lines.append("")
        lines[-1] = word
    return [Text(line.replace(_GLUE, " ").rstrip(), style=style) for line in lines]


def command(text: str, width: int, *, label: str, style: str = "") -> list[Text]:
    """A command after a label, whole: where it is too wide for one line, lines that a shell takes for one.

    A word that is wider than `width` is not broken, since half of a path is none.
    """
    words = _arguments(printable(text))
    if len(label) + 1 + cell_len(" ".join(words)) <= width:
        return [Text(f"{label} {' '.join(words)}", style=style)]
    lines, last = [f"{label} {words[0]}"], len(words) - 1
    for place, word in enumerate(words[1:], 1):
        # Room for the mark at its end that says that it goes on.
        if cell_len(f"{lines[-1]} {word}") + (0 if place == last else 2) <= width:
            lines[-1] += f" {word}"
            continue
        lines[-1] += " \\"
        lines.append(" " * _GAP + word)
    return [Text(line, style=style) for line in lines]


def _arguments(text: str) -> list[str]:
    """The words of a command, an option together with its value."""
    words: list[str] = []
    for word in _ARGUMENT.findall(text):
        if words and words[-1].startswith("--") and " " not in words[-1] and not word.startswith("-"):
            words[-1] += f" {word}"
        else:
            words.append(word)
    return words


def cut(name: str, width: int) -> str:
    """The name in at most `width` cells: its two ends with an ellipsis between where it is longer."""
    if cell_len(name) <= width:
        return name
    tail = max(width - 1, 0) // 2
    head = max(width - 1 - tail, 0)
    return f"{_crop(name, head)}…{_crop(name[::-1], tail)[::-1]}"


def cut_apart(names: Sequence[str], width: int) -> dict[str, str]:
    """Each name in at most `width` cells: those that cutting would make one keep the place where they differ."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(cut(name, width), []).append(name)
    texts: dict[str, str] = {}
    for text, group in groups.items():
        texts |= dict.fromkeys(group, text) if len(group) == 1 else _cut_at_difference(group, width)
    return texts


def _cut_at_difference(names: Sequence[str], width: int) -> dict[str, str]:
    """Names that begin and end alike: their beginning, and what follows from where two of them differ first."""
    place, head = min(_first_difference(names[0], name) for name in names[1:]), width // 3
    begin = re.search(r"[^\W_]*\Z", names[0][:place])
    place = max(begin.start() if begin else place, place - _WORD)
    groups: dict[str, list[str]] = {}
    for name in names:
        rest, room = name[place:], width - head - 1
        rest = rest if cell_len(rest) <= room else f"{_crop(rest, room - 1)}…"
        groups.setdefault(f"{_crop(name, head)}…{rest}", []).append(name)
    texts: dict[str, str] = {}
    for text, group in groups.items():
        again = 1 < len(group) < len(names)
        texts |= _cut_at_difference(group, width) if again else dict.fromkeys(group, text)
    return texts


def _first_difference(name: str, other: str) -> int:
    """The place of the first letter in which two names differ."""
    return next(i for i, (one, two) in enumerate(zip_longest(name, other)) if one != two)


def _crop(text: str, width: int) -> str:
    end, used = 0, 0
    for character in text:
        used += cell_len(character)
        if used > width:
            break
        end += 1
    return text[:end]


def _shortened(rows: Sequence[Row], columns: Sequence[Column], widths: dict[int, int]) -> list[Row]:
    """The rows with their names cut to the widths of their columns."""
    cells = [list(row.cells) for row in rows]
    for i, width in widths.items():
        if columns[i].name:
            texts = cut_apart([row[i] for row in cells], width)
            for row in cells:
                row[i] = texts[row[i]]
    return [replace(row, cells=tuple(kept)) for row, kept in zip(rows, cells, strict=True)]


def _fit(columns: Sequence[Column], natural: dict[int, int], width: int) -> dict[int, int]:
    """The width of each column that is kept, by its index; a narrow one comes back where a wide one left room."""
    kept, dropped = list(natural), []
    while (widths := _widths(columns, natural, kept, width)) is None:
        last = max((i for i in kept if columns[i].drop), key=lambda i: columns[i].drop, default=None)
        if last is None:
            return _narrowest(columns, natural, kept, width)
        kept.remove(last)
        dropped.append(last)
    for i in reversed(dropped[:-1]):
        more = _widths(columns, natural, sorted((*kept, i)), width)
        if more is not None:
            kept, widths = sorted((*kept, i)), more
    return widths


def _narrowest(columns: Sequence[Column], natural: dict[int, int], kept: Sequence[int], width: int) -> dict[int, int]:
    """The widths where no column is left that may go: names shorter than their least, then the last columns out."""
    shorter = [
        replace(column, least=min(column.least, _SHORTEST)) if column.least < WHOLE else column for column in columns
    ]
    kept = list(kept)
    while (widths := _widths(shorter, natural, kept, width)) is None:
        if len(kept) == 1:
            only = kept[0]
            return {only: max(width, 1) if columns[only].name and columns[only].least < WHOLE else natural[only]}
        kept.pop()
    return widths


def _widths(
    columns: Sequence[Column], natural: dict[int, int], kept: Sequence[int], width: int
) -> dict[int, int] | None:
    """The widths of some columns, names as short as need be; `None` where there is no room for them."""
    widths = {i: natural[i] for i in kept}
    excess = sum(widths.values()) + _GAP * (len(kept) - 1) - width
    while excess > 0 and (names := [i for i in kept if columns[i].name and widths[i] > columns[i].least]):
        widths[max(names, key=lambda i: widths[i])] -= 1
        excess -= 1
    return widths if excess <= 0 else None


def _line(row: Row, columns: Sequence[Column], widths: dict[int, int], *, swatches: bool) -> Text:
    line = Text(style="bold" if row.strong else "")
    if swatches:
        line.append("■ " if row.mark else "  ", style=row.mark)
    for i, width in widths.items():
        text = cut(row.cells[i], width)
        padding = " " * (width - cell_len(text))
        line.append(" " * _GAP if i else "")
        line.append(text + padding if columns[i].name else padding + text)
    return line


def _bar(fraction: float, width: int) -> str:
    """A bar of eighths of a cell; what is more than nothing shows at least one of them."""
    eighths = max(round(fraction * width * 8), 1 if fraction > 0 else 0)
    full, rest = divmod(min(eighths, width * 8), 8)
    return "█" * full + _BLOCKS[rest].strip()
