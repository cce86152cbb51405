"""What cannot have happened as a trace has it: a trace made by hand for each rule, and beside it one that is right."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from opanatomy.__main__ import main
from opanatomy.records.anatomy import Anatomy, Check, Difference
from opanatomy.records.taxonomy import Phase
from opanatomy.report import terminal_report
from tests.support.made_trace import GEMM, MAP, NCCL, US, TraceBuilder

MS = 1_000_000
COPY = "Memcpy DtoH (Device -> Pageable)"


def run(
    trace: TraceBuilder,
    operator: str,
    start: float,
    kernel: str,
    long: float,
    correlation: int,
    *,
    begin: float = 0,
    thread: int = 1,
    api: str = "cudaLaunchKernel",
    **options: Any,
) -> None:
    """An operator of 10 us at `start`, and its work 20 us later or at `begin`."""
    trace.host(operator, start, 10, thread=thread)
    trace.launch(start + 2, correlation, thread=thread, name=api)
    trace.kernel(kernel, begin or start + 20, long, correlation, **options)


def in_turn(count: int, *, by: float = 0, every: float = 100, begin: int = 0) -> TraceBuilder:
    """So many operators, one every 100 us, each with a kernel of 40 us on an idle stream, 20 us after it began."""
    trace = TraceBuilder()
    for index in range(begin, begin + count):
        run(trace, "aten::add", 10_000 + every * index, MAP, 40, index + 1, begin=10_020 + every * index + by)
    return trace


def check_of(anatomy: Anatomy, quantity: str) -> Check:
    return next(check for check in anatomy.checks if check.quantity == quantity)


def unexplained(anatomy: Anatomy) -> list[tuple[str, Difference]]:
    return [(check.quantity, one) for check in anatomy.checks for one in check.unexplained]


def only(anatomy: Anatomy, quantity: str) -> Difference:
    [(name, one)] = unexplained(anatomy)
    assert name == quantity
    return one


def clocks(trace: TraceBuilder, folder: Path) -> Check:
    return check_of(trace.analyze(folder), "clocks of host and device")


def first_lines(anatomy: Anatomy) -> str:
    """What follows the title, however it is wrapped."""
    return " ".join(" ".join(terminal_report(anatomy).splitlines()[1:6]).split())


def kernels(trace: TraceBuilder) -> list[dict[str, Any]]:
    return [event for event in trace.events if event["cat"] == "kernel"]


def test_a_trace_that_is_right_is_confirmed(tmp_path: Path) -> None:
    anatomy = in_turn(20).analyze(tmp_path)
    assert unexplained(anatomy) == []
    compared = {check.quantity: (check.compared, check.equal) for check in anatomy.checks}
    for quantity in (
        "classes of kernels",
        "order on streams",
        "clocks of host and device",
        "device work of launches",
        "device events",
    ):
        assert compared[quantity] == (20, 20)


# ------------------------------------------------------------------------------------------------------------- classes


@pytest.mark.parametrize(
    ("operator", "kernel", "said"),
    [
        ("aten::add", NCCL, "which by its name is communication, not elementwise"),
        ("aten::mm", NCCL, "which by its name is communication, not tensor_contraction"),
        ("aten::copy_", GEMM, "which by its name is tensor_contraction, not data_movement"),
        ("triton_poi_fused_mul_1", NCCL, "which by its name is communication, not elementwise"),
        ("triton_poi_fused_mul_1", "triton_poi_fused_add_0", "which is not its own kernel"),
        ("nccl:all_reduce", "triton_poi_fused_add_0", "which by its name is elementwise, not communication"),
    ],
)
def test_a_kernel_of_another_class_than_its_operators(operator: str, kernel: str, said: str, tmp_path: Path) -> None:
    """5.3 of 10.3 ms, as two swapped ids move them."""
    trace = TraceBuilder()
    run(trace, "aten::add", 1000, MAP, 4700, 1)
    run(trace, operator, 6000, kernel, 5300, 2)
    anatomy = trace.analyze(tmp_path)
    one = only(anatomy, "classes of kernels")
    assert (one.operator, one.ours, one.time_ns) == (operator, 5_300 * US, 5_300 * US)
    sentence = f"The operator class of {operator.removeprefix('aten::')} in {one.phase} may be wrong:"
    name = kernel.partition("(")[0]
    assert first_lines(anatomy).startswith(
        f"{sentence} 5.300 ms of its time is in {name}, {said}; this affects 51.5 % of the trace."
    )


@pytest.mark.parametrize(
    ("operator", "kernel"),
    [
        ("c10d::allreduce_", NCCL),
        ("nccl:all_reduce", NCCL),
        ("record_param_comms", NCCL),
        ("my::fused", NCCL),
        ("aten::mm", "void cublasLt::splitKreduce_kernel<32, 16, int, float>"),
        ("aten::mm", MAP),
        ("aten::sum", MAP),
        ("aten::copy_", MAP),
        ("triton_poi_fused_mul_1", "triton_poi_fused_mul_1"),
        ("triton_poi_fused_mul_1", "triton__0d1d2de"),
        ("triton_poi_fused_mul_1", "triton_poi_fused_mul_1_0d1d2de"),
        ("c10d::allreduce_", MAP),
        ("c10d::allreduce_", "void at::native::(anonymous)::CatArrayBatchedCopy<int>"),
    ],
)
def test_kernels_that_an_operator_may_launch(operator: str, kernel: str, tmp_path: Path) -> None:
    trace = TraceBuilder()
    run(trace, operator, 1000, kernel, 5300, 1)
    assert unexplained(trace.analyze(tmp_path)) == []


# --------------------------------------------------------------------------------------------------------------- order


@pytest.mark.parametrize(("first", "second"), [(3, 4), (3, 11), (0, 19)])
def test_two_swapped_ids_reverse_the_order_of_a_stream(first: int, second: int, tmp_path: Path) -> None:
    trace = in_turn(20)
    one, other = (kernels(trace)[index]["args"] for index in (first, second))
    one["correlation"], other["correlation"] = other["correlation"], one["correlation"]
    said = next(one for quantity, one in unexplained(trace.analyze(tmp_path)) if quantity == "order on streams")
    assert (said.operator, said.ours, said.time_ns) == ("work on stream 7", 2, 80 * US)
    assert said.evidence == "2 device events did not run in launch order"


def test_launches_of_two_threads_at_once_have_no_order(tmp_path: Path) -> None:
    trace = in_turn(6)
    for thread, begin in ((1, 20_030), (2, 20_020)):
        run(trace, "aten::add", 20_000 + thread, MAP, 5, 49 + thread, begin=begin, thread=thread)
    assert unexplained(trace.analyze(tmp_path)) == []


def test_streams_of_several_processes_are_not_told_apart(tmp_path: Path) -> None:
    """Merged traces have a stream 7 for each process: here both run kernels side by side."""
    trace, other = in_turn(4), in_turn(4, begin=4, by=-380)
    for event in other.events:
        event["ts"] -= 0 if event["cat"] == "kernel" else 390
        event["pid"] = 8 if event["cat"] != "kernel" else 0
        event["args"] = {**event["args"], "External id": event["args"].get("External id", 0) + 100}
    trace.events += other.events
    anatomy = trace.analyze(tmp_path)
    assert unexplained(anatomy) == []
    assert "several processes" in str(check_of(anatomy, "order on streams").not_checked)


# -------------------------------------------------------------------------------------------------------------- clocks


@pytest.mark.parametrize(
    ("early_us", "found"), [(0.5, "equal"), (42, "explained"), (99, "explained"), (101, "alarm"), (1000, "alarm")]
)
def test_work_before_its_launch(early_us: float, found: str, tmp_path: Path) -> None:
    """Clocks differ by some tens of microseconds in traces that are right; 1 ms is a stream that was moved."""
    anatomy = in_turn(10, by=-18 - early_us).analyze(tmp_path)
    check = check_of(anatomy, "clocks of host and device")
    assert (check.equal == 10) is (found == "equal")
    assert bool(check.unexplained) is (check in anatomy.alarms) is (found == "alarm")
    assert [(one.operator, one.ours, one.time_ns, one.evidence) for one in check.differences] == [
        (
            "work on stream 7",
            int(early_us * US),
            400 * US,
            f"10 device events started up to {early_us / 1000:.3f} ms before their launch",
        )
    ] * (found != "equal")


@pytest.mark.parametrize(("late_us", "found"), [(-5, 0), (50, 1), (950, 1)])
@pytest.mark.parametrize("call", ["cudaDeviceSynchronize", "hipDeviceSynchronize", "cuCtxSynchronize"])
def test_work_after_a_synchronization_of_the_device(call: str, late_us: int, found: int, tmp_path: Path) -> None:
    """The last kernel ends at 10,960 us, so long after the call returned."""
    trace = in_turn(10)
    trace.launch(10_930, 99, name=call, duration=30 - late_us if late_us < 30 else 1)
    kernels(trace)[-1]["ts"] += (10_931 + late_us) - 10_960 if late_us >= 30 else 0
    check = clocks(trace, tmp_path)
    assert [(one.ours, one.time_ns) for one in check.differences] == [(late_us * US, 40 * US)] * found
    assert bool(check.unexplained) is (late_us > 100)


@pytest.mark.parametrize(("stream", "found"), [(7, 1), (8, 0)])
def test_work_after_a_synchronization_of_its_stream(stream: int, found: int, tmp_path: Path) -> None:
    """`item()` copies and waits for the stream of the copy: what was launched there before is done, elsewhere not. It
    ends at 13,420 us, and the call returned at 10,536."""
    trace = in_turn(4)
    run(trace, "aten::mul", 10_400, MAP, 3000, 50, stream=stream)
    trace.host("aten::_local_scalar_dense", 10_500, 100)
    trace.launch(10_502, 60, name="cudaMemcpyAsync")
    trace.launch(10_506, 61, name="cudaStreamSynchronize", duration=30)
    trace.kernel(COPY, 10_520, 2, 60, category="gpu_memcpy")
    assert [one.ours for one in clocks(trace, tmp_path).unexplained] == [2_884 * US] * found


@pytest.mark.parametrize(("api", "found"), [("cudaMemcpy", 1), ("hipMemcpyWithStream", 1), ("cudaMemcpyAsync", 0)])
def test_a_blocking_copy_is_done_when_it_returns(api: str, found: int, tmp_path: Path) -> None:
    trace = in_turn(4)
    run(trace, "aten::copy_", 10_500, COPY, 900, 50, api=api, category="gpu_memcpy")
    assert [one.ours for one in clocks(trace, tmp_path).unexplained] == [916 * US] * found  # from 10,504 to 11,420 us


@pytest.mark.parametrize(("by", "waits", "found"), [(0, False, 0), (1000, False, 1), (1000, True, 0), (400, False, 0)])
def test_a_stream_that_begins_late_with_nothing_to_wait_for(by: float, waits: bool, found: int, tmp_path: Path) -> None:
    """Each of ten launches finds the stream idle; what waits for an event may begin at any time."""
    trace = in_turn(10, by=by, every=2000)
    for index in range(10):
        trace.launch(9_990 + 2000 * index, 0, name="cudaStreamWaitEvent" if waits else "cudaEventQuery")
    assert [
        (quantity, one.operator, one.ours, one.time_ns) for quantity, one in unexplained(trace.analyze(tmp_path))
    ] == [("clocks of host and device", "work on stream 7", 1_016 * US, 400 * US)] * found


@pytest.mark.parametrize("by", [0, 1000, -1000])
def test_streams_that_wait_for_each_other_are_moved_apart(by: float, tmp_path: Path) -> None:
    """Eight times compute of 3 ms and communication of 2 ms take turns, all launched long before."""
    trace = TraceBuilder()
    for index in range(8):
        host, device = 1000 + 100 * index, 50_000 + 5000 * index
        trace.launch(host - 4, 0, name="cudaStreamWaitEvent")
        run(trace, "aten::mm", host, GEMM, 2990, 2 * index + 1, begin=device)
        trace.launch(host + 46, 0, name="cudaStreamWaitEvent")
        run(trace, "nccl:all_reduce", host + 50, NCCL, 1990, 2 * index + 2, begin=device + 3000 + by, stream=20)
    anatomy = trace.analyze(tmp_path)
    if not by:
        assert unexplained(anatomy) == []
        return
    check = check_of(anatomy, "clocks of host and device")
    assert check in anatomy.alarms
    [one] = check.unexplained
    assert abs((one.ours or 0) - MS) <= 40 * US
    assert one.time_ns == 8 * (2_990 + 1_990) * US


# ----------------------------------------------------------------------------------------------------- launches, events


@pytest.mark.parametrize(("count", "alarm"), [(60, True), (160, False)])
def test_launches_without_work(count: int, alarm: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of 60, or of 160: like the others it would take 40 us. Below 1 % it is in the ledger alone."""
    trace = in_turn(count)
    trace.events.remove(kernels(trace)[5])
    anatomy = trace.analyze(tmp_path)
    one = only(anatomy, "device work of launches")
    assert (one.operator, one.phase, one.ours, one.other, one.time_ns) == ("aten::add", Phase.FORWARD, 0, 1, 40 * US)
    assert bool(anatomy.alarms) is alarm
    sentence = "The time of add in forward may be wrong: the trace lacks the device work of 1 launch, about 0.040 ms;"
    assert first_lines(anatomy).startswith(sentence) is alarm
    assert f"below 1 % {sentence}" in " ".join(terminal_report(anatomy).split()) or alarm
    assert main(["analyze", str(tmp_path / "trace.json"), "--check", "--brief"]) == (3 if alarm else 0)
    out, err = capsys.readouterr()
    assert ("may be wrong" in out) is alarm
    assert (
        alarm
        or "check: 1 number that affects less than 1 % of the work is not confirmed - for details, use --section ledger"
        in err
    )


