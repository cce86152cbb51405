"""One step: its wall time, phases, framework, busy and idle time, launches, and what of the ceilings it reached."""

from __future__ import annotations

from collections.abc import Iterable

from opanatomy.records.anatomy import COVERED_LEAST, Anatomy, Step
from opanatomy.records.device import DeviceFigures
from opanatomy.records.taxonomy import PEAK_OF_COMPUTE_TYPE, OperatorClass
from opanatomy.records.timeline import Timeline
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


def one_step(anatomy: Anatomy) -> Section:
    """The figures of one step."""
    step, timeline = anatomy.step, anatomy.timeline
    phases = (("forward", step.forward_ns), ("backward", step.backward_ns), ("optimizer", step.optimizer_ns),
              ("prefill", step.prefill_ns), ("decoding", step.decoding_ns))  # fmt: skip
    overlap = (("communication", timeline.communication_ns), ("of it exposed", timeline.exposed_communication_ns),
               ("exposed memcpy", timeline.exposed_memcpy_ns))  # fmt: skip
    facts = facts_of(
        ("step", joined((_wall(step), _samples(step)))),
        ("steps", _spread(step)),
        ("phases", joined(_named(name, ns, step.wall_ns) for name, ns in phases if ns is not None)),
        ("framework", _framework(step)),
        ("profiler", _profiler(step)),
        ("device", _busy(anatomy)),
        ("overlap", _parts(overlap, timeline.window_ns)),
        ("idle", _idle(timeline)),
        ("launches", _launches(timeline)),
        ("estimates", _estimates(anatomy)),
        ("ceilings", _ceilings(anatomy)),
        ("reached", _reached(anatomy.device)),
    )
    return Section(name="step", title="One step", facts=facts)


def _part(ns: int, whole_ns: int | None) -> Phrase:
    return phrase("{} ({})", Time(ns), Share(ns, whole_ns)) if whole_ns else phrase("{}", Time(ns))


def _named(name: str, ns: int, whole_ns: int | None) -> Phrase:
    return phrase("{} {}", name, _part(ns, whole_ns))


def _parts(parts: Iterable[tuple[str, int | None]], whole_ns: int) -> Phrase | None:
    """Each part that is more than nothing, by name."""
    return joined(_named(name, ns, whole_ns) for name, ns in parts if ns)


def _wall(step: Step) -> Phrase | None:
    """The step with and without the profiler, and the difference where it is one of the profiler."""
    if step.wall_ns is None or step.unprofiled_wall_ns is None:
        if step.unprofiled_wall_ns is not None:
            return phrase("{} plain", Time(step.unprofiled_wall_ns))
        return None if step.wall_ns is None else phrase("{} profiled", Time(step.wall_ns))
    both = phrase("{} plain, {} profiled", Time(step.unprofiled_wall_ns), Time(step.wall_ns))
    if step.profiler_ns is not None:
        return phrase("{} ({})", both, Change(step.wall_ns, step.unprofiled_wall_ns))
    if step.unprofiled_count in (None, 1):
        return phrase("{} (one plain step cannot tell the difference)", both)
    return phrase("{} (no difference that can be told from noise)", both)


def _samples(step: Step) -> Phrase | None:
    return None if step.samples_per_second is None else phrase("{}", Rate(step.samples_per_second, "samples"))


def _framework(step: Step) -> Phrase | None:
    """On the CPU what is left of the step beside operators and, where that could be told, the profiler."""
    if step.framework_ns is None:
        return None
    what = "dispatch, autograd, Python"
    if step.profiler_ns is None:
        what += " and what the profiler itself costs"
    return phrase("{}: {}", _part(step.framework_ns, step.wall_ns), what)


def _profiler(step: Step) -> Phrase | None:
    """What is taken for the profiler's own time on the CPU."""
    if step.framework_ns is None or step.profiler_ns is None:
        return None
    own = _part(step.profiler_ns, step.wall_ns)
    return phrase("{}: an estimate of its own time outside operators, not in framework", own)


def _spread(step: Step) -> Phrase | None:
    """How many steps there are, and how far they lie apart."""
    plain = step.unprofiled_count or 0
    if step.count < 2 and plain < 2:
        return None
    spans = (("plain", step.unprofiled_wall_min_ns, step.unprofiled_wall_max_ns),
             ("profiled", step.wall_min_ns, step.wall_max_ns))  # fmt: skip
    ranges = (
        phrase("{} {} to {}", name, Time(low), Time(high))
        for name, low, high in spans
        if low is not None and high is not None and low != high
    )
    profiled = (
        phrase("{} profiled, figures are of the middle one", Count(step.count)) if step.count > 1 else "1 profiled"
    )
    return joined((phrase("{} plain", Count(plain)) if plain > 1 else None, profiled, *ranges))


def _busy(anatomy: Anatomy) -> Phrase | None:
    """Busy and idle time of an accelerator in a step, or in the whole window where no step is known."""
    step, timeline = anatomy.step, anatomy.timeline
    busy, wall = (step.busy_ns, step.wall_ns) if step.wall_ns else (timeline.busy_ns, timeline.window_ns)
    if anatomy.environment.device_kind == "cpu" or busy is None or not wall:
        return None
    kernels = None if step.kernel_time_ns is None else phrase("kernel time {}", Time(step.kernel_time_ns))
    return joined((_named("busy", busy, wall), _named("idle", wall - busy, wall), kernels))


def _idle(timeline: Timeline) -> Phrase | None:
    """What the idle time of the window was spent on."""
    parts = (
        ("host-bound", timeline.host_idle_ns),
        ("stream waits", timeline.stream_idle_ns),
        ("other", timeline.other_idle_ns),
        ("busy with another step's work", timeline.outside_ns),
    )
    return _parts(parts, timeline.window_ns)


def _launches(timeline: Timeline) -> Phrase | None:
    """How many kernels the host launched, what that cost it, and how many were hardly worth it."""
    launching = timeline.launching
    if launching is None or not launching.calls:
        return None
    mean_ns = launching.delay_ns // launching.delayed if launching.delayed else None
    tiny = phrase(
        "{} of the kernels below {} take {} of their time",
        Share(launching.tiny_kernels, launching.kernels),
        Time(launching.tiny_below_ns),
        Share(launching.tiny_kernel_ns, launching.kernel_ns),
    )
    return joined(
        (
            phrase("{} in {} of the host", Count(launching.calls), Time(launching.call_ns)),
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
            f"by {device.source}",
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
    """The shares of the peak that contractions reach over the step, of which peak, and how much of them it covers."""
    covered = device.mfu_covered
    if device.mfu is None:
        if covered is None or covered >= COVERED_LEAST or not device.peak_flops_per_second:
            return None
        return phrase("no MFU: FLOPs are known of {} of the contractions' time", Share(covered, 1))
    lower_bound = covered not in (None, 1)
    sign, peak = "≥ " if lower_bound else "", f" of the {device.mfu_dtype} peak" if device.mfu_dtype else ""
    reached = (("MFU", device.mfu), ("HFU", device.hfu))
    shares = joined(phrase("{} {}{}", name, sign, Share(part, 1)) for name, part in reached if part is not None)
    known = phrase(", over {} of the contractions' time", Share(covered, 1)) if lower_bound else ""
    return phrase("{}{}{}", shares or "", peak, known)
