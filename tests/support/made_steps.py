"""Whole steps made by hand, their times known by construction."""

from __future__ import annotations

from typing import Any

from tests.support.made_trace import GEMM, H100, MAP, NCCL, TraceBuilder, on_gpu, training_step


def message(
    name: str = "allreduce", sent: int = 1000, got: int = 1000, group: int = 4, dtype: str = "Float"
) -> dict[str, Any]:
    """What c10d says of a collective."""
    return {
        "Collective name": name,
        "In msg nelems": sent,
        "Out msg nelems": got,
        "Group size": group,
        "dtype": dtype,
        "In split size": "[]",
        "Process Group Name": "0",
    }


def rank_trace(
    rank: int | None,
    *,
    waits: float = 50,
    world: int = 4,
    kernel: str = NCCL,
    shape: list[int] | None = None,
    message: dict[str, Any] | None = None,
    on_kernel: bool = True,
) -> TraceBuilder:
    """A step of 900 us with an all-reduce that takes `waits` us and that nothing hides, as c10d and NCCL leave it: an
    operator, `record_param_comms`, an annotation, a launch, a kernel."""
    trace = training_step()
    if rank is not None:
        trace.metadata["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world}
    trace.host("c10d::allreduce_", 580, 15)
    trace.host("record_param_comms", 581, 13)
    trace.events[-1]["args"] |= message or {}
    shapes: dict[str, Any] = {} if shape is None else {"shapes": [shape], "types": ["float"]}
    trace.host("nccl:all_reduce", 582, 11, category="user_annotation", **shapes)
    trace.launch(583, 90)
    trace.kernel(kernel, 600, waits, 90, stream=20, **((message or {}) if on_kernel else {}))
    return trace


def many_kernels(count: int = 16_000) -> TraceBuilder:
    """Kernels of 1 us with 1 us between them."""
    trace = on_gpu()
    trace.step(0, 2 * count + 100)
    for index in range(count):
        trace.host("aten::mm", 2 * index, 1)
        trace.run((GEMM, MAP)[index % 2], 2 * index + 0.5, 2 * index + 1, 1)
    return trace


def one_step(length: int) -> TraceBuilder:
    """A step of so many microseconds on an H100, without events."""
    trace = TraceBuilder(metadata={"schemaVersion": 1, "deviceProperties": [H100]})
    trace.step(0, length)
    return trace


def read_back() -> TraceBuilder:
    """A kernel of 500 us, a wait of the host that returns 8 us later, 300 us of host and a kernel of 100 us, thrice."""
    trace = one_step(2_784)
    for step in range(3):
        begin = 928 * step
        trace.host("aten::mm", begin, 10)
        trace.run(GEMM, begin + 2, begin + 10, 500)
        trace.launch(begin + 20, 0, name="cudaStreamSynchronize", duration=498)
        trace.host("aten::relu", begin + 805, 10)
        trace.run(MAP, begin + 812, begin + 820, 100)
    return trace


def two_streams() -> TraceBuilder:
    """A product of 400 us beside a collective of 600 us, and a map that waits for both."""
    trace = one_step(40)
    trace.host("aten::mm", 0, 10)
    trace.run(GEMM, 2, 10, 400)
    trace.host("c10d::allreduce_", 10, 8)
    trace.run(NCCL, 12, 20, 600, stream=20)
    trace.host("aten::relu", 20, 10)
    trace.run(MAP, 22, 622, 98)
    return trace
