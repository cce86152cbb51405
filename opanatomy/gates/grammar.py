"""Gates as they are written, `time > +5%`: a figure of the report, a comparison, and a value with its unit.

A value with a sign is of the change, in percent of the first side (`+5%`, `-10%`) or in the figure's unit (`+100MB`);
one without is of the side itself (`250ms`, `40%`, `16 GB`, `3.2e12`). `if significant` after it is of changes alone.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from fractions import Fraction
from typing import Final, NoReturn

from msgspec import Struct

from opanatomy.errors import UsageError
from opanatomy.report.metric_names import definition_of, metric_named


class Of(Enum):
    """What a gate's value is compared with."""

    VALUE = "the figure"
    DIFFERENCE = "after - before"
    CHANGE = "(after - before) / before"


class Gate(Struct, frozen=True, kw_only=True):
    """One gate, which is not met where its comparison holds.

    `value` is in the figure's base unit, of a change a fraction. With `significant` the claim must hold as well.
    """

    text: str
    figure: str
    unit: str
    of: Of
    comparison: str
    value: Fraction
    significant: bool = False

    def holds(self, number: Fraction, limit: Fraction) -> bool:
        """Whether `number` is above, or below, `limit` as the gate has it."""
        return COMPARISONS[self.comparison](number, limit)


