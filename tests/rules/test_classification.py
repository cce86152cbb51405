"""Operator and kernel names -> classes: real names with the class a person gave them, and laws over all of ATen."""
# ruff: noqa: E501 - kernel names are as long as they are

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opanatomy.classification.kernels import (
    classify_kernel,
    element_type,
    lacks_tensor_cores,
    read_kernel_name,
    rules,
)
from opanatomy.classification.operators import Family, RuleTable, classify_operator
from opanatomy.pipeline import summary_of_trace
from opanatomy.records.signature import Classification
from opanatomy.records.taxonomy import OperatorClass
from tests.support.made_trace import TraceBuilder
from tests.support.paths import SHARED

REFERENCE = SHARED / "reference" / "kernel_names.tsv"

CLASSES = {
    "contraction": OperatorClass.TENSOR_CONTRACTION,
    "normalization": OperatorClass.STATISTICAL_NORMALIZATION,
    "elementwise": OperatorClass.ELEMENTWISE,
    "movement": OperatorClass.DATA_MOVEMENT,
    "communication": OperatorClass.COMMUNICATION,
    "other": OperatorClass.OTHER,
    "unknown": OperatorClass.UNKNOWN,
}

#: Operators that own all that runs below them.
COMPUTES = {
    "contraction": """aten::addmm aten::baddbmm_ aten::_scaled_mm aten::_grouped_mm aten::cudnn_convolution
        aten::mkldnn_convolution aten::convolution_backward aten::cudnn_convolution_backward_weight
        torchvision::deform_conv2d quantized::linear inductor::_mm_plus_mm""",
    "contraction+elementwise": """aten::_cudnn_rnn mkldnn::_linear_pointwise onednn::qlinear_pointwise
        aten::cudnn_convolution_relu""",
    "contraction+normalization": """aten::_scaled_dot_product_flash_attention_backward
        aten::_scaled_dot_product_flash_attention_for_cpu flash_attn::_flash_attn_forward _vllm_fa3_C::fwd
        xformers::efficient_attention_forward_cutlass FlashAttnFunc FlashAttnVarlenFuncBackward natten::na2d_forward
        aten::_scaled_dot_product_efficient_attention""",
    "normalization": """aten::_softmax aten::_log_softmax_backward_data aten::native_layer_norm_backward
        aten::cudnn_batch_norm aten::sum aten::mean aten::cumsum_ aten::_foreach_norm aten::nll_loss_forward
        aten::mse_loss_backward aten::binary_cross_entropy_with_logits aten::max_pool2d_with_indices_backward
        aten::_adaptive_avg_pool2d fbgemm::FloatToFP8RowwiseQuantized quantized::layer_norm prims::xor_sum
        torchvision::roi_align aten::_softmax_backward_data""",
    "elementwise": """aten::add_ aten::_foreach_addcdiv_ aten::special_entr aten::gelu_backward
        aten::threshold_backward aten::native_dropout aten::bernoulli_ aten::masked_fill_ aten::where aten::tril_
        aten::_fused_adamw_ aten::_amp_foreach_non_finite_check_and_unscale_ aten::upsample_bilinear2d_backward
        fbgemm::FP8RowwiseQuantizedToFloat quantized::add bitsandbytes::dequantize_4bit fbgemm::FloatToHFP8Quantized
        prims::cbrt static_runtime::signed_log1p aten::dequantize aten::_foreach_mul_""",
    "movement": """aten::copy_ aten::_foreach_copy_ aten::fill_ aten::zero_ aten::arange aten::cat aten::embedding
        aten::embedding_dense_backward aten::index aten::_index_put_impl_ aten::scatter_add_ aten::constant_pad_nd
        aten::slice_backward aten::select_backward aten::repeat aten::view_copy aten::upsample_nearest2d
        fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function quantized::linear_prepack
        quantized::embedding_byte prims::convert_element_type symm_mem::memset32_ aten::_to_dense""",
    "communication": """c10d::allreduce_ _c10d_functional::wait_tensor record_param_comms nccl:all_reduce
        gloo:all_reduce symm_mem::one_shot_all_reduce deep_ep::dispatch deep_ep::low_latency_combine nvshmem::put
        trtllm::moe_a2a_dispatch symm_mem::multimem_all_reduce_ symm_mem::two_shot_all_reduce_
        symm_mem::all_to_all_vdev_2d nccl:all_to_all ucc:all_to_all fbgemm::all_to_one_device fsdp::reduce_scatter""",
    "other": """aten::sort aten::topk aten::nonzero aten::_local_scalar_dense aten::multinomial aten::_fft_r2c
        aten::linalg_cholesky_ex fbgemm::lxu_cache_lookup prims::fft_r2c _flashmla_C::get_mla_metadata""",
}
#: Operators that always compute, but by calling operators that do.
DELEGATES = {
    "contraction": """aten::linear aten::matmul aten::convolution aten::_convolution
        aten::cudnn_convolution_backward _C::cutlass_scaled_mm vllm::rocm_unquantized_gemm
        causal_conv1d::causal_conv1d_fwd CausalConv1dFn MatMul4Bit bitsandbytes::gemv_4bit fbgemm::f8f8bf16_rowwise
        vllm::moe_forward""",
    "contraction+communication": """symm_mem::fused_all_gather_matmul""",
    "contraction+elementwise": """aten::lstm""",
    "contraction+normalization": """aten::scaled_dot_product_attention aten::_scaled_dot_product_attention_math
        vllm::unified_attention_with_output customflash::custom_flash_aligned""",
    "normalization": """aten::softmax aten::layer_norm aten::rms_norm aten::cross_entropy_loss aten::nll_loss
        _C::fused_add_rms_norm _C::dynamic_per_token_scaled_fp8_quant LigerRMSNormFunction flash_rms::rms_norm
        FusedLayerNormAffineFunction bitsandbytes::quantize_4bit fbgemm::asynchronous_complete_cumsum""",
    "elementwise": """aten::square aten::rand _C::silu_and_mul _C::rotary_embedding _C::static_scaled_fp8_quant
        LigerSiLUMulFunction fbgemm::bounds_check_indices inductor::accumulate_grad_""",
    "movement": """aten::clone aten::_to_copy aten::zeros aten::one_hot aten::index_put_ fsdp::all_gather_copy_in aten::frobnicate_copy
        _C_cache_ops::reshape_and_cache_flash static_runtime::to_maybe_copy_out _C::gptq_marlin_repack
        _C::permute_cols""",
    "communication": """vllm::all_reduce""",
    "other": """aten::argsort _moe_C::moe_align_block_size SelectiveScanFn""",
}
#: The same of operators that never have a kernel of their own.
COMPOSED = {
    "contraction": """aten::tensordot""",
    "normalization": """aten::batch_norm""",
    "elementwise": """aten::isfinite""",
    "other": """aten::linalg_matrix_rank""",
}
#: Composites, views, allocations and autograd nodes, and the ranges that people and libraries write; two blanks apart.
NO_WORK = """
    aten::to  aten::contiguous  aten::reshape  aten::dropout  aten::einsum  aten::item  aten::view
    aten::transpose_  aten::_unsafe_view  aten::expand  aten::empty_strided  aten::resize_  aten::set_
    aten::detach_  aten::record_stream  aten::is_pinned  aten::ScalarImplicit  AddmmBackward0
    torch::autograd::AccumulateGrad  torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>
    torch.distributed.ddp.reducer::copy_bucket_to_grad  torch::distributed::reducer::mul_out
    CompiledFunctionBackward  profiler::_record_function_enter_new  LigerFusedLinearCrossEntropyFunction
    quantized::conv2d_stride  mkldnn::_is_mkldnn_acl_supported  prims::broadcast_in_dim
    static_runtime::VarTupleUnpack  aten::_foobar  autograd::engine::evaluate_function: AddmmBackward0
    torch::jit::(anonymous namespace)::DifferentiableGraphBackward  FSDP::pre_forward (layers.0)
"""
RANGES = """
    CopyBackwards  Optimizer.step#AdamW.step  Optimizer.zero_grad#AdamW.zero_grad  ProfilerStep#7
    enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__  opanatomy.module/encoder.layer.0
    opanatomy.phase/forward  DistributedDataParallel.forward  CompiledFunction  All2All_Pooled_Req
    Torch-Compiled Region: 0/0  ## Call CompiledFxGraph fal4xpiah2v6 ##  TorchDynamo Cache Lookup
    Pregraph bytecode  AOTDispatcher Runtime Wrapper Prologue  nn.Module: Linear_0  <backward op>
"""
#: A rule a row, and each spelling without which its names would have another class.
KERNELS = """
    contraction    ampere_sgemm_128x64_nn
    contraction    nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN
    contraction    nvjet_sm100_tst_64x16_64x16_2x4_2cta_h_bz_splitK_TNT
    contraction    void splitKreduce_kernel<32, 16, int, float, float, float, float, true, false, false>(cublasSplitKParams<float>, float const*, float const*, float*)
    contraction    void epilogue::impl::globalKernel<float, float, float, true, true>(int, int, long, float*, cublasLtEpilogue_t, int)
    contraction    void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 2, 2, false, false>(int)
    contraction    void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const>, cublasGemvTensorStridedBatched<float> > >(int)
    contraction    Cijk_D_HHS_BH_GA_PostGSU2_VW4
    contraction    _matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu
    contraction    fused_moe_kernel
    contraction    void marlin_moe_wna16::Marlin<__nv_bfloat16, 1125899906843648l, 256>(int4 const*)
    contraction    void wvSplitK_hf_sml_<__hip_bfloat16, 64, 4, 16, 8, 1, 4>(int, int, __hip_bfloat16 const*)
    contraction    cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1
    contraction    void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_32x4_nhwc_align8>(int)
    contraction    void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int)
    contraction    void fft2d_r2c_32x32<float, false, 5u, true>(float2*, float const*, int, cudnn::reduced_divisor)
    contraction    naive_conv_ab_nonpacked_fwd_nchw_float_double_float
    contraction    _ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_34GridwiseGemmMultiD_xdl_cshuffle_v3I
    contraction    _chunk_scan_fwd_kernel
    contraction    triton_tem_fused_addmm_relu_0
    contraction    triton_red_fused_mm_0
    contraction    XXT_kernel
    contraction    XTX_kernel
    contraction    ba_plus_cAA_kernel
    contraction    bmm_add_kernel
    contraction    void Outer<int>::my_gemm(int)
    contraction+elementwise  RNN_blockPersist_fp_LSTM
    contraction+elementwise  cpp_fused_addmm_relu_2
    contraction+elementwise  linear_relu_square_kernel
    contraction+elementwise  _linear_relu_square_kernel
    contraction+movement  void cudnn::cnn::kern_precompute_indices<true>(int)
    contraction+normalization  void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false>, false>(pytorch_flash::Flash_fwd_params)
    contraction+normalization  cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_31_64x128x64_4x1x1_kernel0_0
    contraction+normalization  void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<(flashinfer::MaskMode)1> >(int)
    contraction+normalization  kernel_unified_attention_2d
    contraction+normalization  attn_fwd
    contraction+normalization  _fwd_grouped_kernel_stage1
    contraction+normalization  _fwd_kernel_aligned_0d1d2d3d45d6de7de8c9de10de11c12d
    contraction+normalization  reduce_segments
    contraction+normalization  triton_tem_fused_flex_attention_0
    normalization  void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, 4> >(int)
    normalization  void at::native::<unnamed>::cunn_SoftMaxBackward<4, float, float, float>(float*)
    normalization  void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float)
    normalization  void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel_32x32<float, float>(long, long)
    normalization  void at::native::(anonymous namespace)::ComputeInternalGradientsCUDAKernel<float>(long)
    normalization  void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<float, float>(long, float, float const*, float*, float*)
    normalization  void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::GroupNormKernelImplInternal<float>(at::Tensor const&)::{lambda(float, float, float)#1}> >(int)
    normalization  void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(cudnnTensorStruct)
    normalization  kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnormFusedAddRMSNormKernel_object_at__tensorptrbf16gmem_0
    normalization  liger_cross_entropy_kernel
    normalization  void at::native::vectorized_elementwise_kernel<4, at::native::mse_kernel_cuda(at::TensorIteratorBase&)::{lambda()#1}::operator()() const::{lambda()#2}::operator()() const::{lambda(float, float)#1}, std::array<char*, 3ul> >(int)
    normalization  void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int, float const*)
    normalization  void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<1>, at::native::(anonymous namespace)::LpNormFunctor<float, (at::native::NormType)1, 1, 1, 0> >(int)
    normalization  void cub::detail::reduce::DeviceReduceSingleTileKernel<int>(int)
    normalization  void vllm::dynamic_per_token_scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(int)
    normalization  void kQuantizeBlockwise<__nv_bfloat16, 64, 2, 0, 2>(float*)
    normalization  cpp_fused_native_layer_norm_3
    normalization  void cdpsk::ep::CUB_200400_900_NS::DeviceScanKernel<x>(int)
    normalization  fused_softcapped_entropy_fwd_kernel
    normalization  _layer_norm_fwd_fused_0d1d2d3d4d5d67d8
    normalization  void ck_tile::kentry<ck_tile::Rmsnorm2dFwd<int> >(int)
    normalization  void ck::kernel_reduce_threadwise<ck::GridwiseReduction_mk_to_m_threadwise<float> >(int)
    normalization  void rocprim::detail::trampoline_kernel<rocprim::detail::reduce_kernel_impl>(int)
    normalization+elementwise  triton_red_fused__softmax_div_1
    normalization+elementwise  triton_red_fused_add_0
    normalization+elementwise+movement  triton_per_fused__to_copy_add_embedding_dense_backward_native_dropout_backward_native_layer_norm_backward_nll_loss_forward_30
    normalization+elementwise+movement  triton_per_fused_add_embedding_mean_mul_pow_rsqrt_6
    normalization+other  triton_red_fused_mean_sort_1
    elementwise    void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)
    elementwise    void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::masked_fill_kernel(at::TensorIterator&, c10::Scalar const&)::{lambda()#1}, at::detail::Array<char*, 3> >(int)
    elementwise    void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>(int)
    elementwise    void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float, float>(int, int volatile*)
    elementwise    void at::native::triu_tril_kernel<bool, int, false, 1, false>(bool*)
    elementwise    void at::native::(anonymous namespace)::upsample_bilinear2d_out_frame<float, float>(int)
    elementwise    void at::native::(anonymous namespace)::grid_sampler_2d_kernel<float, int>(int)
    elementwise    void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*, c10::BFloat16*)
    elementwise    _swiglu_forward_kernel
    elementwise    _triton_rope
    elementwise    void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>(float*)
    elementwise    void kOptimizerStatic8bit2StateBlockwise<float, 0, 256, 1>(float*)
    elementwise    void cub::detail::for_each::static_kernel<cub::detail::for_each::policy_hub_t::policy_350_t>(int)
    elementwise    triton_poi_fused__unsafe_view_mul_silu_2
    elementwise    triton_poi_fused_convolution_relu_0
    elementwise    triton_poi_fused_0
    elementwise    graph_0_cpp_fused_add_mul_0
    elementwise    upsample_linear1d_out_frame
    elementwise    void ck::kernel_elementwise_3d<ck::GridwiseElementwise_3D<int> >(int)
    elementwise    void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__parallel_for::ParallelForAgent<thrust::cuda_cub::__transform::unary_transform_f<int> > >(int)
    elementwise    generate_seed_pseudo
    elementwise    triton_poi_fused_mm_0
    elementwise+movement  triton_poi_fused_add__to_copy_0
    elementwise+normalization  triton_poi_fused_native_layer_norm_0
    movement       Memcpy DtoH (Device -> Pageable)
    movement       Memset (Device)
    movement       CopyDeviceToHost
    movement       __amd_rocclr_fillBufferAligned.kd
    movement       void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, at::detail::Array<char*, 1> >(int, at::native::FillFunctor<float>)
    movement       void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul> >(int)
    movement       void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<at::native::(anonymous namespace)::OpaqueType<4u>, unsigned int, 1, 128, 1>(int)
    movement       void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<at::native::index_kernel_impl<at::native::OpaqueType<8> >(at::TensorIteratorBase&)> >(int)
    movement       void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int)
    movement       void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>(int)
    movement       void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float, float, long>(long const*)
    movement       void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>(cudnn::ops::nchw2nhwc_params_t<float>, float const*, float*)
    movement       void cudnn::engines_precompiled::nhwcToNchwKernel<float, float, float, true, false>(int)
    movement       void cudnn::ops::tensorTransformGeneric<float, float, float, true, false, false>(int)
    movement       void cudnn::cnn::im2col4d_kernel<float, long>(cudnn::cnn::im2col4d_params)
    movement       void marlin::gptq_marlin_repack_kernel<256, 4, true>(unsigned int const*)
    movement       void deep_gemm::transpose_fp32<512u, 64u, 56u>(float const*, float*, unsigned int)
    movement       void at::native::roll_cuda_kernel<float>(float const*)
    movement       void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out(c10::Scalar const&)::{lambda()#1}>(int)
    movement       void fbgemm_gpu::permute_2D_data_kernel<false, int, int, decltype(nullptr)>(int, int, int, int const*)
    movement       void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>(int)
    movement       void transformer_engine::cast_transpose_general_kernel<8ul, 8ul, float, __nv_bfloat16, __nv_fp8_e4m3>(int)
    movement       triton_poi_fused__to_copy_1
    movement       triton_poi_fused_clone_0d1d2
    movement       cpp_fused_clone_cat_4
    movement       void ck_tile::kentry<ck_tile::ImageToColumn<int> >(int)
    movement       void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__parallel_for::ParallelForAgent<thrust::cuda_cub::__uninitialized_fill::functor<int> > >(int)
    movement       void at::native::index_elementwise_kernel<128, 4, at::native::take_put>(int)
    movement       void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<2>, at::native::(anonymous namespace)::CopyFunctor<float, 2> >(int)
    movement       void tensorrt_llm::kernels::cutlass_kernels::finalizeMoeRoutingKernel<float>(int)
    movement       triton_poi_fused_zork_clone_0
    communication  ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)
    communication  Memcpy PtoP (Device -> Device)
    communication  void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)
    communication  void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<int>(int)
    communication  void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)
    communication  void deep_ep::internode_ll::dispatch<true, false, 7168>(void*, void*)
    communication  void dpsk::ep::intranode::cached_notify_combine<2>(void**, int*)
    communication  void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(mori::moe::EpDispatchCombineArgs)
    communication  EpCombineIntraNodeKernel_bf16
    communication  void tensorrt_llm::kernels::moe_a2a::moeA2ADispatchKernel<4>(int)
    communication  ucc_ec_cuda_reduce_kernel
    communication  void c10d::symmetric_memory::put_signal_kernel(unsigned int**, int)
    communication  void rccl_main_kernel<x>()
    other          void at::native::radixSortKVInPlace<-2, -1, 32, 4, long, long, unsigned int>(int)
    other          void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(int)
    other          void at::native::(anonymous namespace)::searchsorted_cuda_kernel<float, long>(long*)
    other          void cub::DeviceSelectSweepKernel<cub::AgentSelectIfPolicy<128> >(int)
    other          void rocprim::ROCPRIM_400000_NS::detail::trampoline_kernel<rocprim::ROCPRIM_400000_NS::detail::radix_sort_onesweep_config>(int)
    other          void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<128, 16, 1> >(SSMParamsBase)
    other          void vllm::moe::moe_align_block_size_kernel<int>(int const*)
    other          void regular_fft<4096u, EPT<16u>, 16u>(int)
    other          void at::native::(anonymous namespace)::write_indices<int>(long*)
    other          void ck_tile::kentry<ck_tile::MoeSortingKernel<int> >(int)
    other          void at::native::(anonymous namespace)::sampleMultinomialOnce<float, float>(long)
    other          void getrf_pivot<float>(int)
    other          triton_red_fused_sort_0
    unknown        void my_kernel<AllReduce, Softmax, gemm_t, Sort_t, rotary_t, layer_norm_t, cat_t, topk_t, adam_t>(Copy_t)
    unknown        kernel
    unknown        triton__0d1d2d3d
    unknown        void my_kernel<AllReduce_t>(int)
"""


