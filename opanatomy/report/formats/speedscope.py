"""Write the module tree by time for speedscope (speedscope.app), which opens it from disk: a profile for each phase.

A stack is the modules from the model down, then the class of the work. Weights are nanoseconds over all profiled steps,
so that they sum to the time of all classes exactly; work outside of modules has a frame of that name.
"""

from __future__ import annotations

import json
from typing import Any, Final

from opanatomy.errors import UsageError
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.reports import Report
from opanatomy.records.taxonomy import PHASES, OperatorClass, Phase
from opanatomy.report.section import LABEL, Format, Page, printable

_OUTSIDE: Final = "outside modules"


def speedscope_profile(report: Report, page: Page) -> str:
    """Return the profiles as JSON; raise `UsageError` for a report that is not of one run."""
    if not isinstance(report, Anatomy):
        raise UsageError("-f speedscope: it shows the modules of one run - give the report or the trace of one")
    if report.memory.is_snapshot and not report.classes:
        raise UsageError("-f speedscope: it shows times, and a memory snapshot has none - give a trace")
    frames: dict[str, int] = {}
    profiles = [made for phase in PHASES if (made := _profile(report, phase, frames)) is not None]
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": f"opanatomy {report.provenance.opanatomy}",
        "name": printable(report.workload.model or report.provenance.trace or "a training step"),
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": name} for name in frames]},
        "profiles": profiles,
    }
    return json.dumps(document, separators=(",", ":")) + "\n"


def _profile(anatomy: Anatomy, phase: Phase, frames: dict[str, int]) -> dict[str, Any] | None:
    """Return the profile of a phase, whose frames are added to those known; `None` without any work."""
    root = anatomy.workload.architecture or "the model"
    samples, weights = [], []
    left = {row.operator_class: row.time_ns for row in anatomy.classes if row.phase is phase}
    for row in anatomy.modules:
        if row.phase is not phase or not row.time_ns:
            continue
        left[row.operator_class] = left.get(row.operator_class, 0) - row.time_ns
        path = row.module.split(".") if row.module else []
        samples.append(_stack([root, *path], row.operator_class, frames))
        weights.append(row.time_ns)
    for operator_class, ns in left.items():
        if ns > 0:
            samples.append(_stack([_OUTSIDE], operator_class, frames))
            weights.append(ns)
    if not samples:
        return None
    return {
        "type": "sampled", "name": phase.value, "unit": "nanoseconds", "startValue": 0, "endValue": sum(weights),
        "samples": samples, "weights": weights,
    }  # fmt: skip


def _stack(names: list[str], operator_class: OperatorClass, frames: dict[str, int]) -> list[int]:
    return [frames.setdefault(printable(name), len(frames)) for name in (*names, LABEL[operator_class])]


FORMAT: Final = Format(ending=".speedscope.json", write=speedscope_profile, machine_readable=True)
