"""The host events of a trace as calls: which call each is part of, what it launched, what it costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.attribution import Attribution
from opanatomy.attribution.linking import enclosing_rows
from opanatomy.attribution.nesting import nearest_above
from opanatomy.calls.classes import (
    KernelNames,
    OperatorNames,
    kernel_names,
    operator_names,
    with_classes_of_kernels,
)
from opanatomy.calls.costs import CallCosts, costs_of
from opanatomy.calls.element_types import wants_element_type
from opanatomy.calls.ownership import owners
from opanatomy.calls.signatures import own_signatures, stored_signatures
from opanatomy.records.columns import (
    OUTSIDE,
    Bool,
    Categorical,
    HostTable,
    Int64,
    WorkTable,
    at,
    categorical_of,
    distinct,
    marked,
    starts_work,
)
from opanatomy.records.signature import Signature
from opanatomy.records.signature_text import SignatureText, text_of
from opanatomy.records.workload import MODULE_RANGE, PHASE_RANGE
from opanatomy.trace import Trace

#: Ranges that some releases write as operators.
_NO_OPERATOR = (PHASE_RANGE, MODULE_RANGE, "autograd::engine::")


class TraceCalls(Struct, frozen=True, kw_only=True):
    """The host events and the device work of a trace, joined: columns of one entry a host row, unless they say not."""

    names: Sequence[str]
    on_device: bool
    host: HostTable
    work: WorkTable
    #: One entry a name.
    operators: OperatorNames
    kernels: KernelNames
    #: The distinct arguments; `signature` has those of the call itself (`own_signatures`), as numbers of them.
    signatures: Sequence[Signature | None]
    signature: Int64
    #: The row of the call that each row is part of, -1 where there is none.
    owner: Int64
    #: The innermost operator at or around each row, -1 where there is none.
    operator: Int64
    #: Device time and device events that each row launched; on the CPU its self time.
    time_ns: Int64
    launched: Int64
    #: Whether a launch of a kernel, copy or fill lies directly in each row.
    starts_work: Bool
    costs: CallCosts

    @property
    def call_of_event(self) -> Int64:
        """For each device event the row of its call, -1 where there is none."""
        return at(self.owner, self.work.host)

    def texts_of(self, signature: Int64) -> Categorical[SignatureText]:
        """The text of each signature, a number of `signatures`; that of none is empty."""
        numbers = distinct(signature)
        texts = [text_of(self.signatures[number] if number >= 0 else None) for number in numbers.values.tolist()]
        return categorical_of(texts, numbers.inverse)


def trace_calls_of(trace: Trace, attribution: Attribution) -> tuple[TraceCalls, tuple[str, ...]]:
    """The calls of a trace, and what there is to warn of."""
    work = attribution.work
    signatures, stored = stored_signatures(trace.names, attribution.host, trace.signatures)
    host = replace(attribution.host, signature=stored)
    signatures, signature = own_signatures(host, signatures)
    operators = operator_names(trace.names, host.name, on_device=trace.on_device)
    kernels = kernel_names(trace.names, work.name)
    time_ns, launched = _device_time(host, work, on_device=trace.on_device)
    works = launched > 0 if trace.on_device else None
    crossing = rows_with_events(kernels.crosses_host_link[work.name], work.host, len(host.name))
    owner = owners(trace, host, signatures, operators, works, crossing)
    called = at(owner, work.host)
    if trace.on_device:
        called_name = at(host.name, called)
        operators = with_classes_of_kernels(operators, kernels, called_name, work.name, work.duration_ns)
    element = _element_types(trace.names, host, kernels.element_type[work.name], called)
    device_kind = None if trace.on_device else "cpu"
    costs, warnings = costs_of(trace.names, signatures, (host.name, signature, element), device_kind)
    calls = TraceCalls(
        names=trace.names, on_device=trace.on_device, host=host, work=work, operators=operators, kernels=kernels,
        signatures=signatures, signature=signature, owner=owner, operator=_innermost_operators(trace.names, host),
        time_ns=time_ns, launched=launched, starts_work=_starting_work(trace, host), costs=costs,
    )  # fmt: skip
    return calls, warnings


def only_in(calls: TraceCalls, host: Bool, work: Bool) -> TraceCalls:
    """Keep the window to these host rows and this device work."""
    if bool(host.all()) and bool(work.all()):
        return calls
    rows = replace(calls.host, in_window=calls.host.in_window & host)
    events = replace(calls.work, link=np.where(work, calls.work.link, OUTSIDE))
    time_ns, launched = _device_time(rows, events, on_device=calls.on_device)
    return replace(calls, host=rows, work=events, time_ns=time_ns, launched=launched)


def _starting_work(trace: Trace, host: HostTable) -> Bool:
    """Whether a launch that starts device work lies directly in each host row."""
    rows = np.flatnonzero(starts_work(trace.names, trace.launches))
    moments = (trace.launches.thread[rows], trace.launches.start_ns[rows])
    around = enclosing_rows(host.thread, host.start_ns, host.start_ns + host.duration_ns, host.parent, moments)
    return marked(around[around >= 0], len(host.name))


def rows_with_events(events: Bool, row: Int64, count: int) -> Bool:
    """Which of `count` host rows have one of these device events; `row` is that of each event, -1 none."""
    return marked(row[events & (row >= 0)], count)


def _device_time(host: HostTable, work: WorkTable, *, on_device: bool) -> tuple[Int64, Int64]:
    """Device time and device events of each host row: what it launched in the window, on the CPU its self time."""
    rows = len(host.name)
    if not on_device:
        return np.where(host.in_window, host.self_ns, 0), np.zeros(rows, dtype=np.int64)
    inside = (work.host >= 0) & (work.link != OUTSIDE)
    launching = work.host[inside]
    time = np.zeros(rows, dtype=np.int64)
    np.add.at(time, launching, work.duration_ns[inside])
    return time, np.bincount(launching, minlength=rows).astype(np.int64)


def _element_types(names: Sequence[str], host: HostTable, element_type: Int64, called: Int64) -> Int64:
    """For each host row the element type of its tensor lists, from the name of one of its kernels.

    `element_type` is what the name of each device event says, `called` its call.
    """
    column = np.full(len(host.name), -1, dtype=np.int64)
    events = np.flatnonzero((called >= 0) & (element_type >= 0))
    if len(events):
        listed = np.array([wants_element_type(name) for name in names], dtype=bool)
        events = events[listed[host.name[called[events]]]]
        column[called[events]] = element_type[events]
    return column


def _innermost_operators(names: Sequence[str], host: HostTable) -> Int64:
    """The innermost operator at or around each host row; a range or annotation is none."""
    named = np.array([not name.startswith(_NO_OPERATOR) for name in names], dtype=bool)
    return nearest_above((host.annotation == 0) & named[host.name], host.parent)
