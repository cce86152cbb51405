"""Whose time a trace shows: accelerators that no rule knows, a CPU beside a GPU, merged ranks, empty and old traces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import opanatomy
from opanatomy.__main__ import main
from opanatomy.errors import TraceError
from tests.support.made_trace import GEMM, H100, MATRICES, NCCL, TraceBuilder, on_gpu, page

# --------------------------------------------------------------------------------------- rows that no rule reads


def process(pid: int | str, name: str, kind: str = "process_name") -> dict[str, Any]:
    key = "name" if kind == "process_name" else "labels"
    return {"ph": "M", "name": kind, "pid": pid, "tid": 0, "args": {key: name}}


def written(folder: Path, document: object) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps(document))
    return path


def ascend() -> list[dict[str, Any]]:
    """What torch_npu writes: a list, times as text, and only the operators of torch with a category."""
    events = [process(100, "Python"), process(200, "CANN"), process(300, "Ascend Hardware")]

    def event(name: str, pid: int, start: float, duration: float, args: dict[str, Any], **more: str) -> None:
        begin = f"{1704161511420306 + start:.3f}"
        events.append(
            {"ph": "X", "name": name, "pid": pid, "tid": 1, "ts": begin, "dur": duration, "args": args, **more}
        )

    for step in range(2):
        event(f"ProfilerStep#{step}", 100, 1000 * step, 1000, {}, cat="cpu_op")
        for call in range(3):
            start = 1000 * step + 100 * call
            event("aten::mm", 100, start, 40, {"Input Dims": "8,4;4,2", "Input type": "float;float"}, cat="cpu_op")
            event("Enqueue@aclnnMatmul", 100, start + 10, 3, {"correlation_id": call}, cat="enqueue")
            event("Node@launch", 200, start + 20, 8, {"connection_id": call})
            task = {"Model Id": 4294967295, "Task Type": "AI_CORE", "Physic Stream Id": 2, "connection_id": call}
            event("aclnnMatmul_MatMulV2_MatMulV2", 300, start + 60, 90, task)
        event("aten::item", 100, 1000 * step + 400, 500, {}, cat="cpu_op")
        event("AscendCL@aclrtSynchronizeStream", 200, 1000 * step + 410, 480, {})
    return events


def rows_of(
    category: str | None, pid: int | str, *named: dict[str, Any], **args: Any
) -> Callable[[], dict[str, list[dict[str, Any]]]]:
    """A step of 4 operators, and 4 rows of 60 us with this category in this process."""

    def document() -> dict[str, list[dict[str, Any]]]:
        trace = TraceBuilder()
        trace.step(0, 1000)
        for call in range(4):
            trace.host("aten::mm", 10 + 100 * call, 50)
            row = {"ph": "X", "name": "gemm", "pid": pid, "tid": 3, "ts": 40 + 100 * call, "dur": 60, "args": args}
            trace.events.append(row if category is None else {**row, "cat": category})
        return {"traceEvents": [*trace.events, *named]}

    return document


def legacy(*, on_cuda: bool, prefix: str = "aten::") -> list[dict[str, Any]]:
    """What `torch.autograd.profiler.profile().export_chrome_trace()` writes."""
    events: list[dict[str, Any]] = []
    for number in range(4):
        at: dict[str, Any] = {"name": f"{prefix}mm", "ts": 100 * number, "tid": 0, "args": {}}
        events.append({**at, "ph": "X", "dur": 50, "pid": "CPU functions"})
        if on_cuda:
            flow = {**at, "id": number, "cat": "cpu_to_cuda"}
            events.append({**flow, "ph": "s", "pid": "CPU functions"})
            events.append({**flow, "ph": "f", "pid": "CUDA functions"})
            events.append({**at, "ph": "X", "dur": 60, "pid": "CUDA functions"})
    return events


@pytest.mark.parametrize(
    ("document", "rows", "host_us"),
    [
        (ascend, "Ascend Hardware (6 events, 0.540 ms)", 240),
        (
            rows_of("xpu_kernel", 0, process(0, "python"), process(0, "XPU 0", "process_labels")),
            "XPU 0 (4 events, 0.240 ms)",
            200,
        ),
        (rows_of("mtia_kernel", 7), "mtia_kernel (4 events, 0.240 ms)", 200),
        (rows_of(None, 1, process(1, "Gaudi")), "Gaudi (4 events, 0.240 ms)", 200),
        (rows_of(None, "MPS"), "MPS (4 events, 0.240 ms)", 200),
        (rows_of("foo", 1, process(1, "FooChip")), "FooChip (4 events, 0.240 ms)", 200),
        (lambda: legacy(on_cuda=True), "CUDA functions (4 events, 0.240 ms)", 200),
    ],
)
def test_nothing_is_claimed_of_a_device_whose_rows_no_rule_reads(
    document: Callable[[], object], rows: str, host_us: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, document())
    anatomy = opanatomy.analyze(path)
    said = (
        f"device events of {rows} are not supported: no number here covers that device. All times are host times of"
        " launching and waiting"
    )
    assert anatomy.caveats == (said,)
    assert anatomy.environment.host_only
    assert sum(row.time_ns for row in anatomy.classes) == host_us * 1000
    assert (anatomy.device.mfu, anatomy.step.busy_ns, anatomy.step.kernel_time_ns, anatomy.advice) == (None,) * 3 + (
        (),
    )
    timeline = anatomy.timeline
    assert (timeline.busy_ns, timeline.idle_ns, timeline.unrecorded_ns) == (0, 0, timeline.window_ns)
    text = page(anatomy)
    assert main(["analyze", str(path), "-f", "digest"]) == 0
    digest = capsys.readouterr().out
    assert f"{rows.split(' (')[0]}, but its events are not supported: host times only" in text
    assert f"before you read on: {said.partition(':')[0]}" in digest
    for claim in ("no GPU used", "device busy", "device idle", "device work"):
        assert claim not in text.partition(" ledger ")[0]
        assert claim not in digest
    for gate in ("idle_share > 40%", "busy_ns > 0", "kernel_time_ns > 0", "mfu < 90%"):
        assert main(["analyze", str(path), "--brief", "--peak", "1e12", "--bandwidth", "1e12", "--fail-if", gate]) == 3
        assert "cannot be checked" in capsys.readouterr().err


def test_rows_beside_known_device_work_are_said_and_change_nothing_else(tmp_path: Path) -> None:
    trace = on_gpu()
    trace.step(0, 1000)
    trace.host("aten::mm", 10, 50)
    trace.run(GEMM, 20, 30, 100)
    known = trace.analyze(tmp_path)
    trace.events += [*rows_of("dpu_event", 9)()["traceEvents"][2::2], process(8, "opanatomy")]
    both = trace.analyze(tmp_path)
    assert both.caveats == (
        "device events of dpu_event (4 events, 0.240 ms) are not supported: no number here covers that device.",
    )
    assert (both.classes, both.timeline.busy_ns) == (known.classes, known.timeline.busy_ns)


def test_lists_of_the_old_profiler_are_read(tmp_path: Path) -> None:
    """Before torch 1.7 operators had no namespace."""
    for prefix in ("aten::", ""):
        anatomy = opanatomy.analyze(written(tmp_path, legacy(on_cuda=False, prefix=prefix)))
        ((operator, kind),) = {(row.operator, row.operator_class) for row in anatomy.operators}
        assert (operator, kind) == (f"{prefix}mm", "tensor_contraction")
        assert (sum(row.time_ns for row in anatomy.classes), anatomy.caveats) == (200_000, ())
        assert "CPU; no GPU used" in page(anatomy)


# -------------------------------------------------------------------------------- the CPU of a machine with a GPU


def on_cpu(*operators: str) -> TraceBuilder:
    """A step on the CPU, recorded on a machine with an H100."""
    trace = on_gpu()
    trace.step(0, 1000)
    for number, operator in enumerate(operators):
        trace.host(operator, 10 + 100 * number, 80 - number, **MATRICES)
    return trace


@pytest.mark.parametrize(
    ("operators", "said"),
    [
        (
            ("aten::mm", "aten::mkldnn_convolution"),
            "the machine's GPU (NVIDIA H100 80GB HBM3) was not used: nothing was launched on it, and mkldnn_convolution"
            ' runs only on the CPU - move model and batch to the GPU (.to("cuda"))',
        ),
        (
            ("aten::_scaled_dot_product_flash_attention_for_cpu", "aten::mkldnn_linear"),
            "the machine's GPU (NVIDIA H100 80GB HBM3) was not used: nothing was launched on it, and"
            " _scaled_dot_product_flash_attention_for_cpu runs only on the CPU"
            ' - move model and batch to the GPU (.to("cuda"))',
        ),
        (
            ("aten::mm",),
            "nothing was launched on the machine's GPU (NVIDIA H100 80GB HBM3): all times are CPU times - move"
            ' model and batch to it (.to("cuda")); if they already are there, record GPU activities too'
            " (ProfilerActivity.CUDA)",
        ),
    ],
)
@pytest.mark.parametrize("call", [None, "cudaGetDeviceCount", "cudaDeviceSynchronize"])
def test_a_cpu_beside_a_gpu_is_a_cpu(operators: tuple[str, ...], said: str, call: str | None, tmp_path: Path) -> None:
    """The profiler's own calls, around operators, show no use of the GPU."""
    trace = on_cpu(*operators)
    if call is not None:
        trace.launch(950, 1, name=call)
    anatomy = trace.analyze(tmp_path)
    del trace.metadata["deviceProperties"]
    alone = trace.analyze(tmp_path)
    assert (anatomy.caveats, alone.caveats) == ((said,), ())
    assert anatomy.environment == alone.environment
    assert (anatomy.classes, anatomy.step, anatomy.advice) == (alone.classes, alone.step, alone.advice)
    assert "CPU; no GPU used" in page(anatomy)


