"""The experiment: the baseline is captured, every technique predicted, then each is captured and timed in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from random import Random
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.device import ceilings_for
from opanatomy.errors import OpanatomyError
from opanatomy.estimate.price import Rates, predicted_time, rates_of
from opanatomy.estimate.rates import call_times
from opanatomy.options import RunOptions
from opanatomy.pipeline import analyze_traces
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.simulated import SimulatedStep
from opanatomy.records.techniques import StepFigures, TechniqueRow, Techniques
from opanatomy.techniques import jobs
from opanatomy.techniques.advice import advice_of
from opanatomy.techniques.entries import BASELINE
from opanatomy.techniques.figures import measured_figures, offenders, predicted_figures, unseen_memory
from opanatomy.techniques.listing import situation_of
from opanatomy.techniques.store import Kept, Store
from opanatomy.techniques.variants import Variant, variants_of
from opanatomy.techniques.workers import JobFailed, run_job
from opanatomy.version import __version__


class Told(Protocol):
    """What is told how far an experiment is."""

    def stage(self, text: str, *, steps_after: int = 0, expected_ns: int | None = None) -> None:
        """The stage `text` begins."""


class Settings(Struct, frozen=True, kw_only=True):
    """What of an experiment is no option of its runs."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    combine: tuple[str, ...] = ()
    predict_only: bool = False
    repetitions: int = 3
    command: str = ""


class Baseline(Struct, frozen=True, kw_only=True):
    """The run that all others are held against, and the rates that it reached."""

    anatomy: Anatomy
    figures: StepFigures
    step: SimulatedStep | None
    rates: Rates | None
    unseen: dict[str, int]
    unseen_peak: int
    #: Why there is no prediction.
    not_predicted: str | None = None


