"""What kept the device idle, and which steps count: one hand-made trace a cause, with its true times as constants.

Each trace is one step of 10 ms, times in us: kernel A runs from 20 to 1,020, kernel B, launched at 5,010 by the same
thread, from 5,020 to 10,000. What the host does from 1,000 to 5,000 is the cause of the 4,000 us between them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import opanatomy
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import IdleCause
from tests.command import ROOT, run
from tests.handmade import HandMade

US = 1000
GEMM, MAP = "ampere_sgemm_128x64_nn", "void at::native::vectorized_elementwise_kernel<4>"


class Host(HandMade):
    """A trace of steps; `call` is a call of the runtime of any length, `work` a launch and its kernel."""

    def call(self, name: str, start: float, duration: float, thread: int = 1, correlation: int = 0) -> None:
        self.launch(start, correlation, thread=thread, name=name)
        self.events[-1]["dur"] = duration

    def work(self, launch: float, start: float, duration: float, name: str = GEMM, **options: int) -> None:
        number = len(self.events) + 1
        self.call("cudaLaunchKernel", launch, 5, correlation=number, thread=options.pop("thread", 1))
        self.kernel(name, start, duration, number, **options)

    def profiled(self, category: str, name: str, start: float, duration: float) -> None:
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": 1, "ts": start, "dur": duration, "args": {}}
        )

    def analyze(self, folder: Path) -> Anatomy:
        return opanatomy.analyze(self.write(folder / "trace.json"))


def shown(trace: Path, *options: str) -> str:
    return run("analyze", str(trace), *options, cwd=ROOT).stdout


def step_with(meanwhile: Callable[[Host], None]) -> Host:
    trace = Host()
    trace.metadata["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    trace.annotation("ProfilerStep#1", 0, 10_000)
    trace.host("aten::mm", 5, 15)
    trace.work(10, 20, 1_000)
    meanwhile(trace)
    trace.host("aten::mm", 5_000, 20)
    trace.work(5_010, 5_020, 4_980)
    return trace


def python_calls(trace: Host) -> None:
    for start in range(1_010, 5_000, 10):
        trace.profiled("python_function", "torch/nn/modules/module.py(1): _call_impl", start, 8)


def copies_in(trace: Host) -> None:
    """A copy from memory that is not pinned: the call stages it, the device copies for 100 us at its end."""
    trace.call("cudaMemcpyAsync", 1_000, 4_000, correlation=77)
    trace.kernel("Memcpy HtoD (Pageable -> Device)", 4_900, 100, 77, category="gpu_memcpy")


def many_operators(trace: Host) -> None:
    for start in range(1_000, 5_000, 100):
        trace.host("aten::view", start, 98)


#: The cause, what the host does meanwhile, the idle time of the cause (us), and what the first screen says.
CAUSES = {
    "allocator": (lambda trace: trace.call("cudaMalloc", 1_000, 4_000), 3_980,
                  "while the host allocated or freed memory (cudaMalloc, 1 call)"),
    "free": (lambda trace: trace.call("cudaFree", 1_000, 4_000), 3_980,
             "while the host allocated or freed memory (cudaFree, 1 call)"),
    "pinned": (lambda trace: trace.call("cudaHostAlloc", 1_000, 4_000), 3_980,
               "while the host allocated or freed memory (cudaHostAlloc, 1 call)"),
    "slow launch": (lambda trace: trace.call("cudaLaunchKernel", 1_000, 4_000), 3_980,
                    "while one slow call launched or loaded a kernel (cudaLaunchKernel, 3.98 ms)"),
    "module": (lambda trace: trace.call("cuModuleLoadData", 1_000, 4_000), 3_980,
               "while one slow call launched or loaded a kernel (cuModuleLoadData, 3.98 ms)"),
    "lazy loading": (lambda trace: trace.profiled("overhead", "Lazy Function Loading", 1_000, 4_000), 3_980,
                     "while one slow call launched or loaded a kernel (Lazy Function Loading, 3.98 ms)"),
    "synchronization": (lambda trace: trace.call("cudaStreamSynchronize", 1_000, 4_000), 3_980,
                        "while the host waited for the device (cudaStreamSynchronize, 1 call)"),
    "input": (lambda trace: trace.annotation("enumerate(DataLoader)#_Iter.__next__", 1_000, 4_000), 3_980,
              "while the host loaded or copied input (all of it enumerate(DataLoader)#_Iter.__next__)"),
    "input, Lightning": (
        lambda trace: trace.annotation("[pl][profile][_TrainingEpochLoop].train_dataloader_next", 1_000, 4_000), 3_980,
        "while the host loaded or copied input (all of it [pl][profile][_TrainingEpochLoop].train_dataloader_next)"),
    "copies": (copies_in, 3_880, "while the host loaded or copied input (all of it cudaMemcpyAsync)"),
    "compilation": (lambda trace: trace.host("_compile.compile_inner", 1_000, 4_000), 3_980,
                    "while code was compiled (all of it _compile.compile_inner)"),
    "profiler": (lambda trace: trace.profiled("overhead", "Buffer Flush", 1_000, 4_000), 3_980,
                 "while the profiler wrote its records (all of it Buffer Flush)"),
    "Python's stack": (python_calls, 3_980,
                       "in Python while the profiler recorded its stack (398 calls), which slows it"),
    "collective": (lambda trace: trace.host("c10d::barrier", 1_000, 4_000), 3_980,
                   "while the host called collectives (all of it c10d::barrier)"),
    "operators": (many_operators, 3_920, "while the host ran operators and launched kernels (most of it view)"),
    "Python": (lambda trace: trace.annotation("compute metrics", 1_000, 4_000), 3_980,
               "while the host was between operators, in Python (most of it compute metrics)"),
    "nothing": (lambda trace: None, 3_980, "while nothing is recorded of the host"),
}  # fmt: skip
OF_NAME = {
    "free": "allocator", "pinned": "allocator", "slow launch": "slow_launch", "module": "slow_launch",
    "lazy loading": "slow_launch", "input, Lightning": "input", "copies": "input", "Python's stack": "profiler",
    "Python": "python", "nothing": "unknown",
}  # fmt: skip


@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_is_what_the_host_did_in_the_gap(name: str, tmp_path: Path) -> None:
    meanwhile, spent_us, said = CAUSES[name]
    anatomy = step_with(meanwhile).analyze(tmp_path)
    causes = anatomy.timeline.causes
    assert causes[0].cause == OF_NAME.get(name, name)
    assert causes[0].time_ns == pytest.approx(spent_us * US, rel=0.01)
    assert sum(row.time_ns for row in causes) == anatomy.timeline.idle_ns
    others = [row for row in causes[1:] if row.time_ns > 0.03 * anatomy.timeline.idle_ns]
    assert not others
    screen = " ".join(shown(tmp_path / "trace.json", "--brief").split())
    assert said in screen
    # "... is idle 40.2 % of the step, mostly while ...": one cause, that one.
    assert screen.count(" while ") + screen.count("in Python") <= said.count(" while ") + 1 + said.count("in Python")


def test_another_thread_that_launches_is_looked_at_where_the_launching_one_is_silent(tmp_path: Path) -> None:
    """Autograd's thread launches B; before, the main thread, which launched A, allocates."""
    trace = step_with(lambda trace: trace.call("cudaMalloc", 1_000, 4_000))
    launch = next(event for event in trace.events if event["ts"] == 5_010)
    launch["tid"] = 2
    (row, *_) = trace.analyze(tmp_path).timeline.causes
    assert (row.cause, row.time_ns) == (IdleCause.ALLOCATOR, 3_980 * US)


