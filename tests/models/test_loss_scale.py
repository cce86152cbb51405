"""Float16: the loss scale of every spelling, updates that are skipped, and gradients that become zero."""

from __future__ import annotations

import copy
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

import opanatomy
from opanatomy.records.experiment import ScaledGradients, Techniques, Underflow
from opanatomy.records.taxonomy import Phase
from opanatomy.report.formats import format_named
from opanatomy.report.section import Page
from opanatomy.results import Anatomy
from tests.support.command import run
from tests.support.experiments import experiment

INPUT = torch.ones(4, 8)
FIRST = 65_536


class Loud(nn.Module):
    """The largest gradient, of the last bias (a float16 sum over 4 rows of a mean of 16), is loss scale * gain / 4."""

    def __init__(self, gain: float, profiled: tuple[int, ...] = ()) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gain, self.first, self.last = gain, nn.Linear(8, 8), nn.Linear(8, 4)
        self.drop = nn.Dropout(0.5)
        self.drawn: list[float] = []
        #: The profiled steps in which gradients overflow, from 1 on, and how many there were.
        self.loud, self.profiled = profiled, 0

    def forward(self, values: Tensor) -> dict[str, Tensor]:
        kept = self.drop(torch.ones(64))
        self.drawn.append(float((kept * torch.arange(64.0)).sum()))
        self.profiled += torch.autograd._profiler_enabled()
        gain = 1e6 if self.profiled in self.loud else self.gain
        return {"loss": self.last(self.first(values)).float().mean() * gain}


