"""Operator and kernel names -> classes: real names with the class a person gave them, and laws over all of ATen."""
# ruff: noqa: E501 - kernel names are as long as they are

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opanatomy.classification.kernels import classify_kernel, rules
from opanatomy.classification.operators import Family, RuleTable, classify_operator
from opanatomy.records.signature import Classification
from opanatomy.records.taxonomy import OperatorClass

REFERENCE = Path(__file__).resolve().parents[2] / "shared" / "reference" / "kernel_names.tsv"

CLASSES = {
    "contraction": OperatorClass.TENSOR_CONTRACTION,
    "normalization": OperatorClass.STATISTICAL_NORMALIZATION,
    "elementwise": OperatorClass.ELEMENTWISE,
    "movement": OperatorClass.DATA_MOVEMENT,
    "communication": OperatorClass.COMMUNICATION,
    "other": OperatorClass.OTHER,
    "unknown": OperatorClass.UNKNOWN,
}


def _rows(table: str) -> list[tuple[str, str]]:
    """`class  name` lines; a name may contain blanks."""
    pairs = (line.strip().split(maxsplit=1) for line in table.strip().splitlines())
    return [(expected, name) for expected, name in pairs]


# Operators that own all that runs below them.
TERMINAL = """
    contraction    aten::addmm
    contraction    aten::baddbmm_
    contraction    aten::_scaled_mm
    contraction    aten::_grouped_mm
    contraction    aten::cudnn_convolution
    contraction    aten::mkldnn_convolution
    contraction    aten::convolution_backward
    contraction    aten::cudnn_convolution_backward_weight
    contraction    aten::_scaled_dot_product_flash_attention_backward
    contraction    aten::_scaled_dot_product_flash_attention_for_cpu
    contraction    aten::_cudnn_rnn
    contraction    mkldnn::_linear_pointwise
    contraction    onednn::qlinear_pointwise
    contraction    flash_attn::_flash_attn_forward
    contraction    _vllm_fa3_C::fwd
    contraction    xformers::efficient_attention_forward_cutlass
    contraction    FlashAttnFunc
    contraction    FlashAttnVarlenFuncBackward
    contraction    torchvision::deform_conv2d
    normalization  aten::_softmax
    normalization  aten::_log_softmax_backward_data
    normalization  aten::native_layer_norm_backward
    normalization  aten::cudnn_batch_norm
    normalization  aten::sum
    normalization  aten::mean
    normalization  aten::cumsum_
    normalization  aten::_foreach_norm
    normalization  aten::nll_loss_forward
    normalization  aten::mse_loss_backward
    normalization  aten::binary_cross_entropy_with_logits
    normalization  aten::max_pool2d_with_indices_backward
    normalization  aten::_adaptive_avg_pool2d
    normalization  fbgemm::FloatToFP8RowwiseQuantized
    elementwise    aten::add_
    elementwise    aten::_foreach_addcdiv_
    elementwise    aten::special_entr
    elementwise    aten::gelu_backward
    elementwise    aten::threshold_backward
    elementwise    aten::native_dropout
    elementwise    aten::bernoulli_
    elementwise    aten::masked_fill_
    elementwise    aten::where
    elementwise    aten::tril_
    elementwise    aten::_fused_adamw_
    elementwise    aten::_amp_foreach_non_finite_check_and_unscale_
    elementwise    aten::upsample_bilinear2d_backward
    elementwise    fbgemm::FP8RowwiseQuantizedToFloat
    movement       aten::copy_
    movement       aten::_foreach_copy_
    movement       aten::fill_
    movement       aten::zero_
    movement       aten::arange
    movement       aten::cat
    movement       aten::embedding
    movement       aten::embedding_dense_backward
    movement       aten::index
    movement       aten::_index_put_impl_
    movement       aten::scatter_add_
    movement       aten::constant_pad_nd
    movement       aten::slice_backward
    movement       aten::select_backward
    movement       aten::repeat
    movement       aten::view_copy
    movement       aten::upsample_nearest2d
    movement       fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function
    communication  c10d::allreduce_
    communication  _c10d_functional::wait_tensor
    communication  record_param_comms
    communication  nccl:all_reduce
    communication  gloo:all_reduce
    communication  symm_mem::one_shot_all_reduce
    other          aten::sort
    other          aten::topk
    other          aten::nonzero
    other          aten::_local_scalar_dense
    other          aten::multinomial
    other          aten::_fft_r2c
    other          aten::linalg_cholesky_ex
"""