def test_a_file_cut_off_before_the_events_of_its_gpu_is_not_of_the_cpu(tmp_path: Path) -> None:
    """The profiler writes those last: nobody is told to move the model to a GPU that it ran on."""
    trace = on_cpu("aten::mm", "aten::mkldnn_convolution")
    trace.host("aten::relu", 300, 20)
    text = trace.text()
    (tmp_path / "cut.json").write_text(text[: text.index("aten::relu")])
    anatomy = opanatomy.analyze(tmp_path / "cut.json")
    assert anatomy.environment.host_only
    cut, said = anatomy.caveats
    assert said.startswith("only the host was recorded: the trace names a GPU but has no GPU events.")
    assert said.endswith("- use the complete file")
    assert cut.startswith("the file is truncated inside an event")
    assert not anatomy.advice


def test_a_file_cut_off_before_the_work_of_its_launches_is_to_be_whole(tmp_path: Path) -> None:
    """No other recording is asked for: the profiler recorded what this file lacks."""
    trace = on_cpu("aten::mm")
    trace.launch(20, 1)
    trace.host("aten::relu", 300, 20)
    text = trace.text()
    (tmp_path / "cut.json").write_text(text[: text.index("aten::relu")])
    (said,) = [line for line in opanatomy.analyze(tmp_path / "cut.json").caveats if "launch" in line]
    assert said.startswith("no device work was recorded, only 1 launch: ")
    assert said.endswith("- use the complete file")


