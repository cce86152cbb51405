"""Find the window of a trace: its steps, its device work with the launches, and how much is traced back to them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from opanatomy.analysis.build import MeasuredSteps
from opanatomy.analysis.idle import LOADS_DATA
from opanatomy.analysis.intervals import Intervals, LaunchedWork, union, within
from opanatomy.analysis.step import step_at
from opanatomy.analysis.timeline import StepWindow
from opanatomy.attribution.attribute import Attribution
from opanatomy.attribution.calls import TraceCalls, only_in
from opanatomy.attribution.table import cpu_rows
from opanatomy.records.anatomy import LinkedTime
from opanatomy.records.columns import (
    GRAPH,
    KERNEL,
    LINKED,
    NO_LAUNCH,
    OUTSIDE,
    Bool,
    CallTable,
    Int64,
    isin,
    rows_by_value,
    rows_named,
    starts_work,
    unique,
)
from opanatomy.records.patterns import regex
from opanatomy.records.runtime_calls import LAUNCHES, STARTS_RECORDED_WORK, STREAM_WAITS, WAITS
from opanatomy.records.taxonomy import PHASE_CODE, Phase
from opanatomy.records.workload import Environment
from opanatomy.trace.devices import entries_of, has_accelerator, unlike, unused_gpu
from opanatomy.trace.devices import environment_of as environment_of_header
from opanatomy.trace.merged import merged_ranks
from opanatomy.trace.read import Trace

# ----- what a reader should know before trusting the figures of a trace


#: Kernels that no forward runs.
_NO_FORWARD: Final = regex(r"backward|_bwd|bwd_|wgrad|multi_tensor_apply|fused_?adam", re.IGNORECASE)
#: Share of device time without a launch record above which a warning is issued; the ledger always states it.
_MUCH_UNLAUNCHED: Final = 0.01
#: FLOPs in a nanosecond that no CPU reaches.
_NO_CPU: Final = 200_000
_CAPTURE: Final = (regex(r"StreamBeginCapture"), regex(r"StreamEndCapture"))


def environment_of(trace: Trace, calls: CallTable) -> Environment:
    """Return where the trace ran: the device of its kernels, or the CPU if it shows no accelerator."""
    environment = trace.environment
    if trace.on_device:
        device = _other_device(trace)
        return environment if device is None else replace(environment, **device)
    if trace.capture is not None and environment.device_kind == "cpu":
        return environment
    # Neither the name nor the ceilings of a GPU without an event belong to these times.
    cpu = replace(
        environment, device=None, device_kind="cpu", device_count=None, device_memory_bytes=None, multiprocessors=None
    )
    if _without_events(trace, calls) is None:
        return cpu
    # Nor do those of the processor.
    unread = next((rows.name for rows in trace.unread if rows.of_device), None)
    return replace(cpu, device=unread, host_only=True, device_count=environment.device_count or 1, processor=None)


def caveats_of(trace: Trace, calls: CallTable) -> tuple[str, ...]:
    """Return caveats that affect every figure of a trace."""
    lines = [*trace.caveats]
    if (ranks := merged_ranks(trace)) > 1:
        lines.append(
            f"{ranks} ranks are merged in this file: every sum covers all of them, and simultaneous work of"
            " different ranks is merged - analyze the individual ranks' traces"
        )
    lines += _device_warnings(trace, calls)
    load = trace.environment.load
    if load is not None and load.busy:
        lines.append(
            f"the machine was busy: utilization by other work was {load.text} the steps. All times are longer than on"
            " an idle machine, by an unknown amount - run again when the machine is idle"
        )
    return tuple(lines)


def warnings_of_trace(trace: Trace, attribution: Attribution) -> tuple[str, ...]:
    """Return warnings about what the trace lacks, leaves open or cannot have right."""
    work, inside = attribution.work, attribution.work.link != OUTSIDE
    lines = []
    ambiguous = work.ambiguous & inside
    if ambiguous.any():
        spent = int(work.duration_ns[ambiguous].sum()) / 1e6
        lines.append(
            f"{_events(int(ambiguous.sum()))} ({spent:,.3f} ms) have an id that launches of several"
            " operators share: each is linked to the last launch that started before it"
        )

    sure = (work.launch >= 0) & (work.link != GRAPH) & ~work.ambiguous
    kernels = inside & sure & (trace.work.kind == KERNEL)
    launch, device = work.launch[kernels], trace.work.device[kernels]
    shared = _repeated(launch) - _repeated(launch, device)
    if shared:
        lines.append(
            f"{shared:,} {'launch also has' if shared == 1 else 'launches also have'} kernels on a second device:"
            " these kernels belong to a process whose"
            " launches the trace lacks, so their operators, phases and modules may be wrong"
        )

    # Work without a launch record, if other work has one and this is more than a little.
    unlaunched = work.link == NO_LAUNCH
    spent, whole = (int(trace.work.duration_ns[events].sum()) for events in (unlaunched, inside))
    if len(trace.launches.name) and spent and spent >= whole * _MUCH_UNLAUNCHED:
        lines.append(
            f"{_events(int(unlaunched.sum()))} ({spent / 1e6:,.3f} ms, {spent / whole:.1%}) have no launch in"
            " the trace: their operators, phases and modules are unknown"
        )

    for rule in attribution.unused_rules:
        lines.append(
            f"no annotation in the trace matches {rule.pattern.pattern!r}, so this pattern adds nothing to the phase"
            f" {rule.phase}"
        )
    for difference in attribution.annotated.unexplained if attribution.annotated else ():
        elsewhere = (difference.other or 0) - (difference.ours or 0)
        lines.append(
            f"{elsewhere / max(difference.other or 0, 1):.1%} of the time that the trace's own annotations assign to"
            f" {difference.phase} is in another phase here: {difference.evidence}"
        )

    # Graphs launched in forward with kernels whose names say another phase.
    graphed = np.flatnonzero((work.link == GRAPH) & (work.phase == PHASE_CODE[Phase.FORWARD]))
    graphed = graphed[rows_named(_NO_FORWARD, trace.names, work.name[graphed])]
    if whole := int(work.duration_ns[graphed].sum()):
        lines.append(
            f"graphs launched in forward ran {whole / 1e6:,.3f} ms of kernels with names like those of backward or the"
            " optimizer: a graph of an entire step hides its phases"
        )
    return tuple(lines)


def _other_device(trace: Trace) -> dict[str, Any] | None:
    """Return the device that ran a capture's kernels, if it differs in kind from the one the capture states."""
    ran = next((device for device in trace.devices if device.kernel_ns), None)
    if trace.capture is None or ran is None or not ran.name or ran.name == trace.environment.device:
        return None
    ours = environment_of_header(trace.metadata, trace.devices, trace.memory)
    return {
        "device": ran.name,
        "device_kind": ours.device_kind,
        "device_memory_bytes": ran.memory_bytes,
        "multiprocessors": ran.multiprocessors,
    }


