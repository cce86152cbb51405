"""`--freeze`: which weights of a model are trained, and what a step then computes and keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from opanatomy.capture.model.building import freeze
from opanatomy.capture.model.parts import stacks_of
from opanatomy.capture.model.workload import prepare
from opanatomy.capture.run.profile import capture_model
from opanatomy.capture.run.progress import NullProgress
from opanatomy.errors import OutOfMemory, UsageError
from opanatomy.options import RunOptions
from opanatomy.records.taxonomy import Phase
from tests.test_techniques_options import GPT2, LLAMA, T5, VIT, captured, contractions, measured
from tests.tiny import BERT, DISTINCT, message_of, planned, tiny_request

BART, CLIP, RESNET = "facebook/bart-base", "openai/clip-vit-base-patch32", "microsoft/resnet-50"


def trained(name: str, parts: str, **others: Any) -> set[str]:
    """The names of the weights that are trained."""
    module = prepare(tiny_request(name, freeze=parts, **others)).module
    return {key for key, parameter in module.named_parameters() if parameter.requires_grad}


def all_of(name: str, **others: Any) -> set[str]:
    return {key for key, _ in prepare(tiny_request(name, **others)).module.named_parameters()}


#: Model -> the prefixes of the weights that `embeddings` and `layers:1` freeze.
EMBEDDINGS = {
    BERT: ("bert.embeddings.",),
    GPT2: ("transformer.wte.", "transformer.wpe."),
    LLAMA: ("model.embed_tokens.",),
    VIT: ("vit.embeddings.",),
    T5: ("shared.",),
    BART: ("model.shared.", "model.encoder.embed_positions.", "model.decoder.embed_positions."),
    CLIP: ("text_model.embeddings.", "vision_model.embeddings."),
    RESNET: ("resnet.embedder.",),
}  # fmt: skip
LOWEST = {
    BERT: ("bert.encoder.layer.0.",),
    GPT2: ("transformer.h.0.",),
    LLAMA: ("model.layers.0.",),
    VIT: ("vit.layers.0.", "vit.encoder.layer.0."),
    T5: ("encoder.block.0.",),
    BART: ("model.encoder.layers.0.",),
    CLIP: ("text_model.encoder.layers.0.", "vision_model.encoder.layers.0."),
    RESNET: ("resnet.encoder.stages.0.",),
}  # fmt: skip


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_embeddings_and_the_lowest_layers(name: str) -> None:
    everything = all_of(name)
    for parts, prefixes in (("embeddings", EMBEDDINGS[name]), ("layers:1", LOWEST[name])):
        frozen = {key for key in everything if key.startswith(prefixes)}
        assert frozen
        assert trained(name, parts) == everything - frozen
    both = {key for key in everything if key.startswith((*EMBEDDINGS[name], *LOWEST[name]))}
    assert trained(name, "layers:1,embeddings") == everything - both


@pytest.mark.parametrize("name", DISTINCT)
def test_every_architecture_has_layers(name: str) -> None:
    module = prepare(tiny_request(name)).module
    for stack in stacks_of(module):
        assert len(stack.layers) >= 2
        assert module.get_submodule(stack.path)[0] is stack.layers[0]  # type: ignore[index]
    freeze(module, "layers:1")
    assert any(not parameter.requires_grad for parameter in module.parameters())


def test_the_decoder_comes_after_the_encoder() -> None:
    prefixes = ("encoder.block.", "decoder.block.0.")
    everything = all_of(T5)
    assert trained(T5, "layers:3") == {key for key in everything if not key.startswith(prefixes)}


def test_only_biases_and_only_the_head() -> None:
    everything = all_of(BERT)
    assert trained(BERT, "all-but-biases") == {key for key in everything if key.endswith("bias")}
    assert trained(BERT, "all-but-head", task="text-classification") == {"classifier.weight", "classifier.bias"}
    assert trained(VIT, "all-but-head") == {"classifier.weight", "classifier.bias"}
    # The weight of the masked-word head is that of the embeddings.
    assert all(key.startswith("cls.predictions.") for key in trained(BERT, "all-but-head"))
    assert trained(LLAMA, "all-but-head") == {"lm_head.weight"}


def test_a_frozen_embedding_freezes_the_head_that_shares_it() -> None:
    module: Any = prepare(tiny_request(GPT2, freeze="embeddings")).module
    assert module.lm_head.weight is module.transformer.wte.weight
    assert not module.lm_head.weight.requires_grad


@pytest.mark.parametrize(
    ("name", "parts", "said"),
    [
        (BERT, "layers:3", "--freeze layers:3: BertForMaskedLM has 2 layers - it has embeddings, layers:N (2 BertLayer"
         " in bert.encoder.layer), all-but-biases, all-but-head"),
        (LLAMA, "all-but-biases", "--freeze all-but-biases: LlamaForCausalLM has no biases - it has embeddings,"),
        (GPT2, "all-but-head", "--freeze all-but-head: GPT2LMHeadModel has no weights outside of its base model - it"
         " has embeddings, layers:N (2 GPT2Block in transformer.h), all-but-biases"),
        (CLIP, "layers:3", "--freeze layers:3: CLIPModel has 2 layers in a stack - "),
    ],
)  # fmt: skip
def test_what_a_model_does_not_have_is_refused_with_what_it_has(name: str, parts: str, said: str) -> None:
    assert message_of(tiny_request(name, freeze=parts), UsageError).startswith(said)


def test_nothing_left_to_train_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^--freeze embeddings: nothing is left to train - freeze less$"):
        freeze(nn.Embedding(4, 4), "embeddings")


@pytest.mark.parametrize(
    ("parts", "meant"),
    [("Layers:2, embeddings", "layers:2,embeddings"), ("all_but_biases", "all-but-biases"), ("layers:02", "layers:2")],
)
def test_spellings_of_parts(parts: str, meant: str) -> None:
    assert RunOptions(freeze=parts).freeze == meant


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ("embedings", "'embedings' is not a part - did you mean embeddings? It is one of embeddings, layers, all-but-"),
        ("layers", "'layers' is not a part - layers:N, the lowest N"),
        ("layers:few", "'layers:few' is not a part - layers:N, the lowest N"),
        ("embeddings:2", "'embeddings:2' is not a part - embeddings"),
        ("layers:0", "'layers:0' freezes nothing - give 1 or more"),
        ("", "no part is named - one of embeddings, layers, all-but-biases, all-but-head"),
        ("all-but-biases,all-but-head", "all-but-biases and all-but-head exclude each other - leave one out"),
    ],
)
def test_what_is_no_part_is_refused(parts: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        RunOptions(freeze=parts)
    assert str(caught.value).startswith(f"freeze={parts!r}: {said}")


# ------------------------------------------------------------------------------------------------------- what a step is

#: One layer of the tiny BERT, 2 x 16 tokens of 32 with 2 heads and an inner size of 64, and its head of 160 words.
TOKENS = 2 * 16
PROJECTIONS = 2 * TOKENS * (4 * 32 * 32 + 2 * 32 * 64)
ATTENTION = 2 * (2 * 2 * 2) * 16 * 16 * 16
HEAD = 2 * TOKENS * (32 * 32 + 32 * 160)


def test_a_frozen_bottom_has_no_backward_and_keeps_nothing(tmp_path: Path) -> None:
    whole = captured(tmp_path, attention="eager")
    frozen = captured(tmp_path, attention="eager", freeze="embeddings,layers:1", optimizer="adamw")
    workload = frozen.workload
    assert workload.frozen == "embeddings,layers:1"
    assert workload.trainable_parameters == sum(
        parameter.numel()
        for name, parameter in prepare(tiny_request(BERT)).module.named_parameters()
        if not name.startswith(("bert.embeddings.", "bert.encoder.layer.0."))
    )
    assert measured(frozen, "gradients") == 4 * (workload.trainable_parameters or 0)
    assert measured(frozen, "optimizer_state") == 8 * (workload.trainable_parameters or 0)
    forward = 2 * (PROJECTIONS + ATTENTION) + HEAD
    assert contractions(whole, Phase.FORWARD) == contractions(frozen, Phase.FORWARD) == forward
    # Of the lowest trained layer query, key and value pass no gradient on; the shared weight of the head is frozen.
    first = 2 * TOKENS * 3 * 32 * 32
    shared = 2 * TOKENS * 32 * 160
    assert contractions(frozen, Phase.BACKWARD) == 2 * (PROJECTIONS + ATTENTION + HEAD) - first - shared
    assert measured(frozen, "forward_activations") < measured(whole, "forward_activations")
    (ratio,) = [row for row in frozen.ratios if row.operator_class == "tensor_contraction"]
    assert ratio.flops == pytest.approx(ratio.theory_flops)


def test_biases_need_the_gradients_of_inputs_alone(tmp_path: Path) -> None:
    anatomy = captured(tmp_path, attention="eager", freeze="all-but-biases")
    (ratio,) = [row for row in anatomy.ratios if row.operator_class == "tensor_contraction"]
    backward = 2 * (PROJECTIONS + 2 * ATTENTION) + HEAD
    assert contractions(anatomy, Phase.BACKWARD) == backward
    assert ratio.flops == pytest.approx(ratio.theory_flops)


def test_checkpointing_undoes_freezing_and_it_is_said(tmp_path: Path) -> None:
    anatomy = captured(tmp_path, attention="eager", freeze="embeddings,layers:1", checkpointing="non-reentrant")
    (warning,) = anatomy.warnings
    assert warning.startswith("checkpointing undoes freezing: ")
    # The lowest layer is run again and passes gradients on, for nobody: its own products, and those of the next.
    assert contractions(anatomy, Phase.RECOMPUTE) >= 2 * ATTENTION + PROJECTIONS
    kept = captured(tmp_path, attention="eager", freeze="embeddings,layers:1")
    assert contractions(anatomy, Phase.BACKWARD) > contractions(kept, Phase.BACKWARD) + PROJECTIONS
    biases = captured(tmp_path, attention="eager", freeze="all-but-biases", checkpointing="non-reentrant")
    assert biases.warnings == ()


def test_only_the_weights_of_a_frozen_model_must_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = planned(model=BERT, batch=2, seq=16, settings=tiny_request(BERT).settings)
    monkeypatch.setattr("opanatomy.capture.run.profile.available_bytes", lambda: 4 * plan.parameters + 1)
    with pytest.raises(OutOfMemory, match=r"\(weights, gradients and optimizer state\)"):
        capture_model(tiny_request(BERT, optimizer="adamw"), tmp_path / "t.json", NullProgress(), lambda _: None)
    anatomy = captured(tmp_path, optimizer="adamw", freeze="all-but-head")
    assert anatomy.workload.frozen == "all-but-head"
