"""Checkpointing's memory over the layers and the segment length, of layers whose bytes are known by hand.

`benchmarks/checkpointing.py` measures the same of real models.
"""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import pytest
import torch

from benchmarks.checkpointing import (
    Run,
    best_length,
    best_of,
    predicted_run,
    segments_fit,
)
from opanatomy.options import RunOptions
from opanatomy.predict.fake import simulate
from opanatomy.predict.techniques import Situation, Variant, variants_of

#: b h e: what every layer takes and gives.
HIDDEN_BYTES = 512 * 64 * 4
MODULE = """
import torch

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x):
        return x + self.linear(x).tanh()

class Model(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, x):
        x = x * 1.0
        for layer in self.layers:
            x = layer(x)
        return (x * 2.0).sum()

def __getattr__(name):
    if not name.startswith("of_"):
        raise AttributeError(name)
    return lambda: (Model(int(name[3:])), {"x": torch.ones(512, 64)})
"""


#: Layers, and the lengths that are tried (0 is without checkpointing).
PLACES = {4: (0, 1, 2), 9: (0, 2, 3), 16: (0, 2, 3, 4)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder: Path = tmp_path_factory.mktemp("module")
    (folder / "stack_of_layers.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        return [followed(layers, every) for layers, lengths in PLACES.items() for every in lengths]


def followed(layers: int, every: int) -> Run:
    options = RunOptions(
        model=f"stack_of_layers:of_{layers}", device="cpu", memory=True, checkpoint_every=every or None
    )  # fmt: skip
    return predicted_run(layers, every, simulate(options))


def kept_bytes() -> int:
    """What a segment keeps: its input, and the state of the random generator."""
    return HIDDEN_BYTES + torch.get_rng_state().nbytes


def test_a_segment_keeps_its_input_and_its_layers_what_is_inside(runs: list[Run]) -> None:
    fit = segments_fit(runs)
    assert fit.largest < 1e-6
    # Inside: what the product was of, and the result of tanh.
    assert fit.coefficients[1:] == pytest.approx((kept_bytes(), 2 * HIDDEN_BYTES), rel=1e-6)


def test_the_best_length_is_that_of_input_over_inside_and_not_the_root_of_the_layers(runs: list[Run]) -> None:
    best = best_of(runs)
    assert [run.every for run in best] == [2, 2, 3]
    fit = segments_fit(runs)
    for run in best:
        assert abs(run.every - best_length(run.layers, fit)) < 1
        assert best_length(run.layers, fit) == pytest.approx(sqrt(run.layers * kept_bytes() / (2 * HIDDEN_BYTES)))
    assert best[-1].bytes < next(run.bytes for run in runs if (run.layers, run.every) == (16, 4))


def test_flops_of_backward_grow_by_one_forward_whatever_the_length(runs: list[Run]) -> None:
    for layers in PLACES:
        plain, *others = (run.flop_ratio or 0.0 for run in runs if run.layers == layers)
        assert others == [plain + 1.0] * len(others)


def technique(layers: int) -> Variant:
    situation = Situation(
        options=RunOptions(model="m", optimizer="adamw", device="cpu"), batch=8, layers=layers, attention="sdpa",
        on_cpu=True,
    )  # fmt: skip
    return variants_of(situation, only=["checkpointing-segments"])[1]


@pytest.mark.parametrize("inside", [8.3, 34.7])
def test_the_technique_has_the_segments_of_several_layers_that_need_least(inside: float) -> None:
    """Of models whose layers keep so many times what a segment does: those of the benchmark lie between."""
    for layers in range(4, 49):
        needed = {every: layers // every + inside * every for every in range(2, layers + 1)}
        assert needed[technique(layers).options.checkpoint_every or 0] == min(needed.values())