def _without_events(trace: Trace, calls: CallTable) -> str | None:
    """Return what shows an accelerator in a trace without its events; `None` if the step ran on the CPU."""
    if trace.on_device or (trace.capture is not None and trace.environment.device_kind == "cpu"):
        return None
    if trace.capture is not None and trace.environment.device is not None:
        return f"is from a GPU ({trace.environment.device})"
    if unread := next((rows.name for rows in trace.unread if rows.of_device), None):
        return f"contains rows of {unread}"
    if trace.cut_off and entries_of(trace.metadata):
        return "names a GPU"
    if shown := has_accelerator(trace.memory, _operator_names(trace)):
        return shown

    # A wait for a device in an operator; the waits of a profiler, or of a script, are around operators.
    launches, host = trace.launches, trace.host
    of_host, of_streams = (rows_named(waits, trace.names, launches.name) for waits in (WAITS, STREAM_WAITS))
    waits = np.flatnonzero(of_host | of_streams)
    operators, begins = host.is_operator, launches.start_ns[waits]
    inside = within(union(host.start_ns[operators], host.duration_ns[operators]), begins, begins + 1)
    waits = waits[inside > 0]
    if len(waits):
        return f"contains {trace.names[launches.name[waits[0]]]} inside an operator"

    # Operators with known FLOPs took less time than any CPU needs for these: they were launched.
    known = calls.flops > 0
    flops, ns = float(calls.flops[known].sum()), int(calls.time_ns[known].sum())
    if entries_of(trace.metadata) and flops > _NO_CPU * ns:
        return f"has operators at {flops / ns / 1e3:,.0f} TFLOP/s, faster than any CPU,"
    return None


