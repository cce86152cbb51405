"""Compute the memory of a run from its capture's observations: every allocation of one step, or storages alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.errors import TraceError
from opanatomy.memory import components
from opanatomy.memory.allocations import CPU, LISTED, Blocks, agreement, alike, blocks_of, groups_at
from opanatomy.memory.components import COMPONENTS, HELD_BEFORE, ROUNDING, WORKSPACE
from opanatomy.memory.curve import ComponentBytes, Curve, curve_of, points_of
from opanatomy.memory.passes import PhaseIntervals, passes_of_spans, requesting_operators
from opanatomy.records.columns import (
    Bool,
    Categorical,
    Int64,
    MemoryEvents,
    MemoryMarks,
    MemoryTable,
    StepCalls,
    categorical_of,
    unpacked,
)
from opanatomy.records.memory import (
    PEAK,
    START,
    WEIGHTS,
    AllocatorFigures,
    Memory,
    MemoryComponent,
    MemoryPart,
    MemorySnapshot,
    SavedActivations,
)
from opanatomy.records.taxonomy import FORWARD
from opanatomy.records.workload import (
    MARK_KINDS,
    BlockColumns,
    MarkKind,
    MemoryObservations,
    StepObservations,
    StorageColumns,
    TensorType,
)

# --- observations of a step as a table of memory events ---


def table_of(step: StepObservations) -> MemoryTable:
    """Return the events with their calls and the marks; raise `TraceError` if the columns do not fit together."""
    try:
        events, contexts, marks = step.events, step.contexts, step.marks
        size, caller = unpacked(events.bytes), unpacked(contexts.caller)
        nothing = np.zeros(len(size), dtype=np.int64)
        line = unpacked(contexts.line) if contexts.line else np.full(len(caller), -1, dtype=np.int64)
        table = MemoryTable(
            events=MemoryEvents(
                time_ns=unpacked(events.time_ns),
                thread=nothing,
                bytes=size,
                address=unpacked(events.address),
                total_allocated=np.where(size == 0, -1, unpacked(events.total_allocated) + np.cumsum(size)),
                total_reserved=unpacked(events.total_reserved),
                device_type=nothing,
                device=nothing,
            ),
            call=unpacked(events.context),
            calls=StepCalls(
                name=categorical_of(contexts.operators, unpacked(contexts.operator)),
                module=categorical_of(contexts.modules, unpacked(contexts.module)),
                parent=caller,
                casts_weight=unpacked(contexts.casts_weight) != 0,
                recomputed_until_ns=unpacked(contexts.recomputed_until_ns),
                line=categorical_of([f"{frame.line} {frame.function}" for frame in step.lines], line),
            ),
            marks=MemoryMarks(
                event=unpacked(marks.event),
                kind=unpacked(marks.kind),
                address=unpacked(marks.address),
                bytes=unpacked(marks.bytes),
                tensor=unpacked(marks.tensor),
            ),
            spans=tuple((span.begin_ns, span.end_ns, span.phase) for span in step.phases),
        )
    except (ValueError, IndexError) as error:
        raise TraceError(f"opanatomy's record of the step's memory in the trace is damaged: {error}") from error
    _check(table, step)
    return table


def _check(table: MemoryTable, step: StepObservations) -> None:
    """Raise `TraceError` if columns have unequal lengths or indices are out of range."""
    calls, marks, events = table.calls, table.marks, table.events
    assert isinstance(calls, StepCalls)
    assert marks is not None
    count, rows = len(events.bytes), len(calls.parent)
    groups = (
        (events.time_ns, events.bytes, events.address, events.total_allocated, events.total_reserved, table.call),
        (
            calls.name.codes,
            calls.module.codes,
            calls.parent,
            calls.casts_weight,
            calls.recomputed_until_ns,
            calls.line.codes,
        ),
        (marks.event, marks.kind, marks.address, marks.bytes, marks.tensor),
    )
    fits = (
        all(len({len(column) for column in group}) == 1 for group in groups)
        and _all_in(table.call, -1, rows)
        and bool((calls.parent < np.arange(rows)).all())
        and _all_in(calls.parent, -1, rows)
        and _all_in(marks.event, 0, count)
        and _all_in(marks.kind, 0, len(MARK_KINDS))
        and _all_in(marks.tensor, -1, len(step.marks.tensors))
        and bool((np.diff(events.time_ns) >= 0).all())
        and float(np.abs(events.bytes.astype(np.float64)).sum()) < 2**62
    )
    if not fits:
        raise TraceError("opanatomy's record of the step's memory in the trace is damaged: its columns do not match")


def _all_in(indices: Int64, minimum: int, end: int) -> bool:
    return bool(((indices >= minimum) & (indices < end)).all())


# --- memory allocated before the step: known storages, and on a device the rest of its allocator ---


_ROUNDING, _WORKSPACE, _HELD_BEFORE = (COMPONENTS.index(name) for name in (ROUNDING, WORKSPACE, HELD_BEFORE))


class PreexistingBlocks(Struct, frozen=True, kw_only=True):
    """The blocks from before a step by address, and their parts: the component and the bytes of each.

    On a device the blocks are all that its allocator has handed out (`whole`), on the CPU one for each storage.
    """

    address: Int64
    bytes: Int64
    part_block: Int64
    part_component: Int64
    part_bytes: Int64
    #: Addresses of the storages, in whichever block.
    storages: Int64
    #: Bytes of the storages that are in no block of the allocator: shared by another process, or allocated elsewhere.
    outside_bytes: int = 0
    whole: bool = False

    def component_bytes(self, component: str) -> int:
        """Return the bytes of a component in these blocks."""
        return int(self.part_bytes[self.part_component == COMPONENTS.index(component)].sum())


class _Storages(Struct, frozen=True, kw_only=True):
    component: Int64
    address: Int64
    bytes: Int64


def preexisting_blocks(step: StepObservations) -> PreexistingBlocks:
    """Return the memory that was allocated before a step; raise `TraceError` if the columns do not fit together."""
    try:
        storages = _storages(step.storages)
        if step.blocks is not None:
            return _in_blocks(storages, step.blocks, frozenset(step.allocator.workspace_bytes))
    except (ValueError, IndexError) as error:
        raise TraceError(f"opanatomy's record of the step's memory in the trace is damaged: {error}") from error
    return PreexistingBlocks(
        address=storages.address,
        bytes=storages.bytes,
        part_block=np.arange(len(storages.address)),
        part_component=storages.component,
        part_bytes=storages.bytes,
        storages=storages.address,
    )


def _storages(columns: StorageColumns) -> _Storages:
    """Return the storages; several at one address count once, for the first component."""
    indices = np.array([COMPONENTS.index(name) for name in columns.components], dtype=np.int64)
    component, address, size = (unpacked(column) for column in (columns.component, columns.address, columns.bytes))
    if not len(component) == len(address) == len(size) or component.min(initial=0) < 0 or size.min(initial=0) < 0:
        raise ValueError("the storages before the step are inconsistent")
    component = indices[component]
    order = np.lexsort((np.arange(len(address)), address))
    first = np.sort(order[np.append(True, np.diff(address[order]) != 0)]) if len(order) else order
    return _Storages(component=component[first], address=address[first], bytes=size[first])


def _in_blocks(storages: _Storages, columns: BlockColumns, workspaces: frozenset[int]) -> PreexistingBlocks:
    """Return each block with the storages in it, and the bytes of storages that are in no block.

    The remainder of a block is the allocator's rounding. A block without a known storage is a BLAS workspace if its
    requested size equals a workspace's: nothing else identifies these, as torch has no names for blocks.
    """
    address, size, requested = (
        unpacked(column) for column in (columns.address, columns.bytes, columns.requested_bytes)
    )
    if not len(address) == len(size) == len(requested) or (np.diff(address) < 0).any() or size.min(initial=0) < 0:
        raise ValueError("the blocks before the step are inconsistent")
    block = np.searchsorted(address, storages.address, side="right") - 1
    ends = np.append(address + size, np.iinfo(np.int64).min)
    inside = (block >= 0) & (storages.address < ends[block])
    left = size.copy()
    parts: list[tuple[int, int, int]] = []
    for index, component, wanted in zip(
        block[inside].tolist(), storages.component[inside].tolist(), storages.bytes[inside].tolist(), strict=True
    ):  # storages may share memory: their parts sum to the block
        part = min(wanted, int(left[index]))
        parts.append((index, component, part))
        left[index] -= part
    empty = np.ones(len(address), dtype=bool)
    empty[block[inside]] = False
    asked = np.where(requested < 0, size, requested)
    of_library = np.array([bytes_ in workspaces for bytes_ in asked.tolist()], dtype=bool)
    rest = np.where(~empty, _ROUNDING, np.where(of_library, _WORKSPACE, _HELD_BEFORE))
    parts += [part for part in zip(range(len(address)), rest.tolist(), left.tolist(), strict=True) if part[2]]
    columns_ = np.array(parts, dtype=np.int64).reshape(-1, 3).T
    return PreexistingBlocks(
        address=address,
        bytes=size,
        part_block=columns_[0],
        part_component=columns_[1],
        part_bytes=columns_[2],
        storages=storages.address,
        outside_bytes=int(storages.bytes[~inside].sum()),
        whole=True,
    )


# --- copied key-value caches: a copy counts as cache only after the original is freed ---


_GROWN, _REORDERED = (MARK_KINDS.index(kind) for kind in (MarkKind.KEY_VALUE_CACHE, MarkKind.REORDERED_CACHE))
#: Component of a cache copy: a forward makes a longer one to append a token, a reordering one for the remaining beams.
_ROLE: Final = {_GROWN: COMPONENTS.index(components.TEMPORARY), _REORDERED: COMPONENTS.index(components.BEAM_COPIES)}
_NONE: Final = -1


class Copies(Struct, frozen=True, kw_only=True):
    """For each block the event up to which it is a copy (-1 if it is none), and its component until then."""

    until: Int64
    component: Int64


def copies_of(table: MemoryTable, blocks: Blocks) -> Copies:
    """Find the copies among the blocks.

    A block is a copy if a cache mark lists it instead of an earlier mark's storage that was live when it was allocated.
    """
    marks = table.marks
    assert marks is not None
    until, component = (np.full(len(blocks.alloc), _NONE, dtype=np.int64) for _ in range(2))
    rows = np.flatnonzero(((marks.kind == _GROWN) | (marks.kind == _REORDERED)) & (marks.address >= 0))
    if not len(rows):
        return Copies(until=until, component=component)
    block = blocks.live_at(marks.event[rows], marks.address[rows])
    starts = np.flatnonzero(np.diff(marks.event[rows], prepend=_NONE))
    before = np.zeros(0, dtype=np.int64)
    # The blocks of the storages of each mark, -1 for those that are not of the step.
    for kind, held in zip(marks.kind[rows[starts]].tolist(), np.split(block, starts[1:]), strict=True):
        if len(held) == len(before):
            new = np.flatnonzero((held != before) & (held >= 0) & (before >= 0))
            new = new[blocks.alloc[held[new]] < blocks.free[before[new]]]
            until[held[new]] = blocks.free[before[new]]
            component[held[new]] = _ROLE[kind]
        before = held
    return Copies(until=until, component=component)


# --- components of the blocks, by the marks and the context ---


#: A number in an expression (`0.5 * x`) is a tensor of at most this many bytes, which autograd hides from hooks.
_NUMBER_BYTES: Final = 16
_COMPONENT_INDEX: Final = {name: index for index, name in enumerate(COMPONENTS)}
_KIND: Final = {kind: index for index, kind in enumerate(MARK_KINDS)}
#: The component of the storages of each mark; tensors that autograd saved are activations.
_COMPONENT_OF_KIND: Final = {
    **{kind: _COMPONENT_INDEX[str(kind)] for kind in MARK_KINDS if str(kind) in _COMPONENT_INDEX},
    MarkKind.SAVED: _COMPONENT_INDEX[components.ACTIVATIONS],
    MarkKind.REORDERED_CACHE: _COMPONENT_INDEX[components.KEY_VALUE_CACHE],
}
_NO_ROLE: Final = -1
_OF_FORWARD: Final = tuple(_COMPONENT_INDEX[name] for name in components.OF_FORWARD)


class Labels(Struct, frozen=True, kw_only=True):
    """Facts about each block from the marks: component (-1 none), bytes of its storage, operators that saved it.

    `tensor` is the first shape and data type that was saved in it, -1 none.
    """

    component: Int64
    #: -1 without a mark.
    storage_bytes: Int64
    tensor: Int64
    saved_by: Sequence[frozenset[str]]
    #: Bytes of storages saved for backward that were neither allocated in the step nor known before it.
    unseen_saved_bytes: int = 0


class MeasuredStep(Struct, frozen=True, kw_only=True):
    """The blocks of a step (those from before it first), with operator, module, phase and component of each."""

    table: MemoryTable
    held: PreexistingBlocks
    blocks: Blocks
    labels: Labels
    passes: PhaseIntervals
    operator: Categorical[str]
    module: Categorical[str]
    #: The line of the user's code, and its function.
    line: Categorical[str]
    phase: Int64
    #: Index into `COMPONENTS`; blocks from before the step have parts instead.
    component: Int64
    #: Mask of the blocks from before that the allocator reported as freed.
    reported: Bool
    copies: Copies

    @property
    def own_bytes(self) -> Int64:
        """Return the bytes of each block that count for its component; the rest is the allocator's rounding."""
        storage = self.labels.storage_bytes
        return np.where(storage < 0, self.blocks.bytes, np.minimum(storage, self.blocks.bytes))

    def last_event_of(self, kind: MarkKind) -> int | None:
        """Return the last event that marks this point of the step."""
        assert self.table.marks is not None
        rows = self.table.marks.event[self.table.marks.kind == _KIND[kind]]
        return int(rows[-1]) if len(rows) else None

    def component_at(self, state: int) -> Int64:
        """Return the component of each block after `state` events."""
        return np.where(self.copies.until >= state, self.copies.component, self.component)

    @property
    def after_forward(self) -> int | None:
        """Return the event at which forward ends; of several, the one with most bytes kept for backward."""
        assert self.table.marks is not None
        ends = self.table.marks.event[self.table.marks.kind == _KIND[MarkKind.AFTER_FORWARD]].tolist()
        kept = np.where(np.isin(self.component, _OF_FORWARD), self.own_bytes, 0)
        return max(ends, key=lambda end: (int(kept[self.blocks.live_after(end + 1)].sum()), end), default=None)

    def shares(self) -> ComponentBytes:
        """Return the components of all blocks.

        If all earlier allocator memory is known, a free of an unknown block belongs to that memory.
        """
        new = np.flatnonzero(~self.blocks.from_before)
        own = self.own_bytes
        alloc, free = self.blocks.alloc, self.blocks.free
        copy = np.flatnonzero(self.copies.until >= 0)
        single = new[self.copies.until[new] < 0]
        held, taken = self.held.part_block, np.minimum(self.copies.until[copy], free[copy])
        rounding = np.full(len(new), _COMPONENT_INDEX[components.ROUNDING])
        parts = (
            (held, self.held.part_component, self.held.part_bytes, alloc[held], free[held]),
            (single, self.component[single], own[single], alloc[single], free[single]),
            (copy, self.copies.component[copy], own[copy], alloc[copy], taken),
            (copy, self.component[copy], own[copy], taken, free[copy]),
            (new, rounding, self.blocks.bytes[new] - own[new], alloc[new], free[new]),
        )
        block, component, size, begin, end = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return ComponentBytes(
            components=COMPONENTS,
            block=block,
            component=component,
            bytes=size,
            begin=begin,
            end=end,
            earlier=components.HELD_BEFORE if self.held.whole else None,
        )


