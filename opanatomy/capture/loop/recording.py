"""Record a loop: assign each iteration to a stage, and write the result after the last one or the loop's end."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.capture.batches import input_texts, sizes
from opanatomy.capture.ceilings import load_of, system_use
from opanatomy.capture.device import accelerators
from opanatomy.capture.device.accelerators import device_of, devices_of, kineto_records, peak_warnings
from opanatomy.capture.device.accelerators import synchronize_all as synchronize
from opanatomy.capture.device.kineto import require_device_events
from opanatomy.capture.device.state import DeviceWatch, watching
from opanatomy.capture.distributed.group import parallel_kind, place_in_group
from opanatomy.capture.distributed.ranks import single_process_warnings
from opanatomy.capture.distributed.training import shared_weights
from opanatomy.capture.lines import line_ranges
from opanatomy.capture.loop.batch import Batch, batch_of
from opanatomy.capture.loop.modules import LoopModules, hooked
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
from opanatomy.capture.memory.storages import Holders, other_devices
from opanatomy.capture.model.parts import class_name, unwrapped, windows_of
from opanatomy.capture.model.workload import attention_of, data_type_name
from opanatomy.capture.run.export import capture_of
from opanatomy.capture.run.gradients import gradients_by_path
from opanatomy.capture.run.instruments import Instrument, blamed
from opanatomy.capture.run.observer import Observation, observing
from opanatomy.capture.run.profiled import STEP_RANGE, StepProfiler
from opanatomy.capture.run.restore import quiet_kineto, step_settings
from opanatomy.capture.step.ranges import OpenRanges, compilations, has_compiled_parts, mode_keeps_compiled
from opanatomy.capture.step.shape import shape_of
from opanatomy.capture.step.stepper import StepObserver
from opanatomy.errors import CaptureError
from opanatomy.options import RunOptions
from opanatomy.records.memory import WEIGHTS
from opanatomy.records.run import DeviceState
from opanatomy.records.taxonomy import OPTIMIZERS, Optimizer, Phase
from opanatomy.records.workload import (
    LINES_STEP,
    Capture,
    LineFrame,
    MachineLoad,
    MemoryObservations,
    ObservedCount,
    StepObservations,
    SystemUse,
    Workload,
)

if TYPE_CHECKING:
    import torch


# The workload as shown by a loop: its calls, their arguments, its optimizers and data types.


#: Autocast's data type -> the name of the option.
_AMP: Final = {"bfloat16": "bf16", "float16": "fp16"}


@dataclass(slots=True)
class Seen:
    """The observed parts of a loop so far."""

    modules: LoopModules
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    scaler: Any = None
    device: str | None = None
    amp: str | None = None
    #: The inputs of the first call, or of the first that learns.
    sequence_length: int | None = None
    inputs: tuple[str, ...] = ()
    inputs_learn: bool | None = None
    #: Whether forward operators ran again in backward, and how.
    checkpointing: str | None = None

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Note an optimizer that steps."""
        if all(other is not optimizer for other in self.optimizers):
            self.optimizers.append(optimizer)

    def gradient_scaler(self, scaler: Any) -> None:
        """Note a gradient scaler in use."""
        self.scaler = scaler

    def module(self, module: torch.nn.Module) -> None:
        """Note a called module: autocast may begin in any of them."""
        import torch

        kind = accelerators.kind_of(self.device or _device_of(module) or "cpu")
        if torch.is_autocast_enabled(kind):
            self.amp = _AMP.get(data_type_name(torch.get_autocast_dtype(kind)))

    def forward(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, learns: bool | None
    ) -> None:
        """Note an outermost call, and whether it learns (`None`: it has no parameters)."""
        import torch

        self.device = self.device or _device_of(module)
        if self.inputs_learn or torch._C._is_tracing() or (self.inputs and not learns):
            return
        named = dict(kwargs) | {str(place): value for place, value in enumerate(args)}
        inputs: Any = kwargs if kwargs and not args else args if not kwargs else named
        if texts := input_texts(inputs):
            self.inputs, self.inputs_learn = texts, learns
            _, self.sequence_length = sizes(inputs)

    def loss_scale(self) -> float | None:
        """Return the current scale of the loss; on an accelerator this waits for it."""
        return None if self.scaler is None or not self.scaler.is_enabled() else float(self.scaler.get_scale())

    def workload(self, *, steps: int, warmup: int, batch: Batch, inference: bool) -> Workload:
        """Return the observed workload; unobserved fields are `None`."""
        modules = self.modules.trained or self.modules.outermost
        parameters = list({id(one): one for module in modules for one in module.parameters()}.values())
        name = " + ".join(dict.fromkeys(class_name(module) for module in modules)) or None
        place = place_in_group()
        return Workload(
            model=name,
            architecture=name,
            model_source="loop",
            parameters=sum(parameter.numel() for parameter in parameters) if modules else None,
            trainable_parameters=sum(one.numel() for one in parameters if one.requires_grad) if modules else None,
            batch=batch.samples,
            sequence_length=self.sequence_length,
            inputs=self.inputs,
            accumulate=batch.micro_batches if batch.micro_batches > 1 else None,
            dtype=data_type_name(parameters[0].dtype) if parameters else None,
            amp=self.amp,
            loss_scale=self.loss_scale(),
            attention=next(filter(None, map(attention_of, map(unwrapped, modules))), None),
            windows=next(filter(None, map(windows_of, map(unwrapped, modules))), ()),
            checkpointing=self.checkpointing,
            compiled=any(map(has_compiled_parts, modules)),
            optimizer=", ".join(dict.fromkeys(map(optimizer_name, self.optimizers))) or None,
            inference=inference,
            steps=steps,
            warmup=warmup,
            world_size=place.world_size if place else None,
            parallel=parallel_kind(self.modules.outermost) if place else None,
        )


