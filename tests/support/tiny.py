"""Every architecture of the catalog cut down to what one CPU core trains in well under a second."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import opanatomy
from opanatomy.__main__ import main
from opanatomy.capture.model.workload import Plan, Prepared, plan_of, prepare
from opanatomy.capture.silence import quiet_libraries
from opanatomy.errors import OpanatomyError
from opanatomy.options import RunOptions
from opanatomy.results import Anatomy

BERT = "google-bert/bert-base-uncased"

#: Catalog name -> the settings (`RunOptions.settings`) that make its model tiny; two layers, hidden size 32 to 64.
TINY: dict[str, tuple[tuple[str, str], ...]] = {}
#: What else `RunOptions` takes for the tiny models: batch, and the length where they have one.
TINY_BATCH = 2
TINY_SEQ: dict[str, int] = {}
#: Words in the names of those that have no `sdpa` attention.
NO_SDPA = ("deberta", "mamba", "resnet")


def _tiny(name: str, seq: int | None = 16, **settings: Any) -> None:
    TINY[name] = tuple((key.replace("__", "."), str(value)) for key, value in settings.items())
    if seq is not None:
        TINY_SEQ[name] = seq


_BERT = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 160,
}
_GPT2 = {
    "n_layer": 2,
    "n_embd": 32,
    "n_head": 2,
    "vocab_size": 160,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
_LLAMA = {**_BERT, "num_key_value_heads": 1, "head_dim": 16, "bos_token_id": 1, "eos_token_id": 2}

_tiny("google-bert/bert-base-uncased", **_BERT, max_position_embeddings=64)
_tiny("google-bert/bert-large-uncased", **_BERT, max_position_embeddings=64)
_tiny("FacebookAI/roberta-base", **_BERT, max_position_embeddings=66)
_tiny("microsoft/deberta-v3-base", **_BERT, max_position_embeddings=64, position_buckets=16)
_tiny(
    "distilbert/distilbert-base-uncased",
    n_layers=2,
    dim=32,
    n_heads=2,
    hidden_dim=64,
    vocab_size=160,
    max_position_embeddings=64,
)
_tiny("openai-community/gpt2", **_GPT2)
_tiny("openai-community/gpt2-xl", **_GPT2)
_tiny("meta-llama/Llama-3.1-8B", **_LLAMA)
_tiny("Qwen/Qwen3-0.6B", **_LLAMA)
_tiny("mistralai/Mistral-7B-v0.1", **_LLAMA, sliding_window=8)
_tiny("mistralai/Mixtral-8x7B-v0.1", **_LLAMA, num_local_experts=4)
_tiny("Qwen/Qwen3-30B-A3B", **_LLAMA, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
_tiny(
    "state-spaces/mamba-130m-hf",
    num_hidden_layers=2,
    hidden_size=32,
    intermediate_size=64,
    state_size=4,
    time_step_rank=2,
    vocab_size=160,
)
_tiny("google-t5/t5-base", num_layers=2, d_model=32, d_kv=16, d_ff=64, num_heads=2, vocab_size=160)
_tiny(
    "facebook/bart-base",
    encoder_layers=2,
    decoder_layers=2,
    d_model=32,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    vocab_size=160,
    max_position_embeddings=64,
)
_tiny(
    "google/vit-base-patch16-224",
    None,
    num_hidden_layers=2,
    hidden_size=32,
    num_attention_heads=2,
    intermediate_size=64,
    image_size=32,
    patch_size=8,
    num_labels=10,
)
_tiny(
    "microsoft/resnet-50", None, depths=[1, 1], hidden_sizes=[32, 64], embedding_size=16, image_size=32, num_labels=10
)
_tiny(
    "facebook/wav2vec2-base-960h",
    2_000,
    num_hidden_layers=2,
    hidden_size=32,
    num_attention_heads=2,
    intermediate_size=64,
    conv_dim=[16, 16, 16],
    conv_kernel=[10, 8, 4],
    conv_stride=[5, 4, 2],
    num_feat_extract_layers=3,
    num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=2,
    vocab_size=160,
)
_tiny(
    "openai/whisper-small",
    encoder_layers=2,
    decoder_layers=2,
    d_model=32,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    vocab_size=160,
    max_source_positions=32,
    max_target_positions=32,
    num_mel_bins=16,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=1,
    decoder_start_token_id=2,
)
_tiny(
    "openai/clip-vit-base-patch32",
    projection_dim=32,
    text_config__num_hidden_layers=2,
    text_config__hidden_size=32,
    text_config__num_attention_heads=2,
    text_config__intermediate_size=64,
    text_config__vocab_size=160,
    text_config__projection_dim=32,
    vision_config__num_hidden_layers=2,
    vision_config__hidden_size=32,
    vision_config__num_attention_heads=2,
    vision_config__intermediate_size=64,
    vision_config__image_size=32,
    vision_config__patch_size=8,
    vision_config__projection_dim=32,
)


#: Cut down, these are the same model as their smaller sisters, which `test_catalog.py` holds; they are left out where
#: only the computation counts.
SISTERS = {"google-bert/bert-large-uncased": BERT, "openai-community/gpt2-xl": "openai-community/gpt2"}
DISTINCT = tuple(name for name in TINY if name not in SISTERS)


def on_cpu(**options: Any) -> RunOptions:
    """The options of a run on the CPU."""
    return RunOptions(**{"device": "cpu", **options})


def tiny_words(model: str) -> tuple[str, ...]:
    """The words that make a model tiny, its batch and its device."""
    settings = [word for key, value in TINY[model] for word in ("--set", f"{key}={value}")]
    length = ("--seq", str(TINY_SEQ[model])) if model in TINY_SEQ else ()
    return (*settings, *length, "--batch", str(TINY_BATCH), "--device", "cpu")


def tiny(model: str, *more: str) -> tuple[str, ...]:
    """The words that profile a tiny model."""
    return (model, *tiny_words(model), *more)


def profiled(*words: str) -> Anatomy:
    """The report of `opanatomy profile` with these words, in this process, without predictions: they take longer."""
    with tempfile.TemporaryDirectory() as folder:
        report = f"{folder}/report.json"
        assert main(["profile", *words, "--suggest", "0", "--trace", f"{folder}/trace.json", "-o", report]) == 0
        anatomy = opanatomy.read(report)
    assert isinstance(anatomy, Anatomy)
    return anatomy


def planned(**options: Any) -> Plan:
    """The plan of a model that is no function."""
    plan = plan_of(on_cpu(**options))
    assert plan is not None
    return plan


def tiny_request(name: str, **others: Any) -> RunOptions:
    """The options of a run of the tiny model `name`, with `others` over what it has here."""
    return on_cpu(**{"model": name, "batch": TINY_BATCH, "seq": TINY_SEQ.get(name), "settings": TINY[name], **others})


def loss_of(prepared: Prepared) -> torch.Tensor:
    """The loss of one forward pass."""
    with quiet_libraries():
        assert isinstance(prepared.inputs, dict)
        loss: torch.Tensor = prepared.module(**prepared.inputs).loss
    return loss


def message_of(options: RunOptions, kind: type[OpanatomyError]) -> str:
    """The one line that `prepare` refuses the options with."""
    with pytest.raises(kind) as caught:
        prepare(options)
    message = str(caught.value)
    assert "\n" not in message
    assert " - " in message or ": " in message
    return message


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread: what is so small takes longer on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
