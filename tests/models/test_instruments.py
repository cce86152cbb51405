"""What watches a step neither breaks nor changes a model; where it cannot watch, the report says what is unknown."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.utils import ModelOutput

import opanatomy
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import Phase
from tests.support.process_state import process

X = torch.arange(12.0).reshape(3, 4) / 12
SAVES, OBSERVER = "the saved-tensor observer", "the call observer"


class Model(nn.Module):
    """A linear layer, and what a case does with it."""

    def __init__(self, run: Callable[[nn.Linear, torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.run = run

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self.linear, x)


def components(anatomy: Anatomy) -> dict[str, int | None]:
    return {row.component: row.measured_bytes for row in anatomy.memory.components}


# ------------------------------------------------------------------------------- models that broke an instrument


def grad_inside(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda y: linear(y).square().sum())(x).sum() + linear(x).sum()


def dual_numbers(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        output, tangent = forward_ad.unpack_dual(linear(forward_ad.make_dual(x, torch.ones_like(x))).tanh())
    return output.sum() + tangent.sum()


def no_hooks(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.disable_saved_tensors_hooks("keep off"):
        return linear(x).square().sum()


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


def no_modes(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """A forward that cannot run under a dispatch mode, and does not say so."""
    if torch.utils._python_dispatch._get_current_dispatch_mode_stack():
        raise ValueError("odd")
    return linear(x).sum()


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        pytest.param(grad_inside, SAVES, id="grad"),
        pytest.param(no_hooks, SAVES, id="no-hooks"),
        pytest.param(no_modes, OBSERVER, id="no-modes"),
        pytest.param(dual_numbers, None, id="dual"),
        pytest.param(offloaded, None, id="offloaded"),
        pytest.param(lambda linear, x: Cube.apply(linear(x)).sum(), None, id="function"),
        pytest.param(lambda linear, x: copy.deepcopy(linear)(linear(x)).sum(), None, id="copies"),
        pytest.param(
            lambda linear, x: torch.cond(x.sum() > 0, lambda y: linear(y).sin(), lambda y: linear(y).cos(), (x,)).sum(),
            None,
            id="cond",
        ),
        pytest.param(
            lambda linear, x: checkpoint(lambda y: linear(y).tanh(), x, use_reentrant=False).sum(),
            None,
            id="checkpointed",
        ),
    ],
)
def test_a_model_that_breaks_an_instrument_runs(run: Callable[..., torch.Tensor], expected: str | None) -> None:
    torch.manual_seed(0)
    model = Model(run)
    anatomy = opanatomy.profile(model, X)
    said = [text for text in anatomy.warnings if "failed in this model" in text]
    assert [text.partition(" (")[0] for text in said] == ([] if expected is None else [expected])
    assert ("forward_activations" in components(anatomy)) == (expected != SAVES)
    assert max(row.flops or 0 for row in anatomy.classes if row.phase == Phase.FORWARD) >= 2 * 4 * 4
    assert model.linear.weight.grad is None


def test_the_memory_step_does_without_hooks_too() -> None:
    anatomy = opanatomy.profile(Model(grad_inside), X, memory=True)
    assert anatomy.memory.timeline
    assert "forward_activations" in components(anatomy)  # what lives through forward
    assert sum(SAVES in text for text in anatomy.warnings) == 1


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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["fsdp", "dtensor"])
def test_distributed_parameters(kind: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    try:
        mesh = init_device_mesh("cpu", (1,))
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        inputs: Any = X
        if kind == "fsdp":
            fully_shard(model, mesh=mesh)
        else:
            for layer in (model[0], model[2]):
                for name, parameter in list(layer.named_parameters()):
                    setattr(layer, name, nn.Parameter(distribute_tensor(parameter.data, mesh, [Replicate()])))
            inputs = distribute_tensor(X, mesh, [Replicate()])
        before = [parameter.detach().clone().to_local() for parameter in model.parameters()]
        anatomy = opanatomy.profile(model, inputs, optimizer="adamw-foreach")
        assert isinstance(next(model.parameters()), DTensor)
        after = [parameter.detach().to_local() for parameter in model.parameters()]
        assert not all(map(torch.equal, before, after))
    finally:
        torch.distributed.destroy_process_group()
    assert {row.phase for row in anatomy.classes if row.flops} >= {Phase.FORWARD, Phase.BACKWARD}


# ---------------------------------------------------------------------------------------------- compiled models


class Block(nn.Module):
    """Two operators, with a graph break between them if asked for."""

    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.linear, self.breaks = nn.Linear(4, 4), breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return y.relu()


class CompiledForward(Block):
    """Its forward is decorated."""

    @torch.compile(backend="aot_eager")
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class CompiledMethod(Block):
    """A part of its forward is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.part = torch.compile(super().forward, backend="aot_eager")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x) + 1


