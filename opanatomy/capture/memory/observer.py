"""Trace memory in one more step through the profiler: the owner of each byte at the peak and over time."""

from __future__ import annotations

import gc
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from opanatomy.capture.device import kineto
from opanatomy.capture.lines import line_ranges
from opanatomy.capture.memory.events import MARK_RANGE, Mark, ObservedEvents, observed_events
from opanatomy.capture.memory.measurement import (
    AllocatedBlock,
    DeviceAllocator,
    Snapshots,
    allocator_name,
    held_bytes,
    room_for,
    why_no_blocks,
)
from opanatomy.capture.memory.saved import saved_form, uncompiled
from opanatomy.capture.memory.storages import Holders, Storages, address_of, holders_of, storages_of, unpacked, weakly
from opanatomy.capture.model.parts import BEFORE_FORWARD, is_cache
from opanatomy.capture.step.generation import Generator, method_hook
from opanatomy.capture.step.ranges import forward_hooks, module_ranges
from opanatomy.capture.step.stepper import StepObserver, Stepper
from opanatomy.records.columns import packed
from opanatomy.records.memory import AFTER_BACKWARD, AFTER_FORWARD, AFTER_OPTIMIZER
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import (
    AllocatorObservation,
    BlockColumns,
    LineFrame,
    MarkKind,
    StepObservations,
    StorageColumns,
    TensorType,
)

if TYPE_CHECKING:
    import torch


# Allocations from before the observed step: known storages, and on a device the blocks of its allocator.


class Before(Struct, frozen=True, kw_only=True):
    """The memory before a step: the storages of each component, and on a device the blocks of its allocator.

    On the CPU `references` show whether a storage is alive: frees of blocks allocated before profiling are not
    reported.
    """

    storages: dict[str, Storages]
    references: dict[int, Any] = msgspec.field(default_factory=dict)
    #: `None` on the CPU, or if the allocator does not report them.
    blocks: tuple[AllocatedBlock, ...] | None = None
    #: Allocated bytes of the device's allocator; `None` on the CPU, or if not reported.
    allocated_bytes: int | None = None
    workspaces: frozenset[int] = frozenset()


def before(holders: Holders) -> Before:
    """Return the memory now."""
    device = holders.device
    tensors = components_before(holders)
    storages = {component: storages_of(some, device) for component, some in tensors.items()}
    if device == "cpu":
        references = weakly([tensor for some in tensors.values() for tensor in some], device)
        return Before(storages=storages, references=references)
    allocator = DeviceAllocator(device)
    blocks = allocator.blocks()
    return Before(
        storages=storages,
        blocks=blocks,
        allocated_bytes=allocator.allocated_bytes(),
        workspaces=frozenset() if blocks is None else allocator.workspaces(),
    )


def components_before(holders: Holders) -> dict[str, list[torch.Tensor]]:
    """Return the tensors of each component from before a step."""
    state, counters = holders.optimizer_tensors()
    return {
        "weights": holders.parameters(),
        "buffers": holders.buffers(),
        "inputs": holders.input_tensors(),
        "gradients": holders.gradients(),
        "optimizer_state": state,
        "optimizer_step_counters": counters,
    }


# Mark the cache of a generation, and its copies for beams, among the allocations.


#: `generate` repeats the inputs for each beam with this.
_EXPAND: Final = "_expand_inputs_for_generation"
#: Notes storages of a kind.
Noting: TypeAlias = "Callable[[MarkKind, Iterable[torch.Tensor]], None]"


