"""What each operator of a CPU capture would launch on an accelerator, written down by hand: its class and its kernels.

The names are those of real traces (CUDA 12, ROCm 6). An operator that is in neither table is refused by the maker.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from opanatomy.records.taxonomy import OperatorClass

CONTRACTION = OperatorClass.TENSOR_CONTRACTION
NORMALIZATION = OperatorClass.STATISTICAL_NORMALIZATION
ELEMENTWISE = OperatorClass.ELEMENTWISE
MOVEMENT = OperatorClass.DATA_MOVEMENT
OTHER = OperatorClass.OTHER

#: Device work that is no kernel.
COPY, HOST_COPY, FILL = "memcpy", "memcpy to the host", "memset"


class Work(Struct, frozen=True, kw_only=True):
    """The class of an operator, and the kernels (or `COPY`, `HOST_COPY`, `FILL`) that each call launches in order.

    One without kernels does its work by what it calls, which is a part of it.
    """

    operator_class: OperatorClass
    kernels: tuple[str, ...] = ()
    hip: tuple[str, ...] | None = None
    bfloat16: tuple[str, ...] | None = None


def _map(functor: str) -> Work:
    name = f"void at::native::vectorized_elementwise_kernel<4, at::native::{functor}, std::array<char*, 3ul> >(int)"
    return Work(operator_class=ELEMENTWISE, kernels=(name,))


def _reduction(functor: str) -> Work:
    name = f"void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::{functor}, 4> >(float)"
    return Work(operator_class=NORMALIZATION, kernels=(name,))


def _softmax(kernel: str) -> Work:
    name = f"void (anonymous namespace)::{kernel}<float, float, float, 6, false, false>(float*, float const*, int)"
    return Work(operator_class=NORMALIZATION, kernels=(name,))


def _product(shape: str) -> Work:
    return Work(
        operator_class=CONTRACTION,
        kernels=(f"ampere_sgemm_{shape}_nn",),
        hip=("Cijk_Ailk_Bljk_SB_MT64x64x16_MI16x16x4x1_SN_K1",),
        bfloat16=(f"ampere_bf16_s16816gemm_bf16_{shape}_ldg8_f2f_stages_64x3_nn",),
    )


def _moved(*kernels: str) -> Work:
    return Work(operator_class=MOVEMENT, kernels=kernels)


_NORM = "void at::native::(anonymous namespace)::"
_APPLY = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
_FILL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int)"
)
_COPY = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>(int)"
)

WORK: Final[dict[str, Work]] = {
    "aten::mm": _product("128x64"),
    "aten::addmm": _product("128x128"),
    "aten::bmm": _product("64x32"),
    "aten::_softmax": _softmax("softmax_warp_forward"),
    "aten::_softmax_backward_data": _softmax("softmax_warp_backward"),
    "aten::_log_softmax": _softmax("softmax_warp_forward"),
    "aten::_log_softmax_backward_data": _softmax("softmax_warp_backward"),
    "aten::native_layer_norm": Work(
        operator_class=NORMALIZATION, kernels=(f"{_NORM}vectorized_layer_norm_kernel<float, float>(int, float)",)
    ),
    "aten::native_layer_norm_backward": Work(
        operator_class=NORMALIZATION,
        kernels=(
            f"{_NORM}layer_norm_grad_input_kernel_vectorized<float, float>(float const*)",
            f"{_NORM}cuComputePartGradGammaBeta<float, float>(float const*)",
        ),
    ),
    "aten::sum": _reduction("func_wrapper_t<float, at::native::sum_functor<float, float, float> >"),
    "aten::all": _reduction("func_wrapper_t<bool, at::native::and_kernel_cuda(at::TensorIterator&)>"),
    "aten::nll_loss_forward": Work(
        operator_class=NORMALIZATION, kernels=(f"{_NORM}nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>()",)
    ),
    "aten::nll_loss_backward": Work(
        operator_class=NORMALIZATION, kernels=(f"{_NORM}nll_loss_backward_reduce_cuda_kernel_2d<float, long>()",)
    ),
    "aten::_safe_softmax": Work(operator_class=NORMALIZATION),
    "aten::add": _map("CUDAFunctor_add<float>"),
    "aten::add_": _map("CUDAFunctor_add<float>"),
    "aten::mul": _map("BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >"),
    "aten::div_": _map("BUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >"),
    "aten::isneginf": _map("isneginf_kernel_impl(at::TensorIteratorBase&)"),
    "aten::where": _map("where_kernel_impl(at::TensorIterator&)"),
    "aten::gelu": _map("GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)"),
    "aten::gelu_backward": _map("GeluBackwardCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)"),
    "aten::bernoulli_": Work(
        operator_class=ELEMENTWISE,
        kernels=(f"{_NORM}distribution_elementwise_grid_stride_kernel<float, 4>(long, at::PhiloxCudaState)",),
    ),
    "aten::_foreach_add_": Work(
        operator_class=ELEMENTWISE,
        kernels=(f"{_APPLY}TensorListMetadata<1>, at::native::(anonymous namespace)::BinaryOpScalarFunctor<float> >",),
    ),
    "aten::_fused_adamw_": Work(
        operator_class=ELEMENTWISE,
        kernels=(f"{_APPLY}FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4, ADAMW> >",),
    ),
    "aten::copy_": Work(operator_class=MOVEMENT, kernels=(COPY,), bfloat16=(_COPY,)),
    "aten::fill_": _moved(_FILL),
    "aten::zero_": _moved(FILL),
    "aten::scalar_tensor": _moved(_FILL),
    "aten::embedding": _moved(),
    "aten::index_select": _moved(f"{_NORM}indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>()"),
    "aten::gather": _moved("void at::native::_scatter_gather_elementwise_kernel<128, 8, gather>(int)"),
    "aten::embedding_dense_backward": _moved(
        f"{_NORM}embedding_backward_feature_kernel<float, float, long>(long const*)"
    ),
    "aten::_local_scalar_dense": Work(operator_class=OTHER, kernels=(HOST_COPY,)),
}

#: Leaves that do nothing on a device: views, allocations, what only dispatches.
_NOTHING: Final = """
    view as_strided _unsafe_view _reshape_alias empty empty_strided empty_like resize_ resolve_conj to detach expand
    transpose t unsqueeze slice select permute result_type is_nonzero
"""
NOTHING: Final = frozenset(f"aten::{name}" for name in _NOTHING.split())
