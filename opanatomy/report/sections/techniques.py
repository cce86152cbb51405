"""Report an experiment with techniques: one row each, predicted next to measured, what cannot run and why, advice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from opanatomy.records.comparison import figures_of, memory_agrees, memory_error, time_agrees, time_error, within_noise
from opanatomy.records.experiment import Sameness, ScaledGradients, TechniqueRow, Techniques, Underflow
from opanatomy.report.section import (
    Bytes,
    Cell,
    Change,
    Column,
    ColumnKind,
    Count,
    Figure,
    Note,
    NoteStyle,
    Phrase,
    Rate,
    Ratio,
    Row,
    Section,
    Share,
    Time,
    phrase,
)
from opanatomy.report.terms import note

# Gradients in float16: which elements become zero with the loss scaled and without, and which overflow.


def gradients_in_float16(report: Techniques) -> Section:
    """Return for each technique that computes in float16 the gradient elements lost at each scale of the loss."""
    columns = (
        Column(header="gradients of", holds=ColumnKind.NAMES),
        Column(header="loss scale"),
        Column(header="zero"),
        Column(header="elements", drop_order=2),
        Column(header="inf or NaN", drop_order=1),
    )
    counted = [(row, row.underflow) for row in report.rows if row.underflow is not None]
    rows = tuple(
        _gradients_row(row, underflow, gradients)
        for row, underflow in counted
        for gradients in _at_each_scale(underflow)
    )
    notes = [
        Note(text=text, tone=NoteStyle.REMARK)
        for row, underflow in counted
        for text in _gradient_sentences(row, underflow)
    ]
    if rows:
        notes.insert(0, Note(text=note("underflow", "zero")))
    return Section(
        name="underflow", title="Gradients in float16", columns=columns, rows=rows, notes=tuple(notes)
    )  # fmt: skip


def _at_each_scale(underflow: Underflow) -> Iterator[ScaledGradients]:
    """Yield the counts with scaling, then at the scaler's own first scale, then without."""
    yield underflow.scaled
    if underflow.at_first_scale is not None:
        yield underflow.at_first_scale
    yield underflow.unscaled


def _gradients_row(row: TechniqueRow, underflow: Underflow, gradients: ScaledGradients) -> Row:
    return Row(
        cells=(
            row.name,
            _scale(gradients),
            Share(gradients.zeros, underflow.nonzero, decimals=2),
            Count(gradients.zeros),
            Count(gradients.not_finite),
        )
    )


def _gradient_sentences(row: TechniqueRow, underflow: Underflow) -> Iterator[Phrase]:
    """Yield sentences on the counts."""
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
    """Return a scale of the loss; it is a power of two, which may be below 1."""
    return Count(int(gradients.scale)) if gradients.scale >= 1 else Figure(gradients.scale, "")


#: Marks of the table.
_SAME, _DISAGREES = "~", "!"
#: The components that have a column, the largest ones of the baseline; the others are in the JSON report.
_SHOWN: Final = 6


def sections_of_techniques(report: Techniques) -> tuple[Section, ...]:
    """Return the sections of an experiment, in the order of the page."""
    sections = (
        _title(report), _table(report), _predictions(report), _components(report), _same_training(report),
        _losses(report), gradients_in_float16(report), _failed(report), _offenders(report),
        _warnings(report), _advice(report),
    )  # fmt: skip
    return tuple(section for section in sections if not section.empty)


def _repetitions(report: Techniques) -> str:
    """Return how often each was timed, and how often the baseline, which all are compared with."""
    text = "1 repetition" if report.repetitions == 1 else f"{report.repetitions} repetitions"
    often = len(report.baseline.repetitions_ns)
    return text if often <= report.repetitions else f"{text}, {often} of the baseline"


def _title(report: Techniques) -> Section:
    workload = report.workload
    what = "predicted, not run" if report.predicted_only else f"{_repetitions(report)}, seed {report.seed}"
    text = phrase(
        "{}: what {} would change, {}", workload.model or "the model",
        Count(len(report.rows) - 1, "technique"), what,
    )  # fmt: skip
    device = report.environment.device or "unknown device"
    batch = f"batch {workload.batch}" if workload.batch else "batch unknown"
    return Section(
        name="experiment", title="Experiment",
        notes=(Note(text=text, tone=NoteStyle.TITLE), Note(text=f"{batch} on {device}", tone=NoteStyle.PLAIN)),
    )  # fmt: skip