def _operator_names(trace: Trace) -> list[str]:
    """Return the names of operators by total duration, longest first."""
    operators = trace.host.is_operator
    numbers = unique(trace.host.name[operators])
    times = np.bincount(numbers.inverse, trace.host.duration_ns[operators], len(numbers.values))
    return [trace.names[number] for number in numbers.values[np.argsort(-times, kind="stable")].tolist()]


def _device_warnings(trace: Trace, calls: CallTable) -> Iterator[str]:
    missing, unread = _without_events(trace, calls), [rows for rows in trace.unread if rows.of_device]
    # The profiler writes the device's events last.
    again = "use the complete file" if trace.cut_off else None
    if unread:
        host = "" if len(trace.work.name) else " All times are host times of launching and waiting"
        rows = " and ".join(each.text for each in unread[:3])
        yield f"device events of {rows} are not supported: no number here covers that device.{host}"
    elif missing is not None:
        todo = "record again with the device's activities (ProfilerActivity.CUDA) where CUPTI (or roctracer) works"
        yield (
            f"only the host was recorded: the trace {missing} but has no GPU events. All times are host times"
            f" of launching and waiting; device activity is unknown - {again or todo}"
        )
    elif trace.on_device and not len(trace.work.name):
        count = int(starts_work(trace.names, trace.launches).sum())
        yield (
            f"no device work was recorded, only {count:,} launch{'' if count == 1 else 'es'}: what the device did"
            f" and when it was idle are unknown - {again or 'record again where CUPTI (or roctracer) works'}"
        )
    elif trace.capture is None:
        unused = None if trace.on_device else unused_gpu(trace.metadata, _operator_names(trace))
        if (line := unused or unlike(trace.devices)) is not None:
            yield line
    if trace.capture is not None and _other_device(trace):
        yield (
            f"the capture names {trace.environment.device}, but the kernels ran on {trace.devices[0].name}: the"
            " latter's peaks are used"
        )


def _events(count: int) -> str:
    return f"{count:,} device event{'' if count == 1 else 's'}"


def _repeated(*columns: Int64) -> int:
    """Count duplicate rows; rows equal in the first column are rare."""
    order = np.argsort(columns[0], kind="stable")
    first = columns[0][order]
    same = first[1:] == first[:-1]
    if len(columns) == 1 or not same.any():
        return int(same.sum())
    alike = order[np.append(same, False) | np.append(False, same)]
    rows = np.stack([column[alike] for column in columns], axis=1)
    return len(rows) - len(set(map(tuple, rows.tolist())))


def launches_of_work(trace: Trace) -> Bool:
    """Return which launches start a kernel or a copy; a fill of zero bytes leaves no event."""
    starts = rows_named(STARTS_RECORDED_WORK, trace.names, trace.launches.name)
    rows: Bool = starts & (trace.launches.correlation > 0)
    return rows


def lost_launches(trace: Trace, window: tuple[int, int]) -> Int64:
    """Return launches in the window whose work the trace lacks; those that a graph captured did not run."""
    launches = trace.launches
    # Between the begin and the end of a stream capture on their thread.
    captured = np.zeros(len(launches.name), dtype=bool)
    edges = [rows_named(pattern, trace.names, launches.name) for pattern in _CAPTURE]
    for _, rows in rows_by_value(launches.thread) if edges[0].any() else ():
        rows = rows[np.argsort(launches.start_ns[rows], kind="stable")]
        opened, closed = (np.cumsum(edge[rows]) for edge in edges)
        captured[rows] = opened > closed
    inside = (launches.start_ns >= window[0]) & (launches.start_ns <= window[1])
    known = isin(launches.correlation, trace.work.correlation)
    lost: Int64 = np.flatnonzero(launches_of_work(trace) & inside & ~known & ~captured)
    return lost