# Operators that always compute, but by calling operators that do.
DELEGATING = """
    contraction    aten::linear
    contraction    aten::matmul
    contraction    aten::convolution
    contraction    aten::_convolution
    contraction    aten::cudnn_convolution_backward
    contraction    aten::scaled_dot_product_attention
    contraction    aten::_scaled_dot_product_attention_math
    contraction    aten::lstm
    normalization  aten::softmax
    normalization  aten::layer_norm
    normalization  aten::batch_norm
    normalization  aten::rms_norm
    normalization  aten::cross_entropy_loss
    normalization  aten::nll_loss
    elementwise    aten::square
    elementwise    aten::rand
    movement       aten::clone
    movement       aten::_to_copy
    movement       aten::zeros
    movement       aten::one_hot
    movement       aten::index_put_
    movement       fsdp::all_gather_copy_in
    other          aten::argsort
    contraction    symm_mem::fused_all_gather_matmul
    contraction    _C::cutlass_scaled_mm
    contraction    vllm::unified_attention_with_output
    contraction    vllm::rocm_unquantized_gemm
    contraction    causal_conv1d::causal_conv1d_fwd
    normalization  _C::fused_add_rms_norm
    normalization  _C::dynamic_per_token_scaled_fp8_quant
    normalization  LigerRMSNormFunction
    elementwise    _C::silu_and_mul
    elementwise    _C::rotary_embedding
    elementwise    _C::static_scaled_fp8_quant
    movement       _C_cache_ops::reshape_and_cache_flash
    other          _moe_C::moe_align_block_size
"""

# Composites, views, allocations, autograd nodes and ranges.
NO_WORK = """
    aten::to
    aten::contiguous
    aten::reshape
    aten::dropout
    aten::einsum
    aten::item
    aten::view
    aten::transpose_
    aten::_unsafe_view
    aten::expand
    aten::empty_strided
    aten::resize_
    aten::set_
    aten::detach_
    aten::record_stream
    aten::is_pinned
    aten::ScalarImplicit
    AddmmBackward0
    CopyBackwards
    autograd::engine::evaluate_function: AddmmBackward0
    torch::autograd::AccumulateGrad
    torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>
    torch::jit::(anonymous namespace)::DifferentiableGraphBackward
    torch.distributed.ddp.reducer::copy_bucket_to_grad
    torch::distributed::reducer::mul_out
    Optimizer.step#AdamW.step
    Optimizer.zero_grad#AdamW.zero_grad
    ProfilerStep#7
    enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
    opanatomy.module/encoder.layer.0
    opanatomy.phase/forward
    FSDP::pre_forward (layers.0)
    DistributedDataParallel.forward
    Torch-Compiled Region: 0/0
    ## Call CompiledFxGraph fal4xpiah2v6 ##
    CompiledFunction
    CompiledFunctionBackward
    TorchDynamo Cache Lookup
    Pregraph bytecode
    AOTDispatcher Runtime Wrapper Prologue
    nn.Module: Linear_0
    <backward op>
    All2All_Pooled_Req
    profiler::_record_function_enter_new
"""

