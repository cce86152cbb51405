"""Figures as reports print them, read back: what they say, and which exact values they may stand for.

By docs/report.md alone: nothing of opanatomy is imported.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final, NamedTuple

_PREFIXES: Final = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_UNITS: Final = {
    **{unit: ("ns", Decimal(factor)) for unit, factor in (
        ("ns", 1), ("us", 10**3), ("ms", 10**6), ("s", 10**9), ("min", 60 * 10**9), ("h", 3600 * 10**9),
    )},
    **{prefix + unit: (unit, Decimal(10) ** power) for prefix, power in _PREFIXES.items()
       for unit in ("B", "FLOP", "FLOP/s", "B/s", "") if prefix + unit},
    "%": ("%", Decimal(1)), "samples/s": ("samples/s", Decimal(1)), "tokens/s": ("tokens/s", Decimal(1)),
}  # fmt: skip
_NUMBER: Final = re.compile(
    r"(?P<sign>[≥~<>]?[+-]?)(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)"
    rf"(?: (?P<unit>{'|'.join(sorted(map(re.escape, _UNITS), key=len, reverse=True))})(?![\w/]))?"
)


class Figure(NamedTuple):
    """A number that was printed: its unit in base units, the value, and half of its last digit."""

    text: str
    unit: str
    value: Decimal
    half: Decimal
    sign: str

    def _is_beyond(self, number: Decimal) -> bool:
        """Whether that is what a bound stands for: it would be rounded to nothing, or to the whole."""
        if abs(self.value) == 2 * self.half:
            return 0 < number <= (self.half if self.unit in ("%", "") else abs(self.value))
        return self.unit == "%" and self.value + 2 * self.half == 100 and 100 - self.half <= number < 100

    def admits(self, exact: float) -> bool:
        """Whether this is how `exact` may be printed: rounded to the last digit, or beyond a bound."""
        number = Decimal(exact)
        if {*"<>"} & {*self.sign}:
            return self._is_beyond(abs(number))
        return abs(number - self.value) <= self.half * (1 + Decimal("1e-9"))


#: A number with its unit, as an expression without groups.
FIGURE: Final = re.sub(r"\?P<\w+>", "?:", _NUMBER.pattern)


def figures_in(text: str) -> list[Figure]:
    """The figures of a line, in order."""
    return [figure for figure, _ in places_in(text)]


def places_in(text: str) -> list[tuple[Figure, int]]:
    """The figures of a line, in order, and where in it each begins."""
    return [(_figure(match), match.start()) for match in _NUMBER.finditer(text)]


def _figure(match: re.Match[str]) -> Figure:
    digits = match["number"].replace(",", "")
    unit, factor = _UNITS.get(match["unit"] or "", ("", Decimal(1)))
    value = Decimal(digits) * factor * (-1 if "-" in match["sign"] else 1)
    decimals = len(digits.partition(".")[2])
    return Figure(match.group(), unit, value, factor * Decimal(10) ** -decimals / 2, match["sign"])
