"""The baseline, the rates that it reached, and what every technique is predicted to do at them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from opanatomy.device import ceilings_for
from opanatomy.estimate.price import Rates, predicted_time, rates_of
from opanatomy.estimate.rates import call_times, phase_times
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.simulated import SimulatedStep
from opanatomy.records.techniques import OperatorError, StepFigures, TechniqueRow
from opanatomy.techniques.entries import BASELINE
from opanatomy.techniques.figures import (
    measured_figures,
    offenders,
    predicted_figures,
    unseen_memory,
    why_peaks_differ,
)
from opanatomy.techniques.runs import Runs, WhyNot
from opanatomy.techniques.variants import Variant


class Prediction(Struct, frozen=True, kw_only=True):
    """The baseline as it ran, and each run as it was followed; `rates` are `None` where nothing is predicted."""

    anatomy: Anatomy
    figures: StepFigures
    rates: Rates | None
    steps: dict[str, SimulatedStep] = field(default_factory=dict)
    #: Bytes of the baseline that fake tensors do not show: of each component, and at the peak.
    unseen: dict[str, int] = field(default_factory=dict)
    unseen_peak: int = 0
    not_predicted: dict[str, WhyNot] = field(default_factory=dict)

    def row(self, variant: Variant) -> TechniqueRow:
        """The row of a variant as far as a prediction goes."""
        row = TechniqueRow(
            name=variant.name, title=variant.title, option=variant.option, keeps_result=variant.keeps_result,
            failed=variant.impossible, not_predicted=variant.impossible or self.not_predicted.get(variant.name),
            measured=self.figures if variant.name == BASELINE else None,
            warnings=self.anatomy.warnings if variant.name == BASELINE else (),
        )  # fmt: skip
        step = self.steps.get(variant.name)
        if step is None or row.not_predicted is not None:
            return row
        return replace(row, predicted=predicted_figures(step, self.rates, self.unseen, self.unseen_peak))

    def why_peaks_differ(self, name: str, anatomy: Anatomy) -> tuple[str, ...]:
        """What made the predicted peak of a run wrong, by its anatomy; nothing where it is right."""
        step = self.steps.get(name)
        reason = None if step is None else why_peaks_differ(step, anatomy.memory)
        return () if reason is None else (reason,)

    def offenders(self, name: str, trace: Path) -> tuple[OperatorError, ...]:
        """The operators that made the prediction of a run wrong, by its trace."""
        step = self.steps.get(name)
        if step is None or self.rates is None:
            return ()
        return offenders(predicted_time(step, self.rates), phase_times(trace))


def predict(runs: Runs, variants: Sequence[Variant]) -> Prediction:
    """Capture the baseline, the first of the variants, and follow all of them; `JobFailed` where the baseline breaks.

    Without a step of the baseline there are no rates, and no prediction.
    """
    anatomy = runs.captured(variants[0])
    figures = measured_figures(anatomy)
    possible = [variant for variant in variants if variant.impossible is None]
    steps: dict[str, SimulatedStep] = {}
    not_predicted: dict[str, WhyNot] = {}
    for variant, step in zip(possible, runs.followed(possible), strict=True):
        if isinstance(step, SimulatedStep):
            steps[variant.name] = step
        else:
            not_predicted[variant.name] = step
    base = steps.get(BASELINE)
    if base is None:
        why = {variant.name: f"nor is the baseline: {not_predicted[BASELINE]}" for variant in possible}
        return Prediction(anatomy=anatomy, figures=figures, rates=None, not_predicted=why)
    unseen, unseen_peak = unseen_memory(anatomy.memory, base)
    rates = None
    if figures.step_ns:
        times = call_times(runs.store.kept(BASELINE, variants[0].options).trace)
        rates = rates_of(times, base, figures.step_ns, peaks_of(anatomy), profiled_ns=anatomy.step.wall_ns)
    return Prediction(
        anatomy=anatomy, figures=figures, rates=rates, steps=steps, unseen=unseen, unseen_peak=unseen_peak,
        not_predicted=not_predicted,
    )  # fmt: skip


def peaks_of(anatomy: Anatomy) -> dict[str, float]:
    """The FLOP/s of contractions that the device of the run could reach, by data type, where they are known."""
    environment = anatomy.environment
    known = ceilings_for(environment, multiprocessors=environment.multiprocessors)
    return {} if known.ceilings is None else dict(known.ceilings.matrix_flops_per_second)
