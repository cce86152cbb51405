"""What the events of a trace say of its collectives: which call each device event is of, what it sends."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from opanatomy.anatomy.collectives import both_sides, dtype_of, named
from opanatomy.calls.announced import annotations_of_backends, announced, joined_to_operators, merged, number_of
from opanatomy.calls.trace_calls import TraceCalls
from opanatomy.records.columns import (
    Categorical,
    CollectiveArguments,
    CollectiveTable,
    Int64,
    KernelTable,
    marked,
)
from opanatomy.records.data_types import ITEM_SIZE
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.trace import Trace


def collective_table(trace: Trace, calls: TraceCalls, kernels: KernelTable | None) -> CollectiveTable:
    """One row a device event of the class in the window; on the CPU, where `kernels` is `None`, one an annotation
    that a backend leaves on its threads."""
    if kernels is None:
        rows = annotations_of_backends(calls, calls.host.in_window)
        _, arguments = of_annotations(trace, calls, rows)
        return CollectiveTable(
            kernel=Categorical(calls.host.name[rows], calls.names), duration_ns=calls.host.duration_ns[rows],
            call=rows, arguments=_without_number(arguments),
        )  # fmt: skip
    events = np.flatnonzero(kernels.inside & kernels.operator_class.equals(OperatorClass.COMMUNICATION))
    call, arguments = of_events(trace, calls, events)
    return CollectiveTable(
        kernel=kernels.kernel.take(events), duration_ns=kernels.duration_ns[events],
        call=np.where(call >= 0, call, -2 - events), arguments=_without_number(arguments),
    )  # fmt: skip


def of_annotations(trace: Trace, calls: TraceCalls, rows: Int64) -> tuple[Int64, Categorical[CollectiveArguments]]:
    """(the row of c10d's operator that caused each annotation, what both say together); -1 where there is none."""
    operator = joined_to_operators(calls, rows)
    alone = announced(trace, calls, rows).arguments
    asked = announced(trace, calls, operator).arguments
    below = np.where(alone.codes >= 0, alone.codes + len(asked.values), -1)
    return operator, merged([asked.codes, below], (*asked.values, *alone.values))


def of_events(trace: Trace, calls: TraceCalls, events: Int64) -> tuple[Int64, Categorical[CollectiveArguments]]:
    """(the host row of the collective of each device event, what it says): the event itself before its launch."""
    around = announced(trace, calls, calls.work.host[events])
    numbers = {known: number for number, known in enumerate(around.arguments.values)}
    own = [number_of(numbers, trace.work_collectives.get(event)) for event in events.tolist()]
    codes = np.array(own, dtype=np.int64)
    return around.call, Categorical(np.where(codes >= 0, codes, around.arguments.codes), tuple(numbers))


def exchanged_bytes(trace: Trace, calls: TraceCalls, wanted: Int64) -> tuple[Int64, Int64]:
    """(bytes sent, bytes received) of the collective at each host row, -1 where it is not said or not `wanted`."""
    sent, received = np.full((2, len(calls.host.name)), -1, dtype=np.int64)
    if not calls.on_device:
        rows = annotations_of_backends(calls, np.ones(len(calls.host.name), dtype=bool))
        operator, arguments = of_annotations(trace, calls, rows)
        sent[rows], received[rows] = _of_both_sides(arguments).T
        # What launches a collective that runs alongside it moves nothing itself.
        sent[operator[operator >= 0]] = received[operator[operator >= 0]] = 0
        return sent, received
    of_call = calls.call_of_event
    is_wanted = marked(wanted, len(calls.host.name) + 1)
    # The first event that says something decides.
    events = np.flatnonzero(is_wanted[of_call])[::-1]
    _, arguments = of_events(trace, calls, events)
    sides = _of_both_sides(arguments)
    said = sides[:, 0] >= 0
    sent[of_call[events[said]]], received[of_call[events[said]]] = sides[said].T
    return sent, received


def bytes_of(arguments: Categorical[CollectiveArguments]) -> Int64:
    """(rows, 2): the bytes that each row's collective sends and receives, -1 where that is not said."""
    return np.array([_sides(known) for known in arguments.values] + [(-1, -1)], dtype=np.int64)[arguments.codes]


def _of_both_sides(arguments: Categorical[CollectiveArguments]) -> Int64:
    """As `bytes_of`, -1 for both where one is not said."""
    sides = bytes_of(arguments)
    return np.where((sides >= 0).all(axis=1, keepdims=True), sides, -1)


def _sides(arguments: CollectiveArguments) -> tuple[int, int]:
    dtype = dtype_of(arguments.dtype)
    if dtype is None:
        return -1, -1
    elements: tuple[int | None, int | None] | None = both_sides(arguments)
    if elements is None and named(arguments.collective) == "all_to_all":
        elements = arguments.in_elements, arguments.out_elements
    sent, got = elements or (None, None)
    return -1 if sent is None else sent * ITEM_SIZE[dtype], -1 if got is None else got * ITEM_SIZE[dtype]


def _without_number(arguments: Categorical[CollectiveArguments]) -> Categorical[CollectiveArguments]:
    """Without what distinguishes one call from the next of its kind."""
    numbers: dict[CollectiveArguments, int] = {}
    codes = [numbers.setdefault(replace(known, sequence=None), len(numbers)) for known in arguments.values]
    return Categorical(np.array([*codes, -1], dtype=np.int64)[arguments.codes], tuple(numbers))
