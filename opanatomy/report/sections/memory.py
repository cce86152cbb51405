"""Report the memory of a step: components, the curve, the blocks at the peak, tensors saved for backward, snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.memory import (
    CONTEXT,
    START,
    Memory,
    MemoryBlocks,
    MemoryComponent,
    MemoryPart,
    MemoryPoint,
    MemoryPool,
    MemorySnapshot,
    MemoryTerm,
    PublishedFigure,
    SavedActivations,
)
from opanatomy.records.taxonomy import Phase
from opanatomy.report import units
from opanatomy.report.section import (
    Bytes,
    Cell,
    Change,
    Column,
    ColumnKind,
    Columns,
    Count,
    Figure,
    Name,
    Note,
    NoteKind,
    Page,
    Phrase,
    Row,
    Section,
    Share,
    cells_of,
    phrase,
)


def components(anatomy: Anatomy) -> Section | None:
    """Return each component measured and by theory, the peak and its source, and the inferred figures."""
    memory = anatomy.memory
    if not memory.components and memory.peak_bytes is None:
        return None
    if memory.moment is not None:
        return _snapshot_section(memory)
    # from a trace alone each component is inferred at the peak
    inferred = bool(memory.inferences) and all(
        part.at_peak_bytes in (None, part.measured_bytes) for part in memory.components
    )
    known = "measured" if anatomy.estimated is None else "computed"
    parts = [part for part in memory.components if not (_on_cpu(anatomy) and part.component == CONTEXT)]
    in_depth = not inferred and any(part.at_peak_bytes is not None for part in memory.components)
    columns: Columns[MemoryComponent] = {
        Column(header="memory", holds=ColumnKind.NAMES, least=13): lambda part: _words(part.component),
        Column(header="at peak" if inferred else known): lambda part: Bytes(part.measured_bytes),
        **({Column(header="at peak"): lambda part: Bytes(part.at_peak_bytes)} if in_depth else {}),
        Column(header="theory", drop_order=1): lambda part: _known(part.theory_bytes),
        Column(header="off", drop_order=2): lambda part: (
            None if part.theory_bytes is None else Change(part.measured_bytes, part.theory_bytes)
        ),
        Column(header="formula", holds=ColumnKind.FORMULAS, drop_order=3): lambda part: part.formula or None,
    }
    peak = f"peak in {memory.peak_at}" if memory.peak_at else "peak"
    if memory.allocator_peak_bytes is None and memory.process_peak_bytes is not None:
        peak = "peak of the process"
    rows = [Row(cells=cells_of(columns, part)) for part in parts]
    measured = "at peak" if inferred or in_depth else known
    rows.append(Row(cells={"memory": peak, measured: Bytes(memory.peak_bytes)}, summary=True))
    return Section(title="Memory", columns=tuple(columns), rows=tuple(rows), notes=_how_it_is_known(memory))


def _snapshot_section(memory: Memory) -> Section:
    """Return the components of a snapshot at the moment shown and, if that is another and known, at the peak."""
    now = "at peak" if memory.is_at_peak else memory.then
    peaks = [memory.peak_bytes, *(device.peak_bytes for device in memory.devices)]
    both = not memory.is_at_peak and (len(memory.devices) > 1 or any(size is not None for size in peaks))
    columns: Columns[MemoryComponent] = {
        Column(header="memory", holds=ColumnKind.NAMES, least=13): lambda part: _words(part.component),
        Column(header=now): lambda part: _known(part.shown_bytes),
        **({Column(header="at peak"): lambda part: _known(part.at_peak_bytes)} if both else {}),
    }
    rows = [Row(cells=cells_of(columns, part)) for part in memory.components]
    if not memory.is_at_peak:
        where = f"allocated in {memory.shown_at}" if memory.shown_at else "allocated"
        rows.append(Row(cells={"memory": where, now: _known(memory.shown_bytes)}, summary=True))
    if memory.peak_bytes is not None:
        peak: dict[str, Cell] = {"memory": f"peak in {memory.peak_at}", "at peak": Bytes(memory.peak_bytes)}
        rows.append(Row(cells=peak, summary=True))
    for device in memory.devices if len(memory.devices) > 1 else ():
        cells: dict[str, Cell] = {
            "memory": f"peak of {device.device}",
            "at peak": _known(device.peak_bytes) or "unknown",
        }
        rows.append(Row(cells=cells, summary=True))
    return Section(title="Memory", columns=tuple(columns), rows=tuple(rows), notes=_how_it_is_known(memory))


def _known(size: int | None) -> Bytes | None:
    return None if size is None else Bytes(size)


def _how_it_is_known(memory: Memory) -> tuple[Note, ...]:
    what = "sizes" if memory.peak_bytes is None else "peak"
    texts: list[str | Phrase] = [f"source of the {what}: {memory.measured_by}"] if memory.measured_by else []
    if memory.requested_peak_bytes is not None:
        texts.append(phrase("at most {} requested at one time", Bytes(memory.requested_peak_bytes)))
    texts += dict.fromkeys(f"{_words(item.component)} (inferred): {item.rule}" for item in memory.inferences)
    return tuple(Note(text=text, kind=NoteKind.REMARK) for text in texts)


def curve(anatomy: Anatomy) -> Section:
    """Return the allocated bytes over the window by component."""
    return Section(title="Allocated bytes over the window", curve=anatomy.memory.timeline)


def blocks(anatomy: Anatomy, page: Page) -> Section | None:
    """Return the live blocks at the peak, or at a snapshot's moment, by the operator and module that allocated them."""
    memory = anatomy.memory
    if not memory.blocks:
        return None
    live, of_it = f"live {memory.then}", "of peak" if memory.is_at_peak else "of it"
    columns: Columns[MemoryBlocks] = {
        Column(header=live, holds=ColumnKind.NAMES, least=18): lambda part: _words(part.component),
        Column(header="operator", holds=ColumnKind.NAMES): lambda part: Name(part.operator) if part.operator else None,
        Column(header="module", holds=ColumnKind.NAMES, drop_order=2): lambda part: part.module or None,
        Column(header="phase", holds=ColumnKind.NAMES, least=9, drop_order=1): lambda part: part.phase.value,
        Column(header="blocks", drop_order=3): lambda part: Count(part.blocks),
        Column(header="bytes"): lambda part: Bytes(part.bytes),
        Column(header=of_it, drop_order=4): lambda part: Share(part.bytes, memory.allocated_then),
    }
    rows = [Row(cells=cells_of(columns, part)) for part in memory.blocks[: page.top]]
    others = memory.unlisted_bytes + sum(part.bytes for part in memory.blocks[page.top :])
    if others:
        share = Share(others, memory.allocated_then)
        rows.append(Row(cells={live: "and more", "bytes": Bytes(others), of_it: share}))
    return Section(title=live.capitalize(), columns=tuple(columns), rows=tuple(rows))


