"""The calls of a trace as a dispatch mode below autograd sees them: by the operator that was dispatched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from opanatomy.calls import Calls
from opanatomy.model import OperatorClass, Phase
from opanatomy.tables import Bool, CallTable, Int64

#: What stands for another operator in a trace: the one that does the work of the one that was called.
WORKERS = {"aten::_index_put_impl_": "aten::index_put_"}


@dataclass(slots=True)
class Dispatched:
    """One operator in one phase over all steps of the window. `flops` is `None` where the cost of a call is unknown."""

    calls: int = 0
    flops: int | None = 0
    operator_class: OperatorClass | None = None
    #: The operators that did the work, as the report names them.
    operators: Counter[str] = field(default_factory=Counter)


def in_place(name: str) -> str:
    """The name that an operator shares with its in-place form: autograd sums gradients as `add` or `add_`."""
    name = WORKERS.get(name, name)
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def dispatched(calls: Calls, table: CallTable, observed: Collection[str]) -> dict[tuple[str, Phase], Dispatched]:
    """The calls of `table` by the operator that was dispatched and the phase.

    A backend computes under names of its own below the operator that autograd knows (`aten::mkldnn_convolution` below
    `aten::convolution`): a call counts under the outermost delegating operator around it whose name is among those
    `observed`, once for all the calls that it was delegated to.
    """
    rows = np.flatnonzero((table.host_row >= 0) & ~table.inner)
    host_rows = _dispatching_rows(calls, observed)[table.host_row[rows]]
    found: dict[tuple[str, Phase], Dispatched] = {}
    seen: set[int] = set()
    for row, host_row in zip(rows.tolist(), host_rows.tolist(), strict=True):
        name = calls.trace.names[int(calls.host.name[host_row])]
        one = found.setdefault((in_place(name), Phase(str(table.phase.at(row)))), Dispatched())
        operator = str(table.operator.at(row))
        delegated = host_row != int(table.host_row[row])
        one.calls += not (delegated and host_row in seen)
        seen.add(host_row)
        one.operator_class = OperatorClass(str(table.operator_class.at(row)))
        one.operators[operator] += 1
        flops = int(table.costs["flops"][row])
        one.flops = None if one.flops is None or flops < 0 else one.flops + flops
    return found


def inner_copies(calls: Calls, table: CallTable) -> Counter[tuple[str, Phase]]:
    """The copies and fills that run as a part of another operator's call, by operator and phase."""
    found: Counter[tuple[str, Phase]] = Counter()
    for row in np.flatnonzero((table.host_row >= 0) & table.inner).tolist():
        name = str(table.operator.at(row))
        kind = calls.operators.found[int(calls.host.name[table.host_row[row]])].operator_class
        if kind is OperatorClass.DATA_MOVEMENT:
            found[in_place(name), Phase(str(table.phase.at(row)))] += 1
    return found


def _dispatching_rows(calls: Calls, observed: Collection[str]) -> Int64:
    """For each host row the outermost observed operator that delegates to it without another class between."""
    names = np.array([name in observed for name in calls.trace.names], dtype=bool)
    hands_on = names & calls.operators.delegates & calls.operators.computes
    parents, host_names = calls.host.parent, calls.host.name
    classes = _class_numbers(calls)
    found = np.arange(len(parents), dtype=np.int64)
    at = parents.copy()
    while (inside := at >= 0).any():
        above = np.where(inside, at, 0)
        delegates: Bool = inside & hands_on[host_names[above]] & (classes[host_names[above]] == classes[host_names])
        found = np.where(delegates, above, found)
        # Only an operator that computes, or one that merely dispatches, lies between the two.
        at = np.where(inside, parents[above], -1)
    return found


def _class_numbers(calls: Calls) -> Int64:
    """The class of each name as a number; -1 for those that do not compute."""
    numbers = {kind: number for number, kind in enumerate(OperatorClass)}
    return np.array([-1 if kind is None else numbers[kind] for kind in calls.operators.kinds], dtype=np.int64)
