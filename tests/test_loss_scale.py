"""The loss scale under float16: every spelling has one, no update is skipped, and one that is skipped is said."""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from opanatomy.api import analyze, profile
from opanatomy.capture.model.workload import given, workload_of
from opanatomy.capture.run.recorder import record_step
from opanatomy.capture.step.stepper import Stepper
from opanatomy.capture.subject import Subject
from opanatomy.cli.parser import make_parser
from opanatomy.errors import CaptureError
from opanatomy.options import RunOptions
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import Workload
from tests.test_out_of_memory import Stages

INPUT = torch.ones(4, 8)


class Loud(torch.nn.Module):
    """The largest gradient, of the last bias (a float16 sum over 4 rows of a mean of 16), is loss scale * gain / 4."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gain, self.first, self.last = gain, torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
        self.drop = torch.nn.Dropout(0.5)
        self.drawn: list[float] = []

    def forward(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
        kept = self.drop(torch.ones(64))
        self.drawn.append(float((kept * torch.arange(64.0)).sum()))
        return {"loss": self.last(self.first(values)).float().mean() * self.gain}


def operators(anatomy: Anatomy, phase: Phase) -> Counter[str]:
    """The calls of each operator in a step."""
    found: Counter[str] = Counter()
    for row in anatomy.operators:
        if row.phase == phase:
            found[row.operator] += row.calls
    return Counter({name: calls // anatomy.step.count for name, calls in found.items()})


@pytest.mark.parametrize("spelling", ["fp16", "float16"])
def test_every_spelling_has_a_scaler(spelling: str) -> None:
    anatomy = profile(Loud(1.0), INPUT, amp=spelling, optimizer="adamw")
    assert (anatomy.workload.amp, anatomy.workload.loss_scale) == ("fp16", 65536)
    phase = operators(anatomy, Phase.OPTIMIZER)
    assert phase["aten::_amp_foreach_non_finite_check_and_unscale_"] == 1
    assert phase["aten::_amp_update_scale_"] == 1
    assert phase["aten::_fused_adamw_"] == 1
    assert anatomy.warnings == ()


@pytest.mark.parametrize(
    ("options", "arguments"), [({}, ""), ({"amp": "bf16"}, "--amp bfloat16"), ({"amp": "fp16"}, "--amp float16")]
)
def test_a_spelling_is_one_name_from_the_entrance_on(options: dict[str, Any], arguments: str) -> None:
    parsed = make_parser().parse_args(["profile", "gpt2", *arguments.split()])
    assert parsed.amp == RunOptions(amp=parsed.amp).amp == options.get("amp")


@pytest.mark.parametrize(("amp", "inference"), [("bf16", False), (None, False), ("fp16", True)])
def test_no_other_run_has_a_scaler(amp: str | None, inference: bool) -> None:
    module = Loud(1.0)
    options = {"amp": amp, "inference": inference}
    assert (
        Stepper(module=module, parameters=(*module.parameters(),), inputs=(), device="cpu", **options).loss_scale
        is None
    )


@pytest.mark.parametrize(
    ("gain", "scale"),
    [(1.0, 2.0**16), (4.0, 2.0**14), (10.0, 2.0**13), (300.0, 2.0**8), (60000.0, 2.0), (2.0**20, 2.0**-4)],
)
def test_the_first_scale_is_one_at_which_the_update_is_made(gain: float, scale: float) -> None:
    """The largest power of two whose product with gain / 4 float16 has (65,504 at most), halved below 65,536."""
    module = Loud(gain)
    anatomy = profile(module, INPUT, amp="fp16", optimizer="adamw-loop", steps=3)
    assert anatomy.workload.loss_scale == scale
    assert anatomy.warnings == ()
    assert operators(anatomy, Phase.OPTIMIZER)["aten::addcdiv_"] == 4


def test_a_model_whose_output_is_float16_has_a_scale_that_float16_has() -> None:
    """65,536 itself is inf there, and the gradient of the scaled output is the scale."""
    torch.manual_seed(0)
    anatomy = profile(torch.nn.Linear(8, 4), INPUT, amp="fp16", optimizer="adamw-foreach")
    assert anatomy.workload.loss_scale == 2.0**12
    assert operators(anatomy, Phase.OPTIMIZER)["aten::_foreach_addcdiv_"] == 1
    assert anatomy.warnings == ()


def test_the_search_leaves_no_trace() -> None:
    """Each profiled step draws the random numbers of the first one, which the search put back; so do two runs."""
    first, second = Loud(300.0), Loud(300.0)
    before = copy.deepcopy(first.state_dict())
    state = torch.get_rng_state()
    one = profile(first, INPUT, amp="fp16", steps=2)
    torch.set_rng_state(state)
    other = profile(second, INPUT, amp="fp16", steps=2, optimizer="adamw-loop")
    assert torch.equal(torch.get_rng_state(), state)
    assert first.drawn[0] == first.drawn[-1] == first.drawn[-2] == second.drawn[0] == second.drawn[-1]
    assert len(second.drawn) > len(first.drawn) - 1
    assert operators(one, Phase.FORWARD) == operators(other, Phase.FORWARD)
    assert operators(one, Phase.BACKWARD) == operators(other, Phase.BACKWARD)
    assert all(torch.equal(value, before[name]) for name, value in first.state_dict().items())
    assert all(parameter.grad is None for parameter in (*first.parameters(), *second.parameters()))


class LoudLater(Loud):
    """Gradients overflow in the named stages only."""

    def __init__(self, stages: Stages, loud: tuple[str, ...]) -> None:
        super().__init__(1.0)
        self.stages, self.loud = stages, loud

    def forward(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
        self.gain = 1e6 if self.stages.text.startswith(self.loud) else 1.0
        return super().forward(values)


@pytest.mark.parametrize(
    ("loud", "expected"),
    [
        (("profiled step 2",), ["1 of 3 profiled steps at 65,536"]),
        (("timed step 1 ", "timed step 3"), ["2 of 5 timed steps at 65,536"]),
        (("timed step 1 ", "profiled"), ["1 of 5 timed steps at 65,536", "3 of 3 profiled steps at 32,768"]),
        (("warm-up step",), []),
    ],
)  # fmt: skip
@pytest.mark.parametrize("optimizer", ["adamw", "adamw-loop"])
def test_an_update_that_is_skipped_is_said(
    loud: tuple[str, ...], expected: list[str], optimizer: str, tmp_path: Path
) -> None:
    stages = Stages()
    module = LoudLater(stages, loud)
    trace = tmp_path / "step.json"
    options = RunOptions(amp="fp16", optimizer=optimizer, steps=3)
    record_step(Subject(module=module, inputs=(INPUT,), workload=Workload()), options, trace, stages)
    anatomy = analyze(trace)
    said = [line for line in anatomy.warnings if "skipped" in line]
    form = re.compile(r"(.*) skipped the update: float16 gradients overflowed at a loss scale of ([\d,]+);")
    assert [" at ".join(form.match(line).groups()) for line in said] == expected  # type: ignore[union-attr]
    made = 3 - sum(int(line[0]) for line in said if "profiled" in line)
    if optimizer == "adamw-loop":
        names = [event.get("name") for event in json.loads(trace.read_text())["traceEvents"]]
        assert names.count("aten::addcdiv_") == 4 * made


def test_gradients_that_overflow_at_every_scale_are_said() -> None:
    anatomy = profile(Loud(float("inf")), INPUT, amp="fp16", optimizer="adamw")
    assert anatomy.warnings[0].startswith("gradients are not finite in float16 at any loss scale from 65,536 down")
    assert any(line.startswith("1 of 1 profiled steps skipped the update") for line in anatomy.warnings)


class Turned(torch.nn.Module):
    """A weight that is complex, whose gradient the scaler cannot unscale."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8, 8, dtype=torch.complex64))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return (values.to(torch.complex64) @ self.weight).abs().sum()


