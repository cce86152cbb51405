"""Theory of the contraction ratio is of this step: counted by hand from what needs a gradient, and next to torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from msgspec import to_builtins
from torch.nn.modules import module as hooks

from opanatomy.capture.run.gradients import observed_gradients
from opanatomy.capture.step.ranges import module_ranges, phase_range
from opanatomy.pipeline import analyze_traces, summary_of_trace
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.work import Ratio
from opanatomy.records.workload import METADATA_KEY, Capture, Environment, Workload
from tests.support.made_trace import TraceBuilder

MM = OperatorClass.TENSOR_CONTRACTION
ALL = Workload(parameters=10, trainable_parameters=10)


def metadata(gradients: dict[str, str], workload: Workload = ALL) -> dict[str, object]:
    environment = Environment(device_kind="cpu")
    capture = Capture(
        version="0", command="", created="", environment=environment, workload=workload, gradients=gradients
    )
    return {METADATA_KEY: to_builtins(capture)}


def contraction(path: Path) -> Ratio:
    return next(one for one in summary_of_trace(path).anatomy.ratios if one.operator_class is MM)


# ------------------------------------------------------------------------------------------------------ made by hand

#: Two layers, of 2 * 8 * 4 * 2 = 128 and 2 * 8 * 2 * 16 = 512 FLOPs, and attention of 4 * 1 * 2 * 8 * 8 * 4 = 2,048.
LAYERS = (
    ("stem", "aten::mm", {"shapes": [[8, 4], [4, 2]], "types": ["float", "float"]}),
    ("head", "aten::mm", {"shapes": [[8, 2], [2, 16]], "types": ["float", "float"]}),
    (
        "attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        {
            "shapes": [*[[1, 2, 8, 4]] * 3, [], []],
            "types": ["float", "float", "float", "Scalar", "Scalar"],
            "constants": ["", "", "", "0.", "False"],
        },
    ),
)


def step(gradients: dict[str, str], workload: Workload = ALL, layers: int = 2) -> TraceBuilder:
    trace = TraceBuilder()
    trace.metadata |= metadata(gradients, workload)
    trace.annotation("ProfilerStep#0", 0, 1000)
    trace.host("opanatomy.phase/forward", 0, 400)
    for index, (name, operator, arguments) in enumerate(LAYERS[:layers]):
        trace.host(f"opanatomy.module/{name}", 100 * index, 90)
        trace.host(operator, 100 * index + 10, 50, **arguments)  # type: ignore[arg-type]
    trace.host("opanatomy.phase/backward", 500, 400)
    trace.host("MmBackward0", 500, 300)
    trace.host("aten::mm", 510, 50, **LAYERS[0][2])  # type: ignore[arg-type]
    return trace


BOTH, PART, NO_LOOK = {"stem": "both", "head": "both"}, Workload(parameters=10, trainable_parameters=4), {}
CHECKPOINTED = Workload(parameters=10, trainable_parameters=10, checkpointing="yes")


@pytest.mark.parametrize(
    ("gradients", "layers", "workload", "expected"),
    [
        (BOTH, 2, ALL, 2.0),
        ({"stem": "weight", "head": "both"}, 2, ALL, (128 + 2 * 512) / 640),  # a first layer
        ({"stem": "none", "head": "weight"}, 2, ALL, 512 / 640),  # frozen but the head
        ({"stem": "none", "head": "none"}, 2, ALL, 0.0),
        ({"stem": "weight", "head": "input"}, 2, ALL, 1.0),
        (BOTH | {"attention": "both"}, 3, ALL, (2 * 640 + 2.5 * 2048) / 2688),
        ({"stem": "none", "head": "none", "attention": "none"}, 3, ALL, 0.0),
        ({"stem": "both"}, 2, ALL, None),  # nobody looked at the other
        ({"stem": "both", "head": "?"}, 2, ALL, None),
        ({"stem": "none", "head": "both"}, 2, PART, 1.6),
        ({"stem": "weight", "head": "both"}, 2, Workload(checkpointing="yes"), 2.8),
        # without a look it is that of all trained
        (NO_LOOK, 2, ALL, 2.0),
        (NO_LOOK, 2, PART, None),
        (NO_LOOK, 2, Workload(), None),
        (NO_LOOK, 2, CHECKPOINTED, 3.0),
    ],
)
def test_theory_of_this_step(
    gradients: dict[str, str], layers: int, workload: Workload, expected: float | None, tmp_path: Path
) -> None:
    """It said 2.00 whatever needed a gradient."""
    found = contraction(step(gradients, workload, layers).write(tmp_path / "trace.json"))
    assert found.theory_flops == (None if expected is None else pytest.approx(expected))
    if gradients:
        assert found.theory_bytes == (2.0 if set(gradients.values()) == {"both"} else None)


def test_a_product_of_nothing_takes_nothing_from_the_theory_and_one_in_no_module_all(tmp_path: Path) -> None:
    """A batch without a row has a cost, of 0 FLOPs: that is known."""
    trace = step({"stem": "weight", "head": "both", "empty": "both"})
    trace.host("opanatomy.module/empty", 200, 90)
    trace.host("aten::mm", 210, 50, shapes=[[0, 4], [4, 2]], types=["float", "float"])
    assert contraction(trace.write(tmp_path / "trace.json")).theory_flops == pytest.approx((128 + 2 * 512) / 640)
    trace.host("aten::mm", 350, 10, **LAYERS[0][2])  # type: ignore[arg-type]
    assert contraction(trace.write(tmp_path / "trace.json")).theory_flops is None


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
    path.write_text(json.dumps(trace | metadata(gradients, Workload())))
    return path


@pytest.mark.parametrize(
    ("trained", "image_gradient"),
    [
        ("", False),  # all is trained; the stem's input needs nothing
        ("", True),
        ("head", False),
        ("adapter", False),  # an adapter behind frozen layers
        (("adapter", "query", "key", "value"), False),
        ("head.bias", False),
    ],
)
def test_theory_is_what_torch_runs(trained: str | tuple[str, ...], image_gradient: bool, tmp_path: Path) -> None:
    """Measured from the backward's products, by theory from the forward's: neither looks at the other."""
    torch.manual_seed(0)
    block = Block()
    for name, parameter in block.named_parameters():
        parameter.requires_grad_(name.startswith(trained))
    images = torch.randn(2, 3, 8, 8, requires_grad=image_gradient)
    anatomy = summary_of_trace(recorded(block, images, tmp_path)).anatomy
    found = [one for one in anatomy.ratios if one.operator_class is MM]
    if not found:  # a bias has no product in its backward
        assert not [row for row in anatomy.classes if row.operator_class is MM and row.phase is Phase.BACKWARD]
        return
    assert found[0].theory_flops == pytest.approx(found[0].flops)
    assert found[0].theory_flops != 2.0 or image_gradient


def test_what_needs_a_gradient_in_one_call_needs_it_and_watching_leaves_nothing_behind() -> None:
    block, before = Block(), len(hooks._global_forward_hooks)
    with observed_gradients(block) as gradients:
        with torch.no_grad():
            block(torch.randn(1, 3, 8, 8))
        assert set(gradients.values()) == {"none"}
        block(torch.randn(1, 3, 8, 8))
    assert (gradients["stem"], gradients["query"], gradients["attention"]) == ("weight", "both", "both")
    assert len(hooks._global_forward_hooks) == before
    assert not any(child._forward_hooks or child._forward_pre_hooks for child in block.modules())
