"""Parse the raw argument texts of an operator event into a `Signature`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from opanatomy.records.columns import HostEvents, isin
from opanatomy.records.patterns import regex
from opanatomy.records.signature import Argument, Signature, Stored, Tensor
from opanatomy.records.workload import ObservedCall
from opanatomy.trace.salvage import NOT_DECODABLE

#: Raw JSON of "Input Dims", "Input type", "Input Strides", "Concrete Inputs"; then each tensor list that a capture
#: recorded, as text (`float32[2,3];float32[4]`) with bars between.
RawArguments: TypeAlias = "tuple[bytes, bytes, bytes, bytes, str]"

#: Kineto writes C++ type names; `model.ITEM_SIZE` has torch's.
DTYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
    "long int": "int64", "long": "int64", "int64_t": "int64", "long long": "int64", "int": "int32", "short": "int16",
    "short int": "int16", "signed char": "int8", "unsigned char": "uint8", "char": "int8", "bool": "bool",
    "unsigned short": "uint16", "unsigned int": "uint32", "unsigned long": "uint64",
    "c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e5m2": "float8_e5m2",
    "c10::Float8_e4m3fnuz": "float8_e4m3fnuz", "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
    "c10::Float8_e8m0fnu": "float8_e8m0fnu",
    "c10::complex<float>": "complex64", "c10::complex<double>": "complex128", "c10::complex<c10::Half>": "complex32",
    "c10::quint8": "quint8", "c10::qint8": "qint8", "c10::qint32": "qint32",
}  # fmt: skip

#: A tensor of a list as a capture recorded it: `float32[2,3]`.
_RECORDED = regex(r"^(\w*)\[((?:\d{1,15},)*\d{1,15})?\]$", re.ASCII)
#: More dimensions than torch supports (64), elements than any memory, list elements than in real traces.
_MAX_DIMENSIONS: Final = 64
_MAX_ELEMENTS: Final = 1 << 50
_MAX_VALUES: Final = 500_000


class _Implausible(ValueError):
    """Raised for impossible arguments: negative or gigantic sizes, sizes that are not numbers."""


def parse_signatures(raw: Sequence[RawArguments], warnings: list[str]) -> list[Signature | None]:
    """Return the signature of each argument list; `None` (and a warning) for those too large for any memory."""
    left = _MAX_VALUES
    signatures: list[Signature | None] = []
    unread = 0
    for one in raw:
        left -= sum(text.count(b",") + text.count(b"[") for text in one[:4])
        unread += left < 0
        signatures.append(parse_signature(one) if left >= 0 else None)
    if unread:
        warnings.append(
            f"{unread:,} of {len(raw):,} distinct argument lists exceed the limit on stored values, so their costs are"
            " unknown"
        )
    return signatures


@lru_cache(maxsize=16384)
def parse_signature(raw: RawArguments) -> Signature | None:
    """Return the arguments of a call; `None` if the trace recorded no shapes, or impossible ones.

    If it recorded no types (2021), an argument with a shape is a tensor of unknown type and all others are absent.
    """
    dims, types = _decode(raw[0]), _decode(raw[1])
    if dims is None or (raw[1] and (types is None or len(types) != len(dims))):
        return None
    strides = _decode(raw[2]) or []
    constants = _decode(raw[3]) or []
    lists = iter(raw[4].split("|"))
    values = []
    try:
        for index, shape in enumerate(dims):
            if types is None:
                values.append(_untyped(shape))
                continue
            stride = strides[index] if index < len(strides) else None
            text = constants[index] if index < len(constants) else ""
            values.append(_argument(shape, types[index], stride, text, lists))
    except _Implausible:
        return None
    return Signature(tuple(values))


def _decode(text: bytes) -> list[Any] | None:
    if not text:
        return None
    try:
        value = msgspec.json.decode(text)
    except NOT_DECODABLE:
        return None
    return value if isinstance(value, list) else None


def _argument(shape: Any, kind: Any, stride: Any, text: Any, lists: Iterator[str]) -> Argument:
    if not isinstance(kind, str) or not isinstance(shape, list):
        return None
    if kind in DTYPES:
        return Tensor(
            sizes_of(shape), DTYPES[kind], strides_of(shape, stride), Stored() if shape and stride == [] else None
        )
    if kind in ("TensorList", "GenericList"):
        return _tensor_list(shape, stride, next(lists, ""))
    return parse_constant(text) if isinstance(text, str) else None


def _untyped(shape: Any) -> Argument:
    """Return a tensor, or a list of them, from shapes alone: a number looks like a 0-dimensional tensor."""
    if not isinstance(shape, list) or not shape:
        return None
    if all(isinstance(item, list) for item in shape):
        return tuple(Tensor(sizes_of(item), None) for item in shape)
    return Tensor(sizes_of(shape), None)


def sizes_of(shape: list[Any]) -> tuple[int, ...]:
    """Return the sizes of a tensor; raise if they are impossible."""
    if len(shape) > _MAX_DIMENSIONS or not all(type(size) is int and size >= 0 for size in shape):
        raise _Implausible(f"a tensor cannot have the sizes {shape}")
    if prod(size for size in shape if size) > _MAX_ELEMENTS:
        raise _Implausible(f"{shape} is more than a petabyte")
    return tuple(shape)


def _tensor_list(shapes: list[Any], strides: Any, recorded: str) -> Argument:
    """Return the tensors of a list; `None` if neither trace nor capture has them (Kineto drops long lists)."""
    if recorded:
        tensors = []
        for item in recorded.split(";"):
            match = _RECORDED.match(item)
            if not match:
                raise _Implausible(f"{item} is not a tensor")
            sizes = [int(size) for size in (match[2] or "").split(",") if size]
            tensors.append(Tensor(sizes_of(sizes), match[1] or None))
        return tuple(tensors)
    if not shapes:
        return None
    known = strides if isinstance(strides, list) and len(strides) == len(shapes) else [None] * len(shapes)
    return tuple(
        Tensor(sizes_of(item), None, strides_of(item, own))
        for item, own in zip(shapes, known, strict=True)
        if isinstance(item, list)
    )


def strides_of(shape: list[Any], stride: Any) -> tuple[int, ...] | None:
    """Return the strides of a tensor of this shape; `None` if there are no valid ones."""
    if not isinstance(stride, list) or len(stride) != len(shape) or not all(type(step) is int for step in stride):
        return None
    return tuple(stride)


def parse_constant(text: str) -> Argument:
    """Return the value of a "Concrete Inputs" entry: `'False'` is false, `'[1024]'` a tuple, `''` absent."""
    text = text.strip()
    if not text or text == "None":
        return None
    if text in ("True", "False"):
        return text == "True"
    if text[0] == "[" and text[-1] == "]" and len(text) > 1:
        inner = text[1:-1]
        if "[" in inner:
            return text
        return tuple(parse_constant(item) for item in inner.split(",")) if inner.strip() else ()
    try:
        number = int(text)
        return number if abs(number) < 1 << 63 else float(number)
    except (ValueError, OverflowError):
        pass
    try:
        return float(text)
    except ValueError:
        return text


# Arguments that Kineto does not record but a capture observed, put into the signatures of their calls.


#: The key of a call in both trace and capture: its operator and the tensors by position.
Key: TypeAlias = "tuple[str, tuple[tuple[int, Tensor], ...]]"

#: The observer sees the called operator; the trace also has the one doing the work, with the same arguments.
_WORKERS = {
    "aten::index_put": "aten::_index_put_impl_",
    "aten::index_put_": "aten::_index_put_impl_",
}


def fill_in_observed(
    names: Sequence[str], host: HostEvents, signatures: list[Signature | None], observed: Sequence[ObservedCall]
) -> None:
    """Fill in the arguments of observed calls; append new ones to `signatures`.

    Calls of one operator on like tensors are matched in order. If the observed step made another number of them than
    each traced step (because routing changed, for example) and they differ, nothing is filled in.
    """
    import json

    by_tensors: dict[Key, list[Signature]] = {}
    lengths: dict[str, int] = {}
    for call in observed:
        try:
            signature = Signature(tuple(_observed_argument(value) for value in json.loads(call.arguments)))
        except (ValueError, TypeError, RecursionError):
            continue  # not in a capture's form
        for name in {call.operator, _WORKERS.get(call.operator, call.operator)}:
            by_tensors.setdefault((name, _tensors(signature)), []).append(signature)
            lengths[name] = len(signature.arguments)

    # The rows of each call by the observed overload's tensors; an `out` tensor after them is its result.
    called = [number for number, name in enumerate(names) if name in lengths]
    rows = np.flatnonzero(isin(host.name, np.array(called, dtype=np.int64)) & (host.signature >= 0))
    rows_by_key: dict[Key, list[int]] = {}
    for row in rows[np.argsort(host.start_ns[rows], kind="stable")].tolist():
        known = signatures[int(host.signature[row])]
        if known is not None:
            name = names[int(host.name[row])]
            rows_by_key.setdefault((name, _tensors(known, lengths[name])), []).append(row)

    numbers: dict[Signature, int] = {}
    for key, alike in rows_by_key.items():
        for row, signature in zip(alike, _in_order(by_tensors.get(key, []), len(alike)), strict=False):
            known = signatures[int(host.signature[row])]
            merged = _merged(known, signature) if known else signature
            if merged not in numbers:
                numbers[merged] = len(signatures)
                signatures.append(merged)
            host.signature[row] = numbers[merged]


def _in_order(signatures: list[Signature], wanted: int) -> list[Signature]:
    """Return the signature of each of `wanted` consecutive calls; none if the calls cannot be distinguished."""
    if len(set(signatures)) == 1:
        return [signatures[0]] * wanted
    if not signatures or wanted % len(signatures):
        return []
    return signatures * (wanted // len(signatures))


def _tensors(signature: Signature, length: int | None = None) -> tuple[tuple[int, Tensor], ...]:
    return tuple(
        (index, Tensor(value.shape, value.dtype))
        for index, value in enumerate(signature.arguments[:length])
        if isinstance(value, Tensor)
    )


def _merged(known: Signature, observed: Signature) -> Signature:
    """Return the recorded arguments, with missing ones from the observation."""
    merged: list[Argument] = []
    for recorded, other in zip(known.arguments, observed.arguments, strict=False):
        # The observation of a sparse tensor says how much it stores.
        is_fuller = isinstance(other, Tensor) and isinstance(recorded, Tensor) and other.sparse is not None
        merged.append(other if recorded is None or is_fuller else recorded)
    extra = observed.arguments[len(known.arguments) :]
    return Signature((*merged, *known.arguments[len(merged) :], *extra))


def _observed_argument(value: Any) -> Argument:
    if isinstance(value, dict):
        shape, dtype = value.get("shape"), value.get("dtype")
        if not isinstance(shape, list) or not isinstance(dtype, str):
            raise ValueError(f"{value} is not a tensor")
        # What a sparse tensor stores, if the capture recorded it.
        elements, index_bytes = value.get("elements"), value.get("index_bytes")
        stored = None
        if elements is not None or index_bytes is not None:
            if type(elements) is not int or type(index_bytes) is not int or min(elements, index_bytes) < 0:
                raise ValueError(f"{value} is not a sparse tensor")
            stored = Stored(elements, index_bytes)
        return Tensor(sizes_of(shape), dtype, strides_of(shape, value.get("strides")), stored)
    if isinstance(value, list):
        return tuple(_observed_argument(item) for item in value)
    return value  # type: ignore[no-any-return]  # a JSON scalar
