"""The stages of a recording: steps of the loop that are observed in one way; what they find is in the session."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from opanatomy.capture.ceilings import system_use
from opanatomy.capture.device import accelerators
from opanatomy.capture.device.accelerators import devices_of
from opanatomy.capture.device.accelerators import synchronize_all as synchronize
from opanatomy.capture.device.kineto import toggled
from opanatomy.capture.device.state import DeviceWatch, watching
from opanatomy.capture.lines import line_ranges
from opanatomy.capture.loop.batch import Batch
from opanatomy.capture.loop.modules import LoopModules, hooked
from opanatomy.capture.loop.observed import ObservedWorkload
from opanatomy.capture.loop.phases import LoopPhases, marked_calls
from opanatomy.capture.memory.measurement import PeakMeter, Snapshots, storage_bytes, storages_observed
from opanatomy.capture.memory.observer import (
    MemoryObserver,
    MemoryProfiler,
    StepSettings,
    rng_bytes,
    saved_tensor_hooks,
    why_not_kept,
)
from opanatomy.capture.memory.saved import PointWatch, SavedTensors, StorageSet, saved_form, storages, weight_casts
from opanatomy.capture.memory.storages import Holders
from opanatomy.capture.run.gradients import gradients_by_path
from opanatomy.capture.run.observer import Observation, observing
from opanatomy.capture.run.profiled import StepProfiler
from opanatomy.capture.run.restore import quiet_kineto
from opanatomy.capture.step.ranges import OpenRanges, compilations, mode_keeps_compiled
from opanatomy.capture.step.stepper import StepObserver
from opanatomy.options import RunOptions
from opanatomy.records.run import DeviceState
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import LineFrame, MemoryObservations, ObservedCount, StepObservations, SystemUse

if TYPE_CHECKING:
    import torch


class Inputs(StepObserver):
    """Weak references to the arguments of forwards."""

    def __init__(self) -> None:
        self._references: list[weakref.ref[torch.Tensor]] = []

    def inputs(self, tensors: list[torch.Tensor]) -> None:
        """Remember these without keeping them alive."""
        self._references += [weakref.ref(tensor) for tensor in tensors]

    def alive(self) -> list[torch.Tensor]:
        """Return the tensors that are still alive."""
        return [tensor for reference in self._references if (tensor := reference()) is not None]


@dataclass(slots=True, kw_only=True)
class Session:
    """One recording."""

    options: RunOptions
    modules: LoopModules
    seen: ObservedWorkload
    #: The device assumed before the loop shows its own.
    device_at_first: str
    points: Snapshots
    inputs: Inputs = field(default_factory=Inputs)
    observation: Observation | None = None
    #: `LoopPhases.way` of the step with counted calls; then those of a second step and its counts.
    way: list[str] | None = None
    way_again: list[str] | None = None
    counts_again: tuple[ObservedCount, ...] = ()
    gradients: dict[str, str] = field(default_factory=dict)
    saved_bytes: int | None = None
    cast_bytes: int | None = None
    gradient_bytes: int | None = None
    unprofiled_ns: list[int] = field(default_factory=list)
    system_uses: list[SystemUse] = field(default_factory=list)
    memory: MemoryObservations | None = None
    memory_step: StepObservations | None = None
    memory_is_traced: bool = False
    warnings: list[str] = field(default_factory=list)
    #: Why the second count may differ from the profiled steps, if somebody knows.
    unlike: str | None = None
    #: What is taken back at the end of the recording.
    until_end: ExitStack = field(default_factory=ExitStack)
    #: The reader of the device's clocks, its previous number of spans, and the span of the timed steps.
    watch: DeviceWatch | None = None
    spans_before: int = 0
    timed_span: tuple[int, int] | None = None

    def watch_device(self) -> DeviceWatch | None:
        """Start reading the device's clocks, unless running; `None` if it has none."""
        if self.watch is None:
            self.watch = self.until_end.enter_context(watching(self.device))
            self.spans_before = 0 if self.watch is None else len(self.watch.spans)
        return self.watch

    def device_state(self) -> DeviceState | None:
        """Return the device state during the recorded steps."""
        if self.watch is None:
            return None
        return self.watch.over(
            self.watch.spans[self.spans_before :], steps=len(self.unprofiled_ns), energy=self.timed_span or (0, 0)
        )

    @property
    def device(self) -> str:
        """Return the device of the loop."""
        return self.seen.device or self.device_at_first

    def synchronize(self) -> None:
        """Synchronize every device with a part of the model."""
        for module in self.modules.outermost:
            synchronize(devices_of(module, self.device))
        synchronize((self.device,))

    def holders(self) -> Holders:
        """Return the current holders of a step's tensors."""
        return Holders(
            device=self.device,
            modules=self.modules.outermost,
            optimizers=tuple(self.seen.optimizers),
            inputs=self.inputs.alive(),
        )


