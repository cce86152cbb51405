"""The second count of benchmarks/libraries.py, against figures worked out by hand where torch's counter is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.second_count import SecondCount
from opanatomy.capture.step.stepper import Stepper
from opanatomy.records.taxonomy import Phase


class Calls(nn.Module):
    """A function of a weight and the input as a module."""

    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], *shape: int) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.randn(*shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.weight)


def counted(module: nn.Module, *inputs: Any) -> dict[Phase, int]:
    stepper = Stepper(module=module, parameters=tuple(module.parameters()), inputs=inputs, device="cpu")
    with SecondCount(stepper) as counter:
        stepper.run()
    return counter.by_phase()


def stored(count: int) -> torch.Tensor:
    """A 20 x 20 matrix with `count` elements, `count // 20` a row."""
    matrix = torch.zeros(400)
    matrix[torch.arange(count) % 20 * 20 + torch.arange(count) // 20] = 1.0
    return matrix.reshape(20, 20)


def test_a_transposed_convolution_is_its_input_times_its_kernel() -> None:
    # b h w c_in x c_out kernel^2
    forward = 2 * (2 * 8 * 8 * 4) * (4 * 4 * 4)
    found = counted(nn.ConvTranspose2d(4, 4, 4, 2, 1), torch.randn(2, 4, 8, 8))
    assert found == {Phase.FORWARD: forward, Phase.BACKWARD: forward}


def test_groups_divide_the_backward_too() -> None:
    forward = 2 * (2 * 8 * 7 * 7) * (4 * 3 * 3)
    found = counted(nn.Conv2d(8, 8, 3, groups=2), torch.randn(2, 8, 9, 9, requires_grad=True))
    assert found == {Phase.FORWARD: forward, Phase.BACKWARD: 2 * forward}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_sparse_matrix_counts_its_stored_elements(layout: str) -> None:
    matrix = stored(60).to_sparse() if layout == "coo" else stored(60).to_sparse_csr()
    found = counted(Calls(lambda x, w: matrix @ (x * w), 20, 8), torch.randn(20, 8))
    assert found == {Phase.FORWARD: 2 * 60 * 8, Phase.BACKWARD: 2 * 60 * 8}


def test_two_sparse_matrices_count_the_pairs_that_meet() -> None:
    # 3 of each row, in the first 3 columns: those 3 columns have 20 each and meet rows of 3
    matrix = stored(60).to_sparse()
    found = counted(Calls(lambda x, w: (matrix @ matrix).to_dense().sum() * w.sum() * x.sum(), 1), torch.randn(2))
    assert found == {Phase.FORWARD: 2 * 3 * 20 * 3}


def test_a_bilinear_layer_is_two_products() -> None:
    b, i, j, o = 12, 16, 10, 8
    found = counted(nn.Bilinear(i, j, o), torch.randn(b, i), torch.randn(b, j))
    assert found == {Phase.FORWARD: 2 * b * i * j * o + 2 * b * j * o, Phase.BACKWARD: 2 * b * i * j * o}


def test_recomputation_stops_before_the_product_whose_result_nobody_needs() -> None:
    first, last = nn.Linear(8, 8), nn.Linear(8, 8)

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = first, last

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(lambda y: self.last(torch.tanh(self.first(y))), x, use_reentrant=False)

    one = 2 * 4 * 8 * 8
    found = counted(Checkpointed(), torch.randn(4, 8, requires_grad=True))
    assert found == {Phase.FORWARD: 2 * one, Phase.RECOMPUTE: one, Phase.BACKWARD: 4 * one}


def test_autograd_in_a_forward_is_no_obstacle() -> None:
    def penalty(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad((x @ w).sum(), x, create_graph=True)
        return slope.square().sum()

    one = 2 * 6 * 16 * 5
    # forward: x @ w, and gradient @ w^T; backward: the weight's share of the latter
    assert counted(Calls(penalty, 16, 5), torch.randn(6, 16)) == {Phase.FORWARD: 2 * one, Phase.BACKWARD: one}
