"""What is allocated before the step that is looked at: known storages, and on a device all else in its allocator."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from opanatomy.errors import TraceError
from opanatomy.memory.components import COMPONENTS, HELD_BEFORE, ROUNDING, WORKSPACE
from opanatomy.records.columns import Int64
from opanatomy.records.memory_observations import BlockColumns, StepObservations, StorageColumns
from opanatomy.records.packed import unpacked

_ROUNDING, _WORKSPACE, _HELD_BEFORE = (COMPONENTS.index(name) for name in (ROUNDING, WORKSPACE, HELD_BEFORE))


class Held(Struct, frozen=True, kw_only=True):
    """The blocks from before a step by address, and their parts: the component and the bytes of each.

    On a device the blocks are all that its allocator has handed out (`whole`), on the CPU one for each storage.
    """

    address: Int64
    bytes: Int64
    part_block: Int64
    part_component: Int64
    part_bytes: Int64
    #: The addresses of the storages, whichever block holds them.
    storages: Int64
    #: Bytes of the storages that are in no block of the allocator: shared by another process, or someone's own memory.
    outside_bytes: int = 0
    whole: bool = False

    def component_bytes(self, component: str) -> int:
        """What a component has in them."""
        return int(self.part_bytes[self.part_component == COMPONENTS.index(component)].sum())


class _Storages(Struct, frozen=True, kw_only=True):
    component: Int64
    address: Int64
    bytes: Int64


def held_of(step: StepObservations) -> Held:
    """What a step found allocated; `TraceError` where the columns do not fit each other."""
    try:
        return _held(step)
    except (ValueError, IndexError) as error:
        raise TraceError(f"the trace's own record of the memory step cannot be used: {error}") from error


def _held(step: StepObservations) -> Held:
    storages = _storages(step.storages)
    if step.blocks is None:
        return Held(
            address=storages.address, bytes=storages.bytes, part_block=np.arange(len(storages.address)),
            part_component=storages.component, part_bytes=storages.bytes, storages=storages.address,
        )  # fmt: skip
    return _in_blocks(storages, step.blocks, frozenset(step.allocator.workspace_bytes))


def _storages(columns: StorageColumns) -> _Storages:
    """The storages, those at one address once: of the first component."""
    places = np.array([COMPONENTS.index(name) for name in columns.components], dtype=np.int64)
    component, address, size = (unpacked(column) for column in (columns.component, columns.address, columns.bytes))
    if not len(component) == len(address) == len(size) or component.min(initial=0) < 0 or size.min(initial=0) < 0:
        raise ValueError("the storages before the step")
    component = places[component]
    order = np.lexsort((np.arange(len(address)), address))
    first = np.sort(order[np.append(True, np.diff(address[order]) != 0)]) if len(order) else order
    return _Storages(component=component[first], address=address[first], bytes=size[first])


def _in_blocks(storages: _Storages, columns: BlockColumns, workspaces: frozenset[int]) -> Held:
    """Each block with what is in it, and the bytes of storages that are in none.

    What a block has beyond its storages is the allocator's rounding. One without a storage of ours is a workspace of a
    BLAS library where its requested size is that of one: nothing else identifies them, torch has no names for blocks.
    """
    address, size, requested = (
        unpacked(column) for column in (columns.address, columns.bytes, columns.requested_bytes)
    )
    if not len(address) == len(size) == len(requested) or (np.diff(address) < 0).any() or size.min(initial=0) < 0:
        raise ValueError("the blocks before the step")
    block = np.searchsorted(address, storages.address, side="right") - 1
    ends = np.append(address + size, np.iinfo(np.int64).min)
    inside = (block >= 0) & (storages.address < ends[block])
    left = size.copy()
    parts: list[tuple[int, int, int]] = []
    for place, component, wanted in zip(
        block[inside].tolist(), storages.component[inside].tolist(), storages.bytes[inside].tolist(), strict=True
    ):  # storages may share memory: their parts sum to the block
        part = min(wanted, int(left[place]))
        parts.append((place, component, part))
        left[place] -= part
    empty = np.ones(len(address), dtype=bool)
    empty[block[inside]] = False
    asked = np.where(requested < 0, size, requested)
    of_library = np.array([bytes_ in workspaces for bytes_ in asked.tolist()], dtype=bool)
    rest = np.where(~empty, _ROUNDING, np.where(of_library, _WORKSPACE, _HELD_BEFORE))
    parts += [part for part in zip(range(len(address)), rest.tolist(), left.tolist(), strict=True) if part[2]]
    columns_ = np.array(parts, dtype=np.int64).reshape(-1, 3).T
    return Held(
        address=address, bytes=size, part_block=columns_[0], part_component=columns_[1], part_bytes=columns_[2],
        storages=storages.address, outside_bytes=int(storages.bytes[~inside].sum()), whole=True,
    )  # fmt: skip
