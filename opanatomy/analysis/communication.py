"""Sum up what a rank's collectives cost by phase and module, and how much of it the rank's own work hides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.analysis.aggregate import Order, RowSums
from opanatomy.analysis.intervals import Intervals, length, overlap, together, union, within, without
from opanatomy.analysis.timeline import DeviceTime, StepWindow
from opanatomy.attribution.calls import TraceCalls
from opanatomy.attribution.collectives import (
    OTHER,
    annotations_of_backends,
    bytes_of,
    collectives_of_annotations,
    collectives_of_events,
    dtype_of,
    modules_served,
    named,
)
from opanatomy.attribution.table import cpu_rows
from opanatomy.records.anatomy import CollectiveCalls, Exchanged, Spans, StepSpans
from opanatomy.records.columns import (
    Bool,
    Categorical,
    CollectiveArguments,
    CollectiveTable,
    Int64,
    KernelTable,
    take,
    unique,
)
from opanatomy.records.communication import (
    Collective,
    Communication,
    CommunicationPhase,
    ExpectedCommunication,
    ModuleCommunication,
)
from opanatomy.records.runtime_calls import WAITS
from opanatomy.records.taxonomy import CLASS_CODE, ITEM_SIZE, PHASES, OperatorClass, Phase
from opanatomy.records.workload import SharedWeights, Workload
from opanatomy.trace.read import Trace

#: Collectives whose message size is the bytes received; for others it is the bytes sent.
_WHOLE_IS_RECEIVED = ("all_gather", "gather")
_PHASE_ORDER = {phase: index for index, phase in enumerate(PHASES)}


def communication_of_rank(exchanged: Exchanged) -> Communication | None:
    """Return the cost of the collectives in the window's steps; `None` without collectives.

    Their time is cut where the steps end. Other steps' work counts on neither side: it adds nothing and hides nothing.
    """
    calls, steps = exchanged.calls, exchanged.steps
    bounds = steps.start_ns, steps.end_ns
    rows = np.flatnonzero(calls.inside)
    if not len(rows):
        return None
    hidden = exchanged.hiding.start_ns, exchanged.hiding.end_ns
    running = _running(calls, rows, bounds)
    return Communication(
        running_ns=length(running),
        exposed_ns=length(without(running, hidden)),
        phases=_phases(calls, rows, bounds, hidden),
        modules=_modules(calls, rows, bounds, hidden),
    )


def message_sizes(calls: CollectiveCalls) -> Int64:
    """Return the bytes of each call's message as nccl-tests counts it, -1 if unknown."""
    values = [name in _WHOLE_IS_RECEIVED for name in calls.collective.values]
    received = np.array([*values, False], dtype=bool)[calls.collective.codes]
    return np.where(received, calls.received_bytes, np.maximum(calls.sent_bytes, calls.received_bytes))


def _running(calls: CollectiveCalls, rows: Int64, bounds: Intervals) -> Intervals:
    return overlap(union(calls.start_ns[rows], calls.end_ns[rows] - calls.start_ns[rows]), bounds)


def _phases(
    calls: CollectiveCalls, rows: Int64, bounds: Intervals, hidden: Intervals
) -> tuple[CommunicationPhase, ...]:
    sizes = message_sizes(calls)
    made = []
    for code in unique(calls.phase.codes[rows]).values.tolist():
        own = rows[calls.phase.codes[rows] == code]
        running, sized = _running(calls, own, bounds), sizes[own] >= 0
        made.append(
            CommunicationPhase(
                phase=Phase(calls.phase.values[code]),
                calls=len(own),
                sized=int(sized.sum()),
                bytes=int(sizes[own][sized].sum()),
                launching_ns=int(np.maximum(calls.launching_ns[own], 0).sum()),
                running_ns=length(running),
                exposed_ns=length(without(running, hidden)),
            )
        )
    return tuple(sorted(made, key=lambda row: _PHASE_ORDER[row.phase]))


