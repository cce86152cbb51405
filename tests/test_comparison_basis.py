"""Which sides are of the same work, which steps the figures are of, and what the first sentence is about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from msgspec.structs import replace

from opanatomy.analysis.compare import RunInput, SideInput, compared
from opanatomy.api import comparison_of, held
from opanatomy.pipeline import analyze_trace
from opanatomy.records.anatomy import Anatomy, Breakdown
from opanatomy.records.comparison import Cause, Comparison, FigureRow
from opanatomy.report.formats import format_named
from opanatomy.report.formats.terminal import sentence
from opanatomy.report.gates import gates_of, judged
from opanatomy.report.metrics import metrics_of
from opanatomy.report.section import Page
from opanatomy.report.sections.comparison import headline
from tests.handmade import HandMade

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
    assert f"{held(comparison)!r}".endswith("-50.0 %)>")


def test_a_side_without_a_plain_step_is_compared_by_the_profiled_one(on_cpu: Anatomy) -> None:
    without = with_step(on_cpu, unprofiled_wall_ns=None)
    assert first_sentence(compare(on_cpu, without)).startswith("The profiled step takes ")
    assert first_sentence(compare(without, without)).startswith("The step takes ")


def test_an_allocators_peak_is_not_compared_with_that_of_the_process(on_cpu: Anatomy) -> None:
    deep = replace(on_cpu, memory=replace(on_cpu.memory, peak_bytes=4_000_000, allocator_peak_bytes=4_000_000))
    comparison = compare(on_cpu, deep)
    names = [row.name for row in comparison.figures]
    assert "peak_memory_bytes" not in names
    assert "process_peak_bytes" in names
    assert any("the peak of memory is an allocator's on one side" in line for line in comparison.warnings)
    alike = compare(deep, deep)
    assert figure(alike, "peak_memory_bytes").values == (4_000_000, 4_000_000)
    assert not any("peak" in line for line in alike.warnings)


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


def aside(anatomy: Anatomy, left_out: str | None = None) -> Anatomy:
    """The same, with one more step: set aside among like ones and, if it is left out, in the report as well."""
    breakdown = anatomy.breakdown
    assert breakdown is not None
    (kind,) = breakdown.kinds
    outlier = replace(kind.steps[0], number=99, wall_ns=10 * kind.steps[0].wall_ns, set_aside="a pause is in it")
    outlier = replace(outlier, left_out=left_out)
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
    assert result.reason.endswith(", of all steps, unlike ones too")
    without = compare(aside(on_device, "a pause is in it"), on_device)
    assert not any(row.all_steps for row in without.figures)
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


# -------------------------------------------------------------------------------------------------- of the same work

GEMM, MAP, NORM = "ampere_sgemm_128x64_nn", "void at::native::vectorized_elementwise_kernel<4>", "layer_norm_kernel"
FLASH, TRITON, SGD = "flash_fwd_kernel", "triton_poi_fused_add_0", "void at::native::multi_tensor_apply_kernel<...>"
#: A layer: the operator of each kernel, its kernel, the shapes of its arguments and how long it takes (us).
Layer: TypeAlias = "tuple[tuple[str, str, list[list[int]], int], ...]"
MM: Final = ("aten::mm", GEMM, [[64, 32], [32, 32]], 50)
LAYER: Final[Layer] = (MM, ("aten::add", MAP, [[64, 32], [64, 32]], 10), ("aten::native_layer_norm", NORM, [], 10))
STEP: Final = (*LAYER, *LAYER, ("aten::_foreach_add_", SGD, [], 5))


def written(
    folder: Path, name: str, work: Layer, *, steps: int = 1, annotated: bool = True, kernels: bool = True,
    runtime: bool = True, device: str = "NVIDIA H100 80GB HBM3", **workload: int | str,
) -> Anatomy:  # fmt: skip
    """The anatomy of a trace of so many steps of 1 ms that do this work one after the other."""
    trace = HandMade()
    trace.metadata["deviceProperties"] = [{"id": 0, "name": device}] if runtime else []
    correlation = 0
    for step in range(steps):
        begin = 1_000.0 * step
        if annotated:
            trace.annotation(f"ProfilerStep#{step}", begin, 1_000)
        for place, (operator, kernel, shapes, length) in enumerate(work):
            at, correlation = begin + 10 + 60 * place, correlation + 1
            trace.host(operator, at, 20, shapes=shapes, types=["float"] * len(shapes))
            if runtime:
                trace.launch(at + 2, correlation)
            if kernels:
                trace.kernel(kernel, at + 5, length, correlation)
    anatomy = analyze_trace(trace.write(folder / f"{name}.json"))
    return replace(anatomy, workload=replace(anatomy.workload, **workload))


DEEP: Final = (*LAYER, *LAYER, *LAYER, *LAYER, STEP[-1])
CONV: Final = tuple(("aten::cudnn_convolution", "implicit_convolve_sgemm", [], 50) for _ in range(4))
COMPILED: Final = (MM, ("triton_poi_fused_add_0", TRITON, [], 8), MM, ("triton_poi_fused_add_1", TRITON, [], 8))
#: Less of its time in products: what is fused is most of the work.
EAGER: Final = tuple((*row[:3], 200 if row[0] != "aten::mm" else 20) for row in STEP)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (
            ("a", STEP, {}), ("b", STEP, {"kernels": False}),
            "b.json has no kernels: what the device did was not recorded",
        ),
        (
            ("a", STEP, {"kernels": False}), ("b", STEP, {"kernels": False}),
            "a.json and b.json have no kernels: what the device did was not recorded",
        ),
        (
            ("a", CONV, {"kernels": False, "runtime": False}), ("b", CONV, {}),
            "a.json has times of the host alone, of work that a GPU did: they are launch times",
        ),
        (
            ("a", STEP, {"kernels": False, "runtime": False}), ("b", STEP, {}),
            "a.json ran on the CPU, b.json did not: times of operators are no times of kernels",
        ),
        (
            ("a", STEP, {"steps": 30, "annotated": False}), ("b", STEP, {"steps": 3}),
            "a.json is a whole trace, taken for one step: it has 30 times the calls of b.json's",
        ),
        (
            ("a", STEP, {"annotated": False}), ("b", STEP, {"steps": 30, "annotated": False}),
            "a step of b.json makes every call 30 times as often as one of a.json: it is 30 iterations",
        ),
        (("a", STEP, {}), ("b", CONV, {}), "0.0 % of the work of a.json is on the other side too: these are other"),
        # What is to stay silent.
        (("a", STEP, {}), ("b", STEP, {"steps": 3}), None),
        (("a", STEP, {"annotated": False}), ("b", STEP, {}), None),
        (("a", STEP, {}), ("b", DEEP, {}), None),
        (("a", STEP, {}), ("b", (*LAYER, *STEP), {}), None),
        (("a", EAGER, {}), ("b", COMPILED, {}), None),
        (("a", STEP, {}), ("b", CONV, {"model": "b"}), "0.0 % of the work of a.json is on the other side too: these"),
        (("a", STEP, {"model": "mine"}), ("b", CONV, {"model": "mine"}), None),
    ],
)  # fmt: skip
def test_sides_that_are_not_of_the_same_work(before: Any, after: Any, says: str | None, tmp_path: Path) -> None:
    """Said first, with figures and without changes, causes and claims; a gate on a change is unknown."""
    sides = [written(tmp_path, name, work, **options) for name, work, options in (before, after)]
    comparison = comparison_of(sides)
    if says is None:
        assert not comparison.not_comparable
        assert comparison.decomposition is not None
        return
    (reason,) = comparison.not_comparable
    assert reason.startswith(says)
    assert comparison.decomposition is None
    assert all(row.p is None and row.ranges is None for row in comparison.figures)
    assert not [name for name in held(comparison).metrics() if ".change" in name]
    assert figure(comparison, "step_time_ns").values[0] is not None
    (gate,) = judged(comparison, gates_of(["time > +5%"])).gates
    assert gate.line == f"UNKNOWN: time > +5%: the sides cannot be compared: {reason}"
    _, *page = format_named("terminal").write(comparison, Page(width=120)).splitlines()
    assert " ".join(page).startswith(f"Not comparable: {reason}. The figures stand side by side, without changes and")
    assert not [line for line in page if line.startswith("figure ") and "change" in line]
    digest = format_named("digest").write(comparison, Page())
    assert digest.index("- not comparable: ") < digest.index("- side 1: ")
    assert "(+" not in digest
    assert json.loads(format_named("json").write(comparison, Page()))["not_comparable"] == [reason]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": "NVIDIA A100-SXM4-80GB"}, "the devices differ: NVIDIA H100 80GB HBM3, NVIDIA A100-SXM4-80GB"),
        ({"batch": 16}, "the batches differ: 8, 16"),
        ({"sequence_length": 256}, "the sequence lengths differ: 128, 256"),
        ({"model": "other"}, "the models differ: mine, other"),
    ],
)
def test_what_differs_of_sides_that_are_comparable_is_said(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    same: dict[str, Any] = {"batch": 8, "sequence_length": 128, "model": "mine"}
    comparison = comparison_of(
        [written(tmp_path, name, STEP, **same | more) for name, more in (("a", {}), ("b", options))]
    )
    assert says in comparison.warnings
    assert not comparison.not_comparable
    assert comparison.decomposition is not None


def test_of_several_sides_one_that_is_not_of_the_same_is_said(tmp_path: Path) -> None:
    sides = [written(tmp_path, name, STEP, kernels=name != "c") for name in "abc"]
    comparison = comparison_of(sides)
    assert comparison.not_comparable == ("c.json has no kernels: what the device did was not recorded",)
    assert "Not comparable: c.json has no kernels" in format_named("terminal").write(comparison, Page(width=120))


def test_flops_and_bytes_are_counts_that_need_no_test(tmp_path: Path) -> None:
    """Four runs a side in turns: of times there is a p, of FLOPs and bytes a change."""
    anatomy = written(tmp_path, "a", STEP)
    more = tuple(replace(row, flops=None if row.flops is None else 2 * row.flops) for row in anatomy.classes)
    turns = [
        [replace(side, provenance=replace(side.provenance, begin_unix_ns=2 * run + place)) for run in range(4)]
        for place, side in enumerate((anatomy, replace(anatomy, classes=more)))
    ]
    comparison = comparison_of(turns)
    assert comparison.no_claim is None
    rows = {row.name: row for row in comparison.figures}
    assert {name for name, row in rows.items() if row.exact} >= {"flops", "bytes", "class.tensor_contraction.flops"}
    assert (rows["flops"].p, rows["flops"].ranges, rows["flops"].change) == (None, None, 1.0)
    assert rows["step_time_ns"].p is not None
    assert not rows["peak_memory_bytes"].exact if "peak_memory_bytes" in rows else True
    gates = judged(comparison, gates_of(["flops > +50% if significant", "bytes > +0% if significant"])).gates
    assert [gate.met for gate in gates] == [False, True]
    assert not [word for word in ("significant (p", "chance", "ranges") if word in gates[0].reason]


def test_lower_bounds_are_those_of_the_sides(tmp_path: Path) -> None:
    anatomy = written(tmp_path, "a", STEP)
    sides = [
        replace(anatomy, device=replace(anatomy.device, mfu=mfu, mfu_covered=covered))
        for mfu, covered in ((0.4, 1.0), (0.369, 0.7))
    ]
    comparison = comparison_of(sides)
    row = figure(comparison, "mfu")
    assert (row.values, row.lower_bounds) == ((0.4, 0.369), (False, True))
    assert figure(comparison, "flops").lower_bounds == ()
    assert held(comparison).metrics()["mfu_covered.after"] == 0.7
    assert "≥ 36.9 %" in format_named("terminal").write(comparison, Page(width=120))
    assert "mfu: 40.0 % -> ≥ 36.9 %" in format_named("digest").write(comparison, Page())
    (row_in_json,) = (
        row for row in json.loads(format_named("json").write(comparison, Page()))["figures"] if row["name"] == "mfu"
    )
    assert row_in_json["lower_bounds"] == [False, True]