def _operators(table: dict[str, str], **flags: bool) -> list[tuple[str, str, dict[str, bool]]]:
    return [(expected, name, flags) for expected, names in table.items() for name in names.split()]


def _kernels() -> list[tuple[str, str]]:
    return [(expected, name) for expected, name in (line.split(maxsplit=1) for line in KERNELS.strip().splitlines())]


def _answer(name: str) -> Classification:
    found = classify_operator(name) if "::" in name else classify_kernel(name)
    assert found is not None
    return found


def _expected(text: str, found: Classification, **flags: bool) -> Classification:
    operator_class, *contains = (CLASSES[word] for word in text.split("+"))
    return Classification(operator_class=operator_class, rule=found.rule, contains=tuple(contains), **flags)


@pytest.mark.parametrize(
    ("expected", "name", "flags"),
    [
        *_operators(COMPUTES),
        *_operators(DELEGATES, delegates=True),
        *_operators(COMPOSED, delegates=True, composite=True),
    ],
)
def test_operators(expected: str, name: str, flags: dict[str, bool]) -> None:
    found = classify_operator(name)
    assert found is not None
    assert found == _expected(expected, found, **flags)


def _names(text: str) -> list[str]:
    return re.split(r"\s{2,}", text.strip())


@pytest.mark.parametrize(
    ("name", "annotation"), [*((name, False) for name in _names(NO_WORK)), *((name, True) for name in _names(RANGES))]
)
def test_what_does_no_work_of_its_own(name: str, annotation: bool) -> None:
    found = classify_operator(name)
    assert found is not None
    assert found == Classification(operator_class=None, rule=found.rule, annotation=annotation)