@dataclass(slots=True)
class CacheMarks:
    """Marks of the cache's storages after each forward and each reordering, and of the inputs copied for the beams."""

    generator: Generator
    note: Noting
    #: Held until the generation is done, which would release them right after the last reordering.
    caches: list[Any] = field(default_factory=list)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Set the marks inside the block."""
        module = self.generator.module
        with ExitStack() as stack:
            stack.enter_context(forward_hooks(module, None, self._behind_forward, always=False))
            if self.generator.beams > 1:
                stack.enter_context(method_hook(module, BEFORE_FORWARD, before=self._reordered))
                if hasattr(module, _EXPAND):
                    stack.enter_context(method_hook(module, _EXPAND, after=self._expanded))
            try:
                yield
                self._reordered()
            finally:
                self.caches = []

    def _behind_forward(self, child: torch.nn.Module, _inputs: object, output: object) -> None:
        # An adapter's wrapper generates by the model inside it.
        if not hasattr(child, BEFORE_FORWARD):
            return
        named = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
        caches = [item for name, item in named.items() if is_cache(item, name=name, module=child)]
        self.note(MarkKind.KEY_VALUE_CACHE, _tensors(caches))
        self.caches = [cache for cache in caches if not isinstance(cache, (tuple, list))]

    def _reordered(self) -> None:
        if self.caches:
            self.note(MarkKind.REORDERED_CACHE, _tensors(self.caches))

    def _expanded(self, arguments: object) -> None:
        self.note(MarkKind.BEAM_COPIES, _tensors(arguments))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a cache layer by layer, or of arguments; numbers, which count positions, are left out."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.dim():
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    else:
        for name, item in getattr(value, "__dict__", {}).items():
            if isinstance(item, (torch.Tensor, list, tuple, dict)) or is_cache(item, name=name, module=None):
                yield from _tensors(item)


#: The profiler's memory need at start and stop, granted beyond a memory limit if necessary: threads, tables, event
#: tree.
PROFILER_BYTES: Final = 256 << 20
#: The need of its threads and records while the step runs.
_SLACK_BYTES: Final = 16 << 20
#: The record of a memory step is larger than this only with more than half a million allocations; readers of traces
#: take 16 MiB of metadata.
_MAX_PACKED_BYTES: Final = 8 << 20
#: Name of the CPU's allocator backend: torch's wrapper, which counts while a profiler requests it.
_OF_CPU: Final = "cpu"


class ObservedStep(Struct, frozen=True, kw_only=True):
    """The observations of a step, and the error that broke it."""

    observations: StepObservations
    error: Exception | None = None


class StepSettings(Struct, frozen=True, kw_only=True):
    """The settings of a step in its observations."""

    hooked: bool = True
    autocast: bool = False
    checkpointing: bool = False
    rng_bytes: int | None = None
    broken_in: Phase | None = None
    lines: tuple[LineFrame, ...] = ()


@dataclass(slots=True)
class MemoryObserver(StepObserver):
    """Marks among the allocations: autograd's saves in forward, and the live storages after each phase."""

    holders: Callable[[], Holders]
    device: str
    snapshots: Snapshots
    #: The module after whose submodules freed storages are recorded; `None` if it cannot have hooks.
    module: torch.nn.Module | None = None
    #: The generator of a step that is a generation.
    generator: Generator | None = None
    hooked: bool = True
    marks: list[Mark] = field(default_factory=list)
    #: Storages from before the step whose free the allocator would not report, by address.
    references: dict[int, Any] = field(default_factory=dict)
    thread: int = field(default_factory=threading.get_ident)

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Record saved tensors only in forward: in backward they belong to a recomputation.

        Replaced storages (a buffer, a cache, a weight) are searched after each module if the allocator does not report
        them.
        """
        with ExitStack() as stack:
            if self.hooked:
                stack.enter_context(saved_tensor_hooks(self.saved))
            if self.references and self.module is not None:
                stack.enter_context(forward_hooks(self.module, None, self.behind_module, always=False))
            if self.generator is not None:
                stack.enter_context(CacheMarks(self.generator, self._note).noted())
            yield

    def behind_module(self, *_: object) -> None:
        """End the forward of a module."""
        # The profiler sees no mark of another thread.
        if threading.get_ident() == self.thread:
            self._look_for_gone()

    def saved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note a save of autograd; return the tensor to save."""
        for part in unpacked((tensor,)):
            storage = part.untyped_storage()
            if storage.nbytes():
                saved = TensorType(dtype=str(part.dtype).removeprefix("torch."), shape=tuple(part.shape))
                self._mark(MarkKind.SAVED, {address_of(storage): storage.nbytes()}, saved)
        return saved_form(tensor)

    def _mark(self, kind: MarkKind, storages: Storages | None = None, tensor: TensorType | None = None) -> None:
        from torch._C._profiler import _RecordFunctionFast

        with _RecordFunctionFast(f"{MARK_RANGE}{len(self.marks)}"):
            self.marks.append(Mark(kind=kind, storages=storages or {}, tensor=tensor))

    def _look_for_gone(self) -> None:
        """Note the storages from before the step that are freed."""
        gone = {pointer: 0 for pointer, reference in self.references.items() if reference.expired()}
        if gone:
            self._mark(MarkKind.GONE, gone)
            self.references = {pointer: kept for pointer, kept in self.references.items() if pointer not in gone}

    def _storages(self, tensors: Any) -> Storages:
        return storages_of(tensors, self.device)

    def _note(self, kind: MarkKind, tensors: Iterable[torch.Tensor]) -> None:
        if threading.get_ident() == self.thread and (storages := self._storages(tensors)):
            self._mark(kind, storages)

    def _note_weights(self) -> None:
        """Note the weights and buffers, for those that the step itself allocated."""
        self._mark(MarkKind.WEIGHTS, self._storages(self.holders().parameters()))
        self._mark(MarkKind.BUFFERS, self._storages(self.holders().buffers()))

    def inputs(self, tensors: list[torch.Tensor]) -> None:
        """Note the outside inputs of a forward."""
        self._mark(MarkKind.INPUTS, self._storages(tensors))

    def after_forward(self, roots: tuple[torch.Tensor, ...]) -> None:
        """Note the storages that forward leaves."""
        self._look_for_gone()
        self._mark(MarkKind.OUTPUTS, self._storages(roots))
        self._note_weights()
        self._mark(MarkKind.AFTER_FORWARD)
        self.snapshots.take(AFTER_FORWARD)

    def after_backward(self) -> None:
        """Record the gradients of parameters, inputs, and leaves outside any module."""
        self._look_for_gone()
        self._mark(MarkKind.GRADIENTS, self._storages(self.holders().gradients()))
        self._mark(MarkKind.AFTER_BACKWARD)
        self.snapshots.take(AFTER_BACKWARD)

    def after_optimizer(self) -> None:
        """Note that the weights are updated."""
        self._look_for_gone()
        self._mark(MarkKind.AFTER_OPTIMIZER)
        self.snapshots.take(AFTER_OPTIMIZER)

    def end(self, *, broken: bool = False) -> None:
        """Note the storages at the end, or where the step broke."""
        self._look_for_gone()
        state, counters = self.holders().optimizer_tensors()
        if broken:
            self._mark(MarkKind.GRADIENTS, self._storages(self.holders().gradients()))
        self._note_weights()
        self._mark(MarkKind.OPTIMIZER_STATE, self._storages(state))
        self._mark(MarkKind.OPTIMIZER_STEP_COUNTERS, self._storages(counters))
        self._mark(MarkKind.BROKEN if broken else MarkKind.AFTER_STEP)


