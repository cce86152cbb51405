"""The curve of allocated bytes as text: a letter for each component, the phases below in capital letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from opanatomy.records.memory import MemoryPoint
from opanatomy.records.taxonomy import Phase
from opanatomy.report import units

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
    """The curve in lines of at most `width` cells and what its letters mean; where there is no room for it, that."""
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
    """The point with most bytes in each of `count` equal parts of the window; the last before where a part has none."""
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
    """The letters of one column from the bottom up: each cell that of the component at its middle."""
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
