"""Run the profiled steps, after one profiler warm-up step on accelerators."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Any, Final

from opanatomy.capture.device import accelerators, kineto
from opanatomy.capture.device.state import undisturbed
from opanatomy.capture.lines import line_ranges
from opanatomy.capture.step.ranges import compilations
from opanatomy.records.workload import LINES_STEP, LineFrame

#: The range of a step, followed by its number.
STEP_RANGE: Final = "ProfilerStep#"


class StepProfiler:
    """The profiler, with calls at the begin and end of its steps.

    With `warm` the first step (number `None`) runs while the profiler is ready but records nothing, as in
    `torch.profiler.schedule`: CUPTI's first use is neither in the figures nor in the trace. With `lines` one more step,
    traced line by line, follows in a range of its own; `own` are installed files that count as user code. Its time does
    not count.
    """

    def __init__(self, device: str, *, steps: int, warm: bool, lines: bool = False, own: Collection[str] = ()) -> None:
        from torch.profiler import profile, schedule

        self.device, self.warm = device, warm
        plan = schedule(wait=0, warmup=1, active=steps + lines, repeat=1) if warm else None
        self.steps, self.lines, self._own = steps, lines, own
        #: The stacks of lines by number, after the step traced line by line.
        self.frames: list[LineFrame] = []
        self._line_ranges, self._undisturbed = ExitStack(), ExitStack()
        #: Whether that step was run, and to its end; whether something else traced Python then.
        self._begun_by_line = self.ran_by_line = self._traced_by_other = False
        activities = accelerators.profiler_activities(device)
        self.profiler: Any = profile(activities=activities, record_shapes=True, schedule=plan)
        # With a schedule torch would write its own ranges, numbered from the warm-up on, around more than the step.
        self.profiler.record_steps = False
        self.times_ns: list[int] = []
        #: Compilations by torch when the last regular step ended: line tracing causes more.
        self.compilations = 0
        #: The time the profiler took to stop: Kineto's own processing of each event.
        self.stop_ns = 0
        self._range: Any = None
        self._begin_ns = 0

    def start(self) -> None:
        """Start the profiler."""
        self._undisturbed.enter_context(undisturbed(self.device))
        with kineto.listening(self.device):
            self.profiler.__enter__()

    def begin(self, number: int | None) -> None:
        """Begin a step."""
        from torch.profiler import record_function

        if number is None:
            return
        if self.warm:
            with kineto.listening(self.device):
                self.profiler.step()
        if number == self.steps:
            self._traced_by_other = sys.gettrace() is not None
            self._line_ranges.enter_context(record_function(LINES_STEP))
            self.frames = self._line_ranges.enter_context(line_ranges(self.device, self._own))
            self._begun_by_line = True
            return
        self._begin_ns = time.perf_counter_ns()
        self._range = record_function(f"{STEP_RANGE}{number}")
        self._range.__enter__()

    def end(self) -> None:
        """End the step."""
        self.ran_by_line = self.ran_by_line or self._begun_by_line
        self._line_ranges.close()
        if self._range is None:
            return
        self._range.__exit__(None, None, None)
        self.times_ns.append(time.perf_counter_ns() - self._begin_ns)
        self.compilations = compilations()
        self._range = None

    @property
    def why_no_lines(self) -> str | None:
        """Return why requested lines are unknown."""
        if not self.lines or self.frames:
            return None
        if not self._begun_by_line:
            return "no lines: they need one more step, but the recording ended before it"
        if self._traced_by_other:
            return "no lines: another tool, such as a debugger or coverage tool, is tracing Python in this process"
        return "no lines: the step runs no line of your code (compiled code has no lines)"

    def stop(self) -> None:
        """Stop the profiler, also in the middle of a step."""
        self._line_ranges.close()
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None
        self._undisturbed.close()
        begun_ns = time.perf_counter_ns()
        with kineto.listening(self.device):
            self.profiler.__exit__(None, None, None)
        self.stop_ns = time.perf_counter_ns() - begun_ns


def profile_steps(
    step: Callable[[], None],
    *,
    steps: int,
    device: str,
    begin: Callable[[int | None], None],
    warm: bool | None = None,
    lines: bool = False,
    own: Collection[str] = (),
) -> StepProfiler:
    """Run `steps` steps under the profiler, each in its range `ProfilerStep#N`, `N` from 0 on.

    With `lines` one more step is traced line by line, as in `StepProfiler`.

    `begin` is called before each with its number, untimed. With `warm` the profiler warms up in one more step before
    them, with number `None`; this is the default if Kineto records the device.
    """
    warm = accelerators.kineto_records(device) if warm is None else warm
    profiler = StepProfiler(device, steps=steps, warm=warm, lines=lines, own=own)
    profiler.start()
    try:
        for number in (*((None,) if warm else ()), *range(steps + lines)):
            begin(number)
            profiler.begin(number)
            step()
            profiler.end()
    finally:
        profiler.stop()
    return profiler
