"""`estimate MODEL --on DEVICE`: next to recordings of the device, and what it says of what it does not know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opanatomy.__main__ import main
from opanatomy.errors import UsageError
from opanatomy.options import RunOptions
from opanatomy.predict.estimate import estimate_of, estimated_on, sheet_limit
from opanatomy.predict.fit import gpu_of
from opanatomy.predict.workers import followed_apart
from opanatomy.records.anatomy import Anatomy
from opanatomy.report import terminal_report
from opanatomy.report.formats.html import html_report
from opanatomy.report.load import document_in
from opanatomy.report.section import Page
from tests.tiny import BERT

ROOT = Path(__file__).parent.parent
RECORDED = json.loads((ROOT / "benchmarks" / "estimate_runs_h200.json").read_bytes())
SMALL = ("--layers", "2", "--seq", "64", "--batch", "4")


def estimated(model: str, *devices: str, **options: Any) -> Anatomy:
    return estimate_of(RunOptions(model=model, **options), devices, command="", stage=lambda text: None)


@pytest.fixture
def models(here: Path) -> Path:
    """A file with the models of benchmarks/estimate_runs.py, which an H200 ran."""
    lines = ["import sys", f"sys.path.insert(0, {str(ROOT / 'benchmarks')!r})", "from estimate_runs import build"]
    lines += [f"def {name}(): return build({name!r}, False)" for name in ("bert_large", "gpt2_medium", "llama_1b")]
    (here / "recorded.py").write_text("\n".join(lines))
    return here


@pytest.mark.parametrize(
    ("name", "model", "options"),
    [
        ("gpt2_medium_amp", "gpt2_medium", {"amp": "bf16"}),
        ("llama_1b_bfloat16", "llama_1b", {"dtype": "bfloat16"}),
        ("bert_large_amp_checkpointing", "bert_large", {"amp": "bf16", "checkpointing": "non-reentrant"}),
    ],
)
def test_steps_recorded_on_an_h200(name: str, model: str, options: dict[str, str], models: Path) -> None:
    """Allocated, reserved and occupied by its own counters, and the step, are where they were computed to be."""
    recorded, limit = RECORDED[name], sheet_limit("H200")
    run = RunOptions(model=f"recorded.py:{model}", optimizer="adamw", **options)
    step = next(followed_apart([run], gpu=gpu_of(limit))).step
    assert not isinstance(step, str), step
    made = estimated_on(step, limit)
    assert made.occupied.allocated_bytes == pytest.approx(recorded["max_allocated_bytes"], rel=0.001)
    assert made.occupied.reserved_bytes == pytest.approx(recorded["max_reserved_bytes"], rel=0.002)
    assert made.occupied.low_bytes <= recorded["occupied_bytes"] <= made.occupied.high_bytes
    assert made.low_ns <= recorded["step_ns"] <= made.high_ns
    assert made.high_ns <= 1.6 * made.low_ns


def test_the_report_of_bert_large_on_an_h100() -> None:
    """Its FLOPs are those that were recorded, its step without an update is in the range."""
    recorded: Any = document_in(ROOT / "reports" / "bert-large-uncased-h100.json")
    report = estimated("google-bert/bert-large-uncased", "H100", batch=4)
    assert report.estimated is not None
    made = report.estimated.devices[0]
    assert made.device == "H100 SXM"
    update = sum(row.time_ns for row in report.classes if row.phase == "optimizer")
    assert made.low_ns - update <= recorded.step.unprofiled_wall_ns <= made.high_ns
    for phase in ("forward", "backward"):
        flops = [sum(row.flops or 0 for row in each.classes if row.phase == phase) for each in (report, recorded)]
        assert flops[0] == flops[1]
    assert sum(row.time_ns for row in report.classes) == report.ledger.device_work_ns
    assert sum(row.time_ns for row in report.operators) == report.ledger.device_work_ns
    assert sum(row.time_ns for row in report.modules) < report.ledger.device_work_ns  # the update is in none


def test_times_never_look_measured() -> None:
    report = estimated(BERT, "A100", layers=2, seq=64, batch=4)
    text = terminal_report(report, width=80).splitlines()
    assert "estimated for A100 SXM4 80 GB" in text[0]
    assert text[1].startswith("estimated for A100 SXM4 80 GB, not run")
    words = " ".join(text)
    assert "busy" not in words
    assert "measured" not in words.replace("anyone measured", "")
    page = html_report(report, Page())
    assert "estimated for A100 SXM4 80 GB" in page


def test_several_devices_stand_side_by_side(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ("estimate", BERT, *SMALL, "--on", "H100,A100", "--on", "RTX4090", "-f", "json")
    assert main(list(words)) == 0
    report = json.loads(capfd.readouterr().out)
    devices = report["estimated"]["devices"]
    assert [each["device"] for each in devices] == ["H100 SXM", "A100 SXM4 80 GB", "GeForce RTX 4090"]
    assert all(each["attained_ns"] <= each["high_ns"] for each in devices)
    assert "H100 is H100 SXM" in report["estimated"]["assumed"]
    assert "the optimizer AdamW" in report["estimated"]["assumed"]
    assert report["environment"]["device"] == "H100 SXM"


def test_a_longer_step_takes_longer() -> None:
    """Twice the batch is about twice the device's work, and the slower device needs more of it."""
    steps = [estimated(BERT, "H100", "A100", seq=128, batch=batch).estimated for batch in (8, 64)]
    assert steps[0] is not None
    assert steps[1] is not None
    small, large = steps[0].devices, steps[1].devices
    assert large[0].attained_ns > 6 * small[0].attained_ns
    assert large[1].attained_ns > large[0].attained_ns


