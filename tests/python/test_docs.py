"""Docs are tests: what the README shows is what the program makes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import msgspec
import pytest

from opanatomy.cli.parser import make_parser
from opanatomy.records.experiment import Techniques
from opanatomy.report import read_anatomy, terminal_report
from opanatomy.report.frames import table_names
from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text()
REPORTS = sorted((ROOT / "reports").glob("*.json"))
TECHNIQUES = sorted((ROOT / "reports" / "techniques").glob("*.json"))


def test_the_first_command_comes_after_at_most_60_words() -> None:
    before = re.split(r"^    ", README, maxsplit=1, flags=re.MULTILINE)[0]
    assert len(before.split()) <= 60


def test_nothing_but_tables_and_links_is_wider_than_80_columns() -> None:
    lines = [line for line in README.splitlines() if not line.startswith("|") and len(line) > 80]
    assert not lines


def test_the_readme_shows_the_first_screen_of_the_report_that_is_kept() -> None:
    shown = re.search(r"```text\n(.*?)```", README, re.DOTALL)
    assert shown is not None
    anatomy = read_anatomy((ROOT / "reports" / "bert-large-uncased-h100.json").read_text())
    assert shown[1] == terminal_report(anatomy, width=80, brief=True)


def test_there_is_a_report_of_the_main_command() -> None:
    anatomy = read_anatomy((ROOT / "reports" / "bert-large-uncased.json").read_text())
    assert anatomy.provenance.command == "opanatomy profile google-bert/bert-large-uncased --batch 4"
    assert (anatomy.workload.batch, anatomy.workload.sequence_length) == (4, 512)


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_reports_are_what_the_program_prints_today(path: Path) -> None:
    assert terminal_report(read_anatomy(path.read_text()), width=80) == path.with_suffix(".txt").read_text()


@pytest.mark.parametrize("path", TECHNIQUES, ids=lambda path: path.stem)
def test_experiments_are_what_the_program_prints_today(path: Path) -> None:
    report = msgspec.json.decode(path.read_bytes(), type=Techniques)
    assert terminal_report(report, width=80) == path.with_suffix(".txt").read_text()


def documented_commands() -> list[str]:
    texts = [README, *((ROOT / "docs").glob("*.md"))]
    lines = [
        line.strip() for text in texts for line in (text if isinstance(text, str) else text.read_text()).splitlines()
    ]
    return [line for line in lines if line.startswith("opanatomy ")]


@pytest.mark.parametrize("command", documented_commands())
def test_documented_commands_parse(command: str) -> None:
    assert make_parser().parse_args(shlex.split(command)[1:]).verb


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "reports").glob("*.md")]:
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_headings() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text()):
            target = page.parent / link if link else page
            assert anchor in anchors(target), f"{page.name} links to {link}#{anchor}"


def test_the_page_of_python_names_every_table() -> None:
    page = " ".join((ROOT / "docs" / "python.md").read_text().split())
    listed = re.search(r"Tables: (.*?)\. A nested", page)
    assert listed is not None
    assert re.findall(r"`(.+?)`", listed[1]) == list(table_names())
