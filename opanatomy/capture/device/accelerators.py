"""Ask torch about the capabilities of a kind of device; only CUDA (which includes ROCm in torch) has all of them.

`xpu`, `mtia`, `hpu` and private devices (`npu`) answer through their module (`torch.get_device_module`) and
`torch.accelerator`. An unknown answer is `None`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

from opanatomy.capture.batches import tensors_of
from opanatomy.errors import CaptureError, UsageError
from opanatomy.options import as_asked

if TYPE_CHECKING:
    import torch

CUDA: Final = "cuda"
#: Devices that torch knows by name but that cannot run or record a step.
_NO_DEVICES: Final = ("meta", "fpga", "maia", "xla", "lazy", "vulkan", "opengl", "opencl", "ideep", "mkldnn", "ve")
#: The profiler's activities by kind of device (`torch.profiler.ProfilerActivity`); MPS has none.
_ACTIVITIES: Final = {"cuda": "CUDA", "xpu": "XPU", "mtia": "MTIA", "hpu": "HPU"}


def kind_of(device: str) -> str:
    """Return torch's name for a kind of device, `cuda` for `cuda:1`; autocast and the gradient scaler use it too."""
    return device.partition(":")[0]


def is_cuda(device: str) -> bool:
    """Return whether a device is CUDA or ROCm, with torch functions for its allocator, profiler and NVML."""
    return kind_of(device) == CUDA


def is_accelerator(device: str) -> bool:
    """Return whether a device is not the host."""
    return kind_of(device) != "cpu"


def reported_kind(device: str) -> str:
    """Return the kind of a device in the environment record: torch's name, or `rocm` for an AMD device."""
    import torch

    return "rocm" if is_cuda(device) and torch.version.hip else kind_of(device)


def _named(device: str) -> str:
    return as_asked(f"--device {device}", f"device {device}")


def _on_cpu() -> str:
    return as_asked("use cpu", "move the tensors to the CPU")


def check_device(device: str) -> str:
    """Return the device with its index; raise a one-line error if it cannot be profiled.

    Raises `UsageError` for a device that runs nothing, `CaptureError` for one missing in this machine or torch.
    """
    import torch

    try:
        kind, number = torch.device(device).type, torch.device(device).index
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"{_named(device)}: torch has no such device - use cpu or cuda") from error
    if kind == "cpu":
        return "cpu"
    if kind in _NO_DEVICES:
        raise UsageError(f"{_named(device)}: steps cannot run on {kind} - use cpu or cuda")
    module = _module(device)
    if module is None or not getattr(module, "is_available", module.device_count)():
        raise CaptureError(f"{_named(device)}: this torch ({torch.__version__}) sees no {kind} device - {_on_cpu()}")
    profiler: Any = torch.profiler  # its functions have no types
    if kind != CUDA and _activity(kind) not in profiler.supported_activities():
        raise CaptureError(
            f"{_named(device)}: the profiler in this torch ({torch.__version__}) does not record {kind} device"
            f" work, and host time cannot replace it - {_on_cpu()}, or export a trace and pass it to"
            f" {as_asked('opanatomy analyze', 'opanatomy.analyze')}"
        )
    count = device_count(device)
    if number is not None and number >= count:
        there = f"there is 1 {kind} device" if count == 1 else f"there are {count} {kind} devices"
        raise CaptureError(f"{_named(device)}: {there} - numbering starts at {kind}:0")
    return f"{kind}:{number or 0}"


def check_memory_in_depth(device: str) -> None:
    """Raise an error for block-level memory tracing on a device whose allocator the replay does not know."""
    if is_accelerator(device) and not is_cuda(device):
        raise UsageError(
            f"memory: the {kind_of(device)} allocator cannot be traced - leave memory out, or use cpu or cuda"
        )


def check_measurable(device: str) -> None:
    """Raise an error for a device without measurements."""
    if is_accelerator(device) and not is_cuda(device):
        raise UsageError(
            f"{_named(device)}: cannot measure the peaks of {kind_of(device)} devices - use cpu or cuda, or use"
            " --peak and --bandwidth with profile or analyze"
        )


def profiler_activities(device: str) -> list[Any]:
    """Return the activities that the profiler records for a step on the device."""
    from torch.profiler import ProfilerActivity

    return [ProfilerActivity.CPU, *([_activity(kind_of(device))] if is_accelerator(device) else [])]


def _activity(kind: str) -> Any:
    """Return the profiler's activity of a kind of device; `None` if it has none."""
    from torch._C import _get_privateuse1_backend_name
    from torch.profiler import ProfilerActivity

    private = kind == _get_privateuse1_backend_name()
    return getattr(ProfilerActivity, "PrivateUse1" if private else _ACTIVITIES.get(kind, ""), None)


def synchronize(device: str) -> None:
    """Wait for the device; do nothing on the host."""
    wait = getattr(_module(device), "synchronize", None) if is_accelerator(device) else None
    if wait is not None:
        wait(device)


