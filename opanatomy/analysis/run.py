"""Find trends over a run: drift, growing memory, varying peaks, and steps unlike the recorded ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

import numpy as np
from msgspec.structs import replace

from opanatomy.records.columns import Float64, Int64
from opanatomy.records.run import Drift, Growth, LeftOut, RunClock, RunSeries, RunTrends, VaryingPeak

#: A run with fewer steps has no trend: each tenth needs ten steps.
_LEAST_STEPS: Final = 100
#: A drift is at least this part of a step. The tenths lie on a line, or on two levels, with at least so many standard
#: errors of its slope, or of their difference: of 40,000 runs of noise alone 0.2 % do at most, however much it is.
_LEAST_DRIFT, _OF_LINE, _OF_LEVELS = 0.05, 5.0, 7.0
#: The first and last so many tenths must be on opposite sides of each other.
_SEPARATED_TENTHS: Final = 3
#: Growing memory is reported from the first value on, and confirmed from the second.
_GROWTH_BYTES, _CONFIRMED_BYTES = 512 << 20, 1 << 30
#: It grows in all tenths but this many, and in the second half by at least this part of all: what fills up is no trend.
_NOT_GROWING, _IN_SECOND_HALF = 1, 0.25
#: A peak rises by at least this part and so many bytes, what stays after a step by at most this part of that.
_PEAK_RISES, _PEAK_BYTES, _FLAT = 0.10, 64 << 20, 0.10
#: Steps this many times as long as a recorded one, and the share of the run from which they are reported.
_UNLIKE, _NAMED_SHARE = 2.0, 0.10
_STEP_PARTS: Final = ("input", "backward", "optimizer")


def trends_of(
    run: RunClock | None, plain_ns: Sequence[int], profiled_ns: Sequence[int], batch: int | None
) -> RunTrends | None:
    """Return trends over a run beside its recorded steps, both unprofiled and under the profiler.

    `batch` is the number of their samples.
    """
    if run is None:
        return None
    rate = batch * run.steps * 1e9 / run.wall_ns if batch and run.wall_ns else None
    trends = RunTrends(left_out=tuple(_left_out(run, plain_ns, profiled_ns)), samples_per_second=rate)
    if run.series is None or run.steps < _LEAST_STEPS:
        return trends
    tenths = _Tenths(run.series)
    growth = tuple(grown for kind in ("allocated", "reserved", "host") if (grown := tenths.growth(kind)) is not None)
    peak = tenths.peak()
    if peak is not None:
        growth = tuple(grown for grown in growth if grown.kind != "reserved")
    return replace(trends, drift=tenths.drift(), growth=growth, peak=peak)


def _left_out(run: RunClock, plain_ns: Sequence[int], profiled_ns: Sequence[int]) -> Iterator[LeftOut]:
    """Yield the steps that are unlike the recorded ones, if they take much of the run."""
    for one in run.updated_by:
        if not one.recorded and one.wall_ns >= _NAMED_SHARE * run.wall_ns:
            yield LeftOut(
                steps=one.steps, of_steps=run.steps, wall_ns=one.wall_ns, of_ns=run.wall_ns, optimizer=one.optimizer
            )
    if not plain_ns and not profiled_ns:
        return
    limit = _UNLIKE * median(plain_ns or profiled_ns)
    recorded = sum(wall > _UNLIKE * median(profiled_ns) for wall in profiled_ns)
    longer = [length for length in run.lengths if length.from_ns >= limit]
    steps, wall_ns = sum(length.steps for length in longer), sum(length.usual_ns for length in longer)
    if wall_ns >= _NAMED_SHARE * run.wall_ns:
        yield LeftOut(
            steps=steps,
            of_steps=run.steps,
            wall_ns=wall_ns,
            of_ns=run.wall_ns,
            recorded=recorded,
            of_recorded=len(profiled_ns),
        )


def caveats_of(trends: RunTrends | None) -> Iterator[str]:
    """Yield what the recorded steps leave out of the run."""
    for out in trends.left_out if trends is not None else ():
        steps = f"{out.steps:,} of the {out.of_steps:,} unrecorded steps"
        by = f", each of which ends with an update by {out.optimizer}," if out.optimizer else ""
        longer = "" if out.optimizer else " and are more than twice as long as the recorded ones"
        share = 100 * out.wall_ns / out.of_ns
        among = (
            f"{out.recorded} of the {out.of_recorded} recorded steps {'is' if out.recorded == 1 else 'are'} like them"
            if out.recorded
            else "none of them was recorded"
        )
        yield f"{steps}{by} take {share:.1f} % of the run's time{longer}; {among}"


class _Tenths:
    """Rows of a run in tenths of its steps."""

    def __init__(self, series: RunSeries) -> None:
        self._series = series
        self.steps = np.array(series.steps, dtype=np.int64)
        ends = np.cumsum(self.steps)
        self.all_steps = int(ends[-1])
        self.tenth = np.minimum(10 * (ends - self.steps) // self.all_steps, 9)

    def _column(self, name: str) -> Int64:
        return np.array(getattr(self._series, name), dtype=np.int64)

    def _medians(self, values: Int64) -> Float64:
        """Return the median of a step in each tenth, of sums over the steps of a row."""
        each = values / self.steps
        return np.array([np.median(each[self.tenth == tenth]) for tenth in range(10)])

    def drift(self) -> Drift | None:
        """Return the change of the typical step from first to last tenth, if it exceeds noise."""
        medians = self._medians(self._column("usual_ns") * self.steps)
        change = medians[-1] - medians[0]
        first, last = medians[:_SEPARATED_TENTHS], medians[-_SEPARATED_TENTHS:]
        is_apart = first.max() < last.min() or first.min() > last.max()
        if not is_apart or abs(change) < _LEAST_DRIFT * medians[0] or not _is_no_noise(medians):
            return None
        parts = {}
        for name in (*_STEP_PARTS, "collecting"):
            of_part = self._medians(self._column(f"{name}_ns"))
            parts[name] = round(of_part[-1] - of_part[0])
        parts["rest"] = round(change) - sum(parts[name] for name in _STEP_PARTS)
        return Drift(first_ns=round(medians[0]), last_ns=round(medians[-1]), parts=parts)

    def _floors(self, name: str) -> Int64:
        """Return the least of each tenth but the first, in which memory is still being filled."""
        values = self._column(name)
        return np.array([values[self.tenth == tenth].min() for tenth in range(1, 10)])

    def growth(self, kind: str) -> Growth | None:
        """Return how memory grows, if it does so steadily."""
        floors = self._floors(f"{kind}_bytes")
        grown = int(floors[-1] - floors[0])
        falls = int((np.diff(floors) <= 0).sum())
        steady = floors[-1] - floors[len(floors) // 2] >= _IN_SECOND_HALF * grown
        if not floors[0] or grown < _GROWTH_BYTES or falls > _NOT_GROWING or not steady:
            return None
        return Growth(
            kind=kind,
            first_bytes=int(floors[0]),
            last_bytes=int(floors[-1]),
            steps=round(0.8 * self.all_steps),
            confirmed=grown >= _CONFIRMED_BYTES,
        )

    def peak(self) -> VaryingPeak | None:
        """Return a peak that rises while what stays after a step does not."""
        peaks, floors = self._column("peak_bytes"), self._floors("allocated_bytes")
        first, last = int(peaks[self.tenth == 0].max()), int(peaks.max())
        risen = last - first
        flat = floors[-1] - floors[0] <= _FLAT * risen
        if not first or risen < max(_PEAK_RISES * first, _PEAK_BYTES) or not flat:
            return None
        return VaryingPeak(first_bytes=first, last_bytes=last, base_bytes=int(floors[-1]))


def _is_no_noise(tenths: Float64) -> bool:
    """Return whether ten figures lie on a line or on two levels, by the t of either against what is left."""
    at = np.arange(len(tenths)) - (len(tenths) - 1) / 2
    free = len(tenths) - 2
    slope = (tenths - tenths.mean()) @ at / (at @ at)
    left = ((tenths - tenths.mean() - slope * at) ** 2).sum() / free
    if abs(slope) * np.sqrt(at @ at) >= _OF_LINE * np.sqrt(left):
        return True
    for index in range(2, len(tenths) - 1):
        before, after = tenths[:index], tenths[index:]
        left = (((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum()) / free
        error = np.sqrt(left * (1 / len(before) + 1 / len(after)))
        if abs(after.mean() - before.mean()) >= _OF_LEVELS * error:
            return True
    return False
