"""What the figures of a page are of: one rule, and the words that headings have for it.

All figures are means over the steps that count, of all ranks, so that parts sum to their whole; a step that holds
other steps' work or a pause, or makes other calls than most, does not count.
"""

from __future__ import annotations

from typing import Final

from opanatomy.records.anatomy import Anatomy
from opanatomy.report.section import Count, Ratio

#: The part of the window from which the time of other steps' work is said.
_FOREIGN: Final = 0.01


def steps_of(anatomy: Anatomy) -> int:
    """The steps that sums are over: of several ranks those of all of them."""
    return max(anatomy.step.count, 1)


def steps_of_window(anatomy: Anatomy) -> float:
    """The steps of the window, which of several ranks is the mean of theirs."""
    return steps_of(anatomy) / max(len(anatomy.ranks), 1)


def per_step(anatomy: Anatomy) -> str:
    """What a heading says of sums: `per step, mean of 4`; nothing where there is one step."""
    steps, ranks = steps_of(anatomy), len(anatomy.ranks)
    if steps == 1:
        return ""
    return f"per step of a rank, mean of {steps:,}" if ranks > 1 else f"per step, mean of {steps:,}"


def shares_of_work(anatomy: Anatomy) -> str:
    """What a heading says of a table whose shares are of the device work, on the CPU of the operators' time."""
    return "; ".join(filter(None, (per_step(anatomy), f"shares of the {work_of(anatomy)}")))


def work_of(anatomy: Anatomy) -> str:
    """What the time of all classes is: that of device work, on the CPU of operators, else what the host took."""
    if anatomy.environment.host_only:
        return "host's time in operators"
    return "operators' time" if anatomy.environment.device_kind == "cpu" else "device work"


def all_steps(anatomy: Anatomy) -> str:
    """What a heading says of sums that are shown as they are."""
    steps = steps_of(anatomy)
    return "" if steps == 1 else f"all {steps:,} steps together"


def is_whole_trace(anatomy: Anatomy) -> bool:
    """Whether the whole trace is taken for one step, as it has no annotation of any."""
    return any(row.number is None for row in anatomy.step.steps)


def has_foreign_work(anatomy: Anatomy) -> bool:
    """Whether the device did only the work of other steps for so much of the steps that it has to be said."""
    timeline = anatomy.timeline
    return (timeline.outside_ns or 0) >= _FOREIGN * timeline.window_ns > 0


def calls_a_step(calls: int, steps: int) -> Count | Ratio:
    """How often something ran in a step: a whole number where each step has as many."""
    return Ratio(calls / steps) if calls % steps else Count(calls // steps)
