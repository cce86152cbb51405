"""What a rule is: families of names and ordered regular expressions, and how a name is looked up in them."""

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

#: Characters of a name that rules see: what follows in a longer one is template arguments, and costs time.
LONGEST = 4096


class Family(Struct, frozen=True):
    """Names that share one answer; `names` is text, a name to each word."""

    title: str
    operator_class: OperatorClass | None
    names: str
    delegates: bool = False
    contains: tuple[OperatorClass, ...] = ()
    composite: bool = False
    annotation: bool = False


class Pattern(Struct, frozen=True):
    """One regular expression and its answer; it is searched, so `^` anchors it where that matters."""

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
    """Every rule in the order it is asked, for reading."""

    operators: tuple[Family | RuleTable, ...]
    kernels: tuple[RuleTable, ...]


def answer(source: Family | Pattern, rule: str) -> Classification:
    """The classification that a family or a pattern stands for, decided by `rule`."""
    return Classification(
        operator_class=source.operator_class, rule=rule, delegates=source.delegates, contains=source.contains,
        composite=source.composite, annotation=source.annotation,
    )  # fmt: skip


def first_match(tables: Iterable[RuleTable], name: str) -> Classification | None:
    """The answer of the first pattern of the tables that matches `name`; `None` where none does."""
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
    """The expression, compiled when it is first asked: a trace needs a part of them only."""
    return re.compile(expression, flags)


def own_name(name: str) -> str:
    """The qualified name of a demangled C++ function: `ns::f` of `std::enable_if<...>::type ns::f<int>(int)`.

    A name that C++ did not write, or that is still mangled, comes back whole.
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
