"""Which operator call a piece of work belongs to, once it is known which operators compute."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opanatomy.tables import Int64


def own(
    names: Int64,
    parents: Int64,
    computes: Sequence[bool],
    delegates: Sequence[bool],
    works: Sequence[bool] | None = None,
) -> Int64:
    """For each host event the row of the call it is part of, -1 for those that only dispatch.

    The outermost operator that computes owns all that runs below it: a copy inside `aten::addmm` is part of the
    addmm. An operator that `delegates` owns only where it works itself: it launched device work (`works`, known on an
    accelerator), or nothing below it computes (all that can be known on the CPU). One that directly calls another
    overload of its own name hands over to it: under autocast `aten::mm` of float32 casts, then calls `aten::mm` of
    bfloat16. Rows are in the order of `nesting.order_of`, so parents come before their children.
    """
    count = len(parents)
    above = parents.tolist()
    hands_on = _repeated(names, parents)
    computing_below = [False] * count
    for row in range(count - 1, -1, -1):
        parent = above[row]
        if parent >= 0 and (computing_below[row] or computes[row]):
            computing_below[parent] = True
    for row in range(count):
        if delegates[row]:
            hands_on[row] |= computing_below[row] if works is None else not works[row]
    owner = [-1] * count
    for row in range(count):
        parent = above[row]
        if parent >= 0 and owner[parent] >= 0:
            owner[row] = owner[parent]
        elif computes[row] and not hands_on[row]:
            owner[row] = row
    return np.array(owner, dtype=np.int64)


def _repeated(names: Int64, parents: Int64) -> list[bool]:
    """Whether a direct child of each row has its name."""
    repeated = np.zeros(len(parents), dtype=bool)
    children = np.flatnonzero(parents >= 0)
    same = children[names[children] == names[parents[children]]]
    repeated[parents[same]] = True
    found: list[bool] = repeated.tolist()
    return found
