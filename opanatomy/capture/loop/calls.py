"""Hooks on torch's functions that report the calls of a loop; all is put back afterwards."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from opanatomy.capture.loop.phases import LoopPhases
from opanatomy.records.taxonomy import Phase

#: The methods of a gradient scaler, each a part of a pass.
_OF_SCALER = {
    "scale": Phase.BACKWARD, "unscale_": Phase.OPTIMIZER, "step": Phase.OPTIMIZER, "update": Phase.OPTIMIZER,
}  # fmt: skip

#: A function of torch -> what takes its place.
_Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


@contextmanager
def marked_calls(
    phases: LoopPhases, seen_scaler: Callable[[Any], None], seen_optimizer: Callable[[Any], None]
) -> Iterator[None]:
    """Report to `phases` the calls of backward, optimizers, scalers and data loaders while inside."""
    import torch
    from torch.utils.data import dataloader

    with ExitStack() as stack:
        _replace(stack, torch.autograd, "backward", functools.partial(_of_backward, phases))
        _replace(stack, torch.autograd, "grad", functools.partial(_of_backward, phases))
        # Code that imported those by name bypasses the module; both call this.
        _replace(stack, torch.autograd, "_engine_run_backward", functools.partial(_of_engine, phases))
        for name, phase in _OF_SCALER.items():
            _replace(stack, torch.amp.GradScaler, name, functools.partial(_of_scaler, phases, phase, seen_scaler))
        for owner, name in (
            (torch.optim.Optimizer, "zero_grad"), (torch.nn.Module, "zero_grad"),
            (dataloader._BaseDataLoaderIter, "__next__"),
        ):  # fmt: skip
            _replace(stack, owner, name, functools.partial(_of_no_pass, phases))
        _optimizer_hooks(stack, phases, seen_optimizer)
        yield


def _replace(stack: ExitStack, owner: Any, name: str, wrap: _Wrap) -> None:
    """Wrap a function until the stack is closed; what other code put in its place meanwhile stays."""
    original = vars(owner).get(name)
    if original is None:
        return
    replacement = wrap(original)
    setattr(owner, name, replacement)

    def put_back() -> None:
        if vars(owner).get(name) is replacement:
            setattr(owner, name, original)

    stack.callback(put_back)


def _optimizer_hooks(stack: ExitStack, phases: LoopPhases, seen_optimizer: Callable[[Any], None]) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    def enter(optimizer: Any, *_: object) -> None:
        seen_optimizer(optimizer)
        phases.enter_optimizer(optimizer)

    def leave(optimizer: Any, *_: object) -> None:
        phases.leave_optimizer(optimizer)

    stack.callback(register_optimizer_step_pre_hook(enter).remove)
    stack.callback(register_optimizer_step_post_hook(leave).remove)


def _of_backward(phases: LoopPhases, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        roots = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
        with phases.backward(roots):
            return original(*args, **kwargs)

    return backward


def _of_engine(phases: LoopPhases, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def engine(roots: Any, gradients: Any, keep_graph: bool, create_graph: bool, *args: Any, **kwargs: Any) -> Any:
        with phases.backward(roots, is_engine=True, create_graph=create_graph):
            return original(roots, gradients, keep_graph, create_graph, *args, **kwargs)

    return engine


def _of_scaler(
    phases: LoopPhases, phase: Phase, seen: Callable[[Any], None], original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(scaler: Any, *args: Any, **kwargs: Any) -> Any:
        seen(scaler)
        with phases.within(phase):
            return original(scaler, *args, **kwargs)

    return method


def _of_no_pass(phases: LoopPhases, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with phases.within(Phase.OTHER):
            return original(self, *args, **kwargs)

    return method
