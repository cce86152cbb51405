"""Gates and the figures they are of: how they are written, what they hold to, what they say, how the command ends."""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

import opanatomy
from opanatomy.checks.counts import require_agreement
from opanatomy.errors import GateError, UsageError
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.comparison import Comparison, FigureRow, GateResult, Side, Spread
from opanatomy.records.memory import Memory, MemoryComponent
from opanatomy.report import format_of, read_anatomy, terminal_report
from opanatomy.report.formats import format_named
from opanatomy.report.gates import Of, gates_of, gates_of_one, judged, judged_report, require_met
from opanatomy.report.metrics import ALIASES, metric_named, metrics_of
from opanatomy.report.section import Page
from tests.support import anatomies
from tests.support.command import run
from tests.support.documented import current_and_renewed
from tests.support.made_trace import GEMM, H100, MATRICES, NCCL, TraceBuilder, on_gpu
from tests.support.paths import ROOT, TRACES

MS = 1_000_000


@pytest.fixture(scope="module")
def ranks() -> Anatomy:
    return opanatomy.analyze([TRACES / f"gpu_v100_dlrm_rank{rank}of8.json.gz" for rank in range(2)])


def values(anatomy: Anatomy) -> dict[str, float]:
    return {name: metric.value for name, metric in metrics_of(anatomy).items()}


# ---------------------------------------------------------------------------------------------------------- the figures


def test_the_page_has_every_figure_and_its_short_names() -> None:
    page, renewed = current_and_renewed("metrics.md")
    assert renewed == page, "run python docs/renew.py"
    assert "| `peak_memory_bytes` | `memory`, `peak` | bytes | lower |" in page
    assert "| `class.CLASS.time_ns` |  | ns | lower |" in page
    assert all(metric_named(name) == figure for name, figure in ALIASES.items())


def test_figures_are_of_one_step_and_sum_to_their_whole(ranks: Anatomy) -> None:
    """Over ranks a step is that of the mean rank; what is read back from a report is the same."""
    bert, llama = anatomies.bert_on_cpu(), anatomies.llama_on_gpu()
    large = read_anatomy((ROOT / "reports" / "bert-large-uncased.json").read_bytes())
    for anatomy in (bert, llama, ranks, large):
        known = metrics_of(anatomy)
        assert all(metric_named(name) == name and math.isfinite(metric.value) for name, metric in known.items())
        assert metrics_of(read_anatomy(format_named("json").write(anatomy, Page()))) == known
    for anatomy in (llama, ranks):
        figures = values(anatomy)
        for kind in ("class", "phase"):
            parts = [value for name, value in figures.items() if re.fullmatch(rf"{kind}\.\w+\.time_ns", name)]
            assert sum(parts) == pytest.approx(figures["kernel_time_ns"], rel=1e-12)
        names = ("busy", "outside", "unrecorded", "host_idle", "stream_idle", "other_idle")
        assert sum(figures[f"{name}_ns"] for name in names) == pytest.approx(figures["window_ns"], rel=1e-12)
    figures, twice = values(llama), values(replace(llama, step=replace(llama.step, count=2 * llama.step.count)))
    halved = {name for name in figures if twice[name] * 2 == figures[name] != 0}
    assert {"flops", "bytes", "kernels", "idle_ns", "class.elementwise.bytes", "tensor_core_ns"} <= halved
    assert not {"step_time_ns", "forward_time_ns", "mfu", "idle_share", "peak_memory_bytes"} & halved
    steps, figures = sum(rank.steps for rank in ranks.ranks), values(ranks)
    assert figures["busy_ns"] == pytest.approx(sum(rank.busy_ns for rank in ranks.ranks) / steps, rel=1e-6)
    assert figures["kernel_time_ns"] == pytest.approx(sum(rank.kernel_time_ns for rank in ranks.ranks) / steps)
    assert (figures["ranks"], figures["ranks.own_max_ns"]) == (
        2,
        max(row.max_ns for row in ranks.spread if row.figure == "own"),
    )
    figures = values(bert)
    assert figures["step_time_ns"] == figures["step_unprofiled_ns"] == bert.step.unprofiled_wall_ns
    bare = values(replace(bert, step=replace(bert.step, unprofiled_wall_ns=None)))
    assert bare["step_time_ns"] == bare["step_profiled_ns"] == bert.step.wall_ns
    assert not {"idle_ns", "window_ns", "outside_ns"} & set(figures)
    assert figures["busy_ns"] + figures["framework_ns"] + figures["profiler_ns"] == figures["step_profiled_ns"]


