"""Torch's data types: one table of their sizes, and of what users, C++ code, torch's records and NCCL call them."""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class DataType(Struct, frozen=True):
    """A data type by torch's name, without `torch.`.

    `size` is in bytes, `None` below a byte. `code` is its number in `c10::ScalarType` (torch/headeronly, ScalarType.h),
    which Kineto records for a `dtype` argument. `short` are the names that people give it, `cpp` those in template
    arguments and in Kineto's "Input type", `c10d` those in the arguments of collectives.
    """

    name: str
    size: int | None
    code: int | None = None
    short: tuple[str, ...] = ()
    cpp: tuple[str, ...] = ()
    c10d: tuple[str, ...] = ()


DATA_TYPES: Final = (
    DataType("float64", 8, 7, ("fp64", "f64", "double"), ("double",), ("double",)),
    DataType("float32", 4, 6, ("fp32", "f32", "float", "single"), ("float",), ("float",)),
    DataType("bfloat16", 2, 15, ("bf16",), ("c10::BFloat16", "__nv_bfloat16"), ("bfloat16",)),
    DataType("float16", 2, 5, ("fp16", "f16", "half"), ("c10::Half", "__half"), ("half",)),
    DataType("float8_e4m3fn", 1, 24, (), ("c10::Float8_e4m3fn",)),
    DataType("float8_e5m2", 1, 23, (), ("c10::Float8_e5m2",)),
    DataType("float8_e4m3fnuz", 1, 26, (), ("c10::Float8_e4m3fnuz",)),
    DataType("float8_e5m2fnuz", 1, 25, (), ("c10::Float8_e5m2fnuz",)),
    DataType("float8_e8m0fnu", 1, 44, (), ("c10::Float8_e8m0fnu",)),
    DataType("int64", 8, 4, ("i64", "long"), ("long int", "long", "int64_t", "long long"), ("long",)),
    DataType("int32", 4, 3, ("i32", "int"), ("int",), ("int",)),
    DataType("int16", 2, 2, ("i16", "short"), ("short", "short int"), ("short",)),
    DataType("int8", 1, 1, ("i8", "char"), ("signed char", "char"), ("char",)),
    DataType("uint64", 8, 29, (), ("unsigned long",)),
    DataType("uint32", 4, 28, (), ("unsigned int",)),
    DataType("uint16", 2, 27, (), ("unsigned short",)),
    DataType("uint8", 1, 0, ("u8", "byte"), ("unsigned char",), ("byte",)),
    DataType("bool", 1, 11, (), ("bool",), ("bool",)),
    DataType("complex32", 4, 8, ("chalf",), ("c10::complex<c10::Half>",)),
    DataType("complex64", 8, 9, ("cfloat",), ("c10::complex<float>",), ("complexfloat",)),
    DataType("complex128", 16, 10, ("cdouble",), ("c10::complex<double>",), ("complexdouble",)),
    DataType("qint8", 1, 12, (), ("c10::qint8",)),
    DataType("quint8", 1, 13, (), ("c10::quint8",)),
    DataType("qint32", 4, 14, (), ("c10::qint32",)),
    DataType("quint4x2", None, 16),
    DataType("quint2x4", None, 17),
    DataType("bits1x8", None, 18),
    DataType("bits2x4", None, 19),
    DataType("bits4x2", None, 20),
    DataType("bits8", None, 21),
    DataType("bits16", None, 22),
)

#: Bytes of one element by torch's name; a data type below a byte has none.
ITEM_SIZE: Final = {kind.name: kind.size for kind in DATA_TYPES if kind.size is not None}
#: Torch's name by that in C++ template arguments and Kineto's "Input type".
BY_CPP_NAME: Final = {name: kind.name for kind in DATA_TYPES for name in kind.cpp}
#: Torch's name by c10d's, in small letters.
BY_C10D_NAME: Final = {name: kind.name for kind in DATA_TYPES for name in kind.c10d}
#: Torch's name by the number in `c10::ScalarType`.
BY_CODE: Final = {kind.code: kind.name for kind in DATA_TYPES if kind.code is not None}
_BY_NAME: Final = {name: kind.name for kind in DATA_TYPES for name in (kind.name, *kind.short)}

#: The data types that have a peak of matrix products, in the order in which they are shown; "tf32" is float32 rounded
#: by the matrix units, "float8" any float of 8 bits.
PEAK_TYPES: Final = ("float64", "float32", "tf32", "bfloat16", "float16", "float8", "int8")
_PEAK_NAMES: Final = {"tf32": "tf32", "tfloat32": "tf32", "float8": "float8", "fp8": "float8", "f8": "float8"}


def is_floating(dtype: str | None) -> bool:
    """Whether it is a data type of numbers with a fraction, by torch's name."""
    return dtype is not None and dtype.startswith(("float", "bfloat", "complex"))


def is_integer(dtype: str | None) -> bool:
    """Whether it is a data type of whole numbers, by torch's name; quantized ones and `bool` are none."""
    return dtype is not None and dtype.startswith(("int", "uint"))


def data_type_of(name: str) -> str | None:
    """Torch's name of the data type that a user names (`bf16`, `torch.bfloat16`, `Half`); `None` where it is none."""
    return _BY_NAME.get(name.strip().lower().removeprefix("torch."))


def peak_type_of(name: str) -> str | None:
    """The data type of a peak (`PEAK_TYPES`) that a user names; `None` where it has no peak."""
    lower = name.strip().lower().removeprefix("torch.")
    full = data_type_of(lower) or lower
    full = "float8" if full.startswith("float8") else _PEAK_NAMES.get(lower, full)
    return full if full in PEAK_TYPES else None
