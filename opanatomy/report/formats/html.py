"""Write the report as a page: one file with its pictures, tables and script in it, which opens from disk.

The page shows what `sections` says, in parts, with the pictures of `charts`; it computes no figure. A picture is a
still one until the script runs, so that without it nothing is missing but zoom, filter and selection. The policy of the
page forbids every connection and every script but its own two.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from html import escape
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
from opanatomy.report.charts import CHARTS, NoChart, chart_of, kind_of, library, still_of
from opanatomy.report.markup import Opened, elements, nothing_more, plain
from opanatomy.report.section import LABEL, Format, Note, NoteStyle, Page, Row, Section, cut, moved, printable, total
from opanatomy.report.sections import PAGE, PARTS, PagePart, sections_of
from opanatomy.report.sections.operators import grouped, key_of
from opanatomy.report.terms import CHAPTERS, term_in

#: The sections whose first note is the title of the page.
_TITLES: Final = ("title", "experiment")
#: What stands below the first picture although it is sentences.
_BELOW: Final = ("more-advice",)
#: Rows of a table on the page, at least.
_ROWS: Final = 60
#: Notes of a section, and signatures and modules of an operator, at most.
_NOTES: Final = 100
_SIGNATURES: Final = 8
_SIGNATURE_MOST: Final = 400
#: Pictures of the width of the page, and the pixels beside their marks; the others keep theirs.
_FLUID: Final = {
    "step": 10, "advice": 350, "lanes": 150, "roofline": 90, "modules": 10, "memory": 90, "segments": 10,
    "components": 190, "difference": 330,
}  # fmt: skip


def html_report(report: Report, page: Page) -> str:
    """Return the page of a report."""
    wanted = replace(page, top=max(page.top, _ROWS))
    made = sections_of(report, wanted)
    on = {part.name: part.on for part in PARTS[kind_of(report)]}
    heading = "\n".join("".join(elements(section)) for section in made if section.name in _TITLES)
    specs: dict[str, Any] = {}
    parts: list[tuple[PagePart, str]] = []
    for part in _listed(report):
        own = [section for section in made if on[section.name] == part.name]
        if body := "\n".join(_part(report, part, own, specs)):
            parts.append((part, body))
    return "\n".join(_page(report, heading, parts, specs)) + "\n"


def _listed(report: Report) -> list[PagePart]:
    """Return the parts of the page: of a memory snapshot those of memory, and the map of segments of it alone."""
    listed = list(PAGE[kind_of(report)])
    if not isinstance(report, Anatomy):
        return listed
    if report.memory.is_snapshot and not report.classes:
        listed = [part for part in listed if part.name in ("verdict", "memory", "sources")]
        return [replace(part, charts=()) if part.name == "verdict" else part for part in listed]
    charts = [tuple(name for name in part.charts if name != "segments") for part in listed]
    return [replace(part, charts=kept) for part, kept in zip(listed, charts, strict=True)]


def _part(report: Report, part: PagePart, sections: Sequence[Section], specs: dict[str, Any]) -> Iterator[str]:
    """Yield a part's pictures and sections; nothing if it has neither."""
    others = [section for section in sections if section.name not in _TITLES]
    lead = [section for section in others if not section.rows and section.name not in _BELOW]
    lead = lead if part.name == "verdict" else []
    for section in lead:
        yield from _section(report, section)
    for name in part.charts:
        yield _figure(report, name, specs)
    rest = sorted((section for section in others if section not in lead), key=lambda each: each.name not in _BELOW)
    for place, section in enumerate(rest):
        body = "\n".join(_section(report, section))
        if place == 0 or section.open:
            yield f"<h3>{_heading(section)}</h3>\n{body}"
        else:
            yield f'<details class="part"><summary>{_heading(section)}</summary>\n{body}\n</details>'


def _heading(section: Section) -> str:
    scope = f" <small>{plain(section.scope)}</small>" if section.scope else ""
    return f"{plain(section.title)}{scope}"


