"""Assign host events to the operator calls that they are part of, once it is known which operators compute."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.attribution.names import are_nodes
from opanatomy.attribution.nesting import nearest_above
from opanatomy.classification.kernels import read_kernel_name
from opanatomy.classification.operators import called_by_kernels_of, classify_operator, kernel_begins_with, stands_for
from opanatomy.cost.registry import has_formula
from opanatomy.records.columns import Bool, Categorical, HostTable, Int64, categorical_of, distinct, rows_by_value
from opanatomy.records.signature import Classification, Signature
from opanatomy.records.taxonomy import CLASS_CODE, ITEM_SIZE, PHASE_CODE, OperatorClass, Phase, is_floating
from opanatomy.trace.read import Trace

#: Class columns have places in this tuple; -1 is an operator that does no work itself.
CLASSES = tuple(OperatorClass)
_CONTRACTION, _MOVEMENT = (
    CLASSES.index(kind) for kind in (OperatorClass.TENSOR_CONTRACTION, OperatorClass.DATA_MOVEMENT)
)


class Candidates(Struct, frozen=True, kw_only=True):
    """The host events to assign, in the order of `nesting.order_of`: parents before their children.

    `delegates` and `composite` are those of the name's `Classification`. `passes` marks operators that do no work
    themselves whatever their name (`intercepted`, `transformed`, `overloaded`, `unrun`), `works` those that launched
    device work; it is `None` on the CPU, where that is not recorded. Operators that are not part of the one around them
    (`derived`, `hooked`) have no parent here.
    """

    name: Int64
    parent: Int64
    kind: Int64
    delegates: Bool
    composite: Bool
    passes: Bool
    works: Bool | None = None


def own(rows: Candidates) -> Int64:
    """Return for each host event the row of the call it is part of, -1 for those that only dispatch.

    The outermost operator that computes owns everything below it: a copy inside `aten::addmm` is part of the addmm. An
    operator that `delegates` owns only if it works itself: on an accelerator if it launched device work, on the CPU if
    nothing below it can do its work (`_carried`). One that directly calls another overload of that name hands over
    to it: under autocast `aten::mm` of float32 casts, then calls `aten::mm` of bfloat16.
    """
    parents = rows.parent
    idle = _carried(rows, parents) if rows.works is None else ~rows.works
    can = (rows.kind >= 0) & ~(rows.passes | _repeated(rows.name, parents) | (rows.delegates & idle))
    above = np.where(parents >= 0, nearest_above(can, parents)[parents], -1)
    return nearest_above(can & (above < 0), parents)


def _carried(rows: Candidates, parents: Int64) -> Bool:
    """Return whether something below each row can do the work that its name stands for.

    Only a contraction does the work of a contraction, and no copy, fill or allocation that of anything but data
    movement: on the CPU `aten::_convolution` of a transposed convolution runs a kernel without an event next to copies
    that have one. A `composite` is what it calls, whatever that is.
    """
    anything = above_any(rows.kind >= 0, parents)
    arithmetic = above_any((rows.kind >= 0) & (rows.kind != _MOVEMENT), parents)
    product = above_any(rows.kind == _CONTRACTION, parents)
    needed = np.where(rows.kind == _CONTRACTION, product, np.where(rows.kind == _MOVEMENT, anything, arithmetic))
    carried: Bool = np.where(rows.composite, anything, needed)
    return carried


def above_any(marked: Bool, parents: Int64) -> Bool:
    """Return whether a marked row is anywhere below each row."""
    holds_one = np.zeros(len(parents), dtype=bool)
    level = parents[marked]
    while len(level):
        level = np.sort(level[level >= 0])
        level = level[np.append(True, level[1:] != level[:-1])[: len(level)]]
        level = level[~holds_one[level]]
        holds_one[level] = True
        level = parents[level]
    return holds_one


def _repeated(names: Int64, parents: Int64) -> Bool:
    """Return whether a direct child of each row has its name."""
    repeated = np.zeros(len(parents), dtype=bool)
    repeated[parents[redispatched(names, parents)]] = True
    return repeated


def redispatched(names: Int64, parents: Int64) -> Int64:
    """Return the rows that have the name of their parent."""
    children = np.flatnonzero(parents >= 0)
    again: Int64 = children[names[children] == names[parents[children]]]
    return again


# ----- operators that only dispatch: a child does the work, or nothing ran


#: The dispatcher's events for Python code that takes a call's place.
_INTERCEPTS = re.compile(r"^Python(?:DispatchMode|Subclass)$")
#: Operators below one that only saves its inputs.
_SAVES = re.compile(r"^(?:aten::)?detach$|^Python(?:DispatchMode|Subclass)$")


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

    A mode that calls the operator itself has it once more below. One that returns a kept result (selective
    checkpointing) has not, and nothing ran. A subclass calls it for its parts: DTensor for the local shard.
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
    product = above_any(twice & (rows.kind == _CONTRACTION), rows.parent)
    rewritten: Bool = ((rows.kind == _CONTRACTION) & product) | (twice & above_any(twice, rows.parent))
    return rewritten


def unrun(rows: Dispatched, recomputed: Bool) -> Bool:
    """Return which recomputed operators never ran their kernel: only their inputs were saved.

    Checkpointing without reentry stops recomputing by an exception from the hook that saves the last tensor it needs:
    before the kernel for an input, after it for a result. On the CPU a kernel is no event, but if the same operator in
    forward always ran others below itself, one without them did not get there.
    """
    candidates = recomputed & (rows.kind >= 0)
    if not candidates.any():
        return candidates
    deeper = above_any(~named(rows, _SAVES), rows.parent)
    forward = ~recomputed & (rows.kind >= 0)
    alike = 2 * rows.name + _called_again(rows)
    exact = alike * (int(rows.signature.max(initial=-1)) + 2) + rows.signature + 1
    same, named_alike = (_always(key, deeper, forward, candidates) for key in (exact, alike))
    always = np.where((same < 0) & (rows.kind == _CONTRACTION), named_alike, same) > 0
    never_ran: Bool = candidates & ~deeper & always
    return never_ran


def _called_again(rows: Dispatched) -> Bool:
    """Return which operators are called from within themselves: with cast arguments under autocast, or by a mode."""
    within: Bool = (rows.parent >= 0) & named(rows, _INTERCEPTS)[rows.parent]
    within[redispatched(rows.name, rows.parent)] = True
    return within


def observed_unrun(rows: Dispatched, recomputed: Bool, node: Int64, observed: Mapping[str, int]) -> Bool:
    """Return which recomputed operators never ran, by observed calls: a map has no others below it to miss.

    `observed` has the calls of each operator in recomputation, over all steps; `node` is the row of the autograd node
    around each row. If an operator has more events than calls, those at which recomputation stopped (the last of their
    node) did not run, provided that they are as many as the excess.
    """
    computing = np.flatnonzero(recomputed & (rows.kind >= 0) & (node >= 0))
    last = np.full(len(rows.name), -1, dtype=np.int64)
    np.maximum.at(last, node[computing], computing)
    bare = ~above_any(~named(rows, _SAVES), rows.parent)
    again, never_ran = np.zeros(len(rows.name), dtype=bool), np.zeros(len(rows.name), dtype=bool)
    again[redispatched(rows.name, rows.parent)] = True
    for number, places in rows_by_value(rows.name[computing]):
        events = computing[places]
        events = events[~again[events]]
        stopped = events[(last[node[events]] == events) & bare[events]]
        if len(stopped) and len(events) - observed.get(rows.names[number], 0) == len(stopped):
            never_ran[stopped] = True
    return never_ran


def _always(key: Int64, deeper: Bool, forward: Bool, wanted: Bool) -> Int64:
    """Return 1 for each wanted row if every forward row of its key has others below it, else 0; -1 without any."""
    known = distinct(key[forward])
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


_PRIMAL = re.compile(r"^aten::_fw_primal$")
_FILLS = re.compile(r"^aten::(?:zeros|zero_|fill_)$")


def derived(rows: Dispatched) -> Bool:
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


def hooked(rows: Dispatched, kernels: Kernels, numbered: Bool, whole: Bool, across: Bool) -> Bool:
    """Return which rows saved-tensor hooks run inside an operator's event: offloading, quantized activations.

    Autograd packs arguments before the kernel runs and results after it, inside the operator's event, without gradient
    mode: nothing in a trace marks the hook. It is inferred from what kernels do. Below an operator of known kernels
    (`Kernels`) hooks run the operators that none of these calls, copies between host and device (`across`), and below a
    product what ran before them. Only operators dispatched in gradient mode (`numbered`) on floating-point tensors save
    any, and kernels convert numbers: what acts on a tensor without dimensions (not `whole`) is theirs.
    """
    known = np.array([calls is not None for calls in kernels.calls], dtype=bool)
    saves = numbered & known[rows.name]
    saves[rows.parent[redispatched(rows.name, rows.parent)]] = False
    below = np.flatnonzero(rows.parent >= 0)
    below = below[saves[rows.parent[below]]]
    by_hooks = np.zeros(len(rows.name), dtype=bool)
    if len(below):
        computing = (rows.kind >= 0) | above_any(rows.kind >= 0, rows.parent)
        crossing = across | above_any(across, rows.parent)
        foreign = ~_called(rows, kernels.calls, below) | crossing[below]
        own = computing & whole
        by_hooks[below[foreign & own[below]]] = True
        by_hooks[below[_before_kernel(rows, kernels, below, by_hooks) & own[below]]] = True
    return by_hooks


def _called(rows: Dispatched, known: Sequence[frozenset[str] | None], below: Int64) -> Bool:
    """Return whether each row has a name that is known for the operator directly above it."""
    pairs = rows.name[rows.parent[below]] * len(rows.names) + rows.name[below]
    keys = distinct(pairs)
    called = [
        rows.names[pair % len(rows.names)] in (known[pair // len(rows.names)] or ()) for pair in keys.values.tolist()
    ]
    return np.array(called, dtype=bool)[keys.inverse]


def _before_kernel(rows: Dispatched, kernels: Kernels, below: Int64, foreign: Bool) -> Bool:
    """Return whether each row `below` ran before a product's kernel: before a row of a hook, or before it began."""
    products = np.array([bool(begins) for begins in kernels.begins], dtype=bool)
    above = rows.parent[below]
    limit = np.full(len(rows.name), -1, dtype=np.int64)
    begun = below[_called(rows, kernels.begins, below)][::-1]
    limit[rows.parent[begun]] = begun
    np.maximum.at(limit, above[foreign[below]], below[foreign[below]])
    before: Bool = products[rows.name[above]] & (below < limit[above]) & ~named(rows, _FILLS)[below]
    return before


