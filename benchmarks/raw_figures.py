"""Work the figures of a report out a second time, from raw events alone, and print them beside what opanatomy says.

    python benchmarks/raw_figures.py --traces DIR

DIR holds `traces/` and `more_traces/`. Nothing of opanatomy is imported: it runs as a process, and the tables below
name the places in its JSON. All times are of events with `ph: X`, in whole nanoseconds:

- Device work: kernels, copies and memsets. Its launch is the API call with its correlation id, its step the annotation
  `ProfilerStep#N` in which the launch begins, on any thread. Other work: what no step launched.
- A step on the device begins with its annotation, or where the work of the step before ended if later, and ends with
  the last work launched in it. `tail` is how much later its annotation ends: then its wall ends there, as no later step
  has that time. A trace without steps is one step, from the first to the last device work.
- Idle: no work of any stream runs. Busy: some of a step does. The rest of a wall is other work. Kernel time: the sum
  of the durations of the work that a step launched, longer than busy where streams overlap.
- Host-bound: the part of a gap until the call that launched the work at its end had returned (all of the gap if that
  is later, or if no work is at its end). Late gaps: all of each gap in which that call began, a larger figure where
  work waits after its launch. Host and device times are compared as recorded: no clock is corrected.
- Set aside: steps with 2 % and more of other work; of the rest all but the largest group whose numbers of pieces of
  work are within 1 %; of these a step with a pause, 1.5 times as long as the shortest with less than 1.1 times its
  busy time. The steps that remain are alike.
- Communication: the union of NCCL's and RCCL's kernels; exposed: while no other work runs. Compute: the union of all
  other work that the steps launched.
- Collectives of ranks are matched by their order. Waiting at one: from a rank's own begin to that of the last rank,
  for which it is counted. There when the step began: of the waiting at the first collective as much as the step of the
  last rank began later than that of the rank that waits.

The last table charges each instant of idle time to the first of these that the host recorded then, on the threads that
launch (on all if none does). It tells what was recorded at that time, which is a cause only where it is host-bound:

    allocator  cudaMalloc, cudaFree and the like           launch     any other launch call
    sync       synchronizing calls, copies that block      other API  any other API call
    slow       a launch call longer than 1 ms              operator   an operator, and no API call in it
    input      ranges of DataLoader and of Lightning       Python     Python frames alone
    compile    dynamo, inductor, Triton at work: neither   nothing    no event at all, or annotations alone
               a cache lookup nor compiled code            frames     Python frames that begin in a millisecond of
    profiler   `overhead` of any thread, torch/profiler               idle time: what recording stacks adds
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
COMPARE, CAUSES = "more_traces/compare", "more_traces/causes"
PLAIN, QUANTIZED = f"{COMPARE}/train_v100_a2a_plain", f"{COMPARE}/train_v100_a2a_quantized"
COLD, DLRM = f"{CAUSES}/cold_start_a100.json.gz", "more_traces/dlrm_v100"
RESNET = "traces/train_v100_resnet50_schema2021.json.gz"
NO_KERNELS = [f"{CAUSES}/{name}.json.gz" for name in ("host_only_gpu", *(f"launches_no_kernels_{x}" for x in "ab"))]
GPT = [f"{COMPARE}/train_h100_compile_gpt_rank0of8_{side}.json.gz" for side in ("before", "after")]

#: Where the JSON of `analyze` has a figure. A path adds all items of a list with [], some with [key=value], the n-th
#: with [n]; paths are joined by + and -, two sums by one /. STEP is of a step by its number, WHOLE of a trace without.
KIND, COMPUTE = "breakdown.kinds[0]", "timeline.busy_ns - timeline.exposed_communication_ns"
STEP = {
    "wall": "step.steps[number={0}].wall_ns",
    "busy": "step.steps[number={0}].busy_ns",
    "idle": " + ".join(f"step.steps[number={{0}}].{kind}_idle_ns" for kind in ("host", "stream", "other")),
    "kernel time": "step.steps[number={0}].kernel_time_ns",
}
WHOLE = {
    "wall": "timeline.window_ns",
    "busy": "timeline.busy_ns",
    "idle": "timeline.idle_ns",
    "kernel time": "timeline.kernel_time_ns",
}
STEP_HOST = "step.steps[number={0}].host_idle_ns"
WHOLE_HOST = "timeline.host_idle_ns"
CAUSE = "step.steps[number={0}].idle_causes.{1}"
SET_ASIDE = "breakdown.kinds[].steps[number={0}].set_aside"
#: Each figure: what is analyzed, its name and unit, what issue 23 says, where opanatomy has it.
FIGURES: tuple[tuple[str, str, str, str, str], ...] = (
    *(row for folder, like, idle, number, step_idle, covered in (
        (PLAIN, "8", "8.29", 4, "277.1", "269.3"), (QUANTIZED, "4", "5.96", 5, "193.9", "192.2"),
    ) for row in (
        (folder, "step, mean of the like steps", "ms", "156", "step.wall_ns"),
        (folder, "like steps of all ranks", "", like, f"{KIND}.count"),
        (folder, "host-bound idle, mean of the like steps", "ms", idle, f"{KIND}.host_idle_ns / {KIND}.count"),
        (folder, "late gaps, mean of the like steps", "ms", idle, f"{KIND}.host_idle_ns / {KIND}.count"),
        (folder, "idle share of the like steps", "%", "", "timeline.idle_ns / timeline.busy_ns + timeline.idle_ns"),
        (f"{folder}/rank-0.json.gz", f"step {number}: idle", "ms", step_idle, STEP["idle"].format(number)),
        (f"{folder}/rank-0.json.gz", f"step {number}: idle that cudaMalloc, cudaFree cover", "ms", covered,
         CAUSE.format(number, "allocator")))),
    *((f"{PLAIN}/rank-{rank}.json.gz", "compute, three steps", "ms", said, "")
      for rank, said in enumerate(("327.9", "", "327.4", "331.0"))),
    (COLD, "idle", "ms", "1715", "timeline.idle_ns"),
    (COLD, "host-bound idle", "ms", "", WHOLE_HOST),
    (COLD, "longest launch call", "ms", "1337", ""),
    (COLD, "idle that it covers", "ms", "", "timeline.causes[cause=slow_launch].name_ns"),
    (RESNET, "idle of a step, least", "ms", "66", STEP["idle"].format(10)),
    (RESNET, "idle of a step, most", "ms", "87", STEP["idle"].format(5)),
    (RESNET, "idle of a step that enumerate(DataLoader) covers, least", "ms", "49", CAUSE.format(10, "input")),
    (RESNET, "idle of a step that enumerate(DataLoader) covers, most", "ms", "69", CAUSE.format(5, "input")),
    *((file, *row) for file in NO_KERNELS for row in (
        ("device work", "", "", "step.steps[].work"),
        ("API calls", "", "", ""),
        ("launch calls", "", "", "timeline.launching.calls"),
        ("calls of aten::cudnn_convolution", "", "", "operators[operator=aten::cudnn_convolution].calls"))),
    (DLRM, "waiting of all ranks", "ms", "", "waiting.each[].waiting_ns"),
    (DLRM, "waiting for rank 7", "%", "", "waiting.each[rank=7].charged_ns / waiting.each[].waiting_ns"),
    (DLRM, "waiting for rank 7 at the first collective", "%", "56", ""),
    (DLRM, "waiting for rank 7 that was there when the step began", "%", "56", ""),
    (DLRM, "rank 7: step begin to first collective", "ms", "3.2", ""),
    *((file, *row) for file, step in zip(GPT, ("62.468", "61.594"), strict=True) for row in (
        ("step, mean of 11 and 13", "ms", step, "step.wall_ns"),
        ("exposed communication, mean of 11 and 13", "ms", "",
         f"{KIND}.steps[set_aside=None].exposed_communication_ns / {KIND}.count"),
        ("communication, mean of 11 and 13", "ms", "", "timeline.communication_ns / step.count"),
        ("exposed communication, four steps", "ms", "", ""),
        ("communication, four steps", "ms", "", ""))),
)  # fmt: skip

DEVICE, API = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}, {"cuda_runtime", "cuda_driver", "runtime"}
COLLECTIVE = re.compile(r"nccl|rccl", re.I)
ALLOCATOR = re.compile(r"^(cuda|hip|cu)(Malloc|Free|Host(Alloc|Malloc|Free)|Mem(Alloc|Free|Create|Map|Unmap|Release))")
SYNCHRONIZING = re.compile(r"Synchronize|^(cuda|hip|cu)Memcpy(?!.*Async)")
LAUNCH = re.compile(r"Launch|(Memcpy|Memset).*Async")
INPUT = re.compile(r"enumerate\(DataLoader\)|DataLoader.*__next__|dataloader_next|fetch_next")
COMPILATION = re.compile(
    r"\(dynamo_timed\)|compile_inner|entire_frame_compile|backend_compile|call_user_compiler|fx_codegen|async_compile"
    r"|torch/_dynamo/(convert_frame|output_graph|symbolic_convert)\.py|torch/_inductor/(compile_fx|graph|codecache"
    r"|scheduler)\.py|triton/compiler/"
)
PROFILER = re.compile(r"^PyTorch Profiler|Activity Buffer Request|_(en|dis)able_profiler|^torch/(autograd/)?profiler")
Intervals = NDArray[np.int64]


class Event(NamedTuple):
    """One event in nanoseconds; `kind` is device, api or its category. Device work knows the call that launched it."""

    name: str
    kind: str
    begin: int
    end: int
    thread: object
    correlation: object
    launch: Event | None = None

    @property
    def launches(self) -> bool:
        """Say whether it is an API call that gives the device work."""
        return self.kind == "api" and bool(LAUNCH.search(self.name))


class Step(NamedTuple):
    """One step on the device: its work, its gaps, its times by name, and why it is set aside."""

    number: int | None
    own: list[Event]
    idle: Intervals
    times: dict[str, int]
    aside: str


class Trace(NamedTuple):
    """What one file recorded: all events, of them the device work in the order of begins, and its steps."""

    events: list[Event]
    work: list[Event]
    steps: list[Step]


def union(events: Iterable[Event]) -> Intervals:
    """Give the times of the events as disjoint intervals in order."""
    times = np.array([(event.begin, event.end) for event in events], dtype=np.int64).reshape(-1, 2)
    return cut(times, times[:0], inside=False)


def cut(intervals: Intervals, others: Intervals, *, inside: bool = True) -> Intervals:
    """Give the parts of `intervals` inside or outside of `others`, disjoint and in order."""
    times = np.concatenate([intervals.T.ravel(), others.T.ravel()])
    order, own = np.argsort(times, kind="stable"), np.arange(len(times)) < 2 * len(intervals)
    signs = np.concatenate([np.repeat([1, -1], len(intervals)), np.repeat([1, -1], len(others))])
    times, depth, depth_of_others = times[order], np.cumsum((signs * own)[order]), np.cumsum((signs * ~own)[order])
    kept = np.flatnonzero((depth[:-1] > 0) & ((depth_of_others[:-1] > 0) == inside) & (np.diff(times) > 0))
    return np.stack([times[kept], times[kept + 1]], axis=1)


def length(intervals: Intervals) -> int:
    """Add up disjoint intervals."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


