"""Make the work table of calls and kernels: the same rows on the CPU and on an accelerator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from opanatomy.analysis.aggregate import TOGETHER, Order, OrderedUnion
from opanatomy.records.columns import (
    CallTable,
    Categorical,
    Float64,
    Int64,
    KernelTable,
    arranged,
    categorical_of,
    mask_of,
    take,
)
from opanatomy.records.table import NOT_KNOWN, Table, concatenated, figure
from opanatomy.records.work import FIGURES, KEYS, LikeStep, Overlap, StepKind

#: Cost columns by the name of the figure.
_COSTS: Final = ("flops", "read_bytes", "written_bytes", "causal_flops", "normalization_flops")


#: Blocks times time beyond this, hundreds of thousands of seconds of a full device, are no measurement.
_MOST_MILLIBLOCKS: Final = 1e18


class JoinedWork:
    """Device events joined with their calls, then the calls without own device events; on the CPU every call.

    `event` is the row of `kernels`, -1 for a call without, and `call` the row of `calls`.
    """

    def __init__(self, calls: CallTable, kernels: KernelTable | None) -> None:
        self._calls, self._kernels = calls, kernels
        if kernels is None:
            self.call = np.arange(len(calls.time_ns), dtype=np.int64)
            self.event = np.full(len(self.call), -1, dtype=np.int64)
            return
        inside = np.flatnonzero(kernels.inside)
        called, alone = inside[kernels.call[inside] >= 0], inside[kernels.call[inside] < 0]
        operators = len(calls.time_ns) - len(alone)  # before the rows of events without a call
        call = np.searchsorted(calls.host_row[:operators], kernels.launched_by[called])
        bare = np.flatnonzero(~mask_of(call, operators))
        self.call = np.concatenate((call, np.arange(operators, len(calls.time_ns)), bare))
        self.event = np.concatenate((called, alone, np.full(len(bare), -1)))

    def keys(self, module_kinds: Mapping[str, str]) -> dict[str, Categorical[Any]]:
        """Return the keys of the work, but for the kind of each row's step."""
        calls, row, kernels = self._calls, self.call, self._kernels
        keys: dict[str, Categorical[Any]] = {name: getattr(calls, name).take(row) for name in _OF_CALLS}
        keys["crosses_host_link"] = Categorical(calls.crosses_host_link.astype(np.int64)[row], (False, True))
        keys["module"], keys["module_kind"] = _modules(keys["module"], module_kinds)
        if kernels is not None:
            keys |= {name: getattr(kernels, name).take(self.event) for name in _OF_KERNELS}
        return keys

    def figures(self, blocks_per_sm: Float64 | None) -> dict[str, Int64]:
        """Return the figures of the work, except those over like steps; FLOPs and bytes of calls with known cost."""
        calls, row, event = self._calls, self.call, self.event
        start, time = calls.start_ns[row], calls.time_ns[row]
        if self._kernels is not None:
            start = np.where(event >= 0, take(self._kernels.start_ns, event), start)
            time = np.maximum(take(self._kernels.duration_ns, event), 0)
        # The first row of each call has its cost.
        order = np.lexsort((start, row))
        first = np.ones(len(order), dtype=bool)
        first[order[1:]] = np.diff(row[order]) != 0
        figures = {
            "calls": figure(first),
            "events": figure(event >= 0),
            "time_ns": time,
            "uncosted_ns": np.where(calls.costed[row], 0, time),
        }
        for name in _COSTS:
            column = getattr(calls, name)[row]
            figures[name] = figure(column, first & (column >= 0))
        if blocks_per_sm is not None:
            with np.errstate(over="ignore"):
                product = np.where(event >= 0, 1000 * blocks_per_sm[event] * time, np.nan)
            known = (product >= 0) & (product < _MOST_MILLIBLOCKS)
            figures["dimensioned_ns"] = figure(time, known)
            figures["milliblock_ns"] = figure(np.rint(np.where(known, product, 0)), known)
        return figures


_OF_CALLS: Final = (
    "operator",
    "signature",
    "phase",
    "operator_class",
    "rule",
    "part_of",
    "compute_type",
    "module",
    "stack",
)
_OF_KERNELS: Final = ("kernel", "kernel_class", "kernel_rule")


