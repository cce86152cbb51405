"""A dispatch-mode observer: every operator below autograd with its signature and the bytes of its real tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from opanatomy.model import Argument, Signature, Tensor

#: Operators that read less than all elements of their tensor arguments: the least data is smaller than what is passed.
READS_LESS = {
    **dict.fromkeys(
        ("aten::copy_", "aten::_foreach_copy_", "aten::fill_", "aten::zero_", "aten::_foreach_zero_",
         "aten::bernoulli_", "aten::normal_", "aten::uniform_", "aten::random_", "aten::exponential_"),
        "the destination is overwritten, not read",
    ),
    **dict.fromkeys(
        ("aten::zeros_like", "aten::ones_like", "aten::full_like", "aten::new_zeros", "aten::new_ones",
         "aten::new_full", "aten::rand_like", "aten::randn_like", "aten::randint_like"),
        "the argument gives a shape and a data type only",
    ),
    **dict.fromkeys(
        ("aten::embedding", "aten::index_select", "aten::gather", "aten::index", "aten::take"),
        "only the elements gathered are read, not the whole table",
    ),
    **dict.fromkeys(
        ("aten::index_put_", "aten::index_add_", "aten::index_copy_", "aten::index_fill_", "aten::scatter_",
         "aten::scatter_add_"),
        "only the elements touched are read",
    ),
    "aten::nll_loss_forward": "only the log-probabilities of the targets are read",
    "aten::nll_loss2d_forward": "only the log-probabilities of the targets are read",
    "aten::nll_loss_backward": "the gradient does not depend on the log-probabilities",
    "aten::nll_loss2d_backward": "the gradient does not depend on the log-probabilities",
    "aten::convolution_backward": "a gradient that output_mask does not ask for reads nothing",
    "aten::max_pool2d_with_indices_backward": "the image gives a shape only",
    "aten::avg_pool2d_backward": "the image gives a shape only",
    "aten::_adaptive_avg_pool2d_backward": "the image gives a shape only",
    "aten::baddbmm": "with beta = 0 the added tensor is ignored",
    "aten::_fused_sgd_": "the first step fills the momentum buffers",
}  # fmt: skip

#: Operators that write other bytes than the schema and the returned tensors say.
WRITES_OTHER = {
    **dict.fromkeys(
        (
            "aten::index_put_",
            "aten::index_add_",
            "aten::index_copy_",
            "aten::index_fill_",
            "aten::scatter_",
            "aten::scatter_add_",
        ),
        "only the elements touched are written",
    ),
    "aten::native_batch_norm": "the running statistics are updated in place, which the schema does not say",
    "aten::native_layer_norm": "the CPU keeps bfloat16 statistics, accelerators float32 ones",
    "aten::native_group_norm": "the CPU keeps bfloat16 statistics, accelerators float32 ones",
    "aten::_fused_adamw_": "gradients are written only where they are unscaled",
    "aten::_fused_adam_": "gradients are written only where they are unscaled",
    "aten::_fused_sgd_": "gradients are written only where they are unscaled",
}


@dataclass(frozen=True, slots=True)
class Call:
    """One operator call: `read_bytes` and `written_bytes` are those of its tensors, 0 for views and allocations."""

    operator: str
    signature: Signature
    read_bytes: int
    written_bytes: int


class Observer(TorchDispatchMode):
    """Collects the `Call` of every operator that runs inside the `with`."""

    def __init__(self) -> None:
        """An observer that has seen nothing."""
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operator and notes it."""
        kwargs = kwargs or {}
        arguments = list(_arguments(func, args, kwargs))
        signature = Signature(tuple(convert(value) for _, value in arguments))
        inputs = [tensor for _, value in arguments for tensor in tensors(value)]
        read = sum(stored_bytes(t) for schema, value in arguments if not schema.is_out for t in tensors(value))
        output = func(*args, **kwargs)
        written = sum(
            stored_bytes(t)
            for schema, value in arguments
            if schema.alias_info and schema.alias_info.is_write
            for t in tensors(value)
        )
        held = {t.untyped_storage()._cdata for t in inputs}
        fresh = [t for t in tensors(output) if t.untyped_storage()._cdata not in held]
        view = not fresh and not written and bool(tensors(output))
        name = func._schema.name
        if view or name.startswith(("aten::empty", "aten::new_empty", "aten::detach")):
            self.calls.append(Call(name, signature, 0, 0))
        else:
            self.calls.append(Call(name, signature, read, written + sum(map(stored_bytes, fresh))))
        return output


def _arguments(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Schema arguments with their values, defaults filled in."""
    for place, schema in enumerate(func._schema.arguments):
        if place < len(args):
            yield schema, args[place]
        elif schema.name in kwargs:
            yield schema, kwargs[schema.name]
        else:
            yield schema, schema.default_value if schema.has_default_value() else None


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of a value, those in lists included."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in value for t in tensors(item)] if isinstance(value, list | tuple) else []


def stored_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the distinct elements of a tensor: a dimension of stride 0 counts once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else min(size, 1)
    return count * tensor.element_size()


def convert(value: Any) -> Argument:
    """A value as `Signature` holds it."""
    if isinstance(value, torch.Tensor):
        return Tensor(tuple(value.shape), str(value.dtype).removeprefix("torch."), tuple(value.stride()))
    if isinstance(value, list | tuple):
        return tuple(convert(item) for item in value)
    if isinstance(value, torch.dtype):
        return str(value)
    return value if isinstance(value, bool | int | float | str) else None
