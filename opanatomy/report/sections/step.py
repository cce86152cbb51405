"""Report one step: its wall time, phases and framework, busy and idle time, and how near it came to the ceilings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import ceil, inf
from statistics import median
from typing import Final

from opanatomy.analysis.costs import Costs, are_by_updates, costs_of, is_whole_trace, steps_of, steps_of_window
from opanatomy.records.anatomy import MIN_COVERED, PYTHON_STACK, Anatomy, IdleRow, Step
from opanatomy.records.patterns import regex
from opanatomy.records.run import DeviceState, Drift, RunClock, SlowStep
from opanatomy.records.taxonomy import CAUSE_LABELS, PEAK_OF_COMPUTE_TYPE, PHASES, IdleCause, OperatorClass
from opanatomy.report.names import printable
from opanatomy.report.section import (
    ByteRate,
    Bytes,
    Change,
    Count,
    Figure,
    FlopRate,
    Flops,
    Page,
    Phrase,
    Quantity,
    Rate,
    Ratio,
    Section,
    Share,
    Time,
    TimeChange,
    calls_of,
    facts_of,
    has_foreign_work,
    joined,
    phrase,
    said,
    scope_per_step,
)

# The step's busy and idle time on the device, its exposed communication, launches, how full the device was.
#
# All shares are of the steps without the time in which the device did the work of other steps alone, as in the
# headline.


#: Idle causes, unknown time and exposed communication are shown from this share of the step on.
_MIN_SHOWN_SHARE: Final = 0.01
#: Maximum number of causes on the first screen, if at least this share of the idle time.
_MAX_NAMED_CAUSES: Final = 2
_MIN_NAMED_SHARE: Final = 0.2
#: What the host did in idle time of each cause, or the device waited for.
_WHILE: Final = {
    IdleCause.PROFILER: "while the profiler writes its records",
    IdleCause.COMPILATION: "while code is compiled",
    IdleCause.INPUT: "while the host loads or copies input",
    IdleCause.ALLOCATOR: "while the host allocates or frees memory",
    IdleCause.SLOW_LAUNCH: "while slow calls launch or load kernels",
    IdleCause.SYNCHRONIZATION: "while the host waits for the device",
    IdleCause.COLLECTIVE: "while the host calls collectives",
    IdleCause.OPERATORS: "while the host runs operators and launches kernels",
    IdleCause.PYTHON: "while the host is between operators, in Python",
    IdleCause.STREAM: "while work waits for another stream",
    IdleCause.DEVICE: "in gaps between kernels already queued",
    IdleCause.UNKNOWN: "at times that the trace does not explain",
}
#: A cause's largest item is named from this share of the cause on.
_MIN_ITEM_SHARE: Final = 0.15
#: Causes that are calls, whose number is worth showing.
_COUNTED_CAUSES: Final = (IdleCause.ALLOCATOR, IdleCause.SLOW_LAUNCH, IdleCause.SYNCHRONIZATION)


def busy(anatomy: Anatomy) -> Phrase | None:
    """Return an accelerator's busy time, exposed communication, and idle time."""
    costs = costs_of(anatomy)
    if anatomy.environment.device_kind == "cpu" or not (anatomy.timeline.window_ns and costs.whole_ns):
        return None
    if not any(row.time_ns for row in anatomy.classes):
        return None
    # The whole of the shares, and its length if that is not the step.
    unprofiled_ns, without = anatomy.step.unprofiled_wall_ns, None
    whole: Phrase | str = "the step" if unprofiled_ns is None else "the profiled step"
    long = Time(costs.whole_ns / steps_of_window(anatomy))
    if costs.of_trace:
        whole = phrase("the {} from the first to the last device work", long)
    elif has_foreign_work(anatomy):
        whole = phrase("the {} excluding other steps' work", long)

    exposed, busy_ns = None, anatomy.timeline.busy_ns
    # The profiler slows the host, so that the device idles more: its work is not longer.
    if unprofiled_ns is not None and (work_ns := busy_ns / steps_of_window(anatomy)) <= unprofiled_ns:
        without = phrase("the same work takes {} of the unprofiled step", Share(work_ns, unprofiled_ns))
    if costs.exposed_ns >= _MIN_SHOWN_SHARE * costs.whole_ns:
        waiting = None
        if costs.waiting_ns:
            waiting = phrase(", including {} waiting for other ranks", Share(costs.waiting_ns, costs.whole_ns))
        exposed = phrase(
            " (compute and copies {}, exposed communication {}{})",
            Share(busy_ns - costs.exposed_ns, costs.whole_ns),
            Share(costs.exposed_ns, costs.whole_ns),
            waiting or "",
        )

    much = [
        row
        for row in costs.causes[:_MAX_NAMED_CAUSES]
        if row.time_ns >= max(_MIN_SHOWN_SHARE * costs.whole_ns, _MIN_NAMED_SHARE * costs.idle_ns)
    ]
    causes = joined(phrase("{} {}", label_of(row), Share(row.time_ns, costs.whole_ns)) for row in much)

    unrecorded = None
    if costs.unrecorded_ns and costs.unrecorded_ns >= _MIN_SHOWN_SHARE * costs.whole_ns:
        why = "the work of some launches is not in the trace"
        if 2 * costs.awaited_ns > costs.unrecorded_ns:
            why = "the host waits for work that is not in the trace"
        unrecorded = phrase("{} not recorded: {}", Share(costs.unrecorded_ns, costs.whole_ns), why)
    of_whole = (
        phrase("{} of {}{}", Share(busy_ns, costs.whole_ns), whole, exposed or ""),
        phrase("idle {}{}", Share(costs.idle_ns, costs.whole_ns), phrase(" ({})", causes) if causes else ""),
        unrecorded,
    )
    return joined((joined(of_whole), without, _around(anatomy)), by="; ")