KERNELS = """
    contraction    ampere_sgemm_128x64_nn
    contraction    volta_sgemm_32x32_sliced1x4_tn
    contraction    ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn
    contraction    ampere_fp16_s16816gemm_fp16_256x128_ldg8_relu_f2f_stages_64x3_tn
    contraction    turing_h1688gemm_128x128_ldg8_stages_32x1_nn
    contraction    nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN
    contraction    nvjet_sm100_tst_64x16_64x16_2x4_2cta_h_bz_splitK_TNT
    contraction    sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas
    contraction    void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8>(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8::Params)
    contraction    void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int> > > >(int)
    contraction    void splitKreduce_kernel<32, 16, int, float, float, float, float, true, false, false>(cublasSplitKParams<float>, float const*, float const*, float*)
    contraction    void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(cublasLt::cublasSplitKParams<float>)
    contraction    void epilogue::impl::globalKernel<float, float, float, true, true>(int, int, long, float*, cublasLtEpilogue_t, int)
    contraction    std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, float>(int)
    contraction    void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 2, 2, false, false>(int)
    contraction    void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const>, cublasGemvTensorStridedBatched<float> > >(int)
    contraction    void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false>(int)
    contraction    void magma_sgemmEx_kernel<float, float, float, true, false, 6, 4, 6, 3, 4>(int, int, int, Tensor)
    contraction    Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_LDSB1
    contraction    Cijk_D_HHS_BH_GA_PostGSU2_VW4
    contraction    bmm_E4m3_E4m3E4m3_Fp32_t128x64x128u2_s6_et64x64_m64x64x32_c1x1x1_rM_TN_transOut_noShfl
    contraction    _matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu
    contraction    fused_moe_kernel
    contraction    void marlin_moe_wna16::Marlin<__nv_bfloat16, 1125899906843648l, 256>(int4 const*)
    contraction    void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 7168u, 2048u>(float*)
    contraction    void wvSplitK_hf_sml_<__hip_bfloat16, 64, 4, 16, 8, 1, 4>(int, int, __hip_bfloat16 const*)
    contraction    void kgemm_4bit_inference_naive<__nv_bfloat16, 128, 16>(int, int, int)
    contraction    cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1
    contraction    void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_32x4_nhwc_align8>(int)
    contraction    sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_execute_kernel_cudnn
    contraction    void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int, int, int, float const*)
    contraction    void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int)
    contraction    void cudnn::cnn::reduce_wgrad_nchw_helper<float, float>(void*, void const*, float, int, int)
    contraction    void cudnn::winograd_nonfused::winogradForwardOutput4x4<float, float>(cudnn::winograd_nonfused::WinogradOutputParams<float, float>)
    contraction    void fft2d_r2c_32x32<float, false, 5u, true>(float2*, float const*, int, cudnn::reduced_divisor)
    contraction    void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>(at::GenericPackedTensorAccessor<float const, 4ul>)
    contraction    void causal_conv1d_fwd_kernel<Causal_conv1d_fwd_kernel_traits<128, 4, true, c10::BFloat16, c10::BFloat16> >(ConvParamsBase)
    contraction    igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x64x32_wt32x32x8_ws1x1_wr1x2
    contraction    miopenSp3AsmConv_v30_3_1_gfx94x_fp32_f2x3_dilate1.kd
    contraction    naive_conv_ab_nonpacked_fwd_nchw_float_double_float
    contraction    _ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_34GridwiseGemmMultiD_xdl_cshuffle_v3I
    contraction    void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm_xdl_cshuffle_v3<int>, true>(int)
    contraction    void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false>, false>(pytorch_flash::Flash_fwd_params)
    contraction    void flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<128, 64, 128, 8> >(Flash_bwd_params)
    contraction    void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2> > > >(int)
    contraction    fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t, cutlass::arch::Sm80, true, 64, 64>::Params)
    contraction    cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_31_64x128x64_4x1x1_kernel0_0
    contraction    void vllm::paged_attention_v2_kernel<__nv_bfloat16, __nv_bfloat16, 128, 16, 128>(float*)
    contraction    void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<(flashinfer::MaskMode)1> >(int)
    contraction    kernel_unified_attention_2d
    contraction    attn_fwd
    contraction    _attn_bwd_dq
    contraction    _fwd_grouped_kernel_stage1
    contraction    _ZN7ck_tile6kentryILi2ENS_13FmhaFwdKernelINS_28BlockFmhaPipelineQRKSVSAsyncE
    contraction    void aiter::fmha_bwd_hd128_bf16_causal_a32_psskddv(int)
    contraction    _chunk_scan_fwd_kernel
    contraction    RNN_blockPersist_fp_LSTM
    contraction    triton_tem_fused_addmm_relu_0
    contraction    triton_tem_fused_flex_attention_0
    contraction    triton_red_fused_mm_0
    contraction    cpp_fused_addmm_relu_2
    normalization  void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, 4> >(int)
    normalization  void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, at::native::func_wrapper_t<c10::BFloat16, at::native::sum_functor<c10::BFloat16, float, c10::BFloat16>::operator()(at::TensorIterator&)::{lambda(float, float)#1}> > >(int)
    normalization  void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(float*, float const*, int, int, int, bool const*, int, bool)
    normalization  void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16, at::native::(anonymous namespace)::SoftMaxForwardEpilogue>(c10::BFloat16*, c10::BFloat16 const*, int)
    normalization  void at::native::<unnamed>::cunn_SoftMaxBackward<4, float, float, float>(float*)
    normalization  void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float)
    normalization  void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel_32x32<float, float>(long, long)
    normalization  void at::native::(anonymous namespace)::ComputeInternalGradientsCUDAKernel<float>(long)
    normalization  void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<float, float>(long, float, float const*, float*, float*)
    normalization  void at::native::batch_norm_collect_statistics_kernel<at::native::Var, float, float, float, int>(int)
    normalization  void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::GroupNormKernelImplInternal<float>(at::Tensor const&)::{lambda(float, float, float)#1}> >(int)
    normalization  void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(cudnnTensorStruct)
    normalization  MIOpenBatchNormFwdTrainSpatial
    normalization  void layer_norm::ln_fwd_kernel<layer_norm::Kernel_traits<float, float, float, float, float, unsigned int, 1024u> >(layer_norm::FwdParams)
    normalization  void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<int>(int)
    normalization  void transformer_engine::scaled_upper_triang_masked_softmax_warp_forward<__nv_bfloat16, __nv_bfloat16, float, 11>(int)
    normalization  void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long, c10::BFloat16*)
    normalization  void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*)
    normalization  kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnormFusedAddRMSNormKernel_object_at__tensorptrbf16gmem_0
    normalization  _rms_norm_forward_kernel
    normalization  _layer_norm_bwd_kernel
    normalization  liger_cross_entropy_kernel
    normalization  void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*)
    normalization  void at::native::vectorized_elementwise_kernel<4, at::native::mse_kernel_cuda(at::TensorIteratorBase&)::{lambda()#1}::operator()() const::{lambda()#2}::operator()() const::{lambda(float, float)#1}, std::array<char*, 3ul> >(int)
    normalization  void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int, float const*)
    normalization  void at::native::(anonymous namespace)::adaptive_average_pool<float>(float const*, float*, int)
    normalization  void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<1>, at::native::(anonymous namespace)::LpNormFunctor<float, (at::native::NormType)1, 1, 1, 0> >(int)
    normalization  void at::native::lpnorm_cleanup<float, (at::native::NormType)1, float, float>(float const*, int)
    normalization  void at::native::tensor_kernel_scan_innermost_dim<float, std::plus<float> >(float*, float const*, unsigned int)
    normalization  void cub::DeviceScanKernel<cub::AgentScanPolicy<128, 15, long, (cub::BlockLoadAlgorithm)3> >(int)
    normalization  void cub::detail::reduce::DeviceReduceSingleTileKernel<int>(int)
    normalization  void vllm::dynamic_per_token_scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(int)
    normalization  void kQuantizeBlockwise<__nv_bfloat16, 64, 2, 0, 2>(float*)
    normalization  void at::native::(anonymous namespace)::ctc_loss_log_alpha_gpu_kernel<float, long>(float*)
    normalization  triton_per_fused__to_copy_add_embedding_dense_backward_native_dropout_backward_native_layer_norm_backward_nll_loss_forward_30
    normalization  triton_red_fused__softmax_div_1
    normalization  cpp_fused_native_layer_norm_3
    elementwise    void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)
    elementwise    _ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIN3c104HalfEEENS_6detail5ArrayIPcLi3EEEEEviT0_T1_
    elementwise    void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul> >(int)
    elementwise    void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::(anonymous namespace)::where_kernel_impl(at::TensorIterator&)::{lambda()#1}> >(int)
    elementwise    void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::masked_fill_kernel(at::TensorIterator&, c10::Scalar const&)::{lambda()#1}, at::detail::Array<char*, 3> >(int)
    elementwise    void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>(int)
    elementwise    void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4, at::native::templates::cuda::normal_and_transform<float> >(int)
    elementwise    void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false> >(int)
    elementwise    void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float, float>(int, int volatile*)
    elementwise    void at::native::triu_tril_kernel<bool, int, false, 1, false>(bool*)
    elementwise    void at::native::(anonymous namespace)::upsample_bilinear2d_out_frame<float, float>(int)
    elementwise    void at::native::(anonymous namespace)::grid_sampler_2d_kernel<float, int>(int)
    elementwise    void vllm::act_and_mul_kernel<c10::BFloat16, &(c10::BFloat16 vllm::silu_kernel<c10::BFloat16>(c10::BFloat16 const&)), true>(c10::BFloat16*)
    elementwise    void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*, c10::BFloat16*)
    elementwise    _swiglu_forward_kernel
    elementwise    _triton_rope
    elementwise    element_mul_kernel
    elementwise    void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>(float*)
    elementwise    void kOptimizerStatic8bit2StateBlockwise<float, 0, 256, 1>(float*)
    elementwise    void cub::detail::for_each::static_kernel<cub::detail::for_each::policy_hub_t::policy_350_t>(int)
    elementwise    triton_poi_fused__unsafe_view_mul_silu_2
    elementwise    triton_poi_fused_convolution_relu_0
    elementwise    triton_poi_fused_0
    elementwise    graph_0_cpp_fused_add_mul_0
    movement       Memcpy DtoH (Device -> Pageable)
    movement       Memset (Device)
    movement       CopyDeviceToHost
    movement       __amd_rocclr_fillBufferAligned.kd
    movement       void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, at::detail::Array<char*, 1> >(int, at::native::FillFunctor<float>)
    movement       void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda(float)#1}, at::detail::Array<char*, 2> >(int)
    movement       void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul> >(int)
    movement       void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<at::native::(anonymous namespace)::OpaqueType<4u>, unsigned int, 1, 128, 1>(int)
    movement       void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<at::native::index_kernel_impl<at::native::OpaqueType<8> >(at::TensorIteratorBase&)> >(int)
    movement       void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int)
    movement       void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>(int)
    movement       void at::native::_scatter_gather_elementwise_kernel<128, 4, at::native::_cuda_scatter_gather_internal_kernel<true, float>::operator()<at::native::ReduceAdd>(at::TensorIterator&)>(int)
    movement       void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float, float, long>(long const*)
    movement       void at::native::(anonymous namespace)::EmbeddingBag_updateOutputKernel_sum_mean<float, long>(long const*)
    movement       void at::native::im2col_kernel<float>(long, float const*)
    movement       void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>(cudnn::ops::nchw2nhwc_params_t<float>, float const*, float*)
    movement       void cudnn::engines_precompiled::nhwcToNchwKernel<float, float, float, true, false>(int)
    movement       void cudnn::ops::tensorTransformGeneric<float, float, float, true, false, false>(int)
    movement       void cudnn::cnn::im2col4d_kernel<float, long>(cudnn::cnn::im2col4d_params)
    movement       void transpose_readWrite_alignment_kernel<float2, float2, 1, false, 6, 4, 4>(cublasTransposeParams<float2>)
    movement       batched_transpose_32x32_half
    movement       batched_transpose_64x64_pack_4x4_ediv_4x4_half
    movement       SubTensorOpWithCastTensor1d
    movement       void marlin::gptq_marlin_repack_kernel<256, 4, true>(unsigned int const*)
    movement       void deep_gemm::transpose_fp32<512u, 64u, 56u>(float const*, float*, unsigned int)
    movement       void at::native::reflection_pad2d_out_kernel<float>(float const*)
    movement       void at::native::roll_cuda_kernel<float>(float const*)
    movement       void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out(c10::Scalar const&)::{lambda()#1}>(int)
    movement       void split_embedding_codegen_forward_unweighted_kernel<float, float, float, long, 2ul>(int)
    movement       void fbgemm_gpu::permute_2D_data_kernel<false, int, int, decltype(nullptr)>(int, int, int, int const*)
    movement       void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>(int)
    movement       void transformer_engine::cast_transpose_general_kernel<8ul, 8ul, float, __nv_bfloat16, __nv_fp8_e4m3>(int)
    movement       triton_poi_fused__to_copy_1
    movement       triton_poi_fused_clone_0d1d2
    movement       cpp_fused_clone_cat_4
    communication  ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)
    communication  ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)
    communication  Memcpy PtoP (Device -> Device)
    communication  void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)
    communication  void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<int>(int)
    communication  void c10d::symmetric_memory::multimem_all_reduce_kernel<c10::BFloat16, 16>(int)
    communication  void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)
    other          void at::native::radixSortKVInPlace<-2, -1, 32, 4, long, long, unsigned int>(int)
    other          void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int, int>::Policy800, false, long, int, int, int>(int*)
    other          void at::native::bitonicSortKVInPlace<2, -1, 16, 16, float, long, at::native::GTOp<float, true>, unsigned int>(int)
    other          void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(int)
    other          void at::native::(anonymous namespace)::searchsorted_cuda_kernel<float, long>(long*)
    other          void cub::DeviceSelectSweepKernel<cub::AgentSelectIfPolicy<128> >(int)
    other          void rocprim::ROCPRIM_400000_NS::detail::trampoline_kernel<rocprim::ROCPRIM_400000_NS::detail::radix_sort_onesweep_config>(int)
    other          void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<128, 16, 1> >(SSMParamsBase)
    other          void vllm::moe::moe_align_block_size_kernel<int>(int const*)
    other          void regular_fft<4096u, EPT<16u>, 16u>(int)
    unknown        kernel
    unknown        triton__0d1d2d3d
    unknown        my_own_thing
"""


