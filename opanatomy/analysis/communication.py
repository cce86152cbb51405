"""The collectives of a rank -> what they cost by phase and module, and how much of it the rank's own work hides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.analysis.aggregate import Order, RowSums
from opanatomy.analysis.intervals import Intervals, length, overlap, union, without
from opanatomy.records.anatomy import CollectiveCalls, Exchanged
from opanatomy.records.columns import CollectiveArguments, CollectiveTable, Int64, distinct
from opanatomy.records.communication import (
    Collective,
    Communication,
    CommunicationPhase,
    ExpectedCommunication,
    ModuleCommunication,
)
from opanatomy.records.taxonomy import BY_C10D_NAME, ITEM_SIZE, PHASES, Phase
from opanatomy.records.workload import SharedWeights, Workload

#: Of these the whole message is what a rank has in the end, of the others what it gives.
_WHOLE_IS_RECEIVED = ("all_gather", "gather")
_PHASE_ORDER = {phase: place for place, phase in enumerate(PHASES)}


def communication_of_rank(exchanged: Exchanged) -> Communication | None:
    """What the collectives of the window's steps cost; `None` where there are none.

    Their time is cut where the steps end. Other steps' work counts on neither side: what runs among them is not
    counted, and does not hide what is.
    """
    calls, steps = exchanged.calls, exchanged.steps
    bounds = steps.start_ns, steps.end_ns
    rows = np.flatnonzero(calls.inside)
    if not len(rows):
        return None
    hidden = exchanged.hiding.start_ns, exchanged.hiding.end_ns
    running = _running(calls, rows, bounds)
    return Communication(
        running_ns=length(running), exposed_ns=length(without(running, hidden)),
        phases=_phases(calls, rows, bounds, hidden), modules=_modules(calls, rows, bounds, hidden),
    )  # fmt: skip


def message_sizes(calls: CollectiveCalls) -> Int64:
    """The bytes of each call's message as nccl-tests counts it, -1 where it is not known."""
    values = [name in _WHOLE_IS_RECEIVED for name in calls.collective.values]
    received = np.array([*values, False], dtype=bool)[calls.collective.codes]
    return np.where(received, calls.received_bytes, np.maximum(calls.sent_bytes, calls.received_bytes))


def _running(calls: CollectiveCalls, rows: Int64, bounds: Intervals) -> Intervals:
    return overlap(union(calls.start_ns[rows], calls.end_ns[rows] - calls.start_ns[rows]), bounds)


def _phases(
    calls: CollectiveCalls, rows: Int64, bounds: Intervals, hidden: Intervals
) -> tuple[CommunicationPhase, ...]:
    sizes = message_sizes(calls)
    made = []
    for code in distinct(calls.phase.codes[rows]).values.tolist():
        own = rows[calls.phase.codes[rows] == code]
        running, sized = _running(calls, own, bounds), sizes[own] >= 0
        made.append(
            CommunicationPhase(
                phase=Phase(calls.phase.values[code]), calls=len(own), sized=int(sized.sum()),
                bytes=int(sizes[own][sized].sum()), launching_ns=int(np.maximum(calls.launching_ns[own], 0).sum()),
                running_ns=length(running), exposed_ns=length(without(running, hidden)),
            )
        )  # fmt: skip
    return tuple(sorted(made, key=lambda row: _PHASE_ORDER[row.phase]))


def _modules(
    calls: CollectiveCalls, rows: Int64, bounds: Intervals, hidden: Intervals
) -> tuple[ModuleCommunication, ...]:
    """The modules that collectives serve, in the order of their first; what serves no single one is the model's."""
    sizes = message_sizes(calls)
    width, kinds = len(calls.phase.values), len(calls.collective.values)
    module = calls.module.codes[rows] + 1
    keys = (module * kinds + calls.collective.codes[rows]) * width + calls.phase.codes[rows]
    groups = distinct(keys)
    made = []
    for place in np.argsort(groups.first).tolist():
        own = rows[groups.inverse == place]
        running, sized = _running(calls, own, bounds), sizes[own] >= 0
        made.append(
            ModuleCommunication(
                module=calls.module.at(int(own[0])) or "", collective=calls.collective.at(int(own[0])) or "",
                phase=Phase(calls.phase.values[int(calls.phase.codes[own[0]])]),
                calls=len(own), sized=int(sized.sum()), bytes=int(sizes[own][sized].sum()),
                running_ns=length(running), exposed_ns=length(without(running, hidden)),
            )
        )  # fmt: skip
    return tuple(made)


