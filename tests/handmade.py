"""Traces made by hand, a few lines each, written the way Kineto writes them."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class HandMade:
    """Events at times in microseconds; `operator(...)` and its like append and give the External id."""

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
        self.events.append(_complete(category, name, 7, thread, start, duration, args))
        self.next_id += 1
        return self.next_id - 1

    def annotation(self, name: str, start: float, duration: float, thread: int | str = 1) -> int:
        return self.host(name, start, duration, thread=thread, category="user_annotation")

    def launch(self, start: float, correlation: int, *, thread: int = 1, name: str = "cudaLaunchKernel") -> None:
        args = {"External id": 0, "correlation": correlation}
        self.events.append(_complete("cuda_runtime", name, 7, thread, start, 2, args))

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
    ) -> None:
        args: dict[str, Any] = {"correlation": correlation, "stream": stream, "device": 0}
        if external_id is not None:
            args["External id"] = external_id
        self.events.append(_complete(category, name, 0, stream, start, duration, args))

    def text(self, **options: Any) -> str:
        return json.dumps({**self.metadata, "traceEvents": self.events}, **options)

    def write(self, path: Path, **options: Any) -> Path:
        text = self.text(**options)
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(text)
        return path


def _complete(
    category: str, name: str, process: int, thread: int | str, start: float, duration: float, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, "ts": start, "dur": duration,
        "args": args,
    }  # fmt: skip


def training_step() -> HandMade:
    """A GPU step: linear forward, its backward on another thread, an optimizer; device times 10, 20, 5 us."""
    trace = HandMade()
    trace.metadata["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85018279936}]
    trace.annotation("ProfilerStep#3", 100, 900)
    trace.host("opanatomy.phase/forward", 110, 90)
    trace.host("opanatomy.module/head", 115, 80)
    trace.host("aten::linear", 120, 60, sequence=5)
    matrix = {"shapes": [[8, 4], [4, 2]], "types": ["float", "float"]}
    trace.host("aten::mm", 125, 50, sequence=5, **matrix)
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
