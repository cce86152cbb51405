"""The checks that a trace makes possible of itself: what is whole agrees, what is damaged is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from opanatomy.analysis import self_checks
from opanatomy.analysis.self_checks import (
    AGAIN,
    BEFORE_TRACE,
    DIFFERENTIATED,
    HOOK,
    MERGED,
    THINNED,
)
from opanatomy.pipeline import analyze_trace
from opanatomy.records.anatomy import Check
from opanatomy.records.taxonomy import Phase
from tests.handmade import HandMade, training_step
from tests.plants import captured, checks_of, contractions, families, plants, read, unexplained

SHARED = Path(__file__).parent.parent.parent / "shared"
OWN = sorted((Path(__file__).parent / "traces").glob("bert_*.json.gz"))
TRACES = sorted([*SHARED.glob("traces/**/*.json.gz"), *SHARED.glob("more_traces/**/*.json.gz")])

FAMILIES = {"mm", "bmm", "grouped convolution", "transposed convolution", "attention", "recurrent"}


def figures(check: Check) -> tuple[int, int]:
    return check.compared, check.equal


def explained(path: Path) -> dict[str, int]:
    """Calls of each cause."""
    found: dict[str, int] = {}
    for check in checks_of(path).values():
        for one in check.differences:
            assert one.cause is not None, one
            assert one.evidence is not None
            found[one.cause] = found.get(one.cause, 0) + int(one.evidence.split()[0].replace(",", ""))
    return found


# ------------------------------------------------------------------------------------------------------------- plants


#: A forward product that no backward needs, or a second one in its own place, is in the trace once only.
NOT_SEEN = ("dropped", "doubled beside itself")


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_damage_of_a_capture_is_found(family: str, tmp_path: Path) -> None:
    path = captured(families()[family], tmp_path / "step.json")
    assert unexplained(path) == []
    document, missed, tried = read(path), [], 0
    for number, gradient in contractions(path):
        for kind, events in plants(document, number, gradient):
            damaged = tmp_path / "damaged.json"
            damaged.write_bytes(msgspec.json.encode({**document, "traceEvents": events}))
            tried += 1
            missed += [] if unexplained(damaged) or (kind in NOT_SEEN and not gradient) else [(number, gradient, kind)]
    assert tried >= 20
    assert missed == []


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_damages_of_a_model_are_found(path: Path, tmp_path: Path) -> None:
    assert unexplained(path) == []
    _damage(path, tmp_path, Random(9), calls=6)


@pytest.mark.skipif(not TRACES, reason="the folder of shared traces is not next to the checkout")
@pytest.mark.parametrize("name", ["traces/train_mi300_resnet18", "more_traces/dlrm_v100/rank-0"])
def test_damages_of_a_trace_from_elsewhere_are_found(name: str, tmp_path: Path) -> None:
    _damage(SHARED / f"{name}.json.gz", tmp_path, Random(9), calls=2)


def _damage(path: Path, tmp_path: Path, random: Random, calls: int) -> None:
    """A few contractions, each damaged in a few ways."""
    document, missed = read(path), []
    for number, gradient in random.sample(contractions(path), calls):
        for kind, events in random.sample(list(plants(document, number, gradient)), 4):
            damaged = tmp_path / "damaged.json"
            damaged.write_bytes(msgspec.json.encode({**document, "traceEvents": events}))
            missed += [] if unexplained(damaged) or (kind in NOT_SEEN and not gradient) else [(number, gradient, kind)]
    assert missed == []


# ------------------------------------------------------------------------------------------------- traces as they are


def test_counts_of_a_step(tmp_path: Path) -> None:
    """Two linear layers: 2 forward products, 3 backward ones (the first needs no gradient of its input)."""
    checks = checks_of(captured(families()["mm"], tmp_path / "step.json"))
    assert figures(checks["backward contractions"]) == (3, 3)
    assert figures(checks["phases of contractions"]) == (5, 5)


@pytest.mark.skipif(not TRACES, reason="the folder of shared traces is not next to the checkout")
@pytest.mark.parametrize("path", TRACES, ids=lambda path: f"{path.parent.name}/{path.name.removesuffix('.json.gz')}")
def test_shared_traces_agree(path: Path) -> None:
    """Phases are checked by tests of their own: those of compiled regions are known to be wrong."""
    checks = checks_of(path)
    checks.pop("phases of contractions", None)
    assert [one for check in checks.values() for one in check.unexplained] == []


@pytest.mark.skipif(not TRACES, reason="the folder of shared traces is not next to the checkout")
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
    check = checks_of(SHARED / f"{name}.json.gz")["backward contractions"]
    assert figures(check) == (compared, compared)


@pytest.mark.skipif(not TRACES, reason="the folder of shared traces is not next to the checkout")
def test_a_trace_that_someone_thinned_out_has_products_without_a_forward() -> None:
    """Of 242 backward products 151 have no forward operator, and 13 nodes neither that nor products."""
    check = checks_of(SHARED / "traces" / "multirank" / "sampled_rank-0.json.gz")["backward contractions"]
    assert check.compared - check.equal == 151 + 13 - 5  # five are of a function of the model's own
    assert {one.cause for one in check.differences} == {THINNED, "causes named above"}


def test_the_checks_are_in_the_anatomy() -> None:
    anatomy = analyze_trace(OWN[-1])
    found = [check for check in anatomy.checks if check.compared]
    assert [check.quantity for check in found] == [
        "operator events", "backward contractions", "phases of contractions",
    ]  # fmt: skip
    assert all(check.compared == check.equal > 0 for check in found)


# -------------------------------------------------------------------------------------------------- what is no mistake


def frozen() -> Callable[[], Any]:
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(5)])
    model[0].requires_grad_(False)
    model[3].weight.requires_grad_(False)
    rows = torch.randn(2, 8, 8)
    return lambda: model(rows).sum().backward()


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
    model, rows = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(5, 8)
    model[1].register_full_backward_hook(lambda module, wanted, given: (given[0] @ torch.ones(8, 8),))
    return lambda: model(rows).sum().backward()


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


def forward_mode() -> Callable[[], Any]:
    layer, rows = nn.Linear(6, 6), torch.randn(4, 6)
    return lambda: torch.func.jvp(lambda x: layer(x).tanh(), (rows,), (rows,))


def functional() -> Callable[[], Any]:
    layer, rows = nn.Linear(6, 3), torch.randn(4, 6)
    parameters = dict(layer.named_parameters())
    return lambda: torch.func.grad(lambda p: torch.func.functional_call(layer, p, (rows,)).sum())(parameters)


def scripted() -> Callable[[], Any]:
    model, rows = torch.jit.script(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))), torch.randn(5, 8)
    for _ in range(4):
        model(rows).sum().backward()
    return lambda: model(rows).sum().backward()


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
    "own function": (own_function(), set()),
    "hooks": (hooks(), {HOOK}),
    "unused output": (unused(), set()),
    "decompositions": (decompositions(), {WITH_PRODUCTS}),
    "forward mode": (forward_mode(), set()),
    "hessian": (hessian(), {AGAIN}),
}


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
    path = captured(step(), tmp_path / "step.json")
    assert unexplained(path) == []
    assert figures(checks_of(path)["backward contractions"]) == (products, products)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_graphs_are_explained(tmp_path: Path) -> None:
    path = captured(scripted(), tmp_path / "step.json", steps=2)
    assert set(explained(path)) <= {self_checks.SCRIPTED, BEFORE_TRACE}


def test_cut_traces_are_explained(tmp_path: Path) -> None:
    """Of two steps the first forward is missing at the beginning, or the last backward at the end."""
    path = captured(families()["mm"], tmp_path / "steps.json", steps=2)
    document = read(path)
    nodes = sorted(one["ts"] for one in document["traceEvents"] if str(one["name"]).startswith("autograd::engine"))
    half = len(nodes) // 2
    for kept, causes in (
        (lambda ts: ts >= nodes[0], {BEFORE_TRACE: 3}),
        (lambda ts: ts < nodes[half], {}),
    ):
        events = [one for one in document["traceEvents"] if one.get("cat") != "cpu_op" or kept(one["ts"])]
        cut = tmp_path / "cut.json"
        cut.write_text(json.dumps({**document, "traceEvents": events}))
        assert explained(cut) == causes


# ---------------------------------------------------------------------------------------------------- hand-made traces


def test_phases_that_autograd_contradicts(tmp_path: Path) -> None:
    """The backward of a step lies in the optimizer's range, its forward in that of something else."""
    trace = training_step()
    assert unexplained(trace.write(tmp_path / "right.json")) == []
    for event in trace.events:
        if event["name"] == "opanatomy.phase/backward":
            event["name"] = "opanatomy.phase/optimizer"
        elif event["name"] == "opanatomy.phase/forward":
            event["name"] = "opanatomy.phase/other"
    check = checks_of(trace.write(tmp_path / "wrong.json"))["phases of contractions"]
    assert figures(check) == (2, 0)
    assert {(one.operator, one.phase) for one in check.unexplained} == {
        ("aten::mm", Phase.OPTIMIZER), ("aten::mm", Phase.OTHER),
    }  # fmt: skip


