"""Figures of reports that must hold on a device, each a function of records, so that a wrong one can be planted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import OperatorClass, Phase

#: Time of device work whose operator the trace must say, and time of it that a rule must class.
LINKED_LEAST, CLASSED_LEAST = 0.99, 0.99
#: Bytes that a CUDA context with its loaded kernels takes.
CONTEXT_LEAST, CONTEXT_MOST = 100_000_000, 2_000_000_000
#: A figure may be above a data sheet's by as much: clocks boost, and caches serve what the bound has in memory.
ABOVE_CEILING: Final = 1.1
_OTHER_PHASES: Final = (Phase.OPTIMIZER, Phase.OTHER)


class Figure(Struct, frozen=True, kw_only=True):
    """One figure of a report, what it must be, and whether it is."""

    name: str
    found: str
    wanted: str
    holds: bool


def kernels_recorded(anatomy: Anatomy) -> Figure:
    """The trace has device work, and nearly all of it an operator."""
    ledger = anatomy.ledger
    linked = ledger.linked_ns + ledger.graph_launched_ns
    share = linked / ledger.device_work_ns if ledger.device_work_ns else 0.0
    count = sum(row.count for row in anatomy.kernels)
    return Figure(
        name="kernels recorded",
        found=f"{count:,} kernels, {share:.2%} of their time linked",
        wanted=f"some, at least {LINKED_LEAST:.0%}",
        holds=count > 0 and share >= LINKED_LEAST,
    )


def kernels_launched(anatomy: Anatomy) -> Figure:
    """As many kernels as the host launched outside graphs: a buffer that was dropped would lack some."""
    launching = anatomy.timeline.launching
    calls = 0 if launching is None else launching.calls - launching.graph_calls
    kernels = 0 if launching is None else launching.kernels
    lacking = calls - (0 if launching is None else launching.delayed)
    return Figure(
        name="launches with a kernel",
        found=f"{calls:,} launches, {kernels:,} kernels, {max(lacking, 0):,} launches without one",
        wanted="none without",
        holds=calls > 0 and lacking <= 0,
    )


def work_is_classed(anatomy: Anatomy) -> Figure:
    """Rules know the kernels of this device and this torch."""
    ledger = anatomy.ledger
    work = ledger.classed_ns + ledger.unknown_ns
    share = ledger.classed_ns / work if work else 0.0
    unknown = [row.kernel for row in anatomy.kernels if row.operator_class is OperatorClass.UNKNOWN]
    return Figure(
        name="device work classed",
        found=f"{share:.2%}" + (f"; unknown: {', '.join(unknown[:3])}" if unknown else ""),
        wanted=f"at least {CLASSED_LEAST:.0%}",
        holds=share >= CLASSED_LEAST,
    )


def second_sources_agree(anatomy: Anatomy) -> Figure:
    """No check has a difference without a cause, and the counts of calls were compared at all."""
    wrong = [
        f"{one.operator} ({check.quantity}: {one.ours} for {one.other})"
        for check in anatomy.checks
        for one in check.unexplained
    ]
    compared = {check.quantity: check.compared for check in anatomy.checks if check.compared}
    return Figure(
        name="second sources agree",
        found="; ".join(wrong[:3]) or ", ".join(f"{count:,} {name}" for name, count in compared.items()) or "no check",
        wanted="no difference without a cause",
        holds=not wrong and {"call counts", "contraction FLOPs", "operator times"} <= set(compared),
    )


def device_is_named(anatomy: Anatomy, device: str) -> Figure:
    """The report is of the device that torch names, and its ceilings are known."""
    source = anatomy.device.source or anatomy.device.no_ceilings or ""
    return Figure(
        name="device and ceilings",
        found=f"{anatomy.environment.device}: {source}",
        wanted=f"{device}, with ceilings",
        holds=anatomy.environment.device == device and bool(anatomy.device.peak_flops_per_second),
    )


def product_type(anatomy: Anatomy, dtype: str) -> Figure:
    """The data type whose peak the contractions is compared with."""
    return Figure(
        name=f"peak of {dtype} products",
        found=f"{anatomy.device.mfu_dtype}, MFU {_share(anatomy.device.mfu)}",
        wanted=f"that of {dtype}, MFU at most {ABOVE_CEILING:.0%}",
        holds=anatomy.device.mfu_dtype == dtype and 0 < (anatomy.device.mfu or 0.0) <= ABOVE_CEILING,
    )


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


def contractions_within_peak(anatomy: Anatomy) -> Figure:
    """No contraction is faster than the peak it is compared with: it would stand next to the wrong one."""
    rows = [
        row
        for row in anatomy.operators
        if row.operator_class is OperatorClass.TENSOR_CONTRACTION and row.bound_by == "compute" and row.part_of is None
    ]
    faster = [row for row in rows if row.bounded_ns * ABOVE_CEILING < (row.bound_ns or 0)]
    return Figure(
        name="contractions within the peak",
        found=f"{len(rows) - len(faster)} of {len(rows)}" + "".join(f"; {row.operator}" for row in faster[:3]),
        wanted="all of some",
        holds=bool(rows) and not faster,
    )


def context_is_plausible(anatomy: Anatomy) -> Figure:
    """What the context of the device takes, where NVML told it."""
    sizes = {one.component: one.measured_bytes for one in anatomy.memory.components}
    size = sizes.get("device_context")
    return Figure(
        name="device context",
        found="not measured" if size is None else f"{size / 1e6:,.0f} MB",
        wanted=f"{CONTEXT_LEAST / 1e6:.0f} to {CONTEXT_MOST / 1e6:,.0f} MB",
        holds=size is not None and CONTEXT_LEAST <= size <= CONTEXT_MOST,
    )


def peak_is_the_allocators(anatomy: Anatomy) -> Figure:
    """The peak of the replayed blocks is `max_memory_allocated` of the same step, to the byte."""
    allocator = anatomy.memory.allocator
    replayed, counted = anatomy.memory.peak_bytes, None if allocator is None else allocator.peak_bytes
    return Figure(
        name="replayed peak",
        found=f"{_bytes(replayed)}, max_memory_allocated {_bytes(counted)}",
        wanted="equal",
        holds=replayed is not None and replayed == counted,
    )


def _bytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size:,} B"


def same_backward_modules(plain: Anatomy, other: Anatomy, what: str) -> Figure:
    """Each module's backward FLOPs are the same where its forward was run again."""
    mine, others = _module_flops(plain, Phase.BACKWARD), _module_flops(other, Phase.BACKWARD)
    return _equal(f"backward modules, {what}", mine, others)


