"""Time the steps of a trace again after a change: a graph of host points and device events (Daydream, ATC'20).

The host's threads that launch work take turns, so they are one chain of points: launches, and the ends of calls that
waited. Behind each launch stand its device events. A device event begins when it has been launched, when the one before
it on its stream has ended, and when one of another stream has that it waits for. A call that waits ends when the work
that it waits for has. The edge that decides keeps its recorded delay, so that the graph times the recorded steps
exactly; another one that comes to decide has the usual delay, no more than it had slack.

A change is a factor on kinds of host time, on device events, or on waits. Its gain is what the end of the graph moves:
a kernel that other work hides gains nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from math import prod
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.analysis.idle import LAUNCH, SHORT_GAP_NS, host_layers
from opanatomy.analysis.intervals import Intervals, LaunchedWork, length, union, within, without
from opanatomy.analysis.timeline import DeviceTime, StepWindow
from opanatomy.errors import UsageError
from opanatomy.records.anatomy import Advice, Evidence, PathPart, Replay, WhatIf
from opanatomy.records.columns import (
    AFTER_ALL,
    BEFORE_ALL,
    MEMCPY,
    Bool,
    DeviceWork,
    Float64,
    Int64,
    KernelTable,
    isin,
    mask_of,
    rows_by_value,
    rows_named,
    starts_work,
    unique,
)
from opanatomy.records.runtime_calls import FREES, RECORDS_EVENT, STREAM_WAITS_FOR_EVENT, WAITS
from opanatomy.records.taxonomy import CAUSE_LABELS, CLASS_CODE, CLASSES, PHASE_CODE, IdleCause, OperatorClass, Phase

#: Gains are replayed if a replay with usual delays is off by less than this part of the steps, and less than this part
#: are delays that no edge explains.
TRUSTED: Final = 0.05
#: Nor are they where the trace lacks the device work of this part of the steps.
_MAX_MISSING_SHARE: Final = 0.01
#: A delay this much longer than usual is unexplained.
_UNEXPLAINED_NS: Final = 20_000
#: Default delays for traces with too few samples: of a launch, of queued work, across streams, of a wait.
_LAUNCHED_NS, _QUEUED_NS, _ACROSS_NS, _RETURNED_NS = 8_000, 1_000, 2_000, 8_000
_MIN_DELAYS: Final = 5
#: A wait returns at most so long after the work that it is for.
_LATE_NS: Final = 200_000
#: The clocks of host and device may disagree by so much.
_SKEW_NS: Final = 20_000
#: Work that waited for another stream begins so soon after that one's work has ended; where nothing else explains a
#: long delay `_SKEW_NS` after it, or so long before it by another clock.
_AT_ONCE_NS: Final = 5_000
#: So many events that end before an event are tried as the one that it waited for.
_ENDED_TOGETHER: Final = 4
#: A launch this many times the median, at least this long, behind this many others, waited for the full queue.
_SLOW, _SLOW_NS, _QUEUE = 20, 100_000, 500
#: What recording an event costs the host: the median over ten programs on one H200 (torch 2.11, shapes recorded) of the
#: step with the profiler less the one without it, over its host events (benchmarks/pairs; 1.4 to 6.4 us).
EVENT_NS: Final = 2_000
#: No part of the host's time shrinks below this part by it.
_LEAST_PART: Final = 0.3
#: So many device events are enough of steps that take alike.
_ENOUGH_EVENTS: Final = 10_000
#: Steps take alike if the longest takes less than this times the shortest.
_ALIKE: Final = 1.1
#: Advice on a host that is late.
_SLOWED_BY_RECORDING: Final = ("gap", "launches")
#: A host ahead by this part of a step is not late without recording.
_AHEAD: Final = 0.2
_UNRECORDED: Final = "Time the step without the profiler first."
#: The host has a share in the step if the step is shorter than this part of itself without it.
_NEARLY: Final = 0.98
#: The factor on the host's time is at most this, and halved in on so often.
_MAX_HOST_FACTOR, _HALVINGS = 2.0, 12

#: What an edge is: from a launch, from the event before on the stream, from another stream; and into the end of a call:
#: of a wait, of a copy that lasts until it is done, of a launch into a full queue, of a free that waits.
_LAUNCH, _STREAM, _ACROSS, _WAIT, _COPY, _FULL, _FREE = range(7)
#: In place of an event: work of before the steps.
_BEFORE: Final = -1
#: The time of what no edge reaches. Delays are added to it and times taken from it, which would overflow `BEFORE_ALL`.
_UNREACHED: Final = -(1 << 60)

HOST, DEVICE, OPTIMIZER = "host", "device", "optimizer"
COPIES, BLOCKING_COPIES = "copies", "blocking copies"
#: The words of a change, in lower case with hyphens, and what each means; the host does kinds of things.
_WORDS: Final = {
    **{word: word for word in (HOST, DEVICE, OPTIMIZER, LAUNCH, COPIES)},
    BLOCKING_COPIES.replace(" ", "-"): BLOCKING_COPIES,
    **{
        text.lower().replace("_", "-").replace(" ", "-"): cause.value
        for cause, label in CAUSE_LABELS.items()
        if cause not in (IdleCause.STREAM, IdleCause.DEVICE, IdleCause.UNKNOWN)
        for text in (cause.value, label)
    },
}
#: Classes of device work by their names in changes.
_CLASSES: Final = {
    **{item.value.replace("_", "-"): item for item in OperatorClass},
    "contraction": OperatorClass.TENSOR_CONTRACTION,
    "normalization": OperatorClass.STATISTICAL_NORMALIZATION,
    "element-wise": OperatorClass.ELEMENTWISE,
    "collectives": OperatorClass.COMMUNICATION,
}
#: Prefix for device idle gaps of at least 1 ms before a kernel whose name contains the text that follows.
GAP: Final = "gap before "
QUEUE, LATENCY = "queue", "launch latency"
#: Host time of no kind.
_REST: Final = "unrecorded host time"
#: The edges that a change of a wait removes, and what delays on the path are called; the others are waits.
_REMOVED: Final = {IdleCause.SYNCHRONIZATION.value: _WAIT, BLOCKING_COPIES: _COPY}
_OF_PATH: Final = {_LAUNCH: LATENCY, _STREAM: QUEUE, _ACROSS: QUEUE}


class Change(Struct, frozen=True):
    """A change that scales a part of the step by `factor`: a kind of host time, a class, an operator, a kernel."""

    of: str
    factor: float

    @property
    def text(self) -> str:
        """Return it as `change_of` reads it."""
        return f"{self.of} x{self.factor:g}"


def changes_of(texts: Iterable[str] | None) -> tuple[Change, ...]:
    """Parse changes such as `aten::mm x0.5` or `synchronization 0`; raise `UsageError` for other text."""
    return tuple(map(change_of, texts or ()))


def change_of(text: str) -> Change:
    """Parse one change; raise `UsageError` if the text is not one."""
    parts = re.fullmatch(r"\s*(\S.*?)\s+x?\s*([0-9]*\.?[0-9]+)\s*", text)
    if parts is None or float(parts[2]) > 100:
        raise UsageError(
            f"what-if {text!r}: not a change - write PART xFACTOR, such as 'aten::mm x0.5', 'elementwise x0.8',"
            " 'synchronization 0' or 'host 0'"
        )
    change = Change(parts[1], float(parts[2]))
    if change.factor and (word := _word_of(change.of)) in (IdleCause.SYNCHRONIZATION, BLOCKING_COPIES):
        raise UsageError(f"what-if {text!r}: a wait cannot be shortened, only removed - write '{word} 0'")
    return change


def _word_of(of: str) -> str | OperatorClass | None:
    """Return the word of ours, or the class, that a text means in any case; `None` for a name of the trace."""
    key = of.lower().replace("_", "-").replace(" ", "-")
    return _WORDS.get(key) or _CLASSES.get(key)


class _Part(Struct, frozen=True):
    """What the name of a change means: a word of ours, and the host time, device events and waits that it changes."""

    word: str | OperatorClass | None
    #: `None`: it changes no time of the host.
    host: Intervals | None
    events: Int64
    #: The kind of the edges into the ends of calls that go, if it is a wait.
    waits: int | None = None


class _Edges(Struct, frozen=True):
    """The edges of a graph by their targets; events and points are numbered by their order."""

    #: The event that each edge from its launch leads to, and the edge; and of edges from the event before on a stream.
    launches: tuple[Int64, Int64]
    follows: tuple[Int64, Int64]
    #: For each event the place of the one before on its stream (from 1 on; 0: before the steps).
    before: tuple[int, ...]
    #: Nodes with other edges, each as the number of events before it, its index among the points (-1: it is the next
    #: event) and the edges, each with its source's place among the events (from 1 on; 0: before the steps).
    others: tuple[tuple[int, int, list[tuple[int, int]]], ...]


class StepGraph:
    """The longest run of steps that count, as nodes in the order in which the host issued them; of long steps that take
    alike no more than have `_ENOUGH_EVENTS` device events.

    `count` steps take `window_ns` together, without the time in which only the work of other steps runs.
    """

    def __init__(
        self, launched: LaunchedWork, kernels: KernelTable, time: DeviceTime, window: StepWindow, counted: Bool
    ) -> None:
        self._launched, self._kernels = launched, kernels
        first, last, (host_begin, host_end) = _longest_run(window, counted, time)
        self.count = last - first + 1
        begin, end = int(time.step_start[first]), int(time.step_end[last])
        parts = time.parts()[first : last + 1]
        self._outside_ns = sum(part.outside for part in parts)
        self._unrecorded_ns = sum(part.unrecorded for part in parts)
        self._is_annotated = bool(window.steps)
        work, calls, names = launched.work, launched.launches, launched.names
        own = (time.steps.step >= first) & (time.steps.step <= last)
        ended = work.start_ns + work.duration_ns
        self._events = events = np.flatnonzero(own | ((ended > begin) & (work.start_ns < end)))
        start, stop, own, launch = work.start_ns[events], ended[events], own[events], launched.launch[events]
        self._begin_ns = begin
        host_begin, host_end = self._host = min(host_begin, begin), max(host_end, host_begin)

        # Calls of the threads that launch work; those that waited for work, with that work.
        launching = starts_work(names, calls)
        of_host = isin(calls.thread, unique(calls.thread[launching]).values)
        of_host &= (calls.start_ns >= host_begin) & (calls.start_ns <= host_end)
        returned = calls.start_ns + calls.duration_ns
        # Work of another step that these steps launch, such as the copy of its batch, moves with their host too.
        is_launched = (launch >= 0) & of_host[launch]
        launched_ns = np.where(launch >= 0, calls.start_ns[launch], start)
        queue = (
            np.sort(calls.start_ns[launched.launch[launched.launch >= 0]]),
            np.sort(work.start_ns[launched.launch >= 0]),
        )
        waited = _waited_for(
            names,
            calls.name,
            calls.start_ns,
            returned,
            of_host,
            launching,
            queue,
            (work.kind[events], launch, launched_ns, start, stop, _streams(work, events)),
        )

        # Nodes: host points in the order of time, and behind each launch its events in theirs.
        starting, waiting = unique(launch[is_launched]).values, np.array(sorted(waited), dtype=np.int64)
        points = np.concatenate(([host_begin], calls.start_ns[starting], returned[waiting], [host_end]))
        call = np.concatenate(([-1], starting, waiting, [-1]))
        is_return = np.repeat((False, True, False), (1 + len(starting), len(waiting), 1))
        ranked = np.argsort(points, kind="stable")
        points, call, is_return = points[ranked], call[ranked], is_return[ranked]
        of_start = np.flatnonzero(~is_return)
        index_of = {int(call[index]): int(index) for index in of_start}
        issue = np.maximum(np.searchsorted(points, start, side="right") - 1, 0)
        issue[is_launched] = [index_of[one] for one in launch[is_launched].tolist()]
        moves = own | is_launched
        issue[~moves] = 0
        order = np.lexsort((start, issue))
        events, start, stop, issue = (each[order] for each in (events, start, stop, issue))
        own, is_launched, launch, moves = own[order], is_launched[order], launch[order], moves[order]
        self._own, self._launched_ns = own, launched_ns[order]
        self._events, self._issue = events, issue
        self._points = np.arange(len(points)) + np.searchsorted(issue, np.arange(len(points)))
        self._nodes = np.arange(len(events)) + issue + 1
        index_in = np.empty(len(order), dtype=np.int64)
        index_in[order] = np.arange(len(order))
        for works in waited.values():
            works[:] = [(event if event == _BEFORE else int(index_in[event]), kind) for event, kind in works]
        count = len(points) + len(events)
        self._begun, self._ended = np.empty((2, count), dtype=np.int64)
        self._begun[self._points] = self._ended[self._points] = points
        self._begun[self._nodes], self._ended[self._nodes] = start, stop

        # The host's chain: the time between two points, of a wait only up to its call, and what such a call costs.
        until = points[1:].copy()
        returns = np.flatnonzero(is_return[1:])
        until[returns] = np.maximum(calls.start_ns[call[1:][returns]], points[:-1][returns])
        quick = of_host & rows_named(WAITS, names, calls.name) & ~mask_of(waiting, len(of_host))
        cost = _usual(calls.duration_ns[quick], _RETURNED_NS)
        self._spans = points[:-1], until
        self._cost = np.where(is_return[1:], np.minimum(points[1:] - until, cost), 0)

        # What a slow launch takes, which loads kernels or is the first, before its work begins.
        issued = points[issue]
        until_done = np.clip(returned[launch], issued, np.maximum(start, issued))
        self._slow = np.where(is_launched, within(self._host_kinds[IdleCause.SLOW_LAUNCH], issued, until_done), 0)
        # Edges; those that decide when their targets begin keep their recorded delays.
        source, target, kind, usual = self._edges(waited, is_return, call, issue, moves, is_launched)
        delay = self._begun[target] - self._ended[source]
        chain = self._ended[self._points[:-1]] + (until - points[:-1]) + self._cost
        reached = np.full(count, _UNREACHED)
        np.maximum.at(reached, target, self._ended[source] + usual)
        decided = np.full(count, _UNREACHED)
        decided[self._points[1:]] = chain
        binds = (self._ended[source] + usual == reached[target]) & (reached[target] > decided[target])
        last_of = np.full(count, -1)
        last_of[target[binds]] = np.flatnonzero(binds)
        binds = last_of[target] == np.arange(len(target))
        # A wait that none of its work explains took what it took.
        unexplained = is_return[1:] & (last_of[self._points[1:]] < 0)
        self._cost = np.where(unexplained, points[1:] - until, self._cost)
        decided = np.maximum(decided, reached)
        # What began before the steps, and what only unrecorded work before it explains, begins when it did.
        late = start - np.maximum(decided[self._nodes], begin)
        heads = moves & ~mask_of(target[kind == _STREAM], count)[self._nodes]
        self.backlog_ns = int(late[heads].max(initial=0))
        early = decided[self._nodes] < begin
        fixed = ~moves | (start < begin) | (heads & early & (start - decided[self._nodes] > _UNEXPLAINED_NS))
        self._fixed: Bool = np.zeros(count, dtype=bool)
        self._fixed[self._nodes[fixed]] = True
        free = ~self._fixed[target]
        self._source, self._target, self._kind = source[free], target[free], kind[free]
        binds, delay, usual = binds[free], delay[free], usual[free]
        self._recorded = np.where(binds, delay, np.minimum(usual, delay))
        self._usual = np.where(binds, usual, np.minimum(usual, delay))
        unexplained = binds & (self._kind <= _ACROSS) & (delay - usual > _UNEXPLAINED_NS)
        idle = self._begun[self._target[unexplained]]
        waits_ns = union(idle - (delay - usual)[unexplained], (delay - usual)[unexplained])
        self.unexplained_ns = length(without(waits_ns, union(start, stop - start)))
        self._edges_in = self._edges_behind()
        self._parts: dict[str, _Part] = {}
        self.window_ns = self._length(stop - points[0], stop - start, float(points[-1] - points[0]))

    def _edges(
        self,
        waited: dict[int, list[tuple[int, int]]],
        is_return: Bool,
        call: Int64,
        issue: Int64,
        moves: Bool,
        is_launched: Bool,
    ) -> tuple[Int64, Int64, Int64, Int64]:
        """Return the edges besides the host's chain: source, target, kind and usual delay of each."""
        nodes, points, work = self._nodes, self._points, self._launched.work
        start, stop = self._begun[nodes], self._ended[nodes]
        stream = _streams(work, self._events)
        ranked = np.lexsort((start, stream))
        follows = (stream[ranked[1:]] == stream[ranked[:-1]]) & (nodes[ranked[:-1]] < nodes[ranked[1:]])
        before = np.full(len(nodes), -1)
        before[ranked[1:][follows]] = ranked[:-1][follows]
        ended_before = np.where(before >= 0, stop[before], _UNREACHED)
        issued = self._begun[points[issue]]
        latency = _usual((start - issued)[is_launched & (ended_before < issued)], _LAUNCHED_NS)
        queued = moves & (issued + latency < ended_before)
        gap = _usual((start - ended_before)[queued], _QUEUED_NS)
        # Work that begins as another stream's ends, and that neither its launch nor its own stream explains.
        explained = np.maximum(ended_before + gap, issued + latency + self._slow)
        late = start - explained
        across = moves & (late > _ACROSS_NS)
        other, by_end = np.full(len(nodes), -1), np.argsort(stop, kind="stable")
        is_long = late > _UNEXPLAINED_NS
        last = np.searchsorted(stop[by_end], start + np.where(is_long, _AT_ONCE_NS, 0), side="right") - 1
        for index in range(_ENDED_TOGETHER):
            found = by_end[np.maximum(last - index, 0)]
            reached = start - stop[found] < np.where(is_long, _SKEW_NS, _AT_ONCE_NS)
            fits = across & (other < 0) & reached & (stream[found] != stream) & (nodes[found] < nodes)
            fits &= self._launched_ns[found] <= issued  # not of a later step
            other = np.where(fits, found, other)
        # Else the work before the event that was recorded, and waited for, right before its launch.
        left = np.flatnonzero(across & is_long & (other < 0))
        found = self._recorded_before(issued[left])
        fits = (found >= 0) & (stream[found] != stream[left]) & (stop[found] <= start[left])
        other[left[fits]] = found[fits]
        across &= other >= 0
        crossing = _usual((start - stop[other])[across], _ACROSS_NS)
        returns = {int(one): int(points[index]) for index, one in enumerate(call.tolist()) if is_return[index]}
        rows = [
            (points[0] if event == _BEFORE else nodes[event], returns[one], kind)
            for one, works in waited.items()
            for event, kind in works
            if event == _BEFORE or nodes[event] < returns[one]
        ]
        from_work, into, kinds = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        late = self._ended[into] - self._ended[from_work]
        returning = _usual(late[(late >= 0) & (late < _LATE_NS) & (kinds == _WAIT)], _RETURNED_NS)
        behind = np.flatnonzero((before >= 0) & moves)
        sources = (points[issue[moves]], nodes[before[behind]], nodes[other[across]], from_work)
        targets = (nodes[moves], nodes[behind], nodes[across], into)
        sizes = [len(each) for each in targets]
        return (
            np.concatenate(sources),
            np.concatenate(targets),
            np.concatenate((np.repeat((_LAUNCH, _STREAM, _ACROSS), sizes[:3]), kinds)),
            # What waits for work of before the steps returns when it did.
            np.concatenate(
                (
                    latency + self._slow[moves],
                    np.repeat((gap, crossing), sizes[1:3]),
                    np.where(from_work == points[0], late, returning),
                )
            ),
        )

    def _recorded_before(self, issued: Int64) -> Int64:
        """Return for each launch the last event launched before the record that it waits for.

        -1 where the host's last such calls are no record and a wait for it.
        """
        calls, names = self._launched.launches, self._launched.names
        recorded, waited, launched = (
            np.sort(calls.start_ns[rows])
            for rows in (
                rows_named(RECORDS_EVENT, names, calls.name),
                rows_named(STREAM_WAITS_FOR_EVENT, names, calls.name),
                starts_work(names, calls),
            )
        )

        def last(moments: Int64, before: Int64) -> Int64:
            index = np.searchsorted(moments, before) - 1
            return np.where(index >= 0, moments[index] if len(moments) else BEFORE_ALL, BEFORE_ALL)

        wait = last(waited, issued)
        record = last(recorded, wait)
        known = (wait > last(launched, issued)) & (record > last(launched, wait))
        order = np.argsort(self._launched_ns, kind="stable")
        index = np.searchsorted(self._launched_ns[order], record) - 1
        return np.where(known & (index >= 0), order[index], -1)

    def _edges_behind(self) -> _Edges:
        """Return the edges in the order of their targets."""
        event_of, point_of = np.full((2, len(self._begun)), -1)
        event_of[self._nodes], point_of[self._points] = np.arange(len(self._nodes)), np.arange(len(self._points))
        into: dict[int, list[tuple[int, int]]] = {}
        for edge in np.flatnonzero(self._kind >= _ACROSS).tolist():
            source = int(event_of[self._source[edge]])
            into.setdefault(int(self._target[edge]), []).append((source + 1, edge))
        launches, follows = (
            (event_of[self._target[edges]], edges)
            for edges in (np.flatnonzero(self._kind == kind) for kind in (_LAUNCH, _STREAM))
        )
        before = np.zeros(len(self._nodes), dtype=np.int64)
        before[follows[0]] = event_of[self._source[follows[1]]] + 1
        points = point_of.tolist()
        others = tuple(
            (
                node - 1 - int(self._issue[event_of[node]]) if points[node] < 0 else node - points[node],
                points[node],
                into[node],
            )
            for node in sorted(into)
        )
        return _Edges(launches=launches, follows=follows, before=tuple(before.tolist()), others=others)

    # ------------------------------------------------------------------------------------------------------- replaying

    def time_ns(
        self, changes: Iterable[Change] = (), *, usual: bool = False, host: float = 1.0, unprofiled: bool = False
    ) -> int:
        """Return how long the steps take with all these changes; `host` additionally scales all host time.

        With `usual` the edges that decide have usual delays, which shows how far the graph can be trusted. With
        `unprofiled` host time is without what recording its events costs (`EVENT_NS`).
        """
        made = tuple(changes)
        spans = self._host_ns(made)
        if unprofiled:
            spans = np.maximum(spans - EVENT_NS * self._host_events, _LEAST_PART * spans)
        spans = spans * host + self._cost
        length = self._length(*self._ends(made, spans, usual=usual))
        if not self._is_annotated:
            return length
        # A host that is steps ahead of the device needs its time for each of them all the same.
        recorded = float((self._host_ns(()) + self._cost).sum())
        needed = float(spans.sum()) * min(self.window_ns / recorded, 1.0) if recorded else 0.0
        return max(length, round(needed))

    @cached_property
    def _host_events(self) -> Int64:
        """Return how many recorded host events begin between each two points."""
        host, calls = self._launched.host, self._launched.launches
        begins = (host.start_ns[isin(host.thread, self._threads)], calls.start_ns[isin(calls.thread, self._threads)])
        before, until = (np.searchsorted(np.sort(np.concatenate(begins)), edge) for edge in self._spans)
        return np.asarray(until - before, dtype=np.int64)

    def _ends(self, changes: Sequence[Change], spans: Float64, *, usual: bool) -> tuple[Float64, Float64, float]:
        """Return when each event ends, how long it lasts, and when the host ends, from the first point on: nanoseconds
        since 1970 would not keep their last digits."""
        delay = (self._usual if usual else self._recorded).astype(np.float64)
        nodes = self._nodes
        duration = (self._ended - self._begun)[nodes].astype(np.float64)
        parts = [(self._part(change.of), change.factor) for change in changes]
        for part, factor in parts:
            duration[part.events] *= factor
            if part.waits is not None:
                delay[self._kind == part.waits] = _UNREACHED
            if part.word == DEVICE and not factor:
                delay[self._kind == _STREAM] = 0
        indices, edges = self._edges_in.launches
        left = prod(factor for part, factor in parts if part.word in (HOST, IdleCause.SLOW_LAUNCH))
        delay[edges] -= (1 - left) * self._slow[indices]
        host = np.concatenate(([0.0], np.cumsum(spans)))
        # When it begins by its launch, if nothing waits before; how long after the event before on its stream.
        early, late = np.full((2, len(nodes)), float(_UNREACHED))
        early[indices] = host[self._issue[indices]] + delay[edges]
        indices, edges = self._edges_in.follows
        late[indices] = delay[edges]
        fixed = self._fixed[nodes]
        late[fixed] = (self._begun[nodes] - self._begun[0])[fixed]
        further, points = delay.tolist(), host.tolist()
        ends, waited = [0.0], 0.0
        append = ends.append
        rows = zip(early.tolist(), self._edges_in.before, late.tolist(), duration.tolist(), strict=True)
        for until, point, edges_in in (*self._edges_in.others, (len(nodes), len(points) - 1, ())):
            for at, before, after, long in islice(rows, until + 1 - len(ends)):
                at += waited
                if (other := ends[before] + after) > at:
                    at = other
                append(at + long)
            latest: float = _UNREACHED
            for source, edge in edges_in:
                if (other := ends[source] + further[edge]) > latest:
                    latest = other
            if point >= 0:
                waited = max(waited, latest - points[point])
            else:
                at, before, after, long = next(rows)
                append(max(at + waited, ends[before] + after, latest) + long)
        return np.array(ends[1:]), duration, points[-1] + waited

    def _length(self, ended: Float64 | Int64, duration: Float64 | Int64, of_host: float) -> int:
        """Return how long the steps take if their events end so long after the first point, and the host `of_host`.

        They begin with the first step, without annotated steps with the first event. What is outside is not theirs.
        """
        ended, duration = ended[self._own], duration[self._own]
        if not self._is_annotated and len(ended):
            return round(float(ended.max() - (ended - duration).min()))
        begin = int(self._begin_ns - self._begun[0])
        return round(max(float(ended.max(initial=begin)), of_host)) - begin - self._outside_ns

    # ------------------------------------------------------------------------------------------------- parts to change

    @cached_property
    def _host_kinds(self) -> dict[str, Intervals]:
        """Return when the host did each kind of thing; `host` is all of its time, what no other covers is `_REST`."""
        host = self._launched.host
        rows = host.phase == PHASE_CODE[Phase.OPTIMIZER]
        optimizer = union(host.start_ns[rows], host.duration_ns[rows])
        return {HOST: self._spans, **host_layers(self._launched), OPTIMIZER: optimizer}

    def _part(self, of: str) -> _Part:
        """Return what the name of a change means; raise `UsageError` if no part of the steps is called so."""
        if of not in self._parts:
            self._parts[of] = self._find_part(of)
        return self._parts[of]

    def _find_part(self, of: str) -> _Part:
        """Find it among the words of ours, else among the names of the trace: of device events, then of the host."""
        kernels, events, none = self._kernels, self._events, np.zeros(0, dtype=np.int64)
        word = _word_of(of)
        if isinstance(word, OperatorClass):
            return _Part(word, None, np.flatnonzero(kernels.operator_class.codes[events] == CLASS_CODE[word]))
        if word == DEVICE:
            return _Part(word, None, np.arange(len(events)))
        if word == COPIES:
            return _Part(word, None, np.flatnonzero(self._launched.work.kind[events] == MEMCPY))
        if word == OPTIMIZER:
            updates = np.flatnonzero(kernels.phase.codes[events] == PHASE_CODE[Phase.OPTIMIZER])
            return _Part(word, self._host_kinds[word], updates)
        if word is not None:
            return _Part(word, self._host_kinds.get(word), none, _REMOVED.get(word))
        if of.lower().startswith(GAP):
            start, stop = self._begun[self._nodes], self._ended[self._nodes]
            following = np.argsort(start, kind="stable")
            reached = np.maximum.accumulate(np.append(self._begin_ns, stop[following])[:-1])
            idle = start[following] - reached
            kernel = np.array([of[len(GAP) :] in name for name in kernels.kernel.values])
            gaps = (idle >= SHORT_GAP_NS) & kernel[kernels.kernel.codes[events[following]]]
            return _Part(None, (reached[gaps], start[following][gaps]), none)
        is_of_host = of.lower().startswith(f"{HOST} ")
        if not is_of_host and len(named := self._named(of)):
            return _Part(None, None, named)
        host, name = self._launched.host, of[len(HOST) + 1 :] if is_of_host else of
        rows = rows_named(re.compile(rf"^{re.escape(name)}$"), self._launched.names, host.name)
        rows &= isin(host.thread, self._threads)
        if rows.any():
            return _Part(None, union(host.start_ns[rows], host.duration_ns[rows]), none)
        if len(named := self._named(of)):
            return _Part(None, None, named)
        used = unique(kernels.operator.codes[events]).values
        names = [kernels.operator.values[code] for code in used[used >= 0].tolist()]
        words = (*self._host_kinds, DEVICE, COPIES, BLOCKING_COPIES, *_CLASSES)
        near = get_close_matches(of, [*words, *names], n=3, cutoff=0.5)
        raise UsageError(
            f"what-if {of!r}: no such part of the step - "
            + (
                f"did you mean {', '.join(near)}?"
                if near
                else "use a kind of host time, a class, an operator or a kernel"
            )
        )

    @cached_property
    def _threads(self) -> Int64:
        """The threads that launch work."""
        calls = self._launched.launches
        return unique(calls.thread[starts_work(self._launched.names, calls)]).values

    def _host_ns(self, changes: Sequence[Change]) -> Float64:
        """Return the time between each two points after the changes of host time."""
        start, until = self._spans
        spent: Float64 = (until - start).astype(np.float64)
        parts = [(self._part(change.of), change.factor) for change in changes]
        for part, factor in parts:
            if part.host is not None and part.word != HOST:
                spent -= (1 - factor) * within(part.host, start, until)
        spent *= prod(factor for part, factor in parts if part.word == HOST)
        return spent.clip(0)

    def _named(self, of: str) -> Int64:
        """Return the device events of the operator with this name, else of kernels whose names contain it."""
        exact = [code for code, name in enumerate(self._kernels.operator.values) if name in (of, f"aten::{of}")]
        having = [code for code, name in enumerate(self._kernels.kernel.values) if of in name]
        for column, codes in ((self._kernels.operator, exact), (self._kernels.kernel, having)):
            found = np.flatnonzero(isin(column.codes[self._events], np.array(codes, dtype=np.int64)))
            if len(found):
                return found
        return np.zeros(0, dtype=np.int64)

    # ------------------------------------------------------------------------------------------------ how far to trust

    @property
    def ahead_ns(self) -> int:
        """Return the device time of work at the start of the trace that was launched before it began."""
        work, is_launched = self._launched.work, self._launched.launch >= 0
        queued = ~is_launched & (work.start_ns < work.start_ns[is_launched].min(initial=AFTER_ALL))
        return int(work.duration_ns[queued].sum())

    @property
    def error(self) -> float:
        """Return the relative error of a replay with usual delays."""
        return abs(self.time_ns(usual=True) - self.window_ns) / max(self.window_ns, 1)

    def why_not_trusted(self, error: float) -> str | None:
        """Return why gains are not replayed; `None` if they are."""
        whole = max(self.window_ns, 1)
        if self._unrecorded_ns >= _MAX_MISSING_SHARE * whole:
            return f"device work is missing from the trace for {self._unrecorded_ns / whole:.0%} of the step time"
        if self.backlog_ns >= TRUSTED * whole:
            return f"work launched before the trace began occupies the device for {self.backlog_ns / 1e6:.3g} ms"
        if error >= TRUSTED:
            return f"with typical delays, the replayed step time is off by {error:.0%}"
        if self.unexplained_ns >= TRUSTED * whole:
            share = self.unexplained_ns / whole
            return f"delays that nothing in the trace explains take {share:.0%} of the step time"
        return None

    def path(self) -> dict[str, int]:
        """Return what decides how long the steps take, in nanoseconds: host time by kind, device work by class, delays.

        The parts sum to `window_ns`.
        """
        ends, count = self._ended, len(self._ended)
        # The edge that each node waited for longest, if it is not the host's chain.
        reached = ends[self._source] + self._recorded
        latest = np.full(count, _UNREACHED)
        np.maximum.at(latest, self._target, reached)
        edge_of = np.full(count, -1)
        decides = np.flatnonzero(reached == latest[self._target])
        edge_of[self._target[decides]] = decides
        begins = self._begun
        of_host = np.full(count, -1)
        of_host[self._points[1:]] = np.arange(len(self._points) - 1)
        edge_of[(of_host >= 0) & (latest < begins)] = -1
        chain, edges, sources = of_host.tolist(), edge_of.tolist(), self._source.tolist()
        own_ends = ends.copy()
        own_ends[self._nodes[~self._own]] = _UNREACHED
        node = int(np.lexsort((np.arange(count), own_ends))[-1])
        if self._is_annotated or not len(self._nodes):
            origin = int(ends[node]) - self.window_ns
        else:
            node = int(self._nodes[ends[self._nodes].argmax()])
            origin = int(begins[self._nodes].min())
        nodes, fixed, points = [], self._fixed.tolist(), self._points.tolist()
        while node > 0 and ends[node] > origin:
            nodes.append(node)
            if fixed[node]:
                break
            node = sources[edges[node]] if edges[node] >= 0 else points[chain[node]]
        walked = np.array(nodes, dtype=np.int64)
        spent: dict[str, int] = {}

        def add(kind: str, ns: Int64 | int) -> None:
            if total := int(np.sum(ns)):
                spent[kind] = spent.get(kind, 0) + total

        def clipped(begin: Int64, end: Int64) -> Int64:
            return np.maximum(end - np.maximum(begin, origin), 0)

        code = np.full(count, -1)
        code[self._nodes] = self._kernels.operator_class.codes[self._events]
        is_event = np.zeros(count, dtype=bool)
        is_event[self._nodes] = True
        # By the clocks of host and device work may begin before its launch, and a wait end before what it is for.
        limits = np.minimum.accumulate(np.concatenate((ends[walked[:1]], begins[walked[:-1]])))
        until_next = np.minimum(ends[walked], limits)
        events = walked[is_event[walked]]
        work = clipped(begins[events], until_next[is_event[walked]])
        for one in unique(code[events]).values.tolist():
            add(CLASSES[one].value if one >= 0 else OperatorClass.UNKNOWN.value, work[code[events] == one])
        by_edge = (edge_of[walked] >= 0) & ~self._fixed[walked]
        edge = edge_of[walked[by_edge]]
        delays = clipped(ends[self._source[edge]], np.minimum(begins[walked], limits)[by_edge])
        kinds = self._kind[edge]
        for kind in unique(kinds).values.tolist():
            add(_OF_PATH.get(kind, IdleCause.SYNCHRONIZATION.value), delays[kinds == kind])
        start = walked[self._fixed[walked]]
        add(QUEUE, clipped(np.full(len(start), origin), begins[start]))
        by_chain = (edge_of[walked] < 0) & ~self._fixed[walked]
        indices, limit = of_host[walked[by_chain]], until_next[by_chain]
        starts, untils = self._spans[0][indices], np.minimum(self._spans[1][indices], limit)
        left = clipped(starts, untils)
        for kind, layer in self._host_kinds.items():
            if kind not in (HOST, OPTIMIZER):
                part = np.minimum(within(layer, starts, untils), left)
                left = left - part
                add(kind, part)
        add(_REST, left)
        add(IdleCause.SYNCHRONIZATION.value, clipped(untils, limit))
        return spent