@pytest.mark.parametrize(("expected", "name"), _kernels())
def test_kernels(expected: str, name: str) -> None:
    found = classify_kernel(name)
    assert found == _expected(expected, found)


def test_every_rule_decides_a_row() -> None:
    book = rules()
    families = {f"operators/{family.title}" for family in book.operators if isinstance(family, Family)}
    tables = [table for table in (*book.operators, *book.kernels) if isinstance(table, RuleTable)]
    patterns = {f"{table.title}: {pattern.title}" for table in tables for pattern in table.patterns}
    operators = [name for table in (COMPUTES, DELEGATES, COMPOSED) for _, name, _ in _operators(table)]
    found = [classify_operator(name) for name in (*operators, *_names(NO_WORK), *_names(RANGES))]
    deciding = {answer.rule for answer in (*found, *(classify_kernel(name) for _, name in _kernels())) if answer}
    assert (families | patterns) - {rule.partition(": aten::")[0] for rule in deciding} == set()


def test_a_name_that_no_rule_knows_has_no_answer() -> None:
    assert classify_operator("mylib::frobnicate") is None
    assert classify_kernel("frobnicate") == Classification(operator_class=OperatorClass.UNKNOWN, rule="no rule")


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("aten::_softmax_backward_data", "operators/normalization: aten::_softmax_backward_data"),
        ("aten::_foreach_mul_", "operators/elementwise: aten::mul"),
        ("ampere_sgemm_32x128_nn", "kernels/contraction: matrix product"),
        ("triton_poi_fused_add__to_copy_0", "compiled/triton_poi: add _to_copy"),
        (
            "triton_per_fused_add_embedding_mean_mul_pow_rsqrt_6",
            "compiled/triton_per: add embedding mean mul pow rsqrt",
        ),
    ],
)
def test_the_rule_that_decided_is_named(name: str, rule: str) -> None:
    assert _answer(name).rule == rule


