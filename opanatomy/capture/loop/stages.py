"""The stages of a recording: that many iterations of the loop each, watched in one way; nothing is left behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from opanatomy.capture.loop.phases import LoopPhases
from opanatomy.capture.loop.session import Session, marked
from opanatomy.capture.memory.measurement import PeakMeter, storage_bytes, storages_observed
from opanatomy.capture.memory.saved import PointWatch, SavedTensors, StorageSet, saved_form, storages, weight_casts
from opanatomy.capture.memory.step import (
    MemoryObserver,
    MemoryProfiler,
    StepSettings,
    rng_bytes,
    saved_tensor_hooks,
    why_not_kept,
)
from opanatomy.capture.step.compiled_parts import mode_keeps_compiled
from opanatomy.capture.step.gradients import gradients_by_path
from opanatomy.capture.step.observer import Observation, observing
from opanatomy.capture.step.profiled import StepProfiler
from opanatomy.capture.step.restore import quiet_kineto
from opanatomy.records.memory_observations import MemoryObservations
from opanatomy.records.taxonomy import Phase

if TYPE_CHECKING:
    import torch


class Stage:
    """A stage; `begin` and `end` are called around each of its iterations, `open` and `close` around all of them."""

    def __init__(self, session: Session, iterations: int) -> None:
        self.session, self.iterations = session, iterations
        self.stack = ExitStack()

    def open(self) -> None:
        """Make ready."""

    def begin(self) -> None:
        """An iteration begins."""

    def end(self) -> None:
        """An iteration is done."""

    def close(self) -> None:
        """Put everything back, also in the middle of an iteration."""
        self.stack.close()


class Timed(Stage):
    """Iterations that run as they are, on the clock."""

    def open(self) -> None:
        """Forget the peak of memory so far."""
        self.meter = PeakMeter(self.session.device)
        self.meter.reset()

    def begin(self) -> None:
        """Start the clock."""
        self.session.synchronize()
        self._begin_ns = time.perf_counter_ns()

    def end(self) -> None:
        """Stop it; the storages are those after the last one."""
        session = self.session
        session.synchronize()
        session.unprofiled_ns.append(time.perf_counter_ns() - self._begin_ns)
        if len(session.unprofiled_ns) == self.iterations:
            session.memory = replace(
                memory_after(session), peak_bytes=self.meter.peak(), measured_by=self.meter.measured_by
            )


def memory_after(session: Session) -> MemoryObservations:
    """The storages as they stand after a step; of gradients that the loop has freed by then what they were."""
    observations = storages_observed(session.holders(), session.saved_bytes, session.cast_bytes)
    if "gradients" in observations.storage_bytes or not session.gradient_bytes:
        return observations
    return replace(observations, storage_bytes={**observations.storage_bytes, "gradients": session.gradient_bytes})


class Profiled(Stage):
    """Iterations under the profiler; with `warm` one more before them, in which the profiler warms up."""

    def __init__(self, session: Session, steps: int, *, warm: bool) -> None:
        super().__init__(session, steps + warm)
        self.steps, self.warm = steps, warm
        #: What each step did, as `LoopPhases.log`, and how many batches it accumulated.
        self.logs: list[list[str]] = []
        self.passes = 1
        self._number: int | None = None

    def open(self) -> None:
        """Register the hooks and start the profiler."""
        self.profiler = StepProfiler(self.session.device, steps=self.steps, warm=self.warm)
        self.stack.enter_context(quiet_kineto())
        self.profiler.start()
        self.stack.callback(self.profiler.stop)
        self.phases = self.stack.enter_context(marked(self.session, self.session.inputs))

    def begin(self) -> None:
        """A step begins, the first with `warm` is none."""
        self.session.synchronize()
        self.phases.new_step()
        self.profiler.begin(self._number if self.warm and self._number is None else len(self.logs))

    def end(self) -> None:
        """The step is done."""
        self.session.synchronize()
        if self.warm and self._number is None:
            self._number = 0
            return
        self.profiler.end()
        self._keep()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was seen since the last step ended."""
        return not self.phases.log

    def _keep(self) -> None:
        self.logs.append(self.phases.log)
        self.passes = max(self.passes, self.phases.most_passes)


