"""Formulas read arguments by their place: torch's schemas must have them there."""

from __future__ import annotations

import pytest
import torch

aten = torch.ops.aten

#: Where the formulas look for what decides; torch's schemas must agree.
PLACES = {
    "_scaled_dot_product_flash_attention": {4: "is_causal"},
    "_scaled_dot_product_flash_attention_for_cpu": {4: "is_causal", 5: "attn_mask"},
    "_scaled_dot_product_efficient_attention": {3: "attn_bias", 4: "compute_log_sumexp", 6: "is_causal"},
    "_scaled_dot_product_cudnn_attention": {3: "attn_bias", 4: "compute_log_sumexp", 6: "is_causal"},
    "_scaled_dot_product_fused_attention_overrideable": {3: "attn_bias", 5: "is_causal"},
    "_scaled_dot_product_flash_attention_backward": {0: "grad_out", 1: "query", 11: "is_causal"},
    "_scaled_dot_product_flash_attention_for_cpu_backward": {7: "is_causal", 8: "attn_mask"},
    "_scaled_dot_product_efficient_attention_backward": {4: "attn_bias", 10: "grad_input_mask", 11: "is_causal"},
    "_scaled_dot_product_cudnn_attention_backward": {8: "attn_bias", 14: "is_causal"},
    "_scaled_dot_product_fused_attention_overrideable_backward": {4: "attn_bias", 5: "grad_input_mask",
    13: "is_causal"},
    "_flash_attention_forward": {3: "cum_seq_q", 5: "max_q", 6: "max_k", 8: "is_causal"},
    "_flash_attention_backward": {6: "cum_seq_q", 8: "max_q", 9: "max_k", 11: "is_causal"},
    "_efficient_attention_forward": {
        3: "bias", 4: "cu_seqlens_q", 6: "max_seqlen_q", 9: "custom_mask_type", 10: "compute_log_sumexp",
    },
    "_efficient_attention_backward": {
        4: "bias", 6: "cu_seqlens_q", 8: "max_seqlen_q", 14: "custom_mask_type", 15: "bias_requires_grad",
    },
    "_cudnn_attention_forward": {3: "attn_bias", 4: "cum_seq_q", 8: "compute_log_sumexp", 10: "is_causal"},
    "_cudnn_attention_backward": {0: "grad_out", 8: "attn_bias", 14: "is_causal"},
    "_scaled_mm_v2": {2: "scale_a", 5: "scale_b", 8: "bias", 9: "out_dtype"},
    "_scaled_grouped_mm_v2": {2: "scale_a", 5: "scale_b", 8: "offs", 9: "bias", 10: "out_dtype"},
    "_weight_int4pack_mm": {1: "mat2", 3: "qScaleAndZeros"},
    "_trilinear": {3: "expand1", 5: "expand3", 6: "sumdim"},
    "linalg_solve_triangular": {1: "B", 3: "left", 4: "unitriangular"},
    "_fft_c2c": {1: "dim"},
    "_fft_r2c": {1: "dim", 3: "onesided"},
    "_fft_c2r": {1: "dim", 3: "last_dim_size"},
    "_cdist_backward": {0: "grad", 1: "x1", 4: "cdist"},
    "mkldnn_rnn_layer": {1: "weight0", 2: "weight1", 5: "hx_", 6: "cx_"},
    "mkldnn_rnn_layer_backward": {1: "weight1", 2: "weight2", 5: "hx_", 12: "grad_cy", 22: "workspace"},
    "_cudnn_rnn": {1: "weight", 3: "weight_buf", 4: "hx", 5: "cx", 13: "bidirectional", 15: "dropout_state"},
    "_cudnn_rnn_backward": {3: "weight_buf", 4: "hx", 6: "output", 9: "grad_cy", 21: "output_mask"},
    "miopen_rnn": {3: "hx", 4: "cx"},
    "_thnn_fused_lstm_cell": {0: "input_gates", 2: "cx", 3: "input_bias"},
    "_thnn_fused_lstm_cell_backward_impl": {2: "cx", 4: "workspace", 5: "has_bias"},
    "_thnn_fused_gru_cell": {2: "hx", 3: "input_bias"},
    "_thnn_fused_gru_cell_backward": {0: "grad_hy", 1: "workspace", 2: "has_bias"},
    "_embedding_bag": {4: "mode", 6: "per_sample_weights", 7: "include_last_offset"},
    "_embedding_bag_dense_backward": {5: "num_weights", 7: "mode", 8: "per_sample_weights"},
    "batch_norm_gather_stats_with_counts": {1: "mean", 3: "running_mean", 7: "counts"},
    "batch_norm_backward_reduce": {4: "weight", 5: "input_g", 7: "bias_g"},
    "batch_norm_backward_elemt": {4: "weight", 7: "count"},
    "grid_sampler_2d_backward": {2: "grid", 3: "interpolation_mode", 6: "output_mask"},
    "adaptive_max_pool2d_backward": {2: "indices"},
    "_scaled_mm": {2: "scale_a", 4: "bias", 6: "out_dtype"},
    "_grouped_mm": {2: "offs", 4: "out_dtype"},
    "convolution_backward": {0: "grad_output", 1: "input", 7: "transposed", 10: "output_mask"},
    "convolution_backward_overrideable": {6: "transposed", 9: "output_mask"},
    "cudnn_convolution": {2: "padding", 3: "stride", 4: "dilation"},
    "cudnn_convolution_transpose": {2: "padding", 3: "output_padding", 4: "stride", 5: "dilation", 6: "groups"},
    "cudnn_convolution_relu": {2: "bias", 3: "stride", 4: "padding", 5: "dilation"},
    "cudnn_convolution_add_relu": {2: "z", 4: "bias", 5: "stride", 6: "padding", 7: "dilation"},
    "miopen_convolution": {2: "bias", 3: "padding", 4: "stride", 5: "dilation"},
    "miopen_convolution_transpose": {2: "bias", 3: "padding", 4: "output_padding", 5: "stride", 7: "groups"},
    "_conv_depthwise2d": {3: "bias", 4: "stride", 5: "padding", 6: "dilation"},
    "slow_conv_transpose2d": {3: "bias", 4: "stride", 5: "padding", 6: "output_padding", 7: "dilation"},
    "cudnn_batch_norm": {1: "weight", 3: "running_mean", 5: "training"},
    "cudnn_batch_norm_backward": {0: "input", 1: "grad_output", 2: "weight", 5: "save_mean"},
    "miopen_batch_norm": {5: "training"},
    "miopen_batch_norm_backward": {0: "input", 1: "grad_output", 2: "weight", 6: "save_var"},
    "native_batch_norm_backward": {0: "grad_out", 1: "input", 2: "weight", 7: "train", 9: "output_mask"},
    "batch_norm_backward": {1: "input", 7: "update", 9: "output_mask"},
    "native_layer_norm_backward": {3: "mean", 5: "weight", 6: "bias", 7: "output_mask"},
    "_fused_rms_norm_backward": {2: "normalized_shape", 3: "rstd", 4: "weight", 5: "output_mask"},
    "_fused_adamw_": {4: "max_exp_avg_sqs", 6: "lr", 9: "weight_decay", 11: "amsgrad", 12: "maximize",
    13: "grad_scale"},
    "_fused_sgd_": {3: "weight_decay", 4: "momentum", 5: "lr", 7: "nesterov", 8: "maximize", 9: "is_first_step"},
    "_fused_adagrad_": {4: "lr", 6: "weight_decay", 8: "maximize"},
    "max_pool2d_with_indices_backward": {1: "self", 7: "indices"},
    "elu_backward": {5: "self_or_result"},
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_a_schema_has_its_arguments_where_the_formula_looks(name: str) -> None:
    operator = getattr(aten, name, None)
    if operator is None:
        pytest.skip(f"this torch has no {name}")
    schema = getattr(operator, operator.overloads()[0])._schema
    names = [argument.name for argument in schema.arguments]
    assert {place: names[place] for place in PLACES[name]} == PLACES[name]