def measured_step(step: StepObservations, table: MemoryTable, held: PreexistingBlocks) -> MeasuredStep:
    """Pair a step's allocations and frees, and assign each block's component."""
    calls, marks = table.calls, table.marks
    assert isinstance(calls, StepCalls)
    assert marks is not None
    blocks = blocks_of(table.events, held.address, held.bytes)
    reported = ~blocks.free_unseen & (blocks.free < blocks.events)

    # A block from before the step ends at the mark that says it is gone, unless the allocator reported its free.
    gone = np.flatnonzero(marks.kind == _KIND[MarkKind.GONE])
    earlier = {address: index for index, address in enumerate(blocks.address[blocks.from_before].tolist())}
    free = blocks.free.copy()
    for address, event in zip(marks.address[gone].tolist(), marks.event[gone].tolist(), strict=True):
        block = earlier.get(address)
        if block is not None and event < free[block]:
            free[block], reported[block] = event, False
    blocks = replace(blocks, free=free)

    # The operator around each event that did more than allocate.
    every = calls.name.codes >= 0
    wanted = requesting_operators(np.arange(len(every)), calls.name, calls.parent, every)
    operator = Categorical(np.append(calls.name.codes[wanted], -1)[table.call], calls.name.values)
    labels = _labels(step, table, blocks, operator, held)
    passes = passes_of_spans(table.spans)
    given = np.maximum(blocks.alloc, 0)
    call = np.append(table.call, -1)[given]
    operator = Categorical(np.append(operator.codes, -1)[given], operator.values)
    phase = passes.phase_at(np.append(table.events.time_ns, 0)[given])
    component = _label_components(step, table, blocks, labels, phase, call, operator.codes)
    return MeasuredStep(
        table=table,
        held=held,
        blocks=blocks,
        labels=labels,
        passes=passes,
        phase=phase,
        component=component,
        operator=operator,
        module=calls.module.take(call),
        line=calls.line.take(np.where(blocks.from_before, -1, call)),
        reported=reported,
        copies=copies_of(table, blocks),
    )


