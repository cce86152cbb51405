"""Gates: how they are written, what they hold to, what they say, and how they leave the command."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from opanatomy.api import comparison_of
from opanatomy.errors import GateError, UsageError
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.comparison import Comparison, FigureRow, GateResult, Side, Spread
from opanatomy.report import format_of
from opanatomy.report.formats import format_named
from opanatomy.report.formats.benchmark import benchmark_report
from opanatomy.report.formats.json import json_report
from opanatomy.report.formats.junit import junit_report
from opanatomy.report.gates import Gate, Of, gates_of, gates_of_one, judged, judged_report, require_met
from opanatomy.report.metrics import metrics_of
from opanatomy.report.section import Page
from tests import anatomies
from tests.command import run

TRACES = Path(__file__).parent / "traces"
MS = 1_000_000


def gate(text: str) -> Gate:
    return gates_of([text])[0]


# ---------------------------------------------------------------------------------------------------------- the grammar


@pytest.mark.parametrize(
    ("text", "figure", "of", "comparison", "value"),
    [
        ("time > +5%", "step_time_ns", Of.CHANGE, ">", Fraction(1, 20)),
        ("TIME>=-10 %", "step_time_ns", Of.CHANGE, ">=", Fraction(-1, 10)),
        ("time ≥ +0.1%", "step_time_ns", Of.CHANGE, ">=", Fraction(1, 1000)),
        ("memory > +100MB", "peak_memory_bytes", Of.DIFFERENCE, ">", 100_000_000),
        ("memory > 16 GB", "peak_memory_bytes", Of.VALUE, ">", 16_000_000_000),
        ("memory > 1.5GiB", "peak_memory_bytes", Of.VALUE, ">", 3 << 29),
        ("memory.weights <= 3 kib", "memory.weights_bytes", Of.VALUE, "<=", 3072),
        ("step time > +2ms", "step_time_ns", Of.DIFFERENCE, ">", 2 * MS),
        ("forward > 250 µs", "forward_time_ns", Of.VALUE, ">", 250_000),
        ("step_time_ns > 250", "step_time_ns", Of.VALUE, ">", 250),
        ("exposed > 0", "exposed_communication_ns", Of.VALUE, ">", 0),
        ("idle_share > 40%", "idle_share", Of.VALUE, ">", Fraction(2, 5)),
        ("idle-share > 0.4", "idle_share", Of.VALUE, ">", Fraction(2, 5)),
        ("idle_share > +5pp", "idle_share", Of.DIFFERENCE, ">", Fraction(1, 20)),
        ("idle_share > +5%", "idle_share", Of.CHANGE, ">", Fraction(1, 20)),
        ("mfu < 38.5 %", "mfu", Of.VALUE, "<", Fraction(385, 1000)),
        ("flops > 3.2e12", "flops", Of.VALUE, ">", 3_200_000_000_000),
        ("flops > 3.2 TFLOP", "flops", Of.VALUE, ">", 3_200_000_000_000),
        ("class.contraction.flops > +2G", "class.tensor_contraction.flops", Of.DIFFERENCE, ">", 2_000_000_000),
        ("throughput < -5%", "samples_per_second", Of.CHANGE, "<", Fraction(-1, 20)),
        ("throughput < 1.5k samples/s", "samples_per_second", Of.VALUE, "<", 1500),
        ("kernels > +100", "kernels", Of.DIFFERENCE, ">", 100),
        ("ratio.contraction.flops > 2", "ratio.tensor_contraction.flops", Of.VALUE, ">", 2),
    ],
)
def test_a_gate_is_a_figure_a_comparison_and_a_value(
    text: str, figure: str, of: Of, comparison: str, value: Fraction
) -> None:
    read = gate(text)
    assert (read.figure, read.of, read.comparison, read.value, read.significant) == (
        figure, of, comparison, value, False
    )  # fmt: skip


def test_a_change_may_have_to_be_significant() -> None:
    assert gate("time > +5% if significant").significant
    assert gate("time > +5%  IF  Significant").text == "time > +5% IF Significant"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tim > +5%", "did you mean time"),
        ("peak_memroy > 1GB", "did you mean peak_memory_bytes"),
        ("time > 5%", "a change has a sign: time > +5%"),
        ("memory > 3 ms", "'ms' is not a unit of peak_memory_bytes - its units: B, kB, MB"),
        ("time > +3 GB", "'GB' is not a unit of step_time_ns - its units: ns, us, ms"),
        ("flops > 3 TFLOP/s", "'TFLOP/s' is not a unit of flops"),
        ("kernels > 3 ms", "'ms' is not a unit of kernels"),
        ("time > +5pp", "'pp' is not a unit of step_time_ns"),
        ("time > 250", "step_time_ns needs a unit"),
        ("memory > +16", "peak_memory_bytes needs a unit"),
        ("idle_share > 40", "at most 1 - write the share with %"),
        ("idle_share > 5pp", "write +5pp, or 5% for the share itself"),
        ("time == 5ms", "== is not a comparison of a gate - one of >, >=, <, <="),
        ("time => +5%", "=> is not a comparison"),
        ("time", "write FIGURE > VALUE"),
        ("", "write FIGURE > VALUE"),
        ("> +5%", "names no figure"),
        ("time >", "has no value"),
        ("time > much", "'much' is not a value"),
        ("time > +1,5%", "'+1,5%' is not a value"),
        ("time > 1.5.2ms", "is not a value"),
        ("time > nan ms", "is not a value"),
        ("time > 1e999s", "is not a value"),
        (f"time > {'9' * 100}ms", "is not a value"),
        (f"time > {'9' * 10_000}ms", "longer than any gate"),
        ("time > +5% and memory > 1GB", "give each as a gate of its own"),
        ("time > 5ms if significant", "only a change is tested"),
        ("time > +5%\x1b[31m", r"'%\x1b[31m' is not a unit"),
    ],
)
def test_what_is_no_gate_is_said_in_one_line(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        gates_of(["memory > 1GB", text])
    assert says in str(caught.value)
    assert str(caught.value).startswith("gate ")
    assert str(caught.value).isprintable()


def test_a_gate_on_one_report_is_on_values() -> None:
    assert len(gates_of_one(["time > 5ms", "idle_share > 40%"])) == 2
    with pytest.raises(UsageError, match=r"a change is of two reports, here is one"):
        gates_of_one(["time > +5%"])


# -------------------------------------------------------------------------------------------------------------- judging


def side(name: str) -> Side:
    return Side(name=name, model=None, device=None, software=None, runs=1, ranks=0)


def compared(*rows: FigureRow, sides: tuple[str, ...] = ("old", "new"), no_claim: str | None = "one run") -> Comparison:
    return Comparison(sides=tuple(map(side, sides)), figures=rows, no_claim=no_claim)


def figure(name: str, *values: float | None, unit: str = "ns", p: float | None = None, **options: Any) -> FigureRow:
    return FigureRow(name=name, unit=unit, better="lower", values=values, p=p, **options)


def result(comparison: Comparison, text: str) -> GateResult:
    return judged(comparison, gates_of([text])).gates[0]


@pytest.mark.parametrize(
    ("text", "before", "after", "met"),
    [
        ("time > +5%", 100, 105, True),  # exactly 5 %, of which a float of the quotient makes more
        ("time > +5%", 100, 106, False),
        ("time >= +5%", 100, 105, False),
        ("time > +10%", 3, 3.3, True),  # 3.3 is a little less than three times 1.1
        ("time > +5%", 100, 100, True),
        ("time > -10%", 100, 95, False),
        ("time > -10%", 100, 90, True),
        ("time < -10%", 100, 80, False),
        ("time > +5%", 0, 0, True),
        ("time > +5%", 0, 1, False),
        ("time > +2ms", 10 * MS, 12 * MS, True),
        ("time > +2ms", 10 * MS, 12 * MS + 1, False),
        ("time < -2ms", 10 * MS, 7 * MS, False),
        ("time > 12ms", 99 * MS, 12 * MS, True),
        ("time > 12ms", 1 * MS, 12 * MS + 1, False),
        ("time <= 12ms", 1 * MS, 12 * MS, False),
    ],
)
def test_values_are_compared_exactly(text: str, before: float, after: float, met: bool) -> None:
    assert result(compared(figure("step_time_ns", before, after)), text).met is met


def test_the_reason_has_both_values_the_change_the_ranges_and_that_nothing_is_claimed() -> None:
    row = replace(
        figure("step_time_ns", 100 * MS, 107 * MS),
        spreads=(Spread(median=100 * MS, low=99 * MS, high=102 * MS, count=3),
                 Spread(median=107 * MS, low=101 * MS, high=109 * MS, count=3)),
        ranges="overlapping",
    )  # fmt: skip
    assert result(compared(row), "time > +5%") == GateResult(
        gate="time > +5%", met=False, measured="+7 %",
        reason="step_time_ns: 100 ms before, 107 ms after, +7 %; ranges overlapping (99.0 ms to 102 ms and 101 ms to"
        " 109 ms); not called significant: one run",
    )  # fmt: skip


def test_a_reason_has_every_digit_where_rounding_hides_what_it_is_about() -> None:
    comparison = compared(figure("step_time_ns", 250_000_000, 250_000_001))
    assert result(comparison, "time > 250ms").reason == "step_time_ns is 250,000,001 ns"
    reason = result(comparison, "time > +0ns").reason
    assert reason.startswith("step_time_ns: 250,000,000 ns before, 250,000,001 ns after, +1 ns, +4e-07 %")


@pytest.mark.parametrize("p", [0.3, 0.05])
def test_what_is_not_significant_fails_no_gate_that_asks_for_it(p: float) -> None:
    comparison = compared(figure("step_time_ns", 100, 110, p=p), no_claim=None)
    assert result(comparison, "time > +5% if significant").met
    plain = result(comparison, "time > +5%")
    assert not plain.met
    assert plain.reason.endswith(f"not significant (p = {p})")


def test_what_is_significant_fails_a_gate_that_asks_for_it() -> None:
    comparison = compared(figure("step_time_ns", 100, 110, p=0.029), no_claim=None)
    failed = result(comparison, "time > +5% if significant")
    assert not failed.met
    assert failed.reason.endswith("; significant (p = 0.029)")
    assert result(comparison, "time > +20% if significant").met


@pytest.mark.parametrize(("p", "no_claim"), [(0.001, "one run"), (None, None)])
def test_a_claim_that_cannot_be_tested_is_a_gate_that_fails(p: float | None, no_claim: str | None) -> None:
    comparison = compared(figure("step_time_ns", 100, 110, p=p), no_claim=no_claim)
    failed = result(comparison, "time > +5% if significant")
    assert not failed.met
    assert failed.reason.endswith("so it cannot be checked")
    unchanged = compared(figure("step_time_ns", 100, 100, p=p), no_claim=no_claim)
    assert result(unchanged, "time > +5% if significant").met


def test_a_figure_that_is_not_known_is_a_gate_that_fails() -> None:
    comparison = compared(figure("idle_ns", None, 5), figure("busy_ns", 5, None), figure("memcpy_ns", 1, 2))
    for text, says in (
        ("idle > +5%", "idle_ns is not known of old, so it cannot be checked"),
        ("busy_ns > 5ms", "busy_ns is not known of new, so it cannot be checked"),
        (
            "exposed_memcpy_ns > +5%",
            "exposed_memcpy_ns is not known of any side, so it cannot be checked; known are memcpy_ns",
        ),
    ):
        failed = result(comparison, text)
        assert not failed.met
        assert failed.reason.startswith(says)
    assert result(comparison, "idle > 5ms").met  # on the side itself, which has it


def test_a_step_without_the_profiler_is_not_held_against_one_under_it() -> None:
    rows = figure("step_time_ns", 100, 90), figure("step_unprofiled_ns", 100, None), figure("step_profiled_ns", 120, 90)
    failed = result(compared(*rows), "time > +5%")
    assert not failed.met
    assert failed.reason.startswith("new was timed under the profiler alone")
    assert result(compared(*rows), "profiled > +5%").met
    assert result(compared(*rows), "time > 1ms").met


def test_of_several_sides_each_is_held_against_the_first() -> None:
    comparison = compared(figure("step_time_ns", 100 * MS, 120 * MS, 90 * MS), sides=("a", "b", "c"))
    failed = result(comparison, "time > +5%")
    assert not failed.met
    assert failed.reason.startswith("step_time_ns of b: 100 ms before, 120 ms after, +20 %")
    assert result(comparison, "time > +30%").met
    assert not result(compared(figure("step_time_ns", 1, 1, None), sides=("a", "b", "c")), "time > +5%").met


def test_every_gate_that_fails_has_its_line() -> None:
    comparison = judged(
        compared(figure("step_time_ns", 100, 110), figure("flops", 1, 1, unit="flop")),
        gates_of(["time > +5%", "flops > +0%", "kernels > 3"]),
    )
    with pytest.raises(GateError) as caught:
        require_met(comparison.gates)
    assert [reason.split(": ")[:2] for reason in caught.value.reasons] == [
        ["FAILED", "time > +5% (is +10 %)"], ["UNKNOWN", "kernels > 3"]
    ]  # fmt: skip
    require_met(gate for gate in comparison.gates if gate.met)


@pytest.mark.parametrize("make", [anatomies.bert_on_cpu, anatomies.llama_on_gpu])
def test_a_report_compared_with_itself_meets_a_gate_on_each_of_its_figures(make: type[Anatomy]) -> None:
    comparison = comparison_of([make(), make()])
    names = [row.name for row in comparison.figures]
    assert len(names) > 30
    for value in ("> +0%", "< -0%", "> +0% if significant", "> +5%"):
        assert all(met.met for met in judged(comparison, gates_of([f"{name} {value}" for name in names])).gates)


@pytest.mark.parametrize("make", [anatomies.bert_on_cpu, anatomies.llama_on_gpu])
def test_a_gate_at_the_value_of_each_figure_is_met_and_just_below_it_is_not(make: type[Anatomy]) -> None:
    anatomy = make()
    for name, metric in metrics_of(anatomy).items():
        if metric.value <= 0 or metric.unit == "rank":
            continue
        own = Gate(text=name, figure=name, unit=metric.unit, of=Of.VALUE, comparison=">", value=Fraction(metric.value))
        below = replace(own, value=own.value * Fraction(999_999_999, 1_000_000_000))
        at, under = judged_report(anatomy, (own, below))
        assert (at.met, at.unknown, under.met) == (not metric.lower_bound, metric.lower_bound, False)


@pytest.mark.parametrize(
    ("text", "before", "after", "line"),
    [
        ("time > +5%", 100 * MS, 106.5 * MS, "FAILED: time > +5% (is +6.5 %): "),
        ("time > +5%", 100 * MS, 103 * MS, "passed: time > +5% (is +3 %): "),
        ("time > +5%", 100 * MS, 100 * MS, "passed: time > +5% (is +0 %): "),
        ("time > +5%", 100_000_000, 105_000_001, "FAILED: time > +5% (is +5.000001 %): "),
        ("time > +2ms", 100 * MS, 107 * MS, "FAILED: time > +2ms (is +7.00 ms): "),
        ("time > 250ms", 300 * MS, 107 * MS, "passed: time > 250ms (is 107 ms): "),
        ("time > 250ms", 300 * MS, 270 * MS, "FAILED: time > 250ms (is 270 ms): "),
        ("time > +5%", None, 270 * MS, "UNKNOWN: time > +5%: step_time_ns is not known of old, so it cannot be"),
    ],
)  # fmt: skip
def test_a_gate_speaks_of_its_condition(text: str, before: float | None, after: float, line: str) -> None:
    assert result(compared(figure("step_time_ns", before, after)), text).line.startswith(line)


@pytest.mark.parametrize(
    ("text", "bounds", "line"),
    [
        ("mfu < 30%", (False, True), "passed: mfu < 30% (is at least 36.9 %): mfu is 36.9 %"),
        (
            "mfu < 40%",
            (False, True),
            "UNKNOWN: mfu < 40% (is at least 36.9 %): mfu is 36.9 %; this is a lower bound, so",
        ),
        ("mfu > 30%", (False, True), "FAILED: mfu > 30% (is at least 36.9 %): "),
        ("mfu > 40%", (False, True), "UNKNOWN: mfu > 40% (is at least 36.9 %): "),
        ("mfu < 40%", (True, False), "FAILED: mfu < 40% (is 36.9 %): "),
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
        device = replace(anatomy.device, mfu=0.369, mfu_covered=covered)
        met, failed = judged_report(replace(anatomy, device=device), gates_of(["mfu < 30%", "mfu < 40%"]))
        assert (met.met, failed.met, failed.unknown) == (True, False, unknown)
        digest = format_named("digest").write(replace(anatomy, device=device), Page())
        assert f"- MFU: {'≥ ' if unknown else ''}36.9 %" in digest


def test_a_change_of_what_is_counted_is_a_change() -> None:
    """FLOPs and bytes have no noise: no word of significance, and a gate that asks for it takes them as they are."""
    row = figure("flops", 100, 101, unit="flop", exact=True)
    failed = result(compared(row), "flops > +0% if significant")
    assert failed.line == "FAILED: flops > +0% if significant (is +1 %): flops: 100 FLOP before, 101 FLOP after, +1 %"
    assert result(compared(row), "flops > +5%").line.startswith("passed: flops > +5% (is +1 %)")


def test_a_change_of_sides_that_are_not_of_the_same_is_unknown() -> None:
    comparison = replace(compared(figure("step_time_ns", 100 * MS, 90 * MS)), not_comparable=("a is no b", "c is no d"))
    unknown = result(comparison, "time > +5%")
    assert unknown.line == "UNKNOWN: time > +5%: the sides cannot be compared: a is no b; c is no d"
    assert (unknown.met, unknown.unknown) == (False, True)
    assert result(comparison, "time > 95ms").met  # on the side itself


# ----------------------------------------------------------------------------------------------------- junit, benchmark


HOSTILE = 'a]]><script>&"\x00\x1b[31m\ud800￿\u2028\n<!--'


def test_junit_has_a_case_for_each_gate() -> None:
    comparison = compared(figure("step_time_ns", 100 * MS, 110 * MS), figure("flops", 1, 1, unit="flop"))
    began = (1_795_376_275_999_999_999, 1_795_376_276_000_000_000)
    sides = tuple(replace(each, began_ns=(when, None)) for each, when in zip(comparison.sides, began, strict=True))
    comparison = judged(replace(comparison, sides=sides), gates_of(["time > +5%", "flops > +0%"]))
    suite = ElementTree.fromstring(junit_report(comparison, Page()))[0]
    assert suite.attrib == {
        "name": "old to new", "package": "opanatomy", "id": "0", "timestamp": "2026-11-22T19:37:56",
        "hostname": "localhost", "tests": "2", "failures": "1", "errors": "0", "skipped": "0", "time": "0",
    }  # fmt: skip
    # The order, and what is required even if it is empty, are those of the schema of Ant's reports.
    assert [element.tag for element in suite] == ["properties", "testcase", "testcase", "system-out", "system-err"]
    failed, met = suite[1:3]
    assert failed.attrib == {"classname": "opanatomy.gates", "name": "time > +5%", "time": "0"}
    assert failed[0].tag == "failure"
    assert failed[0].attrib["message"] == comparison.gates[0].line
    assert len(met) == 0
    assert suite[3].text is not None
    assert suite[3].text.endswith("\npassed: flops > +0% (is +0 %): flops: 1 FLOP on both sides, no difference")


def test_junit_of_hostile_names_is_text() -> None:
    comparison = replace(compared(sides=(HOSTILE, "new")), gates=(GateResult(gate=HOSTILE, met=False, reason=HOSTILE),))
    text = junit_report(comparison, Page())
    case = ElementTree.fromstring(text.encode())[0][1]
    shown = 'a]]><script>&"��[31m��\u2028'
    assert case.attrib["name"].startswith(shown)
    assert case[0].attrib["message"].endswith("<!--")
    assert len(list(ElementTree.fromstring(text).iter())) == 7


def test_the_ending_of_a_name_says_the_format() -> None:
    assert [format_of(name) for name in ("gates.xml", "a.benchmark.json", "a.json")] == ["junit", "benchmark", "json"]


def test_the_benchmark_has_what_is_better_when_smaller() -> None:
    anatomy = anatomies.llama_on_gpu()
    metrics = metrics_of(anatomy)
    entries = json.loads(benchmark_report(anatomy))
    assert {entry["name"]: (entry["value"], entry["unit"]) for entry in entries} == {
        name: (metric.value, metric.unit)
        for name, metric in metrics.items()
        if metric.better == "lower" and ("." not in name or (name.startswith("class.") and name.endswith(".time_ns")))
    }
    assert {"step_time_ns", "flops", "class.tensor_contraction.time_ns"} <= {entry["name"] for entry in entries}
    assert not {"mfu", "samples_per_second"} & {entry["name"] for entry in entries}


def test_the_benchmark_of_a_comparison_is_its_last_side_with_the_range_of_its_samples() -> None:
    row = replace(
        figure("step_time_ns", 100 * MS, 107 * MS),
        spreads=(None, Spread(median=107 * MS, low=101 * MS, high=109 * MS, count=3)),
    )
    better = replace(figure("mfu", 0.3, 0.4, unit="fraction"), better="higher")
    assert json.loads(benchmark_report(compared(row, better, figure("idle_ns", 1, None)))) == [
        {"name": "step_time_ns", "unit": "ns", "value": 107 * MS, "range": "101 ms to 109 ms", "extra": "1 run"}
    ]


# ---------------------------------------------------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report, and the same with a step that takes 10 % more."""
    folder = tmp_path_factory.mktemp("reports")
    anatomy = anatomies.llama_on_gpu()
    for name, ns in (("before", 100 * MS), ("after", 110 * MS)):
        report = replace(anatomy, step=replace(anatomy.step, unprofiled_wall_ns=ns))
        (folder / f"{name}.json").write_text(json_report(report))
    return folder


