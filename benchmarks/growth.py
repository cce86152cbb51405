"""How the time and memory of an analysis grow from 1x to 4x of any one thing: streams, devices, steps, names, ...

    python benchmarks/growth.py [THING...] [--scale F] [--repetitions N] [--checkout FOLDER]

Each trace is synthetic (`synthetic.py`), its events grow with the thing. Whole processes of `opanatomy analyze -f json`
in turns on one core; what one with a hundredth of the thing takes, start-up for the most part, is subtracted from both.
The target: at most 4.4 x the processor time and the peak memory for 4 x as much.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from measure import (
    ROOT,
    Sample,
    Samples,
    Spread,
    cpus,
    pin_to_one_core,
    print_table,
    ratio,
    run_process,
    spread_of,
    take_turns,
)
from synthetic import THINGS, write

MOST_GROWTH = 4.4
TIMES = 4
START, ONCE, GROWN = "0.01x", "1x", f"{TIMES}x"
#: Growth of less memory than this is that of the allocator's arenas.
SMALL_BYTES = 4_000_000


def measure_thing(name: str, scale: float, repetitions: int, checkout: Path, folder: Path) -> Samples:
    """The analysis of a hundredth, of all and of four times of a thing, in turns."""
    kinds = {}
    base = round(THINGS[name].count * scale)
    for title, count in ((START, max(base // 100, 1)), (ONCE, base), (GROWN, TIMES * base)):
        trace = folder / f"{title}.json"
        write(THINGS[name], count, trace)
        command = (sys.executable, "-m", "opanatomy", "analyze", str(trace), "-f", "json", "-o", os.devnull)
        kinds[title] = partial(run_process, command, python_path=checkout)
    kinds[START]()  # the first of all writes Python's bytecode
    return take_turns(kinds, repetitions, warm_up=0)


def peaks(samples: Sequence[Sample]) -> list[float]:
    """Peak memory in bytes."""
    return [float(sample.peak_bytes) for sample in samples]


def beyond(values: Sequence[float], start: Sequence[float]) -> list[float]:
    """What each value has above the start of its round."""
    return [max(value - first, 0.0) for value, first in zip(values, start, strict=True)]


def row_of(name: str, count: int, samples: Samples) -> tuple[str, ...]:
    """A line of the table: what 1x takes beyond the start, and how often that 4x does."""
    seconds = [beyond(cpus(samples[kind]), cpus(samples[START])) for kind in (ONCE, GROWN)]
    memory = [beyond(peaks(samples[kind]), peaks(samples[START])) for kind in (ONCE, GROWN)]
    time_growth = ratio(seconds[1], seconds[0])
    once_bytes = spread_of(memory[0]).middle
    memory_growth = ratio(memory[1], memory[0]) if once_bytes > SMALL_BYTES else None
    return (
        name,
        f"{count:,}",
        f"{spread_of(seconds[0]).middle:.2f} s",
        str(time_growth),
        f"{once_bytes / 1e6:.0f} MB",
        str(memory_growth) if memory_growth else "-",
        verdict(time_growth, memory_growth),
    )


def verdict(time_growth: Spread, memory_growth: Spread | None) -> str:
    """What is more than it should be."""
    missed = [
        what
        for what, growth in (("time", time_growth), ("memory", memory_growth))
        if growth is not None and growth.middle > MOST_GROWTH
    ]
    return f"missed: {' and '.join(missed)}" if missed else "met"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("things", nargs="*", metavar="THING", help=f"(default: all) {', '.join(THINGS)}")
    parser.add_argument("--scale", type=float, default=1.0, metavar="F", help="1x is F times the usual number")
    parser.add_argument("--repetitions", type=int, default=3, metavar="N", help="rounds (default: 3)")
    parser.add_argument("--checkout", type=Path, default=ROOT, metavar="FOLDER", help="measure this one's opanatomy")
    arguments = parser.parse_args()
    if unknown := set(arguments.things) - set(THINGS):
        parser.error(f"no such thing: {', '.join(sorted(unknown))} - give some of {', '.join(THINGS)}")
    print(pin_to_one_core() + "\n")
    rows = []
    checkout = arguments.checkout.resolve()
    with tempfile.TemporaryDirectory() as name:
        # Python imports from the current folder before any other.
        os.chdir(name)
        for thing in arguments.things or THINGS:
            samples = measure_thing(thing, arguments.scale, arguments.repetitions, checkout, Path(name))
            rows.append(row_of(thing, round(THINGS[thing].count * arguments.scale), samples))
            print("  ".join(rows[-1]), file=sys.stderr)
        os.chdir(checkout)
    print_table(("thing", "1x", "time", f"time x{TIMES}", "memory", f"memory x{TIMES}", f"target {MOST_GROWTH}"), rows)


if __name__ == "__main__":
    main()