def test_a_compiled_range_on_the_host_is_classed_like_its_kernel() -> None:
    name = "triton_red_fused_add_mean_mul_pow_rsqrt_0"
    assert classify_operator(name) == classify_kernel(name)


@given(st.text(max_size=80))
def test_any_text_has_an_answer(name: str) -> None:
    assert isinstance(classify_kernel(name), Classification)
    assert isinstance(classify_operator(name), Classification | None)


def test_no_aten_name_is_listed_twice_and_every_rule_has_one_name() -> None:
    book = rules()
    names = [name for family in book.operators if isinstance(family, Family) for name in family.names.split()]
    assert len(names) == len(set(names))
    tables = [table for table in (*book.operators, *book.kernels) if isinstance(table, RuleTable)]
    named = [(table.title, pattern.title, pattern.operator_class) for table in tables for pattern in table.patterns]
    assert len(named) == len(set(named))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (
            "void CatArrayBatchedCopy_aligned16_contig<at::native::(anonymous namespace)::OpaqueType<4u>, 1>(int)",
            "int32",
        ),
        ("void CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<16u>, 1>(int)", "complex128"),
        ("void CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<1u>, 1>(int)", "uint8"),
        ("void CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<8u>, 1>(int)", "int64"),
        ("void CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<3u>, 1>(int)", None),
        ("void CatArrayBatchedCopy<c10::Half, unsigned int, 2>(int)", "float16"),
        (
            "void multi_tensor_apply_kernel<TensorListMetadata<2>, at::native::CopyFunctor<float, float, 2, 1, 1>>(int)",
            "float32",
        ),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<mine::Number, int>>(int)", None),
        ("ampere_sgemm_128x64_nn", None),
    ],
)
def test_the_element_type_of_a_list_is_in_the_name_of_its_kernel(name: str, dtype: str | None) -> None:
    assert element_type(name) == dtype


