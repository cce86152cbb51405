"""An observed step -> the record of its memory: components, peak, curve, what is live there, activations."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from opanatomy.capture.memory.allocator import DeviceAllocator, allocator_name
from opanatomy.capture.memory.events import EventTree
from opanatomy.capture.memory.outside import outside_the_allocator
from opanatomy.capture.memory.replay import (
    ACTIVATIONS,
    AFTER_FORWARD,
    BROKEN,
    BUFFERS,
    CHECKPOINT_ARGUMENTS,
    COMPONENTS,
    HELD_BY_MODEL,
    PLACES,
    RNG_STATES,
    TEMPORARY,
    WEIGHT_CASTS,
    WEIGHTS,
    Block,
    Replay,
    bytes_over_time,
)
from opanatomy.capture.memory.snapshots import PEAK, Snapshots
from opanatomy.capture.memory.step import Observed
from opanatomy.records.memory import (
    Memory,
    MemoryBlocks,
    MemoryComponent,
    MemoryPoint,
    MemorySnapshot,
    SavedActivations,
)
from opanatomy.records.taxonomy import Phase

States = np.ndarray[Any, np.dtype[np.int64]]
#: Of each of so many parts of the step the highest and the lowest point are kept.
_PARTS: Final = 98
#: How many groups of blocks, and of activations, are listed.
_LISTED: Final = 100
#: Components that are complete when forward is done, and from then on are freed.
_OF_FORWARD: Final = (ACTIVATIONS, WEIGHT_CASTS, RNG_STATES, CHECKPOINT_ARGUMENTS, HELD_BY_MODEL)


def record_of(observed: Observed) -> Memory:
    """The memory of the step; of a step that broke, the moment at which it did stands for the peak."""
    found = observed.found
    if observed.unknown is not None:
        return _without_blocks(observed)
    states = bytes_over_time(found, observed.base)
    allocated = states.sum(axis=0)
    peak = int(allocated.argmax()) if observed.error is None else _broke_at(found)
    blocks, unlisted = _blocks_at(found, peak)
    return Memory(
        peak_bytes=int(allocated[peak]),
        peak_at=_phase_after(found.tree, peak),
        measured_by=_measured_by(observed.device),
        components=_components(found, states, peak),
        timeline=_points(found.tree, states, allocated, peak),
        blocks=blocks,
        unlisted_bytes=unlisted,
        activations=_activations(found),
        allocator=observed.figures,
        uncovered_devices=observed.uncovered_devices,
    )


def _without_blocks(observed: Observed) -> Memory:
    """What the storages before the step and the allocator's own peak say, where it tells no blocks."""
    rows = (MemoryComponent(component=name, measured_bytes=size) for name, size in observed.base.items() if size)
    return Memory(
        peak_bytes=observed.figures.peak_bytes,
        measured_by=f"{allocator_name(DeviceAllocator(observed.device))} of {observed.device}, its own peak",
        components=tuple(rows),
        allocator=observed.figures,
        uncovered_devices=observed.uncovered_devices,
    )


def measured_memory(observed: Observed, snapshots: Snapshots) -> Memory:
    """`record_of` with the check points, and with what is no part of the allocated bytes."""
    memory = record_of(observed)
    points = check_points_of(observed, snapshots.taken, memory)
    outside = outside_the_allocator(points)
    return replace(
        memory,
        components=(*memory.components, *outside.components),
        snapshots=points,
        notes=(*snapshots.notes, *outside.notes, *_notes(observed)),
    )


def _notes(observed: Observed) -> list[str]:
    """What the figures leave out."""
    notes = [] if observed.unknown is None else [observed.unknown]
    if observed.found.unseen_saved and observed.unknown is None:
        size = sum(observed.found.unseen_saved.values())
        notes.append(f"{size:,} B that autograd saved were allocated before the step and are none of its components")
    if observed.outside_bytes:
        notes.append(
            f"{observed.outside_bytes:,} B of the model, its state and inputs are none of the allocator of"
            f" {observed.device} (another process's, or a library's own) and none of the components"
        )
    return [*notes, *uncovered(observed.uncovered_devices, observed.device)]


def uncovered(devices: Sequence[str], device: str) -> list[str]:
    """The note on a module that lies on several devices."""
    if not devices:
        return []
    return [f"parts of the module are on {', '.join(devices)}: the memory is that of {device} alone"]


def _measured_by(device: str) -> str:
    if device == "cpu":
        return "torch's CPU allocator, every allocation of one step, over the weights, state and inputs before it"
    return f"{allocator_name(DeviceAllocator(device))} of {device}, every allocation of one step"


def check_points_of(observed: Observed, taken: Sequence[MemorySnapshot], memory: Memory) -> tuple[MemorySnapshot, ...]:
    """The check points, on the CPU with what the step's allocations say of the allocator, and the peak as the last."""
    found = observed.found
    if observed.unknown is not None:
        return (*taken, MemorySnapshot(name=PEAK, allocated_bytes=memory.peak_bytes))
    allocated = bytes_over_time(found, observed.base).sum(axis=0)
    at = {name: int(allocated[place + 1]) for name, place in found.places.items() if name in PLACES}
    at[WEIGHTS] = observed.base.get(WEIGHTS, 0) + observed.base.get(BUFFERS, 0)
    peak = next((row for row in memory.timeline if row.allocated_bytes == memory.peak_bytes), None)
    points = [
        point if point.allocated_bytes is not None else replace(point, allocated_bytes=at.get(point.name, 0))
        for point in taken
    ]
    reserved = None if peak is None else peak.reserved_bytes
    return (*points, MemorySnapshot(name=PEAK, allocated_bytes=memory.peak_bytes, reserved_bytes=reserved))


