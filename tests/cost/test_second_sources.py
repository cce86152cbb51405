"""Models of all kinds run to a report that its second sources confirm; where they cannot, it is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import opanatomy
from opanatomy.errors import GateError
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import OperatorClass, Phase

R = torch.randn
Made = tuple[nn.Module, tuple[Tensor, ...]]


class Function(nn.Module):
    """A function of its inputs and parameters as a module."""

    def __init__(self, function: Callable[..., Any], *parameters: Tensor) -> None:
        super().__init__()
        self.function, self.held = function, nn.ParameterList(map(nn.Parameter, parameters))

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*self.held, *inputs)


class First(nn.Module):
    """A module of which the first output counts; `same` passes its input three times (attention over itself)."""

    def __init__(self, module: nn.Module, *, same: bool = False) -> None:
        super().__init__()
        self.module, self.same = module, same

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = (self.module(x, x, x) if self.same else self.module(x))[0]
        return found


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return grads[0] @ w.T, x.T @ grads[0]


class Cached(nn.Module):
    """Fills a table in its first forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.table = nn.Linear(8, 8), None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = (x.abs() * 2).detach()
        return self.linear(x) + self.table


class Ragged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 2, 6]))
        return self.linear(rows).values()


class AdaptiveSoftmax(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.loss = nn.AdaptiveLogSoftmaxWithLoss(16, 40, [10, 20])

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.loss(x, torch.tensor([1, 5, 12, 15, 25, 30])).loss
        return found


def offloaded(w: Tensor, x: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return torch.tanh(x @ w) @ w


def partly_without_gradients(w: Tensor, v: Tensor, x: Tensor) -> Tensor:
    def part(a: Tensor) -> Tensor:
        with torch.no_grad():
            b = a @ w
        return (a + b) @ v

    return checkpoint(part, x, use_reentrant=False).tanh()  # type: ignore[no-any-return]


def checkpointed(part: Callable[..., Tensor], *, reentrant: bool = False) -> Callable[..., Tensor]:
    return lambda *given: checkpoint(part, *given, use_reentrant=reentrant)


def penalty(w: Tensor, x: Tensor) -> Tensor:
    gradient: Tensor = torch.autograd.grad((x @ w).tanh().sum(), x, create_graph=True)[0]
    return gradient.pow(2).sum()


def made(function: Callable[..., Any], parameters: tuple[Tensor, ...], *inputs: Tensor) -> Made:
    return Function(function, *parameters), inputs


def grad(size: tuple[int, ...]) -> Tensor:
    return torch.randn(size, requires_grad=True)


CASES: dict[str, Callable[[], Made]] = {
    "vmap": lambda: made(lambda w, x: torch.vmap(lambda a: a @ w)(x), (R(8, 8),), R(10, 4, 8)),
    "gradient penalty": lambda: made(penalty, (R(8, 8),), grad((4, 8))),
    "custom function": lambda: made(lambda w, x: Product.apply(x, w), (R(8, 8),), R(4, 8)),
    "lstm": lambda: (First(nn.LSTM(8, 8, 2, bidirectional=True)), (R(5, 3, 8),)),
    "attention": lambda: (First(nn.MultiheadAttention(16, 4, batch_first=True), same=True), (R(2, 5, 16),)),
    "encoder layer": lambda: (nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), (R(2, 5, 16),)),
    "bilinear": lambda: (nn.Bilinear(6, 5, 4), (grad((3, 6)), grad((3, 5)))),
    "cdist": lambda: made(lambda w, x: torch.cdist(x, w), (R(30, 8),), R(40, 8)),
    "batch norm": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(True), nn.MaxPool2d(2)), (R(2, 3, 10, 10),),
    ),
    "transposed 1d": lambda: (nn.ConvTranspose1d(8, 6, 3), (R(2, 8, 10),)),
    "checkpoint": lambda: made(checkpointed(lambda w, v, x: torch.tanh(x @ w) @ v), (R(8, 8), R(8, 8)), grad((4, 8))),
    "checkpoint that ends in a map": lambda: made(
        checkpointed(lambda w, v, x: (x @ w).tanh() * v), (R(8, 8), R(8)), grad((4, 8))
    ),
    "reentrant checkpoint": lambda: made(
        checkpointed(lambda w, v, x: torch.tanh(x @ w) @ v, reentrant=True), (R(8, 8), R(8, 8)), grad((4, 8))
    ),
    "checkpoint partly without gradients": lambda: made(partly_without_gradients, (R(8, 8), R(8, 8)), grad((4, 8))),
    "offloading": lambda: made(offloaded, (R(8, 8),), grad((4, 8))),
    "compressed product": lambda: made(lambda w, x: x @ w, (R(8, 6),), torch.eye(8).to_sparse_csr()),
    "ragged": lambda: (Ragged(), (grad((6, 8)),)),
    "indices": lambda: made(lambda w, x: x[x > 0].sum() * w.sum() + torch.where(x > 0)[0].sum(), (R(8),), R(4, 8)),
    "adaptive softmax": lambda: (AdaptiveSoftmax(), (R(6, 16),)),
    "table of the first step": lambda: (Cached(), (R(4, 8),)),
}  # fmt: skip


