"""The figures of the tables of the report, recomputed from the JSON report by the definitions of docs/report.md.

Nothing of opanatomy is imported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from tests.figure_sheet import Numbers, Report

CLASSES: Final = (
    "tensor_contraction", "statistical_normalization", "elementwise", "data_movement", "communication", "other",
    "unknown",
)  # fmt: skip
PHASES: Final = ("forward", "backward", "recompute", "optimizer", "prefill", "decoding", "other")


def steps_of(report: Report) -> int:
    return max(int(report["step"]["count"]), 1)


def step_time(report: Report) -> dict[str, float]:
    """What shares of the step's time are of, and its idle time: the window without other steps' work."""
    timeline = report["timeline"]
    return {"whole": timeline["window_ns"] - (timeline["outside_ns"] or 0), "idle": timeline["idle_ns"],
            "host": timeline["host_idle_ns"] or 0, "other": timeline["other_idle_ns"] or 0}  # fmt: skip


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


def rates(rows: list[Report]) -> Numbers:
    """FLOPs and bytes a second of the time whose FLOPs are known."""
    seconds = costed(rows) / 1e9
    return [ratio(sum_of(rows, lambda row: row["flops"]), seconds), ratio(sum_of(rows, moved), seconds)]


def costed(rows: list[Report]) -> float:
    return float(sum(row["time_ns"] - row["uncosted_ns"] for row in rows if row["flops"] is not None))


def classes(report: Report) -> Iterator[Numbers]:
    every, steps = report["classes"], steps_of(report)
    present = [phase for phase in PHASES if any(row["phase"] == phase for row in every)]
    # One phase is all of the time: it has no column.
    several = present if len(present) > 1 else []
    all_flops = sum_of(every, lambda row: row["flops"]) if 2 * costed(every) >= time_of(every) else None
    for name in (*CLASSES, None):
        rows = [row for row in every if name in (None, row["operator_class"])]
        if not rows:
            continue
        most = 2 * costed(rows) >= time_of(rows)
        flops, size = (sum_of(rows, column) if most else None for column in (lambda row: row["flops"], moved))
        bounded = sum(row["bounded_ns"] for row in rows)
        yield [
            sum(row["calls"] for row in rows) / steps,
            time_of(rows) / steps,
            percent(time_of(rows), time_of(every)),
            *(time_of([row for row in rows if row["phase"] == phase]) / steps or None for phase in several),
            None if flops is None else flops / steps,
            percent(flops, all_flops),
            None if size is None else size / steps,
            ratio(flops, size),
            *ceiling(rows, bounded),
        ]


def ceiling(rows: list[Report], bounded: float) -> Numbers:
    """bound / time, nothing where the bound of less than half of the time is known; that part, where it is not all."""
    bound = sum_of(rows, lambda row: row["bound_ns"])
    reached = percent(bound, bounded) if 2 * bounded >= time_of(rows) else None
    return [reached, percent(bounded, time_of(rows)) if reached is not None and bounded < time_of(rows) else None]


def operators(report: Report) -> Iterator[Numbers]:
    groups: dict[tuple[str, ...], list[Report]] = defaultdict(list)
    for row in report["operators"]:
        groups[row["operator_class"], row["part_of"] or row["operator"], row["phase"]].append(row)
    ranked = sorted(groups.values(), key=lambda rows: -time_of(rows))
    steps, work = steps_of(report), time_of(report["classes"])
    others = [row for group in ranked[8:] for row in group]
    for rows in (*ranked[:8], *([others] if others else [])):
        yield [
            len(ranked) - 8 if rows is others else None,
            sum(row["calls"] for row in rows if row["part_of"] is None) / steps,
            time_of(rows) / steps,
            percent(time_of(rows), work),
            *(rates(rows) if 2 * costed(rows) >= time_of(rows) else []),
        ]

    graphs = report["ledger"]["graph_launched_ns"]
    for without in (graphs, work - time_of(report["operators"]) - graphs):
        if without > 0:
            yield [without / steps, percent(without, work)]


def kernels(report: Report) -> Iterator[Numbers]:
    ranked = sorted(report["kernels"], key=lambda row: -row["time_ns"])
    steps, work = steps_of(report), time_of(report["classes"])
    for rows in (*([row] for row in ranked[:8]), *([ranked[8:]] if ranked[8:] else [])):
        launching = len(rows[0]["operators"]) - 1
        yield [
            len(rows) if len(rows) > 1 else None,
            sum(row["count"] for row in rows) / steps, time_of(rows) / steps, percent(time_of(rows), work),
            launching if len(rows) == 1 and launching > 0 else None,
        ]  # fmt: skip


def ratios(report: Report) -> Iterator[Numbers]:
    for row in report["ratios"]:
        numbers = [row[key] for key in ("time", "flops", "theory_flops", "bytes", "theory_bytes")]
        rows = [other for other in report["classes"] if other["operator_class"] == row["operator_class"]]
        told = 100 * time_of(rows) >= time_of(report["classes"])
        if told and any(row[key] is not None for key in ("time", "flops", "bytes")):
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
        yield [row["rank"], row["wall_ns"], own, *(row[key] // row["steps"] for key in keys)]
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
    together = {key: sum(row[key] for row in rows) for key in ("calls", "sized", "bytes")}
    all_of_them = {**together, "running_ns": whole["running_ns"], "exposed_ns": whole["exposed_ns"]}
    for row in (*rows, *([all_of_them] if len(rows) > 1 else [])):
        running, exposed = row["running_ns"], row["exposed_ns"]
        size = row["bytes"] / steps if row["sized"] else None
        yield [row["calls"] / steps, size, running / steps, percent(running - exposed, running),
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
    flops, size = sum_of(rows, lambda row: row["flops"]), sum_of(rows, moved)
    reached = [ratio(flops, size), *rates(rows)] if 2 * costed(rows) >= time_of(rows) else []
    return [*reached, *ceiling(rows, bounded), headroom]


def waiting(report: Report) -> Iterator[Numbers]:
    """The mean step of each rank."""
    keys = ("wall_ns", "other_work_ns", "transfer_ns", "waiting_ns", "idle_ns")
    for rank in report["waiting"]["each"]:
        count = len(rank["steps"])
        parts = (sum(step[key] for step in rank["steps"]) / count for key in keys)
        yield [rank["rank"], *parts, rank["charged_ns"] / count]


def matched(report: Report) -> Iterator[Numbers]:
    for row in report["waiting"]["collectives"]:
        rates = (row["bus_bytes_per_second"], row["transfer_bus_bytes_per_second"])
        share = percent(row["waiting_ns"], row["duration_ns"])
        yield [row["group_size"], row["collectives"], row["duration_ns"], share, row["bytes"], *rates]


#: Heading, beginning of the header, rows of each table.
TABLES: Final[tuple[tuple[str, str, Callable[[Report], Iterator[Numbers]]], ...]] = (
    ("classes", "class ", classes), ("operators", "operator ", operators), ("kernels", "kernel ", kernels),
    ("roofline", "roofline ", roofline), ("ratios", "backward / forward", ratios), ("memory", "memory ", memory),
    ("paper", "the paper's classes", paper),
    ("ranks", "a step of rank", ranks), ("communication", "collective ", collectives),
    ("communication", "communication ", by_phase), ("waiting", "a step of rank", waiting),
    ("waiting", "matched ", matched),
)  # fmt: skip
