"""Columns of integers as they stand in a trace's metadata: few bytes, and quick to read."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from opanatomy.records.columns import Int64

#: No step has more events: what unpacks to more was made to fill memory.
_MAX_ROWS: Final = 1 << 24
_BYTES: Final = 8


def packed(values: Int64 | Sequence[int]) -> bytes:
    """The column in few bytes: differences of neighbours, their lowest bytes, then the next ones, compressed."""
    column = np.asarray(values, dtype=np.int64)
    steps = np.diff(column, prepend=np.int64(0)).astype("<i8")
    return zlib.compress(steps.view(np.uint8).reshape(-1, _BYTES).T.tobytes(), 6)


def unpacked(data: bytes) -> Int64:
    """The column that was packed; `ValueError` where the bytes are none."""
    decoder = zlib.decompressobj()
    try:
        plain = decoder.decompress(data, _MAX_ROWS * _BYTES)
    except zlib.error as error:
        raise ValueError(f"no packed column: {error}") from error
    if not decoder.eof or decoder.unused_data or len(plain) % _BYTES:
        raise ValueError("no packed column: it is cut off, or too long")
    steps = np.frombuffer(plain, dtype=np.uint8).reshape(_BYTES, -1).T.copy().view("<i8").reshape(-1)
    return np.cumsum(steps.astype(np.int64), dtype=np.int64)


def is_packed(data: bytes) -> bool:
    """Whether the bytes are a packed column."""
    try:
        unpacked(data)
    except ValueError:
        return False
    return True
