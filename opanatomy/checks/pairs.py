"""A forward operator's contractions against those of its backward node."""

from __future__ import annotations

from msgspec import Struct

from opanatomy.checks.graph import base
from opanatomy.records.signature import Signature, Tensor

#: Products of two matrices, (a, b) at these places of the arguments.
MATRICES = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "_addmm_activation": 1, "_scaled_mm": 0, "_scaled_mm_v2": 0,
            "_int_mm": 0}  # fmt: skip


class Contraction(Struct, frozen=True, eq=False):
    """Calls of one operator with the same arguments that contract; there is one such record in a trace.

    `signature` is `None` where it was not recorded, `flops` where they are not known.
    """

    operator: str
    signature: Signature | None
    flops: int | None
    #: Whether an operator of the same name called it with a part of its tensors, or with more of them: a tensor
    #: subclass or a transform dispatched it again. Autocast does so too, with the same shapes.
    again: bool
    #: The operator's own name.
    base: str
    #: (batch, rows, inner, columns) of a product of matrices; `None` for any other, or without its shapes.
    dims: tuple[int, int, int, int] | None
    #: What a product has in common with its two gradients: its sizes in any order.
    key: tuple[object, ...] | None

    @property
    def shapes(self) -> str:
        """The shapes of its tensors."""
        if self.signature is None:
            return f"{self.base}, no shapes recorded"
        return f"{self.base}({', '.join(map(str, self.signature.tensors()))})"

    @property
    def complete(self) -> bool:
        """Whether the arguments were recorded, constants among them where there are any but tensors."""
        if self.signature is None:
            return False
        return self.base in MATRICES or any(
            value is not None and not isinstance(value, Tensor) for value in self.signature.arguments
        )


def contraction(operator: str, signature: Signature | None, flops: int | None, again: bool) -> Contraction:
    """The record of calls of an operator with these arguments."""
    name = base(operator)
    dims = _dims(name, signature)
    key = None if dims is None else (dims[0], *sorted(dims[1:]))
    return Contraction(operator, signature, flops, again, name, dims, key)


def shared_out(whole: Signature | None, part: Signature | None) -> bool:
    """Whether the tensors of one call are a share of another's: other dimensions, or whole fractions of the sizes."""
    outer, inner = (tuple(tensor.shape for tensor in each.tensors()) if each else () for each in (whole, part))
    if outer == inner:
        return False
    if tuple(map(len, outer)) != tuple(map(len, inner)):
        return True
    sizes = [(a, b) for shape, other in zip(outer, inner, strict=True) for a, b in zip(shape, other, strict=True)]
    return all(min(pair) > 0 and max(pair) % min(pair) == 0 for pair in sizes)


def grown(name: str, signature: Signature | None) -> bool:
    """Whether a product has the tensors of two calls: so the transforms of torch.func record what they dispatch."""
    own = base(name)
    if own not in ("mm", "bmm", "addmm", "baddbmm") or signature is None:
        return False
    return len(signature.tensors()) >= 2 * (MATRICES[own] + 2)


def _dims(name: str, signature: Signature | None) -> tuple[int, int, int, int] | None:
    place = MATRICES.get(name)
    if place is None or signature is None:
        return None
    a, b = signature.get(place), signature.get(place + 1)
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or not len(a.shape) == len(b.shape) in (2, 3):
        return None
    if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        return None
    return (a.shape[0] if len(a.shape) == 3 else 1), a.shape[-2], a.shape[-1], b.shape[-1]


class Pair(Struct, frozen=True):
    """A node and its forward operator, each with its contractions in the order of time.

    `transposed` are the operands that the node's body transposed: by `aten::t` and by `aten::transpose`.
    """

    node: str
    operator: str | None
    state: int
    forward: tuple[Contraction, ...]
    backward: tuple[Contraction, ...]
    transposed: tuple[int, int] = (0, 0)