def profiled(make: Callable[[], Made], **options: Any) -> Anatomy:
    torch.manual_seed(0)
    module, inputs = make()
    return opanatomy.profile(module, inputs, **options)


def disagreements(anatomy: Anatomy) -> list[tuple[str, str, str, int | None, int | None]]:
    return [
        (check.quantity, one.operator, str(one.phase), one.ours, one.other)
        for check in anatomy.checks
        for one in check.unexplained
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_second_sources_agree(name: str) -> None:
    anatomy = profiled(CASES[name])
    assert disagreements(anatomy) == []
    counted = {check.quantity: check for check in anatomy.checks}
    assert counted["call counts"].compared > 0
    assert counted["operator times"].compared == counted["operator times"].equal > 0
    assert counted["contraction FLOPs"].not_checked is None


#: Forward contraction FLOPs worked by hand: what was counted before is next to it.
WORKED = {
    "vmap": (2 * 10 * 4 * 8 * 8, 512),
    "transposed 1d": (2 * 2 * 10 * 8 * 6 * 3, 0),
    "compressed product": (2 * 8 * 6, 768),
    "bilinear": (2 * 3 * 4 * 6 * 5 + 2 * 3 * 4 * 5, 1080),
    "cdist": (2 * 40 * 30 * (8 + 2), 0),
    "ragged": (2 * 6 * 8 * 4, 0),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WORKED)
def test_contractions_that_were_wrong(name: str) -> None:
    right, wrong = WORKED[name]
    forward = [row for row in profiled(CASES[name]).operators if row.phase is Phase.FORWARD and row.part_of is None]
    found = sum(row.flops or 0 for row in forward if row.operator_class is OperatorClass.TENSOR_CONTRACTION)
    assert found == right != wrong


def test_other_kinds_of_steps_are_checked_too() -> None:
    encoder = CASES["encoder layer"]
    assert disagreements(profiled(encoder, amp="bf16", optimizer="adamw")) == []
    assert disagreements(profiled(encoder, inference=True)) == []
    several = profiled(CASES["checkpoint"], steps=3)
    assert len(several.step.steps) == 3
    assert disagreements(several) == []


def test_without_a_warm_up_nothing_was_watched() -> None:
    checks = {check.quantity: check for check in profiled(CASES["gradient penalty"], warmup=0).checks}
    for quantity in ("call counts", "contraction FLOPs"):
        assert checks[quantity].compared == 0
        assert checks[quantity].not_checked == "there was no warm-up step to count calls in"
    assert checks["operator times"].equal > 0


def test_forward_mode_is_said_to_be_unchecked() -> None:
    def curvature(w: Tensor, x: Tensor) -> Tensor:
        found: Tensor = torch.func.hessian(lambda a: (a @ w).pow(2).sum())(x)
        return found

    anatomy = profiled(lambda: made(curvature, (R(8, 8),), R(8)), inference=True)
    (check,) = [check for check in anatomy.checks if check.quantity == "call counts"]
    assert check.not_checked == "forward-mode differentiation, which runs differently under a dispatch mode"
    assert disagreements(anatomy) == []


class Unsteady(nn.Module):
    """Every step runs one product more than the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.steps = nn.Linear(8, 8), 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        for _ in range(self.steps):
            x = self.linear(x)
        return x


def test_a_step_that_does_not_repeat_itself_is_said_and_fails_the_check() -> None:
    anatomy = opanatomy.profile(Unsteady(), (R(4, 8),))
    products = [one for one in disagreements(anatomy) if one[0] == "contraction FLOPs"]
    watched, steps = 2, products[0][3]
    assert [(name, phase) for _, name, phase, _, _ in products] == [
        ("aten::addmm", "forward"),
        ("aten::mm", "backward"),
    ]
    assert products[0][4] == watched * 2 * 4 * 8 * 8
    assert steps is not None
    assert steps > watched * 2 * 4 * 8 * 8
    with pytest.raises(GateError, match=r"^check: 6 numbers are not confirmed, the largest difference being in "):
        opanatomy.profile(Unsteady(), (R(4, 8),), check=True)


@torch.library.custom_op("opanatomy_tests::squared_product", mutates_args=())
def squared_product(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).pow(2)


def test_a_custom_operator_is_counted_by_what_it_calls() -> None:
    anatomy = profiled(lambda: made(lambda w, x: squared_product(x, w), (R(8, 6),), R(4, 8)), inference=True)
    assert disagreements(anatomy) == []
    (check,) = [check for check in anatomy.checks if check.quantity == "contraction FLOPs"]
    assert (check.compared, check.not_checked) == (1, None)
    assert {row.operator: row.flops for row in anatomy.operators}["aten::mm"] == 2 * 4 * 8 * 6
