"""Define the records of experiments: predicted and measured effects of techniques on a training step."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Meta, field

from opanatomy.records.anatomy import Advice
from opanatomy.records.codec import SCHEMA, Record
from opanatomy.records.estimate import DecoderShape, Fits, Occupied
from opanatomy.records.signature import Signature
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.workload import Environment, MachineLoad, MemoryObservations, Workload

# --- gradients under float16 ---


class ScaledGradients(Record, frozen=True, kw_only=True):
    """The gradient elements of one step whose loss was multiplied by `scale` before backward.

    `zeros` are exactly zero, or absent, although finite and nonzero in the same step without autocast. `not_finite` are
    inf or NaN: with any of them, the scaler skips the update.
    """

    scale: float
    zeros: int
    not_finite: int


class Underflow(Record, frozen=True, kw_only=True):
    """Gradients of one step under float16 autocast next to those of the same step without autocast.

    Both steps have the same weights and data, no dropout and no update. `elements` is the number of elements in all
    gradients, `nonzero` the number that are finite and nonzero without autocast. `scaled` uses the loss scale that a
    run finds before its warm-up, `unscaled` a scale of 1, and `at_first_scale` the initial scale of
    `torch.amp.GradScaler`, if the run's differs.
    """

    elements: int
    nonzero: int
    scaled: ScaledGradients
    unscaled: ScaledGradients
    at_first_scale: ScaledGradients | None = None

    def share(self, gradients: ScaledGradients) -> float | None:
        """Return zeros as a share of the elements that are nonzero without autocast; `None` if there are none."""
        return gradients.zeros / self.nonzero if self.nonzero else None


# --- whether a technique leaves the training the same ---


#: Differences up to this many units of rounding come from sums in another order: a loss is a sum of few numbers, a
#: gradient of many products of many. A skipped update is some thousand units of the weights.
LOSS_UNITS, GRADIENT_UNITS, WEIGHT_UNITS = 64.0, 4096.0, 64.0


class Difference(Record, frozen=True, kw_only=True):
    """The difference in one parameter's gradient, as norms, in units of float32 rounding."""

    name: str
    units: float


class Sameness(Record, frozen=True, kw_only=True):
    """One step without dropout compared with the baseline's, from the same weights and data.

    Numbers are norms of the differences over norms of the compared values, in units of float32 rounding (2^-23).
    `first_operator` is the first operator whose result differs, if the steps differ; `not_compared` lists parameters
    that only one of the two has or trains.
    """

    loss_units: float | None
    gradient_units: float
    weight_units: float
    worst_gradient: Difference | None = None
    first_operator: str | None = None
    not_compared: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Return True if all parameters were compared and all differences are within rounding."""
        loss = self.loss_units is None or self.loss_units <= LOSS_UNITS
        values = self.gradient_units <= GRADIENT_UNITS and self.weight_units <= WEIGHT_UNITS
        return loss and values and not self.not_compared


class LossCurve(Record, frozen=True, kw_only=True):
    """The losses of some steps compared with the baseline's, on one batch, without dropout."""

    losses: tuple[float, ...]
    baseline: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.losses) != len(self.baseline):
            raise ValueError("`losses` and `baseline` have different lengths")

    @property
    def largest_difference(self) -> float:
        """Return the largest difference between two losses as a share of the baseline's."""
        pairs = zip(self.losses, self.baseline, strict=True)
        return max((abs(ours - theirs) / max(abs(theirs), 1e-30) for ours, theirs in pairs), default=0.0)


