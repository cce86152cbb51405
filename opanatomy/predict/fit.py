"""Say whether a step fits into a device's memory before it runs, what makes it fit, and the largest batch that does."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.capture.model.user_function import is_function
from opanatomy.devices.match import sheets_named
from opanatomy.devices.sheets import GIB, SHEETS
from opanatomy.errors import OpanatomyError, UsageError
from opanatomy.options import RunOptions
from opanatomy.predict import workers
from opanatomy.predict.experiment import advice_of, predicted_figures
from opanatomy.predict.techniques import AND, Situation, Variant, situation_of, variants_of
from opanatomy.predict.workers import JobFailed
from opanatomy.records.experiment import Limit, SimulatedStep, TechniqueRow, Techniques
from opanatomy.records.patterns import regex
from opanatomy.records.workload import Environment
from opanatomy.report.units import size
from opanatomy.version import __version__

_SIZE: Final = regex(r"\s*(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<prefix>[kmgt]?)(?P<binary>i?)b?\s*", re.IGNORECASE)
#: The memory in the name of a device, `A100 80GB`.
_MEMORY: Final = regex(r"(\d)(gb)\b")
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
#: Less is no memory for a model, and a sign that the unit was left out.
_LEAST: Final = 1 << 20
#: In the order in which they are tried: those that keep the training as it is first.
TRIED: Final = (
    "checkpointing", "accumulation", "sdpa", "fused-loss", "amp", "adamw8bit", "adafactor", "bf16-weights", "lora",
    "lora-checkpointing",
)  # fmt: skip
#: Techniques to put together, where none alone makes it fit.
_TOGETHER: Final = 3
_NO_GPU: Final = (
    "no GPU is here: the step was followed with the CPU's operators, and a GPU's keep less of dropout (masks of 1 byte"
    " for 4, attention fused under dropout too) and more in float32 under autocast"
)
#: Guesses of the largest batch by the line through the nearest ones; then the range is halved.
_BY_LINE: Final = 4
#: No batch is larger: the step does not depend on it.
_LARGEST: Final = 1 << 20


def limit_of(text: str) -> Limit:
    """Return the memory that `80GB`, `24 GiB` or a device's name means; raise `UsageError` for anything else."""
    number = _SIZE.fullmatch(text)
    if number is not None:
        base = 1024 if number["binary"] else 1000
        amount = float(number["number"]) * base ** _POWERS[number["prefix"].lower()]
        if amount < _LEAST:
            raise UsageError(f"--for {text}: {amount:g} bytes are no device's memory - write 80GB or 24GiB")
        return Limit(name=text.strip(), bytes=int(amount))
    words = set(_MEMORY.sub(r"\1 \2", text.casefold()).split())
    named = sheets_named(text) or [sheet for sheet in SHEETS if words and words <= set(sheet.device.casefold().split())]
    sheets = [sheet for sheet in named if sheet.memory_gib]
    sizes = {sheet.memory_gib for sheet in sheets}
    if len(sizes) > 1:
        names = ", ".join(sorted(sheet.device for sheet in sheets))
        raise UsageError(f"--for {text}: that is one of {names} - name one, or give its memory, such as 80GB")
    if not sizes:
        raise UsageError(
            f"--for {text}: neither a size nor a device with a data sheet here - write 80GB, 24GiB or H100"
        )
    name = sheets[0].device if len(sheets) == 1 else text.strip()
    return Limit(name=name, bytes=int((sizes.pop() or 0) * GIB))


