"""Draw one step over time: its phases, what each device did and why it was idle, its streams, the host's threads.

The step is the one whose time is nearest to the mean of those that count. A lane has what happens in order, in disjoint
spans; where it has none nothing is recorded. Those of a device fill the step exactly, with the terms of `Timeline`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from opanatomy.analysis.build import MeasuredSteps
from opanatomy.analysis.idle import WAITS, is_operator
from opanatomy.analysis.intervals import Intervals, overlap, union, within, without
from opanatomy.analysis.timeline import DeviceTime
from opanatomy.attribution.attribute import enclosing_rows
from opanatomy.records.anatomy import Lane, LaneKind, Lanes
from opanatomy.records.columns import Bool, CallTable, HostTable, Int64, Launches, at, rows_named, starts_work, unique
from opanatomy.records.taxonomy import CLASS_CODE, CLASSES, PHASES, OperatorClass, Phase

#: Spans of all lanes together, at most: a picture of more is slow and shows no more.
_MOST_SPANS: Final = 2400
#: Streams, devices and threads with a lane of their own, those with most work.
_MOST_LANES: Final = 6
#: What a lane does besides classes of work, phases and causes of idle time.
COMPUTING, EXPOSED, COPIES = "computing", "exposed_communication", "exposed_copies"
OUTSIDE_WORK, UNRECORDED, IDLE = "outside", "unrecorded", "idle_"
OPERATORS, LAUNCHING, WAITING, RUNTIME, PYTHON = "operators", "launching", "waiting", "runtime", "python"
FRAMEWORK: Final = "framework"


def lanes_of(
    names: Sequence[str], host: HostTable, launches: Launches, calls: CallTable, steps: MeasuredSteps
) -> Lanes | None:
    """Return the lanes of the step that is nearest to the mean; `None` if no step counts."""
    counted = [row for row in steps.rows if row.set_aside is None]
    if not counted:
        return None
    mean = sum(row.wall_ns for row in counted) / len(counted)
    place = min(range(len(counted)), key=lambda number: abs(counted[number].wall_ns - mean))
    if steps.time is not None:
        begin, end = int(steps.time.step_start[place]), int(steps.time.step_end[place])
        made = list(_of_devices(steps.time, place, (begin, end)))
    else:
        spans = steps.window.steps or (steps.window.window,)
        begin, end = [span for span, row in zip(spans, steps.rows, strict=False) if row.set_aside is None][place]
        made = list(_host_phases(steps, (begin, end)))
    made += _threads(names, host, launches, calls, (begin, end), on_cpu=steps.time is None)
    made = [lane for lane in made if lane.spans]
    shown = [lane for kind in LaneKind for lane in [lane for lane in made if lane.of is kind][:_MOST_LANES]]
    every = Lanes(
        step=counted[place].number, wall_ns=end - begin, hidden=len(made) - len(shown), lanes=tuple(shown)
    )  # fmt: skip
    return fewer(every, _MOST_SPANS)


# ----- devices: phases, busy and idle, streams


def _of_devices(time: DeviceTime, place: int, step: tuple[int, int]) -> Iterator[Lane]:
    here = time.step == place
    devices = [device for device in time.devices if device.number in time.computing]
    names = dict(time.launched.device_names)
    window = np.array([step[0]]), np.array([step[1]])
    for device in devices[:1]:
        rows = np.flatnonzero(here & (time.device == device.number))
        yield _lane(LaneKind.PHASES, "phases", _runs(time.start[rows], time.duration[rows], time.phase[rows]),
                    [phase.value for phase in PHASES], step)  # fmt: skip
    for device in devices:
        rows = np.flatnonzero(time.device == device.number)
        communicates = time.operator_class[rows] == CLASS_CODE[OperatorClass.COMMUNICATION]
        copies = time.copies[rows] & ~communicates
        layers: list[tuple[str, Intervals]] = []
        left = window
        for what, marked in ((COMPUTING, ~communicates & ~copies), (EXPOSED, communicates), (COPIES, copies)):
            layers.append((what, union(time.start[rows[marked]], time.duration[rows[marked]])))
        layers += [(UNRECORDED, device.idle.unrecorded)]
        layers += [(f"{IDLE}{part.cause.value}", part.time) for part in device.idle.charged]
        parts = []
        for what, spans in layers:
            own = overlap(left, spans)
            left = without(left, spans)
            parts.append((what, own))
        parts.append((OUTSIDE_WORK, left))
        name = names.get(device.number)
        yield _of_layers(LaneKind.DEVICE, f"device {device.number}" + (f": {name}" if name else ""), parts, step)
    streams = unique(time.device[here] * (1 << 32) + time.stream[here])
    spent = np.zeros(len(streams.values), dtype=np.int64)
    np.add.at(spent, streams.inverse, time.duration[here])
    for number in np.argsort(-spent, kind="stable").tolist():
        device_number, stream = divmod(int(streams.values[number]), 1 << 32)
        rows = np.flatnonzero(here)[streams.inverse == number]
        of_device = f" of device {device_number}" if len(devices) > 1 else ""
        yield _lane(LaneKind.STREAM, f"stream {stream}{of_device}",
                    (time.start[rows], time.start[rows] + time.duration[rows], time.operator_class[rows]),
                    [item.value for item in CLASSES], step)  # fmt: skip


def _runs(start_ns: Int64, duration_ns: Int64, phase: Int64) -> tuple[Int64, Int64, Int64]:
    """Return the spans of work of one phase after the other, each until its last work ends or the next begins."""
    order = np.argsort(start_ns, kind="stable")
    start, end, phase = start_ns[order], (start_ns + duration_ns)[order], phase[order]
    first = np.flatnonzero(np.append(True, phase[1:] != phase[:-1])) if len(order) else order
    ends = np.maximum.reduceat(end, first) if len(first) else end
    return start[first], ends, phase[first]


def _of_layers(of: LaneKind, name: str, parts: Sequence[tuple[str, Intervals]], step: tuple[int, int]) -> Lane:
    kinds = list(dict.fromkeys(what for what, _ in parts))
    code = np.concatenate([np.full(len(spans[0]), kinds.index(what)) for what, spans in parts])
    start, end = (np.concatenate([spans[edge] for _, spans in parts]) for edge in (0, 1))
    return _lane(of, name, (start, end, code), kinds, step)


# ----- the host


def _host_phases(steps: MeasuredSteps, step: tuple[int, int]) -> Iterator[Lane]:
    """Yield the phases by the host's own ranges."""
    spans = [span for span in steps.window.spans if span[1] > step[0] and span[0] < step[1]]
    if spans:
        start, end = (np.array([span[edge] for span in spans], dtype=np.int64) for edge in (0, 1))
        codes = np.array([PHASES.index(Phase(span[2])) for span in spans], dtype=np.int64)
        yield _lane(LaneKind.PHASES, "phases", (start, end, codes), [phase.value for phase in PHASES], step)


