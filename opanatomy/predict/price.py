"""Predict the time of a step that was not run, at the rates that a run of another step reached on this device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from statistics import median
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.attribution.attribute import attribute
from opanatomy.attribution.calls import TraceCalls, trace_calls_of
from opanatomy.classification.operators import classify_operator
from opanatomy.cost.registry import cost
from opanatomy.errors import EstimateError
from opanatomy.records.columns import Int64
from opanatomy.records.experiment import Basis, PredictedRow, PredictedTime, SimulatedCall, SimulatedStep
from opanatomy.records.signature import Signature
from opanatomy.records.taxonomy import PHASES, OperatorClass, Phase
from opanatomy.trace.read import read_trace

# The time of each call of a run, from its trace, for the calls that another run would make.


#: Operators whose work is done by a copy that they call.
_COPIES: Final = frozenset({
    "aten::_to_copy", "aten::clone", "aten::contiguous", "aten::zeros", "aten::zeros_like", "aten::ones_like",
    "aten::full", "aten::full_like", "aten::new_zeros", "aten::new_full", "aten::index_select", "aten::arange",
})  # fmt: skip
#: Element size assumed if no argument has a data type.
_ELEMENT_BYTES: Final = 4
#: Data type and shape of each tensor of a call, including those in lists.
Tensors: TypeAlias = tuple[tuple[str | None, tuple[int, ...]], ...]
#: Key shared by calls with the same work: operator, tensors, and numbers that are sizes.
CallKey: TypeAlias = tuple[str, Tensors, tuple[int, ...]]
#: Smaller numbers are dimensions, strides and data types, which the profiler writes in its own way.
_SIZE: Final = 64


class Work(Struct, frozen=True):
    """What a call does: its class, and the FLOPs of a contraction or the bytes of any other operator."""

    operator_class: OperatorClass
    amount: int
    #: The data type of the computation.
    dtype: str | None


class Timed(Struct, frozen=True):
    """The median time of equal calls, and the work of one; interrupted calls do not count."""

    time_ns: float
    calls: int
    work: Work


class CallTimes(Struct, frozen=True, kw_only=True):
    """Times of one run's calls, including children."""

    #: By operator and tensors.
    exact: dict[CallKey, Timed]
    #: By operator, sorted by work.
    by_operator: dict[str, tuple[Timed, ...]]


def call_times(path: Path, of: Callable[[list[int]], float] = median) -> CallTimes:
    """Return the time of each operator call in a trace, the median `of` like ones; raise `TraceError` if that fails."""
    calls, measured, _ = _calls_of(path)
    times = inclusive_times(calls)
    samples: dict[CallKey, list[int]] = defaultdict(list)
    signatures: dict[CallKey, Signature] = {}
    for row in measured:
        signature = calls.signatures[int(calls.signature[row])]
        name = calls.names[int(calls.host.name[row])]
        if signature is None:
            continue
        key = key_of(name, signature)
        samples[key].append(int(times[row]))
        signatures.setdefault(key, signature)
    exact = {key: Timed(of(values), len(values), work_of(key[0], signatures[key])) for key, values in samples.items()}
    grouped: dict[str, list[Timed]] = defaultdict(list)
    for (name, *_), timed in exact.items():
        grouped[name].append(timed)
    by_operator = {name: tuple(sorted(rows, key=lambda timed: timed.work.amount)) for name, rows in grouped.items()}
    return CallTimes(exact=exact, by_operator=by_operator)


def phase_times(path: Path) -> dict[tuple[str, Phase], float]:
    """Return each operator's time in each phase of a step, in nanoseconds, including children."""
    calls, measured, steps = _calls_of(path)
    times = inclusive_times(calls)
    sums: dict[tuple[str, Phase], float] = defaultdict(float)
    for row in measured:
        sums[calls.names[int(calls.host.name[row])], PHASES[int(calls.host.phase[row])]] += int(times[row]) / steps
    return dict(sums)


def _calls_of(path: Path) -> tuple[TraceCalls, list[int], int]:
    """Return the calls of a trace, the host rows of operators in its steps with known arguments, and how many steps."""
    trace = read_trace(path)
    attribution = attribute(trace.names, trace.host, trace.launches, trace.work, trace.flows, ())
    calls, _ = trace_calls_of(trace, attribution)
    recorded = (calls.signature >= 0) & calls.host.is_operator & calls.host.in_window
    return calls, [int(row) for row in np.flatnonzero(recorded)], max(len(attribution.steps), 1)


