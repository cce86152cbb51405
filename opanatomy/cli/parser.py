"""Make the parser of the command line from the verbs' files and the declared options; it imports nothing slow."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NoReturn

from opanatomy.cli.stdout import write_out
from opanatomy.cli.verbs import VERBS, verb_named
from opanatomy.errors import OpanatomyError, UsageError
from opanatomy.options import Kind, Option, from_text
from opanatomy.report.formats import FORMATS
from opanatomy.version import __version__

# Layout of help: the command and its examples first, then its options; words are broken at spaces only.


#: Lines of help are not longer than this, however wide the terminal.
_MAX_WIDTH: Final = 100
_INDENT: Final = "  "


class HelpFormatter(argparse.HelpFormatter):
    """Fill paragraphs and keep indented lines; names with hyphens stay whole, so that they can be pasted."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **options)
        self._width = min(self._width, _MAX_WIDTH)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(_filled(block, width, indent) for block in text.strip("\n").split("\n\n"))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Return `-o, --output FILE`, with the value written once."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"

    def _format_action(self, action: argparse.Action) -> str:
        """Return the commands as a list, without their metavar in the usage."""
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
    """Fill a paragraph to lines of at most `width`; the indented lines of a block stay unchanged."""
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
    """Return the description of a command, and its examples: each what it does, then the command."""
    if not examples:
        return description
    lines = [line for what, command in examples for line in (f"{_INDENT}# {what}", f"{_INDENT}{command}")]
    return "\n".join((description, "", "examples:", *lines))


def usage_of(positionals: Iterable[argparse.Action]) -> str:
    """Return a one-line usage: positional arguments, then `[options]`; a script's own arguments come last."""
    positionals = tuple(positionals)
    ends = any(action.nargs == argparse.REMAINDER for action in positionals)
    words = [*map(_written, positionals)]
    return " ".join(("%(prog)s", "[options]", *words) if ends else ("%(prog)s", *words, "[options]"))


def _written(action: argparse.Action) -> str:
    name = str(action.metavar or action.dest)
    return {"*": f"[{name} ...]", "+": f"{name} [...]", "?": f"[{name}]", "...": f"{name} [...]"}.get(
        str(action.nargs), name
    )


_SUMMARY: Final = (
    "See where each training step's time, FLOPs, memory traffic and memory go, by operator class, phase and module, and"
    " how far each is from the hardware's limits."
)
EXAMPLES: Final = (
    ("profile a training script without changing it", "opanatomy run train.py"),
    (
        "run one step of a model and see where its time goes",
        "opanatomy profile google-bert/bert-large-uncased --batch 4",
    ),
    ("analyze a torch.profiler trace", "opanatomy analyze trace.json.gz"),
    ("where the difference between two runs comes from", "opanatomy compare before.json after.json"),
)
EXIT_CODES: Final = (
    ("0", "done"),
    ("1", "failed; one line on stderr says why, and what to do"),
    ("2", "wrong usage"),
    ("3", "a check failed, --fail-if was true or unknown, or --for does not fit"),
    ("130", "interrupted"),
)
#: Shells supported by `--print-completion`.
SHELLS: Final = ("bash", "zsh", "fish", "tcsh")


class ParserExit(SystemExit):
    """Raised when the parser is done: help or the version is printed, or the complaint."""

    code: int


class Parser(argparse.ArgumentParser):
    """`argparse` with one-line errors that suggest the nearest word; options cannot be abbreviated."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": HelpFormatter, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Complain of unknown arguments: name the verbs that take such an option, else the nearest option."""
        parsed, others = super().parse_known_args(args, namespace)
        if others:
            self.error(f"unknown {' '.join(others)}{self._option_meant(others, getattr(parsed, 'verb', None))}")
        return parsed, others

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help and version; unlike argparse's own, raise if stdout takes nothing."""
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
        if match := re.fullmatch(r"argument (\S+): expected one argument", message):
            flag = match[1].rpartition("/")[2]
            message = f"no value after {flag} - write {flag}=VALUE if the value begins with a dash"
        from opanatomy.io.redact import mask_secrets

        line = "".join(character if character.isprintable() else " " for character in mask_secrets(message))
        self.exit(2, f"{self.prog}: {line} (see {self.prog} --help)\n")

    def _option_meant(self, others: list[str], verb: str | None) -> str:
        from difflib import get_close_matches

        wrong = next((word.partition("=")[0] for word in others if word.startswith("-")), None)
        if wrong is None:
            return ""
        if wrong == "--runs":
            return " - opanatomy compare --run 'profile ...' --run 'profile ...' --times N runs two sides, interleaved"
        for action in self._actions:
            if not action.option_strings and wrong == f"--{action.dest}":
                return f" - write {action.metavar} without {wrong}"
        verbs = [verb for verb in VERBS if any(wrong in option.flags for option in verb_named(verb).OPTIONS)]
        if verbs:
            return f" - put it after {verb}" if verb in verbs else f" - it is an option of {', '.join(verbs)}"
        near = [flag for flag in self._option_string_actions if flag.startswith(wrong) and wrong.startswith("--")]
        near = near[:1] or get_close_matches(wrong, self._option_string_actions, n=1, cutoff=0.6)
        return f" - did you mean {near[0]}?" if near else ""


