"""Gradients in float16: which elements become zero with the loss scaled and without, and which overflow."""

from __future__ import annotations

from collections.abc import Iterator

from opanatomy.records.techniques import TechniqueRow, Techniques
from opanatomy.records.underflow import ScaledGradients, Underflow
from opanatomy.report.glossary import note
from opanatomy.report.section import Column, Count, Figure, Holds, Note, Phrase, Row, Section, Share, Tone, phrase


def gradients_in_float16(report: Techniques) -> Section:
    """Of each technique that computes in float16 the gradient elements that are lost at each scale of the loss."""
    columns = (
        Column(header="gradients of", holds=Holds.NAMES),
        Column(header="loss scale"),
        Column(header="zero"),
        Column(header="elements", expendable=2),
        Column(header="inf or NaN", expendable=1),
    )
    counted = [(row, row.underflow) for row in report.rows if row.underflow is not None]
    rows = tuple(
        _row(row, underflow, gradients) for row, underflow in counted for gradients in _at_each_scale(underflow)
    )
    notes = [Note(text=text, tone=Tone.REMARK) for row, underflow in counted for text in _said(row, underflow)]
    if rows:
        notes.insert(0, Note(text=note("underflow", "zero")))
    return Section(
        name="underflow", title="Gradients in float16", columns=columns, rows=rows, notes=tuple(notes)
    )  # fmt: skip


def _at_each_scale(underflow: Underflow) -> Iterator[ScaledGradients]:
    """With scaling, then at the scaler's own first scale, then without."""
    yield underflow.scaled
    if underflow.at_first_scale is not None:
        yield underflow.at_first_scale
    yield underflow.unscaled


def _row(row: TechniqueRow, underflow: Underflow, gradients: ScaledGradients) -> Row:
    return Row(
        cells=(
            row.name,
            _scale(gradients),
            Share(gradients.zeros, underflow.nonzero, decimals=2),
            Count(gradients.zeros),
            Count(gradients.not_finite),
        )
    )


def _said(row: TechniqueRow, underflow: Underflow) -> Iterator[Phrase]:
    """What the counts come to."""
    zeros, nonzero = underflow.unscaled.zeros, underflow.nonzero
    if not zeros:
        yield phrase(f"{row.name}: none of {{}} becomes zero without scaling either", Count(nonzero, "element"))
    else:
        yield phrase(
            f"{row.name}: without scaling {{}} of {{}} become zero, with it {{}}",
            Share(zeros, nonzero, decimals=2), Count(nonzero, "element"),
            Share(underflow.scaled.zeros, nonzero, decimals=2),
        )  # fmt: skip
    first = underflow.at_first_scale
    if first is not None and first.not_finite:
        yield phrase(
            f"{row.name}: at the scaler's first scale, {{}}, {{}} overflow: it skips that update and halves the scale",
            _scale(first), Count(first.not_finite, "element"),
        )  # fmt: skip
    if underflow.scaled.not_finite:
        yield phrase(
            f"{row.name}: {{}} overflow at the scale of the run too: each update is skipped",
            Count(underflow.scaled.not_finite, "element"),
        )  # fmt: skip


def _scale(gradients: ScaledGradients) -> Count | Figure:
    """A scale of the loss; it is a power of two, which may be below 1."""
    return Count(int(gradients.scale)) if gradients.scale >= 1 else Figure(gradients.scale, "")
