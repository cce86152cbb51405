"""One more step, looked at by the profiler's memory events: where each byte is at the peak and over the step."""

from __future__ import annotations

import gc
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.capture.device import kineto_log
from opanatomy.capture.memory import snapshots as points
from opanatomy.capture.memory.agreement import figures_of
from opanatomy.capture.memory.allocator import DeviceAllocator, why_no_blocks
from opanatomy.capture.memory.before import Before, before
from opanatomy.capture.memory.events import MARK_RANGE, Change, EventTree, read_tree
from opanatomy.capture.memory.measurement import held_bytes, room_for
from opanatomy.capture.memory.replay import (
    AFTER_BACKWARD,
    AFTER_FORWARD,
    AFTER_OPTIMIZER,
    AFTER_STEP,
    BROKEN,
    BUFFERS,
    GONE,
    GRADIENTS,
    OPTIMIZER_STATE,
    OUTPUTS,
    SAVED,
    STEP_COUNTERS,
    WEIGHTS,
    Noted,
    Replay,
    Setting,
    replay,
)
from opanatomy.capture.memory.saved import saved_form, uncompiled
from opanatomy.capture.memory.snapshots import Snapshots
from opanatomy.capture.memory.storages import Storages, optimizer_tensors, other_devices, storages_of, unpacked
from opanatomy.capture.step.ranges import around_forward, module_ranges
from opanatomy.capture.step.stepper import StepObserver, Stepper
from opanatomy.records.memory import AllocatorFigures
from opanatomy.records.taxonomy import Phase

if TYPE_CHECKING:
    import torch

#: What the profiler takes to begin and to end, over a memory limit if need be: threads, tables, its tree of events.
PROFILER_BYTES: Final = 256 << 20
#: What its threads and its records take while the step runs.
_SLACK_BYTES: Final = 16 << 20


class Observed(Struct, frozen=True, kw_only=True):
    """A step and its memory: the blocks, and by component what was allocated before the first of them."""

    found: Replay
    base: dict[str, int]
    device: str
    figures: AllocatorFigures
    error: Exception | None = None
    phase: Phase = Phase.OTHER
    #: Why the blocks of the step are not known, where the allocator does not tell them.
    unknown: str | None = None
    #: Bytes of storages that no block of the allocator holds.
    outside_bytes: int = 0
    uncovered_devices: tuple[str, ...] = ()