def empty_cache(device: str) -> None:
    """Return unused memory of the device's allocator to the device."""
    empty = getattr(_module(device), "empty_cache", None) if is_accelerator(device) else None
    if empty is not None:
        empty()


def device_count(device: str) -> int:
    """Return the number of devices of this kind; the host is one."""
    return int(_module(device).device_count()) if is_accelerator(device) else 1


def device_name(device: str) -> str | None:
    """Return the device's own name, `None` if torch does not know it."""
    name = getattr(_properties(device), "name", None) or _answer(device, "get_device_name", device)
    return str(name) if name else None


def total_memory_bytes(device: str) -> int | None:
    """Return all memory of the device, `None` if torch does not report it."""
    total = getattr(_properties(device), "total_memory", None)
    return int(total) if total else None


def multiprocessors(device: str) -> int | None:
    """Return the number of multiprocessors (compute units); for XPU of the whole device."""
    properties = _properties(device)
    for name in ("multi_processor_count", "gpu_subslice_count"):
        if (count := getattr(properties, name, None)) is not None:
            return int(count)
    return None


def allocator_name(device: str) -> str | None:
    """Return the source of the memory peak of a non-CUDA device; `None` if there is no source."""
    return f"{kind_of(device)} allocator" if peak_bytes(device) is not None else None


def reset_peak(device: str) -> None:
    """Reset the peak of the device's allocator."""
    _answer(device, "reset_peak_memory_stats", device)


def peak_bytes(device: str) -> int | None:
    """Return the allocator's peak bytes since the last reset; `None` if it records none."""
    peak = _answer(device, "max_memory_allocated", device)
    return None if peak is None else int(peak)


def random_state(device: str) -> torch.Tensor | None:
    """Return the state of the device's random generator; `None` on the host or without a generator."""
    return None if not is_accelerator(device) else _answer(device, "get_rng_state", device)


def set_random_state(device: str, state: torch.Tensor) -> None:
    """Restore a state of the device's random generator from `random_state`."""
    _module(device).set_rng_state(state, device)


def _module(device: str) -> Any:
    """Return torch's module of a kind of device (`torch.cuda`); `None` if a backend has registered none."""
    import torch

    return getattr(torch, kind_of(device), None)


def _properties(device: str) -> Any:
    return _answer(device, "get_device_properties", device)


def _answer(device: str, function: str, *arguments: Any) -> Any:
    """Call a function of the device's module; `None` if it is missing or has no answer. CUDA's errors propagate."""
    ask = getattr(_module(device), function, None)
    if ask is None:
        return None
    if is_cuda(device):
        return ask(*arguments)
    with suppress(RuntimeError, NotImplementedError, AttributeError, TypeError):
        return ask(*arguments)
    return None


# The devices of a run: the current one, those with a part of the model, and waiting for them.


_RECORDED: Final = ("cuda", "xpu")


def kineto_records(device: str) -> bool:
    """Return whether Kineto records work on the device, by CUPTI or the tracer of ROCm or Intel."""
    return kind_of(device) in _RECORDED


def current_device(device: str) -> AbstractContextManager[Any]:
    """Make `device` the current one inside the block, then restore the previous one.

    Calls that name no device (a Triton kernel, a workspace, `torch.cuda.Stream()`) use the current one.
    """
    import torch

    if not is_cuda(device):
        return nullcontext()
    current: AbstractContextManager[Any] = torch.cuda.device(device)
    return current


def device_of(module: torch.nn.Module, inputs: dict[str, Any] | tuple[Any, ...]) -> str:
    """Return the first accelerator that holds a tensor, even if a part of the module is on the host."""
    held = [str(tensor.device) for tensor in tensors_of(module, inputs)]
    work = [device for device in held if kind_of(device) not in ("cpu", "meta")]
    return check_device((work or held or ["cpu"])[0])


def devices_of(module: torch.nn.Module, device: str) -> tuple[str, ...]:
    """Return `device`, then the other accelerators with a parameter, buffer or device map entry of the module."""
    held = {str(tensor.device) for tensor in (*module.parameters(), *module.buffers())}
    kind = kind_of(device) if is_accelerator(device) else CUDA
    for part in (getattr(module, "hf_device_map", None) or {}).values():
        name = f"{kind}:{part}" if isinstance(part, int) else str(part)
        if ":" in name:  # `device_map="cuda"` is the device current at that time; the tensors name it
            held.add(name)
    others = sorted(name for name in held if is_accelerator(name) and name not in (device, "meta", "disk"))
    return (device, *others)


def peak_warnings(devices: tuple[str, ...]) -> tuple[str, ...]:
    """Return the note on the peak of a model that is on several devices."""
    if len(devices) == 1:
        return ()
    return (f"the model is on {', '.join(devices)}, but peak memory covers only {devices[0]}",)


def synchronize_all(devices: Iterable[str]) -> None:
    """Wait for all of them; do nothing for the host."""
    for device in devices:
        synchronize(device)


def same_device(first: str, second: str) -> bool:
    """Return whether two names mean one device (`cuda` is `cuda:0`)."""
    return (first if ":" in first else f"{first}:0") == (second if ":" in second else f"{second}:0")