class Experiment:
    """One experiment: `rows` are what is known so far."""

    def __init__(self, options: RunOptions, settings: Settings, store: Store, told: Told) -> None:
        self.options = replace(options, memory=True, check=False)
        self.settings, self.store, self.told = settings, store, told
        self.rows: list[TechniqueRow] = []
        self.order: list[tuple[str, ...]] = []
        self.baseline: Baseline | None = None
        self.variants: tuple[Variant, ...] = ()
        self.times: dict[str, list[float]] = {}
        self.anatomies: dict[str, Anatomy] = {}
        self.interrupted = False

    # --------------------------------------------------------------------------------------------------------- stages

    def predict(self) -> None:
        """Capture the baseline, then predict every technique; the rows have predictions afterwards."""
        self.told.stage("starting")
        self.variants = variants_of(
            situation_of(self.options), only=self.settings.only, skip=self.settings.skip, combine=self.settings.combine
        )
        self.baseline = self._baseline(self._captured(self.variants[0]))
        self.rows = [self._predicted(variant) for variant in self.variants]

    def measure(self) -> None:
        """Capture each technique that can run, then time all of them in turn, in another order each time."""
        runs = [variant for variant in self.variants if variant.impossible is None]
        for variant in _shuffled(runs[1:], self.options.seed, 0):
            self._capture(variant)
        for repetition in range(self.settings.repetitions):
            order = _shuffled(runs, self.options.seed, repetition + 1)
            self.order.append(tuple(variant.name for variant in order))
            for variant in order:
                if self._row(variant.name).failed is None:
                    self._time(variant, repetition)

    def result(self) -> Techniques:
        """All that is known now."""
        assert self.baseline is not None
        anatomy = self.baseline.anatomy
        rows = tuple(self._finished(row) for row in self.rows)
        report = Techniques(
            opanatomy=__version__, command=self.settings.command,
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), environment=anatomy.environment,
            workload=anatomy.workload, rows=rows, seed=self.options.seed, repetitions=self.settings.repetitions,
            predicted_only=self.settings.predict_only, order=tuple(self.order), folder=str(self.store.folder),
            warnings=self._warnings(),
        )  # fmt: skip
        return replace(report, advice=advice_of(report))

    def budget_ns(self) -> float:
        """What measuring will take, by the predictions: steps of captures and repetitions, and the making of models."""
        assert self.baseline is not None
        begin = self.store.begin_ns
        total = 0.0
        for row in self.rows:
            if row.failed is not None:
                continue
            figures = row.predicted or self.baseline.figures
            step = figures.step_ns or self.baseline.figures.step_ns or 0
            total += begin * (1 + self.settings.repetitions) + step * (10 + 5 * self.settings.repetitions)
        return total

    # -------------------------------------------------------------------------------------------------------- one run

    def _captured(self, variant: Variant) -> Anatomy:
        """The anatomy of the variant's capture, from the folder where it is there already."""
        kept = self.store.kept(variant.name, variant.options)
        if not kept.trace.exists():
            self.told.stage(f"{variant.name}: capture")
            with self.store.new_trace(kept) as partial:
                run_job(jobs.captured, variant.options, str(partial), self._command(variant))
        anatomy = analyze_traces([kept.trace])
        self.store.write_report(kept, anatomy)
        self.anatomies[variant.name] = anatomy
        return anatomy

    def _command(self, variant: Variant) -> str:
        return f"opanatomy profile {self.options.model} {variant.option}".strip()

    def _baseline(self, anatomy: Anatomy) -> Baseline:
        figures = measured_figures(anatomy)
        try:
            step = self._simulated(self.options, BASELINE)
        except JobFailed as error:
            return Baseline(
                anatomy=anatomy, figures=figures, step=None, rates=None, unseen={}, unseen_peak=0,
                not_predicted=str(error),
            )  # fmt: skip
        unseen, peak = unseen_memory(anatomy.memory, step)
        rates = None
        if figures.step_ns:
            times = call_times(self.store.kept(BASELINE, self.options).trace)
            rates = rates_of(times, step, figures.step_ns, _peaks(anatomy))
        return Baseline(anatomy=anatomy, figures=figures, step=step, rates=rates, unseen=unseen, unseen_peak=peak)

    def _simulated(self, options: RunOptions, name: str) -> SimulatedStep:
        self.told.stage(f"{name}: prediction")
        return run_job(jobs.simulated, options)

    def _predicted(self, variant: Variant) -> TechniqueRow:
        """The row of a variant as far as a prediction goes."""
        assert self.baseline is not None
        row = TechniqueRow(
            name=variant.name, title=variant.title, option=variant.option, keeps_result=variant.keeps_result,
            failed=variant.impossible, not_predicted=variant.impossible or self.baseline.not_predicted,
        )  # fmt: skip
        if variant.name == BASELINE:
            row = replace(row, measured=self.baseline.figures)
        if row.not_predicted is not None:
            return row
        try:
            step = self._simulated(variant.options, variant.name)
        except JobFailed as error:
            return replace(row, not_predicted=str(error))
        figures = predicted_figures(step, self.baseline.rates, self.baseline.unseen, self.baseline.unseen_peak)
        self.store.keep_step(variant.name, step)
        return replace(row, predicted=figures)

    def _capture(self, variant: Variant) -> None:
        try:
            anatomy = self._captured(variant)
        except (JobFailed, OpanatomyError) as error:
            self._replace(replace(self._row(variant.name), failed=str(error)))
            return
        row = replace(self._row(variant.name), measured=measured_figures(anatomy), warnings=anatomy.warnings)
        self._replace(row)

    def _time(self, variant: Variant, repetition: int) -> None:
        kept = self.store.kept(variant.name, variant.options)
        times = self.store.times(kept, repetition)
        if times is None:
            self.told.stage(f"{variant.name}: repetition {repetition + 1} of {self.settings.repetitions}")
            try:
                times = run_job(jobs.timed, variant.options)
            except JobFailed as error:
                self._replace(replace(self._row(variant.name), failed=str(error)))
                return
            self.store.keep_times(kept, repetition, times)
        self.times.setdefault(variant.name, []).append(statistics.median(times))

    # ----------------------------------------------------------------------------------------------------------- rows

    def _row(self, name: str) -> TechniqueRow:
        return next(row for row in self.rows if row.name == name)

    def _replace(self, row: TechniqueRow) -> None:
        self.rows = [row if known.name == row.name else known for known in self.rows]

    def _finished(self, row: TechniqueRow) -> TechniqueRow:
        """The row with the times of the repetitions, and with what made its prediction wrong."""
        times = self.times.get(row.name, [])
        if row.measured is not None and times:
            row = replace(
                row, repetitions_ns=tuple(times),
                measured=replace(
                    row.measured, step_ns=statistics.median(times), low_ns=min(times), high_ns=max(times)
                ),
            )  # fmt: skip
        anatomy, step = self.anatomies.get(row.name), self.store.step(row.name)
        kept = self._kept(row.name)
        if kept is not None and anatomy is not None:
            row = replace(row, trace=kept.trace.name, report=kept.report.name)
        if anatomy is None or step is None or self.baseline is None or self.baseline.rates is None:
            return row
        return replace(row, offenders=offenders(predicted_time(step, self.baseline.rates), anatomy))

    def _kept(self, name: str) -> Kept | None:
        return next((self.store.kept(name, variant.options) for variant in self.variants if variant.name == name), None)

    def _warnings(self) -> tuple[str, ...]:
        warnings = []
        if self.options.device == "cpu" and any("amp" in row.name or "bf16" in row.name for row in self.rows):
            warnings.append("times of mixed precision on a processor say nothing of a GPU")
        if self.baseline is not None and self.baseline.not_predicted:
            warnings.append(f"nothing is predicted: {self.baseline.not_predicted}")
        return tuple(warnings)


def _peaks(anatomy: Anatomy) -> dict[str, float]:
    environment = anatomy.environment
    known = ceilings_for(environment, multiprocessors=environment.multiprocessors)
    return {} if known.ceilings is None else dict(known.ceilings.matrix_flops_per_second)


def _shuffled(variants: Sequence[Variant], seed: int, repetition: int) -> list[Variant]:
    order = list(variants)
    Random(f"{seed}/{repetition}").shuffle(order)
    return order
