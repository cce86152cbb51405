"""The collectives of a rank -> what they cost by phase and module, and how much of it the rank's own work hides."""

from __future__ import annotations

import numpy as np

from opanatomy.anatomy.intervals import Intervals, length, overlap, union, without
from opanatomy.anatomy.row_sums import Order, RowSums
from opanatomy.records.columns import Int64, distinct
from opanatomy.records.communication import (
    Communication,
    CommunicationPhase,
    ModuleCommunication,
)
from opanatomy.records.rank_summary import CollectiveCalls, Exchanged
from opanatomy.records.taxonomy import PHASES, Phase

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
