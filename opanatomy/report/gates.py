"""Judge gates on a comparison, or on one report: whether each is met, and the reason in one line.

Values are compared exactly. A gate is met if its condition is known not to hold. An undecidable gate (an unknown
figure, a lower bound on the wrong side, incomparable sides) is unknown, and so not met.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from fractions import Fraction
from typing import Final, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.analysis.statistics import RUNS_NEEDED
from opanatomy.errors import GateError, UsageError
from opanatomy.io.redact import Redactor, redacted
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.comparison import SIGNIFICANT, Comparison, FigureRow, GateResult, Spread
from opanatomy.records.patterns import regex
from opanatomy.report import units
from opanatomy.report.metrics import definition_of, metric_named, metrics_of

# Gates as they are written, `time > +5%`: a figure of the report, a comparison, and a value with its unit.
#
# A value with a sign is a change, in percent of the first side (`+5%`, `-10%`) or in the figure's unit (`+100MB`); one
# without is a value of the side itself (`250ms`, `40%`, `16 GB`, `3.2e12`). `if significant` after it is for changes
# alone.


class Of(Enum):
    """The kind of number that a gate's value is compared with."""

    VALUE = "the figure"
    DIFFERENCE = "after - before"
    CHANGE = "(after - before) / before"


class Gate(Struct, frozen=True, kw_only=True):
    """One gate, which is not met if its comparison holds.

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
        """Return whether `number` is above, or below, `limit`, as the gate requires."""
        return COMPARISONS[self.comparison](number, limit)


COMPARISONS: Final[Mapping[str, Callable[[Fraction, Fraction], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_EXAMPLES: Final = "such as 'time > +5%', 'memory > 16 GB' or 'idle_share > 40%'"
_PLAIN_SIGNS: Final = str.maketrans({"≥": ">=", "≤": "<=", "\N{MINUS SIGN}": "-"})
_GATE: Final = regex(r"([^<>=!]*)([<>=!]+)([^<>=!]*)")
#: A number of no more digits than any figure has: the length of exactly parsed numbers must be limited.
_NUMBER: Final = r"(?:[0-9]{1,24}(?:\.[0-9]{0,24})?|\.[0-9]{1,24})(?:e[+-]?[0-9]{1,2})?(?!e?[+-]?[0-9.,])"
_VALUE: Final = regex(rf"([+-]?) ?({_NUMBER}) ?(.*)", re.IGNORECASE)
_SIGNIFICANT: Final = regex(r" if significant$", re.IGNORECASE)
_MAX_GATE_LENGTH: Final = 120
_PERCENT: Final = Fraction(1, 100)
_DECIMAL: Final = {prefix: Fraction(1000**power) for power, prefix in enumerate(("", "k", "m", "g", "t", "p"))}
_BINARY: Final = {f"{prefix}i": Fraction(1024**power) for power, prefix in enumerate("kmgtp", 1)}
#: Each unit in a figure's base unit, by base unit and lowercase name.
_UNITS: Final[Mapping[str, Mapping[str, Fraction]]] = {
    "ns": {
        "ns": Fraction(1),
        "us": Fraction(10**3),
        "μs": Fraction(10**3),
        "ms": Fraction(10**6),
        "s": Fraction(10**9),
        "min": Fraction(60 * 10**9),
        "h": Fraction(3600 * 10**9),
    },
    "bytes": {f"{prefix}b": factor for prefix, factor in {**_DECIMAL, **_BINARY}.items()},
    "flop": {f"{prefix}{unit}": factor for prefix, factor in _DECIMAL.items() for unit in ("", "flop", "flops")},
    "fraction": {"": Fraction(1), "%": _PERCENT, "pp": _PERCENT},
}
#: The units that a message names.
_NAMED_UNITS: Final = {
    "ns": "ns, us, ms, s, min or h",
    "bytes": "B, kB, MB, GB, TB, KiB, MiB, GiB or TiB",
    "flop": "FLOP, kFLOP, MFLOP, GFLOP, TFLOP, PFLOP or no unit",
    "fraction": "%, pp (percentage points) for a difference, or no unit for a fraction",
}


def gates_of(texts: Iterable[str]) -> tuple[Gate, ...]:
    """Parse these gates; raise `UsageError` that says what is wrong with one and how to write it."""
    return tuple(map(_gate, texts))


def gates_of_one(texts: Iterable[str]) -> tuple[Gate, ...]:
    """Return the gates on a single report; raise `UsageError` for one on a change, too."""
    gates = gates_of(texts)
    for gate in gates:
        if gate.of is not Of.VALUE:
            _wrong(
                gate.text,
                "a change needs two reports, but there is only one - leave out the sign, or use opanatomy compare",
            )
    return gates


def _wrong(text: str, why: str) -> NoReturn:
    raise UsageError(f"gate {text!r}: {why}") from None


def _gate(given: str) -> Gate:
    text = " ".join(given.split())
    if len(text) > _MAX_GATE_LENGTH:
        _wrong(f"{text[:_MAX_GATE_LENGTH]}...", f"too long - write METRIC > VALUE, {_EXAMPLES}")
    plain = text.translate(_PLAIN_SIGNS)
    significant = _SIGNIFICANT.search(plain) is not None
    parts = _GATE.fullmatch(_SIGNIFICANT.sub("", plain))
    if parts is None:
        several = len(re.findall(r"[<>]", plain)) > 1
        _wrong(
            text,
            "more than one condition - pass each as a separate gate"
            if several
            else f"not a valid condition - write METRIC > VALUE, {_EXAMPLES}",
        )
    name, comparison, value = (part.strip() for part in parts.groups())
    if comparison not in COMPARISONS:
        _wrong(text, f"{comparison} is not a comparison operator - use one of {', '.join(COMPARISONS)}")
    if not name:
        _wrong(text, f"no metric before {comparison} - write METRIC {comparison} VALUE, {_EXAMPLES}")
    try:
        figure = metric_named(name)
    except UsageError as error:
        _wrong(text, str(error))
    definition = definition_of(figure)
    unit = "" if definition is None else definition.unit
    of, number = _value(text, name, figure, unit, value)
    if significant and of is Of.VALUE:
        _wrong(
            text,
            "'if significant' applies only to a change - add a sign to the value (+5%), or omit 'if significant'",
        )
    return Gate(
        text=text, figure=figure, unit=unit, of=of, comparison=comparison, value=number, significant=significant
    )


def _value(text: str, name: str, figure: str, unit: str, value: str) -> tuple[Of, Fraction]:
    """Return the kind of the value, and the value in base units."""
    parts = _VALUE.fullmatch(value)
    if parts is None:
        _wrong(
            text,
            f"{value!r} is not a value - use a number with its unit, such as +5%, 1.5ms or 3.2e12"
            if value
            else f"the value is missing - write METRIC > VALUE, {_EXAMPLES}",
        )
    sign, digits, written = parts.groups()
    number = Fraction(digits) * (-1 if sign == "-" else 1)
    small = written.casefold()
    if small == "%" and sign:
        return Of.CHANGE, number * _PERCENT
    if small == "%" and unit != "fraction":
        _wrong(text, f"{figure} is not a share - for a change in %, add a sign, such as {name} > +{digits}%")
    # A count takes its own name and prefixes.
    own = {f"{prefix}{ending}": factor for prefix, factor in _DECIMAL.items() for ending in ("", unit, f" {unit}")}
    known: Mapping[str, Fraction] = _UNITS.get(unit, own)
    if unit in ("ns", "bytes"):
        known = {"": Fraction(1), **known}
    if small not in known:
        named = _NAMED_UNITS.get(unit, f"{unit} or no unit")
        _wrong(text, f"{written!r} is not a unit of {figure} - use {named}; for a signed change, % works too")
    if not small and number:
        # Refuse a number without a unit if it may be meant in another.
        if unit in ("ns", "bytes") and not re.search(rf"(?:^|[_.\s-]){unit}$", name.strip().casefold()):
            _wrong(text, f"{figure} needs a unit - use {_NAMED_UNITS[unit]}, or % for a change, such as {name} > +5%")
        if unit == "fraction" and abs(number) > 1:
            _wrong(
                text, f"{figure} is a fraction - for a percentage, add % (for a difference in percentage points, pp)"
            )
    if small == "pp" and not sign:
        _wrong(
            text, f"percentage points are only for a difference - write +{digits}pp, or {digits}% for the share itself"
        )
    return Of.DIFFERENCE if sign else Of.VALUE, number * known[small]


#: Figures of the step without the profiler if it was timed, else of the step under it.
_EITHER: Final = frozenset({"step_time_ns", "samples_per_second"})
_PLAIN_STEP: Final = "step_unprofiled_ns"
_UNCHECKED: Final = ", so the gate cannot be checked"


class _Figures(Struct, frozen=True, kw_only=True):
    """The figures of all sides by name; of a comparison the sides' names, and why there is no claim or comparison."""

    rows: dict[str, FigureRow]
    sides: tuple[str, ...] = ("",)
    no_claim: str | None = None
    not_comparable: tuple[str, ...] = ()