def _labels(
    step: StepObservations, table: MemoryTable, blocks: Blocks, operator: Categorical[str], held: PreexistingBlocks
) -> Labels:
    """Apply the marks, in order, to the blocks at their addresses."""
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
            # The first with a shape and a data type: a number has no shape.
            first = step.marks.tensors[tensor[block]] if tensor[block] >= 0 else None
            if first is None or not (first.shape and first.dtype):
                tensor[block] = marks.tensor[row]
        # A weight or buffer that forward made anew is no activation, even if it is saved.
        if kind is MarkKind.SAVED and component[block] != _NO_ROLE:
            continue
        is_saved = component[block] == _COMPONENT_INDEX[components.ACTIVATIONS]
        if not is_saved or kind in (MarkKind.WEIGHTS, MarkKind.BUFFERS, MarkKind.INPUTS):
            component[block] = _COMPONENT_OF_KIND[kind]
    return Labels(
        component=component,
        storage_bytes=storage,
        tensor=tensor,
        saved_by=[frozenset(names) for names in saved_by],
        unseen_saved_bytes=sum(unseen.values()),
    )


def _label_components(
    step: StepObservations,
    table: MemoryTable,
    blocks: Blocks,
    labels: Labels,
    phase: Int64,
    call: Int64,
    operator: Int64,
) -> Int64:
    """Return the component of each block: the first rule that holds."""
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
        (components.WEIGHT_CASTS, casts & (phase == FORWARD) & step.autocast),
        (None, labels.component != _NO_ROLE),
        (components.RNG_STATES, through & nameless & (blocks.bytes == (step.rng_bytes or -1))),
        (components.ACTIVATIONS, through & (is_number | (not step.hooked))),
        # Python holds the keyword arguments of a checkpointed segment until its node of the graph is freed.
        (components.CHECKPOINT_ARGUMENTS, through & ended & step.checkpointing),
        (components.HELD_BY_MODEL, through),
        (components.RECOMPUTED, (until >= 0) & (~ended | (end_ns > until))),
    )
    choices = [labels.component if name is None else np.int64(_COMPONENT_INDEX[name]) for name, _ in cases]
    return np.select([holds for _, holds in cases], choices, np.int64(_COMPONENT_INDEX[components.TEMPORARY]))


