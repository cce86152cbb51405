"""Find why a device was idle: what the host did in each gap, or what the device itself waited for.

A gap ends with device work. If that was launched only after the device fell idle, the device waited for the launching
thread, and what this thread did meanwhile is the cause; while it has no records, what the other launching threads did.
Time that several causes cover counts as the first of them in `_ORDER`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.analysis.intervals import Intervals, LaunchedWork, length, overlap, together, union, within, without
from opanatomy.attribution.nesting import innermost_at, last_started
from opanatomy.records.anatomy import PYTHON_STACK, Gap, IdleRow
from opanatomy.records.columns import (
    AFTER_ALL,
    MEMCPY,
    Bool,
    DeviceWork,
    HostTable,
    Int64,
    Launches,
    ProfilerEvents,
    isin,
    mask_of,
    rows_by_value,
    rows_named,
    starts_work,
    take,
    unique,
)
from opanatomy.records.patterns import regex
from opanatomy.records.runtime_calls import LAUNCHES_GRAPH, SYNCHRONIZES, WAITS, WAITS_FOR_DEVICE, WAITS_FOR_STREAM
from opanatomy.records.taxonomy import IdleCause
from opanatomy.records.workload import MODULE_RANGE, PHASE_RANGE

#: A launch is slow if it takes this many times the median, and at least this long.
_SLOW: Final = 20
_SLOW_NS: Final = 200_000
#: A host-to-device copy whose call takes this long blocks the host.
_HELD_UP_NS: Final = 100_000
#: Work that starts within this time after its launch returned did not wait for the device.
_LATENCY_NS: Final = 20_000
_EXCHANGES: Final = regex(r"^(?:nccl|rccl|msccl|oneccl)", re.IGNORECASE)
#: A wait returns this soon after the device's last work; the longest delay in sixty real traces is 187 us.
RETURNS_NS: Final = 250_000
#: Maximum host cost of recording a Python function (0.15 us measured with torch 2.13, CPython 3.11).
_STACK_NS: Final = 1_000
#: A silence of the host up to this long is Python between two operators; a longer one is unexplained.
_SILENCE_NS: Final = 1_000_000
#: Shorter gaps are ordinary gaps between launches; a longer one has its own cause.
SHORT_GAP_NS: Final = 1_000_000
#: The host's queue is known if this share of the work has a launch record.
_KNOWN_LAUNCHES: Final = 0.95
#: The number of longest gaps kept.
LONGEST_GAPS: Final = 20

_ALLOCATES: Final = regex(
    r"^(?:cuda|hip|cu)(?:Ext)?(?:Malloc|Free|Host(?:Alloc|Malloc|Free|Register|Unregister)"
    r"|Mem(?:Alloc|Free|Create|Release|Map|Unmap|SetAccess|Address|Host))|^(?:ur|pi|ze)(?:USM|Mem)\w*(?:Alloc|Free)"
)
#: Operators that call libraries such as cuBLAS and cuDNN, which initialize on first use.
_LIBRARIES: Final = regex(r"^aten::(?:\w*conv\w*|\w*mm|matmul|linear|baddbmm|\w*(?:cudnn|miopen|rnn|lstm|gru)\w*)$")
#: An allocator call that initializes a library takes this many times the median for its name.
_TIMES_USUAL: Final = 10
_A_FEW: Final = 4
_LOADS: Final = regex(
    r"(?:Module|Library|Kernel)(?:Load|GetFunction)|Func[GS]etAttribute|GraphInstantiate|StreamCreate"
    r"|GetDeviceProperties|Lazy Function Loading|Module Loading"
)
_COMPILES: Final = regex(
    r"\(dynamo_timed\)|_compile\.compile_inner|compile_fx|entire_frame_compile|backend_compile|inductor_compile|fx_codegen|AOTAutograd"
    r"|aot_(?:module|function|dispatch|collect|trace)|create_aot_dispatcher|GraphLowering|PyCodeCache|AsyncCompile"
    r"|CachingAutotuner|async_compile|triton\.compile|dynamo_compile|bytecode_tracing|precompile"
)
#: Ranges in which the host makes or fetches a batch.
LOADS_DATA: Final = regex(
    r"DataLoader|data[ _.-]?load|load[ _.-]?(?:batch|data)|(?:get|next|fetch)[ _.-]?(?:batch|data)\b"
    r"|train_dataloader_next|DataFetcher|batch_to_(?:gpu|device)",
    re.IGNORECASE,
)
_COMMUNICATES: Final = regex(r"^_?c10d(?:_functional)?::|^(?:nccl|gloo|ucc|mpi|xccl|hccl|rccl):|^record_param_comms")
#: Ranges that some releases write as operators, and ranges around running compiled code.
_RANGES: Final = regex(
    f"{re.escape(PHASE_RANGE)}|{re.escape(MODULE_RANGE)}|ProfilerStep|autograd::engine::|Torch-Compiled|TorchDynamo"
    r"|Pregraph|## |Optimizer\.|enumerate\("
)
#: Ranges of an optimizer's update.
_UPDATES: Final = regex(r"^Optimizer\.step#")
#: Ranges that say nothing of what the host did.
_SAYS_NOTHING: Final = regex(r"ProfilerStep|PyTorch Profiler|## Call CompiledFxGraph")

#: The causes that the host's records show, in the order of precedence.
_ORDER: Final = (
    IdleCause.PROFILER, IdleCause.COMPILATION, IdleCause.INPUT, IdleCause.ALLOCATOR, IdleCause.SLOW_LAUNCH,
    IdleCause.SYNCHRONIZATION, IdleCause.COLLECTIVE, IdleCause.OPERATORS,
)  # fmt: skip
#: A kind of host time that is no cause: launches, before the operators around them.
LAUNCH: Final = "launch"
#: In place of a thread: all launching threads, or none.
_OTHERS: Final = -1
_NOBODY: Final = -2


class _Charged(Struct, frozen=True):
    """Idle time with its cause, and the thread that shows it."""

    cause: IdleCause
    thread: int
    time: Intervals


class Idle(Struct, frozen=True):
    """Idle time of one device, split by what ends each gap and by cause."""

    #: Host late: the next work had not been launched when the device fell idle, or there is none in the window.
    host: Intervals
    #: The next work was already launched on a stream, and another stream worked last.
    stream: Intervals
    #: The rest: between two events of one stream, or without a launch record.
    other: Intervals
    #: The part in gaps that began while the host waits for the device.
    drained: Intervals
    #: Not idle: work without records ran here, or may have run.
    unrecorded: Intervals
    #: The part of it in which the host waited for such work.
    awaited: Intervals
    #: When work was queued behind other work, or the host waited for the device; `None` where launches lack records.
    paced: Intervals | None
    charged: tuple[_Charged, ...]
    gaps: _Gaps
    #: Which of the gaps began while the host waits for the device.
    began_waiting: Bool
    activity: _HostActivity

    def by_cause(self, start_ns: Int64, end_ns: Int64) -> dict[IdleCause, Int64]:
        """Return the idle time of each cause in each span."""
        times: dict[IdleCause, Int64] = {}
        for part in self.charged:
            spent = within(part.time, start_ns, end_ns)
            times[part.cause] = times[part.cause] + spent if part.cause in times else spent
        return times

    def rows(self, spans: Intervals) -> Iterator[IdleRow]:
        """Yield the idle time in these spans by cause, longest first."""
        parts: dict[IdleCause, list[_Charged]] = {}
        for part in self.charged:
            if length(time := overlap(part.time, spans)):
                parts.setdefault(part.cause, []).append(_Charged(part.cause, part.thread, time))
        short = self.gaps.end_ns - self.gaps.start_ns < SHORT_GAP_NS
        exchanges = self.activity.exchanges
        beside = isin(self.gaps.following_name, exchanges) | isin(self.gaps.last_name, exchanges)
        made = []
        for cause, each in parts.items():
            short_ns, drained_ns, exchanging_ns = (
                sum(length(overlap(part.time, self.gaps.of(rows))) for part in each)
                for rows in (short, short & self.began_waiting, beside)
            )
            row = IdleRow(
                cause=cause,
                time_ns=sum(length(part.time) for part in each),
                gaps=sum(len(part.time[0]) for part in each),
                short_ns=short_ns,
                drained_ns=drained_ns,
                updating_ns=sum(length(overlap(part.time, self.activity.updates)) for part in each),
                exchanging_ns=exchanging_ns,
            )
            spent: dict[str, tuple[int, int]] = {}
            for part in each:
                for name, ns, events in self.activity.names_in(part):
                    before = spent.get(name, (0, 0))
                    spent[name] = before[0] + ns, before[1] + events
            if spent:
                most = max(spent, key=lambda name: (spent[name], name))
                row = replace(row, name=most, name_ns=spent[most][0], events=spent[most][1])
            made.append(row)
        yield from sorted(made, key=lambda row: (-row.time_ns, row.cause))

    def longest(self, spans: Intervals, step_start: Int64, numbers: Sequence[int | None]) -> Iterator[Gap]:
        """Yield the longest gaps in these spans; alike ones share a row whose `count` covers all spans.

        Steps begin at `step_start` and have these `numbers`.
        """
        start, end = overlap(self.gaps.of(np.ones(len(self.gaps.start_ns), dtype=bool)), spans)
        gap = np.searchsorted(self.gaps.start_ns, start, side="right") - 1
        time, following = end - start, self.gaps.following_name[gap]
        causes = list(dict.fromkeys(part.cause for part in self.charged))
        if not len(start) or not causes:
            return
        spent = np.zeros((len(causes), len(start)), dtype=np.int64)
        for part in self.charged:
            spent[causes.index(part.cause)] += within(part.time, start, end)
        cause = spent.argmax(axis=0)
        left = np.argsort(-time, kind="stable")
        for _ in range(LONGEST_GAPS):
            if not len(left):
                return
            first = int(left[0])
            alike = (
                (cause[left] == cause[first]) & (following[left] == following[first]) & (2 * time[left] >= time[first])
            )
            rows, left = left[alike], left[~alike]
            step = int(np.searchsorted(step_start, start[first], side="right")) - 1
            launch = int(self.gaps.launch[gap[first]])
            known = launch >= 0 or bool(following[first] < 0)
            name, call, launch_ns = (
                self.activity.filling(int(start[first]), int(end[first]), launch) if known else (None, None, None)
            )
            yield Gap(
                time_ns=int(time[rows].sum()) // len(rows),
                count=len(rows),
                cause=causes[cause[first]],
                cause_ns=int(spent[cause[first], rows].sum()) // len(rows),
                name=name,
                call=call,
                before=self.activity.name_of(int(following[first])),
                after=self.activity.name_of(int(self.gaps.last_name[gap[first]])),
                launch_ns=launch_ns,
                drained=bool(self.began_waiting[gap[first]]),
                launch_known=known,
                begin_ns=int(start[first] - step_start[step]),
                step=numbers[step] if step < len(numbers) else None,
            )


class _Gaps(Struct, frozen=True):
    """Idle spans of a device; `last` and `following` are the work before and after each, -1 if none.

    They are places among the device's work in the order of its starts. The following work was launched at `launched_ns`
    (-1 if not recorded, the end of the window if nothing follows) by the call in row `launch`.
    """

    start_ns: Int64
    end_ns: Int64
    last: Int64
    following: Int64
    launched_ns: Int64
    launch: Int64
    last_name: Int64
    following_name: Int64

    def of(self, rows: Bool) -> Intervals:
        """Return some of the gaps."""
        return self.start_ns[rows], self.end_ns[rows]

    def without(self, time: Intervals) -> _Gaps:
        """Return the gaps minus this time."""
        if not len(time[0]):
            return self
        start, end = without((self.start_ns, self.end_ns), time)
        gap = np.searchsorted(self.start_ns, start, side="right") - 1
        columns = (self.last, self.following, self.launched_ns, self.launch, self.last_name, self.following_name)
        return _Gaps(start, end, *(column[gap] for column in columns))


def idle_by_device(launched: LaunchedWork, window: tuple[int, int]) -> dict[int, Idle]:
    """Return the idle time of each device in the window; other steps' work is not idle time."""
    activity, awaited = _HostActivity(launched), awaited_work(launched)
    return {
        device: _idle_of(launched, rows, window, activity, awaited)
        for device, rows in rows_by_value(launched.work.device)
    }


