"""Busy, idle and exposed time, steps, streams, launches and occupancy: one hand-made trace a rule, then laws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opanatomy.__main__ import main
from opanatomy.analysis.intervals import covered, covered_by_group, exposed, length, time_before, union, within
from opanatomy.analysis.step import HARDLY_ANY
from opanatomy.analysis.timeline import _filled_ns
from opanatomy.classification.kernels import uses_tensor_cores
from opanatomy.pipeline import analyze_trace
from opanatomy.records.anatomy import Anatomy, DeviceRow, StepRow
from opanatomy.records.taxonomy import OperatorClass
from tests.handmade import HandMade, training_step

US = 1000
GEMM, MAP = "ampere_sgemm_128x64_nn", "void at::native::vectorized_elementwise_kernel<4>"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


class Steps(HandMade):
    """A trace with device work; `run` launches one piece and has the device run it."""

    def run(self, name: str, launch: float | None, start: float, duration: float, **options: Any) -> None:
        correlation = len(self.events) + 1
        if launch is not None:
            self.launch(launch, correlation, name=options.pop("call", "cudaLaunchKernel"))
        device = options.pop("device", 0)
        arguments = options.pop("arguments", {})
        self.kernel(name, start, duration, correlation, **options)
        self.events[-1]["args"] |= {"device": device, **arguments}

    def analyze(self, folder: Path) -> Anatomy:
        return analyze_trace(self.write(folder / "trace.json"))


@pytest.fixture
def trace() -> Steps:
    made = Steps()
    made.metadata["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    return made


# ------------------------------------------------------------------------------------------------------------- idle


def test_idle_is_host_bound_where_the_next_kernel_was_launched_after_the_gap_began(
    trace: Steps, tmp_path: Path
) -> None:
    trace.annotation("ProfilerStep#1", 100, 100)
    trace.run(GEMM, 110, 120, 10)
    trace.run(GEMM, 140, 150, 20)
    timeline = trace.analyze(tmp_path).timeline
    # 20 before the first, 20 between the two, 30 after the last until the step ends
    assert (timeline.busy_ns, timeline.idle_ns, timeline.host_idle_ns) == (30 * US, 70 * US, 70 * US)
    assert (timeline.stream_idle_ns, timeline.other_idle_ns, timeline.unrecorded_ns) == (0, 0, 0)


def test_idle_is_a_stream_wait_where_the_next_was_launched_and_another_stream_worked_last(
    trace: Steps, tmp_path: Path
) -> None:
    trace.annotation("ProfilerStep#1", 100, 100)
    trace.run(GEMM, 100, 100, 40, stream=7)
    trace.run(MAP, 110, 145, 55, stream=20)
    timeline = trace.analyze(tmp_path).timeline
    assert (timeline.host_idle_ns, timeline.stream_idle_ns, timeline.other_idle_ns) == (0, 5 * US, 0)


def test_idle_is_other_between_launched_work_of_one_stream(trace: Steps, tmp_path: Path) -> None:
    trace.annotation("ProfilerStep#1", 100, 100)
    trace.run(GEMM, 100, 100, 40)
    trace.run(MAP, 110, 142, 58)
    timeline = trace.analyze(tmp_path).timeline
    assert (timeline.host_idle_ns, timeline.stream_idle_ns, timeline.other_idle_ns) == (0, 0, 2 * US)


def test_the_stream_that_worked_longest_decides_not_the_one_that_began_last(trace: Steps, tmp_path: Path) -> None:
    trace.annotation("ProfilerStep#1", 100, 100)
    trace.run(GEMM, 100, 100, 50, stream=7)
    trace.run(MAP, 101, 110, 10, stream=20)
    trace.run(MAP, 102, 153, 47, stream=20)
    assert trace.analyze(tmp_path).timeline.stream_idle_ns == 3 * US


def test_idle_before_work_without_a_launch_record_is_other(trace: Steps, tmp_path: Path) -> None:
    trace.annotation("ProfilerStep#1", 100, 100)
    trace.run(GEMM, 100, 100, 40)
    trace.run(MAP, None, 150, 50)
    timeline = trace.analyze(tmp_path).timeline
    assert (timeline.host_idle_ns, timeline.other_idle_ns) == (0, 10 * US)


def test_work_of_the_step_before_is_no_idleness(trace: Steps, tmp_path: Path) -> None:
    trace.run(GEMM, 50, 90, 60)
    trace.annotation("ProfilerStep#1", 100, 100)
    trace.run(GEMM, 120, 160, 40)
    anatomy = trace.analyze(tmp_path)
    timeline = anatomy.timeline
    assert anatomy.ledger.outside_window_ns == 60 * US
    assert (timeline.busy_ns, timeline.outside_ns) == (40 * US, 50 * US)
    # launched at 120, so it waited for the stream from 150 on
    assert (timeline.other_idle_ns, timeline.host_idle_ns) == (10 * US, 0)


# ---------------------------------------------------------------------------------------------- communication, copies


def test_what_no_other_work_hides_is_exposed(trace: Steps, tmp_path: Path) -> None:
    trace.annotation("ProfilerStep#1", 100, 200)
    trace.run(GEMM, 100, 100, 50, stream=7)
    trace.run(NCCL, 101, 140, 40, stream=20)
    trace.run("Memcpy HtoD (Pinned -> Device)", 102, 170, 30, stream=22, category="gpu_memcpy", call="cudaMemcpyAsync")
    trace.run("Memset (Device)", 103, 250, 10, stream=7, category="gpu_memset", call="cudaMemsetAsync")
    anatomy = trace.analyze(tmp_path)
    timeline, (step,) = anatomy.timeline, anatomy.step.steps
    assert (timeline.communication_ns, timeline.exposed_communication_ns) == (40 * US, 20 * US)
    assert (timeline.memcpy_ns, timeline.exposed_memcpy_ns) == (30 * US, 20 * US)
    assert timeline.computation_ns == 60 * US
    assert timeline.kernel_time_ns == 130 * US
    assert timeline.busy_ns == 110 * US
    assert (step.kernel_ns, step.memcpy_ns, step.memset_ns) == (90 * US, 30 * US, 10 * US)


def test_other_steps_work_neither_counts_as_communication_nor_hides_it(trace: Steps, tmp_path: Path) -> None:
    """A collective and a product launched by the step before, which run in this one."""
    trace.run(NCCL, 50, 110, 30, stream=20)
    trace.run(GEMM, 60, 150, 10, stream=7)
    trace.annotation("ProfilerStep#1", 100, 200)
    trace.run(GEMM, 101, 160, 20, stream=7)
    trace.run(NCCL, 102, 140, 40, stream=20)
    anatomy = trace.analyze(tmp_path)
    timeline, communication = anatomy.timeline, anatomy.communication
    assert communication is not None
    assert [phase.calls for phase in communication.phases] == [1]
    assert communication.running_ns == timeline.communication_ns == 40 * US
    assert communication.exposed_ns == timeline.exposed_communication_ns == 20 * US


def test_each_stream_has_a_row(trace: Steps, tmp_path: Path) -> None:
    trace.annotation("ProfilerStep#1", 100, 200)
    trace.run(MAP, 100, 110, 10, stream=7)
    trace.run(GEMM, 101, 120, 30, stream=7)
    trace.run(NCCL, 102, 120, 50, stream=20)
    first, second = trace.analyze(tmp_path).timeline.streams
    assert (first.device, first.stream, first.work, first.busy_ns) == (0, 20, 1, 50 * US)
    assert first.classes == {OperatorClass.COMMUNICATION: 50 * US}
    assert (second.stream, second.work, second.kernel_time_ns) == (7, 2, 40 * US)
    assert second.classes == {OperatorClass.TENSOR_CONTRACTION: 30 * US, OperatorClass.ELEMENTWISE: 10 * US}


def test_several_devices_are_averaged_and_one_that_only_copies_is_not_counted(trace: Steps, tmp_path: Path) -> None:
    trace.annotation("ProfilerStep#1", 100, 100)
    trace.run(GEMM, 100, 100, 80, device=0)
    trace.run(GEMM, 101, 140, 40, device=1)
    trace.run("Memcpy PtoP (Device -> Device)", 102, 150, 10, device=2, category="gpu_memcpy", call="cudaMemcpyAsync")
    anatomy = trace.analyze(tmp_path)
    timeline = anatomy.timeline
    assert (timeline.window_ns, timeline.busy_ns, timeline.idle_ns) == (100 * US, 60 * US, 40 * US)
    # device 0 after its work; device 1 before and after, for its work was launched at 101
    assert timeline.host_idle_ns == (20 + 60) // 2 * US
    assert [(row.device, row.busy_ns) for row in timeline.devices] == [(0, 80 * US), (1, 40 * US), (2, 10 * US)]
    assert timeline.kernel_time_ns == anatomy.step.kernel_time_ns == 130 * US
    assert anatomy.step.busy_ns == 60 * US
    assert anatomy.device.utilization == pytest.approx(0.6)


def test_the_time_of_a_phase_is_the_mean_of_the_devices(trace: Steps, tmp_path: Path) -> None:
    trace.annotation("ProfilerStep#1", 100, 100)
    trace.host("opanatomy.phase/forward", 100, 20)
    trace.run(GEMM, 101, 110, 80, device=0)
    trace.run(GEMM, 105, 140, 40, device=1)
    step = trace.analyze(tmp_path).step
    assert (step.phase_ns.get("forward"), step.phase_ns.get("backward")) == (60 * US, None)


# ------------------------------------------------------------------------------------------------------------- steps


def test_a_step_lasts_until_its_last_device_work_ends(trace: Steps, tmp_path: Path) -> None:
    trace.annotation("ProfilerStep#4", 100, 100)
    trace.run(GEMM, 110, 120, 110)
    trace.annotation("ProfilerStep#5", 200, 100)
    trace.run(GEMM, 210, 235, 10)
    trace.annotation("ProfilerStep#6", 300, 50)
    anatomy = trace.analyze(tmp_path)
    fourth, fifth, sixth = anatomy.step.steps
    assert [step.number for step in anatomy.step.steps] == [4, 5, 6]
    # the fourth ends at 230, the fifth begins there; the sixth has no work and is there all the same. Beside the 110 us
    # of the fourth 10 and 0 are hardly any work: only the fourth counts.
    assert (fourth.wall_ns, fourth.busy_ns, fourth.kernel_time_ns, fourth.work) == (130 * US, 110 * US, 110 * US, 1)
    assert (fifth.wall_ns, fifth.busy_ns) == (70 * US, 10 * US)
    assert (fifth.other_idle_ns, fifth.host_idle_ns) == (5 * US, 55 * US)
    assert (sixth.wall_ns, sixth.busy_ns, sixth.work) == (50 * US, 0, 0)
    assert [step.set_aside for step in (fourth, fifth, sixth)] == [None, HARDLY_ANY, HARDLY_ANY]
    assert (anatomy.step.count, anatomy.step.wall_ns, anatomy.timeline.window_ns) == (1, 130 * US, 130 * US)
    assert (anatomy.step.wall_min_ns, anatomy.step.wall_max_ns) == (130 * US, 130 * US)


def test_work_between_two_steps_belongs_to_the_step_before(trace: Steps, tmp_path: Path) -> None:
    trace.annotation("ProfilerStep#1", 100, 50)
    trace.run(GEMM, 160, 170, 10)
    trace.annotation("ProfilerStep#2", 200, 50)
    trace.run(GEMM, 210, 220, 30)
    first, second = trace.analyze(tmp_path).step.steps
    assert (first.wall_ns, first.kernel_time_ns) == (80 * US, 10 * US)
    assert (second.wall_ns, second.kernel_time_ns) == (50 * US, 30 * US)


def test_without_annotations_the_whole_trace_is_one_step(trace: Steps, tmp_path: Path) -> None:
    trace.host("aten::mm", 100, 20)
    trace.run(GEMM, 110, 130, 70)
    anatomy = trace.analyze(tmp_path)
    (step,) = anatomy.step.steps
    # from 130 to 200; the trace begins 30 us before
    assert (step.number, step.wall_ns, step.busy_ns) == (None, 70 * US, 70 * US)
    assert anatomy.timeline.window_ns == anatomy.step.wall_ns == 70 * US
    assert (anatomy.timeline.around_ns, anatomy.timeline.idle_ns) == (30 * US, 0)


def test_on_the_cpu_a_step_is_its_annotation(tmp_path: Path) -> None:
    made = HandMade()
    for number, duration in enumerate((100, 300, 200)):
        made.annotation(f"ProfilerStep#{number}", 1000 * number, duration)
        made.host("aten::mm", 1000 * number + 10, 50, shapes=[[8, 4], [4, 2]], types=["float", "float"])
    anatomy = analyze_trace(made.write(tmp_path / "trace.json"))
    assert [step.wall_ns for step in anatomy.step.steps] == [100 * US, 300 * US, 200 * US]
    assert anatomy.step.steps[0] == StepRow(
        number=0, wall_ns=100 * US, busy_ns=50 * US, kernel_time_ns=50 * US, framework_ns=50 * US
    )
    # the second is three times as long as the first and busy no longer
    assert [step.set_aside for step in anatomy.step.steps] == [None, "a pause is in it", None]
    assert (anatomy.step.wall_ns, anatomy.step.wall_min_ns, anatomy.step.wall_max_ns) == (150 * US, 100 * US, 200 * US)
    assert anatomy.timeline.launching is None
    assert anatomy.device.utilization is None


def test_a_phase_is_the_mean_of_the_steps(trace: Steps, tmp_path: Path) -> None:
    for number, long in enumerate((10, 20, 90)):
        begin = 1000 * number
        trace.annotation(f"ProfilerStep#{number}", begin, 900)
        trace.host("opanatomy.phase/forward", begin + 1, 100)
        trace.host("aten::mm", begin + 2, 50)
        trace.run(GEMM, begin + 10, begin + 20, long)
    step = trace.analyze(tmp_path).step
    assert (step.phase_ns.get("forward"), step.busy_ns, step.kernel_time_ns) == (40 * US, 40 * US, 40 * US)
    assert step.phase_ns.get("backward") is None


# ---------------------------------------------------------------------------------------------------------- launches


def test_launches_are_counted_and_timed(trace: Steps, tmp_path: Path) -> None:
    trace.launch(50, 999)  # before the window
    trace.annotation("ProfilerStep#1", 100, 200)
    trace.run(GEMM, 110, 120, 20)
    trace.run(MAP, 112, 140, 4)
    trace.run("Memcpy DtoH (Device -> Pageable)", 116, 145, 2, category="gpu_memcpy", call="cudaMemcpyAsync")
    trace.launch(200, 1000, name="cudaLaunchHostFunc")
    trace.launch(210, 1001, name="cudaStreamSynchronize")
    trace.run(GEMM, 220, 225, 10, call="cuLaunchKernelEx")
    launching = trace.analyze(tmp_path).timeline.launching
    assert launching is not None
    assert (launching.calls, launching.graph_calls, launching.call_ns) == (3, 0, 6 * US)
    assert (launching.synchronizing_calls, launching.synchronizing_ns) == (1, 2 * US)
    assert (launching.delayed, launching.delay_ns, launching.median_delay_ns) == (3, 43 * US, 10 * US)
    assert launching.longest_queue == 2
    assert (launching.kernels, launching.kernel_ns) == (3, 34 * US)
    assert (launching.tiny_kernels, launching.tiny_kernel_ns, launching.tiny_below_ns) == (1, 4 * US, 10 * US)


def test_a_graph_is_one_launch_with_the_delay_of_its_first_kernel(trace: Steps, tmp_path: Path) -> None:
    trace.annotation("ProfilerStep#1", 100, 200)
    trace.launch(110, 5, name="cudaGraphLaunch")
    for start in (130, 160, 145):
        trace.kernel(MAP, start, 10, 5)
    launching = trace.analyze(tmp_path).timeline.launching
    assert launching is not None
    assert (launching.calls, launching.graph_calls, launching.kernels) == (1, 1, 3)
    assert (launching.delayed, launching.delay_ns, launching.longest_queue) == (1, 20 * US, 1)


# --------------------------------------------------------------------------------------------------------- occupancy


def test_occupancy_is_weighted_by_time(trace: Steps, tmp_path: Path) -> None:
    trace.annotation("ProfilerStep#1", 100, 100)
    full = {"blocks per SM": 4.5, "est. achieved occupancy %": 50}
    half = {"blocks per SM": 0.5, "est. achieved occupancy %": 25.0}
    trace.run("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn", 100, 110, 30, arguments=full)
    trace.run(MAP, 101, 150, 10, arguments=half)
    trace.run(MAP, 102, 170, 20)
    device = trace.analyze(tmp_path).device
    assert device.utilization == pytest.approx(0.6)
    assert device.sm_efficiency == pytest.approx((30 + 0.5 * 10) / 100)
    assert device.occupancy == pytest.approx((0.5 * 30 + 0.25 * 10) / 40)
    assert (device.dimensioned_ns, device.tensor_core_ns) == (40 * US, 30 * US)


def test_kernels_at_once_fill_no_more_than_the_device(trace: Steps, tmp_path: Path) -> None:
    """Summed kernel by kernel three streams made 157.5 % of the time and 1.6 x what was busy."""
    trace.annotation("ProfilerStep#1", 100, 100)
    full, half, tenth = ({"blocks per SM": blocks} for blocks in (2.0, 0.5, 0.1))
    trace.run(MAP, 100, 100, 90, stream=7, arguments=full)
    trace.run(MAP, 101, 105, 60, stream=13, arguments=full)
    trace.run(GEMM, 102, 150, 45, stream=20, arguments=half)  # from 190 on alone
    trace.run(GEMM, 103, 192, 5, stream=21, arguments=tenth)  # 192 to 195 next to it, then alone
    device = trace.analyze(tmp_path).device
    assert device.sm_efficiency == pytest.approx((90 + 0.5 * 2 + 0.6 * 3 + 0.1 * 2) / 100)
    assert device.utilization == pytest.approx(0.97)
    assert device.dimensioned_ns == 200 * US


def test_kernels_of_two_devices_fill_one_each(trace: Steps, tmp_path: Path) -> None:
    trace.annotation("ProfilerStep#1", 100, 100)
    for device, long in ((0, 80), (1, 40)):
        trace.run(MAP, 100, 110, long, device=device, arguments={"blocks per SM": 1.0})
    device_figures = trace.analyze(tmp_path).device
    assert device_figures.sm_efficiency == pytest.approx(0.6)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12), st.sampled_from((0.0, 0.25, 0.5, 1.0))), max_size=12))
def test_what_is_filled_is_that_of_every_nanosecond(pieces: list[tuple[int, int, float]]) -> None:
    start, duration = columns([(start, duration) for start, duration, _ in pieces])
    share = np.array([one for _, _, one in pieces], dtype=np.float64)
    expected = sum(
        min(sum(one for start, long, one in pieces if start <= moment < start + long), 1) for moment in range(60)
    )
    assert _filled_ns(start, duration, share) == pytest.approx(expected)


def test_what_the_trace_does_not_record_is_none(trace: Steps, tmp_path: Path) -> None:
    trace.annotation("ProfilerStep#1", 100, 100)
    trace.run(GEMM, 100, 110, 30, arguments={"blocks per SM": "?"})
    device = trace.analyze(tmp_path).device
    assert (device.sm_efficiency, device.occupancy, device.dimensioned_ns) == (None, None, 0)
    assert device.tensor_core_ns == 0


def test_a_training_step_has_every_figure(tmp_path: Path) -> None:
    anatomy = analyze_trace(training_step().write(tmp_path / "trace.json"))
    assert anatomy.step.phase_ns == {"forward": 10 * US, "backward": 20 * US, "optimizer": 5 * US}
    assert (anatomy.timeline.busy_ns, anatomy.timeline.host_idle_ns) == (35 * US, 865 * US)


def _estimates(trace: Steps, folder: Path, capsys: pytest.CaptureFixture[str]) -> str | None:
    """The page's line of estimates."""
    assert main(["analyze", str(trace.write(folder / "trace.json")), "--section", "idle"]) == 0
    return next((line for line in capsys.readouterr().out.splitlines() if line.startswith("estimates")), None)