class CommunicationOver:
    """The communication of several ranks together, which are added one at a time and in any order.

    What is expected of a step is that of the first rank that has any.
    """

    def __init__(self) -> None:
        self._known: list[tuple[int, int]] = []
        self._phases, self._modules = RowSums(CommunicationPhase), RowSums(ModuleCommunication)
        self._expected: list[tuple[Order, Communication]] = []

    def add(self, communication: Communication | None, order: Order) -> None:
        """Add the communication of one rank."""
        if communication is not None:
            self._known.append((communication.running_ns, communication.exposed_ns))
            self._phases.add(communication.phases, order)
            self._modules.add(communication.modules, order)
            if communication.expected:
                self._expected = [min((*self._expected, (order, communication)), key=lambda entry: entry[0])]

    def communication(self) -> Communication | None:
        """The communication of all ranks, `None` where none has any."""
        if not self._known:
            return None
        return Communication(
            running_ns=sum(running for running, _ in self._known),
            exposed_ns=sum(exposed for _, exposed in self._known),
            phases=tuple(sorted(self._phases.rows(), key=lambda row: _PHASE_ORDER[row.phase])),
            modules=self._modules.rows(),
            expected=self._expected[0][1].expected if self._expected else (),
        )  # fmt: skip


# Device events of communication -> calls, time, bytes and bus bandwidth of each collective.


#: In the order of looking: `all_reduce` is looked for before `reduce`, names without `_` and in small letters.
_NAMES: Final = {
    "barrier": "barrier", "allreduce": "all_reduce", "reducescatter": "reduce_scatter", "allgather": "all_gather",
    "alltoall": "all_to_all", "sendrecv": "send_recv", "broadcast": "broadcast", "scatter": "scatter",
    "gather": "gather", "reduce": "reduce", "send": "send", "recv": "recv",
}  # fmt: skip
OTHER: Final = "other"


class World(Struct, frozen=True):
    """The ranks of the run; `only_group` where the trace says that there is no group but all of them."""

    size: int | None = None
    only_group: bool = False


_Key = tuple[str, "str | None", "int | None", bool]


class _Sum(Struct):
    calls: int = 0
    kernels: int = 0
    time_ns: int = 0
    sized_ns: int = 0
    bytes: int | None = None


def collectives_of(table: CollectiveTable, world: World) -> tuple[Collective, ...]:
    """One row a collective, data type and group, the longest first; their times sum to that of all device events."""
    width = len(table.arguments.values) + 1
    kinds = distinct(table.kernel.codes * width + table.arguments.codes + 1)
    count = len(kinds.values)
    time = np.zeros(count, dtype=np.int64)
    np.add.at(time, kinds.inverse, table.duration_ns)
    # A call of several device events is of the kind of its first one.
    calls = np.bincount(kinds.inverse[distinct(table.call).first], minlength=count)
    kernels = np.bincount(kinds.inverse, minlength=count)
    sums: dict[_Key, _Sum] = {}
    for kind, row in enumerate(kinds.first.tolist()):
        key, size = _kind_of(table.kernel.at(row) or "", table.arguments.at(row) or CollectiveArguments(""), world)
        _add(sums.setdefault(key, _Sum()), int(calls[kind]), int(kernels[kind]), int(time[kind]), size)
    return _sorted(
        with_bandwidth(
            Collective(
                collective=name, dtype=dtype, group_size=group, group_assumed=assumed, calls=row.calls,
                kernels=row.kernels, time_ns=row.time_ns, sized_ns=row.sized_ns, bytes=row.bytes,
                bus_bytes_per_second=None,
            )
        )
        for (name, dtype, group, assumed), row in sums.items()
    )  # fmt: skip


def _kind_of(kernel: str, arguments: CollectiveArguments, world: World) -> tuple[_Key, int | None]:
    """(the row that device events of this name and these arguments are of, the bytes of a call's message)."""
    group = arguments.group_size or world.size
    name = named(arguments.collective) or named(kernel) or OTHER
    dtype = dtype_of(arguments.dtype)
    assumed = arguments.group_size is None and group is not None and not world.only_group
    return (name, dtype, group, assumed), message_bytes(name, arguments, dtype, group)


