"""Turn the host events of a trace into calls: which call each is part of, what it launched, what it costs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.attribution.attribute import Attribution
from opanatomy.attribution.linking import enclosing_rows
from opanatomy.attribution.nesting import nearest_above
from opanatomy.attribution.ownership import (
    ELEMENT_TYPES,
    KernelNames,
    OperatorNames,
    kernel_names,
    operator_names,
    owners,
    redispatched,
    with_classes_of_kernels,
)
from opanatomy.cost.registry import cost
from opanatomy.records.columns import (
    OUTSIDE,
    Bool,
    Categorical,
    HostTable,
    Int64,
    WorkTable,
    at,
    categorical_of,
    distinct,
    is_among,
    marked,
    starts_work,
)
from opanatomy.records.signature import Argument, Cost, Signature, SignatureText, Stored, Tensor, text_of
from opanatomy.records.workload import MODULE_RANGE, PHASE_RANGE
from opanatomy.trace.read import Trace

# ----- sizes of sparse tensors
#
# `aten::values` of a compressed tensor (CSR, CSC, BSR, BSC) is an `aten::alias` of the stored vector, whose size is
# recorded; so are its two vectors of indices. COO tensors leave no such trace.


_VALUES = "aten::values"
_INDICES = frozenset({"aten::crow_indices", "aten::col_indices", "aten::ccol_indices", "aten::row_indices"})

#: (call, shape of a sparse tensor of it) -> the operators and vectors taken out of tensors of that shape.
_Seen = dict[tuple[int, tuple[int, ...]], set[tuple[str, Tensor]]]


def with_stored(
    names: Sequence[str], name: Int64, parent: Int64, signature: Int64, signatures: list[Signature | None]
) -> Int64:
    """Return the signature of each host row with stored sizes of sparse tensors where seen; `signatures` grows."""
    unknown = np.array([call is not None and any(map(_is_unknown, call.tensors())) for call in signatures], dtype=bool)
    if not unknown.any():
        return signature
    numbers = {call: number for number, call in enumerate(signatures) if call is not None}
    fuller_signature = signature.copy()
    seen = _seen_below(names, name, parent, signature, signatures, unknown)
    for row in sorted({row for row, _ in seen}):
        known = signatures[int(signature[row])]
        if known is None:
            continue
        fuller = _filled(known, row, seen)
        if fuller not in numbers:
            numbers[fuller] = len(signatures)
            signatures.append(fuller)
        fuller_signature[row] = numbers[fuller]
    return fuller_signature


def _is_unknown(tensor: Tensor) -> bool:
    return tensor.sparse is not None and tensor.sparse.elements is None


def _seen_below(
    names: Sequence[str], name: Int64, parent: Int64, signature: Int64, signatures: Sequence[Signature | None],
    unknown: Bool,
) -> _Seen:  # fmt: skip
    """Return what is taken out of sparse tensors below each call that has one."""
    aliases = [number for number, text in enumerate(names) if text == "aten::alias"]
    seen: _Seen = {}
    for row in np.flatnonzero(is_among(name, np.array(aliases, dtype=np.int64)) & (parent >= 0)).tolist():
        taker = int(parent[row])
        vector, source = _first(signatures, int(signature[row])), _first(signatures, int(signature[taker]))
        operator = names[int(name[taker])]
        if vector is None or source is None or (operator != _VALUES and operator not in _INDICES):
            continue
        for above in _above(parent, taker):
            if signature[above] >= 0 and unknown[signature[above]]:
                seen.setdefault((above, source.shape), set()).add((operator, Tensor(vector.shape, vector.dtype)))
    return seen


def _first(signatures: Sequence[Signature | None], number: int) -> Tensor | None:
    """Return the first argument of a call if it is a tensor."""
    call = signatures[number] if number >= 0 else None
    value = call.get(0) if call is not None else None
    return value if isinstance(value, Tensor) else None


def _above(parent: Int64, row: int) -> Iterator[int]:
    while (row := int(parent[row])) >= 0:
        yield row


def _filled(known: Signature, row: int, seen: _Seen) -> Signature:
    """Fill the stored sizes into a call's arguments; two sparse tensors of one shape stay unknown."""
    shapes = [tensor.shape for tensor in known.tensors() if _is_unknown(tensor)]

    def filled(value: Argument) -> Argument:
        if not isinstance(value, Tensor) or not _is_unknown(value) or shapes.count(value.shape) > 1:
            return value
        stored = _stored(seen.get((row, value.shape), set()))
        return value if stored is None else replace(value, sparse=stored)

    return Signature(tuple(map(filled, known.arguments)))


