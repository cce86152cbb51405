"""The memory of a run from what its capture observed: of one step allocation by allocation, or of storages alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from opanatomy.memory import components as named
from opanatomy.memory.activations import activations_of
from opanatomy.memory.components import COMPONENTS
from opanatomy.memory.curve import Curve, curve_of, points_of
from opanatomy.memory.events import CPU, agreement
from opanatomy.memory.groups import groups_at
from opanatomy.memory.held import held_of
from opanatomy.memory.measured import MeasuredStep, measured_step
from opanatomy.memory.outside import outside_the_allocator
from opanatomy.memory.step_table import table_of
from opanatomy.records.columns import Int64
from opanatomy.records.memory import (
    PEAK,
    WEIGHTS,
    AllocatorFigures,
    Memory,
    MemoryComponent,
    MemoryFailure,
    MemorySnapshot,
)
from opanatomy.records.memory_columns import MemoryTable
from opanatomy.records.memory_observations import MarkKind, MemoryObservations, StepObservations

_PLACES: Final = (
    MarkKind.AFTER_FORWARD, MarkKind.AFTER_BACKWARD, MarkKind.AFTER_OPTIMIZER, MarkKind.AFTER_STEP, MarkKind.BROKEN,
)  # fmt: skip


def memory_of_observations(observations: MemoryObservations) -> Memory:
    """The memory of the step that was looked at in depth, else of the storages as they stood after one; with the
    snapshots, what is no part of the allocated bytes, and what was not observed."""
    step = observations.step
    if step is None:
        memory = _of_storages(observations)
    elif step.allocator.why_no_blocks is None:
        memory = _of_step(step, observations.snapshots)
    else:
        memory = _without_blocks(step, observations)
    outside = outside_the_allocator(memory.snapshots)
    notes = (*observations.notes, *outside.notes, *memory.notes, *_elsewhere(observations))
    memory = replace(memory, components=(*memory.components, *outside.components), notes=notes)
    return replace(
        memory, process_peak_bytes=observations.peak_bytes if observations.device == CPU else None,
        uncovered_devices=observations.other_devices, shape=observations.shape,
        failure=_failure(observations, memory),
    )  # fmt: skip


def _elsewhere(observations: MemoryObservations) -> list[str]:
    """The note on a module that lies on several devices."""
    others = ", ".join(observations.other_devices)
    return [f"parts of the module are on {others}: the memory is that of {observations.device} alone"] if others else []


def _failure(observations: MemoryObservations, memory: Memory) -> MemoryFailure | None:
    """The failure, with what was allocated then where that was seen."""
    failure = observations.failure
    if failure is None or not failure.seen:
        return failure
    return replace(failure, allocated_bytes=memory.peak_bytes)


# ------------------------------------------------------------------------------------------------------- storages alone


def _of_storages(observations: MemoryObservations) -> Memory:
    rows = (MemoryComponent(component=name, measured_bytes=size) for name, size in observations.storage_bytes.items())
    return Memory(
        peak_bytes=observations.peak_bytes, measured_by=observations.measured_by, components=tuple(rows),
        allocator_peak_bytes=None if observations.device == CPU else observations.peak_bytes,
        snapshots=observations.snapshots,
    )  # fmt: skip


def _without_blocks(step: StepObservations, observations: MemoryObservations) -> Memory:
    """What is known besides the blocks of a step, which its allocator does not tell: the storages after one, else those
    before it and the allocator's own peak."""
    held = held_of(step)
    figures = _figures(step, measured_step(step, table_of(step), held))
    notes = tuple(note for note in (step.allocator.why_no_blocks,) if note)
    if observations.storage_bytes:
        return replace(_of_storages(observations), allocator=figures, notes=notes)
    sizes = ((name, held.component_bytes(name)) for name in COMPONENTS)
    return Memory(
        peak_bytes=figures.peak_bytes,
        allocator_peak_bytes=figures.peak_bytes,
        measured_by=f"{step.allocator.name} of {step.device}, its own peak",
        components=tuple(MemoryComponent(component=name, measured_bytes=size) for name, size in sizes if size),
        allocator=figures,
        snapshots=(*observations.snapshots, MemorySnapshot(name=PEAK, allocated_bytes=figures.peak_bytes)),
        notes=(*notes, *_outside_note(held.outside_bytes, step.device)),
    )


def _outside_note(size: int, device: str) -> list[str]:
    if not size:
        return []
    return [
        f"{size:,} B of the model, its state and inputs are not from the allocator of {device} (another process's, or a"
        " library's own) and in none of the components"
    ]


# --------------------------------------------------------------------------------------------- allocation by allocation


def _of_step(step: StepObservations, snapshots: Sequence[MemorySnapshot]) -> Memory:
    """The memory of the step; of a step that broke, the moment at which it did stands for the peak."""
    table, held = table_of(step), held_of(step)
    measured = measured_step(step, table, held)
    curve = curve_of(measured.blocks, measured.shares(), table.events.time_ns, _window(table))
    if step.broken_in is not None:
        curve = replace(curve, peak=_broken_at(measured))
    peak = curve.peak
    blocks, unlisted = groups_at(
        measured.blocks, peak, measured.operator, measured.module, measured.phase, measured.component_at(peak),
        [(component, None) for component in COMPONENTS],
    )  # fmt: skip
    timeline = points_of(curve, table.events.total_reserved, measured.passes) if measured.blocks.events else ()
    memory = Memory(
        peak_bytes=int(curve.allocated[peak]),
        allocator_peak_bytes=int(curve.allocated[peak]),
        peak_at=curve.phase_at(peak, measured.passes),
        measured_by=_measured_by(step),
        components=_components(measured, curve),
        timeline=timeline,
        blocks=blocks,
        unlisted_bytes=unlisted,
        activations=activations_of(measured, step.marks.tensors),
        allocator=_figures(step, measured),
        notes=(*_unseen_note(measured), *_outside_note(held.outside_bytes, step.device)),
    )
    return replace(memory, snapshots=_snapshots(snapshots, measured, curve, memory))