#: More names are in tests/rules/test_timeline.py.
@pytest.mark.parametrize(
    ("name", "uses"),
    [
        ("void cudnn::cnn::kern_precompute_indices<true>(int)", False),
        ("void flashinfer::MergeStatesKernel<8u>(float*)", False),
        ("void fmha_bwd_dot_do_o_kernel<128>(int)", False),
        ("miopenSp3AsmConv_v30_3_1_gfx94x_fp32_f2x3_dilate1.kd", False),
        ("void fft2d_r2c_32x32<float, false, 5u, true>(float2*)", False),
        ("void vllm::paged_attention_v2_kernel<__nv_bfloat16, 128>(float*)", False),
        ("kernel_cutlass_bf16GemmPersistent_object_at__0", True),
        ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<int>(int)", True),
        ("kernel_unified_attention_2d", True),
        ("void at::native::bitonicSortKVInPlace<2, -1, 16>(int)", False),
    ],
)
def test_tensor_cores_by_name(name: str, uses: bool) -> None:
    assert read_kernel_name(name).tensor_cores is uses


def test_devices_without_tensor_cores_and_copies_over_the_host_link() -> None:
    devices = (None, "Tesla P100-PCIE-16GB", "AMD Instinct MI50", "NVIDIA H100 80GB HBM3")
    assert [lacks_tensor_cores(device) for device in devices] == [False, True, True, False]
    copies = ("Memcpy HtoD (Pageable -> Device)", "CopyDeviceToHost", "Memcpy DtoD (Device -> Device)")
    assert [read_kernel_name(copy).crosses_host_link for copy in copies] == [True, True, False]