@pytest.mark.parametrize(("name", "start"), [("cudaStreamSynchronize", 20), ("aten::record_stream", 300)])
def test_a_gpu_that_took_part_is_not_the_cpu(name: str, start: float, tmp_path: Path) -> None:
    trace = on_cpu("aten::item")
    if name.startswith("aten::"):
        trace.host(name, start, 5)
    else:
        trace.launch(start, 1, name=name)
    anatomy = trace.analyze(tmp_path)
    assert anatomy.environment.host_only
    verb = "has" if name.startswith("aten::") else "contains"
    assert anatomy.caveats[0].startswith(f"only the host was recorded: the trace {verb} {name}")


def test_operators_faster_than_any_cpu_only_launched(tmp_path: Path) -> None:
    """2 * 8192 ** 3 FLOPs in 80 us are 13,744 TFLOP/s."""
    trace = on_gpu()
    trace.step(0, 1000)
    trace.host("aten::mm", 10, 80, shapes=[[8192, 8192], [8192, 8192]], types=["float", "float"])
    (caveat,) = trace.analyze(tmp_path).caveats
    assert caveat.startswith(
        "only the host was recorded: the trace has operators at 13,744 TFLOP/s, faster than any CPU,"
    )


# ------------------------------------------------------------------------------------------------------- empty traces


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"schemaVersion": 1, "deviceProperties": [H100], "traceEvents": []}, "no operator and no device work"),
        ({"traceEvents": [process(1, "python")]}, "no operator and no device work"),
        (
            [
                {
                    "ph": "X",
                    "cat": "cuda_runtime",
                    "name": "cudaDeviceSynchronize",
                    "pid": 1,
                    "tid": 1,
                    "ts": 5,
                    "dur": 3,
                }
            ],
            "no operator and no device work",
        ),
        ([{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 5}], "no operator that took time"),
        ([event for event in ascend() if event["pid"] == 300], "not read: Ascend Hardware (6 events, 0.540 ms)"),
    ],
)
def test_an_empty_trace_is_one_line(document: object, words: str, tmp_path: Path) -> None:
    path = written(tmp_path, document)
    with pytest.raises(TraceError, match=r"^\S+trace.json has no operator") as caught:
        opanatomy.analyze(path)
    assert words in str(caught.value)


