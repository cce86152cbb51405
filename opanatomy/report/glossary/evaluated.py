"""A formula of the glossary evaluated on a report: each key with its figure, and what comes out of them.

A formula is evaluated where it is one of keys alone: `(sum of classes[].time_ns) / step.count`. `a[].b` is a figure of
each row of a table, `sum of a[].b` that of all of them; `.b` after `a.c` is `a.b`; several formulas are divided by
commas. What has other words in it is for a reader, and says nothing here.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.techniques import Techniques
from opanatomy.report.section import (
    ByteRate,
    Bytes,
    Count,
    FlopRate,
    Flops,
    Name,
    Phrase,
    Quantity,
    Rate,
    Share,
    Time,
    phrase,
)

#: Rows of a table that are worked, one by one.
_SHOWN: Final = 4
#: From here on a number has no fraction that counts.
_WHOLE: Final = 1e6
_KEY: Final = r"\.?[a-z][a-z0-9_]*(?:\[-?\d*\])?(?:\.[a-z][a-z0-9_]*(?:\[-?\d*\])?)*"
_TOKEN: Final = re.compile(rf"\s*(?:(?P<sum>sum of )?(?P<key>(?!x\b){_KEY})|(?P<nano>10\^9)|(?P<mark>[-+/x()]|\d+))")
_PART: Final = re.compile(r"([a-z0-9_]+)(?:\[(-?\d*)\])?")
#: The unit of a key by how it ends; what theory gives are ratios.
_UNITS: Final = (
    (r"theory_\w+", ()), (r"flops_per_second", (("FLOP", 1), ("s", -1))), (r"bytes_per_second", (("B", 1), ("s", -1))),
    (r"bytes", (("B", 1),)), (r"_ns", (("ns", 1),)), (r"flops", (("FLOP", 1),)),
)  # fmt: skip
#: Keys that are called otherwise on the page.
_WORDS: Final = {"step.count": "steps"}
#: The operators of a formula by those of Python.
_OPERATORS: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
#: What a row of a table is called by, the first of these that it has.
_LABELS: Final = (
    "name", "kernel", "operator", "module", "collective", "component", "operator_class", "figure", "phase", "option",
)  # fmt: skip


class _Amount(Struct, frozen=True):
    """A number of some unit: "ns", "B", "FLOP" or none; over and under the line as exponents."""

    number: float
    units: tuple[tuple[str, int], ...] = ()

    def __add__(self, other: _Amount) -> _Amount:
        return _Amount(self.number + other.number, self.units or other.units)

    def __sub__(self, other: _Amount) -> _Amount:
        return _Amount(self.number - other.number, self.units or other.units)

    def __mul__(self, other: _Amount) -> _Amount:
        return _Amount(self.number * other.number, _together(self.units, other.units, 1))

    def __truediv__(self, other: _Amount) -> _Amount:
        return _Amount(self.number / other.number, _together(self.units, other.units, -1))


def _together(
    one: Iterable[tuple[str, int]], other: Iterable[tuple[str, int]], sign: int
) -> tuple[tuple[str, int], ...]:
    powers = dict(one)
    for unit, power in other:
        powers[unit] = powers.get(unit, 0) + sign * power
    return tuple(sorted((unit, power) for unit, power in powers.items() if power))


def evaluated(formula: str, report: Anatomy | Techniques) -> Iterator[Phrase]:
    """A line for each formula of keys that the report has figures of, of a table one for each of its first rows."""
    last = ""
    for clause in re.split(r"[,;] ", formula):
        tokens, last = _tokens(clause.rpartition(" = ")[2], last)
        if tokens:
            yield from _lines(tokens, report)


# -------------------------------------------------------------------------------------------------------------- reading


class _Key(Struct, frozen=True):
    """A key as the formula has it, in full, and whether it is summed over its rows."""

    path: str
    summed: bool


def _tokens(text: str, last: str) -> tuple[list[_Key | str], str]:
    """The keys and the marks between them, none where there is any other word; and the last key in full."""
    tokens: list[_Key | str] = []
    place = 0
    while place < len(text.rstrip()):
        match = _TOKEN.match(text, place)
        if match is None:
            return [], last
        if key := match["key"]:
            last = last.rpartition(".")[0] + key if key.startswith(".") else key
            tokens.append(_Key(last, match["sum"] is not None))
        else:
            tokens.append("10^9" if match["nano"] else match["mark"])
        place = match.end()
    return (tokens if any(isinstance(token, _Key) for token in tokens) else []), last


# ----------------------------------------------------------------------------------------------------------- evaluating


def _lines(tokens: list[_Key | str], report: Anatomy | Techniques) -> Iterator[Phrase]:
    tables = {token.path.rpartition("]")[0] for token in tokens if isinstance(token, _Key) and _is_of_rows(token)}
    if not tables:
        line = _line(tokens, report, None)
        if line is not None:
            yield line
        return
    if len(tables) > 1:
        return
    if len(tokens) == 1:
        return  # the page has these
    table = tables.pop() + "]"
    rows = _found(report, table)
    lines = [(row, line) for row in rows if (line := _line(tokens, report, (table, row))) is not None]
    yield from (phrase("{}: {}", _label(row), line) for row, line in lines[:_SHOWN])
    if len(lines) > _SHOWN:
        yield phrase("and {} more", Count(len(lines) - _SHOWN))


def _is_of_rows(key: _Key) -> bool:
    return "[]" in key.path and not key.summed


def _line(tokens: list[_Key | str], report: Anatomy | Techniques, row: tuple[str, Any] | None) -> Phrase | None:
    """The formula with its figures, of one row of its table; `None` where one of them is not known."""
    said: list[Phrase | str] = []
    amounts: list[_Amount] = []
    code = ""
    for token in tokens:
        if isinstance(token, str):
            said.append(token)
            code += {"x": "*", "10^9": "n"}.get(token, token)
            continue
        amount = _amount(token, report, row)
        if amount is None:
            return None
        code += f"v[{len(amounts)}]"
        amounts.append(amount)
        said.append(phrase("{} {}", f"sum of {_name(token)}" if token.summed else _name(token), _exact(amount)))
    try:
        result = _value(ast.parse(code, mode="eval").body, amounts)
    except (SyntaxError, ZeroDivisionError):
        return None
    text = phrase(_spaced(said), *(part for part in said if isinstance(part, Phrase)))
    if len(tokens) == 1 and not result.units:
        return text
    of_a_whole = "/" in tokens and not any(isinstance(token, _Key) and _counts_steps(token) for token in tokens)
    return phrase("{} = {}", text, _rounded(result, of_a_whole=of_a_whole))


def _counts_steps(key: _Key) -> bool:
    return key.path == "step.count" or key.path.endswith(".steps")


def _name(key: _Key) -> str:
    return _WORDS.get(key.path) or re.sub(r"_(?:ns|bytes)$", "", key.path.rpartition(".")[2]).replace("_", " ")


def _spaced(said: list[Phrase | str]) -> str:
    text = " ".join("{}" if isinstance(part, Phrase) else part for part in said)
    return text.replace("( ", "(").replace(" )", ")")


def _value(node: ast.AST, amounts: list[_Amount]) -> _Amount:
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, amounts), _value(node.right, amounts))  # type: ignore[no-any-return]
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return amounts[int(node.slice.value)]  # type: ignore[arg-type]
    if isinstance(node, ast.Constant):
        return _Amount(float(node.value))  # type: ignore[arg-type]
    if isinstance(node, ast.Name):  # nanoseconds a second
        return _Amount(1e9, (("ns", 1), ("s", -1)))
    raise SyntaxError("no formula")


def _amount(key: _Key, report: Anatomy | Techniques, row: tuple[str, Any] | None) -> _Amount | None:
    if row is not None and _is_of_rows(key):
        values = _found(row[1], key.path.removeprefix(f"{row[0]}."))
    else:
        values = _found(report, key.path)
    known = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if not known or (len(known) > 1 and not key.summed):
        return None
    units = next((units for ending, units in _UNITS if re.search(rf"{ending}$", key.path)), ())
    return _Amount(sum(known), units)


def _found(record: Any, path: str) -> list[Any]:
    """What stands under a path, of each row of the tables on it."""
    values = [record]
    for part in path.split("."):
        match = _PART.fullmatch(part)
        if match is None:
            return []
        values = [getattr(value, match[1], None) for value in values]
        if match[2] == "":
            values = [item for value in values for item in value or ()]
        elif match[2] is not None:
            values = [value[int(match[2])] for value in values if value and -len(value) <= int(match[2]) < len(value)]
    return [value for value in values if value is not None]


# -------------------------------------------------------------------------------------------------------------- writing


def _label(row: Any) -> Name | str:
    """What a row is called by."""
    rank = getattr(row, "rank", None)
    if rank is not None:
        return f"rank {rank}"
    named = (getattr(row, name, None) for name in _LABELS)
    return next((Name(str(name)) for name in named if name), "a row")


def _exact(amount: _Amount) -> str:
    """The amount with every digit."""
    unit = "/".join(unit for unit, _ in amount.units)
    whole = isinstance(amount.number, int) or abs(amount.number) >= _WHOLE
    number = f"{round(amount.number):,}" if whole else f"{amount.number:,.6g}"
    return f"{number} {unit}".rstrip()


def _rounded(amount: _Amount, *, of_a_whole: bool) -> str | Quantity:
    """The amount as the page has it; a number without a unit may be a share `of_a_whole`."""
    number, units = amount.number, dict(amount.units)
    if units == {"ns": 1}:
        return Time(number)
    if units == {"B": 1}:
        return Bytes(number)
    if units == {"FLOP": 1}:
        return Flops(number)
    if units == {"B": 1, "s": -1}:
        return ByteRate(number)
    if units == {"FLOP": 1, "s": -1}:
        return FlopRate(number)
    if units == {"s": -1}:
        return Rate(number, "")
    return Share(number, 1) if not units and of_a_whole else f"{number:,.6g}"
