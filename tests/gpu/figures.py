"""Figures of reports that must hold on a device, each a function of records, so that a wrong one can be planted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import OperatorClass, Phase

#: Share of the time of device work whose operator the trace must say, and that a rule must class.
LEAST = 0.99
#: Bytes that a CUDA context with its loaded kernels takes.
CONTEXT_LEAST, CONTEXT_MOST = 100_000_000, 2_000_000_000
#: A figure may be above a data sheet's by as much: clocks boost, and caches serve what the bound has in memory.
ABOVE_CEILING: Final = 1.1


class Figure(Struct, frozen=True):
    """One figure of a report, what it must be, and whether it is."""

    name: str
    found: str
    wanted: str
    holds: bool


def kernels_recorded(anatomy: Anatomy) -> Figure:
    """The trace has device work, and nearly all of it an operator."""
    ledger, count = anatomy.ledger, sum(row.count for row in anatomy.kernels)
    share = (ledger.linked_ns + ledger.graph_launched_ns) / max(ledger.device_work_ns, 1)
    found = f"{count:,} kernels, {share:.2%} of their time linked"
    return Figure("kernels recorded", found, f"some, at least {LEAST:.0%}", count > 0 and share >= LEAST)


def kernels_launched(anatomy: Anatomy) -> Figure:
    """As many kernels as the host launched outside graphs: a buffer that was dropped would lack some."""
    launching = anatomy.timeline.launching
    if launching is None:
        return Figure("launches with a kernel", "no launches", "none without", False)
    calls = launching.calls - launching.graph_calls
    lacking = max(calls - launching.delayed, 0)
    found = f"{calls:,} launches, {launching.kernels:,} kernels, {lacking:,} launches without one"
    return Figure("launches with a kernel", found, "none without", calls > 0 and not lacking)


def work_is_classed(anatomy: Anatomy) -> Figure:
    """Rules know the kernels of this device and this torch."""
    ledger = anatomy.ledger
    share = ledger.classed_ns / max(ledger.classed_ns + ledger.unknown_ns, 1)
    unknown = [row.kernel for row in anatomy.kernels if row.operator_class is OperatorClass.UNKNOWN]
    found = f"{share:.2%}" + (f"; unknown: {', '.join(unknown[:3])}" if unknown else "")
    return Figure("device work classed", found, f"at least {LEAST:.0%}", share >= LEAST)


def second_sources_agree(anatomy: Anatomy) -> Figure:
    """No check has a difference without a cause, and the counts of calls were compared at all."""
    wrong = [
        f"{one.operator} ({check.quantity}: {one.ours} for {one.other})"
        for check in anatomy.checks
        for one in check.unexplained
    ]
    compared = {check.quantity: check.compared for check in anatomy.checks if check.compared}
    found = "; ".join(wrong[:3]) or ", ".join(f"{count:,} {name}" for name, count in compared.items()) or "no check"
    holds = not wrong and {"call counts", "contraction FLOPs", "operator times"} <= set(compared)
    return Figure("second sources agree", found, "no difference without a cause", holds)


def device_is_named(anatomy: Anatomy, device: str) -> Figure:
    """The report is of the device that torch names, and its ceilings are known."""
    found = f"{anatomy.environment.device}: {anatomy.device.source or anatomy.device.no_ceilings or ''}"
    holds = anatomy.environment.device == device and bool(anatomy.device.peak_flops_per_second)
    return Figure("device and ceilings", found, f"{device}, with ceilings", holds)


def product_type(anatomy: Anatomy, dtype: str) -> Figure:
    """The data type whose peak the contractions is compared with."""
    mfu = anatomy.device.mfu or 0.0
    found = f"{anatomy.device.mfu_dtype}, MFU {f'{mfu:.1%}' if mfu else 'unknown'}"
    holds = anatomy.device.mfu_dtype == dtype and 0 < mfu <= ABOVE_CEILING
    return Figure(f"peak of {dtype} products", found, f"that of {dtype}, MFU at most {ABOVE_CEILING:.0%}", holds)


def contractions_within_peak(anatomy: Anatomy) -> Figure:
    """No contraction is faster than the peak it is compared with: it would stand next to the wrong one.

    The time of an operator that has parts is theirs.
    """
    least, took = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for row in anatomy.operators:
        key = row.part_of or row.operator, row.phase
        took[key] += row.bounded_ns
        if row.bound_by == "compute" and row.operator_class is OperatorClass.TENSOR_CONTRACTION:
            least[key] += row.bound_ns or 0
    faster = [operator for (operator, phase), ns in least.items() if took[operator, phase] * ABOVE_CEILING < ns]
    found = f"{len(least) - len(faster)} of {len(least)}" + "".join(f"; {operator}" for operator in faster[:3])
    return Figure("contractions within the peak", found, "all of some", bool(least) and not faster)


def context_is_plausible(anatomy: Anatomy) -> Figure:
    """What the context of the device takes, where NVML told it."""
    sizes = {one.component: one.measured_bytes for one in anatomy.memory.components}
    size = sizes.get("device_context")
    wanted = f"{CONTEXT_LEAST:,} to {CONTEXT_MOST:,} B"
    return Figure("device context", _bytes(size), wanted, size is not None and CONTEXT_LEAST <= size <= CONTEXT_MOST)


def peak_is_the_allocators(anatomy: Anatomy) -> Figure:
    """The peak of the replayed blocks is `max_memory_allocated` of the same step, to the byte."""
    replayed, allocator = anatomy.memory.peak_bytes, anatomy.memory.allocator
    counted = None if allocator is None else allocator.peak_bytes
    found = f"{_bytes(replayed)}, max_memory_allocated {_bytes(counted)}"
    return Figure("replayed peak", found, "equal", replayed is not None and replayed == counted)


def _bytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size:,} B"


def same_backward_modules(plain: Anatomy, other: Anatomy, what: str) -> Figure:
    """Each module's backward FLOPs are the same where its forward was run again."""
    wanted, found = (_module_flops(one, (Phase.BACKWARD,)) for one in (plain, other))
    return _equal(f"backward modules, {what}", wanted, found)


