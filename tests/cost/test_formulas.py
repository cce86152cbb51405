"""What holds of all formulas and rules together: documented as they are, and about operators that exist."""

from __future__ import annotations

import pytest
import torch

from opanatomy.classification.operators import families_by_name
from opanatomy.cost.compiled import SAMPLES, flops_per_element
from opanatomy.cost.registry import cost, operators
from opanatomy.records.signature import Signature
from opanatomy.records.taxonomy import BY_CODE, BY_CPP_NAME, DATA_TYPES, OPTIMIZERS, data_type_of, peak_type_of
from tests.support.documented import current_and_renewed

#: Names that torch no longer has, by the release that dropped them: traces are from 2021 on.
GONE = {
    "1.8": "_amp_non_finite_check_and_unscale _fft_with_size _std _th_bmm _th_mm _th_sum _var",
    # one convolution_backward for all of them
    "1.11": """
        _baddbmm_mkl _bmm _convolution_nogroup _cumprod _cumsum _index_copy _conv_depthwise2d_backward
        conv_depthwise3d_backward cudnn_convolution_backward cudnn_convolution_backward_input
        cudnn_convolution_backward_weight cudnn_convolution_transpose_backward
        cudnn_convolution_transpose_backward_input cudnn_convolution_transpose_backward_weight
        miopen_convolution_backward miopen_convolution_backward_input miopen_convolution_backward_weight
        miopen_convolution_transpose_backward miopen_convolution_transpose_backward_input
        miopen_convolution_transpose_backward_weight miopen_depthwise_convolution_backward
        miopen_depthwise_convolution_backward_input miopen_depthwise_convolution_backward_weight
        mkldnn_convolution_backward mkldnn_convolution_backward_input mkldnn_convolution_backward_weights
        slow_conv3d_backward slow_conv_dilated2d_backward slow_conv_dilated3d_backward
        slow_conv_transpose2d_backward slow_conv_transpose3d_backward thnn_conv2d_backward thnn_conv2d_forward
        thnn_conv3d thnn_conv3d_backward thnn_conv3d_forward thnn_conv_depthwise2d thnn_conv_depthwise2d_backward
        thnn_conv_depthwise2d_forward
    """,
    "1.13": "_cat _inverse_helper _s_where col2im_backward im2col_backward",
    "2.0": "eig lstsq solve symeig _scaled_dot_product_attention _scaled_dot_product_attention_forward",
    "2.14": "cholesky qr",
}
#: Names that the operator library never had, and why they are listed.
NEVER = {
    "maximum_": "one tensor of `_foreach_maximum_`", "minimum_": "one tensor of `_foreach_minimum_`",
    "T": "the attribute, as function transforms record it", "rename": "the method on named tensors",
    "double": "the method of a tensor", "float": "the method of a tensor", "half": "the method of a tensor",
    "wrapped_quantized_linear": "listed next to `_wrapped_quantized_linear_prepacked`, under its name without a mark",
}  # fmt: skip


def test_the_table_of_formulas_is_current() -> None:
    page, renewed = current_and_renewed("counting.md")
    assert renewed == page, "run python docs/renew.py"
    assert page.count("| `") > 400


def test_every_aten_name_is_an_operator_of_torch_or_one_that_it_had() -> None:
    schemas = {schema.name.removeprefix("aten::") for schema in torch._C._jit_get_all_schemas()}

    def exists(name: str) -> bool:
        return name in schemas or f"{name}_" in schemas or hasattr(torch.ops.aten, name)

    formulas = {name.removeprefix("aten::") for name in operators() if name.startswith("aten::")}
    named = formulas | set(families_by_name())
    gone = {name for release, names in GONE.items() if torch.__version__ >= release for name in names.split()}
    missing = {name for name in named if not exists(name)}
    assert missing == (gone | set(NEVER)) & named, "name the release that dropped it, or mend the name"
    assert gone <= named
    assert not {name for name in gone if exists(name)}


