"""What of the step the device was busy and idle, what of its communication nothing hides, launches, how full it was.

All shares are of the steps without the time in which the device did the work of other steps alone, as in the headline.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from opanatomy.records.anatomy import Anatomy, Step
from opanatomy.report.costs import Costs, costs_of
from opanatomy.report.scope import (
    calls_a_step,
    has_foreign_work,
    per_step,
    steps_of,
    steps_of_window,
)
from opanatomy.report.section import Phrase, Quantity, Section, Share, Time, facts_of, joined, phrase

#: The part of the step from which idle time before and after all device work, and exposed communication, are said.
_SAID: Final = 0.01


def busy(anatomy: Anatomy) -> Phrase | None:
    """Busy time of an accelerator, what of it is communication that nothing hides, and idle time."""
    costs = costs_of(anatomy)
    if anatomy.environment.device_kind == "cpu" or not (anatomy.timeline.window_ns and costs.whole_ns):
        return None
    exposed, busy_ns = None, anatomy.timeline.busy_ns
    if costs.exposed_ns >= _SAID * costs.whole_ns:
        waiting = None
        if costs.waiting_ns:
            waiting = phrase(", in it waiting for other ranks {}", Share(costs.waiting_ns, costs.whole_ns))
        exposed = phrase(
            " (compute and copies {}, exposed communication {}{})", Share(busy_ns - costs.exposed_ns, costs.whole_ns),
            Share(costs.exposed_ns, costs.whole_ns), waiting or "",
        )  # fmt: skip
    return joined(
        (
            phrase("{} of {}{}", Share(busy_ns, costs.whole_ns), _whole(anatomy, costs), exposed or ""),
            phrase("idle {}{}", Share(costs.idle_ns, costs.whole_ns), _cause(costs)),
            _around(anatomy, costs),
        )
    )


def _whole(anatomy: Anatomy, costs: Costs) -> Phrase | str:
    """What the shares are of, and how long it is where that is not the step."""
    long = Time(costs.whole_ns / steps_of_window(anatomy))
    if costs.of_trace:
        return phrase("the {} from the first to the last device work", long)
    return phrase("the {} without other steps' work", long) if has_foreign_work(anatomy) else "the step"


def _around(anatomy: Anatomy, costs: Costs) -> Phrase | None:
    """How much of a trace without steps lies before and after all device work."""
    around = anatomy.timeline.window_ns - costs.whole_ns
    if not costs.of_trace or around < _SAID * anatomy.timeline.window_ns:
        return None
    return phrase("{} before and after it", Time(around / steps_of_window(anatomy)))


def _cause(costs: Costs) -> Phrase | str:
    """The part of the idle time that the host is late for, or that lies around the device work."""
    if 2 * costs.edge_ns > costs.idle_ns:
        return phrase(" ({} before its first or after its last work)", Share(costs.edge_ns, costs.whole_ns))
    return phrase(" (host-bound {})", Share(costs.host_bound_ns, costs.whole_ns)) if costs.host_bound_ns else ""


def idle(anatomy: Anatomy) -> Section | None:
    """Of an accelerator: busy and idle time and its causes, what overlaps, launches, how full it was."""
    if anatomy.environment.device_kind == "cpu":
        return None
    timeline, costs = anatomy.timeline, costs_of(anatomy)
    overlap = (("communication", timeline.communication_ns), ("of it exposed", timeline.exposed_communication_ns),
               ("exposed memcpy", timeline.exposed_memcpy_ns))  # fmt: skip
    causes = (("host-bound", costs.host_bound_ns), ("stream waits", costs.stream_ns),
              ("other", costs.unexplained_idle_ns))  # fmt: skip
    whole = (("busy", timeline.busy_ns), ("idle", costs.idle_ns))
    facts = facts_of(
        ("window", _window(anatomy, costs)),
        ("device", _parts(anatomy, whole, costs)),
        ("idle", _parts(anatomy, causes, costs)),
        ("edges", _edges(costs)),
        ("phases", phrase("{}, busy, of the median step", phases) if (phases := phases_of(anatomy.step)) else None),
        ("overlap", _parts(anatomy, overlap, costs)),
        ("launches", _launches(anatomy)),
        ("estimates", _estimates(anatomy)),
    )
    return Section(name="idle", title="Busy and idle time of the device", scope=per_step(anatomy), facts=facts)


def _window(anatomy: Anatomy, costs: Costs) -> Phrase | None:
    """How long a step is, and what of it is not its own."""
    timeline, steps = anatomy.timeline, steps_of_window(anatomy)
    if not timeline.window_ns:
        return None
    window = phrase("{}", Time(timeline.window_ns / steps))
    if costs.of_trace:
        return phrase("{}, {} from the first to the last device work", window, Time(costs.whole_ns / steps))
    if not has_foreign_work(anatomy):
        return window
    other, own = (timeline.outside_ns or 0) / steps, Time(costs.whole_ns / steps)
    return phrase("{}, other steps' work {}, without it {}", window, Time(other), own)


def _parts(anatomy: Anatomy, parts: Iterable[tuple[str, float | None]], costs: Costs) -> Phrase | None:
    """Each part that is more than nothing, by name, in a step of the mean."""
    steps = steps_of_window(anatomy)
    return joined(named(name, ns / steps, costs.whole_ns / steps) for name, ns in parts if ns)


def _edges(costs: Costs) -> Phrase | None:
    """The idle time before the first and after the last device work, where it is much of the step."""
    if not costs.edge_ns or costs.edge_ns < _SAID * costs.whole_ns:
        return None
    return phrase("{} before the first or after the last device work", Share(costs.edge_ns, costs.whole_ns))


def phases_of(step: Step) -> Phrase | None:
    """The time of each phase in the median step."""
    phases = (("forward", step.forward_ns), ("backward", step.backward_ns), ("optimizer", step.optimizer_ns),
              ("prefill", step.prefill_ns), ("decoding", step.decoding_ns))  # fmt: skip
    return joined(named(name, ns, step.wall_ns) for name, ns in phases if ns is not None)


def part_of(ns: float, whole_ns: float | None) -> Phrase:
    """A time and the share of the whole that it is, where that is known."""
    return phrase("{} ({})", Time(ns), Share(ns, whole_ns)) if whole_ns else phrase("{}", Time(ns))


def named(name: str, ns: float, whole_ns: float | None) -> Phrase:
    """A part by name: `forward 12.3 ms (40.1 %)`."""
    return phrase("{} {}", name, part_of(ns, whole_ns))


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
            phrase("{} in {} on the host", number, Time(launching.call_ns / steps)),
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
