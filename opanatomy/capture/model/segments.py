"""`--checkpoint-every N`: the layers of a model recomputed in segments of N, of which only the input is kept.

transformers checkpoints layer by layer. Here the model's loop over its layers stays as it is: its call of the first
layer of a segment runs all layers of it under one `torch.utils.checkpoint`, its calls of the others give back what
comes in. That is the same only where every layer gets the same arguments besides the hidden states and gives nothing
but these: where one does not (T5 hands its relative positions from layer to layer) it is refused, not computed wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opanatomy.capture.model.parts import Stack, stacks_of
from opanatomy.errors import UsageError
from opanatomy.option_values import as_flag
from opanatomy.options import CHECKPOINT_EVERY

if TYPE_CHECKING:
    import torch


def checkpoint_in_segments(module: torch.nn.Module, kind: str, every: int) -> None:
    """Have every stack of `module` run its layers again in segments of `every`, the last of them shorter if need be."""
    stacks = stacks_of(module)
    asked, name = as_flag(CHECKPOINT_EVERY, every), type(module).__name__
    if not stacks:
        raise UsageError(f"{asked}: {name} has no list of like layers - leave it out")
    longest = max(len(stack.layers) for stack in stacks)
    if every > longest:
        raise UsageError(f"{asked}: {name} has {longest} layers - give 1 to {longest}")
    for stack in stacks:
        for first in range(0, len(stack.layers), every):
            _Segment(stack=stack, layers=stack.layers[first : first + every], kind=kind, asked=asked).take_over()


@dataclass(kw_only=True, slots=True)
class _Segment:
    """Consecutive layers that are recomputed together."""

    stack: Stack
    layers: tuple[torch.nn.Module, ...]
    kind: str
    asked: str
    #: The layers' own forwards, in their order.
    forwards: list[Callable[..., Any]] = field(default_factory=list)
    #: Whether the layers run for the segment, in forward or in backward; else it is the model that calls them.
    running: bool = False
    #: What the first layer was called with besides the hidden states, and gave, for the model's calls of the others.
    arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    result: Any = None

    def take_over(self) -> None:
        """Put the segment in the place of its layers' forwards."""
        for place, layer in enumerate(self.layers):
            self.forwards.append(layer.forward)
            layer.forward = self._forward_of(place)

    def _forward_of(self, place: int) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if self.running or not self.layers[0].training:
                return self.forwards[place](*args, **kwargs)
            hidden, others, named = self._taken(args, kwargs)
            if place == 0:
                self.arguments, self.result = (others, named), self._run(hidden, others, named)
            else:
                self._check(place, hidden, others, named)
            result = self.result
            if place == len(self.layers) - 1:
                self.arguments = self.result = None
            return result

        return forward

    def _taken(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """The hidden states of a call, and its other arguments by place and by name."""
        if args:
            return args[0], args[1:], kwargs
        return kwargs["hidden_states"], (), {key: value for key, value in kwargs.items() if key != "hidden_states"}

    def _run(self, hidden: torch.Tensor, others: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """All layers under one checkpoint. Tensors are its arguments, for the reentrant kind looks at nothing else."""
        from torch.utils._pytree import tree_flatten, tree_unflatten
        from torch.utils.checkpoint import checkpoint

        values, form = tree_flatten((others, named))

        def run(states: torch.Tensor, *values: Any) -> Any:
            others, named = tree_unflatten(list(values), form)
            before, self.running = self.running, True
            try:
                output: Any = None
                for layer in self.layers:
                    output = layer(states, *others, **named)
                    states = self._states(output)
                return output
            finally:
                self.running = before

        return checkpoint(run, hidden, *values, use_reentrant=self.kind == "reentrant")

    def _states(self, output: Any) -> Any:
        """The hidden states of a layer's output, of which the next layer takes nothing else."""
        if not isinstance(output, (tuple, list)):
            return output
        if any(value is not None for value in output[1:]):
            raise self._refused("gives the model more than hidden states, which other layers may take")
        return output[0]

    def _check(self, place: int, hidden: Any, others: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Refuse a call of another layer than the first that does not fit what the segment has computed for it."""
        if self.arguments is None or hidden is not self._states(self.result):
            raise self._refused("does not get the hidden states of the layer before as they are")
        first, first_named = self.arguments
        same = len(first) == len(others) and first_named.keys() == named.keys()
        if not same or not all(map(_is_same, first, others)):
            raise self._refused("gets other arguments than the layer before")
        different = [key for key, value in named.items() if not _is_same(value, first_named[key])]
        if different:
            raise self._refused(f"gets another {different[0]} than the layer before")

    def _refused(self, why: str) -> UsageError:
        return UsageError(
            f"{self.asked}: a {self.stack.kind} of {self.stack.path} {why}: layers cannot be recomputed together"
            " - use --checkpointing alone"
        )


def _is_same(one: Any, other: Any) -> bool:
    """Whether two arguments are the same: of tensors the same one, or the same view of the same memory."""
    import torch

    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one is other or (
            one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()
            and one.grad_fn is other.grad_fn
        )  # fmt: skip
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return one is other or bool(type(one) is type(other) and one == other)