def _table(report: Techniques) -> Section:
    """Return one row per technique: memory, time and arithmetic, each next to the baseline."""
    base = figures_of(report.baseline)
    columns = (
        Column(header="technique", holds=ColumnKind.NAMES),
        Column(header="peak"),
        Column(header="d.peak", drop_order=3),
        Column(header="step", drop_order=1),
        Column(header="d.step", drop_order=2),
        Column(header="samples/s", drop_order=6),
        Column(header="B/F FLOPs", drop_order=5),
        Column(header="FLOPs", drop_order=7),
        Column(header="", drop_order=4),
    )
    rows = tuple(_technique_row(row, report) for row in report.rows if figures_of(row) is not None)
    if base is None:
        rows = ()
    notes = [Note(text=note("techniques", "d.", "B/F"))]
    if any(_SAME in row.cells for row in rows):
        notes.append(Note(text=note("techniques", _SAME)))
    if any(row.cells[-1] == _DISAGREES for row in rows):
        notes.append(Note(text=note("techniques", _DISAGREES)))
    title = "Techniques, predicted" if report.predicted_only else "Techniques, measured"
    return Section(name="techniques", title=title, columns=columns, rows=rows, notes=tuple(notes))


def _technique_row(row: TechniqueRow, report: Techniques) -> Row:
    figures, base = figures_of(row), figures_of(report.baseline)
    assert figures is not None
    assert base is not None
    first = row.name == report.baseline.name
    return Row(
        cells=(
            row.name,
            Bytes(figures.peak_bytes),
            None if first else Change(figures.peak_bytes, base.peak_bytes),
            Time(figures.step_ns),
            None if first else _time_change(row, report),
            None if figures.samples_per_second is None else Rate(figures.samples_per_second, ""),
            Ratio(figures.backward_ratio),
            Ratio(None if not base.all_flops or figures.all_flops is None else figures.all_flops / base.all_flops),
            _DISAGREES if memory_agrees(row) is False or time_agrees(row, report.baseline) is False else None,
        )
    )


def _time_change(row: TechniqueRow, report: Techniques) -> Cell:
    ours, theirs = figures_of(row), figures_of(report.baseline)
    if ours is None or theirs is None or ours.step_ns is None or theirs.step_ns is None:
        return None
    if row.measured is not None and report.baseline.measured is not None and within_noise(ours, theirs):
        return _SAME
    return Change(ours.step_ns, theirs.step_ns)


def _predictions(report: Techniques) -> Section:
    """Return the predictions next to the measurements; for techniques only predicted the range."""
    columns = (
        Column(header="prediction of", holds=ColumnKind.NAMES),
        Column(header="peak"),
        Column(header="off by", drop_order=3),
        Column(header="step", drop_order=1),
        Column(header="from", drop_order=5),
        Column(header="to", drop_order=5),
        Column(header="off by", drop_order=4),
        Column(header="", drop_order=2),
    )
    rows = tuple(_prediction(row, report) for row in report.rows if row.predicted is not None)
    notes = (Note(text=note("predictions", "step of a prediction", "off by")),)
    return Section(name="predictions", title="Predictions", columns=columns, rows=rows, notes=notes if rows else ())


def _prediction(row: TechniqueRow, report: Techniques) -> Row:
    predicted = row.predicted
    assert predicted is not None
    memory, time = memory_error(row), time_error(row, report.baseline)
    wrong = [
        word
        for word, agrees in (("memory", memory_agrees(row)), ("time", time_agrees(row, report.baseline)))
        if agrees is False
    ]
    return Row(
        cells=(
            row.name,
            Bytes(predicted.peak_bytes),
            None if memory is None else Change(1 + memory, 1),
            Time(predicted.step_ns),
            Time(predicted.low_ns),
            Time(predicted.high_ns),
            None if time is None else Change(1 + time, 1),
            " and ".join(wrong) or None,
        )
    )


def _components(report: Techniques) -> Section:
    """Return each component at its fullest."""
    base = figures_of(report.baseline)
    sizes: dict[str, int] = {}
    for row in report.rows:
        figures = figures_of(row)
        for name, size in (figures.components if figures is not None else {}).items():
            sizes[name] = max(sizes.get(name, 0), size)
    shown = sorted(sizes, key=lambda name: -sizes[name])[:_SHOWN] if base is not None else []
    columns = (
        Column(header="memory of", holds=ColumnKind.NAMES),
        *(
            Column(header=name.replace("forward_", "").replace("_", " "), drop_order=place)
            for place, name in enumerate(shown)
        ),
    )
    rows = tuple(
        Row(cells=(row.name, *(Bytes(figures.components.get(name)) for name in shown)))
        for row in report.rows
        if (figures := figures_of(row)) is not None
    )
    notes = (Note(text=note("technique-memory", "memory of")),) if rows else ()
    return Section(
        name="technique-memory", title="Memory by component", columns=columns, rows=rows if shown else (), notes=notes
    )


