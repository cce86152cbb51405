"""Every architecture of the catalog, forward and backward: bytes as observed, FLOPs of contractions as torch's."""

from __future__ import annotations

import warnings
from collections import Counter

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from opanatomy.capture.model.workload import prepare
from opanatomy.capture.silence import quiet_libraries
from opanatomy.cost.registry import cost
from tests.observer import Call, Observer, Tally, compare
from tests.tiny import DISTINCT, tiny_request

#: torch 2.13 counts these wrongly: `groups` of a convolution backward.
TORCH_WRONG = {"aten::convolution_backward"}

VARIANTS = {
    "eager": {"attention": "eager"},
    "sdpa": {"attention": "sdpa"},
    "eager bfloat16": {"attention": "eager", "dtype": "bfloat16"},
    "sdpa bfloat16": {"attention": "sdpa", "dtype": "bfloat16"},
    "autocast": {},
    "checkpointing": {"checkpointing": "non-reentrant"},
}
FOUR = ("eager", "sdpa", "eager bfloat16", "sdpa bfloat16")
#: These choose no attention: they have none, or one of their own.
OWN_ATTENTION = ("deberta", "mamba", "resnet")
#: These have calls whose results are as large as the data say: a time mask, CTC lengths, whether any label is padded.
SIZES_OF_DATA = ("facebook/wav2vec2-base-960h", "microsoft/deberta-v3-base")


def step(name: str, variant: str) -> tuple[list[Call], Counter[str]]:
    """One step of the tiny model: what the observer saw, and torch's FLOPs by operator."""
    options = dict(VARIANTS[variant])
    if any(word in name for word in OWN_ATTENTION):
        options.pop("attention", None)
    prepared = prepare(tiny_request(name, **options))
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=variant == "autocast")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings(), quiet_libraries():
        warnings.simplefilter("ignore")
        assert isinstance(prepared.inputs, dict)
        with FlopCounterMode(display=False) as counter, Observer() as observer, autocast:
            prepared.module(**prepared.inputs).loss.backward()
    torch.set_num_threads(threads)
    flops = counter.get_flop_counts()["Global"]
    return observer.calls, Counter({f"aten::{str(op).split('.')[-1]}": count for op, count in flops.items()})


def on_cpu(calls: list[Call]) -> Tally:
    return compare(calls, lambda operator, signature: cost(operator, signature, "cpu"))


def check(name: str, variant: str) -> Tally:
    """Every call has the bytes of its tensors; contractions are torch's."""
    calls, theirs = step(name, variant)
    tally = on_cpu(calls)
    assert not {**tally.other, **tally.without}, tally.samples
    ours: Counter[str] = Counter()
    for call in calls:
        found = cost(call.operator, call.signature, "cpu")
        ours[call.operator] += found.flops if found else 0
    for operator, flops in theirs.items():
        if operator not in TORCH_WRONG:
            assert ours[operator] == flops, operator
    return tally


@pytest.mark.parametrize("name", DISTINCT)
def test_every_call_of_a_step(name: str) -> None:
    tally = Tally()
    for variant in FOUR[::2] if any(word in name for word in OWN_ATTENTION) else FOUR:
        tally += check(name, variant)
    print(f"{name}: {tally.equal} of {tally.calls} calls equal, {100 * tally.share:.2f} %")
    assert tally.calls > 250
    assert (tally.by_values > 0) == (name in SIZES_OF_DATA), tally


@pytest.mark.parametrize("name", DISTINCT)
def test_every_call_under_autocast(name: str) -> None:
    assert check(name, "autocast").calls > 100


@pytest.mark.parametrize("name", ["google-bert/bert-base-uncased", "Qwen/Qwen3-0.6B"])
def test_every_call_with_checkpointing(name: str) -> None:
    assert check(name, "checkpointing").calls > 100


def test_statistics_are_those_of_an_accelerator_unless_it_is_the_cpu() -> None:
    calls, _ = step("google-bert/bert-base-uncased", "sdpa bfloat16")
    norm = next(call for call in calls if call.operator == "aten::native_layer_norm")
    here, there = cost(norm.operator, norm.signature, "cpu"), cost(norm.operator, norm.signature)
    assert here is not None
    assert there is not None
    assert norm.equals(here)
    rows = norm.signature.tensor(0).numel // norm.signature.tensor(0).shape[-1]
    assert there.written_bytes - here.written_bytes == 2 * rows * (4 - 2)
