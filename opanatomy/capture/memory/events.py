"""Turn the profiler's event tree of a step into allocations and marks in order, each with its context."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct

from opanatomy.capture.memory.storages import Storages
from opanatomy.records.columns import Int64, packed
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import (
    LINE_RANGE,
    LOOP_RANGE,
    MARK_KINDS,
    MODULE_RANGE,
    PHASE_RANGE,
    ContextColumns,
    EventColumns,
    MarkColumns,
    MarkedCall,
    MarkKind,
    PhaseSpan,
    Span,
    TensorType,
    loop_spans,
)

#: Ranges without length that tie a moment of Python to the allocations around it: `<prefix><number>`.
MARK_RANGE: Final = "opanatomy.mark/"
_CASTS: Final = ("aten::to", "aten::_to_copy")
#: Device name in the events, if torch's differs: ROCm's allocator is c10/hip's, the device is `cuda` there.
_ALSO_CALLED: Final = {"cuda": "hip"}
_NONE: Final = -1
NO_LINES: Final[Mapping[int, int]] = MappingProxyType({})
#: The mark of a moment that is an allocation or a free.
NO_MARK: Final = -1


class Mark(Struct, frozen=True, kw_only=True):
    """A mark: its kind, and storages with the shape and data type of the tensor saved in them."""

    kind: MarkKind
    storages: Storages
    tensor: TensorType | None = None


class _Enclosing(NamedTuple):
    """The open ranges and operators around an event."""

    operator: str | None = None
    caller: int = _NONE
    module: str | None = None
    phase: Phase | None = None
    #: The autograd node's sequence number, which leads to the module of its forward operator.
    sequence: int | None = None
    casts_weight: bool = False
    #: The end of the outermost module range inside a backward; allocations that outlive it were recomputed for use.
    recomputed_until: int = _NONE
    #: The number of the line of the user's code, and the node's number if it is called from outside of that.
    line: int = _NONE
    line_of: int | None = None


class Context(NamedTuple):
    """The recorded surroundings of an event; equal ones are shared.

    `caller` is the number of the context that called the operator, -1 for none. `sequence` is the autograd node's
    sequence number, if no module is known. `recomputed_until` is the end of the outermost module range inside a
    backward, -1 outside one. `line` is the number of the line of user code, -1 for none; `line_of` is the number of the
    autograd node whose forward gives the line instead.
    """

    operator: str | None
    caller: int
    module: str | None
    sequence: int | None
    casts_weight: bool
    recomputed_until: int
    line: int = _NONE
    line_of: int | None = None


class Moment(NamedTuple):
    """An allocation (bytes above 0), a free (below 0) or a mark (its number in `mark`) in one context."""

    time_ns: int
    bytes: int
    address: int
    total_allocated: int
    total_reserved: int
    context: int
    mark: int = NO_MARK


class ObservedEvents(Struct, frozen=True, kw_only=True):
    """The memory events of one device in a step."""

    events: EventColumns
    contexts: ContextColumns
    marks: MarkColumns
    phases: tuple[PhaseSpan, ...]
    #: Number of allocations and frees.
    allocations: int


def observed_events(
    roots: Iterable[Any], device: str, weights: frozenset[int], marks: Sequence[Mark] = ()
) -> ObservedEvents:
    """Walk the tree once and return its events.

    `weights` are the storages whose casts are weight casts, `marks` the marks made in the step.
    """
    walk = _Walk(weights=weights)
    moments = sorted(walk.moments(roots, device), key=lambda moment: moment.time_ns)
    return events_of(
        moments, tuple(walk.contexts), walk.module_of_sequence.get, marks, walk.phases(), walk.line_of_sequence
    )


def events_of(
    moments: Sequence[Moment],
    contexts: Sequence[Context],
    module_of_sequence: Callable[[int], str | None],
    marks: Sequence[Mark],
    phases: Iterable[PhaseSpan],
    line_of_sequence: Mapping[int, int] = NO_LINES,
) -> ObservedEvents:
    """Return the moments of a step in order of time, as columns; each has the number of its context."""
    columns, rows = _contexts(contexts, module_of_sequence, line_of_sequence)
    time_ns, size, address, total, reserved, context, mark = _columns(moments, 7)
    uncounted = np.where(mark == _NONE, total - np.cumsum(size), 0)
    # A mark gets the figure of the event before, since nothing changes there.
    last = np.maximum.accumulate(np.where(mark == _NONE, np.arange(len(uncounted)), 0))
    events = EventColumns(
        time_ns=packed(time_ns),
        bytes=packed(size),
        address=packed(address),
        total_allocated=packed(uncounted[last]),
        total_reserved=packed(reserved),
        context=packed(rows[context]),
    )
    return ObservedEvents(
        events=events,
        contexts=columns,
        marks=_marks(moments, marks),
        phases=tuple(phases),
        allocations=sum(moment.mark == NO_MARK for moment in moments),
    )


@dataclass(slots=True, kw_only=True)
class _Walk:
    """A walk over the tree: its contexts, phases, and the modules of forward operators."""

    weights: frozenset[int]
    contexts: dict[Context, int] = field(default_factory=dict)
    calls: list[MarkedCall] = field(default_factory=list)
    begin_ns: int = 0
    module_of_sequence: dict[int, str] = field(default_factory=dict)
    line_of_sequence: dict[int, int] = field(default_factory=dict)

    def moments(self, roots: Iterable[Any], device: str) -> Iterator[Moment]:
        """Yield the events of the device and the marks, parents first, each thread in order of time."""
        from torch._C._profiler import _EventType

        waiting = [(event, _Enclosing()) for event in reversed(list(roots))]
        self.begin_ns = min((event.start_time_ns for event, _ in waiting), default=0)
        while waiting:
            event, enclosing = waiting.pop()
            if event.tag == _EventType.Allocation:
                fields = event.extra_fields
                if _is_of(fields.device, device) and fields.alloc_size:
                    yield Moment(
                        event.start_time_ns,
                        fields.alloc_size,
                        fields.ptr,
                        fields.total_allocated,
                        fields.total_reserved,
                        self._context(enclosing),
                    )
            elif event.name.startswith(MARK_RANGE):
                number = int(event.name.removeprefix(MARK_RANGE))
                yield Moment(event.start_time_ns, 0, _NONE, 0, _NONE, self._context(enclosing), number)
            children = event.children
            if children:
                inside = self._inside(event, enclosing)
                waiting.extend((child, inside) for child in reversed(children))

    def phases(self) -> tuple[PhaseSpan, ...]:
        """Return the phase ranges; for a user's own loop with the time between its calls."""
        spans: Sequence[Span] = [call[:3] for call in self.calls]
        if any(call.decides for call in self.calls):
            spans = loop_spans(self.calls, [self.begin_ns])
        return tuple(PhaseSpan(phase=phase, begin_ns=begin, end_ns=end) for begin, end, phase in spans)

    def _context(self, enclosing: _Enclosing) -> int:
        """Return the number of an event's context."""
        context = Context(
            enclosing.operator,
            enclosing.caller,
            enclosing.module,
            enclosing.sequence if enclosing.module is None else None,
            enclosing.casts_weight,
            enclosing.recomputed_until,
            enclosing.line,
            enclosing.line_of,
        )
        return self.contexts.setdefault(context, len(self.contexts))

    def _inside(self, event: Any, enclosing: _Enclosing) -> _Enclosing:
        """Return the surroundings of the children of `event`."""
        name: str = event.name
        if name.startswith(PHASE_RANGE):
            phase = Phase(name.removeprefix(LOOP_RANGE).removeprefix(PHASE_RANGE))
            self.calls.append(
                MarkedCall(event.start_time_ns, event.end_time_ns, phase, decides=name.startswith(LOOP_RANGE))
            )
            return enclosing._replace(phase=phase)
        if name.startswith(MODULE_RANGE):
            until = enclosing.recomputed_until
            if until == _NONE and (enclosing.phase is Phase.BACKWARD or enclosing.sequence is not None):
                until = event.end_time_ns
            return enclosing._replace(module=name.removeprefix(MODULE_RANGE), recomputed_until=until)
        if name.startswith(LINE_RANGE):
            return enclosing._replace(line=int(name.removeprefix(LINE_RANGE)), line_of=None)
        sequence = getattr(event.extra_fields, "sequence_number", _NONE)
        if name.startswith("autograd::engine::"):
            number = sequence if sequence >= 0 else None
            return enclosing._replace(sequence=number, line_of=number)
        if "::" not in name or name.startswith(("torch::", "autograd::")):
            return enclosing
        if sequence >= 0 and enclosing.module is not None and enclosing.sequence is None:
            self.module_of_sequence[sequence] = enclosing.module
        if sequence >= 0 and enclosing.line != _NONE and enclosing.sequence is None:
            self.line_of_sequence[sequence] = enclosing.line
        casts = enclosing.casts_weight
        if name in _CASTS and not casts:
            inputs = getattr(event.extra_fields, "inputs", ())
            casts = any(getattr(value, "storage_data_ptr", None) in self.weights for value in inputs)
        caller = _NONE if enclosing.operator is None else self._context(enclosing)
        return enclosing._replace(operator=name, caller=caller, casts_weight=casts)


