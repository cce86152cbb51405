"""Every headline figure of an anatomy as one flat dictionary, for loggers, gates and benchmarks.

Figures are of one step, in base units: means over the steps that count. What a record has as a sum over them is divided
by their number: the mean step of a rank. What is not known is left out. `mfu` and `hfu` are lower bounds where
`mfu_covered` is below 1, and so is `waiting_ns` where ranks are missing: `Metric.lower_bound` says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from opanatomy.records.anatomy import Anatomy, ClassRow
from opanatomy.records.metric import Metric
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.waiting import Waiting
from opanatomy.report.costs import costs_of
from opanatomy.report.metric_names import definition_of, metric_named
from opanatomy.report.totals import total

__all__ = ["Metric", "metric_named", "metrics_of"]

Number: TypeAlias = "int | float"
#: A name and what it is, `None` where that is not known.
Named: TypeAlias = "tuple[str, Number | None]"


def metrics_of(anatomy: Anatomy) -> dict[str, Metric]:
    """The figures of an anatomy by name (docs/report.md, "Metrics"), those that are not known left out."""
    parts = (
        _step(anatomy), _phases(anatomy), _window(anatomy), _launching(anatomy), _work(anatomy), _ratios(anatomy),
        _device(anatomy), _memory(anatomy), _generation(anatomy), _texts(anatomy), _ranks(anatomy),
        () if anatomy.waiting is None else _waiting(anatomy.waiting), _ledger(anatomy), _checks(anatomy),
    )  # fmt: skip
    bounds = _lower_bounds(anatomy)
    return {name: _metric(name, value, name in bounds) for part in parts for name, value in part if value is not None}


def _lower_bounds(anatomy: Anatomy) -> set[str]:
    """The figures that are no less than what is known of them."""
    covered, waiting = anatomy.device.mfu_covered, anatomy.waiting
    names = {"mfu", "hfu"} if covered is not None and covered < 1 else set()
    return names | {"waiting_ns"} if waiting is not None and waiting.is_lower_bound else names


def _metric(name: str, value: Number, lower_bound: bool) -> Metric:
    definition = definition_of(name)
    if definition is None:
        raise ValueError(f"no metric is called {name}")
    return Metric(
        value=value, unit=definition.unit, better=definition.better, lower_bound=lower_bound, exact=definition.exact
    )


def _per(amount: Number | None, count: Number | None) -> Number | None:
    """`amount` / `count`, a whole number where it is one; `None` where one is not known or `count` is 0."""
    if amount is None or not count:
        return None
    if isinstance(amount, int) and isinstance(count, int) and amount % count == 0:
        return amount // count
    return amount / count


def _word(text: str) -> str:
    """What a report calls something, as a part of a name."""
    return re.sub(r"\W+", "_", text)


def _step(anatomy: Anatomy) -> Iterator[Named]:
    step = anatomy.step
    plain = step.unprofiled_wall_ns
    yield "step_time_ns", step.wall_ns if plain is None else plain
    yield "step_unprofiled_ns", plain
    yield "step_profiled_ns", step.wall_ns
    yield "steps", step.count
    yield "samples_per_second", step.samples_per_second


def _phases(anatomy: Anatomy) -> Iterator[Named]:
    step = anatomy.step
    for phase in ("forward", "backward", "optimizer", "prefill", "decoding"):
        yield f"{phase}_time_ns", getattr(step, f"{phase}_ns")
    yield "framework_ns", step.framework_ns
    yield "framework_share", _per(step.framework_ns, step.wall_ns)
    yield "profiler_ns", step.profiler_ns if step.framework_ns is not None else None


def _window(anatomy: Anatomy) -> Iterator[Named]:
    """Busy and idle time: of several ranks the record has the mean over them of their whole windows."""
    timeline, ranks, costs = anatomy.timeline, max(len(anatomy.ranks), 1), costs_of(anatomy)
    on_accelerator = timeline.outside_ns is not None

    def each(ns: int | None) -> Number | None:
        return None if ns is None else _per(ns * ranks, anatomy.step.count)

    if on_accelerator:
        yield "window_ns", each(timeline.window_ns)
        yield "idle_ns", each(timeline.idle_ns)
        yield "idle_share", _per(costs.idle_ns, costs.whole_ns)
    yield "busy_ns", each(timeline.busy_ns) if on_accelerator else anatomy.step.busy_ns
    for name in ("outside", "unrecorded", "host_idle", "stream_idle", "other_idle", "computation", "communication",
                 "exposed_communication", "memcpy", "exposed_memcpy"):  # fmt: skip
        yield f"{name}_ns", each(getattr(timeline, f"{name}_ns"))
    yield "exposed_communication_share", _per(timeline.exposed_communication_ns, costs.whole_ns)


def _launching(anatomy: Anatomy) -> Iterator[Named]:
    launching, steps = anatomy.timeline.launching, anatomy.step.count
    if launching is None:
        return
    yield "launches", _per(launching.calls, steps)
    yield "launch_time_ns", _per(launching.call_ns, steps)
    yield "launch_delay_ns", _per(launching.delay_ns, launching.delayed)
    yield "synchronizing_ns", _per(launching.synchronizing_ns, steps)
    yield "kernels", _per(launching.kernels, steps)
    yield "tiny_kernels", _per(launching.tiny_kernels, steps)


def _work(anatomy: Anatomy) -> Iterator[Named]:
    """The device work in all, by class and by phase."""
    rows, steps = anatomy.classes, anatomy.step.count
    if not rows:
        return
    whole = total(rows)
    yield "kernel_time_ns", _per(whole.time_ns, steps)
    yield "flops", _per(whole.flops, steps)
    yield "bytes", _per(whole.bytes, steps)
    for operator_class in OperatorClass:
        members = [row for row in rows if row.operator_class is operator_class]
        yield from _part(f"class.{operator_class}", members, steps)
        if members:
            yield f"class.{operator_class}.time_share", _per(total(members).time_ns, whole.time_ns)
            yield f"class.{operator_class}.headroom_ns", _per(_headroom(members), steps)
    for phase in Phase:
        yield from _part(f"phase.{phase}", [row for row in rows if row.phase is phase], steps)
    yield "headroom_ns", _per(_headroom(rows), steps)
    yield "bound_share", whole.reached


def _part(name: str, rows: list[ClassRow], steps: int) -> Iterator[Named]:
    if rows:
        part = total(rows)
        yield f"{name}.time_ns", _per(part.time_ns, steps)
        yield f"{name}.flops", _per(part.flops, steps)
        yield f"{name}.bytes", _per(part.bytes, steps)


def _headroom(rows: Iterable[ClassRow]) -> int | None:
    known = [row.headroom_ns for row in rows if row.headroom_ns is not None]
    return sum(known) if known else None


def _ratios(anatomy: Anatomy) -> Iterator[Named]:
    for row in anatomy.ratios:
        for figure in ("time", "flops", "bytes"):
            yield f"ratio.{row.operator_class}.{figure}", getattr(row, figure)


def _device(anatomy: Anatomy) -> Iterator[Named]:
    device = anatomy.device
    if device.mfu is not None:
        yield "mfu_covered", device.mfu_covered
    for name in ("mfu", "hfu", "utilization", "sm_efficiency", "occupancy"):
        yield name, getattr(device, name)
    for name in ("tensor_core_ns", "tensor_core_unknown_ns"):
        yield name, _per(getattr(device, name), anatomy.step.count)


def _memory(anatomy: Anatomy) -> Iterator[Named]:
    memory = anatomy.memory
    yield "peak_memory_bytes", memory.peak_bytes
    yield "allocator_peak_bytes", memory.allocator_peak_bytes
    yield "process_peak_bytes", memory.process_peak_bytes
    from_allocator = None if memory.allocator is None else memory.allocator.reserved_peak_bytes
    from_events = memory.devices[0].reserved_peak_bytes if memory.devices else None
    yield "reserved_memory_bytes", from_events if from_allocator is None else from_allocator
    yield "needed_memory_bytes", memory.needed_bytes
    for part in memory.components:
        name = _word(part.component)
        yield f"memory.{name}_bytes", part.measured_bytes
        yield f"memory.at_peak.{name}_bytes", part.at_peak_bytes


def _generation(anatomy: Anatomy) -> Iterator[Named]:
    for name in ("first_token_ns", "token_ns", "tokens_per_second", "token_flops", "token_read_bytes",
                 "token_written_bytes"):  # fmt: skip
        yield name, getattr(anatomy.generation, name, None)


def _texts(anatomy: Anatomy) -> Iterator[Named]:
    texts = anatomy.texts
    if texts is None:
        return
    yield "texts.step_ns", texts.mean_step_ns
    for name in ("samples_per_second", "tokens_per_second", "useful_tokens_per_second"):
        yield f"texts.{name}", getattr(texts, name)
    yield "texts.useful_share", _per(texts.all_useful_tokens, texts.all_tokens)
    yield "texts.padding_flops", None if texts.padding_flops is None else texts.padding_flops.padding_flops


def _ranks(anatomy: Anatomy) -> Iterator[Named]:
    yield "ranks", len(anatomy.ranks) or None
    for spread in anatomy.spread:
        for kind in ("min", "median", "max"):
            yield f"ranks.{_word(spread.figure)}_{kind}_ns", getattr(spread, f"{kind}_ns")


def _waiting(waiting: Waiting) -> Iterator[Named]:
    """What of the steps of all ranks was waiting, and for whom."""
    steps = [step for rank in waiting.each for step in rank.steps]
    for name in ("waiting", "transfer", "unmatched"):
        yield f"{name}_ns", _per(sum(getattr(step, f"{name}_ns") for step in steps), len(steps))
    straggler = waiting.straggler
    if straggler is not None:
        yield "straggler_charged_ns", _per(straggler.charged_ns, len(steps))
        yield "straggler_share", _per(straggler.charged_ns, straggler.waiting_ns)
        yield "straggler_lead_ns", straggler.lead_ns
        yield "straggler_rank", straggler.rank


def _ledger(anatomy: Anatomy) -> Iterator[Named]:
    ledger = anatomy.ledger
    for name in ("linked", "graph_launched", "no_launch_record", "outside_window"):
        yield f"ledger.{name}_share", _per(getattr(ledger, f"{name}_ns"), ledger.device_work_ns)
    for name in ("costed", "unknown"):
        inside = ledger.device_work_ns - ledger.outside_window_ns
        yield f"ledger.{name}_share", _per(getattr(ledger, f"{name}_ns"), inside)


def _checks(anatomy: Anatomy) -> Iterator[Named]:
    if any(check.compared for check in anatomy.checks):
        yield "checks.unexplained", sum(len(check.unexplained) for check in anatomy.checks)
