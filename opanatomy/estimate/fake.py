"""Tensors that have shapes and no values: a step on them calls what a real one calls, and allocates nothing.

What a program reads of a tensor's values is zero or false, but of constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode


@contextmanager
def fake_tensors() -> Iterator[FakeTensorMode]:
    """Every tensor made inside has no values; the random states are afterwards as they were."""
    import torch

    with torch.random.fork_rng(devices=[]), fake_mode()(allow_non_fake_inputs=True) as mode, parameters_replaced():
        yield mode


@contextmanager
def parameters_replaced() -> Iterator[None]:
    """`Module.to` and its like give a module other parameters while inside: the tensor of a fake one cannot be swapped,
    for it has weak references."""
    import torch

    module: Any = torch.nn.Module
    apply = module._apply
    module._apply = _replaced
    try:
        yield
    finally:
        module._apply = apply


def _replaced(module: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
    import torch

    made: dict[int, torch.nn.Parameter] = {}
    for child in module.modules() if recurse else (module,):
        for name, parameter in child._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:
                with torch.no_grad():
                    tensor = fn(parameter)
                same = tensor is parameter
                made[id(parameter)] = parameter if same else torch.nn.Parameter(tensor, parameter.requires_grad)
            child._parameters[name] = made[id(parameter)]
        for name, buffer in child._buffers.items():
            if buffer is not None:
                child._buffers[name] = fn(buffer)
    return module


@cache
def fake_mode() -> type[FakeTensorMode]:
    """The class of the mode: `FakeTensorMode`, whose tensors answer also what depends on their values."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    answers = _answers()

    class AnsweringFakeTensorMode(FakeTensorMode):
        """Fake tensors whose values may be read."""

        def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            """What the operator gives."""
            answer = answers.get(func)
            if answer is not None and not _has_constant(args[0]):
                with self:
                    return answer(*args, **(kwargs or {}))
            return super().dispatch(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]

    return AnsweringFakeTensorMode


def _has_constant(tensor: Any) -> bool:
    import torch

    return isinstance(getattr(tensor, "constant", None), torch.Tensor)


def _answers() -> dict[Any, Callable[..., Any]]:
    """What depends on values, as if each were zero or false and every mask took all; and what torch has no rule for."""
    import torch

    aten = torch.ops.aten
    return {
        aten._local_scalar_dense.default: _item,
        aten.equal.default: lambda *_: False,
        aten.nonzero.default: _nonzero,
        aten.masked_select.default: _masked_select,
        aten._ctc_loss.Tensor: _ctc_loss,
        aten._ctc_loss_backward.Tensor: lambda grad, log_probs, *_: torch.empty_like(log_probs),
        aten._grouped_mm.default: _grouped_mm,
    }


def _item(tensor: torch.Tensor) -> bool | int | float:
    import torch

    if tensor.dtype is torch.bool:
        return False
    return 0.0 if tensor.dtype.is_floating_point else 0


def _nonzero(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.new_empty((tensor.numel(), tensor.dim()), dtype=torch.int64)


def _masked_select(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    import torch

    broadcast: Any = torch.broadcast_shapes  # torch leaves it untyped
    return tensor.new_empty((broadcast(tensor.shape, mask.shape).numel(),))


def _grouped_mm(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None = None, *_: Any) -> torch.Tensor:
    """Of any data type, as on the CPU; torch's own rule for shapes takes bfloat16 alone."""
    if a.dim() == b.dim() == 2:
        assert offs is not None
        return a.new_empty((len(offs), a.shape[0], b.shape[1]))
    return a.new_empty((*(b.shape[:1] if a.dim() == b.dim() else ()), a.shape[-2], b.shape[-1]))


def _ctc_loss(log_probs: torch.Tensor, targets: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    time, batch = log_probs.shape[0], log_probs.shape[1]
    states = 2 * (targets.numel() // batch) + 1
    return log_probs.new_empty((batch,)), log_probs.new_empty((batch, time, states))
