"""What users get: `Anatomy`, `Comparison` and `Techniques`, which add methods to the records."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast, overload

from msgspec import structs

from opanatomy.analysis.replay import changes_of
from opanatomy.arguments import Name, path_of
from opanatomy.attribution.phases import PhaseRule
from opanatomy.errors import UsageError
from opanatomy.io.files import Address, check_no_address, output_file
from opanatomy.io.sources import is_stream
from opanatomy.pipeline import replayed
from opanatomy.records.anatomy import Anatomy as AnatomyRecord
from opanatomy.records.anatomy import Replay
from opanatomy.records.comparison import Comparison as ComparisonRecord
from opanatomy.records.experiment import Techniques as TechniquesRecord
from opanatomy.records.reports import Report
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report import units
from opanatomy.report.formats.json import json_report, report_as_dict
from opanatomy.report.frames import pandas_frame, polars_frame
from opanatomy.report.metrics import metrics_of, metrics_of_comparison
from opanatomy.report.names import cut, printable
from opanatomy.report.section import LABEL

if TYPE_CHECKING:
    pass


#: Cells of a name.
_NAME_WIDTH: Final = 48


_REPORT_BYTES: Final = 1 << 20


#: An attribute besides the fields, not copied or saved: the anatomy's traces, and the rules for their phases.
_TRACES: Final = "_traces"


class _Report:
    """Methods of every public report."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON report as dictionaries, lists, strings and numbers; for one run, including its table rows."""
        return report_as_dict(cast("Report", self))

    def to_json(self, path: Name | None = None, *, force: bool = False) -> str:
        """Return the JSON report, which `opanatomy.read` reads back, and write it to the new file `path` if given.

        `force` overwrites an existing file. Raises `OutputError` if it cannot be written.
        """
        text = json_report(cast("Report", self))
        if path is not None:
            target = path_of("to_json: path", path)
            check_no_address("to_json: path", os.fspath(path))
            output = output_file(target, force=force, forced_by="pass force=True", needed_bytes=_REPORT_BYTES)
            with output.written() as partial:
                partial.write_text(text, encoding="utf-8")
        return text

    def to_html(self, path: Name, *, force: bool = False) -> None:
        """Write the report as an HTML page to the new file `path`: a single self-contained file that opens from disk.

        `force` overwrites an existing file. Raises `OutputError` if it cannot be written.
        """
        from opanatomy.report.formats.html import html_report
        from opanatomy.report.section import Page

        target = path_of("to_html: path", path)
        check_no_address("to_html: path", os.fspath(path))
        output = output_file(target, force=force, forced_by="pass force=True", needed_bytes=_REPORT_BYTES)
        with output.written() as partial:
            partial.write_text(html_report(cast("Report", self), Page()), encoding="utf-8")

    def chart(self, name: str) -> Any:
        """Return a picture of the report as an `altair` chart, which a notebook shows offline and `save` writes.

        For an anatomy: step, advice, steps, run, lanes, classes, roofline, modules, lines, memory, segments,
        components, ranks; for a comparison: difference; for an experiment: techniques.
        Raises `UsageError` for any other name, and `OpanatomyError` with the reason if the report has no data for it.
        """
        from opanatomy.report.charts import chart_of, for_a_notebook

        return for_a_notebook(chart_of(cast("Report", self), name))

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the first screen of the report, of a comparison and an experiment the page."""
        from opanatomy.report.notebook import notebook_html

        return notebook_html(cast("Report", self))


class Anatomy(_Report, AnatomyRecord, frozen=True, kw_only=True, dict=True):  # noqa: D101  # the record's
    __doc__ = AnatomyRecord.__doc__

    def metrics(self) -> dict[str, int | float]:
        """Return the headline numbers as one flat dictionary, for any logger.

        Times are in nanoseconds, sizes in bytes, shares are fractions, all for one step; unknown numbers are left out.
        docs/metrics.md describes each name; `to_pandas("metrics")` adds units and which direction is better.
        """
        return {name: metric.value for name, metric in metrics_of(self).items()}

    def to_pandas(self, table: str = "operators") -> Any:
        """Return a table as a `pandas.DataFrame`: one column per field, in base units, `<NA>` if unknown.

        Tables: work (the next six are sums of its rows), operators, kernels, modules, lines, classes, ratios, steps,
        memory (its components), curve (allocated bytes), blocks (at the peak), activations, snapshots, devices,
        streams, collectives, communication, ranks, spread, waiting, advice, host, chains, lanes, spans, checks,
        batches, tokenizers, metrics; other tables have their names in the JSON report ("memory.terms"). Raises
        `UsageError` with all names for an unknown table, and `OpanatomyError` without pandas (the extra `data`).
        """
        return pandas_frame(self, table)

    def to_polars(self, table: str = "operators") -> Any:
        """Return a table as a `polars.DataFrame`, null if unknown; tables and errors are those of `to_pandas`."""
        return polars_frame(self, table)

    def what_if(self, *changes: str) -> Replay:
        """Return a replay: the step time after changes like "aten::mm x0.5" or "synchronization 0".

            replay = anatomy.what_if("aten::mm x0.5", "synchronization 0")
            print(replay.step_ns, [answer.step_ns for answer in replay.answers])

        `answers` has the step time after each change and, for several, after all of them together. This works for a
        GPU trace that `opanatomy.analyze` read, or that `profile` or `record` kept. An anatomy holds no events, which
        would need more memory than the file: the first call reads the trace again, and the events of the most recently
        replayed trace stay in memory. Raises `UsageError` for an invalid change or an unknown part of the step, and
        without a trace to read.
        """
        asked = changes_of(texts_of("what_if", changes))
        paths, phases = vars(self).get(_TRACES, ((), ()))
        if self.replay is not None and not paths:
            raise UsageError(
                "what_if: this anatomy is from a report or a copy, or its trace was not kept, so it has no events"
                " - pass the trace to opanatomy.analyze"
            )
        return replayed(self, paths, phases, asked)

    def __repr__(self) -> str:
        """Return one line: model or trace, step time, top operator class, peak memory."""
        figures = self.metrics()
        parts = [f"{len(self.ranks)} ranks"] if len(self.ranks) > 1 else []
        if "step_time_ns" in figures:
            parts.append(f"step {units.duration(figures['step_time_ns'])}")
        shares = {item: figures.get(f"class.{item}.time_share", 0) for item in OperatorClass}
        largest = max(OperatorClass, key=lambda item: shares[item])
        if shares[largest]:
            parts.append(f"{LABEL[largest]} {units.share(shares[largest], 1)}")
        if "peak_memory_bytes" in figures:
            parts.append(f"peak {units.size(figures['peak_memory_bytes'])}")
        name = self.workload.model or self.provenance.trace
        of = "" if name is None else f" of {cut(printable(name), _NAME_WIDTH)}"
        return f"<Anatomy{of}: {', '.join(parts) or 'no device work'}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        names = (("model", self.workload.model), ("trace", self.provenance.trace))
        return [*((label, name) for label, name in names if name is not None), ("metrics", self.metrics())]


class Comparison(_Report, ComparisonRecord, frozen=True, kw_only=True):  # noqa: D101  # the record's
    __doc__ = ComparisonRecord.__doc__

    def metrics(self) -> dict[str, int | float]:
        """Return every number of every side as one flat dictionary, for any logger.

        With two sides, each name of `Anatomy.metrics()` has the suffix `.before`, `.after` or `.change` (after divided
        by before, minus one); with more sides, the number of the side (`.1`, `.2`, ...). `like_step_ns.change.CAUSE`
        is what a cause adds to the difference, in nanoseconds. Unknown numbers are left out, as is every change if the
        sides are `not_comparable`. `mfu` and `hfu` of a side are lower bounds if its `mfu_covered` is below 1.
        """
        return {name: metric.value for name, metric in metrics_of_comparison(self).items()}

    def to_pandas(self, table: str | None = None) -> Any:
        """Return a table as a `pandas.DataFrame`: one column per field, in base units, `<NA>` if unknown.

        Tables: parts (of the difference, if known; the default), peak_parts (of two memory snapshots), figures (with a
        column `values.SIDE` for each side; the default without parts), sides, kinds, gates, metrics. Raises
        `UsageError` with all names for an unknown table, and `OpanatomyError` without pandas (the extra `data`).
        """
        return pandas_frame(self, table)

    def to_polars(self, table: str | None = None) -> Any:
        """Return a table as a `polars.DataFrame`, null if unknown; tables and errors are those of `to_pandas`."""
        return polars_frame(self, table)

    def __repr__(self) -> str:
        """Return one line: the sides, the step of each, and the difference of two."""
        names = " against ".join(cut(printable(side.name), _NAME_WIDTH) for side in self.sides)
        parts = self.decomposition
        if parts is None:
            return f"<Comparison of {names}>"
        row = next((row for row in self.figures if row.name == "step_unprofiled_ns"), None)
        plain = [] if row is None else [value for value in row.values if value is not None]
        before, after = plain if len(plain) == 2 else (parts.before_ns, parts.after_ns)
        change = f"{units.duration_change(after - before)} ({units.change(after, before)})"
        return f"<Comparison of {names}: step {units.duration(before)} to {units.duration(after)}, {change}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [*(("side", side.name) for side in self.sides), ("metrics", self.metrics())]


class Techniques(_Report, TechniquesRecord, frozen=True, kw_only=True):  # noqa: D101  # the record's
    __doc__ = TechniquesRecord.__doc__

    def to_pandas(self, table: str = "techniques") -> Any:
        """Return a table as a `pandas.DataFrame`: one column per field, in base units, `<NA>` if unknown.

        Tables: techniques (the baseline and each technique), advice. Raises `UsageError` with all names for an unknown
        table, and `OpanatomyError` without pandas (the extra `data`).
        """
        return pandas_frame(self, table)

    def to_polars(self, table: str = "techniques") -> Any:
        """Return a table as a `polars.DataFrame`, null if unknown; tables and errors are those of `to_pandas`."""
        return polars_frame(self, table)

    def __repr__(self) -> str:
        """Return one line: the model, the techniques, the peak of the baseline and the least one."""
        of = f" of {cut(printable(self.workload.model), _NAME_WIDTH)}" if self.workload.model else ""
        peaks = {row.name: one.peak_bytes for row in self.rows if (one := row.measured or row.predicted) is not None}
        known = {name: size for name, size in peaks.items() if size is not None}
        parts = [units.noun(len(self.rows) - 1, "technique")]
        if (before := known.get(self.baseline.name)) is not None:
            least = min(known, key=lambda name: known[name])
            parts.append(f"peak {units.size(before)}, lowest {units.size(known[least])} ({least})")
        return f"<Techniques{of}: {', '.join(parts)}>"


def located(anatomy: AnatomyRecord, paths: Sequence[Path | Address], phases: Sequence[PhaseRule] = ()) -> Anatomy:
    """Return the anatomy with the places of its traces, for `what_if`; a pipe cannot be read again."""
    made = as_public(anatomy)
    if not any(isinstance(path, Path) and is_stream(path) for path in paths):
        vars(made)[_TRACES] = paths, phases
    return made


def texts_of(what: str, given: object) -> list[str]:
    """Return the given texts; raise `UsageError` beginning with `what` for anything else."""
    several = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    texts = [text for text in several if isinstance(text, str)]
    if len(texts) < len(several):
        raise UsageError(f"{what}: not all changes are strings - pass changes such as 'aten::mm x0.5'")
    return texts


@overload
def as_public(record: AnatomyRecord) -> Anatomy: ...


@overload
def as_public(record: ComparisonRecord) -> Comparison: ...


@overload
def as_public(record: Report) -> Anatomy | Comparison | Techniques: ...


def as_public(record: Report) -> Anatomy | Comparison | Techniques:
    """Return a report of the stages with the methods that a user calls."""
    if isinstance(record, (Anatomy, Comparison, Techniques)):
        return record
    if isinstance(record, TechniquesRecord):
        return Techniques(**structs.asdict(record))
    kind = Comparison if isinstance(record, ComparisonRecord) else Anatomy
    return kind(**structs.asdict(record))
