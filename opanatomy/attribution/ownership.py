"""Which operator call a device event belongs to, once it is known which operators compute."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from opanatomy.attribution.nesting import nearest_above
from opanatomy.records.columns import Bool, Int64
from opanatomy.records.taxonomy import OperatorClass

#: A class in a column is its place here; -1 is an operator that does no work of its own.
CLASSES = tuple(OperatorClass)
_CONTRACTION, _MOVEMENT = (
    CLASSES.index(kind) for kind in (OperatorClass.TENSOR_CONTRACTION, OperatorClass.DATA_MOVEMENT)
)


class Candidates(Struct, frozen=True, kw_only=True):
    """The host events as ownership sees them, in the order of `nesting.order_of`: parents before their children.

    `delegates` and `composite` are those of the name's `Classification`. `passes` are those known to do no work
    themselves, whatever their name (`attribution.passing`). `works` are those that launched device work; `None` on the
    CPU, where that is not recorded. What is no part of the operator that encloses it (`attribution.apart`) has no
    parent here.
    """

    name: Int64
    parent: Int64
    kind: Int64
    delegates: Bool
    composite: Bool
    passes: Bool
    works: Bool | None = None


def own(rows: Candidates) -> Int64:
    """For each host event the row of the call it is part of, -1 for those that only dispatch.

    The outermost operator that computes owns all that runs below it: a copy inside `aten::addmm` is part of the
    addmm. An operator that `delegates` owns only where it works itself: on an accelerator where it launched device
    work, on the CPU where nothing below it can do its work (`_carried`). One that directly calls another overload of
    its own name hands over to it: under autocast `aten::mm` of float32 casts, then calls `aten::mm` of bfloat16.
    """
    parents = rows.parent
    idle = _carried(rows, parents) if rows.works is None else ~rows.works
    can = (rows.kind >= 0) & ~(rows.passes | _repeated(rows.name, parents) | (rows.delegates & idle))
    above = np.where(parents >= 0, nearest_above(can, parents)[parents], -1)
    return nearest_above(can & (above < 0), parents)


def _carried(rows: Candidates, parents: Int64) -> Bool:
    """Whether something below each row can do the work that its name stands for.

    Only a contraction does that of a contraction, and no copy, fill or allocation that of anything but data movement:
    `aten::_convolution` of a transposed convolution on the CPU runs a kernel without an event of its own next to
    copies that have one. A `composite` is what it calls, whatever that is.
    """
    anything = above_any(rows.kind >= 0, parents)
    arithmetic = above_any((rows.kind >= 0) & (rows.kind != _MOVEMENT), parents)
    product = above_any(rows.kind == _CONTRACTION, parents)
    needed = np.where(rows.kind == _CONTRACTION, product, np.where(rows.kind == _MOVEMENT, anything, arithmetic))
    carried: Bool = np.where(rows.composite, anything, needed)
    return carried


def above_any(marked: Bool, parents: Int64) -> Bool:
    """Whether a marked row is anywhere below each row."""
    holds_one = np.zeros(len(parents), dtype=bool)
    level = parents[marked]
    while len(level):
        level = np.sort(level[level >= 0])
        level = level[np.append(True, level[1:] != level[:-1])[: len(level)]]
        level = level[~holds_one[level]]
        holds_one[level] = True
        level = parents[level]
    return holds_one


def _repeated(names: Int64, parents: Int64) -> Bool:
    """Whether a direct child of each row has its name."""
    repeated = np.zeros(len(parents), dtype=bool)
    repeated[parents[redispatched(names, parents)]] = True
    return repeated


def redispatched(names: Int64, parents: Int64) -> Int64:
    """The rows that have the name of the row they are directly below."""
    children = np.flatnonzero(parents >= 0)
    again: Int64 = children[names[children] == names[parents[children]]]
    return again
