"""Write the report in at most 4,096 bytes of Markdown: one fact a line under fixed headings, for agents and haste.

For a run it has as many lines of each kind as fit, and says where to find the others; otherwise surplus lines are
dropped one by one, from the longest section. Names are cut in the middle; figures never, and sentences only if a single
one would fill the digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from opanatomy.records.anatomy import FIRST, Anatomy
from opanatomy.records.experiment import Techniques
from opanatomy.records.reports import Report
from opanatomy.report import units
from opanatomy.report.markdown import markdown_cell, markdown_code
from opanatomy.report.section import Fact, Format, Phrase, Section
from opanatomy.report.sections.advice import commands_of, gain_of, label_of, tries_of, why_of
from opanatomy.report.sections.digest import (
    NAME_WIDTH,
    ROOMS,
    Room,
    digest_of,
    digest_of_comparison,
    digest_of_techniques,
    findings_of_comparison,
    technique_findings,
)
from opanatomy.report.sections.verdict import Finding, findings, is_run_of_profile

#: Maximum bytes of a digest in UTF-8, and of one of its lines; of a line if no fewer lines fit.
MOST_BYTES: Final = 4096
_LINE_BYTES: Final = 512
_SHORT_BYTES: Final = 256
_LABEL_BYTES: Final = 64
_MAX_FINDINGS: Final = 3
#: Maximum lengths of names and other texts, tried in order until a line fits.
_WIDTHS: Final = ((2 * NAME_WIDTH, 1000), (NAME_WIDTH, 1000), (24, 1000), (24, 160), (24, 40), (12, 20), (4, 8))
_TITLE: Final = "# opanatomy digest"
_NOTHING: Final = "- none"


def digest(
    report: Report, *, source: str | None = None, sides: Sequence[str | None] = (), most_bytes: int = MOST_BYTES
) -> str:
    """Return the digest as Markdown of at most this many bytes; deterministic for a report.

    `source` is a command's name for the trace, `sides` its name for each side of a comparison.
    """
    if isinstance(report, Anatomy):
        ranked = _once(findings(report, source=source))
        for room in ROOMS:
            text = _page(digest_of(report, room), ranked, _LINE_BYTES, _advice(report, source, room, _LINE_BYTES))
            if _size(text) <= most_bytes:
                return text
        advice = _advice(report, source, room, _SHORT_BYTES)
        return _page(digest_of(report, room), ranked, _SHORT_BYTES, advice, most_bytes)
    if isinstance(report, Techniques):
        sections, ranked = digest_of_techniques(report), technique_findings(report)
    else:
        sections, ranked = digest_of_comparison(report), findings_of_comparison(report, sides)
    text = _page(sections, ranked, _LINE_BYTES)
    return text if _size(text) <= most_bytes else _page(sections, ranked, _SHORT_BYTES, most_bytes=most_bytes)


def _page(
    sections: Sequence[Section],
    ranked: tuple[Finding, ...],
    line_bytes: int,
    advice: str = "",
    most_bytes: int | None = None,
) -> str:
    """Return the sections and, before the warnings, findings and advice, which are never left out for `most_bytes`."""
    blocks = [_Block(section.title, [_fact(fact, line_bytes) for fact in section.facts]) for section in sections]
    ahead = len(blocks) - (sections[-1].name == "warnings")
    # The commands of what to try look at the findings too.
    ranked = tuple(replace(finding, next=None) for finding in ranked) if advice else ranked
    found = f"## Largest findings\n{_findings(ranked, line_bytes)}\n{advice}"
    if most_bytes is not None:
        left = most_bytes - _size(f"{_TITLE}\n\n{found}\n")
        while sum(_size(block.text) + 1 for block in blocks) > left:
            max(blocks, key=lambda block: _size(block.text) if block.lines else 0).drop()
    texts = [block.text for block in blocks]
    return f"{_TITLE}\n\n" + "\n".join((*texts[:ahead], found, *texts[ahead:]))


class _Block:
    """A heading and its facts; the last ones may be dropped."""

    def __init__(self, title: str, lines: list[str]) -> None:
        self.title, self.lines, self.dropped = title, lines, 0

    def drop(self) -> None:
        """Drop the last remaining line."""
        self.lines.pop()
        self.dropped += 1

    @property
    def text(self) -> str:
        more = [f"- and {units.noun(self.dropped, 'more line')}"] if self.dropped else []
        return "\n".join((f"## {self.title}", *(self.lines + more or [_NOTHING]))) + "\n"


def _fact(fact: Fact, line_bytes: int) -> str:
    return f"- {_fitting(fact.label, _LABEL_BYTES)}: {_fitting(fact.text, line_bytes)}"


def _once(ranked: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings, each command with the first that has it."""
    seen: set[str] = set()
    kept = []
    for finding in ranked:
        repeats = finding.next is not None and finding.next.text in seen
        kept.append(replace(finding, next=None) if repeats else finding)
        seen |= {finding.next.text} if finding.next is not None else set()
    return tuple(kept)


def _findings(ranked: tuple[Finding, ...], line_bytes: int) -> str:
    lines: list[str] = []
    for index, finding in enumerate(ranked[:_MAX_FINDINGS], 1):
        lines += [
            f"### {index}: {_fitting(finding.name, line_bytes)}",
            f"- finding: {_fitting(finding.text, line_bytes)}",
        ]
        if finding.evidence is not None:
            lines.append(f"- evidence: {_fitting(finding.evidence, line_bytes)}")
        if finding.next is not None:
            lines.append(f"- {'command' if finding.next.whole else 'options'}: {_command(finding.next.text)}")
    return "\n".join(lines or [_NOTHING])


def _advice(report: Anatomy, source: str | None, room: Room, line_bytes: int) -> str:
    """Return what to try, with its gain and its reason, and the commands that carry it out or check it."""
    if not report.advice:
        return ""
    lines = []
    of_profile = is_run_of_profile(report)
    for index, advice in enumerate(report.advice[:FIRST], 1):
        lines += [
            f"### {index}: {_fitting(label_of(advice), line_bytes)}",
            f"- gain: {_fitting(gain_of(advice) or 'unknown', line_bytes)}",
            f"- because: {_fitting(why_of(advice), line_bytes)}",
            f"- try: {_fitting(tries_of(advice, room.tries, of_profile=of_profile), line_bytes)}",
        ]
    for following in commands_of(report.advice[:FIRST], report, source):
        lines.append(f"- {'command' if following.whole else 'options'}: {_command(following.text)}")
    return "\n## What to try\n" + "\n".join(lines) + "\n"


def _command(command: str) -> str:
    """Return the command in full, for copying; a truncated one is useless."""
    text = markdown_code(command, in_cell=False)
    return text if _size(text) <= _LINE_BYTES else "too long for the digest: see the terminal report"


def _fitting(text: str | Phrase, most: int) -> str:
    """Return the text in at most `most` bytes: names shorter, then other texts; figures whole."""
    for name, other in _WIDTHS:
        line = markdown_cell(text, name=name, text=other)
        if _size(line) <= most:
            return line
    return "too long for the digest"


def _size(text: str) -> int:
    return len(text.encode())


FORMAT: Final = Format(
    ending=".digest.md",
    write=lambda report, page: digest(report, source=page.source, sides=page.sides),
    machine_readable=True,
)
