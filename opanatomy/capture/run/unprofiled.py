"""Build a fresh model and stepper for uninstrumented runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.capture.ceilings import load_of
from opanatomy.capture.device.environment import choose_device
from opanatomy.capture.model.workload import Prepared, prepare, workload_of
from opanatomy.capture.run.progress import NullProgress
from opanatomy.capture.run.restore import RandomState, SavedState
from opanatomy.capture.run.scaling import prepared_loss_scale
from opanatomy.capture.run.step_runner import make_stepper, step_environment
from opanatomy.capture.step.loss_scale import FIRST, LossScale
from opanatomy.capture.step.stepper import StepObserver, Stepper
from opanatomy.capture.subject import Subject
from opanatomy.errors import CaptureError
from opanatomy.options import RunOptions
from opanatomy.records.experiment import Difference, Repetition, Sameness, ScaledGradients, Underflow
from opanatomy.records.workload import MachineLoad

if TYPE_CHECKING:
    import torch


@contextmanager
def ready_to_step(
    options: RunOptions, change: Callable[[torch.nn.Module], None] = lambda module: None
) -> Iterator[tuple[Prepared, Stepper]]:
    """Yield the model, after `change`, and its stepper with the loss scale found; on the CPU within free memory."""
    device = choose_device(options.device)
    options = replace(options, device=device)
    with step_environment(options):
        prepared = prepare(options)
        change(prepared.module)
        subject = Subject(module=prepared.module, inputs=prepared.inputs, workload=workload_of(prepared, options))
        stepper = make_stepper(subject, options)
        kept = SavedState.of(subject.module, subject.inputs, device, weights=options.amp == "fp16")
        prepared_loss_scale(stepper, kept, NullProgress())
        yield prepared, stepper


# The wall time of steps without profiler, hooks or observers.


#: Minimum and maximum number of repeated steps, and the time after which repetition stops.
_MIN_STEPS, _MAX_STEPS, _LONG_NS = 3, 50, 2 * 10**9
#: The default number of warm-up steps: the first makes the optimizer's state, the second settles.
_WARMUP: Final = 2


def step_times(options: RunOptions) -> Repetition:
    """Return the times of single steps, after the warm-up of a fresh model, and the load of the machine meanwhile.

    For a run on texts each is the mean over its batches.
    """
    with ready_to_step(options) as (prepared, stepper):
        for _ in range(_WARMUP if options.warmup is None else options.warmup):
            stepper.run()
        texts = prepared.texts
        before = load_of(stepper.device)
        times: list[int] = []
        while len(times) < _MIN_STEPS or (sum(times) < _LONG_NS and len(times) < _MAX_STEPS):
            batches = None if texts is None else texts.batches
            times.append(_clocked(stepper) if batches is None else _mean_over(batches, stepper))
        load = MachineLoad(before=before, after=load_of(stepper.device))
    return Repetition(times_ns=tuple(times), load=load)


def _clocked(stepper: Stepper) -> int:
    begin = time.perf_counter_ns()
    stepper.run()
    return time.perf_counter_ns() - begin


def _mean_over(batches: Sequence[dict[str, Any]], stepper: Stepper) -> int:
    """Return the mean step time over the batches."""
    total = 0
    for batch in batches:
        stepper.take(batch)
        total += _clocked(stepper)
    return total // len(batches)


# Compare a step's loss, gradients and updated weights, without dropout, with those of another run.


#: The unit of rounding of float32, the type of all comparisons.
_EPSILON: Final = float(np.finfo(np.float32).eps)
#: An operator's results differ beyond rounding if they differ by more than this fraction of the sum of magnitudes.
_DIFFERS: Final = 1e-4


class _Call(Struct, frozen=True):
    """One call of an operator: its name, the shape of each result, the sums of the magnitudes in them."""

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    sums: tuple[float, ...]

    @property
    def kind(self) -> tuple[str, tuple[tuple[int, ...], ...]]:
        """Return the common key of calls that can be compared."""
        return self.operator, self.shapes


class _Summed(Struct, frozen=True):
    """The shape of a tensor, and the sum of the magnitudes in it."""

    shape: tuple[int, ...]
    magnitude: float


class _Files(Struct, frozen=True):
    """The files of a run's arrays."""

    folder: Path

    def array(self, kind: str, name: str) -> Path:
        """Return the file of one parameter's gradient or weight."""
        return self.folder / f"{kind}.{name}.npy"

    def name_of(self, file: str) -> str:
        """Return the parameter of a file."""
        return file.partition(".")[2].removesuffix(".npy")


