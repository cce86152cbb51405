"""Whether a technique leaves the training the same."""

from __future__ import annotations

from opanatomy.records.record import Record

#: Differences up to this many units of rounding are those of sums in another order: a loss is a sum of few numbers, a
#: gradient of many products of many. An update that is left out is some thousand units of the weights.
LOSS_UNITS, GRADIENT_UNITS, WEIGHT_UNITS = 64.0, 4096.0, 64.0


class Difference(Record, frozen=True, kw_only=True):
    """How far one parameter's gradient is off, as norms, in units of rounding of float32."""

    name: str
    units: float


class Sameness(Record, frozen=True, kw_only=True):
    """One step without dropout against the baseline's, from the same weights and data: norms of the differences over
    norms of what they are of, in units of rounding of float32 (2^-23).

    `first_operator` is the first whose result is another one, where the step is not the same; `not_compared` are
    parameters that only one of the two has or trains.
    """

    loss_units: float | None
    gradient_units: float
    weight_units: float
    worst_gradient: Difference | None = None
    first_operator: str | None = None
    not_compared: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether all parameters were compared, and all differences are those of rounding."""
        loss = self.loss_units is None or self.loss_units <= LOSS_UNITS
        values = self.gradient_units <= GRADIENT_UNITS and self.weight_units <= WEIGHT_UNITS
        return loss and values and not self.not_compared


class LossCurve(Record, frozen=True, kw_only=True):
    """The losses of some steps compared with the baseline's, on one batch, without dropout."""

    losses: tuple[float, ...]
    baseline: tuple[float, ...]

    @property
    def largest_difference(self) -> float:
        """The largest difference of two losses over the baseline's, as a share."""
        pairs = zip(self.losses, self.baseline, strict=True)
        return max((abs(ours - theirs) / max(abs(theirs), 1e-30) for ours, theirs in pairs), default=0.0)
