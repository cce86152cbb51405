"""Run the first warm-up step under instruments; one that breaks the model's code is dropped with a warning."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from opanatomy.capture.memory.saved import ForwardSaves
from opanatomy.capture.run.gradients import observed_gradients
from opanatomy.capture.run.observer import Observation, observing
from opanatomy.capture.run.progress import Progress, watched
from opanatomy.capture.run.restore import SavedState
from opanatomy.capture.silence import one_line
from opanatomy.capture.step.stepper import Stepper
from opanatomy.records.memory import is_out_of_memory

if TYPE_CHECKING:
    import torch


class Instrument(Enum):
    """A watch of the first step: its name, and the facts unknown without it."""

    OBSERVER = (
        "the call observer (a dispatch mode)",
        "the step's calls have no second count, and arguments that the profiler drops (indices, strings) are unknown",
    )
    SAVES = (
        "the saved-tensor observer (autograd hooks)",
        "the bytes that forward keeps for backward are not measured",
    )
    CASTS = (
        "the weight-cast observer (a dispatch mode)",
        "autocast's weight casts count as activations",
    )
    GRADIENTS = (
        "the gradient observer (module hooks)",
        "cannot tell which layers' inputs and weights need gradients, nor what theory predicts for backward",
    )
    PROGRESS = ("the progress display (module hooks)", "")


#: The instruments tried alone after a step under all of them failed. Casts are watched only with saved tensors; the
#: plain step needs no progress display.
_TRIED_ALONE: Final = (
    {Instrument.OBSERVER},
    {Instrument.SAVES, Instrument.CASTS},
    {Instrument.GRADIENTS},
)


@dataclass(slots=True, kw_only=True)
class Instruments:
    """The instruments in `active` around a step; their observations, and the facts lost by a failure."""

    stepper: Stepper
    module: torch.nn.Module
    kept: SavedState
    saves: ForwardSaves
    progress: Progress
    active: set[Instrument]
    observation: Observation | None = None
    #: The warm-up step that `observation` describes.
    observed_step: int = 1
    #: Module path -> the operands that need a gradient, as `Capture.gradients`.
    gradients: dict[str, str] = field(default_factory=dict)
    failed: set[Instrument] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)

    def run(self, step: Callable[[], int]) -> int:
        """Run one step under all instruments, and return the time of the run that succeeded.

        If it fails, everything that a step changes is restored and the plain step runs, whose failure is the model's.
        Then one step runs under each instrument alone; those that fail are dropped with a warning.
        """
        outcome = self._tried(step, self.active)
        if isinstance(outcome, int):
            return outcome
        duration = step()
        if self.stepper.optimizer is not None:
            self.kept.release_weights()
        for instruments in (together & self.active for together in _TRIED_ALONE):
            if instruments and isinstance(failure := self._tried(step, instruments), str):
                self._drop(instruments, failure)
        return duration

    @property
    def can_count_again(self) -> bool:
        """Return whether the calls of the first step could be counted."""
        return Instrument.OBSERVER in self.active - self.failed and self.observation is not None

    def count_again(self, number: int, step: Callable[[], int]) -> int:
        """Run one more step, of this number, to replace the first one's count of calls; return its time."""
        with observing(lambda: self.stepper.phase) as observation:
            duration = step()
        self.observation, self.observed_step = observation, number
        return duration

    def saves_again(self, saves: ForwardSaves, step: Callable[[], int]) -> None:
        """Run one more step to replace the first one's count of forward's saves, if they were counted."""
        instruments = (self.active & {Instrument.SAVES, Instrument.CASTS}) - self.failed
        if Instrument.SAVES not in instruments:
            return
        self.saves = saves
        with self._watching(instruments):
            step()

    def _tried(self, step: Callable[[], int], instruments: set[Instrument]) -> int | str:
        """Return the time of the step under these instruments, or its error, after which everything is restored."""
        optimizer = self.stepper.optimizer
        fresh = optimizer is not None and not optimizer.state
        try:
            with self._watching(instruments):
                duration = step()
        except Exception as error:
            if not instruments or is_out_of_memory(error) or not self.stepper.training.all_failed(failed=True):
                raise
            # The frames of the failure hold the graph and all its saved tensors.
            traceback.clear_frames(error.__traceback__)
            if Instrument.OBSERVER in instruments:
                self.observation = None
            if Instrument.SAVES in instruments:
                self.saves.bytes = self.saves.cast_bytes = None
            if Instrument.GRADIENTS in instruments:
                self.gradients = {}
            self.stepper.start_again(fresh=fresh)
            for part in self.module.modules():  # FSDP: scatter again the weights that forward gathered
                scatter = getattr(type(part), "reshard", None)
                if scatter is not None:
                    scatter(part)
            self.kept.restore_values()
            return f"{type(error).__name__}: {one_line(error, 160)}"
        self.stepper.training.all_failed(failed=False)
        return duration

    def _drop(self, instruments: set[Instrument], failure: str) -> None:
        self.failed |= instruments
        for instrument in (each for each in Instrument if each in instruments):
            name, unknown = instrument.value
            loss = f": {unknown}" if unknown else ""
            self.warnings.append(f"{name} failed in this model, so the step ran without it{loss} ({failure})")

    @contextmanager
    def _watching(self, active: set[Instrument]) -> Iterator[None]:
        """Watch a step by the instruments."""
        before = self.stepper.watch
        self.saves.look_for_casts = Instrument.CASTS in active
        with ExitStack() as stack:
            if Instrument.PROGRESS in active:
                stack.enter_context(watched(self.module, self.progress, len(self.stepper.micro_batches)))
            if Instrument.OBSERVER in active:
                observer: AbstractContextManager[Observation] = observing(lambda: self.stepper.phase)
                self.observation = stack.enter_context(observer)
            if Instrument.GRADIENTS in active:
                self.gradients = stack.enter_context(observed_gradients(self.module))
            if Instrument.SAVES in active:
                self.stepper.watch = self.saves
            try:
                yield
            finally:
                self.stepper.watch = before
