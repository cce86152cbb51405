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