def judged(comparison: Comparison, gates: Sequence[Gate]) -> Comparison:
    """Return the comparison with the result of each gate: each later side against the first."""
    figures = _Figures(
        rows={row.name: row for row in comparison.figures},
        sides=tuple(side.name for side in comparison.sides),
        no_claim=comparison.no_claim,
        not_comparable=comparison.not_comparable,
    )
    return replace(comparison, gates=_results(gates, figures))


def judged_report(anatomy: Anatomy, gates: Sequence[Gate]) -> tuple[GateResult, ...]:
    """Return the results of gates on one report, which are on values alone."""
    rows = {
        name: FigureRow(
            name=name,
            unit=metric.unit,
            better=metric.better,
            values=(metric.value,),
            lower_bounds=(True,) if metric.lower_bound else (),
            at_most=() if metric.at_most is None else (metric.at_most,),
        )
        for name, metric in metrics_of(anatomy).items()
    }
    return _results(gates, _Figures(rows=rows))


def require_met(results: Iterable[GateResult]) -> None:
    """Raise `GateError` with a line for each gate that is not met, if any."""
    reasons = [result.line for result in results if not result.met]
    if reasons:
        raise GateError(*reasons)


# ------------------------------------------------------------------------------------------------------------ one gate


def _results(gates: Sequence[Gate], figures: _Figures) -> tuple[GateResult, ...]:
    """Return the result of each gate, without secrets typed in place of a name."""
    redactor = Redactor()
    return tuple(redacted(_result(gate, figures), redactor) for gate in gates)


