"""Every architecture of the catalog, forward and backward: the bytes of every call as observed.

Their FLOPs are next to torch's in tests/cost/test_catalog_anatomy.py.
"""

from __future__ import annotations

import warnings

import pytest
import torch

from opanatomy.capture.model.workload import prepare
from opanatomy.capture.silence import quiet_libraries
from opanatomy.cost.registry import cost
from tests.support.observer import Call, Observer, Tally, compare
from tests.support.tiny import DISTINCT, NO_SDPA, one_thread, tiny_request

BERT = "google-bert/bert-base-uncased"
#: These have calls whose results are as large as the data say: a time mask, CTC lengths, whether any label is padded.
SIZES_OF_DATA = ("facebook/wav2vec2-base-960h", "microsoft/deberta-v3-base")


def step(name: str, *, autocast: bool = False, **options: str) -> list[Call]:
    """The calls of one step of the tiny model."""
    prepared = prepare(tiny_request(name, **options))
    with warnings.catch_warnings(), quiet_libraries(), one_thread():
        warnings.simplefilter("ignore")
        assert isinstance(prepared.inputs, dict)
        with Observer() as observer, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            prepared.module(**prepared.inputs).loss.backward()
    return observer.calls


def check(calls: list[Call]) -> Tally:
    """Every call has the bytes of its tensors."""
    tally = compare(calls, lambda operator, signature: cost(operator, signature, "cpu"))
    assert not {**tally.other, **tally.without}, tally.samples
    return tally


@pytest.mark.parametrize("name", DISTINCT)
def test_every_call_of_a_step(name: str) -> None:
    tally = Tally()
    # some have no attention to choose, or one of their own
    for attention in (
        ({},) if any(word in name for word in NO_SDPA) else ({"attention": "eager"}, {"attention": "sdpa"})
    ):
        for dtype in ("float32", "bfloat16"):
            tally += check(step(name, dtype=dtype, **attention))
    assert tally.calls > 250
    assert (tally.by_values > 0) == (name in SIZES_OF_DATA), tally


@pytest.mark.parametrize("name", DISTINCT)
def test_every_call_under_autocast(name: str) -> None:
    assert check(step(name, autocast=True)).calls > 100


@pytest.mark.parametrize("name", [BERT, "Qwen/Qwen3-0.6B"])
def test_every_call_with_checkpointing(name: str) -> None:
    assert check(step(name, checkpointing="non-reentrant")).calls > 100


def test_statistics_are_those_of_an_accelerator_unless_it_is_the_cpu() -> None:
    calls = step(BERT, attention="sdpa", dtype="bfloat16")
    norm = next(call for call in calls if call.operator == "aten::native_layer_norm")
    here, there = cost(norm.operator, norm.signature, "cpu"), cost(norm.operator, norm.signature)
    assert here is not None
    assert there is not None
    assert norm.equals(here)
    rows = norm.signature.tensor(0).numel // norm.signature.tensor(0).shape[-1]
    assert there.written_bytes - here.written_bytes == 2 * rows * (4 - 2)
