"""`--fused-loss`: the same loss and gradients without logits as a whole; what cannot have it says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from opanatomy.capture.model.building import Logits, fuse_loss
from opanatomy.capture.model.workload import prepare
from opanatomy.capture.silence import quiet_libraries
from opanatomy.errors import CaptureError, UsageError
from opanatomy.records.taxonomy import Phase
from tests.test_techniques_options import (
    GPT2,
    LLAMA,
    STILL,
    T5,
    VIT,
    assert_same,
    captured,
    contractions,
    gradients_of,
)
from tests.tiny import BERT, TINY, loss_of, message_of, tiny_request

BART, ROBERTA, DISTILBERT = "facebook/bart-base", "FacebookAI/roberta-base", "distilbert/distilbert-base-uncased"
STEADY = {**STILL, ROBERTA: STILL[BERT], DISTILBERT: (("dropout", "0.0"), ("attention_dropout", "0.0"))}

has_it = pytest.mark.skipif(
    not hasattr(torch.nn.functional, "linear_cross_entropy"), reason="torch before 2.13 has no such function"
)


@has_it
@pytest.mark.parametrize("name", [BERT, GPT2, LLAMA, T5, ROBERTA, DISTILBERT])
def test_the_loss_and_its_gradients_are_the_same(name: str) -> None:
    settings = TINY[name] + STEADY.get(name, ())
    plain, fused = (prepare(tiny_request(name, settings=settings, fused_loss=fuse)) for fuse in (False, True))
    torch.testing.assert_close(loss_of(fused), loss_of(plain))
    assert_same(gradients_of(fused), gradients_of(plain), rtol=1e-4, atol=1e-6)


@has_it
def test_logits_are_never_whole_and_every_chunk_is_counted(tmp_path: Path) -> None:
    wide = (*TINY[BERT], ("vocab_size", "2000"))
    options: dict[str, Any] = {"settings": wide, "batch": 8, "memory": True, "optimizer": "adamw"}
    plain, fused = captured(tmp_path, **options), captured(tmp_path, **options, fused_loss=True)
    # Plain, the logits, their logarithms and the gradient of these; fused, the gradient of the weight before its time.
    whole = 8 * 16 * 2000 * 4
    assert (plain.memory.peak_bytes or 0) - (fused.memory.peak_bytes or 0) > whole
    assert fused.workload.fused_loss
    rows = {(row.operator, row.phase) for row in fused.operators}
    assert ("aten::_log_softmax", Phase.FORWARD) not in rows
    # The products of the head's backward are in its forward, and two of each token's loss with its weight.
    tokens = 8 * 16
    head = 2 * tokens * 32 * 2000
    assert contractions(fused, Phase.FORWARD) == contractions(plain, Phase.FORWARD) + 2 * head + 2 * 2 * tokens
    assert contractions(fused, Phase.BACKWARD) == contractions(plain, Phase.BACKWARD) - 2 * head
    (ratio,) = [row for row in fused.ratios if row.operator_class == "tensor_contraction"]
    assert ratio.theory_flops is None


@has_it
def test_a_fused_loss_goes_with_other_techniques(tmp_path: Path) -> None:
    anatomy = captured(
        tmp_path, GPT2, fused_loss=True, amp="bf16", accumulate=2, checkpointing="reentrant", optimizer="sgd", clip=1.0
    )
    assert anatomy.warnings == ()


@has_it
@pytest.mark.parametrize("name", [VIT, "microsoft/deberta-v3-base"])
def test_a_model_without_a_head_of_words_is_refused(name: str) -> None:
    said = message_of(tiny_request(name, fused_loss=True), UsageError)
    assert said.endswith("has no linear head that gives words - leave it out")


@has_it
def test_a_model_that_computes_with_its_logits_is_refused() -> None:
    prepared = prepare(tiny_request(BART, fused_loss=True))
    assert isinstance(prepared.inputs, dict)
    with pytest.raises(UsageError, match=r"^--fused-loss: the model takes add of its logits"), quiet_libraries():
        prepared.module(**prepared.inputs)


def logits() -> Any:
    return Logits(torch.ones(2, 3, 4), torch.ones(5, 4), None, (2, 3, 5))


@pytest.mark.parametrize(
    ("use", "what"),
    [
        (lambda x: x.tanh(), "tanh"), (lambda x: torch.softmax(x, -1), "softmax"), (lambda x: x * 2, "mul"),
        (lambda x: x[..., 0], r"\[\(Ellipsis, 0\)\]"), (lambda x: x[..., :3], r"\[\(Ellipsis, slice"),
        (lambda x: x.view(2, 15), r"view\(2, 15\)"),
    ],
)  # fmt: skip
def test_what_needs_values_is_refused(use: Any, what: str) -> None:
    with pytest.raises(UsageError, match=f"^--fused-loss: the model takes {what}"):
        use(logits())


def test_shapes_of_logits() -> None:
    assert logits()[:, 1:].contiguous().float().shape == (2, 2, 5)
    assert logits()[..., :-1, :].shape == (2, 2, 5)
    assert logits().view(-1, 5).shape == (6, 5)
    assert not hasattr(logits(), "__iter__")


def test_an_older_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.nn.functional, "linear_cross_entropy", raising=False)
    with pytest.raises(
        CaptureError, match=r"^--fused-loss needs torch.nn.functional.linear_cross_entropy, which torch"
    ):
        fuse_loss(nn.Linear(2, 2))
