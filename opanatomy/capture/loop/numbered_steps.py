"""Record the steps of a training that reports where each begins and ends; no hook acts between or around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.capture.device import accelerators
from opanatomy.capture.device.kineto import toggled
from opanatomy.capture.loop.phases import LoopPhases
from opanatomy.capture.loop.recording import (
    LoopRecording,
    MemoryFollowed,
    Profiled,
    Recorded,
    Session,
    Stage,
    Timed,
    Watched,
    WatchedAgain,
    marked,
    memory_after,
)
from opanatomy.capture.run.profiled import STEP_RANGE, StepProfiler
from opanatomy.capture.run.restore import quiet_kineto
from opanatomy.options import RunOptions
from opanatomy.records.workload import LINES_STEP, MemoryObservations

if TYPE_CHECKING:
    import torch

#: A warning reports loading that takes at least this share of a step.
NOTED_LOADING: Final = 0.05


class StepPlan(Struct, frozen=True, kw_only=True):
    """The schedule of a recording: `steps` are profiled from number `first` on.

    Before them, with `learns`, one shows the modules of a loop that names none, `timed_before` run on the clock, and
    with `warm` one is the profiler's to warm up; after them come those of memory and second counts, and `timed_after`
    on the clock. `follows` says whether each step begins where the one before it ended.
    """

    first: int
    steps: int
    timed_before: int
    timed_after: int
    warm: bool
    learns: bool = False
    follows: bool = False

    @property
    def begin(self) -> int:
        """Return the number of the first step that is recorded in any way."""
        return self.first - self.warm - self.timed_before - self.learns

    @property
    def last(self) -> int:
        """Return the number of the last profiled step."""
        return self.first + self.steps - 1


#: This many steps run on the clock, if there are as many.
TIMED: Final = 3
#: The first step of a training allocates, loads and compiles: it is no measure of the others.
_COLD: Final = 1


class Training(Struct, frozen=True, kw_only=True):
    """A training that begins after step `done` and ends with step `end` (0: not known).

    `extra` is the number of steps for check and memory, after the profiled ones; with `warm` the profiler needs one.
    """

    done: int
    end: int
    extra: int = 0
    warm: bool = False


def plan_of(steps: range, training: Training) -> StepPlan | None:
    """Return how `steps` are recorded in a training; `None` if it has none of them.

    If no step before them can be timed (and with `warm`, be the profiler's warm-up), steps after them are timed.
    """
    end, extra = training.end, training.extra
    first = max(steps[0], training.done + 1)
    last = steps[-1] if not end else min(steps[-1], end)
    if first > last:
        return None
    before = first - 1 - training.done
    warms = training.warm and before > 0
    timed_before = min(max(before - _COLD - warms, 0), TIMED)
    left = TIMED if not end else min(max(end - last - extra, 0), TIMED)
    return StepPlan(
        first=first,
        steps=last - first + 1,
        timed_before=timed_before,
        timed_after=0 if timed_before else left,
        warm=warms,
    )


def named(steps: range) -> str:
    """Name the steps: `step 3`, `steps 3 to 5`."""
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


class NumberedSteps(LoopRecording):
    """The recorder called at the begin and end of each step; hands its record to `write`, once."""

    _hints = MappingProxyType(
        {
            kind: f"the training failed in the {watch}, which its code may not allow - leave out {name}"
            for kind, watch, name in (
                (Watched, "second count of its calls", "the check"),
                (WatchedAgain, "second count of its calls", "the check"),
                (MemoryFollowed, "tracing of its memory", "memory"),
            )
        }
    )

    def __init__(
        self,
        modules: Mapping[str, torch.nn.Module],
        options: RunOptions,
        write: Callable[[Recorded], None],
        *,
        plan: StepPlan,
        command: str,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        super().__init__(modules, options, write)
        self.plan, self.command = plan, command
        #: How long the training waited for its batches before each step.
        self.loading_ns: list[int] = []
        if optimizer is not None:
            self.session.seen.optimizer(optimizer)

    def _start_first(self) -> None:
        self._enter(next(self._stages))

    def _stages_after(self) -> Iterator[Stage]:
        plan, session = self.plan, self.session
        if plan.learns:
            yield Shown(session)
        if plan.timed_before:
            yield Timed(session, plan.timed_before)
        self._profiled = ProfiledSteps(session, plan.steps, warm=plan.warm, lines=self.options.lines)
        yield self._profiled
        if self.options.check:
            yield Watched(session)
        if self.options.memory:
            accelerators.check_memory_in_depth(session.device)
            yield MemoryFollowed(session)
        if session.observation is not None:
            yield WatchedAgain(session)
        if plan.timed_after:
            yield Timed(session, plan.timed_after)

    @property
    def whole_steps(self) -> int:
        """Return the number of finished profiled steps."""
        return 0 if self._profiled is None else len(self._profiled.logs)

    def begin_step(self) -> None:
        """Begin a step."""
        self._begin()

    def end_step(self) -> None:
        """End a step; after the last one write the record."""
        self.iterations += 1
        self._end()

    def stop(self) -> None:
        """End the training: write the complete profiled steps, if any."""
        try:
            if not self.done and self.whole_steps:
                renamed = self._cut()
                self._stage.close()
                self._finish(renamed)
        finally:
            self.abort()

    def _cut(self) -> dict[bytes, bytes]:
        whole, planned = self.whole_steps, self.plan.steps
        by_line = self._profiled is not None and self._profiled.profiler.ran_by_line
        if self.options.lines and not by_line:
            self.session.warnings.append("the training ended before the step that was to say which line runs what")
        if whole < planned:
            self.session.warnings.append(f"{whole} of {planned} steps were profiled: the training ended after that")
        if self.options.memory and self.session.memory_step is None:
            self.session.warnings.append("the training ended before the step whose memory was to be followed")
        cut = f"{STEP_RANGE}{whole}" if whole < planned or by_line or not self.options.lines else LINES_STEP
        return {f'"{cut}"'.encode(): b'"opanatomy.cut"'}

    def _unlike(self, profiled: Profiled) -> str | None:
        if not self.plan.follows and accelerators.is_accelerator(self.session.device) and len(profiled.logs) > 1:
            return "what runs between the profiled steps is in the trace as well: one step can be checked"
        return super()._unlike(profiled)

    def _warnings(self, profiled: Profiled) -> Iterator[str]:
        yield from super()._warnings(profiled)
        step_ns = median(self.session.unprofiled_ns or profiled.profiler.times_ns)
        if self.loading_ns and (loading_ns := median(self.loading_ns)) > NOTED_LOADING * step_ns:
            took = f"{loading_ns / 1e6:.1f} ms each time"
            yield f"batches are loaded between the steps, {took}: that is in no figure here"

    def _memory(self) -> MemoryObservations:
        """Return the memory after a step of the training: models and saves are known after the steps on the clock."""
        now = memory_after(self.session)
        memory = replace(
            super()._memory(),
            storage_bytes=now.storage_bytes,
            parameter_bytes=now.parameter_bytes,
            trainable_bytes=now.trainable_bytes,
        )
        if self.plan.timed_after and not accelerators.is_accelerator(self.session.device):
            # By then the resident set of the process includes the profile.
            return replace(memory, peak_bytes=None, measured_by=None)
        return memory

    def _not_observed(self) -> str:
        if not self.options.check:
            return "calls are counted a second time with check=True"
        if not self.session.modules.compiled:
            return "the training ended before the step whose calls were to be counted a second time"
        return super()._not_observed()


class Shown(Stage):
    """A step that shows the loop's modules, before their names are in a trace."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, 1)

    def open(self) -> None:
        """Register the hooks."""
        self.stack.enter_context(marked(self.session, self.session.inputs))


class ProfiledSteps(Profiled):
    """Steps under the profiler, with hooks only while a step runs.

    Work between two steps (logging, an evaluation, the next batches) is not in the trace of a CPU. It is if Kineto
    records a device: nobody has shown that its events can be turned off and on again without loss.
    """

    def __init__(self, session: Session, steps: int, *, warm: bool, lines: bool = False) -> None:
        super().__init__(session, steps, warm=warm, lines=lines)
        self.phases = LoopPhases()
        self._hooks = ExitStack()
        self._is_paused = False
        self._can_pause = not accelerators.is_accelerator(session.device)

    def open(self) -> None:
        """Start the profiler."""
        self.profiler = StepProfiler(self.session.device, steps=self.steps, warm=self.warm, lines=self.lines)
        self.stack.enter_context(quiet_kineto())
        self.profiler.start()
        self.stack.callback(self.profiler.stop)

    def begin(self) -> None:
        """Begin a step, without hooks if the profiler warms up in it."""
        if self._is_paused:
            toggled(self.profiler.profiler, True)
            self._is_paused = False
        if not self.warm or self._number is not None:
            self.phases = self._hooks.enter_context(marked(self.session, self.session.inputs))
        super().begin()

    def end(self) -> None:
        """End the step."""
        super().end()
        self._hooks.close()
        more = len(self.logs) < self.steps or (self.lines and not self.profiler.ran_by_line)
        if self._can_pause and self.logs and more:
            toggled(self.profiler.profiler, False)
            self._is_paused = True

    def close(self) -> None:
        """Restore everything, also in the middle of a step."""
        self._hooks.close()
        super().close()