# ------------------------------------------------------------------------------------------------------ whole traces


def test_a_nameless_kernel_takes_the_class_of_its_operator(tmp_path: Path) -> None:
    made = TraceBuilder()
    for index, operator in enumerate(("triton_poi_fused_clone_3", "triton_red_fused_native_layer_norm_0")):
        made.host(operator, 100 * index, 50)
        made.launch(100 * index + 10, 7 + index)
        made.kernel("triton__0d1d2de", 100 * index + 20, 30, 7 + index)
    made.launch(300, 99)
    made.kernel("triton__0d1d2de", 310, 5, 99)
    rows = summary_of_trace(made.write(tmp_path / "t.json")).anatomy.kernels
    assert {(row.kernel, row.operator_class, row.time_ns) for row in rows} == {
        ("triton__0d1d2de", CLASSES["movement"], 30_000),
        ("triton__0d1d2de", CLASSES["normalization"], 30_000),
        ("triton__0d1d2de", CLASSES["unknown"], 5_000),
    }


def test_work_of_python_below_an_operator_is_counted_with_its_own_arguments(tmp_path: Path) -> None:
    # a nested or distributed tensor: the outer operator has no arguments, or those of all ranks
    made = TraceBuilder()
    shapes, types = [[64, 8], [8, 4]], ["float", "float"]
    made.host("aten::mm", 0, 100, shapes=shapes, types=types)
    made.host("PythonSubclass", 5, 90, shapes=shapes, types=types)
    made.host("aten::mm", 10, 80, shapes=[[16, 8], [8, 4]], types=types)
    rows = summary_of_trace(made.write(tmp_path / "t.json")).anatomy.operators
    products = [row for row in rows if row.operator == "aten::mm" and row.flops is not None]
    assert [(row.signature, row.flops) for row in products] == [("float32[16,8], float32[8,4]", 2 * 16 * 8 * 4)]


