"""The phase and module of each host event: from a capture's ranges, else from what autograd and optimizers leave."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from opanatomy.attribution.nesting import nearest_above
from opanatomy.model import MODULE_RANGE, PHASE_RANGE, Phase
from opanatomy.tables import Bool, Int64

#: A phase in a column is its place here.
PHASES = tuple(Phase)
_PLACES = {phase: place for place, phase in enumerate(PHASES)}
FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, OTHER = (
    _PLACES[phase] for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER, Phase.OTHER)
)

#: Autograd's engine and its nodes; before 2021's end the engine left no events of its own, only `AddmmBackward`.
_NODE = re.compile(r"^autograd::engine::evaluate_function: |^torch::autograd::|^\w+Backward\d*$")
_OPTIMIZER = re.compile(r"^Optimizer\.step#|^aten::_amp_|^## ?optimizer ?##$|optimizer_step|^OptimizerStep")
_OTHER = re.compile(r"^Optimizer\.zero_grad#|^enumerate\(DataLoader\)|^## ?zero_grad ?##$")
_STEP = re.compile(r"^ProfilerStep#?(\d{1,18})$")
_FORWARD_THREAD = 0
_NEVER = -(2**63)


@dataclass(frozen=True, slots=True)
class Step:
    """One annotated step on the host clock."""

    number: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class NameKinds:
    """What the names of a trace mean for phases; each has one entry a name. `phase` is a place in `PHASES` or -1."""

    phase: Int64
    module: list[str | None]
    node: Bool
    optimizer: Bool
    other: Bool
    step: list[int | None]


def kinds_of(names: Sequence[str]) -> NameKinds:
    """The meaning of each name, looked at once."""
    return NameKinds(
        phase=np.array([_phase_place(n) for n in names], dtype=np.int64),
        module=[n.removeprefix(MODULE_RANGE) if n.startswith(MODULE_RANGE) else None for n in names],
        node=_flags(bool(_NODE.match(n)) for n in names),
        optimizer=_flags(bool(_OPTIMIZER.search(n)) for n in names),
        other=_flags(bool(_OTHER.match(n)) for n in names),
        step=[int(m[1]) if (m := _STEP.match(n)) else None for n in names],
    )


def _flags(values: Iterable[bool]) -> Bool:
    return np.array(list(values), dtype=bool)


def _phase_place(name: str) -> int:
    phase = name.removeprefix(PHASE_RANGE)
    return _PLACES[Phase(phase)] if name.startswith(PHASE_RANGE) and phase in set(Phase) else -1


@dataclass(frozen=True, slots=True)
class HostRows:
    """The host events in nesting order."""

    name: Int64
    start_ns: Int64
    end_ns: Int64
    sequence: Int64
    forward_thread: Int64
    parent: Int64
    annotation: Int64


@dataclass(frozen=True, slots=True)
class _Context:
    """What encloses each event: the row of the innermost module range and autograd node; and what is a node itself."""

    module: Int64
    node: Int64
    is_node: Bool


@dataclass(frozen=True, slots=True)
class Placed:
    """Phase and module path of each host event (`None`: not inside any module that is known)."""

    phase: list[Phase]
    module: list[str | None]
    #: The phase ranges of a capture: (start, end, phase), in order.
    spans: tuple[tuple[int, int, Phase], ...]


def place(rows: HostRows, kinds: NameKinds) -> Placed:
    """The phase and module of every host event."""
    is_module = _flags(path is not None for path in kinds.module)
    is_node = kinds.node[rows.name]
    context = _Context(
        module=nearest_above(is_module[rows.name], rows.parent),
        node=nearest_above(is_node, rows.parent),
        is_node=is_node,
    )
    ranges = np.flatnonzero(kinds.phase[rows.name] >= 0).tolist()
    spans = sorted(
        (int(rows.start_ns[row]), int(rows.end_ns[row]), PHASES[kinds.phase[rows.name[row]]]) for row in ranges
    )
    if spans:
        at_that_time = phases_at(spans, rows.start_ns)
        phase = np.where(at_that_time < 0, OTHER, at_that_time)
    else:
        phase = _inferred(rows, kinds, context)
    phase[(phase == BACKWARD) & _recomputed(rows, context)] = RECOMPUTE
    return Placed([PHASES[code] for code in phase.tolist()], _modules(rows, kinds, context), tuple(spans))


def phases_at(spans: list[tuple[int, int, Phase]], times_ns: Int64) -> Int64:
    """The phase (a place in `PHASES`, -1 none) at each host time: ranges lie on one thread, the backward of CUDA runs
    on another."""
    starts, phases = _flattened(sorted(spans))
    found = np.searchsorted(np.array(starts, dtype=np.int64), times_ns, side="right") - 1
    return np.array([-1, *phases], dtype=np.int64)[found + 1]


def _flattened(spans: list[tuple[int, int, Phase]]) -> tuple[list[int], list[int]]:
    """Times, and the phase from each on: that of the range that began last among those that have not ended."""
    starts: list[int] = []
    phases: list[int] = []
    running: list[tuple[int, int, Phase]] = []
    begun = 0
    for time_ns in sorted({edge for start, end, _ in spans for edge in (start, end)}):
        while begun < len(spans) and spans[begun][0] <= time_ns:
            heappush(running, (-begun, spans[begun][1], spans[begun][2]))
            begun += 1
        while running and running[0][1] <= time_ns:
            heappop(running)
        starts.append(time_ns)
        phases.append(_PLACES[running[0][2]] if running else -1)
    return starts, phases


def _inferred(rows: HostRows, kinds: NameKinds, context: _Context) -> Int64:
    """Phases where no range of a capture says them: by annotations, autograd nodes and what lies between them."""
    is_optimizer = kinds.optimizer[rows.name]
    around = nearest_above(is_optimizer | kinds.other[rows.name], rows.parent)
    by_range = np.where(around < 0, -1, np.where(is_optimizer[around], OPTIMIZER, OTHER))
    by_time = phases_at(_before_updates(rows, kinds), rows.start_ns)
    left = np.where(_aside(rows, kinds), OTHER, FORWARD)
    return np.select([by_range >= 0, context.node >= 0, by_time >= 0], [by_range, BACKWARD, by_time], left)


def _recomputed(rows: HostRows, context: _Context) -> Bool:
    """Whether an event runs forward operators again inside an autograd node.

    Backward runs without gradient mode, so an operator below a node that was dispatched with a sequence number of its
    own is a recomputed forward; what ran between the node's start and the last such operator is recomputation too
    (a `torch.no_grad` part of the forward has no numbers). A module range inside a node says the same.
    """
    node = context.node
    below = (node >= 0) & (node != np.arange(len(node)))
    own_number = (rows.sequence >= 0) & (rows.forward_thread == _FORWARD_THREAD)
    forward = below & ~context.is_node & ((context.module > node) | own_number)
    last_forward = np.full(len(node), _NEVER, dtype=np.int64)
    np.maximum.at(last_forward, node[forward], rows.end_ns[forward])
    found: Bool = forward | (below & (rows.end_ns <= last_forward[node]))
    return found


def _aside(rows: HostRows, kinds: NameKinds) -> Bool:
    """Whether an event lies in an outermost annotation in which nothing was differentiated: loading, metrics.

    Nothing is aside in a trace where no backward node has a number: then all of it is forward.
    """
    is_node = kinds.node[rows.name]
    numbered = rows.sequence >= 0
    consumed = np.unique(rows.sequence[is_node & numbered])
    if not len(consumed):
        return np.zeros(len(rows.name), dtype=bool)
    is_step = _flags(number is not None for number in kinds.step)
    is_range = (rows.annotation != 0) & ~is_step[rows.name]
    above = np.where(rows.parent >= 0, nearest_above(is_range, rows.parent)[rows.parent], -1)
    outermost = nearest_above(is_range & (above < 0), rows.parent)
    used = np.flatnonzero(~is_node & numbered & np.isin(rows.sequence, consumed))
    differentiated = outermost[_latest(rows, used)]
    return (outermost >= 0) & ~np.isin(outermost, differentiated)


def _latest(rows: HostRows, among: Int64) -> Int64:
    """Of the rows `among` the last one to start with each sequence number, in the order of the numbers."""
    order = among[np.lexsort((rows.start_ns[among], rows.sequence[among]))]
    sequence = rows.sequence[order]
    return order[np.append(sequence[1:] != sequence[:-1], True)] if len(order) else order


def _before_updates(rows: HostRows, kinds: NameKinds) -> list[tuple[int, int, Phase]]:
    """The times between the last autograd node and an optimizer's step: clipping and unscaling belong to the update."""
    nodes = np.sort(rows.end_ns[kinds.node[rows.name]]).tolist()
    starts = np.sort(rows.start_ns[kinds.optimizer[rows.name]]).tolist()
    spans: list[tuple[int, int, Phase]] = []
    for start in starts:
        before = bisect_right(nodes, start) - 1
        if before >= 0 and (not spans or nodes[before] >= spans[-1][1]):
            spans.append((nodes[before], start, Phase.OPTIMIZER))
    return spans


