"""Advice: each rule on a trace made for it, with the milliseconds worked out by hand, and one on which it is silent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import opanatomy
from opanatomy.__main__ import main
from opanatomy.analysis.advice import RULES, ordered, with_advice
from opanatomy.records.anatomy import Advice, Anatomy
from opanatomy.records.communication import Straggler
from opanatomy.records.run import CompilerEvent, RunClock, SlowStep
from opanatomy.records.workload import TextFigures
from tests.support.made_reports import of_ranks
from tests.support.made_snapshot import (
    BACKWARD,
    BESIDE,
    MIB,
    WITH_SHARED,
    SnapshotBuilder,
    a_step,
    forward_stack,
    frame,
)
from tests.support.made_trace import GEMM, MAP, NCCL, US, TraceBuilder, on_gpu
from tests.support.paths import ROOT

PAGEABLE, PINNED = "Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pinned -> Device)"
#: An element-wise call on 256 x 1024 float32 numbers, and its bytes read and written.
VECTOR: dict[str, Any] = {"shapes": [[256, 1024]], "types": ["float"]}
BYTES = 256 * 1024 * 4
BANDWIDTH = 3.35e12


def advised(trace: TraceBuilder, folder: Path) -> dict[str, Advice]:
    """The advice of a trace by its id, of several the largest, as the rules bound it: without its replay."""
    found: dict[str, Advice] = {}
    for advice in with_advice(replace(trace.analyze(folder), advice=())).advice:
        found.setdefault(advice.id, advice)
    return found


def busy(trace: TraceBuilder, start: float, duration: float, launch: float, name: str = MAP, **options: Any) -> None:
    """Work on the device."""
    trace.run(name, launch, start, duration, **options)


def full_step(trace: TraceBuilder, until: float = 1000) -> TraceBuilder:
    """A step from 0 in which the device works from 5 on, launched by one operator at the beginning."""
    trace.step(0, until)
    trace.host("aten::relu", 1, 3)
    busy(trace, 5, until - 5, 2)
    return trace


def launch_bound() -> TraceBuilder:
    """Ten operators of 80 us with a kernel of 5 us each, and 20 us between them."""
    trace = on_gpu()
    trace.step(0, 1000)
    for index in range(10):
        trace.host("aten::add", 100 * index, 80, **VECTOR)
        busy(trace, 100 * index + 75, 5, 100 * index + 70)
    return trace


def waiting_for(
    name: str, category: str = "user_annotation", until: float = 6_000, copy: str | None = None
) -> TraceBuilder:
    """A range on the host from 1,000 us to `until`, before the second of two kernels, or a copy, of a step of 10 ms."""
    trace = on_gpu()
    trace.step(0, 10_000)
    trace.host("aten::relu", 0, 20)
    busy(trace, 10, 990, 5)
    if category == "cuda_runtime":
        trace.launch(1_000, 99, name=name, duration=until - 1_000)
    else:
        trace.host(name, 1_000, until - 1_000, category=category)
    trace.host("aten::relu" if copy is None else "aten::copy_", until, 20)
    busy(trace, until + 10, 9_990 - until, until + 5, copy or MAP, category="gpu_memcpy" if copy else "kernel")
    return trace


def test_few_kernels_launched_one_by_one(tmp_path: Path) -> None:
    """The device works 50 of 1,000 us: 950 are the host's, 95 for each of ten launches."""
    advice = advised(launch_bound(), tmp_path)["launches"]
    assert advice.gain_ns == (1000 - 50) * US
    assert advice.figures["calls"].value == 10
    assert advice.figures["each"].value == 95 * US
    assert "CUDA graphs" in advice.tries[0]


def test_a_full_queue_is_not_launch_bound(tmp_path: Path) -> None:
    assert "launches" not in advised(full_step(on_gpu()), tmp_path)


@pytest.mark.parametrize(
    ("trace", "id", "tries"),
    [
        (lambda: waiting_for("DataLoader#_SingleProcessDataLoaderIter.__next__"), "input", "num_workers"),
        (lambda: waiting_for("cudaMalloc", "cuda_runtime"), "allocator", "expandable_segments"),
        (lambda: waiting_for("cudaModuleLoadData", "cuda_runtime"), "cold_start", "warmup"),
        (lambda: waiting_for("backend_compile (dynamo_timed)"), "compilation", "recompiles"),
    ],
    ids=["input", "allocator", "cold start", "compilation"],
)
def test_a_gap_has_the_advice_of_its_cause(
    trace: Callable[[], TraceBuilder], id: str, tries: str, tmp_path: Path
) -> None:
    """The range ends the gap from 1,000 to 6,000 us; without it nothing of the kind is advised."""
    advice = advised(trace(), tmp_path)[id]
    assert (advice.gain_ns, advice.step_ns) == (5_000 * US, 10_000 * US)
    assert any(tries in text for text in advice.tries)
    other = advised(waiting_for("aten::mul", "cpu_op"), tmp_path)
    assert id not in other
    assert other["gap"].gain_ns == 5_010 * US  # with the launching operator, until its kernel begins


def test_a_wait_for_a_copy_of_the_batch_is_no_matter_of_workers(tmp_path: Path) -> None:
    """Only copies that are pageable can be pinned."""
    for copy, first in ((PAGEABLE, "Pin the batch"), (PINNED, "Copy the next batch on a separate stream")):
        advice = advised(waiting_for("## copy_batch_to_gpu ##", copy=copy), tmp_path)["input"]
        assert advice.gain_ns == 5_000 * US
        assert advice.tries[0].startswith(first)


@pytest.mark.parametrize(
    ("maker", "copy", "first"),
    [
        ("aten::normal_", PAGEABLE, 'Create the tensor on the device: pass device="cuda"'),
        ("aten::normal_", None, "Reduce the host work at this point"),
        ("aten::mm", PAGEABLE, "Reduce the host work at this point"),
    ],
)
def test_a_long_gap_is_named(maker: str, copy: str | None, first: str, tmp_path: Path) -> None:
    """One of 5,010 us, of which 5 are in the operator that launches; it is no matter of launching."""
    found = advised(waiting_for(maker, "cpu_op", copy=copy), tmp_path)
    advice = found["gap"]
    assert (advice.subject, advice.figures["each"].value) == (maker, 5_010 * US)
    assert advice.tries[0].startswith(first)
    assert "launches" not in found
    assert "gap" not in advised(launch_bound(), tmp_path)


def test_a_launch_bound_step_that_also_pauses(tmp_path: Path) -> None:
    """Each idle nanosecond is promised once: 950 us of short gaps to launches, 3,000 us to the pause between."""
    trace = launch_bound()
    trace.step(1_000, 4_000, 2)
    trace.host("aten::add", 1_000, 80, **VECTOR)
    busy(trace, 1_075, 5, 1_070)
    trace.host("my loop", 1_080, 3_000, category="user_annotation")
    trace.host("aten::add", 4_080, 80, **VECTOR)
    busy(trace, 4_100, 900, 4_090)
    anatomy = trace.analyze(tmp_path)
    gaps = [advice for advice in anatomy.advice if advice.id == "gap"]
    assert sum(advice.gain_ns or 0 for advice in anatomy.advice) <= (gaps[0].step_ns or 0)


def test_gaps_of_one_kind_are_one_piece_of_advice(tmp_path: Path) -> None:
    """2,000 and 1,490 us behind copies to the host in which nothing is recorded, in a trace without steps."""
    trace = on_gpu()
    for index, pause in enumerate((2_000, 1_490)):
        begin = 5_000 * index
        trace.host("aten::copy_", begin, 20)
        busy(trace, begin + 10, 90, begin + 5, "Memcpy DtoH (Device -> Pageable)", category="gpu_memcpy")
        trace.launch(begin + 11, 900 + index, name="cudaStreamSynchronize", duration=90)
        trace.host("aten::relu", begin + pause, 20)
        busy(trace, begin + 100 + pause, 4_900 - pause, begin + pause + 10)
    advice = advised(trace, tmp_path)["gap"]
    assert advice.subject == "at::native::vectorized_elementwise_kernel"
    assert advice.figures["all"].value == (2_000 + 1_490) * US
    assert advice.figures["gaps"].value == 2
    assert "after copies to the host; the trace shows no host event in that time" in advice.why
    assert " a step" not in advice.why
    assert advice.tries[0].startswith("Process the results on the device")
    one = advised(waiting_for("aten::mul", "cpu_op"), tmp_path)["gap"]
    assert "once a step, while the host is in {name}" in one.why
    assert "behind" not in one.why