class StepFigures(Record, frozen=True, kw_only=True):
    """The numbers of one step; `None` means unknown.

    `peak_bytes` is the peak of all allocations, `components` the maximum of each component, `at_peak` the parts that
    sum to the peak. `step_ns` is the median without the profiler (for a prediction, the most likely time), `low_ns` and
    `high_ns` the range of the repetitions (or of the prediction). The other times are those of the profiled step (for a
    prediction, the parts of `step_ns`). `flops` counts tensor contractions by phase, `calls` operator calls, `tokens`
    those of all batches of a run on texts, with padding. `load` is the load of the machine while the step was timed,
    the median over the repetitions.
    """

    peak_bytes: int | None = None
    #: Its use of the named GPU.
    occupied: Occupied | None = None
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
    load: MachineLoad | None = None

    def fits(self, limit_bytes: int) -> Fits:
        """Return whether the step fits: into the named GPU, or else whether its peak is within the limit."""
        if self.occupied is not None:
            return self.occupied.fits
        return Fits.FITS if self.peak_bytes is not None and self.peak_bytes <= limit_bytes else Fits.DOES_NOT_FIT

    @property
    def most_bytes(self) -> int | None:
        """Return the step's maximum memory: that of its process on a GPU, otherwise its peak."""
        return self.peak_bytes if self.occupied is None else self.occupied.high_bytes

    @property
    def busy(self) -> bool:
        """Return True if the machine was busy while the step was timed: no time difference can be claimed then."""
        return self.load is not None and self.load.busy

    @property
    def samples_per_second(self) -> float | None:
        """Return the samples per second of the step."""
        return None if self.samples is None or not self.step_ns else self.samples / (self.step_ns / 1e9)

    @property
    def backward_ratio(self) -> float | None:
        """Return contraction FLOPs of backward, including recomputation, over forward's."""
        forward = self.flops.get(Phase.FORWARD)
        if not forward:
            return None
        return (self.flops.get(Phase.BACKWARD, 0) + self.flops.get(Phase.RECOMPUTE, 0)) / forward

    @property
    def all_flops(self) -> int | None:
        """Return FLOPs of contractions in the entire step."""
        return sum(self.flops.values()) if self.flops else None


class OperatorError(Record, frozen=True, kw_only=True):
    """An operator whose predicted and measured times per step differ widely."""

    operator: str
    phase: Phase
    predicted_ns: float
    measured_ns: float


