"""How long `opanatomy` takes to answer: whole processes in turns with a bare interpreter.

    python benchmarks/startup.py [--repetitions N]

The target is that `--help` takes at most three times a bare interpreter plus 100 ms.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from measure import Sample, Samples, cpus, print_table, ratio, run_process, spread_of, take_turns, walls

BARE = "python -c pass"
HELP = "opanatomy --help"


def commands(trace: Path) -> dict[str, Callable[[], Sample]]:
    """What is run, by its title."""
    tool = (sys.executable, "-m", "opanatomy")
    return {
        BARE: partial(run_process, (sys.executable, "-c", "pass")),
        "opanatomy --version": partial(run_process, (*tool, "--version")),
        HELP: partial(run_process, (*tool, "--help")),
        "opanatomy analyze, 3 events": partial(run_process, (*tool, "analyze", str(trace), "-f", "json")),
        'python -c "import numpy"': partial(run_process, (sys.executable, "-c", "import numpy")),
        'python -c "import torch"': partial(run_process, (sys.executable, "-c", "import torch")),
    }


def write_tiny_trace(path: Path) -> None:
    """A step of two operators."""
    shared = {"ph": "X", "pid": 1, "tid": 1}
    operators = [
        {**shared, "cat": "cpu_op", "name": name, "ts": ts, "dur": 40, "args": {"External id": ts}}
        for name, ts in (("aten::mm", 10), ("aten::add", 60))
    ]
    step = {**shared, "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 200, "args": {}}
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [step, *operators]}))


def report(samples: Samples) -> None:
    """Medians, ratios and differences against the bare interpreter."""
    bare, bare_cpu = walls(samples[BARE]), cpus(samples[BARE])
    rows = []
    for name, taken in samples.items():
        tool, tool_cpu = walls(taken), cpus(taken)
        extra = spread_of([one - two for one, two in zip(tool, bare, strict=True)])
        rows.append(
            (
                name,
                *(f"{value * 1e3:.0f}" for value in (spread_of(tool).middle, extra.middle)),
                str(ratio(tool, bare)),
                f"{spread_of(tool_cpu).middle * 1e3:.0f}",
                str(ratio(tool_cpu, bare_cpu)),
            )
        )
    print_table(("process", "wall ms", "more", "x bare [quarters]", "CPU ms", "x bare [quarters]"), rows)
    limit = 3 * spread_of(bare).middle + 0.1
    taken_s = spread_of(walls(samples[HELP])).middle
    verdict = "met" if taken_s <= limit else "missed"
    print(f"--help {taken_s * 1e3:.0f} ms, target 3 x bare + 100 ms = {limit * 1e3:.0f} ms: {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=15, metavar="N", help="rounds (default: 15)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "tiny.json"
        write_tiny_trace(trace)
        report(take_turns(commands(trace), arguments.repetitions))


if __name__ == "__main__":
    main()
