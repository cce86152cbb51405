"""One step: its wall time, phases, framework, busy and idle time, launches, and what of the ceilings it reached."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from opanatomy.records.anatomy import COVERED_LEAST, Anatomy, Step
from opanatomy.records.device import DeviceFigures
from opanatomy.records.taxonomy import PEAK_OF_COMPUTE_TYPE, OperatorClass
from opanatomy.records.timeline import Timeline
from opanatomy.report.scope import calls_a_step, is_whole_trace, per_step, steps_of, steps_of_window
from opanatomy.report.section import (
    ByteRate,
    Change,
    Count,
    FlopRate,
    Phrase,
    Quantity,
    Rate,
    Section,
    Share,
    Time,
    facts_of,
    joined,
    phrase,
)

#: The part of the window from which idle time before and after all device work, and other steps' work, are said.
_SAID: Final = 0.01
#: The address of a data sheet, which the JSON report has.
_ADDRESS: Final = re.compile(r",? ?https?://[^\s;]+")


def one_step(anatomy: Anatomy) -> Section:
    """The wall time of a step and of its phases, and what of it the device was busy."""
    step, on_cpu = anatomy.step, anatomy.environment.device_kind == "cpu"
    facts = facts_of(
        ("step", joined((_wall(anatomy), _samples(step)))),
        ("steps", _spread(anatomy)),
        ("phases", _phases(step) if on_cpu else None),
        ("framework", _framework(step)),
        ("profiler", _profiler(step)),
        ("busy", _busy(anatomy)),
        ("reached", _reached(anatomy.device)),
    )
    return Section(name="step", title="One step", facts=facts)


def idle(anatomy: Anatomy) -> Section | None:
    """Of an accelerator: busy and idle time and its causes, what overlaps, launches, how full it was."""
    if anatomy.environment.device_kind == "cpu":
        return None
    timeline, steps = anatomy.timeline, steps_of_window(anatomy)
    overlap = (("communication", timeline.communication_ns), ("of it exposed", timeline.exposed_communication_ns),
               ("exposed memcpy", timeline.exposed_memcpy_ns))  # fmt: skip
    causes = (("host-bound", timeline.host_idle_ns), ("stream waits", timeline.stream_idle_ns),
              ("other", timeline.other_idle_ns))  # fmt: skip
    whole = (("busy", timeline.busy_ns), ("idle", timeline.idle_ns),
             ("busy with another step's work", timeline.outside_ns))  # fmt: skip
    facts = facts_of(
        ("window", phrase("{}", Time(timeline.window_ns / steps)) if timeline.window_ns else None),
        ("device", _parts(whole, timeline.window_ns, steps)),
        ("idle", _parts(causes, timeline.window_ns, steps)),
        ("edges", _edges(anatomy)),
        ("phases", phrase("{}, busy, of the middle step", phases) if (phases := _phases(anatomy.step)) else None),
        ("overlap", _parts(overlap, timeline.window_ns, steps)),
        ("launches", _launches(anatomy)),
        ("estimates", _estimates(anatomy)),
    )
    return Section(name="idle", title="Busy and idle time of the device", scope=per_step(anatomy), facts=facts)


def ceilings(anatomy: Anatomy) -> Section | None:
    """What the device can do at most, or why that is not known."""
    facts = facts_of(("ceilings", _ceilings(anatomy)), ("reached", _not_reached(anatomy.device)))
    return Section(name="ceilings", title="What the device can do", facts=facts)


def _part(ns: float, whole_ns: float | None) -> Phrase:
    return phrase("{} ({})", Time(ns), Share(ns, whole_ns)) if whole_ns else phrase("{}", Time(ns))


def _named(name: str, ns: float, whole_ns: float | None) -> Phrase:
    return phrase("{} {}", name, _part(ns, whole_ns))


def _phases(step: Step) -> Phrase | None:
    """The time of each phase in the middle step."""
    phases = (("forward", step.forward_ns), ("backward", step.backward_ns), ("optimizer", step.optimizer_ns),
              ("prefill", step.prefill_ns), ("decoding", step.decoding_ns))  # fmt: skip
    return joined(_named(name, ns, step.wall_ns) for name, ns in phases if ns is not None)


def _parts(parts: Iterable[tuple[str, int | None]], whole_ns: int, steps: float) -> Phrase | None:
    """Each part that is more than nothing, by name, in a step of the mean."""
    return joined(_named(name, ns / steps, whole_ns / steps) for name, ns in parts if ns)


def _edges(anatomy: Anatomy) -> Phrase | None:
    """The idle time before the first and after the last device work, where it is much of all of it."""
    timeline = anatomy.timeline
    edges = _edges_ns(timeline)
    if not edges or edges < _SAID * timeline.window_ns:
        return None
    part = Share(edges, timeline.window_ns)
    return phrase("{} of the window lies before the first or after the last device work", part)


def _edges_ns(timeline: Timeline) -> int:
    return 0 if timeline.inner_idle_ns is None else timeline.idle_ns - timeline.inner_idle_ns


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


def _framework(step: Step) -> Phrase | None:
    """On the CPU what is left of the step beside operators and, where that could be told, the profiler."""
    if step.framework_ns is None:
        return None
    return phrase("{}: dispatch, autograd, Python", _part(step.framework_ns, step.wall_ns))


def _profiler(step: Step) -> Phrase | None:
    """What is taken for the profiler's own time, or why that cannot be told."""
    if step.framework_ns is not None and step.profiler_ns is not None:
        own = _part(step.profiler_ns, step.wall_ns)
        return phrase("{}: an estimate of its own time outside operators, not in framework", own)
    if step.wall_ns is None or step.profiler_ns is not None:
        return None
    inside = "in framework" if step.framework_ns is not None else ""
    why = None
    if step.unprofiled_wall_ns is not None:
        one = step.unprofiled_count in (None, 1)
        why = f"{'one plain step cannot tell the difference' if one else 'no difference that can be told from noise'}"
    return joined((inside, why), ": ")


