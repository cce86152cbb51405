"""Traces of an accelerator made from CPU captures: every operator that computes gets launches and device work.

Host and device run side by side: a kernel starts a little after its launch, and not before its stream is free. All
durations are chosen here, so that every sum of the report is known. What is written is what Kineto writes (CUPTI,
roctracer and the XPU plugin differ in names, categories and arguments), as read in its sources and in real traces.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from opanatomy.records.taxonomy import OperatorClass
from opanatomy.records.workload import PHASE_RANGE
from tests.made_events import (
    CALL_NS,
    GRAPH,
    H100,
    KINDS,
    LINKED,
    Accelerator,
    Event,
    WorkItem,
    call_of,
    device_events,
    launch_events,
    metadata,
    name_of,
    ns,
    us,
)
from tests.made_operators import FILL, NOTHING, WORK

TRACES: Final = Path(__file__).parent / "traces"
_LATENCY_NS: Final = 2_000


class Options(Struct, frozen=True, kw_only=True):
    """What is made: `splits` gives products a split-K reduce and a fill, `graph` so many kernels in one graph launch a
    step, `device_thread` runs autograd's nodes on a thread of their own, `foreign` leaves the capture's record out."""

    accelerator: Accelerator = H100
    second_stream: bool = True
    splits: bool = False
    graph: int = 0
    device_thread: bool = False
    foreign: bool = False


_DEFAULT = Options()


@dataclass(slots=True, kw_only=True)
class Made:
    """A made trace and what is true of it."""

    document: dict[str, Any]
    work_items: list[WorkItem]
    steps: list[tuple[int, int]]
    options: Options
    events: list[Event] = field(init=False)
    #: The phase ranges of the capture.
    phases: list[tuple[str, tuple[int, int]]] = field(init=False)

    def __post_init__(self) -> None:
        self.events = self.document["traceEvents"]
        ranges = [event for event in self.events if event.get("name", "").startswith(PHASE_RANGE)]
        self.phases = [
            (one["name"].removeprefix(PHASE_RANGE), (ns(one["ts"]), ns(one["ts"]) + ns(one["dur"]))) for one in ranges
        ]

    def write(self, path: Path) -> Path:
        """The trace as a file."""
        path.write_bytes(gzip.compress(json.dumps(self.document).encode(), 1))
        return path


def capture(name: str) -> dict[str, Any]:
    """A capture of tests/traces, its times exact."""
    return json.loads(gzip.decompress((TRACES / name).read_bytes()), parse_float=Decimal)  # type: ignore[no-any-return]


def made(source: dict[str, Any], options: Options = _DEFAULT) -> Made:
    """The trace of the accelerator that the CPU capture `source` would have been."""
    return _Maker(source, options).made()


@dataclass(slots=True)
class _Host:
    """One host event: times in ns, the event, its parent, and when its last child ended."""

    event: Event
    start: int
    end: int
    parent: _Host | None = None
    free: int = 0
    leaf: bool = True
    #: Whether it calls an operator of its own name (another overload), which does the work.
    hands_on: bool = False

    @property
    def name(self) -> str:
        return str(self.event["name"])

    @property
    def external_id(self) -> int:
        return int(self.event["args"]["External id"])

    @property
    def owner(self) -> _Host:
        """The outermost operator around it that computes: it is a part of that one."""
        found, above = self, self.parent
        while above is not None:
            found = above if above.name in WORK and not above.hands_on else found
            above = above.parent
        return found


class _Maker:
    def __init__(self, source: dict[str, Any], options: Options) -> None:
        self.source, self.options, self.device = source, options, options.accelerator
        self.origin = min(ns(event["ts"]) for event in source["traceEvents"] if event["ph"] == "X") // 10**6 * 10**6
        self.events = [self._rebased(event) for event in source["traceEvents"]]
        self.host = _nested(self.events)
        self.work_items: list[WorkItem] = []
        self.out: list[Event] = []
        self.free = dict.fromkeys(self.device.streams, 0)
        self.correlation = 1000

    def made(self) -> Made:
        steps = [(one.start, one.end) for one in self.host if one.name.startswith("ProfilerStep#")]
        # A stream runs its work in the order of the launches, which is not that of the operators' starts.
        wanted = [(one.free, one) for one in self.host if one.event["cat"] == "cpu_op"]
        graphs = [(start + 2_000, None) for start, _ in steps] if self.options.graph else []
        for at, one in sorted([*wanted, *graphs], key=lambda pair: pair[0]):
            if one is None:
                self._graph(at)
            else:
                self._operator(one)
        if self.options.device_thread:
            self._move_nodes()
        document = {
            **{key: value for key, value in self.source.items() if key != "traceEvents"}, **metadata(self.device),
            "traceEvents": [*self.events, *self.out],
        }  # fmt: skip
        self._record(document)
        return Made(document=document, work_items=self.work_items, steps=steps, options=self.options)

    def _operator(self, one: _Host) -> None:
        work = WORK.get(one.name)
        if work is None or one.hands_on:
            if one.leaf and one.name.startswith("aten::") and one.name not in NOTHING:
                raise KeyError(f"{one.name}: say in made_operators.py what it launches")
            return
        types = one.event["args"].get("Input type", [])
        kernels = work.kernels
        if work.hip is not None and self.device.kind == "hip":
            kernels = work.hip
        elif work.bfloat16 is not None and "c10::BFloat16" in types:
            kernels = work.bfloat16
        if self.options.splits and work.operator_class is OperatorClass.TENSOR_CONTRACTION:
            kernels = (FILL, *kernels, "void cublasLt::splitKreduce_kernel<32, 16, int, float, float>(float)")
        for place, kernel in enumerate(kernels):
            at = min(one.free + 10 * place, one.end - 1)
            self._launch(kernel, at, one)

    def _launch(self, kernel: str, at: int, one: _Host) -> None:
        number, operator_class = len(self.work_items), WORK[one.owner.name].operator_class
        second = self.options.second_stream and operator_class is OperatorClass.ELEMENTWISE and number % 3 == 0
        stream = self.device.streams[second]
        self._emit_launch(call_of(self.device.kind, kernel), at, one.event, one.external_id)
        self._work(kernel, at, stream, one, operator_class)

    def _graph(self, at: int) -> None:
        """One launch of a graph on the main thread: its kernels share the correlation id, and are of no operator."""
        name = {"cuda": "cudaGraphLaunch", "hip": "hipGraphLaunch", "xpu": "urCommandBufferEnqueueExp"}[
            self.device.kind
        ]
        self._emit_launch(name, at, {"pid": self.host[0].event["pid"], "tid": self.host[0].event["tid"]}, 0)
        kernel, work = WORK["aten::mm"].kernels[0], WORK["aten::mm"]
        for _ in range(self.options.graph):
            self._work(kernel, at, self.device.streams[0], None, work.operator_class, link=GRAPH)

    def _work(
        self, kernel: str, at: int, stream: int, one: _Host | None, operator_class: OperatorClass, link: str = LINKED
    ) -> None:
        start = max(at + CALL_NS + _LATENCY_NS, self.free[stream])
        duration = 1_000 + (len(self.work_items) * 7_919) % 90_001
        self.free[stream] = start + duration
        item = WorkItem(
            name=name_of(self.device.kind, kernel), kind=KINDS.get(kernel, "kernel"),
            operator=one.name if one else None, external_id=one.external_id if one else 0,
            owner=one.owner.external_id if one else 0, operator_class=operator_class, correlation=self.correlation,
            stream=stream, launched_ns=at, start_ns=start, duration_ns=duration, link=link,
        )  # fmt: skip
        self.work_items.append(item)
        self.out.extend(device_events(self.device, item))

    def _emit_launch(self, name: str, at: int, host: Event, external_id: int) -> None:
        self.correlation += 1
        self.out.extend(launch_events(self.device, name, at, host, (self.correlation, external_id)))

    def _move_nodes(self) -> None:
        """Autograd's nodes, and all that runs in them, on a thread of their own, as with every accelerator."""
        nodes = [
            (one.start, one.end) for one in self.host if one.name.startswith("autograd::engine::evaluate_function")
        ]
        other = max(int(event["tid"]) for event in self.events if str(event.get("tid", "")).isdigit()) + 7
        spans = _merged(nodes)
        ranges = ("cpu_op", "cuda_runtime", "xpu_runtime", "fwdbwd", "ac2g")
        for event in [*self.events, *self.out]:
            at = ns(event["ts"]) if "ts" in event else -1
            of_device = event.get("ph") == "f" and event.get("cat") == "ac2g"
            if event.get("cat") in ranges and not of_device and any(low <= at < high for low, high in spans):
                event["tid"] = other
        _number_anew([event for event in self.events if event.get("tid") == other and event.get("cat") == "cpu_op"])

    def _rebased(self, event: Event) -> Event:
        copy = {**event, "args": dict(event["args"])} if "args" in event else dict(event)
        for key in ("ts", "dur"):
            if key in copy:
                copy[key] = us(ns(copy[key]) - (self.origin if key == "ts" else 0))
        return copy

    def _record(self, document: dict[str, Any]) -> None:
        """The capture's own record, as one on this accelerator writes it; none in a foreign trace."""
        if self.options.foreign:
            document.pop("opanatomy", None)
            return
        record = json.loads(json.dumps(self.source["opanatomy"], default=float))
        record["environment"] |= {
            "device": self.device.name, "device_kind": {"hip": "rocm"}.get(self.device.kind, self.device.kind),
            "device_memory_bytes": self.device.memory, "multiprocessors": self.device.units, "device_count": 1,
        }  # fmt: skip
        record |= {"unprofiled_step_ns": [], "profiled_step_ns": []}
        document["opanatomy"] = record


