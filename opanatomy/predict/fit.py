"""Predict whether a step fits into a device's memory, what makes it fit, and the largest batch that does."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.devices.match import called, near_devices, smallest
from opanatomy.devices.sheets import GIB, Sheet
from opanatomy.errors import OpanatomyError, UsageError
from opanatomy.io.redact import Redactor, redacted
from opanatomy.levers import FIT_CANDIDATES, Context
from opanatomy.memory.allocator import CachingAllocator, OutOfDeviceMemory
from opanatomy.memory.components import GRADIENTS, OF_FORWARD, OPTIMIZER_STATE, WEIGHTS
from opanatomy.options import FIND, RunOptions, spelled
from opanatomy.predict import workers
from opanatomy.predict.absent import Gpu
from opanatomy.predict.experiment import advice_of, predicted_figures
from opanatomy.predict.techniques import AND, Variant, baseline_of, combination_of, lever_context, variants_of
from opanatomy.predict.workers import JobFailed, run_jobs
from opanatomy.records.estimate import Fits, Occupied
from opanatomy.records.experiment import (
    Found,
    Limit,
    SimulatedStep,
    StepFigures,
    TechniqueRow,
    Techniques,
)
from opanatomy.records.patterns import regex
from opanatomy.records.taxonomy import BY_NAME, Phase
from opanatomy.records.workload import Environment
from opanatomy.report.units import noun, size
from opanatomy.version import __version__

_SIZE: Final = regex(r"\s*(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<prefix>[kmgt]?)(?P<binary>i?)b?\s*", re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
#: A smaller value cannot hold a model, and suggests that the unit is missing.
_MIN_BUDGET: Final = 1 << 20
#: Maximum number of techniques combined if none alone makes it fit.
_TOGETHER: Final = 3
#: Number of guesses of the largest batch by linear interpolation; then bisection.
_BY_LINE: Final = 4
#: Lengths are multiples of this.
_LENGTHS: Final = 64
#: No size is larger: the step does not depend on it.
_MAX_SIZE: Final = 1 << 20
#: The device that is the host, and its memory.
CPU: Final = "cpu"
#: Compute capability assumed if no name gives it, or the GPU is not NVIDIA's, whose operators have the same names.
_CAPABILITY: Final = (8, 0)
#: Device memory of a process outside torch's allocator. On an H100 0.54 GB were measured after creating the context and
#: 0.78 GB with a step's kernels loaded, on an H200 0.79 to 0.81 GB (torch 2.11, CUDA 13). The range is assumed to cover
#: older devices and other steps too.
_CONTEXT: Final = (400_000_000, 900_000_000)
#: What NCCL has there for one communicator: 0.54 and 0.69 GB on 2 and 4 A100 (NVIDIA/nccl issue 964), 1.06 GB with the
#: context on 8 H100 (issue 1685).
_COMMUNICATOR: Final = (300_000_000, 800_000_000)
#: The variables in which a user sets the allocator.
_ALLOCATOR: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
#: What `--find` searches for, and its wording.
BATCH: Final = "batch"
_CHECKPOINTING: Final = "checkpointing"
_SIZE_WORDS: Final = {BATCH: "batch", "seq": "length"}
#: The layers of a segment that are tried where recomputing each for itself does not do.
_SEGMENTS: Final = (2, 3, 4, 6, 8, 12)
#: The optimizer assumed for training.
_OPTIMIZER: Final = "adamw"


def limit_of(text: str) -> Limit:
    """Return the memory that `80GB`, `24 GiB`, a device's name or `cpu` means; raise `UsageError` for anything else.

    A size is the memory of a GPU that a process may fill.
    """
    if text.strip().casefold() == CPU:
        if not hasattr(os, "sysconf"):
            raise UsageError(
                "--for cpu: this system's memory size is unknown - use the size itself, such as --for 16GB --device cpu"
            )
        return Limit(name=CPU, bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    sheets = called(text)
    number = None if sheets else _SIZE.fullmatch(text)
    if number is not None:
        base = 1024 if number["binary"] else 1000
        amount = float(number["number"]) * base ** _POWERS[number["prefix"].lower()]
        if amount < _MIN_BUDGET:
            raise UsageError(f"--for {text}: {amount:g} bytes is not a plausible device memory - write 80GB or 24GiB")
        return Limit(name=text.strip(), bytes=int(amount))
    sheets = tuple(sheet for sheet in sheets if sheet.memory_gib)
    if not sheets:
        near = ", ".join(near_devices(text))
        instead = f"did you mean {near}?" if near else "write 80GB, 24GiB, H100 or cpu"
        raise UsageError(f"--for {text}: neither a memory size nor a known device - {instead}")
    sheet = smallest(sheets)
    if sheet is None:
        names = ", ".join(sorted(each.device for each in sheets))
        raise UsageError(f"--for {text}: this could be {names} - use one of these names or a memory size, such as 80GB")
    limit = limit_of_sheet(sheet)
    return limit if len(sheets) == 1 else replace(limit, name=text.strip())


def limit_of_sheet(sheet: Sheet) -> Limit:
    """Return the memory of a device with a data sheet that states it."""
    return Limit(
        name=sheet.device,
        bytes=int((sheet.memory_gib or 0) * GIB),
        usable_bytes=sheet.usable_bytes,
        device=sheet.device,
        capability=sheet.capability,
    )


def gpu_of(limit: Limit) -> Gpu:
    """Return the GPU of that memory."""
    memory = limit.room_bytes
    return Gpu(name=limit.device or limit.name, capability=limit.capability or _CAPABILITY, memory_bytes=memory)


def occupied_of(step: SimulatedStep, limit: Limit) -> Occupied:
    """Return a step's use of a device with this memory.

    It is borderline if it only fits with a small context, or if the allocator has to release unused memory.
    """
    usable = limit.room_bytes
    if not step.requests:
        peak = predicted_figures(step, None, {}, 0).peak_bytes or 0
        fits = Fits.FITS if peak <= usable else Fits.DOES_NOT_FIT
        return Occupied(allocated_bytes=peak, reserved_bytes=peak, low_bytes=peak, high_bytes=peak, fits=fits)
    allocator, (least, most) = _replayed(step), besides_allocator(step.workload.world_size or 1)
    assert allocator is not None
    high = allocator.reserved_peak + most
    if high <= usable:
        fits = Fits.FITS
    else:
        fits = Fits.DOES_NOT_FIT if _replayed(step, usable - least) is None else Fits.AT_THE_EDGE
    return Occupied(
        allocated_bytes=allocator.allocated_peak,
        reserved_bytes=allocator.reserved_peak,
        low_bytes=allocator.reserved_peak + least,
        high_bytes=high,
        fits=fits,
    )


def _replayed(step: SimulatedStep, most: int | None = None) -> CachingAllocator | None:
    """Return the allocator after all requests of a step; `None` if a request does not fit into `most` bytes."""
    expandable = any("expandable_segments:True" in os.environ.get(name, "") for name in _ALLOCATOR)
    allocator, blocks = CachingAllocator(most, expandable=expandable), {}
    try:
        for address, size in step.requests:
            if size:
                blocks[address] = allocator.allocate(size)
            else:
                allocator.free(blocks.pop(address))
    except OutOfDeviceMemory:
        return None
    return allocator


def figures_in(step: SimulatedStep, limit: Limit) -> StepFigures:
    """Return a step's predicted figures, with its use of a GPU."""
    figures = predicted_figures(step, None, {}, 0)
    return replace(figures, occupied=occupied_of(step, limit)) if step.requests else figures


