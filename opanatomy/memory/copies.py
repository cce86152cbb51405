"""Copies of a generation's cache: what is made to take its place is none of it until what it was made of is freed."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from opanatomy.memory import components as named
from opanatomy.memory.blocks import Blocks
from opanatomy.memory.components import COMPONENTS
from opanatomy.records.columns import Int64
from opanatomy.records.memory_columns import MemoryMarks, MemoryTable
from opanatomy.records.memory_observations import MARK_KINDS, MarkKind

_GROWN, _REORDERED = (MARK_KINDS.index(kind) for kind in (MarkKind.KEY_VALUE_CACHE, MarkKind.REORDERED_CACHE))
#: What a copy is: a forward makes a longer one to append a token, a reordering one with the beams that go on.
_ROLE: Final = {_GROWN: COMPONENTS.index(named.TEMPORARY), _REORDERED: COMPONENTS.index(named.BEAM_COPIES)}
_NONE: Final = -1


class Copies(Struct, frozen=True, kw_only=True):
    """Of each block the event up to which it is a copy (-1 of one that is none), and its component until then."""

    until: Int64
    component: Int64


def copies_of(table: MemoryTable, blocks: Blocks) -> Copies:
    """The copies among the blocks: of two marks of the cache in succession, the second has at the place of a storage
    another one that was allocated while that was live."""
    assert table.marks is not None
    until, component = (np.full(len(blocks.alloc), _NONE, dtype=np.int64) for _ in range(2))
    before = np.zeros(0, dtype=np.int64)
    for kind, held in _held(table.marks, blocks):
        if len(held) == len(before):
            new = np.flatnonzero((held != before) & (held >= 0) & (before >= 0))
            new = new[blocks.alloc[held[new]] < blocks.free[before[new]]]
            until[held[new]] = blocks.free[before[new]]
            component[held[new]] = _ROLE[kind]
        before = held
    return Copies(until=until, component=component)


def _held(marks: MemoryMarks, blocks: Blocks) -> list[tuple[int, Int64]]:
    """The kind of each mark of the cache in order, and the blocks of its storages (-1 not one of the step's)."""
    rows = np.flatnonzero(((marks.kind == _GROWN) | (marks.kind == _REORDERED)) & (marks.address >= 0))
    if not len(rows):
        return []
    block = blocks.live_at(marks.event[rows], marks.address[rows])
    starts = np.flatnonzero(np.diff(marks.event[rows], prepend=_NONE))
    return list(zip(marks.kind[rows[starts]].tolist(), np.split(block, starts[1:]), strict=True))
