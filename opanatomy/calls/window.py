"""What the window holds of the device time, by how it was traced back, and of the profiler's own time."""

from __future__ import annotations

import numpy as np

from opanatomy.calls.host_calls import HostCalls
from opanatomy.calls.table import cpu_rows
from opanatomy.records.columns import GRAPH, LINKED, NO_LAUNCH, OUTSIDE
from opanatomy.records.timeline import LinkedTime


def linked_time(calls: HostCalls) -> LinkedTime:
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


def recording_outside(calls: HostCalls) -> float:
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
