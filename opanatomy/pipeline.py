"""The stages in order: the only file that knows the order.

trace -> attribution -> classification -> cost -> anatomy. Classification and cost see distinct names and signatures
only and are joined back.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from opanatomy.anatomy import CONVENTIONS, Findings, Queue, build_anatomy
from opanatomy.anatomy.collectives import collectives_of
from opanatomy.anatomy.ranks import with_rank, world_of
from opanatomy.anatomy.roofline import with_roofline
from opanatomy.anatomy.timeline import Clock
from opanatomy.attribution import Attribution, PhaseRule, attribute
from opanatomy.attribution.linking import GRAPH, OUTSIDE, enclosing_rows, last_of
from opanatomy.calls import Calls
from opanatomy.checks import check_counts, check_times, self_checks
from opanatomy.device import Overrides, ceilings_for
from opanatomy.memory import doubts_of, memory_of_trace, with_trace
from opanatomy.memory.published import published_run
from opanatomy.memory.theory import needed_bytes, savings_of, with_theory
from opanatomy.model import (
    Anatomy,
    Check,
    DeviceFigures,
    Environment,
    Ledger,
    Memory,
    Phase,
    Provenance,
    Step,
    Timeline,
    Workload,
)
from opanatomy.pieces import overlay_of, talks_of
from opanatomy.tables import CallTable
from opanatomy.trace import Trace, read_trace
from opanatomy.version import __version__

if TYPE_CHECKING:
    from opanatomy.trace.writer import Annotated

#: Kernels that no forward runs.
_NO_FORWARD = re.compile(r"backward|_bwd|bwd_|wgrad|multi_tensor_apply|fused_?adam", re.IGNORECASE)


def analyze_trace(
    path: Path,
    *,
    name: str | None = None,
    annotated: Annotated | None = None,
    phases: Sequence[PhaseRule] = (),
) -> Anatomy:
    """The anatomy of the trace in `path`; `name` is what the report calls the file.

    With `annotated` the trace is also written back, with its classes, phases and rates in it. `phases` say the phases
    of the trace's own annotations.
    """
    trace = read_trace(path)
    attribution = attribute(trace.names, trace.host, trace.launches, trace.work, trace.flows, phases)
    calls = Calls(trace, attribution)
    work = calls.pieces_table() if trace.on_device else None
    if annotated is not None:
        from opanatomy.trace.writer import write_trace

        write_trace(path, annotated, overlay_of(calls), trace.metadata)
    table = calls.table()
    anatomy = build_anatomy(
        Findings(
            provenance=_provenance(trace, path, name),
            environment=_environment(trace),
            capture=trace.capture,
            calls=table,
            work=work,
            queue=_queue(trace, attribution) if trace.on_device else None,
            clock=_clock(attribution, calls),
            links=calls.links(),
            warnings=(
                *trace.warnings,
                *(trace.capture.warnings if trace.capture else ()),
                *_doubts(trace, attribution),
            ),
        )
    )
    anatomy = _with_memory(anatomy, trace, attribution)
    anatomy = replace(
        anatomy,
        checks=_checks(calls, table, attribution.annotated, anatomy.step.count),
        collectives=collectives_of(talks_of(calls, work), world_of(trace.metadata)),
    )
    return with_rank(anatomy, trace.metadata)


def _provenance(trace: Trace, path: Path, name: str | None) -> Provenance:
    begin_unix_ns, end_unix_ns = _extent(trace)
    return Provenance(
        opanatomy=__version__,
        command=trace.capture.command if trace.capture else None,
        created=trace.capture.created if trace.capture else None,
        trace=os.fsencode(name or path.name).decode(errors="replace"),
        trace_sha256=_sha256(path),
        begin_unix_ns=begin_unix_ns,
        end_unix_ns=end_unix_ns,
    )


def _clock(attribution: Attribution, calls: Calls) -> Clock:
    return Clock(
        window=attribution.window,
        steps=tuple((step.start_ns, step.end_ns) for step in attribution.steps),
        numbers=tuple(step.number for step in attribution.steps),
        spans=attribution.spans,
        recording_outside=calls.recording_outside(),
    )


def _with_memory(anatomy: Anatomy, trace: Trace, attribution: Attribution) -> Anatomy:
    """The anatomy with what the trace's memory events tell, that of a capture beside theory."""
    found = _memory(trace, attribution)
    anatomy = replace(
        anatomy,
        memory=with_trace(anatomy.memory, found),
        warnings=(*anatomy.warnings, *(doubts_of(found) if found else ())),
    )
    return replace(anatomy, memory=_beside_theory(anatomy)) if trace.capture else anatomy


def _checks(calls: Calls, table: CallTable, annotated: Check | None, steps: int) -> tuple[Check, ...]:
    """The figures of the trace against second sources."""
    capture = calls.trace.capture
    times = check_times(calls, table, capture)
    return (
        *check_counts(calls, table, capture, steps),
        *((times,) if times else ()),
        *self_checks(calls),
        *((annotated,) if annotated else ()),
    )


