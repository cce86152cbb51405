"""What an annotated trace shows: each device event as it was attributed; on the CPU each call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opanatomy.calls.costs import CallCosts
from opanatomy.calls.kernels import class_of_calls
from opanatomy.calls.trace_calls import TraceCalls
from opanatomy.records.columns import Categorical, Int64, KernelTable, Overlay, at, distinct


def overlay_of(calls: TraceCalls, kernels: KernelTable | None, threads: Sequence[tuple[object, object]]) -> Overlay:
    """Each device event, or where `kernels` is `None` each call; `threads` has (process, thread) of each thread."""
    return _of_calls(calls, threads) if kernels is None else _of_kernels(calls.costs, kernels)


def _of_kernels(costs: CallCosts, kernels: KernelTable) -> Overlay:
    inside = kernels.inside
    device, stream = distinct(kernels.device), distinct(kernels.stream)
    pairs = distinct(device.inverse * len(stream.values) + stream.inverse)
    labels = [f"device {kernels.device[event]} stream {kernels.stream[event]}" for event in pairs.first.tolist()]
    tracks, track = _used(Categorical(pairs.inverse, labels))
    operators, operator = _used(kernels.operator)
    modules, module = _used(_submodules(kernels.module))
    flops, moved = _shares(costs, np.where(inside, kernels.call, -1), kernels.duration_ns)
    return Overlay(
        tracks=tracks, operators=operators, modules=modules, track=track, start_ns=kernels.start_ns,
        duration_ns=kernels.duration_ns, operator=operator, module=module,
        operator_class=kernels.operator_class.codes, phase=kernels.phase.codes, flops=flops, bytes=moved, inside=inside,
    )  # fmt: skip


def _of_calls(calls: TraceCalls, threads: Sequence[tuple[object, object]]) -> Overlay:
    host = calls.host
    rows = np.flatnonzero(calls.owner == np.arange(len(host.name)))
    inside = host.in_window[rows]
    tracks, track = _used(Categorical(host.thread[rows], [f"thread {thread}" for _, thread in threads]))
    operators, operator = _used(Categorical(at(host.name, calls.operator[rows]), calls.names))
    modules, module = _used(_submodules(host.module.take(rows)))
    flops, moved = _shares(calls.costs, np.where(inside, rows, -1), host.duration_ns[rows])
    return Overlay(
        tracks=tracks, operators=operators, modules=modules, track=track, start_ns=host.start_ns[rows],
        duration_ns=host.duration_ns[rows], operator=operator, module=module,
        operator_class=class_of_calls(calls, rows), phase=host.phase[rows], flops=flops, bytes=moved, inside=inside,
    )  # fmt: skip


def _submodules(module: Categorical[str]) -> Categorical[str]:
    """The modules but the root, which is the same everywhere."""
    root = module.equals("")
    return Categorical(np.where(root, -1, module.codes), module.values)


def _used(column: Categorical[str]) -> tuple[tuple[str, ...], Int64]:
    """(the texts of a column in the order of their first use, the place of each row's among them or -1)."""
    numbers: dict[str, int] = {}
    known = distinct(column.codes)
    texts = [column.at(int(row)) for row in known.first.tolist()]
    place = np.full(len(texts), -1, dtype=np.int64)
    for code in np.argsort(known.first).tolist():
        text = texts[code]
        if text is not None:
            place[code] = numbers.setdefault(text, len(numbers))
    return tuple(numbers), place[known.inverse]


def _shares(costs: CallCosts, call: Int64, duration_ns: Int64) -> tuple[Int64, Int64]:
    """(FLOPs, bytes) of each event: those of its call, divided by time so that they add up exactly; -1 not known."""
    row = at(costs.row, call)
    flops = at(costs.flops, row)
    moved = np.where(flops >= 0, at(costs.read_bytes, row) + at(costs.written_bytes, row), -1)
    order = np.argsort(call, kind="stable")
    order = order[flops[order] >= 0]
    for events in np.split(order, np.flatnonzero(np.diff(call[order])) + 1):
        if len(events) > 1:
            times = duration_ns[events].tolist()
            flops[events] = divided(int(flops[events[0]]), times)
            moved[events] = divided(int(moved[events[0]]), times)
    return flops, moved


def divided(amount: int, times: list[int]) -> list[int]:
    """Whole parts of `amount` in proportion to `times`, which sum to it exactly; evenly where no time passed."""
    weights = times if sum(times) else [1] * len(times)
    parts, passed, given, whole = [], 0, 0, sum(weights)
    for weight in weights:
        passed += weight
        upto = amount * passed // whole
        parts.append(upto - given)
        given = upto
    return parts