def test_a_thread_that_launches_nothing_is_no_cause(tmp_path: Path) -> None:
    """The thread that pins memory allocates all the time; what the launching thread did is not known."""
    trace = step_with(lambda trace: trace.call("cudaHostAlloc", 1_000, 4_000, thread=9))
    assert trace.analyze(tmp_path).timeline.causes[0].cause is IdleCause.UNKNOWN


def test_tiny_kernels_are_evidence_only_where_launching_fills_the_gaps(tmp_path: Path) -> None:
    trace = step_with(lambda trace: trace.call("cudaMalloc", 1_000, 4_000))
    for place in range(300):
        trace.work(6_000 + 10 * place, 7_000 + place, 0.5, name=MAP, stream=8)
    text = shown(trace.write(tmp_path / "trace.json"), "-f", "digest")
    assert "while the host allocated or freed memory" in text
    assert "launches a step" not in text


def test_the_calls_of_several_steps_are_said_to_be_so(tmp_path: Path) -> None:
    """Two steps like those above, 1 ms apart: 2 x 3,980 us, a call in each."""
    trace = step_with(lambda trace: trace.call("cudaMalloc", 1_000, 4_000))
    trace.annotation("ProfilerStep#2", 11_000, 10_000)
    trace.host("aten::mm", 11_005, 15)
    trace.work(11_010, 11_020, 1_000)
    trace.call("cudaMalloc", 12_000, 4_000)
    trace.host("aten::mm", 16_000, 20)
    trace.work(16_010, 16_020, 4_980)
    anatomy = trace.analyze(tmp_path)
    causes = {row.cause: (row.time_ns, row.events) for row in anatomy.timeline.causes}
    assert causes[IdleCause.ALLOCATOR] == (2 * 3_980 * US, 2)
    assert "(cudaMalloc, 2 calls in 2 steps)" in " ".join(shown(tmp_path / "trace.json", "--brief").split())


