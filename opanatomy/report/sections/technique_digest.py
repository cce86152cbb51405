"""The few figures of an experiment with techniques: the baseline, and the three that change most for the better."""

from __future__ import annotations

import shlex
from typing import Final

from opanatomy.records.comparison import figures_of, within_noise
from opanatomy.records.techniques import StepFigures, TechniqueRow, Techniques
from opanatomy.report.section import Bytes, Change, Count, Name, Phrase, Rate, Section, Time, facts_of, joined, phrase
from opanatomy.report.sections.commands import Next
from opanatomy.report.sections.verdict import Finding

#: How many components and warnings are named.
_COMPONENTS, _WARNINGS = 8, 5
#: What saves less of the peak or of the step than this part is no finding.
_LEAST: Final = 0.01


def digest_of_techniques(report: Techniques) -> tuple[Section, ...]:
    """What ran, the step and the memory of the baseline, and warnings."""
    base, workload = figures_of(report.baseline) or StepFigures(), report.workload
    count = phrase("{}", Count(len(report.rows) - 1))
    run = facts_of(
        ("model", phrase("{}", Name(workload.model)) if workload.model else None),
        ("batch", None if workload.batch is None else phrase("{}", Count(workload.batch))),
        ("device", phrase("{}", Name(report.environment.device)) if report.environment.device else None),
        ("techniques", count),
        ("figures", "predicted, not run" if report.predicted_only else "measured"),
        ("repetitions", None if report.predicted_only else phrase("{}", Count(report.repetitions))),
        ("seed", str(report.seed)),
        ("opanatomy", report.opanatomy),
    )
    components = sorted(base.components.items(), key=lambda part: -part[1])[:_COMPONENTS]
    rate = base.samples_per_second
    return (
        Section(name="run", title="What ran", facts=run),
        Section(
            name="step",
            title="The step",
            facts=facts_of(
                ("step of the baseline", None if base.step_ns is None else phrase("{}", Time(base.step_ns))),
                ("samples", None if rate is None else phrase("{}", Rate(rate, "samples"))),
            ),
        ),
        Section(
            name="time",
            title="Where the time went",
            facts=facts_of(
                *((f"phase {name}", phrase("{}", Time(time_ns))) for name, time_ns in base.phase_ns.items()),
                *((f"class {name.replace('_', ' ')}", phrase("{}", Time(ns))) for name, ns in base.class_ns.items()),
            ),
        ),
        Section(
            name="memory",
            title="Memory",
            facts=facts_of(
                ("peak of the baseline", None if base.peak_bytes is None else phrase("{}", Bytes(base.peak_bytes))),
                *((name.replace("_", " "), phrase("{}", Bytes(size))) for name, size in components),
            ),
        ),
        Section(name="warnings", title="Warnings", facts=facts_of(*_warnings(report))),
    )


def technique_findings(report: Techniques) -> tuple[Finding, ...]:
    """The techniques that save the largest part of the peak or of the step, the largest first."""
    base = figures_of(report.baseline)
    if base is None:
        return ()
    gains = [(max(_saved(row, base)), row) for row in report.rows[1:]]
    ranked = sorted((pair for pair in gains if pair[0] >= _LEAST), key=lambda pair: -pair[0])
    return tuple(_finding(row, base, report) for _, row in ranked)


def _saved(row: TechniqueRow, base: StepFigures) -> tuple[float, float]:
    """The parts of the peak and of the step that a technique saves; 0 where that is not known, or within the noise."""
    figures = figures_of(row)
    if figures is None:
        return 0.0, 0.0
    peak = 0.0
    if base.peak_bytes and figures.peak_bytes is not None:
        peak = 1 - figures.peak_bytes / base.peak_bytes
    noise = row.measured is not None and within_noise(figures, base)
    step = 0.0 if not base.step_ns or figures.step_ns is None or noise else 1 - figures.step_ns / base.step_ns
    return peak, step


def _finding(row: TechniqueRow, base: StepFigures, report: Techniques) -> Finding:
    figures = figures_of(row)
    assert figures is not None
    noise = row.measured is not None and within_noise(figures, base)
    step: Phrase | str = phrase("{}", Change(figures.step_ns, base.step_ns))
    return Finding(
        name=row.name,
        text=phrase(
            "{}: peak memory {}, step {}", row.title, Change(figures.peak_bytes, base.peak_bytes),
            "within the noise" if noise else step,
        ),
        evidence=joined(
            (
                "predicted" if row.measured is None else "measured",
                phrase("peak {} for {}", Bytes(figures.peak_bytes), Bytes(base.peak_bytes)),
                phrase("step {} for {}", Time(figures.step_ns), Time(base.step_ns)),
            )
        ),
        next=_next(row, report),
    )  # fmt: skip


def _next(row: TechniqueRow, report: Techniques) -> Next | None:
    """What shows the step with the technique: its trace where it ran and is kept, else a run of its own."""
    if row.measured is not None and row.trace and report.folder:
        return Next(text=f"opanatomy analyze {shlex.quote(f'{report.folder}/{row.trace}')}")
    model = report.workload.model
    return Next(text=f"opanatomy profile {shlex.quote(model)} {row.option}") if model and row.option else None


def _warnings(report: Techniques) -> list[tuple[str, str | Phrase]]:
    failed = [row for row in report.rows if row.failed]
    texts = [*report.warnings, *report.baseline.warnings]
    rows: list[tuple[str, str | Phrase]] = [("not run", f"{row.name}: {row.failed}") for row in failed[:_WARNINGS]]
    if failed[_WARNINGS:]:
        rows.append(("not run", phrase("and {} more", Count(len(failed) - _WARNINGS))))
    rows += [("warning", text) for text in texts[:_WARNINGS]]
    if texts[_WARNINGS:]:
        rows.append(("warning", phrase("and {} more", Count(len(texts) - _WARNINGS))))
    return rows
