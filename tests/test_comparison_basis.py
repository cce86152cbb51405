"""Which steps the figures of a comparison are of, and what its first sentence is about."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from opanatomy.comparing import comparison_of
from opanatomy.comparison import RunInput, SideInput, compared
from opanatomy.gates.judging import gates_of, judged
from opanatomy.pipeline import analyze_trace
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.breakdown import Breakdown
from opanatomy.records.compared import Cause, Comparison, FigureRow
from opanatomy.report.formats.terminal import sentence
from opanatomy.report.metrics import metrics_of
from opanatomy.report.sections.compared import headline

TRACES: Final = Path(__file__).parent / "traces"
SHARED: Final = Path(__file__).parent.parent.parent / "shared" / "more_traces" / "compare"


@pytest.fixture(scope="module")
def on_cpu() -> Anatomy:
    """One profiled step on the CPU, timed without the profiler too."""
    return analyze_trace(TRACES / "bert_cpu.json.gz")


@pytest.fixture(scope="module")
def on_device() -> Anatomy:
    return analyze_trace(TRACES / "gpu_v100_dlrm_rank0of8.json.gz")


def compare(*sides: Anatomy) -> Comparison:
    return compared(
        [SideInput(name=f"{place}", runs=(RunInput(name=f"{place}", anatomy=side, metrics=metrics_of(side)),))
         for place, side in enumerate(sides)]
    )  # fmt: skip


def figure(comparison: Comparison, name: str) -> FigureRow:
    return next(row for row in comparison.figures if row.name == name)


def first_sentence(comparison: Comparison) -> str:
    assert comparison.decomposition is not None
    return sentence(headline(comparison, comparison.decomposition))


def with_step(anatomy: Anatomy, **fields: int | None) -> Anatomy:
    return replace(anatomy, step=replace(anatomy.step, **fields))


# ----------------------------------------------------------------------------------------------------- first sentence


def test_the_first_sentence_is_about_the_step_without_the_profiler(on_cpu: Anatomy) -> None:
    """The profiled step, which has the parts, is the same on both sides."""
    plain = on_cpu.step.unprofiled_wall_ns
    assert plain is not None
    text = first_sentence(compare(on_cpu, with_step(on_cpu, unprofiled_wall_ns=2 * plain)))
    assert "longer (+100.0 %) without the profiler: " in text
    assert "The profiled step, whose parts follow, takes " in text
    text = first_sentence(compare(on_cpu, with_step(on_cpu, unprofiled_wall_ns=plain // 2)))
    assert "shorter (-50.0 %) without the profiler: " in text


def test_a_profiled_step_that_goes_the_other_way_is_said(on_cpu: Anatomy) -> None:
    longer = analyze_trace(TRACES / "bert_checkpointing_amp_cpu.json.gz")
    plain = on_cpu.step.unprofiled_wall_ns
    assert plain is not None
    comparison = compare(on_cpu, with_step(longer, unprofiled_wall_ns=plain // 2))
    assert comparison.decomposition is not None
    assert comparison.decomposition.change_ns > 0
    text = first_sentence(comparison)
    assert "shorter (-50.0 %) without the profiler" in text
    assert "But the profiled step, whose parts follow, is " in text
    assert f"{comparison!r}".endswith("-50.0 %)>")


def test_a_side_without_a_plain_step_is_compared_by_the_profiled_one(on_cpu: Anatomy) -> None:
    without = with_step(on_cpu, unprofiled_wall_ns=None)
    assert first_sentence(compare(on_cpu, without)).startswith("The profiled step takes ")
    assert first_sentence(compare(without, without)).startswith("The step takes ")


# ------------------------------------------------------------------------------------------------------- the profiler


def test_what_the_profiler_adds_is_no_time_of_the_framework(on_cpu: Anatomy) -> None:
    """The figure is the report's, and the two parts are what no operator explains."""
    framework, profiler = on_cpu.step.framework_ns, on_cpu.step.profiler_ns
    assert framework
    assert profiler
    comparison = compare(on_cpu, on_cpu)
    assert figure(comparison, "framework_ns").values == pytest.approx((framework, framework), abs=1)
    assert comparison.decomposition is not None
    parts = {part.cause: part.before_ns for part in comparison.decomposition.parts if not part.cause.is_work}
    assert (parts[Cause.FRAMEWORK], parts[Cause.PROFILER]) == pytest.approx((framework, profiler), abs=1)


