"""The phase and module of each host event: from a capture's ranges, else from what autograd and optimizers leave."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from opanatomy.attribution.inference import Inference, differentiated_operators, infer, within
from opanatomy.attribution.names import NameKinds, own_ranges
from opanatomy.attribution.nesting import nearest_above
from opanatomy.attribution.nodes import Nodes, modules_of, nodes_of, recomputed
from opanatomy.attribution.rows import HostRows
from opanatomy.records.columns import NO_FLOWS, Bool, Categorical, Flows, Int64, at, is_among
from opanatomy.records.phase_spans import MarkedCall, flattened, loop_spans
from opanatomy.records.taxonomy import BACKWARD, FORWARD, OTHER, PHASE_CODE, PHASES, RECOMPUTE, Phase


class Step(Struct, frozen=True):
    """One annotated step on the host clock."""

    number: int
    start_ns: int
    end_ns: int


class Placed(Struct, frozen=True, kw_only=True):
    """Phase (a place in `PHASES`) and module path of each host event, none where it is inside no module."""

    phase: Int64
    module: Categorical[str]
    #: The phase ranges of a capture: (start, end, phase), in order.
    spans: tuple[tuple[int, int, Phase], ...]
    nodes: Nodes
    #: What was inferred, where no range of a capture says the phases.
    inference: Inference | None
    #: What runs in annotations whose phase the user gave.
    mapped: Bool

    def of_launches(self, enclosing: Int64, thread: Int64, time_ns: Int64) -> Int64:
        """The phases of what is launched at each time on each thread, in the host row that encloses it; -1 not known.

        A range around a whole part of the loop, such as a step, says nothing of what is launched directly in it.
        """
        phases = at(self.phase, enclosing)
        phases[enclosing < 0] = OTHER
        if self.inference is None:
            # Between two calls of a loop nothing but a step may enclose a launch.
            places = np.flatnonzero((phases == OTHER) & ~((enclosing >= 0) & self.mapped[enclosing]))
            at_that_time = phases_at(list(self.spans), time_ns[places])
            phases[places] = np.where(at_that_time < 0, OTHER, at_that_time)
            return phases
        if not self.inference.differentiates:
            return phases
        wraps = self.inference.wraps & ~self.mapped
        places = np.flatnonzero(np.where(enclosing >= 0, wraps[enclosing], thread >= 0))
        phases[places] = self.inference.at(thread[places], time_ns[places])
        return phases


def place(rows: HostRows, kinds: NameKinds, flows: Flows = NO_FLOWS) -> Placed:
    """The phase and module of every host event."""
    nodes = nodes_of(rows, kinds, flows)
    spans = _spans(rows, kinds)
    inference = None if spans else infer(rows, kinds, nodes)
    if inference is None:
        at_that_time = phases_at(spans, rows.start_ns)
        phase = np.where(at_that_time < 0, OTHER, at_that_time)
        # What autograd differentiates is forward also where no call of a module encloses it.
        phase[(at_that_time < 0) & within(rows, differentiated_operators(nodes))] = FORWARD
    else:
        phase = inference.phase.copy()
    mapped = _mapped(rows, kinds, nodes, inference)
    phase = np.where(mapped >= 0, mapped, phase)
    again = recomputed(rows, kinds, nodes)
    phase[(phase == BACKWARD) & again] = RECOMPUTE
    return Placed(
        phase=phase,
        module=modules_of(rows, kinds, nodes),
        spans=tuple(spans),
        nodes=nodes,
        inference=inference,
        mapped=mapped >= 0,
    )


def _spans(rows: HostRows, kinds: NameKinds) -> list[tuple[int, int, Phase]]:
    """The phase ranges of a capture; of a user's own loop those of its calls, and of what lies between them."""
    ranges = np.flatnonzero(kinds.phase[rows.name] >= 0).tolist()
    calls = [
        MarkedCall(
            int(rows.start_ns[row]), int(rows.end_ns[row]), PHASES[kinds.phase[rows.name[row]]],
            bool(kinds.in_loop[rows.name[row]]),
        )
        for row in ranges
    ]  # fmt: skip
    if any(call.decides for call in calls):
        return list(loop_spans(calls, [step.start_ns for step in steps_of(rows, kinds)]))
    return sorted(call[:3] for call in calls)


def _mapped(rows: HostRows, kinds: NameKinds, nodes: Nodes, inference: Inference | None) -> Int64:
    """The phase that the user gives an event, -1 where none: that of the innermost annotation enclosing it, for what
    runs on autograd's threads that of the annotation at that time."""
    is_range = (kinds.mapped[rows.name] >= 0) & own_ranges(rows, kinds)
    if not is_range.any():
        return np.full(len(rows.name), -1, dtype=np.int64)
    phase = at(kinds.mapped[rows.name], nearest_above(is_range, rows.parent))
    spans = [
        (int(rows.start_ns[row]), int(rows.end_ns[row]), PHASES[kinds.mapped[rows.name[row]]])
        for row in np.flatnonzero(is_range).tolist()
    ]
    elsewhere = nodes.enclosing >= 0
    if inference is not None:
        elsewhere |= is_among(rows.thread, inference.moments.autograd)
    at_that_time = phases_at(spans, rows.start_ns)
    return np.where((phase < 0) & elsewhere, at_that_time, phase)


def phases_at(spans: list[tuple[int, int, Phase]], times_ns: Int64) -> Int64:
    """The phase (a place in `PHASES`, -1 none) at each host time: ranges lie on one thread, the backward of CUDA runs
    on another."""
    starts, phases = flattened(spans)
    codes = [-1 if phase is None else PHASE_CODE[phase] for phase in phases]
    interval = np.searchsorted(np.array(starts, dtype=np.int64), times_ns, side="right") - 1
    return np.array([-1, *codes], dtype=np.int64)[interval + 1]


def steps_of(rows: HostRows, kinds: NameKinds) -> tuple[Step, ...]:
    """The annotated steps in the order of time; none where the trace has no `ProfilerStep#N`.

    Annotations of one step that overlap (those of the processes of a merged trace, of two profilers) are one step.
    """
    is_step = np.array([number is not None for number in kinds.step], dtype=bool)
    steps: list[Step] = []
    for number, start, end in sorted(
        (number, int(rows.start_ns[row]), int(rows.end_ns[row]))
        for row in np.flatnonzero(is_step[rows.name]).tolist()
        if (number := kinds.step[rows.name[row]]) is not None
    ):
        last = steps[-1] if steps else None
        if last is not None and last.number == number and start < max(last.end_ns, last.start_ns + 1):
            steps[-1] = Step(number, last.start_ns, max(last.end_ns, end))
        else:
            steps.append(Step(number, start, end))
    return tuple(sorted(steps, key=lambda step: step.start_ns))
