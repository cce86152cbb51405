"""Build the timeline of one step: phases, device activity and idle causes, streams, host threads.

The step is the counted one closest to the mean. A lane is a list of spans named after events; gaps have no record. The
spans of a device fill the step exactly, in the terms of `Timeline`. A lane with more spans than the report keeps is
binned: the time of each kind in equal parts of the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.analysis.build import MeasuredSteps
from opanatomy.analysis.idle import RETURNS_NS, is_operator
from opanatomy.analysis.intervals import Intervals, overlap, union, without
from opanatomy.analysis.timeline import DeviceTime
from opanatomy.analysis.waiting import Matched, RankWaits
from opanatomy.attribution.nesting import innermost_at
from opanatomy.records.columns import (
    Bool,
    CallTable,
    Categorical,
    HostTable,
    Int64,
    Launches,
    rows_named,
    starts_work,
    take,
    unique,
)
from opanatomy.records.lanes import (
    COMPUTING,
    COPIES,
    EXPOSED,
    FRAMEWORK,
    IDLE,
    INPUT,
    LAUNCHING,
    NO_SPANS,
    OPERATORS,
    OUTSIDE_WORK,
    PYTHON,
    RUNTIME,
    UNRECORDED,
    WAITING,
    WAITING_FOR_RANKS,
    Lane,
    LaneKind,
    Lanes,
    SpanTable,
)
from opanatomy.records.runtime_calls import WAITS
from opanatomy.records.table import concatenated, figure
from opanatomy.records.taxonomy import CLASS_CODE, CLASSES, PHASES, OperatorClass, Phase
from opanatomy.trace.read import Trace

#: Limit of stream spans, and of spans of the other lanes, in a report; a lane beyond it is binned into at most this
#: many parts.
MOST_WORK: Final = 100_000
MOST_SPANS: Final = 30_000
_MOST_BINNED: Final = 1200
#: Maximum number of lanes for streams, devices and threads; those with most work are kept.
_MOST_LANES: Final = 6


def lanes_of(
    trace: Trace, host: HostTable, calls: CallTable, steps: MeasuredSteps, most: int | None = MOST_SPANS
) -> Lanes | None:
    """Return the lanes of the step that is nearest to the mean, with at most so many spans; `None` if no step counts.

    `calls` covers the counted steps.
    """
    counted = [row for row in steps.rows if row.set_aside is None]
    if not counted:
        return None
    mean = sum(row.wall_ns for row in counted) / len(counted)
    index = min(range(len(counted)), key=lambda number: abs(counted[number].wall_ns - mean))
    if steps.time is not None:
        step = int(steps.time.step_start[index]), int(steps.time.step_end[index])
        made = list(_device_lanes(trace, steps.time, index, step))
    else:
        spans = steps.window.steps or (steps.window.window,)
        step = [span for span, row in zip(spans, steps.rows, strict=False) if row.set_aside is None][index]
        made = []
        ranges = [span for span in steps.window.spans if span[1] > step[0] and span[0] < step[1]]
        if ranges:  # the phases by the host's own ranges
            when = np.array([span[:2] for span in ranges], dtype=np.int64).T
            codes = np.array([PHASES.index(Phase(span[2])) for span in ranges], dtype=np.int64)
            kinds = Categorical(codes, tuple(phase.value for phase in PHASES))
            made = [_lane(LaneKind.PHASES, "phases", (when[0], when[1]), step, {"kind": kinds})]
    made += _threads(trace, host, calls, steps, step)
    made = [lane for lane in made if len(lane.spans)]
    shown = [lane for kind in LaneKind for lane in [lane for lane in made if lane.of is kind][:_MOST_LANES]]
    every = _together(shown, counted[index].number, step)
    return fewer(replace(every, hidden=len(made) - len(shown)), most, MOST_WORK)


class _OneLane(Struct, frozen=True):
    """A lane and its spans, in order."""

    of: LaneKind
    name: str
    spans: SpanTable


def _together(made: Sequence[_OneLane], number: int | None, step: tuple[int, int]) -> Lanes:
    lanes = tuple(Lane(of=lane.of, name=lane.name, count=len(lane.spans)) for lane in made)
    spans = concatenated((NO_SPANS, *(lane.spans for lane in made))).compact()
    return Lanes(step=number, begin_ns=step[0], wall_ns=step[1] - step[0], lanes=lanes, spans=spans)


def _lane(
    of: LaneKind,
    name: str,
    when: Intervals,
    step: tuple[int, int],
    keys: Mapping[str, Categorical[Any]],
    cause: tuple[Categorical[str], Int64] | None = None,
) -> _OneLane:
    """Return a lane with the parts of these spans in the step, in their order and with these keys.

    `cause` is the lane and time of each span's origin, -1 if unknown.
    """
    start, end = np.clip(when[0], *step), np.clip(when[1], *step)
    rows = np.flatnonzero(end > start)
    rows = rows[np.argsort(start[rows], kind="stable")]
    keys = {**keys, "lane": Categorical(np.zeros(len(start), dtype=np.int64), (name,))}
    figures = {"begin_ns": start - step[0], "length_ns": end - start}
    if cause is not None:
        keys["cause"] = cause[0]
        figures["cause_ns"] = figure(cause[1] - step[0], cause[0].codes >= 0)
    return _OneLane(of, name, SpanTable(keys, figures).where(rows))


# ----- devices: phases, busy and idle, streams


def _device_lanes(trace: Trace, time: DeviceTime, index: int, step: tuple[int, int]) -> Iterator[_OneLane]:
    here = np.flatnonzero(time.step == index)
    devices = [device for device in time.devices if device.number in time.computing]
    names = dict(time.launched.device_names)
    for device in devices[:1]:
        rows = here[time.device[here] == device.number]
        rows = rows[np.argsort(time.start[rows], kind="stable")]
        # Work of one phase after the other, each until its last work ends or the next begins.
        start, phase = time.start[rows], time.phase[rows]
        first = np.flatnonzero(np.append(True, phase[1:] != phase[:-1])) if len(rows) else rows
        ends = np.maximum.reduceat(start + time.duration[rows], first) if len(first) else start
        ends[:-1] = np.minimum(ends[:-1], start[first[1:]])
        kinds = Categorical(phase[first], tuple(item.value for item in PHASES))
        yield _lane(LaneKind.PHASES, "phases", (start[first], ends), step, {"kind": kinds})
    # The rows of the trace's work, and the lane of each one's stream.
    work = np.flatnonzero(time.launched.inside)
    streams = _streams(time)
    for device in devices:
        title = names.get(device.number)
        when, kinds = _parts_of_device(time, device, step)
        # Idle time ends with the next work of the device.
        order = device.events[np.argsort(time.start[device.events], kind="stable")]
        following = np.append(order, -1)[np.searchsorted(time.start[order], when[1])]
        is_idle = np.array([kind.startswith(IDLE) for kind in kinds.values], dtype=bool)[kinds.codes]
        ended = np.where(is_idle, following, -1)
        cause = streams.take(ended), take(time.start, ended)
        name = f"device {device.number}" + (f": {title}" if title else "")
        yield _lane(LaneKind.DEVICE, name, when, step, {"kind": kinds}, cause)
    spent = np.zeros(len(streams.values), dtype=np.int64)
    np.add.at(spent, streams.codes[here], time.duration[here])
    for number in np.argsort(-spent, kind="stable").tolist():
        rows = here[streams.codes[here] == number]
        when = time.start[rows], time.start[rows] + time.duration[rows]
        # What is known of this work, and the thread and time of its launch.
        of_trace, table, launches = work[rows], time.work, trace.launches
        launch = time.launched.launch[of_trace]
        keys: dict[str, Categorical[Any]] = {
            **{name: getattr(table, name).take(of_trace) for name in ("operator", "signature", "module", "phase")},
            "name": table.kernel.take(of_trace),
            "grid": Categorical(trace.work.grid[of_trace], trace.grids),
            "kind": Categorical(time.operator_class[rows], tuple(item.value for item in CLASSES)),
        }
        cause = Categorical(take(launches.thread, launch), _thread_names(trace)), take(launches.start_ns, launch)
        yield _lane(LaneKind.STREAM, streams.values[number], when, step, keys, cause)


def _streams(time: DeviceTime) -> Categorical[str]:
    """Return the lane of the stream of each device event of the steps."""
    groups, several = unique(time.device * (1 << 32) + time.stream), len(time.computing) > 1
    numbers = [divmod(value, 1 << 32) for value in groups.values.tolist()]
    names = tuple(f"stream {stream}" + (f" of device {device}" if several else "") for device, stream in numbers)
    return Categorical(groups.inverse, names)


def _thread_names(trace: Trace) -> tuple[str, ...]:
    """Return the thread lanes' names: the thread number, with the process where numbers collide."""
    times = Counter(thread for _, thread in trace.threads)
    return tuple(
        f"thread {thread}" + (f" of process {process}" if times[thread] > 1 else "")
        for process, thread in trace.threads
    )


