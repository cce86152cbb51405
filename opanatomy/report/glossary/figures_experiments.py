"""Figures of suggestions and of an experiment with techniques worked, row by row."""

from __future__ import annotations

from collections.abc import Iterator

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.comparison import figures_of, memory_error, time_error
from opanatomy.records.taxonomy import Phase
from opanatomy.records.techniques import StepFigures, Techniques
from opanatomy.report.section import Change, Count, Phrase, Ratio, Share, phrase


def suggested(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """What each suggestion is predicted to change."""
    for row in anatomy.suggestions.best if anatomy.suggestions else ():
        time = "" if row.time_ratio is None else phrase(", step {}", Change(row.time_ratio, 1.0))
        yield phrase("{}: peak {} B against {} B = {}{}", row.option, Count(row.peak_bytes), Count(row.now_bytes),
                     Change(row.peak_bytes, row.now_bytes), time)  # fmt: skip


def _rows(report: Techniques) -> Iterator[tuple[str, StepFigures, StepFigures]]:
    """The name and figures of each technique, with those of the baseline."""
    base = figures_of(report.baseline)
    for row in report.rows[1:]:
        figures = figures_of(row)
        if figures is not None and base is not None:
            yield row.name, figures, base


def peak(report: Techniques) -> Iterator[Phrase | None]:
    """The peak of each next to the baseline's."""
    for name, ours, base in _rows(report):
        if ours.peak_bytes is not None and base.peak_bytes:
            yield phrase("{}: {} B against {} B = {}", name, Count(ours.peak_bytes), Count(base.peak_bytes),
                         Change(ours.peak_bytes, base.peak_bytes))  # fmt: skip


def step(report: Techniques) -> Iterator[Phrase | None]:
    """The step of each next to the baseline's."""
    for name, ours, base in _rows(report):
        if ours.step_ns is not None and base.step_ns:
            yield phrase("{}: {} ns against {} ns = {}", name, Count(round(ours.step_ns)), Count(round(base.step_ns)),
                         Change(ours.step_ns, base.step_ns))  # fmt: skip


def backward_ratio(report: Techniques) -> Iterator[Phrase | None]:
    """FLOPs of backward over those of forward, of the baseline and of each."""
    for row in report.rows:
        figures = figures_of(row)
        if figures is not None and figures.backward_ratio is not None:
            backward = figures.flops.get(Phase.BACKWARD, 0) + figures.flops.get(Phase.RECOMPUTE, 0)
            yield phrase("{}: {} / {} = {}", row.name, Count(backward), Count(figures.flops[Phase.FORWARD]),
                         Ratio(figures.backward_ratio))  # fmt: skip


def flops(report: Techniques) -> Iterator[Phrase | None]:
    """FLOPs of contractions of each over the baseline's."""
    for name, ours, base in _rows(report):
        if ours.all_flops is not None and base.all_flops:
            yield phrase("{}: {} / {} = {}", name, Count(ours.all_flops), Count(base.all_flops),
                         Ratio(ours.all_flops / base.all_flops))  # fmt: skip


def off_by(report: Techniques) -> Iterator[Phrase | None]:
    """How far the predictions of each are off."""
    for row in report.rows:
        memory, time = memory_error(row), time_error(row, report.baseline)
        if memory is not None and row.predicted is not None and row.measured is not None:
            yield phrase("{}, peak: {} B / {} B - 1 = {}", row.name, Count(row.predicted.peak_bytes),
                         Count(row.measured.peak_bytes), Change(1 + memory, 1))  # fmt: skip
        if time is not None:
            yield phrase("{}, step: {}", row.name, Change(1 + time, 1))


def losses_apart(report: Techniques) -> Iterator[Phrase | None]:
    """The step at which the losses of each are farthest from the baseline's."""
    for row in report.rows:
        if row.losses is None:
            continue
        pairs = [(ours, theirs) for ours, theirs in zip(row.losses.losses, row.losses.baseline, strict=True) if theirs]
        if pairs:
            ours, theirs = max(pairs, key=lambda pair: abs(pair[0] - pair[1]) / abs(pair[1]))
            yield phrase("{}: |{} - {}| / {} = {}", row.name, f"{ours:.6g}", f"{theirs:.6g}", f"{abs(theirs):.6g}",
                         Share(abs(ours - theirs), abs(theirs)))  # fmt: skip