def _broke_at(found: Replay) -> int:
    """The state after the last allocation before the step broke; what was freed since was freed on the way out."""
    end = found.places.get(BROKEN, len(found.tree.moments))
    return max((block.begin + 1 for block in found.blocks if block.begin < end), default=0)


def _phase_after(tree: EventTree, place: int) -> Phase:
    if not tree.moments:
        return Phase.OTHER
    moment = tree.moments[max(place - 1, 0)]
    return moment.around.phase or tree.phase_at(moment.time_ns)


def _components(found: Replay, states: States, peak: int) -> tuple[MemoryComponent, ...]:
    """Each component at its fullest and at the peak; those at the peak sum to it."""
    after_forward = found.places.get(AFTER_FORWARD)
    rows = []
    for place, component in enumerate(COMPONENTS):
        size = int(states[place].max())
        if component == TEMPORARY:
            size = int(states[place, peak])
        elif component in _OF_FORWARD and after_forward is not None:
            size = int(states[place, after_forward + 1])
        if size or states[place].any():
            at_peak = int(states[place, peak])
            rows.append(MemoryComponent(component=component, measured_bytes=size, at_peak_bytes=at_peak))
    return tuple(rows)


def _points(tree: EventTree, states: States, allocated: States, peak: int) -> tuple[MemoryPoint, ...]:
    """The curve in some two hundred points, the first, the last and the peak among them."""
    if not tree.moments:
        return ()
    times = np.array([tree.moments[0].time_ns, *(moment.time_ns for moment in tree.moments)], dtype=np.int64)
    start = min([int(times[0]), *(begin for begin, _, _ in tree.spans)])
    part = (times - start) // ((int(times[-1]) - start) // _PARTS + 1)
    chosen = {0, peak, len(times) - 1}
    for level in (-allocated, allocated):
        order = np.lexsort((np.arange(len(times)), level, part))
        first = np.append(True, np.diff(part[order]) != 0)
        chosen.update(order[first].tolist())
    used = [place for place in range(len(COMPONENTS)) if states[place].any()]
    return tuple(
        MemoryPoint(
            time_ns=int(times[place]) - start,
            phase=_phase_after(tree, place),
            allocated_bytes=int(allocated[place]),
            reserved_bytes=getattr(tree.moments[max(place - 1, 0)], "reserved_bytes", None),
            components={COMPONENTS[row]: int(states[row, place]) for row in used},
        )
        for place in sorted(chosen)
    )


def _blocks_at(found: Replay, place: int) -> tuple[tuple[MemoryBlocks, ...], int]:
    """The blocks of the step that are live after so many moments, by what allocated them in like modules; the bytes of
    the rest."""
    groups: dict[tuple[str | None, str | None, Phase, str], list[int]] = defaultdict(list)
    for block in _live(found, place):
        module = None if block.module is None else alike(block.module)
        groups[block.around.operator, module, block.phase, block.component].append(block.bytes)
    rows = sorted(
        (
            MemoryBlocks(
                operator=operator, module=module, phase=phase, component=component,
                blocks=len(sizes), bytes=sum(sizes), largest_bytes=max(sizes),
            )
            for (operator, module, phase, component), sizes in groups.items()
        ),
        key=lambda row: -row.bytes,
    )  # fmt: skip
    return tuple(rows[:_LISTED]), sum(row.bytes for row in rows[_LISTED:])


def _live(found: Replay, place: int) -> list[Block]:
    return [block for block in found.blocks if block.begin < place and (block.end is None or block.end >= place)]


def _activations(found: Replay) -> tuple[SavedActivations, ...]:
    """What lives after forward for backward, by like modules, operator and shape, largest first."""
    after = found.places.get(AFTER_FORWARD)
    if after is None:
        return ()
    groups: dict[tuple[str, str | None, tuple[int, ...], str], list[Block]] = defaultdict(list)
    for block in _live(found, after + 1):
        if block.component in (ACTIVATIONS, WEIGHT_CASTS):
            groups[alike(block.module or ""), block.around.operator, block.shape, block.dtype].append(block)
    rows = [
        SavedActivations(
            module=module, operator=operator, shape=shape, dtype=dtype, blocks=len(blocks),
            bytes=sum(block.own_bytes for block in blocks), saved_by=_savers(blocks),
        )
        for (module, operator, shape, dtype), blocks in groups.items()
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.module))[:_LISTED])


def _savers(blocks: Sequence[Block]) -> tuple[str, ...]:
    return tuple(sorted({name for block in blocks for name in block.saved_by if name}))


def alike(path: str) -> str:
    """The path with `*` for each number: that of every like layer."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)
