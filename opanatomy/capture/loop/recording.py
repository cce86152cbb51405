"""Record steps of a loop: each belongs to a stage of the schedule; the result is written after the last stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.capture.ceilings import load_of
from opanatomy.capture.device import accelerators
from opanatomy.capture.device.accelerators import device_of, kineto_records, peak_warnings
from opanatomy.capture.device.kineto import require_device_events
from opanatomy.capture.distributed.group import place_in_group
from opanatomy.capture.distributed.ranks import single_process_warnings
from opanatomy.capture.distributed.training import shared_weights
from opanatomy.capture.loop.batch import batch_of
from opanatomy.capture.loop.modules import LoopModules
from opanatomy.capture.loop.observed import ObservedWorkload
from opanatomy.capture.loop.stages import (
    CountCalls,
    CountCallsAgain,
    DiscoverModules,
    Profiled,
    Session,
    Stage,
    Timed,
    TraceMemory,
    memory_after,
)
from opanatomy.capture.memory.measurement import Snapshots
from opanatomy.capture.memory.storages import other_devices
from opanatomy.capture.model.parts import unwrapped
from opanatomy.capture.run.export import capture_of
from opanatomy.capture.run.profiled import STEP_RANGE
from opanatomy.capture.run.restore import step_settings
from opanatomy.capture.step.shape import shape_of
from opanatomy.errors import CaptureError
from opanatomy.options import RunOptions
from opanatomy.records.memory import WEIGHTS
from opanatomy.records.workload import LINES_STEP, Capture, MachineLoad, MemoryObservations, ObservedCount

if TYPE_CHECKING:
    import torch

#: Steps before the profiled ones by default: a cold one, one whose calls are counted, the rest on the clock.
WARMUP: Final = 5
#: The first step of a training allocates, loads and compiles: it is no measure of the others. In its second DDP
#: rebuilds its buckets in the order in which gradients came.
_COLD_STEPS, _COLD_STEPS_OF_RANK = 1, 2
#: This many steps run on the clock, if there are as many.
TIMED_STEPS: Final = 3
#: A warning reports loading that takes at least this share of a step.
_NOTED_LOADING_SHARE: Final = 0.05
#: Saved tensors are detached where calls are counted; batches of a loader's workers are received whenever they arrive.
_OPERATORS_WITHOUT_WORK: Final = frozenset({"aten::detach", "aten::empty", "aten::set_"})


# The schedules: of a `with` block, of numbered steps of a training, of a script's steps.


class Schedule(Struct, frozen=True, kw_only=True):
    """The stages of a recording, and how many steps each takes; memory and lines, in the options, take one each.

    Attributes:
        steps: profiled steps, of which `first` is the first one's number; `warm`: whether the profiler needs a step
            before them to warm up (`None`: if Kineto records the device that the loop shows by then).
        is_block: whether the steps are those of a `with` block, whose first may be its only one, and whose last may
            end with the block; it is profiled, and dropped if another follows.
        untouched: steps that nothing observes. `discovers`: whether a step shows the modules of a loop that names none.
        counts_before: whether calls are counted a second time before the profiled steps; else, of numbered steps, after
            them if that is asked for.
        timed_before, timed_after: steps on the clock before or after the profiled steps.
        is_contiguous: whether each step begins where the one before it ended.
    """

    steps: int
    first: int = 1
    warm: bool | None = None
    is_block: bool = False
    untouched: int = 0
    discovers: bool = False
    counts_before: bool = False
    timed_before: int = 0
    timed_after: int = 0
    is_contiguous: bool = True

    @property
    def begin(self) -> int:
        """Return the number of the first step that is recorded in any way."""
        return self.first - bool(self.warm) - self.timed_before - self.discovers

    @property
    def last(self) -> int:
        """Return the number of the last profiled step."""
        return self.first + self.steps - 1

    @property
    def warmup(self) -> int:
        """Return how many steps come before the profiled ones, without the profiler's own."""
        return self.first - 1

    @property
    def counted(self) -> int:
        """Return the number of the step whose calls are counted first."""
        return 2 + self.untouched if self.counts_before else self.last + 1


def block_schedule(options: RunOptions) -> Schedule:
    """Return the schedule of a `with` block."""
    warmup = WARMUP if options.warmup is None else options.warmup
    cold = _COLD_STEPS if place_in_group() is None else _COLD_STEPS_OF_RANK
    counts = warmup > cold
    return Schedule(
        steps=options.steps,
        first=warmup + 1,
        warm=None if warmup else False,
        is_block=True,
        untouched=max(min(warmup, cold) - 1, 0),
        counts_before=counts,
        timed_before=max(warmup - cold - counts, 0),
    )


