"""Arguments that Kineto drops: observed in a step of their own, put into the signatures of the calls they are of."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import opanatomy
from opanatomy.capture.run.observer import observing
from opanatomy.cost.registry import cost
from opanatomy.records.signature import Signature, Stored, Tensor
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import METADATA_KEY, Capture, Environment, ObservedCall, Workload
from opanatomy.trace.read import Trace, read_trace
from tests.handmade import HandMade

X = {"shape": [8, 4], "dtype": "float32", "strides": [4, 1]}


def index(length: int) -> ObservedCall:
    rows = {"shape": [length], "dtype": "int64", "strides": [1]}
    return ObservedCall(operator="aten::index", arguments=json.dumps([X, [rows]]))


def read_with(observed: tuple[ObservedCall, ...], calls: int, folder: Path, name: str = "aten::index") -> Trace:
    made = HandMade()
    made.metadata[METADATA_KEY] = msgspec.to_builtins(
        Capture(version="0", command="", created="", environment=Environment(), workload=Workload(), observed=observed)
    )
    for number in range(calls):
        made.host(name, 100 * number, 50, shapes=[[8, 4], []], types=["float", ""])
    return read_trace(made.write(folder / "t.json"))


def told(trace: Trace) -> list[Signature | None]:
    return [trace.signatures[number] for number in trace.host.signature.tolist()]


def lengths(trace: Trace) -> list[int | None]:
    found = []
    for signature in told(trace):
        assert signature is not None
        indices = signature.get(1)
        found.append(indices[0].shape[0] if isinstance(indices, tuple) else None)
    return found


def test_like_calls_take_the_same_arguments_however_many_there_are(tmp_path: Path) -> None:
    trace = read_with((index(5), index(5)), 3, tmp_path)
    assert lengths(trace) == [5, 5, 5]
    found = cost("aten::index", told(trace)[0])
    assert found is not None
    assert found.written_bytes == 5 * 4 * 4


def test_unlike_calls_are_matched_in_their_order_in_every_step(tmp_path: Path) -> None:
    assert lengths(read_with((index(5), index(7)), 4, tmp_path)) == [5, 7, 5, 7]


def test_nothing_is_guessed_where_the_numbers_differ(tmp_path: Path) -> None:
    assert lengths(read_with((index(5), index(7)), 3, tmp_path)) == [None, None, None]


def test_the_operator_that_does_the_work_takes_the_callers_arguments(tmp_path: Path) -> None:
    call = ObservedCall(operator="aten::index_put_", arguments=index(5).arguments)
    assert lengths(read_with((call,), 1, tmp_path, "aten::_index_put_impl_")) == [5]


def test_other_tensors_are_another_call(tmp_path: Path) -> None:
    other = ObservedCall(
        operator="aten::index", arguments=json.dumps([{**X, "shape": [9, 4]}, [{"shape": [5], "dtype": "int64"}]])
    )
    assert lengths(read_with((other,), 1, tmp_path)) == [None]


def test_the_observer_sees_indices_and_strings_and_only_those() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(6, 4, requires_grad=True)
    with observing(lambda: Phase.FORWARD) as observation:
        rows = x[torch.tensor([0, 2, 2])]
        torch.nn.functional.gelu(rows @ rows.T, approximate="tanh").sum().backward()
    calls = observation.incomplete
    names = [call.operator for call in calls]
    assert names[:2] == ["aten::index", "aten::gelu"]
    assert set(names) >= {"aten::gelu_backward", "aten::index_put"}
    assert "aten::mm" not in names
    arguments = {call.operator: json.loads(call.arguments) for call in calls}
    assert arguments["aten::gelu"][1] == "tanh"
    assert arguments["aten::index"][1] == [{"shape": [3], "dtype": "int64", "strides": [1]}]


def test_gelu_is_counted_in_the_form_that_ran() -> None:
    x = Tensor((4, 4), "float32", (4, 1))
    exact, tanh = (cost("aten::gelu", Signature((x, form))) for form in ("none", "tanh"))
    assert exact is not None
    assert tanh is not None
    assert tanh.flops == 10 * 16
    assert exact.flops == 5 * 16


# ------------------------------------------------------------------------------ sparse tensors, packed weights, others


def test_the_observer_sees_what_a_sparse_tensor_stores() -> None:
    torch = pytest.importorskip("torch")
    x = torch.eye(4).to_sparse()
    with observing(lambda: Phase.FORWARD) as observation:
        x @ torch.ones(4, 2)
    (call,) = [call for call in observation.incomplete if call.operator == "aten::mm"]
    assert json.loads(call.arguments)[0] == {
        "shape": [4, 4], "dtype": "float32", "strides": None, "elements": 4, "index_bytes": 2 * 4 * 8,
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*deprecated:UserWarning")
def test_a_quantized_layer_is_costed_by_its_packed_weight() -> None:
    torch = pytest.importorskip("torch")
    plain = torch.nn.Sequential(torch.nn.Linear(16, 8))
    layer = torch.ao.quantization.quantize_dynamic(plain, {torch.nn.Linear})
    rows = opanatomy.profile(layer, torch.rand(3, 16), inference=True).operators
    (row,) = [row for row in rows if row.operator == "quantized::linear_dynamic"]
    assert row.signature.startswith("float32[3,16], [qint8[8,16], float32[8]]")
    assert (row.flops, row.read_bytes, row.written_bytes) == (2 * 3 * 8 * 16, 4 * 48 + 128 + 4 * 8, 4 * 24)


def test_a_ragged_tensor_breaks_no_observation() -> None:
    torch = pytest.importorskip("torch")
    ragged = torch.nested.nested_tensor([torch.rand(2, 8), torch.rand(3, 8)], layout=torch.jagged)
    with observing(lambda: Phase.FORWARD) as observation:
        torch.nn.functional.gelu(ragged)
    calls = [call.operator for call in observation.incomplete]
    assert calls == ["aten::gelu"] * len(calls)
    assert calls


def test_an_out_tensor_behind_the_arguments_is_the_same_call(tmp_path: Path) -> None:
    made = HandMade()
    kept = {"shape": [8, 4], "dtype": "float32", "strides": None, "elements": 5, "index_bytes": 80}
    seen = ObservedCall(operator="aten::mm", arguments=json.dumps([kept, {"shape": [4, 2], "dtype": "float32"}]))
    made.metadata[METADATA_KEY] = msgspec.to_builtins(
        Capture(version="0", command="", created="", environment=Environment(), workload=Workload(), observed=(seen,))
    )
    made.host("aten::mm", 0, 50, shapes=[[8, 4], [4, 2], [0]], types=["float", "float", "float"])
    made.events[-1]["args"]["Input Strides"] = [[], [2, 1], [1]]
    (signature,) = told(read_trace(made.write(tmp_path / "t.json")))
    assert signature is not None
    assert signature.tensor(0).sparse == Stored(5, 80)
    found = cost("aten::mm", signature)
    assert found is not None
    assert found.flops == 2 * 5 * 2


@pytest.mark.parametrize("elements", [-1, "5", None, 1.5])
def test_a_count_that_cannot_be_is_not_believed(tmp_path: Path, elements: object) -> None:
    kept = {"shape": [8, 4], "dtype": "float32", "strides": None, "elements": elements, "index_bytes": 80}
    call = ObservedCall(operator="aten::index", arguments=json.dumps([kept, [{"shape": [5], "dtype": "int64"}]]))
    assert lengths(read_with((call,), 1, tmp_path)) == [None]


def test_a_ragged_batch_costs_its_rows_forward_and_backward() -> None:
    torch = pytest.importorskip("torch")

    class Ragged(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 4)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            batch = torch.nested.nested_tensor_from_jagged(rows, torch.tensor([0, 2, 6]))
            return self.layer(batch).values()

    anatomy = opanatomy.profile(Ragged(), torch.rand(6, 8, requires_grad=True))
    spent: dict[str, int] = {}
    for row in anatomy.operators:
        if row.operator_class == "tensor_contraction":
            assert row.flops is not None, row
            spent[str(row.phase)] = spent.get(str(row.phase), 0) + row.flops
    assert spent == {"forward": 2 * 6 * 8 * 4, "backward": 2 * (2 * 6 * 8 * 4)}
