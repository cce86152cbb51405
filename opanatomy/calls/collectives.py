"""What the events of a trace say of its collectives: which call each device event is of, what it sends."""

from __future__ import annotations

from typing import Final

import numpy as np

from opanatomy.anatomy.collectives import both_sides, dtype_of
from opanatomy.calls.trace_calls import TraceCalls
from opanatomy.records.columns import (
    Categorical,
    CollectiveArguments,
    CollectiveTable,
    Int64,
    KernelTable,
    distinct,
    marked,
)
from opanatomy.records.data_types import ITEM_SIZE
from opanatomy.records.signature import Signature
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.trace import Trace

_BACKENDS: Final = ("nccl:", "gloo:", "ucc:", "mpi:", "xccl:", "hccl:", "rccl:")
#: Kinds of host events that say something of a collective; others are 0.
_PARAMETERS, _BACKEND, _C10D = 1, 2, 3


def collective_table(trace: Trace, calls: TraceCalls, kernels: KernelTable | None) -> CollectiveTable:
    """One row a device event of the class in the window; on the CPU, where `kernels` is `None`, one an annotation
    that a backend leaves on its threads."""
    if kernels is None:
        annotated = (calls.host.annotation != 0) & calls.host.in_window
        rows = np.flatnonzero(annotated & (_kinds(calls)[calls.host.name] == _BACKEND))
        _, arguments = _announced(trace, calls, rows)
        return CollectiveTable(
            kernel=Categorical(calls.host.name[rows], calls.names), duration_ns=calls.host.duration_ns[rows],
            call=rows, arguments=arguments,
        )  # fmt: skip
    events = np.flatnonzero(kernels.inside & kernels.operator_class.equals(OperatorClass.COMMUNICATION))
    call, arguments = _of_events(trace, calls, events)
    return CollectiveTable(
        kernel=kernels.kernel.take(events), duration_ns=kernels.duration_ns[events],
        call=np.where(call >= 0, call, -2 - events), arguments=arguments,
    )  # fmt: skip


def exchanged_bytes(trace: Trace, calls: TraceCalls, wanted: Int64) -> tuple[Int64, Int64]:
    """(bytes sent, bytes received) of the collective at each host row, -1 where it is not said or not `wanted`."""
    sent, received = np.full((2, len(calls.host.name)), -1, dtype=np.int64)
    of_call = calls.call_of_event
    is_wanted = marked(wanted, len(calls.host.name) + 1)
    # The first event that says something decides.
    events = np.flatnonzero(is_wanted[of_call])[::-1]
    _, arguments = _of_events(trace, calls, events)
    sides = np.array([_sides(known) for known in arguments.values] + [(-1, -1)], dtype=np.int64)[arguments.codes]
    said = sides[:, 0] >= 0
    sent[of_call[events[said]]], received[of_call[events[said]]] = sides[said].T
    return sent, received


def _sides(arguments: CollectiveArguments) -> tuple[int, int]:
    dtype = dtype_of(arguments.dtype)
    elements = both_sides(arguments) if dtype else None
    if dtype is None or elements is None:
        return -1, -1
    return elements[0] * ITEM_SIZE[dtype], elements[1] * ITEM_SIZE[dtype]


def _of_events(trace: Trace, calls: TraceCalls, events: Int64) -> tuple[Int64, Categorical[CollectiveArguments]]:
    """(the host row of the collective of each device event, what it says): the event itself before its launch."""
    call, announced = _announced(trace, calls, calls.work.host[events])
    numbers = {known: number for number, known in enumerate(announced.values)}
    own = [_number(numbers, trace.work_collectives.get(event)) for event in events.tolist()]
    codes = np.array(own, dtype=np.int64)
    return call, Categorical(np.where(codes >= 0, codes, announced.codes), tuple(numbers))


def _announced(trace: Trace, calls: TraceCalls, rows: Int64) -> tuple[Int64, Categorical[CollectiveArguments]]:
    """(the row of the collective at or around each host row, what its events say), -1 for none: `record_param_comms`,
    the annotation of the backend (`nccl:all_reduce` with the shape of its tensor), the name of c10d's operator."""
    kind = _kinds(calls)[calls.host.name]
    said = _said(trace, calls, kind)
    call, code = np.full((2, len(rows)), -1, dtype=np.int64)
    current = rows.copy()
    while len(active := np.flatnonzero(current >= 0)):
        row = current[active]
        kinds, known = kind[row], code[active]
        full = (kinds == _PARAMETERS) & (said.codes[row] >= 0)
        code[active] = np.where(full | (known < 0), said.codes[row], known)
        collective = (kinds == _PARAMETERS) | (kinds == _BACKEND) | ((kinds == _C10D) & (call[active] < 0))
        call[active] = np.where(collective, row, call[active])
        current[active] = np.where(kinds == _C10D, -1, calls.host.parent[row])
    return call, Categorical(code, said.values)


def _kinds(calls: TraceCalls) -> Int64:
    """What the events of each name say of collectives."""
    return np.array(
        [
            _PARAMETERS if name == "record_param_comms"
            else _BACKEND if name.startswith(_BACKENDS)
            else _C10D if name.startswith("c10d::") else 0
            for name in calls.names
        ],
        dtype=np.int64,
    )  # fmt: skip


def _said(trace: Trace, calls: TraceCalls, kind: Int64) -> Categorical[CollectiveArguments]:
    """What each host row itself says of a collective."""
    host, numbers = calls.host, dict[CollectiveArguments, int]()
    codes = np.full(len(host.name), -1, dtype=np.int64)
    for row in np.flatnonzero(kind == _PARAMETERS).tolist():
        place = int(host.thread[row]), int(host.start_ns[row])
        codes[row] = _number(numbers, trace.host_collectives.get(place))
    rows = np.flatnonzero(kind > _PARAMETERS)
    pairs = distinct(host.name[rows] * (len(calls.signatures) + 1) + host.signature[rows] + 1)
    by_pair = [
        _number(numbers, _by_name(calls.names[name], calls.signatures[number] if number >= 0 else None))
        for name, number in zip(
            host.name[rows[pairs.first]].tolist(), host.signature[rows[pairs.first]].tolist(), strict=True
        )
    ]
    codes[rows] = np.array(by_pair, dtype=np.int64)[pairs.inverse]
    return Categorical(codes, tuple(numbers))


def _number(numbers: dict[CollectiveArguments, int], arguments: CollectiveArguments | None) -> int:
    return -1 if arguments is None else numbers.setdefault(arguments, len(numbers))


def _by_name(name: str, signature: Signature | None) -> CollectiveArguments:
    """What c10d's operator, or an annotation with the shapes of its tensors, says; `nccl:` and the like before the
    collective's name."""
    if name.startswith("c10d::"):
        return CollectiveArguments(name.removeprefix("c10d::"))
    collective = name.partition(":")[2]
    tensors = signature.tensors() if signature else ()
    types = {tensor.dtype for tensor in tensors}
    if not tensors or len(types) != 1:
        return CollectiveArguments(collective)
    return CollectiveArguments(collective, in_elements=sum(tensor.numel for tensor in tensors), dtype=types.pop())
