"""Write cells and phrases of sections as Markdown: names as code, figures as `units` writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from opanatomy.records.patterns import regex
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report import units
from opanatomy.report.names import printable
from opanatomy.report.section import LABEL, Cell, Name, Phrase

# Text as GitHub-flavoured Markdown that shows it unchanged: no tag, link, mention, reference, formula or heading.
#
# Words that Markdown or GitHub would act on become code. A backslash would not do: mentions (`@everyone`), references
# (`#12`, `GH-12`, a commit), emoji (`:fire:`) and mathematics (`$x$`) are made of the rendered text, and code is kept.


#: Text that Markdown would interpret anywhere, and that GitHub (and GitLab) would.
_ACTIVE: Final = regex(
    r"""
    [\\`*\[\]|~] | <(?=[A-Za-z/!?]) | &(?=[#A-Za-z])     # emphasis, links, tables, tags, entities
    | (?<![A-Za-z0-9])_ | _(?![A-Za-z0-9])               # emphasis, which the middle of a word is not
    | @\w | [#!]\d                                       # mentions, e-mail; issues
    | (?<![A-Za-z0-9])(?:GH-\d|GHSA-|CVE-)               # issues, advisories
    | :// | (?<![A-Za-z0-9])(?:www\.|mailto:|xmpp:)      # addresses
    | (?<![A-Za-z0-9])[0-9a-f]{7,64}(?![A-Za-z0-9])      # commits
    | \$ | :[\w+-]+:                                     # mathematics; emoji
    """,
    re.IGNORECASE | re.VERBOSE,
)
#: Beginnings of a line that make a heading, a quotation, a list, an underline or a rule.
_BLOCK: Final = regex(r"(?:[#>].*|[-+]|[-=:]+|\d+[.)])$")
#: A name between these is code: spaces, a bracket before, punctuation after.
_BEFORE: Final = regex(r"(?:^| )\(?$")
_BEHIND: Final = regex(r"[,;:.)]*(?: |$)")
#: A bar ends a cell, in code too.
_BAR: Final = "&#124;"


def markdown_text(text: str) -> str:
    """Return one-line Markdown that renders as `text` in a paragraph, list or table cell.

    Invisible characters have a mark; surrounding spaces are removed.
    """
    return markdown_line([(text, False)])


def markdown_line(parts: Sequence[tuple[str, bool]]) -> str:
    """Return one-line Markdown for texts and, if flagged, names: as code if delimited by spaces."""
    texts = [printable(text) for text, _ in parts]
    line: list[str] = []
    run = ""
    for index, (text, (_, is_name)) in enumerate(zip(texts, parts, strict=True)):
        if is_name and _BEFORE.search("".join(texts[:index])) and _BEHIND.match("".join(texts[index + 1 :])):
            line += [_words(run, begins=not any(line)), markdown_code(text)]
            run = ""
        else:
            run += text
    return "".join((*line, _words(run, begins=not any(line)))).strip(" ")


def markdown_code(name: str, *, in_cell: bool = True) -> str:
    """Return the name as code; inside a table cell (`in_cell`) a bar is placed between two code spans."""
    text = printable(name).strip(" ")
    return _BAR.join(map(_code, text.split("|"))) if in_cell else _code(text)


def _words(text: str, *, begins: bool) -> str:
    """Return the words, escaping active ones as code; if they begin the line, also a first word that opens a block."""
    words = text.lstrip(" ").split(" ") if begins else text.split(" ")
    first = begins and _BLOCK.match(words[0]) is not None
    return " ".join(
        markdown_code(word) if _ACTIVE.search(word) or (first and not index) else word
        for index, word in enumerate(words)
    )


def _code(text: str) -> str:
    if not text.strip(" "):
        return text
    longest = max(map(len, re.findall("`+", text)), default=0)
    # Code loses one space on each side if it has both.
    padding = " " if text[0] in "` " or text[-1] in "` " else ""
    return f"{'`' * (longest + 1)}{padding}{text}{padding}{'`' * (longest + 1)}"


#: Names, and other texts, of more characters than this are cut in the middle.
NAME: Final = 120
TEXT: Final = 1000


def markdown_cell(cell: Cell, unit: str = "", *, name: int = NAME, text: int = TEXT) -> str:
    """Return a cell or phrase as one line of Markdown; figures omit `unit` if that is written elsewhere.

    Names and other texts over the maximum length are cut in the middle, figures never.
    """
    parts = cell.parts if isinstance(cell, Phrase) else (cell,)
    return markdown_line([_part(part, unit, name, text) for part in parts])


def shortened(name: str, most: int) -> str:
    """Return the two ends of a name of more than `most` characters, with an ellipsis between."""
    if len(name) <= most:
        return name
    tail = max(most - 1, 0) // 2
    return f"{name[: max(most - 1 - tail, 0)]}…{name[len(name) - tail :]}"


def _abridged(text: str, most: int) -> str:
    """Return both ends of a text longer than `most` characters, cut between words if possible, never inside figures."""
    if len(text) <= most or " " not in text:
        return shortened(text, most)
    head, tail = text[: most // 2].rpartition(" ")[0], text[len(text) - most // 2 :].partition(" ")[2]
    # A number at the end would stand without its unit.
    while head[-1:].isdigit():
        head = head.rpartition(" ")[0]
    return f"{head} … {tail}"


def _part(part: Cell, unit: str, name: int, text: int) -> tuple[str, bool]:
    """Return the text of a part, and whether it is a name."""
    if part is None:
        return "", False
    if isinstance(part, Name):
        return shortened(part.name, name), True
    if isinstance(part, OperatorClass):
        return LABEL[part], False
    if isinstance(part, str):
        quoted = len(part) > 2 and part[0] == part[-1] == "`" and "`" not in part[1:-1]
        return (part[1:-1], True) if quoted else (_abridged(part, text), False)
    assert not isinstance(part, Phrase)
    return units.text_of(part, unit), False
