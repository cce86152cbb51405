"""Save the state of a module, its inputs and the process that a step changes, and restore it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from opanatomy.capture.device import accelerators
from opanatomy.capture.memory.measurement import available_bytes
from opanatomy.capture.memory.storages import tensors_in, unpacked
from opanatomy.options import RunOptions

if TYPE_CHECKING:
    import torch

#: Copies may take at most one in this many parts of available memory: the step needs the rest.
_MEMORY_DIVISOR: Final = 16


@dataclass(slots=True, kw_only=True)
class _Copied:
    """A plain tensor and a copy of it on the host."""

    tensor: torch.Tensor
    copy: torch.Tensor

    def restore(self) -> None:
        """Restore the tensor from its copy if it has changed."""
        import torch

        with torch.no_grad():
            now, before = self.tensor.detach(), self.copy
            if now.shape == before.shape and torch.equal(now.to("cpu"), before):
                return
            if now.shape == before.shape:
                now.copy_(before)
            else:
                self.tensor.data = before.to(now.device, copy=True)


@dataclass(slots=True, kw_only=True)
class RandomState:
    """The states of all random generators that a model may draw from."""

    host: torch.Tensor
    device: torch.Tensor | None
    python: Any
    numpy: Any
    name: str

    @classmethod
    def of(cls, device: str) -> RandomState:
        """Return the current states."""
        import numpy as np
        import torch

        return cls(
            host=torch.get_rng_state(),
            device=accelerators.random_state(device),
            python=random.getstate(),
            numpy=np.random.get_state(),
            name=device,
        )

    def restore(self) -> None:
        """Restore the states."""
        import numpy as np
        import torch

        torch.set_rng_state(self.host)
        if self.device is not None:
            accelerators.set_random_state(self.name, self.device)
        random.setstate(self.python)
        np.random.set_state(self.numpy)


@dataclass(slots=True, kw_only=True)
class SavedState:
    """Random states, buffers, gradients, modes and flags of a module, and the values of parameters and inputs.

    Copies are kept on the host, within the little memory that a step can spare; `left_out` lists tensors that did not
    fit.
    """

    random: RandomState
    modes: list[tuple[torch.nn.Module, bool]]
    buffers: list[tuple[torch.nn.Module, str, torch.Tensor | None]]
    leaves: list[tuple[torch.Tensor, torch.Tensor | None, bool]]
    values: list[_Copied] = field(default_factory=list)
    weights: list[_Copied] = field(default_factory=list)
    left_out: list[tuple[torch.Tensor, int]] = field(default_factory=list)

    @classmethod
    def of(cls, module: torch.nn.Module, inputs: Any, device: str, *, weights: bool) -> SavedState:
        """Return the current state; with `weights` also the values of the parameters."""
        modules = list(module.modules())
        buffers = [(part, name, buffer) for part in modules for name, buffer in part._buffers.items()]
        leaves = [*module.parameters(), *tensors_in(inputs)]
        kept = cls(
            random=RandomState.of(device),
            modes=[(part, part.training) for part in modules],
            buffers=buffers,
            leaves=[(leaf, _gradient(leaf), leaf.requires_grad) for leaf in leaves if leaf.is_leaf],
        )
        left = (available_bytes() or 1 << 62) // _MEMORY_DIVISOR
        held = [buffer for _, _, buffer in buffers if buffer is not None]
        left = kept._copy((*held, *tensors_in(inputs)), kept.values, left)
        if weights:
            kept._copy(module.parameters(), kept.weights, left)
        return kept

    def _copy(self, tensors: Iterable[torch.Tensor], into: list[_Copied], left: int) -> int:
        """Copy tensors that fit into `left` bytes; return the bytes still left."""
        seen = set()
        for tensor in unpacked(tensors):
            size = tensor.numel() * tensor.element_size()
            if id(tensor) in seen or not size or tensor.is_meta:
                continue
            seen.add(id(tensor))
            if size > left:
                self.left_out.append((tensor, _version(tensor)))
                continue
            left -= size
            into.append(_Copied(tensor=tensor, copy=tensor.detach().to("cpu", copy=True)))
        return left

    @property
    def host_bytes(self) -> int:
        """Return the host memory of the copies."""
        return sum(kept.copy.numel() * kept.copy.element_size() for kept in (*self.values, *self.weights))

    def release_weights(self) -> None:
        """Free the copies of the parameters."""
        self.weights.clear()

    def restore_values(self) -> None:
        """Restore random states, buffers, inputs and parameters, for the next try of a step."""
        for module, name, buffer in self.buffers:
            module._buffers[name] = buffer
        for kept in (*self.values, *self.weights):
            kept.restore()
        self.random.restore()

    def restore_all(self) -> None:
        """Restore the values, and modes, gradients and flags."""
        self.restore_values()
        for module, mode in self.modes:
            module.training = mode
        for leaf, gradient, flag in self.leaves:
            if leaf.requires_grad != flag:
                leaf.requires_grad_(flag)
            if _gradient(leaf) is not gradient:
                leaf.grad = gradient

    def changed(self) -> int:
        """Return the bytes of tensors too large to copy that have been written since."""
        return sum(
            tensor.numel() * tensor.element_size() for tensor, version in self.left_out if _version(tensor) != version
        )


def _gradient(leaf: torch.Tensor) -> torch.Tensor | None:
    return leaf.grad if leaf.is_leaf else None


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def own_inputs(module: torch.nn.Module, inputs: Any) -> Any:
    """Return the inputs, with detached leaves for those that require a gradient, so that backward stops there."""
    parameters = {id(parameter) for parameter in module.parameters()}
    return _replaced(inputs, parameters)


def _replaced(value: Any, parameters: set[int]) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        if not value.requires_grad or id(value) in parameters:
            return value
        return value.detach().requires_grad_()
    if type(value) is dict:
        return {key: _replaced(item, parameters) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_replaced(item, parameters) for item in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_replaced(item, parameters) for item in value))
    return value


@contextmanager
def process_as_it_was() -> Iterator[None]:
    """Quiet Kineto inside the block; then restore the settings of the process that a model may change."""
    import torch

    dtype = torch.get_default_dtype()
    try:
        with quiet_kineto():
            yield
    finally:
        torch.set_default_dtype(dtype)


@contextmanager
def step_settings(options: RunOptions) -> Iterator[None]:
    """Make the options that are settings of the process hold inside the block, in every kind of run."""
    before = _kernel_profile(True) if options.compile else None
    try:
        yield
    finally:
        if before is not None:
            _kernel_profile(before)


@contextmanager
def quiet_kineto() -> Iterator[None]:
    """Silence Kineto's messages inside the block, unless the environment sets their level."""
    level = os.environ.get("KINETO_LOG_LEVEL")
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    try:
        yield
    finally:
        if level is None:
            os.environ.pop("KINETO_LOG_LEVEL", None)


def _kernel_profile(wanted: bool) -> bool | None:
    """Set whether inductor names its CPU kernels in a trace; return the old setting (`None`: not in this release)."""
    with suppress(ImportError, AttributeError):
        import torch._inductor.config as inductor

        before: bool = inductor.cpp.enable_kernel_profile
        inductor.cpp.enable_kernel_profile = wanted
        return before
    return None
