"""A batch cut into equal micro-batches for gradient accumulation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opanatomy.capture.model.batches import sizes
from opanatomy.errors import UsageError
from opanatomy.option_values import Spelling, as_argument, as_flag
from opanatomy.options import ACCUMULATE

Inputs = dict[str, Any] | tuple[Any, ...]


def check_divides(batch: int, parts: int, spelled: Spelling = as_flag) -> None:
    """Refuse to cut a batch into parts that are not equal."""
    if batch % parts:
        divisors = ", ".join(str(number) for number in range(1, batch + 1) if batch % number == 0)
        raise UsageError(
            f"{spelled(ACCUMULATE, parts)}: a batch of {batch} cannot be cut into {parts} equal micro-batches - give a"
            f" divisor of it: {divisors}"
        )


def micro_batches(inputs: Inputs, parts: int, *, borrowed: bool = False) -> tuple[Inputs, ...]:
    """The arguments of each forward: `inputs` cut along the first dimension of its tensors, which is the batch.

    Numbers and tensors without a dimension go into every forward. Nothing is copied. A tensor of another first
    dimension is a `UsageError`: which part of it belongs to which sample is not known. `borrowed` inputs are called
    arguments.
    """
    if parts == 1:
        return (inputs,)
    spelled = as_argument if borrowed else as_flag
    batch, _ = sizes(inputs)
    check_divides(batch, parts, spelled)
    size = batch // parts
    return tuple(_part(inputs, number * size, size, batch, spelled(ACCUMULATE, parts)) for number in range(parts))


def _part(value: Any, start: int, size: int, batch: int, asked: str, name: str = "") -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        if not value.dim():
            return value
        if value.shape[0] != batch:
            raise UsageError(
                f"{asked}: the input {name} has the shape {tuple(value.shape)}, which does not begin with the batch of"
                f" {batch} - give inputs whose first dimension is the batch"
            )
        return value.narrow(0, start, size)
    if isinstance(value, Mapping):
        return {key: _part(item, start, size, batch, asked, str(key)) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(
            _part(item, start, size, batch, asked, name or str(place)) for place, item in enumerate(value)
        )
    return value
