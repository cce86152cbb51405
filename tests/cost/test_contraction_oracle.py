"""The oracle of contractions: forward and backward of a trace agree where it is whole; what is damaged is found."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from opanatomy.records.anatomy import Check, Difference
from opanatomy.records.taxonomy import Phase
from tests.support import contractions
from tests.support.contractions import AGAIN, BEFORE_TRACE, DIFFERENTIATED, HOOK, oracle
from tests.support.made_trace import MATRICES, TraceBuilder, training_step
from tests.support.paths import SHARED, TRACES

OWN = sorted(TRACES.glob("bert_*.json.gz"))
OTHERS = sorted([*SHARED.glob("traces/**/*.json.gz"), *SHARED.glob("more_traces/**/*.json.gz")])
WITH_TRACES = pytest.mark.skipif(not OTHERS, reason="the folder of shared traces is not next to the checkout")
BACKWARD_OF = "backward contractions"
#: Contractions and how many of their tensor arguments give the sizes that the FLOPs are made of, or must fit them.
OPERANDS = {
    "mm": 2, "bmm": 2, "addmm": 3, "convolution_backward": 3, "mkldnn_convolution": 3,
    "_scaled_dot_product_flash_attention_for_cpu": 3, "_scaled_dot_product_flash_attention_for_cpu_backward": 4,
    "mkldnn_rnn_layer": 7, "mkldnn_rnn_layer_backward": 7,
}  # fmt: skip


def captured(function: Callable[[], Any], path: Path, steps: int = 1) -> Path:
    """The trace of `steps` runs after a warm-up, as any user of torch.profiler writes it."""
    function()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(steps):
            function()
    profiler.export_chrome_trace(str(path))
    return path


def checks_of(trace: Path | TraceBuilder, folder: Path | None = None) -> dict[str, Check]:
    return oracle(trace.write((folder or Path()) / "trace.json") if isinstance(trace, TraceBuilder) else trace)


def figures(check: Check) -> tuple[int, int]:
    return check.compared, check.equal


def unexplained(found: dict[str, Check]) -> list[Difference]:
    return [one for check in found.values() for one in check.unexplained]


def explained(path: Path) -> dict[str, int]:
    """Calls of each cause; none is without one."""
    found: dict[str, int] = {}
    for one in (one for check in checks_of(path).values() for one in check.differences):
        assert one.cause is not None, one
        assert one.evidence is not None
        found[one.cause] = found.get(one.cause, 0) + int(one.evidence.split()[0].replace(",", ""))
    return found


# ------------------------------------------------------------------------------------------------------------- damage


def families() -> dict[str, Callable[[], Any]]:
    """One training step of each kind of contraction."""
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    grouped = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 4, 3, groups=2))
    query, key, value = (torch.randn(2, 4, 6, 8, requires_grad=True) for _ in range(3))
    attention = nn.functional.scaled_dot_product_attention
    recurrent = nn.LSTM(6, 7, num_layers=2)
    rows, image, sequence = torch.randn(5, 8), torch.randn(2, 3, 8, 8), torch.randn(5, 3, 6)
    return {
        "mm": lambda: linear(rows).sum().backward(),
        "bmm": lambda: (query @ key.transpose(2, 3) @ value).sum().backward(),
        "grouped convolution": lambda: grouped(image).sum().backward(),
        "attention": lambda: attention(query, key, value).sum().backward(),
        "recurrent": lambda: recurrent(sequence)[0].sum().backward(),
    }


def damages(document: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The events without a gradient, with a contraction twice, with one more in a size of its arguments."""
    events: list[dict[str, Any]] = document["traceEvents"]
    for at, event in enumerate(events):
        name = event["name"].removeprefix("aten::")
        if event.get("cat") != "cpu_op" or name not in OPERANDS:
            continue
        nodes = (one for one in events if str(one.get("name")).endswith("Backward0") and one["tid"] == event["tid"])
        if any(one["ts"] <= event["ts"] and one["ts"] + one["dur"] >= event["ts"] + event["dur"] for one in nodes):
            yield f"{name} dropped", events[:at] + events[at + 1 :]
        yield f"{name} doubled", [*events, {**event, "args": {**event["args"], "External id": 10**9}}]
        for operand, shape in enumerate(event["args"]["Input Dims"][: OPERANDS[name]]):
            for dimension in range(len(shape)):
                changed = copy.deepcopy(event)
                changed["args"]["Input Dims"][operand][dimension] += 1
                yield f"{name} {operand} {dimension}", [*events[:at], changed, *events[at + 1 :]]