# --- memory outside the allocator's blocks: the device's context and kernels, the allocator's cache ---


#: Possible sizes of a context with its kernels: some 100 MB if few are loaded, 1.3 GB with all libraries of an older
#: CUDA. Other sizes are changes by other processes in between.
_MIN_CONTEXT: Final = 50_000_000
_MAX_CONTEXT: Final = 4_000_000_000


class Outside(Struct, frozen=True, kw_only=True):
    """Components outside the allocator's blocks, and notes on unmeasured ones."""

    components: tuple[MemoryComponent, ...] = ()
    notes: tuple[str, ...] = ()


def outside_the_allocator(snapshots: Sequence[MemorySnapshot]) -> Outside:
    """Return the context and the cache, each omitted if unknown."""
    context = _context(snapshots)
    rows = list(context.components)
    peak = next((snapshot for snapshot in snapshots if snapshot.name == PEAK), None)
    if peak is not None and peak.reserved_bytes is not None and peak.allocated_bytes is not None:
        rows.append(
            MemoryComponent(
                component="allocator_cache",
                measured_bytes=peak.reserved_bytes - peak.allocated_bytes,
                formula="reserved - allocated, at the peak",
            )
        )
    return Outside(components=tuple(rows), notes=context.notes)


def _context(snapshots: Sequence[MemorySnapshot]) -> Outside:
    """Return the process's device memory beyond the allocator: by NVML's bytes of it, else by the increase in use."""
    with_reserved = [
        snapshot for snapshot in snapshots if snapshot.reserved_bytes is not None and snapshot.name != START
    ]
    own = next((snapshot for snapshot in reversed(with_reserved) if snapshot.nvml_process_bytes is not None), None)
    if own is not None:
        size = (own.nvml_process_bytes or 0) - (own.reserved_bytes or 0)
        return _bounded(size, "this process's memory (NVML) - reserved by the allocator")
    after = next((snapshot for snapshot in reversed(with_reserved) if snapshot.nvml_used_bytes is not None), None)
    if after is None:
        return Outside()
    first = next((snapshot for snapshot in snapshots if snapshot.name == START), None)
    if first is None or first.nvml_used_bytes is None:
        why = "NVML does not report this process's memory, nor was the device's memory read before this process used it"
        return Outside(notes=(f"the device's context was not measured: {why}",))
    size = (after.nvml_used_bytes or 0) - (after.reserved_bytes or 0) - first.nvml_used_bytes
    context = _bounded(size, "memory in use (NVML) - reserved by the allocator - in use before the run")
    note = (
        "NVML does not report this process's memory, so what other processes allocated on the device meanwhile"
        " counts as device context"
    )
    return Outside(components=context.components, notes=(note,)) if context.components else context


