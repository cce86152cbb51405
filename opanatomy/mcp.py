"""Answer an agent's questions about reports over the Model Context Protocol: nine tools over the same functions.

A report's id is a digest of its content, so that the same trace has the same id everywhere. An answer is text of a few
kilobytes; a table is paged by a cursor. Files are only read below the folders named at startup, models are only run if
enabled at startup, and answers never contain what reports must not (secrets).
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from fnmatch import translate
from functools import wraps
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, cast

from mcp.server import MCPServer
from mcp.server.apps import APP_MIME_TYPE
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceError, ToolError, UnexpectedToolError
from mcp_types import CallToolResult, InputRequiredResult, ToolAnnotations
from pydantic import Field, ValidationError

from opanatomy.analysis.costs import steps_of, steps_of_window
from opanatomy.analysis.replay import changes_of
from opanatomy.analysis.spans import Interval
from opanatomy.api import comparison_of
from opanatomy.capture.model.catalog import catalog_entries
from opanatomy.errors import OpanatomyError, UsageError
from opanatomy.explanation import explain, read_report
from opanatomy.io.redact import mask_secrets
from opanatomy.io.sources import sources_of
from opanatomy.options import instead_of
from opanatomy.pipeline import analyze_traces, events_of_trace, replayed
from opanatomy.records.anatomy import Advice, Anatomy, Replay, Span
from opanatomy.records.comparison import Comparison
from opanatomy.records.experiment import Techniques
from opanatomy.records.patterns import regex
from opanatomy.records.reports import Report
from opanatomy.report import units
from opanatomy.report.formats.digest import digest
from opanatomy.report.formats.html import html_report
from opanatomy.report.formats.json import json_report
from opanatomy.report.formats.terminal import sentence
from opanatomy.report.frames import METRICS, columns_of, table_names
from opanatomy.report.load import document_in
from opanatomy.report.metrics import definition_of
from opanatomy.report.names import cut, printable
from opanatomy.report.section import Page
from opanatomy.report.sections.advice import commands_of, tries_of, why_of
from opanatomy.report.sections.digest import short_signature, technique_findings
from opanatomy.report.sections.verdict import experiment_of, findings, is_run_of_profile
from opanatomy.results import as_public
from opanatomy.version import __version__

INSTRUCTIONS: Final = (
    "Reports on PyTorch training and inference steps. First open(path) a trace or report: it returns an id and a"
    " digest. findings(id) lists what costs most and what to try; table(id, name, filter, sort) returns the rows of"
    " any table (table metrics: the main numbers of one step, with their meaning); spans(id, from, to, filter) returns"
    " the individual events of an interval; what_if(id, changes) predicts the step time after changes; explain(id,"
    " name) explains a term or an operator. Numbers are per step where `per` says so. Times are in nanoseconds, sizes"
    " in bytes, shares are fractions; null means unknown."
)
#: Default and maximum bytes of an answer: 25,000 tokens of two bytes.
_ANSWER_BYTES: Final = 4_000
_MAX_ANSWER_BYTES: Final = 50_000
_ANSWER_ROWS: Final = 20
_MAX_ANSWER_ROWS: Final = 500
#: Bytes of an answer with single events, and its maximum number of events and of names.
_SPAN_BYTES: Final = 4_000
_MAX_SPANS: Final = 60
_MAX_SPAN_NAMES: Final = 8
#: Maximum time of an interval, a year.
_MAX_MS: Final = 365 * 86_400_000
#: Parts of the path that decides a step's length.
_MAX_PATH_PARTS: Final = 8
#: Tables whose rows are sums over the counted steps, and their columns that are not sums.
_SUMS: Final = (
    "classes", "operators", "kernels", "modules", "host", "chains", "collectives", "communication",
    "communication.modules", "devices", "streams", "timeline.causes",
)  # fmt: skip
#: Those that are means over the ranks.
_OF_WINDOW: Final = ("devices", "streams", "timeline.causes")
_NO_SUMS: Final = ("device", "stream", "group_size", "bus_bytes_per_second")
#: Letters of an id, of a name in a sentence, and of an error.
_ID_LENGTH: Final = 12
_NAME_LENGTH: Final = 100
_ERROR_LENGTH: Final = 1_000
#: The page of the report opened last, and of any report.
_LAST_REPORT_URI: Final = "ui://opanatomy/report"
#: Tools that run models if enabled, and so read and write files as these do.
_RUN: Final = ("open", "predict")
Tool = TypeVar("Tool", bound=Callable[..., Any])


class Reports:
    """The reports that a server has opened, by id; files outside of `roots` are not read."""

    def __init__(self, roots: Sequence[Path], *, allow_run: bool) -> None:
        self.roots = tuple(root.resolve() for root in roots)
        self.allow_run = allow_run
        self._known: dict[str, Report] = {}
        #: Location of a report's traces, if it was opened from traces.
        self._places: dict[str, Path] = {}

    def open(self, path: str) -> str:
        """Open a report, a trace or ranks at a path, or a run of `profile OPTIONS`, and return its id."""
        if path.split()[:1] == ["profile"]:
            try:
                words = shlex.split(path)[1:]
            except ValueError as error:
                raise UsageError(f"{path}: {error} - quote its options as in a shell") from error
            return self.keep(self._run(path, "profile", words, "--no-trace", "--suggest", "0"))
        place = self._allowed(path)
        document = None if place.is_dir() else document_in(place)
        if place.is_dir() and (link := next((each for each in place.rglob("*") if not self._is_inside(each)), None)):
            raise UsageError(f"{path}: it contains {link.name}, which leads outside the folders that this server reads")
        if document is not None:
            return self.keep(document)
        name = self.keep(analyze_traces([place]))
        self._places[name] = place
        return name

    def keep(self, report: Report) -> str:
        """Return the id of a report from now on."""
        name = hashlib.sha256(json_report(report).encode()).hexdigest()[:_ID_LENGTH]
        self._known.pop(name, None)
        self._known[name] = report
        return name

    def report(self, name: str) -> Report:
        """Return the report with this id; raise `UsageError` with those that there are."""
        if name not in self._known:
            known = ", ".join(self._known) or "none is open"
            raise UsageError(f"id {name!r}: no open report has this id ({known}) - open(path) returns one")
        return self._known[name]

    def anatomy(self, name: str) -> Anatomy:
        """Return the report of one run with this id."""
        report = self.report(name)
        if not isinstance(report, Anatomy):
            raise UsageError(f"id {name!r}: this is a {_kind(report)} - pass the id of a single run's report")
        return report

    def events(
        self, name: str, rank: int | None, step: int | None, span_ms: tuple[float, float | None], wanted: str
    ) -> Interval:
        """Return the single events of a report's trace in an interval, read from its file again."""
        anatomy, place = self.anatomy(name), self._place(name)
        rows = [row for row in anatomy.ranks if rank is None or row.rank == rank]
        if not rows and (anatomy.ranks or rank is not None):
            known = ", ".join(str(row.rank) for row in anatomy.ranks) or "none is known"
            raise UsageError(f"rank {rank}: the report has no such rank ({known})")
        sources = sources_of([place])
        source = next((each for each in sources if rows and each.name == rows[0].trace), sources[0])
        counted = [row.number for row in anatomy.step.steps if row.set_aside is None]
        begin, end = (None if ms is None else round(ms * 1e6) for ms in span_ms)
        return events_of_trace(
            source,
            sha256=anatomy.provenance.trace_sha256,
            begin_ns=begin or 0,
            end_ns=end,
            most=_MAX_SPANS,
            step=next(iter(counted), None) if step is None else step,
            pattern=_pattern(wanted),
        )

    def replayed(self, name: str, changes: Sequence[str]) -> Replay:
        """Return the steps of a report's trace timed again after changes."""
        return replayed(self.anatomy(name), [self._place(name)], (), changes_of(changes))

    def _place(self, name: str) -> Path:
        """Return where the trace of a report is."""
        place = self._places.get(name)
        if place is None:
            raise UsageError(
                f"id {name!r}: this report was not opened from a trace, so it has no events - open the trace"
            )
        if not place.exists() or not self._is_inside(place):
            raise UsageError(f"{place.name}: the file is gone - open another one")
        return place

    @property
    def last(self) -> Report:
        """Return the report that was opened last."""
        if not self._known:
            raise UsageError(f"{_LAST_REPORT_URI}: no report is open - open(path) returns one")
        return next(reversed(self._known.values()))

    def predicted(self, name: str, technique: str) -> str:
        """Return the id of the prediction of a technique for the model of a report."""
        command = experiment_of(self.anatomy(name))
        if command is None:
            raise UsageError(
                f"technique {technique!r}, id {name!r}: cannot be predicted, because no command can run this training"
                " step again (a trace from elsewhere, inference, several ranks, texts, or changed settings) - profile a"
                " training step of the model by its name"
            )
        with tempfile.TemporaryDirectory() as folder:
            words = [*shlex.split(command)[2:], "--only", technique, "--predict-only", "--folder", f"{folder}/runs"]
            return self.keep(self._run(f"technique {technique!r}", "techniques", words))

    def _allowed(self, path: str) -> Path:
        if not path or "\0" in path:
            raise UsageError(f"path {path!r}: not a file name - pass a path in this server's folders")
        place = Path(path)
        places = [place] if place.is_absolute() else [root / place for root in self.roots]
        inside = [each for each in places if self._is_inside(each)]
        if not inside:
            folders = ", ".join(map(str, self.roots))
            raise UsageError(f"{path}: it is outside the folders that this server reads ({folders})")
        found = next((each for each in inside if each.exists()), None)
        if found is None:
            raise UsageError(f"{path}: no such file or folder in {', '.join(map(str, self.roots))}")
        return found.resolve()

    def _is_inside(self, place: Path) -> bool:
        return any(place.resolve().is_relative_to(root) for root in self.roots)

    def _run(self, asked: str, verb: str, words: Sequence[str], *more: str) -> Report:
        """Return the report of a command run in a separate process; `asked` is what the agent asked for."""
        if not self.allow_run:
            raise UsageError(f"{asked}: this server does not run models - start it with opanatomy mcp --allow-run")
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "report.json"
            command = [sys.executable, "-m", "opanatomy", verb, *words, *more, "-o", str(target), "-f", "json"]
            done = subprocess.run(command, capture_output=True, text=True, cwd=self.roots[0], check=False)
            if done.returncode:
                said = (done.stderr.strip().splitlines() or [f"{verb} failed"])[-1]
                raise OpanatomyError(said.removeprefix("opanatomy: "))
            return read_report(target)


