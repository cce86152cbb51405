"""The peak that a product is compared with: by its data type, of float32 by what it was computed in.

The names of a product's kernels tell, else the settings of the capture. Where neither does, no peak is taken.
"""

from __future__ import annotations

import re
from typing import Final

from opanatomy.records.device import Ceilings
from opanatomy.records.taxonomy import FLOAT32, TF32
from opanatomy.records.workload import Environment

#: The name of what has no peak: one of two that differ.
UNSURE: Final = "float32 or tf32"
_CONVOLUTION: Final = re.compile(r"convolution|conv(?:_transpose)?[123]d|cudnn_conv|miopen_conv", re.IGNORECASE)


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
