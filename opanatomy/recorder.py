"""Record a loop of the user's own: a context manager around it, or calls at the begin and end of each step."""

from __future__ import annotations

import atexit
import re
import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from opanatomy.errors import CaptureError, OutputError, UsageError, harmless
from opanatomy.io.files import OutputFile, name_of_rank, output_file, temporary
from opanatomy.options import RunOptions
from opanatomy.pipeline import analyze_traces
from opanatomy.report.formats.terminal import sentence
from opanatomy.report.sections.verdict import headline
from opanatomy.results import Anatomy, as_public, located

if TYPE_CHECKING:
    import torch

    from opanatomy.capture.loop.clock import Clock
    from opanatomy.capture.loop.recording import LoopRecording, Recorded, Schedule
    from opanatomy.capture.run.export import TraceWriter


class Recorder:
    """Records a loop, as a context manager, or with `start()` and `stop()` where a `with` block does not fit."""

    def __init__(
        self,
        modules: Mapping[str, torch.nn.Module],
        options: RunOptions,
        target: Path | None,
        *,
        force: bool,
        numbered: bool = False,
        oom: AbstractContextManager[None] | None = None,
    ) -> None:
        self._modules, self._options, self._target, self._force = modules, options, target, force
        self._numbered = numbered
        #: What writes a report where memory runs out; it lasts as long as the block.
        self._oom = ExitStack()
        self._oom_report = nullcontext() if oom is None else oom
        self._recording: LoopRecording | None = None
        self._is_over = False
        self._steps = 0
        self._output: OutputFile | None = None
        self._writer: TraceWriter | None = None
        #: How long the loop stood still for the end of the profile: Kineto's own work, and its export.
        self.held_ns = 0
        self._anatomy: Anatomy | None = None
        #: The clock of the whole loop, and what removes it.
        self._clock: Clock | None = None
        self._clock_taken_off = ExitStack()

    def __enter__(self) -> Recorder:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
            return
        atexit.unregister(self._stop_at_exit)
        self._oom.__exit__(kind, error, traceback)
        hint = None if self._recording is None else self._recording.blames(error)
        self._abort()
        self.stop_clock()
        if hint is not None:
            warnings.warn(hint, stacklevel=2)

    def start(self) -> Recorder:
        """Start the first iteration, and return this recorder; recording ends with `stop()`, or with the program."""
        if self._recording is not None or self._is_over:
            raise CaptureError("record: this recorder was already started - create a new one")
        if running:
            raise CaptureError(
                "record: a recorder is already running, and torch allows only one profiler at a time - end its"
                " block, or call its stop()"
            )
        check_no_profiler("record")
        try:
            self._take_file()
            self._oom.enter_context(self._oom_report)
            self._recording = self._new_recording()
            running.append(self)
            self.start_clock()
            self._recording.start()
            self._recording.begin_step()
        except BaseException:
            self._abort()
            self.stop_clock()
            raise
        atexit.register(self._stop_at_exit)
        return self

    def _stop_at_exit(self) -> None:
        """End a loop that was not ended explicitly; errors are reported in one line."""
        if self._is_over and self._clock is None:
            return
        with harmless(_say):
            self.stop()

    def step(self) -> None:
        """End an iteration of the loop."""
        recording = self._recording
        self._steps += 1
        if self._clock is not None:
            self._clock.step_ended(self._steps, counted=recording is None or recording.is_plain)
        if self._is_over:
            return
        recording = self._started()
        try:
            recording.end_step()
            if not recording.done:
                recording.begin_step()
        except BaseException:
            self._abort()
            self.stop_clock()
            raise
        if recording.done:
            self._abort()
        if self._clock is not None:
            self._clock.resume()

    def stop(self) -> None:
        """End the loop; write the trace if it has not been written yet."""
        atexit.unregister(self._stop_at_exit)
        if not self._is_over:
            recording = self._started()
            try:
                recording.stop()
            finally:
                self._abort()
        self._oom.close()
        try:
            self._written()
        finally:
            self.stop_clock()
        if self._options.check:
            from opanatomy.checks.counts import require_agreement

            require_agreement(self.anatomy)

    @property
    def anatomy(self) -> Anatomy:
        """Return the anatomy of the recorded steps; raise `CaptureError` before it is complete."""
        if self._anatomy is None:
            trace = self._written()
            if trace is None:
                raise CaptureError("record: nothing has been recorded yet - read the anatomy after the block")
            anatomy = located(analyze_traces([trace], redact=self._options.redact), [trace])
            if self._target is None:
                anatomy = replace(anatomy, provenance=replace(anatomy.provenance, trace=None))
            self._anatomy = anatomy
        return self._anatomy

    def _new_recording(self) -> LoopRecording:
        from opanatomy.capture.loop.recording import LoopRecording, block_schedule

        schedule = block_schedule(self._options)
        command = "opanatomy.record(...)"
        return LoopRecording(self._modules, self._options, self._write, schedule=schedule, command=command)

    def start_clock(self) -> None:
        """Begin the clock of the whole loop."""
        from opanatomy.capture.loop.clock import Clock

        self._clock = Clock()
        self._clock.install(self._clock_taken_off)

    def stop_clock(self) -> None:
        """Stop the clock, and add its measurements to the trace and its anatomy."""
        run = None if self._clock is None else self._clock.read()
        self._clock = None
        self._clock_taken_off.close()
        try:
            trace = self._written()
        except OutputError as error:  # an error of the loop goes on
            warnings.warn(f"record: {error}", stacklevel=3)
            return
        if run is not None and trace is not None:
            from opanatomy.capture.run.export import with_run

            try:
                with_run(trace, run, everything=self._options.redact)
                self._anatomy = None
            except OSError as error:  # the trace is there without it, and an error of the loop goes on
                warnings.warn(f"record: {trace} lacks the timing of the entire loop: {error}", stacklevel=3)

    def _started(self) -> LoopRecording:
        if self._recording is None:
            raise CaptureError("record: the recorder was not started - use it in a with statement")
        return self._recording

    def _take_file(self) -> None:
        """Open the trace's file, on each rank its own; a temporary one lives as long as the recorder does."""
        from opanatomy.capture.distributed.group import place_in_group

        if self._target is not None:
            place = place_in_group()
            target = self._target if place is None else name_of_rank(self._target, place.rank)
            self._output = output_file(target, force=self._force, numbered=self._numbered, forced_by="pass force=True")
            return
        folder = ExitStack()
        self._unkept = folder.enter_context(temporary("step.trace.json.gz", "the trace"))
        weakref.finalize(self, folder.close)

    def _write(self, recorded: Recorded) -> None:
        from opanatomy.capture.run.export import TraceWriter

        self._writer = TraceWriter(
            recorded.profiler,
            recorded.capture,
            self._output or self._unkept,
            everything=self._options.redact,
            renamed=recorded.renamed,
        )

    def _written(self) -> Path | None:
        """Wait for the trace to be written, and return it; `None` if nothing is recorded."""
        if self._writer is None:
            return None
        self._writer.wait()
        return self._unkept if self._output is None else self._output.target

    def _abort(self) -> None:
        """Release everything, the models too; files already written stay."""
        if self in running:
            running.remove(self)
        if self._recording is not None:
            self._recording.abort()
            self.held_ns = self._recording.held_ns
            self._recording, self._is_over = None, True
        self._modules = {}

    def __repr__(self) -> str:
        state = "not started" if self._recording is None else "recording"
        state = "recorded" if self._writer is not None else "ended" if self._is_over else state
        return f"<opanatomy.Recorder, {state}>"