def _spread(anatomy: Anatomy) -> Phrase | None:
    """How many steps there are, which of them is shown, and how far they lie apart."""
    step, ranks = anatomy.step, len(anatomy.ranks)
    plain = step.unprofiled_count or 0
    if step.count < 2 and plain < 2:
        return None
    of = phrase(" of {}", Count(ranks, "rank")) if ranks > 1 else ""
    parts = [
        phrase("median of {} plain{}", Count(plain), _span(step.unprofiled_wall_min_ns, step.unprofiled_wall_max_ns))
        if plain > 1 else None,
        phrase("the middle one of {} profiled{}{}", Count(step.count), of, _span(step.wall_min_ns, step.wall_max_ns))
        if step.count > 1 else "1 profiled",
    ]  # fmt: skip
    return joined(parts)


def _span(low: int | None, high: int | None) -> Phrase | str:
    """From the shortest to the longest, in brackets."""
    if low is None or high is None or low == high:
        return ""
    return phrase(" ({} to {})", Time(low), Time(high))


def _busy(anatomy: Anatomy) -> Phrase | None:
    """Busy, idle and exposed time of an accelerator, as shares of the window of all steps."""
    timeline = anatomy.timeline
    if anatomy.environment.device_kind == "cpu" or not timeline.window_ns:
        return None
    host, edges = timeline.host_idle_ns or 0, _edges_ns(timeline)
    bound: Phrase | str = phrase(" (host-bound {})", Share(host, timeline.window_ns)) if host else ""
    if 2 * edges > timeline.idle_ns:
        bound = phrase(" ({} before its first or after its last work)", Share(edges, timeline.window_ns))
    parts: list[Phrase] = [
        phrase("{}", Share(timeline.busy_ns, timeline.window_ns)),
        phrase("idle {}{}", Share(timeline.idle_ns, timeline.window_ns), bound),
    ]
    if (timeline.outside_ns or 0) >= _SAID * timeline.window_ns:
        parts.append(phrase("other steps' work {}", Share(timeline.outside_ns, timeline.window_ns)))
    if (timeline.exposed_communication_ns or 0) >= _SAID * timeline.window_ns:
        exposed = Share(timeline.exposed_communication_ns, timeline.window_ns)
        parts.append(phrase("exposed communication {}", exposed))
    return joined(parts)


def _launches(anatomy: Anatomy) -> Phrase | None:
    """How many kernels the host launched, what that cost it, and how many were hardly worth it."""
    launching, steps = anatomy.timeline.launching, steps_of(anatomy)
    if launching is None or not launching.calls:
        return None
    mean_ns = launching.delay_ns // launching.delayed if launching.delayed else None
    tiny = phrase(
        "{} of the kernels below {} take {} of their time",
        Share(launching.tiny_kernels, launching.kernels),
        Time(launching.tiny_below_ns),
        Share(launching.tiny_kernel_ns, launching.kernel_ns),
    )
    number: Quantity = calls_a_step(launching.calls, steps)
    return joined(
        (
            phrase("{} in {} of the host", number, Time(launching.call_ns / steps)),
            None if mean_ns is None else phrase("mean delay {}", Time(mean_ns)),
            tiny if launching.kernels else None,
        )
    )


def _estimates(anatomy: Anatomy) -> Phrase | None:
    """Kineto's estimates of how full the device was, and the time on tensor cores by kernel names."""
    device, launching = anatomy.device, anatomy.timeline.launching
    fractions = (("SM efficiency", device.sm_efficiency), ("occupancy", device.occupancy))
    tensor = None
    if device.tensor_core_ns is not None and launching is not None and launching.kernel_ns:
        tensor = phrase("tensor cores {} of kernel time", Share(device.tensor_core_ns, launching.kernel_ns))
    return joined((*(phrase("{} {}", name, Share(part, 1)) for name, part in fractions if part is not None), tensor))


def _ceilings(anatomy: Anatomy) -> str | Phrase | None:
    """The peaks that the trace's work is held against, and where they are from."""
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


def _reached(device: DeviceFigures) -> Phrase | None:
    """The shares of the peak that contractions reach over the step, and of how much of their time that speaks."""
    if device.mfu is None:
        return None
    lower_bound = device.mfu_covered not in (None, 1)
    sign, peak = "≥ " if lower_bound else "", f" of the {device.mfu_dtype} peak" if device.mfu_dtype else ""
    reached = (("MFU", device.mfu), ("HFU", device.hfu))
    shares = joined(phrase("{} {}{}", name, sign, Share(part, 1)) for name, part in reached if part is not None)
    known = phrase(", over {} of the contractions' time", Share(device.mfu_covered, 1)) if lower_bound else ""
    return phrase("{}{}{}", shares or "", peak, known)


def _not_reached(device: DeviceFigures) -> Phrase | None:
    """Why there is no such share."""
    covered = device.mfu_covered
    if device.mfu is not None or covered is None or covered >= COVERED_LEAST or not device.peak_flops_per_second:
        return None
    return phrase("no MFU: FLOPs are known of {} of the contractions' time", Share(covered, 1))
