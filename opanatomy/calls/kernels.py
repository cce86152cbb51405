"""Attributed calls and device work, piece by piece: what the annotated trace and the table of collectives show.

Beside the pipeline, for what is needed of each piece where the report needs sums.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from msgspec import Struct

from opanatomy.anatomy.collectives import CollectiveEvent, both_sides, dtype_of
from opanatomy.attribution.attribute import HostTable, WorkTable
from opanatomy.attribution.linking import OUTSIDE
from opanatomy.records.columns import CollectiveArguments, Int64, KernelTable, Overlay
from opanatomy.records.data_types import ITEM_SIZE
from opanatomy.records.signature import Classification, Cost, Signature
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.trace import Trace

_CLASSES = {str(one): place for place, one in enumerate(OperatorClass)}
_PHASES = {str(one): place for place, one in enumerate(Phase)}


class Attributed(Protocol):
    """What the pipeline knows of a trace once its calls are found; rows are those of `host` and `work`."""

    trace: Trace
    host: HostTable
    work: WorkTable
    #: The row of the call that each host row is part of, -1 where there is none.
    owner: Int64

    def class_of(self, index: int) -> OperatorClass:
        """The class of a piece of device work."""
        ...

    def call_class(self, row: int) -> Classification:
        """How the call of a host row is classed."""
        ...

    def cost_of(self, row: int) -> Cost | None:
        """The cost of the call at a host row, where it is known."""
        ...

    def operator_of(self, row: int) -> str | None:
        """The innermost operator around a host row."""
        ...


class _Numbered(Struct):
    """Texts in the order of their first use."""

    numbers: dict[str, int]

    def of(self, text: str | None) -> int:
        return -1 if text is None else self.numbers.setdefault(text, len(self.numbers))


def overlay_of(found: Attributed) -> Overlay:
    """Each piece of device work as it was attributed; on the CPU each call."""
    tracks, operators, modules = _Numbered({}), _Numbered({}), _Numbered({})
    pieces = _device_events(found) if found.trace.on_device else _host_events(found)
    growing = [array("q") for _ in range(9)]
    for piece in pieces:
        values = (
            tracks.of(piece.track), piece.start_ns, piece.duration_ns, operators.of(piece.operator),
            modules.of(piece.module), _CLASSES[piece.operator_class], _PHASES[piece.phase], piece.call, piece.inside,
        )  # fmt: skip
        for column, value in zip(growing, values, strict=True):
            column.append(value)
    columns = [np.array(column, dtype=np.int64) for column in growing]
    flops, moved = _shares(found, columns[7], columns[2])
    return Overlay(
        tracks=tuple(tracks.numbers), operators=tuple(operators.numbers), modules=tuple(modules.numbers),
        track=columns[0], start_ns=columns[1], duration_ns=columns[2], operator=columns[3], module=columns[4],
        operator_class=columns[5], phase=columns[6], flops=flops, bytes=moved, inside=columns[8].astype(bool),
    )  # fmt: skip


class _Piece(Struct, frozen=True, kw_only=True):
    track: str
    start_ns: int
    duration_ns: int
    operator: str | None
    module: str | None
    operator_class: OperatorClass
    phase: Phase
    call: int
    inside: bool


def _device_events(found: Attributed) -> Iterator[_Piece]:
    work = found.work
    for index in range(len(work.name)):
        host = int(work.host[index])
        inside = bool(work.link[index] != OUTSIDE)
        yield _Piece(
            track=f"device {work.device[index]} stream {work.stream[index]}",
            start_ns=int(work.start_ns[index]), duration_ns=int(work.duration_ns[index]),
            operator=found.operator_of(host), module=work.module[index] or None,
            operator_class=found.class_of(index), phase=work.phase[index],
            call=int(found.owner[host]) if host >= 0 and inside else -1, inside=inside,
        )  # fmt: skip


def _host_events(found: Attributed) -> Iterator[_Piece]:
    host, threads = found.host, found.trace.threads
    for row in np.flatnonzero(found.owner == np.arange(len(host.name))).tolist():
        inside = bool(host.in_window[row])
        yield _Piece(
            track=f"thread {threads[int(host.thread[row])][1]}",
            start_ns=int(host.start_ns[row]), duration_ns=int(host.duration_ns[row]),
            operator=found.operator_of(row), module=host.module[row] or None,
            operator_class=found.call_class(row).operator_class or OperatorClass.UNKNOWN, phase=host.phase[row],
            call=row if inside else -1, inside=inside,
        )  # fmt: skip


def _shares(found: Attributed, call: Int64, duration_ns: Int64) -> tuple[Int64, Int64]:
    """The FLOPs and bytes of each piece: those of its call, divided by time so that they add up exactly."""
    flops, moved = np.full(len(call), -1, dtype=np.int64), np.full(len(call), -1, dtype=np.int64)
    order = np.argsort(call, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(call[order])) + 1):
        cost = found.cost_of(int(call[rows[0]])) if len(rows) and call[rows[0]] >= 0 else None
        if cost is not None:
            times = duration_ns[rows].tolist()
            flops[rows] = divided(cost.flops, times)
            moved[rows] = divided(cost.read_bytes + cost.written_bytes, times)
    return flops, moved


def divided(amount: int, times: list[int]) -> list[int]:
    """Whole parts of `amount` in proportion to `times`, which sum to it exactly; evenly where no time passed."""
    weights = times if sum(times) else [1] * len(times)
    parts, passed, given, whole = [], 0, 0, sum(weights)
    for weight in weights:
        passed += weight
        upto = amount * passed // whole
        parts.append(upto - given)
        given = upto
    return parts


def collective_events_of(found: Attributed, table: KernelTable | None) -> Iterator[CollectiveEvent]:
    """Each piece of communication with what the trace says of its collective.

    On an accelerator these are the pieces of the class in `table`, which has a row for each piece in the window; on
    the CPU, where there is no table, the annotations that a backend leaves on its threads.
    """
    if table is None:
        yield from _host_collective_events(found)
        return
    work = found.work
    talks = table.operator_class.equals(OperatorClass.COMMUNICATION)
    for index in np.flatnonzero(work.link != OUTSIDE)[talks].tolist():
        row, message = _announced(found, int(work.host[index]))
        yield CollectiveEvent(
            kernel=found.trace.names[int(work.name[index])], duration_ns=int(work.duration_ns[index]),
            call=row if row >= 0 else -2 - index,
            message=found.trace.work_collectives.get(index) or message,
        )  # fmt: skip


def exchanged(found: Attributed, piece: int) -> tuple[int, int] | None:
    """(bytes sent, bytes received) of the collective that a piece of device work is of; `None` where it is not said."""
    host = int(found.work.host[piece])
    message = found.trace.work_collectives.get(piece) or (_announced(found, host)[1] if host >= 0 else None)
    dtype = dtype_of(message.dtype) if message else None
    if message is None or dtype is None:
        return None
    sides = both_sides(message)
    return (sides[0] * ITEM_SIZE[dtype], sides[1] * ITEM_SIZE[dtype]) if sides else None


def _host_collective_events(found: Attributed) -> Iterator[CollectiveEvent]:
    host, names = found.host, found.trace.names
    for row in np.flatnonzero((host.annotation != 0) & host.in_window).tolist():
        name = names[int(host.name[row])]
        if name.startswith(_BACKENDS):
            yield CollectiveEvent(
                kernel=name, duration_ns=int(host.duration_ns[row]), call=row, message=_announced(found, row)[1]
            )


_BACKENDS = ("nccl:", "gloo:", "ucc:", "mpi:", "xccl:", "hccl:", "rccl:")


def _announced(found: Attributed, row: int) -> tuple[int, CollectiveArguments | None]:
    """(the row of the collective around a row, what its events say): from `record_param_comms`, from the annotation of
    the backend (`nccl:all_reduce` with the shape of its tensor), from the name of c10d's operator."""
    host, trace = found.host, found.trace
    call, told = -1, None
    while row >= 0:
        name = trace.names[int(host.name[row])]
        if name == "record_param_comms":
            call, told = row, trace.host_collectives.get((int(host.thread[row]), int(host.start_ns[row]))) or told
        elif name.startswith(_BACKENDS):
            call, told = row, told or _by_shape(name, _signature(trace, int(host.signature[row])))
        elif name.startswith("c10d::"):
            return (row if call < 0 else call), told or CollectiveArguments(name.removeprefix("c10d::"))
        row = int(host.parent[row])
    return call, told


def _signature(trace: Trace, number: int) -> Signature | None:
    return trace.signatures[number] if number >= 0 else None


def _by_shape(name: str, signature: Signature | None) -> CollectiveArguments:
    """What an annotation with the shapes of its tensors says; `nccl:` and the like before the collective's name."""
    collective = name.partition(":")[2]
    tensors = signature.tensors() if signature else ()
    kinds = {tensor.dtype for tensor in tensors}
    if not tensors or len(kinds) != 1:
        return CollectiveArguments(collective)
    return CollectiveArguments(collective, in_elements=sum(tensor.numel for tensor in tensors), dtype=kinds.pop())
