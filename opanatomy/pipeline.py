"""Run the stages in order, for one trace and for the ranks of a run: the only file that knows the order.

trace -> attribution -> classification and cost, which see distinct names and signatures only -> calls -> anatomy and
memory. Ranks are analyzed one at a time, then put together.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, closing
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from opanatomy.analysis.advice import ordered, with_advice
from opanatomy.analysis.build import (
    CONVENTIONS,
    AnatomyInputs,
    MeasuredSteps,
    build_anatomy,
    measured_steps,
    text_figures,
)
from opanatomy.analysis.communication import collectives_of, communication_of, communication_of_rank, with_expected
from opanatomy.analysis.evidence import situation_of
from opanatomy.analysis.host import host_rows, thread_events
from opanatomy.analysis.lanes import MOST_SPANS, RankLanes, device_over_steps, lanes_of, lanes_of_ranks
from opanatomy.analysis.ranks import RankMerger, with_rank, world_of
from opanatomy.analysis.replay import Change, StepGraph, replay_of, replayed_gain, with_together
from opanatomy.analysis.roofline import with_roofline
from opanatomy.analysis.spans import Interval, longest_spans, spans_in
from opanatomy.analysis.waiting import RankTables, matched_of, waiting_of
from opanatomy.analysis.window import (
    calls_of_steps,
    calls_that_count,
    caveats_of,
    counted_spans,
    environment_of,
    launched_work,
    linked_time,
    step_window_of,
    warnings_of_trace,
)
from opanatomy.attribution.attribute import Attribution, attribute
from opanatomy.attribution.calls import TraceCalls, trace_calls_of
from opanatomy.attribution.collectives import collective_table
from opanatomy.attribution.lines import stacks_of, with_lines
from opanatomy.attribution.nesting import innermost_at
from opanatomy.attribution.phases import PhaseRule
from opanatomy.attribution.table import call_table, kernel_table, overlay_of, padding_flops
from opanatomy.checks.causality import check_causality, check_waits
from opanatomy.checks.counts import check_communication, check_counts, check_memory, check_parts, check_times
from opanatomy.classification.operators import classify_operator, operator_of_overload
from opanatomy.devices.ceilings import ceilings_for
from opanatomy.devices.overrides import Overrides
from opanatomy.errors import TraceError, UsageError
from opanatomy.io.files import Address
from opanatomy.io.redact import Redactor, redacted
from opanatomy.io.sources import Source, left_out_of, sources_of, spooled
from opanatomy.memory.inferred import memory_of_trace
from opanatomy.memory.observed import memory_of_observations, warnings_of, with_trace
from opanatomy.memory.snapshots import Category, memory_of_snapshot
from opanatomy.memory.theory import ParameterBytes, nearly_full, needed_bytes, published_run, savings_of, with_theory
from opanatomy.parallel import ClusterSettings, Reduced, outcomes, packed_summary, unpacked_summary
from opanatomy.records.anatomy import (
    FIRST,
    Anatomy,
    Check,
    DeviceFigures,
    Ledger,
    Provenance,
    RankSummary,
    Replay,
    Step,
    Timeline,
)
from opanatomy.records.columns import CallTable, Categorical, HostCalls, KernelTable, MemoryTable, unique
from opanatomy.records.memory import Memory
from opanatomy.records.snapshot import Snapshot
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.records.work import NO_WORK
from opanatomy.records.workload import Environment, MemoryObservations, SharedWeights, Workload
from opanatomy.trace.merged import merged_ranks, taken_apart
from opanatomy.trace.read import Trace, read_trace
from opanatomy.trace.snapshot import is_pickle, read_snapshot
from opanatomy.version import __version__

if TYPE_CHECKING:
    from opanatomy.trace.write import Annotated

_UNLIKE_STEPS: Final = "the counted steps differ between ranks, so numbers over all ranks mix different steps"
_NOTHING_KEPT: Final = ClusterSettings(keep=False)


def analyze_traces(
    paths: Sequence[Path | Address],
    *,
    annotated: Annotated | None = None,
    ceilings: Overrides | None = None,
    advance: Callable[[float], None] = lambda share: None,
    phases: Sequence[PhaseRule] = (),
    redact: bool = False,
    cluster: ClusterSettings = _NOTHING_KEPT,
    note: Callable[[str], None] = lambda text: None,
    at: str | None = None,
    what_if: Sequence[Change] = (),
    timeline: str | None = None,
    categories: Sequence[Category] = (),
) -> Anatomy:
    """Return the anatomy of a trace, or of all ranks in several files, a folder or a zip; it has no secrets in it.

    Of CUDA memory snapshots it is what fills the memory, `at` its peak, the end, where memory ran out or a time, with
    `categories` of the user's own among the components.

    A rank that cannot be read is a warning while another one can; `TraceError` if none can, `UsageError` if two cannot
    be ranks of one run. `advance` gets the completed fraction. `annotated` is for one trace. `ceilings` override the
    device's known ones. `phases` map the traces' own annotations to phases. `what_if` are changes whose gain a replay
    of the trace determines, each and all together. With `timeline` "full" the lanes have every event of their step.
    With `redact` paths, arguments, hosts and users are left out as well. `cluster` says how ranks are read and where
    their summaries are kept (nowhere by default); `note` gets messages about that for the user.
    """
    redactor = Redactor(everything=redact)
    with spooled(paths) as files:
        sources = sources_of(files)
        snapshots = [one for one in sources if isinstance(one.path, Path) and not one.member and is_pickle(one.path)]
        if snapshots:
            if len(snapshots) < len(sources):
                raise UsageError("both memory snapshots and traces are given - analyze them separately")
            if annotated is not None:
                raise UsageError("--trace: the input is a memory snapshot, not a trace - leave the option out")
            of_traces = {"--what-if": what_if, "--phase": phases, "--timeline": timeline}
            if given := [option for option, value in of_traces.items() if value]:
                raise UsageError(f"{given[0]} applies only to traces, and this is a memory snapshot - leave it out")
            return redacted(with_advice(_anatomy_of_snapshots(snapshots, advance, at, categories)), redactor)
        if at is not None:
            raise UsageError(f"--at {at} applies only to memory snapshots, and this is a trace - leave it out")
        if categories:
            raise UsageError("--category applies only to memory snapshots, and this is a trace - leave it out")
        if len(sources) > 1 and annotated is not None:
            raise UsageError(f"--trace needs a single trace, but {len(sources)} are given - pass only one TRACE")
        if files != list(paths):  # a trace that came through a pipe is in a temporary file
            cluster = replace(cluster, keep=False, summaries=None)

        def together(ranks: Sequence[Source], cluster: ClusterSettings) -> Anatomy:
            return _together(files, ranks, phases, cluster, note, advance, redactor)

        if len(sources) > 1 and what_if:
            raise UsageError(f"--what-if needs a single trace, but {len(sources)} are given - pass only one TRACE")
        if len(sources) > 1 and timeline is not None:
            raise UsageError(f"--timeline needs a single trace, but {len(sources)} are given - pass only one TRACE")
        if len(sources) > 1:
            return redacted(with_ceilings(together(sources, cluster), ceilings), redactor)
        source, graphs = sources[0], list[StepGraph]()
        with ExitStack() as stack:
            path = stack.enter_context(source.opened())
            trace, ranks = read_trace(path), None
            if merged_ranks(trace) > 1 and annotated is None:
                ranks = stack.enter_context(taken_apart(path, trace.metadata, source.name))
            if ranks is not None:
                del trace
                anatomy = together(ranks.sources, replace(cluster, keep=False, summaries=None))
                anatomy = replace(anatomy, warnings=(*anatomy.warnings, ranks.warning))
            else:
                one = summary_of_trace(
                    path,
                    name=source.name,
                    annotated=annotated,
                    phases=phases,
                    redactor=redactor,
                    trace=trace,
                    graphs=graphs,
                    most_spans=MOST_SPANS if timeline is None else None,
                )
                anatomy = replace(one.anatomy, warnings=(*one.anatomy.warnings, *left_out_of(files)))
        if what_if and not graphs:
            raise UsageError("--what-if needs a single trace with GPU work - pass one")
        return redacted(with_ceilings(anatomy, ceilings, next(iter(graphs), None), what_if), redactor)


def _together(
    paths: Sequence[Path | Address],
    sources: Sequence[Source],
    phases: Sequence[PhaseRule],
    cluster: ClusterSettings,
    note: Callable[[str], None],
    advance: Callable[[float], None],
    redactor: Redactor,
) -> Anatomy:
    """Merge the ranks' summaries, in any order, into one anatomy.

    A step excluded on one rank is excluded on all: if the counted steps differ, the ranks are read again, without
    storing those summaries.
    """
    merger, lost = _SummaryMerger(), dict[int, str]()
    only: frozenset[int] | None = None
    for _ in range(2):
        merger, lost = _SummaryMerger(), {}
        if only is not None:
            cluster = replace(cluster, keep=False, summaries=None)
        reduce = partial(reduced, phases=tuple(phases), only=only)
        with closing(outcomes(sources, reduce, repr(phases), cluster, note)) as made:
            for count, outcome in enumerate(made, 1):
                redactor.know(outcome.secrets, outcome.names)
                summary = outcome.summary
                if summary is None:
                    lost[outcome.index] = _readable(f"{sources[outcome.index].name} is left out: {outcome.lost}")
                else:
                    merger.add(unpacked_summary(summary) if isinstance(summary, bytes) else summary, outcome.index)
                advance(count / len(sources))
        only = merger.common_steps()
        if only is None:
            break
    unread = [lost[index] for index in sorted(lost)]
    if not merger.tables:
        raise TraceError(f"none of the {len(sources)} traces can be read; the first: {unread[0]}")
    first = paths[0]
    one = first.name if isinstance(first, Address) else first.resolve().name
    where = one if len(paths) == 1 else ", ".join(path.name for path in paths[:3])
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    name = _readable(f"{len(merger.tables)} ranks: {where}{more}")
    return merger.anatomy(name=name, caveats=unread, warnings=left_out_of(paths))


def _readable(text: str) -> str:
    """Return the text, with a mark for each undecodable byte of a file's name."""
    return os.fsencode(text).decode(errors="replace")


