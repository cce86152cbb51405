"""What explains differences between a trace's calls and a second count of them in the capture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from opanatomy.checks import counts
from opanatomy.checks.counts import Counts, Dispatched, Observed, cause_of_calls, cause_of_flops
from opanatomy.records.anatomy import Check
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import METADATA_KEY, Capture, Environment, ObservedCount, Workload
from tests.support.made_trace import MATRICES, TraceBuilder

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


def checked(trace: TraceBuilder, folder: Path, *seen: ObservedCount) -> dict[str, Check]:
    """The checks of a capture in whose warm-up a mode saw these calls in one step."""
    capture = Capture(
        version="0",
        command="",
        created="",
        environment=Environment(),
        workload=Workload(),
        observed_counts=seen,
        profiled_step_ns=(1,),
    )
    trace.metadata[METADATA_KEY] = msgspec.to_builtins(capture)
    return {check.quantity: check for check in trace.analyze(folder).checks}


def test_what_a_compilation_calls_on_tensors_without_data_is_not_counted(tmp_path: Path) -> None:
    """A product of it, the first event of the trace, and one of the step, which the mode saw."""
    trace = TraceBuilder()
    trace.annotation("_compile.compile_inner (dynamo_timed)", 0, 100)
    for start in (10, 110):
        trace.host("aten::mm", start, 20, **MATRICES)
    checks = checked(trace, tmp_path, ObservedCount(operator="aten::mm", phase=FORWARD, calls=1, flops=128, source="a"))
    for quantity in ("call counts", "contraction FLOPs"):
        assert (checks[quantity].compared, checks[quantity].equal) == (1, 1)


@pytest.mark.parametrize(("inside", "cause"), [("clone", counts.KEPT_COPY), ("mul", None)])
def test_a_copy_inside_an_operators_event_is_autograds(inside: str, cause: str | None, tmp_path: Path) -> None:
    """The mode sees a call of its own there; nothing explains one of other work."""
    trace = TraceBuilder()
    trace.host("aten::add_", 10, 20, shapes=[[8], [8]], types=["float", "float"])
    trace.host(f"aten::{inside}", 12, 5, shapes=[[8]], types=["float"])
    seen = (ObservedCount(operator=f"aten::{name}", phase=FORWARD, calls=1) for name in ("add", inside))
    found = checked(trace, tmp_path, *seen)["call counts"].differences
    assert [(one.operator, one.ours, one.other, one.cause) for one in found] == [(f"aten::{inside}", 0, 1, cause)]
