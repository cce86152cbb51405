"""Runs as processes: at once in one folder, with children that print, interrupted at any moment."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import ENVIRONMENT, Fork
from tests.support.made_trace import training_step

MODELS = """
import atexit, ctypes, os, signal, subprocess, sys, torch
from torch import nn

class Prints(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x):
        os.chdir("/")
        subprocess.run(["echo", "hello from a child"], check=True)
        os.write(1, b"hello from a write\\n")
        ctypes.CDLL(None).puts(b"hello from C")
        print("hello from Python", file=sys.__stdout__)
        return self.layer(x)

def goodbye():
    print("goodbye from Python", flush=True)
    os.system("echo goodbye from a child")
    ctypes.CDLL(None).puts(b"goodbye from C")

def prints():
    atexit.register(goodbye)
    return Prints(), torch.ones(2, 4)

def plain():
    return nn.Linear(4, 4), torch.ones(2, 4)
"""
COMMAND = [sys.executable, "-m", "opanatomy"]
#: Runs `python -m opanatomy WORDS...` and interrupts it where it begins to import `sys.argv[1]`.
INTERRUPTED = """
import os, runpy, signal, sys
moment, sys.argv = sys.argv[1], ["opanatomy", *sys.argv[2:]]

def hook(event, arguments):
    global moment
    if moment and ((event == "import" and arguments[0] == moment) or event == moment):
        moment = None
        os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(hook)
runpy.run_module("opanatomy", run_name="__main__", alter_sys=True)
"""


def ended(command: list[str], folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 300, **options}
    return subprocess.run(command, cwd=folder, env={**os.environ, **ENVIRONMENT}, text=True, check=False, **options)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "run_models.py").write_text(MODELS)
    return folder


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return str(training_step().write(tmp_path / "step.json.gz"))


def made_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in ("run_models.py", "__pycache__"))


def test_three_runs_at_once_keep_three_traces(here: Path) -> None:
    forks = [Fork("profile", "run_models:plain", "--device", "cpu", "-o", "out/", cwd=here) for _ in range(3)]
    runs = [fork.wait() for fork in forks]
    said = [done.stderr for done in runs]
    assert [done.returncode for done in runs] == [0, 0, 0], said
    names = [f"run_models-plain{number}.trace.json.gz" for number in ("", "-2", "-3")]
    assert made_in(here) == sorted(["out", *names])
    assert len(made_in(here / "out")) == 3
    assert sorted(text.partition("\ntrace: ")[2].partition(" ")[0] for text in said) == sorted(names)


def test_of_runs_at_once_that_want_one_name_one_has_it(here: Path, trace: str) -> None:
    forks = [Fork("analyze", trace, "-o", "r.json", cwd=here) for _ in range(3)]
    runs = [fork.wait() for fork in forks]
    said = [done.stderr for done in runs]
    assert sorted(done.returncode for done in runs) == [0, 1, 1], said
    for done in runs:
        if done.returncode:
            text = done.stderr
            assert "cannot write r.json: " in text
            assert text.count("\n") == 1
    for name in made_in(here):  # the first has the name; what the others made after its check has a number
        assert name.startswith("r")
        assert json.loads((here / name).read_text())["schema"] == 3


def test_nothing_but_the_report_is_on_stdout(here: Path) -> None:
    done = ended([*COMMAND, "profile", "run_models:prints", "--device", "cpu", "-f", "json"], here)
    err = done.stderr
    assert done.returncode == 0, err
    assert json.loads(done.stdout)["schema"] == 3
    assert "leaked" not in err  # by triton's nanobind, where torch has it
    for who in ("a child", "a write", "C", "Python"):
        assert f"hello from {who}\n" in err
    for who in ("a child", "C", "Python"):
        assert f"goodbye from {who}\n" in err
    assert made_in(here) == ["run_models-prints.trace.json.gz"]


HARSH = """
import multiprocessing, os, sys, time, torch
from torch import nn

def sleep():
    time.sleep(60)

class Harsh(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.done = False
    def forward(self, x):
        if not self.done:
            self.done = True
            child = multiprocessing.get_context("fork").Process(target=sleep)
            child.start()
            time.sleep(0.3)
            child.terminate()
            child.join()
            print("child ended with", child.exitcode)
            ends = os.fork()
            if ends == 0:
                sys.exit(3)
            print("fork ended with", os.waitstatus_to_exitcode(os.waitpid(ends, 0)[1]))
            survivor = os.fork()
            if survivor == 0:  # it outlives the run, and holds no more than it needs
                os.close(2), os.close(1)
                time.sleep(600)
                os._exit(0)
            print("survivor", survivor)
            sys.stdout.close()
            sys.__stdout__.close()
            sys.stderr.close()
        return self.layer(x)

def harsh():
    return Harsh(), torch.ones(2, 4)
"""


def test_a_model_that_forks_and_closes_its_streams_costs_no_report(here: Path) -> None:
    (here / "harsh.py").write_text(HARSH)
    # The survivor would hold stdout for 600 seconds.
    done = ended([*COMMAND, "profile", "harsh:harsh", "--device", "cpu", "--no-trace", "-f", "json"], here)
    err = done.stderr
    assert done.returncode == 0, err
    os.kill(int(re.search(r"survivor (\d+)", err)[1]), signal.SIGKILL)  # which fails if it has been waited for
    assert json.loads(done.stdout)["schema"] == 3
    assert f"child ended with {-signal.SIGTERM}\n" in err
    assert "fork ended with 3\n" in err
    for word in ("Traceback", "KeyboardInterrupt", "SystemExit", "lost sys.stderr"):
        assert word not in err


@pytest.mark.parametrize(
    ("moment", "words"),
    [
        ("opanatomy.cli.main", ["analyze", "TRACE", "-o", "r.txt"]),
        ("numpy", ["analyze", "TRACE", "-o", "r.txt"]),
        ("opanatomy.report.sections", ["analyze", "TRACE", "-o", "r.txt"]),
        ("torch.nn", ["profile", "run_models:plain", "--device", "cpu"]),
    ],
)
def test_an_interrupt_at_any_moment_is_one_line(moment: str, words: list[str], here: Path, trace: str) -> None:
    words = [trace if word == "TRACE" else word for word in words]
    done = ended([sys.executable, "-c", INTERRUPTED, moment, *words], here)
    assert (done.returncode, done.stdout) == (130, "")
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("  ", "no GPU in use"))]
    assert [line.startswith("opanatomy: interrupted") for line in lines] == [True], done.stderr
    assert made_in(here) == []


def test_an_interrupt_after_all_is_done_changes_nothing(here: Path, trace: str) -> None:
    """Taking down takes a while; that is the moment at which people press Ctrl-C."""
    code = INTERRUPTED.replace(
        "sys.addaudithook(hook)",
        "import atexit; atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))",
    )
    done = ended([sys.executable, "-c", code, "-", "analyze", trace, "-o", "r.txt"], here)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "report: r.txt\n")


def test_a_full_stdout_is_one_line(here: Path) -> None:
    for words in (["--help"], ["explain", "aten::mm"]):
        with open("/dev/full", "w") as full:
            done = ended([*COMMAND, *words], here, stdout=full)
        assert done.returncode == 1
        assert done.stderr.startswith("opanatomy: cannot write")
        assert "No space left on device - free some space" in done.stderr
        assert done.stderr.count("\n") == 1