def reduced(source: Source, phases: Sequence[PhaseRule] = (), only: frozenset[int] | None = None) -> Reduced:
    """Return the summary of one trace without its secrets, and these, as a worker computes it."""
    redactor = Redactor()
    try:
        with source.opened() as path:
            summary = summary_of_trace(path, name=source.name, phases=phases, redactor=redactor, only=only)
    except TraceError as error:
        raise TraceError(redactor.text(str(error))) from error
    return Reduced(
        summary=redacted(summary, redactor),
        secrets=frozenset(redactor.trace_secrets),
        names=frozenset(redactor.trace_names),
    )


def packed_summary_of(trace: Path, *, name: str | None = None, redact: bool = False) -> bytes:
    """Return the serialized summary of a rank's own trace, without secrets, to merge with the other ranks'.

    `name` is the file's name in the report.
    """
    redactor = Redactor(everything=redact)
    return packed_summary(redacted(summary_of_trace(trace, name=name, redactor=redactor), redactor))


def anatomy_of_ranks(
    summaries: Sequence[bytes],
    *,
    ceilings: Overrides | None = None,
    redact: bool = False,
    warnings: Sequence[str] = (),
) -> Anatomy:
    """Merge the ranks' summaries into one anatomy."""
    merger = _SummaryMerger()
    names = [merger.add(unpacked_summary(data), index) for index, data in enumerate(summaries)]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    anatomy = merger.anatomy(name=f"{len(names)} ranks: {shown}", warnings=warnings)
    return redacted(with_ceilings(anatomy, ceilings), Redactor(everything=redact))