def same_flops_by_module(device: Anatomy, host: Anatomy, what: str) -> Figure:
    """Each module's FLOPs in each phase are those of the same step on the CPU."""
    phases = [phase for phase in Phase if phase not in (Phase.OPTIMIZER, Phase.OTHER)]
    wanted, found = (_module_flops(one, phases) for one in (host, device))
    return _equal(f"FLOPs by module, {what}", wanted, found)


def _module_flops(anatomy: Anatomy, phases: Sequence[Phase]) -> dict[tuple[str, str], int]:
    """FLOPs of contractions by phase and module, in one step."""
    found: Counter[tuple[str, str]] = Counter()
    for row in anatomy.modules:
        if row.phase in phases and row.operator_class is OperatorClass.TENSOR_CONTRACTION and row.flops:
            found[row.phase, row.module] += row.flops
    return {key: value // anatomy.step.count for key, value in found.items()}


def _equal(name: str, wanted: Mapping[tuple[str, str], int], found: Mapping[tuple[str, str], int]) -> Figure:
    wrong = sorted({key for key in {*wanted, *found} if wanted.get(key) != found.get(key)})
    first = "".join(f"; {' '.join(key)}: {found.get(key)} for {wanted.get(key)}" for key in wrong[:2])
    equal = f"{len(wanted.keys() - wrong)} of {len(wanted)} equal{first}"
    return Figure(name, equal, "all of some", bool(wanted) and not wrong)


def every_step_updates(anatomy: Anatomy) -> Figure:
    """The optimizer works in each profiled step, also under a loss scale."""
    optimizer = [row.phase_ns.get("optimizer", 0) for row in anatomy.step.steps]
    skipped = [line for line in anatomy.warnings if "skipped" in line]
    found = "; ".join((f"{sum(ns > 0 for ns in optimizer)} of {len(optimizer)} steps", *skipped))
    holds = bool(optimizer) and all(optimizer) and not skipped
    return Figure("updates under a loss scale", found, "each step", holds)


def failure_is_reported(anatomy: Anatomy, phase: Phase) -> Figure:
    """A step that does not fit leaves a report of where it broke."""
    failure = anatomy.memory.failure
    found = "no report" if failure is None else f"{failure.phase}, {_bytes(failure.requested_bytes)} requested"
    known = failure is not None and failure.phase is phase and bool(failure.requested_bytes)
    return Figure("out of memory", found, f"{phase}, and the request", known and bool(anatomy.memory.components))
