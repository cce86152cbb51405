"""The few figures of a report that a machine, or somebody in a hurry, asks for first: one fact a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from opanatomy.records.anatomy import Anatomy, Step
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report.costs import costs_of
from opanatomy.report.scope import is_whole_trace, steps_of, steps_of_window
from opanatomy.report.section import (
    Bytes,
    Count,
    Name,
    Phrase,
    Rate,
    Section,
    Share,
    Time,
    facts_of,
    joined,
    phrase,
)
from opanatomy.report.sections.checks import alarm_texts, exceeded_texts
from opanatomy.report.sections.classes import by_class
from opanatomy.report.sections.idle import label_of
from opanatomy.report.sections.operators import grouped
from opanatomy.report.sections.step import left_out
from opanatomy.report.table import cut_apart
from opanatomy.report.totals import Total, amounts, total

Facts = Iterable[tuple[str, str | Phrase | None]]
#: How many operators, kernels, modules, components and warnings are named.
_OPERATORS, _KERNELS, _MODULES, _COMPONENTS, _WARNINGS, _CAUSES = 8, 5, 5, 8, 5, 4
#: What a line has for a name where there is room.
NAME_WIDTH: Final = 64


def digest_of(anatomy: Anatomy) -> tuple[Section, ...]:
    """What ran, the step, where the time of a mean step went, memory, and warnings; the findings are apart."""
    parts: tuple[tuple[str, str, Callable[[Anatomy], Facts]], ...] = (
        ("run", "What ran", _run),
        ("step", "The step", _step),
        ("time", "Where the time went", _time_by_part),
        ("memory", "Memory", _memory),
        ("warnings", "Warnings", _warnings),
    )
    return tuple(Section(name=name, title=title, facts=facts_of(*facts(anatomy))) for name, title, facts in parts)


def _run(anatomy: Anatomy) -> Facts:
    environment, workload = anatomy.environment, anatomy.workload
    yield from (("before you read on", text) for text in anatomy.caveats)
    yield "model", _name(workload.model)
    yield "architecture", _name(workload.architecture)
    yield "parameters", _count(workload.parameters)
    yield "trained parameters", _count(workload.trainable_parameters)
    yield "task", workload.task
    yield "batch", _count(workload.batch)
    yield "sequence length", _count(workload.sequence_length)
    for label, value in (
        ("data type", workload.dtype), ("autocast", workload.amp), ("attention", workload.attention),
        ("checkpointing", workload.checkpointing), ("optimizer", workload.optimizer),
    ):  # fmt: skip
        yield label, value
    for label, flag in (
        ("compiled", workload.compiled), ("inference", workload.inference), ("generation", workload.generate)
    ):  # fmt: skip
        yield label, "yes" if flag else None
    yield "device", _name(environment.device or environment.processor)
    yield "kind of device", environment.device_kind
    yield "ranks", _count(len(anatomy.ranks) or None)
    yield "torch", environment.torch
    yield "opanatomy", anatomy.provenance.opanatomy
    yield "trace", _name(anatomy.provenance.trace)


def _step(anatomy: Anatomy) -> Facts:
    step, wall_ns = anatomy.step, anatomy.step.wall_ns
    yield "profiled steps", phrase("{}", Count(step.count))
    yield "steps that do not count", joined(left_out(anatomy))
    yield "step, profiled" if not is_whole_trace(anatomy) else "whole trace, taken for one step", _time(wall_ns)
    yield "step, without the profiler", _time(step.unprofiled_wall_ns)
    yield "samples", None if step.samples_per_second is None else phrase("{}", Rate(step.samples_per_second, "samples"))
    yield from _phases(step)
    if anatomy.environment.device_kind == "cpu":
        yield "framework", _part(step.framework_ns, wall_ns)
    elif not is_whole_trace(anatomy):
        yield "kernel time", _time(step.kernel_time_ns)
    if anatomy.generation is not None:
        yield "first token", _time(anatomy.generation.first_token_ns)
        yield "next token", _time(anatomy.generation.token_ns)
    bound = "≥ " if anatomy.device.mfu_covered not in (None, 1) else ""
    yield "MFU", None if anatomy.device.mfu is None else phrase(bound + "{}", Share(anatomy.device.mfu, 1))


def _phases(step: Step) -> Facts:
    for name in ("forward", "backward", "optimizer", "prefill", "decoding"):
        yield name, _part(getattr(step, f"{name}_ns"), step.wall_ns)


def _time_by_part(anatomy: Anatomy) -> Iterator[tuple[str, str | Phrase | None]]:
    """Times are of a mean step: sums over the steps that count, of all ranks, divided by their number."""
    timeline, steps = anatomy.timeline, steps_of(anatomy)
    work_ns = total(anatomy.classes).time_ns / steps
    if anatomy.environment.device_kind != "cpu":
        in_window, costs = steps_of_window(anatomy), costs_of(anatomy)
        whole_ns = costs.whole_ns / in_window
        yield "mean step" if not costs.of_trace else "from the first to the last device work", _time(whole_ns)
        yield "not in it, other steps' work", _time((timeline.outside_ns or 0) / in_window or None)
        for label, part_ns in (
            ("device busy", timeline.busy_ns), ("device idle", costs.idle_ns),
            *((f"idle, {label_of(row)}", row.time_ns) for row in costs.causes[:_CAUSES]),
            ("not recorded", costs.unrecorded_ns or None), ("communication", timeline.communication_ns),
            ("exposed communication", timeline.exposed_communication_ns),
        ):  # fmt: skip
            yield label, None if part_ns is None else _part(part_ns / in_window, whole_ns)
    yield "device work", _time(work_ns)
    for operator_class, rows in by_class(anatomy):
        yield "class", _class(operator_class, total(rows).a_step(steps), work_ns)
    yield "no rule knows", _part(anatomy.ledger.unknown_ns / steps or None, work_ns)
    times: tuple[tuple[str, list[tuple[Name | Phrase, int]], int], ...] = (
        ("operator", _operators(anatomy), _OPERATORS),
        ("kernel", [(Name(row.kernel), row.time_ns) for row in anatomy.kernels], _KERNELS),
        ("module", _modules(anatomy), _MODULES),
    )
    for label, rows_by_name, most in times:
        yield from _most(label, [(name, ns / steps) for name, ns in rows_by_name], work_ns, most)


def _class(operator_class: OperatorClass, part: Total, work_ns: float) -> Phrase:
    flops, moved = amounts(part)
    known = [phrase("{}", flops)] if flops.flops is not None else []
    known += [phrase("{}", moved)] if moved.bytes is not None else []
    figures = joined((_part(part.time_ns, work_ns), *known))
    return phrase("{}: {}", operator_class, figures or "")


def _operators(anatomy: Anatomy) -> list[tuple[Name | Phrase, int]]:
    return [
        (phrase("{} {}", Name(name), phase.value), sum(row.time_ns for row in rows))
        for (_, name, phase), rows in grouped(anatomy.operators).items()
    ]


def _modules(anatomy: Anatomy) -> list[tuple[Name | Phrase, int]]:
    times: dict[str, int] = {}
    for row in anatomy.modules:
        times[row.module] = times.get(row.module, 0) + row.time_ns
    return [(Name(module or "(root)"), time_ns) for module, time_ns in times.items()]


def _most(
    label: str, times: Iterable[tuple[Name | Phrase, float]], work_ns: float, most: int
) -> Iterator[tuple[str, Phrase | None]]:
    """The longest times by name, ties in the order of the anatomy, and how many more there are."""
    ranked = sorted(times, key=lambda row: -row[1])
    names = cut_apart([name.name for name, _ in ranked[:most] if isinstance(name, Name)], NAME_WIDTH)
    for whole, time_ns in ranked[:most]:
        name = Name(names[whole.name]) if isinstance(whole, Name) else whole
        yield label, phrase("{}: {}", name, _part(time_ns, work_ns) or "")
    if ranked[most:]:
        others_ns = sum(time_ns for _, time_ns in ranked[most:])
        yield label, phrase("and {} more: {}", Count(len(ranked) - most), _part(others_ns, work_ns) or "")


def _memory(anatomy: Anatomy) -> Facts:
    memory = anatomy.memory
    yield "peak", None if memory.peak_bytes is None else phrase("{}", Bytes(memory.peak_bytes))
    for part in memory.components[:_COMPONENTS]:
        if part.measured_bytes is not None:
            yield part.component.replace("_", " "), phrase("{}", Bytes(part.measured_bytes))


def _warnings(anatomy: Anatomy) -> Facts:
    yield from (("warning", text) for text in exceeded_texts(anatomy))
    yield from (("warning", text) for text in alarm_texts(anatomy))
    yield from (("warning", text) for text in anatomy.warnings[:_WARNINGS])
    if anatomy.warnings[_WARNINGS:]:
        yield "warning", phrase("and {} more", Count(len(anatomy.warnings) - _WARNINGS))


def _name(name: str | None) -> Phrase | None:
    return phrase("{}", Name(name)) if name else None


def _count(number: int | None) -> Phrase | None:
    return None if number is None else phrase("{}", Count(number))


def _time(ns: float | None) -> Phrase | None:
    return None if ns is None else phrase("{}", Time(ns))


def _part(ns: float | None, whole_ns: float | None) -> Phrase | None:
    """A time and what share of a whole it is."""
    if ns is None:
        return None
    return phrase("{} ({})", Time(ns), Share(ns, whole_ns)) if whole_ns else _time(ns)