def _modules(
    calls: CollectiveCalls, rows: Int64, bounds: Intervals, hidden: Intervals
) -> tuple[ModuleCommunication, ...]:
    """Return one row per module, collective and phase in order of appearance; unattributed calls go to the model."""
    sizes = message_sizes(calls)
    width, kinds = len(calls.phase.values), len(calls.collective.values)
    module = calls.module.codes[rows] + 1
    keys = (module * kinds + calls.collective.codes[rows]) * width + calls.phase.codes[rows]
    groups = unique(keys)
    made = []
    for index in np.argsort(groups.first).tolist():
        own = rows[groups.inverse == index]
        running, sized = _running(calls, own, bounds), sizes[own] >= 0
        made.append(
            ModuleCommunication(
                module=calls.module.at(int(own[0])) or "",
                collective=calls.collective.at(int(own[0])) or "",
                phase=Phase(calls.phase.values[int(calls.phase.codes[own[0]])]),
                calls=len(own),
                sized=int(sized.sum()),
                bytes=int(sizes[own][sized].sum()),
                running_ns=length(running),
                exposed_ns=length(without(running, hidden)),
            )
        )
    return tuple(made)


class CommunicationMerger:
    """The communication of several ranks together, added one at a time in any order.

    The expected communication is taken from the first rank that has one.
    """

    def __init__(self) -> None:
        self._known: list[tuple[int, int]] = []
        self._phases = RowSums(CommunicationPhase, "phase")
        self._modules = RowSums(ModuleCommunication, "module", "collective", "phase")
        self._expected: list[tuple[Order, Communication]] = []

    def add(self, communication: Communication | None, order: Order) -> None:
        """Add the communication of one rank."""
        if communication is not None:
            self._known.append((communication.running_ns, communication.exposed_ns))
            self._phases.add(communication.phases, order)
            self._modules.add(communication.modules, order)
            if communication.expected:
                self._expected = [min((*self._expected, (order, communication)), key=lambda entry: entry[0])]

    def communication(self) -> Communication | None:
        """Return the communication of all ranks; `None` if none has any."""
        if not self._known:
            return None
        return Communication(
            running_ns=sum(running for running, _ in self._known),
            exposed_ns=sum(exposed for _, exposed in self._known),
            phases=tuple(sorted(self._phases.rows(), key=lambda row: _PHASE_ORDER[row.phase])),
            modules=self._modules.rows(),
            expected=self._expected[0][1].expected if self._expected else (),
        )


# ----- calls, time, bytes and bus bandwidth of each collective


class World(Struct, frozen=True):
    """The ranks of the run; `only_group` if the trace says that no other group exists."""

    size: int | None = None
    only_group: bool = False


_Key = tuple[str, "str | None", "int | None", bool]


class _Sum(Struct):
    calls: int = 0
    kernels: int = 0
    time_ns: int = 0
    sized_ns: int = 0
    bytes: int | None = None


def collectives_of(table: CollectiveTable, world: World) -> tuple[Collective, ...]:
    """Return one row per collective, data type and group, longest first; times sum to the time of all device events."""
    width = len(table.arguments.values) + 1
    kinds = unique(table.kernel.codes * width + table.arguments.codes + 1)
    count = len(kinds.values)
    time = np.zeros(count, dtype=np.int64)
    np.add.at(time, kinds.inverse, table.duration_ns)
    # A call of several device events has the kind of its first one.
    calls = np.bincount(kinds.inverse[unique(table.call).first], minlength=count).tolist()
    kernels = np.bincount(kinds.inverse, minlength=count).tolist()
    sums: dict[_Key, _Sum] = {}
    for first, called, events, spent in zip(kinds.first.tolist(), calls, kernels, time.tolist(), strict=True):
        arguments = table.arguments.at(first) or CollectiveArguments("")
        name = named(arguments.collective) or named(table.kernel.at(first) or "") or OTHER
        dtype, group = dtype_of(arguments.dtype), arguments.group_size or world.size
        assumed = arguments.group_size is None and group is not None and not world.only_group
        message = message_bytes(name, arguments, dtype, group)
        row = sums.setdefault((name, dtype, group, assumed), _Sum())
        row.calls += called
        row.kernels += events
        row.time_ns += spent
        if message is not None:
            row.sized_ns += spent
            row.bytes = (row.bytes or 0) + called * message if called else row.bytes
    return _sorted(
        with_bandwidth(
            Collective(
                collective=name,
                dtype=dtype,
                group_size=group,
                group_assumed=assumed,
                calls=row.calls,
                kernels=row.kernels,
                time_ns=row.time_ns,
                sized_ns=row.sized_ns,
                bytes=row.bytes,
                bus_bytes_per_second=None,
            )
        )
        for (name, dtype, group, assumed), row in sums.items()
    )


