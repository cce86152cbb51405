"""What a run that was just profiled could be given: the techniques that would save most, by prediction.

Only techniques are suggested whose predictions were held against measurements (`recorded.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from opanatomy.estimate.price import Rates, predicted_time, rates_of
from opanatomy.estimate.rates import call_times
from opanatomy.memory import memory_of_observations
from opanatomy.options import RunOptions
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.simulated import SimulatedStep
from opanatomy.records.suggestion import Suggestion
from opanatomy.techniques import jobs
from opanatomy.techniques.entries import Situation
from opanatomy.techniques.recorded import RECORDED
from opanatomy.techniques.variants import Variant, variants_of

#: So many are shown; a saving of less of the peak or the time is none.
_SHOWN: Final = 3
_WORTH: Final = 0.03


def suggestions_for(options: RunOptions, anatomy: Anatomy, trace: Path) -> tuple[Suggestion, ...]:
    """The techniques that save most, the most first; none for inference, or where the step cannot be followed."""
    if options.inference or options.compile:
        return ()
    variants = _candidates(options, anatomy)
    if not variants[1:]:
        return ()
    steps = list(jobs.followed([variant.options for variant in variants]))
    baseline = steps[0]
    if isinstance(baseline, str):
        return ()
    rates = _rates(anatomy, trace, baseline)
    known = [
        _suggestion(variant, step, baseline, rates)
        for variant, step in zip(variants[1:], steps[1:], strict=True)
        if isinstance(step, SimulatedStep)
    ]
    return _best([suggestion for suggestion in known if suggestion is not None])


def _candidates(options: RunOptions, anatomy: Anatomy) -> tuple[Variant, ...]:
    """The run as it is, and the recorded techniques that it can be given."""
    situation = Situation(
        options=options, batch=anatomy.workload.batch or 1, layers=None, attention=anatomy.workload.attention,
        on_cpu=anatomy.environment.device_kind == "cpu",
    )  # fmt: skip
    baseline, *others = variants_of(situation)
    return baseline, *(variant for variant in others if variant.impossible is None and variant.name in RECORDED)


def _rates(anatomy: Anatomy, trace: Path, baseline: SimulatedStep) -> Rates | None:
    wall = anatomy.step.unprofiled_wall_ns or anatomy.step.wall_ns
    return rates_of(call_times(trace), baseline, wall, {}) if wall else None


def _suggestion(
    variant: Variant, step: SimulatedStep, baseline: SimulatedStep, rates: Rates | None
) -> Suggestion | None:
    peak, now = _peak(step), _peak(baseline)
    if peak is None or now is None:
        return None
    suggestion = Suggestion(technique=variant.title, option=variant.option, peak_bytes=peak, now_bytes=now)
    if rates is None:
        return suggestion
    time, before = predicted_time(step, rates), predicted_time(baseline, rates).time_ns
    return Suggestion(
        technique=variant.title, option=variant.option, peak_bytes=peak, now_bytes=now,
        time_ratio=time.time_ns / before, low_ratio=time.low_ns / before, high_ratio=time.high_ns / before,
    )  # fmt: skip


def _peak(step: SimulatedStep) -> int | None:
    return memory_of_observations(step.memory).peak_bytes


def _best(known: Sequence[Suggestion]) -> tuple[Suggestion, ...]:
    """Those that are worth it, the larger saving of memory or time first."""

    def saved(suggestion: Suggestion) -> float:
        memory = suggestion.saved_bytes / suggestion.now_bytes if suggestion.now_bytes else 0.0
        return max(memory, 1 - (suggestion.high_ratio or 1.0))

    worth = [suggestion for suggestion in known if saved(suggestion) >= _WORTH]
    return tuple(sorted(worth, key=lambda suggestion: -saved(suggestion))[:_SHOWN])
