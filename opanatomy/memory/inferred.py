"""Infer the memory of a step from the memory events of its trace alone."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, auto
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.memory.allocations import (
    CPU,
    Agreement,
    Blocks,
    agreement,
    blocks_of,
    events_at,
    groups_at,
    plausible_totals,
    possible_rows,
    rows_by_device,
)
from opanatomy.memory.components import ROUNDING
from opanatomy.memory.curve import ComponentBytes, Curve, curve_of, points_of
from opanatomy.memory.passes import (
    PhaseIntervals,
    ThreadOperators,
    outermost,
    passes_of_calls,
    requesting_operators,
    thread_operators,
)
from opanatomy.records.columns import Bool, HostCalls, Int64, MemoryEvents, MemoryTable, unique
from opanatomy.records.memory import Memory, MemoryComponent, MemoryDevice, MemoryInference
from opanatomy.records.taxonomy import BACKWARD, FORWARDS, OPTIMIZER, RECOMPUTE
from opanatomy.records.workload import MODULE_RANGE, PHASE_RANGE

# --- rules: the component of a block, by when and in which call it was allocated and freed ---


BEFORE_WINDOW: Final = "before_window"
WEIGHTS: Final = "weights"
OPTIMIZER_STATE: Final = "optimizer_state"
GRADIENTS: Final = "gradients"
FORWARD_ACTIVATIONS: Final = "forward_activations"
WEIGHT_CASTS: Final = "autocast_weight_casts"
TEMPORARY_BUFFERS: Final = "temporary_buffers"
WORKSPACE: Final = "blas_workspace"
COMMUNICATION: Final = "communication_buffers"
OTHER_BLOCKS: Final = "other"
#: The components in the order in which they are stacked.
COMPONENTS: Final = (
    BEFORE_WINDOW, WEIGHTS, WEIGHT_CASTS, OPTIMIZER_STATE, GRADIENTS, FORWARD_ACTIVATIONS, WORKSPACE, COMMUNICATION,
    TEMPORARY_BUFFERS, OTHER_BLOCKS, ROUNDING,
)  # fmt: skip


class Rule(IntEnum):
    """The rule that assigned a block's component; `RULES` has its description."""

    BEFORE = 0
    RECOMPUTED = auto()
    ONE_OPERATOR = auto()
    FORWARD_ONLY = auto()
    BACKWARD_ONLY = auto()
    OPTIMIZER_ONLY = auto()
    ACTIVATION = auto()
    GRADIENT = auto()
    STATE = auto()
    FORWARD_KEPT = auto()
    OPTIMIZER_KEPT = auto()
    ELSEWHERE = auto()
    # Of memory snapshots, whose stacks say more.
    BLAS = auto()
    BLAS_SIZED = auto()
    EXCHANGED = auto()
    MOVED_MODULE = auto()
    WEIGHT_CAST = auto()
    WEIGHT_SIZED = auto()
    WEIGHTS_BEFORE = auto()
    STATE_REPLACED = auto()
    STATE_BEFORE = auto()
    STATE_UPDATED = auto()
    GRADIENT_BEFORE = auto()
    GRADIENT_KEPT = auto()
    WEIGHT_OF_SOME = auto()
    STATE_OF_SOME = auto()
    BROKEN_OFF = auto()
    DROPPED = auto()
    NO_STACK = auto()
    NO_HISTORY = auto()
    ROUNDED = auto()


