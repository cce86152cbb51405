"""The 8-bit optimizers: what they keep in 8 and in 32 bits, by theory and as measured, and that nothing leaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from opanatomy.capture.step.stepper import make_optimizer
from opanatomy.memory.theory import state_theory
from opanatomy.records.taxonomy import BY_NAME
from opanatomy.records.workload import Workload
from tests.test_techniques_options import captured, measured
from tests.tiny import BERT, TINY

SMALL, TABLE, REST = 1_000, 50_000, 200_000


def words() -> nn.Module:
    """A table of 64 x 128, and a matrix of 128 x 64."""
    return nn.Sequential(nn.Embedding(64, 128), nn.Linear(128, 64, bias=False))


def stepped(name: str, module: nn.Module) -> torch.optim.Optimizer:
    optimizer = make_optimizer(name, module)
    module(torch.arange(4)).sum().backward()
    optimizer.step()
    return optimizer


def state_of(optimizer: torch.optim.Optimizer, parameter: Any) -> torch.Tensor:
    state: torch.Tensor = optimizer.state[parameter]["state1"]
    return state


@pytest.mark.parametrize(("name", "full"), [("adamw8bit", SMALL), ("adamw8bit-embeddings32", SMALL + TABLE)])
def test_the_theory_knows_what_stays_at_32_bits(name: str, full: int) -> None:
    trained = SMALL + TABLE + REST
    ran = Workload(
        parameters=trained, trainable_parameters=trained, small_parameters=SMALL, embedding_parameters=TABLE,
        dtype="float32", optimizer=name,
    )  # fmt: skip
    state = state_theory(ran)[-1]
    assert state.theory_bytes == 8 * full + round(2.03125 * (trained - full))
    assert f"n {full:,} of" in (state.formula or "")


def test_embeddings_at_32_bits_do_not_leak_into_the_next_optimizer() -> None:
    optim = pytest.importorskip("bitsandbytes").optim
    first, second = words(), words()
    full = stepped("adamw8bit-embeddings32", first)
    table, matrix = first.parameters()
    assert (state_of(full, table).dtype, state_of(full, matrix).dtype) == (torch.float32, torch.uint8)
    manager = optim.GlobalOptimManager.get_instance()
    assert not manager.index2config
    assert not manager.pid2config
    assert not manager.module_weight_config_triple
    eight = stepped("adamw8bit", second)
    assert [state_of(eight, parameter).dtype for parameter in second.parameters()] == [torch.uint8] * 2


def test_an_override_of_others_does_not_leak_into_ours() -> None:
    optim = pytest.importorskip("bitsandbytes").optim
    manager = optim.GlobalOptimManager.get_instance()
    module = words()
    manager.index2config[(0, 1)] = {"optim_bits": 32}
    try:
        full = stepped("adamw8bit-embeddings32", module)
        assert state_of(full, list(module.parameters())[1]).dtype is torch.uint8
    finally:
        manager.index2config.clear()


@pytest.mark.parametrize("name", ["adamw8bit", "adamw8bit-embeddings32"])
def test_the_measured_state_is_that_of_theory(name: str, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    wide = (*TINY[BERT], ("hidden_size", "128"), ("intermediate_size", "512"), ("vocab_size", "1024"))
    anatomy = captured(tmp_path, optimizer=name, settings=wide)
    (state,) = [row for row in anatomy.memory.components if row.component == "optimizer_state"]
    # Two code books of 256 values serve all tensors; what is left are the last blocks, which are not full.
    assert measured(anatomy, "optimizer_state") - 2 * 256 * 4 == pytest.approx(state.theory_bytes, rel=1e-3)


def test_torchao_keeps_eight_bits() -> None:
    pytest.importorskip("torchao")
    module = nn.Linear(128, 64, bias=False)
    optimizer = make_optimizer("adamw8bit-torchao", module)
    module(torch.ones(2, 128)).sum().backward()
    optimizer.step()
    (state,) = optimizer.state.values()
    assert state["exp_avg"].codes.dtype is torch.uint8
    assert state["exp_avg"].scale.numel() == 128 * 64 // 256
    assert BY_NAME["adamw8bit-torchao"].state_bytes(4) == 2 + 2 * 4 / 256
