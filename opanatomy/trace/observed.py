"""What a capture observed of arguments that Kineto does not record, put into the signatures of the calls it is of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from opanatomy.records.columns import HostEvents, is_among
from opanatomy.records.signature import Argument, Signature, Stored, Tensor
from opanatomy.records.workload import ObservedCall
from opanatomy.trace.signatures import sizes_of, strides_of

#: A call as both know it: its operator and the tensors at their places.
Key: TypeAlias = "tuple[str, tuple[tuple[int, Tensor], ...]]"

#: The observer sees the operator that was called, the trace also the one that does the work, with the same arguments.
_WORKERS = {
    "aten::index_put": "aten::_index_put_impl_",
    "aten::index_put_": "aten::_index_put_impl_",
}


def fill_in_observed(
    names: Sequence[str], host: HostEvents, signatures: list[Signature | None], observed: Sequence[ObservedCall]
) -> None:
    """Fill in the arguments of calls that were observed; `signatures` grows by those that are new.

    Calls of one operator on like tensors are matched in their order. Where the observed step made another number of
    them than each traced step (routing that changed, say) and they differ, nothing is filled in.
    """
    by_tensors: dict[Key, list[Signature]] = {}
    lengths: dict[str, int] = {}
    for call in observed:
        signature = _signature(call.arguments)
        if signature is None:
            continue
        for name in {call.operator, _WORKERS.get(call.operator, call.operator)}:
            by_tensors.setdefault((name, _tensors(signature)), []).append(signature)
            lengths[name] = len(signature.arguments)
    numbers: dict[Signature, int] = {}
    for key, rows in _rows_by_key(names, host, signatures, lengths).items():
        for row, signature in zip(rows, _in_order(by_tensors.get(key, []), len(rows)), strict=False):
            known = signatures[int(host.signature[row])]
            merged = _merged(known, signature) if known else signature
            if merged not in numbers:
                numbers[merged] = len(signatures)
                signatures.append(merged)
            host.signature[row] = numbers[merged]


def _in_order(signatures: list[Signature], wanted: int) -> list[Signature]:
    """The signature of each of `wanted` calls in a row; none where they cannot be distinguished."""
    if len(set(signatures)) == 1:
        return [signatures[0]] * wanted
    if not signatures or wanted % len(signatures):
        return []
    return signatures * (wanted // len(signatures))


def _rows_by_key(
    names: Sequence[str], host: HostEvents, signatures: Sequence[Signature | None], wanted: Mapping[str, int]
) -> dict[Key, list[int]]:
    """The rows of each call by the tensors of the observed overload: an `out` tensor after them is its result."""
    numbers = [number for number, name in enumerate(names) if name in wanted]
    rows = np.flatnonzero(is_among(host.name, np.array(numbers, dtype=np.int64)) & (host.signature >= 0))
    rows_by_key: dict[Key, list[int]] = {}
    for row in rows[np.argsort(host.start_ns[rows], kind="stable")].tolist():
        signature = signatures[int(host.signature[row])]
        if signature is not None:
            name = names[int(host.name[row])]
            rows_by_key.setdefault((name, _tensors(signature, wanted[name])), []).append(row)
    return rows_by_key


def _tensors(signature: Signature, length: int | None = None) -> tuple[tuple[int, Tensor], ...]:
    return tuple(
        (place, Tensor(value.shape, value.dtype))
        for place, value in enumerate(signature.arguments[:length])
        if isinstance(value, Tensor)
    )


def _merged(known: Signature, observed: Signature) -> Signature:
    """The recorded arguments, those that were not recorded from what was observed."""
    extra = observed.arguments[len(known.arguments) :]
    pairs = zip(known.arguments, observed.arguments, strict=False)
    merged = tuple(other if recorded is None or _is_fuller(other, recorded) else recorded for recorded, other in pairs)
    return Signature((*merged, *known.arguments[len(merged) :], *extra))


def _is_fuller(observed: Argument, recorded: Argument) -> bool:
    """Whether what was observed of a sparse tensor says how much it stores."""
    return isinstance(observed, Tensor) and isinstance(recorded, Tensor) and observed.sparse is not None


def _signature(text: str) -> Signature | None:
    """The arguments of an observed call; `None` where they are not as a capture writes them."""
    try:
        return Signature(tuple(_argument(value) for value in json.loads(text)))
    except (ValueError, TypeError, RecursionError):
        return None


def _argument(value: Any) -> Argument:
    if isinstance(value, dict):
        shape, dtype = value.get("shape"), value.get("dtype")
        if not isinstance(shape, list) or not isinstance(dtype, str):
            raise ValueError(f"{value} is no tensor")
        return Tensor(sizes_of(shape), dtype, strides_of(shape, value.get("strides")), _stored(value))
    if isinstance(value, list):
        return tuple(_argument(item) for item in value)
    return value  # type: ignore[no-any-return]  # a JSON scalar


def _stored(value: dict[str, Any]) -> Stored | None:
    """What a sparse tensor stores, where the capture said it."""
    elements, index_bytes = value.get("elements"), value.get("index_bytes")
    if elements is None and index_bytes is None:
        return None
    if type(elements) is not int or type(index_bytes) is not int or min(elements, index_bytes) < 0:
        raise ValueError(f"{value} is no sparse tensor")
    return Stored(elements, index_bytes)
