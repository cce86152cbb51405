"""Classify host operators by name: compiled names, ATen, libraries, ranges, and last the words in a name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache

from msgspec import Struct

from opanatomy.records.patterns import regex
from opanatomy.records.signature import Classification
from opanatomy.records.taxonomy import OperatorClass

# Define rules (families of names, ordered regular expressions), and look names up in them.


CONTRACTION = OperatorClass.TENSOR_CONTRACTION
NORMALIZATION = OperatorClass.STATISTICAL_NORMALIZATION
ELEMENTWISE = OperatorClass.ELEMENTWISE
MOVEMENT = OperatorClass.DATA_MOVEMENT
COMMUNICATION = OperatorClass.COMMUNICATION
OTHER = OperatorClass.OTHER
UNKNOWN = OperatorClass.UNKNOWN

#: Characters of a name that rules see: the rest of a longer one is template arguments, and costs time.
LONGEST = 4096


class Family(Struct, frozen=True):
    """Names with one common answer; `names` is text with one name per word."""

    title: str
    operator_class: OperatorClass | None
    names: str
    delegates: bool = False
    contains: tuple[OperatorClass, ...] = ()
    composite: bool = False
    annotation: bool = False


class Pattern(Struct, frozen=True):
    """One regular expression and its answer; it is searched, so it needs `^` to match only the begin."""

    title: str
    operator_class: OperatorClass | None
    expression: str
    delegates: bool = False
    contains: tuple[OperatorClass, ...] = ()
    composite: bool = False
    annotation: bool = False


class RuleTable(Struct, frozen=True):
    """An ordered table of regular expressions: the first that matches decides.

    With `own_name` they see a C++ function's own name only, without template arguments and parameters. With
    `namespaces` they only match names in one of these.
    """

    title: str
    patterns: tuple[Pattern, ...]
    own_name: bool = False
    namespaces: frozenset[str] = frozenset()


class RuleBook(Struct, frozen=True):
    """Every rule in the order of lookup, for display."""

    operators: tuple[Family | RuleTable, ...]
    kernels: tuple[RuleTable, ...]


def answer(source: Family | Pattern, rule: str) -> Classification:
    """Return the classification of a family or a pattern, decided by `rule`."""
    return Classification(
        operator_class=source.operator_class,
        rule=rule,
        delegates=source.delegates,
        contains=source.contains,
        composite=source.composite,
        annotation=source.annotation,
    )


def first_match(tables: Iterable[RuleTable], name: str) -> Classification | None:
    """Return the answer of the first pattern of the tables that matches `name`; `None` if none does."""
    short, namespace = own_name(name), name.partition("::")[0]
    for table in tables:
        if table.namespaces and namespace not in table.namespaces:
            continue
        text = short if table.own_name else name
        for pattern in table.patterns:
            if compiled(pattern.expression).search(text):
                return answer(pattern, f"{table.title}: {pattern.title}")
    return None


@cache
def compiled(expression: str, flags: int = 0) -> re.Pattern[str]:
    """Compile the expression at first use: a trace needs only some of them."""
    return re.compile(expression, flags)


def own_name(name: str) -> str:
    """Return the qualified name of a demangled C++ function: `ns::f` of `std::enable_if<...>::type ns::f<int>(int)`.

    A name that C++ did not write, or that is still mangled, is returned whole.
    """
    if "<" not in name and "(" not in name:
        return name
    depth = 0
    kept: list[str] = []
    for character in name:
        if character == "<":
            depth += 1
        elif character == ">":
            depth -= 1
        elif depth == 0:
            if character == "(":
                break
            kept.append(character)
    return "".join(kept).strip().rsplit(" ", 1)[-1]


# --- names of ATen operators by class ---
#
# In-place (`add_`), `_foreach_add`, `special_expm1`, `view_copy` and `tanh_backward` follow the base name unless they
# are listed themselves. "Through" marks a composite that always computes, but by calling operators that do
# (`delegates`): it owns the work only if no recorded operator below it can do it. "Composed" marks one whose work is
# that of its calls, which for some arguments only copy.


# --- contraction ---

_CONTRACTION = """
    mm bmm addmm baddbmm addbmm addmv mv dot vdot _foreach_mm _addmm_activation _int_mm _scaled_mm _scaled_mm_v2
    _grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2 _bmm _baddbmm_mkl _th_mm _th_bmm
    matmul_backward linear_backward mkldnn_linear mkldnn_linear_backward_input mkldnn_linear_backward_weights
    _mixed_dtypes_linear _weight_int4pack_mm _weight_int4pack_mm_for_cpu _weight_int4pack_mm_with_scales_and_zeros
    _weight_int8pack_mm _dyn_quant_matmul_4bit _trilinear _compute_linear_combination
    cudnn_affine_grid_generator cudnn_affine_grid_generator_backward
    convolution_backward convolution_overrideable convolution_backward_overrideable
    cudnn_convolution cudnn_convolution_transpose cudnn_convolution_backward_input cudnn_convolution_backward_weight
    cudnn_convolution_transpose_backward_input cudnn_convolution_transpose_backward_weight
    miopen_convolution miopen_convolution_transpose miopen_depthwise_convolution
    miopen_convolution_backward_input miopen_convolution_backward_weight
    miopen_convolution_transpose_backward_input miopen_convolution_transpose_backward_weight
    miopen_depthwise_convolution_backward_input miopen_depthwise_convolution_backward_weight
    mkldnn_convolution mkldnn_convolution_backward_input mkldnn_convolution_backward_weights
    _mps_convolution _mps_convolution_transpose mps_convolution_backward mps_convolution_transpose_backward
    _slow_conv2d_forward _slow_conv2d_backward slow_conv3d_forward slow_conv3d_backward slow_conv_dilated2d
    slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d slow_conv_dilated2d_backward
    slow_conv_dilated3d_backward slow_conv_transpose2d_backward slow_conv_transpose3d_backward
    thnn_conv2d_forward thnn_conv2d_backward thnn_conv3d_forward thnn_conv3d_backward thnn_conv_depthwise2d_forward
    thnn_conv_depthwise2d_backward _conv_depthwise2d _conv_depthwise2d_backward conv_depthwise3d
    conv_depthwise3d_backward conv_tbc _nnpack_spatial_convolution
    hspmm sspaddmm _sparse_addmm sparse_sampled_addmm _sparse_sparse_matmul _sparse_mm_reduce_impl
    _sparse_mm_reduce_impl_backward _cslt_sparse_mm _cslt_sparse_mm_search _sparse_semi_structured_addmm
    _sparse_semi_structured_linear _sparse_semi_structured_mm fbgemm_linear_int8_weight
    fbgemm_linear_int8_weight_fp32_activation fbgemm_linear_fp16_weight fbgemm_linear_fp16_weight_fp32_activation
    _wrapped_quantized_linear_prepacked wrapped_quantized_linear
