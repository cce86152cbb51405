"""The collective calls of all ranks in one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from opanatomy.records.columns import Bool, Categorical, Int64
from opanatomy.records.rank_summary import CollectiveCalls

#: Collectives that end on no rank before they have begun on all: every rank needs something of every other one.
SYNCHRONIZING: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
#: Of these all ranks have messages of one size.
EVEN: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
#: Between two ranks: nothing tells which of the others the other one is.
PAIRWISE: Final = ("send", "recv", "send_recv")


class RankCalls(Struct, frozen=True, kw_only=True):
    """One row a collective call of a rank; `rank` is its place among the given ranks, times are the trace's own."""

    ranks: int
    rank: Int64
    collective: Categorical[str]
    named: Bool
    group: Categorical[str]
    group_size: Int64
    sequence: Int64
    #: Bytes of the message where all ranks have the same, -1 where they need not or it is not known.
    size: Int64
    #: When the host called it; where that is not recorded, when it began.
    asked_ns: Int64
    #: When the host called it, and when it last returned before that from waiting for the device; -1 not recorded.
    launched_ns: Int64
    synchronized_ns: Int64
    #: Whether it is work of the window's steps.
    inside: Bool
    start_ns: Int64
    end_ns: Int64

    def is_among(self, names: Sequence[str]) -> Bool:
        """Which calls are of these collectives."""
        among = np.array([name in names for name in self.collective.values] + [False], dtype=bool)
        rows: Bool = among[self.collective.codes]
        return rows


def calls_of_ranks(tables: Sequence[CollectiveCalls]) -> RankCalls:
    """The tables of the ranks, one below the other."""
    collective = _column([table.collective for table in tables])
    even = np.array([name in EVEN for name in collective.values] + [False], dtype=bool)[collective.codes]
    size = np.maximum(_numbers(tables, "sent_bytes"), _numbers(tables, "received_bytes"))
    launched, start = _numbers(tables, "launched_ns"), _numbers(tables, "start_ns")
    return RankCalls(
        ranks=len(tables),
        rank=np.repeat(np.arange(len(tables)), [len(table.start_ns) for table in tables]),
        collective=collective,
        named=np.concatenate([table.named for table in tables]),
        group=_column([table.group for table in tables]),
        group_size=_numbers(tables, "group_size"), sequence=_numbers(tables, "sequence"),
        size=np.where(even, size, -1),
        asked_ns=np.where(launched >= 0, launched, start), launched_ns=launched,
        synchronized_ns=_numbers(tables, "synchronized_ns"),
        inside=np.concatenate([table.inside for table in tables]), start_ns=start, end_ns=_numbers(tables, "end_ns"),
    )  # fmt: skip


def _numbers(tables: Sequence[CollectiveCalls], name: str) -> Int64:
    return np.concatenate([getattr(table, name) for table in tables])


def _column(columns: Sequence[Categorical[str]]) -> Categorical[str]:
    """One column under the other, with the values of all."""
    numbers: dict[str, int] = {}
    codes = []
    for column in columns:
        places = [numbers.setdefault(value, len(numbers)) for value in column.values]
        codes.append(np.array([*places, -1], dtype=np.int64)[column.codes])
    return Categorical(np.concatenate(codes), tuple(numbers))