def missed(path: Path, folder: Path, most: int) -> list[str]:
    """The damages of a trace that no check notices, of so many that chance picks."""
    assert unexplained(checks_of(path)) == []
    document = json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    every = list(damages(document))
    assert len(every) >= 20
    lost, damaged = [], folder / "damaged.json"
    for kind, events in Random(9).sample(every, min(len(every), most)):
        damaged.write_text(json.dumps({**document, "traceEvents": events}))
        lost += [] if unexplained(checks_of(damaged)) else [kind]
    return lost


@pytest.mark.parametrize("family", sorted(families()))
def test_every_damage_of_a_capture_is_found(family: str, tmp_path: Path) -> None:
    assert missed(captured(families()[family], tmp_path / "step.json"), tmp_path, 40) == []


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_damages_of_a_model_are_found(path: Path, tmp_path: Path) -> None:
    assert missed(path, tmp_path, 12) == []


# ------------------------------------------------------------------------------------------------- traces as they are


def test_the_gradients_of_a_product_with_a_vector_cost_as_much_as_it(tmp_path: Path) -> None:
    """An outer product for the matrix, which autograd makes of views, and another `mv` for the vector."""
    matrix, vector = torch.randn(5, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    checks = checks_of(captured(lambda: (matrix @ vector).sum().backward(), tmp_path / "step.json"))
    compared, equal = figures(checks["backward contractions"])
    assert compared == equal >= 1


def test_counts_of_a_step(tmp_path: Path) -> None:
    """Two linear layers: 2 forward products, 3 backward ones (the first needs no gradient of its input)."""
    found = checks_of(captured(families()["mm"], tmp_path / "step.json"))
    assert {name: figures(check) for name, check in found.items() if check.compared} == {
        BACKWARD_OF: (3, 3),
        "phases of contractions": (5, 5),
        "operator events": figures(found["operator events"]),
    }


@WITH_TRACES
@pytest.mark.parametrize("path", OTHERS, ids=lambda path: f"{path.parent.name}/{path.name.removesuffix('.json.gz')}")
def test_shared_traces_agree(path: Path) -> None:
    """Of what a trace says of its contractions; phases of compiled regions are known to be wrong."""
    found = checks_of(path)
    names = ("operator events", BACKWARD_OF)
    assert unexplained({name: found[name] for name in names if name in found}) == []


@WITH_TRACES
@pytest.mark.parametrize(
    ("name", "compared"),
    [
        ("traces/train_a100_rank3of8_shapes_nccl", 1140),
        ("traces/train_mi300_resnet18", 110),
        ("traces/train_v100_resnet50_schema2021", 12),
        ("more_traces/dlrm_v100/rank-0", 15),
        ("more_traces/compare/train_h100_compile_gpt_rank0of8_before", 432),
    ],
)
def test_every_backward_product_of_a_shared_trace_is_its_forwards(name: str, compared: int) -> None:
    assert figures(checks_of(SHARED / f"{name}.json.gz")[BACKWARD_OF]) == (compared, compared)


@WITH_TRACES
def test_a_trace_that_someone_thinned_out_has_products_without_a_forward() -> None:
    """Of 242 backward products 151 have no forward operator, and 13 nodes neither that nor products."""
    check = checks_of(SHARED / "traces" / "multirank" / "sampled_rank-0.json.gz")[BACKWARD_OF]
    assert check.compared - check.equal == 151 + 13 - 5  # five are of a function of the model's own
    assert {one.cause for one in check.differences} == {contractions.THINNED, "causes named above"}


# -------------------------------------------------------------------------------------------------- what is no mistake


def backward(model: nn.Module, *shape: int) -> Callable[[], Any]:
    rows = torch.randn(*shape)
    return lambda: model(rows).sum().backward()


def frozen() -> Callable[[], Any]:
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(5)])
    model[0].requires_grad_(False)
    model[3].weight.requires_grad_(False)
    return backward(model, 2, 8, 8)


