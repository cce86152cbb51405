"""The stages in order: the only file that knows the order.

trace -> attribution -> classification -> cost -> anatomy. Classification and cost see distinct names and signatures
only and are joined back.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from opanatomy.anatomy import CONVENTIONS, AnatomyInputs, LaunchedWork, build_anatomy
from opanatomy.anatomy.collectives import collectives_of
from opanatomy.anatomy.ranks import with_rank, world_of
from opanatomy.anatomy.roofline import with_roofline
from opanatomy.anatomy.timeline import StepWindow
from opanatomy.attribution import Attribution, PhaseRule, attribute
from opanatomy.attribution.linking import OUTSIDE, enclosing_rows
from opanatomy.calls.kernels import collective_events_of, overlay_of
from opanatomy.calls.table import Calls
from opanatomy.calls.warnings import environment_of, warnings_of_trace
from opanatomy.checks import check_counts, check_memory, check_times, self_checks
from opanatomy.device import Overrides, ceilings_for
from opanatomy.errors import TraceError
from opanatomy.memory import memory_of_observations, memory_of_trace, warnings_of, with_trace
from opanatomy.memory.published import published_run
from opanatomy.memory.savings import savings_of
from opanatomy.memory.theory import ParameterBytes, needed_bytes, with_theory
from opanatomy.records.anatomy import Anatomy, Provenance, Step
from opanatomy.records.checks import Check
from opanatomy.records.columns import CallTable, Categorical, HostCalls, Int64, MemoryTable, categorical
from opanatomy.records.device import DeviceFigures
from opanatomy.records.memory import Memory
from opanatomy.records.memory_observations import MemoryObservations
from opanatomy.records.taxonomy import Phase
from opanatomy.records.timeline import Ledger, Timeline
from opanatomy.records.workload import Environment, Workload
from opanatomy.redaction.records import redacted
from opanatomy.redaction.texts import Texts
from opanatomy.trace import Trace, read_trace
from opanatomy.version import __version__

if TYPE_CHECKING:
    from opanatomy.trace.writer import Annotated


def analyze_trace(
    path: Path,
    *,
    name: str | None = None,
    annotated: Annotated | None = None,
    phases: Sequence[PhaseRule] = (),
    texts: Texts | None = None,
) -> Anatomy:
    """The anatomy of the trace in `path`; `name` is what the report calls the file.

    With `annotated` the trace is also written back, with its classes, phases and rates in it. `phases` say the phases
    of the trace's own annotations. `texts` learn the secrets that its metadata tell: the anatomy still has them.
    """
    trace = read_trace(path)
    if texts is not None:
        texts.learn(trace.metadata)
    attribution = attribute(trace.names, trace.host, trace.launches, trace.work, trace.flows, phases)
    calls = Calls(trace, attribution)
    work = calls.kernel_table() if trace.on_device else None
    if annotated is not None:
        from opanatomy.trace.writer import write_trace

        write_trace(path, annotated, overlay_of(calls), trace.metadata)
    table = calls.table()
    anatomy = build_anatomy(
        AnatomyInputs(
            provenance=_provenance(trace, path, name),
            environment=environment_of(trace),
            capture=trace.capture,
            calls=table,
            work=work,
            launched=_launched_work(trace, attribution) if trace.on_device else None,
            step_window=_step_window(attribution, calls),
            links=calls.links(),
            warnings=(
                *trace.warnings,
                *(trace.capture.warnings if trace.capture else ()),
                *warnings_of_trace(trace, attribution),
            ),
        )
    )
    anatomy = _with_memory(anatomy, trace, attribution)
    anatomy = replace(
        anatomy,
        checks=(*_checks(calls, table, attribution.annotated, anatomy.step.count), *check_memory(anatomy.memory)),
        collectives=collectives_of(collective_events_of(calls, work), world_of(trace.metadata)),
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


def _step_window(attribution: Attribution, calls: Calls) -> StepWindow:
    return StepWindow(
        window=attribution.window,
        steps=tuple((step.start_ns, step.end_ns) for step in attribution.steps),
        numbers=tuple(step.number for step in attribution.steps),
        spans=attribution.spans,
        recording_outside=calls.recording_outside(),
    )


def _with_memory(anatomy: Anatomy, trace: Trace, attribution: Attribution) -> Anatomy:
    """The anatomy with what its capture observed of memory beside theory, and what the trace's memory events tell."""
    observations = trace.capture.memory if trace.capture else MemoryObservations()
    observed, unread = _observed_memory(observations)
    memory = with_trace(observed, _memory(trace, attribution))
    anatomy = replace(anatomy, memory=memory, warnings=(*anatomy.warnings, *unread, *warnings_of(memory)))
    return replace(anatomy, memory=_with_theory(anatomy, observations)) if trace.capture else anatomy