def _device_of(module: torch.nn.Module) -> str | None:
    first = next(module.parameters(), None)
    return None if first is None or first.device.type == "meta" else str(first.device)


def optimizer_name(optimizer: torch.optim.Optimizer) -> str:
    """Return the option that makes an optimizer of this class and state, else its class."""
    kind = type(optimizer)
    home = kind.__module__.partition(".")[0]
    alike = [
        known
        for known in OPTIMIZERS
        if known.torch_class == kind.__name__ and home == (known.package or "torch") and _has_state_of(known, optimizer)
    ]
    kernels = _kernels(optimizer)
    exact = [known for known in alike if {name: known.arguments.get(name, False) for name in kernels} == kernels]
    chosen = exact or (alike if len(alike) == 1 else [])
    return chosen[0].name if chosen else kind.__name__


def _has_state_of(known: Optimizer, optimizer: torch.optim.Optimizer) -> bool:
    defaults = optimizer.defaults
    same_momentum = bool(defaults.get("momentum")) == bool(known.arguments.get("momentum"))
    return same_momentum and not defaults.get("amsgrad")


def _kernels(optimizer: torch.optim.Optimizer) -> dict[str, bool]:
    """Return whether updates are fused, or over lists: torch's default on an accelerator."""
    fused, foreach = optimizer.defaults.get("fused"), optimizer.defaults.get("foreach")
    if not fused and foreach is None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        foreach = bool(parameters) and parameters[0].device.type != "cpu"
    return {"fused": bool(fused), "foreach": bool(foreach)}


