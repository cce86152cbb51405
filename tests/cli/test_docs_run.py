"""Docs are tests: each command and each snippet of the README and of docs/ runs as it stands.

The commands of a page run in its order in one folder, so that what one writes the next can read; its snippets are one
program. Only what is in the tables below differs from what a reader does: files that a reader has are stand-ins, models
are tiny, ranks are forks. What does not run here is in `NOT_RUN`, with the reason. A block of `text` behind a command
or a snippet is what it prints.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from opanatomy.capture.model.catalog import find_name
from opanatomy.report import terminal_report
from opanatomy.report.load import document_in
from tests.support.command import ENVIRONMENT, run, run_code
from tests.support.distributed_runs import start_ranks
from tests.support.documented import Command, Snippet, shown_on
from tests.support.paths import ROOT, SCRIPTS, SNAPSHOTS, TRACES
from tests.support.tiny import BERT, TINY

REPORTS: Final = ROOT / "reports"
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

#: What does not run here, by the page or by the beginning of the command, and why.
NOT_RUN: Final = {
    "make profile": "installs, and takes minutes: `.ci/run` installs; reports/ has its output",
    "make gpu-check": "needs a GPU",
    "opanatomy peaks": "measures for minutes: tests/devices/test_ceilings.py runs it with small products",
    "pip install": "needs the network; `.ci/wheel` installs",
    "torchrun": "the launcher takes ten seconds a rank: tests/ranks/test_launchers.py runs it",
    "accelerate launch": "the launcher takes ten seconds a rank: tests/ranks/test_launchers.py runs it",
    "opanatomy profile google-bert/bert-base-uncased --processes": "tests/ranks/test_launchers.py runs it",
    "opanatomy profile openai-community/gpt2 --processes": "tests/ranks/test_launchers.py runs it",
    "opanatomy profile Qwen/Qwen3-0.6B --processes": "tests/ranks/test_launchers.py runs it",
    "opanatomy analyze ranks/ --dask": "a scheduler takes ten seconds to start: tests/ranks/test_cluster.py runs it",
    "opanatomy techniques google-bert/bert-large-uncased": "takes an hour: reports/techniques has it, kept current",
    "opanatomy profile google-bert/bert-large-uncased --batch 4 --optimizer adamw --for": (
        "tests/predict/test_fit_in_memory.py runs it"
    ),
    "opanatomy run train.py --ms": "its times differ: reports/slow-loader.txt is its output",
    "opanatomy run -m project.train": "tests/loops/test_run.py runs a package",
    "opanatomy compare --run": "ten runs, each a process from nothing: tests/compare/test_several_runs.py",
}  # fmt: skip
#: Snippets that run elsewhere: they need a training.
SNIPPETS_NOT_RUN: Final = {
    "trainer.md": "tests/loops/test_trainer_callback.py runs it in a training",
    "out-of-memory.md": "needs a GPU: tests/memory/test_snapshots.py runs it with a stand-in",
}
#: What printed a block of text where that is not what runs here.
PRINTED_BY: Final = {
    "opanatomy run train.py --ms": REPORTS / "slow-loader.txt",
    "make profile": REPORTS / "bert-large-uncased-h100.txt",
    "opanatomy techniques google-bert/bert-large-uncased": REPORTS / "techniques" / "bert-large-uncased.txt",
    "opanatomy profile google-bert/bert-large-uncased --batch 4 --optimizer adamw --for": (
        REPORTS / "techniques" / "bert-large-fit.txt"
    ),
}
#: What ends with another exit code than 0: a gate that is not met, a check that a busy machine may not meet.
EXIT_CODES: Final = {
    "opanatomy compare before.json after.json --fail-if": (0, 3),
    "opanatomy profile gpt2 --steps 3 --check": (0, 3),
}
#: What is put behind a command that runs a model, so that it takes a second: of an option given twice the last counts.
APPENDED: Final = {"profile": ("--suggest", "0"), "techniques": ()}
SMALL: Final = ("--seq", "16", "--batch", "4", "--device", "cpu")
#: The same behind an option that needs it.
BEHIND: Final = {"--generate": ("--generate", "4")}

MODULE: Final = """
import torch

def make():
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)), torch.ones(8, 16)