def _around(anatomy: Anatomy) -> Phrase | None:
    """Return how much of a trace without steps lies before and after all device work."""
    around = anatomy.timeline.around_ns or 0
    if around < _MIN_SHOWN_SHARE * (anatomy.timeline.window_ns + around):
        return None
    return phrase(
        "another {} of the trace lies before the first and after the last device work",
        Time(around / steps_of_window(anatomy)),
    )


def label_of(row: IdleRow) -> str:
    """Return a cause's label in a line."""
    return "recorded Python" if row.name == PYTHON_STACK else label_of_cause(row.cause)


def label_of_cause(cause: IdleCause) -> str:
    """Return a cause's label, regardless of what filled its time."""
    return CAUSE_LABELS[cause]


def idle_description(row: IdleRow, steps: float, whole_ns: float) -> Phrase:
    """Describe what the host did, or the device waited for, in the idle time of a cause, to follow a share.

    Calls are over all `steps`, shares refer to `whole_ns`.
    """
    words = _WHILE[row.cause]
    calls: Count | Phrase = Count(row.events or 0, "call")
    if steps > 1:
        calls = phrase("{} in {}", calls, Count(round(steps), "step"))
    if row.cause is IdleCause.PROFILER and row.name == PYTHON_STACK:
        return phrase("while the profiler records Python's stack ({}, up to 1 us each)", calls)
    if row.name is None or (row.name_ns or 0) < _MIN_ITEM_SHARE * row.time_ns:
        return phrase("{}", words)
    name = said(row.name)
    if 2 * (row.name_ns or 0) < row.time_ns:
        return phrase("{} ({} {})", words, name, Share(row.name_ns, whole_ns))
    if row.cause is IdleCause.SLOW_LAUNCH and row.events == 1:
        return phrase("while one slow call launches or loads a kernel ({}, {})", name, Time(row.name_ns or 0))
    if row.cause in _COUNTED_CAUSES:
        return phrase("{} ({}, {})", words, name, calls)
    return phrase("{} ({} {})", words, "all in" if row.name_ns == row.time_ns else "mostly in", name)