def _kind(report: Report) -> str:
    kinds = {Comparison: "comparison", Techniques: "report of techniques", Anatomy: "report"}
    return next(words for kind, words in kinds.items() if isinstance(report, kind))


# ----- the tools


class _Server(MCPServer[Any]):  # type: ignore[misc]  # mypy does not follow the SDK
    """A server that says in one line what is wrong with a call, such as arguments that are missing."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        try:
            return await super().call_tool(name, arguments, context)
        except UnexpectedToolError:
            raise
        except ToolError as error:
            cause, said = error.__cause__, str(error)
            if isinstance(cause, ValidationError):
                wrong = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in cause.errors())
                said = f"{name}: {'; '.join(wrong)}"
            raise ToolError(_line(said)) from cause


def server_of(roots: Sequence[Path], *, allow_run: bool = False) -> MCPServer[Any]:
    """Return a server with the nine tools, and the page of each report as a resource."""
    reports = Reports(roots, allow_run=allow_run)
    server = _Server("opanatomy", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING")

    def tool(function: Tool) -> Tool:
        meta = {"ui": {"resourceUri": _LAST_REPORT_URI}} if function.__name__ == "open" else None
        reads = not (allow_run and function.__name__ in _RUN)
        hints = ToolAnnotations(read_only_hint=reads, open_world_hint=not reads)
        wrapped = _one_line_errors(function, _MAX_ANSWER_BYTES)
        server.add_tool(wrapped, annotations=hints, meta=meta, structured_output=False)
        return function

    @tool
    def open(path: str) -> str:
        """Open a torch.profiler trace, a folder of ranks or a saved report; 'profile MODEL OPTIONS' runs a model.

        Returns the report's id, its tables with their row counts, and a digest of what ran and what costs most.
        """
        return _opened(reports, reports.open(path))

    @tool
    def findings(id: str) -> str:
        """What costs most in a report, largest first, and advice: what to try, and the most it could save (ns)."""
        return _findings(reports.report(id))

    @tool
    def explain(id: str, name: str) -> str:
        """What a term of the report, a metric, an operator or a kernel means, and this report's numbers for it."""
        return _explained(reports.report(id), name)

    @tool
    def table(
        id: str, name: str = METRICS, filter: str = "", sort: str = "", limit: int = _ANSWER_ROWS, cursor: str = ""
    ) -> str:
        """Rows of a report's table: metrics (headline numbers of one step, with meanings), operators, kernels, ...

        filter: words; rows that match most of them come first, rows that match none are left out; words_in_no_row
        lists the words that match nothing. sort: a column, with '-' before it for descending order. cursor: `next` of
        the previous answer. Names in the first column are never shortened. Numbers are per step (the mean over `steps`
        steps) where `per` says so; otherwise see the columns.
        """
        return _rows(reports.report(id), name, filter, sort, limit, cursor)

    @tool
    def spans(
        id: str,
        from_: Annotated[float, Field(alias="from", ge=-_MAX_MS, le=_MAX_MS)] = 0,
        to: Annotated[float, Field(ge=-_MAX_MS, le=_MAX_MS)] | None = None,
        filter: str = "",
        step: int | None = None,
        rank: int | None = None,
    ) -> str:
        """Individual events of an interval: what ran, when, how long, on which thread or stream, with which arguments.

        from, to: milliseconds since the start of the step (default: the entire step); step: its number (default: the
        first counted step). filter: part of a name; `*` matches anything, `|` separates alternatives. Returns the
        longest events in time order, at most three with the same name; `left_out` counts the others, `names` sums up
        all: name, events, ms (on the host, excluding nested events). Python functions below 0.1 ms are left out.
        """
        return _interval(reports.events(id, rank, step, (from_, to), filter))

    @tool
    def what_if(id: str, changes: list[str]) -> str:
        """How long a step takes after changes, one by one and together, predicted by replaying a GPU trace.

        A change is a part of the step and a factor: `aten::mm x0.5`, `elementwise x0.8`, `synchronization 0`,
        `input 0`, `optimizer x0.3`, `host 0`. `path` is the work that determines the step time. `fast_host_ns` is the
        step time with a host that is not slowed down by recording. If `why_not` is given, do not trust the replay.
        """
        return _replayed(reports.replayed(id, changes))

    @tool
    def compare(a: str, b: str) -> str:
        """Compare two reports by id: what changed, in parts that sum to the difference. Returns a new id."""
        return _opened(
            reports, reports.keep(comparison_of([as_public(reports.anatomy(a)), as_public(reports.anatomy(b))]))
        )

    @tool
    def predict(id: str, technique: str) -> str:
        """How a technique (amp, checkpointing, sgd, ...) would change a report's step; runs its model once."""
        return _opened(reports, reports.predicted(id, technique))

    @tool
    def catalog() -> str:
        """The built-in models, which `open('profile NAME')` runs without network access."""
        entries = catalog_entries()
        return "\n".join(f"{entry.name}: {units.count(entry.parameters)} parameters, {entry.task}" for entry in entries)

    @server.resource(_LAST_REPORT_URI, mime_type=APP_MIME_TYPE, title="the last report")  # type: ignore[untyped-decorator]
    @_one_line_errors
    def last_page() -> str:
        return html_report(reports.last, Page())

    @server.resource(f"{_LAST_REPORT_URI}/{{id}}", mime_type=APP_MIME_TYPE, title="a report")  # type: ignore[untyped-decorator]
    @_one_line_errors
    def page(id: str) -> str:
        return html_report(reports.report(id), Page())

    return server


