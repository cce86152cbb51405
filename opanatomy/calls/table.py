"""The table of calls: which operator each part of the time belongs to, its class and its cost."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from opanatomy.calls.collectives import exchanged_bytes
from opanatomy.calls.kernels import class_of_calls
from opanatomy.calls.trace_calls import TraceCalls, rows_with_events
from opanatomy.records.columns import (
    Bool,
    CallTable,
    Categorical,
    Int64,
    KernelTable,
    at,
    distinct,
    joined,
)
from opanatomy.records.taxonomy import CLASS_CODE, CLASSES, COMPUTE_TYPES, FLOAT32, PHASES, OperatorClass
from opanatomy.trace import Trace

_COMMUNICATION: Final = CLASS_CODE[OperatorClass.COMMUNICATION]
#: Figures of what runs inside another call: its costs are counted there.
_INSIDE: Final = {
    "flops": 0, "read_bytes": 0, "written_bytes": 0, "causal_flops": -1, "normalization_flops": -1,
}  # fmt: skip


def call_table(trace: Trace, calls: TraceCalls, kernels: KernelTable | None) -> CallTable:
    """One row a call in the window, then one a device event without; on the CPU `kernels` is `None`."""
    if kernels is None:
        return _calls(trace, calls, cpu_rows(calls, within=True))
    return _stacked(_calls(trace, calls, _device_rows(calls)), _work_without_call(calls, kernels))


def cpu_rows(calls: TraceCalls, *, within: bool) -> Int64:
    """Rows whose self time is device work on the CPU: operators that compute and are, or are part of, a call."""
    works = (calls.owner >= 0) & calls.operators.computes[calls.host.name]
    return np.flatnonzero(works & calls.host.in_window if within else works)


def _device_rows(calls: TraceCalls) -> Int64:
    """Host rows that launched work, and the owners of such rows."""
    launching = np.flatnonzero((calls.launched > 0) & (calls.owner >= 0))
    return distinct(np.concatenate((launching, calls.owner[launching]))).values


def _calls(trace: Trace, calls: TraceCalls, rows: Int64) -> CallTable:
    """The calls at host rows that have an owner."""
    host, owner = calls.host, calls.owner[rows]
    name, owner_name, inner = host.name[rows], host.name[owner], rows != owner
    signature = calls.signature[rows]
    return CallTable(
        operator=Categorical(name, calls.names),
        signature=calls.texts_of(signature),
        phase=Categorical(host.phase[rows], PHASES),
        module=host.module.take(rows),
        operator_class=Categorical(class_of_calls(calls, owner), CLASSES),
        rule=calls.operators.rule.take(owner_name),
        part_of=Categorical(np.where(inner, owner_name, -1), calls.names),
        host_row=rows,
        start_ns=host.start_ns[rows],
        time_ns=calls.time_ns[rows],
        kernels=calls.launched[rows],
        inner=inner,
        crosses_host_link=_crossing(calls)[owner],
        compute_type=_compute_types(calls, owner, signature),
        **_costs(trace, calls, owner, inner),
    )


def _costs(trace: Trace, calls: TraceCalls, owner: Int64, inner: Bool) -> dict[str, Any]:
    """The columns of costs: those of formulas; of collectives whose events say how much they send those bytes."""
    costs = calls.costs
    known = costs.flops[costs.row[owner]] >= 0
    columns = {
        name: np.where(inner & known, inside, getattr(costs, name)[costs.row[owner]])
        for name, inside in _INSIDE.items()
    }
    communicates = ~known & (class_of_calls(calls, owner) == _COMMUNICATION)
    if communicates.any():
        sent, received = exchanged_bytes(trace, calls, owner[communicates])
        said = communicates & (sent[owner] >= 0)
        columns["flops"][said] = 0
        columns["read_bytes"][said] = np.where(inner, 0, sent[owner])[said]
        columns["written_bytes"][said] = np.where(inner, 0, received[owner])[said]
        known = known | said
    return {"costed": known, **columns}


def _crossing(calls: TraceCalls) -> Bool:
    """The host rows of calls of which an event copies between host and device."""
    crosses = calls.kernels.crosses_host_link[calls.work.name]
    return rows_with_events(crosses, calls.call_of_event, len(calls.host.name))


def _compute_types(calls: TraceCalls, owner: Int64, signature: Int64) -> Categorical[str]:
    """What the float32 operands of each call were computed in: the longest kernel of it whose name says so decides."""
    called, code = calls.call_of_event, calls.kernels.compute_type[calls.work.name]
    telling = np.flatnonzero((code >= 0) & (called >= 0))
    telling = telling[np.argsort(calls.work.duration_ns[telling], kind="stable")]
    of_call = np.full(len(calls.host.name), -1, dtype=np.int64)
    of_call[called[telling]] = code[telling]
    numbers = distinct(signature)
    float32 = np.array([_is_float32(calls, number) for number in numbers.values.tolist()], dtype=bool)
    return Categorical(np.where(float32[numbers.inverse], of_call[owner], -1), COMPUTE_TYPES)


def _is_float32(calls: TraceCalls, number: int) -> bool:
    """Whether the first tensor of numbers with a fraction is float32."""
    signature = calls.signatures[number] if number >= 0 else None
    return signature is not None and signature.compute_dtype == FLOAT32


def _work_without_call(calls: TraceCalls, kernels: KernelTable) -> CallTable:
    """Device work whose launching operator is not known, or only dispatches: the kernel's name decides."""
    index = np.flatnonzero(kernels.inside & (kernels.call < 0))
    none = np.full(len(index), -1, dtype=np.int64)
    no = np.zeros(len(index), dtype=bool)
    launching = at(calls.operator, calls.work.host[index])
    signature = np.where(launching >= 0, at(calls.signature, calls.work.host[index]), -1)
    return CallTable(
        operator=kernels.operator.take(index),
        signature=calls.texts_of(signature),
        phase=kernels.phase.take(index),
        module=kernels.module.take(index),
        operator_class=kernels.operator_class.take(index),
        rule=calls.kernels.rule.take(calls.work.name[index]),
        part_of=Categorical(none, calls.names),
        host_row=none,
        start_ns=kernels.start_ns[index],
        time_ns=kernels.duration_ns[index],
        kernels=np.ones(len(index), dtype=np.int64),
        inner=no, costed=no,
        flops=none, read_bytes=none, written_bytes=none, causal_flops=none, normalization_flops=none,
        crosses_host_link=no,
        compute_type=Categorical(none, COMPUTE_TYPES),
    )  # fmt: skip


def _stacked(first: CallTable, second: CallTable) -> CallTable:
    """One table under the other."""
    columns: dict[str, Any] = {}
    for name in CallTable.__struct_fields__:
        above, below = getattr(first, name), getattr(second, name)
        columns[name] = joined(above, below) if isinstance(above, Categorical) else np.concatenate((above, below))
    return CallTable(**columns)