def idle(anatomy: Anatomy) -> Section | None:
    """Return for an accelerator: busy and idle time by cause, overlap, launches, occupancy."""
    if anatomy.environment.device_kind == "cpu":
        return None
    timeline, device, costs, steps = anatomy.timeline, anatomy.device, costs_of(anatomy), steps_of_window(anatomy)
    overlap = (
        ("communication", timeline.communication_ns),
        ("exposed communication", timeline.exposed_communication_ns),
        ("exposed memcpy", timeline.exposed_memcpy_ns),
    )
    kinds = (
        ("host-bound", timeline.host_idle_ns),
        ("stream waits", timeline.stream_idle_ns),
        ("other", timeline.other_idle_ns),
    )
    whole = (("busy", timeline.busy_ns), ("idle", costs.idle_ns), ("not recorded", costs.unrecorded_ns))
    causes = (
        (
            label_of(row),
            phrase(
                "{} {}",
                part_of(row.time_ns / steps, costs.whole_ns / steps),
                idle_description(row, steps, costs.whole_ns),
            ),
        )
        for row in costs.causes
    )
    drained = None
    if timeline.drained_ns:
        text = "{} of the idle time is in gaps that begin while the host waits for the device"
        drained = phrase(text, Share(timeline.drained_ns, costs.idle_ns))

    # Kineto's estimates of how full the device was, and the time on tensor cores by kernel names.
    estimates = [
        phrase("{} {}", name, Share(part, 1))
        for name, part in (("SM efficiency", device.sm_efficiency), ("occupancy", device.occupancy))
        if part is not None
    ]
    kernel_ns = 0 if timeline.launching is None else timeline.launching.kernel_ns
    if device.tensor_core_ns is not None and kernel_ns:
        unknown_ns = device.tensor_core_unknown_ns
        unknown = phrase(" ({} unknown)", Share(unknown_ns, kernel_ns)) if unknown_ns else ""
        estimates.append(phrase("tensor cores {} of kernel time{}", Share(device.tensor_core_ns, kernel_ns), unknown))
    facts = facts_of(
        ("window", _window(anatomy, costs)),
        ("device", _parts(anatomy, whole, costs)),
        ("idle", _parts(anatomy, kinds, costs)),
        *causes,
        ("drained", drained),
        ("phases", phrase("busy time: {}", phases) if (phases := phases_of(anatomy.step)) else None),
        ("overlap", _parts(anatomy, overlap, costs)),
        ("launches", _launches(anatomy)),
        ("estimates", joined(estimates)),
    )
    return Section(title="Busy and idle time of the device", scope=scope_per_step(anatomy), facts=facts)


def _window(anatomy: Anatomy, costs: Costs) -> Phrase | None:
    """Return the length of a step, and the part that is not its own."""
    timeline, steps = anatomy.timeline, steps_of_window(anatomy)
    if not timeline.window_ns:
        return None
    window = phrase("{}", Time(timeline.window_ns / steps))
    if costs.of_trace:
        return joined((phrase("{} from the first to the last device work", window), _around(anatomy)))
    if not has_foreign_work(anatomy):
        return window
    other, own = (timeline.outside_ns or 0) / steps, Time(costs.whole_ns / steps)
    return phrase("{}, including {} of other steps' work; {} without that work", window, Time(other), own)


def _parts(anatomy: Anatomy, parts: Iterable[tuple[str, float | None]], costs: Costs) -> Phrase | None:
    """Return each nonzero part by name, per mean step."""
    steps = steps_of_window(anatomy)
    return joined(named(name, ns / steps, costs.whole_ns / steps) for name, ns in parts if ns)


def phases_of(step: Step) -> Phrase | None:
    """Return the time of each phase in the mean step."""
    return joined(named(phase.value, step.phase_ns[phase], step.wall_ns) for phase in PHASES if phase in step.phase_ns)


def part_of(ns: float, whole_ns: float | None) -> Phrase:
    """Return a time and its share of the whole, if that is known."""
    return phrase("{} ({})", Time(ns), Share(ns, whole_ns)) if whole_ns else phrase("{}", Time(ns))


def named(name: str, ns: float, whole_ns: float | None) -> Phrase:
    """Return a part by name: `forward 12.3 ms (40.1 %)`."""
    return phrase("{} {}", name, part_of(ns, whole_ns))


def _launches(anatomy: Anatomy) -> Phrase | None:
    """Return the number of kernel launches, their host cost, and the number of tiny kernels."""
    launching, steps = anatomy.timeline.launching, steps_of(anatomy)
    if launching is None or not launching.calls:
        return None
    mean_ns = launching.delay_ns // launching.delayed if launching.delayed else None
    tiny = phrase(
        "{} of the kernels are shorter than {} and take {} of the kernel time",
        Share(launching.tiny_kernels, launching.kernels),
        Time(launching.tiny_below_ns),
        Share(launching.tiny_kernel_ns, launching.kernel_ns),
    )
    number: Quantity = calls_of(launching.calls / steps)
    return joined(
        (
            phrase("{} taking {} on the host", number, Time(launching.call_ns / steps)),
            None if mean_ns is None else phrase("mean delay {}", Time(mean_ns)),
            tiny if launching.kernels else None,
        )
    )


#: Times of excluded steps are written out up to this number.
_MAX_LEFT_OUT_TIMES: Final = 2
#: A data type other than the main one is named from this part of the FLOPs on.
_OTHER_TYPES: Final = 0.01
#: The URL of a data sheet, which is in the JSON report.
_ADDRESS: Final = regex(r",? ?https?://[^\s;]+")


