"""Turn the host events of a trace into calls: the call that each is part of, the work it launched, its cost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.attribution.attribute import Attribution
from opanatomy.attribution.nesting import innermost_at, nearest_above
from opanatomy.attribution.phases import are_nodes
from opanatomy.classification.kernels import read_kernel_name
from opanatomy.classification.operators import called_by_kernels_of, classify_operator, kernel_begins_with, stands_for
from opanatomy.cost.registry import cost, has_formula
from opanatomy.records.columns import (
    OUTSIDE,
    Bool,
    Categorical,
    HostTable,
    Int64,
    WorkTable,
    categorical_of,
    isin,
    mask_of,
    rows_by_value,
    starts_work,
    take,
    unique,
)
from opanatomy.records.patterns import regex
from opanatomy.records.signature import (
    Argument,
    Classification,
    Cost,
    Signature,
    SignatureText,
    Stored,
    Tensor,
    text_of,
)
from opanatomy.records.taxonomy import CLASS_CODE, ITEM_SIZE, PHASE_CODE, OperatorClass, Phase, is_floating
from opanatomy.records.workload import MODULE_RANGE, PHASE_RANGE
from opanatomy.trace.read import Trace

# Assign host events to the operator calls that they are part of, once it is known which operators compute.


#: Class columns have places in this tuple; -1 is an operator that does no work itself.
CLASSES = tuple(OperatorClass)
_CONTRACTION, _MOVEMENT = (
    CLASSES.index(kind) for kind in (OperatorClass.TENSOR_CONTRACTION, OperatorClass.DATA_MOVEMENT)
)


class Candidates(Struct, frozen=True, kw_only=True):
    """The host events to assign, in the order of `nesting.order_of`: parents before their children.

    `delegates` and `composite` are those of the name's `Classification`. `dispatches_only` marks operators that do no
    work themselves whatever their name (`intercepted`, `transformed`, `overloaded`, `not_executed`), `launched_work`
    those that launched device work; it is `None` on the CPU, where that is not recorded. Operators that are not part of
    the one around them (`are_derivatives`, `run_in_hooks`) have no parent here.
    """

    name: Int64
    parent: Int64
    kind: Int64
    delegates: Bool
    composite: Bool
    dispatches_only: Bool
    launched_work: Bool | None = None


def assign_owners(rows: Candidates) -> Int64:
    """Return for each host event the row of the call it is part of, -1 for those that only dispatch.

    The outermost operator that computes owns everything below it: a copy inside `aten::addmm` is part of the addmm. An
    operator that `delegates` owns only if it works itself: on an accelerator if it launched device work, on the CPU if
    nothing below it can do its work. One that directly calls another overload of that name hands over
    to it: under autocast `aten::mm` of float32 casts, then calls `aten::mm` of bfloat16.
    """
    parents = rows.parent
    if rows.launched_work is None:
        # Only a contraction does the work of a contraction, and no copy, fill or allocation that of anything but data
        # movement: on the CPU `aten::_convolution` of a transposed convolution runs a kernel without an event next to
        # copies that have one. A `composite` is what it calls, whatever that is.
        anything = has_descendant(rows.kind >= 0, parents)
        arithmetic = has_descendant((rows.kind >= 0) & (rows.kind != _MOVEMENT), parents)
        product = has_descendant(rows.kind == _CONTRACTION, parents)
        needed = np.where(rows.kind == _CONTRACTION, product, np.where(rows.kind == _MOVEMENT, anything, arithmetic))
        idle = np.where(rows.composite, anything, needed)
    else:
        idle = ~rows.launched_work
    repeated = np.zeros(len(parents), dtype=bool)
    repeated[parents[redispatched(rows.name, parents)]] = True
    can = (rows.kind >= 0) & ~(rows.dispatches_only | repeated | (rows.delegates & idle))
    above = np.where(parents >= 0, nearest_above(can, parents)[parents], -1)
    return nearest_above(can & (above < 0), parents)


def has_descendant(marked: Bool, parents: Int64) -> Bool:
    """Return whether each row has a marked descendant."""
    holds_one = np.zeros(len(parents), dtype=bool)
    level = parents[marked]
    while len(level):
        level = np.sort(level[level >= 0])
        level = level[np.append(True, level[1:] != level[:-1])[: len(level)]]
        level = level[~holds_one[level]]
        holds_one[level] = True
        level = parents[level]
    return holds_one


def redispatched(names: Int64, parents: Int64) -> Int64:
    """Return the rows with the same name as their parent."""
    children = np.flatnonzero(parents >= 0)
    again: Int64 = children[names[children] == names[parents[children]]]
    return again


# ----- operators that only dispatch: a child does the work, or nothing ran


#: Dispatcher events for Python code that replaces a call.
_INTERCEPTS = regex(r"^Python(?:DispatchMode|Subclass)$")
#: Operators below one that only saves its inputs.
_SAVES = regex(r"^(?:aten::)?detach$|^Python(?:DispatchMode|Subclass)$")


class Dispatched(Struct, frozen=True, kw_only=True):
    """The host events in nesting order; `kind` as in `Candidates`, `types` numbers the sets of their tensor types."""

    names: Sequence[str]
    name: Int64
    parent: Int64
    kind: Int64
    signature: Int64
    types: Int64
    #: Rows with a sparse tensor among their arguments.
    sparse: Bool


def intercepted(rows: Dispatched) -> Bool:
    """Return which operators a dispatch mode or a tensor subclass answered; the operators below them did the work.

    A mode that calls the operator again has a nested event of the same name. One that returns a cached result
    (selective checkpointing) has none, and nothing ran. A subclass calls it on its parts: DTensor on the local shard.
    """
    python = named(rows, _INTERCEPTS)
    answered = np.zeros(len(rows.name), dtype=bool)
    answered[rows.parent[python & (rows.parent >= 0)]] = True
    return answered


def overloaded(rows: Dispatched, called: Sequence[Sequence[str]]) -> Bool:
    """Return which operators only call another overload: `aten::max` of two tensors is `aten::maximum`.

    `called` has for each name the operators that this overload may call directly.
    """
    calls_another = np.zeros(len(rows.name), dtype=bool)
    numbers = {name: number for number, name in enumerate(rows.names)}
    pairs = [(number, numbers[other]) for number, others in enumerate(called) for other in others if other in numbers]
    below = np.flatnonzero(rows.parent >= 0)
    for number, other in pairs:
        calls = below[(rows.name[below] == other) & (rows.name[rows.parent[below]] == number)]
        calls_another[rows.parent[calls]] = True
    return calls_another


def transformed(rows: Dispatched) -> Bool:
    """Return which operators functorch rewrote: `aten::mm` under vmap is one example's event above those of the batch.

    Every call of a function transform passes the dispatcher twice with the same arguments, so that an event has a child
    of its name and types; under autocast the types differ. No kernel calls a twice dispatched operator: one with a
    contraction of that kind below it, or of that kind itself with others below it, was rewritten.
    """
    again = redispatched(rows.name, rows.parent)
    alike = (rows.kind[again] >= 0) & (rows.types[again] == rows.types[rows.parent[again]])
    again = again[
        alike & ~rows.sparse[again]
    ]  # a product with a sparse matrix calls itself with a place for the result
    if not len(again):
        return np.zeros(len(rows.name), dtype=bool)
    twice = np.zeros(len(rows.name), dtype=bool)
    twice[again] = True
    product = has_descendant(twice & (rows.kind == _CONTRACTION), rows.parent)
    rewritten: Bool = ((rows.kind == _CONTRACTION) & product) | (twice & has_descendant(twice, rows.parent))
    return rewritten


def not_executed(rows: Dispatched, recomputed: Bool) -> Bool:
    """Return which recomputed operators never ran their kernel: only their inputs were saved.

    Checkpointing without reentry stops recomputing by an exception from the hook that saves the last tensor it needs:
    before the kernel for an input, after it for a result. On the CPU a kernel is no event, but if the same operator in
    forward always ran others below itself, one without them did not get there.
    """
    candidates = recomputed & (rows.kind >= 0)
    if not candidates.any():
        return candidates
    deeper = has_descendant(~named(rows, _SAVES), rows.parent)
    forward = ~recomputed & (rows.kind >= 0)
    # Called from within itself: with cast arguments under autocast, or by a mode.
    again = (rows.parent >= 0) & named(rows, _INTERCEPTS)[rows.parent]
    again[redispatched(rows.name, rows.parent)] = True
    alike = 2 * rows.name + again
    exact = alike * (int(rows.signature.max(initial=-1)) + 2) + rows.signature + 1
    same, named_alike = (_always(key, deeper, forward, candidates) for key in (exact, alike))
    always = np.where((same < 0) & (rows.kind == _CONTRACTION), named_alike, same) > 0
    never_ran: Bool = candidates & ~deeper & always
    return never_ran


def observed_unrun(rows: Dispatched, recomputed: Bool, node: Int64, observed: Mapping[str, int]) -> Bool:
    """Return which recomputed operators never ran, from observed call counts: maps lack child operators as evidence.

    `observed` has the calls of each operator in recomputation, over all steps; `node` is the row of the autograd node
    around each row. If an operator has more events than calls, those at which recomputation stopped (the last of their
    node) did not run, provided that they are as many as the excess.
    """
    computing = np.flatnonzero(recomputed & (rows.kind >= 0) & (node >= 0))
    last = np.full(len(rows.name), -1, dtype=np.int64)
    np.maximum.at(last, node[computing], computing)
    bare = ~has_descendant(~named(rows, _SAVES), rows.parent)
    again, never_ran = np.zeros(len(rows.name), dtype=bool), np.zeros(len(rows.name), dtype=bool)
    again[redispatched(rows.name, rows.parent)] = True
    for number, indices in rows_by_value(rows.name[computing]):
        events = computing[indices]
        events = events[~again[events]]
        stopped = events[(last[node[events]] == events) & bare[events]]
        if len(stopped) and len(events) - observed.get(rows.names[number], 0) == len(stopped):
            never_ran[stopped] = True
    return never_ran


def _always(key: Int64, deeper: Bool, forward: Bool, wanted: Bool) -> Int64:
    """Return 1 for each wanted row if every forward row with its key has children, else 0; -1 without forward rows."""
    known = unique(key[forward])
    lacking = np.bincount(known.inverse, weights=~deeper[forward], minlength=len(known.values))
    always = np.full(len(key), -1, dtype=np.int64)
    if len(known.values):
        at = np.minimum(np.searchsorted(known.values, key), len(known.values) - 1)
        always = np.where(known.values[at] == key, lacking[at] == 0, -1)
    return np.where(wanted, always, -1)


def named(rows: Dispatched, expression: re.Pattern[str]) -> Bool:
    """Return the rows whose name the expression matches."""
    matched: Bool = np.array([expression.match(name) is not None for name in rows.names], dtype=bool)
    return matched[rows.name]


# ----- operators in another's event that are not its work: derivative formulas, saved-tensor hooks


_PRIMAL = regex(r"^aten::_fw_primal$")
_FILLS = regex(r"^aten::(?:zeros|zero_|fill_)$")


def are_derivatives(rows: Dispatched) -> Bool:
    """Return what forward-mode differentiation runs below an operator to compute its tangent.

    The operator's kernel runs first; its formula begins by taking the primal out of its arguments (`aten::_fw_primal`)
    and calls operators for the tangent, often of the same name.
    """
    starts = np.flatnonzero(named(rows, _PRIMAL) & (rows.parent >= 0))
    if not len(starts):
        return np.zeros(len(rows.name), dtype=bool)
    first = np.full(len(rows.name), len(rows.name), dtype=np.int64)
    np.minimum.at(first, rows.parent[starts], starts)
    row = np.arange(len(rows.name))
    tangents: Bool = (rows.parent >= 0) & (row > first[rows.parent]) & (rows.kind[rows.parent] >= 0)
    return tangents


class Kernels(Struct, frozen=True, kw_only=True):
    """The operators that the kernels of each name call; `None` if unknown.

    `begins` are those that the kernel of a matrix product calls first, empty for other names. The gradient of a product
    needs its arguments only: its hooks run before the kernel.
    """

    calls: Sequence[frozenset[str] | None]
    begins: Sequence[frozenset[str]]


def run_in_hooks(rows: Dispatched, kernels: Kernels, numbered: Bool, whole: Bool, across: Bool) -> Bool:
    """Return which rows saved-tensor hooks run inside an operator's event: offloading, quantized activations.

    Autograd packs arguments before the kernel runs and results after it, inside the operator's event, without gradient
    mode: nothing in a trace marks the hook. It is inferred from what kernels do. Below an operator of known kernels
    (`Kernels`) hooks run the operators that none of these calls, copies between host and device (`across`), and below a
    product what ran before them. Only operators dispatched in gradient mode (`numbered`) on floating-point tensors save
    any, and kernels convert numbers: operators on zero-dimensional tensors (not `whole`) belong to the kernel.
    """
    known = np.array([calls is not None for calls in kernels.calls], dtype=bool)
    saves = numbered & known[rows.name]
    saves[rows.parent[redispatched(rows.name, rows.parent)]] = False
    below = np.flatnonzero(rows.parent >= 0)
    below = below[saves[rows.parent[below]]]
    by_hooks = np.zeros(len(rows.name), dtype=bool)
    if len(below):
        computing = (rows.kind >= 0) | has_descendant(rows.kind >= 0, rows.parent)
        crossing = across | has_descendant(across, rows.parent)
        foreign = ~_called(rows, kernels.calls, below) | crossing[below]
        own = computing & whole
        by_hooks[below[foreign & own[below]]] = True

        # Before a product's kernel: before a row of a hook, or before the kernel began.
        products = np.array([bool(begins) for begins in kernels.begins], dtype=bool)
        above = rows.parent[below]
        limit = np.full(len(rows.name), -1, dtype=np.int64)
        begun = below[_called(rows, kernels.begins, below)][::-1]
        limit[rows.parent[begun]] = begun
        np.maximum.at(limit, above[by_hooks[below]], below[by_hooks[below]])
        before = products[rows.name[above]] & (below < limit[above]) & ~named(rows, _FILLS)[below]
        by_hooks[below[before & own[below]]] = True
    return by_hooks


def _called(rows: Dispatched, known: Sequence[frozenset[str] | None], below: Int64) -> Bool:
    """Return whether each row's name is a known direct call of the operator above it."""
    pairs = rows.name[rows.parent[below]] * len(rows.names) + rows.name[below]
    keys = unique(pairs)
    called = [
        rows.names[pair % len(rows.names)] in (known[pair // len(rows.names)] or ()) for pair in keys.values.tolist()
    ]
    return np.array(called, dtype=bool)[keys.inverse]


# ----- operator and kernel names as columns


UNKNOWN: Final = CLASS_CODE[OperatorClass.UNKNOWN]
#: Element types of tensor lists, from kernel names; columns have places in this tuple, -1 is none.
ELEMENT_TYPES: Final = tuple(ITEM_SIZE)
#: An operator without a rule: unknown on the CPU; on an accelerator its kernels' names decide.
UNKNOWN_OPERATOR: Final = Classification(operator_class=OperatorClass.UNKNOWN, rule="no rule", delegates=True)
DISPATCHING: Final = Classification(operator_class=None, rule="no rule")


class OperatorNames(Struct, frozen=True, kw_only=True):
    """The classes of operators, one entry per name of the trace."""

    #: An index into `CLASSES`, -1 if the operator does no work itself.
    operator_class: Int64
    rule: Categorical[str]
    delegates: Bool
    composite: Bool

    @property
    def computes(self) -> Bool:
        """Return which names are of operators that do work themselves."""
        names: Bool = self.operator_class >= 0
        return names


class KernelNames(Struct, frozen=True, kw_only=True):
    """The meaning of device event names (`KernelName`), one entry per name of the trace."""

    operator_class: Int64
    rule: Categorical[str]
    #: 1 if the kernel uses tensor cores, 0 if not, -1 if the name does not tell.
    tensor_cores: Int64
    #: Indices into `ELEMENT_TYPES`.
    element_type: Int64
    crosses_host_link: Bool


def operator_names(names: Sequence[str], column: Int64, *, on_device: bool) -> OperatorNames:
    """Classify the names in a column of host events."""
    otherwise = DISPATCHING if on_device else UNKNOWN_OPERATOR
    # Before torch 1.7, whose profiler recorded no kernels either, operators had no namespace.
    bare = not on_device and not any(name.startswith("aten::") for name in names)
    classifications = [DISPATCHING] * len(names)
    for number in unique(column).values.tolist():
        name = f"aten::{names[number]}" if bare and classify_operator(f"aten::{names[number]}") else names[number]
        known = classify_operator(name)
        # An operator with a formula but no rule is a call; its kernels' names decide its class.
        unknown = known is None or (known.operator_class is None and name.startswith("torch::autograd::CppNode<"))
        classifications[number] = UNKNOWN_OPERATOR if unknown and has_formula(name) else known or otherwise
    return OperatorNames(
        operator_class=_codes(classifications),
        rule=categorical_of([known.rule for known in classifications], np.arange(len(names))),
        delegates=np.array([known.delegates for known in classifications], dtype=bool),
        composite=np.array([known.composite for known in classifications], dtype=bool),
    )


def kernel_names(names: Sequence[str], column: Int64) -> KernelNames:
    """Classify the names in a column of device events."""
    classifications = [DISPATCHING] * len(names)
    crosses = np.zeros(len(names), dtype=bool)
    element_type, tensor_cores = np.full((2, len(names)), -1, dtype=np.int64)
    for number in unique(column).values.tolist():
        known = read_kernel_name(names[number])
        classifications[number] = known.classification
        crosses[number] = known.crosses_host_link
        tensor_cores[number] = -1 if known.tensor_cores is None else known.tensor_cores
        element_type[number] = -1 if known.element_type is None else ELEMENT_TYPES.index(known.element_type)
    return KernelNames(
        operator_class=_codes(classifications),
        rule=categorical_of([known.rule for known in classifications], np.arange(len(names))),
        tensor_cores=tensor_cores,
        element_type=element_type,
        crosses_host_link=crosses,
    )


def with_classes_of_kernels(
    operators: OperatorNames, kernels: KernelNames, called: Int64, kernel: Int64, duration_ns: Int64
) -> OperatorNames:
    """Return the operators, with unknown classes set to the class of the kernels that take most of their time.

    `called` is the name of each device event's call, -1 if none; `kernel` is the event's own name.
    """
    classes = operators.operator_class
    events = np.flatnonzero((called >= 0) & (classes[called] == UNKNOWN)) if len(classes) else called[:0]
    pairs = unique(called[events] * len(classes) + kernel[events])
    spent = np.zeros(len(pairs.values), dtype=np.int64)
    np.add.at(spent, pairs.inverse, duration_ns[events])
    operator_class, rule = classes.copy(), operators.rule.decoded()
    for pair in np.lexsort((pairs.first, spent)).tolist():
        event = events[pairs.first[pair]]
        operator, name = int(called[event]), int(kernel[event])
        operator_class[operator] = kernels.operator_class[name]
        rule[operator] = f"its kernels: {kernels.rule.at(name)}"
    texts = [text or "" for text in rule]
    return replace(operators, operator_class=operator_class, rule=categorical_of(texts, np.arange(len(texts))))


def _codes(classifications: Sequence[Classification]) -> Int64:
    return np.array(
        [-1 if known.operator_class is None else CLASS_CODE[known.operator_class] for known in classifications],
        dtype=np.int64,
    )


# ----- owners of host events


def owners(
    trace: Trace,
    host: HostTable,
    signatures: Sequence[Signature | None],
    operators: OperatorNames,
    launched_work: Bool | None,
    crossing: Bool,
) -> Int64:
    """Return for each host row the row of the call it is part of, -1 if none.

    `launched_work` marks the rows that launched device work (`None` on the CPU), `crossing` those that launched a copy
    between host and device.
    """
    # One entry for each signature, and a last one for rows without any.
    tensors = [*(signature.tensors() if signature else () for signature in signatures), ()]
    numbers: dict[frozenset[str | None], int] = {}
    types = [numbers.setdefault(frozenset(one.dtype for one in listed), len(numbers)) for listed in tensors[:-1]]
    sparse = [any(one.sparse is not None for one in listed) for listed in tensors]
    rows = Dispatched(
        names=trace.names,
        name=host.name,
        parent=host.parent,
        kind=operators.operator_class[host.name],
        signature=host.signature,
        types=np.array([*types, -1], dtype=np.int64)[host.signature],
        sparse=np.array(sparse, dtype=bool)[host.signature],
    )
    rows = replace(rows, parent=np.where(are_derivatives(rows), -1, rows.parent))

    kernels = Kernels(
        calls=[called_by_kernels_of(name) for name in rows.names],
        begins=[kernel_begins_with(name) for name in rows.names],
    )
    # Without shapes a converted number looks like a hook's: only products are safe, as their kernels convert none.
    products = np.array([bool(begins) for begins in kernels.begins], dtype=bool)[rows.name]
    # A first tensor that can require a gradient, and one that has dimensions.
    floats = [not listed or listed[0].dtype is None or is_floating(listed[0].dtype) for listed in tensors]
    floating = np.array(floats, dtype=bool)[host.signature] & (host.signature >= 0)
    whole = np.array([not listed or bool(listed[0].shape) for listed in tensors], dtype=bool)[host.signature]
    # An operator that a dispatch mode answers passes its work on as it is: nothing below it is part of it.
    saves = (host.sequence >= 0) & (floating | (products & (host.signature < 0))) & ~intercepted(rows)
    saves &= ~rows.sparse  # kernels of sparse matrices call what they like
    by_hooks = run_in_hooks(rows, kernels, saves, whole, crossing)
    rows = replace(rows, parent=np.where(by_hooks, -1, rows.parent))

    dispatches_only = (
        intercepted(rows) | transformed(rows) | overloaded(rows, [stands_for(name) for name in trace.names])
    )
    return assign_owners(
        Candidates(
            name=rows.name,
            parent=rows.parent,
            kind=rows.kind,
            delegates=operators.delegates[rows.name],
            composite=operators.composite[rows.name],
            dispatches_only=dispatches_only | _unrun(trace, host, rows) if launched_work is None else dispatches_only,
            launched_work=launched_work,
        )
    )


def _unrun(trace: Trace, host: HostTable, rows: Dispatched) -> Bool:
    """Return the recomputed operators whose kernel never ran."""
    recomputed: Bool = host.phase == PHASE_CODE[Phase.RECOMPUTE]
    if not recomputed.any():
        return recomputed
    lacking = not_executed(rows, recomputed)
    capture = trace.capture
    if capture is None or not capture.observed_counts:
        return lacking
    observed = Counter[str]()
    for count in capture.observed_counts:
        if count.phase is Phase.RECOMPUTE:
            observed[count.operator] += count.calls * len(capture.profiled_step_ns)
    node = nearest_above(are_nodes(trace.names)[rows.name], rows.parent)
    return lacking | observed_unrun(rows, recomputed & ~lacking, node, observed)


# ----- sizes of sparse tensors
#
# `aten::values` of a compressed tensor (CSR, CSC, BSR, BSC) is an `aten::alias` of the stored vector, whose size is
# recorded; so are its two vectors of indices. COO tensors leave no such trace.


_VALUES = "aten::values"
_INDICES = frozenset({"aten::crow_indices", "aten::col_indices", "aten::ccol_indices", "aten::row_indices"})

#: (call, shape of one of its sparse tensors) -> the operators and vectors read from tensors of that shape.
_Seen = dict[tuple[int, tuple[int, ...]], set[tuple[str, Tensor]]]


def stored_signatures(
    names: Sequence[str], host: HostTable, signatures: Sequence[Signature | None]
) -> tuple[list[Signature | None], Int64]:
    """Return (all signatures, the signature of each host row), with stored sizes of sparse tensors if recorded."""
    stored, column = list(signatures), host.signature
    unknown = np.array([call is not None and any(map(_is_unknown, call.tensors())) for call in stored], dtype=bool)
    if not unknown.any():
        return stored, column

    # What is taken out of sparse tensors below each call that has one.
    aliases = [number for number, text in enumerate(names) if text == "aten::alias"]
    seen: _Seen = {}
    for row in np.flatnonzero(isin(host.name, np.array(aliases, dtype=np.int64)) & (host.parent >= 0)).tolist():
        taker = int(host.parent[row])
        vector, source = _first(stored, int(column[row])), _first(stored, int(column[taker]))
        operator = names[int(host.name[taker])]
        if vector is None or source is None or (operator != _VALUES and operator not in _INDICES):
            continue
        above = taker
        while (above := int(host.parent[above])) >= 0:
            if column[above] >= 0 and unknown[column[above]]:
                seen.setdefault((above, source.shape), set()).add((operator, Tensor(vector.shape, vector.dtype)))

    numbers = {call: number for number, call in enumerate(stored) if call is not None}
    fuller_column = column.copy()
    for row in sorted({row for row, _ in seen}):
        known = stored[int(column[row])]
        if known is None:
            continue
        fuller = _filled(known, row, seen)
        if fuller not in numbers:
            numbers[fuller] = len(stored)
            stored.append(fuller)
        fuller_column[row] = numbers[fuller]
    return stored, fuller_column


def _is_unknown(tensor: Tensor) -> bool:
    return tensor.sparse is not None and tensor.sparse.elements is None


def _first(signatures: Sequence[Signature | None], number: int) -> Tensor | None:
    """Return the first argument of a call if it is a tensor."""
    call = signatures[number] if number >= 0 else None
    value = call.get(0) if call is not None else None
    return value if isinstance(value, Tensor) else None


def _filled(known: Signature, row: int, seen: _Seen) -> Signature:
    """Insert stored sizes into a call's arguments; if two sparse tensors have the same shape they stay unknown."""
    shapes = [tensor.shape for tensor in known.tensors() if _is_unknown(tensor)]
    arguments: list[Argument] = []
    for value in known.arguments:
        filled = value
        if isinstance(value, Tensor) and _is_unknown(value) and shapes.count(value.shape) == 1:
            taken = seen.get((row, value.shape), set())
            values = [vector for operator, vector in taken if operator == _VALUES]
            indices = [vector.known_bytes for operator, vector in taken if operator in _INDICES]
            operators = {operator for operator, _ in taken}
            if len(values) == 1 and len(indices) == 2 and len(operators) == 3 and None not in indices:
                stored = Stored(values[0].numel, sum(size for size in indices if size is not None))
                filled = replace(value, sparse=stored)
        arguments.append(filled)
    return Signature(tuple(arguments))


# ----- arguments of calls


def own_signatures(host: HostTable, signatures: Sequence[Signature | None]) -> tuple[list[Signature | None], Int64]:
    """Return (all signatures, index of each host row's signature): the call's own arguments.

    A function transform passes the arguments of all nested interpreters on one stack, and the profiler records the
    whole stack: the call's own arguments come last.
    """
    again = redispatched(host.name, host.parent)
    first = np.ones(len(host.name), dtype=bool)
    first[again] = False
    # Every interpreter is called twice: an operator called once is another overload, with a result to write.
    again = again[(host.signature[again] >= 0) & ~first[host.parent[again]]]
    known, column = list(signatures), host.signature.copy()
    outer, inner = host.signature[nearest_above(first, host.parent)[again]], host.signature[again]
    width = len(known) + 1
    pairs = unique((outer + 1) * width + inner)
    indices = []
    for pair in pairs.values.tolist():
        above, below = pair // width - 1, pair % width
        own = _unstacked(known[above] if above >= 0 else None, known[below])
        indices.append(below if own is None else len(known))
        known += [] if own is None else [own]
    column[again] = np.array(indices, dtype=np.int64)[pairs.inverse]
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


#: Operators that take a list of tensors, whose element types Kineto does not record.
_TAKES_TENSOR_LIST: Final = regex(r"^aten::(?:_?cat|stack|concat\w*|hstack|vstack|_foreach_\w+)$")


def with_element_type(signature: Signature, dtype: str) -> Signature:
    """Return the signature with this type for list tensors that have none."""
    arguments: list[Argument] = []
    for value in signature.arguments:
        typed = value
        if isinstance(value, tuple):
            typed = tuple(
                replace(item, dtype=dtype) if isinstance(item, Tensor) and item.dtype is None else item
                for item in value
            )
        arguments.append(typed)
    return Signature(tuple(arguments))


# ----- costs


#: The most FLOPs, and bytes, of a whole trace: more than an hour of any device.
_MAX_COST: Final = 2**62
TOO_COSTLY: Final = (
    "the argument shapes of some calls are implausible (these calls would take any device more than an hour), so the"
    " costs of these calls are unknown"
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
    keys = unique((name * width + signature + 1) * kinds + element + 1)
    calls: list[int] = np.bincount(keys.inverse, minlength=len(keys.values)).tolist()
    costs: list[Cost | None] = []
    totals = []
    distinct = (column[keys.first].tolist() for column in columns)
    for count, operator, number, kind in zip(calls, *distinct, strict=True):
        call = signatures[number] if number >= 0 else None
        if call is not None and kind >= 0:
            call = with_element_type(call, ELEMENT_TYPES[kind])
        known = cost(names[operator], call, device_kind) if call is not None else None
        costs.append(known)
        totals.append(0)
        if known is not None:
            figures = (known.flops, known.read_bytes, known.written_bytes, known.causal_flops or 0)
            totals[-1] = count * max(*figures, known.normalization_flops)

    # The largest total up to which all totals together are possible; equal ones count alike.
    spent = limit = 0
    for total, alike in groupby(sorted(totals)):
        spent += total * len(list(alike))
        if spent > _MAX_COST:
            break
        limit = total

    table = np.full((5, len(costs)), -1, dtype=np.int64)
    for index, (known, total) in enumerate(zip(costs, totals, strict=True)):
        if known is not None and total <= limit:
            causal = -1 if known.causal_flops is None else known.causal_flops
            normalization = known.normalization_flops or -1
            table[:, index] = known.flops, known.read_bytes, known.written_bytes, causal, normalization
    costs_of_calls = CallCosts(
        row=keys.inverse,
        flops=table[0],
        read_bytes=table[1],
        written_bytes=table[2],
        causal_flops=table[3],
        normalization_flops=table[4],
    )
    return costs_of_calls, (TOO_COSTLY,) if limit < max(totals, default=0) else ()


def _once_over_link(costs: CallCosts, copies: Bool) -> CallCosts:
    """Count the bytes of copies between host and device once, as written, since they cross the link once."""
    rows = np.flatnonzero(copies & (costs.written_bytes[costs.row] > 0))
    kinds, count = unique(costs.row[rows]), len(costs.flops)
    row = costs.row.copy()
    row[rows] = count + kinds.inverse
    columns = {
        name: np.append(getattr(costs, name), getattr(costs, name)[kinds.values])
        for name in CallCosts.__struct_fields__
        if name != "row"
    }
    columns["read_bytes"][count:] = 0
    return CallCosts(row=row, **columns)


#: Ranges that some releases write as operators.
_NO_OPERATOR = (PHASE_RANGE, MODULE_RANGE, "autograd::engine::")


class TraceCalls(Struct, frozen=True, kw_only=True):
    """The host events and device work of a trace, joined; one entry per host row unless noted."""

    names: Sequence[str]
    on_device: bool
    host: HostTable
    work: WorkTable
    #: One entry per name.
    operators: OperatorNames
    kernels: KernelNames
    #: Distinct argument lists; `signature` indexes the call's own arguments (`own_signatures`) among them.
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
        return take(self.owner, self.work.host)

    def texts_of(self, signature: Int64) -> Categorical[SignatureText]:
        """Return the text of each signature (an index into `signatures`); empty for -1."""
        numbers = unique(signature)
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
    launched_work = launched > 0 if trace.on_device else None
    crossing = rows_with_events(kernels.crosses_host_link[work.name], work.host, len(host.name))
    owner = owners(trace, host, signatures, operators, launched_work, crossing)
    called = take(owner, work.host)
    if trace.on_device:
        called_name = take(host.name, called)
        operators = with_classes_of_kernels(operators, kernels, called_name, work.name, work.duration_ns)

    # The element type of a call's tensor lists is in the name of one of its kernels.
    element = np.full(len(host.name), -1, dtype=np.int64)
    element_type = kernels.element_type[work.name]
    events = np.flatnonzero((called >= 0) & (element_type >= 0))
    if len(events):
        listed = np.array([_TAKES_TENSOR_LIST.match(name) is not None for name in trace.names], dtype=bool)
        events = events[listed[host.name[called[events]]]]
        element[called[events]] = element_type[events]
    device_kind = None if trace.on_device else "cpu"
    costs, warnings = costs_of(trace.names, signatures, (host.name, signature, element), device_kind)
    over_link = kernels.crosses_host_link[work.name]
    copies, others = (rows_with_events(crosses, called, len(host.name)) for crosses in (over_link, ~over_link))
    costs = _once_over_link(costs, copies & ~others)

    # Ranges and annotations are no operators.
    is_operator = np.array([not name.startswith(_NO_OPERATOR) for name in trace.names], dtype=bool)[host.name]
    starting = np.flatnonzero(starts_work(trace.names, trace.launches))
    around = innermost_at(host, trace.launches.thread[starting], trace.launches.start_ns[starting])
    calls = TraceCalls(
        names=trace.names,
        on_device=trace.on_device,
        host=host,
        work=work,
        operators=operators,
        kernels=kernels,
        signatures=signatures,
        signature=signature,
        owner=owner,
        operator=nearest_above(host.is_operator & is_operator, host.parent),
        time_ns=time_ns,
        launched=launched,
        starts_work=mask_of(around[around >= 0], len(host.name)),
        costs=costs,
    )
    return calls, warnings


def only_in(calls: TraceCalls, host: Bool, work: Bool) -> TraceCalls:
    """Restrict the window to these host rows and this device work."""
    if bool(host.all()) and bool(work.all()):
        return calls
    rows = replace(calls.host, in_window=calls.host.in_window & host)
    events = replace(calls.work, link=np.where(work, calls.work.link, OUTSIDE))
    time_ns, launched = _device_time(rows, events, on_device=calls.on_device)
    return replace(calls, host=rows, work=events, time_ns=time_ns, launched=launched)


def rows_with_events(events: Bool, row: Int64, count: int) -> Bool:
    """Return which of `count` host rows have any of these device events; `row` is each event's host row, -1 if none."""
    return mask_of(row[events & (row >= 0)], count)


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
