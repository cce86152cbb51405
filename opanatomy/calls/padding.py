"""FLOPs of contractions on padding: by their shapes, which have the length of the padded batch in them.

A product over all tokens of a batch computes as much for each of them, one of two sequences (attention's scores, and
its sum over values) as much for each pair; a product without the length, such as that of a pooled token, is of no
padding.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import prod

import numpy as np
from msgspec import Struct

from opanatomy.calls.trace_calls import TraceCalls
from opanatomy.records.columns import CallTable
from opanatomy.records.signature import Signature, Tensor
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.records.texts import PaddingFlops, TextBatch


class _Sizes(Struct, frozen=True, kw_only=True):
    """What the shapes of a step on a batch show: texts of one forward, the padded length; and what of it is useful."""

    rows: int
    length: int
    #: Of all tokens, of all pairs of tokens of one text.
    useful: Fraction
    useful_pairs: Fraction


def padding_flops(
    calls: TraceCalls, table: CallTable, batch: TextBatch, *, steps: int, micro_batches: int = 1
) -> PaddingFlops:
    """The FLOPs of one of `steps` steps on a batch; those of one whose shapes do not tell are not assigned."""
    sizes = _sizes_of(batch, micro_batches)
    contraction = table.operator_class.equals(OperatorClass.TENSOR_CONTRACTION)
    rows = np.flatnonzero(contraction & ~table.inner & (table.flops > 0) & (table.host_row >= 0))
    total = assigned = 0
    padding = Fraction()
    useful: dict[int, Fraction | None] = {}
    for row in rows.tolist():
        number, flops = int(calls.signature[table.host_row[row]]), int(table.flops[row])
        if number not in useful:
            signature = calls.signatures[number] if number >= 0 else None
            useful[number] = None if signature is None else _useful(signature, sizes)
        part = useful[number]
        total += flops
        if part is not None:
            assigned += flops
            padding += flops * (1 - part)
    steps = max(steps, 1)
    return PaddingFlops(flops=total // steps, assigned_flops=assigned // steps, padding_flops=round(padding / steps))


def _sizes_of(batch: TextBatch, micro_batches: int) -> _Sizes:
    pairs = sum(length * length for length in batch.lengths)
    return _Sizes(
        rows=len(batch.lengths) // micro_batches,
        length=batch.length,
        useful=Fraction(batch.useful_tokens, batch.tokens),
        useful_pairs=Fraction(pairs, batch.tokens * batch.length),
    )


def _useful(signature: Signature, sizes: _Sizes) -> Fraction | None:
    """The useful part of a contraction; `None` where its shapes do not tell."""
    factors = [tensor for tensor in signature.tensors() if len(tensor.shape) >= 2]
    if len(factors) >= 2 and all(len(tensor.shape) == 4 for tensor in factors[:3]):
        return _of_attention(factors, sizes)
    pair = _multiplied(factors)
    if pair is None:
        return None
    first, second = pair
    if len(first.shape) == len(second.shape) == 3:
        return _of_matrices(first, second, sizes)
    return _of_product(first, second, sizes)


def _multiplied(tensors: list[Tensor]) -> tuple[Tensor, Tensor] | None:
    """The two matrices that are multiplied: before them may be what is added, after them what it is written to."""
    for place, (first, second) in enumerate(pairwise(tensors)):
        product = (*first.shape[:-1], second.shape[-1])
        others = (*tensors[:place], *tensors[place + 2 :])
        if first.shape[-1] == second.shape[-2] and all(other.shape == product for other in others):
            return first, second
    return (tensors[0], tensors[1]) if len(tensors) == 2 else None


def _of_attention(factors: list[Tensor], sizes: _Sizes) -> Fraction | None:
    """Fused attention: both sequences are those of the texts."""
    tokens = all(sizes.length in tensor.shape[1:3] and tensor.shape[0] == sizes.rows for tensor in factors[:3])
    return sizes.useful_pairs if tokens else None


def _of_matrices(first: Tensor, second: Tensor, sizes: _Sizes) -> Fraction | None:
    """A matrix for each text, or each head of it: `[b, m, k]` by `[b, k, n]`."""
    (batch, m, k), n = first.shape, second.shape[2]
    if batch % sizes.rows:
        return None
    tokens = (m, k, n).count(sizes.length)
    return (None, sizes.useful, sizes.useful_pairs, sizes.useful_pairs)[tokens]


def _of_product(first: Tensor, second: Tensor, sizes: _Sizes) -> Fraction | None:
    """One matrix product: `[m, k]` by `[k, n]`, the tokens in the rows of the first or summed over."""
    m, k, n = prod(first.shape[:-1]), first.shape[-1], second.shape[-1]
    tokens = sizes.rows * sizes.length
    # A weight's gradient sums over texts where it is of a pooled token, even if as many features as tokens are left.
    of_texts = sizes.rows in (m, k) and not (m == tokens and k == sizes.rows and n != tokens)
    if of_texts and sizes.length > 1:
        return Fraction(1)
    return sizes.useful if tokens in (m, k) else None
