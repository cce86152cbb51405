"""The calls of a trace as a dispatch mode below autograd sees them: by the operator that was dispatched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import numpy as np
from msgspec import Struct, field

from opanatomy.attribution.nesting import nearest_above
from opanatomy.calls.trace_calls import TraceCalls
from opanatomy.checks.graph import without_data
from opanatomy.records.columns import Bool, CallTable, Int64
from opanatomy.records.taxonomy import CLASS_CODE, OperatorClass, Phase

#: What stands for another operator in a trace: the one that does the work of the one that was called.
WORKERS = {"aten::_index_put_impl_": "aten::index_put_"}


class Dispatched(Struct):
    """One operator in one phase over all steps of the window."""

    calls: int = 0
    #: Of the contractions among the calls; `None` where the cost of one is unknown.
    contraction_flops: int | None = 0
    contracts: bool = False
    #: The time of the calls, with all that is part of them.
    time_ns: int = 0
    #: Copies and fills that run inside of the event of an operator that was observed: hidden from a mode by it, or not.
    enclosed_copies: int = 0
    #: The operators that did the work, as the report names them.
    operators: Counter[str] = field(default_factory=Counter)


def in_place(name: str) -> str:
    """The name that an operator shares with its in-place form: autograd sums gradients as `add` or `add_`."""
    name = WORKERS.get(name, name)
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def dispatched(calls: TraceCalls, table: CallTable, observed: Collection[str]) -> dict[tuple[str, Phase], Dispatched]:
    """The calls of `table` by the operator that was dispatched and the phase.

    A backend computes under names of its own below the operator that autograd knows (`aten::mkldnn_convolution` below
    `aten::convolution`): a call counts under the outermost delegating operator around it whose name is among those
    `observed`, once for all the calls that it was delegated to.
    """
    rows = np.flatnonzero((table.host_row >= 0) & ~table.inner)
    rows = rows[~without_data(calls)[table.host_row[rows]]]
    called = np.flatnonzero(table.host_row >= 0)
    call_ns = np.zeros(len(calls.host.name), dtype=np.int64)
    np.add.at(call_ns, calls.owner[table.host_row[called]], table.time_ns[called])
    host_rows = _dispatching_rows(calls, observed)[table.host_row[rows]]
    enclosed = _enclosed(calls, observed)[host_rows]
    counts: dict[tuple[str, Phase], Dispatched] = {}
    seen: set[int] = set()
    for row, host_row, inside in zip(rows.tolist(), host_rows.tolist(), enclosed.tolist(), strict=True):
        name = calls.names[int(calls.host.name[host_row])]
        counted = counts.setdefault((in_place(name), table.phase.at(row) or Phase.OTHER), Dispatched())
        delegated = host_row != int(table.host_row[row])
        counted.calls += not (delegated and host_row in seen)
        seen.add(host_row)
        counted.operators[str(table.operator.at(row))] += 1
        kind = table.operator_class.at(row)
        counted.time_ns += int(call_ns[table.host_row[row]])
        counted.enclosed_copies += inside and kind is OperatorClass.DATA_MOVEMENT
        if kind is OperatorClass.TENSOR_CONTRACTION:
            counted.contracts = True
            counted.contraction_flops = _sum(counted.contraction_flops, int(table.flops[row]))
    return counts


def _sum(total: int | None, flops: int) -> int | None:
    return None if total is None or flops < 0 else total + flops


def inner_copies(calls: TraceCalls, table: CallTable) -> Counter[tuple[str, Phase]]:
    """The copies and fills that run as a part of another operator's call, by operator and phase."""
    copies: Counter[tuple[str, Phase]] = Counter()
    rows = np.flatnonzero((table.host_row >= 0) & table.inner)
    classes = calls.operators.operator_class[calls.host.name[table.host_row[rows]]]
    for row in rows[classes == CLASS_CODE[OperatorClass.DATA_MOVEMENT]].tolist():
        copies[in_place(str(table.operator.at(row))), table.phase.at(row) or Phase.OTHER] += 1
    return copies


def _named(calls: TraceCalls, observed: Collection[str]) -> Bool:
    """Which host rows are of an operator that was observed."""
    names = np.array([name in observed for name in calls.names], dtype=bool)
    rows: Bool = names[calls.host.name]
    return rows


def _delegating(calls: TraceCalls) -> Bool:
    """Which names are of operators that compute only where nothing below them does."""
    names: Bool = (calls.operators.delegates | calls.operators.composite) & calls.operators.computes
    return names


def _dispatching_rows(calls: TraceCalls, observed: Collection[str]) -> Int64:
    """For each host row the outermost observed operator enclosing it that delegates; itself where there is none."""
    hands_on = _named(calls, observed) & _delegating(calls)[calls.host.name]
    parents = calls.host.parent
    nearest = np.append(nearest_above(hands_on, parents), -1)
    enclosing = nearest[parents]  # of row -1 there is none
    outermost = np.arange(len(parents), dtype=np.int64)
    while (further := enclosing >= 0).any():
        outermost = np.where(further, enclosing, outermost)
        enclosing = np.where(further, nearest[parents[np.maximum(enclosing, 0)]], -1)
    return outermost


def _enclosed(calls: TraceCalls, observed: Collection[str]) -> Bool:
    """Whether an operator that was observed lies enclosing each host row."""
    parents = calls.host.parent
    enclosing = nearest_above(_named(calls, observed), parents)
    return np.asarray((parents >= 0) & (enclosing[parents] >= 0), dtype=bool)