def inclusive_times(calls: TraceCalls) -> Int64:
    """Return the device time of each host row and all rows below it; on the CPU the time of the operators."""
    times = calls.time_ns.tolist()
    parents = calls.host.parent.tolist()
    for row in range(len(times) - 1, -1, -1):  # parents come before their children
        if parents[row] >= 0:
            times[parents[row]] += times[row]
    return np.array(times, dtype=np.int64)


def key_of(operator: str, signature: Signature) -> CallKey:
    """Return the key of a call's work; the row count of a gradient's table is a number beside its tensors."""
    tensors: Tensors = tuple((tensor.dtype, tensor.shape) for tensor in signature.tensors())
    if not tensors:
        tensors = tuple((None, sizes) for sizes in _sizes(signature))
    numbers = (value for value in signature.arguments if isinstance(value, int) and not isinstance(value, bool))
    return operator, tensors, tuple(number for number in numbers if number >= _SIZE)


def _sizes(signature: Signature) -> Iterator[tuple[int, ...]]:
    for argument in signature.arguments:
        if isinstance(argument, tuple):
            yield tuple(size for size in argument if isinstance(size, int))


def work_of(operator: str, signature: Signature) -> Work:
    """Return the work of a call; 0 for a view, or any operator that does nothing."""
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
    size = sum(tensor.known_bytes or 0 for tensor in signature.tensors())
    return size or sum(prod(sizes) * _ELEMENT_BYTES for sizes in _sizes(signature))


#: Factor by which a call's time may deviate from the prediction; a whole step's deviation stays within its worst
#: part's. Measured: docs/techniques.md lists every prediction with its result.
FACTOR: Final = {
    Basis.SAME_CALL: 1.15,
    Basis.SAMPLED: 1.3,
    Basis.SAME_OPERATOR: 1.3,
    Basis.SAME_CLASS: 1.4,
    Basis.NOTHING: 1.4,
    Basis.UNMEASURED: 1.4,
}
#: Maximum factor by which sampled calls of a class are off; beyond it one call was disturbed.
_MAX_FACTOR_APART: Final = 1.5
#: Beyond this load by other work the range is not widened further: it becomes meaningless.
_MOST_LOAD: Final = 0.75
#: The widest range, from the middle to either end: 1.8 from low to high.
_MAX_FACTOR: Final = 1.8**0.5
#: Calls with at least this part of their class's largest work set the time of a unit.
_MIN_WORK_SHARE: Final = 0.25
#: Beyond this many times the work of the largest known call the rate of the class is used.
_FAR: Final = 16
#: Minimum time of a call: its host overhead.
_MIN_NS: Final = 1000.0
#: The class whose time is proportional to FLOPs.
_CONTRACTION: Final = OperatorClass.TENSOR_CONTRACTION


class ClassRate(Struct, frozen=True, kw_only=True):
    """The least time of a call of one class, and its time per FLOP for contractions, per byte for all others."""

    least_ns: float
    unit_ns: float


#: A class; contractions by the data type they compute in.
Kind: TypeAlias = tuple[OperatorClass, str | None]


class Rates(Struct, frozen=True, kw_only=True):
    """The rates of a run: the times of its calls, the time of a unit of work by class, the time between calls.

    `sampled` are times of calls run in isolation; `inside` is the factor for a call of each class in the step.
    `between_ns` is the time between the `calls` of a step. Each call's time is multiplied by `scale`. `load` is the
    share of the machine taken by other work, which widens each range.
    """

    times: CallTimes
    by_class: dict[Kind, ClassRate]
    sampled: Mapping[CallKey, float] = {}
    inside: Mapping[OperatorClass, float] = {}
    between_ns: float = 0.0
    calls: float
    scale: float = 1.0
    load: float = 0.0

    @property
    def spread(self) -> float:
        """Return the slowdown when other work takes this share of the device."""
        return 1 / (1 - min(self.load, _MOST_LOAD))