@dataclass(slots=True)
class MemoryWatch(StepObserver):
    """Notes what autograd saves in forward, and what lives after each phase, as marks among the allocations."""

    stepper: Stepper
    snapshots: Snapshots
    module: torch.nn.Module
    compiled: bool = False
    hooked: bool = True
    notes: list[Noted] = field(default_factory=list)
    #: Storages from before the step that the allocator would not report as freed, by address.
    references: dict[int, Any] = field(default_factory=dict)
    thread: int = field(default_factory=threading.get_ident)

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Saved tensors are noted in forward only: in backward they are those of a recomputation.

        What a forward replaces (a buffer, a cache, a weight) is looked for behind each module, where nothing tells.
        """
        with ExitStack() as stack:
            if self.hooked and not self.stepper.inference:
                stack.enter_context(_hooks(self._saved))
            if self.references and not self.compiled:
                stack.enter_context(around_forward(self.module, None, self._behind_module, always=False))
            yield

    def _behind_module(self, *_: object) -> None:
        # The profiler sees no mark of another thread.
        if threading.get_ident() == self.thread:
            self._look_for_gone()

    def _saved(self, tensor: torch.Tensor) -> torch.Tensor:
        for part in unpacked((tensor,)):
            storage = part.untyped_storage()
            if storage.nbytes():
                self._mark(
                    Noted(
                        what=SAVED,
                        storages={storage.data_ptr(): storage.nbytes()},
                        shape=tuple(part.shape),
                        dtype=str(part.dtype).removeprefix("torch."),
                    )
                )
        return saved_form(tensor)

    def _mark(self, noted: Noted) -> None:
        from torch._C._profiler import _RecordFunctionFast

        with _RecordFunctionFast(f"{MARK_RANGE}{len(self.notes)}"):
            self.notes.append(noted)

    def _look_for_gone(self) -> None:
        """Note the storages from before the step that live no more."""
        gone = {pointer: 0 for pointer, reference in self.references.items() if reference.expired()}
        if gone:
            self._mark(Noted(what=GONE, storages=gone))
            self.references = {pointer: kept for pointer, kept in self.references.items() if pointer not in gone}

    def _storages(self, tensors: Any) -> Storages:
        return storages_of(tensors, self.stepper.device)

    def _of_model(self) -> None:
        """Note the weights and buffers, for those that the step itself allocated."""
        self._mark(Noted(what=WEIGHTS, storages=self._storages(self.module.parameters())))
        self._mark(Noted(what=BUFFERS, storages=self._storages(self.module.buffers())))

    def after_forward(self, roots: tuple[torch.Tensor, ...]) -> None:
        """Note what forward leaves."""
        self._look_for_gone()
        self._mark(Noted(what=OUTPUTS, storages=self._storages(roots)))
        self._of_model()
        self._mark(Noted(what=AFTER_FORWARD, storages={}))
        self.snapshots.take(points.AFTER_FORWARD)

    def _gradients(self) -> Noted:
        """Those of inputs, and of leaves that no module holds, beside those of the parameters."""
        leaves = (*self.stepper.parameters, *self.stepper.other_leaves)
        gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
        return Noted(what=GRADIENTS, storages=self._storages(gradients))

    def after_backward(self) -> None:
        """Note the gradients."""
        self._look_for_gone()
        self._mark(self._gradients())
        self._mark(Noted(what=AFTER_BACKWARD, storages={}))
        self.snapshots.take(points.AFTER_BACKWARD)

    def after_optimizer(self) -> None:
        """Note that the weights are updated."""
        self._look_for_gone()
        self._mark(Noted(what=AFTER_OPTIMIZER, storages={}))
        self.snapshots.take(points.AFTER_OPTIMIZER)

    def end(self, *, broken: bool = False) -> None:
        """Note what is there at the end, or where the step broke."""
        self._look_for_gone()
        state, counters = optimizer_tensors(self.stepper.optimizer)
        if broken:
            self._mark(self._gradients())
        self._of_model()
        self._mark(Noted(what=OPTIMIZER_STATE, storages=self._storages(state)))
        self._mark(Noted(what=STEP_COUNTERS, storages=self._storages(counters)))
        self._mark(Noted(what=BROKEN if broken else AFTER_STEP, storages={}))


@contextmanager
def _hooks(pack: Any) -> Iterator[None]:
    import torch

    with torch.autograd.graph.saved_tensors_hooks(uncompiled(pack), uncompiled(lambda tensor: tensor)):
        yield


def observe_step(
    stepper: Stepper, module: torch.nn.Module, snapshots: Snapshots, *, compiled: bool = False,
    checkpointing: bool = False, hooked: bool = True,
) -> Observed:  # fmt: skip
    """Run one more step under the memory profiler. An error of the step is not raised: it is in the record.

    Compiled code runs without hooks, a model that cannot have them with `hooked` false: what lives through forward is
    an activation there.
    """
    import torch

    stepper.free_gradients()
    if stepper.device != "cpu":
        # What the collector would free between the snapshot and the first event would be in no event.
        gc.collect()
        DeviceAllocator(stepper.device).reset_peak()
    there = before(stepper, module)
    watch = MemoryWatch(
        stepper, snapshots, module, compiled=compiled, hooked=hooked and not compiled, references=there.references
    )
    ranges: AbstractContextManager[Any] = nullcontext() if compiled else module_ranges(module)
    profiler, error, phase = _profiled(stepper, watch, ranges)
    tree = _tree(profiler, stepper.device, frozenset(there.storages[WEIGHTS]))
    setting = Setting(
        hooked=watch.hooked, autocast=stepper.amp is not None, checkpointing=checkpointing,
        rng_bytes=torch.get_rng_state().numel() if checkpointing and stepper.device == "cpu" else None,
    )  # fmt: skip
    observed = replayed(tree, watch.notes, there, setting, stepper.device)
    beside = other_devices(module, stepper.device)
    return replace(observed, error=error, phase=phase, uncovered_devices=beside)


def replayed(tree: EventTree, notes: Sequence[Noted], there: Before, setting: Setting, device: str) -> Observed:
    """The step that `tree` is of, beside what its allocator says now."""
    allocator = None if device == "cpu" else DeviceAllocator(device)
    found = replay(tree, notes, there.known, setting, there.held)
    silent = not there.whole or not any(isinstance(one, Change) for one in tree.moments)
    return Observed(
        found=found, base=there.base, device=device, figures=figures_of(found, there, allocator, device),
        unknown=why_no_blocks(allocator) if allocator is not None and silent else None,
        outside_bytes=there.outside_bytes,
    )  # fmt: skip


def _profiled(
    stepper: Stepper, watch: MemoryWatch, ranges: AbstractContextManager[Any]
) -> tuple[Any, Exception | None, Phase]:
    """Run the step under the profiler; the profiler, the error that broke the step, and in which phase."""
    from torch.profiler import ProfilerActivity, profile

    # Shapes carry the storages of the arguments, which tell casts of weights from other casts.
    profiler = profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True)
    outer, stepper.watch = stepper.watch, watch
    held = held_bytes() or 0
    with room_for(PROFILER_BYTES), kineto_log.listening(stepper.device):
        profiler.start()
        # Its threads take what is theirs when they begin; where there is none then, the C library ends the process.
        time.sleep(0.05)
    grown = max((held_bytes() or 0) - held, 0)
    try:
        with ranges, room_for(grown + _SLACK_BYTES):
            error, phase = _ran(stepper, watch)
    finally:
        stepper.watch = outer
        with room_for(PROFILER_BYTES), kineto_log.listening(stepper.device):
            profiler.stop()
    return profiler, error, phase


def _ran(stepper: Stepper, watch: MemoryWatch) -> tuple[Exception | None, Phase]:
    """Run the step; the error that broke it, and in which phase."""
    try:
        stepper.run()
        watch.end()
    except Exception as error:
        phase = stepper.phase
        watch.end(broken=True)
        # The profiler needs memory to end: what the frames of the failure hold goes first.
        traceback.clear_frames(error.__traceback__)
        return error, phase
    return None, Phase.OTHER


def _tree(profiler: Any, device: str, weights: frozenset[int]) -> EventTree:
    return read_tree(profiler.profiler.kineto_results.experimental_event_tree(), device, weights)
