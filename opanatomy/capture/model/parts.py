"""Find the parts of a model by their role: its embeddings, its stacks of like layers, its head."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from opanatomy.errors import UsageError

if TYPE_CHECKING:
    import torch

#: Minimum share of a stack in the weights of all module lists.
_MIN_SHARE: Final = 0.1


class Stack(Struct, frozen=True, kw_only=True):
    """A list of like layers that run in sequence, by path."""

    path: str
    layers: tuple[torch.nn.Module, ...]

    @property
    def kind(self) -> str:
        """Return the class of its layers."""
        return type(self.layers[0]).__name__


def stacks_of(module: torch.nn.Module) -> tuple[Stack, ...]:
    """Return the model's stacks in their order in the model: with an encoder and a decoder the encoder's first.

    A stack is an `nn.ModuleList` not inside another, with members of one class or as many as the configuration has
    layers; one with less than a tenth of the weights of all of them (a convolutional stem) is skipped.
    """
    import torch

    count = getattr(getattr(module, "config", None), "num_hidden_layers", None)
    lists: list[tuple[str, Any]] = []
    for path, child in module.named_modules():
        inside = any(path.startswith(outer + ".") for outer, _ in lists)
        if type(child) is torch.nn.ModuleList and len(child) and not inside:
            like = len({type(layer) for layer in child}) == 1 or len(child) == count
            if like and _size(child):
                lists.append((path, child))
    whole = sum(_size(child) for _, child in lists)
    return tuple(Stack(path=path, layers=tuple(child)) for path, child in lists if _size(child) >= _MIN_SHARE * whole)


def embeddings_of(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the modules that make the first vectors, by path.

    These are look-ups (of words, positions, types), patch projections and everything in a module named an embedding;
    modules inside a stack's layer (T5's relative positions) belong to the layer.
    """
    import torch

    inside = {id(part) for stack in stacks_of(module) for layer in stack.layers for part in layer.modules()}
    parts = {
        path: child
        for path, child in module.named_modules()
        if id(child) not in inside and (isinstance(child, torch.nn.Embedding) or "Embed" in type(child).__name__)
    }
    return {path: child for path, child in parts.items() if _size(child)}


def trained_tables(module: torch.nn.Module) -> list[torch.Tensor]:
    """Return the trained weights of all look-ups (`nn.Embedding`), each once."""
    import torch

    tables = {id(part.weight): part.weight for part in module.modules() if isinstance(part, torch.nn.Embedding)}
    return [table for table in tables.values() if table.requires_grad]


