"""Attribution of work to calls, phases, modules and steps: one hand-made trace a rule."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opanatomy.attribution.calls import TOO_COSTLY
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import OperatorClass, Phase
from tests.support.made_trace import GEMM, MAP, MATRICES, NCCL, US, TraceBuilder, on_gpu, page, training_step

ENGINE = "autograd::engine::evaluate_function: "


def columns(pieces: list[dict[str, Any]], *names: str) -> list[Any]:
    """One column of the pieces of work, or rows of several."""
    return [piece[names[0]] if len(names) == 1 else tuple(piece[name] for name in names) for piece in pieces]


# ------------------------------------------------------------------------------------------- operators, phases, modules

ATTRIBUTED = [
    ("aten::mm", "forward", "head"),
    ("aten::mm", "backward", "head"),
    ("aten::_foreach_add_", "optimizer", None),
]


def renumbered(trace: TraceBuilder) -> None:
    """The first sequence number of a thread is 0."""
    for event in trace.events:
        if "Sequence number" in event["args"]:
            event["args"]["Sequence number"] = 0


def without_ranges(trace: TraceBuilder) -> None:
    trace.events = [event for event in trace.events if not event["name"].startswith("opanatomy.phase")]


@pytest.mark.parametrize(
    "change",
    [lambda trace: None, without_ranges, renumbered, lambda trace: trace.events.reverse()],
    ids=["as it is", "no range says the phase", "the first sequence number", "the order of events"],
)
def test_work_goes_to_the_innermost_operator_phase_and_module(
    change: Callable[[TraceBuilder], None], tmp_path: Path
) -> None:
    trace = training_step()
    change(trace)
    assert columns(trace.placed(tmp_path), "operator", "phase", "module") == ATTRIBUTED
    anatomy = trace.analyze(tmp_path)
    assert ([row.number for row in anatomy.step.steps], anatomy.ledger.linked_ns) == ([3], 35 * US)


def test_a_gradient_of_ones_is_what_a_backward_begins_with(tmp_path: Path) -> None:
    """Ones are made in forward too, for a mask: other operators of the thread stand between them and the backward."""
    made = TraceBuilder()
    made.host("aten::linear", 100, 40, sequence=5)
    for begin in (150, 195):
        made.host("aten::ones_like", begin, 10)
        made.run("fill", begin + 2, begin + 4, 2)
    made.host("aten::mul", 170, 20, sequence=6)
    for name, begin, sequence in (("MulBackward0", 210, 6), ("AddmmBackward0", 240, 5)):
        made.host(name, begin, 20, thread=2, sequence=sequence, forward_thread=1)
    assert columns(made.placed(tmp_path), "phase") == ["forward", "backward"]


def test_without_numbers_of_threads_operators_of_every_thread_pair(tmp_path: Path) -> None:
    made = TraceBuilder()
    for thread, sequence, module in ((1, 5, "first"), (1, 6, "first"), (3, 9, "second")):
        made.host(f"opanatomy.module/{module}", 100 * sequence, 80, thread=thread)
        made.host("aten::mm", 100 * sequence + 10, 50, thread=thread, sequence=sequence, **MATRICES)
    for index, sequence in enumerate((9, 6, 5)):
        made.host("MmBackward0", 2000 + 100 * index, 90, thread=2, sequence=sequence, forward_thread=0)
        made.host("aten::mm", 2010 + 100 * index, 50, thread=2, **MATRICES)
    assert columns(made.placed(tmp_path), "module")[3:] == ["second", "first", "first"]


def test_the_last_operator_with_a_number_gives_the_module(tmp_path: Path) -> None:
    """A view of the module before can carry the number that the product of the next one consumes."""
    made = TraceBuilder()
    made.host("opanatomy.phase/forward", 0, 300)
    made.host("opanatomy.module/first", 10, 40)
    made.host("aten::t", 20, 5, sequence=4)
    made.host("opanatomy.module/second", 60, 100)
    made.host("aten::mm", 70, 50, sequence=4)
    made.host("opanatomy.phase/backward", 400, 300)
    made.host(f"{ENGINE}MmBackward0", 410, 100, sequence=4, forward_thread=1)
    made.host("aten::bmm", 420, 50)
    made.host(f"{ENGINE}torch::autograd::AccumulateGrad", 520, 20)
    made.host("aten::add_", 525, 10)
    assert columns(made.placed(tmp_path), "operator", "module") == [
        ("aten::mm", "second"),
        ("aten::bmm", "second"),
        ("aten::add_", "second"),
    ]


def test_recompute_inside_a_node(tmp_path: Path) -> None:
    """Non-reentrant checkpointing: the forward runs again inside a backward node, with gradient mode on."""
    made = TraceBuilder()
    made.host("opanatomy.phase/backward", 0, 1000)
    made.host(f"{ENGINE}AddBackward0", 10, 500, sequence=3, forward_thread=1)
    made.host("AddBackward0", 11, 498, sequence=3, forward_thread=1)
    made.host("aten::mm", 20, 50, sequence=9)
    made.host("aten::cos", 80, 10)  # in torch.no_grad() of the forward: no number
    made.host("aten::add", 100, 50, sequence=10)
    made.host("aten::mul", 300, 50)
    assert columns(made.placed(tmp_path), "phase") == ["recompute"] * 3 + ["backward"]


def test_recompute_before_a_nested_backward(tmp_path: Path) -> None:
    """Reentrant checkpointing: module ranges, then whole nodes, inside one node."""
    made = TraceBuilder()
    made.host("opanatomy.phase/backward", 0, 1000)
    made.host(f"{ENGINE}CheckpointFunctionBackward", 10, 900, sequence=3, forward_thread=1)
    made.host("opanatomy.module/layer", 20, 100)
    made.host("aten::mm", 30, 50, sequence=9)
    made.host(f"{ENGINE}MmBackward0", 200, 100, sequence=9, forward_thread=1)
    made.host("aten::bmm", 210, 50)
    assert columns(made.placed(tmp_path), "operator", "phase", "module") == [
        ("aten::mm", "recompute", "layer"),
        ("aten::bmm", "backward", "layer"),
    ]


def test_work_between_the_calls_of_a_loop(tmp_path: Path) -> None:
    """A loss and a clipping whose kernels are launched outside of any operator; what follows the update is no pass."""
    made = TraceBuilder()
    made.step(0, 1000, 0)
    for index, phase in enumerate(("forward", "backward", "optimizer")):
        made.host(f"opanatomy.phase/loop/{phase}", 100 + 200 * index, 100)
    for time, phase in (
        (50, "other"),
        (150, "forward"),
        (250, "forward"),
        (350, "backward"),
        (450, "optimizer"),
        (550, "optimizer"),
        (650, "other"),
    ):
        made.run(phase, time, time + 10, 5)
    for name, time, phase in (("mse_loss", 220, "forward"), ("norm", 420, "optimizer"), ("mean", 620, "other")):
        made.host(f"aten::{name}", time, 20)
        made.run(phase, time + 5, time + 8, 1)
    pieces = made.placed(tmp_path)
    assert len(pieces) == 10
    assert columns(pieces, "phase") == columns(pieces, "kernel")


@pytest.mark.parametrize(("begin", "operator"), [(49.6, "aten::mm"), (48.0, None)])
def test_an_operator_that_begins_just_before_its_range_is_in_it(
    begin: float, operator: str | None, tmp_path: Path
) -> None:
    """Its kernel is launched from 150 on, in the range from 50 to 450; one that crosses it by more is not in it."""
    trace = TraceBuilder()
    trace.step(0, 1_000)
    trace.host("aten::mm", begin, 200)
    trace.annotation("fwd", 50, 400)
    trace.run("ampere_sgemm_128x64_nn", 150, 170, 100)
    assert [piece["operator"] for piece in trace.placed(tmp_path)] == [operator]


def test_self_time_excludes_children_and_forgives_rounding(tmp_path: Path) -> None:
    """Threads with names do not mix."""
    made = TraceBuilder()
    made.host("aten::linear", 0, 100, thread="main")
    made.host("aten::mm", 10, 30, thread="main")
    made.host("aten::mul", 90, 10.5, thread="main")  # sticks out
    made.host("aten::add", 10, 20, thread="worker")
    rows = {row.operator: row.time_ns for row in made.analyze(tmp_path).operators}
    assert rows == {"aten::mm": 30_000, "aten::mul": 10_500, "aten::add": 20_000}


@pytest.mark.parametrize(("end", "phases"), [(205, ["forward"] * 2), (145, ["forward", "backward"])])
def test_annotations_of_the_trace_are_a_check(tmp_path: Path, end: int, phases: list[str]) -> None:
    """Without autograd all is forward by inference; what ranges state of it is taken."""
    made = TraceBuilder()
    made.annotation("## forward ##", 100, end - 100)
    made.annotation("## backward ##", end, 500)
    for number in range(2):
        made.host("aten::mm", 110 + 40 * number, 30)
        made.run("k", 115 + 40 * number, 300 + number * 10, 5)
    assert columns(made.placed(tmp_path), "phase") == phases
    (check,) = [check for check in made.analyze(tmp_path).checks if check.quantity == "annotated phases"]
    assert (check.unit, check.compared, check.differences) == ("ns", 1 if end == 205 else 0, ())


@pytest.mark.parametrize(("launch", "said"), [("cudaGraphLaunch", True), ("cudaLaunchKernel", False)])
def test_a_graph_of_a_whole_step_does_not_tell_its_phases(launch: str, said: bool, tmp_path: Path) -> None:
    trace = training_step()
    trace.named("sgemm_128x64_nn")["name"] = "layer_norm_backward_kernel"
    trace.named("cudaLaunchKernel")["name"] = launch
    told = "graphs launched in forward ran 0.010 ms of kernels with names like those of backward"
    assert any(text.startswith(told) for text in trace.analyze(tmp_path).warnings) is said


# --------------------------------------------------------------------------------------------- links, windows and steps


def links(anatomy: Anatomy) -> tuple[int, int, int, int]:
    """The time (us) that is linked, launched by graphs, without a launch record, and outside of the window."""
    ledger = anatomy.ledger
    return tuple(  # type: ignore[return-value]
        ns // US
        for ns in (ledger.linked_ns, ledger.graph_launched_ns, ledger.no_launch_record_ns, ledger.outside_window_ns)
    )


def test_graph_launches_share_one_correlation(tmp_path: Path) -> None:
    made = on_gpu()
    made.host("aten::mm", 0, 100)
    made.launch(10, 5, name="cudaGraphLaunch")
    for number in range(3):
        made.kernel(f"k{number}", 20 + 10 * number, 5, 5)
    assert links(made.analyze(tmp_path)) == (0, 15, 0, 0)
    assert columns(made.placed(tmp_path), "operator", "phase") == [(None, "forward")] * 3


def test_work_without_launch_record(tmp_path: Path) -> None:
    made = on_gpu()
    external = made.host("aten::mm", 100, 100)
    made.kernel("by external id", 120, 5, 77, external_id=external)
    made.kernel("nothing known", 130, 7, 78)
    assert links(made.analyze(tmp_path)) == (5, 0, 7, 0)
    assert columns(made.placed(tmp_path), "operator") == ["aten::mm", None]


def test_work_left_over_from_before_the_trace(tmp_path: Path) -> None:
    """The device lags behind the host: work launched before the window runs inside of it, or before."""
    made = on_gpu()
    made.step(100, 50)
    made.run("launched before", 90, 110, 5)
    made.kernel("ran before", 95, 2, 902)
    made.run("mine", 120, 140, 5)
    assert links(made.analyze(tmp_path)) == (5, 0, 0, 7)
    made = on_gpu()
    made.step(100, 500)
    made.kernel("of the step before", 150, 20, 901)
    made.run("mine", 120, 200, 5)
    made.kernel("no record", 300, 6, 902)
    made.kernel("other stream", 180, 7, 903, stream=8)
    made.kernel("other stream, later", 210, 8, 904, stream=8)
    assert links(made.analyze(tmp_path)) == (5, 0, 6 + 8, 20 + 7)


def test_a_step_that_is_annotated_twice_is_one(tmp_path: Path) -> None:
    """Two overlapping annotations of one step were two steps of half its time."""
    trace = training_step()
    trace.annotation("ProfilerStep#3", 105, 890, thread=2)
    step = trace.analyze(tmp_path).step
    assert (step.count, step.wall_ns) == (1, 900_000)


# ---------------------------------------------------------------------------------- ids that are missing, shared, twice


def test_an_id_of_0_is_none(tmp_path: Path) -> None:
    """A kernel without an id went to whichever call has none, and one without an operator to the last with the id 0."""
    trace = training_step()
    trace.launch(132, 0, name="cudaEventQuery")
    trace.kernel("mystery_kernel", 500, 40, 0, external_id=0)
    trace.host("aten::relu", 900, 10)
    trace.events[-1]["args"]["External id"] = 0
    anatomy = trace.analyze(tmp_path)
    assert links(anatomy) == (35, 0, 40, 0)
    assert {row.operator: row.time_ns for row in anatomy.operators if row.phase == "forward"} == {"aten::mm": 10_000}
    (warning,) = anatomy.warnings
    assert warning.startswith("1 device event (0.040 ms, 53.3%) have no launch in the trace")


def test_launches_of_one_number_are_told_apart_by_external_ids(tmp_path: Path) -> None:
    """Each number is that of two launches; the later one would be the nearest to the kernel."""
    trace = on_gpu()
    trace.step(0, 1000)
    for correlation, start in ((4, 100), (5, 200)):
        for operator, at in (("aten::mm", start), ("aten::add", start + 40)):
            args = {"External id": trace.host(operator, at, 20), "correlation": correlation}
            trace.event("cuda_runtime", "cudaLaunchKernel", at + 5, 2, args)
        trace.kernel(GEMM, start + 70, 10, correlation, external_id=trace.next_id - 2)
    assert columns(trace.placed(tmp_path), "operator") == ["aten::mm", "aten::mm"]


def test_the_external_id_of_the_launch_stands_for_that_of_its_kernel(tmp_path: Path) -> None:
    """A kernel of 2021 says 0; its launch, on a thread without operators, knows better."""
    trace = training_step()
    product = trace.named("aten::mm")
    for event in trace.events:
        if event["args"].get("correlation") == 1:
            launched = event["cat"] == "cuda_runtime"
            event["args"]["External id"] = product["args"]["External id"] if launched else 0
            event["tid"] = 99 if launched else event["tid"]
    assert trace.analyze(tmp_path).ledger.costed_ns == 30_000


@pytest.mark.parametrize("of_all", [False, True])
def test_a_stream_whose_launches_are_not_recorded_is_in_the_step(of_all: bool, tmp_path: Path) -> None:
    """It was all counted as left over from before the trace, without a line: a report of nothing."""
    trace = training_step()
    trace.kernel(NCCL, 300, 40, 900, stream=20)
    if of_all:
        trace.events[:] = [event for event in trace.events if event["cat"] != "cuda_runtime"]
        trace.launch(130, 77)
    anatomy = trace.analyze(tmp_path)
    unlaunched = 75 if of_all else 40
    assert links(anatomy) == (75 - unlaunched, 0, unlaunched, 0)
    assert anatomy.timeline.communication_ns == 40_000
    said = f"({unlaunched / 1e3:.3f} ms, {unlaunched / 75:.1%}) have no launch"
    assert any(said in text for text in anatomy.warnings)


def test_left_over_work_of_a_stream_without_launches(tmp_path: Path) -> None:
    """What runs next to other left-over work is left over as well."""
    trace = training_step()
    trace.kernel("late_of_the_step_before", 100, 60, 900, stream=9)
    trace.run("mine", 500, 510, 10, stream=9)
    trace.kernel("beside", 150, 40, 901, stream=20)
    # Once all of these have ended and recorded work runs, what begins is of the trace.
    trace.kernel("of_the_trace", 160, 5, 902, stream=21)
    assert links(trace.analyze(tmp_path)) == (45, 0, 5, 100)


def test_what_is_there_twice_or_on_two_devices_is_said(tmp_path: Path) -> None:
    """A process whose launches are lost has the ids of another one: its kernels went there without a line. Nodes that
    are added to a graph copy nothing."""
    trace = training_step()
    trace.launch(131, 50, name="cudaGraphAddMemcpyNode1D")
    trace.launch(132, 51, name="cudaGraphExecMemcpyNodeSetParams")
    assert trace.analyze(tmp_path).warnings == ()
    twice = training_step()
    twice.events.extend(copy.deepcopy(twice.events))
    said = [one.evidence or "" for check in twice.analyze(tmp_path).alarms for one in check.unexplained]
    assert any(text.startswith("3 device events recorded more than once") for text in said), said
    trace.kernel("ampere_sgemm_128x64_nn", 141, 10, 1, device=1)
    (warning,) = trace.analyze(tmp_path).warnings
    assert warning.startswith("1 launch also has kernels on a second device")


# ------------------------------------------------------------------------------------------------- costs that cannot be

#: Sizes of products: of 2 ** 61 FLOPs, a little more, and 2,000. The first two together are more than can be.
LARGE, LARGER, SMALL = (1 << 20, 1 << 20, 1 << 20), (1 << 20, 1 << 20, (1 << 20) + 1), (10, 10, 10)


@pytest.mark.parametrize(
    ("order", "known"),
    [
        ((SMALL, LARGE, LARGER), (2000, 1 << 61)),
        ((LARGER, LARGE, SMALL), (1 << 61, 2000)),
        ((LARGE, SMALL, LARGER, LARGER), (1 << 61, 2000)),
        ((LARGE, LARGE), (1 << 62,)),
        ((LARGE, LARGE, LARGE), ()),
    ],
)
def test_the_largest_costs_are_impossible_whatever_the_order(
    order: tuple[tuple[int, int, int], ...], known: tuple[int, ...], tmp_path: Path
) -> None:
    """Calls of one signature count together; the warning is in the report once."""
    made = TraceBuilder()
    for index, (m, k, n) in enumerate(order):
        made.host("aten::mm", 100 * index, 50, shapes=[[m, k], [k, n]], types=["float", "float"])
    anatomy = made.analyze(tmp_path)
    assert sorted(row.flops for row in anatomy.operators if row.flops is not None) == sorted(known)
    assert anatomy.warnings.count(TOO_COSTLY) == (sum(known) < 1 << 62)


def test_arguments_of_a_stack_of_interpreters_are_those_of_the_innermost(tmp_path: Path) -> None:
    """Under `torch.func` the profiler records the arguments of all of them."""
    made = TraceBuilder()
    shapes, types = [[2, 3], [3, 4]], ["float", "float"]
    made.host("aten::mm", 0, 100, shapes=shapes, types=types)
    made.host("aten::mm", 10, 80, shapes=shapes * 2, types=types * 2)
    made.host("aten::mm", 20, 60, shapes=shapes * 2, types=types * 2)
    assert {str(row.signature) for row in made.analyze(tmp_path).operators} == {"float32[2,3], float32[3,4]"}


# ----------------------------------------------------------------------------------- bytes over links, what has no size


def launched(trace: TraceBuilder, operator: str, start: float, kernel: str, **options: Any) -> None:
    """An operator of 20 us and the 10 us of work that it launches."""
    trace.host(operator, start, 20, **options)
    category = "gpu_memcpy" if kernel.startswith("Memcpy") else "kernel"
    trace.run(kernel, start + 5, start + 100, 10, category=category)


def test_a_copy_over_the_hosts_link_moves_its_bytes_once(tmp_path: Path) -> None:
    """A copy on the device reads and writes its memory, one over the link moves what arrives."""
    trace = on_gpu()
    trace.step(0, 1000)
    arguments: dict[str, Any] = {"types": ["float", "float", "Scalar"], "constants": ["", "", "False"]}
    for start, kernel in ((10, "Memcpy HtoD (Pinned -> Device)"), (40, "Memcpy DtoH (Device -> Pageable)")):
        launched(trace, "aten::copy_", start, kernel, shapes=[[1000], [1000], []], **arguments)
    # 8,000 bytes in 20 us
    assert "aten::copy_ data movement forward 2 20.0 us 100.0 % 0 400 M" in page(trace.analyze(tmp_path), "operators")
    for start, kernel in ((70, "Memcpy DtoD (Device -> Device)"), (100, "void at::native::copy_kernel<4>")):
        launched(trace, "aten::copy_", start, kernel, shapes=[[1000], [1000], []], **arguments)
    rows = {row.crosses_host_link: row for row in trace.analyze(tmp_path).operators}
    assert (rows[True].calls, rows[True].read_bytes, rows[True].written_bytes) == (2, 0, 2 * 4000)
    assert (rows[False].calls, rows[False].read_bytes, rows[False].written_bytes) == (2, 2 * 4000, 2 * 4000)


def test_a_collective_without_sizes_has_no_flops_and_unknown_bytes(tmp_path: Path) -> None:
    """The FLOPs of the step stay exact, its bytes are a lower bound."""
    trace = on_gpu()
    trace.step(0, 1000)
    launched(trace, "aten::mm", 10, "ampere_sgemm_128x64_nn", **MATRICES)
    launched(trace, "nccl:all_to_all", 40, NCCL.replace("AllReduce_Sum_f32_RING_LL", "SendRecv"))
    anatomy = trace.analyze(tmp_path)
    (row,) = (row for row in anatomy.operators if row.operator == "nccl:all_to_all")
    assert (row.flops, row.read_bytes, row.written_bytes, row.uncosted_ns) == (0, None, None, 10 * US)
    text = page(anatomy, "classes")
    assert "communication 1 10.0 us 50.0 % 0 0.0 % -" in text
    assert "total 2 20.0 us 100.0 % 128 100.0 % ≥224 B" in text
    assert "no formula nccl:all_to_all 50.0 %" in page(anatomy, "ledger")


@pytest.mark.parametrize("kernel", [MAP, "triton__0d1d2de"])
def test_the_first_event_of_a_trace_is_a_call_too(kernel: str, tmp_path: Path) -> None:
    """Its work has the operator's class; a kernel whose name says nothing takes it for its own."""
    trace = on_gpu()
    launched(trace, "aten::mm", 10, kernel, **MATRICES)
    anatomy = trace.analyze(tmp_path)
    assert [(row.operator, row.operator_class, row.flops) for row in anatomy.operators] == [
        ("aten::mm", OperatorClass.TENSOR_CONTRACTION, 128)
    ]
    own = OperatorClass.ELEMENTWISE if kernel == MAP else OperatorClass.TENSOR_CONTRACTION
    assert [(row.kernel, row.operator_class) for row in anatomy.kernels] == [(kernel, own)]


