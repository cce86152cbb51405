"""The manual page of `opanatomy`, made of the parser that reads its command line; `docs/renew.py` writes it."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator, Sequence
from datetime import date
from importlib import import_module
from pathlib import Path

from opanatomy.cli.parser import EXAMPLES, EXIT_CODES, HelpFormatter, make_parser
from opanatomy.version import __version__

PAGE = Path(__file__).parent / "opanatomy.1"
ENVIRONMENT = (
    ("COLUMNS", "width of the report, where stdout is not a terminal or another width is wanted"),
    ("NO_COLOR", "set to anything: no colour"),
    ("HF_HUB_OFFLINE", "set to 1: the Hub is not asked, what is in its cache is used"),
    ("XDG_CACHE_HOME", "folder of the cache, instead of ~/.cache"),
)
FILES = (("~/.cache/opanatomy", "measured peaks and the summaries of ranks; what is in it can be made again"),)


def manual_page(changed: str) -> str:
    """The page in the man macros of roff, in ASCII; `changed` is when what it says last changed."""
    parser = make_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    lines = [
        '.\\" Made by docs/renew.py of the options in opanatomy/options.py: change these, not this file.',
        f'.TH OPANATOMY 1 {changed} "opanatomy {__version__}" "User Commands"',
        ".nh",
        ".ad l",
        *_section("NAME", _body(f"opanatomy - {_lead(parser)[0].lower()}{_lead(parser)[1:].rstrip('.')}")),
        *_section("SYNOPSIS", _synopses(commands)),
        *_section("EXAMPLES", _examples(EXAMPLES)),
        *_section("COMMANDS", [line for name in commands.choices for line in _command(name, commands)]),
        *_section("OPTIONS", _options(parser._action_groups, of_command=False)),
        *_section("EXIT STATUS", _terms(EXIT_CODES)),
        *_section("ENVIRONMENT", _terms(ENVIRONMENT)),
        *_section("FILES", _terms(FILES)),
    ]
    return "\n".join(lines) + "\n"


def renew() -> None:
    """Write the page of today's options."""
    page = PAGE.read_text(encoding="ascii") if PAGE.exists() else ""
    PAGE.write_text(renewed(page, date.today().isoformat()), encoding="ascii")


def renewed(page: str, today: str) -> str:
    """The page as it is to be: with the date that it has where nothing else changes."""
    known = re.search(r"^\.TH OPANATOMY 1 (\S+)", page, re.MULTILINE)
    same = manual_page(known[1]) if known else None
    return same if same == page else manual_page(today)


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    yield f'.SH "{title}"' if " " in title else f".SH {title}"
    yield from lines


def _synopses(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> list[str]:
    lines = []
    for name, command in commands.choices.items():
        rest = str(command.usage).removeprefix("%(prog)s ")
        lines += [f".B opanatomy {name}", _text(rest), ".br"]
    return lines[:-1]


def _command(name: str, commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> list[str]:
    parser = commands.choices[name]
    examples = getattr(import_module(f"opanatomy.cli.verbs.{name}"), "EXAMPLES", ())
    return [
        f".SS opanatomy {_text(name)}",
        *_body(_lead(parser)),
        *([".PP", "Examples:"] if examples else []),
        *_examples(examples),
        *_options(parser._action_groups, of_command=True),
    ]


def _lead(parser: argparse.ArgumentParser) -> str:
    """What a command does, without its examples."""
    return " ".join((parser.description or "").partition("\n\nexamples:")[0].split())


def _examples(examples: Sequence[tuple[str, str]]) -> list[str]:
    lines = []
    for what, command in examples:
        lines += [".TP", f".B {_text(command)}", *_body(what)]
    return lines


def _options(groups: Sequence[argparse._ArgumentGroup], *, of_command: bool) -> list[str]:
    formatter = HelpFormatter("opanatomy", width=10_000)
    lines: list[str] = []
    for group in groups:
        left_out = (argparse._SubParsersAction, *([argparse._HelpAction] if of_command else []))
        actions = [action for action in group._group_actions if not isinstance(action, left_out)]
        if actions and of_command:
            lines += [".PP", f"{_text(str(group.title)).capitalize()}:"]
        for action in actions:
            said = formatter._expand_help(action) if action.help else ""
            lines += [".TP", f".B {_text(formatter._format_action_invocation(action))}", *_body(said)]
    return lines


def _terms(terms: Sequence[tuple[str, str]]) -> list[str]:
    return [line for term, meaning in terms for line in (".TP", f".B {_text(term)}", *_body(meaning))]


def _body(text: str) -> list[str]:
    """A paragraph in lines, which roff fills."""
    return [_text(line) for line in textwrap.wrap(text, 72, break_on_hyphens=False, break_long_words=False)]


def _text(text: str) -> str:
    """Text that roff shows as it is: hyphens that can be pasted, no escape, no request."""
    for character, escape in (("\\", "\\e"), ("-", "\\-"), ("'", "\\(aq"), ("~", "\\(ti"), ('"', "\\(dq")):
        text = text.replace(character, escape)
    return f"\\&{text}" if text.startswith(".") else text