def _bounded(size: int, formula: str) -> Outside:
    if not _MIN_CONTEXT <= size <= _MAX_CONTEXT:
        why = f"{formula} is {size:,} B, which is implausible for a context"
        return Outside(notes=(f"the device's context was not measured: {why}",))
    return Outside(components=(MemoryComponent(component="device_context", measured_bytes=size, formula=formula),))


# --- activations kept for backward, by like modules, operator and shape ---


_KEPT_COMPONENTS = tuple(COMPONENTS.index(name) for name in (components.ACTIVATIONS, components.WEIGHT_CASTS))
_UNKNOWN = TensorType(dtype="", shape=())


def activations_of(measured: MeasuredStep, tensors: Sequence[TensorType]) -> tuple[SavedActivations, ...]:
    """Return the activations that live after forward for backward, largest first."""
    after = measured.after_forward
    if after is None:
        return ()
    groups: dict[tuple[str, str | None, TensorType], list[int]] = defaultdict(list)
    for block in measured.blocks.live_after(after + 1).tolist():
        if measured.component[block] in _KEPT_COMPONENTS:
            tensor = int(measured.labels.tensor[block])
            module = alike(measured.module.at(block) or "")
            groups[module, measured.operator.at(block), tensors[tensor] if tensor >= 0 else _UNKNOWN].append(block)
    own = measured.own_bytes
    rows = [
        SavedActivations(
            module=module,
            operator=operator,
            shape=tensor.shape,
            dtype=tensor.dtype,
            blocks=len(blocks),
            bytes=int(own[blocks].sum()),
            saved_by=tuple(sorted({name for block in blocks for name in measured.labels.saved_by[block] if name})),
        )
        for (module, operator, tensor), blocks in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.module))[:LISTED])