def _parts_of_device(time: DeviceTime, device: Any, step: tuple[int, int]) -> tuple[Intervals, Categorical[str]]:
    """Return device activity and idle causes over the step: spans that fill the step, and their kinds."""
    rows = np.flatnonzero(time.device == device.number)
    communicates = time.operator_class[rows] == CLASS_CODE[OperatorClass.COMMUNICATION]
    copies = time.copies[rows] & ~communicates
    layers: list[tuple[str, Intervals]] = []
    for what, marked in ((COMPUTING, ~communicates & ~copies), (EXPOSED, communicates), (COPIES, copies)):
        layers.append((what, union(time.start[rows[marked]], time.duration[rows[marked]])))
    layers += [(UNRECORDED, device.idle.unrecorded)]
    layers += [(f"{IDLE}{part.cause.value}", part.time) for part in device.idle.charged]
    left = np.array([step[0]]), np.array([step[1]])
    parts = []
    for what, spans in layers:
        parts.append((what, overlap(left, spans)))
        left = without(left, spans)
    return _layered([*parts, (OUTSIDE_WORK, left)])


def _layered(parts: Sequence[tuple[str, Intervals]]) -> tuple[Intervals, Categorical[str]]:
    kinds = list(dict.fromkeys(what for what, _ in parts))
    code = np.concatenate([np.full(len(spans[0]), kinds.index(what)) for what, spans in parts])
    start, end = (np.concatenate([spans[edge] for _, spans in parts]) for edge in (0, 1))
    return (start, end), Categorical(code, tuple(kinds))