def test_what_the_device_waits_for_itself(tmp_path: Path) -> None:
    """B is launched while A runs: on A's stream 80 us between them, on another one 80 us for that stream."""
    for stream, cause in ((7, IdleCause.DEVICE), (8, IdleCause.STREAM)):
        trace = Host()
        trace.annotation("ProfilerStep#1", 0, 2_000)
        trace.work(0, 0, 1_000)
        trace.work(10, 1_080, 920, stream=stream)
        (row,) = trace.analyze(tmp_path).timeline.causes
        assert (row.cause, row.time_ns) == (cause, 80 * US)


def test_work_that_starts_long_after_its_launch_returned_is_not_the_hosts(tmp_path: Path) -> None:
    """B is launched 10 us after A ended and starts 3 ms later: the device, or what is not in the trace, is late."""
    trace = Host()
    trace.annotation("ProfilerStep#1", 0, 5_000)
    trace.work(0, 0, 1_000)
    trace.work(1_010, 4_000, 1_000)
    rows = {row.cause: row.time_ns for row in trace.analyze(tmp_path).timeline.causes}
    assert rows[IdleCause.DEVICE] == 2_985 * US


# ------------------------------------------------------------------------------------------- what is not in the trace


def test_a_graph_whose_nodes_were_not_recorded_is_no_idle_time(tmp_path: Path) -> None:
    """Launched at 1,100: until B starts at 5,020 it is not known what the device did; idle are 20 + 80 us."""
    trace = step_with(lambda trace: trace.call("cudaGraphLaunch", 1_100, 50, correlation=99))
    anatomy = trace.analyze(tmp_path)
    timeline = anatomy.timeline
    assert (timeline.unrecorded_ns, timeline.idle_ns) == (3_920 * US, 100 * US)
    assert timeline.busy_ns + timeline.unrecorded_ns + timeline.idle_ns == timeline.window_ns == 10_000 * US
    screen = " ".join(shown(tmp_path / "trace.json", "--brief").split())
    assert "39.2 % not recorded: launches whose work is not in the trace" in screen
    assert "idle 1.0 %" in screen


def test_a_graph_that_was_launched_while_other_work_ran_fills_the_gap_after_it(tmp_path: Path) -> None:
    trace = step_with(lambda trace: trace.call("cudaGraphLaunch", 500, 50, correlation=99))
    timeline = trace.analyze(tmp_path).timeline
    assert (timeline.unrecorded_ns, timeline.idle_ns) == (4_000 * US, 20 * US)


def test_a_trace_that_is_cut_off_has_no_idle_time_after_the_cut(tmp_path: Path) -> None:
    """The file ends before the events of B and of what was launched after it: 5,020 to 10,000 are not known."""
    trace = step_with(lambda trace: None)
    late = [event for event in trace.events if event["cat"] == "kernel" and event["ts"] > 5_000]
    trace.events = [event for event in trace.events if event not in late] + late
    text = trace.text()
    cut = text[: text.rindex('"name": "ampere')]
    (tmp_path / "cut.json").write_text(cut)
    anatomy = opanatomy.analyze(tmp_path / "cut.json")
    assert anatomy.timeline.unrecorded_ns == 4_990 * US
    assert anatomy.timeline.idle_ns == (20 + 3_990) * US
    first = shown(tmp_path / "cut.json", "--brief").splitlines()[1]
    assert first.startswith("the file is cut off")