# ----- operator and kernel names as columns


UNKNOWN: Final = CLASS_CODE[OperatorClass.UNKNOWN]
#: Element types of tensor lists, from kernel names; columns have places in this tuple, -1 is none.
ELEMENT_TYPES: Final = tuple(ITEM_SIZE)
#: An operator without a rule: unknown on the CPU; on an accelerator its kernels' names decide.
UNKNOWN_OPERATOR: Final = Classification(operator_class=OperatorClass.UNKNOWN, rule="no rule", delegates=True)
DISPATCHING: Final = Classification(operator_class=None, rule="no rule")


class OperatorNames(Struct, frozen=True, kw_only=True):
    """The classes of operators, one entry per name of the trace."""

    #: A place in `CLASSES`, -1 if the operator does no work itself.
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
    #: Places in `ELEMENT_TYPES`.
    element_type: Int64
    crosses_host_link: Bool


def operator_names(names: Sequence[str], column: Int64, *, on_device: bool) -> OperatorNames:
    """Classify the names in a column of host events."""
    otherwise = DISPATCHING if on_device else UNKNOWN_OPERATOR
    classifications = [DISPATCHING] * len(names)
    for number in distinct(column).values.tolist():
        name = names[number]
        classifications[number] = _with_formula(name, classify_operator(name)) or otherwise
    return OperatorNames(
        operator_class=_codes(classifications),
        rule=_rules(classifications),
        delegates=np.array([known.delegates for known in classifications], dtype=bool),
        composite=np.array([known.composite for known in classifications], dtype=bool),
    )


