"""Write the report as a page: one file with its pictures, tables and script in it, which opens from disk.

The page shows the contents of `sections`, in parts, with the charts of `charts`; it computes no figure. Charts are
still images until the script runs, so that without it only zoom, filter and selection are missing. The page's security
policy forbids every connection and every script but its own.
"""

from __future__ import annotations

import base64
import json
import shlex
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from importlib import resources
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.analysis.costs import steps_of
from opanatomy.cost.registry import describe
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.comparison import Comparison
from opanatomy.records.reports import Report
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.records.work import OperatorRow
from opanatomy.report import units
from opanatomy.report.charts import CHARTS, NoChart, chart_of, kind_of, library, still_of, timeline_of, title_of_lanes
from opanatomy.report.markup import templates
from opanatomy.report.names import cut, printable
from opanatomy.report.section import Format, Note, NoteKind, Page, Row, Section
from opanatomy.report.sections import PAGE, PARTS, PagePart, sections_of
from opanatomy.report.sections.operators import grouped, key_of
from opanatomy.report.terms import CHAPTERS, term_in
from opanatomy.report.totals import moved, total

#: Sections whose first note is the page title.
_TITLES: Final = ("title", "experiment")
#: Text sections placed below the first chart.
_BELOW: Final = ("more-advice",)
#: Rows of a table on the page, at least.
_MIN_ROWS: Final = 60
#: Maximum number of notes per section, and of signatures and modules per operator.
_NOTES: Final = 100
_SIGNATURES: Final = 8
_SIGNATURE_MOST: Final = 400
#: Charts as wide as the page, with the pixels beside their marks; others keep their width.
_FLUID: Final = {
    "step": 10, "steps": 420, "advice": 350, "roofline": 90, "modules": 10, "lines": 10, "memory": 90, "segments": 10,
    "components": 190, "difference": 330,
}  # fmt: skip
#: The chart that the page draws itself from the report's spans.
_TIMELINE: Final = "lanes"


def html_report(report: Report, page: Page) -> str:
    """Return the page of a report."""
    made = [_shortened(section) for section in sections_of(report, replace(page, top=max(page.top, _MIN_ROWS)))]
    on = {part.name: part.on for part in PARTS[kind_of(report)]}
    specs: dict[str, Any] = {}
    parts = []
    for part in _listed(report):
        others = [section for section in made if on[section.name] == part.name and section.name not in _TITLES]
        figures = [_figure(report, name, specs) for name in part.charts]
        if others or any(figure.still for figure in figures):
            sentences = [section for section in others if not section.rows and section.name not in _BELOW]
            lead = sentences if part.name == "verdict" else []
            rest = [section for section in others if section not in lead]
            rest.sort(key=lambda section: section.name not in _BELOW)
            parts.append(_Laid(name=part.name, title=part.title, lead=lead, figures=figures, rest=rest))

    # JSON that ends no element, whatever its texts are; a script that no text in it ends early.
    charts = json.dumps(specs, separators=(",", ":"), ensure_ascii=False)
    charts = charts.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    data = {"charts": _Data("json", charts)}
    scripts = [_file("page.js")]
    if specs:
        scripts.insert(0, library().replace("</script", "<\\/script").replace("<!--", "<\\!--"))
    if isinstance(report, Anatomy) and any(
        figure.name == _TIMELINE and figure.still for part in parts for figure in part.figures
    ):
        packed = zlib.compress(json.dumps(timeline_of(report), separators=(",", ":")).encode(), 9)
        data["timeline"] = _Data("octet-stream", base64.b64encode(packed).decode())
        scripts.append(_file("timeline.js"))
    return (
        templates()
        .get_template("page.html")
        .render(
            name=_name_of(report),
            titles=[section for section in made if section.name in _TITLES],
            parts=parts,
            filter=_filter(report, made),
            meaning=_meaning,
            data=data,
            scripts=scripts,
            title="h1",
            conventions=[
                (name.replace("_", " "), str(value))
                for name, value in sorted(getattr(report, "conventions", {}).items())
            ],
            terms=[term for chapter in CHAPTERS for term in chapter.terms],
        )
    )