def _stored(taken: set[tuple[str, Tensor]]) -> Stored | None:
    """Return the stored sizes if one vector of values and two of indices were taken out, else `None`."""
    values = [vector for operator, vector in taken if operator == _VALUES]
    indices = [vector.bytes for operator, vector in taken if operator in _INDICES]
    operators = {operator for operator, _ in taken}
    if len(values) != 1 or len(indices) != 2 or len(operators) != 3 or None in indices:
        return None
    return Stored(values[0].numel, sum(size for size in indices if size is not None))


# ----- arguments of calls


def stored_signatures(
    names: Sequence[str], host: HostTable, signatures: Sequence[Signature | None]
) -> tuple[list[Signature | None], Int64]:
    """Return (all signatures, that of each host row), with stored sizes of sparse tensors where recorded."""
    known = list(signatures)
    column = with_stored(names, host.name, host.parent, host.signature, known)
    return known, column


def own_signatures(host: HostTable, signatures: Sequence[Signature | None]) -> tuple[list[Signature | None], Int64]:
    """Return (all signatures, the place among them of each host row's): the arguments of the call itself.

    A function transform calls the next interpreter with the arguments of all of them on one stack, and the profiler
    records the whole stack: the call's own arguments are the last ones.
    """
    again = redispatched(host.name, host.parent)
    first = np.ones(len(host.name), dtype=bool)
    first[again] = False
    # Every interpreter is called twice: an operator called once is another overload, with a result to write.
    again = again[(host.signature[again] >= 0) & ~first[host.parent[again]]]
    known, column = list(signatures), host.signature.copy()
    outer, inner = host.signature[nearest_above(first, host.parent)[again]], host.signature[again]
    width = len(known) + 1
    pairs = distinct((outer + 1) * width + inner)
    places = []
    for pair in pairs.values.tolist():
        above, below = pair // width - 1, pair % width
        own = _unstacked(known[above] if above >= 0 else None, known[below])
        places.append(below if own is None else len(known))
        known += [] if own is None else [own]
    column[again] = np.array(places, dtype=np.int64)[pairs.inverse]
    return known, column


def _unstacked(above: Signature | None, below: Signature | None) -> Signature | None:
    """Return the trailing arguments of `below` if its leading ones equal `above`'s, else `None`."""
    count = len(above.arguments) if above else 0
    if below is None or above is None or not count or len(below.arguments) <= count:
        return None
    own_arguments = below.arguments[-count:]
    stacked = len(below.arguments) % count == 0 and below.arguments[:count] == above.arguments
    pairs = list(zip(own_arguments, above.arguments, strict=True))
    tensors = [(inner, outer) for inner, outer in pairs if isinstance(inner, Tensor) and isinstance(outer, Tensor)]
    alike = all(isinstance(inner, Tensor) == isinstance(outer, Tensor) for inner, outer in pairs)
    if not (stacked and alike and tensors and all(inner.numel >= outer.numel for inner, outer in tensors)):
        return None
    return Signature(own_arguments)


# ----- element types of tensor lists, from kernel names


_LISTED: Final = re.compile(r"^aten::(?:_?cat|stack|concat\w*|hstack|vstack|_foreach_\w+)$")


def wants_element_type(operator: str) -> bool:
    """Return whether the operator takes a list of tensors, whose element types Kineto does not record."""
    return _LISTED.match(operator) is not None


def with_element_type(signature: Signature, dtype: str) -> Signature:
    """Return the signature with this type for list tensors that have none."""
    return Signature(tuple(_typed(value, dtype) for value in signature.arguments))


def _typed(value: Argument, dtype: str) -> Argument:
    if not isinstance(value, tuple):
        return value
    return tuple(
        replace(item, dtype=dtype) if isinstance(item, Tensor) and item.dtype is None else item for item in value
    )


# ----- costs


#: The most FLOPs, and bytes, of a whole trace: more than an hour of any device.
_MAX_COST: Final = 2**62
TOO_COSTLY: Final = (
    "some argument shapes cannot be: they cost more than any device does in an hour; they count as without costs"
)


