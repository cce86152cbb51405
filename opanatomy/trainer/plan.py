"""Which steps of a training are recorded how, given where it begins and ends."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from opanatomy.capture.loop.numbered_steps import StepPlan

#: This many steps run on the clock, where there are as many.
TIMED: Final = 3
#: The first step of a training allocates, loads and compiles: it says nothing of the others.
_COLD: Final = 1


class Training(Struct, frozen=True, kw_only=True):
    """A training that begins after step `done` and ends with step `end` (0: not known).

    `extra` is how many steps that check and memory take, after the profiled ones; with `warm` the profiler needs one.
    """

    done: int
    end: int
    extra: int = 0
    warm: bool = False


def plan_of(steps: range, training: Training) -> StepPlan | None:
    """How `steps` are recorded in a training; `None` where none of them comes.

    Where nothing before them can be timed, and with `warm` the profiler be warmed up in, steps after them are timed.
    """
    end, extra = training.end, training.extra
    first = max(steps[0], training.done + 1)
    last = steps[-1] if not end else min(steps[-1], end)
    if first > last:
        return None
    before = first - 1 - training.done
    warms = training.warm and before > 0
    timed_before = min(max(before - _COLD - warms, 0), TIMED)
    left = TIMED if not end else min(max(end - last - extra, 0), TIMED)
    return StepPlan(
        first=first, steps=last - first + 1, timed_before=timed_before, timed_after=0 if timed_before else left,
        warm=warms,
    )  # fmt: skip


def not_coming(steps: range, training: Training) -> str | None:
    """Which steps do not come, and why; `None` where all do."""
    done, end = training.done, training.end
    reasons = []
    if steps[0] <= done:
        past = named(range(steps[0], min(steps[-1], done) + 1))
        reasons.append(f"the training goes on after step {done}, so {past} will not be recorded")
    if end and steps[-1] > end:
        beyond = named(range(max(steps[0], end + 1), steps[-1] + 1))
        reasons.append(f"the training ends with step {end}, so {beyond} will not be recorded")
    elif end and done < steps[-1] and steps[-1] + training.extra > end:
        needed = named(range(steps[-1] + 1, steps[-1] + training.extra + 1))
        reasons.append(f"the training ends with step {end}, and check and memory need {needed}")
    if not reasons:
        return None
    last = f"{end - training.extra}" if end > training.extra else "..."
    return f"TrainerCallback: {'; '.join(reasons)} - give steps from {done + 1} to {last}"


def named(steps: range) -> str:
    """`step 3`, `steps 3 to 5`."""
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