def _threads(
    names: Sequence[str], host: HostTable, launches: Launches, calls: CallTable, step: tuple[int, int], *, on_cpu: bool
) -> Iterator[Lane]:
    """Yield the threads that launch work, on the CPU those that compute, those with most of it first."""
    end_ns = host.start_ns + host.duration_ns
    inside = (host.start_ns < step[1]) & (end_ns > step[0]) & (host.duration_ns > 0)
    called = (launches.start_ns < step[1]) & (launches.start_ns + launches.duration_ns > step[0])
    operators = is_operator(names, host)
    if on_cpu:
        kinds = [*(item.value for item in CLASSES), FRAMEWORK]
        code = np.full(len(host.name), len(CLASSES), dtype=np.int64)
        known = calls.host_row >= 0
        code[calls.host_row[known]] = calls.operator_class.codes[known]
        # What is below an operator that computes is a part of it, unless it computes itself.
        below = operators & (code == len(CLASSES))
        code[below] = -1
        works, called = inside & (code >= 0) & (code < len(CLASSES)), np.zeros(len(launches.name), dtype=bool)
    else:
        kinds = [OPERATORS, LAUNCHING, WAITING, RUNTIME, PYTHON]
        code = np.where(operators, 0, 4)
        works = called & starts_work(names, launches)
    of_threads = host.thread[works] if on_cpu else launches.thread[works]
    spent = host.self_ns[works] if on_cpu else launches.duration_ns[works]
    threads = unique(of_threads)
    sums = np.zeros(len(threads.values), dtype=np.int64)
    np.add.at(sums, threads.inverse, spent)
    for number in np.argsort(-sums, kind="stable").tolist():
        thread = int(threads.values[number])
        rows = np.flatnonzero(inside & (host.thread == thread))
        own = np.flatnonzero(called & (launches.thread == thread))
        spans = _innermost(host, rows, code, launches, own, _codes_of(names, launches, own))
        yield _lane(LaneKind.HOST, f"thread {thread}", spans, kinds, step)


