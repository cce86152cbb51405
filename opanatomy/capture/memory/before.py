"""What is allocated before the step that is looked at: known storages, and on a device the blocks of its allocator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from opanatomy.capture.memory.allocator import AllocatedBlock, DeviceAllocator
from opanatomy.capture.memory.holders import Holders
from opanatomy.capture.memory.storages import Storages, storages_of, weakly
from opanatomy.records.memory_observations import BlockColumns, StorageColumns
from opanatomy.records.packed import packed

if TYPE_CHECKING:
    import torch


class Before(Struct, frozen=True, kw_only=True):
    """What is there before a step: the storages of each component, and on a device the blocks of its allocator.

    On the CPU `references` tell whether a storage still lives, as its allocator does not report frees of blocks that it
    gave before it was profiled.
    """

    storages: dict[str, Storages]
    references: dict[int, Any] = field(default_factory=dict)
    #: `None` on the CPU, and where the allocator does not tell them.
    blocks: tuple[AllocatedBlock, ...] | None = None
    #: What a device's allocator says that it has handed out; `None` on the CPU, and where it does not say.
    allocated_bytes: int | None = None
    workspaces: frozenset[int] = frozenset()


def before(holders: Holders) -> Before:
    """What is there now."""
    device = holders.device
    tensors = components_before(holders)
    storages = {component: storages_of(some, device) for component, some in tensors.items()}
    if device == "cpu":
        references = weakly([tensor for some in tensors.values() for tensor in some], device)
        return Before(storages=storages, references=references)
    allocator = DeviceAllocator(device)
    blocks = allocator.blocks()
    return Before(
        storages=storages, blocks=blocks, allocated_bytes=allocator.allocated_bytes(),
        workspaces=frozenset() if blocks is None else allocator.workspaces(),
    )  # fmt: skip


def components_before(holders: Holders) -> dict[str, list[torch.Tensor]]:
    """The tensors of each component that are there before a step."""
    state, counters = holders.optimizer_tensors()
    return {
        "weights": holders.parameters(), "buffers": holders.buffers(), "inputs": holders.input_tensors(),
        "gradients": holders.gradients(), "optimizer_state": state, "optimizer_step_counters": counters,
    }  # fmt: skip


def storage_columns(storages: dict[str, Storages]) -> StorageColumns:
    """The storages of each component as columns."""
    rows = [
        (place, address, size)
        for place, some in enumerate(storages.values())
        for address, size in some.items()
    ]  # fmt: skip
    component, address, size = zip(*rows, strict=True) if rows else ((), (), ())
    return StorageColumns(
        components=tuple(storages), component=packed(component), address=packed(address), bytes=packed(size)
    )  # fmt: skip


def block_columns(blocks: Sequence[AllocatedBlock]) -> BlockColumns:
    """The blocks as columns."""
    return BlockColumns(
        address=packed([block.address for block in blocks]),
        bytes=packed([block.bytes for block in blocks]),
        requested_bytes=packed([-1 if block.requested_bytes is None else block.requested_bytes for block in blocks]),
    )
