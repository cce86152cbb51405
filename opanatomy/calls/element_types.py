"""What the name of a kernel tells of a call whose arguments are not all in the trace: the types in its tensor lists."""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from opanatomy.records.signature import Argument, Signature, Tensor

#: C++ types in the template arguments of at::native's kernels; an opaque type says its size, and that is what counts.
_TYPES: Final = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "__half": "float16", "c10::BFloat16": "bfloat16",
    "__nv_bfloat16": "bfloat16", "long": "int64", "int": "int32", "short": "int16", "signed char": "int8",
    "unsigned char": "uint8", "bool": "bool",
}  # fmt: skip
_OPAQUE: Final = {1: "uint8", 2: "int16", 4: "int32", 8: "int64", 16: "complex128"}
_KERNEL: Final = re.compile(
    r"(?:CatArrayBatchedCopy\w*|multi_tensor_apply_kernel<.*?TensorListMetadata<\d+>, .*?Functor)<\s*"
    r"(?:[\w:() ]*?OpaqueType<(\d+)u?>|([\w: ]+?))\s*[,>]"
)
#: Where the evidence is looked for: the operators with tensor lists.
_LISTED: Final = re.compile(r"^aten::(?:_?cat|stack|concat\w*|hstack|vstack|_foreach_\w+)$")


def wants_element_type(operator: str) -> bool:
    """Whether the operator takes a list of tensors, whose element types Kineto does not write."""
    return _LISTED.match(operator) is not None


def element_type(kernel: str) -> str | None:
    """Torch's name of a type of this size, as the kernel's template arguments say it."""
    found = _KERNEL.search(kernel)
    if found is None:
        return None
    return _OPAQUE.get(int(found[1])) if found[1] else _TYPES.get(found[2].strip())


def with_element_type(signature: Signature, dtype: str) -> Signature:
    """The signature with this type for the tensors of its lists that have none."""
    return Signature(tuple(_typed(value, dtype) for value in signature.arguments))


def _typed(value: Argument, dtype: str) -> Argument:
    if not isinstance(value, tuple):
        return value
    return tuple(
        replace(item, dtype=dtype) if isinstance(item, Tensor) and item.dtype is None else item for item in value
    )