def _section(report: Report, section: Section) -> Iterator[str]:
    """Yield a section; the table of operators has filters, and each of its rows opens."""
    notes = section.notes[:_NOTES]
    if section.notes[_NOTES:]:
        more = f"and {len(section.notes) - _NOTES:,} more, in the JSON report"
        notes = (*notes, Note(text=more, tone=NoteStyle.REMARK))
    section = replace(section, notes=notes)
    opened: Opened = nothing_more
    if section.name == "operators" and isinstance(report, Anatomy):
        opened = partial(_signatures, _signatures_of(report), steps_of(report))
        yield _filter(section)
    yield f'<div class="wide" tabindex="0" role="group" aria-label="{plain(section.title)}">'
    yield from elements(section, _meaning, opened)
    yield "</div>"


def _meaning(section: Section, word: str) -> str:
    """Return the meaning of a word of the report; "" if the glossary does not have it."""
    known = term_in(section.name, word) if word.strip() else None
    return known.meaning if known is not None else ""


def _filter(section: Section) -> str:
    """Return the filters of the table of operators: a text, a class, a phase."""
    classes = [item for item in OperatorClass if any(row.operator_class is item for row in section.rows)]
    phases = dict.fromkeys(row.key.split("/")[1] for row in section.rows if row.key)
    families = "".join(f'<option value="{item.value}">{LABEL[item]}</option>' for item in classes)
    options = "".join(f'<option value="{escape(phase)}">{escape(phase)}</option>' for phase in phases)
    return (
        f'<form class="filter controls" data-of="{section.name}">'
        '<label>name <input name="text" type="search"></label>'
        f'<label>class <select name="family"><option value="">all</option>{families}</select></label>'
        f'<label>phase <select name="phase"><option value="">all</option>{options}</select></label>'
        "<output></output></form>"
    )


# ----- what a row of the operators opens to


class _Calls(Struct, frozen=True):
    """The signatures of an operator in one phase, the longest first, and the modules that call it."""

    rows: tuple[OperatorRow, ...]
    modules: tuple[str, ...]


def _signatures_of(anatomy: Anatomy) -> dict[str, _Calls]:
    """Return what each row of the operators opens to, by its key."""
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
        made[key_of(group)] = _Calls(
            tuple(sorted(rows, key=lambda row: -row.time_ns)), tuple(name for name, _ in times.most_common())
        )
    return made


def _signatures(known: dict[str, _Calls], steps: int, _section: Section, row: Row) -> str:
    """Return signatures, rule, formula and modules of an operator's row."""
    opened = known.get(row.key)
    if opened is None:
        return ""
    names = dict.fromkeys(each.operator for each in opened.rows)
    lines = [
        "<tr><th scope='col'>signature</th><th class='n' scope='col'>calls</th><th class='n' scope='col'>time</th>"
        "<th class='n' scope='col'>FLOP</th><th class='n' scope='col'>bytes</th></tr>"
    ]
    for each in opened.rows[:_SIGNATURES]:
        part = f" (part: {plain(each.operator)})" if each.part_of else ""
        name = plain(cut(printable(str(each.signature)), _SIGNATURE_MOST)) + part
        lines.append(
            f"<tr><td>{name}</td>{_number(each.calls / steps, units.ratio)}"
            f"{_number(each.time_ns / steps, units.duration)}{_number(_of_step(each.flops, steps), units.flops)}"
            f"{_number(_of_step(moved(each), steps), units.size)}</tr>"
        )
    if others := opened.rows[_SIGNATURES:]:
        rest = total(others).per_step(steps)
        lines.append(
            f"<tr><td>and {len(others):,} more</td>{_number(rest.calls, units.ratio)}"
            f"{_number(rest.time_ns, units.duration)}{_number(rest.flops, units.flops)}"
            f"{_number(rest.bytes, units.size)}</tr>"
        )
    said = [f"rule: {plain(rule)}" for rule in dict.fromkeys(each.rule for each in opened.rows)][:2]
    said += [f"formula: {plain(text.splitlines()[0])}" for name in names if (text := describe(name))][:2]
    if opened.modules:
        more = f" and {len(opened.modules) - _SIGNATURES:,} more" if opened.modules[_SIGNATURES:] else ""
        shown = ", ".join(
            plain(cut(printable(name), _SIGNATURE_MOST)) or "the model" for name in opened.modules[:_SIGNATURES]
        )
        said.append(f"modules: {shown}{more}")
    return f"<table>{''.join(lines)}</table>" + "".join(f'<div class="note">{text}</div>' for text in said)


def _of_step(value: int | None, steps: int) -> float | None:
    return None if value is None else value / steps


