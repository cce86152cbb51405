"""What the benchmarks share: samples of processes, taken in turns, and the tables of their ratios."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from msgspec import Struct

ROOT = Path(__file__).resolve().parent.parent
#: `ru_maxrss` is in KiB on Linux and in bytes on macOS.
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


class Sample(Struct, frozen=True, kw_only=True):
    """One measured run; a process also has its peak memory and what it printed."""

    wall_ns: int
    cpu_ns: int
    peak_bytes: int = 0
    output: str = ""


Samples = Mapping[str, Sequence[Sample]]


class Spread(Struct, frozen=True, kw_only=True):
    """A median and the quarter points around it."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} [{self.low:.2f} to {self.high:.2f}]"


def pin_to_one_core() -> str:
    """Keep this process and its children on the last core it may use; what to say about it."""
    if not hasattr(os, "sched_setaffinity"):
        return "not pinned: this system cannot"
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return f"pinned to core {core}"


def run_process(command: Sequence[str], *, python_path: Path | None = ROOT) -> Sample:
    """Run `command` to its end; `SystemExit` where it fails. Keep this process small: its size hides a smaller child's.

    `python_path` is where the child imports from, the checkout by default. Python may keep its bytecode, as it does
    wherever a program is installed: without, every start compiles every file anew.
    """
    environment = {**os.environ, "PYTHONPATH": str(python_path)} if python_path else dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begin = time.perf_counter_ns()
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        wall_ns = time.perf_counter_ns() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            err.seek(0)
            said = err.read().decode(errors="replace").strip().splitlines() or ["it said nothing"]
            raise SystemExit(f"{' '.join(command)[:200]} ended with {process.returncode}: {said[-1]}")
        out.seek(0)
        return Sample(
            wall_ns=wall_ns,
            cpu_ns=round((usage.ru_utime + usage.ru_stime) * 1e9),
            peak_bytes=usage.ru_maxrss * _MAXRSS_UNIT,
            output=out.read().decode(),
        )


def take_turns(kinds: Mapping[str, Callable[[], Sample]], repetitions: int, *, warm_up: int = 1) -> Samples:
    """Every kind in each round, backwards in every second one, so that a busy machine is as busy for all of them."""
    samples: dict[str, list[Sample]] = {name: [] for name in kinds}
    for number in range(-warm_up, repetitions):
        order = list(kinds) if number % 2 == 0 else list(kinds)[::-1]
        for name in order:
            _show(f"{name}: {number + 1} of {repetitions}")
            sample = kinds[name]()
            if number >= 0:
                samples[name].append(sample)
    _show("")
    return samples


def _show(text: str) -> None:
    """One line on a terminal that says what is running."""
    if sys.stderr.isatty():
        print(f"\r{text[:78]:<78}\r", end="", file=sys.stderr, flush=True)


def spread_of(values: Sequence[float]) -> Spread:
    """The median and the quarter points of `values`."""
    ordered = sorted(values)
    quarter = (len(ordered) - 1) / 4
    return Spread(middle=median(ordered), low=_point(ordered, quarter), high=_point(ordered, 3 * quarter))


def _point(ordered: Sequence[float], at: float) -> float:
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def ratio(values: Sequence[float], other: Sequence[float]) -> Spread:
    """`values` over `other`, round by round."""
    return spread_of([one / two for one, two in zip(values, other, strict=True)])


def walls(samples: Sequence[Sample]) -> list[float]:
    """Wall times in seconds."""
    return [sample.wall_ns / 1e9 for sample in samples]


def cpus(samples: Sequence[Sample]) -> list[float]:
    """Processor times in seconds."""
    return [sample.cpu_ns / 1e9 for sample in samples]


def peak(samples: Sequence[Sample]) -> int:
    """The largest peak memory in bytes."""
    return max(sample.peak_bytes for sample in samples)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their widest cell, the first to the left and the rest to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        print("  ".join((row[0].ljust(widths[0]), *cells)))
    print()