def test_a_layout_change_is_data_movement_where_it_stands_alone(tmp_path: Path) -> None:
    made = TraceBuilder()
    made.host("aten::cudnn_convolution", 0, 50)
    for correlation, start in ((7, 20), (8, 200)):
        made.launch(start - 10, correlation)
        made.kernel("void cudnn::ops::nchwToNhwcKernel<float, float, float>(int)", start, 5, correlation)
    classes = summary_of_trace(made.write(tmp_path / "t.json")).anatomy.classes
    assert {(row.operator_class, row.time_ns) for row in classes} == {
        (CLASSES["contraction"], 5_000),
        (CLASSES["movement"], 5_000),
    }


# ---------------------------------------------------------------------------------------------------- all of ATen

#: fbgemm's packed products: composite in the dispatcher, but they compute themselves.
COMPOSITE_THAT_COMPUTE = """fbgemm_linear_fp16_weight fbgemm_linear_fp16_weight_fp32_activation fbgemm_linear_int8_weight
    fbgemm_linear_int8_weight_fp32_activation fbgemm_linear_quantize_weight fbgemm_pack_gemm_matrix_fp16
    fbgemm_pack_quantized_matrix _wrapped_linear_prepack _wrapped_quantized_linear_prepacked"""


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
    found = {name: classify_operator(name) for name in _aten()}
    unknown = [name for name, answer in found.items() if answer is None]
    guessed = [name for name, answer in found.items() if answer and "words" in answer.rule]
    assert len(unknown) < 0.01 * len(found), unknown
    assert len(guessed) < 0.01 * len(found), guessed


