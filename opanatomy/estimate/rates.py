"""What each call of a run took: from its trace, call by call, for those that another run would make."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import prod
from pathlib import Path
from statistics import median
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct

from opanatomy.attribution import attribute
from opanatomy.calls.trace_calls import TraceCalls, trace_calls_of
from opanatomy.classification import classify_operator
from opanatomy.cost import cost
from opanatomy.records.columns import Int64
from opanatomy.records.signature import Signature
from opanatomy.records.taxonomy import PHASES, OperatorClass, Phase
from opanatomy.trace import read_trace

#: Operators that do their work in one that they call: the copy is theirs.
_COPIES: Final = frozenset({
    "aten::_to_copy", "aten::clone", "aten::contiguous", "aten::zeros", "aten::zeros_like", "aten::ones_like",
    "aten::full", "aten::full_like", "aten::new_zeros", "aten::new_full", "aten::index_select", "aten::arange",
})  # fmt: skip
#: Of a tensor whose data type no argument says.
_ELEMENT_BYTES: Final = 4
#: Data type and shape of each tensor of a call, those in lists included.
Tensors: TypeAlias = tuple[tuple[str | None, tuple[int, ...]], ...]


class Work(Struct, frozen=True):
    """What a call does: its class, and the FLOPs of a contraction or the bytes that any other moves."""

    operator_class: OperatorClass
    amount: int
    #: The data type that it computes in.
    dtype: str | None


class Timed(Struct, frozen=True):
    """The median time of calls that are alike, and the work of one: a call that was interrupted does not count."""

    time_ns: float
    calls: int
    work: Work


class CallTimes(Struct, frozen=True, kw_only=True):
    """What the calls of one run took, all that they call included."""

    #: By operator and tensors.
    exact: dict[tuple[str, Tensors], Timed]
    #: Those of one operator, by their work.
    by_operator: dict[str, tuple[Timed, ...]]


def call_times(path: Path) -> CallTimes:
    """The times of all operator calls in a trace; `TraceError` where it cannot be read."""
    calls, _ = _calls_of(path)
    times = inclusive_times(calls)
    samples: dict[tuple[str, Tensors], list[int]] = defaultdict(list)
    signatures: dict[tuple[str, Tensors], Signature] = {}
    for row in _measured(calls):
        signature = calls.signatures[int(calls.signature[row])]
        name = calls.names[int(calls.host.name[row])]
        if signature is None:
            continue
        key = (name, tensors_of(signature))
        samples[key].append(int(times[row]))
        signatures.setdefault(key, signature)
    exact = {
        key: Timed(median(values), len(values), work_of(key[0], signatures[key])) for key, values in samples.items()
    }
    return CallTimes(exact=exact, by_operator=_by_operator(exact))


def phase_times(path: Path) -> dict[tuple[str, Phase], float]:
    """What the calls of each operator take in each phase of a step, in nanoseconds, with all that they call."""
    calls, steps = _calls_of(path)
    times = inclusive_times(calls)
    sums: dict[tuple[str, Phase], float] = defaultdict(float)
    for row in _measured(calls):
        sums[calls.names[int(calls.host.name[row])], PHASES[int(calls.host.phase[row])]] += int(times[row]) / steps
    return dict(sums)


def _calls_of(path: Path) -> tuple[TraceCalls, int]:
    """The calls of a trace, and how many steps it has."""
    trace = read_trace(path)
    attribution = attribute(trace.names, trace.host, trace.launches, trace.work, trace.flows, ())
    return trace_calls_of(trace, attribution)[0], max(len(attribution.steps), 1)


def _measured(calls: TraceCalls) -> list[int]:
    """The host rows of operators that say their arguments, in the steps."""
    recorded = (calls.signature >= 0) & (calls.host.annotation == 0) & calls.host.in_window
    return [int(row) for row in np.flatnonzero(recorded)]


def _by_operator(exact: dict[tuple[str, Tensors], Timed]) -> dict[str, tuple[Timed, ...]]:
    grouped: dict[str, list[Timed]] = defaultdict(list)
    for (name, _), timed in exact.items():
        grouped[name].append(timed)
    return {name: tuple(sorted(rows, key=lambda timed: timed.work.amount)) for name, rows in grouped.items()}


def inclusive_times(calls: TraceCalls) -> Int64:
    """Device time of each host row and of all rows below it; on the CPU the time of the operators themselves."""
    times = calls.time_ns.tolist()
    parents = calls.host.parent.tolist()
    for row in range(len(times) - 1, -1, -1):  # parents stand before their children
        if parents[row] >= 0:
            times[parents[row]] += times[row]
    return np.array(times, dtype=np.int64)


def tensors_of(signature: Signature) -> Tensors:
    """What like calls of one operator have in common; the sizes of a call that is given no tensor."""
    tensors = tuple((tensor.dtype, tensor.shape) for tensor in signature.tensors())
    return tensors or tuple((None, sizes) for sizes in _sizes(signature))


def _sizes(signature: Signature) -> Iterator[tuple[int, ...]]:
    for argument in signature.arguments:
        if isinstance(argument, tuple):
            yield tuple(size for size in argument if isinstance(size, int))


def work_of(operator: str, signature: Signature) -> Work:
    """The work of a call: that of a view or another operator without work of its own is 0."""
    known = classify_operator(operator)
    tensors = signature.tensors()
    dtype = next((tensor.dtype for tensor in tensors if tensor.dtype), None)
    costs = cost(operator, signature)
    if known is None or known.operator_class is None:
        moved = 0 if costs is None else costs.read_bytes + costs.written_bytes
        return Work(OperatorClass.DATA_MOVEMENT, _bytes(signature) if operator in _COPIES else moved, dtype)
    if costs is None:
        return Work(known.operator_class, _bytes(signature), dtype)
    contracts = known.operator_class is OperatorClass.TENSOR_CONTRACTION
    return Work(known.operator_class, costs.flops if contracts else costs.read_bytes + costs.written_bytes, dtype)


def _bytes(signature: Signature) -> int:
    size = sum(tensor.bytes or 0 for tensor in signature.tensors())
    return size or sum(prod(sizes) * _ELEMENT_BYTES for sizes in _sizes(signature))
