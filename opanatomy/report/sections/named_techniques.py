"""The names of an experiment: its techniques, claims of guides, weights."""

from __future__ import annotations

from collections.abc import Iterator

from opanatomy.records.comparison import figures_of
from opanatomy.records.guides import GuideRow
from opanatomy.records.techniques import TechniqueRow, Techniques
from opanatomy.report.section import Bytes, Fact, Time, facts_of, phrase
from opanatomy.report.sections.known import Known


def names_of_techniques(report: Techniques) -> Iterator[Known]:
    """The techniques of an experiment, what guides claim of them, and the weights that the page names."""
    for row in report.rows:
        yield Known(row.name, "technique", lambda row=row: _technique(row, report))  # type: ignore[misc]
    for guide in report.guides:
        yield Known(guide.claim.claim, "claim of a guide", lambda guide=guide: _claim(guide))  # type: ignore[misc]
    for name in dict.fromkeys(_worst(row) for row in report.rows):
        if name is not None:
            yield Known(name, "weight", lambda name=name: _farthest(name, report))  # type: ignore[misc]


def _claim(row: GuideRow) -> tuple[Fact, ...]:
    """What a guide says, where, and what was measured of it."""
    claim, measurement = row.claim, row.measurement
    upto = "" if claim.figure_to is None else f" to {claim.figure_to:g}"
    measured = f"{measurement.measured:.3g} {claim.unit}, of {measurement.technique}"
    texts = (("guide", f"{claim.figure:g}{upto} {claim.unit}"), ("measured", measured), ("why", measurement.reason),
             ("says", claim.quote), ("source", claim.source))  # fmt: skip
    return facts_of(*texts)


def _worst(row: TechniqueRow) -> str | None:
    worst = None if row.sameness is None else row.sameness.worst_gradient
    return None if worst is None else worst.name


def _farthest(name: str, report: Techniques) -> tuple[Fact, ...]:
    """The techniques whose gradient of this weight is the one that is farthest from the baseline's."""
    texts = (
        phrase("{}: its gradient is the farthest apart, by {} units of rounding", row.name, f"{worst.units:.3g}")
        for row in report.rows
        if row.sameness is not None and (worst := row.sameness.worst_gradient) is not None and worst.name == name
    )
    return tuple(Fact(label="" if place else "report", text=text) for place, text in enumerate(texts))


def _technique(row: TechniqueRow, report: Techniques) -> tuple[Fact, ...]:
    """What the option is, what was measured and predicted, or why not."""
    facts = [Fact(label="technique", text=row.title)]
    if row.option:
        facts.append(Fact(label="option", text=row.option))
    for label, figures in (("measured", row.measured), ("predicted", row.predicted)):
        if figures is not None:
            text = phrase("peak {}, step {}", Bytes(figures.peak_bytes), Time(figures.step_ns))
            facts.append(Fact(label=label, text=text))
    for label, why in (("not run", row.failed), ("not predicted", row.not_predicted)):
        if why:
            facts.append(Fact(label=label, text=why))
    base, ours = figures_of(report.baseline), figures_of(row)
    if row.name != report.baseline.name and base is not None and ours is not None:
        baseline = phrase("baseline: peak {}, step {}", Bytes(base.peak_bytes), Time(base.step_ns))
        facts.append(Fact(label="", text=baseline))
    return tuple(facts)