"""

_CONTRACTION_THROUGH = """
    matmul linear bilinear linalg_matmul linalg_multi_dot smm _sparse_mm _euclidean_dist cov corrcoef
    mkldnn_linear_backward conv1d conv2d conv3d conv_transpose1d conv_transpose2d
    conv_transpose3d convolution _convolution _convolution_mode _convolution_nogroup _convolution_double_backward
    thnn_conv2d slow_conv3d thnn_conv3d thnn_conv_depthwise2d conv_tbc_backward cudnn_convolution_backward
    cudnn_convolution_transpose_backward miopen_convolution_backward miopen_convolution_transpose_backward
    miopen_depthwise_convolution_backward mkldnn_convolution_backward
"""

# They compute products and sums, or no product at all if a size or an exponent is 1.
_CONTRACTION_COMPOSITE = """
    tensordot inner linalg_vecdot chain_matmul linalg_matrix_power matrix_power affine_grid_generator
    affine_grid_generator_backward
"""

_CONTRACTION_EPILOGUE = """
    cudnn_convolution_relu cudnn_convolution_add_relu miopen_convolution_relu miopen_convolution_add_relu
"""

_RECURRENT = """
    _cudnn_rnn _cudnn_rnn_backward miopen_rnn miopen_rnn_backward mkldnn_rnn_layer mkldnn_rnn_layer_backward
    _lstm_mps lstm_mps_backward quantized_lstm quantized_gru
"""

_RECURRENT_THROUGH = """
    lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell quantized_lstm_cell quantized_gru_cell
    quantized_rnn_relu_cell quantized_rnn_tanh_cell
"""

_ATEN_ATTENTION = """
    _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_fused_attention_overrideable
    _scaled_dot_product_attention_math_for_mps _flash_attention_forward _flash_attention_forward_no_dropout_inplace
    _flash_attention_backward _efficient_attention_forward _efficient_attention_backward _cudnn_attention_forward
    _cudnn_attention_backward _triton_scaled_dot_attention _scaled_dot_product_attention_forward
"""

_ATTENTION_THROUGH = """
    scaled_dot_product_attention _scaled_dot_product_attention _scaled_dot_product_attention_math
    _native_multi_head_attention _triton_multi_head_attention _transformer_encoder_layer_fwd
"""

# --- normalization ---

_NORMALIZATION = """
    _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data _safe_softmax _masked_softmax
    _sparse_softmax _sparse_log_softmax _sparse_softmax_backward_data _sparse_log_softmax_backward_data
    _nested_tensor_softmax_with_shape
    native_layer_norm native_group_norm native_batch_norm cudnn_batch_norm miopen_batch_norm quantized_batch_norm
    _native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
    _batch_norm_with_update _batch_norm_with_update_functional _batch_norm_no_update batch_norm_backward
    batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_elemt batch_norm_gather_stats
    batch_norm_gather_stats_with_counts batch_norm_stats batch_norm_update_stats _fused_rms_norm_backward
    _weight_norm_interface renorm embedding_renorm
    sum nansum mean prod trace var std var_mean std_mean all any _is_all_true _is_any_true count_nonzero allclose equal
    amax amin max min aminmax _aminmax _foreach_max argmax argmin norm native_norm dist linalg_vector_norm
    linalg__powsum _foreach_norm _foreach_powsum segment_reduce _segment_reduce_backward _sparse_sum
    _sparse_sum_backward _sparse_csr_sum _sparse_csr_prod _nested_sum_backward hash_tensor _std _var _th_sum
    cumsum cumprod cummax cummin logcumsumexp _logcumsumexp _cummax_helper _cummin_helper _cumsum _cumprod
    _cdist_backward _pdist_forward _pdist_backward
    mse_loss smooth_l1_loss huber_loss soft_margin_loss multi_margin_loss binary_cross_entropy
    binary_cross_entropy_with_logits nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward
    multilabel_margin_loss_forward multilabel_margin_loss_backward _ctc_loss _cudnn_ctc_loss miopen_ctc_loss
    avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool3d_backward
    adaptive_max_pool2d adaptive_max_pool3d max_pool2d_with_indices max_pool3d_with_indices max_pool2d_backward
    fractional_max_pool2d fractional_max_pool3d mkldnn_adaptive_avg_pool2d mkldnn_max_pool2d mkldnn_max_pool3d
    quantized_max_pool1d quantized_max_pool2d quantized_max_pool3d
    _fused_moving_avg_obs_fq_helper _fused_moving_avg_obs_fq_helper_functional quantize_per_tensor_dynamic
    _fake_quantize_learnable_per_tensor_affine_backward _fake_quantize_learnable_per_channel_affine_backward
"""

_NORMALIZATION_THROUGH = """
    softmax log_softmax special_logsumexp layer_norm group_norm rms_norm _fused_rms_norm _weight_norm
    _weight_norm_differentiable_backward norm_except_dim linalg_norm linalg_matrix_norm frobenius_norm nuclear_norm
    nanmean _cdist_forward cdist pdist
    pairwise_distance cosine_similarity cumulative_trapezoid trapezoid trapz vander linalg_vander
    cumprod_backward cross_entropy_loss nll_loss nll_loss2d nll_loss_nd ctc_loss kl_div l1_loss poisson_nll_loss
    cosine_embedding_loss hinge_embedding_loss margin_ranking_loss triplet_margin_loss multilabel_margin_loss
    avg_pool1d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d max_pool1d
    max_pool1d_with_indices max_pool2d max_pool3d _choose_qparams_per_tensor choose_qparams_optimized
    fused_moving_avg_obs_fake_quant
"""

# A copy if the batch is empty.
_NORMALIZATION_COMPOSITE = """
    logsumexp
    batch_norm instance_norm _batch_norm_impl_index _batch_norm_impl_index_backward
"""

# --- element-wise ---

_ARITHMETIC = """
    add sub rsub mul div floor_divide remainder fmod pow neg abs reciprocal sqrt rsqrt sign sgn signbit ceil floor round
    trunc frac addcmul addcdiv addr lerp hypot atan2 copysign nextafter gcd lcm ldexp frexp logaddexp logaddexp2
    maximum minimum fmax fmin clamp clamp_min clamp_max nan_to_num heaviside linalg_cross _add_relu complex polar
    angle conj_physical _conj_physical deg2rad rad2deg
    exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sinc erf erfc
    erfinv lgamma digamma polygamma mvlgamma igamma igammac i0 xlogy logit
    special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
    special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
    special_chebyshev_polynomial_w special_entr special_erfcx special_hermite_polynomial_h
    special_hermite_polynomial_he special_i0e special_i1 special_i1e special_laguerre_polynomial_l
    special_legendre_polynomial_p special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1
    special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0
    special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
    special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0
    special_xlog1py special_zeta
    eq ne lt le gt ge isnan isinf isposinf isneginf logical_and logical_or logical_xor logical_not
    bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift
    __lshift__ __rshift__ __ilshift__ __irshift__ where _s_where masked_fill tril triu _masked_scale
    _transform_bias_rescale_qkv
