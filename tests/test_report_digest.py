"""The digest: never more than 4,096 bytes, the same bytes each time, every figure that of the JSON report.

Figures are read back as tests/printed_figures.py does.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import opanatomy
from opanatomy.api import comparison_of
from opanatomy.records.anatomy import Anatomy, IdleRow
from opanatomy.records.taxonomy import IdleCause
from opanatomy.report.formats import format_named
from opanatomy.report.section import Page
from opanatomy.report.sections.step import label_of
from tests import anatomies
from tests.experiments import experiment
from tests.printed_figures import Figure, figures_in

FOLDER = Path(__file__).parent / "traces"
TRACES = sorted(path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz"))
MADE = ("bert_on_cpu", "llama_on_gpu", "nothing")
SHARED = FOLDER.parent.parent.parent / "shared"
#: Traces of others where they are at hand; those that take seconds to read are left to the long run.
OTHERS = [
    pytest.param(path, id=f"{path.parent.name}-{path.name[:40]}",
                 marks=[pytest.mark.exhaustive] if path.stat().st_size > 60_000 else [])
    for folder in ("traces", "more_traces") for path in sorted((SHARED / folder).rglob("*.json.gz"))
]  # fmt: skip
HEADINGS = [
    "# opanatomy digest", "## What ran", "## The step", "## Where the time went",
    "## Memory", "## Largest findings", "## Warnings",
]  # fmt: skip
#: Lines that say a name or a word of the JSON report.
WORDS = {
    "architecture", "task", "data type", "autocast", "attention", "checkpointing", "optimizer", "compiled", "inference",
    "generation", "device", "kind of device", "torch", "opanatomy", "trace", "model",
}  # fmt: skip


def time_of(rows: list[dict[str, Any]]) -> float:
    return float(sum(row["time_ns"] for row in rows))


def costed(rows: list[dict[str, Any]]) -> float:
    return float(sum(row["time_ns"] - row["uncosted_ns"] for row in rows if row["flops"] is not None))


#: Lines of words with figures that are said elsewhere.
SENTENCES = {"before you read on", "steps that do not count"}


@cache
def anatomy_of(name: str | Path) -> Anatomy:
    if isinstance(name, Path):
        return opanatomy.analyze(name)
    if name == "two_ranks":
        return opanatomy.analyze([FOLDER / f"gpu_v100_dlrm_rank{rank}of8.json.gz" for rank in (0, 1)])
    made: Anatomy = getattr(anatomies, name)() if name in MADE else opanatomy.analyze(FOLDER / f"{name}.json.gz")
    return made


def written(format_name: str, name: str | Path) -> str:
    return format_named(format_name).write(anatomy_of(name), Page())


def lines_of(digest: str) -> tuple[dict[str, list[tuple[str, str]]], dict[str, int]]:
    """The (label, text) of each line, and how many lines more there would be, by heading."""
    lines: dict[str, list[tuple[str, str]]] = defaultdict(list)
    dropped: dict[str, int] = defaultdict(int)
    heading = ""
    for line in digest.splitlines():
        if line.startswith("## "):
            heading = line
        elif more := re.fullmatch(r"- and ([\d,]+) more", line):
            dropped[heading] = int(more[1].replace(",", ""))
        elif line.startswith("- ") and line != "- none":
            label, _, text = line[2:].partition(": ")
            lines[heading].append((label, text))
    return lines, dropped


def admits(figure: Figure, exact: float) -> bool:
    return figure.admits(exact)


@pytest.mark.parametrize("name", [*MADE, *TRACES, "two_ranks", *OTHERS])
def test_it_fits_has_all_headings_and_says_the_same_each_time(name: str | Path) -> None:
    digest = written("digest", name)
    assert len(digest.encode()) <= 4096
    assert [line for line in digest.splitlines() if line.startswith(("# ", "## "))] == HEADINGS
    assert digest == format_named("digest").write(opanatomy.report.read_anatomy(written("json", name)), Page())


@pytest.mark.parametrize("name", [*MADE, *TRACES, "two_ranks", *OTHERS])
def test_every_figure_is_that_of_the_json_report(name: str | Path) -> None:
    report, (lines, dropped) = json.loads(written("json", name)), lines_of(written("digest", name))
    for heading, expected in (
        (HEADINGS[1], _run(report)), (HEADINGS[2], _step(report)), (HEADINGS[3], _time(report)),
        (HEADINGS[4], _memory(report)),
    ):  # fmt: skip
        values: dict[str, list[list[float | None]]] = defaultdict(list)
        for label, numbers in expected:
            if numbers[0] is not None:
                values[label].append(numbers)
        for label, text in lines[heading]:
            if label in SENTENCES or (heading == HEADINGS[1] and label in WORDS):
                continue
            figures, numbers = figures_in(text.rpartition(": ")[2]), values[label].pop(0)
            assert len(figures) == len([number for number in numbers if number is not None]), (label, text, numbers)
            for figure, number in zip(figures, [number for number in numbers if number is not None], strict=True):
                assert figure.admits(number), (label, text, number)
        # Nothing is left out but what "and N more" says.
        assert sum(map(len, values.values())) <= dropped[heading], (heading, values)


def idle_row(row: dict[str, Any]) -> IdleRow:
    return IdleRow(cause=IdleCause(row["cause"]), time_ns=row["time_ns"], name=row.get("name"))


Lines = Iterator[tuple[str, list[float | None]]]


def _part(value: float | None, whole: float | None) -> list[float | None]:
    """A time and its share of a whole in percent, as "12.3 ms (4.5 %)"."""
    return [value, 100 * value / whole] if value is not None and whole else [value]


def _run(report: dict[str, Any]) -> Lines:
    workload = report["workload"]
    yield "parameters", [workload["parameters"]]
    yield "trained parameters", [workload["trainable_parameters"]]
    yield "batch", [workload["batch"]]
    yield "sequence length", [workload["sequence_length"]]
    yield "ranks", [len(report["ranks"]) or None]


def _step(report: dict[str, Any]) -> Lines:
    step, wall = report["step"], report["step"]["wall_ns"]
    yield "profiled steps", [step["count"]]
    of_trace = any(row["number"] is None for row in step["steps"])
    yield "whole trace, taken for one step" if of_trace else "step, profiled", [wall]
    yield "step, without the profiler", [step["unprofiled_wall_ns"]]
    yield "samples", [step["samples_per_second"]]
    for phase in ("forward", "backward", "optimizer", "prefill", "decoding"):
        yield phase, _part(step["phase_ns"].get(phase), wall)
    if report["environment"]["device_kind"] == "cpu":
        yield "framework", _part(step["framework_ns"], wall)
    elif not of_trace:
        yield "kernel time", [step["kernel_time_ns"]]
    mfu = report["device"]["mfu"]
    yield "MFU", [None if mfu is None else 100 * mfu]


def _time(report: dict[str, Any]) -> Lines:
    """Sums over all steps, of all ranks, divided by their number; the window is of one rank."""
    timeline, steps = report["timeline"], max(report["step"]["count"], 1)
    in_window = steps / max(len(report["ranks"]), 1)
    work = sum(row["time_ns"] for row in report["classes"]) / steps
    if report["environment"]["device_kind"] != "cpu":
        window = (timeline["window_ns"] - (timeline["outside_ns"] or 0)) / in_window
        of_trace = any(row["number"] is None for row in report["step"]["steps"])
        yield "from the first to the last device work" if of_trace else "mean step", [window]
        yield "not in it, other steps' work", [(timeline["outside_ns"] or 0) / in_window or None]
        for label, ns in (
            ("device busy", timeline["busy_ns"]), ("device idle", timeline["idle_ns"]),
            *((f"idle, {label_of(idle_row(row))}", row["time_ns"]) for row in timeline["causes"][:4]),
            ("not recorded", timeline["unrecorded_ns"] or None), ("communication", timeline["communication_ns"]),
            ("exposed communication", timeline["exposed_communication_ns"]),
        ):  # fmt: skip
            yield label, _part(None if ns is None else ns / in_window, window)
    yield "device work", [work]
    classes: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in report["classes"]:
        classes[row["operator_class"]].append(row)
    order = ("tensor_contraction", "statistical_normalization", "elementwise", "data_movement", "communication",
             "other", "unknown")  # fmt: skip
    for rows in (classes[name] for name in order if classes[name]):
        moved = [{**row, "moved": _moved(row)} for row in rows]
        sums = [_sum(rows, "time_ns"), _sum(rows, "flops"), _sum(moved, "moved")]
        if 2 * costed(rows) < time_of(rows):
            sums[1:] = None, None
        time, flops, size = (None if value is None else value / steps for value in sums)
        yield "class", [*_part(time, work), flops, size]
    yield "no rule knows", _part(report["ledger"]["unknown_ns"] / steps or None, work)
    yield from _named(report, work, steps)


def _named(report: dict[str, Any], work: float, steps: int) -> Lines:
    operators: dict[tuple[str, ...], int] = defaultdict(int)
    for row in report["operators"]:
        operators[row["operator_class"], row["part_of"] or row["operator"], row["phase"]] += row["time_ns"]
    modules: dict[str, int] = defaultdict(int)
    for row in report["modules"]:
        modules[row["module"]] += row["time_ns"]
    kernels = [row["time_ns"] for row in report["kernels"]]
    for label, times, most in (
        ("operator", operators.values(), 8), ("kernel", kernels, 5), ("module", modules.values(), 5)
    ):  # fmt: skip
        ranked = sorted((time / steps for time in times), reverse=True)
        for time in ranked[:most]:
            yield label, _part(time, work)
        if ranked[most:]:
            yield label, _part(sum(ranked[most:]), work)


def _moved(row: dict[str, Any]) -> int | None:
    known = row["read_bytes"] is not None and row["written_bytes"] is not None
    return row["read_bytes"] + row["written_bytes"] if known else None


def _sum(rows: list[dict[str, Any]], key: str) -> int | None:
    known = [row[key] for row in rows if row[key] is not None]
    return sum(known) if known else None


def _memory(report: dict[str, Any]) -> Lines:
    yield "peak", [report["memory"]["peak_bytes"]]
    for part in report["memory"]["components"][:8]:
        yield part["component"].replace("_", " "), [part["measured_bytes"]]


# -------------------------------------------------------------------------------------------------------- techniques


def test_an_experiment_names_what_saves_most_with_its_command() -> None:
    digest = format_named("digest").write(experiment(), Page())
    assert len(digest.encode()) <= 4096
    found = digest.partition("## Largest findings\n")[2].partition("\n\n")[0].splitlines()
    assert found == [
        "### 1: fast",
        "- finding: title of fast: peak memory 0.0 %, step -60.0 %",
        "- evidence: measured, peak 1.00 MB for 1.00 MB, step 40.0 ms for 100 ms",
        "- command: `opanatomy profile 'a model' --fast`",
        "### 2: less",
        "- finding: title of less: peak memory -50.0 %, step +30.0 %",
        "- evidence: measured, peak 500 kB for 1.00 MB, step 130 ms for 100 ms",
        "- command: `opanatomy profile 'a model' --less`",
        "### 3: slim",
        "- finding: title of slim: peak memory -10.0 %, step within the noise",
        "- evidence: measured, peak 900 kB for 1.00 MB, step 100 ms for 100 ms",
        "- command: `opanatomy profile 'a model' --slim`",
    ]
    lines, _ = lines_of(digest)
    assert ("step of the baseline", "100 ms") in lines["## The step"]
    assert ("peak of the baseline", "1.00 MB") in lines["## Memory"]
    assert ("not run", "broken: out of memory") in lines["## Warnings"]


# -------------------------------------------------------------------------------------------------------- comparisons


def test_a_comparison_has_the_figures_of_both_sides_and_the_causes() -> None:
    comparison = comparison_of([FOLDER / f"gpu_v100_dlrm_rank{rank}of8.json.gz" for rank in (0, 1)])
    digest = format_named("digest").write(comparison, Page(sides=("before.json", "'the other.json'")))
    assert len(digest.encode()) <= 4096
    report, (lines, dropped) = json.loads(format_named("json").write(comparison, Page())), lines_of(digest)
    assert not dropped
    known = {row["name"]: row["values"] for row in report["figures"]}
    told = lines["## Figures of one step, side by side"]
    assert len(told) > 10
    for label, text in told:
        before, after = known[label]
        figures = figures_in(text)
        assert len(figures) == 3
        percent = 100 if label in ("mfu", "hfu") else 1
        assert all(map(admits, figures, (percent * before, percent * after, 100 * (after - before) / before))), text
    groups: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for part in report["decomposition"]["parts"]:
        name = str(part["pair"]) if part["pair"] else str(part["operator_class"])
        groups[part["cause"], name].append((part["before_ns"], part["after_ns"]))
    sums = [tuple(map(sum, zip(*times, strict=True))) for times in groups.values()]
    ranked = sorted(sums, key=lambda times: -abs(times[1] - times[0]))
    for (_, text), (before, after) in zip(lines["## Where the difference comes from"][:6], ranked, strict=False):
        assert all(map(admits, figures_in(text), (after - before, before, after)))
    found = lines["## Largest findings"]
    assert [label for label, _ in found] == ["finding", "evidence", "command"] * 3
    whole = report["decomposition"]["before_ns"]
    for (before, after), finding, evidence in zip(ranked[:3], found[::3], found[1::3], strict=True):
        assert figures_in(finding[1])[0].admits(after - before)
        assert all(map(admits, figures_in(evidence[1]), (before, after, 100 * (after - before) / whole)))


def test_kernels_whose_names_differ_in_the_middle_are_told_apart() -> None:
    names = [line.partition(": ")[2].partition("`: ")[0] for line in written("digest", "gpu_mi300_graph").splitlines()
             if line.startswith("- kernel: `")]  # fmt: skip
    assert len(names) == len(set(names)) == 5
