"""`opanatomy.TrainerCallback`: some steps of a training by transformers' Trainer -> a trace, a report, log entries."""

from __future__ import annotations

import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import transformers

from opanatomy.arguments import Name
from opanatomy.errors import CaptureError, OpanatomyError
from opanatomy.files.outputs import Claim, claimed
from opanatomy.redaction.texts import spoken
from opanatomy.redaction.values import of_process
from opanatomy.report import format_named
from opanatomy.report.format import Page
from opanatomy.report.metrics import metrics_of
from opanatomy.run_options import RunOptions
from opanatomy.trainer.arguments import Output, check_output, checked_steps, output_of
from opanatomy.trainer.host import Guard, calling_trainer
from opanatomy.trainer.plan import Training, named, not_coming, plan_of
from opanatomy.trainer.recorder import StepRecorder

if TYPE_CHECKING:
    from opanatomy.records.anatomy import Anatomy

#: What goes to the Trainer's log, where it is known; `Anatomy.metrics()` has more.
LOGGED: Final = (
    "step_time_ns", "step_profiled_ns", "samples_per_second", "forward_time_ns", "backward_time_ns",
    "optimizer_time_ns", "busy_ns", "idle_ns", "idle_share", "exposed_communication_ns", "flops", "bytes", "mfu",
    "class.tensor_contraction.time_share", "headroom_ns", "peak_memory_bytes",
)  # fmt: skip
_WIDTH: Final = 100