@contextmanager
def saved_tensor_hooks(pack: Any) -> Iterator[None]:
    """Make `pack` see autograd's saves inside the block."""
    import torch

    with torch.autograd.graph.saved_tensors_hooks(uncompiled(pack), uncompiled(lambda tensor: tensor)):
        yield


def observe_step(
    stepper: Stepper,
    module: torch.nn.Module,
    snapshots: Snapshots,
    *,
    compiled: bool = False,
    checkpointing: bool = False,
    hooked: bool = True,
    own: Collection[str] | None = None,
) -> ObservedStep:
    """Run one more step under the memory profiler; an error of the step comes with the observations.

    Compiled code runs without hooks, as does a model if `hooked` is false: there, storages that survive forward count
    as activations. With `own`, installed files that count as user code, it runs line by line.
    """
    stepper.free_gradients()

    def holders() -> Holders:
        return holders_of(stepper, module)

    profiler = MemoryProfiler(holders())
    observer = MemoryObserver(
        holders,
        stepper.device,
        snapshots,
        module=None if compiled else module,
        generator=stepper.generator,
        hooked=hooked and not compiled and not stepper.inference,
        references=profiler.earlier.references,
    )
    ranges: AbstractContextManager[Any] = nullcontext() if compiled else module_ranges(module)
    lines: AbstractContextManager[list[LineFrame]] = (
        nullcontext([]) if own is None else line_ranges(stepper.device, own)
    )
    outer, stepper.watch = stepper.watch, observer
    grown = profiler.start()
    try:
        with ranges, room_for(grown + _SLACK_BYTES), lines as frames:
            error, phase = _ran(stepper, observer)
    finally:
        stepper.watch = outer
        profiler.stop()

    settings = StepSettings(
        hooked=hooked and not compiled,
        autocast=stepper.amp is not None,
        checkpointing=checkpointing,
        rng_bytes=rng_bytes(stepper.device) if checkpointing else None,
        broken_in=None if error is None else phase,
        lines=tuple(frames),
    )
    return ObservedStep(observations=profiler.observations(observer.marks, settings), error=error)


def _ran(stepper: Stepper, observer: MemoryObserver) -> tuple[Exception | None, Phase]:
    """Run the step; return the error that broke it, and its phase."""
    try:
        stepper.run()
        observer.end()
    except Exception as error:
        phase = stepper.phase
        observer.end(broken=True)
        # The profiler needs memory to end: free the frames of the failure first.
        traceback.clear_frames(error.__traceback__)
        return error, phase
    return None, Phase.OTHER


