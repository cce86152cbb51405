"""One training step: forward, backward and optimizer, each in its phase range."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from opanatomy.capture.device import accelerators
from opanatomy.capture.model.batches import move
from opanatomy.capture.model.micro_batches import micro_batches
from opanatomy.capture.step.generation import Generator
from opanatomy.capture.step.loss_scale import LossScale
from opanatomy.capture.step.optimizer_state import FinishedState
from opanatomy.capture.step.overrides import keep_embeddings_in_32_bits
from opanatomy.capture.step.ranges import phase_range
from opanatomy.capture.step.roots import Roots, backward_roots, leaves_below, materialized
from opanatomy.capture.step.training import Training
from opanatomy.errors import CaptureError
from opanatomy.option_values import as_asked
from opanatomy.records.data_types import data_type_of
from opanatomy.records.optimizers import BY_NAME, Optimizer
from opanatomy.records.taxonomy import Phase

if TYPE_CHECKING:
    import torch


def check_installed(name: str | None) -> None:
    """Refuse an optimizer that needs a package that is not there, before anything is built."""
    optimizer = None if name is None else BY_NAME[name]
    if optimizer is not None and optimizer.package is not None and find_spec(optimizer.package) is None:
        raise CaptureError(_not_installed(optimizer))


def make_optimizer(name: str, module: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer `name` over the trainable parameters; `adamw` is fused, the default of the Trainer."""
    check_installed(name)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not parameters:
        raise CaptureError(f"cannot make the optimizer {name}: the model has no trainable parameter")
    chosen = BY_NAME[name]
    try:
        home = import_module(f"{chosen.package or 'torch'}.optim")
    except ImportError as error:
        raise CaptureError(_not_installed(chosen)) from error
    made: torch.optim.Optimizer = getattr(home, chosen.torch_class)(_alike(parameters), **chosen.arguments)
    if chosen.full_embeddings:
        keep_embeddings_in_32_bits(made, module)
    return made


def _alike(parameters: list[torch.nn.Parameter]) -> Any:
    """The parameters; those that are spread over ranks in a group of their own, where others are not."""
    spread = [parameter for parameter in parameters if hasattr(parameter, "device_mesh")]
    if len(spread) in (0, len(parameters)):
        return parameters
    whole = [parameter for parameter in parameters if not hasattr(parameter, "device_mesh")]
    return [{"params": whole}, {"params": spread}]


def _not_installed(optimizer: Optimizer) -> str:
    package = optimizer.package
    asked = as_asked(f"--optimizer {optimizer.name}", f"optimizer={optimizer.name!r}")
    return f"{asked} needs {package}, which is not installed - pip install 'opanatomy[{package}]'"


