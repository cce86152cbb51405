"""Run an experiment: capture the baseline, predict all techniques, then capture, compare and time each."""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import comb, sqrt
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from opanatomy.analysis.statistics import runs_needed
from opanatomy.capture.run.progress import Progress
from opanatomy.cost.registry import cost
from opanatomy.errors import OpanatomyError, OutputError, UsageError
from opanatomy.io.files import replacing
from opanatomy.io.redact import Redactor, redacted
from opanatomy.memory.observed import memory_of_observations
from opanatomy.options import RunOptions
from opanatomy.pipeline import analyze_traces
from opanatomy.predict import workers
from opanatomy.predict.price import (
    CallKey,
    Rates,
    call_times,
    phase_times,
    predicted_time,
    rates_of,
    work_of,
)
from opanatomy.predict.techniques import BASELINE, Variant, lever_context, variants_of
from opanatomy.predict.workers import Followed, run_job
from opanatomy.records.anatomy import TECHNIQUE, Advice, Anatomy, Evidence
from opanatomy.records.comparison import figures_of, peaks_differ, within_noise
from opanatomy.records.estimate import Fits
from opanatomy.records.experiment import (
    LossCurve,
    OperatorError,
    Repetition,
    Sameness,
    SimulatedStep,
    StepFigures,
    TechniqueRow,
    Techniques,
    Underflow,
)
from opanatomy.records.memory import Memory
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.workload import MachineLoad
from opanatomy.report.units import noun, size
from opanatomy.version import __version__

# The folder of an experiment: the trace, the report and the times of each run, each file whole or absent.


Result = TypeVar("Result")

#: Records the options of each run in the folder.
_INDEX: Final = "runs.json"


class CachedRun(Struct, frozen=True, kw_only=True):
    """The files of one run."""

    name: str
    trace: Path
    report: Path
    #: Further results: times of repetitions, comparison of outcomes.
    results: Path


