"""Handle a finished profiler trace: save it, analyze it in a background process, log a digest."""

from __future__ import annotations

import atexit
import gzip
import json
import logging
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opanatomy.errors import UsageError, harmless
from opanatomy.io.files import numbered_name, replacing
from opanatomy.io.process import started

if TYPE_CHECKING:
    import torch

_LOG: Final = logging.getLogger("opanatomy")
#: At the end of the program analyses that are not done are waited for this long.
_WAIT_AT_EXIT_S: Final = 120.0
_EXPORT: Final = "export_chrome_trace"
_KEEPS: Final = ("all", "slow")
#: Minimum number of cycles for a meaningful median: until then traces are kept.
_MIN_CYCLES: Final = 3

#: Receives a digest as lines of text.
LogSink = Callable[[str], object]
#: What figures are given to: a flat dictionary, and the profiler's step.
MetricsSink = Callable[[Mapping[str, "int | float"], int], object]


def trace_handler(
    folder: str | os.PathLike[str] = ".",
    *,
    log: LogSink | None = None,
    metrics: MetricsSink | None = None,
    keep: str = "all",
    slower: float = 1.5,
    redact: bool = False,
) -> TraceHandler:
    """Return a handler for `torch.profiler.profile(on_trace_ready=...)`.

        with profile(schedule=schedule(wait=10, warmup=2, active=3, repeat=5),
                     on_trace_ready=opanatomy.trace_handler("runs/")) as profiler:
            for batch in loader:
                ...
                profiler.step()

    The trace of each cycle is written to the folder (`step12.trace.json.gz`; with several ranks, the rank follows the
    step) and analyzed in a separate process at low priority while the training continues. A short digest goes to
    the logger `opanatomy`, or to `log`, along with how long the training was paused. `metrics` receives the headline
    numbers as one flat dictionary, and the profiler's step (`lambda figures, step: wandb.log(figures, step=step)`).
    With `keep="slow"`, traces are kept only if their mean step takes at least `slower` times as long as the median so
    far; of the first traces, those that are not slow are deleted once there are three to compare. With `redact`, paths,
    arguments, host names and user names are left out of the output.

    A handler that is called after this one with the same profiler (`tensorboard_trace_handler`) gets a copy, because
    torch writes a trace only once. Raises `UsageError` for an invalid argument; later problems are warnings in the
    log.
    """
    if keep not in _KEEPS:
        raise UsageError(f"trace_handler: keep={keep!r}: unknown value - pass 'all' or 'slow'")
    if not isinstance(slower, (int, float)) or not slower > 1:
        raise UsageError(
            f"trace_handler: slower={slower!r}: must be above 1 (a multiple of the median step time) - for example 1.5"
        )
    if not isinstance(folder, (str, os.PathLike)) or os.path.isfile(folder):
        raise UsageError(f"trace_handler: folder={folder!r} is not a folder - pass the path of one")
    return TraceHandler(Path(folder), log=log or _LOG.info, metrics=metrics, keep=keep, slower=slower, redact=redact)


