"""Keep the clock of a whole run: its steps, their waits for input, garbage collections, and what torch.compile did."""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from statistics import median
from typing import Any, Final

from opanatomy.capture.loop.phases import replaced
from opanatomy.capture.step.ranges import compiling_ns
from opanatomy.records.workload import CompilerEvent, RunClock, SlowStep

#: A slow step takes more than so many times what this part of the steps take at most; so many of them are kept.
_SLOW: Final = 2
_MOST: Final = 0.75
_KEPT: Final = 5
#: Reasons are sentences; torch adds hints, context and an address.
_LONGEST_REASON: Final = 200


class Clock:
    """The clock of a run. `install` begins it; after it, `step_ended` is called at the end of each step.

    What it costs is two readings of the clock a batch, a step and a collection. Only the thread that ends the steps
    waits for their input.
    """

    def __init__(self) -> None:
        #: Of each counted step: its number, wall time, waits for input, collections, compilations.
        self._numbers = array("q")
        self._parts = tuple(array("q") for _ in range(4))
        self._begin_ns: int | None = None
        self._thread: int | None = None
        self._input_ns = self._collecting_ns = 0
        self._collections = self._collected = 0
        self._compiling_ns = 0
        self._waiting = False
        self._collected_at = 0

    def install(self, stack: ExitStack) -> None:
        """Begin to measure, until the stack is closed."""
        from torch.utils.data import DataLoader, dataloader

        replaced(stack, dataloader._BaseDataLoaderIter, "__next__", self._of_loader)
        replaced(stack, DataLoader, "__iter__", self._of_loader)
        gc.callbacks.append(self._collects)
        stack.callback(gc.callbacks.remove, self._collects)

    def step_ended(self, number: int, *, counted: bool) -> int | None:
        """End the step with this number, and begin the next; return how long it took, if its begin is known."""
        now = time.perf_counter_ns()
        begun, self._begin_ns = self._begin_ns, now
        self._thread = threading.get_ident()
        compiled = compiling_ns()
        compiling, self._compiling_ns = compiled - self._compiling_ns, compiled
        if counted and begun is not None:
            self._numbers.append(number)
            self._collections += 0 if compiling else self._collected
            collecting = 0 if compiling else self._collecting_ns  # the compiler's own, in its time
            for kept, part in zip(self._parts, (now - begun, self._input_ns, collecting, compiling), strict=True):
                kept.append(part)
        self._input_ns = self._collecting_ns = self._collected = 0
        return None if begun is None else now - begun

    def goes_on(self) -> None:
        """Begin the step now: what was done since the last one's end is not the run's."""
        self._begin_ns = time.perf_counter_ns()
        self._input_ns = self._collecting_ns = self._collected = 0

    def forget(self) -> None:
        """Leave out the steps so far: they were no whole ones."""
        for part in (self._numbers, *self._parts):
            del part[:]
        self._begin_ns, self._collections = None, 0

    def read(self) -> RunClock | None:
        """Return what was measured so far; `None` before a step was."""
        walls, inputs, collecting, compiling = self._parts
        if not walls:
            return None
        usual = sorted(walls)[int(_MOST * (len(walls) - 1))]
        slow = [place for place, wall in enumerate(walls) if wall > _SLOW * usual]
        longest = sorted(sorted(slow, key=lambda place: -walls[place])[:_KEPT])
        return RunClock(
            steps=len(walls), wall_ns=sum(walls), median_ns=round(median(walls)), input_ns=sum(inputs),
            collections=self._collections, collecting_ns=sum(collecting), compiling_ns=sum(compiling),
            slow_steps=len(slow),
            slow=tuple(
                SlowStep(
                    number=self._numbers[place], wall_ns=walls[place], input_ns=inputs[place],
                    collecting_ns=collecting[place], compiling_ns=compiling[place],
                )
                for place in longest
            ),
            graph_breaks=tuple(_events(_graph_breaks())), recompilations=tuple(_events(_recompilations())),
        )  # fmt: skip

    def _of_loader(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def waited_for(loader: Any) -> Any:
            if self._waiting or self._thread not in (None, threading.get_ident()):
                return original(loader)
            self._waiting = True
            begun = time.perf_counter_ns()
            try:
                return original(loader)
            finally:
                self._waiting = False
                self._input_ns += time.perf_counter_ns() - begun

        return waited_for

    def _collects(self, phase: str, _info: object) -> None:
        now = time.perf_counter_ns()
        if phase == "start":
            self._collected_at = now
        elif self._collected_at:
            self._collected += 1
            self._collecting_ns += now - self._collected_at


def _utils() -> Any:
    return sys.modules.get("torch._dynamo.utils")


def _graph_breaks() -> Iterator[tuple[str, str]]:
    for broken in getattr(_utils(), "graph_break_reasons", ()):
        if getattr(broken, "graph_break", True):
            frames = broken.user_stack
            yield _place(frames[-1].filename, frames[-1].lineno, frames[-1].name) if frames else "", broken.reason


def _recompilations() -> Iterator[tuple[str, str]]:
    known = getattr(_utils(), "get_compilation_metrics", None)
    for compiled in known() if known else ():
        if reason := getattr(compiled, "recompile_reason", None):
            place = _place(compiled.co_filename, compiled.co_firstlineno, compiled.co_name)
            yield place, reason.partition(": ")[2] or reason


def _place(file: str | None, line: int | None, function: str | None) -> str:
    path = os.path.relpath(file) if file and os.path.isabs(file) and file.startswith(os.getcwd()) else file
    return f"{path}:{line} {function}"


def _events(seen: Iterable[tuple[str, str]]) -> Iterator[CompilerEvent]:
    """Yield what happened at each place for one reason, the most frequent first."""
    for (place, reason), count in Counter((place, _sentence(text)) for place, text in seen).most_common():
        yield CompilerEvent(place=place, reason=reason, count=count)


def _sentence(reason: str) -> str:
    """Return the first lines of a reason, without torch's hints: what it could not do, and why."""
    lines = [line.strip() for line in reason.splitlines()]
    said = [line for line in lines[:1] if line]
    said += [line.removeprefix("Explanation: ") for line in lines if line.startswith("Explanation: ")]
    text = ": ".join(" ".join(line.partition("  #")[0].split()) for line in said)
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."
