"""Gradients in float16: how many become zero without scaling and with it, against plain torch; where fp16 runs."""

from __future__ import annotations

import csv
import io
from typing import Any

import msgspec
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from opanatomy.capture.run.unprofiled import gradient_underflow
from opanatomy.errors import CaptureError
from opanatomy.options import RunOptions
from opanatomy.predict.techniques import variants_of
from opanatomy.records.experiment import ScaledGradients, Techniques, Underflow
from opanatomy.report.formats import format_named
from opanatomy.report.section import Page
from tests.test_techniques import experiment_of, row, situation
from tests.tiny import BERT, tiny_request

FIRST = 65_536


class Weighted(nn.Module):
    """A loss whose gradient by each row of a 10 x 4 matrix is a given power of two: `factors`, one for each row."""

    def __init__(self, factors: list[float]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 10, bias=False)
        self.register_buffer("factors", torch.tensor(factors))

    def forward(self, values: Tensor) -> dict[str, Tensor]:
        return {"loss": (self.linear(values).float() * self.factors).sum()}


def _small() -> tuple[nn.Module, Any]:
    return Weighted([2.0**-2] * 6 + [2.0**-26] * 4), torch.ones(1, 4)


def _large_and_small() -> tuple[nn.Module, Any]:
    return Weighted([2.0] * 3 + [2.0**-4] * 3 + [2.0**-26] * 4), torch.ones(1, 4)


def _too_small() -> tuple[nn.Module, Any]:
    return Weighted([1e-2] * 7 + [2.0**-60] * 3), torch.tensor([[1.0, 0.0, 1.0, 1.0]])


def _harmless() -> tuple[nn.Module, Any]:
    return Weighted([0.25] * 10), torch.ones(1, 4)


def _hopeless() -> tuple[nn.Module, Any]:
    return Weighted([2.0**40] * 10), torch.ones(1, 4)


def underflow_of(function: str, **options: Any) -> Underflow:
    chosen = {"model": f"{__name__}:{function}", "device": "cpu", "amp": "fp16", "optimizer": "sgd", **options}
    return gradient_underflow(RunOptions(**chosen))


# Float16 holds 2^-14 to 65,504 in full, and nothing of 2^-26: each row of the matrix has four gradient elements.
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("_small", Underflow(elements=40, nonzero=40, scaled=ScaledGradients(scale=FIRST, zeros=0, not_finite=0),
                             unscaled=ScaledGradients(scale=1, zeros=16, not_finite=0))),
        # 2 x 65,536 is too large, 2 x 32,768 as well; half of the largest that fits is 8,192.
        ("_large_and_small", Underflow(
            elements=40, nonzero=40, scaled=ScaledGradients(scale=8192, zeros=0, not_finite=0),
            unscaled=ScaledGradients(scale=1, zeros=16, not_finite=0),
            at_first_scale=ScaledGradients(scale=FIRST, zeros=0, not_finite=12))),
        # One input is zero: what is zero in float32 too is not lost.
        ("_too_small", Underflow(elements=40, nonzero=30, scaled=ScaledGradients(scale=FIRST, zeros=9, not_finite=0),
                                 unscaled=ScaledGradients(scale=1, zeros=9, not_finite=0))),
        ("_harmless", Underflow(elements=40, nonzero=40, scaled=ScaledGradients(scale=FIRST, zeros=0, not_finite=0),
                                unscaled=ScaledGradients(scale=1, zeros=0, not_finite=0))),
        # No scale is small enough: the run keeps the first one, and each update is skipped.
        ("_hopeless", Underflow(elements=40, nonzero=40, scaled=ScaledGradients(scale=FIRST, zeros=0, not_finite=40),
                                unscaled=ScaledGradients(scale=1, zeros=0, not_finite=40))),
    ],
)  # fmt: skip
def test_the_elements_that_float16_cannot_hold_are_counted(function: str, expected: Underflow) -> None:
    assert underflow_of(function) == expected


def _deep() -> tuple[nn.Module, Any]:
    """Layers whose gradients are of many sizes, under a loss of a millionth."""
    torch.manual_seed(3)
    return Deep(), torch.randn(16, 32)


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Dropout(0.5), nn.Linear(64, 64), nn.GELU(),
            nn.Linear(64, 8),
        )  # fmt: skip

    def forward(self, values: Tensor) -> dict[str, Tensor]:
        return {"loss": self.layers(values).float().square().mean() * 1e-6}


def by_hand(scale: float | None) -> dict[str, Tensor]:
    """The gradients in plain torch, with autocast and a scaled loss or in float32."""
    module, inputs = _deep()
    for child in module.modules():
        if isinstance(child, nn.Dropout):
            child.p = 0.0
    with torch.autocast("cpu", dtype=torch.float16, enabled=scale is not None):
        loss = module(inputs)["loss"]
    (loss * (scale or 1.0)).backward()
    return {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}


def zeros_by_hand(scale: float) -> int:
    exact, half = by_hand(None), by_hand(scale)
    return sum(int((half[name].eq(0) & exact[name].ne(0)).sum()) for name in exact)


def test_the_zeros_of_a_model_are_those_of_plain_torch() -> None:
    underflow = underflow_of("_deep")
    assert underflow.scaled.scale == FIRST
    assert underflow.nonzero == sum(int(gradient.ne(0).sum()) for gradient in by_hand(None).values())
    assert underflow.unscaled.zeros == zeros_by_hand(1.0)
    assert underflow.scaled.zeros == zeros_by_hand(FIRST)
    assert underflow.share(underflow.unscaled) == pytest.approx(underflow.unscaled.zeros / underflow.nonzero)
    assert underflow.unscaled.zeros > 0.9 * underflow.nonzero
    assert underflow.scaled.zeros < 0.1 * underflow.nonzero


