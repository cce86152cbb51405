"""What the ranks of a training must communicate in a step, by what they share: DDP, FSDP, copies of shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from opanatomy.anatomy.collectives import bus_factor
from opanatomy.records.communication import Communication, ExpectedCommunication
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import SharedWeights, Workload

_REDUCE: Final = "all_reduce"
_GATHER: Final = "all_gather"
_SCATTER: Final = "reduce_scatter"


def with_expected(
    communication: Communication | None, shared: Sequence[SharedWeights], workload: Workload, steps: int
) -> Communication | None:
    """The communication next to what theory says of `steps` steps that are alike; unchanged where nothing is shared."""
    if communication is None or not shared:
        return communication
    return replace(communication, expected=_expected(communication, shared, workload, max(steps, 1)))


def _expected(
    communication: Communication, shared: Sequence[SharedWeights], workload: Workload, steps: int
) -> tuple[ExpectedCommunication, ...]:
    rows = []
    for weights in shared:
        for collective, message, ranks in _messages(weights, workload):
            measured = _measured(communication, collective, weights.module)
            rows.append(
                ExpectedCommunication(
                    module=weights.module, collective=collective, ranks=ranks, expected_bytes=message,
                    measured_bytes=None if measured is None else measured // steps,
                    wire_bytes=int(message * (bus_factor(collective, ranks) or 0)),
                )
            )  # fmt: skip
    return tuple(rows)


def _messages(weights: SharedWeights, workload: Workload) -> list[tuple[str, int, int]]:
    """(collective, bytes a step, ranks) of all that weights need: each micro-batch gathers, the last one reduces."""
    trains, forwards = not workload.inference, workload.accumulate or 1
    messages = []
    if weights.gathered_bytes and (trains or weights.regathered):  # without a backward what is kept is not freed
        gathers = forwards * (1 + (trains and weights.regathered))
        messages.append((_GATHER, gathers * weights.gathered_bytes, weights.ranks))
    if trains and weights.reduced_bytes:
        messages.append((_SCATTER if weights.gathered_bytes else _REDUCE, weights.reduced_bytes, weights.ranks))
        if weights.gathered_bytes and weights.replicas > 1:
            messages.append((_REDUCE, weights.reduced_bytes // weights.ranks, weights.replicas))
    return messages


def _measured(communication: Communication, collective: str, module: str) -> int | None:
    """The bytes of the messages that a module had, reductions those of backward; `None` where not all have a size."""
    rows = [
        row for row in communication.modules
        if (row.collective, row.module) == (collective, module)
        and (collective == _GATHER or row.phase is Phase.BACKWARD)
    ]  # fmt: skip
    return sum(row.bytes for row in rows) if rows and all(row.sized == row.calls for row in rows) else None
