"""Provide `TrainerCallback`: some steps of a training by transformers' Trainer -> a trace, a report, log entries."""

from __future__ import annotations

import functools
import operator
import os
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from itertools import islice, pairwise
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import transformers
from msgspec import Struct

from opanatomy.arguments import Name, kind_of, path_of
from opanatomy.capture.loop.recording import Training, named, training_schedule
from opanatomy.errors import CaptureError, OutputError, UsageError, harmless
from opanatomy.io.files import OutputFile, check_no_address, folder_of_traces, output_file, replacing
from opanatomy.io.redact import mask_secrets, remember_environment_secrets
from opanatomy.options import RunOptions
from opanatomy.recorder import StepRecorder, oom_report
from opanatomy.report import format_of
from opanatomy.report.formats import FORMATS, format_named
from opanatomy.report.metrics import metrics_of
from opanatomy.report.section import Page

if TYPE_CHECKING:
    from opanatomy.records.anatomy import Anatomy


# The arguments of `TrainerCallback`, checked before anything runs: which steps, and where the results go.


#: Maximum number of steps: a longer trace is unreadable and does not fit into memory.
MANY_STEPS: Final = 1000
_EXAMPLE: Final = "pass a range such as range(3, 6)"


def checked_steps(steps: object) -> range:
    """Return the training steps to profile, which are consecutive; raise `UsageError` for anything else."""
    if isinstance(steps, (str, bytes)) or not isinstance(steps, Iterable):
        raise UsageError(f"TrainerCallback: steps is {kind_of(steps)} - {_EXAMPLE}")
    numbers = [_number(step) for step in islice(steps, MANY_STEPS + 1)]
    if not numbers:
        raise UsageError(f"TrainerCallback: steps={steps!r} contains no step - {_EXAMPLE}")
    if len(numbers) > MANY_STEPS:
        raise UsageError(f"TrainerCallback: steps has more than {MANY_STEPS} steps, but a few are enough - {_EXAMPLE}")
    for before, after in pairwise(numbers):
        if after != before + 1:
            raise UsageError(
                f"TrainerCallback: step {after} does not follow step {before}, and a trace must cover consecutive"
                f" steps - {_EXAMPLE}"
            )
    return range(numbers[0], numbers[-1] + 1)


def _number(step: Any) -> int:
    try:
        number = operator.index(step)
    except TypeError:
        number = None
    if number is None or isinstance(step, bool):
        raise UsageError(f"TrainerCallback: steps contains {step!r}, which is not an integer - {_EXAMPLE}")
    if number < 1:
        raise UsageError(f"TrainerCallback: steps contains {number}, but training begins with step 1 - {_EXAMPLE}")
    return number


class Output(Struct, frozen=True, kw_only=True):
    """Destination of the results: the report, its format, and the trace next to it; `numbered` names count up."""

    report: Path
    trace: Path
    format: str
    numbered: bool


def check_output(output: Name | None) -> None:
    """Raise `UsageError` for an output that names neither a report nor a folder."""
    if output is None:
        return
    path = path_of("TrainerCallback: output", output)
    check_no_address("TrainerCallback: output", os.fspath(output))
    if not _is_folder(output):
        _format_of(path)


def output_of(output: Name | None, stem: str) -> Output:
    """Return the files of a checked output; a folder is created, with file names that begin with `stem`."""
    if (collected := folder_of_traces()) is not None:
        output, stem = collected, "step"
    if output is None or _is_folder(output):
        folder = Path() if output is None else Path(output)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"cannot create the folder {folder}: {error.strerror or error} - choose another one"
            ) from error
        return Output(
            report=folder / f"{stem}.report.txt",
            trace=folder / f"{stem}.trace.json.gz",
            format="terminal",
            numbered=True,
        )
    report = Path(output)
    name = _format_of(report)
    stem = report.name[: -len(format_named(name).ending)]
    return Output(report=report, trace=report.with_name(f"{stem}.trace.json.gz"), format=name, numbered=False)