def test_a_collective_may_be_the_first_event_too(tmp_path: Path) -> None:
    """Whatever its kernel is called, and the row that launched it is the operator."""
    trace = on_gpu()
    launched(trace, "nccl:all_reduce", 10, "someones_kernel")
    anatomy = trace.analyze(tmp_path)
    assert [row.operators for row in anatomy.kernels] == [("nccl:all_reduce",)]
    assert anatomy.timeline.communication_ns == 10 * US


def test_an_operator_that_computes_a_gradient_is_not_forward(tmp_path: Path) -> None:
    """Outside of autograd its name says so; one whose result is differentiated is a part of a forward."""
    trace = on_gpu()
    trace.step(0, 1000)
    launched(trace, "aten::convolution", 10, "implicit_convolve_sgemm")
    launched(trace, "aten::convolution_backward", 40, "dgrad_engine")
    launched(trace, "aten::_softmax_backward_data", 70, "softmax_warp_backward")
    assert {row.operator: row.phase for row in trace.analyze(tmp_path).operators} == {
        "aten::convolution": Phase.FORWARD,
        "aten::convolution_backward": Phase.BACKWARD,
        "aten::_softmax_backward_data": Phase.BACKWARD,
    }
    trace.host("aten::threshold_backward", 300, 20, sequence=7)
    trace.run("threshold_kernel", 305, 400, 10)
    trace.host("ThresholdBackwardBackward0", 500, 100, thread=2, sequence=7, forward_thread=1)
    launched(trace, "aten::mul", 510, "mul_kernel", thread=2)
    phases = {row.operator: row.phase for row in trace.analyze(tmp_path).operators}
    assert phases["aten::threshold_backward"] is Phase.FORWARD
    assert phases["aten::convolution_backward"] is Phase.BACKWARD