@cache
def read(path: Path) -> Trace:
    """Read a Chrome trace; decimals keep the fractions of microseconds since 1970."""
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    events = []
    for item in document if isinstance(document, list) else document["traceEvents"]:
        kind = str(item.get("cat")).lower()
        if item.get("ph") == "X" and kind != "trace":
            kind = "device" if kind in DEVICE else "api" if kind in API else kind
            if kind == "operator":  # The schema of 2021 has annotations among them.
                kind = (
                    "user_annotation" if re.match(r"ProfilerStep#|Optimizer\.|enumerate\(", item["name"]) else "cpu_op"
                )
            begin, end = int(item["ts"] * 1000), int((item["ts"] + item["dur"]) * 1000)
            correlation = item.get("args", {}).get("correlation")
            events.append(Event(item["name"], kind, begin, end, (item.get("pid"), item.get("tid")), correlation))
    calls = {event.correlation: event for event in events if event.kind == "api"}
    work = [event._replace(launch=calls.get(event.correlation)) for event in events if event.kind == "device"]
    work.sort(key=lambda event: event.begin)
    return Trace(events, work, steps_of(events, work) if work else [])


def steps_of(events: Sequence[Event], work: Sequence[Event]) -> list[Step]:
    """Find the steps on the device, and why some are set aside."""
    marks = sorted(
        (event.begin, event.end, int(event.name.split("#")[1]))
        for event in events
        if event.kind == "user_annotation" and re.fullmatch(r"ProfilerStep#\d+", event.name)
    )
    launched: list[list[Event]] = [[] for _ in marks]
    for event in work:
        index = bisect_right(marks, event.launch.begin, key=lambda mark: mark[0]) - 1 if event.launch else -1
        if event.launch and index >= 0 and event.launch.begin <= marks[index][1]:
            launched[index].append(event)
    if not marks:
        marks, launched = [(work[0].begin, 0, -1)], [list(work)]
    device, owned = union(work), union(event for own in launched for event in own)
    steps, ended = [], 0
    for (mark, mark_end, number), own in zip(marks, launched, strict=True):
        if own:
            begin, ended = max(mark, ended), max(event.end for event in own)
            span = np.array([[begin, max(ended, mark_end)]])
            idle, other = cut(span, device, inside=False), length(cut(cut(span, device), owned, inside=False))
            times = {"wall": length(span), "busy": length(span) - length(idle) - other, "idle": length(idle)}
            times["kernel time"] = sum(event.end - event.begin for event in own)
            times |= {"other work": other, "tail": max(mark_end - ended, 0)}
            aside = "other work" if other * 50 >= length(span) else ""
            steps.append(Step(number if number >= 0 else None, own, idle, times, aside))
    left = [step for step in steps if not step.aside]
    groups = [[two for two in left if abs(len(one.own) - len(two.own)) * 100 <= len(one.own)] for one in left]
    group = max(groups, key=lambda some: (len(some), sum(len(step.own) for step in some)), default=[])
    least = min((step.times for step in group), key=lambda times: times["wall"], default={})
    for index, step in enumerate(steps):
        if not step.aside and all(step is not one for one in group):
            steps[index] = step._replace(aside="another kind")
        elif not step.aside and step.times["wall"] > 1.5 * least["wall"] and step.times["busy"] < 1.1 * least["busy"]:
            steps[index] = step._replace(aside="a pause")
    return steps


