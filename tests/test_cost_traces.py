"""Costs from what a profiler records: Kineto's own argument texts, and the figures of another tool on real traces."""

from __future__ import annotations

import ast
import csv
import json
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from opanatomy.cost.registry import cost
from opanatomy.records.signature import Cost, Signature
from opanatomy.trace.signatures import parse_signature
from tests.observer import Observer

REFERENCE = Path(__file__).parents[2] / "shared" / "reference" / "tracelens"
torch.set_num_threads(1)


def _signature(args: dict[str, Any]) -> Signature | None:
    """A signature from the `args` of a trace event."""
    keys = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
    dims, types, strides, constants = (json.dumps(args[key]).encode() if key in args else b"" for key in keys)
    return parse_signature((dims, types, strides, constants, ""))


def _recorded(run: Callable[[], Any], path: Path) -> dict[str, list[Cost | None]]:
    """Costs of every operator that Kineto records, by name."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        run()
    profiler.export_chrome_trace(str(path))
    found: dict[str, list[Cost | None]] = defaultdict(list)
    for event in json.loads(path.read_text())["traceEvents"]:
        if event.get("cat") == "cpu_op":
            signature = _signature(event["args"])
            found[event["name"]].append(None if signature is None else cost(event["name"], signature))
    return found


def _step() -> None:
    torch.manual_seed(0)
    x = torch.rand(4, 6, requires_grad=True)
    y = F.layer_norm(
        F.linear(x, torch.rand(6, 6, requires_grad=True), torch.rand(6)), (6,), torch.rand(6), torch.rand(6)
    )
    y = F.dropout(F.relu(y) * 2 + 1.5, 0.1) / torch.tensor(3.0)
    y = torch.cat([y, F.softmax(y.to(torch.bfloat16), -1)]).masked_fill(torch.ones(8, 6) > 2, 0.5)
    y = y + F.embedding(torch.arange(8) % 3, torch.rand(3, 6, requires_grad=True))
    y = y + F.conv1d(y[None], torch.rand(8, 8, 3, requires_grad=True), padding=1)[0].mean(0, keepdim=True)
    F.cross_entropy(y, torch.zeros(8, dtype=torch.int64)).backward()


def test_kineto_records_what_a_formula_needs(tmp_path: Path) -> None:
    with Observer() as observer:
        _step()
    recorded = _recorded(_step, tmp_path / "trace.json")
    # gradients are added in place when no dispatch mode watches; a trace does not say the data type of a list
    seen = [call for call in observer.calls if call.operator not in ("aten::add", "aten::cat")]
    assert len(seen) > 60
    for call in seen:
        want = cost(call.operator, call.signature)
        assert want is not None, call
        assert want in recorded[call.operator], f"{call.operator}({call.signature})"


def _rows(names: tuple[str, ...]) -> list[dict[str, str]]:
    rows = []
    for path in sorted(REFERENCE.glob("*.csv")):
        if "timeline" not in path.name:
            with path.open() as lines:
                rows += [row for row in csv.DictReader(lines) if row["name"] in names and row["GFLOPS"]]
    return rows


@pytest.mark.skipif(not REFERENCE.exists(), reason="shared/reference is not here")
def test_figures_of_another_tool_on_real_traces() -> None:
    rows = _rows(("aten::mm", "aten::addmm", "aten::bmm", "aten::_scaled_dot_product_flash_attention"))
    assert len(rows) > 30
    for row in rows:
        keys = ("Input Dims", "Input type", "Concrete Inputs")
        signature = _signature({key: ast.literal_eval(row[key]) for key in keys})
        assert signature is not None
        found = cost(row["name"], signature)
        assert found is not None, row
        theirs = round(float(row["GFLOPS"]) * 1e9)
        if row["name"] == "aten::addmm":
            # it counts the bias: one add per output element
            theirs -= signature.tensor(1).shape[0] * signature.tensor(2).shape[1]
        ours = found.flops if found.causal_flops is None else found.causal_flops
        assert ours == theirs, row
        moved = found.read_bytes + found.written_bytes
        if "attention" in row["name"]:
            # it leaves out the log-sum-exp, which float32 makes 4 bytes a row and head
            b, h, s, _ = signature.tensor(0).shape
            moved -= 4 * b * h * s
        assert moved / 2**20 == pytest.approx(float(row["Data Moved (MB)"])), row