class Chance(nn.Module):
    """Half of the gradient is zero by chance, and no half is like the other."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64, bias=False)

    def forward(self, values: Tensor) -> dict[str, Tensor]:
        outputs = self.linear(values).float()
        return {"loss": (outputs * torch.bernoulli(torch.full_like(outputs, 0.5))).sum()}


def _by_chance() -> tuple[nn.Module, Any]:
    return Chance(), torch.ones(1, 64)


def test_all_steps_draw_the_same_numbers() -> None:
    underflow = underflow_of("_by_chance")
    assert 0 < underflow.nonzero < underflow.elements
    assert (underflow.scaled.zeros, underflow.unscaled.zeros) == (0, 0)


def test_an_accumulated_and_clipped_step_is_counted_before_its_update() -> None:
    options = tiny_request(BERT, optimizer="adamw", amp="fp16", accumulate=2, clip=1e-9)
    underflow = gradient_underflow(options)
    whole = gradient_underflow(replace(options, accumulate=1, clip=None))
    assert underflow.elements == whole.elements > 10_000
    assert underflow.unscaled.zeros > underflow.scaled.zeros


@pytest.mark.parametrize("options", [{"amp": "bf16"}, {"dtype": "float16"}])
def test_a_run_that_does_not_scale_its_loss_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(CaptureError, match="the loss is not scaled"):
        gradient_underflow(tiny_request(BERT, **{"optimizer": "sgd", "amp": "fp16", **options}))


def test_products_that_are_not_float16_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch's before 2.2 would be on a processor: autocast left itself out there, with a warning."""
    plain = torch.autocast

    def elsewhere(kind: str, **options: Any) -> Any:
        return plain(kind, **{**options, "enabled": False})

    monkeypatch.setattr(torch, "autocast", elsewhere)
    with pytest.raises(CaptureError, match=r"under float16 autocast here in torch\.float32"):
        underflow_of("_small")


# -------------------------------------------------------------------------------------------------- where fp16 may run


def test_float16_runs_on_a_processor_only_by_name() -> None:
    by_name = {variant.name: variant for variant in variants_of(situation())}
    assert "name it to run it" in (by_name["amp-fp16"].impossible or "")
    named = variants_of(situation(), only=["amp-fp16"], combine=["amp-fp16+sgd"])
    assert [variant.impossible for variant in named] == [None, None, None]
    assert [variant.options.amp for variant in named] == [None, "fp16", "fp16"]
    on_a_gpu = {variant.name: variant for variant in variants_of(replace(situation(), on_cpu=False))}
    assert on_a_gpu["amp-fp16"].impossible is None


# ---------------------------------------------------------------------------------------------------------- the report


def _row(name: str, unscaled: int, scaled: int, first: int | None = None) -> Any:
    at_first = None if first is None else ScaledGradients(scale=FIRST, zeros=0, not_finite=first)
    underflow = Underflow(
        elements=2_000, nonzero=1_000, at_first_scale=at_first,
        scaled=ScaledGradients(scale=0.25 if first else FIRST, zeros=scaled, not_finite=0),
        unscaled=ScaledGradients(scale=1, zeros=unscaled, not_finite=0),
    )  # fmt: skip
    return row(name, underflow=underflow)


HOPELESS = ScaledGradients(scale=FIRST, zeros=0, not_finite=9)
REPORT = experiment_of(
    _row("lossy", 381, 2), _row("harmless", 0, 0), _row("loud", 5, 0, first=7),
    row("hopeless", underflow=Underflow(elements=9, nonzero=9, scaled=HOPELESS, unscaled=replace(HOPELESS, scale=1))),
)  # fmt: skip


def test_the_report_says_what_scaling_saves() -> None:
    text = " ".join(format_named("terminal").write(REPORT, Page(width=100)).split())
    assert "lossy 65,536 0.20 % 2 0 lossy 1 38.10 % 381 0" in text
    assert "lossy: without scaling 38.10 % of 1,000 elements become zero, with it 0.20 %" in text
    assert "harmless: none of 1,000 elements becomes zero without scaling either" in text
    assert "loud 0.25 0.00 % 0 0 loud 65,536 0.00 % 0 7 loud 1 0.50 % 5 0" in text
    assert "loud: at the scaler's first scale, 65,536, 7 elements overflow" in text
    assert "hopeless: 9 elements overflow at the scale of the run too: each update is skipped" in text
    for width in (40, 60):
        narrow = format_named("terminal").write(REPORT, Page(width=width))
        assert max(map(len, narrow.splitlines())) <= width


def test_json_and_csv_have_the_counts() -> None:
    assert msgspec.json.decode(format_named("json").write(REPORT, Page()), type=Techniques) == REPORT
    baseline, lossy, _, loud, _ = csv.DictReader(io.StringIO(format_named("csv").write(REPORT, Page())))
    assert (lossy["gradient_nonzero"], lossy["gradient_unscaled_zeros"], lossy["gradient_scaled_zeros"]) == (
        "1000", "381", "2",
    )  # fmt: skip
    assert (loud["gradient_at_first_scale_not_finite"], loud["gradient_scaled_scale"]) == ("7", "0.25")
    assert (baseline["gradient_elements"], lossy["gradient_at_first_scale_scale"]) == ("", "")