class Store:
    """The folder of an experiment; `resume` reuses runs with the same options."""

    def __init__(self, folder: Path, *, resume: bool) -> None:
        """Make the folder if it is missing; read the digests of the options of the runs in it."""
        self.folder, self.resume = folder, resume
        if resume and not folder.is_dir():
            raise UsageError(f"--resume: there is no folder {folder} to continue - leave out --resume to start anew")
        try:
            self.folder.mkdir(parents=True, exist_ok=self.resume)
        except FileExistsError:
            resumed = "use --resume to continue it, or " if folder.is_dir() else ""
            raise UsageError(f"--folder {folder}: it exists already - {resumed}choose another name") from None
        except OSError as error:
            raise OutputError(
                f"cannot create the folder {folder}: {error.strerror or error} - choose another one with --folder DIR"
            ) from error
        try:
            self._runs = msgspec.json.decode((self.folder / _INDEX).read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            self._runs = {}
        except (msgspec.MsgspecError, OSError) as error:
            raise UsageError(
                f"--folder {self.folder}: its {_INDEX} cannot be read: {error} - use another folder"
            ) from error

    @contextmanager
    def open(self) -> Iterator[None]:
        """Remove the folder after the block if nothing was run in it."""
        try:
            yield
        finally:
            with suppress(OSError):
                if all(path.name == _INDEX for path in self.folder.iterdir()):
                    (self.folder / _INDEX).unlink(missing_ok=True)
                    self.folder.rmdir()

    def kept(self, name: str, options: RunOptions) -> CachedRun:
        """Return the files of a run; delete files of a run with other options."""
        kept = CachedRun(
            name=name,
            trace=self.folder / f"{name}.trace.json.gz",
            report=self.folder / f"{name}.report.json",
            results=self.folder / f"{name}.results.json",
        )
        # Options may contain a secret: a digest only shows whether they are the same.
        digest = hashlib.sha256(msgspec.json.encode(options)).hexdigest()
        if self._runs.get(name) != digest:
            for path in (kept.trace, kept.report, kept.results):
                path.unlink(missing_ok=True)
            self._runs[name] = digest
            _write(self.folder / _INDEX, msgspec.json.format(msgspec.json.encode(self._runs), indent=2))
        return kept

    def write_report(self, kept: CachedRun, anatomy: Anatomy) -> None:
        """Write the JSON report of a run, unless it exists."""
        from opanatomy.report.formats import format_named
        from opanatomy.report.section import Page

        if not kept.report.exists():
            _write(kept.report, format_named("json").encoded(anatomy, Page()))

    def remembered(self, kept: CachedRun, key: str, kind: type[Result], make: Callable[[], Result]) -> Result:
        """Return the result kept under this key, or call `make` and keep its result."""
        known: dict[str, msgspec.Raw] = {}
        with suppress(OSError, msgspec.MsgspecError):
            known = msgspec.json.decode(kept.results.read_bytes(), type=dict[str, msgspec.Raw])
        if key in known:
            with suppress(msgspec.MsgspecError):
                return msgspec.json.decode(known[key], type=kind)
        result = make()
        known[key] = msgspec.Raw(msgspec.json.encode(result))
        _write(kept.results, msgspec.json.encode(known))
        return result


def folder_for(name: str | None, stem: str, *, resume: bool) -> Path:
    """Return the named folder, else an unused one named after the model; to resume, the last one."""
    if name is not None:
        if not name:
            raise UsageError("--folder: the name is empty - pass a folder name")
        return Path(name)
    folder, number = Path(f"{stem}.techniques"), 1
    last = folder
    while os.path.lexists(folder):
        last, number = folder, number + 1
        folder = Path(f"{stem}-{number}.techniques")
    return last if resume else folder


def _write(path: Path, content: bytes) -> None:
    """Write the file whole or not at all; raise `OutputError` if that fails."""
    try:
        with replacing(path) as partial:
            partial.write_bytes(content)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


# The runs of an experiment, each in a fresh process; results are kept in its folder and not computed again.


#: Why a step could not be followed.
WhyNot: TypeAlias = str


class Runs(Struct, frozen=True, kw_only=True):
    """Does the runs; each method raises `JobFailed` if a run breaks."""

    model: str
    store: Store
    progress: Progress
    #: Redacts the texts of the experiment.
    redactor: Redactor

    def captured(self, variant: Variant) -> Anatomy:
        """Return the anatomy of the variant's capture."""
        kept = self.store.kept(variant.name, variant.options)
        if not kept.trace.exists():
            self.progress.stage(f"{variant.name}: capture")
            command = f"opanatomy profile {self.model} {variant.option}".strip()
            with replacing(kept.trace) as partial:
                run_job(workers.captured, variant.options, str(partial), command)
        anatomy = analyze_traces([kept.trace])
        self.store.write_report(kept, anatomy)
        return anatomy

    def followed(self, variants: Sequence[Variant]) -> Iterator[Followed]:
        """Yield the simulated calls and allocations of each step, in order, or why they are unknown."""
        results = workers.simulate_in_process([variant.options for variant in variants])
        for variant in variants:
            self.progress.stage(f"{variant.name}: prediction")
            yield next(results)

    def times(self, variant: Variant, repetition: int, repetitions: int) -> Repetition:
        """Return the times of some steps, and the load of the machine."""
        self.progress.stage(f"{variant.name}: repetition {repetition + 1} of {repetitions}")
        return self._remembered(
            variant, f"times {repetition}", Repetition, lambda: run_job(workers.timed, variant.options)
        )

    def outcome(self, baseline: Variant, folder: Path) -> float | None:
        """Keep the result of one baseline step in the folder; return its loss."""
        self.progress.stage("one baseline step for comparison")
        return run_job(workers.kept_outcome, baseline.options, str(folder))

    def sameness(self, variant: Variant, baseline: Variant, folder: Path, loss: float | None) -> Sameness:
        """Compare one step with the baseline's in the folder."""
        self.progress.stage(f"{variant.name}: does training stay the same?")
        arguments = (variant.options, baseline.options, str(folder), loss)
        return self._remembered(variant, "sameness", Sameness, lambda: run_job(workers.compared, *arguments))

    def losses(self, variant: Variant, steps: int) -> tuple[float, ...]:
        """Return the losses of that many steps."""
        self.progress.stage(f"{variant.name}: losses of {noun(steps, 'step')}")
        key = f"losses of {steps}"
        return self._remembered(
            variant, key, tuple[float, ...], lambda: run_job(workers.losses, variant.options, steps)
        )

    def underflow(self, variant: Variant) -> Underflow:
        """Return the gradients of one step that underflow in float16, with and without loss scaling."""
        self.progress.stage(f"{variant.name}: float16 gradients")
        return self._remembered(variant, "underflow", Underflow, lambda: run_job(workers.underflow, variant.options))

    def _remembered(self, variant: Variant, key: str, kind: type[Result], make: Callable[[], Result]) -> Result:
        return self.store.remembered(self.store.kept(variant.name, variant.options), key, kind, make)


# How often and in which order to time the runs of an experiment, and how to summarize the times.


#: The true median is in a range with at least this probability, given six repetitions or more.
_CONFIDENCE: Final = 0.95
#: Number of repetitions: as many steps as fit into this time, within these bounds.
_MIN_TIMINGS, _MAX_TIMINGS, _TIMED_NS = 3, 10, 1e9


def repetitions_for(step_ns: float | None) -> int:
    """Return the number of repetitions for a step of this length: short steps vary more."""
    return _MIN_TIMINGS if not step_ns else min(max(round(_TIMED_NS / step_ns), _MIN_TIMINGS), _MAX_TIMINGS)


def baseline_runs(techniques: int) -> int:
    """Return how often to time the baseline for each time of a technique.

    All are compared with it; of k comparisons with one control the variance is least if the control has sqrt(k) times
    the runs (C. W. Dunnett, 1955).
    """
    return max(round(sqrt(techniques)), 1)


def shuffled(variants: Sequence[Variant], seed: int, repetition: int, *, baselines: int = 1) -> list[Variant]:
    """Return the variants in the order of a repetition; the first, the baseline, is in it `baselines` times."""
    order = [*[variants[0]] * baselines, *variants[1:]]
    Random(f"{seed}/{repetition}").shuffle(order)
    return order


def median_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the narrowest range of values around the middle that holds the true median with a probability of 95 %.

    The number of values below the median is binomial. The range of fewer than nine values is all of them.
    """
    ordered, count = sorted(values), len(values)
    outside = (1 - _CONFIDENCE) * 2**count
    ranks = [
        rank
        for rank in range(1, (count + 1) // 2 + 1)
        if 2 * sum(comb(count, below) for below in range(rank)) <= outside
    ]
    rank = max(ranks, default=1)
    return ordered[rank - 1], ordered[-rank]


def timed(row: TechniqueRow, repetitions: Sequence[Repetition]) -> TechniqueRow:
    """Return the row with the median of its repetitions' medians, its range, and the median load of the machine."""
    if row.measured is None or not repetitions:
        return row
    medians = [statistics.median(repetition.times_ns) for repetition in repetitions]
    # One repetition does not show the spread of medians: its steps do.
    low, high = median_range(medians if len(medians) > 1 else repetitions[0].times_ns)
    loads = [repetition.load for repetition in repetitions]
    load = MachineLoad(before=_median([load.before for load in loads]), after=_median([load.after for load in loads]))
    measured: StepFigures = replace(
        row.measured, step_ns=statistics.median(medians), low_ns=low, high_ns=high, load=load
    )
    return replace(row, repetitions_ns=tuple(medians), measured=measured)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


# Advice from the numbers of an experiment.


#: Parts of the baseline's peak or time; a smaller saving is not mentioned.
_WORTH: Final = 0.05
#: The number of techniques to advise for memory, and for time.
_ADVISED: Final = 3


def advice_of(report: Techniques) -> tuple[Advice, ...]:
    """Return advice: what makes the step fit if requested, else the largest savings of memory and time.

    Advice on fitting is in the order tried.
    """
    known = [advice for row in report.rows[1:] if (advice := _advice(row, report)) is not None]
    if report.limit is not None:
        return tuple(sorted(known, key=lambda each: not each.fits))
    by_memory = sorted((each for each in known if each.gain_bytes), key=lambda each: -(each.gain_bytes or 0))
    by_time = sorted((each for each in known if each.gain_ns), key=lambda each: -(each.gain_ns or 0))
    return tuple(dict.fromkeys((*by_memory[:_ADVISED], *by_time[:_ADVISED])))


def _advice(row: TechniqueRow, report: Techniques) -> Advice | None:
    """Return a technique's savings and costs; `None` if it saves almost nothing."""
    base, figures = figures_of(report.baseline), figures_of(row)
    if base is None or figures is None:
        return None
    saved = None
    if base.peak_bytes and figures.peak_bytes is not None:
        saved = base.peak_bytes - figures.peak_bytes
        saved = saved if saved >= _WORTH * base.peak_bytes else None
    measured, reference = row.measured, report.baseline.measured
    # Of two measured times only a difference beyond the noise, on an idle machine, is claimed.
    unclear = (
        measured is not None
        and reference is not None
        and (measured.busy or reference.busy or within_noise(measured, base))
    )
    gained = None
    if base.step_ns and figures.step_ns is not None and not unclear:
        gained = base.step_ns - figures.step_ns
    faster = gained is not None and gained >= _WORTH * (base.step_ns or 0)
    if saved is None and not faster:
        return None
    why, evidence = "measured" if row.measured is not None else "predicted", {}
    if saved is not None:
        why = f"the {why} peak is {{peak}}"
        evidence["peak"] = Evidence(value=figures.peak_bytes, unit="bytes")
        # The component whose part of the peak falls most.
        falls = [(name, held - figures.at_peak.get(name, 0)) for name, held in base.at_peak.items()]
        component, fall = max(falls, key=lambda pair: pair[1], default=("", 0))
        if fall > 0:
            why += f", with {{less}} less {component.replace('_', ' ')}"
            evidence["less"] = Evidence(value=fall, unit="bytes")
    if gained is not None and not faster:
        longer = "{more} more time" if -gained >= _WORTH * (base.step_ns or 0) else "about the same time"
        why += f"; the step takes {longer}"
        evidence["more"] = Evidence(value=-gained / (base.step_ns or 1), unit="fraction")
    return Advice(
        id=TECHNIQUE,
        subject=row.name,
        gain_bytes=saved,
        peak_bytes=base.peak_bytes,
        gain_ns=round(gained) if gained is not None and faster else None,
        step_ns=None if base.step_ns is None else round(base.step_ns),
        fits=None if report.limit is None else figures.fits(report.limit.bytes) is Fits.FITS,
        why=why,
        figures=evidence,
        option=row.option or None,
        technique=row.name,
    )


# The figures of a step: measured by a capture, or predicted for a step that was not run.


#: How many operators to name if a prediction is wrong.
_MAX_NAMED_OPERATORS = 3


def measured_figures(anatomy: Anatomy) -> StepFigures:
    """Return the measured figures of a capture with traced memory."""
    memory, steps = anatomy.memory, max(anatomy.step.count, 1)
    class_ns: dict[str, float] = defaultdict(float)
    phase_ns: dict[str, float] = defaultdict(float)
    for row in anatomy.classes:
        class_ns[row.operator_class] += row.time_ns / steps
        phase_ns[row.phase] += row.time_ns / steps
    # No FLOPs if a part of the contractions has no formula.
    contractions = [row for row in anatomy.classes if row.operator_class is OperatorClass.TENSOR_CONTRACTION]
    has_formulas = not any(row.uncosted_ns or row.flops is None for row in contractions)
    workload, texts = anatomy.workload, anatomy.texts
    wall = anatomy.step.unprofiled_wall_ns if texts is None else texts.mean_step_ns
    return StepFigures(
        peak_bytes=memory.peak_bytes,
        components=_components(memory),
        at_peak={row.component: row.at_peak_bytes for row in memory.components if row.at_peak_bytes},
        step_ns=wall,
        low_ns=None if texts else anatomy.step.unprofiled_wall_min_ns,
        high_ns=None if texts else anatomy.step.unprofiled_wall_max_ns,
        samples=workload.batch,
        class_ns=dict(class_ns),
        phase_ns=dict(phase_ns),
        flops={row.phase: (row.flops or 0) // steps for row in contractions} if has_formulas else {},
        parameters=workload.parameters,
        trainable_parameters=workload.trainable_parameters,
        tokens=None if texts is None else texts.all_tokens,
        load=anatomy.environment.load,
    )


def predicted_figures(
    step: SimulatedStep, rates: Rates | None, unseen: Mapping[str, int], unseen_peak: int
) -> StepFigures:
    """Return a step's predicted figures; without `rates`, or without those of its contractions, its time is unknown.

    `unseen` are bytes of each component of the baseline that fake tensors do not show, `unseen_peak` those at its peak.
    """
    memory = memory_of_observations(step.memory)
    components = _components(memory)
    for name, more in unseen.items():
        if name in components:
            components[name] = max(components[name] + more, 0)
    workload = step.workload
    figures = StepFigures(
        peak_bytes=None if memory.peak_bytes is None else memory.peak_bytes + unseen_peak,
        components=components,
        at_peak={row.component: row.at_peak_bytes for row in memory.components if row.at_peak_bytes},
        samples=workload.batch,
        flops=contraction_flops(step),
        parameters=workload.parameters,
        trainable_parameters=workload.trainable_parameters,
    )
    time = None if rates is None else predicted_time(step, rates)
    if time is None or not time.is_known:
        return figures
    class_ns: dict[str, float] = defaultdict(float)
    phase_ns: dict[str, float] = defaultdict(float)
    for row in time.rows:
        class_ns[row.operator_class] += row.time_ns
        phase_ns[row.phase] += row.time_ns
    return replace(
        figures,
        step_ns=time.time_ns,
        low_ns=time.low_ns,
        high_ns=time.high_ns,
        class_ns=dict(class_ns),
        phase_ns=dict(phase_ns),
    )


def contraction_flops(step: SimulatedStep) -> dict[str, int]:
    """Return the FLOPs of a step's contractions by phase; empty if one has no formula."""
    flops: dict[str, int] = defaultdict(int)
    for call in step.calls:
        if work_of(call.operator, call.signature).operator_class is OperatorClass.TENSOR_CONTRACTION:
            known = cost(call.operator, call.signature)
            if known is None:
                return {}
            flops[call.phase] += known.flops * call.calls
    return dict(flops)


def unseen_memory(measured: Memory, step: SimulatedStep) -> tuple[dict[str, int], int]:
    """Return the baseline's memory that fake tensors do not show: by component, and at the peak."""
    predicted = memory_of_observations(step.memory)
    ours, theirs = _components(predicted), _components(measured)
    unseen = {name: held - ours[name] for name, held in theirs.items() if name in ours and held != ours[name]}
    known = measured.peak_bytes is not None and predicted.peak_bytes is not None
    return unseen, (measured.peak_bytes or 0) - (predicted.peak_bytes or 0) if known else 0


def _blocks(memory: Memory) -> dict[tuple[str, Phase], int]:
    """Return the bytes at the peak by the operator that allocated them, and its phase."""
    held: dict[tuple[str, Phase], int] = defaultdict(int)
    for block in memory.blocks:
        held[block.operator or "no operator", block.phase] += block.bytes
    return held


def _components(memory: Memory) -> dict[str, int]:
    return {row.component: row.measured_bytes for row in memory.components if row.measured_bytes is not None}


# The baseline, the rates that it reached, and the predictions for every technique at these rates.


class Prediction(Struct, frozen=True, kw_only=True):
    """The baseline as it ran, and each run as it was followed; `rates` are `None` if nothing is predicted."""

    anatomy: Anatomy
    figures: StepFigures
    rates: Rates | None
    steps: dict[str, SimulatedStep] = field(default_factory=dict)
    #: Bytes of the baseline that fake tensors do not show: of each component, and at the peak.
    unseen: dict[str, int] = field(default_factory=dict)
    unseen_peak: int = 0
    not_predicted: dict[str, WhyNot] = field(default_factory=dict)

    def row(self, variant: Variant) -> TechniqueRow:
        """Return the predicted part of a variant's row."""
        row = TechniqueRow(
            name=variant.name,
            title=variant.title,
            option=variant.option,
            keeps_result=variant.keeps_result,
            failed=variant.blocked_because,
            not_predicted=variant.blocked_because or self.not_predicted.get(variant.name),
            measured=self.figures if variant.name == BASELINE else None,
            warnings=self.anatomy.warnings if variant.name == BASELINE else (),
        )
        step = self.steps.get(variant.name)
        if step is None or row.not_predicted is not None:
            return row
        return replace(row, predicted=predicted_figures(step, self.rates, self.unseen, self.unseen_peak))

    def why_peaks_differ(self, name: str, anatomy: Anatomy) -> tuple[str, ...]:
        """Return why the predicted peak of a run was wrong, from its anatomy; empty if it was right.

        That is the operator whose blocks differ most between measured and predicted peak.
        """
        step = self.steps.get(name)
        if step is None:
            return ()
        predicted, measured = memory_of_observations(step.memory), anatomy.memory
        if not peaks_differ(predicted.peak_bytes, measured.peak_bytes):
            return ()
        ours, theirs = _blocks(predicted), _blocks(measured)
        differences = {key: theirs.get(key, 0) - ours.get(key, 0) for key in ours.keys() | theirs.keys()}
        if not differences:
            return ()
        (operator, phase), difference = max(differences.items(), key=lambda item: (abs(item[1]), item[0]))
        return (
            f"the measured peak differs from the prediction: {operator} ({phase}) holds {size(abs(difference))}"
            f" {'more' if difference > 0 else 'less'} at the peak than with fake tensors, which do not show what"
            " a kernel allocates",
        )

    def offenders(self, name: str, trace: Path) -> tuple[OperatorError, ...]:
        """Return the operators whose predicted and measured times, children included, differ most in a run's trace."""
        step = self.steps.get(name)
        if step is None or self.rates is None:
            return ()
        expected: dict[tuple[str, Phase], float] = defaultdict(float)
        for predicted in predicted_time(step, self.rates).rows:
            expected[predicted.operator, predicted.phase] += predicted.time_ns
        measured = phase_times(trace)
        rows = [
            OperatorError(operator=key[0], phase=key[1], predicted_ns=expected[key], measured_ns=measured[key])
            for key in expected.keys() & measured.keys()
        ]
        rows.sort(key=lambda row: -abs(row.predicted_ns - row.measured_ns))
        return tuple(rows[:_MAX_NAMED_OPERATORS])


def predict(runs: Runs, variants: Sequence[Variant]) -> Prediction:
    """Capture the baseline, the first variant, and follow all variants; raise `JobFailed` if the baseline breaks.

    Without a step of the baseline there are no rates and no prediction.
    """
    anatomy = runs.captured(variants[0])
    figures = measured_figures(anatomy)
    possible = [variant for variant in variants if variant.blocked_because is None]
    steps: dict[str, SimulatedStep] = {}
    sampled: dict[CallKey, float] = {}
    load = load_of(anatomy)
    not_predicted: dict[str, WhyNot] = {}
    for variant, followed in zip(possible, runs.followed(possible), strict=True):
        if isinstance(followed.step, SimulatedStep):
            steps[variant.name] = followed.step
            sampled |= followed.sampled
            load = max(load, followed.load)
        else:
            not_predicted[variant.name] = followed.step
    base = steps.get(BASELINE)
    if base is None:
        why = {
            variant.name: f"the baseline cannot be predicted either: {not_predicted[BASELINE]}" for variant in possible
        }
        return Prediction(anatomy=anatomy, figures=figures, rates=None, not_predicted=why)
    unseen, unseen_peak = unseen_memory(anatomy.memory, base)
    rates = None
    if figures.step_ns:
        times = call_times(runs.store.kept(BASELINE, variants[0].options).trace)
        rates = rates_of(times, base, figures.step_ns, sampled, profiled_ns=anatomy.step.wall_ns, load=load)
    return Prediction(
        anatomy=anatomy,
        figures=figures,
        rates=rates,
        steps=steps,
        unseen=unseen,
        unseen_peak=unseen_peak,
        not_predicted=not_predicted,
    )


def load_of(anatomy: Anatomy) -> float:
    """Return the share of the machine used by other work during a run, 0.0 if unknown."""
    load = anatomy.environment.load
    return 0.0 if load is None else max(load.before or 0.0, load.after or 0.0)


#: Profiled steps of each capture: a median over like calls needs more than one.
_PROFILED: Final = 3
#: For the budget: the approximate time in which a fresh process makes a small model; steps of a capture (warm-up,
#: timed, profiled, memory), and of a repetition with its warm-up.
_BEGIN_NS: Final = 3e9
_STEPS_OF_A_CAPTURE: Final = 12
_STEPS_OF_A_REPETITION: Final = 5


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of an experiment that are not options of its runs."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    combine: tuple[str, ...] = ()
    predict_only: bool = False
    #: `None` for a number by the length of the baseline's step.
    repetitions: int | None = None
    #: How many steps' losses to compare with the baseline's, for techniques that change the result.
    loss_steps: int = 8
    command: str = ""


class Experiment:
    """One experiment; `rows` are the results so far, and `interrupted` says whether it ended early."""

    def __init__(self, options: RunOptions, settings: Settings, store: Store, progress: Progress) -> None:
        self.options = replace(options, memory=True, check=False, steps=max(options.steps, _PROFILED))
        self.settings = settings
        self.runs = Runs(model=options.model, store=store, progress=progress, redactor=Redactor())
        self.variants: tuple[Variant, ...] = ()
        self.prediction: Prediction | None = None
        self.rows: dict[str, TechniqueRow] = {}
        self.times: dict[str, list[Repetition]] = {}
        self.order: list[tuple[str, ...]] = []
        self.warnings: list[str] = []
        self.interrupted = False

    # --------------------------------------------------------------------------------------------------------- stages

    def predict(self) -> None:
        """Capture the baseline, then predict every technique and fill in the rows."""
        self.runs.progress.stage("starting")
        settings = self.settings
        context = lever_context(self.options)
        self.variants = variants_of(context, only=settings.only, skip=settings.skip, combine=settings.combine)
        self.prediction = predict(self.runs, self.variants)
        self.rows = {variant.name: self.prediction.row(variant) for variant in self.variants}

    def measure(self) -> None:
        """Capture each technique that can run, compare its result, then time all in turn, in a new order each time."""
        for variant in shuffled(self._running(), self.options.seed, 0):
            if variant is not self.variants[0]:
                self._capture(variant)
        self._compare()
        for repetition in range(self.repetitions):
            running, baselines = self._running(), self._baseline_runs()
            order = shuffled(running, self.options.seed, repetition + 1, baselines=baselines)
            self.order.append(tuple(variant.name for variant in order))
            for variant in order:
                if self.rows[variant.name].failed is not None:
                    continue
                known = self.times.setdefault(variant.name, [])
                try:
                    known.append(self.runs.times(variant, len(known), self._repetitions(variant)))
                except OpanatomyError as error:
                    self._change(variant, failed=str(error))

    def _running(self) -> list[Variant]:
        """Return the variants that have not failed."""
        return [variant for variant in self.variants if self.rows[variant.name].failed is None]

    @property
    def repetitions(self) -> int:
        """Return how often each technique is timed."""
        assert self.prediction is not None
        return self.settings.repetitions or repetitions_for(self.prediction.figures.step_ns)

    def _repetitions(self, variant: Variant) -> int:
        """Return how often to time a variant."""
        return self.repetitions * (self._baseline_runs() if variant is self.variants[0] else 1)

    def _baseline_runs(self) -> int:
        return baseline_runs(len(self._running()) - 1)

    def _capture(self, variant: Variant) -> None:
        try:
            anatomy = self.runs.captured(variant)
        except OpanatomyError as error:
            self._change(variant, failed=str(error))
            return
        assert self.prediction is not None
        kept = self.runs.store.kept(variant.name, variant.options)
        self._change(
            variant,
            measured=measured_figures(anatomy),
            offenders=self.prediction.offenders(variant.name, kept.trace),
            warnings=(*anatomy.warnings, *self.prediction.why_peaks_differ(variant.name, anatomy)),
            trace=kept.trace.name,
            report=kept.report.name,
        )

    # ----------------------------------------------------------------------------------------------- the same training

    def _compare(self) -> None:
        """Compare with the baseline: one step of variants that must preserve training, losses of the others."""
        baseline, *others = self._running()
        if self.options.inference:
            if others:
                self.warnings.append("inference has no loss and no gradients, so its outputs are not compared")
            return
        kept = [variant for variant in others if variant.keeps_result]
        changing = [variant for variant in others if not variant.keeps_result]
        if kept:
            self._compare_results(baseline, kept)
        if changing and (theirs := self._losses(baseline)):
            for variant in changing:
                if ours := self._losses(variant):
                    self._change(variant, losses=LossCurve(losses=ours, baseline=theirs))
        for variant in (baseline, *others):
            options = variant.options
            if options.amp == "fp16" and not options.inference and not options.generate:  # it scales its loss
                try:
                    self._change(variant, underflow=self.runs.underflow(variant))
                except OpanatomyError as error:
                    self.warnings.append(
                        f"{variant.name}: cannot tell which gradients float16 flushes to zero: {error}"
                    )

    def _compare_results(self, baseline: Variant, variants: Sequence[Variant]) -> None:
        with TemporaryDirectory(prefix=".scratch.", dir=self.runs.store.folder) as name:
            folder = Path(name)
            try:
                loss = self.runs.outcome(baseline, folder)
            except OpanatomyError as error:
                self.warnings.append(f"cannot tell whether training stays the same: {error}")
                return
            for variant in variants:
                try:
                    self._change(variant, sameness=self.runs.sameness(variant, baseline, folder, loss))
                except OpanatomyError as error:
                    self.warnings.append(f"{variant.name}: cannot tell whether training stays the same: {error}")

    def _losses(self, variant: Variant) -> tuple[float, ...]:
        try:
            return self.runs.losses(variant, self.settings.loss_steps)
        except OpanatomyError as error:
            self.warnings.append(f"{variant.name}: its losses are unknown: {error}")
            return ()

    # ---------------------------------------------------------------------------------------------------------- result

    def _change(self, variant: Variant, **fields: object) -> None:
        self.rows[variant.name] = replace(self.rows[variant.name], **fields)

    def result(self) -> Techniques:
        """Return the report of all results so far."""
        assert self.prediction is not None
        anatomy = self.prediction.anatomy
        rows = tuple(timed(row, self.times.get(row.name, ())) for row in self.rows.values())
        report = Techniques(
            opanatomy=__version__,
            command=self.settings.command,
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            environment=anatomy.environment,
            workload=anatomy.workload,
            rows=rows,
            seed=self.options.seed,
            repetitions=self.repetitions,
            predicted_only=self.settings.predict_only,
            order=tuple(self.order),
            folder=str(self.runs.store.folder),
            warnings=(*self._doubts_about_times(rows), *self._general_warnings(), *self.warnings),
        )
        return redacted(replace(report, advice=advice_of(report)), self.runs.redactor)

    def _doubts_about_times(self, rows: Sequence[TechniqueRow]) -> Iterator[str]:
        """Yield reasons against claims from the repetitions' times: load by other work, or too few of them."""
        timed = [(row, row.measured) for row in rows if row.repetitions_ns and row.measured is not None]
        busy = [(row.name, figures.load) for row, figures in timed if figures.load is not None and figures.load.busy]
        if busy:
            name, load = max(busy, key=lambda pair: max(pair[1].before or 0, pair[1].after or 0))
            yield (
                f"the machine was busy while {len(busy)} of {len(timed)} variants were timed (most for {name}:"
                f" utilization by other work was {load.text} the steps), so their times are not compared - run again"
                " when the machine is idle"
            )
        needed = runs_needed(self._baseline_runs())
        if timed and self.repetitions < needed:
            yield (
                f"with only {noun(self.repetitions, 'repetition')}, times may differ by chance - use"
                f" --repetitions {needed}"
            )

    def _general_warnings(self) -> list[str]:
        """Return warnings about mixed precision: its times on a processor, and missing peaks."""
        if self.prediction is None or not any(v.options.amp or v.options.dtype != "float32" for v in self.variants):
            return []
        warnings = []
        if self.prediction.anatomy.environment.device_kind == "cpu":
            half = any(variant.options.amp == "fp16" for variant in self.variants)
            float16 = ", least of all for float16, which few CPUs support" if half else ""
            warnings.append(f"mixed-precision times on a CPU say nothing about a GPU{float16}")
        predicted = [(row.name, row.predicted) for row in self.rows.values()]
        names = [name for name, figures in predicted if figures is not None and figures.step_ns is None]
        if self.prediction.rates is not None and names:
            warnings.append(
                f"cannot predict the time of {', '.join(names)}: no matmul in their data type was timed separately here"
            )
        return warnings

    def budget_ns(self) -> float:
        """Return the predicted time of measuring: the steps, and making the models."""
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