def test_a_gap_is_named_by_a_recorded_python_function(tmp_path: Path) -> None:
    """The innermost one of the thread that covers half of it, without its folders."""
    trace = waiting_for("nothing", "user_annotation_", until=6_000)
    trace.event("python_function", "/home/me/train.py(3): main", 0, 9_000, {})
    trace.event("python_function", "/home/me/data.py(9): preprocess", 1_200, 4_700, {})
    trace.event("python_function", "elsewhere.py(1): wait", 2_000, 4_000, {}, thread=77)
    advice = advised(trace, tmp_path)
    assert advice["gap"].subject == "data.py(9): preprocess"
    assert advice["gap"].tries[0].startswith("Prepare the next input while the device is busy")
    assert "profiler" not in advice  # two calls of it


def test_a_tensor_that_is_made_on_the_host_is_not_to_be_pinned(tmp_path: Path) -> None:
    assert "pageable_copies" in advised(copying(PAGEABLE), tmp_path)
    advice = advised(waiting_for("aten::normal_", "cpu_op", copy=PAGEABLE), tmp_path)
    assert "gap" in advice
    assert "pageable_copies" not in advice


def test_frees_in_an_operator_are_those_of_a_full_memory(tmp_path: Path) -> None:
    """The allocator gives its cache back in `cat`; outside of operators it is the program that empties it."""
    for around, cure in ((None, "Remove torch.cuda.empty_cache()"), ("aten::cat", "Device memory fills up")):
        trace = waiting_for("cudaFree", "cuda_runtime")
        if around:
            trace.host(around, 990, 5_005)
        advice = advised(trace, tmp_path)["allocator"]
        assert advice.gain_ns == 5_000 * US
        assert any(each.startswith(cure) for each in advice.tries)
        assert ("in {caller}" in advice.why) == (around is not None)


def test_what_lies_outside_of_the_devices_work(tmp_path: Path) -> None:
    """3,000 us of the host before the first of 1,000 us on the device; in steps it would be in one of them."""
    trace = on_gpu()
    trace.host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 2_900, category="user_annotation")
    trace.host("aten::relu", 2_980, 20)
    busy(trace, 3_000, 1_000, 2_990)
    advice = advised(trace, tmp_path)["outside"]
    assert advice.gain_ns is None
    assert advice.figures["around"].value == 3_000 * US
    assert "DataLoader" in (advice.figures["loader"].text or "")
    trace.step(0, 4_000)
    assert "outside" not in advised(trace, tmp_path)


def loading_on_the_cpu(name: str, spent: int = 4_000) -> TraceBuilder:
    """A step of 10,000 us: `spent` in a range on the host, then operators of 5,000."""
    trace = TraceBuilder()
    trace.step(0, 10_000)
    trace.host(name, 0, spent, category="user_annotation")
    for index in range(5):
        trace.host("aten::relu", 4_500 + 1_000 * index, 1_000, **VECTOR)
    return trace


def test_a_loader_on_the_cpu_is_waited_for(tmp_path: Path) -> None:
    """The 1,000 us left are of the framework, which has its own rule. A batch of 900 us costs as much to send."""
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    advice = advised(loading_on_the_cpu(loader), tmp_path)
    assert (advice["input"].gain_ns, advice["input"].step_ns) == (4_000 * US, 10_000 * US)
    assert "num_workers=4" in advice["input"].tries[0]
    assert advice["framework"].gain_ns == 1_000 * US
    assert "input" not in advised(loading_on_the_cpu(loader, 900), tmp_path)
    assert "input" not in advised(loading_on_the_cpu("my own range"), tmp_path)


def stalled() -> TraceBuilder:
    """Three steps of 1,000 us with work for 900; in the second the host is in cudaFree for 3,000 us more."""
    trace, begin = on_gpu(), 0.0
    for number, pause in enumerate((0, 3000, 0)):
        trace.step(begin, 1000 + pause, number)
        if pause:
            trace.launch(begin + 20, 99, name="cudaFree", duration=pause)
        trace.host("aten::relu", begin + pause + 20, 20)
        busy(trace, begin + pause + 90, 900, begin + pause + 30)
        begin += 1000 + pause
    return trace


def test_steps_that_the_allocator_stalls_count_in_its_advice(tmp_path: Path) -> None:
    """3,000 us of 6,000 in three steps: 1,000 of a mean step of 2,000, though the step of the page is one of 1,000."""
    advice = advised(stalled(), tmp_path)["allocator"]
    assert (advice.gain_ns, advice.step_ns) == (1000 * US, 2000 * US)


def test_a_gap_below_two_percent_of_the_step_is_not_worth_it(tmp_path: Path) -> None:
    assert "allocator" in advised(waiting_for("cudaMalloc", "cuda_runtime", until=1_250), tmp_path)
    assert "allocator" not in advised(waiting_for("cudaMalloc", "cuda_runtime", until=1_180), tmp_path)


def recorded_stack() -> TraceBuilder:
    trace = on_gpu()
    trace.step(0, 1000)
    trace.host("aten::relu", 0, 20)
    busy(trace, 10, 90, 5)
    for index in range(500):
        trace.event("python_function", "loop.py(1): f", 100 + index, 1, {})
    trace.host("aten::relu", 600, 20)
    busy(trace, 610, 390, 605)
    return trace


def test_the_profilers_own_time_is_no_advice_for_the_model(tmp_path: Path) -> None:
    advice = advised(recorded_stack(), tmp_path)
    assert advice["profiler"].gain_ns == 500 * US
    assert advice["profiler"].tries == ("Record without stacks: with_stack=False, with_modules=False.",)
    assert "profiler" not in advised(launch_bound(), tmp_path)
    smaller = Advice(id="launches", gain_ns=25 * US, step_ns=1000 * US, why="")
    assert [each.id for each in ordered((advice["profiler"], smaller))] == ["launches", "profiler"]


def synchronizing(caller: str | None) -> TraceBuilder:
    """The host waits for the first kernel until 300 us, then takes 100 to launch the next."""
    trace = on_gpu()
    trace.step(0, 1000)
    trace.host("aten::relu", 0, 20)
    busy(trace, 10, 290, 5)
    if caller is not None:
        trace.host(caller, 30, 275)
        trace.host("aten::_local_scalar_dense", 31, 273)
    trace.launch(32, 99, name="cudaStreamSynchronize", duration=270)
    trace.host("aten::relu", 380, 30)
    busy(trace, 400, 600, 395)
    return trace


def test_a_value_read_on_the_host_names_its_operator(tmp_path: Path) -> None:
    """Idle in the wait 2 us, then in item 3 and in the launching operator 20; the 75 between them are the program's."""
    advice = advised(synchronizing("aten::item"), tmp_path)["synchronization"]
    assert advice.gain_ns == 25 * US
    assert advice.subject == "aten::item"
    assert ".item()" in advice.tries[0]


def test_a_wait_for_little_work_gains_little(tmp_path: Path) -> None:
    """Of 10 ms the device works 100 us in all: without the wait no more of the host's work is hidden than that."""
    trace = on_gpu()
    trace.step(0, 10_000)
    for begin in (0, 5_000):
        trace.host("aten::relu", begin, 20)
        busy(trace, begin + 10, 50, begin + 5)
        trace.host("aten::item", begin + 30, 900)
        trace.launch(begin + 32, 99, name="cudaStreamSynchronize", duration=280)
    assert "synchronization" not in advised(trace, tmp_path)