_MOMENTS: Final = (
    MarkKind.AFTER_FORWARD,
    MarkKind.AFTER_BACKWARD,
    MarkKind.AFTER_OPTIMIZER,
    MarkKind.AFTER_STEP,
    MarkKind.BROKEN,
)


def memory_of_observations(observations: MemoryObservations) -> Memory:
    """Return the memory of the step observed allocation by allocation, else of the storages as they were after a step.

    It includes the snapshots, memory outside the allocator's blocks, and notes on what was not observed.
    """
    step = observations.step
    if step is None:
        memory = _memory_of_storages(observations)
    elif step.allocator.why_no_blocks is None:
        memory = _memory_of_step(step, observations.snapshots)
    else:
        memory = _without_blocks(step, observations)
    outside = outside_the_allocator(memory.snapshots)
    notes = [*observations.notes, *outside.notes, *memory.notes]
    if observations.other_devices:
        others = ", ".join(observations.other_devices)
        notes.append(f"parts of the module are on {others}: memory covers only {observations.device}")
    failure = observations.failure
    if failure is not None and failure.seen:
        failure = replace(failure, allocated_bytes=memory.peak_bytes)
    return replace(
        memory,
        components=(*memory.components, *outside.components),
        notes=tuple(notes),
        process_peak_bytes=observations.peak_bytes if observations.device == CPU else None,
        uncovered_devices=observations.other_devices,
        shape=observations.shape,
        failure=failure,
    )


# --- storages alone ---


def _memory_of_storages(observations: MemoryObservations) -> Memory:
    rows = (MemoryComponent(component=name, measured_bytes=size) for name, size in observations.storage_bytes.items())
    return Memory(
        peak_bytes=observations.peak_bytes,
        measured_by=observations.measured_by,
        components=tuple(rows),
        allocator_peak_bytes=None if observations.device == CPU else observations.peak_bytes,
        snapshots=observations.snapshots,
    )


def _without_blocks(step: StepObservations, observations: MemoryObservations) -> Memory:
    """Return what is known about a step whose allocator does not report blocks.

    It has the storages after a step, else those before it and the allocator's own peak.
    """
    held = preexisting_blocks(step)
    figures = _figures(step, measured_step(step, table_of(step), held))
    notes = tuple(note for note in (step.allocator.why_no_blocks,) if note)
    if observations.storage_bytes:
        return replace(_memory_of_storages(observations), allocator=figures, notes=notes)
    sizes = ((name, held.component_bytes(name)) for name in COMPONENTS)
    return Memory(
        peak_bytes=figures.peak_bytes,
        allocator_peak_bytes=figures.peak_bytes,
        measured_by=f"reported by the {step.allocator.name} of {step.device}",
        components=tuple(MemoryComponent(component=name, measured_bytes=size) for name, size in sizes if size),
        allocator=figures,
        snapshots=(*observations.snapshots, MemorySnapshot(name=PEAK, allocated_bytes=figures.peak_bytes)),
        notes=(*notes, *_outside_note(held.outside_bytes, step.device)),
    )


def _outside_note(size: int, device: str) -> list[str]:
    if not size:
        return []
    return [
        f"{size:,} B of the model, its state and inputs come from another process or a library's allocator, not from"
        f" the allocator of {device}, and are in none of the components"
    ]


# --- every allocation of a step ---