def like(trace: Trace) -> list[Step]:
    """Give the steps that are alike."""
    return [step for step in trace.steps if not step.aside]


def host_bound(trace: Trace, steps: Sequence[Step], *, whole: bool = False) -> int:
    """Add up what of each gap passed before the launch of the work at its end had returned, or whole late gaps."""
    calls = {event.begin: event.launch for event in reversed(trace.work)}
    total = 0
    for begin, end in (gap for step in steps for gap in step.idle.tolist()):
        call = calls.get(end)
        if end not in calls or (whole and call and call.begin > begin):
            total += end - begin
        elif call and not whole:
            total += max(min(call.end, end) - begin, 0)
    return total


def communication(trace: Trace, steps: Sequence[Step]) -> tuple[int, int, int]:
    """Give communication, its exposed part, and compute."""
    own = [event for step in steps for event in step.own]
    shared = union(event for event in own if COLLECTIVE.search(event.name))
    others = union(event for event in trace.work if not COLLECTIVE.search(event.name))
    compute = union(event for event in own if not COLLECTIVE.search(event.name))
    return length(shared), length(cut(shared, others, inside=False)), length(compute)


def ranks_of(folder: Path) -> list[Trace]:
    """Read the ranks of a folder."""
    return [read(path) for path in sorted(folder.glob("rank-*.json.gz"))]


