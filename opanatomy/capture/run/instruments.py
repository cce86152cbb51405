"""Run the first warm-up step under instruments; if one breaks the model's code, run the step again without it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from opanatomy.capture.memory import saved, storages
from opanatomy.capture.memory.saved import ForwardSaves
from opanatomy.capture.run import gradients, progress
from opanatomy.capture.run.gradients import observed_gradients
from opanatomy.capture.run.observer import Observation, observing
from opanatomy.capture.run.progress import Progress, watched
from opanatomy.capture.run.restore import SavedState
from opanatomy.capture.silence import one_line
from opanatomy.capture.step.stepper import Stepper
from opanatomy.records.memory import is_out_of_memory
from opanatomy.records.patterns import regex

if TYPE_CHECKING:
    import torch


class Instrument(Enum):
    """A watch of the first step: its name, and the facts unknown without it."""

    OBSERVER = (
        "the observer of calls (a dispatch mode)",
        "the calls of the step have no second count, and arguments that the profiler drops (indices, strings) are"
        " not known",
    )
    SAVES = (
        "the observer of saved tensors (autograd hooks)",
        "the bytes that forward keeps for backward are not measured",
    )
    CASTS = (
        "the observer of weight casts (a dispatch mode)",
        "autocast's casts of weights count as activations",
    )
    GRADIENTS = (
        "the observer of gradients (module hooks)",
        "which layers' inputs and weights need gradients, and so what theory says of the backward",
    )
    PROGRESS = ("the progress display (module hooks)", "")


#: torch's messages about an instrument that it cannot handle, rather than the model.
_SAYS: Final = (
    (Instrument.SAVES, regex(r"saved[ _]tensors?[ _](un)?(pack[ _])?hooks?", re.IGNORECASE)),
    (Instrument.SAVES, regex(r"saved tensor pack hook", re.IGNORECASE)),
    (Instrument.OBSERVER, regex(r"torch_dispatch|dispatch ?mode|\bmode\b.*\bobserver\b", re.IGNORECASE)),
)
#: The files of instrument code that runs inside the model's.
_CODE: Final = (
    (Instrument.SAVES, (saved, storages)),
    (Instrument.PROGRESS, (progress,)),
    (Instrument.GRADIENTS, (gradients,)),
)


class _Failure(Struct, frozen=True, kw_only=True):
    """A watched step that broke: the instruments that the error names (`None`: it names none), and its text."""

    blamed: set[Instrument] | None
    what: str


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
        """Run one step, watched as far as the model allows; return the time of the run that succeeded.

        Before each new try everything that a step changes is restored. A raised error is one of the plain step.
        """
        active = set(self.active)
        while active:
            outcome = self._tried(step, active)
            if isinstance(outcome, int):
                return outcome
            if outcome.blamed is None:
                return self._one_by_one(step, active)
            active -= outcome.blamed
            self._failed(outcome.blamed, outcome)
        return step()

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

    def _tried(self, step: Callable[[], int], active: set[Instrument]) -> int | _Failure:
        """Return the time of the step, or its failure after restoring everything."""
        optimizer = self.stepper.optimizer
        fresh = optimizer is not None and not optimizer.state
        try:
            with self._watching(active):
                duration = step()
        except Exception as error:
            if is_out_of_memory(error) or not self.stepper.training.all_failed(failed=True):
                raise
            blames, what = blamed(error, active), f"{type(error).__name__}: {one_line(error, 160)}"
            self._as_before(error, fresh=fresh)
            return _Failure(blamed=blames, what=what)
        self.stepper.training.all_failed(failed=False)
        return duration

    def _as_before(self, error: Exception, *, fresh: bool) -> None:
        # The frames of the failure hold the graph and all its saved tensors.
        traceback.clear_frames(error.__traceback__)
        self.observation = None
        self.gradients = {}
        self.saves.bytes = self.saves.cast_bytes = None
        self.stepper.start_again(fresh=fresh)
        for part in self.module.modules():  # FSDP: scatter again the weights that forward gathered
            scatter = getattr(type(part), "reshard", None)
            if scatter is not None:
                scatter(part)
        self.kept.restore_values()

    def _one_by_one(self, step: Callable[[], int], active: set[Instrument]) -> int:
        """Run the plain step, whose failure is the model's; then each instrument alone, to find the cause."""
        duration = step()
        if self.stepper.optimizer is not None:
            self.kept.release_weights()
        for instrument in (Instrument.OBSERVER, Instrument.SAVES):
            if instrument in active:
                failure = self._alone(step, instrument)
                if failure is not None:
                    self._failed({instrument}, failure)
        return duration

    def _alone(self, step: Callable[[], int], instrument: Instrument) -> _Failure | None:
        observation, bytes_, casts = self.observation, self.saves.bytes, self.saves.cast_bytes
        outcome = self._tried(step, {instrument})
        if instrument is not Instrument.OBSERVER:
            self.observation = observation
        if instrument is not Instrument.SAVES:
            self.saves.bytes, self.saves.cast_bytes = bytes_, casts
        return None if isinstance(outcome, int) else outcome

    def _failed(self, instruments: set[Instrument], failure: _Failure) -> None:
        self.failed |= instruments
        for instrument in (each for each in Instrument if each in instruments):
            name, unknown = instrument.value
            if unknown:
                self.warnings.append(
                    f"{name} failed in this model, and the step ran without it: {unknown} ({failure.what})"
                )

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


def blamed(error: Exception, active: set[Instrument]) -> set[Instrument] | None:
    """Return the instruments that the error names, or whose code it came from; `None` if it names none."""
    text = f"{type(error).__name__}: {error}"
    for instrument, pattern in _SAYS:
        if instrument in active and pattern.search(text):
            return _kin(instrument) & active
    files = _last_files(error.__traceback__)
    for instrument, modules in _CODE:
        if instrument in active and any(module.__file__ in files for module in modules):
            return _kin(instrument) & active
    return None


def _kin(instrument: Instrument) -> set[Instrument]:
    """Return the instruments that stop with this one: casts are watched only together with saved tensors."""
    return {instrument} if instrument in (Instrument.PROGRESS, Instrument.GRADIENTS) else {instrument, Instrument.CASTS}


def _last_files(trace: TracebackType | None) -> list[str]:
    """Return the files of the last frames of a failure."""
    return [frame.filename for frame in traceback.extract_tb(trace)[-3:]]
