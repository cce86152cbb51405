"""The experiment: the baseline is captured, all is predicted, then each technique captured, compared and timed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.errors import OpanatomyError
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.sameness import LossCurve
from opanatomy.records.techniques import TechniqueRow, Techniques
from opanatomy.redaction.records import redacted
from opanatomy.redaction.texts import Texts
from opanatomy.run_options import RunOptions
from opanatomy.techniques.advice import advice_of
from opanatomy.techniques.figures import measured_figures
from opanatomy.techniques.guides import MeasuredRun, guide_rows
from opanatomy.techniques.listing import situation_of
from opanatomy.techniques.prediction import Prediction, predict
from opanatomy.techniques.runs import Runs, Stages
from opanatomy.techniques.store import Store
from opanatomy.techniques.timing import baseline_runs, shuffled, timed
from opanatomy.techniques.variants import Variant, variants_of
from opanatomy.version import __version__

#: Profiled steps of each capture: of like calls the median is taken, which one alone has none of.
_PROFILED: Final = 3
#: For the budget: about what a fresh process takes to make a small model; steps of a capture (warm-up, timed, profiled,
#: memory), and of a repetition with its warm-up.
_BEGIN_NS: Final = 3e9
_STEPS_OF_A_CAPTURE: Final = 12
_STEPS_OF_A_REPETITION: Final = 5


class Settings(Struct, frozen=True, kw_only=True):
    """What of an experiment is no option of its runs."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    combine: tuple[str, ...] = ()
    predict_only: bool = False
    repetitions: int = 3
    #: Steps of which the losses are compared with the baseline's, for techniques that change the result.
    loss_steps: int = 8
    command: str = ""