"""

_ACTIVATION = """
    relu threshold sigmoid gelu silu elu celu mish glu glu_jvp glu_backward_jvp softplus softshrink hardshrink hardtanh
    hardswish hardsigmoid leaky_relu log_sigmoid_forward log_sigmoid_backward _prelu_kernel rrelu_with_noise
    rrelu_with_noise_functional _thnn_fused_lstm_cell _thnn_fused_gru_cell _thnn_fused_lstm_cell_backward_impl
"""

_INTERPOLATION = """
    upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa
    _upsample_bicubic2d_aa _upsample_lanczos2d_aa grid_sampler_2d grid_sampler_3d cudnn_grid_sampler
    _grid_sampler_2d_cpu_fallback
"""

_RANDOM = """
    native_dropout _fused_dropout bernoulli uniform normal normal_functional random exponential geometric cauchy
    log_normal poisson binomial _standard_gamma _standard_gamma_grad _sample_dirichlet _dirichlet_grad
    _philox_normal _philox_uniform _philox_key_fold_in _philox_key_split _fill_mem_eff_dropout_mask
    _cudnn_init_dropout_state
"""

_QUANTIZATION = """
    quantize_per_tensor quantize_per_channel dequantize _make_per_tensor_quantized_tensor
    _make_per_channel_quantized_tensor fake_quantize_per_tensor_affine_cachemask
    fake_quantize_per_channel_affine_cachemask _fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    _fake_quantize_learnable_per_tensor_affine _fake_quantize_learnable_per_channel_affine
"""

_OPTIMIZER = """
    _fused_adam _fused_adamw _fused_sgd _fused_adagrad _amp_foreach_non_finite_check_and_unscale _amp_update_scale
    _amp_non_finite_check_and_unscale
"""

_ELEMENTWISE_THROUGH = """
    absolute fix arccos arccosh arcsin arcsinh arctan arctan2 arctanh clip divide true_divide multiply subtract negative
    square float_power greater greater_equal less less_equal not_equal isclose gradient cross ger
    outer
    kron selu relu6 prelu rrelu log_sigmoid special_digamma special_erf special_erfc special_erfinv special_exp2
    special_expit special_expm1 special_gammainc special_gammaincc special_gammaln special_i0 special_log1p
    special_logit special_multigammaln special_ndtr special_polygamma special_psi special_round special_sinc
    special_xlogy mish_backward infinitely_differentiable_gelu_backward grid_sampler
    __and__ __or__ __xor__ __iand__ __ior__ __ixor__
    _thnn_differentiable_lstm_cell_backward _thnn_differentiable_gru_cell_backward _thnn_fused_lstm_cell_backward
    rand randn randint rand_like randn_like randint_like hann_window hamming_window blackman_window bartlett_window
    kaiser_window fake_quantize_per_tensor_affine fake_quantize_per_channel_affine
    fake_quantize_per_tensor_affine_cachemask_backward fake_quantize_per_channel_affine_cachemask_backward
    _saturate_weight_to_fp16
"""

# A fill or a copy for integers, and for a difference of order 0.
_ELEMENTWISE_COMPOSITE = """
    isfinite isreal diff
"""

# --- data movement ---

_COPY = """
    copy _copy_from _copy_from_and_resize copy_sparse_to_sparse cat _cat _chunk_cat block_diag
    repeat flip rot90 roll constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d
    replication_pad2d replication_pad3d im2col col2im im2col_backward col2im_backward pixel_shuffle pixel_unshuffle
    channel_shuffle select_scatter slice_scatter diagonal_scatter as_strided_scatter
    select_backward slice_backward diagonal_backward unfold_backward diag_embed _mkldnn_transpose
    _reshape_copy lift_fresh_copy fill zero arange range linspace logspace eye tril_indices
    triu_indices to_mkldnn mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight int_repr _pack_padded_sequence
    _cudnn_rnn_flatten_weight _convert_weight_to_int4pack _convert_weight_to_int4pack_for_cpu
    _dyn_quant_pack_4bit_weight fbgemm_linear_quantize_weight fbgemm_pack_gemm_matrix_fp16
    fbgemm_pack_quantized_matrix _wrapped_linear_prepack
    upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d max_unpool2d max_unpool3d
"""

_INDEXING = """
    gather scatter scatter_add scatter_reduce index index_select index_add index_copy index_fill index_reduce
    _index_put_impl _unsafe_index _unsafe_index_put _unsafe_masked_index _unsafe_masked_index_put_accumulate
    _index_copy take put masked_select masked_scatter masked_scatter_backward repeat_interleave
    embedding embedding_dense_backward _embedding_bag _embedding_bag_forward_only _embedding_bag_backward
    _embedding_bag_dense_backward _embedding_bag_per_sample_weights_backward
"""

_LAYOUT = """
    _to_dense _to_sparse _to_sparse_csr _to_sparse_csc _to_sparse_bsr _to_sparse_bsc _to_sparse_semi_structured
    _sparse_semi_structured_apply _sparse_semi_structured_apply_dense _sparse_semi_structured_tile _cslt_compress
    _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo sparse_mask _sparse_mask_projection _spdiags
    to_padded_tensor _nested_from_padded _nested_from_padded_and_nested_example _nested_from_padded_tensor
    _nested_tensor_from_mask _nested_tensor_from_tensor_list _nested_select_backward
    _jagged_to_padded_dense_forward _padded_dense_to_jagged_forward
"""

_MOVEMENT_THROUGH = """
    _to_copy clone _lazy_clone stack _stack hstack vstack dstack column_stack row_stack concat concatenate tile
    fliplr flipud pad _pad_enum _pad_circular pad_sequence _pad_packed_sequence _pack_padded_sequence_backward
    index_put one_hot take_along_dim combinations cartesian_prod embedding_bag
    gather_backward index_select_backward masked_select_backward cummaxmin_backward trace_backward
    value_selecting_reduction_backward
    zeros zeros_like ones ones_like full full_like new_zeros new_ones new_full scalar_tensor _dim_arange
    fft_fftfreq fft_rfftfreq fft_fftshift fft_ifftshift diagflat _pin_memory narrow_copy flatten_dense_tensors
    nested_to_padded_tensor native_channel_shuffle fill_diagonal to_mkldnn_backward
    to_sparse to_sparse_csr to_sparse_csc to_sparse_bsr to_sparse_bsc _shape_as_tensor
    to_dense_backward _rowwise_prune _foreach_clone
"""

# --- other ---

_OTHER = """
    sort topk kthvalue median nanmedian mode nonzero nonzero_static _unique _unique2 unique_dim unique_consecutive
    unique_dim_consecutive isin bincount histc histogram _histogramdd_bin_edges _histogramdd_from_bin_cts
    _histogramdd_from_bin_tensors searchsorted bucketize multinomial randperm _coalesce _local_scalar_dense
    _assert_async _functional_assert_async _validate_compressed_sparse_indices
    _fft_c2c _fft_c2r _fft_r2c _fft_with_size
    cholesky cholesky_inverse cholesky_solve _cholesky_solve_helper geqrf ormqr triangular_solve lu_unpack
    linalg_cholesky_ex linalg_eig linalg_eigvals linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex
    linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp linalg_pinv linalg_qr
    linalg_solve_triangular _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd
    _linalg_check_errors _spsolve _inverse_helper symeig eig lstsq solve
