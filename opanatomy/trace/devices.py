"""Find the devices that did work in a trace, with their data in its header.

`deviceProperties` has an entry for each device that the process could see (Kineto, DeviceProperties.cpp), used or not.
CUPTI numbers kernels' devices like these entries. roctracer numbers agents, processors before devices, and counts all
devices instead of the visible ones (ROCm/roctracer#98), so there a number names no entry.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct

from opanatomy.records.columns import KERNEL, DeviceWork, Int64, MemoryEvents, TraceDevice, rows_by_value, unique
from opanatomy.records.patterns import regex
from opanatomy.records.workload import Environment

#: torch's number of the CPU among device types.
_CPU: Final = 0
#: Operators for which torch has no CPU kernel, and the collectives of GPU libraries.
_OF_ACCELERATOR: Final = regex(
    r"^aten::_?(?:cudnn_(?!is_acceptable)|miopen_|flash_attention_|efficient_attention_|thnn_fused_|fused_dropout$"
    r"|record_stream$|cslt_sparse_mm|scaled_dot_product_(?:flash|efficient|cudnn)_attention(?!_for_cpu))|^(?:nccl|rccl|hccl|xccl):"
    r"|^flash_attn::|^(?:npu|hpu|mtia|mlu|musa)::|^aclnn[A-Z]"
)
#: Operators that torch has for the CPU alone.
_OF_CPU: Final = regex(r"^aten::_?(?:mkldnn_|mkl_linear|nnpack_)|_for_cpu$|^(?:mkldnn|fbgemm)::")
#: Words by which processes and categories of an accelerator's rows are called.
_ACCELERATOR: Final = regex(
    r"(?<![a-z])(?:ascend|npu|gpu|xpu|hpu|tpu|ipu|vpu|dpu|mtia|mps|metal|mlu|gcu|dcu|musa|neuron|neuroncore|habana|gaudi"
    r"|cuda|hip|rocm|sycl|hccl|accelerator|hardware|device|kernel)s?(?![a-z])",
    re.IGNORECASE,
)


class UnreadRows(Struct, frozen=True, kw_only=True):
    """The intervals of one process, or of one category, that no rule reads; `of_device` if they are an accelerator's.

    A flow from an operator to a device counts as one without a duration.
    """

    name: str
    events: int
    duration_ns: int
    of_device: bool

    @property
    def text(self) -> str:
        """Return the name with number and total time of events."""
        time = f", {self.duration_ns / 1e6:,.3f} ms" if self.duration_ns else ""
        return f"{self.name} ({self.events:,} event{'' if self.events == 1 else 's'}{time})"


def unread_rows(
    category: str | None, process: Sequence[str], events: int, duration_ns: int, *, of_device: bool, beside_host: bool
) -> UnreadRows:
    """Classify intervals without a rule by their category and their process's names and labels.

    `of_device` is set if their arguments show a device. A process name is no evidence for rows `beside_host` events.
    """
    texts = [text for text in (*(() if beside_host else process), category) if text]
    called = next((text for text in texts if _ACCELERATOR.search(text)), None)
    name = called or next(iter(texts), None) or next(iter(process), "a process without a name")
    return UnreadRows(name=name[:60], events=events, duration_ns=duration_ns, of_device=of_device or called is not None)


def devices_of(metadata: dict[str, Any], work: DeviceWork) -> tuple[TraceDevice, ...]:
    """Return the devices that worked, the one with most kernel time first."""
    entries = entries_of(metadata)
    busy = []
    for number, events in rows_by_value(work.device):
        kernels = int(work.duration_ns[events[work.kind[events] == KERNEL]].sum())
        busy.append((-kernels, -int(work.duration_ns[events].sum()), _device(number, entries, metadata, kernels)))
    return tuple(device for *_, device in sorted(busy, key=lambda one: (one[0], one[1], one[2].number)))


def entries_of(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the header's entries that describe a device."""
    entries = metadata.get("deviceProperties")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def environment_of(metadata: dict[str, Any], devices: tuple[TraceDevice, ...], memory: MemoryEvents) -> Environment:
    """Return the environment of a foreign trace: its busiest device, else the device of its memory events."""
    entries = entries_of(metadata)
    device = devices[0] if devices else _allocated(metadata, entries, memory)
    names = [entry.get("name") for entry in entries]
    return Environment(
        device=device.name,
        device_kind=_kind([device.name, *names], metadata),
        device_count=len(entries) or None,
        device_memory_bytes=device.memory_bytes,
        multiprocessors=device.multiprocessors,
        cuda=_version(metadata.get("cuda_runtime_version")),
        driver=_version(metadata.get("cuda_driver_version")),
    )


