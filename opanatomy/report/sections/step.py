"""One step: its wall time, phases and framework, busy and idle time, and what of the ceilings it reached."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from opanatomy.records.anatomy import MIN_COVERED, Anatomy, Step
from opanatomy.records.device import DeviceFigures
from opanatomy.records.taxonomy import PEAK_OF_COMPUTE_TYPE, OperatorClass
from opanatomy.report.scope import is_whole_trace
from opanatomy.report.section import (
    ByteRate,
    Change,
    Count,
    FlopRate,
    Phrase,
    Rate,
    Section,
    Share,
    Time,
    facts_of,
    joined,
    phrase,
)
from opanatomy.report.sections.idle import busy, part_of, phases_of

#: Of so many steps that are left out the times are said.
_FEW: Final = 2
#: The part of the FLOPs from which a data type is named that is not that of most.
_OTHER_TYPES: Final = 0.01
#: The address of a data sheet, which the JSON report has.
_ADDRESS: Final = re.compile(r",? ?https?://[^\s;]+")


def one_step(anatomy: Anatomy) -> Section:
    """The wall time of a step and of its phases, and what of it the device was busy."""
    step, on_cpu = anatomy.step, anatomy.environment.device_kind == "cpu"
    facts = facts_of(
        ("step", joined((_wall(anatomy), _samples(step)))),
        ("steps", _spread(anatomy)),
        ("phases", phases_of(step) if on_cpu else None),
        ("framework", _framework(anatomy)),
        ("profiler", None if anatomy.environment.host_only else _profiler(step)),
        ("busy", busy(anatomy)),
        ("reached", _reached(anatomy)),
    )
    return Section(name="step", title="One step", facts=facts)


def ceilings(anatomy: Anatomy) -> Section | None:
    """What the device can do at most, or why that is not known."""
    facts = facts_of(("ceilings", _ceilings(anatomy)), ("reached", _not_reached(anatomy.device)))
    return Section(name="ceilings", title="What the device can do", facts=facts)


def _wall(anatomy: Anatomy) -> Phrase | None:
    """The step with and without the profiler, and the difference where it is one of the profiler."""
    step = anatomy.step
    if is_whole_trace(anatomy) and step.wall_ns is not None and step.unprofiled_wall_ns is None:
        return phrase("{}: no step is annotated, the whole trace is taken for one", Time(step.wall_ns))
    if step.wall_ns is None or step.unprofiled_wall_ns is None:
        if step.unprofiled_wall_ns is not None:
            return phrase("{} plain", Time(step.unprofiled_wall_ns))
        return None if step.wall_ns is None else phrase("{} profiled", Time(step.wall_ns))
    both = phrase("{} plain, {} profiled", Time(step.unprofiled_wall_ns), Time(step.wall_ns))
    if step.profiler_ns is not None:
        return phrase("{} ({})", both, Change(step.wall_ns, step.unprofiled_wall_ns))
    return both


def _samples(step: Step) -> Phrase | None:
    return None if step.samples_per_second is None else phrase("{}", Rate(step.samples_per_second, "samples"))


def _framework(anatomy: Anatomy) -> Phrase | None:
    """On the CPU what is left of the step besides operators and, where that is known, the profiler."""
    step = anatomy.step
    if step.framework_ns is None or anatomy.environment.host_only:
        return None
    inside = " (inside the phases)" if phases_of(step) else ""
    return phrase("{}: dispatch, autograd, Python{}", part_of(step.framework_ns, step.wall_ns), inside)


def _profiler(step: Step) -> Phrase | None:
    """What is taken for the profiler's own time, or why that is not known."""
    if step.framework_ns is not None and step.profiler_ns is not None:
        own = part_of(step.profiler_ns, step.wall_ns)
        return phrase("{}: an estimate of its own time outside operators, not in framework", own)
    if step.wall_ns is None or step.profiler_ns is not None:
        return None
    inside = "in framework" if step.framework_ns is not None else None
    if step.unprofiled_wall_ns is None:
        why = "no step without it shows how much" if inside else None
    elif step.unprofiled_count in (None, 1):
        longer = step.unprofiled_wall_ns > step.wall_ns
        why = "not known how much: the one step without it " + ("took longer" if longer else "is too few")
    else:
        why = "less than steps differ among themselves"
    return joined((inside, why), by="; ")


def _spread(anatomy: Anatomy) -> Phrase | None:
    """How many steps there are, which of them is shown, how far they lie apart, and what is special about some."""
    step, ranks = anatomy.step, len(anatomy.ranks)
    plain = step.unprofiled_count or 0
    if step.count < 2 and plain < 2 and not left_out(anatomy):
        return None
    texts: list[str | Phrase | None] = []
    if plain > 1:
        mean = phrase("mean of {} plain", Count(plain))
        texts.append(joined((mean, *_span(step.unprofiled_wall_min_ns, step.unprofiled_wall_max_ns))))
    if step.count > 1:
        mean = phrase("mean of {} profiled{}", Count(step.count), _on_ranks(step.count, ranks))
        texts.append(joined((mean, *_span(step.wall_min_ns, step.wall_max_ns), *left_out(anatomy))))
    else:
        texts.append(joined(("1 profiled", *left_out(anatomy))))
    return joined(texts, by="; ")


