"""The typed shape of one trace event: only the fields some stage needs are decoded, the rest is skipped.

Kineto spelled several keys differently in 2021 (`external id`, `Input dims`); both spellings are fields here.
Shapes, types, strides and constants stay raw JSON: a trace has hundreds of distinct ones and hundreds of thousands
of copies.
"""

from __future__ import annotations

from decimal import Decimal

import msgspec
from msgspec import Raw, field


class Args(msgspec.Struct, gc=False):
    """The `args` of an event."""

    external_id: int | None = field(default=None, name="External id")
    external_id_2021: int | None = field(default=None, name="external id")
    correlation: int | None = None
    sequence: int | None = field(default=None, name="Sequence number")
    sequence_2021: int | None = field(default=None, name="Seq number")
    forward_thread: int | None = field(default=None, name="Fwd thread id")
    dims: Raw = field(default=Raw(), name="Input Dims")
    dims_2021: Raw = field(default=Raw(), name="Input dims")
    types: Raw = field(default=Raw(), name="Input type")
    strides: Raw = field(default=Raw(), name="Input Strides")
    constants: Raw = field(default=Raw(), name="Concrete Inputs")
    device: int | str | None = None
    stream: int | str | None = None


class Event(msgspec.Struct, gc=False):
    """One event of `traceEvents`; `ts` and `dur` are microseconds."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float | str | None = None
    dur: float | str | None = None
    args: Args | None = None


class ExactEvent(Event, gc=False):
    """An event whose time needs more digits than a float has (nanoseconds since 1970)."""

    ts: Decimal | None = None  # type: ignore[assignment]
    dur: Decimal | None = None  # type: ignore[assignment]
