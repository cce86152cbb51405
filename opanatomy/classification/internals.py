"""What the kernels of operators call themselves: the operators that a trace may have directly below them.

Of those whose arguments or results autograd saves, seen in 640 entries of torch's table of operator samples on the CPU
and in traces of CUDA and ROCm from torch 1.8 to 2.13. Anything else below them was called from Python in between.
"""

from __future__ import annotations

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
#: What the kernels of matrix products begin with, on the CPU: the result is looked at, what is added spread over it.
_BEGINS = {
    **dict.fromkeys(("aten::mm", "aten::bmm"), frozenset({"aten::resolve_conj"})),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm"), frozenset({"aten::expand"})),
}


def called_by_kernels_of(name: str) -> frozenset[str] | None:
    """The operators that kernels of the operator `name` call; `None` where that is not known."""
    return _CALLS.get(name)


def kernel_begins_with(name: str) -> frozenset[str]:
    """The operators that the kernel of the matrix product `name` calls first; none for another operator."""
    return _BEGINS.get(name, frozenset())


#: An overload that only calls another operator, under a name that is also that of a kernel of its own.
_OTHER_OVERLOAD = {
    "aten::max": ("aten::maximum",),
    "aten::min": ("aten::minimum",),
    "aten::repeat_interleave": ("aten::expand",),
    "aten::where": ("aten::nonzero_numpy", "aten::nonzero"),
}


def stands_for(name: str) -> tuple[str, ...]:
    """The operators of which one directly below `name` shows that this call is of the overload that only calls it."""
    return _OTHER_OVERLOAD.get(name, ())
