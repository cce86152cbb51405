"""Allocations and marks of a step -> blocks, each with the component it belongs to, and the bytes of each over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from msgspec import Struct

from opanatomy.capture.memory.events import Around, Change, EventTree, Mark
from opanatomy.capture.memory.storages import Storages
from opanatomy.records.taxonomy import Phase

WEIGHTS: Final = "weights"
BUFFERS: Final = "buffers"
INPUTS: Final = "inputs"
GRADIENTS: Final = "gradients"
OPTIMIZER_STATE: Final = "optimizer_state"
STEP_COUNTERS: Final = "optimizer_step_counters"
ACTIVATIONS: Final = "forward_activations"
WEIGHT_CASTS: Final = "autocast_weight_casts"
RNG_STATES: Final = "rng_states"
CHECKPOINT_ARGUMENTS: Final = "checkpoint_arguments"
RECOMPUTED: Final = "recomputed_activations"
OUTPUTS: Final = "outputs"
HELD_BY_MODEL: Final = "held_by_model"
WORKSPACE: Final = "blas_workspace"
HELD_BEFORE: Final = "held_before"
ROUNDING: Final = "allocator_rounding"
TEMPORARY: Final = "temporary_buffers"
#: The components in the order in which they are stacked and listed; they sum to what is allocated.
COMPONENTS: Final = (
    WEIGHTS, BUFFERS, INPUTS, GRADIENTS, OPTIMIZER_STATE, STEP_COUNTERS, ACTIVATIONS, WEIGHT_CASTS, RNG_STATES,
    CHECKPOINT_ARGUMENTS, RECOMPUTED, OUTPUTS, HELD_BY_MODEL, WORKSPACE, HELD_BEFORE, ROUNDING, TEMPORARY,
)  # fmt: skip


class Noted(Struct, frozen=True, kw_only=True):
    """What a mark stands for: storages, and what they are (`saved`, or one of the components)."""

    what: str
    storages: Storages
    shape: tuple[int, ...] = ()
    dtype: str = ""


#: What marks stand for beside components: saved for backward, and freed without a word since the mark before.
SAVED: Final = "saved"
GONE: Final = "gone"
AFTER_FORWARD, AFTER_BACKWARD, AFTER_OPTIMIZER = "after_forward", "after_backward", "after_optimizer"
AFTER_STEP, BROKEN = "after_step", "broken"
PLACES: Final = (AFTER_FORWARD, AFTER_BACKWARD, AFTER_OPTIMIZER, AFTER_STEP, BROKEN)
#: A number in an expression (`0.5 * x`) is a tensor of this many bytes at most, which autograd hides from hooks.
_NUMBER_BYTES: Final = 16


@dataclass(slots=True, kw_only=True)
class Block:
    """One allocation of the step. It lives from its `begin`th moment to its `end`th (`None`: longer than the step)."""

    bytes: int
    begin: int
    around: Around
    phase: Phase
    end: int | None = None
    end_ns: int | None = None
    #: The bytes of the storage in it, where a mark told.
    storage_bytes: int | None = None
    role: str | None = None
    saved_by: set[str] = field(default_factory=set)
    module: str | None = None
    shape: tuple[int, ...] = ()
    dtype: str = ""
    lived_through_forward: bool = False
    component: str = TEMPORARY

    @property
    def own_bytes(self) -> int:
        """The bytes that its component counts; the rest is the allocator's rounding."""
        return self.bytes if self.storage_bytes is None else min(self.storage_bytes, self.bytes)


@dataclass(slots=True, kw_only=True)
class Held:
    """A block from before the step: the bytes of each component in it. It is freed at the `end`th moment, if at all."""

    parts: tuple[tuple[str, int], ...]
    end: int | None = None
    #: Whether the allocator told of that: the CPU's does not of what it gave before it was profiled.
    reported: bool = False

    @property
    def bytes(self) -> int:
        """All of it."""
        return sum(size for _, size in self.parts)


@dataclass(slots=True, kw_only=True)
class Replay:
    """The blocks of a step, those from before it by address, and the places of its marks among the moments."""

    tree: EventTree
    blocks: list[Block] = field(default_factory=list)
    held: dict[int, Held] = field(default_factory=dict)
    #: Blocks whose address was given again without a free between.
    unseen_frees: int = 0
    #: Frees of blocks of which nothing is known: places and bytes.
    unknown_frees: list[tuple[int, int]] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    #: Storages saved for backward that were neither allocated in the step nor known before it.
    unseen_saved: Storages = field(default_factory=dict)


class Setting(Struct, frozen=True, kw_only=True):
    """What decides about components beside marks. Without hooks on saved tensors (`hooked`) what lives through
    forward is an activation; `rng_bytes` is the size of a random state that checkpointing keeps."""

    hooked: bool = True
    autocast: bool = False
    checkpointing: bool = False
    rng_bytes: int | None = None


