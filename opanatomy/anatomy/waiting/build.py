"""The tables of all ranks -> `Waiting`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from opanatomy.anatomy.collectives import bus_factor
from opanatomy.anatomy.communication import message_sizes
from opanatomy.anatomy.waiting.clocks import Clocks, clocks_of
from opanatomy.anatomy.waiting.matching import by_number_and_order, by_time
from opanatomy.anatomy.waiting.parts import Split, parts_of, split_of
from opanatomy.anatomy.waiting.straggler import Verdict, charges, verdict_of
from opanatomy.anatomy.waiting.table import RankCalls, calls_of_ranks
from opanatomy.records.columns import Bool, Int64, distinct
from opanatomy.records.rank_summary import CollectiveCalls, Spans, StepSpans
from opanatomy.records.ranks import Rank
from opanatomy.records.waiting import ClockSetting, MatchedCollective, RankWaiting, StepParts, Waiting

_MISSING: Final = "not all ranks were given: another one may have come later still"


class RankTables(Struct, frozen=True, kw_only=True):
    """What one rank's summary has besides its anatomy; `steps` are those that count, and all figures are of them."""

    rank: Rank
    calls: CollectiveCalls
    hiding: Spans
    steps: StepSpans


class _Matched(Struct, frozen=True, kw_only=True):
    """The ranks with their collectives, matched, on one clock, and the parts of the steps of each."""

    each: Sequence[RankTables]
    calls: RankCalls
    match: Int64
    split: Split
    clocks: Clocks
    parts: list[tuple[StepParts, ...]]


def waiting_of(each: Sequence[RankTables]) -> Waiting | None:
    """Waiting and transferring over the given ranks, in their order; `None` where no collective is matched."""
    tables = [rank.calls for rank in each]
    if len(each) < 2 or sum(len(table.start_ns) > 0 for table in tables) < 2:
        return None
    calls = calls_of_ranks(tables)
    # A group has no more ranks than the run, of which the trace need not say how many it has.
    world = max(int(calls.group_size.max(initial=0)), *(rank.rank.world_size or 0 for rank in each)) or None
    is_lower_bound = world is not None and world > len(each)
    recorded = _complete(calls, by_number_and_order(calls), is_lower_bound)
    match = _complete(calls, by_time(calls, recorded, clocks_of(calls, recorded).offset_ns), is_lower_bound)
    if not (match >= 0).any():
        return None
    clocks = clocks_of(calls, match)
    split = split_of(calls, match, clocks.offset_ns)
    parts = [parts_of(calls, split, place, rank.hiding, rank.steps) for place, rank in enumerate(each)]
    match = _in_steps(calls, match, each)
    if not (match >= 0).any():
        return None
    matched = _Matched(each=each, calls=calls, match=match, split=split, clocks=clocks, parts=parts)
    verdict = Verdict(None, _MISSING) if is_lower_bound else _verdict(matched)
    by_number = (calls.sequence >= 0) & (calls.group.codes >= 0) & (recorded >= 0)
    return Waiting(
        ranks=len(each), world_size=world, is_lower_bound=is_lower_bound,
        by_number=_count(match, by_number), by_order=_count(match, (recorded >= 0) & ~by_number),
        by_time=_count(match, recorded < 0),
        clocks=_setting(clocks), each=_rows(matched), collectives=_collectives(calls, match, split, tables),
        straggler=verdict.straggler, no_straggler=verdict.why_not,
    )  # fmt: skip


def _complete(calls: RankCalls, match: Int64, is_lower_bound: bool) -> Int64:
    """`match` without collectives that lack a given rank: its record begins later or ends earlier.

    Where all ranks of the run were given, that is all of the group by its size; where they are not, and the size of
    the group is not known, those that communicate in it, and without a group all.
    """
    rows = np.flatnonzero(match >= 0)
    if not len(rows):
        return match
    count = int(match.max()) + 1
    ranks = np.bincount(match[rows], minlength=count)
    size, group = np.full((2, count), -1, dtype=np.int64)
    np.maximum.at(size, match[rows], calls.group_size[rows])
    np.maximum.at(group, match[rows], calls.group.codes[rows])
    at_hand = _ranks_of_groups(calls)[group]
    known = np.minimum(size, at_hand) if is_lower_bound else size
    needed = np.where(size > 0, known, at_hand)
    return np.where((match >= 0) & (ranks >= needed)[match], match, -1)


