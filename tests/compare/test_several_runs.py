"""`compare --run`: sides that are run in turns, each run in a fresh process, then compared and held to gates."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

import opanatomy
from opanatomy.api import comparison_of
from opanatomy.cli.repeat import Turns, command_of
from opanatomy.io.files import TRACES_FOLDER
from opanatomy.trainer import output_of
from tests.support.command import Fork, run

PYTHON = sys.executable
#: The step of a loop that is recorded: a layer as wide as the environment says, with what is printed on stdout.
TRAIN = """
import os, sys, torch, opanatomy
print("hello", *sys.argv[1:])
layer, inputs = torch.nn.Linear(int(os.environ["WIDE"]), 8), torch.ones(2, int(os.environ["WIDE"]))
with opanatomy.record("here.json.gz", warmup=1) as recorder:
    for _ in range(4):
        layer(inputs).sum().backward()
        recorder.step()
"""
MODELS = """
import torch

def make():
    return torch.nn.Linear(8, 8), torch.ones(2, 8)
"""


def test_scripts_take_turns_and_are_compared(here: Path) -> None:
    (here / "train.py").write_text(TRAIN)
    sides = [f"-- WIDE={wide} {PYTHON} train.py --text 'two words'" for wide in (8, 16)]
    command = run(
        "compare",
        "--run",
        sides[0],
        "--run",
        sides[1],
        "--times",
        "2",
        "--seed",
        "1",
        "--folder",
        "runs",
        "-f",
        "json",
        "--fail-if",
        "flops > +10%",
        cwd=here,
    )
    assert command.returncode == 3, command.stderr
    comparison = json.loads(command.stdout)
    assert [(side["name"], side["runs"]) for side in comparison["sides"]] == [(side, 2) for side in sides]
    # The script said where its trace is to go: it goes where the comparison finds it, and nowhere else.
    assert sorted(str(file.relative_to(here)) for file in here.rglob("*") if file.is_file()) == [
        *(f"runs/side-{side}/run-{turn}.report.json" for side in (1, 2) for turn in (1, 2)),
        "train.py",
    ]
    assert "--seed 1" in command.stderr
    assert "run 4 of 4 (" in command.stderr
    assert "FAILED: flops > +10% (is +93.5 %)" in command.stderr
    kept = comparison_of([here / "runs" / "side-1", here / "runs" / "side-2"])
    assert [side.began_ns for side in kept.sides] == [tuple(side["began_ns"]) for side in comparison["sides"]]


def test_a_run_is_what_follows_opanatomy_and_reports_are_temporary(here: Path) -> None:
    (here / "models.py").write_text(MODELS)
    sides = ["profile models.py:make", "profile models.py:make --steps 2"]
    command = run("compare", "--run", sides[0], "--run", sides[1], "--times", "1", cwd=here)
    assert command.returncode == 0, command.stderr
    assert all(side in " ".join(command.stdout.split()) for side in sides)
    assert [file.name for file in here.iterdir() if file.name != "__pycache__"] == ["models.py"]


def test_each_round_has_each_side_once_and_the_seed_decides_the_order() -> None:
    commands = tuple(command_of(f"-- {name}") for name in "abc")
    orders = {seed: Turns(commands=commands, times=8, seed=seed, folders=()).order for seed in (0, 1)}
    for order in orders.values():
        assert [turn for turn, _ in order] == [turn for turn in range(8) for _ in commands]
        rounds = [tuple(side for turn, side in order if turn == number) for number in range(8)]
        assert all(sorted(each) == [0, 1, 2] for each in rounds)
        assert len(set(rounds)) > 1
    assert orders[0] != orders[1]
    assert orders[0] == Turns(commands=commands, times=8, seed=0, folders=()).order


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("print('first'); raise SystemExit('no data')", "ended with exit code 1; no report was kept"),
        ("pass", "wrote no trace - wrap the script's steps in opanatomy.record(...), or add"),
    ],
)
def test_a_run_that_fails_ends_it(code: str, says: str, here: Path) -> None:
    sides = [f'-- {PYTHON} -c "{code}"', f'-- {PYTHON} -c "{code}" again']
    command = run("compare", "--run", sides[0], "--run", sides[1], cwd=here)
    assert (command.returncode, command.stdout) == (1, "")
    *before, last = command.stderr.splitlines()
    assert last.startswith("opanatomy: run 1 of 10 (")
    assert says in last
    assert ("  first" in before, "  no data" in before) == ("first" in code, "first" in code)


def test_two_recordings_of_one_run_are_refused(here: Path) -> None:
    (here / "train.py").write_text(TRAIN + TRAIN)
    side = f"-- WIDE=4 {PYTHON} train.py"
    command = run("compare", "--run", side, "--run", side, cwd=here)
    assert command.returncode == 1
    assert "recorded more than once - keep only one recording in the script" in command.stderr


def test_an_interrupt_keeps_what_is_done_in_a_named_folder(here: Path) -> None:
    (here / "train.py").write_text(TRAIN)
    sides = [f"-- {PYTHON} -c 'import time; time.sleep(90)'", f"-- WIDE=4 {PYTHON} train.py"]
    first = Turns(commands=tuple(map(command_of, sides)), times=1, seed=0, folders=()).order[0][1]
    if first == 0:
        sides.reverse()
    fork = Fork("compare", "--run", sides[0], "--run", sides[1], "--folder", "runs", cwd=here)
    report = here / "runs" / f"side-{first + 1}" / "run-1.report.json"
    while not report.exists() or "run 1 of 10" not in fork.stderr.read_text():
        time.sleep(0.05)
    os.kill(fork.pid, signal.SIGINT)
    command = fork.wait()
    assert command.returncode == 130
    assert command.stderr.splitlines()[-1] == "opanatomy: interrupted; 1 report kept in runs"
    assert report.exists()


def test_every_recorder_writes_where_a_comparison_collects(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each recording in a folder of its own, so that two of one name are not taken for ranks."""
    (here / "traces").mkdir()
    monkeypatch.setenv(TRACES_FOLDER, str(here / "traces"))
    layer, inputs = torch.nn.Linear(4, 4), torch.ones(2, 4)
    opanatomy.profile(layer, inputs, trace="mine.json.gz")
    opanatomy.profile(layer, inputs)
    with opanatomy.record(warmup=0) as recorder:
        layer(inputs).sum().backward()
        recorder.step()
    callback = output_of("mine.txt", "Linear")
    assert callback.trace.name == "step.trace.json.gz"
    assert callback.report.parent == callback.trace.parent
    assert callback.trace.parent.parent == here / "traces"
    assert len(list((here / "traces").glob("*/step.trace.json.gz"))) == 3
    assert [file.name for file in here.iterdir()] == ["traces"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--run", "profile gpt2"], "--run 'profile gpt2': only one side - use --run twice"),
        (
            ["a.json", "--run", "profile gpt2"],
            "compare a.json --run ...: sides are either files or runs - pass files or use --run",
        ),
        ([], "compare: no sides - pass at least two (compare BEFORE AFTER), or use --run CMD twice"),
        (["a.json", "b.json", "--times", "3"], "--times 3 needs --run - use --run 'profile MODEL ...' twice"),
        (["a.json", "b.json", "--folder", "runs"], "--folder runs needs --run"),
        (["--run", "gpt2"], "--run 'gpt2': neither a profile command nor a script - write 'profile MODEL ...' or '-- "),
        (["--run", "-- A=1 B="], "--run '-- A=1 B=': no program after -- - write '-- python train.py ...'"),
        (["--run", "profile 'gpt2"], "no closing quotation - quote the command as in a shell"),
        (["--run", "profile gpt2 --bacth 2"], "unknown --bacth 2 - did you mean --batch?"),
        (["--run", "profile gpt2 --batch 0"], "--batch 0: must be at least 1"),
        (["--run", "profile gpt2 --clip 1"], "--clip 1.0 clips before an optimizer update, and this run has none"),
        (
            ["--run", "profile gpt2 -o a.json"],
            "--output is not an option of a run - leave it out, or use it with compare",
        ),
        (["--run", "profile gpt2 --fail-if 'time > 1s'"], "--fail-if is not an option of a run"),
        (["--run", "profile gpt2 --for 80GB"], "--for runs nothing - leave it out"),
        (["--run", "profile gpt2 --trace a.json.gz"], "--trace is not an option of a run"),
        (["--run", "profile gpt2 --full"], "--full is not an option of a run"),
        (["--run", "profile gpt2 --no-trace --suggest 0", "--times", "0"], "--times 0: must be at least 1"),
        (
            ["--run", "profile gpt2", "--folder", "used"],
            "--folder used: it already contains runs - choose another folder",
        ),
    ],
)
def test_sides_that_cannot_be_run_are_refused_before_any_runs(words: list[str], says: str, here: Path) -> None:
    (here / "used" / "side-2").mkdir(parents=True)
    alone = words == ["--run", "profile gpt2"] or "--run" not in words
    command = run("compare", *words, *(() if alone else ("--run", "profile gpt2")), cwd=here)
    assert command.returncode == 2
    assert says in " ".join(command.stderr.split())
    assert "run 1 of" not in command.stderr


def test_the_option_that_was_of_profile_says_where_to_go(here: Path) -> None:
    command = run("profile", "gpt2", "--runs", "5", cwd=here)
    assert command.returncode == 2
    assert "unknown --runs 5 - opanatomy compare --run 'profile ...' --run 'profile ...'" in command.stderr
