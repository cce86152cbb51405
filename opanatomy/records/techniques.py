"""What techniques change of a training step: predicted, measured, and how far the two are apart."""

from __future__ import annotations

from msgspec import field

from opanatomy.records.guides import GuideRow
from opanatomy.records.record import Record
from opanatomy.records.sameness import LossCurve, Sameness
from opanatomy.records.taxonomy import Phase
from opanatomy.records.underflow import Underflow
from opanatomy.records.workload import Environment, Workload

TECHNIQUES_SCHEMA = 1


class StepFigures(Record, frozen=True, kw_only=True):
    """The figures of one step; `None` where one is not known.

    `peak_bytes` is that of all allocations, `components` are each at its fullest, `at_peak` sum to the peak. `step_ns`
    is the median without the profiler (of a prediction the most likely time), `low_ns` and `high_ns` the range of the
    repetitions (of the prediction). The other times are those of the profiled step, of a prediction the parts of
    `step_ns`. `flops` are those of tensor contractions by phase, `calls` those of operators. `tokens` are those of all
    batches that the texts of a run make, with padding.
    """

    peak_bytes: int | None = None
    components: dict[str, int] = field(default_factory=dict)
    at_peak: dict[str, int] = field(default_factory=dict)
    step_ns: float | None = None
    low_ns: float | None = None
    high_ns: float | None = None
    samples: int | None = None
    class_ns: dict[str, float] = field(default_factory=dict)
    phase_ns: dict[str, float] = field(default_factory=dict)
    flops: dict[str, int] = field(default_factory=dict)
    parameters: int | None = None
    trainable_parameters: int | None = None
    tokens: int | None = None

    @property
    def samples_per_second(self) -> float | None:
        """Samples of the batch over the time of the step."""
        return None if self.samples is None or not self.step_ns else self.samples / (self.step_ns / 1e9)

    @property
    def backward_ratio(self) -> float | None:
        """FLOPs of contractions in backward, recomputation included, over those of forward."""
        forward = self.flops.get(Phase.FORWARD)
        if not forward:
            return None
        return (self.flops.get(Phase.BACKWARD, 0) + self.flops.get(Phase.RECOMPUTE, 0)) / forward

    @property
    def all_flops(self) -> int | None:
        """FLOPs of contractions in the whole step."""
        return sum(self.flops.values()) if self.flops else None


class OperatorError(Record, frozen=True, kw_only=True):
    """An operator whose predicted and measured time, over the step, are far apart."""

    operator: str
    phase: Phase
    predicted_ns: float
    measured_ns: float


class TechniqueRow(Record, frozen=True, kw_only=True):
    """One technique compared with the baseline, which is the first row.

    `option` is what to add to `opanatomy profile MODEL`. `not_predicted` and `failed` say why there is no prediction
    or no measurement. `repetitions_ns` are the medians of the repetitions.
    """

    name: str
    title: str
    option: str
    keeps_result: bool
    predicted: StepFigures | None = None
    not_predicted: str | None = None
    measured: StepFigures | None = None
    failed: str | None = None
    repetitions_ns: tuple[float, ...] = ()
    offenders: tuple[OperatorError, ...] = ()
    #: Of techniques that must leave the training the same, and of those that need not.
    sameness: Sameness | None = None
    losses: LossCurve | None = None
    #: Of those that compute in float16 under autocast.
    underflow: Underflow | None = None
    trace: str | None = None
    report: str | None = None
    warnings: tuple[str, ...] = ()


class Techniques(Record, frozen=True, kw_only=True):
    """An experiment: the baseline and each technique, in the order of the table.

    `order` has the names in the order in which they ran, with a comma between repetitions; `predicted_only` where
    nothing ran but the baseline.
    """

    opanatomy: str
    command: str
    created: str
    environment: Environment
    workload: Workload
    rows: tuple[TechniqueRow, ...]
    seed: int
    repetitions: int
    predicted_only: bool = False
    order: tuple[tuple[str, ...], ...] = ()
    folder: str | None = None
    advice: tuple[str, ...] = ()
    guides: tuple[GuideRow, ...] = ()
    warnings: tuple[str, ...] = ()
    schema: int = TECHNIQUES_SCHEMA

    @property
    def baseline(self) -> TechniqueRow:
        """What all others are compared with."""
        return self.rows[0]
