"""The calls of a step that was not run -> its time, at the rates that a run of another step reached on this device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

# What each call of a run took: from its trace, call by call, for those that another run would make.


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


#: The factor by which a call may take more or less than is predicted; that of the whole step is within that of its
#: worst part. Measured: docs/techniques.md has every prediction next to what it became.
FACTOR: Final = {
    Basis.SAME_CALL: 1.15, Basis.SAME_OPERATOR: 1.22, Basis.OTHER_DTYPE: 1.26, Basis.SAME_CLASS: 1.26,
    Basis.NOTHING: 1.26, Basis.NO_PEAK: 1.26,
}  # fmt: skip
#: No range is wider, from the middle to either end: 1.6 from low to high.
_WIDEST: Final = 1.6**0.5
#: Calls of this much of the work of the largest one of their class tell what a unit of it takes.
_LARGE: Final = 0.25
#: Of more than this many times the work of the largest known call the time is that of the class.
_FAR: Final = 16
#: No call takes less: what a call costs the host.
_MIN_NS: Final = 1000.0
#: Classes whose time goes with their FLOPs.
_CONTRACTION: Final = OperatorClass.TENSOR_CONTRACTION


class ClassRate(Struct, frozen=True, kw_only=True):
    """The least time of a call of one class, and the time of a FLOP of a contraction, of a byte of any other."""

    least_ns: float
    unit_ns: float


class Rates(Struct, frozen=True, kw_only=True):
    """What a run reached: the times of its calls, by class the time of a unit of work, the time between its calls.

    `between_ns` is what passed between the `calls` of a step. The time of each call is to be multiplied by `scale`.
    `peaks` are the device's FLOP/s by data type, where known.
    """

    times: CallTimes
    by_class: dict[OperatorClass, ClassRate]
    between_ns: float
    calls: float
    scale: float
    peaks: Mapping[str, float]


def rates_of(
    times: CallTimes,
    baseline: SimulatedStep,
    wall_ns: float,
    peaks: Mapping[str, float],
    *,
    profiled_ns: float | None = None,
) -> Rates:
    """The rates of a run whose step takes `wall_ns`: the sum of its calls and of what is between them is that.

    A profiled step of `profiled_ns` that was quicker ran on a quicker machine, calls and all; in one that was slower
    it is the profiler that took the time, first between the calls.
    """
    steps = baseline.batches or (baseline.calls,)
    count = sum(call.calls for calls in steps for call in calls) / len(steps)
    if not count:
        raise EstimateError("the baseline's step calls no operator: there is nothing to go by")
    rates = Rates(times=times, by_class=_by_class(times), between_ns=0.0, calls=count, scale=1.0, peaks=peaks)
    operators = sum(_time(call, rates)[0] * call.calls for calls in steps for call in calls) / len(steps)
    whole = max(operators, min(wall_ns, profiled_ns or wall_ns))
    scale = wall_ns / whole
    return replace(rates, between_ns=(whole - operators) * scale, scale=scale)


def _by_class(times: CallTimes) -> dict[OperatorClass, ClassRate]:
    """What a call of each class takes at least, and what the large ones take for a unit of work."""
    grouped: dict[OperatorClass, list[Timed]] = defaultdict(list)
    for timed in times.exact.values():
        if timed.work.amount:
            grouped[timed.work.operator_class].append(timed)
    rates = {}
    for kind, known in grouped.items():
        largest = max(timed.work.amount for timed in known)
        large = [timed.time_ns / timed.work.amount for timed in known if timed.work.amount >= _LARGE * largest]
        rates[kind] = ClassRate(least_ns=min(timed.time_ns for timed in known), unit_ns=median(large))
    return rates


def predicted_time(step: SimulatedStep, rates: Rates) -> PredictedTime:
    """The time of the step at these rates; of a run on texts that is the mean of the batches."""
    if step.batches:
        return _mean([_of_calls(calls, rates) for calls in step.batches])
    return _of_calls(step.calls, rates)


def _mean(times: Sequence[PredictedTime]) -> PredictedTime:
    """The mean of some steps; its rows are those of all, each with its part of the mean."""
    count = len(times)
    rows = [
        replace(row, time_ns=row.time_ns / count, low_ns=row.low_ns / count, high_ns=row.high_ns / count)
        for time in times
        for row in time.rows
    ]
    return PredictedTime(
        time_ns=sum(time.time_ns for time in times) / count, low_ns=sum(time.low_ns for time in times) / count,
        high_ns=sum(time.high_ns for time in times) / count,
        framework_ns=sum(time.framework_ns for time in times) / count, rows=tuple(_merged(rows)),
    )  # fmt: skip


def _of_calls(calls: Sequence[SimulatedCall], rates: Rates) -> PredictedTime:
    rows = tuple(_merged(_row(call, rates) for call in calls))
    framework, low, high = _between(sum(call.calls for call in calls), rates)
    time = framework + sum(row.time_ns for row in rows)
    return PredictedTime(
        time_ns=time,
        low_ns=max(low + sum(row.low_ns for row in rows), time / _WIDEST),
        high_ns=min(high + sum(row.high_ns for row in rows), time * _WIDEST),
        framework_ns=framework,
        rows=rows,
    )


def _between(calls: int, rates: Rates) -> tuple[float, float, float]:
    """What passes between that many calls, minimum and maximum: a part goes with their number (Python, the autograd
    engine), a part does not (memory that is given back, the loop), and nothing says which."""
    same, each = rates.between_ns, rates.between_ns * calls / rates.calls
    spread = FACTOR[Basis.SAME_CALL]
    return (same + each) / 2, min(same, each) / spread, max(same, each) * spread


def _row(call: SimulatedCall, rates: Rates) -> PredictedRow:
    time, basis = _time(call, rates)
    total = time * call.calls * rates.scale
    work = work_of(call.operator, call.signature)
    costs = cost(call.operator, call.signature)
    return PredictedRow(
        operator=call.operator, phase=call.phase, operator_class=work.operator_class, calls=call.calls,
        time_ns=total, low_ns=total / FACTOR[basis], high_ns=total * FACTOR[basis],
        flops=None if costs is None else costs.flops * call.calls, basis=basis,
    )  # fmt: skip


def _merged(rows: Iterable[PredictedRow]) -> Iterable[PredictedRow]:
    """Rows of one operator in one phase and on one basis as one."""
    grouped: dict[tuple[object, ...], list[PredictedRow]] = defaultdict(list)
    for row in rows:
        grouped[row.operator, row.phase, row.operator_class, row.basis].append(row)
    for same in grouped.values():
        known = [row.flops for row in same if row.flops is not None]
        yield PredictedRow(
            operator=same[0].operator, phase=same[0].phase, operator_class=same[0].operator_class,
            calls=sum(row.calls for row in same), time_ns=sum(row.time_ns for row in same),
            low_ns=sum(row.low_ns for row in same), high_ns=sum(row.high_ns for row in same),
            flops=sum(known) if len(known) == len(same) else None, basis=same[0].basis,
        )  # fmt: skip


def _time(call: SimulatedCall, rates: Rates) -> tuple[float, Basis]:
    """The time of one such call, and what it is known from."""
    exact = rates.times.exact.get((call.operator, tensors_of(call.signature)))
    if exact is not None:
        return exact.time_ns, Basis.SAME_CALL
    work = work_of(call.operator, call.signature)
    known = rates.times.by_operator.get(call.operator, ())
    alike = tuple(timed for timed in known if timed.work.dtype == work.dtype)
    rate = rates.by_class.get(work.operator_class)
    if alike:
        return _scaled(alike, work, rate), Basis.SAME_OPERATOR
    if known:
        factor = _dtype_factor(known, work, rates.peaks)
        time = _scaled(known, work, rate)
        return (time, Basis.NO_PEAK) if factor is None else (time * factor, Basis.OTHER_DTYPE)
    if rate is None:
        return _MIN_NS, Basis.NOTHING
    return max(rate.unit_ns * work.amount, rate.least_ns), Basis.SAME_CLASS


def _scaled(known: tuple[Timed, ...], work: Work, rate: ClassRate | None) -> float:
    """The time of that much work, from the calls of the operator with the nearest amounts.

    Far beyond the largest of them, of which most may be the call itself, goes what the class takes.
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


def _dtype_factor(known: tuple[Timed, ...], work: Work, peaks: Mapping[str, float]) -> float | None:
    """How much longer a contraction takes in its data type than in that of the known ones, `None` where the device's
    peaks do not say; others go by their bytes."""
    if work.operator_class is not _CONTRACTION:
        return 1.0
    theirs, ours = peaks.get(known[0].work.dtype or ""), peaks.get(work.dtype or "")
    return None if theirs is None or ours is None else theirs / ours
