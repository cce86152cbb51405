"""What of the step the device was busy and idle, what of its communication nothing hides, launches, how full it was.

All shares are of the steps without the time in which the device did the work of other steps alone, as in the headline.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from opanatomy.records.anatomy import Anatomy, Step
from opanatomy.records.taxonomy import IdleCause
from opanatomy.records.timeline import PYTHON_STACK, IdleRow
from opanatomy.report.costs import Costs, costs_of
from opanatomy.report.scope import (
    calls_a_step,
    has_foreign_work,
    per_step,
    steps_of,
    steps_of_window,
)
from opanatomy.report.section import (
    Count,
    Name,
    Phrase,
    Quantity,
    Section,
    Share,
    Time,
    facts_of,
    joined,
    phrase,
)

#: The part of the step from which a cause of idle time, time that is not known, and exposed communication are said.
_SAID: Final = 0.01
#: So many causes are named on the first screen, those from this part of the idle time on.
_NAMED: Final = 2
_PART: Final = 0.2
#: What each cause is called, and what the host did or the device waited for.
_LABEL: Final = {
    IdleCause.PROFILER: "profiler's records", IdleCause.COMPILATION: "compiling", IdleCause.INPUT: "input wait",
    IdleCause.ALLOCATOR: "allocator calls", IdleCause.SLOW_LAUNCH: "slow launches",
    IdleCause.SYNCHRONIZATION: "synchronizations", IdleCause.COLLECTIVE: "collective calls",
    IdleCause.OPERATORS: "operator calls", IdleCause.PYTHON: "Python", IdleCause.STREAM: "another stream",
    IdleCause.DEVICE: "between kernels", IdleCause.UNKNOWN: "unknown cause",
}  # fmt: skip
_WHILE: Final = {
    IdleCause.PROFILER: "while the profiler wrote its records",
    IdleCause.COMPILATION: "while code was compiled",
    IdleCause.INPUT: "while the host loaded or copied input",
    IdleCause.ALLOCATOR: "while the host allocated or freed memory",
    IdleCause.SLOW_LAUNCH: "while slow calls launched or loaded kernels",
    IdleCause.SYNCHRONIZATION: "while the host waited for the device",
    IdleCause.COLLECTIVE: "while the host called collectives",
    IdleCause.OPERATORS: "while the host ran operators and launched kernels",
    IdleCause.PYTHON: "while the host was between operators, in Python",
    IdleCause.STREAM: "while another stream was waited for",
    IdleCause.DEVICE: "between work that was launched already",
    IdleCause.UNKNOWN: "while nothing is recorded of the host",
}
#: The part of a cause from which the largest of it is named.
_MUCH: Final = 0.15
#: The causes that are calls, of which a number says something.
_CALLS: Final = (IdleCause.ALLOCATOR, IdleCause.SLOW_LAUNCH, IdleCause.SYNCHRONIZATION)


def busy(anatomy: Anatomy) -> Phrase | None:
    """Busy time of an accelerator, what of it is communication that nothing hides, and idle time."""
    costs = costs_of(anatomy)
    if anatomy.environment.device_kind == "cpu" or not (anatomy.timeline.window_ns and costs.whole_ns):
        return None
    if not any(row.time_ns for row in anatomy.classes):
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
            phrase("idle {}{}", Share(costs.idle_ns, costs.whole_ns), _causes(costs)),
            _unrecorded(costs),
            _around(anatomy),
        )
    )


def _whole(anatomy: Anatomy, costs: Costs) -> Phrase | str:
    """What the shares are of, and how long it is where that is not the step."""
    long = Time(costs.whole_ns / steps_of_window(anatomy))
    if costs.of_trace:
        return phrase("the {} from the first to the last device work", long)
    return phrase("the {} without other steps' work", long) if has_foreign_work(anatomy) else "the step"


def _around(anatomy: Anatomy) -> Phrase | None:
    """How much of a trace without steps lies before and after all device work."""
    around = anatomy.timeline.around_ns or 0
    if around < _SAID * (anatomy.timeline.window_ns + around):
        return None
    return phrase("{} before and after it", Time(around / steps_of_window(anatomy)))


def _unrecorded(costs: Costs) -> Phrase | None:
    """The time of which the records are missing, where it is much."""
    if costs.unrecorded_ns < _SAID * costs.whole_ns or not costs.unrecorded_ns:
        return None
    return phrase(
        "{} not recorded: launches whose work is not in the trace", Share(costs.unrecorded_ns, costs.whole_ns)
    )


def _causes(costs: Costs) -> Phrase | str:
    """The largest causes of the idle time, as shares of the step."""
    much = [row for row in costs.causes[:_NAMED] if row.time_ns >= max(_SAID * costs.whole_ns, _PART * costs.idle_ns)]
    named_causes = joined(phrase("{} {}", label_of(row), Share(row.time_ns, costs.whole_ns)) for row in much)
    return phrase(" ({})", named_causes) if named_causes else ""


def label_of(row: IdleRow) -> str:
    """What a cause is called in a line."""
    return "recorded Python" if row.name == PYTHON_STACK else _LABEL[row.cause]


def while_what(row: IdleRow, steps: float) -> Phrase:
    """What the host did, or the device waited for, in the idle time of a cause: words that follow a share.

    Calls are those of all `steps`.
    """
    words = _WHILE[row.cause]
    calls: Count | Phrase = Count(row.events or 0, "call")
    if steps > 1:
        calls = phrase("{} in {}", calls, Count(round(steps), "step"))
    if row.cause is IdleCause.PROFILER and row.name == PYTHON_STACK:
        return phrase("in Python while the profiler recorded its stack ({}), which slows it", calls)
    if row.name is None or (row.name_ns or 0) < _MUCH * row.time_ns:
        return phrase("{}", words)
    name = Name(row.name.removeprefix("aten::"))
    if 2 * (row.name_ns or 0) < row.time_ns:
        return phrase("{} ({} {})", words, Share(row.name_ns, row.time_ns, decimals=0), name)
    if row.cause is IdleCause.SLOW_LAUNCH and row.events == 1:
        return phrase("while one slow call launched or loaded a kernel ({}, {})", name, Time(row.name_ns or 0))
    if row.cause in _CALLS:
        return phrase("{} ({}, {})", words, name, calls)
    return phrase("{} ({} {})", words, "all of it" if row.name_ns == row.time_ns else "most of it", name)


def idle(anatomy: Anatomy) -> Section | None:
    """Of an accelerator: busy and idle time and its causes, what overlaps, launches, how full it was."""
    if anatomy.environment.device_kind == "cpu":
        return None
    timeline, costs = anatomy.timeline, costs_of(anatomy)
    overlap = (("communication", timeline.communication_ns), ("of it exposed", timeline.exposed_communication_ns),
               ("exposed memcpy", timeline.exposed_memcpy_ns))  # fmt: skip
    kinds = (("host-bound", timeline.host_idle_ns), ("stream waits", timeline.stream_idle_ns),
             ("other", timeline.other_idle_ns))  # fmt: skip
    whole = (("busy", timeline.busy_ns), ("idle", costs.idle_ns), ("not recorded", costs.unrecorded_ns))
    facts = facts_of(
        ("window", _window(anatomy, costs)),
        ("device", _parts(anatomy, whole, costs)),
        ("idle", _parts(anatomy, kinds, costs)),
        *((label_of(row), _cause(anatomy, row, costs)) for row in costs.causes),
        ("drained", _drained(anatomy, costs)),
        ("phases", phrase("{}, busy", phases) if (phases := phases_of(anatomy.step)) else None),
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
        return joined((phrase("{} from the first to the last device work", window), _around(anatomy)))
    if not has_foreign_work(anatomy):
        return window
    other, own = (timeline.outside_ns or 0) / steps, Time(costs.whole_ns / steps)
    return phrase("{}, other steps' work {}, without it {}", window, Time(other), own)


def _parts(anatomy: Anatomy, parts: Iterable[tuple[str, float | None]], costs: Costs) -> Phrase | None:
    """Each part that is more than nothing, by name, in a step of the mean."""
    steps = steps_of_window(anatomy)
    return joined(named(name, ns / steps, costs.whole_ns / steps) for name, ns in parts if ns)


def _cause(anatomy: Anatomy, row: IdleRow, costs: Costs) -> Phrase:
    """The idle time of one cause in a step of the mean, and what the host did."""
    steps = steps_of_window(anatomy)
    return phrase("{} {}", part_of(row.time_ns / steps, costs.whole_ns / steps), while_what(row, steps))


def _drained(anatomy: Anatomy, costs: Costs) -> Phrase | None:
    """What of the idle time is in gaps that began while the host waited for the device."""
    drained = anatomy.timeline.drained_ns or 0
    if not drained:
        return None
    of_idle = Share(drained, costs.idle_ns)
    return phrase("{} of the idle time is in gaps that began while the host waited for the device", of_idle)


def phases_of(step: Step) -> Phrase | None:
    """The time of each phase in the mean step."""
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
        unknown_ns = device.tensor_core_unknown_ns
        unknown = phrase(" ({} not known)", Share(unknown_ns, launching.kernel_ns)) if unknown_ns else ""
        tensor = phrase("tensor cores {} of kernel time{}", Share(device.tensor_core_ns, launching.kernel_ns), unknown)
    return joined((*(phrase("{} {}", name, Share(part, 1)) for name, part in fractions if part is not None), tensor))
