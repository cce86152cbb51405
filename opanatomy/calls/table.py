"""The calls of a trace: which operator each piece of time belongs to, its class and its cost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import fields, replace

from opanatomy.anatomy.compute_type import compute_types
from opanatomy.attribution import Attribution
from opanatomy.attribution.linking import LINKS, OUTSIDE
from opanatomy.attribution.nesting import nearest_above
from opanatomy.attribution.stored import with_stored
from opanatomy.calls.element_types import element_type, wants_element_type, with_element_type
from opanatomy.calls.kernels import exchanged
from opanatomy.calls.ownership import own_signatures, owners
from opanatomy.classification import classify_kernel, classify_operator
from opanatomy.cost import cost, has_formula
from opanatomy.records.columns import (
    Bool,
    CallTable,
    Categorical,
    Int64,
    KernelTable,
    categorical,
    categorical_of,
    joined,
)
from opanatomy.records.data_types import ITEM_SIZE
from opanatomy.records.signature import Classification, Cost, Signature
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.records.workload import ACROSS, MODULE_RANGE, PHASE_RANGE
from opanatomy.trace import Trace

#: Names of CUPTI, roctracer and Intel's PTI (M is plain memory of the host, H what is pinned there).
_ACROSS = re.compile(
    r"^Memcpy (?:HtoD|DtoH|HostToDevice|DeviceToHost|[MH]2D|D2[MH])|^(?:Copy)?(?:HostToDevice|DeviceToHost)"
)
#: What kernels tell of the elements of tensor lists; the first is nothing.
ELEMENT_TYPES = (None, *ITEM_SIZE)
COSTS = ("flops", "read_bytes", "written_bytes", "causal_flops", "normalization_flops")
#: An operator that no rule knows: unknown on the CPU; on an accelerator its kernels' names decide.
UNKNOWN_OPERATOR = Classification(operator_class=OperatorClass.UNKNOWN, rule="no rule", delegates=True)
DISPATCHING = Classification(operator_class=None, rule="no rule")
#: FLOPs, and bytes, of a whole trace at most: more than an hour of any device.
_MOST_COST = 2**62
_TOO_COSTLY = (
    "some argument shapes cannot be: they cost more than any device does in an hour; they count as without costs"
)
#: The rule of a kernel whose name says nothing.
_BY_OPERATOR = "its operator's class: the name says nothing"
_NO_OPERATOR = (PHASE_RANGE, MODULE_RANGE, "autograd::engine::")


class Calls:
    """The calls of a trace: classified and costed by distinct name and signature."""

    def __init__(self, trace: Trace, attribution: Attribution) -> None:
        self.trace = trace
        host = attribution.host
        signature = with_stored(trace.names, host.name, host.parent, host.signature, trace.signatures)
        self.host = replace(host, signature=signature)
        self.work = attribution.work
        otherwise = DISPATCHING if trace.on_device else UNKNOWN_OPERATOR
        # Only what is asked of a name is looked up: kernels need other rules than operators do.
        on_host, on_device = _used(self.host.name, trace.names), _used(self.work.name, trace.names)
        self.operators = _Lookup(
            [
                (_with_formula(name, classify_operator(name)) or otherwise) if used else DISPATCHING
                for name, used in zip(trace.names, on_host, strict=True)
            ]
        )
        self.kernels = _Lookup(
            [classify_kernel(name) if used else DISPATCHING for name, used in zip(trace.names, on_device, strict=True)]
        )
        self.time_ns, self.pieces = self._device_time()
        self.signature = own_signatures(trace, self.host)
        works = self.pieces > 0 if trace.on_device else None
        self.owner = owners(trace, self.host, self.operators.found, works, self._launching(self._across()))
        if trace.on_device:
            self.operators = self._by_kernels(self.operators)
        self._costs: dict[tuple[int, int, str | None], Cost | None] = {}
        self._spent = 0
        #: How many host rows have each signature.
        self._alike = np.bincount(self.signature[self.signature >= 0])
        self.around = self._innermost_operators()
        self._told_types = self._element_types()

    def _by_kernels(self, operators: _Lookup) -> _Lookup:
        """The operators, those of unknown class with that of the kernels which take most of their time."""
        owner = self._of_work(self.owner)
        unknown = np.array([one is OperatorClass.UNKNOWN for one in operators.kinds], dtype=bool)
        called = self._host_names(owner)
        spent: dict[tuple[int, int], int] = {}
        for piece in np.flatnonzero((called >= 0) & unknown[called]).tolist():
            key = int(called[piece]), int(self.work.name[piece])
            spent[key] = spent.get(key, 0) + int(self.work.duration_ns[piece])
        found = list(operators.found)
        for (name, kernel), _ in sorted(spent.items(), key=lambda item: item[1]):
            told = self.kernels.found[kernel]
            found[name] = replace(found[name], operator_class=told.operator_class, rule=f"its kernels: {told.rule}")
        return _Lookup(found)

    def _device_time(self) -> tuple[Int64, Int64]:
        """Device time and pieces of work of each host row: what it launched, on the CPU its self time."""
        rows = len(self.host.name)
        if not self.trace.on_device:
            return np.where(self.host.in_window, self.host.self_ns, 0), np.zeros(rows, dtype=np.int64)
        inside = (self.work.host >= 0) & (self.work.link != OUTSIDE)
        launched = self.work.host[inside]
        time = np.zeros(rows, dtype=np.int64)
        np.add.at(time, launched, self.work.duration_ns[inside])
        return time, np.bincount(launched, minlength=rows).astype(np.int64)

    def links(self) -> dict[str, int]:
        """Device work by how it was traced back."""
        if not self.trace.on_device:
            mine = self._cpu_rows(within=False)
            all_time, inside = self.host.self_ns[mine].sum(), self.time_ns[mine].sum()
            return dict.fromkeys(LINKS, 0) | {"linked": int(inside), "outside_window": int(all_time - inside)}
        return {name: int(self.work.duration_ns[self.work.link == number].sum()) for number, name in enumerate(LINKS)}

    def _cpu_rows(self, *, within: bool) -> Int64:
        """Rows whose self time is device work on the CPU: operators that compute and are, or are part of, a call."""
        mine = (self.owner >= 0) & self.operators.computes[self.host.name]
        return np.flatnonzero(mine & self.host.in_window if within else mine)

    def recording_outside(self) -> float:
        """The part of the profiler's own time on the CPU that lies outside operators, as the events of the window say.

        Recording takes time at both ends of an event, about half of it within what is recorded and half around it, in
        the event above: an operator's own half, and that of what it calls, are in the operator's time.
        """
        inside = np.flatnonzero(self.host.in_window)
        if self.trace.on_device or not len(inside):
            return 1.0
        operators = np.zeros(len(self.host.name) + 1, dtype=bool)
        operators[self._cpu_rows(within=True)] = True
        # A row without a parent has the last place, which is no operator.
        in_operators = operators[inside].sum() + operators[self.host.parent[inside]].sum()
        return float(1 - in_operators / (2 * len(inside)))

    def table(self) -> CallTable:
        """One row a call."""
        if not self.trace.on_device:
            return self._calls(self._cpu_rows(within=True))
        return _stacked(self._calls(self._device_rows()), self._work_without_call())

    def _device_rows(self) -> Int64:
        """Host rows that launched work, and the owners of such rows."""
        launched = np.flatnonzero(self.pieces > 0)
        owners = self.owner[launched]
        return np.unique(np.concatenate((launched[owners >= 0], owners[owners >= 0])))

    def _calls(self, rows: Int64) -> CallTable:
        """The calls at host rows that have an owner."""
        owner = self.owner[rows]
        name, owner_name, inner = self.host.name[rows], self.host.name[owner], rows != owner
        costed, costs = self._costs_of(owner, inner)
        self._add_exchanged(owner, inner, costed, costs)
        return CallTable(
            operator=categorical_of(self.trace.names, name),
            signature=self._signatures(rows),
            phase=_picked(self.host.phase, rows),
            module=_picked(self.host.module, rows),
            operator_class=categorical_of(self.operators.classes, owner_name),
            rule=self._rules(owner),
            part_of=categorical_of(self.trace.names, np.where(inner, owner_name, -1)),
            host_row=rows,
            start_ns=self.host.start_ns[rows],
            time_ns=self.time_ns[rows],
            kernels=self.pieces[rows],
            inner=inner,
            costed=costed,
            costs=costs,
            compute_type=self._compute_types(rows, owner),
        )

    def _compute_types(self, rows: Int64, owner: Int64) -> Categorical:
        """What the float32 operands of each call were computed in, by the kernels of the call it is part of."""
        return compute_types(
            self.trace.names, self.work.name, self.work.duration_ns, self._of_work(self.owner),
            self._signatures(rows), owner,
        )  # fmt: skip

    def _rules(self, owner: Int64) -> Categorical:
        """The rule that classed each call, and whether its work crosses the link to the host."""
        rules, crosses = self.operators.rules, np.zeros(len(self.host.name), dtype=bool)
        callers = self._of_work(self.owner)
        crosses[callers[(callers >= 0) & self._across()]] = True
        places = self.host.name[owner] + len(rules) * crosses[owner]
        return categorical_of([*rules, *(f"{rule}{ACROSS}" for rule in rules)], places)

    def _across(self) -> Bool:
        """Which pieces of device work are copies between host and device."""
        across: Bool = np.array([_ACROSS.match(name) is not None for name in self.trace.names], dtype=bool)
        return across[self.work.name]

    def _launching(self, pieces: Bool) -> Bool:
        """Which host rows launched any of these pieces of device work."""
        launching = np.zeros(len(self.host.name), dtype=bool)
        launching[self.work.host[pieces & (self.work.host >= 0)]] = True
        return launching

    def _costs_of(self, owner: Int64, inner: Bool) -> tuple[Bool, dict[str, Int64]]:
        """What each call costs, looked at once for each name and signature; 0 for what is inside a costed one."""
        width = int(self.signature.max(initial=0)) + 2
        pairs = (self.host.name[owner] * width + self.signature[owner] + 1) * len(ELEMENT_TYPES)
        pairs += self._told_types[owner]
        _, first, place = np.unique(pairs, return_index=True, return_inverse=True)
        rows = [_figures(self.cost_of(call)) for call in owner[first].tolist()]
        distinct = np.array(rows, dtype=np.int64).reshape(-1, 2, len(COSTS))
        figures = distinct[place, inner.astype(np.int64)]
        return figures[:, 0] >= 0, {name: figures[:, column] for column, name in enumerate(COSTS)}

    def _element_types(self) -> Int64:
        """For each host row the element type of its tensor lists that a kernel of it tells, as a place."""
        found = np.zeros(len(self.host.name), dtype=np.int64)
        if not self.trace.on_device:
            return found
        listed = np.array([wants_element_type(name) for name in self.trace.names], dtype=bool)
        told = np.array([ELEMENT_TYPES.index(element_type(name)) for name in self.trace.names], dtype=np.int64)
        owner = self._of_work(self.owner)
        pieces = np.flatnonzero((owner >= 0) & (told[self.work.name] > 0))
        pieces = pieces[listed[self.host.name[owner[pieces]]]]
        found[owner[pieces]] = told[self.work.name[pieces]]
        return found

    def _add_exchanged(self, owner: Int64, inner: Bool, costed: Bool, costs: dict[str, Int64]) -> None:
        """Costs of the collectives whose events say how much they send: no FLOPs, and those bytes."""
        talks = np.array([one is OperatorClass.COMMUNICATION for one in self.operators.kinds], dtype=bool)
        wanted = np.flatnonzero(talks[self.host.name[owner]] & ~costed)
        calls = self._of_work(self.owner)
        pieces = np.flatnonzero((calls >= 0) & np.isin(calls, owner[wanted]))
        found = {int(calls[piece]): moved for piece in pieces[::-1].tolist() if (moved := exchanged(self, piece))}
        for row in wanted.tolist():
            moved = found.get(int(owner[row]))
            if moved is not None:
                costed[row] = True
                sent, got = (0, 0) if inner[row] else moved
                costs["flops"][row], costs["read_bytes"][row], costs["written_bytes"][row] = 0, sent, got

    def _work_without_call(self) -> CallTable:
        """Device work whose launching operator is not known, or only dispatches: the kernel's name decides."""
        index = np.flatnonzero((self.work.link != OUTSIDE) & (self._of_work(self.owner) < 0))
        name, around = self.work.name[index], self._of_work(self.around)[index]
        none = np.full(len(index), -1, dtype=np.int64)
        return CallTable(
            operator=categorical_of(self.trace.names, self._host_names(around)),
            signature=self._signatures(np.where(around >= 0, self.work.host[index], -1)),
            phase=_picked(self.work.phase, index),
            module=_picked(self.work.module, index),
            operator_class=categorical_of(self.kernels.classes, name),
            rule=categorical_of(self.kernels.rules, name),
            part_of=categorical_of((), none),
            host_row=none,
            start_ns=self.work.start_ns[index],
            time_ns=self.work.duration_ns[index],
            kernels=np.ones(len(index), dtype=np.int64),
            inner=np.zeros(len(index), dtype=bool),
            costed=np.zeros(len(index), dtype=bool),
            costs=dict.fromkeys(COSTS, none),
            compute_type=categorical_of((), none),
        )

    def _of_work(self, column: Int64) -> Int64:
        """A column of the host rows for the launch of each piece of device work, -1 where there is none."""
        return _at(column, self.work.host)

    def _host_names(self, rows: Int64) -> Int64:
        """The name number of each host row, -1 for row -1."""
        return _at(self.host.name, rows)

    def _innermost_operators(self) -> Int64:
        """The innermost operator around each host row; a range or annotation is none."""
        named = np.array([not name.startswith(_NO_OPERATOR) for name in self.trace.names], dtype=bool)
        return nearest_above((self.host.annotation == 0) & named[self.host.name], self.host.parent)

    def operator_of(self, row: int) -> str | None:
        """The innermost operator around a launch; a range or annotation is none."""
        around = int(self.around[row]) if row >= 0 else -1
        return self.trace.names[int(self.host.name[around])] if around >= 0 else None

    def class_of(self, index: int) -> OperatorClass:
        """The class of a piece of device work: that of its call, else what the kernel's name says."""
        host = int(self.work.host[index])
        called = host >= 0 and bool(self.owner[host] >= 0)
        found = self.call_class(host) if called else self.kernels.found[int(self.work.name[index])]
        return found.operator_class or OperatorClass.UNKNOWN

    def call_class(self, row: int) -> Classification:
        """How the call that a host row is part of is classed."""
        return self.operators.found[int(self.host.name[self.owner[row]])]

    def kernel_table(self) -> KernelTable:
        """One row a piece of device work in the window."""
        index = np.flatnonzero(self.work.link != OUTSIDE)
        name, owner = self.work.name[index], self._host_names(self._of_work(self.owner)[index])
        by_call = np.where(owner >= 0, owner, len(self.trace.names) + name)
        # a name that says nothing (`triton__0d1d2de`) takes the class of the operator that launched it
        nameless = np.array([one is OperatorClass.UNKNOWN for one in self.kernels.kinds], dtype=bool)[name] & (
            owner >= 0
        )
        return KernelTable(
            kernel=categorical_of(self.trace.names, name),
            operator=categorical_of(self.trace.names, self._host_names(self._of_work(self.around)[index])),
            phase=_picked(self.work.phase, index),
            operator_class=categorical_of(self.operators.classes + self.kernels.classes, by_call),
            kernel_class=categorical_of(
                self.kernels.classes + self.operators.classes,
                np.where(nameless, len(self.kernels.classes) + owner, name),
            ),
            kernel_rule=categorical_of(
                [*self.kernels.rules, _BY_OPERATOR], np.where(nameless, len(self.kernels.rules), name)
            ),
            duration_ns=self.work.duration_ns[index],
        )

    def cost_of(self, row: int) -> Cost | None:
        """The cost of the call at a host row, looked at once for each name and signature; `None` where not known."""
        told = ELEMENT_TYPES[int(self._told_types[row])]
        key = (int(self.host.name[row]), int(self.signature[row]), told)
        if key not in self._costs:
            signature = self._signature(key[1])
            if signature is not None and told is not None:
                signature = with_element_type(signature, told)
            found = (
                None
                if signature is None
                else cost(self.trace.names[key[0]], signature, None if self.trace.on_device else "cpu")
            )
            self._costs[key] = self._counted(found, int(self._alike[key[1]])) if found else None
        return self._costs[key]

    def _counted(self, found: Cost, calls: int) -> Cost | None:
        """The cost, unless so many calls of it bring the sums beyond what the columns hold and any device does."""
        most = max(found.flops, found.normalization_flops, found.read_bytes, found.written_bytes)
        if self._spent + calls * most > _MOST_COST:
            if _TOO_COSTLY not in self.trace.warnings:
                self.trace.warnings.append(_TOO_COSTLY)
            return None
        self._spent += calls * most
        return found

    def _signature(self, number: int) -> Signature | None:
        return self.trace.signatures[number] if number >= 0 else None

    def _signatures(self, rows: Int64) -> Categorical:
        """The text of the signature at each host row, none for row -1."""
        distinct, place = np.unique(_at(self.signature, rows), return_inverse=True)
        return categorical_of([str(self._signature(number) or "") for number in distinct.tolist()], place)


