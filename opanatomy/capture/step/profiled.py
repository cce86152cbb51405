"""The profiled steps: on an accelerator after one more such step, in which the profiler itself warms up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

from opanatomy.capture.device import accelerators, devices, kineto_log

#: A profile and the wall time of each step in it.
Profiled: TypeAlias = "tuple[Any, list[int]]"


def profile_steps(
    step: Callable[[], None],
    *,
    steps: int,
    device: str,
    begin: Callable[[int | None], None],
    warm: bool | None = None,
) -> Profiled:
    """Run `steps` steps under the profiler, each in its range `ProfilerStep#N`, `N` from 0 on.

    `begin` is called before each with its number, outside of the clock. With `warm` one more step (`None` is its
    number) runs before them while the profiler is ready but records nothing, as in `torch.profiler.schedule`: the first
    use of CUPTI is not in the figures, nor in the trace. `None` is where Kineto records the device.
    """
    warm = devices.kineto_records(device) if warm is None else warm
    from torch.profiler import profile, record_function, schedule

    activities = accelerators.profiler_activities(device)
    plan = schedule(wait=0, warmup=1, active=steps, repeat=1) if warm else None
    profiler = profile(activities=activities, record_shapes=True, schedule=plan)
    # With a schedule torch would write ranges of its own, numbered from the warm-up on, around more than the step.
    profiler.record_steps = False
    times: list[int] = []
    with _running(profiler, device):
        if warm:
            begin(None)
            step()
        for number in range(steps):
            begin(number)
            if warm:
                with kineto_log.listening(device):
                    profiler.step()
            start = time.perf_counter_ns()
            with record_function(f"ProfilerStep#{number}"):
                step()
            times.append(time.perf_counter_ns() - start)
    return profiler, times


@contextmanager
def _running(profiler: Any, device: str) -> Iterator[None]:
    """The profiler between its start and its stop, Kineto heard at both; it is stopped whatever happens."""
    with ExitStack() as stack:
        with kineto_log.listening(device):
            stack.enter_context(profiler)
        try:
            yield
        finally:
            with kineto_log.listening(device):
                stack.close()