def awaited_work(launched: LaunchedWork) -> Intervals:
    """Return when the host waited for device work that is not in the trace: no recorded work runs, and the wait lasts.

    A wait that lasts past the last recorded work is for work without a record. So is the time before a graph's node
    and between two of them while the host waits: nodes of some kinds, and the later rounds of a loop, have no records.
    A last wait that nothing is launched or recorded after is the profiler's own.
    """
    work, calls = launched.work, launched.launches
    waits = np.flatnonzero(rows_named(SYNCHRONIZES, launched.names, calls.name))
    if not len(waits) or not len(work.start_ns):
        return waits, waits
    begin, end = _span(calls, waits)
    busy = union(work.start_ns, work.duration_ns)
    launches = calls.start_ns[starts_work(launched.names, calls)]
    last = max(int(busy[1][-1]), int(launches.max(initial=0)))
    before = np.searchsorted(busy[0], end, side="left") - 1
    since = np.maximum(np.where(before >= 0, busy[1][np.maximum(before, 0)], begin), begin)
    long = (end - since > RETURNS_NS) & (begin < last)
    awaited = union(since[long], (end - since)[long])
    graphs = rows_named(LAUNCHES_GRAPH, launched.names, calls.name)
    nodes = np.flatnonzero((launched.launch >= 0) & graphs[launched.launch]) if graphs.any() else waits[:0]
    if not len(nodes):
        return awaited
    nodes = nodes[np.argsort(work.start_ns[nodes], kind="stable")]
    again = np.append(False, launched.launch[nodes[1:]] == launched.launch[nodes[:-1]])
    returned = (calls.start_ns + calls.duration_ns)[launched.launch[nodes]]
    before = np.searchsorted(busy[1], work.start_ns[nodes], side="right") - 1
    since = np.maximum(np.where(before >= 0, busy[1][np.maximum(before, 0)], returned), returned)
    idle = work.start_ns[nodes] - since
    unseen = idle > np.where(again, _LATENCY_NS, RETURNS_NS)
    return together(awaited, overlap(union(since[unseen], idle[unseen]), union(begin, end - begin)))


