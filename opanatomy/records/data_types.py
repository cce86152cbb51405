"""Torch's data types and their sizes."""

from __future__ import annotations

ITEM_SIZE = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
    "complex64": 8, "complex128": 16, "complex32": 4, "qint8": 1, "quint8": 1, "qint32": 4,
}  # fmt: skip

#: The data types that have a peak of matrix products, in the order in which they are shown.
PEAK_TYPES = ("float64", "float32", "tf32", "bfloat16", "float16", "float8", "int8")