def in_place(*modules: nn.Module) -> nn.Sequential:
    for module in modules:
        module.compile(backend="aot_eager")
    return nn.Sequential(*modules)


def graphs() -> int:
    return int(torch._dynamo.utils.counters["frames"]["total"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("made", "regions", "options"),
    [
        (lambda: torch.compile(nn.Sequential(Block(), nn.Linear(4, 4)), backend="aot_eager"), 1, {}),
        (lambda: nn.Sequential(torch.compile(Block(), backend="aot_eager"), nn.Linear(4, 4)), 1, {"memory": True}),
        (lambda: in_place(Block(), Block()), 2, {}),
        (lambda: nn.Sequential(CompiledForward()), 1, {}),
        (lambda: nn.Sequential(CompiledMethod()), 1, {"memory": True}),
        (lambda: torch.compile(Block(breaks=True), backend="aot_eager"), 2, {}),
        (lambda: torch.compile(Block()), 1, {}),
    ],
    ids=["module", "submodule", "layers", "forward", "method", "graph-break", "inductor"],
)
def test_a_compiled_model_stays_compiled(
    made: Callable[[], nn.Module], regions: int, options: dict[str, Any], tmp_path: Path
) -> None:
    torch._dynamo.reset()
    model = made()
    model(X).sum().backward()
    before = graphs()
    anatomy = opanatomy.profile(model, X, trace=tmp_path / "t.json", **options)
    text = (tmp_path / "t.json").read_text()
    assert text.count('"name": "Torch-Compiled Region') >= regions
    assert '"name": "CompiledFunctionBackward"' in text
    assert anatomy.workload.compiled
    assert anatomy.warnings == ()
    model(X).sum().backward()
    assert graphs() == before > 0  # not even once more: what the caller had compiled is what runs


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
        for value, one in enumerate((*self.model.parameters(), self.model.loose[0], self.x)):
            one.grad = torch.full_like(one, value) if one.requires_grad else None
        self.held = self.objects()
        self.now = self.everything()

    def objects(self) -> list[Any]:
        tensors = (*self.model.parameters(), self.model.loose[0], self.x)
        return [*(one.grad for one in tensors), *self.model.buffers()]

    def everything(self) -> list[Any]:
        modules = list(self.model.modules())
        hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_forward_hooks_always_called")
        return [
            [module.training for module in modules],
            [one.requires_grad for one in self.model.parameters()],
            [None if one is None else one.tolist() for one in self.objects()],
            {name: value.tolist() for name, value in self.model.state_dict().items()},
            [len(getattr(module, name)) for module in modules for name in hooks],
            [len(getattr(one, "_post_accumulate_grad_hooks", None) or ()) for one in self.model.parameters()],
            self.x.tolist(),
            torch.get_rng_state().tolist(),
            random.getstate(),
            [str(np.random.get_state())],
            torch.is_autocast_enabled("cpu"),
            torch.is_grad_enabled(),
            process(),
            dict(os.environ),
        ]

    def check(self) -> None:
        for before, after in zip(self.now, self.everything(), strict=True):
            assert after == before
        assert all(one is other for one, other in zip(self.held, self.objects(), strict=True))


@pytest.mark.parametrize(
    "options", [{}, {"memory": True}, {"amp": "bf16"}, {"inference": True}, {"warmup": 0}], ids=str
)
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


class StateSpaceCache:
    """A model's own class of cache."""

    def __init__(self, states: torch.Tensor) -> None:
        self.states = [states * 2]


def keys_and_values(a: torch.Tensor) -> EncoderDecoderCache:
    """Return a cache of transformers with two layers' keys and values."""
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    for layer in range(2):
        cache.self_attention_cache.update(a[:, None, None], a[:, None, None], layer)
    return cache


ALL = "every output that requires a gradient (2 tensors: output[0], output[1]), with a gradient of ones"


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (lambda a, loss: (a, loss), "output[1], the last of 2 outputs and the only scalar"),
        (lambda a, loss: loss, "output, a scalar"),
        (lambda a, loss: a, "output, with a gradient of ones"),
        (lambda a, loss: {"logits": a, "deep": {"loss": loss}}, "output['deep']['loss']"),
        (lambda a, loss: Record(a, loss), "output.loss"),
        (lambda a, loss: Named(a, loss), "output.energy, the last of 2 outputs and the only scalar"),
        (lambda a, loss: Plain(a, (a, [loss])), "output.extra[1][0], the last of 2 outputs and the only scalar"),
        (lambda a, loss: [a, loss * a], ALL),
        (
            lambda a, loss: (a, [loss.detach(), {"x": loss}]),
            "output[1][1]['x'], the last of 3 outputs and the only scalar",
        ),
        # A cache is known by its class, not by its name, which transformers has changed; a list by the model's setting.
        (lambda a, loss: {"logits": a, "cache": keys_and_values(a)}, "output['logits'], with a gradient of ones"),
        (lambda a, loss: (a, keys_and_values(a)), "output[0], with a gradient of ones"),
        (
            lambda a, loss: ModelOutput(logits=a, cache_params=StateSpaceCache(a)),
            "output['logits'], with a gradient of ones",
        ),
        (lambda a, loss: {"cache": a}, "output['cache'], with a gradient of ones"),
        (lambda a, loss: (item for item in (a, a * 2)), ALL),
        (lambda a, loss: {"loss": loss.detach(), "logits": a}, None),
        (lambda a, loss: Plain(a.detach()), None),
        (lambda a, loss: "text", None),
    ],
)
@pytest.mark.usefixtures("one_timed_step")
def test_where_backward_starts(output: Callable[[torch.Tensor, torch.Tensor], Any], text: str | None) -> None:
    def run(linear: nn.Linear, x: torch.Tensor) -> Any:
        a = linear(x)
        return output(a, a.sum())

    if text is None:
        with pytest.raises(opanatomy.CaptureError, match="cannot run backward"):
            opanatomy.profile(Model(run), X)
    else:
        assert opanatomy.profile(Model(run), X).workload.backward_from == text


