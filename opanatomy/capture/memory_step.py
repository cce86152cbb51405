"""One more step, looked at by the profiler's memory events: where each byte is at the peak and over the step."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from opanatomy.capture import memory_points as points
from opanatomy.capture.accelerators import is_cuda
from opanatomy.capture.memory import held_bytes, room_for
from opanatomy.capture.memory_events import MARK_RANGE, EventTree, read_tree
from opanatomy.capture.memory_points import CheckPoints
from opanatomy.capture.memory_replay import (
    AFTER_BACKWARD,
    AFTER_FORWARD,
    AFTER_OPTIMIZER,
    AFTER_STEP,
    BROKEN,
    BUFFERS,
    GRADIENTS,
    HELD_BEFORE,
    INPUTS,
    OPTIMIZER_STATE,
    OUTPUTS,
    ROUNDING,
    SAVED,
    STEP_COUNTERS,
    WEIGHTS,
    WORKSPACE,
    Noted,
    Replay,
    Setting,
    replay,
)  # fmt: skip
from opanatomy.capture.memory_saved import saved_form, uncompiled
from opanatomy.capture.memory_storages import Storages, optimizer_tensors, storages_of, tensors_in, unpacked
from opanatomy.capture.ranges import module_ranges
from opanatomy.capture.stepper import Stepper, StepWatch
from opanatomy.model import Phase

if TYPE_CHECKING:
    import torch

#: What the profiler takes to begin and to end, over a memory limit if need be: threads, tables, its tree of events.
PROFILER_BYTES: Final = 256 << 20
#: What its threads and its records take while the step runs.
_SLACK_BYTES: Final = 16 << 20
#: Sizes that torch gives a cuBLAS workspace by default (CUDAContextLight: on compute capability 9 and 10, before it).
_WORKSPACES: Final = (32 << 20, (4096 * 1024 * 2) + (16 * 1024 * 8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A step and its memory: the blocks, and by component what was allocated before the first of them."""

    found: Replay
    base: dict[str, int]
    device: str
    error: Exception | None = None
    phase: Phase = Phase.OTHER


@dataclass(slots=True)
class MemoryWatch(StepWatch):
    """Notes what autograd saves in forward, and what lives after each phase, as marks among the allocations."""

    stepper: Stepper
    check_points: CheckPoints
    hooked: bool = True
    notes: list[Noted] = field(default_factory=list)

    def forward(self) -> AbstractContextManager[Any]:
        """Saved tensors are noted in forward only: in backward they are those of a recomputation."""
        return _hooks(self._saved) if self.hooked and not self.stepper.inference else nullcontext()

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

    def _storages(self, tensors: Any) -> Storages:
        return storages_of(tensors, self.stepper.device)

    def after_forward(self, roots: tuple[torch.Tensor, ...]) -> None:
        """Note what forward leaves."""
        self._mark(Noted(what=OUTPUTS, storages=self._storages(roots)))
        self._mark(Noted(what=AFTER_FORWARD, storages={}))
        self.check_points.take(points.AFTER_FORWARD)

    def _gradients(self) -> Noted:
        gradients = [parameter.grad for parameter in self.stepper.parameters if parameter.grad is not None]
        return Noted(what=GRADIENTS, storages=self._storages(gradients))

    def after_backward(self) -> None:
        """Note the gradients."""
        self._mark(self._gradients())
        self._mark(Noted(what=AFTER_BACKWARD, storages={}))
        self.check_points.take(points.AFTER_BACKWARD)

    def after_optimizer(self) -> None:
        """Note that the weights are updated."""
        self._mark(Noted(what=AFTER_OPTIMIZER, storages={}))
        self.check_points.take(points.AFTER_OPTIMIZER)

    def end(self, *, broken: bool = False) -> None:
        """Note what is there at the end, or where the step broke."""
        state, counters = optimizer_tensors(self.stepper.optimizer)
        if broken:
            self._mark(self._gradients())
        self._mark(Noted(what=OPTIMIZER_STATE, storages=self._storages(state)))
        self._mark(Noted(what=STEP_COUNTERS, storages=self._storages(counters)))
        self._mark(Noted(what=BROKEN if broken else AFTER_STEP, storages={}))