def _result(gate: Gate, figures: _Figures) -> GateResult:
    """Judge a gate: it is met if its condition is known not to hold on any later side."""
    row = figures.rows.get(gate.figure)
    if row is None:
        near = get_close_matches(gate.figure, figures.rows, n=3, cutoff=0.6)
        instead = f"; similar metrics with a value are {', '.join(near)}" if near else ""
        of = "all sides" if figures.sides[1:] else "the report"
        reason = f"{gate.figure} is unknown for {of}{_UNCHECKED}{instead}"
        return GateResult(gate=gate.text, met=False, unknown=True, reason=reason)
    unlike = _unlike(gate, figures)
    if unlike is not None:
        return GateResult(gate=gate.text, met=False, unknown=True, reason=unlike)
    sides = range(1, len(row.values)) if len(row.values) > 1 else range(1)
    held = {side: _holds(gate, row, side) for side in sides}
    needed = sides if gate.of is Of.VALUE else range(len(row.values))
    missing = [figures.sides[side] or "the report" for side in needed if row.values[side] is None]
    failed = [side for side in sides if held[side]]
    if missing and not failed:
        reason = f"{gate.figure} is unknown for {', '.join(missing)}{_UNCHECKED}"
        return GateResult(gate=gate.text, met=False, unknown=True, reason=reason)
    undecided = [side for side in sides if held[side] is None]
    shown = (failed or undecided or sides)[0]
    basis = ", over all steps, including dissimilar ones" if row.all_steps else ""
    reason = f"{_shown(gate, row, figures, shown)}{basis}{_evidence(gate, row, figures)}"
    result = GateResult(gate=gate.text, met=not failed, reason=reason, measured=_measured(gate, row, shown))
    if undecided and not failed:
        bound = " is a lower bound"
        if gate.of is not Of.VALUE:
            after, before = row.lower_bounds[shown], row.lower_bounds[0]
            one = f"; the {'later' if after else 'earlier'} value is a lower bound"
            bound = "; both values are lower bounds" if after and before else one
        return replace(result, met=False, unknown=True, reason=f"{reason}{bound}{_UNCHECKED}")
    if not failed or not gate.significant:
        return result
    claimed = _claim(row, figures)
    return replace(
        result, met=claimed is False, unknown=claimed is None, reason=reason + (_UNCHECKED if claimed is None else "")
    )


def _holds(gate: Gate, row: FigureRow, side: int) -> bool | None:
    """Return whether the condition holds on this side; `None` if a value is unknown, or a bound does not decide it."""
    value, before = row.values[side], row.values[0]
    if value is None or (before is None and gate.of is not Of.VALUE):
        return None
    if gate.of is Of.VALUE or before is None:
        holds = gate.holds(Fraction(value), gate.value)
    else:
        limit = gate.value * abs(Fraction(before)) if gate.of is Of.CHANGE else gate.value
        holds = gate.holds(Fraction(value) - Fraction(before), limit)
    least, most = _bounds(gate, row, side)
    above = gate.comparison in (">", ">=")
    if least and gate.of is Of.VALUE and row.at_most and (most_value := row.at_most[side]) is not None:
        # Both ends decide: the condition holds of the whole range, or of none of it.
        return holds if holds is gate.holds(Fraction(most_value), gate.value) else None
    # A lower bound above the limit is certain to be above, and not below; for an upper bound it is the other way.
    return None if (least and holds is not above) or (most and holds is above) else holds


def _bounds(gate: Gate, row: FigureRow, side: int) -> tuple[bool, bool]:
    """Return whether the condition's number is at least the known value, and at most: a change may be neither."""
    if not row.lower_bounds:
        return False, False
    if gate.of is Of.VALUE:
        return row.lower_bounds[side], False
    if row.values[side] == row.values[0]:
        return False, False
    return row.lower_bounds[side], row.lower_bounds[0]


