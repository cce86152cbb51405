"""A step that was not run: its calls and its memory, as seen on fake tensors."""

from __future__ import annotations

from opanatomy.records.memory_observations import MemoryObservations
from opanatomy.records.record import Record
from opanatomy.records.signature import Signature
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import Workload


class SimulatedCall(Record, frozen=True, kw_only=True):
    """Like calls of one operator in one phase of a step: arguments in the order of the schema."""

    operator: str
    signature: Signature
    phase: Phase
    calls: int


class SimulatedStep(Record, frozen=True, kw_only=True):
    """What one step after the first would call and allocate on `device`."""

    workload: Workload
    device: str
    calls: tuple[SimulatedCall, ...]
    memory: MemoryObservations
    #: The calls of a step on each batch of a run on texts; `calls` are of the one that is profiled, `memory` of the
    #: longest.
    batches: tuple[tuple[SimulatedCall, ...], ...] = ()