def kernel_names(names: Sequence[str], column: Int64) -> KernelNames:
    """Classify the names in a column of device events."""
    classifications = [DISPATCHING] * len(names)
    crosses = np.zeros(len(names), dtype=bool)
    element_type, tensor_cores = np.full((2, len(names)), -1, dtype=np.int64)
    for number in distinct(column).values.tolist():
        known = read_kernel_name(names[number])
        classifications[number] = known.classification
        crosses[number] = known.crosses_host_link
        tensor_cores[number] = -1 if known.tensor_cores is None else known.tensor_cores
        element_type[number] = -1 if known.element_type is None else ELEMENT_TYPES.index(known.element_type)
    return KernelNames(
        operator_class=_codes(classifications), rule=_rules(classifications), tensor_cores=tensor_cores,
        element_type=element_type, crosses_host_link=crosses,
    )  # fmt: skip


def with_classes_of_kernels(
    operators: OperatorNames, kernels: KernelNames, called: Int64, kernel: Int64, duration_ns: Int64
) -> OperatorNames:
    """Return the operators, those of unknown class with the class of the kernels that take most of their time.

    `called` has the name of each device event's call, -1 if none; `kernel` has the event's own name.
    """
    events = np.flatnonzero(at_class(operators, called) == UNKNOWN)
    pairs = distinct(called[events] * len(operators.operator_class) + kernel[events])
    spent = np.zeros(len(pairs.values), dtype=np.int64)
    np.add.at(spent, pairs.inverse, duration_ns[events])
    operator_class, rule = operators.operator_class.copy(), operators.rule.decoded()
    for pair in np.lexsort((pairs.first, spent)).tolist():
        event = events[pairs.first[pair]]
        operator, name = int(called[event]), int(kernel[event])
        operator_class[operator] = kernels.operator_class[name]
        rule[operator] = f"its kernels: {kernels.rule.at(name)}"
    texts = [text or "" for text in rule]
    return replace(operators, operator_class=operator_class, rule=categorical_of(texts, np.arange(len(texts))))


