"""Report an experiment with techniques: one row each, predicted next to measured, what cannot run and why, advice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from opanatomy.records.comparison import figures_of, memory_agrees, memory_error, time_agrees, time_error, within_noise
from opanatomy.records.experiment import (
    Found,
    Limit,
    LossCurve,
    Sameness,
    ScaledGradients,
    StepFigures,
    TechniqueRow,
    Techniques,
    Underflow,
)
from opanatomy.report.section import (
    Bytes,
    Cell,
    Change,
    Column,
    ColumnKind,
    Columns,
    Count,
    Figure,
    Note,
    NoteKind,
    Page,
    Phrase,
    Rate,
    Ratio,
    Row,
    Section,
    Share,
    Time,
    cells_of,
    facts_of,
    joined,
    phrase,
)
from opanatomy.report.sections.advice import fact_of
from opanatomy.report.sections.estimate import FITS
from opanatomy.report.terms import note

# Gradients in float16: which elements become zero with the loss scaled and without, and which overflow.


def gradients_in_float16(report: Techniques) -> Section:
    """Return for each technique that computes in float16 the gradient elements lost at each scale of the loss."""
    columns: Columns[tuple[TechniqueRow, Underflow, ScaledGradients]] = {
        Column(header="gradients of", holds=ColumnKind.NAMES, least=14): lambda item: item[0].name,
        Column(header="loss scale"): lambda item: _scale(item[2]),
        Column(header="zero"): lambda item: Share(item[2].zeros, item[1].nonzero, decimals=2),
        Column(header="elements", drop_order=2): lambda item: Count(item[2].zeros),
        Column(header="inf or NaN", drop_order=1): lambda item: Count(item[2].not_finite),
    }
    counted = [(row, row.underflow) for row in report.rows if row.underflow is not None]
    rows = tuple(
        Row(cells=cells_of(columns, (row, underflow, gradients)))
        for row, underflow in counted
        # With scaling, at the scaler's own first scale, without.
        for gradients in (underflow.scaled, underflow.at_first_scale, underflow.unscaled)
        if gradients is not None
    )
    notes = [
        Note(text=text, kind=NoteKind.REMARK)
        for row, underflow in counted
        for text in _gradient_sentences(row, underflow)
    ]
    if rows:
        notes.insert(0, Note(text=note("underflow", "zero")))
    return Section(title="Gradients in float16", columns=tuple(columns), rows=rows, notes=tuple(notes))


def _gradient_sentences(row: TechniqueRow, underflow: Underflow) -> Iterator[Phrase]:
    """Yield sentences on the counts."""
    zeros, nonzero = underflow.unscaled.zeros, underflow.nonzero
    if not zeros:
        yield phrase("{}: even without scaling, none of {} becomes zero", row.name, Count(nonzero, "gradient element"))
    else:
        yield phrase(
            "{}: without scaling, {} of {} become zero; with scaling, {}",
            row.name,
            Share(zeros, nonzero, decimals=2),
            Count(nonzero, "gradient element"),
            Share(underflow.scaled.zeros, nonzero, decimals=2),
        )
    first = underflow.at_first_scale
    if first is not None and first.not_finite:
        yield phrase(
            "{}: at the scaler's first scale ({}), {} overflow, so the update is skipped and the scale halved",
            row.name,
            _scale(first),
            Count(first.not_finite, "gradient element"),
        )
    if underflow.scaled.not_finite:
        yield phrase(
            "{}: {} also overflow at the run's loss scale, so every update is skipped",
            row.name,
            Count(underflow.scaled.not_finite, "gradient element"),
        )


def _scale(gradients: ScaledGradients) -> Count | Figure:
    """Return a loss scale, a power of two that may be below 1."""
    return Count(int(gradients.scale)) if gradients.scale >= 1 else Figure(gradients.scale, "")


#: Marks of the table.
_SAME, _DISAGREES = "~", "!"
#: Number of components with a column, the baseline's largest; the others are in the JSON report.
_MAX_COMPONENTS: Final = 6


def title(report: Techniques) -> Section:
    """Return the title: what was tried, how often, on which device; or whether the step fits."""
    workload, limit = report.workload, report.limit
    batch = f"batch {workload.batch}" if workload.batch else "batch unknown"
    if limit is not None:
        text = phrase("{}: will it fit into {}?", workload.model or "the model", limit.name)
        return Section(title="Experiment", notes=(Note(text=text, kind=NoteKind.TITLE),))
    else:
        what = "predicted, not run"
        if not report.predicted_only:
            # How often each was timed, and how often the baseline, which all are compared with.
            often = len(report.baseline.repetitions_ns)
            times = "1 repetition" if report.repetitions == 1 else f"{report.repetitions} repetitions"
            times += f", {often} of the baseline" if often > report.repetitions else ""
            what = f"{times}, seed {report.seed}"
        text = phrase(
            "{}: what {} would change, {}",
            workload.model or "the model",
            Count(len(report.rows) - 1, "technique"),
            what,
        )
        ran = f"{batch} on {report.environment.device or 'an unknown device'}"
    return Section(
        title="Experiment", notes=(Note(text=text, kind=NoteKind.TITLE), Note(text=ran, kind=NoteKind.PLAIN))
    )


def fits(report: Techniques) -> Section | None:
    """Return whether the step fits into the memory that was named, and the largest batch that does."""
    limit, base = report.limit, figures_of(report.baseline)
    if limit is None or base is None or base.peak_bytes is None:
        return None
    room, occupied = limit.room_bytes, base.occupied
    left = room - (base.most_bytes or 0)
    rest = "left" if left >= 0 else "too much"
    if occupied is None:
        verdict = phrase("{} of {}, {} " + rest, Bytes(base.peak_bytes), Bytes(room), Bytes(abs(left)))
    else:
        ends = Bytes(occupied.low_bytes), Bytes(occupied.high_bytes)
        verdict = phrase("{} to {} of {}, {} " + rest, *ends, Bytes(room), Bytes(abs(left)))
    layers = (
        None
        if occupied is None
        else phrase(
            "{} reserved ({} allocated), plus the device's context",
            Bytes(occupied.reserved_bytes),
            Bytes(occupied.allocated_bytes),
        )
    )
    parts = sorted(base.at_peak.items(), key=lambda part: -part[1])[:_MAX_COMPONENTS]
    held = [phrase("{} {}", name.replace("_", " "), Bytes(held)) for name, held in parts]
    workload = report.workload
    length = f", length {workload.sequence_length}" if workload.sequence_length else ""
    optimizer = f", {workload.optimizer}" if workload.optimizer else ""
    kind = "inference" if workload.inference else f"training{optimizer}"
    device = limit.device or "a GPU"
    if occupied is None:
        device = "the CPU"
    elif limit.device is not None and limit.capability is not None:
        device = f"{limit.device} (compute capability {limit.capability[0]}.{limit.capability[1]})"
    step = f"batch {workload.batch or 'unknown'}{length}, {kind}; computed for {device}, not run"
    notes = [Note(text=text, kind=NoteKind.WARNING) for text in report.warnings]
    return Section(
        title="Will it fit",
        facts=facts_of(
            (base.fits(limit.bytes).value, verdict),
            _found(limit.found),
            ("memory", layers),
            ("at the peak", joined(held)),
            ("step", step),
            ("assumed", "; ".join(limit.assumed) or None),
        ),
        notes=(*notes, *([] if occupied is None else [Note(text=note("fits", "the device's context"))])),
    )


def _found(found: Found | None) -> tuple[str, Phrase | None]:
    """Return label and text of the result of `--find`."""
    if found is None:
        return "largest batch", None
    if found.what == "checkpointing":
        if found.value is None:
            return "recompute", phrase("no choice of layers fits ({} tried)", Count(found.tried))
        if not found.value:
            return "recompute", phrase("nothing: the step already fits")
        return "recompute", phrase(
            "with {}: {} of the forward FLOPs are recomputed (up to {} in use, {} tried)",
            str(found.option),
            Share(found.recomputed, 1),
            Bytes(found.peak_bytes),
            Count(found.tried, "step"),
        )
    name = "largest batch" if found.what == "batch" else "longest"
    if not found.value:
        return name, phrase("none: even the smallest does not fit")
    ended = "; larger values cannot be predicted" if found.ended_by else ""
    return name, phrase(f"{{}} (up to {{}} in use){ended}", Count(found.value), Bytes(found.peak_bytes))


def table(report: Techniques) -> Section:
    """Return one row per technique: memory, time and arithmetic, each next to the baseline."""
    base = figures_of(report.baseline) or StepFigures()
    columns: Columns[tuple[TechniqueRow, StepFigures]] = {
        Column(header="technique", holds=ColumnKind.NAMES, least=14): lambda item: item[0].name,
        Column(header="peak"): lambda item: Bytes(item[1].peak_bytes),
        Column(header="d.peak", drop_order=3): lambda item: (
            None if item[0].name == report.baseline.name else Change(item[1].peak_bytes, base.peak_bytes)
        ),
        Column(header="step", drop_order=1): lambda item: Time(item[1].step_ns),
        Column(header="d.step", drop_order=2): lambda item: (
            None if item[0].name == report.baseline.name else _time_change(item[0], report)
        ),
        Column(header="samples/s", drop_order=6): lambda item: (
            None if item[1].samples_per_second is None else Rate(item[1].samples_per_second, "")
        ),
        Column(header="B/F FLOPs", drop_order=5): lambda item: Ratio(item[1].backward_ratio),
        Column(header="FLOPs", drop_order=7): lambda item: Ratio(
            None if not base.all_flops or item[1].all_flops is None else item[1].all_flops / base.all_flops
        ),
        Column(header="", drop_order=4): lambda item: _DISAGREES if _wrong(item[0], report.baseline) else None,
    }
    if report.limit is not None:
        columns = _columns_of_limit(report.limit, base)
    every = [(row, figures) for row in report.rows if (figures := figures_of(row)) is not None]
    rows = tuple(Row(cells=cells_of(columns, item)) for item in every if figures_of(report.baseline) is not None)
    changes = ("d.",) if any(column.header.startswith("d.") for column in columns) else ()
    notes = [Note(text=note("techniques", *changes, "B/F"))]
    if any(row.cells.get("d.step") == _SAME for row in rows):
        notes.append(Note(text=note("techniques", _SAME)))
    if any(row.cells.get("") == _DISAGREES for row in rows):
        notes.append(Note(text=note("techniques", _DISAGREES)))
    title = "Techniques, predicted" if report.predicted_only else "Techniques, measured"
    return Section(title=title, columns=tuple(columns), rows=rows, notes=tuple(notes))


def _columns_of_limit(limit: Limit, base: StepFigures) -> Columns[tuple[TechniqueRow, StepFigures]]:
    return {
        Column(header="technique", holds=ColumnKind.NAMES, least=14): lambda item: item[0].name,
        Column(header="peak"): lambda item: Bytes(item[1].peak_bytes),
        Column(header="d.peak", drop_order=3): lambda item: (
            None if item[1] is base else Change(item[1].peak_bytes, base.peak_bytes)
        ),
        Column(header="takes", drop_order=4): lambda item: Bytes(item[1].most_bytes),
        Column(header="fits"): lambda item: FITS[item[1].fits(limit.bytes)],
        Column(header="B/F FLOPs", drop_order=5): lambda item: Ratio(item[1].backward_ratio),
        Column(header="FLOPs", drop_order=7): lambda item: Ratio(
            None if not base.all_flops or item[1].all_flops is None else item[1].all_flops / base.all_flops
        ),
    }


def _time_change(row: TechniqueRow, report: Techniques) -> Cell:
    ours, theirs = figures_of(row), figures_of(report.baseline)
    if ours is None or theirs is None or ours.step_ns is None or theirs.step_ns is None:
        return None
    if row.measured is not None and report.baseline.measured is not None and within_noise(ours, theirs):
        return _SAME
    return Change(ours.step_ns, theirs.step_ns)


def predictions(report: Techniques) -> Section:
    """Return the predictions next to the measurements; for techniques only predicted the range."""
    columns: Columns[tuple[TechniqueRow, StepFigures]] = {
        Column(header="prediction of", holds=ColumnKind.NAMES, least=14): lambda item: item[0].name,
        Column(header="peak"): lambda item: Bytes(item[1].peak_bytes),
        Column(header="off by", drop_order=3): lambda item: _off_by(memory_error(item[0])),
        Column(header="step", drop_order=1): lambda item: Time(item[1].step_ns),
        Column(header="from", drop_order=5): lambda item: Time(item[1].low_ns),
        Column(header="to", drop_order=5): lambda item: Time(item[1].high_ns),
        Column(header="off by", key="time off by", drop_order=4): lambda item: _off_by(
            time_error(item[0], report.baseline)
        ),
        Column(header="", drop_order=2): lambda item: _wrong(item[0], report.baseline),
    }
    every = [(row, row.predicted) for row in report.rows if row.predicted is not None and report.limit is None]
    rows = tuple(Row(cells=cells_of(columns, item)) for item in every)
    notes = (Note(text=note("predictions", "step of a prediction", "off by")),)
    return Section(title="Predictions", columns=tuple(columns), rows=rows, notes=notes if rows else ())


def _off_by(error: float | None) -> Change | None:
    return None if error is None else Change(1 + error, 1)


def _wrong(row: TechniqueRow, baseline: TechniqueRow) -> str | None:
    """Return which predictions the measurement contradicts."""
    agreement = {"memory": memory_agrees(row), "time": time_agrees(row, baseline)}
    return " and ".join(word for word, agrees in agreement.items() if agrees is False) or None


def components(report: Techniques) -> Section:
    """Return each component at its fullest."""
    base = figures_of(report.baseline)
    sizes: dict[str, int] = {}
    for row in report.rows:
        figures = figures_of(row)
        for name, size in (figures.components if figures is not None else {}).items():
            sizes[name] = max(sizes.get(name, 0), size)
    shown = sorted(sizes, key=lambda name: -sizes[name])[:_MAX_COMPONENTS] if base is not None else []
    rows = tuple(
        Row(cells={"memory of": row.name} | {name: Bytes(figures.components.get(name)) for name in shown})
        for row in report.rows
        if (figures := figures_of(row)) is not None
    )
    return Section(
        title="Memory by component",
        rows=rows if shown else (),
        columns=(
            Column(header="memory of", holds=ColumnKind.NAMES, least=14),
            *(
                Column(header=name.replace("forward_", "").replace("_", " "), key=name, drop_order=index)
                for index, name in enumerate(shown)
            ),
        ),
        notes=(Note(text=note("technique-memory", "memory of")),) if rows else (),
    )


def same_training(report: Techniques) -> Section:
    """Return one step of each technique that must not change the training, next to the baseline's."""
    columns: Columns[Sameness] = {
        Column(header="loss", drop_order=1): lambda step: Figure(step.loss_units, ""),
        Column(header="gradients", drop_order=1): lambda step: Figure(step.gradient_units, ""),
        Column(header="weights", drop_order=1): lambda step: Figure(step.weight_units, ""),
        Column(header="worst gradient", holds=ColumnKind.NAMES, drop_order=2): lambda step: (
            step.worst_gradient.name if step.worst_gradient and step.worst_gradient.units else None
        ),
        Column(header="", holds=ColumnKind.NAMES): _verdict,
    }
    rows = tuple(
        Row(cells={"the same training?": row.name} | cells_of(columns, row.sameness))
        for row in report.rows
        if row.sameness is not None
    )
    return Section(
        title="The same training?",
        rows=rows,
        columns=(Column(header="the same training?", holds=ColumnKind.NAMES, least=18), *columns),
        notes=(Note(text=note("same-training", "the same training?")),) if rows else (),
    )


