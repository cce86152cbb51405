"""Operators whose event is there while their kernel is not: what they stand for ran below them, or never."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from opanatomy.attribution.ownership import CLASSES, above_any, redispatched
from opanatomy.records.columns import Bool, Int64, distinct, rows_by_value
from opanatomy.records.taxonomy import OperatorClass

#: Python that takes a call's place, as the dispatcher calls it in traces.
_INTERCEPTS = re.compile(r"^Python(?:DispatchMode|Subclass)$")
#: What runs where an operator only saves its inputs.
_SAVES = re.compile(r"^(?:aten::)?detach$|^Python(?:DispatchMode|Subclass)$")
_CONTRACTION = CLASSES.index(OperatorClass.TENSOR_CONTRACTION)


class Dispatched(Struct, frozen=True, kw_only=True):
    """The host events in nesting order; `kind` as in `Candidates`, `types` numbers the sets of their tensors' types."""

    names: Sequence[str]
    name: Int64
    parent: Int64
    kind: Int64
    signature: Int64
    types: Int64
    #: Rows with a sparse tensor among their arguments.
    sparse: Bool


def intercepted(rows: Dispatched) -> Bool:
    """Operators whose call a dispatch mode or a tensor subclass answered: what ran are the operators below that.

    A mode that calls the operator itself has it once more below; one that returns a result it kept (selective
    checkpointing) has not, and nothing ran. A subclass calls it for its own parts: DTensor for the local shard.
    """
    python = named(rows, _INTERCEPTS)
    answered = np.zeros(len(rows.name), dtype=bool)
    answered[rows.parent[python & (rows.parent >= 0)]] = True
    return answered


def overloaded(rows: Dispatched, called: Sequence[Sequence[str]]) -> Bool:
    """Operators of the overload that only calls another one: `aten::max` of two tensors is `aten::maximum`.

    `called` has for each name the operators of which one is directly below such a call.
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
    """Operators that functorch rewrote: `aten::mm` under vmap is an event for one example, above those for the batch.

    Every call of a function transform passes the dispatcher twice with the same arguments, so that an event has a
    child of its name and types; under autocast the types differ. No kernel calls such an operator: one that has a
    contraction of that kind below it, or is of that kind itself with others below it, was rewritten.
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
    """Recomputed operators whose kernel never ran: only their inputs were saved.

    Checkpointing without reentry stops recomputing by an exception, raised from the hook that saves the last tensor
    it needs: before the kernel where that is an input, after it where it is a result. On the CPU a kernel is no event,
    but where the same operator in forward always ran others below itself, one without them did not get there.
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
    """Calls of an operator from within itself: under autocast with cast arguments, by a dispatch mode once more."""
    within: Bool = (rows.parent >= 0) & named(rows, _INTERCEPTS)[rows.parent]
    within[redispatched(rows.name, rows.parent)] = True
    return within


def observed_unrun(rows: Dispatched, recomputed: Bool, node: Int64, observed: Mapping[str, int]) -> Bool:
    """Recomputed operators that never ran by what was seen to run: a map without others below it proves nothing.

    `observed` has for each operator the calls that recomputation made, over all steps; `node` is the row of the
    autograd node around each row. Of an operator that has more events than calls, those at which recomputation stopped
    (the last of their node) did not run, where they are as many as there are too many.
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
    """For each wanted row whether every forward row of its key has others below it: 1, 0, -1 where there is none."""
    known = distinct(key[forward])
    lacking = np.bincount(known.inverse, weights=~deeper[forward], minlength=len(known.values))
    always = np.full(len(key), -1, dtype=np.int64)
    if len(known.values):
        at = np.minimum(np.searchsorted(known.values, key), len(known.values) - 1)
        always = np.where(known.values[at] == key, lacking[at] == 0, -1)
    return np.where(wanted, always, -1)


def named(rows: Dispatched, expression: re.Pattern[str]) -> Bool:
    """The rows whose name the expression matches."""
    matched: Bool = np.array([expression.match(name) is not None for name in rows.names], dtype=bool)
    return matched[rows.name]
