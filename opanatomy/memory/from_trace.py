"""The memory of a step from the memory events of its trace alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.memory.blocks import Blocks, blocks_of
from opanatomy.memory.curve import Curve, curve_of, points_of
from opanatomy.memory.events import CPU, agreement, by_device, known, of_rows, possible
from opanatomy.memory.inference import BEFORE_WINDOW, COMPONENTS, RULES, HostRows, Placing, Rule, host_rows, place
from opanatomy.memory.passes import Host, Passes, passes_of
from opanatomy.records.columns import Int64, MemoryEvents
from opanatomy.records.memory import Memory, MemoryBlocks, MemoryComponent, MemoryDevice, MemoryInference
from opanatomy.records.taxonomy import PHASES, Phase

#: How many groups of blocks of the peak are listed.
LISTED: Final = 100


class _Device(Struct, frozen=True, kw_only=True):
    """One device taken apart."""

    row: MemoryDevice
    events: MemoryEvents
    blocks: Blocks
    placing: Placing
    curve: Curve
    passes: Passes


def memory_of_trace(
    events: MemoryEvents,
    around: Int64,
    host: Host,
    names: Sequence[str],
    *,
    window: tuple[int, int],
    spans: Sequence[tuple[int, int, Phase]] = (),
    on_device: bool = False,
) -> Memory | None:
    """The memory of the window: curve, peak, what is live there and what it is inferred to be; `None` without events.

    `around` is the host row around each event on its thread (-1 none), `window` in ns, `spans` a capture's phase
    ranges. Each device is taken apart, the accelerator with the highest peak in detail. Where the trace is of an
    accelerator (`on_device`) that recorded nothing, the CPU's events are not the memory of the step: only its row is
    given.
    """
    possible_rows = possible(events)
    if not len(possible_rows):
        return None
    rows = host_rows(host, names)
    devices = [
        _device(label, of_rows(events, mine), around[mine], rows, window, spans)
        for label, mine in by_device(events, possible_rows)
    ]
    devices.sort(key=lambda device: (device.row.device == CPU, -device.row.peak_bytes))
    main = devices[0]
    if on_device and main.row.device == CPU:
        return Memory(devices=(main.row,))
    blocks, unlisted = _blocks_at_peak(main, rows)
    complete = main.row.checked_events and main.row.device != CPU
    incomplete = "" if complete else ", without what was allocated before it and not freed in it"
    reserved = known(main.events.total_reserved)
    return Memory(
        peak_bytes=main.row.peak_bytes,
        peak_at=main.row.peak_at,
        measured_by=f"memory events of {main.row.device} in the trace{incomplete}",
        components=main.row.components,
        inferences=main.row.inferences,
        timeline=points_of(main.curve, reserved, main.passes, window),
        blocks=blocks,
        unlisted_bytes=unlisted,
        devices=tuple(device.row for device in devices),
    )


def with_trace(measured: Memory, found: Memory | None) -> Memory:
    """What a capture measured, with the curve and the blocks of its trace; what it did not measure is the trace's."""
    if found is None:
        return measured
    if measured.peak_bytes is None and not measured.components:
        return found
    return replace(
        measured,
        timeline=measured.timeline or found.timeline,
        blocks=measured.blocks or found.blocks,
        unlisted_bytes=measured.unlisted_bytes if measured.blocks else found.unlisted_bytes,
        devices=measured.devices or found.devices,
    )


