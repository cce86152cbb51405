"""The cache of a generation, and what its beams copy: as marks among the allocations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from opanatomy.capture.step.generation import BEFORE_FORWARD, Generator, method_hook
from opanatomy.capture.step.ranges import forward_hooks
from opanatomy.records.memory_observations import MarkKind

if TYPE_CHECKING:
    import torch

#: What transformers' models call their cache, in the output of a forward.
_NAMES: Final = ("past_key_values", "cache_params", "state")
#: The parts of a cache that hold others.
_PARTS: Final = ("self_attention_cache", "cross_attention_cache", "layers")
#: What `generate` repeats the inputs for each beam with.
_EXPAND: Final = "_expand_inputs_for_generation"
#: Notes storages as of a kind.
Noting: TypeAlias = "Callable[[MarkKind, Iterable[torch.Tensor]], None]"


@dataclass(slots=True)
class CacheMarks:
    """Notes what the cache holds after each forward and after each reordering, and the inputs copied for the beams."""

    generator: Generator
    note: Noting
    #: Held until the generation is done, which would release it right after the last reordering.
    cache: Any = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note while inside."""
        module = self.generator.module
        with ExitStack() as stack:
            stack.enter_context(forward_hooks(module, None, self._behind_forward, always=False))
            if self.generator.beams > 1:
                stack.enter_context(method_hook(module, BEFORE_FORWARD, before=self._reordered))
                if hasattr(module, _EXPAND):
                    stack.enter_context(method_hook(module, _EXPAND, after=self._expanded))
            try:
                yield
                self._reordered()
            finally:
                self.cache = None

    def _behind_forward(self, child: torch.nn.Module, _inputs: object, output: object) -> None:
        # An adapter's wrapper generates by the model inside it.
        if not hasattr(child, BEFORE_FORWARD):
            return
        cache = _cache_in(output)
        self.note(MarkKind.KEY_VALUE_CACHE, _tensors(cache))
        self.cache = None if isinstance(cache, (tuple, list)) else cache

    def _reordered(self) -> None:
        if self.cache is not None:
            self.note(MarkKind.REORDERED_CACHE, _tensors(self.cache))

    def _expanded(self, arguments: object) -> None:
        self.note(MarkKind.BEAM_COPIES, _tensors(arguments))


def _cache_in(output: Any) -> Any:
    """The cache in the output of a forward, `None` where there is none."""
    named = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
    return next((named[name] for name in _NAMES if named.get(name) is not None), None)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a cache layer by layer, or of arguments; numbers, which count positions, are none of them."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.dim():
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif any(hasattr(value, name) for name in _PARTS):
        for name in _PARTS:
            yield from _tensors(getattr(value, name, None))
    else:
        for item in getattr(value, "__dict__", {}).values():
            if isinstance(item, (torch.Tensor, list, tuple, dict)):
                yield from _tensors(item)