class Fit(Struct, kw_only=True):
    """Simulates steps on fake tensors, one at a time, and compares their peaks with the limit."""

    options: RunOptions
    limit: Limit
    gpu: Gpu | None
    batch: int
    stage: Callable[[str], None]
    rows: list[TechniqueRow] = []

    def follow(self, variants: Sequence[Variant]) -> list[SimulatedStep]:
        """Return the steps that can be followed, and keep a row of each."""
        steps = []
        results = workers.simulate_in_process([variant.options for variant in variants], "foreign", gpu=self.gpu)
        for variant in variants:
            self.stage(f"{variant.name}: on fake tensors")
            step = next(results).step
            row = TechniqueRow(
                name=variant.name, title=variant.title, option=variant.option, keeps_result=variant.keeps_result
            )
            if isinstance(step, str):
                self.rows.append(replace(row, not_predicted=step))
                continue
            self.rows.append(replace(row, predicted=figures_in(step, self.limit)))
            steps.append(step)
        return steps

    def fits(self, row: TechniqueRow) -> bool:
        """Return whether the step certainly fits."""
        return row.predicted is not None and row.predicted.fits(self.limit.bytes) is Fits.FITS

    def _peak(self, row: TechniqueRow) -> float:
        peak = None if row.predicted is None else row.predicted.peak_bytes
        return float("inf") if peak is None else peak

    def try_techniques(self, context: Context) -> None:
        """Simulate techniques that lower memory, and combinations of the best, until a step fits."""
        _, *singles = variants_of(context, only=FIT_CANDIDATES)
        possible = [variant for variant in singles if not variant.blocked_because and variant.options != self.options]
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
                self.follow([combination_of(text, context)])

    def find(self, what: str, first: SimulatedStep) -> Found:
        """Return the largest batch or length that fits for certain, or the fewest layers to recompute.

        Raises `JobFailed` if the first that is tried cannot be followed.
        """
        if what == _CHECKPOINTING:
            return self._fewest_layers(first)
        known, baseline = (self.batch if what == BATCH else first.workload.sequence_length) or 1, self.rows[0].predicted
        assert baseline is not None
        found = Found(what=what, value=0, tried=1)
        if self.fits(self.rows[0]):
            found = replace(found, value=known, option=f"--{what} {known}", peak_bytes=baseline.most_bytes)
        for tried, figures in run_jobs(sizes_tried, self.options, what, self.limit, self.gpu, known, baseline):
            found = replace(found, tried=found.tried + 1)
            if isinstance(figures, str):
                if not found.value:
                    raise JobFailed(figures)
                found = replace(found, ended_by=figures)
                continue
            self.stage(f"{_SIZE_WORDS[what]} {tried}: {figures.fits(self.limit.bytes).value}")
            if tried > (found.value or 0) and figures.fits(self.limit.bytes) is Fits.FITS:
                found = replace(found, value=tried, option=f"--{what} {tried}", peak_bytes=figures.most_bytes)
        return found

    def _fewest_layers(self, first: SimulatedStep) -> Found:
        if first.workload.inference:
            raise UsageError(f"{spelled(FIND, _CHECKPOINTING)}: inference keeps nothing for backward - leave it out")
        layers = first.layers
        if not layers:
            raise UsageError(
                f"{spelled(FIND, _CHECKPOINTING)}: this model has no stack of similar layers - leave it out"
            )
        plain = replace(self.options, checkpointing=None, checkpoint_every=None, checkpoint_layers=None)
        found = Found(what=_CHECKPOINTING, value=None)
        for choice, figures in run_jobs(choices_tried, plain, layers, self.limit, self.gpu):
            if isinstance(figures, str):
                raise JobFailed(figures)
            found = replace(found, tried=found.tried + 1)
            number = choice.checkpoint_layers or (layers if choice.checkpoint_every else 0)
            each = f" in segments of {choice.checkpoint_every}" if choice.checkpoint_every else ""
            self.stage(f"{noun(number, 'layer')} recomputed{each}: {figures.fits(self.limit.bytes).value}")
            if figures.fits(self.limit.bytes) is Fits.FITS:
                forward, again = (figures.flops.get(phase, 0) for phase in (Phase.FORWARD, Phase.RECOMPUTE))
                option = f"--checkpoint-layers {number}" if number else None
                return replace(
                    found,
                    value=number,
                    option=f"--checkpoint-every {choice.checkpoint_every}" if each else option,
                    peak_bytes=figures.most_bytes,
                    recomputed=again / forward if forward else None,
                )
        return found