class _SummaryMerger:
    """Put together summaries of ranks one at a time, in any order."""

    def __init__(self) -> None:
        self._merger = RankMerger()
        self.tables: dict[int, RankTables] = {}
        self._lanes: dict[int, RankLanes] = {}
        self._counted: list[frozenset[int]] = []

    def common_steps(self) -> frozenset[int] | None:
        """Return the steps counted on all ranks; `None` if these are the same on every rank, or there are none."""
        common = frozenset.intersection(*self._counted) if self._counted else frozenset()
        return common if common and any(numbers != common for numbers in self._counted) else None

    def add(self, summary: RankSummary, index: int) -> str:
        """Add the rank in this place; return its trace's name."""
        rank = self._merger.add(summary.anatomy, index)
        rows = summary.anatomy.step.steps
        self._counted.append(frozenset(row.number for row in rows if row.set_aside is None and row.number is not None))
        self._lanes[index] = RankLanes(
            f"rank {rank.rank}" if rank.rank is not None else rank.trace or "?", summary.lanes
        )
        self.tables[index] = RankTables(rank=rank, calls=summary.calls, hiding=summary.hiding, steps=summary.steps)
        return rank.trace or "?"

    def anatomy(self, *, name: str, warnings: Sequence[str], caveats: Sequence[str] = ()) -> Anatomy:
        """Return the merged anatomy, with the ranks' collectives matched."""
        unlike = () if len(set(self._counted)) < 2 else (_UNLIKE_STEPS,)
        anatomy = self._merger.anatomy(name=name, warnings=warnings, caveats=(*caveats, *unlike))
        indices = self._merger.indices()
        matched = matched_of([self.tables[index] for index in indices])
        waiting = None if matched is None else waiting_of(matched)
        lanes = lanes_of_ranks([self._lanes[index] for index in indices], matched)
        return replace(anatomy, lanes=lanes, waiting=waiting, checks=(*anatomy.checks, *check_parts(waiting)))