def test_gradients_that_cannot_be_unscaled_are_one_line() -> None:
    """The scale is looked for before the first step: what fails there is the model's failure as well."""
    with pytest.raises(CaptureError, match=r"^the model failed in the optimizer phase: NotImplementedError: .*unscale"):
        profile(Turned(), INPUT, amp="fp16", optimizer="sgd")


@pytest.mark.parametrize("optimizer", ["adamw", "adamw-loop", "sgd"])
@pytest.mark.parametrize("amp", ["fp16", None])
def test_float16_weights_run_unscaled_and_it_is_said(optimizer: str, amp: str | None) -> None:
    torch.manual_seed(0)
    module = torch.nn.Linear(8, 4).half()
    anatomy = profile(module, INPUT.half(), amp=amp, optimizer=optimizer)
    assert anatomy.workload.loss_scale is None
    assert [line for line in anatomy.warnings if line.startswith("the weights are float16")] == [anatomy.warnings[0]]
    assert sum(operators(anatomy, Phase.OPTIMIZER).values()) > 0
    assert "aten::_amp_update_scale_" not in operators(anatomy, Phase.OPTIMIZER)


@pytest.mark.parametrize("spelling", ["float16", "FP16", "half", torch.float16])
def test_the_workload_has_one_name(spelling: Any) -> None:
    assert workload_of(given(Loud(1.0), ()), RunOptions(amp=spelling)).amp == "fp16"
