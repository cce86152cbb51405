"""Follow a script: detect its steps from optimizer updates and record a few."""

from __future__ import annotations

import atexit
import functools
import json
import os
import random
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from opanatomy.capture.loop.imports import when_imported
from opanatomy.errors import harmless

if TYPE_CHECKING:
    from opanatomy.capture.loop.calls import Calls
    from opanatomy.capture.loop.clock import Clock
    from opanatomy.capture.loop.recording import Schedule
    from opanatomy.capture.loop.updates import Updates
    from opanatomy.recorder import StepRecorder

#: Without `--after`, recording starts after the first number of steps if the last three are alike, or after the second.
_MIN_STEPS, _MAX_STEPS, _STEADY_STEPS = 4, 15, 3
#: Alike: the longest is at most so many times as long as the shortest.
_STEADY_RATIO: Final = 1.25
#: Fixed start for ranks, which must record the same steps and whose clocks would not agree.
_STEPS_BEFORE_RANKS: Final = 5
#: Up to this many updates, too few updates may be why no steps were detected.
_FEW_UPDATES: Final = 16
#: This many backwards without an update are not accumulated batches.
_MANY_BACKWARDS: Final = 64
#: How long the first rank waits for the others' traces.
_WAIT_FOR_RANKS_S: Final = 60.0
#: How long an exiting rank waits for what its threads have begun.
_WAIT_FOR_THREADS_S: Final = 0.2


class RunSettings(Struct, frozen=True, kw_only=True):
    """What `opanatomy run` hands to the process of the script, as JSON in a variable of its environment.

    Attributes:
        process: the process that becomes the script; `path` is its `PYTHONPATH`, `folder` its working folder.
        trace: the file for the trace, `numbered` whether it counts up; `words` are the options of the report.
        replaced: whether the script has replaced itself by this one.
    """

    process: int
    path: str | None
    folder: str
    trace: str
    numbered: bool
    command: str
    words: tuple[str, ...]
    steps: int
    after: int | None
    stop: bool
    memory: bool
    lines: bool
    check: bool
    redact: bool
    force: bool
    replaced: bool = False

    @property
    def text(self) -> str:
        """Return the settings as ASCII: a folder name may contain bytes that are not UTF-8."""
        return json.dumps(asdict(self))


def follow(settings: dict[str, Any]) -> None:
    """Follow this process's script from now on: record it once torch is imported and training runs."""
    script = Script(msgspec.convert(settings, RunSettings))
    atexit.register(script.end)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=script.leave_alone)
    for name in ("execv", "execve"):
        setattr(os, name, _followed_by(script, getattr(os, name)))
    when_imported(ExitStack(), "torch", script.torch_is_there)