def head_of(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the weights outside the base model (`base_model` of transformers), by name.

    If a model is its own base, the weights of its output layer. A head that shares all its weights with the base model
    has none.
    """
    model: Any = module
    base = getattr(model, "base_model", module)
    if base is module:
        output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
        within = {id(parameter) for part in embeddings_of(module).values() for parameter in part.parameters()}
        head = set() if output is None else {id(parameter) for parameter in output.parameters()} - within
        return {name: parameter for name, parameter in module.named_parameters() if id(parameter) in head}
    within = {id(parameter) for parameter in base.parameters()}
    return {name: parameter for name, parameter in module.named_parameters() if id(parameter) not in within}


def is_bias(name: str) -> bool:
    """Return whether a parameter of this name is added: `dense.bias`, `in_proj_bias`."""
    return name.rpartition(".")[2].endswith("bias")


def _size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# Remove the wrappers and subclasses of DDP and FSDP to get the model's own paths and classes.


#: Classes that wrap another module, and their attribute for it.
_WRAPPERS: Final = {
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OffloadWrapper": "_checkpoint_wrapped_module",
}
#: FSDP2 turns the classes of modules into subclasses of this, in place.
_SHARDED: Final = "FSDPModule"


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module of the model that runs inside its wrappers."""
    while True:
        wrappers = [kind for kind in type(module).__mro__ if kind.__name__ in _WRAPPERS]
        if not any(kind.__module__.startswith("torch.") for kind in wrappers):
            return module
        inner = getattr(module, _WRAPPERS[wrappers[0].__name__], None)
        if inner is None:
            return module
        module = inner


def class_name(module: torch.nn.Module) -> str:
    """Return the model's own class of a module: `BertLayer` for `FSDPBertLayer`, the original of a compiled one."""
    module = unwrapped(module)
    kind: type = type(getattr(module, "_orig_mod", module))
    while any(map(_shards, kind.__bases__)):
        kind = next((base for base in kind.__bases__ if not _shards(base)), object)
    return kind.__name__


def _shards(kind: type) -> bool:
    """Return whether this is an FSDP2-generated class."""
    return any(base.__name__ == _SHARDED for base in kind.__mro__)


def own_modules(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield (path, module) of all submodules, as `named_modules` of the unwrapped model."""
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


#: The module of transformers that defines its caches, and the end of the names of those defined by models.
_CACHE_MODULE, _CACHE_NAME = "transformers.cache_utils", "Cache"


def is_cache(value: Any, *, name: str, module: Any) -> bool:
    """Return whether an item of a module's output is what its next call takes: keys and values, recurrent states.

    transformers returns an object of a cache class under any name. Some models return lists instead; a model configured
    to use a cache takes such a list back under the same `name`, or the list has a tuple per layer.
    """
    kinds = type(value).__mro__
    if any(kind.__module__ == _CACHE_MODULE or kind.__name__.endswith(_CACHE_NAME) for kind in kinds):
        return True
    if not isinstance(value, (list, tuple)) or not value:
        return False
    model: Any = unwrapped(module)
    if not getattr(getattr(model, "config", None), "use_cache", False):
        return False
    return name in inspect.signature(model.forward).parameters or all(map(_is_layer_cache, value))


def _is_layer_cache(value: Any) -> bool:
    """Return whether this is a layer's keys and values, with cross-attention's if there are any."""
    import torch

    return (
        isinstance(value, tuple)
        and len(value) in (2, 4)
        and all(isinstance(item, torch.Tensor) and item.dim() > 2 for item in value)
    )


#: `generate` calls this right before each forward.
BEFORE_FORWARD: Final = "prepare_inputs_for_generation"


def check_generates(module: torch.nn.Module, option: str) -> None:
    """Raise `UsageError` if a model does not generate."""
    generates = getattr(module, "can_generate", None)
    if generates is None or not generates() or not hasattr(module, BEFORE_FORWARD):
        raise UsageError(
            f"{option}: {type(module).__name__} cannot generate - leave it out, or use a model with a language"
            " model head, such as GPT-2, Llama or T5"
        )


# The windows that the attention of layers slides over, from a model's configuration.


#: Kinds of layers whose attention covers, and caches, all tokens or those in a window.
_FULL: Final = frozenset({"full_attention"})
_SLIDING: Final = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}


def windows_of(module: torch.nn.Module) -> tuple[int, ...]:
    """Return the sliding window of causal attention in tokens for each layer, 0 for full; empty without windows."""
    config: Any = getattr(module, "config", None)
    if not hasattr(config, "get_text_config") or config.is_encoder_decoder:
        return ()
    text = config.get_text_config(decoder=True)
    if getattr(text, "attention_chunk_size", None) or not any(
        getattr(part, "is_causal", False) is True for part in module.modules()
    ):
        return ()
    windows = layer_windows(text, first_integer(text, "num_hidden_layers")) or ()
    return windows if any(windows) else ()


def layer_windows(text: Any, layers: int | None) -> tuple[int, ...] | None:
    """Return the window of each layer, 0 without one; `None` if a layer is of another kind or its window is unknown."""
    if layers is None:
        return None
    kinds = getattr(text, "layer_types", None)
    if kinds is None:
        window = getattr(text, "sliding_window", None) or getattr(text, "attention_chunk_size", None) or 0
        return (window,) * layers
    if len(kinds) != layers or not set(kinds) <= _FULL | set(_SLIDING):
        return None
    windows = [getattr(text, _SLIDING[kind], None) if kind in _SLIDING else 0 for kind in kinds]
    known = tuple(window for window in windows if window is not None)
    return known if len(known) == layers else None


def first_integer(config: Any, *names: str) -> int | None:
    """Return the first of these fields of a configuration that is an integer."""
    values = (getattr(config, name, None) for name in names)
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), None)