def waiting_of(ranks: Sequence[Trace]) -> tuple[Intervals, Intervals, Intervals]:
    """Give of each rank the begin of its step, the begins of its collectives, and its waiting at each."""
    begins = [event.begin for trace in ranks for event in trace.events if event.name == "ProfilerStep#10"]
    starts = np.array([[event.begin for event in trace.work if COLLECTIVE.search(event.name)] for trace in ranks])
    return np.array(begins), starts, starts.max(axis=0) - starts


def raw_figures(traces: Path) -> dict[tuple[str, str], float]:
    """Work the figures of `FIGURES` out, by what is analyzed and name."""
    raw: dict[tuple[str, str], float] = {}
    for folder, number in ((PLAIN, 4), (QUANTIZED, 5)):
        ranks = ranks_of(traces / folder)
        steps = [step for trace in ranks for step in like(trace)]
        wall, idle = (sum(step.times[name] for step in steps) for name in ("wall", "idle"))
        raw[folder, "step, mean of the like steps"] = wall / len(steps)
        raw[folder, "like steps of all ranks"] = len(steps)
        for name, whole in (("host-bound idle", False), ("late gaps", True)):
            waited = sum(host_bound(trace, like(trace), whole=whole) for trace in ranks)
            raw[folder, f"{name}, mean of the like steps"] = waited / len(steps)
        raw[folder, "idle share of the like steps"] = idle / wall
        gaps = next(step.idle for step in ranks[0].steps if step.number == number)
        calls = union(event for event in ranks[0].events if event.name in ("cudaMalloc", "cudaFree"))
        file, name = f"{folder}/rank-0.json.gz", f"step {number}: idle"
        raw[file, name], raw[file, f"{name} that cudaMalloc, cudaFree cover"] = length(gaps), length(cut(gaps, calls))
        for rank, trace in enumerate(ranks):
            raw[f"{folder}/rank-{rank}.json.gz", "compute, three steps"] = communication(trace, trace.steps)[2]
    cold, resnet = read(traces / COLD), read(traces / RESNET)
    longest = max((event for event in cold.events if event.launches), key=lambda event: event.end - event.begin)
    raw[COLD, "idle"], raw[COLD, "host-bound idle"] = length(cold.steps[0].idle), host_bound(cold, cold.steps)
    raw[COLD, "longest launch call"] = longest.end - longest.begin
    raw[COLD, "idle that it covers"] = length(cut(cold.steps[0].idle, union([longest])))
    loading = union(event for event in resnet.events if event.name.startswith("enumerate(DataLoader)"))
    for extreme, pick in (("least", min), ("most", max)):
        raw[RESNET, f"idle of a step, {extreme}"] = pick(length(step.idle) for step in resnet.steps)
        name = f"idle of a step that enumerate(DataLoader) covers, {extreme}"
        raw[RESNET, name] = pick(length(cut(step.idle, loading)) for step in resnet.steps)
    for file in NO_KERNELS:
        events = read(traces / file).events
        raw[file, "device work"] = sum(event.kind == "device" for event in events)
        raw[file, "API calls"] = sum(event.kind == "api" for event in events)
        raw[file, "launch calls"] = sum(event.launches for event in events)
        raw[file, "calls of aten::cudnn_convolution"] = sum(event.name == "aten::cudnn_convolution" for event in events)
    begins, starts, waiting = waiting_of(ranks_of(traces / DLRM))
    there = np.minimum(waiting[:, 0], np.maximum(begins[7] - begins, 0))
    for_rank_7 = starts.argmax(axis=0) == 7
    raw[DLRM, "waiting of all ranks"] = waiting.sum()
    raw[DLRM, "waiting for rank 7"] = waiting[:, for_rank_7].sum() / waiting.sum()
    raw[DLRM, "waiting for rank 7 at the first collective"] = waiting[:, 0].sum() / waiting.sum() * for_rank_7[0]
    raw[DLRM, "waiting for rank 7 that was there when the step began"] = there.sum() / waiting.sum() * for_rank_7[0]
    raw[DLRM, "rank 7: step begin to first collective"] = starts[7, 0] - begins[7]
    for file in GPT:
        trace = read(traces / file)
        steps = [step for step in trace.steps if step.number in (11, 13)]
        raw[file, "step, mean of 11 and 13"] = sum(step.times["wall"] for step in steps) / 2
        for which, among, count in (("mean of 11 and 13", steps, 2), ("four steps", trace.steps, 1)):
            shared, exposed, _ = communication(trace, among)
            raw[file, f"communication, {which}"] = shared / count
            raw[file, f"exposed communication, {which}"] = exposed / count
    return raw