def _one_line_errors(function: Tool, most_bytes: int | None = None) -> Tool:
    """Wrap a tool or a resource so that its errors become one clear line without secrets."""

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> str:
        named = {f"{name}_" if iskeyword(name) else name: value for name, value in named.items()}
        try:
            answer: str = function(*arguments, **named)
        except OpanatomyError as error:
            raise ResourceError(_line(str(error))) from error
        except OSError as error:
            raise ResourceError(_line(f"{error.filename or 'the file'}: {error.strerror or error}")) from error
        return answer if most_bytes is None else _within(answer, most_bytes)

    return cast("Tool", called)


def _line(text: str) -> str:
    """Return an error as one line of limited length, without secrets."""
    return cut(printable(mask_secrets(text)), _ERROR_LENGTH)


def _within(text: str, most: int) -> str:
    """Return the beginning of a text that fits so many bytes."""
    data = text.encode()
    return text if len(data) <= most else data[: most - 40].decode(errors="ignore") + "\n... truncated: request less"


def _opened(reports: Reports, name: str) -> str:
    report = reports.report(name)
    tables = ", ".join(f"{table} {len(columns[0].values)}" for table, columns in _tables(report).items())
    head = f"id: {name}\nkind: {_kind(report)}\ntables (rows): {tables}\n\n"
    return head + digest(report, most_bytes=_ANSWER_BYTES - len(head.encode()))