def test_the_end_of_a_step_may_wait(tmp_path: Path) -> None:
    assert "synchronization" not in advised(synchronizing(None), tmp_path)


def reducing(start: float, within: str | None = None, kernel: str = NCCL) -> TraceBuilder:
    """A product of 400 us, and an all-reduce of 300 on another stream that begins at `start`, in this range."""
    trace = on_gpu()
    trace.step(0, 1000)
    if within is not None:
        trace.host(within, 0, 900, category="user_annotation")
        trace.host("autograd::engine::evaluate_function: MmBackward0", 1, 18, sequence=5, forward_thread=1)
    trace.host("aten::mm", 2, 16, shapes=[[8, 4], [4, 2]], types=["float", "float"])
    busy(trace, 10, 400, 5, GEMM)
    called = {"AllGather": "c10d::_allgather_base_", "ReduceScatter": "c10d::_reduce_scatter_base_"}
    called["Broadcast"] = "c10d::broadcast_"
    trace.host(next((name for part, name in called.items() if part in kernel), "c10d::allreduce_"), 30, 20)
    busy(trace, start, 300, 35, kernel, stream=9)
    trace.host("aten::relu", 60, 20)
    busy(trace, 710, 290, 65)
    return trace


def test_communication_that_nothing_hides(tmp_path: Path) -> None:
    advice = advised(reducing(410, "DistributedDataParallel.forward"), tmp_path)["communication"]
    assert advice.gain_ns == 300 * US
    assert any("bucket_cap_mb" in text for text in advice.tries)
    alone = advised(reducing(410), tmp_path)["communication"]  # nothing in it says DDP, and it may be a wait
    assert alone.tries == ("Analyze the traces of all ranks, to tell waiting from transfer: opanatomy analyze FOLDER.",)
    assert "communication" not in advised(reducing(100), tmp_path)


