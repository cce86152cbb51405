"""`estimate MODEL --on DEVICE`: next to recordings of the device, and what it says of what it does not know."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import opanatomy
from opanatomy.__main__ import main
from opanatomy.devices.ceilings import KnownCeilings
from opanatomy.devices.match import ceilings_of
from opanatomy.devices.sheets import SHEETS
from opanatomy.errors import EstimateError, UsageError
from opanatomy.options import RunOptions
from opanatomy.predict import estimate
from opanatomy.predict.estimate import estimate_of, estimated_on, sheet_limit
from opanatomy.predict.fit import gpu_of
from opanatomy.predict.workers import simulate_in_process
from opanatomy.records.anatomy import Anatomy
from opanatomy.report import terminal_report
from opanatomy.report.formats.html import html_report
from opanatomy.report.load import document_in
from opanatomy.report.section import Page
from tests.support.paths import ROOT
from tests.support.tiny import BERT, TINY, profiled, tiny

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
    step = next(simulate_in_process([run], gpu=gpu_of(limit))).step
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
    assert "measured" not in words.replace("anyone has measured", "")
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
    [
        ("H100", "H100 SXM"),
        ("h100 pcie", "H100 PCIe"),
        ("3090", "GeForce RTX 3090"),
        ("4090", "GeForce RTX 4090"),
        ("3080", "GeForce RTX 3080 12 GB"),
        ("A100 80GB", "A100 SXM4 80 GB"),
        ("A100", "A100 SXM4 80 GB"),
        ("RTX 3090 Ti", "GeForce RTX 3090 Ti"),
        ("RTX4090", "GeForce RTX 4090"),
        ("T4", "T4"),
        ("NVIDIA GeForce RTX 3090", "GeForce RTX 3090"),
        ("V100", "V100S PCIe 32 GB"),
        ("MI300X", "Instinct MI300X"),
    ],
)
def test_a_device_is_found_by_its_name(name: str, device: str) -> None:
    assert sheet_limit(name).device == device


@pytest.mark.parametrize("name", ["banana", "80GB", ""])
def test_what_is_no_device_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="opanatomy has no data sheet for this device"):
        sheet_limit(name)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("estimate", BERT), 2, "no device - use --on, for example --on H100"),
        (("estimate", BERT, "--on", "banana"), 2, "--on banana: opanatomy has no data sheet for this device"),
        (
            ("estimate", BERT, *SMALL, "--on", "V100", "--tf32"),
            2,
            "V100S PCIe 32 GB does not support TF32 - leave it out",
        ),
        (
            ("estimate", BERT, "--on", "H100", "--sweep", "layers=1..4"),
            2,
            "--sweep layers=1..4: not understood",
        ),
        (("estimate", BERT, "--on", "H100", "--sweep", "batch=8..1"), 2, "--sweep batch=8..1: not understood"),
        (("estimate", BERT, "--on", "cpu", "--devices", "2"), 2, "--devices 2 works only for GPUs - leave it out"),
        (
            ("estimate", BERT, *SMALL, "--dtype", "bfloat16", "--on", "T4"),
            1,
            "T4's matmul speed in bfloat16 is unknown",
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
    assert "1 call of operators without a formula (opanatomy_tests::own)" in warning
    assert not estimated(BERT, "H100", layers=1, seq=16, batch=1).warnings


def test_a_sweep_has_the_rows_of_each_size(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ("estimate", BERT, "--layers", "2", "--seq", "64", "--on", "H100", "--sweep", "batch=4..24", "-f", "json")
    assert main(list(words)) == 0
    report = json.loads(capfd.readouterr().out)
    rows = report["estimated"]["devices"]
    assert [row["batch"] for row in rows] == [4, 8, 16, 24]
    alone = estimated(BERT, "H100", layers=2, seq=64, batch=16).estimated
    assert alone is not None
    keys = ("low_ns", "high_ns", "as_is_ns", "tokens")
    assert [rows[2][key] for key in keys] == [getattr(alone.devices[0], key) for key in keys]
    assert rows[2]["occupied"]["high_bytes"] == alone.devices[0].occupied.high_bytes


@pytest.mark.parametrize("model", ["google-bert/bert-base-uncased", "openai-community/gpt2", "Qwen/Qwen3-0.6B"])
def test_on_the_cpu_flops_and_bytes_are_those_of_the_run(
    model: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By phase and class, and of products by operator and shape: what the profiled step did."""
    # A CPU has no data sheet: one is lent to it.
    known = KnownCeilings(ceilings_of(next(sheet for sheet in SHEETS if sheet.device == "H100 SXM")))
    monkeypatch.setattr(estimate, "ceilings_for", lambda _: known)
    words = tiny(model, "--optimizer", "adamw")
    ran, made = profiled(*words), estimated(model, "cpu", settings=TINY[model], batch=2, seq=16, optimizer="adamw")
    sums = [Counter[Any](), Counter[Any]()]
    products = [Counter[Any](), Counter[Any]()]
    for report, of_class, of_product in zip((ran, made), sums, products, strict=True):
        for row in report.operators:
            costs = (row.flops or 0), (row.read_bytes or 0), (row.written_bytes or 0)
            for index, value in enumerate(costs):
                of_class[row.phase, row.operator_class, index] += value
            if row.operator_class == "tensor_contraction" and row.flops:  # no copy inside a product
                shapes = tuple(tensor.shape for tensor in row.signature.record.tensors())
                of_product[row.operator, shapes, row.phase] += row.calls
    assert products[0] == products[1]
    flops, moved = (
        [sum(value for key, value in each.items() if key[2] in indices) for each in sums] for indices in ((0,), (1, 2))
    )
    assert flops[0] == flops[1]
    assert moved[0] == pytest.approx(moved[1], rel=0.001)  # which masks are made depends on values


