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
    #: State of its own is kept for the weights of embeddings in 32 bits, two copies of it, as for small tensors.
    full_embeddings: bool = False
    #: Whether its update is compiled by `torch.compile`, in the first step.
    compiled: bool = False
    #: The package that has it where that is not torch, and the extra of ours that installs it.
    package: str | None = None
    #: What others call the same: transformers' `OptimizerNames`.
    aliases: tuple[str, ...] = ()

    def state_bytes(self, item_bytes: int) -> float:
        """Bytes of state for each trained parameter of that many bytes, factored rows and columns apart."""
        if self.state_bytes_per_parameter is not None:
            return self.state_bytes_per_parameter
        return self.state_copies * item_bytes

    def full_parameters(self, small: int, embeddings: int) -> int:
        """The parameters whose state is kept in 32 bits, of `small` ones and those of `embeddings`, where the others
        have state of few bits."""
        if self.state_bytes_per_parameter is None:
            return 0
        return small + (embeddings if self.full_embeddings else 0)

    def update_bytes(self, item_bytes: int) -> float:
        """The most that an update needs for each trained parameter: its state, and what lives only while it runs."""
        return self.state_bytes(item_bytes) + self.update_copies * item_bytes


#: Bytes of a parameter's AdamW state in 32 bits; optimizers with 8-bit state keep that of a tensor of fewer elements
#: than `SMALL` so (bitsandbytes' `min_8bit_size`, torchao's `_new_buffer`).
FULL_STATE_BYTES: Final = 8
SMALL: Final = 4096

#: Block-wise 8-bit states: two bytes, and two scales of four bytes for each block of 256 (Dettmers et al., arXiv
#: 2110.02861; bitsandbytes, torchao).
_EIGHT_BITS: Final = 2 + 2 * 4 / 256

#: The first is the default of transformers' Trainer.
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
        state_bytes_per_parameter=_EIGHT_BITS, package="bitsandbytes", aliases=("adamw_bnb_8bit",),
    ),
    Optimizer(
        name="adamw8bit-embeddings32", label="8-bit AdamW, embeddings at 32 bits", torch_class="AdamW8bit",
        arguments={"lr": 1e-5}, state_bytes_per_parameter=_EIGHT_BITS, full_embeddings=True, package="bitsandbytes",
    ),
    Optimizer(
        name="adamw8bit-torchao", label="8-bit AdamW of torchao", torch_class="AdamW8bit", arguments={"lr": 1e-5},
        state_bytes_per_parameter=_EIGHT_BITS, package="torchao", compiled=True,
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
