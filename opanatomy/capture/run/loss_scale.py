"""The scale of the loss under float16: found before the warm-up, watched from then on."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from opanatomy.capture.device.accelerators import kind_of
from opanatomy.records.taxonomy import Phase

if TYPE_CHECKING:
    import torch

    from opanatomy.capture.run.progress import Progress
    from opanatomy.capture.run.restore import Kept
    from opanatomy.capture.run.stepper import Stepper

#: `torch.amp.GradScaler`'s own first scale and the smallest one that is tried, as powers of two.
_MAX_EXPONENT: Final = 16
_MIN_EXPONENT: Final = -16
FIRST: Final = 2.0**_MAX_EXPONENT
#: This many updates without an overflow before it would grow, which makes a later step overflow: never in a profile.
_NEVER: Final = 2**31 - 1

#: What a run says of its gradients.
_HOPELESS: Final = (
    "gradients are not finite in float16 at any loss scale from 65,536 down to 2^-16: each update is skipped"
)
_UNSCALED: Final = (
    "the weights are float16: torch's GradScaler refuses to unscale their gradients, so the loss is not scaled, and"
    " gradients and updates may under- or overflow"
)


@dataclass(slots=True, kw_only=True)
class LossScale:
    """A `GradScaler` whose scale never grows; each update that it skips halves it."""

    device: str
    first: float = FIRST
    scaler: Any = field(init=False)

    def __post_init__(self) -> None:
        self.start(self.first)

    def start(self, scale: float) -> None:
        """Begin anew with `scale`; a scaler that a broken step leaves takes its gradients for unscaled."""
        import torch

        self.first = scale
        self.scaler = torch.amp.GradScaler(kind_of(self.device), init_scale=scale, growth_interval=_NEVER)

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
        return any(flag.item() for flag in self.scaler._found_inf_per_device(optimizer).values())

    def now(self) -> float:
        """The scale in force; on an accelerator this waits for it, so not within a profile."""
        return float(self.scaler.get_scale())

    def skipped_since(self, scale: float, updates: int) -> int:
        """How many of `updates` were skipped since the scale was `scale`: each of them halved it."""
        now = self.now()
        return updates if now <= 0 or scale <= 0 else min(round(math.log2(scale / now)), updates)


def scale_of(stepper: Stepper) -> float | None:
    """The scale in force, `None` without one."""
    return None if stepper.loss_scale is None else stepper.loss_scale.now()


def prepared_loss_scale(stepper: Stepper, kept: Kept, progress: Progress) -> list[str]:
    """Find the scale at which no gradient overflows, in steps before the warm-up that are undone; what to warn of.

    It is the default one where nothing overflows at it, else the half of the largest power of two at which nothing
    does: a factor of two to spare for the steps that follow. By bisection, in at most seven runs.
    """
    optimizer = stepper.optimizer
    if optimizer is None or stepper.inference:
        return []
    if stepper.has_float16_gradients:
        return [_UNSCALED]
    if stepper.loss_scale is None:
        return []
    progress.stage("finding the loss scale")
    exponent = _largest_that_fits(stepper, kept, stepper.loss_scale, optimizer)
    if exponent is None:
        stepper.loss_scale.start(FIRST)
        return [_HOPELESS]
    stepper.loss_scale.start(FIRST if exponent == _MAX_EXPONENT else 2.0 ** (exponent - 1))
    return []


def _largest_that_fits(
    stepper: Stepper, kept: Kept, loss_scale: LossScale, optimizer: torch.optim.Optimizer
) -> int | None:
    def fits(exponent: int) -> bool:
        loss_scale.start(2.0**exponent)
        stepper.gradients_only()
        stepper.phase = Phase.OPTIMIZER  # what the scaler cannot unscale would break the update
        overflowed = loss_scale.overflowed(optimizer)
        stepper.phase = Phase.OTHER
        stepper.free_gradients()
        kept.put_back_values()
        return not overflowed

    over, under = _MAX_EXPONENT, _MIN_EXPONENT
    if fits(over):
        return over
    if not fits(under):
        return None
    while over - under > 1:
        middle = (over + under) // 2
        over, under = (over, middle) if fits(middle) else (middle, under)
    return under


def skipped_updates(stepper: Stepper, before: float | None, updates: int, kind: str) -> list[str]:
    """A warning where updates were skipped in the steps since the scale was `before`."""
    if before is None or stepper.loss_scale is None or stepper.optimizer is None:
        return []
    skipped = stepper.loss_scale.skipped_since(before, updates)
    if not skipped:
        return []
    return [
        f"{skipped} of {updates} {kind} steps skipped the update: float16 gradients overflowed at a loss scale of"
        f" {before:,g}; what their optimizer phase shows is no update"
    ]
