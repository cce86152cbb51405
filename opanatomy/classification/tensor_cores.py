"""Which kernels use tensor cores (matrix cores on AMD), as far as their names tell: an ordered table."""

from __future__ import annotations

from opanatomy.classification.rules import compiled

#: (pattern, whether it uses them); the first that is found decides, a name that none fits does not use them.
RULES: tuple[tuple[str, bool], ...] = (
    # parts of such computations that multiply no matrices, and plain float32 arithmetic
    (r"_ffma_|simt|computeOffsets|computeBOffsets|computeWgrad|splitKreduce|nchwToNhwc|nhwcToNchw", False),
    (r"flash_fwd_splitkv_combine|flash_bwd_(?:dot_do_o|convert_d|clear)|FlashAttn\w*(?:Combine|Pre|Post)", False),
    (r"fmha_(?:bwd|fwd)\w*(?:convert|dot_do_o|combine)|FmhaBwd(?:OGradDotO|ConvertQGrad)|FmhaFwdSplitKVCombine", False),
    (r"fmha_cutlass[FB]_f32\w*_sm[57]\d", False),
    (r"nccl|rccl|reduce_?scatter|all_?(?:reduce|gather)", False),
    # NVIDIA: the shape of one instruction in the name (s884, h884, s1688, s16816, i16832, d884 and so on)
    (r"(?:^|_)[hsidcz](?:884|1688|16816|161616|8816|16832|16864)(?![0-9])", True),
    (r"tensorop|wmma|_[hi]mma|tensor\d+x\d+x\d+|_xmma_|[gG]mma|SM\d+_\d+x\d+x\d+_|tcgen05", True),
    (r"^nvjet_|enable_3x_kernel|GemmUniversal|GemmWarpSpecialized|WarpSpecializedPersistent", True),
    (r"flash_(?:fwd|bwd)|FlashAttn(?:Fwd|Bwd)|[fF]mha|cudnn_generated\w*(?:sdpa|mha|matmul|gemm)", True),
    (r"deep_gemm|fp8_gemm|[Mm]arlin|machete", True),
    # AMD: matrix instructions of Tensile, MIOpen's implicit GEMM and Composable Kernel, AOTriton's attention
    (r"^Cijk_\w*_MI\d+x\d+x\d+", True),
    (r"igemm_\w*gtcx\d|xdl|mfma", True),
    (r"^attn_fwd|^bwd_kernel_(?:dk_dv|dq|fuse)", True),
    # Triton templates built on tl.dot
    (r"^triton_(?:tem|mm|bmm|flex)|^fused_moe_kernel|^_?(?:matmul|gemm|grouped_mm)_kernel|^_matmul_ogs_", True),
    (r"^kernel_unified_attention|^_attn_(?:fwd|bwd)(?!_pre)", True),
)


def uses_tensor_cores(kernel: str) -> bool:
    """Whether the kernel's name says that it uses tensor cores."""
    return next((uses for pattern, uses in RULES if compiled(pattern).search(kernel)), False)
