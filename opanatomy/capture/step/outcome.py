"""What a step makes: its loss, gradients and updated weights, without dropout, to be held against another run's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.capture.device.devices import current_device
from opanatomy.capture.device.environment import choose_device
from opanatomy.capture.model.quiet import quiet_libraries
from opanatomy.capture.model.workload import prepare, workload_of
from opanatomy.capture.step.loss_scale import prepared_loss_scale
from opanatomy.capture.step.progress_hooks import NullProgress
from opanatomy.capture.step.recorder import make_stepper
from opanatomy.capture.step.restore import Kept
from opanatomy.capture.step.stepper import StepObserver, Stepper
from opanatomy.capture.step.subject import Subject
from opanatomy.options import RunOptions
from opanatomy.records.sameness import Difference, Sameness

if TYPE_CHECKING:
    import torch

    from opanatomy.capture.model.workload import Prepared

#: The unit of rounding of float32, which all is compared in.
_EPSILON: Final = float(np.finfo(np.float32).eps)
#: Results of one operator that are further apart, in parts of the sum of magnitudes, are no rounding of it.
_DIFFERS: Final = 1e-4


class _Call(Struct, frozen=True):
    """One call of an operator: its name, the shapes that it gives, the sums of the magnitudes in them."""

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    sums: tuple[float, ...]


class _Files(Struct, frozen=True):
    """Where the arrays of a run are."""

    folder: Path

    def array(self, kind: str, name: str) -> Path:
        """The file of one parameter's gradient or weight."""
        return self.folder / f"{kind}.{name}.npy"


class LossWatch(StepObserver):
    """Sums up what backward starts from, over the parts of a step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def after_forward(self, roots: tuple[torch.Tensor, ...]) -> None:
        """Take in the loss; outputs that are no single number are summed."""
        self.losses.append(sum(float(root.detach().double().sum()) for root in roots))


def keep_outcome(options: RunOptions, folder: Path) -> float | None:
    """Run one step and keep its gradients and weights in `folder`; its loss."""
    folder.mkdir(parents=True, exist_ok=True)
    files = _Files(folder)
    with _stepped(options) as (module, loss):
        for kind, name, array in _arrays(module):
            np.save(files.array(kind, name), array)
    return loss


def compare_outcome(options: RunOptions, folder: Path, loss: float | None) -> Sameness:
    """Run one step and hold it against the one that `keep_outcome` kept."""
    files = _Files(folder)
    sums = {"gradient": [0.0, 0.0], "weight": [0.0, 0.0]}
    worst: dict[str, Difference] = {}
    missing: list[str] = []
    with _stepped(options) as (module, ours):
        for kind, name, array in _arrays(module):
            path = files.array(kind, name)
            if not path.exists():
                missing.append(name)
                continue
            theirs = np.load(path, mmap_mode="r")
            apart, size = _squares(array - theirs), _squares(theirs)
            sums[kind][0] += apart
            sums[kind][1] += size
            units = _units(apart, size)
            if kind not in worst or units > worst[kind].units:
                worst[kind] = Difference(name=name, units=units)
    return Sameness(
        loss_units=None if loss is None or ours is None else abs(ours - loss) / (max(abs(loss), 1e-30) * _EPSILON),
        gradient_units=_units(*sums["gradient"]), weight_units=_units(*sums["weight"]),
        worst_gradient=worst.get("gradient"), not_compared=tuple(sorted(set(missing))),
    )  # fmt: skip


def first_difference(options: RunOptions, baseline: RunOptions) -> str | None:
    """The first operator of the forward whose result is another one than the baseline's; `None` where there is none,
    or this torch cannot say."""
    with _logged(baseline) as theirs, _logged(options) as ours:
        pass
    matcher = SequenceMatcher(a=[(c.operator, c.shapes) for c in theirs], b=[(c.operator, c.shapes) for c in ours],
                              autojunk=False)  # fmt: skip
    for block in matcher.get_matching_blocks():
        for place in range(block.size):
            old, new = theirs[block.a + place], ours[block.b + place]
            if any(abs(a - b) > _DIFFERS * max(abs(a), 1e-12) for a, b in zip(old.sums, new.sums, strict=True)):
                return new.operator
    return None


def losses(options: RunOptions, steps: int) -> tuple[float, ...]:
    """The loss of each of `steps` steps, one after the other on the one batch."""
    with _prepared(options) as (_, stepper):
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
def _prepared(options: RunOptions) -> Iterator[tuple[torch.nn.Module, Stepper]]:
    """The model without dropout and what steps it, its loss scale found."""
    device = choose_device(options.device)
    options = replace(options, device=device)
    with current_device(device), quiet_libraries():
        prepared: Prepared = prepare(options)
        without_dropout(prepared.module)
        subject = Subject(module=prepared.module, inputs=prepared.inputs, workload=workload_of(prepared, options))
        stepper = make_stepper(subject, options)
        kept = Kept.of(subject.module, subject.inputs, device, weights=options.amp == "fp16")
        prepared_loss_scale(stepper, kept, NullProgress())
        yield prepared.module, stepper


@contextmanager
def _stepped(options: RunOptions) -> Iterator[tuple[torch.nn.Module, float | None]]:
    """The model after one step, and the loss of it."""
    with _prepared(options) as (module, stepper):
        watch = LossWatch()
        stepper.watch = watch
        stepper.run()
        yield module, _mean(watch.losses)


@contextmanager
def _logged(options: RunOptions) -> Iterator[list[_Call]]:
    """The calls of a step's forward with sums of their results; none where torch has no debug mode."""
    try:
        from torch.utils._debug_mode import DebugMode
    except ImportError:
        yield []
        return
    mode: Any = DebugMode
    calls: list[_Call] = []
    with _prepared(options) as (_, stepper):
        with mode(record_output=True) as debug, mode.log_tensor_hashes(hash_fn="norm"):
            stepper.gradients_only()
        for log in debug.logs:
            hashed = (getattr(log, "log", None) or {}).get("hash")
            if hashed is None or not hasattr(log, "op"):
                continue
            calls.append(_Call(str(log.op), _shapes(log), _numbers(hashed)))
    yield calls


def _shapes(log: Any) -> tuple[tuple[int, ...], ...]:
    import torch

    values = (*getattr(log, "args", ()),)
    return tuple(tuple(value.shape) for value in values if isinstance(value, torch.Tensor))


def _numbers(value: Any) -> tuple[float, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(number for item in value for number in _numbers(item))
    return (float(value),) if isinstance(value, (int, float)) else ()


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def without_dropout(module: torch.nn.Module) -> None:
    """Take every dropout out of a model: what it draws is another number for each way to run the same step."""
    import torch

    for child in module.modules():
        if isinstance(child, torch.nn.modules.dropout._DropoutNd):
            child.p = 0.0
        for name, value in vars(child).items():
            if "drop" in name and isinstance(value, float):
                setattr(child, name, 0.0)


def _arrays(module: torch.nn.Module) -> Iterator[tuple[str, str, Any]]:
    """Gradients and weights of the parameters that are trained, as float32 arrays by name."""
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            yield "gradient", name, parameter.grad.detach().float().cpu().numpy()
        if parameter.requires_grad:
            yield "weight", name, parameter.detach().float().cpu().numpy()


def _squares(array: Any) -> float:
    return float(np.square(array, dtype=np.float64).sum())


def _units(apart: float, size: float) -> float:
    """The norm of a difference over the norm of what it is of, in units of rounding."""
    if not apart:
        return 0.0
    return float("inf") if not size else (apart / size) ** 0.5 / _EPSILON