def test_launches_without_any_kernel_are_said_first_and_no_idle_time(tmp_path: Path) -> None:
    trace = Host()
    trace.host("aten::mm", 0, 20)
    for number in range(9):
        trace.call("cudaLaunchKernel", 10 * number, 5, correlation=number + 1)
        trace.call("cudaGetDevice", 10 * number + 6, 1)
    anatomy = trace.analyze(tmp_path)
    assert anatomy.timeline.idle_ns == 0
    assert anatomy.caveats[0].startswith("no device work was recorded, only 9 launches of it")
    lines = shown(tmp_path / "trace.json", "--brief").splitlines()
    assert lines[1].startswith("no device work was recorded")
    assert not any(line.startswith("busy") for line in lines)


def test_a_host_only_trace_of_a_gpu_is_none_of_a_cpu(tmp_path: Path) -> None:
    trace = Host()
    trace.host("aten::conv2d", 0, 100)
    trace.host("aten::cudnn_convolution", 10, 80)
    anatomy = trace.analyze(tmp_path)
    assert anatomy.environment.host_only
    text = shown(tmp_path / "trace.json")
    assert text.splitlines()[1].startswith("only the host was recorded: the trace has aten::cudnn_convolution")
    assert "no GPU took part" not in text
    assert "the framework" not in text.lower()
    assert "What the device did is not known. The host spent 80.0 us of 100 us in operators" in " ".join(text.split())


@pytest.mark.parametrize("operator", ["aten::mkldnn_convolution", "aten::_scaled_dot_product_flash_attention_for_cpu"])
def test_a_trace_of_the_cpu_is_one(operator: str, tmp_path: Path) -> None:
    trace = Host()
    trace.host(operator, 0, 100)
    anatomy = trace.analyze(tmp_path)
    assert (anatomy.environment.host_only, anatomy.caveats) == (False, ())


# --------------------------------------------------------------------------------------------------- which steps count


def steps(lengths: list[int], *, busy: int = 800, before: int = 0, first: int = 1) -> Host:
    """Steps of these lengths (us) one after the other, each with one kernel of `busy` us from its begin on; `before`
    is work of the step before, which runs first on the device."""
    trace, at, free = Host(), 0, before
    if before:
        trace.work(-before - 20, 0, before)
    for number, length in enumerate(lengths, first):
        trace.annotation(f"ProfilerStep#{number}", at, length)
        trace.host("aten::mm", at, 20)
        trace.work(at, max(at, free), busy)
        at, free = at + length, max(at, free) + busy
    return trace


def test_a_step_with_a_pause_is_named_and_gives_no_figure(tmp_path: Path) -> None:
    anatomy = steps([1_000, 9_000, 1_100]).analyze(tmp_path)
    assert [row.set_aside for row in anatomy.step.steps] == [None, "a pause is in it", None]
    step, timeline = anatomy.step, anatomy.timeline
    assert (step.count, step.wall_ns, timeline.window_ns) == (2, 1_050 * US, 2_100 * US)
    assert (timeline.busy_ns, timeline.idle_ns) == (1_600 * US, 500 * US)
    assert sum(row.time_ns for row in anatomy.classes) == 1_600 * US
    assert (anatomy.ledger.outside_window_ns, anatomy.ledger.set_aside_ns) == (800 * US, 800 * US)
    screen = " ".join(shown(tmp_path / "trace.json", "--brief").split())
    assert "without step 2 (9.00 ms): a pause is in it" in screen
    assert "step 1.05 ms profiled" in screen
    assert "idle 23.8 %" in screen


def test_a_step_with_the_work_of_another_is_never_the_one_that_stands_for_all(tmp_path: Path) -> None:
    """The device is a step behind when the trace begins: 600 us of the first step are another's."""
    anatomy = steps([1_000, 1_000, 1_000], before=600).analyze(tmp_path)
    assert [row.set_aside for row in anatomy.step.steps] == ["other steps' work is in it", None, None]
    assert (anatomy.step.wall_ns, anatomy.step.count) == (800 * US, 2)


def test_one_step_alone_is_without_the_time_of_the_step_before(tmp_path: Path) -> None:
    """1,400 us pass until its kernel is done, in 600 of which the device did the work of the step before."""
    anatomy = steps([1_000], before=600).analyze(tmp_path)
    (row,) = anatomy.step.steps
    assert (row.wall_ns, row.outside_ns, row.set_aside) == (1_400 * US, 600 * US, None)
    assert anatomy.step.wall_ns == 800 * US


