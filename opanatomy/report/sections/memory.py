"""Report the memory of a step: components, the curve, the blocks at the peak, tensors saved for backward, snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.memory import CONTEXT, START, Memory, MemoryComponent, MemoryPoint
from opanatomy.records.taxonomy import Phase
from opanatomy.report import units
from opanatomy.report.section import (
    Bytes,
    Cell,
    Change,
    Column,
    ColumnKind,
    Count,
    Figure,
    Name,
    Note,
    NoteStyle,
    Row,
    Section,
    Share,
    phrase,
)

#: Rows of the table of the blocks at the peak; the table of saved tensors has twice as many.
_LISTED: Final = 5


def components(anatomy: Anatomy) -> Section | None:
    """Return each component measured and by theory, the peak and its source, and the inferred figures."""
    memory = anatomy.memory
    if not memory.components and memory.peak_bytes is None:
        return None
    # from a trace alone each component is inferred at the peak
    inferred = bool(memory.inferences) and all(
        part.at_peak_bytes in (None, part.measured_bytes) for part in memory.components
    )
    parts = [part for part in memory.components if not (_on_cpu(anatomy) and part.component == CONTEXT)]
    in_depth = not inferred and any(part.at_peak_bytes is not None for part in memory.components)
    columns = (
        Column(header="memory", holds=ColumnKind.NAMES),
        Column(header="at peak" if inferred else "measured"),
        *((Column(header="at peak"),) if in_depth else ()),
        Column(header="theory", drop_order=1),
        Column(header="off", drop_order=2),
        Column(header="formula", holds=ColumnKind.FORMULAS, drop_order=3),
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
    return tuple(Note(text=text, tone=NoteStyle.REMARK) for text in texts)


def curve(anatomy: Anatomy) -> Section:
    """Return the allocated bytes over the window by component."""
    return Section(name="memory-curve", title="Allocated bytes over the window", curve=anatomy.memory.timeline)


def blocks(anatomy: Anatomy) -> Section | None:
    """Return the live blocks at the peak, by the operator and module that allocated them."""
    memory = anatomy.memory
    if not memory.blocks:
        return None
    columns = (
        Column(header="live at the peak", holds=ColumnKind.NAMES),
        Column(header="operator", holds=ColumnKind.NAMES),
        Column(header="module", holds=ColumnKind.NAMES, drop_order=2),
        Column(header="phase", holds=ColumnKind.NAMES, drop_order=1),
        Column(header="blocks", drop_order=3),
        Column(header="bytes"),
        Column(header="of peak", drop_order=4),
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
    """Return the tensors that forward saved for backward, by module, operator and shape."""
    ranked = sorted(anatomy.memory.activations, key=lambda part: -part.bytes)
    if not ranked:
        return None
    columns = (
        Column(header="saved for backward", holds=ColumnKind.NAMES),
        Column(header="made by", holds=ColumnKind.NAMES, drop_order=1),
        Column(header="shape", holds=ColumnKind.NAMES, drop_order=2),
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
    """Return the memory in use at each place of the run with a snapshot."""
    shown = [item for item in anatomy.memory.snapshots if not (_on_cpu(anatomy) and item.name == CONTEXT)]
    if not shown:
        return None
    columns = (
        Column(header="memory at each stage", holds=ColumnKind.NAMES),
        Column(header="allocated", drop_order=1),
        Column(header="reserved", drop_order=3),
        Column(header="GPU occupied", drop_order=4),
        Column(header="process", drop_order=2),
    )
    rows = []
    for snapshot in shown:
        sizes = (snapshot.allocated_bytes, snapshot.reserved_bytes, snapshot.nvml_used_bytes, snapshot.rss_bytes)
        cells = (None if size is None else Bytes(size) for size in sizes)
        name = "at the start" if _on_cpu(anatomy) and snapshot.name == START else _words(snapshot.name)
        rows.append(Row(cells=(name, *cells)))
    return Section(name="snapshots", title="Memory at each stage", columns=columns, rows=tuple(rows))


def remarks(anatomy: Anatomy) -> Section:
    """Return what could not be measured, and why."""
    notes = tuple(Note(text=note, tone=NoteStyle.REMARK) for note in anatomy.memory.notes)
    return Section(name="memory-notes", title="What of the memory is not known", notes=notes)


def _on_cpu(anatomy: Anatomy) -> bool:
    """Return whether no device took part: the row of its context would be empty."""
    return anatomy.environment.device_kind == "cpu"


def _words(name: str) -> str:
    return name.replace("_", " ")


# Memory by theory: terms of the activations, a published run next to ours, the need of a step that does not fit.


def terms(anatomy: Anatomy) -> Section | None:
    """Return the closed formula of the activations, term by term."""
    if not anatomy.memory.terms:
        return None
    columns = (
        Column(header="activations by theory", holds=ColumnKind.NAMES),
        Column(header="formula", holds=ColumnKind.FORMULAS, drop_order=1),
        Column(header="bytes"),
    )
    rows = [Row(cells=(term.term, term.formula, Bytes(term.bytes))) for term in anatomy.memory.terms]
    whole = sum(term.bytes for term in anatomy.memory.terms)
    rows.append(Row(cells=("sum", None, Bytes(whole)), summary=True))
    return Section(name="activation-terms", title="Activations by theory", columns=columns, rows=tuple(rows))


def published(anatomy: Anatomy) -> Section | None:
    """Return the figures of a published run next to ours."""
    figures = anatomy.memory.published
    if not figures:
        return None
    columns = (
        Column(header="the classic run", holds=ColumnKind.NAMES),
        Column(header=figures[0].published_device),
        Column(header="ours"),
        Column(header="difference", drop_order=1),
    )
    rows = []
    for item in figures:
        difference = None if item.measured is None else item.measured - item.published
        cells = (
            Figure(item.published, item.unit),
            Figure(item.measured, item.unit),
            Figure(difference, item.unit, difference=True),
        )
        rows.append(Row(cells=(item.figure, *cells)))
    return Section(name="published", title="The classic run", columns=columns, rows=tuple(rows))


def failure(anatomy: Anatomy) -> Section | None:
    """Return where it broke: the request, the allocated memory, the need by theory."""
    memory, event = anatomy.memory, anatomy.memory.failure
    if event is None:
        return None
    sizes = (
        ("the request that failed", event.requested_bytes),
        ("allocated when it broke", event.allocated_bytes),
        ("needed by theory, buffers apart", memory.needed_bytes),
    )
    columns = (Column(header=f"out of memory in {event.phase.value}", holds=ColumnKind.NAMES), Column(header="bytes"))
    text = event.message if event.seen else f"{event.message} - not seen again in a second step"
    return Section(
        name="out-of-memory",
        title="Out of memory",
        columns=columns,
        rows=tuple(Row(cells=(name, Bytes(size))) for name, size in sizes),
        notes=(Note(text=text, tone=NoteStyle.REMARK),),
    )


def savings(anatomy: Anatomy) -> Section | None:
    """Return what would lower the need if the step did not fit."""
    memory = anatomy.memory
    if memory.failure is None or not memory.savings:
        return None
    columns = (
        Column(header="would save", holds=ColumnKind.NAMES),
        Column(header="option", holds=ColumnKind.NAMES, drop_order=2),
        Column(header="bytes"),
        Column(header="then needed", drop_order=1),
        Column(header="fits"),
    )
    fits = {True: "yes", False: "no", None: "perhaps"}
    rows = tuple(
        Row(
            cells=(
                saving.technique, saving.option, Bytes(saving.saved_bytes), Bytes(saving.needed_bytes),
                fits[saving.fits],
            )
        )
        for saving in memory.savings
    )  # fmt: skip
    return Section(name="savings", title="What would save memory", columns=columns, rows=rows)


# The curve of allocated bytes as text: a letter for each component, the phases below in capital letters.


_HEIGHT: Final = 7
_MARGIN: Final = 11
_NARROWEST: Final = 20
_FEWEST_POINTS: Final = 3
#: The letters of the components, from the bottom up; any other one is `?`.
_LETTERS: Final = {
    "before_window": "=", "weights": "w", "autocast_weight_casts": "c", "buffers": "b", "optimizer_state": "o",
    "gradients": "g", "forward_activations": "a", "inputs": "i", "rng_states": "r", "key_value_cache": "k",
    "beam_copies": "m", "temporary_buffers": "t",
}  # fmt: skip
_OTHER: Final = "?"


def curve_lines(points: Sequence[MemoryPoint], width: int) -> tuple[list[str], str]:
    """Return the curve in lines of at most `width` cells and its letters' meaning; a remark if there is no room."""
    across = width - _MARGIN - 1
    highest = max((point.allocated_bytes for point in points), default=0)
    if len(points) < _FEWEST_POINTS or highest <= 0:
        return [], ""
    if across < _NARROWEST:
        return [], "no room for the curve of allocated bytes"
    columns = _sampled(points, across)
    names = [name for name in _LETTERS if any(point.components.get(name) for point in points)]
    stacks = [_stack(point, names, highest) for point in columns]
    lines = []
    for level in range(_HEIGHT - 1, -1, -1):
        labelled = level in (_HEIGHT - 1, (_HEIGHT - 1) // 2)
        label = units.size(highest * (level + 1) // _HEIGHT) if labelled else ""
        body = "".join(stack[level] for stack in stacks).rstrip()
        lines.append(f"{label:>{_MARGIN - 1}} {body}".rstrip())
    lines.append(f"{'phase':>{_MARGIN - 1}} {''.join(_letter(point.phase) for point in columns)}")
    return lines, _legend(points, columns, names)


def _legend(points: Sequence[MemoryPoint], columns: Sequence[MemoryPoint], names: Sequence[str]) -> str:
    letters = [f"{_LETTERS[name]} {name.replace('_', ' ')}" for name in names]
    if any(set(point.components) - set(_LETTERS) for point in points):
        letters.append(f"{_OTHER} other")
    phases = dict.fromkeys(f"{_letter(point.phase)} {point.phase.value}" for point in columns)
    return f"allocated over the window: {', '.join(letters)}; phases: {', '.join(phases)}"


def _letter(phase: Phase) -> str:
    return "." if phase is Phase.OTHER else phase.value[0].upper()


def _sampled(points: Sequence[MemoryPoint], count: int) -> list[MemoryPoint]:
    """Return the largest point in each of `count` equal parts of the window; for an empty part the last one before."""
    first, last = points[0].time_ns, points[-1].time_ns
    span = max(last - first, 1)
    highest: list[MemoryPoint | None] = [None] * count
    latest: list[MemoryPoint | None] = [None] * count
    for point in points:
        place = min((point.time_ns - first) * count // span, count - 1)
        best = highest[place]
        if best is None or point.allocated_bytes > best.allocated_bytes:
            highest[place] = point
        latest[place] = point
    sampled, current = [], points[0]
    for best, end in zip(highest, latest, strict=True):
        sampled.append(best or current)
        current = end or current
    return sampled


def _stack(point: MemoryPoint, names: Sequence[str], highest: int) -> str:
    """Return the letters of one column from the bottom up: each cell that of the component at its middle."""
    parts = [(_LETTERS[name], point.components.get(name, 0)) for name in names]
    parts.append((_OTHER, sum(size for name, size in point.components.items() if name not in _LETTERS)))
    cells = []
    for level in range(_HEIGHT):
        at, below, letter = highest * (2 * level + 1) / (2 * _HEIGHT), 0, " "
        for name, size in parts:
            below += size
            if at <= below:
                letter = name
                break
        cells.append(letter)
    return "".join(cells)
