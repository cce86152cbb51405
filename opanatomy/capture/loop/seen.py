"""What a loop showed of its workload: what it called, on what, with which optimizers and data types."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from opanatomy.capture.device import accelerators
from opanatomy.capture.distributed.group import parallel_kind, place_in_group
from opanatomy.capture.loop.modules import LoopModules
from opanatomy.capture.model.batches import input_texts, sizes
from opanatomy.capture.model.workload import attention_of, data_type_name
from opanatomy.capture.model.wrappers import class_name, unwrapped
from opanatomy.capture.step.compiled_parts import has_compiled_parts
from opanatomy.records.optimizers import OPTIMIZERS, Optimizer
from opanatomy.records.workload import Workload

if TYPE_CHECKING:
    import torch

#: What autocast computes in -> the name of the option.
_AMP: Final = {"bfloat16": "bf16", "float16": "fp16"}


@dataclass(slots=True)
class Seen:
    """What was seen of a loop so far."""

    modules: LoopModules
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    scaler: Any = None
    device: str | None = None
    amp: str | None = None
    batch: int | None = None
    sequence_length: int | None = None
    inputs: tuple[str, ...] = ()
    #: Whether forward operators ran again in backward, and how.
    checkpointing: str | None = None

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer steps."""
        if all(other is not optimizer for other in self.optimizers):
            self.optimizers.append(optimizer)

    def gradient_scaler(self, scaler: Any) -> None:
        """A gradient scaler is used."""
        self.scaler = scaler

    def module(self, module: torch.nn.Module) -> None:
        """A module is called: autocast may begin in any of them."""
        import torch

        kind = accelerators.kind_of(self.device or _device_of(module) or "cpu")
        if torch.is_autocast_enabled(kind):
            self.amp = _AMP.get(data_type_name(torch.get_autocast_dtype(kind)))

    def forward(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An outermost module was called; the first with parameters says what a batch is, if it is not just traced."""
        import torch

        self.device = self.device or _device_of(module)
        if (
            self.batch is not None
            or torch._C._is_tracing()
            or (self.modules.trained and module not in self.modules.trained)
        ):
            return
        named = dict(kwargs) | {str(place): value for place, value in enumerate(args)}
        has_tensors = any(hasattr(value, "shape") and len(value.shape) for value in named.values())
        if not has_tensors:
            return
        inputs: Any = kwargs if kwargs and not args else args if not kwargs else named
        self.batch, self.sequence_length = sizes(inputs)
        self.inputs = input_texts(inputs)

    def loss_scale(self) -> float | None:
        """The scale of the loss that is in force; on an accelerator this waits for it."""
        return None if self.scaler is None or not self.scaler.is_enabled() else float(self.scaler.get_scale())

    def workload(self, *, steps: int, warmup: int, passes: int, inference: bool) -> Workload:
        """What was seen as a workload; what was not seen is `None`."""
        modules = self.modules.trained or self.modules.outermost
        parameters = list({id(one): one for module in modules for one in module.parameters()}.values())
        name = " + ".join(dict.fromkeys(class_name(module) for module in modules)) or None
        place = place_in_group()
        parts = passes if passes > 1 and len(modules) == 1 else 1
        return Workload(
            model=name, architecture=name, model_source="loop",
            parameters=sum(parameter.numel() for parameter in parameters) if modules else None,
            trainable_parameters=sum(one.numel() for one in parameters if one.requires_grad) if modules else None,
            batch=None if self.batch is None else self.batch * parts, sequence_length=self.sequence_length,
            inputs=self.inputs, accumulate=parts if parts > 1 else None,
            dtype=data_type_name(parameters[0].dtype) if parameters else None,
            amp=self.amp, loss_scale=self.loss_scale(),
            attention=next(filter(None, map(attention_of, map(unwrapped, modules))), None),
            checkpointing=self.checkpointing, compiled=any(map(has_compiled_parts, modules)),
            optimizer=", ".join(dict.fromkeys(map(optimizer_name, self.optimizers))) or None,
            inference=inference, steps=steps, warmup=warmup, world_size=place.world_size if place else None,
            parallel=parallel_kind(self.modules.outermost) if place else None,
        )  # fmt: skip


def _device_of(module: torch.nn.Module) -> str | None:
    first = next(module.parameters(), None)
    return None if first is None or first.device.type == "meta" else str(first.device)


def optimizer_name(optimizer: torch.optim.Optimizer) -> str:
    """The name of the option that makes an optimizer of such a class and state, else its class."""
    kind = type(optimizer)
    home = kind.__module__.partition(".")[0]
    alike = [
        known
        for known in OPTIMIZERS
        if known.torch_class == kind.__name__ and home == (known.package or "torch") and _has_state_of(known, optimizer)
    ]
    kernels = _kernels(optimizer)
    exact = [known for known in alike if {name: known.arguments.get(name, False) for name in kernels} == kernels]
    chosen = exact or (alike if len(alike) == 1 else [])
    return chosen[0].name if chosen else kind.__name__


def _has_state_of(known: Optimizer, optimizer: torch.optim.Optimizer) -> bool:
    defaults = optimizer.defaults
    same_momentum = bool(defaults.get("momentum")) == bool(known.arguments.get("momentum"))
    return same_momentum and not defaults.get("amsgrad")


def _kernels(optimizer: torch.optim.Optimizer) -> dict[str, bool]:
    """Whether updates are fused, or over lists: torch's default on an accelerator."""
    fused, foreach = optimizer.defaults.get("fused"), optimizer.defaults.get("foreach")
    if not fused and foreach is None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        foreach = bool(parameters) and parameters[0].device.type != "cpu"
    return {"fused": bool(fused), "foreach": bool(foreach)}
