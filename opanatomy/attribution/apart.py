"""Operators that ran inside another's event but are no part of it: derivative formulas, hooks of saved tensors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opanatomy.attribution.ownership import above_any, redispatched
from opanatomy.attribution.passing import Dispatched, named
from opanatomy.tables import Bool, Int64

_PRIMAL = re.compile(r"^aten::(?:_fw_primal|_efficientzerotensor)$")
#: With these the kernels of matrix products begin, on the CPU.
_BEGINS = re.compile(r"^aten::(?:resolve_conj|expand)$")
_FILLS = re.compile(r"^aten::(?:zeros|zero_|fill_)$")


def derived(rows: Dispatched) -> Bool:
    """What forward-mode differentiation runs below an operator: its tangent, beside its own result.

    The operator's kernel runs first; its formula begins by taking the primal out of its arguments (`aten::_fw_primal`)
    and calls operators for the tangent, often of the same name.
    """
    starts = np.flatnonzero(named(rows, _PRIMAL) & (rows.parent >= 0))
    if not len(starts):
        return np.zeros(len(rows.name), dtype=bool)
    first = np.full(len(rows.name), len(rows.name), dtype=np.int64)
    np.minimum.at(first, rows.parent[starts], starts)
    row = np.arange(len(rows.name))
    found: Bool = (rows.parent >= 0) & (row > first[rows.parent]) & (rows.kind[rows.parent] >= 0)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What is known of the kernels of each name: which other operators they call (`None`: not known)."""

    calls: Sequence[frozenset[str] | None]
    #: Of matrix products, which save arguments only: hooks run before the kernel.
    product: Bool


def hooked(rows: Dispatched, kernels: Kernels, numbered: Bool, whole: Bool, across: Bool) -> Bool:
    """What hooks of saved tensors run inside an operator's event: offloading, quantized activations.

    Autograd packs arguments before the kernel runs and results after it, inside the operator's event, without
    gradient mode: nothing in a trace marks the hook. So it is told from what kernels do: an operator below one of
    known kernels (`Kernels`) that none of these calls, a copy between host and device (`across`), and what ran before
    them below a product. Only operators dispatched in gradient mode (`numbered`) on floating-point tensors save any,
    and kernels convert numbers: what acts on a tensor of no dimensions (not `whole`) is theirs.
    """
    known = np.array([calls is not None for calls in kernels.calls], dtype=bool)
    saves = numbered & known[rows.name]
    saves[rows.parent[redispatched(rows.name, rows.parent)]] = False
    below = np.flatnonzero(rows.parent >= 0)
    below = below[saves[rows.parent[below]]]
    if not len(below):
        return np.zeros(len(rows.name), dtype=bool)
    computing = (rows.kind >= 0) | above_any(rows.kind >= 0, rows.parent)
    below = below[computing[below] & whole[below]]
    foreign = below[_foreign(rows, kernels, below) | (across | above_any(across, rows.parent))[below]]
    found = np.zeros(len(rows.name), dtype=bool)
    found[foreign] = True
    found[_before_products(rows, kernels, below, foreign)] = True
    return found


def _foreign(rows: Dispatched, kernels: Kernels, below: Int64) -> Bool:
    """Whether each row has a name that the kernels of the operator directly above it never call."""
    pairs = rows.name[rows.parent[below]] * len(rows.names) + rows.name[below]
    distinct, place = np.unique(pairs, return_inverse=True)
    foreign = [
        rows.names[pair % len(rows.names)] not in (kernels.calls[pair // len(rows.names)] or ())
        for pair in distinct.tolist()
    ]
    return np.array(foreign, dtype=bool)[place]


def _before_products(rows: Dispatched, kernels: Kernels, below: Int64, foreign: Int64) -> Int64:
    """Of the rows `below` those that ran before a product's kernel: before a row of a hook, or before it began."""
    last = np.full(len(rows.name), -1, dtype=np.int64)
    np.maximum.at(last, rows.parent[foreign], foreign)
    begins = np.flatnonzero(named(rows, _BEGINS) & (rows.parent >= 0))
    first = np.full(len(rows.name), len(rows.name), dtype=np.int64)
    np.minimum.at(first, rows.parent[begins], begins)
    has_begun = first < len(rows.name)
    limit = np.maximum(last, np.where(has_begun, first, -1))
    above = rows.parent[below]
    return below[kernels.product[rows.name[above]] & (below < limit[above]) & ~named(rows, _FILLS)[below]]