def test_compare_exits_3_with_a_line_for_each_gate_behind_its_page(reports: Path) -> None:
    command = run(
        "compare", "before.json", "after.json", "--fail-if", "time > +5%", "--fail-if", "flops > +0%",
        "--fail-if", "waiting > 1ms", cwd=reports,
    )  # fmt: skip
    assert command.returncode == 3
    lines = [line for line in command.stderr.splitlines() if line.startswith("opanatomy: ")]
    assert len(lines) == 2
    assert lines[0].startswith("opanatomy: FAILED: time > +5% (is +10 %): step_time_ns: ")
    assert lines[1].startswith("opanatomy: UNKNOWN: waiting > 1ms: waiting_ns is not known of any side")
    assert "passed: flops > +0% (is +0 %)" in command.stdout


def test_compare_of_a_run_with_itself_exits_0(reports: Path) -> None:
    command = run(
        "compare", "after.json", "after.json", "--fail-if", "time > +0%", "--fail-if", "memory > +0B",
        "--fail-if", "class.contraction > +0% if significant", cwd=reports,
    )  # fmt: skip
    assert command.returncode == 0, command.stderr


def test_a_wrong_gate_is_said_before_anything_is_read(reports: Path) -> None:
    for verb in (["compare", "none.json", "nowhere.json"], ["analyze", "none.json"], ["profile", "no/model"]):
        command = run(*verb, "--fail-if", "tiem > 5ms", cwd=reports)
        assert (command.returncode, command.stdout) == (2, "")
        assert command.stderr.startswith("opanatomy: gate 'tiem > 5ms': metric 'tiem': not known - did you mean")