#: The parts of a snapshot's moment that have a table each: the heading of its first column.
_MOMENT_TABLES: Final = {
    "line": "line of code",
    "module": "module, by the lines that call it",
    "operator_class": "operator class",
    "phase": "allocated in",
    "compiled": "compiled region",
}


def parts(of: str, anatomy: Anatomy, page: Page) -> Section | None:
    """Return the live memory by line, module, class or phase; the rows sum to all of it."""
    memory = anatomy.memory
    ranked = [part for part in memory.parts if part.of == of]
    if not any(part.name for part in ranked):
        return None
    header = _MOMENT_TABLES[of]
    columns: Columns[MemoryPart] = {
        Column(header=header, holds=ColumnKind.NAMES, least=18): lambda part: part.name or "no stack recorded",
        Column(header="component", holds=ColumnKind.NAMES, least=10): lambda part: _words(part.component),
        Column(header="blocks", drop_order=2): lambda part: Count(part.blocks),
        Column(header="bytes"): lambda part: Bytes(part.bytes),
        Column(header="of it", drop_order=1): lambda part: Share(part.bytes, memory.allocated_then),
    }
    rows = [Row(cells=cells_of(columns, part)) for part in ranked[: page.top]]
    if others := ranked[page.top :]:
        size = sum(part.bytes for part in others)
        more = phrase("and {} more", Count(len(others)))
        rows.append(Row(cells={header: more, "bytes": Bytes(size), "of it": Share(size, memory.allocated_then)}))
    return Section(title=header.capitalize(), columns=tuple(columns), rows=tuple(rows))


