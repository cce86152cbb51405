"""The findings of the digest and what shows them, recomputed from the JSON report as docs/report.md says.

Nothing of the code that makes them is used but its two texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import opanatomy
from opanatomy.report.formats import format_named
from opanatomy.report.section import Page
from tests.figure_sheet import Numbers, Report
from tests.printed_figures import figures_in
from tests.recomputed_lines import calls_of, shares_of
from tests.recomputed_tables import CLASSES, percent, steps_of, time_of, window_steps
from tests.test_report_figures import FOLDER, TRACES, texts_of

#: The part of the step, in percent, below which a part is no finding.
LEAST: Final = 2
MOST: Final = 3


def digest_of(name: str) -> str:
    anatomy = opanatomy.analyze([Path(FOLDER) / f"{trace}.json.gz" for trace in TRACES[name]])
    return format_named("digest").write(anatomy, Page())


def findings_in(digest: str) -> Iterator[tuple[str, str, str]]:
    """Name, sentence and evidence of each."""
    section = digest.partition("## Largest findings\n")[2].partition("\n## ")[0]
    for part in section.split("### ")[1:]:
        name = re.match(r"\d+: (\w+)\n", part)
        lines = dict(line.removeprefix("- ").split(": ", 1) for line in part.splitlines() if line.startswith("- "))
        assert name is not None
        yield name[1], lines["finding"], lines.get("evidence", "")


def evidence_of(name: str, report: Report) -> Numbers:
    launching, communication, steps = report["timeline"]["launching"], report["communication"], steps_of(report)
    if name == "framework":
        return [round(sum(row["calls"] for row in report["classes"]) / steps)]
    if name in ("communication", "both"):
        exposed = [phase["exposed_ns"] for phase in communication["phases"]]
        waits = (
            [step["waiting_ns"] for rank in report["waiting"]["each"] for step in rank["steps"]]
            if name == "both"
            else []
        )
        waited = [percent(sum(waits) / len(waits), report["timeline"]["exposed_communication_ns"])] if waits else []
        return [*waited, percent(max(exposed), sum(exposed))]
    if name != "idle":
        return []
    timeline = report["timeline"]
    most, idle, drained = timeline["causes"][0], timeline["idle_ns"], timeline["drained_ns"]
    said: Numbers = [percent(most["time_ns"], idle)] if 2 * most["time_ns"] < idle else []
    tiny = [percent(launching["tiny_kernels"], launching["kernels"]), launching["tiny_below_ns"]]
    launches = [round(launching["calls"] / steps), *tiny] if most["cause"] in ("operators", "python") else []
    waited = [percent(drained, idle)] if drained >= 0.3 * idle else []
    return [*said, *calls_of(most, window_steps(report)), *launches, *waited]


def said_of(name: str, of_step: float, report: Report) -> float | None:
    """Of classes and phases the share of the device work, as in the table of classes, of all else that of the step."""
    rows = report["classes"]
    if name in ("optimizer", "recompute"):
        own = [row for row in rows if row["phase"] == name and row["operator_class"] != "communication"]
        return percent(time_of(own), time_of(rows))
    if name not in CLASSES or name in ("communication", "both"):
        return of_step
    return percent(time_of([row for row in rows if row["operator_class"] == name]), time_of(rows))


@pytest.mark.parametrize("name", TRACES)
def test_each_finding_and_its_evidence_is_what_the_json_report_has(name: str) -> None:
    _, report = texts_of(name)
    parts = shares_of(report)
    expected = [part for part in sorted(parts, key=lambda part: -parts[part]) if parts[part] >= LEAST][:MOST]
    found = [*findings_in(digest_of(name))]
    # Communication with its waiting is called communication.
    assert [part for part, _, _ in found] == [part.replace("both", "communication") for part in expected]
    for part, (_, sentence, evidence) in zip(expected, found, strict=True):
        exact = [said_of(part, parts[part], report), *evidence_of(part, report)]
        printed = [*figures_in(sentence), *figures_in(evidence)]
        assert len(printed) == len(exact), (sentence, evidence)
        for figure, number in zip(printed, exact, strict=True):
            assert number is not None
            assert figure.admits(number), (figure.text, number)