RULES: Final = {
    Rule.BEFORE: (
        BEFORE_WINDOW,
        "allocated before the trace, so weights, optimizer state and the rest cannot be told apart",
    ),
    Rule.RECOMPUTED: (FORWARD_ACTIVATIONS, "allocated during recomputation, freed later in the same backward"),
    Rule.ONE_OPERATOR: (TEMPORARY_BUFFERS, "allocated and freed within one operator call"),
    Rule.FORWARD_ONLY: (TEMPORARY_BUFFERS, "allocated and freed in the same forward"),
    Rule.BACKWARD_ONLY: (TEMPORARY_BUFFERS, "allocated and freed in the same backward"),
    Rule.OPTIMIZER_ONLY: (TEMPORARY_BUFFERS, "allocated and freed in the same optimizer step"),
    Rule.ACTIVATION: (FORWARD_ACTIVATIONS, "allocated in forward, freed in backward"),
    Rule.GRADIENT: (GRADIENTS, "allocated in backward, alive after backward"),
    Rule.STATE: (OPTIMIZER_STATE, "allocated in the optimizer, never freed"),
    Rule.FORWARD_KEPT: (OTHER_BLOCKS, "allocated in forward, not freed in forward or backward"),
    Rule.OPTIMIZER_KEPT: (OTHER_BLOCKS, "allocated in the optimizer, freed later"),
    Rule.ELSEWHERE: (OTHER_BLOCKS, "allocated outside forward, backward and optimizer"),
    Rule.BLAS: (WORKSPACE, "allocated by a library's handle for its own work"),
    Rule.BLAS_SIZED: (WORKSPACE, "never freed, one or two per stream, as large as a library's workspace"),
    Rule.EXCHANGED: (COMMUNICATION, "allocated by torch.distributed or its backend"),
    Rule.MOVED_MODULE: (WEIGHTS, "allocated while a module was built or moved, never freed"),
    Rule.WEIGHT_CAST: (WEIGHT_CASTS, "allocated by autocast in forward, freed later, half as large as a weight"),
    Rule.WEIGHT_SIZED: (WEIGHTS, "allocated before the first forward, never freed, as large as a gradient"),
    Rule.WEIGHTS_BEFORE: (
        WEIGHTS,
        "allocated before the recording, never freed, as large as a gradient, among the first blocks of that size",
    ),
    Rule.STATE_REPLACED: (OPTIMIZER_STATE, "allocated in the optimizer, freed in a later optimizer step"),
    Rule.STATE_BEFORE: (OPTIMIZER_STATE, "allocated before the recording, freed in the optimizer"),
    Rule.STATE_UPDATED: (
        OPTIMIZER_STATE,
        "allocated before the recording, never freed, as large as a gradient, but not among the first blocks of that"
        " size",
    ),
    Rule.GRADIENT_BEFORE: (GRADIENTS, "allocated before the recording, freed between updates, as large as a gradient"),
    Rule.BROKEN_OFF: (
        FORWARD_ACTIVATIONS,
        "allocated in the forward in which memory ran out or the recording ended, alive at that moment",
    ),
    Rule.DROPPED: (FORWARD_ACTIVATIONS, "allocated in forward, kept after forward, freed without a backward"),
    Rule.WEIGHT_OF_SOME: (
        WEIGHTS,
        "allocated before the recording, never freed, in the first of two to four equal parts of the blocks of its"
        " size",
    ),
    Rule.GRADIENT_KEPT: (
        GRADIENTS,
        "allocated before the recording, never freed, in the second of two to four equal parts of the blocks of its"
        " size",
    ),
    Rule.STATE_OF_SOME: (
        OPTIMIZER_STATE,
        "allocated before the recording, never freed, in the third or fourth equal part of the blocks of its size",
    ),
    Rule.NO_STACK: (OTHER_BLOCKS, "unknown: the recording has no stack for it"),
    Rule.NO_HISTORY: (OTHER_BLOCKS, "unknown: no history was recorded, and the stack alone does not show what it is"),
    Rule.ROUNDED: (ROUNDING, "allocated beyond the request: blocks are rounded up in steps of at least 512 B"),
}
#: Ranges that some releases record as operators.
_NODES: Final = ("autograd::", "torch::autograd::")
_RANGES: Final = (PHASE_RANGE, MODULE_RANGE, "ProfilerStep", "Optimizer.", "enumerate(DataLoader)", "## ")


class Operators(Struct, frozen=True):
    """Masks of the host calls that are operators or autograd nodes, not ranges around them."""

    is_operator: Bool
    #: Operators called by the dispatcher, without autograd nodes, which may contain a whole backward.
    is_call: Bool