#: What idle time is charged to, the first that fits.
COVERS: tuple[tuple[str, Callable[[Event], object]], ...] = (
    ("allocator", lambda event: event.kind == "api" and ALLOCATOR.search(event.name)),
    ("sync", lambda event: event.kind == "api" and SYNCHRONIZING.search(event.name)),
    ("slow", lambda event: event.launches and event.end - event.begin > 1_000_000),
    ("input", lambda event: INPUT.search(event.name)),
    ("compile", lambda event: COMPILATION.search(event.name)),
    ("profiler", lambda event: event.kind == "overhead" or PROFILER.search(event.name)),
    ("launch", lambda event: event.launches),
    ("other API", lambda event: event.kind == "api"),
    ("operator", lambda event: event.kind == "cpu_op"),
    ("Python", lambda event: event.kind == "python_function"),
)


def covers(trace: Trace, steps: Sequence[Step]) -> list[str]:
    """Charge the idle time of the steps to what the host recorded in it: percentages, and frames per millisecond."""
    threads = {event.thread for event in trace.events if event.launches}
    kinds = {"api", "cpu_op", "python_function", "user_annotation"}
    events = [
        event
        for event in trace.events
        if event.kind == "overhead" or (event.kind in kinds and (not threads or event.thread in threads))
    ]
    idle = left = np.concatenate([step.idle for step in steps])
    cells = []
    for _, fits in COVERS:
        covering = union(event for event in events if fits(event))
        cells.append(length(cut(left, covering)))
        left = cut(left, covering, inside=False)
    total, frames = length(idle), np.sort([event.begin for event in events if event.kind == "python_function"])
    begun = int((np.searchsorted(frames, idle[:, 1]) - np.searchsorted(frames, idle[:, 0])).sum())
    shares = [f"{100 * cell / total:.1f}" if cell else "-" for cell in (*cells, length(left))]
    return [*shares, f"{begun / total * 1e6:.0f}" if len(frames) else "-"]


