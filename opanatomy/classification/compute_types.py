"""What float32 operands are computed in, as far as the names of kernels tell: an ordered table.

From Ampere on NVIDIA's matrix units take float32 operands rounded to tf32. torch allows that for convolutions by
default and since 1.12 not for matrix products (docs.pytorch.org, notes/cuda, "TensorFloat-32"). On ROCm float32 is
float32 unless hipBLASLt is asked otherwise (`HIPBLASLT_ALLOW_TF32=1`, ATen/Context.cpp), whose kernels then say
`_S_MX_`; torch wires no tf32 into MIOpen's convolutions (pytorch/pytorch#190711).
"""

from __future__ import annotations

import re
from typing import Final

from opanatomy.classification.rules import compiled
from opanatomy.classification.tensor_cores import uses_tensor_cores
from opanatomy.records.taxonomy import FLOAT32, TF32, THREE_TF32

#: (pattern, what float32 operands are computed in, `None` where the name does not tell); the first found decides.
RULES: Final[tuple[tuple[str, str | None], ...]] = (
    # emulation by bfloat16: a rate of its own
    (r"bf16x9|16bfx9|bf16x6", None),
    # AMD: Tensile's xf32, plain float32, and libraries whose names do not tell
    (r"Cijk_[A-Z]\w{3}_[A-Z]\w{3}_S_MX_", TF32),
    (r"Cijk_[A-Z]\w{3}_[A-Z]\w{3}_(?:SB|S_B)_|igemm_\w*_fp32", FLOAT32),
    (r"Cijk_|igemm_|xdl|mfma|_ck_|ck::|ck_tile|^attn_fwd|^bwd_kernel_", None),
    # NVIDIA
    (r"3xtf32|tf32x3|fmha_cutlass[FB]_f32\w*_sm(?:8|9|1\d)\d", THREE_TF32),
    (r"tf32", TF32),
    (r"_ffma_|simt|f32f32_f32f32", FLOAT32),
    (r"bf16|bfloat16|f16(?!\d)|fp16|half|nvjet_(?:sm\d+_)?[htoq]", None),
    (r"(?:^|_)s1688", TF32),
    (r"sgemm|scudnn|gemmSN|gemmk1|gemv|gevm|dot_kernel|convolve_sgemm|conv_depthwise|conv2d_grouped", FLOAT32),
    (r"(?:dgrad|wgrad|convolve|winograd|fft|engine|gemm)\w*<float", FLOAT32),
    # templates of Triton obey the setting; of Blackwell's kernels without the word some emulate
    (r"triton|sm10\d|sm12\d", None),
)


def compute_type(kernel: str) -> str | None:
    """What the kernel computes float32 operands in, by its name; `None` where that does not tell."""
    for pattern, dtype in RULES:
        if compiled(pattern, re.IGNORECASE).search(kernel):
            return dtype
    return TF32 if uses_tensor_cores(kernel) else None
