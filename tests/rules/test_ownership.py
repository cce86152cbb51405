"""Which call owns what work and cost, against torch's own counter: it counts in a dispatch mode, so only what ran."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)
from torch.utils.flop_counter import FlopCounterMode

import opanatomy
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import OperatorClass, Phase
from tests.support.made_trace import MATRICES, TraceBuilder, on_gpu
from tests.support.torch_counter import MENDED

F = nn.functional
R = torch.randn
CONTRACTION = OperatorClass.TENSOR_CONTRACTION
MOVEMENT = OperatorClass.DATA_MOVEMENT
ELEMENTWISE = OperatorClass.ELEMENTWISE
NORMALIZATION = OperatorClass.STATISTICAL_NORMALIZATION


def anatomy_of(work: Callable[[], Any], folder: Path) -> Anatomy:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work()
    profiler.export_chrome_trace(str(folder / "trace.json"))
    return opanatomy.analyze(folder / "trace.json")


def counted(work: Callable[[], Any]) -> int:
    counter = FlopCounterMode(display=False, custom_mapping=MENDED)
    with counter, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work()
    return counter.get_total_flops()


def flops(anatomy: Anatomy, kind: OperatorClass = CONTRACTION, phase: Phase | None = None) -> int:
    rows = [row for row in anatomy.classes if row.operator_class is kind and phase in (None, row.phase)]
    return sum(row.flops or 0 for row in rows)


def calls(anatomy: Anatomy, kind: OperatorClass, phase: Phase | None = None) -> dict[str, int]:
    """The calls of a class by operator, what is part of another call apart."""
    found: dict[str, int] = {}
    for row in anatomy.operators:
        if row.operator_class is kind and row.part_of is None and phase in (None, row.phase):
            found[row.operator] = found.get(row.operator, 0) + row.calls
    return found


# ------------------------------------------------------------------------------- kernels that leave no event


CONVOLUTIONS = [
    pytest.param(kind, dtype, options, last, batch, id=f"{kind.__name__}-{dtype}-{options}-{last}-{batch}")
    for kind in (nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    for dtype, options, last, batch in (
        ("float32", {}, False, 2),
        ("float32", {"groups": 2}, False, 2),
        ("float32", {"groups": 4}, False, 1),
        ("float32", {"stride": 2, "bias": False}, False, 2),
        ("float32", {"dilation": 2}, False, 0),
        ("float32", {}, True, 2),
        ("bfloat16", {}, False, 2),
        ("bfloat16", {"groups": 4}, True, 1),
        ("float64", {"groups": 2}, False, 2),
        ("float16", {}, False, 2),
    )
    if not (last and kind is nn.ConvTranspose1d)
]


@pytest.mark.parametrize(("kind", "dtype", "options", "last", "batch"), CONVOLUTIONS)
def test_convolutions_own_their_cost(
    kind: type[nn.Conv2d], dtype: str, options: dict[str, Any], last: bool, batch: int, tmp_path: Path
) -> None:
    """On the CPU a transposed convolution runs inside `aten::_convolution`, with copies below it in some layouts."""
    dimensions = int(kind.__name__[-2])
    layout = torch.channels_last if dimensions == 2 else torch.channels_last_3d
    element = getattr(torch, dtype)
    module = kind(4, 8, 3, **options).to(element)
    x = R(batch, 4, *([7] * dimensions)).to(element)
    if last:
        module, x = module.to(memory_format=layout), x.to(memory_format=layout)
    x.requires_grad_()

    def step() -> None:
        module(x).sum().backward()

    anatomy = anatomy_of(step, tmp_path)
    expected = counted(step)
    assert flops(anatomy) == expected
    assert 3 * flops(anatomy, phase=Phase.FORWARD) == expected
    assert all(row.flops is not None for row in anatomy.operators if row.operator_class is CONTRACTION)


def test_the_copies_below_a_transposed_convolution_are_part_of_it(tmp_path: Path) -> None:
    """As a processor without bfloat16 products runs it: 90 us of the convolution, 20 of them in two copies."""
    trace = TraceBuilder()
    tensors: dict[str, Any] = {
        "shapes": [[4, 16, 48, 48], [16, 16, 5, 5], [16], [], [], [], [], [], []],
        "types": ["c10::BFloat16"] * 3 + ["ScalarList"] * 3 + ["Scalar", "ScalarList", "Scalar"],
        "constants": ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1"],
    }
    trace.host("aten::conv_transpose2d", 0, 100)
    trace.host("aten::convolution", 4, 94, **tensors)
    trace.host("aten::_convolution", 6, 90, **tensors)
    for start in (10, 70):
        trace.host("aten::copy_", start, 10, shapes=[[4, 16, 48, 48]] * 2, types=["float", "c10::BFloat16"])
    anatomy = trace.analyze(tmp_path)
    owned = {(row.operator, row.part_of): row.time_ns for row in anatomy.operators}
    assert owned["aten::_convolution", None] == 70_000
    assert owned["aten::copy_", "aten::_convolution"] == 20_000
    assert calls(anatomy, MOVEMENT) == {}


def below(name: str, *children: str) -> TraceBuilder:
    """A CPU trace of an operator of 100 us with others of 5 us below it."""
    made = TraceBuilder()
    made.host(name, 0, 100)
    for index, child in enumerate(children):
        made.host(child, 10 + 10 * index, 5)
    return made


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        # its own kernel next to the copies
        (below("mylib::fused_attention", "aten::copy_", "aten::mul"), {(CONTRACTION, 100_000)}),
        (below("mylib::rms_norm_fwd", "aten::copy_", "aten::fill_"), {(NORMALIZATION, 100_000)}),
        (below("nobody::knows_this", "aten::copy_"), {(OperatorClass.UNKNOWN, 100_000)}),
        # handed on: what runs below does the work
        (below("mylib::fused_attention", "aten::bmm", "aten::copy_"), {(CONTRACTION, 5_000), (MOVEMENT, 5_000)}),
        (below("mylib::rms_norm_fwd", "aten::mean", "aten::copy_"), {(NORMALIZATION, 5_000), (MOVEMENT, 5_000)}),
        # composites are what they call: copies alone, products and sums
        (below("aten::matrix_power", "aten::copy_"), {(MOVEMENT, 5_000)}),
        (below("aten::linalg_vecdot", "aten::mul", "aten::sum"), {(ELEMENTWISE, 5_000), (NORMALIZATION, 5_000)}),
        # a dispatch mode that returned what it kept: nothing ran
        (below("aten::mm", "PythonDispatchMode"), set()),
    ],
)
def test_what_delegates_keeps_what_nothing_below_can_do(
    made: TraceBuilder, expected: set[tuple[OperatorClass, int]], tmp_path: Path
) -> None:
    made.host("aten::add_", 200, 7)
    anatomy = made.analyze(tmp_path)
    found = {(row.operator_class, row.time_ns) for row in anatomy.classes} - {(ELEMENTWISE, 7_000)}
    if (ELEMENTWISE, 5_000) in expected:
        expected = expected - {(ELEMENTWISE, 5_000)} | {(ELEMENTWISE, 12_000)}
    assert found == expected


def gpu(*launched: str) -> TraceBuilder:
    """`aten::_convolution` > `aten::cudnn_convolution`, `aten::copy_`; the named ones launch 10 us of device work."""
    made = on_gpu()
    shapes: list[Any] = [[2, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], [], [], []]
    types = ["float", "float", "", *["ScalarList"] * 3, "Scalar", "ScalarList", "Scalar"]
    constants = ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]
    made.host("aten::_convolution", 0, 100, shapes=shapes, types=types, constants=constants)
    child = ["", "", "[0, 0]", "[1, 1]", "[1, 1]", "1"]
    made.host(
        "aten::cudnn_convolution",
        10,
        30,
        shapes=[*shapes[:2], [], [], [], []],
        types=["float", "float", *["ScalarList"] * 3, "Scalar"],
        constants=child,
    )
    made.host("aten::copy_", 50, 20, shapes=[[8], [8]], types=["float", "float"])
    for number, (name, start) in enumerate({"_convolution": 80, "cudnn_convolution": 15, "copy_": 55}.items(), 1):
        if name in launched:
            made.launch(start, number)
            made.kernel(f"kernel of {name}", 200 + 20 * number, 10, number)
    return made


@pytest.mark.parametrize(
    ("launched", "owners"),
    [
        (("cudnn_convolution", "copy_"), {"aten::cudnn_convolution": (10_000, 15552), "aten::copy_": (10_000, 0)}),
        (("_convolution", "copy_"), {"aten::_convolution": (20_000, 15552)}),
    ],
)
def test_on_an_accelerator_the_launches_tell(
    launched: tuple[str, ...], owners: dict[str, tuple[int, int]], tmp_path: Path
) -> None:
    """2 images x 4 x 6 x 6 results of 3 x 3 x 3 products; copies below an operator that works are part of it, once."""
    anatomy = gpu(*launched).analyze(tmp_path)
    found: dict[str, tuple[int, int]] = {}
    for row in anatomy.operators:
        time, done = found.get(row.part_of or row.operator, (0, 0))
        found[row.part_of or row.operator] = (time + row.time_ns, done + (row.flops or 0))
    assert found == owners


def test_the_first_event_of_a_trace_is_a_call_like_any_other(tmp_path: Path) -> None:
    made = TraceBuilder()
    made.host("aten::mm", 0, 100, **MATRICES)
    made.launch(10, 1)
    made.kernel("ampere_tf32_s1688gemm_128x64_nn", 20, 10, 1)
    (row,) = made.analyze(tmp_path).operators
    assert (row.operator, row.time_ns, row.flops, row.compute_type) == ("aten::mm", 10_000, 2 * 8 * 4 * 2, "tf32")


# ------------------------------------------------------------------------------- hooks of saved tensors


HOOKS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], dict[str, int]]] = {
    "half": (lambda t: t.bfloat16(), lambda t: t.float(), {"aten::copy_": 14}),
    "copy": (lambda t: t.clone(), lambda t: t, {"aten::copy_": 14}),
    "cat": (lambda t: torch.cat([t]), lambda t: t, {"aten::cat": 14}),
    "int8": (lambda t: (t * 9).to(torch.int8), lambda t: t / 9.0, {"aten::copy_": 14, "aten::mul": 14}),
    "nothing": (lambda t: t, lambda t: t, {}),
}


@pytest.mark.parametrize("name", HOOKS)
def test_what_hooks_do_is_their_own(name: str, tmp_path: Path) -> None:
    """Fourteen tensors are saved; every copy of them was "part of" the product or the map around the hook."""
    pack, unpack, expected = HOOKS[name]
    w, b, x = R(16, 16, requires_grad=True), R(16, requires_grad=True), R(8, 16, requires_grad=True)

    def step() -> None:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            y = F.layer_norm(F.gelu(torch.addmm(b, x, w)), (16,))  # 2 + 1 + 3 (input, mean, rstd)
            z = torch.softmax(torch.mm(y, w), -1)  # 2 + 1
            out = F.scaled_dot_product_attention(z[None, None], z[None, None], z[None, None])  # 5
        out.sum().backward()

    anatomy = anatomy_of(step, tmp_path)
    forward = {**calls(anatomy, MOVEMENT, Phase.FORWARD), **calls(anatomy, ELEMENTWISE, Phase.FORWARD)}
    assert flops(anatomy) == counted(step)
    assert forward == {"aten::gelu": 1, **expected}
    assert calls(anatomy, CONTRACTION, Phase.FORWARD) == {
        "aten::addmm": 1,
        "aten::mm": 1,
        "aten::_scaled_dot_product_flash_attention_for_cpu": 1,
    }


def test_offloading_on_an_accelerator_is_a_copy_across(tmp_path: Path) -> None:
    """`save_on_cpu` copies inside the event of the product that saves: 40 us of it were "matrix product"."""
    made = on_gpu()
    made.host("aten::mm", 0, 100, sequence=3, **MATRICES)
    made.host("aten::empty", 5, 5)
    made.host("aten::copy_", 20, 20, shapes=[[4, 2], [4, 2]], types=["float", "float"])
    made.launch(25, 1, name="cudaMemcpyAsync")
    made.kernel("Memcpy DtoH (Device -> Pinned)", 100, 40, 1, category="gpu_memcpy")
    made.launch(70, 2)
    made.kernel("ampere_sgemm_128x64_nn", 150, 10, 2)
    anatomy = made.analyze(tmp_path)
    assert {(row.operator_class, row.time_ns, row.calls) for row in anatomy.classes} == {
        (CONTRACTION, 10_000, 1),
        (MOVEMENT, 40_000, 1),
    }


# ------------------------------------------------------------------------------- checkpointing


W, B, BATCHED = R(16, 16, requires_grad=True), R(16, requires_grad=True), R(2, 16, 16, requires_grad=True)
KERNEL, TABLE = R(4, 4, 3, 3, requires_grad=True), R(9, 16, requires_grad=True)
ROWS, IMAGES, STACK = R(8, 16, requires_grad=True), R(2, 4, 6, 6, requires_grad=True), R(2, 8, 16, requires_grad=True)
PLACES = torch.randint(0, 9, (5,))
#: Regions by their last operator, which is where recomputation stops.
REGIONS: dict[str, tuple[Callable[[Any], Any], torch.Tensor]] = {
    "mm": (lambda x: (x @ W).sin() @ W, ROWS),
    "addmm": (lambda x: F.linear((x @ W).sin(), W, B), ROWS),
    "bmm": (lambda x: torch.bmm(x.sin() @ W, BATCHED), STACK),
    "convolution": (lambda x: F.conv2d(F.conv2d(x, KERNEL).sin(), KERNEL), IMAGES),
    "transposed convolution": (lambda x: F.conv_transpose2d(F.conv2d(x, KERNEL).sin(), KERNEL), IMAGES),
    "attention": (lambda x: F.scaled_dot_product_attention((x @ W)[None], (x @ W)[None], x[None]), STACK),
    "softmax": (lambda x: (x @ W).softmax(-1), ROWS),
    "layer norm": (lambda x: F.layer_norm(x @ W, (16,), B, B), ROWS),
    "gelu": (lambda x: F.gelu(x @ W), ROWS),
    "dropout": (lambda x: F.dropout(x @ W, 0.5), ROWS),
    "embedding": (lambda x: (x @ W).sum() + F.embedding(PLACES, TABLE), ROWS),
    "residual": (lambda x: x + F.linear(F.gelu(x @ W), W, B), ROWS),
}


def saving(*names: str) -> dict[str, Any]:
    """Selective checkpointing that keeps the results of the operators with these words in their names."""

    def policy(_: Any, operator: Any, *__: Any, **___: Any) -> CheckpointPolicy:
        kept = any(name in str(operator) for name in names)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return {"use_reentrant": False, "context_fn": partial(create_selective_checkpoint_contexts, policy)}


WAYS: dict[str, tuple[dict[str, Any], bool]] = {
    "non-reentrant": ({"use_reentrant": False}, True),
    "non-reentrant to the end": ({"use_reentrant": False}, False),
    "reentrant": ({"use_reentrant": True}, True),
    "selective": (saving("mm", "conv"), True),
    "selective to the end": (saving("mm", "conv"), False),
    "selective attention": (saving("attention", "softmax"), True),
    "selective nothing": (saving(), True),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("region", REGIONS)
def test_what_was_not_recomputed_is_not_counted(region: str, way: str, tmp_path: Path) -> None:
    (function, x), (options, stops) = REGIONS[region], WAYS[way]

    def step() -> None:
        with set_checkpoint_early_stop(stops):
            out = checkpoint(function, x, **options)
        out.sum().backward()

    expected, without = counted(step), counted(lambda: function(x).sum().backward())
    anatomy = anatomy_of(step, tmp_path)
    assert flops(anatomy) == expected
    assert flops(anatomy, phase=Phase.RECOMPUTE) == expected - without
    if (region, way) == ("mm", "non-reentrant"):  # an operator that did not run is no call
        assert calls(anatomy, CONTRACTION, Phase.RECOMPUTE) == {"aten::mm": 1}
        assert calls(anatomy, CONTRACTION, Phase.FORWARD) == {"aten::mm": 2}


# ------------------------------------------------------------------------------- transforms, subclasses


def per_sample(module: nn.Module, x: torch.Tensor) -> Callable[[], Any]:
    """The gradient of every example by itself."""

    def loss(parameters: dict[str, torch.Tensor], one: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.func.functional_call(module, parameters, (one,))
        return out.pow(2).mean()

    parameters = {name: value.detach() for name, value in module.named_parameters()}
    return lambda: torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)


def dual(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Callable[[], Any]:
    """Forward-mode differentiation by dual numbers."""

    def run() -> None:
        with torch.autograd.forward_ad.dual_level():
            function(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))

    return run


def autocast(function: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            function()

    return run


LINEAR, MLP = nn.Linear(4, 16), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))
CNN = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.ConvTranspose2d(4, 2, 3), nn.Flatten(), nn.Linear(128, 5))
vmap = torch.func.vmap
TRANSFORMS: dict[str, Callable[[], Any]] = {
    "mm": lambda: vmap(torch.mm, (0, None))(R(10, 8, 4), R(4, 16)),
    "mm of both": lambda: vmap(torch.mm)(R(10, 8, 4), R(10, 4, 16)),
    "mv": lambda: vmap(torch.matmul, (None, 0))(R(4, 6), R(5, 6, 1)),
    "linear": lambda: vmap(LINEAR)(R(10, 8, 4)),
    "convolution": lambda: vmap(CNN[0])(R(5, 2, 3, 8, 8)),
    "convolution of both": lambda: vmap(F.conv2d)(R(5, 2, 3, 8, 8), R(5, 4, 3, 3, 3)),
    "transposed convolution": lambda: vmap(CNN[2])(R(5, 2, 4, 6, 6)),
    "attention": lambda: vmap(F.scaled_dot_product_attention)(*R(3, 3, 2, 2, 4, 8)),
    "nested": lambda: vmap(vmap(torch.mm, (0, None)), (0, None))(R(2, 3, 4, 4), R(4, 6)),
    "per-sample gradients": per_sample(MLP, R(10, 4)),
    "per-sample gradients of convolutions": per_sample(CNN, R(10, 1, 3, 8, 8)),
    "functional call": lambda: torch.func.functional_call(MLP, dict(MLP.named_parameters()), (R(3, 4),)),
    "jacobian forward": lambda: torch.func.jacfwd(MLP)(R(3, 4)),
    "jvp": lambda: torch.func.jvp(CNN[:3], (R(2, 3, 8, 8),), (R(2, 3, 8, 8),)),
    "dual product": dual(lambda x: x @ torch.ones(4, 16), R(8, 4)),
    "dual convolutions": dual(CNN, R(2, 3, 8, 8)),
    "autocast": autocast(lambda: MLP(R(3, 4)).sum().backward()),
    "autocast of vmap": autocast(lambda: vmap(LINEAR)(R(10, 8, 4))),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transformed_operators_cost_what_ran(name: str, tmp_path: Path) -> None:
    work = TRANSFORMS[name]
    anatomy = anatomy_of(work, tmp_path)
    assert flops(anatomy) == counted(work)


def test_reductions_under_two_transforms_see_the_whole_batch(tmp_path: Path) -> None:
    """The profiler records the arguments of all interpreters: of `sum` those for one example, then for ten."""
    anatomy = anatomy_of(lambda: vmap(torch.func.grad(lambda x: x.sum(-1).pow(2).sum()))(R(10, 4, 8)), tmp_path)
    assert flops(anatomy, NORMALIZATION) == 10 * 4 * 8 + 10 * 4


class Halves(torch.Tensor):
    """A tensor that keeps its rows in two parts, as a sharded one does."""

    parts: tuple[torch.Tensor, ...]

    @staticmethod
    def __new__(cls, *parts: torch.Tensor) -> Halves:
        shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
        made: Halves = torch.Tensor._make_wrapper_subclass(cls, shape)  # type: ignore[attr-defined]
        made.parts = parts
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return Halves(*(func(part, *args[1:], **(kwargs or {})) for part in args[0].parts))


@pytest.mark.parametrize("mode", [torch.no_grad, nullcontext])
def test_a_subclass_is_what_it_calls(mode: Callable[[], Any], tmp_path: Path) -> None:
    halves, weight = Halves(R(8, 4), R(8, 4)), R(4, 16)
    with mode():
        anatomy = anatomy_of(lambda: torch.mm(halves, weight), tmp_path)
    assert flops(anatomy) == 2 * (2 * 8 * 4 * 16)
    assert calls(anatomy, CONTRACTION) == {"aten::mm": 2}


def test_without_shapes_numbers_that_are_converted_are_no_hooks(tmp_path: Path) -> None:
    x = R(8, 16, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        (x * 2.5).sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    assert calls(opanatomy.analyze(tmp_path / "trace.json"), MOVEMENT, Phase.FORWARD) == {}


def test_what_stopped_on_an_accelerator_is_no_call(tmp_path: Path) -> None:
    """A recomputed product that launched nothing: only the one that ran is counted."""
    made = on_gpu()
    made.host("autograd::engine::evaluate_function: MmBackward0", 0, 300, thread=2, sequence=1, forward_thread=1)
    for number, start in enumerate((10, 110)):
        made.host("aten::mm", start, 80, thread=2, sequence=9 + number, **MATRICES)
        made.host("aten::detach", start + 5, 5, thread=2)
        if number == 0:
            made.launch(start + 20, 1, thread=2)
            made.kernel("ampere_sgemm_128x64_nn", 400, 10, 1)
    anatomy = made.analyze(tmp_path)
    assert [(row.operator, row.phase, row.calls, row.flops) for row in anatomy.operators] == [
        ("aten::mm", Phase.RECOMPUTE, 1, 2 * 8 * 4 * 2)
    ]
