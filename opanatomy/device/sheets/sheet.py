"""One row of the data sheets."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

GIB: Final = 1 << 30


class Mig(Struct, frozen=True, kw_only=True):
    """How NVIDIA's Multi-Instance GPU cuts a device: into how many slices of compute and of memory.

    `profiles` has the multiprocessors of each profile by its slices of (compute, memory), `None` where no document says
    how many. A memory slice has its share of the capacity, of the bandwidth and of L2 (MIG user guide, "Concepts").
    """

    compute: int = 7
    memory: int = 8
    profiles: dict[tuple[int, int], int | None]


class Sheet(Struct, frozen=True, kw_only=True):
    """A device by its data sheet: peaks in TFLOP/s (`TOP/s` of int8), bandwidth in GB/s, memory in GiB, the last cache
    before the memory in MiB (L2, on MI300 and later the Infinity Cache), `None` where no known document says it.

    `names` are the names drivers give it, without maker and brand, as regular expressions of the whole name.
    `multiprocessors` are all counts that exist, none where no document says it.
    """

    device: str
    names: tuple[str, ...]
    source: str
    multiprocessors: tuple[int, ...]
    memory_gib: float | None
    bandwidth: float | None
    #: Peaks of matrix multiplication by data type, and those of all other arithmetic.
    matrix: dict[str, float] = field(default_factory=dict)
    vector: dict[str, float] = field(default_factory=dict)
    note: str = ""
    #: What else drivers give the same name, multiprocessors and memory, so that no trace distinguishes the two.
    also: str = ""
    cache_mib: float | None = None
    #: The slices that a device may be cut into, and into how many equal devices AMD's compute modes make it.
    mig: Mig | None = None
    partitions: tuple[int, ...] = ()
    #: Of a part of a device: which share of the sheet's figures these are.
    scaled: str = ""


def halves(peak: float, **others: float) -> dict[str, float]:
    """The peaks by data type of a device whose float16 and bfloat16 rates are one: `peak` TFLOP/s."""
    return {"float16": peak, "bfloat16": peak, **others}