def one_step(anatomy: Anatomy, page: Page) -> Section:
    """Return the wall time of a step and of its phases, and its busy part on the device.

    On a first screen the step time is in the first line, which may lack room for samples per second.
    """
    step, environment = anatomy.step, anatomy.environment
    samples = None
    if step.samples_per_second is not None:
        samples = phrase("{}", Rate(step.samples_per_second, "samples"))
        if (over := rate_of_run(anatomy)) is not None:
            samples = phrase("{}, {} over the run", samples, Rate(over, "samples"))

    # On the CPU: the step's time outside operators and, if that is known, outside the profiler.
    framework = None
    if step.framework_ns is not None and not environment.host_only:
        inside = " (part of the phases)" if phases_of(step) else ""
        loading_ns = costs_of(anatomy).input_ns / steps_of_window(anatomy)
        waiting = phrase("; {} is waiting for input", Time(loading_ns)) if loading_ns else ""
        outside = part_of(step.framework_ns, step.wall_ns)
        framework = phrase("{}: dispatch, autograd, Python{}{}", outside, inside, waiting)
    facts = facts_of(
        ("step", None if page.brief and samples is None else joined((_wall(anatomy), samples))),
        ("steps", _spread(anatomy)),
        ("torch.compile", _compiling(anatomy)),
        ("whole run", _whole_run(anatomy)),
        ("clock", device_state(anatomy.device_state)),
        ("phases", phases_of(step) if environment.device_kind == "cpu" else None),
        ("framework", framework),
        ("profiler", None if environment.host_only else _profiler(step)),
        ("busy", busy(anatomy)),
        ("reached", _reached(anatomy)),
        ("attention", within_windows(anatomy)),
    )
    return Section(title="One step", facts=facts)


def _compiling(anatomy: Anatomy) -> Phrase | None:
    """Return the compile time, the saving per step, and the number of steps until it pays off."""
    made = anatomy.compilation
    if made is None:
        return None
    once = phrase("{} to compile, once", Time(made.compiling_ns))
    if not made.uncompiled_step_ns:
        return joined((once, "an uncompiled step does not fit into memory"), by="; ")
    plain, compiled = median(made.uncompiled_step_ns), median(made.compiled_step_ns)
    beside = phrase("a compiled step takes {}, an uncompiled one {}", Time(compiled), Time(plain))
    if min(made.uncompiled_step_ns) > max(made.compiled_step_ns):
        pays = phrase("pays off after {}", Count(ceil(made.compiling_ns / (plain - compiled)), "step"))
    else:
        pays = phrase("never pays off" if plain <= compiled else "no clear difference")
    return joined((once, beside, pays), by="; ")


#: A part of the run is named on the first screen from this part of its time on.
_LEAST_OF_RUN: Final = 0.01


def _whole_run(anatomy: Anatomy) -> Phrase | None:
    """Return findings about the run around the recorded steps: waits, evaluations, slow steps, compilations."""
    run = anatomy.run
    if run is None:
        return None
    times = (
        ("evaluation", run.evaluating_ns, run.evaluations),
        ("checkpoints", run.checkpointing_ns, run.checkpoints),
        ("compiling", run.compiling_ns, 0),
        ("garbage collection", run.collecting_ns, 0),
    )
    events = (
        (run.slow_steps, "slow step"),
        (sum(event.count for event in run.graph_breaks), "graph break"),
        (sum(event.count for event in run.recompilations), "recompilation"),
    )
    shown = [
        phrase("{}: mean {}", Count(run.steps, "unrecorded step"), Time(run.wall_ns / run.steps)),
        phrase("median {}", Time(run.median_ns)),
        phrase("waiting for input {}", Share(run.input_ns, run.wall_ns)),
    ]
    for name, ns, count in times:
        if ns >= _LEAST_OF_RUN * run.wall_ns:
            each = phrase(" ({}, {} each)", Count(count), Time(ns / count)) if count else ""
            shown.append(phrase("{} {}{}", name, Share(ns, run.wall_ns), each))
    return joined((*shown, *(phrase("{}", Count(number, what)) for number, what in events if number)))


