"""Accelerators, and the events of their work as Kineto writes them (CUPTI, roctracer, the XPU plugin)."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

from msgspec import Struct

from opanatomy.records.taxonomy import OperatorClass
from tests.made_operators import COPY, FILL, HOST_COPY

Event = dict[str, Any]
LINKED, GRAPH = "linked", "graph_launched"
CALL_NS: Final = 900


class Accelerator(Struct, frozen=True, kw_only=True):
    """A device as its profiler writes it; `number` is that of its kernels' events, `place` the entry that names it."""

    kind: str
    name: str
    memory: int
    units: int
    number: int = 0
    place: int = 0
    streams: tuple[int, int] = (7, 13)


H100 = Accelerator(kind="cuda", name="NVIDIA H100 80GB HBM3", memory=85_018_279_936, units=132)
V100 = Accelerator(kind="cuda", name="Tesla V100-SXM2-16GB", memory=16_945_709_056, units=80)
#: roctracer numbers agents, the processors first.
MI300X = Accelerator(
    kind="hip", name="AMD Instinct MI300X", memory=206_141_652_992, units=304, number=2, streams=(0, 3)
)
XPU = Accelerator(kind="xpu", name="Intel(R) Data Center GPU Max 1550", memory=68_719_476_736, units=512)


class WorkItem(Struct, frozen=True, kw_only=True):
    """One item of device work as it was made; `owner` is the call that it is a part of."""

    name: str
    kind: str
    operator: str | None
    external_id: int
    owner: int
    operator_class: OperatorClass
    correlation: int
    stream: int
    launched_ns: int
    start_ns: int
    duration_ns: int
    link: str = LINKED

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.duration_ns


KINDS = {COPY: "gpu_memcpy", HOST_COPY: "gpu_memcpy", FILL: "gpu_memset"}
_CALLS = {
    "cuda": {COPY: "cudaMemcpyAsync", HOST_COPY: "cudaMemcpyAsync", FILL: "cudaMemsetAsync", "": "cudaLaunchKernel"},
    "hip": {COPY: "hipMemcpyWithStream", HOST_COPY: "hipMemcpyWithStream", FILL: "hipMemsetAsync",
            "": "hipLaunchKernel"},
    "xpu": {COPY: "urEnqueueUSMMemcpy", HOST_COPY: "urEnqueueUSMMemcpy", FILL: "urEnqueueUSMFill",
            "": "urEnqueueKernelLaunch"},
}  # fmt: skip
_NAMES = {COPY: "Memcpy DtoD (Device -> Device)", HOST_COPY: "Memcpy DtoH (Device -> Pinned)", FILL: "Memset (Device)"}
_XPU_NAMES = {COPY: "Memcpy D2D (Device -> Device)", HOST_COPY: "Memcpy D2M (Device -> Memory)",
              FILL: "Memset (0 -> Device)"}  # fmt: skip


def call_of(kind: str, kernel: str) -> str:
    return _CALLS[kind].get(kernel, _CALLS[kind][""])


def name_of(kind: str, kernel: str) -> str:
    return (_XPU_NAMES if kind == "xpu" else _NAMES).get(kernel, kernel)


def device_events(device: Accelerator, item: WorkItem) -> Iterator[Event]:
    args: Event = {"External id": item.external_id} if item.external_id else {}
    args |= {"device": device.number, "correlation": item.correlation}
    args |= {"sycl queue": item.stream} if device.kind == "xpu" else {"stream": item.stream}
    if item.kind == "kernel" and device.kind != "xpu":
        args |= {"grid": [2 * device.units, 1, 1], "block": [256, 1, 1]}
    if item.kind == "kernel" and device.kind == "cuda":
        args |= {"blocks per SM": 2.0, "warps per SM": 16.0, "est. achieved occupancy %": 25}
    place = {"pid": device.number, "tid": item.stream}
    times = {"ts": us(item.start_ns), "dur": us(item.duration_ns)}
    yield {"ph": "X", "cat": item.kind, "name": item.name, **place, **times, "args": args}
    yield {"ph": "f", "id": item.correlation, **place, "ts": times["ts"], "cat": "ac2g", "name": "ac2g", "bp": "e"}


def launch_events(device: Accelerator, name: str, at: int, host: Event, ids: tuple[int, int]) -> Iterator[Event]:
    """A call of the runtime at a time on the thread of `host`; `ids` are its correlation and external id (0 none)."""
    correlation, external_id = ids
    args: Event = {"External id": external_id} if external_id else {}
    args |= {"cid" if device.kind == "hip" else "cbid": 211, "correlation": correlation}
    category = "xpu_runtime" if device.kind == "xpu" else "cuda_runtime"
    place = {"pid": host["pid"], "tid": host["tid"], "ts": us(at)}
    yield {"ph": "X", "cat": category, "name": name, **place, "dur": us(CALL_NS), "args": args}
    yield {"ph": "s", "id": correlation, **place, "cat": "ac2g", "name": "ac2g"}


def metadata(device: Accelerator) -> Event:
    """What stands next to the events: the devices and versions."""
    entry = {"id": device.place, "name": device.name, "totalGlobalMem": device.memory, "numSms": device.units}
    versions: dict[str, Event] = {
        "cuda": {"cuda_runtime_version": 12040, "cuda_driver_version": 12090},
        "hip": {"hip_runtime_version": 60443483, "roctracer_version": 4.1},
        "xpu": {},
    }
    return {"deviceProperties": [] if device.kind == "xpu" else [entry], **versions[device.kind]}


def ns(value: Any) -> int:
    return int((Decimal(value) if not isinstance(value, float) else Decimal(repr(value))) * 1000)


def us(value: int) -> float:
    return value / 1000
