"""The rank that the others wait for in words: the same on the page, in the digest and where a figure is worked."""

from __future__ import annotations

from typing import Final

from opanatomy.records.communication import Straggler, Waiting
from opanatomy.report.section import Count, Phrase, Share, Time, joined, phrase

#: Of what is charged to a rank: with less of it lost within its steps, nothing that it does in them is the cause.
WITHIN: Final = 0.1


#: Less of what is charged was hardly there when a step began.
_HARDLY: Final = 0.01


def name_of(straggler: Straggler) -> str:
    """The number of the rank, where its trace has none the name of that."""
    return straggler.trace or "?" if straggler.rank is None else f"rank {straggler.rank}"


def how_late(straggler: Straggler, waiting: Waiting) -> Phrase:
    """How often it comes last and by how much, since when it is late, and what takes it longer than the others.

    `it begins 5 of 8 collectives last, a median of 505 us after the rank before it; 56.4 % of all waiting was there
    when its step began, 19.5 % came within it; in its step it is idle 1.14 ms longer than the others`
    """
    every = Count(waiting.by_number + waiting.by_order + waiting.by_time, "collective")
    last = phrase("it begins {} of {} last", Count(straggler.last), every)
    by = phrase("a median of {} after the rank before it", Time(straggler.lead_ns))
    several = max(len(rank.steps) for rank in waiting.each) > 1
    parts = (joined((last, by)), _since_when(straggler, several=several), _longer(straggler, several=several))
    return joined(filter(None, parts), "; ") or last


def _since_when(straggler: Straggler, *, several: bool) -> Phrase | None:
    """What of the waiting was there when its step began, as a share of all waiting, as what is charged to it is."""
    before = straggler.before_ns
    if before is None or before < _HARDLY * straggler.charged_ns:
        return None
    shares = (Share(ns, straggler.waiting_ns) for ns in (before, straggler.charged_ns - before))
    its = "its steps began, {} came within them" if several else "its step began, {} came within it"
    return phrase("{} of all waiting was there when " + its, *shares)


def _longer(straggler: Straggler, *, several: bool) -> Phrase | None:
    """What it does longer than the others; nothing where it was late before its steps began."""
    computing, idle = straggler.computing_longer_ns, straggler.idle_longer_ns
    within = straggler.charged_ns - (straggler.before_ns or 0)
    if max(computing, idle) <= 0 or within < WITHIN * straggler.charged_ns:
        return None
    does, ns = ("computes", computing) if computing >= idle else ("is idle", idle)
    its = "its steps it {} {} longer than the others in all" if several else "its step it {} {} longer than the others"
    return phrase("in " + its, does, Time(ns))
