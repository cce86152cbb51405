"""The blocks of a step that a capture looked at, each with the component that the marks and its context say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.memory import components as named
from opanatomy.memory.blocks import Blocks, blocks_of
from opanatomy.memory.components import COMPONENTS
from opanatomy.memory.copies import Copies, copies_of
from opanatomy.memory.curve import Shares
from opanatomy.memory.enclosing import wanting
from opanatomy.memory.held import Held
from opanatomy.memory.passes import Passes, passes_of_spans
from opanatomy.records.columns import Bool, Categorical, Int64
from opanatomy.records.memory_columns import MemoryTable, StepCalls
from opanatomy.records.memory_observations import MARK_KINDS, MarkKind, StepObservations
from opanatomy.records.taxonomy import FORWARD

#: A number in an expression (`0.5 * x`) is a tensor of this many bytes at most, which autograd hides from hooks.
_NUMBER_BYTES: Final = 16
_PLACE: Final = {name: place for place, name in enumerate(COMPONENTS)}
_KIND: Final = {kind: place for place, kind in enumerate(MARK_KINDS)}
#: The component of storages that a mark names; of what autograd saved it is the activations.
_COMPONENT_OF_KIND: Final = {
    **{kind: _PLACE[str(kind)] for kind in MARK_KINDS if str(kind) in _PLACE},
    MarkKind.SAVED: _PLACE[named.ACTIVATIONS],
    MarkKind.REORDERED_CACHE: _PLACE[named.KEY_VALUE_CACHE],
}
_NO_ROLE: Final = -1
_OF_FORWARD: Final = tuple(_PLACE[name] for name in named.OF_FORWARD)


class Labels(Struct, frozen=True, kw_only=True):
    """What the marks say of each block: its component (-1 none), the bytes of its storage, what saved it.

    `tensor` is the first shape and data type that was saved in it, -1 none.
    """

    component: Int64
    #: -1 where no mark says.
    storage_bytes: Int64
    tensor: Int64
    saved_by: Sequence[frozenset[str]]
    #: Bytes of storages saved for backward that were neither allocated in the step nor known before it.
    unseen_saved_bytes: int = 0


class MeasuredStep(Struct, frozen=True, kw_only=True):
    """The memory of a step: blocks (those from before first), and of each what allocated it and what it is."""

    table: MemoryTable
    held: Held
    blocks: Blocks
    labels: Labels
    passes: Passes
    operator: Categorical[str]
    module: Categorical[str]
    phase: Int64
    #: A place in `COMPONENTS`; of blocks from before their parts tell it.
    component: Int64
    #: Which blocks from before the allocator reported as freed.
    reported: Bool
    copies: Copies

    @property
    def own_bytes(self) -> Int64:
        """The bytes that the component of each block counts; the rest is the allocator's rounding."""
        storage = self.labels.storage_bytes
        return np.where(storage < 0, self.blocks.bytes, np.minimum(storage, self.blocks.bytes))

    def place_of(self, kind: MarkKind) -> int | None:
        """The last event that marks this place of the step."""
        assert self.table.marks is not None
        rows = self.table.marks.event[self.table.marks.kind == _KIND[kind]]
        return int(rows[-1]) if len(rows) else None

    def component_at(self, state: int) -> Int64:
        """The component of each block after that many events."""
        return np.where(self.copies.until >= state, self.copies.component, self.component)

    @property
    def after_forward(self) -> int | None:
        """The event at which forward is done; of several that at which most is kept for backward."""
        assert self.table.marks is not None
        ends = self.table.marks.event[self.table.marks.kind == _KIND[MarkKind.AFTER_FORWARD]].tolist()
        kept = np.where(np.isin(self.component, _OF_FORWARD), self.own_bytes, 0)
        return max(ends, key=lambda end: (int(kept[self.blocks.live_after(end + 1)].sum()), end), default=None)

    def shares(self) -> Shares:
        """The components of all blocks.

        Where all of the allocator was known before, a free of an unknown block is of one that was held before.
        """
        new = np.flatnonzero(~self.blocks.from_before)
        own = self.own_bytes
        alloc, free = self.blocks.alloc, self.blocks.free
        copy = np.flatnonzero(self.copies.until >= 0)
        single = new[self.copies.until[new] < 0]
        held, taken = self.held.part_block, np.minimum(self.copies.until[copy], free[copy])
        rounding = np.full(len(new), _PLACE[named.ROUNDING])
        parts = (
            (held, self.held.part_component, self.held.part_bytes, alloc[held], free[held]),
            (single, self.component[single], own[single], alloc[single], free[single]),
            (copy, self.copies.component[copy], own[copy], alloc[copy], taken),
            (copy, self.component[copy], own[copy], taken, free[copy]),
            (new, rounding, self.blocks.bytes[new] - own[new], alloc[new], free[new]),
        )
        block, component, size, begin, end = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return Shares(
            components=COMPONENTS, block=block, component=component, bytes=size, begin=begin, end=end,
            earlier=named.HELD_BEFORE if self.held.whole else None,
        )  # fmt: skip


def measured_step(step: StepObservations, table: MemoryTable, held: Held) -> MeasuredStep:
    """Pair the allocations and frees of a step and give each block its component."""
    calls = table.calls
    assert isinstance(calls, StepCalls)
    blocks = blocks_of(table.events, held.address, held.bytes)
    reported = ~blocks.unseen & (blocks.free < blocks.events)
    blocks, reported = _without_gone(blocks, reported, table)
    operator = _operators(table, calls)
    labels = _labels(step, table, blocks, operator, held)
    passes = passes_of_spans(table.spans)
    given = np.maximum(blocks.alloc, 0)
    call = np.append(table.call, -1)[given]
    operator = Categorical(np.append(operator.codes, -1)[given], operator.values)
    phase = passes.phase_of(passes.at(np.append(table.events.time_ns, 0)[given]))
    component = _components(step, table, blocks, labels, phase, call, operator.codes)
    return MeasuredStep(
        table=table, held=held, blocks=blocks, labels=labels, passes=passes, phase=phase, component=component,
        operator=operator, module=calls.module.take(call),
        reported=reported, copies=copies_of(table, blocks),
    )  # fmt: skip


