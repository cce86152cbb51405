"""What a fresh process does for an experiment: follow a step on fake tensors, capture one, or time some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.errors import OpanatomyError
from opanatomy.records.sameness import Sameness
from opanatomy.records.simulated import SimulatedStep
from opanatomy.records.underflow import Underflow
from opanatomy.run_options import RunOptions


class Planned(Struct, frozen=True, kw_only=True):
    """What a run will run, as far as that is known without weights."""

    device: str
    batch: int
    #: Those of the longest stack; `None` where no stack is known.
    layers: int | None
    #: Those that freezing counts: of an encoder and a decoder all, of several towers those of the shortest.
    freezable_layers: int | None
    #: The implementation of attention in force.
    attention: str | None


def planned(options: RunOptions) -> Planned:
    """The device, the batch and the layers of a run; raises where the model cannot be."""
    from opanatomy.capture.device.environment import choose_device
    from opanatomy.capture.model.workload import BATCH, plan_of

    plan = plan_of(options)
    stacks = () if plan is None else plan.stacks
    through_all = plan is not None and bool(getattr(plan.config, "is_encoder_decoder", False))
    return Planned(
        device=choose_device(options.device), batch=options.batch or BATCH, layers=max(stacks, default=None),
        freezable_layers=(sum(stacks) if through_all else min(stacks)) if stacks else None,
        attention=None if plan is None else plan.attention,
    )  # fmt: skip


def simulated(options: RunOptions) -> SimulatedStep:
    """What the step would call and allocate."""
    from opanatomy.estimate.simulate import simulate

    return simulate(options)


def captured(options: RunOptions, trace: str, command: str) -> None:
    """Capture the step into the file `trace`, its memory with it."""
    from opanatomy.capture.step.profile import capture_model
    from opanatomy.capture.step.progress_hooks import NullProgress

    capture_model(options, Path(trace), NullProgress(), lambda text: None, command=command)


def timed(options: RunOptions) -> tuple[int, ...]:
    """The wall times of some steps after the warm-up, in nanoseconds."""
    from opanatomy.capture.step.timing import step_times

    return step_times(options)


def followed(runs: Sequence[RunOptions]) -> Iterator[SimulatedStep | str]:
    """`simulated` of each run in turn, or why it cannot be: fake tensors leave nothing behind for the next."""
    for options in runs:
        try:
            yield simulated(options)
        except OpanatomyError as error:
            yield str(error)


def kept_outcome(options: RunOptions, folder: str) -> float | None:
    """Keep what one step makes in the folder; its loss."""
    from opanatomy.capture.step.outcome import keep_outcome

    return keep_outcome(options, Path(folder))


def compared(options: RunOptions, baseline: RunOptions, folder: str, loss: float | None) -> Sameness:
    """What one step makes compared with what was kept, and the first operator that makes a difference."""
    from opanatomy.capture.step.outcome import compare_outcome, first_difference

    sameness = compare_outcome(options, Path(folder), loss)
    return sameness if sameness.same else replace(sameness, first_operator=first_difference(options, baseline))


def losses(options: RunOptions, steps: int) -> tuple[float, ...]:
    """The losses of some steps."""
    from opanatomy.capture.step import outcome

    return outcome.losses(options, steps)


def underflow(options: RunOptions) -> Underflow:
    """The gradients that float16 makes zero."""
    from opanatomy.capture.step.underflow import gradient_underflow

    return gradient_underflow(options)
