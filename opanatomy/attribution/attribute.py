"""Attribute host events to phases and modules, and device events to the operator calls that launched them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.attribution.nesting import (
    HostRows,
    last_inside,
    last_started,
    order_within_ranges,
    parents_of,
    self_times,
)
from opanatomy.attribution.phases import (
    PhaseRule,
    Placed,
    Step,
    Timed,
    annotated_phases,
    kinds_of,
    own_ranges,
    place,
    steps_by_updates,
    steps_of,
)
from opanatomy.records.anatomy import Check
from opanatomy.records.columns import (
    BEFORE_ALL,
    GRAPH,
    LINKED,
    NO_FLOWS,
    NO_LAUNCH,
    OUTSIDE,
    Bool,
    Categorical,
    DeviceWork,
    Flows,
    HostEvents,
    HostTable,
    Int64,
    Launches,
    WorkTable,
    concat,
    isin,
    rows_by_value,
    rows_named,
    unique,
)
from opanatomy.records.runtime_calls import LAUNCHES_GRAPH
from opanatomy.records.taxonomy import PHASE_CODE, Phase

# Link device events to the host events that launched them, and tell why some have none.


# ----- launches of device events
#
# Both carry a correlation id, which is at least 1 (0 is none) and unique within a process. A trace merged of several
# processes, or with events twice, has several launches with one id: the external id, the threads that launch on the
# device, and the order of time tell which one it was.


class Launch(Struct, frozen=True, kw_only=True):
    """Launch records as columns; `host` is the innermost host row around each, -1 if none."""

    thread: Int64
    start_ns: Int64
    correlation: Int64
    external_id: Int64
    is_graph: Bool
    host: Int64


class Matched(Struct, frozen=True):
    """The launch of each device event (-1 if none), and whether launches of other operators match as well."""

    launch: Int64
    open: Bool


def last_of(keys: Int64, wanted: Int64) -> Int64:
    """Return the index of each wanted key's last occurrence in `keys`; -1 for a missing or negative key."""
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    at = np.searchsorted(keys[order], wanted, side="right") - 1
    last = np.where(at >= 0, order[np.maximum(at, 0)], -1)
    known = (last >= 0) & (wanted >= 0)
    known[known] = keys[last[known]] == wanted[known]
    return np.where(known, last, -1)


def repeated(keys: Int64) -> Int64:
    """Return the keys that occur more than once, sorted."""
    known = unique(keys)
    return known.values[np.bincount(known.inverse, minlength=len(known.values)) > 1]


def match(work: DeviceWork, launch: Launch) -> Matched:
    """Return the launch of each device event."""
    index = np.where(work.correlation > 0, last_of(launch.correlation, work.correlation), -1)
    ambiguous = np.zeros(len(index), dtype=bool)
    several = (index >= 0) & isin(work.correlation, repeated(launch.correlation))
    if not several.any():
        return Matched(index, ambiguous)
    # The threads that launched on each device, from events whose launch is certain.
    sure = np.flatnonzero((index >= 0) & ~several)
    threads = {
        device: unique(launch.thread[index[sure[indices]]]).values
        for device, indices in rows_by_value(work.device[sure])
    }
    for events, candidates in _alike(np.flatnonzero(several), work, launch):
        # Keep candidates on launching threads; keep all if there are none.
        launching = threads.get(int(work.device[events[0]]), sure[:0])
        near = candidates[isin(launch.thread[candidates], launching)]
        candidates = near if len(near) else candidates
        # The last candidate that started by each event's time, else the first candidate.
        candidates = candidates[np.argsort(launch.start_ns[candidates], kind="stable")]
        starts = launch.start_ns[candidates]
        last = starts[np.maximum(np.searchsorted(starts, work.start_ns[events], side="right") - 1, 0)]
        index[events] = candidates[np.searchsorted(starts, last)]
        hosts = launch.host[candidates]
        ambiguous[events] = hosts.min() != hosts.max()
    return Matched(index, ambiguous)


