"""Whole reports of kept traces: what changes in any stage shows here, line by line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from opanatomy.pipeline import analyze_trace
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report import terminal_report
from opanatomy.report.formats.json import json_report

TRACES = sorted((Path(__file__).parent / "traces").glob("*.json.gz"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_golden(path: Path, golden: Callable[[str, str], None]) -> None:
    anatomy = analyze_trace(path)
    name = path.name.removesuffix(".json.gz")
    golden(f"trace.{name}.json", json_report(anatomy))
    golden(f"trace.{name}.txt", terminal_report(anatomy, width=80))


def test_contractions_by_hand() -> None:
    """Two layers of h=32, f=64 over 2 x 16 tokens, a head h -> h -> 160: products of named sizes."""
    b, s, h, f, v, layers, steps = 2, 16, 32, 64, 160, 2, 2
    layer = 2 * b * s * h * (4 * h + 2 * f) + 2 * (2 * b * s * s * h)
    forward = layers * layer + 2 * b * s * h * (h + v)
    anatomy = analyze_trace(Path(__file__).parent / "traces" / "bert_cpu.json.gz")
    found = {row.phase: row.flops for row in anatomy.classes if row.operator_class is OperatorClass.TENSOR_CONTRACTION}
    assert found == {Phase.FORWARD: steps * forward, Phase.BACKWARD: 2 * steps * forward}
