"""The training techniques as options of a run: what each does to the step, and that all of them go together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opanatomy
from opanatomy.capture.batches import micro_batches
from opanatomy.capture.model.workload import Prepared, prepare
from opanatomy.capture.run.profile import capture_model
from opanatomy.capture.run.progress import NullProgress
from opanatomy.capture.silence import quiet_libraries
from opanatomy.capture.step.stepper import Stepper
from opanatomy.errors import UsageError
from opanatomy.pipeline import analyze_traces
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import OperatorClass, Phase
from tests.tiny import BERT, TINY, tiny_request

GPT2, LLAMA, VIT, T5 = (
    "openai-community/gpt2", "meta-llama/Llama-3.1-8B", "google/vit-base-patch16-224", "google-t5/t5-base",
)  # fmt: skip
#: Settings without dropout: a step computes the same however it is cut.
STILL = {
    BERT: (("hidden_dropout_prob", "0.0"), ("attention_probs_dropout_prob", "0.0")),
    GPT2: (("embd_pdrop", "0.0"), ("resid_pdrop", "0.0"), ("attn_pdrop", "0.0")),
    T5: (("dropout_rate", "0.0"),),
}


def captured(folder: Path, name: str = BERT, **options: Any) -> Anatomy:
    """The anatomy of a run of a tiny model; its second counts agree."""
    trace = folder / "step.json"
    capture_model(tiny_request(name, **{"warmup": 2, **options}), trace, NullProgress(), lambda _: None)
    anatomy = analyze_traces([trace])
    assert [
        (check.quantity, one.operator, one.phase, one.ours, one.other)
        for check in anatomy.checks
        for one in check.unexplained
    ] == []
    assert {check.quantity: check.compared > 0 for check in anatomy.checks}["call counts"]
    return anatomy


def contractions(anatomy: Anatomy, phase: Phase) -> int:
    """The FLOPs of all contractions of a phase."""
    rows = [row for row in anatomy.classes if row.operator_class is OperatorClass.TENSOR_CONTRACTION]
    return sum(row.flops or 0 for row in rows if row.phase is phase)


def measured(anatomy: Anatomy, component: str) -> int:
    """The measured bytes of a component of the memory."""
    (row,) = [row for row in anatomy.memory.components if row.component == component]
    assert row.measured_bytes is not None
    return row.measured_bytes


# -------------------------------------------------------------------------------------------------------- accumulation


def test_accumulation_cuts_the_batch_and_updates_once(tmp_path: Path) -> None:
    whole = captured(tmp_path, batch=4, optimizer="adamw")
    cut = captured(tmp_path, batch=4, optimizer="adamw", accumulate=4)
    assert (cut.workload.accumulate, cut.workload.batch) == (4, 4)
    # The position ids, one row for each forward, and the number that the loss divides by are no part of the batch.
    ids = 16 * 8 + 4
    assert measured(cut, "forward_activations") - ids == (measured(whole, "forward_activations") - ids) / 4
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert contractions(cut, phase) == contractions(whole, phase)
    for name in ("weights", "gradients", "optimizer_state"):
        assert measured(cut, name) == measured(whole, name)
    updates = [row.calls for anatomy in (whole, cut) for row in anatomy.operators if "fused_adamw" in row.operator]
    assert updates == [1, 1]
    assert cut.step.samples_per_second == pytest.approx(4e9 / (cut.step.unprofiled_wall_ns or 0))


def gradients_of(prepared: Prepared, parts: int = 1) -> dict[str, Tensor]:
    """The gradients of a step in so many micro-batches, as a run takes it."""
    stepper = Stepper(
        module=prepared.module, parameters=tuple(prepared.module.parameters()), inputs=prepared.inputs, device="cpu",
        micro_batches=micro_batches(prepared.inputs, parts),
    )  # fmt: skip
    with quiet_libraries():
        stepper.run()
    return {
        name: parameter.grad.clone()
        for name, parameter in prepared.module.named_parameters()
        if parameter.grad is not None
    }


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor], **tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name, gradient in one.items():
        torch.testing.assert_close(gradient, other[name], msg=lambda text, name=name: f"{name}: {text}", **tolerance)


@pytest.mark.parametrize("name", [BERT, LLAMA, VIT, T5])
def test_accumulated_gradients_are_those_of_the_whole_batch(name: str) -> None:
    prepared = prepare(tiny_request(name, batch=4, settings=TINY[name] + STILL.get(name, ())))
    assert_same(gradients_of(prepared, 4), gradients_of(prepared), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "parts", "said"),
    [
        ((torch.ones(6, 4),), 4, "accumulate=4: a batch of 6 cannot be cut into 4 equal micro-batches - give a divisor"
         " of it: 1, 2, 3, 6"),
        ((torch.ones(6, 4), {"mask": torch.ones(4, 4)}), 2, "accumulate=2: the input mask has the shape (4, 4), which"
         " does not begin with the batch of 6 - give inputs whose first dimension is the batch"),
        ((torch.ones(6, 4),), 0, "accumulate=0: must be at least 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_refused(inputs: Any, parts: int, said: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(said)}"):
        opanatomy.profile(nn.Linear(4, 4), inputs, accumulate=parts)


# ------------------------------------------------------------------------------------------------------------ clipping


def clipped_step(amp: str | None, clip: float | None) -> tuple[Tensor, Tensor]:
    """The gradient of a matrix as the update takes it, and the matrix before and after is apart by."""
    torch.manual_seed(0)
    module = nn.Linear(8, 8, bias=False)
    before = module.weight.detach().clone()
    stepper = Stepper(
        module=module, parameters=(module.weight,), inputs=(torch.ones(4, 8) / 64,), device="cpu", amp=amp,
        optimizer=torch.optim.SGD(module.parameters(), lr=1.0), clip=clip,
    )  # fmt: skip
    if stepper.loss_scale is not None:
        stepper.loss_scale.start(1024.0)
    stepper.run()
    assert module.weight.grad is not None
    return module.weight.grad, before - module.weight.detach()


@pytest.mark.parametrize("amp", [None, "bf16", "fp16"])
def test_clipping_comes_between_unscaling_and_the_update(amp: str | None) -> None:
    free, _ = clipped_step(amp, None)
    gradient, moved = clipped_step(amp, 0.1)
    norm = free.norm()
    assert norm > 0.1
    torch.testing.assert_close(gradient, free * 0.1 / norm, rtol=1e-4, atol=0.0)
    torch.testing.assert_close(moved, gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("amp", [None, "fp16"])
def test_clipping_is_of_the_optimizer_phase(amp: str | None, tmp_path: Path) -> None:
    anatomy = captured(tmp_path, optimizer="adamw", clip=1.0, amp=amp, accumulate=2)
    norms = [row.phase for row in anatomy.operators if "_foreach_norm" in row.operator]
    assert norms == [Phase.OPTIMIZER]
    assert anatomy.workload.clip == 1.0


def test_clipping_without_an_update_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^clip=1.0 is a part of the update, and there is none - add optimizer='ada"):
        opanatomy.profile(nn.Linear(2, 2), torch.ones(2, 2), clip=1.0)