def _on_ranks(steps: int, ranks: int) -> Phrase | str:
    """On how many ranks the steps ran, and how many of them on each where these are as many."""
    each, rest = divmod(steps, max(ranks, 1))
    if ranks < 2:
        return ""
    on = Count(ranks, "rank")
    return phrase(" on {}", on) if rest else phrase(", {} on each of {}", Count(each), on)


def _span(low: int | None, high: int | None) -> tuple[Phrase, ...]:
    """The shortest and the longest."""
    if low is None or high is None or low == high:
        return ()
    return phrase("shortest {}", Time(low)), phrase("longest {}", Time(high))


def left_out(anatomy: Anatomy) -> tuple[Phrase, ...]:
    """Which steps do not count, by reason, and how long they are where they are few."""
    kinds = () if anatomy.breakdown is None else anatomy.breakdown.kinds
    numbers: dict[str, dict[int | None, int]] = {}
    for step in (step for kind in kinds for step in kind.steps if step.left_out is not None):
        walls = numbers.setdefault(step.left_out or "", {})
        walls[step.number] = max(walls.get(step.number, 0), step.wall_ns)
    texts = []
    for reason, each in numbers.items():
        if len(each) > _FEW:
            texts.append(phrase("without {} where {}", Count(len(each)), reason))
        else:
            named = joined((phrase("{} ({})", _number(number), Time(ns)) for number, ns in each.items()), by=" and ")
            texts.append(phrase("without {}: {}", named or "", reason))
    return tuple(texts)


def _number(number: int | None) -> str:
    return "one" if number is None else f"step {number}"


def _ceilings(anatomy: Anatomy) -> str | Phrase | None:
    """The peaks that the trace's work is compared with, and where they are from."""
    device = anatomy.device
    if device.source is None:
        return device.why_no_ceilings
    names = _multiplied(anatomy)
    peaks = (
        phrase("{} {}", FlopRate(peak), name) for name, peak in device.peak_flops_per_second.items() if name in names
    )
    vector, bandwidth = device.vector_flops_per_second.get("float32"), device.bandwidth_bytes_per_second
    unsure = phrase("{} of products may be float32 or tf32 and have no bound", Time(device.unsure_ns))
    return joined(
        (
            *peaks,
            None if vector is None else phrase("{} vector float32", FlopRate(vector)),
            None if bandwidth is None else phrase("{}", ByteRate(bandwidth)),
            _ADDRESS.sub("", device.source),
            unsure if device.unsure_ns else None,
        )
    )


def _multiplied(anatomy: Anatomy) -> set[str | None]:
    """The data types among the known peaks that the contractions have to do with."""
    rows = [row for row in anatomy.operators if row.operator_class is OperatorClass.TENSOR_CONTRACTION]
    names: set[str | None] = {anatomy.device.mfu_dtype}
    names |= {PEAK_OF_COMPUTE_TYPE.get(row.compute_type) for row in rows if row.compute_type is not None}
    return names | {tensor.dtype for row in rows for tensor in row.signature.record.tensors()}


def _reached(anatomy: Anatomy) -> Phrase | None:
    """The shares of the peak that contractions reach over the step, and of how much of their time that speaks."""
    device = anatomy.device
    if device.mfu is None:
        return None
    lower_bound = device.mfu_covered not in (None, 1)
    sign, peak = "≥ " if lower_bound else "", f" of the {device.mfu_dtype} peak" if device.mfu_dtype else ""
    reached = (("MFU", device.mfu), ("HFU", device.hfu))
    shares = joined(phrase("{} {}{}", name, sign, Share(part, 1)) for name, part in reached if part is not None)
    plain = " in the plain step" if anatomy.step.unprofiled_wall_ns is not None else ""
    known = (
        phrase("FLOPs known for {} of the contractions' time", Share(device.mfu_covered, 1)) if lower_bound else None
    )
    return joined((phrase("{}{}{}", shares or "", peak, plain), known, _in_other_types(anatomy)), by="; ")


def _in_other_types(anatomy: Anatomy) -> Phrase | None:
    """What of the FLOPs was done in data types that have a peak of their own, as float8 has."""
    done: Counter[str] = Counter()
    for row in anatomy.operators:
        if row.operator_class is OperatorClass.TENSOR_CONTRACTION and row.flops:
            dtype = PEAK_OF_COMPUTE_TYPE.get(row.compute_type or "") or row.signature.record.compute_dtype or "unknown"
            done["float8" if dtype.startswith("float8") else dtype] += row.flops
    whole = sum(done.values())
    parts = [
        phrase("{} of the FLOPs in {}", Share(flops, whole), dtype)
        for dtype, flops in done.most_common()
        if dtype != anatomy.device.mfu_dtype and flops >= _OTHER_TYPES * whole
    ]
    return joined(parts)


def _not_reached(device: DeviceFigures) -> Phrase | None:
    """Why there is no such share."""
    covered = device.mfu_covered
    if device.mfu is not None or covered is None or covered >= MIN_COVERED or not device.peak_flops_per_second:
        return None
    return phrase("no MFU: FLOPs are known of {} of the contractions' time", Share(covered, 1))
