"""Gates on a comparison, or on one report: whether each is met, and the reason in one line.

Values are compared exactly. A gate is met where its condition is known not to hold. One that cannot be decided (a
figure that is not known, a lower bound on the wrong side, sides that are not of the same) is unknown, which is not met.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fractions import Fraction
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.comparison.statistics import RUNS_NEEDED
from opanatomy.errors import GateError
from opanatomy.gates.grammar import Gate, Of, gates_of, gates_of_one
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.compared import SIGNIFICANT, Comparison, FigureRow, GateResult, Spread
from opanatomy.redaction.records import redacted
from opanatomy.redaction.texts import Texts
from opanatomy.report import units
from opanatomy.report.metrics import metrics_of

__all__ = ["Gate", "gates_of", "gates_of_one", "judged", "judged_report", "require_met"]

#: Figures that are of the step without the profiler where it was timed, else of that under it.
_EITHER: Final = frozenset({"step_time_ns", "samples_per_second"})
_PLAIN: Final = "step_unprofiled_ns"
_UNCHECKED: Final = ", so it cannot be checked"


class _Figures(Struct, frozen=True, kw_only=True):
    """The figures of all sides by name; of a comparison the sides' names, and why nothing is claimed, or compared."""

    rows: dict[str, FigureRow]
    sides: tuple[str, ...] = ("",)
    no_claim: str | None = None
    not_comparable: tuple[str, ...] = ()


def judged(comparison: Comparison, gates: Sequence[Gate]) -> Comparison:
    """The comparison with the result of each gate: each later side against the first."""
    figures = _Figures(
        rows={row.name: row for row in comparison.figures}, sides=tuple(side.name for side in comparison.sides),
        no_claim=comparison.no_claim, not_comparable=comparison.not_comparable,
    )  # fmt: skip
    return replace(comparison, gates=_results(gates, figures))


def judged_report(anatomy: Anatomy, gates: Sequence[Gate]) -> tuple[GateResult, ...]:
    """The results of gates on one report, which are on values alone."""
    rows = {
        name: FigureRow(
            name=name, unit=metric.unit, better=metric.better, values=(metric.value,),
            lower_bounds=(True,) if metric.lower_bound else (),
        )
        for name, metric in metrics_of(anatomy).items()
    }  # fmt: skip
    return _results(gates, _Figures(rows=rows))


def require_met(results: Iterable[GateResult]) -> None:
    """Raise `GateError` with a line for each gate that is not met, if any."""
    reasons = [result.line for result in results if not result.met]
    if reasons:
        raise GateError(*reasons)


# ------------------------------------------------------------------------------------------------------------ one gate


def _results(gates: Sequence[Gate], figures: _Figures) -> tuple[GateResult, ...]:
    """The result of each gate, without secrets that were typed for a name."""
    texts = Texts()
    return tuple(redacted(_result(gate, figures), texts) for gate in gates)


def _result(gate: Gate, figures: _Figures) -> GateResult:
    """A gate is met where its condition is known not to hold on any later side."""
    row = figures.rows.get(gate.figure)
    unchecked = _unknown(gate.figure, figures) if row is None else _unlike(gate, figures)
    if row is None or unchecked is not None:
        return GateResult(gate=gate.text, met=False, unknown=True, reason=unchecked or "")
    sides = range(1, len(row.values)) if len(row.values) > 1 else range(1)
    held = {side: _holds(gate, row, side) for side in sides}
    needed = sides if gate.of is Of.VALUE else range(len(row.values))
    missing = [figures.sides[side] or "the report" for side in needed if row.values[side] is None]
    failed = [side for side in sides if held[side]]
    if missing and not failed:
        reason = f"{gate.figure} is not known of {', '.join(missing)}{_UNCHECKED}"
        return GateResult(gate=gate.text, met=False, unknown=True, reason=reason)
    undecided = [side for side in sides if held[side] is None]
    shown = (failed or undecided or sides)[0]
    basis = ", of all steps, unlike ones too" if row.all_steps else ""
    reason = f"{_shown(gate, row, figures, shown)}{basis}{_evidence(gate, row, figures)}"
    result = GateResult(gate=gate.text, met=not failed, reason=reason, measured=_measured(gate, row, shown))
    if undecided and not failed:
        return replace(result, met=False, unknown=True, reason=f"{reason}; {_bounded(gate, row, shown)}{_UNCHECKED}")
    if not failed or not gate.significant:
        return result
    claimed = _claim(row, figures)
    return replace(
        result, met=claimed is False, unknown=claimed is None, reason=reason + (_UNCHECKED if claimed is None else "")
    )


def _holds(gate: Gate, row: FigureRow, side: int) -> bool | None:
    """Whether the condition holds on this side; `None` where a value is not known, or a bound does not decide it."""
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
    # What is at least so much holds above for certain, and below it does not; of what is at most it is the other way.
    return None if (least and holds is not above) or (most and holds is above) else holds


