"""Closed formulas of memory: worked examples, and what a step on this machine really keeps."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from opanatomy.capture.step.shape import shape_of
from opanatomy.memory.theory import (
    activation_terms,
    is_published,
    needed_bytes,
    published_run,
    savings_of,
    state_theory,
    with_theory,
)
from opanatomy.records.memory import Memory, MemoryComponent, MemoryFailure, ModelShape
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import Workload
from tests.test_memory_live import BERT, GPT2, LLAMA, seen
from tests.tiny import TINY

LARGE = ModelShape(
    kind="bert", layers=24, hidden=1024, heads=16, intermediate=4096, vocabulary=30522, key_value_heads=16,
    head_size=64, head="language_model", mask_bytes=1, dropout=0.1, attention_dropout=0.1,
)  # fmt: skip


def workload(**changes: Any) -> Workload:
    values: dict[str, Any] = {
        "model": "google-bert/bert-large-uncased", "parameters": 335_174_458, "trainable_parameters": 335_174_458,
        "batch": 4, "sequence_length": 512, "dtype": "float32", "attention": "eager", "optimizer": "adamw",
    }  # fmt: skip
    return Workload(**{**values, **changes})


def of(terms: Any, *words: str) -> int:
    return sum(term.bytes for term in terms if any(word in term.term for word in words))


PER_LAYER = ("attention, normalizations", "feed-forward", "attention probabilities")


@pytest.mark.parametrize(("dtype", "e"), [("float32", 4), ("bfloat16", 2)])
def test_a_layer_of_bert_is_the_formula_of_the_literature(dtype: str, e: int) -> None:
    s, b, h, a, m = 512, 4, 1024, 16, 1
    terms = activation_terms(LARGE, workload(dtype=dtype))
    layer = s * b * h * (16 * e + 2 * m) + a * s * s * b * (2 * e + m)
    assert of(terms, *PER_LAYER) == 24 * layer
    if e == 2:
        assert layer == s * b * h * (34 + 5 * a * s / h)


def test_fused_attention_has_no_matrix() -> None:
    terms = activation_terms(LARGE, workload(attention="sdpa"))
    assert of(terms, "attention probabilities") == 0
    assert of(terms, "logsumexp") == 24 * 16 * 512 * 4 * 4


@pytest.mark.parametrize(
    "changes",
    [{"inference": True}, {"checkpointing": "reentrant"}, {"compiled": True}, {"trainable_parameters": 5},
     {"attention": "flash_attention_3"}, {"sequence_length": None}],
)  # fmt: skip
def test_no_formula_is_no_figure(changes: dict[str, Any]) -> None:
    assert activation_terms(LARGE, workload(**changes)) == ()
    assert activation_terms(None, workload()) == ()


@pytest.mark.parametrize(
    ("changes", "each"),
    [({}, 16.0), ({"optimizer": "sgd"}, 12.0), ({"optimizer": "adamw8bit"}, 10.03125), ({"optimizer": None}, 8.0),
     ({"dtype": "bfloat16"}, 8.0), ({"amp": "bf16"}, 16.0), ({"inference": True}, 4.0)],
)  # fmt: skip
def test_bytes_a_parameter(changes: dict[str, Any], each: float) -> None:
    total = sum(row.theory_bytes or 0 for row in state_theory(workload(**changes)))
    assert total == pytest.approx(each * 335_174_458, abs=1)


def test_what_is_unknown_of_an_optimizer_is_left_out() -> None:
    assert [row.component for row in state_theory(workload(optimizer="adafactor"))] == ["weights", "gradients"]
    assert state_theory(Workload()) == ()


SIZES = {
    BERT: {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512, "max_position_embeddings": 128},
    GPT2: {"n_embd": 128, "n_head": 4, "n_positions": 128},
    LLAMA: {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96},
}
RUNS = [
    *((name, {"attention": "eager", **more}) for name in (BERT, GPT2) for more in (
        {}, {"dtype": "bfloat16"}, {"amp": "bf16"}, {"seq": 64, "batch": 3, "wider": True},
        {"seq": 64, "batch": 3, "wider": True, "dtype": "bfloat16"},
    )),
    *((name, {"attention": "sdpa", **more}) for name in (BERT, GPT2) for more in (
        {}, {"dtype": "bfloat16"}, {"amp": "bf16"}, {"dropless": True},
    )),
    (BERT, {"attention": "eager", "task": "sequence-classification", "seq": 64, "wider": True}),
    (LLAMA, {"attention": "sdpa"}),
    (LLAMA, {"attention": "sdpa", "dtype": "bfloat16"}),
    (LLAMA, {"attention": "sdpa", "wider": True, "batch": 3}),
    *((name, {"attention": "sdpa", "dtype": "float64", **more}) for name in (BERT, GPT2) for more in (
        {}, {"dropless": True}, {"wider": True, "seq": 64},
    )),
    *((name, {"attention": "eager", "dtype": "float64"}) for name in (BERT, GPT2)),
    (LLAMA, {"attention": "sdpa", "dtype": "float64"}),
]  # fmt: skip
NO_DROPOUT = {
    BERT: {"attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0},
    GPT2: {"attn_pdrop": 0, "resid_pdrop": 0, "embd_pdrop": 0},
}


@pytest.mark.parametrize(("name", "request_"), RUNS)
def test_formulas_are_within_one_percent_of_what_is_kept(name: str, request_: dict[str, Any]) -> None:
    options = dict(request_)
    more = {**(SIZES[name] if options.pop("wider", False) else {})}
    more |= NO_DROPOUT[name] if options.pop("dropless", False) else {}
    settings = (*TINY[name], *((key, str(value)) for key, value in more.items()))
    one = seen(name, settings=settings, **options)
    module = one.prepared.module
    parameters = sum(parameter.numel() for parameter in module.parameters())
    ran = Workload(
        parameters=parameters, trainable_parameters=parameters, batch=one.prepared.batch,
        sequence_length=one.prepared.sequence_length, dtype=str(next(module.parameters()).dtype).removeprefix("torch."),
        amp=options.get("amp"), attention=one.prepared.attention, optimizer="adamw",
    )  # fmt: skip
    terms = activation_terms(shape_of(module, "cpu"), ran)
    assert sum(term.bytes for term in terms) == pytest.approx(one.component("forward_activations"), rel=0.01)
    assert all(term.bytes > 0 for term in terms)
    for row in with_theory(one.memory, ran).components:
        if row.component in ("weights", "gradients", "optimizer_state"):
            assert row.theory_bytes == row.measured_bytes


def test_techniques_are_sorted_by_what_they_save() -> None:
    need = needed_bytes(LARGE, workload())
    assert need is not None
    failure = MemoryFailure(
        phase=Phase.FORWARD, message="", requested_bytes=10**9, allocated_bytes=need - 3 * 10**9, seen=True
    )
    rows = savings_of(LARGE, workload(), Memory(failure=failure))
    assert rows[0].option == "--checkpointing"
    assert [row.saved_bytes for row in rows] == sorted((row.saved_bytes for row in rows), reverse=True)
    assert all(row.saved_bytes + row.needed_bytes == need for row in rows)
    assert {row.option: row.fits for row in rows}["--checkpointing"] is True
    eight = next(row for row in rows if row.option == "--optimizer adamw8bit")
    assert eight.saved_bytes == pytest.approx(335_174_458 * (8 - 2.03125), abs=1)
    assert savings_of(None, workload(), Memory(failure=failure)) == ()


def test_embeddings_keep_two_statistics_a_token_and_their_ids() -> None:
    b, s = 4, 512
    assert of(activation_terms(LARGE, workload()), "embedding normalization and ids") == s * b * 2 * 4 + s * 8


@pytest.mark.parametrize(
    ("batch", "parts", "option"),
    [
        (1, 1, []), (2, 1, ["--accumulate 2"]), (3, 1, ["--accumulate 3"]), (8, 2, ["--accumulate 4"]), (2, 2, []),
        (9, 9, []),
    ],
)  # fmt: skip
def test_a_batch_is_cut_while_it_can_be(batch: int, parts: int, option: list[str]) -> None:
    failure = MemoryFailure(phase=Phase.FORWARD, message="", requested_bytes=1, allocated_bytes=1)
    ran = replace(workload(), batch=batch, accumulate=parts)
    rows = savings_of(LARGE, ran, Memory(failure=failure))
    assert [row.option for row in rows if row.option.startswith(("--batch", "--accumulate"))] == option


@pytest.mark.parametrize("source", ["catalog", "object"])
def test_in_the_optimizer_only_less_state_helps(source: str) -> None:
    failure = MemoryFailure(phase=Phase.OPTIMIZER, message="", requested_bytes=1, allocated_bytes=4_000_000_000)
    ran = replace(workload(), model_source=source)
    rows = savings_of(None, ran, Memory(failure=failure))
    trained = ran.trainable_parameters
    assert trained is not None
    saved = {row.option: row.saved_bytes for row in rows}
    flags = {
        "--dtype bfloat16": 8 * trained, "--optimizer adafactor": 8 * trained, "--optimizer sgd": 4 * trained,
        "--optimizer adamw8bit": 16 * trained - 8 * trained - round(2.03125 * trained),
    }  # fmt: skip
    named = {
        "module.to(torch.bfloat16)": "--dtype bfloat16", 'optimizer="adafactor"': "--optimizer adafactor",
        'optimizer="sgd"': "--optimizer sgd", 'optimizer="adamw8bit"': "--optimizer adamw8bit",
    }  # fmt: skip
    assert {named.get(option, option): size for option, size in saved.items()} == flags
    assert set(saved) == set(named if source == "object" else flags)
    assert {row.option: row.fits for row in rows if "adafactor" in row.option}.popitem()[1] is True


def test_the_classic_run_is_set_beside_its_published_figures() -> None:
    memory = Memory(
        peak_bytes=14_000_000_000,
        components=(
            MemoryComponent(component="weights", measured_bytes=1_340_000_000),
            MemoryComponent(component="device_context", measured_bytes=500_000_000),
            MemoryComponent(component="allocator_cache", measured_bytes=100_000_000),
        ),
    )
    rows = {row.figure: (row.published, row.measured) for row in published_run(memory, workload(), 20.0, on_cpu=False)}
    assert rows == {
        "device context and kernels": (1343, 500.0),
        "weights": (1288, 1340.0),
        "gradients, optimizer state, activations, buffers, cache": (12318, 12760.0),
        "training, all of the device": (14949, 14600.0),
        "samples per second": (8.86, 20.0),
    }
    assert published_run(memory, workload(batch=8), 20.0, on_cpu=False) == ()
    assert not is_published(workload(changes=("--layers 2",)))
    assert published_run(Memory(), workload(), None, on_cpu=True)[0].measured is None


def _classic(*, on_cpu: bool, **components: int) -> dict[str, float | None]:
    rows = tuple(MemoryComponent(component=name, measured_bytes=size) for name, size in components.items())
    memory = Memory(peak_bytes=14_000_000_000, components=rows)
    return {row.figure: row.measured for row in published_run(memory, workload(), None, on_cpu=on_cpu)}


def test_a_sum_with_a_part_that_is_not_known_is_not_known() -> None:
    """Before, a cache that nobody measured counted as 0 B: 14,500 MB of the whole device."""
    figures = _classic(on_cpu=False, weights=1_340_000_000, device_context=500_000_000)
    assert figures["training, all of the device"] is None
    assert figures["gradients, optimizer state, activations, buffers, cache"] is None
    figures = _classic(on_cpu=False, weights=1_340_000_000, allocator_cache=100_000_000)
    assert figures["training, all of the device"] is None
    # The CPU has no cache, and no context.
    figures = _classic(on_cpu=True, weights=1_340_000_000)
    assert figures["gradients, optimizer state, activations, buffers, cache"] == 12_660.0
    assert figures["training, all of the device"] is None
