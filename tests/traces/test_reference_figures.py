"""The time anatomy and the costs of real traces next to what the field's tools say of them, where they have figures."""

from __future__ import annotations

import ast
import csv
import gzip
import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from opanatomy.cost.registry import cost
from opanatomy.pipeline import summary_of_trace
from opanatomy.records.anatomy import Anatomy
from opanatomy.trace.signatures import parse_signature
from tests.support.paths import SHARED

PLUGIN = SHARED / "reference" / "tensorboard_plugin_resnet50.json"
TIMELINES = sorted((SHARED / "reference" / "tracelens").glob("*.gpu_timeline.csv"))

pytestmark = pytest.mark.skipif(not PLUGIN.is_file(), reason="the reference figures are not next to the checkout")
BESIDE_TRACELENS = pytest.mark.parametrize("path", TIMELINES, ids=lambda path: path.name.split(".gpu")[0])


@cache
def anatomy_of(name: str) -> Anatomy:
    return summary_of_trace(SHARED / "traces" / f"{name}.json.gz").anatomy


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
    """The host's events in the one annotated step and the work launched there; all events where there is none."""
    steps = [one for one in events if str(one.get("name")).startswith("ProfilerStep") and one["cat"][:3] != "gpu"]
    if not steps:
        return events
    begin, end = steps[0]["ts"], steps[0]["ts"] + steps[0]["dur"]
    work = [one for one in events if one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    inside = [one for one in events if one not in steps and begin <= one.get("ts", begin) <= end]
    launched = {one["args"]["correlation"] for one in inside if one.get("cat", "").endswith(("_runtime", "_driver"))}
    return [one for one in inside if one not in work] + [one for one in work if one["args"]["correlation"] in launched]


@BESIDE_TRACELENS
def test_device_timeline(path: Path, tmp_path: Path) -> None:
    """TraceLens knows no steps: it begins with the first piece of the work and ends with the last."""
    name = path.name.removesuffix(".gpu_timeline.csv")
    document = json.loads(gzip.decompress((SHARED / "traces" / f"{name}.json.gz").read_bytes()))
    document["traceEvents"] = of_the_step(document["traceEvents"])
    without_steps = tmp_path / "trace.json"
    without_steps.write_text(json.dumps(document))
    anatomy = summary_of_trace(without_steps).anatomy
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


COUNTED = ("aten::mm", "aten::addmm", "aten::bmm", "aten::_scaled_dot_product_flash_attention")


def test_costs_of_operators() -> None:
    rows = []
    for path in sorted((SHARED / "reference" / "tracelens").glob("*.csv")):
        with path.open(newline="") as file:
            rows += [row for row in csv.DictReader(file) if row.get("name") in COUNTED and row["GFLOPS"]]
    assert len(rows) > 30
    for row in rows:
        dims, types, constants = (
            json.dumps(ast.literal_eval(row[key])).encode() for key in ("Input Dims", "Input type", "Concrete Inputs")
        )
        signature = parse_signature((dims, types, b"", constants, ""))
        assert signature is not None
        found = cost(row["name"], signature)
        assert found is not None, row
        theirs = round(float(row["GFLOPS"]) * 1e9)
        if row["name"] == "aten::addmm":
            # it counts the bias: one add per output element
            theirs -= signature.tensor(1).shape[0] * signature.tensor(2).shape[1]
        assert (found.flops if found.causal_flops is None else found.causal_flops) == theirs, row
        moved = found.read_bytes + found.written_bytes
        if "attention" in row["name"]:
            # it leaves out the log-sum-exp, which float32 makes 4 bytes a row and head
            b, h, s, _ = signature.tensor(0).shape
            moved -= 4 * b * h * s
        assert moved / 2**20 == pytest.approx(float(row["Data Moved (MB)"])), row