class StepObserver:
    """Is called where a step begins and ends its phases; this one does nothing."""

    def forward(self) -> AbstractContextManager[Any]:
        """Is open around forward."""
        return nullcontext()

    def inputs(self, tensors: list[torch.Tensor]) -> None:
        """A forward in a user's own loop had these tensors from outside of it."""

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
    training: Training = field(default_factory=Training)
    #: Where a step is a generation.
    generator: Generator | None = None
    #: The norm that gradients are scaled down to before the update.
    clip: float | None = None
    #: The arguments of each forward of a step, which accumulate their gradients for one update: `inputs`, or its parts.
    micro_batches: tuple[dict[str, Any] | tuple[Any, ...], ...] = ()
    #: Under float16 autocast, in training.
    loss_scale: LossScale | None = None
    phase: Phase = Phase.OTHER
    #: How many steps have run through.
    steps: int = 0
    #: What a broken update is put back to.
    finished: FinishedState | None = None
    watch: StepObserver = field(default_factory=StepObserver)
    #: What the last backward started from.
    backward_from: str | None = None
    #: Leaves besides the parameters whose gradients belong to one step, such as inputs.
    other_leaves: tuple[torch.Tensor, ...] = ()
    #: Leaves that no module and no input holds, with the gradients that they had; `None` before the first backward.
    strangers: list[tuple[torch.Tensor, torch.Tensor | None]] | None = None

    def __post_init__(self) -> None:
        self.micro_batches = self.micro_batches or (self.inputs,)
        if self.amp == "fp16" and not self.inference and not self.has_float16_gradients:
            self.loss_scale = LossScale(device=self.device)
        if self.optimizer is not None:
            self.finished = FinishedState(optimizer=self.optimizer)
        if self.generator is not None:
            self.generator.enter = self._enter

    @property
    def has_float16_gradients(self) -> bool:
        """Whether a weight that is trained is float16: `GradScaler` refuses to unscale its gradients."""
        import torch

        return any(parameter.dtype == torch.float16 and parameter.requires_grad for parameter in self.parameters)

    def run(self) -> None:
        """One step; the gradients are freed before it, not after, so that they can be measured."""
        self.free_gradients()
        try:
            if self.generator is None:
                self._passes()
            else:
                self._generate(self.generator)
            if self.optimizer is not None and not self.inference:
                self._update()
                self.watch.after_optimizer()
        finally:
            self.synchronize()
        self.steps += 1
        self.phase = Phase.OTHER

    def take(self, inputs: dict[str, Any]) -> None:
        """Run the next steps on this batch, moved to the device."""
        self.inputs = move(inputs, self.device)
        self.micro_batches = micro_batches(self.inputs, len(self.micro_batches))

    def gradients_only(self) -> None:
        """Forward and backward of a step, without the update."""
        self.free_gradients()
        try:
            self._passes()
        finally:
            self.synchronize()
        self.phase = Phase.OTHER

    def start_again(self, *, fresh: bool) -> None:
        """Forget a step that broke: what it began to make of the optimizer's state, all where that was `fresh`."""
        self.phase = Phase.OTHER
        self.free_gradients()
        if self.finished is not None:
            self.finished.clear() if fresh else self.finished.put_back()
        if self.loss_scale is not None:
            self.loss_scale.start_again(self.optimizer)

    def give_back_strangers(self) -> None:
        """Give the leaves that no module holds the gradients that they had."""
        for leaf, gradient in self.strangers or ():
            leaf.grad = gradient

    def _look_for_strangers(self, roots: Roots) -> None:
        known = {id(leaf) for leaf in (*self.parameters, *self.other_leaves)}
        strangers = [leaf for leaf in leaves_below(roots.tensors) if id(leaf) not in known]
        self.strangers = [(leaf, leaf.grad) for leaf in strangers]
        self.other_leaves = (*self.other_leaves, *strangers)
        for leaf in strangers:
            leaf.grad = None

    def free_gradients(self) -> None:
        """Release the gradients of the step before."""
        for leaf in (*self.parameters, *self.other_leaves):
            leaf.grad = None

    def _passes(self) -> None:
        """Forward and backward of each micro-batch."""
        for place, inputs in enumerate(self.micro_batches, start=1):
            with self.training.micro_step(is_last=place == len(self.micro_batches)):
                self._forward_backward(inputs)

    def _forward_backward(self, inputs: dict[str, Any] | tuple[Any, ...]) -> None:
        import torch

        self.phase = Phase.FORWARD
        with phase_range(Phase.FORWARD), torch.set_grad_enabled(not self.inference):
            with self.watch.forward(), self.autocast():
                output = self._call(inputs)
            roots = backward_roots(output) if not self.inference else Roots()
        del output
        self.watch.after_forward(roots.tensors)
        if self.inference:
            return
        self.backward_from = roots.text
        if self.strangers is None:
            self._look_for_strangers(roots)
        self.phase = Phase.BACKWARD
        with phase_range(Phase.BACKWARD):
            self.training.backward(roots, parts=len(self.micro_batches), scale=self.loss_scale)
        self.watch.after_backward()

    def _generate(self, generator: Generator) -> None:
        with self.watch.forward(), self.autocast():
            generator.run()
        self.watch.after_forward(())

    def _enter(self, phase: Phase) -> None:
        self.phase = phase

    def _update(self) -> None:
        self.phase = Phase.OPTIMIZER
        assert self.optimizer is not None
        assert self.finished is not None
        with phase_range(Phase.OPTIMIZER):
            if self.clip is not None:
                self._clip(self.clip, self.optimizer)
            if self.loss_scale is not None:
                self.loss_scale.update(self.optimizer)
            else:
                self.training.update(self.optimizer)
        self.training.after_update()
        self.finished.updated()

    def _clip(self, norm: float, optimizer: torch.optim.Optimizer) -> None:
        """Clip the gradients by the norm of all of them; scaled ones are unscaled before."""
        if self.loss_scale is not None:
            self.loss_scale.scaler.unscale_(optimizer)
        self.training.clip(self.parameters, norm)

    def _call(self, inputs: dict[str, Any] | tuple[Any, ...]) -> Any:
        if isinstance(inputs, dict):
            return materialized(self.module(**inputs))
        return materialized(self.module(*inputs))

    def autocast(self) -> AbstractContextManager[Any]:
        """Is open around forward: what products are computed in."""
        import torch

        if self.amp is None:
            return nullcontext()
        return torch.autocast(
            accelerators.kind_of(self.device), dtype=getattr(torch, data_type_of(self.amp) or self.amp)
        )

    def synchronize(self) -> None:
        """Wait for the device."""
        accelerators.synchronize(self.device)
