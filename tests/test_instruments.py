"""What watches a step neither breaks nor changes a model; where it cannot watch, the report says what is not known."""

from __future__ import annotations

import copy
import gzip
import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import nn
from torch.utils.checkpoint import checkpoint

import opanatomy
from opanatomy.capture.memory.saved import ForwardSaves, storages
from opanatomy.capture.model.workload import prepare
from opanatomy.capture.run.progress import NullProgress
from opanatomy.capture.run.recorder import record_step
from opanatomy.capture.step.stepper import backward_roots, materialized
from opanatomy.capture.subject import Subject
from opanatomy.errors import CaptureError
from opanatomy.options import RunOptions
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import Workload
from tests.tiny import on_cpu

X = torch.arange(12.0).reshape(3, 4) / 12
SAVES, OBSERVER = "the observer of saved tensors", "the observer of calls"


class Model(nn.Module):
    """A linear layer, and what a case does with it."""

    def __init__(self, run: Callable[[nn.Linear, torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.run = run

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self.linear, x)


def activations(anatomy: Anatomy) -> int | None:
    rows = {row.component: row.measured_bytes for row in anatomy.memory.components}
    return rows.get("forward_activations")


# ------------------------------------------------------------------------------- models that broke an instrument


def grad_inside(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda y: linear(y).square().sum())(x).sum() + linear(x).sum()


def hessian_inside(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return torch.func.hessian(lambda y: linear(y).tanh().sum())(x[0]).square().sum()


def jvp_inside(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    output, tangent = torch.func.jvp(lambda y: linear(y).tanh(), (x,), (torch.ones_like(x),))
    return (output * tangent).sum()


def dual_numbers(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        output, tangent = forward_ad.unpack_dual(linear(forward_ad.make_dual(x, torch.ones_like(x))).tanh())
    return output.sum() + tangent.sum()


def no_hooks(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.disable_saved_tensors_hooks("keep off"):
        return linear(x).square().sum()


def copies_itself(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return copy.deepcopy(linear)(linear(x)).sum()


def conditional(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda y: linear(y).sin(), lambda y: linear(y).cos(), (x,)).sum()


def checkpointed(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda y: linear(y).tanh(), x, use_reentrant=False).sum()


def offloaded(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.save_on_cpu():
        return linear(x).tanh().sum()


class Cube(torch.autograd.Function):
    """x^3, which wants the leaf back that it saved."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = context.saved_tensors
        return 3 * x**2 * gradient


def custom(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return Cube.apply(linear(x)).sum()


def no_modes(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """A forward that cannot run under a dispatch mode, and does not say so."""
    if torch.utils._python_dispatch._get_current_dispatch_mode_stack():
        raise ValueError("odd")
    return linear(x).sum()


CASES: dict[Callable[..., torch.Tensor], str | None] = {
    grad_inside: SAVES, hessian_inside: SAVES, jvp_inside: None, dual_numbers: None, no_hooks: SAVES,
    copies_itself: None, conditional: None, checkpointed: None, offloaded: None, custom: None, no_modes: OBSERVER,
}  # fmt: skip


@pytest.mark.parametrize("run", CASES, ids=lambda run: run.__name__)
def test_a_model_that_breaks_an_instrument_runs(run: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    model = Model(run)
    expected = CASES[run]
    anatomy = opanatomy.profile(model, X)
    said = [text for text in anatomy.warnings if "failed in this model" in text]
    assert [text.partition(" (")[0] for text in said] == ([] if expected is None else [expected])
    assert (activations(anatomy) is None) == (expected == SAVES)
    assert max(row.flops or 0 for row in anatomy.classes if row.phase == Phase.FORWARD) >= 2 * 4 * 4
    assert model.linear.weight.grad is None
    assert not model.linear._forward_hooks


def test_the_memory_step_does_without_hooks_too() -> None:
    anatomy = opanatomy.profile(Model(grad_inside), X, memory=True)
    assert anatomy.memory.timeline
    assert activations(anatomy) is not None  # what lives through forward
    assert sum(SAVES in text for text in anatomy.warnings) == 1


def test_a_failure_of_the_model_is_the_models() -> None:
    def broken(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such thing")

    with pytest.raises(CaptureError, match="failed in the forward phase: ValueError: no such thing"):
        opanatomy.profile(Model(broken), X)


def test_the_step_repeats_from_where_it_began() -> None:
    """The random numbers and the statistics of the step that failed are taken back: the next draws the same."""
    seen: list[tuple[float, ...]] = []

    def draws(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        dropped = nn.functional.dropout(x, 0.5)
        seen.append((float(dropped.sum()), random.random(), float(np.random.rand()), float(norm.running_mean.sum())))
        norm(x)
        return no_hooks(linear, dropped)

    norm = nn.BatchNorm1d(4)
    model = Model(draws)
    model.norm = norm
    opanatomy.profile(model, X, optimizer="adamw")
    assert seen[0] == seen[1]  # all instruments, then none
    assert seen[1] != seen[2]


@pytest.mark.parametrize("kind", ["lstm", "flex"])
def test_other_layers_run(kind: str) -> None:
    if kind == "lstm":
        anatomy = opanatomy.profile(nn.LSTM(4, 4, batch_first=True), torch.ones(2, 3, 4))
        assert anatomy.workload.backward_from.startswith("every output that requires a gradient (3 tensors: output[0]")
    else:
        from torch.nn.attention.flex_attention import flex_attention

        model = Model(lambda linear, x: flex_attention(*(linear(x)[None, None] for _ in range(3))))
        anatomy = opanatomy.profile(model, X, inference=True)
    assert not [text for text in anatomy.warnings if "failed" in text]


@pytest.fixture
def mesh() -> Iterator[Any]:
    from torch.distributed.device_mesh import init_device_mesh

    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["fsdp", "dtensor"])
def test_distributed_parameters(kind: str, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    inputs: Any = X
    if kind == "fsdp":
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        for layer in (model[0], model[2]):
            for name, parameter in list(layer.named_parameters()):
                setattr(layer, name, nn.Parameter(distribute_tensor(parameter.data, mesh, [Replicate()])))
        inputs = distribute_tensor(X, mesh, [Replicate()])
    before = [parameter.detach().clone() for parameter in model.parameters()]
    anatomy = opanatomy.profile(model, inputs, optimizer="adamw-foreach")
    assert isinstance(next(model.parameters()), DTensor)
    assert any(
        not torch.equal(a.to_local(), b.detach().to_local()) for a, b in zip(before, model.parameters(), strict=True)
    )
    assert {row.phase for row in anatomy.classes if row.flops} >= {Phase.FORWARD, Phase.BACKWARD}


# ---------------------------------------------------------------------------------------------- compiled models


@torch.compile(backend="aot_eager")
def softcap(x: torch.Tensor) -> torch.Tensor:
    return 2 * torch.tanh(x / 2)


class Block(nn.Module):
    """Two operators."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class CompiledForward(Block):
    """Its forward is decorated."""

    @torch.compile(backend="aot_eager")
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class CompiledMethod(Block):
    """A part of its forward is."""

    def __init__(self) -> None:
        super().__init__()
        self.part = torch.compile(self._part, backend="aot_eager")

    def _part(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x) + 1


class CallsCompiled(Block):
    """It calls a compiled function of the file."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return softcap(self.linear(x))


class Broken(Block):
    """A graph break in the middle."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        torch._dynamo.graph_break()
        return y.relu()


def made(kind: str) -> nn.Module:
    stack = nn.Sequential(Block(), nn.Linear(4, 4))
    match kind:
        case "module":
            return torch.compile(stack, backend="aot_eager")
        case "submodule":
            stack[0] = torch.compile(stack[0], backend="aot_eager")
        case "module.compile":
            stack.compile(backend="aot_eager")
        case "submodule.compile":
            stack[0].compile(backend="aot_eager")
        case "forward":
            stack[0] = CompiledForward()
        case "method":
            stack[0] = CompiledMethod()
        case "function":
            stack[0] = CallsCompiled()
        case "layers":
            stack = nn.Sequential(Block(), Block())
            for layer in stack:
                layer.compile(backend="aot_eager")
        case "graph break":
            stack[0] = torch.compile(Broken(), backend="aot_eager")
        case "inductor":
            stack[0] = torch.compile(stack[0])
    return stack


class Compilations(NullProgress):
    """Notes how many graphs were compiled when each stage began."""

    def __init__(self) -> None:
        self.at: dict[str, int] = {}

    def stage(self, text: str, *, steps_after: int = 0, expected_ns: int | None = None) -> None:
        self.at[text] = graphs()


def graphs() -> int:
    return int(torch._dynamo.utils.counters["frames"]["total"])


COMPILED = (
    "module", "submodule", "module.compile", "submodule.compile", "forward", "method", "function", "layers",
    "graph break", "inductor",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", COMPILED)
def test_a_compiled_model_stays_compiled(kind: str, tmp_path: Path) -> None:
    torch._dynamo.reset()
    model, path, progress = made(kind), tmp_path / "t.json.gz", Compilations()
    model(X).sum().backward()
    before = graphs()
    options = RunOptions(memory=kind in ("submodule", "function"))  # the memory step watches too
    record_step(Subject(module=model, inputs=(X,), workload=Workload(), borrowed=True), options, path, progress)
    assert before > 0
    assert progress.at["timed step 1 of 5"] == progress.at["writing the trace"]
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = [str(event.get("name")) for event in events]
    assert sum(name.startswith("Torch-Compiled Region") for name in names) >= (
        2 if kind in ("layers", "graph break") else 1
    )
    assert "CompiledFunction" in names
    assert "CompiledFunctionBackward" in names
    anatomy = opanatomy.analyze(path)
    assert anatomy.workload.compiled
    assert anatomy.warnings == ()
    after = graphs()
    model(X).sum().backward()
    assert graphs() == after == before  # not even once more: what the caller had compiled is what runs


@pytest.mark.filterwarnings("ignore")
def test_where_torch_cannot_keep_compiled_code_under_a_mode_nothing_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opanatomy.capture.run.step_runner.mode_keeps_compiled", lambda: False)
    torch._dynamo.reset()
    anatomy = opanatomy.profile(made("submodule"), X)
    assert [text for text in anatomy.warnings if "would run uncompiled" in text] == list(anatomy.warnings)
    assert activations(anatomy) is None
    plain = opanatomy.profile(Model(custom), X)
    assert activations(plain) is not None
    assert plain.warnings == ()


@pytest.mark.filterwarnings("ignore")
def test_a_part_compiled_without_a_sign_is_profiled_without_ranges() -> None:
    torch._dynamo.reset()
    hidden: dict[bool, Any] = {}

    def run(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        hooked = bool(torch.nn.modules.module._global_forward_pre_hooks)
        if hooked not in hidden:
            parts: tuple[Any, Any] = (lambda y: linear(y).relu(), lambda y: linear(y).relu() + 0)
            hidden[hooked] = torch.compile(parts[hooked], backend="aot_eager")
        return hidden[hooked](x).sum()

    anatomy = opanatomy.profile(Model(run), X)
    assert list(hidden) == [False, True]
    assert sum("there is no table of modules" in text for text in anatomy.warnings) == 1
    assert not any("inside the profiled steps" in text for text in anatomy.warnings)


@pytest.mark.filterwarnings("ignore")
def test_the_option_compiles_and_leaves_inductor_as_it_was() -> None:
    import torch._inductor.config as inductor

    torch._dynamo.reset()
    before = inductor.cpp.enable_kernel_profile
    anatomy = opanatomy.profile(nn.Sequential(Block(), Block()), X, compile=True, check=True)
    assert inductor.cpp.enable_kernel_profile == before
    assert anatomy.workload.compiled
    (check,) = [check for check in anatomy.checks if check.quantity == "contraction FLOPs"]
    assert check.compared == check.equal >= 2
    assert check.not_checked is None
    contractions = [row for row in anatomy.operators if row.operator_class == "tensor_contraction"]
    assert sum(row.flops or 0 for row in contractions) == 2 * 2 * 3 * 4 * 4 + 3 * 2 * 3 * 4 * 4


# ------------------------------------------------------------------------------------------- left as it was


class Everything(nn.Module):
    """All that a step changes: statistics, an average of its own weights, draws, modes, a leaf that no module holds."""

    def __init__(self, stop: type[BaseException] | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.BatchNorm1d(4))
        self.register_buffer("average", torch.zeros(4, 4))
        self.register_buffer("replaced", torch.zeros(2))
        self.loose = [torch.ones(4, requires_grad=True)]
        self.stop = stop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.average.lerp_(self.body[0].weight.detach(), 0.5)
        self.replaced = self.replaced + 1
        with torch.no_grad():
            self.body[0].bias.data.clamp_(max=0.01)
        x.detach().add_(1)
        random.random()
        np.random.rand()
        self.body[3].train()
        torch.set_default_dtype(torch.float64)
        torch.set_default_dtype(torch.float32)
        output = self.body(x * self.loose[0]).square().sum()
        if self.stop is not None and self.average.count_nonzero():
            raise self.stop("out of memory" if self.stop is MemoryError else "stop")
        return output


@dataclass
class Before:
    """A model with all that its owner holds, and the state of the process."""

    model: Everything
    x: torch.Tensor

    def __post_init__(self) -> None:
        self.model.body[3].eval()
        self.model.body[0].weight.requires_grad_(False)
        self.held = {name: torch.full_like(one, 7.0) for name, one in self.model.named_parameters()}
        for name, one in self.model.named_parameters():
            one.grad = self.held[name] if one.requires_grad else None
        self.model.loose[0].grad = self.loose = torch.full((4,), 5.0)
        self.x.grad = self.gradient = torch.full_like(self.x, 3.0)
        self.buffer = self.model.replaced
        self.now = self.everything()

    def everything(self) -> list[Any]:
        model = self.model
        modules, parameters = list(model.modules()), list(model.parameters())
        state = {name: value.clone() for name, value in model.state_dict().items()}
        return [
            [module.training for module in modules],
            [(one.requires_grad, None if one.grad is None else one.grad.tolist()) for one in parameters],
            {name: value.tolist() for name, value in state.items()},
            [sum(len(getattr(module, hooks)) for hooks in HOOKS) for module in modules],
            [len(getattr(one, "_post_accumulate_grad_hooks", None) or ()) for one in parameters],
            [len(getattr(nn.modules.module, hooks)) for hooks in GLOBAL_HOOKS],
            self.x.tolist(),
            torch.get_rng_state().tolist(),
            random.getstate(),
            [str(np.random.get_state())],
            torch.get_default_dtype(),
            torch.is_autocast_enabled("cpu"),
            torch.is_grad_enabled(),
            dict(os.environ),
        ]

    def check(self) -> None:
        for before, after in zip(self.now, self.everything(), strict=True):
            assert after == before
        for name, one in self.model.named_parameters():
            assert one.grad is (self.held[name] if one.requires_grad else None)
        assert self.model.loose[0].grad is self.loose
        assert self.x.grad is self.gradient
        assert self.model.replaced is self.buffer
        assert self.gradient.eq(3).all()
        assert self.loose.eq(5).all()


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_forward_hooks_always_called")
GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")


@pytest.mark.parametrize("options", [{}, {"memory": True}, {"amp": "bf16"}, {"inference": True}, {"warmup": 0}])
def test_the_model_is_left_as_it_was(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    before = Before(Everything(), torch.ones(3, 4, requires_grad=True))
    opanatomy.profile(before.model, before.x, **options)
    before.check()


@pytest.mark.parametrize("stop", [ValueError, KeyboardInterrupt, MemoryError])
def test_the_model_is_left_as_it_was_by_a_failure(stop: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    before = Before(Everything(stop), torch.ones(3, 4, requires_grad=True))
    with pytest.raises((opanatomy.OpanatomyError, KeyboardInterrupt)):
        opanatomy.profile(before.model, before.x)
    before.check()


def test_only_an_optimizer_changes_weights() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Tanh())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    opanatomy.profile(model, X, optimizer="sgd")
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"0.weight", "0.bias", "1.weight", "1.bias"}


def partly_still() -> tuple[nn.Module, torch.Tensor]:
    """A model whose normalization is frozen."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[1].eval()
    return model, X


def test_the_model_of_a_function_keeps_its_modes() -> None:
    prepared = prepare(on_cpu(model="tests.test_instruments:partly_still"))
    assert [module.training for module in prepared.module.modules()] == [True, True, False]
    assert prepared.changes == ("1 of 3 modules are in evaluation mode, as the function left them",)
    still = prepare(on_cpu(model="tests.test_instruments:partly_still", inference=True))
    assert not any(module.training for module in still.module.modules())
    assert still.changes == ()


def test_the_callers_graph_ends_at_the_inputs() -> None:
    source = torch.ones(3, 4, requires_grad=True)
    x = source * 2
    opanatomy.profile(nn.Linear(4, 4), x)
    assert source.grad is None
    x.sum().backward()
    assert source.grad is not None
    assert source.grad.eq(2).all()


# ------------------------------------------------------------------------------------------------------- outputs


@dataclass(slots=True)
class Record:
    """A dataclass of outputs."""

    logits: torch.Tensor
    loss: torch.Tensor | None = None


class Named(NamedTuple):
    """A named tuple of outputs."""

    hidden: torch.Tensor
    energy: torch.Tensor


class Plain:
    """An object with attributes."""

    def __init__(self, logits: torch.Tensor, extra: Any = None) -> None:
        self.logits, self.extra = logits, extra


class Slots:
    """An object without a dictionary."""

    __slots__ = ("loss",)

    def __init__(self, loss: torch.Tensor) -> None:
        self.loss = loss


A = torch.ones(2, 3, requires_grad=True)
LOSS = (A * 2).sum()
ALL = "every output that requires a gradient (2 tensors: {}), with a gradient of ones"


@pytest.mark.parametrize(
    ("output", "text", "roots"),
    [
        ((A, LOSS), "output[1], the last of 2 outputs: the only single number", [LOSS]),
        ((LOSS, A, A * 3), "output[0], the first of 3 outputs: the only single number", [LOSS]),
        (LOSS, "output, a single number", [LOSS]),
        (A, "output, with a gradient of ones", [A]),
        ({"loss": LOSS, "logits": A}, "output['loss']", [LOSS]),
        ({"logits": A, "deep": {"loss": LOSS}}, "output['deep']['loss']", [LOSS]),
        (Record(A, LOSS), "output.loss", [LOSS]),
        (Record(A), "output.logits, with a gradient of ones", [A]),
        (Named(A, LOSS), "output.energy, the last of 2 outputs: the only single number", [LOSS]),
        (Plain(A, (A, [LOSS])), "output.extra[1][0], the last of 2 outputs: the only single number", [LOSS]),
        (Slots(LOSS), "output.loss", [LOSS]),
        ((A, [LOSS.detach(), {"x": LOSS}]), "output[1][1]['x'], the last of 3 outputs: the only single number", [LOSS]),
        ([A, (LOSS * A)], None, None),
        ({"logits": A, "past_key_values": (LOSS,)}, "output['logits'], with a gradient of ones", [A]),
        ((item for item in (A, LOSS)), "output[1], the last of 2 outputs: the only single number", [LOSS]),
    ],
)  # fmt: skip
def test_which_output_backward_starts_from(output: Any, text: str | None, roots: list[torch.Tensor] | None) -> None:
    found = backward_roots(materialized(output))
    assert found.text == (text or ALL.format("output[0], output[1]"))
    if roots is not None:
        assert [id(one) for one in found.tensors] == [id(one) for one in roots]


@pytest.mark.parametrize(
    "output", [(A.detach(), LOSS.detach()), {"loss": LOSS.detach(), "logits": A}, None, "text", Plain(A.detach())]
)
def test_no_output_to_start_from(output: Any) -> None:
    with pytest.raises(CaptureError, match="cannot run backward"):
        backward_roots(output)


def test_a_generator_runs_inside_the_step() -> None:
    def run(linear: nn.Linear, x: torch.Tensor) -> Any:
        for _ in range(2):
            x = linear(x)
            yield x

    anatomy = opanatomy.profile(Model(run), X)
    forward = max(row.flops or 0 for row in anatomy.classes if row.phase == Phase.FORWARD)
    assert forward == 2 * (2 * 3 * 4 * 4)
    assert anatomy.workload.backward_from == ALL.format("output[0], output[1]")


# -------------------------------------------------------------------------------------------------- timing, memory


def test_a_short_step_is_timed_until_its_time_can_be_told(tmp_path: Path) -> None:
    progress = Compilations()
    path = tmp_path / "t.json.gz"
    record_step(Subject(module=nn.Linear(4, 4), inputs=(X,), workload=Workload()), RunOptions(warmup=0), path, progress)
    capture = json.loads(gzip.decompress(path.read_bytes()))["opanatomy"]
    capture = json.loads(capture) if isinstance(capture, str) else capture
    assert len(capture["unprofiled_step_ns"]) == 5
    assert [text for text in progress.at if text.startswith("timed")][-1] == "timed step 6 of 6"  # the first was cold


def test_a_long_step_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opanatomy.capture.run.step_runner._TIMED_NS", 1)
    anatomy = opanatomy.profile(nn.Linear(4, 4), X, steps=2)
    assert anatomy.step.unprofiled_wall_min_ns is not None
    anatomy = opanatomy.profile(nn.Linear(4, 4), X, warmup=0)
    assert any(text.startswith("without a warm-up step") for text in anatomy.warnings)


@pytest.mark.parametrize("frozen", [False, True])
def test_weight_casts_are_no_activations(frozen: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 4, bias=False))
    model[2].weight.requires_grad_(not frozen)
    x = torch.ones(5, 8)
    sizes = [
        {row.component: row.measured_bytes for row in anatomy.memory.components}
        for anatomy in (opanatomy.profile(model, x, amp="bf16"), opanatomy.profile(model, x, amp="bf16", memory=True))
    ]
    for found in sizes:
        # The input in 16 bits, and what tanh gives, which the second layer saves too.
        assert found["forward_activations"] == 5 * 8 * 2 + 5 * 16 * 2
        assert found["autocast_weight_casts"] == 16 * 4 * 2  # the first layer's input needs no gradient


def test_a_storage_is_known_by_itself_not_by_its_address() -> None:
    """Blocks that are freed and given out again are as many storages as there were, and only live ones count."""
    watch = ForwardSaves((), _points())
    with watch.forward():
        kept = []
        for _ in range(3):
            a = torch.ones(1000, requires_grad=True)
            (a.exp() * 2).sum().backward()  # its graph is gone before the next
        kept.append((a * 2).exp())
    assert watch.bytes == 1000 * 4
    one = torch.ones(100)
    known = storages([one])
    del one
    again = torch.ones(100)
    assert not known.holds(again)
    assert known.live_bytes() == 0


def _points() -> Any:
    from opanatomy.capture.memory.measurement import Snapshots

    return Snapshots("cpu")
