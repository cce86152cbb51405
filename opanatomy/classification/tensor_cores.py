"""Which kernels use tensor cores (matrix cores on AMD), as far as their names tell: an ordered table."""

from __future__ import annotations

import re
from typing import Final

from opanatomy.classification.kernels import classify_kernel
from opanatomy.classification.rules import CONTRACTION, OTHER, UNKNOWN, compiled

#: (pattern, whether it uses them); the first that is found decides.
RULES: Final[tuple[tuple[str, bool], ...]] = (
    # parts of such computations that multiply no matrices
    (r"computeOffsets|computeBOffsets|computeWgrad|(?i:split_?k_?reduc)|PostGSU|BetaOnly|epilogue::impl", False),
    (r"scalePackedTensor|kern_precompute|prepare_varlen_num_blocks|mla_metadata|mla_reduce|reduce_segments", False),
    (r"(?:flash|mla)\w*_combine|flash_bwd_(?:dot_do_o|convert_d|clear|p\w+process)|_bwd_preprocess", False),
    (r"FlashAttn\w*(?:Combine|Pre|Post)|MergeStates", False),
    (r"fmha_(?:bwd|fwd)\w*(?:convert|dot_do_o|combine)|FmhaBwd(?:OGradDotO|ConvertQGrad)|FmhaFwdSplitKVCombine", False),
    # arithmetic of vectors: by its instructions, or in float32 and float64 by libraries that name them
    (r"_ffma_|simt|OpClassSimt|dlops|_dl_|fmha_cutlass[FB]_\w+_sm[56]\d|fmha_cutlass[FB]_f32\w*_sm7\d", False),
    (r"gemv|gevm|gemmSN_|gemmk1_|(?:^|:|\s)(?:dot|scal|axpy|asum)_kernel|reduce_1Block|inference_naive", False),
    (r"(?:[dw]grad|wgrad2d|dgrad2d|convolve)\w*_(?:engine|sgemm)|reduce_wgrad|grouped_direct|_c1_k1_", False),
    (r"(?i:conv\w*depthwise|depthwise\w*conv)|naive_conv|Sp3Asm|gcnAsm\w*Conv|MIOpenConv|winograd_nonfused", False),
    (r"generateWinograd|fft2d_|flip_filter|pointwise_mult_and_sum", False),
    (r"(?:Batch|Single)Decode\w*With|paged_attention_v[12](?:_reduce)?_kernel", False),
    # NVIDIA: the shape of one instruction in the name (s884, h884, s1688, s16816, i16832, d884 and so on)
    (r"(?:^|_)[hsidcz](?:884|1688|16816|161616|8816|16832|16864)(?![0-9])", True),
    (r"(?:^|[_ :])(?:[hsdcz]|gc)gemm(?![a-z])|(?:^|_)[sh]cudnn", False),
    (r"tensorop|wmma|_[hi]mma|tensor\d+x\d+x\d+|_xmma_|[gG]mma|SM\d+_\d+x\d+x\d+_|tcgen05", True),
    (r"^nvjet_|enable_3x_kernel|GemmUniversal|GemmWarpSpecialized|WarpSpecializedPersistent", True),
    (r"^kernel_cutlass_\w*[gG]emm", True),
    (r"flash_(?:fwd|bwd)|FlashAttn(?:Fwd|Bwd)|[fF]mha|cudnn_generated\w*(?:sdpa|mha|matmul|gemm)", True),
    (r"sparse_attn_fwd_kernel|(?:Batch|Single)Prefill\w*With|BatchMLAPaged", True),
    # TensorRT-LLM's for Blackwell: the shape of one instruction or the architecture; products of 8-bit floats
    (r"^(?:bmm|gemm)_\w+_(?:sm1\d\d|m\d+x\d+x\d+_)", True),
    (r"deep_gemm|dpsk::\S*[gG]emm|[Mm]arlin|machete", True),
    (r"(?:fp8|FP8|[eE]4m3|[eE]5m2|w8a8).*(?i:gemm|matmul|_mm)|(?i:gemm|matmul|_mm).*(?:fp8|FP8|[eE]4m3|[eE]5m2)", True),
    # AMD: matrix instructions of Tensile, MIOpen's implicit GEMM and Composable Kernel, AITER's, AOTriton's attention
    (r"Cijk_\w*_MI\d+x\d+x\d+", True),
    (r"Cijk_\w*_MT\d+x\d+x\d+", False),
    (r"igemm_\w*gtcx\d|xdl|mfma|ck_tile.*[gG]emm|ck::\S*moe\w*gemm", True),
    (r"aiter(?:::|\d+)(?:\w*gemm|fmoe|flatmm|mla_dec|mla_pfl|pa_)", True),
    (r"^attn_fwd|^bwd_kernel_(?:dk_dv|dq|fuse)", True),
    # Triton: templates built on tl.dot; what torch.compile made of a product otherwise adds up in vectors
    (r"^triton_(?:tem|mm|bmm|flex)|^fused_moe_kernel|^_?(?:matmul|gemm|grouped_mm)_kernel|^_p?_?matmul_ogs", True),
    (r"^kernel_unified_attention|^_attn_(?:fwd|bwd)|^_?fwd_grouped_kernel|^(?:XXT|XTX|ba_plus_cAA)_kernel", True),
    (r"^triton_[a-z]+_fused_", False),
)  # fmt: skip
#: Classes of which a name that no rule fits leaves it open.
_OPEN: Final = (CONTRACTION, UNKNOWN)
#: NVIDIA before Volta, Turing without tensor cores (GTX, MX, T400 to T2000), AMD before CDNA and RDNA 3.
_WITHOUT: Final = re.compile(
    r"\bGTX\b|\bGT \d|\bMX ?[1-5][0-5]0\b|\bTITAN (?:X|Xp|Z|Black)\b|\b(?:Tesla )?[KMP]\d{1,3}[a-z]?\b|\bP10[04]\b"
    r"|Quadro (?:[KMPT]\d|GP100)|\bT(?:[456]\d0|1000|1200|2000)\b|\bMI(?:6|8|25|50|60)\b|Radeon (?:VII|Pro VII)"
    r"|\bRX (?:Vega|[456]\d{3})|gfx(?:8\d\d|90[0269]|10\d\d)",
    re.IGNORECASE,
)


def uses_tensor_cores(kernel: str) -> bool | None:
    """Whether the kernel uses tensor cores; `None` of a product, or of no known class, whose name does not tell."""
    operator_class = classify_kernel(kernel).operator_class
    if operator_class not in (*_OPEN, OTHER):
        return False
    otherwise = None if operator_class in _OPEN else False
    return next((uses for pattern, uses in RULES if compiled(pattern).search(kernel)), otherwise)


def lacks_tensor_cores(device: str | None) -> bool:
    """Whether a device of this name is known to have no tensor cores."""
    return device is not None and _WITHOUT.search(device) is not None
