"""The arguments of each call, where those that the profiler recorded are not all, or more than its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opanatomy.attribution.nesting import nearest_above
from opanatomy.attribution.ownership import redispatched
from opanatomy.attribution.stored import with_stored
from opanatomy.records.columns import HostTable, Int64, distinct
from opanatomy.records.signature import Signature, Tensor


def stored_signatures(
    names: Sequence[str], host: HostTable, signatures: Sequence[Signature | None]
) -> tuple[list[Signature | None], Int64]:
    """(all signatures, that of each host row) with what sparse tensors store where the trace shows it."""
    known = list(signatures)
    column = with_stored(names, host.name, host.parent, host.signature, known)
    return known, column


def own_signatures(host: HostTable, signatures: Sequence[Signature | None]) -> tuple[list[Signature | None], Int64]:
    """(all signatures, the place of that of each host row among them): the arguments of the call itself.

    A function transform calls the next interpreter with the arguments of all of them on one stack, and the profiler
    records the whole stack: the last ones are those of the call.
    """
    again = redispatched(host.name, host.parent)
    first = np.ones(len(host.name), dtype=bool)
    first[again] = False
    # Every interpreter is called twice: what an operator calls once is another overload, with a result to write.
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
    """The arguments at the end of those of `below`, where they begin with all those of `above`; `None` where not."""
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
