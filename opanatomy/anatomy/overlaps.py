"""How long work of each kind ran alongside other work: what the sum of all durations counts more than once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import Final

import numpy as np

from opanatomy.records.columns import Int64

#: The kinds of device work, by which overlaps are distinguished; of three at once the first overlaps with both others.
COMPUTE, COMMUNICATION, COPY = range(3)
KINDS: Final = ("compute", "communication", "copy")
PAIRS: Final = tuple(combinations_with_replacement(range(len(KINDS)), 2))


def overlaps_of(
    kind: Int64, start_ns: Int64, end_ns: Int64, span_start_ns: Int64, span_end_ns: Int64
) -> tuple[Int64, Int64]:
    """(spans x pairs, spans x kinds): the time in each span in which a pair of `PAIRS` overlapped, and in which a kind
    ran while no other one did.

    `kind` is that of each work item; the spans are disjoint and in order. Where n items run at once n - 1 overlaps
    are counted: among the items of one kind, and one between the kinds, each with the first of them.
    """
    moments = np.concatenate((start_ns, end_ns, span_start_ns, span_end_ns))
    order = np.argsort(moments, kind="stable")
    at = moments[order]
    length = np.diff(at, append=at[-1:])
    running = np.stack([_running(kind == number, start_ns, end_ns, order) for number in range(len(KINDS))])
    span = np.searchsorted(span_start_ns, at, side="right") - 1
    inside = (span >= 0) & (length > 0)
    inside[inside] = at[inside] < span_end_ns[span[inside]]
    running, length, span = running[:, inside], length[inside], span[inside]
    overlapped = np.zeros((len(span_start_ns), len(PAIRS)), dtype=np.int64)
    for place, (first, second) in enumerate(PAIRS):
        np.add.at(overlapped[:, place], span, length * _times(running, first, second))
    alone = np.zeros((len(span_start_ns), len(KINDS)), dtype=np.int64)
    for number in range(len(KINDS)):
        others = np.delete(running, number, axis=0).sum(axis=0)
        np.add.at(alone[:, number], span, length * ((running[number] > 0) & (others == 0)))
    return overlapped, alone


def _running(chosen: Sequence[bool] | Int64, start_ns: Int64, end_ns: Int64, order: Int64) -> Int64:
    """How many of the chosen items run from each moment to the next."""
    step = np.zeros(len(order), dtype=np.int64)
    count = len(start_ns)
    step[:count] = chosen
    step[count : count + len(end_ns)] = -step[:count]
    running: Int64 = np.cumsum(step[order])
    return running


def _times(running: Int64, first: int, second: int) -> Int64:
    """How often a pair overlaps in each stretch."""
    if first == second:
        more: Int64 = np.maximum(running[first] - 1, 0)
        return more
    both = (running[first] > 0) & (running[second] > 0)
    if first != COMPUTE:  # two kinds that overlap with the same computation do not count again
        both &= running[COMPUTE] == 0
    total: Int64 = both.astype(np.int64)
    return total
