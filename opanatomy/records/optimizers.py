"""The optimizers that a step can be taken with: one table of their names, their state and what they need."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct, field


class Optimizer(Struct, frozen=True, kw_only=True):
    """An optimizer by the name of the option.

    `state_copies` of a parameter's size, in its data type, are kept for it; `state_bytes_per_parameter` is the state
    of one whose state has its own. `update_copies` live during an update besides (the intermediates of the foreach
    form: torch's documentation of `foreach`). `factored` state (Adafactor) is a row and a column of each matrix.
    """

    name: str
    label: str
    #: The class in `torch.optim`, or in `package`.
    torch_class: str
    arguments: dict[str, Any] = field(default_factory=dict)
    state_copies: int = 0
    state_bytes_per_parameter: float | None = None
    update_copies: int = 0
    factored: bool = False
    #: The package that has it where that is not torch, and the extra of ours that installs it.
    package: str | None = None
    #: What others call the same: transformers' `OptimizerNames`.
    aliases: tuple[str, ...] = ()

    def state_bytes(self, item_bytes: int) -> float:
        """Bytes of state for each trained parameter of so many bytes, factored rows and columns apart."""
        if self.state_bytes_per_parameter is not None:
            return self.state_bytes_per_parameter
        return self.state_copies * item_bytes

    def update_bytes(self, item_bytes: int) -> float:
        """The most that an update needs for each trained parameter: its state, and what lives only while it runs."""
        return self.state_bytes(item_bytes) + self.update_copies * item_bytes


#: The first is the default of transformers' Trainer. Block-wise 8-bit states: two bytes, and two scales of four bytes
#: for each block of 256 (Dettmers et al., arXiv 2110.02861; bitsandbytes).
OPTIMIZERS: Final = (
    Optimizer(
        name="adamw", label="AdamW", torch_class="AdamW", arguments={"lr": 1e-5, "fused": True}, state_copies=2,
        aliases=("adamw_torch_fused",),
    ),
    Optimizer(
        name="adamw-foreach", label="AdamW, foreach", torch_class="AdamW", arguments={"lr": 1e-5, "foreach": True},
        state_copies=2, update_copies=1,
    ),
    Optimizer(
        name="adamw-loop", label="AdamW, a loop", torch_class="AdamW", arguments={"lr": 1e-5, "foreach": False},
        state_copies=2,
    ),
    Optimizer(
        name="adamw8bit", label="8-bit AdamW", torch_class="AdamW8bit", arguments={"lr": 1e-5},
        state_bytes_per_parameter=2 + 2 * 4 / 256, package="bitsandbytes", aliases=("adamw_bnb_8bit",),
    ),
    Optimizer(name="adam", label="Adam", torch_class="Adam", arguments={"lr": 1e-5, "fused": True}, state_copies=2),
    Optimizer(
        name="sgd", label="SGD with momentum", torch_class="SGD", arguments={"lr": 1e-3, "momentum": 0.9},
        state_copies=1,
    ),
    Optimizer(name="adafactor", label="Adafactor", torch_class="Adafactor", factored=True),
)  # fmt: skip

#: By the name of the option.
BY_NAME: Final = {optimizer.name: optimizer for optimizer in OPTIMIZERS}
