"""What the stages of a recording share: the loop's modules, what was seen of it, and what each stage found out."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opanatomy.capture.device.devices import devices_of, synchronize
from opanatomy.capture.loop.calls import marked_calls
from opanatomy.capture.loop.modules import LoopModules, hooked
from opanatomy.capture.loop.phases import LoopPhases
from opanatomy.capture.loop.seen import Seen
from opanatomy.capture.memory.holders import Holders
from opanatomy.capture.memory.snapshots import Snapshots
from opanatomy.capture.step.observer import Observation
from opanatomy.capture.step.ranges import OpenRanges
from opanatomy.capture.step.stepper import StepObserver
from opanatomy.records.memory_observations import MemoryObservations, StepObservations
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import ObservedCount
from opanatomy.run_options import RunOptions

if TYPE_CHECKING:
    import torch


class Inputs(StepObserver):
    """Keeps in mind what forwards were called with, without keeping it."""

    def __init__(self) -> None:
        self._references: list[weakref.ref[torch.Tensor]] = []

    def inputs(self, tensors: list[torch.Tensor]) -> None:
        """Keep these in mind."""
        self._references += [weakref.ref(tensor) for tensor in tensors]

    def alive(self) -> list[torch.Tensor]:
        """The tensors that are still alive."""
        return [tensor for reference in self._references if (tensor := reference()) is not None]


@dataclass(slots=True, kw_only=True)
class Session:
    """One recording."""

    options: RunOptions
    modules: LoopModules
    seen: Seen
    #: Where the loop is taken to run before it showed that.
    device_at_first: str
    points: Snapshots
    inputs: Inputs = field(default_factory=Inputs)
    observation: Observation | None = None
    #: What the watched step did, as `LoopPhases.log`; the same, and the calls, of one after the profiled steps.
    watched: list[str] | None = None
    watched_again: list[str] | None = None
    counts_again: tuple[ObservedCount, ...] = ()
    gradients: dict[str, str] = field(default_factory=dict)
    saved_bytes: int | None = None
    cast_bytes: int | None = None
    gradient_bytes: int | None = None
    unprofiled_ns: list[int] = field(default_factory=list)
    memory: MemoryObservations | None = None
    memory_step: StepObservations | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def device(self) -> str:
        """The device of the loop."""
        return self.seen.device or self.device_at_first

    def synchronize(self) -> None:
        """Wait for every device that has a part of the model."""
        for module in self.modules.outermost:
            synchronize(devices_of(module, self.device))
        synchronize((self.device,))

    def holders(self) -> Holders:
        """What holds the tensors of a step now."""
        return Holders(
            device=self.device, modules=self.modules.outermost, optimizers=tuple(self.seen.optimizers),
            inputs=self.inputs.alive(),
        )  # fmt: skip


@contextmanager
def marked(
    session: Session,
    watch: StepObserver,
    *,
    decide: Callable[[Phase], None] = lambda phase: None,
    behind_module: Callable[[], None] = lambda: None,
) -> Iterator[LoopPhases]:
    """Mark the phases and modules of the loop with ranges while inside."""
    phases = LoopPhases(watch=watch, decide=decide)
    modules, seen = session.modules, session.seen
    modules.rename()
    ranges = OpenRanges(modules.range_names)

    def enter(module: torch.nn.Module) -> None:
        if not phases.is_here:
            return
        if not modules.knows(module):
            if not phases.is_outside or not modules.add(module):
                return
            ranges.names = modules.range_names
        phases.enter_module(module)
        if session.watched is None:  # what is seen of every call is known by then
            seen.module(module)
        ranges.enter(module, ())

    def leave(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not phases.is_here or not modules.knows(module):
            return
        ranges.leave(module)
        behind_module()
        if phases.leave_module(module, (args, kwargs)):
            seen.forward(module, args, kwargs)

    with hooked(modules, enter, leave), marked_calls(phases, seen.gradient_scaler, seen.optimizer):
        try:
            yield phases
        finally:
            ranges.close()
            phases.new_step()