class TraceHandler:
    """The handler created by `trace_handler`."""

    def __init__(
        self, folder: Path, *, log: LogSink, metrics: MetricsSink | None, keep: str, slower: float, redact: bool
    ) -> None:
        self._folder, self._log, self._metrics, self._redact = folder, log, metrics, redact
        self._slower = slower if keep == "slow" else 0.0
        #: Mean steps of the cycles so far in nanoseconds, and the traces among them not yet compared.
        self._steps: list[int] = []
        self._unjudged: list[tuple[Path, int]] = []
        #: Traces to analyze, one at a time, and the thread that has it done.
        self._ready: queue.SimpleQueue[_Ready | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None

    def __call__(self, profiler: torch.profiler.profile) -> None:
        """Write the trace that is ready, and begin to analyze it."""
        begun = time.perf_counter()
        step = int(getattr(profiler, "step_num", 0))

        def not_written(reason: str) -> None:
            once = " - put this handler before others, which then get a copy" if "already saved" in reason else ""
            _LOG.warning("the trace of step %d was not written: %s%s", step, reason, once)

        with harmless(not_written):
            self._folder.mkdir(parents=True, exist_ok=True)
            target = self._name(step)
            plain = target.with_suffix("").with_suffix(".part")
            vars(profiler).pop(_EXPORT, None)  # what stood for it in the cycle before
            profiler.export_chrome_trace(str(plain))
            setattr(profiler, _EXPORT, _copier(plain, target))  # torch writes a trace once
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, daemon=True)
                self._worker.start()
                atexit.register(self.close)
            self._ready.put(_Ready(plain, target, step, time.perf_counter() - begun))

    def close(self) -> None:
        """Wait for the analyses that are not done; a program's end does so by itself."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._ready.put(None)
            worker.join(_WAIT_AT_EXIT_S)
            atexit.unregister(self.close)

    def _work(self) -> None:
        while (ready := self._ready.get()) is not None:
            with harmless(partial(_LOG.warning, "the trace of step %d was not reported: %s", ready.step)):
                self._analyze(ready)

    def _name(self, step: int) -> Path:
        from opanatomy.capture.distributed.group import place_in_group

        place = place_in_group()
        name = f"step{step}{'' if place is None else f'.rank{place.rank}'}.trace.json.gz"
        path, number = self._folder / name, 1
        while path.exists():
            number += 1
            path = numbered_name(self._folder / name, number)
        path.touch()
        return path

    def _analyze(self, ready: _Ready) -> None:
        """Compress and analyze a trace; log its digest, and drop it if only slow ones are kept and it is not slow."""
        arguments = os.fspath(ready.plain), os.fspath(ready.target), str(int(self._redact))
        with started(__name__, *arguments, stderr=subprocess.PIPE, text=True) as process:
            output, errors = process.communicate()
        if process.returncode:
            why = (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
            _LOG.warning("the trace of step %d was not analyzed: %s", ready.step, why)
            return
        said = json.loads(output)
        step_ns = said["step_ns"] or 0
        self._steps.append(step_ns)
        self._unjudged.append((ready.target, step_ns))
        self._drop_usual()
        where = f"{ready.target}"
        if not ready.target.exists():
            where = f"not kept (less than {self._slower:g} times the median step time)"
        lines = [*said["lines"], f"trace: {where}; training was paused for {ready.held_s * 1e3:.0f} ms"]
        self._log("\n".join((f"step {ready.step}: {lines[0]}", *(f"  {line}" for line in lines[1:]))))
        if self._metrics is not None:
            self._metrics(said["metrics"], ready.step)

    def _drop_usual(self) -> None:
        """Drop the traces with usual steps, once there are enough to decide."""
        if not self._slower or len(self._steps) < _MIN_CYCLES:
            return
        usual_ns = median(self._steps)
        for target, step_ns in self._unjudged:
            if step_ns < self._slower * usual_ns:
                target.unlink(missing_ok=True)
        self._unjudged = []


class _Ready(NamedTuple):
    """A written trace: its current path, its path when compressed, the profiler's step, the time taken to write it."""

    plain: Path
    target: Path
    step: int
    held_s: float


def _copier(plain: Path, target: Path) -> Callable[[str], None]:
    """Return a replacement of the profiler's own export, which works only once: it copies the written trace."""

    def export_chrome_trace(path: str, *_: object, **__: object) -> None:
        with ExitStack() as stack:
            source: Any
            try:
                source = stack.enter_context(plain.open("rb"))
            except FileNotFoundError:  # the analysis has packed it meanwhile
                source = stack.enter_context(gzip.open(target))
            packed = str(path).endswith(".gz")
            copy: Any = stack.enter_context(Path(path).open("wb"))
            if packed:
                copy = stack.enter_context(gzip.GzipFile(fileobj=copy, mode="wb"))
            shutil.copyfileobj(source, copy)

    return export_chrome_trace


def main(arguments: Sequence[str] | None = None) -> None:
    """Compress a trace and print its digest, in a separate process."""
    with suppress(OSError, AttributeError):
        os.nice(10)
    plain, target, redact = sys.argv[1:] if arguments is None else arguments
    with (
        replacing(Path(target)) as unfinished,
        Path(plain).open("rb") as source,
        gzip.open(unfinished, "wb", compresslevel=4) as packed,
    ):
        shutil.copyfileobj(source, packed)
    Path(plain).unlink(missing_ok=True)
    from opanatomy.api import analyze
    from opanatomy.report.formats.terminal import sentence
    from opanatomy.report.sections import in_lines

    anatomy = analyze(target, redact=redact == "1")
    lines = [sentence(line) for line in in_lines(anatomy)]
    print(json.dumps({"lines": lines, "metrics": anatomy.metrics(), "step_ns": anatomy.step.wall_ns}))
