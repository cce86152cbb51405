"""Unprofiled steps over all batches of the texts of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from opanatomy.capture.step.progress_hooks import Progress
from opanatomy.capture.step.stepper import Stepper
from opanatomy.capture.texts.inputs import TextInputs
from opanatomy.records.texts import TextObservations

#: Rounds over the batches are repeated until there are this many, or until they have taken this long.
_ROUNDS: Final = 5
_ROUNDS_NS: Final = 2 * 10**9


def timed_on_texts(
    texts: TextInputs, stepper: Stepper, clocked: Callable[[], int], progress: Progress, *, steps: int, warm: bool
) -> TextObservations:
    """The texts with the wall times of steps on each batch, in rounds so that a drift of the machine is in all alike.

    `warm` has a round before that is not counted, where the first step on a new length does what later ones do not.
    """
    times: list[list[int]] = [[] for _ in texts.batches]
    rounds, number = max(steps, 1), -1 if warm else 0
    while number < rounds:
        spent = 0
        for place, batch in enumerate(texts.batches):
            text = f"batch {place + 1} of {len(texts.batches)}, round {max(number, 0) + 1} of {rounds}"
            after = len(texts.batches) * (rounds - number) - place - 1 + steps
            progress.stage(text, steps_after=after, expected_ns=times[place][-1] if times[place] else None)
            stepper.take(batch)
            duration = clocked()
            spent += duration
            if number >= 0:
                times[place].append(duration)
        number += 1
        if number == 1:
            rounds = max(rounds, min(_ROUNDS, -(-_ROUNDS_NS // max(spent, 1))))
    return texts.with_times(times)
