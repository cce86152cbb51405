"""Define what is computed of a step on a device that is not here: its memory, and its time as a range."""

from __future__ import annotations

from enum import Enum

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
    the device's context, which is not known more exactly.
    """

    allocated_bytes: int
    reserved_bytes: int
    low_bytes: int
    high_bytes: int
    fits: Fits


class DeviceEstimate(Record, frozen=True, kw_only=True):
    """A step on one device, computed and not run.

    device: its data sheet's name; `usable_bytes` of its memory are left to programs.
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


class Estimated(Record, frozen=True, kw_only=True):
    """What was computed of a step on each device that was named; all other figures of the report are of the first.

    `tokens` are those of a step, `None` if it has none; `assumed` says what was not asked for, and taken.
    """

    devices: tuple[DeviceEstimate, ...]
    tokens: int | None = None
    assumed: tuple[str, ...] = ()