def test_a_graph_whose_work_was_not_recorded_is_said_first(tmp_path: Path) -> None:
    """How long it ran, nothing says: it may be all of the step."""
    trace = in_turn(200)
    trace.launch(15_050, 900, name="cudaGraphLaunch")
    anatomy = trace.analyze(tmp_path)
    one = only(anatomy, "device work of launches")
    assert (one.other, one.time_ns) == (1, None)
    assert first_lines(anatomy).startswith(
        "The time of cudaGraphLaunch may be wrong: the trace lacks the device work of 1 graph launch. "
    )


@pytest.mark.parametrize(
    ("late_us", "waits", "cause"),
    [
        (220, None, "the trace ends before the device work of these launches does"),
        (220, -2, "the trace ends before the device work of these launches does"),
        (220, 2, None),
        (0, None, None),
    ],
)
def test_launches_at_the_end_are_cut_off(
    late_us: float, waits: float | None, cause: str | None, tmp_path: Path
) -> None:
    """The device is late, until the end of the trace, and the host has not waited for it after the first of them."""
    trace = in_turn(20, by=late_us)
    lost = kernels(trace)[-3:]
    trace.events = [event for event in trace.events if event not in lost]
    if waits is not None:
        trace.launch(11_704 + waits, 99, name="cudaDeviceSynchronize", duration=200)
    anatomy = trace.analyze(tmp_path)
    assert [one.cause for _, one in unexplained(anatomy)] == [None] * (cause is None)
    [one] = check_of(anatomy, "device work of launches").differences
    assert (one.other, one.cause) == (3, cause)