def operators_among(calls: HostCalls) -> Operators:
    """Return masks of the host calls by kind."""
    texts = calls.name.values
    is_range = np.array([name.startswith(_RANGES) for name in texts], dtype=bool)
    is_call = np.array(["::" in name and not name.startswith(_NODES) for name in texts], dtype=bool)
    is_operator = (calls.annotation == 0) & ~is_range[calls.name.codes]
    return Operators(is_operator, is_operator & is_call[calls.name.codes])


class Ruling(Struct, frozen=True):
    """The components in stacking order, and each rule's component and description."""

    components: tuple[str, ...]
    rules: tuple[tuple[str, str], ...]

    @property
    def component_of(self) -> Int64:
        """Return the index of each rule's component."""
        return np.array([self.components.index(component) for component, _ in self.rules], dtype=np.int64)

    def with_own(self, categories: Sequence[str]) -> Ruling:
        """Return this ruling with a rule added for each user-defined category."""
        new = tuple(name for name in dict.fromkeys(categories) if name not in self.components)
        index = self.components.index(OTHER_BLOCKS)
        return Ruling(
            (*self.components[:index], *new, *self.components[index:]),
            (
                *self.rules,
                *((name, "allocated under a frame that matches one of your categories") for name in categories),
            ),
        )


RULING: Final = Ruling(COMPONENTS, tuple(RULES[rule] for rule in Rule))


class BlockLabels(Struct, frozen=True, kw_only=True):
    """For each block the host row of the operator that wanted it (-1 none), its phase, and its rule of `ruling`."""

    row: Int64
    phase: Int64
    rule: Int64
    ruling: Ruling = RULING

    @property
    def component(self) -> Int64:
        """Return the index of the component of each block."""
        return self.ruling.component_of[self.rule]


def place(
    blocks: Blocks,
    time_ns: Int64,
    call: Int64,
    calls: HostCalls,
    operators: Operators,
    passes: tuple[PhaseIntervals, PhaseIntervals],
) -> BlockLabels:
    """Find what allocated each block and infer its component; `call` is each event's row of `calls`, -1 none."""
    inner = call[blocks.alloc]
    inside = np.flatnonzero(inner >= 0)
    inside = inside[operators.is_operator[inner[inside]]]
    row = np.full(len(inner), -1, dtype=np.int64)
    row[inside] = requesting_operators(inner[inside], calls.name, calls.parent, operators.is_operator)
    until = np.full(len(inner), np.iinfo(np.int64).min, dtype=np.int64)
    called = inside[operators.is_call[inner[inside]]]
    until[called] = calls.end_ns[outermost(inner[called], calls.parent, operators.is_call)]
    phase = passes[0].phase_at(time_ns[blocks.alloc])
    phase[inside] = calls.phase[inner[inside]]
    return BlockLabels(row=row, phase=phase, rule=rules_of(blocks, time_ns, passes, phase, until))


def rules_of(
    blocks: Blocks, time_ns: Int64, passes: tuple[PhaseIntervals, PhaseIntervals], phase: Int64, until: Int64
) -> Int64:
    """Return the rule of each block: the first that holds."""
    freed = ~blocks.never_freed
    begin, end = time_ns[blocks.alloc], time_ns[np.minimum(blocks.free, max(blocks.events - 1, 0))]
    whole, parts = passes
    same = freed & (whole.at(begin) == whole.at(end))
    in_forward, in_update = np.isin(phase, FORWARDS), phase == OPTIMIZER
    in_backward = (phase == BACKWARD) | (phase == RECOMPUTE)
    cases = (
        (Rule.RECOMPUTED, (phase == RECOMPUTE) & same & (parts.at(begin) != parts.at(end))),
        (Rule.ONE_OPERATOR, freed & (end <= until)),
        (Rule.FORWARD_ONLY, in_forward & same),
        (Rule.BACKWARD_ONLY, in_backward & same),
        (Rule.OPTIMIZER_ONLY, in_update & same),
        (Rule.ACTIVATION, in_forward & freed & (whole.phase_at(end) == BACKWARD)),
        (Rule.GRADIENT, in_backward),
        (Rule.STATE, in_update & ~freed),
        (Rule.FORWARD_KEPT, in_forward),
        (Rule.OPTIMIZER_KEPT, in_update),
    )
    return np.select([holds for _, holds in cases], [int(rule) for rule, _ in cases], int(Rule.ELSEWHERE))


