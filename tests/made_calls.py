"""Made-up calls and kernels, as the stages before hand them to the anatomy: the one place that builds such tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from msgspec import Struct

from opanatomy.anatomy import LaunchedWork
from opanatomy.records.columns import (
    KERNEL,
    MEMCPY,
    MEMSET,
    CallTable,
    DeviceWork,
    Int64,
    KernelTable,
    Launches,
    categorical,
)
from opanatomy.records.taxonomy import OperatorClass, Phase

LINKED, GRAPH, UNLAUNCHED, OUTSIDE = "linked", "graph_launched", "no_launch_record", "outside_window"
COPY_NS = 1_204_000


class Work(Struct, frozen=True, kw_only=True):
    """Calls of one operator with one signature: microseconds of all of them, FLOPs and bytes of one."""

    operator: str | None
    operator_class: OperatorClass
    calls: int
    time_us: int
    flops: int | None
    read_bytes: int | None
    written_bytes: int | None
    phase: Phase
    signature: str
    module: str | None
    link: str = LINKED


class Call(Struct, frozen=True, kw_only=True):
    """One call of `work`, on the GPU with one kernel on `stream`."""

    work: Work
    start_ns: int
    duration_ns: int
    stream: int = 7
    launch_ns: int = -1


Spec = tuple[str | None, OperatorClass, int, int, int | None, int | None, int | None]


def operators(
    phase: Phase, *specs: Spec, signature: str = "", module: str | None = None, link: str = LINKED
) -> tuple[Work, ...]:
    """The work of each name, class, calls, microseconds in all, and FLOPs, bytes read and bytes written of one call."""
    return tuple(
        Work(
            operator=name, operator_class=operator_class, calls=calls, time_us=time_us, flops=flops, read_bytes=read,
            written_bytes=written, phase=phase, signature=signature, module=module, link=link,
        )
        for name, operator_class, calls, time_us, flops, read, written in specs
    )  # fmt: skip


def durations(work: Work, step: int, steps: int) -> Iterator[int]:
    """Of each call of one step; those of all the steps add up to the time of the work."""
    total, each = work.time_us * 1000, work.calls // steps
    for call in range(step * each, (step + 1) * each):
        yield total * (call + 1) // work.calls - total * call // work.calls


def _rule(operator: str | None, operator_class: OperatorClass) -> str:
    return "no rule" if operator_class is OperatorClass.UNKNOWN else f"operator:{operator or 'Memset'}"


def call_table(calls: Iterable[Call], kernels_per_call: int) -> CallTable:
    """The calls as the joining of the stages hands them to the anatomy."""
    calls = tuple(calls)
    works = [call.work for call in calls]

    def costs(name: str) -> Int64:
        return np.array([-1 if (cost := getattr(work, name, None)) is None else cost for work in works], dtype=np.int64)

    return CallTable(
        operator=categorical(work.operator for work in works),
        signature=categorical(work.signature for work in works),
        phase=categorical(str(work.phase) for work in works),
        module=categorical(work.module for work in works),
        operator_class=categorical(str(work.operator_class) for work in works),
        rule=categorical(_rule(work.operator, work.operator_class) for work in works),
        part_of=categorical(None for _ in works),
        host_row=np.arange(len(works)),
        start_ns=np.array([call.start_ns for call in calls], dtype=np.int64),
        time_ns=np.array([call.duration_ns for call in calls], dtype=np.int64),
        kernels=np.full(len(works), kernels_per_call),
        inner=np.zeros(len(works), dtype=bool),
        costed=np.array([work.flops is not None for work in works]),
        costs={
            name: costs(name)
            for name in ("flops", "read_bytes", "written_bytes", "causal_flops", "normalization_flops")
        },
        compute_type=categorical(None for _ in works),
    )


def kernel_name(work: Work) -> str:
    """What ran for a call."""
    if work.operator is None:
        return "Memset (Device)"
    if work.operator_class is OperatorClass.UNKNOWN:
        return "void my_rotary_kernel<__nv_bfloat16, [link=https://example.org]>(int)"
    if work.operator == "aten::mm":
        return "nvjet_tst_192x192_64x4_2x1_v_bz_coopA_NNT"
    return f"void {work.operator.rpartition(':')[2]}_kernel(int)"


def kernel_table(calls: Iterable[Call]) -> KernelTable:
    """One kernel a call."""
    calls = tuple(calls)
    works = [call.work for call in calls]
    return KernelTable(
        kernel=categorical(kernel_name(work) for work in works),
        operator=categorical(work.operator for work in works),
        phase=categorical(str(work.phase) for work in works),
        operator_class=categorical(str(work.operator_class) for work in works),
        kernel_class=categorical(str(work.operator_class) for work in works),
        kernel_rule=categorical(
            "no rule" if work.operator_class is OperatorClass.UNKNOWN else "kernel:made" for work in works
        ),
        duration_ns=np.array([call.duration_ns for call in calls], dtype=np.int64),
    )


def launched_work(calls: Iterable[Call]) -> LaunchedWork:
    """The kernels of the calls with their launches, and a copy that the window does not hold."""
    calls = tuple(calls)
    count = len(calls) + 1
    launches = np.array([-3_000_000, *(call.launch_ns for call in calls)], dtype=np.int64)
    names = tuple(dict.fromkeys(["Memcpy HtoD", *(kernel_name(call.work) for call in calls)]))
    zeros, ones, unknown = np.zeros(count, dtype=np.int64), np.arange(count), np.full(count, np.nan)
    kinds = [MEMCPY, *(MEMSET if call.work.operator is None else KERNEL for call in calls)]
    return LaunchedWork(
        names=names,
        work=DeviceWork(
            name=np.array([0, *(names.index(kernel_name(call.work)) for call in calls)]),
            device=zeros,
            stream=np.array([7, *(call.stream for call in calls)]),
            start_ns=np.array([-2_000_000, *(call.start_ns for call in calls)], dtype=np.int64),
            duration_ns=np.array([COPY_NS, *(call.duration_ns for call in calls)], dtype=np.int64),
            correlation=ones, external_id=ones, kind=np.array(kinds), blocks_per_sm=unknown, occupancy=unknown,
        ),
        launches=Launches(
            name=zeros, thread=zeros, start_ns=launches, duration_ns=zeros + 4_000, correlation=ones, external_id=ones
        ),
        launch=np.array([0, *(-1 if call.work.link == UNLAUNCHED else row + 1 for row, call in enumerate(calls))]),
        inside=ones > 0,
        device_names=((0, "NVIDIA H200"),),
    )  # fmt: skip


def links(calls: Iterable[Call], outside_ns: int = 0) -> dict[str, int]:
    """The time of the calls by what launched them, and of the work outside the window."""
    spent = dict.fromkeys((LINKED, GRAPH, UNLAUNCHED), 0)
    for call in calls:
        spent[call.work.link] += call.duration_ns
    return {**spent, OUTSIDE: outside_ns}
