"""Warm-up, unprofiled timing, the profiled steps: a model and a batch -> one trace file that knows what it is."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from opanatomy.capture.environment import environment_of
from opanatomy.capture.export import export_trace
from opanatomy.capture.memory import ForwardSaves, PeakMeter, give_back, limited_to_available, memory_of
from opanatomy.capture.memory_failure import StepOutOfMemory, memory_report_of
from opanatomy.capture.memory_points import WEIGHTS, CheckPoints
from opanatomy.capture.memory_record import measured_memory, outside_the_allocator
from opanatomy.capture.memory_shape import shape_of
from opanatomy.capture.memory_step import observe_step
from opanatomy.capture.memory_storages import tensors_in
from opanatomy.capture.observer import Observation, observing
from opanatomy.capture.quiet import one_line, quiet_libraries
from opanatomy.capture.ranges import module_ranges
from opanatomy.capture.stepper import Stepper, make_optimizer
from opanatomy.errors import CaptureError, OpanatomyError
from opanatomy.model import Capture, Memory, Phase, Workload

if TYPE_CHECKING:
    import torch

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "bad_alloc", "not enough memory", "cannot allocate memory")


class Progress(Protocol):
    """Told what is going on."""

    def stage(self, text: str, *, steps_after: int = 0, expected_ns: int | None = None) -> None:
        """A stage begins; a like one took `expected_ns`, `steps_after` steps follow it."""

    def advance(self, fraction: float) -> None:
        """This share of the stage is done."""


class Silence:
    """A progress display that shows nothing."""

    def stage(self, text: str, *, steps_after: int = 0, expected_ns: int | None = None) -> None:
        """Show nothing."""

    def advance(self, fraction: float) -> None:
        """Show nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to run and record the step."""

    device: str = "cpu"
    amp: str | None = None
    optimizer: str | None = None
    inference: bool = False
    compiled: bool = False
    checkpointing: str | None = None
    #: Whether to look at the memory of one more step, allocation by allocation.
    memory: bool = False
    steps: int = 1
    #: `None`: one step on the CPU, three on an accelerator (five when compiled there).
    warmup: int | None = None
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is recorded: a module and the arguments of its forward."""

    module: torch.nn.Module
    inputs: dict[str, Any] | tuple[Any, ...]
    workload: Workload
    #: The check points from before the module was made, where its maker took them.
    check_points: CheckPoints | None = None


