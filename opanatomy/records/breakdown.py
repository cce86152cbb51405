"""What the time of a step is made of, over like steps: what comparing two runs starts from.

The names of operators, signatures, modules and kernels are numbers into the lists of the `Breakdown`, -1 is "none".
"""

from __future__ import annotations

from msgspec import Struct

from opanatomy.records.record import Record
from opanatomy.records.signature_text import SignatureText
from opanatomy.records.taxonomy import OperatorClass, Phase


class WorkRow(Struct, frozen=True, array_like=True):
    """The work of one operator with one signature in one module and phase, by one kernel, over the steps that count.

    `time_ns` is the sum of its device events, of each the part that lies in a step; on the CPU the self time of its
    calls. `calls` are those of the operator where it is known, device events where it is not; `events` device events.
    """

    operator: int
    signature: int
    module: int
    phase: Phase
    operator_class: OperatorClass
    kernel: int
    calls: int
    events: int
    time_ns: int


class Overlap(Record, frozen=True, kw_only=True):
    """The time that two kinds of work ("compute", "communication", "copy") ran at once, so that their sum counts it
    twice. Of several at once each beyond the first overlaps once."""

    first: str
    second: str
    time_ns: int


class LikeStep(Record, frozen=True, kw_only=True):
    """One step of one device (on the CPU of the process), as it went.

    `set_aside` says why it does not count among like steps, `left_out` why the figures of the report are without it.

    The times of the phases are those of `StepRow`.
    """

    number: int | None
    wall_ns: int
    idle_ns: int
    exposed_communication_ns: int | None = None
    forward_ns: int | None = None
    backward_ns: int | None = None
    optimizer_ns: int | None = None
    device: int | None = None
    rank: int | None = None
    #: The place of the run among several that are compared together.
    run: int | None = None
    set_aside: str | None = None
    left_out: str | None = None


class StepKind(Record, frozen=True, kw_only=True):
    """Steps that made the same calls. All times are sums over the `count` of them that are not set aside.

    On an accelerator wall = outside + unrecorded + idle (host, stream, other) + the rows' times - overlaps, on the CPU
    wall = framework + the rows' times - overlaps (of threads), both exactly.
    """

    steps: tuple[LikeStep, ...]
    count: int
    wall_ns: int
    rows: tuple[WorkRow, ...]
    overlaps: tuple[Overlap, ...] = ()
    outside_ns: int = 0
    unrecorded_ns: int = 0
    host_idle_ns: int = 0
    stream_idle_ns: int = 0
    other_idle_ns: int = 0
    framework_ns: int = 0

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the steps, each once; a step without a number has none."""
        return _numbers(self.steps)

    @property
    def counted(self) -> tuple[int, ...]:
        """The numbers of those that are not set aside, wherever they ran."""
        return _numbers(tuple(step for step in self.steps if step.set_aside is None))


def _numbers(steps: tuple[LikeStep, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(step.number for step in steps if step.number is not None))


class Breakdown(Record, frozen=True, kw_only=True):
    """The steps of a run by kind, those with most steps that count first."""

    operators: tuple[str, ...]
    signatures: tuple[SignatureText, ...]
    modules: tuple[str, ...]
    kernels: tuple[str, ...]
    kinds: tuple[StepKind, ...]
