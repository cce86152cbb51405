"""What backward starts from: the loss of a model's output where there is one, else all that requires a gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from opanatomy.errors import CaptureError
from opanatomy.option_values import as_asked

if TYPE_CHECKING:
    import torch

#: The keys and values that a decoder gives back for its next call are no output of this one.
_CACHES: Final = ("past_key_values", "past_key_value")
#: How deep objects of unknown classes are looked into.
_DEPTH: Final = 8


class Roots(Struct, frozen=True, kw_only=True):
    """The tensors that backward starts from, the gradient of each (`None`: one), and what to call them."""

    tensors: tuple[torch.Tensor, ...] = ()
    gradients: tuple[torch.Tensor | None, ...] = ()
    text: str = ""


class _Leaf(Struct, frozen=True, kw_only=True):
    """A tensor of an output: the expression that leads to it, and the last name or place in that."""

    path: str
    name: str
    tensor: torch.Tensor


def materialized(output: Any) -> Any:
    """The output with every generator in it run to its end: what it yields is computed only then."""
    if isinstance(output, (GeneratorType, map, filter, zip)):
        return tuple(materialized(item) for item in output)
    if type(output) in (tuple, list):
        return type(output)(materialized(item) for item in output)
    if type(output) is dict:
        return {key: materialized(item) for key, item in output.items()}
    return output


def backward_roots(output: Any) -> Roots:
    """What backward starts from; `CaptureError` where nothing requires a gradient."""
    leaves = list(_leaves(output, "output", "", set(), 0))
    loss = _loss(leaves)
    if loss is not None:
        if not loss.tensor.requires_grad:
            raise CaptureError(
                "cannot run backward: the model's loss does not require a gradient"
                f" - do not detach it, {_without_backward()}, or unfreeze a parameter"
            )
        return _roots([loss], f"{loss.path}{_ones([loss])}")
    wanted = [leaf for leaf in leaves if leaf.tensor.requires_grad]
    if not wanted:
        raise CaptureError(
            "cannot run backward: the model's output has neither a loss nor a tensor that requires a gradient"
            f" - {_without_backward()}, or unfreeze a parameter"
        )
    numbers = [leaf for leaf in wanted if leaf.tensor.dim() == 0]
    if len(numbers) == 1:
        return _roots(numbers, _number_text(numbers[0], leaves))
    return _roots(wanted, _all_text(wanted))


def _without_backward() -> str:
    return as_asked("use --inference", "give inference=True")


def averaged(roots: Roots, parts: int) -> tuple[torch.Tensor, ...]:
    """What the backward of one of that many micro-batches starts from: a single number, which is a mean over its
    samples, is divided; outputs that start with a gradient of ones are summed over the samples as they are."""
    return tuple(
        root / parts if gradient is None else root
        for root, gradient in zip(roots.tensors, roots.gradients, strict=True)
    )


def _loss(leaves: list[_Leaf]) -> _Leaf | None:
    """The tensor called `loss`: on the outermost level that has one, and the only one there."""
    named = [leaf for leaf in leaves if leaf.name == "loss"]
    if not named:
        return None
    depths = [leaf.path.count("[") + leaf.path.count(".") for leaf in named]
    outermost = [leaf for leaf, depth in zip(named, depths, strict=True) if depth == min(depths)]
    return outermost[0] if len(outermost) == 1 else None


def _roots(leaves: list[_Leaf], text: str) -> Roots:
    tensors = tuple(leaf.tensor for leaf in leaves)
    return Roots(tensors=tensors, gradients=tuple(map(_start, tensors)), text=text)


def _start(root: torch.Tensor) -> torch.Tensor | None:
    """The gradient that backward starts with: ones, which torch takes by itself for a single real number."""
    import torch

    return torch.ones_like(root) if root.numel() != 1 or root.is_complex() else None


def _number_text(number: _Leaf, leaves: list[_Leaf]) -> str:
    if len(leaves) == 1:
        return f"{number.path}, a single number"
    place = next(place for place, leaf in enumerate(leaves, 1) if leaf is number)
    which = {1: "the first", len(leaves): "the last"}.get(place, f"number {place}")
    return f"{number.path}, {which} of {len(leaves)} outputs: the only single number"


def _all_text(wanted: list[_Leaf]) -> str:
    if len(wanted) == 1:
        return f"{wanted[0].path}{_ones(wanted)}"
    names = ", ".join(leaf.path for leaf in wanted[:4]) + (", ..." if len(wanted) > 4 else "")
    return f"every output that requires a gradient ({len(wanted)} tensors: {names}){_ones(wanted)}"


def _ones(leaves: list[_Leaf]) -> str:
    return ", with a gradient of ones" if any(leaf.tensor.numel() != 1 for leaf in leaves) else ""


def _leaves(value: Any, path: str, name: str, seen: set[int], depth: int) -> Iterator[_Leaf]:
    """Every tensor in an output, each once, in the order in which it stands there."""
    import torch

    if name in _CACHES or id(value) in seen:
        return
    if isinstance(value, torch.Tensor):
        seen.add(id(value))
        yield _Leaf(path=path, name=name, tensor=value)
    elif depth < _DEPTH:
        items = list(_items(value, path))
        if items:
            seen.add(id(value))
        for inner, key, item in items:
            yield from _leaves(item, inner, key, seen, depth + 1)


def _items(value: Any, path: str) -> Iterator[tuple[str, str, Any]]:
    """(path, name, value) of what an output holds: of mappings, sequences, records and objects of other classes."""
    import torch

    if isinstance(value, Mapping):
        for key, item in list(value.items()):
            yield f"{path}[{key!r}]", str(key), item
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for field, item in zip(value._fields, value, strict=True):
            yield f"{path}.{field}", field, item
    elif isinstance(value, (list, tuple, set, frozenset)) or type(value).__name__ == "deque":
        for place, item in enumerate(value):
            yield f"{path}[{place}]", str(place), item
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield f"{path}.{field.name}", field.name, getattr(value, field.name, None)
    elif not isinstance(value, (str, bytes, int, float, type, torch.nn.Module)) and not callable(value):
        for field, item in islice(_attributes(value), 1000):
            yield f"{path}.{field}", field, item


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from list(getattr(value, "__dict__", {}).items())
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name) and not name.startswith("__"):
                yield name, getattr(value, name)
    if not hasattr(value, "__dict__"):
        return
    for name in ("loss", "logits"):
        tensor = None if name in value.__dict__ else _property(value, name)
        if tensor is not None:
            yield name, tensor


def _property(value: Any, name: str) -> Any:
    """What a property of an object of the model's gives; one that fails gives nothing."""
    import torch

    if name not in dir(type(value)):
        return None
    try:
        content = getattr(value, name)
    except Exception:
        return None
    return content if isinstance(content, torch.Tensor) else None


def leaves_below(roots: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors of a graph that backward accumulates a gradient in."""
    roots = tuple(roots)
    leaves = [root for root in roots if root.is_leaf]
    waiting: list[Any] = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        variable = getattr(node, "variable", None) if type(node).__name__ == "AccumulateGrad" else None
        if variable is not None:
            leaves.append(variable)
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                waiting.append(below)
    return leaves
