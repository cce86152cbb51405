"""`profile --for MEMORY`: the peak before anything runs, what makes it fit, the largest batch; next to real runs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from opanatomy.__main__ import main
from opanatomy.errors import UsageError
from opanatomy.memory.observed import memory_of_observations
from opanatomy.predict.fake import simulate
from opanatomy.predict.fit import limit_of
from opanatomy.predict.sampling import Sampling
from tests.support.tiny import BERT, on_cpu, profiled

GIB = 1 << 30
#: Wide and long enough for activations to be most of the peak.
WORDS = (
    BERT, "--device", "cpu", "--optimizer", "adamw", "--layers", "2", "--seq", "64", "--set", "hidden_size=64", "--set",
    "num_attention_heads=2", "--set", "intermediate_size=256", "--set", "vocab_size=256",
)  # fmt: skip
#: Torch's own encoder, whose layers are deep copies, and an operator that needs room while it runs.
CODE = """
import torch

def sized(batch=4):
    layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 3), (torch.randn(batch, 16, 32, requires_grad=True),)

def encoder():
    layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 3), (torch.randn(4, 16, 32, requires_grad=True),)

@torch.library.custom_op("opanatomy_tests::hungry", mutates_args=())
def hungry(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x] * 1000).sum() + x

@hungry.register_fake
def _(x):
    return torch.empty_like(x)

hungry.register_autograd(lambda context, gradient: gradient)

