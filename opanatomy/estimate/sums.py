"""Sums of gradients in place: autograd's engine adds into a gradient that nothing else holds, but not under a mode.

A tensor that two operators take gets the sum of two gradients. Of a real step the engine adds one into the other where
it holds the last reference; under a dispatch mode it always makes a third tensor, as large as a table of words.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch

#: How often a tensor is held, and its storage.
Held: TypeAlias = tuple[int, int]


def summed_in_place(function: Any, args: tuple[Any, ...], sole: Held | None) -> torch.Tensor | None:
    """The sum of two gradients, in the first where a real step would add the second to it: `sole` is how often that one
    is held then (`engine_alone`). `None` for other calls."""
    import torch

    aten: Any = torch.ops.aten
    if function is not aten.add.Tensor or torch.is_grad_enabled() or torch._C._current_autograd_node() is None:
        return None
    first, second = args[:2]
    if not isinstance(second, torch.Tensor) or (first.shape, first.dtype) != (second.shape, second.dtype):
        return None
    if sole is None or _held(first) != sole:
        return None
    result: torch.Tensor = aten.add_.Tensor(first, second)
    return result


def _held(tensor: torch.Tensor) -> Held | None:
    """How often a tensor and its storage are held; `None` where this torch does not say."""
    import torch

    count: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)
    if count is None or not hasattr(tensor, "_use_count"):
        return None
    return tensor._use_count(), count(tensor.untyped_storage()._cdata)


@cache
def engine_alone() -> Held | None:
    """How often a gradient and its storage are held that a mode is given by the engine, which alone has it; call it
    outside of a mode's own calls, where autograd is off."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[Held | None] = []

    class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves the base untyped
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.ops.aten.add.Tensor and not torch.is_grad_enabled():
                seen.append(_held(args[0]))
            return function(*args, **(kwargs or {}))

    with Counter(), torch.enable_grad():  # type: ignore[no-untyped-call]
        leaf = torch.ones(2, requires_grad=True)
        (leaf.exp() * leaf.sin()).sum().backward()  # type: ignore[no-untyped-call]
    return seen[0] if seen else None