def layouts() -> Callable[[], Any]:
    """Every order of stored operands, sizes equal and not, vectors, broadcast weights."""
    a, b, c = (torch.randn(*shape, requires_grad=True) for shape in ((4, 5), (6, 5), (5, 4)))
    batch, square = torch.randn(2, 3, 4, 5, requires_grad=True), torch.randn(5, 5, requires_grad=True)

    def step() -> None:
        products = (a @ b.t(), c.t() @ b.t(), b @ a.t(), a @ c, batch @ b.t(), batch @ square, square @ square.t())
        sum(product.sum() for product in (*products, batch @ b[0], torch.mv(a, b[0]), torch.dot(b[0], b[1]))).backward()

    return step


def gradient_penalty() -> Callable[[], Any]:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    rows = torch.randn(5, 8, requires_grad=True)

    def step() -> None:
        loss = model(rows).sum()
        (slope,) = torch.autograd.grad(loss, rows, create_graph=True)
        (slope.pow(2).sum() + loss).backward()

    return step


def checkpointed(reentrant: bool) -> Callable[[], Any]:
    model = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(2))
    rows = torch.randn(5, 8, requires_grad=True)

    def step() -> None:
        hidden = rows
        for layer in model:
            hidden = checkpoint(layer, hidden, use_reentrant=reentrant)
        hidden.sum().backward()

    return step


class Fused(torch.autograd.Function):
    """A loss that computes its gradients in forward."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.kept = (rows.t() @ rows @ weight, rows)
        return (rows @ weight).sum()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor]:
        weight, rows = ctx.kept
        return None, grad * (rows.t() @ (rows @ weight))


def own_function() -> Callable[[], Any]:
    rows, weight = torch.randn(5, 8), torch.randn(8, 3, requires_grad=True)
    return lambda: Fused.apply(rows, weight).backward()


def hooks() -> Callable[[], Any]:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].register_full_backward_hook(lambda module, wanted, given: (given[0] @ torch.ones(8, 8),))
    return backward(model, 5, 8)


def unused() -> Callable[[], Any]:
    used, head, rows = nn.Linear(8, 8), nn.Linear(8, 3), torch.randn(5, 8)

    def step() -> None:
        hidden = used(rows)
        head(hidden).tanh()
        hidden.sum().backward()

    return step


def autocast() -> Callable[[], Any]:
    layer, convolution, rows = nn.Linear(8, 16), nn.Conv1d(3, 4, 3, stride=2), torch.randn(5, 8)
    image = torch.randn(2, 3, 9)

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = layer(rows).sum() + convolution(image).sum()
        loss.backward()

    return step


def decompositions() -> Callable[[], Any]:
    matrix = torch.randn(4, 4, requires_grad=True)
    return lambda: (torch.linalg.inv(matrix).sum() + torch.linalg.qr(matrix)[1].sum()).backward()


def functional() -> Callable[[], Any]:
    layer, rows = nn.Linear(6, 3), torch.randn(4, 6)
    parameters = dict(layer.named_parameters())
    return lambda: torch.func.grad(lambda p: torch.func.functional_call(layer, p, (rows,)).sum())(parameters)


def hessian() -> Callable[[], Any]:
    layer, row = nn.Linear(6, 1), torch.randn(6)
    return lambda: torch.func.hessian(lambda x: layer(x).tanh().sum())(row)


WITH_PRODUCTS = "the gradient of this operator is made of products, as torch writes it"
EXCEPTIONS: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "frozen layers": (frozen(), set()),
    "layouts": (layouts(), set()),
    "checkpointing": (checkpointed(False), set()),
    "reentrant checkpointing": (checkpointed(True), set()),
    "autocast": (autocast(), set()),
    "transposed": (backward(nn.Sequential(nn.ConvTranspose2d(3, 8, 3), nn.ConvTranspose2d(8, 8, 3, groups=2)), 2, 3, 8,
     8),
                   set()),
    "own function": (own_function(), set()),
    "hooks": (hooks(), {HOOK}),
    "unused output": (unused(), set()),
    "decompositions": (decompositions(), {WITH_PRODUCTS}),
    "hessian": (hessian(), {AGAIN}),
}  # fmt: skip


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_what_is_no_mistake_has_a_cause(name: str, tmp_path: Path) -> None:
    step, causes = EXCEPTIONS[name]
    path = captured(step, tmp_path / "step.json", steps=2)
    assert set(explained(path)) - {DIFFERENTIATED} == causes
    assert any(check.compared for check in checks_of(path).values())


@pytest.mark.parametrize(
    ("step", "products"), [(gradient_penalty, 9), (functional, 1)], ids=["gradient penalty", "torch.func"]
)
def test_differentiated_backwards_pair(step: Callable[[], Callable[[], Any]], products: int, tmp_path: Path) -> None:
    """A backward that is differentiated has numbers like a forward; its products are gradients all the same."""
    found = checks_of(captured(step(), tmp_path / "step.json"))
    assert unexplained(found) == []
    assert figures(found[BACKWARD_OF]) == (products, products)


class Product(torch.autograd.Function):
    """A product of the model's own, whose forward runs again when its backward asks for what it saved."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows, weight)
        return rows @ weight

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows, weight = ctx.saved_tensors
        return grad @ weight.t(), rows.t() @ grad


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_function_that_checkpointing_runs_again_is_no_gradient(reentrant: bool, tmp_path: Path) -> None:
    """Its product runs again beside the two of its gradients; those and the forward's are of known phases."""
    rows, weight = torch.randn(5, 8, requires_grad=True), torch.randn(8, 3, requires_grad=True)

    def step() -> None:
        out = checkpoint(Product.apply, rows, weight, use_reentrant=reentrant, preserve_rng_state=False)
        out.sum().backward()

    found = checks_of(captured(step, tmp_path / "step.json"))
    assert figures(found[BACKWARD_OF]) == figures(found["phases of contractions"]) == (3, 3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_graphs_are_explained(tmp_path: Path) -> None:
    model, rows = torch.jit.script(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))), torch.randn(5, 8)
    for _ in range(4):
        model(rows).sum().backward()
    path = captured(lambda: model(rows).sum().backward(), tmp_path / "step.json", steps=2)
    assert set(explained(path)) <= {contractions.SCRIPTED, BEFORE_TRACE}