def _figures(found: Cost | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The costs of a call and of what is inside it, -1 where they are not known."""
    if found is None:
        return (-1,) * len(COSTS), (-1,) * len(COSTS)
    outer = (
        found.flops,
        found.read_bytes,
        found.written_bytes,
        found.causal_flops,
        found.normalization_flops or None,
    )
    return tuple(-1 if value is None else value for value in outer), (0, 0, 0, -1, -1)


def _used(column: Int64, names: Sequence[str]) -> list[bool]:
    """Whether each name is in the column."""
    found: list[bool] = (np.bincount(column, minlength=len(names)) > 0).tolist()
    return found


def _with_formula(name: str, found: Classification | None) -> Classification | None:
    """An operator that no rule knows but that has a formula is a call; its kernels' names decide its class."""
    unknown = found is None or (found.operator_class is None and name.startswith("torch::autograd::CppNode<"))
    return UNKNOWN_OPERATOR if unknown and has_formula(name) else found


class _Lookup:
    """Classifications by name number, as columns."""

    def __init__(self, found: list[Classification]) -> None:
        self.found = found
        self.computes = np.array([one.operator_class is not None for one in found], dtype=bool)
        self.delegates = np.array([one.delegates or one.composite for one in found], dtype=bool)
        self.kinds = [one.operator_class for one in found]
        self.classes = [str(one.operator_class or OperatorClass.UNKNOWN) for one in found]
        self.rules = [one.rule for one in found]


def _at(column: Int64, rows: Int64) -> Int64:
    """The value at each row, -1 for row -1."""
    return np.where(rows >= 0, column[rows], -1) if len(column) else np.full(len(rows), -1, dtype=np.int64)


def _picked(values: Sequence[str | None], rows: Int64) -> Categorical:
    return categorical([values[row] for row in rows.tolist()])


def _stacked(first: CallTable, second: CallTable) -> CallTable:
    """One table under the other."""
    columns: dict[str, Any] = {}
    for field in fields(CallTable):
        above, below = getattr(first, field.name), getattr(second, field.name)
        if isinstance(above, Categorical):
            columns[field.name] = joined(above, below)
        elif isinstance(above, dict):
            columns[field.name] = {name: np.concatenate((above[name], below[name])) for name in above}
        else:
            columns[field.name] = np.concatenate((above, below))
    return CallTable(**columns)