def step_window_of(names: Sequence[str], attribution: Attribution, calls: TraceCalls) -> StepWindow:
    """Return the window and its steps on the host clock."""
    host = attribution.host
    loads = rows_named(LOADS_DATA, names, host.name)
    return StepWindow(
        loading=union(host.start_ns[loads], host.duration_ns[loads]),
        window=attribution.window,
        steps=tuple((step.start_ns, step.end_ns) for step in attribution.steps),
        numbers=tuple(step.number for step in attribution.steps),
        by_updates=attribution.by_updates,
        spans=attribution.spans,
        recording_outside=_recording_outside(calls),
    )


def launched_work(trace: Trace, attribution: Attribution) -> LaunchedWork:
    """Return the device work with its launches, in the order of the file, like the table of kernels."""
    # A copy of nothing leaves no event either: only kernels and graphs are known to have run.
    hidden = lost_launches(trace, attribution.window)
    hidden = hidden[rows_named(LAUNCHES, trace.names, trace.launches.name[hidden])]
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
    return calls_of_steps(calls, steps)


def calls_of_steps(calls: TraceCalls, steps: MeasuredSteps) -> TraceCalls:
    """Keep the calls that the host made in the steps that count."""
    spans = steps.window.steps
    if not spans:
        return calls
    begins, ends = (np.array([span[edge] for span in spans], dtype=np.int64) for edge in (0, 1))
    step = step_at(begins, ends, calls.host.start_ns)
    return only_in(calls, (step >= 0) & steps.counted[step], np.ones(len(calls.work.name), dtype=bool))


def counted_spans(steps: MeasuredSteps, window: tuple[int, int]) -> Intervals:
    """Return when the host was in a step that counts, without steps in the window."""
    spans = steps.window.steps or (window,)
    counted = steps.counted if len(steps.counted) == len(spans) else np.ones(len(spans), dtype=bool)
    begins, ends = (np.array([span[edge] for span in spans], dtype=np.int64)[counted] for edge in (0, 1))
    return begins, ends


def linked_time(calls: TraceCalls, every: TraceCalls) -> LinkedTime:
    """Return device work by how it was traced back; `every` has the calls of all steps."""
    if not calls.on_device:
        rows = cpu_rows(calls, within=False)
        whole, inside, all_steps = (
            int(column[rows].sum()) for column in (calls.host.self_ns, calls.time_ns, every.time_ns)
        )
        return LinkedTime(linked_ns=inside, outside_window_ns=whole - inside, set_aside_ns=all_steps - inside)
    spent = {
        link: int(calls.work.duration_ns[calls.work.link == link].sum()) for link in (LINKED, GRAPH, NO_LAUNCH, OUTSIDE)
    }
    before = int(every.work.duration_ns[every.work.link == OUTSIDE].sum())
    return LinkedTime(
        linked_ns=spent[LINKED],
        graph_launched_ns=spent[GRAPH],
        no_launch_record_ns=spent[NO_LAUNCH],
        outside_window_ns=spent[OUTSIDE],
        set_aside_ns=spent[OUTSIDE] - before,
    )


def _recording_outside(calls: TraceCalls) -> float:
    """Return the fraction of the profiler overhead on the CPU outside operators, from the window's events.

    Recording an event costs time at both ends, about half of it inside the event and half around it, in the parent
    event: an operator's time contains its own inner half and the outer halves of its children.
    """
    inside = np.flatnonzero(calls.host.in_window)
    if calls.on_device or not len(inside):
        return 1.0
    operators = np.zeros(len(calls.host.name) + 1, dtype=bool)
    operators[cpu_rows(calls, within=True)] = True
    # A row without a parent has the last place, which is no operator.
    in_operators = operators[inside].sum() + operators[calls.host.parent[inside]].sum()
    return float(1 - in_operators / (2 * len(inside)))