def _verdict(sameness: Sameness) -> str:
    verdict = "same" if sameness.same else "DIFFERS"
    if sameness.first_operator is not None:
        verdict += f", first in {sameness.first_operator}"
    if sameness.not_compared:
        verdict += f"; only one side has or trains {len(sameness.not_compared)} of the parameters"
    return verdict


def losses(report: Techniques) -> Section:
    """Return the losses of techniques that change the result next to the baseline's."""
    columns: Columns[LossCurve] = {
        Column(header="first", drop_order=2): lambda curve: Figure(curve.losses[0], ""),
        Column(header="last", drop_order=1): lambda curve: Figure(curve.losses[-1], ""),
        Column(header="baseline's", drop_order=1): lambda curve: Figure(curve.baseline[-1], ""),
        Column(header="apart at most"): lambda curve: Share(curve.largest_difference, 1.0, decimals=2),
    }
    curves = {row.name: row.losses for row in report.rows if row.losses is not None and row.losses.losses}
    rows = tuple(Row(cells={"losses of": name} | cells_of(columns, curve)) for name, curve in curves.items())
    steps = max((len(curve.losses) for curve in curves.values()), default=0)
    return Section(
        title="Losses",
        columns=(Column(header="losses of", holds=ColumnKind.NAMES, least=14), *columns),
        rows=rows,
        notes=(Note(text=phrase("{} on one batch, without dropout", Count(steps, "step"))),) if rows else (),
    )