# ----- the host


def _threads(
    trace: Trace, host: HostTable, calls: CallTable, steps: MeasuredSteps, step: tuple[int, int]
) -> Iterator[_OneLane]:
    """Yield the launching threads (on the CPU, the computing ones), busiest first."""
    names, launches, time = trace.names, trace.launches, steps.time
    end_ns = host.start_ns + host.duration_ns
    inside = (host.start_ns < step[1]) & (end_ns > step[0]) & (host.duration_ns > 0)
    called = (launches.start_ns < step[1]) & (launches.start_ns + launches.duration_ns > step[0])
    operators = is_operator(names, host)
    if time is None:
        kinds = [*(item.value for item in CLASSES), FRAMEWORK, INPUT]
        code = np.full(len(host.name), len(CLASSES), dtype=np.int64)
        known = calls.host_row >= 0
        code[calls.host_row[known]] = calls.operator_class.codes[known]
        # What is below an operator that computes is a part of it, unless it computes itself.
        below = operators & (code == len(CLASSES))
        code[below] = -1
        begins, ends = steps.window.loading
        index = np.searchsorted(begins, host.start_ns, side="right") - 1
        code[(code == len(CLASSES)) & (index >= 0) & (end_ns <= take(ends, index))] = len(CLASSES) + 1
        works, called = inside & (code >= 0) & (code < len(CLASSES)), np.zeros(len(launches.name), dtype=bool)
    else:
        kinds = [OPERATORS, LAUNCHING, WAITING, RUNTIME, PYTHON]
        code = np.where(operators, 0, 4)
        works = called & starts_work(names, launches)
    # Runtime calls launch, wait for the device or do something else.
    waits, starts = rows_named(WAITS, names, launches.name), starts_work(names, launches)
    code_of_call = np.where(waits, 2, np.where(starts, 1, 3))
    of_call = np.full(len(host.name), -1, dtype=np.int64)
    of_call[calls.host_row[calls.host_row >= 0]] = calls.signature.codes[calls.host_row >= 0]
    of_threads = host.thread[works] if time is None else launches.thread[works]
    spent = host.self_ns[works] if time is None else launches.duration_ns[works]
    threads = unique(of_threads)
    sums = np.zeros(len(threads.values), dtype=np.int64)
    np.add.at(sums, threads.inverse, spent)
    titles = _thread_names(trace)
    for number in np.argsort(-sums, kind="stable").tolist():
        thread = int(threads.values[number])
        rows = np.flatnonzero(inside & (host.thread == thread))
        own = np.flatnonzero(called & (launches.thread == thread))
        start, end, event, around = _innermost(host, rows, code, launches, own)
        # Events of the host first, then runtime calls, for which the event around them stands in.
        codes = np.concatenate((code[rows], code_of_call[own]))[event]
        is_call = event >= len(rows)
        row = np.concatenate((rows, around))[event]
        named = np.concatenate((host.name[rows], launches.name[own]))[event]
        keys: dict[str, Categorical[Any]] = {
            "kind": Categorical(codes, tuple(kinds)),
            "name": Categorical(named, names),
            "operator": Categorical(np.where(is_call, take(host.name, row), -1), names),
            "signature": Categorical(take(of_call, row), calls.signature.values),
            "module": host.module.take(row),
            "phase": Categorical(take(host.phase, row), tuple(PHASES)),
        }
        cause = None if time is None else _waited_for(time, start, end, codes == kinds.index(WAITING))
        yield _lane(LaneKind.HOST, titles[thread], (start, end), step, keys, cause)