def _tables(report: Report) -> dict[str, list[Any]]:
    """Return the tables of a report that have rows, by name."""
    made = {name: columns_of(report, name, "table") for name in table_names(type(report))}
    return {name: columns for name, columns in made.items() if columns and columns[0].values}


def _findings(report: Report) -> str:
    if isinstance(report, Comparison):
        return _within(digest(report), _ANSWER_BYTES)
    said = technique_findings(report) if isinstance(report, Techniques) else findings(report)
    costs = [{"finding": each.name, "text": sentence(each.text), "share_of_step": each.share} for each in said]
    advice = [_advice(report, each) for each in report.advice]
    answer: dict[str, Any] = {"findings": costs, "advice": advice}
    while advice and len(_json(answer).encode()) > _ANSWER_BYTES:  # the least of it goes, and is said
        advice.pop()
        answer["more_advice_in_table"] = len(report.advice) - len(advice)
    return _json(answer)


def _advice(report: Anatomy | Techniques, advice: Advice) -> dict[str, Any]:
    commands = commands_of([advice], report, None) if isinstance(report, Anatomy) else ()
    of_profile = not isinstance(report, Anatomy) or is_run_of_profile(report)
    subject = None if advice.subject is None else cut(printable(advice.subject), _NAME_LENGTH)
    return {
        "id": advice.id,
        "about": subject,
        "gain_at_most_ns": advice.gain_ns,
        "gain_replayed_ns": advice.replayed_ns,
        "changes": advice.changes,
        "step_ns": advice.step_ns,
        "gain_at_most_bytes": advice.gain_bytes,
        "why": sentence(why_of(advice)),
        "try": sentence(tries_of(advice, of_profile=of_profile)),
        "command": next((each.text for each in commands), None),
    }