def whole_run(anatomy: Anatomy) -> Section | None:
    """Return the run over time: its start, drift and growth, slow steps, and torch.compile's activity."""
    run, trends = anatomy.run, anatomy.trends
    if run is None:
        return None
    rate = None if trends is None else trends.samples_per_second
    growth = [
        phrase(
            "{} grows by {} per step, from {} to {} in {}{}",
            _KINDS.get(grown.kind, grown.kind),
            Bytes(grown.bytes_per_step),
            Bytes(grown.first_bytes),
            Bytes(grown.last_bytes),
            Count(grown.steps, "step"),
            "" if grown.confirmed else "; only a trend so far",
        )
        for grown in (() if trends is None else trends.growth)
    ]
    varies = None
    if trends is not None and trends.peak is not None:
        varies = phrase(
            "the peak rises from {} to {}, but the memory that remains after a step does not ({}): this is variation,"
            " not a leak",
            Bytes(trends.peak.first_bytes),
            Bytes(trends.peak.last_bytes),
            Bytes(trends.peak.base_bytes),
        )
    sizes = [] if run.series is None else [size for size in run.series.host_bytes if size]
    host_memory = phrase("{} at the end, {} at most", Bytes(sizes[-1]), Bytes(max(sizes))) if sizes else None
    began = "ended {} after torch was imported or the recorder started"
    slow = ((f"step {step.number}", _slow(step, run.median_ns)) for step in run.slow)
    events = (
        (word, phrase("{} {}: {}", printable(event.place), Count(event.count, "time"), printable(event.reason)))
        for word, events in (("graph break", run.graph_breaks), ("recompiled", run.recompilations))
        for event in events
    )
    facts = facts_of(
        ("whole run", joined((_whole_run(anatomy), None if rate is None else phrase("{}", Rate(rate, "samples"))))),
        ("host's time", _host_time(run)),
        ("first step", None if run.start is None else _apart(began, run.start)),
        ("at the end", None if run.end is None else _apart("{} after the last step", run.end)),
        ("drift", None if trends is None or trends.drift is None else _drift(trends.drift)),
        *(("memory", grown) for grown in growth),
        ("memory", varies),
        ("host memory", host_memory),
        ("device", device_state(run.device)),
        *slow,
        *events,
    )
    return Section(title="The whole run", facts=facts)


def _host_time(run: RunClock) -> Phrase | None:
    """Return the host time in the steps by parts, which sum to it."""
    if run.series is None:
        return None
    parts = {
        "waiting for input": run.input_ns,
        "evaluation": run.evaluating_ns,
        "checkpoints": run.checkpointing_ns,
        "compiling": run.compiling_ns,
        "backward": sum(run.series.backward_ns),
        "optimizer": sum(run.series.optimizer_ns),
    }
    rest = run.wall_ns - sum(parts.values())
    if rest < 0:  # what compiled inside of backward is in both
        parts["backward"], rest = max(parts["backward"] + rest, 0), 0
    shown = [(name, ns) for name, ns in parts.items() if ns] + [("forward, loss and everything else", rest)]
    shares = joined(phrase("{} {}", name, Share(ns, run.wall_ns)) for name, ns in shown)
    return phrase("{} in total: {}", Time(run.wall_ns), shares or "")


#: Parts of a step that are shown by name, in this order.
_OF_STEP: Final = (
    ("waiting for input", "input_ns"),
    ("evaluation", "evaluating_ns"),
    ("saving", "checkpointing_ns"),
    ("compiling", "compiling_ns"),
    ("garbage collection", "collecting_ns"),
)
_OF_DRIFT: Final = (
    ("waiting for input", "input"),
    ("backward", "backward"),
    ("optimizer", "optimizer"),
    ("garbage collection", "collecting"),
    ("the rest", "rest"),
)
_KINDS: Final = {"allocated": "allocated memory", "reserved": "reserved memory", "host": "host memory"}


def _apart(said: str, step: SlowStep) -> Phrase | None:
    """Describe the duration of something that is not a step, with its known parts."""
    parts = joined(phrase("{} {}", name, Time(ns)) for name, field in _OF_STEP if (ns := getattr(step, field)))
    return phrase("{}{}", phrase(said, Time(step.wall_ns)), phrase(": {}", parts) if parts else "")


def _drift(drift: Drift) -> Phrase:
    """Return how much longer the last steps are than the first, and in which part of them."""
    change = drift.last_ns - drift.first_ns
    parts = joined(
        phrase("{} {}", name, TimeChange(ns))
        for name, field in _OF_DRIFT
        if abs(ns := drift.parts.get(field, 0)) >= _MUCH_OF_DRIFT * abs(change)
    )
    return phrase(
        "the median step time changes from {} in the first tenth of the run to {} in the last tenth ({});"
        " change in host time: {}",
        Time(drift.first_ns),
        Time(drift.last_ns),
        Change(drift.last_ns, drift.first_ns),
        parts or "unknown",
    )


#: A part of a drift is named from this share of it on.
_MUCH_OF_DRIFT: Final = 0.1


