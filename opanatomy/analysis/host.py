"""Show what the host did in the steps: the time of its launching threads by operator, range and runtime call."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from opanatomy.analysis.idle import is_operator
from opanatomy.analysis.intervals import Intervals, length, overlap, union, without
from opanatomy.attribution.nesting import innermost_at
from opanatomy.records.anatomy import HostRow
from opanatomy.records.columns import Bool, HostTable, Int64, Launches, isin, rows_named, starts_work, take, unique
from opanatomy.records.patterns import regex
from opanatomy.records.runtime_calls import FREES, WAITS
from opanatomy.records.workload import MODULE_RANGE, PHASE_RANGE

#: Names with less than this part of the time are one row.
_MIN_NAME_SHARE: Final = 0.001
_STEP: Final = regex(r"^ProfilerStep")
#: Ranges that mark a place in the program, not an activity.
PLACES: Final = regex(f"^(?:ProfilerStep|{re.escape(PHASE_RANGE)}|{re.escape(MODULE_RANGE)})")
_PYTHON: Final = "between recorded events"
#: Operators that only call another one, by that one.
_WRAPPERS: Final = {
    "aten::_local_scalar_dense": ("aten::item",),
    "aten::item": ("aten::is_nonzero",),
    "aten::copy_": ("aten::_to_copy",),
    "aten::_to_copy": ("aten::to",),
}


class ThreadEvents(Struct, frozen=True, kw_only=True):
    """Events of some threads: rows of the host events and of the launches that lie in no other launch.

    `around` is the host row around each of `calls`, -1 if there is none. `own_ns` is each host event's time without
    events and calls below it, and `operators` marks the operators, both by host row.
    """

    rows: Int64
    calls: Int64
    around: Int64
    own_ns: Int64
    operators: Bool


def thread_events(
    names: Sequence[str], host: HostTable, launches: Launches, spans: Intervals, *, every_thread: bool = False
) -> ThreadEvents:
    """Return the events that begin in the spans on launching threads (on the CPU those that run operators)."""
    rows = np.flatnonzero(_inside(host.start_ns, spans) & (host.duration_ns > 0))
    calls = np.flatnonzero(_inside(launches.start_ns, spans))
    operators = is_operator(names, host)
    if every_thread:
        threads = unique(np.concatenate((host.thread[rows], launches.thread[calls]))).values
    else:
        threads = unique(launches.thread[calls[starts_work(names, launches)[calls]]]).values
        if not len(threads):
            threads = unique(host.thread[rows[operators[rows]]]).values
    rows, calls = rows[isin(host.thread[rows], threads)], _outermost(launches, calls, threads)
    around = innermost_at(host, launches.thread[calls], launches.start_ns[calls])
    own = host.self_ns.copy()
    np.subtract.at(own, around[around >= 0], launches.duration_ns[calls[around >= 0]])
    return ThreadEvents(rows=rows, calls=calls, around=around, own_ns=own.clip(0), operators=operators)


def host_rows(
    names: Sequence[str], host: HostTable, launches: Launches, steps: Intervals, events: ThreadEvents
) -> tuple[HostRow, ...]:
    """Return what the threads did in the steps, longest first; `events` are theirs in the steps.

    Events count in the step that they begin in. Python time is main thread time during which none of these threads has
    an event.
    """
    rows, calls, own, operators = events.rows, events.calls, events.own_ns, events.operators
    if not len(rows):
        return ()
    step = rows_named(_STEP, names, host.name)
    python = int(own[rows[step[rows]]].sum()) + _between(host, launches, rows, calls, step, steps)

    # Operators and ranges by name; the time of one right below another of its name is in that one's.
    named = rows[~step[rows]]
    groups = unique(host.name[named])
    counts = np.bincount(groups.inverse, minlength=len(groups.values))
    self_ns, total_ns = np.zeros((2, len(groups.values)), dtype=np.int64)
    below_same = (host.parent >= 0) & (take(host.name, host.parent) == host.name)
    np.add.at(self_ns, groups.inverse, own[named])
    np.add.at(total_ns, groups.inverse, np.where(below_same[named], 0, host.duration_ns[named]))
    are_operators = operators[named[groups.first]]
    columns = (column.tolist() for column in (groups.values, are_operators, counts, self_ns, total_ns))
    made = [
        HostRow(
            kind="operator" if operator else "range", name=names[number], calls=count, self_ns=spent, total_ns=whole
        )
        for number, operator, count, spent, whole in zip(*columns, strict=True)
    ]
    made += _runtime(names, host, launches, calls, events.around, operators)
    if python > 0:
        made.append(HostRow(kind="python", name=_PYTHON, calls=0, self_ns=python, total_ns=python))

    # The longest first, those of short names together last; rows that wait are never put together. A row may have
    # little time of its own and much below it.
    least = _MIN_NAME_SHARE * sum(row.self_ns for row in made)
    made.sort(key=lambda row: (-row.self_ns, row.kind, row.name, row.caller or ""))
    small = [row for row in made if row.total_ns < least and not row.waits]
    made = [row for row in made if row.total_ns >= least or row.waits]
    if small:
        made.append(
            HostRow(
                kind="others",
                name=f"{len(small)} more names",
                calls=sum(row.calls for row in small),
                self_ns=sum(row.self_ns for row in small),
                total_ns=sum(row.self_ns for row in small),
            )
        )
    return tuple(made)


def _inside(start_ns: Int64, steps: Intervals) -> Bool:
    """Return which times lie inside a step."""
    index = np.searchsorted(steps[0], start_ns, side="right") - 1
    inside: Bool = (index >= 0) & (start_ns < take(steps[1], index))
    return inside


def _outermost(launches: Launches, calls: Int64, threads: Int64) -> Int64:
    """Return these threads' calls not nested in another one: a runtime calls its driver."""
    calls = calls[isin(launches.thread[calls], threads)]
    order = calls[np.lexsort((-launches.duration_ns[calls], launches.start_ns[calls], launches.thread[calls]))]
    end = launches.start_ns[order] + launches.duration_ns[order]
    kept = np.ones(len(order), dtype=bool)
    for thread in threads.tolist():
        here = np.flatnonzero(launches.thread[order] == thread)
        reached = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(end[here])[:-1]) if len(here) else end[here]
        kept[here] = launches.start_ns[order[here]] >= reached
    return order[kept]


