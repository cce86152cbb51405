"""Who the others wait for, where the clocks can tell, and since when it is late."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Final

import numpy as np
from msgspec import Struct

from opanatomy.anatomy.waiting.clocks import Clocks
from opanatomy.anatomy.waiting.parts import Split
from opanatomy.anatomy.waiting.table import RankCalls
from opanatomy.records.columns import Bool, Int64
from opanatomy.records.rank_summary import StepSpans
from opanatomy.records.ranks import Rank
from opanatomy.records.waiting import StepParts, Straggler

#: A straggler has at least this part of all waiting, and this many times that of the next one.
_LARGE_PART: Final = 0.25
_FAR_AHEAD: Final = 2
#: Waiting of less than this part of the steps makes no rank a straggler.
_WORTH_A_NAME: Final = 0.01
#: A rank that computes, or is idle, longer than the others by no more than this part does not.
_LONGER: Final = 0.01
#: A collective that begins later than this after its launch is held up by the device's queue, not by the host.
_QUEUED_NS: Final = 100_000


class Verdict(Struct, frozen=True):
    """The straggler, or why none is named."""

    straggler: Straggler | None
    why_not: str | None = None


def _waited(calls: RankCalls, match: Int64, split: Split) -> Int64:
    """For each collective, by its number, how long all of its ranks waited."""
    waited = np.zeros(int(match.max(initial=-1)) + 1, dtype=np.int64)
    rows = np.flatnonzero(match >= 0)
    np.add.at(waited, match[rows], split.begun_ns[rows] - calls.start_ns[rows])
    return waited


def charges(calls: RankCalls, match: Int64, split: Split) -> Int64:
    """For each rank how long the others waited for it: all of a collective's waiting for the one that came last."""
    charged = np.zeros(calls.ranks, dtype=np.int64)
    last = np.flatnonzero(split.last & (match >= 0))
    np.add.at(charged, calls.rank[last], _waited(calls, match, split)[match[last]])
    return charged


def verdict_of(
    ranks: Sequence[Rank],
    steps: Sequence[StepSpans],
    parts: Sequence[Sequence[StepParts]],
    calls: RankCalls,
    match: Int64,
    split: Split,
    clocks: Clocks,
) -> Verdict:
    """Whether a rank is the one that the others wait for; `steps` and their `parts` are those of each rank."""
    charged = charges(calls, match, split)
    whole = int(charged.sum())
    wall_ns = sum(step.wall_ns for own in parts for step in own)
    if not whole or whole < _WORTH_A_NAME * wall_ns:
        return Verdict(None, "the ranks hardly wait for each other")
    rank = int(np.argmax(charged))
    others = np.delete(charged, rank).max(initial=0)
    if charged[rank] < max(_LARGE_PART * whole, _FAR_AHEAD * others):
        return Verdict(None, "no single rank is the last most of the time")
    last = np.flatnonzero(split.last & (match >= 0) & (calls.rank == rank))
    lead = _middle(split.lead_ns[last], _waited(calls, match, split)[match[last]])
    allowed = _allowed_ns(calls, match, clocks, rank)
    if lead <= allowed:
        return Verdict(None, "the lead of the one that is waited for most is no longer than the clocks allow")
    computing, idle = (_longer(parts, rank, field, allowed) for field in ("other_work_ns", "idle_ns"))
    return Verdict(
        Straggler(
            rank=ranks[rank].rank, trace=ranks[rank].trace, charged_ns=int(charged[rank]), waiting_ns=whole,
            last=len(last), lead_ns=lead, before_ns=_late_before(calls, match, split, clocks, last, steps),
            computing_longer_ns=computing, idle_longer_ns=idle,
        )
    )  # fmt: skip


def _middle(leads_ns: Int64, waited: Int64) -> int:
    """The median lead, weighted by the waiting: in half of all that is charged the lead was no longer."""
    order = np.argsort(leads_ns, kind="stable")
    upto = np.cumsum(waited[order])
    return int(leads_ns[order][np.searchsorted(upto, upto[-1] / 2)])


def _allowed_ns(calls: RankCalls, match: Int64, clocks: Clocks, rank: int) -> int:
    """By how much the clock of a rank may be off: what the ends say, where there are too few what causality leaves."""
    if clocks.within_ns is not None:
        return clocks.within_ns
    own = clocks.offset_ns[calls.rank]
    start, end = calls.start_ns - own, calls.end_ns - own
    rows = np.flatnonzero((match >= 0) & (calls.rank == rank))
    slack = [
        int(end[row] - start[like[like != row]].max())
        for row, like in zip(rows.tolist(), _like(match, rows), strict=True)
        if len(like) > 1
    ]
    return max(min(slack, default=0), 0)