class Training(Struct, frozen=True, kw_only=True):
    """A training that begins after step `done` and ends with step `end` (0: not known).

    `extra` is the number of steps for check, memory and lines, after the profiled ones; with `warm` the profiler needs
    one before them.
    """

    done: int
    end: int
    extra: int = 0
    warm: bool = False


def training_schedule(steps: range, training: Training) -> Schedule | None:
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
    timed_before = min(max(before - _COLD_STEPS - warms, 0), TIMED_STEPS)
    left = TIMED_STEPS if not end else min(max(end - last - extra, 0), TIMED_STEPS)
    return Schedule(
        first=first,
        steps=last - first + 1,
        timed_before=timed_before,
        timed_after=0 if timed_before else left,
        warm=warms,
        is_contiguous=False,
    )


def script_schedule(after: int, steps: int, done: int, *, warm: bool) -> Schedule:
    """Return how steps of a script are recorded after number `after`, or as soon as they can be: `done` are."""
    first = max(after, done + warm) + 1
    left = first - 1 - done - warm
    timed = min(max(left - 1, 0), TIMED_STEPS)
    return Schedule(
        first=first,
        steps=steps,
        timed_before=timed,
        timed_after=0 if timed else TIMED_STEPS,
        warm=warm,
        discovers=left > 0,
    )


def named(steps: range) -> str:
    """Name the steps: `step 3`, `steps 3 to 5`."""
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


# The recording.


class Recorded(Struct, frozen=True, kw_only=True):
    """The record to write: the profile, the other data of the capture, and ranges to rename."""

    profiler: Any
    capture: Capture
    renamed: Mapping[bytes, bytes]