def done_ns(names: Sequence[str], launches: Launches, work: DeviceWork, moments: Int64) -> Int64:
    """Return when what was launched by each moment had ended for certain; `AFTER_ALL` if no later wait says so.

    A device wait proves it if all work is on one device, a stream wait if all is on one stream.
    """
    waits = np.zeros(len(launches.name), dtype=bool)
    if len(unique(work.device).values) == 1:
        waits |= rows_named(WAITS_FOR_DEVICE, names, launches.name)
        if len(unique(work.stream).values) == 1:
            waits |= rows_named(WAITS_FOR_STREAM, names, launches.name)
    rows = np.flatnonzero(waits & (launches.duration_ns > 0))
    begin, end = _span(launches, rows[np.argsort(launches.start_ns[rows], kind="stable")])
    returned = np.append(np.minimum.accumulate(end[::-1])[::-1], AFTER_ALL)
    ended: Int64 = returned[np.searchsorted(begin, moments)]
    return ended


def _idle_of(
    launched: LaunchedWork, rows: Int64, window: tuple[int, int], activity: _HostActivity, awaited: Intervals
) -> Idle:
    """Return the idle time of the device whose work is in these rows."""
    work = launched.work
    rows = rows[np.argsort(work.start_ns[rows], kind="stable")]
    gaps, unrecorded = _gaps(launched, rows, window)
    unseen = overlap(gaps.of(np.ones(len(gaps.start_ns), dtype=bool)), awaited)
    gaps, unrecorded = gaps.without(awaited), together(unrecorded, unseen)
    stream = work.stream[rows]
    host_bound = gaps.launched_ns >= gaps.start_ns
    known = gaps.launched_ns >= 0
    crossed = ~host_bound & known & (gaps.last >= 0) & (stream[gaps.following] != stream[gaps.last])
    behind = ~host_bound & known & ~crossed
    # A launch that began before the device fell idle, and returned later, is the host's until it returns.
    returned = np.clip(activity.returned_ns(gaps.launch), gaps.start_ns, gaps.end_ns)
    returned = np.where(~host_bound & (returned > gaps.start_ns + _LATENCY_NS), returned, gaps.start_ns)
    in_launch = returned > gaps.start_ns
    charged = [
        *activity.charged(gaps.of(host_bound), gaps.launch[host_bound]),
        *activity.charged((gaps.start_ns[in_launch], returned[in_launch]), gaps.launch[in_launch]),
        _Charged(IdleCause.STREAM, _NOBODY, (returned[crossed], gaps.end_ns[crossed])),
        _Charged(IdleCause.DEVICE, _NOBODY, (returned[behind], gaps.end_ns[behind])),
        _Charged(IdleCause.UNKNOWN, _NOBODY, gaps.of(~known)),
    ]
    queued = activity.returned_ns(launched.launch[rows])
    known_launch = launched.launch[rows] >= 0
    late = known_launch & (work.start_ns[rows] - queued > _LATENCY_NS)
    launched_last = np.array([queued.max(initial=window[0])])  # what runs from there on ends the step
    paced = together(union(queued[late], (work.start_ns[rows] - queued)[late]), activity.waiting())
    paced = together(paced, union(launched_last, window[1] - launched_last))
    waiting = host_bound & activity.waits(gaps.start_ns, gaps.launch)
    return Idle(
        host=gaps.of(host_bound),
        stream=gaps.of(crossed),
        other=gaps.of(behind | ~known),
        paced=paced if known_launch.mean() >= _KNOWN_LAUNCHES else None,
        drained=gaps.of(waiting),
        unrecorded=unrecorded,
        awaited=unseen,
        charged=tuple(part for part in charged if len(part.time[0])),
        gaps=gaps,
        began_waiting=waiting,
        activity=activity,
    )


