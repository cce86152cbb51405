"""How reading the ranks of a whole cluster grows: with the ranks, with the cores, and the second time.

    python benchmarks/cluster.py FOLDER_OF_RANKS [--ranks 128 256 512] [--jobs 2] [--dask] [--repetitions N]

The ranks are made from those in the folder: their number and their times are changed, a world is as large as its ranks
are many. All runs are processes of their own: by the pool, on Dask workers of this machine, and again from the kept
summaries. Targets: time linear in ranks within 15 %, two cores 1.8 x as fast as one, a second run 10 x as fast as the
first, less than 500 MB in the process that merges, and not more where the traces are larger.
"""

from __future__ import annotations

import argparse
import gzip
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from msgspec import Struct

ROOT = Path(__file__).resolve().parent.parent
#: Between two copies of a set of ranks, in us: no two traces are the same.
SHIFT_US = 7
CODE = """
import resource, sys
from opanatomy.__main__ import main
code = main(sys.argv[1:])
sys.stdout.flush()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


class Run(Struct, frozen=True):
    """A run: its wall time, the processors' time of all its processes, and the peak of the one that merges."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def made_ranks(originals: Sequence[Path], count: int, folder: Path, *, times: int = 1) -> Path:
    """A folder of `count` ranks, the events of each repeated that many `times`, one after the other."""
    folder.mkdir()
    documents = [_document(path) for path in originals]
    for rank in range(count):
        document = documents[rank % len(documents)]
        group = rank // len(documents)
        document["distributedInfo"] = {**document.get("distributedInfo", {}), "rank": rank, "world_size": count}
        events = list(_events(document["traceEvents"], group * SHIFT_US, times))
        text = msgspec.json.encode({**document, "traceEvents": events})
        (folder / f"rank-{rank}.json.gz").write_bytes(gzip.compress(text, 1))
    return folder


def _document(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    document: dict[str, Any] = msgspec.json.decode(gzip.decompress(data) if path.suffix == ".gz" else data)
    return document


def _events(events: Sequence[dict[str, Any]], shift_us: int, times: int) -> Iterator[dict[str, Any]]:
    """The events later, each time after the time before and with numbers of their own."""
    timed = [event["ts"] for event in events if event.get("ph") == "X"]
    length = max(event["ts"] + event.get("dur", 0) for event in events if event.get("ph") == "X") - min(timed)
    for turn in range(times):
        for event in events:
            if "ts" not in event:
                if not turn:
                    yield event
                continue
            changed = {**event, "ts": event["ts"] + shift_us + turn * (length + 1000)}
            if turn:
                more = turn * 10_000_000
                numbers = {
                    name: event["args"][name] + more
                    for name in ("External id", "correlation", "Sequence number")
                    if isinstance(event.get("args", {}).get(name), int)
                }
                if numbers:
                    changed["args"] = {**event["args"], **numbers}
                if isinstance(event.get("id"), int):
                    changed["id"] = event["id"] + more
            yield changed


def run(folder: Path, summaries: Path, *options: str, cores: int) -> Run:
    """`opanatomy analyze` of a folder as a process, on that many cores."""
    command = [
        sys.executable,
        "-c",
        CODE,
        "analyze",
        str(folder),
        "-f",
        "json",
        "--summaries",
        str(summaries),
        *options,
    ]
    available = sorted(os.sched_getaffinity(0))[:cores]
    begun, cpu_before = time.perf_counter(), _cpu_seconds()
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, available),
    )
    seconds = time.perf_counter() - begun
    if done.returncode:
        raise SystemExit(done.stderr)
    return Run(seconds, _cpu_seconds() - cpu_before, int(done.stderr.split()[-1]) * 1024)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(folder: Path, *options: str, cores: int, repetitions: int) -> tuple[Run, Run]:
    """(the first run, one from its summaries), the medians of that many."""
    firsts, seconds = [], []
    for _ in range(repetitions):
        summaries = Path(tempfile.mkdtemp(prefix="summaries-"))
        firsts.append(run(folder, summaries, *options, cores=cores))
        seconds.append(run(folder, summaries, *options, cores=cores))
        shutil.rmtree(summaries)
    return _middle(firsts), _middle(seconds)


def _middle(runs: Sequence[Run]) -> Run:
    return Run(
        median(run.seconds for run in runs),
        median(run.cpu_seconds for run in runs),
        max(run.peak_bytes for run in runs),
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[128, 256, 512])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--dask", action="store_true", help="on Dask workers of this machine too")
    parser.add_argument("--repetitions", type=int, default=1)
    arguments = parser.parse_args()
    originals = sorted(path for path in arguments.folder.iterdir() if path.name.endswith((".json", ".json.gz")))
    with tempfile.TemporaryDirectory() as name:
        figures = _by_ranks(originals, Path(name), arguments)
        # The peak of the merging process where the traces are larger.
        count = min(arguments.ranks) // 2
        for times in (1, 4):
            ranks = made_ranks(originals, count, Path(name) / f"{count}-{times}", times=times)
            first, _ = measured(ranks, "--jobs", str(arguments.jobs), cores=arguments.jobs, repetitions=1)
            print(f"{count} ranks of {times} x the events: {first.peak_bytes / 1e6:.0f} MB", flush=True)
            shutil.rmtree(ranks)
    for (fewer, short), (more, long) in pairwise(figures):
        linear = [
            (getattr(long, time) / getattr(short, time)) / (more / fewer) - 1 for time in ("seconds", "cpu_seconds")
        ]
        print(f"{fewer} -> {more} ranks: {linear[0]:+.0%} to linear, {linear[1]:+.0%} in processors' time")


def _by_ranks(originals: Sequence[Path], folder: Path, arguments: argparse.Namespace) -> list[tuple[int, Run]]:
    figures = []
    for count in arguments.ranks:
        ranks = made_ranks(originals, count, folder / f"{count}")
        ways = {f"{arguments.jobs} processes": ((), arguments.jobs), "1 process": ((), 1)}
        if arguments.dask:
            ways["dask local"] = (("--dask", "local"), arguments.jobs)
        taken = {}
        for way, (options, cores) in ways.items():
            options = (*options, "--jobs", str(cores))
            taken[way] = measured(ranks, *options, cores=cores, repetitions=arguments.repetitions)
            first, second = taken[way]
            print(
                f"{count} ranks, {way}: {first.seconds:.1f} s ({first.cpu_seconds:.1f} s of processors), again"
                f" {second.seconds:.2f} s ({second.cpu_seconds:.2f} s): {first.seconds / second.seconds:.1f} x,"
                f" {max(first.peak_bytes, second.peak_bytes) / 1e6:.0f} MB",
                flush=True,
            )
        many, one = taken[f"{arguments.jobs} processes"][0], taken["1 process"][0]
        print(f"{count} ranks: {one.seconds / many.seconds:.2f} x as fast on {arguments.jobs} cores", flush=True)
        figures.append((count, many))
        shutil.rmtree(ranks)
    return figures


if __name__ == "__main__":
    main()
