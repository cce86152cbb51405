"""Build the tables of kernels and calls: the operator, class and cost of each part of the time."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import prod
from typing import Any, Final

import numpy as np
from msgspec import Struct

from opanatomy.attribution.calls import UNKNOWN, CallCosts, TraceCalls, rows_with_events
from opanatomy.attribution.collectives import exchanged_bytes
from opanatomy.classification.kernels import compute_type, lacks_tensor_cores
from opanatomy.records.columns import (
    NO_UNITS,
    CallTable,
    Categorical,
    Int64,
    KernelTable,
    Overlay,
    TraceDevice,
    categorical_of,
    concat,
    isin,
    mask_of,
    take,
    unique,
)
from opanatomy.records.signature import Signature, Tensor
from opanatomy.records.taxonomy import CLASS_CODE, CLASSES, COMPUTE_TYPES, FLOAT32, PHASES, OperatorClass
from opanatomy.records.workload import PaddingFlops, TextBatch
from opanatomy.trace.read import Trace

# ----- kernels: device events joined to their calls


#: The rule for a kernel with an uninformative name.
_BY_OPERATOR = "the class of its operator, because the kernel's name shows none"


def kernel_table(calls: TraceCalls, devices: Sequence[TraceDevice] = ()) -> KernelTable:
    """Return one row per device event; `devices` are the trace's devices."""
    work, names = calls.work, calls.names
    call = calls.call_of_event
    by_name, by_call = calls.kernels.operator_class[work.name], class_of_calls(calls, call)
    # a name that says nothing (`triton__0d1d2de`) takes the class of the operator that launched it
    nameless = (by_name == UNKNOWN) & (call >= 0)
    # The row that launched a part of a call is the operator, `nccl:all_reduce` too; else the innermost around it.
    operator = np.where(call >= 0, work.host, take(calls.operator, work.host))
    rules = calls.kernels.rule
    rule = np.where(nameless, len(rules.values), rules.codes[work.name])
    without = np.array([device.number for device in devices if lacks_tensor_cores(device.name)], dtype=np.int64)
    return KernelTable(
        kernel=Categorical(work.name, names),
        device=work.device,
        stream=work.stream,
        start_ns=work.start_ns,
        duration_ns=work.duration_ns,
        link=work.link,
        call=call,
        operator=Categorical(take(calls.host.name, operator), names),
        signature=calls.texts_of(take(calls.signature, operator)),
        launched_by=work.host,
        phase=Categorical(work.phase, PHASES),
        module=work.module,
        operator_class=Categorical(np.where(call >= 0, by_call, by_name), CLASSES),
        kernel_class=Categorical(np.where(nameless, by_call, by_name), CLASSES),
        kernel_rule=categorical_of((*rules.values, _BY_OPERATOR), rule),
        tensor_cores=np.where(isin(work.device, without), NO_UNITS, calls.kernels.tensor_cores[work.name]),
    )


def class_of_calls(calls: TraceCalls, rows: Int64) -> Int64:
    """Return the class of the call at each host row; unknown for -1."""
    if not len(calls.host.name):
        return np.full(len(rows), UNKNOWN, dtype=np.int64)
    codes = calls.operators.operator_class[calls.host.name[rows]]
    return np.where((rows >= 0) & (codes >= 0), codes, UNKNOWN)


_COMMUNICATION: Final = CLASS_CODE[OperatorClass.COMMUNICATION]
#: Costs of an operator inside another call, which counts them.
_INSIDE: Final = {"flops": 0, "read_bytes": 0, "written_bytes": 0, "causal_flops": -1, "normalization_flops": -1}


def call_table(trace: Trace, calls: TraceCalls, kernels: KernelTable | None) -> CallTable:
    """Return one row per call in the window, then one per device event without; on the CPU `kernels` is `None`."""
    if kernels is None:
        return _calls(trace, calls, cpu_rows(calls, within=True))
    # Host rows that launched work, and the owners of these rows.
    launching = np.flatnonzero((calls.launched > 0) & (calls.owner >= 0))
    rows = unique(np.concatenate((launching, calls.owner[launching]))).values
    first, second = _calls(trace, calls, rows), _work_without_call(calls, kernels)
    columns: dict[str, Any] = {}
    for name in CallTable.__struct_fields__:
        above, below = getattr(first, name), getattr(second, name)
        columns[name] = concat(above, below) if isinstance(above, Categorical) else np.concatenate((above, below))
    return CallTable(**columns)


