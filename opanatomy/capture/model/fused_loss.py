"""`--fused-loss`: head and cross entropy of a language model in one function of torch, in chunks of the tokens.

The head is called as ever and gives logits that are not computed. What a model does with them on the way to its loss
is to give them another shape or type; the cross entropy takes what they would be made of. Anything else needs values
that are not there, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opanatomy.errors import CaptureError, UsageError

if TYPE_CHECKING:
    import torch


def fuse_loss(module: torch.nn.Module) -> None:
    """Have the head of `module` give logits that its cross entropy computes chunk by chunk, never whole."""
    import torch

    model: Any = module
    if not hasattr(torch.nn.functional, "linear_cross_entropy"):
        raise CaptureError(
            f"--fused-loss needs torch.nn.functional.linear_cross_entropy, which torch {torch.__version__} does not"
            " have - use torch 2.13 or later"
        )
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if not isinstance(head, torch.nn.Linear):
        raise UsageError(f"--fused-loss: {type(module).__name__} has no linear head that gives words - leave it out")
    _replace_forward(head)


def _replace_forward(head: Any) -> None:
    import torch

    def forward(states: torch.Tensor) -> Any:
        if not head.training:
            return torch.nn.functional.linear(states, head.weight, head.bias)
        return Logits(states, head.weight, head.bias, (*states.shape[:-1], head.out_features))

    head.forward = forward


class Logits:
    """What a head would give for hidden states: it has a shape and a type, and no values."""

    def __init__(
        self, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: tuple[int, ...]
    ) -> None:
        self.states, self.weight, self.bias = states, weight, bias
        self.shape, self.device, self.dtype = shape, states.device, states.dtype

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The cross entropy of the logits and labels; nothing else is known of them."""
        import torch

        if function is not torch.nn.functional.cross_entropy:
            raise _refused(getattr(function, "__name__", str(function)))
        return cls._cross_entropy(*args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        import torch

        if hasattr(torch.Tensor, name) and not name.startswith("__"):
            raise _refused(name)
        raise AttributeError(name)

    def size(self, dimension: int) -> int:
        """The size of a dimension."""
        return self.shape[dimension]

    def dim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def float(self) -> Logits:
        """The logits unchanged: the function computes with the precision that it needs."""
        return self

    def contiguous(self) -> Logits:
        """The logits unchanged."""
        return self

    def to(self, *_: Any, **__: Any) -> Logits:
        """The logits unchanged, as with `float`."""
        return self

    def view(self, *shape: int) -> Logits:
        """The logits as a table of one row for each token."""
        if len(shape) != 2 or shape[-1] not in (-1, self.shape[-1]):
            raise _refused(f"view{shape}")
        rows = self.states.reshape(-1, self.states.shape[-1])
        return Logits(rows, self.weight, self.bias, (rows.shape[0], self.shape[-1]))

    reshape = view

    def __getitem__(self, key: Any) -> Logits:
        """The logits of some of the tokens: all words of them."""
        places = key if isinstance(key, tuple) else (key,)
        every = slice(None)
        words = places[-1] if Ellipsis in places or len(places) == self.dim() else every
        if words != every or any(not isinstance(place, slice) and place is not Ellipsis for place in places):
            raise _refused(f"[{key}]")
        states = self.states[key]
        return Logits(states, self.weight, self.bias, (*states.shape[:-1], self.shape[-1]))

    def _cross_entropy(
        self, target: torch.Tensor, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
        reduce: Any = None, reduction: str = "mean", label_smoothing: Any = 0.0,
    ) -> Any:  # fmt: skip
        import torch

        if len(self.shape) != 2 or size_average is not None or reduce is not None:
            raise _refused("cross_entropy of more than rows of words")
        fused: Callable[..., Any] = torch.nn.functional.linear_cross_entropy
        # As a linear layer under autocast does; the function itself is on none of autocast's lists.
        states, words, bias = (_cast(tensor) for tensor in (self.states, self.weight, self.bias))
        return fused(
            states, words, target, linear_bias=bias, weight=weight, reduction=reduction, ignore_index=ignore_index,
            label_smoothing=label_smoothing, options=torch.nn.LinearCrossEntropyOptions(),
        )  # fmt: skip


def _cast(tensor: torch.Tensor | None) -> torch.Tensor | None:
    import torch

    if tensor is None or not torch.is_autocast_enabled(tensor.device.type):
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


def _refused(what: str) -> UsageError:
    return UsageError(
        f"--fused-loss: the model takes {what} of its logits, which are never there as a whole - leave it out"
    )


def _no_values(name: str) -> Callable[..., Any]:
    def refused(*_: object) -> Any:
        raise _refused(name)

    return refused


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "neg", "matmul"):
    setattr(Logits, f"__{_name}__", _no_values(_name))
