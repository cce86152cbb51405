"""Which state the finished updates of an optimizer left, so that one that breaks halfway can be taken again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

#: What `torch.optim` and bitsandbytes call the number of updates of a parameter; a number or a tensor of one.
_COUNTER: Final = "step"


@dataclass(slots=True, kw_only=True)
class FinishedState:
    """The names of each parameter's state after the last update that ran through; no value is copied or read."""

    optimizer: torch.optim.Optimizer
    names: dict[Any, tuple[str, ...]] = field(default_factory=dict)
    #: How many updates ran through; `None` where the optimizer was not new.
    updates: int | None = 0

    def __post_init__(self) -> None:
        if self.optimizer.state:
            self.updates = None
            self._look()

    def updated(self) -> None:
        """An update ran through. What it costs is paid where it made new state: in the first, as a rule."""
        if self.updates is not None:
            self.updates += 1
        if len(self.optimizer.state) != len(self.names):
            self._look()

    def _look(self) -> None:
        self.names = {parameter: tuple(state) for parameter, state in self.optimizer.state.items()}

    def put_back(self) -> None:
        """Drop what a broken update began to make and count it back; values of moments stay as they are.

        A state with some of its entries only is taken for whole by the next update, which then misses the others.
        """
        state = self.optimizer.state
        for parameter in [*state]:
            if parameter not in self.names:
                del state[parameter]
            else:
                state[parameter] = {name: state[parameter][name] for name in self.names[parameter]}
                self._count_back(state[parameter])

    def _count_back(self, state: dict[str, Any]) -> None:
        """A parameter is updated once at most in each update."""
        if self.updates is not None and _COUNTER in state and float(state[_COUNTER]) > self.updates:
            state[_COUNTER] -= 1

    def clear(self) -> None:
        """Forget all of it."""
        self.optimizer.state.clear()
        self.names, self.updates = {}, 0