def _measured(gate: Gate, row: FigureRow, side: int) -> str | None:
    """Return the condition's number: the figure of this side, or its change."""
    value, before = row.values[side], row.values[0]
    if value is None:
        return None
    least, most = _bounds(gate, row, side)
    bound = "" if least == most else "at least " if least else "at most "
    if gate.of is Of.VALUE or before is None:
        return bound + _both_as_text(value, float(gate.value), row.unit)[0]
    if gate.of is Of.DIFFERENCE:
        return bound + _signed(value - before, row.unit)
    if not before:
        return "unchanged" if value == before else None
    change = 100 * (value - before) / abs(before)
    text = units.figure(change, "%", sign="+")
    if text == units.figure(float(100 * gate.value), "%", sign="+") and Fraction(
        value - before
    ) != gate.value * Fraction(abs(before)):
        text = f"{change:+.12g} %"
    return bound + text


def _unlike(gate: Gate, figures: _Figures) -> str | None:
    """Return why there is no change: the sides are not comparable, or only one was timed without the profiler."""
    if gate.of is not Of.VALUE and figures.not_comparable:
        return f"the sides cannot be compared: {'; '.join(figures.not_comparable)}"
    plain = figures.rows.get(_PLAIN_STEP)
    if gate.of is Of.VALUE or gate.figure not in _EITHER or plain is None or None not in plain.values:
        return None
    without = figures.sides[plain.values.index(None)]
    return (
        f"{without} was timed only under the profiler, but another side also without it{_UNCHECKED}"
        " - use the metric profiled"
    )


# ----------------------------------------------------------------------------------------------------------- the claim


def _claim(row: FigureRow, figures: _Figures) -> bool | None:
    """Return whether the difference is significant; `None` if that cannot be tested. Counts need no test."""
    if row.exact:
        return True
    return None if figures.no_claim is not None or row.p is None else row.p < SIGNIFICANT


def _evidence(gate: Gate, row: FigureRow, figures: _Figures) -> str:
    """Describe the evidence of a change: the ranges of both sides, and whether it is significant."""
    if gate.of is Of.VALUE or len(row.values) != 2 or row.values[0] == row.values[1] or row.exact:
        return ""
    parts = [""]
    first, second = row.spreads if len(row.spreads) == 2 else (None, None)
    if row.ranges is not None and first is not None and second is not None:
        relation = "do not overlap" if row.ranges == "apart" else "overlap"
        parts.append(f"the ranges {relation} ({_range(first, row.unit)} and {_range(second, row.unit)})")
    claimed = _claim(row, figures)
    if claimed is None:
        why = figures.no_claim or f"the metric is unknown in some of the {RUNS_NEEDED} runs per side"
        parts.append(f"not tested for significance: {why}")
    else:
        parts.append(f"{'significant' if claimed else 'not significant'} (p = {row.p:.2g})")
    return "; ".join(parts)


def _range(spread: Spread, unit: str) -> str:
    return f"{units.in_unit(spread.low, unit)} to {units.in_unit(spread.high, unit)}"


# ------------------------------------------------------------------------------------------------------------- values


def _shown(gate: Gate, row: FigureRow, figures: _Figures, side: int) -> str:
    """Return the figure, with its side if there are several later ones, and its change: `measured` has its value."""
    name = f"{row.name} of {figures.sides[side]}" if len(row.values) > 2 else row.name
    value, before = row.values[side], row.values[0]
    if value is None or before is None or gate.of is Of.VALUE:
        return name
    difference = value - before
    if not difference:
        return f"{name}: {units.in_unit(value, row.unit)} on both sides, no difference"
    after_text, before_text = _both_as_text(value, before, row.unit)
    absolute = f", {_signed(difference, row.unit)}" if gate.of is Of.DIFFERENCE else ""
    relative = f", {units.figure(100 * difference / abs(before), '%', sign='+')}" if before else ""
    return f"{name}: {before_text} before, {after_text} after{absolute}{relative}"


def _both_as_text(value: float | None, other: float, unit: str) -> tuple[str, str]:
    """Return both as text, with all digits if rounding would make them equal, or the first look within the bound."""
    texts = units.in_unit(value, unit), units.in_unit(other, unit)
    if value is None or value == other or (texts[0] != texts[1] and texts[0][0] not in "<>"):
        return texts
    return units.digits_of(value, unit), units.digits_of(other, unit)


def _signed(difference: float, unit: str) -> str:
    if unit == "fraction":
        return f"{units.figure(100 * difference, 'percentage points', sign='+')}"
    return f"{'+' if difference > 0 else ''}{units.in_unit(difference, unit)}"
