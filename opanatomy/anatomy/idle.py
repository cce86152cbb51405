"""Why a device was idle: it waited for the host, for another stream, or for something else."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from opanatomy.anatomy.intervals import Intervals
from opanatomy.anatomy.launched_work import LaunchedWork
from opanatomy.records.columns import Bool, DeviceWork, Int64, rows_by_value


class Idle(Struct, frozen=True):
    """The idle time of one device in the window, by cause."""

    #: What comes next had not been launched when the device fell idle; nothing comes before the window ends.
    host: Intervals
    #: What comes next was already launched on a stream, and another stream worked last.
    stream: Intervals
    #: The rest: between two events of one stream, or with no launch record to tell.
    other: Intervals

    def all(self) -> tuple[Intervals, Intervals, Intervals]:
        """The three causes in order."""
        return self.host, self.stream, self.other


class _Gaps(Struct, frozen=True):
    """Idle spans of a device; `last` and `following` are the work before and after each, -1 where there is none."""

    start_ns: Int64
    end_ns: Int64
    last: Int64
    following: Int64


def idle_by_device(launched: LaunchedWork, window: tuple[int, int]) -> dict[int, Idle]:
    """The idle time of each device; work that was launched outside the window is no idleness."""
    launched_ns = launched.launched_ns()
    return {
        device: _idle_of(launched.work, rows, launched_ns[rows], window)
        for device, rows in rows_by_value(launched.work.device)
    }


def _idle_of(work: DeviceWork, rows: Int64, launched_ns: Int64, window: tuple[int, int]) -> Idle:
    """The idle time of the device whose work is in these rows."""
    order = np.argsort(work.start_ns[rows], kind="stable")
    rows, launched_ns = rows[order], launched_ns[order]
    gaps = _gaps(work.start_ns[rows], work.start_ns[rows] + work.duration_ns[rows], window)
    next_launched_ns, stream = launched_ns[gaps.following], work.stream[rows]
    late = (gaps.following < 0) | (next_launched_ns >= gaps.start_ns)
    crossed = ~late & (next_launched_ns >= 0) & (gaps.last >= 0) & (stream[gaps.following] != stream[gaps.last])
    return Idle(host=_pick(gaps, late), stream=_pick(gaps, crossed), other=_pick(gaps, ~late & ~crossed))


def _gaps(start: Int64, end: Int64, window: tuple[int, int]) -> _Gaps:
    """The spans of the window that no work covers; `start` is sorted, and has one at least."""
    reached = np.maximum.accumulate(end)
    farthest = np.maximum.accumulate(np.where(end == reached, np.arange(len(end)), 0))
    before = np.flatnonzero(start[1:] > reached[:-1])
    opens = np.concatenate(([window[0]], reached[before], reached[-1:]))
    closes = np.concatenate((start[:1], start[before + 1], [window[1]]))
    opens, closes = np.maximum(opens, window[0]), np.minimum(closes, window[1])
    last = np.concatenate(([-1], farthest[before], farthest[-1:]))
    following = np.concatenate(([0], before + 1, [-1]))
    real = closes > opens
    return _Gaps(opens[real], closes[real], last[real], following[real])


def _pick(gaps: _Gaps, marked: Bool) -> Intervals:
    return gaps.start_ns[marked], gaps.end_ns[marked]