def at_class(operators: OperatorNames, names: Int64) -> Int64:
    """Return the class of each of these names, -1 for name -1."""
    return np.where(names >= 0, operators.operator_class[names], -1) if len(operators.operator_class) else names


def _with_formula(name: str, known: Classification | None) -> Classification | None:
    """Make an operator with a formula but no rule a call; its kernels' names decide its class."""
    unknown = known is None or (known.operator_class is None and name.startswith("torch::autograd::CppNode<"))
    return UNKNOWN_OPERATOR if unknown and has_formula(name) else known


def _codes(classifications: Sequence[Classification]) -> Int64:
    return np.array(
        [-1 if known.operator_class is None else CLASS_CODE[known.operator_class] for known in classifications],
        dtype=np.int64,
    )


def _rules(classifications: Sequence[Classification]) -> Categorical[str]:
    return categorical_of([known.rule for known in classifications], np.arange(len(classifications)))


# ----- owners of host events


def owners(
    trace: Trace,
    host: HostTable,
    signatures: Sequence[Signature | None],
    operators: OperatorNames,
    works: Bool | None,
    crossing: Bool,
) -> Int64:
    """Return for each host row the row of the call it is part of, -1 if none.

    `works` marks the rows that launched device work (`None` on the CPU), `crossing` those that launched a copy between
    host and device.
    """
    rows = Dispatched(
        names=trace.names, name=host.name, parent=host.parent, kind=operators.operator_class[host.name],
        signature=host.signature, types=_numbered([_types(signature) for signature in signatures])[host.signature],
        sparse=np.array([*(_is_sparse(signature) for signature in signatures), False], dtype=bool)[host.signature],
    )  # fmt: skip
    rows = replace(rows, parent=np.where(derived(rows), -1, rows.parent))
    rows = replace(rows, parent=np.where(_hooked(host, rows, signatures, crossing), -1, rows.parent))
    passes = intercepted(rows) | transformed(rows) | overloaded(rows, [stands_for(name) for name in trace.names])
    return own(
        Candidates(
            name=rows.name,
            parent=rows.parent,
            kind=rows.kind,
            delegates=operators.delegates[rows.name],
            composite=operators.composite[rows.name],
            passes=passes | _unrun(trace, host, rows) if works is None else passes,
            works=works,
        )
    )


