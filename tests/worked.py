"""What the tables of worked examples share: tensors of unlike types, and the comparison of all figures of a call."""

from __future__ import annotations

from typing import TypeAlias

from opanatomy.cost.registry import cost
from opanatomy.records.signature import Argument, Signature, Tensor

#: operator, arguments, FLOPs, bytes read, bytes written
Example: TypeAlias = tuple[str, tuple[Argument, ...], int, int, int]


def t(*shape: int, dtype: str = "float32") -> Tensor:
    """A tensor of 4 bytes an element."""
    return Tensor(shape, dtype)


def bf(*shape: int) -> Tensor:
    """A bfloat16 tensor, 2 bytes an element."""
    return Tensor(shape, "bfloat16")


def dd(*shape: int) -> Tensor:
    """A float64 tensor, 8 bytes an element."""
    return Tensor(shape, "float64")


def ints(*shape: int) -> Tensor:
    """An int64 tensor, 8 bytes an element."""
    return Tensor(shape, "int64")


def int4(*shape: int) -> Tensor:
    """An int32 tensor, 4 bytes an element."""
    return Tensor(shape, "int32")


def byte(*shape: int) -> Tensor:
    """A uint8 tensor, 1 byte an element."""
    return Tensor(shape, "uint8")


def bits(*shape: int) -> Tensor:
    """A boolean tensor, 1 byte an element."""
    return Tensor(shape, "bool")


def figures(operator: str, arguments: tuple[Argument, ...], device: str | None = None) -> tuple[int, int, int] | None:
    """FLOPs, bytes read and bytes written of a call; `None` without a cost."""
    costs = cost(operator, Signature(arguments), device)
    return None if costs is None else (costs.flops, costs.read_bytes, costs.written_bytes)
