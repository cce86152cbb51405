"""The window of a trace: its steps, its device work with the launches, and how much was traced back to them."""

from __future__ import annotations

import numpy as np

from opanatomy.anatomy import LaunchedWork
from opanatomy.anatomy.timeline import StepWindow
from opanatomy.attribution import Attribution
from opanatomy.calls.table import cpu_rows
from opanatomy.calls.trace_calls import TraceCalls
from opanatomy.records.columns import GRAPH, LINKED, NO_LAUNCH, OUTSIDE
from opanatomy.records.timeline import LinkedTime
from opanatomy.trace import Trace


def step_window_of(attribution: Attribution, calls: TraceCalls) -> StepWindow:
    """The window and its steps on the host clock."""
    return StepWindow(
        window=attribution.window,
        steps=tuple((step.start_ns, step.end_ns) for step in attribution.steps),
        numbers=tuple(step.number for step in attribution.steps),
        spans=attribution.spans,
        recording_outside=_recording_outside(calls),
    )


def launched_work(trace: Trace, attribution: Attribution) -> LaunchedWork:
    """The device work with its launches, in the order of the file, as the table of kernels is."""
    return LaunchedWork(
        names=trace.names,
        work=trace.work,
        launches=trace.launches,
        launch=attribution.work.launch,
        inside=attribution.work.link != OUTSIDE,
        device_names=tuple((device.number, device.name) for device in trace.devices),
    )


def linked_time(calls: TraceCalls) -> LinkedTime:
    """Device work by how it was traced back."""
    if not calls.on_device:
        rows = cpu_rows(calls, within=False)
        whole, inside = int(calls.host.self_ns[rows].sum()), int(calls.time_ns[rows].sum())
        return LinkedTime(linked_ns=inside, outside_window_ns=whole - inside)
    spent = {link: int(calls.work.duration_ns[calls.work.link == link].sum())
             for link in (LINKED, GRAPH, NO_LAUNCH, OUTSIDE)}  # fmt: skip
    return LinkedTime(
        linked_ns=spent[LINKED], graph_launched_ns=spent[GRAPH], no_launch_record_ns=spent[NO_LAUNCH],
        outside_window_ns=spent[OUTSIDE],
    )  # fmt: skip


def _recording_outside(calls: TraceCalls) -> float:
    """The part of the profiler's own time on the CPU that lies outside operators, as the events of the window say.

    Recording takes time at both ends of an event, about half of it within what is recorded and half around it, in
    the event above: an operator's own half, and that of what it calls, are in the operator's time.
    """
    inside = np.flatnonzero(calls.host.in_window)
    if calls.on_device or not len(inside):
        return 1.0
    operators = np.zeros(len(calls.host.name) + 1, dtype=bool)
    operators[cpu_rows(calls, within=True)] = True
    # A row without a parent has the last place, which is no operator.
    in_operators = operators[inside].sum() + operators[calls.host.parent[inside]].sum()
    return float(1 - in_operators / (2 * len(inside)))
