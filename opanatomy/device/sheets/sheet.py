"""One row of the data sheets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A device by its data sheet: peaks in TFLOP/s (`TOP/s` of int8), bandwidth in GB/s, memory in GiB, the last cache
    before the memory in MiB (L2, on MI300 and later the Infinity Cache), `None` where no document at hand says it.

    `names` are the names drivers give it, without maker and brand, as regular expressions of the whole name.
    """

    device: str
    names: tuple[str, ...]
    source: str
    multiprocessors: tuple[int, ...]
    memory_gib: int
    bandwidth: float
    #: Peaks of matrix multiplication by data type, and those of all other arithmetic.
    matrix: dict[str, float] = field(default_factory=dict)
    vector: dict[str, float] = field(default_factory=dict)
    note: str = ""
    cache_mib: int | None = None


def halves(peak: float, **others: float) -> dict[str, float]:
    """The peaks by data type of a device whose float16 and bfloat16 rates are one: `peak` TFLOP/s."""
    return {"float16": peak, "bfloat16": peak, **others}