def _followed_by(script: Script, original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a Python process that replaces the script be followed too, once; end current recordings before."""

    @functools.wraps(original)
    def exec(path: Any, args: Any, env: Any = None) -> Any:
        if script.is_here:
            with script.harmless():
                env = script.environment_of_next(path, os.environ if env is None else env)
        return original(path, args) if env is None else _EXECVE(path, args, env)

    return exec


#: What replaces a process, before it is wrapped.
_EXECVE: Final = os.execve


def _is_python(path: Any) -> bool:
    if isinstance(path, int):  # an open file
        return False
    name = os.path.basename(os.fsdecode(path))
    return name.startswith("python") or os.path.realpath(os.fsdecode(path)) == os.path.realpath(sys.executable)


def say(text: str) -> None:
    """Print a line on stderr, whatever the script has done to it."""
    with suppress(OSError, ValueError, AttributeError):
        print(f"opanatomy: {text}", file=sys.__stderr__, flush=True)


class Script:
    """A script that is followed: the clock of its run, the recorder of its steps, and the report at its end."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._environment = dict(os.environ)
        self._stack = ExitStack()
        self._process, self._has_ended = os.getpid(), False
        self._began_s = time.time()
        self._clock: Clock | None = None
        self._updates: Updates | None = None
        self._calls: Calls | None = None
        self._recorder: StepRecorder | None = None
        #: Earlier recordings of other steps, and the optimizers that make each one's updates.
        self._earlier: list[StepRecorder] = []
        self._optimizers: dict[StepRecorder, set[str]] = {}
        self._schedule: Schedule | None = None
        self._steps = self._backwards = 0
        #: The first step whose end was known.
        self._known_at = 0
        self._times: list[int] = []
        self._compiled: list[int] = []
        #: Why nothing is recorded, or nothing more.
        self._reason: str | None = None
        self._replayed = 0
        self._warning: str | None = None
        #: The steps are recorded, and their trace is still being written.
        self._is_writing = False
        #: Whether a profiler that is made now is ours.
        self._is_ours = False
        #: Skipped and irregular updates before the step.
        self._before = (0, 0)

    # ---------------------------------------------------------------------------------------------- finding the steps

    def torch_is_there(self) -> None:
        """Follow torch's optimizers, loaders and profilers."""
        with self.harmless(), self._ours():
            import torch

            from opanatomy.capture.loop.calls import Calls
            from opanatomy.capture.loop.clock import Clock
            from opanatomy.capture.loop.phases import replaced
            from opanatomy.capture.loop.updates import Updates

            calls = self._calls = Calls(self._step_ended, self._steps_changed)
            updates = self._updates = Updates(self._update_ended, self._steps_changed, calls.stop)
            self._clock = Clock(lambda: updates.update_ns)
            self._clock.on_backward = self._backward_ended
            for followed in (self._clock, updates, calls):
                followed.install(self._stack)
            replaced(self._stack, torch.profiler.profiler._KinetoProfile, "prepare_trace", self._wrap_prepare_trace)
            replaced(self._stack, torch.autograd.profiler.profile, "_prepare_trace", self._wrap_prepare_trace)
            replaced(self._stack, torch.cuda.CUDAGraph, "replay", self._wrap_replay)

    @property
    def is_here(self) -> bool:
        """Return whether this is the script's process, and following has not ended."""
        return self._process == os.getpid() and not self._has_ended

    @property
    def trace(self) -> Path | None:
        """Return the trace, once steps are recorded."""
        return next((recorder.trace for recorder in (self._recorder, *self._earlier) if recorder is not None), None)

    def environment_of_next(self, path: Any, env: Any) -> Any:
        """Return the environment for a program that replaces this process: a Python program is followed, once.

        What is recorded by now is shown before.
        """
        if self.trace is not None:
            self.end()
            return env
        if self._settings.replaced or not _is_python(path):
            what = f"file {path}" if isinstance(path, int) else os.fsdecode(path)
            say(f"nothing is recorded: the script replaced itself with {what}, which opanatomy does not follow")
            return env
        start = os.path.join(os.path.dirname(os.path.abspath(__file__)), "capture", "loop", "start")
        paths = os.pathsep.join(filter(None, (start, env.get("PYTHONPATH"))))
        again = replace(self._settings, path=env.get("PYTHONPATH"), replaced=True)
        return {**env, "PYTHONPATH": paths, "OPANATOMY_RUN": again.text}

    def leave_alone(self) -> None:
        """Do nothing in a process that the script forks."""
        self._process = -1
        if self._updates is not None:
            self._updates.is_over = True

    def _wrap_prepare_trace(self, original: Callable[..., None]) -> Callable[..., None]:
        """Yield to a profiler of the script when it starts."""

        @functools.wraps(original)
        def prepare(profiler: Any) -> None:
            if not self._is_ours:
                self._profiles_itself(profiler)
            original(profiler)

        return prepare

    def _wrap_replay(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def replay(graph: Any) -> Any:
            self._replayed += 1
            return original(graph)

        return replay

    def _profiles_itself(self, profiler: Any) -> None:
        if self._process != os.getpid() or (self._recorder is not None and self._recorder.is_recorded):
            return
        if not hasattr(profiler, "on_trace_ready"):
            kind = f"{type(profiler).__module__.removesuffix('.profiler')}.profiler.{type(profiler).__name__}"
            advice = (
                f"have its {kind} call export_chrome_trace('trace.json') at the end, and pass that file to opanatomy"
                " analyze"
            )
        elif profiler.on_trace_ready is None:
            advice = (
                "pass on_trace_ready=opanatomy.trace_handler('runs/') to its profile(...), or, if it exports"
                " a trace, pass that file to opanatomy analyze"
            )
        else:
            advice = (
                "run opanatomy analyze on the traces that its on_trace_ready=... writes, or use"
                " opanatomy.trace_handler('runs/') instead"
            )
        self._give_up(
            f"the script profiles itself with torch.profiler, and torch allows only one profiler at a time - {advice}"
        )

    # --------------------------------------------------------------------------------------------------- recording them

    def _update_ended(self) -> None:
        """End a step at an update; from now on updates end steps."""
        assert self._calls is not None
        if self._calls.what is not None:
            self._calls.stop()
        self._step_ended()

    def _backward_ended(self) -> None:
        """End a step by a backward, if no optimizer of torch's updates outside of it."""
        assert self._calls is not None
        assert self._updates is not None
        self._backwards += 1
        if not self._updates.count:
            steps_itself = self._updates.inside_backward > 0 or self._backwards >= _MANY_BACKWARDS
            self._calls.backward(always=steps_itself)

    def _step_ended(self) -> None:
        """End a step of the script and begin the next; errors of ours only end the recording."""
        clock, updates, recorder = self._clock, self._updates, self._recorder
        assert clock is not None
        assert updates is not None
        is_recorded = recorder is not None and not recorder.is_over()
        self._steps = max(self._steps + 1, updates.count // (updates.length or 1))
        self._known_at = self._known_at or self._steps
        schedule, last = self._schedule, updates.last
        is_profiled = is_recorded and schedule is not None and schedule.first <= self._steps <= schedule.last
        counted = not is_recorded and not self._is_writing  # whose process takes a processor
        took = clock.step_ended(self._steps, counted=counted, optimizer=last)
        if recorder is not None and is_profiled:
            self._optimizers.setdefault(recorder, set()).update(updates.of_step)
        if self._is_writing and recorder is not None and recorder.being_written is None:
            with self.harmless():
                self._say_recorded(recorder)
        if self._reason is not None or (recorder is not None and not is_recorded):
            return
        stops = False
        with self.harmless():
            if recorder is not None:
                self._note_updates(recorder, updates)
                if self._calls is not None and self._calls.lost_modes:
                    recorder.is_unlike(
                        "a torch.inference_mode block hides the work between the calls from a dispatch mode"
                    )
                with self._ours():
                    recorder.end_step()
                stops = recorder.is_over() and self._recorded(recorder)
            else:
                recorder = self._begun(took)
            if recorder is not None and not recorder.is_over():
                with self._ours():
                    recorder.begin_step(self._steps + 1, None)
                    if self._warning is not None:
                        recorder.warn(self._warning)
        clock.resume()
        if stops:
            self._stop()

    def _steps_changed(self) -> None:
        """Begin again: the steps so far were parts of longer ones, of another network, or calls before a training.

        Finished recordings are kept, and their optimizers are not recorded again.
        """
        recorder, updates = self._recorder, self._updates
        recorded = set[str]().union(*self._optimizers.values())
        if recorder is not None and recorder.is_recorded and updates is not None and updates.last in recorded:
            return
        self._times.clear()
        if self._clock is not None:
            self._clock.forget()
        if recorder is None:
            self._schedule = None
        elif recorder.is_recorded:
            if self._is_writing:
                self._say_recorded(recorder)
            self._earlier.insert(0, recorder)
            self._recorder = self._schedule = self._warning = None
            if self._is_first():
                say("the script's steps have changed, so they are recorded again")
        elif not recorder.is_over():
            with self.harmless(), self._ours():
                if recorder.whole_steps < self._settings.steps:
                    recorder.drop()
                    self._recorder = self._schedule = None
                else:
                    recorder.finish()
                    self._recorded(recorder)

    @staticmethod
    def _seen(updates: Updates) -> tuple[int, int]:
        return updates.skipped, updates.irregular

    def _note_updates(self, recorder: StepRecorder, updates: Updates) -> None:
        """Note what is unusual in the updates of a profiled step."""
        before, self._before = self._before, self._seen(updates)
        if self._schedule is None or not self._schedule.first <= self._steps <= self._schedule.last:
            return
        if updates.skipped > before[0]:
            recorder.warn("a gradient scaler skipped the update of a profiled step")
        if updates.irregular > before[1]:
            recorder.warn("the optimizers of a profiled step ran in a different order than before")

    def _stop(self) -> None:
        """End the script, as it would itself."""
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(0)
        self.end()
        os._exit(0)

    def _begun(self, took: int | None) -> StepRecorder | None:
        """Return a recorder starting with the next step if it is time, given the duration of the last step."""
        if self._schedule is None:
            with self._ours():
                self._schedule = self._schedule_now(took)
        if self._schedule is None or self._steps + 1 < self._schedule.begin:
            return None
        with self._ours():
            return self._made(self._schedule)

    def _made(self, schedule: Schedule) -> StepRecorder:
        from opanatomy.options import RunOptions
        from opanatomy.recorder import StepRecorder

        assert self._calls is not None
        given, plain = self._settings, not _in_compiled_code() and not self._calls.is_transformed
        options = RunOptions(
            steps=given.steps,
            memory=given.memory and plain,
            check=given.check and plain,
            lines=given.lines and plain,
            redact=given.redact,
        )
        if not plain:
            where = "torch.func runs the backward" if self._calls.is_transformed else "the optimizer's step is compiled"
            self._warning = f"{where}, so calls are not counted a second time"
        recorder = StepRecorder(
            {},
            options,
            Path(given.trace),
            force=given.force,
            numbered=given.numbered,
            schedule=schedule,
            command=given.command,
        )
        self._recorder = recorder
        assert self._updates is not None
        self._calls.settle()
        if self._calls.what is not None:
            ends = f"no torch optimizer is used, so each step ends with {self._calls.what}"
            self._warning = "; ".join(filter(None, (ends, self._warning)))
        self._before = self._seen(self._updates)
        return recorder

    def _schedule_now(self, took: int | None) -> Schedule | None:
        """Return which steps to record; `None` while undecided, given the duration of the last step."""
        from opanatomy.capture.distributed.group import place_in_group
        from opanatomy.capture.loop.recording import TIMED_STEPS, script_schedule
        from opanatomy.capture.step.ranges import compilations

        self._compiled.append(compilations())
        if took is not None:
            self._times.append(took)
        after = self._settings.after
        if after is None and place_in_group() is not None:
            after = _STEPS_BEFORE_RANKS
        if after is None:
            if not self._is_steady():
                return None
            after = self._steps + 1 + TIMED_STEPS + self._warms()
        return script_schedule(after, self._settings.steps, self._steps, warm=self._warms())

    def _warms(self) -> bool:
        import torch

        from opanatomy.capture.device.accelerators import kineto_records

        return kineto_records("cuda" if torch.cuda.is_available() else "cpu")

    def _is_steady(self) -> bool:
        last = self._times[-_STEADY_STEPS:]
        if self._steps < _MIN_STEPS or len(last) < _STEADY_STEPS:
            return False
        alike = max(last) <= _STEADY_RATIO * min(last) and self._compiled[-1] == self._compiled[-1 - _STEADY_STEPS]
        return alike or self._steps >= _MAX_STEPS

    def _recorded(self, recorder: StepRecorder) -> bool:
        """Say where the trace is, or will be; return whether the script ends here."""
        size = recorder.being_written
        if size is None:
            self._say_recorded(recorder)
        else:
            self._is_writing = True
            if self._is_first():
                say(f"writing the trace of {self._names()} ({size / 1e6:,.0f} MB) while the script continues")
        return bool(self._settings.stop)

    def _say_recorded(self, recorder: StepRecorder) -> None:
        """Say where the trace is, once it is there."""
        self._is_writing = False
        trace = recorder.trace
        if trace is not None and trace.is_relative_to(self._settings.folder):
            trace = trace.relative_to(self._settings.folder)
        if self._is_first():
            say(
                f"{self._names()} of the script recorded: {trace}; the script was paused for"
                f" {recorder.held_ns / 1e9:.2f} s"
            )

    def _names(self) -> str:
        from opanatomy.capture.loop.recording import named

        assert self._schedule is not None
        return named(range(self._schedule.first, self._schedule.first + self._settings.steps))

    @contextmanager
    def _ours(self) -> Iterator[None]:
        """Mark the block as ours, including a profiler started in it, and restore the script's random state."""
        numpy = sys.modules.get("numpy.random")
        states = random.getstate(), None if numpy is None else numpy.get_state()
        self._is_ours = True
        try:
            yield
        finally:
            self._is_ours = False
            random.setstate(states[0])
            if numpy is not None:
                numpy.set_state(states[1])

    def harmless(self) -> AbstractContextManager[None]:
        """Have an error inside end the recording, not the script."""
        return harmless(self._give_up)

    def _give_up(self, reason: str) -> None:
        if self._reason is None:
            self._reason = reason
            say(f"nothing {'more ' * (self._recorder is not None)}is recorded, but the script continues: {reason}")
        if self._recorder is not None and not self._recorder.is_recorded:
            with suppress(Exception):
                self._recorder.drop()
            self._recorder = None

    # ------------------------------------------------------------------------------------------------ the script's end

    def end(self) -> None:
        """Write and show what is recorded, as the last action of the script's process."""
        if not self.is_here:
            return
        self._has_ended = True
        try:
            self._end()
        except KeyboardInterrupt:
            say("interrupted: no report")
        except Exception as error:
            say(f"no report: {type(error).__name__}: {error}")
        _let_threads_end()

    def _end(self) -> None:
        recorder = self._recorder
        if recorder is not None and not recorder.is_over():
            with self.harmless(), self._ours():
                recorder.finish()
        self._stack.close()
        if recorder is not None and self._is_writing:
            with self.harmless():
                self._say_recorded(recorder)
        shown = list(self._shown())
        if not shown:
            if self._reason is None and self._is_first():
                say(f"nothing is recorded: {self._why_nothing()}")
            return
        for recorder in shown:
            self._add_run(recorder)
            if self._is_first():
                _analyze(
                    self._traces(recorder, wait=recorder is shown[0]),
                    shown.index(recorder) + 1,
                    self._settings,
                    self._environment,
                )

    def _shown(self) -> Iterator[StepRecorder]:
        """Yield the last recorder, and earlier ones whose optimizers later ones lack."""
        recorded: set[str] = set()
        for recorder in (self._recorder, *self._earlier):
            if recorder is None or recorder.trace is None:
                continue
            optimizers = self._optimizers.get(recorder, set())
            if not recorded or optimizers - recorded:
                yield recorder
            recorded |= optimizers or {""}

    def _add_run(self, recorder: StepRecorder) -> None:
        """Put the clock of the whole run into the trace."""
        from opanatomy.capture.run.export import with_run

        assert self._clock is not None
        run = self._clock.read(self._optimizers.get(recorder, ()))
        if run is not None and recorder.trace is not None:
            with_run(recorder.trace, run, everything=self._settings.redact)

    def _traces(self, recorder: StepRecorder, *, wait: bool) -> list[Path]:
        """Return the trace, or the traces of all ranks on this machine written so far, or waited for with `wait`."""
        from opanatomy.capture.distributed.launched import launched
        from opanatomy.io.files import name_of_rank

        place, own = launched(), recorder.trace
        assert own is not None
        if place is None or not wait:
            return [own]
        target = Path(self._settings.trace)
        found: dict[int, Path] = {place.rank: own}
        until = time.monotonic() + _WAIT_FOR_RANKS_S
        while len(found) < place.world_size and time.monotonic() < until:
            for rank in range(place.world_size):
                name = name_of_rank(target, rank)
                stem = name.name.removesuffix(".gz").removesuffix(".json").removesuffix(".trace")
                known = [file for file in name.parent.glob(f"{stem}*.json*") if file.stat().st_mtime >= self._began_s]
                if known and rank not in found:
                    found[rank] = max(known, key=lambda file: file.stat().st_mtime)
            time.sleep(0.2)
        if missing := sorted(set(range(place.world_size)) - set(found)):
            say(f"the report excludes ranks without a trace on this machine: {', '.join(map(str, missing))}")
        return [found[rank] for rank in sorted(found)]

    def _is_first(self) -> bool:
        from opanatomy.capture.distributed.launched import launched

        place = launched()
        return place is None or place.is_first

    def _why_nothing(self) -> str:
        """Return why no step was recorded, as far as it can be told."""
        updates = self._updates
        if updates is None:
            others = "; start its child processes with -m opanatomy run" if _had_children() else ""
            return f"the script did not import torch in this process{others}"
        if not updates.count:
            if self._steps and self._calls is not None and self._calls.what is not None:
                return f"{self._too_few()} (each step ends with {self._calls.what})"
            reason = "no torch optimizer step ran in the script's own process"
            if not updates.were_made:
                reason += ", and no module was called"
            if self._replayed:
                times = "once" if self._replayed == 1 else f"{self._replayed:,} times"
                reason = f"the script replayed CUDA graphs ({times}), which hides the optimizer's step"
            elif _had_children():
                reason += (
                    "; the processes that it started are followed only as ranks, with torchrun ... -m opanatomy run"
                    " train.py"
                )
            return f"{reason} - use opanatomy.record() in the loop"
        made = "1 update" if updates.count == 1 else f"{updates.count} updates"
        around = (
            "wrap the part to record in a block: with opanatomy.record('step.json.gz'): ... (a block without"
            " step() counts as one step)"
        )
        #: The last step that can be recorded begins after this one; a GPU's profiler needs one to warm up.
        last = self._steps - 1 - self._warms()
        if updates.length and last < self._known_at:
            steps = "1 optimizer step" if self._steps == 1 else f"{self._steps} optimizer steps"
            return f"the script ran {steps}, too few to record step by step - {around}"
        if not updates.length and updates.count <= _FEW_UPDATES:
            return f"its optimizers made only {made}, too few to identify its steps - {around}"
        if not updates.length:
            return f"the order of its optimizers' {made} follows no regular pattern - {around}"
        return self._too_few()

    def _too_few(self) -> str:
        """Return the number of steps, and the number required."""
        last = self._steps - 1 - self._warms()
        first = self._schedule.first if self._schedule is not None else None
        needed = f"step {first} would have been the first recorded" if first else "steps were not steady yet"
        fits = max(min(self._steps - self._settings.steps, last), self._known_at)
        return f"the script ended after step {self._steps}, but {needed} - use --after {fits}"


def _analyze(traces: Sequence[Path], number: int, settings: RunSettings, environment: dict[str, str]) -> None:
    """Show the report from a separate process, whose output goes to the script's stderr.

    A second report's file has `number` in its name.
    """
    root, folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__))), settings.folder
    paths = [os.path.relpath(trace, folder) for trace in traces]
    given = list(settings.words)
    if number > 1 and _OUTPUT in given:
        place = given.index(_OUTPUT) + 1
        beside, name = os.path.split(given[place])
        stem, dot, ending = name.partition(".")
        given[place] = os.path.join(beside, f"{stem}-{number}{dot}{ending}")
    words = [sys.executable, "-m", "opanatomy", "analyze", *paths, *given]
    is_log = not settings.words and not (sys.__stderr__ is not None and _is_terminal(sys.__stderr__))
    environment = {**environment, "PYTHONSAFEPATH": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), root)))
    try:
        stream: Any = sys.__stderr__.fileno() if sys.__stderr__ is not None else subprocess.DEVNULL
        os.fstat(stream)
    except (OSError, ValueError):
        stream = subprocess.DEVNULL
    subprocess.run(
        [*words, *["--brief"] * is_log],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=stream,
        stderr=stream,
        check=False,
    )
    if is_log:
        say(f"full report: opanatomy analyze {shlex.join(paths)}")


#: The option of a report's file.
_OUTPUT: Final = "--output"


def _is_terminal(stream: Any) -> bool:
    with suppress(OSError, ValueError):
        return bool(stream.isatty())
    return False


def _let_threads_end() -> None:
    """Give a rank's threads time to end: tensors still referenced by gloo abort the interpreter during finalization."""
    from opanatomy.capture.distributed.launched import launched

    if launched() is not None and "torch" in sys.modules:
        time.sleep(_WAIT_FOR_THREADS_S)


def _in_compiled_code() -> bool:
    """Return whether compiled code made the call: a mode entered there is removed by torch at its end.

    One torch frame is excluded: the one that disables compilation of our code.
    """
    frame: Any = sys._getframe()
    seen = 0
    while frame is not None:
        code = frame.f_code
        seen += code.co_filename.endswith("eval_frame.py") and code.co_name in ("_fn", "compile_wrapper")
        frame = frame.f_back
    return seen > 1


def _had_children() -> bool:
    """Return whether processes that the script started did as much as the script."""
    try:
        import resource
    except ImportError:
        return False
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime > resource.getrusage(resource.RUSAGE_SELF).ru_utime