def _replayed(made: Replay) -> str:
    """Return a replay as an answer."""
    return _json(
        {
            "step_ns": made.step_ns,
            "fast_host_ns": made.least_ns,
            "why_not": made.why_not,
            "error": round(made.error, 4),
            "unexplained": round(made.unexplained, 4),
            "path": {part.of: part.time_ns for part in made.path[:_MAX_PATH_PARTS]},
            "answers": [
                {"changes": each.changes, "step_ns": each.step_ns, "fast_host_ns": each.least_ns}
                for each in made.answers
            ],
        }
    )


def _pattern(wanted: str) -> re.Pattern[str] | None:
    """Return a case-insensitive pattern for parts of names, which no name takes long to match."""
    if not wanted:
        return None
    parts = (each.replace(".*", "*").replace("[", "[[]") for each in wanted.split("|"))
    return re.compile("|".join(translate(f"*{part}*") for part in parts), re.IGNORECASE)


_COLUMNS: Final = (
    "what",
    "name",
    "at_ms",
    "ms",
    "own_ms",
    "on",
    "below",
    "phase",
    "module",
    "arguments",
    "bytes",
    "GB/s",
)


#: Maximum number of events shown with the same name.
_OF_ONE_NAME: Final = 3


def _interval(interval: Interval) -> str:
    """Return as many of the longest events as fit, ordered by begin; trailing unknown values of a row are dropped."""
    names = [
        [cut(printable(each.name), _NAME_LENGTH), each.count, _ms(each.spent_ns)]
        for each in interval.names[:_MAX_SPAN_NAMES]
    ]
    answer: dict[str, Any] = {
        "step": interval.step,
        "from_ms": _ms(interval.begin_ns),
        "to_ms": _ms(interval.end_ns),
        "events": interval.count,
        "names": names,
        "more_names": len(interval.names) - len(names),
        "columns": _COLUMNS,
    }
    longest, seen = [], dict[str, int]()
    for span in sorted(interval.spans, key=lambda span: -span.spent_ns):
        seen[span.name] = seen.get(span.name, 0) + 1
        if seen[span.name] <= _OF_ONE_NAME:
            longest.append(span)
    for kept in range(len(longest), -1, -1):
        shown = set(map(id, longest[:kept]))
        rows = [_event(span) for span in interval.spans if id(span) in shown]
        text = _json({**answer, "rows": rows, "left_out": interval.count - kept})
        if len(text.encode()) <= _SPAN_BYTES:
            break
    return text


