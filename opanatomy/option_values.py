"""One option as it is declared, and what its value may be: by name, by text of the command line, or by Python.

Choices are forgiving: case, `-` and `_` do not matter, and the names that torch, the Hub and the Trainer have for the
same are taken too.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Any, TypeAlias

from msgspec import Struct

from opanatomy.errors import UsageError


class Kind(Enum):
    """What the value of an option is."""

    TEXT = "text"
    NUMBER = "a whole number"
    #: A number above 0.
    AMOUNT = "a number"
    SWITCH = "True or False"
    #: `KEY=VALUE`, as often as wanted: pairs in a tuple.
    PAIRS = "pairs"
    #: A text, as often as wanted.
    TEXTS = "texts"


class Choice(Struct, frozen=True):
    """A value of an option, and what else it is called."""

    name: str
    aliases: tuple[str, ...] = ()


class Option(Struct, frozen=True, kw_only=True):
    """An option by its name in Python; on the command line it is `--name` unless `flag` says otherwise.

    In `help`, `{choices}`, `{default}` and, by the parser, `{formats}` are filled in. With `is_open` other values than
    the `choices` are taken as they are. `bare` is the value of a flag that comes without one. `recorded` is the field
    of `Workload` that has the value of a run.
    """

    name: str
    help: str
    kind: Kind = Kind.TEXT
    default: Any = None
    choices: tuple[Choice, ...] = ()
    is_open: bool = False
    bare: str | None = None
    minimum: int = 0
    maximum: int = 2**31 - 1
    metavar: str | None = None
    flag: str = ""
    short_flag: str = ""
    #: A heading of the help; none for what stands before all of them.
    group: str = ""
    #: How many values an argument without a flag takes, as `argparse` says it; empty for a flag.
    positional: str = ""
    #: The functions of `opanatomy` that it is a keyword of.
    python: tuple[str, ...] = ()
    recorded: str = ""
    #: What makes a text canonical; a `ValueError` of it says what is wrong.
    canonical: Callable[[str], str] | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        """The names on the command line, the long one last."""
        long = self.flag or "--" + self.name.replace("_", "-")
        return (self.short_flag, long) if self.short_flag else (long,)

    @property
    def description(self) -> str:
        """The help, filled in."""
        return self.help.replace("{choices}", _listed(self.choices)).replace("{default}", str(self.default))


#: How a message writes an option and its value.
Spelling: TypeAlias = Callable[[Option, object], str]


def as_flag(option: Option, value: object) -> str:
    """`--batch 0`, as the command line has it."""
    flag = option.flags[-1]
    return flag if value is True else f"{flag} {value}"


def as_argument(option: Option, value: object) -> str:
    """`batch=0`, as Python has it."""
    return f"{option.name}={value!r}"


_ON_COMMAND_LINE: ContextVar[bool] = ContextVar("on_command_line", default=False)


@contextmanager
def on_command_line() -> Iterator[None]:
    """Messages inside name flags; elsewhere they name Python's arguments."""
    token = _ON_COMMAND_LINE.set(True)
    try:
        yield
    finally:
        _ON_COMMAND_LINE.reset(token)


def as_asked(of_command_line: str, of_python: str) -> str:
    """The wording for how this is run: with flags on the command line, or with Python's arguments."""
    return of_command_line if _ON_COMMAND_LINE.get() else of_python


def spelled(option: Option, value: object) -> str:
    """An option and its value as the user writes them: on the command line or in Python."""
    return as_flag(option, value) if _ON_COMMAND_LINE.get() else as_argument(option, value)


def _amount(option: Option, value: Any, spelled: Spelling) -> float:
    try:
        amount = None if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError):
        amount = None
    if amount is None:
        raise UsageError(f"{spelled(option, value)}: must be a number")
    if not 0 < amount < math.inf:
        raise UsageError(f"{spelled(option, value)}: must be above 0, and finite")
    return amount


def from_text(option: Option, text: str) -> Any:
    """The value that the command line's `text` gives an option; `UsageError` that speaks of the flag."""
    if option.kind is Kind.PAIRS:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{as_flag(option, text)}: not of the form key=value")
        return key, value
    if option.kind is Kind.NUMBER:
        try:
            return checked(option, int(text), as_flag)
        except ValueError:
            raise UsageError(f"{as_flag(option, text)}: must be a whole number") from None
    if option.kind is Kind.AMOUNT:
        try:
            return checked(option, float(text), as_flag)
        except ValueError:
            raise UsageError(f"{as_flag(option, text)}: must be a number") from None
    return checked(option, text, as_flag)


def checked(option: Option, value: Any, spelled: Spelling) -> Any:
    """The value of an option, a choice by its own name; `UsageError` for one that it cannot have."""
    if value is None and option.default is None:
        return None
    if option.kind is Kind.NUMBER:
        return _number(option, value, spelled)
    if option.kind is Kind.AMOUNT:
        return _amount(option, value, spelled)
    if option.kind is Kind.SWITCH and not (isinstance(value, int) and value in (0, 1)):
        raise UsageError(f"{spelled(option, value)}: must be {option.kind.value}")
    if option.canonical is not None:
        try:
            return option.canonical(str(value))
        except ValueError as error:
            raise UsageError(f"{spelled(option, value)}: {error}") from None
    if option.choices:
        names = [choice.name for choice in option.choices]
        name = choice_of(value, option.choices)
        if name is None and not option.is_open:
            raise UsageError(f"{spelled(option, value)}: not known - {instead_of(value, names)}")
        return value if name is None else name
    return bool(value) if option.kind is Kind.SWITCH else value


def _number(option: Option, value: Any, spelled: Spelling) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise UsageError(f"{spelled(option, value)}: must be a whole number")
    if number < option.minimum:
        raise UsageError(f"{spelled(option, value)}: must be at least {option.minimum}")
    if number > option.maximum:
        raise UsageError(f"{spelled(option, value)}: must be at most {option.maximum}")
    return number


def named(value: object, names: Iterable[str], spelled: str) -> str:
    """The one of `names` that `value` means; `UsageError` that begins with `spelled` where it is none."""
    choices = [Choice(name) for name in names]
    name = choice_of(value, choices)
    if name is None:
        raise UsageError(f"{spelled}: not known - {instead_of(value, [choice.name for choice in choices])}")
    return name


def choice_of(value: object, choices: Iterable[Choice]) -> str | None:
    """The name of the choice that `value` means (`torch.bfloat16` is `bfloat16`), `None` where there is none."""
    wanted = _plain(str(value))
    return next(
        (choice.name for choice in choices if wanted in map(_plain, (choice.name, *choice.aliases))),
        None,
    )


def instead_of(value: object, names: Iterable[str]) -> str:
    """What to give instead of `value`: the nearest name, and all of them."""
    from difflib import get_close_matches

    plain = {_plain(name): name for name in names}
    near = get_close_matches(_plain(str(value)), plain, n=1, cutoff=0.6)
    return (f"did you mean {plain[near[0]]}? It is " if near else "") + f"one of {', '.join(plain.values())}"


def _plain(name: str) -> str:
    return name.strip().lower().removeprefix("torch.").replace("-", "").replace("_", "")


def _listed(choices: Iterable[Choice]) -> str:
    return ", ".join(choice.name for choice in choices)