class LossWatch(StepObserver):
    """The sum of the tensors that backward starts from, over the parts of a step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def after_forward(self, roots: tuple[torch.Tensor, ...]) -> None:
        """Add the loss; outputs that are no single number are summed."""
        self.losses.append(sum(float(root.detach().double().sum()) for root in roots))


def keep_outcome(options: RunOptions, folder: Path) -> float | None:
    """Run one step and keep its gradients and weights in `folder`; return its loss."""
    folder.mkdir(parents=True, exist_ok=True)
    files = _Files(folder)
    with _stepped(options) as (module, loss):
        for kind, name, array in _arrays(module):
            np.save(files.array(kind, name), array)
    return loss


def compare_outcome(options: RunOptions, folder: Path, loss: float | None) -> Sameness:
    """Run one step and compare it with the one from `keep_outcome`."""
    files = _Files(folder)
    sums = {"gradient": [0.0, 0.0], "weight": [0.0, 0.0]}
    worst: dict[str, Difference] = {}
    missing: set[str] = set()
    unmatched = {path.name for path in folder.iterdir()}
    with _stepped(options) as (module, ours):
        for kind, name, array in _arrays(module):
            path = files.array(kind, name)
            if path.name not in unmatched:
                missing.add(name)
                continue
            unmatched.remove(path.name)
            theirs = np.load(path, mmap_mode="r")
            difference, size = _squares(array - theirs), _squares(theirs)
            sums[kind][0] += difference
            sums[kind][1] += size
            units = _units(difference, size)
            if kind not in worst or units > worst[kind].units:
                worst[kind] = Difference(name=name, units=units)
    return Sameness(
        loss_units=None if loss is None or ours is None else abs(ours - loss) / (max(abs(loss), 1e-30) * _EPSILON),
        gradient_units=_units(*sums["gradient"]),
        weight_units=_units(*sums["weight"]),
        worst_gradient=worst.get("gradient"),
        not_compared=tuple(sorted(missing | set(map(files.name_of, unmatched)))),
    )


def first_difference(options: RunOptions, baseline: RunOptions) -> str | None:
    """Return the first operator of the step whose result differs from the like call of the baseline.

    `None` if all results agree, the steps have no like calls, or this torch cannot tell.
    """
    theirs, ours = _logged(baseline), _logged(options)
    matcher = SequenceMatcher(a=[call.kind for call in theirs], b=[call.kind for call in ours], autojunk=False)
    for block in matcher.get_matching_blocks():
        for index in range(block.size):
            old, new = theirs[block.a + index], ours[block.b + index]
            if any(not abs(a - b) <= _DIFFERS * max(abs(a), 1e-12) for a, b in zip(old.sums, new.sums, strict=True)):
                return new.operator
    return None


def losses(options: RunOptions, steps: int) -> tuple[float, ...]:
    """Return the loss of each of `steps` consecutive steps on the same batch."""
    with ready_to_step(options, without_dropout) as (_, stepper):
        watch = LossWatch()
        stepper.watch = watch
        curve = []
        for _ in range(steps):
            watch.losses.clear()
            stepper.run()
            curve.append(_mean(watch.losses))
    return tuple(curve)


# ------------------------------------------------------------------------------------------------------------ one step


@contextmanager
def _stepped(options: RunOptions) -> Iterator[tuple[torch.nn.Module, float | None]]:
    """Yield the model after one step, and its loss."""
    with ready_to_step(options, without_dropout) as (prepared, stepper):
        watch = LossWatch()
        stepper.watch = watch
        stepper.run()
        yield prepared.module, _mean(watch.losses)


def _logged(options: RunOptions) -> list[_Call]:
    """Return the calls of a step with sums of their results; empty without torch's debug mode."""
    try:
        from torch.utils._debug_mode import DebugMode
    except ImportError:
        return []
    mode: Any = DebugMode
    with ready_to_step(options, without_dropout) as (_, stepper):
        with mode(record_output=True) as debug, mode.log_tensor_hashes(hash_fn=_summed):
            stepper.gradients_only()
        logs = [log for log in debug.logs if hasattr(log, "op") and (log.log or {}).get("hash") is not None]
        return [_call(str(log.op), list(_sums_in(log.log["hash"]))) for log in logs]


def _call(operator: str, results: Sequence[_Summed]) -> _Call:
    return _Call(operator, tuple(one.shape for one in results), tuple(one.magnitude for one in results))


def _summed(tensor: torch.Tensor) -> _Summed:
    return _Summed(tuple(tensor.shape), float(tensor.detach().double().abs().sum()))


