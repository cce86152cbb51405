"""`--checkpoint-every`: segments of layers recomputed together compute the same and keep only their inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from opanatomy.capture.model.building import checkpoint_in_segments
from opanatomy.capture.model.workload import prepare
from opanatomy.capture.silence import quiet_libraries
from opanatomy.errors import UsageError
from opanatomy.options import RunOptions
from opanatomy.records.anatomy import Anatomy
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
    measured,
)
from tests.tiny import BERT, TINY, message_of, tiny_request

BART, DEBERTA, WHISPER = "facebook/bart-base", "microsoft/deberta-v3-base", "openai/whisper-small"
LAYERS = {BERT: "num_hidden_layers", GPT2: "n_layer", LLAMA: "num_hidden_layers", VIT: "num_hidden_layers"}
NO_DROPOUT = {
    **STILL,
    BART: (("dropout", "0.0"), ("attention_dropout", "0.0"), ("activation_dropout", "0.0")),
    WHISPER: (("dropout", "0.0"),),
    DEBERTA: STILL[BERT],
}  # fmt: skip


def settings(name: str, layers: int = 4) -> tuple[tuple[str, str], ...]:
    return (*TINY[name], *NO_DROPOUT.get(name, ()), *([(LAYERS[name], str(layers))] if name in LAYERS else []))


@pytest.mark.parametrize("kind", ["non-reentrant", "reentrant"])
@pytest.mark.parametrize("name", [BERT, GPT2, LLAMA, VIT, BART, WHISPER])
def test_segments_give_the_same_gradients(name: str, kind: str) -> None:
    plain = prepare(tiny_request(name, settings=settings(name)))
    again = prepare(tiny_request(name, settings=settings(name), checkpointing=kind, checkpoint_every=2))
    assert_same(gradients_of(again), gradients_of(plain), rtol=0.0, atol=0.0)


def by_module(anatomy: Anatomy) -> dict[tuple[str, Phase, str], int | None]:
    """The FLOPs of each module in forward and backward; a recomputation stops at the last operator that is needed."""
    return {
        (row.module, row.phase, row.operator_class): row.flops
        for row in anatomy.modules
        if row.phase is not Phase.RECOMPUTE
    }


@pytest.mark.parametrize("kind", ["non-reentrant", "reentrant"])
def test_only_the_input_of_a_segment_is_kept(kind: str, tmp_path: Path) -> None:
    one, two, four = (
        captured(tmp_path, GPT2, settings=settings(GPT2), checkpointing=kind, checkpoint_every=every, attention="eager")
        for every in (1, 2, 4)
    )
    hidden = 4 * 2 * 16 * 32
    assert measured(one, "forward_activations") - measured(two, "forward_activations") == 2 * hidden
    assert measured(two, "forward_activations") - measured(four, "forward_activations") == hidden
    assert contractions(one, Phase.FORWARD) == contractions(two, Phase.FORWARD) == contractions(four, Phase.FORWARD)
    assert two.workload.checkpoint_every == 2
    assert by_module(one) == by_module(two) == by_module(four)
    layers = {row.module for row in four.modules if row.phase is Phase.RECOMPUTE and row.flops}
    assert {f"transformer.h.{number}.mlp.c_fc" for number in range(4)} <= layers


def test_a_segment_of_one_is_what_transformers_does(tmp_path: Path) -> None:
    theirs = captured(tmp_path, settings=settings(BERT), checkpointing="reentrant")
    ours = captured(tmp_path, settings=settings(BERT), checkpointing="reentrant", checkpoint_every=1)
    for phase in Phase:
        assert contractions(ours, phase) == contractions(theirs, phase)
    assert measured(ours, "forward_activations") == measured(theirs, "forward_activations")


def test_segments_of_the_plain_kind_leave_frozen_layers_out(tmp_path: Path) -> None:
    anatomy = captured(
        tmp_path, settings=settings(BERT), freeze="embeddings,layers:2", checkpoint_every=2, amp="bf16", accumulate=2,
        optimizer="adamw",
    )  # fmt: skip
    assert anatomy.warnings == ()
    assert contractions(anatomy, Phase.RECOMPUTE) < contractions(anatomy, Phase.FORWARD) / 2


@pytest.mark.parametrize(
    ("name", "every", "said"),
    [
        (T5, 2, "--checkpoint-every 2: a T5Block of encoder.block gives the model more than hidden states, which other"
         " layers may take: layers cannot be recomputed together - use --checkpointing alone"),
    ],
)  # fmt: skip
def test_layers_that_hand_values_on_are_refused(name: str, every: int, said: str) -> None:
    prepared = prepare(tiny_request(name, checkpoint_every=every))
    assert isinstance(prepared.inputs, dict)
    with pytest.raises(UsageError) as caught, quiet_libraries():
        prepared.module(**prepared.inputs)
    assert str(caught.value) == said


def test_more_layers_than_there_are_is_refused() -> None:
    said = message_of(tiny_request(BERT, checkpoint_every=3), UsageError)
    assert said == "--checkpoint-every 3: BertForMaskedLM has 2 layers - give 1 to 2"
    with pytest.raises(UsageError, match="has no list of like layers - leave it out"):
        checkpoint_in_segments(nn.Linear(2, 2), "reentrant", 1)


class Loop(nn.Module):
    """Layers in a loop that is given; each takes a number next to the hidden states."""

    def __init__(self, loop: Any) -> None:
        super().__init__()
        self.layers, self.loop = nn.ModuleList(Scaled() for _ in range(2)), loop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.loop(self.layers, x)
        return result


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, hidden_states: torch.Tensor, by: float = 1.0, mask: Any = None) -> torch.Tensor:
        result: torch.Tensor = self.linear(hidden_states) * by
        return result


@pytest.mark.parametrize(
    ("loop", "why"),
    [
        (lambda layers, x: layers[1](layers[0](x, by=1.0), by=2.0), "gets another by than the layer before"),
        (lambda layers, x: layers[1](layers[0](x, 1.0), 2.0), "gets other arguments than the layer before"),
        (lambda layers, x: layers[1](layers[0](x) + x), "does not get the hidden states of the layer before as they"),
        (lambda layers, x: layers[1](layers[0](x, mask=x > 0), mask=x > 1), "gets another mask than the layer before"),
    ],
)
def test_layers_that_get_something_else_are_refused(loop: Any, why: str) -> None:
    module = Loop(loop)
    checkpoint_in_segments(module, "non-reentrant", 2)
    with pytest.raises(UsageError, match=why):
        module(torch.ones(2, 4))


def test_segments_imply_checkpointing_and_need_a_backward() -> None:
    assert RunOptions(checkpoint_every=2).checkpointing == "non-reentrant"
    assert RunOptions(checkpoint_every=2, checkpointing="reentrant").checkpointing == "reentrant"
    with pytest.raises(UsageError, match=r"^inference=True has no backward: leave out checkpoint_every=2$"):
        RunOptions(inference=True, checkpoint_every=2)


@pytest.mark.slow
def test_compiled_code_has_the_segments_too() -> None:
    plain = prepare(tiny_request(BERT, settings=settings(BERT, 2)))
    again = prepare(tiny_request(BERT, settings=settings(BERT, 2), checkpoint_every=2))
    expected = gradients_of(plain)
    compiled: Any = torch.compile(again.module, backend="aot_eager", fullgraph=True)
    assert isinstance(again.inputs, dict)
    with quiet_libraries():
        compiled(**again.inputs).loss.backward()
    gradients = {
        name: parameter.grad for name, parameter in again.module.named_parameters() if parameter.grad is not None
    }
    assert_same(gradients, expected, rtol=1e-4, atol=1e-6)
