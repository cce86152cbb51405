"""What a report says to type next can be typed: a command on files that are there, or options alone."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from opanatomy.__main__ import main
from opanatomy.api import comparison_of
from opanatomy.cli.output import wanted_page
from opanatomy.cli.parser import make_parser
from opanatomy.report.formats import format_named
from opanatomy.report.notebook import notebook_html
from opanatomy.report.section import Page
from opanatomy.report.sections.comparison import groups_of
from tests.support import anatomies
from tests.support.paths import TRACES

TRACE = TRACES / "gpu_mi250_training.json.gz"
RANKS = [TRACES / f"gpu_v100_dlrm_rank{rank}of8.json.gz" for rank in (0, 1)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def page_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def commands_in(page: str) -> list[str]:
    """The commands of a page, as a shell takes them, and the options that stand alone."""
    joined = page.replace("\\\n", "").replace("`", "")
    return re.findall(r"^(?:next:|- (?:command|options):) (.+)$", joined, re.MULTILINE)


def words_of(command: str) -> list[str]:
    """The words that a shell makes of a command where it is typed."""
    printed = subprocess.run(["sh", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True)
    return [os.fsdecode(word) for word in printed.stdout.split(b"\0")[:-1]]


# ------------------------------------------------------------------------------------------------------- one report


@pytest.mark.parametrize("format_name", ["terminal", "digest"])
@pytest.mark.parametrize("how", ["stdin", "descriptor", "redacted"])
def test_what_cannot_be_named_gets_options_alone(
    how: str, format_name: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with TRACE.open("rb") as file:
        if how == "stdin":
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(TRACE.open("rb")))
        words = {"stdin": ["-"], "descriptor": [f"/dev/fd/{file.fileno()}"], "redacted": [str(TRACE), "--redact"]}[how]
        page = page_of(capsys, "analyze", *words, "-f", format_name)
    assert "opanatomy analyze" not in page
    assert str(TRACES) not in page
    found = commands_in(page)
    assert found
    for options in found:
        options = options.removeprefix("show the report with ")
        shown = page_of(capsys, "analyze", str(TRACE), *words_of(options))
        assert "nothing: this report does not have" not in shown


@pytest.mark.parametrize(
    ("given", "others"),
    [
        (["a trace.json.gz"], []),
        (["below/it's.json.gz"], []),
        (["rank-0.json.gz", "rank-1.json.gz"], []),
        (["rank-0.json.gz", "rank-1.json.gz", "rank-2.json.gz"], []),
        # The pattern would take one more, or one less.
        (["rank-0.json.gz", "rank-1.json.gz", "rank-2.json.gz"], ["rank-30.json.gz"]),
        (["a/0/t.json.gz", "a/1/b/t.json.gz", "a/2/t.json.gz"], []),
    ],
)
def test_the_command_is_of_the_files_that_were_given(
    given: list[str], others: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (*given, *others):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(b"{}")
    arguments = make_parser().parse_args(["analyze", *given])
    source = wanted_page(arguments, "terminal", []).source
    assert source is not None
    assert sorted(words_of(source)) == sorted(given)
    assert ("*" in source) == (len(given) == 3 and not others and "a/0/t.json.gz" not in given)


def test_the_command_that_is_printed_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank, trace in enumerate((*RANKS, RANKS[0])):
        shutil.copy(trace, here / f"of rank{rank}.json.gz")
    for given in (["of rank0.json.gz"], ["of rank0.json.gz", "of rank1.json.gz"]):
        (command, *_) = commands_in(page_of(capsys, "analyze", *given, "--brief"))
        program, *words = words_of(command)
        assert program == "opanatomy"
        shown = page_of(capsys, *words)
        assert "nothing: this report does not have" not in shown
        assert re.findall(r"\w+", shown)


def test_a_notebook_names_no_file() -> None:
    """What an anatomy knows of its trace is a name without a folder."""
    anatomy = anatomies.llama_on_gpu()
    assert anatomy.provenance.trace is not None
    html = notebook_html(anatomy)
    assert '<p class="next">next: show the report with <code class="command">--section ' in html
    assert "opanatomy analyze" not in html


# ------------------------------------------------------------------------------------------------------- comparisons


def test_each_finding_of_a_comparison_has_its_own_command(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It shows what is most of the cause, on the side where that takes longer."""
    sides = ["a b.json.gz", "after.json.gz"]
    for name, trace in zip(sides, (RANKS[1], RANKS[0]), strict=True):
        shutil.copy(trace, here / name)
    found = commands_in(page_of(capsys, "compare", *sides, "-f", "digest"))
    assert len(found) == 3
    assert len(set(found)) > 1
    comparison = comparison_of(sides)
    assert comparison.decomposition is not None
    for command, group in zip(found, groups_of(comparison.decomposition.parts), strict=False):
        program, verb, side, *options = words_of(command)
        assert (program, verb) == ("opanatomy", "analyze")
        assert side == sides[abs(group.after_ns) >= abs(group.before_ns)]
        shown = page_of(capsys, verb, side, *options)
        assert "nothing: this report does not have" not in shown


@pytest.mark.parametrize("how", ["redacted", "python"])
def test_a_side_that_cannot_be_named_gets_options_alone(how: str, capsys: pytest.CaptureFixture[str]) -> None:
    if how == "python":
        page = format_named("digest").write(comparison_of((RANKS[1], RANKS[0])), Page())
    else:
        page = page_of(capsys, "compare", str(RANKS[1]), str(RANKS[0]), "--redact", "-f", "digest")
    found = commands_in(page)
    assert len(found) == 3
    assert all(options.startswith("--section ") for options in found)
    assert "opanatomy analyze" not in page
