"""What the command says of itself: help, examples, completion of words, the manual page."""

from __future__ import annotations

import re
import shlex
import shutil
from importlib import import_module
from pathlib import Path

import pytest

from opanatomy import commands
from opanatomy.capture.model.catalog import find_name
from opanatomy.capture.model.user_file import file_and_function
from opanatomy.console import parser as command_line
from opanatomy.console.dispatch import main
from opanatomy.console.help import described
from opanatomy.console.parser import make_parser
from opanatomy.report.formats.json import json_report
from tests import anatomies

ALEXNET = Path(__file__).parent / "traces" / "gpu_a100_alexnet.json.gz"
VERBS = sorted(commands.verbs())


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main([*words, "--help"])
    assert left.value.code == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def examples_of(verb: str) -> list[str]:
    return [command for _, command in getattr(import_module(f"opanatomy.commands.{verb}"), "EXAMPLES", ())]


EVERY = [(verb, command) for verb in VERBS for command in examples_of(verb)]
EVERY += [(command.split()[1], command) for _, command in command_line.EXAMPLES]


@pytest.mark.parametrize("words", [(), *((verb,) for verb in VERBS)])
def test_help_fits_and_begins_with_three_examples(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = help_of(capsys, *words).splitlines()
    assert max(map(len, lines)) <= 80
    assert re.fullmatch(rf"usage: {' '.join(('opanatomy', *words))} .*\[options\]", lines[0])
    shown = [line for line in lines if re.match(r"  opanatomy ", line)]
    assert len(shown) == 3
    assert lines.index("examples:") < lines.index(shown[0]) < lines.index("options:")
    commands_shown = [line.strip() for line in shown]
    assert commands_shown == (examples_of(words[0]) if words else [command for _, command in command_line.EXAMPLES])
    for before in (lines[lines.index(line) - 1] for line in shown):
        assert before.startswith("  # "), "each says what it does"


@pytest.mark.parametrize(("verb", "command"), EVERY)
def test_every_example_is_a_command(verb: str, command: str) -> None:
    program, *words = shlex.split(command)
    arguments = make_parser().parse_args(words)
    assert (program, arguments.verb) == ("opanatomy", verb)
    model = getattr(arguments, "model", None)
    assert model is None or find_name(model) or model == "my_model.py:make"


@pytest.mark.parametrize("command", [command for verb, command in EVERY if verb in ("analyze", "catalog", "explain")])
def test_examples_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copy(ALEXNET, "trace.json.gz")
    Path("ranks").mkdir()
    for rank in (0, 1):
        shutil.copy(ALEXNET.with_name(f"gpu_v100_dlrm_rank{rank}of8.json.gz"), "ranks")
    Path("report.json").write_text(json_report(anatomies.bert_on_cpu()), encoding="utf-8")
    assert main(shlex.split(command)[1:]) == 0
    words = shlex.split(command)
    written = [Path(words[place + 1]) for place, word in enumerate(words) if word in ("-o", "--trace")]
    assert capsys.readouterr().out or all(path.stat().st_size for path in written)


def test_nothing_and_help_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    whole, of_catalog = help_of(capsys), help_of(capsys, "catalog")
    for words, text in (((), whole), (("help",), whole), (("help", "catalog"), of_catalog)):
        with pytest.raises(SystemExit) as left:
            main(words)
        assert left.value.code == 0
        captured = capsys.readouterr()
        assert (captured.out, captured.err) == (text, "")


def test_commands_that_people_begin_with_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys)
    names = re.findall(r"^    (\w+)  ", text[text.index("commands:") : text.index("options:")], re.MULTILINE)
    assert sorted(names) == VERBS
    assert names[:2] == ["profile", "analyze"]


def test_names_that_are_typed_are_not_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns in ("60", "72", "80", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        text = help_of(capsys, "profile")
        assert not re.search(r"\w-$", text, re.MULTILINE), columns
        assert max(map(len, text.splitlines())) <= 100


def test_a_command_without_examples_has_its_description_alone() -> None:
    assert described("Greets.", ()) == "Greets."


def test_the_example_of_a_function_reads_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_model.py").write_text("def make(): ...\n")
    monkeypatch.chdir(tmp_path)
    assert file_and_function("my_model.py:make") == (Path("my_model.py"), "make")
