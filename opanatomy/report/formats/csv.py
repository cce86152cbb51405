"""Write the operators as CSV, one row per operator, signature and phase, for spreadsheets and data frames.

The columns are those of `OperatorRow` in base units (nanoseconds, FLOPs, bytes), then derived figures: FLOPs per
second, bytes per second, FLOPs per byte. An empty cell is an unknown value.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from io import StringIO
from typing import Final

from msgspec.structs import fields

from opanatomy.records.comparison import Comparison
from opanatomy.records.experiment import StepFigures, Techniques
from opanatomy.records.memory import MemoryPart
from opanatomy.records.reports import Report
from opanatomy.records.signature import SignatureText
from opanatomy.records.work import OperatorRow
from opanatomy.report import units
from opanatomy.report.names import printable
from opanatomy.report.section import Format
from opanatomy.report.totals import moved

_RECORD: Final = OperatorRow.__struct_fields__
_DERIVED: Final = ("flops_per_second", "bytes_per_second", "flops_per_byte")
#: Characters that a spreadsheet may read as the start of a formula, including full-width ones of East Asian
#: spreadsheets.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


#: Fields of a technique's row written unchanged, and the predicted and measured figures.
_TECHNIQUE: Final = ("name", "title", "option", "keeps_result", "failed", "not_predicted")
_FIGURES: Final = ("peak_bytes", "step_ns", "low_ns", "high_ns", "samples_per_second", "all_flops", "backward_ratio")


#: The fields on the gradients of a technique that computes in float16, at each scale of the loss.
_UNDERFLOW: Final = ("elements", "nonzero")
_SCALED: Final = ("scale", "zeros", "not_finite")
_SCALES: Final = ("scaled", "unscaled", "at_first_scale")


#: Fields of a part of a difference, and of the work on each side.
_PART: Final = ("cause", "operator_class", "overlap", "before_ns", "after_ns", "change_ns")
_SIDES: Final = ("before", "after")
_WORK: Final = ("operators", "signatures", "modules", "phases", "kernels", "calls")


def csv_report(report: Report) -> str:
    """Return an anatomy's operators, or an experiment's techniques, as CSV with one header line.

    Of a memory snapshot, which has no operators' times, it is the parts of the peak.
    """
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if isinstance(report, Techniques):
        writer.writerows(_techniques(report))
        return text.getvalue()
    if isinstance(report, Comparison):
        writer.writerows(_comparison(report))
        return text.getvalue()
    if report.memory.is_snapshot and not report.classes:
        names = [field.name for field in fields(MemoryPart)]
        writer.writerow(names)
        writer.writerows([cell_of(getattr(part, name)) for name in names] for part in report.memory.parts)
        return text.getvalue()
    writer.writerow(_RECORD + _DERIVED)
    for row in report.operators:
        size = moved(row)
        intensity = None if row.flops is None or not size else row.flops / size
        derived = (units.per_second(row.flops, row.time_ns), units.per_second(size, row.time_ns), intensity)
        writer.writerow([*(cell_of(getattr(row, name)) for name in _RECORD), *map(units.plain, derived)])
    return text.getvalue()


def _comparison(report: Comparison) -> Iterator[list[object]]:
    """Yield the header and a row for each part of the difference, for more than two sides for each figure."""
    if report.decomposition is None:
        yield ["figure", "unit", *(cell_of(side.name) for side in report.sides)]
        for row in report.figures:
            yield [cell_of(row.name), row.unit, *map(units.plain, row.values)]
        return
    yield [*_PART, *(f"{side}_{name}" for side in _SIDES for name in _WORK)]
    for part in report.decomposition.parts:
        pair = " and ".join(part.pair) if part.pair else ""
        cells: list[object] = [part.cause.value, cell_of(part.operator_class), cell_of(pair)]
        cells += [part.before_ns, part.after_ns, part.change_ns]
        for work in (part.before, part.after):
            if work is None:
                cells += [""] * len(_WORK)
            else:
                texts = (cell_of("; ".join(getattr(work, name))) for name in _WORK[:-1])
                cells += [*texts, units.plain(work.calls)]
        yield cells


def _techniques(report: Techniques) -> Iterator[list[object]]:
    """Yield the header and a row per technique: figures first, then components, predicted and measured."""
    every = [figures for row in report.rows for figures in (row.predicted, row.measured) if figures is not None]
    components = sorted({name for figures in every for name in figures.components})
    names = [*_FIGURES, *(f"{name}_bytes" for name in components)]
    gradients = [*_UNDERFLOW, *(f"{scale}_{name}" for scale in _SCALES for name in _SCALED)]
    yield [
        *_TECHNIQUE,
        *(cell_of(f"{kind}_{name}") for kind in ("predicted", "measured") for name in names),
        *(f"gradient_{name}" for name in gradients),
    ]
    for row in report.rows:
        cells: list[object] = [cell_of(getattr(row, name)) for name in _TECHNIQUE]
        for figures in (row.predicted, row.measured):
            known = figures if figures is not None else StepFigures()
            cells += [units.plain(getattr(known, name)) for name in _FIGURES]
            cells += [units.plain(known.components.get(name)) for name in components]
        # The counts of gradient elements in full: they exist to show a share of a few of many millions.
        counted = row.underflow
        cells += [""] * len(_UNDERFLOW) if counted is None else [getattr(counted, name) for name in _UNDERFLOW]
        for scale in _SCALES:
            scaled = None if counted is None else getattr(counted, scale)
            cells += [""] * len(_SCALED) if scaled is None else [getattr(scaled, name) for name in _SCALED]
        yield cells


def cell_of(value: object) -> object:
    """Return the value; a text that a spreadsheet would run as a formula gets an apostrophe in front.

    A foreign trace may have arbitrary operator names; a signature with an absent first argument (`-, ...`) is not a
    formula. Control and invisible characters are replaced by a mark; line ends and tabs stay.
    """
    if not isinstance(value, str):
        return value
    absent = isinstance(value, SignatureText) and value.record.arguments[:1] == (None,)
    shown = "\n".join("\t".join(map(printable, line.split("\t"))) for line in value.split("\n"))
    return f"'{shown}" if value.startswith(_FORMULA) and not absent else shown


FORMAT: Final = Format(ending=".csv", write=lambda anatomy, page: csv_report(anatomy), machine_readable=True)
