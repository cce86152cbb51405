"""Set a step up, and run a capture: warm-up, steps on the clock, the step for memory, the profiled steps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from opanatomy.capture.batches import micro_batches
from opanatomy.capture.ceilings import load_of, system_use
from opanatomy.capture.device.accelerators import current_device, devices_of, peak_warnings
from opanatomy.capture.device.accelerators import synchronize_all as synchronize
from opanatomy.capture.device.kineto import require_device_events
from opanatomy.capture.device.state import watching
from opanatomy.capture.distributed.ranks import single_process_warnings
from opanatomy.capture.lines import files_of
from opanatomy.capture.memory.measurement import (
    PeakMeter,
    Snapshots,
    give_back,
    limited_to_available,
    storages_observed,
)
from opanatomy.capture.memory.observer import ObservedStep, observe_step, why_not_kept
from opanatomy.capture.memory.saved import ForwardSaves, PointWatch
from opanatomy.capture.memory.storages import holders_of, other_devices, tensors_in
from opanatomy.capture.model.building import checkpointing_warnings
from opanatomy.capture.model.texts import TextInputs
from opanatomy.capture.run.export import capture_of, export_trace
from opanatomy.capture.run.instruments import Instrument, Instruments
from opanatomy.capture.run.profiled import StepProfiler, profile_steps
from opanatomy.capture.run.progress import Progress
from opanatomy.capture.run.restore import SavedState, own_inputs, step_settings
from opanatomy.capture.run.scaling import prepared_loss_scale, scale_of, skipped_updates
from opanatomy.capture.silence import quiet_libraries
from opanatomy.capture.step.generation import generator_of
from opanatomy.capture.step.ranges import (
    compilations,
    compiling_ns,
    has_compiled_parts,
    mode_keeps_compiled,
    module_ranges,
)
from opanatomy.capture.step.shape import cache_shape_of, shape_of
from opanatomy.capture.step.stepper import StepObserver, Stepper, Training, make_optimizer
from opanatomy.capture.subject import Subject
from opanatomy.options import GENERATE, RunOptions, as_argument, as_flag
from opanatomy.records.memory import is_out_of_memory
from opanatomy.records.run import DeviceState
from opanatomy.records.taxonomy import BY_NAME
from opanatomy.records.workload import (
    Capture,
    Compilation,
    LineFrame,
    MachineLoad,
    MemoryObservations,
    SystemUse,
    TextObservations,
)

if TYPE_CHECKING:
    import torch


# Setting a step up: the same for a capture, for steps on the clock alone, and for a step on fake tensors.


@contextmanager
def step_environment(options: RunOptions) -> Iterator[None]:
    """Enter the environment of every step: its device, the host's free memory, quiet libraries, option settings.

    All are restored at the end.
    """
    guard: AbstractContextManager[None] = limited_to_available() if options.device == "cpu" else nullcontext()
    annotated = annotated_graphs() if options.compile_mode else nullcontext()
    with step_settings(options), current_device(options.device), guard, quiet_libraries(), annotated:
        yield


def annotated_graphs() -> AbstractContextManager[Any]:
    """Make torch.compile annotate CUDA graph kernels with their modules, if this torch can."""
    from torch._inductor import config

    name = "cudagraph_kernel_annotations"
    return config.patch({f"triton.{name}": True}) if hasattr(config.triton, name) else nullcontext()


def make_stepper(subject: Subject, options: RunOptions) -> Stepper:
    """Return the stepper for the options."""
    import torch

    training = subject.training
    module: Any = subject.module if training.model is None else training.model
    if options.compile:
        module = torch.compile(module, mode=options.compile_mode)
    optimizer = training.optimizer
    if options.optimizer and not options.inference and optimizer is None:
        optimizer = make_optimizer(options.optimizer, subject.module)
    parts = micro_batches(subject.inputs, options.accumulate, borrowed=subject.borrowed)
    own = tuple(own_inputs(subject.module, part) for part in parts)
    parameters = tuple(subject.module.parameters())
    option = (as_argument if subject.borrowed else as_flag)(GENERATE, options.generate)
    return Stepper(
        module=module,
        parameters=parameters,
        inputs=own[0],
        micro_batches=own,
        device=options.device,
        amp=options.amp,
        training=training,
        optimizer=optimizer,
        inference=options.inference,
        generator=generator_of(subject.module, own[0], options, option=option),
        clip=options.clip,
        other_leaves=_other_leaves(own, parameters),
    )


def _other_leaves(inputs: Any, parameters: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Return the inputs that get a gradient in backward."""
    known = {id(parameter) for parameter in parameters}
    return tuple(
        tensor for tensor in tensors_in(inputs) if tensor.requires_grad and tensor.is_leaf and id(tensor) not in known
    )


