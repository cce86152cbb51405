"""The workload as observed in a loop: calls and their arguments, optimizers, data types."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from opanatomy.capture.batches import input_texts, sizes
from opanatomy.capture.device import accelerators
from opanatomy.capture.distributed.group import parallel_kind, place_in_group
from opanatomy.capture.loop.batch import Batch
from opanatomy.capture.loop.modules import LoopModules
from opanatomy.capture.model.parts import class_name, unwrapped, windows_of
from opanatomy.capture.model.workload import attention_of, data_type_name
from opanatomy.capture.step.ranges import has_compiled_parts
from opanatomy.records.taxonomy import OPTIMIZERS, Optimizer
from opanatomy.records.workload import Workload

if TYPE_CHECKING:
    import torch

#: Autocast's data type -> the name of the option.
_AMP: Final = {"bfloat16": "bf16", "float16": "fp16"}


@dataclass(slots=True)
class ObservedWorkload:
    """What the calls of a loop have shown of its workload so far."""

    modules: LoopModules
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    scaler: Any = None
    device: str | None = None
    amp: str | None = None
    #: The inputs of the first call, or of the first that learns.
    sequence_length: int | None = None
    inputs: tuple[str, ...] = ()
    inputs_learn: bool | None = None
    #: Whether, and how, forward operators were recomputed in backward.
    checkpointing: str | None = None

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Note an optimizer that steps."""
        if all(other is not optimizer for other in self.optimizers):
            self.optimizers.append(optimizer)

    def gradient_scaler(self, scaler: Any) -> None:
        """Note a gradient scaler in use."""
        self.scaler = scaler

    def module(self, module: torch.nn.Module) -> None:
        """Note a called module: autocast may begin in any of them."""
        import torch

        kind = accelerators.kind_of(self.device or _device_of(module) or "cpu")
        if torch.is_autocast_enabled(kind):
            self.amp = _AMP.get(data_type_name(torch.get_autocast_dtype(kind)))

    def forward(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, learns: bool | None
    ) -> None:
        """Note an outermost call, and whether it learns (`None`: it has no parameters)."""
        import torch

        self.device = self.device or _device_of(module)
        if self.inputs_learn or torch._C._is_tracing() or (self.inputs and not learns):
            return
        named = dict(kwargs) | {str(place): value for place, value in enumerate(args)}
        inputs: Any = kwargs if kwargs and not args else args if not kwargs else named
        if texts := input_texts(inputs):
            self.inputs, self.inputs_learn = texts, learns
            _, self.sequence_length = sizes(inputs)

    def loss_scale(self) -> float | None:
        """Return the current scale of the loss; on an accelerator this waits for it."""
        return None if self.scaler is None or not self.scaler.is_enabled() else float(self.scaler.get_scale())

    def workload(self, *, steps: int, warmup: int, batch: Batch, inference: bool) -> Workload:
        """Return the observed workload; unobserved fields are `None`."""
        modules = self.modules.trained or self.modules.outermost
        parameters = list({id(one): one for module in modules for one in module.parameters()}.values())
        name = " + ".join(dict.fromkeys(class_name(module) for module in modules)) or None
        place = place_in_group()
        return Workload(
            model=name,
            architecture=name,
            model_source="loop",
            parameters=sum(parameter.numel() for parameter in parameters) if modules else None,
            trainable_parameters=sum(one.numel() for one in parameters if one.requires_grad) if modules else None,
            batch=batch.samples,
            sequence_length=self.sequence_length,
            inputs=self.inputs,
            accumulate=batch.micro_batches if batch.micro_batches > 1 else None,
            dtype=data_type_name(parameters[0].dtype) if parameters else None,
            amp=self.amp,
            loss_scale=self.loss_scale(),
            attention=next(filter(None, map(attention_of, map(unwrapped, modules))), None),
            windows=next(filter(None, map(windows_of, map(unwrapped, modules))), ()),
            checkpointing=self.checkpointing,
            compiled=any(map(has_compiled_parts, modules)),
            optimizer=", ".join(dict.fromkeys(map(optimizer_name, self.optimizers))) or None,
            inference=inference,
            steps=steps,
            warmup=warmup,
            world_size=place.world_size if place else None,
            parallel=parallel_kind(self.modules.outermost) if place else None,
        )


def _device_of(module: torch.nn.Module) -> str | None:
    first = next(module.parameters(), None)
    return None if first is None or first.device.type == "meta" else str(first.device)


def optimizer_name(optimizer: torch.optim.Optimizer) -> str:
    """Return the option that makes an optimizer of this class and state, else its class."""
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
    """Return whether updates are fused, or over lists: torch's default on an accelerator."""
    fused, foreach = optimizer.defaults.get("fused"), optimizer.defaults.get("foreach")
    if not fused and foreach is None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        foreach = bool(parameters) and parameters[0].device.type != "cpu"
    return {"fused": bool(fused), "foreach": bool(foreach)}