def unlike(devices: tuple[TraceDevice, ...]) -> str | None:
    """Return a warning if kernels ran on several kinds of device, or on an unknown one; else `None`."""
    computing = [device for device in devices if device.kernel_ns]
    if not computing:
        return None
    first, others = computing[0], [device for device in computing[1:] if _kinds(device) != _kinds(computing[0])]
    if first.unnamed:
        return (
            f"the kernels ran on device {first.number}, but the trace does not say which of its devices"
            f" ({', '.join(first.unnamed)}) that is, so the peaks are unknown"
        )
    if not others:
        return None
    whole = sum(device.kernel_ns for device in computing)
    shares = ", ".join(f"{device.kernel_ns / whole:.1%} on device {device.number} ({device.name})" for device in others)
    return (
        f"kernels ran on several kinds of devices, {first.kernel_ns / whole:.1%} of their time on device {first.number}"
        f" ({first.name}), {shares}: all kernels are compared with the peaks of device {first.number}"
    )


def has_accelerator(memory: MemoryEvents, names: Sequence[str]) -> str | None:
    """Return the evidence that an accelerator was used if no event is device work; else `None`.

    `names` are the names of all operators, some of which have no CPU implementation.
    """
    if (memory.device_type > _CPU).any():
        return "has GPU memory events"
    operator = next((name for name in names if _OF_ACCELERATOR.search(name)), None)
    return None if operator is None else f"has {operator}, which does not run on CPUs,"


def unused_gpu(metadata: dict[str, Any], names: Sequence[str]) -> str | None:
    """Return a sentence on the GPU of the machine that a trace of the CPU was recorded on; `None` if it names none.

    `names` are the names of all operators, some of which only run on the CPU.
    """
    gpus = [str(entry["name"]) for entry in entries_of(metadata) if isinstance(entry.get("name"), str)]
    if not gpus:
        return None
    gpu = f"the machine's GPU ({gpus[0]})" if gpus[0] else "the machine's GPU"
    operator = next((name for name in names if _OF_CPU.search(name)), None)
    if operator is not None:
        return (
            f"{gpu} was not used: nothing was launched on it, and {operator.removeprefix('aten::')} runs only on the"
            ' CPU - move model and batch to the GPU (.to("cuda"))'
        )
    return (
        f"nothing was launched on {gpu}: all times are CPU times - move model and batch to it"
        ' (.to("cuda")); if they already are there, record GPU activities too (ProfilerActivity.CUDA)'
    )


def _kinds(device: TraceDevice) -> tuple[object, ...]:
    return device.name, device.memory_bytes, device.multiprocessors


def _device(number: int, entries: list[dict[str, Any]], metadata: dict[str, Any], kernel_ns: int) -> TraceDevice:
    entry = _entry(number, entries, metadata)
    unnamed = () if entry or not entries else tuple(dict.fromkeys(str(one.get("name")) for one in entries))
    entry = entry or {}
    name, memory, units = entry.get("name"), entry.get("totalGlobalMem"), entry.get("numSms")
    return TraceDevice(
        number=number,
        kernel_ns=kernel_ns,
        name=name if isinstance(name, str) else None,
        memory_bytes=memory if type(memory) is int and memory > 0 else None,
        multiprocessors=units if type(units) is int and units > 0 else None,
        unnamed=unnamed,
    )


def _entry(number: int, entries: list[dict[str, Any]], metadata: dict[str, Any]) -> dict[str, Any] | None:
    """Return a device's entry; any entry if all are alike, none if the number is ambiguous."""
    described = {repr([entry.get(key) for key in ("name", "totalGlobalMem", "numSms")]) for entry in entries}
    if len(described) == 1:
        return entries[0]
    if _kind([entry.get("name") for entry in entries], metadata) == "rocm":
        return None
    matching = [entry for index, entry in enumerate(entries) if entry.get("id", index) == number]
    return matching[0] if len(matching) == 1 else None


def _allocated(metadata: dict[str, Any], entries: list[dict[str, Any]], memory: MemoryEvents) -> TraceDevice:
    """Return the device with most memory events; without such events the only device."""
    numbers: Int64 = memory.device[(memory.device_type > _CPU) & (memory.device >= 0)]
    if len(numbers):
        devices = unique(numbers)
        busiest = np.bincount(devices.inverse).argmax()
        return _device(int(devices.values[busiest]), entries, {}, 0)
    return _device(-1, entries, metadata, 0)


def _kind(names: list[object], metadata: dict[str, Any]) -> str | None:
    named = [name for name in names if isinstance(name, str)]
    if "hip_runtime_version" in metadata or any("AMD" in name.upper() for name in named):
        return "rocm"
    if "xpupti_version" in metadata or any("INTEL" in name.upper() for name in named):
        return "xpu"  # Kineto's plug-in for XPU leaves its version (XpuptiActivityProfilerSession)
    return "cuda" if named else None


def _version(value: object) -> str | None:
    return f"{value // 1000}.{value % 1000 // 10}" if type(value) is int else None
