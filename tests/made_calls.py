"""Made-up calls and kernels, as the stages before hand them to the anatomy: the one place that builds such tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from msgspec import Struct

from opanatomy.analysis.intervals import LaunchedWork
from opanatomy.records.anatomy import LinkedTime
from opanatomy.records.columns import (
    GRAPH,
    KERNEL,
    LINKED,
    MEMCPY,
    MEMSET,
    NO_LAUNCH,
    OUTSIDE,
    CallTable,
    Categorical,
    DeviceWork,
    HostTable,
    Int64,
    KernelTable,
    Launches,
)
from opanatomy.records.signature import SignatureText
from opanatomy.records.taxonomy import OperatorClass, Phase


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
    link: int = LINKED


class Call(Struct, frozen=True, kw_only=True):
    """One call of `work`, on the GPU with one kernel on `stream`."""

    work: Work
    start_ns: int
    duration_ns: int
    stream: int = 7
    launch_ns: int = -1


Spec = tuple[str | None, OperatorClass, int, int, int | None, int | None, int | None]


def operators(
    phase: Phase, *specs: Spec, signature: str = "", module: str | None = None, link: int = LINKED
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


Value = TypeVar("Value")


def coded(rows: Iterable[Value | None], values: Sequence[Value]) -> Categorical[Value]:
    """A column of these values."""
    return Categorical(np.array([-1 if row is None else values.index(row) for row in rows], dtype=np.int64), values)


def categorical(rows: Iterable[str | None]) -> Categorical[str]:
    """A column of texts."""
    rows = tuple(rows)
    return coded(rows, tuple(dict.fromkeys(row for row in rows if row is not None)))


def call_table(calls: Iterable[Call], kernels_per_call: int) -> CallTable:
    """The calls as the joining of the stages hands them to the anatomy."""
    calls = tuple(calls)
    works = [call.work for call in calls]
    signatures = [SignatureText(work.signature) for work in works]

    def costs(name: str) -> Int64:
        return np.array([-1 if (cost := getattr(work, name, None)) is None else cost for work in works], dtype=np.int64)

    return CallTable(
        operator=categorical(work.operator for work in works),
        signature=coded(signatures, tuple(dict.fromkeys(signatures))),
        phase=coded((work.phase for work in works), tuple(Phase)),
        module=categorical(work.module for work in works),
        operator_class=coded((work.operator_class for work in works), tuple(OperatorClass)),
        rule=categorical(_rule(work.operator, work.operator_class) for work in works),
        part_of=categorical(None for _ in works),
        host_row=np.arange(len(works)),
        start_ns=np.array([call.start_ns for call in calls], dtype=np.int64),
        time_ns=np.array([call.duration_ns for call in calls], dtype=np.int64),
        kernels=np.full(len(works), kernels_per_call),
        inner=np.zeros(len(works), dtype=bool),
        costed=np.array([work.flops is not None for work in works]),
        flops=costs("flops"),
        read_bytes=costs("read_bytes"),
        written_bytes=costs("written_bytes"),
        causal_flops=costs("causal_flops"),
        normalization_flops=costs("normalization_flops"),
        crosses_host_link=np.zeros(len(works), dtype=bool),
        compute_type=categorical(None for _ in works),
    )


def kernel_name(work: Work) -> str:
    """What ran for a call."""
    if work.operator is None:
        return "Memcpy HtoD" if work.link == OUTSIDE else "Memset (Device)"
    if work.operator_class is OperatorClass.UNKNOWN:
        return "void my_rotary_kernel<__nv_bfloat16, [link=https://example.org]>(int)"
    if work.operator == "aten::mm":
        return "nvjet_tst_192x192_64x4_2x1_v_bz_coopA_NNT"
    return f"void {work.operator.rpartition(':')[2]}_kernel(int)"


def kernel_table(calls: Iterable[Call]) -> KernelTable:
    """One kernel a call."""
    calls = tuple(calls)
    works = [call.work for call in calls]
    signatures = [SignatureText(work.signature) for work in works]
    return KernelTable(
        kernel=categorical(kernel_name(work) for work in works),
        operator=categorical(work.operator for work in works),
        signature=coded(signatures, tuple(dict.fromkeys(signatures))),
        launched_by=np.arange(len(works)),
        phase=coded((work.phase for work in works), tuple(Phase)),
        operator_class=coded((work.operator_class for work in works), tuple(OperatorClass)),
        kernel_class=coded((work.operator_class for work in works), tuple(OperatorClass)),
        kernel_rule=categorical(
            "no rule" if work.operator_class is OperatorClass.UNKNOWN else "kernel:made" for work in works
        ),
        module=categorical(work.module for work in works),
        device=np.zeros(len(works), dtype=np.int64),
        stream=np.array([call.stream for call in calls]),
        start_ns=np.array([call.start_ns for call in calls], dtype=np.int64),
        link=np.array([work.link for work in works]),
        call=np.arange(len(works)),
        tensor_cores=np.array(["nvjet" in kernel_name(work) for work in works], dtype=np.int64),
        duration_ns=np.array([call.duration_ns for call in calls], dtype=np.int64),
    )


def launched_work(calls: Iterable[Call], loading: Iterable[tuple[int, int]] = ()) -> LaunchedWork:
    """The kernels of the calls with their launches; while it is `loading`, the host is in its loader of data."""
    calls = tuple(calls)
    count = len(calls)
    kernels = dict.fromkeys(kernel_name(call.work) for call in calls)
    names = (*kernels, "cudaLaunchKernel", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
    zeros, ones, unknown = np.zeros(count, dtype=np.int64), np.arange(1, count + 1), np.full(count, np.nan)
    return LaunchedWork(
        names=names,
        work=DeviceWork(
            name=np.array([names.index(kernel_name(call.work)) for call in calls]),
            device=zeros,
            stream=np.array([call.stream for call in calls]),
            start_ns=np.array([call.start_ns for call in calls], dtype=np.int64),
            duration_ns=np.array([call.duration_ns for call in calls], dtype=np.int64),
            correlation=ones, external_id=ones, kind=np.array([_kind(call.work) for call in calls]),
            blocks_per_sm=unknown, occupancy=unknown,
        ),
        launches=Launches(
            name=zeros + len(kernels), thread=zeros,
            start_ns=np.array([call.launch_ns for call in calls], dtype=np.int64),
            duration_ns=zeros + 4_000, correlation=ones, external_id=ones,
        ),
        launch=np.array([-1 if call.work.link == NO_LAUNCH else row for row, call in enumerate(calls)]),
        inside=np.array([call.work.link != OUTSIDE for call in calls]),
        device_names=((0, "NVIDIA H200"),),
        host=_host(len(kernels) + 1, loading),
    )  # fmt: skip


def _host(name: int, spans: Iterable[tuple[int, int]]) -> HostTable:
    """Annotations of one name, one after the other on the thread that launches."""
    start, end = np.array([*spans], dtype=np.int64).reshape(-1, 2).T
    columns = {column: np.zeros(len(start), dtype=np.int64) for column in HostTable.__struct_fields__}
    columns |= {"name": columns["name"] + name, "start_ns": start, "duration_ns": end - start, "self_ns": end - start}
    columns |= {"annotation": columns["name"] + 1, "parent": columns["parent"] - 1, "in_window": start >= 0}
    return HostTable(**columns | {"module": categorical(None for _ in start)})


def _kind(work: Work) -> int:
    return KERNEL if work.operator is not None else MEMCPY if work.link == OUTSIDE else MEMSET


def linked_time(calls: Iterable[Call]) -> LinkedTime:
    """The time of the calls by what launched them."""
    spent = dict.fromkeys((LINKED, GRAPH, NO_LAUNCH, OUTSIDE), 0)
    for call in calls:
        spent[call.work.link] += call.duration_ns
    return LinkedTime(
        linked_ns=spent[LINKED], graph_launched_ns=spent[GRAPH], no_launch_record_ns=spent[NO_LAUNCH],
        outside_window_ns=spent[OUTSIDE],
    )  # fmt: skip
