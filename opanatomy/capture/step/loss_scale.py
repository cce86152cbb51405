"""Scale the loss under float16: the scale is found before the warm-up, watched from then on."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from opanatomy.capture.device.accelerators import kind_of

if TYPE_CHECKING:
    import torch

#: `torch.amp.GradScaler`'s own first scale and the smallest one tried, as powers of two.
MAX_EXPONENT: Final = 16
FIRST: Final = 2.0**MAX_EXPONENT
#: Number of updates without overflow before the scale would grow: never, since growth makes a later step overflow.
_NEVER: Final = 2**31 - 1


@dataclass(slots=True, kw_only=True)
class LossScale:
    """A `GradScaler` whose scale never grows; each update that it skips halves it."""

    device: str
    first: float = FIRST
    scaler: Any = field(init=False)

    def __post_init__(self) -> None:
        self.start(self.first)

    def start(self, scale: float) -> None:
        """Restart with `scale`; a scaler left by a broken step would skip unscaling its gradients."""
        import torch

        self.first = scale
        self.scaler = torch.amp.GradScaler(kind_of(self.device), init_scale=scale, growth_interval=_NEVER)

    def start_again(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Forget a step that broke, and its leftovers at a fused optimizer, which would be applied once more."""
        self.start(self.now())
        for name in ("grad_scale", "found_inf"):
            with suppress(AttributeError):
                delattr(optimizer, name)

    def scaled(self, roots: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Return the tensors that backward starts from, times the scale."""
        return tuple(self.scaler.scale(root) for root in roots)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Step the optimizer, unless a gradient is inf or NaN."""
        self.scaler.step(optimizer)
        self.scaler.update()

    def overflowed(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether a gradient is inf or NaN, by the scaler's own check, which unscales it."""
        self.scaler.unscale_(optimizer)
        return any(flag.item() for flag in self.scaler._found_inf_per_device(optimizer).values())

    def now(self) -> float:
        """Return the current scale; on an accelerator this waits for it, so do not call it within a profile."""
        return float(self.scaler.get_scale())

    def skipped_since(self, scale: float, updates: int) -> int:
        """Return how many of `updates` were skipped since the scale was `scale`: each of them halved it."""
        now = self.now()
        return updates if now <= 0 or scale <= 0 else min(round(math.log2(scale / now)), updates)
