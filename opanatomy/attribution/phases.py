"""The phase and module of each host event: from a capture's ranges, else from what autograd and optimizers leave."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from opanatomy.model import MODULE_RANGE, PHASE_RANGE, Phase

#: Autograd's engine and its nodes; before 2021's end the engine left no events of its own, only `AddmmBackward`.
_NODE = re.compile(r"^autograd::engine::evaluate_function: |^torch::autograd::|^\w+Backward\d*$")
_OPTIMIZER = re.compile(r"^Optimizer\.step#|^aten::_amp_|^## ?optimizer ?##$|optimizer_step|^OptimizerStep")
_OTHER = re.compile(r"^Optimizer\.zero_grad#|^enumerate\(DataLoader\)|^## ?zero_grad ?##$")
_STEP = re.compile(r"^ProfilerStep#?(\d+)$")
_FORWARD_THREAD = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One annotated step on the host clock."""

    number: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class NameKinds:
    """What the names of a trace mean for phases; each list has one entry a name."""

    phase: list[Phase | None]
    module: list[str | None]
    node: list[bool]
    optimizer: list[bool]
    other: list[bool]
    step: list[int | None]


def kinds_of(names: Sequence[str]) -> NameKinds:
    """The meaning of each name, looked at once."""
    return NameKinds(
        phase=[Phase(n.removeprefix(PHASE_RANGE)) if _is_phase(n) else None for n in names],
        module=[n.removeprefix(MODULE_RANGE) if n.startswith(MODULE_RANGE) else None for n in names],
        node=[bool(_NODE.match(n)) for n in names],
        optimizer=[bool(_OPTIMIZER.search(n)) for n in names],
        other=[bool(_OTHER.match(n)) for n in names],
        step=[int(m[1]) if (m := _STEP.match(n)) else None for n in names],
    )


def _is_phase(name: str) -> bool:
    return name.startswith(PHASE_RANGE) and name.removeprefix(PHASE_RANGE) in set(Phase)


@dataclass(frozen=True, slots=True)
class HostRows:
    """The host events in nesting order as plain lists (one pass in Python reads them)."""

    name: list[int]
    start_ns: list[int]
    end_ns: list[int]
    sequence: list[int]
    forward_thread: list[int]
    parent: list[int]
    annotation: list[int]


@dataclass(slots=True)
class Context:
    """What encloses an event: the row of the innermost module range, autograd node, phase range."""

    module: int = -1
    node: int = -1
    phase: int = -1


@dataclass(frozen=True, slots=True)
class Placed:
    """Phase and module path of each host event (`None`: not inside any module that is known)."""

    phase: list[Phase]
    module: list[str | None]
    #: The phase ranges of a capture: (start, end, phase), in order.
    spans: tuple[tuple[int, int, Phase], ...]


def place(rows: HostRows, kinds: NameKinds) -> Placed:
    """The phase and module of every host event."""
    contexts = _contexts(rows, kinds)
    spans = sorted(
        (rows.start_ns[row], rows.end_ns[row], phase)
        for row, name in enumerate(rows.name)
        if (phase := kinds.phase[name]) is not None
    )
    by_time = phase_by_time(spans or _before_updates(rows, kinds))
    recomputed = _recomputed(rows, kinds, contexts)
    inferred = _inferred_kinds(rows, kinds)
    aside = [] if spans else _aside(rows, kinds)
    phases = []
    for row, context in enumerate(contexts):
        at_that_time = by_time(rows.start_ns[row])
        if spans:
            found = at_that_time or Phase.OTHER
        else:
            in_node = Phase.BACKWARD if context.node >= 0 else None
            found = inferred[row] or in_node or at_that_time or (Phase.OTHER if aside[row] else Phase.FORWARD)
        if found is Phase.BACKWARD and recomputed[row]:
            found = Phase.RECOMPUTE
        phases.append(found)
    return Placed(phases, _modules(rows, kinds, contexts), tuple(spans))


def _contexts(rows: HostRows, kinds: NameKinds) -> list[Context]:
    contexts: list[Context] = []
    for row, parent in enumerate(rows.parent):
        above = contexts[parent] if parent >= 0 else Context()
        name = rows.name[row]
        contexts.append(
            Context(
                module=row if kinds.module[name] is not None else above.module,
                node=row if kinds.node[name] else above.node,
                phase=row if kinds.phase[name] is not None else above.phase,
            )
        )
    return contexts


def phase_by_time(spans: list[tuple[int, int, Phase]]) -> Callable[[int], Phase | None]:
    """The phase at a host time, for ranges in order: they lie on one thread, the backward of CUDA runs on another."""
    starts, phases = _flattened(sorted(spans))

    def phase_at(time_ns: int) -> Phase | None:
        index = bisect_right(starts, time_ns) - 1
        return phases[index] if index >= 0 else None

    return phase_at


def _flattened(spans: list[tuple[int, int, Phase]]) -> tuple[list[int], list[Phase | None]]:
    """Times, and the phase from each on: that of the range that began last among those that have not ended."""
    starts: list[int] = []
    phases: list[Phase | None] = []
    running: list[tuple[int, int, Phase]] = []
    begun = 0
    for time_ns in sorted({edge for start, end, _ in spans for edge in (start, end)}):
        while begun < len(spans) and spans[begun][0] <= time_ns:
            heappush(running, (-begun, spans[begun][1], spans[begun][2]))
            begun += 1
        while running and running[0][1] <= time_ns:
            heappop(running)
        starts.append(time_ns)
        phases.append(running[0][2] if running else None)
    return starts, phases