def _in_steps(calls: RankCalls, match: Int64, each: Sequence[RankTables]) -> Int64:
    """`match` without collectives that begin outside the steps that count on any of their ranks."""
    begins = []
    for place, rank in enumerate(each):
        start = calls.start_ns[calls.rank == place]
        step = np.searchsorted(rank.steps.start_ns, start, side="right") - 1
        begins.append(start < np.append(rank.steps.end_ns, np.iinfo(np.int64).min)[step])
    outside = (match >= 0) & ~(calls.inside & np.concatenate(begins))
    return np.where(np.isin(match, match[outside]), -1, match)


def _ranks_of_groups(calls: RankCalls) -> Int64:
    """How many of the given ranks communicate in each group; a last entry for none."""
    pairs = distinct((calls.group.codes + 1) * calls.ranks + calls.rank)
    groups = pairs.values // calls.ranks - 1
    counts = np.bincount(groups[groups >= 0], minlength=len(calls.group.values))
    return np.append(counts, calls.ranks).astype(np.int64)


def _count(match: Int64, rows: Bool) -> int:
    return len(distinct(match[rows & (match >= 0)]).values)


def _setting(clocks: Clocks) -> ClockSetting:
    return ClockSetting(
        was_set=bool(clocks.offset_ns.any()), collectives=clocks.used, within_ns=clocks.within_ns,
        ended_too_early_before=clocks.violated_before, ended_too_early=clocks.violated,
    )  # fmt: skip


def _verdict(matched: _Matched) -> Verdict:
    ranks, steps = (tuple(getattr(rank, name) for rank in matched.each) for name in ("rank", "steps"))
    return verdict_of(ranks, steps, matched.parts, matched.calls, matched.match, matched.split, matched.clocks)


def _rows(matched: _Matched) -> tuple[RankWaiting, ...]:
    calls, split = matched.calls, matched.split
    sums = np.zeros((4, calls.ranks), dtype=np.int64)
    np.add.at(sums[0], calls.rank, 1)
    rows = np.flatnonzero(matched.match >= 0)
    np.add.at(sums[1], calls.rank[rows], 1)
    np.add.at(sums[2], calls.rank[rows], calls.end_ns[rows] - split.begun_ns[rows])
    np.add.at(sums[3], calls.rank[rows], split.begun_ns[rows] - calls.start_ns[rows])
    charged = charges(calls, matched.match, split).tolist()
    offsets = matched.clocks.offset_ns.tolist()
    columns = zip(matched.each, offsets, *sums.tolist(), charged, matched.parts, strict=True)
    return tuple(
        RankWaiting(
            rank=rank.rank.rank, trace=rank.rank.trace, clock_offset_ns=offset, calls=count, matched=matched,
            transferring_ns=transferring, waiting_ns=waiting, charged_ns=charge, steps=steps,
        )
        for rank, offset, count, matched, transferring, waiting, charge, steps in columns
    )  # fmt: skip


def _collectives(
    calls: RankCalls, match: Int64, split: Split, tables: Sequence[CollectiveCalls]
) -> tuple[MatchedCollective, ...]:
    """The matched calls by collective, data type and group size, the longest first."""
    dtypes = [text for table in tables for text in table.dtype.decoded()]
    sizes = np.concatenate([message_sizes(table) for table in tables])
    groups: dict[tuple[str, str | None, int | None], list[int]] = {}
    for row in np.flatnonzero(match >= 0).tolist():
        members = int(calls.group_size[row])
        key = calls.collective.at(row) or "", dtypes[row], members if members > 0 else None
        groups.setdefault(key, []).append(row)
    made = []
    for (name, dtype, size), places in groups.items():
        rows = np.array(places, dtype=np.int64)
        message = sizes[rows]
        duration, transferring = calls.end_ns[rows] - calls.start_ns[rows], calls.end_ns[rows] - split.begun_ns[rows]
        sized = message >= 0
        factor = bus_factor(name, size or calls.ranks)
        made.append(
            MatchedCollective(
                collective=name, dtype=dtype, group_size=size, collectives=len(distinct(match[rows]).values),
                calls=len(rows), duration_ns=int(duration.sum()), transferring_ns=int(transferring.sum()),
                waiting_ns=int((duration - transferring).sum()),
                bytes=int(message[sized].sum()) if sized.any() else None,
                bus_bytes_per_second=_rate(message, duration, sized, factor),
                transfer_bus_bytes_per_second=_rate(message, transferring, sized, factor),
            )
        )  # fmt: skip
    return tuple(sorted(made, key=lambda row: (-row.duration_ns, row.collective, row.dtype or "", row.group_size or 0)))


def _rate(message: Int64, spent_ns: Int64, sized: Bool, factor: float | None) -> float | None:
    """What the messages put on the links in the time."""
    whole = int(spent_ns[sized].sum())
    return factor * int(message[sized].sum()) * 1e9 / whole if factor and whole else None