@pytest.mark.parametrize(
    "output",
    [
        lambda a, layers: (a, layers),
        lambda a, layers: {"logits": a, "past_key_values": layers},
        lambda a, layers: {"logits": a, "state": [item for layer in layers for item in layer]},
    ],
    ids=["by-place", "by-name", "states"],
)
@pytest.mark.usefixtures("one_timed_step")
def test_a_cache_that_is_a_list_is_that_of_a_model_set_to_use_one(output: Callable[..., Any]) -> None:
    """Keys and values of each layer in a tuple, or what the forward takes again under the same name."""

    class Decoder(nn.Linear):
        def forward(self, x: torch.Tensor, past_key_values: Any = None, state: Any = None) -> Any:
            a = super().forward(x)
            return output(a, tuple((a[:, None], a[:, None] * 2) for _ in range(2)))

    decoder: Any = Decoder(4, 4)
    decoder.config = SimpleNamespace(use_cache=True)
    roots = opanatomy.profile(decoder, X).workload.backward_from or ""
    assert roots in ("output[0], with a gradient of ones", "output['logits'], with a gradient of ones")
    decoder.config.use_cache = False
    assert "(5 tensors" in (opanatomy.profile(decoder, X).workload.backward_from or "")


# ------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("options", [{}, {"memory": True}], ids=["observed", "traced"])
@pytest.mark.parametrize("frozen", [False, True])
def test_weight_casts_are_no_activations(frozen: bool, options: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 4, bias=False))
    model[2].weight.requires_grad_(not frozen)
    sizes = components(opanatomy.profile(model, torch.ones(5, 8), amp="bf16", **options))
    # The input in 16 bits, and what tanh gives, which the second layer saves too.
    assert sizes["forward_activations"] == 5 * 8 * 2 + 5 * 16 * 2
    assert sizes["autocast_weight_casts"] == 16 * 4 * 2  # the first layer's input needs no gradient


def test_a_freed_block_that_is_given_out_again_is_another() -> None:
    """Activations are those that live at the end of forward, not those of graphs that are gone."""

    def run(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            a = torch.ones(1000, requires_grad=True)
            (a.exp() * 2).sum().backward()  # its graph is gone before the next
        return (a * 2).exp().sum() + linear(x).sum()

    assert components(opanatomy.profile(Model(run), X))["forward_activations"] == 1000 * 4
