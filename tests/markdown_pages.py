"""Markdown as a reader sees it: its tags, the text of its cells, and what GitHub would link in the rest."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from markdown_it import MarkdownIt

#: GitHub's filters over rendered text, which leave code alone: mentions, issues, commits, addresses, emoji, formulas.
_FILTERS = (
    r"(?<![\w`/])@[A-Za-z0-9]",
    r"[A-Za-z0-9._+-]+@[A-Za-z0-9_-]+\.[A-Za-z]",
    r"(?<![\w&])#\d",
    r"(?i)\bgh-\d",
    r"[\w.-]+/[\w.-]+[#@][0-9a-f]",
    r"(?<![0-9A-Za-z])[0-9a-f]{7,40}(?![0-9A-Za-z])",
    r"(?i)(?:https?|ftp)://",
    r"(?i)\bwww\.[a-z0-9]",
    r"(?i)\b(?:mailto|xmpp):",
    r":[a-z0-9_+-]+:",
    r"\$[^$]+\$",
    r"(?i)\b(?:cve|ghsa)-",
)
_VOID = {"br", "hr", "img", "input"}


class Page(HTMLParser):
    """The tags of a page and its texts, each with the tags around it."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.cells: list[str] = []
        self.parts: list[tuple[tuple[str, ...], str]] = []
        self.attributes: list[tuple[str, str | None]] = []
        self._open: list[tuple[str, int]] = []
        self._blocks: list[tuple[str, list[str]]] = []
        self.blocks: list[tuple[str, str]] = []
        self.feed(html)
        self.close()
        self.cells = [text for tag, text in self.blocks if tag in ("td", "th")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in _VOID:
            self._blocks.append((tag, []))

    def handle_endtag(self, tag: str) -> None:
        assert self._blocks, f"</{tag}> of nothing"
        name, texts = self._blocks.pop()
        assert name == tag, f"</{tag}> closes <{name}>"
        text = "".join(texts)
        self.blocks.append((tag, text.strip("\n")))
        if self._blocks:
            self._blocks[-1][1].append(text)

    def handle_data(self, data: str) -> None:
        self.parts.append((tuple(tag for tag, _ in self._blocks), data))
        if self._blocks:
            self._blocks[-1][1].append(data)

    def handle_comment(self, data: str) -> None:
        self.tags.add("comment")

    @property
    def text(self) -> str:
        """All of it, without the line ends between blocks."""
        return "".join(text for _, text in self.parts).strip("\n")

    def texts_of(self, *tags: str) -> list[str]:
        """The text of each element of these tags, in the order in which they end."""
        return [text for tag, text in self.blocks if tag in tags]


def html_of(markdown: str) -> str:
    """The HTML of GitHub-flavoured Markdown, tags in it included."""
    return str(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown))


def page_of(markdown: str) -> Page:
    """The page that the Markdown makes."""
    return Page(html_of(markdown))


def linked_by_github(page: Page) -> list[str]:
    """What GitHub's filters would change in the text of the page that is no code."""
    texts, run = [], ""
    for tags, text in page.parts:
        if "code" in tags:
            texts.append(run)
            run = ""
        else:
            run += text
    texts.append(run)
    return [match.group() for text in texts for pattern in _FILTERS for match in re.finditer(pattern, text)]