def replay_of(graph: StepGraph, plain_ns: int | None, changes: Sequence[Change]) -> Replay:
    """Replay each of these changes and, if several, all together.

    Where the step without the profiler is known, host time is scaled to it first.
    """
    factor, error = _host_factor(graph, plain_ns), graph.error
    asked = [(change,) for change in changes] + ([tuple(changes)] if len(changes) > 1 else [])
    path = sorted(graph.path().items(), key=lambda part: -part[1])
    path_of_step = tuple(PathPart(of=of, time_ns=ns // graph.count) for of, ns in path)
    made = Replay(
        steps=graph.count,
        ahead_ns=graph.ahead_ns,
        host_factor=factor,
        error=error,
        path=path_of_step,
        step_ns=(graph.window_ns if factor is None else graph.time_ns(host=factor)) // graph.count,
        least_ns=None if plain_ns else graph.time_ns(unprofiled=True) // graph.count,
        why_not=graph.why_not_trusted(error),
        unexplained=graph.unexplained_ns / max(graph.window_ns, 1),
    )
    return replace(made, answers=tuple(_answer(graph, made, each) for each in asked))


def _answer(graph: StepGraph, made: Replay, changes: Sequence[Change]) -> WhatIf:
    return WhatIf(
        changes=tuple(change.text for change in changes),
        step_ns=graph.time_ns(changes, host=made.host_factor or 1.0) // graph.count,
        least_ns=None if made.least_ns is None else graph.time_ns(changes, unprofiled=True) // graph.count,
    )


def replayed_gain(graph: StepGraph, made: Replay, advice: Advice) -> Advice:
    """Return the advice with its gain by the replay, if that is trusted and can say what the advice changes.

    The gain is the same fraction of the advice's step as of the replayed one, which may be the unprofiled step.
    """
    if advice.id in _SLOWED_BY_RECORDING and made.ahead_ns >= _AHEAD * made.step_ns:
        ahead = "the host was {ahead} ahead of the device when recording began, and recording slows the host"
        why = f"{advice.why}; {ahead}"
        figures = {**advice.figures, "ahead": Evidence(value=made.ahead_ns, unit="ns")}
        advice = replace(advice, why=why, figures=figures, tries=(_UNRECORDED, *advice.tries))
    if made.why_not is not None or not advice.changes or advice.gain_ns is None:
        return advice
    answer, whole, most = _answer(graph, made, changes_of(advice.changes)), advice.step_ns or 0, advice.gain_ns
    steps = [(made.step_ns, answer.step_ns)]
    if made.least_ns is not None and answer.least_ns is not None:
        steps.append((made.least_ns, answer.least_ns))
    gains = [max(before_ns - after_ns, 0) / max(before_ns, 1) for before_ns, after_ns in steps]
    least, fast = (min(round(gain * whole), most) for gain in (min(gains), max(gains)))
    return replace(advice, gain_ns=fast, replayed_ns=None if advice.is_bound else least, most_ns=most)


def with_together(graph: StepGraph, made: Replay, advice: Sequence[Advice]) -> Replay:
    """Return the replay with its answer to several pieces of advice together, if it has the gain of each."""
    timed = [each for each in advice if each.gain_ns is not None]
    if len(timed) < 2 or any(each.most_ns is None for each in timed):
        return made
    changes = changes_of(change for each in timed for change in each.changes)
    return replace(made, together=_answer(graph, made, changes))


def _host_factor(graph: StepGraph, plain_ns: int | None) -> float | None:
    """Return the host time factor that reproduces the unprofiled step time; `None` if there is none."""
    if plain_ns is None or graph.time_ns(host=0) >= _NEARLY * plain_ns * graph.count:
        return None
    low, high = 0.0, _MAX_HOST_FACTOR
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if graph.time_ns(host=middle) > plain_ns * graph.count else (middle, high)
    return (low + high) / 2


def _longest_run(window: StepWindow, counted: Bool, time: DeviceTime) -> tuple[int, int, tuple[int, int]]:
    """Return the first and last of the longest run of consecutive counted steps, and their host time."""
    if not window.steps:
        return 0, 0, window.window
    rows = np.flatnonzero(counted)
    runs = np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) > 1) + 1)
    longest = max(runs, key=len)
    first, last = int(longest[0]), int(longest[-1])
    walls = (time.step_end - time.step_start)[first : last + 1]
    events = np.count_nonzero((time.steps.step >= first) & (time.steps.step <= last))
    enough = max(_ENOUGH_EVENTS * len(walls) // max(int(events), 1), 1)
    if enough < len(walls) and walls.max() < _ALIKE * walls.min():  # those whose mean is nearest to that of all
        sums = np.convolve(walls, np.ones(enough, dtype=np.int64), mode="valid")
        first += int(np.abs(sums * len(walls) - walls.sum() * enough).argmin())
        last = first + enough - 1
    return first, last, (window.steps[rows[first]][0], window.steps[rows[last]][1])


def _usual(delays: Int64, otherwise: int) -> int:
    """Return the median delay, if there are enough."""
    return int(np.sort(delays)[len(delays) // 2]) if len(delays) >= _MIN_DELAYS else otherwise


def _streams(work: DeviceWork, events: Int64) -> Int64:
    """Number the streams of all devices."""
    streams = unique(work.stream[events])
    numbers: Int64 = unique(work.device[events]).inverse * len(streams.values) + streams.inverse
    return numbers


def _waited_for(
    names: Sequence[str],
    name: Int64,
    start_ns: Int64,
    returned_ns: Int64,
    of_host: Bool,
    launching: Bool,
    queue: tuple[Int64, Int64],
    events: tuple[Int64, Int64, Int64, Int64, Int64, Int64],
) -> dict[int, list[tuple[int, int]]]:
    """Return the calls that waited for device work, each with the events that it waited for (`_BEFORE`: work that is
    none of these) and why.

    A call that waits returns after the last work of each stream that was launched before it; it did not wait for work
    that outlasts it. `queue` has when all work of the trace was launched, and when it began, each in order.
    """
    kind, launch, launched_ns, begun, ended, stream = events
    waited: dict[int, list[tuple[int, int]]] = {}
    by_stream = [rows[np.argsort(begun[rows], kind="stable")] for _, rows in rows_by_value(stream)]
    waits, frees = (rows_named(pattern, names, name) & of_host for pattern in (WAITS, FREES))
    for call in np.flatnonzero(waits | frees).tolist():
        begin, end = int(start_ns[call]), int(returned_ns[call])
        works = []
        for rows in by_stream:
            last = int(np.searchsorted(ended[rows], end + _SKEW_NS, side="right")) - 1
            while last >= 0 and launched_ns[rows[last]] >= begin:
                last -= 1
            if last >= 0 and begin < ended[rows[last]]:
                works.append(int(rows[last]))
        if works and (waits[call] or end - max(int(ended[one]) for one in works) < _LATE_NS):
            waited[call] = [(one, _WAIT if waits[call] else _FREE) for one in works]
    # Copies whose call lasts past their middle.
    duration = returned_ns - start_ns
    copies = np.flatnonzero(
        (kind == MEMCPY)
        & (launch >= 0)
        & of_host[launch]
        & (duration[launch] > _SKEW_NS)
        & (returned_ns[launch] >= (begun + ended) // 2)
    )
    for event in copies.tolist():
        waited.setdefault(int(launch[event]), []).append((event, _COPY))
    # Launches into a full queue.
    usual = int(np.median(duration[launching])) if launching.any() else 0
    slow = np.flatnonzero(launching & of_host & (duration > max(_SLOW * usual, _SLOW_NS)))
    by_end = np.argsort(ended, kind="stable")
    for call in slow.tolist():
        moment = int(start_ns[call])
        issued, started = (int(np.searchsorted(each, moment)) for each in queue)
        if call in waited or issued - started < _QUEUE:
            continue
        last = int(np.searchsorted(ended[by_end], int(returned_ns[call]), side="right")) - 1
        if last < 0:
            waited[call] = [(_BEFORE, _FULL)]
        elif ended[by_end[last]] > moment:
            waited[call] = [(int(by_end[last]), _FULL)]
    return waited
