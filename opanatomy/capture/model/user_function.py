"""A model of the user's own: `package.module:function` that returns (module, inputs)."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opanatomy.capture.model.quiet import one_line
from opanatomy.errors import ModelError
from opanatomy.records.out_of_memory import is_out_of_memory

if TYPE_CHECKING:
    import torch

_PATTERN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_function(model: str) -> bool:
    """Whether `model` reads `package.module:function` and is no file of that name."""
    return _PATTERN.fullmatch(model) is not None and not Path(model).exists()


def call_function(model: str) -> tuple[torch.nn.Module, dict[str, Any] | tuple[Any, ...]]:
    """The module and the inputs that `package.module:function` returns, called without arguments.

    Inputs may be a mapping (keyword arguments), a tuple or list (positional) or one tensor. The working directory is
    importable, as it is for `python -m`.
    """
    import torch

    try:
        made = _function(model)()
    except ModelError:
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            raise
        what = f"{type(error).__name__}: {one_line(error)}"
        raise ModelError(f"{model} raised {what} - call it by itself first") from error
    if not (isinstance(made, (tuple, list)) and len(made) == 2 and isinstance(made[0], torch.nn.Module)):
        raise ModelError(f"{model} returned {_describe(made)} - return (module, inputs), a torch.nn.Module first")
    module, inputs = made
    check_module(model, module)
    if isinstance(inputs, torch.Tensor):
        return module, (inputs,)
    if isinstance(inputs, Mapping):
        return module, {str(key): value for key, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return module, tuple(inputs)
    raise ModelError(f"{model} returned inputs of type {_describe(inputs)} - return a dict, a tuple or a tensor")


def check_module(name: str, module: torch.nn.Module) -> None:
    """Refuse a module that cannot be moved, counted or watched; `name` is what the message calls it."""
    import torch
    from torch.nn.parameter import is_lazy

    if any(isinstance(inner, torch.jit.ScriptModule) for inner in module.modules()):
        raise ModelError(f"{name}: a scripted module takes no hooks - give the one before torch.jit")
    for part, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor):
            raise ModelError(f"{name}: {part} has no shape yet - call the lazy module once before")
        if tensor.is_meta:
            raise ModelError(f"{name}: {part} is on the meta device and has no values - build it on the CPU")


def _function(model: str) -> Any:
    module_name, _, path = model.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        target: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise ModelError(
            f"cannot import {module_name} of {model}: {type(error).__name__}: {one_line(error)} - "
            "run from its folder or install it"
        ) from error
    for name in path.split("."):
        if not hasattr(target, name):
            near = get_close_matches(name, dir(target), n=3)
            instead = f"did you mean {', '.join(near)}?" if near else "check the name behind the colon"
            raise ModelError(f"no {name!r} in {module_name} of {model} - {instead}")
        target = getattr(target, name)
    if not callable(target):
        raise ModelError(f"{model} is {_describe(target)}, not a function - make it one that returns (module, inputs)")
    return target


def _describe(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__
