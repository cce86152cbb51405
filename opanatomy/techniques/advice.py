"""Sentences of advice from the numbers of an experiment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from opanatomy.records.comparison import figures_of, within_noise
from opanatomy.records.techniques import StepFigures, TechniqueRow, Techniques
from opanatomy.report.units import size

#: A saving of less is not worth a sentence: parts of the baseline's peak or time.
_WORTH: Final = 0.05
#: This many techniques are advised.
_ADVISED: Final = 3


def advice_of(report: Techniques) -> tuple[str, ...]:
    """What to do: the largest savings of memory and of time, each with its option."""
    return (*_memory(report), *_time(report))


def ranked(report: Techniques) -> list[TechniqueRow]:
    """The techniques by what they save of the peak, the most first."""
    known = [row for row in report.rows[1:] if _saved(report, row) is not None]
    return sorted(known, key=lambda row: -(_saved(report, row) or 0))


def _saved(report: Techniques, row: TechniqueRow) -> int | None:
    base, figures = figures_of(report.baseline), figures_of(row)
    if base is None or figures is None or base.peak_bytes is None or figures.peak_bytes is None:
        return None
    return base.peak_bytes - figures.peak_bytes


def _memory(report: Techniques) -> Iterator[str]:
    base = figures_of(report.baseline)
    if base is None or not base.peak_bytes:
        return
    for row in ranked(report)[:_ADVISED]:
        saved = _saved(report, row) or 0
        if saved < _WORTH * base.peak_bytes:
            return
        largest = _largest_fall(base, figures_of(row))
        where = f", {size(largest[1])} of them {largest[0].replace('_', ' ')}" if largest else ""
        yield (f"{row.option or row.name} saves {size(saved)} of {size(base.peak_bytes)}{where}{_cost(report, row)}")


def _largest_fall(base: StepFigures, figures: StepFigures | None) -> tuple[str, int] | None:
    """The component whose part of the peak falls most."""
    if figures is None:
        return None
    falls = [(name, held - figures.at_peak.get(name, 0)) for name, held in base.at_peak.items()]
    name, fall = max(falls, key=lambda pair: pair[1], default=("", 0))
    return (name, fall) if fall > 0 else None


def _cost(report: Techniques, row: TechniqueRow) -> str:
    base, figures = figures_of(report.baseline), figures_of(row)
    if base is None or figures is None or not base.step_ns or figures.step_ns is None:
        return ""
    if row.measured is not None and report.baseline.measured is not None:
        if within_noise(row.measured, report.baseline.measured):
            return " and costs no time here"
        change = figures.step_ns / base.step_ns - 1
        return f" and the step takes {abs(change):.0%} {'longer' if change > 0 else 'less'}"
    change = figures.step_ns / base.step_ns - 1
    if abs(change) < _WORTH:
        return ", by prediction at the same time"
    return f", by prediction the step takes {abs(change):.0%} {'longer' if change > 0 else 'less'}"


def _time(report: Techniques) -> Iterator[str]:
    base = figures_of(report.baseline)
    if base is None or not base.step_ns:
        return
    faster = []
    for row in report.rows[1:]:
        figures = figures_of(row)
        if figures is None or not figures.step_ns:
            continue
        if row.measured is not None and within_noise(figures, base):
            continue
        gained = 1 - figures.step_ns / base.step_ns
        if gained >= _WORTH:
            faster.append((gained, row))
    faster.sort(key=lambda pair: -pair[0])
    for gained, row in faster[:_ADVISED]:
        how = "takes" if row.measured is not None else "would take"
        yield f"{row.option or row.name}: the step {how} {gained:.0%} less time"
