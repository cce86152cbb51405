"""What the command says of itself: help, examples, completion of words, the manual page."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from opanatomy.capture.model.catalog import find_name
from opanatomy.cli import parser, verbs
from opanatomy.cli.main import main
from opanatomy.cli.parser import SHELLS, make_parser
from opanatomy.report.formats import FORMATS
from opanatomy.report.formats.json import json_report
from tests.support import anatomies
from tests.support.paths import ROOT, SNAPSHOTS, TRACES

ALEXNET = TRACES / "gpu_a100_alexnet.json.gz"
VERBS = sorted(verbs.VERBS)


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main([*words, "--help"])
    assert left.value.code == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def examples_of(verb: str) -> list[str]:
    return [command for _, command in getattr(import_module(f"opanatomy.cli.verbs.{verb}"), "EXAMPLES", ())]


EVERY = [(verb, command) for verb in VERBS for command in examples_of(verb)]
EVERY += [(command.split()[1], command) for _, command in parser.EXAMPLES]


@pytest.mark.parametrize("words", [(), *((verb,) for verb in VERBS)])
def test_help_fits_and_begins_with_examples(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = help_of(capsys, *words).splitlines()
    assert max(map(len, lines)) <= 80
    order = r"\[options\] SCRIPT \[\.\.\.\]" if words == ("run",) else r".*\[options\]"  # a script's own come last
    assert re.fullmatch(rf"usage: {' '.join(('opanatomy', *words))} {order}", lines[0])
    shown = [line for line in lines if re.match(r"  opanatomy ", line)]
    assert len(shown) >= 3
    assert lines.index("examples:") < lines.index(shown[0]) < lines.index("options:")
    commands_shown = [line.strip() for line in shown]
    assert commands_shown == (examples_of(words[0]) if words else [command for _, command in parser.EXAMPLES])
    for before in (lines[lines.index(line) - 1] for line in shown):
        assert before.startswith("  # "), "each says what it does"


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_with_many_options_shows_the_most_used_first_and_each_once(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = verbs.verb_named(verb)
    most_used = getattr(file, "MOST_USED", ())
    flags = {option.name: option.flags[-1] for option in file.OPTIONS if not option.positional}
    assert bool(most_used) == (len(flags) > 20)
    assert len(most_used) < 14
    shown = help_of(capsys, verb)
    described = re.findall(r"^  (?:-\w, )?(-[-\w]+)", shown, re.MULTILINE)
    assert sorted(described) == sorted(["--help", *flags.values()])
    first = shown.partition("\nmost used:\n")[2].partition("\noptions:\n")[0]
    assert re.findall(r"^  (?:-\w, )?(-[-\w]+)", first, re.MULTILINE) == [flags[name] for name in most_used]


@pytest.mark.parametrize(("verb", "command"), EVERY)
def test_every_example_is_a_command_and_what_takes_no_model_runs(
    verb: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *words = shlex.split(command)
    arguments = make_parser().parse_args(words)
    assert (program, arguments.verb) == ("opanatomy", verb)
    model = getattr(arguments, "model", None)
    assert not model or find_name(model) or model == "my_model.py:make"
    if model or verb not in ("analyze", "catalog", "explain", "techniques"):
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copy(ALEXNET, "trace.json.gz")
    shutil.copy(SNAPSHOTS / "out_of_memory.pickle.gz", "oom.pickle")
    Path("ranks").mkdir()
    for rank in (0, 1):
        shutil.copy(ALEXNET.with_name(f"gpu_v100_dlrm_rank{rank}of8.json.gz"), "ranks")
    Path("report.json").write_text(json_report(anatomies.bert_on_cpu()), encoding="utf-8")
    assert main(words) == 0
    written = [Path(words[index + 1]) for index, word in enumerate(words) if word in ("-o", "--trace")]
    assert capsys.readouterr().out or all(path.stat().st_size for path in written)


def test_nothing_and_help_show_the_help_with_the_first_commands_first(capsys: pytest.CaptureFixture[str]) -> None:
    whole, of_catalog = help_of(capsys), help_of(capsys, "catalog")
    for words, text in (((), whole), (("help",), whole), (("help", "catalog"), of_catalog)):
        with pytest.raises(SystemExit) as left:
            main(words)
        assert left.value.code == 0
        captured = capsys.readouterr()
        assert (captured.out, captured.err) == (text, "")
    names = re.findall(r"^    (\w+)  ", whole[whole.index("commands:") : whole.index("options:")], re.MULTILINE)
    assert sorted(names) == VERBS
    assert names[:3] == ["profile", "run", "analyze"]


# --------------------------------------------------------------------------------------------------------- completion

COMPLETED = {
    ("opanatomy", "pro"): {"profile"},
    ("opanatomy", "--print-completion", ""): {"bash", "zsh", "fish", "tcsh"},
    ("opanatomy", "profile", "google-bert/"): {"google-bert/bert-base-uncased", "google-bert/bert-large-uncased"},
    ("opanatomy", "profile", "gpt2"): {"gpt2", "gpt2-xl"},
    ("opanatomy", "profile", "my"): {"my_model.py"},
    ("opanatomy", "profile", "gpt2", "--amp", ""): {"bf16", "fp16"},
    ("opanatomy", "profile", "gpt2", "--accum"): {"--accumulate"},
    ("opanatomy", "profile", "gpt2", "-f", ""): set(FORMATS),
    ("opanatomy", "profile", "gpt2", "-o", "trace"): {"trace.json.gz"},
    ("opanatomy", "analyze", "tr"): {"trace.json.gz"},
    ("opanatomy", "techniques", "gpt2", "--only", "accu"): {"accumulation"},
}


def completion_of(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        main(["--print-completion", shell])
    assert left.value.code == 0
    return capsys.readouterr().out


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_names_models_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("my_model.py", "trace.json.gz"):
        (tmp_path / name).touch()
    lines = [completion_of("bash", capsys)]
    for words in COMPLETED:
        lines += [
            f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; COMPREPLY=(); _shtab_opanatomy",
            'echo "${COMPREPLY[*]}"',
        ]
    done = subprocess.run(
        ["bash", "--norc", "-u"], input="\n".join(lines), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert [set(line.split()) for line in done.stdout.splitlines()] == list(COMPLETED.values())


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script_that_it_can_read(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = completion_of(shell, capsys)
    for word in (*VERBS, "profile", "optimizer", "adamw"):
        assert word in script
    if shutil.which(shell) is not None:
        check = ["--no-execute"] if shell == "fish" else ["-n"]
        subprocess.run([shell, *check], input=script, text=True, check=True)


def test_without_shtab_or_with_an_old_one_it_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("shtab.SUPPORTED_SHELLS", ["bash"])
        assert main(["--print-completion", "fish"]) == 1
    assert "the installed shtab supports only bash - pip install --upgrade shtab" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["--print-completion", "bash"]) == 1
    assert "needs shtab, which is not installed - pip install shtab" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------------- manual page


@pytest.fixture(scope="module")
def manual() -> Any:
    return runpy.run_path(str(ROOT / "docs" / "manual.py"))


def test_the_manual_page_is_current_and_has_every_command_and_option(manual: Any) -> None:
    page = manual["PAGE"].read_text(encoding="ascii")
    assert manual["renewed"](page, "2001-01-01") == page, "run python docs/renew.py"
    for escape, character in (("\\-", "-"), ("\\(ti", "~"), ("\\(aq", "'")):
        page = page.replace(escape, character)
    for verb in VERBS:
        _, _, of_verb = page.partition(f"\n.SS opanatomy {verb}\n")
        of_verb = of_verb.partition("\n.S")[0]
        (commands_action,) = (action for action in make_parser()._actions if action.dest == "verb")
        assert commands_action.choices is not None
        for action in dict(commands_action.choices)[verb]._actions[1:]:  # type: ignore[call-overload]
            assert (action.option_strings or [action.metavar])[-1] in of_verb, (verb, action.dest)
        for command in examples_of(verb):
            assert f".B {command}\n" in of_verb


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_roff_has_nothing_to_complain_of_in_the_manual_page(manual: Any) -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-rHY=0", str(manual["PAGE"])], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert "opanatomy profile MODEL [options]" in re.sub(r".\x08|\x1b\[\d*m", "", done.stdout)
