"""What users write besides plain modules: odd outputs, torch.func, autograd in a forward, checkpoints, wrappers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vmap
from torch.utils.checkpoint import checkpoint

from benchmarks.zoo import Built, Models


class Calls(nn.Module):
    """A module whose forward is a function of its two layers and the input."""

    def __init__(self, forward: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 4)
        self.called = forward
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *inputs: Any) -> Any:
        return self.called(self, *inputs)


def called(forward: Callable[..., Any], **layers: nn.Module) -> Built:
    return Calls(forward, **layers), (torch.randn(6, 16),)


def plain(model: Any, x: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = model.second(torch.tanh(model.first(x)))
    return output


@dataclass
class Output:
    """What a library without Transformers returns."""

    loss: torch.Tensor
    logits: torch.Tensor


class Pair(NamedTuple):
    """A named tuple of logits and hidden state."""

    logits: torch.Tensor
    hidden: torch.Tensor


def logits_dataclass(model: Any, x: torch.Tensor) -> Any:
    @dataclass(slots=True)
    class Logits:
        logits: torch.Tensor

    return Logits(plain(model, x))


def generator(model: Any, x: torch.Tensor) -> Iterator[torch.Tensor]:
    for row in x.chunk(2):
        yield plain(model, row)


def ensemble() -> Built:
    members = [nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(3)]
    base = copy.deepcopy(members[0]).to("meta")

    class Ensemble(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            values, _ = stack_module_state(members)
            self.names = list(values)
            self.values = nn.ParameterList(nn.Parameter(values[name].detach()) for name in self.names)

        def forward(self, x: torch.Tensor) -> Any:
            def one(values: dict[str, torch.Tensor]) -> torch.Tensor:
                output: torch.Tensor = functional_call(base, values, (x,))
                return output

            return vmap(one)(dict(zip(self.names, self.values, strict=True)))

    return Ensemble(), (torch.randn(6, 16),)


def score(model: Any, x: torch.Tensor) -> torch.Tensor:
    return plain(model, x).square().sum()


def gradient_penalty(model: Any, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(plain(model, x).sum(), x, create_graph=True)
    return slope.square().mean()


class Product(torch.autograd.Function):
    """A product with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        return gradient @ w.T, x.T @ gradient


def without_hooks(model: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        return plain(model, x)


def offloaded(model: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.save_on_cpu():
        return plain(model, x)


def selective(model: Any, x: torch.Tensor) -> torch.Tensor:
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    kept = [torch.ops.aten.addmm.default]
    return checkpoint(
        partial(plain, model), x, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, kept)
    )


def nested_checkpoints(model: Any, x: torch.Tensor) -> torch.Tensor:
    def inner(y: torch.Tensor) -> torch.Tensor:
        return checkpoint(model.first, y, use_reentrant=False).tanh()

    hidden = checkpoint(inner, x, use_reentrant=False)
    return plain(model, hidden)


def copied(model: Any, x: torch.Tensor) -> torch.Tensor:
    return copy.deepcopy(model.first)(x) + model.first(x)


def threaded(model: Any, x: torch.Tensor) -> torch.Tensor:
    with ThreadPoolExecutor(2) as pool:
        return torch.cat(list(pool.map(partial(plain, model), x.chunk(2))))


def own_backward(model: Any, x: torch.Tensor) -> torch.Tensor:
    score(model, x).backward()
    return score(model, x)


def partly_frozen(model: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        x = model.first(x)
    return plain(model, x)


def autocast_inside(model: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return plain(model, x)


def ordinary() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


def compiled(whole: bool) -> Built:
    if whole:
        return torch.compile(ordinary(), backend="aot_eager"), (torch.randn(6, 16),)  # type: ignore[return-value]
    model = nn.Sequential(nn.Linear(16, 16), ordinary())
    model[1].compile(backend="aot_eager")
    return model, (torch.randn(6, 16),)


def mixed_inputs() -> Built:
    def forward(model: Any, x: torch.Tensor, scale: float, kind: str, extra: Any, rows: list[torch.Tensor]) -> Any:
        return plain(model, x * scale + sum(rows)), kind, extra

    return Calls(forward), (torch.randn(6, 16), 2.0, "word", None, [torch.randn(6, 16), torch.randn(1, 16)])


def only_input() -> Built:
    return nn.Sequential(nn.ReLU(), nn.Softmax(-1)), (torch.randn(6, 16, requires_grad=True),)


MODELS: Models = {
    "strange output: dataclass with loss": lambda: called(lambda m, x: Output(plain(m, x).sum(), plain(m, x))),
    "strange output: dataclass without loss": partial(called, logits_dataclass),
    "strange output: generator": partial(called, generator),
    "strange output: named tuple": lambda: called(lambda m, x: Pair(plain(m, x), m.first(x))),
    "strange output: (loss, logits)": lambda: called(lambda m, x: (plain(m, x).sum(), plain(m, x))),
    "strange output: (logits, loss)": lambda: called(lambda m, x: (plain(m, x), plain(m, x).sum())),
    "strange output: nested": lambda: called(lambda m, x: {"a": [plain(m, x), {"b": (m.first(x), None)}]}),
    "strange func: vmap of members": ensemble,
    "strange func: grad": lambda: called(lambda m, x: grad(partial(score, m))(x)),
    "strange func: jacrev": lambda: called(lambda m, x: vmap(jacrev(partial(plain, m)))(x)),
    "strange func: hessian": lambda: called(lambda m, x: hessian(partial(score, m))(x[0])),
    "strange func: jvp": lambda: called(lambda m, x: jvp(partial(plain, m), (x,), (torch.ones_like(x),))[1]),
    "strange autograd: gradient penalty": partial(called, gradient_penalty),
    "strange autograd: own Function": lambda: called(lambda m, x: Product.apply(x, m.first.weight)),
    "strange autograd: backward in forward": partial(called, own_backward),
    "strange autograd: no hooks allowed": partial(called, without_hooks),
    "strange autograd: saved on the CPU": partial(called, offloaded),
    "strange autograd: no_grad inside": partial(called, partly_frozen),
    "strange autograd: autocast inside": partial(called, autocast_inside),
    "strange checkpoint: selective": partial(called, selective),
    "strange checkpoint: nested": partial(called, nested_checkpoints),
    "strange checkpoint: reentrant": lambda: called(
        lambda m, x: checkpoint(partial(plain, m), x.requires_grad_(), use_reentrant=True)
    ),
    "strange code: forward copies a module": partial(called, copied),
    "strange code: threads": partial(called, threaded),
    "strange code: compiled": partial(compiled, True),
    "strange code: compiled inside": partial(compiled, False),
    "strange code: DataParallel": lambda: (nn.DataParallel(ordinary()), (torch.randn(6, 16),)),
    "strange code: scripted inside": lambda: (
        nn.Sequential(torch.jit.script(ordinary()), nn.Linear(4, 4)), (torch.randn(6, 16),)
    ),
    "strange code: mixed inputs": mixed_inputs,
    "strange code: no parameter": only_input,
    "strange code: lazy": lambda: (nn.Sequential(nn.LazyLinear(16), nn.Linear(16, 4)), (torch.randn(6, 16),)),
}  # fmt: skip