def _gaps(launched: LaunchedWork, rows: Int64, window: tuple[int, int]) -> tuple[_Gaps, Intervals]:
    """Return (the spans of the window that no work covers, the time in them with missing work records).

    `rows` is the work of a device sorted by start, one at least. A launch whose work is not recorded ran after what was
    launched before it and before what was launched after it: from there to the end of the gap it is unknown what the
    device did.
    """
    start = launched.work.start_ns[rows]
    end = start + launched.work.duration_ns[rows]
    reached = np.maximum.accumulate(end)
    farthest = np.maximum.accumulate(np.where(end == reached, np.arange(len(end)), 0))
    opening = np.flatnonzero(start[1:] > reached[:-1])
    opens = np.maximum(np.concatenate(([window[0]], reached[opening], reached[-1:])), window[0])
    closes = np.minimum(np.concatenate((start[:1], start[opening + 1], [window[1]])), window[1])
    last = np.concatenate(([-1], farthest[opening], farthest[-1:]))
    following = np.concatenate(([0], opening + 1, [-1]))
    real = closes > opens
    opens, closes, last, following = opens[real], closes[real], last[real], following[real]
    launched_ns, name = launched.launched_ns()[rows], launched.work.name[rows]
    next_ns = np.where(following >= 0, launched_ns[following], window[1])
    gaps = _Gaps(
        start_ns=opens,
        end_ns=closes,
        last=last,
        following=following,
        launched_ns=next_ns,
        launch=take(launched.launch[rows], following),
        last_name=take(name, last),
        following_name=take(name, following),
    )
    hidden_ns = launched.launches.start_ns[launched.hidden]
    if not len(hidden_ns):
        none = opens < 0
        return gaps, (opens[none], closes[none])
    since = np.where((last >= 0) & (launched_ns[last] >= 0), launched_ns[last], opens)
    first = np.minimum(np.searchsorted(hidden_ns, since, side="right"), len(hidden_ns) - 1)
    lost = (hidden_ns[first] > since) & (hidden_ns[first] < np.where(next_ns >= 0, next_ns, closes))
    lost &= hidden_ns[first] < closes
    cut = np.maximum(hidden_ns[first], opens)[lost]
    hiding = done_ns(launched.names, launched.launches, launched.work, hidden_ns) - hidden_ns
    unrecorded = overlap((cut, closes[lost]), union(hidden_ns, hiding))
    gaps = gaps.without(unrecorded)
    ahead = isin(gaps.end_ns, unrecorded[0])
    launch = launched.hidden[np.minimum(np.searchsorted(hidden_ns, gaps.end_ns), len(hidden_ns) - 1)]
    gaps = replace(
        gaps,
        launched_ns=np.where(ahead, gaps.end_ns, gaps.launched_ns),
        launch=np.where(ahead, launch, gaps.launch),
        following_name=np.where(ahead, -1, gaps.following_name),
    )
    return gaps, unrecorded