def _device(
    label: str, events: MemoryEvents, around: Int64, rows: HostRows, window: tuple[int, int],
    spans: Sequence[tuple[int, int, Phase]],
) -> _Device:  # fmt: skip
    blocks = blocks_of(events)
    passes = passes_of(rows.host, rows.is_operator, np.unique(events.thread), spans)
    placing = place(blocks, events, around, rows, passes)
    agreed = agreement(events.total_allocated, np.cumsum(blocks.changes()))
    unmatched = int(blocks.unmatched_bytes.sum())
    before = unmatched if agreed.offset_bytes is None else max(agreed.offset_bytes, unmatched)
    curve = curve_of(blocks, placing.rule, before, events.time_ns, window)
    reserved = known(events.total_reserved)
    never = blocks.never_freed
    row = MemoryDevice(
        device=label,
        events=blocks.events,
        blocks=len(blocks.alloc),
        peak_bytes=int(curve.allocated[curve.peak]),
        peak_ns=int(curve.time_ns[curve.peak]) - window[0],
        peak_at=PHASES[int(passes[0].phase_of(passes[0].at(curve.time_ns[[curve.peak]]))[0])],
        matched_by="address" if blocks.by_address else "size",
        before_window_bytes=before if before or (agreed.checked and label != CPU) else None,
        reserved_peak_bytes=_positive(reserved[max(curve.first - 1, 0) : curve.last].max(initial=0)),
        reserved_at_peak_bytes=_positive(reserved[max(curve.peak - 1, 0)]),
        unmatched_frees=len(blocks.unmatched),
        unmatched_free_bytes=unmatched,
        never_freed=int(never.sum()),
        never_freed_bytes=int(blocks.bytes[never].sum()),
        unseen_frees=int(blocks.unseen.sum()),
        unseen_free_bytes=int(blocks.bytes[blocks.unseen].sum()),
        uneven_frees=blocks.uneven,
        checked_events=agreed.checked,
        equal_events=agreed.equal,
        largest_difference_bytes=agreed.largest_difference_bytes,
        at_largest_difference=agreed.at_largest_difference,
    )
    inferences = _inferences(blocks, placing, curve)
    row = replace(row, inferences=inferences, components=_components(inferences, curve))
    return _Device(row=row, events=events, blocks=blocks, placing=placing, curve=curve, passes=passes[0])


def _positive(value: int | np.int64) -> int | None:
    return int(value) if value > 0 else None


def _inferences(blocks: Blocks, placing: Placing, curve: Curve) -> tuple[MemoryInference, ...]:
    """What is live at the peak, by rule."""
    live = blocks.live_after(curve.peak)
    before = blocks.unmatched >= curve.peak
    found = []
    for rule in Rule:
        component, why = RULES[rule]
        mine = live[placing.rule[live] == rule]
        size, count = int(blocks.bytes[mine].sum()), len(mine)
        if rule == Rule.BEFORE:
            size, count = int(curve.by_component[COMPONENTS.index(BEFORE_WINDOW), curve.peak]), int(before.sum())
        if size:
            found.append(MemoryInference(component=component, rule=why, bytes=size, blocks=count))
    return tuple(sorted(found, key=lambda row: (COMPONENTS.index(row.component), -row.bytes)))


def _components(inferences: Sequence[MemoryInference], curve: Curve) -> tuple[MemoryComponent, ...]:
    """The components at the peak; they sum to it."""
    at_peak = curve.by_component[:, curve.peak].tolist()
    for place_, component in enumerate(COMPONENTS):
        assert at_peak[place_] == sum(row.bytes for row in inferences if row.component == component)
    return tuple(
        MemoryComponent(component=component, measured_bytes=size)
        for component, size in zip(COMPONENTS, at_peak, strict=True)
        if size
    )


def _blocks_at_peak(device: _Device, rows: HostRows) -> tuple[tuple[MemoryBlocks, ...], int]:
    """The blocks that are live at the peak, by what allocated them, largest sums first; and the bytes of the rest."""
    host, placing = rows.host, device.placing
    groups: dict[tuple[str | None, str | None, int, int], list[int]] = {}
    live = device.blocks.live_after(device.curve.peak)
    for row, phase, rule, size in zip(
        placing.row[live].tolist(), placing.phase[live].tolist(), placing.rule[live].tolist(),
        device.blocks.bytes[live].tolist(), strict=True,
    ):  # fmt: skip
        operator = rows.names[host.name[row]] if row >= 0 else None
        module = host.module.at(row) if row >= 0 else None
        groups.setdefault((operator, module, phase, rule), []).append(size)
    found = sorted(
        (
            MemoryBlocks(
                operator=operator, module=module, phase=PHASES[phase], component=RULES[Rule(rule)][0],
                blocks=len(sizes), bytes=sum(sizes), largest_bytes=max(sizes), rule=RULES[Rule(rule)][1],
            )
            for (operator, module, phase, rule), sizes in groups.items()
        ),
        key=lambda one: -one.bytes,
    )  # fmt: skip
    return tuple(found[:LISTED]), sum(one.bytes for one in found[LISTED:])
