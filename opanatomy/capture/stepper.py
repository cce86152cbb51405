"""One training step: forward, backward and optimizer, each in its phase range."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from opanatomy.capture.ranges import phase_range
from opanatomy.errors import CaptureError, UsageError
from opanatomy.model import Phase

if TYPE_CHECKING:
    import torch

AMP_DTYPES = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16", "float16": "float16"}
OPTIMIZERS = ("adamw", "adamw-foreach", "adamw-loop", "adamw8bit", "adam", "sgd", "adafactor")
_NO_BITSANDBYTES = (
    "--optimizer adamw8bit needs bitsandbytes, which is not installed - pip install 'opanatomy[bitsandbytes]'"
)


def check_optimizer(name: str | None) -> None:
    """Refuse a name that is none, and what needs a package that is not there, before anything is built."""
    if name is not None and name not in OPTIMIZERS:
        raise UsageError(f"--optimizer {name}: no such optimizer - one of {', '.join(OPTIMIZERS)}")
    if name == "adamw8bit" and find_spec("bitsandbytes") is None:
        raise CaptureError(_NO_BITSANDBYTES)


def make_optimizer(name: str, module: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer `name` over the trainable parameters; `adamw` is fused, the default of the Trainer."""
    import torch

    check_optimizer(name)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not parameters:
        raise CaptureError(f"cannot make the optimizer {name}: the model has no trainable parameter")
    match name:
        case "adamw":
            return torch.optim.AdamW(parameters, lr=1e-5, fused=True)
        case "adamw-foreach":
            return torch.optim.AdamW(parameters, lr=1e-5, foreach=True)
        case "adamw-loop":
            return torch.optim.AdamW(parameters, lr=1e-5, foreach=False)
        case "adam":
            return torch.optim.Adam(parameters, lr=1e-5, fused=True)
        case "sgd":
            return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)
        case "adafactor":
            return torch.optim.Adafactor(parameters)
        case _:
            return _eight_bit_adamw(parameters)


def _eight_bit_adamw(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    try:
        import bitsandbytes
    except ImportError as error:
        raise CaptureError(_NO_BITSANDBYTES) from error
    made: torch.optim.Optimizer = bitsandbytes.optim.AdamW8bit(parameters, lr=1e-5)
    return made


class StepWatch:
    """Told where a step is; this one does nothing."""

    def forward(self) -> AbstractContextManager[Any]:
        """Is open around forward."""
        return nullcontext()

    def after_forward(self, roots: tuple[torch.Tensor, ...]) -> None:
        """Forward is done; of its output only what backward starts from, `roots`, still lives."""

    def after_backward(self) -> None:
        """The gradients are there."""

    def after_optimizer(self) -> None:
        """The weights are updated."""


@dataclass(slots=True, kw_only=True)
class Stepper:
    """Runs steps of one model on one batch; `phase` is the one it is in, for messages when a step fails."""

    module: Callable[..., Any]
    parameters: tuple[torch.nn.Parameter, ...]
    inputs: dict[str, Any] | tuple[Any, ...]
    device: str
    amp: str | None = None
    optimizer: torch.optim.Optimizer | None = None
    inference: bool = False
    scaler: Any = None
    phase: Phase = Phase.OTHER
    watch: StepWatch = field(default_factory=StepWatch)

    def __post_init__(self) -> None:
        import torch

        if self.amp == "fp16" and not self.inference:
            self.scaler = torch.amp.GradScaler(self.device.split(":")[0])

    def run(self) -> None:
        """One step; the gradients are freed before it, not after, so that they can be measured."""
        self.free_gradients()
        try:
            self._forward_backward()
            if self.optimizer is not None and not self.inference:
                self._update()
                self.watch.after_optimizer()
        finally:
            self.synchronize()
        self.phase = Phase.OTHER

    def free_gradients(self) -> None:
        """Let go of the gradients of the step before."""
        for leaf in (*self.parameters, *self._input_leaves()):
            leaf.grad = None

    def _input_leaves(self) -> list[torch.Tensor]:
        """The inputs that collect gradients: a step that adds to those of the one before is another step."""
        values = self.inputs.values() if isinstance(self.inputs, dict) else self.inputs
        return [tensor for tensor in _tensors(tuple(values)) if tensor.is_leaf and tensor.requires_grad]

    def _forward_backward(self) -> None:
        import torch

        self.phase = Phase.FORWARD
        with phase_range(Phase.FORWARD), torch.set_grad_enabled(not self.inference):
            with self.watch.forward(), self._autocast():
                output = self._call()
            loss, gradients = _backward_roots(output) if not self.inference else ((), ())
        del output
        self.watch.after_forward(loss)
        if self.inference:
            return
        self.phase = Phase.BACKWARD
        with phase_range(Phase.BACKWARD):
            if self.scaler is not None:
                loss = tuple(self.scaler.scale(root) for root in loss)
            torch.autograd.backward(loss, gradients)
        self.watch.after_backward()

    def _update(self) -> None:
        self.phase = Phase.OPTIMIZER
        assert self.optimizer is not None
        with phase_range(Phase.OPTIMIZER):
            if self.scaler is not None:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()

    def _call(self) -> Any:
        if isinstance(self.inputs, dict):
            return self.module(**self.inputs)
        return self.module(*self.inputs)

    def _autocast(self) -> AbstractContextManager[Any]:
        import torch

        if self.amp is None:
            return nullcontext()
        return torch.autocast(self.device.split(":")[0], dtype=getattr(torch, AMP_DTYPES[self.amp]))

    def synchronize(self) -> None:
        """Wait for the device."""
        import torch

        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)


def _backward_roots(output: Any) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor | None, ...]]:
    """What backward starts from: the loss where the model gives one, else every output with a gradient of ones."""
    import torch

    loss = output.get("loss") if hasattr(output, "get") else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        if not loss.requires_grad:
            raise CaptureError(
                "cannot run backward: the model's loss does not require a gradient"
                " - do not detach it, use --inference, or unfreeze a parameter"
            )
        return (loss,), (_start(loss),)
    roots = tuple(tensor for tensor in _tensors(output) if tensor.requires_grad)
    if not roots:
        raise CaptureError(
            "cannot run backward: the model's output has neither a loss nor a tensor that requires a gradient"
            " - use --inference, or unfreeze a parameter"
        )
    return roots, tuple(map(_start, roots))


def _start(root: torch.Tensor) -> torch.Tensor | None:
    """The gradient that backward starts with: ones, which torch takes by itself for a single number."""
    import torch

    return torch.ones_like(root) if root.numel() != 1 else None


def _tensors(value: Any) -> list[torch.Tensor]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in _tensors(item)]