class TrainerCallback(transformers.TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Records some steps of a training by transformers' `Trainer`: a trace, a report, figures in the Trainer's log.

        callback = opanatomy.TrainerCallback(steps=range(3, 6), output="step.json")
        trainer = Trainer(..., callbacks=[callback])  # or trainer.add_callback(callback)
        trainer.train()
        print(callback.anatomy.classes)

    `steps` are the steps that are profiled, as the Trainer counts them: the first update of a training is step 1, and a
    step is all micro-batches of an update, from `on_step_begin` to `on_step_end`; the next batches are loaded before
    that. They are in a row. Up to three steps before them, the first of the training left out, run on the clock. Hooks
    and ranges are there while a profiled step runs and at no other time, and the losses are those without the callback,
    to the bit. With `check` calls are counted a second time in two steps after them, and a count that does not
    agree raises `GateError` at the end of the training; with `memory` the allocations of one step more are followed.

    `output` names the report, in the format of its ending (.txt, .json, ...); the trace goes next to it
    (`step.trace.json.gz`). Without it, or in a folder, the names begin with the model's class and count up. `force`
    writes in place of old files. Each rank has a trace of its own (`step.rank0.trace.json.gz`); the report and the log
    entries are those of the main process. `redact` leaves paths, arguments, hosts and users out.

    The figures go through `Trainer.log` once (`opanatomy/step_time_ns`, ...), so to every logger and the log history.
    A training that ends or fails before the last of the steps leaves those that are whole. A callback records once.
    Raises `UsageError` for what it is given, `OutputError` when a training begins whose results cannot be written. What
    fails in the recording alone is a warning: the training goes on.
    """

    def __init__(
        self,
        steps: Iterable[int] = range(3, 6),
        output: Name | None = None,
        *,
        memory: bool = False,
        check: bool = False,
        redact: bool = False,
        force: bool = False,
    ) -> None:
        of_process()  # the training's own code may take a secret out of the environment
        self._steps, self._output, self._force = checked_steps(steps), output, force
        check_output(output)
        self._options = RunOptions(steps=len(self._steps), memory=memory, check=check, redact=redact)
        self._recorder: StepRecorder | None = None
        self._guard: Guard | None = None
        self._files = ExitStack()
        self._report: Claim | None = None
        self._format = "terminal"
        self._profiled = self._steps
        self._anatomy: Anatomy | None = None
        #: What is to be logged when the Trainer goes on.
        self._figures: dict[str, int | float] = {}
        #: When the Trainer was last done with a step, and with what it does after one.
        self._free_ns: int | None = None

    # ------------------------------------------------------------------------------------------------------ results

    @property
    def anatomy(self) -> Anatomy:
        """The anatomy of the steps that were profiled, on this rank; `CaptureError` before it is there."""
        if self._anatomy is None:
            if self._recorder is None or self._recorder.trace is None:
                raise CaptureError(
                    f"TrainerCallback: {named(self._steps)} not recorded yet - ask for the anatomy after train()"
                )
            self._anatomy = self._recorder.anatomy
        return self._anatomy

    @property
    def trace(self) -> Path | None:
        """The trace of this rank, once it is written."""
        return None if self._recorder is None else self._recorder.trace

    def __repr__(self) -> str:
        is_recording = self._recorder is not None and not self._recorder.is_over()
        state = "recorded" if self.trace is not None else "recording" if is_recording else "not recorded"
        return f"<opanatomy.TrainerCallback, {named(self._steps)}, {state}>"

    # ------------------------------------------------------------------------------------------- events of the Trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Claim the files, and warn of steps that do not come."""
        self._figures, self._free_ns = {}, None
        if self.trace is not None:
            warnings.warn(
                f"TrainerCallback: {named(self._steps)} of another training is recorded already, nothing of this one"
                " is - give each training a callback of its own",
                stacklevel=2,
            )
            return
        self._give_up()
        trainer = calling_trainer(self)
        model: Any = kwargs.get("model") if trainer is None else trainer.model_wrapped
        training = Training(
            done=state.global_step, end=max(state.max_steps, 0), warm=_is_traced(model),
            extra=2 * self._options.check + self._options.memory,
        )  # fmt: skip
        plan, reason = plan_of(self._steps, training), not_coming(self._steps, training)
        if reason is not None:
            warnings.warn(reason, stacklevel=2)
        if plan is None:
            return
        self._profiled = range(plan.first, plan.last + 1)
        output = output_of(self._output, _stem_of(model))
        try:
            if state.is_world_process_zero:
                self._claim_report(output)
            self._recorder = StepRecorder(
                {"": model}, self._options, output.trace, force=self._force, numbered=output.numbered, plan=plan,
                optimizer=_innermost(kwargs.get("optimizer")),
            )  # fmt: skip
        except BaseException:
            self._give_up()
            raise
        if trainer is not None:
            self._guard = Guard(trainer, self._failed)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to watch for an error in the epoch."""
        if self._guard is not None:
            self._guard.epoch_begins()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to record the step, where it is one of those."""
        self._log(state, control)
        recorder = self._recorder
        if recorder is not None and not recorder.is_over():
            if self._guard is not None:
                self._guard.step_begins()
            loading_ns = None if self._free_ns is None else time.perf_counter_ns() - self._free_ns
            self._without_harm(lambda: recorder.begin_step(state.global_step + 1, loading_ns))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The step is done; after the last one what was recorded is written."""
        recorder = self._recorder
        if recorder is not None and not recorder.is_over():
            self._without_harm(recorder.end_step)
            if recorder.is_over():
                self._without_harm(self._show)
        self._is_free()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The Trainer has logged."""
        self._is_free()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The Trainer has evaluated."""
        self._is_free()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The Trainer has saved a checkpoint."""
        self._is_free()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the figures of steps at the end of an epoch before the summary of the training is logged."""
        if control.should_training_stop:
            self._finish(state)
        self._log(state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write what there is, and raise `GateError` where a check was asked for and does not agree."""
        self._finish(state)
        self._log(state, control)
        if self._options.check and self.trace is not None:
            from opanatomy.checks import require_agreement

            require_agreement(self.anatomy)

    # --------------------------------------------------------------------------------------------------------- inside

    def _is_free(self) -> None:
        """What follows is the loading of batches, unless the Trainer says otherwise."""
        self._free_ns = time.perf_counter_ns()

    def _finish(self, state: Any) -> None:
        """The training is over: write the steps that are whole."""
        recorder = self._recorder
        if recorder is None or recorder.is_over():
            return
        self._without_harm(recorder.finish)
        if recorder.trace is not None:
            self._without_harm(self._show)
        else:
            warnings.warn(
                f"TrainerCallback: the training ended after step {state.global_step}, before {named(self._profiled)}:"
                " nothing was recorded",
                stacklevel=3,
            )
            self._give_up()

    def _failed(self, error: BaseException) -> None:
        """The training fails with an error, which goes on after this: write the steps that are whole."""
        recorder = self._recorder
        if recorder is None or recorder.is_over():
            return
        hint = recorder.blames(error)
        self._without_harm(recorder.finish)
        if recorder.trace is not None:
            self._without_harm(self._show)
        self._give_up()
        if hint is not None:
            warnings.warn(hint, stacklevel=2)

    def _without_harm(self, action: Callable[[], None]) -> None:
        """Do something whose errors end the recording, not the training."""
        try:
            action()
        except Exception as error:
            self._give_up()
            reason = str(error) if isinstance(error, OpanatomyError) else f"{type(error).__name__}: {error}"
            warnings.warn(f"the recording ended, the training goes on: {reason}", stacklevel=3)
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Release everything; what is written stays."""
        if self._guard is not None:
            self._guard.release()
        self._guard = None
        recorder = self._recorder
        if recorder is not None and recorder.trace is None:
            recorder.drop()
            self._recorder = None
        self._files.close()

    def _claim_report(self, output: Output) -> None:
        self._format = output.format
        self._report = self._files.enter_context(
            claimed(
                output.report, force=self._force, numbered=output.numbered, needed_bytes=1 << 20,
                forced_by="give force=True",
            )
        )  # fmt: skip

    def _show(self) -> None:
        """Write the report and say where, on the main process; its figures are logged when the Trainer goes on."""
        claim = self._report
        if claim is not None:
            text = format_named(self._format).write(self.anatomy, Page(width=_WIDTH, source=self._source()))
            with claim.written() as partial:
                partial.write_text(text, encoding="utf-8")
            metrics = metrics_of(self.anatomy)
            self._figures = {f"opanatomy/{name}": metrics[name].value for name in LOGGED if name in metrics}
            count = len(self.anatomy.step.steps) or self.anatomy.step.count
            _say(f"opanatomy: {named(self._profiled[:count])} of the training: {claim.path}, trace {self.trace}")
        self._give_up()

    def _source(self) -> str | None:
        """What a command calls the trace by; nothing where its path is left out, or has a secret in it."""
        source = shlex.quote(str(self.trace))
        return None if self._options.redact or spoken(source) != source else source

    def _log(self, state: Any, control: Any) -> None:
        """Hand the figures to the Trainer's log, once, and leave what else is to be logged as it is."""
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
    """Whether a profiler records the device of a model, so that it is to be warmed up."""
    from opanatomy.capture.device.devices import device_of, kineto_records

    return kineto_records(device_of(model, ()))


def _innermost(optimizer: Any) -> Any:
    """An optimizer of torch inside of those that Accelerate puts around it; `None` where there is none."""
    import torch

    while not type(optimizer).__module__.startswith("torch.") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer if isinstance(optimizer, torch.optim.Optimizer) else None


def _stem_of(model: Any) -> str:
    from opanatomy.capture.model.wrappers import class_name, unwrapped

    return class_name(unwrapped(model))


def _say(text: str) -> None:
    """A line on stderr, past the Trainer's progress bar."""
    from tqdm.auto import tqdm

    tqdm.write(text, file=sys.stderr)
