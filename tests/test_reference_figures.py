"""The time anatomy of real traces next to what the field's tools say of them, where they have figures."""

from __future__ import annotations

import csv
import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from opanatomy.pipeline import analyze_trace
from opanatomy.records.anatomy import Anatomy

SHARED = Path(__file__).parent.parent.parent / "shared"
PLUGIN = SHARED / "reference" / "tensorboard_plugin_resnet50.json"
TIMELINES = sorted((SHARED / "reference" / "tracelens").glob("*.gpu_timeline.csv"))

pytestmark = pytest.mark.skipif(not PLUGIN.is_file(), reason="the reference figures are not next to the checkout")
BESIDE_TRACELENS = pytest.mark.parametrize("path", TIMELINES, ids=lambda path: path.name.split(".gpu")[0])


@cache
def anatomy_of(name: str) -> Anatomy:
    return analyze_trace(SHARED / "traces" / f"{name}.json.gz")


@cache
def plugin() -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(PLUGIN.read_text())
    return figures


def resnet50() -> Anatomy:
    return anatomy_of(Path(plugin()["trace"]).name.removesuffix(".json.gz"))


def test_device_time_of_every_operator() -> None:
    """Self time: what an operator launched itself, under its own name."""
    found: Counter[str] = Counter()
    for row in resnet50().operators:
        found[row.operator] += row.time_ns
    expected = plugin()["device_self_time_us"]
    mine = {name: found[name] / 1000 for name in expected}
    wrong = {name: (mine[name], us) for name, us in expected.items() if abs(mine[name] - us) > max(2, us / 1000)}
    assert wrong == {}
    assert sum(ns for name, ns in found.items() if name not in expected) == 0


def test_kernel_time_of_every_step() -> None:
    steps = resnet50().step.steps
    kernels, copies = plugin()["steps_kernel_us"], plugin()["steps_memcpy_us"]
    assert [row.kernel_ns / 1000 for row in steps if row.kernel_ns is not None] == pytest.approx(kernels, rel=1e-4)
    assert [row.memcpy_ns / 1000 for row in steps if row.memcpy_ns is not None] == copies


def test_wall_time_of_every_step() -> None:
    assert [row.wall_ns / 1000 for row in resnet50().step.steps] == plugin()["steps_total_us"]


def test_how_full_the_device_is() -> None:
    device = resnet50().device
    assert device.utilization is not None
    assert device.sm_efficiency is not None
    assert device.occupancy is not None
    assert 100 * device.utilization == pytest.approx(plugin()["gpu_utilization_percent"], abs=0.02)
    assert 100 * device.sm_efficiency == pytest.approx(plugin()["est_sm_efficiency_percent"], abs=0.02)
    assert 100 * device.occupancy == pytest.approx(plugin()["est_achieved_occupancy_percent"], abs=0.02)
    assert device.tensor_core_ns == plugin()["tensor_core_time_percent"] == 0


@BESIDE_TRACELENS
def test_device_timeline(path: Path) -> None:
    """TraceLens sees the work linked to an operator in the window only, and begins with the first piece of it."""
    anatomy = anatomy_of(path.name.removesuffix(".gpu_timeline.csv"))
    with path.open(newline="") as file:
        expected = {row["type"]: 1e6 * float(row["time ms"]) for row in csv.DictReader(file)}
    timeline = anatomy.timeline
    # its times are floats, rounded once a kernel
    about = 50
    assert timeline.busy_ns == pytest.approx(expected["busy_time"], abs=about)
    assert timeline.inner_idle_ns == pytest.approx(expected["idle_time"], abs=about)
    assert timeline.computation_ns == pytest.approx(expected["computation_time"], abs=about)
    assert timeline.memcpy_ns == pytest.approx(expected["total_memcpy_time"], abs=about)
    assert timeline.exposed_memcpy_ns == pytest.approx(expected["exposed_memcpy_time"], abs=about)
    assert timeline.communication_ns == expected["total_comm_time"] == 0
    left_out = anatomy.ledger.device_work_ns - anatomy.ledger.linked_ns
    assert left_out == anatomy.ledger.outside_window_ns
    assert anatomy.timeline.kernel_time_ns == anatomy.ledger.linked_ns
