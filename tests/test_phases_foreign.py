"""Phases and modules of traces from elsewhere: hand-made ones for each rule, and training loops against their truth."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, record_function
from torch.utils.checkpoint import checkpoint

import opanatomy
from opanatomy.__main__ import main
from opanatomy.attribution.attribute import Attribution, attribute
from opanatomy.attribution.phases import phase_of_annotation, phase_rules, phase_rules_of
from opanatomy.errors import UsageError
from opanatomy.pipeline import analyze_trace
from opanatomy.records.anatomy import Anatomy, Check, Difference
from opanatomy.records.taxonomy import BACKWARD, FORWARD, OPTIMIZER, PHASES, OperatorClass, Phase
from opanatomy.trace.read import Trace, read_trace
from tests.handmade import HandMade

ENGINE = "autograd::engine::evaluate_function: "


class Loop(HandMade):
    """A training loop on thread 1, its autograd on thread 2; kernels take 10 us each and are named as they should be
    placed."""

    launched = 0

    def runs(self, start: float, phase: str, *, thread: int = 1) -> None:
        """Launch a kernel."""
        self.launched += 1
        self.launch(start, self.launched, thread=thread)
        self.kernel(phase, 10_000 + 20 * self.launched, 10, self.launched)

    def operator(self, start: float, phase: str, *, name: str = "aten::mm", thread: int = 1, **named: Any) -> None:
        """An operator of 20 us that launches a kernel."""
        self.host(name, start, 20, thread=thread, **named)
        self.runs(start + 5, phase, thread=thread)

    def node(
        self, start: float, sequence: int | None, *, length: float = 40, thread: int = 2, made_on: int = 1
    ) -> None:
        """A node, inside its evaluation; what it runs begins 5 us later."""
        name = "MmBackward0" if sequence is not None else "torch::autograd::AccumulateGrad"
        self.host(f"{ENGINE}{name}", start, length, thread=thread, sequence=sequence, forward_thread=made_on)
        self.host(name, start + 1, length - 2, thread=thread, sequence=sequence, forward_thread=made_on)

    def backward(self, start: float, sequence: int, *, thread: int = 2) -> None:
        """A node that launches a kernel."""
        self.node(start, sequence, thread=thread)
        self.operator(start + 5, "backward", thread=thread)

    def flow(self, number: int, forward: tuple[int, float], backward: tuple[int, float]) -> None:
        """The arrow from an operator to its node, each by thread and start."""
        for kind, (thread, start) in (("s", forward), ("f", backward)):
            self.events.append(
                {"ph": kind, "id": number, "pid": 7, "tid": thread, "ts": start, "cat": "fwdbwd", "name": "fwdbwd"}
            )


def attributed(made: HandMade, folder: Path, rules: tuple[str, ...] = ()) -> tuple[Trace, Attribution]:
    trace = read_trace(made.write(folder / "t.json"))
    return trace, attribute(trace.names, trace.host, trace.launches, trace.work, trace.flows, phase_rules(rules))


def expect_as_named(made: HandMade, folder: Path, rules: tuple[str, ...] = ()) -> None:
    """Each kernel is named by the phase that it must be placed in."""
    trace, found = attributed(made, folder, rules)
    placed = [PHASES[code] for code in found.work.phase.tolist()]
    assert placed == [trace.names[number] for number in found.work.name.tolist()]


def module_of(trace: Trace, found: Attribution, name: str) -> list[str | None]:
    wanted = trace.names.index(name)
    return [found.host.module.at(row) for row in np.flatnonzero(found.host.name == wanted).tolist()]


# ------------------------------------------------------------------------------------------ compiled code and graphs


def compiled_step() -> Loop:
    """The number is on `CompiledFunction`; what it calls runs in an annotation inside it."""
    made = Loop()
    made.annotation("ProfilerStep#1", 0, 1000)
    made.host("Torch-Compiled Region: 0/0", 10, 100)
    made.host("CompiledFunction", 20, 80, sequence=5)
    made.annotation("## Call CompiledFxGraph fa2gsh ##", 22, 70)
    made.operator(30, "forward")
    made.operator(60, "forward", name="triton_red_fused_mul_0")
    made.host(f"{ENGINE}CompiledFunctionBackward", 210, 90, thread=2, sequence=5, forward_thread=1)
    made.host("CompiledFunctionBackward", 211, 80, thread=2, sequence=5, forward_thread=1)
    made.annotation("## Call CompiledFxGraph bqz7xx ##", 212, 70, thread=2)
    made.operator(220, "backward", thread=2)
    made.annotation("Optimizer.step#AdamW.step", 400, 100)
    made.operator(410, "optimizer", name="aten::_foreach_add_")
    return made


def test_the_forward_of_a_compiled_model_is_forward(tmp_path: Path) -> None:
    expect_as_named(compiled_step(), tmp_path)


def test_the_backward_of_compiled_code_is_not_run_again(tmp_path: Path) -> None:
    """`CompiledFunctionBackward` is a Python function of its own, with a number, below the node of that name."""
    made = compiled_step()
    made.host("CompiledFunctionBackward", 213, 66, thread=2, sequence=0)
    expect_as_named(made, tmp_path)


def test_compiled_autograd_is_backward(tmp_path: Path) -> None:
    """It runs no nodes: a compiled region with a mark in its number."""
    made = Loop()
    made.host("Torch-Compiled Region: 0/0", 10, 80)
    made.host("CompiledFunction", 20, 60, sequence=5)
    made.operator(30, "forward")
    made.host("Torch-Compiled Region: !0/1/0", 110, 80)
    made.operator(120, "backward")
    made.annotation("Optimizer.step#AdamW.step", 400, 100)
    made.operator(410, "optimizer", name="aten::_foreach_add_")
    expect_as_named(made, tmp_path)


def test_graphs_are_of_the_phase_around_their_launch(tmp_path: Path) -> None:
    made = compiled_step()
    for start, thread, phase in ((50, 1, "forward"), (250, 2, "backward"), (440, 1, "optimizer"), (600, 1, "other")):
        made.launched += 1
        made.launch(start, made.launched, thread=thread, name="cudaGraphLaunch")
        for number in range(2):
            made.kernel(phase, 11_000 + 20 * made.launched + 10 * number, 5, made.launched)
    expect_as_named(made, tmp_path)


@pytest.mark.parametrize(
    ("kernel", "said"), [("sm80_xmma_wgrad_implicit_gemm", True), ("ampere_sgemm_128x64_nn", False)]
)
def test_a_graph_of_whole_steps_is_doubted(kernel: str, said: bool, tmp_path: Path) -> None:
    """Nothing in the trace tells where its forward ends: neither nodes nor an optimizer ran."""
    made = Loop()
    made.annotation("ProfilerStep#1", 0, 1000)
    made.operator(10, "aten::copy_")
    made.launch(50, 99, name="cudaGraphLaunch")
    made.kernel("ampere_sgemm_128x64_nn", 10_100, 10, 99)
    made.kernel(kernel, 10_200, 5, 99)
    warnings = analyze_trace(made.write(tmp_path / "t.json")).warnings
    assert any("graphs ran 0.005 ms of kernels" in warning for warning in warnings) == said


def test_work_launched_right_in_a_step_is_of_the_phase_at_that_time(tmp_path: Path) -> None:
    """A hand-written Triton kernel has no operator: only the step is around its launch."""
    made = Loop()
    made.annotation("ProfilerStep#1", 0, 1000)
    made.runs(5, "other")
    made.operator(10, "forward", sequence=3)
    made.runs(40, "forward")
    made.operator(50, "forward", sequence=4)
    made.backward(100, 4)
    made.backward(150, 3)
    made.runs(250, "optimizer")
    made.annotation("Optimizer.step#SGD.step", 300, 50)
    made.runs(310, "optimizer")
    made.runs(400, "other")
    expect_as_named(made, tmp_path)


# ---------------------------------------------------------------------------------------------- loops and their gaps


def test_a_forward_inside_the_optimizers_step(tmp_path: Path) -> None:
    """Lightning hands its closure to the optimizer; LBFGS calls it again and again."""
    made = Loop()
    made.operator(5, "other", name="aten::copy_")
    made.annotation("Optimizer.step#LBFGS.step", 100, 900)
    for number, at in enumerate((100, 400)):
        made.operator(at + 20, "forward", sequence=2 * number)
        made.operator(at + 50, "forward", name="aten::where")  # no number, between two that have one
        made.operator(at + 80, "forward", sequence=2 * number + 1)
        made.operator(at + 105, "other", name="aten::item")
        made.annotation("Optimizer.zero_grad#LBFGS.zero_grad", at + 130, 30)
        made.operator(at + 135, "other", name="aten::zero_")
        made.backward(at + 170, 2 * number + 1)
        made.backward(at + 220, 2 * number)
        made.operator(at + 270, "optimizer", name="aten::dot")
    made.operator(1100, "other", name="aten::argmax")
    expect_as_named(made, tmp_path)


def test_what_follows_a_closure_is_not_of_the_next_update(tmp_path: Path) -> None:
    """The last node before an optimizer's step is that of the step before: what lies between is no clipping."""
    made = Loop()
    for step in range(2):
        at = 1000 * step
        made.annotation("Optimizer.step#AdamW.step", at + 100, 500)
        made.operator(at + 120, "forward", sequence=step)
        made.backward(at + 200, step)
        made.operator(at + 700, "other", name="aten::copy_")
    expect_as_named(made, tmp_path)