def test_numbers_of_two_threads_are_not_paired(tmp_path: Path) -> None:
    """Two threads dispatched an operator with the number of the node, and nothing says which it is of."""
    trace = HandMade()
    matrix = {"shapes": [[8, 4], [4, 2]], "types": ["float", "float"]}
    for thread in (1, 3):
        trace.host("aten::mm", 100, 50, thread=thread, sequence=5, **matrix)
    trace.host("MmBackward0", 200, 100, thread=2, sequence=5, forward_thread=1)
    trace.host("aten::t", 205, 2, thread=2)
    trace.host("aten::mm", 210, 50, thread=2, shapes=[[4, 8], [8, 2]], types=["float", "float"])
    check = checks_of(trace.write(tmp_path / "threads.json"))["backward contractions"]
    assert (check.compared, check.differences) == (0, ())
    assert check.not_checked == "1 backward products whose sequence number several threads used"


def test_like_differences_are_one_row(tmp_path: Path) -> None:
    """Thirty kinds of products twice each without their forward: twenty rows of two calls, the rest in one."""
    trace = HandMade()
    trace.host("aten::mm", 1, 1, sequence=0, shapes=[[1, 1], [1, 1]], types=["float", "float"])
    for place in range(60):
        start, size = 100 * (place + 1), 2 + place % 30
        trace.host("MmBackward0", start, 90, sequence=place + 1, forward_thread=1)
        trace.host("aten::t", start + 5, 2)
        trace.host("aten::mm", start + 10, 50, shapes=[[size, 8], [8, 2]], types=["float", "float"])
    check = checks_of(trace.write(tmp_path / "many.json"))["backward contractions"]
    assert figures(check) == (60, 0)
    assert len(check.differences) == 21
    assert all(str(one.evidence).startswith("2 calls: mm(") for one in check.differences[:20])
    assert check.differences[20].operator == "others"
    assert str(check.differences[20].evidence) == "20 calls of 10 kinds"
    assert sum((one.ours or 0) * 2 for one in check.differences[:20]) + (check.differences[20].ours or 0) == sum(
        2 * 2 * (2 + kind) * 8 * 2 for kind in range(30)
    )


