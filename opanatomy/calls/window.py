"""The window of a trace: its steps, its device work with the launches, and how much was traced back to them."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from opanatomy.anatomy import LaunchedWork
from opanatomy.anatomy.build import MeasuredSteps
from opanatomy.anatomy.steps import step_at
from opanatomy.anatomy.timeline import StepWindow
from opanatomy.attribution import Attribution
from opanatomy.calls.table import cpu_rows
from opanatomy.calls.trace_calls import TraceCalls, only_in
from opanatomy.calls.warnings import lost_launches
from opanatomy.records.columns import GRAPH, LINKED, NO_LAUNCH, OUTSIDE
from opanatomy.records.timeline import LinkedTime
from opanatomy.trace import Trace

#: Launches of kernels and graphs.
_RUNS: Final = re.compile(r"Launch(?!HostFunc)|CommandBufferEnqueue", re.IGNORECASE)


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
    # A copy of nothing leaves no event either: of these alone it is not known that work ran.
    runs = np.array([_RUNS.search(name) is not None for name in trace.names], dtype=bool)
    hidden = lost_launches(trace, attribution.window)
    hidden = hidden[runs[trace.launches.name[hidden]]]
    starts = trace.launches.start_ns[hidden]
    return LaunchedWork(
        names=trace.names,
        work=trace.work,
        launches=trace.launches,
        launch=attribution.work.launch,
        inside=attribution.work.link != OUTSIDE,
        device_names=tuple((device.number, device.name) for device in trace.devices),
        hidden=hidden[np.argsort(starts, kind="stable")],
        host=attribution.host,
        profiler=trace.profiler,
    )


def calls_that_count(calls: TraceCalls, steps: MeasuredSteps) -> TraceCalls:
    """Keep the calls and the device work of the steps that count."""
    if calls.on_device and steps.time is not None:
        return only_in(calls, np.ones(len(calls.host.name), dtype=bool), steps.time.steps.step >= 0)
    spans = steps.window.steps
    if not spans:
        return calls
    begins, ends = (np.array([span[edge] for span in spans], dtype=np.int64) for edge in (0, 1))
    step = step_at(begins, ends, calls.host.start_ns)
    return only_in(calls, (step >= 0) & steps.counted[step], np.ones(len(calls.work.name), dtype=bool))


def linked_time(calls: TraceCalls, every: TraceCalls) -> LinkedTime:
    """Device work by how it was traced back; `every` has the calls of all steps."""
    if not calls.on_device:
        rows = cpu_rows(calls, within=False)
        whole, inside, all_steps = (
            int(column[rows].sum()) for column in (calls.host.self_ns, calls.time_ns, every.time_ns)
        )
        return LinkedTime(linked_ns=inside, outside_window_ns=whole - inside, set_aside_ns=all_steps - inside)
    spent = {link: int(calls.work.duration_ns[calls.work.link == link].sum())
             for link in (LINKED, GRAPH, NO_LAUNCH, OUTSIDE)}  # fmt: skip
    before = int(every.work.duration_ns[every.work.link == OUTSIDE].sum())
    return LinkedTime(
        linked_ns=spent[LINKED], graph_launched_ns=spent[GRAPH], no_launch_record_ns=spent[NO_LAUNCH],
        outside_window_ns=spent[OUTSIDE], set_aside_ns=spent[OUTSIDE] - before,
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
