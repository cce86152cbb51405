"""A made trace of an accelerator, of which all is known: every figure of the report is the number that was chosen."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from opanatomy.attribution.attribute import attribute
from opanatomy.attribution.calls import trace_calls_of
from opanatomy.attribution.table import kernel_table
from opanatomy.pipeline import analyze_trace
from opanatomy.records.anatomy import Anatomy, OperatorRow
from opanatomy.records.taxonomy import PHASES, OperatorClass, Phase
from opanatomy.trace.read import read_trace
from tests.handmade import HandMade
from tests.made_events import GRAPH, LINKED, MI300X, XPU, WorkItem
from tests.made_operators import WORK
from tests.made_trace import TRACES, Made, Options, capture, made

BERT, CHECKPOINTED = "bert_cpu.json.gz", "bert_checkpointing_amp_cpu.json.gz"
OPTIONS = {
    "plain": Options(second_stream=False),
    "two streams": Options(),
    "several kernels": Options(splits=True),
    "graphs": Options(graph=40),
    "device thread": Options(device_thread=True),
    "ROCm": Options(accelerator=MI300X, splits=True, graph=7, device_thread=True),
    "XPU": Options(accelerator=XPU, graph=5, device_thread=True),
}
Place = tuple[Phase, str | None]


@cache
def on_cpu(name: str) -> tuple[Anatomy, dict[int, Place]]:
    """The report of the capture itself, and the phase and module of each of its events by its number."""
    trace = read_trace(TRACES / name)
    host = attribute(trace.names, trace.host, trace.launches, trace.work, trace.flows).host
    phases = [PHASES[code] for code in host.phase.tolist()]
    places = dict(zip(host.external_id.tolist(), zip(phases, host.module.decoded(), strict=True), strict=True))
    return analyze_trace(TRACES / name), places


#: Two steps without checkpointing, and one step under autocast with it.
CASES = [
    *((BERT, option) for option in ("two streams", "graphs", "ROCm")),
    *((CHECKPOINTED, option) for option in ("plain", "several kernels", "device thread", "ROCm", "XPU")),
]


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Made, Path, Anatomy]:
    name, option = request.param
    trace = made(capture(name), OPTIONS[option])
    path = trace.write(tmp_path_factory.mktemp("made") / "trace.json.gz")
    return name, trace, path, analyze_trace(path)


def union(work_items: list[WorkItem]) -> list[tuple[int, int]]:
    """The spans in which any of the work items ran."""
    spans: list[tuple[int, int]] = []
    for item in sorted(work_items, key=lambda item: item.start_ns):
        if spans and item.start_ns <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], item.end_ns)
        else:
            spans.append((item.start_ns, item.end_ns))
    return spans


def length(spans: list[tuple[int, int]], low: int, high: int) -> int:
    return sum(max(min(end, high) - max(start, low), 0) for start, end in spans)


def place_of(trace: Made, item: WorkItem, places: dict[int, Place]) -> Place:
    """Where the CPU has the operator; a graph is where its launch is."""
    if item.link == LINKED:
        return places[item.external_id]
    ranges = ((phase, *span) for phase, span in trace.phases if span[0] <= item.launched_ns < span[1])
    return next((Phase(phase) for phase, *_ in ranges), Phase.OTHER), None


def test_the_ledger(case: tuple[str, Made, Path, Anatomy]) -> None:
    _, trace, _, anatomy = case
    spent = Counter[str]()
    for item in trace.work_items:
        spent[item.link] += item.duration_ns
    total = sum(spent.values())
    ledger = anatomy.ledger
    assert (ledger.device_work_ns, ledger.linked_ns, ledger.graph_launched_ns) == (total, spent[LINKED], spent[GRAPH])
    assert (ledger.no_launch_record_ns, ledger.outside_window_ns, ledger.unknown_ns) == (0, 0, 0)
    assert (ledger.classed_ns, ledger.costed_ns) == (total, spent[LINKED])
    assert anatomy.warnings == ()


def test_classes_and_phases(case: tuple[str, Made, Path, Anatomy]) -> None:
    name, trace, _, anatomy = case
    places = on_cpu(name)[1]
    times, kernels = Counter[Any](), Counter[Any]()
    for item in trace.work_items:
        key = item.operator_class, place_of(trace, item, places)[0]
        times[key] += item.duration_ns
        kernels[key] += 1
    assert {(row.operator_class, row.phase): row.time_ns for row in anatomy.classes} == times
    assert {(row.operator_class, row.phase): row.kernels for row in anatomy.classes} == kernels


def test_each_piece_is_where_its_operator_is(case: tuple[str, Made, Path, Anatomy]) -> None:
    name, made_trace, path, _ = case
    places = on_cpu(name)[1]
    trace = read_trace(path)
    attribution = attribute(trace.names, trace.host, trace.launches, trace.work, trace.flows)
    calls, _ = trace_calls_of(trace, attribution)
    kernels, work, host = kernel_table(calls), calls.work, calls.host
    assert len(work.name) == len(made_trace.work_items)
    for index, item in enumerate(made_trace.work_items):
        row = int(work.host[index])
        seen = (int(host.external_id[row]), kernels.operator.at(index)) if row >= 0 else (0, None)
        assert seen == (item.external_id, item.operator)
        assert (kernels.phase.at(index), kernels.module.at(index)) == place_of(made_trace, item, places)
        assert kernels.operator_class.at(index) is item.operator_class
        owner = int(kernels.call[index])
        assert (int(host.external_id[owner]) if owner >= 0 else 0) == item.owner


@pytest.mark.parametrize(
    ("name", "across"), [("M2D", True), ("D2M", True), ("H2D", True), ("D2H", True), ("D2D", False)]
)
def test_copies_of_an_intel_device_cross_the_link_to_the_host(tmp_path: Path, name: str, across: bool) -> None:
    """They were held against the bandwidth of the device: PTI calls them M2D, not HtoD."""
    trace = HandMade()
    trace.host("aten::copy_", 0, 50, shapes=[[8], [8], []], types=["float", "float", "Scalar"])
    trace.launch(10, 1, name="urEnqueueUSMMemcpy")
    trace.kernel(f"Memcpy {name} (Memory -> Device)", 20, 5, 1, category="gpu_memcpy")
    (row,) = analyze_trace(trace.write(tmp_path / "trace.json")).operators
    assert row.crosses_host_link is across


def test_modules(case: tuple[str, Made, Path, Anatomy]) -> None:
    name, trace, _, anatomy = case
    places = on_cpu(name)[1]
    spent = Counter[Any]()
    for item in trace.work_items:
        phase, module = place_of(trace, item, places)
        if module is not None:
            spent[module, phase, item.operator_class] += item.duration_ns
    assert {(row.module, row.phase, row.operator_class): row.time_ns for row in anatomy.modules} == spent
    assert len({module for module, _, _ in spent}) > 20


Key = tuple[str, str, Phase, OperatorClass, str | None]


def costs(rows: tuple[OperatorRow, ...], *, works: bool) -> dict[Key, tuple[int | None, ...]]:
    """Calls, FLOPs and bytes by operator, of those only that launch something or cost something."""
    return {
        (row.operator, row.signature, row.phase, row.operator_class, row.part_of): (
            row.calls, row.flops, row.read_bytes, row.written_bytes,
        )
        for row in rows
        if not works or row.operator in WORK or row.flops or row.read_bytes or row.written_bytes
    }  # fmt: skip


def test_operators_cost_what_they_cost_on_the_cpu(case: tuple[str, Made, Path, Anatomy]) -> None:
    """What hands its work on (`aten::_to_copy`, an overload of the same name) has no row: it launches nothing."""
    name, trace, _, anatomy = case
    expected = costs(on_cpu(name)[0].operators, works=True)
    found = costs(anatomy.operators, works=False)
    handed_on = {key for key in expected.keys() - found.keys() if not any(expected[key][1:])}
    assert {key: value for key, value in expected.items() if key not in handed_on} == found
    assert {(key[0], key[4]) for key in handed_on} <= {("aten::add_", "aten::_foreach_add_")}
    spent = Counter[str]()
    for item in trace.work_items:
        if item.operator:
            spent[item.operator] += item.duration_ns
    times = Counter[str]()
    for row in anatomy.operators:
        times[row.operator] += row.time_ns
    assert {operator: time for operator, time in times.items() if time} == spent


def test_ratios(case: tuple[str, Made, Path, Anatomy]) -> None:
    name, trace, _, anatomy = case
    places = on_cpu(name)[1]
    theirs = {row.operator_class: row for row in on_cpu(name)[0].ratios}
    graphs = any(item.link == GRAPH for item in trace.work_items)
    for row in anatomy.ratios:
        in_class = [item for item in trace.work_items if item.operator_class is row.operator_class]
        in_phase = Counter[Phase]()
        for item in in_class:
            in_phase[place_of(trace, item, places)[0]] += item.duration_ns
        backward = in_phase[Phase.BACKWARD] + in_phase[Phase.RECOMPUTE]
        assert row.time == backward / in_phase[Phase.FORWARD]
        if not graphs:
            expected = theirs[row.operator_class]
            assert (row.flops, row.bytes) == (expected.flops, expected.bytes)
    assert {row.operator_class for row in anatomy.ratios} == set(theirs)


def causes(trace: Made, low: int, high: int) -> tuple[int, int, int]:
    """Idle time of the window for the host, for another stream, and for neither, worked out gap by gap."""
    work_items = sorted(trace.work_items, key=lambda item: item.start_ns)
    spans = union(trace.work_items)
    edges = [low, *(edge for span in spans for edge in span), high]
    found = [0, 0, 0]
    for opens, closes in list(pairwise(edges))[::2]:
        if closes <= opens:
            continue
        following = next((item for item in work_items if item.start_ns >= closes), None)
        last = max((item for item in work_items if item.end_ns <= opens), key=lambda item: item.end_ns, default=None)
        if following is None or following.launched_ns >= opens:
            cause = 0
        else:
            cause = 1 if last is not None and last.stream != following.stream else 2
        found[cause] += closes - opens
    return found[0], found[1], found[2]


def test_the_window_and_its_steps(case: tuple[str, Made, Path, Anatomy]) -> None:
    _, trace, _, anatomy = case
    timeline, spans = anatomy.timeline, union(trace.work_items)
    low, high = trace.steps[0][0], max(trace.steps[-1][1], spans[-1][1])
    busy = length(spans, low, high)
    assert (timeline.window_ns, timeline.busy_ns, timeline.outside_ns) == (high - low, busy, 0)
    assert timeline.idle_ns == high - low - busy
    idle = causes(trace, low, high)
    assert (timeline.host_idle_ns, timeline.stream_idle_ns, timeline.other_idle_ns) == idle
    begins = [begin for begin, _ in trace.steps]
    by_step = [
        [one for one in trace.work_items if begin <= one.launched_ns < end] for begin, end in pairwise([*begins, high])
    ]
    before, rows = low, []
    for work_items, (begin, end) in zip(by_step, trace.steps, strict=True):
        first, last = max(begin, before), max(end, max(item.end_ns for item in work_items))
        before = last
        rows.append(
            (last - first, length(spans, first, last), sum(item.duration_ns for item in work_items), len(work_items))
        )
    assert [(row.wall_ns, row.busy_ns, row.kernel_time_ns, row.work) for row in anatomy.step.steps] == rows
    kinds = Counter[str]()
    for item in trace.work_items:
        kinds[item.kind] += item.duration_ns
    assert sum(row.memcpy_ns or 0 for row in anatomy.step.steps) == kinds["gpu_memcpy"]
    assert sum(row.memset_ns or 0 for row in anatomy.step.steps) == kinds["gpu_memset"]


def test_streams_and_launches(case: tuple[str, Made, Path, Anatomy]) -> None:
    _, trace, _, anatomy = case
    device = trace.options.accelerator.number
    of_stream: dict[int, list[WorkItem]] = {}
    for item in trace.work_items:
        of_stream.setdefault(item.stream, []).append(item)
    assert {(row.device, row.stream): (row.work, row.kernel_time_ns) for row in anatomy.timeline.streams} == {
        (device, stream): (len(work_items), sum(item.duration_ns for item in work_items))
        for stream, work_items in of_stream.items()
    }
    launching = anatomy.timeline.launching
    assert launching is not None
    kernels = [item for item in trace.work_items if item.kind == "kernel"]
    first: dict[int, WorkItem] = {}
    for item in kernels:
        first.setdefault(item.correlation, item)
    assert (launching.kernels, launching.kernel_ns) == (len(kernels), sum(item.duration_ns for item in kernels))
    delays = [item.start_ns - item.launched_ns for item in first.values()]
    assert (launching.delayed, launching.delay_ns) == (len(delays), sum(delays))
    assert launching.tiny_kernels == sum(item.duration_ns < 10_000 for item in kernels)
