"""The memory of a step in the terminal report: components, the curve, what lives at the peak, check points."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from rich.text import Text

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.memory import Memory, MemoryPoint
from opanatomy.records.taxonomy import Phase
from opanatomy.report import units
from opanatomy.report.table import PAGE, Column, Row, cut, prose, table

_HEIGHT: Final = 7
_MARGIN: Final = 11
#: The letters of the components in the curve, from the bottom up; any other one is `?`.
_LETTERS: Final = {
    "before_window": "=", "weights": "w", "autocast_weight_casts": "c", "buffers": "b", "optimizer_state": "o",
    "gradients": "g", "forward_activations": "a", "inputs": "i", "rng_states": "r", "temporary_buffers": "t",
}  # fmt: skip
_OTHER: Final = "?"
_LISTED: Final = 5
_WIDE: Final = 100


def memory_tables(anatomy: Anatomy, width: int) -> list[Text] | None:
    """All that is known of the memory, a blank line between the parts; `None` where nothing is."""
    memory = anatomy.memory
    parts = (
        _components(memory, width),
        _curve(memory, width),
        _blocks(memory, width),
        _activations(memory, width),
        _check_points(memory, width),
        _terms(memory, width),
        _published(memory, width),
        _failure(memory, width),
        _savings(memory, width),
        [line for note in memory.notes for line in prose(note, width, style="dim")],
    )
    found = [part for part in parts if part]
    if not found:
        return None
    lines = list(found[0])
    for part in found[1:]:
        lines += [Text(""), *part]
    return lines


def _components(memory: Memory, width: int) -> list[Text]:
    if not memory.components and memory.peak_bytes is None:
        return []
    deep = any(part.at_peak_bytes is not None for part in memory.components)
    columns = [
        Column(header="memory", name=True, least=13),
        Column(header="measured"),
        *([Column(header="at peak")] if deep else []),
        Column(header="theory", drop=1),
        Column(header="off", drop=2),
        # Half a formula is a wrong formula: all of it or none.
        Column(header="formula", name=True, least=sys.maxsize, drop=3),
    ]
    rows = [
        Row(
            cells=(
                part.component.replace("_", " "),
                units.size(part.measured_bytes),
                *([units.size(part.at_peak_bytes)] if deep else []),
                "" if part.theory_bytes is None else units.size(part.theory_bytes),
                "" if part.theory_bytes is None else units.change(part.measured_bytes, part.theory_bytes),
                part.formula or "",
            )
        )
        for part in memory.components
    ]
    peak = "peak" + (f" in {memory.peak_at}" if memory.peak_at else "")
    sizes = ["", units.size(memory.peak_bytes)] if deep else [units.size(memory.peak_bytes)]
    rows.append(Row(cells=(peak, *sizes, "", "", ""), strong=True))
    lines = table(columns, rows, width)
    said = f"peak: {memory.measured_by}" if memory.measured_by else ""
    rules = dict.fromkeys(f"{one.component.replace('_', ' ')}: {one.rule}" for one in memory.inferences)
    lines += prose(said, width, style="dim") if said else []
    for rule in rules:
        lines += prose(f"inferred {rule}", width, style="dim")
    return lines


def _curve(memory: Memory, width: int) -> list[Text]:
    """The allocated bytes over the window, stacked by component, the phases below."""
    points = memory.timeline
    if len(points) < 3:
        return []
    across = min(width, PAGE) - _MARGIN - 1
    columns = _sampled(points, across)
    most = max(point.allocated_bytes for point in points)
    if across < 20 or most <= 0:
        return []
    names = [name for name in _LETTERS if any(point.components.get(name) for point in points)]
    others = any(set(point.components) - set(_LETTERS) for point in points)
    stacks = [_stack(point, names, most) for point in columns]
    lines = []
    for level in range(_HEIGHT - 1, -1, -1):
        label = units.size(most * (level + 1) // _HEIGHT) if level in (_HEIGHT - 1, (_HEIGHT - 1) // 2) else ""
        body = "".join(stack[level] for stack in stacks).rstrip()
        lines.append(Text(f"{label:>{_MARGIN - 1}} {body}".rstrip()))
    lines.append(Text(f"{'phase':>{_MARGIN - 1}} {''.join(_letter(point.phase) for point in columns)}"))
    legend = [f"{_LETTERS[name]} {name.replace('_', ' ')}" for name in names] + ([f"{_OTHER} other"] if others else [])
    phases = dict.fromkeys(f"{_letter(point.phase)} {point.phase.value}" for point in columns)
    lines += prose(f"allocated over the window: {', '.join(legend)}; phases: {', '.join(phases)}", width, style="dim")
    return lines


def _letter(phase: Phase) -> str:
    return "." if phase is Phase.OTHER else phase.value[0]


def _sampled(points: Sequence[MemoryPoint], count: int) -> list[MemoryPoint]:
    """The point with most bytes in each of `count` equal parts of the window; the last before where a part has none."""
    first, last = points[0].time_ns, points[-1].time_ns
    span = max(last - first, 1)
    chosen: list[MemoryPoint | None] = [None] * count
    left: list[MemoryPoint | None] = [None] * count
    for point in points:
        place = min((point.time_ns - first) * count // span, count - 1)
        best = chosen[place]
        if best is None or point.allocated_bytes > best.allocated_bytes:
            chosen[place] = point
        left[place] = point
    found, current = [], points[0]
    for best, end in zip(chosen, left, strict=True):
        found.append(best or current)
        current = end or current
    return found


def _stack(point: MemoryPoint, names: Sequence[str], most: int) -> str:
    """The letters of one column from the bottom up: each cell that of the component at its middle."""
    parts = [(_LETTERS[name], point.components.get(name, 0)) for name in names]
    parts.append((_OTHER, sum(size for name, size in point.components.items() if name not in _LETTERS)))
    cells = []
    for level in range(_HEIGHT):
        at, below, letter = most * (2 * level + 1) / (2 * _HEIGHT), 0, " "
        for name, size in parts:
            below += size
            if at <= below:
                letter = name
                break
        cells.append(letter)
    return "".join(cells)


def _blocks(memory: Memory, width: int) -> list[Text]:
    if not memory.blocks:
        return []
    columns = [
        Column(header="live at the peak", name=True, least=18),
        Column(header="operator", name=True, least=12),
        Column(header="module", name=True, least=12, drop=2),
        Column(header="phase", name=True, least=9, drop=1),
        Column(header="blocks", drop=3),
        Column(header="bytes"),
        Column(header="of peak", drop=4),
    ]
    rows = [
        Row(
            cells=(
                part.component.replace("_", " "),
                _short(part.operator, width),
                part.module or "",
                part.phase.value,
                units.count(part.blocks),
                units.size(part.bytes),
                units.share(part.bytes, memory.peak_bytes),
            )
        )
        for part in memory.blocks[:_LISTED]
    ]
    rest = memory.unlisted_bytes + sum(part.bytes for part in memory.blocks[_LISTED:])
    if rest:
        rows.append(Row(cells=("and more", "", "", "", "", units.size(rest), units.share(rest, memory.peak_bytes))))
    return table(columns, rows, width)


def _activations(memory: Memory, width: int) -> list[Text]:
    if not memory.activations:
        return []
    columns = [
        Column(header="saved for backward", name=True, least=11),
        Column(header="made by", name=True, least=8, drop=1),
        Column(header="shape", name=True, least=16, drop=2),
        Column(header="each"),
        Column(header="bytes"),
    ]
    ranked = sorted(memory.activations, key=lambda part: -part.bytes)
    rows = [
        Row(
            cells=(
                part.module or "the model",
                _short(part.operator, width),
                f"{part.dtype}[{','.join(map(str, part.shape))}]",
                f"{units.count(part.blocks)} x {units.size(part.bytes // max(part.blocks, 1))}",
                units.size(part.bytes),
            )
        )
        for part in ranked[: 2 * _LISTED]
    ]
    if rest := ranked[2 * _LISTED :]:
        rows.append(Row(cells=(f"and {len(rest)} more", "", "", "", units.size(sum(part.bytes for part in rest)))))
    return table(columns, rows, width)


def _check_points(memory: Memory, width: int) -> list[Text]:
    if not memory.snapshots:
        return []
    columns = [
        Column(header="memory", name=True, least=18),
        Column(header="allocated"),
        Column(header="reserved", drop=1),
        Column(header="GPU occupied", drop=1),
        Column(header="process", drop=2),
    ]
    rows = [
        Row(
            cells=(
                point.name.replace("_", " "),
                *(
                    "" if value is None else units.size(value)
                    for value in (point.allocated_bytes, point.reserved_bytes, point.nvml_used_bytes, point.rss_bytes)
                ),
            )
        )
        for point in memory.snapshots
    ]
    return table(columns, rows, width)


def _terms(memory: Memory, width: int) -> list[Text]:
    """The closed formula of the activations, term by term, beside what was measured."""
    if not memory.terms:
        return []
    columns = [
        Column(header="activations by theory", name=True, least=20),
        Column(header="formula", name=True, least=sys.maxsize, drop=1),
        Column(header="bytes"),
    ]
    rows = [Row(cells=(term.term, term.formula, units.size(term.bytes))) for term in memory.terms]
    whole = sum(term.bytes for term in memory.terms)
    rows.append(Row(cells=("sum", "", units.size(whole)), strong=True))
    return table(columns, rows, width)


def _published(memory: Memory, width: int) -> list[Text]:
    if not memory.published:
        return []
    columns = [
        Column(header="the classic run", name=True, least=20),
        Column(header=memory.published[0].published_device),
        Column(header="ours"),
        Column(header="difference", drop=1),
    ]
    rows = [
        Row(
            cells=(
                one.figure,
                _figure(one.published, one.unit),
                units.UNKNOWN if one.measured is None else _figure(one.measured, one.unit),
                units.UNKNOWN if one.measured is None else _figure(one.measured - one.published, one.unit, sign="+"),
            )
        )
        for one in memory.published
    ]
    return table(columns, rows, width)


def _figure(value: float, unit: str, *, sign: str = "-") -> str:
    """Whole where that is exact enough, else three digits."""
    return f"{value:{sign},.0f} {unit}" if abs(value) >= 100 else f"{value:{sign}.3g} {unit}"


def _failure(memory: Memory, width: int) -> list[Text]:
    """Where it broke: what was asked for, what was allocated, what theory says is needed."""
    failure = memory.failure
    if failure is None:
        return []
    facts = (
        ("the request that failed", failure.requested_bytes),
        ("allocated when it broke", failure.allocated_bytes),
        ("needed by theory, buffers apart", memory.needed_bytes),
    )
    columns = [Column(header=f"out of memory in {failure.phase.value}", name=True, least=24), Column(header="bytes")]
    rows = [Row(cells=(name, units.size(size))) for name, size in facts]
    said = failure.message if failure.seen else f"{failure.message} - not seen again in a second step"
    return [*table(columns, rows, width), *prose(said, width, style="dim")]


def _savings(memory: Memory, width: int) -> list[Text]:
    """What would lower the need, where the step did not fit."""
    if memory.failure is None or not memory.savings:
        return []
    columns = [
        Column(header="would save", name=True, least=20),
        Column(header="option", name=True, least=16, drop=2),
        Column(header="bytes"),
        Column(header="then needed", drop=1),
        Column(header="fits"),
    ]
    fits = {True: "yes", False: "no", None: "perhaps"}
    rows = [
        Row(
            cells=(
                one.technique,
                one.option,
                units.size(one.saved_bytes),
                units.size(one.needed_bytes),
                fits[one.fits],
            )
        )
        for one in memory.savings
    ]
    return table(columns, rows, width)


def _short(name: str | None, width: int) -> str:
    plain = name or ""
    return cut(plain if width >= _WIDE else plain.removeprefix("aten::"), 40)