def replay(
    tree: EventTree, notes: Sequence[Noted], known: Storages, setting: Setting, held: dict[int, Held] | None = None
) -> Replay:
    """Pair allocations with frees by address and give each block its component.

    `known` storages precede the step, in the blocks `held` by their address: these may be freed in it.
    """
    found = Replay(tree=tree, held=held or {})
    live: dict[int, Block] = {}
    for place, moment in enumerate(tree.moments):
        if isinstance(moment, Mark):
            _note(found, notes[moment.number], moment, place, live, known)
        elif moment.bytes > 0:
            _ended(found, live, moment, place)
            phase = moment.around.phase or tree.phase_at(moment.time_ns)
            block = Block(bytes=moment.bytes, begin=place, around=moment.around, phase=phase)
            block.module = moment.around.module
            if block.module is None and moment.around.sequence is not None:
                block.module = tree.module_of_sequence.get(moment.around.sequence)
            live[moment.pointer] = block
            found.blocks.append(block)
        elif not _ended(found, live, moment, place):
            found.unknown_frees.append((place, -moment.bytes))
    for block in found.blocks:
        block.component = _component(block, setting)
    return found


def _ended(found: Replay, live: dict[int, Block], change: Change, place: int) -> bool:
    """Let the block at the address end here, by a free of it or by being given again; whether there was one."""
    told = change.bytes < 0
    if (block := live.pop(change.pointer, None)) is not None:
        block.end, block.end_ns = place, change.time_ns
        found.unseen_frees += not told
        return True
    held = found.held.get(change.pointer)
    if held is None or held.end is not None:
        return False
    held.end, held.reported = place, told
    return True


def _note(found: Replay, note: Noted, mark: Mark, place: int, live: dict[int, Block], known: Storages) -> None:
    """Tell the live blocks what the mark says of them."""
    for pointer in note.storages if note.what == GONE else ():
        if found.held[pointer].end is None:
            found.held[pointer].end = place
    for pointer, size in note.storages.items() if note.what != GONE else ():
        block = live.get(pointer)
        if block is None:
            if note.what == SAVED and pointer not in known:
                found.unseen_saved[pointer] = size
            continue
        block.storage_bytes = size
        if note.what == SAVED:
            block.role = block.role or SAVED
            block.saved_by.add(mark.around.operator or "")
            if not block.shape or not block.dtype:
                block.shape, block.dtype = note.shape, note.dtype
        else:
            # A weight or buffer that forward made anew is none of the activations, also where it is saved.
            block.role = note.what if block.role != SAVED or note.what in (WEIGHTS, BUFFERS) else SAVED
    if note.what == AFTER_FORWARD:
        for block in live.values():
            block.lived_through_forward = True
    if note.what in PLACES:
        found.places[note.what] = place


def _component(block: Block, setting: Setting) -> str:
    """The first that holds."""
    in_forward = block.phase is Phase.FORWARD
    if in_forward and setting.autocast and block.around.casts_weight:
        return WEIGHT_CASTS
    if block.role == SAVED:
        return ACTIVATIONS
    if block.role is not None:
        return block.role
    if block.lived_through_forward:
        return _kept(block, setting)
    until = block.around.recomputed_until
    if until is not None and (block.end_ns is None or block.end_ns > until):
        return RECOMPUTED
    return TEMPORARY


def _kept(block: Block, setting: Setting) -> str:
    """What of a block that no hook saw but that lives through forward."""
    nameless = block.around.operator is None
    if nameless and block.bytes == setting.rng_bytes:
        return RNG_STATES
    if not setting.hooked or (nameless and (block.storage_bytes or block.bytes) <= _NUMBER_BYTES):
        return ACTIVATIONS
    # Tensors that a checkpointed segment gets by keyword are held by Python until its node of the graph is freed.
    return CHECKPOINT_ARGUMENTS if setting.checkpointing and block.end is not None else HELD_BY_MODEL


def bytes_over_time(found: Replay, base: dict[str, int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The bytes of each component (a row each) before the first moment and after each.

    A free of what nobody knows is one of a block held before where all of the allocator is in `base`, as on a device.
    """
    states = np.zeros((len(COMPONENTS), len(found.tree.moments) + 1), dtype=np.int64)
    states[:, 0] = [base.get(component, 0) for component in COMPONENTS]
    rounding = COMPONENTS.index(ROUNDING)
    for block in found.blocks:
        row = COMPONENTS.index(block.component)
        for place, sign in ((block.begin, 1), (block.end, -1)):
            if place is not None:
                states[row, place + 1] += sign * block.own_bytes
                states[rounding, place + 1] += sign * (block.bytes - block.own_bytes)
    for held in found.held.values():
        for component, size in held.parts if held.end is not None else ():
            states[COMPONENTS.index(component), (held.end or 0) + 1] -= size
    for place, size in found.unknown_frees if HELD_BEFORE in base else ():
        states[COMPONENTS.index(HELD_BEFORE), place + 1] -= size
    return states.cumsum(axis=1)
