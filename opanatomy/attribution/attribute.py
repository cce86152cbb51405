"""Attribute host events to phases and modules, and device events to the operator calls that launched them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.attribution.links import Links, left_over, link_work
from opanatomy.attribution.nesting import (
    HostRows,
    innermost_at,
    last_inside,
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
    NO_FLOWS,
    OUTSIDE,
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
    rows_named,
    unique,
)
from opanatomy.records.runtime_calls import LAUNCHES_GRAPH
from opanatomy.records.taxonomy import PHASE_CODE, Phase


class Attribution(Struct, frozen=True, kw_only=True):
    """The phase, module and launch of each event of a trace, and the window that is reported."""

    host: HostTable
    work: WorkTable
    steps: tuple[Step, ...]
    #: Whether no step is annotated, and these end with the optimizers' updates.
    by_updates: bool
    window: tuple[int, int]
    spans: tuple[tuple[int, int, Phase], ...]
    #: Comparison of phases with the trace's own annotations, or their replacement by these; `None` without annotations.
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
    around = innermost_at(rows, launches.thread, launches.start_ns)
    is_graph = rows_named(LAUNCHES_GRAPH, names, launches.name)
    links = link_work(work, launches, around, is_graph, host.external_id[order])
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
        operators = np.flatnonzero(table.is_operator)
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
        ambiguous=links.ambiguous,
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