def cpu_rows(calls: TraceCalls, *, within: bool) -> Int64:
    """Return rows whose self time is device work on the CPU: operators that compute, in a call or as one."""
    works = (calls.owner >= 0) & calls.operators.computes[calls.host.name]
    return np.flatnonzero(works & calls.host.in_window if within else works)


def _calls(trace: Trace, calls: TraceCalls, rows: Int64) -> CallTable:
    """Return the calls at host rows that have an owner."""
    host, owner = calls.host, calls.owner[rows]
    owner_name, inner = host.name[owner], rows != owner
    signature = calls.signature[rows]
    crosses = calls.kernels.crosses_host_link[calls.work.name]

    # The costs are from formulas; for collectives, from the bytes that their events record. One without sizes has 0
    # FLOPs all the same.
    costs = calls.costs
    known = costs.flops[costs.row[owner]] >= 0
    columns = {
        name: np.where(inner & known, inside, getattr(costs, name)[costs.row[owner]])
        for name, inside in _INSIDE.items()
    }
    communicates = ~known & (class_of_calls(calls, owner) == _COMMUNICATION)
    if communicates.any():
        columns["flops"][communicates] = 0
        sent, received = exchanged_bytes(trace, calls, owner[communicates])
        said = communicates & (sent[owner] >= 0)
        columns["read_bytes"][said] = np.where(inner, 0, sent[owner])[said]
        columns["written_bytes"][said] = np.where(inner, 0, received[owner])[said]
        known = known | said

    return CallTable(
        operator=Categorical(host.name[rows], calls.names),
        signature=calls.texts_of(signature),
        phase=Categorical(host.phase[rows], PHASES),
        module=host.module.take(rows),
        operator_class=Categorical(class_of_calls(calls, owner), CLASSES),
        rule=calls.operators.rule.take(owner_name),
        part_of=Categorical(np.where(inner, owner_name, -1), calls.names),
        host_row=rows,
        start_ns=host.start_ns[rows],
        time_ns=calls.time_ns[rows],
        kernels=calls.launched[rows],
        inner=inner,
        crosses_host_link=rows_with_events(crosses, calls.call_of_event, len(host.name))[owner],
        compute_type=_compute_types(calls, owner, signature),
        stack=Categorical(np.full(len(rows), -1, dtype=np.int64), ()),
        costed=known,
        **columns,
    )


def _compute_types(calls: TraceCalls, owner: Int64, signature: Int64) -> Categorical[str]:
    """Return the compute type of each call's float32 operands, from its longest kernel with an informative name."""
    numbers = unique(signature)
    known = [calls.signatures[number] if number >= 0 else None for number in numbers.values.tolist()]
    is_float32 = [one is not None and one.compute_dtype == FLOAT32 for one in known]
    float32 = np.array(is_float32, dtype=bool)[numbers.inverse]
    called = calls.call_of_event
    events = np.flatnonzero(mask_of(owner[float32], len(calls.host.name) + 1)[called])
    kernels = unique(calls.work.name[events])
    types = [compute_type(calls.names[number]) for number in kernels.values.tolist()]
    indices = [-1 if one is None else COMPUTE_TYPES.index(one) for one in types]
    code = np.array(indices, dtype=np.int64)[kernels.inverse]
    telling = np.flatnonzero(code >= 0)
    telling = telling[np.argsort(calls.work.duration_ns[events[telling]], kind="stable")]
    of_call = np.full(len(calls.host.name), -1, dtype=np.int64)
    of_call[called[events[telling]]] = code[telling]
    return Categorical(np.where(float32, of_call[owner], -1), COMPUTE_TYPES)