def device_state(state: DeviceState | None) -> Phrase | str | None:
    """Return a device's clock next to its maximum, throttling reason, power, temperature and energy per step."""
    if state is None:
        return None
    if state.why_not is not None:
        return f"clock unknown: {state.why_not}"
    clock = (
        None
        if state.clock_mhz is None
        else phrase("clock {}{} MHz", *_count_of_limit(state.clock_mhz, state.clock_limit_mhz))
    )
    power = (
        None if state.power_w is None else phrase("{}{} W", *_count_of_limit(round(state.power_w), state.power_limit_w))
    )
    return joined(
        (
            clock,
            *(
                phrase("{} in {} of the readings", name, Share(held, state.readings, decimals=0))
                for name, held in state.reasons.items()
            ),
            power,
            None if state.temperature_c is None else phrase("{} degrees C at most", Count(state.temperature_c)),
            phrase("{} per step", Figure(state.energy_j / state.steps, "J"))
            if state.energy_j and state.steps
            else None,
        )
    )


def _count_of_limit(value: int, limit: float | None) -> tuple[Count, Phrase | str]:
    return Count(value), "" if limit is None else phrase(" of {}", Count(round(limit)))


def _slow(step: SlowStep, median_ns: int) -> Phrase:
    """Return how much slower a step was than others, and its known parts."""
    more = step.wall_ns - median_ns
    known = joined(
        phrase("{} {}", name, Time(ns))
        for name, field in _OF_STEP
        if (ns := getattr(step, field)) >= _MIN_ITEM_SHARE * more
    )
    return phrase(
        "{}, {} times the median: {}",
        Time(step.wall_ns),
        Ratio(step.wall_ns / max(median_ns, 1)),
        known or "unknown cause (not input, evaluation, saving, garbage collection or compiling)",
    )


def ceilings(anatomy: Anatomy) -> Section | None:
    """Return the device's peak rates, or why they are unknown."""
    device = anatomy.device
    known: str | Phrase | None = device.no_ceilings
    if device.source is not None:
        names = multiplied(anatomy)
        peaks = (
            phrase("{} {}", FlopRate(peak), name)
            for name, peak in device.peak_flops_per_second.items()
            if name in names
        )
        vector, bandwidth = device.vector_flops_per_second.get("float32"), device.bandwidth_bytes_per_second
        unsure = phrase("{} of matmuls may be float32 or tf32, so these matmuls have no bound", Time(device.unsure_ns))
        known = joined(
            (
                *peaks,
                None if vector is None else phrase("{} vector float32", FlopRate(vector)),
                None if bandwidth is None else phrase("{}", ByteRate(bandwidth)),
                _ADDRESS.sub("", device.source),
                unsure if device.unsure_ns else None,
            )
        )

    covered, why_no_mfu = device.mfu_covered, None
    if device.mfu is None and covered is not None and covered < MIN_COVERED and device.peak_flops_per_second:
        why_no_mfu = phrase("no MFU: FLOPs are known for only {} of the contraction time", Share(covered, 1))
    facts = facts_of(("peaks", known), ("reached", why_no_mfu))
    return Section(title="What the device can do", facts=facts)


def _wall(anatomy: Anatomy) -> Phrase | None:
    """Return the step with and without the profiler, and the difference if it is due to the profiler."""
    step = anatomy.step
    if is_whole_trace(anatomy) and step.wall_ns is not None and step.unprofiled_wall_ns is None:
        return phrase("{}: no step is annotated, so the entire trace counts as one", Time(step.wall_ns))
    if step.wall_ns is None or step.unprofiled_wall_ns is None:
        if step.unprofiled_wall_ns is not None:
            return phrase("{} unprofiled", Time(step.unprofiled_wall_ns))
        if step.wall_ns is not None and are_by_updates(anatomy):
            return phrase("{}: no step is annotated, so each is assumed to end with Optimizer.step", Time(step.wall_ns))
        return None if step.wall_ns is None else phrase("{} under the profiler", Time(step.wall_ns))
    both = phrase("{} unprofiled, {} under the profiler", Time(step.unprofiled_wall_ns), Time(step.wall_ns))
    if step.profiler_ns is not None:
        return phrase("{} ({})", both, Change(step.wall_ns, step.unprofiled_wall_ns))
    return both


def rate_of_run(anatomy: Anatomy) -> float | None:
    """Return the samples a second of the whole run, if its recorded steps leave out much of it."""
    trends = anatomy.trends
    return trends.samples_per_second if trends is not None and trends.left_out else None


