"""A loop, recorded: which iteration is in which stage, and what is written when all of them, or the loop, are done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.capture.device import accelerators
from opanatomy.capture.device.devices import device_of, kineto_records, of_the_peak
from opanatomy.capture.device.environment import environment_of
from opanatomy.capture.device.events import require_device_events
from opanatomy.capture.distributed.group import place_in_group
from opanatomy.capture.distributed.lone import lone_process
from opanatomy.capture.distributed.shared_weights import shared_weights
from opanatomy.capture.loop.modules import LoopModules
from opanatomy.capture.loop.seen import Seen
from opanatomy.capture.loop.session import Session
from opanatomy.capture.loop.stages import (
    MemoryFollowed,
    Profiled,
    Stage,
    Timed,
    Watched,
    WatchedAgain,
    memory_after,
)
from opanatomy.capture.memory.snapshots import Snapshots
from opanatomy.capture.memory.storages import other_devices
from opanatomy.capture.model.shape import shape_of
from opanatomy.capture.model.wrappers import unwrapped
from opanatomy.capture.step.compiled_parts import compilations
from opanatomy.capture.step.instruments import Instrument, blamed
from opanatomy.capture.step.profiled import STEP_RANGE
from opanatomy.capture.step.profiler_times import profiler_times_ns
from opanatomy.capture.step.tensor_lists import tensor_lists
from opanatomy.errors import CaptureError
from opanatomy.records.memory import WEIGHTS
from opanatomy.records.memory_observations import MemoryObservations
from opanatomy.records.workload import Capture, ObservedCount
from opanatomy.run_options import RunOptions

if TYPE_CHECKING:
    import torch

#: Iterations before those that are profiled: a cold one, one that is watched, the rest on the clock.
WARMUP: Final = 5
_COLD, _WATCHED = 1, 1
#: In its second iteration DDP makes its buckets anew, in the order in which gradients came.
_COLD_RANK: Final = 2
#: Saved tensors that are watched are detached; the batches of a loader's workers are taken in when they are there.
_NO_WORK: Final = frozenset({"aten::detach", "aten::empty", "aten::set_"})


class Recorded(Struct, frozen=True, kw_only=True):
    """What is to be written: the profile, what the capture says besides, and ranges to rename."""

    profiler: Any
    capture: Capture
    renamed: Mapping[bytes, bytes]


class LoopRecording:
    """Is called when the iterations of a loop end; hands what it recorded to `write`, once."""

    #: What was called, as the report says it.
    command = "opanatomy.record(...)"
    #: What may be to blame for an error of the loop, by the stage in which it came.
    _hints: Mapping[type[Stage], str] = MappingProxyType({
        Watched: "record: the loop failed while its second iteration was observed, which its code may not allow - give"
                 " warmup=1",
        MemoryFollowed: "record: the loop failed while its memory was traced, which its code may not allow -"
                        " leave out memory=True",
    })  # fmt: skip

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
        self._stage: Stage = Stage(self.session, 0)
        self._left = 0
        self._is_open = False
        self._stages: Iterator[Stage] = iter(())
        self._profiled: Profiled | None = None
        self._compilations = 0
        self._cold = _COLD

    def start(self) -> None:
        """The first iteration begins, or the only one: so it is profiled, and dropped where another follows."""
        try:
            self.session.points.take(WEIGHTS)
            first = Profiled(self.session, self.options.steps if not self.warmup else 1, warm=False)
            self._profiled = None if self.warmup else first
            self._stages = self._stages_after()
            self._enter(first)
            self._begin()
        except BaseException:
            self.abort()
            raise

    def _stages_after(self) -> Iterator[Stage]:
        """The stages in order; what a later one needs to know is known when it is reached."""
        if self.warmup:
            self._cold = _COLD if place_in_group() is None else _COLD_RANK
            if self.warmup > 1 and self._cold > 1:
                yield Stage(self.session, min(self.warmup, self._cold) - 1)
            if self.warmup > self._cold:
                yield Watched(self.session)
            if self.warmup > self._cold + _WATCHED:
                yield Timed(self.session, self.warmup - self._cold - _WATCHED)
            self._profiled = Profiled(self.session, self.options.steps, warm=kineto_records(self.session.device))
            yield self._profiled
        if self.options.memory:
            accelerators.check_memory_in_depth(self.session.device)
            yield MemoryFollowed(self.session)
        if self.session.observation is not None:
            yield WatchedAgain(self.session)

    def _enter(self, stage: Stage) -> None:
        self._stage, self._left = stage, stage.iterations
        self._is_open = False

    def _begin(self) -> None:
        """An iteration begins, the first of a stage with what the stage makes ready."""
        if not self._is_open:
            if self._stage is self._profiled:
                self._compilations = compilations()
            self._is_open = True
            self._stage.open()
        self._stage.begin()

    def _end(self) -> None:
        """An iteration is done; after the last of a stage the next begins, after all stages the trace is written."""
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
        """An iteration has ended, and another one may begin."""
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
        """The loop is over: write what there is, where that is not done."""
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
        """What watched the loop when an error left it that speaks of such a thing, and what to do; else `None`."""
        hint = self._hints.get(type(self._stage))
        if self.done or hint is None or not isinstance(error, Exception):
            return None
        if blamed(error, {Instrument.OBSERVER, Instrument.SAVES, Instrument.GRADIENTS}) is None:
            return None
        return hint

    def abort(self) -> None:
        """Put everything back, and write nothing more."""
        self.done = True
        self._stage.close()
        self._stages = iter(())

    def _cut(self) -> dict[bytes, bytes]:
        """What the end of the loop cuts off; the range of a profiled step that had only begun gets another name."""
        profiled = self._profiled
        if profiled is None or (not profiled.logs and self._stage is not profiled):
            raise CaptureError(self._too_few())
        if self.options.memory and self.iterations and not isinstance(self._stage, WatchedAgain):
            self.session.warnings.append("the loop ended before the iteration whose memory was to be followed")
        if self._stage is not profiled or not self.iterations:
            return {}
        begun = len(profiled.logs)
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

    # ------------------------------------------------------------------------------------------------ what is written

    def _finish(self, renamed: Mapping[bytes, bytes] | None = None) -> None:
        """Everything is recorded: put back what was changed, then write it."""
        profiled = self._profiled
        assert profiled is not None
        self.abort()
        profiler = profiled.profiler.profiler
        require_device_events(profiler, self.session.device)
        self.write(Recorded(profiler=profiler, capture=self._capture(profiled), renamed=renamed or {}))

    def _capture(self, profiled: Profiled) -> Capture:
        from opanatomy.version import __version__

        session = self.session
        lists, arguments = tensor_lists(profiled.profiler.profiler)
        unlike = self._unlike(profiled)
        observation = session.observation
        return Capture(
            version=__version__,
            command=self.command,
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            environment=environment_of(session.device),
            workload=session.seen.workload(
                steps=len(profiled.logs), warmup=self.warmup if self.iterations else 0, passes=profiled.passes,
                inference=not any("backward" in log for log in profiled.logs),
            ),
            memory=self._memory(),
            unprofiled_step_ns=tuple(session.unprofiled_ns),
            profiled_step_ns=tuple(profiled.profiler.times_ns),
            modules=session.modules.kinds(),
            lists=lists,
            list_arguments=arguments,
            observed=tuple(observation.incomplete) if observation else (),
            observed_counts=observation.counts() if observation and unlike is None else (),
            observed_step=self._cold + _WATCHED if observation else None,
            not_observed=self._not_observed(unlike),
            profiler_times_ns=profiler_times_ns(
                profiled.profiler.profiler, on_device=accelerators.is_accelerator(session.device)
            ),
            gradients=dict(session.gradients),
            shared=shared_weights(session.modules.outermost, session.modules.path_of) if place_in_group() else (),
            warnings=tuple(self._warnings(profiled)),
        )  # fmt: skip

    def _memory(self) -> MemoryObservations:
        """All that is observed of the memory."""
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
        """How the profiled steps may be others than the one whose calls were counted; `None` where nothing shows it."""
        session = self.session
        if session.observation is None:
            return None
        if any(log != session.watched for log in profiled.logs):
            return "the step that was watched had other shapes or calls than the profiled ones"
        again = session.watched_again == session.watched
        if again and _computing(session.counts_again) != _computing(session.observation.counts()):
            return "two steps of the loop that were watched differ from each other"
        return None

    def _not_observed(self, unlike: str | None) -> str | None:
        """Why the calls are not counted a second time."""
        observation = self.session.observation
        if unlike is not None:
            return unlike
        if observation is not None:
            unseen = sorted(observation.unseen)
            return f"what {', '.join(unseen)} runs inside is not seen by a dispatch mode" if unseen else None
        if not self.iterations:
            return "the block was run once, and that under the profiler"
        if self.warmup <= self._cold:
            return f"warmup={self.warmup} leaves no iteration to watch"
        return "this torch would run compiled parts uncompiled if they were watched"

    def _warnings(self, profiled: Profiled) -> Iterator[str]:
        session = self.session
        yield from session.warnings
        yield from lone_process()
        if session.modules.outermost:
            yield from of_the_peak((session.device, *self._memory().other_devices))
        if self.options.memory and not self.iterations:
            yield "the memory of a block without step() is not followed: it takes an iteration of its own"
        if not self.iterations:
            yield from self._iterations_as_one(profiled)
        if compilations() > self._compilations:
            yield "torch.compile compiled inside the profiled steps: their time includes that"
        if session.modules.given and not any(entry.startswith("forward") for log in profiled.logs for entry in log):
            yield "the module that was given is called in no profiled step"

    def _iterations_as_one(self, profiled: Profiled) -> Iterator[str]:
        """That a block holds several iterations: an optimizer steps twice, or several backwards lead to no step."""
        updates, backwards = (sum(log.count(entry) for log in profiled.logs) for entry in ("optimizer", "backward"))
        if updates > len(self.session.seen.optimizers) or (not updates and backwards > 1):
            several = f"{updates} optimizer steps and " if updates else ""
            yield (
                f"{several}{backwards} backward pass{'es' if backwards != 1 else ''} are one step here, for step() was"
                " never called: recorder.step() at the end of each iteration separates them"
            )


def _computing(counts: Iterable[ObservedCount]) -> list[ObservedCount]:
    """The counts without what differs from step to step and computes nothing."""
    return [count for count in counts if count.operator not in _NO_WORK]


def _device(modules: LoopModules) -> str:
    """Where a loop runs, by the modules that are given; else an accelerator that is in use."""
    import torch

    if modules.given:
        return next((device for module in modules.outermost if (device := device_of(module, ())) != "cpu"), "cpu")
    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