"""

_OTHER_THROUGH = """
    argsort msort argwhere nonzero_numpy histogramdd quantile nanquantile stft istft
    fft_fft fft_fft2 fft_fftn fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_ihfft2
    fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn
    det logdet slogdet inverse pinverse qr svd orgqr lu_solve _lu_with_info matrix_exp matrix_exp_backward
    linalg_cholesky linalg_cond linalg_det linalg_eigh linalg_eigvalsh linalg_inv linalg_ldl_factor linalg_lu_factor
    linalg_slogdet linalg_solve linalg_solve_ex linalg_svd linalg_svdvals linalg_tensorinv
    linalg_tensorsolve _sobol_engine_draw _sobol_engine_ff _sobol_engine_initialize_state _sobol_engine_scramble
"""

# A fill if a dimension is 0.
_OTHER_COMPOSITE = """
    linalg_matrix_rank
"""

# --- no work ---

_COMPOSITE = """
    embedding_backward embedding_sparse_backward _embedding_bag_sparse_backward _gather_sparse_backward
    to contiguous reshape reshape_as flatten ravel type_as einsum dropout feature_dropout alpha_dropout
    feature_alpha_dropout sum_to_size _grad_sum_to_size item is_nonzero to_dense coalesce pin_memory
    resolve_conj resolve_neg conj chalf _to_cpu cpu cuda float double half _cast_Byte _cast_Char _cast_Double
    _cast_Float _cast_Half _cast_Int _cast_Long _cast_Short _autocast_to_full_precision
    _autocast_to_reduced_precision _backward backward _list_to_tensor _tensor_to_list tensor as_tensor
    _pack_sequence meshgrid atleast_1d atleast_2d atleast_3d unflatten_dense_tensors
"""

_VIEW = """
    view view_as _unsafe_view _reshape_alias _reshape_from_tensor as_strided expand expand_as broadcast_to
    broadcast_tensors _sparse_broadcast_to permute transpose t numpy_T mT mH matrix_H adjoint movedim moveaxis swapaxes
    swapdims squeeze unsqueeze select slice slice_inverse narrow split split_with_sizes unsafe_split
    unsafe_split_with_sizes chunk unsafe_chunk tensor_split hsplit vsplit dsplit unbind unfold unflatten diagonal diag
    linalg_diagonal alias detach lift lift_fresh real imag positive view_as_real view_as_complex _conj _neg_view
    _fw_primal _make_dual _unpack_dual _test_autograd_multiple_dispatch_view _mkldnn_reshape values _values indices
    _indices crow_indices col_indices ccol_indices row_indices _nested_view_from_buffer _nested_view_from_jagged
    _nested_get_values _ncf_view _ncf_unsqueeze _add_batch_dim _remove_batch_dim _coalesced
"""

_ALLOCATION = """
    empty empty_like empty_strided empty_permuted empty_quantized _empty_affine_quantized
    _empty_per_channel_affine_quantized new_empty new_empty_strided _efficientzerotensor from_file resize resize_as
    _resize_output resize_as_sparse sparse_resize sparse_resize_and_clear set _new_zeros_with_same_feature_meta
    _sparse_compressed_tensor_with_dims _sparse_coo_tensor_with_dims _sparse_coo_tensor_with_dims_and_tensors
    sparse_coo_tensor sparse_compressed_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor sparse_bsc_tensor
    _sparse_coo_tensor_unsafe _sparse_compressed_tensor_unsafe _sparse_csr_tensor_unsafe _sparse_csc_tensor_unsafe
    _sparse_bsr_tensor_unsafe _sparse_bsc_tensor_unsafe _nested_get_jagged_dummy
"""

_METADATA = """
    size sym_size sym_stride sym_numel sym_storage_offset sym_is_contiguous stride storage_offset numel dim
    get_device get_gradients is_complex is_conj is_contiguous is_distributed is_floating_point is_inference is_leaf
    is_neg is_pinned is_same_size is_set_to is_signed is_coalesced is_vulkan_available requires_grad_ retain_grad
    retains_grad
    output_nr data set_data _version result_type promote_types can_cast record_stream sparse_dim dense_dim _dimI
    _dimV _nnz q_scale q_zero_point q_per_channel_axis q_per_channel_scales q_per_channel_zero_points qscheme
    cudnn_is_acceptable _nnpack_available _use_cudnn_ctc_loss _use_miopen_ctc_loss _use_cudnn_rnn_flatten_weight
    _fused_sdp_choice _has_same_storage_numel _has_compatible_shallow_copy_type _is_zerotensor
    _debug_has_internal_overlap _propagate_xla_data _cufft_clear_plan_cache _cufft_get_plan_cache_max_size
    _cufft_get_plan_cache_size _cufft_set_plan_cache_max_size _assert_tensor_metadata _assert_scalar
    _functional_assert_scalar sym_constrain_range sym_constrain_range_for_size _functional_sym_constrain_range
    _functional_sym_constrain_range_for_size _make_dep_token _print _validate_sparse_bsc_tensor_args
    _validate_sparse_bsr_tensor_args _validate_sparse_compressed_tensor_args _validate_sparse_coo_tensor_args
    _validate_sparse_csc_tensor_args _validate_sparse_csr_tensor_args
    _nested_compute_contiguous_strides_offsets _nested_get_lengths _nested_get_max_seqlen _nested_get_min_seqlen
    _nested_get_offsets _nested_get_ragged_idx _nested_tensor_size _nested_tensor_storage_offsets
    _nested_tensor_strides _nested_tensor_from_mask_left_aligned
"""

_TESTS = """
    _foobar _test_ambiguous_defaults _test_autograd_multiple_dispatch _test_check_tensor _test_functorch_fallback
    _test_optional_filled_intlist _test_optional_floatlist _test_optional_intlist _test_parallel_materialize
    _test_serialization_subcmul _test_string_default _test_warn_in_autograd
"""

# TorchScript operators on Python numbers, lists and strings.
_SCRIPT = """
    Bool Complex ComplexImplicit Delete Float FloatImplicit Generator Int IntImplicit ScalarImplicit Size
    __contains__ __derive_index __getitem__ __interpolate __is__ __isnot__ __not__ __range_length
    __round_to_zero_floordiv _get_tracing_state _infer_size _set_item _size_if_not_equal _unwrap_optional append clear
    device dict element_size extend format get get_autocast_dtype grad hash insert is_autocast_cpu_enabled
    is_autocast_enabled is_grad_enabled is_scripting items keys len list ord pop remove reverse set_grad_enabled
    sorted str update wait warn join startswith endswith
