"""What DDP and FSDP put around modules, or make of their classes, taken off: paths and classes are the model's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

#: The classes that run another module, and what they call it.
_WRAPPERS: Final = {
    "DistributedDataParallel": "module", "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module", "OffloadWrapper": "_checkpoint_wrapped_module",
}  # fmt: skip
#: Whose subclasses FSDP2 makes of the classes of modules, in place.
_SHARDED: Final = "FSDPModule"


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """The module of the model that runs inside of those around it."""
    while (inner := _inner(module)) is not None:
        module = inner
    return module


def _inner(module: Any) -> torch.nn.Module | None:
    name = next((_WRAPPERS[kind.__name__] for kind in type(module).__mro__ if kind.__name__ in _WRAPPERS), None)
    return None if name is None or not _is_of_torch(module) else getattr(module, name, None)


def _is_of_torch(module: torch.nn.Module) -> bool:
    return any(kind.__name__ in _WRAPPERS and kind.__module__.startswith("torch.") for kind in type(module).__mro__)


def class_name(module: torch.nn.Module) -> str:
    """The class of a module as the model has it: `BertLayer` for `FSDPBertLayer`, of a compiled one that of what was
    compiled."""
    module = unwrapped(module)
    kind: type = type(getattr(module, "_orig_mod", module))
    while any(map(_shards, kind.__bases__)):
        kind = next((base for base in kind.__bases__ if not _shards(base)), object)
    return kind.__name__


def _shards(kind: type) -> bool:
    """Whether it is one of the classes that FSDP2 adds to that of a module."""
    return any(base.__name__ == _SHARDED for base in kind.__mro__)


def own_modules(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """(path, module) of all inside of one, as `named_modules` has them of the model before it was wrapped."""
    yield from _own(module, "", set())


def _own(module: torch.nn.Module, path: str, seen: set[int]) -> Iterator[tuple[str, torch.nn.Module]]:
    module = unwrapped(module)
    if id(module) in seen:
        return
    seen.add(id(module))
    yield path, module
    for name, child in module._modules.items():
        if child is not None:
            yield from _own(child, f"{path}.{name}" if path else name, seen)