def _number(value: float | None, text: Any) -> str:
    exact = "" if value is None else f' data-v="{value!r}"'
    return f'<td class="n"{exact}>{escape(text(value))}</td>'


# ----- pictures


def _figure(report: Report, name: str, specs: dict[str, Any]) -> str:
    """Return a picture as a still one, and keep its description for the script; else the reason why there is none."""
    title = CHARTS[kind_of(report)][name].title
    try:
        chart = chart_of(report, name)
    except NoChart as error:
        return f'<p class="absent" id="chart-{name}">No picture ({plain(title)}): {plain(str(error))}.</p>'
    specs[name] = chart.to_dict(validate=False)
    sized = f' data-beside="{_FLUID[name]}"' if name in _FLUID else ""
    smaller = CHARTS[kind_of(report)][name].still is not None
    still = still_of(chart_of(report, name, still=True) if smaller else chart, f"{name}-")
    return (
        f'<figure id="chart-{name}"{sized}><figcaption>{plain(title)}</figcaption>\n{_controls(name)}'
        f'<div class="view" role="img" aria-label="{plain(specs[name]["description"])}">{still}</div></figure>'
    )


def _controls(name: str) -> str:
    """Return what steers a picture besides the pointer."""
    if name == "lanes":
        ways = ("closer", "farther", "earlier", "later", "whole step")
        buttons = "".join(f'<button type="button" data-way="{way}">{way}</button>' for way in ways)
        return f'<div class="controls">{buttons}<span>or drag, and turn the wheel with shift</span></div>'
    if name != "modules":
        return ""
    return (
        '<div class="controls"><label>find a module <input type="search" data-search="modules"></label>'
        '<button type="button" data-whole="modules">whole width</button>'
        "<span>a click on a module makes it as wide as the picture</span></div>"
    )


# ----- the page


def _page(report: Report, heading: str, parts: Sequence[tuple[PagePart, str]], specs: dict[str, Any]) -> Iterator[str]:
    """Yield the page around its parts."""
    scripts = [_safe(library()), _file("page.js")] if specs else [_file("page.js")]
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    title = plain(_name_of(report))
    links = "".join(f'<a href="#{part.name}">{plain(part.title)}</a>' for part, _ in parts)
    yield f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} - opanatomy</title>
<style>
{_file("page.css")}</style>
</head>
<body>
<header><nav aria-label="parts of the page">{links}</nav><button type="button" id="theme" hidden>dark</button></header>
<main>"""
    yield heading
    for part, body in parts:
        yield f'<section class="part" id="{part.name}" aria-label="{plain(part.title)}">'
        yield f"<h2>{plain(part.title)}</h2>\n{body}\n</section>"
    yield "</main>"
    yield f"<footer>{''.join(_footer(report))}</footer>"
    yield f'<script type="application/json" id="charts">{_json(specs)}</script>'
    yield from (f"<script>{script}</script>" for script in scripts)
    yield "</body>\n</html>"


def _name_of(report: Report) -> str:
    """Return the name of what the report is about, for the title of a window."""
    if isinstance(report, Comparison):
        return " against ".join(side.name for side in report.sides)
    name = report.workload.model or (report.provenance.trace if isinstance(report, Anatomy) else None)
    return name or "a training step"


def _footer(report: Report) -> Iterator[str]:
    """Yield how figures are counted, and every word of the report with its meaning."""
    if isinstance(report, Anatomy) and report.conventions:
        yield '<details class="part"><summary>How it is counted</summary><dl class="terms">'
        for name, value in sorted(report.conventions.items()):
            yield f"<dt>{plain(name.replace('_', ' '))}</dt><dd>{plain(str(value))}</dd>"
        yield "</dl></details>"
    yield '<details class="part"><summary>Every word of the report</summary><dl class="terms">'
    for chapter in CHAPTERS:
        for term in chapter.terms:
            yield f"<dt>{plain(term.title)}</dt><dd>{plain(term.meaning)}</dd>"
    yield "</dl></details>"


def _file(name: str) -> str:
    return resources.files("opanatomy.report.page").joinpath(name).read_text("utf-8")


def _safe(script: str) -> str:
    """Return a script that no text in it ends early."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _json(value: Any) -> str:
    """Return data as JSON that ends no element, whatever its texts are."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


FORMAT: Final = Format(ending=".html", write=html_report, machine_readable=True)
