"""What guides claim of techniques, next to what an experiment measured."""

from __future__ import annotations

from msgspec import field

from opanatomy.records.record import Record


class GuideClaim(Record, frozen=True, kw_only=True):
    """What a guide says: `quote` is its sentence, `figure` (to `figure_to`, where it is a range) the number in it.

    A measured figure from `low` to `high` agrees with it.
    """

    claim: str
    source: str
    quote: str
    unit: str
    figure: float
    figure_to: float | None = None
    low: float
    high: float


class GuideMeasurement(Record, frozen=True, kw_only=True):
    """What the run of `technique` came to, in the unit of the claim.

    Of bytes a parameter `parts` are the components that `measured` sums, each at its fullest, which need not be at one
    time: `at_peak` is what of them lives at the peak of the step. `reason` is why it may be another figure than the
    claimed one, where the figures tell.
    """

    technique: str
    measured: float
    parts: dict[str, float] = field(default_factory=dict)
    at_peak: float | None = None
    reason: str | None = None


class GuideRow(Record, frozen=True, kw_only=True):
    """A claim next to what was measured."""

    claim: GuideClaim
    measurement: GuideMeasurement

    @property
    def agrees(self) -> bool:
        """Whether the measured figure is what the guide says."""
        return self.claim.low <= self.measurement.measured <= self.claim.high
