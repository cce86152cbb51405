"""The columns that the reading of a trace hands to attribution.

Strings are numbers into a list of names, times int64 nanoseconds, -1 is "not recorded".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Int64: TypeAlias = "npt.NDArray[np.int64]"
Bool: TypeAlias = "npt.NDArray[np.bool_]"
Float64: TypeAlias = "npt.NDArray[np.float64]"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvents:
    """Operators, autograd nodes and ranges on the host, in the order of the file."""

    name: Int64
    thread: Int64
    start_ns: Int64
    duration_ns: Int64
    external_id: Int64
    sequence: Int64
    forward_thread: Int64
    signature: Int64
    #: 1 where the event is a user annotation (`record_function`), 0 where it is an operator.
    annotation: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """Calls of the device's runtime or driver on the host."""

    name: Int64
    thread: Int64
    start_ns: Int64
    duration_ns: Int64
    correlation: Int64
    external_id: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """Kernels, copies and fills on the device."""

    name: Int64
    device: Int64
    stream: Int64
    start_ns: Int64
    duration_ns: Int64
    correlation: Int64
    external_id: Int64
    #: 0 kernel, 1 memcpy, 2 memset.
    kind: Int64
    #: Thread blocks launched for each multiprocessor, and the occupancy estimated in percent; NaN is "not recorded".
    blocks_per_sm: Float64
    occupancy: Float64


@dataclass(frozen=True, slots=True)
class Message:
    """What a collective says of itself in the arguments of its event; `None` where it does not."""

    collective: str
    in_elements: int | None = None
    out_elements: int | None = None
    group_size: int | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """What an annotated trace adds to its source: each piece of device work (on the CPU: each call) as it was
    attributed. `flops` and `bytes` are the piece's share of its call by time, so that they add up; -1 is "not known".
    """

    #: What `track` and the like number: a stream of a device, or a thread of the host.
    tracks: tuple[str, ...]
    operators: tuple[str, ...]
    modules: tuple[str, ...]
    track: Int64
    start_ns: Int64
    duration_ns: Int64
    operator: Int64
    module: Int64
    #: Places in `OperatorClass` and `Phase`.
    operator_class: Int64
    phase: Int64
    flops: Int64
    bytes: Int64
    #: Whether the piece counts in the report: it was launched in the window.
    inside: Bool
