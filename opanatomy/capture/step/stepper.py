"""Run one training step: forward, backward and optimizer, each in its phase range."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from opanatomy.capture.batches import micro_batches, move
from opanatomy.capture.device import accelerators
from opanatomy.capture.model.parts import is_cache
from opanatomy.capture.step.generation import Generator
from opanatomy.capture.step.loss_scale import LossScale
from opanatomy.capture.step.ranges import phase_range
from opanatomy.errors import CaptureError
from opanatomy.options import as_asked
from opanatomy.records.taxonomy import BY_NAME, Optimizer, Phase, data_type_of
from opanatomy.records.workload import SharedWeights

if TYPE_CHECKING:
    import torch

# The tensors that backward starts from: the loss of a model's output if it has one, else all that require a gradient.


#: How deep objects of unknown classes are searched.
_DEPTH: Final = 8


class Roots(Struct, frozen=True, kw_only=True):
    """The tensors that backward starts from, the gradient of each (`None`: one), and their name in messages."""

    tensors: tuple[torch.Tensor, ...] = ()
    gradients: tuple[torch.Tensor | None, ...] = ()
    text: str = ""


class _Leaf(Struct, frozen=True, kw_only=True):
    """A tensor of an output: the expression that leads to it, and the last name or place in that."""

    path: str
    name: str
    tensor: torch.Tensor


def materialized(output: Any) -> Any:
    """Return the output with every generator in it run to its end: only that computes its values."""
    if isinstance(output, (GeneratorType, map, filter, zip)):
        return tuple(materialized(item) for item in output)
    if type(output) in (tuple, list):
        return type(output)(materialized(item) for item in output)
    if type(output) is dict:
        return {key: materialized(item) for key, item in output.items()}
    return output


def backward_roots(output: Any, module: Any) -> Roots:
    """Return the tensors that backward starts from; `CaptureError` if nothing requires a gradient.

    Keys and values that a decoder returns for its next call do not count as output.
    """
    leaves = list(_leaves(output, "output", "", set(), 0, module))
    # The tensor called `loss` on the outermost level that has one, if it is the only one there.
    named = [leaf for leaf in leaves if leaf.name == "loss"]
    depths = [leaf.path.count("[") + leaf.path.count(".") for leaf in named]
    outermost = [leaf for leaf, depth in zip(named, depths, strict=True) if depth == min(depths)]
    if len(outermost) == 1:
        loss = outermost[0]
        if not loss.tensor.requires_grad:
            raise CaptureError(
                "cannot run backward: the model's loss does not require a gradient - do not detach it,"
                f" {as_asked('use --inference', 'pass inference=True')}, or unfreeze a parameter"
            )
        return _roots(outermost, f"{loss.path}{_ones(outermost)}")
    wanted = [leaf for leaf in leaves if leaf.tensor.requires_grad]
    if not wanted:
        raise CaptureError(
            "cannot run backward: the model's output has neither a loss nor a tensor that requires a gradient"
            f" - {as_asked('use --inference', 'pass inference=True')}, or unfreeze a parameter"
        )
    numbers = [leaf for leaf in wanted if leaf.tensor.dim() == 0]
    if len(numbers) == 1:
        path = numbers[0].path
        if len(leaves) == 1:
            return _roots(numbers, f"{path}, a scalar")
        index = next(index for index, leaf in enumerate(leaves, 1) if leaf is numbers[0])
        which = {1: "the first", len(leaves): "the last"}.get(index, f"number {index}")
        return _roots(numbers, f"{path}, {which} of {len(leaves)} outputs and the only scalar")
    if len(wanted) == 1:
        return _roots(wanted, f"{wanted[0].path}{_ones(wanted)}")
    names = ", ".join(leaf.path for leaf in wanted[:4]) + (", ..." if len(wanted) > 4 else "")
    return _roots(wanted, f"every output that requires a gradient ({len(wanted)} tensors: {names}){_ones(wanted)}")


def averaged(roots: Roots, parts: int) -> tuple[torch.Tensor, ...]:
    """Return the backward roots of one of this many micro-batches.

    A scalar, which is a mean over its samples, is divided; outputs that start with a gradient of ones are left as they
    are, since they sum over the samples.
    """
    return tuple(
        root / parts if gradient is None else root
        for root, gradient in zip(roots.tensors, roots.gradients, strict=True)
    )


def _roots(leaves: list[_Leaf], text: str) -> Roots:
    import torch

    tensors = tuple(leaf.tensor for leaf in leaves)
    # Backward starts with ones: torch's default for a single real number.
    gradients = (torch.ones_like(root) if root.numel() != 1 or root.is_complex() else None for root in tensors)
    return Roots(tensors=tensors, gradients=tuple(gradients), text=text)


def _ones(leaves: list[_Leaf]) -> str:
    return ", with a gradient of ones" if any(leaf.tensor.numel() != 1 for leaf in leaves) else ""


def _leaves(value: Any, path: str, name: str, seen: set[int], depth: int, module: Any) -> Iterator[_Leaf]:
    """Yield every tensor in an output of `module` once, in order; those in caches are skipped."""
    import torch

    if id(value) in seen:
        return
    if isinstance(value, torch.Tensor):
        seen.add(id(value))
        yield _Leaf(path=path, name=name, tensor=value)
    elif depth < _DEPTH and not is_cache(value, name=name, module=module):
        items = list(_items(value, path))
        if items:
            seen.add(id(value))
        for inner, key, item in items:
            yield from _leaves(item, inner, key, seen, depth + 1, module)


def _items(value: Any, path: str) -> Iterator[tuple[str, str, Any]]:
    """Yield (path, name, value) of an output's items: of mappings, sequences, records and objects of other classes."""
    import torch

    if isinstance(value, Mapping):
        for key, item in list(value.items()):
            yield f"{path}[{key!r}]", str(key), item
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for field, item in zip(value._fields, value, strict=True):
            yield f"{path}.{field}", field, item
    elif isinstance(value, (list, tuple, set, frozenset)) or type(value).__name__ == "deque":
        for index, item in enumerate(value):
            yield f"{path}[{index}]", str(index), item
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield f"{path}.{field.name}", field.name, getattr(value, field.name, None)
    elif not isinstance(value, (str, bytes, int, float, type, torch.nn.Module)) and not callable(value):
        for field, item in islice(_attributes(value), 1000):
            yield f"{path}.{field}", field, item


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    import torch

    yield from list(getattr(value, "__dict__", {}).items())
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name) and not name.startswith("__"):
                yield name, getattr(value, name)
    if not hasattr(value, "__dict__"):
        return
    for name in ("loss", "logits"):
        if name in value.__dict__ or name not in dir(type(value)):
            continue
        try:
            content = getattr(value, name)
        except Exception:  # a property of the model's object may fail
            continue
        if isinstance(content, torch.Tensor):
            yield name, content


