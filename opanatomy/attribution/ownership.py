"""Which operator call a piece of work belongs to, once it is known which operators compute."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opanatomy.attribution.nesting import nearest_above
from opanatomy.tables import Bool, Int64


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
    own_work = np.asarray(computes, dtype=bool)
    idle = _above(own_work, parents) if works is None else ~np.asarray(works, dtype=bool)
    hands_on = _repeated(names, parents) | (np.asarray(delegates, dtype=bool) & idle)
    can = own_work & ~hands_on
    above = np.where(parents >= 0, nearest_above(can, parents)[parents], -1)
    return nearest_above(can & (above < 0), parents)


def _above(marked: Bool, parents: Int64) -> Bool:
    """Whether a marked row is anywhere below each row."""
    found = [False] * len(parents)
    below = marked.tolist()
    for row, parent in reversed(list(enumerate(parents.tolist()))):
        if parent >= 0 and (found[row] or below[row]):
            found[parent] = True
    return np.array(found, dtype=bool)


def _repeated(names: Int64, parents: Int64) -> Bool:
    """Whether a direct child of each row has its name."""
    repeated = np.zeros(len(parents), dtype=bool)
    children = np.flatnonzero(parents >= 0)
    same = children[names[children] == names[parents[children]]]
    repeated[parents[same]] = True
    return repeated
