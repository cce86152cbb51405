"""What guides claim of techniques, and the figure of an experiment that each claim is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.memory.components import GRADIENTS, OPTIMIZER_STATE, WEIGHT_CASTS, WEIGHTS
from opanatomy.records.comparison import within_noise
from opanatomy.records.guides import GuideClaim, GuideMeasurement, GuideRow
from opanatomy.records.optimizers import BY_NAME, FULL_STATE_BYTES, SMALL
from opanatomy.records.techniques import StepFigures
from opanatomy.run_options import RunOptions

_ANATOMY: Final = "Hugging Face, Model training anatomy"
_SINGLE_GPU: Final = "Hugging Face, Methods and tools for efficient training on a single GPU"
_APPROACHES: Final = "V. Irtlach, Optimization approaches for Transformers"
_BYTES: Final = "bytes a parameter"
#: Bytes of an element that autocast casts to, and of a weight of which it keeps one.
_HALF, _FULL = 2, 4


class MeasuredRun(Struct, frozen=True, kw_only=True):
    """A run of an experiment that was measured."""

    name: str
    options: RunOptions
    figures: StepFigures


#: Of the runs, the baseline first, the figure that a claim is compared with; `None` where none of them has one.
_Measure: TypeAlias = Callable[[Sequence[MeasuredRun]], GuideMeasurement | None]


def guide_rows(runs: Sequence[MeasuredRun]) -> Iterator[GuideRow]:
    """Each claim of which one of the runs, the baseline first, has a figure; those that disagree with the reason."""
    for claim, measure in _CLAIMS:
        measurement = measure(runs)
        if measurement is not None:
            row = GuideRow(claim=claim, measurement=measurement)
            yield replace(row, measurement=replace(measurement, reason=None)) if row.agrees else row


# ------------------------------------------------------------------------------------------------- bytes a parameter


def _mixed_training(runs: Sequence[MeasuredRun]) -> GuideMeasurement | None:
    """All that mixed precision keeps of each parameter, where all are trained with both moments of AdamW."""
    run = next((run for run in runs if _trains_all_with_amp(run)), None)
    return None if run is None else _per_parameter(run, (WEIGHTS, WEIGHT_CASTS, GRADIENTS, OPTIMIZER_STATE))


def _trains_all_with_amp(run: MeasuredRun) -> bool:
    options, figures = run.options, run.figures
    whole = figures.trainable_parameters == figures.parameters
    two_moments = options.optimizer is not None and BY_NAME[options.optimizer].state_copies == 2
    plain = options.dtype == "float32" and options.checkpointing is None and not _forward_only(options)
    return bool(options.amp and two_moments and whole and plain)


def _mixed_inference(runs: Sequence[MeasuredRun]) -> GuideMeasurement | None:
    """The weights and their casts, where nothing is trained."""
    for run in runs:
        if run.options.amp and run.options.dtype == "float32" and run.options.inference:
            return _per_parameter(run, (WEIGHTS, WEIGHT_CASTS))
    return None


def _forward_only(options: RunOptions) -> bool:
    return options.inference or options.generate is not None


def _per_parameter(run: MeasuredRun, components: Sequence[str]) -> GuideMeasurement | None:
    """The bytes of these components for each parameter."""
    figures = run.figures
    if not figures.parameters or WEIGHTS not in figures.components:
        return None
    # What forward frees again is 0 when it is done: at the peak there may be more.
    fullest = {name: max(figures.components.get(name, 0), figures.at_peak.get(name, 0)) for name in components}
    parts = {name: size / figures.parameters for name, size in fullest.items()}
    at_peak = sum(figures.at_peak.get(name, 0) for name in components) / figures.parameters
    return GuideMeasurement(
        technique=run.name, measured=sum(parts.values()), parts=parts, at_peak=at_peak if figures.at_peak else None,
        reason=_few_casts(parts[WEIGHT_CASTS]) + _no_gradients_yet(figures),
    )  # fmt: skip


def _no_gradients_yet(figures: StepFigures) -> str:
    """What is to be added where the step is fullest before backward has made the gradients."""
    gradients, at_peak = figures.components.get(GRADIENTS, 0), figures.at_peak.get(GRADIENTS, 0)
    if not figures.at_peak or at_peak > gradients / 2:
        return ""
    return f"; at the peak {at_peak / gradients:.0%} of the gradients are there" if gradients else ""


def _few_casts(cast_bytes: float) -> str:
    """Why the casts of the weights are no second copy of all of them."""
    share = cast_bytes / _HALF
    if not share:
        return f"no cast of a weight was seen: without one it is {_FULL} bytes of weights, not {_FULL + _HALF}"
    return (
        f"autocast had cast {share:.0%} of the parameters ({cast_bytes:.2f} bytes, not {_HALF}), those that products"
        " read, and frees the casts when the step no longer needs them"
    )


def _state_of(*optimizers: str) -> _Measure:
    def measure(runs: Sequence[MeasuredRun]) -> GuideMeasurement | None:
        run = next((run for run in runs if run.options.optimizer in optimizers), None)
        if run is None or not run.figures.trainable_parameters or OPTIMIZER_STATE not in run.figures.components:
            return None
        state = run.figures.components[OPTIMIZER_STATE] / run.figures.trainable_parameters
        return GuideMeasurement(
            technique=run.name, measured=state, parts={OPTIMIZER_STATE: state}, reason=_other_state(run, state)
        )  # fmt: skip

    return measure


def _other_state(run: MeasuredRun, state: float) -> str | None:
    """Why the state of an optimizer is not what is said of it."""
    optimizer = BY_NAME[run.options.optimizer or ""]
    if optimizer.factored:
        return "it keeps a row and a column of each matrix, and no first moment, which would be 4 bytes"
    few = optimizer.state_bytes_per_parameter
    if few is not None and few < state < FULL_STATE_BYTES:
        share = (state - few) / (FULL_STATE_BYTES - few)
        return f"that of {share:.0%} of the parameters, in tensors of fewer than {SMALL:,} elements, stays in 32 bits"
    return None


# --------------------------------------------------------------------------------------------------------------- time


def _checkpointing(runs: Sequence[MeasuredRun]) -> GuideMeasurement | None:
    """How much longer the step with checkpointing takes, in percent."""
    baseline = runs[0]
    if baseline.options.checkpointing is not None:
        return None
    for run in runs[1:]:
        alone = run.options == replace(baseline.options, checkpointing=run.options.checkpointing)
        if run.options.checkpointing is not None and alone and run.figures.step_ns and baseline.figures.step_ns:
            change = 100 * (run.figures.step_ns / baseline.figures.step_ns - 1)
            return GuideMeasurement(technique=run.name, measured=change, reason=_recomputed(run, baseline))
    return None


def _recomputed(run: MeasuredRun, baseline: MeasuredRun) -> str | None:
    if within_noise(run.figures, baseline.figures):
        return "the ranges of the repetitions overlap"
    ours, theirs = run.figures.all_flops, baseline.figures.all_flops
    return f"forward runs again: {ours / theirs - 1:+.0%} FLOPs" if ours and theirs else None


def _dynamic_padding(runs: Sequence[MeasuredRun]) -> GuideMeasurement | None:
    """How many more samples a second there are with each batch padded to its longest text, in percent."""
    for run in runs:
        if run.options.texts is None or run.options.padding != "longest":
            continue
        fixed = next((other for other in runs if _padded_to_one_length(other, run)), None)
        ours = run.figures.samples_per_second
        theirs = None if fixed is None else fixed.figures.samples_per_second
        if fixed is not None and ours and theirs:
            change = 100 * (ours / theirs - 1)
            return GuideMeasurement(technique=run.name, measured=change, reason=_fewer_tokens(run, fixed))
    return None


def _padded_to_one_length(run: MeasuredRun, like: MeasuredRun) -> bool:
    return run.options.padding in (None, "max-length") and replace(run.options, padding="longest") == like.options


def _fewer_tokens(run: MeasuredRun, fixed: MeasuredRun) -> str | None:
    if within_noise(run.figures, fixed.figures):
        return "the ranges of the repetitions overlap"
    ours, theirs = run.figures.tokens, fixed.figures.tokens
    if not ours or not theirs:
        return None
    return f"of these texts {theirs:,} tokens with padding become {ours:,}, by a factor of {theirs / ours:.2f}"


def _backward(runs: Sequence[MeasuredRun]) -> GuideMeasurement | None:
    """FLOPs of backward over those of forward, of the step as it is."""
    baseline, ratio = runs[0], runs[0].figures.backward_ratio
    if _forward_only(baseline.options) or ratio is None:
        return None
    return GuideMeasurement(technique=baseline.name, measured=ratio, reason=_not_twice(baseline))


def _not_twice(run: MeasuredRun) -> str | None:
    figures = run.figures
    if run.options.checkpointing is not None:
        return "forward runs again in it"
    if figures.parameters and figures.trainable_parameters != figures.parameters:
        return f"{(figures.trainable_parameters or 0) / figures.parameters:.0%} of the parameters are trained"
    return None


# ------------------------------------------------------------------------------------------------------------- claims

_CLAIMS: Final[tuple[tuple[GuideClaim, _Measure], ...]] = (
    (
        GuideClaim(
            claim="mixed precision training, AdamW", source=_ANATOMY, unit=_BYTES, figure=18, low=17.5, high=18.5,
            quote="A typical model trained in mixed precision with AdamW requires 18 bytes per model parameter plus"
            " activation memory.",
        ),
        _mixed_training,
    ),
    (
        GuideClaim(
            claim="mixed precision inference", source=_ANATOMY, unit=_BYTES, figure=6, low=5.5, high=6.5,
            quote="we end up with 6 bytes per model parameter for mixed precision inference, plus activation memory.",
        ),
        _mixed_inference,
    ),
    (
        GuideClaim(
            claim="state of AdamW", source=_ANATOMY, unit=_BYTES, figure=8, low=7.5, high=8.5,
            quote="8 bytes * number of parameters for normal AdamW (maintains 2 states)",
        ),
        _state_of("adamw", "adamw-foreach", "adamw-loop"),
    ),
    (
        GuideClaim(
            claim="state of 8-bit AdamW", source=_ANATOMY, unit=_BYTES, figure=2, low=1.5, high=2.5,
            quote="2 bytes * number of parameters for 8-bit AdamW optimizers like bitsandbytes",
        ),
        _state_of("adamw8bit", "adamw8bit-torchao"),
    ),
    (
        GuideClaim(
            claim="state of SGD with momentum", source=_ANATOMY, unit=_BYTES, figure=4, low=3.5, high=4.5,
            quote="4 bytes * number of parameters for optimizers like SGD with momentum (maintains only 1 state)",
        ),
        _state_of("sgd"),
    ),
    (
        GuideClaim(
            claim="state of Adafactor", source=_SINGLE_GPU, unit=_BYTES, figure=4, low=4.0, high=4.5,
            quote="It uses slightly more than 4 bytes for each parameter",
        ),
        _state_of("adafactor"),
    ),
    (
        GuideClaim(
            claim="longer with checkpointing", source=_SINGLE_GPU, unit="%", figure=20, low=15.0, high=25.0,
            quote="while improving memory efficiency, gradient checkpointing slows down training by approximately 20%.",
        ),
        _checkpointing,
    ),
    (
        GuideClaim(
            claim="faster with dynamic padding", source=_APPROACHES, unit="%", figure=35, figure_to=50, low=35.0,
            high=50.0, quote="such an approach can speed up training by 35% or even 50%!",
        ),
        _dynamic_padding,
    ),
    (
        GuideClaim(
            claim="FLOPs of backward over forward", source=_ANATOMY, unit="x", figure=2, low=1.95, high=2.05,
            quote="For convolutions and linear layers there are 2x flops in the backward compared to the forward",
        ),
        _backward,
    ),
)  # fmt: skip