#: Where formulas look for what decides, of operators whose real calls in `test_cost_bytes.py` do not show it all.
PLACES = """
    _scaled_dot_product_efficient_attention: 3 attn_bias, 4 compute_log_sumexp, 6 is_causal
    _scaled_dot_product_cudnn_attention: 3 attn_bias, 4 compute_log_sumexp, 6 is_causal
    _scaled_dot_product_fused_attention_overrideable: 3 attn_bias, 5 is_causal
    _scaled_dot_product_flash_attention_for_cpu_backward: 7 is_causal, 8 attn_mask
    _scaled_dot_product_efficient_attention_backward: 4 attn_bias, 10 grad_input_mask, 11 is_causal
    _scaled_dot_product_cudnn_attention_backward: 8 attn_bias, 14 is_causal
    _scaled_dot_product_fused_attention_overrideable_backward: 4 attn_bias, 5 grad_input_mask, 13 is_causal
    _flash_attention_forward: 3 cum_seq_q, 5 max_q, 6 max_k, 8 is_causal
    _flash_attention_backward: 6 cum_seq_q, 8 max_q, 9 max_k, 11 is_causal
    _efficient_attention_forward: 3 bias, 4 cu_seqlens_q, 6 max_seqlen_q, 9 custom_mask_type, 10 compute_log_sumexp
    _efficient_attention_backward: 4 bias, 6 cu_seqlens_q, 8 max_seqlen_q, 14 custom_mask_type, 15 bias_requires_grad
    _cudnn_attention_forward: 3 attn_bias, 4 cum_seq_q, 8 compute_log_sumexp, 10 is_causal
    _cudnn_attention_backward: 0 grad_out, 8 attn_bias, 14 is_causal
    _scaled_mm_v2: 2 scale_a, 5 scale_b, 8 bias, 9 out_dtype
    _scaled_grouped_mm_v2: 2 scale_a, 5 scale_b, 8 offs, 9 bias, 10 out_dtype
    _weight_int4pack_mm: 1 mat2, 3 qScaleAndZeros
    mkldnn_rnn_layer_backward: 1 weight1, 2 weight2, 5 hx_, 12 grad_cy, 22 workspace
    _cudnn_rnn: 1 weight, 3 weight_buf, 4 hx, 5 cx, 13 bidirectional, 15 dropout_state
    _cudnn_rnn_backward: 3 weight_buf, 4 hx, 6 output, 9 grad_cy, 21 output_mask
    miopen_rnn: 3 hx, 4 cx
    _thnn_fused_lstm_cell: 0 input_gates, 2 cx, 3 input_bias
    _thnn_fused_lstm_cell_backward_impl: 2 cx, 4 workspace, 5 has_bias
    _thnn_fused_gru_cell: 2 hx, 3 input_bias
    _thnn_fused_gru_cell_backward: 0 grad_hy, 1 workspace, 2 has_bias
    _embedding_bag: 4 mode, 6 per_sample_weights, 7 include_last_offset
    _embedding_bag_dense_backward: 5 num_weights, 7 mode, 8 per_sample_weights
    batch_norm_gather_stats_with_counts: 1 mean, 3 running_mean, 7 counts
    batch_norm_backward_reduce: 4 weight, 5 input_g, 7 bias_g
    batch_norm_backward_elemt: 4 weight, 7 count
    _scaled_mm: 2 scale_a, 4 bias, 6 out_dtype
    convolution_backward_overrideable: 6 transposed, 9 output_mask
    cudnn_convolution: 2 padding, 3 stride, 4 dilation
    cudnn_convolution_transpose: 2 padding, 3 output_padding, 4 stride, 5 dilation, 6 groups
    cudnn_convolution_relu: 2 bias, 3 stride, 4 padding, 5 dilation
    cudnn_convolution_add_relu: 2 z, 4 bias, 5 stride, 6 padding, 7 dilation
    miopen_convolution: 2 bias, 3 padding, 4 stride, 5 dilation
    miopen_convolution_transpose: 2 bias, 3 padding, 4 output_padding, 5 stride, 7 groups
    _conv_depthwise2d: 3 bias, 4 stride, 5 padding, 6 dilation
    slow_conv_transpose2d: 3 bias, 4 stride, 5 padding, 6 output_padding, 7 dilation
    cudnn_batch_norm: 1 weight, 3 running_mean, 5 training
    cudnn_batch_norm_backward: 0 input, 1 grad_output, 2 weight, 5 save_mean
    miopen_batch_norm: 5 training
    miopen_batch_norm_backward: 0 input, 1 grad_output, 2 weight, 6 save_var
    batch_norm_backward: 1 input, 7 update, 9 output_mask
    _fused_rms_norm_backward: 2 normalized_shape, 3 rstd, 4 weight, 5 output_mask
    _fused_adamw_: 4 max_exp_avg_sqs, 6 lr, 9 weight_decay, 11 amsgrad, 12 maximize, 13 grad_scale
    _fused_sgd_: 3 weight_decay, 4 momentum, 5 lr, 7 nesterov, 8 maximize, 9 is_first_step
    _fused_adagrad_: 4 lr, 6 weight_decay, 8 maximize
    _sparse_addmm: 1 mat1, 3 beta
    sparse_sampled_addmm: 0 self, 1 mat1
    _sparse_mm_reduce_impl_backward: 1 grad_out, 2 weight, 3 reduce, 5 output_mask
    _sparse_softmax_backward_data: 0 grad_output, 1 output
    _sparse_semi_structured_linear: 1 weight, 2 meta, 3 bias, 5 out_dtype
    _sparse_semi_structured_mm: 1 mat1_meta, 2 mat2, 3 out_dtype
    _sparse_semi_structured_addmm: 1 mat1, 2 mat1_meta, 3 mat2, 6 out_dtype
    segment_reduce: 2 lengths, 4 offsets, 5 axis
    _segment_reduce_backward: 2 data, 4 lengths, 5 offsets
    _embedding_bag_backward: 3 offset2bag, 6 num_weights, 8 mode, 9 sparse, 10 per_sample_weights
    embedding_sparse_backward: 3 padding_idx
    _embedding_bag_per_sample_weights_backward: 1 weight, 2 indices, 4 offset2bag
    _padded_dense_to_jagged_forward: 1 offsets, 2 total_L
    multi_margin_loss: 2 p, 4 weight, 5 reduction
    multi_margin_loss_backward: 2 target, 3 p, 5 weight
    rrelu_with_noise: 1 noise, 4 training
    rrelu_with_noise_backward: 2 noise, 5 training
    fractional_max_pool2d_backward: 1 self, 4 indices
    _nested_from_padded_tensor: 1 offsets, 3 ragged_idx, 6 sum_S
    linalg_qr: 1 mode
    _weight_int4pack_mm_with_scales_and_zeros: 1 mat2, 3 qScale, 4 qZeros
    _dyn_quant_matmul_4bit: 1 packed_weights, 3 in_features, 4 out_features
    quantized_lstm: 1 hx, 3 has_biases, 4 num_layers, 7 bidirectional, 9 dtype
    quantized_gru: 1 hx, 3 has_biases, 4 num_layers, 7 bidirectional
"""


