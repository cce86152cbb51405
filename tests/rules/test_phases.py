"""Phases and modules of traces from elsewhere: hand-made ones for each rule, and training loops against their truth."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, record_function
from torch.utils.checkpoint import checkpoint

import opanatomy
from opanatomy.__main__ import main
from opanatomy.attribution.phases import phase_of_annotation
from opanatomy.errors import UsageError
from opanatomy.records.anatomy import Anatomy, Check, Difference
from opanatomy.records.taxonomy import PHASES, OperatorClass, Phase
from tests.support.made_trace import TraceBuilder, device_times, placed

ENGINE = "autograd::engine::evaluate_function: "
EVENT = re.compile(
    r"(?P<what>\[.*\]|\{.*\}|\w+) @(?P<start>\d+)(?:\+(?P<length>\d+))?(?: #(?P<sequence>\d+))?(?: !(?P<thread>\d+))?"
    r"(?: \^(?P<made_on>\d+))?(?: (?P<name>\S+))?"
)


class Loop(TraceBuilder):
    """A training loop on thread 1, its autograd on thread 2; kernels take 10 us each and are named by the phase that
    they must be placed in."""

    launched = 0

    def runs(self, start: float, phase: str, *, thread: int = 1, kernels: int = 1) -> None:
        """Launch a kernel, or a graph of several."""
        self.launched += 1
        self.launch(start, self.launched, thread=thread, name="cudaGraphLaunch" if kernels > 1 else "cudaLaunchKernel")
        for number in range(kernels):
            self.kernel(phase, 10_000 + 20 * self.launched + 5 * number, 10 // kernels, self.launched)

    def operator(self, start: float, phase: str, *, name: str = "aten::mm", thread: int = 1, **named: Any) -> None:
        """An operator of 20 us that launches a kernel."""
        self.host(name, start, 20, thread=thread, **named)
        self.runs(start + 5, phase, thread=thread)

    def node(self, start: float, sequence: int | None, length: float = 40, thread: int = 2, made_on: int = 1) -> None:
        """A node, inside its evaluation; what it runs begins 5 us later."""
        name = "MmBackward0" if sequence is not None else "torch::autograd::AccumulateGrad"
        self.host(f"{ENGINE}{name}", start, length, thread=thread, sequence=sequence, forward_thread=made_on)
        self.host(name, start + 1, length - 2, thread=thread, sequence=sequence, forward_thread=made_on)

    def flow(self, number: int, forward: tuple[int, float], backward: tuple[int, float]) -> None:
        """The arrow from an operator to its node, each by thread and start."""
        for kind, (thread, start) in (("s", forward), ("f", backward)):
            self.events.append(
                {"ph": kind, "id": number, "pid": 7, "tid": thread, "ts": start, "cat": "fwdbwd", "name": "fwdbwd"}
            )

    def take(self, text: str) -> Loop:
        """Events as text: what, `@start`, `+length`, `#sequence number`, `!thread`, `^thread of the forward`, a name.

        `[...]` is an annotation, `{...}` any operator, `node` a node of autograd, `gradient` one with a kernel, a
        phase an operator (by default `aten::mm`) whose kernel belongs to it, with `launch` or `graph` no operator.
        """
        for entry in text.split(";"):
            found = EVENT.fullmatch(" ".join(entry.split()))
            assert found is not None, entry
            what, name, start = found["what"], found["name"], int(found["start"])
            sequence = None if found["sequence"] is None else int(found["sequence"])
            length, thread = (
                int(found["length"] or 40),
                int(found["thread"] or (2 if what in ("node", "gradient") else 1)),
            )
            if what[0] == "[":
                self.annotation(what[1:-1], start, length, thread)
            elif what[0] == "{":
                self.host(
                    what[1:-1].replace("engine: ", ENGINE),
                    start,
                    length,
                    thread=thread,
                    sequence=sequence,
                    forward_thread=int(found["made_on"] or 0),
                )
            elif what in ("node", "gradient"):
                self.node(start, sequence, length, thread, int(found["made_on"] or 1))
                if what == "gradient":
                    self.operator(start + 5, "backward", thread=thread)
            elif name in ("launch", "graph"):
                self.runs(start, what, thread=thread, kernels=2 if name == "graph" else 1)
            else:
                self.operator(start, what, name=name or "aten::mm", thread=thread, sequence=sequence)
        return self


def expect_as_named(made: TraceBuilder, folder: Path, *rules: str) -> list[dict[str, Any]]:
    """Each kernel is named by the phase that it must be placed in."""
    pieces = made.placed(folder, *(word for rule in rules for word in ("--phase", rule)))
    assert pieces
    assert [piece["phase"] for piece in pieces] == [piece["kernel"] for piece in pieces]
    return pieces


def modules_of(pieces: list[dict[str, Any]], operator: str) -> list[str | None]:
    return [piece["module"] for piece in pieces if piece["operator"] == operator]


COMPILED = """
        [ProfilerStep#1] @0+1000; {Torch-Compiled Region: 0/0} @10+100; {CompiledFunction} @20+80 #5;
        [## Call CompiledFxGraph fa2gsh ##] @22+70; forward @30; forward @60 triton_red_fused_mul_0;
        {engine: CompiledFunctionBackward} @210+90 #5 !2 ^1;
        {CompiledFunctionBackward} @211+80 #5 !2 ^1; [## Call CompiledFxGraph bqz7xx ##] @212+70 !2;
        backward @220 !2; [Optimizer.step#AdamW.step] @400+100; optimizer @410 aten::_foreach_add_"""
PLACED = {
    "compiled code": COMPILED,
    # `CompiledFunctionBackward` is a Python function of its own, with a number, below the node of that name.
    "the backward of compiled code is not run again": f"{COMPILED}; {{CompiledFunctionBackward}} @213+66 #0 !2",
    # It runs no nodes: a compiled region with a mark in its number.
    "compiled autograd is backward": """
        {Torch-Compiled Region: 0/0} @10+80; {CompiledFunction} @20+60 #5; forward @30;
        {Torch-Compiled Region: !0/1/0} @110+80; backward @120; [Optimizer.step#AdamW.step] @400+100;
        optimizer @410 aten::_foreach_add_
    """,
    "graphs are of the phase around their launch": f"""{COMPILED};
        forward @50 graph; backward @250 !2 graph; optimizer @440 graph; other @600 graph
    """,
    # A hand-written Triton kernel has no operator: only the step is around its launch.
    "work launched right in a step is of the phase at that time": """
        [ProfilerStep#1] @0+1000; other @5 launch; forward @10 #3; forward @40 launch; forward @50 #4;
        gradient @100 #4; gradient @150 #3; optimizer @250 launch; [Optimizer.step#SGD.step] @300+50;
        optimizer @310 launch; other @400 launch
    """,
    # Lightning hands its closure to the optimizer; LBFGS calls it again and again.
    "a forward inside the optimizers step": """
        other @5 aten::copy_; [Optimizer.step#LBFGS.step] @100+900; forward @120 #0; forward @150 aten::where;
        forward @180 #1; other @205 aten::item; [Optimizer.zero_grad#LBFGS.zero_grad] @230+30;
        other @235 aten::zero_; gradient @270 #1; gradient @320 #0; optimizer @370 aten::dot; forward @420 #2;
        forward @450 aten::where; forward @480 #3; other @505 aten::item;
        [Optimizer.zero_grad#LBFGS.zero_grad] @530+30; other @535 aten::zero_; gradient @570 #3; gradient @620 #2;
        optimizer @670 aten::dot; other @1100 aten::argmax
    """,
    # The last node before an optimizer's step is that of the step before: what lies between is no clipping.
    "what follows a closure is not of the next update": """
        [ProfilerStep#1] @0+2000; [Optimizer.step#AdamW.step] @100+500; forward @120 #0; gradient @200 #0;
        other @700 aten::copy_; [Optimizer.step#AdamW.step] @1100+500;
        forward @1120 #1; gradient @1200 #1; other @1700 aten::copy_
    """,
    # Evaluation under `no_grad`, loading on another thread; clipping and unscaling are part of the update.
    "what is not differentiated is other outside of the forward": """
        [ProfilerStep#1] @0+3000; other @5 aten::copy_; forward @30 #0 aten::embedding; forward @60 #1;
        other @90 #0 !3 aten::stack;
        forward @120 aten::arange; forward @150 #2; backward @180 aten::ones_like; gradient @210 #2;
        gradient @260 #1; optimizer @310 aten::_amp_foreach_non_finite_check_and_unscale_;
        optimizer @340 aten::linalg_vector_norm; [Optimizer.step#AdamW.step] @400+50;
        optimizer @410 aten::_foreach_add_; other @500 aten::mul_; other @1005 aten::copy_;
        forward @1030 #10 aten::embedding; forward @1060 #11; other @1090 #1 !3 aten::stack;
        forward @1120 aten::arange; forward @1150 #12; backward @1180 aten::ones_like; gradient @1210 #12;
        gradient @1260 #11; optimizer @1310 aten::_amp_foreach_non_finite_check_and_unscale_;
        optimizer @1340 aten::linalg_vector_norm; [Optimizer.step#AdamW.step] @1400+50;
        optimizer @1410 aten::_foreach_add_; other @1500 aten::mul_; other @2000 aten::addmm;
        other @2100 aten::addmm
    """,
    # The first event of the trace; no node differentiates its result.
    "a range inside a numbered operator is of its pass": """
        {Scale} @10+60 #1; [its body] @20+40; forward @25 aten::mul; forward @100 #2; gradient @200 #2
    """,
    # Metrics between two operators of a forward are aside; a module without gradients is not.
    "a range inside a forward": """
        forward @10 #1; [metrics] @40+30; other @45 aten::mul; [opanatomy.module/embedding] @80+30;
        forward @85 aten::embedding; forward @120 #2; gradient @200 #2; gradient @250 #1
    """,
    "inference stays forward": """
        [ProfilerStep#1] @0+300; forward @10; forward @50 #4; [decode] @100+50; forward @110
    """,
    "sharded weights are gathered in the pass that needs them": """
        [FSDP::root_pre_forward] @10+30; forward @15 fsdp::all_gather_copy_in; forward @50 #1; gradient @100 #1;
        [FSDP::root_post_backward_callback] @200+30 !2; backward @205 !2 fsdp::chunk_cat;
        [Optimizer.step#AdamW.step] @300+50; optimizer @310 aten::_foreach_add_; [FSDP::root_pre_forward] @410+30;
        other @415 fsdp::all_gather_copy_in
    """,
    # One forward, one backward: what is sent is of the pass before, what is received of the one behind.
    "what pipeline stages exchange is of its pass": """
        forward @10 c10d::recv_; forward @40 #1; forward @70 c10d::send; forward @100 c10d::recv_; forward @130 #2;
        backward @160 c10d::recv_; gradient @200 #2; backward @250 c10d::send; backward @280 c10d::recv_;
        gradient @310 #1; backward @360 c10d::send; optimizer @390 c10d::allreduce_;
        [Optimizer.step#AdamW.step] @500+50; optimizer @510 aten::_foreach_add_
    """,
    # A Python function has a number of the thread's count even where no gradients are recorded; the count stays.
    "a function that a backward applies is backward": """
        forward @10 #5 _AlltoAllSingle; forward @40 #6 _Scale;
        {engine: _ScaleBackward} @100+60 #6 !2 ^1; {_ScaleBackward} @101+58 #6 !2 ^1;
        {_Copy} @105+50 #0 !2; backward @110 !2 aten::mul;
        {engine: _ScaleBackward} @200+60 #6 !2 ^1; {_ScaleBackward} @201+58 #6 !2 ^1;
        {_Copy} @205+50 #0 !2; backward @210 !2 aten::mul;
        {engine: _AlltoAllSingleBackward} @300+60 #5 !2 ^1;
        {_AlltoAllSingleBackward} @301+58 #5 !2 ^1; {_AlltoAllSingle} @305+50 #0 !2; backward @310 !2 c10d::x
    """,
    "a recomputed forward may communicate": """
        forward @10 #5; node @100+200 #5; recompute @110 #0 !2; recompute @140 #1 !2 c10d::allreduce_;
        recompute @170 #1 !2 aten::add; backward @200 !2
    """,
    # Early profilers wrote no evaluation around a node: it is the first event itself.
    "a trace may begin with a node that recomputes": """
        {CheckpointFunctionBackward} @100+200 #5 !2 ^1; recompute @110 #0 !2; backward @200 !2
    """,
    "weights gathered for backward are not recomputation": """
        forward @10 #5; node @100+250 #5; [FSDP::pre_backward (layers.1)] @110+40 !2;
        backward @115 !2 fsdp::split_with_sizes_copy; [FSDP::pre_forward (layers.1)] @160+40 !2;
        recompute @165 !2 fsdp::split_with_sizes_copy; recompute @210 #0 !2; backward @250 !2
    """,
    # DDP copies its buckets into the gradients behind the last node; in 2021 gradients were summed between nodes.
    "the end of backward on autograds thread is backward": """
        forward @10 #5; forward @40 #6; gradient @100 #6; backward @145 !2 aten::add; gradient @170 #5;
        backward @220 !2 aten::copy_; [torch.distributed.ddp.reducer::copy_bucket_to_grad] @250+40;
        backward @255 aten::copy_; [Optimizer.step#SGD.step] @300+50; optimizer @310 aten::_foreach_add_
    """,
    # Its annotations are of the phase in which their collective was started, however late they begin.
    "gloo works on threads of its own": """
        forward @10 #5; node @100+60 #5; {c10d::allreduce_} @110+20 !2; gradient @170 #4;
        [gloo:all_reduce] @115+60 !3; backward @120 !3 launch; [gloo:broadcast] @250+60 !3; backward @255 !3 launch;
        [Optimizer.step#SGD.step] @400+50; optimizer @410 aten::_foreach_add_
    """,
    # On the CPU the end of backward runs on the thread of the loop.
    "views between the copies of a reducer are backward": """
        forward @10 #5; gradient @100 #5 !1; backward @200 aten::as_strided;
        [torch.distributed.ddp.reducer::copy_bucket_to_grad] @221+29; backward @225 aten::copy_;
        backward @250 aten::as_strided; [torch.distributed.ddp.reducer::copy_bucket_to_grad] @271+29;
        backward @275 aten::copy_; optimizer @300 aten::linalg_vector_norm; [Optimizer.step#SGD.step] @400+50;
        optimizer @410 aten::_foreach_add_
    """,
    "an optimizer in a backward hook is an optimizer": """
        forward @10 #5; gradient @100 #5; node @150+100; [Optimizer.step#SGD.step] @160+50 !2;
        optimizer @170 !2 aten::_foreach_add_; backward @215 !2 aten::add_
    """,
    **{
        f"a range {name} around a forward": f"""
        [train_step] @0+400; other @5 aten::copy_; [{name}] @30+100; forward @40 c10d::broadcast_; forward @70 #1;
        gradient @200 #1; other @300 aten::copy_
    """
        for name in ("DistributedDataParallel.forward", "train_forward", "FullyShardedDataParallel.forward")
    },
    **{
        f"a collective {name} with a number": f"""
        forward @10 #5; node @100+100 #5; backward @105 !2 aten::cat; backward @130 #5 !2 {name}
    """
        for name in ("c10d::alltoall_base_", "record_param_comms", "_c10d_functional::all_to_all_single")
    },
    # With `create_graph` the operators of a backward have numbers; it is no forward run again.
    "a gradient that is differentiated again": """
        forward @10 #1; node @100+80 #1; backward @105 #0 !2 aten::expand; backward @130 #1 !2;
        forward @200 #2 aten::norm; gradient @300 #2; node @350+40 #1 ^2; backward @355 !2 aten::bmm
    """,
}


@pytest.mark.parametrize("name", PLACED)
def test_work_is_placed(name: str, tmp_path: Path) -> None:
    expect_as_named(Loop().take(PLACED[name]), tmp_path)


@pytest.mark.parametrize(
    ("kernel", "said"), [("sm80_xmma_wgrad_implicit_gemm", True), ("ampere_sgemm_128x64_nn", False)]
)
def test_a_graph_of_whole_steps_is_doubted(kernel: str, said: bool, tmp_path: Path) -> None:
    """Nothing in the trace tells where its forward ends: neither nodes nor an optimizer ran."""
    made = Loop().take("[ProfilerStep#1] @0+1000; aten @10")
    made.launch(50, 99, name="cudaGraphLaunch")
    made.kernel("ampere_sgemm_128x64_nn", 10_100, 10, 99)
    made.kernel(kernel, 10_200, 5, 99)
    assert (
        any(
            "graphs launched in forward ran 0.005 ms of kernels" in warning
            for warning in made.analyze(tmp_path).warnings
        )
        == said
    )


@pytest.mark.parametrize("flows", [True, False])
def test_the_same_numbers_on_two_threads(flows: bool, tmp_path: Path) -> None:
    """Reentrant checkpointing on a device: recomputation numbers its operators on autograd's thread, from 4 on, where
    the forward on the main thread has operators of the same numbers."""
    made = Loop().take("""
        {opanatomy.module/embedding} @5+60; forward @10 #4; forward @40 #5; {opanatomy.module/layer} @70+50;
        forward @80 #6 CheckpointFunction; {engine: CheckpointFunctionBackward} @200+300 #6 !2 ^1;
        {CheckpointFunctionBackward} @201+298 #6 !2 ^1; {opanatomy.module/layer} @205+90 !2;
        recompute @210 #4 !2; recompute @250 #5 !2; node @300+60 #5 ^2; backward @305 !2 aten::bmm;
        node @400+60 #4 ^2; backward @405 !2 aten::bmm; node @600+60 #5; backward @605 !2 aten::baddbmm;
        node @700+60 #4; backward @705 !2 aten::baddbmm
    """)
    if flows:
        arrows = ((1, 10, 701), (1, 40, 601), (1, 80, 201), (2, 210, 401), (2, 250, 301))
        for number, (thread, forward, backward) in enumerate(arrows):
            made.flow(number, (thread, forward), (2, backward))
    pieces = expect_as_named(made, tmp_path)
    assert modules_of(pieces, "aten::bmm") == ["layer"] * 2
    assert modules_of(pieces, "aten::baddbmm") == ["embedding"] * 2


@pytest.mark.parametrize("crossed", [False, True])
def test_flows_go_before_numbers(crossed: bool, tmp_path: Path) -> None:
    """Numbers begin anew where a process forks or a thread ends; the profiler's arrows still lead to the operator.
    Those of 2022 and broken ones do no harm."""
    made = Loop()
    for module, start, number in (("first", 10, 0), ("second", 60, 1)):
        made.host(f"opanatomy.module/{module}", start, 40)
        made.take(
            f"forward @{start + 5} #3; node @{200 + 100 * number} #3; backward @{205 + 100 * number} !2 aten::bmm"
        )
        made.flow(number, (1, start + 5), (2, 201 + 100 * (number ^ crossed)))
    for more, first in (
        ({"id": "0x1", "cat": "forward_backward"}, True),
        ({"cat": "fwdbwd", "name": "no id"}, False),
        ({"id": 2, "cat": "fwdbwd", "tid": 99}, False),
    ):
        for end, thread, start in (("s", 1, 15), ("f", 2, 201 + 100 * (crossed == first))):
            made.events.append({"ph": end, "pid": 7, "tid": thread, "ts": start, **more})
    made.flow(3, (1, 11), (2, 201))  # nothing starts there
    modules = ["second", "first"] if crossed else ["first", "second"]
    assert modules_of(expect_as_named(made, tmp_path), "aten::bmm") == modules


# --------------------------------------------------------------------------------- training loops against their truth

X, Y = torch.randn(8, 16, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4
Step = Callable[[], None]


def truth(phase: str) -> record_function:
    return record_function(f"truth/{phase}")


def small_model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 4))


def with_closure(optimizer_class: Any, **options: Any) -> Step:
    model = small_model()
    optimizer = optimizer_class(model.parameters(), **options)

    def closure() -> torch.Tensor:
        with truth("forward"):
            loss = torch.nn.functional.cross_entropy(model(X) + torch.zeros(8, 4), Y)
        with truth("other"):
            optimizer.zero_grad(set_to_none=False)
        with truth("backward"):
            loss.backward()
        return loss

    def step() -> None:
        with truth("other"), torch.no_grad():
            (X * 2).mean()
        with truth("optimizer"):
            optimizer.step(closure)
        with truth("other"), torch.no_grad():
            model(X).argmax(1)

    return step


def gradient_penalty() -> Step:
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


class CallsAgain(torch.autograd.Function):
    """Its backward differentiates a call that it makes itself: nothing was checkpointed."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(x)
        return x.tanh() * 2

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = context.saved_tensors[0].detach()
        with torch.enable_grad(), truth("backward"):
            x.requires_grad_()
            return torch.autograd.grad(x.tanh() * 2, x, gradient)


class Checkpointed:
    """The same under checkpointing, whose node is the first to want what is saved: the function is applied again."""

    @staticmethod
    def apply(x: torch.Tensor) -> torch.Tensor:
        def part(x: torch.Tensor) -> torch.Tensor:
            again = torch._C._current_graph_task_id() != -1
            with truth("recompute") if again else nullcontext():
                return CallsAgain.apply(x.exp())

        out: torch.Tensor = checkpoint(part, x, use_reentrant=False)
        return out


class Cast(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.bfloat16()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.float()


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


def custom(function: Any, *create_graph: bool) -> Step:
    """Steps with a function of the user's; with `create_graph` nothing differentiates the gradient."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        for create in create_graph or (False,):
            with truth("forward"):
                loss = function.apply(model(X)).sum()
            with truth("backward"), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch, against reference cycles
                loss.backward(create_graph=create)
        with truth("optimizer"):
            optimizer.step()
        for parameter in model.parameters():
            parameter.grad = None

    return step


def accumulating(*ways: bool) -> Step:
    """Micro-batches, a frozen and a checkpointed part; evaluated after each step."""
    model = small_model()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[1:].parameters(), lr=0.1)

    def head(x: torch.Tensor) -> torch.Tensor:
        if torch._C._current_graph_task_id() == -1:
            return model[1:](x)
        with truth("recompute"):
            return model[1:](x)

    def step() -> None:
        for reentrant in ways:
            with truth("forward"):
                x = model[0](X).requires_grad_()
                loss = torch.nn.functional.cross_entropy(checkpoint(head, x, use_reentrant=reentrant), Y)
            with truth("backward"):
                loss.backward()
        with truth("optimizer"):
            optimizer.step()
        with truth("other"), torch.no_grad():
            torch.nn.functional.cross_entropy(model(X), Y)

    return step


LOOPS: dict[str, Callable[[], Step]] = {
    "closure": lambda: with_closure(torch.optim.AdamW),
    "LBFGS": lambda: with_closure(torch.optim.LBFGS, max_iter=3, line_search_fn="strong_wolfe"),
    "gradient penalty": gradient_penalty,
    "a call inside a backward": lambda: custom(CallsAgain),
    "a call inside a backward, checkpointed": lambda: custom(Checkpointed),
    "functions applied inside a backward": lambda: custom(AppliesOther),
    "create_graph": lambda: custom(AppliesOther, False, True, False),
    "accumulation, frozen, checkpointed": lambda: accumulating(False, False),
    "reentrant checkpointing": lambda: accumulating(True),
}


@pytest.mark.parametrize("flows", [True, False])
@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_placed_as_they_ran(name: str, flows: bool, tmp_path: Path) -> None:
    """Two iterations in one step, whose own ranges are taken out: the phase is that of the innermost of them."""
    step, path = LOOPS[name](), tmp_path / "t.json"
    step()
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiler, record_function("ProfilerStep#0"):
        for _ in range(2):
            step()
    profiler.export_chrome_trace(str(path))
    document = json.loads(path.read_text())
    ranges = [event for event in document["traceEvents"] if event["name"].startswith("truth/") and event["ph"] == "X"]
    document["traceEvents"] = [
        event
        for event in document["traceEvents"]
        if not event["name"].startswith("truth/") and (flows or event.get("cat") != "fwdbwd")
    ]
    path.write_text(json.dumps(document))
    spans = sorted((one["ts"], one["ts"] + one["dur"], one["name"].removeprefix("truth/")) for one in ranges)
    seen, wrong = set(), set()
    for piece in placed(path, tmp_path):
        inside = [phase for begin, end, phase in spans if begin <= piece["ts"] < end]
        if inside:
            seen.add(inside[-1])
            wrong |= {(inside[-1], piece["phase"], piece["operator"])} if inside[-1] != piece["phase"] else set()
    assert {"forward", "backward", "optimizer"} <= seen
    assert wrong == set()


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
    first, second = 2 * 4 * 8 * 16, 2 * 4 * 16
    rows = opanatomy.profile(Forces(), torch.randn(4, 8)).modules
    assert {
        (row.module, row.phase): row.flops for row in rows if row.operator_class is OperatorClass.TENSOR_CONTRACTION
    } == {
        ("first", Phase.FORWARD): 2 * first,
        ("first", Phase.BACKWARD): 4 * first,
        ("second", Phase.FORWARD): 2 * second,
        ("second", Phase.BACKWARD): 3 * second,
    }


# ------------------------------------------------------------------------------------------- phases that the user maps

RULES = (r"forward=\(F\)$", r"backward=\((B|W)\)$", "optimizer=^update", "other=^log$", "other=warm")
#: Hand-scheduled parts of a pipeline; weight gradients are products outside of any node. The innermost range wins, also
#: for what runs on autograd's thread meanwhile.
SCHEDULE = """
        [attn(F)] @10+50; forward @20; [mlp(B)] @100+100; [mlp(W)] @150+40; backward @110; backward @160;
        [update] @300+100; optimizer @310; [log] @340+50; other @350; forward @500 #9; [mlp(B)] @600+100;
        gradient @610 #9
"""
RANGED = {
    "a schedule": SCHEDULE,
    "a range goes before what is inferred": """
        [warm up] @0+400; other @10 #1; node @100 #1; other @105 !2; forward @500 #2; gradient @600 #2
    """,
    "a range that begins the trace says the phase of what is launched right in it": """
        [warm up] @0+80; other @10 #1; other @35 launch; other @50 #2; gradient @100 #2; gradient @150 #1
    """,
    "a range on autograds thread goes before one elsewhere at that time": """
        forward @10 #9; node @600+100 #9; [attn(F)] @610+80 !2; [update] @615+80; forward @620 !2
    """,
}


@pytest.mark.parametrize("name", RANGED)
def test_ranges_are_given_phases(name: str, tmp_path: Path) -> None:
    expect_as_named(Loop().take(RANGED[name]), tmp_path, *RULES)


def test_rules_in_python_and_what_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Loop().take(SCHEDULE).write(tmp_path / "t.json")
    times = device_times(opanatomy.analyze(path, phases={"forward": r"\(F\)$", "backward": [r"\(B\)$", r"\(W\)$"]}))
    assert (times["forward"], times["backward"]) == (20_000, 30_000)
    warnings = opanatomy.analyze(path, phases={"recompute": r"\(R\)"}).warnings
    expected = r"no annotation in the trace matches '\\(R\\)', so this pattern adds nothing to the phase recompute"
    assert [warning for warning in warnings if "no annotation" in warning] == [expected]
    for phases in ({"fwd": "x"}, {"forward": "("}, {"forward": 3}, "forward=x"):
        with pytest.raises(UsageError, match="analyze: phases"):
            opanatomy.analyze(path, phases=phases)  # type: ignore[arg-type]
    for option, line in (
        ("forward", "--phase 'forward': no '=' in it - write PHASE=REGEX, such as --phase 'forward=(F)$'"),
        (
            "fwd=x",
            "--phase fwd=x: no phase 'fwd' - use one of forward, backward, recompute, optimizer, prefill, decoding,"
            " other",
        ),
        (
            "forward=(F",
            "--phase forward=(F: not a regular expression: missing ), unterminated subpattern at position 0",
        ),
        ("forward=", "--phase forward=: not a regular expression - pass one that matches annotation names"),
    ):
        assert main(["analyze", str(path), "--phase", option]) == 2
        captured = capsys.readouterr()
        assert (captured.out, captured.err.count("\n")) == ("", 1)
        assert captured.err.startswith(f"opanatomy: {line}")


# -------------------------------------------------------------------------- a trace's own annotations: check and source

SPELLINGS = {
    "forward": "## forward ##|forward|Forward|FORWARD|forward()|model.forward|forward_pass|Forward 3|fwd|# forward|"
    "forward_step|forward-compute|DeepSpeedEngine.forward|fwd_microstep|fwd_inner_microstep|PP:0F3|attn(F)|(F)|"
    "mlp(F) 2|F|F12|_forward_compute_chunk|[pl][profile]model_forward|[pl][profile]training_step|"
    "[pl][profile][Strategy]SingleDeviceStrategy.training_step",
    "backward": "## backward ##|backward|Backward|loss.backward()|backward pass|Backward 0|bwd|scaler.backward|"
    "backward_step|backward-compute|DeepSpeedEngine.backward|bwd_microstep|bwd_allreduce_microstep|attn(B)|mlp(W)|(W)|B|"
    "W3|PP:1B0|PP:1I2|PP:1W2|_weight_chunk|wgrad|backward_chunk|[pl][profile][Strategy]DDPStrategy.backward",
    "optimizer": "## optimizer ##|optimizer|Optimizer|optimizer.step|optimizer_step|optimizer.step()|opt.step|opt|"
    "DeepSpeedEngine.step|step_microstep|[pl][profile][LightningModule]Net.optimizer_step",
    "": "model.forward_head|forward_backward|layers.0.forward_proj|fast_forward|forward_embedding|optimizer.x|"
    "FeedForward|feed_forward|backward_hook|options|update|forward.linear|step|forward-backward|"
    "_forward_backward_chunk|[pl][profile]run_training_batch|training_step|PP:0SEND_F1|I|Net(FB)|f|FB|relu(f)|"
    "[pl][profile]training_step_and_backward|PP:(0F1;1B2)OVERLAP_F_B",
}


@pytest.mark.parametrize("phase", SPELLINGS)
def test_spellings_of_phases(phase: str) -> None:
    code = {str(phase): code for code, phase in enumerate(PHASES)}.get(phase, -1)
    names = SPELLINGS[phase].split("|")
    assert {name: phase_of_annotation(name) for name in names} == dict.fromkeys(names, code)


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
        made.take(f"""
            [attn(F)] @{at + 10}+80; forward @{at + 20} #{number}; [mlp(F)] @{at + 100}+200;
            forward @{at + 110} aten::bmm;
            forward @{at + 250} #{number + 1} aten::gelu; [mlp(B)] @{at + 20}+150 !3; backward @{at + 50} !3;
            backward @{at + 80} !3; [attn(B)] @{at + 180}+100 !3; gradient @{at + 190} #{number};
            [mlp(W)] @{at + 290}+90 !3; backward @{at + 300} !3; backward @{at + 330} !3
        """)
        if recompute:
            made.take(f"recompute @{at + 25} #{number + 5} !3 aten::bmm; node @{at + 140}+29 #{number + 5} !3 ^3")
    made.take("[Optimizer.step#AdamW.step] @3500+50; optimizer @3510 aten::_foreach_add_")
    # A stream runs what both threads launch in the order in which they do.
    launched = {event["args"]["correlation"]: event["ts"] for event in made.events if event["cat"] == "cuda_runtime"}
    kernels = [event for event in made.events if event["cat"] == "kernel"]
    for index, kernel in enumerate(sorted(kernels, key=lambda event: launched[event["args"]["correlation"]])):
        kernel["ts"] = 10_000 + 20 * index
    return made


@pytest.mark.parametrize("recompute", [False, True])
def test_a_pipeline_that_states_its_phases(recompute: bool, tmp_path: Path) -> None:
    """Forward 90 us; backward 150 us and 30 more where a forward runs again in it."""
    made = dual_pipe(recompute)
    expect_as_named(made, tmp_path)
    anatomy = made.analyze(tmp_path)
    times = {"forward": 90_000, "backward": 150_000, "optimizer": 10_000}
    assert device_times(anatomy) == times | ({"recompute": 30_000} if recompute else {})
    assert not [difference for check in anatomy.checks for difference in check.unexplained]
    check = annotated_check(anatomy)
    assert (check.compared, check.differences) == (0, ())
    assert (check.not_checked or "").startswith(
        "the phases are taken from the trace's annotations: forward in attn(F), mlp(F); backward in"
    )
    assert not any("annotation" in warning for warning in anatomy.warnings)
    # What the user says stays above it, and then all of it.
    assert device_times(made.analyze(tmp_path, phases={"other": r"mlp\(B\)"}))["other"] > 0


CHUNKS = {"backward": r"^(mlp\(B\)|attn\(B\)|mlp\(W\))$"}


def test_ranges_of_a_part_of_the_passes_are_not_taken(tmp_path: Path) -> None:
    """Four chunks in five have no ranges: 80 % of the time of the passes is inferred, and all of it stays so."""
    made = dual_pipe()
    made.events = [
        event for event in made.events if not event["name"].endswith(("(F)", "(B)", "(W)")) or event["ts"] < 500
    ]
    for chunk in range(3, 10):
        for number in range(5):
            made.take(f"forward @{1000 * chunk + 50 * number} #{100 + 10 * chunk + number}")
    option = f"use phases={CHUNKS!r} to follow the annotation"
    assert [text for text in made.analyze(tmp_path).warnings if "annotation" in text and text.endswith(option)]


def test_annotations_that_disagree_are_taken(tmp_path: Path) -> None:
    """Weight gradients outside of any node: 10 of 20 us of what the trace calls backward."""
    made = Loop().take("""
        [Forward] @0+60; forward @10 #1; [loss.backward()] @100+200; gradient @110 #1; backward @200 aten::addmm;
        [optimizer.step] @400+100; [Optimizer.step#SGD.step] @410+80; optimizer @420 aten::_foreach_add_
    """)
    expect_as_named(made, tmp_path)
    assert annotated_check(made.analyze(tmp_path)).not_checked == (
        "the phases are taken from the trace's annotations: forward in Forward; backward in loss.backward(); optimizer"
        " in optimizer.step - without them, 10,000 ns would be in other phases"
    )


def test_autograd_contradicts_an_annotation(tmp_path: Path) -> None:
    """The range of the backward begins at the loss, which takes 10 of its 20 us and stays forward, for autograd
    differentiates it; that is explained, with the option that says otherwise."""
    made = Loop().take("""
        [forward] @0+60; forward @10 #1; [backward] @100+300; forward @110 #2 aten::nll_loss_forward; node @150 #2;
        gradient @200 #1
    """)
    expect_as_named(made, tmp_path)
    anatomy = made.analyze(tmp_path)
    cause = (
        "autograd recorded these operators to differentiate them, so they are forward work inside a backward"
        " annotation - use phases={'backward': '^backward$'} to follow the annotation"
    )
    assert annotated_check(anatomy).differences == (
        Difference(
            operator="annotated as backward",
            phase=Phase.BACKWARD,
            ours=10_000,
            other=20_000,
            cause=cause,
            evidence="aten::nll_loss_forward in forward (10,000 ns)",
            time_ns=10_000,
        ),
    )
    assert not any("annotation" in warning for warning in anatomy.warnings)
    taken = device_times(made.analyze(tmp_path, phases={"backward": "^backward$"}))
    assert taken == {"forward": 10_000, "backward": 20_000}


def test_nodes_in_a_forward_contradict_it(tmp_path: Path) -> None:
    """The gradient of another operator runs in it: a warning with evidence, and with the option to give."""
    made = Loop().take("[backward 1] @0+60; forward @10 #1; [forward 1] @100+200; gradient @110 #1; other @200")
    expect_as_named(made, tmp_path)
    anatomy = made.analyze(tmp_path)
    forward, backward = annotated_check(anatomy).differences
    assert (forward.phase, forward.ours, forward.other, forward.cause) == (Phase.FORWARD, 0, 20_000, None)
    assert (backward.phase, backward.ours, backward.other) == (Phase.BACKWARD, 0, 10_000)
    assert (
        "100.0% of the time that the trace's own annotations assign to forward is in another phase here: aten::mm in"
        " backward (10,000 ns), aten::mm in other (10,000 ns) - use phases={'forward': '^forward \\\\d+$'} to"
        " follow the annotation"
    ) in anatomy.warnings


@pytest.mark.parametrize("thread", [1, 2])
@pytest.mark.parametrize("name", ["forward_step", "F", "optimizer step"])
def test_a_range_around_forward_and_backward_is_no_statement(name: str, thread: int, tmp_path: Path) -> None:
    """Of two steps; on the CPU nodes run on the loop's thread, on a device elsewhere."""
    made = Loop()
    for at in (0, 1000):
        made.take(f"[{name}] @{at}+500; forward @{at + 10} #{at + 1}; gradient @{at + 100} #{at + 1} !{thread}")
    expect_as_named(made, tmp_path)
    anatomy = made.analyze(tmp_path)
    assert not any("annotation" in warning for warning in anatomy.warnings)
    assert not [check for check in anatomy.checks if check.quantity == "annotated phases" and check.differences]