def is_operator(names: Sequence[str], host: HostTable) -> Bool:
    """Return which host events are operators, not ranges; in 2021 ranges were written as operators are."""
    operators: Bool = host.is_operator & ~rows_named(_RANGES, names, host.name)
    if not host.annotation.any():
        operators &= rows_named(re.compile(r"::|\bBackward\d*$"), names, host.name) | (host.sequence >= 0)
    return operators


class _HostActivity:
    """The host's runtime calls, operators and ranges by thread, and the causes that they show."""

    def __init__(self, launched: LaunchedWork) -> None:
        self._names, self._launches, host = launched.names, launched.launches, launched.host
        names, calls, rows = launched.names, launched.launches, np.arange(len(host.name))
        operators = is_operator(names, host)
        self._parent = host.parent
        copies = launched.work.kind == MEMCPY
        into, out = (copies & rows_named(re.compile(text), names, launched.work.name) for text in ("HtoD", "DtoH"))
        launching = starts_work(launched.names, calls)
        usual = int(np.median(calls.duration_ns[launching])) if launching.any() else 0
        slow = launching & (calls.duration_ns >= max(_SLOW * usual, _SLOW_NS))
        copied_into = mask_of(launched.launch[into & (launched.launch >= 0)], len(calls.name))
        is_input = copied_into & (calls.duration_ns >= _HELD_UP_NS)
        # Calls that launched a copy out of the device, and returned when it was done.
        copied = np.flatnonzero(out & (launched.launch >= 0))
        by, done = launched.launch[copied], launched.work.start_ns[copied] + launched.work.duration_ns[copied]
        until_done = mask_of(by[calls.start_ns[by] + calls.duration_ns[by] >= done], len(calls.name))
        is_waiting = rows_named(WAITS, names, calls.name) | until_done
        allocates = rows_named(_ALLOCATES, names, calls.name)
        starts = _starts_library(launched, allocates)
        of_calls = {
            IdleCause.INPUT: is_input,
            IdleCause.ALLOCATOR: allocates & ~starts,
            IdleCause.SLOW_LAUNCH: (slow & ~is_input & ~is_waiting) | rows_named(_LOADS, names, calls.name) | starts,
            IdleCause.SYNCHRONIZATION: is_waiting,
            IdleCause.OPERATORS: np.ones(len(calls.name), dtype=bool),
        }
        of_rows = {
            IdleCause.COMPILATION: rows_named(_COMPILES, names, host.name),
            IdleCause.INPUT: rows_named(LOADS_DATA, names, host.name),
            IdleCause.COLLECTIVE: rows_named(_COMMUNICATES, names, host.name),
            IdleCause.OPERATORS: operators,
            IdleCause.PYTHON: ~operators & ~rows_named(_SAYS_NOTHING, names, host.name),
        }
        #: The events that show each cause: runtime calls, host rows, and below the profiler's own events.
        self._of_calls = {cause: np.flatnonzero(marked) for cause, marked in of_calls.items()}
        self._of_rows = {cause: rows[marked] for cause, marked in of_rows.items()}
        self._host, self._profiler = host, launched.profiler
        updates = rows[rows_named(_UPDATES, names, host.name)]
        #: When an optimizer updates weights.
        self.updates: Intervals = union(host.start_ns[updates], host.duration_ns[updates])
        #: The names of collectives on the device.
        self.exchanges: Int64 = unique(launched.work.name[rows_named(_EXCHANGES, names, launched.work.name)]).values
        self._says = ~rows_named(_SAYS_NOTHING, names, host.name)
        own = launched.profiler.thread < 0
        loads = np.zeros(len(own), dtype=bool)
        loads[own] = rows_named(_LOADS, names, launched.profiler.name[own])
        self._of_profiler = {
            IdleCause.PROFILER: np.flatnonzero(own & ~loads),
            IdleCause.SLOW_LAUNCH: np.flatnonzero(loads),
        }
        self._stack_ns = np.sort(launched.profiler.start_ns[~own])
        #: What recording Python's functions took.
        self._recording = union(self._stack_ns, np.full(len(self._stack_ns), _STACK_NS))
        self._functions = np.flatnonzero(~own & (launched.profiler.name >= 0))
        #: The threads that launch work, and the one that did so last.
        self._threads = unique(calls.thread[launching]).values
        last = np.flatnonzero(launching)
        self._last = int(calls.thread[last[np.argmax(calls.start_ns[last])]]) if len(last) else _OTHERS
        self._layers: dict[tuple[IdleCause, int], Intervals] = {}

    def layers(self) -> dict[str, Intervals]:
        """Return when the threads that launch work did each kind of thing, in the order of precedence and disjoint."""
        calls = self._launches
        launches = np.flatnonzero(starts_work(self._names, calls))
        ordered = (
            *((cause.value, self._layer(cause, _OTHERS)) for cause in _ORDER if cause is not IdleCause.OPERATORS),
            (LAUNCH, union(calls.start_ns[launches], calls.duration_ns[launches])),
            (IdleCause.OPERATORS.value, self._layer(IdleCause.OPERATORS, _OTHERS)),
            (IdleCause.PYTHON.value, self._layer(IdleCause.PYTHON, _OTHERS)),
        )
        layers: dict[str, Intervals] = {}
        taken = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        for name, layer in ordered:
            layers[name] = without(layer, taken)
            taken = together(taken, layer)
        return layers

    def waits(self, moments: Int64, launch: Int64) -> Bool:
        """Return whether the thread of each launch waits for the device at a moment, or begins to right after it."""
        waits = np.zeros(len(moments), dtype=bool)
        threads = self._threads_of(launch)
        for thread in unique(threads).values.tolist():
            here = threads == thread
            layer = self._layer(IdleCause.SYNCHRONIZATION, thread)
            waits[here] = within(layer, moments[here], moments[here] + _LATENCY_NS) > 0
        return waits

    def waiting(self) -> Intervals:
        """Return when a thread that launches work waits for the device."""
        return self._layer(IdleCause.SYNCHRONIZATION, _OTHERS)

    def returned_ns(self, launch: Int64) -> Int64:
        """Return when each launch returned; -1 if there is none."""
        return take(self._launches.start_ns + self._launches.duration_ns, launch)

    def charged(self, gaps: Intervals, launch: Int64) -> Iterator[_Charged]:
        """Yield the gaps split by cause; `launch` is the call that ends each gap, -1 if none."""
        threads = self._threads_of(launch)
        returns = np.where(launch >= 0, self.returned_ns(launch), gaps[1])
        returned = np.clip(returns, *gaps)
        late = gaps[1] - returned > _LATENCY_NS
        yield _Charged(IdleCause.DEVICE, _NOBODY, (returned[late], gaps[1][late]))
        ends = np.where(late, returned, gaps[1])
        for thread in unique(threads).values.tolist():
            here = (threads == thread) & (ends > gaps[0])
            left = gaps[0][here], ends[here]
            for of_thread in (thread, _OTHERS):
                for cause in _ORDER:
                    layer = self._layer(cause, of_thread)
                    yield _Charged(cause, of_thread, overlap(left, layer))
                    left = without(left, layer)

            # The rest: the latency of a launch that has returned, Python, and unexplained time.
            latency = union(returned[here], ends[here] - returned[here])
            yield _Charged(IdleCause.OPERATORS, _NOBODY, overlap(left, latency))
            left = without(left, latency)
            yield _Charged(IdleCause.PROFILER, _NOBODY, overlap(left, self._recording))
            left = without(left, self._recording)
            ranges = self._layer(IdleCause.PYTHON, thread)
            yield _Charged(IdleCause.PYTHON, thread, overlap(left, ranges))
            start, end = without(left, ranges)
            short = (end - start <= _SILENCE_NS) & (len(self._of_rows[IdleCause.OPERATORS]) > 0)
            yield _Charged(IdleCause.PYTHON, _NOBODY, (start[short], end[short]))
            yield _Charged(IdleCause.UNKNOWN, _NOBODY, (start[~short], end[~short]))

    def names_in(self, part: _Charged) -> Iterator[tuple[str, int, int]]:
        """Yield (name, time, events) of host activity in a part of idle time, by innermost event."""
        if part.thread == _NOBODY:
            if part.cause is IdleCause.PROFILER:
                began, until = (np.searchsorted(self._stack_ns, edge) for edge in part.time)
                yield PYTHON_STACK, length(part.time), int((until - began).sum())
            return
        rows = self._rows(part.cause, part.thread)
        spent = within(part.time, *_span(self._host, rows))
        if part.cause in (IdleCause.OPERATORS, IdleCause.COLLECTIVE, IdleCause.PYTHON, IdleCause.INPUT):
            spent = spent - self._time_below(rows, spent)
        calls = self._calls(part.cause, part.thread)
        if part.cause is IdleCause.OPERATORS:
            calls = calls[:0]  # a launch is part of the operator around it
        own = self._of_profiler.get(part.cause, calls[:0])
        for events, name, times in (
            (rows, self._host.name, spent),
            (calls, self._launches.name, within(part.time, *_span(self._launches, calls))),
            (own, self._profiler.name, within(part.time, *_span(self._profiler, own))),
        ):
            touched = np.flatnonzero(times)
            groups = unique(name[events[touched]])
            sums = np.zeros((2, len(groups.values)), dtype=np.int64)
            np.add.at(sums[0], groups.inverse, times[touched])
            sums[1] = np.bincount(groups.inverse[times[touched] > 0], minlength=len(groups.values))
            columns = zip(groups.values.tolist(), *sums.tolist(), strict=True)
            yield from ((self._names[number], ns, count) for number, ns, count in columns if ns)

    def name_of(self, number: int) -> str | None:
        """Return an interned name; `None` for -1."""
        return self._names[number] if number >= 0 else None

    def filling(self, start_ns: int, end_ns: int, launch: int) -> tuple[str | None, str | None, int | None]:
        """Return (operator or range, runtime call) that fill half of a span, and the time of `launch` in it.

        A name whose self time fills half of it takes precedence, then the innermost event that covers half of it. The
        launching thread is examined first, then the other launching threads.
        """
        calls, host = self._launches, self._host
        thread = int(calls.thread[launch]) if launch >= 0 else self._last
        launching = int(calls.duration_ns[launch]) if launch >= 0 and start_ns <= calls.start_ns[launch] else 0
        launch_ns = launching if launching >= _LATENCY_NS else None
        near = np.flatnonzero((calls.start_ns < end_ns) & (calls.start_ns + calls.duration_ns > start_ns))
        near = near[isin(calls.thread[near], self._threads) | (calls.thread[near] == thread)]
        inside = np.minimum((calls.start_ns + calls.duration_ns)[near], end_ns) - np.maximum(
            calls.start_ns[near], start_ns
        )
        call = self._half_of(calls.name[near], inside, end_ns - start_ns)
        for number in dict.fromkeys((thread, *self._threads.tolist())):
            first, last = last_started(
                host.thread, host.start_ns, (np.full(2, number), np.array([start_ns, end_ns - 1]))
            ).tolist()
            begin = first + 1 if first >= 0 else int(np.searchsorted(host.thread, number))
            around, row = [], first
            while row >= 0:
                around.append(row)
                row = int(self._parent[row])
            rows = np.concatenate((np.array(around[::-1], dtype=np.int64), np.arange(begin, last + 1)))
            rows = rows[self._says[rows]]
            time = np.clip(_span(host, rows)[1], start_ns, end_ns) - np.clip(host.start_ns[rows], start_ns, end_ns)
            own = self._half_of(host.name[rows], time - self._time_below(rows, time), end_ns - start_ns)
            covering = rows[2 * time >= end_ns - start_ns]
            since, function = self._function(number, start_ns, end_ns)
            if own is None and len(covering) and host.start_ns[covering[-1]] >= since:
                own = self.name_of(int(host.name[covering[-1]]))
            if own is not None or function is not None:
                return own or function, call, launch_ns
        return None, call, launch_ns

    def _half_of(self, names: Int64, time: Int64, whole: int) -> str | None:
        """Return the name whose events take half of the whole time."""
        groups = unique(names)
        sums = np.zeros(len(groups.values), dtype=np.int64)
        np.add.at(sums, groups.inverse, time)
        most = int(sums.argmax()) if len(sums) else -1
        return self._names[int(groups.values[most])] if most >= 0 and 2 * sums[most] >= whole else None

    def _function(self, thread: int, start_ns: int, end_ns: int) -> tuple[int, str | None]:
        """Return (begin, name) of the innermost Python function of a thread that covers half of a span."""
        events, rows = self._profiler, self._functions[self._profiler.thread[self._functions] == thread]
        begin = events.start_ns[rows]
        time = np.minimum(begin + events.duration_ns[rows], end_ns) - np.maximum(begin, start_ns)
        covering = rows[2 * time >= end_ns - start_ns]
        if not len(covering):
            return -1, None
        last = int(covering[events.start_ns[covering].argmax()])
        return int(events.start_ns[last]), self.name_of(int(events.name[last]))

    def _time_below(self, rows: Int64, spent: Int64) -> Int64:
        """Return the time in each row of its direct children."""
        index = np.full(len(self._parent) + 1, -1, dtype=np.int64)
        index[rows] = np.arange(len(rows))
        parent = self._parent[rows]
        while (missing := (parent >= 0) & (index[parent] < 0)).any():
            parent[missing] = self._parent[parent[missing]]
        below = np.zeros(len(rows), dtype=np.int64)
        inside = parent >= 0
        np.add.at(below, index[parent[inside]], spent[inside])
        return below

    def _threads_of(self, launch: Int64) -> Int64:
        return np.where(launch >= 0, take(self._launches.thread, launch), self._last)

    def _layer(self, cause: IdleCause, thread: int) -> Intervals:
        """Return when a thread shows a cause."""
        if (cause, thread) not in self._layers:
            spans = [
                _span(self._host, self._rows(cause, thread)),
                _span(self._launches, self._calls(cause, thread)),
                _span(self._profiler, self._of_profiler.get(cause, np.zeros(0, dtype=np.int64))),
            ]
            if cause is IdleCause.PYTHON:
                functions = self._functions[self._is_of(self._profiler.thread[self._functions], thread)]
                spans.append(_span(self._profiler, functions))
            start, end = (np.concatenate(edges) for edges in zip(*spans, strict=True))
            self._layers[cause, thread] = union(start, end - start)
        return self._layers[cause, thread]

    def _rows(self, cause: IdleCause, thread: int) -> Int64:
        rows: Int64 = self._of_rows.get(cause, np.zeros(0, dtype=np.int64))
        of_thread: Int64 = rows[self._is_of(self._host.thread[rows], thread)]
        return of_thread

    def _calls(self, cause: IdleCause, thread: int) -> Int64:
        rows = self._of_calls.get(cause, np.zeros(0, dtype=np.int64))
        return rows[self._is_of(self._launches.thread[rows], thread)]

    def _is_of(self, threads: Int64, thread: int) -> Bool:
        return isin(threads, self._threads) if thread == _OTHERS else threads == thread


