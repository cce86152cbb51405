"""Which parts of a model `torch.compile` runs, and whether it compiled while a step ran."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: What `torch.compile` leaves on the function that it returns, and `torch.compiler.disable` does not.
_MARK = "get_compiler_config"


def compiled_modules(module: torch.nn.Module) -> frozenset[int]:
    """The `id` of every module that runs, or may run, inside compiled code: hooks on these would compile it again."""
    compiled: set[int] = set()
    for part in module.modules():
        if id(part) not in compiled and _runs_compiled(part):
            compiled.update(id(inner) for inner in part.modules())
    return frozenset(compiled)


def has_compiled_parts(module: torch.nn.Module) -> bool:
    """Whether a module or a function that the model's code calls is compiled."""
    return bool(compiled_modules(module)) or any(_calls_compiled(part) for part in module.modules())


def _runs_compiled(part: torch.nn.Module) -> bool:
    """Whether the module, its forward or a function among its attributes is compiled."""
    if getattr(part, "_compiled_call_impl", None) is not None or hasattr(part, "_orig_mod"):
        return True
    attributes = [*vars(part).values(), *(value for kind in _own_classes(part) for value in vars(kind).values())]
    return any(_is_compiled(value) for value in attributes)


def _calls_compiled(part: torch.nn.Module) -> bool:
    """Whether the code of the module's class sees a compiled function: a global of it, or in its closure."""
    return any(_is_compiled(value) for kind in _own_classes(part) for value in _seen_by(kind))


def _own_classes(part: torch.nn.Module) -> list[type]:
    """The classes of a module that are not torch's own."""
    return [kind for kind in type(part).__mro__ if kind.__module__.partition(".")[0] not in ("torch", "builtins")]


def _seen_by(kind: type) -> Iterator[Any]:
    for method in vars(kind).values():
        code = getattr(method, "__code__", None)
        if code is None:
            continue
        space = getattr(method, "__globals__", {})
        for name in code.co_names:
            if name in space:
                yield space[name]
        for cell in getattr(method, "__closure__", None) or ():
            try:
                yield cell.cell_contents
            except ValueError:  # a cell that is not filled yet
                continue


def _is_compiled(value: Any) -> bool:
    value = getattr(value, "__func__", value)
    return callable(value) and not isinstance(value, type) and _MARK in getattr(value, "__dict__", {})


def compilations() -> int:
    """How often `torch.compile` has translated code in this process; what it disables does not count."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["frames"]["total"])


def mode_keeps_compiled() -> bool:
    """Whether a dispatch mode can say to this torch that compiled code stays compiled under it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    return hasattr(TorchDispatchMode, "ignore_compile_internals")