def test_the_framework_is_one_part_where_a_side_does_not_know_the_profiler(on_cpu: Anatomy) -> None:
    comparison = compare(on_cpu, with_step(on_cpu, profiler_ns=None))
    assert comparison.decomposition is not None
    causes = [part.cause for part in comparison.decomposition.parts]
    assert Cause.FRAMEWORK in causes
    assert Cause.PROFILER not in causes


# --------------------------------------------------------------------------------------------------------- which steps


def aside(anatomy: Anatomy) -> Anatomy:
    """The same, with one more step, which is set aside."""
    breakdown = anatomy.breakdown
    assert breakdown is not None
    (kind,) = breakdown.kinds
    outlier = replace(kind.steps[0], number=99, wall_ns=10 * kind.steps[0].wall_ns, set_aside="a pause is in it")
    kinds = (replace(kind, steps=(*kind.steps, outlier)),)
    fields = {name: getattr(breakdown, name) for name in ("operators", "signatures", "modules", "kernels")}
    return replace(anatomy, breakdown=Breakdown(kinds=kinds, **fields))


def test_figures_that_no_like_step_has_are_marked_where_steps_are_set_aside(on_device: Anatomy) -> None:
    comparison = compare(aside(on_device), on_device)
    of_all = {row.name for row in comparison.figures if row.all_steps}
    assert {"exposed_memcpy_ns", "communication_ns", "launch_time_ns"} <= of_all
    assert not of_all & {
        "step_time_ns", "step_profiled_ns", "idle_ns", "idle_share", "window_ns", "exposed_communication_ns",
        "exposed_communication_share", "class.communication.time_share", "phase.forward.time_ns", "peak_memory_bytes",
        "flops", "steps",
    }  # fmt: skip
    (result,) = judged(comparison, gates_of(["exposed_memcpy > 1s"])).gates
    assert result.reason.endswith(", of all steps, set-aside ones too")
    assert not any(row.all_steps for row in compare(on_device, on_device).figures)


def test_shares_are_those_of_the_times_of_the_like_steps(on_device: Anatomy) -> None:
    """Where no step is set aside they are the report's, too."""
    rows = {row.name: row.values[0] for row in compare(aside(on_device), on_device).figures}
    own = (rows["window_ns"] or 0) - (rows["outside_ns"] or 0)
    assert rows["idle_share"] == pytest.approx((rows["idle_ns"] or 0) / own)
    assert rows["exposed_communication_share"] == pytest.approx((rows["exposed_communication_ns"] or 0) / own)
    known = metrics_of(on_device)
    for name in ("idle_share", "exposed_communication_share", "class.communication.time_share", "window_ns"):
        assert rows[name] == pytest.approx(known[name].value), name


@pytest.mark.skipif(not SHARED.exists(), reason="the shared traces are not here")
def test_no_share_of_real_steps_contradicts_their_times() -> None:
    """Two of three steps are set aside: 31.8 % idle stood beside 6.23 ms idle of 156 ms."""
    rows = {row.name: row.values for row in
            comparison_of((SHARED / "train_v100_a2a_plain", SHARED / "train_v100_a2a_quantized")).figures}  # fmt: skip
    for place in (0, 1):
        idle, step, share = (rows[name][place] or 0 for name in ("idle_ns", "step_time_ns", "idle_share"))
        assert share == pytest.approx(idle / step, rel=0.01)


# --------------------------------------------------------------------------------------------------------- the names


def test_an_operator_within_another_is_called_so(on_cpu: Anatomy) -> None:
    """A copy inside of a product counts as the product: by its own name it would be taken for a copy."""
    breakdown, rows = on_cpu.breakdown, [row for row in on_cpu.operators if row.part_of is not None]
    assert breakdown is not None
    assert rows
    for row in rows:
        assert f"{row.operator} in {row.part_of}" in breakdown.operators
