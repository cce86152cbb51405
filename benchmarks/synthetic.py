"""Traces as Kineto writes them with many of one thing: a function yields the events of a trace with `count` of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count as counting
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

Event = dict[str, Any]

_PROCESS: Final = 100
_THREAD: Final = 100
_STREAM: Final = 7
_OPERATORS: Final = ("aten::add", "aten::mm", "aten::mul", "aten::native_layer_norm", "aten::copy_", "aten::gelu")
#: Microseconds of a call, and from one call to the next.
_CALL_US, _PACE_US = 8, 10


class Thing(Struct, frozen=True, kw_only=True):
    """What a trace has many of: how many at 1x, and the events of a trace with that many."""

    count: int
    events: Callable[[int], Iterator[Event]]


class Recorder:
    """What numbers the events of a trace: time goes on with each call, ids count from 1."""

    def __init__(self) -> None:
        self.now_us = 1000.0
        self.ids = counting(1)
        self.sequence = counting(1)

    def pass_time(self, us: float = _PACE_US) -> float:
        """The time before `us` pass."""
        before = self.now_us
        self.now_us += us
        return before

    def operator(self, name: str, *, thread: int = _THREAD, us: float = _CALL_US, **args: object) -> Event:
        """An operator that begins now; it takes no time off the clock."""
        tensors = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
        args = {"External id": next(self.ids), **tensors, **args}
        return _complete("cpu_op", name, _PROCESS, thread, self.now_us, us, args)

    def kernel(
        self,
        name: str = "gemm",
        *,
        device: int = 0,
        stream: int = _STREAM,
        thread: int = _THREAD,
        launched: bool = True,
        correlation: int | None = None,
        **args: object,
    ) -> Iterator[Event]:
        """A kernel, and its launch in the running operator."""
        correlation = next(self.ids) if correlation is None else correlation
        if launched:
            launch = {"correlation": correlation}
            yield _complete("cuda_runtime", "cudaLaunchKernel", _PROCESS, thread, self.now_us + 1, 3, launch)
        where = {"device": device, "stream": stream, "correlation": correlation, "blocks per SM": 1.5}
        yield _complete("kernel", name, device, stream, self.now_us + 5, 4, {**where, **args})

    def call(self, name: str, kernel: str = "gemm", *, thread: int = _THREAD, **where: int) -> Iterator[Event]:
        """An operator that launches a kernel, and the time that it takes."""
        yield self.operator(name, thread=thread)
        yield from self.kernel(kernel, thread=thread, **where)
        self.pass_time()

    def around(self, category: str, name: str, events: Iterator[Event], *, thread: int = _THREAD) -> Iterator[Event]:
        """An event around all that the others take."""
        begin = self.pass_time(1)
        yield from events
        yield _complete(category, name, _PROCESS, thread, begin, self.pass_time(1) - begin, {})


def _complete(category: str, name: str, process: int, thread: int, us: float, duration_us: float, args: Event) -> Event:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": us,
        "dur": duration_us,
        "args": args,
    }


def events(count: int) -> Iterator[Event]:
    """Operators with a launch and a kernel each."""
    recorder = Recorder()
    for number in range(count):
        yield from recorder.call(_OPERATORS[number % len(_OPERATORS)])


def host_events(count: int) -> Iterator[Event]:
    """Operators of the CPU, each with a part."""
    recorder = Recorder()
    for number in range(count):
        yield recorder.operator(_OPERATORS[number % len(_OPERATORS)])
        yield {**recorder.operator("aten::empty"), "dur": 2}
        recorder.pass_time()


def streams(count: int) -> Iterator[Event]:
    """Streams with two kernels that were launched and one whose launch is not recorded, in a step."""
    recorder = Recorder()

    def work() -> Iterator[Event]:
        for stream in range(count):
            yield from recorder.call("aten::add", stream=stream)
            yield from recorder.kernel("unlaunched", stream=stream, launched=False)
            yield from recorder.call("aten::mm", stream=stream)

    yield from recorder.around("user_annotation", "ProfilerStep#1", work())


def devices(count: int) -> Iterator[Event]:
    """Devices with two streams; one of each pair has no launch that is recorded."""
    recorder = Recorder()

    def work() -> Iterator[Event]:
        for device in range(count):
            yield from recorder.call("aten::add", device=device)
            yield from recorder.call("aten::mm", device=device)
            yield from recorder.kernel("ncclDevKernel", device=device, stream=20, launched=False)

    yield from recorder.around("user_annotation", "ProfilerStep#1", work())


def threads(count: int) -> Iterator[Event]:
    """Threads that run a forward, each with a thread of autograd that runs its backward."""
    recorder = Recorder()
    for number in range(count):
        forward, backward = 2 * number + 1, 2 * number + 2
        yield from _forward(recorder, 2, thread=forward)
        yield from _backward(recorder, (2, 1), thread=backward, made_on=number + 1)


def _forward(recorder: Recorder, calls: int, *, thread: int = _THREAD, first: int = 1) -> Iterator[Event]:
    for sequence in range(first, first + calls):
        yield recorder.operator("aten::mm", thread=thread, **{"Sequence number": sequence, "Fwd thread id": 0})
        yield from recorder.kernel(thread=thread)
        recorder.pass_time()


def _backward(recorder: Recorder, sequences: tuple[int, ...], *, thread: int, made_on: int = 1) -> Iterator[Event]:
    for sequence in sequences:
        numbers = {"Sequence number": sequence, "Fwd thread id": made_on}
        yield recorder.operator("MmBackward0", thread=thread, us=_CALL_US + 2, **numbers)
        recorder.pass_time(1)
        yield from recorder.call("aten::mm", thread=thread)
        recorder.pass_time(2)


def flows(count: int) -> Iterator[Event]:
    """Operators of a forward, the nodes that differentiate them, and the arrows between them."""
    recorder = Recorder()
    starts = []
    for sequence in range(count):
        starts.append(recorder.now_us)
        yield from _forward(recorder, 1, first=sequence)
    for sequence in reversed(range(count)):
        end = recorder.now_us
        yield from _backward(recorder, (sequence,), thread=_THREAD + 1)
        arrow = {"cat": "fwdbwd", "name": "fwdbwd", "id": sequence, "pid": _PROCESS}
        yield {**arrow, "ph": "s", "tid": _THREAD, "ts": starts[sequence]}
        yield {**arrow, "ph": "f", "tid": _THREAD + 1, "ts": end, "bp": "e"}


def steps(count: int) -> Iterator[Event]:
    """Steps of a forward, a backward and an update on a device."""
    recorder = Recorder()
    for number in range(count):
        yield from recorder.around("user_annotation", f"ProfilerStep#{number}", _step(recorder, number))


def _step(recorder: Recorder, number: int) -> Iterator[Event]:
    yield from _forward(recorder, 2, first=2 * number)
    yield from _backward(recorder, (2 * number + 1, 2 * number), thread=_THREAD + 1)
    yield from recorder.around("user_annotation", "Optimizer.step#AdamW.step", recorder.call("aten::_foreach_add_"))


def host_steps(count: int) -> Iterator[Event]:
    """The same on the CPU, with the ranges of phases and modules that a capture leaves."""
    recorder = Recorder()

    def calls(module: str) -> Iterator[Event]:
        for name in ("aten::addmm", "aten::gelu"):
            operator = (recorder.operator(name),)
            yield from recorder.around("user_annotation", f"opanatomy.module/{module}", iter(operator))
            recorder.pass_time()

    def step() -> Iterator[Event]:
        for phase in ("forward", "backward", "optimizer"):
            yield from recorder.around("user_annotation", f"opanatomy.phase/{phase}", calls(phase))

    for number in range(count):
        yield from recorder.around("user_annotation", f"ProfilerStep#{number}", step())


def signatures(count: int) -> Iterator[Event]:
    """Products of matrices of sizes of their own, each twice."""
    recorder = Recorder()
    for number in (*range(count), *range(count)):
        yield recorder.operator("aten::mm", **{"Input Dims": [[number + 1, 64], [64, 64]]})
        yield from recorder.kernel()
        recorder.pass_time()


def names(count: int) -> Iterator[Event]:
    """Operators and kernels with names of their own, each twice."""
    recorder = Recorder()
    for number in (*range(count), *range(count)):
        yield from recorder.call(f"library::operator{number}", f"void library::kernel{number}<float>(float*, int)")


def modules(count: int) -> Iterator[Event]:
    """Modules with two calls each in forward, and the nodes of these in backward."""
    recorder = Recorder()
    for number in range(count):
        calls = _forward(recorder, 2, first=2 * number)
        yield from recorder.around("user_annotation", f"opanatomy.module/layers.{number}", calls)
    yield from _backward(recorder, tuple(range(2 * count - 1, -1, -1)), thread=_THREAD + 1)


def annotations(count: int) -> Iterator[Event]:
    """Annotations of the loop, with and without a forward in them."""
    recorder = Recorder()
    for number in range(count):
        calls = _forward(recorder, 1, first=number) if number % 2 else recorder.call("aten::add")
        yield from recorder.around("user_annotation", f"part {number % 10}", calls)


def depth(count: int) -> Iterator[Event]:
    """Ranges in one another, with a call at either end of each."""
    recorder = Recorder()
    length = 2 * _PACE_US
    for level in range(count):
        yield from recorder.call("aten::add")
        inside_us = (count - level) * 2 * length
        yield _complete("user_annotation", f"range {level % 10}", _PROCESS, _THREAD, recorder.now_us, inside_us, {})
        recorder.pass_time()


def crossing(count: int) -> Iterator[Event]:
    """Ranges of which each begins before the one before it ends, with a call in each."""
    recorder = Recorder()
    for number in range(count):
        yield recorder.operator(f"range {number % 10}", us=1.5 * _PACE_US + 1000)
        yield from recorder.call("aten::add")


def memory_events(count: int) -> Iterator[Event]:
    """Allocations of a device, each given back some events later."""
    recorder = Recorder()
    for number in range(count):
        yield recorder.operator(_OPERATORS[number % len(_OPERATORS)])
        yield _memory(recorder, 0, number, 512)
        if number >= 10:
            yield _memory(recorder, 0, number - 10, -512)
        recorder.pass_time()


def memory_devices(count: int) -> Iterator[Event]:
    """Devices on which memory was given and taken back."""
    recorder = Recorder()
    for device in range(count):
        yield recorder.operator("aten::empty")
        for block in range(4):
            yield _memory(recorder, device, block, 512)
        for block in range(4):
            yield _memory(recorder, device, block, -512)
        recorder.pass_time()


def _memory(recorder: Recorder, device: int, block: int, size: int) -> Event:
    args = {"Device Type": 1, "Device Id": device, "Addr": 4096 * (block + 1), "Bytes": size}
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "s": "t",
        "name": "[memory]",
        "pid": _PROCESS,
        "tid": _THREAD,
        "ts": recorder.pass_time(0.5),
        "args": args,
    }


def collectives(count: int) -> Iterator[Event]:
    """Collectives of NCCL with messages of sizes of their own."""
    recorder = Recorder()
    for number in range(count):
        message = {
            "Collective name": "allreduce",
            "In msg nelems": number + 1,
            "Out msg nelems": number + 1,
            "Group size": 8,
            "dtype": "Float",
        }
        yield recorder.operator("c10d::allreduce_")
        yield {**recorder.operator("record_param_comms", **message), "dur": _CALL_US - 1}
        yield from recorder.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", **message)
        recorder.pass_time()


def shared_ids(count: int) -> Iterator[Event]:
    """Processes merged into one trace that count their launches from 1, on a device each of eight."""
    recorder = Recorder()
    for process in range(count):
        for correlation in (1, 2, 3):
            yield recorder.operator("aten::add", thread=process)
            yield from recorder.kernel(device=process % 8, thread=process, correlation=correlation)
            recorder.pass_time()


#: This many at 1x that an analysis takes half a second beyond its start, or more.
THINGS: Final[dict[str, Thing]] = {
    "events": Thing(count=20_000, events=events),
    "events (CPU)": Thing(count=30_000, events=host_events),
    "streams": Thing(count=5_000, events=streams),
    "devices": Thing(count=1_500, events=devices),
    "threads": Thing(count=2_500, events=threads),
    "steps": Thing(count=2_000, events=steps),
    "steps (CPU)": Thing(count=3_000, events=host_steps),
    "distinct signatures": Thing(count=5_000, events=signatures),
    "distinct names": Thing(count=1_000, events=names),
    "modules": Thing(count=4_000, events=modules),
    "annotations": Thing(count=15_000, events=annotations),
    "nesting depth": Thing(count=15_000, events=depth),
    "crossing ranges": Thing(count=15_000, events=crossing),
    "flows": Thing(count=8_000, events=flows),
    "collectives": Thing(count=10_000, events=collectives),
    "memory events": Thing(count=15_000, events=memory_events),
    "memory devices": Thing(count=500, events=memory_devices),
    "launches of one id": Thing(count=3_000, events=shared_ids),
}  # fmt: skip


def write(thing: Thing, count: int, path: Path) -> int:
    """Write a trace with `count` of the thing; how many events it has."""
    written = 0
    with path.open("w", encoding="utf-8") as out:
        out.write(
            '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}], "traceEvents": ['
        )
        for event in thing.events(count):
            out.write((",\n" if written else "\n") + json.dumps(event))
            written += 1
        out.write("\n]}\n")
    return written