make_model = make
"""


def _ranks(path: Path) -> None:
    path.mkdir(parents=True)
    for trace in TRACES.glob("gpu_v100_dlrm_rank*"):
        shutil.copy(trace, path)


def _copy(source: Path) -> Callable[[Path], object]:
    return lambda path: shutil.copy(source, path)


def _text(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


def _config(path: Path) -> None:
    settings: dict[str, object] = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}
    path.write_text(json.dumps(settings | {key: json.loads(value) for key, value in TINY[find_name("gpt2") or ""]}))


#: The files that a reader has, and what stands for them.
STAND_INS: Final[dict[str, Callable[[Path], object]]] = {
    "trace.json.gz": _copy(TRACES / "bert_cpu.json.gz"),
    "train.py": _copy(SCRIPTS / "workers.py"),
    "resnet50.json.gz": _copy(TRACES / "gpu_v100_resnet_2021.json.gz"),
    "step.rank0.trace.json.gz": _copy(TRACES / "gpu_v100_dlrm_rank0of8.json.gz"),
    "step.rank1.trace.json.gz": _copy(TRACES / "gpu_v100_dlrm_rank1of8.json.gz"),
    "ranks/": _ranks,
    "oom.pickle": _copy(SNAPSHOTS / "out_of_memory.pickle.gz"),
    "before.pickle": _copy(SNAPSHOTS / "training_warm.pickle.gz"),
    "after.pickle": _copy(SNAPSHOTS / "training_amp.pickle.gz"),
    "report.json": _copy(REPORTS / "bert-memory.json"),
    "before.json": _copy(REPORTS / "bert-memory.json"),
    "after.json": _copy(REPORTS / "bert-memory.json"),
    "bert-memory.json": _copy(REPORTS / "bert-memory.json"),
    "bert-large-uncased.json": _copy(REPORTS / "bert-large-uncased.json"),
    "reviews.csv": _text("text\n" + "".join(f"it was {'very ' * number}good\n" for number in range(40))),
    "./my-model/config.json": _config,
    "my_model.py": _text(MODULE),
    "my_package/models.py": _text(MODULE),
}
#: The files that the snippets of a page read and that no snippet wrote.
READ: Final = {"extending.md": ("bert-large-uncased.json",), "traces.md": ("resnet50.json.gz",)}
#: Names in snippets that a reader has: by page, the code that makes them.
GIVEN: Final = {
    "distributed.md": """
import os, torch, opanatomy
from accelerate import Accelerator

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def forward(self, x):
        from types import SimpleNamespace
        return SimpleNamespace(loss=self.layer(x).square().mean())

model, batch = torch.nn.Linear(8, 2), torch.ones(4, 8)
_profile = opanatomy.profile
def profile(*arguments, **options):
    global model, loader, optimizer, accelerator
    anatomy = _profile(*arguments, **options)
    os.remove("step.rank0.json.gz"), os.remove("step.rank1.json.gz")
    model, loader = Model(), [{"x": torch.ones(4, 8)}] * 12
    optimizer, accelerator = torch.optim.SGD(model.parameters(), lr=0.1), Accelerator(cpu=True)
    return anatomy
