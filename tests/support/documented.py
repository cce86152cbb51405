"""What the pages show: commands, the text that follows them, and snippets of Python, in the order of the page."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from tests.support.paths import ROOT

#: A line that begins with one of these is a command, whether it is indented or in a block of `sh`.
_PROGRAMS: Final = ("opanatomy", "torchrun", "accelerate", "zcat", "make", "pip", "python")
_SHELL: Final = ("sh", "bash", "console")
_VARIABLE: Final = re.compile(r"[A-Z_]+=\S*")


class Command(Struct, frozen=True, kw_only=True):
    """A command as the page has it, and the block of `text` after it, which is what it prints."""

    line: str
    printed: str | None = None

    @property
    def words(self) -> list[str]:
        """The words behind variables of the environment, without a comment."""
        words = shlex.split(self.line, comments=True)
        while _VARIABLE.fullmatch(words[0]):
            del words[0]
        return words


class Snippet(Struct, frozen=True, kw_only=True):
    """A block of Python, and the block of `text` after it, which is what it prints."""

    code: str
    printed: str | None = None


def current_and_renewed(name: str) -> tuple[str, str]:
    """A page of docs/ as it is, and as docs/renew.py makes it today."""
    spec = importlib.util.spec_from_file_location("renew_docs", ROOT / "docs" / "renew.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    return page, module.renewed(page, name)


def shown_on(page: Path) -> tuple[Command | Snippet, ...]:
    """The commands and snippets of a page."""
    shown: list[Command | Snippet] = []
    for language, text in _blocks(page.read_text(encoding="utf-8")):
        if language == "python":
            shown.append(Snippet(code=text))
        elif language == "text" and shown:
            last = shown.pop()
            assert last.printed is None, f"{page.name}: two blocks of text after {last}"
            if isinstance(last, Command):
                shown.append(Command(line=last.line, printed=text))
            else:
                shown.append(Snippet(code=last.code, printed=text))
        elif language in _SHELL:
            shown += [Command(line=line) for line in text.splitlines() if _is_command(line)]
    return tuple(shown)


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """The language and the text of each fenced block; an indented line is one of `sh`."""
    language: str | None = None
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        if line.startswith("```"):
            if language is not None:
                yield language, "".join(lines)
                language = None
            else:
                language, lines = line[3:].strip(), []
        elif language is not None:
            lines.append(line)
        elif line.startswith("    "):
            yield _SHELL[0], line[4:]


def _is_command(line: str) -> bool:
    first = next((word for word in line.split() if not _VARIABLE.fullmatch(word)), "")
    return not line.startswith(" ") and first in _PROGRAMS