def test_what_is_not_known_is_left_out_and_strange_components_are_names() -> None:
    strange = MemoryComponent(component='<b "x">', measured_bytes=5)
    assert values(anatomies.nothing()) == {"steps": 1}
    assert values(replace(anatomies.nothing(), memory=Memory(components=(strange,)))) == {
        "steps": 1,
        "memory._b_x__bytes": 5,
    }


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("time", "step_time_ns"),
        ("memory", "peak_memory_bytes"),
        ("Exposed Communication", "exposed_communication_ns"),
        ("step-time", "step_time_ns"),
        ("idle", "idle_ns"),
        ("flops", "flops"),
        ("bytes", "bytes"),
        ("mfu", "mfu"),
        ("class.contraction.time", "class.tensor_contraction.time_ns"),
        ("forward", "forward_time_ns"),
        ("class.element-wise", "class.elementwise.time_ns"),
        ("unknown", "ledger.unknown_share"),
        ("memory.forward_activations", "memory.forward_activations_bytes"),
        ("ranks.step_max", "ranks.step_max_ns"),
        ("memory.at_peak.weights", "memory.at_peak.weights_bytes"),
    ],
)
def test_a_name_is_taken_in_short(name: str, metric: str) -> None:
    assert metric_named(name) == metric


# ---------------------------------------------------------------------------------------------------------- the grammar


