"""Define the signature, the classification and the cost of one operator call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from math import prod
from typing import Final, TypeAlias

from msgspec import Struct

from opanatomy.records.patterns import regex
from opanatomy.records.taxonomy import ITEM_SIZE, OperatorClass, is_floating, is_integer


class Stored(Struct, frozen=True):
    """The stored elements of a tensor without strides, and the bytes of their indices; `None` if unknown.

    A trace shows the shape of a sparse tensor but no strides; only a capture observes how many elements it stores.
    """

    elements: int | None = None
    index_bytes: int | None = None


class Tensor(Struct, frozen=True):
    """A tensor argument: its shape, data type (torch's name without `torch.`) and strides in elements.

    `dtype` and `strides` are `None` if the trace does not record them (elements of a tensor list). `sparse` is set if
    the trace says that there are no strides: for sparse tensors, and those in oneDNN's own layout.
    """

    shape: tuple[int, ...]
    dtype: str | None = None
    strides: tuple[int, ...] | None = None
    sparse: Stored | None = None

    @property
    def numel(self) -> int:
        """Return the number of elements of the shape."""
        return prod(self.shape)

    @property
    def stored(self) -> int:
        """Return the number of distinct elements in memory; a dimension of stride 0 counts once."""
        if self.strides is None or len(self.strides) != len(self.shape):
            return self.numel
        return prod(size if stride else min(size, 1) for size, stride in zip(self.shape, self.strides, strict=True))

    @property
    def item_bytes(self) -> int | None:
        """Return the bytes of one element; `None` if the data type is unknown."""
        return None if self.dtype is None else ITEM_SIZE.get(self.dtype)

    @property
    def bytes(self) -> int:
        """Return the bytes of reading each distinct element once, including the indices of a sparse tensor.

        Raises `LookupError` if the data type or the number of stored elements is unknown: a formula that needs it has
        no cost then.
        """
        size = self.known_bytes
        if size is None:
            raise LookupError(f"the bytes of {self} are unknown")
        return size

    @property
    def known_bytes(self) -> int | None:
        """Return `bytes`, or `None` if they are unknown."""
        size, sparse = self.item_bytes, self.sparse
        if size is None or sparse is None:
            return None if size is None else self.stored * size
        if sparse.elements is None or sparse.index_bytes is None:
            return None
        return sparse.elements * size + sparse.index_bytes

    def __str__(self) -> str:
        text = f"{self.dtype or '?'}[{','.join(map(str, self.shape))}]"
        if self.sparse is None:
            return text
        return f"{text} without strides" if self.sparse.elements is None else f"{text} sparse {self.sparse.elements}"


Argument: TypeAlias = "Tensor | int | float | bool | str | tuple[Argument, ...] | None"


class Signature(Struct, frozen=True):
    """The arguments of one operator call in the order of its schema, as the trace recorded them.

    A tensor is a `Tensor`, a tensor list a tuple of them, an integer list a tuple of int, an absent optional `None`.
    """

    arguments: tuple[Argument, ...]

    def tensor(self, index: int) -> Tensor:
        """Return the tensor at `index`; raise `LookupError` if there is none."""
        value = self.arguments[index]
        if not isinstance(value, Tensor):
            raise LookupError(f"argument {index} is {value!r}, not a tensor")
        return value

    def get(self, index: int, default: Argument = None) -> Argument:
        """Return the argument at `index`, or `default` if it is absent or not in the trace."""
        value = self.arguments[index] if index < len(self.arguments) else None
        return default if value is None else value

    def tensors(self) -> tuple[Tensor, ...]:
        """Yield every tensor argument, including those inside lists."""
        tensors: list[Tensor] = []
        for value in self.arguments:
            if isinstance(value, Tensor):
                tensors.append(value)
            elif isinstance(value, tuple):
                tensors.extend(item for item in value if isinstance(item, Tensor))
        return tuple(tensors)

    @property
    def compute_dtype(self) -> str | None:
        """Return the operator's compute type: the data type of its first floating-point tensor.

        Without one, it is an integer type (as in an int8 matmul).
        """
        dtypes = [tensor.dtype for tensor in self.tensors()]
        return next(filter(is_floating, dtypes), next(filter(is_integer, dtypes), None))

    def __str__(self) -> str:
        return ", ".join(_text(value) for value in self.arguments)


def _text(value: Argument) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_text, value))}]"
    return "-" if value is None else str(value)


class Classification(Struct, frozen=True, kw_only=True):
    """The class of a name, and the rule that decided it.

    `operator_class` is `None` for an operator that does no work itself: composite, view, allocation, autograd node.
    `delegates` marks an operator that computes only if no operator nested in it can (`aten::_convolution` calls
    `aten::mkldnn_convolution`, but runs a transposed convolution itself). `composite` marks one that never launches a
    kernel itself: its work is that of the operators it calls, even if these only copy (`aten::matrix_power` with
    exponent 1). `contains` names the other classes inside a fused operator. `annotation` is set if the name is that of
    a range (or of a kernel: the two look alike), not of an operator.
    """

    operator_class: OperatorClass | None
    rule: str
    delegates: bool = False
    contains: tuple[OperatorClass, ...] = ()
    composite: bool = False
    annotation: bool = False


class Cost(Struct, frozen=True, kw_only=True):
    """The minimum that one operator call must compute and move.

    `flops` are those of the operator's class, counted in full (a causal mask does not halve them).
    """

    flops: int
    read_bytes: int
    written_bytes: int
    #: The same FLOPs without the part that a causal mask removes; `None` if no causal mask applies to the operator.
    causal_flops: int | None = None
    #: FLOPs of a normalization fused into a contraction (softmax inside flash attention), not part of `flops`.
    normalization_flops: int = 0


# --- text of a signature ---


_TENSOR: Final = regex(
    r"(?P<dtype>\?|\w+)\[(?P<shape>(?:\d{1,18}(?:,\d{1,18})*)?\])"
    r"(?P<stored> without strides| sparse (?P<elements>\d{1,18}))?",
    re.ASCII,
)
_INTEGER: Final = regex(r"-?\d{1,18}", re.ASCII)
#: The deepest nesting of lists that is read; a call's lists have one level.
_MAX_DEPTH: Final = 8


class SignatureText(str):
    """A signature as it is written in JSON and tables; equal, ordered and hashed as its text.

    A signature from a trace carries its record. One from a stored report reads the record from the text, without
    strides, which the text omits.
    """

    def __new__(cls, text: str, record: Signature | None = None) -> SignatureText:
        """Return the text, with the record it was made from if given."""
        signature = super().__new__(cls, text)
        if record is not None:
            signature.__dict__["record"] = record
        return signature

    @cached_property
    def record(self) -> Signature:
        """Return the arguments."""
        return Signature(tuple(_values(self, 0)))


#: The text for a call without recorded arguments.
NO_SIGNATURE: Final = SignatureText("", Signature(()))


def text_of(signature: Signature | None) -> SignatureText:
    """Return the text of a signature; empty for `None`."""
    return NO_SIGNATURE if signature is None else SignatureText(str(signature), signature)


def _values(text: str, depth: int) -> Iterator[Argument]:
    """Yield the comma-separated values; text that is no value is yielded as it is, so that writing restores it."""
    if not text:
        return
    start = level = 0
    for index, character in enumerate(text):
        level += (character == "[") - (character == "]")
        if not level and text.startswith(", ", index):
            yield _value(text[start:index], depth)
            start = index + 2
    yield _value(text[start:], depth)


def _value(text: str, depth: int) -> Argument:
    if text in ("-", "True", "False"):
        return None if text == "-" else text == "True"
    if (tensor := _TENSOR.fullmatch(text)) is not None:
        shape, elements = tensor["shape"][:-1], tensor["elements"]
        return Tensor(
            tuple(map(int, shape.split(","))) if shape else (),
            None if tensor["dtype"] == "?" else tensor["dtype"],
            sparse=Stored(int(elements) if elements else None) if tensor["stored"] else None,
        )
    if text[:1] == "[" and text[-1:] == "]" and len(text) > 1 and depth < _MAX_DEPTH:
        return tuple(_values(text[1:-1], depth + 1))
    value = _number(text)
    return text if str(value) != text else value


def _number(text: str) -> int | float | None:
    if _INTEGER.fullmatch(text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return None