# The state shared by the stages of a recording: the loop's modules, the workload, and each stage's results.


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
    seen: Seen
    #: The device assumed before the loop shows its own.
    device_at_first: str
    points: Snapshots
    inputs: Inputs = field(default_factory=Inputs)
    observation: Observation | None = None
    #: The `LoopPhases.way` of the watched step; then that and the calls of one after the profiled steps.
    watched: list[str] | None = None
    watched_again: list[str] | None = None
    counts_again: tuple[ObservedCount, ...] = ()
    gradients: dict[str, str] = field(default_factory=dict)
    saved_bytes: int | None = None
    cast_bytes: int | None = None
    gradient_bytes: int | None = None
    unprofiled_ns: list[int] = field(default_factory=list)
    system_uses: list[SystemUse] = field(default_factory=list)
    memory: MemoryObservations | None = None
    memory_step: StepObservations | None = None
    warnings: list[str] = field(default_factory=list)
    #: Why the second count may differ from the profiled steps, if somebody knows.
    unlike: str | None = None
    #: What is taken back at the end of the recording.
    until_end: ExitStack = field(default_factory=ExitStack)
    #: What reads the device's clocks, how many spans it had before, and that of the steps on the clock.
    watch: DeviceWatch | None = None
    spans_before: int = 0
    timed_span: tuple[int, int] | None = None

    def watch_device(self) -> DeviceWatch | None:
        """Begin to read the device's clocks, unless that is done; `None` where it has none."""
        if self.watch is None:
            self.watch = self.until_end.enter_context(watching(self.device))
            self.spans_before = 0 if self.watch is None else len(self.watch.spans)
        return self.watch

    def device_state(self) -> DeviceState | None:
        """Return what the device did while the recorded steps ran."""
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
        """Wait for every device that has a part of the model."""
        for module in self.modules.outermost:
            synchronize(devices_of(module, self.device))
        synchronize((self.device,))

    def holders(self) -> Holders:
        """Return the current holders of the tensors of a step."""
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
) -> Iterator[LoopPhases]:
    """Mark the phases and modules of the loop with ranges inside the block."""
    phases = LoopPhases(watch=watch, decide=decide)
    modules, seen = session.modules, session.seen
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
        if session.watched is None:  # the workload is complete after the watched step
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


# The stages of a recording: a number of iterations each, observed in one way; each cleans up after itself.


class Stage:
    """A stage; `begin` and `end` are called around each of its iterations, `open` and `close` around all of them."""

    def __init__(self, session: Session, iterations: int) -> None:
        self.session, self.iterations = session, iterations
        self.stack = ExitStack()

    def open(self) -> None:
        """Prepare the stage."""

    def begin(self) -> None:
        """Begin an iteration."""

    def end(self) -> None:
        """End an iteration."""

    def close(self) -> None:
        """Restore everything, also in the middle of an iteration."""
        self.stack.close()


class Timed(Stage):
    """Unmodified iterations on the clock."""

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
        """Stop the clock; the storages are those after the last iteration."""
        session = self.session
        session.synchronize()
        session.unprofiled_ns.append(time.perf_counter_ns() - self._begin_ns)
        session.system_uses.append(system_use().since(self._used))
        if len(session.unprofiled_ns) == self.iterations:
            session.memory = replace(
                memory_after(session), peak_bytes=self.meter.peak(), measured_by=self.meter.measured_by
            )


def memory_after(session: Session) -> MemoryObservations:
    """Return the storages after a step; gradients that the loop has freed keep their last sizes."""
    observations = storages_observed(session.holders(), session.saved_bytes, session.cast_bytes)
    if "gradients" in observations.storage_bytes or not session.gradient_bytes:
        return observations
    return replace(observations, storage_bytes={**observations.storage_bytes, "gradients": session.gradient_bytes})


