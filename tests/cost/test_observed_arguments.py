"""Arguments that Kineto drops: observed in a step of their own, put into the signatures of the calls they are of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import opanatomy
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import METADATA_KEY, Capture, Environment, ObservedCall, Workload
from opanatomy.results import Anatomy
from tests.support.made_trace import TraceBuilder

X = {"shape": [8, 4], "dtype": "float32", "strides": [4, 1]}
KEPT = {"shape": [8, 4], "dtype": "float32", "strides": None, "elements": 5, "index_bytes": 80}


def index(length: int, x: Any = X, operator: str = "aten::index") -> ObservedCall:
    rows = {"shape": [length], "dtype": "int64", "strides": [1]}
    return ObservedCall(operator=operator, arguments=json.dumps([x, [rows]]))


def trace_with(*observed: ObservedCall) -> TraceBuilder:
    made = TraceBuilder()
    made.metadata[METADATA_KEY] = msgspec.to_builtins(
        Capture(version="0", command="", created="", environment=Environment(), workload=Workload(), observed=observed)
    )
    return made


@pytest.mark.parametrize(
    ("observed", "calls", "name", "lengths"),
    [
        ((index(5), index(5)), 3, "aten::index", {5: 3}),
        ((index(5), index(7)), 4, "aten::index", {5: 2, 7: 2}),  # in their order in every step
        ((index(5), index(7)), 3, "aten::index", {None: 3}),  # nothing is guessed
        ((index(5, operator="aten::index_put_"),), 1, "aten::_index_put_impl_", {5: 1}),
        ((index(5, {**X, "shape": [9, 4]}),), 1, "aten::index", {None: 1}),  # another call
        *(((index(5, {**KEPT, "elements": bad}),), 1, "aten::index", {None: 1}) for bad in (-1, "5", None, 1.5)),
    ],
)
def test_arguments_go_to_the_calls_they_are_of(
    observed: tuple[ObservedCall, ...], calls: int, name: str, lengths: dict[int | None, int], tmp_path: Path
) -> None:
    made = trace_with(*observed)
    for number in range(calls):
        made.host(name, 100 * number, 50, shapes=[[8, 4], []], types=["float", ""])
    rows = opanatomy.analyze(made.write(tmp_path / "t.json")).operators
    told = {
        length: sum(row.calls for row in rows if f"int64[{length}]" in row.signature) for length in lengths if length
    }
    assert sum(row.calls for row in rows) == calls
    assert told == {length: count for length, count in lengths.items() if length}
    for row in rows:
        if name == "aten::index":
            assert (row.written_bytes is None) == (None in lengths)
            assert row.written_bytes is None or row.written_bytes % (4 * 4) == 0


def test_an_out_tensor_behind_the_arguments_is_the_same_call(tmp_path: Path) -> None:
    seen = ObservedCall(operator="aten::mm", arguments=json.dumps([KEPT, {"shape": [4, 2], "dtype": "float32"}]))
    made = trace_with(seen)
    made.host("aten::mm", 0, 50, shapes=[[8, 4], [4, 2], [0]], types=["float", "float", "float"])
    made.events[-1]["args"]["Input Strides"] = [[], [2, 1], [1]]
    (row,) = opanatomy.analyze(made.write(tmp_path / "t.json")).operators
    assert row.flops == 2 * 5 * 2  # of the stored elements


# ----------------------------------------------------------------------------------------------------- live captures


class Runs(nn.Module):
    """A parameter, and what a case does with it."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.weight, self.run = nn.Parameter(torch.rand(6, 4)), run

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.run(self.weight, *inputs)


def rows_of(anatomy: Anatomy, operator: str) -> list[Any]:
    return [row for row in anatomy.operators if row.operator == operator]


def test_indices_and_strings_are_seen() -> None:
    def run(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        rows = weight[torch.tensor([0, 2, 2])]
        return nn.functional.gelu(rows @ x, approximate="tanh").sum() + nn.functional.gelu(rows @ x).sum()

    anatomy = opanatomy.profile(Runs(run), torch.rand(4, 4))
    (row,) = rows_of(anatomy, "aten::index")
    assert "int64[3]" in row.signature
    assert row.written_bytes == 3 * 4 * 4
    # GELU is counted in the form that ran.
    assert sorted(row.flops for row in rows_of(anatomy, "aten::gelu")) == [5 * 12, 10 * 12]


def test_the_stored_elements_of_a_sparse_tensor_are_seen() -> None:
    anatomy = opanatomy.profile(Runs(lambda weight, x: x @ weight), torch.eye(6).to_sparse())
    (row,) = [row for row in rows_of(anatomy, "aten::mm") if row.phase is Phase.FORWARD]
    assert row.flops == 2 * 6 * 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*deprecated:UserWarning")
def test_a_quantized_layer_is_costed_by_its_packed_weight() -> None:
    layer = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(16, 8)), {nn.Linear})
    anatomy = opanatomy.profile(layer, torch.rand(3, 16), inference=True)
    (row,) = rows_of(anatomy, "quantized::linear_dynamic")
    assert row.signature.startswith("float32[3,16], [qint8[8,16], float32[8]]")
    assert (row.flops, row.read_bytes, row.written_bytes) == (2 * 3 * 8 * 16, 4 * 48 + 128 + 4 * 8, 4 * 24)


def test_a_ragged_batch_costs_its_rows_forward_and_backward() -> None:
    layer = nn.Linear(8, 4)

    def run(_: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        batch = torch.nested.nested_tensor_from_jagged(rows, torch.tensor([0, 2, 6]))
        return layer(batch).values()

    anatomy = opanatomy.profile(Runs(run), torch.rand(6, 8, requires_grad=True))
    spent: dict[str, int] = {}
    for row in anatomy.operators:
        if row.operator_class == "tensor_contraction":
            spent[str(row.phase)] = spent.get(str(row.phase), 0) + (row.flops or 0)
    assert spent == {"forward": 2 * 6 * 8 * 4, "backward": 2 * (2 * 6 * 8 * 4)}