@pytest.mark.parametrize(("expected", "name"), _rows(TERMINAL))
def test_terminal_operators(expected: str, name: str) -> None:
    found = classify_operator(name)
    assert found is not None
    assert (found.operator_class, found.delegates) == (CLASSES[expected], False), found.rule


@pytest.mark.parametrize(("expected", "name"), _rows(DELEGATING))
def test_delegating_operators(expected: str, name: str) -> None:
    found = classify_operator(name)
    assert found is not None
    assert (found.operator_class, found.delegates) == (CLASSES[expected], True), found.rule


@pytest.mark.parametrize("name", [line.strip() for line in NO_WORK.strip().splitlines()])
def test_what_does_no_work_of_its_own(name: str) -> None:
    found = classify_operator(name)
    assert found is not None
    assert found.operator_class is None, found.rule


@pytest.mark.parametrize(("expected", "name"), _rows(KERNELS))
def test_kernels(expected: str, name: str) -> None:
    found = classify_kernel(name)
    assert found.operator_class == CLASSES[expected], found.rule


def test_a_name_that_no_rule_knows_has_no_answer() -> None:
    assert classify_operator("mylib::frobnicate") is None
    assert classify_kernel("frobnicate") == Classification(operator_class=OperatorClass.UNKNOWN, rule="no rule")