# ------------------------------------------------------------------------------------------ what traces of others have


@pytest.mark.filterwarnings("ignore")
def test_a_compilation_is_no_work(tmp_path: Path) -> None:
    """The first of two steps compiles: what runs on tensors without data is in no check."""
    torch._dynamo.reset()
    model = torch.compile(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)), backend="aot_eager")
    rows = torch.randn(8, 16)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(2):
            model(rows).sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "compiled.json"))
    checks = checks_of(tmp_path / "compiled.json")
    assert [one for check in checks.values() for one in check.differences] == []
    # two products in each forward, three in each backward
    assert figures(checks["phases of contractions"]) == (10, 10)


@pytest.mark.parametrize(
    ("node", "checked"), [("FancyLinearBackward", False), ("CompiledFunctionBackward", False), ("MmBackward0", True)]
)
def test_backwards_that_someone_wrote_are_not_judged(node: str, checked: bool, tmp_path: Path) -> None:
    """Its product is of other sizes than the forward's: of a library's operator that cannot be."""
    trace = HandMade()
    operator = "aten::mm" if checked else node.removesuffix("Backward")
    trace.host(operator, 100, 60, sequence=5, shapes=[[8, 4], [4, 2]], types=["float", "float"])
    if not checked:
        trace.host("aten::mm", 110, 40, sequence=6, shapes=[[8, 4], [4, 2]], types=["float", "float"])
    trace.host(node, 200, 90, thread=2, sequence=5, forward_thread=1)
    trace.host("aten::t", 205, 2, thread=2)
    trace.host("aten::mm", 210, 50, thread=2, shapes=[[4, 16], [16, 2]], types=["float", "float"])
    check = checks_of(trace.write(tmp_path / "own.json"))["backward contractions"]
    assert bool(check.unexplained) is checked
    assert (check.not_checked is None) is checked


def test_numbers_of_a_merged_trace_are_no_doubled_events(tmp_path: Path) -> None:
    """Two processes count alike; one event that is there twice is found."""
    trace = HandMade()
    for start in range(20):
        trace.host("aten::add", 100 * start, 50)
    events = [{**one, "ts": one["ts"] + 20, "tid": 9, "args": {**one["args"]}} for one in trace.events]
    once = HandMade(events=[*trace.events, events[0]])
    assert len(checks_of(once.write(tmp_path / "once.json"))["operator events"].unexplained) == 1
    merged = HandMade(events=[*trace.events, *events])
    [one] = checks_of(merged.write(tmp_path / "merged.json"))["operator events"].differences
    assert one.cause == MERGED