def rng_bytes(device: str) -> int | None:
    """Return the size of the random state that checkpointing keeps, on the CPU."""
    import torch

    return torch.get_rng_state().numel() if device == "cpu" else None


class MemoryProfiler:
    """The profiler of the allocations of one step; `earlier` is the memory before it."""

    def __init__(self, holders: Holders) -> None:
        from torch.profiler import ProfilerActivity, profile

        self.device = holders.device
        # Frees by a later collection, before the first event or in the step, would not be work of the step.
        gc.collect()
        if self.device != "cpu":
            DeviceAllocator(self.device).reset_peak()
        self.earlier = before(holders)
        # Shapes carry the storages of the arguments, which tell casts of weights from other casts.
        self._profiler: Any = profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True)

    def start(self) -> int:
        """Start; return the bytes used by starting."""
        held = held_bytes() or 0
        with room_for(PROFILER_BYTES), kineto.listening(self.device):
            self._profiler.start()
            # Its threads allocate when they begin; without memory then, the C library ends the process.
            time.sleep(0.05)
        return max((held_bytes() or 0) - held, 0)

    def stop(self) -> None:
        """Stop it."""
        with room_for(PROFILER_BYTES), kineto.listening(self.device):
            self._profiler.stop()

    def observations(self, marks: Sequence[Mark], settings: StepSettings) -> StepObservations:
        """Return the observations, once it is stopped."""
        roots = self._profiler.profiler.kineto_results.experimental_event_tree()
        events = observed_events(roots, self.device, frozenset(self.earlier.storages["weights"]), marks)
        return observations_of(events, self.earlier, settings, self.device)


def observations_of(
    events: ObservedEvents,
    earlier: Before,
    settings: StepSettings,
    device: str,
    allocator: AllocatorObservation | None = None,
) -> StepObservations:
    """Return a step's observations, with its allocator's current figures unless given."""
    components = enumerate(earlier.storages.values())
    rows = [(index, address, size) for index, some in components for address, size in some.items()]
    component, address, size = zip(*rows, strict=True) if rows else ((), (), ())
    storages = StorageColumns(
        components=tuple(earlier.storages), component=packed(component), address=packed(address), bytes=packed(size)
    )
    blocks = None
    if earlier.blocks is not None:
        requested = [-1 if block.requested_bytes is None else block.requested_bytes for block in earlier.blocks]
        blocks = BlockColumns(
            address=packed([block.address for block in earlier.blocks]),
            bytes=packed([block.bytes for block in earlier.blocks]),
            requested_bytes=packed(requested),
        )
    return StepObservations(
        device=device,
        events=events.events,
        contexts=events.contexts,
        marks=events.marks,
        phases=events.phases,
        storages=storages,
        blocks=blocks,
        allocator=_allocator(events, earlier, device) if allocator is None else allocator,
        hooked=settings.hooked,
        autocast=settings.autocast,
        checkpointing=settings.checkpointing,
        rng_bytes=settings.rng_bytes,
        broken_in=settings.broken_in,
        lines=settings.lines,
    )


def why_not_kept(step: StepObservations) -> str | None:
    """Return why the observations of a step are not written into its trace; `None` if they are."""
    columns = (step.events, step.contexts, step.marks, step.storages, *(() if step.blocks is None else (step.blocks,)))
    fields = (getattr(part, name) for part in columns for name in part.__struct_fields__)
    size = sum(len(column) for column in fields if isinstance(column, bytes))
    if size <= _MAX_PACKED_BYTES:
        return None
    return (
        f"the step that traces memory makes more allocations than trace metadata can hold ({size / 1e6:.0f} MB), so"
        " what is live at its peak is unknown"
    )


def _allocator(events: ObservedEvents, earlier: Before, device: str) -> AllocatorObservation:
    """Return the allocator's figures; call it after the step, before the peak is reset."""
    if device == "cpu":
        return AllocatorObservation(name="torch's CPU allocator", backend=_OF_CPU)
    allocator = DeviceAllocator(device)
    silent = earlier.blocks is None or not events.allocations
    return AllocatorObservation(
        name=allocator_name(allocator),
        backend=allocator.backend,
        peak_bytes=allocator.peak_bytes(),
        reserved_peak_bytes=allocator.reserved_peak_bytes(),
        before_bytes=earlier.allocated_bytes,
        workspace_bytes=tuple(sorted(earlier.workspaces)),
        why_no_blocks=why_no_blocks(allocator) if silent else None,
    )