class TechniqueRow(Record, frozen=True, kw_only=True):
    """One technique compared with the baseline, which is the first row.

    `option` is the option to add to `opanatomy profile MODEL`. `not_predicted` and `failed` say why there is no
    prediction or no measurement. `repetitions_ns` are the medians of the repetitions.
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
    #: Set for techniques that must leave the training the same, and for those that need not.
    sameness: Sameness | None = None
    losses: LossCurve | None = None
    #: Set for techniques that compute in float16 under autocast.
    underflow: Underflow | None = None
    trace: str | None = None
    report: str | None = None
    warnings: tuple[str, ...] = ()


class Repetition(Record, frozen=True, kw_only=True):
    """One timing of a run in a fresh process: its steps, and the load of the machine before and after them."""

    times_ns: tuple[int, ...]
    load: MachineLoad


class Found(Record, frozen=True, kw_only=True):
    """The result of a search for what certainly fits.

    what: `batch` or `seq` (the largest that fits), or `checkpointing` (the fewest layers of each stack to recompute).
    value: the result; 0 if none fits (for `checkpointing`, if none is needed); `None` if no choice of layers fits.
    option: the option that sets it, to add to `opanatomy profile MODEL`; `None` if none is needed or none fits.
    peak_bytes: the maximum memory that the step then takes.
    tried: the number of steps that were simulated.
    recomputed: the share of forward's FLOPs that are recomputed.
    ended_by: why no larger value can be simulated, if that ended the search.
    """

    what: str
    value: int | None
    option: str | None = None
    peak_bytes: int | None = None
    tried: int = 0
    recomputed: float | None = None
    ended_by: str | None = None


class Limit(Record, frozen=True, kw_only=True):
    """The memory that a step must fit into, as given (a size, or the name of a device) and in bytes.

    `usable_bytes` is what a device's driver leaves to programs, `device` the GPU whose calls the step makes, and
    `capability` its compute capability; they are `None` on the CPU. `assumed` lists the defaults that were assumed.
    `found` is what `--find` found.
    """

    name: str
    bytes: int
    usable_bytes: int | None = None
    device: str | None = None
    capability: tuple[int, int] | None = None
    assumed: tuple[str, ...] = ()
    found: Found | None = None

    @property
    def room_bytes(self) -> int:
        """Return how much memory a process may use: `usable_bytes`, or else all of it."""
        return self.usable_bytes or self.bytes


class Techniques(Record, frozen=True, kw_only=True, tag_field="kind", tag="techniques"):
    """An experiment: the baseline and each technique, in the order of the table.

    `order` has the names in the order in which they ran, with a comma between repetitions; `predicted_only` is true if
    only the baseline ran. With a `limit` nothing ran at all, and techniques were simulated only if the baseline does
    not fit.
    """

    opanatomy: str
    command: str
    created: str
    environment: Environment
    workload: Workload
    rows: Annotated[tuple[TechniqueRow, ...], Meta(min_length=1)]
    seed: int
    repetitions: int
    predicted_only: bool = False
    order: tuple[tuple[str, ...], ...] = ()
    folder: str | None = None
    limit: Limit | None = None
    advice: tuple[Advice, ...] = ()
    warnings: tuple[str, ...] = ()
    schema: int = SCHEMA

    @property
    def baseline(self) -> TechniqueRow:
        """Return the row that all other rows are compared with."""
        return self.rows[0]


# --- predicted time of a step ---


class Basis(str, Enum):
    """The source of the predicted time of a call, the best first."""

    SAME_CALL = "same_call"
    #: The call was timed alone on this device.
    SAMPLED = "sampled"
    SAME_OPERATOR = "same_operator"
    SAME_CLASS = "same_class"
    NOTHING = "nothing"
    #: A contraction in a data type that was not measured here: no prediction.
    UNMEASURED = "unmeasured"

    __str__ = str.__str__


class PredictedRow(Record, frozen=True, kw_only=True):
    """Similar calls of one operator in one phase: their total predicted time and FLOPs."""

    operator: str
    phase: Phase
    operator_class: OperatorClass
    calls: int
    time_ns: float
    low_ns: float
    high_ns: float
    flops: int | None
    basis: Basis


class PredictedTime(Record, frozen=True, kw_only=True):
    """The predicted wall time of a step (the most likely value and the range), and the operators that it sums.

    `framework_ns` is the time between operators.
    """

    time_ns: float
    low_ns: float
    high_ns: float
    framework_ns: float
    rows: tuple[PredictedRow, ...]

    @property
    def is_known(self) -> bool:
        """Return False if some matmuls were not measured in any run, which makes the prediction unusable."""
        return not any(row.basis is Basis.UNMEASURED for row in self.rows)


# --- simulated step: calls and memory on fake tensors ---


class SimulatedCall(Record, frozen=True, kw_only=True):
    """Identical calls of one operator in one phase of a step, with arguments in schema order."""

    operator: str
    signature: Signature
    phase: Phase
    calls: int
    #: Path of the calling module, in backward of the module whose gradient is computed; `None` if there is none.
    module: str | None = None


class SimulatedStep(Record, frozen=True, kw_only=True):
    """The calls and the memory of one step after the first on `device`, as simulated."""

    workload: Workload
    device: str
    calls: tuple[SimulatedCall, ...]
    memory: MemoryObservations
    #: Calls of a step on each batch of a run on texts; `calls` are for the profiled batch, `memory` for the longest.
    batches: tuple[tuple[SimulatedCall, ...], ...] = ()
    #: What the allocator of a GPU is asked for from the weights on, in order: an address with its bytes, 0 to free it.
    requests: tuple[tuple[int, int], ...] = ()
    #: The layers of the longest stack, 0 if the model has none.
    layers: int = 0
    #: Sizes of a text decoder; `None` for another model.
    decoder: DecoderShape | None = None