class Hungry(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
    def forward(self, x):
        return hungry(self.layer(x))

def made():
    return Hungry(), (torch.randn(256, 64),)
"""


def asked(capfd: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert main(["profile", *words, "-f", "json"]) == code
    report: dict[str, Any] = json.loads(capfd.readouterr().out)
    return report


def measured_peak(*words: str) -> int:
    peak = profiled(*words, "--memory").memory.peak_bytes
    assert peak is not None
    return peak


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GB", 80 * 10**9),
        ("80 gb", 80 * 10**9),
        ("24GiB", 24 * GIB),
        ("1.5T", 15 * 10**11),
        ("80G", 80 * 10**9),
        ("512MiB", 512 << 20),
        ("80000000000", 80 * 10**9),
    ],
)
def test_a_size_is_read_as_it_is_written(text: str, size: int) -> None:
    assert limit_of(text).bytes == size


@pytest.mark.parametrize(
    ("text", "device", "gib"),
    [
        ("V100 SXM2 32 GB", "V100 SXM2 32 GB", 32),
        ("v100 sxm3", "V100 SXM3 32 GB", 32),
        ("h100", "h100", 80),
        ("RTX 4090", "GeForce RTX 4090", 24),
        ("4090", "GeForce RTX 4090", 24),
        ("A100 80GB", "A100 80GB", 80),
    ],
)
def test_a_device_has_the_memory_of_its_data_sheet(text: str, device: str, gib: int) -> None:
    """What fits several sheets of one memory keeps the name that was typed."""
    limit = limit_of(text)
    assert (limit.bytes, limit.name) == (gib * GIB, device)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("80", "80 bytes is not a plausible device memory"),
        ("banana", "neither a memory size nor a known device"),
        ("", "neither"),
        ("P100", "use one of these names or a memory size"),
        ("A100", "A100 PCIe 40 GB"),
        ("4091", "4091 bytes"),
        ("RTX 4091", "did you mean RTX 4090, RTX 4090 D"),
    ],
)
def test_what_is_no_memory_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        limit_of(text)


def test_a_step_that_fits_says_so_and_is_right(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    report = asked(capfd, *WORDS, "--batch", "4", "--for", "1GB")
    assert [row["name"] for row in report["rows"]] == ["baseline"]
    assert report["rows"][0]["predicted"]["peak_bytes"] == pytest.approx(
        measured_peak(*WORDS, "--batch", "4"), rel=0.02
    )
    assert sum(report["rows"][0]["predicted"]["at_peak"].values()) == report["rows"][0]["predicted"]["peak_bytes"]
    assert report["warnings"] == []  # the CPU was asked for
    assert list(here.iterdir()) == []


def test_a_step_that_does_not_fit_says_what_does_and_is_right(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    peak = measured_peak(*WORDS, "--batch", "4")
    limit = peak * 9 // 10
    report = asked(capfd, *WORDS, "--batch", "4", "--for", f"{limit / 1e6}MB", code=3)
    fitting = [advice for advice in report["advice"] if advice["fits"]]
    assert fitting[0]["technique"] == "checkpointing"  # which leaves the training as it is
    assert {row["name"] for row in report["rows"]} >= {"accumulation", "adafactor", "lora"}
    for advice in fitting[:2]:
        assert measured_peak(*WORDS, "--batch", "4", *shlex.split(advice["option"])) <= limit
    assert main(["profile", *WORDS, "--batch", "4", "--for", f"{limit / 1e6}MB"]) == 3
    out, err = capfd.readouterr()
    assert "does not fit" in " ".join(out.split())
    assert "it fits with --checkpointing" in err
    assert main(["profile", *WORDS, "--batch", "4", "--for", f"{limit / 1e6}MB", "-f", "digest"]) == 3
    digest = capfd.readouterr().out
    assert "- does not fit: " in digest
    assert "checkpointing: peak memory -" in digest


def test_where_nothing_alone_fits_several_are_put_together(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    single = asked(capfd, *WORDS, "--batch", "4", "--for", "1.1MB", code=3)
    names = [row["name"] for row in single["rows"]]
    assert any("+" in name for name in names)
    peaks = {row["name"]: row["predicted"]["peak_bytes"] for row in single["rows"] if row["predicted"]}
    together = next(name for name in names if "+" in name)
    assert peaks[together] < min(peaks[name] for name in together.split("+"))


def test_the_largest_batch_fits_and_the_next_does_not(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    report = asked(capfd, *WORDS, "--batch", "2", "--for", "12MB", "--find", "batch")
    largest = report["limit"]["found"]["value"]
    assert largest > 2
    assert (
        measured_peak(*WORDS, "--batch", str(largest))
        <= 12_000_000
        < measured_peak(*WORDS, "--batch", str(largest + 1))
    )


def test_the_longest_samples_that_fit(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    report = asked(capfd, *WORDS, "--batch", "4", "--for", "12MB", "--find", "seq")
    longest = report["limit"]["found"]["value"]
    assert longest % 64 == 0
    others = [word for word in WORDS if word not in ("--seq", "64")]
    assert measured_peak(*others, "--batch", "4", "--seq", str(longest)) <= 12_000_000
    assert measured_peak(*others, "--batch", "4", "--seq", str(longest + 64)) > 12_000_000


def test_lengths_end_with_the_models_own_positions(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    report = asked(capfd, *WORDS, "--batch", "1", "--for", "1GB", "--find", "seq")
    found = report["limit"]["found"]
    assert found["value"] == 512  # BERT's
    assert found["ended_by"]


def test_the_fewest_layers_to_recompute(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With so many it fits, as a run measures, and with one layer less it does not."""
    deep = [*(word for word in WORDS if word not in ("--layers", "2")), "--layers", "4", "--batch", "8"]
    plain, every = measured_peak(*deep), measured_peak(*deep, "--checkpoint-layers", "4")
    limit = (plain + every) // 2
    found = asked(capfd, *deep, "--for", f"{limit / 1e6}MB", "--find", "checkpointing")["limit"]["found"]
    assert 0 < found["value"] < 4
    assert found["option"] == f"--checkpoint-layers {found['value']}"
    assert measured_peak(*deep, *found["option"].split()) <= limit * 1.01
    fewer = ["--checkpoint-layers", str(found["value"] - 1)] if found["value"] > 1 else []
    assert measured_peak(*deep, *fewer) > limit * 0.99
    assert main(["profile", *deep, "--for", "1.2MB", "--find", "checkpointing"]) == 3
    out, err = capfd.readouterr()
    assert "no choice of layers fits (1 tried)" in out
    assert "no choice of recomputed layers makes it fit" in err
    assert main(["profile", *deep, "--for", "1GB", "--find", "checkpointing"]) == 0
    assert "nothing: the step already fits" in capfd.readouterr().out


def test_the_first_layers_alone_are_recomputed() -> None:
    """Of four layers three: three quarters of the layers' forward products, as counted in the run."""
    deep = [*(word for word in WORDS if word not in ("--layers", "2")), "--layers", "4", "--batch", "2"]
    flops = {}
    for number in (3, 4):
        rows = profiled(*deep, "--checkpoint-layers", str(number)).classes
        flops[number] = sum(
            row.flops or 0 for row in rows if row.phase == "recompute" and row.operator_class == "tensor_contraction"
        )
    assert flops[3] * 4 == flops[4] * 3 > 0


def test_not_even_one_sample_fits(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = [word for word in WORDS if word not in ("--optimizer", "adamw")]
    long = ("--inference", "--batch", "2", "--seq", "512", "--for", "1MiB", "--find", "batch")
    report = asked(capfd, *words, *long, code=3)
    assert report["limit"]["found"]["value"] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--find batch", "--find batch needs a limit"),
        ("--for 1GB --trace x.json", "leave out --trace x.json"),
        ("--for 1GB --fail-if 'time > 1ms'", "runs nothing - leave out --fail-if"),
        ("--for 1GB --no-trace", "leave out --no-trace"),
        ("--for 1GB --processes 2", "leave out --processes 2"),
        ("--for 1GB --suggest 3", "leave out --suggest 3"),
        ("--for 1GB --find batch --texts", "leave out --texts"),
        ("--for nothing", "neither a memory size nor a known device"),
    ],
)
def test_what_needs_a_run_is_refused(words: str, said: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", BERT, *shlex.split(words)]) == 2
    err = capfd.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("function", ["encoder", "sized"])
def test_the_largest_batch_of_a_function(function: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """By its argument `batch`, else by the first dimension of its inputs; both have the same peak."""
    (here / "models.py").write_text(CODE)
    words = (f"models.py:{function}", "--device", "cpu", "--for", "1.5MB", "--find", "batch")
    report = asked(capfd, *words)
    largest = report["limit"]["found"]["value"]
    assert largest > 4
    peaks = [
        measured_peak("models.py:sized", "--device", "cpu", "--optimizer", "adamw", "--batch", str(batch))
        for batch in (largest, largest + 1)
    ]
    assert peaks[0] <= 1_500_000 * 1.01
    assert peaks[1] > 1_500_000 * 0.99


def test_a_batch_that_a_function_does_not_take_is_refused(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "models.py").write_text(CODE)
    assert main(["profile", "models.py:encoder", "--device", "cpu", "--batch", "8"]) == 2
    assert "which creates its own inputs - give the function a `batch` parameter" in capfd.readouterr().err


def test_a_training_has_an_optimizer(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """AdamW where none is asked for, which the report says; the answer is for the GPU that was named."""
    words = [word for word in WORDS if word not in ("--optimizer", "adamw", "--device", "cpu")]
    report = asked(capfd, *words, "--for", "4GB")
    assert report["workload"]["optimizer"] == "adamw"
    assert report["limit"]["assumed"][0] == "the optimizer AdamW"
    assert report["environment"]["device_kind"] == "cuda"
    named = asked(capfd, *words, "--for", "4GB", "--optimizer", "sgd")
    assert not any("optimizer" in text for text in named["limit"]["assumed"])
    inference = asked(capfd, *words, "--for", "L4", "--inference")
    assert inference["workload"]["optimizer"] is None
    assert inference["limit"]["capability"] == [8, 9]


def test_the_cpu_is_a_device_too(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = [word for word in WORDS if word not in ("--device", "cpu")]
    report = asked(capfd, *words, "--batch", "4", "--for", "cpu")
    assert report["environment"]["device_kind"] == "cpu"
    assert report["rows"][0]["predicted"]["occupied"] is None
    assert report["rows"][0]["predicted"]["peak_bytes"] == pytest.approx(
        measured_peak(*WORDS, "--batch", "4"), rel=0.02
    )


@pytest.mark.parametrize(("name", "options"), [("encoder", {}), ("encoder", {"amp": "bf16"}), ("made", {})])
def test_copied_layers_and_workspaces_are_in_the_predicted_peak(name: str, options: dict[str, str], here: Path) -> None:
    (here / "models.py").write_text(CODE)
    words = [word for key, value in options.items() for word in (f"--{key}", value)]
    peak = measured_peak(f"models.py:{name}", "--device", "cpu", "--optimizer", "adamw", *words)
    sampling = Sampling("cpu")
    step = simulate(on_cpu(model=f"models.py:{name}", optimizer="adamw", memory=True, **options), sampling)
    assert memory_of_observations(step.memory).peak_bytes == pytest.approx(peak, rel=0.005)
    if name == "made":  # not by what tensors without values show
        bare = simulate(on_cpu(model="models.py:made", optimizer="adamw", memory=True))
        assert (memory_of_observations(bare.memory).peak_bytes or 0) < 0.1 * peak
    if options:
        products = [key for key in sampling.times if key[0] in ("aten::mm", "aten::addmm")]
        assert any(tensor[0] == "bfloat16" for key in products for tensor in key[1])
