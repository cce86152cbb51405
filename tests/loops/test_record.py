"""`opanatomy.record` around loops of all kinds: what they are reported as, and that nothing of them changes."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import grad
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import opanatomy
from opanatomy.errors import CaptureError, ModelError, OpanatomyError, OutputError, UsageError
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import Phase
from opanatomy.trace.read import read_trace
from tests.support.process_state import process, without_clock

X, Y = torch.linspace(-1, 1, 32).view(4, 8), torch.tensor([0, 1, 2, 3])
#: FLOPs of the products of `network()` on X: 4 x 8 x 16 and 4 x 16 x 4, forward; backward has no gradient of the input.
FORWARD = 2 * (4 * 8 * 16 + 4 * 16 * 4)
BACKWARD = 2 * (4 * 8 * 16 + 2 * 4 * 16 * 4)
FIRST = torch.eye(8, requires_grad=True)
BEFORE, PROFILED = 3, 4


class Encoder(nn.Module):
    """Attention, dropout and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        self.head = nn.Linear(32, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.layer(x)).flatten(0, 1), y.flatten())


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


def recorded(iteration: Callable[[], Any], iterations: int = PROFILED, **options: Any) -> Anatomy:
    """The anatomy of a loop of so many iterations; all checks of it agree."""
    with opanatomy.record(**{"warmup": BEFORE, **options}) as recorder:
        for _ in range(iterations):
            iteration()
            recorder.step()
    anatomy = recorder.anatomy
    assert not [difference for check in anatomy.checks for difference in check.unexplained]
    return anatomy


def run(iterations: int, iteration: Callable[[int], Any], trace: Path | None = None, **options: Any) -> None:
    """Record a loop whose iterations know their number."""
    with opanatomy.record(trace, **options) as recorder:
        for number in range(iterations):
            iteration(number)
            recorder.step()


