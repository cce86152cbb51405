"""The advice on every trace, each piece beside the raw events that it is about.

    python benchmarks/advice_table.py TRACE_OR_FOLDER ...

Nothing of opanatomy is imported but `raw_figures`, which imports nothing either: the report comes from a process, the
raw time from the events of the file. `raw` is the time of a mean like step in which such events run (or the device
rests while the host has such an event), thus the most that any advice about them can gain; a gain beyond it by more
than 2 % is marked `>`. A `-` is of a rule that no single kind of event shows.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from raw_figures import (  # type: ignore[import-not-found]  # beside this file
    ALLOCATOR,
    COMPILATION,
    INPUT,
    PROFILER,
    Event,
    Step,
    Trace,
    communication,
    cut,
    length,
    like,
    read,
    report_of,
    union,
)

SOFTMAX = re.compile(r"softmax|dropout|bernoulli|masked|where|mul|div|add|copy_|clone|native_dropout|bmm", re.I)
NORMAL = re.compile(
    r"elementwise|gelu|silu|relu|tanh|sigmoid|threshold|pow|sqrt|mean|sum|bernoulli|sub|neg|exp|layer_?norm|rms_?norm|softmax|reduce|norm|triton|cat|copy|cunn|dropout|fill",
    re.I,
)
PRODUCT = re.compile(r"gemm|mm|conv|cutlass|xmma|cublas|Cijk|dgrad|wgrad|fprop|winograd|ampere_s|volta_s|sgemm", re.I)
LOSS = re.compile(r"softmax|nll_loss|copy", re.I)
LAYOUT = re.compile(r"nchwToNhwc|nhwcToNchw|NCHW_?to_?NHWC|transpose_nchw|batched_transpose", re.I)


def on_device(trace: Trace) -> bool:
    """Say whether there is device work."""
    return bool(trace.work)


def host_steps(trace: Trace) -> list[tuple[int, int]]:
    """Give the steps of a trace of the CPU: its annotations, else from the first to the last operator."""
    marks = sorted({(e.begin, e.end) for e in trace.events if re.fullmatch(r"ProfilerStep#\d+", e.name)})
    operators = [event for event in trace.events if event.kind == "cpu_op"]
    return marks or [(min(e.begin for e in operators), max(e.end for e in operators))]


def own_times(trace: Trace) -> list[tuple[str, int]]:
    """Give each operator on the host and its time without that of the operators that it calls."""
    threads = defaultdict(list)
    for event in trace.events:
        if event.kind == "cpu_op":
            threads[event.thread].append(event)
    found = []
    for events in threads.values():
        open_indices: list[int] = []
        events.sort(key=lambda event: (event.begin, -event.end))
        own = [event.end - event.begin for event in events]
        for index, event in enumerate(events):
            while open_indices and events[open_indices[-1]].end <= event.begin:
                open_indices.pop()
            if open_indices:
                own[open_indices[-1]] -= event.end - event.begin
            open_indices.append(index)
        found += [(event.name, time) for event, time in zip(events, own, strict=True)]
    return found


def operators_of(trace: Trace, work: Sequence[Event]) -> list[str]:
    """Give the innermost operator on the host in which each piece of work was launched."""
    threads: dict[object, list[tuple[int, int, int]]] = defaultdict(list)
    operators = [event for event in trace.events if event.kind == "cpu_op"]
    for number, event in enumerate(operators):
        threads[event.thread].append((event.begin, -event.end, number))
    for index, event in enumerate(work):
        if event.launch is not None:  # a call is behind all operators that begin with it
            threads[event.launch.thread].append((event.launch.begin, 1, index))
    names = [""] * len(work)
    for marks in threads.values():
        open_operators: list[Event] = []
        for begin, minus_end, number in sorted(marks):
            while open_operators and open_operators[-1].end < begin:
                open_operators.pop()
            if minus_end <= 0:
                open_operators.append(operators[number])
            elif open_operators:
                names[number] = open_operators[-1].name
    return names


def work_named(fits: Callable[[str], object]) -> Callable[[Trace, dict[str, Any]], float]:
    """Add up the device work of like steps with such kernels, on the CPU the operators that call no other."""

    def raw(trace: Trace, advice: dict[str, Any]) -> float:
        if not on_device(trace):
            steps = host_steps(trace)
            return sum(time for name, time in own_times(trace) if fits(name)) / len(steps)
        steps = like(trace) or trace.steps
        return sum(e.end - e.begin for s in steps for e in s.own if fits(e.name)) / max(len(steps), 1)

    return raw


def idle_under(fits: Callable[[Event], object], *, every: bool = False) -> Callable[[Trace, dict[str, Any]], float]:
    """Add up the idle time of like steps (or of `every` step) in which the host has such an event, on any thread."""

    def raw(trace: Trace, advice: dict[str, Any]) -> float:
        if not on_device(trace):
            events = [e for e in trace.events if fits(e)]
            return length(union(events)) / len(host_steps(trace))
        steps: Sequence[Step] = trace.steps if every else like(trace) or trace.steps
        covering = union(event for event in trace.events if event.kind != "device" and fits(event))
        return sum(length(cut(step.idle, covering)) for step in steps) / max(len(steps), 1)

    return raw


def idle(trace: Trace, advice: dict[str, Any]) -> float:
    """Give all idle time of a mean like step; on the CPU the time in which no operator runs."""
    if not on_device(trace):
        operators = union(event for event in trace.events if event.kind == "cpu_op")
        spans = np.array(host_steps(trace))
        return (length(spans) - length(cut(spans, operators))) / len(spans)
    steps = like(trace) or trace.steps
    return sum(step.times["idle"] for step in steps) / max(len(steps), 1)


def exposed(trace: Trace, advice: dict[str, Any]) -> float:
    """Give collectives of a mean like step while nothing else runs; on the CPU gloo's."""
    if not on_device(trace):
        return length(union(e for e in trace.events if re.search("^(gloo|nccl):", e.name))) / len(host_steps(trace))
    steps = like(trace) or trace.steps
    return communication(trace, steps)[1] / max(len(steps), 1)


