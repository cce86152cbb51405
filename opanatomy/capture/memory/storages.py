"""Find the storages of the tensors of a model, its optimizer and its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from opanatomy.capture.device.accelerators import same_device

if TYPE_CHECKING:
    import torch

    from opanatomy.capture.step.stepper import Stepper

Tensor = TypeVar("Tensor", bound="torch.Tensor")

#: Address of a storage -> its bytes.
Storages = dict[int, int]


def storages_of(tensors: Iterable[torch.Tensor], device: str) -> Storages:
    """Return the distinct storages on `device` under `tensors` (tied weights once, wrapper subclasses unpacked)."""
    storages: Storages = {}
    for tensor in unpacked(tensors):
        if same_device(str(tensor.device), device):
            storage = tensor.untyped_storage()
            if storage.nbytes():
                storages[address_of(storage)] = storage.nbytes()
    return storages


def address_of(storage: torch.UntypedStorage) -> int:
    """Return a storage's address; without memory (meta and fake tensors) the storage object's address."""
    return storage.data_ptr() or storage._cdata


def weakly(tensors: Iterable[torch.Tensor], device: str) -> dict[int, Any]:
    """Return storage address -> a weak reference with `expired()`."""
    from torch.multiprocessing.reductions import StorageWeakRef

    reference: Any = StorageWeakRef
    references: dict[int, Any] = {}
    for tensor in unpacked(tensors):
        storage = tensor.untyped_storage()
        if same_device(str(tensor.device), device) and storage.nbytes():
            references.setdefault(address_of(storage), reference(storage))
    return references


def other_devices(module: torch.nn.Module, device: str) -> tuple[str, ...]:
    """Return the other devices on which a module has parameters or buffers."""
    devices = {str(tensor.device) for tensor in (*module.parameters(), *module.buffers())}
    return tuple(sorted(name for name in devices if not same_device(name, device)))


def on_device(tensors: Iterable[Tensor], device: str | None) -> list[Tensor]:
    """Return the tensors on `device`; all if it is `None`."""
    return [tensor for tensor in tensors if device is None or same_device(str(tensor.device), device)]


def unpacked(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the plain tensors inside wrapper subclasses, except those without storage of their own."""
    import torch

    for tensor in tensors:
        if hasattr(tensor, "__tensor_flatten__"):
            names, _ = tensor.__tensor_flatten__()
            parts = (getattr(tensor, name) for name in names)
            # A name may mean something else: a DTensor has its mesh next to its local tensor.
            yield from unpacked(part for part in parts if isinstance(part, torch.Tensor))
        elif tensor.layout is torch.strided:
            yield tensor
        elif tensor.layout is torch.sparse_coo:
            yield from (tensor._indices(), tensor._values())


def optimizer_tensors(optimizer: torch.optim.Optimizer | None) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return (per-element state, step counters): a counter is a single number per parameter."""
    state: list[torch.Tensor] = []
    counters: list[torch.Tensor] = []
    if optimizer is not None:
        for values in optimizer.state.values():
            for tensor in tensors_in(values):
                (counters if tensor.dim() == 0 else state).append(tensor)
    return state, counters


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return every tensor inside dictionaries, lists and tuples."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in tensors_in(item)]


# The holders of a step's tensors: modules, optimizers, and other leaves and inputs.


@dataclass(slots=True, kw_only=True)
class Holders:
    """The holders of a step's tensors on `device`; `other_leaves` are leaves with gradients that are not parameters."""

    device: str
    modules: tuple[torch.nn.Module, ...]
    optimizers: tuple[torch.optim.Optimizer, ...] = ()
    inputs: Any = ()
    other_leaves: tuple[torch.Tensor, ...] = ()

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters of the modules, and the other tensors that the optimizers update."""
        of_modules = (module.parameters() for module in self.modules)
        updated = (group["params"] for optimizer in self.optimizers for group in optimizer.param_groups)
        return _each_once(chain(*of_modules, *updated))

    def buffers(self) -> list[torch.Tensor]:
        """Return the buffers of the modules."""
        return _each_once(chain(*(module.buffers() for module in self.modules)))

    def gradients(self) -> list[torch.Tensor]:
        """Return the current gradients."""
        leaves = _each_once(chain(self.parameters(), self.other_leaves))
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    def input_tensors(self) -> list[torch.Tensor]:
        """Return every tensor among the inputs."""
        return tensors_in(self.inputs)

    def optimizer_tensors(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return (state of every element, step counters) of all optimizers."""
        pairs = [optimizer_tensors(optimizer) for optimizer in self.optimizers]
        return [tensor for state, _ in pairs for tensor in state], [number for _, some in pairs for number in some]


def holders_of(stepper: Stepper, module: torch.nn.Module) -> Holders:
    """Return the holders of a step that a capture runs itself."""
    return Holders(
        device=stepper.device,
        modules=(module,),
        optimizers=() if stepper.optimizer is None else (stepper.optimizer,),
        inputs=stepper.micro_batches,
        other_leaves=stepper.other_leaves,
    )


def _each_once(tensors: Iterable[Tensor]) -> list[Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())
