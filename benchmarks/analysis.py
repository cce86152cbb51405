"""How long `opanatomy analyze` takes and how much memory, against the floor of decompressing and parsing the same file.

    python benchmarks/analysis.py [TRACE...] [--grow 4 16] [--repetitions N] [--functions N] [--hta PYTHON]
        [--history]

Whole processes in turns on one core. The floor is `gzip.decompress` and `orjson.loads` with the garbage collector off:
the two calls alone, without the start of the interpreter. Without a file a tiny model is captured first.
The targets: at most 1.3 x the floor, at most 150 MB plus once the JSON text. `--history` adds the ratio of each trace
to history.json, so that a loss shows in a diff.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

from measure import (
    Sample,
    Samples,
    Spread,
    cpus,
    peak,
    pin_to_one_core,
    print_table,
    ratio,
    run_process,
    spread_of,
    take_turns,
    walls,
)
from msgspec import Struct

HERE = Path(__file__).resolve().parent
TOOL, FLOOR, STAGES, HTA = "opanatomy analyze -f json", "floor", "stages", "HTA"
MOST_TIMES_THE_FLOOR = 1.3
MOST_MEMORY_BYTES = 150_000_000
TINY_MODEL = (
    "google-bert/bert-base-uncased", "--layers", "2", "--batch", "2", "--seq", "64", "--set", "hidden_size=64",
    "--set", "num_attention_heads=2", "--set", "intermediate_size=128", "--set", "vocab_size=500", "--steps", "5",
    "--optimizer", "adamw-loop", "--device", "cpu",
)  # fmt: skip
HTA_CODE = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]})
analysis.get_temporal_breakdown(visualize=False)
analysis.get_gpu_kernel_breakdown(visualize=False)
"""


class Result(Struct, frozen=True, kw_only=True):
    """One file: its size, and every sample."""

    title: str
    text_bytes: int
    events: int
    samples: Samples

    def floor(self, key: str) -> list[float]:
        """Seconds of the two calls, by `wall_ns` or `cpu_ns`."""
        return [json.loads(sample.output)[key] / 1e9 for sample in self.samples[FLOOR]]


def measure_file(trace: Path, title: str, repetitions: int, hta: str | None) -> Result:
    """The tool, the floor and the stages of one file in turns."""
    python = sys.executable
    kinds = {
        FLOOR: partial(run_process, (python, str(HERE / "floor.py"), str(trace))),
        TOOL: partial(run_process, (python, "-m", "opanatomy", "analyze", str(trace), "-f", "json")),
        STAGES: partial(run_process, (python, str(HERE / "stages.py"), str(trace))),
    }
    if hta:
        kinds[HTA] = partial(run_process, (hta, "-c", HTA_CODE, str(trace)), python_path=None)
    samples = take_turns(kinds, repetitions)
    floor = json.loads(samples[FLOOR][0].output)
    if floor["parser"] != "orjson":
        print(f"the floor parses with {floor['parser']}: the ratios look better than against orjson")
    return Result(title=title, text_bytes=floor["text_bytes"], events=floor["events"], samples=samples)


def print_result(result: Result) -> None:
    """Time and memory of each process, then the stages of ours."""
    print(f"{result.title}: {result.text_bytes / 1e6:.1f} MB of JSON, {result.events:,} events")
    wall, cpu = result.floor("wall_ns"), result.floor("cpu_ns")
    rows = [("floor, the two calls", _seconds(wall), "1", _seconds(cpu), "1", "", "")]
    for name in (FLOOR, TOOL, HTA):
        taken = result.samples.get(name)
        if taken:
            rows.append(
                (
                    f"{name}, whole process",
                    _seconds(walls(taken)),
                    str(ratio(walls(taken), wall)),
                    _seconds(cpus(taken)),
                    str(ratio(cpus(taken), cpu)),
                    f"{peak(taken) / 1e6:.0f}",
                    f"{peak(taken) / result.text_bytes:.2f}",
                )
            )
    print_table(("", "wall s", "x floor [quarters]", "CPU s", "x floor [quarters]", "peak MB", "x text"), rows)
    print_stages(result.samples[STAGES], median(cpu))
    print_verdict(result, ratio(walls(result.samples[TOOL]), wall), ratio(cpus(result.samples[TOOL]), cpu))


def print_stages(samples: Sequence[Sample], floor_s: float) -> None:
    """Medians of the stages' processor time."""
    outputs = [json.loads(sample.output) for sample in samples]
    stages = {name: median(one[name] for one in outputs) / 1e9 for name in outputs[0]}
    whole = sum(stages.values())
    rows = [
        (name, f"{seconds:.3f}", f"{100 * seconds / whole:.0f} %", f"{seconds / floor_s:.2f}")
        for name, seconds in (*stages.items(), ("all", whole))
    ]
    print_table(("stage", "CPU s", "share", "x floor"), rows)


