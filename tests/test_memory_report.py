"""`profile --memory` and a step that does not fit, from the command to what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from opanatomy.__main__ import main
from opanatomy.records.memory import Memory, MemoryFailure, MemorySaving, MemoryTerm, PublishedFigure
from opanatomy.records.taxonomy import Phase
from opanatomy.report import terminal_report
from opanatomy.report.formats.json import read_anatomy
from tests import anatomies
from tests.command import run
from tests.tiny import BERT, TINY


def arguments(*options: str) -> list[str]:
    sizes = [part for key, value in TINY[BERT] for part in ("--set", f"{key}={value}")]
    return ["profile", BERT, *sizes, "--batch", "2", "--seq", "16", *options]


def test_the_memory_of_a_step_in_depth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments("--memory", "--optimizer", "adamw", "--attention", "eager", "-f", "json")) == 0
    memory = read_anatomy(capsys.readouterr().out).memory
    parts = {part.component: part for part in memory.components}
    assert sum(part.at_peak_bytes or 0 for part in memory.components) == memory.peak_bytes
    assert parts["weights"].measured_bytes == parts["weights"].theory_bytes
    assert parts["optimizer_state"].measured_bytes == 2 * (parts["weights"].measured_bytes or 0)
    assert parts["temporary_buffers"].at_peak_bytes is not None
    assert memory.timeline
    assert memory.activations
    assert [point.name for point in memory.snapshots][-1] == "peak"
    assert max(point.allocated_bytes for point in memory.timeline) == memory.peak_bytes
    assert sum(term.bytes for term in memory.terms) == pytest.approx(
        parts["forward_activations"].measured_bytes, rel=0.01
    )


def test_a_step_that_does_not_fit_is_reported(tmp_path: Path) -> None:
    limit = 1_600_000_000
    words = arguments("--batch", "65536", "--optimizer", "adamw", "-f", "json")
    done = run(*words, cwd=tmp_path, data_bytes=limit)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("opanatomy: out of memory in the forward phase")
    assert "GB were in use at the peak" in last
    assert "--batch" in last
    report = json.loads(done.stdout)
    memory = report["memory"]
    assert memory["failure"]["phase"] == "forward"
    assert memory["failure"]["requested_bytes"] > 1_000_000
    assert memory["needed_bytes"] > limit
    assert {saving["option"] for saving in memory["savings"]} >= {"--checkpointing", "--accumulate 2"}
    assert report["workload"]["batch"] == 65536
    assert list(tmp_path.iterdir()) == []


def test_what_failed_and_what_would_help_is_shown() -> None:
    memory = Memory(
        needed_bytes=2_000_000_000,
        terms=(
            MemoryTerm(
                component="forward_activations", term="embeddings", formula="s*b*h*12", bytes=1_000, per_layer=False
            ),
        ),
        failure=MemoryFailure(
            phase=Phase.BACKWARD, message="tried to allocate", requested_bytes=12_000_000, allocated_bytes=1_500_000_000
        ),
        savings=(
            MemorySaving(
                technique="activation checkpointing", option="--checkpointing", saved_bytes=1_000_000_000,
                needed_bytes=1_000_000_000, fits=True,
            ),
        ),
    )  # fmt: skip
    text = terminal_report(replace(anatomies.nothing(), memory=memory), width=80)
    assert "out of memory in backward" in text
    assert "the request that failed" in text
    assert "12.0 MB" in text
    assert "activation checkpointing" in text
    assert text.splitlines()[1] == "The step does not fit: try --checkpointing."


def test_the_published_run_is_set_beside() -> None:
    figures = (
        PublishedFigure(figure="weights", published=1288, measured=1341.0, unit="MB", published_device="Tesla V100"),
        PublishedFigure(figure="context", published=1343, measured=None, unit="MB", published_device="Tesla V100"),
    )
    text = terminal_report(replace(anatomies.nothing(), memory=Memory(peak_bytes=1, published=figures)), width=80)
    assert "the classic run  Tesla V100" in text
    assert "+53 MB" in text
    assert next(line for line in text.splitlines() if line.startswith("context")).split()[-2:] == ["-", "-"]
