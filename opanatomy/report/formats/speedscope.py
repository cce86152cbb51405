"""Write modules and lines by time for speedscope (speedscope.app), which opens it from disk: a profile for each phase.

A stack is the modules from the model down, or user code lines from the outermost on, then the class of work. Weights
are nanoseconds over all profiled steps and sum exactly to the time of all classes; work outside modules, or without a
known line, has a frame that says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from opanatomy.errors import UsageError
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.reports import Report
from opanatomy.records.taxonomy import PHASES, Phase
from opanatomy.records.work import LineRow, ModuleRow
from opanatomy.report.names import printable
from opanatomy.report.section import LABEL, Format, Page

MODULES, LINES = "modules", "lines"
_OUTSIDE: Final = {MODULES: "outside modules", LINES: "no line known"}


def checked(report: Report, name: str) -> Anatomy:
    """Return the report of a run with times; raise `UsageError`, naming the format, for any other report."""
    if not isinstance(report, Anatomy):
        raise UsageError(f"-f {name}: supports only one run - pass the report or trace of one run")
    if report.memory.is_snapshot and not report.classes:
        raise UsageError(f"-f {name}: shows times, which a memory snapshot does not have - pass a trace")
    return report


def speedscope_profile(report: Report, page: Page) -> str:
    """Return the profiles as JSON; raise `UsageError` unless the report covers one run."""
    anatomy = checked(report, "speedscope")
    frames: dict[str, int] = {}
    profiles = list(_profiles(anatomy, MODULES, frames))
    profiles += _profiles(anatomy, LINES, frames) if anatomy.lines else ()
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": f"opanatomy {anatomy.provenance.opanatomy}",
        "name": printable(anatomy.workload.model or anatomy.provenance.trace or "a training step"),
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": name} for name in frames]},
        "profiles": profiles,
    }
    return json.dumps(document, separators=(",", ":")) + "\n"


def stacks_of(anatomy: Anatomy, of: str) -> Iterator[tuple[Phase, tuple[str, ...], int]]:
    """Yield the phase, the stack of modules or lines with the class of the work, and the nanoseconds of each."""
    root = anatomy.workload.architecture or "the model"
    left = {(row.phase, row.operator_class): row.time_ns for row in anatomy.classes}
    rows: Iterator[tuple[tuple[str, ...], ModuleRow | LineRow]] = (
        ((root, *filter(None, row.module.split("."))), row) for row in anatomy.modules
    )
    if of == LINES:
        rows = ((tuple(filter(None, row.stack.split(";"))), row) for row in anatomy.lines)
    for names, row in rows:
        if row.time_ns and names:
            left[row.phase, row.operator_class] = left.get((row.phase, row.operator_class), 0) - row.time_ns
            yield row.phase, (*names, LABEL[row.operator_class]), row.time_ns
    for (phase, operator_class), ns in left.items():
        if ns > 0:
            yield phase, (_OUTSIDE[of], LABEL[operator_class]), ns


def _profiles(anatomy: Anatomy, of: str, frames: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Yield the profile of each phase with work; its frames are added to those known."""
    stacks = list(stacks_of(anatomy, of))
    for phase in PHASES:
        own = [(stack, ns) for one, stack, ns in stacks if one is phase]
        if own:
            weights = [ns for _, ns in own]
            yield {
                "type": "sampled",
                "name": phase.value if of == MODULES else f"{phase.value}, by line",
                "unit": "nanoseconds",
                "startValue": 0,
                "endValue": sum(weights),
                "weights": weights,
                "samples": [[frames.setdefault(printable(name), len(frames)) for name in stack] for stack, _ in own],
            }


FORMAT: Final = Format(ending=".speedscope.json", write=speedscope_profile, machine_readable=True)
