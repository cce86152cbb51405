"""Text as GitHub-flavoured Markdown that shows it as it is: no tag, link, mention, reference, formula or heading.

Mentions (`@everyone`), references (`#12`, `GH-12`, a commit), emoji (`:fire:`) and mathematics (`$x$`) are made by
GitHub from the rendered text, where no backslash is left; only code is kept from it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from opanatomy.report.printable import printable

#: What GitHub (and GitLab) would make a link, an image or a formula of, wherever it stands in a word.
_LINKED: Final = re.compile(
    r"""
    @\w | [#!]\d | \bGH-\d | \b(?:GHSA|CVE)-     # mentions, e-mail; issues; advisories
    | :// | \bwww\. | \b(?:mailto|xmpp):         # addresses
    | (?<!\w)[0-9a-f]{7,64}(?!\w)                # commits
    | \$ | :[\w+-]+:                             # mathematics; emoji
    """,
    re.IGNORECASE | re.VERBOSE,
)
_ACTIVE: Final = re.compile(r"[\\`*\[\]|~]|<(?=[A-Za-z/!?])|&(?=[#A-Za-z])|(?<![A-Za-z0-9])_+|_+(?![A-Za-z0-9])")
#: What at the beginning of a line is a heading, a quotation, a list, an underline or a rule.
_BLOCK: Final = re.compile(r"[#>]|[-+](?= |$)|[-=:](?=[-=: ]*$)")
_NUMBERED: Final = re.compile(r"\A(\d+)([.)])(?= |$)")
#: What a name may stand between to be code: spaces, a bracket before, punctuation behind.
_BEFORE: Final = re.compile(r"(?:^| )\(?$")
_BEHIND: Final = re.compile(r"[,;:.)]*(?: |$)")


def markdown_text(text: str) -> str:
    """Markdown on one line that is rendered as `text`, in a paragraph, a list or the cell of a table.

    What GitHub would link becomes code, word by word; characters that cannot be seen have a mark, spaces around go.
    """
    return _beginning(_words(printable(text)))


def markdown_line(parts: Sequence[tuple[str, bool]]) -> str:
    """Markdown on one line of texts and, where the flag is set, names: as code where they stand between spaces."""
    texts = [printable(text) for text, _ in parts]
    line, run = [], ""
    for place, (text, (_, is_name)) in enumerate(zip(texts, parts, strict=True)):
        if is_name and _BEFORE.search("".join(texts[:place])) and _BEHIND.match("".join(texts[place + 1 :])):
            line += [_words(run), markdown_code(text)]
            run = ""
        else:
            run += text
    return _beginning("".join((*line, _words(run))))


def markdown_code(name: str, *, in_cell: bool = True) -> str:
    """The name as code; `in_cell` of a table a bar in it stands between two parts of code."""
    text = printable(name).strip(" ")
    return r"\|".join(map(_code, text.split("|"))) if in_cell else _code(text)


def _words(text: str) -> str:
    return " ".join(markdown_code(word) if _LINKED.search(word) else _escaped(word) for word in text.split(" "))


def _code(text: str) -> str:
    if not text.strip(" "):
        return text
    longest = max(map(len, re.findall("`+", text)), default=0)
    # Code loses one space on each side where it has both.
    padding = " " if text[0] in "` " or text[-1] in "` " else ""
    return f"{'`' * (longest + 1)}{padding}{text}{padding}{'`' * (longest + 1)}"


def _escaped(word: str) -> str:
    return _ACTIVE.sub(lambda match: "".join(f"\\{character}" for character in match.group()), word)


def _beginning(line: str) -> str:
    """The line as no block of its own: `# x`, `- x`, `1. x`, `===`."""
    line = line.strip(" ")
    return f"\\{line}" if _BLOCK.match(line) else _NUMBERED.sub(r"\1\\\2", line)
