"""How much a sparse tensor stores, where the trace of a call shows it: below it, its values and indices are taken out.

`aten::values` of a compressed tensor (CSR, CSC, BSR, BSC) is an `aten::alias` of the vector that it keeps, whose size
is recorded; so are its two vectors of indices. COO tensors leave no such trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from opanatomy.records.columns import Bool, Int64, is_among
from opanatomy.records.signature import Argument, Signature, Stored, Tensor

_VALUES = "aten::values"
_INDICES = frozenset({"aten::crow_indices", "aten::col_indices", "aten::ccol_indices", "aten::row_indices"})

#: (the call, the shape of a sparse tensor of it) -> what was taken out of such tensors: the operator and the vector.
_Seen = dict[tuple[int, tuple[int, ...]], set[tuple[str, Tensor]]]


def with_stored(
    names: Sequence[str], name: Int64, parent: Int64, signature: Int64, signatures: list[Signature | None]
) -> Int64:
    """The signature of each host row, with what its sparse tensors store where that is seen; `signatures` grows."""
    unknown = np.array([call is not None and any(map(_is_unknown, call.tensors())) for call in signatures], dtype=bool)
    if not unknown.any():
        return signature
    numbers = {call: number for number, call in enumerate(signatures) if call is not None}
    fuller_signature = signature.copy()
    seen = _seen_below(names, name, parent, signature, signatures, unknown)
    for row in sorted({row for row, _ in seen}):
        known = signatures[int(signature[row])]
        if known is None:
            continue
        fuller = _filled(known, row, seen)
        if fuller not in numbers:
            numbers[fuller] = len(signatures)
            signatures.append(fuller)
        fuller_signature[row] = numbers[fuller]
    return fuller_signature


def _is_unknown(tensor: Tensor) -> bool:
    return tensor.sparse is not None and tensor.sparse.elements is None


def _seen_below(
    names: Sequence[str], name: Int64, parent: Int64, signature: Int64, signatures: Sequence[Signature | None],
    unknown: Bool,
) -> _Seen:  # fmt: skip
    """What is taken out of sparse tensors below each call that has one."""
    aliases = [number for number, text in enumerate(names) if text == "aten::alias"]
    seen: _Seen = {}
    for row in np.flatnonzero(is_among(name, np.array(aliases, dtype=np.int64)) & (parent >= 0)).tolist():
        taker = int(parent[row])
        vector, source = _first(signatures, int(signature[row])), _first(signatures, int(signature[taker]))
        operator = names[int(name[taker])]
        if vector is None or source is None or (operator != _VALUES and operator not in _INDICES):
            continue
        for above in _above(parent, taker):
            if signature[above] >= 0 and unknown[signature[above]]:
                seen.setdefault((above, source.shape), set()).add((operator, Tensor(vector.shape, vector.dtype)))
    return seen


def _first(signatures: Sequence[Signature | None], number: int) -> Tensor | None:
    """The first argument of a call, if it is a tensor."""
    call = signatures[number] if number >= 0 else None
    value = call.get(0) if call is not None else None
    return value if isinstance(value, Tensor) else None


def _above(parent: Int64, row: int) -> Iterator[int]:
    while (row := int(parent[row])) >= 0:
        yield row


def _filled(known: Signature, row: int, seen: _Seen) -> Signature:
    """The arguments of a call; two sparse tensors of one shape cannot be distinguished and stay unknown."""
    shapes = [tensor.shape for tensor in known.tensors() if _is_unknown(tensor)]

    def filled(value: Argument) -> Argument:
        if not isinstance(value, Tensor) or not _is_unknown(value) or shapes.count(value.shape) > 1:
            return value
        stored = _stored(seen.get((row, value.shape), set()))
        return value if stored is None else replace(value, sparse=stored)

    return Signature(tuple(map(filled, known.arguments)))


def _stored(taken: set[tuple[str, Tensor]]) -> Stored | None:
    """What all that was taken out says, where it is one vector of values and two of indices."""
    values = [vector for operator, vector in taken if operator == _VALUES]
    indices = [vector.bytes for operator, vector in taken if operator in _INDICES]
    operators = {operator for operator, _ in taken}
    if len(values) != 1 or len(indices) != 2 or len(operators) != 3 or None in indices:
        return None
    return Stored(values[0].numel, sum(size for size in indices if size is not None))
