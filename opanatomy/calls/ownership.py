"""Which call owns each host event: what names mean joined to how the events nest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from opanatomy.attribution import Candidates, own
from opanatomy.attribution.apart import Kernels, derived, hooked
from opanatomy.attribution.names import are_nodes
from opanatomy.attribution.nesting import nearest_above
from opanatomy.attribution.passing import Dispatched, intercepted, observed_unrun, overloaded, transformed, unrun
from opanatomy.calls.classes import OperatorNames
from opanatomy.classification.internals import called_by_kernels_of, kernel_begins_with, stands_for
from opanatomy.records.columns import Bool, HostTable, Int64
from opanatomy.records.data_types import is_floating
from opanatomy.records.signature import Signature
from opanatomy.records.taxonomy import PHASE_CODE, Phase
from opanatomy.trace import Trace


def owners(
    trace: Trace,
    host: HostTable,
    signatures: Sequence[Signature | None],
    operators: OperatorNames,
    works: Bool | None,
    crossing: Bool,
) -> Int64:
    """For each host row the row of the call it is part of, -1 where there is none.

    `works` has the rows that launched device work (`None` on the CPU), `crossing` those that launched a copy between
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
    """The operators of a recomputation whose kernel never ran."""
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
    """What hooks of saved tensors run inside an operator's event."""
    kernels = Kernels(
        calls=[called_by_kernels_of(name) for name in rows.names],
        begins=[kernel_begins_with(name) for name in rows.names],
    )
    # Without shapes a conversion of a number looks like a hook's: only products, whose kernels make none.
    products = np.array([bool(begins) for begins in kernels.begins], dtype=bool)[rows.name]
    floating = np.array([*(_saved(signature) for signature in signatures), False], dtype=bool)[host.signature]
    whole = np.array([*(_whole(signature) for signature in signatures), True], dtype=bool)[host.signature]
    # What a dispatch mode answers passes its work on as it is: nothing below it is part of it.
    saves = (host.sequence >= 0) & (floating | (products & (host.signature < 0))) & ~intercepted(rows)
    saves &= ~rows.sparse  # kernels of sparse matrices call what they like
    return hooked(rows, kernels, saves, whole, crossing)


def _numbered(values: Sequence[object]) -> Int64:
    """A number for each signature, the same for equal values; the last is that of a row without one."""
    numbers: dict[object, int] = {}
    return np.array([*(numbers.setdefault(value, len(numbers)) for value in values), -1], dtype=np.int64)


def _is_sparse(signature: Signature | None) -> bool:
    return any(tensor.sparse is not None for tensor in signature.tensors()) if signature else False


def _types(signature: Signature | None) -> frozenset[str | None]:
    return frozenset(tensor.dtype for tensor in signature.tensors()) if signature else frozenset()


def _saved(signature: Signature | None) -> bool:
    """Whether the first tensor is one that can require a gradient."""
    tensors = signature.tensors() if signature else ()
    return not tensors or tensors[0].dtype is None or is_floating(tensors[0].dtype)


def _whole(signature: Signature | None) -> bool:
    """Whether the first tensor has dimensions."""
    tensors = signature.tensors() if signature else ()
    return not tensors or bool(tensors[0].shape)