def _memory_of_step(step: StepObservations, snapshots: Sequence[MemorySnapshot]) -> Memory:
    """Return the memory of the step; for a failed step the failure takes the place of the peak."""
    table, held = table_of(step), preexisting_blocks(step)
    measured = measured_step(step, table, held)
    times = table.events.time_ns
    begin = min([*(begin for begin, _, _ in table.spans), *times[:1].tolist()], default=0)
    window = (begin, int(times[-1]) if len(times) else 0)
    curve = curve_of(measured.blocks, measured.shares(), times, window)
    if step.broken_in is not None:
        # The last allocation before the failure: frees since then belong to the unwinding.
        broken = measured.last_event_of(MarkKind.BROKEN)
        end = measured.blocks.events if broken is None else broken
        last = measured.blocks.alloc[measured.blocks.alloc < end].max(initial=-1)
        curve = replace(curve, peak=int(last) + 1)
    peak = curve.peak
    blocks, unlisted = groups_at(
        measured.blocks,
        peak,
        measured.operator,
        measured.module,
        measured.phase,
        measured.component_at(peak),
        [(component, None) for component in COMPONENTS],
    )
    timeline = points_of(curve, table.events.total_reserved, measured.passes) if measured.blocks.events else ()
    measured_by = f"all allocations in the {step.allocator.name} of {step.device} during one step"
    if step.device == CPU:
        measured_by = (
            "all allocations in torch's CPU allocator during one step, plus the weights, optimizer state and inputs"
            " allocated before it"
        )
    notes = _outside_note(held.outside_bytes, step.device)
    unseen = measured.labels.unseen_saved_bytes
    if unseen:
        note = f"{unseen:,} B that autograd saved were allocated before the step and are in none of its components"
        notes = [note, *notes]
    memory = Memory(
        peak_bytes=int(curve.allocated[peak]),
        allocator_peak_bytes=int(curve.allocated[peak]),
        peak_at=curve.phase_at(peak, measured.passes),
        measured_by=measured_by,
        components=_components(measured, curve),
        timeline=timeline,
        blocks=blocks,
        unlisted_bytes=unlisted,
        activations=activations_of(measured, step.marks.tensors),
        parts=_parts_by_line(measured, peak, int(curve.allocated[peak])),
        allocator=_figures(step, measured),
        notes=tuple(notes),
    )
    return replace(memory, snapshots=_snapshots(snapshots, measured, curve, memory))


def _parts_by_line(measured: MeasuredStep, state: int, allocated: int) -> tuple[MemoryPart, ...]:
    """Return the bytes live after this many events by allocating line; empty if no line is known.

    The parts sum to `allocated`: memory from before the step has no line.
    """
    live = measured.blocks.live_after(state)
    if (measured.line.codes[live] < 0).all():
        return ()
    sums: dict[tuple[str | None, str], list[int]] = {}
    component = measured.component_at(state)
    for block in live.tolist():
        code = int(component[block])
        name = COMPONENTS[code] if code >= 0 else HELD_BEFORE
        sums.setdefault((measured.line.at(block), name), []).append(int(measured.blocks.bytes[block]))
    if before := allocated - sum(map(sum, sums.values())):
        sums.setdefault((None, HELD_BEFORE), []).append(before)
    rows = []
    for (line, name), sizes in sorted(sums.items(), key=lambda item: -sum(item[1])):
        place, _, function = (line or "").partition(" ")
        rows.append(
            MemoryPart(
                of="line",
                name=place or None,
                component=name,
                blocks=len(sizes),
                bytes=sum(sizes),
                function=function or None,
            )
        )
    return tuple(rows)


def _components(measured: MeasuredStep, curve: Curve) -> tuple[MemoryComponent, ...]:
    """Return each component at its fullest and at the peak; those at the peak sum to it."""
    after_forward = measured.after_forward
    rows = []
    for component, states in zip(curve.components, curve.by_component, strict=True):
        size = int(states.max())
        if component == components.TEMPORARY:
            size = int(states[curve.peak])
        elif component in components.OF_FORWARD and after_forward is not None:
            size = int(states[after_forward + 1])
        if size or states.any():
            at_peak = int(states[curve.peak])
            rows.append(MemoryComponent(component=component, measured_bytes=size, at_peak_bytes=at_peak))
    return tuple(rows)