class Profiled(Stage):
    """Iterations under the profiler; with `warm` one more before them, in which the profiler warms up.

    With `lines` one more follows that says which line runs what.
    """

    def __init__(self, session: Session, steps: int, *, warm: bool, lines: bool = False) -> None:
        super().__init__(session, steps + warm + lines)
        self.steps, self.warm, self.lines = steps, warm, lines
        #: The `LoopPhases.way` of each step, and its batch.
        self.logs: list[list[str]] = []
        self.batches: list[Batch] = []
        self._number: int | None = None

    def open(self) -> None:
        """Register the hooks and start the profiler."""
        self.profiler = StepProfiler(self.session.device, steps=self.steps, warm=self.warm, lines=self.lines)
        self.stack.enter_context(quiet_kineto())
        self.profiler.start()
        self.stack.callback(self.profiler.stop)
        self.phases = self.stack.enter_context(marked(self.session, self.session.inputs))

    def begin(self) -> None:
        """Begin a step; with `warm` the first is not counted."""
        self.session.synchronize()
        self.phases.new_step()
        self.profiler.begin(self._number if self.warm and self._number is None else len(self.logs))

    def end(self) -> None:
        """End the step."""
        self.session.synchronize()
        if self.warm and self._number is None:
            self._number = 0
            return
        is_step = len(self.logs) < self.steps
        self.profiler.end()
        if is_step:
            self._keep()

    @property
    def is_empty(self) -> bool:
        """Return whether nothing was observed since the last step ended."""
        return not self.phases.log

    def _keep(self) -> None:
        self.logs.append(self.phases.way)
        self.batches.append(self.phases.calls.batch())


