"""The time anatomy of real traces next to what the field's tools say of them, where they have figures."""

from __future__ import annotations

import csv
import gzip
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


def of_the_step(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The host's events in the one annotated step and the work launched there, without the annotation; all events where
    there is none."""
    steps = [
        event for event in events if str(event.get("name")).startswith("ProfilerStep") and event["cat"][:3] != "gpu"
    ]
    if not steps:
        return events
    begin, end = steps[0]["ts"], steps[0]["ts"] + steps[0]["dur"]
    inside = [event for event in events if event not in steps and begin <= event.get("ts", begin) <= end]
    launched = {
        event["args"]["correlation"] for event in inside if event.get("cat", "").endswith(("_runtime", "_driver"))
    }
    work = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    return [event for event in inside if event not in work] + [
        event for event in work if event["args"]["correlation"] in launched
    ]


@BESIDE_TRACELENS
def test_device_timeline(path: Path, tmp_path: Path) -> None:
    """TraceLens knows no steps: it begins with the first piece of the work and ends with the last."""
    name = path.name.removesuffix(".gpu_timeline.csv")
    document = json.loads(gzip.decompress((SHARED / "traces" / f"{name}.json.gz").read_bytes()))
    document["traceEvents"] = of_the_step(document["traceEvents"])
    without_steps = tmp_path / "trace.json"
    without_steps.write_text(json.dumps(document))
    anatomy = analyze_trace(without_steps)
    with path.open(newline="") as file:
        expected = {row["type"]: 1e6 * float(row["time ms"]) for row in csv.DictReader(file)}
    timeline = anatomy.timeline
    # its times are floats, rounded once a kernel
    about = 50
    assert timeline.busy_ns == pytest.approx(expected["busy_time"], abs=about)
    assert timeline.idle_ns == pytest.approx(expected["idle_time"], abs=about)
    assert timeline.computation_ns == pytest.approx(expected["computation_time"], abs=about)
    assert timeline.memcpy_ns == pytest.approx(expected["total_memcpy_time"], abs=about)
    assert timeline.exposed_memcpy_ns == pytest.approx(expected["exposed_memcpy_time"], abs=about)
    assert timeline.communication_ns == expected["total_comm_time"] == 0
    left_out = anatomy.ledger.device_work_ns - anatomy.ledger.linked_ns
    assert left_out == anatomy.ledger.outside_window_ns
    assert anatomy.timeline.kernel_time_ns == anatomy.ledger.linked_ns
