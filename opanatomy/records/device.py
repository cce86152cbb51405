"""What a device can do, and what of it was reached."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Final

from msgspec import field
from msgspec.structs import replace

from opanatomy.records.record import Record
from opanatomy.records.taxonomy import FLOAT32, PEAK_OF_COMPUTE_TYPE, TF32, THREE_TF32, Phase

#: What the bandwidth is called among the names of peaks.
BANDWIDTH: Final = "bandwidth"
#: What the data types of vector peaks come after among them.
VECTOR: Final = "vector "
#: Bursts of which the median stays below the best by more than this part of it were disturbed.
_DISTURBED: Final = 0.5
#: What a line begins with that says why there are none.
NO_CEILINGS: Final = "no ceilings: "


class ExceededCeiling(Record, frozen=True, kw_only=True):
    """A ceiling that the user gave and that work in the trace was faster than, most of all `operator` in `phase`.

    `ceiling` is the data type of a matrix peak or `BANDWIDTH`, `option` what gave it (`--peak 100T`). Rates are
    operations or bytes a second: as given, as reached, and as known of the device without the option.
    """

    ceiling: str
    option: str
    given_per_second: float
    reached_per_second: float
    known_per_second: float | None = None
    operator: str
    phase: Phase


class DeviceFigures(Record, frozen=True, kw_only=True):
    """Ceilings of the device and what of them was reached; `source` says where the ceilings are from.

    `peak_flops_per_second` is of matrix products by data type, `vector_flops_per_second` of all other arithmetic.
    `mfu` is the share of the peak of `mfu_dtype`, the data type of most contractions, that the step's contractions
    reach without recompute, `hfu` with it; `mfu_covered` is the part of the time of contractions (and of what no rule
    knows) whose FLOPs are known: below 1 both are lower bounds, below `MIN_COVERED` they are `None`.
    `exceeded` are the ceilings of the user's own that the trace is above, the furthest first.
    `no_ceilings` says why there are no ceilings, and how to get them. `unsure_ns` is the time of float32 products of
    which neither a kernel's name nor a setting says whether they ran as tf32: they have no bound.
    `utilization` is the union of the kernels over the total time of the steps. `sm_efficiency` is the
    mean over the same time of min(sum over the kernels that run then of min(blocks per multiprocessor, 1), 1),
    `occupancy` the mean of the kernels' estimated
    occupancy weighted by duration, both as fractions and estimated by Kineto from launch dimensions, which the trace
    has for `dimensioned_ns` of the kernel time. `tensor_core_ns` is the time of kernels that by their names use tensor
    (matrix) cores, `None` where the device has none or no name tells; `tensor_core_unknown_ns` that of products, and of
    kernels of unknown class, whose names do not tell. `None` where the trace lacks what is needed.
    """

    peak_flops_per_second: dict[str, float] = field(default_factory=dict)
    vector_flops_per_second: dict[str, float] = field(default_factory=dict)
    bandwidth_bytes_per_second: float | None = None
    source: str | None = None
    exceeded: tuple[ExceededCeiling, ...] = ()
    no_ceilings: str | None = None
    mfu: float | None = None
    hfu: float | None = None
    mfu_dtype: str | None = None
    mfu_covered: float | None = None
    utilization: float | None = None
    sm_efficiency: float | None = None
    occupancy: float | None = None
    dimensioned_ns: int | None = None
    tensor_core_ns: int | None = None
    tensor_core_unknown_ns: int | None = None
    unsure_ns: int = 0

    @property
    def why_no_ceilings(self) -> str:
        """`no_ceilings` under a heading that says what is missing."""
        return (self.no_ceilings or "").removeprefix(NO_CEILINGS)


class GivenCeiling(Record, frozen=True, kw_only=True):
    """A ceiling that the user gave by `option` (`--peak 100T`), and what is known of the device without it.

    `name` is the data type of a matrix peak, or `BANDWIDTH`.
    """

    name: str
    option: str
    per_second: float
    known_per_second: float | None = None


class Ceilings(Record, frozen=True, kw_only=True):
    """The most a device can do, and where the figures are from.

    Peaks are dense, in operations a second (a multiply-add is two). Those of matrix multiplication go by torch's name
    of the data type: `float32` is what a float32 product reaches with tf32 off, `tf32` with it on, `float8` any 8-bit
    float. Those of all other arithmetic (`vector_...`) are known for float32 and float64. `None`, or no entry, means
    that the device has no such unit or its speed is not known.
    """

    device: str
    source: str
    matrix_flops_per_second: dict[str, float] = field(default_factory=dict)
    vector_flops_per_second: dict[str, float] = field(default_factory=dict)
    bandwidth_bytes_per_second: float | None = None
    memory_bytes: int | None = None
    #: The size of the last cache before the memory that `bandwidth_bytes_per_second` is of: L2, on MI300 the L3.
    cache_bytes: int | None = None
    #: What was measured while something else was busy on the device: data types of matrix peaks, those of vector peaks
    #: after `VECTOR`, and `BANDWIDTH`.
    disturbed: tuple[str, ...] = ()
    #: Those among them that the user gave.
    given: tuple[GivenCeiling, ...] = ()

    @property
    def reference(self) -> Ceilings:
        """These, and where the user gave less than is known of the device that: what second sources say it can do."""
        less = {one.name: known for one in self.given if (known := one.known_per_second or 0) > one.per_second}
        if not less:
            return self
        bandwidth = less.pop(BANDWIDTH, self.bandwidth_bytes_per_second)
        return replace(
            self,
            matrix_flops_per_second={**self.matrix_flops_per_second, **less},
            bandwidth_bytes_per_second=bandwidth,
            given=tuple(one for one in self.given if (one.known_per_second or 0) <= one.per_second),
        )

    def matrix_peak(self, dtype: str | None, *, tf32: bool = False) -> float | None:
        """Operations a second of matrix products of `dtype` (torch's name), float32 ones in tf32 if `tf32`.

        Of `THREE_TF32` a third of the tf32 peak: three products each.
        """
        name = self.matrix_name(dtype, tf32=tf32)
        peak = None if name is None else self.matrix_flops_per_second.get(name)
        return peak / 3 if peak is not None and dtype == THREE_TF32 else peak

    def matrix_name(self, dtype: str | None, *, tf32: bool = False) -> str | None:
        """What the peak of matrix products of `dtype` is called in `matrix_flops_per_second`."""
        if dtype is None:
            return None
        if dtype == FLOAT32 and tf32:
            return TF32 if TF32 in self.matrix_flops_per_second else FLOAT32
        return "float8" if dtype.startswith("float8") else PEAK_OF_COMPUTE_TYPE.get(dtype, dtype)

    def vector_peak(self, dtype: str | None) -> float | None:
        """Operations a second of element-wise work and reductions of `dtype`; torch computes halves in float32."""
        return self.vector_flops_per_second.get(vector_name(dtype)) if dtype is not None else None


def vector_name(dtype: str | None) -> str:
    """The data type in which element-wise work and reductions of `dtype` compute."""
    return "float64" if dtype in ("float64", "complex128") else "float32"


#: The version of what is kept of a measurement.
MEASURED_SCHEMA = 1


class Machine(Record, frozen=True, kw_only=True):
    """What a measurement holds for: another driver, torch or number of threads is another measurement."""

    device: str
    kind: str
    memory_bytes: int | None = None
    driver: str | None = None
    torch: str | None = None
    #: The host's threads, on the CPU only.
    threads: int | None = None


class Rate(Record, frozen=True, kw_only=True):
    """The best of several bursts: operations or bytes a second, what did it, and when (ISO 8601, UTC).

    `spread` is how far the median burst stayed below the best, as a share of the best. `operands` are the arrays or
    matrices that it was done on, `None` in a measurement that was kept before these were.
    """

    per_second: float
    by: str
    spread: float
    bursts: int
    measured: str
    operands: str | None = None

    @property
    def disturbed(self) -> bool:
        """Whether something else was busy on the device, so that the best burst may be far from what it can do."""
        return self.spread > _DISTURBED


class Measured(Record, frozen=True, kw_only=True):
    """The rates of one machine: those of matrix products by data type, and those of moving bytes by what moved them."""

    machine: Machine
    peaks: dict[str, Rate] = field(default_factory=dict)
    bandwidths: dict[str, Rate] = field(default_factory=dict)
    #: The data types that were tried, those that cannot be multiplied there included.
    tried: tuple[str, ...] = ()
    #: The size of the last cache, as the system or the driver says it.
    cache_bytes: int | None = None
    schema: int = MEASURED_SCHEMA

    @property
    def bandwidth(self) -> Rate | None:
        """The fastest of the ways to move bytes."""
        return max(self.bandwidths.values(), key=lambda rate: rate.per_second, default=None)

    @property
    def date(self) -> str:
        """The day of the newest figure."""
        return max((rate.measured for rate in (*self.peaks.values(), *self.bandwidths.values())), default="")[:10]

    def over(self, older: Measured | None) -> Measured:
        """These figures, and those of `older` that are not among them."""
        if older is None:
            return self
        return Measured(
            machine=self.machine,
            peaks={**older.peaks, **self.peaks},
            bandwidths={**older.bandwidths, **self.bandwidths},
            tried=tuple(dict.fromkeys((*older.tried, *self.tried))),
            cache_bytes=older.cache_bytes if self.cache_bytes is None else self.cache_bytes,
        )


def now() -> str:
    """The time of a measurement."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