"""

FAMILIES: tuple[Family, ...] = (
    Family("contraction", CONTRACTION, _CONTRACTION),
    Family("contraction, delegating", CONTRACTION, _CONTRACTION_THROUGH, delegates=True),
    Family("contraction, composite", CONTRACTION, _CONTRACTION_COMPOSITE, delegates=True, composite=True),
    Family("contraction with epilogue", CONTRACTION, _CONTRACTION_EPILOGUE, contains=(ELEMENTWISE,)),
    Family("recurrent layer", CONTRACTION, _RECURRENT, contains=(ELEMENTWISE,)),
    Family("recurrent layer, delegating", CONTRACTION, _RECURRENT_THROUGH, delegates=True, contains=(ELEMENTWISE,)),
    Family("attention", CONTRACTION, _ATEN_ATTENTION, contains=(NORMALIZATION,)),
    Family("attention, delegating", CONTRACTION, _ATTENTION_THROUGH, delegates=True, contains=(NORMALIZATION,)),
    Family("normalization", NORMALIZATION, _NORMALIZATION),
    Family("normalization, delegating", NORMALIZATION, _NORMALIZATION_THROUGH, delegates=True),
    Family("normalization, composite", NORMALIZATION, _NORMALIZATION_COMPOSITE, delegates=True, composite=True),
    Family("elementwise", ELEMENTWISE, _ARITHMETIC),
    Family("activation", ELEMENTWISE, _ACTIVATION),
    Family("interpolation", ELEMENTWISE, _INTERPOLATION),
    Family("random", ELEMENTWISE, _RANDOM),
    Family("quantization", ELEMENTWISE, _QUANTIZATION),
    Family("optimizer", ELEMENTWISE, _OPTIMIZER),
    Family("elementwise, delegating", ELEMENTWISE, _ELEMENTWISE_THROUGH, delegates=True),
    Family("elementwise, composite", ELEMENTWISE, _ELEMENTWISE_COMPOSITE, delegates=True, composite=True),
    Family("copy and fill", MOVEMENT, _COPY),
    Family("indexing", MOVEMENT, _INDEXING),
    Family("layout", MOVEMENT, _LAYOUT),
    Family("movement, delegating", MOVEMENT, _MOVEMENT_THROUGH, delegates=True),
    Family("other", OTHER, _OTHER),
    Family("other, delegating", OTHER, _OTHER_THROUGH, delegates=True),
    Family("other, composite", OTHER, _OTHER_COMPOSITE, delegates=True, composite=True),
    Family("composite", None, _COMPOSITE),
    Family("view", None, _VIEW),
    Family("allocation", None, _ALLOCATION),
    Family("metadata", None, _METADATA),
    Family("torch's own tests", None, _TESTS),
    Family("TorchScript", None, _SCRIPT),
)


# --- lookup of ATen names, and of variants by their base name ---


_PREFIXES = ("_foreach_", "special_")
_SUFFIXES = ("_backward_data", "_backward_input", "_backward_weight", "_backward")
_VIEW_COPY = Family("copy of a view", MOVEMENT, "")


def classify_aten(base: str) -> Classification | None:
    """Classify the ATen operator `base` (no namespace, no overload); return `None` if no rule matches."""
    decided = _find(base)
    if decided is None:
        return None
    family, listed = decided
    return answer(family, f"operators/{family.title}: aten::{listed}")


@cache
def families_by_name() -> dict[str, Family]:
    """Return every ATen name in the tables, with its family."""
    return {name: family for family in FAMILIES for name in family.names.split()}


def _find(base: str) -> tuple[Family, str] | None:
    """Return the family that decides for `base`, and the listed name under which it was found."""
    family = families_by_name().get(base)
    if family is not None:
        return family, base
    if base.endswith("_") and not base.endswith("__"):
        return _find(base[:-1])
    for prefix in _PREFIXES:
        if base.startswith(prefix):
            return _find(base.removeprefix(prefix))
    if base.endswith("_copy"):
        original = _find(base.removesuffix("_copy"))
        return (_VIEW_COPY, base) if original and original[0].operator_class in (None, MOVEMENT) else None
    for suffix in _SUFFIXES:
        if base.endswith(suffix):
            original = _find(base.removesuffix(suffix))
            return original if original and original[0].operator_class is not None else None
    return None


# --- kernels written by torch.compile, by the operators in their names ---


_NAME = regex(
    r"^(?:void )?(?:graph_\d+_)?(?:kernel_)?"
    r"(?P<kind>cpp|triton(?:_(?:poi|red|per|pem|tem|for|spl|coo|mix|use|fix|sca))?)_fused_?(?P<operators>\w*?)"
    r"(?:_\d+)?(?:_\d[\ddec]*)?(?:\.kd)?$"
)
_TEMPLATE = regex(
    r"^triton_(?:tem_|template_|mm|bmm|addmm|flex_attention)"
    r"|^cpp_\w*(?:gemm|Gemm|GEMM|flex_attention)"
)
_UNNAMED = regex(r"^triton_(?:_[\ddec]*)?$")
_ATTENTION = regex(r"attention|attn|softmax")

#: Kinds of Triton kernels that reduce; other kinds without an entry in the tables are maps (`poi`, `for`).
_REDUCTIONS = frozenset({"red", "per", "pem", "spl", "coo", "mix"})
#: Contractions that a generated loop computes itself. A convolution or addmm in these names is a library call whose
#: bias or layout change was fused; only C++ templates compute addmm.
_COMPUTED = frozenset({"mm", "bmm", "mv", "dot", "baddbmm", "einsum", "matmul"})
_COMPUTED_ON_CPU = _COMPUTED | {"addmm", "linear", "addmv", "_int_mm"}
_MAX_NAME_PARTS = 8


def classify_compiled(name: str) -> Classification | None:
    """Classify a kernel written by torch.compile; return `None` for any other name.

    `triton_red_fused_add_mean_0` is a normalization that contains element-wise work, `cpp_fused_clone_0` data movement.
    """
    if "triton_" not in name and "cpp_" not in name:
        return None
    match = _NAME.match(name)
    if match is None or match["kind"] == "triton_tem":
        if _TEMPLATE.match(name):
            inside = (NORMALIZATION,) if _ATTENTION.search(name) else ()
            return Classification(operator_class=CONTRACTION, rule="compiled/template", contains=inside)
        if _UNNAMED.match(name):
            return Classification(operator_class=UNKNOWN, rule="compiled/unnamed: the name contains no operator")
        return None
    kind = match["kind"]
    operators = _operators(match["operators"])
    classes = {its_class for operator, its_class in operators if _counts(kind, operator, its_class)}
    own = _class_of(kind, classes)
    return Classification(
        operator_class=own,
        rule=f"compiled/{kind}: {' '.join(operator for operator, _ in operators) or 'no operator named'}",
        contains=tuple(item for item in OperatorClass if item in classes and item != own),
    )


def _class_of(kind: str, classes: set[OperatorClass | None]) -> OperatorClass:
    category = kind.removeprefix("triton_")
    if CONTRACTION in classes:
        return CONTRACTION
    if category in _REDUCTIONS:
        return OTHER if OTHER in classes and NORMALIZATION not in classes else NORMALIZATION
    if kind in ("cpp", "triton") and NORMALIZATION in classes:
        return NORMALIZATION
    if ELEMENTWISE in classes or NORMALIZATION in classes:
        return ELEMENTWISE
    if OTHER in classes:
        return OTHER
    return MOVEMENT if MOVEMENT in classes else ELEMENTWISE


def _counts(kind: str, operator: str, operator_class: OperatorClass | None) -> bool:
    """Return True if the kernel does this operator's work (a fused bias names the contraction it belongs to)."""
    if operator_class is not CONTRACTION:
        return operator_class is not None
    if kind == "cpp":
        return operator in _COMPUTED_ON_CPU
    return operator in _COMPUTED and kind != "triton_poi"