def summary_of_trace(
    path: Path,
    *,
    name: str | None = None,
    annotated: Annotated | None = None,
    phases: Sequence[PhaseRule] = (),
    redactor: Redactor | None = None,
    only: Collection[int] | None = None,
    trace: Trace | None = None,
    graphs: list[StepGraph] | None = None,
    most_spans: int | None = MOST_SPANS,
) -> RankSummary:
    """Return the anatomy of the trace in `path`, and the data of its collectives; `name` is the file's name in the
    report, and `only` restricts the counted steps. `trace` is the parsed file, if already read; the graph of its steps
    is added to `graphs`. Lanes have at most `most_spans` spans, with `None` all.

    With `annotated` the trace is also written back, with its classes, phases and rates in it. `phases` give the phases
    of the trace's own annotations. The secrets in its metadata are added to `redactor`: the anatomy still has them.
    """
    trace = read_trace(path) if trace is None else trace
    if redactor is not None:
        redactor.add_secrets(trace.metadata)
    attribution = attribute(trace.names, trace.host, trace.launches, trace.work, trace.flows, phases, trace.scopes)
    calls, call_warnings = trace_calls_of(trace, attribution)
    kernels = kernel_table(calls, trace.devices) if trace.on_device else None
    lines = _Lines(trace, attribution, calls)
    table = lines.told(call_table(trace, calls, kernels), calls, kernels)
    steps, counted = _steps(trace, attribution, calls, table, kernels, only)
    # The figures are of the steps that count; the profiler's own sums are of all of them.
    own, own_kernels, own_table = calls, kernels, table
    if counted is not calls:
        own, own_kernels = counted, None if kernels is None else kernel_table(counted, trace.devices)
        own_table = lines.told(call_table(trace, own, own_kernels), own, own_kernels)
    if annotated is not None:
        from opanatomy.trace.write import write_trace

        write_trace(path, annotated, overlay_of(own, own_kernels, trace.threads), trace.metadata)
    exchanged = communication_of(trace, own, own_kernels, steps.window, steps.time, steps.counted)
    communication = communication_of_rank(exchanged)
    if trace.capture is not None:  # next to the need of the weights that it saw to be shared
        shared, workload = trace.capture.shared, trace.capture.workload
        communication = with_expected(communication, shared, workload, len(exchanged.steps.number))
    spans = counted_spans(steps, attribution.window)
    threads = thread_events(trace.names, attribution.host, trace.launches, spans)
    anatomy = build_anatomy(
        AnatomyInputs(
            provenance=_provenance(trace, path, name),
            environment=environment_of(trace, own_table),
            capture=trace.capture,
            calls=own_table,
            kernels=own_kernels,
            steps=steps,
            linked=linked_time(own, calls),
            spans=exchanged.steps if kernels is None and communication is not None else None,
            communication=communication,
            host=host_rows(trace.names, attribution.host, trace.launches, spans, threads),
            caveats=caveats_of(trace, own_table),
            warnings=(
                *trace.warnings,
                *call_warnings,
                *(trace.capture.warnings if trace.capture else ()),
                *warnings_of_trace(trace, attribution),
            ),
        )
    )
    anatomy = _with_memory(_with_texts(anatomy, trace, own, own_table), trace, attribution)
    world = world_of(trace.metadata)
    collectives = collectives_of(collective_table(trace, own, own_kernels), world)
    checks = (
        *_checks(trace, attribution, calls, table, steps),
        *((attribution.annotated,) if attribution.annotated else ()),
        *check_waits(anatomy.timeline),
        *check_memory(anatomy.memory),
        *check_communication(anatomy.communication, anatomy.workload.accumulate or 1),
    )
    anatomy = replace(anatomy, step=replace(anatomy.step, by_line_ns=lines.step_ns))
    host_names = {trace.names[number] for number in unique(attribution.host.name).values.tolist()}
    anatomy = replace(anatomy, situation=situation_of(anatomy, host_names))
    is_timed = anatomy.timeline.busy_ns and len(trace.launches.name)
    if graphs is not None and kernels is not None and steps.time is not None and is_timed:
        graphs.append(StepGraph(steps.time.launched, kernels, steps.time, steps.window, steps.counted))
    lanes = lanes_of(trace, attribution.host, own_table, steps, most_spans)
    anatomy = replace(
        anatomy,
        checks=checks,
        collectives=collectives,
        lanes=lanes,
        spans=longest_spans(trace, calls, kernels, threads, steps, world),
    )
    anatomy = with_rank(anatomy, trace.metadata)
    return RankSummary(
        anatomy=anatomy,
        calls=exchanged.calls,
        hiding=exchanged.hiding,
        steps=exchanged.steps,
        lanes=device_over_steps(steps),
    )