def pools(anatomy: Anatomy) -> Section | None:
    """Return the allocator's memory at the end of a snapshot: in use, rounding, and free."""
    held = anatomy.memory.pools
    if not held:
        return None
    several = len({(pool.device, pool.stream) for pool in held}) > 1
    columns: Columns[MemoryPool] = {
        Column(header="held at the end", holds=ColumnKind.NAMES, least=14): lambda pool: (
            f"{pool.pool}{' expandable' if pool.expandable else ''}"
            + (f", {pool.device}, stream {pool.stream}" if several else "")
        ),
        Column(header="segments", drop_order=3): lambda pool: Count(pool.segments),
        Column(header="reserved"): lambda pool: Bytes(pool.reserved_bytes),
        Column(header="in use"): lambda pool: Bytes(pool.requested_bytes),
        Column(header="rounding", drop_order=2): lambda pool: Bytes(pool.rounding_bytes),
        Column(header="free"): lambda pool: Bytes(pool.free_bytes),
        Column(header="largest free", drop_order=1): lambda pool: Bytes(pool.largest_free_bytes),
    }
    rows = [Row(cells=cells_of(columns, pool)) for pool in held]
    if len(held) > 1:
        cells: dict[str, Cell] = {
            "held at the end": "all",
            "segments": Count(sum(pool.segments for pool in held)),
            "reserved": Bytes(sum(pool.reserved_bytes for pool in held)),
            "in use": Bytes(sum(pool.requested_bytes for pool in held)),
            "rounding": Bytes(sum(pool.rounding_bytes for pool in held)),
            "free": Bytes(sum(pool.free_bytes for pool in held)),
            "largest free": Bytes(max(pool.largest_free_bytes for pool in held)),
        }
        rows.append(Row(cells=cells, summary=True))
    return Section(title="Held at the end", columns=tuple(columns), rows=tuple(rows))