class Watched(Stage):
    """An iteration whose calls are counted a second time, and of which is seen what forward keeps for backward."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, 1)

    def open(self) -> None:
        """Hang all instruments."""
        session, stack = self.session, self.stack
        self.saves = _Saves(session)
        self.phases = stack.enter_context(marked(session, self.saves, decide=self._decide))
        compiled = session.modules.compiled
        if not compiled:
            session.gradients = stack.enter_context(gradients_by_path(session.modules.path_of))
            stack.enter_context(self.saves.counting(self.phases))
        if not compiled or mode_keeps_compiled():
            session.observation = stack.enter_context(observing(self.phases.phase, lambda: self.phases.creates_graph))

    def _decide(self, phase: Phase) -> None:
        if self.session.observation is not None:
            self.session.observation.decide(phase)

    def end(self) -> None:
        """Keep what was seen."""
        session = self.session
        session.synchronize()
        session.watched = self.phases.log
        session.saved_bytes, session.cast_bytes = self.saves.bytes, self.saves.cast_bytes
        session.gradient_bytes = self.saves.gradient_bytes
        self.stack.close()
        if session.observation is not None:
            recomputes = any(count.phase is Phase.RECOMPUTE for count in session.observation.counts())
            kind = "reentrant" if self.phases.reentered else "non-reentrant"
            session.seen.checkpointing = kind if recomputes else None


class WatchedAgain(Stage):
    """An iteration whose calls are counted as well: where they are others, so may be those of the profiled ones."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, 1)

    def open(self) -> None:
        """Enter the observer."""
        self._observation: Observation | None = None
        self.phases = self.stack.enter_context(marked(self.session, self.session.inputs, decide=self._decide))
        self._observation = self.stack.enter_context(observing(self.phases.phase, lambda: self.phases.creates_graph))

    def _decide(self, phase: Phase) -> None:
        if self._observation is not None:
            self._observation.decide(phase)

    def end(self) -> None:
        """Keep what was counted."""
        self.session.watched_again = self.phases.log
        self.stack.close()
        if self._observation is not None:
            self.session.counts_again = self._observation.counts()


class _Saves(PointWatch):
    """The maximum of what lives of autograd's saves whenever a backward begins, and of the gradients after one."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.points)
        self.session = session
        holders = session.holders()
        self.known = storages([*holders.parameters(), *holders.buffers()])
        self.saved = SavedTensors(self.known, StorageSet(device=session.device))
        self.casts = StorageSet()
        self.bytes: int | None = None
        self.cast_bytes: int | None = None
        self.gradient_bytes = 0

    @contextmanager
    def counting(self, phases: LoopPhases) -> Iterator[None]:
        """Count what is saved outside of backward while inside."""

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if not phases.in_forward:
                return saved_form(tensor)
            if not tensor.requires_grad and not self.known.holds(tensor):
                # A mask, which goes with the step, or what a loss is given besides the model's output.
                base: Any = tensor._base
                self.session.inputs.inputs([tensor if base is None else base])
            return self.saved.pack(tensor)

        with ExitStack() as stack:
            stack.enter_context(saved_tensor_hooks(pack))
            if self.session.seen.amp is not None:
                stack.enter_context(weight_casts(storages(self.session.holders().parameters()), self.casts))
            yield

    def inputs(self, tensors: list[torch.Tensor]) -> None:
        """Leave these out of the activations."""
        self.session.inputs.inputs(tensors)
        for tensor in tensors:
            self.known.add(tensor)

    def after_forward(self, roots: tuple[torch.Tensor, ...]) -> None:
        """Count what lives."""
        casts = self.saved.storages.live_bytes(within=self.casts)
        size = self.saved.storages.live_bytes() - self.saved.storages.live_bytes(within=self.known) - casts
        if self.bytes is None or size > self.bytes:
            self.bytes = size
            self.cast_bytes = casts or None
        super().after_forward(roots)

    def after_backward(self) -> None:
        """Count the gradients."""
        self.gradient_bytes = max(self.gradient_bytes, storage_bytes(self.session.holders().gradients()))
        super().after_backward()


class MemoryFollowed(Stage):
    """An iteration that is followed allocation by allocation."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, 1)

    def open(self) -> None:
        """Look at what is there, and start the profiler."""
        session, stack = self.session, self.stack
        self.profiler = MemoryProfiler(session.holders())
        self.hooked = not session.modules.compiled
        self.observer = MemoryObserver(
            session.holders, session.device, session.points, hooked=self.hooked,
            references=self.profiler.earlier.references,
        )  # fmt: skip
        stack.enter_context(quiet_kineto())
        self.profiler.start()
        stack.callback(self.profiler.stop)
        self.phases = stack.enter_context(marked(session, self.observer, behind_module=self.observer.behind_module))
        if self.hooked:
            stack.enter_context(saved_tensor_hooks(self._pack))

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.observer.saved(tensor) if self.phases.in_forward else saved_form(tensor)

    def end(self) -> None:
        """Keep what was observed."""
        session = self.session
        session.synchronize()
        self.observer.end()
        self.stack.close()
        settings = StepSettings(
            hooked=self.hooked, autocast=session.seen.amp is not None,
            checkpointing=session.seen.checkpointing is not None,
            rng_bytes=rng_bytes(session.device) if session.seen.checkpointing else None,
        )  # fmt: skip
        step = self.profiler.observations(self.observer.marks, settings)
        if (reason := why_not_kept(step)) is not None:
            session.points.notes.append(reason)
        else:
            session.memory_step = step
