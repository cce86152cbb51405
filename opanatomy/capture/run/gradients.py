"""Observe in one forward which operands of each module's products need a gradient, for the theory of backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from opanatomy.capture.model.parts import own_modules

if TYPE_CHECKING:
    import torch

#: The dimensions of a weight that multiplies; a bias or a scale has fewer.
_MIN_DIMENSIONS = 2


def observed_gradients(module: torch.nn.Module) -> AbstractContextManager[dict[str, str]]:
    """Return `gradients_by_path` of all modules inside `module`."""
    return gradients_by_path({id(child): path for path, child in own_modules(module)})


@contextmanager
def gradients_by_path(paths: Mapping[int, str]) -> Iterator[dict[str, str]]:
    """Watch a step of the modules with these `id`s.

    Gives path -> "weight", "input", "both" or "none" for each module that runs.

    For a module with weights of its own (a linear layer, a convolution) it states whether these and its input need
    gradients; for one without, which multiplies activations (attention), "both" if its output does. A gradient needed
    in any of several calls counts: reentrant checkpointing first runs forward without gradients. A module with keyword
    inputs only is skipped unless its weights decide. It uses one global hook, removed afterwards, and no hooks on the
    user's modules.
    """
    from torch.nn.modules.module import register_module_forward_hook

    seen: dict[str, tuple[bool, bool]] = {}
    needed: dict[str, str] = {}

    def leave(child: torch.nn.Module, arguments: Any, output: Any) -> None:
        path = paths.get(id(child))
        needs = None if path is None else _needs(child, arguments, output)
        if path is not None and needs is not None:
            before = seen.get(path, (False, False))
            seen[path] = (before[0] or needs[0], before[1] or needs[1])
            needed[path] = _NAMES[seen[path]]

    hook = register_module_forward_hook(leave)
    try:
        yield needed
    finally:
        hook.remove()


_NAMES = {(False, False): "none", (True, False): "weight", (False, True): "input", (True, True): "both"}


def _needs(module: torch.nn.Module, arguments: Any, output: Any) -> tuple[bool, bool] | None:
    """Return whether the weights and the input of a call need gradients; `None` if the input is not seen."""
    import torch

    if not torch.is_grad_enabled():
        return False, False
    weights = [tensor for tensor in module.parameters(recurse=False) if tensor.dim() >= _MIN_DIMENSIONS]
    if not weights:
        return (any(tensor.requires_grad for tensor in _tensors(output)),) * 2
    given = _tensors(arguments)
    trained = any(weight.requires_grad for weight in weights)
    if not given:
        return None if trained else (False, any(tensor.requires_grad for tensor in _tensors(output)))
    return trained, any(tensor.requires_grad for tensor in given)


def _tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors in nested arguments or outputs."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in _tensors(item)]