class StepRecorder(Recorder):
    """Record the steps of a training between calls at the begin and end of each; write the trace after the last one.

    Its file is opened before the training begins.
    """

    def __init__(
        self,
        modules: Mapping[str, torch.nn.Module],
        options: RunOptions,
        target: Path,
        *,
        force: bool,
        numbered: bool,
        schedule: Schedule,
        command: str,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        super().__init__(modules, options, target, force=force, numbered=numbered)
        self._schedule, self._command, self._optimizer = schedule, command, optimizer
        self._take_file()

    @property
    def trace(self) -> Path | None:
        """Return the written trace, in its folder as given; wait for it if all steps are recorded."""
        return None if self._written() is None or self._output is None else self._output.path

    @property
    def is_recorded(self) -> bool:
        """Return whether all steps are recorded, and their trace is written or being written."""
        return self._writer is not None

    @property
    def being_written(self) -> int | None:
        """Return the size of Kineto's trace while it is being redacted and compressed, else `None`."""
        return None if self._writer is None or self._writer.is_done() else self._writer.size

    def is_over(self) -> bool:
        """Return whether nothing more is recorded."""
        return self._is_over

    @property
    def whole_steps(self) -> int:
        """Return how many profiled steps are done so far."""
        return 0 if self._recording is None else self._recording.whole_steps

    def begin_step(self, number: int, loading_ns: int | None) -> None:
        """Begin the step with this number; the training waited `loading_ns` for its batches before it."""
        if self._is_over or number < self._schedule.begin:
            return
        try:
            if self._recording is None:
                self._check_alone()
                self._recording = self._new_recording()
                running.append(self)
                self._recording.start()
            if loading_ns is not None:
                self._recording.loading_ns.append(loading_ns)
            self._recording.begin_step()
        except BaseException:
            self._abort()
            raise

    def end_step(self) -> None:
        """End a step."""
        if self._recording is None:
            return
        try:
            self._recording.end_step()
        except BaseException:
            self._abort()
            raise
        if self._recording.done:
            self._abort()

    @property
    def has_clock(self) -> bool:
        """Return whether the clock of the training runs."""
        return self._clock is not None

    def clock(self, number: int) -> None:
        """End the step with this number on the clock, if running; the recorder's own time is excluded."""
        if self._clock is not None:
            begun = self._recording is not None or self._writer is not None
            self._clock.step_ended(number, counted=self._is_over or not begun)

    def finish(self) -> None:
        """End the recording with the training: write complete steps, and release the rest."""
        try:
            if self._recording is not None:
                self._recording.stop()
        finally:
            self.drop()

    def drop(self) -> None:
        """Release everything, and write nothing more."""
        self._abort()
        self._is_over = True
        if self._writer is None:
            self._clock = None
            self._clock_taken_off.close()

    def warn(self, text: str) -> None:
        """Add a warning to the report, once."""
        if self._recording is not None and text not in self._recording.session.warnings:
            self._recording.session.warnings.append(text)

    def is_unlike(self, why: str) -> None:
        """Note why the second count of the calls may differ from the profiled steps."""
        if self._recording is not None:
            self._recording.session.unlike = why

    def blames(self, error: BaseException) -> str | None:
        """Return what in the recording may be to blame for an error of the training, and what to do; else `None`."""
        return None if self._recording is None else self._recording.blames(error)

    def _check_alone(self) -> None:
        from torch._C._autograd import _profiler_enabled

        other = "another recorder is running" if running else "a torch profiler is already running"
        if running or _profiler_enabled():
            raise CaptureError(f"{other}, and torch allows only one profiler at a time - use each on different steps")

    def _new_recording(self) -> LoopRecording:
        from opanatomy.capture.loop.recording import LoopRecording

        return LoopRecording(
            self._modules,
            self._options,
            self._write,
            schedule=self._schedule,
            command=self._command,
            optimizer=self._optimizer,
        )


#: The recorder that runs now.
running: list[Recorder] = []


@contextmanager
def oom_report(function: str, target: Path | None, oom: str | bool) -> Iterator[None]:
    """Write what filled a GPU's memory if it runs out inside: the allocator's history and a page; the error goes on.

    The files are named after the trace `target` (`step.oom.pickle`, `step.oom.html`), numbered if they exist. Without a
    CUDA device there is a warning and nothing is written.
    """
    from opanatomy.capture.memory.history import AllocatorHistory, is_recordable
    from opanatomy.records.memory import is_out_of_memory

    if oom not in (False, True, "report"):
        raise UsageError(f"{function}: oom={oom!r}: unknown value - pass 'report', or leave it out")
    if not oom:
        yield
        return
    if not is_recordable():
        warnings.warn(f"{function}: oom='report' needs a CUDA device, but this torch sees none", stacklevel=3)
        yield
        return
    stem = "opanatomy" if target is None else re.sub(r"(\.trace)?\.json(\.gz)?$", "", target.name)
    folder = Path() if target is None else target.parent
    place = output_file(folder / f"{stem}.oom.pickle", force=False, numbered=True)
    history = AllocatorHistory(place.target)
    history.start()
    try:
        yield
    except BaseException as error:
        history.stop()
        if is_out_of_memory(error):
            history.ends()
            if history.is_written:
                _tell_what_filled(place.target)
        raise
    finally:
        history.stop()


def _tell_what_filled(snapshot_: Path) -> None:
    """Write the page of a snapshot, and report in a line where memory ran out; errors here are reported likewise."""
    page = snapshot_.with_suffix(".html")
    with harmless(lambda reason: _say(f"memory ran out: {snapshot_} is the snapshot (no page was written: {reason})")):
        anatomy = as_public(analyze_traces([snapshot_]))
        anatomy.to_html(page, force=True)
        _say(f"{sentence(headline(anatomy)[0])} {page} shows the details; {snapshot_} is the snapshot")


def _say(text: str) -> None:
    print(f"opanatomy: {text}", file=sys.stderr, flush=True)


def check_no_profiler(function: str) -> None:
    """Raise if a profiler runs already: two would stop each other."""
    from torch._C._autograd import _profiler_enabled

    if _profiler_enabled():
        raise CaptureError(
            f"{function}: a torch profiler is already running, and torch allows only one at a time - call"
            f" opanatomy.{function} outside it, or export its trace and pass it to opanatomy.analyze"
        )