def _nested(events: Iterable[Event]) -> list[_Host]:
    """The host events with their parents, each with the first moment behind its last child."""
    rows = [event for event in events if event["ph"] == "X" and event.get("cat") in ("cpu_op", "user_annotation")]
    found = [_Host(event, start := ns(event["ts"]), start + ns(event["dur"])) for event in rows]
    found.sort(key=lambda one: (one.event["tid"], one.start, -one.end))
    stack: list[_Host] = []
    for one in found:
        one.free = one.start
        while stack and (stack[-1].end <= one.start or stack[-1].event["tid"] != one.event["tid"]):
            stack.pop()
        if stack:
            one.parent = stack[-1]
            one.parent.hands_on |= one.parent.name == one.name
        for above in stack:
            above.free, above.leaf = max(above.free, min(one.end, above.end)), False
        stack.append(one)
    return found


def _number_anew(events: list[Event]) -> None:
    """Sequence numbers are counted thread by thread: what autograd's thread runs again begins at 0 there, and the
    nodes that this makes say so."""
    numbers: dict[int, int] = {}
    for event in sorted(events, key=lambda event: event["ts"]):
        args = event["args"]
        number = args.get("Sequence number", -1)
        if number < 0:
            continue
        if args.get("Fwd thread id") == 0:
            args["Sequence number"] = numbers.setdefault(number, len(numbers))
        elif number in numbers:
            args |= {"Sequence number": numbers[number], "Fwd thread id": 2}


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if merged and low < merged[-1][1]:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return merged