def test_junit_without_a_gate_says_so() -> None:
    suite = ElementTree.fromstring(junit_report(compared(), Page()))[0]
    assert (suite.attrib["tests"], suite.findall("testcase")) == ("0", [])
    assert suite.findtext("system-out") == "no gate was given: each --fail-if is a test case"


def test_junit_is_written_where_a_gate_fails(reports: Path, tmp_path: Path) -> None:
    command = run(
        "compare", str(reports / "before.json"), str(reports / "after.json"), "--fail-if", "time > +5%",
        "-o", "gates.xml", cwd=tmp_path,
    )  # fmt: skip
    assert command.returncode == 3
    assert ElementTree.parse(tmp_path / "gates.xml").getroot()[0].attrib["failures"] == "1"


def test_analyze_holds_a_trace_and_a_report_to_values(reports: Path) -> None:
    trace = str(TRACES / "gpu_a100_alexnet.json.gz")
    for given in (trace, "after.json"):
        command = run("analyze", given, "--fail-if", "kernel_time > 1ns", "--fail-if", "time > 1h", cwd=reports)
        assert command.returncode == 3
        (line,) = (line for line in command.stderr.splitlines() if "FAILED" in line or "UNKNOWN" in line)
        assert line.startswith("opanatomy: FAILED: kernel_time > 1ns (is ")
    command = run("analyze", "after.json", "--fail-if", "kernel_time > 1ns", "-f", "junit", cwd=reports)
    assert command.returncode == 3
    case = ElementTree.fromstring(command.stdout)[0][1]
    assert (case.attrib["name"], case[0].tag) == ("kernel_time > 1ns", "failure")