def operators(anatomy: Anatomy, phase: Phase) -> Counter[str]:
    """The calls of each operator in a step."""
    calls: Counter[str] = Counter()
    for row in anatomy.operators:
        if row.phase == phase:
            calls[row.operator] += row.calls
    return Counter({name: count // anatomy.step.count for name, count in calls.items()})


@pytest.mark.parametrize("spelling", ["fp16", "float16", torch.float16])
def test_every_spelling_has_a_scaler(spelling: Any) -> None:
    anatomy = opanatomy.profile(Loud(1.0), INPUT, amp=spelling, optimizer="adamw")
    assert (anatomy.workload.amp, anatomy.workload.loss_scale) == ("fp16", FIRST)
    phase = operators(anatomy, Phase.OPTIMIZER)
    assert phase["aten::_amp_foreach_non_finite_check_and_unscale_"] == phase["aten::_amp_update_scale_"] == 1
    assert phase["aten::_fused_adamw_"] == 1
    assert anatomy.warnings == ()


@pytest.mark.parametrize("options", [{"amp": "bf16"}, {}, {"amp": "fp16", "inference": True}], ids=str)
def test_no_other_run_has_a_scaler(options: dict[str, Any]) -> None:
    assert opanatomy.profile(Loud(1.0), INPUT, **options).workload.loss_scale is None


@pytest.mark.parametrize(
    ("gain", "scale"), [(4.0, 2.0**14), (10.0, 2.0**13), (300.0, 2.0**8), (60000.0, 2.0), (2.0**20, 2.0**-4)]
)
def test_the_first_scale_is_one_at_which_the_update_is_made(gain: float, scale: float) -> None:
    """The largest power of two whose product with gain / 4 float16 has (65,504 at most), halved below 65,536."""
    anatomy = opanatomy.profile(Loud(gain), INPUT, amp="fp16", optimizer="adamw-loop", steps=3)
    assert anatomy.workload.loss_scale == scale
    assert anatomy.warnings == ()
    assert operators(anatomy, Phase.OPTIMIZER)["aten::addcdiv_"] == 4


def test_a_model_whose_output_is_float16_has_a_scale_that_float16_has() -> None:
    """65,536 itself is inf there, and the gradient of the scaled output is the scale."""
    torch.manual_seed(0)
    anatomy = opanatomy.profile(nn.Linear(8, 4), INPUT, amp="fp16", optimizer="adamw-foreach")
    assert (anatomy.workload.loss_scale, anatomy.warnings) == (2.0**12, ())
    assert operators(anatomy, Phase.OPTIMIZER)["aten::_foreach_addcdiv_"] == 1


def test_the_search_leaves_no_trace() -> None:
    """Each profiled step draws the random numbers of the first one, which the search put back; so do two runs."""
    first, second = Loud(300.0), Loud(300.0)
    before = copy.deepcopy(first.state_dict())
    state = torch.get_rng_state()
    one = opanatomy.profile(first, INPUT, amp="fp16", steps=2)
    torch.set_rng_state(state)
    other = opanatomy.profile(second, INPUT, amp="fp16", steps=2, optimizer="adamw-loop")
    assert torch.equal(torch.get_rng_state(), state)
    assert first.drawn[0] == first.drawn[-1] == first.drawn[-2] == second.drawn[0] == second.drawn[-1]
    assert operators(one, Phase.FORWARD) == operators(other, Phase.FORWARD)
    assert operators(one, Phase.BACKWARD) == operators(other, Phase.BACKWARD)
    assert all(torch.equal(value, before[name]) for name, value in first.state_dict().items())
    assert all(parameter.grad is None for parameter in (*first.parameters(), *second.parameters()))


@pytest.mark.parametrize(("loud", "expected"), [((2,), ["1 of 3"]), ((1, 2, 3), ["3 of 3"]), ((), [])])
@pytest.mark.parametrize("optimizer", ["adamw", "adamw-loop"])
def test_an_update_that_is_skipped_is_said(
    loud: tuple[int, ...], expected: list[str], optimizer: str, tmp_path: Path
) -> None:
    path = tmp_path / "step.json"
    anatomy = opanatomy.profile(Loud(1.0, loud), INPUT, amp="fp16", optimizer=optimizer, steps=3, trace=path)
    form = re.compile(
        r"(\d of \d) profiled steps skipped the update because float16 gradients overflowed at a"
        r" loss scale of"
    )
    assert [match[1] for line in anatomy.warnings if (match := form.match(line))] == expected
    if optimizer == "adamw-loop":
        assert path.read_text().count('"name": "aten::addcdiv_"') == 4 * (3 - len(loud))


def test_gradients_that_overflow_at_every_scale_are_said() -> None:
    anatomy = opanatomy.profile(Loud(float("inf")), INPUT, amp="fp16", optimizer="adamw")
    assert anatomy.warnings[0].startswith("gradients are not finite in float16 at any loss scale from 65,536 down")
    assert any(line.startswith("1 of 1 profiled steps skipped the update") for line in anatomy.warnings)


class Turned(nn.Module):
    """A weight that is complex, whose gradient the scaler cannot unscale."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 8, dtype=torch.complex64))

    def forward(self, values: Tensor) -> Tensor:
        return (values.to(torch.complex64) @ self.weight).abs().sum()


def test_gradients_that_cannot_be_unscaled_are_one_line() -> None:
    """The scale is looked for before the first step: what fails there is the model's failure as well."""
    with pytest.raises(
        opanatomy.CaptureError, match=r"^the model failed in the optimizer phase: NotImplementedError: "
    ):
        opanatomy.profile(Turned(), INPUT, amp="fp16", optimizer="sgd")


@pytest.mark.parametrize("amp", ["fp16", None])
def test_float16_weights_run_unscaled_and_it_is_said(amp: str | None) -> None:
    torch.manual_seed(0)
    anatomy = opanatomy.profile(nn.Linear(8, 4).half(), INPUT.half(), amp=amp, optimizer="adamw")
    assert anatomy.workload.loss_scale is None
    assert anatomy.warnings[0].startswith("the loss is not scaled")
    updates = operators(anatomy, Phase.OPTIMIZER)
    assert sum(updates.values()) > 0
    assert "aten::_amp_update_scale_" not in updates


# ------------------------------------------------------------------------------------------- gradients that become zero

FUNCTIONS = """
import torch
from torch import nn

class Weighted(nn.Module):
    '''A loss whose gradient by each row of a 10 x 4 matrix is a given power of two.'''

    def __init__(self, factors):
        super().__init__()
        self.linear = nn.Linear(4, 10, bias=False)
        self.register_buffer("factors", torch.tensor(factors))

    def forward(self, values):
        return {"loss": (self.linear(values).float() * self.factors).sum()}

def large_and_small():
    return Weighted([2.0] * 3 + [2.0**-4] * 3 + [2.0**-26] * 4), torch.ones(1, 4)

class Deep(nn.Module):
    '''Layers whose gradients are of many sizes, under a loss of a millionth.'''

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))

    def forward(self, values):
        return {"loss": self.layers(values).float().square().mean() * 1e-6}

def deep():
    torch.manual_seed(3)
    return Deep(), torch.randn(16, 32)
"""


def underflow_of(function: str, folder: Path) -> Underflow:
    (folder / "small.py").write_text(FUNCTIONS)
    words = ("--device", "cpu", "--optimizer", "sgd", "--only", "amp-fp16", "--repetitions", "1", "--loss-steps", "1")
    done = run("techniques", f"small.py:{function}", *words, "-f", "json", cwd=folder, timeout=200)
    assert done.returncode == 0, done.stderr
    underflow = msgspec.json.decode(done.stdout, type=Techniques).rows[1].underflow
    assert underflow is not None
    return underflow


def test_the_elements_that_float16_cannot_hold_are_counted(tmp_path: Path) -> None:
    """Float16 holds 2^-14 to 65,504 in full, and nothing of 2^-26: each row of the matrix has four elements.

    2 x 65,536 is too large, 2 x 32,768 as well; half of the largest that fits is 8,192.
    """
    assert underflow_of("large_and_small", tmp_path) == Underflow(
        elements=40,
        nonzero=40,
        scaled=ScaledGradients(scale=8192, zeros=0, not_finite=0),
        unscaled=ScaledGradients(scale=1, zeros=16, not_finite=0),
        at_first_scale=ScaledGradients(scale=FIRST, zeros=0, not_finite=12),
    )


def by_hand(scale: float | None) -> dict[str, Tensor]:
    """The gradients of `deep` in plain torch, with autocast and a scaled loss or in float32."""
    names: dict[str, Any] = {}
    exec(FUNCTIONS, names)
    module, inputs = names["deep"]()
    with torch.autocast("cpu", dtype=torch.float16, enabled=scale is not None):
        loss = module(inputs)["loss"]
    (loss * (scale or 1.0)).backward()
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def test_the_zeros_of_a_model_are_those_of_plain_torch(tmp_path: Path) -> None:
    underflow, exact = underflow_of("deep", tmp_path), by_hand(None)
    assert underflow.nonzero == sum(int(gradient.ne(0).sum()) for gradient in exact.values())
    for scaled, scale in ((underflow.unscaled, 1.0), (underflow.scaled, float(FIRST))):
        half = by_hand(scale)
        assert scaled.zeros == sum(int((half[name].eq(0) & exact[name].ne(0)).sum()) for name in exact)
    assert underflow.scaled.zeros < 0.1 * underflow.nonzero < 0.9 * underflow.nonzero < underflow.unscaled.zeros


def test_the_report_says_what_scaling_saves() -> None:
    saved = Underflow(
        elements=2_000,
        nonzero=1_000,
        scaled=ScaledGradients(scale=FIRST, zeros=2, not_finite=0),
        unscaled=ScaledGradients(scale=1, zeros=381, not_finite=0),
    )
    loud = replace(saved, at_first_scale=ScaledGradients(scale=FIRST, zeros=0, not_finite=7))
    hopeless = replace(saved, scaled=ScaledGradients(scale=FIRST, zeros=0, not_finite=9))
    report = experiment()
    rows = tuple(replace(row, underflow=one) for row, one in zip(report.rows, (None, saved, loud, hopeless)))  # noqa: B905
    text = " ".join(format_named("terminal").write(replace(report, rows=rows), Page(width=100)).split())
    assert "less: without scaling, 38.10 % of 1,000 gradient elements become zero; with scaling, 0.20 %" in text
    assert "slim: at the scaler's first scale (65,536), 7 gradient elements overflow, so the update is skipped" in text
    assert "fast: 9 gradient elements also overflow at the run's loss scale, so every update is skipped" in text
