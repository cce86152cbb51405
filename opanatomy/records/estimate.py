"""Define the estimate of a step on a device that is not present: its memory, and its time as a range."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Meta

from opanatomy.records.codec import Record


class Fits(str, Enum):
    """Whether a step fits into a device's memory, by the minimum and maximum that its process needs."""

    FITS = "fits"
    AT_THE_EDGE = "at the edge"
    DOES_NOT_FIT = "does not fit"


class Occupied(Record, frozen=True, kw_only=True):
    """The device memory that a step needs, in bytes.

    `allocated_bytes` is the maximum allocated in blocks of the caching allocator, including cuBLAS's workspace;
    `reserved_bytes` is the maximum that it reserves for them. The process needs `low_bytes` to `high_bytes` including
    the device context, whose exact size is unknown.
    """

    allocated_bytes: int
    reserved_bytes: int
    low_bytes: int
    high_bytes: int
    fits: Fits


class DeviceEstimate(Record, frozen=True, kw_only=True):
    """A step on one device, or on each of several identical ones, estimated and not run.

    device: the device's name in the data sheets; `usable_bytes` of its memory are available to programs.
    ranks: the number of devices that train together; `samples` and `tokens` count those of all ranks in one step,
        `batch` the samples of one rank.
    link_bytes_per_second: the rate at which a device can send to and receive from the others at once, according to its
        data sheet.
    transfer_ns: the time of the step's collectives on that link, at the rate that it attains.
    attained_ns: the step time if each call ran at the fastest rates that anyone measured on the device and launches
        took no time.
    as_is_ns: the step time in eager mode at typical efficiencies: matmuls, attention, element-wise work and
        normalizations each at its usual share of peak, plus the time of each launch.
    host_ns: the time that the host needs to launch everything; if it exceeds the device's work, it is the step time.
    mfu: FLOPs of contractions, without recomputation, over the peak of `mfu_dtype`, the type of most of them, at
        `as_is_ns`.
    low_ns: the lower end of the range in which the step time is expected; `high_ns` is the upper end.
    """

    device: str
    capability: tuple[int, int] | None
    usable_bytes: int
    occupied: Occupied
    attained_ns: int
    as_is_ns: int
    host_ns: int
    low_ns: int
    high_ns: int
    mfu: float | None = None
    mfu_dtype: str | None = None
    ranks: int = 1
    link_bytes_per_second: float | None = None
    transfer_ns: int = 0
    batch: int | None = None
    sequence_length: int | None = None
    samples: int | None = None
    tokens: int | None = None


class DecoderShape(Record, frozen=True, kw_only=True):
    """The sizes of a language-model decoder that FLOP formulas use.

    parameters: all parameters; `idle` of them belong to experts that a token does not use.
    embeddings: parameters of lookup tables, `positions` of them for positions; `tied` if the head shares the token
        table.
    inner_weights: feed-forward weights that a token is multiplied with, over all layers.
    """

    layers: int
    hidden: int
    heads: int
    key_value_heads: int
    head_size: int
    vocabulary: int
    parameters: int
    embeddings: int
    positions: int
    tied: bool
    inner_weights: int
    idle: int = 0


class FlopConvention(Record, frozen=True, kw_only=True):
    """Training FLOPs per token as one project counts them, or as opanatomy counts them, call by call.

    flops_per_second: FLOP/s of a device at the middle of the estimated range, or at the given throughput; `mfu` is
        their share of the peak.
    """

    name: str
    flops: int
    counts: str
    leaves_out: str
    flops_per_second: float | None = None
    mfu: float | None = None


class Tried(Record, frozen=True, kw_only=True):
    """Published runs of one kind that were estimated: how many step times lay within the range, and the median error.

    The runs that the efficiencies were fitted to are excluded.
    """

    kind: str
    runs: int = 0
    inside: int = 0
    median_off: float | None = None


class Estimated(Record, frozen=True, kw_only=True):
    """The estimate of a step, one row per device and size; all other numbers in the report are for the first row.

    `assumed` lists the defaults that were assumed.
    """

    devices: Annotated[tuple[DeviceEstimate, ...], Meta(min_length=1)]
    assumed: tuple[str, ...] = ()
    #: For training of a text decoder, on the first device; at its throughput `tokens_per_second`, if given.
    conventions: tuple[FlopConvention, ...] = ()
    tokens_per_second: float | None = None
    #: How estimates of this kind compared with published runs.
    tried: Tried | None = None