class _Data(Struct, frozen=True):
    """What the scripts of the page read."""

    type: str
    text: str


class _Figure(Struct, frozen=True):
    """A chart on the page, as still image, or why there is none."""

    name: str
    title: str
    still: str = ""
    description: str = ""
    beside: int | None = None
    legend: tuple[tuple[str, str], ...] = ()
    said: tuple[str, ...] = ()
    #: A command that shows more.
    command: str = ""
    why_not: str = ""


class _Laid(Struct, frozen=True):
    """A part of the page: contents above its charts, the charts, and contents below."""

    name: str
    title: str
    lead: list[Section]
    figures: list[_Figure]
    rest: list[Section]


def _listed(report: Report) -> list[PagePart]:
    """Return the parts of the page: for a memory snapshot the memory parts, and the segment map only there."""
    listed = list(PAGE[kind_of(report)])
    if not isinstance(report, Anatomy):
        return listed
    if report.memory.is_snapshot and not report.classes:
        listed = [part for part in listed if part.name in ("verdict", "memory", "sources")]
        return [replace(part, charts=()) if part.name == "verdict" else part for part in listed]
    charts = [tuple(name for name in part.charts if name != "segments") for part in listed]
    return [replace(part, charts=kept) for part, kept in zip(listed, charts, strict=True)]


def _shortened(section: Section) -> Section:
    """Return a section limited to a readable number of notes."""
    if len(section.notes) <= _NOTES:
        return section
    more = Note(text=f"and {len(section.notes) - _NOTES:,} more in the JSON report", kind=NoteKind.REMARK)
    return replace(section, notes=(*section.notes[:_NOTES], more))


def _meaning(section: Section, word: str) -> str:
    """Return the meaning of a term; "" if the glossary lacks it."""
    known = term_in(section.name, word) if word.strip() else None
    return known.meaning if known is not None else ""


class _Filter(Struct, frozen=True):
    """The table with filters and expandable rows: classes and phases to choose from, and the rows' details."""

    of: str = ""
    classes: tuple[OperatorClass, ...] = ()
    phases: tuple[str, ...] = ()
    opened: Callable[[Row], _Calls | None] = lambda _: None


def _filter(report: Report, sections: Sequence[Section]) -> _Filter:
    section = next((section for section in sections if section.name == "operators"), None)
    if section is None or not isinstance(report, Anatomy):
        return _Filter()
    return _Filter(
        of=section.name,
        classes=tuple(item for item in OperatorClass if any(row.operator_class is item for row in section.rows)),
        phases=tuple(dict.fromkeys(row.key.split("/")[1] for row in section.rows if row.key)),
        opened=partial(_opened, _calls_of(report), steps_of(report)),
    )


# ----- what a row of the operators opens to


class _Line(Struct, frozen=True):
    """A signature, and its figures: the exact value and the text of each."""

    text: str
    figures: tuple[tuple[str | None, str], ...]


class _Calls(Struct, frozen=True):
    """Details of an operator's row: signatures, and text below them."""

    lines: list[_Line]
    said: list[str]


class _Called(Struct, frozen=True):
    """Signatures of an operator in one phase, longest first, and the calling modules."""

    rows: tuple[OperatorRow, ...]
    modules: tuple[str, ...]


def _calls_of(anatomy: Anatomy) -> dict[str, _Called]:
    """Return signatures and modules of each operator row, by key."""
    modules: dict[tuple[str, str], dict[str, int]] = {}
    if anatomy.breakdown is not None:
        names = anatomy.breakdown
        for row in (row for kind in names.kinds for row in kind.rows if row.operator >= 0 and row.module >= 0):
            place = names.operators[row.operator], row.phase.value
            spent = modules.setdefault(place, {})
            module = names.modules[row.module]
            spent[module] = spent.get(module, 0) + row.time_ns
    made = {}
    for group, rows in grouped(anatomy.operators).items():
        times: Counter[str] = Counter()
        for name in dict.fromkeys(row.operator for row in rows):
            times.update(modules.get((name, group[2].value), {}))
        made[key_of(group)] = _Called(
            tuple(sorted(rows, key=lambda row: -row.time_ns)), tuple(name for name, _ in times.most_common())
        )
    return made


