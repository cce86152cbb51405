"""Sparse matrices cost what they store, never their dense shape; what nobody observed is unknown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import opanatomy
from opanatomy.attribution.attribute import attribute
from opanatomy.attribution.calls import trace_calls_of
from opanatomy.cost import registry
from opanatomy.cost.registry import cost, formula
from opanatomy.records.anatomy import OperatorRow
from opanatomy.records.signature import Cost, Signature, Stored, Tensor
from opanatomy.trace.read import read_trace
from tests.handmade import HandMade

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")

m, k, n, nnz = 6, 4, 5, 3
WEIGHTS = torch.zeros(m, k).index_put((torch.tensor([0, 2, 5]), torch.tensor([1, 1, 3])), torch.tensor([1.0, 2.0, 3.0]))
COO_BYTES = nnz * 4 + 2 * nnz * 8
CSR_BYTES = nnz * 4 + (nnz + m + 1) * 8
DENSE = 4 * k * n


def sparse(stored: int | None, *shape: int) -> Tensor:
    kept = Stored() if stored is None else Stored(stored, 16 * stored)
    return Tensor(shape, "float32", None, kept)


def dense(*shape: int) -> Tensor:
    return Tensor(shape, "float32")


def of(operator: str, *arguments: Any) -> Cost | None:
    return cost(operator, Signature(arguments))


def rows_of(run: Callable[..., Any], *inputs: torch.Tensor, inference: bool = False) -> list[OperatorRow]:
    """The operators of a step that runs a function."""

    class Run(torch.nn.Module):
        def forward(self, *given: torch.Tensor) -> Any:
            return run(*given)

    return list(opanatomy.profile(Run(), inputs, inference=inference).operators)


def products(rows: list[OperatorRow]) -> list[tuple[str, str, int | None, int | None, int | None]]:
    """(operator, phase, FLOPs, bytes read, bytes written) of the contractions that are calls."""
    return sorted(
        (row.operator, str(row.phase), row.flops, row.read_bytes, row.written_bytes)
        for row in rows
        if row.operator_class == "tensor_contraction" and row.part_of is None
    )


# --------------------------------------------------------------------------------------------------------- what ran


def test_a_product_with_coo() -> None:
    # the dense shape would be 2 * 6 * 4 * 5 = 240 FLOPs
    rows = rows_of(lambda a, x: a @ x, WEIGHTS.to_sparse(), torch.rand(k, n), inference=True)
    assert products(rows) == [("aten::mm", "forward", 2 * nnz * n, COO_BYTES + DENSE, 4 * m * n)]


def test_a_sparse_product_forward_and_backward() -> None:
    weight, x = WEIGHTS.to_sparse().requires_grad_(), torch.rand(k, n, requires_grad=True)
    rows = rows_of(lambda a, y: torch.sparse.mm(a, y), weight, x)
    forward = [row for row in products(rows) if row[1] == "forward"]
    # beta is 0: the zeros that it is added to are not read
    assert forward == [("aten::_sparse_addmm", "forward", 2 * nnz * n, COO_BYTES + DENSE, 4 * m * n)]
    # the gradient of the weight is a dense product that is masked afterwards; that of x is sparse again
    backward = [row[2] for row in products(rows) if row[1] == "backward"]
    assert sorted(backward) == [2 * nnz * n, 2 * m * n * k]


def test_a_product_with_csr_that_is_added() -> None:
    # torch calls the overload with `out` inside, whose arguments are one more
    added, x = torch.rand(m, n), torch.rand(k, n)
    rows = rows_of(lambda c, a, y: torch.addmm(c, a, y), added, WEIGHTS.to_sparse_csr(), x, inference=True)
    assert products(rows) == [("aten::addmm", "forward", 2 * nnz * n, CSR_BYTES + DENSE + 4 * m * n, 4 * m * n)]


def test_a_block_counts_all_of_its_elements() -> None:
    blocks = torch.block_diag(torch.ones(2, 2), torch.ones(2, 2)).to_sparse_bsr((2, 2))
    rows = rows_of(lambda a, x: a @ x, blocks, torch.rand(k, n), inference=True)
    (row,) = products(rows)
    assert row[2:4] == (2 * 8 * n, 8 * 4 + (3 + 2) * 8 + DENSE)


def test_a_sampled_product() -> None:
    pattern = WEIGHTS.to_sparse_csr()
    rows = rows_of(
        lambda c, a, b: torch.sparse.sampled_addmm(c, a, b).values(),
        pattern, torch.rand(m, 7), torch.rand(7, k), inference=True,
    )  # fmt: skip
    (row,) = products(rows)
    assert row[2:] == (2 * nnz * 7, CSR_BYTES + 4 * 7 * (m + k), CSR_BYTES)


def test_two_sparse_matrices_are_unknown_and_say_so() -> None:
    pair = WEIGHTS.to_sparse_csr(), WEIGHTS.T.contiguous().to_sparse_csr()
    rows = rows_of(lambda a, b: (a @ b).to_dense(), *pair, inference=True)
    (row,) = [row for row in rows if row.operator == "aten::mm" and row.part_of is None]
    assert (row.flops, row.read_bytes, row.written_bytes) == (None, None, None)
    assert row.signature == "float32[6,4] sparse 3, float32[4,6] sparse 3"


# ------------------------------------------------------------------------------------------------ traces from elsewhere


def test_a_trace_that_shows_no_strides_has_no_dense_cost(tmp_path: Path) -> None:
    made = HandMade()
    for start, strides in ((0, [[], [n, 1]]), (200, [[k, 1], [n, 1]])):
        made.host("aten::mm", start, 100, shapes=[[m, k], [k, n]], types=["float", "float"])
        made.events[-1]["args"]["Input Strides"] = strides
    trace = read_trace(made.write(tmp_path / "t.json"))
    calls, _ = trace_calls_of(trace, attribute(trace.names, trace.host, trace.launches, trace.work))
    assert [calls.costs.flops_at(row) for row in range(len(trace.host.name))] == [None, 2 * m * k * n]


def _compressed(made: HandMade, start: float, vectors: dict[str, tuple[int, str]]) -> None:
    """A product with a compressed matrix as torch records it: its vectors are taken out below."""
    made.host("aten::addmm", start, 100, shapes=[[m, n], [m, k], [k, n]], types=["float"] * 3)
    made.events[-1]["args"]["Input Strides"] = [[n, 1], [], [n, 1]]
    for place, (name, (size, kind)) in enumerate(vectors.items()):
        made.host(f"aten::{name}", start + 10 + 10 * place, 8, shapes=[[m, k]], types=["float"])
        made.events[-1]["args"]["Input Strides"] = [[]]
        made.host("aten::alias", start + 11 + 10 * place, 5, shapes=[[size]], types=[kind])
        made.events[-1]["args"]["Input Strides"] = [[1]]


def test_a_trace_shows_what_a_compressed_matrix_stores(tmp_path: Path) -> None:
    indices = {"crow_indices": (m + 1, "long int"), "col_indices": (nnz, "long int")}
    made = HandMade()
    _compressed(made, 0, {**indices, "values": (nnz, "float")})
    # the indices alone do not say how large the blocks are
    _compressed(made, 200, indices)
    trace = read_trace(made.write(tmp_path / "t.json"))
    calls, _ = trace_calls_of(trace, attribute(trace.names, trace.host, trace.launches, trace.work))
    costs = calls.costs
    rows = costs.row[[row for row, name in enumerate(calls.host.name.tolist()) if trace.names[name] == "aten::addmm"]]
    figures = np.stack((costs.flops[rows], costs.read_bytes[rows], costs.written_bytes[rows]), axis=1).tolist()
    assert figures == [[2 * nnz * n, CSR_BYTES + DENSE + 4 * m * n, 4 * m * n], [-1, -1, -1]]


def test_what_a_trace_of_torch_shows_is_what_a_capture_observes(tmp_path: Path) -> None:
    from torch.profiler import profile, record_function

    weight, x, added = WEIGHTS.to_sparse_csr(), torch.rand(k, n), torch.rand(m, n)
    with profile(record_shapes=True) as profiler, record_function("ProfilerStep#0"):
        torch.addmm(added, weight, x)
    profiler.export_chrome_trace(str(tmp_path / "t.json"))
    rows = list(opanatomy.analyze(tmp_path / "t.json").operators)
    assert products(rows) == [("aten::addmm", "forward", 2 * nnz * n, CSR_BYTES + DENSE + 4 * m * n, 4 * m * n)]


def test_a_number_and_an_empty_shape_have_no_strides_either() -> None:
    from opanatomy.trace.signatures import parse_signature

    found = parse_signature((b"[[],[3]]", b'["float","float"]', b"[[],[1]]", b'["",""]', ""))
    assert found is not None
    assert [tensor.sparse for tensor in found.tensors()] == [None, None]
    without = parse_signature((b"[[3,4]]", b'["float"]', b"", b'[""]', ""))
    assert without is not None
    assert without.tensor(0).sparse is None


def test_what_is_not_observed_is_unknown() -> None:
    for name in ("mm", "matmul", "_sparse_mm"):
        assert of(f"aten::{name}", sparse(None, m, k), dense(k, n)) is None
    assert of("aten::relu", sparse(None, m, k)) is None
    assert of("aten::add", sparse(nnz, m, k), sparse(nnz, m, k), 1) is None
    assert of("aten::_softmax", sparse(nnz, m, k), 1, False) is None
    # a view moves nothing, whatever is stored
    assert of("aten::transpose", sparse(None, m, k), 0, 1) == Cost(flops=0, read_bytes=0, written_bytes=0)
    # oneDNN's own layout has no strides and is dense
    assert of("aten::mkldnn_linear", dense(m, k), Tensor((n, k), "float32", None), None) is not None


@pytest.fixture(autouse=True)
def _registry_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FORMULAS", "_SPARSE"):
        monkeypatch.setattr(registry, name, getattr(registry, name).copy())


def test_a_formula_of_the_users_sees_sparse_tensors() -> None:
    @formula("aten::spmm_of_mine")
    def mine(signature: Signature) -> Cost:
        stored = signature.tensor(0).sparse
        return Cost(flops=2 * (stored.elements or 0) if stored else 0, read_bytes=1, written_bytes=1)

    found = of("aten::spmm_of_mine", sparse(nnz, m, k))
    assert found is not None
    assert found.flops == 2 * nnz


# ------------------------------------------------------------------------------------------------------ worked examples

s_bytes = nnz * (4 + 16)
EXAMPLES: list[tuple[str, tuple[Any, ...], int, int, int]] = [
    ("mm", (dense(n, m), sparse(nnz, m, k)), 2 * n * nnz, s_bytes + 4 * n * m, 4 * n * k),
    ("mv", (sparse(nnz, m, k), dense(k)), 2 * nnz, s_bytes + 4 * k, 4 * m),
    ("bmm", (sparse(nnz, 2, m, k), dense(2, k, n)), 2 * nnz * n, s_bytes + 4 * 2 * k * n, 4 * 2 * m * n),
    (
        "addmm", (dense(m, n), sparse(nnz, m, k), dense(k, n), 1, 1),
        2 * nnz * n, s_bytes + 4 * (m * n + k * n), 4 * m * n,
    ),
    ("_sparse_mm_reduce_impl", (sparse(nnz, m, k), dense(k, n), "mean"), 2 * nnz * n, s_bytes + DENSE, 4 * m * n),
    (
        "_sparse_mm_reduce_impl_backward",
        (sparse(nnz, m, k), dense(m, n), dense(k, n), "sum", None, (True, True)),
        4 * nnz * n, s_bytes + 4 * m * n + DENSE, s_bytes + DENSE,
    ),
    ("_sparse_softmax", (sparse(nnz, m, k), 1, False), 4 * nnz, s_bytes, s_bytes),
    ("_to_dense", (sparse(nnz, m, k), None, None), 0, s_bytes, 4 * m * k),
    ("sparse_mask", (dense(m, k), sparse(nnz, m, k)), 0, s_bytes, s_bytes),
    ("tanh", (sparse(nnz, m, k),), nnz, s_bytes, s_bytes),
    # two of four: half of the elements are stored
    (
        "_sparse_semi_structured_linear", (dense(m, 8), dense(n, 4), dense(n, 1)),
        2 * m * n * 4, 4 * (m * 8 + n * 4 + n), 4 * m * n,
    ),
    (
        "_sparse_semi_structured_mm", (dense(m, 4), dense(m, 1), dense(8, n)),
        2 * m * n * 4, 4 * (m * 4 + m + 8 * n), 4 * m * n,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "flops", "read", "written"), EXAMPLES)
def test_worked_example(name: str, arguments: tuple[Any, ...], flops: int, read: int, written: int) -> None:
    found = of(f"aten::{name}", *arguments)
    assert found is not None
    assert (found.flops, found.read_bytes, found.written_bytes) == (flops, read, written)


def test_the_gradient_of_a_largest_value_is_other_work() -> None:
    arguments = (sparse(nnz, m, k), dense(m, n), dense(k, n), "amax", dense(m, n), (True, True))
    assert of("aten::_sparse_mm_reduce_impl_backward", *arguments) is None
