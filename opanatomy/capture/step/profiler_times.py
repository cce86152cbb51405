"""What the profiler itself sums up of a profile: a second source for the times of the report."""

from __future__ import annotations

from typing import Any


def profiler_times_ns(profiler: Any, *, on_device: bool) -> dict[str, int]:
    """The time of each operator by its name, as `key_averages` has it: device time, on the CPU self time."""
    figure = "self_device_time_total" if on_device else "self_cpu_time_total"
    times_ns: dict[str, int] = {}
    for row in profiler.key_averages():
        times_ns[row.key] = times_ns.get(row.key, 0) + round(
            getattr(row, figure) * 1000
        )  # microseconds, with fractions
    return {name: time for name, time in times_ns.items() if time}
