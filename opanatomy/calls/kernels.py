"""Device events joined to their calls: the table of kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opanatomy.calls.classes import UNKNOWN
from opanatomy.calls.trace_calls import TraceCalls
from opanatomy.classification.tensor_cores import lacks_tensor_cores
from opanatomy.records.columns import (
    NO_UNITS,
    Categorical,
    Int64,
    KernelTable,
    TraceDevice,
    at,
    categorical_of,
    is_among,
)
from opanatomy.records.taxonomy import CLASSES, PHASES

#: The rule of a kernel whose name says nothing.
_BY_OPERATOR = "its operator's class: the name says nothing"


def kernel_table(calls: TraceCalls, devices: Sequence[TraceDevice] = ()) -> KernelTable:
    """One row a device event, on one of the devices."""
    work, names = calls.work, calls.names
    call = calls.call_of_event
    by_name, by_call = calls.kernels.operator_class[work.name], class_of_calls(calls, call)
    # a name that says nothing (`triton__0d1d2de`) takes the class of the operator that launched it
    nameless = (by_name == UNKNOWN) & (call >= 0)
    operator = at(calls.operator, work.host)
    without = np.array([device.number for device in devices if lacks_tensor_cores(device.name)], dtype=np.int64)
    return KernelTable(
        kernel=Categorical(work.name, names),
        device=work.device, stream=work.stream, start_ns=work.start_ns, duration_ns=work.duration_ns,
        link=work.link, call=call,
        operator=Categorical(at(calls.host.name, operator), names),
        signature=calls.texts_of(at(calls.signature, operator)),
        launched_by=work.host,
        phase=Categorical(work.phase, PHASES),
        module=work.module,
        operator_class=Categorical(np.where(call >= 0, by_call, by_name), CLASSES),
        kernel_class=Categorical(np.where(nameless, by_call, by_name), CLASSES),
        kernel_rule=_kernel_rules(calls, nameless),
        tensor_cores=np.where(is_among(work.device, without), NO_UNITS, calls.kernels.tensor_cores[work.name]),
    )  # fmt: skip


def class_of_calls(calls: TraceCalls, rows: Int64) -> Int64:
    """The class of the call at each host row; of no row unknown."""
    if not len(calls.host.name):
        return np.full(len(rows), UNKNOWN, dtype=np.int64)
    codes = calls.operators.operator_class[calls.host.name[rows]]
    return np.where((rows >= 0) & (codes >= 0), codes, UNKNOWN)


def _kernel_rules(calls: TraceCalls, nameless: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Categorical[str]:
    rules = calls.kernels.rule
    codes = np.where(nameless, len(rules.values), rules.codes[calls.work.name])
    return categorical_of((*rules.values, _BY_OPERATOR), codes)