def _between(host: HostTable, launches: Launches, rows: Int64, calls: Int64, step: Bool, steps: Intervals) -> int:
    """Return the time outside of step ranges in which no thread has an event, the main one first of all."""
    plain = rows[~step[rows]]
    starts = np.concatenate((host.start_ns[rows], launches.start_ns[calls]))
    lengths = np.concatenate((host.duration_ns[rows], launches.duration_ns[calls]))
    if step[rows].any():  # within the range the step's own time is Python's, but while other threads work
        main = int(host.thread[rows[step[rows]]][0])
        others = plain[host.thread[plain] != main]
        busy = union(host.start_ns[others], host.duration_ns[others])
        mine = plain[host.thread[plain] == main]
        own = without(
            union(host.start_ns[rows[step[rows]]], host.duration_ns[rows[step[rows]]]),
            union(host.start_ns[mine], host.duration_ns[mine]),
        )
        return -length(overlap(own, busy)) if len(busy[0]) and len(own[0]) else 0
    return length(without(steps, union(starts, lengths)))


def _runtime(
    names: Sequence[str], host: HostTable, launches: Launches, calls: Int64, around: Int64, operators: Bool
) -> Iterator[HostRow]:
    waits = rows_named(WAITS, names, launches.name)[calls]
    called = waits | rows_named(FREES, names, launches.name)[calls]
    sums: dict[tuple[int, str | None], list[int]] = {}
    for index in np.flatnonzero(called).tolist():
        key = int(launches.name[calls[index]]), _caller(names, host, int(around[index]), operators)
        kept = sums.setdefault(key, [0, 0])
        kept[0], kept[1] = kept[0] + 1, kept[1] + int(launches.duration_ns[calls[index]])
    for (number, caller), (count, spent) in sums.items():
        yield HostRow(
            kind="runtime",
            name=names[number],
            caller=caller,
            calls=count,
            self_ns=spent,
            total_ns=spent,
            waits=bool(WAITS.search(names[number])),
        )
    others = calls[~called]
    groups = unique(launches.name[others])
    spent_ns = np.zeros(len(groups.values), dtype=np.int64)
    np.add.at(spent_ns, groups.inverse, launches.duration_ns[others])
    counts = np.bincount(groups.inverse, minlength=len(groups.values))
    for number, count, spent in zip(groups.values.tolist(), counts.tolist(), spent_ns.tolist(), strict=True):
        yield HostRow(kind="runtime", name=names[number], calls=count, self_ns=spent, total_ns=spent)


def _caller(names: Sequence[str], host: HostTable, row: int, operators: Bool) -> str | None:
    """Return the innermost operator around a call that programs call, else the innermost informative range.

    An operator's internal call is named after the operator: `aten::item` calls `aten::_local_scalar_dense`.
    """
    above = row
    while above >= 0 and not operators[above]:
        above = int(host.parent[above])
    while above >= 0 and (parent := int(host.parent[above])) >= 0:
        if names[int(host.name[parent])] not in _WRAPPERS.get(names[int(host.name[above])], ()):
            break
        above = parent
    if above >= 0:
        return names[int(host.name[above])]
    while row >= 0 and PLACES.match(names[int(host.name[row])]):
        row = int(host.parent[row])
    return names[int(host.name[row])] if row >= 0 else None