def _same_training(report: Techniques) -> Section:
    """Return one step of each technique that must not change the training, next to the baseline's."""
    columns = (
        Column(header="the same training?", holds=ColumnKind.NAMES),
        Column(header="loss", drop_order=1),
        Column(header="gradients", drop_order=1),
        Column(header="weights", drop_order=1),
        Column(header="worst gradient", holds=ColumnKind.NAMES, drop_order=2),
        Column(header="", holds=ColumnKind.NAMES),
    )
    rows = tuple(_same(row, row.sameness) for row in report.rows if row.sameness is not None)
    notes = (Note(text=note("same-training", "the same training?")),) if rows else ()
    return Section(name="same-training", title="The same training?", columns=columns, rows=rows, notes=notes)


def _same(row: TechniqueRow, sameness: Sameness) -> Row:
    worst = sameness.worst_gradient
    verdict = "same" if sameness.same else "DIFFERS"
    if sameness.first_operator is not None:
        verdict += f", first in {sameness.first_operator}"
    if sameness.not_compared:
        verdict += f"; {len(sameness.not_compared)} of the parameters only one of the two has or trains"
    return Row(
        cells=(
            row.name,
            Figure(sameness.loss_units, ""),
            Figure(sameness.gradient_units, ""),
            Figure(sameness.weight_units, ""),
            None if worst is None or not worst.units else worst.name,
            verdict,
        )
    )


def _losses(report: Techniques) -> Section:
    """Return the losses of techniques that change the result next to the baseline's."""
    columns = (
        Column(header="losses of", holds=ColumnKind.NAMES),
        Column(header="first", drop_order=2),
        Column(header="last", drop_order=1),
        Column(header="baseline's", drop_order=1),
        Column(header="apart at most"),
    )
    rows = tuple(
        Row(
            cells=(
                row.name,
                Figure(row.losses.losses[0], ""),
                Figure(row.losses.losses[-1], ""),
                Figure(row.losses.baseline[-1], ""),
                Share(row.losses.largest_difference, 1.0, decimals=2),
            )
        )
        for row in report.rows
        if row.losses is not None and row.losses.losses
    )
    steps = max((len(row.losses.losses) for row in report.rows if row.losses is not None), default=0)
    notes = (Note(text=phrase("{} on one batch, without dropout", Count(steps, "step"))),) if rows else ()
    return Section(name="losses", title="Losses", columns=columns, rows=rows, notes=notes)


def _failed(report: Techniques) -> Section:
    """Return the techniques that did not run, or could not be predicted, and why."""
    columns = (Column(header="technique", holds=ColumnKind.NAMES), Column(header="why not", holds=ColumnKind.NAMES))
    rows = tuple(
        Row(cells=(row.name, f"{'not run' if row.failed else 'not predicted'}: {row.failed or row.not_predicted}"))
        for row in report.rows
        if row.failed or row.not_predicted
    )
    return Section(name="not-run", title="Not run, not predicted", columns=columns, rows=rows)


def _offenders(report: Techniques) -> Section:
    """Return the operators that made predictions of time wrong."""
    notes = []
    for row in report.rows:
        if time_agrees(row, report.baseline) is False and row.offenders:
            notes.append(Note(text=_offender_text(row), tone=NoteStyle.REMARK))
    return Section(name="offenders", title="What made predictions wrong", notes=tuple(notes))


def _offender_text(row: TechniqueRow) -> Phrase:
    words = [
        phrase("{} ({}) {} for {}", error.operator, str(error.phase), Time(error.measured_ns), Time(error.predicted_ns))
        for error in row.offenders
    ]
    return phrase(f"{row.name}: " + ", ".join("{}" for _ in words), *words)


def _warnings(report: Techniques) -> Section:
    known = set(report.baseline.warnings)
    of_rows = [f"{row.name}: {text}" for row in report.rows[1:] for text in row.warnings if text not in known]
    notes = tuple(
        Note(text=text, tone=NoteStyle.WARNING) for text in (*report.warnings, *report.baseline.warnings, *of_rows)
    )
    return Section(name="warnings", title="Warnings", notes=notes)


def _advice(report: Techniques) -> Section:
    notes = tuple(Note(text=text, tone=NoteStyle.CONCLUSION) for text in report.advice)
    return Section(name="advice", title="Advice", notes=notes)