def beside_ceilings(anatomy: Anatomy, overrides: Overrides | None = None) -> Anatomy:
    """The anatomy with bounds, headroom and utilization by what its device could do; without, and why, where that is
    not known."""
    environment = anatomy.environment
    found = ceilings_for(environment, multiprocessors=environment.multiprocessors, overrides=overrides)
    if found.ceilings is None:
        return replace(anatomy, device=replace(anatomy.device, no_ceilings=found.why_not))
    return with_roofline(anatomy, found.ceilings)


def _queue(trace: Trace, attribution: Attribution) -> Queue:
    """The device work beside its launches, in the order of the file, as the table of work in the window is."""
    return Queue(
        names=trace.names,
        work=trace.work,
        launches=trace.launches,
        launch=last_of(trace.launches.correlation, trace.work.correlation),
        inside=attribution.work.link != OUTSIDE,
    )


def anatomy_of_failure(memory: Memory, workload: Workload, environment: Environment, command: str) -> Anatomy:
    """The report of a step that ran out of memory: what was allocated, what it needs, what would make it fit."""
    nothing = Ledger(
        device_work_ns=0, linked_ns=0, graph_launched_ns=0, no_launch_record_ns=0, outside_window_ns=0, classed_ns=0,
        costed_ns=0, unknown_ns=0,
    )  # fmt: skip
    anatomy = Anatomy(
        provenance=Provenance(opanatomy=__version__, command=command),
        environment=environment, workload=workload, step=Step(), classes=(), ratios=(), operators=(), kernels=(),
        modules=(), memory=memory, timeline=Timeline(window_ns=0, busy_ns=0, idle_ns=0), device=DeviceFigures(),
        ledger=nothing, conventions=CONVENTIONS,
    )  # fmt: skip
    return replace(anatomy, memory=_beside_theory(anatomy))


def _beside_theory(anatomy: Anatomy) -> Memory:
    """The memory of a capture beside what theory and the published run say."""
    workload, memory = anatomy.workload, with_theory(anatomy.memory, anatomy.workload)
    return replace(
        memory,
        needed_bytes=needed_bytes(memory.shape, workload),
        savings=savings_of(memory.shape, workload, memory),
        published=published_run(memory, workload, anatomy.step.samples_per_second),
    )


def _memory(trace: Trace, attribution: Attribution) -> Memory | None:
    """What the memory events of the trace tell; `None` where it has none."""
    events, host = trace.memory, attribution.host
    end_ns = host.start_ns + host.duration_ns
    around = enclosing_rows(host.thread, host.start_ns, end_ns, host.parent, (events.thread, events.time_ns))
    return memory_of_trace(
        events, around, host, trace.names,
        window=attribution.window, spans=attribution.spans, on_device=trace.on_device,
    )  # fmt: skip


def _extent(trace: Trace) -> tuple[int | None, int | None]:
    """When the first event began and the last ended. Today's traces count from a base that they name, in ns."""
    base = trace.metadata.get("baseTimeNanoseconds")
    base = base if type(base) is int and 0 <= base < 1 << 62 else 0
    columns = [one for one in (trace.host, trace.launches, trace.work) if len(one.start_ns)]
    if not columns:
        return None, None
    begin = min(int(one.start_ns.min()) for one in columns)
    return base + begin, base + max(int((one.start_ns + one.duration_ns).max()) for one in columns)


def _environment(trace: Trace) -> Environment:
    """What the trace says of its device; one without any accelerator's events is of the CPU."""
    if trace.on_device or trace.environment.device_kind:
        return trace.environment
    return replace(trace.environment, device_kind="cpu")


def _doubts(trace: Trace, attribution: Attribution) -> tuple[str, ...]:
    """What a reader should know before trusting the figures."""
    doubts = []
    launches = len(trace.launches.name)
    if launches and not len(trace.work.name):
        doubts.append(f"the trace has {launches:,} launches but no device work: its kernels were not recorded")
    doubts.extend(
        f"no annotation of the trace has a name in which {rule.pattern.pattern!r} is found: it gives nothing to the"
        f" phase {rule.phase}"
        for rule in attribution.unused_rules
    )
    for one in attribution.annotated.unexplained if attribution.annotated else ():
        elsewhere = (one.other or 0) - (one.ours or 0)
        doubts.append(
            f"{elsewhere / max(one.other or 0, 1):.1%} of the time that the trace's own annotations call {one.phase}"
            f" lies in another phase: {one.evidence}"
        )
    whole = _backward_in_graphs(trace, attribution)
    if whole:
        doubts.append(
            f"graphs ran {whole / 1e6:,.3f} ms of kernels that by their names are of a backward or an optimizer, but"
            " were launched in forward: a graph of whole steps does not tell its phases"
        )
    return tuple(doubts)


def _backward_in_graphs(trace: Trace, attribution: Attribution) -> int:
    """Nanoseconds of the kernels of graphs launched in forward whose names say another phase."""
    work = attribution.work
    names = np.array([_NO_FORWARD.search(name) is not None for name in trace.names], dtype=bool)
    rows = np.flatnonzero((work.link == GRAPH) & names[work.name]).tolist() if len(work.name) else []
    return sum(int(work.duration_ns[row]) for row in rows if work.phase[row] is Phase.FORWARD)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
