"""The figures of the terminal report, recomputed from the JSON report by the definitions of docs/report.md alone.

Nothing of the code that makes the report is used but its two texts: figures are read back by tests/printed_figures.py.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

import opanatomy
from opanatomy.report import terminal_report
from opanatomy.report.formats.json import json_report
from tests.printed_figures import Figure, figures_in

FOLDER: Final = Path(__file__).parent / "traces"
TRACES: Final = {
    "cpu": ("bert_cpu",), "gpu": ("gpu_mi250_training",),
    "two_ranks": ("gpu_v100_dlrm_rank0of8", "gpu_v100_dlrm_rank1of8"),
}  # fmt: skip
CLASSES: Final = (
    "tensor_contraction", "statistical_normalization", "elementwise", "data_movement", "communication", "other",
    "unknown",
)  # fmt: skip
PHASES: Final = ("forward", "backward", "recompute", "optimizer", "prefill", "decoding", "other")
_CELL: Final = re.compile(r"[≥~<>+-]?\d[\d.,]*(?: [A-Za-z%/]+)?(?: \([<>]?\d+ %\))?")
#: What of a cell or a line is a figure of something else: of how much a share of a ceiling is known.
_COVER: Final = re.compile(r" \([<>]?\d+ %\)$")

Report: TypeAlias = "dict[str, Any]"
Numbers: TypeAlias = "list[float | None]"


@cache
def texts_of(name: str) -> tuple[str, Report]:
    """The page, wide enough for every column, and the JSON report."""
    anatomy = opanatomy.analyze([FOLDER / f"{trace}.json.gz" for trace in TRACES[name]])
    return terminal_report(anatomy, width=240), json.loads(json_report(anatomy))


def lines_of(page: str) -> dict[str, list[str]]:
    """The lines below each heading, those of the first one under "first"; of a heading what it is of is left out."""
    found: dict[str, list[str]] = {"first": []}
    heading = "first"
    for line in page.splitlines()[1:]:
        if begins := re.fullmatch(r"(\S[^─]*?)(?: \(.*\))? ─+", line):
            heading = begins[1]
            found[heading] = []
        elif not re.fullmatch("─+", line):
            found[heading].append(line)
    return found


def facts_of(lines: list[str]) -> dict[str, str]:
    """The text of each label; lines that begin with none go on."""
    facts: dict[str, str] = {}
    label = ""
    for line in lines:
        # A label ends before the eleventh cell.
        if line[:11].strip() and line[10:11] == " ":
            label = line[:11].strip()
            facts[label] = line[11:]
        elif label and line.startswith(" " * 11):
            facts[label] += f" {line.strip()}"
    return facts


def rows_of(lines: list[str], header: str) -> list[list[Figure]]:
    """The figures of each row of the table with this header, those of the name in front left out."""
    place = next(place for place, line in enumerate(lines) if line.startswith(header))
    rows = []
    for line in lines[place + 1 :]:
        cells = re.split(r" {2,}", line.strip())
        if len(cells) < 2:
            break
        kept = [cell for cell in cells[1:] if _CELL.fullmatch(cell)]
        rows.append([figures_in(_COVER.sub("", cell))[0] for cell in kept])
    return rows


def steps_of(report: Report) -> int:
    return max(int(report["step"]["count"]), 1)


def window_steps(report: Report) -> float:
    return steps_of(report) / max(len(report["ranks"]), 1)


def sum_of(rows: list[Report], key: Callable[[Report], float | None]) -> float | None:
    known = [value for row in rows if (value := key(row)) is not None]
    return sum(known) if known else None


def moved(row: Report) -> int | None:
    known = row["read_bytes"] is not None and row["written_bytes"] is not None
    return row["read_bytes"] + row["written_bytes"] if known else None


def percent(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else 100 * part / whole


def ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def time_of(rows: list[Report]) -> float:
    return float(sum(row["time_ns"] for row in rows))


def costed(rows: list[Report]) -> float:
    return float(sum(row["time_ns"] - row["uncosted_ns"] for row in rows if row["flops"] is not None))


# ------------------------------------------------------------------------------------------------------------- tables


def classes(report: Report) -> Iterator[Numbers]:
    every, steps = report["classes"], steps_of(report)
    present = [phase for phase in PHASES if any(row["phase"] == phase for row in every)]
    all_flops = sum_of(every, lambda row: row["flops"]) if 2 * costed(every) >= time_of(every) else None
    for name in (*CLASSES, None):
        rows = [row for row in every if name in (None, row["operator_class"])]
        if not rows:
            continue
        flops, size = sum_of(rows, lambda row: row["flops"]), sum_of(rows, moved)
        bound, bounded = sum_of(rows, lambda row: row["bound_ns"]), sum(row["bounded_ns"] for row in rows)
        yield [
            sum(row["calls"] for row in rows) / steps,
            time_of(rows) / steps,
            percent(time_of(rows), time_of(every)),
            *(time_of([row for row in rows if row["phase"] == phase]) / steps or None for phase in present),
            None if flops is None else flops / steps,
            percent(flops, all_flops),
            None if size is None else size / steps,
            ratio(flops, size),
            percent(bound, bounded) if 2 * bounded >= time_of(rows) else None,
        ]


def operators(report: Report) -> Iterator[Numbers]:
    groups: dict[tuple[str, ...], list[Report]] = defaultdict(list)
    for row in report["operators"]:
        groups[row["operator_class"], row["part_of"] or row["operator"], row["phase"]].append(row)
    ranked = sorted(groups.values(), key=lambda rows: -time_of(rows))
    steps, work = steps_of(report), time_of(report["classes"])
    others = [row for group in ranked[8:] for row in group]
    for rows in (*ranked[:8], *([others] if others else [])):
        seconds = costed(rows) / 1e9
        yield [
            sum(row["calls"] for row in rows if row["part_of"] is None) / steps,
            time_of(rows) / steps,
            percent(time_of(rows), work),
            ratio(sum_of(rows, lambda row: row["flops"]), seconds),
            ratio(sum_of(rows, moved), seconds),
        ]


def kernels(report: Report) -> Iterator[Numbers]:
    ranked = sorted(report["kernels"], key=lambda row: -row["time_ns"])
    steps, work = steps_of(report), time_of(report["classes"])
    for rows in (*([row] for row in ranked[:8]), *([ranked[8:]] if ranked[8:] else [])):
        yield [sum(row["count"] for row in rows) / steps, time_of(rows) / steps, percent(time_of(rows), work)]


def ratios(report: Report) -> Iterator[Numbers]:
    for row in report["ratios"]:
        numbers = [row[key] for key in ("time", "flops", "theory_flops", "bytes", "theory_bytes")]
        if any(number is not None for number in numbers):
            yield numbers


def paper(report: Report) -> Iterator[Numbers]:
    """The first three classes without the optimizer, beside what arXiv 2007.00072 has of them."""
    published = {
        "tensor_contraction": (99.80, 61.0),
        "statistical_normalization": (0.17, 25.5),
        "elementwise": (0.03, 13.5),
    }
    kept = [row for row in report["classes"] if row["operator_class"] in published and row["phase"] != "optimizer"]
    flops = sum_of(kept, lambda row: row["flops"])
    for name, (flops_there, time_there) in published.items():
        rows = [row for row in kept if row["operator_class"] == name]
        yield [percent(sum_of(rows, lambda row: row["flops"]), flops), flops_there,
               percent(time_of(rows), time_of(kept)), time_there]  # fmt: skip


def memory(report: Report) -> Iterator[Numbers]:
    for part in report["memory"]["components"]:
        measured, theory = part["measured_bytes"], part["theory_bytes"]
        yield [measured, theory, None if theory is None else percent(measured - theory, theory)]
    yield [report["memory"]["peak_bytes"]]


def ranks(report: Report) -> Iterator[Numbers]:
    keys = ("busy_ns", "kernel_time_ns", "communication_ns", "exposed_communication_ns", "idle_ns")
    for row in report["ranks"]:
        own = row["wall_ns"] - row["exposed_communication_ns"] // row["steps"]
        yield [row["wall_ns"], own, *(row[key] // row["steps"] for key in keys)]
    order = ("step", "own", "busy", "kernel_time", "communication", "exposed_communication", "idle")
    spread = {row["figure"]: row for row in report["spread"]}
    for key in ("min_ns", "median_ns", "max_ns"):
        yield [spread[figure][key] for figure in order]


def collectives(report: Report) -> Iterator[Numbers]:
    steps = steps_of(report)
    for row in report["collectives"]:
        size = None if row["bytes"] is None else row["bytes"] / steps
        yield [row["group_size"], row["calls"] / steps, row["time_ns"] / steps, size, row["bus_bytes_per_second"]]


def by_phase(report: Report) -> Iterator[Numbers]:
    steps, whole = steps_of(report), report["communication"]
    rows = [*whole["phases"]]
    together = {key: sum(row[key] for row in rows) for key in ("calls", "bytes")}
    for row in (*rows, {**together, "running_ns": whole["running_ns"], "exposed_ns": whole["exposed_ns"]}):
        running, exposed = row["running_ns"], row["exposed_ns"]
        yield [row["calls"] / steps, row["bytes"] / steps, running / steps, percent(running - exposed, running),
               exposed / steps]  # fmt: skip


def roofline(report: Report) -> Iterator[Numbers]:
    """Each class with a bound, all of it, then the eight operators with most time above their bounds."""
    every, steps = report["classes"], steps_of(report)
    for name in (*CLASSES, None):
        rows = [row for row in every if name in (None, row["operator_class"])]
        if any(row["bound_ns"] is not None for row in rows):
            bounded = sum(row["bounded_ns"] for row in rows)
            yield bounds(rows, bounded, sum(row["headroom_ns"] or 0 for row in rows) / steps)
    groups: dict[tuple[str, ...], list[Report]] = defaultdict(list)
    for row in report["operators"]:
        groups[row["operator_class"], row["part_of"] or row["operator"], row["phase"]].append(row)
    spare: list[tuple[float, float, list[Report]]] = []
    for rows in groups.values():
        known = [row for row in rows if row["bound_ns"] is not None]
        bounded = sum(row["time_ns"] - row["uncosted_ns"] for row in known)
        if known:
            spare.append((max(bounded - sum(row["bound_ns"] for row in known), 0), bounded, rows))
    for headroom, bounded, rows in sorted(spare, key=lambda part: -part[0])[:8]:
        yield bounds(rows, bounded, headroom / steps)


def bounds(rows: list[Report], bounded: float, headroom: float) -> Numbers:
    flops, size, seconds = sum_of(rows, lambda row: row["flops"]), sum_of(rows, moved), costed(rows) / 1e9
    known = bounded and 2 * bounded >= time_of(rows)
    reached = percent(sum_of(rows, lambda row: row["bound_ns"]), bounded) if known else None
    return [ratio(flops, size), ratio(flops, seconds), ratio(size, seconds), reached, headroom]


def waiting(report: Report) -> Iterator[Numbers]:
    """The mean step of each rank."""
    keys = ("wall_ns", "other_work_ns", "transfer_ns", "waiting_ns", "idle_ns")
    for rank in report["waiting"]["each"]:
        count = len(rank["steps"])
        yield [*(sum(step[key] for step in rank["steps"]) / count for key in keys), rank["charged_ns"] / count]


def matched(report: Report) -> Iterator[Numbers]:
    for row in report["waiting"]["collectives"]:
        rates = (row["bus_bytes_per_second"], row["transfer_bus_bytes_per_second"])
        share = percent(row["waiting_ns"], row["duration_ns"])
        yield [row["group_size"], row["collectives"], row["duration_ns"], share, *rates]


TABLES: Final = (
    ("classes", "class ", classes), ("operators", "operator ", operators), ("kernels", "kernel ", kernels),
    ("roofline", "roofline ", roofline), ("ratios", "backward / forward", ratios), ("memory", "memory ", memory),
    ("paper", "the paper's classes", paper),
    ("ranks", "a step of rank", ranks), ("communication", "collective ", collectives),
    ("communication", "communication ", by_phase), ("waiting", "a step of rank", waiting),
    ("waiting", "matched ", matched),
)  # fmt: skip
#: The tables of each page; one that is not there is one that nothing would be compared with.
ON_PAGE: Final = {
    "cpu": {classes, operators, ratios, memory, paper},
    "gpu": {classes, operators, kernels, roofline, ratios},
    "two_ranks": {classes, operators, kernels, roofline, ratios, ranks, collectives, by_phase, waiting, matched},
}


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize(("heading", "header", "expected"), TABLES, ids=[table[2].__name__ for table in TABLES])
def test_the_figures_of_a_table(
    name: str, heading: str, header: str, expected: Callable[[Report], Iterator[Numbers]]
) -> None:
    page, report = texts_of(name)
    lines = lines_of(page)
    on_page = any(line.startswith(header) for line in lines.get(heading, []))
    assert on_page == (expected in ON_PAGE[name])
    if not on_page:
        return
    rows = rows_of(lines[heading], header)
    numbers = [[number for number in row if number is not None] for row in expected(report)]
    assert len(rows) == len(numbers)
    for figures, exact in zip(rows, numbers, strict=True):
        same(figures, exact)


def same(figures: list[Figure], exact: list[float]) -> None:
    assert len(figures) == len(exact), ([figure.text for figure in figures], exact)
    for figure, number in zip(figures, exact, strict=True):
        assert figure.admits(number), (figure.text, number)


# -------------------------------------------------------------------------------------------------------------- facts


def first(report: Report) -> Iterator[tuple[str, Numbers]]:
    """The lines of the step in the middle, in their order on the page."""
    step, timeline, wall = report["step"], report["timeline"], report["step"]["wall_ns"]
    plain, window = step["unprofiled_wall_ns"], timeline["window_ns"]
    slowed = percent(wall - plain, plain) if step["profiler_ns"] is not None else None
    yield "step", [plain, wall, slowed, step["samples_per_second"]]
    spans = (("unprofiled_count", "unprofiled_wall_min_ns", "unprofiled_wall_max_ns"),
             ("count", "wall_min_ns", "wall_max_ns"))  # fmt: skip
    steps = [[step[key] for key in keys] for keys in spans if step[keys[0]]]
    steps[-1].insert(1, len(report["ranks"]) or None)
    yield "steps", [number for span in steps for number in span]
    if report["environment"]["device_kind"] == "cpu":
        phases = ("forward_ns", "backward_ns", "optimizer_ns")
        yield "phases", [number for key in phases for number in (step[key], percent(step[key], wall))]
        yield "framework", [step["framework_ns"], percent(step["framework_ns"], wall)]
        yield "profiler", [step["profiler_ns"], percent(step["profiler_ns"], wall)]
        return
    exposed = timeline["exposed_communication_ns"] or None
    shares = (timeline["busy_ns"], timeline["idle_ns"], timeline["host_idle_ns"], exposed)
    yield "busy", [percent(share, window) for share in shares]


def idle(report: Report) -> Iterator[tuple[str, Numbers]]:
    timeline, step, steps = report["timeline"], report["step"], window_steps(report)
    window = timeline["window_ns"]

    def parts(*keys: str) -> Numbers:
        known = [timeline[key] for key in keys if timeline[key]]
        return [number for ns in known for number in (ns / steps, percent(ns, window))]

    yield "window", [window / steps]
    yield "device", parts("busy_ns", "idle_ns", "outside_ns")
    yield "idle", parts("host_idle_ns", "stream_idle_ns", "other_idle_ns")
    yield "edges", [percent(timeline["idle_ns"] - timeline["inner_idle_ns"], window)]
    yield "overlap", parts("communication_ns", "exposed_communication_ns", "exposed_memcpy_ns")
    phases = [step[f"{phase}_ns"] for phase in ("forward", "backward", "optimizer")]
    yield "phases", [number for ns in phases for number in (ns, percent(ns, step["wall_ns"]))]
    launching = timeline["launching"]
    yield "launches", [
        launching["calls"] / steps_of(report), launching["call_ns"] / steps_of(report),
        launching["delay_ns"] // launching["delayed"], percent(launching["tiny_kernels"], launching["kernels"]),
        launching["tiny_below_ns"], percent(launching["tiny_kernel_ns"], launching["kernel_ns"]),
    ]  # fmt: skip


def ledger(report: Report) -> Iterator[tuple[str, Numbers]]:
    ledger = report["ledger"]
    inside = ledger["device_work_ns"] - ledger["outside_window_ns"]
    terms = [ledger[key] for key in ("graph_launched_ns", "no_launch_record_ns", "outside_window_ns") if ledger[key]]
    shares = [percent(ledger[key], inside) for key in ("classed_ns", "costed_ns", "unknown_ns")]
    yield "work", [ledger["device_work_ns"], ledger["linked_ns"], *terms, *shares]
    checks = [check for check in report["checks"] if check["compared"]]
    counts = [
        number for check in checks
        for number in ([check["equal"]] if check["equal"] == check["compared"] else [check["equal"], check["compared"]])
    ]  # fmt: skip
    yield "confirmed", [sum(check["equal"] for check in checks), *counts]


FACTS: Final = (("first", first), ("idle", idle), ("ledger", ledger))


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize(("heading", "expected"), FACTS, ids=[heading for heading, _ in FACTS])
def test_the_figures_of_the_lines(
    name: str, heading: str, expected: Callable[[Report], Iterator[tuple[str, Numbers]]]
) -> None:
    page, report = texts_of(name)
    lines = lines_of(page)
    assert (heading in lines) == (heading != "idle" or name != "cpu")
    if heading not in lines:
        return
    facts = facts_of(lines[heading])
    for label, numbers in expected(report):
        same(figures_in(facts[label]), [number for number in numbers if number is not None])


@pytest.mark.parametrize("name", TRACES)
def test_the_largest_cost_is_the_share_of_the_step_that_the_json_report_has(name: str) -> None:
    page, report = texts_of(name)
    share = figures_in(page.splitlines()[1])[0]
    if name == "cpu":
        assert share.admits(percent(report["step"]["framework_ns"], report["step"]["wall_ns"]) or 0)
    else:
        # Findings are shares of the step without what the device did for other steps alone.
        timeline = report["timeline"]
        assert share.admits(percent(timeline["idle_ns"], timeline["window_ns"] - timeline["outside_ns"]) or 0)


def test_each_module_has_all_that_lies_in_it() -> None:
    """The tree of modules by its indentation: names are paths below the module above, `0, 1` are several of them."""
    page, report = texts_of("cpu")
    lines = lines_of(page)["modules"]
    rows, steps, work = rows_of(lines, "module "), steps_of(report), time_of(report["classes"])
    above: list[list[str]] = []
    for line, figures in zip(lines[1:], rows, strict=False):
        name = re.split(r" {2,}", line.strip())[0]
        if name == "outside modules":
            same(figures, [(work - time_of(report["modules"])) / steps,
                           100 * (work - time_of(report["modules"])) / work])  # fmt: skip
            break
        depth = (len(line) - len(line.lstrip(" "))) // 2
        parents = above[depth - 1] if depth else [""]
        base, _, last = name.rpartition(".")
        ends = [f"{base}.{end}" if base else end for end in last.split(", ")]
        above[depth:] = [[f"{parent}.{end}".strip(".") for parent in parents for end in ends] if depth else [""]]
        kept = [row for row in report["modules"] if any(within(row["module"], path) for path in above[depth])]
        by_phase = {
            key: [row for row in kept if row["phase"] in phases]
            for key, phases in (("forward", ("forward",)), ("backward", ("backward", "recompute")))
        }
        flops = [sum_of(part, lambda row: row["flops"]) for part in by_phase.values()]
        numbers = [
            time_of(kept) / steps, percent(time_of(kept), work),
            *(time_of(part) / steps or None for part in by_phase.values()),
            *(None if count is None else count / steps for count in flops),
        ]  # fmt: skip
        same(figures, [number for number in numbers if number is not None])
    assert len(rows) > 10


def within(module: str, path: str) -> bool:
    return not path or module == path or module.startswith(f"{path}.")