@pytest.mark.parametrize(
    ("within", "kernel", "cure"),
    [
        ("FSDP::all_gather (layers.0)", "ncclDevKernel_AllGather_RING_LL", "unshard(async_op=True)"),
        (
            "FSDP::reduce_scatter (layers.0)",
            "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL",
            "fewer, larger FSDP groups",
        ),
        ("my optimizer", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", None),
        ("my gather", "ncclDevKernel_AllGather_RING_LL", None),
    ],
)
def test_cures_of_fsdp_need_its_ranges(within: str, kernel: str, cure: str | None, tmp_path: Path) -> None:
    """One all-gather is all that is exposed: nothing could hide it, and it begins earlier instead."""
    tries = advised(reducing(410, within, kernel), tmp_path)["communication"].tries
    assert (
        any(cure in text for text in tries) if cure else not any("FSDP" in text or "unshard" in text for text in tries)
    )


def test_other_cures_of_collectives_need_their_evidence(tmp_path: Path) -> None:
    """Buffers are DDP's, sequence parallelism is that of tensor parallelism; a mere range says neither."""
    broadcast = "ncclDevKernel_Broadcast_RING_LL"
    for within, kernel, cure in (
        ("DistributedDataParallel.forward", broadcast, "broadcast_buffers=False"),
        ("RowParallelLinear.forward", NCCL, "sequence parallelism"),
    ):
        tries = advised(reducing(410, within, kernel), tmp_path)["communication"].tries
        assert any(cure in text for text in tries)
        others = advised(reducing(410, "my range", kernel), tmp_path)["communication"].tries
        assert not any(cure in text for text in others)


def one_by_one(calls: int) -> TraceBuilder:
    """A backward whose gradients are reduced in calls of 20 us, with 10 us of idle time on either side of each."""
    trace = on_gpu()
    trace.step(0, 50 * calls)
    for index in range(calls):
        begin = 50 * index
        trace.host("autograd::engine::evaluate_function: MmBackward0", begin, 45, sequence=5 + index, forward_thread=1)
        trace.host("aten::mm", begin, 8, shapes=[[8, 4], [4, 2]], types=["float", "float"])
        busy(trace, begin + 2, 8, begin + 1, GEMM)
        trace.host("c10d::allreduce_", begin + 10, 30)
        busy(trace, begin + 20, 20, begin + 18, stream=9, name=NCCL)
    return trace


def test_gradients_that_are_reduced_one_by_one(tmp_path: Path) -> None:
    """30 calls: 600 us exposed, and 590 + 2 us of idle time beside them, which launches are not promised again."""
    advice = advised(one_by_one(30), tmp_path)
    reduced = advice["communication"]
    assert (reduced.figures["gain"].value, reduced.figures["calls"].value) == (600 * US, 30)
    assert reduced.gain_ns == 600 * US + (reduced.figures["idle"].value or 0)
    assert reduced.figures["idle"].value == pytest.approx(30 * 22 * US, rel=0.05)
    assert reduced.tries[0].startswith("Reduce gradients together")
    assert "launches" not in advice
    few = advised(one_by_one(10), tmp_path)["communication"]
    assert "one by one" not in few.why


def copying(name: str) -> TraceBuilder:
    trace = on_gpu()
    trace.step(0, 1000)
    trace.host("aten::copy_", 0, 20)
    busy(trace, 10, 100, 5, name, category="gpu_memcpy", call="cudaMemcpyAsync")
    trace.host("aten::relu", 30, 20)
    busy(trace, 110, 890, 35)
    return trace


def test_copies_from_memory_that_is_not_pinned(tmp_path: Path) -> None:
    advice = advised(copying(PAGEABLE), tmp_path)["pageable_copies"]
    assert advice.gain_ns == 100 * US
    assert "pin_memory=True" in advice.tries[0]
    assert "pageable_copies" not in advised(copying(PINNED), tmp_path)
    back = advised(copying("Memcpy DtoH (Device -> Pageable)"), tmp_path)["pageable_copies"]
    assert (back.gain_ns, "to pageable host memory" in back.why) == (100 * US, True)
    assert back.tries == ("Copy with non_blocking=True and pinned host memory.",)


def product(m: int, n: int, k: int, duration: float, dtype: str = "c10::BFloat16") -> TraceBuilder:
    trace = on_gpu()
    trace.step(0, 1000)
    trace.host("aten::mm", 0, 20, shapes=[[m, k], [k, n]], types=[dtype, dtype])
    busy(trace, 10, duration, 5, "nvjet_tst_128x256" if dtype != "float" else GEMM)
    trace.host("aten::relu", 30, 20)
    busy(trace, 10 + duration, 990 - duration, 35)
    return trace


def test_a_product_far_from_its_bound(tmp_path: Path) -> None:
    """4096^3 in bfloat16 is 137.4 GFLOP: 173.0 us at the 794.5 TFLOP/s that an H100 attains, of 400 us."""
    least_us = 2 * 4096**3 / 794.5e12 * 1e6
    advice = advised(product(4096, 4096, 4096, 400), tmp_path)["far_from_bound"]
    assert advice.gain_ns == pytest.approx((400 - least_us) * US, abs=US)
    assert advice.subject == "aten::mm in forward"
    assert advice.tries == ('Try other kernels: torch.compile(model, mode="max-autotune").',)
    assert "far_from_bound" not in advised(product(4096, 4096, 4096, 180), tmp_path)
    compiled = product(4096, 4096, 4096, 400)
    compiled.host("Torch-Compiled Region: 0/0", 35, 1, category="user_annotation")
    assert "far_from_bound" not in advised(compiled, tmp_path)


def test_recorded_blocks_say_whether_a_kernel_fills_the_device(tmp_path: Path) -> None:
    """A product of 4 us at its bound: too small with 0.2 blocks for each multiprocessor, not with 9.7."""
    for blocks, small in ((0.2, True), (9.7, False)):
        trace = product(1024, 1024, 1024, 100)
        trace.named("nvjet")["args"]["blocks per SM"] = blocks
        advice = advised(trace, tmp_path)["far_from_bound"]
        assert any("too small to fill the device" in text for text in advice.tries) is small


def test_a_size_that_tensor_cores_cannot_take_whole_is_named(tmp_path: Path) -> None:
    odd = advised(product(4096, 4097, 4096, 400), tmp_path)["far_from_bound"]
    assert odd.tries[0] == "Pad rows of 4097 elements to a multiple of 8."
    for rows in (4096, 4097):  # how many rows there are does not matter
        even = advised(product(rows, 4096, 4096, 400), tmp_path)["far_from_bound"]
        assert not any("multiple" in text for text in even.tries)


def test_an_operator_whose_part_launched_its_kernel(tmp_path: Path) -> None:
    """4 b h s^2 d = 1.1 TFLOP in bfloat16: the bound is the operator's, the time of its part."""
    heads: dict[str, Any] = {
        "shapes": [*[[16, 16, 4096, 64]] * 3, [], [], []],
        "types": [*["c10::BFloat16"] * 3, *["Scalar"] * 3],
        "constants": ["", "", "", "0.0", "False", "False"],
    }
    trace = on_gpu()
    trace.step(0, 4000)
    trace.host("aten::_scaled_dot_product_flash_attention", 0, 20, **heads)
    trace.host("aten::_flash_attention_forward", 2, 16, **heads)
    busy(trace, 10, 3990, 5, "flash_fwd_kernel")
    bound_us = 4 * 16 * 16 * 4096**2 * 64 / 989.4e12 * 1e6
    advice = advised(trace, tmp_path)["far_from_bound"]
    assert advice.gain_ns == pytest.approx((3990 - bound_us * 989.4 / 794.5) * US, rel=0.001)
    assert advice.figures["bound"].value == pytest.approx(bound_us * US, rel=0.001)
    assert "FlashAttention-3" in advice.tries[-1]  # the kernel is FlashAttention-2's already


def test_products_in_float32(tmp_path: Path) -> None:
    """The bound of bfloat16 is 66.9 / 989.4 of that of float32, and the products keep their share of it."""
    advice = advised(product(4096, 4096, 4096, 900, "float"), tmp_path)["float32"]
    assert advice.gain_ns == pytest.approx(900 * US * (1 - 66.9 / 989.4), abs=US)
    assert 'torch.autocast("cuda", torch.bfloat16)' in advice.tries[0]
    assert "float32" not in advised(product(4096, 4096, 4096, 400), tmp_path)


def attending(*, written_out: bool, softmax: str = "aten::_softmax") -> TraceBuilder:
    """Scores of 8 heads of 64 by 64: two products, a softmax of 100 us, dropout of 50; or one kernel."""
    trace = on_gpu()
    trace.step(0, 1000)
    heads: dict[str, Any] = {"shapes": [[2, 4, 64, 64], [], []], "types": ["float", "Scalar", "Scalar"]}
    if written_out:
        trace.host("aten::bmm", 0, 9, shapes=[[8, 64, 16], [8, 16, 64]], types=["float", "float"])
        busy(trace, 10, 100, 5, GEMM)
        trace.host(softmax, 10, 9, **heads)
        busy(trace, 110, 100, 15)
        trace.host("aten::native_dropout", 20, 9, **heads)
        busy(trace, 210, 50, 25)
        trace.host("aten::bmm", 29, 1, shapes=[[8, 64, 64], [8, 64, 16]], types=["float", "float"])
        busy(trace, 260, 50, 29.5, GEMM)
    else:
        query: dict[str, Any] = {"shapes": [[2, 4, 64, 16]] * 3, "types": ["float"] * 3}
        trace.host("aten::_scaled_dot_product_flash_attention", 0, 9, **query)
        busy(trace, 10, 300, 5, "flash_fwd_kernel")
    trace.host("aten::relu", 30, 9)
    busy(trace, 310, 690, 35)
    return trace


def test_attention_written_out(tmp_path: Path) -> None:
    """Softmax and dropout, and of 150 us of products what their 2 x 8 x 64 x 64 x 16 FLOPs take at half the peak."""
    advice = advised(attending(written_out=True), tmp_path)["attention"]
    products_us = 2 * (2 * 8 * 64 * 64 * 16) / (66.9e12 / 2) * 1e6
    assert advice.gain_ns == pytest.approx((150 + 150 - products_us) * US, abs=US)
    assert advice.tries == ("Call torch.nn.functional.scaled_dot_product_attention.",)  # no mask is applied
    assert advice.figures["shape"].text == "2 x 4 x 64 x 64"
    assert advice.figures["dropped"].value == 50 * US
    assert "attention" not in advised(attending(written_out=False), tmp_path)


def test_attention_that_torch_did_not_fuse(tmp_path: Path) -> None:
    """A softmax that only `scaled_dot_product_attention` calls; dropout is no reason on a GPU."""
    (tried,) = advised(attending(written_out=True, softmax="aten::_safe_softmax"), tmp_path)["attention"].tries
    assert "sdpa_kernel" in tried


def chained(*, between: bool) -> TraceBuilder:
    """Three maps of 100 us in a row; or with a product after each."""
    trace = on_gpu()
    trace.step(0, 1000)
    for index in range(3):
        trace.host("aten::gelu", 20 * index, 9, **VECTOR)
        busy(trace, 10 + 200 * index if between else 10 + 100 * index, 100, 20 * index + 5)
        if between:
            trace.host("aten::mm", 20 * index + 10, 9, shapes=[[8, 4], [4, 2]], types=["float", "float"])
        else:
            trace.host("aten::topk", 100 + 10 * index, 9)
        start = 110 + 200 * index if between else 310 + 100 * index
        busy(trace, start, 100, 20 * index + 15 if between else 105 + 10 * index, GEMM)
    trace.host("aten::relu", 150, 9)
    busy(trace, 610, 390, 155)
    return trace


def test_maps_one_after_the_other(tmp_path: Path) -> None:
    """Of six tensors moved, four are written by one map and read by the next."""
    advice = advised(chained(between=False), tmp_path)["chains"]
    assert advice.gain_ns == 300 * US * 4 / 6
    assert advice.figures["saved"].value == 4 * BYTES
    assert "torch.compile" in advice.tries[0]
    assert "chains" not in advised(chained(between=True), tmp_path)


def test_a_part_of_another_call_is_none_of_the_chain(tmp_path: Path) -> None:
    """The kernel of attention is launched by an operator inside of it, right after the maps."""
    trace, heads = chained(between=False), {"shapes": [[2, 4, 64, 32]] * 3, "types": ["float"] * 3}
    trace.host("aten::_scaled_dot_product_flash_attention", 70, 20, **heads)
    trace.host("aten::_flash_attention_forward", 72, 16, **heads)
    busy(trace, 1000, 200, 80, "flash_fwd_kernel")
    advice = advised(trace, tmp_path)["chains"]
    assert advice.gain_ns == 300 * US * 4 / 6
    assert (advice.subject, advice.figures["time"].value) == ("aten::gelu", 300 * US)


def updating(operator: str, kernel: str) -> TraceBuilder:
    trace = on_gpu()
    trace.step(0, 1000)
    trace.host("aten::relu", 0, 9)
    busy(trace, 10, 790, 5)
    trace.host("opanatomy.phase/optimizer", 15, 900)
    trace.annotation("Optimizer.step#AdamW.step", 20, 890)
    trace.host(operator, 30, 20)
    busy(trace, 800, 200, 35, kernel)
    return trace


def test_an_optimizer_in_a_loop(tmp_path: Path) -> None:
    """One operator over lists is one pass already (plain SGD)."""
    trace = updating("aten::_foreach_add_", "multi_tensor_apply_kernel")
    assert "optimizer" not in advised(trace, tmp_path)
    trace.host("aten::_foreach_mul_", 60, 20)
    busy(trace, 1_000, 100, 65, "multi_tensor_apply_kernel")
    advice = advised(trace, tmp_path)["optimizer"]
    assert advice.gain_ns == 300 * US
    assert advice.tries == ("Pass fused=True to the optimizer.",)
    loop = advised(updating("aten::add_", MAP), tmp_path)["optimizer"]
    assert loop.tries == ("Pass fused=True or foreach=True to the optimizer.",)
    assert "optimizer" not in advised(updating("aten::_fused_adamw_", "multi_tensor_apply_kernel"), tmp_path)


def zeroing(*, fills: bool) -> TraceBuilder:
    """Ten gradients that zero_grad fills, in 200 us, and to which backward adds, in 300 us; else neither."""
    trace = on_gpu()
    trace.step(0, 1_000)
    trace.host("Optimizer.zero_grad#SGD.zero_grad", 0, 200, category="user_annotation")
    for index in range(10):
        if fills:
            trace.host("aten::zero_", 20 * index, 18)
            busy(trace, 20 * index + 10, 5, 20 * index + 5)
        trace.host("torch::autograd::AccumulateGrad", 300 + 30 * index, 30)
        if fills:
            trace.host("aten::add_", 305 + 30 * index, 20)
            busy(trace, 320 + 30 * index, 5, 310 + 30 * index)
    trace.host("aten::relu", 700, 20)
    busy(trace, 710, 290, 705)
    return trace


def test_gradients_that_are_filled_with_zeros(tmp_path: Path) -> None:
    """200 and 300 us of the host; of the 1,000 us of the step launches are promised 610 us of idle time before."""
    advice = advised(zeroing(fills=True), tmp_path)["zero_grad"]
    assert (advice.figures["spent"].value, advice.figures["adding"].value) == (200 * US, 300 * US)
    assert (advice.gain_ns, advice.figures["calls"].value) == (390 * US, 10)
    assert "zero_grad" not in advised(zeroing(fills=False), tmp_path)


def test_weights_that_are_cast_again_in_each_step(tmp_path: Path) -> None:
    """100 us in which what the product multiplies is cast; a cast of what nothing multiplies does not matter."""
    for weights, advised_ in (([512, 512], True), ([512, 300], False)):
        trace = on_gpu()
        trace.step(0, 1_000)
        trace.host("aten::copy_", 0, 9, shapes=[weights, weights], types=["c10::BFloat16", "float"])
        busy(trace, 10, 100, 5)
        trace.host("aten::mm", 10, 9, shapes=[[4096, 512], [512, 512]], types=["c10::BFloat16"] * 2)
        busy(trace, 110, 100, 15, "nvjet_tst_128x256")
        trace.host("aten::relu", 30, 9)
        busy(trace, 210, 790, 35)
        found = advised(trace, tmp_path)
        assert ("casts" in found) is advised_
        if advised_:
            assert found["casts"].gain_ns == 100 * US
            assert found["casts"].tries == ("Keep the weights in half precision: model.to(torch.bfloat16).",)


def test_memory_that_has_spilled_to_the_host(tmp_path: Path) -> None:
    """A map of 2 x 64 MiB at 4.3 GB/s, on a device of 3.35 TB/s; at 2.68 TB/s, or one that moves little, none.

    Nor on a device whose bandwidth is unknown.
    """
    for size, duration, spilled in ((1 << 24, 31_000, True), (1 << 24, 50, False), (1 << 14, 31_000, False)):
        trace = on_gpu()
        trace.step(0, 40_000)
        trace.host("aten::relu", 0, 9, shapes=[[size]], types=["float"])
        busy(trace, 10, duration, 5)
        found = advised(trace, tmp_path)
        assert ("spilled" in found) is spilled
        if spilled:
            assert found["spilled"].gain_ns == pytest.approx((duration - 2 * 4 * size / 3.35e12 * 1e6) * US, abs=US)
            assert found["spilled"].figures["rate"].value == pytest.approx(2 * 4 * size / (duration * 1e-6))
            trace.metadata["deviceProperties"][0]["name"] = "a device that nobody knows"
            assert "spilled" not in advised(trace, tmp_path)


def losing(vocabulary: int) -> TraceBuilder:
    """Cross entropy of 1,024 rows in bfloat16 on an H100: a cast, a softmax and their backward of 100 us each."""
    trace = on_gpu()
    trace.step(0, 1_000)
    logits, half = [1024, vocabulary], "c10::BFloat16"
    trace.host("aten::copy_", 0, 4, shapes=[logits, logits], types=["float", half])
    trace.host("aten::_log_softmax", 5, 4, shapes=[logits], types=["float"])
    trace.host("aten::nll_loss_forward", 10, 4, shapes=[logits, [1024]], types=["float", "long int"])
    trace.host("autograd::engine::evaluate_function: LogSoftmaxBackward0", 15, 9, sequence=5, forward_thread=1)
    trace.host("aten::_log_softmax_backward_data", 16, 4, shapes=[logits, logits], types=["float", "float"])
    trace.host("aten::relu", 30, 9)
    for index, name in enumerate(("copy_kernel", "softmax_kernel", "nll_kernel", "softmax_backward_kernel")):
        busy(trace, 40 + 100 * index, 100, 2 + 5 * index, name)
    busy(trace, 440, 560, 35)
    return trace


def test_cross_entropy_over_a_vocabulary(tmp_path: Path) -> None:
    """Of 400 us a kernel needs the time of three passes over 1,024 x 32,768 halves at 3.35 TB/s; small ones do not."""
    advice = advised(losing(32_768), tmp_path)["loss"]
    assert advice.gain_ns == pytest.approx((400 - 3 * 2 * 1024 * 32_768 / 3.35e12 * 1e6) * US, abs=US)
    assert advice.is_bound
    assert "loss" not in advised(losing(1_000), tmp_path)


def test_training_mode_in_steps_that_train_nothing(tmp_path: Path) -> None:
    """Dropout draws its mask for 100 us; in a step with a backward it should."""
    for trains in (False, True):
        trace = full_step(on_gpu(), 900)
        trace.host(
            "aten::native_dropout",
            10,
            9,
            shapes=[[8, 8], [], []],
            types=["float", "Scalar", "Scalar"],
            constants=["", "0.1", "True"],
        )
        busy(trace, 900, 100, 15)
        if trains:
            trace.host("autograd::engine::evaluate_function: MmBackward0", 20, 20, sequence=5, forward_thread=1)
            trace.host("aten::mm", 22, 9, **VECTOR)
            busy(trace, 1_000, 50, 25)
        found = advised(trace, tmp_path)
        assert ("training_mode" in found) is not trains
        assert trains or found["training_mode"].gain_ns == 100 * US


def test_an_update_that_the_host_launches_piece_by_piece(tmp_path: Path) -> None:
    """Ten operators of 80 us in the update, with a kernel of 5 us each: all 950 us of idle time are the optimizer's."""
    for operator, expected in (("aten::add_", "optimizer"), ("aten::_fused_adamw_", "launches")):
        trace = on_gpu()
        trace.step(0, 1_000)
        trace.host("opanatomy.phase/optimizer", 0, 1_000)
        trace.annotation("Optimizer.step#AdamW.step", 0, 1_000)
        for index in range(10):
            trace.host(operator, 100 * index, 80, **VECTOR)
            busy(trace, 100 * index + 75, 5, 100 * index + 70)
        found = advised(trace, tmp_path)
        assert {*found} & {"optimizer", "launches"} == {expected}
        assert found[expected].gain_ns == 950 * US


def test_kernels_that_change_the_layout_of_images(tmp_path: Path) -> None:
    trace = full_step(on_gpu(), 900)
    trace.host("aten::cudnn_convolution", 10, 9)
    busy(trace, 900, 100, 15, "void cudnn::ops::nchwToNhwcKernel<float>")
    advice = advised(trace, tmp_path)["layout"]
    assert advice.gain_ns == 100 * US
    assert "channels_last" in advice.tries[0]
    assert "layout" not in advised(full_step(on_gpu()), tmp_path)


def recomputing(memory: int) -> Anatomy:
    from opanatomy.records.taxonomy import OperatorClass, Phase
    from opanatomy.records.work import ClassRow
    from tests.support.made_reports import made

    anatomy = made((OperatorClass.ELEMENTWISE, 600), (OperatorClass.ELEMENTWISE, 400, None, Phase.RECOMPUTE))
    assert isinstance(anatomy.classes[0], ClassRow)
    return with_advice(replace(anatomy, memory=replace(anatomy.memory, peak_bytes=memory)))


def test_recomputation_where_memory_is_free() -> None:
    """Of a device of 1,000 bytes."""
    advice = {each.id: each for each in recomputing(300).advice}
    assert advice["recomputation"].gain_ns == 400
    assert "recomputation" not in {each.id for each in recomputing(500).advice}


def test_waiting_for_one_rank() -> None:
    straggler = Straggler(
        rank=3,
        trace=None,
        charged_ns=300,
        waiting_ns=400,
        last=2,
        lead_ns=5,
        before_ns=300,
        computing_longer_ns=0,
        idle_longer_ns=0,
    )
    found = {each.id: each for each in with_advice(of_ranks(400, 100, 500, straggler)).advice}
    assert (found["waiting"].gain_ns or 0) / (found["waiting"].step_ns or 1) == 0.3
    assert found["waiting"].subject == "rank 3"
    alone = {each.id for each in with_advice(of_ranks(400, 100, 500)).advice}
    assert "waiting" not in alone


def of_texts(padding: str) -> Anatomy:
    texts = TextFigures(
        file=None,
        column=None,
        padding=padding,
        count=4,
        more=False,
        cut=0,
        maximum=8,
        shortest=1,
        median=3,
        all_batches=2,
        all_tokens=100,
        all_useful_tokens=40,
        memory_length=8,
        mean_step_ns=None,
        samples_per_second=None,
        tokens_per_second=None,
        useful_tokens_per_second=None,
        padding_flops=None,
        batches=(),
        tokenizers=(),
    )
    return with_advice(replace(recomputing(500), texts=texts, advice=()))


def test_padding() -> None:
    """Sixty of a hundred tokens, of a step of 1,000 ns."""
    found = {each.id: each for each in of_texts("max_length").advice}
    assert found["padding"].gain_ns == 600
    assert found["padding"].option == "--padding longest"
    assert "padding" not in {each.id for each in of_texts("sorted").advice}


def compiled(regions: int) -> TraceBuilder:
    trace = on_gpu()
    trace.step(0, 700)
    for index in range(3):
        trace.annotation(f"Torch-Compiled Region: {index % regions}/{index}", 300 * index, 20)
        trace.host("aten::relu", 300 * index + 1, 9)
        busy(trace, 300 * index + 10, 90, 300 * index + 5)
    return trace


def test_several_compiled_regions(tmp_path: Path) -> None:
    """Two gaps of 210 us, of which 10 are in the range before, and the rest in Python."""
    advice = advised(compiled(3), tmp_path)["graph_breaks"]
    assert advice.figures["regions"].value == 3
    assert advice.gain_ns == pytest.approx(400 * US, abs=45 * US)
    assert "graph_breaks" not in advised(compiled(1), tmp_path)


def test_the_framework_of_a_step_on_the_cpu(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.step(0, 1000)
    for index in range(4):
        trace.host("aten::relu", 250 * index, 100, **VECTOR)
    advice = advised(trace, tmp_path)["framework"]
    assert advice.gain_ns == 600 * US
    assert advice.figures["calls"].value == 4
    whole = TraceBuilder()
    whole.step(0, 1000)
    whole.host("aten::relu", 0, 995, **VECTOR)
    assert "framework" not in advised(whole, tmp_path)


# --------------------------------------------------------------------------------------------------- memory snapshots


def test_memory_that_the_system_gives_again_in_each_step(tmp_path: Path) -> None:
    """Two calls of 400 us, 100 apart, in plain steps of 1,000 us with 150 of system time for 100 pages: 300 us of it.

    Calling two operators takes 40 us at most, the rest of what lies between them may be the system's.
    """
    trace = TraceBuilder()
    trace.step(0, 1_000)
    for start in (0, 500):
        trace.host("aten::mm", start, 400, shapes=[[8, 8], [8, 8]], types=["float", "float"])
    anatomy = trace.analyze(tmp_path)
    step = replace(anatomy.step, unprofiled_wall_ns=1_000 * US, system_ns=150 * US)
    for pages, gain, framework in ((100, 150, 50), (40, 80, 120), (None, None, 200)):
        found = {
            each.id: each.gain_ns
            for each in with_advice(replace(anatomy, advice=(), step=replace(step, page_faults=pages))).advice
        }
        assert found.get("pages") == (None if gain is None else gain * US)
        assert found["framework"] == framework * US


def test_what_fills_a_snapshot_is_advised(tmp_path: Path) -> None:
    """By hand 60 of 460 are activations, 200 moments, 100 weights; gradients only where the peak is in forward."""
    anatomy = opanatomy.analyze(a_step().written(tmp_path / "s.pickle"))
    found = {advice.subject: (advice.gain_bytes, advice.peak_bytes) for advice in anatomy.advice}
    assert found == {"forward activations": (60, 460), "optimizer state": (150, 460), "weights": (50, 460)}
    assert {advice.id for advice in anatomy.advice} == {"what_fills"}


def test_memory_in_pieces_is_advised_where_it_would_have_been_enough(tmp_path: Path) -> None:
    for asked, advised_ in ((8_816, {"fragmentation"}), (8_817, set())):
        path = a_step().event("oom", 0, asked, device_free=0).written(tmp_path / f"{asked}.pickle")
        ids = {advice.id for advice in opanatomy.analyze(path).advice} - {"what_fills"}
        assert ids == advised_


def advised_of(path: Path) -> dict[str | None, Advice]:
    return {advice.subject: advice for advice in opanatomy.analyze(path).advice if advice.id == "what_fills"}


SCORES = ("bmm", 400), ("div_Tensor", 400), ("_softmax", 400), ("native_dropout", 100), ("clone", 400), ("bmm", 64)
OUTSIDE = [frame("<module>", "/home/me/train.py", 12)]


def calls_of(*operators: tuple[str, int], function: str = "forward", times: int = 2) -> SnapshotBuilder:
    """Layers whose function allocates these, one after the other; what is divided is freed at once."""
    made = SnapshotBuilder()
    for number, (operator, size) in enumerate(operators * times):
        at = 1_000 + 512 * number
        made.alloc(at, size, forward_stack(10 + number % len(operators), operator, function))
        if operator == "div_Tensor":
            made.free(at, size, forward_stack(13, "_softmax", function))
    return made


def with_backward(made: SnapshotBuilder) -> SnapshotBuilder:
    """A backward that frees what was kept, and one gradient of 100 for the weight from before."""
    freed = {row["addr"] for row in made.events[0] if row["action"] == "free_requested"}
    kept = [row for row in made.events[0] if row["action"] == "alloc" and row["addr"] not in freed]
    made.alloc(90_000, 100, BACKWARD)
    for row in kept:
        made.free(row["addr"], row["size"], BACKWARD)
    return made.segment(
        80_000,
        16_384,
        (80_000, 100, "active_allocated"),
        (80_100, 9_900, "inactive"),
        (90_000, 100, "active_allocated"),
        (90_100, 6_284, "inactive"),
    )


def test_scores_at_the_peak_are_advised_once(tmp_path: Path) -> None:
    """A layer keeps products, probabilities and a mask of a byte an element; a copy of values is no score."""
    found = advised_of(with_backward(calls_of(*SCORES)).written(tmp_path / "s.pickle"))
    peak = 100 + 100 + 2 * (400 + 400 + 100 + 400 + 64)
    assert (found["attention scores"].gain_bytes, found["attention scores"].peak_bytes) == (1_800, peak)
    assert found["attention scores"].figures["line"].text == "model.py:10 forward"
    assert "scaled_dot_product_attention" in found["attention scores"].tries[0]
    assert found["forward activations"].gain_bytes == 2 * (400 + 64)
    assert sum(advice.gain_bytes or 0 for advice in found.values()) <= peak


@pytest.mark.parametrize(
    ("function", "around", "cure"),
    [
        ("eager_attention_forward", "", 'attn_implementation="sdpa"'),
        ("forward", "_scaled_dot_product_attention_math", "sdpa_kernel"),
    ],
)
def test_unfused_attention_is_fused_where_it_is_called(function: str, around: str, cure: str, tmp_path: Path) -> None:
    made = with_backward(calls_of(*SCORES, function=function))
    for row in made.events[0]:
        if around and row["frames"] is not BACKWARD:
            row["frames"].insert(2, frame(f"at::_ops::{around}::call(at::Tensor)"))
    (tried,) = advised_of(made.written(tmp_path / "s.pickle"))["attention scores"].tries
    assert cure in tried


@pytest.mark.parametrize(
    "operators",
    [
        (("mm", 400), ("_softmax", 400), ("bmm", 64)),  # a router's
        (("bmm", 400), ("_log_softmax", 400), ("bmm", 64)),  # a loss
        (("bmm", 400), ("_softmax", 400)),  # probabilities that nothing multiplies
        (("bmm", 4_000), ("_softmax", 400), ("bmm", 64)),  # of another size
        (("bmm", 400), ("_scaled_dot_product_flash_attention", 64), ("bmm", 64)),
    ],
    ids=["router", "loss", "head", "sizes", "fused"],
)
def test_no_other_softmax_is_called_attention(operators: tuple[tuple[str, int], ...], tmp_path: Path) -> None:
    found = advised_of(with_backward(calls_of(*operators, times=1)).written(tmp_path / "s.pickle"))
    assert "attention scores" not in found
    assert found["forward activations"].gain_bytes == sum(size for _, size in operators)


def test_scores_are_advised_where_memory_runs_out_in_them(tmp_path: Path) -> None:
    """In the second layer's softmax, of the attention that the first one shows."""
    made = calls_of(*SCORES, times=1).alloc(8_192, 400, forward_stack(10, "bmm"))
    made.alloc(9_216, 400, forward_stack(11, "div_Tensor"))
    made.event("oom", 0, 400, device_free=0, frames=forward_stack(12, "_softmax"))
    made.segment(0, 16_384, (0, 16_384, "inactive"))
    found = advised_of(made.written(tmp_path / "s.pickle"))
    assert found["attention scores"].gain_bytes == 5 * 512  # products, probabilities and mask, in whole blocks


def test_autocasts_copies_go_with_the_weights(tmp_path: Path) -> None:
    """Kept in half precision, weights are half as large and not copied; without a backward the cache may go instead."""
    cast = [*forward_stack(5, "_to_copy")]
    cast.insert(2, frame("at::autocast::cached_cast(c10::ScalarType, at::Tensor const&, c10::DeviceType)"))
    made = SnapshotBuilder().alloc(1_000, 50, cast).alloc(2_000, 30, forward_stack(6))
    found = advised_of(with_backward(made).written(tmp_path / "s.pickle"))
    assert (found["weights"].gain_bytes, found["weights"].peak_bytes) == (100 // 2 + 50, 280)
    assert "autocast makes no copies (this changes the training)" in found["weights"].tries[0]
    assert "cache_enabled" not in str(found)
    made = SnapshotBuilder().alloc(1_000, 50, cast).alloc(2_000, 30, forward_stack(6)).free(1_000, 50, OUTSIDE)
    made.segment(80_000, 4_096, (80_000, 100, "active_allocated"), (80_100, 3_996, "inactive"))
    made.segment(0, 8_192, (0, 2_000, "inactive"), (2_000, 30, "active_allocated"), (2_030, 6_162, "inactive"))
    found = advised_of(made.written(tmp_path / "t.pickle"))
    assert (found["autocast weight casts"].gain_bytes, found["autocast weight casts"].peak_bytes) == (50, 180)
    assert found["autocast weight casts"].tries[0] == "Convert the model once: model.to(torch.bfloat16)."
    assert "cache_enabled=False" in found["autocast weight casts"].tries[1]
    assert "weights" not in found


def forwards(kept: int, freed: int, times: int = 2) -> SnapshotBuilder:
    """Forward passes that keep blocks of 10 until code outside of the model drops them, and free others of 30."""
    made = SnapshotBuilder()
    for _ in range(times):
        for _ in range(freed):
            made.alloc(50_000, 30, forward_stack(20, "mm")).free(50_000, 30, forward_stack(20, "mm"))
        for number in range(kept):
            made.alloc(1_000 + 512 * number, 10, forward_stack(21, "gelu"))
        for number in range(kept):
            made.free(1_000 + 512 * number, 10, OUTSIDE)
    return made.segment(80_000, 4_096, (80_000, 100, "active_allocated"), (80_100, 3_996, "inactive"))


def test_what_is_kept_for_no_backward_is_advised(tmp_path: Path) -> None:
    """Freed outside of the model, without a backward; outputs and caches are few of what a forward allocates."""
    found = advised_of(forwards(20, 30).written(tmp_path / "s.pickle"))
    assert (found["forward activations"].gain_bytes, found["forward activations"].peak_bytes) == (200, 300)
    assert "torch.inference_mode()" in found["forward activations"].tries[0]
    assert "Checkpoint" not in str(found)
    assert advised_of(forwards(20, 100).written(tmp_path / "t.pickle")).keys() == {"temporary buffers"}
    assert advised_of(forwards(4, 2).written(tmp_path / "u.pickle")).keys() == {"temporary buffers"}


def test_a_cache_that_stays_after_inference_is_no_activation(tmp_path: Path) -> None:
    """Kept at the end of a second forward: as much of all that it allocated as autograd keeps, or a few blocks."""
    for kept, subjects in ((20, {"forward activations"}), (4, set())):
        made = forwards(kept, 30)
        made.events[0] = made.events[0][: -2 * kept]  # nothing frees the last ones, and one more makes it the peak
        made.alloc(60_000, 10, forward_stack(22, "gelu"))
        blocks = [(1_000 + 512 * number, 10, "active_allocated") for number in range(kept)]
        found = advised_of(made.segment(0, 16_384, *blocks).written(tmp_path / "s.pickle"))
        assert found.keys() - {"temporary buffers"} == subjects


def test_a_first_forward_that_runs_out_may_be_that_of_a_training(tmp_path: Path) -> None:
    """Alone and out of memory it is checkpointed first; one that ended is more likely no training."""
    for fails, first in ((True, "Checkpoint"), (False, "If nothing is trained")):
        made = SnapshotBuilder().alloc(1_000, 300, forward_stack(5)).alloc(2_000, 100, forward_stack(6))
        if fails:
            made.event("oom", 0, 500, device_free=0, frames=forward_stack(7))
        made.segment(
            0,
            4_096,
            (0, 1_000, "inactive"),
            (1_000, 300, "active_allocated"),
            (1_300, 700, "inactive"),
            (2_000, 100, "active_allocated"),
            (2_100, 1_996, "inactive"),
        )
        tries = advised_of(made.written(tmp_path / "s.pickle"))["forward activations"].tries
        assert [tried.startswith(first) for tried in tries] == [True, False]


def test_temporary_buffers_of_inference_name_their_line(tmp_path: Path) -> None:
    """Without scores, and no word of them in a training."""
    made = calls_of(("mm", 300), ("exp", 100), times=1)
    for row in [*made.events[0]]:
        made.free(row["addr"], row["size"], forward_stack(15))
    made.alloc(3_000, 8, forward_stack(16)).segment(80_000, 4_096, (80_000, 100, "active_allocated"))
    anatomy = opanatomy.analyze(made.written(tmp_path / "s.pickle"))
    (advice,) = anatomy.advice
    assert (advice.subject, advice.gain_bytes, advice.peak_bytes) == ("temporary buffers", 200, 500)
    assert (advice.figures["line"].text, advice.figures["most"].value) == ("model.py:10 forward", 300)
    made.alloc(4_000, 100, BACKWARD)
    assert "temporary buffers" not in advised_of(made.written(tmp_path / "t.pickle"))


@pytest.mark.parametrize(
    ("settings", "asked", "cure"),
    [
        ({}, 9, "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."),
        ({"max_split_size": "-1"}, 9, "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."),
        ({"max_split_size": str(16 * MIB)}, 9, "Replace max_split_size_mb with expandable_segments:True"),
        ({"expandable_segments": "True"}, 9, None),
        ({"expandable_segments": "True", "max_split_size": str(16 * MIB)}, 9, "Remove max_split_size_mb"),
        ({"expandable_segments": "True", "max_split_size": str(16 * MIB)}, 17, None),  # not a smaller request
        ({"expandable_segments": "True", "max_split_size": str(64 * MIB)}, 9, None),  # no free block of that size
        ({"max_split_size": str(16 * MIB)}, 33, None),  # more than is unused
    ],
)
def test_fragments_are_put_together_by_the_allocators_settings(
    settings: dict[str, str], asked: int, cure: str | None, tmp_path: Path
) -> None:
    made = (
        SnapshotBuilder()
        .event("segment_alloc", 0, 32 * MIB)
        .event("oom", 0, asked * MIB, device_free=0, frames=OUTSIDE)
    )
    made.segment(0, 32 * MIB, (0, 32 * MIB, "inactive"))
    found = opanatomy.analyze(made.written(tmp_path / "s.pickle", allocator_settings=settings)).advice
    assert [advice.tries[0].startswith(cure or "-") for advice in found] == [True] * (cure is not None)
    assert [advice.gain_bytes for advice in found] == [32 * MIB] * (cure is not None)


@WITH_SHARED
@pytest.mark.parametrize(
    ("name", "scores", "activations", "weights"),
    [
        # A layer's exponentials in float32, and their quotient cast to bfloat16: batch x heads x length x length.
        ("medium_512_training", 24 * 4 * 16 * 512 * 512 * (4 + 2), 6_258_000_000, 846_000_000 + 826_000_000),
        # Of one softmax masked scores and differences in bfloat16, exponentials and their quotient in float32.
        ("medium_512_inference", 4 * 16 * 512 * 512 * (2 + 2 + 4 + 4), None, None),
        ("medium_128_training", None, None, 846_000_000),  # whose peak is in the optimizer
    ],
)
def test_a_strangers_attention_is_advised(
    name: str, scores: int | None, activations: int | None, weights: int | None
) -> None:
    found = advised_of(BESIDE / f"{name}.pickle.gz")
    gains = {subject: advice.gain_bytes or 0 for subject, advice in found.items()}
    assert gains.get("attention scores") == scores
    assert activations is None or gains["forward activations"] == pytest.approx(activations - (scores or 0), rel=1e-3)
    assert weights is None or gains["weights"] == pytest.approx(weights, rel=1e-3)
    assert sum(gains.values()) <= next(iter(found.values())).peak_bytes


# ------------------------------------------------------------------------------------------------------------ the page


def test_what_the_whole_run_shows(tmp_path: Path) -> None:
    """Of ten steps of 1,000 us the sums, as the mean step's: 3 of 10 ms collecting is 300 us, 5 ms compiling 500 us."""
    anatomy = full_step(on_gpu()).analyze(tmp_path)
    event = CompilerEvent(place="train.py:3 forward", reason="a print", count=2)
    run = RunClock(
        steps=10,
        wall_ns=10_000 * US,
        median_ns=900 * US,
        input_ns=9_000 * US,
        collections=4,
        collecting_ns=3_000 * US,
        compiling_ns=5_000 * US,
        graph_breaks=(event,),
        recompilations=(event,),
    )
    advice = {each.id: each for each in with_advice(replace(anatomy, run=run)).advice}
    assert (advice["garbage_collection"].gain_ns, advice["garbage_collection"].step_ns) == (300 * US, 1000 * US)
    assert advice["garbage_collection"].figures["times"].value == 4
    assert (advice["compilation"].gain_ns, advice["compilation"].subject) == (500 * US, "train.py:3 forward")
    assert advice["compilation"].figures["reason"].text == advice["graph_breaks"].figures["reason"].text == "a print"
    assert "input" not in advice  # a device may work while the host waits for its loader: its idle time has to say it
    on_cpu = replace(anatomy, run=run, environment=replace(anatomy.environment, device_kind="cpu"))
    waits = {each.id: each for each in with_advice(on_cpu).advice}["input"]
    assert (waits.gain_ns, waits.step_ns) == (900 * US, 1000 * US)
    slow = SlowStep(number=7, wall_ns=6_000 * US, input_ns=5_800 * US, collecting_ns=0, compiling_ns=0)
    evaluated = replace(run, wall_ns=60_000 * US, steps=30, input_ns=5_800 * US, slow_steps=1, slow=(slow,))
    assert "input" not in {each.id for each in with_advice(replace(on_cpu, run=evaluated, advice=())).advice}
    quiet = replace(run, collecting_ns=190 * US, recompilations=(), graph_breaks=())
    ids = {each.id for each in with_advice(replace(anatomy, run=quiet)).advice}
    assert not ids & {"garbage_collection", "compilation", "graph_breaks"}


def test_every_rule_is_shown_by_a_trace_above() -> None:
    """A rule without a test of its own is not one; that of a clock has it beside the stand-in of NVML."""
    files = Path(__file__), ROOT / "tests" / "devices" / "test_device_state.py"
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    assert [rule.id for rule in RULES if f'"{rule.id}"' not in text] == []


def test_the_first_screen_has_three_lines_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = launch_bound().write(tmp_path / "trace.json")
    assert main(["analyze", str(trace), "--brief"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "launches up to 936 us (93.6 %): the device idles for 95.0 us per launch;" in text
    command = text.split("next: ")[1].replace("\\ ", "")
    assert command.startswith(f"opanatomy analyze {trace} --section host")


def test_digest_json_and_metrics_have_the_same_gain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = launch_bound().write(tmp_path / "trace.json")
    assert main(["analyze", str(trace), "-f", "digest"]) == 0
    digest = capsys.readouterr().out
    assert "## What to try\n### 1: launches\n- gain: up to 936 us (93.6 %)" in digest
    assert main(["analyze", str(trace), "-f", "json"]) == 0
    first = json.loads(capsys.readouterr().out)["advice"][0]
    assert (first["id"], first["gain_ns"], first["step_ns"]) == ("launches", 936 * US, 1000 * US)
    assert opanatomy.analyze(trace).metrics()["advice.launches.gain_ns"] == 936 * US


@pytest.mark.parametrize("rule", [rule.id for rule in RULES])
def test_explain_says_what_a_rule_looks_for(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", rule.replace("_", " ")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Upper bound on the gain: " in text
    assert "Stays silent" in text


# ------------------------------------------------------------------------------------------------------------ the host


def test_the_host_has_each_name_once_and_sums_to_the_threads_time(tmp_path: Path) -> None:
    """Ten operators of 80 us, of which 2 are the launch, and 20 us of Python after each."""
    rows = {(row.kind, row.name): row for row in launch_bound().analyze(tmp_path).host}
    assert rows["operator", "aten::add"].self_ns == 10 * 78 * US
    assert rows["operator", "aten::add"].total_ns == 10 * 80 * US
    assert rows["runtime", "cudaLaunchKernel"].self_ns == 10 * 2 * US
    assert rows["python", "between recorded events"].self_ns == 10 * 20 * US
    assert sum(row.self_ns for row in rows.values()) == 1000 * US


def test_a_wait_is_listed_with_its_operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = synchronizing("aten::item").write(tmp_path / "trace.json")
    assert main(["analyze", str(trace), "--section", "host"]) == 0
    assert "cudaStreamSynchronize in item" in capsys.readouterr().out
    row = next(row for row in opanatomy.analyze(trace).host if row.waits)
    assert (row.caller, row.calls, row.self_ns) == ("aten::item", 1, 270 * US)
