"""Suggest for a run that was just profiled the techniques that would save most, by prediction.

Only techniques that preserve training, or almost, are suggested: training fewer weights or with another optimizer saves
more, but is a different training. docs/techniques.md compares their predictions with measurements
(`benchmarks/predictions.py`). A user's own function is not called again for this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from opanatomy.capture.device.accelerators import empty_cache
from opanatomy.capture.device.environment import choose_device
from opanatomy.errors import EstimateError
from opanatomy.levers import SUGGESTED
from opanatomy.memory.observed import memory_of_observations
from opanatomy.options import RunOptions
from opanatomy.predict import workers
from opanatomy.predict.experiment import load_of
from opanatomy.predict.price import Rates, call_times, predicted_time, rates_of
from opanatomy.predict.techniques import Variant, variants_of
from opanatomy.predict.workers import Followed
from opanatomy.records.anatomy import TECHNIQUE, Advice, Anatomy, Evidence
from opanatomy.records.experiment import SimulatedStep

#: Maximum number shown, and the minimum share of peak or time that a suggestion saves.
_MAX_SUGGESTIONS: Final = 3
_MIN_SAVED_SHARE: Final = 0.03


def suggestions_for(
    options: RunOptions, anatomy: Anatomy, trace: Path, budget_s: float, clock: Callable[[], float] = time.monotonic
) -> tuple[Advice, ...]:
    """Return advice on the techniques that save most, the largest saving first.

    A step is skipped if, going by the last one, it would end after `budget_s` seconds; the first two always run. Raises
    `OpanatomyError` if the step as it is cannot be simulated.
    """
    variants = _candidates(options, anatomy)
    if not variants[1:]:
        return ()
    deadline = clock() + budget_s
    runs = [variant.options for variant in variants]
    device = choose_device(options.device)
    if device == "cpu":
        followed = list(workers.followed(runs, deadline, clock))
    else:  # a kernel of a device does not look at what it is given: what ends the process is not to end this one
        empty_cache(device)
        followed = list(workers.simulate_in_process(runs, deadline=deadline))
    baseline = followed[0].step
    if not isinstance(baseline, SimulatedStep):
        raise EstimateError(baseline)
    peak = _peak(baseline)
    if peak is None:
        return ()
    rates = _rates(anatomy, trace, baseline, followed)
    return _best(
        [
            (variant, _advice(variant, each.step, peak, baseline, rates))
            for variant, each in zip(variants[1:], followed[1:], strict=True)
            if isinstance(each.step, SimulatedStep)
        ]
    )


def _candidates(options: RunOptions, anatomy: Anatomy) -> Sequence[Variant]:
    """Return the unchanged run, and the applicable techniques."""
    from opanatomy.capture.model.user_function import is_function

    if not SUGGESTED or options.inference or options.generate or options.compile or is_function(options.model):
        return ()
    options = replace(options, weights="random")  # the values of weights change nothing
    baseline, *others = variants_of(workers.lever_context(options), only=SUGGESTED)
    return baseline, *(each for each in others if each.blocked_because is None and each.options != options)


def _rates(anatomy: Anatomy, trace: Path, baseline: SimulatedStep, followed: Sequence[Followed]) -> Rates | None:
    wall = anatomy.step.unprofiled_wall_ns or anatomy.step.wall_ns
    if not wall:
        return None
    sampled = {key: timed for each in followed for key, timed in each.sampled.items()}
    load = max(load_of(anatomy), *(each.load for each in followed))
    return rates_of(call_times(trace), baseline, wall, sampled, profiled_ns=anatomy.step.wall_ns, load=load)


def _advice(
    variant: Variant, step: SimulatedStep, now: int, baseline: SimulatedStep, rates: Rates | None
) -> Advice | None:
    """Return what a technique would save of the peak, and of the step where its time is predicted."""
    peak = _peak(step)
    if peak is None:
        return None
    saved = now - peak if now - peak >= _MIN_SAVED_SHARE * now else None
    figures = {"peak": Evidence(value=peak, unit="bytes"), "now": Evidence(value=now, unit="bytes")}
    why = f"with {variant.title}, the predicted peak is {{peak}} instead of {{now}}"
    wall_ns = gain_ns = None
    if rates is not None:
        after, before = predicted_time(step, rates), predicted_time(baseline, rates).time_ns
        if after.is_known:
            low, high = after.low_ns / before, after.high_ns / before
            figures |= {"low": Evidence(value=low, unit="ratio"), "high": Evidence(value=high, unit="ratio")}
            why += ", and the step takes {low} to {high} times as long"
            gain_ns = round((1 - low) * before) if high < 1 - _MIN_SAVED_SHARE else None
            wall_ns = round(before)
    return Advice(
        id=TECHNIQUE,
        subject=variant.name,
        gain_ns=gain_ns,
        step_ns=wall_ns,
        gain_bytes=saved,
        peak_bytes=now,
        why=why,
        figures=figures,
        option=variant.option,
        technique=variant.name,
    )


def _peak(step: SimulatedStep) -> int | None:
    return memory_of_observations(step.memory).peak_bytes


def _saved(advice: Advice) -> float:
    """Return the larger of the saved shares of the peak and of the time."""
    memory = (advice.gain_bytes or 0) / advice.peak_bytes if advice.peak_bytes else 0.0
    return max(memory, (advice.gain_ns or 0) / advice.step_ns if advice.step_ns else 0.0)


def _best(known: Sequence[tuple[Variant, Advice | None]]) -> tuple[Advice, ...]:
    """Return the worthwhile advice, largest savings first, and of techniques that set the same option only the best."""
    worth = [
        (variant, advice) for variant, advice in known if advice is not None and _saved(advice) >= _MIN_SAVED_SHARE
    ]
    taken: set[str] = set()
    best = []
    for variant, advice in sorted(worth, key=lambda pair: -_saved(pair[1])):
        if not taken & variant.changes.keys():
            taken |= variant.changes.keys()
            best.append(advice)
    return tuple(best[:_MAX_SUGGESTIONS])
