"""Operators that ran inside another's event but are no part of it: derivative formulas, hooks of saved tensors."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from opanatomy.attribution.ownership import above_any, redispatched
from opanatomy.attribution.passing import Dispatched, named
from opanatomy.records.columns import Bool, Int64, distinct

_PRIMAL = re.compile(r"^aten::_fw_primal$")
_FILLS = re.compile(r"^aten::(?:zeros|zero_|fill_)$")


def derived(rows: Dispatched) -> Bool:
    """What forward-mode differentiation runs below an operator: its tangent, with its own result.

    The operator's kernel runs first; its formula begins by taking the primal out of its arguments (`aten::_fw_primal`)
    and calls operators for the tangent, often of the same name.
    """
    starts = np.flatnonzero(named(rows, _PRIMAL) & (rows.parent >= 0))
    if not len(starts):
        return np.zeros(len(rows.name), dtype=bool)
    first = np.full(len(rows.name), len(rows.name), dtype=np.int64)
    np.minimum.at(first, rows.parent[starts], starts)
    row = np.arange(len(rows.name))
    tangents: Bool = (rows.parent >= 0) & (row > first[rows.parent]) & (rows.kind[rows.parent] >= 0)
    return tangents


class Kernels(Struct, frozen=True, kw_only=True):
    """What is known of the kernels of each name: which other operators they call (`None`: not known).

    `begins` are those of them that a matrix product's kernel calls first; empty for what is none. The gradient of a
    product needs its arguments only: all that hooks do is before the kernel.
    """

    calls: Sequence[frozenset[str] | None]
    begins: Sequence[frozenset[str]]


def hooked(rows: Dispatched, kernels: Kernels, numbered: Bool, whole: Bool, across: Bool) -> Bool:
    """What hooks of saved tensors run inside an operator's event: offloading, quantized activations.

    Autograd packs arguments before the kernel runs and results after it, inside the operator's event, without
    gradient mode: nothing in a trace marks the hook. So it is inferred from what kernels do: an operator below one of
    known kernels (`Kernels`) that none of these calls, a copy between host and device (`across`), and what ran before
    them below a product. Only operators dispatched in gradient mode (`numbered`) on floating-point tensors save any,
    and kernels convert numbers: what acts on a tensor of no dimensions (not `whole`) is theirs.
    """
    known = np.array([calls is not None for calls in kernels.calls], dtype=bool)
    saves = numbered & known[rows.name]
    saves[rows.parent[redispatched(rows.name, rows.parent)]] = False
    below = np.flatnonzero(rows.parent >= 0)
    below = below[saves[rows.parent[below]]]
    by_hooks = np.zeros(len(rows.name), dtype=bool)
    if len(below):
        computing = (rows.kind >= 0) | above_any(rows.kind >= 0, rows.parent)
        crossing = across | above_any(across, rows.parent)
        foreign = ~_called(rows, kernels.calls, below) | crossing[below]
        own = computing & whole
        by_hooks[below[foreign & own[below]]] = True
        by_hooks[below[_before_kernel(rows, kernels, below, by_hooks) & own[below]]] = True
    return by_hooks


def _called(rows: Dispatched, known: Sequence[frozenset[str] | None], below: Int64) -> Bool:
    """Whether each row has one of the names that are known for the operator directly above it."""
    pairs = rows.name[rows.parent[below]] * len(rows.names) + rows.name[below]
    keys = distinct(pairs)
    called = [
        rows.names[pair % len(rows.names)] in (known[pair // len(rows.names)] or ()) for pair in keys.values.tolist()
    ]
    return np.array(called, dtype=bool)[keys.inverse]


def _before_kernel(rows: Dispatched, kernels: Kernels, below: Int64, foreign: Bool) -> Bool:
    """Whether each of the rows `below` ran before a product's kernel: before a row of a hook, or before it began."""
    products = np.array([bool(begins) for begins in kernels.begins], dtype=bool)
    above = rows.parent[below]
    limit = np.full(len(rows.name), -1, dtype=np.int64)
    begun = below[_called(rows, kernels.begins, below)][::-1]
    limit[rows.parent[begun]] = begun
    np.maximum.at(limit, above[foreign[below]], below[foreign[below]])
    before: Bool = products[rows.name[above]] & (below < limit[above]) & ~named(rows, _FILLS)[below]
    return before