def _modules(rows: HostRows, kinds: NameKinds, context: _Context) -> list[str | None]:
    """Module paths: the innermost range in forward; in backward that of the forward operator with the node's number."""
    module, node = context.module, context.node
    if not (module >= 0).any():
        return [None] * len(module)
    forward = np.flatnonzero((rows.sequence >= 0) & (module >= 0) & (module >= node) & ~context.is_node)
    latest = _latest(rows, forward)
    in_node = np.flatnonzero((node >= 0) & (module <= node))
    number = rows.sequence[node[in_node]]
    # A node without a number follows the one before it on its thread.
    told = np.maximum.accumulate(np.where(number >= 0, np.arange(len(number)), -1))
    number = np.where(told >= 0, number[told], -1)
    at = np.minimum(np.searchsorted(rows.sequence[latest], number), len(latest) - 1)
    found = np.where(module > node, module, -1)
    if len(latest):
        found[in_node] = np.where(rows.sequence[latest[at]] == number, module[latest[at]], -1)
    return [
        None if row < 0 else kinds.module[name]
        for row, name in zip(found.tolist(), rows.name[found].tolist(), strict=True)
    ]


def steps_of(rows: HostRows, kinds: NameKinds) -> tuple[Step, ...]:
    """The annotated steps in the order of time; none where the trace has no `ProfilerStep#N`."""
    is_step = _flags(number is not None for number in kinds.step)
    found = {
        (number, int(rows.start_ns[row]), int(rows.end_ns[row]))
        for row in np.flatnonzero(is_step[rows.name]).tolist()
        if (number := kinds.step[rows.name[row]]) is not None
    }
    return tuple(Step(*step) for step in sorted(found, key=lambda step: step[1]))
