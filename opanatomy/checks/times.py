"""Time by operator against the sums that the profiler itself makes of the same run (`key_averages`)."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from opanatomy.calls.announced import BACKENDS
from opanatomy.calls.trace_calls import TraceCalls
from opanatomy.classification import classify_operator
from opanatomy.records.checks import Check, Difference
from opanatomy.records.columns import CallTable, distinct, marked
from opanatomy.records.workload import Capture

PROFILER = "the profiler's key_averages"
_OPERATOR = re.compile(r"aten::\w+")


def check_times(calls: TraceCalls, table: CallTable, capture: Capture | None) -> Check | None:
    """The time of each operator in the report against the profiler's own; `None` for a trace from elsewhere.

    An operator that also merely dispatches (it delegates, or calls another overload of its name) has time that is no
    call's: there the self times of all its events are compared.
    """
    if capture is None:
        return None
    if not capture.profiler_times_ns:
        return Check(
            quantity="operator times", source=PROFILER, unit="ns", not_checked="the capture did not keep the sums"
        )
    ours, theirs = _report_times(calls, table), capture.profiler_times_ns
    keys = sorted({*ours, *(name for name in theirs if _computes(name))})
    differences = tuple(
        Difference(
            operator=name, ours=ours[name], other=theirs.get(name, 0), time_ns=abs(ours[name] - theirs.get(name, 0))
        )
        for name in keys
        if ours[name] != theirs.get(name, 0)
    )
    return Check(
        quantity="operator times", source=PROFILER, unit="ns", compared=len(keys), equal=len(keys) - len(differences),
        differences=differences,
    )  # fmt: skip


def _computes(name: str) -> bool:
    """Whether a row of the profiler is of an operator that computes, and so must be in the report; not of a kernel."""
    known = classify_operator(name) if _OPERATOR.fullmatch(name) else None
    return known is not None and known.operator_class is not None


def _report_times(calls: TraceCalls, table: CallTable) -> Counter[str]:
    times: Counter[str] = Counter()
    called = table.host_row >= 0
    host, names = calls.host, calls.names
    in_table = np.zeros(len(host.name), dtype=np.int64)
    in_table[table.host_row[called]] = table.time_ns[called]
    dispatches = marked(host.name[(calls.owner < 0) & calls.operators.computes[host.name]], len(names))
    time = np.where(dispatches[host.name], calls.time_ns, in_table)
    computes = calls.operators.computes[host.name]
    sums = np.zeros(len(names), dtype=np.int64)
    np.add.at(sums, host.name[computes], time[computes])
    for number in distinct(host.name[computes]).values.tolist():
        if not names[number].startswith(BACKENDS):  # an annotation, which the profiler does not sum up
            times[names[number]] = int(sums[number])
    return times
