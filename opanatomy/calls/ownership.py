"""Which call owns each host event: what names mean joined to how the events nest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from opanatomy.attribution import Candidates, own
from opanatomy.attribution.apart import Kernels, derived, hooked
from opanatomy.attribution.attribute import HostTable
from opanatomy.attribution.names import kinds_of
from opanatomy.attribution.nesting import nearest_above
from opanatomy.attribution.ownership import CLASSES, redispatched
from opanatomy.attribution.passing import Dispatched, intercepted, observed_unrun, overloaded, transformed, unrun
from opanatomy.classification.internals import called_by_kernels_of, kernel_begins_with, stands_for
from opanatomy.records.columns import Bool, Int64
from opanatomy.records.signature import Classification, Signature, Tensor
from opanatomy.records.taxonomy import Phase
from opanatomy.trace import Trace


def owners(
    trace: Trace, host: HostTable, operators: Sequence[Classification], works: Bool | None, across: Bool
) -> Int64:
    """For each host row the row of the call it is part of, -1 where there is none.

    `operators` has the classification of each name, `works` the rows that launched device work (`None` on the CPU),
    `across` those that launched a copy between host and device.
    """
    places = {kind: place for place, kind in enumerate(CLASSES)}
    kinds = np.array([places.get(one.operator_class, -1) if one.operator_class else -1 for one in operators])
    rows = Dispatched(
        names=trace.names, name=host.name, parent=host.parent, kind=kinds[host.name].astype(np.int64),
        signature=host.signature, types=_of_signatures([_types(one) for one in trace.signatures])[host.signature],
        sparse=np.array([*(_is_sparse(one) for one in trace.signatures), False], dtype=bool)[host.signature],
    )  # fmt: skip
    rows = replace(rows, parent=np.where(derived(rows), -1, rows.parent))
    rows = replace(rows, parent=np.where(_hooked(trace, host, rows, across), -1, rows.parent))
    return own(
        Candidates(
            name=rows.name,
            parent=rows.parent,
            kind=rows.kind,
            delegates=_flags(operators, "delegates")[rows.name],
            composite=_flags(operators, "composite")[rows.name],
            passes=intercepted(rows)
            | transformed(rows)
            | overloaded(rows, [stands_for(name) for name in trace.names])
            | (_unrun(trace, host, rows) if works is None else False),
            works=works,
        )
    )


def _unrun(trace: Trace, host: HostTable, rows: Dispatched) -> Bool:
    if Phase.RECOMPUTE not in host.phase:
        return np.zeros(len(rows.name), dtype=bool)
    recomputed = np.array([phase is Phase.RECOMPUTE for phase in host.phase], dtype=bool)
    found = unrun(rows, recomputed)
    capture = trace.capture
    if capture is None or not capture.observed_counts:
        return found
    observed = Counter[str]()
    for count in capture.observed_counts:
        if count.phase is Phase.RECOMPUTE:
            observed[count.operator] += count.calls * len(capture.profiled_step_ns)
    node = nearest_above(kinds_of(trace.names).node[rows.name], rows.parent)
    return found | observed_unrun(rows, recomputed & ~found, node, observed)


def _hooked(trace: Trace, host: HostTable, rows: Dispatched, across: Bool) -> Bool:
    kernels = Kernels(
        calls=[called_by_kernels_of(name) for name in trace.names],
        begins=[kernel_begins_with(name) for name in trace.names],
    )
    # Without shapes a conversion of a number cannot be told from a hook's: only products, whose kernels make none.
    products = np.array([bool(begins) for begins in kernels.begins], dtype=bool)[rows.name]
    floating = np.array([*(_saved(one) for one in trace.signatures), False], dtype=bool)[host.signature]
    whole = np.array([*(_whole(one) for one in trace.signatures), True], dtype=bool)[host.signature]
    # What a dispatch mode answers passes its work on as it is: nothing below it is part of it.
    saves = (host.sequence >= 0) & (floating | (products & (host.signature < 0))) & ~intercepted(rows)
    saves &= ~rows.sparse  # kernels of sparse matrices call what they like
    return hooked(rows, kernels, saves, whole, across)


def _flags(operators: Sequence[Classification], name: str) -> Bool:
    return np.array([getattr(one, name) for one in operators], dtype=bool)


def _of_signatures(values: Sequence[object]) -> Int64:
    """A number for each signature, the same for equal values; the last is that of a row without one."""
    numbers: dict[object, int] = {}
    return np.array([*(numbers.setdefault(value, len(numbers)) for value in values), -1], dtype=np.int64)


def _is_sparse(signature: Signature | None) -> bool:
    return any(tensor.sparse is not None for tensor in signature.tensors()) if signature else False


def _types(signature: Signature | None) -> frozenset[str | None]:
    return frozenset(tensor.dtype for tensor in signature.tensors()) if signature else frozenset()


def _saved(signature: Signature | None) -> bool:
    """Whether the first tensor is one that a gradient may be asked for."""
    tensors = signature.tensors() if signature else ()
    return not tensors or tensors[0].dtype is None or tensors[0].dtype.startswith(("float", "bfloat", "complex"))


def _whole(signature: Signature | None) -> bool:
    """Whether the first tensor has dimensions."""
    tensors = signature.tensors() if signature else ()
    return not tensors or bool(tensors[0].shape)


def own_signatures(trace: Trace, host: HostTable) -> Int64:
    """For each host row the place of its signature in `trace.signatures`, which grows by those that are new.

    A function transform calls the next interpreter with the arguments of all of them on one stack, and the profiler
    records the whole stack: the last ones are those of the call.
    """
    again = redispatched(host.name, host.parent)
    found = host.signature.copy()
    first = np.ones(len(found), dtype=bool)
    first[again] = False
    # Every interpreter is called twice: what an operator calls once is another overload, with a result to write.
    again = again[(found[again] >= 0) & ~first[host.parent[again]]]
    pairs = np.stack((host.signature[nearest_above(first, host.parent)[again]], host.signature[again]))
    distinct, place = np.unique(pairs, axis=1, return_inverse=True)
    told = [_unstacked(trace, outer, inner) for outer, inner in distinct.T.tolist()]
    found[again] = np.array(told, dtype=np.int64)[place.reshape(-1)] if told else found[again]
    return found


def _unstacked(trace: Trace, outer: int, inner: int) -> int:
    """The signature that the arguments of `inner` end with, where they begin with all those of `outer`."""
    below, above = trace.signatures[inner], trace.signatures[outer] if outer >= 0 else None
    count = len(above.arguments) if above else 0
    if below is None or above is None or not count or len(below.arguments) <= count:
        return inner
    own_arguments = below.arguments[-count:]
    stacked = len(below.arguments) % count == 0 and below.arguments[:count] == above.arguments
    pairs = list(zip(own_arguments, above.arguments, strict=True))
    tensors = [(mine, theirs) for mine, theirs in pairs if isinstance(mine, Tensor) and isinstance(theirs, Tensor)]
    alike = all(isinstance(mine, Tensor) == isinstance(theirs, Tensor) for mine, theirs in pairs)
    if not (stacked and alike and tensors and all(mine.numel >= theirs.numel for mine, theirs in tensors)):
        return inner
    trace.signatures.append(Signature(own_arguments))
    return len(trace.signatures) - 1