def _window(table: MemoryTable) -> tuple[int, int]:
    """From the first phase or event to the last event."""
    times = table.events.time_ns
    begins = [*(begin for begin, _, _ in table.spans), *(times[:1].tolist())]
    return min(begins, default=0), int(times[-1]) if len(times) else 0


def _broken_at(measured: MeasuredStep) -> int:
    """The state after the last allocation before the step broke; what was freed since was freed on the way out."""
    broken = measured.place_of(MarkKind.BROKEN)
    end = measured.blocks.events if broken is None else broken
    given = measured.blocks.alloc[measured.blocks.alloc < end]
    return int(given.max(initial=-1)) + 1


def _measured_by(step: StepObservations) -> str:
    if step.device == CPU:
        return "torch's CPU allocator, every allocation of one step, over the weights, state and inputs before it"
    return f"{step.allocator.name} of {step.device}, every allocation of one step"


def _unseen_note(measured: MeasuredStep) -> list[str]:
    size = measured.labels.unseen_saved_bytes
    return (
        [f"{size:,} B that autograd saved were allocated before the step and are in none of its components"]
        if size
        else []
    )


def _components(measured: MeasuredStep, curve: Curve) -> tuple[MemoryComponent, ...]:
    """Each component at its fullest and at the peak; those at the peak sum to it."""
    after_forward = measured.after_forward
    rows = []
    for component, states in zip(curve.components, curve.by_component, strict=True):
        size = int(states.max())
        if component == named.TEMPORARY:
            size = int(states[curve.peak])
        elif component in named.OF_FORWARD and after_forward is not None:
            size = int(states[after_forward + 1])
        if size or states.any():
            at_peak = int(states[curve.peak])
            rows.append(MemoryComponent(component=component, measured_bytes=size, at_peak_bytes=at_peak))
    return tuple(rows)


def _snapshots(
    snapshots: Sequence[MemorySnapshot], measured: MeasuredStep, curve: Curve, memory: Memory
) -> tuple[MemorySnapshot, ...]:
    """The snapshots, on the CPU with what the step's allocations say of the allocator, and the peak as the last."""
    places = {str(kind): measured.place_of(kind) for kind in _PLACES}
    allocated = {name: int(curve.allocated[place + 1]) for name, place in places.items() if place is not None}
    allocated[WEIGHTS] = sum(measured.held.component_bytes(name) for name in (named.WEIGHTS, named.BUFFERS))
    peak = next((point for point in memory.timeline if point.allocated_bytes == memory.peak_bytes), None)
    reserved = None if peak is None else peak.reserved_bytes
    return (
        *(
            snapshot if snapshot.allocated_bytes is not None
            else replace(snapshot, allocated_bytes=allocated.get(snapshot.name, 0))
            for snapshot in snapshots
        ),
        MemorySnapshot(name=PEAK, allocated_bytes=memory.peak_bytes, reserved_bytes=reserved),
    )  # fmt: skip


# --------------------------------------------------------------------------------------------- what the allocator says


def _figures(step: StepObservations, measured: MeasuredStep) -> AllocatorFigures:
    """What the allocator says of the step, against what the blocks sum to at each event."""
    allocator, held, blocks = step.allocator, measured.held, measured.blocks
    before = int(held.bytes.sum()) if held.whole else None
    agreed = agreement(measured.table.events.total_allocated, _counted(measured), before)
    return AllocatorFigures(
        device=step.device,
        backend=allocator.backend,
        peak_bytes=allocator.peak_bytes,
        reserved_peak_bytes=allocator.reserved_peak_bytes,
        before_bytes=allocator.before_bytes,
        before_blocks_bytes=before,
        checked_events=agreed.checked,
        equal_events=agreed.equal,
        largest_difference_bytes=agreed.largest_difference_bytes,
        at_largest_difference=agreed.at_largest_difference,
        unseen_frees=int((blocks.unseen & ~blocks.from_before).sum()),
    )


def _counted(measured: MeasuredStep) -> Int64:
    """What the allocator should count after each event, from 0 before the first.

    Frees of blocks from before the step are in the total of the CPU's allocator only where it reported them, and as it
    did: with the bytes that it gave at their address when it was profiled last.
    """
    blocks, size = measured.blocks, measured.blocks.bytes
    counted = np.flatnonzero(~blocks.from_before | measured.held.whole | measured.reported)
    if not measured.held.whole:
        reported = -np.append(measured.table.events.bytes, 0)[blocks.free]
        size = np.where(blocks.from_before & measured.reported, reported, size)
    changes = blocks.changes(counted, size[counted])
    changes[0] = 0
    changes[blocks.unmatched + 1] -= blocks.unmatched_bytes
    return changes.cumsum()[1:]
