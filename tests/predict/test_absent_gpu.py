"""Steps of a GPU that is not here, next to recordings of that GPU and published figures of others."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from opanatomy.cost.registry import cost
from opanatomy.options import RunOptions
from opanatomy.predict.absent import Gpu
from opanatomy.predict.fit import figures_in, limit_of
from opanatomy.predict.workers import simulate_in_process
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.estimate import Fits
from opanatomy.records.experiment import SimulatedStep, StepFigures
from opanatomy.report.load import document_in
from tests.support.paths import ROOT

H100 = Gpu(name="H100", capability=(9, 0), memory_bytes=80 << 30)
#: What a kernel calls inside itself, which no tensor without values shows, and copies between host and device.
INSIDE = {
    "aten::_efficient_attention_forward",
    "aten::_efficient_attention_backward",
    "aten::copy_",
    "aten::fill_",
    "aten::gather",
}
ATTENTION = """
import torch
from torch.nn.functional import scaled_dot_product_attention as attention

class Net(torch.nn.Module):
    def __init__(self, size=64, heads=4, shared=4, **kwargs):
        super().__init__()
        self.query = torch.nn.Linear(8, heads * size)
        self.key = torch.nn.Linear(8, shared * size)
        self.size, self.kwargs = size, kwargs
        self.mask = kwargs.pop("mask", None)
    def forward(self, x):
        query, key = (part(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for part in (self.query, self.key))
        mask = None
        if self.mask:
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        return attention(query, key, key, attn_mask=mask, dropout_p=0.1 if self.training else 0.0, **self.kwargs)

def made(**kwargs):
    return Net(**kwargs), (torch.randn(2, 20, 8),)
def plain(): return made()
def causal(): return made(is_causal=True)
def masked(): return made(mask=True)
def odd(): return made(size=20)
def shared(): return made(shared=2, enable_gqa=True)
def wide(): return made(size=264)
"""


def followed(options: RunOptions, gpu: Gpu = H100) -> SimulatedStep:
    step = next(simulate_in_process([options], gpu=gpu)).step
    assert isinstance(step, SimulatedStep), step
    return step


def predicted(options: RunOptions, device: str) -> StepFigures:
    return figures_in(followed(options), limit_of(device))


@cache
def of_bert() -> tuple[Anatomy, SimulatedStep]:
    """Return the recording of BERT-large on an H100, and the same step where there is none."""
    recorded: Any = document_in(ROOT / "reports" / "bert-large-uncased-h100.json")
    return recorded, followed(RunOptions(model="google-bert/bert-large-uncased", batch=4))


def test_a_step_makes_the_calls_of_the_gpu() -> None:
    """Each operator in each phase as often, with the same arguments, as an H100 recorded it."""
    recorded, step = of_bert()
    real: Counter[Any] = Counter()
    for row in recorded.operators:
        if row.part_of is None and row.operator not in INSIDE:
            real[row.operator, str(row.signature).rpartition(",")[0], row.phase] += row.calls
    names = {operator for operator, _, _ in real}
    made: Counter[Any] = Counter()
    for call in step.calls:
        if call.operator in names:
            made[call.operator, str(call.signature).rpartition(",")[0], call.phase] += call.calls
    assert len(real) > 30
    assert made == real


def test_a_step_has_the_flops_of_the_gpu() -> None:
    recorded, step = of_bert()
    costs = [(call.phase, cost(call.operator, call.signature), call.calls) for call in step.calls]
    for phase in ("forward", "backward"):
        flops = sum(known.flops * calls for of, known, calls in costs if known is not None and of == phase)
        assert flops == sum(row.flops or 0 for row in recorded.operators if row.phase == phase)


def test_a_step_takes_the_memory_of_the_gpu() -> None:
    """By the caching allocator's own counters on an H100 (torch 2.11): 5,529,715,200 bytes were allocated at most."""
    recorded, step = of_bert()
    occupied = figures_in(step, limit_of("H100")).occupied
    assert occupied is not None
    assert occupied.allocated_bytes == pytest.approx(recorded.memory.allocator_peak_bytes, rel=0.002)
    held = max(taken.reserved_bytes or 0 for taken in recorded.memory.snapshots)
    assert occupied.reserved_bytes == pytest.approx(held, rel=0.02)
    process = max(taken.nvml_process_bytes or 0 for taken in recorded.memory.snapshots)
    assert occupied.low_bytes <= process <= occupied.high_bytes


def test_published_memory_of_gpt2() -> None:
    """Of batch 2 x 16 in float32 2,506.74 MB were allocated and 2,889.88 MB reserved."""
    options = RunOptions(model="openai-community/gpt2", batch=2, seq=16, optimizer="adamw-foreach")
    occupied = figures_in(followed(options, Gpu(name="T4", capability=(7, 5), memory_bytes=16 << 30)), limit_of("T4"))
    assert occupied.occupied is not None
    assert occupied.occupied.allocated_bytes == pytest.approx(2_506_740_000, rel=0.01)
    assert occupied.occupied.reserved_bytes == pytest.approx(2_889_880_000, rel=0.01)


@pytest.mark.parametrize(
    ("function", "options", "capability", "operator"),
    [
        ("plain", {"amp": "bf16"}, (9, 0), "_scaled_dot_product_flash_attention"),
        ("causal", {"dtype": "float16"}, (8, 0), "_scaled_dot_product_flash_attention"),
        ("odd", {"amp": "bf16"}, (8, 0), "_scaled_dot_product_flash_attention"),
        ("shared", {"amp": "bf16"}, (8, 0), "_scaled_dot_product_flash_attention"),
        ("plain", {}, (9, 0), "_scaled_dot_product_efficient_attention"),
        ("plain", {"amp": "fp16"}, (7, 5), "_scaled_dot_product_efficient_attention"),
        ("masked", {"amp": "bf16"}, (9, 0), "_scaled_dot_product_efficient_attention"),
        ("shared", {}, (9, 0), "_safe_softmax"),
        ("wide", {"amp": "bf16"}, (9, 0), "_scaled_dot_product_efficient_attention"),
        ("plain", {"dtype": "bfloat16"}, (7, 0), "_safe_softmax"),
        ("odd", {"amp": "fp16"}, (7, 5), "_safe_softmax"),
    ],
)
def test_attention_is_the_one_that_the_gpu_would_run(
    function: str, options: dict[str, str], capability: tuple[int, int], operator: str, here: Path
) -> None:
    (here / "models.py").write_text(ATTENTION)
    gpu = Gpu(name="a GPU", capability=capability, memory_bytes=1 << 34)
    step = followed(RunOptions(model=f"models.py:{function}", **options), gpu)
    called = {call.operator.removeprefix("aten::") for call in step.calls}
    kinds = {"_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention", "_safe_softmax"}
    assert called & kinds == {operator}


def test_autocast_is_that_of_cuda() -> None:
    """Layer normalization is computed in float32 there; on the CPU in bfloat16."""
    step = followed(RunOptions(model="google-bert/bert-base-uncased", layers=1, batch=1, seq=16, amp="bf16"))
    norms = [call for call in step.calls if call.operator == "aten::native_layer_norm"]
    assert norms
    assert all(str(call.signature).startswith("float32") for call in norms)


def test_a_device_leaves_less_than_its_sheet_says() -> None:
    """79.1 GiB of an H100 are seen in traces, 22.04 of an L4; where none was seen it is a share."""
    for name, seen in (("H100", 79.10), ("L4", 22.04), ("RTX 4090", 0.978 * 24), ("A10G", 0.918 * 24)):
        assert limit_of(name).usable_bytes == int(seen * (1 << 30))
    assert limit_of("80GB").usable_bytes is None


@pytest.mark.parametrize(
    ("size", "fits"), [("12GB", Fits.FITS), ("6GB", Fits.DOES_NOT_FIT), ("6.6GB", Fits.AT_THE_EDGE)]
)
def test_between_fitting_and_not_is_an_edge(size: str, fits: Fits) -> None:
    """BERT-large takes 6.46 to 6.96 GB."""
    occupied = figures_in(of_bert()[1], limit_of(size)).occupied
    assert occupied is not None
    assert occupied.fits is fits