def test_what_is_not_differentiated_is_other_outside_of_the_forward(tmp_path: Path) -> None:
    """Evaluation under `no_grad`, loading on another thread; clipping and unscaling are part of the update."""
    made = Loop()
    for step in range(2):
        at = 1000 * step
        made.operator(at + 5, "other", name="aten::copy_")
        made.operator(at + 30, "forward", name="aten::embedding", sequence=10 * step)  # frozen: not differentiated
        made.operator(at + 60, "forward", sequence=10 * step + 1)
        made.operator(at + 90, "other", name="aten::stack", thread=3, sequence=step)
        made.operator(at + 120, "forward", name="aten::arange")
        made.operator(at + 150, "forward", sequence=10 * step + 2)
        made.operator(at + 180, "backward", name="aten::ones_like")
        made.backward(at + 210, 10 * step + 2)
        made.backward(at + 260, 10 * step + 1)
        made.operator(at + 310, "optimizer", name="aten::_amp_foreach_non_finite_check_and_unscale_")
        made.operator(at + 340, "optimizer", name="aten::linalg_vector_norm")
        made.annotation("Optimizer.step#AdamW.step", at + 400, 50)
        made.operator(at + 410, "optimizer", name="aten::_foreach_add_")
        made.operator(at + 500, "other", name="aten::mul_")  # an average of the weights
    for start in (2000, 2100):
        made.operator(start, "other", name="aten::addmm")
    expect_as_named(made, tmp_path)


def test_inference_stays_forward(tmp_path: Path) -> None:
    made = Loop()
    made.annotation("ProfilerStep#1", 0, 300)
    made.operator(10, "forward")
    made.operator(50, "forward", sequence=4)
    made.annotation("decode", 100, 50)
    made.operator(110, "forward")
    expect_as_named(made, tmp_path)


@pytest.mark.parametrize(
    "name", ["DistributedDataParallel.forward", "train_forward", "FullyShardedDataParallel.forward"]
)
def test_a_range_around_a_forward_is_forward(name: str, tmp_path: Path) -> None:
    """DDP sends its buffers, FSDP gathers its weights before the first operator that is differentiated."""
    made = Loop()
    made.annotation("train_step", 0, 400)
    made.operator(5, "other", name="aten::copy_")
    made.annotation(name, 30, 100)
    made.operator(40, "forward", name="c10d::broadcast_")
    made.operator(70, "forward", sequence=1)
    made.backward(200, 1)
    made.operator(300, "other", name="aten::copy_")
    expect_as_named(made, tmp_path)


