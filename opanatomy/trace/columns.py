"""The columns of a trace: strings as numbers into a list of names, times as int64 nanoseconds, -1 for "not recorded"."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from opanatomy.model import Capture, Environment, Signature

Int64: TypeAlias = "npt.NDArray[np.int64]"


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


@dataclass(slots=True, kw_only=True)
class Trace:
    """One trace in columns. `names[i]` is the text of name `i`, `threads[i]` the (process, thread) of thread `i`."""

    names: list[str]
    threads: list[tuple[int | str | None, int | str | None]]
    host: HostEvents
    launches: Launches
    work: DeviceWork
    environment: Environment
    capture: Capture | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    text_bytes: int = 0
    #: The distinct argument lists of the operators, numbered by `host.signature`.
    signatures: list[Signature | None] = field(default_factory=list)

    @property
    def on_device(self) -> bool:
        """Whether the trace has work of an accelerator."""
        return len(self.work.name) > 0