@pytest.mark.parametrize(
    ("name", "device"),
    [("H100", "H100 SXM"), ("h100 pcie", "H100 PCIe"), ("3090", "GeForce RTX 3090"), ("A100", "A100 SXM4 80 GB"),
     ("RTX 3090 Ti", "GeForce RTX 3090 Ti"), ("RTX4090", "GeForce RTX 4090"), ("T4", "T4"),
     ("NVIDIA GeForce RTX 3090", "GeForce RTX 3090"), ("V100", "V100S PCIe 32 GB"), ("MI300X", "Instinct MI300X")],
)  # fmt: skip
def test_a_device_is_found_by_its_name(name: str, device: str) -> None:
    assert sheet_limit(name).device == device


@pytest.mark.parametrize("name", ["banana", "80GB", "cpu", ""])
def test_what_is_no_device_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="no device with a data sheet"):
        sheet_limit(name)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("estimate", BERT), 2, "on which device? give --on H100"),
        (("estimate", BERT, "--on", "banana"), 2, "--on banana: no device with a data sheet here is called so"),
        (("estimate", BERT, "--on", "H100", "--compile"), 1, "measure it"),
        (
            ("estimate", BERT, *SMALL, "--dtype", "bfloat16", "--on", "T4"),
            1,
            "how fast T4 multiplies bfloat16 is not known",
        ),
    ],
)
def test_what_cannot_be_estimated_is_one_line(
    words: tuple[str, ...], code: int, said: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(list(words)) == code
    err = capfd.readouterr().err.strip().splitlines()
    assert said in err[-1]


FOREIGN = """
import torch

@torch.library.custom_op("opanatomy_tests::own", mutates_args=())
def own(x: torch.Tensor) -> torch.Tensor:
    return x.clone()

@own.register_fake
def _(x):
    return torch.empty_like(x)

own.register_autograd(lambda context, gradient: gradient)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
    def forward(self, x):
        return own(self.layer(x)).sum()

def made():
    return Net(), (torch.randn(8, 64),)
"""


def test_work_without_a_formula_is_said(here: Path) -> None:
    (here / "foreign.py").write_text(FOREIGN)
    (warning,) = estimated("foreign.py:made", "H100").warnings
    assert "the work of 1 call of operators without a formula (opanatomy_tests::own)" in warning
    assert not estimated(BERT, "H100", layers=1, seq=16, batch=1).warnings