def _longer(parts: Sequence[Sequence[StepParts]], rank: int, field: str, allowed_ns: int) -> int:
    """How much longer than the median of the others a rank does this in its steps, 0 where that is no more than noise.

    Ranks without steps are none of the others.
    """
    means = [fmean(getattr(step, field) for step in own) if own else None for own in parts]
    own, others = means[rank], [mean for place, mean in enumerate(means) if mean is not None and place != rank]
    if own is None or not others:
        return 0
    usual = median(others)
    is_longer = own - usual > max(_LONGER * usual, allowed_ns)
    return round((own - usual) * len(parts[rank])) if is_longer else 0


def _late_before(
    calls: RankCalls, match: Int64, split: Split, clocks: Clocks, last: Int64, steps: Sequence[StepSpans]
) -> int | None:
    """What of the waiting in its `last` collectives a rank was late for when its step began; `None` where unknown.

    Of a collective that is what the ranks waited, less how much longer than the others this one took to get there from
    the beginning of the step. Where a host waited for the device while a collective ended, its lead is gone and it
    began anew: with one of the same step, all lateness is from within. Where the device's queue held the collective up,
    and not its launch, the times are those of the device, whose ranks begin anew with each collective.
    """
    own = clocks.offset_ns[calls.rank]
    step = _step_of_launch(calls, steps)
    known = (calls.launched_ns >= 0) & (step >= 0)
    began, device_began = (_column(calls, steps, step, name) - own for name in ("began_ns", "start_ns"))
    start, asked = calls.start_ns - own, calls.asked_ns - own
    waited_for = _last_waited_for(calls, split.matched)
    anew = np.where(waited_for >= 0, (calls.end_ns - own)[waited_for], began)
    same_step = (waited_for >= 0) & (step[waited_for] == step)
    first = _first_of_steps(calls, split.matched, step)
    before = 0
    for row, like in zip(last.tolist(), _like(match, last), strict=True):
        if not known[like].all():
            return None
        queued = start[row] - asked[row] > _QUEUED_NS
        if not first[row] if queued else same_step[like].any():
            continue
        others = like[like != row]
        since, moment = (device_began, start) if queued else (began, asked)
        own_since = np.full(len(others), since[row])
        others_since = since[others]
        if not queued:
            own_since = np.where(anew[others] > others_since, np.maximum(anew[others], own_since), own_since)
            others_since = np.maximum(anew[others], others_since)
        longer = int(((moment[row] - own_since) - (moment[others] - others_since)).sum())
        waited = int((split.begun_ns[like] - calls.start_ns[like]).sum())
        before += waited - min(max(longer, 0), waited)
    return before


def _step_of_launch(calls: RankCalls, steps: Sequence[StepSpans]) -> Int64:
    """The place of the step in which the host launched each call; -1 where that is unknown, or before all steps."""
    step = np.full(len(calls.rank), -1, dtype=np.int64)
    for rank, own in enumerate(steps):
        rows = np.flatnonzero(calls.rank == rank)
        if (own.began_ns >= 0).all():
            step[rows] = np.searchsorted(own.began_ns, calls.asked_ns[rows], side="right") - 1
    return step


def _column(calls: RankCalls, steps: Sequence[StepSpans], step: Int64, name: str) -> Int64:
    """A column of the steps for each call; of no step the last one's."""
    column = np.zeros(len(calls.rank), dtype=np.int64)
    for rank, own in enumerate(steps):
        rows = np.flatnonzero(calls.rank == rank)
        if len(own.number):
            column[rows] = getattr(own, name)[step[rows]]
    return column


def _last_waited_for(calls: RankCalls, matched: Bool) -> Int64:
    """The row of the last matched collective that had ended when each call's host last waited for the device; or -1."""
    last = np.full(len(calls.rank), -1, dtype=np.int64)
    for rank in range(calls.ranks):
        rows = np.flatnonzero(calls.rank == rank)
        ended = rows[matched[rows]]
        ended = ended[np.argsort(calls.end_ns[ended], kind="stable")]
        places = np.searchsorted(calls.end_ns[ended], calls.synchronized_ns[rows], side="right") - 1
        last[rows] = np.append(ended, -1)[places]
    return last


def _first_of_steps(calls: RankCalls, matched: Bool, step: Int64) -> Bool:
    """Which calls are the first that their rank launched in a step, of those that are matched."""
    first = np.zeros(len(calls.rank), dtype=bool)
    rows = np.flatnonzero(matched)
    rows = rows[np.lexsort((calls.asked_ns[rows], step[rows], calls.rank[rows]))]
    changes = (np.diff(calls.rank[rows]) != 0) | (np.diff(step[rows]) != 0)
    first[rows[np.append(True, changes)[: len(rows)]]] = True
    return first


def _like(match: Int64, rows: Int64) -> list[Int64]:
    """For each of the rows all that are matched with it."""
    order = np.argsort(match, kind="stable")
    ordered = match[order]
    begins, ends = (np.searchsorted(ordered, match[rows], side=side) for side in ("left", "right"))
    return [order[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
