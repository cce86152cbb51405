"""The figures of the lines and sentences of the report, recomputed from the JSON report as docs/report.md says.

Nothing of opanatomy is imported. Each check takes a sheet, and checks what the page has of its report.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Final

from tests.figure_sheet import Numbers, Report, Sheet, Text, cells_of
from tests.recomputed_tables import percent, step_time, steps_of, sum_of, time_of, window_steps


def check_headings(sheet: Sheet) -> None:
    """How many steps the figures are of, and over how many ranks."""
    steps, ranks = sheet.report["step"]["count"], len(sheet.report["ranks"])
    if steps > 1:
        sheet.said("(per step of a rank, mean of {}" if ranks > 1 else "(per step, mean of {}", steps)
        sheet.said("(all {} steps together)", steps)
    if ranks > 1:
        sheet.said("The anatomy of {} ranks,", ranks)


def check_headline(sheet: Sheet) -> None:
    """The largest part of the step, and the second where it takes 15 % of it."""
    parts = shares_of(sheet.report)
    ranked = sorted(parts, key=lambda name: -parts[name])
    said = {
        "framework": "The framework (dispatch, autograd, Python) takes {} of the step.",
        "idle": "The device is idle {} of the step",
        "communication": "Transferring data between ranks that no other work hides takes {} of the step.",
        "both": "Communication that no other work hides takes {} of the step,",
    }
    second = [name for name in ranked[1:2] if parts[name] >= 15]
    for name in (ranked[0], *second):
        sheet.said(said[name], parts[name])
    if "both" in (ranked[0], *second):
        waited = [step["waiting_ns"] for rank in sheet.report["waiting"]["each"] for step in rank["steps"]]
        exposed = sheet.report["timeline"]["exposed_communication_ns"]
        sheet.said("{} of it waiting for other ranks.", percent(sum(waited) / len(waited), exposed))
    causes = sheet.report["timeline"]["causes"]
    if "idle" in (ranked[0], *second) and 2 * causes[0]["time_ns"] < sheet.report["timeline"]["idle_ns"]:
        sheet.said("{} of that", percent(causes[0]["time_ns"], sheet.report["timeline"]["idle_ns"]))
    for number in calls_of(causes[0], 1) if causes else ():
        sheet.said("{}).", number)
    if causes and "idle" in (ranked[0], *second) and (share := share_of(causes[0])):
        sheet.said(f"({{}} {causes[0]['name'].removeprefix('aten::')}", *share)


def shares_of(report: Report) -> dict[str, float]:
    """The parts of the step that do not overlap, in percent of it without the work of other steps alone."""
    timeline, step = report["timeline"], report["step"]
    whole = timeline["window_ns"] - (timeline["outside_ns"] or 0)
    exposed = timeline["exposed_communication_ns"] or 0
    rows = [row for row in report["classes"] if row["operator_class"] != "communication"]
    computing = (timeline["busy_ns"] - exposed) / time_of(rows)
    parts: Counter[str] = Counter()
    for row in rows:
        parts[row["operator_class"]] += row["time_ns"] * computing
        # Phases are cut from the same time once more.
        if row["phase"] in ("optimizer", "recompute"):
            parts[row["phase"]] += row["time_ns"] * computing
    if report["environment"]["device_kind"] == "cpu":
        parts["framework"] = step["framework_ns"] / step["wall_ns"] * whole
    else:
        parts["idle"] = timeline["idle_ns"]
    if report["waiting"]:
        each = [step for rank in report["waiting"]["each"] for step in rank["steps"]]
        parts["waiting"] = sum(step["waiting_ns"] for step in each) / len(each)
    parts["communication"] = exposed - parts["waiting"]
    if 0 < parts["waiting"] < parts["communication"]:
        parts["both"] = parts.pop("waiting") + parts.pop("communication")
    return {name: 100 * ns / whole for name, ns in parts.items()}


def check_what_ran(sheet: Sheet) -> None:
    environment, workload = sheet.report["environment"], sheet.report["workload"]
    if workload["parameters"] is not None:
        assert workload["trainable_parameters"] == workload["parameters"]
        sheet.said(f"{workload['architecture']}, {{}} parameters", workload["parameters"])
        sheet.said(f"{workload['task']}, batch {{}}, length {{}},", workload["batch"], workload["sequence_length"])
    if environment["device_kind"] == "cpu":
        sheet.said(f"the CPU ({environment['processor']}, {{}} thread)", environment["host_threads"])
    else:
        memory, count = environment["device_memory_bytes"], environment["device_count"]
        sheet.said(f"{environment['device']}, {{}}, {{}} in the machine", memory, count)
    if warnings := sheet.report["warnings"]:
        sheet.said("{} at the end (--section warnings)", len(warnings))
    ranks = sheet.report["ranks"]
    if len(ranks) > 1:
        sheet.said("{} of {} ranks are here: ranks {}-{} are missing", len(ranks), ranks[0]["world_size"],
                   len(ranks), ranks[0]["world_size"] - 1)  # fmt: skip
    # A pattern for the shell that all traces of the ranks fit.
    for match in re.finditer(r"\S*\*\S*\.json\.gz", sheet.page):
        assert all(fnmatchcase(rank["trace"], match.group()) for rank in ranks)
        sheet.name(Text(match.group(), match.start()))


def check_step(sheet: Sheet) -> None:
    """The lines of the mean step."""
    facts, report = sheet.facts("first"), sheet.report
    step, timeline, wall = report["step"], report["timeline"], report["step"]["wall_ns"]
    plain = step["unprofiled_wall_ns"]
    slowed = percent(wall - plain, plain) if step["profiler_ns"] is not None else None
    sheet.same(sheet.places(facts["step"]), [plain, wall, slowed, step["samples_per_second"]])
    if plain is not None:
        samples = report["workload"]["batch"] / plain * 1e9
        sheet.said("{} plain, {} profiled ({}), {}", plain, wall, slowed, samples)
    steps = [step["unprofiled_count"], step["unprofiled_wall_min_ns"], step["unprofiled_wall_max_ns"]]
    steps = steps if step["unprofiled_count"] else []
    ranks = len(report["ranks"])
    each = [] if ranks < 2 else [ranks] if step["count"] % ranks else [step["count"] // ranks, ranks]
    steps += [step["count"], *each, *([step["wall_min_ns"], step["wall_max_ns"]] if step["count"] > 1 else [])]
    aside: dict[str, list[int]] = {}
    for one in (one for kind in report["breakdown"]["kinds"] for one in kind["steps"] if one["left_out"] is not None):
        aside.setdefault(one["left_out"], []).extend((one["number"], one["wall_ns"]))
    steps += [number for numbers in aside.values() for number in numbers]
    sheet.same(sheet.places(facts["steps"]), steps)
    if report["environment"]["device_kind"] == "cpu":
        phases = [step[f"{phase}_ns"] for phase in ("forward", "backward", "optimizer")]
        framework = wall - step["busy_ns"] - step["profiler_ns"]
        sheet.same(sheet.places(facts["phases"]), [number for ns in phases for number in (ns, percent(ns, wall))])
        sheet.same(sheet.places(facts["framework"]), [framework, percent(framework, wall)])
        sheet.same(sheet.places(facts["profiler"]), [step["profiler_ns"], percent(step["profiler_ns"], wall)])
        return
    own = step_time(report)
    waiting = None
    if report["waiting"]:
        each = [one for rank in report["waiting"]["each"] for one in rank["steps"]]
        waiting = sum(one["waiting_ns"] for one in each) / sum(one["wall_ns"] for one in each) * own["whole"]
    exposed = timeline["exposed_communication_ns"] or None
    hidden = None if exposed is None else timeline["busy_ns"] - exposed
    much = max(own["whole"] / 100, own["idle"] / 5)
    causes = [row["time_ns"] for row in timeline["causes"][:2] if row["time_ns"] >= much]
    shares = (timeline["busy_ns"], hidden, exposed, waiting, own["idle"], *causes)
    percents = [percent(share, own["whole"]) for share in shares]
    lasts = own["whole"] / window_steps(report)
    foreign = 100 * (timeline["outside_ns"] or 0) >= timeline["window_ns"]
    of_trace = any(row["number"] is None for row in step["steps"])
    around = timeline["around_ns"] or 0
    after = [around / window_steps(report)] if 100 * around >= timeline["window_ns"] + around > around else []
    lasting = [lasts] if foreign or of_trace else []
    sheet.same(sheet.places(facts["busy"]), [percents[0], *lasting, *percents[1:], *after])


def check_reached(sheet: Sheet) -> None:
    """MFU and HFU by their formulas; the devices are those of each rank that ran kernels."""
    report, device, step = sheet.report, sheet.report["device"], sheet.report["step"]
    if device["mfu"] is None:
        return
    rows = [row for row in report["operators"] if row["operator_class"] == "tensor_contraction"]
    wall = step["unprofiled_wall_ns"] or step["wall_ns"]
    could = step["count"] * wall / 1e9 * device["peak_flops_per_second"][device["mfu_dtype"]]
    could *= max(len(report["timeline"]["devices"]), 1)
    model = [row for row in rows if row["phase"] != "recompute"]
    shares = [percent(sum_of(part, lambda row: row["flops"]), could) for part in (model, rows)]
    peak, covered = f" of the {device['mfu_dtype']} peak", device["mfu_covered"]
    if covered == 1:
        sheet.said(f"MFU {{}}, HFU {{}}{peak}", *shares)
    else:
        plain = " in the plain step" if step["unprofiled_wall_ns"] else ""
        words = f"MFU ≥ {{}}, HFU ≥ {{}}{peak}{plain}; FLOPs known for {{}} of the contractions' time"
        sheet.said(words, *shares, 100 * covered)


def check_idle(sheet: Sheet) -> None:
    if "idle" not in sheet.sections:
        assert sheet.report["environment"]["device_kind"] == "cpu"
        return
    facts, timeline, step = sheet.facts("idle"), sheet.report["timeline"], sheet.report["step"]
    window, steps, own = timeline["window_ns"], window_steps(sheet.report), step_time(sheet.report)

    def parts(*times: float | None) -> Numbers:
        return [number for ns in times if ns for number in (ns / steps, percent(ns, own["whole"]))]

    foreign = (timeline["outside_ns"] or 0) / steps
    of_trace = any(row["number"] is None for row in step["steps"])
    said = [foreign, own["whole"] / steps] if 100 * foreign >= window / steps else []
    around = timeline["around_ns"] or 0
    if of_trace:
        said = [around / steps] if 100 * around >= window + around > around else []
    phases = [ns for phase in ("forward", "backward", "optimizer") if (ns := step[f"{phase}_ns"]) is not None]
    lines: dict[str, Numbers] = {
        "window": [window / steps, *said] if window else [],
        "device": parts(timeline["busy_ns"], own["idle"], timeline["unrecorded_ns"]),
        "idle": parts(own["host"], timeline["stream_idle_ns"], own["other"]),
        "overlap": parts(
            *(timeline[f"{key}_ns"] for key in ("communication", "exposed_communication", "exposed_memcpy"))
        ),
        "phases": [number for ns in phases for number in (ns, percent(ns, step["wall_ns"]))],
        "launches": launches(sheet.report),
        "estimates": estimates(sheet.report),
    }
    others = [texts for label, texts in facts.items() if label not in lines]
    for row, texts in zip(timeline["causes"], others, strict=False):
        calls, places = calls_of(row, steps), sheet.places(texts)
        # Between them stands a name, which may have digits.
        share = share_of(row)
        said = places[: 2 + len(share)] + places[len(places) - len(calls) :]
        sheet.same(said, [*parts(row["time_ns"]), *share, *calls])
    if timeline["drained_ns"]:
        sheet.same(sheet.places(facts["drained"]), [percent(timeline["drained_ns"], own["idle"])])
    for label, numbers in lines.items():
        known = [number for number in numbers if number is not None]
        assert (label in facts) == bool(known), label
        sheet.same(sheet.places(facts.get(label, [])), known)


def share_of(row: Report) -> Numbers:
    """How much of a cause the largest of it is, where that is less than half but much."""
    much = row["name"] is not None and 0.15 * row["time_ns"] <= row["name_ns"] < 0.5 * row["time_ns"]
    return [percent(row["name_ns"], row["time_ns"])] if much and row["name"] != "Python's stack" else []


def calls_of(row: Report, steps: float) -> Numbers:
    """What is said of the calls that most of a cause is."""
    if row["name"] is None or 2 * row["name_ns"] < row["time_ns"]:
        return []
    if row["cause"] == "slow_launch" and row["events"] == 1:
        return [row["name_ns"]]
    calls = row["cause"] in ("allocator", "slow_launch", "synchronization") or row["name"] == "Python's stack"
    return [row["events"], *([steps] if steps > 1 else [])] if calls else []


def launches(report: Report) -> Numbers:
    launching, steps = report["timeline"]["launching"], steps_of(report)
    if launching is None or not launching["calls"]:
        return []
    return [
        launching["calls"] / steps, launching["call_ns"] / steps,
        launching["delay_ns"] // launching["delayed"] if launching["delayed"] else None,
        percent(launching["tiny_kernels"], launching["kernels"]),
        launching["tiny_below_ns"] if launching["kernels"] else None,
        percent(launching["tiny_kernel_ns"], launching["kernel_ns"]),
    ]  # fmt: skip


def estimates(report: Report) -> Numbers:
    device, kernel_ns = report["device"], (report["timeline"]["launching"] or {}).get("kernel_ns")
    fractions = (device["sm_efficiency"], device["occupancy"])
    shares = [None if share is None else 100 * share for share in fractions]
    if device["tensor_core_ns"] is None:
        return shares
    return [
        *shares,
        percent(device["tensor_core_ns"], kernel_ns),
        percent(device["tensor_core_unknown_ns"] or None, kernel_ns),
    ]


def check_ceilings(sheet: Sheet) -> None:
    device, environment = sheet.report["device"], sheet.report["environment"]
    if device["source"] is None:
        sheet.said("AMD EPYC with {} thread was not measured", environment["host_threads"])
        return
    peaks = {name: device[f"{name}_flops_per_second"]["float32"] for name in ("peak", "vector")}
    sheet.said("ceilings {} float32, {} vector float32, {},", peaks["peak"], peaks["vector"],
               device["bandwidth_bytes_per_second"])  # fmt: skip
    if "matched on" in device["source"]:
        size = environment["device_memory_bytes"] / 2**30
        sheet.said("matched on {} multiprocessors and {} GiB", environment["multiprocessors"], size)


def check_communication(sheet: Sheet) -> None:
    communication = sheet.report["communication"]
    if communication is not None:
        asking = sum(row["launching_ns"] for row in communication["phases"])
        sheet.said("the host took {} to launch them", asking / steps_of(sheet.report))


def check_ranks(sheet: Sheet) -> None:
    """The longest step, and how the ranks wait for each other."""
    waiting, ranks = sheet.report["waiting"], sheet.report["ranks"]
    if waiting is None:
        return
    slowest = max(ranks, key=lambda rank: rank["wall_ns"])
    median = next(row["median_ns"] for row in sheet.report["spread"] if row["figure"] == "step")
    waits = next(row["steps"] for row in waiting["each"] if row["rank"] == slowest["rank"])
    sheet.said("The longest step is that of rank {}: {}, {} to the median; it waits at least {} of it for others.",
               slowest["rank"], slowest["wall_ns"], percent(slowest["wall_ns"] - median, median),
               sum(step["waiting_ns"] for step in waits) / len(waits))  # fmt: skip
    sheet.said("{} of {} ranks were given: waiting is a lower bound", len(ranks), ranks[0]["world_size"])
    assert not any((waiting["by_number"], waiting["by_time"], waiting["clocks"]["was_set"]))
    sheet.said("collectives matched: {} by order; clocks: agree as they are, to within {};", waiting["by_order"],
               waiting["clocks"]["within_ns"])  # fmt: skip


def check_ledger(sheet: Sheet) -> None:
    ledger, facts = sheet.report["ledger"], sheet.facts("ledger")
    inside = ledger["device_work_ns"] - ledger["outside_window_ns"]
    terms = [ledger[key] for key in ("graph_launched_ns", "no_launch_record_ns", "outside_window_ns") if ledger[key]]
    shares = [percent(ledger[key], inside) for key in ("classed_ns", "costed_ns", "unknown_ns")]
    if not ledger["device_work_ns"]:
        assert "work" not in facts
        return
    sheet.same(sheet.places(facts["work"]), [ledger["device_work_ns"], ledger["linked_ns"] or None, *terms, *shares])
    checks = [check for check in sheet.report["checks"] if check["compared"]]
    unequal = [check for check in checks if check["equal"] < check["compared"]]
    counts = [number for check in unequal for number in (check["equal"], check["compared"])]
    assert ("confirmed" in facts) == bool(checks)
    if checks:
        sheet.same(sheet.places(facts["confirmed"]), [sum(check["equal"] for check in checks), *counts])
    sheet.said("multiply-add: {}", sheet.report["conventions"]["multiply_add"])


def check_no_formula(sheet: Sheet) -> None:
    """What has a class and no cost, the longest first: operators, kernels of graphs, work without an operator."""
    times: Counter[str] = Counter()
    for row in sheet.report["operators"]:
        if row["flops"] is None and row["operator_class"] != "unknown":
            times[row["operator"]] += row["time_ns"]
    for row in sheet.report["kernels"]:
        if not row["operators"] and row["operator_class"] != "unknown":
            times[row["kernel"]] += row["time_ns"]
    facts, ledger = sheet.facts("ledger"), sheet.report["ledger"]
    inside = ledger["device_work_ns"] - ledger["outside_window_ns"]
    left = inside - ledger["costed_ns"] - ledger["unknown_ns"] - sum(times.values())
    assert left >= 0
    if left:
        times["without an operator"] = left
    assert ("no formula" in facts) == bool(times)
    if not times:
        return
    ranked = times.most_common()
    words = ", ".join(f"{name} {{}}" for name, _ in ranked[:5])
    more = [len(ranked) - 5] if ranked[5:] else []
    sheet.said(f"{words}{', {} more' if more else ''}", *(percent(ns, inside) for _, ns in ranked[:5]), *more,
               within=facts["no formula"])  # fmt: skip


def check_modules(sheet: Sheet) -> None:
    """The tree of modules by its indentation: names are paths below the module above, `0, 1` are several of them."""
    report = sheet.report
    assert ("modules" in sheet.sections) == bool(report["modules"])
    if "modules" not in sheet.sections:
        return
    lines, rows = sheet.sections["modules"], sheet.rows("modules", "module ")
    steps, work = steps_of(report), time_of(report["classes"])
    above: list[list[str]] = []
    for line, places in zip(lines[1:], rows, strict=False):
        name = cells_of(line)[0]
        if name.text == "outside modules":
            outside = work - time_of(report["modules"])
            sheet.same(places, [outside / steps, percent(outside, work)])
            break
        depth = (len(line.text) - len(line.text.lstrip(" "))) // 2
        parents = above[depth - 1] if depth else [""]
        base, _, last = name.text.rpartition(".")
        ends = [f"{base}.{end}" if base else end for end in last.split(", ")]
        above[depth:] = [[f"{parent}.{end}".strip(".") for parent in parents for end in ends] if depth else [""]]
        sheet.same(places, of_modules(report, above[depth]))
        sheet.name(name)
    assert len(rows) > 10


def of_modules(report: Report, paths: list[str]) -> Numbers:
    """Time, share, forward, backward with recompute, FLOPs of both, of these modules with all that lies in them."""
    steps, work = steps_of(report), time_of(report["classes"])
    for path in paths:
        assert any(within(row["module"], path) for row in report["modules"]), path
    kept = [row for row in report["modules"] if any(within(row["module"], path) for path in paths)]
    forward = [row for row in kept if row["phase"] == "forward"]
    backward = [row for row in kept if row["phase"] in ("backward", "recompute")]
    flops = [sum_of(part, lambda row: row["flops"]) for part in (forward, backward)]
    return [
        time_of(kept) / steps, percent(time_of(kept), work),
        *(time_of(part) / steps or None for part in (forward, backward)),
        *(None if count is None else count / steps for count in flops),
    ]  # fmt: skip


def within(module: str, path: str) -> bool:
    return not path or module == path or module.startswith(f"{path}.")


CHECKS: Final[tuple[Callable[[Sheet], None], ...]] = (
    check_headings, check_headline, check_what_ran, check_step, check_reached, check_idle, check_ceilings,
    check_communication, check_ranks, check_ledger, check_no_formula, check_modules,
)  # fmt: skip
#: Those that know every page, not only what the three have.
ON_ANY_PAGE: Final = (check_reached, check_idle, check_communication, check_ledger)