def contractions(anatomy: Anatomy) -> dict[str, int]:
    """The FLOPs of the products of each phase in a step."""
    rows = [row for row in anatomy.classes if row.operator_class == "tensor_contraction"]
    return {str(row.phase): (row.flops or 0) // anatomy.step.count for row in rows}


def calls(anatomy: Anatomy, phase: Phase) -> Counter[str]:
    """The calls of each operator in a phase."""
    counts: Counter[str] = Counter()
    for row in anatomy.operators:
        if row.phase is phase:
            counts[row.operator] += row.calls
    return counts


def observed(anatomy: Anatomy) -> list[str]:
    """The quantities that were compared with what a dispatch mode saw."""
    counted = ("call counts", "contraction FLOPs")
    return [check.quantity for check in anatomy.checks if check.compared and check.quantity in counted]


# ----------------------------------------------------------------------------------------------------------- as profile


def test_a_plain_loop_is_what_profile_says(tmp_path: Path) -> None:
    x, y = torch.randn(4, 16, 32), torch.randint(0, 8, (4, 16))
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    target = tmp_path / "step.json.gz"

    def step() -> None:
        model(x, y).backward()
        optimizer.step()
        optimizer.zero_grad()

    with opanatomy.record(target, memory=True, check=True) as recorder:
        for _ in range(9):
            step()
            recorder.step()
    ours = recorder.anatomy
    other = opanatomy.profile(Encoder(), (x, y), optimizer="adamw", memory=True)

    def figures(anatomy: Anatomy) -> dict[str, Any]:
        operators = {
            (row.operator, row.phase, row.operator_class, row.calls, row.flops, row.read_bytes)
            for row in anatomy.operators
        }
        modules = {(row.module, row.kind, row.phase, row.operator_class, row.flops) for row in anatomy.modules}
        components = [
            (row.component, row.measured_bytes, row.at_peak_bytes, row.theory_bytes)
            for row in anatomy.memory.components
        ]
        checks = [(check.quantity, check.compared and "compared", check.source) for check in anatomy.checks]
        return {
            "operators": operators,
            "modules": modules,
            "components": components,
            "checks": checks,
            "peak": (anatomy.memory.peak_bytes, anatomy.memory.peak_at),
            "activations": anatomy.memory.activations,
            "ratios": [(row.operator_class, row.flops, row.theory_flops) for row in anatomy.ratios],
            "workload": [
                getattr(anatomy.workload, name)
                for name in (
                    "model",
                    "parameters",
                    "trainable_parameters",
                    "batch",
                    "inputs",
                    "dtype",
                    "optimizer",
                    "inference",
                )
            ],
            "warnings": anatomy.warnings,
        }

    mine, theirs = figures(ours), figures(other)
    for name in mine:
        assert mine[name] == theirs[name], name
    assert opanatomy.analyze(target) == ours
    capture = read_trace(target).capture
    assert capture is not None
    assert (ours.step.count, len(capture.unprofiled_step_ns)) == (1, 3)
    assert None not in (
        ours.step.phase_ns.get("forward"),
        ours.step.phase_ns.get("backward"),
        ours.step.phase_ns.get("optimizer"),
        ours.step.unprofiled_wall_ns,
    )


# --------------------------------------------------------------------------------------------------------------- phases


def test_accumulation_and_clipping() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def iteration() -> None:
        for _ in range(4):
            batch = X + 1
            (F.cross_entropy(model(batch), Y) / 4).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model[0].weight.detach().exp()
        optimizer.zero_grad()

    anatomy = recorded(iteration, PROFILED + 1, memory=True)
    assert contractions(anatomy) == {"forward": 4 * FORWARD, "backward": 4 * BACKWARD}
    assert calls(anatomy, Phase.OTHER)["aten::add"] == 4
    assert calls(anatomy, Phase.OTHER)["aten::exp"] == 1
    assert calls(anatomy, Phase.FORWARD)["aten::div"] == 4
    assert calls(anatomy, Phase.OPTIMIZER)["aten::_foreach_norm"] == 1
    assert observed(anatomy) == ["call counts", "contraction FLOPs"]
    assert (anatomy.workload.batch, anatomy.workload.accumulate, anatomy.workload.optimizer) == (16, 4, "sgd")
    assert anatomy.step.samples_per_second == 16e9 / (anatomy.step.unprofiled_wall_ns or 0)
    components = {row.component: row.measured_bytes for row in anatomy.memory.components}
    parameters = 4 * (8 * 16 + 16 + 16 * 4 + 4)
    assert anatomy.memory.allocator_peak_bytes == anatomy.memory.peak_bytes < 100_000_000
    # The loop's variable holds a batch until the next one is there.
    assert components["inputs"] == 2 * X.nbytes + Y.nbytes
    assert anatomy.memory.notes == ()
    assert components["weights"] == components["gradients"] == components["optimizer_state"] == parameters
    assert sum(row.at_peak_bytes or 0 for row in anatomy.memory.components) == anatomy.memory.peak_bytes


def two_losses(model: nn.Module) -> None:
    output = model(X)
    F.cross_entropy(output, Y).backward(retain_graph=True)
    output.pow(2).mean().backward()


def create_graph(model: nn.Module) -> None:
    """Nothing differentiates this backward again: only gradient mode, which the engine keeps, says what it is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, against reference cycles
        F.cross_entropy(model(X), Y).backward(create_graph=True)


def of_a_function(model: nn.Module) -> None:
    """torch.func differentiates in gradient mode."""
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    torch.func.grad(lambda values: F.cross_entropy(torch.func.functional_call(model, values, (X,)), Y))(parameters)


def traced(model: nn.Module) -> None:
    """While a module is traced its sizes are tensors."""
    F.cross_entropy(torch.jit.trace(model, X, check_trace=False)(X), Y).backward()


def caught(model: nn.Module) -> None:
    with pytest.raises(TypeError):
        model(None)
    with pytest.raises(RuntimeError):
        X.sum().backward()
    F.cross_entropy(model(X), Y).backward()


class Cast(torch.autograd.Function):
    """A function that its own backward applies, as training in float8 does."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.bfloat16().float()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        return Cast.apply(gradient)


def casts(model: nn.Module) -> None:
    """A product before the first module is of the forward too."""
    F.cross_entropy(model(Cast.apply(X @ FIRST)), Y).backward()


def closure(model: nn.Module) -> None:
    """An optimizer that calls the loop back."""
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(model(X), Y)
        value.backward()
        return value

    optimizer.step(loss)


def penalty(model: nn.Module) -> None:
    """A gradient of the input that is differentiated again: two more products of each layer, in either phase."""
    x = X.clone().requires_grad_()
    (gradient,) = grad(model(x).sum(), x, create_graph=True)
    (gradient.norm(dim=1) - 1).pow(2).mean().backward()


@pytest.mark.parametrize(
    ("loop", "flops", "options"),
    [
        (two_losses, (FORWARD, 2 * BACKWARD), {}),
        (create_graph, (FORWARD, BACKWARD), {}),
        (of_a_function, (FORWARD, BACKWARD), {"warmup": 1}),
        (traced, (2 * FORWARD, BACKWARD), {}),
        (caught, (FORWARD, BACKWARD), {}),
        (penalty, (FORWARD, None), {}),
        (casts, (FORWARD + 2 * 4 * 8 * 8, BACKWARD + 2 * 4 * 8 * (16 + 8)), {}),
        (closure, (FORWARD, BACKWARD), {}),
        (two_losses, (FORWARD, 2 * BACKWARD), {"warmup": 0}),
    ],
    ids=["two-losses", "create-graph", "func", "traced", "caught", "penalty", "casts", "closure", "no-warm-up"],
)
def test_flops_of_the_phases(
    loop: Callable[[nn.Module], None], flops: tuple[int, int | None], options: dict[str, Any]
) -> None:
    model = network()
    anatomy = recorded(lambda: loop(model), PROFILED + 1, **options)
    products = contractions(anatomy)
    assert set(products) - {"optimizer"} == {"forward", "backward"}
    assert products["forward"] == flops[0]
    assert flops[1] in (None, products["backward"])
    assert calls(anatomy, Phase.RECOMPUTE) == {}
    assert ("aten::dot" in calls(anatomy, Phase.OPTIMIZER)) == (loop is closure)


def test_a_backward_that_failed_is_no_micro_batch() -> None:
    model = network()
    workload = recorded(lambda: caught(model), PROFILED + 1).workload
    assert (workload.batch, workload.accumulate) == (len(X), None)


def rollout(x: torch.Tensor, model: nn.Module) -> None:
    with torch.no_grad():
        model(x[:1])
    model(x).sum().backward()


def two_backwards_last(x: torch.Tensor, model: nn.Module) -> None:
    for loss in [model(part).sum() for part in x.split(1)]:
        loss.backward()


def penalized(x: torch.Tensor, model: nn.Module) -> None:
    x = x.clone().requires_grad_()
    (gradient,) = grad(model(x).sum(), x, create_graph=True)
    (model(x).sum() + gradient.norm()).backward()


class Recurrent(nn.Module):
    """Words, then a module of sequences, which says where their length is."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.words, self.inner = nn.Embedding(9, 8), inner

    def forward(self, x: torch.Tensor, hidden: Any = None) -> torch.Tensor:
        output: Any = self.inner(self.words(x)) if hidden is None else self.inner(self.words(x), hidden)
        return (output[0] if isinstance(output, tuple) else output).flatten(0, 1)


class Indexed(nn.Linear):
    """A module whose first argument is not the batch."""

    def forward(self, index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x) * index.sum()


IDS = torch.zeros(5, 3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("model", "iteration", "batch"),
    [
        (network(), lambda model: rollout(X, model), (4, None)),
        (network(), lambda model: two_backwards_last(X, model), (4, 4)),
        (network(), lambda model: penalized(X, model), (4, None)),
        (network(), lambda model: [model(part).sum().backward() for part in X.split(3)], (4, 2)),
        (
            Recurrent(nn.LSTM(8, 8, 2)),
            lambda model: model(IDS, (torch.zeros(2, 3, 8),) * 2).sum().backward(),
            (3, None),
        ),
        (Recurrent(nn.GRU(8, 8, batch_first=True)), lambda model: model(IDS).sum().backward(), (5, None)),
        (Recurrent(nn.TransformerEncoderLayer(8, 2, 8)), lambda model: model(IDS).sum().backward(), (3, None)),
        (nn.LSTM(8, 8), lambda model: model(torch.ones(5, 3, 8))[0].sum().backward(), (3, None)),
        *(
            (Indexed(8, 8), lambda model, index=index: model(index, X).sum().backward(), (4, None))
            for index in (torch.tensor(2), torch.tensor([2]), torch.tensor([1, 2, 3]))
        ),
    ],
    ids=[
        "no-grad-before",
        "backwards-last",
        "penalty",
        "unequal",
        "lstm",
        "batch-first",
        "transformer",
        "root",
        "number",
        "one-index",
        "index",
    ],
)
def test_the_batch_is_what_backward_goes_through(
    model: nn.Module, iteration: Callable[[Any], Any], batch: tuple[int, int | None]
) -> None:
    """Calls without gradients, a sequence's length and an index before the batch do not count."""
    workload = recorded(lambda: iteration(model)).workload
    assert (workload.batch, workload.accumulate) == batch


def test_a_batch_that_calls_disagree_on_is_not_known() -> None:
    """No samples a second are made of a guess; two of one size are one batch."""
    actor, critic = nn.Linear(8, 2), nn.Linear(8, 1)
    anatomy = recorded(lambda: (actor(X).sum() + critic(X.repeat(2, 1)).sum()).backward())
    assert (anatomy.workload.batch, anatomy.step.samples_per_second) == (None, None)
    assert "the batch size is unclear: calls in the recorded steps take 4 and 8 samples" in anatomy.warnings
    assert recorded(lambda: (actor(X).sum() + critic(X).sum()).backward()).workload.batch == 4


class Adjoint(torch.autograd.Function):
    """Its backward calls the module that its forward calls, at another point."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, model: nn.Module) -> torch.Tensor:
        context.model = model
        context.save_for_backward(x)
        return model(x)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        with torch.enable_grad():
            z = context.saved_tensors[0].detach().requires_grad_()
            return *grad(context.model(z), z, gradient), None


@pytest.mark.parametrize("kind", [None, "reentrant", "non-reentrant"])
def test_a_backward_of_ones_own_that_calls_a_module_is_no_checkpointing(kind: str | None) -> None:
    model = network()

    def adjoint(x: torch.Tensor) -> torch.Tensor:
        return Adjoint.apply(x, model)

    def iteration() -> None:
        x = X.clone().requires_grad_()
        if kind is None:
            adjoint(x).sum().backward()
        else:
            checkpoint(adjoint, x, use_reentrant=kind == "reentrant").sum().backward()

    anatomy = recorded(iteration)
    assert anatomy.workload.checkpointing == kind
    assert (calls(anatomy, Phase.RECOMPUTE) == {}) == (kind is None)


def test_a_gradient_scaler() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def iteration() -> None:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(X), Y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    anatomy = recorded(iteration)
    assert contractions(anatomy) == {"forward": FORWARD, "backward": BACKWARD}
    updates = calls(anatomy, Phase.OPTIMIZER)
    assert updates["aten::_amp_foreach_non_finite_check_and_unscale_"] == updates["aten::_amp_update_scale_"] == 1
    assert calls(anatomy, Phase.OTHER) == {}
    assert (anatomy.workload.amp, anatomy.workload.loss_scale, anatomy.workload.optimizer) == (
        "fp16",
        2.0**10,
        "adamw-loop",
    )
    assert "autocast_weight_casts" in {row.component for row in anatomy.memory.components}


def test_two_models_and_two_optimizers() -> None:
    generator, critic = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    of_generator, of_critic = (torch.optim.SGD(part.parameters(), 0.1) for part in (generator, critic))

    def iteration() -> None:
        false = generator(torch.randn(4, 4))
        loss = F.softplus(-critic(X)).mean() + F.softplus(critic(false.detach())).mean()
        of_critic.zero_grad(set_to_none=False)
        loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        F.softplus(-critic(false)).mean().backward()
        of_generator.step()

    anatomy = recorded(iteration, PROFILED + 1, memory=True)
    of_generator_flops, of_critic_flops = 2 * 4 * 4 * 8, 2 * (4 * 8 * 16 + 4 * 16)
    last = 2 * 4 * 16
    # Weights of the critic three times, its hidden layer's input three times, the generator's output once.
    backward = of_generator_flops + 3 * (of_critic_flops + last) + 2 * 4 * 8 * 16
    assert contractions(anatomy) == {"forward": of_generator_flops + 3 * of_critic_flops, "backward": backward}
    assert {row.module for row in anatomy.modules} >= {"Linear", "Sequential.0", "Sequential.2"}
    assert set(calls(anatomy, Phase.OTHER)) >= {"aten::normal_", "aten::zero_"}
    assert (anatomy.workload.model, anatomy.workload.accumulate) == ("Linear + Sequential", None)
    assert anatomy.workload.parameters == 4 * 8 + 8 + 8 * 16 + 16 + 16 + 1


@pytest.mark.parametrize("kind", ["reentrant", "non-reentrant"])
def test_checkpointing(kind: str) -> None:
    inner, last = network(), nn.Linear(4, 4)
    x = X.clone().requires_grad_()
    optimizer = torch.optim.SGD([*inner.parameters(), *last.parameters()], 0.1)

    def iteration() -> None:
        F.cross_entropy(last(checkpoint(inner, x, use_reentrant=kind == "reentrant")), Y).backward()
        optimizer.step()
        optimizer.zero_grad()

    anatomy = recorded(iteration, PROFILED + 1, memory=True)
    products = contractions(anatomy)
    # Without reentry recomputation stops in front of the last product of the segment.
    assert products["recompute"] == (FORWARD if kind == "reentrant" else 2 * 4 * 8 * 16)
    assert products["forward"] == FORWARD + 2 * 4 * 4 * 4
    assert anatomy.workload.checkpointing == kind
    assert observed(anatomy) == ["call counts", "contraction FLOPs"]
    assert "rng_states" in {row.component for row in anatomy.memory.components}


def test_a_data_loader_and_metrics_are_no_pass() -> None:
    model, criterion = network(), nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(TensorDataset(X.repeat(2 * PROFILED, 1), Y.repeat(2 * PROFILED)), batch_size=4)
    with opanatomy.record(warmup=BEFORE, module=model) as recorder:
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                model(x).argmax(1)
            optimizer.zero_grad()
            recorder.step()
    anatomy = recorder.anatomy
    assert contractions(anatomy) == {"forward": 2 * FORWARD, "backward": BACKWARD}
    assert set(calls(anatomy, Phase.OTHER)) >= {"aten::cat", "aten::argmax"}
    assert "aten::argmax" not in calls(anatomy, Phase.FORWARD)
    assert {row.module for row in anatomy.modules} == {"0", "1", "2"}


def test_without_a_module() -> None:
    weight = torch.randn(8, 4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)

    def iteration() -> None:
        F.cross_entropy(X @ weight, Y).backward()
        optimizer.step()
        optimizer.zero_grad()

    anatomy = recorded(iteration, PROFILED + 1, memory=True)
    assert contractions(anatomy) == {"forward": 2 * 4 * 8 * 4, "backward": 2 * 4 * 8 * 4}
    assert anatomy.modules == ()
    assert (anatomy.workload.model, anatomy.workload.parameters, anatomy.workload.batch) == (None, None, None)
    assert next(row.measured_bytes for row in anatomy.memory.components if row.component == "weights") == 4 * 8 * 4


def test_a_block_is_one_step() -> None:
    model = network()
    with opanatomy.record(module={"net": model}) as recorder:
        F.cross_entropy(model(X), Y).backward()
    anatomy = recorder.anatomy
    assert contractions(anatomy) == {"forward": FORWARD, "backward": BACKWARD}
    assert (anatomy.step.count, anatomy.step.unprofiled_wall_ns, anatomy.provenance.trace) == (1, None, None)
    assert {row.module for row in anatomy.modules} == {"net.0", "net.1", "net.2"}
    reasons = [check.not_checked for check in anatomy.checks if check.quantity == "call counts"]
    assert reasons == ["the block ran only once, under the profiler"]


ONE = "step() was never called - call recorder.step() at the end of each iteration to separate them"


@pytest.mark.parametrize(
    ("iterations", "backwards", "optimizers", "said"),
    [
        (2, 2, 2, f"4 optimizer steps and 4 backward passes count as one step, because {ONE}"),
        (3, 1, 0, f"3 backward passes count as one step, because {ONE}"),
        (1, 4, 1, None),
    ],
)
def test_iterations_without_a_step(iterations: int, backwards: int, optimizers: int, said: str | None) -> None:
    """An iteration may accumulate gradients, and have several optimizers; none of these steps twice in it."""
    model = network()
    steps = [torch.optim.SGD(part.parameters(), 0.1) for part in (model[0], model[2])][:optimizers]
    with opanatomy.record() as recorder:
        for _ in range(iterations):
            for _ in range(backwards):
                F.cross_entropy(model(X), Y).backward()
            for optimizer in steps:
                optimizer.step()
    assert [text for text in recorder.anatomy.warnings if "step()" in text] == ([said] if said else [])
    assert contractions(recorder.anatomy)["forward"] == iterations * backwards * FORWARD


def test_code_that_a_watch_breaks_is_told_how_to_do_without() -> None:
    def iteration(_: int) -> None:
        torch.func.grad(lambda x: x.sin().sum())(X)

    with (
        pytest.warns(UserWarning, match=r"^a step failed while its calls were counted a second time .* use warmup=1$"),
        pytest.raises(RuntimeError, match="saved tensor hooks"),
    ):
        run(3, iteration)
    run(3, iteration, warmup=1)


OTHER_WAY = "steps vary: the counted step had different shapes or calls than the profiled ones"


def ways_of(anatomy: Anatomy) -> dict[str, str | None]:
    """Why calls and FLOPs were not compared with a second count, if they were not."""
    return {
        check.quantity: check.not_checked
        for check in anatomy.checks
        if check.quantity in ("call counts", "contraction FLOPs")
    }


class Branches(nn.Module):
    """Takes another way in some of its calls: by a module, or by an operator alone."""

    def __init__(self, *numbers: int, by_module: bool) -> None:
        super().__init__()
        self.first, self.other = nn.Linear(8, 8), nn.Linear(8, 8)
        self.calls, self.numbers, self.by_module = 0, numbers, by_module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = self.first(x)
        if self.calls in self.numbers:
            x = self.other(x) if self.by_module else x @ self.other.weight
        return x


@pytest.mark.parametrize("by_module", [True, False], ids=["module", "operator"])
@pytest.mark.parametrize("numbers", [(4,), (4, 5, 6)], ids=["one", "all"])
def test_another_way_is_no_wrong_count(numbers: tuple[int, ...], by_module: bool) -> None:
    """Of steps 4 to 6, which are profiled; the two that are watched, before and after them, go the usual way."""
    model = Branches(*numbers, by_module=by_module)
    anatomy = recorded(lambda: model(X).sum().backward(), 8, steps=3, check=True)
    if len(numbers) == 3:
        assert set(ways_of(anatomy).values()) == {OTHER_WAY}


def test_steps_that_are_not_alike_are_not_compared() -> None:
    model = network()
    sizes = iter(range(1, 20))
    anatomy = recorded(lambda: model(torch.ones(next(sizes), 8)).sum().backward(), warmup=2)
    assert ways_of(anatomy) == {"call counts": None, "contraction FLOPs": OTHER_WAY}
    assert contractions(anatomy)["forward"] == 2 * 3 * (8 * 16 + 16 * 4)


# ------------------------------------------------------------------------------------------------------- the loop's own


def trained(iterations: int, step: Callable[[], None] = lambda: None) -> dict[str, torch.Tensor]:
    """Weights and optimizer state after some training with dropout, in two precisions, scaled, accumulated, clipped."""
    torch.manual_seed(1)
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for _ in range(iterations):
        for amp in (False, True):
            x, y = torch.randn(2, 4, 32), torch.randint(0, 8, (2, 4))
            with torch.autocast("cpu", torch.bfloat16, enabled=amp):
                loss = model(x, y)
            scaler.scale(loss / 2).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        step()
    moments = [value for values in optimizer.state.values() for value in values.values()]
    return {**model.state_dict(), **{str(index): value for index, value in enumerate(moments)}}


def test_training_is_the_same_to_the_bit() -> None:
    plain = trained(7)
    after = torch.get_rng_state()
    with opanatomy.record(warmup=BEFORE, steps=2, memory=True) as recorder:
        watched = trained(7, recorder.step)
    assert torch.equal(torch.get_rng_state(), after)
    assert plain.keys() == watched.keys()
    assert all(torch.equal(plain[name], watched[name]) for name in plain)
    assert len(recorder.anatomy.step.steps) == 2


def test_nothing_is_left_behind_when_all_is_recorded() -> None:
    model = network()
    run(1, lambda _: model(X), warmup=0)  # what torch itself sets when it is first profiled stays
    before = process()
    states = []
    with opanatomy.record(warmup=BEFORE, memory=True) as recorder:
        assert process() != before
        for _ in range(PROFILED + 3):
            model(X).sum().backward()
            recorder.step()
            states.append(without_clock(process()) == without_clock(before))
        assert recorder.anatomy.step.count == 1  # before the loop is done
    # The third is on the clock; of those that follow one is profiled, one is followed, one is counted again.
    assert states == [False, True, False, False, False, True, True]
    assert process() == before


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_error_of_the_loop_goes_through(kind: type[BaseException], tmp_path: Path) -> None:
    run(1, lambda _: X + 1, warmup=0)
    before = process()
    for iterations in range(7):  # in every stage
        raised = kind("the user's own")

        class Failing(nn.Module):
            def forward(self, x: torch.Tensor, fails: bool) -> torch.Tensor:
                if fails:
                    raise raised  # noqa: B023
                return x * 2

        model = nn.ModuleList([Failing()])

        def iteration(number: int) -> None:
            model[0](X.clone().requires_grad_(), number == iterations).sum().backward()  # noqa: B023

        with pytest.raises(kind) as caught:
            run(iterations + 1, iteration, tmp_path / "t.json", warmup=3, memory=True, force=True)
        assert caught.value is raised
        assert process() == before
        assert bool(list(tmp_path.iterdir())) is (iterations > 5)
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


# ----------------------------------------------------------------------------------------------------- too short, wrong


def test_a_loop_that_is_too_short(tmp_path: Path) -> None:
    model = network()
    target = tmp_path / "t.json"
    with pytest.raises(CaptureError) as caught:
        run(3, lambda _: model(X).sum().backward(), target)
    assert "ended after iteration 3, but profiling starts with iteration 6 - use warmup=2 or" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert recorded(lambda: model(X).sum().backward(), 3, warmup=2).step.count == 1


def test_fewer_steps_than_asked_for(tmp_path: Path) -> None:
    model = network()
    anatomy = recorded(lambda: model(X).sum().backward(), PROFILED + 1, steps=5, memory=True)
    assert (len(anatomy.step.steps), anatomy.workload.steps) == (2, 2)
    assert [warning[:30] for warning in anatomy.warnings] == [
        "only 2 of 5 steps were profiled"[:30],
        "no memory trace: the recording ended"[:30],
    ]
    assert contractions(anatomy) == {"forward": FORWARD, "backward": BACKWARD}
    with opanatomy.record(tmp_path / "t.json", warmup=1, steps=2) as recorder:
        for number in range(3):
            model(X).sum().backward()
            if number < 2:
                recorder.step()
    assert len(recorder.anatomy.step.steps) == 2
    assert recorder.anatomy.warnings == ("the last profiled step is incomplete, because the recording ended during it",)


def test_one_recorder_and_one_profiler_at_a_time() -> None:
    with pytest.raises(CaptureError, match="a recorder is already running"), opanatomy.record(), opanatomy.record():
        pass
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as running,
        pytest.raises(CaptureError, match=r"record: a torch profiler is already running"),
        opanatomy.record(),
    ):
        pass
    assert running.events() is not None
    recorder = opanatomy.record()
    with pytest.raises(CaptureError, match="was not started"):
        recorder.step()
    with pytest.raises(CaptureError, match="nothing has been recorded yet"), recorder:
        _ = recorder.anatomy
    with pytest.raises(CaptureError, match="already started"):
        recorder.start()


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"steps": 0}, UsageError, "steps=0: must be at least 1"),
        ({"memory": "yes"}, UsageError, "memory='yes': must be True or False"),
        ({"trace": "t.txt"}, UsageError, "record: trace t.txt: the name must end in .json or .json.gz"),
        ({"module": nn.Linear}, UsageError, "the class Linear - create an instance first"),
        ({"module": []}, UsageError, "module is empty"),
        ({"module": nn.Linear(4, 4, device="meta")}, ModelError, "meta device"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], kind: type[OpanatomyError], said: str) -> None:
    with pytest.raises(kind) as caught:
        opanatomy.record(**options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_there(tmp_path: Path) -> None:
    target = tmp_path / "t.json"
    target.write_text("mine")
    with pytest.raises(OutputError, match=r"it already exists - pass force=True"), opanatomy.record(target):
        pass
    assert target.read_text() == "mine"
    with opanatomy.record(target, force=True):
        X @ X.T
    assert contractions(opanatomy.analyze(target)) == {"forward": 2 * 4 * 8 * 4}


# ------------------------------------------------------------------------------------------------------------- compiled


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("how", ["compiled", "in place"])
def test_compiled_models_are_compiled_once(how: str) -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    model: Any = network()
    called = model
    if how == "in place":
        model.compile(backend="eager")
    else:
        called = torch.compile(model, backend="eager")
    frames = []

    def iteration() -> None:
        F.cross_entropy(called(X), Y).backward()
        frames.append(counters["frames"]["total"])

    anatomy = recorded(iteration, module=model if how == "in place" else None)
    assert contractions(anatomy) == {"forward": FORWARD, "backward": BACKWARD}
    assert len(set(frames)) == 1
    assert anatomy.workload.compiled
    assert anatomy.workload.batch == 4
    assert "_call_impl" not in vars(model)