class Fit(Struct, kw_only=True):
    """Follows steps on fake tensors, each in turn, and compares their peaks with the limit."""

    options: RunOptions
    limit: Limit
    batch: int
    stage: Callable[[str], None]
    rows: list[TechniqueRow] = []

    def follow(self, variants: Sequence[Variant]) -> list[SimulatedStep]:
        """Return the steps that can be followed, and keep a row of each."""
        steps = []
        results = workers.followed_apart([variant.options for variant in variants], "foreign")
        for variant in variants:
            self.stage(f"{variant.name}: on fake tensors")
            step = next(results).step
            row = TechniqueRow(
                name=variant.name, title=variant.title, option=variant.option, keeps_result=variant.keeps_result
            )
            if isinstance(step, str):
                self.rows.append(replace(row, not_predicted=step))
                continue
            self.rows.append(replace(row, predicted=predicted_figures(step, None, {}, 0)))
            steps.append(step)
        return steps

    def fits(self, row: TechniqueRow) -> bool:
        """Return whether the predicted peak is within the limit."""
        return self._peak(row) <= self.limit.bytes

    def _peak(self, row: TechniqueRow) -> float:
        peak = None if row.predicted is None else row.predicted.peak_bytes
        return float("inf") if peak is None else peak

    def try_techniques(self, situation: Situation) -> None:
        """Follow the techniques that lower memory, and together those that lower it most, until a step fits."""
        _, *singles = variants_of(situation, only=TRIED)
        possible = [variant for variant in singles if not variant.impossible and variant.options != self.options]
        self.follow(possible)
        known = {variant.name: variant for variant in possible}
        lowering = sorted((row for row in self.rows[1:] if self._peak(row) < self._peak(self.rows[0])), key=self._peak)
        together: list[str] = []
        for row in lowering:
            if any(map(self.fits, self.rows)) or len(together) == _TOGETHER:
                return
            changed = {option for name in together for option in known[name].changes}
            if changed & known[row.name].changes.keys():
                continue
            together.append(row.name)
            if len(together) > 1:
                text = AND.join(together)
                self.follow(variants_of(situation, only=TRIED[:1], combine=(text,))[-1:])

    def largest_batch(self) -> Limit:
        """Return the limit with the largest batch whose step fits, 0 if a batch of one does not."""
        peaks: dict[int, int] = {}

        def peak(batch: int) -> int:
            if batch not in peaks:
                self.stage(f"batch {batch}: on fake tensors")
                step = next(workers.followed_apart([replace(self.options, batch=batch)], "foreign")).step
                if isinstance(step, str):
                    raise JobFailed(step)
                peaks[batch] = predicted_figures(step, None, {}, 0).peak_bytes or 0
            return peaks[batch]

        low, high = 0, _LARGEST
        guess = self.batch
        while high > low + 1:
            if peak(guess) <= self.limit.bytes:
                low = guess
            else:
                high = guess
            guess = _next_guess(peaks, low, high, self.limit.bytes)
        return replace(self.limit, largest_batch=low, largest_batch_peak_bytes=peaks.get(low))


def _next_guess(peaks: dict[int, int], low: int, high: int, limit: int) -> int:
    """Return a batch between `low`, which fits, and `high`, which does not.

    While a phase is the highest, the peak is a line over the batch.
    """
    if len(peaks) > _BY_LINE and high < _LARGEST:
        return (low + high) // 2
    guess = 2 * max(peaks)
    near = sorted(peaks, key=lambda batch: abs(peaks[batch] - limit))[:2]
    if len(near) == 2 and peaks[near[0]] != peaks[near[1]]:
        slope = (peaks[near[0]] - peaks[near[1]]) / (near[0] - near[1])
        guess = near[0] + int((limit - peaks[near[0]]) // slope)
    elif high < _LARGEST:
        guess = high // 2
    return min(max(guess, low + 1), high - 1)


def fit_of(
    options: RunOptions, limit: Limit, *, find_batch: bool, command: str, stage: Callable[[str], None]
) -> Techniques:
    """Return the predicted peak of a step next to the limit, and of techniques if it does not fit; nothing is run.

    Raises `OpanatomyError` if the step cannot be followed on fake tensors.
    """
    if find_batch and is_function(options.model):
        raise UsageError(
            f"--find batch: {options.model} makes its own inputs - have it make larger ones, and ask again"
        )
    stage("starting")
    situation = situation_of(options)
    fit = Fit(options=options, limit=limit, batch=situation.batch, stage=stage)
    baseline, *_ = variants_of(situation, only=TRIED[:1])
    steps = fit.follow([baseline])
    if not steps:
        raise OpanatomyError(f"whether it fits is not known: {fit.rows[0].not_predicted}")
    if not fit.fits(fit.rows[0]) and not options.inference:
        fit.try_techniques(situation)
    if find_batch:
        limit = fit.largest_batch()
    step = steps[0]
    report = Techniques(
        opanatomy=__version__, command=command, created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        environment=Environment(device_kind=step.device.partition(":")[0], device_memory_bytes=limit.bytes),
        workload=step.workload,
        rows=tuple(fit.rows), seed=options.seed, repetitions=0, predicted_only=True, limit=limit,
        warnings=(_NO_GPU,) if step.device == "cpu" and options.device != "cpu" else (),
    )  # fmt: skip
    return replace(report, advice=advice_of(report))


def why_not(report: Techniques) -> str | None:
    """Return why the baseline does not fit, in one line; `None` if it does."""
    peak, limit = report.baseline.predicted, report.limit
    if limit is None or peak is None or peak.peak_bytes is None or peak.peak_bytes <= limit.bytes:
        return None
    fitting = [advice.option for advice in report.advice if advice.fits and advice.option]
    how = f"it fits with {fitting[0]}" if fitting else "no technique tried makes it fit"
    return f"it needs {size(peak.peak_bytes)} of {size(limit.bytes)}: {how}"