def test_an_estimate_is_compared_with_a_measurement(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The time above the estimate is the host's; the same products differ little."""
    measured = str(ROOT / "reports" / "bert-large-uncased-h100.json")
    assert main(["estimate", "google-bert/bert-large-uncased", "--batch", "4", "--on", "H100", "-o", "made.json"]) == 0
    assert main(["compare", "made.json", measured, "-f", "json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["warnings"] == ["made.json is an estimate: its times are computed from typical efficiencies"]
    assert main(["compare", "made.json", measured]) == 0
    text = " ".join(capfd.readouterr().out.split())
    assert "Idle, host-bound: +36.8 ms" in text


def test_operators_without_a_cuda_kernel_here_stay_whole() -> None:
    """A torch without CUDA would make SiLU's gradient of five others."""
    model = "meta-llama/Llama-3.1-8B"
    names = {row.operator for row in estimated(model, "H100", settings=TINY[model], seq=16, batch=2).operators}
    assert "aten::silu_backward" in names
    assert "aten::sigmoid" not in names


def test_compiled_steps_fuse_and_tf32_multiplies_faster() -> None:
    plain, compiled = (estimated(BERT, "A100", seq=128, batch=64, compile=on) for on in (False, True))

    def of_class(report: Anatomy, name: str) -> int:
        return sum(row.time_ns for row in report.classes if row.operator_class == name)

    assert of_class(plain, "tensor_contraction") == of_class(compiled, "tensor_contraction")
    assert of_class(compiled, "elementwise") == pytest.approx(0.54 * of_class(plain, "elementwise"), rel=0.1)
    assert compiled.estimated is not None
    assert any(text.startswith("with torch.compile,") for text in compiled.estimated.assumed)
    run = RunOptions(model=BERT, seq=128, batch=64)
    fast = estimate_of(run, ["A100"], tf32=True, command="", stage=lambda text: None)
    assert of_class(fast, "tensor_contraction") < of_class(plain, "tensor_contraction") / 4


def test_a_measured_rate_is_judged_by_each_formula(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = "meta-llama/Llama-3.1-8B"
    settings = [word for pair in TINY[model] for word in ("--set", "=".join(pair))]
    rate = ("--dtype", "bfloat16", "--tokens-per-second", "1000")
    words = ("estimate", model, *settings, "--seq", "16", "--on", "H100", *rate)
    assert main([*words, "-f", "json"]) == 0
    report = json.loads(capfd.readouterr().out)["estimated"]
    rows = {row["name"]: row for row in report["conventions"]}
    assert rows["Megatron-LM"]["flops_per_second"] == rows["Megatron-LM"]["flops"] * 1000
    assert rows["Megatron-LM"]["mfu"] == pytest.approx(rows["Megatron-LM"]["flops"] * 1000 / 989.4e12, rel=1e-3)
    assert rows["counted, causal"]["flops"] < rows["counted, full"]["flops"]
    assert main(list(words)) == 0
    assert "outside the estimated range" in " ".join(capfd.readouterr().out.split())


def test_an_operator_without_a_fake_kernel_is_named() -> None:
    model = "facebook/wav2vec2-base-960h"
    with pytest.raises(EstimateError, match="_use_cudnn_ctc_loss"):
        estimated(model, "H100", settings=TINY[model], batch=2)


@pytest.mark.parametrize(
    ("model", "options", "kind"),
    [
        ("openai-community/gpt2", {}, "dense decoder"),
        (BERT, {}, "dense encoder"),
        ("mistralai/Mixtral-8x7B-v0.1", {}, "mixture of experts"),
        ("google-t5/t5-base", {}, "other network"),
        ("openai-community/gpt2", {"lora": 2}, "adapters"),
    ],
)
def test_it_says_how_its_kind_came_out(model: str, options: dict[str, Any], kind: str) -> None:
    report = estimated(model, "H100", settings=TINY[model], seq=16, batch=2, **options)
    assert report.estimated is not None
    tried = report.estimated.tried
    assert tried is not None
    assert tried.kind == kind
    text = " ".join(terminal_report(report, width=80).split())
    said = f"{tried.runs} published runs of this kind ({kind}): {tried.inside} within the range"
    assert (said if tried.runs else f"no published run of this kind ({kind}):") in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"on": None}, "estimate: on=None - pass the name of a device"),
        ({"on": [5]}, "estimate: on=[5] - pass the name of a device"),
        ({"on": []}, "estimate: on=[] - pass the name of a device"),
        ({"on": "H100", "devices": 2.5}, "devices=2.5: must be a whole number"),
        ({"on": "H100", "devices": 0}, "devices=0: must be at least 1"),
        ({"on": "H100", "devices": 2, "link": 5}, "link=5: must be text"),
        ({"on": "H100", "sweep": {}}, "sweep={}: must be text"),
        ({"on": "H100", "tokens_per_second": -1}, "tokens_per_second=-1: must be positive and finite"),
        ({"on": "H100", "tf32": "y"}, "tf32='y': must be True or False"),
        ({"model": None, "on": "H100"}, "estimate: the model is None - pass its name"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        opanatomy.estimate(**{"model": "gpt2", **arguments})


def test_a_rate_of_what_is_no_decoder(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", BERT, *SMALL, "--on", "H100", "--tokens-per-second", "100"]) == 2
    assert "--tokens-per-second applies only to the training of text decoders" in capfd.readouterr().err


def test_a_device_named_twice_is_estimated_once() -> None:
    report = estimated(BERT, "H100", "H100", layers=2, seq=64, batch=4)
    assert report.estimated is not None
    assert len(report.estimated.devices) == 1
