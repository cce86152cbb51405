"""Report the progress of the first step, by hooks on modules and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from opanatomy.capture.step.ranges import compiled_modules, forward_hooks

if TYPE_CHECKING:
    import torch


class Progress(Protocol):
    """A display of the current work."""

    def stage(self, text: str, *, steps_after: int = 0, expected_ns: int | None = None) -> None:
        """Begin a stage; one like it took `expected_ns`, `steps_after` steps follow it."""

    def advance(self, fraction: float) -> None:
        """Report this share of the stage as done."""


class NullProgress:
    """A progress display that shows nothing."""

    def stage(self, text: str, *, steps_after: int = 0, expected_ns: int | None = None) -> None:
        """Show nothing."""

    def advance(self, fraction: float) -> None:
        """Show nothing."""


@contextmanager
def watched(module: torch.nn.Module, progress: Progress, passes: int = 1) -> Iterator[None]:
    """Report the progress of the first step over that many passes.

    It counts modules done in forward (a third of the work) and gradients made in backward. Compiled parts have no
    hooks, and no share.
    """
    inside = compiled_modules(module)
    outside = [child for child in module.modules() if id(child) not in inside]
    leaves = [child for child in outside if next(child.children(), None) is None]
    share = {id(child): sum(p.numel() for p in child.parameters(recurse=False)) for child in leaves}
    parameters = [p for child in outside for p in child.parameters(recurse=False) if p.requires_grad and p.is_leaf]
    forward_total = passes * sum(share.values()) or 1
    backward_total = passes * sum(parameter.numel() for parameter in parameters) or 1
    done = [0, 0]

    def advance() -> None:
        forward, backward = min(done[0] / forward_total, 1), min(done[1] / backward_total, 1)
        progress.advance((forward + 2 * backward) / 3)

    def forward_done(child: torch.nn.Module, _inputs: object, _output: object) -> None:
        if share.get(id(child)):  # modules that the forward itself creates have no share
            done[0] += share[id(child)]
            advance()

    def gradient_done(parameter: torch.Tensor) -> None:
        done[1] += parameter.numel()
        advance()

    handles: list[Any] = []
    try:
        for parameter in parameters:
            watch: Any = parameter.register_post_accumulate_grad_hook
            handles.append(watch(gradient_done))
        with forward_hooks(module, None, forward_done, always=False):
            yield
    finally:
        for handle in handles:
            handle.remove()
