"""The scale of the loss under float16: found before the warm-up, watched from then on."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

#: `torch.amp.GradScaler`'s own first scale, and the smallest one that is tried.
FIRST: Final = 2.0**16
LEAST: Final = 2.0**-16
#: So many updates without an overflow before it would grow, which makes a later step overflow: never in a profile.
_NEVER: Final = 2**31 - 1

#: What a run says of its gradients.
HOPELESS: Final = (
    "gradients are inf or NaN in float16 at every loss scale from 65,536 down to 2^-16: each update is skipped"
)
UNSCALED: Final = (
    "the weights are float16: torch's GradScaler refuses to unscale their gradients, so the loss is not scaled, and"
    " gradients and updates may under- or overflow"
)


@dataclass(slots=True, kw_only=True)
class LossScale:
    """A `GradScaler` whose scale never grows; each update that it skips halves it."""

    device: str
    first: float = FIRST
    #: Gradients overflow at every scale that was tried.
    hopeless: bool = False
    scaler: Any = field(init=False)

    def __post_init__(self) -> None:
        self.start(self.first)

    def start(self, scale: float) -> None:
        """Begin anew with `scale`; a scaler that a broken step leaves takes its gradients for unscaled."""
        import torch

        self.first = scale
        self.scaler = torch.amp.GradScaler(self.device.split(":")[0], init_scale=scale, growth_interval=_NEVER)

    def start_again(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Forget a step that broke, and what it left at a fused optimizer, which would be applied once more."""
        self.start(self.now())
        for name in ("grad_scale", "found_inf"):
            with suppress(AttributeError):
                delattr(optimizer, name)

    def scaled(self, roots: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """What backward starts from, times the scale."""
        return tuple(self.scaler.scale(root) for root in roots)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Step the optimizer, unless a gradient is inf or NaN."""
        self.scaler.step(optimizer)
        self.scaler.update()

    def overflowed(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether a gradient is inf or NaN, as the scaler itself judges; it is unscaled by that."""
        self.scaler.unscale_(optimizer)
        return any(found.item() for found in self.scaler._found_inf_per_device(optimizer).values())

    def now(self) -> float:
        """The scale in force; on an accelerator this waits for it, so not within a profile."""
        return float(self.scaler.get_scale())

    def skipped_since(self, scale: float, updates: int) -> int:
        """How many of `updates` were skipped since the scale was `scale`: each of them halved it."""
        now = self.now()
        return updates if now <= 0 or scale <= 0 else min(round(math.log2(scale / now)), updates)


def find_loss_scale(
    loss_scale: LossScale, optimizer: torch.optim.Optimizer, gradients: Callable[[], None], put_back: Callable[[], None]
) -> None:
    """Begin with the default scale where no gradient of a first step overflows at it, else with the half of the largest
    power of two at which none does: a factor of two to spare for the steps that follow.

    `gradients` runs forward and backward, `put_back` undoes what they change. By bisection, in at most seven runs.
    """

    def fits(exponent: int) -> bool:
        loss_scale.start(2.0**exponent)
        gradients()
        try:
            return not loss_scale.overflowed(optimizer)
        finally:
            put_back()

    over, under = round(math.log2(FIRST)), round(math.log2(LEAST))
    if fits(over):
        loss_scale.start(FIRST)
        return
    loss_scale.hopeless = not fits(under)
    while not loss_scale.hopeless and over - under > 1:
        middle = (over + under) // 2
        if fits(middle):
            under = middle
        else:
            over = middle
    loss_scale.start(FIRST if loss_scale.hopeless else 2.0 ** (under - 1))
