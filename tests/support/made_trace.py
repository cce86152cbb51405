"""Traces made by hand, a few lines each, written the way Kineto writes them."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import opanatomy
from opanatomy.__main__ import main
from opanatomy.report import terminal_report

US: Final = 1000
H100: Final = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_018_279_936, "numSms": 132}
GEMM, MAP = "ampere_sgemm_128x64_nn", "void at::native::vectorized_elementwise_kernel<4>"
NCCL: Final = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
WORK: Final = ("kernel", "gpu_memcpy", "gpu_memset")
#: The arguments of a product of 128 FLOPs and 224 bytes.
MATRICES: Final[dict[str, Any]] = {"shapes": [[8, 4], [4, 2]], "types": ["float", "float"]}


@dataclass(slots=True)
class TraceBuilder:
    """Events at times in microseconds; `host(...)` and `annotation(...)` return the External id."""

    events: list[dict[str, Any]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=lambda: {"schemaVersion": 1})
    next_id: int = 1

    def host(
        self,
        name: str,
        start: float,
        duration: float,
        *,
        thread: int | str = 1,
        sequence: int | None = None,
        forward_thread: int | None = None,
        shapes: list[Any] | None = None,
        types: list[str] | None = None,
        constants: list[str] | None = None,
        category: str = "cpu_op",
    ) -> int:
        args: dict[str, Any] = {"External id": self.next_id}
        if sequence is not None:
            args |= {"Sequence number": sequence, "Fwd thread id": forward_thread or 0}
        if shapes is not None:
            args |= {"Input Dims": shapes, "Input type": types, "Concrete Inputs": constants or [""] * len(shapes)}
        self.event(category, name, start, duration, args, thread=thread)
        self.next_id += 1
        return self.next_id - 1

    def event(
        self,
        category: str,
        name: str,
        start: float,
        duration: float,
        args: dict[str, Any],
        *,
        process: int = 7,
        thread: int | str = 1,
    ) -> None:
        """An event of any category."""
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": process,
                "tid": thread,
                "ts": start,
                "dur": duration,
                "args": args,
            }
        )

    def annotation(self, name: str, start: float, duration: float, thread: int | str = 1) -> int:
        return self.host(name, start, duration, thread=thread, category="user_annotation")

    def step(self, start: float, duration: float, number: int = 1) -> int:
        return self.annotation(f"ProfilerStep#{number}", start, duration)

    def launch(
        self, start: float, correlation: int, *, thread: int = 1, name: str = "cudaLaunchKernel", duration: float = 2
    ) -> None:
        """A call of the runtime."""
        args = {"External id": 0, "correlation": correlation}
        self.event("cuda_runtime", name, start, duration, args, thread=thread)

    def kernel(
        self,
        name: str,
        start: float,
        duration: float,
        correlation: int,
        *,
        stream: int = 7,
        category: str = "kernel",
        external_id: int | None = None,
        device: int = 0,
        **arguments: Any,
    ) -> None:
        args: dict[str, Any] = {"correlation": correlation, "stream": stream, "device": device, **arguments}
        if external_id is not None:
            args["External id"] = external_id
        self.event(category, name, start, duration, args, process=device, thread=stream)

    def run(
        self,
        name: str,
        launch: float | None,
        start: float,
        duration: float,
        *,
        call: str = "cudaLaunchKernel",
        thread: int = 1,
        **options: Any,
    ) -> None:
        """Device work and, if its time is given, its launch."""
        correlation = len(self.events) + 1
        if launch is not None:
            self.launch(launch, correlation, thread=thread, name=call)
        self.kernel(name, start, duration, correlation, **options)

    def text(self, **options: Any) -> str:
        return json.dumps({**self.metadata, "traceEvents": self.events}, **options)

    def write(self, path: Path, **options: Any) -> Path:
        text = self.text(**options)
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(text)
        return path

    def analyze(self, folder: Path, **options: Any) -> opanatomy.Anatomy:
        """The anatomy of the trace, written into this folder."""
        return opanatomy.analyze(self.write(folder / "trace.json"), **options)

    def placed(self, folder: Path, *options: str) -> list[dict[str, Any]]:
        """What `--trace` says of each piece of work in the order of time: kernel, operator, phase, module."""
        return placed(self.write(folder / "trace.json"), folder, *options)

    def named(self, name: str) -> dict[str, Any]:
        """The first event with this in its name."""
        return next(event for event in self.events if name in event["name"])


def placed(trace: Path, folder: Path, *options: str) -> list[dict[str, Any]]:
    """The pieces of work of a trace: on a device its work, on the CPU operators, each with its name and start."""
    target = folder / "annotated.json"
    assert main(["analyze", str(trace), "--trace", str(target), "--force", "--brief", *options]) == 0
    events = json.loads(target.read_text())["traceEvents"]
    names = {(event["ts"], event["dur"]): event["name"] for event in events if event.get("cat") in WORK}
    pieces = [
        event
        for event in events
        if event.get("cat") == "opanatomy" and event["ph"] == "X" and "pieces" not in event["args"]
    ]
    return [
        {
            "operator": None,
            "module": None,
            **event["args"],
            "ts": event["ts"],
            "dur": event["dur"],
            "kernel": names.get((event["ts"], event["dur"])),
        }
        for event in sorted(pieces, key=lambda event: event["ts"])
    ]


def on_gpu() -> TraceBuilder:
    """An empty trace that names an H100."""
    return TraceBuilder(metadata={"schemaVersion": 1, "deviceProperties": [dict(H100)]})


def training_step() -> TraceBuilder:
    """A GPU step: linear forward, its backward on another thread, an optimizer; device times 10, 20, 5 us."""
    trace = on_gpu()
    trace.step(100, 900, 3)
    trace.host("opanatomy.phase/forward", 110, 90)
    trace.host("opanatomy.module/head", 115, 80)
    trace.host("aten::linear", 120, 60, sequence=5)
    trace.host("aten::mm", 125, 50, sequence=5, **MATRICES)
    trace.launch(130, 1)
    trace.kernel("ampere_sgemm_128x64_nn", 140, 10, 1)
    trace.host("opanatomy.phase/backward", 210, 190)
    trace.host("autograd::engine::evaluate_function: MmBackward0", 220, 100, thread=2, sequence=5, forward_thread=1)
    trace.host("MmBackward0", 221, 98, thread=2, sequence=5, forward_thread=1)
    trace.host("aten::mm", 230, 50, thread=2, shapes=[[4, 8], [8, 2]], types=["float", "float"])
    trace.launch(240, 2, thread=2)
    trace.kernel("ampere_sgemm_128x64_nt", 250, 20, 2)
    trace.host("opanatomy.phase/optimizer", 410, 100)
    trace.annotation("Optimizer.step#SGD.step", 412, 90)
    trace.host("aten::_foreach_add_", 420, 50)
    trace.launch(430, 3)
    trace.kernel("void at::native::multi_tensor_apply_kernel<...>", 440, 5, 3)
    return trace


def page(anatomy: Any, *sections: str, width: int = 200, **options: Any) -> str:
    """The page, or these sections of it, on one line."""
    return " ".join(terminal_report(anatomy, width=width, sections=sections, **options).split())


def device_times(anatomy: Any) -> dict[str, int]:
    """The device time of each phase, of all steps."""
    times: dict[str, int] = {}
    for row in anatomy.classes:
        times[str(row.phase)] = times.get(str(row.phase), 0) + row.time_ns
    return times