def reduced(trace: Trace, advice: dict[str, Any]) -> float:
    """Give exposed collectives, of gradients that are reduced one by one with the idle time on either side of them."""
    raw = exposed(trace, advice)
    if "one by one" not in advice["why"]:
        return raw
    steps = like(trace) or trace.steps
    edges = {edge for s in steps for e in s.own if re.match("nccl|rccl", e.name, re.I) for edge in (e.begin, e.end)}
    idle = sum(end - begin for s in steps for begin, end in s.idle.tolist() if begin in edges or end in edges)
    return raw + idle / max(len(steps), 1)


def host_time(fits: Callable[[str], object]) -> Callable[[Trace, dict[str, Any]], float]:
    """Add up the time of the host in such events."""

    def raw(trace: Trace, advice: dict[str, Any]) -> float:
        spans = union(event for event in trace.events if event.kind != "device" and fits(event.name))
        steps = np.array(host_steps(trace))
        return length(cut(spans, steps)) / len(steps)

    return raw


def optimizer(trace: Trace, advice: dict[str, Any]) -> float:
    """Give the work launched in ranges of the optimizer; on the CPU these ranges."""
    ranges = [e for e in trace.events if re.match(r"Optimizer\.step|opanatomy\.(loop/)?phase/optimizer", e.name)]
    if not on_device(trace):
        return length(union(ranges)) / len(host_steps(trace))
    steps = like(trace) or trace.steps
    spans = sorted((e.begin, e.end) for e in ranges)
    inside = lambda call: any(begin <= call.begin <= end for begin, end in spans)  # noqa: E731
    return sum(e.end - e.begin for s in steps for e in s.own if e.launch and inside(e.launch)) / max(len(steps), 1)


def operator(trace: Trace, advice: dict[str, Any]) -> float:
    """Give the work of the operator that the advice is about, in all phases."""
    name = (advice["figures"].get("operator") or {}).get("text") or ""
    parts = {name, "_flash_attention_forward"} if name == "_scaled_dot_product_flash_attention" else {name}
    fits = lambda text: text.removeprefix("aten::") in parts  # noqa: E731
    if not on_device(trace):
        return work_named(fits)(trace, advice)
    steps = like(trace) or trace.steps
    own = [event for step in steps for event in step.own]
    names = operators_of(trace, own)
    by_operator = sum(e.end - e.begin for e, text in zip(own, names, strict=True) if fits(text))
    by_kernel = sum(e.end - e.begin for e in own if name and name in e.name)
    return max(by_operator, by_kernel) / max(len(steps), 1)


