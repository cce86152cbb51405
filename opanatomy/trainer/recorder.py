"""The recorder of given steps of a training, which claims its file before the training begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from opanatomy.capture.loop.numbered_steps import NumberedSteps, StepPlan
from opanatomy.errors import CaptureError
from opanatomy.recording import Recorder, running
from opanatomy.run_options import RunOptions

if TYPE_CHECKING:
    import torch


class StepRecorder(Recorder):
    """Is called where each step begins and ends; writes the trace after the last one."""

    _recording: NumberedSteps | None

    def __init__(
        self,
        modules: Mapping[str, torch.nn.Module],
        options: RunOptions,
        target: Path,
        *,
        force: bool,
        numbered: bool,
        plan: StepPlan,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        super().__init__(modules, options, target, force=force, numbered=numbered)
        self._plan, self._optimizer = plan, optimizer
        self._claim_trace()

    @property
    def trace(self) -> Path | None:
        """The trace, as its folder was given, once it is written."""
        return None if self._trace is None or self._claim is None else self._claim.path

    def is_over(self) -> bool:
        """Whether nothing more is recorded."""
        return self._is_over

    @property
    def whole_steps(self) -> int:
        """How many profiled steps are done so far."""
        return 0 if self._recording is None else self._recording.whole_steps

    def begin_step(self, number: int, loading_ns: int | None) -> None:
        """A step begins, which has this number; before it the training waited that long for its batches."""
        if self._is_over or number < self._plan.begin:
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
        """A step is done."""
        if self._recording is None:
            return
        try:
            self._recording.end_step()
        except BaseException:
            self._abort()
            raise
        if self._recording.done:
            self._abort()

    def finish(self) -> None:
        """The training is over: write what is complete, and release the rest."""
        try:
            if self._recording is not None:
                self._recording.stop()
        finally:
            self.drop()

    def drop(self) -> None:
        """Release everything, and write nothing more."""
        self._abort()
        self._is_over = True

    def blames(self, error: BaseException) -> str | None:
        """What of the recording may be to blame for an error of the training, and what to do; else `None`."""
        return None if self._recording is None else self._recording.blames(error)

    def _check_alone(self) -> None:
        from torch._C._autograd import _profiler_enabled

        if running:
            raise CaptureError(
                "TrainerCallback: another recorder is running, and torch takes one profiler at a time - give each steps"
                " of its own"
            )
        if _profiler_enabled():
            raise CaptureError(
                "TrainerCallback: a torch profiler is running already, and torch takes one at a time - give steps"
                " outside of it"
            )

    def _new_recording(self) -> NumberedSteps:
        return NumberedSteps(self._modules, self._options, self._write, plan=self._plan, optimizer=self._optimizer)
