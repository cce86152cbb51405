"""Read the data sheets of devices: dense peaks, never those with structured sparsity.

The rows are in `sheets.json`, by family, each with its source and the day on which it was read. One row is for one
device as a trace names it: half an MI250X, one GPU of a GB200. Sheets that quote only sparse figures (Ada, Hopper,
Blackwell) are halved. Tensor-core figures of half-precision and 8-bit floats are those with float32 accumulation, which
torch uses: GeForce cards, A10G, L20 and L40 do half as much with it. Figures follow from multiprocessors x clock x
operations a clock, bandwidths from bits of the bus x their rate. If the sheet disagrees with that, two sources
disagree, or the maker has no document, `note` says so. A real clock may be above the sheet's boost clock, so a GeForce
card can exceed its sheet by a few percent.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

import msgspec
from msgspec import Struct, field

GIB: Final = 1 << 30
#: The least share of its memory that the driver of any device gave to programs: 10.76 of 11 GiB (RTX 2080 Ti), and with
#: error correction in the memory 22.04 of 24 GiB (L4).
USABLE: Final = 0.978
USABLE_WITH_ECC: Final = 0.918


class Mig(Struct, frozen=True, kw_only=True):
    """How NVIDIA's Multi-Instance GPU divides a device: the number of slices of compute and of memory.

    `profiles` are (slices of compute, slices of memory, multiprocessors) of each profile, `None` for an undocumented
    number. A memory slice has its share of capacity, bandwidth and L2 (MIG user guide, "Concepts").
    """

    compute: int = 7
    memory: int = 8
    profiles: tuple[tuple[int, int, int | None], ...]


class Sheet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device by its data sheet; `None` for what no known document says.

    Peaks are in TFLOP/s (`TOP/s` of int8), bandwidth in GB/s, memory in GiB, the last cache before the memory in MiB
    (L2, on MI300 and later the Infinity Cache). `names` are the drivers' names of the device, without maker and brand,
    as regular expressions of the whole name. `multiprocessors` are all counts that exist, empty if undocumented. `read`
    is the day (ISO 8601) on which `source` was read.
    """

    device: str
    names: tuple[str, ...]
    source: str
    read: str
    multiprocessors: tuple[int, ...]
    memory_gib: float | None
    bandwidth: float | None
    #: Peaks of matrix products by data type, and of all other arithmetic.
    matrix: dict[str, float] = field(default_factory=dict)
    vector: dict[str, float] = field(default_factory=dict)
    #: The fastest dense products that anyone measured (Stas Bekman, "maximum achievable matmul FLOPS", ml-engineering
    #: 744d01e): the bfloat16 figure stands for float16 too, whose products take the same units.
    attained: dict[str, float] = field(default_factory=dict)
    note: str = ""
    #: Other devices with the same driver name, multiprocessors and memory, indistinguishable in a trace.
    also: str = ""
    cache_mib: float | None = None
    #: The MIG slices that the device may be divided into, and the number of equal devices in AMD's compute modes.
    mig: Mig | None = None
    partitions: tuple[int, ...] = ()
    #: For a part of a device: its share of the sheet's figures.
    scaled: str = ""
    #: CUDA's compute capability (major, minor).
    capability: tuple[int, int] | None = None
    #: Memory that the driver gives to programs (`totalGlobalMem` in traces), in GiB where observed; whether error
    #: correction takes its bits from the memory, as on server GDDR6.
    usable_gib: float | None = None
    ecc_in_memory: bool = False

    @property
    def usable_bytes(self) -> int | None:
        """Return the memory that the driver gives to programs; where not observed, the minimum fraction observed."""
        if self.usable_gib is not None:
            return int(self.usable_gib * GIB)
        share = USABLE_WITH_ECC if self.ecc_in_memory else USABLE
        return None if self.memory_gib is None else int(self.memory_gib * share * GIB)


class Family(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Devices of one kind, and the facts common to all of their sheets."""

    family: str
    about: str
    sheets: tuple[Sheet, ...]


FAMILIES: Final = msgspec.json.decode(files(__package__).joinpath("sheets.json").read_bytes(), type=tuple[Family, ...])
SHEETS: Final = tuple(sheet for family in FAMILIES for sheet in family.sheets)
