"""The known causes of differences between both counts: each explains its calls, and no contraction."""

from __future__ import annotations

from typing import Any

import pytest

from opanatomy.analysis import checks
from opanatomy.analysis.checks import Counts, Dispatched, Observed, cause_of_calls, cause_of_flops
from opanatomy.records.taxonomy import Phase

FORWARD, BACKWARD, OPTIMIZER = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER


def counts(key: tuple[str, Phase], ours: int, seen: int, enclosed: int = 0, **others: Any) -> Counts:
    return Counts(
        ours={key: Dispatched(calls=ours, enclosed_copies=enclosed)}, observed={key: Observed(calls=seen)}, **others
    )


@pytest.mark.parametrize(
    ("name", "phase", "found", "cause"),
    [
        ("aten::zeros_like", OPTIMIZER, {"ours": 0, "seen": 84, "of_first_step": True}, checks.FIRST_STEP),
        ("aten::zeros_like", OPTIMIZER, {"ours": 0, "seen": 84}, None),
        ("aten::copy", OPTIMIZER, {"ours": 0, "seen": 3, "of_first_step": True}, checks.FIRST_STEP),
        ("aten::copy", FORWARD, {"ours": 0, "seen": 3, "of_first_step": True}, None),
        ("aten::arange", FORWARD, {"ours": 1, "seen": 2, "of_first_step": True}, checks.FIRST_STEP),
        ("aten::arange", FORWARD, {"ours": 2, "seen": 1, "of_first_step": True}, None),
        ("aten::mul", FORWARD, {"ours": 1, "seen": 2, "of_first_step": True}, None),
        ("aten::mm", FORWARD, {"ours": 1, "seen": 2, "of_first_step": True}, None),
        ("aten::clone", FORWARD, {"ours": 0, "seen": 20, "inner_copies": {("aten::clone", FORWARD): 24}},
         checks.KEPT_COPY),
        ("aten::clone", FORWARD, {"ours": 0, "seen": 25, "inner_copies": {("aten::clone", FORWARD): 24}}, None),
        ("aten::copy", BACKWARD, {"ours": 5, "seen": 0, "enclosed": 5}, checks.ENCLOSED),
        ("aten::copy", BACKWARD, {"ours": 6, "seen": 0, "enclosed": 5}, None),
        ("aten::clone", BACKWARD, {"ours": 0, "seen": 1, "watched": frozenset({"aten::_indices"})},
         checks.COPIED_GRADIENT),
        ("aten::clone", BACKWARD, {"ours": 0, "seen": 1}, None),
        ("aten::clone", FORWARD, {"ours": 0, "seen": 1, "watched": frozenset({"aten::_indices"})}, None),
    ],
)  # fmt: skip
def test_what_explains_calls(name: str, phase: Phase, found: dict[str, Any], cause: str | None) -> None:
    assert cause_of_calls((name, phase), counts((name, phase), **found)) == cause


@pytest.mark.parametrize(("made", "cause"), [(2, checks.NO_IN_PLACE), (3, None)])
def test_zeros_are_made_in_one_way_or_another_but_as_often(made: int, cause: str | None) -> None:
    new, zero = ("aten::new_zeros", BACKWARD), ("aten::zero", BACKWARD)
    found = Counts(ours={new: Dispatched(calls=6), zero: Dispatched(calls=2)}, observed={new: Observed(calls=6 + made)})
    assert cause_of_calls(zero, found) == cause


ADDMM, FUSED = ("aten::addmm", FORWARD), ("aten::_addmm_activation", FORWARD)
FAST = frozenset({"aten::_transformer_encoder_layer_fwd"})


@pytest.mark.parametrize(
    ("seen", "traced", "watched", "cause"),
    [
        (200, FAST, frozenset(), checks.FAST_PATH),
        (201, FAST, frozenset(), None),
        (200, frozenset(), frozenset(), None),
        (200, FAST, FAST, None),
    ],
)
def test_the_fast_path_runs_the_same_products(
    seen: int, traced: frozenset[str], watched: frozenset[str], cause: str | None
) -> None:
    found = Counts(
        ours={ADDMM: Dispatched(calls=1, contraction_flops=100), FUSED: Dispatched(calls=1, contraction_flops=100)},
        observed={ADDMM: Observed(calls=2, flops=seen, sources=("a registry",))}, traced=traced, watched=watched,
    )  # fmt: skip
    assert cause_of_flops(ADDMM, found) == cause_of_flops(FUSED, found) == cause
    assert cause_of_calls(FUSED, found) == cause
