"""`estimate --devices N`: the collectives and the memory of a rank, next to runs of real ranks and to sums by hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from opanatomy.__main__ import main
from opanatomy.capture.distributed.training import cut
from opanatomy.errors import UsageError
from opanatomy.options import RunOptions
from opanatomy.predict.estimate import collectives_of, estimated_on, link_of, sheet_limit
from opanatomy.predict.fit import gpu_of
from opanatomy.predict.workers import simulate_in_process
from opanatomy.records.experiment import SimulatedStep
from tests.support import command
from tests.support.tiny import TINY, TINY_SEQ

GPT2, LLAMA = "openai-community/gpt2", "meta-llama/Llama-3.1-8B"
H100 = sheet_limit("H100")


def followed(model: str, ranks: int, **options: Any) -> SimulatedStep:
    """Return the step of one of so many ranks on H100s."""
    settings = tuple((name, "2") if name == "num_key_value_heads" else (name, value) for name, value in TINY[model])
    run = RunOptions(model=model, settings=settings, batch=2, seq=TINY_SEQ[model], optimizer="adamw", **options)
    step = next(simulate_in_process([replace(run, device="cpu")], gpu=replace(gpu_of(H100), ranks=ranks))).step
    assert not isinstance(step, str), step
    return step


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_collectives_are_those_of_two_real_ranks(parallel: str, here: Path) -> None:
    """Accelerate's ranks on two processes: as many calls of each collective, as many bytes."""
    words = [word for pair in TINY[GPT2] for word in ("--set", "=".join(pair))]
    words += ["--batch", "2", "--seq", "16", "--optimizer", "adamw", "--parallel", parallel, "--processes", "2"]
    words += ["--device", "cpu", "--no-trace", "--suggest", "0", "-f", "json"]
    done = command.run("profile", GPT2, *words, cwd=here, timeout=280)
    assert done.returncode == 0, done.stderr
    recorded = json.loads(done.stdout)["collectives"]
    of_two = {row["collective"]: (row["calls"], row["bytes"]) for row in recorded}
    rows = collectives_of(followed(GPT2, 2, parallel=parallel))
    assert {row.collective: (2 * row.calls, 2 * (row.bytes or 0)) for row in rows} == of_two


@pytest.mark.skipif(not hasattr(PreTrainedModel, "_resolve_parallel_plans"), reason="needs transformers 5.23")
def test_cut_layers_add_up_after_attention_and_after_the_inner_layer() -> None:
    """Forward once for the embedding and twice a layer, each of batch x length x width float32 numbers."""
    step = followed(LLAMA, 2, parallel="tp")
    reduced = [call for call in step.calls if call.operator == "_c10d_functional::all_reduce"]
    assert sum(call.calls for call in reduced if call.phase == "forward") == 1 + 2 * 2
    sizes = {call.signature.tensor(0).bytes for call in reduced}
    assert sizes == {2 * 16 * 32 * 4}
    products = [
        sum(call.calls for call in each.calls if call.operator == "aten::mm" and call.phase == "forward")
        for each in (step, followed(LLAMA, 1))
    ]
    assert products[0] == products[1]


def test_an_older_transformers_cannot_cut_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a model's plan, but no public or private way to resolve it."""
    for owner in PreTrainedModel.__mro__:
        if "_resolve_parallel_plans" in vars(owner):
            monkeypatch.delattr(owner, "_resolve_parallel_plans")
    small = LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=8)
    ranks: Any = SimpleNamespace(state=None, num_processes=2)
    with pytest.raises(UsageError, match=r"^parallel='tp' needs transformers 5.23 or later"):
        cut(LlamaForCausalLM(small), ranks)


def test_shards_hold_their_part() -> None:
    """Weights and the optimizer's state of four ranks together are those of one; copies hold all."""
    alone, shards, copies = (
        followed(GPT2, ranks, parallel=kind) for ranks, kind in ((1, None), (4, "fsdp2"), (4, "ddp"))
    )
    assert alone.memory.parameter_bytes == copies.memory.parameter_bytes
    whole = alone.memory.parameter_bytes
    assert 4 * _left(shards) == pytest.approx(_left(alone), rel=0.25)  # in blocks of 512 bytes
    assert _left(copies) >= _left(alone) + whole  # and the buckets


def _left(step: SimulatedStep) -> int:
    """Return what is allocated when the step is over."""
    held: dict[int, int] = {}
    for address, size in step.requests:
        if address >= 0 and size:
            held[address] = size
        elif address >= 0:
            held.pop(address, None)
    return sum(held.values())


def test_the_range_has_all_hidden_and_none_hidden() -> None:
    step = followed(GPT2, 8, parallel="ddp")
    fast, slow = (estimated_on(step, H100, link=rate) for rate in (1e15, 1e6))
    gradient = sum(row.bytes or 0 for row in collectives_of(step))
    assert slow.transfer_ns == pytest.approx(2 * 7 / 8 * gradient / 1e6 / 0.8 * 1e9, rel=1e-6)
    assert fast.as_is_ns == estimated_on(step, H100).as_is_ns
    assert slow.low_ns <= slow.transfer_ns <= slow.high_ns
    assert slow.samples == 16


@pytest.mark.parametrize(
    ("link", "device", "rate"),
    [
        (None, "H100", 450e9),
        ("nvlink", "A100", 300e9),
        ("pcie", "H100", 64e9),
        ("50G", "A10", 50e9),
        (None, "RTX 4090", 32e9),
    ],
)
def test_links(link: str | None, device: str, rate: float) -> None:
    assert link_of(link, sheet_limit(device)) == rate


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--parallel fsdp2", "needs several devices - add --devices 8"),
        ("--link nvlink", "needs several devices - add --devices 8"),
        ("--devices 4 --parallel hsdp", "--parallel hsdp cannot be estimated - use --parallel fsdp2"),
        ("--devices 4 --parallel pp", "--parallel pp: unknown"),
        ("--devices 4 --parallel ep", "--parallel ep: unknown"),
        ("--devices 4 --link banana", "--link banana: 'banana' is not a number"),
        ("--devices 3 --parallel tp", "num_attention_heads is 2, which is not a multiple of 3"),
    ],
)
def test_what_is_not_estimated_is_one_line(
    words: str, said: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = [word for pair in TINY[LLAMA] for word in ("--set", "=".join(pair))]
    assert main(["estimate", LLAMA, *settings, "--seq", "16", "--on", "H100", *words.split()]) in (1, 2)
    assert said in capfd.readouterr().err.strip().splitlines()[-1]


def test_gradients_of_two_types_are_reduced_apart(here: Path) -> None:
    """Weights in bfloat16 and adapters in float32, as DDP has it: each bucket is of one type."""
    (here / "mixed.py").write_text(MIXED)
    run = RunOptions(model="mixed.py:made", optimizer="sgd", parallel="ddp", device="cpu")
    step = next(simulate_in_process([run], gpu=replace(gpu_of(H100), ranks=2))).step
    assert not isinstance(step, str), step
    made = {row.dtype: row.bytes for row in collectives_of(step)}
    assert made == {"float32": 64 * 64 * 4, "bfloat16": 64 * 64 * 2}


MIXED = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = torch.nn.Linear(64, 64, bias=False)
        self.narrow = torch.nn.Linear(64, 64, bias=False, dtype=torch.bfloat16)
    def forward(self, x):
        return self.narrow(self.wide(x).bfloat16()).float().sum()

def made():
    return Net(), (torch.randn(8, 64),)
"""