def rates_of(
    times: CallTimes,
    baseline: SimulatedStep,
    wall_ns: float,
    sampled: Mapping[CallKey, float] | None = None,
    *,
    profiled_ns: float | None = None,
    load: float = 0.0,
) -> Rates:
    """Return the rates of a run whose step takes `wall_ns`: its calls plus the time between them.

    If the profiled step, `profiled_ns`, was faster, the machine was faster, including all calls; if it was slower, the
    profiler caused that, primarily between the calls.
    """
    steps = baseline.batches or (baseline.calls,)
    count = sum(call.calls for calls in steps for call in calls) / len(steps)
    if not count:
        raise EstimateError("the baseline's step calls no operators, so nothing can be predicted from it")
    sampled = sampled or {}
    # The least time of a call of each class, and the time of a unit of work in its large calls.
    by_class: dict[Kind, ClassRate] = {}
    grouped: dict[Kind, list[Timed]] = defaultdict(list)
    for timed in times.exact.values():
        if timed.work.amount:
            grouped[_kind(timed.work)].append(timed)
    for kind, known in grouped.items():
        largest = max(timed.work.amount for timed in known)
        large = [timed.time_ns / timed.work.amount for timed in known if timed.work.amount >= _MIN_WORK_SHARE * largest]
        by_class[kind] = ClassRate(least_ns=min(timed.time_ns for timed in known), unit_ns=median(large))
    rates = Rates(
        times=times, by_class=by_class, sampled=sampled, inside=_inside(times, sampled), calls=count, load=load
    )
    operators = sum(_time(call, rates)[0] * call.calls for calls in steps for call in calls) / len(steps)
    whole = max(operators, min(wall_ns, profiled_ns or wall_ns))
    scale = wall_ns / whole
    return replace(rates, between_ns=(whole - operators) * scale, scale=scale)


def _inside(times: CallTimes, sampled: Mapping[CallKey, float]) -> dict[OperatorClass, float]:
    """Return the factor from isolated calls to calls in the step by class: the time-weighted median."""
    known: dict[OperatorClass, list[tuple[float, float]]] = defaultdict(list)
    for key, alone in sampled.items():
        timed = times.exact.get(key)
        if timed is not None and timed.time_ns and alone:
            known[timed.work.operator_class].append((timed.time_ns / alone, timed.time_ns * timed.calls))
    return {
        kind: min(max(_weighted_median(pairs), 1 / _MAX_FACTOR_APART), _MAX_FACTOR_APART)
        for kind, pairs in known.items()
    }