def activations(anatomy: Anatomy, page: Page) -> Section | None:
    """Return the tensors that forward saved for backward, by module, operator and shape."""
    ranked = sorted(anatomy.memory.activations, key=lambda part: -part.bytes)
    if not ranked:
        return None
    columns: Columns[SavedActivations] = {
        Column(header="saved for backward", holds=ColumnKind.NAMES, least=11): lambda part: part.module or "the model",
        Column(header="made by", holds=ColumnKind.NAMES, least=8, drop_order=1): lambda part: (
            Name(part.operator) if part.operator else None
        ),
        Column(header="shape", holds=ColumnKind.NAMES, least=16, drop_order=2): lambda part: (
            f"{part.dtype}[{','.join(map(str, part.shape))}]"
        ),
        Column(header="each"): lambda part: phrase(
            "{} x {}", Count(part.blocks), Bytes(part.bytes // max(part.blocks, 1))
        ),
        Column(header="bytes"): lambda part: Bytes(part.bytes),
    }
    rows = [Row(cells=cells_of(columns, part)) for part in ranked[: page.top]]
    if others := ranked[page.top :]:
        more = phrase("and {} more", Count(len(others)))
        rows.append(Row(cells={"saved for backward": more, "bytes": Bytes(sum(part.bytes for part in others))}))
    return Section(title="Saved for backward", columns=tuple(columns), rows=tuple(rows))


def snapshots(anatomy: Anatomy) -> Section | None:
    """Return the memory in use at each place of the run with a snapshot."""
    shown = [item for item in anatomy.memory.snapshots if not (_on_cpu(anatomy) and item.name == CONTEXT)]
    if not shown:
        return None
    columns: Columns[MemorySnapshot] = {
        Column(header="memory at each stage", holds=ColumnKind.NAMES, least=18): lambda snapshot: (
            "at the start" if _on_cpu(anatomy) and snapshot.name == START else _words(snapshot.name)
        ),
        Column(header="allocated", drop_order=1): lambda snapshot: _known(snapshot.allocated_bytes),
        Column(header="reserved", drop_order=3): lambda snapshot: _known(snapshot.reserved_bytes),
        Column(header="GPU occupied", drop_order=4): lambda snapshot: _known(snapshot.nvml_used_bytes),
        Column(header="process", drop_order=2): lambda snapshot: _known(snapshot.rss_bytes),
    }
    rows = tuple(Row(cells=cells_of(columns, snapshot)) for snapshot in shown)
    return Section(title="Memory at each stage", columns=tuple(columns), rows=rows)


def remarks(anatomy: Anatomy) -> Section:
    """Return what could not be measured, and why."""
    notes = tuple(Note(text=note, kind=NoteKind.REMARK) for note in anatomy.memory.notes)
    return Section(title="What is unknown about the memory", notes=notes)


def _on_cpu(anatomy: Anatomy) -> bool:
    """Return whether no device was used, so that its context row would be empty."""
    return anatomy.environment.device_kind == "cpu"


def _words(name: str) -> str:
    return name.replace("_", " ")


# Memory by theory: terms of the activations, a published run next to ours, the need of a step that does not fit.


def terms(anatomy: Anatomy) -> Section | None:
    """Return the closed formula of the activations, term by term."""
    if not anatomy.memory.terms:
        return None
    columns: Columns[MemoryTerm] = {
        Column(header="activations by theory", holds=ColumnKind.NAMES, least=20): lambda term: term.term,
        Column(header="formula", holds=ColumnKind.FORMULAS, drop_order=1): lambda term: term.formula,
        Column(header="bytes"): lambda term: Bytes(term.bytes),
    }
    rows = [Row(cells=cells_of(columns, term)) for term in anatomy.memory.terms]
    whole = Bytes(sum(term.bytes for term in anatomy.memory.terms))
    rows.append(Row(cells={"activations by theory": "sum", "bytes": whole}, summary=True))
    return Section(title="Activations by theory", columns=tuple(columns), rows=tuple(rows))


def published(anatomy: Anatomy) -> Section | None:
    """Return the figures of a published run next to ours."""
    figures = anatomy.memory.published
    if not figures:
        return None
    columns: Columns[PublishedFigure] = {
        Column(header="the classic run", holds=ColumnKind.NAMES, least=20): lambda item: item.figure,
        Column(header=figures[0].published_device): lambda item: Figure(item.published, item.unit),
        Column(header="ours"): lambda item: Figure(item.measured, item.unit),
        Column(header="difference", drop_order=1): lambda item: Figure(
            None if item.measured is None else item.measured - item.published, item.unit, difference=True
        ),
    }
    rows = tuple(Row(cells=cells_of(columns, item)) for item in figures)
    return Section(title="The classic run", columns=tuple(columns), rows=rows)


def failure(anatomy: Anatomy) -> Section | None:
    """Return where it broke: the request, the allocated memory, the need by theory."""
    memory, event = anatomy.memory, anatomy.memory.failure
    if event is None:
        return None
    header = f"out of memory in {event.phase.value}"
    sizes = {"failed request": event.requested_bytes, "allocated then": event.allocated_bytes}
    if event.reserved_bytes is None:
        sizes["needed by theory, without buffers"] = memory.needed_bytes
    else:
        sizes["reserved then"] = event.reserved_bytes
        sizes["of it unused"] = event.unused_bytes
        sizes["free on the device then"] = event.device_free_bytes
    text = event.message if event.seen else f"{event.message} - the failure did not recur in a second step"
    text += "" if event.line is None else f", at {event.line}"
    rows = tuple(Row(cells={header: name, "bytes": Bytes(size)}) for name, size in sizes.items())
    return Section(
        title="Out of memory",
        rows=rows,
        columns=(Column(header=header, holds=ColumnKind.NAMES, least=24), Column(header="bytes")),
        notes=(Note(text=text, kind=NoteKind.REMARK),),
    )


# The curve of allocated bytes as text: a letter for each component, the phases below in capital letters.


_CURVE_HEIGHT: Final = 7
_CURVE_MARGIN: Final = 11
_MIN_CURVE_WIDTH: Final = 20
_FEWEST_POINTS: Final = 3
#: Letters of the components, from the bottom up; `?` for any other.
_LETTERS: Final = {
    "before_window": "=", "weights": "w", "autocast_weight_casts": "c", "buffers": "b", "optimizer_state": "o",
    "gradients": "g", "forward_activations": "a", "inputs": "i", "rng_states": "r", "key_value_cache": "k",
    "beam_copies": "m", "temporary_buffers": "t",
}  # fmt: skip
_OTHER: Final = "?"


def curve_lines(points: Sequence[MemoryPoint], width: int) -> tuple[list[str], str]:
    """Return the curve in lines of at most `width` cells and its letters' meaning; a remark if there is no room."""
    across = width - _CURVE_MARGIN - 1
    highest = max((point.allocated_bytes for point in points), default=0)
    if len(points) < _FEWEST_POINTS or highest <= 0:
        return [], ""
    if across < _MIN_CURVE_WIDTH:
        return [], "too narrow for the curve of allocated bytes"
    columns = _sampled(points, across)
    names = [name for name in _LETTERS if any(point.components.get(name) for point in points)]
    stacks = [_stack(point, names, highest) for point in columns]
    lines = []
    for level in range(_CURVE_HEIGHT - 1, -1, -1):
        labelled = level in (_CURVE_HEIGHT - 1, (_CURVE_HEIGHT - 1) // 2)
        label = units.size(highest * (level + 1) // _CURVE_HEIGHT) if labelled else ""
        body = "".join(stack[level] for stack in stacks).rstrip()
        lines.append(f"{label:>{_CURVE_MARGIN - 1}} {body}".rstrip())
    lines.append(f"{'phase':>{_CURVE_MARGIN - 1}} {''.join(_letter(point.phase) for point in columns)}")
    letters = [f"{_LETTERS[name]} {name.replace('_', ' ')}" for name in names]
    if any(set(point.components) - set(_LETTERS) for point in points):
        letters.append(f"{_OTHER} other")
    phases = dict.fromkeys(f"{_letter(point.phase)} {point.phase.value}" for point in columns)
    return lines, f"allocated over the window: {', '.join(letters)}; phases: {', '.join(phases)}"


def _letter(phase: Phase) -> str:
    return "." if phase is Phase.OTHER else phase.value[0].upper()


def _sampled(points: Sequence[MemoryPoint], count: int) -> list[MemoryPoint]:
    """Return the largest point in each of `count` equal parts of the window; for an empty part the last one before."""
    first, last = points[0].time_ns, points[-1].time_ns
    span = max(last - first, 1)
    highest: list[MemoryPoint | None] = [None] * count
    latest: list[MemoryPoint | None] = [None] * count
    for point in points:
        index = min((point.time_ns - first) * count // span, count - 1)
        best = highest[index]
        if best is None or point.allocated_bytes > best.allocated_bytes:
            highest[index] = point
        latest[index] = point
    sampled, current = [], points[0]
    for best, end in zip(highest, latest, strict=True):
        sampled.append(best or current)
        current = end or current
    return sampled


def _stack(point: MemoryPoint, names: Sequence[str], highest: int) -> str:
    """Return the letters of one column from the bottom up: each cell shows the component at its middle."""
    parts = [(_LETTERS[name], point.components.get(name, 0)) for name in names]
    parts.append((_OTHER, sum(size for name, size in point.components.items() if name not in _LETTERS)))
    cells = []
    for level in range(_CURVE_HEIGHT):
        at, below, letter = highest * (2 * level + 1) / (2 * _CURVE_HEIGHT), 0, " "
        for name, size in parts:
            below += size
            if at <= below:
                letter = name
                break
        cells.append(letter)
    return "".join(cells)
