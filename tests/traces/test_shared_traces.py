"""Real traces of others, 2021 to 2026, those kept here and where they are available all: every sum exact."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from opanatomy.attribution.attribute import attribute
from opanatomy.classification.operators import classify_operator
from opanatomy.pipeline import summary_of_trace
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report import read_anatomy, terminal_report
from opanatomy.report.formats.json import json_report
from opanatomy.trace.read import read_trace
from tests.support.paths import SHARED, TRACES

KEPT = sorted(TRACES.glob("gpu_*.json.gz"))
ALL = [*KEPT, *sorted([*(SHARED / "traces").glob("*.json.gz"), *(SHARED / "traces").glob("*/*.json.gz")])]
EVERY = pytest.mark.parametrize("path", ALL, ids=lambda path: path.name.removesuffix(".json.gz"))


@cache
def anatomy_of(path: Path) -> Anatomy:
    return summary_of_trace(path).anatomy


def inside(anatomy: Anatomy) -> int:
    return anatomy.ledger.device_work_ns - anatomy.ledger.outside_window_ns


@EVERY
def test_every_sum_is_exact_and_no_figure_is_one_that_cannot_be(path: Path) -> None:
    """Ratios of up to 4,146,709,049 were told, and multiprocessors busier than the device."""
    anatomy = anatomy_of(path)
    ledger = anatomy.ledger
    assert inside(anatomy) == ledger.linked_ns + ledger.graph_launched_ns + ledger.no_launch_record_ns
    assert inside(anatomy) == ledger.classed_ns + ledger.unknown_ns
    assert inside(anatomy) == sum(row.time_ns for row in anatomy.classes)
    if anatomy.kernels:
        assert inside(anatomy) == sum(row.time_ns for row in anatomy.kernels)
        assert ledger.device_work_ns == int(read_trace(path).work.duration_ns.sum())
    for ratio in anatomy.ratios:
        assert max(ratio.time or 0, ratio.flops or 0, ratio.bytes or 0) <= 100
    if anatomy.device.sm_efficiency is not None:
        assert anatomy.device.sm_efficiency <= (anatomy.device.utilization or 0) <= 1
    assert max(map(len, terminal_report(anatomy, width=80).splitlines())) <= 80
    assert json_report(read_anatomy(json_report(anatomy))) == json_report(anatomy)


#: These say `## forward ##` and `## backward ##` themselves.
ANNOTATED = ("train_a100_rank3of8_shapes_nccl", "gpu_v100_dlrm")
TRAINING = ("train_", "gpu_mi250_training", "gpu_v100_dlrm", "gpu_v100_resnet")
MORE = sorted((SHARED / "more_traces").rglob("*.json.gz"))


@pytest.mark.parametrize("path", [*ALL, *MORE], ids=lambda path: f"{path.parent.name}-{path.name[:40]}")
def test_next_to_nothing_is_unknown(path: Path) -> None:
    """But Triton's kernels of 2023, `triton__0d1d2de`, whose names say nothing."""
    anatomy = anatomy_of(path)
    nameless = sum(row.time_ns for row in anatomy.kernels if row.kernel.startswith("triton__0d1d"))
    assert anatomy.ledger.unknown_ns - nameless <= 0.005 * inside(anatomy)


@pytest.mark.parametrize(
    "path", [path for path in ALL if path.name.startswith(TRAINING)], ids=lambda path: path.name[:40]
)
def test_training_has_a_backward(path: Path) -> None:
    times = dict.fromkeys(Phase, 0)
    for row in anatomy_of(path).classes:
        if row.operator_class is not OperatorClass.COMMUNICATION:  # which waits for other ranks, in any phase
            times[row.phase] += row.time_ns
    assert times[Phase.FORWARD] > 0
    assert times[Phase.BACKWARD] > 0.5 * times[Phase.FORWARD]


@pytest.mark.parametrize("path", [path for path in ALL if path.name.startswith(ANNOTATED)], ids=lambda path: path.name)
def test_phases_are_as_the_annotations_say(path: Path) -> None:
    trace = read_trace(path)
    check = attribute(trace.names, trace.host, trace.launches, trace.work, trace.flows).annotated
    assert check is not None
    assert (check.compared, check.equal, check.differences) == (3, 3, ())


def test_kernel_names_agree_with_operators() -> None:
    """Where the launching operator is known, the class from the kernel's name alone is the same, by time."""
    agreed = known = 0
    for path in ALL:
        for kernel in anatomy_of(path).kernels:
            classes = {
                found.operator_class
                for name in kernel.operators
                if (found := classify_operator(name)) and found.operator_class not in (None, OperatorClass.UNKNOWN)
            }
            if len(classes) != 1:
                continue
            known += kernel.time_ns
            agreed += kernel.time_ns if kernel.operator_class in classes else 0
    assert agreed >= 0.97 * known


@pytest.mark.skipif(not (SHARED / "traces").exists(), reason="the folder of shared traces is not next to the checkout")
@pytest.mark.parametrize(
    ("name", "steps", "counted", "wall_ns", "busy"),
    [
        ("traces/train_mi300_resnet18", 5, 4, 818_702_124, 0.088),
        ("more_traces/advice/loader_and_cold_start_2080ti", 30, 29, 333_595_655, 0.471),
    ],
)
def test_steps_by_the_optimizers_updates(name: str, steps: int, counted: int, wall_ns: int, busy: float) -> None:
    """From the events of the file: from one update's end to the next, with the union of the work launched between."""
    step = anatomy_of(SHARED / f"{name}.json.gz").step
    assert ([row.number for row in step.steps], step.count) == (list(range(1, steps + 1)), counted)
    assert (step.wall_ns, round((step.busy_ns or 0) / wall_ns, 3)) == (wall_ns, busy)