def _profiler(step: Step) -> Phrase | None:
    """Return the estimated profiler overhead, or why it is unknown."""
    if step.framework_ns is not None and step.profiler_ns is not None:
        own = part_of(step.profiler_ns, step.wall_ns)
        inside_ns = (step.wall_ns or 0) - (step.unprofiled_wall_ns or 0) - step.profiler_ns
        more = phrase("; {} more inside operators", Time(inside_ns)) if inside_ns > 0 else ""
        return phrase("{}: its estimated overhead outside operators, not included in framework{}", own, more)
    if step.wall_ns is None or step.profiler_ns is not None:
        return None
    inside = "included in framework" if step.framework_ns is not None else None
    if step.unprofiled_wall_ns is None:
        why = "unknown without an unprofiled step" if inside else None
    elif step.unprofiled_count in (None, 1):
        slower = step.unprofiled_wall_ns > step.wall_ns
        why = f"not measurable ({'the one unprofiled step was slower' if slower else 'one unprofiled step is too few'})"
    else:
        why = "smaller than step-to-step variation"
    return joined((why, inside), by="; ")


def _spread(anatomy: Anatomy) -> Phrase | None:
    """Return the number of steps, which one is shown, their spread, and peculiarities of some."""
    step, ranks = anatomy.step, len(anatomy.ranks)
    plain = step.unprofiled_count or 0
    if step.count < 2 and plain < 2 and not left_out(anatomy):
        return None
    texts: list[str | Phrase | None] = []
    if plain > 1:
        mean = phrase("mean of {} unprofiled", Count(plain))
        texts.append(joined((mean, *_span(step.unprofiled_wall_min_ns, step.unprofiled_wall_max_ns))))
    if step.count > 1:
        on_ranks: Phrase | str = ""
        if ranks > 1:
            each, rest = divmod(step.count, ranks)
            on = Count(ranks, "rank")
            on_ranks = phrase(" on {}", on) if rest else phrase(", {} on each of {}", Count(each), on)
        mean = phrase("mean of {} profiled{}", Count(step.count), on_ranks)
        texts.append(joined((mean, *_span(step.wall_min_ns, step.wall_max_ns), *left_out(anatomy))))
    else:
        texts.append(joined(("1 profiled", *left_out(anatomy))))
    return joined(texts, by="; ")


def _span(low: int | None, high: int | None) -> tuple[Phrase, ...]:
    """Return the shortest and the longest."""
    if low is None or high is None or low == high:
        return ()
    return phrase("shortest {}", Time(low)), phrase("longest {}", Time(high))


def left_out(anatomy: Anatomy, verb: str = " excluded") -> tuple[Phrase, ...]:
    """Return which steps do not count, by reason, and how long they are if they are few; `verb` follows them."""
    kinds = () if anatomy.breakdown is None else anatomy.breakdown.kinds
    numbers: dict[str, dict[int | None, int]] = {}
    for step in (step for kind in kinds for step in kind.steps if step.left_out is not None):
        walls = numbers.setdefault(step.left_out or "", {})
        walls[step.number] = max(walls.get(step.number, 0), step.wall_ns)
    texts = []
    for reason, each in numbers.items():
        if len(each) > _MAX_LEFT_OUT_TIMES:
            texts.append(phrase("{}" + verb + ", each because {}", Count(len(each), "step"), reason))
        else:
            steps = (
                phrase("{} ({})", "one" if number is None else f"step {number}", Time(ns))
                for number, ns in each.items()
            )
            named = joined(steps, by=" and ")
            texts.append(phrase("{}" + verb + ": {}", named or "", reason))
    return tuple(texts)


def multiplied(anatomy: Anatomy) -> set[str | None]:
    """Return the data types among the known peaks that matter for the contractions."""
    rows = [row for row in anatomy.operators if row.operator_class is OperatorClass.TENSOR_CONTRACTION]
    names: set[str | None] = {anatomy.device.mfu_dtype}
    names |= {PEAK_OF_COMPUTE_TYPE.get(row.compute_type) for row in rows if row.compute_type is not None}
    return names | {tensor.dtype for row in rows for tensor in row.signature.record.tensors()}


