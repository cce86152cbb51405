"""Who holds the tensors of a step: modules, optimizers, and the leaves and inputs besides them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from opanatomy.capture.memory.storages import Tensor, optimizer_tensors, tensors_in

if TYPE_CHECKING:
    import torch

    from opanatomy.capture.step.stepper import Stepper


@dataclass(slots=True, kw_only=True)
class Holders:
    """What holds the tensors of a step on `device`; `other_leaves` have gradients that are no parameter's."""

    device: str
    modules: tuple[torch.nn.Module, ...]
    optimizers: tuple[torch.optim.Optimizer, ...] = ()
    inputs: Any = ()
    other_leaves: tuple[torch.Tensor, ...] = ()

    def parameters(self) -> list[torch.Tensor]:
        """The parameters of the modules, and what the optimizers update besides."""
        of_modules = (module.parameters() for module in self.modules)
        updated = (group["params"] for optimizer in self.optimizers for group in optimizer.param_groups)
        return _each_once(chain(*of_modules, *updated))

    def buffers(self) -> list[torch.Tensor]:
        """The buffers of the modules."""
        return _each_once(chain(*(module.buffers() for module in self.modules)))

    def gradients(self) -> list[torch.Tensor]:
        """The gradients that are there now."""
        leaves = _each_once(chain(self.parameters(), self.other_leaves))
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    def input_tensors(self) -> list[torch.Tensor]:
        """Every tensor among the inputs."""
        return tensors_in(self.inputs)

    def optimizer_tensors(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """(state of every element, step counters) of all optimizers."""
        pairs = [optimizer_tensors(optimizer) for optimizer in self.optimizers]
        return [tensor for state, _ in pairs for tensor in state], [number for _, some in pairs for number in some]


def holders_of(stepper: Stepper, module: torch.nn.Module) -> Holders:
    """The holders of a step that a capture runs itself."""
    return Holders(
        device=stepper.device,
        modules=(module,),
        optimizers=() if stepper.optimizer is None else (stepper.optimizer,),
        inputs=stepper.micro_batches,
        other_leaves=stepper.other_leaves,
    )


def _each_once(tensors: Iterable[Tensor]) -> list[Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())
