"""Format numbers, for the whole project: integers in base units in, text with the right unit out.

Three significant digits, a space before the unit, `-` for unknown values. Rounding never overstates: more than nothing
is never printed as 0, less than the whole never as 100 %.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

from opanatomy.report import section
from opanatomy.report.section import Quantity, value_of

UNKNOWN: Final = "-"

#: From which value on a unit is used, its size, and its name.
_Scale = Sequence[tuple[int, int, str]]
#: Seconds up to ten minutes: a sum is in the unit of its parts.
_TIME: Final[_Scale] = (
    (1, 1, "ns"),
    (10**3, 10**3, "us"),
    (10**6, 10**6, "ms"),
    (10**9, 10**9, "s"),
    (600 * 10**9, 60 * 10**9, "min"),
    (3600 * 10**9, 3600 * 10**9, "h"),
)
_DECIMAL: Final = tuple(
    (1000**power, 1000**power, prefix) for power, prefix in enumerate(("", "k", "M", "G", "T", "P", "E"))
)


def duration(ns: float | None) -> str:
    """Return a duration of `ns` nanoseconds: `812 ns`, `4.12 ms`, `90.0 s`, `15.0 min`."""
    return _with_unit(ns, _TIME, "")


def duration_change(ns: float | None) -> str:
    """Return a difference of durations: `+812 ns`, `-4.12 ms`, `0`."""
    if not ns:
        return UNKNOWN if ns is None else "0"
    return f"+{duration(ns)}" if ns > 0 else duration(ns)


def size(count: float | None) -> str:
    """Return bytes in decimal units: `1.34 GB` is 1.34 * 10^9 bytes."""
    return _with_unit(count, _DECIMAL, "B")


def size_change(count: float | None) -> str:
    """Return a difference of sizes: `+1.34 GB`, `-512 B`, `0`."""
    if not count:
        return UNKNOWN if count is None else "0"
    return f"+{size(count)}" if count > 0 else size(count)


def flops(count: float | None) -> str:
    """Return floating-point operations: `335 GFLOP`."""
    return _with_unit(count, _DECIMAL, "FLOP")


def flop_rate(per_second: float | None) -> str:
    """Return floating-point operations a second: `312 TFLOP/s`."""
    return _with_unit(per_second, _DECIMAL, "FLOP/s")


def byte_rate(per_second: float | None) -> str:
    """Return bytes a second: `900 GB/s`."""
    return _with_unit(per_second, _DECIMAL, "B/s")


def prefixed(value: float | None) -> str:
    """Return a number with its decimal prefix, for a column whose header names the unit: `335 G`."""
    return _with_unit(value, _DECIMAL, "")


def count(number: float | None) -> str:
    """Return a count in full, with thousands separators: `335,143,938`."""
    return UNKNOWN if number is None else f"{number:,.0f}" if isinstance(number, float) else f"{number:,d}"


def ratio(value: float | None) -> str:
    """Return a quotient without a unit: `2.00`, `0.44`, `27.3`, `1,234`; a little more than nothing is `<0.01`."""
    if value is None:
        return UNKNOWN
    if 0 < value < 0.005:
        return "<0.01"
    for decimals in (2, 1):
        text = f"{value:.{decimals}f}"
        if sum(character.isdigit() for character in text) <= 3:
            return text
    return f"{value:,.0f}"


def rate(per_second: float | None, what: str) -> str:
    """Return `what` a second, without prefixes: `0.0788 samples/s`, `1,234 samples/s`."""
    if per_second is None:
        return UNKNOWN
    if 0 < per_second < 1e-4:
        return f"<0.0001 {what}/s"
    return f"{per_second:.3g} {what}/s" if per_second < 0.9995 else f"{ratio(per_second)} {what}/s"


def share(part: float | None, whole: float | None, *, decimals: int = 1, at_least: bool = False) -> str:
    """Return `part` of `whole` in percent: `38.0 %`; `<0.1 %` and `>99.9 %` where rounding would give 0 or 100 %.

    Return `-` if either is unknown or `whole` is 0. A lower bound (`at_least`) has the digits it needs: `≥ 0.04 %`.
    """
    if part is None or not whole:
        return UNKNOWN
    if at_least:
        text = share(part, whole, decimals=decimals)
        return f"≥ {f'{100 * part / whole:.4g} %' if text[0] in '<>' else text}"
    if part < 0:
        return f"-{share(-part, whole, decimals=decimals)}"
    text = f"{100 * part / whole:.{decimals}f}"
    least = 10**-decimals
    if part > 0 and float(text) == 0:
        return f"<{least:.{decimals}f} %"
    if part < whole and float(text) >= 100:
        return f">{100 - least:.{decimals}f} %"
    return f"{text} %"


def change(new: float | None, old: float | None) -> str:
    """Return by how much `new` differs from `old`: `+3.5 %`, `-12.0 %`; `-` if one is unknown or `old` is 0."""
    if new is None or not old:
        return UNKNOWN
    difference = 100 * (new - old) / old
    text = f"{difference:+,.1f}"
    if difference and float(text.replace(",", "")) == 0:
        return "<+0.1 %" if difference > 0 else ">-0.1 %"
    return f"{text} %" if difference else "0.0 %"


def per_second(amount: float | None, ns: float | None) -> float | None:
    """Return `amount` in `ns` nanoseconds as a rate per second; `None` if either is unknown or no time passed."""
    return None if amount is None or not ns else amount * 1e9 / ns


def plain(value: float | None) -> str:
    """Return a number for a machine: six significant digits, no separators or exponent; empty if unknown."""
    return "" if value is None else f"{Decimal(f'{value:.6g}'):f}"


def noun(number: float | None, singular: str) -> str:
    """Return a count with its noun: `1 thread`, `1,234 threads`, `8 batches`."""
    plural = re.sub(r"(?<![aeiou])y$", "ie", singular) + ("es" if singular.endswith("ch") else "s")
    return f"{count(number)} {singular if number == 1 else plural}"


def figure(value: float | None, unit: str, *, sign: str = "-") -> str:
    """Return a figure in the unit of its source: whole if exact enough, else three digits; `+` shows each sign."""
    if value is None:
        return UNKNOWN
    return f"{value:{sign},.0f} {unit}" if abs(value) >= 100 else f"{value:{sign}.3g} {unit}"


def in_unit(value: float | None, unit: str) -> str:
    """Return a value in a unit of the metrics: `4.12 ms`, `1.34 GB`, `335 GFLOP`, `38.0 %`, `27.3 samples/s`."""
    if unit == "fraction":
        return share(value, 1)
    scale = {"ns": (_TIME, ""), "bytes": (_DECIMAL, "B"), "flop": (_DECIMAL, "FLOP")}.get(unit)
    if scale is not None:
        return _with_unit(value, *scale)
    if value is None:
        return UNKNOWN
    number = f"{int(value):,d}" if value == int(value) else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return number if unit == "ratio" else f"{number} {unit}"


def digits_of(value: float, unit: str) -> str:
    """Return a value in a unit of the metrics with all digits that matter: `250,000,001 ns`, `40.00001 %`."""
    number, name = (100 * value, "%") if unit == "fraction" else (value, "" if unit == "ratio" else unit)
    return f"{number:,.12g} {name}".rstrip()


def exact(number: int | None, unit: str) -> str:
    """Return one side of a comparison with every digit; for times only if they are short."""
    if number is None:
        return "unknown"
    return duration(number) if unit == "ns" and abs(number) >= 1_000_000 else f"{number:,}"


def text_of(quantity: Quantity, unit: str = "") -> str:
    """Return a quantity as text, without its own unit if that is `unit`, which is written elsewhere."""
    if unit and unit == _UNIT.get(type(quantity)):
        value = value_of(quantity)
        return _bound(quantity, value) + prefixed(value)
    return _WRITTEN[type(quantity)](quantity)


def _bound(quantity: Quantity, value: float | None) -> str:
    return "≥" if value is not None and getattr(quantity, "at_least", False) else ""


def coverage(part: section.Share) -> str:
    """Return, in brackets, how much of the whole a share is known for; empty if all of it, or unknown."""
    return f" ({share(part.covered, 1, decimals=0)})" if part.partial and part.part is not None else ""


def _count(things: section.Count) -> str:
    number = noun(things.number, things.noun) if things.noun else count(things.number)
    return _bound(things, things.number) + (f"~{number}" if things.assumed else number)


#: The units that a column may have for its cells.
_UNIT: Final[dict[type, str]] = {section.Flops: "FLOP", section.FlopRate: "FLOP/s", section.ByteRate: "B/s"}
_WRITTEN: Final[dict[type, Callable[[Any], str]]] = {
    section.Time: lambda cell: duration(cell.ns),
    section.Bytes: lambda cell: _bound(cell, cell.bytes) + size(cell.bytes),
    section.Flops: lambda cell: _bound(cell, cell.flops) + flops(cell.flops),
    section.FlopRate: lambda cell: flop_rate(cell.flops_per_second),
    section.ByteRate: lambda cell: byte_rate(cell.bytes_per_second),
    section.Rate: lambda cell: rate(cell.per_second, cell.what),
    section.Count: _count,
    section.Ratio: lambda cell: _bound(cell, cell.value) + ratio(cell.value),
    section.Share: lambda cell: (
        share(cell.part, cell.whole, decimals=cell.decimals, at_least=cell.at_least) + coverage(cell)
    ),
    section.Change: lambda cell: change(cell.new, cell.old),
    section.TimeChange: lambda cell: duration_change(cell.ns),
    section.BytesChange: lambda cell: size_change(cell.bytes),
    section.Figure: lambda cell: figure(cell.value, cell.unit, sign="+" if cell.difference else "-"),
    section.Exact: lambda cell: exact(cell.number, cell.unit),
}


def _with_unit(value: float | None, scale: _Scale, unit: str) -> str:
    if value is None:
        return UNKNOWN
    if value < 0:
        return f"-{_with_unit(-value, scale, unit)}"
    number, prefix = _scaled(value, scale)
    return f"{number} {prefix}{unit}".rstrip()


def _scaled(value: float, scale: _Scale) -> tuple[str, str]:
    """Return the number with three significant digits and its prefix."""
    index = max((i for i, (least, _, _) in enumerate(scale) if value >= least), default=0)
    _, factor, prefix = scale[index]
    if index == 0 and value == int(value):
        return str(int(value)), prefix
    text = ratio(value / factor)
    upper = scale[index + 1] if index + 1 < len(scale) else None
    # 999.7 ms and 599.7 s round to 1.00 s and 10.0 min.
    if upper and not text.startswith("<") and float(text.replace(",", "")) * factor >= upper[0]:
        return ratio(upper[0] / upper[1]), upper[2]
    return text, prefix
