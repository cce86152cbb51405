"""The memory that a capture observed with that of the events in its trace."""

from __future__ import annotations

from msgspec.structs import replace

from opanatomy.records.memory import Memory


def with_trace(measured: Memory, traced: Memory | None) -> Memory:
    """What a capture measured, with the curve and the blocks of its trace; what it did not measure is the trace's."""
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