def record_step(subject: Subject, options: Options, trace: Path, progress: Progress | None = None) -> None:
    """Run the step and write its trace to `trace` (`.json` or `.json.gz`).

    Raises `OutOfMemory` where the step does not fit, `CaptureError` where it cannot run.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    shown = progress or Silence()
    guard: AbstractContextManager[None] = limited_to_available() if options.device == "cpu" else nullcontext()
    meter = PeakMeter(options.device)
    points = subject.check_points or CheckPoints(options.device)
    points.take(WEIGHTS)
    stepper: Stepper | None = None
    try:
        stepper = _make_stepper(subject, options)
        with guard, quiet_libraries():
            _Run(subject, options, stepper, meter, shown, points).record(trace)
    except OpanatomyError:
        raise
    except Exception as error:
        phase = stepper.phase if stepper else Phase.OTHER
        if is_out_of_memory(error):
            line = _out_of_memory_line(error, phase, meter.peak(), options)
            memory = None if stepper is None else _memory_at_failure(error, stepper, subject, options, points)
            raise StepOutOfMemory(line, memory, subject.workload, environment_of(options.device)) from error
        if phase is Phase.OTHER:
            raise
        raise CaptureError(
            f"the model failed in the {phase} phase: {type(error).__name__}: {one_line(error)} - see --debug"
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that memory ran out, on the host or on a device."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(words in text for words in _OUT_OF_MEMORY)


def _memory_at_failure(
    error: Exception, stepper: Stepper, subject: Subject, options: Options, points: CheckPoints
) -> Memory:
    """What was allocated when it broke, seen in a second try under the same limit."""
    guard: AbstractContextManager[None] = limited_to_available() if options.device == "cpu" else nullcontext()
    with guard, quiet_libraries():
        found = memory_report_of(
            error, stepper, subject.module, points,
            compiled=options.compiled, checkpointing=bool(options.checkpointing),
        )  # fmt: skip
    return replace(found, shape=shape_of(subject.module, options.device))


def _out_of_memory_line(error: BaseException, phase: Phase, peak: int | None, options: Options) -> str:
    where = f"in the {phase} phase" if phase is not Phase.OTHER else "while the model was being prepared"
    reached = f"; {peak / 1e9:.2f} GB were in use at the peak" if peak else ""
    lower = ["--batch", "--seq"]
    lower += [] if options.inference or options.checkpointing else ["or add --checkpointing"]
    first = (str(error).strip() or "memory error").splitlines()[0][:160]
    return f"out of memory {where}{reached} - lower {', '.join(lower)}, or keep fewer --layers ({first})"


def _make_stepper(subject: Subject, options: Options) -> Stepper:
    module: Any = subject.module
    if options.compiled:
        module = _compiled(subject.module)
    optimizer = None
    if options.optimizer and not options.inference:
        optimizer = make_optimizer(options.optimizer, subject.module)
    return Stepper(
        module=module,
        parameters=tuple(subject.module.parameters()),
        inputs=subject.inputs,
        device=options.device,
        amp=options.amp,
        optimizer=optimizer,
        inference=options.inference,
    )


def _compiled(module: torch.nn.Module) -> Any:
    import torch
    import torch._inductor.config as inductor

    inductor.cpp.enable_kernel_profile = True
    return torch.compile(module)


@dataclass(slots=True)
class _Run:
    subject: Subject
    options: Options
    stepper: Stepper
    meter: PeakMeter
    progress: Progress
    points: CheckPoints
    activations_bytes: int | None = None
    observation: Observation | None = None
    memory: Memory | None = None

    def record(self, trace: Path) -> None:
        warm = self._warm_up()
        unprofiled = self._timed(warm)
        if self.options.memory:
            self.progress.stage("memory step", steps_after=self.options.steps, expected_ns=2 * max(unprofiled))
            self.memory = self._memory_in_depth()
        profiler, profiled, modules = self._profiled(max(unprofiled))
        capture = self._capture(unprofiled, profiled, modules, profiler)
        self.progress.stage("writing the trace")
        export_trace(profiler, capture, trace)

    def _warm_up(self) -> int:
        options = self.options
        default = 1 if options.device == "cpu" else 5 if options.compiled else 3
        count = default if options.warmup is None else options.warmup
        last = 0
        for number in range(count):
            after = count - number - 1 + 2 * options.steps
            self.progress.stage(f"warm-up step {number + 1} of {count}", steps_after=after, expected_ns=last or None)
            watched: AbstractContextManager[None] = (
                _watched(self.subject.module, self.progress)
                if number == 0 and not self.options.compiled
                else nullcontext()
            )
            with watched, self._measured(number == count - 1):
                last = self._clocked()
        return last

    @contextmanager
    def _measured(self, wanted: bool) -> Iterator[None]:
        """See what the profiled step must not be slowed by: saved tensors, arguments that Kineto drops.

        Nothing can be seen through compiled code: then it stays unknown.
        """
        if not wanted or self.options.compiled:
            yield
            return
        with observing(lambda: self.stepper.phase) as self.observation, self._measured_activations():
            yield

    @contextmanager
    def _measured_activations(self) -> Iterator[None]:
        if self.options.inference:
            yield
            return
        module = self.subject.module
        known = [*module.parameters(), *module.buffers(), *tensors_in(self.subject.inputs)]
        watch = ForwardSaves(known, self.points)
        before, self.stepper.watch = self.stepper.watch, watch
        try:
            yield
        finally:
            self.stepper.watch = before
        self.activations_bytes = watch.bytes

    def _memory_in_depth(self) -> Memory:
        options = self.options
        give_back()
        observed = observe_step(
            self.stepper, self.subject.module, self.points,
            compiled=options.compiled, checkpointing=bool(options.checkpointing),
        )  # fmt: skip
        if observed.error is not None:
            raise observed.error
        memory = measured_memory(observed, self.points)
        give_back()
        return replace(memory, shape=shape_of(self.subject.module, options.device))

    def _clocked(self) -> int:
        begin = time.perf_counter_ns()
        self.stepper.run()
        return time.perf_counter_ns() - begin

    def _timed(self, expected: int) -> list[int]:
        times: list[int] = []
        self.meter.reset()
        for number in range(self.options.steps):
            text = f"timed step {number + 1} of {self.options.steps}"
            after = 2 * self.options.steps - number - 1
            self.progress.stage(text, steps_after=after, expected_ns=times[-1] if times else expected or None)
            times.append(self._clocked())
        peak = self.meter.peak()
        module = self.subject.module
        memory = memory_of(module, self.stepper.optimizer, self.activations_bytes, peak, self.meter.measured_by)
        self.memory = replace(
            memory,
            components=(*memory.components, *outside_the_allocator(self.points.taken)),
            check_points=self.points.taken,
            notes=tuple(self.points.notes),
            shape=shape_of(module, self.options.device),
        )
        return times

    def _profiled(self, expected: int) -> tuple[Any, list[int], dict[str, str]]:
        from torch.profiler import ProfilerActivity, profile, record_function

        activities = [ProfilerActivity.CPU]
        if self.options.device.startswith("cuda"):
            activities.append(ProfilerActivity.CUDA)
        times: list[int] = []
        ranges: AbstractContextManager[dict[str, str]] = (
            nullcontext({}) if self.options.compiled else module_ranges(self.subject.module)
        )
        with profile(activities=activities, record_shapes=True) as profiler, ranges as modules:
            for number in range(self.options.steps):
                after = self.options.steps - number - 1
                text = f"profiled step {number + 1} of {self.options.steps}"
                self.progress.stage(text, steps_after=after, expected_ns=expected)
                begin = time.perf_counter_ns()
                with record_function(f"ProfilerStep#{number}"):
                    self.stepper.run()
                times.append(time.perf_counter_ns() - begin)
        return profiler, times, modules

    def _capture(self, unprofiled: list[int], profiled: list[int], modules: dict[str, str], profiler: Any) -> Capture:
        from opanatomy.version import __version__

        lists, arguments = _tensor_lists(profiler)
        return Capture(
            version=__version__,
            command=self.options.command,
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            environment=environment_of(self.options.device),
            workload=self.subject.workload,
            memory=self.memory or Memory(),
            unprofiled_step_ns=tuple(unprofiled),
            profiled_step_ns=tuple(profiled),
            modules=modules,
            lists=lists,
            list_arguments=arguments,
            observed=tuple(self.observation.incomplete) if self.observation else (),
            observed_counts=self.observation.counts() if self.observation else (),
            not_observed=None if self.observation else self._not_observed(),
            profiler_times_ns=profiler_times_ns(profiler, on_device=self.options.device.startswith("cuda")),
        )

    def _not_observed(self) -> str:
        """Why no step was watched."""
        if self.options.compiled:
            return "compiled code is not watched as it runs"
        return "no step of the warm-up was watched: there was none"


def profiler_times_ns(profiler: Any, *, on_device: bool) -> dict[str, int]:
    """The time of each operator by its name, as the profiler's own table sums it up."""
    figure = "self_device_time_total" if on_device else "self_cpu_time_total"
    found: dict[str, int] = {}
    for row in profiler.key_averages():
        found[row.key] = found.get(row.key, 0) + round(getattr(row, figure) * 1000)  # microseconds, with fractions
    return {name: time for name, time in found.items() if time}