def _recomputed(rows: HostRows, kinds: NameKinds, contexts: list[Context]) -> list[bool]:
    """Whether an event runs forward operators again inside an autograd node.

    Backward runs without gradient mode, so an operator below a node that was dispatched with a sequence number of its
    own is a recomputed forward; what ran between the node's start and the last such operator is recomputation too
    (a `torch.no_grad` part of the forward has no numbers). A module range inside a node says the same.
    """
    inner_forward = [False] * len(contexts)
    last_forward: dict[int, int] = {}
    for row, context in enumerate(contexts):
        if context.node < 0 or row == context.node or kinds.node[rows.name[row]]:
            continue
        own_number = rows.sequence[row] >= 0 and rows.forward_thread[row] == _FORWARD_THREAD
        if context.module > context.node or own_number:
            inner_forward[row] = True
            last_forward[context.node] = max(last_forward.get(context.node, 0), rows.end_ns[row])
    found = []
    for row, context in enumerate(contexts):
        until = last_forward.get(context.node, -1) if row != context.node else -1
        found.append(inner_forward[row] or rows.end_ns[row] <= until)
    return found


def _inferred_kinds(rows: HostRows, kinds: NameKinds) -> list[Phase | None]:
    """Optimizer and other phases by the annotations that enclose an event on its thread."""
    found: list[Phase | None] = []
    for row, parent in enumerate(rows.parent):
        name = rows.name[row]
        if kinds.optimizer[name]:
            found.append(Phase.OPTIMIZER)
        elif kinds.other[name]:
            found.append(Phase.OTHER)
        else:
            found.append(found[parent] if parent >= 0 else None)
    return found


def _aside(rows: HostRows, kinds: NameKinds) -> list[bool]:
    """Whether an event lies in an outermost annotation in which nothing was differentiated: loading, metrics.

    Nothing is aside in a trace where no backward node has a number: then all of it is forward.
    """
    consumed = {rows.sequence[row] for row, name in enumerate(rows.name) if kinds.node[name]} - {-1}
    outermost: list[int] = []
    last: dict[int, int] = {}
    for row, parent in enumerate(rows.parent):
        above = outermost[parent] if parent >= 0 else -1
        is_range = rows.annotation[row] and kinds.step[rows.name[row]] is None
        outermost.append(row if above < 0 and is_range else above)
        sequence = rows.sequence[row]
        if sequence in consumed and not kinds.node[rows.name[row]]:
            before = last.setdefault(sequence, row)
            last[sequence] = row if rows.start_ns[row] >= rows.start_ns[before] else before
    differentiated = {outermost[row] for row in last.values()}
    return [bool(consumed) and found >= 0 and found not in differentiated for found in outermost]


def _before_updates(rows: HostRows, kinds: NameKinds) -> list[tuple[int, int, Phase]]:
    """The times between the last autograd node and an optimizer's step: clipping and unscaling belong to the update."""
    nodes = sorted(rows.end_ns[row] for row, name in enumerate(rows.name) if kinds.node[name])
    starts = sorted(rows.start_ns[row] for row, name in enumerate(rows.name) if kinds.optimizer[name])
    spans: list[tuple[int, int, Phase]] = []
    for start in starts:
        before = bisect_right(nodes, start) - 1
        if before >= 0 and (not spans or nodes[before] >= spans[-1][1]):
            spans.append((nodes[before], start, Phase.OPTIMIZER))
    return spans


def _modules(rows: HostRows, kinds: NameKinds, contexts: list[Context]) -> list[str | None]:
    """Module paths: the innermost range in forward; in backward that of the forward operator with the node's number."""
    by_sequence: dict[int, str] = {}
    started: dict[int, int] = {}
    for row, context in enumerate(contexts):
        sequence = rows.sequence[row]
        if sequence < 0 or context.module < 0 or context.module < context.node or kinds.node[rows.name[row]]:
            continue
        if rows.start_ns[row] >= started.get(sequence, -1):
            started[sequence] = rows.start_ns[row]
            by_sequence[sequence] = kinds.module[rows.name[context.module]] or ""
    found: list[str | None] = []
    previous: str | None = None
    for context in contexts:
        if context.module > context.node:
            found.append(kinds.module[rows.name[context.module]])
        elif context.node >= 0:
            sequence = rows.sequence[context.node]
            previous = by_sequence.get(sequence) if sequence >= 0 else previous
            found.append(previous)
        else:
            found.append(None)
    return found


def steps_of(rows: HostRows, kinds: NameKinds) -> tuple[Step, ...]:
    """The annotated steps in the order of time; none where the trace has no `ProfilerStep#N`."""
    found = {
        (number, rows.start_ns[row], rows.end_ns[row])
        for row, name in enumerate(rows.name)
        if (number := kinds.step[name]) is not None
    }
    return tuple(Step(*step) for step in sorted(found, key=lambda step: step[1]))