def _starts_library(launched: LaunchedWork, allocates: Bool) -> Bool:
    """Return allocator calls that initialize a library: long ones inside the first call of a contraction or of cuDNN.

    A call is long if it takes `_TIMES_USUAL` times the median of the calls of its name, or if there are hardly any; the
    first call of the trace creates the device's context.
    """
    calls, host, names = launched.launches, launched.host, launched.names
    starts = np.zeros(len(calls.name), dtype=bool)
    rows = np.flatnonzero(allocates & (calls.duration_ns >= _SLOW_NS))
    if not len(rows):
        return starts
    first_call = int(calls.start_ns.min())
    libraries = rows_named(_LIBRARIES, names, host.name)
    around = innermost_at(host, calls.thread[rows], calls.start_ns[rows])
    for call, row in zip(rows.tolist(), around.tolist(), strict=True):
        if calls.start_ns[call] == first_call:
            starts[call] = True
            continue
        while row >= 0 and not libraries[row]:
            row = int(host.parent[row])
        alike = np.sort(calls.duration_ns[calls.name == calls.name[call]])
        usual = len(alike) >= _A_FEW and calls.duration_ns[call] < _TIMES_USUAL * alike[len(alike) // 2]
        if row < 0 or usual:
            continue
        of_name = host.name == host.name[row]
        starts[call] = int(host.start_ns[of_name].min()) == host.start_ns[row]
    return starts


def _span(events: HostTable | Launches | ProfilerEvents, rows: Int64) -> Intervals:
    return events.start_ns[rows], events.start_ns[rows] + events.duration_ns[rows]


def host_layers(launched: LaunchedWork) -> dict[str, Intervals]:
    """Return when the threads that launch work did each kind of thing, in the order of precedence and disjoint."""
    return _HostActivity(launched).layers()
