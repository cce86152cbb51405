"""Slow steps with what stalled them removed, by replay and by subtraction, beside the other steps of their trace.

    python benchmarks/stalled_steps.py TRACE ...

A step that is set aside for a pause is replayed without its idle causes that the others lack: input, the allocator,
slow launches, and the host's gaps of a millisecond and more. Subtraction takes the idle time of these causes off.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

from opanatomy.analysis import build
from opanatomy.analysis.replay import GAP, Change, StepGraph
from opanatomy.pipeline import analyze_traces, summary_of_trace
from opanatomy.records.anatomy import StepRow
from opanatomy.records.taxonomy import IdleCause

STALLS = (IdleCause.INPUT, IdleCause.ALLOCATOR, IdleCause.SLOW_LAUNCH)


def rows_of(path: Path) -> list[str]:
    """Give a line for each step that is set aside for a pause."""
    rows = analyze_traces([path]).step.steps
    like = [row.wall_ns for row in rows if row.set_aside is None]
    lines = []
    for row in rows:
        if row.set_aside is None or "pause" not in row.set_aside or row.number is None or not like:
            continue
        graphs: list[StepGraph] = []
        with patch.object(build, "why_set_aside", partial(_all_but, row.number)):
            summary_of_trace(path, graphs=graphs)
        changes = [Change(cause.value, 0.0) for cause in STALLS]
        replayed = graphs[0].time_ns(changes)
        gaps = graphs[0].time_ns([*changes, Change(GAP, 0.0)])
        left = row.wall_ns - sum(row.idle_causes.get(cause, 0) for cause in STALLS)
        others = statistics.mean(like)
        lines.append(
            f"{path.parent.name + '/' + path.name:56} {row.number:4} {row.wall_ns / 1e6:9.1f} {replayed / 1e6:9.1f}"
            f" {gaps / 1e6:9.1f} {left / 1e6:9.1f} {others / 1e6:9.1f} {replayed / others - 1:+8.1%}"
        )
    return lines


def _all_but(number: int, rows: Sequence[StepRow], *_: object, **__: object) -> list[str | None]:
    return [None if row.number == number else "another step" for row in rows]


def main() -> None:
    """Print a table of all traces."""
    print(f"{'trace':56} step  recorded  replayed  and gaps  subtract    others  replayed/others")
    for path in map(Path, sys.argv[1:]):
        for line in rows_of(path):
            print(line)


if __name__ == "__main__":
    main()