@pytest.mark.parametrize(
    ("api", "category", "found"),
    [
        ("cudaMemcpyAsync", "kernel", 1),
        ("cudaLaunchKernel", "gpu_memcpy", 1),
        ("cuLaunchKernel", "gpu_memset", 1),
        ("cudaMemcpyAsync", "gpu_memcpy", 0),
        ("hipMemcpyAsync", "kernel", 0),
        ("hipMemsetAsync", "kernel", 0),
    ],
)
def test_work_of_another_kind_than_its_launch_starts(api: str, category: str, found: int, tmp_path: Path) -> None:
    trace = in_turn(4)
    run(trace, "my::operator", 10_500, "something", 40, 50, api=api, category=category)
    assert [one.operator for _, one in unexplained(trace.analyze(tmp_path))] == [api] * found


def test_a_kernel_that_is_there_twice(tmp_path: Path) -> None:
    trace = in_turn(10)
    trace.events.append(deepcopy(kernels(trace)[3]))
    one = only(trace.analyze(tmp_path), "device events")
    assert (one.operator, one.ours, one.time_ns) == ("work on stream 7", 1, 40 * US)
    assert one.evidence == "1 device event recorded more than once"


@pytest.mark.parametrize(
    ("overlap", "api", "found"),
    [
        (2, "cudaLaunchKernel", 0),
        (30, "cudaLaunchKernel", 1),
        (30, "cudaLaunchKernelExC", 0),
        (30, "hipLaunchKernel", 0),
    ],
)
def test_a_stream_runs_one_kernel_at_a_time(overlap: float, api: str, found: int, tmp_path: Path) -> None:
    """But for those that were launched to begin before the one before them ends."""
    trace = in_turn(10)
    run(trace, "aten::add", 10_950, MAP, 40, 50, begin=10_960 - overlap, api=api)
    assert [quantity for quantity, _ in unexplained(trace.analyze(tmp_path))] == ["device events"] * found


def test_causes_are_in_the_ledger_that_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(in_turn(10, by=-60).write(tmp_path / "trace.json"))
    for options, shown in (((), False), (("--section", "ledger"), True)):
        assert main(["analyze", path, "--check", *options]) == 0
        out = capsys.readouterr().out
        assert ("explained" in out) is shown
        assert "confirmed" in out