def print_verdict(result: Result, wall: Spread, cpu: Spread) -> None:
    """The two targets."""
    allowed = MOST_MEMORY_BYTES + result.text_bytes
    used = peak(result.samples[TOOL])
    print(
        f"time {wall.middle:.2f} x the floor ({cpu.middle:.2f} by CPU time), target {MOST_TIMES_THE_FLOOR}:"
        f" {_verdict(wall.middle <= MOST_TIMES_THE_FLOOR)};"
        f" peak {used / 1e6:.0f} MB, target {allowed / 1e6:.0f}: {_verdict(used <= allowed)}\n"
    )


def print_growth(results: Sequence[Result]) -> None:
    """What repeating the trace does to time and memory."""
    rows = []
    for before, after in pairwise(results):
        tool = [median(cpus(result.samples[TOOL])) for result in (before, after)]
        floor = [median(result.floor("cpu_ns")) for result in (before, after)]
        peaks = [peak(result.samples[TOOL]) for result in (before, after)]
        rows.append(
            (
                f"{before.title} -> {after.title}",
                *(f"{two / one:.2f}" for one, two in ((before.text_bytes, after.text_bytes), tool, floor, peaks)),
            )
        )
    print_table(("growth", "text", "our CPU time", "floor's", "our peak"), rows)


def keep(result: Result) -> None:
    """Add the ratio to history.json: when, which commit and trace, times the floor, on which machine."""
    if json.loads(result.samples[FLOOR][0].output)["parser"] != "orjson":
        sys.exit("no ratio is kept: the floor needs orjson - pip install orjson")
    commit = subprocess.run(
        ("git", "rev-parse", "--short", "HEAD"), capture_output=True, text=True, cwd=HERE, check=True
    )
    model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    spread = ratio(cpus(result.samples[TOOL]), result.floor("cpu_ns"))
    history = HERE / "history.json"
    rows = json.loads(history.read_text()) if history.exists() else []
    rows.append(
        {
            "day": time.strftime("%Y-%m-%d"),
            "commit": commit.stdout.strip(),
            "trace": result.title,
            "times_the_floor": round(spread.middle, 3),
            "runs": len(result.samples[TOOL]),
            "machine": f"{model[1] if model else 'unknown'}, {os.cpu_count()} cores",
        }
    )
    history.write_text("[\n" + ",\n".join(f" {json.dumps(row)}" for row in rows) + "\n]\n")


def _seconds(values: Sequence[float]) -> str:
    return f"{spread_of(values).middle:.3f}"


def _verdict(met: bool) -> str:
    return "met" if met else "missed"


def capture_tiny(folder: Path) -> Path:
    """A trace of five training steps of a tiny model on the CPU."""
    trace = folder / "tiny-bert.trace.json.gz"
    run_process((sys.executable, "-m", "opanatomy", "profile", *TINY_MODEL, "--trace", str(trace)))
    return trace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, metavar="TRACE", help="(default: capture a tiny model)")
    parser.add_argument("--grow", nargs="+", type=int, default=[], metavar="N", help="also repeat each trace N times")
    parser.add_argument("--repetitions", type=int, default=5, metavar="N", help="rounds (default: 5)")
    parser.add_argument("--functions", type=int, default=0, metavar="N", help="show the N functions that take most")
    parser.add_argument("--hta", metavar="PYTHON", help="also HTA, of the environment of this interpreter")
    parser.add_argument("--history", action="store_true", help="keep the ratio in history.json")
    arguments = parser.parse_args()
    print(pin_to_one_core() + "\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for trace in arguments.traces or [capture_tiny(folder)]:
            measure_trace(trace, arguments, folder)


def measure_trace(trace: Path, arguments: argparse.Namespace, folder: Path) -> None:
    """One trace as it is, or repeated 1, N, ... times."""
    title = trace.name.removesuffix(".gz").removesuffix(".json")
    sizes = sorted({1, *arguments.grow}) if arguments.grow else [1]
    results = []
    for times in sizes:
        file = trace
        if arguments.grow:
            file = folder / f"{times}x.json.gz"
            run_process((sys.executable, str(HERE / "repeat.py"), str(trace), str(times), str(file)))
        named = f"{title} x {times}" if arguments.grow else title
        results.append(measure_file(file, named, arguments.repetitions, arguments.hta))
        print_result(results[-1])
        if arguments.history:
            keep(results[-1])
        if arguments.functions:
            command = (sys.executable, str(HERE / "stages.py"), str(file), "--functions", str(arguments.functions))
            print(run_process(command).output)
    if len(results) > 1:
        print_growth(results)


if __name__ == "__main__":
    main()