def test_every_fourth_step_that_updates_the_weights_counts(tmp_path: Path) -> None:
    """Three micro-steps and one with the optimizer are of one cycle: leaving it out would hide the optimizer."""
    trace = steps([1_000] * 4)
    trace.annotation("Optimizer.step#SGD.step", 3_100, 300)
    trace.host("aten::add_", 3_150, 20)
    trace.work(3_160, 3_900, 50, name=MAP)
    anatomy = trace.analyze(tmp_path)
    assert [row.set_aside for row in anatomy.step.steps] == [None] * 4
    assert anatomy.step.phase_ns.get("optimizer") == 50 * US // 4


def test_a_step_of_other_calls_among_like_ones_does_not_count(tmp_path: Path) -> None:
    trace = steps([1_000] * 4)
    for place in range(3):
        trace.work(2_100 + place, 2_850 + 20 * place, 10, name=MAP)
    anatomy = trace.analyze(tmp_path)
    assert [row.set_aside for row in anatomy.step.steps] == [None, None, "it makes other calls", None]


def test_a_last_step_with_hardly_any_work_does_not_count(tmp_path: Path) -> None:
    trace = steps([1_000])
    trace.annotation("ProfilerStep#2", 1_000, 100)
    trace.work(1_010, 1_020, 5, name=MAP)
    anatomy = trace.analyze(tmp_path)
    assert [row.set_aside for row in anatomy.step.steps] == [None, "hardly any work is in it"]


def test_a_trace_without_steps_has_one_window(tmp_path: Path) -> None:
    """From the first device work to the last: busy, phases and SM efficiency are of the same 2 ms."""
    trace = Host()
    trace.host("aten::mm", 0, 20)
    trace.work(10, 9_000, 1_000)
    trace.host("aten::mm", 9_500, 20)
    trace.work(9_510, 10_000, 1_000)
    trace.host("aten::view", 11_100, 20)
    for event in trace.events:
        if event["cat"] == "kernel":
            event["args"] |= {"blocks per SM": 2.0}
    anatomy = trace.analyze(tmp_path)
    assert (anatomy.step.wall_ns, anatomy.timeline.window_ns) == (2_000 * US, 2_000 * US)
    assert (anatomy.timeline.busy_ns, anatomy.timeline.around_ns) == (2_000 * US, 9_120 * US)
    assert anatomy.device.sm_efficiency == 1
    assert anatomy.device.utilization == 1


@pytest.mark.parametrize("lone", [False, True])
def test_a_step_that_does_not_count_on_one_rank_counts_on_none(lone: bool, tmp_path: Path) -> None:
    for rank in range(2):
        trace = steps([1_000, 9_000 if rank else 1_000, 1_000])
        trace.metadata["distributedInfo"] = {"rank": rank, "world_size": 2}
        trace.write(tmp_path / f"rank-{rank}.json")
    if lone:  # each by itself
        counts = [opanatomy.analyze(tmp_path / f"rank-{rank}.json").step.count for rank in range(2)]
        assert counts == [3, 2]
        return
    anatomy = opanatomy.analyze(tmp_path)
    assert (anatomy.step.count, anatomy.step.wall_ns) == (4, 1_000 * US)
    assert [rank.steps for rank in anatomy.ranks] == [2, 2]


def test_means_on_the_cpu_are_of_the_steps_that_count(tmp_path: Path) -> None:
    trace = HandMade()
    for number, (start, length) in enumerate([(0, 100), (100, 900), (1_000, 100)], 1):
        trace.annotation(f"ProfilerStep#{number}", start, length)
        trace.host("aten::mm", start + 10, 60)
    anatomy = opanatomy.analyze(trace.write(tmp_path / "trace.json"))
    assert [row.set_aside for row in anatomy.step.steps] == [None, "a pause is in it", None]
    assert (anatomy.step.wall_ns, anatomy.step.busy_ns, anatomy.step.framework_ns) == (100 * US, 60 * US, 40 * US)
    assert sum(row.time_ns for row in anatomy.classes) == 120 * US
    assert json.loads(shown(tmp_path / "trace.json", "-f", "json"))["ledger"]["set_aside_ns"] == 60_000