@pytest.mark.parametrize("row", PLACES.strip().splitlines())
def test_a_schema_has_its_arguments_where_the_formula_looks(row: str) -> None:
    name, _, places = row.strip().partition(": ")
    operator = getattr(torch.ops.aten, name, None)
    if operator is None:
        pytest.skip(f"this torch has no {name}")
    arguments = getattr(operator, operator.overloads()[0])._schema.arguments
    wanted = [place.split() for place in places.split(", ")]
    assert [arguments[int(place)].name for place, _ in wanted] == [argument for _, argument in wanted]


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_fused_operator_counts_what_its_formula_says(name: str) -> None:
    arguments, places = SAMPLES[name]
    of_formula = cost(f"aten::{name}", Signature(arguments))
    assert of_formula is not None
    assert flops_per_element()[name] * places == of_formula.flops


def test_the_codes_of_data_types_are_those_of_torch() -> None:
    for kind in DATA_TYPES:
        dtype = getattr(torch, kind.name, None)
        assert isinstance(dtype, torch.dtype), kind.name
        if kind.size is not None:
            assert dtype.itemsize == kind.size
        assert BY_CODE[kind.code] == kind.name
    assert BY_CPP_NAME["c10::Half"] == "float16"


@pytest.mark.parametrize(
    ("name", "data_type", "peak"),
    [
        ("bf16", "bfloat16", "bfloat16"),
        ("torch.bfloat16", "bfloat16", "bfloat16"),
        ("Half", "float16", "float16"),
        ("FP32", "float32", "float32"),
        ("tf32", None, "tf32"),
        ("fp8", None, "float8"),
        ("float8_e5m2", "float8_e5m2", "float8"),
        ("int64", "int64", None),
        ("bfloat", None, None),
    ],
)
def test_data_types_by_the_names_that_people_give_them(name: str, data_type: str | None, peak: str | None) -> None:
    assert (data_type_of(name), peak_type_of(name)) == (data_type, peak)


def test_the_state_of_the_optimizers_is_what_torch_keeps() -> None:
    parameter = torch.nn.Parameter(torch.ones(16, 8))
    for optimizer in OPTIMIZERS:
        if optimizer.package is not None or optimizer.factored:
            continue
        made = getattr(torch.optim, optimizer.torch_class)([parameter], **optimizer.arguments)
        parameter.grad = torch.ones_like(parameter)
        made.step()
        kept = sum(value.numel() * value.element_size() for value in made.state[parameter].values() if value.dim() > 0)
        assert kept == optimizer.state_bytes(4) * parameter.numel(), optimizer.name