def test_sharded_weights_are_gathered_in_the_pass_that_needs_them(tmp_path: Path) -> None:
    made = Loop()
    made.annotation("FSDP::root_pre_forward", 10, 30)
    made.operator(15, "forward", name="fsdp::all_gather_copy_in")
    made.operator(50, "forward", sequence=1)
    made.backward(100, 1)
    made.annotation("FSDP::root_post_backward_callback", 200, 30, thread=2)
    made.operator(205, "backward", name="fsdp::chunk_cat", thread=2)
    made.annotation("Optimizer.step#AdamW.step", 300, 50)
    made.operator(310, "optimizer", name="aten::_foreach_add_")
    made.annotation("FSDP::root_pre_forward", 410, 30)  # of an evaluation
    made.operator(415, "other", name="fsdp::all_gather_copy_in")
    expect_as_named(made, tmp_path)


def test_what_pipeline_stages_exchange_is_of_its_pass(tmp_path: Path) -> None:
    """One forward, one backward: what is sent is of the pass before, what is received of the one behind."""
    made = Loop()
    made.operator(10, "forward", name="c10d::recv_")
    made.operator(40, "forward", sequence=1)
    made.operator(70, "forward", name="c10d::send")
    made.operator(100, "forward", name="c10d::recv_")
    made.operator(130, "forward", sequence=2)
    made.operator(160, "backward", name="c10d::recv_")
    made.backward(200, 2)
    made.operator(250, "backward", name="c10d::send")
    made.operator(280, "backward", name="c10d::recv_")
    made.backward(310, 1)
    made.operator(360, "backward", name="c10d::send")
    made.operator(390, "optimizer", name="c10d::allreduce_")
    made.annotation("Optimizer.step#AdamW.step", 500, 50)
    made.operator(510, "optimizer", name="aten::_foreach_add_")
    expect_as_named(made, tmp_path)


# ------------------------------------------------------------------------------------------------ inside a backward


@pytest.mark.parametrize("name", ["c10d::alltoall_base_", "record_param_comms", "_c10d_functional::all_to_all_single"])
def test_a_collective_with_a_number_is_backward(name: str, tmp_path: Path) -> None:
    made = Loop()
    made.operator(10, "forward", sequence=5)
    made.node(100, 5, length=100)
    made.operator(105, "backward", name="aten::cat", thread=2)
    made.operator(130, "backward", name=name, thread=2, sequence=5)
    expect_as_named(made, tmp_path)


def test_a_function_that_a_backward_applies_is_backward(tmp_path: Path) -> None:
    """A Python function has a number of the thread's count even where no gradients are recorded; the count stays."""
    made = Loop()
    made.operator(10, "forward", name="_AlltoAllSingle", sequence=5)
    made.operator(40, "forward", name="_Scale", sequence=6)
    for start, name, inner in ((100, "_Scale", "_Copy"), (200, "_Scale", "_Copy"), (300, "_AlltoAllSingle", "c10d::x")):
        made.host(
            f"{ENGINE}{name}Backward", start, 60, thread=2, sequence=6 if name == "_Scale" else 5, forward_thread=1
        )
        made.host(f"{name}Backward", start + 1, 58, thread=2, sequence=6 if name == "_Scale" else 5, forward_thread=1)
        made.host(name if name != "_Scale" else inner, start + 5, 50, thread=2, sequence=0)
        made.operator(start + 10, "backward", name=inner if "::" in inner else "aten::mul", thread=2)
    expect_as_named(made, tmp_path)


def test_a_recomputed_forward_may_communicate(tmp_path: Path) -> None:
    made = Loop()
    made.operator(10, "forward", sequence=5)
    made.node(100, 5, length=200)
    made.operator(110, "recompute", thread=2, sequence=0)
    made.operator(140, "recompute", name="c10d::allreduce_", thread=2, sequence=1)
    made.operator(170, "recompute", name="aten::add", thread=2, sequence=1)
    made.operator(200, "backward", thread=2)
    expect_as_named(made, tmp_path)


def test_a_trace_may_begin_with_a_node_that_recomputes(tmp_path: Path) -> None:
    """Early profilers wrote no evaluation around a node: it is the first event itself."""
    made = Loop()
    made.host("CheckpointFunctionBackward", 100, 200, thread=2, sequence=5, forward_thread=1)
    made.operator(110, "recompute", thread=2, sequence=0)
    made.operator(200, "backward", thread=2)
    expect_as_named(made, tmp_path)


def test_weights_gathered_for_backward_are_not_recomputation(tmp_path: Path) -> None:
    made = Loop()
    made.operator(10, "forward", sequence=5)
    made.node(100, 5, length=250)
    made.annotation("FSDP::pre_backward (layers.1)", 110, 40, thread=2)
    made.operator(115, "backward", name="fsdp::split_with_sizes_copy", thread=2)
    made.annotation("FSDP::pre_forward (layers.1)", 160, 40, thread=2)
    made.operator(165, "recompute", name="fsdp::split_with_sizes_copy", thread=2)
    made.operator(210, "recompute", thread=2, sequence=0)
    made.operator(250, "backward", thread=2)
    expect_as_named(made, tmp_path)


def test_the_end_of_backward_on_autograds_thread_is_backward(tmp_path: Path) -> None:
    """DDP copies its buckets into the gradients behind the last node; in 2021 gradients were summed between nodes."""
    made = Loop()
    made.operator(10, "forward", sequence=5)
    made.operator(40, "forward", sequence=6)
    made.backward(100, 6)
    made.operator(145, "backward", name="aten::add", thread=2)
    made.backward(170, 5)
    made.operator(220, "backward", name="aten::copy_", thread=2)
    made.annotation("torch.distributed.ddp.reducer::copy_bucket_to_grad", 250, 40)
    made.operator(255, "backward", name="aten::copy_")
    made.annotation("Optimizer.step#SGD.step", 300, 50)
    made.operator(310, "optimizer", name="aten::_foreach_add_")
    expect_as_named(made, tmp_path)


def test_gloo_works_on_threads_of_its_own(tmp_path: Path) -> None:
    """Its annotations are of the phase in which their collective was started, however late they begin."""
    made = Loop()
    made.operator(10, "forward", sequence=5)
    made.node(100, 5, length=60)
    made.host("c10d::allreduce_", 110, 20, thread=2)
    made.backward(170, 4)
    for start, name in ((115, "gloo:all_reduce"), (250, "gloo:broadcast")):
        made.annotation(name, start, 60, thread=3)
        made.runs(start + 5, "backward", thread=3)
    made.annotation("Optimizer.step#SGD.step", 400, 50)
    made.operator(410, "optimizer", name="aten::_foreach_add_")
    expect_as_named(made, tmp_path)