def _event(span: Span) -> list[Any]:
    where = f"thread {span.thread}" if span.stream is None else f"device {span.device} stream {span.stream}"
    row = [
        span.what, cut(printable(span.name), _NAME_LENGTH), _ms(span.begin_ns), _ms(span.duration_ns), _ms(span.own_ns),
        where, None if span.operator is None else cut(printable(span.operator), _NAME_LENGTH),
        span.phase and span.phase.value, span.module or None,
        None if span.signature is None else printable(short_signature(span.signature)), span.bytes,
        None if span.bytes_per_second is None else round(span.bytes_per_second / 1e9, 3),
    ]  # fmt: skip
    while row[-1] is None:
        row.pop()
    return row


def _ms(ns: int | None) -> float | None:
    return None if ns is None else round(ns / 1e6, 4)


def _explained(report: Report, name: str) -> str:
    explanation = explain([mask_secrets(name)], report)
    if explanation.unknown and not explanation.text:
        near = ", ".join(explanation.unknown[0][1])
        hint = f" - similar names: {near}" if near else ""
        raise UsageError(f"{name!r}: neither a term of the report nor an operator or kernel{hint}")
    return _within(explanation.text, _ANSWER_BYTES)


def _rows(report: Report, name: str, wanted: str, sort: str, limit: int, cursor: str) -> str:
    """Return rows of a table as JSON: as many as fit, and the cursor of the next."""
    names = () if isinstance(report, Techniques) else table_names(type(report))
    if isinstance(report, Techniques) or name not in names:
        instead = instead_of(name, names) if names else "findings(id) lists what each technique saves"
        raise UsageError(f"table {name!r}: this report has no such table - {instead}")
    if not 1 <= limit <= _MAX_ANSWER_ROWS:
        raise UsageError(f"limit {limit}: must be from 1 to {_MAX_ANSWER_ROWS}")
    records = _records(report, name, columns_of(report, name, "table"))
    sums = isinstance(report, Anatomy) and name in _SUMS
    steps: float = steps_of(report) if isinstance(report, Anatomy) else 1
    if isinstance(report, Anatomy) and name in _OF_WINDOW:
        steps = steps_of_window(report)
    if sums:
        records = [{key: _per_step(key, value, steps) for key, value in row.items()} for row in records]
    found, missing = _filtered(records, wanted)
    rows = _ordered(found, sort)
    begin = _begin_of(cursor, len(rows))
    answer: dict[str, Any] = {"table": name, "rows_that_fit": len(rows)}
    if missing:
        answer["words_in_no_row"] = missing
    if isinstance(report, Anatomy):
        answer["per"], answer["steps"] = "step" if sums or name == METRICS else None, steps
    shown: list[dict[str, Any]] = []
    room = _MAX_ANSWER_BYTES if limit > _ANSWER_ROWS else _ANSWER_BYTES
    for row in rows[begin : begin + limit]:
        row = {
            key: cut(value, _NAME_LENGTH) if index and _is_long(key, value) else value
            for index, (key, value) in enumerate(row.items())
        }
        if shown and len(_json({**answer, "rows": [*shown, row]}).encode()) > room - 40:
            break
        shown.append(row)
    end = begin + len(shown)
    return _json({**answer, "rows": shown, "next": str(end) if end < len(rows) else None})