def _add(row: _Sum, calls: int, kernels: int, time_ns: int, message: int | None) -> None:
    row.calls += calls
    row.kernels += kernels
    row.time_ns += time_ns
    if message is not None:
        row.sized_ns += time_ns
        row.bytes = (row.bytes or 0) + calls * message if calls else row.bytes


def merged_collectives(rows: Iterable[Collective]) -> tuple[Collective, ...]:
    """The rows of several ranks as those of all of them together."""
    merged: dict[_Key, Collective] = {}
    for row in rows:
        key = (row.collective, row.dtype, row.group_size, row.group_assumed)
        before = merged.get(key)
        if before is None:
            merged[key] = row
            continue
        known = [size for size in (before.bytes, row.bytes) if size is not None]
        merged[key] = replace(
            before, calls=before.calls + row.calls, kernels=before.kernels + row.kernels,
            time_ns=before.time_ns + row.time_ns, sized_ns=before.sized_ns + row.sized_ns,
            bytes=sum(known) if known else None,
        )  # fmt: skip
    return _sorted(map(with_bandwidth, merged.values()))


def named(text: str) -> str | None:
    """The collective that a name of c10d, of a backend or of a kernel stands for: `_allgather_base` is all_gather."""
    plain = re.sub(r"[\W_]+", "", text).lower()
    return next((name for part, name in _NAMES.items() if part in plain), None)


def dtype_of(text: str | None) -> str | None:
    """Torch's name of a data type that c10 (`BFloat16`) or torch itself wrote."""
    if not text:
        return None
    plain = text.lower()
    return plain if plain in ITEM_SIZE else BY_C10D_NAME.get(plain)


def message_bytes(collective: str, message: CollectiveArguments, dtype: str | None, group: int | None) -> int | None:
    """The size of the message as nccl-tests counts it: the whole buffer, whichever side has the whole."""
    sent, got = message.in_elements, message.out_elements
    if dtype is None:
        return None
    if collective in ("all_gather", "gather"):
        elements = got or (sent * group if sent is not None and group else None)
    elif collective in ("reduce_scatter", "scatter"):
        elements = sent or (got * group if got is not None and group else None)
    else:
        elements = max((count for count in (sent, got) if count is not None), default=None)
    return None if elements is None or elements < 0 else elements * ITEM_SIZE[dtype]


def both_sides(message: CollectiveArguments) -> tuple[int, int] | None:
    """(elements that a rank gives, elements that it gets); `None` where one is neither said nor follows from the other.

    An all-to-all may be uneven: the one side says nothing of the other.
    """
    sent, got, group = message.in_elements, message.out_elements, message.group_size
    if sent is not None and got is not None:
        return sent, got
    known = got if sent is None else sent
    if known is None:
        return None
    name = named(message.collective)
    if name in ("all_reduce", "broadcast"):
        return known, known
    if name in ("all_gather", "reduce_scatter") and group:
        grows = (name == "all_gather") == (sent is not None)
        other = known * group if grows else known // group
        return (known, other) if sent is not None else (other, known)
    return None


def with_bandwidth(row: Collective) -> Collective:
    """The row with its bus bandwidth, where size, time and group are known."""
    factor = bus_factor(row.collective, row.group_size)
    known = factor and row.bytes and row.sized_ns
    rate = factor * row.bytes * 1e9 / row.sized_ns if known and factor and row.bytes else None
    return replace(row, bus_bytes_per_second=rate)


def bus_factor(collective: str, group: int | None) -> float | None:
    """Bytes on the busiest link for each byte of the message (nccl-tests, PERFORMANCE.md)."""
    if collective in (OTHER, "barrier"):
        return None
    if collective in ("broadcast", "reduce", "send", "recv", "send_recv"):
        return 1.0
    if group is None or group < 2:
        return None
    return (2 if collective == "all_reduce" else 1) * (group - 1) / group


def _sorted(rows: Iterable[Collective]) -> tuple[Collective, ...]:
    return tuple(
        sorted(
            rows,
            key=lambda row: (-row.time_ns, row.collective, row.dtype or "", row.group_size or 0, row.group_assumed),
        )
    )


# What the ranks of a training must communicate in a step, by what they share: DDP, FSDP, copies of shards.


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