def test_views_between_the_copies_of_a_reducer_are_backward(tmp_path: Path) -> None:
    """On the CPU the end of backward runs on the thread of the loop."""
    made = Loop()
    made.operator(10, "forward", sequence=5)
    made.backward(100, 5, thread=1)
    for start in (200, 250):
        made.operator(start, "backward", name="aten::as_strided")
        made.annotation("torch.distributed.ddp.reducer::copy_bucket_to_grad", start + 21, 29)
        made.operator(start + 25, "backward", name="aten::copy_")
    made.operator(300, "optimizer", name="aten::linalg_vector_norm")
    made.annotation("Optimizer.step#SGD.step", 400, 50)
    made.operator(410, "optimizer", name="aten::_foreach_add_")
    expect_as_named(made, tmp_path)


def test_an_optimizer_in_a_backward_hook_is_an_optimizer(tmp_path: Path) -> None:
    made = Loop()
    made.operator(10, "forward", sequence=5)
    made.backward(100, 5)
    made.node(150, None, length=100)
    made.annotation("Optimizer.step#SGD.step", 160, 50, thread=2)
    made.operator(170, "optimizer", name="aten::_foreach_add_", thread=2)
    made.operator(215, "backward", name="aten::add_", thread=2)
    expect_as_named(made, tmp_path)


def checkpointed(flows: bool) -> Loop:
    """Reentrant checkpointing on a device: recomputation numbers its operators on autograd's thread, from 4 on, where
    the forward on the main thread has operators of the same numbers."""
    made = Loop()
    made.host("opanatomy.module/embedding", 5, 60)
    for number, start in ((4, 10), (5, 40)):
        made.operator(start, "forward", sequence=number)
    made.host("opanatomy.module/layer", 70, 50)
    made.operator(80, "forward", name="CheckpointFunction", sequence=6)
    name = "CheckpointFunctionBackward"
    made.host(f"{ENGINE}{name}", 200, 300, thread=2, sequence=6, forward_thread=1)
    made.host(name, 201, 298, thread=2, sequence=6, forward_thread=1)
    made.host("opanatomy.module/layer", 205, 90, thread=2)
    for number, start in ((4, 210), (5, 250)):
        made.operator(start, "recompute", thread=2, sequence=number)
    for number, start in ((5, 300), (4, 400)):
        made.node(start, number, length=60, made_on=2)
        made.operator(start + 5, "backward", name="aten::bmm", thread=2)
    for number, start in ((5, 600), (4, 700)):
        made.node(start, number, length=60)
        made.operator(start + 5, "backward", name="aten::baddbmm", thread=2)
    if flows:
        arrows = ((4, 1, 10, 701), (5, 1, 40, 601), (6, 1, 80, 201), (4, 2, 210, 401), (5, 2, 250, 301))
        for number, (_, thread, forward, backward) in enumerate(arrows):
            made.flow(number, (thread, forward), (2, backward))
    return made


@pytest.mark.parametrize("flows", [True, False])
def test_the_same_numbers_on_two_threads(flows: bool, tmp_path: Path) -> None:
    made = checkpointed(flows)
    trace, found = attributed(made, tmp_path)
    assert len(trace.flows.forward_ns) == 5 * flows
    assert module_of(trace, found, "aten::bmm") == ["layer"] * 2
    assert module_of(trace, found, "aten::baddbmm") == ["embedding"] * 2
    expect_as_named(made, tmp_path)


def test_flows_go_before_numbers(tmp_path: Path) -> None:
    """Numbers begin anew where a process forks or a thread ends; the profiler's arrows still lead to the operator."""
    made = Loop()
    for module, start, number in (("first", 10, 0), ("second", 60, 1)):
        made.host(f"opanatomy.module/{module}", start, 40)
        made.operator(start + 5, "forward", sequence=3)
        made.flow(number, (1, start + 5), (2, 201 + 100 * number))
        made.node(200 + 100 * number, 3)
        made.operator(205 + 100 * number, "backward", name="aten::bmm", thread=2)
    trace, found = attributed(made, tmp_path)
    assert module_of(trace, found, "aten::bmm") == ["first", "second"]


def test_flows_of_2022_and_broken_ones(tmp_path: Path) -> None:
    made = Loop()
    made.operator(10, "forward", sequence=3)
    made.backward(100, 3)
    for end in ("s", "f"):
        thread, start = (1, 10) if end == "s" else (2, 101)
        made.events.append({"ph": end, "id": "0x1", "pid": 7, "tid": thread, "ts": start, "cat": "forward_backward"})
        made.events.append({"ph": end, "pid": 7, "tid": thread, "ts": start, "cat": "fwdbwd", "name": "no id"})
        made.events.append({"ph": end, "id": 2, "pid": 7, "tid": 99, "ts": start, "cat": "fwdbwd", "name": "no thread"})
    made.flow(3, (1, 11), (2, 101))  # nothing starts there
    trace, _ = attributed(made, tmp_path)
    assert trace.flows.forward_ns.tolist() == [10_000, 11_000]
    expect_as_named(made, tmp_path)


def test_a_gradient_that_is_differentiated_again(tmp_path: Path) -> None:
    """With `create_graph` the operators of a backward have numbers; it is no forward run again."""
    made = Loop()
    made.host("opanatomy.module/critic", 5, 60)
    made.operator(10, "forward", sequence=1)
    made.node(100, 1, length=80)
    made.operator(105, "backward", name="aten::expand", thread=2, sequence=0)  # not differentiated itself
    made.operator(130, "backward", thread=2, sequence=1)
    made.operator(200, "forward", name="aten::norm", sequence=2)
    made.backward(300, 2)
    made.node(350, 1, made_on=2)
    made.operator(355, "backward", name="aten::bmm", thread=2)
    trace, found = attributed(made, tmp_path)
    assert module_of(trace, found, "aten::bmm") == ["critic"]
    expect_as_named(made, tmp_path)


# --------------------------------------------------------------------------------- training loops against their truth

X, Y = torch.randn(8, 16, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4


def truth(phase: str) -> record_function:
    return record_function(f"truth/{phase}")


def small_model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 4))


