"""The raw argument texts of an operator event -> `Signature`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from opanatomy.model import Argument, Signature, Tensor

#: Raw JSON of "Input Dims", "Input type", "Input Strides", "Concrete Inputs"; and each tensor list in turn as text
#: (`float32[2,3];float32[4]`), bars between, where a capture told it.
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
}  # fmt: skip

_LIST = re.compile(r"^\[(.*)\]$", re.DOTALL)


def parse_signature(raw: RawArguments) -> Signature | None:
    """The arguments of a call; `None` where the trace recorded no shapes."""
    dims, types = _decode(raw[0]), _decode(raw[1])
    if dims is None or types is None or len(dims) != len(types):
        return None
    strides = _decode(raw[2]) or []
    constants = _decode(raw[3]) or []
    lists = iter(raw[4].split("|"))
    values = []
    for index, (shape, kind) in enumerate(zip(dims, types, strict=True)):
        stride = strides[index] if index < len(strides) else None
        text = constants[index] if index < len(constants) else ""
        values.append(_argument(shape, kind, stride, text, lists))
    return Signature(tuple(values))


def _decode(text: bytes) -> list[Any] | None:
    if not text:
        return None
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    return value if isinstance(value, list) else None


def _argument(shape: Any, kind: Any, stride: Any, text: Any, lists: Iterator[str]) -> Argument:
    if not isinstance(kind, str) or not isinstance(shape, list):
        return None
    if kind in DTYPES:
        return Tensor(tuple(shape), DTYPES[kind], _strides(shape, stride))
    if kind in ("TensorList", "GenericList"):
        return _tensor_list(shape, stride, next(lists, ""))
    return parse_constant(text) if isinstance(text, str) else None


def _tensor_list(shapes: list[Any], strides: Any, told: str) -> Argument:
    """The tensors of a list; `None` where neither the trace nor the capture knows them (Kineto drops long lists)."""
    if told:
        return tuple(
            Tensor(tuple(map(int, sizes.split(","))) if sizes else (), dtype or None)
            for dtype, sizes in (item.rstrip("]").split("[") for item in told.split(";"))
        )
    if not shapes:
        return None
    known = strides if isinstance(strides, list) and len(strides) == len(shapes) else [None] * len(shapes)
    return tuple(
        Tensor(tuple(item), None, _strides(item, own))
        for item, own in zip(shapes, known, strict=True)
        if isinstance(item, list)
    )


def _strides(shape: Any, stride: Any) -> tuple[int, ...] | None:
    if not isinstance(stride, list) or len(stride) != len(shape):
        return None
    return tuple(stride)


def parse_constant(text: str) -> Argument:
    """The value of one "Concrete Inputs" entry: `'False'` is false, `'[1024]'` a tuple, `''` absent."""
    text = text.strip()
    if not text or text == "None":
        return None
    if text in ("True", "False"):
        return text == "True"
    match = _LIST.match(text)
    if match:
        return tuple(parse_constant(item) for item in match[1].split(",")) if match[1].strip() else ()
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text
