"""Describe collectives from `record_param_comms`, the backend's annotation and the operator of c10d.

Any of the three may be missing. A CPU backend works on its own threads, where its annotation lies alone: it is joined
to the operator that called it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.attribution.calls import TraceCalls
from opanatomy.attribution.nesting import nearest_above
from opanatomy.records.columns import (
    Bool,
    Categorical,
    CollectiveArguments,
    CollectiveTable,
    Int64,
    KernelTable,
    mask_of,
    rows_named,
    take,
    unique,
)
from opanatomy.records.patterns import regex
from opanatomy.records.signature import Argument, Signature, Tensor
from opanatomy.records.taxonomy import BY_C10D_NAME, ITEM_SIZE, OperatorClass
from opanatomy.trace.read import Trace

BACKENDS: Final = ("nccl:", "gloo:", "ucc:", "mpi:", "xccl:", "hccl:", "rccl:")
#: Kinds of host events that describe a collective; others are 0.
PARAMETERS, BACKEND, C10D = 1, 2, 3
#: c10d operators with the output as first argument and the input as second.
_RESULT_FIRST: Final = frozenset(
    {
        "_allgather_base_", "_reduce_scatter_base_", "alltoall_base_", "allgather_", "reduce_scatter_", "alltoall_",
        "allgather_into_tensor_coalesced_", "reduce_scatter_tensor_coalesced_", "gather_", "scatter_",
    }
)  # fmt: skip
#: Collectives whose output is as large as their input.
_ONE_SIDE: Final = ("all_reduce", "broadcast", "reduce")
#: Operators that are collectives, without products fused with one.
_C10D: Final = regex(r"^(?:c10d|symm_mem)::(?!fused_|\w*matmul)(?P<name>\w+)$")
#: The collective that a backend without reduce-scatter (gloo) runs instead.
_INSTEAD: Final = {"reduce_scatter": "all_reduce"}
#: The range of FSDP around the collectives of a module.
_SERVED: Final = regex(r"^FSDP::\w+ \((?P<module>.*)\)$")
#: The part that activation checkpointing adds to module paths.
_WRAPPED: Final = regex(r"\._checkpoint_wrapped_module\b")
#: The node that accumulates a gradient, after which DDP reduces a bucket that is now full.
_OF_MANY: Final = regex(r"AccumulateGrad")


class Announced(Struct, frozen=True, kw_only=True):
    """The collective at or around each of some host rows; -1 is none."""

    #: The outermost row of the collective, the same for all its rows.
    call: Int64
    arguments: Categorical[CollectiveArguments]


def announced(trace: Trace, calls: TraceCalls, rows: Int64) -> Announced:
    """Merge the records at and around each host row about a collective; the most complete one takes precedence."""
    kind = kinds_of_names(calls)[calls.host.name]
    # What each host row alone says of a collective.
    host, numbers = calls.host, dict[CollectiveArguments, int]()
    said = np.full(len(host.name), -1, dtype=np.int64)
    if trace.host_collectives:
        on_host = np.flatnonzero(kind == PARAMETERS)
        places = zip(host.thread[on_host].tolist(), host.start_ns[on_host].tolist(), strict=True)
        said[on_host] = [number_of(numbers, trace.host_collectives.get(place)) for place in places]
    by_name = np.flatnonzero(kind > PARAMETERS)
    pairs = unique(host.name[by_name] * (len(calls.signatures) + 1) + host.signature[by_name] + 1)
    by_pair = []
    for first in by_name[pairs.first].tolist():
        name, signature = calls.names[host.name[first]], _signature(calls, first)
        if match := _C10D.match(name):
            arguments = _c10d_arguments(match["name"], signature)
        else:
            elements = _elements(signature)
            dtype = None if elements is None or signature is None else signature.tensors()[0].dtype
            arguments = CollectiveArguments(name.partition(":")[2], in_elements=elements, dtype=dtype)
        by_pair.append(number_of(numbers, arguments))
    said[by_name] = np.array(by_pair, dtype=np.int64)[pairs.inverse]

    call, *codes = np.full((1 + C10D, len(rows)), -1, dtype=np.int64)
    current = rows.copy()
    while len(active := np.flatnonzero(current >= 0)):
        row = current[active]
        kinds = kind[row]
        for index, code in enumerate(codes, PARAMETERS):
            here = active[(kinds == index) & (code[active] < 0)]
            code[here] = said[current[here]]
        call[active] = np.where((kinds == PARAMETERS) | (kinds == BACKEND), row, call[active])
        call[active] = np.where((kinds == C10D) & (call[active] < 0), row, call[active])
        current[active] = np.where(kinds == C10D, -1, calls.host.parent[row])
    return Announced(call=call, arguments=merged(codes, tuple(numbers)))


def merged(codes: Sequence[Int64], values: Sequence[CollectiveArguments]) -> Categorical[CollectiveArguments]:
    """Merge the records of several events for each row, the best informed first."""
    width = len(values) + 1
    keys = np.zeros(len(codes[0]), dtype=np.int64)
    for code in codes:
        keys = keys * width + code + 1
    kinds = unique(keys)
    numbers: dict[CollectiveArguments, int] = {}
    of_kind = []
    for row in kinds.first.tolist():
        known = [values[code[row]] for code in codes if code[row] >= 0]
        if not known:
            of_kind.append(-1)
            continue
        # The parameters before c10d's operator (both sides) and the annotation (one).
        *others, together = known
        for arguments in reversed(others):
            fields = {name: getattr(arguments, name) for name in arguments.__struct_fields__}
            together = replace(together, **{name: value for name, value in fields.items() if value not in ("", None)})
        of_kind.append(numbers.setdefault(together, len(numbers)))
    return Categorical(np.array(of_kind, dtype=np.int64)[kinds.inverse], tuple(numbers))


def joined_to_operators(calls: TraceCalls, annotations: Int64) -> Int64:
    """Return the c10d operator's row for each annotation on a backend thread, -1 if not recorded.

    A backend starts work in call order: each annotation, by start time, belongs to the first earlier unmatched operator
    of its kind that has a tensor of its size.
    """
    host = calls.host
    operators = np.flatnonzero(kinds_of_names(calls)[host.name] == C10D)
    operators = operators[np.argsort(host.start_ns[operators], kind="stable")]
    # Each operator with its collective and the known element counts of its sides.
    waiting = []
    for row in operators.tolist():
        match = _C10D.match(calls.names[host.name[row]])
        arguments = _c10d_arguments(match["name"] if match else "", _signature(calls, row))
        sizes = {size for size in (arguments.in_elements, arguments.out_elements) if size is not None}
        waiting.append((row, named(arguments.collective), sizes))
    joined = np.full(len(annotations), -1, dtype=np.int64)
    for index in np.argsort(host.start_ns[annotations], kind="stable").tolist():
        row = int(annotations[index])
        name, size = named(calls.names[host.name[row]].partition(":")[2]), _elements(_signature(calls, row))
        for number, (operator, asked, sizes) in enumerate(waiting):
            if host.start_ns[operator] > host.start_ns[row]:
                break
            if name in (asked, _INSTEAD.get(asked or "")) and (size is None or not sizes or size in sizes):
                joined[index] = operator
                del waiting[number]
                break
    return joined


def modules_served(calls: TraceCalls, rows: Int64) -> Categorical[str]:
    """Return the module that each collective serves: of FSDP's innermost range around it, else of its module range.

    A bucket that DDP reduces serves many modules and has none.
    """
    host, modules = calls.host, dict[str, int]()
    codes = []
    around = (nearest_above(rows_named(name, calls.names, host.name), host.parent) for name in (_SERVED, _OF_MANY))
    for row, served, of_many in zip(rows.tolist(), *(take(nearest, rows).tolist() for nearest in around), strict=True):
        match = _SERVED.match(calls.names[host.name[served]]) if served >= 0 else None
        module = _WRAPPED.sub("", match["module"]) if match else None
        if module is None and row >= 0 and of_many < 0:
            module = host.module.at(row)
        codes.append(-1 if module is None else modules.setdefault(module, len(modules)))
    return Categorical(np.array(codes, dtype=np.int64), tuple(modules))


def kinds_of_names(calls: TraceCalls) -> Int64:
    """Return the kind of each name: `PARAMETERS`, `BACKEND`, `C10D`, or 0 for no collective."""
    return np.array(
        [
            PARAMETERS
            if name == "record_param_comms"
            else BACKEND
            if name.startswith(BACKENDS)
            else C10D
            if _C10D.match(name)
            else 0
            for name in calls.names
        ],
        dtype=np.int64,
    )


def annotations_of_backends(calls: TraceCalls, within: Bool) -> Int64:
    """Return the rows of annotations on backend threads."""
    rows = ~calls.host.is_operator & within
    return np.flatnonzero(rows & (kinds_of_names(calls)[calls.host.name] == BACKEND))


def number_of(numbers: dict[CollectiveArguments, int], arguments: CollectiveArguments | None) -> int:
    """Return the number of these arguments, adding new ones; -1 for `None`."""
    return -1 if arguments is None else numbers.setdefault(arguments, len(numbers))


def _c10d_arguments(plain: str, signature: Signature | None) -> CollectiveArguments:
    """Describe an operator of c10d or symmetric memory by its arguments.

    Reductions and broadcasts have one size; gathers and scatters without an output argument only show their input.
    """
    # (elements, data type) of the first two arguments' tensors; `None` unless they have one data type.
    sides: list[tuple[int, str | None] | None] = []
    for index in (0, 1):
        tensors = _tensors(signature.get(index)) if signature else []
        types = {tensor.dtype for tensor in tensors}
        sides.append((sum(tensor.numel for tensor in tensors), types.pop()) if len(types) == 1 else None)
    first, second = sides
    if plain in _RESULT_FIRST:
        out, given = first, second
    else:
        out, given = (first if named(plain) in _ONE_SIDE else None), first
    dtype = next((side[1] for side in (given, out) if side is not None), None)
    return CollectiveArguments(
        plain, in_elements=given[0] if given else None, out_elements=out[0] if out else None, dtype=dtype
    )


def _tensors(argument: Argument) -> list[Tensor]:
    """Return the tensors of an argument, including those in lists and lists of lists."""
    if isinstance(argument, Tensor):
        return [argument]
    return [tensor for item in argument for tensor in _tensors(item)] if isinstance(argument, tuple) else []


def _signature(calls: TraceCalls, row: int) -> Signature | None:
    number = int(calls.host.signature[row])
    return calls.signatures[number] if number >= 0 else None


def _elements(signature: Signature | None) -> int | None:
    """Return the elements of all tensors together; `None` unless they have one data type."""
    tensors = signature.tensors() if signature else ()
    return sum(tensor.numel for tensor in tensors) if len({tensor.dtype for tensor in tensors}) == 1 else None


# ----- collectives of device events and annotations


def collective_table(trace: Trace, calls: TraceCalls, kernels: KernelTable | None) -> CollectiveTable:
    """Return one row per communication event in the window; on the CPU (`kernels` is `None`) one per annotation."""
    if kernels is None:
        rows = annotations_of_backends(calls, calls.host.in_window)
        _, arguments = collectives_of_annotations(trace, calls, rows)
        return CollectiveTable(
            kernel=Categorical(calls.host.name[rows], calls.names),
            duration_ns=calls.host.duration_ns[rows],
            call=rows,
            arguments=_without_number(arguments),
        )
    events = np.flatnonzero(kernels.inside & kernels.operator_class.equals(OperatorClass.COMMUNICATION))
    call, arguments = collectives_of_events(trace, calls, events)
    return CollectiveTable(
        kernel=kernels.kernel.take(events),
        duration_ns=kernels.duration_ns[events],
        call=np.where(call >= 0, call, -2 - events),
        arguments=_without_number(arguments),
    )


def collectives_of_annotations(
    trace: Trace, calls: TraceCalls, rows: Int64
) -> tuple[Int64, Categorical[CollectiveArguments]]:
    """Return (c10d operator row for each annotation, the merged record of both); -1 if none."""
    operator = joined_to_operators(calls, rows)
    alone = announced(trace, calls, rows).arguments
    asked = announced(trace, calls, operator).arguments
    below = np.where(alone.codes >= 0, alone.codes + len(asked.values), -1)
    return operator, merged([asked.codes, below], (*asked.values, *alone.values))


def collectives_of_events(
    trace: Trace, calls: TraceCalls, events: Int64
) -> tuple[Int64, Categorical[CollectiveArguments]]:
    """Return (the host row of each device event's collective, its record): the event's own before its launch's."""
    around = announced(trace, calls, calls.work.host[events])
    if not trace.work_collectives:
        return around.call, around.arguments
    numbers = {known: number for number, known in enumerate(around.arguments.values)}
    own = [number_of(numbers, trace.work_collectives.get(event)) for event in events.tolist()]
    codes = np.array(own, dtype=np.int64)
    return around.call, Categorical(np.where(codes >= 0, codes, around.arguments.codes), tuple(numbers))


def exchanged_bytes(trace: Trace, calls: TraceCalls, wanted: Int64) -> tuple[Int64, Int64]:
    """Return (bytes sent, bytes received) by the collective at each host row, -1 if unknown or not `wanted`."""
    sent, received = np.full((2, len(calls.host.name)), -1, dtype=np.int64)
    if not calls.on_device:
        rows = annotations_of_backends(calls, np.ones(len(calls.host.name), dtype=bool))
        operator, arguments = collectives_of_annotations(trace, calls, rows)
        sent[rows], received[rows] = _bytes_of_both_sides(arguments).T
        # An operator that launches a collective alongside it moves nothing itself.
        sent[operator[operator >= 0]] = received[operator[operator >= 0]] = 0
        return sent, received
    of_call = calls.call_of_event
    is_wanted = mask_of(wanted, len(calls.host.name) + 1)
    # The first event with sizes decides.
    events = np.flatnonzero(is_wanted[of_call])[::-1]
    _, arguments = collectives_of_events(trace, calls, events)
    sides = _bytes_of_both_sides(arguments)
    said = sides[:, 0] >= 0
    sent[of_call[events[said]]], received[of_call[events[said]]] = sides[said].T
    return sent, received


def bytes_of(arguments: Categorical[CollectiveArguments]) -> Int64:
    """Return the bytes that each row's collective sends and receives, shape (rows, 2); -1 if unknown."""
    sides = np.full((len(arguments.values) + 1, 2), -1, dtype=np.int64)
    for index, known in enumerate(arguments.values):
        dtype = dtype_of(known.dtype)
        elements: tuple[int | None, int | None] | None = both_sides(known)
        if elements is None and named(known.collective) == "all_to_all":
            elements = known.in_elements, known.out_elements
        for side, count in enumerate(elements or ()):
            if dtype is not None and count is not None:
                sides[index, side] = count * ITEM_SIZE[dtype]
    return sides[arguments.codes]


def _bytes_of_both_sides(arguments: Categorical[CollectiveArguments]) -> Int64:
    """Return `bytes_of`, with -1 for both sides if one is unknown."""
    sides = bytes_of(arguments)
    return np.where((sides >= 0).all(axis=1, keepdims=True), sides, -1)


def _without_number(arguments: Categorical[CollectiveArguments]) -> Categorical[CollectiveArguments]:
    """Remove sequence numbers, which differ between calls of the same kind."""
    numbers: dict[CollectiveArguments, int] = {}
    codes = [numbers.setdefault(replace(known, sequence=None), len(numbers)) for known in arguments.values]
    return Categorical(np.array([*codes, -1], dtype=np.int64)[arguments.codes], tuple(numbers))


#: In the order of matching: `all_reduce` before `reduce`. Names are in small letters, without `_`.
_NAMES: Final = {
    "barrier": "barrier", "allreduce": "all_reduce", "reducescatter": "reduce_scatter", "allgather": "all_gather",
    "alltoall": "all_to_all", "sendrecv": "send_recv", "broadcast": "broadcast", "scatter": "scatter",
    "gather": "gather", "reduce": "reduce", "send": "send", "recv": "recv",
}  # fmt: skip


OTHER: Final = "other"


def named(text: str) -> str | None:
    """Return the collective that a name of c10d, a backend or a kernel means: `_allgather_base` is all_gather."""
    plain = re.sub(r"[\W_]+", "", text).lower()
    return next((name for part, name in _NAMES.items() if part in plain), None)


def dtype_of(text: str | None) -> str | None:
    """Return torch's name of a data type as c10 (`BFloat16`) or torch wrote it."""
    if not text:
        return None
    plain = text.lower()
    return plain if plain in ITEM_SIZE else BY_C10D_NAME.get(plain)


def both_sides(message: CollectiveArguments) -> tuple[int, int] | None:
    """Return (elements sent, elements received) by a rank; `None` if one is neither recorded nor implied.

    An all-to-all may be uneven: one side does not imply the other.
    """
    sent, got, group = message.in_elements, message.out_elements, message.group_size
    if sent is not None and got is not None:
        return sent, got
    known = got if sent is None else sent
    if known is None:
        return None
    name = named(message.collective)
    if name in ("all_reduce", "broadcast"):
        return known, known
    if name in ("all_gather", "reduce_scatter") and group:
        grows = (name == "all_gather") == (sent is not None)
        other = known * group if grows else known // group
        return (known, other) if sent is not None else (other, known)
    return None