class _Lines:
    """Maps calls to lines of user code, if the trace has them."""

    def __init__(self, trace: Trace, attribution: Attribution, calls: TraceCalls) -> None:
        self._trace, self._attribution = trace, attribution
        self._stacks = stacks_of(trace, attribution.host)
        self._steps = None if self._stacks is None else step_window_of(trace.names, attribution, calls).bounds
        step = None if self._stacks is None else self._stacks.step
        #: Wall time of the step traced line by line; `None` if there is none.
        self.step_ns = None if step is None else step[1] - step[0]

    def told(self, table: CallTable, calls: TraceCalls, kernels: KernelTable | None) -> CallTable:
        """Return the table with the lines of its calls."""
        if self._stacks is None or self._steps is None:
            return table
        return with_lines(table, self._stacks, self._trace, self._attribution, calls, kernels, self._steps)


def replayed(
    anatomy: Anatomy, paths: Sequence[Path | Address], phases: Sequence[PhaseRule], changes: Sequence[Change]
) -> Replay:
    """Return the replay of a trace's anatomy with its answers to these changes.

    The trace is read again from `paths`, unless it is the one replayed last. Raise `UsageError` if it has changed, or
    if no replay is possible.
    """
    if anatomy.replay is None:
        raise UsageError("what_if needs a single trace with GPU work - analyze one trace, or a single rank")
    graph = _step_graph(tuple(paths), tuple(phases), anatomy.provenance.trace_sha256)
    return replace(anatomy.replay, answers=replay_of(graph, anatomy.step.unprofiled_wall_ns, changes).answers)


