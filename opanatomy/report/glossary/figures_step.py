"""The figures of one step worked: each as a quotient or a sum of what the JSON report has, every digit of it."""

from __future__ import annotations

from collections.abc import Iterator

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report.costs import costs_of
from opanatomy.report.scope import calls_a_step, steps_of, steps_of_window
from opanatomy.report.section import Change, Count, Phrase, Quantity, Rate, Share, Time, joined, phrase


def quotient(what: str, part: float | None, name: str, whole: float | None) -> Phrase | None:
    """`idle 12 ns / window 40 ns = 30.0 %`; `None` where one is not known or the whole is nothing."""
    if part is None or not whole:
        return None
    return phrase("{} {} / {} {} = {}", what, nanoseconds(part), name, nanoseconds(whole), Share(part, whole))


def a_step(amount: Phrase, steps: float, result: Quantity) -> Phrase:
    """`12 ns / 3 steps = 4 ns`: a sum over all steps as the page has it, of one step."""
    many = f"{steps:,.6g}"
    return phrase("{} = {}", amount, result) if steps == 1 else phrase("{} / {} steps = {}", amount, many, result)


def nanoseconds(ns: float) -> Phrase:
    """A time with every digit."""
    return phrase("{} ns", Count(round(ns)))


def step(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The step with and without the profiler, and the samples a second."""
    step = anatomy.step
    wall, plain = step.wall_ns, step.unprofiled_wall_ns
    if plain is not None:
        yield phrase("plain {} = {}, the mean of {}", nanoseconds(plain), Time(plain),
                     Count(step.unprofiled_count, "step"))  # fmt: skip
    if wall is not None:
        yield phrase("profiled {} = {}, of {}", nanoseconds(wall), Time(wall), Count(step.count, "step"))
    if wall is not None and plain:
        yield phrase("profiled over plain: {}", Change(wall, plain))
    if step.samples_per_second is not None and anatomy.workload.batch and (plain or wall):
        together = anatomy.workload.samples_together or anatomy.workload.batch
        yield phrase("{} / {} = {}", Count(together, "sample"), nanoseconds(plain or wall or 0),
                     Rate(step.samples_per_second, "samples"))  # fmt: skip


def phases(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Each phase over the step."""
    step = anatomy.step
    for name in ("forward", "backward", "optimizer", "prefill", "decoding"):
        yield quotient(name, getattr(step, f"{name}_ns"), "step", step.wall_ns)


def framework(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """On the CPU what operators and profiler leave of the step."""
    step = anatomy.step
    if step.framework_ns is None or step.wall_ns is None:
        return
    profiler = step.profiler_ns or 0
    if step.busy_ns is not None and step.busy_ns + step.framework_ns + profiler == step.wall_ns:
        less = phrase(" - profiler {}", nanoseconds(profiler)) if profiler else ""
        yield phrase("step {} - operators {}{} = {}", nanoseconds(step.wall_ns), nanoseconds(step.busy_ns), less,
                     nanoseconds(step.framework_ns))  # fmt: skip
    yield quotient("framework", step.framework_ns, "step", step.wall_ns)


def profiler(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The profiler's share of the step."""
    if anatomy.step.framework_ns is not None:
        yield quotient("profiler", anatomy.step.profiler_ns, "step", anatomy.step.wall_ns)


def window(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The window over its steps."""
    if ns := anatomy.timeline.window_ns:
        yield a_step(nanoseconds(ns), steps_of_window(anatomy), Time(ns / steps_of_window(anatomy)))


def of_step(what: str, ns: float | None, anatomy: Anatomy) -> Phrase | None:
    """A part of the time that shares of the step are of."""
    if anatomy.environment.device_kind == "cpu":
        return None
    return quotient(what, ns, _whole_of(anatomy), costs_of(anatomy).whole_ns)


def _whole_of(anatomy: Anatomy) -> str:
    if costs_of(anatomy).of_trace:
        return "first to last device work"
    return "window without other steps' work" if anatomy.timeline.outside_ns else "window"


def own_time(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The window without the work of other steps, or without what lies before and after all work."""
    timeline = anatomy.timeline
    if anatomy.environment.device_kind == "cpu" or not timeline.window_ns:
        return
    whole = nanoseconds(costs_of(anatomy).whole_ns)
    yield phrase("window {} - other steps' work {} = {}", nanoseconds(timeline.window_ns),
                 nanoseconds(timeline.outside_ns or 0), whole)  # fmt: skip


def busy(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Busy over the step."""
    yield of_step("busy", anatomy.timeline.busy_ns, anatomy)


def idle(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Idle over the step, and by cause."""
    timeline, costs = anatomy.timeline, costs_of(anatomy)
    if anatomy.environment.device_kind == "cpu":
        return
    yield of_step("idle", costs.idle_ns, anatomy)
    causes = (("host-bound", timeline.host_idle_ns), ("stream waits", timeline.stream_idle_ns),
              ("other", timeline.other_idle_ns))  # fmt: skip
    parts = joined((phrase("{} {}", cause, nanoseconds(ns)) for cause, ns in causes if ns is not None), by=" + ")
    if parts is not None and timeline.idle_ns == costs.idle_ns:
        yield phrase("the {} are {}", nanoseconds(timeline.idle_ns), parts)


def host_bound(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Host-bound idle time over the step."""
    yield of_step("host-bound", anatomy.timeline.host_idle_ns, anatomy)


def stream_waits(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Stream waits over the step."""
    yield of_step("stream waits", anatomy.timeline.stream_idle_ns, anatomy)


def other_idle(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Other idle time over the step."""
    yield of_step("other", anatomy.timeline.other_idle_ns, anatomy)


def outside(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """What the device did of other steps' work alone, over the window."""
    yield quotient("other steps' work", anatomy.timeline.outside_ns, "window", anatomy.timeline.window_ns)


def computing(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """What of the step the device computes or copies: busy without exposed communication."""
    timeline = anatomy.timeline
    yield of_step("busy without exposed", timeline.busy_ns - (timeline.exposed_communication_ns or 0), anatomy)


def exposed(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Exposed communication over the step."""
    yield of_step("exposed", anatomy.timeline.exposed_communication_ns, anatomy)


def waiting_of_step(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """What of the step waits for other ranks, by the steps in which that is known."""
    yield of_step("waiting", costs_of(anatomy).waiting_ns, anatomy)


def communication(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Communication over the step."""
    yield of_step("communication", anatomy.timeline.communication_ns, anatomy)


def exposed_memcpy(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Exposed copies over the step."""
    yield of_step("exposed memcpy", anatomy.timeline.exposed_memcpy_ns, anatomy)


def kernel_time(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The sum of the device work of a step."""
    if anatomy.step.kernel_time_ns is not None:
        yield phrase("{} = {} a step", nanoseconds(anatomy.step.kernel_time_ns), Time(anatomy.step.kernel_time_ns))


def launches(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The launches of a step and what they take of the host, the mean delay, and the tiny kernels."""
    launching, steps = anatomy.timeline.launching, steps_of(anatomy)
    if launching is None:
        return
    if launching.calls:
        number = phrase("launches: {}", Count(launching.calls))
        yield number if steps == 1 else a_step(number, steps, calls_a_step(launching.calls, steps))
        yield a_step(phrase("on the host: {}", nanoseconds(launching.call_ns)), steps, Time(launching.call_ns / steps))
    if launching.delayed:
        yield phrase("mean delay: {} / {} = {}", nanoseconds(launching.delay_ns), Count(launching.delayed, "launch"),
                     Time(launching.delay_ns // launching.delayed))  # fmt: skip
    if launching.kernels:
        yield phrase("tiny: {} of {} = {}", Count(launching.tiny_kernels), Count(launching.kernels, "kernel"),
                     Share(launching.tiny_kernels, launching.kernels))  # fmt: skip
    yield quotient("their time", launching.tiny_kernel_ns, "kernels", launching.kernel_ns)


def tensor_cores(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The time on tensor cores over the time of kernels."""
    launching = anatomy.timeline.launching
    if launching is not None:
        yield quotient("tensor cores", anatomy.device.tensor_core_ns, "kernels", launching.kernel_ns)
        if anatomy.device.tensor_core_ns is not None and anatomy.device.tensor_core_unknown_ns:
            yield quotient("not known", anatomy.device.tensor_core_unknown_ns, "kernels", launching.kernel_ns)


def estimates(anatomy: Anatomy, name: str) -> Iterator[Phrase | None]:
    """An estimate of Kineto's as a fraction with all its digits."""
    value: float | None = getattr(anatomy.device, name)
    if value is not None:
        yield phrase("device.{} {} = {}", name, f"{value:.6g}", Share(value, 1))


def mfu(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """MFU as FLOPs over what the peak could do in the steps."""
    yield _utilization(anatomy, recompute=False)


def hfu(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """HFU as FLOPs over what the peak could do in the steps."""
    yield _utilization(anatomy, recompute=True)


def _utilization(anatomy: Anatomy, *, recompute: bool) -> Phrase | None:
    device, step = anatomy.device, anatomy.step
    share = device.hfu if recompute else device.mfu
    wall, peak = step.unprofiled_wall_ns or step.wall_ns, device.peak_flops_per_second.get(_peak_type(anatomy) or "")
    if share is None or not wall:
        return None
    if peak is None:
        return phrase("{} of the {} peak", Share(share, 1), device.mfu_dtype or "device's")
    flops = sum(
        row.flops or 0
        for row in anatomy.operators
        if row.operator_class is OperatorClass.TENSOR_CONTRACTION and (recompute or row.phase is not Phase.RECOMPUTE)
    )
    devices = max(len([row for row in anatomy.timeline.devices if row.kernel_time_ns]), 1)
    third = " / 3" if device.mfu_dtype == "3 x tf32" else ""
    many = phrase(" x {}", Count(devices, "device")) if devices > 1 else ""
    return phrase(
        "{} FLOP of contractions{} / ({} x {} {} x {} FLOP/s{} of {}{}) = {}",
        Count(flops), "" if recompute else " without recompute", Count(step.count, "step"), nanoseconds(wall),
        "plain" if step.unprofiled_wall_ns else "profiled", f"{peak:,.0f}", third, device.mfu_dtype or "", many,
        Share(share, 1),
    )  # fmt: skip


def _peak_type(anatomy: Anatomy) -> str | None:
    """The name in the table of peaks of the data type that MFU is a share of."""
    name = anatomy.device.mfu_dtype
    return "tf32" if name == "3 x tf32" else name


def ceilings(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Every ceiling in full, and where it is from."""
    device = anatomy.device
    if device.source is None:
        yield phrase("none: {}", device.why_no_ceilings or "the report does not say why")
        return
    for name, peak in device.peak_flops_per_second.items():
        yield phrase("products of {}: {} FLOP/s", name, f"{peak:,.0f}")
    for name, peak in device.vector_flops_per_second.items():
        yield phrase("all other arithmetic of {}: {} FLOP/s", name, f"{peak:,.0f}")
    if device.bandwidth_bytes_per_second is not None:
        yield phrase("bandwidth: {} B/s", f"{device.bandwidth_bytes_per_second:,.0f}")
    yield phrase("by {}", device.source)
