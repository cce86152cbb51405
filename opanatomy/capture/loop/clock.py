"""Time a whole run: steps, waits, evaluations, checkpoints, memory, compilations."""

from __future__ import annotations

import functools
import gc
import heapq
import os
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final

from opanatomy.capture.device.state import DeviceWatch, watching
from opanatomy.capture.loop.imports import when_imported
from opanatomy.capture.loop.phases import replaced
from opanatomy.capture.step.ranges import compiling_ns
from opanatomy.records.run import CompilerEvent, RunClock, RunSeries, SlowStep, StepLengths, UpdatedBy

#: A slow step takes more than this many times the given quantile of step times; maximum number kept.
_SLOW_FACTOR: Final = 2
_SLOW_QUANTILE: Final = 0.75
_MAX_SLOW_STEPS: Final = 5
#: Reasons are sentences; torch adds hints, context and an address.
_LONGEST_REASON: Final = 200

#: The times of a step that are parts of it, and the figures of memory after it.
_TIMES: Final = ("input", "backward", "optimizer", "collecting", "compiling", "evaluating", "checkpointing")
_BYTES: Final = ("allocated", "reserved", "peak", "host")
#: At twice this many rows, pairs are merged; a report has at most this many rows.
_MAX_SERIES_ROWS, _MAX_REPORTED_ROWS = 1 << 15, 200
#: This many steps are processed at once: processing one by one would run with cold caches each time.
_STEPS_AT_ONCE: Final = 256
#: Step lengths are binned by this fraction of a power of two, about 9 %.
_PARTS_OF_TWO: Final = 8
#: Minimum interval between memory readings, so that millisecond steps are not slowed down.
_MEMORY_EVERY_NS: Final = 100_000_000