def collectives_together(rows: Iterable[Collective]) -> tuple[Collective, ...]:
    """Return the sums over several ranks with their bus bandwidth, longest first."""
    return _sorted(map(with_bandwidth, rows))


def message_bytes(collective: str, message: CollectiveArguments, dtype: str | None, group: int | None) -> int | None:
    """Return the message size as nccl-tests defines it: the whole buffer, on whichever side it is."""
    sent, got = message.in_elements, message.out_elements
    if dtype is None:
        return None
    if collective in _WHOLE_IS_RECEIVED:
        elements = got or (sent * group if sent is not None and group else None)
    elif collective in ("reduce_scatter", "scatter"):
        elements = sent or (got * group if got is not None and group else None)
    else:
        elements = max((count for count in (sent, got) if count is not None), default=None)
    return None if elements is None or elements < 0 else elements * ITEM_SIZE[dtype]


def with_bandwidth(row: Collective) -> Collective:
    """Return the row with its bus bandwidth, if size, time and group are known."""
    factor = bus_factor(row.collective, row.group_size)
    known = factor and row.bytes and row.sized_ns
    rate = factor * row.bytes * 1e9 / row.sized_ns if known and factor and row.bytes else None
    return replace(row, bus_bytes_per_second=rate)


def bus_factor(collective: str, group: int | None) -> float | None:
    """Return the bytes on the busiest link for each byte of the message (nccl-tests, PERFORMANCE.md)."""
    if collective in (OTHER, "barrier"):
        return None
    if collective in ("broadcast", "reduce", "send", "recv", "send_recv"):
        return 1.0
    if group is None or group < 2:
        return None
    return (2 if collective == "all_reduce" else 1) * (group - 1) / group


def _sorted(rows: Iterable[Collective]) -> tuple[Collective, ...]:
    return tuple(
        sorted(
            rows,
            key=lambda row: (-row.time_ns, row.collective, row.dtype or "", row.group_size or 0, row.group_assumed),
        )
    )


# ----- expected communication of a step, by what the ranks share: DDP, FSDP, copies of shards


_REDUCE: Final = "all_reduce"
_GATHER: Final = "all_gather"
_SCATTER: Final = "reduce_scatter"


def with_expected(
    communication: Communication | None, shared: Sequence[SharedWeights], workload: Workload, steps: int
) -> Communication | None:
    """Add the theoretically expected communication of `steps` like steps; unchanged if nothing is sharded."""
    if communication is None or not shared:
        return communication
    expected = []
    for weights in shared:
        for collective, message, ranks in _messages(weights, workload):
            # The module's own messages, reductions only in backward; unknown if not all have a size.
            rows = [
                row
                for row in communication.modules
                if (row.collective, row.module) == (collective, weights.module)
                and (collective == _GATHER or row.phase is Phase.BACKWARD)
            ]
            is_sized = bool(rows) and all(row.sized == row.calls for row in rows)
            expected.append(
                ExpectedCommunication(
                    module=weights.module,
                    collective=collective,
                    ranks=ranks,
                    expected_bytes=message,
                    measured_bytes=sum(row.bytes for row in rows) // max(steps, 1) if is_sized else None,
                    wire_bytes=int(message * (bus_factor(collective, ranks) or 0)),
                )
            )
    return replace(communication, expected=tuple(expected))