class LoopRecording:
    """The recorder called at the begin and end of each step of a loop; hands its record to `write`, once.

    `command` is what made the recording, as the report names it.
    """

    def __init__(
        self,
        modules: Mapping[str, torch.nn.Module],
        options: RunOptions,
        write: Callable[[Recorded], None],
        *,
        schedule: Schedule,
        command: str,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self.options, self.write, self.schedule, self.command = options, write, schedule, command
        loop = LoopModules(given=modules)
        device = _device(loop)
        self.session = Session(
            options=options,
            modules=loop,
            seen=ObservedWorkload(loop),
            device_at_first=device,
            points=Snapshots(device),
        )
        if optimizer is not None:
            self.session.seen.optimizer(optimizer)
        #: How many steps have ended by a call.
        self.steps = 0
        self.done = False
        #: How long the loop stood still for the profiler's end and for its trace.
        self.held_ns = 0
        #: How long the training waited for its batches before each step.
        self.loading_ns: list[int] = []
        self._stage = Stage(self.session, 0)
        self._left = 0
        self._is_open = False
        self._stages: Iterator[Stage] = iter(())
        self._profiled: Profiled | None = None
        #: What other work took of the processor before the loop; the first use of a GPU is the loop's own.
        self._load_before: float | None = None

    def start(self) -> None:
        """Prepare the first stage, with the options that are settings of the process."""
        try:
            self._load_before = self._load() if self.session.device == "cpu" else None
            self.session.until_end.enter_context(step_settings(self.options))
            self.session.points.take(WEIGHTS)
            self._stages = self._scheduled()
            self._enter(next(self._stages))
        except BaseException:
            self.abort()
            raise

    def _scheduled(self) -> Iterator[Stage]:
        """Yield the stages in order; each gets the data known when it is reached."""
        schedule, session, options = self.schedule, self.session, self.options
        if schedule.is_block and schedule.warmup:
            yield Profiled(session, 1, warm=False)
        if schedule.discovers:
            yield DiscoverModules(session)
        if schedule.untouched:
            yield Stage(session, schedule.untouched)
        if schedule.counts_before:
            yield CountCalls(session)
        if schedule.timed_before:
            yield Timed(session, schedule.timed_before)
        self._profiled = Profiled(
            session,
            schedule.steps,
            warm=kineto_records(session.device) if schedule.warm is None else schedule.warm,
            lines=options.lines,
            contiguous=schedule.is_contiguous,
        )
        yield self._profiled
        if options.check and not schedule.is_block:
            yield CountCalls(session)
        if options.memory:
            accelerators.check_memory_in_depth(session.device)
            yield TraceMemory(session)
        if session.observation is not None:
            yield CountCallsAgain(session)
        if schedule.timed_after:
            yield Timed(session, schedule.timed_after)

    def _enter(self, stage: Stage) -> None:
        self._stage, self._left = stage, stage.length
        self._is_open = False

    @property
    def is_plain(self) -> bool:
        """Return whether the step now runs as it would without the recording."""
        return type(self._stage) in (Stage, Timed)

    @property
    def whole_steps(self) -> int:
        """Return the number of finished profiled steps."""
        return 0 if self._profiled is None else len(self._profiled.logs)

    def begin_step(self) -> None:
        """Begin a step, and prepare the stage if it is its first."""
        if not self._is_open:
            self._is_open = True
            self._stage.open()
        self._stage.begin()

    def end_step(self) -> None:
        """End a step; after the last of a stage enter the next, after all stages write the trace."""
        self.steps += 1
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

    def stop(self) -> None:
        """End the loop: write the record, unless that is done or no numbered step is whole."""
        try:
            if not self.done and (self.schedule.is_block or self.whole_steps):
                renamed = self._cut()
                self._stage.close()
                self._finish(renamed)
        finally:
            self.abort()

    def blames(self, error: BaseException) -> str | None:
        """Return what observed the step in which torch failed, and how to do without; else `None`."""
        if self.done or not isinstance(error, RuntimeError):
            return None
        if isinstance(self._stage, CountCalls):
            what = "its calls were counted a second time"
            remedy = f"use warmup={_COLD_STEPS}" if self.schedule.counts_before else "leave out check=True"
        elif isinstance(self._stage, TraceMemory):
            what, remedy = "its memory was traced", "leave out memory=True"
        else:
            return None
        return f"a step failed while {what} - if the loop works without opanatomy, {remedy}"

    def abort(self) -> None:
        """Restore everything, and write nothing more."""
        self.done = True
        self._stage.close()
        self._stages = iter(())
        self.session.until_end.close()

    def _cut(self) -> dict[bytes, bytes]:
        """Note what the end of the loop cut off; return the new name of the range of a step that had just begun."""
        profiled, warnings = self._profiled, self.session.warnings
        if not self.steps:  # the block is one step
            assert isinstance(self._stage, Profiled)
            self._profiled = self._stage
            self._stage.end()
            return {}
        inside = profiled if self._stage is profiled else None
        if self.schedule.is_block and inside is not None and not (inside.is_whole or inside.is_empty):
            inside.end()
            warnings.append("the last profiled step is incomplete, because the recording ended during it")
        if profiled is None or not profiled.logs:
            needed = self.schedule.warmup + kineto_records(self.session.device)
            fits = max(self.steps - 1 - (needed - self.schedule.warmup), 0)
            raise CaptureError(
                f"record: the loop ended after iteration {self.steps}, but profiling starts with iteration"
                f" {needed + 1} - use warmup={fits} or less, or omit step() to profile the entire block as one step"
            )
        by_line = not self.options.lines or profiled.profiler.ran_by_line
        if not profiled.is_whole:
            warnings.append(
                f"only {len(profiled.logs)} of {profiled.steps} steps were profiled, because the recording ended early"
            )
        elif not by_line:
            warnings.append("no lines: the recording ended before the step that is traced line by line")
        if self.options.memory and not self.session.memory_is_traced:
            warnings.append("no memory trace: the recording ended before the step that traces memory")
        if inside is None:
            return {}
        cut = f"{STEP_RANGE}{len(profiled.logs)}" if by_line or not profiled.is_whole else LINES_STEP
        return {f'"{cut}"'.encode(): b'"opanatomy.cut"'}

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
        memory = self._memory()
        return capture_of(
            profiled.profiler.profiler,
            session.device,
            observation=session.observation,
            observed_step=self.schedule.counted,
            unlike=self._unlike(profiled),
            not_observed=self._not_observed(),
            load=MachineLoad(before=self._load_before, after=self._load()),
            command=self.command,
            workload=session.seen.workload(
                steps=len(profiled.logs),
                warmup=self.schedule.warmup if self.steps else 0,
                batch=batch_of(profiled.batches),
                inference=not any("backward" in log for log in profiled.logs),
            ),
            memory=memory,
            unprofiled_step_ns=tuple(session.unprofiled_ns),
            profiled_step_ns=tuple(profiled.profiler.times_ns),
            unprofiled_system=tuple(session.system_uses),
            modules=session.modules.kinds(),
            lines=tuple(profiled.profiler.frames),
            gradients=dict(session.gradients),
            device_state=session.device_state(),
            shared=shared_weights(session.modules.outermost, session.modules.path_of) if place_in_group() else (),
            warnings=tuple(self._warnings(profiled, memory)),
        )

    def _load(self) -> float | None:
        """Return what other work takes of the device; ranks would measure each other."""
        return load_of(self.session.device) if place_in_group() is None else None

    def _memory(self) -> MemoryObservations:
        """Return all memory observations."""
        session = self.session
        now = memory_after(session)
        memory = session.memory or now
        if not self.schedule.counts_before:  # models and saves are known after the steps on the clock
            memory = replace(
                memory,
                storage_bytes=now.storage_bytes,
                parameter_bytes=now.parameter_bytes,
                trainable_bytes=now.trainable_bytes,
            )
        if self.schedule.timed_after and not accelerators.is_accelerator(session.device):
            # By then the resident set of the process includes the profile.
            memory = replace(memory, peak_bytes=None, measured_by=None)
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
        if not self.schedule.is_contiguous and accelerators.is_accelerator(session.device) and len(profiled.logs) > 1:
            return "the trace also contains the work between the profiled steps, so only one step can be checked"
        if session.observation is None:
            return None
        if session.unlike is not None:
            return session.unlike
        if _has_fast_path(session.modules.outermost) and not any("backward" in log for log in profiled.logs):
            return (
                "nn.MultiheadAttention and nn.TransformerEncoderLayer take a different path while a dispatch mode is"
                " active"
            )
        if any(log != session.way for log in profiled.logs):
            return "steps vary: the counted step had different shapes or calls than the profiled ones"
        again = session.way_again == session.way
        if again and _computing(session.counts_again) != _computing(session.observation.counts()):
            return "the two counted steps of the loop made different calls"
        return None

    def _not_observed(self) -> str:
        """Return why no calls were counted a second time, if none were."""
        if not self.steps:
            return "the block ran only once, under the profiler"
        if not self.schedule.counts_before and self.schedule.is_block:
            return f"warmup={self.schedule.warmup} leaves no iteration to count calls in"
        if not self.schedule.counts_before and not self.options.check:
            return "calls are counted a second time only with check=True"
        if self.session.modules.compiled:
            return "this torch would run compiled parts uncompiled under a dispatch mode"
        return "the recording ended before the step that counts calls a second time"

    def _warnings(self, profiled: Profiled, memory: MemoryObservations) -> Iterator[str]:
        session = self.session
        yield from session.warnings
        if unlike := batch_of(profiled.batches).unlike:
            sizes_text = ", ".join(map(str, unlike[:-1])) + f" and {unlike[-1]}"
            yield f"the batch size is unclear: calls in the recorded steps take {sizes_text} samples"
        yield from single_process_warnings()
        if session.modules.outermost:
            yield from peak_warnings((session.device, *memory.other_devices))
        if self.options.lines and not self.steps:
            yield "no lines for a block without step(): they need a separate iteration"
        elif profiled.profiler.ran_by_line and profiled.profiler.why_no_lines is not None:
            yield profiled.profiler.why_no_lines
        if self.options.memory and not self.steps:
            yield "no memory trace for a block without step(): it needs a separate iteration"
        if not self.steps:
            # A block holds several iterations if an optimizer steps twice, or if several backwards have no step.
            updates, backwards = (sum(log.count(entry) for log in profiled.logs) for entry in ("optimizer", "backward"))
            if updates > len(session.seen.optimizers) or (not updates and backwards > 1):
                several = f"{updates} optimizer steps and " if updates else ""
                yield (
                    f"{several}{backwards} backward pass{'es' if backwards != 1 else ''} count as one step, because"
                    " step() was never called - call recorder.step() at the end of each iteration to separate them"
                )
        if profiled.compiled_inside:
            yield "torch.compile compiled during the profiled steps, so their time includes compilation"
        if session.modules.given and not any(entry.startswith("forward") for log in profiled.logs for entry in log):
            yield "no profiled step calls the module that was passed to record"
        step_ns = median(session.unprofiled_ns or profiled.profiler.times_ns)
        if self.loading_ns and (loading_ns := median(self.loading_ns)) > _NOTED_LOADING_SHARE * step_ns:
            took = f"{loading_ns / 1e6:.1f} ms each time"
            yield f"batches are loaded between the steps ({took}); no number in the report includes that time"


def _has_fast_path(outermost: Iterable[torch.nn.Module]) -> bool:
    """Return whether modules have parts that are fused where no mode watches and no gradient is needed."""
    from torch.nn import MultiheadAttention, TransformerEncoderLayer

    parts = (part for module in outermost for part in module.modules())
    return any(isinstance(part, (MultiheadAttention, TransformerEncoderLayer)) for part in parts)


def _computing(counts: Iterable[ObservedCount]) -> list[ObservedCount]:
    """Return the counts without operators that differ from step to step and compute nothing."""
    return [count for count in counts if count.operator not in _OPERATORS_WITHOUT_WORK]


def _device(modules: LoopModules) -> str:
    """Return the device of the given modules; else an accelerator that is in use."""
    import torch

    if modules.given:
        return next((device for module in modules.outermost if (device := device_of(module, ())) != "cpu"), "cpu")
    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