COMPARISONS: Final[Mapping[str, Callable[[Fraction, Fraction], bool]]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
_EXAMPLES: Final = "such as 'time > +5%', 'memory > 16 GB' or 'idle_share > 40%'"
_PLAIN: Final = str.maketrans({"≥": ">=", "≤": "<=", "\N{MINUS SIGN}": "-"})
_GATE: Final = re.compile(r"([^<>=!]*)([<>=!]+)([^<>=!]*)")
#: A number of no more digits than any figure has: what is parsed exactly must not be of any length.
_NUMBER: Final = r"(?:[0-9]{1,24}(?:\.[0-9]{0,24})?|\.[0-9]{1,24})(?:e[+-]?[0-9]{1,2})?(?!e?[+-]?[0-9.,])"
_VALUE: Final = re.compile(rf"([+-]?) ?({_NUMBER}) ?(.*)", re.IGNORECASE)
_SIGNIFICANT: Final = re.compile(r" if significant$", re.IGNORECASE)
_LONGEST: Final = 120
_PERCENT: Final = Fraction(1, 100)
_DECIMAL: Final = {prefix: Fraction(1000**power) for power, prefix in enumerate(("", "k", "m", "g", "t", "p"))}
_BINARY: Final = {f"{prefix}i": Fraction(1024**power) for power, prefix in enumerate("kmgtp", 1)}
#: What a unit is in the base unit of a figure, by that and in small letters.
_UNITS: Final[Mapping[str, Mapping[str, Fraction]]] = {
    "ns": {
        "ns": Fraction(1), "us": Fraction(10**3), "μs": Fraction(10**3), "ms": Fraction(10**6), "s": Fraction(10**9),
        "min": Fraction(60 * 10**9), "h": Fraction(3600 * 10**9),
    },
    "bytes": {f"{prefix}b": factor for prefix, factor in {**_DECIMAL, **_BINARY}.items()},
    "flop": {
        f"{prefix}{unit}": factor for prefix, factor in _DECIMAL.items() for unit in ("", "flop", "flops")
    },
    "fraction": {"": Fraction(1), "%": _PERCENT, "pp": _PERCENT},
}  # fmt: skip
#: What a message names of them.
_NAMED: Final = {
    "ns": "ns, us, ms, s, min or h", "bytes": "B, kB, MB, GB, TB, KiB, MiB, GiB or TiB",
    "flop": "none, FLOP, kFLOP, MFLOP, GFLOP, TFLOP or PFLOP",
    "fraction": "%, of a difference pp (percentage points), or none for a fraction",
}  # fmt: skip


def gates_of(texts: Iterable[str]) -> tuple[Gate, ...]:
    """The gates that these texts are; raises `UsageError` that says what is wrong with one and how to write it."""
    return tuple(map(_gate, texts))


def gates_of_one(texts: Iterable[str]) -> tuple[Gate, ...]:
    """The gates on a single report; raises `UsageError` for one on a change, too."""
    gates = gates_of(texts)
    for gate in gates:
        if gate.of is not Of.VALUE:
            _wrong(gate.text, "a change is of two reports, here is one - leave the sign out, or use opanatomy compare")
    return gates


def _wrong(text: str, why: str) -> NoReturn:
    raise UsageError(f"gate {text!r}: {why}") from None


def _gate(given: str) -> Gate:
    text = " ".join(given.split())
    if len(text) > _LONGEST:
        _wrong(f"{text[:_LONGEST]}...", f"longer than any gate - {_EXAMPLES}")
    plain = text.translate(_PLAIN)
    significant = _SIGNIFICANT.search(plain) is not None
    parts = _GATE.fullmatch(_SIGNIFICANT.sub("", plain))
    if parts is None:
        several = len(re.findall(r"[<>]", plain)) > 1
        _wrong(text, "that is more than one - give each as a gate of its own" if several else
               f"no gate - write FIGURE > VALUE, {_EXAMPLES}")  # fmt: skip
    name, comparison, value = (part.strip() for part in parts.groups())
    if comparison not in COMPARISONS:
        _wrong(text, f"{comparison} is not a comparison of a gate - one of {', '.join(COMPARISONS)}")
    if not name:
        _wrong(text, f"names no figure - write FIGURE {comparison} VALUE, {_EXAMPLES}")
    figure, unit = _figure(text, name)
    of, number = _value(text, name, figure, unit, value)
    if significant and of is Of.VALUE:
        _wrong(text, "only a change is tested - give the value a sign, such as +5%, or leave out if significant")
    return Gate(
        text=text, figure=figure, unit=unit, of=of, comparison=comparison, value=number, significant=significant
    )


def _figure(text: str, name: str) -> tuple[str, str]:
    """The figure's own name and its base unit."""
    try:
        figure = metric_named(name)
    except UsageError as error:
        _wrong(text, str(error))
    definition = definition_of(figure)
    return figure, "" if definition is None else definition.unit


def _value(text: str, name: str, figure: str, unit: str, value: str) -> tuple[Of, Fraction]:
    """What the value is of, and the value in base units."""
    parts = _VALUE.fullmatch(value)
    if parts is None:
        _wrong(text, f"{value!r} is not a value - a number with its unit, such as +5%, 1.5ms or 3.2e12" if value else
               f"has no value - {_EXAMPLES}")  # fmt: skip
    sign, digits, written = parts.groups()
    number = Fraction(digits) * (-1 if sign == "-" else 1)
    small = written.casefold()
    if small == "%" and sign:
        return Of.CHANGE, number * _PERCENT
    if small == "%" and unit != "fraction":
        _wrong(text, f"{figure} is not a share - a change has a sign: {name} > +{digits}%")
    factor = _units(unit).get(small)
    if factor is None:
        _wrong_unit(text, figure, unit, written)
    if not small and number:
        _check_bare(text, name, figure, unit, number)
    if small == "pp" and not sign:
        _wrong(text, f"percentage points are for a difference - write +{digits}pp, or {digits}% for the share itself")
    return Of.DIFFERENCE if sign else Of.VALUE, number * factor


def _units(unit: str) -> Mapping[str, Fraction]:
    """The units that a figure in this one is given in; what is counted takes its own name and prefixes."""
    if unit in ("ns", "bytes"):
        return {"": Fraction(1), **_UNITS[unit]}
    own = {f"{prefix}{ending}": factor for prefix, factor in _DECIMAL.items() for ending in ("", unit, f" {unit}")}
    return _UNITS.get(unit, own)


def _wrong_unit(text: str, figure: str, unit: str, written: str) -> NoReturn:
    named = _NAMED.get(unit, f"none, or {unit}")
    _wrong(text, f"{written!r} is not a unit of {figure} - its units: {named}; a change may be in %, with its sign")


def _check_bare(text: str, name: str, figure: str, unit: str, number: Fraction) -> None:
    """Refuse a number without a unit where it may be meant in another."""
    if unit in ("ns", "bytes") and not re.search(rf"(?:^|[_.\s-]){unit}$", name.strip().casefold()):
        _wrong(text, f"{figure} needs a unit: {_NAMED[unit]}, or % for a change - such as {name} > +5%")
    if unit == "fraction" and abs(number) > 1:
        _wrong(text, f"{figure} is a fraction, at most 1 - write the share with %")
