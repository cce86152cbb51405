"""The runs of an experiment, each in a fresh process and kept in its folder: what was run before is not run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

from opanatomy.pipeline import analyze_traces
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.sameness import Sameness
from opanatomy.records.simulated import SimulatedStep
from opanatomy.records.underflow import Underflow
from opanatomy.redaction.texts import Texts
from opanatomy.techniques import jobs
from opanatomy.techniques.store import Result, Store
from opanatomy.techniques.variants import Variant
from opanatomy.techniques.workers import JobFailed, run_job, run_jobs


class Stages(Protocol):
    """Is called with how far an experiment is."""

    def stage(self, text: str, *, steps_after: int = 0, expected_ns: int | None = None) -> None:
        """The stage `text` begins."""


#: Why a run could not be followed.
WhyNot: TypeAlias = str
_INTERRUPTED: Final = "the process that follows it on fake tensors ended before"


class Runs(Struct, frozen=True, kw_only=True):
    """Does the runs; each method raises `JobFailed` where a run breaks."""

    model: str
    store: Store
    progress: Stages
    #: What texts of the experiment may be written as.
    texts: Texts

    def captured(self, variant: Variant) -> Anatomy:
        """The anatomy of the variant's capture."""
        kept = self.store.kept(variant.name, variant.options)
        if not kept.trace.exists():
            self.progress.stage(f"{variant.name}: capture")
            command = f"opanatomy profile {self.model} {variant.option}".strip()
            with self.store.new_trace(kept) as partial:
                run_job(jobs.captured, variant.options, str(partial), command)
        anatomy = analyze_traces([kept.trace])
        self.store.write_report(kept, anatomy)
        return anatomy

    def followed(self, variants: Sequence[Variant]) -> Iterator[SimulatedStep | WhyNot]:
        """What each step would call and allocate, in turn, or why that cannot be seen."""
        steps = run_jobs(jobs.followed, [variant.options for variant in variants])
        for place, variant in enumerate(variants):
            self.progress.stage(f"{variant.name}: prediction")
            try:
                yield next(steps)
            except JobFailed as error:
                yield str(error)
                yield from [_INTERRUPTED] * (len(variants) - place - 1)
                return

    def times(self, variant: Variant, repetition: int, repetitions: int) -> tuple[int, ...]:
        """The times of some steps, in nanoseconds."""
        self.progress.stage(f"{variant.name}: repetition {repetition + 1} of {repetitions}")
        return self._remembered(
            variant, f"times {repetition}", tuple[int, ...], lambda: run_job(jobs.timed, variant.options)
        )

    def outcome(self, baseline: Variant, folder: Path) -> float | None:
        """Keep what one step of the baseline makes in the folder; its loss."""
        self.progress.stage("one step of the baseline, to compare with")
        return run_job(jobs.kept_outcome, baseline.options, str(folder))

    def sameness(self, variant: Variant, baseline: Variant, folder: Path, loss: float | None) -> Sameness:
        """One step compared with that of the baseline in the folder."""
        self.progress.stage(f"{variant.name}: the same training?")
        arguments = (variant.options, baseline.options, str(folder), loss)
        return self._remembered(variant, "sameness", Sameness, lambda: run_job(jobs.compared, *arguments))

    def losses(self, variant: Variant, steps: int) -> tuple[float, ...]:
        """The losses of that many steps."""
        self.progress.stage(f"{variant.name}: losses of {steps} steps")
        key = f"losses of {steps}"
        return self._remembered(variant, key, tuple[float, ...], lambda: run_job(jobs.losses, variant.options, steps))

    def underflow(self, variant: Variant) -> Underflow:
        """The gradients of one step that float16 makes zero, with the loss scaled and without."""
        self.progress.stage(f"{variant.name}: gradients in float16")
        return self._remembered(variant, "underflow", Underflow, lambda: run_job(jobs.underflow, variant.options))

    def _remembered(self, variant: Variant, key: str, kind: type[Result], make: Callable[[], Result]) -> Result:
        return self.store.remembered(self.store.kept(variant.name, variant.options), key, kind, make)
