"""How help reads: the command and its examples first, then its options; words are broken at spaces only."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, Final

#: Lines of help are not longer than this, however wide the terminal.
_WIDEST: Final = 100
_INDENT: Final = "  "


class HelpFormatter(argparse.HelpFormatter):
    """Paragraphs are filled and indented lines kept; names with hyphens stay whole, so that they can be pasted."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **options)
        self._width = min(self._width, _WIDEST)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(_filled(block, width, indent) for block in text.strip("\n").split("\n\n"))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """`-o, --output FILE`: what it takes is said once."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"

    def _format_action(self, action: argparse.Action) -> str:
        """The commands as a list of their own, without the word that stands for them in the usage."""
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        names = {choice.dest: str(choice.help) for choice in action._get_subactions()}
        left = max(map(len, names)) + 2
        lines = []
        for name, summary in names.items():
            first, *others = self._split_lines(summary, max(self._width - left - 4, 20))
            lines += [f"    {name:<{left}}{first}", *(" " * (left + 4) + other for other in others)]
        return "\n".join(lines) + "\n"


def _filled(block: str, width: int, indent: str) -> str:
    """A paragraph in lines of at most `width`; the indented lines of a block as they are."""
    lines: list[str] = []
    prose: list[str] = []
    for line in [*block.splitlines(), _INDENT]:
        if not line.startswith(_INDENT):
            prose.append(line)
            continue
        text = " ".join(prose)
        lines += textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False) if text else []
        lines += [line] if line.strip() else []
        prose = []
    return "\n".join(indent + line for line in lines)


def described(description: str, examples: Sequence[tuple[str, str]]) -> str:
    """The description of a command, and its examples: each what it does, then the command."""
    if not examples:
        return description
    lines = [line for what, command in examples for line in (f"{_INDENT}# {what}", f"{_INDENT}{command}")]
    return "\n".join((description, "", "examples:", *lines))


def usage_of(positionals: Iterable[argparse.Action]) -> str:
    """The usage in one line: what has no flag, then that there are options."""
    return " ".join(("%(prog)s", *map(_written, positionals), "[options]"))


def _written(action: argparse.Action) -> str:
    name = str(action.metavar or action.dest)
    return {"*": f"[{name} ...]", "+": f"{name} [...]", "?": f"[{name}]"}.get(str(action.nargs), name)
