"""What the guides say next to what was measured: which run has the figure of a claim, and why the two disagree."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from opanatomy.options import RunOptions
from opanatomy.predict.experiment import MeasuredRun, guide_rows
from opanatomy.records.experiment import GuideRow, StepFigures, Techniques
from opanatomy.report.formats import format_named
from opanatomy.report.section import Page
from tests.test_techniques import experiment_of

OPTIONS = RunOptions(model="m", optimizer="adamw", device="cpu")
MIXED, INFERENCE = "mixed precision training, AdamW", "mixed precision inference"


def measured(name: str, options: RunOptions = OPTIONS, **figures: Any) -> MeasuredRun:
    """A run of 1,000 parameters, all of them trained."""
    known = {
        "parameters": 1_000, "trainable_parameters": 1_000, "step_ns": 100e6, "low_ns": 99e6, "high_ns": 101e6,
        "samples": 8, "flops": {"forward": 100, "backward": 200},
        "components": {"weights": 4_000, "gradients": 4_000, "optimizer_state": 8_000}, **figures,
    }  # fmt: skip
    return MeasuredRun(name=name, options=options, figures=StepFigures(**known))


def rows_of(*runs: MeasuredRun) -> dict[str, GuideRow]:
    return {row.claim.claim: row for row in guide_rows(runs)}


BASELINE = measured("baseline")


def test_only_claims_that_a_run_has_a_figure_of_are_there() -> None:
    rows = rows_of(BASELINE)
    assert list(rows) == ["state of AdamW", "FLOPs of backward over forward"]
    assert all(row.agrees and row.measurement.reason is None for row in rows.values())
    forward_only = measured("baseline", RunOptions(model="m", inference=True, device="cpu"), flops={"forward": 100})
    assert rows_of(forward_only) == {}


def amp(casts: int | None = 1_000, **changes: Any) -> MeasuredRun:
    kept = {"weights": 4_000, "optimizer_state": 8_000, **({} if casts is None else {"autocast_weight_casts": casts})}
    options = replace(OPTIONS, amp="bf16", **changes.pop("options", {}))
    return measured("amp", options, **{"components": {**kept, "gradients": 4_000}, "at_peak": kept, **changes})


def test_the_bytes_of_mixed_precision_are_summed_and_what_is_missing_is_said() -> None:
    row = rows_of(BASELINE, amp())[MIXED]
    assert (row.claim.figure, row.measurement.technique, row.measurement.measured) == (18, "amp", 17.0)
    assert row.measurement.at_peak == 13.0
    assert row.measurement.parts == {
        "weights": 4.0, "autocast_weight_casts": 1.0, "gradients": 4.0, "optimizer_state": 8.0,
    }  # fmt: skip
    assert not row.agrees
    assert (row.measurement.reason or "").startswith("autocast had cast 50% of the parameters (1.00 bytes, not 2)")
    assert (row.measurement.reason or "").endswith("; at the peak 0% of the gradients are there")


def test_a_model_of_nothing_but_products_is_as_the_guide_says() -> None:
    row = rows_of(BASELINE, amp(casts=2_000))[MIXED]
    assert row.agrees
    assert (row.measurement.measured, row.measurement.reason) == (18.0, None)


def test_casts_that_nobody_saw_are_said() -> None:
    assert (rows_of(amp(casts=None))[MIXED].measurement.reason or "").startswith("no cast of a weight was seen")


@pytest.mark.parametrize(
    "changes",
    [{"trainable_parameters": 500}, {"options": {"optimizer": "sgd"}}, {"options": {"dtype": "bfloat16"}},
     {"options": {"checkpointing": "reentrant"}}, {"options": {"optimizer": "adamw8bit"}}, {"parameters": None}],
)  # fmt: skip
def test_a_run_of_another_kind_is_none_of_mixed_precision_with_adamw(changes: dict[str, Any]) -> None:
    assert MIXED not in rows_of(BASELINE, amp(**changes))


def test_casts_of_inference_are_those_at_the_peak() -> None:
    """When forward is done they are gone, and the fullest that was measured is nothing."""
    options = RunOptions(model="m", inference=True, amp="bf16", device="cpu")
    run = measured(
        "amp", options, components={"weights": 4_000, "autocast_weight_casts": 0},
        at_peak={"weights": 4_000, "autocast_weight_casts": 1_900},
    )  # fmt: skip
    row = rows_of(run)[INFERENCE]
    assert (row.measurement.measured, row.measurement.at_peak, row.agrees) == (5.9, 5.9, True)


def state_of(optimizer: str, state: int, **changes: Any) -> MeasuredRun:
    components = {"weights": 4_000, "gradients": 4_000, "optimizer_state": state}
    return measured(optimizer, replace(OPTIONS, optimizer=optimizer), components=components, **changes)


def test_states_are_of_what_is_trained() -> None:
    rows = rows_of(
        BASELINE, state_of("sgd", 1_000, trainable_parameters=250), state_of("adamw8bit", 2_070),
        state_of("adafactor", 20),
    )  # fmt: skip
    figures = {name: (row.measurement.measured, row.agrees) for name, row in rows.items()}
    assert figures["state of SGD with momentum"] == (4.0, True)
    assert figures["state of 8-bit AdamW"] == (2.07, True)
    assert figures["state of Adafactor"] == (0.02, False)
    assert "no first moment, which would be 4 bytes" in (rows["state of Adafactor"].measurement.reason or "")


def test_the_state_that_stays_in_32_bits_is_said() -> None:
    """Half at 8 bytes, half at two and the two scales of each 256: (8 + 2 + 8 / 256) / 2."""
    half = (8 + 2 + 8 / 256) / 2
    row = rows_of(BASELINE, state_of("adamw8bit", round(half * 1_000_000), trainable_parameters=1_000_000))
    assert (row["state of 8-bit AdamW"].measurement.reason or "").startswith("that of 50% of the parameters")


def checkpointed(step_ns: float, **changes: Any) -> MeasuredRun:
    return measured(
        "checkpointing", replace(OPTIONS, checkpointing="non-reentrant", **changes), step_ns=step_ns,
        low_ns=step_ns * 0.99, high_ns=step_ns * 1.01, flops={"forward": 100, "backward": 200, "recompute": 90},
    )  # fmt: skip


def test_checkpointing_is_held_against_its_share_of_time() -> None:
    claim = "longer with checkpointing"
    assert rows_of(BASELINE, checkpointed(120e6))[claim].agrees
    longer = rows_of(BASELINE, checkpointed(135e6))[claim].measurement
    assert longer.measured == pytest.approx(35.0)
    assert longer.reason == "forward runs again: +30% FLOPs"
    assert rows_of(BASELINE, checkpointed(100.5e6))[claim].measurement.reason == "the ranges of the repetitions overlap"
    assert claim not in rows_of(BASELINE, checkpointed(135e6, optimizer="sgd"))
    assert claim not in rows_of(checkpointed(135e6), checkpointed(135e6))


TEXTS = replace(OPTIONS, texts="sample")


def padded(padding: str | None, step_ns: float, tokens: int | None) -> MeasuredRun:
    return measured(
        padding or "baseline", replace(TEXTS, padding=padding), step_ns=step_ns, low_ns=step_ns, high_ns=step_ns,
        tokens=tokens,
    )  # fmt: skip


def test_dynamic_padding_is_held_against_padding_to_one_length() -> None:
    claim = "faster with dynamic padding"
    agrees = rows_of(padded(None, 140e6, 4_000), padded("longest", 100e6, 2_900))[claim]
    assert agrees.agrees
    assert agrees.measurement.measured == pytest.approx(40.0)
    faster = rows_of(padded("longest", 100e6, 1_000), padded("max-length", 250e6, 4_000))[claim].measurement
    assert faster.measured == pytest.approx(150.0)
    assert faster.reason == "of these texts 4,000 tokens with padding become 1,000, by a factor of 4.00"
    assert claim not in rows_of(padded(None, 140e6, 4_000), padded("sorted", 100e6, 2_900))
    assert claim not in rows_of(padded("longest", 140e6, 4_000))


def test_the_report_has_claim_figure_and_reason() -> None:
    report = replace(experiment_of(), guides=tuple(guide_rows([BASELINE, amp(), checkpointed(135e6)])))
    text = " ".join(format_named("terminal").write(report, Page(width=120)).split())
    assert f"{MIXED} 18 B 17 B 13 B amp" in text
    assert "weights 4.00, autocast weight casts 1.00, gradients 4.00, optimizer state 8.00; autocast had cast" in text
    assert "longer with checkpointing 20 % 35 % checkpointing" in text
    assert "longer with checkpointing: forward runs again: +30% FLOPs" in text
    assert "Hugging Face, Model training anatomy: mixed precision training, AdamW; state of AdamW" in text
    for width in (40, 60):
        narrow = format_named("terminal").write(report, Page(width=width))
        assert max(map(len, narrow.splitlines())) <= width
    assert msgspec.json.decode(format_named("json").write(report, Page()), type=Techniques) == report
