"""Damage to a made trace: what is lost or doubled is said with its figures, and what can be distinguished still is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from opanatomy.attribution.attribute import attribute
from opanatomy.attribution.calls import trace_calls_of
from opanatomy.attribution.table import kernel_table
from opanatomy.pipeline import analyze_trace
from opanatomy.records.anatomy import Anatomy
from opanatomy.trace.read import read_trace
from tests.handmade import HandMade, training_step
from tests.made_events import Event, WorkItem, ns, us
from tests.made_trace import Made, Options, capture, made


def bert() -> Made:
    return made(capture("bert_cpu.json.gz"), Options())


def events_of(trace: Made, item: WorkItem) -> tuple[Event, Event]:
    """The launch of a item, and its own event."""
    launch = next(e for e in trace.events if _correlation(e) == item.correlation and "runtime" in e["cat"])
    work = next(e for e in trace.events if _correlation(e) == item.correlation and "runtime" not in e["cat"])
    return launch, work


def _correlation(event: Event) -> int | None:
    return event.get("args", {}).get("correlation") if event["ph"] == "X" else None


def analyzed(trace: Made, folder: Path) -> Anatomy:
    return analyze_trace(trace.write(folder / "trace.json.gz"))


def operators(trace: Made, folder: Path) -> list[tuple[int, str | None]]:
    """The event number and name of the operator of each item of device work, as they are attributed."""
    read = read_trace(trace.write(folder / "trace.json.gz"))
    calls, _ = trace_calls_of(read, attribute(read.names, read.host, read.launches, read.work, read.flows))
    numbers = [int(calls.host.external_id[row]) if row >= 0 else 0 for row in calls.work.host.tolist()]
    return list(zip(numbers, kernel_table(calls).operator.decoded(), strict=True))


def truth(trace: Made) -> list[tuple[int, str | None]]:
    return [(item.external_id, item.operator) for item in trace.work_items]


def products(trace: Made) -> list[WorkItem]:
    return [item for item in trace.work_items if item.operator == "aten::mm"]


def test_a_launch_that_was_lost_is_known_by_the_external_id(tmp_path: Path) -> None:
    trace = bert()
    lost = products(trace)[3:10]
    for item in lost:
        trace.events.remove(events_of(trace, item)[0])
    anatomy = analyzed(trace, tmp_path)
    assert (anatomy.ledger.linked_ns, anatomy.ledger.no_launch_record_ns) == (
        sum(item.duration_ns for item in trace.work_items), 0,
    )  # fmt: skip
    assert operators(trace, tmp_path) == truth(trace)


def test_a_launch_that_was_lost_with_the_external_id_is_in_the_ledger(tmp_path: Path) -> None:
    trace = bert()
    lost = products(trace)[3:10]
    for item in lost:
        launch, work = events_of(trace, item)
        trace.events.remove(launch)
        del work["args"]["External id"]
    ledger, lost_ns = analyzed(trace, tmp_path).ledger, sum(item.duration_ns for item in lost)
    total = sum(item.duration_ns for item in trace.work_items)
    assert (ledger.linked_ns, ledger.no_launch_record_ns) == (total - lost_ns, lost_ns)
    assert (ledger.classed_ns, ledger.costed_ns) == (total, total - lost_ns)


def test_kernels_that_were_lost_are_said(tmp_path: Path) -> None:
    """Their operators had less time, or none, and the report said 100 %."""
    trace = bert()
    lost = products(trace)[3:10]
    for item in lost:
        trace.events.remove(events_of(trace, item)[1])
    anatomy = analyzed(trace, tmp_path)
    total = sum(item.duration_ns for item in trace.work_items)
    assert anatomy.ledger.device_work_ns == total - sum(item.duration_ns for item in lost)
    starting = len([item for item in trace.work_items if item.kind != "gpu_memset"])
    check = next(check for check in anatomy.checks if check.quantity == "device work of launches")
    assert (check.compared, check.equal) == (starting, starting - 7)
    assert sum(one.other or 0 for one in check.unexplained) == 7


def test_launches_that_a_graph_captured_run_nothing(tmp_path: Path) -> None:
    trace = training_step()
    trace.launch(131, 50, name="cudaStreamBeginCapture_v10000")
    trace.launch(132, 51)
    trace.launch(133, 52, name="cudaStreamEndCapture_v10000")
    path = trace.write(tmp_path / "trace.json")
    for compared, lost in ((3, 0), (4, 1)):
        check = next(check for check in analyze_trace(path).checks if check.quantity == "device work of launches")
        assert (check.compared - compared, len(check.differences)) == (1, lost)
        trace.launch(134, 53)
        trace.write(path)


def share_ids(trace: Made, *, external: bool) -> tuple[WorkItem, WorkItem]:
    """A product and a map a good deal later get one correlation id; their kernels have an external id or none."""
    early = products(trace)[3]
    late = next(p for p in trace.work_items if p.operator == "aten::mul" and p.launched_ns > early.end_ns + 1_000_000)
    for event in events_of(trace, late):
        event["args"]["correlation"] = early.correlation
    if not external:
        for event in trace.events:
            if _correlation(event) == early.correlation:
                del event["args"]["External id"]
    return early, late


def test_launches_with_one_id_are_told_apart_by_the_external_id(tmp_path: Path) -> None:
    """The last launch in the file got both kernels: 100 % linked, and a product without time."""
    trace = bert()
    share_ids(trace, external=True)
    assert operators(trace, tmp_path) == truth(trace)
    assert analyzed(trace, tmp_path).warnings == ()


def test_launches_with_one_id_are_told_apart_by_time_and_said(tmp_path: Path) -> None:
    trace = bert()
    early, late = share_ids(trace, external=False)
    assert operators(trace, tmp_path) == truth(trace)
    (warning,) = analyzed(trace, tmp_path).warnings
    expected = f"2 device events ({(early.duration_ns + late.duration_ns) / 1e6:.3f} ms) with an id"
    assert warning.startswith(expected)


def test_events_that_are_twice_in_the_file_leave_nothing_open(tmp_path: Path) -> None:
    trace = bert()
    trace.events.extend(copy.deepcopy([event for event in trace.events if event.get("cat") == "cuda_runtime"]))
    assert operators(trace, tmp_path) == truth(trace)
    assert analyzed(trace, tmp_path).warnings == ()


def merged(trace: Made, second: Made, *, shift: int, later_ns: int) -> None:
    """Add another process, on another device, to a trace; its ids are `shift` higher and its events that much later."""
    for event in second.events:
        other = {**event, "args": dict(event.get("args", {}))}
        on_device = other["pid"] == trace.options.accelerator.number
        if isinstance(other["pid"], int):
            other["pid"] += 1 if on_device else 100_000
        if "ts" in other:
            other["ts"] = us(ns(other["ts"]) + later_ns)
        for key in ("correlation", "External id"):
            if key in other["args"]:
                other["args"][key] += shift
        if "device" in other["args"]:
            other["args"]["device"] += 1
        trace.events.append(other)
    trace.work_items += [replace(item, external_id=item.external_id + shift) for item in second.work_items]


@pytest.mark.parametrize(("shift", "open_ids"), [(100, False), (0, True)])
def test_two_processes_in_one_trace(shift: int, open_ids: bool, tmp_path: Path) -> None:
    """Ids are unique within a process only: the second one launched all that both have."""
    trace, second = bert(), bert()
    merged(trace, second, shift=shift, later_ns=50_000)
    found = operators(trace, tmp_path)
    warnings = analyzed(trace, tmp_path).warnings
    if not open_ids:
        assert found == truth(trace)
        assert warnings == ()
    else:
        assert [name for _, name in found] == [item.operator for item in trace.work_items]
        assert any("that launches of several operators carry" in line for line in warnings)


def test_an_external_id_of_two_processes_is_said(tmp_path: Path) -> None:
    """Without its launch a kernel went to the operator of the process that stands last in the file."""
    trace = bert()
    merged(trace, bert(), shift=0, later_ns=50_000)
    trace.events[:] = [event for event in trace.events if event.get("cat") != "cuda_runtime"]
    anatomy = analyzed(trace, tmp_path)
    assert anatomy.ledger.linked_ns > 0
    spent = f"({anatomy.ledger.linked_ns / 1e6:,.3f} ms) with an id that launches of several operators carry"
    assert any(spent in line for line in anatomy.warnings)


@pytest.mark.parametrize("by_ns", [5_000, 30_000_000])
def test_kernels_before_their_launch_keep_their_operators(by_ns: int, tmp_path: Path) -> None:
    trace = bert()
    for item in products(trace)[3:10]:
        work = events_of(trace, item)[1]
        work["ts"] = (item.launched_ns - by_ns) / 1000
    checks = {check.quantity: check for check in analyzed(trace, tmp_path).checks}
    assert not checks["clocks of host and device"].unexplained
    # before the work of their stream that was launched before them
    assert [one.ours for one in checks["order on streams"].unexplained] == [7]
    assert operators(trace, tmp_path) == truth(trace)


def _duration(value: float) -> Callable[[Event], None]:
    return lambda event: event.update(dur=value)


def test_durations_of_nothing_and_less(tmp_path: Path) -> None:
    trace = bert()
    changed = products(trace)[3:10]
    for value, item in zip((0, 0, -1, -5e6, 0, 0, -0.001), changed, strict=True):
        _duration(value)(events_of(trace, item)[1])
    anatomy = analyzed(trace, tmp_path)
    total = sum(item.duration_ns for item in trace.work_items) - sum(item.duration_ns for item in changed)
    assert anatomy.ledger.linked_ns == total
    assert anatomy.warnings == ("3 events have a negative duration, which is read as 0",)
    work_items = [replace(item, duration_ns=0) if item in changed else item for item in trace.work_items]
    assert sum(row.work or 0 for row in anatomy.step.steps) == len(work_items)


def test_streams_and_devices_that_are_no_numbers(tmp_path: Path) -> None:
    """Texts of the same letters were one stream."""
    trace = HandMade()
    trace.host("aten::mm", 0, 50, shapes=[[8, 4], [4, 2]], types=["float", "float"])
    names = ("ab", "ba", "stream 9", "9", "", "default")
    for place, stream in enumerate(names):
        trace.launch(10 + place, place + 1)
        trace.kernel("ampere_sgemm_128x64_nn", 20 + 10 * place, place + 1, place + 1)
        trace.events[-1]["args"] |= {"stream": stream, "device": "GPU-7c" if place % 2 else "GPU-c7"}
    timeline = analyze_trace(trace.write(tmp_path / "trace.json")).timeline
    assert sorted(row.kernel_time_ns for row in timeline.devices) == [1000 + 3000 + 5000, 2000 + 4000 + 6000]
    assert sorted(row.kernel_time_ns for row in timeline.streams) == [1000, 2000, 3000, 4000, 5000, 6000]
