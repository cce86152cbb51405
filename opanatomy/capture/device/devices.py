"""The devices of a run: which one is current, which have a part of the model, and waiting for them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from opanatomy.capture.device import accelerators
from opanatomy.capture.model.batches import tensors_of

if TYPE_CHECKING:
    import torch

_RECORDED: Final = ("cuda", "xpu")


def kineto_records(device: str) -> bool:
    """Whether Kineto records what the device runs, and not only what the host does: where CUPTI, ROCm's or Intel's
    tracer is behind it."""
    return accelerators.kind_of(device) in _RECORDED


def current_device(device: str) -> AbstractContextManager[Any]:
    """Have `device` be the current one inside, and the one of before afterwards.

    What names no device, a Triton kernel, a workspace, `torch.cuda.Stream()`, goes to the current one.
    """
    import torch

    if not accelerators.is_cuda(device):
        return nullcontext()
    current: AbstractContextManager[Any] = torch.cuda.device(device)
    return current


def device_of(module: torch.nn.Module, inputs: dict[str, Any] | tuple[Any, ...]) -> str:
    """The first accelerator that a tensor is on: a part of the module on the host does not make it a run of the CPU."""
    held = [str(tensor.device) for tensor in tensors_of(module, inputs)]
    work = [device for device in held if accelerators.kind_of(device) not in ("cpu", "meta")]
    return accelerators.check_device((work or held or ["cpu"])[0])


def devices_of(module: torch.nn.Module, device: str) -> tuple[str, ...]:
    """`device` first, then the other accelerators with a parameter or buffer of the module, or a part of its map."""
    held = {str(tensor.device) for tensor in (*module.parameters(), *module.buffers())}
    kind = accelerators.kind_of(device) if accelerators.is_accelerator(device) else accelerators.CUDA
    for part in (getattr(module, "hf_device_map", None) or {}).values():
        name = f"{kind}:{part}" if isinstance(part, int) else str(part)
        if ":" in name:  # `device_map="cuda"` is the one that was current then, which the tensors name
            held.add(name)
    others = sorted(name for name in held if accelerators.is_accelerator(name) and name not in (device, "meta", "disk"))
    return (device, *others)


def of_the_peak(devices: tuple[str, ...]) -> tuple[str, ...]:
    """What to say of the peak of a model that is on several."""
    if len(devices) == 1:
        return ()
    return (f"the model is on {', '.join(devices)}: the peak of memory is that of {devices[0]} alone",)


def synchronize(devices: Iterable[str]) -> None:
    """Wait for all of them; the host has nothing to wait for."""
    for device in devices:
        accelerators.synchronize(device)