# One capture, step by step.


#: Unprofiled steps are repeated up to this number, or until they have taken this long.
_TIMED_STEPS: Final = 5
_TIMED_NS: Final = 10**9
#: Rounds over the batches of texts are repeated up to this number, or until they have taken this long.
_ROUNDS: Final = 5
_ROUNDS_NS: Final = 2 * 10**9
#: After a first step no longer than this a second one is counted, unless warm-up steps were requested.
_COUNTED_AGAIN_NS: Final = 5 * 10**9
#: Maximum number of extra warm-up steps while `torch.compile` still compiles.
_COMPILING_STEPS: Final = 4


@dataclass(slots=True, kw_only=True)
class StepRunner:
    """One capture: its steps in order, and the measurements of each."""

    subject: Subject
    options: RunOptions
    stepper: Stepper
    meter: PeakMeter
    progress: Progress
    points: Snapshots
    kept: SavedState
    instruments: Instruments = field(init=False)
    memory: MemoryObservations = field(default_factory=MemoryObservations)
    #: The time to the first new token of each timed generation.
    first_token_ns: list[int] = field(default_factory=list)
    system_uses: list[SystemUse] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    #: Whether a part of the model is compiled, and whether every step compiles it again.
    compiled: bool = False
    compiles_always: bool = False
    #: With a compile option: compile time, and step times with and without it.
    compilation: Compilation | None = None
    #: How many steps have run between two waits for the devices, and what the device did in the timed ones.
    steps_run: int = 0
    device_state: DeviceState | None = None
    #: The lines of a step that ran line by line.
    frames: list[LineFrame] = field(default_factory=list)
    #: The description of the run's texts, with the times of their batches.
    texts: TextObservations | None = None
    #: Every device of the model; a sharded one may still run when the first is done.
    devices: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        module = self.subject.module
        self.devices = devices_of(module, self.options.device)
        self.warnings.extend(single_process_warnings())
        self.warnings.extend(peak_warnings(self.devices))
        self.warnings.extend(checkpointing_warnings(module))
        self.compiled = self.options.compile or has_compiled_parts(module)
        self.instruments = Instruments(
            stepper=self.stepper,
            module=module,
            kept=self.kept,
            progress=self.progress,
            saves=self._saves(tensors_in(self.subject.inputs)),
            active=self._watchable(),
        )

    def _saves(self, inputs: Iterable[torch.Tensor]) -> ForwardSaves:
        """Return the watch of the tensors of a batch that forward keeps for backward."""
        module = self.subject.module
        weights = module.parameters() if self.options.amp is not None else ()
        return ForwardSaves([*module.parameters(), *module.buffers(), *inputs], self.points, weights)

    def _watchable(self) -> set[Instrument]:
        """Return the instruments for this step, without those for which torch runs compiled parts uncompiled."""
        options = self.options
        active = {Instrument.OBSERVER}
        if not options.inference:
            active |= {Instrument.SAVES, Instrument.GRADIENTS}
            if options.amp is not None:
                active.add(Instrument.CASTS)
        if not options.compile and self.stepper.generator is None:  # a generation reports its own, by tokens
            active.add(Instrument.PROGRESS)
        if self.compiled:
            active -= {Instrument.GRADIENTS}  # global module hooks would compile it again
        if self.compiled and not mode_keeps_compiled():
            active &= {Instrument.PROGRESS}
            self.warnings.append(
                "this torch would run the model's compiled parts uncompiled under a dispatch mode, so calls are not"
                " counted a second time, and what forward keeps for backward is not measured"
            )
        return active

    @property
    def training(self) -> Training:
        """Return the training of the steps."""
        return self.subject.training

    def record(self, trace: Path) -> None:
        """Run all steps and write the trace."""
        texts = self.subject.texts
        self.warnings += prepared_loss_scale(self.stepper, self.kept, self.progress)
        compiling_before_ns = compiling_ns()
        warm_ns = self._warm_up()
        self.meter.own_bytes = self.kept.host_bytes
        load_before = self._load()
        with watching(self.options.device) as watch:
            spans_before, steps_before = 0 if watch is None else len(watch.spans), self.steps_run
            with nullcontext() if watch is None else watch.around(reads=True):
                unprofiled = self._timed(warm_ns) if texts is None else self._timed_texts(texts, warm_ns)
            steps_timed = self.steps_run - steps_before
            if self.options.compile and not self.training.is_shared and texts is None:
                self.compilation = self._beside_uncompiled(compiling_ns() - compiling_before_ns, unprofiled)
            if self.options.memory:
                self.progress.stage("memory step", steps_after=self.options.steps, expected_ns=2 * max(unprofiled))
                self._trace_memory()
            if texts is not None:
                self.stepper.take(texts.profiled)
            profiled, modules = self._profile(max(unprofiled))
            require_device_events(profiled.profiler, self.options.device)
            if changed := self.kept.changed():
                self.warnings.append(
                    f"{changed:,} B of the model's tensors are overwritten in a step and were too large to copy, so"
                    " they are not restored"
                )
            if watch is not None:
                spans = watch.spans[spans_before:]
                self.device_state = watch.over(spans, steps=steps_timed, energy=spans[0])
            load = MachineLoad(before=load_before, after=self._load())
            capture = self._capture(unprofiled, profiled, modules, load)
            self.progress.stage("writing the trace")
            export_trace(profiled.profiler, capture, trace, everything=self.options.redact)

    def _load(self) -> float | None:
        """Return the device load by other work; `None` on several ranks, which would measure each other."""
        return None if self.training.is_shared else load_of(self.options.device)

    def _warm_up(self) -> int:
        options = self.options
        default = 1 if options.device == "cpu" else 5 if options.compile else 3
        count = default if options.warmup is None else options.warmup
        maximum = count + (_COMPILING_STEPS if options.warmup is None else 0)
        last = number = 0
        has_compiled = True
        may_compile = self.compiled or (options.optimizer is not None and BY_NAME[options.optimizer].compiled)
        while number < count or (number < maximum and may_compile and has_compiled):
            number += 1
            after = max(count - number, 0) + 2 * options.steps
            text = f"warm-up step {number} of {max(count, number)}"
            self.progress.stage(text, steps_after=after, expected_ns=last or None)
            before = compilations()
            last = self._warm_up_step(number)
            last = self.training.longest_ns(last)
            has_compiled = self.training.any_rank(compilations() > before)
            if number == 1 and options.warmup is None and last < _COUNTED_AGAIN_NS:
                count = max(count, self.training.counted_step)
        return last

    def _warm_up_step(self, number: int) -> int:
        """Run a warm-up step, the first under all instruments; a later one is counted again, without one-time work.

        Both draw the same random numbers.
        """
        if number == 1:
            return self._first_step()
        if number == self.training.counted_step and self.instruments.can_count_again:
            self.kept.random.restore()
            return self.instruments.count_again(number, lambda: self._time_step(PointWatch(self.points)))
        return self._time_step(PointWatch(self.points))

    def _first_step(self) -> int:
        with nullcontext() if self.stepper.generator is None else self.stepper.generator.telling(self.progress.advance):
            last = self.instruments.run(self._time_step)
        if self.options.optimizer is not None or not self.subject.borrowed:
            self.kept.release_weights()
        return last

    def _time_step(self, watch: StepObserver | None = None) -> int:
        """Run one step between two waits for the devices; return its wall time."""
        before = self.stepper.watch
        self.stepper.watch = watch or before
        synchronize(self.devices)
        self.steps_run += 1
        begin = time.perf_counter_ns()
        try:
            self._step()
        finally:
            self.stepper.watch = before
        return time.perf_counter_ns() - begin

    def _step(self) -> None:
        """Run one step, and wait for every device with a part of the model."""
        self.stepper.run()
        synchronize(self.devices)

    def _timed(self, expected: int) -> list[int]:
        """Return wall times of unprofiled steps: the requested number, more if short; none starts cold."""
        times: list[int] = []
        cold = not expected
        planned = self._planned(expected or _TIMED_NS)
        self.meter.reset()
        compilations_before, scale, number = compilations(), scale_of(self.stepper), 0
        while len(times) < planned:
            number = len(times) + 1
            after = planned - number + self.options.steps
            self.progress.stage(
                f"timed step {number} of {planned}", steps_after=after, expected_ns=(times or [expected])[-1] or None
            )
            used = system_use()
            times.append(self._time_step())
            self.system_uses.append(system_use().since(used))
            if self.stepper.generator is not None:
                self.first_token_ns.append(self.stepper.generator.first_token_ns)
            if number == 1:
                first = self.training.longest_ns(times[0])
                planned = self._planned(first) + (cold and first < _TIMED_NS)
        self.warnings += skipped_updates(self.stepper, scale, number, "timed")
        self.compiles_always = self.training.any_rank(self.compiled and compilations() >= compilations_before + planned)
        if cold and len(times) > self.options.steps:
            times.pop(0)
            self.first_token_ns = self.first_token_ns[1:]
        elif cold:
            self.warnings.append("without a warm-up step, the first unprofiled step includes one-time work")
        self.system_uses = self.system_uses[-len(times) :]
        self.memory = self._storages_and_peak()
        return times

    def _beside_uncompiled(self, compiling: int, times: list[int]) -> Compilation:
        """Return wall times of uncompiled steps, alternating with compiled ones if these are short.

        Empty if an uncompiled step does not fit into memory.
        """
        compiled_module, short = self.stepper.module, min(times) < _TIMED_NS
        turns = self._planned(min(times)) if short else 1
        pairs: dict[bool, list[int]] = {True: [], False: []}
        try:
            for turn in range(turns + short):  # the first warms up
                for is_compiled in (True, False) if short else (False,):
                    text = f"{'compiled' if is_compiled else 'uncompiled'} step, {turn + 1} of {turns + short}"
                    self.progress.stage(text, steps_after=turns - turn, expected_ns=min(times))
                    self.stepper.module = compiled_module if is_compiled else self.subject.module
                    pairs[is_compiled].append(self._time_step())
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            pairs = {True: [], False: []}
            self.stepper.module = compiled_module
            self.stepper.start_again(fresh=False)
            give_back()
        finally:
            self.stepper.module = compiled_module
        return Compilation(
            compiling_ns=compiling,
            compiled_step_ns=tuple(pairs[True][short:] or times),
            uncompiled_step_ns=tuple(pairs[False][short:]),
        )

    def _timed_texts(self, texts: TextInputs, expected: int) -> list[int]:
        """Return the wall times of unprofiled steps on the profiled batch and on the others.

        The batches alternate, so that machine drift affects all alike. An uncounted round comes first if the first step
        on a new length does extra work. Finally run a step on the longest batch, which stays current for the memory
        measurement.
        """
        compilations_before, scale = compilations(), scale_of(self.stepper)
        cold = self.compiled or self.options.device != "cpu" or not expected
        times: list[list[int]] = [[] for _ in texts.batches]
        steps = self.options.steps
        rounds, number = steps, -1 if cold else 0
        while number < rounds:
            spent = 0
            for place, batch in enumerate(texts.batches):
                text = f"batch {place + 1} of {len(texts.batches)}, round {max(number, 0) + 1} of {rounds}"
                after = len(texts.batches) * (rounds - number) - place - 1 + steps
                self.progress.stage(text, steps_after=after, expected_ns=times[place][-1] if times[place] else None)
                self.stepper.take(batch)
                duration = self._time_step()
                spent += duration
                if number >= 0:
                    times[place].append(duration)
            number += 1
            if number == 1:
                rounds = max(rounds, min(_ROUNDS, -(-_ROUNDS_NS // max(spent, 1))))
        self.texts = texts.with_times(times)
        profiled = self.texts.batches[texts.observed.profiled].step_ns
        self.warnings += skipped_updates(self.stepper, scale, sum(map(len, times)), "timed")
        self.compiles_always = self.training.any_rank(
            self.compiled and compilations() >= compilations_before + len(texts.batches) * (len(profiled) + 1)
        )
        self.stepper.take(texts.longest)
        if texts.observed.longest.length != texts.observed.batches[texts.observed.profiled].length:
            self.instruments.saves_again(self._saves(tensors_in(self.stepper.inputs)), self._time_step)
        self.meter.reset()
        self._time_step()
        self.memory = self._storages_and_peak()
        return list(profiled)

    def _planned(self, step_ns: int) -> int:
        """Return how many unprofiled steps of that length give a stable time."""
        return max(self.options.steps, min(_TIMED_STEPS, -(-_TIMED_NS // max(step_ns, 1))))

    def _storages_and_peak(self) -> MemoryObservations:
        """Return the storages after the timed steps, and their peak."""
        saves = self.instruments.saves
        observations = storages_observed(holders_of(self.stepper, self.subject.module), saves.bytes, saves.cast_bytes)
        buckets = self.training.bucket_bytes()
        sizes = observations.storage_bytes | ({} if buckets is None else {"ddp_buckets": buckets})
        return replace(
            observations, storage_bytes=sizes, peak_bytes=self.meter.peak(), measured_by=self.meter.measured_by
        )

    def _memory_observed(self) -> MemoryObservations:
        """Return all memory observations of the run."""
        module, device = self.subject.module, self.options.device
        return replace(
            self.memory,
            snapshots=self.points.taken,
            other_devices=other_devices(module, device),
            notes=tuple(self.points.notes),
            shape=shape_of(module, device),
            cache=None if self.stepper.generator is None else cache_shape_of(self.stepper.generator),
        )

    def _trace_memory(self) -> None:
        """Observe one more step, allocation by allocation."""
        give_back()
        hooked = not self.options.compile and Instrument.SAVES not in self.instruments.failed
        observed = self._observed(hooked=hooked)
        if observed.error is not None and is_out_of_memory(observed.error):
            raise observed.error
        if hooked and self.training.all_failed(failed=observed.error is not None):
            self.stepper.start_again(fresh=False)
            self.kept.random.restore()
            observed = self._observed(hooked=False)
        if observed.error is not None:
            raise observed.error
        give_back()
        if (reason := why_not_kept(observed.observations)) is not None:
            self.points.notes.append(reason)
            return
        self.memory = replace(self.memory, step=observed.observations)

    def _observed(self, *, hooked: bool) -> ObservedStep:
        return observe_step(
            self.stepper,
            self.subject.module,
            self.points,
            compiled=self.options.compile,
            hooked=hooked,
            checkpointing=bool(self.options.checkpointing),
            own=files_of(self.subject.module) if self.options.lines else None,
        )

    def _profile(self, expected: int) -> tuple[StepProfiler, dict[str, str]]:
        """Return the profile, and the modules with ranges in it."""
        before = compilations()
        ranges = not self.options.compile
        profiled, modules = self._profile_once(expected, ranges=ranges)
        compiled_again = self.training.any_rank(profiled.compilations > before)
        if self.compiles_always or not compiled_again:
            return profiled, modules
        if ranges:
            # A part is compiled without a sign on the module: profile again without ranges, which it compiles in.
            before = compilations()
            profiled, modules = self._profile_once(expected, ranges=False)
            self.warnings.append(
                "torch.compile recompiled a part of the model because of the module ranges, so the step is profiled"
                " without them, and the report has no module table"
            )
            compiled_again = profiled.compilations > before
        if compiled_again:
            self.warnings.append("torch.compile compiled during the profiled steps, so their time includes compilation")
        return profiled, modules

    def _profile_once(self, expected: int, *, ranges: bool) -> tuple[StepProfiler, dict[str, str]]:
        scale = scale_of(self.stepper)
        named: AbstractContextManager[dict[str, str]] = (
            module_ranges(self.subject.module) if ranges else nullcontext({})
        )
        own = files_of(self.subject.module) if self.options.lines else ()
        with named as modules:
            profiled = profile_steps(
                self._step,
                steps=self.options.steps,
                device=self.options.device,
                begin=lambda number: self._begin_profiled(number, expected),
                lines=self.options.lines,
                own=own,
            )
        self.frames = profiled.frames
        if profiled.why_no_lines is not None and profiled.why_no_lines not in self.warnings:
            self.warnings.append(profiled.why_no_lines)
        self.warnings += skipped_updates(self.stepper, scale, self.options.steps, "profiled")
        return profiled, modules

    def _begin_profiled(self, number: int | None, expected: int) -> None:
        steps = self.options.steps
        if number is None:
            text, begun = "the profiler's own warm-up step", 0
        else:
            text, begun = f"profiled step {number + 1} of {steps}", number + 1
        if number == steps:
            text = "the step line by line"
        self.progress.stage(text, steps_after=steps + self.options.lines - begun, expected_ns=expected)
        # Begin as the watched step did: the same dropout, the same layers left out, the same routes.
        self.kept.random.restore()

    def _capture(
        self, unprofiled: list[int], profiled: StepProfiler, modules: dict[str, str], load: MachineLoad
    ) -> Capture:
        return capture_of(
            profiled.profiler,
            self.options.device,
            observation=self.instruments.observation,
            observed_step=self.instruments.observed_step,
            not_observed=self._not_observed(),
            load=load,
            command=self.subject.command,
            workload=replace(
                self.subject.workload,
                backward_from=self.stepper.backward_from,
                loss_scale=scale_of(self.stepper),
                compiled=self.compiled or self.subject.workload.compiled,
            ),
            memory=self._memory_observed(),
            unprofiled_step_ns=tuple(unprofiled),
            profiled_step_ns=tuple(profiled.times_ns),
            unprofiled_system=tuple(self.system_uses),
            unprofiled_first_token_ns=tuple(self.first_token_ns),
            modules=modules,
            lines=tuple(self.frames),
            gradients=dict(self.instruments.gradients),
            shared=self.training.shared_weights(self.subject.module),
            texts=self.texts,
            compilation=self.compilation,
            device_state=self.device_state,
            warnings=(*self.instruments.warnings, *self.warnings),
        )

    def _not_observed(self) -> str:
        """Return why no step was watched, if none was."""
        if Instrument.OBSERVER in self.instruments.failed:
            return "the dispatch mode that counts calls failed in this model"
        if Instrument.OBSERVER not in self.instruments.active:
            return "this torch would run compiled parts uncompiled under a dispatch mode"
        return "there was no warm-up step to count calls in"