def _operators(text: str) -> list[tuple[str, OperatorClass | None]]:
    """Split `_to_copy_add_native_layer_norm` into operators, longest known name first; unknown words are skipped."""
    parts = text.split("_")
    operators: list[tuple[str, OperatorClass | None]] = []
    at = 0
    while at < len(parts):
        for end in range(min(len(parts), at + _MAX_NAME_PARTS), at, -1):
            word = "_".join(parts[at:end])
            known = classify_aten(word) if word and not word.endswith("_") else None
            if known is not None:
                operators.append((word, known.operator_class))
                at = end
                break
        else:
            at += 1
    return operators


# --- host names outside ATen: libraries, ranges and autograd nodes, then words of an unlisted operator ---
#
# The first expression that matches decides. A new library is one line here.


_SOFTMAX = (NORMALIZATION,)

_COMMUNICATION = RuleTable(
    "operators/communication",
    (
        Pattern(
            "matmul overlapped with a collective",
            CONTRACTION,
            r"^symm_mem::(fused_\w*(matmul|mm)|_async_input_mm)",
            delegates=True,
            contains=(COMMUNICATION,),
        ),
        Pattern("symmetric memory, local", MOVEMENT, r"^symm_mem::(memset32_|_rendezvous|stream_write_value32_)"),
        Pattern("collective backend", COMMUNICATION, r"^(nccl|gloo|ucc|mpi|xccl|rccl|hccl|cncl):(?!:)"),
        Pattern("torch.distributed", COMMUNICATION, r"^record_param_comms|^_?c10d(_functional)?(_autograd)?::"),
        Pattern("symmetric memory", COMMUNICATION, r"^symm_mem::|^_dtensor::"),
        Pattern(
            "FSDP copies around a collective",
            MOVEMENT,
            r"^fsdp::(all_gather_copy_in|split_with_sizes_copy|chunk_cat|copy_)",
            delegates=True,
        ),
        Pattern("FSDP", COMMUNICATION, r"^fsdp::"),
        Pattern(
            "expert parallel libraries and NVSHMEM",
            COMMUNICATION,
            r"^(deep_?ep\w*|dpsk::ep|mori|uccl|nvshmem\w*)::|::\w*(moe_)?a2a_(dispatch|combine)",
        ),
        Pattern("fbgemm", COMMUNICATION, r"^fbgemm::(all_to_one_device|car_|nccl_|(one|two)_shot)"),
    ),
)

_ATTENTION_LIBRARIES = RuleTable(
    "operators/attention libraries",
    (
        Pattern("flash-attn", CONTRACTION, r"^flash_attn(_\w+)?::", contains=_SOFTMAX),
        Pattern("scheduling of vLLM's flash attention", OTHER, r"^_(vllm_fa\d|flashmla)\w*::\w*(metadata|schedul)"),
        Pattern("vLLM's flash attention", CONTRACTION, r"^_(vllm_fa\d|flashmla)\w*::", contains=_SOFTMAX),
        Pattern("NATTEN and SageAttention", CONTRACTION, r"^(natten|sageattn)\w*::", contains=_SOFTMAX),
        Pattern(
            "xFormers and FlashInfer",
            CONTRACTION,
            r"^xformers(_\w+)?::\w*(attention|fmha|flash)|^flashinfer::\w*(prefill|decode)",
            contains=_SOFTMAX,
        ),
        # Python autograd functions around an extension: their kernels are launched by the function or its node itself.
        Pattern(
            "autograd function of an attention library",
            CONTRACTION,
            r"^_?(Flash|Sage|Ring|Ulysses|FusedAttn|BlockSparse)\w*(Attn|Attention)\w*(Backward\d*)?$"
            r"|^_?(FusedAttn|AttnFuncWith)\w*(Backward\d*)?$",
            contains=_SOFTMAX,
        ),
    ),
)

_FUNCTIONS = RuleTable(
    "operators/autograd functions of libraries",
    (
        Pattern("Liger, matmul and loss", None, r"^LigerFusedLinear\w*Function(Backward)?$"),
        Pattern(
            "Liger, norms and losses",
            NORMALIZATION,
            r"^Liger\w*(Norm|CrossEntropy|KLDiv|JSD|Softmax|Loss|Sparsemax|TVD)\w*Function(Backward)?$",
            delegates=True,
        ),
        Pattern(
            "Liger, element-wise",
            ELEMENTWISE,
            r"^Liger\w*(SiLUMul|GELUMul|SwiGLU|GeGLU|Rope|RoPE|MRope|RotaryEmb|DyT)\w*Function(Backward)?$",
            delegates=True,
        ),
        Pattern(
            "norm",
            NORMALIZATION,
            r"^\w*(LayerNorm|RMSNorm|RmsNorm|GroupNorm)\w*(Function|Func|Fn)(Backward)?$|^SyncBatchNorm(Backward)?$",
            delegates=True,
        ),
        Pattern("bitsandbytes", CONTRACTION, r"^MatMul(4Bit|8bitLt|8bit)(Backward)?$", delegates=True),
        Pattern("causal convolution", CONTRACTION, r"^CausalConv1dFn(Backward)?$", delegates=True),
        Pattern("selective scan", OTHER, r"^SelectiveScanFn(Backward)?$", delegates=True),
    ),
)

_FB = r"^(fb|fbgemm)::\w*"

_FBGEMM = RuleTable(
    "operators/fbgemm",
    (
        Pattern(
            "contraction",
            CONTRACTION,
            _FB + r"(bmm|gemm|f8f8bf16|bf16i4|f8i4|i8i8|f4f4|mx8mx8|_mm_|matmul)",
            delegates=True,
        ),
        Pattern("dequantization", ELEMENTWISE, _FB + r"(Quantized\w*To(Float|Half|Single)|[dD]equantize)"),
        Pattern(
            "quantization that computes its own maximum",
            NORMALIZATION,
            _FB + r"(Rowwise|NBit|PaddedFP8|MSFP|quantize_\w*per_(row|tensor|col|group)|get_fp8_per)",
        ),
        Pattern("quantization", ELEMENTWISE, _FB + r"([qQ]uantize|FloatTo|HFP8|Bfloat16)"),
        Pattern("reduction", NORMALIZATION, _FB + r"(cumsum|segment_sum|softmax|norm|reduce)", delegates=True),
        Pattern(
            "element-wise",
            ELEMENTWISE,
            _FB + r"(jagged_dense\w*(add|mul)|jagged_jagged_elementwise|bounds_check|rope|swiglu|silu)",
            delegates=True,
        ),
        Pattern(
            "sort and cache",
            OTHER,
            _FB + r"(sort|unique|topk|linearize|lxu_|lru_|lfu_|uvm|cuda_mem|invert_permute|find_)",
        ),
        Pattern(
            "lookup and layout",
            MOVEMENT,
            _FB + r"(embedding|permute|recat|bucketize|jagged|dense|index|gather|scatter|cat|select|copy|expand"
            r"|repeat|pack|lengths|offsets|segment|transpose|ssd|merge_pooled)",
        ),
    ),
    namespaces=frozenset({"fb", "fbgemm"}),
)

