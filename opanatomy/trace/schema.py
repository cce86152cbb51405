"""The typed shape of one trace event: only the fields some stage needs are decoded, the rest is skipped.

Kineto spelled several keys differently in 2021 (`external id`, `Input dims`); both spellings are fields here.
Shapes, types, strides and constants stay raw JSON: a trace has hundreds of distinct ones and hundreds of thousands
of copies.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Raw, field

#: What fits a column; an event with a larger number is decoded field by field, without that number.
Number: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
#: Times (microseconds) that a trace can have, 1938 to 2096 where they count from 1970, and the longest duration.
TIMES_US = (-1e15, 4e15)
LONGEST_US = 1e13
Time: TypeAlias = Annotated[float, Meta(ge=TIMES_US[0], le=TIMES_US[1])]
Duration: TypeAlias = Annotated[float, Meta(ge=-LONGEST_US, le=LONGEST_US)]


class Args(msgspec.Struct, gc=False):
    """The `args` of an event; a number that is missing is -1."""

    external_id: Number | None = field(default=-1, name="External id")
    external_id_2021: Number | None = field(default=-1, name="external id")
    correlation: Number | None = -1
    sequence: Number | None = field(default=-1, name="Sequence number")
    sequence_2021: Number | None = field(default=-1, name="Seq number")
    forward_thread: Number | None = field(default=-1, name="Fwd thread id")
    dims: Raw = field(default=Raw(), name="Input Dims")
    dims_2021: Raw = field(default=Raw(), name="Input dims")
    types: Raw = field(default=Raw(), name="Input type")
    strides: Raw = field(default=Raw(), name="Input Strides")
    constants: Raw = field(default=Raw(), name="Concrete Inputs")
    device: Number | str | None = None
    stream: Number | str | None = None
    blocks_per_sm: float | str | None = field(default=None, name="blocks per SM")
    occupancy: float | str | None = field(default=None, name="est. achieved occupancy %")
    #: What a collective says of its message: `record_param_comms` and NCCL kernels of torch 2.2 and later.
    collective: Raw = field(default=Raw(), name="Collective name")
    in_elements: Raw = field(default=Raw(), name="In msg nelems")
    out_elements: Raw = field(default=Raw(), name="Out msg nelems")
    group_size: Raw = field(default=Raw(), name="Group size")
    message_dtype: Raw = field(default=Raw(), name="dtype")
    #: Of `[memory]` events; `bytes` are below 0 where they were freed. In 2021 there were only bytes and device.
    bytes: Number | None = field(default=0, name="Bytes")
    address: Number | None = field(default=-1, name="Addr")
    total_allocated: Number | None = field(default=-1, name="Total Allocated")
    total_reserved: Number | None = field(default=-1, name="Total Reserved")
    device_type: Number | None = field(default=-1, name="Device Type")
    device_id: Number | None = field(default=-1, name="Device Id")


class Event(msgspec.Struct, gc=False):
    """One event of `traceEvents`; `ts` and `dur` are microseconds."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: Number | str | None = None
    tid: Number | str | None = None
    ts: Time | None = None
    dur: Duration | None = None
    args: Args | None = None
    #: What the two ends of a flow have in common.
    id: Number | str | None = None


class ExactEvent(Event, gc=False):
    """An event whose time needs more digits than a float has (nanoseconds since 1970)."""

    ts: Decimal | None = None  # type: ignore[assignment]
    dur: Decimal | None = None  # type: ignore[assignment]