def leaves_below(roots: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors of a graph that backward accumulates a gradient in."""
    roots = tuple(roots)
    leaves = [root for root in roots if root.is_leaf]
    waiting: list[Any] = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        variable = getattr(node, "variable", None) if type(node).__name__ == "AccumulateGrad" else None
        if variable is not None:
            leaves.append(variable)
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                waiting.append(below)
    return leaves


# The training of a step: its backward, its update, and its decisions; here for one process, for ranks together in
# `opanatomy.capture.distributed`.


class Training:
    """The training of one process."""

    #: The callable of forward, and the optimizer of its parameters, if these are made already.
    model: torch.nn.Module | None = None
    optimizer: torch.optim.Optimizer | None = None

    #: The first warm-up step without one-time work.
    counted_step = 2

    @property
    def is_shared(self) -> bool:
        """Return whether other ranks take part in each step."""
        return False

    def micro_step(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return the context of forward and backward of a micro-batch."""
        return nullcontext()

    def backward(self, roots: Roots, *, parts: int, scale: LossScale | None) -> None:
        """Run backward from `roots`, for one of `parts` micro-batches."""
        import torch

        loss = averaged(roots, parts) if parts > 1 else roots.tensors
        torch.autograd.backward(loss if scale is None else scale.scaled(loss), roots.gradients)

    def clip(self, parameters: Iterable[torch.Tensor], norm: float) -> None:
        """Clip the gradients to this total norm."""
        from torch.nn.utils import clip_grad_norm_

        clip_grad_norm_(parameters, norm)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Step the optimizer."""
        optimizer.step()

    def after_update(self) -> None:
        """Act after the update of the weights; not a part of the update."""

    def shared_weights(self, module: torch.nn.Module) -> tuple[SharedWeights, ...]:
        """Return the weights of `module` that ranks share, after a step."""
        return ()

    def bucket_bytes(self) -> int | None:
        """Return the bytes of the buckets in which DDP reduces gradients; `None` without DDP."""
        return None

    # --------------------------------------------------------------------------------------------- agreement of ranks

    def longest_ns(self, duration_ns: int) -> int:
        """Return the longest of the ranks' durations."""
        return duration_ns

    def any_rank(self, is_so: bool) -> bool:
        """Return whether it is so on any rank."""
        return is_so

    def all_failed(self, *, failed: bool) -> bool:
        """Return whether an attempted step failed on this rank, and on all others too, so that all try again.

        Raises `CaptureError` if it failed only on some ranks, which have left the others waiting.
        """
        return failed


# The state left by the finished updates of an optimizer, so that an interrupted update can run again.


#: The name of a parameter's update counter in `torch.optim` and bitsandbytes: a number or a one-element tensor.
_COUNTER: Final = "step"


@dataclass(slots=True, kw_only=True)
class FinishedState:
    """The names of each parameter's state after the last complete update; no value is copied or read."""

    optimizer: torch.optim.Optimizer
    names: dict[Any, tuple[str, ...]] = field(default_factory=dict)
    #: How many updates were completed; `None` if the optimizer was not new.
    updates: int | None = 0

    def __post_init__(self) -> None:
        if self.optimizer.state:
            self.updates = None
            self._look()

    def updated(self) -> None:
        """Record a complete update; the cost depends on its new state, usually in the first one."""
        if self.updates is not None:
            self.updates += 1
        if len(self.optimizer.state) != len(self.names):
            self._look()

    def _look(self) -> None:
        self.names = {parameter: tuple(state) for parameter, state in self.optimizer.state.items()}

    def restore(self) -> None:
        """Drop state created by a failed update and decrement its counters; moments keep their values.

        The next update would take partial state for complete, and then fail on missing entries.
        """
        state = self.optimizer.state
        for parameter in [*state]:
            if parameter not in self.names:
                del state[parameter]
            else:
                state[parameter] = {name: state[parameter][name] for name in self.names[parameter]}
                # Count back one update at most: a parameter has no more in each.
                counter = state[parameter].get(_COUNTER)
                if self.updates is not None and counter is not None and float(counter) > self.updates:
                    state[parameter][_COUNTER] -= 1

    def clear(self) -> None:
        """Forget all state."""
        self.optimizer.state.clear()
        self.names, self.updates = {}, 0


# Full state for the embeddings of an 8-bit optimizer of bitsandbytes, and of no other optimizer of the process.


def keep_embeddings_in_32_bits(optimizer: torch.optim.Optimizer, module: torch.nn.Module) -> None:
    """Make `optimizer`, which has not stepped yet, keep the state of every look-up of `module` in 32 bits.

    bitsandbytes uses a process-wide `GlobalOptimManager`, whose overrides are by a parameter's index in its group: the
    next optimizer would inherit them. This optimizer gets a manager of its own, without overrides registered by others.
    """
    import torch
    from bitsandbytes.optim import GlobalOptimManager

    manager: Any = GlobalOptimManager.__new__(GlobalOptimManager)
    manager.initialize()
    for part in module.modules():
        if isinstance(part, torch.nn.Embedding):
            manager.register_module_override(part, "weight", {"optim_bits": 32})
    owner: Any = optimizer
    owner.mng = manager


def check_installed(name: str | None) -> None:
    """Refuse an optimizer that needs a missing package, before anything is built."""
    optimizer = None if name is None else BY_NAME[name]
    if optimizer is not None and optimizer.package is not None and find_spec(optimizer.package) is None:
        raise CaptureError(_not_installed(optimizer))


def make_optimizer(name: str, module: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer `name` over the trainable parameters; `adamw` is fused, the default of the Trainer."""
    check_installed(name)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not parameters:
        raise CaptureError(f"cannot create the optimizer {name}: the model has no trainable parameters")
    chosen = BY_NAME[name]
    try:
        home = import_module(f"{chosen.package or 'torch'}.optim")
    except ImportError as error:
        raise CaptureError(_not_installed(chosen)) from error
    # If only some parameters are spread over ranks, those are in a separate group.
    groups: Any = parameters
    spread = [parameter for parameter in parameters if hasattr(parameter, "device_mesh")]
    if len(spread) not in (0, len(parameters)):
        whole = [parameter for parameter in parameters if not hasattr(parameter, "device_mesh")]
        groups = [{"params": whole}, {"params": spread}]
    made: torch.optim.Optimizer = getattr(home, chosen.torch_class)(groups, **chosen.arguments)
    if chosen.full_embeddings:
        keep_embeddings_in_32_bits(made, module)
    return made


def _not_installed(optimizer: Optimizer) -> str:
    package = optimizer.package
    asked = as_asked(f"--optimizer {optimizer.name}", f"optimizer={optimizer.name!r}")
    return f"{asked} needs {package}, which is not installed - pip install 'opanatomy[{package}]'"


class StepObserver:
    """Callbacks at the begin and end of a step's phases; these do nothing."""

    def forward(self) -> AbstractContextManager[Any]:
        """Return the context of forward."""
        return nullcontext()

    def inputs(self, tensors: list[torch.Tensor]) -> None:
        """Note the outside tensors of a forward in a user's own loop."""

    def after_forward(self, roots: tuple[torch.Tensor, ...]) -> None:
        """Act after forward; only the `roots` of its output, from which backward starts, still live."""

    def after_backward(self) -> None:
        """Act after backward, when the gradients exist."""

    def after_optimizer(self) -> None:
        """Act after the update of the weights."""


@dataclass(slots=True, kw_only=True)
class Stepper:
    """Steps of one model on one batch; `phase` is the current one, for messages when a step fails."""

    module: Callable[..., Any]
    parameters: tuple[torch.nn.Parameter, ...]
    inputs: dict[str, Any] | tuple[Any, ...]
    device: str
    amp: str | None = None
    optimizer: torch.optim.Optimizer | None = None
    inference: bool = False
    training: Training = field(default_factory=Training)
    #: Set if a step is a generation.
    generator: Generator | None = None
    #: The norm that gradients are scaled down to before the update.
    clip: float | None = None
    #: Arguments of each forward of a step, whose gradients accumulate for one update: `inputs`, or its parts.
    micro_batches: tuple[dict[str, Any] | tuple[Any, ...], ...] = ()
    #: Set under float16 autocast, in training.
    loss_scale: LossScale | None = None
    phase: Phase = Phase.OTHER
    #: How many steps were completed.
    steps: int = 0
    #: The state to restore after a broken update.
    finished: FinishedState | None = None
    watch: StepObserver = field(default_factory=StepObserver)
    #: The start of the last backward.
    backward_from: str | None = None
    #: Leaves besides parameters whose gradients belong to one step, such as inputs.
    other_leaves: tuple[torch.Tensor, ...] = ()
    #: Leaves in no module and no input, with their old gradients; `None` before the first backward.
    untracked_leaves: list[tuple[torch.Tensor, torch.Tensor | None]] | None = None

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
        """Return whether a trained weight is float16: `GradScaler` refuses to unscale its gradients."""
        import torch

        return any(parameter.dtype == torch.float16 and parameter.requires_grad for parameter in self.parameters)

    def run(self) -> None:
        """Run one step; the gradients are freed before it, not after, so that they can be measured."""
        self.free_gradients()
        try:
            if self.generator is None:
                self._passes()
            else:
                with self.watch.forward(), self.autocast():
                    self.generator.run()
                self.watch.after_forward(())
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
        """Run forward and backward of a step, without the update."""
        self.free_gradients()
        try:
            self._passes()
        finally:
            self.synchronize()
        self.phase = Phase.OTHER

    def start_again(self, *, fresh: bool) -> None:
        """Forget a step that broke: its beginnings of the optimizer's state, or all of that if it was `fresh`."""
        self.phase = Phase.OTHER
        self.free_gradients()
        if self.finished is not None:
            self.finished.clear() if fresh else self.finished.restore()
        if self.loss_scale is not None:
            self.loss_scale.start_again(self.optimizer)

    def give_back_untracked_leaves(self) -> None:
        """Restore the gradients of leaves outside any module."""
        for leaf, gradient in self.untracked_leaves or ():
            leaf.grad = gradient

    def _find_untracked_leaves(self, roots: Roots) -> None:
        known = {id(leaf) for leaf in (*self.parameters, *self.other_leaves)}
        untracked_leaves = [leaf for leaf in leaves_below(roots.tensors) if id(leaf) not in known]
        self.untracked_leaves = [(leaf, leaf.grad) for leaf in untracked_leaves]
        self.other_leaves = (*self.other_leaves, *untracked_leaves)
        for leaf in untracked_leaves:
            leaf.grad = None

    def free_gradients(self) -> None:
        """Release the gradients of the step before."""
        for leaf in (*self.parameters, *self.other_leaves):
            leaf.grad = None

    def _passes(self) -> None:
        """Run forward and backward of each micro-batch."""
        for index, inputs in enumerate(self.micro_batches, start=1):
            with self.training.micro_step(is_last=index == len(self.micro_batches)):
                self._forward_backward(inputs)

    def _forward_backward(self, inputs: dict[str, Any] | tuple[Any, ...]) -> None:
        import torch

        self.phase = Phase.FORWARD
        with phase_range(Phase.FORWARD), torch.set_grad_enabled(not self.inference):
            with self.watch.forward(), self.autocast():
                output = self.module(**inputs) if isinstance(inputs, dict) else self.module(*inputs)
                output = materialized(output)
            roots = backward_roots(output, self.module) if not self.inference else Roots()
        del output
        self.watch.after_forward(roots.tensors)
        if self.inference:
            return
        self.backward_from = roots.text
        if self.untracked_leaves is None:
            self._find_untracked_leaves(roots)
        self.phase = Phase.BACKWARD
        with phase_range(Phase.BACKWARD):
            self.training.backward(roots, parts=len(self.micro_batches), scale=self.loss_scale)
        self.watch.after_backward()

    def _enter(self, phase: Phase) -> None:
        self.phase = phase

    def _update(self) -> None:
        self.phase = Phase.OPTIMIZER
        assert self.optimizer is not None
        assert self.finished is not None
        with phase_range(Phase.OPTIMIZER):
            if self.clip is not None:
                if self.loss_scale is not None:
                    self.loss_scale.scaler.unscale_(self.optimizer)
                self.training.clip(self.parameters, self.clip)
            if self.loss_scale is not None:
                self.loss_scale.update(self.optimizer)
            else:
                self.training.update(self.optimizer)
        self.training.after_update()
        self.finished.updated()

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of forward, which sets the data type of products."""
        import torch

        if self.amp is None:
            return nullcontext()
        return torch.autocast(
            accelerators.kind_of(self.device), dtype=getattr(torch, data_type_of(self.amp) or self.amp)
        )

    def synchronize(self) -> None:
        """Wait for the device."""
        accelerators.synchronize(self.device)