def attention(trace: Trace, advice: dict[str, Any]) -> float:
    """Give softmax, dropout, masks, scales and batched products, wherever they are."""
    if not on_device(trace):
        return work_named(SOFTMAX.search)(trace, advice)
    steps = like(trace) or trace.steps
    own = [event for step in steps for event in step.own]
    names = operators_of(trace, own)
    return sum(e.end - e.begin for e, text in zip(own, names, strict=True) if SOFTMAX.search(text)) / max(len(steps), 1)


RAW: dict[str, Callable[[Trace, dict[str, Any]], float]] = {
    "launches": idle, "graph_breaks": idle, "gap": idle,
    "input": idle_under(lambda event: INPUT.search(event.name) or re.search("Memcpy|copy_batch", event.name)),
    "synchronization": idle,
    "allocator": idle_under(lambda event: event.kind == "api" and ALLOCATOR.search(event.name), every=True),
    "cold_start": idle_under(lambda event: event.kind in ("api", "cpu_op") and event.end - event.begin > 100_000),
    "compilation": idle_under(lambda event: COMPILATION.search(event.name)),
    "profiler": idle_under(
        lambda event: event.kind in ("overhead", "python_function") or PROFILER.search(event.name)
    ),
    "communication": reduced,
    "waiting": lambda trace, advice: exposed(trace, advice) + (idle(trace, advice) if "idles" in advice["why"] else 0),
    "zero_grad": host_time(lambda name: "zero_grad" in name or name.endswith("AccumulateGrad")),
    "pageable_copies": work_named(lambda name: "HtoD" in name and "Pageable" in name),
    "far_from_bound": operator, "float32": work_named(PRODUCT.search),
    "attention": attention, "chains": work_named(lambda name: NORMAL.search(name) or SOFTMAX.search(name)),
    "optimizer": lambda trace, advice: max(optimizer(trace, advice), idle(trace, advice)),
    "loss": work_named(LOSS.search), "layout": work_named(LAYOUT.search),
}  # fmt: skip


def rows_of(path: Path) -> list[str]:
    """Give a line for each piece of advice on a trace, or on the ranks of a folder (raw: the mean of the ranks)."""
    report = report_of(path)
    if report is None:
        return [f"| {path.name} | not read | | | |"]
    traces = [read(each) for each in (sorted(path.glob("*.json.gz")) if path.is_dir() else [path])]
    lines, promised = [], 0.0
    for advice in report["advice"]:
        gain, step = advice["gain_ns"], advice["step_ns"]
        if gain is None:
            continue
        promised += gain / step
        known = RAW.get(advice["id"])
        raw = None if known is None else sum(known(trace, advice) for trace in traces) / len(traces)
        mark = "" if raw is None or gain <= 1.02 * raw else " >"
        shown = "-" if raw is None else f"{raw / 1e6:.2f}"
        about = f" ({advice['subject']})" if advice["subject"] else ""
        lines.append(
            f"| {path.name} | {advice['id']}{about} | {gain / 1e6:.2f} ({gain / step:.0%}) | {shown}{mark} |"
            f" {advice['tries'][0]} |"
        )
    if lines:
        lines.append(f"| {path.name} | together | {promised:.1%}{' >' if promised > 1 else ''} | | |")
    return lines or [f"| {path.name} | none | | | |"]


def main() -> None:
    """Print the table."""
    print("| trace | advice | gain, ms of the step | raw, ms | try |")
    print("|---|---|--:|--:|---|")
    beyond = 0
    for text in sys.argv[1:]:
        try:
            lines = rows_of(Path(text))
        except Exception as error:  # one file does not end the table
            lines = [f"| {Path(text).name} | {type(error).__name__}: {error} | | | |"]
        beyond += sum(" > |" in line for line in lines)
        print("\n".join(lines), flush=True)
    print(f"\nbeyond the raw time: {beyond}")


if __name__ == "__main__":
    main()
