"""Define what is computed of a step on a device that is not here: its memory, and its time as a range."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Meta

from opanatomy.records.codec import Record


class Fits(str, Enum):
    """Whether a step fits into a device's memory, by the least and the most that its process takes."""

    FITS = "fits"
    AT_THE_EDGE = "at the edge"
    DOES_NOT_FIT = "does not fit"


class Occupied(Record, frozen=True, kw_only=True):
    """The memory of a device that a step takes, in bytes.

    `allocated_bytes` are the most in whole blocks of the caching allocator, with the work space that cuBLAS gets from
    it; `reserved_bytes` the most that it reserves for them. `low_bytes` to `high_bytes` is what the process takes with
    the device's context, which is unknown more exactly.
    """

    allocated_bytes: int
    reserved_bytes: int
    low_bytes: int
    high_bytes: int
    fits: Fits


class DeviceEstimate(Record, frozen=True, kw_only=True):
    """A step on one device, or on each of several equal ones, computed and not run.

    device: its data sheet's name; `usable_bytes` of its memory are left to programs.
    ranks: how many of them train together; `samples` and `tokens` are those of all in one step, `batch` of one.
    link_bytes_per_second: what a device sends to the others and gets from them at once, by its sheet.
    transfer_ns: the step's collectives on that link, at what it attains.
    attained_ns: the step if each call ran at the fastest rates that anyone measured there, launches for nothing.
    as_is_ns: the step in eager mode as like calls run: products, attention, element-wise work and normalizations each
        at the share of a ceiling that is usual, with the time of each launch.
    host_ns: what the host needs to launch all; if that is more than the device's work, it is the step.
    mfu: FLOPs of contractions, without recomputation, over the peak of the type of most of them, `mfu_dtype`, as is.
    low_ns: the range in which the step is expected; `high_ns` its other end.
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
    """The sizes of a decoder of words that formulas of its FLOPs take.

    parameters: all, `idle` of which belong to experts that a token does not use.
    embeddings: those of look-up tables, `positions` of them of positions; `tied` if the head is the table of words.
    inner_weights: weights of feed-forward products that a token is multiplied with, of all layers.
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
    """The training FLOPs of a token as one project counts them, or as they are counted here, call by call.

    flops_per_second: those of a device in the middle of the estimate, or at the rate that was given; `mfu` is their
        share of its peak.
    """

    name: str
    flops: int
    counts: str
    leaves_out: str
    flops_per_second: float | None = None
    mfu: float | None = None


class Tried(Record, frozen=True, kw_only=True):
    """Published runs of a kind that were estimated: how many of their steps lay inside, and the median error.

    Those that efficiencies were fitted on are not among them.
    """

    kind: str
    runs: int = 0
    inside: int = 0
    median_off: float | None = None


class Estimated(Record, frozen=True, kw_only=True):
    """What was computed of a step, a row for each device and size; all other figures of the report are of the first.

    `assumed` says what was not asked for, and taken.
    """

    devices: Annotated[tuple[DeviceEstimate, ...], Meta(min_length=1)]
    assumed: tuple[str, ...] = ()
    #: For training of a text decoder, on the first device; at its `tokens_per_second`, if given.
    conventions: tuple[FlopConvention, ...] = ()
    tokens_per_second: float | None = None
    #: How estimates of this kind compared with published runs.
    tried: Tried | None = None
