"""What is allocated before the step that is looked at: known storages, and on a device all else in its allocator."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from opanatomy.capture.memory.allocator import AllocatedBlock, DeviceAllocator
from opanatomy.capture.memory.replay import (
    BUFFERS,
    HELD_BEFORE,
    INPUTS,
    OPTIMIZER_STATE,
    ROUNDING,
    STEP_COUNTERS,
    WEIGHTS,
    WORKSPACE,
    Held,
)
from opanatomy.capture.memory.storages import Storages, optimizer_tensors, storages_of, tensors_in, weakly
from opanatomy.capture.step.stepper import Stepper

if TYPE_CHECKING:
    import torch


class Before(Struct, frozen=True, kw_only=True):
    """What is there before a step: the storages of each component, and the blocks that hold them by address.

    On a device the blocks are all that its allocator has handed out, on the CPU one for each storage; there
    `references` tell whether a storage still lives, as the CPU's allocator does not report frees of blocks that it gave
    before it was profiled.
    """

    storages: dict[str, Storages]
    held: dict[int, Held]
    references: dict[int, Any] = field(default_factory=dict)
    #: What a device's allocator says that it has handed out; `None` on the CPU, and where it does not say.
    allocated_bytes: int | None = None
    #: Bytes of the storages that are in no block of the allocator: shared by another process, or someone's own memory.
    outside_bytes: int = 0
    #: Whether the blocks are those of the allocator.
    whole: bool = False

    @property
    def known(self) -> Storages:
        """All storages."""
        return {pointer: size for storages in self.storages.values() for pointer, size in storages.items()}

    @property
    def base(self) -> dict[str, int]:
        """The bytes of each component."""
        found: Counter[str] = Counter(dict.fromkeys(self.storages, 0))
        if self.whole:
            found.update(dict.fromkeys((WORKSPACE, ROUNDING, HELD_BEFORE), 0))
        for held in self.held.values():
            for component, size in held.parts:
                found[component] += size
        return dict(found)


def before(stepper: Stepper, module: torch.nn.Module) -> Before:
    """What is there now."""
    device = stepper.device
    tensors = _tensors(stepper, module)
    storages: dict[str, Storages] = {}
    seen: Storages = {}
    for component, some in tensors.items():
        mine = storages_of(some, device)
        storages[component] = {pointer: size for pointer, size in mine.items() if pointer not in seen}
        seen.update(mine)
    alone = {
        pointer: Held(parts=((component, size),))
        for component, some in storages.items()
        for pointer, size in some.items()
    }
    if device == "cpu":
        references = weakly([tensor for some in tensors.values() for tensor in some], device)
        return Before(storages=storages, held=alone, references=references)
    allocator = DeviceAllocator(device)
    blocks, allocated = allocator.blocks(), allocator.allocated_bytes()
    if blocks is None:
        return Before(storages=storages, held=alone, allocated_bytes=allocated)
    held, outside = held_blocks(blocks, storages, allocator.workspaces())
    return Before(storages=storages, held=held, allocated_bytes=allocated, outside_bytes=outside, whole=True)


def _tensors(stepper: Stepper, module: torch.nn.Module) -> dict[str, list[torch.Tensor]]:
    state, counters = optimizer_tensors(stepper.optimizer)
    return {
        WEIGHTS: list(module.parameters()), BUFFERS: list(module.buffers()), INPUTS: tensors_in(stepper.inputs),
        OPTIMIZER_STATE: state, STEP_COUNTERS: counters,
    }  # fmt: skip


def held_blocks(
    blocks: Sequence[AllocatedBlock], storages: Mapping[str, Storages], workspaces: frozenset[int]
) -> tuple[dict[int, Held], int]:
    """Each block, by its address, with what is in it; and the bytes of storages that are in none.

    What a block has beyond its storages is the allocator's rounding. One without a storage of ours is a workspace of a
    BLAS library where it was asked for in the size of one: nothing else tells them, torch has no names for blocks.
    """
    starts = [block.address for block in blocks]
    inside: dict[int, list[tuple[str, int]]] = {}
    outside = 0
    for component, some in storages.items():
        for pointer, size in some.items():
            place = bisect_right(starts, pointer) - 1
            if place < 0 or pointer >= starts[place] + blocks[place].bytes:
                outside += size
            else:
                inside.setdefault(place, []).append((component, size))
    held = {
        block.address: Held(parts=_parts(block, inside.get(place, ()), workspaces))
        for place, block in enumerate(blocks)
    }
    return held, outside


def _parts(
    block: AllocatedBlock, storages: Iterable[tuple[str, int]], workspaces: frozenset[int]
) -> tuple[tuple[str, int], ...]:
    """The components in a block; they sum to it, also where storages share memory."""
    found, left = [], block.bytes
    for component, size in storages:
        found.append((component, min(size, left)))
        left -= found[-1][1]
    if found:
        return (*found, (ROUNDING, left)) if left else tuple(found)
    asked = block.bytes if block.requested_bytes is None else block.requested_bytes
    return ((WORKSPACE if asked in workspaces else HELD_BEFORE, block.bytes),)