def closure_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], torch.Tensor]:
    def closure() -> torch.Tensor:
        with truth("forward"):
            loss = torch.nn.functional.cross_entropy(model(X) + torch.zeros(8, 4), Y)
        with truth("other"):
            optimizer.zero_grad(set_to_none=False)
        with truth("backward"):
            loss.backward()
        return loss

    return closure


def with_closure(optimizer_class: Any, **options: Any) -> Callable[[], None]:
    model = small_model()
    optimizer = optimizer_class(model.parameters(), **options)

    def step() -> None:
        with truth("other"), torch.no_grad():
            (X * 2).mean()
        with truth("optimizer"):
            optimizer.step(closure_of(model, optimizer))
        with truth("other"), torch.no_grad():
            model(X).argmax(1)

    return step


def gradient_penalty() -> Callable[[], None]:
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        x = X.clone().requires_grad_()
        with truth("forward"):
            score = model(x).sum()
        with truth("backward"):
            (gradient,) = torch.autograd.grad(score, x, create_graph=True)
        with truth("forward"):
            penalty = ((gradient.norm(2, dim=1) - 1) ** 2).mean()
        with truth("backward"):
            penalty.backward()
        with truth("optimizer"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        with truth("other"):
            optimizer.zero_grad(set_to_none=False)

    return step


class InnerGradient(torch.autograd.Function):
    """Computes its gradient in the forward, as fused losses do."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            out = (inner.tanh() * inner).sum()
            with truth("backward"):
                (gradient,) = torch.autograd.grad(out, inner)
        context.save_for_backward(gradient)
        return out.detach()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return context.saved_tensors[0] * gradient


class RunAgain(torch.autograd.Function):
    """Runs its forward again in its backward and differentiates that."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(x)
        return x.tanh() * 2

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = context.saved_tensors[0].detach()
        with torch.enable_grad():
            x.requires_grad_()
            with truth("recompute"):
                out = x.tanh() * 2
            with truth("backward"):
                return torch.autograd.grad(out, x, gradient)


def custom(function: type[torch.autograd.Function]) -> Callable[[], None]:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        with truth("forward"):
            loss = function.apply(model(X)).sum()
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()

    return step


class InnerScalar(torch.autograd.Function):
    """Its derivative is that of a scalar which its backward makes, as in lazily evaluated kernels."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            x = context.saved_tensors[0].detach().requires_grad_()
            return torch.autograd.grad((x.tanh() * gradient).sum(), x)


class AppliesOther(torch.autograd.Function):
    """Its backward applies functions, which have numbers, without gradients."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(x)
        return Cast.apply(x).float()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = context.saved_tensors
        return Cast.apply(gradient).float() * Cast.apply(x).float()


class Cast(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.bfloat16()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.float()


def with_create_graph() -> Callable[[], None]:
    """Nothing differentiates the gradient; between two passes without it."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        for create_graph in (False, True, False):
            with truth("forward"):
                loss = torch.nn.functional.cross_entropy(AppliesOther.apply(model(X)), Y)
            with truth("backward"), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch, against reference cycles
                loss.backward(create_graph=create_graph)
        with truth("optimizer"):
            optimizer.step()
        for parameter in model.parameters():
            parameter.grad = None

    return step


def of_functional_transforms() -> Callable[[], None]:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        with truth("forward"):
            return torch.nn.functional.cross_entropy(torch.func.functional_call(model, parameters, (X,)), Y)

    def step() -> None:
        with truth("backward"):
            gradients = torch.func.grad(loss)(values)
        with truth("optimizer"):
            for name, parameter in model.named_parameters():
                parameter.grad = gradients[name]
            optimizer.step()

    return step


def checkpointed_function() -> Callable[[], None]:
    """Nothing is run again but a function, whose operators have no numbers."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def part(x: torch.Tensor) -> torch.Tensor:
        if torch._C._current_graph_task_id() == -1:
            return AppliesOther.apply(x)
        with truth("recompute"):
            return AppliesOther.apply(x)

    def step() -> None:
        for use_reentrant in (True, False):
            with truth("forward"):
                loss = checkpoint(part, model(X), use_reentrant=use_reentrant).sum()
            with truth("backward"):
                loss.backward()
        with truth("optimizer"):
            optimizer.step()

    return step


def accumulating() -> Callable[[], None]:
    """Two micro-batches, a frozen and checkpointed part; evaluated after each step."""
    model = small_model()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[1:].parameters(), lr=0.1)

    def head(x: torch.Tensor) -> torch.Tensor:
        if torch._C._current_graph_task_id() == -1:
            return model[1:](x)
        with truth("recompute"):
            return model[1:](x)

    def step() -> None:
        for _ in range(2):
            with truth("forward"):
                loss = torch.nn.functional.cross_entropy(checkpoint(head, model[0](X), use_reentrant=False), Y)
            with truth("backward"):
                loss.backward()
        with truth("optimizer"):
            optimizer.step()
        with truth("other"), torch.no_grad():
            torch.nn.functional.cross_entropy(model(X), Y)

    return step


LOOPS = {
    "closure": lambda: with_closure(torch.optim.AdamW),
    "LBFGS": lambda: with_closure(torch.optim.LBFGS, max_iter=3),
    "LBFGS with line search": lambda: with_closure(torch.optim.LBFGS, max_iter=3, line_search_fn="strong_wolfe"),
    "gradient penalty": gradient_penalty,
    "gradient inside a forward": lambda: custom(InnerGradient),
    "forward inside a backward": lambda: custom(RunAgain),
    "scalar made and differentiated inside a backward": lambda: custom(InnerScalar),
    "functions applied inside a backward": lambda: custom(AppliesOther),
    "create_graph": with_create_graph,
    "torch.func.grad": of_functional_transforms,
    "checkpointed function": checkpointed_function,
    "accumulation, frozen, checkpointed": accumulating,
}


def recorded(step: Callable[[], None], path: Path, *, flows: bool) -> list[dict[str, Any]]:
    """Write the trace of two steps without our ranges (and flows); the ranges."""
    step()
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(2):
            step()
    profiler.export_chrome_trace(str(path))
    document = json.loads(path.read_text())
    events = document["traceEvents"]
    ranges = [event for event in events if event["name"].startswith("truth/") and event["ph"] == "X"]
    document["traceEvents"] = [
        event for event in events if not event["name"].startswith("truth/") and (flows or event.get("cat") != "fwdbwd")
    ]
    path.write_text(json.dumps(document))
    return ranges


def disagreements(path: Path, ranges: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """(truth, phase, operator) wherever the innermost of the ranges says another phase than the operator has."""
    trace = read_trace(path)
    found = attribute(trace.names, trace.host, trace.launches, trace.work, trace.flows)
    spans = sorted((round(one["ts"] * 1000), round((one["ts"] + one["dur"]) * 1000), one["name"]) for one in ranges)
    seen = set()
    for row, start in enumerate(found.host.start_ns.tolist()):
        name = trace.names[int(found.host.name[row])]
        inside = [label for begin, end, label in spans if begin <= start < end]
        if not inside or not name.startswith("aten::"):
            continue
        label = inside[-1].removeprefix("truth/")
        seen.add(label)
        phase = PHASES[found.host.phase[row]]
        if label != phase:
            yield label, str(phase), name
    assert {"forward", "backward", "optimizer"} <= seen


@pytest.mark.parametrize("flows", [True, False])
@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_placed_as_they_ran(name: str, flows: bool, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    ranges = recorded(LOOPS[name](), path, flows=flows)
    wrong = set(disagreements(path, ranges))
    # `RunAgain` and checkpointing detach what they saved before they run a forward again.
    again = ("forward inside a backward", "checkpointed function")
    assert wrong <= ({("backward", "recompute", "aten::detach")} if name in again else set())


class Forces(torch.nn.Module):
    """A forward that differentiates, as molecular models do: the loss is of a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)

    def forward(self, position: torch.Tensor) -> dict[str, torch.Tensor]:
        position = position.detach().requires_grad_()
        energy = self.second(torch.tanh(self.first(position))).sum()
        (force,) = torch.autograd.grad(energy, position, create_graph=True)
        return {"loss": (force**2).mean() + energy}


def test_nested_autograd_has_its_rows_in_the_module_table() -> None:
    """Every product is of a module: 4 x 8 x 16 and 4 x 16 x 1, forward and its gradient; in backward twice each, for
    the input and the weight, but the gradient of the first weight and the input of the second once more."""
    anatomy = opanatomy.profile(Forces(), torch.randn(4, 8))
    first, second = 2 * 4 * 8 * 16, 2 * 4 * 16
    flops = {
        (row.module, row.phase): row.flops
        for row in anatomy.modules
        if row.operator_class is OperatorClass.TENSOR_CONTRACTION
    }
    assert flops == {
        ("first", Phase.FORWARD): 2 * first,
        ("first", Phase.BACKWARD): 4 * first,
        ("second", Phase.FORWARD): 2 * second,
        ("second", Phase.BACKWARD): 3 * second,
    }


# ------------------------------------------------------------------------------------------- phases that the user maps


def pipeline_schedule() -> Loop:
    """Hand-scheduled parts of a pipeline; weight gradients are products outside of any node."""
    made = Loop()
    made.annotation("attn(F)", 10, 50)
    made.operator(20, "forward")
    made.annotation("mlp(B)", 100, 100)
    made.annotation("mlp(W)", 150, 40)
    made.operator(110, "backward")
    made.operator(160, "backward")
    made.annotation("update", 300, 100)
    made.operator(310, "optimizer")
    made.annotation("log", 340, 50)
    made.operator(350, "other")
    made.operator(500, "forward", sequence=9)
    made.annotation("mlp(B)", 600, 100)
    made.backward(610, 9)
    return made


RULES = (r"forward=\(F\)$", r"backward=\((B|W)\)$", "optimizer=^update", "other=^log$")


def test_ranges_of_a_trace_are_given_phases(tmp_path: Path) -> None:
    """The innermost range wins, also for what runs on autograd's thread meanwhile."""
    made = pipeline_schedule()
    expect_as_named(made, tmp_path, RULES)
    rules = phase_rules_of(
        {"forward": r"\(F\)$", "backward": [r"\(B\)$", r"\(W\)$"], "optimizer": "^up", "other": "og"}
    )
    assert [rule.phase for rule in rules] == ["forward", "backward", "backward", "optimizer", "other"]
    path = made.write(tmp_path / "t.json")
    times = dict.fromkeys(Phase, 0)
    for row in opanatomy.analyze(path, phases={rule.phase: rule.pattern.pattern for rule in rules[:2]}).classes:
        times[row.phase] += row.time_ns
    assert (times[Phase.FORWARD], times[Phase.BACKWARD]) == (20_000, 30_000)


def test_a_range_goes_before_what_is_inferred(tmp_path: Path) -> None:
    made = Loop()
    made.annotation("warm up", 0, 400)
    made.operator(10, "other", sequence=1)
    made.backward(100, 1)
    made.events[-1]["name"] = "other"
    made.operator(500, "forward", sequence=2)
    made.backward(600, 2)
    expect_as_named(made, tmp_path, ("other=warm",))


def test_a_range_that_begins_the_trace_says_the_phase_of_what_is_launched_right_in_it(tmp_path: Path) -> None:
    made = Loop()
    made.annotation("warm up", 0, 80)
    made.operator(10, "other", sequence=1)
    made.runs(35, "other")
    made.operator(50, "other", sequence=2)
    made.backward(100, 2)
    made.backward(150, 1)
    expect_as_named(made, tmp_path, ("other=warm",))


def test_a_range_on_autograds_thread_goes_before_one_elsewhere_at_that_time(tmp_path: Path) -> None:
    made = Loop()
    made.operator(10, "forward", sequence=9)
    made.node(600, 9, length=100)
    made.annotation("attn(F)", 610, 80, thread=2)
    made.annotation("update", 615, 80)
    made.operator(620, "forward", thread=2)
    expect_as_named(made, tmp_path, RULES)


def test_a_rule_that_fits_nothing_is_a_warning(tmp_path: Path) -> None:
    path = pipeline_schedule().write(tmp_path / "t.json")
    warnings = analyze_trace(path, phases=phase_rules((*RULES, r"recompute=\(R\)"))).warnings
    expected = r"no annotation of the trace has a name that matches '\\(R\\)': it adds nothing to the phase recompute"
    assert [warning for warning in warnings if "no annotation" in warning] == [expected]


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("forward", "--phase 'forward': no '=' in it - give PHASE=REGEX, such as --phase 'forward=(F)$'"),
        (
            "fwd=x",
            "--phase fwd=x: no phase 'fwd' - one of forward, backward, recompute, optimizer, prefill, decoding, other",
        ),
        (
            "forward=(F",
            "--phase forward=(F: not a regular expression: missing ), unterminated subpattern at position 0",
        ),
        ("forward=", "--phase forward=: not a regular expression - give one that is found in annotations' names"),
    ],
)
def test_a_rule_that_is_none(option: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = pipeline_schedule().write(tmp_path / "t.json")
    assert main(["analyze", str(path), "--phase", option]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"opanatomy: {line}")
    assert captured.err.count("\n") == 1


def test_a_mapping_that_is_none(tmp_path: Path) -> None:
    path = pipeline_schedule().write(tmp_path / "t.json")
    for phases in ({"fwd": "x"}, {"forward": "("}, {"forward": 3}, "forward=x"):
        with pytest.raises(UsageError, match="analyze: phases"):
            opanatomy.analyze(path, phases=phases)  # type: ignore[arg-type]


# -------------------------------------------------------------------------- a trace's own annotations: check and source


@pytest.mark.parametrize(
    ("phase", "names"),
    [
        (FORWARD, "## forward ##|forward|Forward|FORWARD|forward()|model.forward|forward_pass|Forward 3|fwd|# forward"),
        (FORWARD, "forward_step|forward-compute|DeepSpeedEngine.forward|fwd_microstep|fwd_inner_microstep|PP:0F3"),
        (FORWARD, "attn(F)|(F)|mlp(F) 2|F|F12|_forward_compute_chunk|[pl][profile]model_forward"),
        (FORWARD, "[pl][profile][Strategy]SingleDeviceStrategy.training_step|[pl][profile]training_step"),
        (BACKWARD, "## backward ##|backward|Backward|loss.backward()|backward pass|Backward 0|bwd|scaler.backward"),
        (BACKWARD, "backward_step|backward-compute|DeepSpeedEngine.backward|bwd_microstep|bwd_allreduce_microstep"),
        (BACKWARD, "attn(B)|mlp(W)|(W)|B|W3|PP:1B0|PP:1I2|PP:1W2|_weight_chunk|wgrad|backward_chunk"),
        (BACKWARD, "[pl][profile][Strategy]DDPStrategy.backward|[pl][profile]backward"),
        (OPTIMIZER, "## optimizer ##|optimizer|Optimizer|optimizer.step|optimizer_step|optimizer.step()|opt.step|opt"),
        (OPTIMIZER, "DeepSpeedEngine.step|step_microstep|[pl][profile][LightningModule]Net.optimizer_step"),
        (-1, "model.forward_head|forward_backward|layers.0.forward_proj|fast_forward|forward_embedding|optimizer.x"),
        (-1, "FeedForward|feed_forward|backward_hook|Optimizer.step#AdamW.step|options|update|forward.linear|step"),
        (-1, "forward-backward|_forward_backward_chunk|[pl][profile]run_training_batch|training_step|PP:0SEND_F1"),
        (-1, "[pl][profile]training_step_and_backward|PP:(0F1;1B2)OVERLAP_F_B|I|Net(FB)|f|FB|relu(f)"),
    ],
)  # fmt: skip
def test_spellings_of_phases(phase: int, names: str) -> None:
    assert {name: phase_of_annotation(name) for name in names.split("|")} == dict.fromkeys(names.split("|"), phase)


def times_of(anatomy: Anatomy) -> dict[str, int]:
    """The device time of each phase."""
    times: dict[str, int] = {}
    for row in anatomy.classes:
        times[str(row.phase)] = times.get(str(row.phase), 0) + row.time_ns
    return times


def annotated_check(anatomy: Anatomy) -> Check:
    (check,) = [check for check in anatomy.checks if check.quantity == "annotated phases"]
    return check


def dual_pipe(recompute: bool = False) -> Loop:
    """Chunks of two micro-batches on two threads and streams: a forward on one, meanwhile a backward on the other.

    Gradients are computed by hand in the backward, outside of nodes, those of weights after those of inputs; only
    attention is differentiated by autograd, on a thread of its own. Of three pairs of chunks a forward takes 3 kernels
    of 10 us, a backward 5 (with recomputation 6).
    """
    made = Loop()
    for chunk in range(3):
        at, number = 1000 * chunk, 10 * chunk
        made.annotation("attn(F)", at + 10, 80)
        made.operator(at + 20, "forward", sequence=number)
        made.annotation("mlp(F)", at + 100, 200)
        made.operator(at + 110, "forward", name="aten::bmm")
        made.operator(at + 250, "forward", name="aten::gelu", sequence=number + 1)
        made.annotation("mlp(B)", at + 20, 150, thread=3)
        if recompute:
            made.operator(at + 25, "recompute", name="aten::bmm", thread=3, sequence=number + 5)
            made.node(at + 140, number + 5, length=29, thread=3, made_on=3)
        made.operator(at + 50, "backward", thread=3)
        made.operator(at + 80, "backward", thread=3)
        made.annotation("attn(B)", at + 180, 100, thread=3)
        made.backward(at + 190, number)
        made.annotation("mlp(W)", at + 290, 90, thread=3)
        made.operator(at + 300, "backward", thread=3)
        made.operator(at + 330, "backward", thread=3)
    made.annotation("Optimizer.step#AdamW.step", 3500, 50)
    made.operator(3510, "optimizer", name="aten::_foreach_add_")
    # A stream runs what both threads launch in the order in which they do.
    launched = {event["args"]["correlation"]: event["ts"] for event in made.events if event["cat"] == "cuda_runtime"}
    kernels = [event for event in made.events if event["cat"] == "kernel"]
    for place, kernel in enumerate(sorted(kernels, key=lambda event: launched[event["args"]["correlation"]])):
        kernel["ts"] = 10_000 + 20 * place
    return made


@pytest.mark.parametrize("recompute", [False, True])
def test_a_pipeline_that_states_its_phases(recompute: bool, tmp_path: Path) -> None:
    """Forward 90 us; backward 150 us and 30 more where a forward runs again in it."""
    made = dual_pipe(recompute)
    expect_as_named(made, tmp_path)
    anatomy = analyze_trace(tmp_path / "t.json")
    times = {"forward": 90_000, "backward": 150_000, "optimizer": 10_000}
    assert times_of(anatomy) == times | ({"recompute": 30_000} if recompute else {})
    assert not [difference for check in anatomy.checks for difference in check.unexplained]
    check = annotated_check(anatomy)
    assert (check.compared, check.differences) == (0, ())
    assert check.not_checked is not None
    assert check.not_checked.startswith(
        "the trace states them, and is taken at its word: forward in attn(F), mlp(F); backward in"
    )
    assert not any("annotation" in warning for warning in anatomy.warnings)
    # What the user says stays above it, and then all of it.
    said = opanatomy.analyze(tmp_path / "t.json", phases={"other": r"mlp\(B\)"})
    assert times_of(said)["other"] > 0


def test_ranges_of_a_part_of_the_passes_are_not_taken(tmp_path: Path) -> None:
    """Four chunks in five have no ranges: 80 % of the time of the passes is inferred, and all of it stays so."""
    made = dual_pipe()
    made.events = [
        event for event in made.events
        if not event["name"].endswith(("(F)", "(B)", "(W)")) or event["ts"] < 500
    ]  # fmt: skip
    for chunk in range(3, 10):
        for number in range(5):
            made.operator(1000 * chunk + 50 * number, "forward", sequence=100 + 10 * chunk + number)
    anatomy = analyze_trace(made.write(tmp_path / "t.json"))
    named = r"^(mlp\(B\)|attn\(B\)|mlp\(W\))$"
    option = f"phases={ ({'backward': named})!r} takes the annotation"
    assert [text for text in anatomy.warnings if "annotation" in text and text.endswith(option)]


def test_annotations_that_disagree_are_taken(tmp_path: Path) -> None:
    """Weight gradients outside of any node: 10 of 20 us of what the trace calls backward."""
    made = Loop()
    made.annotation("Forward", 0, 60)
    made.operator(10, "forward", sequence=1)
    made.annotation("loss.backward()", 100, 200)
    made.backward(110, 1)
    made.operator(200, "backward", name="aten::addmm")
    made.annotation("optimizer.step", 400, 100)
    made.annotation("Optimizer.step#SGD.step", 410, 80)
    made.operator(420, "optimizer", name="aten::_foreach_add_")
    expect_as_named(made, tmp_path)
    reason = (
        "the trace states them, and is taken at its word: forward in Forward; backward in loss.backward(); optimizer in"
        " optimizer.step - inference places 10,000 ns elsewhere"
    )
    assert annotated_check(analyze_trace(tmp_path / "t.json")).not_checked == reason


def contradicted() -> Loop:
    """The range of the backward begins at the loss, which takes 10 of its 20 us: autograd says what that is."""
    made = Loop()
    made.annotation("forward", 0, 60)
    made.operator(10, "forward", sequence=1)
    made.annotation("backward", 100, 300)
    made.operator(110, "forward", name="aten::nll_loss_forward", sequence=2)
    made.node(150, 2)
    made.backward(200, 1)
    return made


def test_autograd_contradicts_an_annotation(tmp_path: Path) -> None:
    """What autograd differentiates stays forward; that is explained, with the option that says otherwise."""
    made = contradicted()
    expect_as_named(made, tmp_path)
    anatomy = analyze_trace(tmp_path / "t.json")
    cause = (
        "autograd recorded these operators to differentiate them: forward, inside an annotation of backward -"
        " phases={'backward': '^backward$'} takes the annotation"
    )
    assert annotated_check(anatomy).differences == (
        Difference(
            operator="annotated as backward", phase=Phase.BACKWARD, ours=10_000, other=20_000, cause=cause,
            evidence="aten::nll_loss_forward as forward 10,000 ns", time_ns=10_000,
        ),
    )  # fmt: skip
    assert not any("annotation" in warning for warning in anatomy.warnings)
    taken = opanatomy.analyze(tmp_path / "t.json", phases={"backward": "^backward$"})
    assert times_of(taken) == {"forward": 10_000, "backward": 20_000}


def test_nodes_in_a_forward_contradict_it(tmp_path: Path) -> None:
    """The gradient of another operator runs in it: a warning with evidence, and with the option to give."""
    made = Loop()
    made.annotation("backward 1", 0, 60)
    made.operator(10, "forward", sequence=1)
    made.annotation("forward 1", 100, 200)
    made.backward(110, 1)
    made.operator(200, "other")
    expect_as_named(made, tmp_path)
    anatomy = analyze_trace(tmp_path / "t.json")
    differences = annotated_check(anatomy).differences
    assert [(row.phase, row.ours, row.other, row.cause) for row in differences] == [
        (Phase.FORWARD, 0, 20_000, None),
        (Phase.BACKWARD, 0, 10_000, differences[1].cause),
    ]
    said = (
        "100.0% of the time that the trace's own annotations call forward lies in another phase: aten::mm as backward"
        " 10,000 ns, aten::mm as other 10,000 ns - phases={'forward': '^forward \\\\d+$'} takes the annotation"
    )
    assert said in anatomy.warnings


@pytest.mark.parametrize("name", ["forward_step", "F", "optimizer step"])
def test_a_range_around_forward_and_backward_is_no_statement(name: str, tmp_path: Path) -> None:
    """Of two steps; on the CPU nodes run on the loop's thread, on a device elsewhere."""
    for thread in (1, 2):
        made = Loop()
        for at in (0, 1000):
            made.annotation(name, at, 500)
            made.operator(at + 10, "forward", sequence=at + 1)
            made.backward(at + 100, at + 1, thread=thread)
        expect_as_named(made, tmp_path)
        anatomy = analyze_trace(tmp_path / "t.json")
        assert not any("annotation" in warning for warning in anatomy.warnings)
        assert not [check for check in anatomy.checks if check.quantity == "annotated phases" and check.differences]


def test_a_trace_without_annotations_has_no_check_of_them(tmp_path: Path) -> None:
    made = compiled_step()
    made.annotation("forward_head", 0, 300)
    assert attributed(made, tmp_path)[1].annotated is None
