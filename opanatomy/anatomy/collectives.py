"""Device events of communication -> calls, time, bytes and bus bandwidth of each collective."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.records.columns import CollectiveArguments, CollectiveTable, distinct
from opanatomy.records.data_types import BY_C10D_NAME, ITEM_SIZE
from opanatomy.records.ranks import Collective

#: In the order of looking: `all_reduce` is looked for before `reduce`, names without `_` and in small letters.
_NAMES: Final = {
    "barrier": "barrier", "allreduce": "all_reduce", "reducescatter": "reduce_scatter", "allgather": "all_gather",
    "alltoall": "all_to_all", "sendrecv": "send_recv", "broadcast": "broadcast", "scatter": "scatter",
    "gather": "gather", "reduce": "reduce", "send": "send", "recv": "recv",
}  # fmt: skip
OTHER: Final = "other"


class World(Struct, frozen=True):
    """The ranks of the run; `only_group` where the trace says that there is no group but all of them."""

    size: int | None = None
    only_group: bool = False


_Key = tuple[str, "str | None", "int | None", bool]


class _Sum(Struct):
    calls: int = 0
    kernels: int = 0
    time_ns: int = 0
    sized_ns: int = 0
    bytes: int | None = None


def collectives_of(table: CollectiveTable, world: World) -> tuple[Collective, ...]:
    """One row a collective, data type and group, the longest first; their times sum to that of all device events."""
    width = len(table.arguments.values) + 1
    kinds = distinct(table.kernel.codes * width + table.arguments.codes + 1)
    count = len(kinds.values)
    time = np.zeros(count, dtype=np.int64)
    np.add.at(time, kinds.inverse, table.duration_ns)
    # A call of several device events is of the kind of its first one.
    calls = np.bincount(kinds.inverse[distinct(table.call).first], minlength=count)
    kernels = np.bincount(kinds.inverse, minlength=count)
    sums: dict[_Key, _Sum] = {}
    for kind, row in enumerate(kinds.first.tolist()):
        key, size = _kind_of(table.kernel.at(row) or "", table.arguments.at(row) or CollectiveArguments(""), world)
        _add(sums.setdefault(key, _Sum()), int(calls[kind]), int(kernels[kind]), int(time[kind]), size)
    return _sorted(
        with_bandwidth(
            Collective(
                collective=name, dtype=dtype, group_size=group, group_assumed=assumed, calls=row.calls,
                kernels=row.kernels, time_ns=row.time_ns, sized_ns=row.sized_ns, bytes=row.bytes,
                bus_bytes_per_second=None,
            )
        )
        for (name, dtype, group, assumed), row in sums.items()
    )  # fmt: skip


def _kind_of(kernel: str, arguments: CollectiveArguments, world: World) -> tuple[_Key, int | None]:
    """(the row that device events of this name and these arguments are of, the bytes of a call's message)."""
    group = arguments.group_size or world.size
    name = named(arguments.collective) or named(kernel) or OTHER
    dtype = dtype_of(arguments.dtype)
    assumed = arguments.group_size is None and group is not None and not world.only_group
    return (name, dtype, group, assumed), message_bytes(name, arguments, dtype, group)


def _add(row: _Sum, calls: int, kernels: int, time_ns: int, message: int | None) -> None:
    row.calls += calls
    row.kernels += kernels
    row.time_ns += time_ns
    if message is not None:
        row.sized_ns += time_ns
        row.bytes = (row.bytes or 0) + calls * message if calls else row.bytes


def merged_collectives(rows: Iterable[Collective]) -> tuple[Collective, ...]:
    """The rows of several ranks as those of all of them together."""
    merged: dict[_Key, Collective] = {}
    for row in rows:
        key = (row.collective, row.dtype, row.group_size, row.group_assumed)
        before = merged.get(key)
        if before is None:
            merged[key] = row
            continue
        known = [size for size in (before.bytes, row.bytes) if size is not None]
        merged[key] = replace(
            before, calls=before.calls + row.calls, kernels=before.kernels + row.kernels,
            time_ns=before.time_ns + row.time_ns, sized_ns=before.sized_ns + row.sized_ns,
            bytes=sum(known) if known else None,
        )  # fmt: skip
    return _sorted(map(with_bandwidth, merged.values()))


def named(text: str) -> str | None:
    """The collective that a name of c10d, of a backend or of a kernel stands for: `_allgather_base` is all_gather."""
    plain = re.sub(r"[\W_]+", "", text).lower()
    return next((name for part, name in _NAMES.items() if part in plain), None)


def dtype_of(text: str | None) -> str | None:
    """Torch's name of a data type that c10 (`BFloat16`) or torch itself wrote."""
    if not text:
        return None
    plain = text.lower()
    return plain if plain in ITEM_SIZE else BY_C10D_NAME.get(plain)


def message_bytes(collective: str, message: CollectiveArguments, dtype: str | None, group: int | None) -> int | None:
    """The size of the message as nccl-tests counts it: the whole buffer, whichever side has the whole."""
    sent, got = message.in_elements, message.out_elements
    if dtype is None:
        return None
    if collective in ("all_gather", "gather"):
        elements = got or (sent * group if sent is not None and group else None)
    elif collective in ("reduce_scatter", "scatter"):
        elements = sent or (got * group if got is not None and group else None)
    else:
        elements = max((count for count in (sent, got) if count is not None), default=None)
    return None if elements is None or elements < 0 else elements * ITEM_SIZE[dtype]


def both_sides(message: CollectiveArguments) -> tuple[int, int] | None:
    """(elements that a rank gives, elements that it gets); `None` where one is neither said nor follows from the other.

    An all-to-all may be uneven: the one side says nothing of the other.
    """
    sent, got, group = message.in_elements, message.out_elements, message.group_size
    if sent is not None and got is not None:
        return sent, got
    known = got if sent is None else sent
    if known is None:
        return None
    name = named(message.collective)
    if name in ("all_reduce", "broadcast"):
        return known, known
    if name in ("all_gather", "reduce_scatter") and group:
        grows = (name == "all_gather") == (sent is not None)
        other = known * group if grows else known // group
        return (known, other) if sent is not None else (other, known)
    return None


def with_bandwidth(row: Collective) -> Collective:
    """The row with its bus bandwidth, where size, time and group are known."""
    factor = bus_factor(row.collective, row.group_size)
    known = factor and row.bytes and row.sized_ns
    rate = factor * row.bytes * 1e9 / row.sized_ns if known and factor and row.bytes else None
    return replace(row, bus_bytes_per_second=rate)


def bus_factor(collective: str, group: int | None) -> float | None:
    """Bytes on the busiest link for each byte of the message (nccl-tests, PERFORMANCE.md)."""
    if collective in (OTHER, "barrier"):
        return None
    if collective in ("broadcast", "reduce", "send", "recv", "send_recv"):
        return 1.0
    if group is None or group < 2:
        return None
    return (2 if collective == "all_reduce" else 1) * (group - 1) / group


def _sorted(rows: Iterable[Collective]) -> tuple[Collective, ...]:
    return tuple(
        sorted(
            rows,
            key=lambda row: (-row.time_ns, row.collective, row.dtype or "", row.group_size or 0, row.group_assumed),
        )
    )
