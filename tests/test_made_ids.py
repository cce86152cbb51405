"""Device work whose ids are missing, shared or there twice: nobody else gets it, and what is lost is said."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from opanatomy.pipeline import analyze_trace
from tests.handmade import training_step


def test_an_id_of_0_is_none(tmp_path: Path) -> None:
    """A kernel without an id went to whichever call has none, and one without an operator to the last with the id 0."""
    trace = training_step()
    trace.launch(132, 0, name="cudaEventQuery")
    trace.kernel("mystery_kernel", 500, 40, 0, external_id=0)
    trace.host("aten::relu", 900, 10)
    trace.events[-1]["args"]["External id"] = 0
    anatomy = analyze_trace(trace.write(tmp_path / "trace.json"))
    assert (anatomy.ledger.linked_ns, anatomy.ledger.no_launch_record_ns) == (35_000, 40_000)
    assert {row.operator: row.time_ns for row in anatomy.operators if row.phase == "forward"} == {"aten::mm": 10_000}
    (warning,) = anatomy.warnings
    assert warning.startswith("1 device event (0.040 ms, 53.3%) without a launch in the trace")


def test_the_external_id_of_the_launch_stands_for_that_of_its_kernel(tmp_path: Path) -> None:
    """A kernel of 2021 says 0; its launch, on a thread without operators, knows better."""
    trace = training_step()
    product = next(event for event in trace.events if event["name"] == "aten::mm")
    for event in trace.events:
        if event["args"].get("correlation") == 1:
            launched = event["cat"] == "cuda_runtime"
            event["args"]["External id"] = product["args"]["External id"] if launched else 0
            event["tid"] = 99 if launched else event["tid"]
    anatomy = analyze_trace(trace.write(tmp_path / "trace.json"))
    assert anatomy.ledger.costed_ns == 30_000


@pytest.mark.parametrize("of_all", [False, True])
def test_a_stream_whose_launches_are_not_recorded_is_in_the_step(of_all: bool, tmp_path: Path) -> None:
    """It was all counted as left over from before the trace, without a line: a report of nothing."""
    trace = training_step()
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 300, 40, 900, stream=20)
    if of_all:
        trace.events[:] = [event for event in trace.events if event["cat"] != "cuda_runtime"]
        trace.launch(130, 77)
    anatomy = analyze_trace(trace.write(tmp_path / "trace.json"))
    unlaunched = 75_000 if of_all else 40_000
    assert (anatomy.ledger.no_launch_record_ns, anatomy.ledger.outside_window_ns) == (unlaunched, 0)
    assert anatomy.timeline.communication_ns == 40_000
    assert any(
        f"({unlaunched / 1e6:.3f} ms, {unlaunched / 75_000:.1%}) without a launch" in w for w in anatomy.warnings
    )


def test_left_over_work_of_a_stream_without_launches(tmp_path: Path) -> None:
    """What runs next to other left-over work is left over as well."""
    trace = training_step()
    trace.kernel("late_of_the_step_before", 100, 60, 900, stream=9)
    trace.launch(500, 50)
    trace.kernel("mine", 510, 10, 50, stream=9)
    trace.kernel("beside", 150, 40, 901, stream=20)
    ledger = analyze_trace(trace.write(tmp_path / "trace.json")).ledger
    assert (ledger.no_launch_record_ns, ledger.outside_window_ns) == (0, 100_000)


def test_kernels_that_are_twice_in_the_file_are_said(tmp_path: Path) -> None:
    trace = training_step()
    trace.events.extend(copy.deepcopy(trace.events))
    anatomy = analyze_trace(trace.write(tmp_path / "trace.json"))
    said = [difference.evidence or "" for check in anatomy.alarms for difference in check.unexplained]
    assert any(text.startswith("3 device events more than once in the trace") for text in said), said


def test_a_launch_with_kernels_on_two_devices_is_said(tmp_path: Path) -> None:
    """A process whose launches are lost has the ids of another one: its kernels went there without a line."""
    trace = training_step()
    trace.kernel("ampere_sgemm_128x64_nn", 141, 10, 1)
    trace.events[-1]["args"]["device"] = 1
    (warning,) = analyze_trace(trace.write(tmp_path / "trace.json")).warnings
    assert warning.startswith("1 launches have kernels on another device as well")


def test_nodes_that_are_added_to_a_graph_copy_nothing(tmp_path: Path) -> None:
    trace = training_step()
    trace.launch(131, 50, name="cudaGraphAddMemcpyNode1D")
    trace.launch(132, 51, name="cudaGraphExecMemcpyNodeSetParams")
    assert analyze_trace(trace.write(tmp_path / "trace.json")).warnings == ()


def test_a_step_that_is_annotated_twice_is_one(tmp_path: Path) -> None:
    """Two overlapping annotations of one step were two steps of half its time."""
    trace = training_step()
    trace.annotation("ProfilerStep#3", 105, 890, thread=2)
    step = analyze_trace(trace.write(tmp_path / "trace.json")).step
    assert (step.count, step.wall_ns) == (1, 900_000)
