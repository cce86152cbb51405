"""Predict the time of a step that was not run, at the rates that a run of another step reached on this device."""

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

# The time of each call of a run, from its trace, for the calls that another run would make.


#: Operators that do their work in a copy that they call.
_COPIES: Final = frozenset({
    "aten::_to_copy", "aten::clone", "aten::contiguous", "aten::zeros", "aten::zeros_like", "aten::ones_like",
    "aten::full", "aten::full_like", "aten::new_zeros", "aten::new_full", "aten::index_select", "aten::arange",
})  # fmt: skip
#: The element size of a tensor if no argument has a data type.
_ELEMENT_BYTES: Final = 4
#: Data type and shape of each tensor of a call, including those in lists.
Tensors: TypeAlias = tuple[tuple[str | None, tuple[int, ...]], ...]


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
    """The times of one run's calls, children included."""

    #: By operator and tensors.
    exact: dict[tuple[str, Tensors], Timed]
    #: By operator, sorted by work.
    by_operator: dict[str, tuple[Timed, ...]]


def call_times(path: Path) -> CallTimes:
    """Return the times of all operator calls in a trace; raise `TraceError` if it cannot be read."""
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
    """Return the time of each operator in each phase of a step, in nanoseconds, children included."""
    calls, steps = _calls_of(path)
    times = inclusive_times(calls)
    sums: dict[tuple[str, Phase], float] = defaultdict(float)
    for row in _measured(calls):
        sums[calls.names[int(calls.host.name[row])], PHASES[int(calls.host.phase[row])]] += int(times[row]) / steps
    return dict(sums)


def _calls_of(path: Path) -> tuple[TraceCalls, int]:
    """Return the calls of a trace, and how many steps it has."""
    trace = read_trace(path)
    attribution = attribute(trace.names, trace.host, trace.launches, trace.work, trace.flows, ())
    return trace_calls_of(trace, attribution)[0], max(len(attribution.steps), 1)


def _measured(calls: TraceCalls) -> list[int]:
    """Return the host rows of operators inside the steps whose arguments are known."""
    recorded = (calls.signature >= 0) & (calls.host.annotation == 0) & calls.host.in_window
    return [int(row) for row in np.flatnonzero(recorded)]


def _by_operator(exact: dict[tuple[str, Tensors], Timed]) -> dict[str, tuple[Timed, ...]]:
    grouped: dict[str, list[Timed]] = defaultdict(list)
    for (name, _), timed in exact.items():
        grouped[name].append(timed)
    return {name: tuple(sorted(rows, key=lambda timed: timed.work.amount)) for name, rows in grouped.items()}


def inclusive_times(calls: TraceCalls) -> Int64:
    """Return the device time of each host row and all rows below it; on the CPU the time of the operators."""
    times = calls.time_ns.tolist()
    parents = calls.host.parent.tolist()
    for row in range(len(times) - 1, -1, -1):  # parents come before their children
        if parents[row] >= 0:
            times[parents[row]] += times[row]
    return np.array(times, dtype=np.int64)


def tensors_of(signature: Signature) -> Tensors:
    """Return what equal calls of one operator share: its tensors, or the sizes of a call without tensors."""
    tensors = tuple((tensor.dtype, tensor.shape) for tensor in signature.tensors())
    return tensors or tuple((None, sizes) for sizes in _sizes(signature))


def _sizes(signature: Signature) -> Iterator[tuple[int, ...]]:
    for argument in signature.arguments:
        if isinstance(argument, tuple):
            yield tuple(size for size in argument if isinstance(size, int))


def work_of(operator: str, signature: Signature) -> Work:
    """Return the work of a call; that of a view, or of any operator that does nothing, is 0."""
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


#: The factor by which a call may take more or less than predicted; a whole step stays within the factor of its worst
#: part. Measured: docs/techniques.md has every prediction next to its result.
FACTOR: Final = {
    Basis.SAME_CALL: 1.15, Basis.SAME_OPERATOR: 1.22, Basis.OTHER_DTYPE: 1.26, Basis.SAME_CLASS: 1.26,
    Basis.NOTHING: 1.26, Basis.NO_PEAK: 1.26,
}  # fmt: skip
#: The widest range, from the middle to either end: 1.6 from low to high.
_WIDEST: Final = 1.6**0.5
#: Calls with at least this part of their class's largest work set the time of a unit.
_LARGE: Final = 0.25
#: Beyond this many times the work of the largest known call the rate of the class is used.
_FAR: Final = 16
#: The shortest time of a call: what it costs the host.
_MIN_NS: Final = 1000.0
#: The class whose time is proportional to FLOPs.
_CONTRACTION: Final = OperatorClass.TENSOR_CONTRACTION


class ClassRate(Struct, frozen=True, kw_only=True):
    """The least time of a call of one class, and its time per FLOP for contractions, per byte for all others."""

    least_ns: float
    unit_ns: float


class Rates(Struct, frozen=True, kw_only=True):
    """The rates of a run: the times of its calls, the time of a unit of work by class, the time between calls.

    `between_ns` is the time between the `calls` of a step. The time of each call is to be multiplied by `scale`.
    `peaks` are the device's FLOP/s by data type, if known.
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
    """Return the rates of a run whose step takes `wall_ns`, the sum of its calls and the time between them.

    If the profiled step, `profiled_ns`, was quicker, the machine was quicker, calls and all; if it was slower, the
    profiler took the time, first between the calls.
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
    """Return the least time of a call of each class, and the time of a unit of work in its large calls."""
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
    """Return the time of the step at these rates; for a run on texts, the mean of the batches."""
    if step.batches:
        return _mean([_of_calls(calls, rates) for calls in step.batches])
    return _of_calls(step.calls, rates)


def _mean(times: Sequence[PredictedTime]) -> PredictedTime:
    """Return the mean of some steps; its rows are those of all, each with its part of the mean."""
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
    """Return the time between that many calls, its minimum and maximum.

    A part grows with their number (Python, the autograd engine), a part does not (memory that is given back, the loop),
    and their shares are unknown.
    """
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
    """Merge rows of one operator in one phase and on one basis."""
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
    """Return the time of one call, and how it is known."""
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
    """Return the time of that much work, from the operator's calls with the nearest amounts.

    Far beyond the largest of them, whose time may be mostly the cost of the call, the rate of the class applies.
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
    """Return how much longer a contraction takes in its data type than in that of the known ones.

    `None` if the device's peaks do not say. Other operators depend on their bytes.
    """
    if work.operator_class is not _CONTRACTION:
        return 1.0
    theirs, ours = peaks.get(known[0].work.dtype or ""), peaks.get(work.dtype or "")
    return None if theirs is None or ours is None else theirs / ours
