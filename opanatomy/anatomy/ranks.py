"""The anatomies of several ranks -> one over all of them, with a row for each and the spread between them.

They are taken one at a time, in any order, and none is kept: what stays of a rank is small.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.anatomy.build import check_conservation
from opanatomy.anatomy.collectives import World, merged_collectives
from opanatomy.anatomy.communication import CommunicationOver
from opanatomy.anatomy.rank_means import figures_over, spread_of, step_over, timeline_over
from opanatomy.anatomy.rank_texts import ChecksOver, WarningsOver, missing_ranks, warnings_of_the_set
from opanatomy.anatomy.ratios import ratios_of
from opanatomy.anatomy.row_sums import Common, Order, RowSums, merged, sum_of
from opanatomy.anatomy.unlike import Candidate, content_of, model_of, products_of, unlike_warnings, why_no_ranks
from opanatomy.errors import UsageError
from opanatomy.records.anatomy import Anatomy, ClassRow, KernelRow, ModuleRow, OperatorRow, Provenance, Ratio, Step
from opanatomy.records.breakdown_sums import BreakdownSums
from opanatomy.records.device import DeviceFigures
from opanatomy.records.memory import Memory
from opanatomy.records.ranks import Collective, Rank
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.timeline import Ledger, Timeline
from opanatomy.records.workload import Environment, Workload

_NUMBERED: Final = re.compile(r"(?:rank|worker|gpu)[-_. ]?(\d+)", re.IGNORECASE)
_CLASS_ORDER: Final = {name: place for place, name in enumerate(OperatorClass)}
_PHASE_ORDER: Final = {name: place for place, name in enumerate(Phase)}


# ------------------------------------------------------------------------------------------------------- one rank


def world_of(metadata: Mapping[str, object]) -> World:
    """What a trace's `distributedInfo` says of the ranks."""
    distributed = metadata.get("distributedInfo")
    size = _number(distributed, "world_size")
    return World(size if size else None, _number(distributed, "pg_count") == 1)


def with_rank(anatomy: Anatomy, metadata: Mapping[str, object]) -> Anatomy:
    """The anatomy of one trace with the rank that the trace says it is of, if it says one."""
    rank = _number(metadata.get("distributedInfo"), "rank")
    if rank is None:
        return anatomy
    return replace(anatomy, ranks=(_row(anatomy, rank, world_of(metadata).size),))


def _number(distributed: object, key: str) -> int | None:
    value = distributed.get(key) if isinstance(distributed, dict) else None
    if isinstance(value, str) and value.isdecimal() and len(value) < 14:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40 else None


def _row(anatomy: Anatomy, rank: int | None, world: int | None) -> Rank:
    step, timeline = anatomy.step, anatomy.timeline
    return Rank(
        rank=rank, world_size=world, trace=anatomy.provenance.trace, trace_sha256=anatomy.provenance.trace_sha256,
        device=anatomy.environment.device, steps=step.count, wall_ns=step.wall_ns, window_ns=timeline.window_ns,
        busy_ns=timeline.busy_ns, idle_ns=timeline.idle_ns, kernel_time_ns=sum(row.time_ns for row in anatomy.classes),
        communication_ns=timeline.communication_ns, exposed_communication_ns=timeline.exposed_communication_ns,
        exposed_memcpy_ns=timeline.exposed_memcpy_ns,
    )  # fmt: skip


