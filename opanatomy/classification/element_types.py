"""The types of the elements of tensor lists, which Kineto does not write: what the names of kernels tell of them."""

from __future__ import annotations

import re
from typing import Final

from opanatomy.records.data_types import BY_CPP_NAME

#: An opaque type says its size, and that is what counts.
_OPAQUE: Final = {1: "uint8", 2: "int16", 4: "int32", 8: "int64", 16: "complex128"}
_KERNEL: Final = re.compile(
    r"(?:CatArrayBatchedCopy\w*|multi_tensor_apply_kernel<.*?TensorListMetadata<\d+>, .*?Functor)<\s*"
    r"(?:[\w:() ]*?OpaqueType<(\d+)u?>|([\w: ]+?))\s*[,>]"
)


def element_type(kernel: str) -> str | None:
    """Torch's name of a type of this size, as the kernel's template arguments say it."""
    match = _KERNEL.search(kernel)
    if match is None:
        return None
    return _OPAQUE.get(int(match[1])) if match[1] else BY_CPP_NAME.get(match[2].strip())
