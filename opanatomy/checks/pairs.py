"""A forward operator's contractions beside those of its backward node."""

from __future__ import annotations

from dataclasses import dataclass

from opanatomy.checks.graph import base
from opanatomy.model import Signature, Tensor

#: Products of two matrices, (a, b) at these places of the arguments.
MATRICES = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "_addmm_activation": 1, "_scaled_mm": 0, "_scaled_mm_v2": 0,
            "_int_mm": 0}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Contraction:
    """One call that contracts: its operator, arguments (`None`: not recorded) and FLOPs (`None`: not known)."""

    operator: str
    signature: Signature | None
    flops: int | None
    #: Whether an operator of the same name called it: a tensor subclass or a transform dispatched it again.
    again: bool = False

    @property
    def base(self) -> str:
        """The operator's own name."""
        return base(self.operator)

    @property
    def shapes(self) -> str:
        """The shapes of its tensors."""
        if self.signature is None:
            return "no shapes recorded"
        return f"{self.operator.rpartition('::')[2]}({', '.join(map(str, self.signature.tensors()))})"

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Its tensor arguments."""
        return self.signature.tensors() if self.signature else ()

    @property
    def complete(self) -> bool:
        """Whether the arguments were recorded, constants among them where there are any but tensors."""
        if self.signature is None:
            return False
        return self.base in MATRICES or any(
            value is not None and not isinstance(value, Tensor) for value in self.signature.arguments
        )

    def dims(self) -> tuple[int, int, int, int] | None:
        """(batch, rows, inner, columns) of a product of matrices; `None` for any other, or without its shapes."""
        place = MATRICES.get(self.base)
        if place is None or self.signature is None:
            return None
        a, b = self.signature.get(place), self.signature.get(place + 1)
        if not isinstance(a, Tensor) or not isinstance(b, Tensor) or not len(a.shape) == len(b.shape) in (2, 3):
            return None
        if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
            return None
        return (a.shape[0] if len(a.shape) == 3 else 1), a.shape[-2], a.shape[-1], b.shape[-1]

    def key(self) -> tuple[object, ...] | None:
        """What a product has in common with its two gradients: its sizes in any order."""
        dims = self.dims()
        return None if dims is None else (dims[0], *sorted(dims[1:]))


@dataclass(frozen=True, slots=True)
class Pair:
    """A node and its forward operator, each with its contractions in the order of time.

    `transposed` are the operands that the node's body transposed: by `aten::t` and by `aten::transpose`.
    """

    node: str
    operator: str | None
    state: int
    forward: tuple[Contraction, ...]
    backward: tuple[Contraction, ...]
    transposed: tuple[int, int] = (0, 0)
