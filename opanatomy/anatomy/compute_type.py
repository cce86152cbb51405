"""What a float32 product was computed in: by the names of its kernels, else by the settings of the capture.

From Ampere on NVIDIA's matrix units take float32 operands rounded to tf32. torch allows that for convolutions by
default and since 1.12 not for matrix products (docs.pytorch.org, notes/cuda, "TensorFloat-32"). On ROCm float32 is
float32 unless hipBLASLt is asked otherwise (`HIPBLASLT_ALLOW_TF32=1`, ATen/Context.cpp), whose kernels then say
`_S_MX_`; torch wires no tf32 into MIOpen's convolutions (pytorch/pytorch#190711). Where neither source tells, no peak
is taken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from opanatomy.anatomy.tensor_cores import uses_tensor_cores
from opanatomy.records.columns import Categorical, Int64
from opanatomy.records.device import Ceilings
from opanatomy.records.workload import Environment

FLOAT32, TF32 = "float32", "tf32"
#: Three tf32 products for one of float32: CUTLASS' OpMultiplyAddFastF32, which memory-efficient attention is built on.
THREE_TF32: Final = "3 x tf32"
#: The name of what has no peak: one of two that differ.
UNSURE: Final = "float32 or tf32"

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

_COMPILED: Final = tuple((re.compile(pattern, re.IGNORECASE), found) for pattern, found in RULES)
_CODES: Final = (FLOAT32, TF32, THREE_TF32)
_FLOAT32_FIRST: Final = re.compile(r"\b(b?float\d+(?:_\w+)?|complex\d+)\[")
_CONVOLUTION: Final = re.compile(r"convolution|conv(?:_transpose)?[123]d|cudnn_conv|miopen_conv", re.IGNORECASE)


@lru_cache(maxsize=65536)
def compute_type(kernel: str) -> str | None:
    """What the kernel computes float32 operands in, by its name; `None` where that does not tell."""
    for pattern, found in _COMPILED:
        if pattern.search(kernel):
            return found
    return TF32 if uses_tensor_cores(kernel) else None


def compute_types(
    names: Sequence[str], kernel: Int64, duration_ns: Int64, owner: Int64, signature: Categorical, host_row: Int64
) -> Categorical:
    """For each row of the calls what its float32 operands were computed in.

    `kernel`, `duration_ns` and `owner` (a host row, -1 none) are of the pieces of device work, `signature` and
    `host_row` (the owner's) of the calls. The longest kernel whose name tells decides.
    """
    codes = np.array([_code(compute_type(name)) for name in names], dtype=np.int64)[kernel]
    telling = np.flatnonzero((codes >= 0) & (owner >= 0))
    telling = telling[np.argsort(duration_ns[telling], kind="stable")]
    most = int(max(owner.max(initial=-1), host_row.max(initial=-1)))
    found = np.full(most + 2, -1, dtype=np.int64)
    found[owner[telling]] = codes[telling]
    mine = np.array([*(_is_float32(text) for text in signature.texts), False], dtype=bool)[signature.places]
    return Categorical(np.where(mine, found[host_row], -1), _CODES)


def peak_name(
    row_type: str | None, operator: str, dtype: str | None, ceilings: Ceilings, environment: Environment
) -> str | None:
    """The name of the peak of a product: its data type, of float32 what it was computed in, or `UNSURE`."""
    if dtype != FLOAT32 or TF32 not in ceilings.matrix_flops_per_second:
        return dtype
    if row_type is not None:
        return row_type
    convolution = _CONVOLUTION.search(operator) is not None
    setting = environment.convolution_float32 if convolution else environment.matmul_float32
    if environment.device_kind == "rocm":
        return TF32 if setting == TF32 and not convolution else FLOAT32
    if setting is None:
        return dtype if environment.device_kind == "cpu" else UNSURE
    return TF32 if setting == TF32 else FLOAT32


def _code(found: str | None) -> int:
    return -1 if found is None else _CODES.index(found)


def _is_float32(signature: str) -> bool:
    """Whether its first tensor of numbers with a fraction is float32."""
    first = _FLOAT32_FIRST.search(signature)
    return first is not None and first[1] == FLOAT32