@lru_cache(maxsize=1)
def _step_graph(paths: tuple[Path | Address, ...], phases: tuple[PhaseRule, ...], sha256: str | None) -> StepGraph:
    """Return the graph of the steps of the trace with this digest. It holds the trace's events, so one is kept."""
    graphs: list[StepGraph] = []
    source = sources_of(paths)[0]
    with source.opened() as path:
        anatomy = summary_of_trace(path, phases=phases, graphs=graphs).anatomy
    _check_unchanged(source, sha256, anatomy.provenance.trace_sha256)
    return graphs[0]


def _check_unchanged(source: Source, before: str | None, now: str | None) -> None:
    if before not in (None, now):
        raise UsageError(f"{source.name}: the file has changed since it was opened - open it again")


def events_of_trace(
    source: Source,
    *,
    sha256: str | None,
    step: int | None,
    begin_ns: int,
    end_ns: int | None,
    pattern: re.Pattern[str] | None,
    most: int,
) -> Interval:
    """Return what ran in an interval of a rank's trace, without secrets, as `spans_in` finds it.

    Raise `UsageError` if the trace is not the one with the digest `sha256`.
    """
    redactor = Redactor()
    with source.opened() as path:
        trace = read_trace(path)
    _check_unchanged(source, sha256, trace.sha256)
    redactor.add_secrets(trace.metadata)
    attribution = attribute(trace.names, trace.host, trace.launches, trace.work, trace.flows)
    calls, _ = trace_calls_of(trace, attribution)
    kernels = kernel_table(calls, trace.devices) if trace.on_device else None
    interval = spans_in(
        trace,
        attribution,
        calls,
        kernels,
        world_of(trace.metadata),
        step=step,
        begin_ns=begin_ns,
        end_ns=end_ns,
        pattern=pattern,
        most=most,
    )
    return redacted(interval, redactor)


def _steps(
    trace: Trace,
    attribution: Attribution,
    calls: TraceCalls,
    table: CallTable,
    kernels: KernelTable | None,
    only: Collection[int] | None,
) -> tuple[MeasuredSteps, TraceCalls]:
    """Return the steps of a trace, and the calls of those that count."""
    window = step_window_of(trace.names, attribution, calls)
    modules = trace.capture.modules if trace.capture else {}
    if kernels is not None:
        work = launched_work(trace, attribution)
        steps = measured_steps(window, table, kernels, work, numbers=only, modules=modules)
    else:
        exchanged = communication_of(trace, calls, None, window)
        spans = exchanged.steps if exchanged.calls.inside.any() else None
        steps = measured_steps(window, table, None, None, spans, only, modules)
    return steps, calls_that_count(calls, steps)


def _provenance(trace: Trace, path: Path, name: str | None) -> Provenance:
    # Today's traces count from a base that they name, in ns.
    base = trace.metadata.get("baseTimeNanoseconds")
    base = base if type(base) is int and 0 <= base < 1 << 62 else 0
    begin_unix_ns = end_unix_ns = None
    if tables := [table for table in (trace.host, trace.launches, trace.work) if len(table.start_ns)]:
        begin_unix_ns = base + min(int(table.start_ns.min()) for table in tables)
        end_unix_ns = base + max(int((table.start_ns + table.duration_ns).max()) for table in tables)
    return Provenance(
        opanatomy=__version__,
        command=trace.capture.command if trace.capture else None,
        created=trace.capture.created if trace.capture else None,
        trace=os.fsencode(name or path.name).decode(errors="replace"),
        trace_sha256=trace.sha256,
        begin_unix_ns=begin_unix_ns,
        end_unix_ns=end_unix_ns,
    )