class _PrintCompletion(argparse.Action):
    """Print a shell's completion script for all commands, and exit."""

    def __call__(self, parser: Any, namespace: Any, values: Any, _option: str | None = None) -> None:
        write_out(completion_script(parser, values), machine_readable=True)
        parser.exit()


def _near_verb(word: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, VERBS, n=1, cutoff=0.5)
    if near:
        return f" - did you mean '{near[0]}'?"
    if word.endswith((".json", ".json.gz", ".zip")) and not word.endswith("config.json"):
        return f" - did you mean 'analyze {word}'?"
    if word[:1].isalpha() or word[:1] in "./~":
        return f" - did you mean 'profile {word}'?"
    return f" - use one of {', '.join(sorted(VERBS))}"


def make_parser(verb: str | None = None) -> argparse.ArgumentParser:
    """Build the parser of `opanatomy`: of all verbs, or of one, without importing the others."""
    parser = Parser(
        prog="opanatomy",
        usage="%(prog)s COMMAND [options]",
        description=described(_SUMMARY, EXAMPLES),
        epilog="\n".join(("exit codes:", *(f"{_INDENT}{code:<5}{meaning}" for code, meaning in EXIT_CODES))),
        add_help=False,
    )
    subparsers = parser.add_subparsers(
        dest="verb", title="commands", metavar="COMMAND", required=True, parser_class=Parser, prog="opanatomy"
    )
    options = parser.add_argument_group("options")
    options.add_argument("-h", "--help", action="help", help="show this help and exit; after a command, its help")
    options.add_argument(
        "--print-completion",
        action=_PrintCompletion,
        choices=SHELLS,
        metavar="SHELL",
        help=f"print a completion script for this shell: {', '.join(SHELLS)}",
    )
    options.add_argument("--version", action="version", version=f"opanatomy {__version__}", help="show the version")
    for name, summary in VERBS.items():
        command = subparsers.add_parser(name, help=summary)
        command.set_defaults(parse=parse)
        if verb in (None, name):
            file = verb_named(name)
            add_options(command, file.OPTIONS, getattr(file, "MOST_USED", ()))
            command.description = described(file.DESCRIPTION, file.EXAMPLES)
            command.usage = usage_of(action for action in command._actions if not action.option_strings)
            command._positionals.title = "arguments"
    return parser


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse another command's arguments, for a verb that runs it; report errors and exit 2 as for its own."""
    return make_parser(words[0]).parse_args(words)


# --------------------------------------------------------------------------------------------------- declared options


#: The first heading of a verb's help, before `options`.
MOST_USED: Final = "most used"


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option], most_used: Sequence[str] = ()) -> None:
    """Give a verb's parser the options that are declared, each in its group, those of these names in the first one."""
    groups: dict[str, Any] = {"": parser}
    if most_used:
        groups[MOST_USED] = parser.add_argument_group(MOST_USED)
        parser._action_groups.insert(1, parser._action_groups.pop())  # behind the arguments
        options = sorted(options, key=lambda option: (*most_used, option.name).index(option.name))
    for option in options:
        heading = MOST_USED if option.name in most_used and not option.positional else option.group
        if heading not in groups:
            groups[heading] = parser.add_argument_group(heading)
        group = groups[heading]
        help_ = option.description.replace("{formats}", " or ".join((", ".join(FORMATS[:-1]), FORMATS[-1])))
        if option.positional:
            nargs = None if option.positional == "1" else option.positional
            default = {"default": option.default} if nargs == "?" else {}
            added = group.add_argument(option.name, nargs=nargs, metavar=option.metavar, help=help_, **default)
        elif option.kind is Kind.SWITCH:
            added = group.add_argument(*option.flags, dest=option.name, action="store_true", help=help_)
        else:
            closed = option.choices and not option.is_open
            shown = "{" + ",".join(choice.name for choice in option.choices) + "}" if closed else None
            settings: dict[str, Any] = {
                "metavar": option.metavar or shown,
                "type": partial(from_text, option),
                "default": option.default,
            }
            if option.kind in (Kind.PAIRS, Kind.TEXTS):
                settings |= {"action": "append", "default": []}
            elif option.bare is not None:
                settings |= {"nargs": "?", "const": option.bare, "type": _bare(parser, option)}
            added = group.add_argument(*option.flags, dest=option.name, help=help_, **settings)
        vars(added)["option"] = option  # for its completion