class Experiment:
    """One experiment; `rows` are what is known so far, and `interrupted` whether it was left early."""

    def __init__(self, options: RunOptions, settings: Settings, store: Store, progress: Stages) -> None:
        self.options = replace(options, memory=True, check=False, steps=max(options.steps, _PROFILED))
        self.settings = settings
        self.runs = Runs(model=options.model, store=store, progress=progress, texts=Texts())
        self.variants: tuple[Variant, ...] = ()
        self.prediction: Prediction | None = None
        self.rows: dict[str, TechniqueRow] = {}
        self.times: dict[str, list[tuple[int, ...]]] = {}
        self.order: list[tuple[str, ...]] = []
        self.warnings: list[str] = []
        self.interrupted = False

    # --------------------------------------------------------------------------------------------------------- stages

    def predict(self) -> None:
        """Capture the baseline, then predict every technique; the rows have predictions afterwards."""
        self.runs.progress.stage("starting")
        settings = self.settings
        situation = situation_of(self.options)
        self.variants = variants_of(situation, only=settings.only, skip=settings.skip, combine=settings.combine)
        self.prediction = predict(self.runs, self.variants)
        self.rows = {variant.name: self.prediction.row(variant) for variant in self.variants}

    def measure(self) -> None:
        """Capture each technique that can run, compare its result, then time all in turn, the order new each time."""
        for variant in shuffled(self._running(), self.options.seed, 0):
            if variant is not self.variants[0]:
                self._capture(variant)
        self._compare()
        for repetition in range(self.settings.repetitions):
            running, baselines = self._running(), self._baseline_runs()
            order = shuffled(running, self.options.seed, repetition + 1, baselines=baselines)
            self.order.append(tuple(variant.name for variant in order))
            for variant in order:
                self._time(variant)

    def _running(self) -> list[Variant]:
        """The variants that have not failed."""
        return [variant for variant in self.variants if self.rows[variant.name].failed is None]

    def _repetitions(self, variant: Variant) -> int:
        """How often a variant is timed."""
        return self.settings.repetitions * (self._baseline_runs() if variant is self.variants[0] else 1)

    def _baseline_runs(self) -> int:
        return baseline_runs(len(self._running()) - 1)

    def _capture(self, variant: Variant) -> None:
        try:
            anatomy = self.runs.captured(variant)
        except OpanatomyError as error:
            self._change(variant, failed=str(error))
            return
        self._has_anatomy(variant, anatomy)

    def _has_anatomy(self, variant: Variant, anatomy: Anatomy) -> None:
        assert self.prediction is not None
        kept = self.runs.store.kept(variant.name, variant.options)
        self._change(
            variant, measured=measured_figures(anatomy), offenders=self.prediction.offenders(variant.name, kept.trace),
            warnings=(*anatomy.warnings, *self.prediction.why_peaks_differ(variant.name, anatomy)),
            trace=kept.trace.name, report=kept.report.name,
        )  # fmt: skip

    def _time(self, variant: Variant) -> None:
        """Time one repetition of a variant, unless one before broke."""
        if self.rows[variant.name].failed is not None:
            return
        known = self.times.setdefault(variant.name, [])
        try:
            known.append(self.runs.times(variant, len(known), self._repetitions(variant)))
        except OpanatomyError as error:
            self._change(variant, failed=str(error))

    # ----------------------------------------------------------------------------------------------- the same training

    def _compare(self) -> None:
        """Compare one step of each that must not change the training with the baseline's, or their losses."""
        baseline, *others = self._running()
        if self.options.inference:
            if others:
                self.warnings.append("inference has no loss and no gradients: whether its outputs stay is not compared")
            return
        kept = [variant for variant in others if variant.keeps_result]
        changing = [variant for variant in others if not variant.keeps_result]
        if kept:
            self._compare_results(baseline, kept)
        if changing and (theirs := self._losses(baseline)):
            for variant in changing:
                if ours := self._losses(variant):
                    self._change(variant, losses=LossCurve(losses=ours, baseline=theirs))
        for variant in filter(_scales_its_loss, (baseline, *others)):
            self._count_zeros(variant)

    def _compare_results(self, baseline: Variant, variants: Sequence[Variant]) -> None:
        with self.runs.store.scratch() as folder:
            try:
                loss = self.runs.outcome(baseline, folder)
            except OpanatomyError as error:
                self.warnings.append(f"whether the training stays the same is not known: {error}")
                return
            for variant in variants:
                try:
                    self._change(variant, sameness=self.runs.sameness(variant, baseline, folder, loss))
                except OpanatomyError as error:
                    self.warnings.append(f"{variant.name}: whether the training stays the same is not known: {error}")

    def _losses(self, variant: Variant) -> tuple[float, ...]:
        try:
            return self.runs.losses(variant, self.settings.loss_steps)
        except OpanatomyError as error:
            self.warnings.append(f"{variant.name}: its losses are not known: {error}")
            return ()

    def _count_zeros(self, variant: Variant) -> None:
        try:
            self._change(variant, underflow=self.runs.underflow(variant))
        except OpanatomyError as error:
            self.warnings.append(f"{variant.name}: which gradients float16 makes zero is not known: {error}")

    # ---------------------------------------------------------------------------------------------------------- result

    def _change(self, variant: Variant, **fields: object) -> None:
        self.rows[variant.name] = replace(self.rows[variant.name], **fields)

    def result(self) -> Techniques:
        """All that is known now."""
        assert self.prediction is not None
        anatomy = self.prediction.anatomy
        report = Techniques(
            opanatomy=__version__, command=self.settings.command,
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), environment=anatomy.environment,
            workload=anatomy.workload, rows=tuple(map(self._timed, self.rows.values())), seed=self.options.seed,
            repetitions=self.settings.repetitions, predicted_only=self.settings.predict_only, order=tuple(self.order),
            folder=str(self.runs.store.folder), warnings=(*self._general_warnings(), *self.warnings),
        )  # fmt: skip
        guides = tuple(guide_rows(self._measured(report.rows)))
        return redacted(replace(report, advice=advice_of(report), guides=guides), self.runs.texts)

    def _measured(self, rows: Sequence[TechniqueRow]) -> list[MeasuredRun]:
        """What was measured, the baseline first."""
        options = {variant.name: variant.options for variant in self.variants}
        return [
            MeasuredRun(name=row.name, options=options[row.name], figures=row.measured)
            for row in rows
            if row.measured is not None
        ]

    def _timed(self, row: TechniqueRow) -> TechniqueRow:
        """The row with the times of its repetitions."""
        return timed(row, self.times.get(row.name, ()))

    def _general_warnings(self) -> list[str]:
        """What is to be said of precision: of its times on a processor, and of what they are predicted from."""
        if self.prediction is None or not any(v.options.amp or v.options.dtype != "float32" for v in self.variants):
            return []
        warnings = []
        if self.prediction.anatomy.environment.device_kind == "cpu":
            half = any(variant.options.amp == "fp16" for variant in self.variants)
            float16 = ", those of float16 least: few processors have arithmetic for it" if half else ""
            warnings.append(f"times of mixed precision on a processor say nothing of a GPU{float16}")
        if self.prediction.rates is not None and (names := self._without_time()):
            warnings.append(
                f"the time of {', '.join(names)} is not predicted: the peak of this device for products in that data"
                " type is not known - run `opanatomy ceilings`"
            )
        return warnings

    def _without_time(self) -> list[str]:
        """The techniques that are predicted but for their time."""
        predicted = [(row.name, row.predicted) for row in self.rows.values()]
        return [name for name, figures in predicted if figures is not None and figures.step_ns is None]

    def budget_ns(self) -> float:
        """What measuring will take by the predictions: the steps, and the making of models."""
        assert self.prediction is not None
        total = 0.0
        for variant in self._running():
            row = self.rows[variant.name]
            known = row.predicted or row.measured
            step = (known.step_ns if known else None) or self.prediction.figures.step_ns or 0
            repetitions = self._repetitions(variant)
            steps = _STEPS_OF_A_CAPTURE + self.settings.loss_steps + _STEPS_OF_A_REPETITION * repetitions
            total += (2 + repetitions) * _BEGIN_NS + step * steps
        return total


def _scales_its_loss(variant: Variant) -> bool:
    """Whether a run trains under float16 autocast."""
    options = variant.options
    return options.amp == "fp16" and not options.inference and not options.generate
