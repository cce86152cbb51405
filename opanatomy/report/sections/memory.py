"""The memory of a step: components, the curve, what lives at the peak, what is saved for backward, snapshots."""

from __future__ import annotations

from typing import Final

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.memory import CONTEXT, START, Memory, MemoryComponent
from opanatomy.report.section import (
    Bytes,
    Cell,
    Change,
    Column,
    Count,
    Holds,
    Name,
    Note,
    Row,
    Section,
    Share,
    Tone,
    phrase,
)

#: Rows of the table of the blocks at the peak; of what is saved for backward twice as many.
_LISTED: Final = 5


def components(anatomy: Anatomy) -> Section | None:
    """Each component measured and by theory, the peak and what measured it, and what is inferred."""
    memory = anatomy.memory
    if not memory.components and memory.peak_bytes is None:
        return None
    # from a trace alone each component is inferred, and at the peak
    inferred = bool(memory.inferences) and all(
        part.at_peak_bytes in (None, part.measured_bytes) for part in memory.components
    )
    parts = [part for part in memory.components if not (_on_cpu(anatomy) and part.component == CONTEXT)]
    in_depth = not inferred and any(part.at_peak_bytes is not None for part in memory.components)
    columns = (
        Column(header="memory", holds=Holds.NAMES),
        Column(header="at peak" if inferred else "measured"),
        *((Column(header="at peak"),) if in_depth else ()),
        Column(header="theory", expendable=1),
        Column(header="off", expendable=2),
        Column(header="formula", holds=Holds.FORMULAS, expendable=3),
    )
    peak = f"peak in {memory.peak_at}" if memory.peak_at else "peak"
    if memory.allocator_peak_bytes is None and memory.process_peak_bytes is not None:
        peak = "peak of the process"
    sizes: tuple[Cell, ...] = (None, Bytes(memory.peak_bytes)) if in_depth else (Bytes(memory.peak_bytes),)
    rows = [Row(cells=_component(part, in_depth)) for part in parts]
    rows.append(Row(cells=(peak, *sizes, None, None, None), summary=True))
    return Section(name="components", title="Memory", columns=columns, rows=tuple(rows), notes=_how_it_is_known(memory))


def _component(part: MemoryComponent, in_depth: bool) -> tuple[Cell, ...]:
    known = part.theory_bytes is not None
    return (
        _words(part.component),
        Bytes(part.measured_bytes),
        *((Bytes(part.at_peak_bytes),) if in_depth else ()),
        Bytes(part.theory_bytes) if known else None,
        Change(part.measured_bytes, part.theory_bytes) if known else None,
        part.formula or None,
    )


def _how_it_is_known(memory: Memory) -> tuple[Note, ...]:
    texts = [f"peak: {memory.measured_by}"] if memory.measured_by else []
    texts += dict.fromkeys(f"inferred {_words(item.component)}: {item.rule}" for item in memory.inferences)
    return tuple(Note(text=text, tone=Tone.REMARK) for text in texts)


def curve(anatomy: Anatomy) -> Section:
    """The allocated bytes over the window by component."""
    return Section(name="memory-curve", title="Allocated bytes over the window", curve=anatomy.memory.timeline)


def blocks(anatomy: Anatomy) -> Section | None:
    """What lives at the peak, by the operator and module that allocated it."""
    memory = anatomy.memory
    if not memory.blocks:
        return None
    columns = (
        Column(header="live at the peak", holds=Holds.NAMES),
        Column(header="operator", holds=Holds.NAMES),
        Column(header="module", holds=Holds.NAMES, expendable=2),
        Column(header="phase", holds=Holds.NAMES, expendable=1),
        Column(header="blocks", expendable=3),
        Column(header="bytes"),
        Column(header="of peak", expendable=4),
    )
    rows = [
        Row(
            cells=(
                _words(part.component),
                Name(part.operator) if part.operator else None,
                part.module or None,
                part.phase.value,
                Count(part.blocks),
                Bytes(part.bytes),
                Share(part.bytes, memory.peak_bytes),
            )
        )
        for part in memory.blocks[:_LISTED]
    ]
    others = memory.unlisted_bytes + sum(part.bytes for part in memory.blocks[_LISTED:])
    if others:
        rows.append(Row(cells=("and more", None, None, None, None, Bytes(others), Share(others, memory.peak_bytes))))
    return Section(name="memory-peak", title="Live at the peak", columns=columns, rows=tuple(rows))


def activations(anatomy: Anatomy) -> Section | None:
    """What forward saved for backward, by module, operator and shape."""
    ranked = sorted(anatomy.memory.activations, key=lambda part: -part.bytes)
    if not ranked:
        return None
    columns = (
        Column(header="saved for backward", holds=Holds.NAMES),
        Column(header="made by", holds=Holds.NAMES, expendable=1),
        Column(header="shape", holds=Holds.NAMES, expendable=2),
        Column(header="each"),
        Column(header="bytes"),
    )
    rows = [
        Row(
            cells=(
                part.module or "the model",
                Name(part.operator) if part.operator else None,
                f"{part.dtype}[{','.join(map(str, part.shape))}]",
                phrase("{} x {}", Count(part.blocks), Bytes(part.bytes // max(part.blocks, 1))),
                Bytes(part.bytes),
            )
        )
        for part in ranked[: 2 * _LISTED]
    ]
    if others := ranked[2 * _LISTED :]:
        more = phrase("and {} more", Count(len(others)))
        rows.append(Row(cells=(more, None, None, None, Bytes(sum(part.bytes for part in others)))))
    return Section(name="saved-activations", title="Saved for backward", columns=columns, rows=tuple(rows))


def snapshots(anatomy: Anatomy) -> Section | None:
    """What was in use at each place of the run that was looked at."""
    shown = [item for item in anatomy.memory.snapshots if not (_on_cpu(anatomy) and item.name == CONTEXT)]
    if not shown:
        return None
    columns = (
        Column(header="memory at each stage", holds=Holds.NAMES),
        Column(header="allocated", expendable=1),
        Column(header="reserved", expendable=3),
        Column(header="GPU occupied", expendable=4),
        Column(header="process", expendable=2),
    )
    rows = []
    for snapshot in shown:
        sizes = (snapshot.allocated_bytes, snapshot.reserved_bytes, snapshot.nvml_used_bytes, snapshot.rss_bytes)
        cells = (None if size is None else Bytes(size) for size in sizes)
        name = "at the start" if _on_cpu(anatomy) and snapshot.name == START else _words(snapshot.name)
        rows.append(Row(cells=(name, *cells)))
    return Section(name="snapshots", title="Memory at each stage", columns=columns, rows=tuple(rows))


def remarks(anatomy: Anatomy) -> Section:
    """What could not be measured, and why."""
    notes = tuple(Note(text=note, tone=Tone.REMARK) for note in anatomy.memory.notes)
    return Section(name="memory-notes", title="What of the memory is not known", notes=notes)


def _on_cpu(anatomy: Anatomy) -> bool:
    """Whether no device took part, whose context would be a row of nothing."""
    return anatomy.environment.device_kind == "cpu"


def _words(name: str) -> str:
    return name.replace("_", " ")