_QUANTIZED_NAMESPACE = r"^(_?quantized|onednn|mkldnn_prepacked|mkl|mkldnn|sparse|xnnpack|prepacked)::"

_QUANTIZED = RuleTable(
    "operators/quantized and oneDNN",
    (
        Pattern(
            "queries of packed weights",
            None,
            r"^_?quantized::conv\w*_(stride|padding|dilation|groups|transpose|unpack_sizes)$",
        ),
        Pattern("queries of oneDNN", None, r"^mkldnn::(_is_|_nbytes|_get_mkldnn|data_ptr)"),
        Pattern("packing", MOVEMENT, _QUANTIZED_NAMESPACE + r"\w*(prepack|unpack|reorder|pack_gemm|make_quantized)"),
        Pattern("lookup and concatenation", MOVEMENT, r"^(_?quantized|onednn)::q?(embedding|cat)"),
        Pattern(
            "contraction with epilogue",
            CONTRACTION,
            _QUANTIZED_NAMESPACE + r"\w*(conv|linear|matmul|lstm|gru|rnn)\w*(relu|add|tanh|pointwise)",
            contains=(ELEMENTWISE,),
        ),
        Pattern("contraction", CONTRACTION, _QUANTIZED_NAMESPACE + r"\w*(conv|linear|matmul|lstm|gru|rnn|int4mm)"),
        Pattern("norm and pooling", NORMALIZATION, r"^(_?quantized|onednn)::\w*(norm|softmax|pool)"),
        Pattern("element-wise", ELEMENTWISE, r"^(_?quantized|onednn|quantization)::"),
        Pattern(
            "bitsandbytes, matmul",
            CONTRACTION,
            r"^bitsandbytes::\w*(linear|matmul|gemv|gemm|mm_)",
            delegates=True,
        ),
        Pattern("bitsandbytes, element-wise", ELEMENTWISE, r"^bitsandbytes::\w*(dequant|optimizer_update)"),
        Pattern("bitsandbytes, quantization", NORMALIZATION, r"^bitsandbytes::\w*quant", delegates=True),
    ),
    namespaces=frozenset(
        {
            "_quantized",
            "quantized",
            "onednn",
            "mkldnn_prepacked",
            "mkl",
            "mkldnn",
            "sparse",
            "xnnpack",
            "prepacked",
            "quantization",
            "bitsandbytes",
        }
    ),
)

_TORCH = RuleTable(
    "operators/torch",
    (
        Pattern("inductor, matmul", CONTRACTION, r"^inductor::_mm_plus_mm$"),
        Pattern("inductor, accumulation", ELEMENTWISE, r"^inductor::accumulate_grad_$", delegates=True),
        Pattern(
            "bookkeeping",
            None,
            r"^(inductor|inductor_prims|debugprims|debug_mode_ops|export|profiler|prim|higher_order|_test)::",
        ),
        Pattern(
            "prims, element-wise",
            ELEMENTWISE,
            r"^rngprims::"
            r"|^prims::(normal|uniform|bessel_|cbrt|erf_inv|shift_|maximum_value|minimum_value|spherical_bessel)",
        ),
        Pattern(
            "prims, movement",
            MOVEMENT,
            r"^prims::(convert_element_type|device_put|copy_|iota|rev|clone|cat|resize)",
        ),
        Pattern("prims, reduction", NORMALIZATION, r"^prims::xor_sum"),
        Pattern("prims, other", OTHER, r"^prims::(svd|fft_)"),
        Pattern("prims, view", None, r"^prims::"),
        Pattern("static runtime, element-wise", ELEMENTWISE, r"^static_runtime::(clamp_nan_to_num|signed_log1p)"),
        Pattern("static runtime, copy", MOVEMENT, r"^static_runtime::(to_|\w*_copy|select_tensor)", delegates=True),
        Pattern("static runtime", None, r"^static_runtime::"),
        Pattern("torchvision, regions", NORMALIZATION, r"^torchvision::_?(ps_)?roi_(align|pool)"),
        Pattern("torchvision, convolution", CONTRACTION, r"^torchvision::_?deform_conv2d"),
    ),
    namespaces=frozenset(
        {
            "inductor",
            "inductor_prims",
            "debugprims",
            "debug_mode_ops",
            "export",
            "profiler",
            "prim",
            "higher_order",
            "_test",
            "rngprims",
            "prims",
            "static_runtime",
            "torchvision",
        }
    ),
)

LIBRARIES: tuple[RuleTable, ...] = (_COMMUNICATION, _ATTENTION_LIBRARIES, _FUNCTIONS, _FBGEMM, _QUANTIZED, _TORCH)

RANGES = RuleTable(
    "operators/ranges",
    (
        Pattern("autograd node", None, r"^autograd::engine::|^torch::(autograd|jit)::|Backward\d*$"),
        Pattern("distributed wrapper", None, r"^torch(\.|::)\w+|^(FSDP|DDP)\w*(::|\.)"),
        # The name of a dispatcher operator is `namespace::name`, without blanks and brackets.
        Pattern("range", None, r"[\s<>|()/#]|^(?!.*::)", annotation=True),
    ),
)