def _with_texts(anatomy: Anatomy, trace: Trace, calls: TraceCalls, table: CallTable) -> Anatomy:
    """Return the anatomy with the figures of its capture's texts."""
    texts = trace.capture.texts if trace.capture else None
    if texts is None:
        return anatomy
    batch, parts = texts.batches[texts.profiled], anatomy.workload.accumulate or 1
    padding = padding_flops(calls, table, batch, steps=anatomy.step.count, micro_batches=parts)
    return replace(anatomy, texts=text_figures(texts, padding))


def _with_memory(anatomy: Anatomy, trace: Trace, attribution: Attribution) -> Anatomy:
    """Return the anatomy with its capture's memory next to theory, and what the trace's memory events show."""
    observations = trace.capture.memory if trace.capture else MemoryObservations()
    unread: tuple[str, ...] = ()
    try:
        observed = memory_of_observations(observations)
    except TraceError as error:  # the memory step cannot be read: the storages alone
        observed, unread = memory_of_observations(replace(observations, step=None)), (str(error),)
    of_trace = None
    if len(trace.memory.bytes):
        host = attribution.host
        calls = HostCalls(
            name=Categorical(host.name, trace.names),
            module=host.module,
            parent=host.parent,
            thread=host.thread,
            start_ns=host.start_ns,
            end_ns=host.end_ns,
            annotation=host.annotation,
            phase=host.phase,
        )
        call = innermost_at(host, trace.memory.thread, trace.memory.time_ns)
        table = MemoryTable(events=trace.memory, call=call, calls=calls, spans=tuple(attribution.spans))
        of_trace = memory_of_trace(table, attribution.window, on_device=trace.on_device)
    memory = with_trace(observed, of_trace)
    anatomy = replace(anatomy, memory=memory, warnings=(*anatomy.warnings, *unread, *warnings_of(memory)))
    shared = trace.capture.shared if trace.capture else ()
    return _with_theory(anatomy, observations, shared) if trace.capture else anatomy


def _checks(
    trace: Trace, attribution: Attribution, calls: TraceCalls, table: CallTable, steps: MeasuredSteps
) -> tuple[Check, ...]:
    """Check the figures of the trace against second sources; `calls` and `table` are of all steps."""
    times = check_times(calls, table, trace.capture)
    own, own_table = calls, table
    if trace.capture is not None and not steps.counted.all():
        own = calls_of_steps(calls, steps)
        own_table = call_table(trace, own, kernel_table(own, trace.devices) if trace.on_device else None)
    vary = len(steps.like.kinds) > 1
    return (
        *check_counts(own, own_table, trace.capture, int(steps.counted.sum()), steps_vary=vary),
        *((times,) if times else ()),
        *check_causality(trace, calls, attribution.window),
    )


def with_ceilings(
    anatomy: Anatomy,
    overrides: Overrides | None = None,
    graph: StepGraph | None = None,
    what_if: Sequence[Change] = (),
) -> Anatomy:
    """Return the anatomy with bounds, headroom and utilization by its device's ceilings (or why these are unknown), and
    with advice; with the graph of its steps also with a replay, and its answers to `what_if`."""
    environment = anatomy.environment
    if environment.host_only:
        why_not = "these numbers do not cover the device"
        anatomy = replace(anatomy, device=replace(anatomy.device, no_ceilings=why_not))
    else:
        known = ceilings_for(environment, multiprocessors=environment.multiprocessors, overrides=overrides)
        if known.ceilings is None:
            anatomy = replace(anatomy, device=replace(anatomy.device, no_ceilings=known.why_not))
        else:
            anatomy = with_roofline(anatomy, known.ceilings)
    anatomy = with_advice(anatomy)
    if graph is None:  # in a report that is read again gains are bounds
        return anatomy if anatomy.replay is None else replace(anatomy, replay=replace(anatomy.replay, together=None))
    made = replay_of(graph, anatomy.step.unprofiled_wall_ns, what_if)
    advice = ordered(replayed_gain(graph, made, each) for each in anatomy.advice)
    return replace(anatomy, advice=advice, replay=with_together(graph, made, advice[:FIRST]))