def _weighted_median(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the least value with half of the weight at or below it; pairs are (value, weight)."""
    half, below = sum(weight for _, weight in pairs) / 2, 0.0
    for value, weight in sorted(pairs):
        below += weight
        if below >= half:
            return value
    raise ValueError("no pairs")


def _kind(work: Work) -> Kind:
    """Return the kind of a call's work, within which time depends on one amount."""
    return work.operator_class, work.dtype if work.operator_class is _CONTRACTION else None


def predicted_time(step: SimulatedStep, rates: Rates) -> PredictedTime:
    """Return the time of the step at these rates; for a run on texts, the mean of the batches.

    The rows of a mean are the rows of all batches, weighted.
    """
    if not step.batches:
        return _time_of_calls(step.calls, rates)
    times = [_time_of_calls(calls, rates) for calls in step.batches]
    count = len(times)
    rows = [
        replace(row, time_ns=row.time_ns / count, low_ns=row.low_ns / count, high_ns=row.high_ns / count)
        for time in times
        for row in time.rows
    ]
    return PredictedTime(
        time_ns=sum(time.time_ns for time in times) / count,
        low_ns=sum(time.low_ns for time in times) / count,
        high_ns=sum(time.high_ns for time in times) / count,
        framework_ns=sum(time.framework_ns for time in times) / count,
        rows=tuple(_merged(rows)),
    )


def _time_of_calls(calls: Sequence[SimulatedCall], rates: Rates) -> PredictedTime:
    rows = tuple(_merged(_row(call, rates) for call in calls))
    # A part of the time between calls grows with their number (Python, the autograd engine), a part does not (memory
    # that is given back, the loop), and their shares are unknown.
    same, each = rates.between_ns, rates.between_ns * sum(call.calls for call in calls) / rates.calls
    spread = FACTOR[Basis.SAME_CALL] * rates.spread
    framework, low, high = (same + each) / 2, min(same, each) / spread, max(same, each) * spread
    time, widest = framework + sum(row.time_ns for row in rows), _MAX_FACTOR * rates.spread
    return PredictedTime(
        time_ns=time,
        low_ns=max(low + sum(row.low_ns for row in rows), time / widest),
        high_ns=min(high + sum(row.high_ns for row in rows), time * widest),
        framework_ns=framework,
        rows=rows,
    )


def _row(call: SimulatedCall, rates: Rates) -> PredictedRow:
    time, basis = _time(call, rates)
    total = time * call.calls * rates.scale
    work = work_of(call.operator, call.signature)
    costs = cost(call.operator, call.signature)
    spread = FACTOR[basis] * rates.spread
    return PredictedRow(
        operator=call.operator,
        phase=call.phase,
        operator_class=work.operator_class,
        calls=call.calls,
        time_ns=total,
        low_ns=total / spread,
        high_ns=total * spread,
        flops=None if costs is None else costs.flops * call.calls,
        basis=basis,
    )


def _merged(rows: Iterable[PredictedRow]) -> Iterable[PredictedRow]:
    """Merge rows of one operator in one phase with the same basis."""
    grouped: dict[tuple[object, ...], list[PredictedRow]] = defaultdict(list)
    for row in rows:
        grouped[row.operator, row.phase, row.operator_class, row.basis].append(row)
    for same in grouped.values():
        known = [row.flops for row in same if row.flops is not None]
        yield PredictedRow(
            operator=same[0].operator,
            phase=same[0].phase,
            operator_class=same[0].operator_class,
            calls=sum(row.calls for row in same),
            time_ns=sum(row.time_ns for row in same),
            low_ns=sum(row.low_ns for row in same),
            high_ns=sum(row.high_ns for row in same),
            flops=sum(known) if len(known) == len(same) else None,
            basis=same[0].basis,
        )


def _time(call: SimulatedCall, rates: Rates) -> tuple[float, Basis]:
    """Return the time of one call, and its basis."""
    key = key_of(call.operator, call.signature)
    exact = rates.times.exact.get(key)
    if exact is not None:
        return exact.time_ns, Basis.SAME_CALL
    alone, work = rates.sampled.get(key), work_of(call.operator, call.signature)
    if alone is not None:
        # What a class takes longer in a step is for its short calls, no law for all that a library's operator does.
        inside = rates.inside.get(work.operator_class, 1.0) if call.operator.startswith("aten::") else 1.0
        return alone * inside, Basis.SAMPLED
    known = rates.times.by_operator.get(call.operator, ())
    alike = tuple(timed for timed in known if _kind(timed.work) == _kind(work))
    rate = rates.by_class.get(_kind(work))
    if alike:
        return _scaled(alike, work, rate), Basis.SAME_OPERATOR
    if rate is not None:
        return max(rate.unit_ns * work.amount, rate.least_ns), Basis.SAME_CLASS
    return _MIN_NS, Basis.UNMEASURED if work.amount and work.operator_class is _CONTRACTION else Basis.NOTHING


def _scaled(known: tuple[Timed, ...], work: Work, rate: ClassRate | None) -> float:
    """Return the time of that much work, from the operator's calls with the nearest amounts.

    Far beyond the largest of them, whose time may be mostly call overhead, the class's rate applies.
    """
    above = [timed for timed in known if timed.work.amount >= work.amount]
    below = [timed for timed in known if timed.work.amount < work.amount]
    if not above:
        nearest = below[-1]
        if rate is not None and work.amount > _FAR * nearest.work.amount:
            return nearest.time_ns + rate.unit_ns * (work.amount - nearest.work.amount)
        return nearest.time_ns * work.amount / nearest.work.amount
    if not below:
        shortest = min(timed.time_ns for timed in known)
        nearest = above[0]
        share = work.amount / nearest.work.amount if nearest.work.amount else 1.0
        return max(nearest.time_ns * share, min(shortest, _MIN_NS))
    low, high = below[-1], above[0]
    part = (work.amount - low.work.amount) / (high.work.amount - low.work.amount)
    return low.time_ns + part * (high.time_ns - low.time_ns)
