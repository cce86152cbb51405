"""From a request to a module and a batch: every architecture trains, every wrong argument is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from opanatomy.capture.batches import audio_frames
from opanatomy.capture.model.workload import prepare
from opanatomy.capture.silence import quiet_libraries
from opanatomy.errors import OpanatomyError
from tests.support.tiny import BERT, TINY, loss_of, message_of, on_cpu, planned, tiny_request

# --------------------------------------------------------------------------------------------------- every model trains


@pytest.mark.parametrize("name", TINY)
def test_tiny_model_trains(name: str) -> None:
    prepared = prepare(tiny_request(name))
    module = prepared.module
    assert module.training
    assert (prepared.batch, prepared.name, prepared.source) == (2, name, "catalog")
    assert prepared.architecture == type(module).__name__ == planned(model=name).architecture
    loss = loss_of(prepared)
    loss.backward()
    assert torch.isfinite(loss)
    without = [key for key, value in module.named_parameters() if value.requires_grad and value.grad is None]
    assert without == []


@pytest.mark.parametrize("others", [{"task": "base"}, {"inference": True}], ids=["base", "inference"])
@pytest.mark.parametrize("name", TINY)
def test_without_a_loss_there_are_no_labels(name: str, others: dict[str, Any]) -> None:
    prepared = prepare(tiny_request(name, **others))
    assert prepared.module.training != ("inference" in others)
    assert not {"labels", "return_loss"}.intersection(prepared.inputs)
    with torch.no_grad(), quiet_libraries():
        outputs = prepared.module(**prepared.inputs)
    assert "loss" not in outputs


# ResNet has no checkpointing; DeBERTa's layers share relative embeddings, whose graph the reentrant kind runs twice.
@pytest.mark.parametrize(
    ("name", "others", "architecture", "labels"),
    [
        (BERT, {"task": "sequence-classification"}, "BertForSequenceClassification", (2,)),
        (BERT, {"task": "causal-lm"}, "BertLMHeadModel", (2, 16)),
        ("openai-community/gpt2", {"task": "token-classification"}, "GPT2ForTokenClassification", (2, 16)),
        # Without a token for padding.
        ("meta-llama/Llama-3.1-8B", {"task": "sequence-classification"}, "LlamaForSequenceClassification", (2,)),
        ("facebook/wav2vec2-base-960h", {"task": "sequence-classification"}, "Wav2Vec2ForSequenceClassification", (2,)),
        (
            "openai/clip-vit-base-patch32",
            {"task": "image-classification", "seq": None},
            "CLIPForImageClassification",
            (2,),
        ),
        ("google/vit-base-patch16-224", {"dtype": "bf16"}, "ViTForImageClassification", (2,)),
        (BERT, {"attention": "eager", "dtype": "float64"}, "BertForMaskedLM", (2, 16)),
    ],
)
def test_another_task_type_or_attention(
    name: str, others: dict[str, Any], architecture: str, labels: tuple[int, ...]
) -> None:
    prepared = prepare(tiny_request(name, **others))
    assert prepared.architecture == architecture
    assert prepared.task == others.get("task", prepared.task)
    assert isinstance(prepared.inputs, dict)
    assert prepared.inputs["labels"].shape == labels
    wanted = {"bf16": torch.bfloat16, "float64": torch.float64}.get(others.get("dtype", ""), torch.float32)
    assert {parameter.dtype for parameter in prepared.module.parameters()} == {wanted}
    assert {value.dtype for value in prepared.inputs.values() if value.is_floating_point()} <= {wanted}
    assert prepared.attention == prepared.module.config._attn_implementation == others.get("attention", "sdpa")
    loss = loss_of(prepared)
    loss.backward()
    assert torch.isfinite(loss)


# ------------------------------------------------------------------------------------------------------------ the batch


def test_the_classic_run() -> None:
    plan = planned(model="bert-large-uncased", batch=4)
    assert (plan.name, plan.task, plan.shape.sequence_length) == (
        "google-bert/bert-large-uncased",
        "masked-lm",
        512,
    )
    prepared = prepare(on_cpu(model="bert-large-uncased", batch=4, layers=1))
    assert isinstance(prepared.inputs, dict)
    ids = prepared.inputs["input_ids"]
    assert ids.shape == prepared.inputs["labels"].shape == (4, 512)
    assert (int(ids.min()), int(ids.max())) >= (100, 29_000)
    assert int(ids.max()) < 30_000
    assert set(prepared.inputs) == {"input_ids", "labels"}
    assert prepared.changes == ("layers 24 -> 1",)
    assert prepared.module.config.use_cache is False


@pytest.mark.parametrize(
    ("settings", "dtype", "shape"),
    [
        ((("num_labels", "1"),), torch.float32, (2,)),
        ((("num_labels", "3"), ("problem_type", "regression")), torch.float32, (2, 3)),
        ((("num_labels", "3"), ("problem_type", "multi_label_classification")), torch.float32, (2, 3)),
        ((("num_labels", "3"),), torch.int64, (2,)),
    ],
)
def test_labels_of_other_kinds(
    settings: tuple[tuple[str, str], ...], dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    name = "microsoft/deberta-v3-base"
    prepared = prepare(tiny_request(name, settings=TINY[name] + settings))
    assert isinstance(prepared.inputs, dict)
    assert (prepared.inputs["labels"].dtype, prepared.inputs["labels"].shape) == (dtype, shape)
    assert torch.isfinite(loss_of(prepared))


def test_ctc_labels_fit_the_frames() -> None:
    prepared = prepare(tiny_request("facebook/wav2vec2-base-960h", seq=4_000))
    assert isinstance(prepared.inputs, dict)
    module: Any = prepared.module
    frames = int(module._get_feat_extract_output_lengths(torch.tensor([4_000])))
    assert audio_frames(module.config, 4_000) == frames
    assert "layerdrop 0.1 -> 0.0" in prepared.changes
    labels = prepared.inputs["labels"]
    assert labels.shape == (2, frames // 4)
    assert int(labels.min()) >= 1  # 0 is the blank
    assert torch.isfinite(loss_of(prepared))


# --------------------------------------------------------------------------------------------------------- the settings


@pytest.mark.parametrize(
    ("name", "layers", "changes"),
    [
        (BERT, 3, ("layers 12 -> 3",)),
        (BERT, 12, ()),
        ("openai-community/gpt2", 1, ("layers 12 -> 1",)),
        ("microsoft/resnet-50", 2, ("layers [3, 4, 6, 3] -> [2, 2, 2, 2]",)),
        ("google-t5/t5-base", 2, ("layers 12 -> 2",)),
        ("facebook/bart-base", 2, ("layers 6 -> 2",)),
        ("openai/whisper-small", 2, ("layers 12 -> 2",)),
        (
            "openai/clip-vit-base-patch32",
            2,
            ("layers 12 -> 2",),
        ),
        ("Qwen/Qwen3-30B-A3B", 1, ("layers 48 -> 1",)),
        ("state-spaces/mamba-130m-hf", 1, ("layers 24 -> 1",)),
    ],
)
def test_layers(name: str, layers: int, changes: tuple[str, ...]) -> None:
    whole, cut = planned(model=name), planned(model=name, layers=layers)
    assert cut.changes == changes
    assert whole.parameters is not None
    assert cut.parameters is not None
    assert (cut.parameters < whole.parameters) == bool(changes)


def test_layers_shorten_what_has_one_entry_each(tmp_path: Path) -> None:
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    content = {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 4, "layer_types": kinds,
        "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 64,
        "vocab_size": 160, "use_sliding_window": True, "sliding_window": 4,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(content))
    prepared = prepare(on_cpu(model=str(tmp_path), batch=1, seq=8, layers=2))
    assert prepared.module.config.layer_types == kinds[:2]
    assert torch.isfinite(loss_of(prepared))


def test_settings_change_the_model_and_say_so() -> None:
    settings = (("hidden_size", "96"), ("num_attention_heads", "4"), ("n_layer", "1"), ("vocab_size", "200"))
    prepared = prepare(on_cpu(model="gpt2", batch=1, seq=4, settings=settings))
    assert prepared.changes == (
        "hidden_size 768 -> 96",
        "num_attention_heads 12 -> 4",
        "n_layer 12 -> 1",
        "vocab_size 50257 -> 200",
    )
    assert (prepared.module.config.n_embd, prepared.module.config.n_head) == (96, 4)


def test_quantization_is_dropped_from_random_weights(tmp_path: Path) -> None:
    content = {"model_type": "bert", "num_hidden_layers": 1, "quantization_config": {"quant_method": "gptq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(content))
    plan = planned(model=str(tmp_path))
    assert plan.changes == ("quantization -> none (random weights are not quantized)",)


# ------------------------------------------------------------------------------------------------------ wrong arguments


@pytest.mark.parametrize(
    ("model", "others", "said"),
    [
        (BERT, {"seq": 513}, "at most 512 tokens"),
        ("roberta-base", {"seq": 513}, "at most 512 tokens (514 positions, 2 of them reserved)"),
        ("clip-vit-base-patch32", {"seq": 78}, "--set text_config.max_position_embeddings=78"),
        ("whisper-small", {"seq": 449}, "at most 448 tokens"),
        ("wav2vec2-base-960h", {"seq": 300}, "--seq 300"),
        ("vit-base-patch16-224", {"seq": 8}, "takes images"),
        (BERT, {"layers": 13}, "use 1 to 12"),
        (BERT, {"task": "seq2seq-lm"}, "choose from sequence-classification"),
        (BERT, {"attention": "magic"}, "--attention magic"),
        ("deberta-v3-base", {"attention": "sdpa"}, "--attention sdpa"),
        ("resnet-50", {"checkpointing": "non-reentrant"}, "ResNetForImageClassification"),
        (BERT, {"settings": (("hiden_size", "4"),)}, "did you mean hidden_size"),
        (BERT, {"settings": (("hidden_size", "wide"),)}, "'wide' is not a number"),
        (BERT, {"settings": (("text_config.hidden_size", "4"),)}, "leave out the dots"),
        ("clip-vit-base-patch32", {"settings": (("txt.hidden_size", "4"),)}, "its parts are text_config, vision_"),
        (BERT, {"settings": (("model_type", "gpt2"),)}, "'model_type' of "),
        ("Qwen3-0.6B", {"settings": (("num_key_value_heads", "3"),)}, "num_key_value_heads 3"),
        (BERT, {"settings": (("hidden_size", "770"),)}, "hidden_size=770"),
        (BERT, {"settings": (("hidden_act", "gellu"),)}, "hidden_act=gellu"),
        (BERT, {"settings": (("hidden_dropout_prob", "2"),)}, "hidden_dropout_prob=2"),
    ],
)
def test_wrong_argument(model: str, others: dict[str, Any], said: str) -> None:
    assert said in message_of(on_cpu(model=model, **others), OpanatomyError)