def test_composites_never_own_the_work_below_them() -> None:
    composites = {name: classify_operator(name) for name, composite in _aten().items() if composite == {True}}
    owning = {name for name, found in composites.items() if found and found.operator_class and not found.delegates}
    assert owning <= {f"aten::{name}" for name in COMPOSITE_THAT_COMPUTE.split()}


def test_what_a_dispatch_mode_sees_is_classed_unless_it_moves_nothing() -> None:
    allowed = ("view", "allocation", "metadata", "torch's own tests")
    seen = {name: classify_operator(name) for name, composite in _aten().items() if composite == {False}}
    classless = {name: found.rule for name, found in seen.items() if found and found.operator_class is None}
    assert {name: rule for name, rule in classless.items() if not any(title in rule for title in allowed)} == {}


# ------------------------------------------------------------------------------------------- kernels of real traces


@pytest.mark.skipif(not REFERENCE.exists(), reason="no shared/reference/kernel_names.tsv next to this checkout")
def test_real_kernels_are_known_and_agree_with_the_operators_that_launched_them() -> None:
    """Where they do not, the operator decides: memsets and split-K inside an mm, fills inside a pooling backward."""
    all_us = unknown_us = agreed = compared = 0.0
    with REFERENCE.open(newline="") as lines:
        rows = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    for kernel, _, microseconds, operators in rows:
        of_kernel, time = classify_kernel(kernel).operator_class, float(microseconds)
        all_us += time
        unknown_us += time * (of_kernel == OperatorClass.UNKNOWN)
        launchers = [(name, int(count)) for name, count in re.findall(r"(?:^|; )(.+?)x(\d+)(?=; |$)", operators)]
        calls = sum(count for _, count in launchers)
        for operator, count in launchers:
            found = classify_operator(operator)
            if found is not None and found.operator_class is not None:
                compared += time * count / calls
                agreed += time * count / calls * (of_kernel == found.operator_class)
    assert unknown_us <= 0.01 * all_us
    assert agreed >= 0.99 * compared > 0