def choices_tried(
    plain: RunOptions, layers: int, limit: Limit, gpu: Gpu | None
) -> Iterator[tuple[RunOptions, StepFigures | str]]:
    """Yield choices of layers to recompute with their steps' figures, cheapest first, until one fits.

    Runs in a process of its own. The peak may rise from one to the next, so that none is left out, but for those that
    cannot fit: a layer saves at most what it keeps for backward, and weights, gradients and the optimizer's state stay.
    """
    room = limit.room_bytes
    choices = [plain]
    while choices:
        choice = choices.pop(0)
        step = next(workers.followed([choice], samples="foreign", gpu=gpu)).step
        figures = step if isinstance(step, str) else figures_in(step, limit)
        yield choice, figures
        if isinstance(figures, str) or figures.fits(limit.bytes) is Fits.FITS:
            return
        if choice is plain:
            held = figures.components
            kept = sum(held.get(name, 0) for name in OF_FORWARD)
            if sum(held.get(name, 0) for name in (WEIGHTS, GRADIENTS, OPTIMIZER_STATE)) > room or not kept:
                return
            first = max(int(((figures.most_bytes or 0) - room) * layers / kept), 1)
            choices = [replace(plain, checkpoint_layers=number) for number in range(first, layers + 1)]
            choices += [replace(plain, checkpoint_every=number) for number in _SEGMENTS if number <= layers]


