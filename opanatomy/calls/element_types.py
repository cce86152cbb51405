"""Calls whose arguments are not all in the trace: the types of the tensors in their lists, which kernels tell."""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from opanatomy.records.signature import Argument, Signature, Tensor

_LISTED: Final = re.compile(r"^aten::(?:_?cat|stack|concat\w*|hstack|vstack|_foreach_\w+)$")


def wants_element_type(operator: str) -> bool:
    """Whether the operator takes a list of tensors, whose element types Kineto does not write."""
    return _LISTED.match(operator) is not None


def with_element_type(signature: Signature, dtype: str) -> Signature:
    """The signature with this type for the tensors of its lists that have none."""
    return Signature(tuple(_typed(value, dtype) for value in signature.arguments))


def _typed(value: Argument, dtype: str) -> Argument:
    if not isinstance(value, tuple):
        return value
    return tuple(
        replace(item, dtype=dtype) if isinstance(item, Tensor) and item.dtype is None else item for item in value
    )
