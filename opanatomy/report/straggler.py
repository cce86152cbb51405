"""The rank that the others wait for in words: the same on the page, in the digest and where a figure is worked."""

from __future__ import annotations

from opanatomy.records.waiting import Straggler, Waiting
from opanatomy.report.section import Count, Phrase, Time, joined, phrase


def name_of(straggler: Straggler) -> str:
    """The number of the rank, where its trace has none the name of that."""
    return straggler.trace or "?" if straggler.rank is None else f"rank {straggler.rank}"


def how_late(straggler: Straggler, waiting: Waiting) -> Phrase:
    """How often it comes last and by how much, and what it does meanwhile, where that takes longer than on others.

    `it begins 5 of 8 collectives last, a median of 505 us after the rank before it, and before those it is idle 1.39 ms
    longer than the others in all`
    """
    every = Count(waiting.by_number + waiting.by_order + waiting.by_time, "collective")
    last = phrase("it begins {} of {} last", Count(straggler.last), every)
    by = phrase("a median of {} after the rank before it", Time(straggler.lead_ns))
    return joined((last, by, _instead(straggler))) or last


def _instead(straggler: Straggler) -> Phrase | None:
    computing, idle = straggler.computing_longer_ns, straggler.idle_longer_ns
    if max(computing, idle) <= 0:
        return None
    does, ns = ("computes", computing) if computing >= idle else ("is idle", idle)
    return phrase("and before those it {} {} longer than the others in all", does, Time(ns))
