"""docs/comparing.md: the steps of its workflow run in bash, and its shell loop; what is planted is what they find."""

from __future__ import annotations

import json
import os
import re
import shutil
import socketserver
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from opanatomy.report.gates import gates_of
from tests.support.command import ENVIRONMENT, run
from tests.support.paths import ROOT
from tests.support.pauses import DLRM, events_of, moment, pause

PAGE = (ROOT / "docs" / "comparing.md").read_text()
TINY = {
    "architectures": ["BertForSequenceClassification"], "model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 200, "max_position_embeddings": 64,
}  # fmt: skip


def job() -> dict[str, Any]:
    block = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    loaded: dict[str, Any] = yaml.safe_load(block[1])["jobs"]["compare"]
    return loaded


def steps() -> dict[str, str]:
    """The steps that run something, by name."""
    return {step["name"]: step["run"] for step in job()["steps"] if "run" in step}


#: Asks the process of the tests to run the command, as a fork of one that has imported torch.
COMMAND = """import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({address!r})
    asked.sendall(json.dumps([os.getcwd(), *sys.argv[1:]]).encode())
    asked.shutdown(socket.SHUT_WR)
    code, out, err = json.load(asked.makefile())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""


class Answer(socketserver.StreamRequestHandler):
    """The exit code, stdout and stderr of a command."""

    def handle(self) -> None:
        cwd, *words = json.load(self.rfile)
        command = run(*words, cwd=Path(cwd))
        self.wfile.write(json.dumps([command.returncode, command.stdout, command.stderr]).encode())


@pytest.fixture(scope="module")
def opanatomy() -> Iterator[str]:
    """A script that is the command, each time as a process of its own."""
    # The name of a socket is short.
    with tempfile.TemporaryDirectory() as folder, socketserver.UnixStreamServer(f"{folder}/s", Answer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield COMMAND.format(address=f"{folder}/s")
        server.shutdown()


@pytest.fixture(scope="module")
def workspace(opanatomy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What actions/checkout makes of a pull request that makes the feed-forward wider; `opanatomy` is on the PATH."""
    folder = tmp_path_factory.mktemp("workspace")
    paths = [step["with"]["path"] for step in job()["steps"] if step.get("uses", "").startswith("actions/checkout@")]
    assert paths == ["base", "head"]
    for path, wider in zip(paths, (1, 2), strict=True):
        (folder / path).mkdir()
        config = {**TINY, "intermediate_size": 32 * wider}
        (folder / path / job()["env"]["MODEL"]).write_text(json.dumps(config))
    (folder / "head" / "requirements.txt").write_text("")
    (folder / "bin").mkdir()
    (folder / "bin" / "command.py").write_text(opanatomy)
    for name, script in (("opanatomy", f"-IS {folder / 'bin' / 'command.py'}"), ("python", "")):
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {script} "$@"\n')
        (folder / "bin" / name).chmod(0o755)
    return folder


def bash(script: str, workspace: Path) -> subprocess.CompletedProcess[str]:
    """What a step does, as GitHub's runner starts it; a model that is small, and one run a side."""
    environment = {
        **os.environ,
        **ENVIRONMENT,
        **{name: str(value) for name, value in job()["env"].items()},
        "OPTIONS": "--batch 1 --seq 8 --memory",
        "RUNS": "1",
        "GITHUB_STEP_SUMMARY": str(workspace / "step-summary"),
        "PATH": f"{workspace / 'bin'}:{os.environ['PATH']}",
    }
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=workspace,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.fixture(scope="module")
def ran(workspace: Path) -> dict[str, subprocess.CompletedProcess[str]]:
    """All steps of the workflow, in turn."""
    return {name: bash(script, workspace) for name, script in steps().items()}


@pytest.mark.slow
def test_the_workflow_shows_what_changed_and_fails_by_its_gates(
    workspace: Path, ran: dict[str, subprocess.CompletedProcess[str]]
) -> None:
    *others, last = ran.values()
    for command in others:
        assert command.returncode == 0, command.stderr
    assert sorted(str(file.relative_to(workspace)) for file in workspace.glob("runs/*/*")) == [
        "runs/base/config.report.json",
        "runs/head/config.report.json",
    ]
    summary = (workspace / "step-summary").read_text()
    assert "The step is" in summary
    assert "| **step** |" in summary
    assert last.returncode == 3
    failed = [line for line in last.stderr.splitlines() if line.startswith("opanatomy: FAILED: flops > +1% (is +")]
    assert len(failed) == 1
    cases = ElementTree.parse(workspace / "gates.xml").getroot()[0].findall("testcase")
    assert {case.attrib["name"]: case.find("failure") is None for case in cases}["flops > +1%"] is False
    entries = {entry["name"]: entry["value"] for entry in json.loads((workspace / "head.benchmark.json").read_bytes())}
    assert entries["flops"] > 0
    assert entries["step_time_ns"] > 0


def test_the_workflow_passes_where_nothing_changed(
    workspace: Path, ran: dict[str, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    assert ran
    for side in ("base", "head"):
        shutil.copytree(workspace / "runs" / "base", tmp_path / "runs" / side)
    shutil.copytree(workspace / "bin", tmp_path / "bin")
    command = bash(list(steps().values())[-1], tmp_path)
    assert command.returncode == 0, command.stderr
    assert ElementTree.parse(tmp_path / "gates.xml").getroot()[0].attrib["failures"] == "0"


@pytest.mark.parametrize("text", sorted(set(re.findall(r"`(\w[\w.]* [<>]=? [^`]*)`", PAGE))))
def test_every_gate_of_the_page_is_one(text: str) -> None:
    assert gates_of([text])


def test_a_planted_change_is_a_gate_that_fails(tmp_path: Path) -> None:
    """20 % of the step inserted between kernels: exit 3; the other way round and with itself: exit 0."""
    document = events_of(DLRM)
    (tmp_path / "before.json").write_text(json.dumps(document))
    events = document["traceEvents"]
    step = max(event["dur"] for event in events if str(event.get("name", "")).startswith("ProfilerStep#"))
    pause(events, moment(events, lambda running: not running), round(step / 5))
    (tmp_path / "after.json").write_text(json.dumps(document))
    gates = ["--fail-if", "profiled > +5%", "--fail-if", "idle > +1us", "--fail-if", "kernel_time > +0%"]
    codes = {}
    for before, after in (("before", "after"), ("after", "before"), ("after", "after")):
        command = run("compare", f"{before}.json", f"{after}.json", *gates, cwd=tmp_path)
        codes[before, after] = command.returncode
        if command.returncode:
            failed = [line for line in command.stderr.splitlines() if "FAILED: " in line]
            assert [line.split(": ")[2].split(" (is ")[0] for line in failed] == ["profiled > +5%", "idle > +1us"]
    assert codes == {("before", "after"): 3, ("after", "before"): 0, ("after", "after"): 0}