def _candidate(anatomy: Anatomy, products: frozenset[tuple[str, str]]) -> Candidate:
    """A trace among others: where it does not say its rank, its file's name may."""
    numbers = _NUMBERED.findall(anatomy.provenance.trace or "")
    by_name = int(numbers[-1]) if numbers else None
    return Candidate(
        rank=anatomy.ranks[0] if anatomy.ranks else _row(anatomy, by_name, None), stated=bool(anatomy.ranks),
        provenance=anatomy.provenance, device=anatomy.environment.device, model=model_of(anatomy), products=products,
        content=content_of(anatomy),
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------------- together


class _Kept(Struct, frozen=True, kw_only=True):
    """What is kept of a rank, and its place among the traces as they were given."""

    order: Order
    candidate: Candidate
    step: Step
    timeline: Timeline
    device: DeviceFigures


class _Best(Struct):
    """The memory of the rank whose peak is highest, of several the first."""

    memory: Memory | None = None
    order: Order | None = None

    def add(self, memory: Memory, order: Order) -> None:
        best = 0 if self.memory is None else self.memory.peak_bytes or 0
        peak = memory.peak_bytes or 0
        if self.order is None or peak > best or (peak == best and order < self.order):
            self.memory, self.order = memory, order


class RanksTogether:
    """One anatomy over those of several ranks, which are added one at a time and in any order.

    Classes, operators, kernels, modules and the ledger are sums over the ranks and balance as those of one rank do;
    the step and the timeline are means over the ranks.
    """

    def __init__(self) -> None:
        self._kept: list[_Kept] = []
        self._products: dict[frozenset[tuple[str, str]], frozenset[tuple[str, str]]] = {}
        self._environment: Common[Environment] = Common()
        self._workload: Common[Workload] = Common()
        self._classes, self._operators, self._modules = RowSums(ClassRow), RowSums(OperatorRow), RowSums(ModuleRow)
        self._kernels = RowSums(KernelRow, apart=("operators",))
        self._launchers: dict[str, set[str]] = {}
        self._theory: dict[OperatorClass, Common[Ratio]] = {}
        self._ledger: Ledger | None = None
        self._memory = _Best()
        self._collectives: tuple[Collective, ...] = ()
        self._communication = CommunicationOver()
        self._breakdown = BreakdownSums()
        self._checks, self._caveats, self._warnings = ChecksOver(), WarningsOver(), WarningsOver()
        self._conventions: dict[str, str | int] = {}

    def places(self) -> list[int]:
        """The places of the traces that were added, in the order of the ranks."""
        return [kept.order[-1] for kept in sorted(self._kept, key=lambda kept: kept.order)]

    def add(self, anatomy: Anatomy, place: int) -> Rank:
        """Take one rank, whose trace is the `place`-th of those that were given; the row that it has."""
        products = products_of(anatomy)
        candidate = _candidate(anatomy, self._products.setdefault(products, products))
        rank = candidate.rank
        order = (rank.rank is None, rank.rank or 0, rank.trace or "", place)
        self._kept.append(
            _Kept(
                order=order, candidate=candidate, step=replace(anatomy.step, steps=()),
                timeline=replace(anatomy.timeline, devices=(), streams=()), device=anatomy.device,
            )
        )  # fmt: skip
        self._add_rows(anatomy, order)
        self._breakdown.add(anatomy.breakdown, rank=rank.rank)
        self._environment.add(anatomy.environment)
        self._workload.add(anatomy.workload)
        for ratio in anatomy.ratios:
            self._theory.setdefault(ratio.operator_class, Common()).add(ratio)
        self._memory.add(anatomy.memory, order)
        self._checks.add(anatomy.checks, order)
        self._caveats.add(anatomy.caveats, rank, order)
        self._warnings.add(anatomy.warnings, rank, order)
        self._conventions = self._conventions or anatomy.conventions
        return rank

    def _add_rows(self, anatomy: Anatomy, order: Order) -> None:
        self._classes.add(anatomy.classes, order)
        self._operators.add(anatomy.operators, order)
        self._kernels.add(anatomy.kernels, order)
        self._modules.add(anatomy.modules, order)
        for row in anatomy.kernels:
            self._launchers.setdefault(row.kernel, set()).update(row.operators)
        self._communication.add(anatomy.communication, order)
        self._collectives = merged_collectives((*self._collectives, *anatomy.collectives))
        ledgers = [ledger for ledger in (self._ledger, anatomy.ledger) if ledger is not None]
        self._ledger = merged(ledgers, {int: sum_of})

    def anatomy(self, *, name: str, warnings: Iterable[str] = (), caveats: Iterable[str] = ()) -> Anatomy:
        """The anatomy over all of them, which the report calls `name`; `UsageError` where two cannot be ranks of one
        run."""
        if self._ledger is None or self._memory.memory is None:
            raise ValueError("no rank was added")
        given = [kept.candidate for kept in sorted(self._kept, key=lambda kept: kept.order[-1])]
        if (refusal := why_no_ranks(given)) is not None:
            raise UsageError(refusal)
        kept = sorted(self._kept, key=lambda kept: kept.order)
        candidates = [one.candidate for one in kept]
        ranks = tuple(candidate.rank for candidate in candidates)
        first = candidates[0].provenance
        workload, classes = self._workload.record(), self._class_rows()
        together = Anatomy(
            provenance=Provenance(opanatomy=first.opanatomy, command=first.command, trace=name),
            environment=self._environment.record(),
            workload=workload,
            step=step_over([one.step for one in kept]),
            classes=classes,
            ratios=self._ratios(classes, workload),
            operators=self._operator_rows(),
            kernels=self._kernel_rows(),
            modules=self._modules.rows(),
            memory=self._memory.memory,
            timeline=timeline_over([one.timeline for one in kept]),
            device=figures_over(
                [one.device for one in kept], [(one.step.wall_ns or 0) * one.step.count for one in kept]
            ),
            ledger=self._ledger,
            conventions=self._conventions,
            collectives=self._collectives,
            communication=self._communication.communication(),
            breakdown=self._breakdown.breakdown(),
            ranks=ranks,
            spread=spread_of(ranks),
            checks=self._checks.checks(),
            caveats=(*caveats, *missing_ranks(ranks), *self._caveats.lines(len(ranks))),
            warnings=(
                *warnings, *unlike_warnings(candidates), *warnings_of_the_set(ranks), *self._warnings.lines(len(ranks))
            ),
        )  # fmt: skip
        check_conservation(together)
        return together

    def _ratios(self, classes: tuple[ClassRow, ...], workload: Workload) -> tuple[Ratio, ...]:
        """The ratios of the sums, with the theory of the ranks' steps where it is the same for all."""
        ratios = []
        for ratio in ratios_of(classes, workload):
            theory: Common[Ratio] = self._theory.get(ratio.operator_class, Common())
            ratios.append(
                replace(ratio, theory_flops=theory.value("theory_flops"), theory_bytes=theory.value("theory_bytes"))
            )
        return tuple(ratios)

    def _class_rows(self) -> tuple[ClassRow, ...]:
        rows = self._classes.rows()
        return tuple(sorted(rows, key=lambda row: (_CLASS_ORDER[row.operator_class], _PHASE_ORDER[row.phase])))

    def _operator_rows(self) -> tuple[OperatorRow, ...]:
        return tuple(
            sorted(
                self._operators.rows(),
                key=lambda row: (-row.time_ns, row.operator, row.signature, row.phase, row.rule, row.part_of or ""),
            )
        )

    def _kernel_rows(self) -> tuple[KernelRow, ...]:
        def with_launchers(row: Mapping[str, Any]) -> Mapping[str, Any]:
            return {**row, "operators": tuple(sorted(self._launchers[row["kernel"]]))}

        return tuple(sorted(self._kernels.rows(with_launchers), key=lambda row: (-row.time_ns, row.kernel)))
