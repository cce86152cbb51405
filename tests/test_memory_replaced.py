"""Memory of a step whose forward replaces weights and buffers, and whose inputs have gradients."""

from __future__ import annotations

from threading import Thread
from typing import Any

import torch
from torch import nn

from opanatomy.capture.memory.measurement import Snapshots
from opanatomy.capture.memory.observer import observe_step
from opanatomy.capture.step.stepper import Stepper
from opanatomy.memory.observed import warnings_of
from opanatomy.records.memory import Memory
from tests.memory_steps import memory_of_observed

WIDTH = 64
#: A square matrix and a vector of float32.
MATRIX, VECTOR = 4 * WIDTH * WIDTH, 4 * WIDTH
MB = 1 << 20


class TwoLinears(nn.Module):
    """Two linear layers; `prepare` is what a forward does before them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def prepare(self) -> None:
        """Nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.prepare()
        return self.second(torch.relu(self.first(x))).sum()


class NewWeight(TwoLinears):
    """Forward puts another tensor under a weight: one that autograd saves."""

    def prepare(self) -> None:
        self.second.weight.data = self.second.weight.data.clone()


class NewBuffer(TwoLinears):
    """Forward replaces a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def prepare(self) -> None:
        self.mean = torch.ones(WIDTH)


class Shrinking(nn.Module):
    """Inference that replaces a buffer of 8 MB by one of 4 MB and then needs 16 MB for a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(8 * MB, dtype=torch.uint8))
        self.inner = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.cache.nbytes == 8 * MB:
            self.cache = torch.zeros(4 * MB, dtype=torch.uint8)
        return self.inner(x) + torch.zeros(4 * MB).sum()


class OnAThread(Shrinking):
    """The same, its modules run by a thread that the profiler does not see."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache = torch.zeros(4 * MB, dtype=torch.uint8)
        thread = Thread(target=self.inner, args=(x,))
        thread.start()
        thread.join()
        return x


def measured(module: nn.Module, x: torch.Tensor, *, inference: bool = False, **more: Any) -> Memory:
    stepper = Stepper(
        module=module, parameters=tuple(module.parameters()), inputs=(x,), device="cpu", inference=inference, **more
    )
    observed = observe_step(stepper, module, Snapshots("cpu"))
    memory = memory_of_observed(observed)
    assert warnings_of(memory) == ()
    return memory


def at_peak(memory: Memory) -> dict[str, int | None]:
    return {row.component: row.at_peak_bytes for row in memory.components}


def most(memory: Memory) -> dict[str, int | None]:
    return {row.component: row.measured_bytes for row in memory.components}


def test_a_weight_that_forward_makes_anew_is_a_weight_also_where_it_is_saved() -> None:
    x = torch.randn(8, WIDTH)
    plain, anew = measured(TwoLinears(), x), measured(NewWeight(), x)
    assert most(anew)["forward_activations"] == most(plain)["forward_activations"] == 8 * VECTOR
    assert at_peak(anew)["weights"] == at_peak(plain)["weights"] == 2 * (MATRIX + VECTOR)


def test_a_buffer_that_forward_replaces_is_a_buffer() -> None:
    memory = measured(NewBuffer(), torch.randn(8, WIDTH))
    assert at_peak(memory)["buffers"] == VECTOR
    assert "held_by_model" not in at_peak(memory)


def test_what_forward_replaces_is_gone_while_it_goes_on() -> None:
    memory = measured(Shrinking(), torch.zeros(1), inference=True)
    assert at_peak(memory)["buffers"] == 4 * MB
    assert memory.peak_bytes is not None
    assert 0 <= memory.peak_bytes - 20 * MB < 1000


def test_a_module_on_another_thread_takes_no_notes() -> None:
    memory = measured(OnAThread(), torch.zeros(1), inference=True)
    assert memory.timeline[-1].components["buffers"] == 4 * MB


def test_gradients_of_inputs_are_gradients() -> None:
    x = torch.randn(8, WIDTH, requires_grad=True)
    memory = measured(TwoLinears(), x, other_leaves=(x,))
    assert most(memory)["gradients"] == 2 * (MATRIX + VECTOR) + 8 * VECTOR