def _codes_of(names: Sequence[str], launches: Launches, calls: Int64) -> Int64:
    """Return whether each call launches (1), waits for the device (2) or does something else (3)."""
    waits = rows_named(WAITS, names, launches.name)[calls]
    return np.where(waits, 2, np.where(starts_work(names, launches)[calls], 1, 3))


def _innermost(
    host: HostTable, rows: Int64, code: Int64, launches: Launches, calls: Int64, code_of_calls: Int64
) -> tuple[Int64, Int64, Int64]:
    """Return spans of what goes on innermost on one thread; an event without a code does what its parent does."""
    place = np.full(len(host.name) + 1, -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    end = host.start_ns + host.duration_ns
    around = enclosing_rows(
        host.thread, host.start_ns, end, host.parent, (launches.thread[calls], launches.start_ns[calls])
    )  # fmt: skip
    parent = np.concatenate((place[host.parent[rows]], place[around]))
    starts = np.concatenate((host.start_ns[rows], launches.start_ns[calls]))
    ends = np.concatenate((end[rows], launches.start_ns[calls] + launches.duration_ns[calls]))
    codes = np.concatenate((code[rows], code_of_calls))
    while (unknown := np.flatnonzero((codes < 0) & (parent >= 0) & (at(codes, parent) >= 0))).size:
        codes[unknown] = codes[parent[unknown]]
    while (late := np.flatnonzero((parent >= 0) & (ends > at(ends, parent)))).size:
        ends[late] = ends[parent[late]]
    return _painted(starts, np.maximum(ends, starts), parent, codes)


def _painted(start: Int64, end: Int64, parent: Int64, code: Int64) -> tuple[Int64, Int64, Int64]:
    """Return the spans that nested events leave visible: each hides the part of its parent that it covers."""
    count = np.arange(len(start))
    moments, after = np.concatenate((start, end)), np.concatenate((np.ones_like(count), np.zeros_like(count)))
    # Of events that end together the outermost is last, of those that begin together the innermost.
    order = np.lexsort((np.concatenate((count, -count)), after, moments))
    seen = np.concatenate((code, np.where(parent >= 0, at(code, parent), -1)))[order]
    moments = moments[order]
    lasts = np.append(moments[1:], moments[-1:])
    shown = (lasts > moments) & (seen >= 0)
    return moments[shown], lasts[shown], seen[shown]


# ----- several ranks


#: Ranks with a lane of their own: evenly spread ones of more.
_MOST_RANKS: Final = 16


def lanes_of_ranks(ranks: Sequence[tuple[str, Lanes]]) -> Lanes | None:
    """Return the lane of each rank's device, each from the begin of its own step; `None` if no rank has one."""
    firsts = [
        (name, lanes, next((lane for lane in lanes.lanes if lane.of is LaneKind.DEVICE), None)) for name, lanes in ranks
    ]
    known = [(name, lanes, lane) for name, lanes, lane in firsts if lane is not None]
    if not known:
        return None
    count = min(len(known), _MOST_RANKS)
    shown = [known[place * len(known) // count] for place in range(count)]
    called: Counter[str] = Counter()
    made = []
    for name, lanes, lane in shown:
        called[name] += 1
        own = name if called[name] == 1 else f"{name} ({called[name]})"
        made.append(_binned(replace(lane, name=own), lanes.wall_ns, _MOST_SPANS // count))
    steps = {lanes.step for _, lanes, _ in known}
    return Lanes(
        step=steps.pop() if len(steps) == 1 else None, wall_ns=max(lanes.wall_ns for _, lanes, _ in shown),
        lanes=tuple(made), hidden=len(known) - count,
    )  # fmt: skip


# ----- spans of a lane, in as many rectangles as a picture holds


def _lane(
    of: LaneKind, name: str, spans: tuple[Int64, Int64, Int64], kinds: Sequence[str], step: tuple[int, int]
) -> Lane:
    """Return a lane with the parts of these spans in the step, in order and disjoint, counted from its begin."""
    start, end, code = spans
    start, end = np.clip(start, *step) - step[0], np.clip(end, *step) - step[0]
    order = np.argsort(start, kind="stable")
    start, end, code = start[order], end[order], code[order]
    reached = np.maximum.accumulate(np.append(0, end))[:-1] if len(end) else end
    start = np.maximum(start, reached)
    real = end > start
    start, end, code = start[real], end[real], code[real]
    same = (start[1:] == end[:-1]) & (code[1:] == code[:-1]) if len(start) else np.zeros(0, dtype=bool)
    first = np.flatnonzero(np.append(True, ~same)[: len(start)])
    last = np.append(first[1:] - 1, len(start) - 1)[: len(first)]
    return _with_spans(Lane(of=of, name=name, kinds=tuple(kinds), spans=()), start[first], end[last], code[first])


def _with_spans(lane: Lane, start: Int64, end: Int64, code: Int64) -> Lane:
    """Return a lane with these spans, and those of its kinds that are among them."""
    used = unique(code)
    columns = (start.tolist(), (end - start).tolist(), used.inverse.tolist())
    kinds = tuple(lane.kinds[number] for number in used.values.tolist())
    return replace(lane, kinds=kinds, spans=tuple(zip(*columns, strict=True)))


def fewer(lanes: Lanes, most: int) -> Lanes:
    """Return the lanes with at most so many spans in all."""
    each = most // max(len(lanes.lanes), 1)
    return replace(lanes, lanes=tuple(_binned(lane, lanes.wall_ns, each) for lane in lanes.lanes))


def _binned(lane: Lane, wall_ns: int, most: int) -> Lane:
    """Return the lane with at most so many spans: of more the time of each kind in equal parts of the step.

    Inside such a part the order of the kinds says nothing; their times are exact.
    """
    if len(lane.spans) <= most:
        return lane
    start, spent, code = (np.array(column, dtype=np.int64) for column in zip(*lane.spans, strict=True))
    bins = max(most // 2, 1)
    while True:
        edges = np.linspace(0, wall_ns, bins + 1).astype(np.int64)
        times = np.stack([
            within(_intervals(start, spent, code == kind), edges[:-1], edges[1:]) for kind in range(len(lane.kinds))
        ], axis=1)  # fmt: skip
        if np.count_nonzero(times) <= most or bins == 1:
            break
        bins = max(bins * 3 // 4, 1)
    ends = edges[:-1, None] + np.cumsum(times, axis=1)
    bin_of, kind = np.nonzero(times)
    begins = (ends - times)[bin_of, kind]
    return replace(_with_spans(lane, begins, ends[bin_of, kind], kind), bin_ns=int(edges[1] - edges[0]))


def _intervals(start: Int64, spent: Int64, marked: Bool) -> Intervals:
    return start[marked], (start + spent)[marked]
