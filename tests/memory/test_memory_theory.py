"""Closed formulas of memory by worked examples; `test_memory_live.py` sets them next to what a step really keeps."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from opanatomy.memory.theory import activation_terms, needed_bytes, published_run, savings_of, state_theory
from opanatomy.records.memory import Memory, MemoryComponent, MemoryFailure, ModelShape
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import Workload
from opanatomy.report import terminal_report
from tests.support import anatomies

LARGE = ModelShape(
    kind="bert",
    layers=24,
    hidden=1024,
    heads=16,
    intermediate=4096,
    vocabulary=30522,
    key_value_heads=16,
    head_size=64,
    head="language_model",
    mask_bytes=1,
    dropout=0.1,
    attention_dropout=0.1,
)
PARAMETERS = 335_174_458
FULL = MemoryFailure(phase=Phase.FORWARD, message="", requested_bytes=10**9, allocated_bytes=10**9, seen=True)


def workload(**changes: Any) -> Workload:
    values: dict[str, Any] = {
        "model": "google-bert/bert-large-uncased", "parameters": PARAMETERS, "trainable_parameters": PARAMETERS,
        "batch": 4, "sequence_length": 512, "dtype": "float32", "attention": "eager", "optimizer": "adamw",
    }  # fmt: skip
    return Workload(**{**values, **changes})


def of(terms: Any, *words: str) -> int:
    return sum(term.bytes for term in terms if any(word in term.term for word in words))


@pytest.mark.parametrize(("dtype", "e"), [("float32", 4), ("bfloat16", 2)])
def test_a_layer_of_bert_is_the_formula_of_the_literature(dtype: str, e: int) -> None:
    s, b, h, a, m = 512, 4, 1024, 16, 1
    terms = activation_terms(LARGE, workload(dtype=dtype))
    layer = s * b * h * (16 * e + 2 * m) + a * s * s * b * (2 * e + m)
    assert of(terms, "attention, normalizations", "feed-forward", "attention probabilities") == 24 * layer
    assert e == 4 or layer == s * b * h * (34 + 5 * a * s / h)
    assert e == 2 or of(terms, "embedding normalization and ids") == s * b * 2 * 4 + s * 8


def test_fused_attention_has_no_matrix() -> None:
    terms = activation_terms(LARGE, workload(attention="sdpa"))
    assert of(terms, "attention probabilities") == 0
    assert of(terms, "logsumexp") == 24 * 16 * 512 * 4 * 4


@pytest.mark.parametrize(
    "changes",
    [
        {"inference": True},
        {"checkpointing": "reentrant"},
        {"compiled": True},
        {"trainable_parameters": 5},
        {"attention": "flash_attention_3"},
        {"sequence_length": None},
    ],
)
def test_no_formula_is_no_figure(changes: dict[str, Any]) -> None:
    assert activation_terms(LARGE, workload(**changes)) == ()


@pytest.mark.parametrize(
    ("changes", "each"),
    [
        ({}, 16.0),
        ({"optimizer": "sgd"}, 12.0),
        ({"optimizer": "adamw8bit"}, 10.03125),
        ({"optimizer": None}, 8.0),
        ({"dtype": "bfloat16"}, 8.0),
        ({"amp": "bf16"}, 16.0),
        ({"inference": True}, 4.0),
        ({"optimizer": "adafactor"}, 8.0),
    ],
)
def test_bytes_a_parameter(changes: dict[str, Any], each: float) -> None:
    total = sum(row.theory_bytes or 0 for row in state_theory(workload(**changes)))
    assert total == pytest.approx(each * PARAMETERS, abs=1)


# ------------------------------------------------------------------------------------------ a step that does not fit


def test_techniques_are_sorted_by_what_they_save() -> None:
    need = needed_bytes(LARGE, workload())
    assert need is not None
    rows = savings_of(LARGE, workload(), Memory(failure=replace(FULL, allocated_bytes=need - 3 * 10**9)))
    assert (rows[0].tries, rows[0].fits) == (("--checkpointing",), True)
    assert [row.gain_bytes for row in rows] == sorted((row.gain_bytes or 0 for row in rows), reverse=True)
    assert all((row.gain_bytes or 0) + int(row.figures["after"].value) == need for row in rows)
    eight = next(row for row in rows if row.tries == ("--optimizer adamw8bit",))
    assert eight.gain_bytes == pytest.approx(PARAMETERS * (8 - 2.03125), abs=1)


@pytest.mark.parametrize(
    ("batch", "parts", "option"),
    [(1, 1, []), (3, 1, ["--accumulate 3"]), (8, 2, ["--accumulate 4"]), (2, 2, [])],
)
def test_a_batch_is_cut_while_it_can_be(batch: int, parts: int, option: list[str]) -> None:
    rows = savings_of(LARGE, workload(batch=batch, accumulate=parts), Memory(failure=FULL))
    assert [row.tries[0] for row in rows if row.tries[0].startswith(("--batch", "--accumulate"))] == option


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("catalog", ("--dtype bfloat16", "--optimizer adafactor", "--optimizer sgd", "--optimizer adamw8bit")),
        ("object", ("module.to(torch.bfloat16)", 'optimizer="adafactor"', 'optimizer="sgd"', 'optimizer="adamw8bit"')),
    ],
)
def test_in_the_optimizer_only_less_state_helps(source: str, options: tuple[str, ...]) -> None:
    failure = replace(FULL, phase=Phase.OPTIMIZER, allocated_bytes=4 * 10**9)
    rows = savings_of(None, workload(model_source=source), Memory(failure=failure))
    eight = 8 * PARAMETERS - round(2.03125 * PARAMETERS)
    saved = (8 * PARAMETERS, 8 * PARAMETERS, 4 * PARAMETERS, eight)
    assert {row.tries[0]: row.gain_bytes for row in rows} == dict(zip(options, saved, strict=True))


# ---------------------------------------------------------------------------------------------- the published run


def classic(**components: int) -> dict[str, tuple[float, float | None]]:
    rows = tuple(MemoryComponent(component=name, measured_bytes=size * 10**6) for name, size in components.items())
    memory = Memory(peak_bytes=14_000 * 10**6, components=rows)
    return {row.figure: (row.published, row.measured) for row in published_run(memory, workload(), 20.0, on_cpu=False)}


def test_the_classic_run_is_set_next_to_its_published_figures() -> None:
    """A sum with a part that is unknown is unknown."""
    rest, whole = "gradients, optimizer state, activations, buffers, cache", "training, entire device"
    figures = classic(weights=1_340, device_context=500, allocator_cache=100)
    assert figures == {
        "device context and kernels": (1343, 500.0),
        "weights": (1288, 1340.0),
        rest: (12318, 12760.0),
        whole: (14949, 14600.0),
        "samples per second": (8.86, 20.0),
    }
    without_cache = classic(weights=1_340, device_context=500)
    assert (without_cache[rest][1], without_cache[whole][1]) == (None, None)
    assert published_run(Memory(), workload(batch=8), 20.0, on_cpu=False) == ()
    assert published_run(Memory(), workload(changes=("--layers 2",)), 20.0, on_cpu=False) == ()
    rows = published_run(Memory(peak_bytes=1), workload(), None, on_cpu=True)
    page = terminal_report(replace(anatomies.nothing(), memory=Memory(peak_bytes=1, published=rows)), width=80)
    assert "the classic run" in page
