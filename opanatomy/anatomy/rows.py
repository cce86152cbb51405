"""Calls and device work, grouped into the rows of the report; every sum is exact."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from opanatomy.records.anatomy import ClassRow, KernelRow, ModuleRow, OperatorRow
from opanatomy.records.columns import Bool, CallTable, Categorical, Int64, KernelTable
from opanatomy.records.taxonomy import OperatorClass, Phase

_CLASS_ORDER = {str(name): index for index, name in enumerate(OperatorClass)}
_LARGEST = 2**62
_PHASE_ORDER = {str(name): index for index, name in enumerate(Phase)}


class Groups:
    """The rows of a table by the values of some of its columns."""

    def __init__(self, *keys: Categorical) -> None:
        place, most = np.zeros(len(keys[0].places), dtype=np.int64), 1
        for key in keys:
            if most * (len(key.texts) + 1) > _LARGEST:
                distinct, place = np.unique(place, return_inverse=True)
                most = len(distinct)
            place = place * (len(key.texts) + 1) + key.places + 1
            most *= len(key.texts) + 1
        self._order = np.argsort(place, kind="stable")
        self._starts = np.flatnonzero(np.diff(place[self._order], prepend=-1))
        self._first = self._order[self._starts]
        self._keys = keys

    def __iter__(self) -> Iterator[tuple[str | None, ...]]:
        return zip(*(_texts(key, self._first) for key in self._keys), strict=True)

    def rows(self) -> list[Int64]:
        """The rows of each group."""
        return np.split(self._order, self._starts[1:]) if len(self._starts) else []

    def sums(self, column: Int64 | Bool) -> list[int]:
        """The sum of a column in each group."""
        if not len(self._starts):
            return []
        found: list[int] = np.add.reduceat(column[self._order].astype(np.int64), self._starts).tolist()
        return found

    def known_sums(self, column: Int64) -> list[int | None]:
        """The sum of what is known (not -1) in each group; `None` where nothing is."""
        known = column >= 0
        sums, counts = self.sums(np.where(known, column, 0)), self.sums(known)
        return [amount if count else None for amount, count in zip(sums, counts, strict=True)]


def _texts(column: Categorical, rows: Int64) -> list[str | None]:
    texts = (*column.texts, None)
    return [texts[place] for place in column.places[rows].tolist()]


class _Sums(Struct, frozen=True, kw_only=True):
    """The sums of one group of calls. `calls` leaves out those that are part of another one."""

    rows: int
    calls: int
    kernels: int
    time_ns: int
    uncosted_ns: int
    flops: int | None
    read_bytes: int | None
    written_bytes: int | None
    causal_flops: int | None
    normalization_flops: int | None


def _sums(calls: CallTable, groups: Groups) -> Iterator[_Sums]:
    plain = (np.ones(len(calls.time_ns), dtype=np.int64), ~calls.inner, calls.kernels, calls.time_ns,
             np.where(calls.costed, 0, calls.time_ns))  # fmt: skip
    names = ("rows", "calls", "kernels", "time_ns", "uncosted_ns")
    columns = {name: groups.sums(column) for name, column in zip(names, plain, strict=True)}
    costs = {name: groups.known_sums(column) for name, column in calls.costs.items()}
    for group in range(len(columns["rows"])):
        counts = {name: column[group] for name, column in columns.items()}
        known = {name: column[group] for name, column in costs.items()}
        yield _Sums(
            **counts, flops=known["flops"], read_bytes=known["read_bytes"], written_bytes=known["written_bytes"],
            causal_flops=known["causal_flops"], normalization_flops=known["normalization_flops"],
        )  # fmt: skip


def class_rows(calls: CallTable) -> tuple[ClassRow, ...]:
    """One row a class and phase, in the order of the enumerations."""
    groups = Groups(calls.operator_class, calls.phase)
    found = [
        ClassRow(
            operator_class=OperatorClass(str(name)), phase=Phase(str(phase)), calls=sums.calls, kernels=sums.kernels,
            time_ns=sums.time_ns, flops=sums.flops, read_bytes=sums.read_bytes, written_bytes=sums.written_bytes,
            uncosted_ns=sums.uncosted_ns,
        )
        for (name, phase), sums in zip(groups, _sums(calls, groups), strict=True)
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda row: (_CLASS_ORDER[row.operator_class], _PHASE_ORDER[row.phase])))


def operator_rows(calls: CallTable) -> tuple[OperatorRow, ...]:
    """One row an operator, signature and phase, the longest first; work without an operator has none."""
    groups = Groups(
        calls.operator, calls.signature, calls.phase, calls.operator_class, calls.rule, calls.part_of,
        calls.compute_type,
    )  # fmt: skip
    found = [
        OperatorRow(
            operator=operator, signature=signature or "", phase=Phase(str(phase)),
            operator_class=OperatorClass(str(name)), rule=rule or "", calls=sums.rows, time_ns=sums.time_ns,
            flops=sums.flops, read_bytes=sums.read_bytes, written_bytes=sums.written_bytes,
            causal_flops=sums.causal_flops, normalization_flops=sums.normalization_flops, part_of=part_of,
            uncosted_ns=sums.uncosted_ns, compute_type=compute_type,
        )
        for (operator, signature, phase, name, rule, part_of, compute_type), sums in zip(
            groups, _sums(calls, groups), strict=True
        )
        if operator is not None
    ]  # fmt: skip
    return tuple(
        sorted(
            found,
            key=lambda row: (
                -row.time_ns,
                row.operator,
                row.signature,
                row.phase,
                row.rule,
                row.part_of or "",
                row.compute_type or "",
            ),
        )
    )


def module_rows(calls: CallTable, kinds: dict[str, str]) -> tuple[ModuleRow, ...]:
    """One row a module, phase and class, in the order of the model; work outside every known module is left out."""
    order = {path: index for index, path in enumerate(kinds)}
    groups = Groups(calls.module, calls.phase, calls.operator_class)
    found = [
        ModuleRow(
            module=module, kind=kinds.get(module), phase=Phase(str(phase)), operator_class=OperatorClass(str(name)),
            time_ns=sums.time_ns, flops=sums.flops, read_bytes=sums.read_bytes, written_bytes=sums.written_bytes,
        )
        for (module, phase, name), sums in zip(groups, _sums(calls, groups), strict=True)
        if module is not None
    ]  # fmt: skip
    return tuple(
        sorted(
            found,
            key=lambda row: (
                order.get(row.module, len(order)),
                row.module,
                _PHASE_ORDER[row.phase],
                _CLASS_ORDER[row.operator_class],
            ),
        )
    )


def kernel_rows(work: KernelTable) -> tuple[KernelRow, ...]:
    """One row a kernel name and class, the longest first; the name classes it, where that says nothing its operator."""
    groups = Groups(work.kernel, work.kernel_class, work.kernel_rule)
    members = groups.rows()
    found = [
        KernelRow(
            kernel=kernel or "", operator_class=OperatorClass(str(name)), rule=rule or "", count=len(rows),
            time_ns=time, operators=_distinct(work.operator, rows),
        )
        for (kernel, name, rule), time, rows in zip(groups, groups.sums(work.duration_ns), members, strict=True)
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda row: (-row.time_ns, row.kernel)))


def _distinct(column: Categorical, rows: Int64) -> tuple[str, ...]:
    """The texts of these rows, in alphabetical order."""
    return tuple(sorted(column.texts[place] for place in set(column.places[rows].tolist()) if place >= 0))