@contextmanager
def marked(
    session: Session,
    watch: StepObserver,
    *,
    decide: Callable[[Phase], None] = lambda phase: None,
    behind_module: Callable[[], None] = lambda: None,
    rename: bool = True,
) -> Iterator[LoopPhases]:
    """Mark the phases and modules of the loop with ranges inside the block; `rename` modules if none is in a trace."""
    phases = LoopPhases(watch=watch, decide=decide)
    modules, seen = session.modules, session.seen
    if rename:
        modules.rename()
    ranges = OpenRanges(modules.range_names)

    def enter(module: torch.nn.Module) -> None:
        if not phases.is_here:
            return
        if not modules.knows(module):
            if not phases.is_outside or not modules.add(module):
                return
            ranges.names = modules.range_names
        phases.enter_module(module)
        if session.way is None:  # the workload is complete after the step whose calls are counted
            seen.module(module)
        ranges.enter(module, ())

    def leave(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if not phases.is_here or not modules.knows(module):
            return
        ranges.leave(module)
        behind_module()
        phases.note_call(modules.path_of.get(id(module), ""), args)
        phases.calls.inner(module, args, kwargs)
        if phases.leave_module(module, (args, kwargs)):
            learns = phases.calls.outermost(module, args, kwargs, output)
            seen.forward(module, args, kwargs, learns=learns)

    with hooked(modules, enter, leave), marked_calls(phases, seen.gradient_scaler, seen.optimizer):
        try:
            yield phases
        finally:
            ranges.close()
            phases.new_step()


# The stages; each cleans up after itself.


class Stage:
    """Steps that nothing observes; `begin` and `end` are called around each, `open` and `close` around all of them."""

    def __init__(self, session: Session, length: int) -> None:
        self.session, self.length = session, length
        self.stack = ExitStack()

    def open(self) -> None:
        """Prepare the stage."""

    def begin(self) -> None:
        """Begin a step."""

    def end(self) -> None:
        """End a step."""

    def close(self) -> None:
        """Restore everything, also in the middle of a step."""
        self.stack.close()


class Timed(Stage):
    """Unmodified steps on the clock."""

    _watch: DeviceWatch | None = None

    def open(self) -> None:
        """Reset the peak of memory."""
        self.meter = PeakMeter(self.session.device)
        self.meter.reset()
        self._watch = self.session.watch_device()
        if self._watch is not None:
            self.stack.enter_context(self._watch.around(reads=True))

    def close(self) -> None:
        """Restore everything, and note when the steps ran."""
        super().close()
        if self._watch is not None:
            self.session.timed_span = self._watch.spans[-1]
            self._watch = None

    def begin(self) -> None:
        """Start the clock."""
        self.session.synchronize()
        self._used, self._begin_ns = system_use(), time.perf_counter_ns()

    def end(self) -> None:
        """Stop the clock; the storages are those after the last step."""
        session = self.session
        session.synchronize()
        session.unprofiled_ns.append(time.perf_counter_ns() - self._begin_ns)
        session.system_uses.append(system_use().since(self._used))
        if len(session.unprofiled_ns) == self.length:
            session.memory = replace(
                memory_after(session), peak_bytes=self.meter.peak(), measured_by=self.meter.measured_by
            )


def memory_after(session: Session) -> MemoryObservations:
    """Return the storages after a step; gradients freed by the loop count with their last sizes."""
    observations = storages_observed(session.holders(), session.saved_bytes, session.cast_bytes)
    if "gradients" in observations.storage_bytes or not session.gradient_bytes:
        return observations
    return replace(observations, storage_bytes={**observations.storage_bytes, "gradients": session.gradient_bytes})


class DiscoverModules(Stage):
    """A step that shows the loop's modules, before their names are in a trace."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, 1)

    def open(self) -> None:
        """Register the hooks."""
        self.stack.enter_context(marked(self.session, self.session.inputs))


class Profiled(Stage):
    """Steps under the profiler, with hooks only during a step.

    With `warm` the profiler warms up in an extra step before them; with `lines` an extra step traced line by line
    follows. Unless they are `contiguous`, work between steps (logging, an evaluation, the next batches) is not in a CPU
    trace. It is if Kineto records a device, since pausing device events without loss is unproven.
    """

    def __init__(
        self, session: Session, steps: int, *, warm: bool, lines: bool = False, contiguous: bool = True
    ) -> None:
        super().__init__(session, steps + warm + lines)
        self.steps, self.warm, self.lines = steps, warm, lines
        #: The `LoopPhases.way` of each step, and its batch.
        self.logs: list[list[str]] = []
        self.batches: list[Batch] = []
        self.phases = LoopPhases()
        self._hooks = ExitStack()
        self._can_pause = not contiguous and not accelerators.is_accelerator(session.device)
        self._is_warming, self._is_paused = warm, False
        self._compilations_before = 0

    def open(self) -> None:
        """Start the profiler."""
        self._compilations_before = compilations()
        self.profiler = StepProfiler(self.session.device, steps=self.steps, warm=self.warm, lines=self.lines)
        self.stack.enter_context(quiet_kineto())
        self.profiler.start()
        self.stack.callback(self.profiler.stop)

    def begin(self) -> None:
        """Begin a step, without hooks if it is the profiler's warm-up."""
        self.session.synchronize()
        if self._is_paused:
            toggled(self.profiler.profiler, True)
            self._is_paused = False
        if not self._is_warming:
            self.phases = self._hooks.enter_context(marked(self.session, self.session.inputs, rename=not self.logs))
        self.profiler.begin(None if self._is_warming else len(self.logs))

    def end(self) -> None:
        """End the step, and keep its observations unless it is the one traced line by line."""
        self.session.synchronize()
        if self._is_warming:
            self._is_warming = False
            return
        is_counted = not self.is_whole
        self.profiler.end()
        if is_counted:
            self.logs.append(self.phases.way)
            self.batches.append(self.phases.calls.batch())
        self._hooks.close()
        if self._can_pause and not (self.is_whole and (self.profiler.ran_by_line or not self.lines)):
            toggled(self.profiler.profiler, False)
            self._is_paused = True

    def close(self) -> None:
        """Restore everything, also in the middle of a step."""
        self._hooks.close()
        super().close()

    @property
    def is_whole(self) -> bool:
        """Return whether all steps are profiled."""
        return len(self.logs) == self.steps

    @property
    def is_empty(self) -> bool:
        """Return whether nothing was observed since the last step ended."""
        return not self.phases.log

    @property
    def compiled_inside(self) -> bool:
        """Return whether torch.compile compiled in these steps."""
        return self.profiler.compilations > self._compilations_before


class CountCalls(Stage):
    """A step with a second count of its calls; the first of two also counts forward's saved tensors."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, 1)
        self._observation: Observation | None = None

    def open(self) -> None:
        """Attach all instruments."""
        self.saves = _Saves(self.session)
        self.phases = self.stack.enter_context(marked(self.session, self.saves, decide=self._decide))
        compiled = self.session.modules.compiled
        if not compiled:
            self.session.gradients = self.stack.enter_context(gradients_by_path(self.session.modules.path_of))
            self.stack.enter_context(self.saves.counting(self.phases))
        if not compiled or mode_keeps_compiled():
            self._observe()

    def _observe(self) -> None:
        observer = observing(self.phases.phase, lambda: self.phases.creates_graph)
        self._observation = self.stack.enter_context(observer)

    def _decide(self, phase: Phase) -> None:
        if self._observation is not None:
            self._observation.decide(phase)

    def end(self) -> None:
        """Keep the observations."""
        session = self.session
        session.synchronize()
        session.way = self.phases.way
        session.saved_bytes, session.cast_bytes = self.saves.bytes, self.saves.cast_bytes
        session.gradient_bytes = self.saves.gradient_bytes
        self.stack.close()
        session.observation = self._observation
        if session.observation is not None:
            recomputes = any(count.phase is Phase.RECOMPUTE for count in session.observation.counts())
            session.seen.checkpointing = session.observation.checkpointing if recomputes else None


class CountCallsAgain(CountCalls):
    """A step with another count of calls; if it differs, the profiled ones may differ too."""

    def open(self) -> None:
        """Enter the observer."""
        self.phases = self.stack.enter_context(marked(self.session, self.session.inputs, decide=self._decide))
        self._observe()

    def end(self) -> None:
        """Keep the counts."""
        self.session.way_again = self.phases.way
        self.stack.close()
        if self._observation is not None:
            self.session.counts_again = self._observation.counts()


class _Saves(PointWatch):
    """The maximum of live saved tensors at the begin of a backward, and of gradients after one."""

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
        """Count saves outside of backward inside the block."""

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if not phases.in_forward:
                return saved_form(tensor)
            if not tensor.requires_grad and not self.known.holds(tensor):
                # A mask, freed with the step, or another argument of a loss than the model's output.
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
        """Count the live saves."""
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


class TraceMemory(Stage):
    """A step with memory traced per allocation."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, 1)

    def open(self) -> None:
        """Record the existing allocations, and start the profiler."""
        session, stack = self.session, self.stack
        self.profiler = MemoryProfiler(session.holders())
        self.hooked = not session.modules.compiled
        self.observer = MemoryObserver(
            session.holders,
            session.device,
            session.points,
            hooked=self.hooked,
            references=self.profiler.earlier.references,
        )
        stack.enter_context(quiet_kineto())
        self.profiler.start()
        stack.callback(self.profiler.stop)
        self.phases = stack.enter_context(marked(session, self.observer, behind_module=self.observer.behind_module))
        if self.hooked:
            stack.enter_context(saved_tensor_hooks(self._pack))
        self.frames: list[LineFrame] = []

    def begin(self) -> None:
        """Begin the step, line by line if that is asked for."""
        if self.session.options.lines:
            self.frames = self.stack.enter_context(line_ranges(self.session.device))

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.observer.saved(tensor) if self.phases.in_forward else saved_form(tensor)

    def end(self) -> None:
        """Keep the observations."""
        session = self.session
        session.synchronize()
        session.memory_is_traced = True
        self.observer.end()
        self.stack.close()
        settings = StepSettings(
            hooked=self.hooked,
            autocast=session.seen.amp is not None,
            checkpointing=session.seen.checkpointing is not None,
            rng_bytes=rng_bytes(session.device) if session.seen.checkpointing else None,
            lines=tuple(self.frames),
        )
        step = self.profiler.observations(self.observer.marks, settings)
        if (reason := why_not_kept(step)) is not None:
            session.points.notes.append(reason)
        else:
            session.memory_step = step
