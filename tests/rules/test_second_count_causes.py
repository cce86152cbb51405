"""What explains differences between a trace's calls and a second count of them in the capture."""

from __future__ import annotations

from typing import Any

import pytest

from opanatomy.checks import counts
from opanatomy.checks.counts import Counts, Dispatched, Observed, cause_of_calls, cause_of_flops
from opanatomy.records.taxonomy import Phase

FORWARD, BACKWARD, OPTIMIZER = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER
COPIES = {("aten::clone", FORWARD): 24}


@pytest.mark.parametrize(
    ("name", "phase", "ours", "seen", "more", "cause"),
    [
        ("aten::zeros_like", OPTIMIZER, 0, 84, {"of_first_step": True}, counts.FIRST_STEP),
        ("aten::zeros_like", OPTIMIZER, 0, 84, {}, None),
        ("aten::copy", OPTIMIZER, 0, 3, {"of_first_step": True}, counts.FIRST_STEP),
        ("aten::copy", FORWARD, 0, 3, {"of_first_step": True}, None),
        ("aten::arange", FORWARD, 1, 2, {"of_first_step": True}, counts.FIRST_STEP),
        ("aten::arange", FORWARD, 2, 1, {"of_first_step": True}, None),
        ("aten::mul", FORWARD, 1, 2, {"of_first_step": True}, None),
        ("aten::mm", FORWARD, 1, 2, {"of_first_step": True}, None),
        ("aten::clone", FORWARD, 0, 20, {"inner_copies": COPIES}, counts.KEPT_COPY),
        ("aten::clone", FORWARD, 0, 25, {"inner_copies": COPIES}, None),
        ("aten::copy", BACKWARD, 5, 0, {"enclosed": 5}, counts.ENCLOSED),
        ("aten::copy", BACKWARD, 6, 0, {"enclosed": 5}, None),
        ("aten::clone", BACKWARD, 0, 1, {"watched": frozenset({"aten::_indices"})}, counts.COPIED_GRADIENT),
        ("aten::clone", BACKWARD, 0, 1, {}, None),
        ("aten::clone", FORWARD, 0, 1, {"watched": frozenset({"aten::_indices"})}, None),
        ("aten::mul", FORWARD, 2, 8, {"traced": frozenset({"fused_mul_ceil_add"})}, counts.SCRIPTED),
        ("aten::mul", FORWARD, 8, 2, {"traced": frozenset({"fused_mul_ceil_add"})}, None),
        ("aten::mul", FORWARD, 2, 8, {"traced": frozenset({"aten::_fused_adamw_"})}, None),
        ("aten::zero", BACKWARD, 2, 0, {"new_zeros": 8}, counts.NO_IN_PLACE),  # as often, but in another way
        ("aten::zero", BACKWARD, 2, 0, {"new_zeros": 9}, None),
    ],
)
def test_what_explains_calls(
    name: str, phase: Phase, ours: int, seen: int, more: dict[str, Any], cause: str | None
) -> None:
    key, new = (name, phase), ("aten::new_zeros", phase)
    dispatched, observed = {key: Dispatched(calls=ours, enclosed_copies=more.pop("enclosed", 0))}, {}
    if seen:
        observed[key] = Observed(calls=seen)
    if "new_zeros" in more:
        dispatched[new], observed[new] = Dispatched(calls=6), Observed(calls=more.pop("new_zeros"))
    assert cause_of_calls(key, Counts(ours=dispatched, observed=observed, **more)) == cause


FAST = frozenset({"aten::_transformer_encoder_layer_fwd"})


@pytest.mark.parametrize(
    ("seen", "traced", "watched", "cause"),
    [
        (200, FAST, frozenset(), counts.FAST_PATH),
        (201, FAST, frozenset(), None),
        (200, frozenset(), frozenset(), None),
        (200, FAST, FAST, None),
    ],
)
def test_the_fast_path_runs_the_same_products(
    seen: int, traced: frozenset[str], watched: frozenset[str], cause: str | None
) -> None:
    addmm, fused = ("aten::addmm", FORWARD), ("aten::_addmm_activation", FORWARD)
    found = Counts(
        ours={addmm: Dispatched(calls=1, contraction_flops=100), fused: Dispatched(calls=1, contraction_flops=100)},
        observed={addmm: Observed(calls=2, flops=seen, sources=("a registry",))},
        traced=traced,
        watched=watched,
    )
    assert cause_of_flops(addmm, found) == cause_of_flops(fused, found) == cause_of_calls(fused, found) == cause