def failed(report: Techniques) -> Section:
    """Return the techniques that did not run, or could not be predicted, and why."""
    columns: Columns[TechniqueRow] = {
        Column(header="technique", holds=ColumnKind.NAMES, least=14): lambda row: row.name,
        Column(header="why not", holds=ColumnKind.NAMES): lambda row: (
            f"{'not run' if row.failed else 'not predicted'}: {row.failed or row.not_predicted}"
        ),
    }
    rows = tuple(Row(cells=cells_of(columns, row)) for row in report.rows if row.failed or row.not_predicted)
    return Section(title="Not run, not predicted", columns=tuple(columns), rows=rows)


def offenders(report: Techniques) -> Section:
    """Return the operators that made predictions of time wrong."""
    notes = []
    for row in report.rows:
        if time_agrees(row, report.baseline) is False and row.offenders:
            words = [
                phrase(
                    "{} ({}) took {} instead of the predicted {}",
                    error.operator,
                    str(error.phase),
                    Time(error.measured_ns),
                    Time(error.predicted_ns),
                )
                for error in row.offenders
            ]
            text = phrase("{}: {}", row.name, joined(words) or "")
            notes.append(Note(text=text, kind=NoteKind.REMARK))
    return Section(title="Why predictions were wrong", notes=tuple(notes))


def warnings(report: Techniques) -> Section:
    """Return the warnings, the baseline's once."""
    if report.limit is not None:
        return Section(title="Warnings")
    known = set(report.baseline.warnings)
    of_rows = [f"{row.name}: {text}" for row in report.rows[1:] for text in row.warnings if text not in known]
    notes = tuple(
        Note(text=text, kind=NoteKind.WARNING) for text in (*report.warnings, *report.baseline.warnings, *of_rows)
    )
    return Section(title="Warnings", notes=notes)


def advice(report: Techniques, page: Page) -> Section:
    """Return what to try, on a first screen the most promising."""
    pieces = report.advice[: page.top] if page.brief else report.advice
    return Section(title="Advice", facts=tuple(fact_of(each, of_profile=True, brief=page.brief) for each in pieces))