def _waited_for(time: DeviceTime, start_ns: Int64, end_ns: Int64, waits: Bool) -> tuple[Categorical[str], Int64]:
    """Return the stream and begin of the last work that ended during a host wait, shortly before the host continued."""
    ended = time.start + time.duration
    order = np.argsort(ended, kind="stable")
    last = np.append(order, -1)[np.searchsorted(ended[order], end_ns, side="right") - 1]
    when = take(ended, last)
    known = waits & (when > start_ns) & (end_ns - when <= RETURNS_NS)
    last = np.where(known, last, -1)
    return _streams(time).take(last), take(time.start, last)


def _innermost(
    host: HostTable, rows: Int64, code: Int64, launches: Launches, calls: Int64
) -> tuple[Int64, Int64, Int64, Int64]:
    """Return the spans of the innermost events of one thread, the event of each, and the host row around each call.

    Events are numbered: host rows, then runtime calls. One without a code is a part of its parent.
    """
    index = np.full(len(host.name) + 1, -1, dtype=np.int64)
    index[rows] = np.arange(len(rows))
    end = host.end_ns
    around = innermost_at(host, launches.thread[calls], launches.start_ns[calls])
    parent = np.concatenate((index[host.parent[rows]], index[around]))
    starts = np.concatenate((host.start_ns[rows], launches.start_ns[calls]))
    ends = np.concatenate((end[rows], launches.start_ns[calls] + launches.duration_ns[calls]))
    event = np.concatenate((np.where(code[rows] >= 0, np.arange(len(rows)), -1), len(rows) + np.arange(len(calls))))
    while (unknown := np.flatnonzero((event < 0) & (parent >= 0) & (take(event, parent) >= 0))).size:
        event[unknown] = event[parent[unknown]]
    while (late := np.flatnonzero((parent >= 0) & (ends > take(ends, parent)))).size:
        ends[late] = ends[parent[late]]

    # The spans that nested events leave visible: each hides the part of its parent that it covers.
    count = np.arange(len(starts))
    moments = np.concatenate((starts, np.maximum(ends, starts)))
    after = np.concatenate((np.ones_like(count), np.zeros_like(count)))
    # Of events that end together the outermost is last, of those that begin together the innermost.
    order = np.lexsort((np.concatenate((count, -count)), after, moments))
    seen = np.concatenate((event, np.where(parent >= 0, take(event, parent), -1)))[order]
    moments = moments[order]
    lasts = np.append(moments[1:], moments[-1:])
    shown = (lasts > moments) & (seen >= 0)
    begins, ends, seen = moments[shown], lasts[shown], seen[shown]
    if not len(seen):
        return begins, ends, seen, around
    # One event that a part of it does not hide is one span.
    first = np.flatnonzero(np.append(True, (seen[1:] != seen[:-1]) | (begins[1:] != ends[:-1])))
    return begins[first], ends[np.append(first[1:] - 1, len(seen) - 1)], seen[first], around