def _messages(weights: SharedWeights, workload: Workload) -> list[tuple[str, int, int]]:
    """Return (collective, bytes a step, ranks) that weights need: each micro-batch gathers, the last one reduces."""
    trains, forwards = not workload.inference, workload.accumulate or 1
    messages = []
    if weights.gathered_bytes and (trains or weights.regathered):  # without a backward what is kept is not freed
        gathers = forwards * (1 + (trains and weights.regathered))
        messages.append((_GATHER, gathers * weights.gathered_bytes, weights.ranks))
    if trains and weights.reduced_bytes:
        messages.append((_SCATTER if weights.gathered_bytes else _REDUCE, weights.reduced_bytes, weights.ranks))
        if weights.gathered_bytes and weights.replicas > 1:
            messages.append((_REDUCE, weights.reduced_bytes // weights.ranks, weights.replicas))
    return messages


_NO_STEPS: Final = np.zeros(0, dtype=np.int64)


#: A synchronization shorter than this found the device idle.
_WAITED_NS: Final = 50_000


class _Events(Struct, frozen=True, kw_only=True):
    """The device events of collectives (on the CPU annotations of the backend), and the device's other work."""

    start_ns: Int64
    end_ns: Int64
    #: Host row of each event's collective, -1 if not recorded; events with the same row are one call.
    call: Int64
    arguments: Categorical[CollectiveArguments]
    #: The name of the event itself.
    kernel: Categorical[str]
    phase: Int64
    launched_ns: Int64
    #: When host calls that waited for the device returned, sorted; `None` if every call may have waited.
    synchronized_ns: Int64 | None
    #: Whether the event is work of the window.
    inside: Bool
    #: When the rank computed for the window's steps, did any work for them, and did any work at all.
    computing: Intervals
    busy_inside: Intervals
    busy: Intervals


def communication_of(
    trace: Trace,
    calls: TraceCalls,
    kernels: KernelTable | None,
    step_window: StepWindow,
    time: DeviceTime | None = None,
    counted: Bool | None = None,
) -> Exchanged:
    """Return a rank's collectives, in and around the window, and its steps.

    On an accelerator the steps come from `time`, on the CPU from `counted` or the whole window. Of several devices of a
    process the one that communicates most is used.
    """
    recorded = trace.metadata.get("baseTimeNanoseconds")  # since 1970, from which the times of a trace count
    base = recorded if type(recorded) is int and 0 <= recorded < 1 << 62 else 0
    if kernels is None:
        events = _host_events(trace, calls)
        bounds = step_window.steps or (step_window.window,)
        starts, ends = (np.array(column, dtype=np.int64) for column in zip(*bounds, strict=True))
    else:
        events = _device_events(trace, calls, kernels)
        starts, ends = (time.step_start, time.step_end) if time is not None else (_NO_STEPS, _NO_STEPS)
    numbers = np.array(step_window.numbers or range(len(step_window.steps or (step_window.window,))), dtype=np.int64)
    began = np.array([begin + base for begin, _ in step_window.steps] or [-1], dtype=np.int64)
    if counted is not None:
        numbers, began = numbers[counted], began[counted]
        starts, ends = (starts, ends) if kernels is not None else (starts[counted], ends[counted])
    table = _calls(calls, events, base)
    running = union(table.start_ns - base, table.end_ns - table.start_ns)
    own = np.flatnonzero(table.inside)
    running_inside = union(table.start_ns[own] - base, (table.end_ns - table.start_ns)[own])
    busy = within(together(events.busy, running), starts, ends)
    steps = StepSpans(
        number=numbers,
        began_ns=began,
        start_ns=starts + base,
        end_ns=ends + base,
        computing_ns=within(events.computing, starts, ends),
        outside_ns=busy - within(together(events.busy_inside, running_inside), starts, ends),
        busy_ns=busy,
    )
    begins, finishes = overlap(events.computing, running)
    return Exchanged(calls=table, hiding=Spans(start_ns=begins + base, end_ns=finishes + base), steps=steps)


def _device_events(trace: Trace, calls: TraceCalls, kernels: KernelTable) -> _Events:
    communicates = kernels.operator_class.codes == CLASS_CODE[OperatorClass.COMMUNICATION]
    device = _device(kernels, communicates)
    events = np.flatnonzero(communicates & device)
    others = np.flatnonzero(~communicates & device)
    inside = np.flatnonzero(device & kernels.inside)
    own = others[kernels.inside[others]]
    call, arguments = collectives_of_events(trace, calls, events)
    launch = calls.work.launch[events]
    launched = take(trace.launches.start_ns, launch) if len(trace.launches.start_ns) else np.full(len(events), -1)
    launches, names = trace.launches, unique(trace.launches.name)
    waits = np.array([bool(WAITS.search(trace.names[name])) for name in names.values.tolist()], dtype=bool)
    waited = np.flatnonzero(waits[names.inverse] & (launches.duration_ns > _WAITED_NS))
    return _Events(
        start_ns=kernels.start_ns[events],
        end_ns=kernels.start_ns[events] + kernels.duration_ns[events],
        call=call,
        arguments=arguments,
        kernel=kernels.kernel.take(events),
        phase=kernels.phase.codes[events],
        launched_ns=launched,
        inside=kernels.inside[events],
        synchronized_ns=np.sort(launches.start_ns[waited] + launches.duration_ns[waited]),
        computing=union(kernels.start_ns[own], kernels.duration_ns[own]),
        busy_inside=union(kernels.start_ns[inside], kernels.duration_ns[inside]),
        busy=union(kernels.start_ns[device], kernels.duration_ns[device]),
    )


def _device(kernels: KernelTable, communicates: Bool) -> Bool:
    """Return the events of the device that communicates most, or without communication works most."""
    rows = np.flatnonzero(communicates) if communicates.any() else np.arange(len(kernels.device))
    devices = unique(kernels.device[rows])
    if not len(devices.values):
        return np.zeros(len(kernels.device), dtype=bool)
    spent = np.zeros(len(devices.values), dtype=np.int64)
    np.add.at(spent, devices.inverse, kernels.duration_ns[rows])
    chosen: Bool = kernels.device == devices.values[int(np.argmax(spent))]
    return chosen


def _host_events(trace: Trace, calls: TraceCalls) -> _Events:
    host = calls.host
    rows = annotations_of_backends(calls, np.ones(len(host.name), dtype=bool))
    operator, arguments = collectives_of_annotations(trace, calls, rows)
    start, end = host.start_ns[rows], host.start_ns[rows] + host.duration_ns[rows]
    computing = _computing_on_host(calls)
    running = union(start, end - start)
    return _Events(
        start_ns=start,
        end_ns=end,
        call=np.where(operator >= 0, operator, rows),
        arguments=arguments,
        kernel=Categorical(host.name[rows], calls.names),
        phase=np.where(operator >= 0, take(host.phase, operator), host.phase[rows]),
        launched_ns=take(host.start_ns, operator),
        inside=host.in_window[rows],
        synchronized_ns=None,
        computing=computing,
        busy_inside=computing,
        busy=together(computing, running),
    )


def _computing_on_host(calls: TraceCalls) -> Intervals:
    """Return when any thread ran an operator that is not a collective, excluding collectives inside it."""
    host = calls.host
    rows = cpu_rows(calls, within=False)
    codes = calls.operators.operator_class[host.name[calls.owner[rows]]]
    collectives, computing = (
        rows[codes == CLASS_CODE[OperatorClass.COMMUNICATION]],
        rows[codes != CLASS_CODE[OperatorClass.COMMUNICATION]],
    )
    parts = []
    for thread in unique(host.thread[computing]).values.tolist():
        on_thread = computing[host.thread[computing] == thread]
        inside = collectives[host.thread[collectives] == thread]
        parts.append(
            without(
                union(host.start_ns[on_thread], host.duration_ns[on_thread]),
                union(host.start_ns[inside], host.duration_ns[inside]),
            )
        )
    none = np.zeros(0, dtype=np.int64)
    return reduce(together, parts, (none, none))


def _calls(calls: TraceCalls, events: _Events, base: int) -> CollectiveCalls:
    """Return one row per call: events of one host row are merged, an event without a host row is its own call."""
    count = len(events.start_ns)
    groups = unique(np.where(events.call >= 0, events.call, -2 - np.arange(count)))
    start = np.full(len(groups.values), np.iinfo(np.int64).max)
    np.minimum.at(start, groups.inverse, events.start_ns)
    end = np.full(len(groups.values), np.iinfo(np.int64).min)
    np.maximum.at(end, groups.inverse, events.end_ns)
    inside = np.zeros(len(groups.values), dtype=bool)
    inside[groups.inverse[events.inside]] = True
    order = np.lexsort((end, start))
    first, start, end, inside = groups.first[order], start[order], end[order], inside[order]
    arguments = events.arguments.take(first)
    host = events.call[first]
    sides = bytes_of(arguments)
    launched = events.launched_ns[first]
    returned = launched
    if events.synchronized_ns is not None:  # the last of these moments at or before each launch, -1 if none
        last = np.searchsorted(events.synchronized_ns, launched, side="right") - 1
        returned = np.append(events.synchronized_ns, -1)[last]
    synchronized = np.where((launched >= 0) & (returned >= 0), returned + base, -1)
    return CollectiveCalls(
        collective=_names(arguments, events.kernel.take(first)),
        named=arguments.codes >= 0,
        group=_field(arguments, "group"),
        group_size=_numbers(arguments, "group_size"),
        sequence=_numbers(arguments, "sequence"),
        dtype=_field(arguments, "dtype"),
        sent_bytes=sides[:, 0],
        received_bytes=sides[:, 1],
        launched_ns=np.where(launched >= 0, launched + base, -1),
        synchronized_ns=synchronized,
        launching_ns=take(calls.host.duration_ns, host),
        start_ns=start + base,
        end_ns=end + base,
        inside=inside,
        phase=Categorical(events.phase[first], tuple(str(phase) for phase in PHASES)),
        module=modules_served(calls, host),
    )


def _names(arguments: Categorical[CollectiveArguments], kernel: Categorical[str]) -> Categorical[str]:
    """Return the canonical name of each row's collective, from the host record, else from the kernel name."""
    said = [named(known.collective) or OTHER for known in arguments.values]
    shown = [named(name) or OTHER for name in kernel.values]
    values = tuple(dict.fromkeys((*said, *shown)))
    indices = {name: index for index, name in enumerate(values)}
    by_host = np.array([indices[name] for name in said] + [-1], dtype=np.int64)[arguments.codes]
    by_kernel = np.array([indices[name] for name in shown] + [-1], dtype=np.int64)[kernel.codes]
    return Categorical(np.where(by_host >= 0, by_host, by_kernel), values)


def _field(arguments: Categorical[CollectiveArguments], name: str) -> Categorical[str]:
    texts = [dtype_of(known.dtype) if name == "dtype" else getattr(known, name) for known in arguments.values]
    values = tuple(dict.fromkeys(text for text in texts if text))
    codes = [values.index(text) if text else -1 for text in texts]
    return Categorical(np.array([*codes, -1], dtype=np.int64)[arguments.codes], values)


def _numbers(arguments: Categorical[CollectiveArguments], name: str) -> Int64:
    numbers = [getattr(known, name) for known in arguments.values]
    column = np.array([-1 if number is None else number for number in numbers] + [-1], dtype=np.int64)
    values: Int64 = column[arguments.codes]
    return values
