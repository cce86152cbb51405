"""What calls cost, looked up once for each distinct operator, signature and element type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

import numpy as np
from msgspec import Struct

from opanatomy.calls.classes import ELEMENT_TYPES
from opanatomy.calls.element_types import with_element_type
from opanatomy.cost import cost
from opanatomy.records.columns import Int64, distinct
from opanatomy.records.signature import Cost, Signature

#: FLOPs, and bytes, of a whole trace at most: more than an hour of any device.
_MAX_COST: Final = 2**62
TOO_COSTLY: Final = (
    "some argument shapes cannot be: they cost more than any device does in an hour; they count as without costs"
)


class CallCosts(Struct, frozen=True, kw_only=True):
    """What a call of each distinct operator, signature and element type costs; -1 is "not known"."""

    #: For each host row the row of this table that is its own.
    row: Int64
    flops: Int64
    read_bytes: Int64
    written_bytes: Int64
    causal_flops: Int64
    normalization_flops: Int64

    def flops_at(self, host_row: int) -> int | None:
        """The FLOPs of the call at a host row."""
        flops = int(self.flops[self.row[host_row]])
        return flops if flops >= 0 else None


def costs_of(
    names: Sequence[str],
    signatures: Sequence[Signature | None],
    columns: tuple[Int64, Int64, Int64],
    device_kind: str | None,
) -> tuple[CallCosts, tuple[str, ...]]:
    """The costs of all host rows, and what there is to warn of.

    `columns` have the name, the signature and the element type of each host row; `device_kind` is that of formulas
    which hold on one kind alone. Costs that no device can run up, the largest ones, are taken for unknown, so that
    every sum over the calls fits its column.
    """
    name, signature, element = columns
    width, kinds = len(signatures) + 1, len(ELEMENT_TYPES) + 1
    keys = distinct((name * width + signature + 1) * kinds + element + 1)
    calls: list[int] = np.bincount(keys.inverse, minlength=len(keys.values)).tolist()
    first = keys.first
    costs = [
        _cost(names[operator], signatures[number] if number >= 0 else None, kind, device_kind)
        for operator, number, kind in zip(
            name[first].tolist(), signature[first].tolist(), element[first].tolist(), strict=True
        )
    ]
    totals = [count * _largest_figure(known) if known else 0 for count, known in zip(calls, costs, strict=True)]
    limit = _largest_possible(totals)
    possible = [known if total <= limit else None for known, total in zip(costs, totals, strict=True)]
    table = np.array([_figures(known) for known in possible], dtype=np.int64).reshape(-1, 5).T
    costs_of_calls = CallCosts(
        row=keys.inverse, flops=table[0], read_bytes=table[1], written_bytes=table[2], causal_flops=table[3],
        normalization_flops=table[4],
    )  # fmt: skip
    return costs_of_calls, (TOO_COSTLY,) if limit < max(totals, default=0) else ()


def _cost(operator: str, signature: Signature | None, element: int, device_kind: str | None) -> Cost | None:
    if signature is None:
        return None
    return cost(operator, with_element_type(signature, ELEMENT_TYPES[element]) if element >= 0 else signature,
                device_kind)  # fmt: skip


def _largest_figure(known: Cost) -> int:
    return max(known.flops, known.read_bytes, known.written_bytes, known.causal_flops or 0, known.normalization_flops)


def _largest_possible(totals: Iterable[int]) -> int:
    """The largest of the totals up to which all of them together are possible; equal ones count alike."""
    spent = largest = 0
    for total, alike in groupby(sorted(totals)):
        spent += total * len(list(alike))
        if spent > _MAX_COST:
            break
        largest = total
    return largest


def _figures(known: Cost | None) -> tuple[int, ...]:
    if known is None:
        return (-1,) * 5
    causal = -1 if known.causal_flops is None else known.causal_flops
    return known.flops, known.read_bytes, known.written_bytes, causal, known.normalization_flops or -1