def _opened(known: dict[str, _Called], steps: int, row: Row) -> _Calls | None:
    """Return signatures, rule, formula and modules of an operator's row."""
    called = known.get(row.key)
    if called is None:
        return None
    lines = []
    for each in called.rows[:_SIGNATURES]:
        part = f" (part: {each.operator})" if each.part_of else ""
        text = cut(printable(str(each.signature)), _SIGNATURE_MOST) + part
        size = moved(each)
        lines.append(
            _line(
                text,
                each.calls / steps,
                each.time_ns / steps,
                None if each.flops is None else each.flops / steps,
                None if size is None else size / steps,
            )
        )
    if others := called.rows[_SIGNATURES:]:
        rest = total(others).per_step(steps)
        lines.append(_line(f"and {len(others):,} more", rest.calls, rest.time_ns, rest.flops, rest.bytes))
    said = [f"rule: {rule}" for rule in dict.fromkeys(each.rule for each in called.rows)][:2]
    names = dict.fromkeys(each.operator for each in called.rows)
    said += [f"formula: {meant.splitlines()[0]}" for name in names if (meant := describe(name))][:2]
    if called.modules:
        more = f" and {len(called.modules) - _SIGNATURES:,} more" if called.modules[_SIGNATURES:] else ""
        shown = (cut(printable(name), _SIGNATURE_MOST) or "the model" for name in called.modules[:_SIGNATURES])
        said.append(f"modules: {', '.join(shown)}{more}")
    return _Calls(lines, said)


def _line(text: str, calls: float, time_ns: float, flops: float | None, size: float | None) -> _Line:
    figures = (calls, units.ratio), (time_ns, units.duration), (flops, units.flops), (size, units.size)
    return _Line(text, tuple((None if value is None else repr(value), write(value)) for value, write in figures))


# ----- pictures


def _figure(report: Report, name: str, specs: dict[str, Any]) -> _Figure:
    """Return a chart as still image, and store its description for the script; else the reason why there is none."""
    picture = CHARTS[kind_of(report)][name]
    try:
        chart = chart_of(report, name)
    except NoChart as error:
        return _Figure(name, picture.title, why_not=str(error))
    spec = chart.to_dict(validate=False)
    description = spec["description"]
    still = still_of(chart_of(report, name, still=True) if picture.still is not None else chart, f"{name}-")
    if name != _TIMELINE or not isinstance(report, Anatomy):
        specs[name] = spec
        return _Figure(name, picture.title, still, description, _FLUID.get(name))
    data = timeline_of(report)
    legend = tuple(dict.fromkeys((words, colour) for words, colour in data["kinds"]))
    kept = [lane["name"] for lane in data["lanes"] if lane["bin"]]
    said = []
    if kept:
        said.append(
            f"{', '.join(kept)}: too many spans for this page, so sums over intervals of the step are drawn"
            " (`opanatomy analyze TRACE --timeline full -o page.html` draws every span)"
        )
    said.append(
        "drag to move, hold Shift and scroll to zoom, click to pin a span, use the arrow keys to go from span to span"
    )
    description = f"{picture.title}: {title_of_lanes(report)}"
    trace = report.provenance.trace if len(report.ranks) < 2 else None
    command = f"opanatomy analyze {shlex.quote(trace)} --trace annotated.json.gz" if trace else ""
    return _Figure(name, picture.title, still, description, legend=legend, said=tuple(said), command=command)


# ----- the page


def _name_of(report: Report) -> str:
    """Return the report's subject for the window title."""
    if isinstance(report, Comparison):
        return " vs. ".join(side.name for side in report.sides)
    name = report.workload.model or (report.provenance.trace if isinstance(report, Anatomy) else None)
    return name or "a training step"


def _file(name: str) -> str:
    return resources.files("opanatomy.report.page").joinpath(name).read_text("utf-8")


FORMAT: Final = Format(ending=".html", write=html_report, machine_readable=True)
