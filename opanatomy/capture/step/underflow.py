"""How many gradient elements become zero under float16, with the loss scaled and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from opanatomy.capture.step.loss_scale import FIRST, LossScale
from opanatomy.capture.step.outcome import without_dropout
from opanatomy.capture.step.ready import ready_to_step
from opanatomy.capture.step.restore import RandomState
from opanatomy.capture.step.stepper import Stepper
from opanatomy.errors import CaptureError
from opanatomy.records.underflow import ScaledGradients, Underflow
from opanatomy.run_options import RunOptions

if TYPE_CHECKING:
    import torch

_UNSCALED: Final = 1.0


class _Reference(Struct, frozen=True):
    """Of each parameter with a gradient which of its elements are finite and not zero without autocast, on the host."""

    nonzero: dict[str, torch.Tensor]

    @property
    def elements(self) -> int:
        """All elements of the gradients."""
        return sum(mask.numel() for mask in self.nonzero.values())


def gradient_underflow(options: RunOptions) -> Underflow:
    """The gradients of one step of a run under float16 autocast compared with those without, at each scale of the loss.

    Raises `CaptureError` where the run does not scale its loss, or where this torch computes in another data type.
    """
    with ready_to_step(options, without_dropout) as (prepared, stepper):
        loss_scale = stepper.loss_scale
        if loss_scale is None:
            raise CaptureError("the loss is not scaled: trained weights are float16, or there is no float16 autocast")
        _check_float16(stepper)
        scale = loss_scale.now()
        run = _runner(stepper, loss_scale)
        run(None)
        reference = _Reference({name: _nonzero(gradient) for name, gradient in _gradients(prepared.module)})

        def at(number: float) -> ScaledGradients:
            run(number)
            return _compared(prepared.module, reference, number)

        return Underflow(
            elements=reference.elements, nonzero=sum(int(mask.sum()) for mask in reference.nonzero.values()),
            scaled=at(scale), unscaled=at(_UNSCALED), at_first_scale=None if scale == FIRST else at(FIRST),
        )  # fmt: skip


def _runner(stepper: Stepper, loss_scale: LossScale) -> Callable[[float | None], None]:
    """What makes the gradients of a step at a scale of the loss, without autocast where there is none; each step draws
    the same random numbers."""
    random, amp = RandomState.of(stepper.device), stepper.amp

    def run(scale: float | None) -> None:
        random.put_back()
        stepper.amp, stepper.loss_scale = (None, None) if scale is None else (amp, loss_scale)
        if scale is not None:
            loss_scale.start(scale)
        stepper.gradients_only()

    return run


def _check_float16(stepper: Stepper) -> None:
    """Refuse where a product under autocast is none of float16: its gradients would tell nothing."""
    import torch

    factor = torch.ones(1, 1, device=stepper.device)
    with stepper.autocast():
        computed = torch.mm(factor, factor).dtype
    if computed is not torch.float16:
        raise CaptureError(f"torch {torch.__version__} computes products under float16 autocast here in {computed}")


def _compared(module: torch.nn.Module, reference: _Reference, scale: float) -> ScaledGradients:
    """What became of the gradients; one that is not there (an expert that got no token) is zero."""
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
    """The gradient of each parameter that has one, by name."""
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            gradient = parameter.grad.detach()
            yield name, gradient.to_dense() if gradient.is_sparse else gradient
