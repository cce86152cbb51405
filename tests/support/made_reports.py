"""Reports of one made step: classes of work that run one after the other, idle time, ranks that wait."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from opanatomy.records.anatomy import Anatomy, IdleRow, Step, StepRow, Timeline
from opanatomy.records.communication import ClockSetting, Rank, RankWaiting, StepParts, Straggler, Waiting
from opanatomy.records.taxonomy import IdleCause, OperatorClass, Phase
from opanatomy.records.work import ClassRow
from opanatomy.records.workload import Environment, Workload
from tests.support import anatomies

CONTRACTION, ELEMENTWISE = OperatorClass.TENSOR_CONTRACTION, OperatorClass.ELEMENTWISE
NORMALIZATION, COMMUNICATION = OperatorClass.STATISTICAL_NORMALIZATION, OperatorClass.COMMUNICATION
#: A class, its time, its FLOPs and its phase.
Row = tuple[Any, ...]


def class_row(item: OperatorClass, time_ns: int, flops: int | None = None, phase: Phase = Phase.FORWARD) -> ClassRow:
    return ClassRow(
        operator_class=item,
        phase=phase,
        calls=1,
        kernels=1,
        time_ns=time_ns,
        flops=flops,
        read_bytes=1,
        written_bytes=1,
        uncosted_ns=time_ns if flops is None else 0,
    )


def made(
    *rows: Row, exposed: int = 0, around: int | None = None, number: int | None = 1, outside: int = 0, **idle: int
) -> Anatomy:
    """One step on a GPU whose work runs one after the other, with so much idle time of each cause."""
    empty, classes = anatomies.nothing(), tuple(class_row(*row) for row in rows)
    busy, waits = sum(row.time_ns for row in classes), sum(idle.values())
    causes = sorted(((IdleCause(cause), ns) for cause, ns in idle.items()), key=lambda part: -part[1])
    timeline = Timeline(
        window_ns=busy + waits + outside,
        busy_ns=busy,
        idle_ns=waits,
        host_idle_ns=waits - idle.get("stream", 0),
        stream_idle_ns=idle.get("stream", 0),
        other_idle_ns=0,
        outside_ns=outside,
        unrecorded_ns=0,
        around_ns=around,
        exposed_communication_ns=exposed,
        communication_ns=exposed,
        causes=tuple(IdleRow(cause=cause, time_ns=ns) for cause, ns in causes),
    )
    wall = busy + waits
    return replace(
        anatomies.with_tables(empty, classes=classes),
        provenance=replace(empty.provenance, trace="a trace.json.gz"),
        timeline=timeline,
        environment=Environment(device_kind="cuda", device_memory_bytes=1000),
        workload=Workload(),
        step=Step(wall_ns=wall, steps=(StepRow(number=number, wall_ns=wall),)),
    )


def of_ranks(waiting_ns: int, transfer_ns: int, computing_ns: int, straggler: Straggler | None = None) -> Anatomy:
    """Two ranks whose steps are waiting, transfer and work of their own."""
    exposed, wall = waiting_ns + transfer_ns, waiting_ns + transfer_ns + computing_ns
    step = StepParts(
        number=1,
        wall_ns=wall,
        other_work_ns=computing_ns,
        transfer_ns=transfer_ns,
        waiting_ns=waiting_ns,
        unmatched_ns=0,
        idle_ns=0,
    )
    each = tuple(
        RankWaiting(
            rank=rank,
            trace=f"rank-{rank}.json",
            clock_offset_ns=0,
            calls=1,
            matched=1,
            transferring_ns=transfer_ns,
            waiting_ns=waiting_ns,
            charged_ns=0,
            steps=(step,),
        )
        for rank in (0, 1)
    )
    clocks = ClockSetting(was_set=False, collectives=1, within_ns=1, ended_too_early_before=0, ended_too_early=0)
    waiting = Waiting(
        ranks=2,
        world_size=2,
        is_lower_bound=False,
        by_number=1,
        by_order=0,
        by_time=0,
        clocks=clocks,
        each=each,
        collectives=(),
        straggler=straggler,
    )
    ranks = tuple(
        Rank(
            rank=rank,
            world_size=2,
            trace=f"rank-{rank}.json",
            trace_sha256=None,
            device=None,
            steps=1,
            wall_ns=wall,
            window_ns=wall,
            busy_ns=wall,
            idle_ns=0,
            kernel_time_ns=wall,
            communication_ns=exposed,
            exposed_communication_ns=exposed,
            exposed_memcpy_ns=0,
        )
        for rank in (0, 1)
    )
    return replace(
        made((CONTRACTION, computing_ns), (COMMUNICATION, exposed), exposed=exposed), waiting=waiting, ranks=ranks
    )
