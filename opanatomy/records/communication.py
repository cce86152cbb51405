"""What the collectives of the steps cost: by phase and by the module that they serve, hidden or not."""

from __future__ import annotations

from opanatomy.records.record import Record
from opanatomy.records.taxonomy import Phase


class CommunicationPhase(Record, frozen=True, kw_only=True):
    """The collectives that one phase launched, over all steps.

    `launching_ns` is host time in the calls that launched them, `running_ns` the union of the times in which any of
    them ran, waiting for others included, `exposed_ns` the part of it in which the rank did nothing else. Of several
    collectives of different phases each phase has all of its own time: phases may overlap. `bytes` is the size of the
    messages, as nccl-tests counts it, of the `sized` calls whose size is known.
    """

    phase: Phase
    calls: int
    sized: int
    bytes: int
    launching_ns: int
    running_ns: int
    exposed_ns: int


class ModuleCommunication(Record, frozen=True, kw_only=True):
    """The calls of one collective for one module in one phase, over all steps; times as in `CommunicationPhase`.

    `module` is empty for the model as a whole: what is outside of its parts, and all that no range names a module of.
    """

    module: str
    collective: str
    phase: Phase
    calls: int
    sized: int
    bytes: int
    running_ns: int
    exposed_ns: int


class ExpectedCommunication(Record, frozen=True, kw_only=True):
    """What one step must communicate of a collective for a module by theory, against what its messages were.

    `wire_bytes` is what each rank puts on its links for that: of n ranks 2 (n - 1) / n of an all-reduce, (n - 1) / n
    of a gather or a reduce-scatter.
    """

    module: str
    collective: str
    ranks: int
    expected_bytes: int
    measured_bytes: int | None
    wire_bytes: int


class Communication(Record, frozen=True, kw_only=True):
    """The communication of the steps: `running_ns` is the union of all collectives, `exposed_ns` what nothing hides.

    Over several ranks all figures are sums.
    """

    running_ns: int
    exposed_ns: int
    phases: tuple[CommunicationPhase, ...]
    modules: tuple[ModuleCommunication, ...]
    expected: tuple[ExpectedCommunication, ...] = ()
