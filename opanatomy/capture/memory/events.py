"""The profiler's event tree of a step -> its allocations and marks in order, each with what it happened in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import MODULE_RANGE, PHASE_RANGE

#: Ranges without length that tie a moment of Python to the allocations around it: `<prefix><number>`.
MARK_RANGE: Final = "opanatomy.mark/"
#: Operators that only allocate: what called them wanted the memory.
_ALLOCATES: Final = frozenset({
    "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::empty_permuted", "aten::new_empty",
    "aten::new_empty_strided", "aten::resize_", "aten::resize_as_", "aten::set_",
})  # fmt: skip
_CASTS: Final = ("aten::to", "aten::_to_copy")
#: What the events call a device that torch calls otherwise: ROCm's allocator is c10/hip's, the device is `cuda` there.
_ALSO_CALLED: Final = {"cuda": "hip"}


class Around(Struct, frozen=True, kw_only=True):
    """What is open around an event."""

    operator: str | None = None
    module: str | None = None
    phase: Phase | None = None
    #: The autograd node's sequence number, which leads to the module of its forward operator.
    sequence: int | None = None
    casts_weight: bool = False
    #: The end of the outermost module range inside a backward: what of it lives on was recomputed to be used.
    recomputed_until: int | None = None


class Change(Struct, frozen=True, kw_only=True):
    """Bytes that the allocator gave (above 0) or took back."""

    time_ns: int
    pointer: int
    bytes: int
    reserved_bytes: int | None
    #: What the allocator says that it has given in all after this; on the CPU since it was first profiled.
    total_bytes: int | None = None
    around: Around


class Mark(Struct, frozen=True, kw_only=True):
    """A moment that the recording noted, by its number; `around` is what it happened in."""

    time_ns: int
    number: int
    around: Around


@dataclass(slots=True)
class EventTree:
    """Changes and marks of one device in order of time, the spans of the phases, the modules of forward operators."""

    moments: list[Change | Mark] = field(default_factory=list)
    spans: list[tuple[int, int, Phase]] = field(default_factory=list)
    module_of_sequence: dict[int, str] = field(default_factory=dict)

    def phase_at(self, time_ns: int) -> Phase:
        """The phase whose range holds the moment."""
        return next((phase for begin, end, phase in self.spans if begin <= time_ns < end), Phase.OTHER)


def read_tree(roots: Iterable[Any], device: str, weights: frozenset[int]) -> EventTree:
    """Walk the tree once; `weights` are the storages of which a cast is a weight cast."""
    from torch._C._profiler import _EventType

    found = EventTree()
    for event, around in _walk(roots, found, weights):
        if event.tag == _EventType.Allocation:
            fields = event.extra_fields
            if _is_of(fields.device, device):
                change = Change(
                    time_ns=event.start_time_ns, pointer=fields.ptr, bytes=fields.alloc_size,
                    reserved_bytes=fields.total_reserved or None, total_bytes=fields.total_allocated, around=around,
                )  # fmt: skip
                found.moments.append(change)
        elif event.name.startswith(MARK_RANGE):
            number = int(event.name.removeprefix(MARK_RANGE))
            found.moments.append(Mark(time_ns=event.start_time_ns, number=number, around=around))
    found.moments.sort(key=lambda moment: moment.time_ns)
    return found


def _walk(roots: Iterable[Any], found: EventTree, weights: frozenset[int]) -> Iterator[tuple[Any, Around]]:
    """Every event with what is around it, parents first, each thread in order of time."""
    waiting = [(event, Around()) for event in reversed(list(roots))]
    while waiting:
        event, around = waiting.pop()
        yield event, around
        children = event.children
        if children:
            inside = _inside(event, around, found, weights)
            waiting.extend((child, inside) for child in reversed(children))


def _inside(event: Any, around: Around, found: EventTree, weights: frozenset[int]) -> Around:
    """What is around the children of `event`."""
    name: str = event.name
    if name.startswith(PHASE_RANGE):
        phase = Phase(name.removeprefix(PHASE_RANGE))
        found.spans.append((event.start_time_ns, event.end_time_ns, phase))
        return replace(around, phase=phase)
    if name.startswith(MODULE_RANGE):
        until = around.recomputed_until
        if until is None and (around.phase is Phase.BACKWARD or around.sequence is not None):
            until = event.end_time_ns
        return replace(around, module=name.removeprefix(MODULE_RANGE), recomputed_until=until)
    sequence = getattr(event.extra_fields, "sequence_number", -1)
    if name.startswith("autograd::engine::"):
        return replace(around, sequence=sequence if sequence >= 0 else None)
    if "::" not in name or name.startswith(("torch::", "autograd::")):
        return around
    if sequence >= 0 and around.module is not None and around.sequence is None:
        found.module_of_sequence[sequence] = around.module
    casts = around.casts_weight or (name in _CASTS and _reads(event, weights))
    if name in _ALLOCATES and around.operator is not None:
        return around
    return replace(around, operator=name, casts_weight=casts)


def _reads(event: Any, weights: frozenset[int]) -> bool:
    inputs = getattr(event.extra_fields, "inputs", ())
    return any(getattr(value, "storage_data_ptr", None) in weights for value in inputs)


def _is_of(device: Any, wanted: str) -> bool:
    kind, _, number = wanted.partition(":")
    if device.type not in (kind, _ALSO_CALLED.get(kind)):
        return False
    return kind == "cpu" or (device.index or 0) == int(number or 0)
