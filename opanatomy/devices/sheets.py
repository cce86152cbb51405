"""What makers' data sheets say of their devices: dense peaks, never those with structured sparsity.

The rows are `sheets.json`, by family, each with its source and the day on which that was read. One row is what a trace
calls one device: half an MI250X, one GPU of a GB200. Where a sheet quotes sparse figures only (Ada, Hopper, Blackwell)
they are halved. Tensor-core figures of half-precision and 8-bit floats are those with float32 accumulation, which torch
uses: GeForce cards, A10G, L20 and L40 do half as much of it. Figures follow from multiprocessors x clock x operations a
clock, bandwidths from bits of the bus x their rate. Where the sheet disagrees with that, where two sources disagree, or
where there is no document of the maker, `note` says so. A real clock may be above the sheet's boost clock, so a GeForce
card can pass its sheet by a few percent.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

import msgspec
from msgspec import Struct, field

GIB: Final = 1 << 30


class Mig(Struct, frozen=True, kw_only=True):
    """How NVIDIA's Multi-Instance GPU cuts a device: into how many slices of compute and of memory.

    `profiles` are (slices of compute, slices of memory, multiprocessors) of each profile, `None` for a number that no
    document says. A memory slice has its share of capacity, bandwidth and L2 (MIG user guide, "Concepts").
    """

    compute: int = 7
    memory: int = 8
    profiles: tuple[tuple[int, int, int | None], ...]


class Sheet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device by its data sheet: peaks in TFLOP/s (`TOP/s` of int8), bandwidth in GB/s, memory in GiB, the last cache
    before the memory in MiB (L2, on MI300 and later the Infinity Cache), `None` where no known document says it.

    `names` are the names drivers give it, without maker and brand, as regular expressions of the whole name.
    `multiprocessors` are all counts that exist, none where no document says it. `read` is the day (ISO 8601) on which
    `source` was read.
    """

    device: str
    names: tuple[str, ...]
    source: str
    read: str
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


class Family(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Devices of one kind, and what holds for all of their sheets."""

    family: str
    about: str
    sheets: tuple[Sheet, ...]


FAMILIES: Final = msgspec.json.decode(files(__package__).joinpath("sheets.json").read_bytes(), type=tuple[Family, ...])
SHEETS: Final = tuple(sheet for family in FAMILIES for sheet in family.sheets)
