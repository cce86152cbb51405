"""Read what formulas need from a signature: sizes in bytes, broadcasting, data types; raise `Unknown` if missing."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from opanatomy.records.signature import Argument, Cost, Signature, Tensor
from opanatomy.records.taxonomy import BY_CODE, ITEM_SIZE

Shape = tuple[int, ...]

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_COMPLEX = ("complex32", "complex64", "complex128")
_COMPLEX_OF = {"float16": 0, "bfloat16": 1, "float32": 1, "float64": 2}
_INTEGERS = ("int8", "int16", "int32", "int64")
_DEFAULT = {0: "bool", 1: "int64", 2: "float32", 3: "complex64"}


class Unknown(LookupError):
    """Raised if the signature lacks something that the formula needs."""


# ----------------------------------------------------------------------------------------------------------- arguments


def optional(signature: Signature, index: int) -> Tensor | None:
    """Return the tensor at `index`; `None` if absent."""
    value = signature.get(index)
    return value if isinstance(value, Tensor) else None


def tensors(value: Argument) -> tuple[Tensor, ...]:
    """Return the elements of a tensor list."""
    if not isinstance(value, tuple):
        raise Unknown(f"{value!r} is not a tensor list")
    elements = tuple(item for item in value if isinstance(item, Tensor))
    if len(elements) != len(value):
        raise Unknown(f"{value!r} is not a tensor list")
    return elements


def integer(value: Argument) -> int:
    """Return an integer argument."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unknown(f"{value!r} is not an integer")
    return value


def flag(value: Argument) -> bool:
    """Return a boolean argument."""
    if not isinstance(value, bool):
        raise Unknown(f"{value!r} is not a boolean")
    return value


def integers(value: Argument, length: int | None = None) -> Shape:
    """Return an integer list; with `length`, a single value is repeated for all dimensions."""
    numbers = tuple(integer(item) for item in value) if isinstance(value, tuple) else (integer(value),)
    return numbers * length if length is not None and len(numbers) == 1 else numbers


def sizes(value: Argument, minimum: int = 1) -> Shape:
    """Return the sizes of a tensor with at least `minimum` dimensions; raise `Unknown` for a dropped (empty) list."""
    numbers = integers(value)
    if len(numbers) < minimum:
        raise Unknown(f"{value!r} are not the sizes of {minimum} dimensions")
    return numbers


def mask(value: Argument, length: int) -> tuple[bool, ...]:
    """Return an `output_mask` of `length` booleans."""
    if not isinstance(value, tuple) or len(value) != length:
        raise Unknown(f"{value!r} is not a mask of {length}")
    return tuple(bool(item) for item in value)


def scalar_type(value: Argument) -> str | None:
    """Return the name of a `dtype` argument, a code of c10::ScalarType or a name; `None` if absent."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.removeprefix("torch.")
    code = integer(value)
    return BY_CODE[code]


# --------------------------------------------------------------------------------------------------------------- bytes


def read(*values: Argument) -> int:
    """Return the bytes of all tensors among `values`, lists included: each distinct element once."""
    total = 0
    for value in values:
        if isinstance(value, Tensor):
            total += value.bytes
        elif isinstance(value, tuple):
            total += read(*value)
    return total


def item(dtype: str | None) -> int:
    """Return the bytes of an element of `dtype`."""
    if dtype is None or dtype not in ITEM_SIZE:
        raise Unknown(f"size of {dtype}")
    return ITEM_SIZE[dtype]


def fresh(shape: Iterable[int], dtype: str | None) -> int:
    """Return the bytes of a new tensor."""
    return prod(shape) * item(dtype)


def result(out: Tensor | None, shape: Iterable[int], dtype: str | None) -> int:
    """Return the bytes of a result; an `out` tensor gives its data type (a trace shows it before it is resized)."""
    return fresh(shape, out.dtype if out else dtype)


def moved(read_bytes: int, written_bytes: int, flops: int = 0) -> Cost:
    """Return a cost built from these bytes and FLOPs."""
    return Cost(flops=flops, read_bytes=read_bytes, written_bytes=written_bytes)


# ---------------------------------------------------------------------------------------------------------- dimensions


def axis(dim: int, dims: int) -> int:
    """Return a dimension counted from the front."""
    if not -max(dims, 1) <= dim < max(dims, 1):
        raise Unknown(f"dimension {dim} of {dims}")
    return dim % max(dims, 1)


def broadcast(*shapes: Shape) -> Shape:
    """Return the broadcast shape by NumPy's rule."""
    length = max(map(len, shapes), default=0)
    result = [1] * length
    for shape in shapes:
        for index, size in enumerate(shape, length - len(shape)):
            if size != 1:
                if result[index] not in (1, size):
                    raise Unknown(f"{shapes} do not broadcast")
                result[index] = size
    return tuple(result)


# ---------------------------------------------------------------------------------------------------------- data types


def category(dtype: str) -> int:
    """Return 0 for bool, 1 integer, 2 floating, 3 complex."""
    if dtype == "bool":
        return 0
    if dtype.startswith("complex"):
        return 3
    return 2 if "float" in dtype else 1


def floating(dtype: str) -> str:
    """Return the data type of `exp(x)` and `x / y`: integers become float32."""
    return dtype if category(dtype) >= 2 else "float32"


def accumulated(dtype: str) -> str:
    """Return the data type of `sum(x)`: integers become int64."""
    return dtype if category(dtype) >= 2 else "int64"


def _wider(a: str, b: str) -> str:
    """Return c10::promoteTypes of two data types."""
    if a == b:
        return a
    low, high = sorted((a, b), key=category)
    if category(low) < category(high):
        if category(high) == 3 and category(low) == 2:
            return _COMPLEX[max(_COMPLEX.index(high), _COMPLEX_OF[low])]
        return high
    for family in (_FLOATS, _COMPLEX, _INTEGERS):
        if a in family and b in family:
            wider = family[max(family.index(a), family.index(b))]
            return "float32" if {a, b} == {"float16", "bfloat16"} else wider
    if "uint8" in (a, b):
        other = a if b == "uint8" else b
        if other in _INTEGERS:
            return "int16" if other == "int8" else other
    raise Unknown(f"promotion of {a} and {b}")


def _combine(higher: str | None, lower: str | None) -> str | None:
    """Combine a data type with the next lower priority's, which only counts if its category is higher."""
    if higher is None or lower is None:
        return higher or lower
    return _wider(higher, lower) if category(lower) > category(higher) else higher


def promote(*operands: Argument) -> str:
    """Return the data type in which torch computes: tensors first, then 0-dimensional tensors, then numbers."""
    ranked: list[str | None] = [None, None, None]
    for operand in operands:
        if isinstance(operand, Tensor):
            if operand.dtype is None:
                raise Unknown(f"data type of {operand}")
            index, dtype = (0 if operand.shape else 1), operand.dtype
        elif isinstance(operand, bool | int | float):
            index, dtype = 2, _DEFAULT[0 if isinstance(operand, bool) else 1 if isinstance(operand, int) else 2]
        else:
            continue
        held = ranked[index]
        ranked[index] = dtype if held is None else _wider(held, dtype)
    result = _combine(_combine(ranked[0], ranked[1]), ranked[2])
    if result is None:
        raise Unknown("no operand has a data type")
    return result
