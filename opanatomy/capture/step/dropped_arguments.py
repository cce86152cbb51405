"""The arguments that Kineto does not record, observed in a step of their own.

Indices of `aten::index`, strings, how much a sparse tensor stores, and the packed weights of quantized layers.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from opanatomy.capture.step.packed_weights import packed_weights, stored_parts

if TYPE_CHECKING:
    import torch

#: Argument types, as a schema prints them, of which a trace has nothing.
_DROPPED = ("List[Optional[Tensor]]", "str", "Optional[str]")
#: The types of packed weights begin like this.
_PACKED = "__torch__.torch.classes.quantized."


def is_incomplete(function: Any) -> bool:
    """Whether Kineto drops an argument of an operator (an `OpOverload`) of each call."""
    types = (str(argument.type) for argument in function._schema.arguments)
    return any(kind in _DROPPED or kind.startswith(_PACKED) for kind in types)


def arguments_text(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The arguments of a call in the order of the schema, defaults filled in, as JSON."""
    values = []
    for place, argument in enumerate(function._schema.arguments):
        if place < len(args):
            values.append(_plain(args[place]))
        elif argument.name in kwargs:
            values.append(_plain(kwargs[argument.name]))
        else:
            values.append(_plain(argument.default_value))
    return json.dumps(values, separators=(",", ":"))


def _plain(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, torch.ScriptObject):
        return packed_weights(value)
    return value if isinstance(value, (bool, int, float, str)) else None


def _tensor(value: torch.Tensor) -> dict[str, Any] | None:
    """A tensor as its shape, type and strides; a sparse one with what it stores; a ragged one is not said."""
    import torch

    shape = list(value.shape)
    if not all(type(size) is int for size in shape):
        return None
    text = {"shape": shape, "dtype": str(value.dtype).removeprefix("torch.")}
    if value.layout is torch.strided:
        return {**text, "strides": list(value.stride())}
    stored = stored_parts(value)
    if stored is None:
        return {**text, "strides": None}
    values, indices = stored
    index_bytes = sum(part.numel() * part.element_size() for part in indices)
    return {**text, "strides": None, "elements": values.numel(), "index_bytes": index_bytes}