def _bounds(gate: Gate, row: FigureRow, side: int) -> tuple[bool, bool]:
    """Whether what the condition is about is at least what is known of it, and at most: a change may be neither."""
    if not row.lower_bounds:
        return False, False
    if gate.of is Of.VALUE:
        return row.lower_bounds[side], False
    if row.values[side] == row.values[0]:
        return False, False
    return row.lower_bounds[side], row.lower_bounds[0]


def _bounded(gate: Gate, row: FigureRow, side: int) -> str:
    """Which value is a lower bound."""
    if gate.of is Of.VALUE:
        return "this is a lower bound"
    after, before = row.lower_bounds[side], row.lower_bounds[0]
    return "both are lower bounds" if after and before else f"the one {'after' if after else 'before'} is a lower bound"


def _measured(gate: Gate, row: FigureRow, side: int) -> str | None:
    """What the condition is about: the figure, or its change, of this side."""
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
        return "the same" if value == before else None
    change = 100 * (value - before) / abs(before)
    text = units.figure(change, "%", sign="+")
    if text == units.figure(float(100 * gate.value), "%", sign="+") and Fraction(
        value - before
    ) != gate.value * Fraction(abs(before)):
        text = f"{change:+.12g} %"
    return bound + text


def _unknown(figure: str, figures: _Figures) -> str:
    """What is said of a figure that no side has."""
    near = get_close_matches(figure, figures.rows, n=3, cutoff=0.6)
    instead = f"; known are {', '.join(near)}" if near else ""
    return f"{figure} is not known of {'any side' if figures.sides[1:] else 'the report'}{_UNCHECKED}{instead}"


def _unlike(gate: Gate, figures: _Figures) -> str | None:
    """Why a change is none: the sides are not of the same, or one alone was timed without the profiler."""
    if gate.of is not Of.VALUE and figures.not_comparable:
        return f"the sides cannot be compared: {'; '.join(figures.not_comparable)}"
    plain = figures.rows.get(_PLAIN)
    if gate.of is Of.VALUE or gate.figure not in _EITHER or plain is None or None not in plain.values:
        return None
    without = figures.sides[plain.values.index(None)]
    return (
        f"{without} was timed under the profiler alone, another side without it{_UNCHECKED} - use the figure profiled"
    )


# ----------------------------------------------------------------------------------------------------------- the claim


def _claim(row: FigureRow, figures: _Figures) -> bool | None:
    """Whether the difference is significant; `None` where that cannot be tested. What is counted needs no test."""
    if row.exact:
        return True
    return None if figures.no_claim is not None or row.p is None else row.p < SIGNIFICANT


def _evidence(gate: Gate, row: FigureRow, figures: _Figures) -> str:
    """What is to be said of a change: the ranges of both sides, and whether it is significant."""
    if gate.of is Of.VALUE or len(row.values) != 2 or row.values[0] == row.values[1] or row.exact:
        return ""
    parts = [""]
    first, second = row.spreads if len(row.spreads) == 2 else (None, None)
    if row.ranges is not None and first is not None and second is not None:
        parts.append(f"ranges {row.ranges} ({_range(first, row.unit)} and {_range(second, row.unit)})")
    claimed = _claim(row, figures)
    if claimed is None:
        why = figures.no_claim or f"not every one of {RUNS_NEEDED} runs a side has it"
        parts.append(f"not called significant: {why}")
    else:
        parts.append(f"{'significant' if claimed else 'not significant'} (p = {row.p:.2g})")
    return "; ".join(parts)


def _range(spread: Spread, unit: str) -> str:
    return f"{units.of_unit(spread.low, unit)} to {units.of_unit(spread.high, unit)}"


# ------------------------------------------------------------------------------------------------------------- values


def _shown(gate: Gate, row: FigureRow, figures: _Figures, side: int) -> str:
    """The figure, where there are several later sides with the one that it is of, and its value or its change."""
    name = f"{row.name} of {figures.sides[side]}" if len(row.values) > 2 else row.name
    value, before = row.values[side], row.values[0]
    if value is None or before is None or gate.of is Of.VALUE:
        return f"{name} is {_both_as_text(value, float(gate.value), row.unit)[0]}"
    difference = value - before
    if not difference:
        return f"{name}: {units.of_unit(value, row.unit)} on both sides, no difference"
    after_text, before_text = _both_as_text(value, before, row.unit)
    absolute = f", {_signed(difference, row.unit)}" if gate.of is Of.DIFFERENCE else ""
    relative = f", {units.figure(100 * difference / abs(before), '%', sign='+')}" if before else ""
    return f"{name}: {before_text} before, {after_text} after{absolute}{relative}"


def _both_as_text(value: float | None, other: float, unit: str) -> tuple[str, str]:
    """Both as text, with every digit where rounding would make them the same."""
    texts = units.of_unit(value, unit), units.of_unit(other, unit)
    if value is None or value == other or texts[0] != texts[1]:
        return texts
    return units.digits_of(value, unit), units.digits_of(other, unit)


def _signed(difference: float, unit: str) -> str:
    if unit == "fraction":
        return f"{units.figure(100 * difference, 'percentage points', sign='+')}"
    return f"{'+' if difference > 0 else ''}{units.of_unit(difference, unit)}"