def anatomy_of_failure(
    observations: MemoryObservations,
    workload: Workload,
    environment: Environment,
    command: str,
    *,
    redact: bool = False,
) -> Anatomy:
    """Return the report of a step that ran out of memory: what was allocated, what it needs, what would make it fit."""
    provenance = Provenance(opanatomy=__version__, command=command)
    anatomy = replace(
        _anatomy_of_memory(provenance, memory_of_observations(observations)), environment=environment, workload=workload
    )
    return redacted(_with_theory(anatomy, observations), Redactor(everything=redact))


def _anatomy_of_snapshots(
    sources: Sequence[Source], advance: Callable[[float], None], at: str | None, categories: Sequence[Category]
) -> Anatomy:
    """Return the anatomy of what fills the memory in one run's snapshots."""
    read: list[tuple[str, Snapshot]] = []
    for index, source in enumerate(sources):
        assert isinstance(source.path, Path)
        part = partial(_share, advance, index, len(sources))
        read.append((source.name, read_snapshot(source.path, part)))

    def class_of(operator: str) -> str:
        known = classify_operator(operator)
        return (None if known is None else known.operator_class) or OperatorClass.UNKNOWN

    memory = memory_of_snapshot(read, operator_of_overload, class_of, at, categories)
    name = sources[0].name if len(sources) == 1 else f"{len(sources)} snapshots"
    return replace(
        _anatomy_of_memory(Provenance(opanatomy=__version__, trace=_readable(name)), memory),
        environment=Environment(device_kind="cuda"),
        warnings=memory.notes,
    )


def _share(advance: Callable[[float], None], index: int, count: int, share: float) -> None:
    advance((index + share) / count)


def _anatomy_of_memory(provenance: Provenance, memory: Memory) -> Anatomy:
    """Return the anatomy of a step of which only the memory is known."""
    nothing = Ledger(
        device_work_ns=0,
        linked_ns=0,
        graph_launched_ns=0,
        no_launch_record_ns=0,
        outside_window_ns=0,
        classed_ns=0,
        costed_ns=0,
        unknown_ns=0,
    )
    return Anatomy(
        provenance=provenance,
        environment=Environment(),
        workload=Workload(),
        step=Step(),
        work=NO_WORK,
        memory=memory,
        timeline=Timeline(window_ns=0, busy_ns=0, idle_ns=0),
        device=DeviceFigures(),
        ledger=nothing,
        conventions=CONVENTIONS,
    )


def _with_theory(anatomy: Anatomy, observations: MemoryObservations, shared: Sequence[SharedWeights] = ()) -> Anatomy:
    """Return the anatomy with its capture's memory next to theory and the published run, and what would make it fit."""
    workload, size, cache = anatomy.workload, observations.parameter_bytes, observations.cache
    if anatomy.texts is not None:  # the memory is of the longest batch
        workload = replace(workload, sequence_length=anatomy.texts.memory_length)
    parameters = None if size is None else ParameterBytes(all=size, trained=observations.trainable_bytes)
    if shared:
        is_sharded = any(weights.gathered_bytes for weights in shared)
        parameters = ParameterBytes(
            all=sum(weights.weight_bytes for weights in shared),
            trained=sum(weights.trained_bytes for weights in shared),
            shards=shared[0].ranks if is_sharded else 1,
            buckets=None if is_sharded else not workload.bucket_view,
        )
    memory = with_theory(anatomy.memory, workload, parameters, cache)
    memory = replace(
        memory,
        needed_bytes=needed_bytes(memory.shape, workload, cache),
        published=published_run(
            memory, workload, anatomy.step.samples_per_second, on_cpu=anatomy.environment.device_kind == "cpu"
        ),
    )
    short = memory.failure is not None or nearly_full(memory, anatomy.environment)
    advice = savings_of(memory.shape, workload, memory, cache) if short else ()
    return replace(anatomy, memory=memory, advice=(*anatomy.advice, *advice))