def test_the_rule_that_decided_is_named() -> None:
    softmax = classify_operator("aten::_softmax_backward_data")
    assert softmax is not None
    assert softmax.rule == "operators/normalization: aten::_softmax_backward_data"
    in_place = classify_operator("aten::_foreach_mul_")
    assert in_place is not None
    assert in_place.rule == "operators/elementwise: aten::mul"
    assert classify_kernel("ampere_sgemm_32x128_nn").rule == "kernels/contraction: matrix product"


def test_what_a_fused_kernel_contains() -> None:
    norm, elementwise, movement = (
        OperatorClass.STATISTICAL_NORMALIZATION,
        OperatorClass.ELEMENTWISE,
        OperatorClass.DATA_MOVEMENT,
    )
    assert classify_kernel("attn_fwd").contains == (norm,)
    attention = classify_operator("aten::_scaled_dot_product_efficient_attention")
    assert attention is not None
    assert attention.contains == (norm,)
    reduction = classify_kernel("triton_per_fused_add_embedding_mean_mul_pow_rsqrt_6")
    assert reduction.contains == (elementwise, movement)
    assert reduction.rule == "compiled/triton_per: add embedding mean mul pow rsqrt"
    # The convolution is a library call; only its bias is in this kernel.
    assert classify_kernel("triton_poi_fused_convolution_relu_0").contains == ()