def _is_long(column: str, value: Any) -> bool:
    return isinstance(value, str) and len(value) > _NAME_LENGTH and column != "meaning"


def _per_step(column: str, value: Any, steps: float) -> Any:
    """Return a sum over the steps per mean step."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or column in _NO_SUMS:
        return value
    each = value / steps
    return int(each) if each.is_integer() else round(each, 1)


def _records(report: Report, name: str, columns: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the rows of a table; a metric with its meaning."""
    names = [column.name for column in columns]
    values = zip(*(column.values for column in columns), strict=True)
    rows = [dict(zip(names, row, strict=True)) for row in values]
    if name == METRICS and isinstance(report, Anatomy):
        for row in rows:
            definition = definition_of(row["metric"])
            row["meaning"] = definition.meaning if definition is not None else None
    return [{key: printable(value) if isinstance(value, str) else value for key, value in row.items()} for row in rows]


def _filtered(rows: Sequence[dict[str, Any]], wanted: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows that contain some of the words, best match first, and the words that occur in no row.

    A word in the first column, a row's name, counts twice; of rows with as many the shorter name is nearer.
    """
    words = [each for word in wanted.split() if (each := _letters(_ENDING.sub("", word)))]
    if not words:
        return list(rows), []
    names = [_letters(next(iter(row.values()), "")) for row in rows]
    texts = [_letters(json.dumps(row, ensure_ascii=False)) for row in rows]
    hits = [sum((word in text) + (word in name) for word in words) for name, text in zip(names, texts, strict=True)]
    order = sorted(
        (index for index in range(len(rows)) if hits[index]), key=lambda index: (-hits[index], len(names[index]))
    )
    return [rows[index] for index in order], [word for word in words if not any(word in text for text in texts)]


#: Word endings ignored in searches.
_ENDING: Final = regex(r"(?<=\w{4})(?:ing|s)$")


def _letters(value: Any) -> str:
    """Return a text in lowercase without word separators."""
    return "".join(letter for letter in str(value).lower() if letter.isalnum() or letter == ":")


def _ordered(rows: list[dict[str, Any]], sort: str) -> list[dict[str, Any]]:
    column = sort.removeprefix("-")
    if not column:
        return rows
    if rows and column not in rows[0]:
        raise UsageError(f"sort {sort!r}: no such column - {instead_of(column, tuple(rows[0]))}")
    known = [row for row in rows if row[column] is not None]
    return sorted(known, key=lambda row: row[column], reverse=sort.startswith("-")) + [
        row for row in rows if row[column] is None
    ]


def _begin_of(cursor: str, rows: int) -> int:
    if not cursor:
        return 0
    if not cursor.isdecimal() or int(cursor) > rows:
        raise UsageError(f"cursor {cursor!r}: not a cursor of this table - pass `next` of the previous answer")
    return int(cursor)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def serve(roots: Sequence[Path], *, allow_run: bool) -> None:
    """Serve over stdin and stdout until they are closed."""
    server_of(roots, allow_run=allow_run).run("stdio")