def _sums_in(value: Any) -> Iterator[_Summed]:
    if isinstance(value, _Summed):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _sums_in(item)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def without_dropout(module: torch.nn.Module) -> None:
    """Remove all dropout from a model: random numbers depend on how a step is run."""
    import torch

    for child in module.modules():
        if isinstance(child, torch.nn.modules.dropout._DropoutNd):
            child.p = 0.0
        for name, value in vars(child).items():
            if "drop" in name and isinstance(value, float):
                setattr(child, name, 0.0)


def _arrays(module: torch.nn.Module) -> Iterator[tuple[str, str, Any]]:
    """Yield gradients and weights of the trained parameters, as float32 arrays by name."""
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            yield "gradient", name, parameter.grad.detach().float().cpu().numpy()
        if parameter.requires_grad:
            yield "weight", name, parameter.detach().float().cpu().numpy()


def _squares(array: Any) -> float:
    return float(np.square(array, dtype=np.float64).sum())


def _units(difference: float, size: float) -> float:
    """Return the relative norm of a difference, in units of rounding."""
    if not difference:
        return 0.0
    return float("inf") if not size else (difference / size) ** 0.5 / _EPSILON


# Count gradient elements that become zero under float16, with the loss scaled and without.


_UNSCALED: Final = 1.0


class _Reference(Struct, frozen=True):
    """The finite and nonzero elements of each parameter's gradient without autocast, on the host."""

    nonzero: dict[str, torch.Tensor]

    @property
    def elements(self) -> int:
        """Return the number of elements of the gradients."""
        return sum(mask.numel() for mask in self.nonzero.values())


def gradient_underflow(options: RunOptions) -> Underflow:
    """Compare the gradients of one step under float16 autocast with those without, at each scale of the loss.

    Raises `CaptureError` if the run does not scale its loss, or if this torch computes in another data type.
    """
    with ready_to_step(options, without_dropout) as (prepared, stepper):
        loss_scale = stepper.loss_scale
        if loss_scale is None:
            raise CaptureError(
                "the loss is not scaled: the trained weights are float16, or there is no float16 autocast"
            )
        _check_float16(stepper)
        scale = loss_scale.now()
        run = _runner(stepper, loss_scale)
        run(None)
        reference = _Reference({name: _nonzero(gradient) for name, gradient in _gradients(prepared.module)})

        def at(number: float) -> ScaledGradients:
            run(number)
            return _compared(prepared.module, reference, number)

        return Underflow(
            elements=reference.elements,
            nonzero=sum(int(mask.sum()) for mask in reference.nonzero.values()),
            scaled=at(scale),
            unscaled=at(_UNSCALED),
            at_first_scale=None if scale == FIRST else at(FIRST),
        )


def _runner(stepper: Stepper, loss_scale: LossScale) -> Callable[[float | None], None]:
    """Return a function that computes a step's gradients at a loss scale, or without autocast for `None`.

    Each step draws the same random numbers.
    """
    random, amp = RandomState.of(stepper.device), stepper.amp

    def run(scale: float | None) -> None:
        random.restore()
        stepper.amp, stepper.loss_scale = (None, None) if scale is None else (amp, loss_scale)
        if scale is not None:
            loss_scale.start(scale)
        stepper.gradients_only()

    return run


def _check_float16(stepper: Stepper) -> None:
    """Raise an error if contractions under autocast are not float16: their gradients would show nothing."""
    import torch

    factor = torch.ones(1, 1, device=stepper.device)
    with stepper.autocast():
        computed = torch.mm(factor, factor).dtype
    if computed is not torch.float16:
        raise CaptureError(
            f"under float16 autocast, torch {torch.__version__} computes matmuls on this device in {computed}"
        )


def _compared(module: torch.nn.Module, reference: _Reference, scale: float) -> ScaledGradients:
    """Compare the gradients with the reference; a missing one (an expert that got no token) is zero."""
    gradients = dict(_gradients(module))
    zeros = 0
    for name, mask in reference.nonzero.items():
        lost = mask & (gradients[name] == 0).cpu() if name in gradients else mask
        zeros += int(lost.sum())
    not_finite = sum(int((~gradient.isfinite()).sum()) for gradient in gradients.values())
    return ScaledGradients(scale=scale, zeros=zeros, not_finite=not_finite)


def _nonzero(gradient: torch.Tensor) -> torch.Tensor:
    return (gradient.isfinite() & (gradient != 0)).cpu()


def _gradients(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the gradient of each parameter that has one, by name."""
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            gradient = parameter.grad.detach()
            yield name, gradient.to_dense() if gradient.is_sparse else gradient
