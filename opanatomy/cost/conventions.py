"""Count FLOPs per token by the formulas behind published MFUs, as in each project's own code."""

from __future__ import annotations

from collections.abc import Iterator

from opanatomy.records.estimate import DecoderShape, FlopConvention


def conventions_of(shape: DecoderShape, length: int) -> Iterator[FlopConvention]:
    """Yield each formula's training FLOPs per token for samples of this length; a multiply-accumulate counts 2.

    Forward and backward without recomputation: three times forward. Sources, of 2026: nanoGPT model.py `estimate_mfu`;
    PaLM, appendix B; llm-foundry scripts/train/benchmarking/collect_results.py; torchtitan models/utils.py;
    Megatron-LM training.py `num_floating_point_operations`, and Megatron-Bridge the same; transformers
    `floating_point_ops`, which `Trainer` sums as `total_flos`.
    """
    layers, width = shape.layers, shape.hidden
    heads, size = shape.heads, shape.head_size
    scores = 12 * layers * heads * size * length
    # The weights that a token is multiplied with: those of attention, of its experts, and of the head.
    attention = 2 * width * size * (heads + shape.key_value_heads)
    products = 6 * (layers * attention + shape.inner_weights + width * shape.vocabulary)
    active = shape.parameters - shape.idle
    yield FlopConvention(name="6N", flops=6 * active, counts="parameters used per token", leaves_out="attention scores")
    yield FlopConvention(
        name="PaLM",
        flops=6 * active + scores,
        counts="6N plus full attention",
        leaves_out="nothing (counts lookups as matmuls)",
    )
    yield FlopConvention(
        name="nanoGPT",
        flops=6 * (active - shape.positions) + 12 * layers * width * length,
        counts="6N without position embeddings, full attention",
        leaves_out="attention wider than the hidden size",
    )
    yield FlopConvention(
        name="llm-foundry",
        flops=6 * shape.parameters + 12 * layers * width * length,
        counts="all parameters, full attention",
        leaves_out="expert sparsity (counts every expert)",
    )
    looked_up = shape.embeddings - (shape.vocabulary * width if shape.tied else 0)
    yield FlopConvention(
        name="torchtitan",
        flops=6 * (active - looked_up) + scores,
        counts="parameters without lookup tables, full attention",
        leaves_out="the causal mask",
    )
    yield FlopConvention(
        name="Megatron-LM to 2025",
        flops=products + scores,
        counts="matmuls, full attention",
        leaves_out="the causal mask, norms, biases",
    )
    yield FlopConvention(
        name="Megatron-LM",
        flops=products + scores // 2,
        counts="matmuls, causal half of attention",
        leaves_out="norms, biases, routers",
    )
    yield FlopConvention(
        name="total_flos",
        flops=6 * (shape.parameters - shape.embeddings),
        counts="parameters except embeddings",
        leaves_out="attention scores, a tied head",
    )
