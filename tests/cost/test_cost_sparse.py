"""Sparse matrices cost what they store, never their dense shape; what nobody observed is unknown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import opanatomy
from opanatomy.cost.registry import cost
from opanatomy.records.signature import Cost, Signature, Stored, Tensor
from opanatomy.records.work import OperatorRow
from tests.support.made_trace import TraceBuilder

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")

m, k, n, nnz = 6, 4, 5, 3
WEIGHTS = torch.zeros(m, k).index_put((torch.tensor([0, 2, 5]), torch.tensor([1, 1, 3])), torch.tensor([1.0, 2.0, 3.0]))
COO_BYTES = nnz * 4 + 2 * nnz * 8
CSR_BYTES = nnz * 4 + (nnz + m + 1) * 8
DENSE = 4 * k * n


def rows_of(run: Callable[..., Any], *inputs: torch.Tensor, inference: bool = False) -> list[OperatorRow]:
    """The operators of a step that runs a function."""
    module = torch.nn.Module()
    module.forward = run  # type: ignore[method-assign]
    return list(opanatomy.profile(module, inputs, inference=inference).operators)


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
        pattern,
        torch.rand(m, 7),
        torch.rand(7, k),
        inference=True,
    )
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
    made = TraceBuilder()
    for start, strides in ((0, [[], [n, 1]]), (200, [[k, 1], [n, 1]])):
        made.host("aten::mm", start, 100, shapes=[[m, k], [k, n]], types=["float", "float"])
        made.events[-1]["args"]["Input Strides"] = strides
    rows = opanatomy.analyze(made.write(tmp_path / "t.json")).operators
    assert sorted((row.flops or 0, row.flops is None) for row in rows) == [(0, True), (2 * m * k * n, False)]


def _compressed(made: TraceBuilder, start: float, vectors: dict[str, tuple[int, str]]) -> None:
    """A product with a compressed matrix as torch records it: its vectors are taken out below."""
    made.host("aten::addmm", start, 100, shapes=[[m, n], [m, k], [k, n]], types=["float"] * 3)
    made.events[-1]["args"]["Input Strides"] = [[n, 1], [], [n, 1]]
    for index, (name, (size, kind)) in enumerate(vectors.items()):
        made.host(f"aten::{name}", start + 10 + 10 * index, 8, shapes=[[m, k]], types=["float"])
        made.events[-1]["args"]["Input Strides"] = [[]]
        made.host("aten::alias", start + 11 + 10 * index, 5, shapes=[[size]], types=[kind])
        made.events[-1]["args"]["Input Strides"] = [[1]]


def test_a_trace_shows_what_a_compressed_matrix_stores(tmp_path: Path) -> None:
    indices = {"crow_indices": (m + 1, "long int"), "col_indices": (nnz, "long int")}
    made = TraceBuilder()
    _compressed(made, 0, {**indices, "values": (nnz, "float")})
    # the indices alone do not say how large the blocks are
    _compressed(made, 200, indices)
    rows = opanatomy.analyze(made.write(tmp_path / "t.json")).operators
    assert {(row.flops, row.read_bytes, row.written_bytes) for row in rows if row.operator == "aten::addmm"} == {
        (2 * nnz * n, CSR_BYTES + DENSE + 4 * m * n, 4 * m * n),
        (None, None, None),
    }


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
    unseen = Tensor((m, k), "float32", None, Stored())
    for name in ("mm", "matmul", "_sparse_mm"):
        assert cost(f"aten::{name}", Signature((unseen, Tensor((k, n), "float32")))) is None
    # a view moves nothing, whatever is stored
    assert cost("aten::transpose", Signature((unseen, 0, 1))) == Cost(flops=0, read_bytes=0, written_bytes=0)
