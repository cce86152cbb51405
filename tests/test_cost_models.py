"""Every architecture of the catalog, forward and backward: bytes as observed, FLOPs of contractions as torch's."""

from __future__ import annotations

import warnings
from collections import Counter

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from opanatomy.cost import cost
from tests.observer import READS_LESS, WRITES_OTHER, Observer
from tests.tiny import TINY, tiny_request

torch.set_num_threads(1)

#: Operators whose size is in the data, not in the shapes.
DATA_DEPENDENT = {
    "aten::nonzero": "how many elements are not 0",
    "aten::masked_select": "how many elements the mask keeps",
    "aten::index": "how many elements a boolean mask keeps",
    "aten::index_put_": "how many elements a boolean mask keeps",
    "aten::_ctc_loss": "the longest target; a trace has the inner call with lengths as lists",
    "aten::_unique2": "how many elements differ",
}

#: torch 2.13 counts these wrongly: `groups` of a convolution backward.
TORCH_WRONG = {"aten::convolution_backward"}

VARIANTS = {
    "eager": {"attention": "eager"},
    "sdpa": {"attention": "sdpa"},
    "bfloat16": {"dtype": "bfloat16"},
    "autocast": {},
    "checkpointing": {"checkpointing": "non-reentrant"},
}


def _run(name: str, variant: str) -> tuple[Observer, Counter[str]]:
    """One step of the tiny model: what the observer saw, and torch's FLOPs by operator."""
    from opanatomy.capture.workload import prepare

    prepared = prepare(tiny_request(name, **VARIANTS[variant]))
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=variant == "autocast")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert isinstance(prepared.inputs, dict)
        with FlopCounterMode(display=False) as counter, Observer() as observer, autocast:
            prepared.module(**prepared.inputs).loss.backward()
    flops = counter.get_flop_counts()["Global"]
    return observer, Counter({f"aten::{str(op).split('.')[-1]}": count for op, count in flops.items()})


def _check(name: str, variant: str) -> None:
    observer, theirs = _run(name, variant)
    ours: Counter[str] = Counter()
    for call in observer.calls:
        found = cost(call.operator, call.signature)
        text = f"{call.operator}({call.signature})"
        if found is None:
            assert call.operator in DATA_DEPENDENT, text
            continue
        ours[call.operator] += found.flops
        if call.operator in READS_LESS:
            assert found.read_bytes <= call.read_bytes, text
        else:
            assert found.read_bytes == call.read_bytes, text
        if call.operator not in WRITES_OTHER:
            assert found.written_bytes == call.written_bytes, text
    for operator, flops in theirs.items():
        if operator not in TORCH_WRONG:
            assert ours[operator] == flops, operator


@pytest.mark.parametrize("variant", ["eager", "autocast"])
@pytest.mark.parametrize("name", TINY)
def test_every_operator_of_a_step(name: str, variant: str) -> None:
    _check(name, variant)


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("google-bert/bert-base-uncased", "sdpa"),
        ("google-bert/bert-base-uncased", "bfloat16"),
        ("google-bert/bert-base-uncased", "checkpointing"),
        ("Qwen/Qwen3-0.6B", "sdpa"),
        ("mistralai/Mixtral-8x7B-v0.1", "bfloat16"),
        ("microsoft/resnet-50", "bfloat16"),
        ("openai/whisper-small", "sdpa"),
    ],
)
def test_other_ways_to_run_it(name: str, variant: str) -> None:
    _check(name, variant)
