"""Define rules (families of names, ordered regular expressions), and look names up in them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from msgspec import Struct

from opanatomy.records.signature import Classification
from opanatomy.records.taxonomy import OperatorClass

CONTRACTION = OperatorClass.TENSOR_CONTRACTION
NORMALIZATION = OperatorClass.STATISTICAL_NORMALIZATION
ELEMENTWISE = OperatorClass.ELEMENTWISE
MOVEMENT = OperatorClass.DATA_MOVEMENT
COMMUNICATION = OperatorClass.COMMUNICATION
OTHER = OperatorClass.OTHER
UNKNOWN = OperatorClass.UNKNOWN

#: Characters of a name that rules see: the rest of a longer one is template arguments, and costs time.
LONGEST = 4096


class Family(Struct, frozen=True):
    """Names with one common answer; `names` is text with one name in each word."""

    title: str
    operator_class: OperatorClass | None
    names: str
    delegates: bool = False
    contains: tuple[OperatorClass, ...] = ()
    composite: bool = False
    annotation: bool = False


class Pattern(Struct, frozen=True):
    """One regular expression and its answer; it is searched, so it needs `^` to match only the begin."""

    title: str
    operator_class: OperatorClass | None
    expression: str
    delegates: bool = False
    contains: tuple[OperatorClass, ...] = ()
    composite: bool = False
    annotation: bool = False


class RuleTable(Struct, frozen=True):
    """An ordered table of regular expressions: the first that matches decides.

    With `own_name` they see a C++ function's own name only, without template arguments and parameters. With
    `namespaces` they only match names in one of these.
    """

    title: str
    patterns: tuple[Pattern, ...]
    own_name: bool = False
    namespaces: frozenset[str] = frozenset()


class RuleBook(Struct, frozen=True):
    """Every rule in the order of lookup, for display."""

    operators: tuple[Family | RuleTable, ...]
    kernels: tuple[RuleTable, ...]


def answer(source: Family | Pattern, rule: str) -> Classification:
    """Return the classification of a family or a pattern, decided by `rule`."""
    return Classification(
        operator_class=source.operator_class, rule=rule, delegates=source.delegates, contains=source.contains,
        composite=source.composite, annotation=source.annotation,
    )  # fmt: skip


def first_match(tables: Iterable[RuleTable], name: str) -> Classification | None:
    """Return the answer of the first pattern of the tables that matches `name`; `None` if none does."""
    short, namespace = own_name(name), name.partition("::")[0]
    for table in tables:
        if table.namespaces and namespace not in table.namespaces:
            continue
        text = short if table.own_name else name
        for pattern in table.patterns:
            if compiled(pattern.expression).search(text):
                return answer(pattern, f"{table.title}: {pattern.title}")
    return None


@cache
def compiled(expression: str, flags: int = 0) -> re.Pattern[str]:
    """Return the expression, compiled at first use: a trace needs only a part of them."""
    return re.compile(expression, flags)


def own_name(name: str) -> str:
    """Return the qualified name of a demangled C++ function: `ns::f` of `std::enable_if<...>::type ns::f<int>(int)`.

    A name that C++ did not write, or that is still mangled, is returned whole.
    """
    if "<" not in name and "(" not in name:
        return name
    depth = 0
    kept: list[str] = []
    for character in name:
        if character == "<":
            depth += 1
        elif character == ">":
            depth -= 1
        elif depth == 0:
            if character == "(":
                break
            kept.append(character)
    return "".join(kept).strip().rsplit(" ", 1)[-1]