def _work_without_call(calls: TraceCalls, kernels: KernelTable) -> CallTable:
    """Return device work without an operator that computes: the kernel's name decides."""
    index = np.flatnonzero(kernels.inside & (kernels.call < 0))
    none = np.full(len(index), -1, dtype=np.int64)
    no = np.zeros(len(index), dtype=bool)
    launching = take(calls.operator, calls.work.host[index])
    signature = np.where(launching >= 0, take(calls.signature, calls.work.host[index]), -1)
    return CallTable(
        operator=kernels.operator.take(index),
        signature=calls.texts_of(signature),
        phase=kernels.phase.take(index),
        module=kernels.module.take(index),
        operator_class=kernels.operator_class.take(index),
        rule=calls.kernels.rule.take(calls.work.name[index]),
        part_of=Categorical(none, calls.names),
        host_row=none,
        start_ns=kernels.start_ns[index],
        time_ns=kernels.duration_ns[index],
        kernels=np.ones(len(index), dtype=np.int64),
        inner=no,
        costed=no,
        flops=np.where(kernels.operator_class.equals(OperatorClass.COMMUNICATION)[index], 0, -1),
        read_bytes=none,
        written_bytes=none,
        causal_flops=none,
        normalization_flops=none,
        crosses_host_link=no,
        compute_type=Categorical(none, COMPUTE_TYPES),
        stack=Categorical(none, ()),
    )


# ----- overlay for an annotated trace


def overlay_of(calls: TraceCalls, kernels: KernelTable | None, threads: Sequence[tuple[object, object]]) -> Overlay:
    """Return each device event, or without `kernels` each call; `threads` has (process, thread) of each thread."""
    if kernels is None:
        host = calls.host
        rows = np.flatnonzero(calls.owner == np.arange(len(host.name)))
        on_track = Categorical(host.thread[rows], [f"thread {thread}" for _, thread in threads])
        called, module = Categorical(take(host.name, calls.operator[rows]), calls.names), host.module.take(rows)
        start_ns, duration_ns, inside = host.start_ns[rows], host.duration_ns[rows], host.in_window[rows]
        operator_class, phase = class_of_calls(calls, rows), host.phase[rows]
        flops, moved = _shares(calls.costs, np.where(inside, rows, -1), duration_ns)
    else:
        device, stream = unique(kernels.device), unique(kernels.stream)
        pairs = unique(device.inverse * len(stream.values) + stream.inverse)
        labels = [f"device {kernels.device[event]} stream {kernels.stream[event]}" for event in pairs.first.tolist()]
        on_track, called, module = Categorical(pairs.inverse, labels), kernels.operator, kernels.module
        start_ns, duration_ns, inside = kernels.start_ns, kernels.duration_ns, kernels.inside
        operator_class, phase = kernels.operator_class.codes, kernels.phase.codes
        flops, moved = _shares(calls.costs, np.where(inside, kernels.call, -1), duration_ns)
    # The root of the modules is the same everywhere.
    submodule = Categorical(np.where(module.equals(""), -1, module.codes), module.values)
    tracks, track = _used(on_track)
    operators, operator = _used(called)
    modules, module_index = _used(submodule)
    return Overlay(
        tracks=tracks,
        operators=operators,
        modules=modules,
        track=track,
        start_ns=start_ns,
        duration_ns=duration_ns,
        operator=operator,
        module=module_index,
        operator_class=operator_class,
        phase=phase,
        flops=flops,
        bytes=moved,
        inside=inside,
    )


def _used(column: Categorical[str]) -> tuple[tuple[str, ...], Int64]:
    """Return (a column's texts in order of first use, each row's index into them or -1)."""
    numbers: dict[str, int] = {}
    known = unique(column.codes)
    texts = [column.at(int(row)) for row in known.first.tolist()]
    index = np.full(len(texts), -1, dtype=np.int64)
    for code in np.argsort(known.first).tolist():
        text = texts[code]
        if text is not None:
            index[code] = numbers.setdefault(text, len(numbers))
    return tuple(numbers), index[known.inverse]


def _shares(costs: CallCosts, call: Int64, duration_ns: Int64) -> tuple[Int64, Int64]:
    """Return (FLOPs, bytes) of each event: its call's, divided by time so that they add up exactly; -1 if unknown."""
    row = take(costs.row, call)
    flops = take(costs.flops, row)
    moved = np.where(flops >= 0, take(costs.read_bytes, row) + take(costs.written_bytes, row), -1)
    order = np.argsort(call, kind="stable")
    order = order[flops[order] >= 0]
    for events in np.split(order, np.flatnonzero(np.diff(call[order])) + 1):
        if len(events) > 1:
            times = duration_ns[events].tolist()
            flops[events] = divided(int(flops[events[0]]), times)
            moved[events] = divided(int(moved[events[0]]), times)
    return flops, moved