# ------------------------------------------------------------------------------------------------------- merged ranks

RANKS = 4


def of_rank(rank: int) -> TraceBuilder:
    """Rank `rank` of 4: host process 500, device 0, correlation ids as on every rank; it waits `rank` times 10 us."""
    trace = on_gpu()
    trace.metadata["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": RANKS}
    for step in range(2):
        start = 1000 * step
        trace.annotation(f"ProfilerStep#{step}", start + rank, 900)
        trace.host("aten::mm", start + 10, 40, **MATRICES)
        trace.run(GEMM, start + 20, start + 60, 100 + 10 * rank)
        trace.host("nccl:all_reduce", start + 200, 40)
        trace.run(NCCL, start + 210, start + 260, 200)
    for event in trace.events:
        event["pid"] = 500 if event["cat"] not in ("kernel", "gpu_memcpy") else 0
    return trace


def changed(change: Callable[[dict[str, Any], int], Iterator[tuple[str, Any]]]) -> list[list[dict[str, Any]]]:
    """The events of each rank, with changed fields."""
    return [[{**event, **dict(change(event, rank))} for event in of_rank(rank).events] for rank in range(RANKS)]


def by_label(event: dict[str, Any], rank: int) -> Iterator[tuple[str, Any]]:
    """SGLang's merger: a label before the process."""
    yield "pid", f"[TP{rank:02d}] {event['pid']}"


def by_argument(event: dict[str, Any], rank: int) -> Iterator[tuple[str, Any]]:
    """TraceLens' merger: processes and correlation ids far apart, and the rank as an argument."""
    yield "pid", event["pid"] + 10_000 * rank
    yield "args", {**event["args"], "rank": rank, "correlation": event["args"].get("correlation", -1) + 10_000 * rank}


def by_process(event: dict[str, Any], rank: int) -> Iterator[tuple[str, Any]]:
    """One process for all of a rank."""
    yield "pid", rank + 1


def by_number(event: dict[str, Any], rank: int) -> Iterator[tuple[str, Any]]:
    """Processes far apart, nothing else."""
    yield "pid", event["pid"] + 1000 * rank


def by_correlation(event: dict[str, Any], rank: int) -> Iterator[tuple[str, Any]]:
    yield from by_number(event, rank)
    if "correlation" in event["args"]:
        yield "args", {**event["args"], "correlation": event["args"]["correlation"] + 1000 * rank}