def _is_folder(output: Name) -> bool:
    return os.path.isdir(output) or os.fspath(output).endswith(("/", os.sep))


def _format_of(path: Path) -> str:
    try:
        name = format_of(path)
    except UsageError:
        name = None
    if name is None:
        endings = ", ".join(format_named(known).ending for known in FORMATS)
        raise UsageError(
            f"TrainerCallback: output {path}: unknown report format - end the name in one of {endings}, or pass a"
            " folder (the trace is written next to the report)"
        )
    return name


# Finds the Trainer that calls a callback by its frame, to log through it and to learn of its errors.
#
# transformers gives a callback the state and the control of a training, not the Trainer; only that has `log()`, which
# reaches the loggers and the history alike, and no event reports an error.


#: The method that runs an epoch in transformers 5. Earlier versions have none; these methods run the parts of a step.
_EPOCH: Final = "_run_epoch"
_IN_STEP: Final = ("training_step", "callback_handler.call_event", "optimizer.step", "_maybe_log_save_evaluate")


def calling_trainer(callback: object) -> Any:
    """Return the Trainer that called this callback; `None` if something else did."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, transformers.Trainer):
            return owner if any(other is callback for other in owner.callback_handler.callbacks) else None
        frame = frame.f_back
    return None


class Guard:
    """Report an error that ends a training, before the caller of the training sees it."""

    def __init__(self, trainer: Any, failed: Callable[[BaseException], None]) -> None:
        self._trainer, self._failed = trainer, failed
        self._stack = ExitStack()
        self._has_epochs = hasattr(trainer, _EPOCH)

    def epoch_begins(self) -> None:
        """Watch the epoch that the Trainer is about to run: replace its method until it is called."""
        if self._has_epochs:
            self._wrap(_EPOCH, once=True)

    def step_begins(self) -> None:
        """Watch a step that is recorded."""
        if not self._has_epochs:
            self.release()
            for name in _IN_STEP:
                self._wrap(name, once=False)

    def release(self) -> None:
        """Put the Trainer's methods back."""
        self._stack.close()

    def _wrap(self, path: str, *, once: bool) -> None:
        *owners, name = path.split(".")
        owner = functools.reduce(getattr, owners, self._trainer)
        original = getattr(owner, name, None)
        if original is None:
            return
        before = vars(owner).get(name)

        @functools.wraps(original)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if once:
                restore()
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                self._failed(error)
                raise

        def restore() -> None:
            if vars(owner).get(name) is not guarded:
                return
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        setattr(owner, name, guarded)
        self._stack.callback(restore)


# Which of the steps do not come, given where a training begins and ends.


def not_coming(steps: range, training: Training) -> str | None:
    """Return which steps do not come, and why; `None` if all do."""
    done, end = training.done, training.end
    reasons = []
    if steps[0] <= done:
        past = named(range(steps[0], min(steps[-1], done) + 1))
        reasons.append(f"training resumes after step {done}, so {past} will not be recorded")
    if end and steps[-1] > end:
        beyond = named(range(max(steps[0], end + 1), steps[-1] + 1))
        reasons.append(f"training ends with step {end}, so {beyond} will not be recorded")
    elif end and done < steps[-1] and steps[-1] + training.extra > end:
        needed = named(range(steps[-1] + 1, steps[-1] + training.extra + 1))
        reasons.append(f"training ends with step {end}, but check and memory need {needed}")
    if not reasons:
        return None
    last = end - training.extra
    todo = f"pass steps from {done + 1} to {last if end else '...'}" if not end or last > done else "train longer"
    return f"TrainerCallback: {'; '.join(reasons)} - {todo}"


#: Figures for the Trainer's log, if they are known; `Anatomy.metrics()` has more.
LOGGED: Final = (
    "step_time_ns", "step_profiled_ns", "samples_per_second", "forward_time_ns", "backward_time_ns",
    "optimizer_time_ns", "busy_ns", "idle_ns", "idle_share", "exposed_communication_ns", "flops", "bytes", "mfu",
    "class.tensor_contraction.time_share", "headroom_ns", "peak_memory_bytes",
)  # fmt: skip
_WIDTH: Final = 100


