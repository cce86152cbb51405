"""What float16 makes of gradients: those that become zero, and those that are too large for it."""

from __future__ import annotations

from opanatomy.records.record import Record


class ScaledGradients(Record, frozen=True, kw_only=True):
    """The gradient elements of one step whose loss was multiplied by `scale` before backward.

    `zeros` are exactly zero, or not there, where those of the same step without autocast are finite and not zero.
    `not_finite` are inf or NaN: with one of them the scaler skips the update.
    """

    scale: float
    zeros: int
    not_finite: int


class Underflow(Record, frozen=True, kw_only=True):
    """Gradients of one step under float16 autocast next to those of the same step without autocast: the same weights
    and data, no dropout, no update.

    `elements` is the number of elements of all gradients, `nonzero` that of those that are finite and not zero without
    autocast. `scaled` is at the scale that a run finds before its warm-up, `unscaled` at 1, and `at_first_scale` at
    that which `torch.amp.GradScaler` begins with, where the run's is another.
    """

    elements: int
    nonzero: int
    scaled: ScaledGradients
    unscaled: ScaledGradients
    at_first_scale: ScaledGradients | None = None

    def share(self, gradients: ScaledGradients) -> float | None:
        """Zeros of the elements that are not zero without autocast; `None` where there are none of these."""
        return gradients.zeros / self.nonzero if self.nonzero else None