def test_a_compiled_range_on_the_host_is_classed_like_its_kernel() -> None:
    name = "triton_red_fused_add_mean_mul_pow_rsqrt_0"
    assert classify_operator(name) == classify_kernel(name)


@given(st.text(max_size=80))
def test_any_text_has_an_answer(name: str) -> None:
    assert isinstance(classify_kernel(name), Classification)
    assert classify_operator(name) is None or classify_operator(name) == classify_operator(name)


def _tables() -> Iterator[RuleTable]:
    book = rules()
    yield from (table for table in (*book.operators, *book.kernels) if isinstance(table, RuleTable))


def test_no_aten_name_is_listed_twice() -> None:
    names = [name for family in rules().operators if isinstance(family, Family) for name in family.names.split()]
    assert len(names) == len(set(names))


def test_every_expression_is_valid_and_every_rule_has_one_name() -> None:
    tables = list(_tables())
    for table in tables:
        for pattern in table.patterns:
            re.compile(pattern.expression)
    named = [(table.title, pattern.title, pattern.operator_class) for table in tables for pattern in table.patterns]
    assert len(named) == len(set(named))


# ---------------------------------------------------------------------------------------------------- all of ATen

# fbgemm's packed products: composite in the dispatcher, but they compute themselves.
COMPOSITE_THAT_COMPUTE = {
    "fbgemm_linear_fp16_weight",
    "fbgemm_linear_fp16_weight_fp32_activation",
    "fbgemm_linear_int8_weight",
    "fbgemm_linear_int8_weight_fp32_activation",
    "fbgemm_linear_quantize_weight",
    "fbgemm_pack_gemm_matrix_fp16",
    "fbgemm_pack_quantized_matrix",
    "_wrapped_linear_prepack",
    "_wrapped_quantized_linear_prepacked",
}


