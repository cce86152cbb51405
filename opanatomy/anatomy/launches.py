"""What launching cost: calls, host time, delays, the queue, kernels too short to be worth a launch."""

from __future__ import annotations

import re

import numpy as np

from opanatomy.anatomy.launched_work import LaunchedWork
from opanatomy.records.columns import Bool, Int64, distinct, rows_by_value
from opanatomy.records.timeline import Launching

#: A launch costs the host and the device a few microseconds: a kernel that is not longer by much is all overhead.
TINY_NS = 10_000

_LAUNCH = re.compile(r"Launch(?!HostFunc)|CommandBufferEnqueue", re.IGNORECASE)
_GRAPH = re.compile(r"GraphLaunch|CommandBufferEnqueue", re.IGNORECASE)
#: Copies without `Async` return when they are done.
SYNCHRONIZE = re.compile(r"Synchronize|^(?:cuda|hip)Memcpy$|^hipMemcpyWithStream$")


def launching_of(launched_work: LaunchedWork, within: Bool) -> Launching:
    """Launches and kernels of the window, over all devices; `within` says which calls of the runtime are of it."""
    launches, work = launched_work.launches, launched_work.work
    calls = within & _outermost(launched_work, _named(launched_work, _LAUNCH))
    waits = within & _outermost(launched_work, _named(launched_work, SYNCHRONIZE))
    kernel_ns = work.duration_ns[launched_work.kernels()]
    tiny = kernel_ns < TINY_NS
    launched, begun = _waits(launched_work)
    delays = np.maximum(begun - launched, 0)
    return Launching(
        calls=int(calls.sum()), graph_calls=int((calls & _named(launched_work, _GRAPH)).sum()),
        call_ns=int(launches.duration_ns[calls].sum()),
        synchronizing_calls=int(waits.sum()), synchronizing_ns=int(launches.duration_ns[waits].sum()),
        delayed=len(delays), delay_ns=int(delays.sum()),
        median_delay_ns=_median(delays),
        longest_queue=_longest_queue(launched, begun),
        kernels=len(kernel_ns), kernel_ns=int(kernel_ns.sum()),
        tiny_kernels=int(tiny.sum()), tiny_kernel_ns=int(kernel_ns[tiny].sum()), tiny_below_ns=TINY_NS,
    )  # fmt: skip


def _median(values: Int64) -> int | None:
    """The value in the middle, of an even number the mean of the two; `np.median` imports `numpy.ma`."""
    if not len(values):
        return None
    ordered, half = np.sort(values), len(values) // 2
    return int(ordered[half]) if len(values) % 2 else int((ordered[half - 1] + ordered[half]) / 2)


def _named(launched_work: LaunchedWork, pattern: re.Pattern[str]) -> Bool:
    """Which launches have a name that matches; each name is looked at once."""
    names = distinct(launched_work.launches.name)
    fits = [bool(pattern.search(launched_work.names[number])) for number in names.values.tolist()]
    return np.array(fits, dtype=bool)[names.inverse]


def _outermost(launched_work: LaunchedWork, marked: Bool) -> Bool:
    """The marked calls without those that a runtime makes of its driver for one of them: on XPU both are recorded."""
    launches = launched_work.launches
    rows = np.flatnonzero(marked)
    rows = rows[np.lexsort((-launches.duration_ns[rows], launches.start_ns[rows], launches.thread[rows]))]
    end = launches.start_ns[rows] + launches.duration_ns[rows]
    outermost = np.zeros(len(marked), dtype=bool)
    for _, places in rows_by_value(launches.thread[rows]):
        calls, ends = rows[places], end[places]
        before = np.append(-1, np.maximum.accumulate(ends)[:-1])
        outermost[calls] = (launches.start_ns[calls] >= before) | (ends > before)
    return outermost


def _waits(launched_work: LaunchedWork) -> tuple[Int64, Int64]:
    """(when launched, when begun) of each launch's first kernel."""
    rows = np.flatnonzero(launched_work.kernels() & (launched_work.launch >= 0))
    rows = rows[np.argsort(launched_work.work.start_ns[rows], kind="stable")]
    rows = rows[distinct(launched_work.launch[rows]).first]
    return launched_work.launched_ns()[rows], launched_work.work.start_ns[rows]


def _longest_queue(launched: Int64, begun: Int64) -> int:
    """The largest number of launches that waited at one time."""
    late = begun > launched
    moments = np.concatenate((begun[late], launched[late]))
    change = np.repeat(np.array([-1, 1]), int(late.sum()))
    order = np.lexsort((change, moments))
    return int(np.cumsum(change[order]).max(initial=0))