def _reached(anatomy: Anatomy) -> Phrase | None:
    """Return the shares of the peak that contractions reach over the step, and how much of their time this covers."""
    device = anatomy.device
    if device.mfu is None:
        return None
    partly = device.mfu_covered not in (None, 1)
    lower_bound = partly or anatomy.timeline.lacks_work
    reached = (("MFU", device.mfu), ("HFU", device.hfu))
    shares = joined(
        phrase("{} {}", name, Share(part, 1, at_least=lower_bound)) for name, part in reached if part is not None
    )
    unprofiled = "unprofiled step" if anatomy.step.unprofiled_wall_ns is not None else None
    of = joined((device.mfu_dtype and f"{device.mfu_dtype} peak", unprofiled))
    known = phrase("FLOPs known for {} of the contraction time", Share(device.mfu_covered, 1)) if partly else None
    return joined(
        (phrase("{}{}", shares or "", "" if of is None else phrase(" ({})", of)), known, *remarks_on_mfu(anatomy)),
        by="; ",
    )


def within_windows(anatomy: Anatomy) -> Phrase | None:
    """Return how much of the attention a sliding window needs, where all of it is computed."""
    work = anatomy.workload
    if work.within_windows is None:
        return None
    used = Counter(window for window in work.windows if 0 < window < (work.sequence_length or 0))
    return phrase(
        "a window of {} tokens needs {} of the FLOPs in {}; {} computes all of them, so all are included",
        joined((phrase("{}", Count(window)) for window in sorted(used)), " or ") or "",
        Share(work.within_windows, 1),
        Count(sum(used.values()), "layer"),
        work.attention or "",
    )


def remarks_on_mfu(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Yield remarks on MFU: why it exceeds 100 %, and peaks of several data types."""
    device = anatomy.device
    at_least = device.mfu_covered not in (None, 1) or anatomy.timeline.lacks_work
    figures = [("MFU", device.mfu, device.causal_mfu)]
    figures += [("HFU", device.hfu, device.causal_hfu)] if device.hfu != device.mfu else []
    above = [
        phrase("{} {}", name, Share(masked, 1, at_least=at_least))
        for name, part, masked in figures
        if (part or 0) > 1 and masked is not None
    ]
    if above:
        yield phrase("{} under the causal mask", joined(above) or "")
    if device.unmasked_share:
        text = "an upper bound: {} of the FLOPs belong to flex attention, whose mask is not recorded"
        yield phrase(text, Share(device.unmasked_share, 1))
    if abs((device.own_peaks_mfu or 0) - (device.mfu or 0)) >= _OTHER_TYPES * (device.own_peaks_mfu or inf):
        own_peaks = Share(device.own_peaks_mfu, 1, at_least=at_least)
        yield phrase("MFU {} with each data type relative to its own peak", own_peaks)
    # Data types that have a peak of their own, as float8 has.
    done: Counter[str] = Counter()
    for row in anatomy.operators:
        if row.operator_class is OperatorClass.TENSOR_CONTRACTION and row.flops:
            dtype = PEAK_OF_COMPUTE_TYPE.get(row.compute_type or "") or row.signature.record.compute_dtype or "unknown"
            done["float8" if dtype.startswith("float8") else dtype] += row.flops
    whole = sum(done.values())
    yield joined(
        phrase("{} of the FLOPs in {}", Share(flops, whole), dtype)
        for dtype, flops in done.most_common()
        if dtype != device.mfu_dtype and flops >= _OTHER_TYPES * whole
    )


# A generation: the time to its first token, and the time of each token after it.


def generation(anatomy: Anatomy) -> Section | None:
    """Return the figures of a step that is a generation."""
    made, batch = anatomy.generation, anatomy.workload.batch
    if made is None:
        return None
    samples = None if batch is None else phrase("for each of {}", Count(batch, "sample"))
    tokens = joined((phrase("{}", Count(made.new_tokens, "new token")), samples), " ")
    search = "greedy" if made.beams == 1 else phrase("beam search with {}", Count(made.beams, "beam"))
    pace = None
    if made.token_ns is not None:
        rate = None if made.tokens_per_second is None else phrase("{}", Rate(made.tokens_per_second, "tokens"))
        pace = joined((phrase("{} per token", Time(made.token_ns)), rate))
    cost = None
    if made.token_read_bytes is not None or made.token_flops is not None:
        partly = bool(made.uncosted_ns)
        cost = phrase(
            "reads {}, writes {}, {}{}",
            Bytes(made.token_read_bytes, at_least=partly),
            Bytes(made.token_written_bytes, at_least=partly),
            Flops(made.token_flops, at_least=partly),
            "" if batch in (None, 1) and made.beams == 1 else ", for one token of every sample and beam",
        )
    facts = facts_of(
        ("generation", joined((tokens, search))),
        ("prefill", None if made.first_token_ns is None else phrase("first token after {}", Time(made.first_token_ns))),
        ("decoding", pace),
        ("a token", cost),
    )
    return Section(title="Generation", facts=facts)