class CallCosts(Struct, frozen=True, kw_only=True):
    """The costs of each distinct operator, signature and element type, looked up once; -1 is unknown."""

    #: The row of this table for each host row.
    row: Int64
    flops: Int64
    read_bytes: Int64
    written_bytes: Int64
    causal_flops: Int64
    normalization_flops: Int64

    def flops_at(self, host_row: int) -> int | None:
        """Return the FLOPs of the call at a host row, `None` if unknown."""
        flops = int(self.flops[self.row[host_row]])
        return flops if flops >= 0 else None


def costs_of(
    names: Sequence[str],
    signatures: Sequence[Signature | None],
    columns: tuple[Int64, Int64, Int64],
    device_kind: str | None,
) -> tuple[CallCosts, tuple[str, ...]]:
    """Return the costs of all host rows, and warnings.

    `columns` are the name, signature and element type of each host row; `device_kind` is for formulas that hold on one
    kind only. The largest costs, which no device can run up, count as unknown, so that every sum over the calls fits
    its column.
    """
    name, signature, element = columns
    width, kinds = len(signatures) + 1, len(ELEMENT_TYPES) + 1
    keys = distinct((name * width + signature + 1) * kinds + element + 1)
    calls: list[int] = np.bincount(keys.inverse, minlength=len(keys.values)).tolist()
    first = keys.first
    costs = [
        _cost(names[operator], signatures[number] if number >= 0 else None, kind, device_kind)
        for operator, number, kind in zip(
            name[first].tolist(), signature[first].tolist(), element[first].tolist(), strict=True
        )
    ]
    totals = [count * _largest_figure(known) if known else 0 for count, known in zip(calls, costs, strict=True)]
    limit = _largest_possible(totals)
    possible = [known if total <= limit else None for known, total in zip(costs, totals, strict=True)]
    table = np.array([_figures(known) for known in possible], dtype=np.int64).reshape(-1, 5).T
    costs_of_calls = CallCosts(
        row=keys.inverse, flops=table[0], read_bytes=table[1], written_bytes=table[2], causal_flops=table[3],
        normalization_flops=table[4],
    )  # fmt: skip
    return costs_of_calls, (TOO_COSTLY,) if limit < max(totals, default=0) else ()


def _cost(operator: str, signature: Signature | None, element: int, device_kind: str | None) -> Cost | None:
    if signature is None:
        return None
    return cost(operator, with_element_type(signature, ELEMENT_TYPES[element]) if element >= 0 else signature,
                device_kind)  # fmt: skip


def _largest_figure(known: Cost) -> int:
    return max(known.flops, known.read_bytes, known.written_bytes, known.causal_flops or 0, known.normalization_flops)


def _largest_possible(totals: Iterable[int]) -> int:
    """Return the largest total up to which all totals together are possible; equal ones count alike."""
    spent = largest = 0
    for total, alike in groupby(sorted(totals)):
        spent += total * len(list(alike))
        if spent > _MAX_COST:
            break
        largest = total
    return largest


def _figures(known: Cost | None) -> tuple[int, ...]:
    if known is None:
        return (-1,) * 5
    causal = -1 if known.causal_flops is None else known.causal_flops
    return known.flops, known.read_bytes, known.written_bytes, causal, known.normalization_flops or -1


#: Ranges that some releases write as operators.
_NO_OPERATOR = (PHASE_RANGE, MODULE_RANGE, "autograd::engine::")


class TraceCalls(Struct, frozen=True, kw_only=True):
    """The host events and device work of a trace, joined; columns have one entry per host row unless noted."""

    names: Sequence[str]
    on_device: bool
    host: HostTable
    work: WorkTable
    #: One entry per name.
    operators: OperatorNames
    kernels: KernelNames
    #: The distinct arguments; `signature` has places among them, of the call's own arguments (`own_signatures`).
    signatures: Sequence[Signature | None]
    signature: Int64
    #: The row of the call that each row is part of, -1 if none.
    owner: Int64
    #: The innermost operator at or around each row, -1 if none.
    operator: Int64
    #: Device time and number of device events that each row launched; on the CPU its self time.
    time_ns: Int64
    launched: Int64
    #: Whether a launch of a kernel, copy or fill lies directly in each row.
    starts_work: Bool
    costs: CallCosts

    @property
    def call_of_event(self) -> Int64:
        """Return for each device event the row of its call, -1 if none."""
        return at(self.owner, self.work.host)

    def texts_of(self, signature: Int64) -> Categorical[SignatureText]:
        """Return the text of each signature (a place in `signatures`); empty for -1."""
        numbers = distinct(signature)
        texts = [text_of(self.signatures[number] if number >= 0 else None) for number in numbers.values.tolist()]
        return categorical_of(texts, numbers.inverse)


