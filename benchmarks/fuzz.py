"""Damaged traces by the thousand: each must end in a report or in one clear line, in bounded time and memory.

    python benchmarks/fuzz.py [--count N] [--start SEED] [--seconds S] [--traces FOLDER...] [--keep FOLDER] [--bombs]
    python benchmarks/fuzz.py --start SEED --count 1 --raise

Input number SEED is made from the seeds (tests/traces, the hand-made traces, small files of `--traces`) by that number
alone. A process of its own reads the inputs; it is ended by the system when one takes more processor time than
`--seconds`. The memory is the peak while one input is read: at most 150 MB and once the text. `--bombs` reads gzip
bombs and nests instead.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import multiprocessing
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.handmade import training_step  # noqa: E402
from tests.mutations import mutated, read_seed, text_size  # noqa: E402

MOST_MEMORY = 150_000_000
#: Seeds larger than this would spend the time on reading them.
_LARGEST_SEED = 2_000_000
#: A worker is replaced after this many inputs: what the allocator keeps is not the memory of an input.
_WORKER_INPUTS = 1000
_ADDRESS_SPACE = 8 << 30
_GOOD = ("report", "report with warnings", "error line")


class Outcome(Struct, frozen=True, kw_only=True):
    """How one input ended; `kind` is one of `_GOOD` or a failure."""

    name: str
    kind: str
    detail: str = ""
    cpu_s: float = 0.0
    peak_bytes: int = 0
    text_bytes: int = 0

    @property
    def is_good(self) -> bool:
        return self.kind in _GOOD


@dataclass(slots=True)
class Tally:
    """What came out so far."""

    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    slowest: Outcome | None = None
    heaviest: Outcome | None = None

    def add(self, outcome: Outcome) -> None:
        self.kinds[outcome.kind] += 1
        self.times.append(outcome.cpu_s)
        if not outcome.is_good:
            self.failures.append(outcome)
        if self.slowest is None or outcome.cpu_s > self.slowest.cpu_s:
            self.slowest = outcome
        if self.heaviest is None or _beyond(outcome) > _beyond(self.heaviest):
            self.heaviest = outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0, metavar="SEED")
    parser.add_argument("--seconds", type=int, default=20, help="processor time that one input may take")
    parser.add_argument("--events", type=int, default=120, help="events of a seed in one input, at most")
    parser.add_argument("--traces", type=Path, nargs="*", default=[ROOT.parent / "shared" / "traces"])
    parser.add_argument("--keep", type=Path, help="a folder for the inputs that fail")
    parser.add_argument("--raise", dest="raising", action="store_true", help="read in this process and raise")
    parser.add_argument("--bombs", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        inputs = _bombs(Path(folder)) if arguments.bombs else _inputs(arguments, Path(folder))
        if arguments.raising:
            for _, path in inputs:
                print(_read(path).rstrip().splitlines()[-1])
            return 0
        tally = _run(inputs, arguments)
    _print(tally)
    return 1 if tally.failures else 0


# ------------------------------------------------------------------------------------------ inputs


def _inputs(arguments: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Path]]:
    seeds = _seeds(arguments.traces)
    path = folder / "input.json"
    for number in range(arguments.start, arguments.start + arguments.count):
        path.write_bytes(mutated(Random(number), seeds, arguments.events))
        yield str(number), path


def _seeds(folders: Sequence[Path]) -> list[dict[str, Any]]:
    made = training_step()
    seeds = [{**made.metadata, "traceEvents": made.events}] * 6
    for folder in (ROOT / "tests" / "traces", *folders):
        for path in sorted(folder.glob("**/*.json.gz")):
            if text_size(path.read_bytes()) <= _LARGEST_SEED:
                seeds.append(read_seed(path))
    return seeds


def _bombs(folder: Path) -> Iterator[tuple[str, Path]]:
    for name, chunks in BOMBS.items():
        path = folder / "bomb.json.gz"
        packer = zlib.compressobj(6, zlib.DEFLATED, 31)
        with path.open("wb") as file:
            for chunk in chunks():
                file.write(packer.compress(chunk))
            file.write(packer.flush())
        yield name, path


def _gigabyte(chunk: bytes) -> Iterator[bytes]:
    block = chunk * max((1 << 20) // len(chunk), 1)
    for _ in range((1 << 30) // len(block)):
        yield block


def _around(head: bytes, tail: bytes, chunk: bytes) -> Callable[[], Iterator[bytes]]:
    def chunks() -> Iterator[bytes]:
        yield head
        yield from _gigabyte(chunk)
        yield tail

    return chunks


def _deep(head: str, opening: str, closing: str, tail: str) -> Callable[[], Iterator[bytes]]:
    return lambda: iter([f"{head}{opening * 10**6}1{closing * 10**6}{tail}".encode()])


_EVENTS = b'{"traceEvents":['
_OPERATOR = (
    '{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"aten::mm","ts":1,"dur":2,"pid":1,"tid":1,"args":{"Input Dims":'
)
BOMBS: dict[str, Callable[[], Iterator[bytes]]] = {
    "1 GB of zeros": lambda: _gigabyte(b"\0"),
    "1 GB of spaces": lambda: _gigabyte(b" "),
    "1 GB of spaces in the array": _around(_EVENTS, b"]}", b" "),
    "1 GB of spaces after the array": _around(_EVENTS + b"]", b"}", b" "),
    "1 GB of empty events": _around(_EVENTS, b"{}]}", b"{},"),
    "1 GB of tiny operators": _around(
        _EVENTS, b"{}]}", b'{"ph":"X","cat":"cpu_op","name":"aten::mm","ts":1,"dur":1,"pid":1,"tid":1},'
    ),
    "1 GB of tiny kernels": _around(_EVENTS, b"{}]}", b'{"ph":"X","cat":"Kernel","name":"k","ts":1},'),
    "1 GB of entries that are no events": _around(_EVENTS, b"1]}", b"1,"),
    "1 GB of broken events": _around(_EVENTS, b"1]}", b'{"ph":"X" "cat"},'),
    "1 GB of closing braces": _around(_EVENTS, b"]}", b"}"),
    "1 GB of opening brackets": _around(_EVENTS, b"]}", b"["),
    "1 GB of quotes": _around(_EVENTS, b"]}", b'"'),
    "a string of 1 GB": _around(_EVENTS + b'{"ph":"X","name":"', b'"}]}', b"a"),
    "a string of 1 GB of escapes": _around(_EVENTS + b'{"ph":"X","name":"', b'"}]}', b'\\"'),
    "an event of 1 GB": _around(_EVENTS + b'{"ph":"X","args":{"Input Dims":[', b"1]}}]}", b"1,"),
    "an event of 1 GB of objects": _around(_EVENTS + b'{"ph":"X","args":{"x":[', b"1]}}]}", b'{"a":1},'),
    "metadata of 1 GB": _around(b'{"x":"', b'"}', b"a"),
    "metadata of 1 GB after the array": _around(_EVENTS + b'],"x":[', b"1]}", b"[],"),
    "10^6 braces deep": _deep("", '{"a":', "}", ""),
    "10^6 events deep": _deep('{"traceEvents":[', '{"args":', "}", "]}"),
    "10^6 brackets deep in the array": _deep('{"traceEvents":[', "[", "]", "]}"),
    "10^6 brackets deep in arguments": _deep(_OPERATOR, "[", "]", "}}]}"),
    "10^6 braces deep in arguments": _deep(_OPERATOR, '{"a":', "}", "}}]}"),
    "10^6 deep metadata": _deep('{"traceEvents":[],"opanatomy":', '{"a":', "}", "}"),
    "10^6 deep metadata in front": _deep('{"deviceProperties":', "[", "]", ',"traceEvents":[]}'),
    "10^6 deep and not closed": _deep('{"traceEvents":[', '{"args":', "", ""),
}  # fmt: skip


# ------------------------------------------------------------------------------------------ reading


def _read(path: Path) -> str:
    from opanatomy.pipeline import analyze_trace
    from opanatomy.report import terminal_report
    from opanatomy.report.formats.json import json_report

    anatomy = analyze_trace(path)
    json_report(anatomy)
    return terminal_report(anatomy)


def _outcome(name: str, path: Path) -> Outcome:
    from opanatomy.errors import OpanatomyError

    text_bytes = path.stat().st_size if name in BOMBS else text_size(path.read_bytes())
    gc.collect()
    _forget_peak()
    begin = time.process_time()
    try:
        text = _read(path)
        kind, detail = ("report with warnings" if "\nwarning" in text else "report"), ""
    except OpanatomyError as error:
        detail = str(error)
        kind = "error line" if detail and detail.isprintable() else "error, not one clear line"
    except BaseException as error:
        kind, detail = f"traceback: {type(error).__name__}", traceback.format_exc()
    peak = _peak()
    if kind in _GOOD and peak > MOST_MEMORY + text_bytes:
        kind = "too much memory"
    cpu_s = time.process_time() - begin
    return Outcome(name=name, kind=kind, detail=detail, cpu_s=cpu_s, peak_bytes=peak, text_bytes=text_bytes)


def _forget_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    """The peak of the resident memory since it was forgotten; of the whole process where this system cannot forget."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _work(connection: Connection, seconds: int, log: str) -> None:
    """Read inputs as they are told; the system ends this process where one takes too long."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    with open(log, "w") as file:
        faulthandler.register(signal.SIGPROF, file, all_threads=False, chain=True)
        while (task := connection.recv()) is not None:
            file.truncate(0)
            signal.setitimer(signal.ITIMER_PROF, seconds)
            outcome = _outcome(*task)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send(outcome)
            if not gc.get_freeze_count():  # all is imported now; it need not be looked at before each input
                gc.freeze()


class _Worker:
    def __init__(self, seconds: int, log: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.log = log
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, seconds, str(log)), daemon=True)
        self.process.start()
        theirs.close()
        self.inputs = 0

    def read(self, name: str, path: Path) -> Outcome:
        self.inputs += 1
        self.connection.send((name, path))
        try:
            outcome: Outcome = self.connection.recv()
            return outcome
        except EOFError:
            self.process.join()
            where = self.log.read_text(errors="replace")
            size = text_size(path.read_bytes())
            if self.process.exitcode == -signal.SIGPROF:
                return Outcome(name=name, kind="too long", detail=where, text_bytes=size)
            return Outcome(name=name, kind=f"died ({self.process.exitcode})", detail=where, text_bytes=size)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.send(None)
        self.process.join()


def _run(inputs: Iterator[tuple[str, Path]], arguments: argparse.Namespace) -> Tally:
    tally, worker = Tally(), None
    with tempfile.TemporaryDirectory() as folder:
        for name, path in inputs:
            if worker is None or worker.inputs >= _WORKER_INPUTS or not worker.process.is_alive() or arguments.bombs:
                if worker is not None:
                    worker.end()
                worker = _Worker(arguments.seconds, Path(folder) / "log")
            outcome = worker.read(name, path)
            tally.add(outcome)
            if arguments.bombs or not outcome.is_good:
                _tell(outcome)
            if arguments.keep and not outcome.is_good:
                arguments.keep.mkdir(exist_ok=True)
                shutil.copy(path, arguments.keep / f"{name}.json")
        if worker is not None:
            worker.end()
    return tally


# ------------------------------------------------------------------------------------------ printing


def _beyond(outcome: Outcome) -> int:
    return outcome.peak_bytes - outcome.text_bytes


def _tell(outcome: Outcome) -> None:
    last = outcome.detail.strip().splitlines()[-1:] or [""]
    print(
        f"{outcome.name}: {outcome.kind}, {outcome.cpu_s:.2f} s, {outcome.peak_bytes / 1e6:.0f} MB"
        f" for {outcome.text_bytes / 1e6:.2f} MB of text: {last[0][:300]}",
        flush=True,
    )


def _print(tally: Tally) -> None:
    print(f"{sum(tally.kinds.values()):,} inputs")
    for kind, count in tally.kinds.most_common():
        print(f"  {count:8,} {kind}")
    times = sorted(tally.times)
    if times and tally.slowest and tally.heaviest:
        slow, heavy = tally.slowest, tally.heaviest
        print(
            f"processor time: median {1000 * times[len(times) // 2]:.0f} ms, 99 % within"
            f" {times[len(times) * 99 // 100]:.2f} s, longest {slow.cpu_s:.2f} s ({slow.name})"
        )
        print(f"memory: at most {_beyond(heavy) / 1e6:.0f} MB besides the text ({heavy.name})")
    for outcome in tally.failures[:20]:
        print(f"\n{outcome.name}: {outcome.kind}\n{outcome.detail[-2000:]}")


if __name__ == "__main__":
    sys.exit(main())