def _without_gone(blocks: Blocks, reported: Bool, table: MemoryTable) -> tuple[Blocks, Bool]:
    """Let blocks from before end where a mark says that they live no more, and the allocator had not reported it."""
    assert table.marks is not None
    rows = np.flatnonzero(table.marks.kind == _KIND[MarkKind.GONE])
    if not len(rows):
        return blocks, reported
    held = {address: place for place, address in enumerate(blocks.address[blocks.from_before].tolist())}
    free, reported = blocks.free.copy(), reported.copy()
    for address, event in zip(table.marks.address[rows].tolist(), table.marks.event[rows].tolist(), strict=True):
        block = held.get(address)
        if block is not None and event < free[block]:
            free[block], reported[block] = event, False
    return replace(blocks, free=free), reported


def _operators(table: MemoryTable, calls: StepCalls) -> Categorical[str]:
    """The operator that each event happened in, and that did more than allocate."""
    every = calls.name.codes >= 0
    wanted = wanting(np.arange(len(every)), calls.name, calls.parent, every)
    places = np.append(calls.name.codes[wanted], -1)[table.call]
    return Categorical(places, calls.name.values)


def _labels(
    step: StepObservations, table: MemoryTable, blocks: Blocks, operator: Categorical[str], held: Held
) -> Labels:
    """What the marks, in their order, say of the blocks that live at their addresses."""
    marks = table.marks
    assert marks is not None
    count = len(blocks.alloc)
    component, storage, tensor = (np.full(count, -1, dtype=np.int64) for _ in range(3))
    saved_by: list[set[str]] = [set() for _ in range(count)]
    unseen: dict[int, int] = {}
    known = set(held.storages.tolist())
    telling = np.flatnonzero((marks.address >= 0) & (marks.kind != _KIND[MarkKind.GONE]))
    live = blocks.live_at(marks.event[telling], marks.address[telling])
    for block, row in zip(live.tolist(), telling.tolist(), strict=True):
        kind, size = MARK_KINDS[marks.kind[row]], int(marks.bytes[row])
        if block < 0:
            if kind is MarkKind.SAVED and int(marks.address[row]) not in known:
                unseen[int(marks.address[row])] = size
            continue
        storage[block] = size
        if kind is MarkKind.SAVED:
            saved_by[block].add(operator.at(int(marks.event[row])) or "")
            tensor[block] = _first_tensor(step, int(tensor[block]), int(marks.tensor[row]))
        # A weight or buffer that forward made anew is none of the activations, also where it is saved.
        if kind is MarkKind.SAVED and component[block] != _NO_ROLE:
            continue
        is_saved = component[block] == _PLACE[named.ACTIVATIONS]
        if not is_saved or kind in (MarkKind.WEIGHTS, MarkKind.BUFFERS, MarkKind.INPUTS):
            component[block] = _COMPONENT_OF_KIND[kind]
    return Labels(
        component=component, storage_bytes=storage, tensor=tensor, saved_by=[frozenset(names) for names in saved_by],
        unseen_saved_bytes=sum(unseen.values()),
    )  # fmt: skip


def _first_tensor(step: StepObservations, known: int, saved: int) -> int:
    """The first that has a shape and a data type; a number has no shape."""
    if known < 0:
        return saved
    tensor = step.marks.tensors[known]
    return known if tensor.shape and tensor.dtype else saved


def _components(
    step: StepObservations, table: MemoryTable, blocks: Blocks, labels: Labels, phase: Int64, call: Int64,
    operator: Int64,
) -> Int64:  # fmt: skip
    """The component of each block; the first that holds."""
    calls, marks = table.calls, table.marks
    assert isinstance(calls, StepCalls)
    assert marks is not None
    casts = np.append(calls.casts_weight, False)[call]
    until = np.append(calls.recomputed_until_ns, -1)[call]
    ended = blocks.free < blocks.events
    end_ns = np.append(table.events.time_ns, 0)[blocks.free]
    through = np.zeros(len(blocks.alloc), dtype=bool)
    for event in marks.event[marks.kind == _KIND[MarkKind.AFTER_FORWARD]].tolist():
        through |= (blocks.alloc < event) & (event < blocks.free)
    nameless = operator < 0
    size = np.where(labels.storage_bytes > 0, labels.storage_bytes, blocks.bytes)
    is_number = nameless & (size <= _NUMBER_BYTES)
    cases = (
        (named.WEIGHT_CASTS, casts & (phase == FORWARD) & step.autocast),
        (None, labels.component != _NO_ROLE),
        (named.RNG_STATES, through & nameless & (blocks.bytes == (step.rng_bytes or -1))),
        (named.ACTIVATIONS, through & (is_number | (not step.hooked))),
        # Tensors that a checkpointed segment gets by keyword are held by Python until its node of the graph is freed.
        (named.CHECKPOINT_ARGUMENTS, through & ended & step.checkpointing),
        (named.HELD_BY_MODEL, through),
        (named.RECOMPUTED, (until >= 0) & (~ended | (end_ns > until))),
    )
    choices = [labels.component if name is None else np.int64(_PLACE[name]) for name, _ in cases]
    return np.select([holds for _, holds in cases], choices, np.int64(_PLACE[named.TEMPORARY]))
