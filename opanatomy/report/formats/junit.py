"""Write gates as JUnit XML, a test case each, for the test reports of Jenkins, GitHub and GitLab.

It is valid by both schemas in use, of Jenkins' xUnit plugin and of Ant's reports (which requires a host and a time per
suite: the start of the newest run, so that the output is deterministic). A case takes the time of the step that it
judges, of a comparison the last side's; the schemas require one, so it is 0 where the time is unknown. Its line is
there once: with a failure, or in the output of the suite.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.comparison import Comparison
from opanatomy.records.experiment import Techniques
from opanatomy.records.patterns import regex
from opanatomy.records.reports import Report
from opanatomy.report.metrics import metrics_of
from opanatomy.report.section import Format, Page

_CLASS: Final = "opanatomy.gates"
_STEP_TIME: Final = "step_time_ns"
_EPOCH: Final = datetime(1970, 1, 1)
#: A clock in 64 bits ends there.
_LATEST_SECONDS: Final = 2**63 // 10**9
_NO_GATES: Final = "no gates - each --fail-if adds a test case"
#: Characters forbidden in XML 1.0 documents, even as references.
_NO_CHARACTER: Final = regex("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_report(report: Report, page: Page) -> str:
    """Return the gates on a comparison, or on one report, as XML text."""
    gates = report.gates if isinstance(report, Comparison) else page.gates
    step_ns = _step_ns(report) or 0
    root = Element("testsuites")
    suite = SubElement(
        root,
        "testsuite",
        {
            "name": _text(_name(report)),
            "package": "opanatomy",
            "id": "0",
            "timestamp": _timestamp(report),
            "hostname": "localhost",
            "tests": str(len(gates)),
            "failures": str(sum(not gate.met for gate in gates)),
            "errors": "0",
            "skipped": "0",
            "time": _seconds(step_ns * len(gates)),
        },
    )
    SubElement(suite, "properties")
    for gate in gates:
        case = SubElement(suite, "testcase", {"classname": _CLASS, "name": _text(gate.gate), "time": _seconds(step_ns)})
        if not gate.met:
            message = gate.line.removesuffix(f": {gate.reason}")
            SubElement(case, "failure", {"message": _text(message), "type": "gate"}).text = _text(gate.reason)
    passed = "\n".join(_text(gate.line) for gate in gates if gate.met)
    SubElement(suite, "system-out").text = passed if gates else _NO_GATES
    SubElement(suite, "system-err")
    indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


def _name(report: Report) -> str:
    if isinstance(report, Comparison):
        return " to ".join(side.name for side in report.sides)
    if isinstance(report, Techniques):
        return "techniques"
    return report.provenance.trace or report.workload.model or "report"


def _step_ns(report: Report) -> float | None:
    """Return the time of the step that the gates judge."""
    if isinstance(report, Comparison):
        return next((row.values[-1] for row in report.figures if row.name == _STEP_TIME), None)
    metric = metrics_of(report).get(_STEP_TIME) if isinstance(report, Anatomy) else None
    return None if metric is None else metric.value


def _seconds(ns: float) -> str:
    return f"{ns / 1e9:.9f}".rstrip("0").rstrip(".")


def _timestamp(report: Report) -> str:
    """Return when the newest run began, in UTC; the epoch if no run has a time."""
    began: list[int | None] = []
    if isinstance(report, Comparison):
        began = [when for side in report.sides for when in side.began_ns]
    elif not isinstance(report, Techniques):
        began = [report.provenance.begin_unix_ns]
    newest = max((when for when in began if when is not None), default=0)
    return (_EPOCH + timedelta(seconds=min(max(newest // 10**9, 0), _LATEST_SECONDS))).isoformat()


def _text(text: str) -> str:
    """Return the text with a mark for each character that XML does not allow."""
    return _NO_CHARACTER.sub("\N{REPLACEMENT CHARACTER}", text)


FORMAT: Final = Format(ending=".xml", write=junit_report, machine_readable=True)