# ----- several ranks


#: Maximum number of rank lanes, evenly sampled, and of steps that a rank's summary keeps.
_MOST_RANKS: Final = 16
_MOST_STEPS: Final = 16


def device_over_steps(steps: MeasuredSteps) -> tuple[Lanes, ...]:
    """Return the first device's activity over each counted step; of many steps, over those closest to their mean."""
    time = steps.time
    devices = [] if time is None else [device for device in time.devices if device.number in time.computing]
    if time is None or not devices:
        return ()
    counted = [row for row in steps.rows if row.set_aside is None]
    mean = sum(row.wall_ns for row in counted) / max(len(counted), 1)
    nearest = sorted(range(len(counted)), key=lambda index: abs(counted[index].wall_ns - mean))[:_MOST_STEPS]
    made = []
    for index in sorted(nearest):
        step = int(time.step_start[index]), int(time.step_end[index])
        when, kinds = _parts_of_device(time, devices[0], step)
        lane = _lane(LaneKind.DEVICE, "device", when, step, {"kind": kinds})
        made.append(fewer(_together([lane], counted[index].number, step), MOST_SPANS // _MOST_RANKS))
    return tuple(made)


class RankLanes(Struct, frozen=True):
    """A rank's name, and its device over each step that counts."""

    name: str
    steps: tuple[Lanes, ...]


def lanes_of_ranks(ranks: Sequence[RankLanes], matched: Matched | None) -> Lanes | None:
    """Return a lane for each rank's device over one step that all ranks have; `None` if there is none.

    With `matched` collectives the lanes share one clock and show when a rank waited for another one. Otherwise each
    lane begins with its own step.
    """
    having = [index for index, rank in enumerate(ranks) if rank.steps]
    count = min(len(having), _MOST_RANKS)
    shown = [having[index * len(having) // count] for index in range(count)]
    steps = [{lanes.step: lanes for lanes in ranks[index].steps} for index in shown]
    common = [number for number in steps[0] if all(number in own for own in steps)] if steps else []
    if not common:
        return None
    sums = {number: sum(own[number].wall_ns for own in steps) for number in common}
    chosen = min(common, key=lambda number: abs(len(common) * sums[number] - sum(sums.values())))
    names = [rank.name for rank in ranks]
    titles = [name if names.count(name) < 2 else f"{name} ({index})" for index, name in enumerate(names, 1)]
    offsets = [0] * len(ranks) if matched is None else matched.clocks.offset_ns.tolist()
    zero = min((own[chosen].begin_ns or 0) - offsets[index] for own, index in zip(steps, shown, strict=True))
    made, tables, ends = [], [], []
    for own, index in zip(steps, shown, strict=True):
        lanes, title = own[chosen], titles[index]
        begin = lanes.begin_ns or 0
        shift = 0 if matched is None else begin - offsets[index] - zero
        spans = lanes.spans
        if matched is not None and lanes.lanes[0].bin_ns is None:
            spans = _with_waits(spans, matched.waits_of(index), begin, titles, shift)
        keys = {"lane": Categorical(np.zeros(len(spans), dtype=np.int64), (title,))}
        tables.append(spans.with_columns(keys, {"begin_ns": spans.figures["begin_ns"] + shift}))
        made.append(replace(lanes.lanes[0], name=title))
        ends.append(shift + lanes.wall_ns)
    return Lanes(
        step=chosen,
        begin_ns=None if matched is None else zero,
        wall_ns=max(ends),
        lanes=tuple(made),
        spans=concatenated((NO_SPANS, *tables)).compact(),
        hidden=len(having) - count,
        on_one_clock=matched is not None,
    )


def _with_waits(spans: SpanTable, waits: RankWaits, begin_ns: int, titles: Sequence[str], shift: int) -> SpanTable:
    """Return a rank's spans, with exposed communication spent waiting for another rank as separate spans.

    The cause of a wait is the rank that arrived last, and when.
    """
    exposed = spans.keys["kind"].equals(EXPOSED)
    rows = np.flatnonzero(exposed)
    own = begin_ns + spans.figures["begin_ns"][rows]
    communicating = own, own + spans.figures["length_ns"][rows]
    waiting = overlap(communicating, waits.waiting)
    rest = without(communicating, waiting)
    when, kinds = _layered([(EXPOSED, rest), (WAITING_FOR_RANKS, waiting)])
    row = np.searchsorted(waits.start_ns, when[0], side="right") - 1
    row = np.where(kinds.equals(WAITING_FOR_RANKS) & (row >= 0), row, -1)
    keys: dict[str, Categorical[Any]] = {
        "kind": kinds,
        "name": waits.collective.take(row),
        "cause": Categorical(take(waits.last, row), tuple(titles)),
    }
    known = row >= 0
    figures = {
        "begin_ns": when[0] - begin_ns,
        "length_ns": when[1] - when[0],
        "cause_ns": figure(take(waits.begun_ns, row) - begin_ns + shift, known),
    }
    every: SpanTable = concatenated((spans.where(~exposed), SpanTable(keys, figures)))
    return every.where(np.argsort(every.figures["begin_ns"], kind="stable"))


# ----- as many spans as a report or a picture holds


def fewer(lanes: Lanes, most: int | None, work: int = 0, binned: int = _MOST_BINNED) -> Lanes:
    """Limit the lanes to this many spans, stream lanes to this many more; a lane beyond it is `binned`.

    The first lanes are kept whole as far as there is room beside so many parts of each of the others.
    """
    left, left_of_work = (len(lanes.spans), 0) if most is None else (most, work)
    made, tables = [], []
    titles = lanes.spans.keys["lane"]
    spans_of = [lanes.spans.where(titles.equals(lane.name)) for lane in lanes.lanes]
    others = sum(min(len(spans), binned) for spans in spans_of)
    for lane, spans in zip(lanes.lanes, spans_of, strict=True):
        others -= min(len(spans), binned)
        if lane.of is LaneKind.STREAM and len(spans) <= left_of_work:
            left_of_work -= len(spans)
        else:
            if len(spans) > left - others:
                lane, spans = _binned(lane, spans, lanes.wall_ns, min(binned, max(left - others, 2)))
            left -= len(spans)
        made.append(lane)
        tables.append(spans)
    return replace(lanes, lanes=tuple(made), spans=concatenated((NO_SPANS, *tables)).compact())


def _binned(lane: Lane, spans: SpanTable, wall_ns: int, most: int) -> tuple[Lane, SpanTable]:
    """Return the lane with at most so many spans: the time of each kind in equal parts of the step.

    The order of kinds inside a bin is meaningless; the times are exact.
    """
    kind, start, spent = spans.keys["kind"], spans.figures["begin_ns"], spans.figures["length_ns"]
    bins = max(most // 2, 1)
    while True:
        edges = np.linspace(0, wall_ns, bins + 1).astype(np.int64)
        each = (kind.codes == code for code in range(len(kind.values)))
        times = np.stack([_sums_within(start[own], spent[own], edges) for own in each], axis=1)
        if np.count_nonzero(times) <= most or bins == 1:
            break
        bins = max(bins * 3 // 4, 1)
    ends = edges[:-1, None] + np.cumsum(times, axis=1)
    bin_of, code = np.nonzero(times)
    length = times[bin_of, code]
    keys = {
        "lane": Categorical(np.zeros(len(code), dtype=np.int64), (lane.name,)),
        "kind": Categorical(code, kind.values),
    }
    made = SpanTable(keys, {"begin_ns": ends[bin_of, code] - length, "length_ns": length})
    return replace(lane, bin_ns=int(edges[1] - edges[0])), made


def _sums_within(start_ns: Int64, spent_ns: Int64, edges: Int64) -> Int64:
    """Return the span time between consecutive edges; concurrent spans count each."""
    # Before an edge: the sum of the times since each begin, less the times since each end.
    since = []
    for moments in (np.sort(start_ns), np.sort(start_ns + spent_ns)):
        count = np.searchsorted(moments, edges)
        since.append(count * edges - np.append(0, np.cumsum(moments))[count])
    spent: Int64 = np.diff(since[0] - since[1])
    return spent
