"""Which operator wanted the memory, of the calls around an allocation."""

from __future__ import annotations

from typing import Final

import numpy as np

from opanatomy.records.columns import Bool, Categorical, Int64

#: Operators that only allocate: what called them wanted the memory.
_ALLOCATES: Final = frozenset({
    "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::empty_permuted", "aten::new_empty",
    "aten::new_empty_strided", "aten::resize_", "aten::resize_as_", "aten::resize", "aten::set_",
})  # fmt: skip


def wanting(rows: Int64, name: Categorical[str], parent: Int64, is_operator: Bool) -> Int64:
    """The innermost operator at or around each operator's row that does more than allocate, else the outermost one."""
    allocates = np.array([*(text in _ALLOCATES for text in name.values), False], dtype=bool)[name.codes]
    wanted = rows.copy()
    moving = np.flatnonzero(allocates[wanted]) if len(wanted) else wanted
    while len(moving):
        above = enclosing(wanted[moving], parent, is_operator)
        moving, above = moving[above >= 0], above[above >= 0]
        wanted[moving] = above
        moving = moving[allocates[above]]
    return wanted


def outermost(rows: Int64, parent: Int64, is_call: Bool) -> Int64:
    """The outermost call around each call with nothing else in between."""
    outer = rows.copy()
    moving = np.arange(len(outer))
    while len(moving):
        above = enclosing(outer[moving], parent, is_call)
        moving = moving[above >= 0]
        outer[moving] = above[above >= 0]
    return outer


def enclosing(rows: Int64, parent: Int64, which: Bool) -> Int64:
    """The row around each row, -1 where it is none of these."""
    above = parent[rows]
    return np.where((above >= 0) & which[above], above, -1)
