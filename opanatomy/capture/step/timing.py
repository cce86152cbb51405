"""The wall time of steps without profiler, hooks or observers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from opanatomy.capture.step.ready import ready_to_step
from opanatomy.capture.step.stepper import Stepper
from opanatomy.run_options import RunOptions

#: Steps are repeated until there are this many, or until they have taken this long.
_MIN_STEPS, _MAX_STEPS, _LONG_NS = 3, 50, 2 * 10**9
#: Steps before, where no number is given: the first makes the optimizer's state, the second settles.
_WARMUP: Final = 2


def step_times(options: RunOptions) -> tuple[int, ...]:
    """Times of single steps in nanoseconds, after the warm-up; the model is made anew.

    Of a run on texts each is the mean over its batches.
    """
    with ready_to_step(options) as (prepared, stepper):
        for _ in range(_WARMUP if options.warmup is None else options.warmup):
            stepper.run()
        texts = prepared.texts
        times: list[int] = []
        while len(times) < _MIN_STEPS or (sum(times) < _LONG_NS and len(times) < _MAX_STEPS):
            batches = None if texts is None else texts.batches
            times.append(_clocked(stepper) if batches is None else _mean_over(batches, stepper))
    return tuple(times)


def _clocked(stepper: Stepper) -> int:
    begin = time.perf_counter_ns()
    stepper.run()
    return time.perf_counter_ns() - begin


def _mean_over(batches: Sequence[dict[str, Any]], stepper: Stepper) -> int:
    """The mean of a step on each batch."""
    total = 0
    for batch in batches:
        stepper.take(batch)
        total += _clocked(stepper)
    return total // len(batches)