def divided(amount: int, times: list[int]) -> list[int]:
    """Divide `amount` into whole parts in proportion to `times`, with the exact sum; evenly if no time passed."""
    weights = times if sum(times) else [1] * len(times)
    parts, passed, given, whole = [], 0, 0, sum(weights)
    for weight in weights:
        passed += weight
        upto = amount * passed // whole
        parts.append(upto - given)
        given = upto
    return parts


# ----- FLOPs of contractions on padding, by shapes that contain the padded length
#
# A product over all tokens of a batch computes as much for each token, one of two sequences (attention's scores, and
# its sum over values) as much for each pair. A product without the length, such as that of a pooled token, has no
# padding.


class _Sizes(Struct, frozen=True, kw_only=True):
    """The sizes of a step on a batch: texts of one forward, the padded length, and the useful parts."""

    rows: int
    length: int
    #: The useful part of all tokens, and of all pairs of tokens of one text.
    useful: Fraction
    useful_pairs: Fraction


def padding_flops(
    calls: TraceCalls, table: CallTable, batch: TextBatch, *, steps: int, micro_batches: int = 1
) -> PaddingFlops:
    """Return the padding FLOPs of one of `steps` steps on a batch; contractions of unclear shape are skipped."""
    pairs = sum(length * length for length in batch.lengths)
    sizes = _Sizes(
        rows=len(batch.lengths) // micro_batches,
        length=batch.length,
        useful=Fraction(batch.useful_tokens, batch.tokens),
        useful_pairs=Fraction(pairs, batch.tokens * batch.length),
    )
    contraction = table.operator_class.equals(OperatorClass.TENSOR_CONTRACTION)
    rows = np.flatnonzero(contraction & ~table.inner & (table.flops > 0) & (table.host_row >= 0))
    total = assigned = 0
    padding = Fraction()
    useful: dict[int, Fraction | None] = {}
    for row in rows.tolist():
        number, flops = int(calls.signature[table.host_row[row]]), int(table.flops[row])
        if number not in useful:
            signature = calls.signatures[number] if number >= 0 else None
            useful[number] = None if signature is None else _useful(signature, sizes)
        part = useful[number]
        total += flops
        if part is not None:
            assigned += flops
            padding += flops * (1 - part)
    steps = max(steps, 1)
    return PaddingFlops(flops=total // steps, assigned_flops=assigned // steps, padding_flops=round(padding / steps))


def _useful(signature: Signature, sizes: _Sizes) -> Fraction | None:
    """Return the useful fraction of a contraction; `None` if its shapes do not determine it."""
    factors = [tensor for tensor in signature.tensors() if len(tensor.shape) >= 2]
    if len(factors) >= 2 and all(len(tensor.shape) == 4 for tensor in factors[:3]):
        # Fused attention, where both sequences are those of the texts.
        of_texts = all(sizes.length in tensor.shape[1:3] and tensor.shape[0] == sizes.rows for tensor in factors[:3])
        return sizes.useful_pairs if of_texts else None
    pair = _multiplied(factors)
    if pair is None:
        return None
    first, second = pair
    if len(first.shape) == len(second.shape) == 3:
        # A matrix for each text, or each head of it: `[b, m, k]` by `[b, k, n]`.
        (batch, m, k), n = first.shape, second.shape[2]
        parts = (None, sizes.useful, sizes.useful_pairs, sizes.useful_pairs)
        return None if batch % sizes.rows else parts[(m, k, n).count(sizes.length)]
    # `[m, k]` by `[k, n]`, with tokens in the rows of the first or summed over.
    m, k, n = prod(first.shape[:-1]), first.shape[-1], second.shape[-1]
    tokens = sizes.rows * sizes.length
    # A pooled token's weight gradient sums over texts, even if as many features as tokens are left.
    sums_texts = sizes.rows in (m, k) and not (m == tokens and k == sizes.rows and n != tokens)
    if sums_texts and sizes.length > 1:
        return Fraction(1)
    return sizes.useful if tokens in (m, k) else None


def _multiplied(tensors: list[Tensor]) -> tuple[Tensor, Tensor] | None:
    """Return the two multiplied matrices; an addend may precede them, the output may follow."""
    for index, (first, second) in enumerate(pairwise(tensors)):
        product = (*first.shape[:-1], second.shape[-1])
        others = (*tensors[:index], *tensors[index + 2 :])
        if first.shape[-1] == second.shape[-2] and all(other.shape == product for other in others):
            return first, second
    return (tensors[0], tensors[1]) if len(tensors) == 2 else None
