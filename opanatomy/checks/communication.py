"""What a step communicated against what theory says that the ranks' shared weights need; the parts of the steps of
several ranks against the union of all their work."""

from __future__ import annotations

from opanatomy.records.checks import Check, Difference
from opanatomy.records.communication import Communication, ExpectedCommunication
from opanatomy.records.waiting import Waiting

_SOURCE = "the weights that the ranks share"
_REDUCTIONS = ("all_reduce", "reduce_scatter")


def check_communication(communication: Communication | None, micro_batches: int = 1) -> tuple[Check, ...]:
    """The bytes of each module's collectives against those that its weights need; none where nothing is expected.

    A loop that accumulates gradients may reduce them in each of its `micro_batches`, where once would do.
    """
    if communication is None or not communication.expected:
        return ()
    known = [row for row in communication.expected if row.measured_bytes is not None]
    differences = tuple(
        Difference(
            operator=row.collective, ours=row.measured_bytes, other=row.expected_bytes,
            evidence=row.module or "the whole model", cause=_cause(row, micro_batches),
        )
        for row in known
        if row.measured_bytes != row.expected_bytes
    )  # fmt: skip
    unknown = len(communication.expected) - len(known)
    return (
        Check(
            quantity="communicated bytes", source=_SOURCE, unit="B", compared=len(known),
            equal=len(known) - len(differences), differences=differences,
            not_checked=f"the trace does not have {unknown} of the messages" if unknown else None,
        ),
    )  # fmt: skip


def _cause(row: ExpectedCommunication, micro_batches: int) -> str | None:
    each_time = row.collective in _REDUCTIONS and micro_batches > 1
    if each_time and row.measured_bytes == micro_batches * row.expected_bytes:
        return f"reduced in each of {micro_batches} micro-batches: the loop has no no_sync()"
    return None


def check_parts(waiting: Waiting | None) -> tuple[Check, ...]:
    """The parts of each step of several ranks, whose sum is the step; none where no collective is matched."""
    if waiting is None:
        return ()
    steps = [(rank, step) for rank in waiting.each for step in rank.steps]
    sums = [
        step.other_work_ns + step.transfer_ns + step.waiting_ns + step.unmatched_ns + step.idle_ns for _, step in steps
    ]
    differences = tuple(
        Difference(
            operator="parts of a step", ours=whole, other=step.wall_ns, time_ns=abs(whole - step.wall_ns),
            evidence=f"step {step.number} of {rank.trace if rank.rank is None else f'rank {rank.rank}'}",
        )
        for (rank, step), whole in zip(steps, sums, strict=True)
        if whole != step.wall_ns
    )  # fmt: skip
    return (
        Check(
            quantity="parts of steps", source="the union of all work of the step", unit="ns", compared=len(steps),
            equal=len(steps) - len(differences), differences=differences,
        ),
    )  # fmt: skip