class Clock:
    """The clock of a run. `install` begins it; after it, `step_ended` is called at the end of each step.

    The overhead is a few clock readings per batch, backward, step and collection. Input waits, evaluations and saves
    only count on the thread that ends the steps.
    """

    def __init__(self, updating_ns: Callable[[], int] = lambda: 0) -> None:
        #: Total time of optimizer updates so far.
        self._updating_ns = updating_ns
        self._steps = _Steps()
        self._start: SlowStep | None = None
        self._end: SlowStep | None = None
        self._begin_ns = time.perf_counter_ns()
        self._is_begun = False
        self._thread: int | None = None
        self._collections = self._collected = self._number = 0
        self._evaluations = self._checkpoints = self._evaluated = 0
        self._input_ns = self._collecting_ns = self._backward_ns = self._evaluating_ns = self._saving_ns = 0
        self._compiling_ns = self._updated_ns = 0
        self._is_waiting = self._is_saving = self._in_backward = False
        self._collected_at = 0
        self._evaluation: _Evaluation | None = None
        self._memory, self._memory_ns = (0, 0, 0, 0), 0
        self._stack = ExitStack()
        #: What reads the device that is in use, and after which step it began.
        self._watch: DeviceWatch | None = None
        self._watched_from = 0
        #: Called at the end of each outermost backward.
        self.on_backward: Callable[[], None] | None = None

    def install(self, stack: ExitStack) -> None:
        """Begin to measure, until the stack is closed."""
        import torch
        from torch.utils.data import DataLoader, dataloader

        self._stack = stack
        replaced(stack, dataloader._BaseDataLoaderIter, "__next__", self._wrap_loader)
        replaced(stack, DataLoader, "__iter__", self._wrap_loader)
        replaced(stack, torch.nn.Module, "train", self._wrap_train)
        replaced(stack, torch.autograd, "_engine_run_backward", self._wrap_backward)
        replaced(stack, torch.serialization, "save", self._wrap_save)
        replaced(stack, torch, "save", lambda _: torch.serialization.save)
        for name, functions in _SAVING.items():
            when_imported(stack, name, functools.partial(self._follow_saving, stack, name, functions))
        gc.callbacks.append(self._collects)
        stack.callback(gc.callbacks.remove, self._collects)
        stack.callback(self._close)

    def step_ended(self, number: int, *, counted: bool, optimizer: str = "") -> int | None:
        """End the step with this number and begin the next; return its duration, except for the first step.

        `optimizer` names the one that made its last update, if one did.
        """
        now = time.perf_counter_ns()
        self._thread, self._number = threading.get_ident(), number
        if self._evaluation is not None:
            self._evaluation.ends(now, is_over=False)
            self._forget_evaluation()
        wall, self._begin_ns = now - self._begin_ns, now
        compiled, updated = compiling_ns(), self._updating_ns()
        compiling, self._compiling_ns = compiled - self._compiling_ns, compiled
        updating, self._updated_ns = updated - self._updated_ns, updated
        collecting = 0 if compiling else self._collecting_ns  # the compiler's own, in its time
        parts = (
            self._input_ns,
            self._backward_ns,
            updating,
            collecting,
            compiling,
            self._evaluating_ns,
            self._saving_ns,
        )
        is_first, self._is_begun = not self._is_begun, True
        if is_first and self._start is None:
            self._start = _slow_step(number, wall, parts)
            self._watch_device(number)
        if counted and not is_first:
            self._collections += 0 if compiling else self._collected
            self._checkpoints += self._saving_ns > 0
            self._evaluations += self._evaluated
            if now - self._memory_ns >= _MEMORY_EVERY_NS:
                self._memory_ns, self._memory = now, _memory_now()
            self._steps.append((number, wall, *parts, *self._memory), optimizer)
        self._nothing_yet()
        return None if is_first else wall

    def _watch_device(self, number: int) -> None:
        import torch

        cuda: Any = torch.cuda
        if cuda.is_initialized():
            self._watch = self._stack.enter_context(watching(f"cuda:{cuda.current_device()}"))
            self._watched_from = number

    def resume(self) -> None:
        """Begin the step now: time since the end of the last one is excluded."""
        self._begin_ns = time.perf_counter_ns()
        self._nothing_yet()

    def _nothing_yet(self) -> None:
        self._input_ns = self._collecting_ns = self._collected = self._backward_ns = 0
        self._evaluating_ns = self._saving_ns = self._evaluated = 0

    def forget(self) -> None:
        """Discard the steps so far, which were not whole steps."""
        self._steps = _Steps()
        self._collections = self._evaluations = self._checkpoints = 0
        self._is_begun = False

    def read(self, recorded: Container[str] = ()) -> RunClock | None:
        """Return the measurements so far; `None` before any step. `recorded` are the optimizers of recorded steps."""
        steps = self._steps
        steps.take_up()
        if not steps.columns[0]:
            return None
        sums = dict(zip(_TIMES, (sum(column) for column in steps.columns[5:]), strict=False))
        slow_steps, usual = steps.slow()
        return RunClock(
            steps=sum(steps.columns[1]),
            wall_ns=sum(steps.columns[2]),
            median_ns=steps.median(),
            input_ns=sums["input"],
            collections=self._collections,
            collecting_ns=sums["collecting"],
            compiling_ns=sums["compiling"],
            evaluations=self._evaluations,
            evaluating_ns=sums["evaluating"],
            checkpoints=self._checkpoints,
            checkpointing_ns=sums["checkpointing"],
            slow_steps=slow_steps,
            slow=steps.longest(above=_SLOW_FACTOR * usual),
            graph_breaks=tuple(_events(_graph_breaks())),
            recompilations=tuple(_events(_recompilations())),
            device=None if self._watch is None else self._watch.over(steps=self._number - self._watched_from),
            start=self._start,
            end=self._end or self._after_the_last(),
            series=steps.series(),
            lengths=steps.lengths(),
            updated_by=steps.updated_by(recorded),
        )

    def _close(self) -> None:
        self._end = self._after_the_last()
        self._forget_evaluation()

    def _after_the_last(self) -> SlowStep:
        """Return the time after the last step, mostly the last evaluation and checkpoint."""
        now = time.perf_counter_ns()
        if self._evaluation is not None:
            self._evaluation.ends(self._evaluation.last_ns or now, is_over=True)
        parts = (self._input_ns, self._backward_ns, 0, self._collecting_ns, 0, self._evaluating_ns, self._saving_ns)
        return _slow_step(self._number + 1, now - self._begin_ns, parts)

    # ------------------------------------------------------------------------------------- what a step is made of

    @property
    def _is_elsewhere(self) -> bool:
        return self._thread is not None and self._thread != threading.get_ident()

    def _wrap_loader(self, original: Callable[..., Any]) -> Callable[..., Any]:
        from torch import is_grad_enabled

        @functools.wraps(original)
        def waited_for(loader: Any) -> Any:
            if self._is_waiting or self._is_elsewhere:
                return original(loader)
            self._is_waiting = True
            begun = time.perf_counter_ns()
            evaluation = self._evaluation
            if evaluation is not None and is_grad_enabled() and evaluation.is_left():
                evaluation.ends(begun, is_over=True)
                evaluation = None
            elif evaluation is None and not is_grad_enabled():
                evaluation = self._evaluation = _Evaluation(self, None, begun)
            is_over = True
            try:
                batch = original(loader)
                is_over = False
                return batch
            finally:
                self._is_waiting = False
                now = time.perf_counter_ns()
                if evaluation is None:
                    self._input_ns += now - begun
                else:
                    evaluation.has_waited(begun, now, is_over=is_over)

        return waited_for

    def _wrap_train(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Notice `train(False)`, which `eval()` is, and `train()` after it; a module calls it on all its parts."""

        @functools.wraps(original)
        def train(module: Any, mode: bool = True) -> Any:
            evaluation = self._evaluation
            if (mode and evaluation is None) or self._is_elsewhere:
                return original(module, mode)
            if evaluation is None:
                evaluation = self._evaluation = _Evaluation(self, module, time.perf_counter_ns())
            elif evaluation.module is None and not mode:
                evaluation.module = module
            elif mode and module is evaluation.module:
                evaluation.ends(time.perf_counter_ns(), is_over=True)
            return original(module, mode)

        return train

    def _wrap_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
            if self._in_backward or self._is_elsewhere:
                return original(*args, **kwargs)
            self._in_backward = True
            begun = time.perf_counter_ns()
            if self._evaluation is not None:
                self._evaluation.ends(begun, is_over=False)
                self._forget_evaluation()
            try:
                return original(*args, **kwargs)
            finally:
                self._in_backward = False
                self._backward_ns += time.perf_counter_ns() - begun
                if self.on_backward is not None:
                    self.on_backward()

        return _engine_run_backward

    def _wrap_save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            if self._is_saving or self._is_elsewhere:
                return original(*args, **kwargs)
            self._is_saving = True
            begun = time.perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                self._is_saving = False
                took = time.perf_counter_ns() - begun
                self._saving_ns += took
                if self._evaluation is not None:
                    self._evaluation.other_ns += took

        return save

    def _follow_saving(self, stack: ExitStack, name: str, functions: Iterable[str]) -> None:
        for function in functions:
            replaced(stack, sys.modules[name], function, self._wrap_save)

    def _collects(self, phase: str, _info: object) -> None:
        now = time.perf_counter_ns()
        if phase == "start":
            self._collected_at = now
        elif self._collected_at:
            self._collected += 1
            self._collecting_ns += now - self._collected_at

    # ----------------------------------------------------------------------------------------------- evaluations

    def evaluated(self, took: int) -> None:
        """Count a finished evaluation."""
        self._evaluating_ns += took
        self._evaluated += 1
        self._evaluation = None

    def _forget_evaluation(self) -> None:
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None:
            self._input_ns += evaluation.waited_ns


#: Functions that save, of modules that a script may import.
_SAVING: Final = {
    "safetensors.torch": ("serialize_file", "save_file", "save_model"),
    "torch.distributed.checkpoint": ("save",),
}


#: So many batches without gradients before a backward are an evaluation that ended early.
_MIN_EVALUATED_BATCHES: Final = 2


class _Evaluation:
    """A possible evaluation: from a module's `eval()`, or from the first batch loaded without gradients.

    It ends when the module trains again, or the loader is exhausted. If a backward comes first, the module is one that
    never trains.
    """

    def __init__(self, clock: Clock, module: Any, begun: int) -> None:
        self.module = module
        #: Time spent saving meanwhile, and time waiting for batches.
        self.other_ns = self.waited_ns = 0
        self._clock, self._begun, self._batches = clock, begun, 0
        #: When the last batch arrived, and the time spent saving until then.
        self.last_ns = self._saved_ns = 0

    def is_left(self) -> bool:
        """Return whether the module trains again, as far as known."""
        return self.module is None or bool(self.module.training)

    def has_waited(self, begun: int, now: int, *, is_over: bool) -> None:
        """Record a wait for a batch, or for the end of the loader."""
        self.last_ns, self._saved_ns = now, self.other_ns
        self._batches += 1
        self.waited_ns += now - begun
        if is_over and self.module is None:
            self.ends(now, is_over=True)

    def ends(self, now: int, *, is_over: bool) -> None:
        """Count the period if it was an evaluation; without `is_over` the module's current state decides."""
        if not is_over and (not self.is_left() or (self.module is None and self._batches < _MIN_EVALUATED_BATCHES)):
            return
        end = now if is_over or self.module is not None else self.last_ns
        self._clock.evaluated(end - self._begun - (self._saved_ns if end == self.last_ns else self.other_ns))


class _Steps:
    """The steps of a run. A step costs one tuple in a list; `take_up` processes many at once.

    `columns` are number, how many steps, wall time, longest, usual, parts, bytes. A long run has several steps a row.
    """

    def __init__(self) -> None:
        self.columns = tuple(array("q") for _ in range(5 + len(_TIMES) + len(_BYTES)))
        self._new: list[tuple[int, ...]] = []
        self._optimizers: list[str] = []
        #: Steps per row; slow steps among merged rows, and their threshold.
        self._stride, self._slow_steps, self._slow_ns = 1, 0, 0
        #: Step counts and usual times, by step length and by what made the last update.
        self._by_length: dict[int, list[int]] = {}
        self._by_optimizer: dict[str, list[int]] = {}
        #: The longest steps without evaluation and checkpoints: that time, and their row.
        self._longest: list[tuple[int, tuple[int, ...]]] = []

    def append(self, step: tuple[int, ...], optimizer: str) -> None:
        """Add a step: number, wall time, its parts, bytes, and what made its last update."""
        self._new.append(step)
        self._optimizers.append(optimizer)
        if len(self._new) >= max(_STEPS_AT_ONCE, self._stride):
            self.take_up()

    def take_up(self) -> None:
        """Count the steps that were added."""
        if not self._new:
            return
        import numpy as np

        new, self._new = np.array(self._new, dtype=np.int64), []
        names, self._optimizers = self._optimizers, []
        number, wall, parts = new[:, 0], new[:, 1], new[:, 2 : 2 + len(_TIMES)]
        alone = np.maximum(wall - parts[:, 5] - parts[:, 6], 0)
        usual = np.maximum(alone - parts[:, 4], 0)
        for lengths, times, table in (
            (np.floor(_PARTS_OF_TWO * np.log2(usual + 1)).astype(int).tolist(), usual.tolist(), self._by_length),
            (names, wall.tolist(), self._by_optimizer),
        ):
            for key, took in zip(lengths, times, strict=True):
                known = table.setdefault(key, [0, 0])
                known[0] += 1
                known[1] += took
        longest = ((int(alone[index]), tuple(map(int, new[index]))) for index in np.argsort(alone)[-_MAX_SLOW_STEPS:])
        self._longest = heapq.nlargest(_MAX_SLOW_STEPS, (*self._longest, *longest))
        rows = [number, np.ones_like(wall), wall, alone, usual, *new[:, 2:].T]
        if self._stride > 1:
            self._slow_steps += int((alone > self._slow_ns).sum())
            rows = _merged(rows, range(0, len(new), self._stride))
        self._extend(rows)
        if len(self.columns[0]) >= 2 * _MAX_SERIES_ROWS:
            self._slow_steps, most = self.slow()
            self._stride, self._slow_ns = 2 * self._stride, _SLOW_FACTOR * most
            rows = _merged(self.columns, range(0, len(self.columns[0]), 2))
            for column in self.columns:
                del column[:]
            self._extend(rows)

    def _extend(self, rows: list[Any]) -> None:
        for column, values in zip(self.columns, rows, strict=True):
            column.frombytes(values.tobytes())

    def longest(self, above: int) -> tuple[SlowStep, ...]:
        """Return the longest steps above this duration, in order."""
        steps = sorted(step for alone, step in self._longest if alone > above)
        return tuple(_slow_step(number, wall, parts[: len(_TIMES)]) for number, wall, *parts in steps)

    def lengths(self) -> tuple[StepLengths, ...]:
        """Return the number of steps by length."""
        return tuple(
            StepLengths(from_ns=round(2 ** (length / _PARTS_OF_TWO)), steps=steps, usual_ns=usual_ns)
            for length, (steps, usual_ns) in sorted(self._by_length.items())
        )

    def updated_by(self, recorded: Container[str]) -> tuple[UpdatedBy, ...]:
        """Return the steps that each optimizer ended, where several did."""
        known = {name: steps for name, steps in self._by_optimizer.items() if name}
        if len(known) < 2:
            return ()
        return tuple(
            UpdatedBy(optimizer=name, steps=steps, wall_ns=wall, recorded=name in recorded)
            for name, (steps, wall) in known.items()
        )

    def median(self) -> int:
        """Return the median wall time of a step."""
        _, steps, walls, *_ = self.columns
        return self._quantile(0.5, [wall // count for wall, count in zip(walls, steps, strict=True)])

    def slow(self) -> tuple[int, int]:
        """Return the number of slow steps, and the upper bound of the other steps' time."""
        _, steps, _, longest, usual, *_ = self.columns
        if self._stride > 1:
            each = [each // count for each, count in zip(usual, steps, strict=True)]
            return self._slow_steps, self._quantile(_SLOW_QUANTILE, each)
        most = self._quantile(_SLOW_QUANTILE, longest)
        return sum(one > _SLOW_FACTOR * most for one in longest), most

    def _quantile(self, part: float, values: Iterable[int]) -> int:
        ordered = sorted(zip(values, self.columns[1], strict=True))
        left = part * (sum(self.columns[1]) - 1)
        for value, steps in ordered:
            left -= steps
            if left < 0:
                return value
        return ordered[-1][0]

    def series(self) -> RunSeries:
        """Return the rows of a report."""
        import numpy as np

        count = len(self.columns[0])
        begins = sorted(
            {index * count // min(count, _MAX_REPORTED_ROWS) for index in range(min(count, _MAX_REPORTED_ROWS))}
        )
        merged = [column.tolist() for column in _merged(self.columns, begins)]
        each = np.array(self.columns[4]) / np.array(self.columns[1])
        merged[4] = [
            round(float(np.median(each[begin:end]))) for begin, end in zip(begins, [*begins[1:], count], strict=True)
        ]
        names = (
            "first",
            "steps",
            "wall_ns",
            "longest_ns",
            "usual_ns",
            *(f"{name}_ns" for name in _TIMES),
            *(f"{name}_bytes" for name in _BYTES),
        )
        return RunSeries(**dict(zip(names, map(tuple, merged), strict=True)))


#: How numpy merges rows of steps: first number, sums, longest; minimum of remaining memory, maximum of used.
_WAYS: Final = (
    "minimum",
    "add",
    "add",
    "maximum",
    *["add"] * (1 + len(_TIMES)),
    "minimum",
    "maximum",
    "maximum",
    "minimum",
)


def _merged(columns: Iterable[Any], begins: Iterable[int]) -> list[Any]:
    """Merge rows into one per stretch, given where stretches begin; columns of int64."""
    import numpy as np

    at = np.array(list(begins))
    return [
        getattr(np, way).reduceat(np.array(column, dtype=np.int64), at)
        for column, way in zip(columns, _WAYS, strict=True)
    ]


def _slow_step(number: int, wall: int, parts: Sequence[int]) -> SlowStep:
    input_ns, _, _, collecting, compiling, evaluating, saving = parts
    return SlowStep(
        number=number,
        wall_ns=wall,
        input_ns=input_ns,
        collecting_ns=collecting,
        compiling_ns=compiling,
        evaluating_ns=evaluating,
        checkpointing_ns=saving,
    )


def _memory_now() -> tuple[int, int, int, int]:
    """Return bytes allocated and reserved on the device in use, their peak, and the host's private pages.

    0 if a figure is unavailable.
    """
    import torch

    allocated = reserved = peak = 0
    cuda: Any = torch.cuda
    if cuda.is_initialized():
        with suppress(Exception):  # a figure of torch's insides, which another version may not have
            stats = cuda.memory_stats_as_nested_dict()
            allocated, peak = (int(stats["allocated_bytes"]["all"][name]) for name in ("current", "peak"))
            reserved = int(stats["reserved_bytes"]["all"]["current"])
    try:
        file = os.open("/proc/self/statm", os.O_RDONLY)
        try:
            _, resident, shared, *_ = os.read(file, 256).split()
        finally:
            os.close(file)
        host = (int(resident) - int(shared)) * _PAGE
    except (OSError, ValueError):
        host = 0
    return allocated, reserved, peak, host


_PAGE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


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
    """Yield events by place and reason, most frequent first."""
    for (place, reason), count in Counter((place, _sentence(text)) for place, text in seen).most_common():
        yield CompilerEvent(place=place, reason=reason, count=count)


def _sentence(reason: str) -> str:
    """Return the first lines of a reason, without torch's hints: what it could not do, and why."""
    lines = [line.strip() for line in reason.splitlines()]
    said = [line for line in lines[:1] if line]
    said += [line.removeprefix("Explanation: ") for line in lines if line.startswith("Explanation: ")]
    text = ": ".join(" ".join(line.partition("  #")[0].split()) for line in said)
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."