def _alike(events: Int64, work: DeviceWork, launch: Launch) -> Iterator[tuple[Int64, Int64]]:
    """Yield events of one device with the same ids, and the launches that carry these ids.

    The correlation id must match, and the external id too if any launch has both.
    """
    ids, launch_ids = _numbered(work.correlation[events], launch.correlation)
    outer, launch_outer = _numbered(work.external_id[events], launch.external_id)
    width = max(int(outer.max()), int(launch_outer.max())) + 1
    both, launch_both = ids * width + outer, launch_ids * width + launch_outer
    exact = (work.external_id[events] > 0) & isin(both, launch_both)
    for is_exact, keys, launch_keys in ((True, both, launch_both), (False, ids, launch_ids)):
        order = np.argsort(launch_keys, kind="stable")
        ordered = launch_keys[order]
        chosen = np.flatnonzero(exact == is_exact)
        devices = unique(work.device[events[chosen]])
        for key, indices in rows_by_value(keys[chosen] * len(devices.values) + devices.inverse):
            low, high = np.searchsorted(ordered, [key // len(devices.values), key // len(devices.values) + 1])
            yield events[chosen[indices]], order[low:high]


def _numbered(first: Int64, second: Int64) -> tuple[Int64, Int64]:
    """Number the values of two columns, equal values alike."""
    numbers = unique(np.concatenate((first, second))).inverse
    return numbers[: len(first)], numbers[len(first) :]


#: Steps from an event to the one around it before leaps are worth preparing.
_DIRECT_STEPS = 64


class Links(Struct, frozen=True, kw_only=True):
    """The launch and host row of each device event (-1 if none), the kind of link, and the launch's host time.

    The work of a graph belongs to no operator; `enclosing` is the host row that launched the graph. `thread` is that of
    the launch, -1 if not recorded. `open` is set if several operators may have launched the event.
    """

    launch: Int64
    open: Bool
    host: Int64
    link: Int64
    launched_ns: Int64
    enclosing: Int64
    thread: Int64


def enclosing_rows(thread: Int64, start_ns: Int64, end_ns: Int64, parents: Int64, at: tuple[Int64, Int64]) -> Int64:
    """Return the innermost host row (rows in nesting order) around each (thread, time); -1 if none."""
    rows = last_started(thread, start_ns, at)
    over = _over(rows, end_ns, at[1])
    for _ in range(_DIRECT_STEPS):
        if not len(over):
            return rows
        rows[over] = parents[rows[over]]
        over = over[_over(rows[over], end_ns, at[1][over])]

    # Events nested by the thousand: leaps of 1, 2, 4, ... ancestors that outlast their children.
    above = parents.tolist()
    ends = end_ns.tolist()
    for row in range(len(above)):
        while above[row] >= 0 and ends[above[row]] <= ends[row]:
            above[row] = above[above[row]]
    leaps = [np.array(above, dtype=np.int64)]
    while (leaps[-1] >= 0).any():
        leaps.append(np.where(leaps[-1] >= 0, leaps[-1][leaps[-1]], -1))
    ended = (rows >= 0) & (end_ns[rows] <= at[1])
    for leap in reversed(leaps):
        there = np.where(rows >= 0, leap[rows], -1)
        far = ended & (there >= 0) & (end_ns[there] <= at[1])
        rows = np.where(far, there, rows)
    return np.where(ended, leaps[0][rows], rows)


def _over(rows: Int64, end_ns: Int64, time_ns: Int64) -> Int64:
    """Return the indices of the rows that have ended by these times."""
    indices = np.flatnonzero(rows >= 0)
    return indices[end_ns[rows[indices]] <= time_ns[indices]]


def link_work(work: DeviceWork, launch: Launch, host_external: Int64) -> Links:
    """Link each device event: by correlation to its launch, else by external id to its operator.

    Kineto counts ids from 1; work and calls without a known operator have 0 (as in traces of 2021).
    """
    matched = match(work, launch)
    index, launched = matched.launch, matched.launch >= 0
    host = np.where(launched, _at(launch.host, index), -1)
    outer = np.where(work.external_id > 0, work.external_id, np.where(launched, _at(launch.external_id, index), -1))
    by_external = (host < 0) & (outer > 0)
    host = np.where(by_external, last_of(host_external, outer), host)
    several = by_external & isin(outer, repeated(host_external))
    graph = launched & _at(launch.is_graph.astype(np.int64), index).astype(bool)
    link = np.where(graph, GRAPH, np.where(launched | (host >= 0), LINKED, NO_LAUNCH))
    launched_ns = np.where(launched, _at(launch.start_ns, index), work.start_ns)
    thread = np.where(launched, _at(launch.thread, index), -1)
    return Links(
        launch=index,
        open=matched.open | several,
        host=np.where(graph, -1, host),
        link=link,
        launched_ns=launched_ns,
        enclosing=host,
        thread=thread,
    )


def left_over(link: Int64, work: DeviceWork) -> Bool:
    """Return which work without a launch record was launched before the trace began.

    A stream runs its work in the order of the launches: what runs on it before the first work with a recorded launch
    was launched earlier. The device is often a whole step behind the host when a trace begins. A stream without any
    recorded launch (of NCCL, by a call that the profiler does not know) goes by its device: what begins while other
    streams still run left-over work, or before the first work with a launch, is left over too.
    """
    unknown, recorded = link == NO_LAUNCH, (link == LINKED) | (link == GRAPH)
    left = np.zeros(len(link), dtype=bool)
    for _, events in rows_by_value(work.device) if unknown.any() else ():
        bare = []
        for _, indices in rows_by_value(work.stream[events]):
            stream = events[indices]
            starts = work.start_ns[stream[recorded[stream]]]
            if len(starts):
                left[stream] = unknown[stream] & (work.start_ns[stream] < starts.min())
            else:
                bare.append(stream)
        early = events[left[events]]
        ends = work.start_ns[early] + work.duration_ns[early]
        first = np.sort(work.start_ns[events[recorded[events]]])[:1]
        caught_up = np.concatenate((ends, first)).max(initial=BEFORE_ALL)
        for stream in bare:
            left[stream] = work.start_ns[stream] < caught_up
    return left


def _at(column: Int64, index: Int64) -> Int64:
    return column[np.maximum(index, 0)] if len(column) else np.full(len(index), -1, dtype=np.int64)


class Attribution(Struct, frozen=True, kw_only=True):
    """The phase, module and launch of each event of a trace, and the window that is reported."""

    host: HostTable
    work: WorkTable
    steps: tuple[Step, ...]
    #: Whether no step is annotated, and these end with the optimizers' updates.
    by_updates: bool
    window: tuple[int, int]
    spans: tuple[tuple[int, int, Phase], ...]
    #: The phases compared with the trace's own annotations, or replaced by them; `None` without annotations.
    annotated: Check | None
    #: Rules of the user that match no annotation of the trace.
    unused_rules: tuple[PhaseRule, ...]


def attribute(
    names: Sequence[str],
    host: HostEvents,
    launches: Launches,
    work: DeviceWork,
    flows: Flows = NO_FLOWS,
    rules: Sequence[PhaseRule] = (),
    scopes: Sequence[str] = (),
) -> Attribution:
    """Nest the host events, assign phases, modules and steps, and link the device work to its launches.

    `rules` map the trace's own annotations to phases and take precedence over inference. `scopes` are the modules that
    annotations of CUDA graphs name, by number.
    """
    order, start = order_within_ranges(host)
    thread, duration = host.thread[order], host.duration_ns[order]
    parent = parents_of(thread, start, duration)
    rows = HostRows(
        name=host.name[order],
        thread=thread,
        start_ns=start,
        end_ns=start + duration,
        sequence=host.sequence[order],
        forward_thread=host.forward_thread[order],
        parent=parent,
        annotation=host.annotation[order],
        last=last_inside(thread, start, start + duration),
    )
    kinds = kinds_of(names, rules)
    placed = place(rows, kinds, flows)
    annotated_steps = steps_of(rows, kinds)
    steps = annotated_steps or steps_by_updates(names, rows, placed.nodes)
    launch = Launch(
        thread=launches.thread,
        start_ns=launches.start_ns,
        correlation=launches.correlation,
        external_id=launches.external_id,
        is_graph=rows_named(LAUNCHES_GRAPH, names, launches.name),
        host=enclosing_rows(thread, start, start + duration, parent, (launches.thread, launches.start_ns)),
    )
    links = link_work(work, launch, host.external_id[order])
    window = _window(steps, start, duration, work)
    table = HostTable(
        name=host.name[order],
        thread=thread,
        start_ns=start,
        duration_ns=duration,
        self_ns=self_times(parent, start, duration),
        signature=host.signature[order],
        annotation=rows.annotation,
        external_id=host.external_id[order],
        sequence=rows.sequence,
        forward_thread=rows.forward_thread,
        parent=parent,
        phase=placed.phase,
        module=placed.module,
        in_window=(start >= window[0]) & (start <= window[1]),
    )
    work_table = _work_table(work, links, placed, window, bool(steps), scopes)
    # The events that take time: device work, or on the CPU operators with their self times.
    if len(work.name):
        timed = Timed(row=work_table.host, duration_ns=work_table.duration_ns, phase=work_table.phase)
    else:
        operators = np.flatnonzero(table.annotation == 0)
        timed = Timed(row=operators, duration_ns=table.self_ns[operators], phase=table.phase[operators])
    annotated, stated = annotated_phases(names, rows, kinds, placed, timed)
    if stated is not None:
        table = replace(table, phase=stated.phase)
        work_table = replace(work_table, phase=_phases_of_work(work, links, stated))
    present = [names[number] for number in unique(rows.name[own_ranges(rows, kinds)]).values.tolist()]
    return Attribution(
        host=table,
        work=work_table,
        steps=steps,
        by_updates=bool(steps) and not annotated_steps,
        window=window,
        spans=placed.spans,
        annotated=annotated,
        unused_rules=tuple(rule for rule in rules if not any(rule.pattern.search(name) for name in present)),
    )


def _window(steps: tuple[Step, ...], start: Int64, duration: Int64, work: DeviceWork) -> tuple[int, int]:
    """Return the span from the first step to the end of the last, or the whole trace without steps."""
    if steps:
        return steps[0].start_ns, max(step.end_ns for step in steps)
    begins = [int(column.min()) for column in (start, work.start_ns) if len(column)]
    ends = [
        int((first + long).max())
        for first, long in ((start, duration), (work.start_ns, work.duration_ns))
        if len(first)
    ]
    return min(begins, default=0), max(ends, default=0)


def _work_table(
    work: DeviceWork, links: Links, placed: Placed, window: tuple[int, int], stepped: bool, scopes: Sequence[str]
) -> WorkTable:
    link = links.link
    module: Categorical[str] = placed.module.take(links.enclosing)
    if scopes:
        named = concat(module, Categorical(work.scope, tuple(scopes)))
        own, given = np.split(named.codes, 2)
        module = Categorical(np.where(given >= 0, given, own), named.values)
    if stepped:
        outside = (links.launched_ns < window[0]) | (links.launched_ns > window[1])
        link = np.where(outside | left_over(link, work), OUTSIDE, link)
    return WorkTable(
        name=work.name,
        device=work.device,
        stream=work.stream,
        start_ns=work.start_ns,
        duration_ns=work.duration_ns,
        host=links.host,
        link=link,
        launch=links.launch,
        open=links.open,
        phase=_phases_of_work(work, links, placed),
        module=module,
    )


def _phases_of_work(work: DeviceWork, links: Links, placed: Placed) -> Int64:
    """Return the phase of each device event: that of its launch, in an annotated graph that of its node.

    All work of a graph has the launch of the whole.
    """
    phase = placed.phases_of_launches(links.enclosing, links.thread, links.launched_ns)
    graph = work.node >> 32
    differentiated = (graph > 0) & isin(graph, unique(graph[work.of_backward > 0]).values)
    said = np.where(work.of_backward > 0, PHASE_CODE[Phase.BACKWARD], PHASE_CODE[Phase.FORWARD])
    return np.where(differentiated & ((work.scope >= 0) | (work.of_backward > 0)), said, phase)
