"""`--lora`: what is trained, and what a step with adapters computes with and without checkpointing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opanatomy.capture.model import building
from opanatomy.capture.model.workload import prepare
from opanatomy.errors import CaptureError, UsageError
from opanatomy.options import RunOptions
from opanatomy.records.taxonomy import Phase
from tests.test_technique_freezing import ATTENTION, HEAD, PROJECTIONS, TOKENS
from tests.test_techniques_options import GPT2, LLAMA, T5, VIT, captured, contractions, gradients_of
from tests.tiny import BERT, tiny_request

RANK = 4


def trained(name: str, **others: Any) -> set[str]:
    module = prepare(tiny_request(name, lora=RANK, **others)).module
    return {key for key, parameter in module.named_parameters() if parameter.requires_grad}


def test_without_peft_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "find_spec", lambda name: None)
    with pytest.raises(CaptureError, match=r"^--lora 4 needs peft, which is not installed - pip install 'opanatomy\[p"):
        building.check_peft(RANK)
    building.check_peft(None)


def test_adapters_and_freezing_exclude_each_other() -> None:
    with pytest.raises(UsageError, match=r"^lora=4 freezes all but its adapters: leave out freeze='embeddings'$"):
        RunOptions(lora=RANK, freeze="embeddings")


@pytest.mark.parametrize("name", [BERT, GPT2, LLAMA, T5, VIT])
def test_only_adapters_and_the_head_of_a_classifier_are_trained(name: str) -> None:
    pytest.importorskip("peft")
    kept = {"classifier.weight", "classifier.bias"} if name == VIT else set()
    names = trained(name)
    assert names > kept
    assert all(".lora_A.default." in key or ".lora_B.default." in key for key in names - kept)


def test_a_type_that_peft_does_not_know_has_adapters_at_all_but_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft")
    monkeypatch.setattr(building, "_known_targets", lambda module: [])
    layers = {key.partition(".lora_")[0].removeprefix("model.layers.") for key in trained(LLAMA)}
    halves = {f"self_attn.{part}_proj" for part in "qkvo"} | {f"mlp.{part}_proj" for part in ("gate", "up", "down")}
    assert layers == {f"{number}.{half}" for number in range(2) for half in halves}


@pytest.mark.parametrize(("name", "kind"), [(VIT, "reentrant"), (BERT, "reentrant"), (GPT2, "non-reentrant")])
def test_every_adapter_gets_a_gradient_under_checkpointing(name: str, kind: str) -> None:
    pytest.importorskip("peft")
    for every in (None, 2):
        prepared = prepare(tiny_request(name, lora=RANK, checkpointing=kind, checkpoint_every=every))
        assert gradients_of(prepared).keys() == trained(name)


#: The adapters of query and value in one layer, in forward; in backward each product has two gradients.
ADAPTERS = 2 * (2 * TOKENS * 2 * RANK * 32)


def test_where_the_time_of_adapters_goes(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    full = captured(tmp_path, attention="eager", optimizer="adamw")
    plain = captured(tmp_path, attention="eager", optimizer="adamw", lora=RANK)
    again = captured(tmp_path, attention="eager", optimizer="adamw", lora=RANK, checkpointing="non-reentrant")
    assert contractions(plain, Phase.FORWARD) == 2 * (PROJECTIONS + ATTENTION + ADAPTERS) + HEAD
    # Weights need no gradients, inputs do: all but those of the first layer's query, key, value and adapters; nor does
    # its key, whose product with the query has one gradient less.
    inputs = 2 * PROJECTIONS + HEAD + 2 * 2 * ATTENTION + 2 * 2 * ADAPTERS
    first = 2 * TOKENS * 3 * 32 * 32 + 2 * (2 * TOKENS * RANK * 32) + ATTENTION // 2
    assert contractions(plain, Phase.BACKWARD) == inputs - first
    # Checkpointing has the embeddings require a gradient, and runs the layers once more.
    assert contractions(again, Phase.BACKWARD) == inputs
    assert contractions(again, Phase.RECOMPUTE) > 0.9 * 2 * (PROJECTIONS + ATTENTION + ADAPTERS)
    whole = sum(contractions(full, phase) for phase in Phase)
    assert sum(contractions(plain, phase) for phase in Phase) < 0.8 * whole
    assert sum(contractions(again, phase) for phase in Phase) > 0.9 * whole
    assert "bert.encoder.layer.1.attention.self.query.lora_A.default" in {row.module for row in again.modules}
    assert again.workload.lora == RANK
