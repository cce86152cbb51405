"""Count forward's saves for backward by storage: activations, and autocast's casts of weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opanatomy.capture.device.accelerators import same_device
from opanatomy.capture.memory.measurement import Snapshots
from opanatomy.capture.memory.storages import unpacked
from opanatomy.capture.step.stepper import StepObserver
from opanatomy.records.memory import AFTER_BACKWARD, AFTER_FORWARD, AFTER_OPTIMIZER

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class StorageSet:
    """A set of storages by identity, not by address, which could be reused; none is kept alive.

    With a `device`, storages elsewhere are ignored.
    """

    device: str | None = None
    #: Address of the storage's own record -> a weak reference, which reserves that address, and the bytes.
    held: dict[int, tuple[Any, int]] = field(default_factory=dict)

    def add(self, tensor: torch.Tensor) -> None:
        """Add the storages under a tensor, except those without memory."""
        from torch.multiprocessing.reductions import StorageWeakRef

        for part in unpacked((tensor,)):
            if self.device is not None and not same_device(str(part.device), self.device):
                continue
            storage = part.untyped_storage()
            if storage._cdata not in self.held and storage.nbytes():
                reference: Any = StorageWeakRef
                self.held[storage._cdata] = (reference(storage), storage.nbytes())

    def __contains__(self, address: int) -> bool:
        return address in self.held

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether one of the storages under a tensor is in the set."""
        return any(part.untyped_storage()._cdata in self.held for part in unpacked((tensor,)))

    def live_bytes(self, within: StorageSet | None = None) -> int:
        """Return the bytes of the storages that still live; with `within` only of those in both sets."""
        return sum(
            size
            for address, (reference, size) in self.held.items()
            if not reference.expired() and (within is None or address in within)
        )


def storages(tensors: Iterable[torch.Tensor]) -> StorageSet:
    """Return the storages under `tensors`."""
    distinct = StorageSet()
    for tensor in tensors:
        distinct.add(tensor)
    return distinct


@dataclass(slots=True)
class SavedTensors:
    """The storages that autograd saved for backward, without those in `known` (parameters, buffers, inputs)."""

    known: StorageSet
    storages: StorageSet = field(default_factory=StorageSet)

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count `tensor`, and save it."""
        import torch

        # A parameter or a view of one is no activation: FSDP gathers new ones for a forward.
        base: Any = tensor._base
        is_weight = isinstance(tensor if base is None else base, torch.nn.Parameter)
        if not is_weight and not self.known.holds(tensor):
            self.storages.add(tensor)
        return saved_form(tensor)


def saved_form(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor to save instead of `tensor`, sharing its memory.

    A saved output and its node would reference each other, and a failed step would never free them; a leaf that
    requires a gradient has no node and is saved as is.
    """
    import torch

    if tensor.is_leaf and tensor.requires_grad:
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach()


@contextmanager
def saved_tensors(known: Iterable[torch.Tensor], device: str | None = None) -> Iterator[SavedTensors]:
    """Count tensors saved by autograd inside the block, only on `device` if given."""
    import torch

    saved = SavedTensors(storages(known), StorageSet(device=device))
    with torch.autograd.graph.saved_tensors_hooks(uncompiled(saved.pack), uncompiled(_as_it_is)):
        yield saved


def uncompiled(hook: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return the hook, hidden from `torch.compile`, which would otherwise trace it."""
    import torch

    if "torch._dynamo" not in sys.modules:
        return hook
    compiler: Any = torch.compiler  # its functions have no types
    kept: Callable[..., torch.Tensor] = compiler.disable(hook)
    return kept


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def weight_casts(weights: StorageSet, casts: StorageSet) -> Any:
    """Return a dispatch mode that adds the storages of casts of `weights` to `casts`."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Casts(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves the base untyped
        supports_higher_order_operators = True

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            """Return true: compiled code stays compiled under it."""
            return True

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            output = function(*args, **(kwargs or {}))
            if function is torch.ops.aten._to_copy.default and weights.holds(args[0]):
                casts.add(output)
            return output

    make: Any = Casts
    return make()


class PointWatch(StepObserver):
    """Snapshots at the points of a step."""

    def __init__(self, snapshots: Snapshots) -> None:
        self.snapshots = snapshots

    def after_forward(self, roots: tuple[torch.Tensor, ...]) -> None:
        """Take the snapshot."""
        self.snapshots.take(AFTER_FORWARD)

    def after_backward(self) -> None:
        """Take the snapshot."""
        self.snapshots.take(AFTER_BACKWARD)

    def after_optimizer(self) -> None:
        """Take the snapshot."""
        self.snapshots.take(AFTER_OPTIMIZER)


class ForwardSaves(PointWatch):
    """Count forward's saved tensors, with snapshots; recomputation in backward is not counted again.

    `bytes` are those alive when forward is done; with `look_for_casts` without the casts of `weights`, which are
    `cast_bytes`.
    """

    def __init__(
        self, known: Iterable[torch.Tensor], snapshots: Snapshots, weights: Iterable[torch.Tensor] = ()
    ) -> None:
        super().__init__(snapshots)
        self.known = tuple(known)
        self.weights = tuple(weights)
        self.look_for_casts = bool(self.weights)
        self.casts = StorageSet()
        self.saved: SavedTensors | None = None
        self.bytes: int | None = None
        self.cast_bytes: int | None = None

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Count inside the block."""
        casts: AbstractContextManager[Any] = nullcontext()
        self.casts = StorageSet()
        if self.look_for_casts:
            casts = weight_casts(storages(self.weights), self.casts)
        with saved_tensors(self.known, self.snapshots.device) as self.saved, casts:
            try:
                yield
            finally:
                self._count()

    def after_forward(self, roots: tuple[torch.Tensor, ...]) -> None:
        """Count the saves when only the graph and its roots live."""
        self._count()
        super().after_forward(roots)

    def _count(self) -> None:
        assert self.saved is not None
        casts = self.saved.storages.live_bytes(within=self.casts)
        self.bytes = self.saved.storages.live_bytes() - casts
        self.cast_bytes = casts if self.look_for_casts else None
