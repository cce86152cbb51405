"""The page as a file: its parts, its policy, its budget, names from anywhere in it; tests/pages/browser opens it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

import opanatomy
from opanatomy.__main__ import main
from opanatomy.analysis.costs import costs_of, steps_of_window
from opanatomy.errors import UsageError
from opanatomy.records.anatomy import Advice, Anatomy
from opanatomy.records.comparison import Comparison
from opanatomy.records.experiment import Techniques
from opanatomy.records.reports import Report
from opanatomy.report.charts import CHARTS, NoChart, chart_of, parts_of_step, still_of
from opanatomy.report.formats import html
from opanatomy.report.section import Page
from opanatomy.report.sections import PAGE, PARTS, sections_of
from tests.support.anatomies import HOSTILE, bert_on_cpu, llama_on_gpu, named, nothing
from tests.support.experiments import experiment
from tests.support.made_trace import GEMM, on_gpu
from tests.support.paths import KEPT

BERT: Final = next(path for path in KEPT if path.name == "bert_cpu.json.gz")
RESNET: Final = BERT.with_name("gpu_v100_resnet_2021.json.gz")
#: Parts of the report that are a picture on the page, or its title.
DRAWN: Final = {"memory-curve"}


class Elements(HTMLParser):
    """The elements of a page: names of tags, of attributes, addresses, and its text outside scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self._inside: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag in ("script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.words.append(data)


def page_of(report: Report) -> str:
    return html.html_report(report, Page())


@pytest.mark.parametrize("kind", [Anatomy, Comparison, Techniques])
def test_every_section_and_picture_has_its_part(kind: type[Report]) -> None:
    """Each part of the page has sections, each section a part; each picture is in one."""
    assert {part.on for part in PARTS[kind]} == {part.name for part in PAGE[kind]}
    drawn = [name for part in PAGE[kind] for name in part.charts]
    assert sorted(drawn) == sorted(CHARTS[kind])


@pytest.mark.parametrize(
    "report", [bert_on_cpu(), llama_on_gpu(), nothing(), experiment()], ids=["cpu", "gpu", "nothing", "techniques"]
)
def test_all_that_the_text_report_says_is_on_the_page(report: Report) -> None:
    words = " ".join(" ".join(Elements(page_of(report)).words).split())
    for section in sections_of(report, Page(top=60)):
        for fact in section.facts:
            assert " ".join(fact.label.split()) in words
        if section.rows and section.name not in DRAWN:
            assert section.title in words


def test_what_stands_between_backticks_is_code() -> None:
    page = page_of(opanatomy.analyze(BERT))
    assert re.search(r"\(<code>--[a-z-]+", page)
    assert "&lt;code" not in page
    assert "&amp;lt;" not in page


def test_the_policy_admits_the_scripts_of_the_page_and_nothing_else() -> None:
    page = page_of(bert_on_cpu())
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert len(scripts) == 3
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    assert policy.startswith(f"default-src 'none'; script-src {allowed}; ")
    assert "unsafe-eval" not in policy
    assert "connect-src" not in policy
    elements = Elements(page)
    outside = [value for name, value in elements.attributes if name in ("src", "href") and not value.startswith("#")]
    assert not outside
    assert not [name for name, _ in elements.attributes if name.startswith("on")]


def test_the_bar_sums_to_the_step() -> None:
    for path in KEPT:
        anatomy = opanatomy.analyze(path)
        whole = costs_of(anatomy).whole_ns / steps_of_window(anatomy)
        parts = list(parts_of_step(anatomy))
        assert sum(part["ns"] for part in parts) == pytest.approx(whole, rel=1e-9), path.name
        assert all(part["ns"] > 0 for part in parts)


def bars_of(report: Anatomy) -> dict[str, list[tuple[str, int, int]]]:
    """The bars of the picture of advice as the page has them: of each step the kind, the begin and the end."""
    (data,) = re.findall(r'<script type="application/json" id="charts">(.*?)</script>', page_of(report), re.DOTALL)
    bars: dict[str, list[tuple[str, int, int]]] = {}
    for row in json.loads(data)["advice"]["data"]["values"]:
        bars.setdefault(row["step"], []).append((row["kind"], row["from"], row["to"]))
    return bars


NOW, REPLAYED, RANGE, BOUND = (
    "now",
    "after the change, by replaying the trace",
    "up to here for a host not slowed by recording",
    "after the change, at least",
)


def test_the_step_after_each_change_is_that_of_the_json_report() -> None:
    """A replayed gain has both its ends, a bound one; together the replay's answer, and no more than the bounds'."""
    anatomy = opanatomy.analyze(RESNET)
    document = anatomy.to_dict()
    first, replay = document["advice"][:3], document["replay"]
    now = first[0]["step_ns"]
    loader, dtype, launches = (now - each["gain_ns"] for each in first)
    assert first[2]["replayed_ns"] is None
    assert len(document["advice"]) > 3
    assert bars_of(anatomy) == {
        "now": [(NOW, 0, now)],
        "input": [(REPLAYED, 0, loader), (RANGE, loader, now - first[0]["replayed_ns"])],
        "float32": [(REPLAYED, 0, dtype), (RANGE, dtype, now - first[1]["replayed_ns"])],
        "launches": [(BOUND, 0, launches)],
        "together": [(BOUND, 0, max(replay["together"]["step_ns"], now - sum(each["gain_ns"] for each in first)))],
    }
    (alt,) = [value for name, value in Elements(page_of(anatomy)).attributes if value.startswith("The step now")]
    assert alt == (
        "The step now, after each of the top changes, and after all of them together: now 187 ms; input 134 ms"
        " (-28.4 %) to 135 ms (-27.6 %); float32 167 ms (-10.7 %) to 174 ms (-6.9 %); launches at least 172 ms (-8.1 %)"
        "; together at least 98.8 ms (-47.2 %)"
    )


def test_the_step_after_changes_without_a_replay() -> None:
    """Two by one rule have a bar each, what only saves memory none; together it is the sum, at most the step."""
    gap = Advice(id="gap", gain_ns=600, step_ns=1_000, why="")
    anatomy = replace(nothing(), advice=(gap, replace(gap, gain_ns=500), replace(gap, gain_ns=None, gain_bytes=1)))
    assert bars_of(anatomy) == {
        "now": [(NOW, 0, 1_000)],
        "gap": [(BOUND, 0, 400)],
        "gap (2)": [(BOUND, 0, 500)],
        "together": [(BOUND, 0, 0)],
    }
    assert list(bars_of(replace(anatomy, advice=(gap,)))) == ["now", "gap"]
    # Of a step without the profiler, or of one rank: each by its share of its own step, and so are both together.
    other = replace(gap, id="pages", gain_ns=100, step_ns=500)
    mixed = bars_of(replace(anatomy, advice=(replace(gap, gain_ns=300), other)))
    assert mixed == {
        "now": [(NOW, 0, 1_000)],
        "gap": [(BOUND, 0, 700)],
        "pages": [(BOUND, 0, 800)],
        "together": [(BOUND, 0, 500)],
    }
    with pytest.raises(NoChart, match="no advice has an estimated time saving"):
        chart_of(replace(anatomy, advice=anatomy.advice[2:]), "advice")


def test_a_still_picture_tells_a_bound_from_a_replayed_gain() -> None:
    """Without the script too: filled bars of the replay, open ones of a bound, and their words."""
    still = still_of(opanatomy.analyze(RESNET).chart("advice"))
    for kind in (NOW, REPLAYED, RANGE, BOUND):
        assert f">{kind}</text>" in still
    marks = re.findall(
        r'aria-label="([^"]*)" role="graphics-symbol" aria-roledescription="bar"[^>]* fill="(.+?)"', still
    )
    fills = [fill for text, fill in marks if text.startswith("at least")]
    assert fills == ["rgba(138, 138, 138, 0.1)"] * 2
    assert not {*fills} & {fill for text, fill in marks if not text.startswith("at least")}
    assert len(marks) == 7


@pytest.mark.parametrize("first", [0, 1])
def test_names_from_anywhere_are_text(first: int) -> None:
    """They open no element, no attribute and no script, and end none; the pictures' data are JSON still."""
    names = HOSTILE[first:] + HOSTILE[:first]
    plain, hostile = Elements(page_of(named([f"name {index}" for index in range(len(names))]))), page_of(named(names))
    elements = Elements(hostile)
    assert set(elements.tags) == set(plain.tags)
    # A long name has its whole as a tooltip.
    assert {key for key, _ in elements.attributes} - {"title"} == {key for key, _ in plain.attributes} - {"title"}
    count = 5 if 'id="timeline"' in hostile else 3
    assert hostile.count("<script") == count
    assert hostile.count("</script>") == count
    (data,) = re.findall(r'<script type="application/json" id="charts">(.*?)</script>', hostile, re.DOTALL)
    json.loads(data)
    assert "\u202e" not in hostile
    assert "\u2028" not in data
    words = " ".join(elements.words)
    assert all(name in words for name in names if name.isprintable() and len(name) < 100)


def test_a_picture_without_its_data_says_why() -> None:
    anatomy = nothing()
    for name in CHARTS[Anatomy]:
        with pytest.raises(NoChart) as caught:
            chart_of(anatomy, name)
        assert str(caught.value)
    page = page_of(anatomy)
    shown = {name: part.charts for part in PAGE[Anatomy] if f'id="{(name := part.name)}"' in page}
    assert page.count('class="absent"') == sum(map(len, shown.values())) > 0
    assert "<figure" not in page
    # A part without content is not in the menu.
    assert "roofline" not in shown
    assert set(re.findall(r'<a href="#([a-z]+)"', page)) == set(shown)


def test_an_unknown_picture() -> None:
    with pytest.raises(UsageError, match="chart roof: this kind of report has no such chart - did you mean roofline"):
        opanatomy.analyze(KEPT[0]).chart("roof")


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_picture_in_a_file(ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, target = str(KEPT[0]), tmp_path / f"classes.{ending}"
    assert main(["analyze", trace, "--chart", "classes", "-o", str(target)]) == 0
    assert target.read_bytes().startswith({"svg": b"<svg", "png": b"\x89PNG"}[ending])
    assert main(["analyze", trace, "-o", str(tmp_path / f"step.{ending}")]) == 0
    assert (tmp_path / f"step.{ending}").read_bytes() != target.read_bytes()
    capsys.readouterr()
    assert main(["analyze", trace, "--chart", "classes"]) == 2
    assert "--chart classes needs an output file" in capsys.readouterr().err


def test_the_tables_beside_a_page(tmp_path: Path) -> None:
    """Each table of the report whole: the operators as in `-f csv`, but for figures that follow from others."""
    anatomy = opanatomy.analyze(KEPT[0])
    page, tables = tmp_path / "report.html", tmp_path / "tables"
    assert main(["analyze", str(KEPT[0]), "-o", str(page), "--tables", str(tables)]) == 0
    assert page.read_text().startswith("<!doctype html>")
    operators = (tables / "operators.csv").read_text().splitlines()
    assert len(operators) == 1 + len(anatomy.operators)
    assert operators[0].startswith("operator,signature,phase,")
    assert main(["analyze", str(KEPT[0]), "--tables", str(tables)]) == 2
    assert main(["analyze", str(KEPT[0]), "--tables", str(tables), "--force"]) == 0


def test_speedscope_has_the_time_of_all_classes(tmp_path: Path) -> None:
    """A profile for each phase; stacks are modules, weights sum to the time of the phase's classes exactly."""
    target = tmp_path / "modules.speedscope.json"
    assert main(["analyze", str(BERT), "-o", str(target)]) == 0
    anatomy, document = opanatomy.analyze(BERT), json.loads(target.read_text())
    frames = [frame["name"] for frame in document["shared"]["frames"]]
    for profile in document["profiles"]:
        times = sum(row.time_ns for row in anatomy.classes if row.phase.value == profile["name"])
        assert sum(profile["weights"]) == profile["endValue"] == times
        assert len(profile["samples"]) == len(profile["weights"])
    assert sum(profile["endValue"] for profile in document["profiles"]) == sum(row.time_ns for row in anatomy.classes)
    stacks = {
        tuple(frames[index] for index in stack) for profile in document["profiles"] for stack in profile["samples"]
    }
    assert ("BertForMaskedLM", "bert", "encoder", "layer", "0", "intermediate", "dense", "tensor contraction") in stacks
    assert main(["compare", str(BERT), str(BERT), "-f", "speedscope"]) == 2


def test_a_page_of_very_much(tmp_path: Path) -> None:
    """20,000 signatures: what has no room is folded and said, the page stays below 3 MB."""
    trace = on_gpu()
    trace.step(0, 60_000)
    for index in range(20_000):
        trace.host("aten::mm", 3 * index, 2, shapes=[[8, 4 + index], [4 + index, 2]], types=["float", "float"])
        trace.run(GEMM, 3 * index + 0.5, 3 * index + 1, 1)
    anatomy = trace.analyze(tmp_path)
    page = page_of(anatomy)
    assert len({str(row.signature) for row in anatomy.operators}) == 20_000
    assert len(page.encode()) < 3e6
    assert "and 19,992 more" in page


def test_a_notebook_shows_the_step(tmp_path: Path) -> None:
    anatomy = opanatomy.analyze(KEPT[0])
    shown: Any = anatomy._repr_html_()
    assert "<svg" in shown
    assert "<script" not in shown
    assert still_of(anatomy.chart("step")).startswith("<svg")
    anatomy.to_html(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == page_of(anatomy)
