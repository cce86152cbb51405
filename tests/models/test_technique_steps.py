"""The training techniques as options of a run: what each does to the step, by hand and next to the plain step."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import opanatomy
from opanatomy.capture.model.workload import Prepared, prepare
from opanatomy.capture.silence import quiet_libraries
from opanatomy.checks.counts import require_agreement
from opanatomy.errors import UsageError
from opanatomy.memory.theory import state_theory
from opanatomy.options import RunOptions
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.workload import Workload
from opanatomy.results import Anatomy
from tests.support.tiny import BERT, TINY, loss_of, message_of, profiled, tiny, tiny_request

GPT2, LLAMA, VIT, T5 = (
    "openai-community/gpt2",
    "meta-llama/Llama-3.1-8B",
    "google/vit-base-patch16-224",
    "google-t5/t5-base",
)
BART, CLIP, RESNET = "facebook/bart-base", "openai/clip-vit-base-patch32", "microsoft/resnet-50"
#: Settings without dropout: a step computes the same however it is cut.
STILL = {
    BERT: (("hidden_dropout_prob", "0.0"), ("attention_probs_dropout_prob", "0.0")),
    GPT2: (("embd_pdrop", "0.0"), ("resid_pdrop", "0.0"), ("attn_pdrop", "0.0")),
    T5: (("dropout_rate", "0.0"),),
    BART: (("dropout", "0.0"), ("attention_dropout", "0.0"), ("activation_dropout", "0.0")),
}
CHECKPOINTING = ("--checkpointing", "non-reentrant")


@cache
def captured(name: str, *words: str) -> Anatomy:
    """The anatomy of a run of a tiny model; its second counts agree."""
    anatomy = profiled(*tiny(name, *words))
    require_agreement(anatomy)
    assert {check.quantity: check.compared > 0 for check in anatomy.checks}["call counts"]
    return anatomy


def contractions(anatomy: Anatomy, phase: Phase) -> int:
    rows = [row for row in anatomy.classes if row.operator_class is OperatorClass.TENSOR_CONTRACTION]
    return sum(row.flops or 0 for row in rows if row.phase is phase)


def measured(anatomy: Anatomy, component: str) -> int:
    return next(row.measured_bytes or 0 for row in anatomy.memory.components if row.component == component)


def still(name: str, *more: tuple[str, str], **options: Any) -> Prepared:
    return prepare(tiny_request(name, settings=(*TINY[name], *STILL.get(name, ()), *more), **options))


def gradients_of(prepared: Prepared) -> dict[str, Tensor]:
    """The gradients of one step of plain torch."""
    loss_of(prepared).backward()
    return {name: one.grad for name, one in prepared.module.named_parameters() if one.grad is not None}


def gradients_at_update(module: nn.Module, inputs: Any, **options: Any) -> dict[str, Tensor]:
    """The gradients that the first update of a profile takes."""
    taken: dict[str, Tensor] = {}

    def note(*_: Any) -> None:
        if not taken:
            taken.update({name: one.grad.clone() for name, one in module.named_parameters() if one.grad is not None})

    handle = register_optimizer_step_pre_hook(note)
    try:
        opanatomy.profile(module, inputs, **{"optimizer": "sgd", **options})
    finally:
        handle.remove()
    return taken


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor], **tolerance: float) -> None:
    assert one.keys() == other.keys() != set()
    for name, gradient in one.items():
        torch.testing.assert_close(gradient, other[name], msg=lambda text, name=name: f"{name}: {text}", **tolerance)


# -------------------------------------------------------------------------------------------- accumulation, clipping


def test_accumulation_cuts_the_batch_and_updates_once() -> None:
    whole = captured(BERT, "--batch", "4", "--optimizer", "adamw")
    cut = captured(BERT, "--batch", "4", "--optimizer", "adamw", "--accumulate", "4")
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


@pytest.mark.parametrize("name", [BERT, LLAMA, VIT, T5])
def test_accumulated_gradients_are_those_of_the_whole_batch(name: str) -> None:
    whole, cut = still(name, batch=4), still(name, batch=4)
    expected = gradients_of(whole)
    assert_same(gradients_at_update(cut.module, cut.inputs, accumulate=4), expected, rtol=1e-4, atol=1e-6)


def test_outputs_without_a_loss_are_summed_over_micro_batches() -> None:
    module, inputs = nn.Linear(4, 4), torch.randn(6, 4)
    module(inputs).sum().backward()
    expected = {name: one.grad.clone() for name, one in module.named_parameters() if one.grad is not None}
    module.zero_grad()
    assert_same(gradients_at_update(module, inputs, accumulate=3), expected)
    anatomy = opanatomy.profile(module, {"input": inputs}, accumulate=3, memory=True)
    assert anatomy.workload.micro_batch == 2
    assert contractions(anatomy, Phase.FORWARD) == 2 * 6 * 4 * 4


@pytest.mark.parametrize(
    ("inputs", "parts", "said"),
    [
        (
            (torch.ones(6, 4),),
            4,
            (
                "accumulate=4: a batch of 6 cannot be split into 4 equal micro-batches - use one of its divisors:"
                " 1, 2, 3, 6"
            ),
        ),
        (
            (torch.ones(6, 4), {"mask": torch.ones(4, 4)}),
            2,
            "accumulate=2: input mask of shape (4, 4) cannot be split along a batch of 6 - pass"
            " inputs whose first dimension is the batch",
        ),
    ],
)
def test_a_batch_that_cannot_be_cut_is_refused(inputs: Any, parts: int, said: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(said)}"):
        opanatomy.profile(nn.Linear(4, 4), inputs, accumulate=parts)


@pytest.mark.parametrize("amp", [None, "bf16", "fp16"])
def test_clipping_comes_between_unscaling_and_the_update(amp: str | None) -> None:
    torch.manual_seed(0)
    module, inputs = nn.Linear(8, 8, bias=False), torch.ones(4, 8) / 64
    free = gradients_at_update(module, inputs, amp=amp, optimizer="adamw-loop")["weight"]
    clipped = gradients_at_update(module, inputs, amp=amp, optimizer="adamw-loop", clip=0.1)["weight"]
    assert free.norm() > 0.1
    torch.testing.assert_close(clipped, free * 0.1 / free.norm(), rtol=1e-3, atol=0.0)


def test_clipping_is_of_the_optimizer_phase() -> None:
    anatomy = captured(BERT, "--optimizer", "adamw", "--clip", "1.0", "--amp", "fp16", "--accumulate", "2")
    assert [row.phase for row in anatomy.operators if "_foreach_norm" in row.operator] == [Phase.OPTIMIZER]
    assert anatomy.workload.clip == 1.0
    with pytest.raises(
        UsageError, match=r"^clip=1.0 clips before an optimizer update, and this run has none - add optimizer='ada"
    ):
        opanatomy.profile(nn.Linear(2, 2), torch.ones(2, 2), clip=1.0)


# ------------------------------------------------------------------------------------------------------------ segments

LAYERS = {BERT: "num_hidden_layers", GPT2: "n_layer", LLAMA: "num_hidden_layers", VIT: "num_hidden_layers"}


@pytest.mark.parametrize("kind", ["non-reentrant", "reentrant"])
@pytest.mark.parametrize("name", [BERT, GPT2, LLAMA, VIT, BART])
def test_segments_give_the_same_gradients(name: str, kind: str) -> None:
    deep = ((LAYERS[name], "4"),) if name in LAYERS else ()
    plain, again = still(name, *deep), still(name, *deep, checkpointing=kind, checkpoint_every=2)
    assert_same(gradients_of(again), gradients_of(plain), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("kind", ["non-reentrant", "reentrant"])
def test_only_the_input_of_a_segment_is_kept(kind: str) -> None:
    words = ("--attention", "eager", "--set", "n_layer=4", "--checkpointing", kind)
    one, two, four = (captured(GPT2, *words, "--checkpoint-every", every) for every in ("1", "2", "4"))
    hidden = 4 * 2 * 16 * 32
    assert measured(one, "forward_activations") - measured(two, "forward_activations") == 2 * hidden
    assert measured(two, "forward_activations") - measured(four, "forward_activations") == hidden
    assert two.workload.checkpoint_every == 2
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert contractions(one, phase) == contractions(two, phase) == contractions(four, phase)
    layers = {row.module for row in four.modules if row.phase is Phase.RECOMPUTE and row.flops}
    assert {f"transformer.h.{number}.mlp.c_fc" for number in range(4)} <= layers


def test_layers_that_make_no_segments_are_refused() -> None:
    prepared: Any = prepare(tiny_request(T5, checkpoint_every=2))
    with pytest.raises(UsageError, match=r"^--checkpoint-every 2: a T5Block in encoder.block returns values besides"):
        prepared.module(**prepared.inputs)
    assert message_of(tiny_request(BERT, checkpoint_every=3), UsageError).startswith("--checkpoint-every 3")
    assert RunOptions(checkpoint_every=2).checkpointing == "non-reentrant"
    with pytest.raises(UsageError, match=r"^inference=True runs no backward - leave out checkpoint_every=2$"):
        RunOptions(inference=True, checkpoint_every=2)


# ------------------------------------------------------------------------------------------------------------ freezing


def trained(name: str, **options: Any) -> set[str]:
    module = prepare(tiny_request(name, **options)).module
    return {key for key, parameter in module.named_parameters() if parameter.requires_grad}


def all_of(name: str) -> set[str]:
    return {key for key, _ in prepare(tiny_request(name)).module.named_parameters()}


@pytest.mark.parametrize(
    ("name", "embeddings", "lowest"),
    [
        (BERT, ("bert.embeddings.",), ("bert.encoder.layer.0.",)),
        (GPT2, ("transformer.wte.", "transformer.wpe."), ("transformer.h.0.",)),
        (LLAMA, ("model.embed_tokens.",), ("model.layers.0.",)),
        (VIT, ("vit.embeddings.",), ("vit.layers.0.", "vit.encoder.layer.0.")),
        (T5, ("shared.",), ("encoder.block.0.",)),
        (
            BART,
            ("model.shared.", "model.encoder.embed_positions.", "model.decoder.embed_positions."),
            ("model.encoder.layers.0.",),
        ),
        (
            CLIP,
            ("text_model.embeddings.", "vision_model.embeddings."),
            ("text_model.encoder.layers.0.", "vision_model.encoder.layers.0."),
        ),
        (RESNET, ("resnet.embedder.",), ("resnet.encoder.stages.0.",)),
    ],
)
def test_embeddings_and_the_lowest_layers(name: str, embeddings: tuple[str, ...], lowest: tuple[str, ...]) -> None:
    everything = all_of(name)
    for parts, prefixes in (
        ("embeddings", embeddings),
        ("layers:1", lowest),
        ("layers:1,embeddings", (*embeddings, *lowest)),
    ):
        frozen = {key for key in everything if key.startswith(prefixes)}
        assert frozen
        assert trained(name, freeze=parts) == everything - frozen


def test_only_biases_and_only_the_head() -> None:
    assert trained(BERT, freeze="all-but-biases") == {key for key in all_of(BERT) if key.endswith("bias")}
    assert trained(VIT, freeze="all-but-head") == {"classifier.weight", "classifier.bias"}
    # The weight of the masked-word head is that of the embeddings.
    assert all(key.startswith("cls.predictions.") for key in trained(BERT, freeze="all-but-head"))
    # The decoder comes after the encoder.
    prefixes = ("encoder.block.", "decoder.block.0.")
    assert trained(T5, freeze="layers:3") == {key for key in all_of(T5) if not key.startswith(prefixes)}
    assert RunOptions(freeze="Layers:02, embeddings").freeze == "layers:2,embeddings"


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (
            BERT,
            {"freeze": "layers:3"},
            "--freeze layers:3: BertForMaskedLM has only 2 layers - choose from embeddings, layers:N"
            " (2 BertLayer in bert.encoder.layer), all-but-biases, all-but-head",
        ),
        (LLAMA, {"freeze": "all-but-biases"}, "--freeze all-but-biases: LlamaForCausalLM has no biases - choose from"),
        (GPT2, {"freeze": "all-but-head"}, "--freeze all-but-head: GPT2LMHeadModel has no weights outside its base"),
        (VIT, {"fused_loss": True}, "--fused-loss"),
        (
            BERT,
            {"batch": 4, "accumulate": 3},
            "--accumulate 3: a batch of 4 cannot be split into 3 equal micro-batches",
        ),
    ],
)
def test_models_that_cannot_are_refused(name: str, options: dict[str, Any], said: str) -> None:
    assert message_of(tiny_request(name, **options), UsageError).startswith(said)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            "embedings",
            "'embedings' is not a part of the model - did you mean embeddings? Use one of embeddings, layers",
        ),
        ("layers:few", "'layers:few' is not valid - write layers:N for the lowest N"),
        ("layers:0", "'layers:0' freezes nothing - use 1 or more"),
        ("", "empty - use one of embeddings, layers, all-but-biases, all-but-head"),
        ("all-but-biases,all-but-head", "all-but-biases and all-but-head are mutually exclusive - leave one out"),
    ],
)
def test_parts_that_are_none_are_refused(parts: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        RunOptions(freeze=parts)
    assert str(caught.value).startswith(f"freeze={parts!r}: {said}")


#: One layer of the tiny BERT, 2 x 16 tokens of 32 with 2 heads and an inner size of 64, and its head of 160 words.
TOKENS = 2 * 16
PROJECTIONS = 2 * TOKENS * (4 * 32 * 32 + 2 * 32 * 64)
ATTENTION = 2 * (2 * 2 * 2) * 16 * 16 * 16
HEAD = 2 * TOKENS * (32 * 32 + 32 * 160)
EAGER = ("--attention", "eager")
LOWER = ("--freeze", "embeddings,layers:1")


def test_a_frozen_bottom_has_no_backward_and_keeps_nothing() -> None:
    whole, frozen = captured(BERT, *EAGER), captured(BERT, *EAGER, *LOWER, "--optimizer", "adamw")
    workload = frozen.workload
    assert workload.frozen == "embeddings,layers:1"
    assert measured(frozen, "gradients") == 4 * (workload.trainable_parameters or 0)
    assert measured(frozen, "optimizer_state") == 8 * (workload.trainable_parameters or 0)
    forward = 2 * (PROJECTIONS + ATTENTION) + HEAD
    assert contractions(whole, Phase.FORWARD) == contractions(frozen, Phase.FORWARD) == forward
    # Of the lowest trained layer query, key and value pass no gradient on; the shared weight of the head is frozen.
    first, shared = 2 * TOKENS * 3 * 32 * 32, 2 * TOKENS * 32 * 160
    assert contractions(frozen, Phase.BACKWARD) == 2 * (PROJECTIONS + ATTENTION + HEAD) - first - shared
    assert measured(frozen, "forward_activations") < measured(whole, "forward_activations")
    (ratio,) = [row for row in frozen.ratios if row.operator_class == "tensor_contraction"]
    assert ratio.flops == pytest.approx(ratio.theory_flops)


def test_biases_need_the_gradients_of_inputs_alone() -> None:
    anatomy = captured(BERT, *EAGER, "--freeze", "all-but-biases")
    assert contractions(anatomy, Phase.BACKWARD) == 2 * (PROJECTIONS + 2 * ATTENTION) + HEAD


def test_checkpointing_undoes_freezing_and_it_is_said() -> None:
    anatomy = captured(BERT, *EAGER, *LOWER, *CHECKPOINTING)
    (warning,) = anatomy.warnings
    assert warning.startswith("checkpointing undoes freezing: ")
    # The lowest layer is run again and passes gradients on, for nobody: its own products, and those of the next.
    assert contractions(anatomy, Phase.RECOMPUTE) >= 2 * ATTENTION + PROJECTIONS
    kept = captured(BERT, *EAGER, *LOWER, "--optimizer", "adamw")
    assert contractions(anatomy, Phase.BACKWARD) > contractions(kept, Phase.BACKWARD) + PROJECTIONS
    assert captured(BERT, *EAGER, "--freeze", "all-but-biases", *CHECKPOINTING).warnings == ()
    segments = captured(BERT, "--set", "num_hidden_layers=4", "--freeze", "layers:2", "--checkpoint-every", "2")
    assert segments.warnings == ()  # which leave the frozen layers out


# ------------------------------------------------------------------------------------------------------------ adapters

RANK = 4
#: The adapters of query and value in one layer, in forward; in backward each product has two gradients.
ADAPTERS = 2 * (2 * TOKENS * 2 * RANK * 32)


@pytest.mark.parametrize("name", [BERT, GPT2, LLAMA, T5, VIT])
def test_only_adapters_and_the_head_of_a_classifier_are_trained(name: str) -> None:
    pytest.importorskip("peft")
    kept = {"classifier.weight", "classifier.bias"} if name == VIT else set()
    names = trained(name, lora=RANK)
    assert names > kept
    assert all(".lora_A.default." in key or ".lora_B.default." in key for key in names - kept)
    for kind in ("non-reentrant", "reentrant"):
        prepared = prepare(tiny_request(name, lora=RANK, checkpointing=kind))
        assert gradients_of(prepared).keys() == names
    with pytest.raises(
        UsageError, match=r"^lora=4 freezes everything but the adapters - leave out freeze='embeddings'$"
    ):
        RunOptions(lora=RANK, freeze="embeddings")


def test_where_the_time_of_adapters_goes() -> None:
    pytest.importorskip("peft")
    lora = (*EAGER, "--optimizer", "adamw", "--lora", str(RANK))
    plain, again = captured(BERT, *lora), captured(BERT, *lora, *CHECKPOINTING)
    assert contractions(plain, Phase.FORWARD) == 2 * (PROJECTIONS + ATTENTION + ADAPTERS) + HEAD
    # Weights need no gradients, inputs do: all but those of the first layer's query, key, value and adapters; nor does
    # its key, whose product with the query has one gradient less.
    inputs = 2 * PROJECTIONS + HEAD + 2 * 2 * ATTENTION + 2 * 2 * ADAPTERS
    first = 2 * TOKENS * 3 * 32 * 32 + 2 * (2 * TOKENS * RANK * 32) + ATTENTION // 2
    assert contractions(plain, Phase.BACKWARD) == inputs - first
    # Checkpointing has the embeddings require a gradient, and runs the layers once more.
    assert contractions(again, Phase.BACKWARD) == inputs
    assert contractions(again, Phase.RECOMPUTE) > 0.9 * 2 * (PROJECTIONS + ATTENTION + ADAPTERS)
    assert "bert.encoder.layer.1.attention.self.query.lora_A.default" in {row.module for row in again.modules}
    assert again.workload.lora == RANK


# ---------------------------------------------------------------------------------------------------- 8-bit optimizers


@pytest.mark.parametrize("embeddings", [False, True])
def test_the_state_of_eight_bits_is_that_of_theory(embeddings: bool) -> None:
    name = "adamw8bit-embeddings32" if embeddings else "adamw8bit"
    small, table, rest = 1_000, 50_000, 200_000
    ran = Workload(
        parameters=small + table + rest,
        trainable_parameters=small + table + rest,
        small_parameters=small,
        embedding_parameters=table,
        dtype="float32",
        optimizer=name,
    )
    full = small + table if embeddings else small
    assert state_theory(ran)[-1].theory_bytes == 8 * full + round(2.03125 * (small + table + rest - full))
    pytest.importorskip("bitsandbytes")
    wide = ("--set", "hidden_size=128", "--set", "intermediate_size=512", "--set", "vocab_size=1024")
    rows = {row.component: row for row in captured(BERT, "--optimizer", name, *wide).memory.components}
    state = rows["optimizer_state"]
    # Two code books of 256 values serve all tensors; what is left are the last blocks, which are not full.
    assert (state.measured_bytes or 0) - 2 * 256 * 4 == pytest.approx(state.theory_bytes, rel=1e-3)


# ---------------------------------------------------------------------------------------------------------- fused loss

has_it = pytest.mark.skipif(
    not hasattr(torch.nn.functional, "linear_cross_entropy"), reason="torch before 2.13 has no such function"
)


@has_it
@pytest.mark.parametrize("name", [BERT, GPT2, LLAMA, T5, "FacebookAI/roberta-base"])
def test_a_fused_loss_and_its_gradients_are_the_same(name: str) -> None:
    more = STILL[BERT] if "roberta" in name else ()
    plain, fused = still(name, *more), still(name, *more, fused_loss=True)
    torch.testing.assert_close(loss_of(fused), loss_of(plain))
    assert_same(gradients_of(fused), gradients_of(plain), rtol=1e-4, atol=1e-6)


@has_it
def test_logits_are_never_whole_and_every_chunk_is_counted() -> None:
    words = ("--set", "vocab_size=2000", "--batch", "8", "--memory", "--optimizer", "adamw")
    plain, fused = captured(BERT, *words), captured(BERT, *words, "--fused-loss")
    # Plain, the logits, their logarithms and the gradient of these; fused, the gradient of the weight before its time.
    assert (plain.memory.peak_bytes or 0) - (fused.memory.peak_bytes or 0) > 8 * 16 * 2000 * 4
    assert fused.workload.fused_loss
    assert ("aten::_log_softmax", Phase.FORWARD) not in {(row.operator, row.phase) for row in fused.operators}
    # The products of the head's backward are in its forward, and two of each token's loss with its weight.
    tokens = 8 * 16
    head = 2 * tokens * 32 * 2000
    assert contractions(fused, Phase.FORWARD) == contractions(plain, Phase.FORWARD) + 2 * head + 2 * 2 * tokens
    assert contractions(fused, Phase.BACKWARD) == contractions(plain, Phase.BACKWARD) - 2 * head


@has_it
def test_a_model_that_computes_with_its_logits_is_refused() -> None:
    prepared: Any = prepare(tiny_request(BART, fused_loss=True))
    with pytest.raises(UsageError, match=r"^--fused-loss: the model computes add on its logits"), quiet_libraries():
        prepared.module(**prepared.inputs)


def test_techniques_go_together() -> None:
    words = ("--amp", "bf16", "--accumulate", "2", "--checkpointing", "reentrant", "--clip", "1", "--optimizer", "sgd")
    assert captured(GPT2, *words).warnings == ()