def _unrun(trace: Trace, host: HostTable, rows: Dispatched) -> Bool:
    """Return the recomputed operators whose kernel never ran."""
    recomputed: Bool = host.phase == PHASE_CODE[Phase.RECOMPUTE]
    if not recomputed.any():
        return recomputed
    lacking = unrun(rows, recomputed)
    capture = trace.capture
    if capture is None or not capture.observed_counts:
        return lacking
    observed = Counter[str]()
    for count in capture.observed_counts:
        if count.phase is Phase.RECOMPUTE:
            observed[count.operator] += count.calls * len(capture.profiled_step_ns)
    node = nearest_above(are_nodes(trace.names)[rows.name], rows.parent)
    return lacking | observed_unrun(rows, recomputed & ~lacking, node, observed)


def _hooked(host: HostTable, rows: Dispatched, signatures: Sequence[Signature | None], crossing: Bool) -> Bool:
    """Return the rows that saved-tensor hooks run inside an operator's event."""
    kernels = Kernels(
        calls=[called_by_kernels_of(name) for name in rows.names],
        begins=[kernel_begins_with(name) for name in rows.names],
    )
    # Without shapes a converted number looks like a hook's: only products are safe, as their kernels convert none.
    products = np.array([bool(begins) for begins in kernels.begins], dtype=bool)[rows.name]
    floating = np.array([*(_saved(signature) for signature in signatures), False], dtype=bool)[host.signature]
    whole = np.array([*(_whole(signature) for signature in signatures), True], dtype=bool)[host.signature]
    # An operator that a dispatch mode answers passes its work on as it is: nothing below it is part of it.
    saves = (host.sequence >= 0) & (floating | (products & (host.signature < 0))) & ~intercepted(rows)
    saves &= ~rows.sparse  # kernels of sparse matrices call what they like
    return hooked(rows, kernels, saves, whole, crossing)


def _numbered(values: Sequence[object]) -> Int64:
    """Number the values, equal ones alike; the last entry, -1, is for rows without one."""
    numbers: dict[object, int] = {}
    return np.array([*(numbers.setdefault(value, len(numbers)) for value in values), -1], dtype=np.int64)


def _is_sparse(signature: Signature | None) -> bool:
    return any(tensor.sparse is not None for tensor in signature.tensors()) if signature else False


def _types(signature: Signature | None) -> frozenset[str | None]:
    return frozenset(tensor.dtype for tensor in signature.tensors()) if signature else frozenset()


def _saved(signature: Signature | None) -> bool:
    """Return whether the first tensor can require a gradient."""
    tensors = signature.tensors() if signature else ()
    return not tensors or tensors[0].dtype is None or is_floating(tensors[0].dtype)


def _whole(signature: Signature | None) -> bool:
    """Return whether the first tensor has dimensions."""
    tensors = signature.tensors() if signature else ()
    return not tensors or bool(tensors[0].shape)
