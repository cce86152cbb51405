"""The phases of a user's own loop over time: that of each marked call, and of what lies between two of them.

A loop marks its outermost calls of modules, of backward and of optimizers. A loss is computed between a module and
backward, gradients are clipped between backward and the optimizer; neither is a call that could be marked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, NamedTuple, TypeAlias

from opanatomy.records.taxonomy import Phase

#: Begin and end in ns, and the phase.
Span: TypeAlias = "tuple[int, int, Phase]"

#: What lies between a marked call (`None`: the beginning of the step) and the next one. Where two forwards follow each
#: other what comes after them decides. All else, such as data loading after an optimizer, is of no pass.
_BETWEEN: Final[Mapping[tuple[Phase | None, Phase], Phase]] = {
    (None, Phase.BACKWARD): Phase.FORWARD,
    (Phase.FORWARD, Phase.BACKWARD): Phase.FORWARD,
    (Phase.BACKWARD, Phase.BACKWARD): Phase.FORWARD,
    (Phase.OPTIMIZER, Phase.BACKWARD): Phase.FORWARD,
    (Phase.BACKWARD, Phase.OPTIMIZER): Phase.OPTIMIZER,
    (Phase.OPTIMIZER, Phase.OPTIMIZER): Phase.OPTIMIZER,
}


def between(before: Phase | None, after: Phase) -> Phase | None:
    """The phase of what ran between two calls; `None` where the call that follows does not decide it."""
    if before is after is Phase.FORWARD:
        return None
    return _BETWEEN.get((before, after), Phase.OTHER)


class MarkedCall(NamedTuple):
    """The range of a call; one with `decides` takes part in what lies between, others (data loading) lie over it."""

    begin_ns: int
    end_ns: int
    phase: Phase
    decides: bool


@dataclass(slots=True)
class _Level:
    """The calls directly inside of an optimizer's (a closure), or outside of all."""

    end_ns: int
    phase: Phase
    before: Phase | None = None
    #: Where the last call ended, and the beginnings and ends of what is not decided yet.
    since_ns: int = 0
    undecided: list[tuple[int, int]] = field(default_factory=list)

    def begin(self, call: MarkedCall) -> list[Span]:
        """What `call` decides."""
        self.undecided.append((self.since_ns, call.begin_ns))
        phase = between(self.before, call.phase)
        decided: list[Span] = []
        if phase is not None:
            if phase is not Phase.OTHER:
                decided = [(begin, end, phase) for begin, end in self.undecided if end > begin]
            self.undecided = []
        self.before, self.since_ns = call.phase, call.end_ns
        return decided


def loop_spans(calls: Iterable[MarkedCall], step_begins: Sequence[int]) -> tuple[Span, ...]:
    """The spans of forward, backward and optimizer in order, none inside another; the rest is of no pass."""
    ordered = sorted(calls, key=lambda call: (call.begin_ns, -call.end_ns))
    spans: list[Span] = []
    levels: list[_Level] = []
    begins = sorted(step_begins)
    step = -1
    for call in ordered:
        while step + 1 < len(begins) and begins[step + 1] <= call.begin_ns:
            step, levels = step + 1, []
        if not levels:
            levels = [_Level(1 << 63, Phase.OTHER, since_ns=begins[step] if step >= 0 else call.begin_ns)]
        while levels[-1].end_ns <= call.begin_ns:
            levels.pop()
        # What lies between calls inside of a backward, or inside of a forward, is of that.
        if call.decides and levels[-1].phase in (Phase.OTHER, Phase.OPTIMIZER):
            spans += levels[-1].begin(call)
        spans.append((call.begin_ns, call.end_ns, call.phase))
        levels.append(_Level(call.end_ns, call.phase, since_ns=call.begin_ns, before=call.phase))
    return _apart(spans)


def _apart(spans: Sequence[Span]) -> tuple[Span, ...]:
    """The spans without those parts of theirs that others lie over."""
    starts, phases = flattened(spans)
    ends = [*starts[1:], 0]
    return tuple(
        (start, end, phase)
        for start, end, phase in zip(starts, ends, phases, strict=True)
        if phase is not None and phase is not Phase.OTHER
    )


def flattened(spans: Sequence[Span]) -> tuple[list[int], list[Phase | None]]:
    """Times, and the phase from each on: that of the span that began last among those that have not ended."""
    ordered = sorted(spans)
    starts: list[int] = []
    phases: list[Phase | None] = []
    running: list[tuple[int, int, Phase]] = []
    begun = 0
    for time_ns in sorted({edge for start, end, _ in ordered for edge in (start, end)}):
        while begun < len(ordered) and ordered[begun][0] <= time_ns:
            heappush(running, (-begun, ordered[begun][1], ordered[begun][2]))
            begun += 1
        while running and running[0][1] <= time_ns:
            heappop(running)
        starts.append(time_ns)
        phases.append(running[0][2] if running else None)
    return starts, phases