@contextmanager
def _watched(module: torch.nn.Module, progress: Progress) -> Iterator[None]:
    """Tell how far the first step is: modules done in forward (a third of the work), gradients made in backward."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    leaves = [child for child in module.modules() if next(child.children(), None) is None]
    share = {id(child): sum(p.numel() for p in child.parameters(recurse=False)) for child in leaves}
    forward_total = sum(share.values()) or 1
    backward_total = sum(parameter.numel() for parameter in parameters) or 1
    done = [0, 0]

    def tell() -> None:
        forward, backward = min(done[0] / forward_total, 1), min(done[1] / backward_total, 1)
        progress.advance((forward + 2 * backward) / 3)

    def forward_done(child: torch.nn.Module, _inputs: object, _output: object) -> None:
        done[0] += share[id(child)]
        tell()

    def gradient_done(parameter: torch.Tensor) -> None:
        done[1] += parameter.numel()
        tell()

    handles: list[Any] = [child.register_forward_hook(forward_done) for child in leaves if share[id(child)]]
    for parameter in parameters:
        watch: Any = parameter.register_post_accumulate_grad_hook
        handles.append(watch(gradient_done))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _tensor_lists(profiler: Any) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]]]:
    """The distinct tensor lists as text, and External id -> the lists of that call, from the profiler's own tree."""
    from torch._C._profiler import _EventType

    texts: dict[str, int] = {}
    found: dict[str, tuple[int, ...]] = {}
    waiting = list(profiler.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag != _EventType.TorchOp:
            continue
        lists = [value for value in event.extra_fields.inputs if isinstance(value, list)]
        numbers = tuple(texts.setdefault(_list_text(value), len(texts)) for value in lists)
        if any(_list_text(value) for value in lists):
            found[str(event.correlation_id)] = numbers
    return tuple(texts), found


def _list_text(values: list[Any]) -> str:
    return ";".join(
        f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, value.sizes))}]"
        for value in values
        if hasattr(value, "sizes")
    )
