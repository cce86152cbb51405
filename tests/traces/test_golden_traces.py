"""Whole reports of kept traces: what changes in any stage shows here, line by line and figure by figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import opanatomy
from opanatomy.pipeline import summary_of_trace
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report import read_anatomy, terminal_report
from opanatomy.report.formats.json import json_report
from tests.support.paths import KEPT, TRACES

EVERY = pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name.removesuffix(".json.gz"))
LEDGER = (
    "device_work_ns", "linked_ns", "graph_launched_ns", "no_launch_record_ns", "outside_window_ns", "classed_ns",
    "costed_ns", "unknown_ns",
)  # fmt: skip


@cache
def anatomy_of(path: Path) -> Anatomy:
    return summary_of_trace(path).anatomy


def figures(anatomy: Anatomy) -> str:
    """The figures that the report rounds, one a line: step, classes, ratios, ledger, memory."""
    return "".join(f"{name} {'-' if value is None else value}\n" for name, value in _figures(anatomy))


def _figures(anatomy: Anatomy) -> Iterator[tuple[str, float | int | None]]:
    for name in ("wall_ns", "busy_ns", "kernel_time_ns"):
        yield f"step.{name}", getattr(anatomy.step, name)
    for phase, time_ns in anatomy.step.phase_ns.items():
        yield f"step.phase_ns.{phase}", time_ns
    for name in ("window_ns", "busy_ns", "idle_ns", "communication_ns", "exposed_communication_ns"):
        yield f"timeline.{name}", getattr(anatomy.timeline, name)
    for row in anatomy.classes:
        for name in ("calls", "kernels", "time_ns", "flops", "read_bytes", "written_bytes", "uncosted_ns"):
            yield f"{row.operator_class}.{row.phase}.{name}", getattr(row, name)
    for ratio in anatomy.ratios:
        for name in ("time", "flops", "bytes", "theory_flops", "theory_bytes"):
            yield f"ratio.{ratio.operator_class}.{name}", getattr(ratio, name)
    for name in LEDGER:
        yield f"ledger.{name}", getattr(anatomy.ledger, name)
    yield "memory.peak_bytes", anatomy.memory.peak_bytes


@EVERY
def test_golden(path: Path, golden: Callable[[str, str], None]) -> None:
    anatomy = anatomy_of(path)
    name = path.name.removesuffix(".json.gz")
    golden(f"trace.{name}.figures.txt", figures(anatomy))
    golden(f"trace.{name}.txt", terminal_report(anatomy, width=80))


def test_golden_of_two_ranks(golden: Callable[[str, str], None]) -> None:
    anatomy = opanatomy.analyze([TRACES / f"gpu_v100_dlrm_rank{rank}of8.json.gz" for rank in (0, 1)])
    golden("trace.two_ranks.figures.txt", figures(anatomy))
    golden("trace.two_ranks.txt", terminal_report(anatomy, width=80))


@EVERY
def test_the_json_report_is_the_anatomy(path: Path) -> None:
    text = json_report(anatomy_of(path))
    assert read_anatomy(text) == anatomy_of(path)
    assert json_report(read_anatomy(text)) == text


def test_contractions_by_hand() -> None:
    """Two layers of h=32, f=64 over 2 x 16 tokens, a head h -> h -> 160: products of named sizes."""
    b, s, h, f, v, layers, steps = 2, 16, 32, 64, 160, 2, 2
    layer = 2 * b * s * h * (4 * h + 2 * f) + 2 * (2 * b * s * s * h)
    forward = layers * layer + 2 * b * s * h * (h + v)
    anatomy = anatomy_of(TRACES / "bert_cpu.json.gz")
    flops = {row.phase: row.flops for row in anatomy.classes if row.operator_class is OperatorClass.TENSOR_CONTRACTION}
    assert flops == {Phase.FORWARD: steps * forward, Phase.BACKWARD: 2 * steps * forward}