def figures(anatomy: opanatomy.Anatomy) -> tuple[Any, ...]:
    """What must be the same as of the ranks' own traces."""
    ranks = [(rank.rank, rank.busy_ns, rank.wall_ns, rank.kernel_time_ns) for rank in anatomy.ranks]
    return anatomy.classes, anatomy.step.wall_ns, anatomy.timeline.busy_ns, anatomy.timeline.idle_ns, ranks


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("change", "in_order"),
    [
        (by_label, True),
        (by_argument, True),
        (by_process, True),
        (by_number, True),
        (by_label, False),
        (by_argument, False),
        (by_process, False),
        (by_correlation, False),
    ],
)
def test_merged_ranks_are_taken_apart(
    change: Callable[[dict[str, Any], int], Iterator[tuple[str, Any]]], in_order: bool, ranks: int, tmp_path: Path
) -> None:
    events = [event for rank in changed(change)[:ranks] for event in rank]
    if not in_order:
        events.sort(key=lambda event: event["ts"])
    anatomy = opanatomy.analyze(written(tmp_path, {"deviceProperties": [H100] * ranks, "traceEvents": events}))
    own = tmp_path / "own"
    own.mkdir()
    for rank in range(ranks):
        of_rank(rank).write(own / f"rank{rank}.json")
    assert figures(anatomy) == figures(opanatomy.analyze(own))
    assert anatomy.provenance.trace == f"{ranks} ranks: trace.json"
    assert any(line.startswith(f"this file merges {ranks} ranks") for line in anatomy.warnings)
    assert not any("merged" in caveat for caveat in anatomy.caveats)


def test_a_host_without_an_id_is_a_process_among_others(tmp_path: Path) -> None:
    events = [event for rank in changed(by_correlation)[:2] for event in rank]
    events = [{**event, "pid": None if event["pid"] == 1500 else event["pid"]} for event in events]
    events.sort(key=lambda event: event["ts"])
    anatomy = opanatomy.analyze(written(tmp_path, {"traceEvents": events}))
    assert [rank.kernel_time_ns for rank in anatomy.ranks] == [600_000, 620_000]


def test_device_rows_of_ranks_without_their_hosts(tmp_path: Path) -> None:
    """Each rank calls its device 0; in several processes of one host that is no sign of another rank."""
    kernels = [event for rank in changed(by_number)[:2] for event in rank if event["cat"] == "kernel"]
    assert len(opanatomy.analyze(written(tmp_path, {"traceEvents": kernels})).ranks) == 2
    kernels += [event for event in of_rank(0).events if event["cat"] != "kernel"]
    anatomy = opanatomy.analyze(written(tmp_path, {"traceEvents": kernels}))
    assert (len(anatomy.ranks), any("merged" in caveat for caveat in anatomy.caveats)) == (0, False)


def test_merged_ranks_that_nothing_tells_apart_are_said_first(tmp_path: Path) -> None:
    """In the order of time, with the correlation ids of all ranks the same: a kernel may be anybody's."""
    events = sorted((event for rank in changed(by_number) for event in rank), key=lambda event: event["ts"])
    anatomy = opanatomy.analyze(written(tmp_path, {"traceEvents": events}))
    assert anatomy.caveats[0].startswith("4 ranks are merged in this file: every sum covers all of them")


@pytest.mark.parametrize("same", ["device", "host", "both"])
def test_merged_ranks_that_share_a_process_id_are_said_first(same: str, tmp_path: Path) -> None:
    """One after the other: as in containers, or on a device each that all call 0."""
    events = [event for rank in changed(by_number)[:2] for event in rank]
    for event in events:
        if same == "both" or (event["cat"] == "kernel") is (same == "device"):
            event["pid"] = 0 if event["cat"] == "kernel" else 500
    anatomy = opanatomy.analyze(written(tmp_path, {"traceEvents": events}))
    assert len(anatomy.ranks) == 0
    assert anatomy.caveats[0].startswith("2 ranks are merged in this file: every sum covers all of them")


def test_ranks_on_the_cpu_are_taken_apart_and_one_rank_is_left_alone(tmp_path: Path) -> None:
    events = [
        event for rank in changed(by_number)[:2] for event in rank if event["cat"] in ("cpu_op", "user_annotation")
    ]
    anatomy = opanatomy.analyze(written(tmp_path, {"traceEvents": events}))
    assert [rank.rank for rank in anatomy.ranks] == [0, 1]
    alone = of_rank(0).analyze(tmp_path)
    assert (alone.caveats, len(alone.ranks)) == ((), 1)