@cache
def report_of(target: Path) -> Any:
    """Let opanatomy analyze a trace or a folder; None, and its words on stderr, where it fails."""
    command = [sys.executable, "-m", "opanatomy", "analyze", str(target), "-f", "json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if not done.returncode:
        return json.loads(done.stdout)
    return print(f"{target}: {done.stderr.strip()}", file=sys.stderr)


def places(report: Any, path: str) -> list[Any]:
    """Give all that a path leads to."""
    found = [report]
    for name, chosen, wanted in re.findall(r"([^.\[]+)(\[([^\]]*)\])?", path):
        found = [place[name] for place in found if isinstance(place, dict) and name in place]
        if chosen:
            key, _, value = wanted.partition("=")
            found = [
                item
                for place in found
                for index, item in enumerate(place or ())
                if not key or (str(item.get(key)) == value if value else index == int(key))
            ]
    return found


def look_up(report: Any, expression: str) -> float | None:
    """Give the value of an expression; None where a part of it is missing or not known."""
    sums: list[float] = []
    for side in expression.split(" / "):
        terms = ["+", *side.split()]
        found = [(sign, places(report, path)) for sign, path in zip(terms[::2], terms[1::2], strict=True)]
        if not expression or any(not values or None in values for _, values in found):
            return None
        sums.append(sum(-sum(values) if sign == "-" else sum(values) for sign, values in found))
    return sums[0] if len(sums) == 1 else sums[0] / sums[1] if sums[1] else None


def show(value: float | None, unit: str = "ms") -> str:
    """Write nanoseconds as ms, a share in percent, a count as it is."""
    if value is None:
        return "-"
    return f"{value / 1e6:.3f}" if unit == "ms" else f"{value * 100:.1f}" if unit == "%" else f"{value:.0f}"


def short(file: str) -> str:
    """Leave out of a name what all have."""
    return file.removeprefix("more_").removeprefix("traces/").removesuffix(".json.gz")


def print_table(title: str, header: str, rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table under its title; the columns of the header are apart by two blanks."""
    table = [re.split("  +", header), *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    print(f"\n## {title}\n")
    for row in (table[0], ["-" * width for width in widths], *rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")


def print_figures(traces: Path) -> None:
    """Print the figures of the issue."""
    raw, rows = raw_figures(traces), []
    for target, name, unit, said, path in FIGURES:
        figure, tool = raw[target, name], look_up(report_of(traces / target), path) if path else None
        apart = "-" if tool is None else f"{100 * (tool - figure) / figure:+.2f} %" if figure else show(tool, unit)
        rows.append([short(target), name, unit, show(figure, unit), said or "-", show(tool, unit), apart])
    print_table("Figures of issue 23", "trace  figure  unit  raw  issue 23  opanatomy  difference", rows)


def print_ranks(folder: Path) -> None:
    """Print what each rank waited for."""
    ranks, rows = ranks_of(folder), []
    begins, starts, waiting = waiting_of(ranks)
    for rank, trace in enumerate(ranks):
        times = [begins[rank] - begins.min(), starts[rank, 0] - begins[rank], waiting[rank].sum()]
        times += [look_up(report_of(folder), f"waiting.each[rank={rank}].waiting_ns")]
        times += [communication(trace, trace.steps)[2], look_up(report_of(folder / f"rank-{rank}.json.gz"), COMPUTE)]
        rows.append([str(rank), *map(show, times), " ".join(map(show, waiting[rank]))])
    header = "rank  step begins  to the first  waiting  opanatomy  compute  opanatomy  waiting at each collective"
    print_table("Ranks of dlrm_v100 (ms)", header, rows)


def print_traces(traces: Path) -> None:
    """Print the steps of every trace, and what the host recorded while the device was idle."""
    by_step, by_cause = [], []
    for path in sorted(traces.glob("*traces/**/*.json.gz")):
        name, trace, report = short(str(path.relative_to(traces))), read(path), report_of(path)
        if not trace.steps:
            by_step.append([name, "no device work", *["-"] * 9])
        for step in trace.steps:
            number, apart = "whole" if step.number is None else str(step.number), []
            for what, place in (WHOLE if step.number is None else STEP).items():
                tool = look_up(report, place.format(number))
                if tool != step.times[what]:
                    apart.append(f"{what} {show(None if tool is None else tool - step.times[what])}")
            if any(places(report, SET_ASIDE.format(number))) != (step.aside in ("other work", "a pause")):
                apart.append("set aside")
            cells = [str(len(step.own)), *map(show, step.times.values()), step.aside or "-"]
            by_step.append([name, number, *cells, ", ".join(apart) or "nothing"])
        for which, steps in (("like", like(trace)), ("aside", [step for step in trace.steps if step.aside])):
            idle, wall = (sum(step.times[name] for step in steps) for name in ("idle", "wall"))
            if idle:
                numbers = f"{which}: {','.join('whole' if step.number is None else str(step.number) for step in steps)}"
                host_paths = [WHOLE_HOST if step.number is None else STEP_HOST.format(step.number) for step in steps]
                tool = look_up(report, " + ".join(host_paths))
                parts = (idle / wall, host_bound(trace, steps) / idle, None if tool is None else tool / idle)
                by_cause.append(
                    [name, numbers, show(idle), *(show(part, "%") for part in parts), *covers(trace, steps)]
                )
    header = "trace  step  work  wall  busy  idle  kernel time  other work  tail  set aside  opanatomy differs by"
    print_table("Steps on the device (ms)", header, by_step)
    header = f"trace  steps  idle ms  % of wall  host-bound  opanatomy  {'  '.join(dict(COVERS))}  nothing  frames"
    print_table("What the host recorded while the device was idle (% of the idle time)", header, by_cause)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="the folder that holds traces/ and more_traces/")
    traces = parser.parse_args().traces
    print_figures(traces)
    print_ranks(traces / DLRM)
    print_traces(traces)


if __name__ == "__main__":
    main()
