"""Which state an optimizer had before a step, so that one that breaks halfway can be taken again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

#: What `torch.optim` and bitsandbytes call the number of updates of a parameter; a number or a tensor of one.
_COUNTER: Final = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBefore:
    """The state of each parameter that had one, by reference: no value is copied, no operator is called."""

    optimizer: torch.optim.Optimizer
    held: dict[Any, dict[str, Any]]
    #: How often the counter of each parameter had been written.
    versions: dict[Any, int]

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer) -> StateBefore:
        """The state as it is."""
        held = {parameter: dict(state) for parameter, state in optimizer.state.items() if isinstance(state, dict)}
        counters: dict[Any, Any] = {parameter: state.get(_COUNTER) for parameter, state in held.items()}
        versions = {parameter: one._version for parameter, one in counters.items() if hasattr(one, "_version")}
        return cls(optimizer=optimizer, held=held, versions=versions)

    def put_back(self) -> None:
        """Drop what the step has begun to make and count its updates back; values of moments stay as they are.

        A state with some of its entries only is taken for whole by the next step, which then misses the others.
        """
        state = self.optimizer.state
        for parameter in [*state]:
            if parameter not in self.held:
                del state[parameter]
        for parameter, before in self.held.items():
            state[parameter] = before
            version = self.versions.get(parameter)
            if version is not None and before[_COUNTER]._version != version:
                before[_COUNTER].sub_(1)
