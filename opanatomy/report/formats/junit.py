"""Gates as JUnit XML, a test case each, for the test reports of Jenkins, GitHub and GitLab.

It is what they have in common: `testsuites`, `testsuite`, `testcase`, `failure`. No times: a gate takes none.
"""

from __future__ import annotations

import re
from typing import Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from opanatomy.records.compared import Comparison, GateResult
from opanatomy.records.reports import Report
from opanatomy.records.techniques import Techniques
from opanatomy.report.format import Format, Page

_CLASS: Final = "opanatomy.gates"
#: What no XML 1.0 document may have, not even as a reference.
_NO_CHARACTER: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_report(report: Report, page: Page) -> str:
    """The gates on a comparison, or on one report, as XML text."""
    gates = report.gates if isinstance(report, Comparison) else page.gates
    failures = sum(not gate.met for gate in gates)
    counts = {"tests": str(len(gates)), "failures": str(failures), "errors": "0"}
    root = Element("testsuites", {"name": "opanatomy", **counts})
    suite = SubElement(root, "testsuite", {"name": _text(_name(report)), **counts, "skipped": "0"})
    for gate in gates:
        _add_case(suite, gate)
    indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


def _add_case(suite: Element, gate: GateResult) -> None:
    case = SubElement(suite, "testcase", {"classname": _CLASS, "name": _text(gate.gate)})
    reason = _text(gate.reason)
    if gate.met:
        SubElement(case, "system-out").text = reason
    else:
        SubElement(case, "failure", {"message": reason, "type": "gate"}).text = f"{_text(gate.gate)}\n{reason}"


def _name(report: Report) -> str:
    if isinstance(report, Comparison):
        return " to ".join(side.name for side in report.sides)
    if isinstance(report, Techniques):
        return "techniques"
    return report.provenance.trace or report.workload.model or "report"


def _text(text: str) -> str:
    """The text with a mark for each character that XML has not."""
    return _NO_CHARACTER.sub("\N{REPLACEMENT CHARACTER}", text)


FORMAT: Final = Format(ending=".xml", write=junit_report, machine_readable=True, of_gates=True)