def test_what_of_the_time_on_tensor_cores_is_not_known_is_said(
    trace: Steps, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace.annotation("ProfilerStep#1", 100, 100)
    for place, (name, long) in enumerate((("nvjet_tst_128x64_64x4_NNT", 61), (MAP, 27), ("my_own_gemm", 12))):
        trace.run(name, 100 + place, 100 + 70 * place, long)
    device = trace.analyze(tmp_path).device
    assert (device.tensor_core_ns, device.tensor_core_unknown_ns) == (61 * US, 12 * US)
    text = " ".join((_estimates(trace, tmp_path, capsys) or "").split())
    assert text == "estimates tensor cores 61.0 % of kernel time (12.0 % not known)"


def test_there_is_no_share_on_tensor_cores_where_no_name_tells(
    trace: Steps, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace.annotation("ProfilerStep#1", 100, 100)
    trace.run("my_own_gemm", 100, 110, 30)
    trace.run(MAP, 101, 150, 30)
    device = trace.analyze(tmp_path).device
    assert (device.tensor_core_ns, device.tensor_core_unknown_ns) == (None, 30 * US)
    assert _estimates(trace, tmp_path, capsys) is None


@pytest.mark.parametrize(
    ("device", "lacks"),
    [
        ("Tesla P100-SXM2-16GB", True),
        ("NVIDIA GeForce GTX 1660 SUPER", True),
        ("NVIDIA GeForce MX450", True),
        ("NVIDIA T1000 8GB", True),
        ("Tesla K80", True),
        ("AMD Instinct MI50/MI60", True),
        ("AMD Radeon RX 6800 XT", True),
        ("Tesla V100-SXM2-16GB", False),
        ("Tesla T4", False),
        ("Quadro RTX 4000", False),
        ("NVIDIA GeForce RTX 2060", False),
        ("AMD Instinct MI250X", False),
        ("AMD Radeon RX 7900 XTX", False),
    ],
)
def test_a_device_without_tensor_cores_has_no_share_of_them(
    trace: Steps, device: str, lacks: bool, tmp_path: Path
) -> None:
    trace.metadata["deviceProperties"] = [{"id": 0, "name": device}]
    trace.annotation("ProfilerStep#1", 100, 100)
    trace.run(GEMM, 100, 110, 30)
    figures = trace.analyze(tmp_path).device
    expected = (None, None) if lacks else (0, 0)
    assert (figures.tensor_core_ns, figures.tensor_core_unknown_ns) == expected


@pytest.mark.parametrize(
    ("kernel", "uses"),
    [
        ("volta_sgemm_128x64_nn", False),
        ("ampere_sgemm_128x128_tn", False),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", True),
        ("volta_h884gemm_64x128_ldg8_nn", True),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", True),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_nn", True),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4>(Params)", True),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(Params)", True),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)", False),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel", True),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4", False),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tensor16x8x8_execute_kernel", True),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", True),
        ("void cutlass::device_kernel<cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32>(Params)", True),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4> >(Flash_fwd_params)", True),
        ("void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128> >(Params)", True),
        ("void flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<128> >(Flash_bwd_params)", False),
        ("void flash::flash_fwd_splitkv_combine_kernel<...>(Flash_fwd_params)", False),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)", True),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm70(PyTorchMemEffAttention::AttentionKernel::Params)", False),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64", True),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_LDSB1", True),
        ("Cijk_Ailk_Bljk_SB_MT64x64x8_SE_K1", False),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x64x32_wt32x32x8_ws1x1", True),
        ("_ZN2ck16tensor_operation6device39kernel_grouped_conv_fwd_xdl_cshuffle_v3I", True),
        ("attn_fwd", True),
        ("triton_tem_fused_mm_3", True),
        ("triton_poi_fused_gelu_0", False),
        ("void splitKreduce_kernel<32, 16, int, __nv_bfloat16>(Params)", False),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", False),
        ("void at::native::GammaBetaBackwardCUDAKernel<float, float>(long)", False),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>", False),
        ("volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", False),
        ("ampere_fp16_sgemm_fp16_128x64_tn", False),
        ("void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16, 4, 4, false>(Params)", False),
        ("void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)", False),
        ("void precomputed_convolve_sgemm<__nv_bfloat16, 512, 6, 7, 4, 3, 5, 1, false>(int)", False),
        ("triton_per_fused_mm_mul_30", False),
        ("void fbgemm_gpu::_compute_FP8_quantize_cuda_kernel<float>(float const*, int)", False),
        ("void dpsk::gemm::fp8::GemmKernel<dpsk::gemm::Traits<int> >(int)", True),
        ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 2112u, 7168u>(float*)", True),
        ("void deep_gemm::transpose_fp32<512u, 64u, 56u>(float const*, float*, unsigned int)", False),
        ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x64x256_s3_et128x64_m128x64x32_cga1x1x1_TN_dynBatch_sm100f", True),
        ("fmhaSm100aKernel_QkvE4m3OBfloat16H128PagedKvCausalP32VarSeqQ128Kv128PersistentContext", True),
        ("kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__0", True),
        ("kernel_cutlass_kernel_flash_attncuteflash_bwd_preprocessFlashAttentionBackwardPreprocess_object_at_", False),
        ("void marlin::Marlin<__half, 256, 1, 8, 8, 4, 8>(int4 const*)", True),
        ("_w8a8_block_fp8_matmul", True),
        ("_ZN5aiter36fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_32x256E", True),
        ("Cijk_SS_BiasS_HAS_ScaleAlphaVec_PostGSU8_VW4", False),
        ("Cijk_Ailk_Bljk_BBS_BH_UserArgs_shortname0_gfx942", None),
        ("void wvSplitK_hf_sml_<__hip_bfloat16, 64, 2, 16, 8, 2, 1>(int)", None),
        ("_bwd_kernel", None),
        ("my_own_gemm", None),
        ("my_own_thing", None),
    ],
)
def test_tensor_cores_by_name(kernel: str, uses: bool | None) -> None:
    assert uses_tensor_cores(kernel) is uses