def _modules(module: Categorical[str], kinds: Mapping[str, str]) -> tuple[Categorical[str], Categorical[str]]:
    """Return the modules, in the order of the model and then of the alphabet, and the name of the class of each."""
    order = {path: index for index, path in enumerate(kinds)}
    module = arranged(module, sorted(module.values, key=lambda path: (order.get(path, len(order)), path)))
    known = np.array([*(path in kinds for path in module.values), False], dtype=bool)[module.codes]
    return module, categorical_of([kinds.get(path, "") for path in module.values], np.where(known, module.codes, -1))


def work_table(keys: Mapping[str, Categorical[Any]], figures: Mapping[str, Int64], step_kind: Int64) -> Table:
    """Return the work table of these rows, one row per combination of keys; `step_kind` is the kind of each row's step.

    Missing keys are none, missing figures unknown.
    """
    none, missing = np.full(len(step_kind), -1, dtype=np.int64), np.full(len(step_kind), NOT_KNOWN)
    kind = Categorical(step_kind, tuple(range(int(step_kind.max(initial=-1)) + 1)))
    given = {**keys, "step_kind": kind}
    return Table(
        {name: given.get(name) or Categorical(none, ()) for name in KEYS},
        {name: figures.get(name, missing) for name in FIGURES},
    ).by(*KEYS)


# ----- the work of many ranks, or runs
#
# They are added one at a time, in any order. Memory grows with the number of different rows, not of ranks.


#: The figures of like steps that are sums.
_SUMS: Final = (
    "count", "wall_ns", "outside_ns", "unrecorded_ns", "host_idle_ns", "stream_idle_ns", "other_idle_ns",
    "framework_ns",
)  # fmt: skip


class _Kind(Struct):
    """Sums over the steps of one kind."""

    steps: list[LikeStep] = field(default_factory=list)
    sums: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_SUMS, 0))
    overlaps: dict[tuple[str, str], int] = field(default_factory=dict)


class WorkSums:
    """Add up work; steps are of the same kind if their numbers agree everywhere."""

    def __init__(self) -> None:
        self._tables: list[Table] = []
        self._modules: OrderedUnion[str] = OrderedUnion()
        self._kinds: dict[tuple[int, ...], _Kind] = {}

    def add(
        self,
        work: Table,
        kinds: Sequence[StepKind] | None,
        order: Order,
        *,
        rank: int | None = None,
        run: int | None = None,
    ) -> None:
        """Add the work of one rank or run; `order` places its modules among the others'."""
        kinds = kinds or ()
        for kind in kinds:
            known = self._kinds.setdefault(kind.numbers, _Kind())
            known.steps += [
                replace(step, rank=step.rank if rank is None else rank, run=step.run if run is None else run)
                for step in kind.steps
            ]
            for name in _SUMS:
                known.sums[name] += getattr(kind, name)
            for overlap in kind.overlaps:
                pair = overlap.first, overlap.second
                known.overlaps[pair] = known.overlaps.get(pair, 0) + overlap.time_ns
        numbers = tuple(kinds[index].numbers for index in work.keys["step_kind"].values)
        of_kind = categorical_of(numbers, work.keys["step_kind"].codes)
        self._tables.append(work.with_columns({"step_kind": of_kind}, {}))
        self._modules.add(work.keys["module"].values, order)
        if len(self._tables) == TOGETHER:
            self._tables = [concatenated(self._tables).by(*KEYS)]

    def sums(self) -> tuple[Table, tuple[StepKind, ...] | None]:
        """Return the sums, independent of the order of adding; no kinds if none were added."""
        kinds = [
            (
                numbers,
                StepKind(
                    steps=tuple(sorted(kind.steps, key=_place)),
                    **kind.sums,
                    overlaps=tuple(
                        Overlap(first=first, second=second, time_ns=time)
                        for (first, second), time in sorted(kind.overlaps.items())
                    ),
                ),
            )
            for numbers, kind in sorted(self._kinds.items())
        ]
        kinds.sort(key=lambda pair: (-pair[1].count, -pair[1].wall_ns))
        work = concatenated(self._tables)
        values = {name: sorted(key.values) for name, key in work.keys.items()}
        values |= {"module": self._modules.items(), "step_kind": [numbers for numbers, _ in kinds]}
        keys = {name: arranged(key, values[name]) for name, key in work.keys.items()}
        keys["step_kind"] = Categorical(keys["step_kind"].codes, tuple(range(len(kinds))))
        return work.with_columns(keys, {}).by(*KEYS), tuple(kind for _, kind in kinds) or None


def _place(step: LikeStep) -> tuple[int, ...]:
    return tuple(-1 if part is None else part for part in (step.run, step.rank, step.device, step.number))
