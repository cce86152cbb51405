"""Divide the time of a step into parts that do not overlap: idle, exposed communication, waiting, classes of work.

All figures are means over the counted steps of all ranks, so that parts sum to their whole; a step with work of other
steps or a pause in it, or with other calls than most, is not counted.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from opanatomy.analysis.idle import LOADS_DATA
from opanatomy.records.anatomy import Anatomy, HostRow, IdleRow
from opanatomy.records.taxonomy import OperatorClass, Phase


def steps_of(anatomy: Anatomy) -> int:
    """Return how many steps the sums cover, over all ranks."""
    return max(anatomy.step.count, 1)


def steps_of_window(anatomy: Anatomy) -> float:
    """Return the number of steps in the window; for several ranks the mean."""
    return steps_of(anatomy) / max(len(anatomy.ranks), 1)


def is_whole_trace(anatomy: Anatomy) -> bool:
    """Return whether the whole trace counts as one step because it has no step annotations."""
    return any(row.number is None for row in anatomy.step.steps)


def are_by_updates(anatomy: Anatomy) -> bool:
    """Return whether steps are unannotated and delimited by optimizer updates."""
    return "steps" in anatomy.conventions


def nothing_recorded(anatomy: Anatomy) -> bool:
    """Return whether a device was used but its work is not in the trace: busy and idle time are unknown then."""
    timeline = anatomy.timeline
    return bool(timeline.window_ns) and not timeline.busy_ns and timeline.unrecorded_ns == timeline.window_ns


class Costs(Struct, frozen=True, kw_only=True):
    """Parts of `whole_ns`, the wall time of the counted steps without work of other steps.

    Without steps it is the time from the first to the last device work. On the CPU `idle_ns` is 0, and the
    times of framework and profiler have parts of their own, as has the part of the framework's that is spent in ranges
    of loaders (`input_ns`). `unrecorded_ns` is time whose records are missing.
    `exposed_ns` is communication while no other work runs, `waiting_ns` its part that waits for another rank, if that
    is known. The time that computes is shared out among the classes of work, and among the phases, by their sums.
    """

    whole_ns: float
    #: Whether the whole trace counts as one step.
    of_trace: bool
    idle_ns: float
    causes: tuple[IdleRow, ...]
    unrecorded_ns: float
    #: The part of it in which the host waited for work that is not in the trace.
    awaited_ns: float
    input_ns: float
    framework_ns: float
    profiler_ns: float
    exposed_ns: float
    waiting_ns: float | None
    classes: dict[OperatorClass, float]
    phases: dict[Phase, float]


def costs_of(anatomy: Anatomy) -> Costs:
    """Return the parts of the steps' time."""
    timeline = anatomy.timeline
    on_cpu = anatomy.environment.device_kind == "cpu"
    exposed = timeline.exposed_communication_ns or 0
    work = anatomy.work_ns
    computing = max(timeline.busy_ns - exposed, 0) if timeline.window_ns and not nothing_recorded(anatomy) else work
    waiting = None
    if anatomy.waiting is not None:  # from the steps in which that is known
        steps = [step for rank in anatomy.waiting.each for step in rank.steps]
        wall, window = sum(step.wall_ns for step in steps), timeline.window_ns - (timeline.outside_ns or 0)
        waiting = min(sum(step.waiting_ns for step in steps) / wall * window if wall else 0, exposed)
    framework_ns = _scaled_to_window(anatomy, anatomy.step.framework_ns) if on_cpu else 0
    input_ns = min(sum(row.self_ns for row in loading(anatomy)) / max(len(anatomy.ranks), 1), framework_ns)
    return Costs(
        whole_ns=(timeline.window_ns or work) - (timeline.outside_ns or 0),
        of_trace=is_whole_trace(anatomy) and not on_cpu,
        idle_ns=0 if on_cpu else timeline.idle_ns,
        causes=timeline.causes,
        unrecorded_ns=timeline.unrecorded_ns or 0,
        awaited_ns=timeline.awaited_ns or 0,
        input_ns=input_ns,
        framework_ns=framework_ns - input_ns,
        profiler_ns=_scaled_to_window(anatomy, anatomy.step.profiler_ns) if on_cpu else 0,
        exposed_ns=exposed,
        waiting_ns=waiting,
        classes=_by_class(anatomy, computing),
        phases=_by_phase(anatomy, computing),
    )


def loading(anatomy: Anatomy) -> list[HostRow]:
    """Return the loader ranges on host threads, longest first, if the host does the computing."""
    if anatomy.environment.device_kind != "cpu":
        return []
    rows = [row for row in anatomy.host if row.kind == "range" and LOADS_DATA.search(row.name)]
    return sorted(rows, key=lambda row: -row.total_ns)


#: So many steps of a run show how long it waits for its input.
_MIN_RUN_STEPS: Final = 3


def input_of_run(anatomy: Anatomy) -> float | None:
    """Return the share of the run's steps spent waiting for a loader; `None` if unknown, or hidden by a device.

    An accelerator works while the host waits, so that there the idle time of the recorded steps has to say it.
    """
    run = anatomy.run
    if run is None or run.steps < _MIN_RUN_STEPS or anatomy.environment.device_kind != "cpu":
        return None
    return run.input_share


def _scaled_to_window(anatomy: Anatomy, ns: int | None) -> float:
    """Scale a time of the mean step to the window."""
    return anatomy.timeline.window_ns * (ns or 0) / anatomy.step.wall_ns if anatomy.step.wall_ns else 0


def _by_class(anatomy: Anatomy, computing: float) -> dict[OperatorClass, float]:
    """Return the computing time by class, without communication."""
    times = {item: 0 for item in OperatorClass if item is not OperatorClass.COMMUNICATION}
    for row in anatomy.classes:
        if row.operator_class in times:
            times[row.operator_class] += row.time_ns
    whole = sum(times.values())
    return {item: computing * ns / whole for item, ns in times.items() if ns}


def _by_phase(anatomy: Anatomy, computing: float) -> dict[Phase, float]:
    """Return the same by phase."""
    rows = [row for row in anatomy.classes if row.operator_class is not OperatorClass.COMMUNICATION]
    whole = sum(row.time_ns for row in rows)
    times = {phase: sum(row.time_ns for row in rows if row.phase is phase) for phase in Phase}
    return {phase: computing * ns / whole for phase, ns in times.items() if ns}
