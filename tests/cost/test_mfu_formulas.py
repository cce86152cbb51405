"""FLOPs of a token by the formulas of projects: next to figures that the projects themselves print."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from opanatomy.capture.step.shape import decoder_of
from opanatomy.cost.conventions import conventions_of
from opanatomy.records.estimate import DecoderShape

LLAMA = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
LLAMA_70B = {
    **LLAMA,
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "intermediate_size": 28672,
}
MIXTRAL = {**LLAMA, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}
QWEN3 = {
    "num_hidden_layers": 28,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 3072,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}


def shape_of(kind: str, **settings: object) -> DecoderShape:
    config = AutoConfig.for_model(kind, **settings)
    with torch.device("meta"):
        shape = decoder_of(AutoModelForCausalLM.from_config(config))
    assert shape is not None
    return shape


def flops(kind: str, length: int, **settings: object) -> dict[str, float]:
    """Return GFLOP a token by each formula."""
    return {each.name: each.flops / 1e9 for each in conventions_of(shape_of(kind, **settings), length)}


@pytest.mark.parametrize(
    ("kind", "settings", "length", "expected"),
    [
        # Computed from each project's own code, by hand, elsewhere.
        (
            "llama",
            LLAMA,
            8192,
            {
                "6N": 48.181567,
                "PaLM": 61.066469,
                "nanoGPT": 61.066469,
                "llm-foundry": 61.066469,
                "torchtitan": 57.914450,
                "Megatron-LM to 2025": 57.912852,
                "Megatron-LM": 51.470402,
                "total_flos": 45.029548,
            },
        ),
        (
            "llama",
            LLAMA_70B,
            8192,
            {
                "6N": 423.322239,
                "PaLM": 487.746748,
                "torchtitan": 481.442710,
                "Megatron-LM to 2025": 481.434796,
                "Megatron-LM": 449.222541,
                "total_flos": 417.018200,
            },
        ),
        (
            "mixtral",
            MIXTRAL,
            4096,
            {
                "6N": 77.279551,
                "PaLM": 83.722002,
                "llm-foundry": 286.659207,
                "torchtitan": 82.935570,
                "Megatron-LM": 79.706456,
                "total_flos": 279.430324,
            },
        ),
        (
            "qwen3",
            QWEN3,
            4096,
            {
                "6N": 3.576300,
                "PaLM": 6.394872,
                "nanoGPT": 4.985586,
                "torchtitan": 6.394872,
                "Megatron-LM": 4.985192,
                "total_flos": 2.642805,
            },
        ),
    ],
)
def test_formulas_of_four_models(
    kind: str, settings: dict[str, object], length: int, expected: dict[str, float]
) -> None:
    made = flops(kind, length, **settings)
    for name, value in expected.items():
        assert made[name] == pytest.approx(value, rel=1e-4), name


def test_nanogpt_prints_gpt2() -> None:
    """Its notebook transformer_sizing has 879,894,724,608 FLOPs by PaLM's formula for 1,024 tokens without biases."""
    shape = shape_of("gpt2")
    biases = shape.parameters - 124_337_664  # by the notebook
    (palm,) = (each for each in conventions_of(shape, 1024) if each.name == "PaLM")
    assert 1024 * (palm.flops - 6 * biases) == 879_894_724_608


@pytest.mark.parametrize(
    ("settings", "length", "tokens_per_second", "printed", "formula"),
    [
        # One 70B configuration, published with full and with causal attention.
        (LLAMA_70B, 8192, 1621, 780, "Megatron-LM to 2025"),  # NVIDIA/Megatron-LM examples/llama/README.md
        (LLAMA_70B, 8192, 1619, 727, "Megatron-LM"),  # NVIDIA-NeMo/Megatron-Bridge docs/performance-summary.md, 25.09
        (LLAMA, 8192, 13812, 800, "Megatron-LM to 2025"),  # NVIDIA/Megatron-LM examples/llama/README.md
        (LLAMA, 8192, 14451, 744, "Megatron-LM"),
        (LLAMA_70B, 8192, 4520, 2030, "Megatron-LM"),  # Megatron-Bridge 25.11
    ],
)
def test_published_throughputs(
    settings: dict[str, object], length: int, tokens_per_second: int, printed: int, formula: str
) -> None:
    """Tokens and TFLOP/s of a GPU as a vendor prints them, both rounded."""
    made = flops("llama", length, **settings)[formula]
    assert made * tokens_per_second / 1e3 == pytest.approx(printed, abs=1)


@pytest.mark.parametrize(
    ("settings", "length", "tokens_per_second", "mfu", "peak"),
    [
        # pytorch/torchtitan docs/performance.md of 2024 on A100: with embeddings, which is PaLM's formula.
        (LLAMA, 8192, 2904, 0.568, 312e12),
        (LLAMA_70B, 8192, 331, 0.517, 312e12),
    ],
)
def test_published_mfus(
    settings: dict[str, object], length: int, tokens_per_second: int, mfu: float, peak: float
) -> None:
    made = flops("llama", length, **settings)["PaLM"]
    assert made * 1e9 * tokens_per_second / peak == pytest.approx(mfu, abs=0.001)


def test_a_model_that_decodes_no_words_has_none() -> None:
    config = AutoConfig.for_model("bert", num_hidden_layers=1, hidden_size=32, num_attention_heads=2)
    with torch.device("meta"):
        assert decoder_of(AutoModelForMaskedLM.from_config(config)) is None
