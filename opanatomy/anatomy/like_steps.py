"""Which steps made the same calls, and which of these do not count in a mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from opanatomy.records.columns import Int64, rows_by_value

#: Work of other steps that fills more than this part of a step makes its times another step's.
FOREIGN: Final = 0.01
#: A step that is as many times as long as the shortest like it, and idle for the difference, holds a pause.
PAUSED: Final = 2


def kinds_of(step: Int64, name: Int64, signature: Int64, count: int) -> list[list[int]]:
    """The steps, by number from 0, that made the same calls, as lists; those with most steps first.

    `step`, `name` and `signature` are those of each kernel, on the CPU of each operator call. Where hardly two steps
    have the same arguments (batches of any length) the names alone decide.
    """
    width = int(signature.max(initial=-1)) + 2
    exact = _alike(step, name * width + signature + 1, count)
    if 2 * sum(len(kind) for kind in exact if len(kind) > 1) >= count:
        return exact
    return _alike(step, name, count)


def _alike(step: Int64, call: Int64, count: int) -> list[list[int]]:
    kinds: dict[tuple[bytes, bytes], list[int]] = {}
    calls = {number: call[rows] for number, rows in rows_by_value(step)}
    for number in range(count):
        values, times = np.unique(calls.get(number, call[:0]), return_counts=True)
        kinds.setdefault((values.tobytes(), times.tobytes()), []).append(number)
    return sorted(kinds.values(), key=lambda kind: (-len(kind), kind))


def set_aside(wall_ns: Sequence[int], foreign_ns: Sequence[int], idle_ns: Sequence[int]) -> list[str | None]:
    """Why each of several like steps does not count; `None` where it does, which one at least does.

    `foreign_ns` is the time in which the device did work of other steps only.
    """
    reasons: list[str | None] = [
        "other steps' work is in it" if foreign > FOREIGN * wall else None
        for wall, foreign in zip(wall_ns, foreign_ns, strict=True)
    ]
    clean = [place for place, reason in enumerate(reasons) if reason is None]
    if not clean:
        return [None] * len(reasons)
    shortest = min(clean, key=lambda place: wall_ns[place])
    for place in clean:
        longer, paused = wall_ns[place] - wall_ns[shortest], idle_ns[place] - idle_ns[shortest]
        if wall_ns[place] > PAUSED * wall_ns[shortest] and 2 * paused > longer:
            reasons[place] = "a pause is in it"
    return reasons