WORDS = RuleTable(
    "operators/words",
    (
        Pattern(
            "collective",
            COMMUNICATION,
            r"(?i)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|::(broadcast|barrier)_?$|custom_ar|nvshmem"
            r"|::(intra|inter)node_",
            delegates=True,
        ),
        Pattern(
            "weight layout",
            MOVEMENT,
            r"(?i)prepack|repack|unpack|weight_pack|reorder|marlin_permute|swizzle",
            delegates=True,
        ),
        Pattern(
            "KV cache",
            MOVEMENT,
            r"(?i)kv_?cache(?!\w*attn)|and_cache|(swap|copy)_blocks|cache_(copy|update|gather)|gather_cache|cp_gather",
            delegates=True,
        ),
        Pattern(
            "attention",
            CONTRACTION,
            r"(?i)attention|attn|fmha|sdpa|[_:]flash(_(?!infer)|$)|(^|[_:])(flash_)?mla_|mha_(fwd|bwd|varlen)|paged_",
            delegates=True,
            contains=_SOFTMAX,
        ),
        Pattern(
            "contraction",
            CONTRACTION,
            r"(?i)(?<!fb)gemm|gemv|matmul|(^|[_:])(scaled_|grouped_|b|int8_|fp8_|w8a8_|block_)?mm(_|$)|einsum|spmm"
            r"|wvsplitk|llmm1|(^|[_:])linear(_|$)|(^|[_:])(causal_|d|deform_)?conv(olution)?(\dd)?(_|$)|segment_mm",
            delegates=True,
        ),
        Pattern("experts", CONTRACTION, r"(?i)fused_moe|fused_experts|moe_forward|moe_wna16", delegates=True),
        Pattern(
            "quantization that computes its own maximum",
            NORMALIZATION,
            r"(?i)(dynamic|per_token|per_group|per_block|group|blockwise|rowwise|vectorwise|channelwise|mxfp\d|fp4)\w*(?<!de)quant"
            r"|(?<!de)quantize_(blockwise|4bit|fp4|mx)|scaled_fp4_quant",
            delegates=True,
        ),
        Pattern(
            "quantization",
            ELEMENTWISE,
            r"(?i)dequant|(^|[_:])(static_)?(scaled_)?(fp8|int8)?_?quant",
            delegates=True,
        ),
        Pattern(
            "norm, loss, reduction",
            NORMALIZATION,
            r"(?i)norm(_|\d|$)|softmax|cross_entropy|loss(_|$)|cumsum|logsumexp|moe_sum|pool(ing)?(\dd)?(_|$)"
            r"|(^|[_:])(sum|mean|amax|argmax|reduce)(_|$)",
            delegates=True,
        ),
        Pattern(
            "element-wise",
            ELEMENTWISE,
            r"(?i)silu|gelu|swiglu|geglu|relu|sigmoid|tanh|rotary|(^|[_:])rope|dropout|adam|adagrad|elementwise"
            r"|pointwise"
            r"|(^|[_:])(glu|sgd|lamb|lion|muon|bias|scale|add|mul|clamp|mask|activation|gating|unscale)(_|$)",
            delegates=True,
        ),
        Pattern(
            "sort, selection, sampling, scan",
            OTHER,
            r"(?i)selective_scan|(^|[_:])(ssd|ssm|wkv|scan|delta_rule|nms)(_|$)|sort|top_?k|unique|(^|[_:])sampl"
            r"|bincount|histogram|searchsorted|bucketize|moe_align|penalt",
            delegates=True,
        ),
        Pattern(
            "copy, lookup, layout",
            MOVEMENT,
            r"(?i)copy|gather|scatter|permut|transpose|embedding|index|shuffle"
            r"|(^|[_:])(cast|pad|cat|concat|fill|roll|flip|stack|pack|clone|jagged|zero)(_|$)",
            delegates=True,
        ),
    ),
)


#: Namespaces whose operators have ATen's names.
_LIKE_ATEN = frozenset({"aten", "prims", "mkldnn", "static_runtime", "inductor", "_native"})


@lru_cache(maxsize=65536)
def operator_of_overload(name: str) -> str:
    """Return the operator of a function in `at::_ops`, whose name ends in the overload: `index_Tensor`."""
    parts = name.split("_")
    for count in range(len(parts), 0, -1):
        base = "_".join(parts[:count])
        if base in families_by_name() or (base.endswith("_") and base[:-1] in families_by_name()):
            return f"aten::{base}"
    overload = re.search(r"_[A-Z]\w*$|_out$", name)
    return f"aten::{name[: overload.start()] if overload and overload.start() else name}"


@lru_cache(maxsize=65536)
def classify_operator(name: str) -> Classification | None:
    """Classify a host event by its name in a Kineto trace (`aten::addmm`, `AddmmBackward0`, `c10d::allreduce_`).

    The class in the answer is `None` for an event that does no work itself; the answer is `None` if no rule matches.
    """
    name = name[:LONGEST]
    compiled = classify_compiled(name)
    if compiled is not None:
        return compiled
    namespace, separator, base = name.partition("::")
    if separator and namespace in _LIKE_ATEN:
        known = classify_aten(base)
        if known is not None:
            return known
    return first_match((*LIBRARIES, RANGES, WORDS), name)


# --- operators called by the kernels of operators: those that a trace may have directly below them ---
#
# Listed for operators whose arguments or results autograd saves, as seen in 640 entries of torch's table of operator
# samples on the CPU and in traces of CUDA and ROCm from torch 1.8 to 2.13. Any other operator directly below them was
# called from Python in between.


_COPIES = "copy_ clone contiguous fill_ zero_ zeros"

_KERNELS: tuple[tuple[str, str], ...] = (
    ("mm bmm addmm baddbmm addmv mv dot vdot", f"{_COPIES} resolve_conj mul_ addmm_ addmv_ dot"),
    ("tanh sigmoid exp expm1 log log1p log2 sqrt rsqrt sin cos erf reciprocal", ""),
    ("gelu silu mish softplus elu leaky_relu", ""),
    ("relu hardtanh hardswish hardsigmoid log_sigmoid_forward _prelu_kernel", "clamp_min clamp"),
    ("mul div", "mul div"),
    ("pow", "pow copy_ fill_"),
    ("abs", "abs"),
    ("nll_loss_forward nll_loss2d_forward", "contiguous"),
    ("_softmax _log_softmax", "contiguous"),
    ("native_layer_norm native_group_norm", "contiguous zeros"),
    ("native_batch_norm _native_batch_norm_legit cudnn_batch_norm miopen_batch_norm", "contiguous zeros zero_ mean"),
    (
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention"
        " _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention",
        "contiguous zeros constant_pad_nd pad _flash_attention_forward _efficient_attention_forward"
        " _cudnn_attention_forward",
    ),
)  # fmt: skip

_CALLS = {
    f"aten::{name}": frozenset(f"aten::{called}" for called in called_names.split())
    for names, called_names in _KERNELS
    for name in names.split()
}
#: First calls of the kernels of matrix products on the CPU: the result is resolved, the added tensor expanded.
_BEGINS = {
    **dict.fromkeys(("aten::mm", "aten::bmm"), frozenset({"aten::resolve_conj"})),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm"), frozenset({"aten::expand"})),
}


def called_by_kernels_of(name: str) -> frozenset[str] | None:
    """Return the operators that the kernels of operator `name` call; `None` if not known."""
    return _CALLS.get(name)


def kernel_begins_with(name: str) -> frozenset[str]:
    """Return the operators that the kernel of the matrix product `name` calls first; empty for another operator."""
    return _BEGINS.get(name, frozenset())


#: Operators with an overload that only calls another operator, while another overload has its own kernel.
_OTHER_OVERLOAD = {
    "aten::max": ("aten::maximum",),
    "aten::min": ("aten::minimum",),
    "aten::repeat_interleave": ("aten::expand",),
    "aten::where": ("aten::nonzero_numpy", "aten::nonzero"),
}


def stands_for(name: str) -> tuple[str, ...]:
    """Return the operators that directly below `name` reveal the overload which only calls them."""
    return _OTHER_OVERLOAD.get(name, ())