class _Host(Struct, frozen=True, kw_only=True):
    """The host's calls around the events, and a cache of the passes by threads."""

    calls: HostCalls
    operators: Operators
    by_thread: ThreadOperators
    table: MemoryTable
    passes: dict[bytes, tuple[PhaseIntervals, PhaseIntervals]]

    def passes_on(self, threads: Int64) -> tuple[PhaseIntervals, PhaseIntervals]:
        """Return the passes on the distinct threads among these."""
        threads = unique(threads).values
        key = threads.tobytes()
        if key not in self.passes:
            self.passes[key] = passes_of_calls(self.by_thread, threads, self.table.spans)
        return self.passes[key]


class _Device(Struct, frozen=True, kw_only=True):
    """The memory of one device."""

    row: MemoryDevice
    events: MemoryEvents
    blocks: Blocks
    placing: BlockLabels
    curve: Curve
    passes: PhaseIntervals


def memory_of_trace(table: MemoryTable, window: tuple[int, int], *, on_device: bool = False) -> Memory | None:
    """Return the memory of the window (ns): curve, peak, blocks live at the peak; `None` without events.

    Each device is analyzed, the accelerator with the highest peak in detail. If the trace is of an accelerator
    (`on_device`) that recorded no memory events, the CPU's events are not the memory of the step, and only its row is
    given.
    """
    allocating = possible_rows(table.events)
    calls = table.calls
    if not len(allocating) or not isinstance(calls, HostCalls):
        return None
    operators = operators_among(calls)
    host = _Host(
        calls=calls,
        operators=operators,
        by_thread=thread_operators(calls, operators.is_operator),
        table=table,
        passes={},
    )
    devices = [_device(label, rows, host, window) for label, rows in rows_by_device(table.events, allocating)]
    devices.sort(key=lambda device: (device.row.device == CPU, -(device.row.peak_bytes or 0)))
    main = devices[0]
    if on_device and main.row.device == CPU:
        return Memory(devices=(main.row,))
    blocks, unlisted = groups_at(
        main.blocks,
        main.curve.peak,
        calls.name.take(main.placing.row),
        calls.module.take(main.placing.row),
        main.placing.phase,
        main.placing.rule,
        main.placing.ruling.rules,
    )
    complete = main.row.checked_events and main.row.device != CPU
    incomplete = "" if complete else ", excluding blocks allocated before the trace and not freed during it"
    return Memory(
        peak_bytes=main.row.peak_bytes,
        allocator_peak_bytes=main.row.peak_bytes,
        peak_at=main.row.peak_at,
        measured_by=f"memory events of {main.row.device} in the trace{incomplete}",
        components=main.row.components,
        inferences=main.row.inferences,
        timeline=points_of(main.curve, plausible_totals(main.events.total_reserved), main.passes),
        blocks=blocks,
        unlisted_bytes=unlisted,
        devices=tuple(device.row for device in devices),
    )


