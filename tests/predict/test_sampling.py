"""Calls of a step made once more by themselves: which, what becomes of those that cannot be, and how long they take."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from opanatomy.capture.run.progress import NullProgress
from opanatomy.io.redact import Redactor
from opanatomy.predict.experiment import Runs, Store
from opanatomy.predict.fake import simulate
from opanatomy.predict.sampling import Sampling, Template, TensorSpec
from opanatomy.predict.techniques import Variant
from opanatomy.records.experiment import SimulatedStep
from tests.support.tiny import BERT, on_cpu, tiny_request

#: An operator that ends the process if it really runs: a kernel that does not stand values that mean nothing.
DEADLY = """
import os
import torch

@torch.library.custom_op("opanatomy_tests::deadly", mutates_args=())
def deadly(x: torch.Tensor) -> torch.Tensor:
    os._exit(7)

@deadly.register_fake
def _(x):
    return torch.empty_like(x)

deadly.register_autograd(lambda context, gradient: gradient)

class Deadly(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
    def forward(self, x):
        return deadly(self.layer(x)).sum()

def make():
    return Deadly(), (torch.randn(4, 8),)
"""


def test_each_distinct_call_is_made_once_and_only_new_ones_again() -> None:
    sampling = Sampling("cpu")
    plain = tiny_request(BERT, optimizer="adamw")
    simulate(plain, sampling)
    known = dict(sampling.times)
    assert {"aten::mm", "aten::addmm", "aten::gelu", "aten::_fused_adamw_"} <= {key[0] for key in known}
    assert min(known.values()) > 0
    simulate(tiny_request(BERT, optimizer="adamw", amp="bf16"), sampling)
    assert {key: sampling.times[key] for key in known} == known
    new = sampling.times.keys() - known.keys()
    assert any(key[0] == "aten::mm" and key[1][0][0] == "bfloat16" for key in new)


def test_after_its_deadline_nothing_is_sampled() -> None:
    ticks: Iterator[int] = count()
    sampling = Sampling("cpu", deadline=2.5, clock=lambda: float(next(ticks)))
    step = simulate(tiny_request(BERT), sampling)
    assert step.calls
    assert len(sampling.times) <= 3


def test_what_values_could_harm_is_left_alone() -> None:
    add, index = torch.ops.aten.add.Tensor, torch.ops.aten.index_select.default
    plain, indices = torch.ones(2, 3), torch.zeros(2, dtype=torch.int64)
    assert Template.of(add, (plain, plain), {}) is not None
    assert Template.of(index, (plain, 0, indices), {}) is not None  # torch looks at its places
    assert Template.of(add, (plain.to_sparse(), plain), {}) is None

    @torch.library.custom_op("opanatomy_tests::gathered", mutates_args=())
    def gathered(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x[at]

    function = torch.ops.opanatomy_tests.gathered.default
    assert Template.of(function, (plain, indices), {}) is None
    assert Template.of(function, (plain, plain), {}) is not None


def test_a_random_state_that_a_call_reads_on_the_host_is_made_there() -> None:
    function = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
    with FakeTensorMode():
        heads = [torch.empty(1, 2, 8, 4, device="cuda") for _ in range(4)]
        sums, seed = torch.empty(1, 2, 32, device="cuda"), torch.empty((), dtype=torch.int64, device="cuda")
        template = Template.of(function, (*heads, None, heads[0], sums, seed, seed, 0.1, [True] * 4), {})
    assert template is not None
    kinds = [one.device.type for one in template.args if isinstance(one, TensorSpec)]
    assert kinds == ["cuda"] * 6 + ["cpu"] * 2


@pytest.mark.parametrize("runs", [1, 2])
def test_a_call_that_ends_the_process_costs_its_samples_alone(runs: int, here: Path) -> None:
    (here / "models.py").write_text(DEADLY)
    options = on_cpu(model="models.py:make", optimizer="adamw")
    made = Runs(model="", store=Store(here / "folder", resume=False), progress=NullProgress(), redactor=Redactor())
    variants = [Variant(name=f"v{number}", title="", what="", options=options) for number in range(runs)]
    followed = list(made.followed(variants))
    assert [isinstance(each.step, SimulatedStep) for each in followed] == [True] * runs
    assert [each.sampled for each in followed] == [{}] * runs