def same_flops_by_module(device: Anatomy, host: Anatomy, what: str) -> Figure:
    """Each module's FLOPs in each phase are those of the same step on the CPU."""
    phases = [phase for phase in Phase if phase not in _OTHER_PHASES]
    mine = {(phase, *key): value for phase in phases for key, value in _module_flops(device, phase).items()}
    others = {(phase, *key): value for phase in phases for key, value in _module_flops(host, phase).items()}
    return _equal(f"FLOPs by module, {what}", others, mine)


def _module_flops(anatomy: Anatomy, phase: Phase) -> dict[tuple[str, ...], int]:
    """FLOPs of contractions by module, in one step."""
    found: Counter[tuple[str, ...]] = Counter()
    for row in anatomy.modules:
        if row.phase is phase and row.operator_class is OperatorClass.TENSOR_CONTRACTION and row.flops:
            found[(row.module,)] += row.flops
    return {key: value // anatomy.step.count for key, value in found.items()}


def _equal(name: str, wanted: Mapping[tuple[str, ...], int], found: Mapping[tuple[str, ...], int]) -> Figure:
    wrong = sorted({key for key in {*wanted, *found} if wanted.get(key) != found.get(key)})
    first = "".join(f"; {' '.join(key)}: {found.get(key)} for {wanted.get(key)}" for key in wrong[:2])
    return Figure(
        name=name,
        found=f"{len(wanted) - len([key for key in wrong if key in wanted])} of {len(wanted)} equal{first}",
        wanted="all of some",
        holds=bool(wanted) and not wrong,
    )


def every_step_updates(anatomy: Anatomy) -> Figure:
    """The optimizer works in each profiled step, also under a loss scale."""
    optimizer = [row.phase_ns.get("optimizer", 0) for row in anatomy.step.steps]
    skipped = [line for line in anatomy.warnings if "skipped" in line]
    return Figure(
        name="updates under a loss scale",
        found=f"{sum(ns > 0 for ns in optimizer)} of {len(optimizer)} steps" + "".join(f"; {one}" for one in skipped),
        wanted="each step",
        holds=bool(optimizer) and all(optimizer) and not skipped,
    )


def failure_is_reported(anatomy: Anatomy, phase: Phase) -> Figure:
    """A step that does not fit leaves a report of where it broke."""
    failure = anatomy.memory.failure
    found = "no report" if failure is None else f"{failure.phase}, {_bytes(failure.requested_bytes)} requested"
    known = failure is not None and failure.phase is phase and bool(failure.requested_bytes)
    return Figure(
        name="out of memory",
        found=found,
        wanted=f"{phase}, and the request",
        holds=known and bool(anatomy.memory.components),
    )