def _snapshots(
    snapshots: Sequence[MemorySnapshot], measured: MeasuredStep, curve: Curve, memory: Memory
) -> tuple[MemorySnapshot, ...]:
    """Return the snapshots, on the CPU with figures from the step's allocations, and the peak as the last."""
    indices = {str(kind): measured.last_event_of(kind) for kind in _MOMENTS}
    allocated = {name: int(curve.allocated[index + 1]) for name, index in indices.items() if index is not None}
    allocated[WEIGHTS] = sum(measured.held.component_bytes(name) for name in (components.WEIGHTS, components.BUFFERS))
    peak = next((point for point in memory.timeline if point.allocated_bytes == memory.peak_bytes), None)
    reserved = None if peak is None else peak.reserved_bytes
    return (
        *(
            snapshot
            if snapshot.allocated_bytes is not None
            else replace(snapshot, allocated_bytes=allocated.get(snapshot.name, 0))
            for snapshot in snapshots
        ),
        MemorySnapshot(name=PEAK, allocated_bytes=memory.peak_bytes, reserved_bytes=reserved),
    )


# --- the allocator's own figures ---


def _figures(step: StepObservations, measured: MeasuredStep) -> AllocatorFigures:
    """Compare the allocator's own figures with the sum of the blocks at each event."""
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
        unseen_frees=int((blocks.free_unseen & ~blocks.from_before).sum()),
    )


def _counted(measured: MeasuredStep) -> Int64:
    """Return the expected count of the allocator after each event, from 0 before the first.

    The total of the CPU's allocator drops at a free of an earlier block only if it reported the free, by the bytes that
    it allocated at this address when it was last profiled.
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


# --- merge with the memory events of the trace ---


def with_trace(measured: Memory, traced: Memory | None) -> Memory:
    """Return a capture's measurements, completed with curve, blocks and figures from its trace."""
    if traced is None:
        return measured
    if measured.peak_bytes is None and not measured.components:
        return traced
    return replace(
        measured,
        timeline=measured.timeline or traced.timeline,
        blocks=measured.blocks or traced.blocks,
        unlisted_bytes=measured.unlisted_bytes if measured.blocks else traced.unlisted_bytes,
        devices=measured.devices or traced.devices,
    )


# Write warnings about disagreements in the memory of a step.


def warnings_of(memory: Memory) -> tuple[str, ...]:
    """Return what a reader should know before trusting memory figures.

    These are warnings on the memory events of the trace (the CPU's only if they are the memory of the step), and on the
    step observed allocation by allocation.
    """
    warnings = [] if memory.allocator is None else _disagreements_with_allocator(memory, memory.allocator)
    for row in (*memory.devices[:1], *(other for other in memory.devices[1:] if other.device != CPU)):
        if row.checked_events > row.equal_events:
            unequal = row.checked_events - row.equal_events
            warnings.append(
                f"memory of {row.device}: in {unequal:,} of {row.checked_events:,} events the allocator's total"
                f" differs from the sum of the blocks, by up to {row.largest_difference_bytes:,} B: the trace lacks"
                " allocations or frees, or has them in a different order"
            )
        if row.unseen_frees:
            warnings.append(
                f"memory of {row.device}: {row.unseen_frees:,} addresses ({row.unseen_free_bytes:,} B) were"
                " allocated again although the trace has no free in between; the earlier blocks count as freed at that"
                " moment"
            )
        if row.uneven_frees:
            warnings.append(
                f"memory of {row.device}: {row.uneven_frees:,} frees released a different size than was allocated"
                " at their address: the trace lacks allocations and frees in between"
            )
        if row.matched_by == "size":
            warnings.append(
                f"memory of {row.device}: the events have no addresses, so each free is matched to the most recent"
                " allocation of the same size; operators and components of equal-sized blocks may be swapped, but the"
                " totals are exact"
            )
    return tuple(warnings)


def _disagreements_with_allocator(memory: Memory, figures: AllocatorFigures) -> list[str]:
    """Return disagreements of the replayed step with the allocator; none if it reports no blocks."""
    warnings = []
    replayed = figures.before_blocks_bytes is not None and figures.checked_events
    if replayed and figures.peak_bytes is not None and memory.peak_bytes not in (None, figures.peak_bytes):
        warnings.append(
            f"memory of {figures.device}: the allocator's own peak for the step is {figures.peak_bytes:,} B, but"
            f" its replayed allocations peak at {memory.peak_bytes:,} B, so components and curve are off by the"
            " difference"
        )
    unequal = figures.checked_events - figures.equal_events
    if unequal and not (figures.device == CPU and figures.unseen_frees):
        warnings.append(
            f"memory of {figures.device}: in {unequal:,} of {figures.checked_events:,} allocations of the step the"
            f" allocator's total differs from the replayed blocks, by up to {figures.largest_difference_bytes:,} B:"
            " the profiler lost some of these allocations, or an unprofiled thread made some"
        )
    if figures.unseen_frees:
        warnings.append(
            f"memory of {figures.device}: the profiler missed the frees of {figures.unseen_frees:,} blocks of the step;"
            " they count as freed when their address was reused"
        )
    return warnings
