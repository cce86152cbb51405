"""Theory of the contraction ratio is of this step: counted by hand from what needs a gradient, and next to torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from msgspec import to_builtins

from opanatomy.capture.run.gradients import observed_gradients
from opanatomy.capture.step.ranges import module_ranges, phase_range
from opanatomy.pipeline import analyze_trace, analyze_traces
from opanatomy.records.anatomy import Ratio
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.workload import METADATA_KEY, Capture, Environment, Workload
from tests.handmade import HandMade

MM = OperatorClass.TENSOR_CONTRACTION
ALL = Workload(parameters=10, trainable_parameters=10)


def captured(gradients: dict[str, str], workload: Workload = ALL) -> Capture:
    return Capture(
        version="0", command="", created="", environment=Environment(device_kind="cpu"), workload=workload,
        gradients=gradients,
    )  # fmt: skip


def contraction(path: Path) -> Ratio:
    return next(one for one in analyze_trace(path).ratios if one.operator_class is MM)


# ------------------------------------------------------------------------------------------------------ made by hand

#: Two layers, of 2 * 8 * 4 * 2 = 128 and 2 * 8 * 2 * 16 = 512 FLOPs, and attention of 4 * 1 * 2 * 8 * 8 * 4 = 2,048.
LAYERS = (
    ("stem", "aten::mm", {"shapes": [[8, 4], [4, 2]], "types": ["float", "float"]}),
    ("head", "aten::mm", {"shapes": [[8, 2], [2, 16]], "types": ["float", "float"]}),
    ("attention", "aten::_scaled_dot_product_flash_attention_for_cpu",
     {"shapes": [*[[1, 2, 8, 4]] * 3, [], []], "types": ["float", "float", "float", "Scalar", "Scalar"],
      "constants": ["", "", "", "0.", "False"]}),
)  # fmt: skip


def step(gradients: dict[str, str], workload: Workload = ALL, layers: int = 2) -> HandMade:
    trace = HandMade()
    trace.metadata[METADATA_KEY] = to_builtins(captured(gradients, workload))
    trace.annotation("ProfilerStep#0", 0, 1000)
    trace.host("opanatomy.phase/forward", 0, 400)
    for place, (name, operator, arguments) in enumerate(LAYERS[:layers]):
        trace.host(f"opanatomy.module/{name}", 100 * place, 90)
        trace.host(operator, 100 * place + 10, 50, **arguments)  # type: ignore[arg-type]
    trace.host("opanatomy.phase/backward", 500, 400)
    trace.host("MmBackward0", 500, 300)
    trace.host("aten::mm", 510, 50, **LAYERS[0][2])  # type: ignore[arg-type]
    return trace


@pytest.mark.parametrize(
    ("gradients", "layers", "expected"),
    [
        ({"stem": "both", "head": "both"}, 2, 2.0),
        ({"stem": "weight", "head": "both"}, 2, (128 + 2 * 512) / 640),  # a first layer
        ({"stem": "none", "head": "weight"}, 2, 512 / 640),  # frozen but the head
        ({"stem": "none", "head": "none"}, 2, 0.0),
        ({"stem": "weight", "head": "input"}, 2, 1.0),
        ({"stem": "both", "head": "both", "attention": "both"}, 3, (2 * 640 + 2.5 * 2048) / 2688),
        ({"stem": "none", "head": "none", "attention": "none"}, 3, 0.0),
        ({"stem": "both"}, 2, None),  # nobody looked at the other
        ({"stem": "both", "head": "?"}, 2, None),
    ],
)
def test_theory_of_this_step(gradients: dict[str, str], layers: int, expected: float | None, tmp_path: Path) -> None:
    """It said 2.00 whatever needed a gradient."""
    found = contraction(step(gradients, layers=layers).write(tmp_path / "trace.json"))
    assert found.theory_flops == (None if expected is None else pytest.approx(expected))
    assert found.theory_bytes == (2.0 if set(gradients.values()) == {"both"} else None)


def test_a_product_of_nothing_takes_nothing_from_the_theory(tmp_path: Path) -> None:
    """A batch without a row has a cost, of 0 FLOPs: that is known."""
    trace = step({"stem": "weight", "head": "both", "empty": "both"})
    trace.host("opanatomy.module/empty", 200, 90)
    trace.host("aten::mm", 210, 50, shapes=[[0, 4], [4, 2]], types=["float", "float"])
    assert contraction(trace.write(tmp_path / "trace.json")).theory_flops == pytest.approx((128 + 2 * 512) / 640)


def test_a_contraction_in_no_module_leaves_no_theory(tmp_path: Path) -> None:
    trace = step({"stem": "both", "head": "both"})
    trace.host("aten::mm", 350, 10, **LAYERS[0][2])  # type: ignore[arg-type]
    assert contraction(trace.write(tmp_path / "trace.json")).theory_flops is None


@pytest.mark.parametrize(
    ("workload", "gradients", "expected"),
    [
        (ALL, {}, 2.0),
        (Workload(parameters=10, trainable_parameters=4), {}, None),
        (Workload(), {}, None),
        (Workload(parameters=10, trainable_parameters=10, checkpointing="yes"), {}, 3.0),
        (Workload(parameters=10, trainable_parameters=4), {"stem": "none", "head": "both"}, 1.6),
        (Workload(checkpointing="yes"), {"stem": "weight", "head": "both"}, 2.8),
    ],
)
def test_without_a_look_it_is_that_of_all_trained(
    workload: Workload, gradients: dict[str, str], expected: float | None, tmp_path: Path
) -> None:
    found = contraction(step(gradients, workload).write(tmp_path / "trace.json"))
    assert found.theory_flops == (None if expected is None else pytest.approx(expected))


def test_a_trace_of_others_says_nothing_of_gradients(tmp_path: Path) -> None:
    trace = step({})
    del trace.metadata[METADATA_KEY]
    assert contraction(trace.write(tmp_path / "trace.json")).theory_flops is None


def test_ranks_have_the_theory_of_their_steps(tmp_path: Path) -> None:
    paths = []
    for rank, stem in enumerate(("weight", "weight", "both")):
        trace = step({"stem": stem, "head": "both"})
        trace.metadata["distributedInfo"] = {"rank": rank, "world_size": 3}
        paths.append(trace.write(tmp_path / f"{rank}.json"))
    (alike,) = [one for one in analyze_traces(paths[:2]).ratios if one.operator_class is MM]
    (unlike,) = [one for one in analyze_traces(paths).ratios if one.operator_class is MM]
    assert (alike.theory_flops, unlike.theory_flops) == (1.8, None)


# ------------------------------------------------------------------------------------------------- next to torch itself


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 4, 3, bias=False)
        self.query, self.key, self.value = (torch.nn.Linear(4, 8) for _ in range(3))
        self.attention = Attention()
        self.adapter = torch.nn.Sequential(torch.nn.Linear(8, 2), torch.nn.Linear(2, 8))
        self.head = torch.nn.Linear(8, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.stem(images).flatten(2).transpose(1, 2)
        mixed = self.attention(self.query(tokens), self.key(tokens), self.value(tokens))
        return self.head(mixed + self.adapter(mixed)).sum()


class Attention(torch.nn.Module):
    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return (query @ key.transpose(1, 2)).softmax(-1) @ value


def only(*names: str) -> Callable[[Block], None]:
    def freeze(block: Block) -> None:
        for name, parameter in block.named_parameters():
            parameter.requires_grad_(name.startswith(names))

    return freeze


def recorded(module: torch.nn.Module, images: torch.Tensor, folder: Path) -> Path:
    """A step as a capture records it, after one that was watched."""
    with observed_gradients(module) as gradients:
        module(images).backward()
    path = folder / "trace.json"
    with torch.profiler.profile(record_shapes=True) as profiler, module_ranges(module):
        with phase_range(Phase.FORWARD):
            loss = module(images)
        with phase_range(Phase.BACKWARD):
            loss.backward()
    profiler.export_chrome_trace(str(path))
    trace = json.loads(path.read_text())
    path.write_text(json.dumps(trace | {METADATA_KEY: to_builtins(captured(gradients, Workload()))}))
    return path


@pytest.mark.parametrize(
    ("prepare", "image_gradient"),
    [
        (only(""), False),  # all is trained; the stem's input needs nothing
        (only(""), True),
        (only("head"), False),
        (only("adapter"), False),  # an adapter behind frozen layers
        (only("adapter", "query", "key", "value"), False),
        (only("head.bias"), False),
    ],
    ids=["all", "all and the image", "head", "adapter", "attention and adapter", "bias"],
)
def test_theory_is_what_torch_runs(prepare: Callable[[Block], None], image_gradient: bool, tmp_path: Path) -> None:
    """Measured from the backward's products, by theory from the forward's: neither looks at the other."""
    torch.manual_seed(0)
    block = Block()
    prepare(block)
    images = torch.randn(2, 3, 8, 8, requires_grad=image_gradient)
    anatomy = analyze_trace(recorded(block, images, tmp_path))
    found = [one for one in anatomy.ratios if one.operator_class is MM]
    if not found:  # a bias has no product in its backward
        assert not [row for row in anatomy.classes if row.operator_class is MM and row.phase is Phase.BACKWARD]
        return
    assert found[0].theory_flops == pytest.approx(found[0].flops)
    assert found[0].theory_flops != 2.0 or image_gradient


def test_watching_leaves_nothing_behind() -> None:
    from torch.nn.modules import module as hooks

    block = Block()
    before = len(hooks._global_forward_hooks)
    with observed_gradients(block) as gradients, torch.no_grad():
        block(torch.randn(1, 3, 8, 8))
    assert set(gradients.values()) == {"none"}
    assert len(hooks._global_forward_hooks) == before
    assert not any(child._forward_hooks or child._forward_pre_hooks for child in block.modules())


def test_what_needs_a_gradient_in_one_call_needs_it() -> None:
    block = Block()
    with observed_gradients(block) as gradients:
        with torch.no_grad():
            block(torch.randn(1, 3, 8, 8))
        block(torch.randn(1, 3, 8, 8))
    assert (gradients["stem"], gradients["query"], gradients["attention"]) == ("weight", "both", "both")