def _device(label: str, rows: Int64, host: _Host, window: tuple[int, int]) -> _Device:
    events = events_at(host.table.events, rows)
    blocks = blocks_of(events)
    every = np.arange(len(blocks.alloc))
    passes = host.passes_on(events.thread)
    placing = place(blocks, events.time_ns, host.table.call[rows], host.calls, host.operators, passes)
    counted = blocks.changes(every, blocks.bytes)
    counted[blocks.unmatched + 1] -= blocks.unmatched_bytes
    agreed = agreement(events.total_allocated, counted.cumsum()[1:])
    unmatched = int(blocks.unmatched_bytes.sum())
    before = unmatched if agreed.offset_bytes is None else max(agreed.offset_bytes, unmatched)
    shares = ComponentBytes(
        components=COMPONENTS,
        block=every,
        component=placing.component,
        bytes=blocks.bytes,
        earlier=BEFORE_WINDOW,
        earlier_bytes=before,
    )
    curve = curve_of(blocks, shares, events.time_ns, window)
    reserved = plausible_totals(events.total_reserved)
    reserved_peak = int(reserved[max(curve.first - 1, 0) : curve.last].max(initial=0))
    reserved_at_peak = int(reserved[max(curve.peak - 1, 0)])
    known_before = before if before or (agreed.checked and label != CPU) else None
    inferences = inferences_at(curve.peak, blocks, placing, curve)
    row = replace(
        row_of(label, blocks, curve, agreed, passes[0]),
        before_window_bytes=known_before,
        inferences=inferences,
        components=components_at(inferences, curve),
        reserved_peak_bytes=reserved_peak if reserved_peak > 0 else None,
        reserved_at_peak_bytes=reserved_at_peak if reserved_at_peak > 0 else None,
    )
    return _Device(row=row, events=events, blocks=blocks, placing=placing, curve=curve, passes=passes[0])


def row_of(label: str, blocks: Blocks, curve: Curve, agreed: Agreement, passes: PhaseIntervals) -> MemoryDevice:
    """Return the figures of a device."""
    never = blocks.never_freed
    return MemoryDevice(
        device=label,
        events=blocks.events,
        blocks=len(blocks.alloc),
        peak_bytes=int(curve.allocated[curve.peak]),
        peak_ns=int(curve.time_ns[curve.peak]) - curve.window[0],
        peak_at=curve.phase_at(curve.peak, passes),
        matched_by="address" if blocks.by_address else "size",
        unmatched_frees=len(blocks.unmatched),
        unmatched_free_bytes=int(blocks.unmatched_bytes.sum()),
        never_freed=int(never.sum()),
        never_freed_bytes=int(blocks.bytes[never].sum()),
        unseen_frees=int(blocks.free_unseen.sum()),
        unseen_free_bytes=int(blocks.bytes[blocks.free_unseen].sum()),
        uneven_frees=blocks.uneven,
        checked_events=agreed.checked,
        equal_events=agreed.equal,
        largest_difference_bytes=agreed.largest_difference_bytes,
        at_largest_difference=agreed.at_largest_difference,
    )


def inferences_at(state: int, blocks: Blocks, placing: BlockLabels, curve: Curve) -> tuple[MemoryInference, ...]:
    """Return the bytes live after `state` events, by rule."""
    live = blocks.live_after(state)
    before = blocks.unmatched >= state
    inferences = []
    for rule, (component, why) in enumerate(placing.ruling.rules):
        ruled = live[placing.rule[live] == rule]
        size, count = int(blocks.bytes[ruled].sum()), len(ruled)
        if rule == Rule.BEFORE:
            size, count = int(curve.of(BEFORE_WINDOW)[state]), count + int(before.sum())
        if rule == Rule.ROUNDED:
            size, count = int(curve.of(ROUNDING)[state]), len(live)
        if size:
            inferences.append(MemoryInference(component=component, rule=why, bytes=size, blocks=count))
    order = placing.ruling.components
    return tuple(sorted(inferences, key=lambda row: (order.index(row.component), -row.bytes)))


def components_at(inferences: Sequence[MemoryInference], curve: Curve) -> tuple[MemoryComponent, ...]:
    """Return the components at the peak, which sum to it."""
    at_peak = curve.by_component[:, curve.peak].tolist()
    for size, component in zip(at_peak, COMPONENTS, strict=True):
        assert size == sum(row.bytes for row in inferences if row.component == component)
    return tuple(
        MemoryComponent(component=component, measured_bytes=size, at_peak_bytes=size)
        for component, size in zip(COMPONENTS, at_peak, strict=True)
        if size
    )
