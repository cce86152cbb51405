"""Find the scale of the loss before the warm-up, and report the updates skipped from then on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opanatomy.capture.step.loss_scale import FIRST, MAX_EXPONENT, LossScale
from opanatomy.records.taxonomy import Phase

if TYPE_CHECKING:
    import torch

if TYPE_CHECKING:
    import torch

    from opanatomy.capture.run.progress import Progress
    from opanatomy.capture.run.restore import SavedState
    from opanatomy.capture.step.stepper import Stepper


def scale_of(stepper: Stepper) -> float | None:
    """Return the current scale, `None` without one."""
    return None if stepper.loss_scale is None else stepper.loss_scale.now()


def prepared_loss_scale(stepper: Stepper, kept: SavedState, progress: Progress) -> list[str]:
    """Find the scale at which no gradient overflows, in steps before the warm-up that are undone; return warnings.

    It is the default scale if nothing overflows, else half of the largest power of two without overflow, which leaves a
    factor of two for later steps. Found by bisection in at most seven runs.
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
    stepper.loss_scale.start(FIRST if exponent == MAX_EXPONENT else 2.0 ** (exponent - 1))
    return []


def _largest_that_fits(
    stepper: Stepper, kept: SavedState, loss_scale: LossScale, optimizer: torch.optim.Optimizer
) -> int | None:
    def fits(exponent: int) -> bool:
        loss_scale.start(2.0**exponent)
        stepper.gradients_only()
        stepper.phase = Phase.OPTIMIZER  # tensors that the scaler cannot unscale would break the update
        overflowed = loss_scale.overflowed(optimizer)
        stepper.phase = Phase.OTHER
        stepper.free_gradients()
        kept.restore_values()
        return not overflowed

    over, under = MAX_EXPONENT, _MIN_EXPONENT
    if fits(over):
        return over
    if not fits(under):
        return None
    while over - under > 1:
        middle = (over + under) // 2
        over, under = (over, middle) if fits(middle) else (middle, under)
    return under


def skipped_updates(stepper: Stepper, before: float | None, updates: int, kind: str) -> list[str]:
    """Warn if updates were skipped in the steps since the scale was `before`."""
    if before is None or stepper.loss_scale is None or stepper.optimizer is None:
        return []
    skipped = stepper.loss_scale.skipped_since(before, updates)
    if not skipped:
        return []
    return [
        f"{skipped} of {updates} {kind} steps skipped the update because float16 gradients overflowed at a loss"
        f" scale of {before:,g}; their optimizer phase shows no update"
    ]


_MIN_EXPONENT: Final = -16


#: The warnings about the gradients of a run.
_HOPELESS: Final = (
    "gradients are not finite in float16 at any loss scale from 65,536 down to 2^-16, so every update is skipped"
)


_UNSCALED: Final = (
    "the loss is not scaled, because torch's GradScaler does not support float16 weights, so gradients and updates may"
    " underflow or overflow"
)
