"""Wall clock: steps, phases, busy and idle time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import polars as pl

from opanatomy.anatomy.intervals import covered, exposed
from opanatomy.model import Capture, OperatorClass, Phase, Step, Timeline
from opanatomy.tables import Int64

MEMCPY = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The window and its steps on the host clock, and the ranges of phases where the trace has them."""

    window: tuple[int, int]
    steps: tuple[tuple[int, int], ...]
    spans: tuple[tuple[int, int, Phase], ...]


def step_of(clock: Clock, calls: pl.DataFrame, work: pl.DataFrame | None, capture: Capture | None) -> Step:
    """Figures of one step: medians over the steps; the spread of their wall times beside."""
    steps = clock.steps or (clock.window,)
    walls = [end - start for start, end in steps]
    plain = list(capture.unprofiled_step_ns) if capture else []
    kernel_time = int(calls["time_ns"].sum()) // len(steps)
    busy = kernel_time if work is None else _busy(work) // len(steps)
    wall = _median(walls)
    phases = {phase: _phase_time(clock, work, phase, len(steps)) for phase in Phase}
    return Step(
        count=len(steps), wall_ns=wall, wall_min_ns=min(walls), wall_max_ns=max(walls),
        unprofiled_wall_ns=_median(plain), unprofiled_wall_min_ns=min(plain, default=None),
        unprofiled_wall_max_ns=max(plain, default=None),
        forward_ns=phases[Phase.FORWARD], backward_ns=phases[Phase.BACKWARD], optimizer_ns=phases[Phase.OPTIMIZER],
        busy_ns=busy if work is not None else min(busy, wall or busy), kernel_time_ns=kernel_time,
        framework_ns=max((wall or 0) - busy, 0) if work is None else None,
        samples_per_second=_rate(capture, _median(plain) or wall),
    )  # fmt: skip


def timeline_of(clock: Clock, calls: pl.DataFrame, work: pl.DataFrame | None) -> Timeline:
    """Busy and idle time of the window; what communication and copies no computation hides."""
    window = clock.window[1] - clock.window[0]
    if work is None:
        busy = min(int(calls["time_ns"].sum()), window)
        return Timeline(window_ns=window, busy_ns=busy, idle_ns=window - busy)
    if len(work):
        ends = work.select((pl.col("start_ns") + pl.col("duration_ns")).max()).item()
        window = max(window, int(ends) - clock.window[0])
    busy = _busy(work)
    talks = pl.col("operator_class") == OperatorClass.COMMUNICATION
    copies = pl.col("kind") == MEMCPY
    return Timeline(
        window_ns=window,
        busy_ns=busy,
        idle_ns=max(window - busy, 0),
        communication_ns=covered(*_columns(work.filter(talks))),
        exposed_communication_ns=exposed(_columns(work.filter(talks)), _columns(work.filter(~talks))),
        exposed_memcpy_ns=exposed(_columns(work.filter(copies)), _columns(work.filter(~copies))),
    )


def _columns(work: pl.DataFrame) -> tuple[Int64, Int64]:
    return work["start_ns"].to_numpy(), work["duration_ns"].to_numpy()


def _busy(work: pl.DataFrame) -> int:
    return covered(*_columns(work))


def _phase_time(clock: Clock, work: pl.DataFrame | None, phase: Phase, steps: int) -> int | None:
    """Wall time of a phase on the CPU, busy time of its device work on an accelerator; `None` where it has none."""
    if work is not None:
        mine = work.filter(pl.col("phase") == str(phase))
        return _busy(mine) // steps if len(mine) else None
    spans = [end - start for start, end, found in clock.spans if found is phase]
    return sum(spans) // steps if spans else None


def _median(values: Sequence[int]) -> int | None:
    return int(median(values)) if values else None


def _rate(capture: Capture | None, wall_ns: int | None) -> float | None:
    if capture is None or not capture.workload.batch or not wall_ns:
        return None
    return capture.workload.batch * 1e9 / wall_ns