def test_cut_traces_are_explained(tmp_path: Path) -> None:
    """Of two steps the first forward is missing at the beginning, or the last backward at the end."""
    document = json.loads(captured(families()["mm"], tmp_path / "steps.json", steps=2).read_text())
    nodes = sorted(one["ts"] for one in document["traceEvents"] if str(one["name"]).startswith("autograd::engine"))
    for kept, causes in ((lambda ts: ts >= nodes[0], {BEFORE_TRACE: 3}), (lambda ts: ts < nodes[len(nodes) // 2], {})):
        events = [one for one in document["traceEvents"] if one.get("cat") != "cpu_op" or kept(one["ts"])]
        (tmp_path / "cut.json").write_text(json.dumps({**document, "traceEvents": events}))
        assert explained(tmp_path / "cut.json") == causes


@pytest.mark.filterwarnings("ignore")
def test_a_compilation_is_no_work(tmp_path: Path) -> None:
    """The first of two steps compiles: what runs on tensors without data is in no check."""
    torch._dynamo.reset()
    model = torch.compile(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)), backend="aot_eager")
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(2):
            model(torch.randn(8, 16)).sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "compiled.json"))
    found = checks_of(tmp_path / "compiled.json")
    assert [one for check in found.values() for one in check.differences] == []
    assert figures(found["phases of contractions"]) == (10, 10)  # two products in each forward, three in each backward


# ---------------------------------------------------------------------------------------------------- hand-made traces