def _aten() -> dict[str, set[bool]]:
    """Each ATen name of the installed torch -> whether its overloads are composites that autograd sees through."""
    torch = pytest.importorskip("torch")
    names: dict[str, set[bool]] = {}
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::"):
            composite = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
            names.setdefault(name.partition(".")[0], set()).add(composite)
    return names


def test_every_aten_operator_has_a_rule() -> None:
    names = _aten()
    unknown = [name for name in names if classify_operator(name) is None]
    assert len(unknown) < 0.01 * len(names), unknown
    guessed = [name for name in names if (found := classify_operator(name)) and "words" in found.rule]
    assert len(guessed) < 0.01 * len(names), guessed


def test_composites_never_own_the_work_below_them() -> None:
    wrong = [
        name
        for name, composite in _aten().items()
        if composite == {True}
        and (found := classify_operator(name)) is not None
        and found.operator_class is not None
        and not found.delegates
        and name.removeprefix("aten::") not in COMPOSITE_THAT_COMPUTE
    ]
    assert wrong == []


def test_what_a_dispatch_mode_sees_is_classed_unless_it_moves_nothing() -> None:
    allowed = ("view", "allocation", "metadata", "tests of torch")
    wrong = [
        name
        for name, composite in _aten().items()
        if composite == {False}
        and (found := classify_operator(name)) is not None
        and found.operator_class is None
        and not any(title in found.rule for title in allowed)
    ]
    assert wrong == []


# ------------------------------------------------------------------------------------------- kernels of real traces


def _reference() -> list[tuple[str, float, list[tuple[str, int]]]]:
    """Kernel, total microseconds, and the operators that launched it with how often each did."""
    if not REFERENCE.exists():
        pytest.skip("no shared/reference/kernel_names.tsv next to this checkout")
    with REFERENCE.open(newline="") as lines:
        rows = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    launcher = re.compile(r"(.+?)x(\d+)$")
    found = []
    for kernel, _, microseconds, operators in rows:
        matches = (launcher.match(item) for item in operators.split("; "))
        found.append((kernel, float(microseconds), [(match[1], int(match[2])) for match in matches if match]))
    return found


def test_at_most_one_percent_of_real_kernel_time_is_unknown() -> None:
    rows = _reference()
    unknown = [(time, kernel) for kernel, time, _ in rows if classify_kernel(kernel).operator_class == "unknown"]
    assert sum(time for time, _ in unknown) <= 0.01 * sum(time for _, time, _ in rows), unknown


def test_kernel_and_launching_operator_agree() -> None:
    """Where they do not, the operator decides: memsets and split-K inside an mm, fills inside a pooling backward."""
    agreed = 0.0
    compared = 0.0
    for kernel, time, launchers in _reference():
        calls = sum(count for _, count in launchers)
        for operator, count in launchers:
            found = classify_operator(operator)
            if found is None or found.operator_class is None:
                continue
            compared += time * count / calls
            agreed += time * count / calls * (classify_kernel(kernel).operator_class == found.operator_class)
    assert agreed >= 0.99 * compared