# -------------------------------------------------------------------------------------------------------------- laws

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=12)


def columns(spans: list[tuple[int, int]]) -> tuple[Any, Any]:
    pairs = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def points(spans: list[tuple[int, int]]) -> set[int]:
    return {at for start, duration in spans for at in range(start, start + duration)}


@given(SPANS, SPANS)
def test_intervals_are_sets_of_nanoseconds(work: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    together = union(*columns(work))
    assert points(list(zip(together[0].tolist(), (together[1] - together[0]).tolist(), strict=True))) == points(work)
    assert length(together) == covered(*columns(work)) == len(points(work))
    assert (together[0][1:] > together[1][:-1]).all()
    assert exposed(columns(work), columns(others)) == len(points(work) - points(others))
    moments = np.arange(-2, 60)
    assert time_before(together, moments).tolist() == [sum(at < moment for at in points(work)) for moment in moments]
    assert within(together, moments, moments + 5).tolist() == [
        sum(moment <= at < moment + 5 for at in points(work)) for moment in moments
    ]


@given(st.lists(SPANS, max_size=4))
def test_groups_cover_what_each_covers_alone(groups: list[list[tuple[int, int]]]) -> None:
    spans = [(number, *span) for number, group in enumerate(groups) for span in group][::-1]
    number, start, duration = np.array(spans, dtype=np.int64).reshape(-1, 3).T
    covered_ns = covered_by_group(number, start, duration).tolist()
    assert covered_ns == [len(points(group)) for group in groups][: len(covered_ns)]
    assert not any(groups[len(covered_ns) :])


PIECES = st.lists(
    st.tuples(
        st.sampled_from([GEMM, MAP, NCCL]), st.none() | st.integers(0, 500), st.integers(0, 600), st.integers(0, 60),
        st.sampled_from([7, 20]), st.integers(0, 2),
    ),
    max_size=15,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(PIECES, st.integers(0, 3))
def test_every_nanosecond_of_the_window_has_one_cause(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[Any, ...]], steps: int
) -> None:
    trace = Steps()
    trace.host("aten::mm", 0, 600)
    for number in range(steps):
        trace.annotation(f"ProfilerStep#{number}", 50 + 150 * number, 130)
    for name, launch, start, duration, stream, device in pieces:
        trace.run(name, launch, start, duration, stream=stream, device=device)
    anatomy = trace.analyze(tmp_path_factory.mktemp("law"))
    timeline, inside = anatomy.timeline, anatomy.ledger.device_work_ns - anatomy.ledger.outside_window_ns
    if timeline.outside_ns is None:
        return
    counted = [row for row in anatomy.step.steps if row.set_aside is None]
    for row in (timeline, *timeline.devices, *anatomy.step.steps):
        assert parts(row) == (row.wall_ns if isinstance(row, StepRow) else timeline.window_ns)
    for row in anatomy.step.steps:
        assert sum(row.idle_causes.values()) == (row.host_idle_ns or 0) + (row.stream_idle_ns or 0) + (
            row.other_idle_ns or 0
        )
    assert sum(row.time_ns for row in timeline.causes) == timeline.idle_ns
    assert inside == timeline.kernel_time_ns == sum(row.kernel_time_ns for row in timeline.streams)
    assert inside == sum(row.kernel_time_ns for row in timeline.devices)
    assert inside == sum(row.kernel_time_ns or 0 for row in counted)
    set_aside = sum(row.kernel_time_ns or 0 for row in anatomy.step.steps) - inside
    assert set_aside == anatomy.ledger.set_aside_ns <= anatomy.ledger.outside_window_ns
    assert sum(sum(row.classes.values()) for row in timeline.streams) == inside
    assert sum(row.wall_ns for row in counted) == timeline.window_ns
    assert anatomy.step.count == len(counted) > 0
    assert len(anatomy.step.steps) == max(steps, 1)


def parts(row: Any) -> int:
    """The sum of the causes; none of them is negative."""
    idle = [row.host_idle_ns, row.stream_idle_ns, row.other_idle_ns]
    values = [row.busy_ns, row.outside_ns, row.unrecorded_ns, *idle]
    assert min(values) >= 0, row
    assert not isinstance(row, DeviceRow) or row.busy_ns <= row.kernel_time_ns
    return sum(values)