def _bare(parser: argparse.ArgumentParser, option: Option) -> Callable[[str], Any]:
    """Return the type of a flag with optional value; it would also take the next word, even MODEL, as its value."""

    def read(text: str) -> Any:
        try:
            return from_text(option, text)
        except UsageError as error:
            raise UsageError(
                f"{error}; or put MODEL before the option: {parser.prog} {text} {option.flags[-1]}"
            ) from None

    return read


# Completion by a shell: commands, options, values of an option, built-in models, files; written by shtab.


#: Metavars whose values are files.
_FILES: Final = ("FILE", "TRACE", "REPORT", "SIDE")
_FOLDERS: Final = ("DIR",)
_MODEL: Final = "MODEL"
_TECHNIQUE: Final = "TECHNIQUE"
_MODELS: Final = "_opanatomy_models"


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script that a shell reads once, at its start; `OpanatomyError` without shtab or with an old one."""
    try:
        import shtab
    except ImportError as error:
        raise OpanatomyError(
            f"--print-completion {shell} needs shtab, which is not installed - pip install shtab"
        ) from error
    if shell not in shtab.SUPPORTED_SHELLS:
        known = ", ".join(shtab.SUPPORTED_SHELLS)
        raise OpanatomyError(
            f"--print-completion {shell}: the installed shtab supports only {known} - pip install --upgrade shtab"
        )
    for commands in parser._actions:
        if isinstance(commands, argparse._SubParsersAction):
            for choice in commands._get_subactions():  # a shell shows a line for each command
                commands.choices[choice.dest].description = choice.help
            for command in commands.choices.values():
                for action in command._actions:
                    _prepare(action, {"files": shtab.FILE, "folders": shtab.DIRECTORY})
    return str(shtab.complete(parser, shell, preamble=_preamble(shell))).rstrip("\n") + "\n"


def _prepare(action: argparse.Action, of_kind: dict[str, Any]) -> None:
    """Set the completion of an argument, if it is known; the parser is not used for parsing any more."""
    option: Option | None = getattr(action, "option", None)
    names = str(action.metavar or "").split(":")[0]
    if names == _MODEL:
        # Built-in models and files; only files if a shell takes no more than one kind.
        vars(action)["complete"] = {**of_kind["files"], "bash": _MODELS, "zsh": _MODELS, "fish": f"({_MODELS})"}
    elif names in _FILES:
        vars(action)["complete"] = of_kind["files"]
    elif names in _FOLDERS:
        vars(action)["complete"] = of_kind["folders"]
    elif option is not None and option.name == "format" and not option.choices:
        action.choices = FORMATS
    elif option is not None and option.metavar == _TECHNIQUE:
        from opanatomy.predict.techniques import TECHNIQUE

        action.choices = tuple(TECHNIQUE)
    elif option is not None and option.choices:
        action.choices = tuple(choice.name for choice in option.choices)


def _preamble(shell: str) -> str:
    """Return the function that completes a model, in the language of the shell."""
    from opanatomy.capture.model.catalog import catalog_names

    names = catalog_names()
    words = " ".join(map(shlex.quote, (*names, *(name.split("/")[-1] for name in names))))
    return {
        "bash": f'{_MODELS}() {{\n  compgen -W "{words}" -- "$1"\n  compgen -f -- "$1"\n}}\n',
        "zsh": f"{_MODELS}() {{\n  local -a models\n  models=({words})\n  compadd -a models\n  _files\n}}\n",
        "fish": f"function {_MODELS}\n  printf '%s\\n' {words}\n  __fish_complete_path (commandline -ct)\nend\n",
    }.get(shell, "")