@contextmanager
def _hooks(pack: Any) -> Iterator[None]:
    import torch

    with torch.autograd.graph.saved_tensors_hooks(uncompiled(pack), uncompiled(lambda tensor: tensor)):
        yield


def observe_step(
    stepper: Stepper, module: torch.nn.Module, check_points: CheckPoints, *, compiled: bool = False,
    checkpointing: bool = False, hooked: bool = True,
) -> Observed:  # fmt: skip
    """Run one more step under the memory profiler. An error of the step is not raised: it is in the record.

    Compiled code runs without hooks, a model that cannot have them with `hooked` false: what lives through forward is
    an activation there.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    stepper.free_gradients()
    if check_points.on_cuda:
        torch.cuda.reset_peak_memory_stats(stepper.device)
    known, base = _before(stepper, module)
    watch = MemoryWatch(stepper, check_points, hooked=hooked and not compiled)
    ranges: AbstractContextManager[Any] = nullcontext() if compiled else module_ranges(module)
    # Shapes carry the storages of the arguments, which tell casts of weights from other casts.
    profiler = profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True)
    before, stepper.watch = stepper.watch, watch
    held = held_bytes() or 0
    with room_for(PROFILER_BYTES):
        profiler.start()
        # Its threads take what is theirs when they begin; where there is none then, the C library ends the process.
        time.sleep(0.05)
    grown = max((held_bytes() or 0) - held, 0)
    try:
        with ranges, room_for(grown + _SLACK_BYTES):
            error, phase = _ran(stepper, watch)
    finally:
        stepper.watch = before
        with room_for(PROFILER_BYTES):
            profiler.stop()
    tree = _tree(profiler, stepper.device, frozenset(known[WEIGHTS]))
    everything: Storages = {pointer: size for storages in known.values() for pointer, size in storages.items()}
    setting = Setting(
        hooked=watch.hooked, autocast=stepper.amp is not None, checkpointing=checkpointing,
        rng_bytes=torch.get_rng_state().numel() if checkpointing and stepper.device == "cpu" else None,
    )  # fmt: skip
    found = replay(tree, watch.notes, everything, setting)
    return Observed(found=found, base=base, device=stepper.device, error=error, phase=phase)


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


def _before(stepper: Stepper, module: torch.nn.Module) -> tuple[dict[str, Storages], dict[str, int]]:
    """The storages of each component before the step, and the bytes of each; on CUDA with all else in the allocator."""
    device = stepper.device
    state, counters = optimizer_tensors(stepper.optimizer)
    known: dict[str, Storages] = {}
    seen: Storages = {}
    for component, tensors in (
        (WEIGHTS, list(module.parameters())),
        (BUFFERS, list(module.buffers())),
        (INPUTS, tensors_in(stepper.inputs)),
        (OPTIMIZER_STATE, state),
        (STEP_COUNTERS, counters),
    ):
        storages = storages_of(tensors, device)
        known[component] = {pointer: size for pointer, size in storages.items() if pointer not in seen}
        seen.update(storages)
    base = {component: sum(storages.values()) for component, storages in known.items()}
    if is_cuda(device):
        base.update(_rest_of_allocator(device, seen))
    return known, base


def _rest_of_allocator(device: str, known: Storages) -> dict[str, int]:
    """What the caching allocator holds beside the known storages: workspaces, its rounding, and blocks of others."""
    import torch

    index = torch.device(device).index or 0
    found = {WORKSPACE: 0, ROUNDING: 0, HELD_BEFORE: 0}
    allocator: Any = torch.cuda  # its functions have no types
    for segment in allocator.memory_snapshot():
        if segment["device"] != index:
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            size = block["size"]
            if block["state"] == "active_allocated":
                if address in known:
                    found[ROUNDING] += size - known[address]
                else:
                    found[WORKSPACE if size in _WORKSPACES else HELD_BEFORE] += size
            address += size
    # Blocks that wait for a stream count as allocated too.
    total = torch.cuda.memory_allocated(device)
    found[HELD_BEFORE] += total - sum(known.values()) - sum(found.values())
    return found
