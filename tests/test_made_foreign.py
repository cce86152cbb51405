"""Captures of the profiler alone, made into traces of an accelerator: phases inferred, no record of ours."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from opanatomy.attribution.attribute import attribute
from opanatomy.capture.device.environment import _float32
from opanatomy.pipeline import analyze_trace, with_ceilings
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import PHASES, Phase
from opanatomy.trace.read import read_trace
from tests.made_events import H100, MI300X, Accelerator
from tests.made_trace import Options, made


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of a perceptron with SGD, as a user's own script profiles them."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    inputs, labels = torch.randn(8, 16), torch.randint(0, 4, (8,))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for step in range(2):
            with record_function(f"ProfilerStep#{step}"):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
    path = tmp_path_factory.mktemp("captured") / "trace.json"
    profiler.export_chrome_trace(str(path))
    return path


def steps_of(content: dict[str, Any]) -> dict[int, int]:
    """The step of each operator, by its external id."""
    events = [event for event in content["traceEvents"] if event["ph"] == "X"]
    spans = {
        int(event["name"].removeprefix("ProfilerStep#")): (event["ts"], event["ts"] + event["dur"])
        for event in events if event["name"].startswith("ProfilerStep#")
    }  # fmt: skip
    return {
        event["args"]["External id"]: step
        for event in events if event["cat"] == "cpu_op"
        for step, (begin, end) in spans.items() if begin <= event["ts"] <= end
    }  # fmt: skip


def flops_of_a_step(anatomy: Anatomy) -> dict[Any, float]:
    count = anatomy.step.count
    return {(row.operator, row.signature, row.phase): row.flops / count for row in anatomy.operators if row.flops}


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(), parse_float=Decimal)  # type: ignore[no-any-return]


@pytest.mark.parametrize("device", [H100, MI300X], ids=lambda device: device.name)
@pytest.mark.parametrize("device_thread", [False, True])
def test_a_foreign_training_step(device: Accelerator, device_thread: bool, captured: Path, tmp_path: Path) -> None:
    trace = made(read(captured), Options(accelerator=device, device_thread=device_thread, foreign=True))
    anatomy = analyze_trace(trace.write(tmp_path / "trace.json.gz"))
    source = read_trace(captured)
    host = attribute(source.names, source.host, source.launches, source.work, source.flows).host
    phase = dict(zip(host.external_id.tolist(), (PHASES[code] for code in host.phase.tolist()), strict=True))
    # Of two steps the first is cold: where it waits for long it does not count.
    counted = {row.number for row in anatomy.step.steps if row.set_aside is None}
    assert counted
    step = steps_of(read(captured))
    expected = Counter[Any]()
    for item in trace.work_items:
        if step[item.external_id] in counted:
            expected[item.operator_class, phase[item.external_id]] += item.duration_ns
    assert {(row.operator_class, row.phase): row.time_ns for row in anatomy.classes} == expected
    assert {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER} <= {row.phase for row in anatomy.classes}
    assert flops_of_a_step(anatomy) == flops_of_a_step(analyze_trace(captured))
    assert anatomy.environment.device == device.name
    assert anatomy.warnings == ()
    assert with_ceilings(anatomy).device.mfu_dtype == "float32"


def test_the_settings_of_float32_products_are_recorded() -> None:
    """torch's defaults: convolutions may use tf32, matrix products may not."""
    matmul, convolution = torch.backends.cuda.matmul, getattr(torch.backends.cudnn, "conv", None)
    before = matmul.fp32_precision
    try:
        assert (_float32(matmul), _float32(convolution)) == ("ieee", "tf32")
        matmul.fp32_precision = "tf32"
        assert _float32(matmul) == "tf32"
        assert _float32(None) is None
    finally:
        matmul.fp32_precision = before