class TrainerCallback(transformers.TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Record some steps of transformers' `Trainer`: a trace, a report, and numbers in the Trainer's log.

        callback = opanatomy.TrainerCallback(steps=range(3, 6), output="step.json")
        trainer = Trainer(..., callbacks=[callback])  # or trainer.add_callback(callback)
        trainer.train()
        print(callback.anatomy.classes)

    `steps` are the profiled steps, numbered as in the Trainer: the first update of a training is step 1, and a step
    includes all micro-batches of an update, from `on_step_begin` to `on_step_end`; its batches are loaded before it.
    The steps must be consecutive. Up to three steps before them are timed without the profiler, excluding the first
    step of the training. Hooks and ranges are present only while a profiled step runs, and the losses are identical,
    to the bit, to those without the callback. With `check`, calls are counted a second time in two steps after them,
    and a count that does not agree raises `GateError` at the end of the training. With `memory`, the allocations of
    one more step are traced, and with `lines` one more step runs line by line.

    `output` names the report, in the format of its extension (.txt, .json, ...); the trace is written next to it
    (`step.trace.json.gz`). Without `output`, or if it is a folder, the file names start with the model's class and are
    numbered. `force` overwrites existing files. Each rank has its own trace (`step.rank0.trace.json.gz`); the report
    and the log entries are those of the main process. `redact` leaves out paths, arguments, host names and user names.

    `oom="report"` records the history of the CUDA allocator throughout the training: if memory runs out, the history
    is written (`step.oom.pickle`) with a page that shows what filled the memory, and the error is raised as usual.

    The numbers are passed to `Trainer.log` once (`opanatomy/step_time_ns`, ...), and so reach every logger and the log
    history. If a training ends or fails before the last of the steps, the complete steps are reported. A callback
    records once. Raises `UsageError` for invalid arguments, and `OutputError` when a training starts whose results
    cannot be written. An error that affects only the recording is a warning: the training continues.
    """

    def __init__(
        self,
        steps: Iterable[int] = range(3, 6),
        output: Name | None = None,
        *,
        memory: bool = False,
        lines: bool = False,
        check: bool = False,
        redact: bool = False,
        force: bool = False,
        oom: bool | str = False,
    ) -> None:
        remember_environment_secrets()  # the training's own code may take a secret out of the environment
        self._steps, self._output, self._force = checked_steps(steps), output, force
        check_output(output)
        self._options = RunOptions(steps=len(self._steps), memory=memory, lines=lines, check=check, redact=redact)
        self._oom, self._oom_report = oom, ExitStack()
        self._recorder: StepRecorder | None = None
        self._guard: Guard | None = None
        self._report: OutputFile | None = None
        self._format = "terminal"
        self._profiled = self._steps
        self._anatomy: Anatomy | None = None
        #: Figures to log when the Trainer goes on.
        self._figures: dict[str, int | float] = {}
        #: When the Trainer was last done with a step and its work after it.
        self._free_ns: int | None = None

    # ------------------------------------------------------------------------------------------------------ results

    @property
    def anatomy(self) -> Anatomy:
        """Return the anatomy of the profiled steps on this rank; raise `CaptureError` before it is complete."""
        if self._anatomy is None:
            if self._recorder is None or self._recorder.trace is None:
                raise CaptureError(
                    f"TrainerCallback: {named(self._steps)} not recorded yet - read the anatomy after train()"
                )
            self._anatomy = self._recorder.anatomy
        return self._anatomy

    @property
    def trace(self) -> Path | None:
        """Return this rank's trace once it is written."""
        return None if self._recorder is None else self._recorder.trace

    def __repr__(self) -> str:
        is_recording = self._recorder is not None and not self._recorder.is_over()
        state = "recorded" if self.trace is not None else "recording" if is_recording else "not recorded"
        return f"<opanatomy.TrainerCallback, {named(self._steps)}, {state}>"

    # ------------------------------------------------------------------------------------------- events of the Trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the files, and warn of steps that will not be recorded."""
        self._figures, self._free_ns = {}, None
        if self.trace is not None:
            warnings.warn(
                f"TrainerCallback: this callback already recorded {named(self._steps)} of another training run and"
                " does not record this one - use a new callback for each training run",
                stacklevel=2,
            )
            return
        self._give_up()
        self._end_history()
        trainer = calling_trainer(self)
        model: Any = kwargs.get("model") if trainer is None else trainer.model_wrapped
        training = Training(
            done=state.global_step,
            end=max(state.max_steps, 0),
            warm=_is_traced(model),
            extra=2 * self._options.check + self._options.memory + self._options.lines,
        )
        schedule, reason = training_schedule(self._steps, training), not_coming(self._steps, training)
        if reason is not None:
            warnings.warn(reason, stacklevel=2)
        if schedule is None:
            return
        self._profiled = range(schedule.first, schedule.last + 1)
        output = output_of(self._output, _stem_of(model))
        try:
            if state.is_world_process_zero:
                self._take_report(output)
            self._recorder = StepRecorder(
                {"": model},
                self._options,
                output.trace,
                force=self._force,
                numbered=output.numbered,
                schedule=schedule,
                command="opanatomy.TrainerCallback(...)",
                optimizer=_innermost(kwargs.get("optimizer")),
            )
        except BaseException:
            self._give_up()
            raise
        with self._harmless():
            self._recorder.start_clock()
        if trainer is not None:
            self._guard = Guard(trainer, self._failed)
            self._oom_report.enter_context(oom_report("TrainerCallback", output.trace, self._oom))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start watching for an error in the epoch."""
        if self._guard is not None:
            self._guard.epoch_begins()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start recording the step, if it is one of those to record."""
        self._log(state, control)
        recorder = self._recorder
        if recorder is not None and not recorder.is_over():
            if self._guard is not None:
                self._guard.step_begins()
            loading_ns = None if self._free_ns is None else time.perf_counter_ns() - self._free_ns
            with self._harmless():
                recorder.begin_step(state.global_step + 1, loading_ns)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the step; write the recording after the last one."""
        recorder = self._recorder
        if recorder is not None:
            with self._harmless():
                recorder.clock(state.global_step)
        if recorder is not None and not recorder.is_over():
            with self._harmless():
                recorder.end_step()
            if recorder.is_over():
                with self._harmless():
                    self._show()
        self._is_free()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note that the Trainer has logged."""
        self._is_free()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note that the Trainer has evaluated."""
        self._is_free()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note that the Trainer has saved a checkpoint."""
        self._is_free()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the numbers of steps at the end of an epoch, before the training summary is logged."""
        if control.should_training_stop:
            self._finish(state)
        self._log(state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the results, and raise `GateError` if a requested check does not agree."""
        self._finish(state)
        self._end_clock()
        self._end_history()
        self._log(state, control)
        if self._options.check and self.trace is not None:
            from opanatomy.checks.counts import require_agreement

            require_agreement(self.anatomy)

    # --------------------------------------------------------------------------------------------------------- inside

    def _is_free(self) -> None:
        """Count the time from now on as the loading of batches, unless the Trainer says otherwise."""
        self._free_ns = time.perf_counter_ns()

    def _finish(self, state: Any) -> None:
        """End the recording with the training: write complete steps."""
        recorder = self._recorder
        if recorder is None or recorder.is_over():
            return
        with self._harmless():
            recorder.finish()
        if recorder.trace is not None:
            with self._harmless():
                self._show()
        else:
            warnings.warn(
                f"TrainerCallback: training ended after step {state.global_step}, before {named(self._profiled)}:"
                " nothing was recorded",
                stacklevel=3,
            )
            self._give_up()

    def _end_clock(self) -> None:
        """Put the clock of the whole training into the trace, and into the report."""
        recorder = self._recorder
        if recorder is None or not recorder.has_clock:
            return
        with self._harmless():
            recorder.stop_clock()
        if recorder.trace is not None and self._report is not None:
            self._anatomy = None
            with self._harmless():
                self._write_report()

    def _failed(self, error: BaseException) -> None:
        """Write complete steps after the training failed with an error, which is raised after this."""
        self._oom_report.__exit__(type(error), error, error.__traceback__)
        recorder = self._recorder
        if recorder is None or recorder.is_over():
            self._end_clock()
            return
        hint = recorder.blames(error)
        with self._harmless():
            recorder.finish()
        if recorder.trace is not None:
            with self._harmless():
                self._show()
        self._end_clock()
        self._give_up()
        if hint is not None:
            warnings.warn(hint, stacklevel=2)

    def _harmless(self) -> AbstractContextManager[None]:
        """Have an error inside end the recording, not the training."""
        return harmless(self._end_recording)

    def _end_recording(self, reason: str) -> None:
        self._give_up()
        warnings.warn(f"recording ended ({reason}), but training continues", stacklevel=2)

    def _give_up(self) -> None:
        """Release everything except memory monitoring until the end of training; files already written are kept."""
        if self._guard is not None and not self._oom:
            self._guard.release()
            self._guard = None
        recorder = self._recorder
        if recorder is not None and recorder.trace is None:
            recorder.drop()
            self._recorder = None

    def _end_history(self) -> None:
        """End the history of the allocator, and the watch for errors."""
        self._oom_report.close()
        if self._guard is not None:
            self._guard.release()
            self._guard = None

    def _take_report(self, output: Output) -> None:
        self._format = output.format
        self._report = output_file(
            output.report,
            force=self._force,
            numbered=output.numbered,
            needed_bytes=1 << 20,
            forced_by="pass force=True",
        )

    def _show(self) -> None:
        """Write the report and say where, on the main process; its figures are logged when the Trainer goes on."""
        report = self._report
        if report is not None:
            with report.written() as partial:
                partial.write_bytes(self._encoded())
            metrics = metrics_of(self.anatomy)
            self._figures = {f"opanatomy/{name}": metrics[name].value for name in LOGGED if name in metrics}
            count = len(self.anatomy.step.steps) or self.anatomy.step.count
            _say(f"opanatomy: {named(self._profiled[:count])} of the training run: {report.path}, trace {self.trace}")
        self._give_up()

    def _encoded(self) -> bytes:
        return format_named(self._format).encoded(self.anatomy, Page(width=_WIDTH, source=self._source()))

    def _write_report(self) -> None:
        """Write the report once more, with the whole training around the steps."""
        if self._report is not None:
            with replacing(self._report.target) as partial:
                partial.write_bytes(self._encoded())

    def _source(self) -> str | None:
        """Return the trace's name in a command; empty if its path is redacted or contains a secret."""
        source = shlex.quote(str(self.trace))
        return None if self._options.redact or mask_secrets(source) != source else source

    def _log(self, state: Any, control: Any) -> None:
        """Log the figures through the Trainer, once; leave its other log entries unchanged."""
        if not self._figures:
            return
        figures, self._figures = self._figures, {}
        trainer = calling_trainer(self)
        if trainer is None:
            state.log_history.append({**figures, "epoch": state.epoch, "step": state.global_step})
            return
        should_log = control.should_log
        trainer.log(figures)
        control.should_log = should_log


def _is_traced(model: Any) -> bool:
    """Return whether a profiler records the model's device, and so must be warmed up."""
    from opanatomy.capture.device.accelerators import device_of, kineto_records

    return kineto_records(device_of(model, ()))


def _innermost(optimizer: Any) -> Any:
    """Return torch's optimizer inside of Accelerate's wrappers; `None` if there is none."""
    import torch

    while not type(optimizer).__module__.startswith("torch.") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer if isinstance(optimizer, torch.optim.Optimizer) else None


def _stem_of(model: Any) -> str:
    from opanatomy.capture.model.parts import class_name, unwrapped

    return class_name(unwrapped(model))


def _say(text: str) -> None:
    """Write a line on stderr, past the Trainer's progress bar."""
    from tqdm.auto import tqdm

    tqdm.write(text, file=sys.stderr)
