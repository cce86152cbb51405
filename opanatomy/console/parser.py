"""The command line as a parser, made of the verbs' files and of the declared options; it imports nothing slow."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final, NoReturn

from opanatomy.commands import verbs
from opanatomy.console.help import HelpFormatter, described, usage_of
from opanatomy.console.stdout import write_out
from opanatomy.errors import UsageError
from opanatomy.option_values import Kind, Option, from_text
from opanatomy.report.formats import format_names
from opanatomy.version import __version__

EXAMPLES: Final = (
    (
        "run one step of a model and see where its time goes",
        "opanatomy profile google-bert/bert-large-uncased --batch 4",
    ),
    ("the same of a trace that torch.profiler wrote", "opanatomy analyze trace.json.gz"),
    ("where the difference of two runs comes from", "opanatomy compare before.json after.json"),
)
_ENDING: Final = "exit codes: 0 done, 1 failed, 2 wrong usage, 3 a check or gate was not met, 130 interrupted"
#: The commands that most people begin with; the others follow by name.
_FIRST: Final = ("profile", "analyze", "compare", "techniques")
#: The shells that `--print-completion` knows.
SHELLS: Final = ("bash", "zsh", "fish", "tcsh")


class ParserExit(SystemExit):
    """The parser is done: help or the version is printed, or the complaint."""

    code: int


class Parser(argparse.ArgumentParser):
    """`argparse` whose complaint is one line that names the nearest right word; options are written in full."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": HelpFormatter, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Complain of what is not known where the options of the verb are."""
        parsed, others = super().parse_known_args(args, namespace)
        if others:
            self.error(f"unknown {' '.join(others)}{self._near_option(others)}")
        return parsed, others

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help and version; unlike argparse's own, a stdout that takes nothing is not kept quiet."""
        if file is sys.stdout:
            write_out(message, machine_readable=False)
        else:
            super()._print_message(message, file)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Leave, with `message` on stderr."""
        if message:
            self._print_message(message, sys.stderr)
        raise ParserExit(status)

    def error(self, message: str) -> NoReturn:
        """Exit 2 with `message` on stderr."""
        match = re.search(r"argument COMMAND: invalid choice: '([^']*)'", message)
        if match:
            message = f"no command {match[1]!r}{_near_verb(match[1])}"
        from opanatomy.redaction.texts import spoken

        line = "".join(character if character.isprintable() else " " for character in spoken(message))
        self.exit(2, f"{self.prog}: {line} (see {self.prog} --help)\n")

    def _near_option(self, others: list[str]) -> str:
        from difflib import get_close_matches

        wrong = next((word.partition("=")[0] for word in others if word.startswith("-")), None)
        if wrong is None:
            return ""
        near = get_close_matches(wrong, self._option_string_actions, n=1, cutoff=0.6)
        return f" - did you mean {near[0]}?" if near else ""


class _PrintCompletion(argparse.Action):
    """Print the completion of a shell for all commands, and leave."""

    def __call__(self, parser: Any, namespace: Any, values: Any, _option: str | None = None) -> None:
        from opanatomy.console.completion import completion_script

        write_out(completion_script(parser, values), machine_readable=True)
        parser.exit()


def _near_verb(word: str) -> str:
    from difflib import get_close_matches

    names = verbs()
    near = get_close_matches(word, names, n=1, cutoff=0.5)
    if near:
        return f" - did you mean '{near[0]}'?"
    if word.endswith((".json", ".json.gz", ".zip")) and not word.endswith("config.json"):
        return f" - did you mean 'analyze {word}'?"
    if word[:1].isalpha() or word[:1] in "./~":
        return f" - did you mean 'profile {word}'?"
    return f" - the first word is one of {', '.join(names)}"


def make_parser() -> argparse.ArgumentParser:
    """The parser of `opanatomy`."""
    parser = Parser(
        prog="opanatomy",
        usage="%(prog)s COMMAND [options]",
        description=described("See where a training step's time, arithmetic, data movement and memory go.", EXAMPLES),
        epilog=_ENDING,
        add_help=False,
    )
    subparsers = parser.add_subparsers(
        dest="verb", title="commands", metavar="COMMAND", required=True, parser_class=Parser, prog="opanatomy"
    )
    options = parser.add_argument_group("options")
    options.add_argument("-h", "--help", action="help", help="show this help and exit; after a command, its help")
    options.add_argument(
        "--print-completion", action=_PrintCompletion, choices=SHELLS, metavar="SHELL",
        help=f"print a script that has the shell complete words: {', '.join(SHELLS)}",
    )  # fmt: skip
    options.add_argument("--version", action="version", version=f"opanatomy {__version__}", help="show the version")
    for name in sorted(verbs(), key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)):
        verb = import_module(f"opanatomy.commands.{name}")
        command = subparsers.add_parser(name, help=verb.SUMMARY)
        verb.add_arguments(command)
        _describe(command, getattr(verb, "EXAMPLES", ()))
    return parser


def _describe(parser: argparse.ArgumentParser, examples: Sequence[tuple[str, str]]) -> None:
    """Give the help of a command its examples, and a usage of one line."""
    parser.description = described(parser.description or "", examples)
    parser.usage = usage_of(action for action in parser._actions if not action.option_strings)
    parser._positionals.title = "arguments"


# --------------------------------------------------------------------------------------------------- declared options


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Give a verb's parser the options that are declared, each in its group."""
    groups: dict[str, Any] = {"": parser}
    for option in options:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        group = groups[option.group]
        if option.positional:
            nargs = None if option.positional == "1" else option.positional
            added = group.add_argument(option.name, nargs=nargs, metavar=option.metavar, help=_help(option))
        elif option.kind is Kind.SWITCH:
            added = group.add_argument(*option.flags, dest=option.name, action="store_true", help=_help(option))
        else:
            added = group.add_argument(
                *option.flags, dest=option.name, help=_help(option), **_with_value(parser, option)
            )
        vars(added)["option"] = option  # for what completes it


def _help(option: Option) -> str:
    names = format_names()
    return option.description.replace("{formats}", " or ".join((", ".join(names[:-1]), names[-1])))


def _with_value(parser: argparse.ArgumentParser, option: Option) -> dict[str, Any]:
    """The arguments of `argparse` for an option that takes a value."""
    closed = option.choices and not option.is_open
    shown = "{" + ",".join(choice.name for choice in option.choices) + "}" if closed else None
    settings: dict[str, Any] = {"metavar": option.metavar or shown, "type": partial(from_text, option)}
    if option.kind in (Kind.PAIRS, Kind.TEXTS):
        return {**settings, "action": "append", "default": []}
    if option.bare is not None:
        settings |= {"nargs": "?", "const": option.bare, "type": _bare(parser, option)}
    return {**settings, "default": option.default}


def _bare(parser: argparse.ArgumentParser, option: Option) -> Callable[[str], Any]:
    """The reader of a flag that may stand alone: it takes what follows for its value, MODEL too."""

    def read(text: str) -> Any:
        try:
            return from_text(option, text)
        except UsageError as error:
            raise UsageError(f"{error} - MODEL goes before it: {parser.prog} {text} {option.flags[-1]}") from None

    return read