def trace_calls_of(trace: Trace, attribution: Attribution) -> tuple[TraceCalls, tuple[str, ...]]:
    """Return the calls of a trace, and warnings."""
    work = attribution.work
    signatures, stored = stored_signatures(trace.names, attribution.host, trace.signatures)
    host = replace(attribution.host, signature=stored)
    signatures, signature = own_signatures(host, signatures)
    operators = operator_names(trace.names, host.name, on_device=trace.on_device)
    kernels = kernel_names(trace.names, work.name)
    time_ns, launched = _device_time(host, work, on_device=trace.on_device)
    works = launched > 0 if trace.on_device else None
    crossing = rows_with_events(kernels.crosses_host_link[work.name], work.host, len(host.name))
    owner = owners(trace, host, signatures, operators, works, crossing)
    called = at(owner, work.host)
    if trace.on_device:
        called_name = at(host.name, called)
        operators = with_classes_of_kernels(operators, kernels, called_name, work.name, work.duration_ns)
    element = _element_types(trace.names, host, kernels.element_type[work.name], called)
    device_kind = None if trace.on_device else "cpu"
    costs, warnings = costs_of(trace.names, signatures, (host.name, signature, element), device_kind)
    calls = TraceCalls(
        names=trace.names, on_device=trace.on_device, host=host, work=work, operators=operators, kernels=kernels,
        signatures=signatures, signature=signature, owner=owner, operator=_innermost_operators(trace.names, host),
        time_ns=time_ns, launched=launched, starts_work=_starting_work(trace, host), costs=costs,
    )  # fmt: skip
    return calls, warnings


def only_in(calls: TraceCalls, host: Bool, work: Bool) -> TraceCalls:
    """Restrict the window to these host rows and this device work."""
    if bool(host.all()) and bool(work.all()):
        return calls
    rows = replace(calls.host, in_window=calls.host.in_window & host)
    events = replace(calls.work, link=np.where(work, calls.work.link, OUTSIDE))
    time_ns, launched = _device_time(rows, events, on_device=calls.on_device)
    return replace(calls, host=rows, work=events, time_ns=time_ns, launched=launched)


def _starting_work(trace: Trace, host: HostTable) -> Bool:
    """Return whether a launch that starts device work lies directly in each host row."""
    rows = np.flatnonzero(starts_work(trace.names, trace.launches))
    moments = (trace.launches.thread[rows], trace.launches.start_ns[rows])
    around = enclosing_rows(host.thread, host.start_ns, host.start_ns + host.duration_ns, host.parent, moments)
    return marked(around[around >= 0], len(host.name))


def rows_with_events(events: Bool, row: Int64, count: int) -> Bool:
    """Return which of `count` host rows have one of these device events; `row` is that of each event, -1 if none."""
    return marked(row[events & (row >= 0)], count)


def _device_time(host: HostTable, work: WorkTable, *, on_device: bool) -> tuple[Int64, Int64]:
    """Return the device time and event count that each host row launched in the window; on the CPU its self time."""
    rows = len(host.name)
    if not on_device:
        return np.where(host.in_window, host.self_ns, 0), np.zeros(rows, dtype=np.int64)
    inside = (work.host >= 0) & (work.link != OUTSIDE)
    launching = work.host[inside]
    time = np.zeros(rows, dtype=np.int64)
    np.add.at(time, launching, work.duration_ns[inside])
    return time, np.bincount(launching, minlength=rows).astype(np.int64)


def _element_types(names: Sequence[str], host: HostTable, element_type: Int64, called: Int64) -> Int64:
    """Return for each host row the element type of its tensor lists, from the name of one of its kernels.

    `element_type` is the type in the name of each device event, `called` the event's call.
    """
    column = np.full(len(host.name), -1, dtype=np.int64)
    events = np.flatnonzero((called >= 0) & (element_type >= 0))
    if len(events):
        listed = np.array([wants_element_type(name) for name in names], dtype=bool)
        events = events[listed[host.name[called[events]]]]
        column[called[events]] = element_type[events]
    return column


def _innermost_operators(names: Sequence[str], host: HostTable) -> Int64:
    """Return the innermost operator at or around each host row; ranges and annotations do not count."""
    named = np.array([not name.startswith(_NO_OPERATOR) for name in names], dtype=bool)
    return nearest_above((host.annotation == 0) & named[host.name], host.parent)
