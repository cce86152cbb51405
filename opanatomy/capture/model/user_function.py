"""A model of the user's own: `file.py:function` or `package.module:function` that returns (module, inputs)."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from opanatomy.capture.model.user_file import defined_at, file_and_function, imported_file, said_by
from opanatomy.errors import ModelError
from opanatomy.records.out_of_memory import is_out_of_memory

if TYPE_CHECKING:
    import torch

#: Functions of a module are named up to this many.
_NAMED: Final = 8
_PATTERN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_function(model: str) -> bool:
    """Whether `model` reads `package.module:function` or `file.py:function`, and is no other file of that name."""
    return file_and_function(model) is not None or (_PATTERN.fullmatch(model) is not None and not Path(model).exists())


def call_function(model: str) -> tuple[torch.nn.Module, dict[str, Any] | tuple[Any, ...]]:
    """The module and the inputs that a function of the user's returns, called without arguments.

    Inputs may be a mapping (keyword arguments), a tuple or list (positional) or one tensor. What is next to a file is
    importable for it, and for `package.module:function` the working directory, as it is for `python -m`.
    """
    import torch

    with _module(model) as (imported, path):
        function = _attribute(imported, path, model)
        made = _called(function, model)
    where = defined_at(function)
    if not (isinstance(made, (tuple, list)) and len(made) == 2 and isinstance(made[0], torch.nn.Module)):
        raise ModelError(
            f"{model}{where} returned {_describe(made)} - return (module, inputs), a torch.nn.Module first"
        )
    module, inputs = made
    check_module(model, module)
    if isinstance(inputs, torch.Tensor):
        return module, (inputs,)
    if isinstance(inputs, Mapping):
        return module, {str(key): value for key, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return module, tuple(inputs)
    raise ModelError(f"{model}{where} returned inputs of type {_describe(inputs)} - return a dict, a tuple or a tensor")


def _called(function: Callable[[], Any], model: str) -> Any:
    try:
        return function()
    except ModelError:
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            raise
        raise ModelError(f"{model} raised {said_by(error)} - call it by itself first") from error


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


@contextmanager
def _module(model: str) -> Iterator[tuple[ModuleType, str]]:
    """The module that has the function, and the name of the function in it."""
    named = file_and_function(model)
    if named is not None:
        with imported_file(named[0]) as module:
            yield module, named[1]
        return
    module_name, _, path = model.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        imported = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise ModelError(
            f"cannot import {module_name} of {model}: {said_by(error)} - run from its folder or install it"
        ) from error
    yield imported, path


def _attribute(module: ModuleType, path: str, model: str) -> Callable[[], Any]:
    target: Any = module
    for name in path.split("."):
        if not hasattr(target, name):
            raise ModelError(f"no {name!r} in {model.rpartition(':')[0]} - {_instead(name, target)}")
        target = getattr(target, name)
    if not callable(target):
        raise ModelError(f"{model} is {_describe(target)}, not a function - make it one that returns (module, inputs)")
    return target  # type: ignore[no-any-return]  # it is callable


def _instead(name: str, target: Any) -> str:
    near = get_close_matches(name, dir(target), n=3)
    own = [key for key, value in vars(target).items() if _is_function_of(value, target)]
    if near:
        return f"did you mean {', '.join(near)}?"
    return f"it has {', '.join(own[:_NAMED])}" if own else "check the name after the colon"


def _is_function_of(value: Any, module: Any) -> bool:
    return inspect.isfunction(value) and value.__module__ == getattr(module, "__name__", None)


def _describe(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__