@pytest.mark.parametrize(
    ("text", "figure", "of", "value"),
    [
        ("time > +5%", "step_time_ns", Of.CHANGE, Fraction(1, 20)),
        ("TIME>=-10 %", "step_time_ns", Of.CHANGE, Fraction(-1, 10)),
        ("time ≥ +0.1%", "step_time_ns", Of.CHANGE, Fraction(1, 1000)),
        ("memory > +100MB", "peak_memory_bytes", Of.DIFFERENCE, 100_000_000),
        ("memory > 16 GB", "peak_memory_bytes", Of.VALUE, 16_000_000_000),
        ("memory > 1.5GiB", "peak_memory_bytes", Of.VALUE, 3 << 29),
        ("memory.weights <= 3 kib", "memory.weights_bytes", Of.VALUE, 3072),
        ("step time > +2ms", "step_time_ns", Of.DIFFERENCE, 2 * MS),
        ("forward > 250 µs", "forward_time_ns", Of.VALUE, 250_000),
        ("step_time_ns > 250", "step_time_ns", Of.VALUE, 250),
        ("exposed > 0", "exposed_communication_ns", Of.VALUE, 0),
        ("idle_share > 40%", "idle_share", Of.VALUE, Fraction(2, 5)),
        ("idle-share > 0.4", "idle_share", Of.VALUE, Fraction(2, 5)),
        ("idle_share > +5pp", "idle_share", Of.DIFFERENCE, Fraction(1, 20)),
        ("idle_share > +5%", "idle_share", Of.CHANGE, Fraction(1, 20)),
        ("flops > 3.2e12", "flops", Of.VALUE, 3_200_000_000_000),
        ("flops > 3.2 TFLOP", "flops", Of.VALUE, 3_200_000_000_000),
        ("class.contraction.flops > +2G", "class.tensor_contraction.flops", Of.DIFFERENCE, 2_000_000_000),
        ("throughput < -5%", "samples_per_second", Of.CHANGE, Fraction(-1, 20)),
        ("throughput < 1.5k samples/s", "samples_per_second", Of.VALUE, 1500),
        ("kernels > +100", "kernels", Of.DIFFERENCE, 100),
        ("ratio.contraction.flops > 2", "ratio.tensor_contraction.flops", Of.VALUE, 2),
        ("time > +5%  IF  Significant", "step_time_ns", Of.CHANGE, Fraction(1, 20)),
    ],
)
def test_a_gate_is_a_figure_a_comparison_and_a_value(text: str, figure: str, of: Of, value: Fraction) -> None:
    (gate,) = gates_of([text])
    assert (gate.figure, gate.of, gate.value, gate.significant) == (figure, of, value, "IF" in text)
    sign = re.search("[<>≥]=?", text)
    assert sign is not None
    assert gate.comparison == sign[0].replace("≥", ">=")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tim > +5%", "did you mean time"),
        ("peak_memroy > 1GB", "did you mean peak_memory_bytes"),
        ("class.copies.time > 3ms", "metric 'class.copies.time': unknown"),
        ("time > 5%", "for a change in %, add a sign, such as time > +5%"),
        ("memory > 3 ms", "'ms' is not a unit of peak_memory_bytes - use B, kB, MB"),
        ("flops > 3 TFLOP/s", "'TFLOP/s' is not a unit of flops"),
        ("kernels > 3 ms", "'ms' is not a unit of kernels"),
        ("time > +5pp", "'pp' is not a unit of step_time_ns"),
        ("time > 250", "step_time_ns needs a unit"),
        ("memory > +16", "peak_memory_bytes needs a unit"),
        ("idle_share > 40", "is a fraction - for a percentage, add %"),
        ("idle_share > 5pp", "write +5pp, or 5% for the share itself"),
        ("time == 5ms", "== is not a comparison operator - use one of >, >=, <, <="),
        ("time => +5%", "=> is not a comparison"),
        ("time", "write METRIC > VALUE"),
        ("", "write METRIC > VALUE"),
        ("> +5%", "no metric before >"),
        ("time >", "the value is missing"),
        ("time > much", "'much' is not a value"),
        ("time > +1,5%", "'+1,5%' is not a value"),
        ("time > 1.5.2ms", "is not a value"),
        ("time > nan ms", "is not a value"),
        ("time > 1e999s", "is not a value"),
        (f"time > {'9' * 100}ms", "is not a value"),
        (f"time > {'9' * 10_000}ms", "too long - write"),
        ("time > +5% and memory > 1GB", "pass each as a separate gate"),
        ("time > 5ms if significant", "'if significant' applies only to a change"),
        ("time > +5%\x1b[31m", r"'%\x1b[31m' is not a unit"),
    ],
)
def test_what_is_no_gate_is_said_in_one_line(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        gates_of(["memory > 1GB", text])
    assert says in str(caught.value)
    assert str(caught.value).startswith("gate ")
    assert str(caught.value).isprintable()
    with pytest.raises(UsageError, match=r"a change needs two reports, but there is only one"):
        gates_of_one(["time > 5ms", "time > +5%"])


# -------------------------------------------------------------------------------------------------------------- judging


def compared(*rows: FigureRow, sides: tuple[str, ...] = ("old", "new"), no_claim: str | None = "one run") -> Comparison:
    made = (Side(name=name, model=None, device=None, software=None, runs=1, ranks=0) for name in sides)
    return Comparison(sides=tuple(made), figures=rows, no_claim=no_claim)


def figure(name: str, *values: float | None, unit: str = "ns", p: float | None = None, **options: Any) -> FigureRow:
    return FigureRow(name=name, unit=unit, better="lower", values=values, p=p, **options)


def result(comparison: Comparison, text: str) -> GateResult:
    return judged(comparison, gates_of([text])).gates[0]


@pytest.mark.parametrize(
    ("text", "before", "after", "line"),
    [
        ("time > +5%", 100, 105, "passed: time > +5% (is +5 %): "),  # of which a float of the quotient makes more
        ("time >= +5%", 100, 105, "FAILED"),
        ("time > +10%", 3, 3.3, "passed"),  # 3.3 is a little less than 3 x 1.1
        ("time > -10%", 100, 95, "FAILED"),
        ("time > -10%", 100, 90, "passed"),
        ("time < -10%", 100, 80, "FAILED"),
        ("time > +5%", 0, 0, "passed"),
        ("time > +5%", 0, 1, "FAILED"),
        ("time > +5%", 100 * MS, 106.5 * MS, "FAILED: time > +5% (is +6.5 %): "),
        ("time > +5%", 100_000_000, 105_000_001, "FAILED: time > +5% (is +5.000001 %): "),
        ("time > +2ms", 10 * MS, 12 * MS, "passed"),
        ("time < -2ms", 10 * MS, 7 * MS, "FAILED"),
        ("time > +2ms", 100 * MS, 107 * MS, "FAILED: time > +2ms (is +7.00 ms): "),
        ("time > 12ms", 99 * MS, 12 * MS, "passed: time > 12ms (is 12.0 ms): step_time_ns"),
        ("time <= 12ms", 1 * MS, 12 * MS, "FAILED"),
        ("time > 12ms", 1 * MS, 12 * MS + 1, "FAILED"),
        ("time > 250ms", 1, 250_000_001, "FAILED: time > 250ms (is 250,000,001 ns): step_time_ns"),
        (
            "time > +5%",
            None,
            270 * MS,
            "UNKNOWN: time > +5%: step_time_ns is unknown for old, so the gate cannot be checked",
        ),
        ("time > 5s", None, 270 * MS, "passed"),  # on the side itself, which has it
        (
            "time > 5ms",
            270 * MS,
            None,
            "UNKNOWN: time > 5ms: step_time_ns is unknown for new, so the gate cannot be checked",
        ),
        ("idle > +5%", 1, 1, "UNKNOWN: idle > +5%: idle_ns is unknown for all sides, so the gate cannot be checked"),
    ],
)
def test_values_are_compared_exactly_and_a_gate_speaks_of_its_condition(
    text: str, before: float | None, after: float | None, line: str
) -> None:
    assert result(compared(figure("step_time_ns", before, after)), text).line.startswith(line)


def test_the_reason_has_both_values_the_change_the_ranges_and_that_nothing_is_claimed() -> None:
    row = replace(
        figure("step_time_ns", 100 * MS, 107 * MS),
        spreads=(
            Spread(median=100 * MS, low=99 * MS, high=102 * MS, count=3),
            Spread(median=107 * MS, low=101 * MS, high=109 * MS, count=3),
        ),
        ranges="overlapping",
    )
    assert result(compared(row), "time > +5%") == GateResult(
        gate="time > +5%",
        met=False,
        measured="+7 %",
        reason="step_time_ns: 100 ms before, 107 ms after, +7 %; the ranges overlap (99.0 ms to 102 ms and 101 ms to"
        " 109 ms); not tested for significance: one run",
    )
    reason = result(compared(figure("step_time_ns", 250_000_000, 250_000_001)), "time > +0ns").reason
    assert reason.startswith("step_time_ns: 250,000,000 ns before, 250,000,001 ns after, +1 ns, +4e-07 %")


@pytest.mark.parametrize(
    ("after", "p", "no_claim", "text", "met", "ends"),
    [
        (110, 0.3, None, "if significant", True, ""),
        (110, 0.01, None, "if significant", True, ""),
        (110, 0.01, None, "", False, "not significant (p = 0.01)"),
        (110, 0.0079, None, "if significant", False, "; significant (p = 0.0079)"),
        (104, 0.0079, None, "if significant", True, ""),
        (100, None, None, "if significant", True, ""),
        # A claim that cannot be tested is a gate that fails.
        (110, 0.001, "one run", "if significant", False, "so the gate cannot be checked"),
        (110, None, None, "if significant", False, "so the gate cannot be checked"),
    ],
)
def test_significance(after: float, p: float | None, no_claim: str | None, text: str, met: bool, ends: str) -> None:
    found = result(compared(figure("step_time_ns", 100, after, p=p), no_claim=no_claim), f"time > +5% {text}".strip())
    assert found.met is met
    assert found.reason.endswith(ends)


def test_what_is_counted_has_no_significance() -> None:
    row = figure("flops", 100, 101, unit="flop", exact=True)
    failed = result(compared(row), "flops > +0% if significant")
    assert failed.line == "FAILED: flops > +0% if significant (is +1 %): flops: 100 FLOP before, 101 FLOP after, +1 %"


def test_a_step_without_the_profiler_is_not_held_against_one_under_it() -> None:
    rows = figure("step_time_ns", 100, 90), figure("step_unprofiled_ns", 100, None), figure("step_profiled_ns", 120, 90)
    assert result(compared(*rows), "time > +5%").reason.startswith("new was timed only under the profiler")
    assert result(compared(*rows), "profiled > +5%").met
    assert result(compared(*rows), "time > 1ms").met


def test_of_several_sides_each_is_held_against_the_first() -> None:
    comparison = compared(figure("step_time_ns", 100 * MS, 120 * MS, 90 * MS), sides=("a", "b", "c"))
    assert result(comparison, "time > +5%").reason.startswith("step_time_ns of b: 100 ms before, 120 ms after, +20 %")
    assert result(comparison, "time > +30%").met
    assert not result(compared(figure("step_time_ns", 1, 1, None), sides=("a", "b", "c")), "time > +5%").met
    both = judged(
        compared(figure("step_time_ns", 100, 110), figure("flops", 1, 1)), gates_of(["time > +5%", "kernels > 3"])
    )
    with pytest.raises(GateError) as caught:
        require_met(both.gates)
    assert [reason.split(": ")[:2] for reason in caught.value.reasons] == [
        ["FAILED", "time > +5% (is +10 %)"],
        ["UNKNOWN", "kernels > 3"],
    ]


@pytest.mark.parametrize(
    ("text", "bounds", "line"),
    [
        ("mfu < 30%", (False, True), "passed: mfu < 30% (is at least 36.9 %): mfu"),
        (
            "mfu < 40%",
            (False, True),
            "UNKNOWN: mfu < 40% (is at least 36.9 %): mfu is a lower bound, so",
        ),
        ("mfu > 30%", (False, True), "FAILED: mfu > 30% (is at least 36.9 %): "),
        ("mfu > 40%", (False, True), "UNKNOWN: mfu > 40% (is at least 36.9 %): "),
        ("mfu < 40%", (True, False), "FAILED: mfu < 40% (is 36.9 %): mfu"),
        ("mfu < -5%", (False, False), "FAILED: mfu < -5% (is -7.75 %): "),
        ("mfu < -5%", (False, True), "UNKNOWN: mfu < -5% (is at least -7.75 %): "),
        ("mfu < -10%", (False, True), "passed: mfu < -10% (is at least -7.75 %): "),
        ("mfu < -5%", (True, False), "FAILED: mfu < -5% (is at most -7.75 %): "),
        ("mfu < -10%", (True, False), "UNKNOWN: mfu < -10% (is at most -7.75 %): "),
        ("mfu < -5%", (True, True), "UNKNOWN: mfu < -5% (is -7.75 %): "),
        ("mfu < -10pp", (False, True), "passed: mfu < -10pp (is at least -3.1 percentage points): "),
    ],
)
def test_a_lower_bound_decides_only_what_it_can(text: str, bounds: tuple[bool, bool], line: str) -> None:
    """MFU was 40 % and is 36.9 %; the true one may be higher on the sides of which the FLOPs are not all known."""
    row = figure("mfu", 0.4, 0.369, unit="fraction", lower_bounds=bounds)
    assert result(compared(row), text).line.startswith(line)


def test_a_lower_bound_of_a_report_is_one_in_its_gates() -> None:
    anatomy = anatomies.llama_on_gpu()
    for covered, unknown in ((0.7, True), (1.0, False)):
        bound = replace(anatomy, device=replace(anatomy.device, mfu=0.369, mfu_covered=covered))
        met, failed = judged_report(bound, gates_of(["mfu < 30%", "mfu < 40%"]))
        assert (met.met, failed.met, failed.unknown) == (True, False, unknown)
        assert f"- MFU: {'≥ ' if unknown else ''}36.9 %" in format_named("digest").write(bound, Page())


@pytest.mark.parametrize(
    ("text", "met", "unknown"),
    [
        ("idle_share > 40%", False, True),
        ("idle_share > 99%", True, False),
        ("idle_share > 1%", False, False),
        ("busy < 3ms", False, True),
        ("busy < 5ms", False, False),
        ("busy < 50us", True, False),
        ("mfu < 90%", False, True),
    ],
)
def test_what_was_not_recorded_may_be_idle_or_busy(text: str, met: bool, unknown: bool, tmp_path: Path) -> None:
    """Of 5 ms 0.1 are busy, 0.1 idle, and in 4.8 the host waits for what is not in the trace."""
    trace = TraceBuilder(metadata={"schemaVersion": 1, "deviceProperties": [H100]})
    trace.step(0, 5_000)
    trace.host("aten::mm", 5, 15, **MATRICES)
    trace.run(GEMM, 10, 100, 100)
    trace.launch(50, 0, name="cudaDeviceSynchronize", duration=4_950)
    anatomy = trace.analyze(tmp_path)
    (result,) = judged_report(anatomy, gates_of((text,)))
    assert (result.met, result.unknown) == (met, unknown)
    with pytest.raises(GateError, match=r"the host waited 4\.800 ms for device work that is not in the trace"):
        require_agreement(anatomy)
    assert "The busy time of the device may be wrong" in (digest := format_named("digest").write(anatomy, Page()))
    assert re.search(r"MFU: ≥ [\d.e-]+ %", digest)  # and not "≥ <0.1 %"
    (result,) = judged_report(anatomy, gates_of(("mfu < 90%",)))
    assert "<" not in result.reason


@pytest.mark.parametrize("shapes", [False, True])
def test_flops_are_not_known_of_collectives_alone(shapes: bool, tmp_path: Path) -> None:
    """A collective has none; of a product without shapes they are unknown, and so are those of the step."""
    trace = on_gpu()
    trace.step(0, 500)
    trace.host("aten::mm", 5, 15, **(MATRICES if shapes else {}))
    trace.run(GEMM, 10, 100, 100)
    trace.run(NCCL, 30, 200, 200)
    anatomy = trace.analyze(tmp_path)
    figures = metrics_of(anatomy)
    assert figures["class.communication.flops"].value == 0
    assert ("flops" in figures) is ("phase.forward.flops" in figures) is shapes
    for text in ("flops < 1", "flops > 1k"):
        (result,) = judged_report(anatomy, gates_of((text,)))
        assert (result.met, result.unknown) == (shapes, not shapes)
    digest = format_named("digest").write(opanatomy.compare(anatomy, anatomy), Page())
    assert ("- flops:" in digest) is shapes


def with_kernels(kernels: int, version: int = 12_090) -> TraceBuilder:
    """A step of 50 launches, the last of which have their kernels in the trace."""
    trace = TraceBuilder(metadata={"schemaVersion": 1, "deviceProperties": [H100], "cuda_runtime_version": version})
    trace.step(0, 1_500)
    estimates = {"blocks per SM": 0.5, "est. achieved occupancy %": 25}
    for call in range(50):
        trace.host("aten::mm", 20 * call, 15, **MATRICES)
        trace.launch(20 * call + 5, call + 1)
        if call >= 50 - kernels:
            trace.kernel(GEMM, 20 * call + 12, 10, call + 1, **estimates)
    return trace


@pytest.mark.parametrize(("version", "said"), [(12_050, False), (12_060, True), (13_000, True), (13_010, False)])
def test_releases_of_cuda_that_lose_kernels_are_named(version: int, said: bool, tmp_path: Path) -> None:
    text = terminal_report(with_kernels(30, version).analyze(tmp_path), width=80)
    assert ("CUDA 12.6 to 13.0 loses kernels" in " ".join(text.split())) is said


@pytest.mark.parametrize("kernels", [0, 30, 50])
def test_launches_without_kernels_make_lower_bounds(kernels: int, tmp_path: Path) -> None:
    """Of 50 launches so many have their kernel in the trace: with none nothing of the device is known."""
    anatomy = with_kernels(kernels).analyze(tmp_path)
    launching = anatomy.timeline.launching
    assert launching is not None
    assert launching.lost_calls == 50 - kernels
    figures = metrics_of(anatomy)
    bounds = {name for name, metric in figures.items() if metric.lower_bound}
    of_work = {"flops", "bytes", "kernels", "busy_ns", "mfu", "class.tensor_contraction.flops", "phase.forward.time_ns"}
    of_work |= {"forward_time_ns", "sm_efficiency", "memcpy_ns"}
    assert of_work & bounds == (of_work if kernels == 30 else set())
    no_bound = {"bound_share", "occupancy", "exposed_communication_ns", "exposed_memcpy_ns"}
    assert no_bound & figures.keys() == (no_bound if kernels == 50 else set())
    assert {"busy_ns", "idle_ns", "idle_share"} & figures.keys() == (
        {"busy_ns", "idle_ns", "idle_share"} if kernels else set()
    )
    text, digest = terminal_report(anatomy, width=80), format_named("digest").write(anatomy, Page())
    for line in ("- kernel time:", "- device work:"):
        assert (line in digest) is bool(kernels)
    assert "0 ns (0.0 %)" not in digest
    assert ("MFU ≥" in text) is ("≥" in digest) is (kernels == 30)
    assert ("CUDA 12.6 to 13.0 loses kernels" in " ".join(text.split())) is (kernels == 30)
    assert ("the trace lacks the work of 20 of 50 launches" in " ".join(anatomy.warnings)) is (kernels == 30)
    compared = opanatomy.compare(anatomy, anatomy)
    for report in (anatomy, compared):
        charted = json.loads(format_named("benchmark").write(report, Page()))
        marked = {entry["name"] for entry in charted if entry["extra"].endswith("; a lower bound")}
        assert {"flops", "forward_time_ns", "idle_share"} & marked == (
            {"flops", "forward_time_ns", "idle_share"} if kernels == 30 else set()
        )
    assert bool(compared.not_comparable) is (kernels < 50)
    if kernels < 50:
        with pytest.raises(GateError):
            require_agreement(anatomy)


@pytest.mark.parametrize("make", [anatomies.bert_on_cpu, anatomies.llama_on_gpu])
def test_a_report_meets_gates_at_its_own_values_and_none_just_below(make: type[Anatomy]) -> None:
    anatomy = make()
    names = [row.name for row in opanatomy.compare(anatomy, anatomy).figures]
    assert len(names) > 30
    for value in ("> +0%", "< -0%", "> +0% if significant", "> +5%"):
        assert all(
            gate.met
            for gate in opanatomy.compare(anatomy, anatomy, fail_if=[f"{name} {value}" for name in names]).gates
        )
    for name, metric in metrics_of(anatomy).items():
        if metric.value <= 0 or metric.unit == "rank":
            continue
        (own,) = gates_of(["steps > 1"])
        own = replace(own, text=name, figure=name, unit=metric.unit, value=Fraction(metric.value))
        at, under = judged_report(anatomy, (own, replace(own, value=own.value * Fraction(999_999_999, 1_000_000_000))))
        assert (at.met, at.unknown, under.met) == (not metric.lower_bound, metric.lower_bound, False)


# ----------------------------------------------------------------------------------------------------- junit, benchmark

HOSTILE = 'a]]><script>&"\x00\x1b[31m\ud800￿\u2028\n<!--'


def junit(comparison: Comparison) -> ElementTree.Element:
    return ElementTree.fromstring(format_named("junit").write(comparison, Page()))[0]


def test_junit_has_a_case_for_each_gate() -> None:
    comparison = compared(figure("step_time_ns", 100 * MS, 110 * MS), figure("flops", 1, 1, unit="flop"))
    began = (1_795_376_275_999_999_999, 1_795_376_276_000_000_000)
    sides = tuple(replace(each, began_ns=(when, None)) for each, when in zip(comparison.sides, began, strict=True))
    comparison = judged(replace(comparison, sides=sides), gates_of(["time > +5%", "flops > +0%"]))
    suite = junit(comparison)
    assert suite.attrib == {
        "name": "old to new",
        "package": "opanatomy",
        "id": "0",
        "timestamp": "2026-11-22T19:37:56",
        "hostname": "localhost",
        "tests": "2",
        "failures": "1",
        "errors": "0",
        "skipped": "0",
        "time": "0.22",
    }
    # The order, and what is required even if it is empty, are those of the schema of Ant's reports.
    assert [element.tag for element in suite] == ["properties", "testcase", "testcase", "system-out", "system-err"]
    failed, met = suite[1:3]
    assert failed.attrib == {"classname": "opanatomy.gates", "name": "time > +5%", "time": "0.11"}
    assert (failed[0].tag, len(met)) == ("failure", 0)
    assert (failed[0].attrib["message"], failed[0].text) == (
        "FAILED: time > +5% (is +10 %)",
        comparison.gates[0].reason,
    )
    assert suite[3].text == "passed: flops > +0% (is +0 %): flops: 1 FLOP on both sides, no difference"
    hostile = junit(
        replace(compared(sides=(HOSTILE, "new")), gates=(GateResult(gate=HOSTILE, met=False, reason=HOSTILE),))
    )
    assert hostile[1].attrib["name"].startswith('a]]><script>&"��[31m��\u2028')
    assert (hostile[1][0].text or "").endswith("<!--")
    assert hostile[1].attrib["time"] == "0"
    none = junit(compared())
    assert (none.attrib["tests"], none.findall("testcase")) == ("0", [])
    assert none.findtext("system-out") == "no gates - each --fail-if adds a test case"
    assert [format_of(name) for name in ("gates.xml", "a.benchmark.json", "a.json")] == ["junit", "benchmark", "json"]


def test_the_benchmark_has_what_is_better_when_smaller() -> None:
    """Of a comparison it is the last side, with the range of its samples."""
    anatomy = anatomies.llama_on_gpu()
    entries = json.loads(format_named("benchmark").write(anatomy, Page()))
    assert {entry["name"]: (entry["value"], entry["unit"]) for entry in entries} == {
        name: (metric.value, metric.unit)
        for name, metric in metrics_of(anatomy).items()
        if metric.better == "lower" and ("." not in name or (name.startswith("class.") and name.endswith(".time_ns")))
    }
    spread = Spread(median=107 * MS, low=101 * MS, high=109 * MS, count=3)
    row = replace(figure("step_time_ns", 100 * MS, 107 * MS), spreads=(None, spread))
    better = replace(figure("mfu", 0.3, 0.4, unit="fraction"), better="higher")
    assert json.loads(format_named("benchmark").write(compared(row, better, figure("idle_ns", 1, None)), Page())) == [
        {"name": "step_time_ns", "unit": "ns", "value": 107 * MS, "range": "101 ms to 109 ms", "extra": "1 run"}
    ]


# ---------------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """A report, and the same with a step that takes 10 % more."""
    anatomy = anatomies.llama_on_gpu()
    for name, ns in (("before", 100 * MS), ("after", 110 * MS)):
        report = replace(anatomy, step=replace(anatomy.step, unprofiled_wall_ns=ns))
        (tmp_path / f"{name}.json").write_text(format_named("json").write(report, Page()))
    return tmp_path


GATED = ("--fail-if", "kernel_time > 1ns", "--fail-if", "time > 1h")


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        # A line for each gate that is not met, behind the page.
        (
            (
                "compare",
                "before.json",
                "after.json",
                "--fail-if",
                "time > +5%",
                "--fail-if",
                "flops > +0%",
                "--fail-if",
                "waiting > 1ms",
                "-o",
                "gates.xml",
            ),
            3,
            [
                "FAILED: time > +5% (is +10 %): step_time_ns: ",
                "UNKNOWN: waiting > 1ms: waiting_ns is unknown for all sides",
            ],
        ),
        (
            (
                "compare",
                "after.json",
                "after.json",
                "--fail-if",
                "time > +0%",
                "--fail-if",
                "memory > +0B",
                "--fail-if",
                "class.contraction > +0% if significant",
            ),
            0,
            [],
        ),
        (("analyze", "after.json", *GATED), 3, ["FAILED: kernel_time > 1ns (is "]),
        (("analyze", str(TRACES / "gpu_a100_alexnet.json.gz"), *GATED), 3, ["FAILED: kernel_time > 1ns (is "]),
        # A wrong gate is said before anything is read.
        *(
            (
                (*verb, "--fail-if", "tiem > 5ms"),
                2,
                ["gate 'tiem > 5ms': metric 'tiem': unknown - did you mean"],
            )
            for verb in (("compare", "none.json", "nowhere.json"), ("analyze", "none.json"), ("profile", "no/model"))
        ),
    ],
)
def test_the_command(command: tuple[str, ...], code: int, said: list[str], reports: Path) -> None:
    done = run(*command, cwd=reports)
    assert done.returncode == code, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("opanatomy: ")]
    assert len(lines) == len(said)
    for line, begins in zip(lines, said, strict=True):
        assert line.startswith(f"opanatomy: {begins}")
    if "gates.xml" in command:
        assert ElementTree.parse(reports / "gates.xml").getroot()[0].attrib["failures"] == "2"