opanatomy.profile = profile
""",
}


def _of(table: dict[str, object] | dict[str, str], line: str) -> str | None:
    """The key of a table with which a command begins."""
    return next((key for key in table if line.startswith(key)), None)


def test_each_exception_is_of_a_command_that_is_there() -> None:
    lines = [_plain(shown) for page in PAGES for shown in shown_on(page) if isinstance(shown, Command)]
    for table in (NOT_RUN, PRINTED_BY, EXIT_CODES):
        for beginning in table:
            assert any(line.startswith(beginning) for line in lines), f"{beginning} is on no page"
    words = {word for line in lines for word in line.split()}
    for name in STAND_INS.keys() - {"my_package/models.py", "step.rank0.trace.json.gz", "step.rank1.trace.json.gz"}:
        assert any(word.startswith(name) for word in words), f"{name} is on no page"


def _plain(command: Command) -> str:
    return " ".join(command.words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.name}")
def test_what_a_page_shows_runs(page: Path, tmp_path: Path) -> None:
    shown = shown_on(page)
    for command in dict.fromkeys(item for item in shown if isinstance(item, Command)):
        _check_command(command, tmp_path)
    snippets = [item for item in shown if isinstance(item, Snippet)]
    if snippets and page.name not in SNIPPETS_NOT_RUN:
        _check_snippets(page, snippets, tmp_path)


def _check_command(command: Command, folder: Path) -> None:
    line = _plain(command)
    printed_by = next((path for key, path in PRINTED_BY.items() if line.startswith(key)), None)
    if printed_by is not None:
        assert command.printed is not None
        report = document_in(printed_by.with_suffix(".json"))
        assert report is not None
        screens = (terminal_report(report, width=80, brief=brief) for brief in (False, True))
        assert any(text.startswith(command.printed) for text in screens), f"{line} does not print this"
    if _of(NOT_RUN, line) is not None:
        return
    _make_stand_ins(command, folder)
    done = _run(command, folder)
    codes = next((codes for key, codes in EXIT_CODES.items() if line.startswith(key)), (0,))
    assert done.returncode in codes, f"{line}\n{done.stderr}"
    if command.printed is not None:
        assert done.stdout.startswith(command.printed), f"{line} prints\n{done.stdout}"


def _make_stand_ins(command: Command, folder: Path) -> None:
    """The files that a command names and that no command before it wrote; what it prints is of the stand-ins alone."""
    words = command.words
    for index, word in enumerate(words):
        is_output = words[index - 1] in ("-o", "--output", "--trace", "--summaries")
        names = [name for name in STAND_INS if word == name or word.startswith(f"{name}:")]
        if "*" in word:
            names += [name for name in STAND_INS if Path(name).match(word)]
        if word.startswith("my_package.models:"):
            names.append("my_package/models.py")
        for name in () if is_output else names:
            path = folder / name
            if command.printed is not None or not path.exists():
                path.unlink(missing_ok=True) if path.is_file() else shutil.rmtree(path, ignore_errors=True)
                path.parent.mkdir(exist_ok=True, parents=True)
                STAND_INS[name](path)


def _run(command: Command, folder: Path) -> subprocess.CompletedProcess[str]:
    """What the command does: as a fork, of ranks as forks, of a pipe as the shell runs it."""
    words = [path for word in command.words for path in (sorted(glob.glob(word, root_dir=folder)) or [word])]
    if "|" in words:
        return _in_shell(command.line, folder)
    assert words[0] == "opanatomy", command.line
    arguments = [*words[1:], *_appended(words)]
    if "--processes" not in arguments:
        return run(*arguments, cwd=folder, timeout=250)
    index = arguments.index("--processes")
    ranks = int(arguments[index + 1])
    del arguments[index : index + 2]
    ended = [fork.wait() for fork in start_ranks(ranks, *arguments, cwd=folder)]
    return next((rank for rank in ended if rank.returncode), ended[0])


def _appended(words: Sequence[str]) -> list[str]:
    """What makes a model tiny, behind the command."""
    if words[1] not in APPENDED or "--list" in words:
        return []
    model = find_name(words[2])
    settings = [part for key, value in TINY.get(model or "", ()) for part in ("--set", f"{key}={value}")]
    more = [part for option, parts in BEHIND.items() if option in words for part in parts]
    return [*APPENDED[words[1]], *settings, *(SMALL if model or words[2].endswith(".json") else ()), *more]


def _in_shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = folder.with_name(f"{folder.name}-bin") / "opanatomy"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m opanatomy "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, **ENVIRONMENT, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


_MARK: Final = "---- the end of a snippet ----"


def _check_snippets(page: Path, snippets: Sequence[Snippet], folder: Path) -> None:
    """The snippets of a page as one program."""
    for name in READ.get(page.name, ()):
        STAND_INS[name](folder / name)
    missing = [f"to_{library}" for library in ("pandas", "polars") if find_spec(library) is None]
    snippets = [snippet for snippet in snippets if not any(name in snippet.code for name in missing)]
    codes = [f"{snippet.code}\nprint({_MARK!r})" for snippet in snippets]
    done = run_code("\n".join([GIVEN.get(page.name, ""), *codes]), cwd=folder)
    assert done.returncode == 0, f"{page.name}\n{done.stderr}"
    for snippet, printed in zip(snippets, done.stdout.split(f"{_MARK}\n"), strict=False):
        if snippet.printed is not None:
            assert printed == snippet.printed, f"{page.name}: {snippet.code}"


def test_a_pipe_and_the_ranks_are_really_run(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("three\n")
    assert _in_shell("cat text | opanatomy no-such-command", tmp_path).returncode == 2
    failed = _run(Command(line=f"opanatomy profile {BERT} --processes 2 --set no_such_field=1"), tmp_path)
    assert failed.returncode == 2
    assert "no_such_field" in failed.stderr