class Watched(Stage):
    """An iteration with a second count of its calls and of forward's saves for backward."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, 1)

    def open(self) -> None:
        """Attach all instruments."""
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
        """Keep the observations."""
        session = self.session
        session.synchronize()
        session.watched = self.phases.way
        session.saved_bytes, session.cast_bytes = self.saves.bytes, self.saves.cast_bytes
        session.gradient_bytes = self.saves.gradient_bytes
        self.stack.close()
        if session.observation is not None:
            recomputes = any(count.phase is Phase.RECOMPUTE for count in session.observation.counts())
            session.seen.checkpointing = session.observation.checkpointing if recomputes else None


class WatchedAgain(Stage):
    """An iteration with another count of calls; if it differs, the profiled ones may differ too."""

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
        """Keep the counts."""
        self.session.watched_again = self.phases.way
        self.stack.close()
        if self._observation is not None:
            self.session.counts_again = self._observation.counts()


class _Saves(PointWatch):
    """The maximum of live autograd saves when a backward begins, and of the gradients after one."""

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


class MemoryFollowed(Stage):
    """An iteration followed allocation by allocation."""

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


#: Iterations before the profiled ones: a cold one, one that is watched, the rest on the clock.
WARMUP: Final = 5
_COLD, _WATCHED = 1, 1
#: In its second iteration DDP rebuilds its buckets in the order in which gradients came.
_COLD_RANK: Final = 2
#: Watched saved tensors are detached; batches from a loader's workers are received whenever they arrive.
_NO_WORK: Final = frozenset({"aten::detach", "aten::empty", "aten::set_"})


class Recorded(Struct, frozen=True, kw_only=True):
    """The record to write: the profile, the other data of the capture, and ranges to rename."""

    profiler: Any
    capture: Capture
    renamed: Mapping[bytes, bytes]


class LoopRecording:
    """The recorder called at the end of each iteration of a loop; hands its record to `write`, once."""

    #: The call as the report names it.
    command = "opanatomy.record(...)"
    #: The possible cause of an error of the loop, by the stage in which it came.
    _hints: Mapping[type[Stage], str] = MappingProxyType(
        {
            Watched: "record: the loop failed while its second iteration was observed, which its code may not allow - "
            "give warmup=1",
            MemoryFollowed: "record: the loop failed while its memory was traced, which its code may not allow -"
            " leave out memory=True",
        }
    )

    def __init__(
        self, modules: Mapping[str, torch.nn.Module], options: RunOptions, write: Callable[[Recorded], None]
    ) -> None:
        self.options, self.write = options, write
        loop = LoopModules(given=modules)
        device = _device(loop)
        self.session = Session(
            options=options, modules=loop, seen=Seen(loop), device_at_first=device, points=Snapshots(device)
        )
        self.warmup = WARMUP if options.warmup is None else options.warmup
        #: How many iterations have ended by a call of `step()`.
        self.iterations = 0
        self.done = False
        #: How long the loop stood still for the profiler's end and for its trace.
        self.held_ns = 0
        self._stage: Stage = Stage(self.session, 0)
        self._left = 0
        self._is_open = False
        self._stages: Iterator[Stage] = iter(())
        self._profiled: Profiled | None = None
        self._compilations = 0
        self._cold = _COLD
        #: What other work took of the processor before the loop; the first use of a GPU is the loop's own.
        self._load_before: float | None = None

    def start(self) -> None:
        """Prepare the first stage, with the options that are settings of the process."""
        try:
            self._load_before = self._load() if self.session.device == "cpu" else None
            self.session.until_end.enter_context(step_settings(self.options))
            self.session.points.take(WEIGHTS)
            self._stages = self._stages_after()
            self._start_first()
        except BaseException:
            self.abort()
            raise

    def _start_first(self) -> None:
        """Begin the first iteration, possibly the only one: profile it, and drop it if another follows."""
        only = not self.warmup
        first = Profiled(self.session, self.options.steps if only else 1, warm=False, lines=only and self.options.lines)
        self._profiled = None if self.warmup else first
        self._enter(first)
        self._begin()

    def _stages_after(self) -> Iterator[Stage]:
        """Yield the stages in order; each gets the data known when it is reached."""
        if self.warmup:
            self._cold = _COLD if place_in_group() is None else _COLD_RANK
            if self.warmup > 1 and self._cold > 1:
                yield Stage(self.session, min(self.warmup, self._cold) - 1)
            if self.warmup > self._cold:
                yield Watched(self.session)
            if self.warmup > self._cold + _WATCHED:
                yield Timed(self.session, self.warmup - self._cold - _WATCHED)
            self._profiled = Profiled(
                self.session, self.options.steps, warm=kineto_records(self.session.device), lines=self.options.lines
            )
            yield self._profiled
        if self.options.memory:
            accelerators.check_memory_in_depth(self.session.device)
            yield MemoryFollowed(self.session)
        if self.session.observation is not None:
            yield WatchedAgain(self.session)

    @property
    def is_plain(self) -> bool:
        """Return whether the iteration now runs as it would without the recording."""
        return type(self._stage) in (Stage, Timed)

    def _enter(self, stage: Stage) -> None:
        self._stage, self._left = stage, stage.iterations
        self._is_open = False

    def _begin(self) -> None:
        """Begin an iteration, and prepare the stage if it is its first."""
        if not self._is_open:
            if self._stage is self._profiled:
                self._compilations = compilations()
            self._is_open = True
            self._stage.open()
        self._stage.begin()

    def _end(self) -> None:
        """End an iteration; after the last of a stage begin the next, after all stages write the trace."""
        self._stage.end()
        self._left -= 1
        if self._left:
            return
        self._stage.close()
        if self.session.points.device != self.session.device:
            self.session.points = Snapshots(self.session.device)
        following = next(self._stages, None)
        if following is None:
            self._finish()
        else:
            self._enter(following)

    def step(self) -> None:
        """End an iteration; another one may begin."""
        self.iterations += 1
        if self.done:
            return
        try:
            self._end()
            if not self.done:
                self._begin()
        except BaseException:
            self.abort()
            raise

    def stop(self) -> None:
        """End the loop: write the record unless that is done."""
        if self.done:
            return
        try:
            if not self.iterations:
                self._profiled = self._stage if isinstance(self._stage, Profiled) else None
                self._stage.end()
            renamed = self._cut()
            self._stage.close()
            self._finish(renamed)
        finally:
            self.abort()

    def blames(self, error: BaseException) -> str | None:
        """Return the instrument that may have caused an error of the loop, and the remedy; else `None`."""
        hint = self._hints.get(type(self._stage))
        if self.done or hint is None or not isinstance(error, Exception):
            return None
        if blamed(error, {Instrument.OBSERVER, Instrument.SAVES, Instrument.GRADIENTS}) is None:
            return None
        return hint

    def abort(self) -> None:
        """Restore everything, and write nothing more."""
        self.done = True
        self._stage.close()
        self._stages = iter(())
        self.session.until_end.close()

    def _cut(self) -> dict[bytes, bytes]:
        """End a step cut off by the end of the loop; return the new name of a range that had just begun."""
        profiled = self._profiled
        if profiled is None or (not profiled.logs and self._stage is not profiled):
            raise CaptureError(self._too_few())
        if self.options.memory and self.iterations and not isinstance(self._stage, WatchedAgain):
            self.session.warnings.append("the loop ended before the iteration whose memory was to be followed")
        if self._stage is not profiled or not self.iterations:
            return {}
        begun = len(profiled.logs)
        if begun == profiled.steps:
            self.session.warnings.append("the loop ended before the iteration that was to say which line runs what")
            return {f'"{LINES_STEP}"'.encode(): b'"opanatomy.cut"'}
        if not profiled.is_empty:
            profiled.end()
            self.session.warnings.append("the last profiled step was cut off: the recording ended inside of it")
        if not profiled.logs:
            raise CaptureError(self._too_few())
        if len(profiled.logs) < profiled.steps:
            self.session.warnings.append(
                f"{len(profiled.logs)} of {profiled.steps} steps were profiled: the loop ended after that"
            )
        old = f'"{STEP_RANGE}{begun}"'.encode()
        return {old: b'"opanatomy.cut"'} if len(profiled.logs) == begun else {}

    def _too_few(self) -> str:
        needed = self.warmup + kineto_records(self.session.device)
        return (
            f"record: the loop ended after {self.iterations} iterations, and the first to be profiled is number"
            f" {needed + 1} - give warmup={max(self.iterations - 1 - (needed - self.warmup), 0)} or less, or leave out"
            " step() to profile the whole block as one step"
        )

    # --------------------------------------------------------------------------------------------------------- output

    def _finish(self, renamed: Mapping[bytes, bytes] | None = None) -> None:
        """Restore all changes, then write the record."""
        profiled = self._profiled
        assert profiled is not None
        begun_ns = time.perf_counter_ns()
        self.abort()
        profiler = profiled.profiler.profiler
        require_device_events(profiler, self.session.device)
        self.write(Recorded(profiler=profiler, capture=self._capture(profiled), renamed=renamed or {}))
        self.held_ns = profiled.profiler.stop_ns + time.perf_counter_ns() - begun_ns

    def _capture(self, profiled: Profiled) -> Capture:
        session = self.session
        unlike, batch = self._unlike(profiled), batch_of(profiled.batches)
        return capture_of(
            profiled.profiler.profiler,
            session.device,
            observation=session.observation,
            observed_step=self._cold + _WATCHED,
            unlike=unlike,
            not_observed=self._not_observed(),
            load=MachineLoad(before=self._load_before, after=self._load()),
            command=self.command,
            workload=session.seen.workload(
                steps=len(profiled.logs),
                warmup=self.warmup if self.iterations else 0,
                batch=batch,
                inference=not any("backward" in log for log in profiled.logs),
            ),
            memory=self._memory(),
            unprofiled_step_ns=tuple(session.unprofiled_ns),
            profiled_step_ns=tuple(profiled.profiler.times_ns),
            unprofiled_system=tuple(session.system_uses),
            modules=session.modules.kinds(),
            lines=tuple(profiled.profiler.frames),
            gradients=dict(session.gradients),
            device_state=session.device_state(),
            shared=shared_weights(session.modules.outermost, session.modules.path_of) if place_in_group() else (),
            warnings=tuple(self._warnings(profiled)),
        )

    def _load(self) -> float | None:
        """Return what other work takes of the device; ranks would measure each other."""
        return load_of(self.session.device) if place_in_group() is None else None

    def _memory(self) -> MemoryObservations:
        """Return all memory observations."""
        session = self.session
        memory = session.memory or memory_after(session)
        outermost = session.modules.trained
        others = {name for module in outermost for name in other_devices(module, session.device)}
        return replace(
            memory,
            snapshots=session.points.taken,
            other_devices=tuple(sorted(others)),
            notes=tuple(session.points.notes),
            shape=shape_of(unwrapped(outermost[0]), session.device) if len(outermost) == 1 else None,
            step=session.memory_step,
        )

    def _unlike(self, profiled: Profiled) -> str | None:
        """Return how the profiled steps may differ from the counted one; `None` without a sign of that."""
        session = self.session
        if session.observation is None:
            return None
        if session.unlike is not None:
            return session.unlike
        if self._has_fast_path(profiled):
            return "nn.MultiheadAttention and nn.TransformerEncoderLayer take another path where a mode watches"
        if any(log != session.watched for log in profiled.logs):
            return "steps take different ways: the one that was watched had other shapes or calls than profiled ones"
        again = session.watched_again == session.watched
        if again and _computing(session.counts_again) != _computing(session.observation.counts()):
            return "two steps of the loop that were watched differ from each other"
        return None

    def _has_fast_path(self, profiled: Profiled) -> bool:
        """Return whether steps without a backward call modules that are fused where no mode watches them."""
        from torch.nn import MultiheadAttention, TransformerEncoderLayer

        parts = (part for module in self.session.modules.outermost for part in module.modules())
        fused = any(isinstance(part, (MultiheadAttention, TransformerEncoderLayer)) for part in parts)
        return fused and not any("backward" in log for log in profiled.logs)

    def _not_observed(self) -> str:
        """Return why no step was watched, if none was."""
        if not self.iterations:
            return "the block was run once, and that under the profiler"
        if self.warmup <= self._cold:
            return f"warmup={self.warmup} leaves no iteration to watch"
        return "this torch would run compiled parts uncompiled if they were watched"

    def _warnings(self, profiled: Profiled) -> Iterator[str]:
        session = self.session
        yield from session.warnings
        if unlike := batch_of(profiled.batches).unlike:
            sizes_text = ", ".join(map(str, unlike[:-1])) + f" and {unlike[-1]}"
            yield f"the batch is not known: different calls in the recorded steps take {sizes_text} samples"
        yield from single_process_warnings()
        if session.modules.outermost:
            yield from peak_warnings((session.device, *self._memory().other_devices))
        if self.options.lines and not self.iterations:
            yield "the lines of a block without step() are not told: they take an iteration of their own"
        elif profiled.profiler.ran_by_line and profiled.profiler.why_no_lines is not None:
            yield profiled.profiler.why_no_lines
        if self.options.memory and not self.iterations:
            yield "the memory of a block without step() is not followed: it takes an iteration of its own"
        if not self.iterations:
            yield from self._iterations_as_one(profiled)
        if profiled.profiler.compilations > self._compilations:
            yield "torch.compile compiled inside the profiled steps: their time includes that"
        if session.modules.given and not any(entry.startswith("forward") for log in profiled.logs for entry in log):
            yield "the module that was given is called in no profiled step"

    def _iterations_as_one(self, profiled: Profiled) -> Iterator[str]:
        """Warn that a block holds several iterations: an optimizer steps twice, or several backwards have no step."""
        updates, backwards = (sum(log.count(entry) for log in profiled.logs) for entry in ("optimizer", "backward"))
        if updates > len(self.session.seen.optimizers) or (not updates and backwards > 1):
            several = f"{updates} optimizer steps and " if updates else ""
            yield (
                f"{several}{backwards} backward pass{'es' if backwards != 1 else ''} are one step here, for step() was"
                " never called: recorder.step() at the end of each iteration separates them"
            )


def _computing(counts: Iterable[ObservedCount]) -> list[ObservedCount]:
    """Return the counts without operators that differ from step to step and compute nothing."""
    return [count for count in counts if count.operator not in _NO_WORK]


def _device(modules: LoopModules) -> str:
    """Return the device of the given modules; else an accelerator that is in use."""
    import torch

    if modules.given:
        return next((device for module in modules.outermost if (device := device_of(module, ())) != "cpu"), "cpu")
    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