def test_phases_that_autograd_contradicts(tmp_path: Path) -> None:
    """The backward of a step lies in the optimizer's range, its forward in that of something else."""
    trace = training_step()
    assert unexplained(checks_of(trace, tmp_path)) == []
    trace.named("phase/optimizer")["ts"] = 2000
    trace.named("phase/backward")["name"] = "opanatomy.phase/optimizer"
    trace.named("phase/forward")["name"] = "opanatomy.phase/other"
    check = checks_of(trace, tmp_path)["phases of contractions"]
    assert figures(check) == (2, 0)
    assert {(one.operator, one.phase) for one in check.unexplained} == {
        ("aten::mm", Phase.OPTIMIZER),
        ("aten::mm", Phase.OTHER),
    }


def node(trace: TraceBuilder, start: float, sequence: int, left: list[int], right: list[int], thread: int = 2) -> None:
    """A node with one product."""
    trace.host("MmBackward0", start, 90, thread=thread, sequence=sequence, forward_thread=1)
    trace.host("aten::t", start + 5, 2, thread=thread)
    trace.host("aten::mm", start + 10, 50, thread=thread, shapes=[left, right], types=["float", "float"])


def test_numbers_of_two_threads_are_not_paired(tmp_path: Path) -> None:
    """Two threads dispatched an operator with the number of the node, and nothing says which it is of."""
    trace = TraceBuilder()
    for thread in (1, 3):
        trace.host("aten::mm", 100, 50, thread=thread, sequence=5, **MATRICES)
    node(trace, 200, 5, [4, 8], [8, 2])
    check = checks_of(trace, tmp_path)[BACKWARD_OF]
    assert (check.compared, check.differences) == (0, ())
    assert check.not_checked == "1 backward products whose sequence number several threads used"


def test_like_differences_are_one_row(tmp_path: Path) -> None:
    """Thirty kinds of products twice each without their forward: twenty rows of two calls, the rest in one."""
    trace = TraceBuilder()
    trace.host("aten::mm", 1, 1, sequence=0, shapes=[[1, 1], [1, 1]], types=["float", "float"])
    for index in range(60):
        node(trace, 100 * (index + 1), index + 1, [2 + index % 30, 8], [8, 2], thread=1)
    check = checks_of(trace, tmp_path)[BACKWARD_OF]
    assert figures(check) == (60, 0)
    assert all(str(one.evidence).startswith("2 calls: mm(") for one in check.differences[:20])
    (rest,) = check.differences[20:]
    assert (rest.operator, str(rest.evidence)) == ("others", "20 calls of 10 kinds")
    assert sum((one.ours or 0) * 2 for one in check.differences[:20]) + (rest.ours or 0) == sum(
        2 * 2 * (2 + kind) * 8 * 2 for kind in range(30)
    )


@pytest.mark.parametrize(
    ("name", "checked"), [("FancyLinearBackward", False), ("CompiledFunctionBackward", False), ("MmBackward0", True)]
)
def test_backwards_that_someone_wrote_are_not_judged(name: str, checked: bool, tmp_path: Path) -> None:
    """Its product is of other sizes than the forward's: of a library's operator that cannot be."""
    trace = TraceBuilder()
    trace.host("aten::mm" if checked else name.removesuffix("Backward"), 100, 60, sequence=5, **MATRICES)
    if not checked:
        trace.host("aten::mm", 110, 40, sequence=6, **MATRICES)
    node(trace, 200, 5, [4, 16], [16, 2])
    trace.named("MmBackward0")["name"] = name
    check = checks_of(trace, tmp_path)[BACKWARD_OF]
    assert bool(check.unexplained) is checked
    assert (check.not_checked is None) is checked


def test_numbers_of_a_merged_trace_are_no_doubled_events(tmp_path: Path) -> None:
    """Two processes count alike; one event that is there twice is found."""
    trace = TraceBuilder()
    for start in range(20):
        trace.host("aten::add", 100 * start, 50)
    events = [{**one, "ts": one["ts"] + 20, "tid": 9, "args": {**one["args"]}} for one in trace.events]
    once = checks_of(TraceBuilder(events=[*trace.events, events[0]]), tmp_path)
    assert len(once["operator events"].unexplained) == 1
    [one] = checks_of(TraceBuilder(events=[*trace.events, *events]), tmp_path)["operator events"].differences
    assert one.cause == contractions.MERGED