def sizes_tried(
    options: RunOptions, what: str, limit: Limit, gpu: Gpu | None, known: int, figures: StepFigures
) -> Iterator[tuple[int, StepFigures | str]]:
    """Yield batches or lengths with their steps' figures, or why simulation failed, until the largest that fits.

    Runs in a process of its own. The figures of the size `known` are there already.
    """
    room, peaks = limit.room_bytes, {known: figures.most_bytes or 0}
    least = options.accumulate if what == BATCH else min(known, _LENGTHS)
    low, high = (known, _MAX_SIZE) if figures.fits(limit.bytes) is Fits.FITS else (0, known)
    guess = _next_guess(peaks, low, high, room)
    while high > low + least:
        guess = min(max(guess // least, low // least + 1), (high - 1) // least) * least
        step = next(workers.followed([replace(options, **{what: guess})], samples="foreign", gpu=gpu)).step
        if isinstance(step, str):
            yield guess, step
            if not low:
                return
            high = guess  # longer than the model's own positions
            guess = (low + high) // 2
            continue
        figures = figures_in(step, limit)
        yield guess, figures
        peaks[guess] = figures.most_bytes or 0
        if figures.fits(limit.bytes) is Fits.FITS:
            low = guess
        else:
            high = guess
        guess = _next_guess(peaks, low, high, room)


def _next_guess(peaks: dict[int, int], low: int, high: int, limit: int) -> int:
    """Return a batch between `low`, which fits, and `high`, which does not.

    As long as the same phase has the peak, that is linear in the batch.
    """
    if len(peaks) > _BY_LINE and high < _MAX_SIZE:
        return (low + high) // 2
    guess = 2 * max(peaks)
    near = sorted(peaks, key=lambda batch: abs(peaks[batch] - limit))[:2]
    if len(near) == 2 and peaks[near[0]] != peaks[near[1]]:
        slope = (peaks[near[0]] - peaks[near[1]]) / (near[0] - near[1])
        guess = near[0] + int((limit - peaks[near[0]]) // slope)
    elif high < _MAX_SIZE:
        guess = high // 2
    return min(max(guess, low + 1), high - 1)


def fit_of(
    options: RunOptions, limit: Limit, *, find: str | None, command: str, stage: Callable[[str], None]
) -> Techniques:
    """Return a step's predicted memory use on a device, and techniques if it does not fit; nothing is run.

    Training uses AdamW if no optimizer is requested. The device is the named one, or the CPU if that is named or
    requested. Raises `OpanatomyError` if the step cannot be simulated on fake tensors.
    """
    stage("starting")
    on_cpu = CPU in (limit.name, options.device)
    options, assumed = with_optimizer(options)
    limit = replace(limit, assumed=assumed if on_cpu else (*assumed, *assumptions(limit)))
    options = replace(options, device=CPU)  # until the step is followed; nothing else is asked of the device
    gpu = None if on_cpu else gpu_of(limit)
    context = lever_context(options)
    fit = Fit(options=options, limit=limit, gpu=gpu, batch=context.batch, stage=stage)
    steps = fit.follow([baseline_of(context)])
    if not steps:
        raise OpanatomyError(f"cannot tell whether it fits: {fit.rows[0].not_predicted}")
    if find is not None:
        limit = replace(limit, found=fit.find(find, steps[0]))
    elif not fit.fits(fit.rows[0]) and not options.inference:
        fit.try_techniques(context)
    step = steps[0]
    report = Techniques(
        opanatomy=__version__,
        command=command,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        environment=Environment(device_kind=step.device.partition(":")[0], device_memory_bytes=limit.bytes),
        workload=step.workload,
        rows=tuple(fit.rows),
        seed=options.seed,
        repetitions=0,
        predicted_only=True,
        limit=limit,
    )
    return redacted(replace(report, advice=advice_of(report)), Redactor(everything=options.redact))


def with_optimizer(options: RunOptions) -> tuple[RunOptions, tuple[str, ...]]:
    """Return the options with an optimizer added if they train without naming one, and this assumption in words."""
    if options.optimizer is not None or options.inference:
        return options, ()
    return replace(options, optimizer=_OPTIMIZER), (f"the optimizer {BY_NAME[_OPTIMIZER].label}",)


def besides_allocator(ranks: int) -> tuple[int, int]:
    """Return the range of a process's device memory outside torch's allocator."""
    more = _COMMUNICATOR if ranks > 1 else (0, 0)
    return _CONTEXT[0] + more[0], _CONTEXT[1] + more[1]


def assumptions(limit: Limit, ranks: int = 1) -> Iterator[str]:
    """Yield the assumptions about a GPU, one of this many that train together."""
    if limit.capability is None:
        yield (
            f"the operators that PyTorch runs on an NVIDIA GPU of compute capability {'.'.join(map(str, _CAPABILITY))}"
        )
    with_nccl = " including NCCL" if ranks > 1 else ""
    yield "a CUDA context of {} to {}".format(*map(size, besides_allocator(ranks))) + with_nccl


def why_not(report: Techniques) -> str | None:
    """Return in one line why nothing requested fits; `None` if it does, or is borderline."""
    figures, limit = report.baseline.predicted, report.limit
    if limit is None or figures is None or figures.most_bytes is None:
        return None
    found = limit.found
    if found is not None:
        if found.option is not None or (found.what == _CHECKPOINTING and found.value == 0):
            return None
    elif figures.fits(limit.bytes) is not Fits.DOES_NOT_FIT:
        return None
    fitting = [advice.option for advice in report.advice if advice.fits and advice.option]
    how = f"it fits with {fitting[0]}" if fitting else "none of the techniques tried makes it fit"
    if found is not None:
        how = "no choice of recomputed layers makes it fit"
        if found.what != _CHECKPOINTING:
            how = f"not even the smallest {_SIZE_WORDS[found.what]} fits"
    return f"the step needs {size(figures.most_bytes)}, but only {size(limit.room_bytes)} can be used: {how}"