def _observed_memory(observations: MemoryObservations) -> tuple[Memory, tuple[str, ...]]:
    """The memory that a capture observed; of a memory step that cannot be read the storages alone, and a warning."""
    try:
        return memory_of_observations(observations), ()
    except TraceError as error:
        return memory_of_observations(replace(observations, step=None)), (str(error),)


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


def with_ceilings(anatomy: Anatomy, overrides: Overrides | None = None) -> Anatomy:
    """The anatomy with bounds, headroom and utilization by what its device could do; without, and why, where that is
    not known."""
    environment = anatomy.environment
    found = ceilings_for(environment, multiprocessors=environment.multiprocessors, overrides=overrides)
    if found.ceilings is None:
        return replace(anatomy, device=replace(anatomy.device, no_ceilings=found.why_not))
    return with_roofline(anatomy, found.ceilings)


def _launched_work(trace: Trace, attribution: Attribution) -> LaunchedWork:
    """The device work beside its launches, in the order of the file, as the table of work in the window is."""
    return LaunchedWork(
        names=trace.names,
        work=trace.work,
        launches=trace.launches,
        launch=attribution.work.launch,
        inside=attribution.work.link != OUTSIDE,
        device_names=tuple((device.number, device.name) for device in trace.devices),
    )


def anatomy_of_failure(
    observations: MemoryObservations,
    workload: Workload,
    environment: Environment,
    command: str,
    *,
    redact: bool = False,
) -> Anatomy:
    """The report of a step that ran out of memory: what was allocated, what it needs, what would make it fit."""
    nothing = Ledger(
        device_work_ns=0, linked_ns=0, graph_launched_ns=0, no_launch_record_ns=0, outside_window_ns=0, classed_ns=0,
        costed_ns=0, unknown_ns=0,
    )  # fmt: skip
    anatomy = Anatomy(
        provenance=Provenance(opanatomy=__version__, command=command),
        environment=environment, workload=workload, step=Step(), classes=(), ratios=(), operators=(), kernels=(),
        modules=(), memory=memory_of_observations(observations),
        timeline=Timeline(window_ns=0, busy_ns=0, idle_ns=0), device=DeviceFigures(), ledger=nothing,
        conventions=CONVENTIONS,
    )  # fmt: skip
    return redacted(replace(anatomy, memory=_with_theory(anatomy, observations)), Texts(everything=redact))


def _with_theory(anatomy: Anatomy, observations: MemoryObservations) -> Memory:
    """The memory of a capture beside what theory and the published run say."""
    workload, size = anatomy.workload, observations.parameter_bytes
    parameters = None if size is None else ParameterBytes(all=size, trained=observations.trainable_bytes)
    memory = with_theory(anatomy.memory, workload, parameters)
    return replace(
        memory,
        needed_bytes=needed_bytes(memory.shape, workload),
        savings=savings_of(memory.shape, workload, memory),
        published=published_run(
            memory, workload, anatomy.step.samples_per_second, on_cpu=anatomy.environment.device_kind == "cpu"
        ),
    )


def _memory(trace: Trace, attribution: Attribution) -> Memory | None:
    """What the memory events of the trace tell; `None` where it has none."""
    if not len(trace.memory.bytes):
        return None
    host = attribution.host
    calls = HostCalls(
        name=Categorical(host.name, trace.names), module=categorical(host.module), parent=host.parent,
        thread=host.thread, start_ns=host.start_ns, end_ns=host.start_ns + host.duration_ns,
        annotation=host.annotation, phase=_phase_places(attribution),
    )  # fmt: skip
    around = (trace.memory.thread, trace.memory.time_ns)
    call = enclosing_rows(host.thread, calls.start_ns, calls.end_ns, host.parent, around)
    table = MemoryTable(events=trace.memory, call=call, calls=calls, spans=tuple(attribution.spans))
    return memory_of_trace(table, attribution.window, on_device=trace.on_device)


def _phase_places(attribution: Attribution) -> Int64:
    """The phase of each host event as a place in `Phase`."""
    places = {phase: place for place, phase in enumerate(Phase)}
    return np.array([places[phase] for phase in attribution.host.phase], dtype=np.int64)


def _extent(trace: Trace) -> tuple[int | None, int | None]:
    """When the first event began and the last ended. Today's traces count from a base that they name, in ns."""
    base = trace.metadata.get("baseTimeNanoseconds")
    base = base if type(base) is int and 0 <= base < 1 << 62 else 0
    columns = [one for one in (trace.host, trace.launches, trace.work) if len(one.start_ns)]
    if not columns:
        return None, None
    begin = min(int(one.start_ns.min()) for one in columns)
    return base + begin, base + max(int((one.start_ns + one.duration_ns).max()) for one in columns)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