def _is_of(device: Any, wanted: str) -> bool:
    kind, _, number = wanted.partition(":")
    if device.type not in (kind, _ALSO_CALLED.get(kind)):
        return False
    return kind == "cpu" or (device.index or 0) == int(number or 0)


# ------------------------------------------------------------------------------------------------------------ columns


def _contexts(
    contexts: Sequence[Context], module_of_sequence: Callable[[int], str | None], line_of_sequence: Mapping[int, int]
) -> tuple[ContextColumns, Int64]:
    """Return the contexts, with modules resolved from sequence numbers, and the row of each by number."""
    operators: dict[str, int] = {}
    modules: dict[str, int] = {}
    distinct: dict[tuple[int, int, int, int, int, int], int] = {}
    rows: list[int] = []
    for context in contexts:
        module = context.module
        if module is None and context.sequence is not None:
            module = module_of_sequence(context.sequence)
        key = (
            _NONE if context.operator is None else operators.setdefault(context.operator, len(operators)),
            _NONE if context.caller == _NONE else rows[context.caller],
            _NONE if module is None else modules.setdefault(module, len(modules)),
            int(context.casts_weight),
            context.recomputed_until,
            context.line if context.line_of is None else line_of_sequence.get(context.line_of, context.line),
        )
        rows.append(distinct.setdefault(key, len(distinct)))
    operator, caller, module_, casts, until, line = (packed(column) for column in _columns(list(distinct), 6))
    columns = ContextColumns(
        operators=tuple(operators),
        modules=tuple(modules),
        operator=operator,
        caller=caller,
        module=module_,
        casts_weight=casts,
        recomputed_until_ns=until,
        line=line,
    )
    return columns, np.array(rows, dtype=np.int64)


def _marks(moments: Sequence[Moment], marks: Sequence[Mark]) -> MarkColumns:
    tensors: dict[TensorType, int] = {}
    rows: list[tuple[int, int, int, int, int]] = []
    for event, moment in enumerate(moments):
        if moment.mark == _NONE:
            continue
        mark = marks[moment.mark]
        kind = MARK_KINDS.index(mark.kind)
        tensor = _NONE if mark.tensor is None else tensors.setdefault(mark.tensor, len(tensors))
        storages = mark.storages or {_NONE: 0}
        rows.extend((event, kind, address, size, tensor) for address, size in storages.items())
    event_, kind_, address_, size_, tensor_ = (packed(column) for column in _columns(rows, 5))
    return MarkColumns(tensors=tuple(tensors), event=event_, kind=kind_, address=address_, bytes=size_, tensor=tensor_)


def _columns(rows: Sequence[Sequence[int]], count: int) -> Int64:
    """Return rows of numbers as columns, even without rows."""
    columns: Int64 = np.array(rows, dtype=np.int64).reshape(len(rows), count).T
    return columns
