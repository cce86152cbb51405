"""Phases that a capture's own ranges say against those inferred where they are taken out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import opanatomy
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import Phase
from tests.support.command import run
from tests.support.tiny import TINY

BERT, GPT2 = "google-bert/bert-base-uncased", "openai-community/gpt2"
VARIANTS = {
    "sdpa": (BERT, "--attention", "sdpa"),
    "eager": (BERT, "--attention", "eager"),
    "checkpointing": (BERT, "--checkpointing", "non-reentrant"),
    "reentrant checkpointing": (BERT, "--checkpointing", "reentrant"),
    "amp": (BERT, "--amp", "bf16"),
    "compiled": (BERT, "--compile"),
    "tied weights, two steps": (GPT2, "--steps", "2"),
    "inference": (BERT, "--inference"),
}


def times(anatomy: Anatomy) -> dict[tuple[str, Phase], int]:
    found: dict[tuple[str, Phase], int] = {}
    for row in anatomy.operators:
        key = row.operator, row.phase
        found[key] = found.get(key, 0) + row.time_ns
    return found


@pytest.mark.parametrize("name", VARIANTS)
def test_phases_without_ranges_are_inferred(name: str, tmp_path: Path) -> None:
    """The same trace without what the capture adds: what a trace from anywhere looks like."""
    model, *options = VARIANTS[name]
    settings = [word for pair in TINY[model] for word in ("--set", "=".join(pair))]
    optimizer = [] if name == "inference" else ["--optimizer", "adamw"]
    done = run(
        "profile",
        model,
        *settings,
        "--batch",
        "2",
        "--seq",
        "16",
        "--suggest",
        "0",
        *optimizer,
        *options,
        "--trace",
        "t.json",
        "-o",
        "report.json",
        cwd=tmp_path,
    )
    assert not done.returncode, done.stderr
    stated = opanatomy.analyze(tmp_path / "t.json")
    document = json.loads((tmp_path / "t.json").read_text())
    document["traceEvents"] = [
        event for event in document["traceEvents"] if not str(event.get("name")).startswith("opanatomy.")
    ]
    del document["opanatomy"]
    (tmp_path / "bare.json").write_text(json.dumps(document))
    known, inferred = times(stated), times(opanatomy.analyze(tmp_path / "bare.json"))
    same = sum(min(ns, inferred.get(key, 0)) for key, ns in known.items())
    assert same > 0.98 * sum(known.values()), {key: (ns, inferred.get(key)) for key, ns in known.items()}
    expected = {"forward"} if name == "inference" else {"forward", "backward", "optimizer"}
    expected |= {"recompute"} if "checkpointing" in name else set()
    assert {phase for _, phase in known} - {"other"} == expected
    if "checkpointing" in name:
        # A layer ends in a norm, whose statistics are the last that is saved: recomputation stops after every product.
        products = [row for row in stated.operators if row.operator == "aten::addmm" and row.phase is Phase.RECOMPUTE]
        assert sum(row.calls for row in products) == 2 * 6
