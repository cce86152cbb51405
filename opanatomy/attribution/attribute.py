"""Attribute host events to phases and modules, and device events to the operator calls that launched them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.attribution.linking import Launch, Links, enclosing_rows, left_over, link_work
from opanatomy.attribution.names import PhaseRule, kinds_of, own_ranges
from opanatomy.attribution.nesting import HostRows, last_inside, order_of, parents_of, self_times
from opanatomy.attribution.phases import Placed, Step, Timed, annotated_phases, place, steps_of
from opanatomy.records.anatomy import Check
from opanatomy.records.columns import (
    NO_FLOWS,
    OUTSIDE,
    DeviceWork,
    Flows,
    HostEvents,
    HostTable,
    Int64,
    Launches,
    WorkTable,
    distinct,
    rows_named,
)
from opanatomy.records.taxonomy import Phase

#: Launches of whole graphs: CUDA, HIP, and Intel's command buffers.
_GRAPH = re.compile(r"GraphLaunch|CommandBufferEnqueue")


class Attribution(Struct, frozen=True, kw_only=True):
    """The phase, module and launch of each event of a trace, and the window that is reported."""

    host: HostTable
    work: WorkTable
    steps: tuple[Step, ...]
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
) -> Attribution:
    """Nest the host events, assign phases, modules and steps, and link the device work to its launches.

    `rules` map the trace's own annotations to phases and take precedence over inference.
    """
    order = order_of(host.thread, host.start_ns, host.duration_ns)
    thread, start, duration = host.thread[order], host.start_ns[order], host.duration_ns[order]
    parent = parents_of(thread, start, duration)
    rows = HostRows(
        name=host.name[order], thread=thread, start_ns=start, end_ns=start + duration, sequence=host.sequence[order],
        forward_thread=host.forward_thread[order], parent=parent, annotation=host.annotation[order],
        last=last_inside(thread, start, start + duration),
    )  # fmt: skip
    kinds = kinds_of(names, rules)
    placed = place(rows, kinds, flows)
    steps = steps_of(rows, kinds)
    links = _link(names, host.external_id[order], (thread, start, duration, parent), launches, work)
    window = _window(steps, start, duration, work)
    table = HostTable(
        name=host.name[order], thread=thread, start_ns=start, duration_ns=duration,
        self_ns=self_times(parent, start, duration), signature=host.signature[order],
        annotation=rows.annotation, external_id=host.external_id[order],
        sequence=rows.sequence, forward_thread=rows.forward_thread, parent=parent,
        phase=placed.phase, module=placed.module, in_window=(start >= window[0]) & (start <= window[1]),
    )  # fmt: skip
    work_table = _work_table(work, links, placed, window, bool(steps))
    annotated, stated = annotated_phases(names, rows, kinds, placed, _timed(table, work_table))
    if stated is not placed:
        table = replace(table, phase=stated.phase)
        work_table = replace(work_table, phase=stated.of_launches(links.enclosing, links.thread, links.launched_ns))
    return Attribution(
        host=table,
        work=work_table,
        steps=steps,
        window=window,
        spans=placed.spans,
        annotated=annotated,
        unused_rules=_unused(names, rows.name[own_ranges(rows, kinds)], rules),
    )


def _timed(host: HostTable, work: WorkTable) -> Timed:
    """Return the events that take time: device work, or on the CPU operators with their self times."""
    if len(work.name):
        return Timed(row=work.host, duration_ns=work.duration_ns, phase=work.phase)
    rows = np.flatnonzero(host.annotation == 0)
    return Timed(row=rows, duration_ns=host.self_ns[rows], phase=host.phase[rows])


def _unused(names: Sequence[str], ranges: Int64, rules: Sequence[PhaseRule]) -> tuple[PhaseRule, ...]:
    """Return the rules whose pattern matches the name of no range."""
    present = [names[number] for number in distinct(ranges).values.tolist()]
    return tuple(rule for rule in rules if not any(rule.pattern.search(name) for name in present))


def _link(
    names: Sequence[str],
    host_external: Int64,
    host: tuple[Int64, Int64, Int64, Int64],
    launches: Launches,
    work: DeviceWork,
) -> Links:
    thread, start, duration, parent = host
    at = (launches.thread, launches.start_ns)
    launch = Launch(
        thread=launches.thread, start_ns=launches.start_ns, correlation=launches.correlation,
        external_id=launches.external_id,
        is_graph=rows_named(_GRAPH, names, launches.name),
        host=enclosing_rows(thread, start, start + duration, parent, at),
    )  # fmt: skip
    return link_work(work, launch, host_external)


def _window(steps: tuple[Step, ...], start: Int64, duration: Int64, work: DeviceWork) -> tuple[int, int]:
    """Return the span from the first annotated step to the end of the last, or the whole trace without steps."""
    if steps:
        return steps[0].start_ns, max(step.end_ns for step in steps)
    begins = [int(column.min()) for column in (start, work.start_ns) if len(column)]
    ends = [
        int((first + long).max())
        for first, long in ((start, duration), (work.start_ns, work.duration_ns))
        if len(first)
    ]
    return min(begins, default=0), max(ends, default=0)


def _work_table(work: DeviceWork, links: Links, placed: Placed, window: tuple[int, int], stepped: bool) -> WorkTable:
    link = links.link
    if stepped:
        outside = (links.launched_ns < window[0]) | (links.launched_ns > window[1])
        link = np.where(outside | left_over(link, work), OUTSIDE, link)
    return WorkTable(
        name=work.name, device=work.device, stream=work.stream, start_ns=work.start_ns,
        duration_ns=work.duration_ns, host=links.host, link=link, launch=links.launch, open=links.open,
        phase=placed.of_launches(links.enclosing, links.thread, links.launched_ns),
        module=placed.module.take(links.enclosing),
    )  # fmt: skip
