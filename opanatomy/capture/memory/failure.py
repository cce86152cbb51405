"""Observe a step that ran out of memory: the memory allocated when it broke, and the request that failed."""

from __future__ import annotations

import gc
import traceback
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from opanatomy.capture.device import accelerators
from opanatomy.capture.memory.measurement import Snapshots, could_have, element_bytes, give_back, storages_observed
from opanatomy.capture.memory.observer import PROFILER_BYTES, observe_step
from opanatomy.capture.memory.saved import ForwardSaves
from opanatomy.capture.memory.storages import holders_of, on_device, other_devices, tensors_in
from opanatomy.capture.silence import first_line
from opanatomy.capture.step.stepper import Stepper
from opanatomy.errors import OutOfMemory
from opanatomy.records.memory import MemoryFailure, is_out_of_memory, requested_bytes
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import Environment, MemoryObservations, Workload

if TYPE_CHECKING:
    import torch

_WITHOUT_PROFILER: Final = "tensor storages at the failure; the profiler could not run within the memory limit"


class StepOutOfMemory(OutOfMemory):
    """A step that does not fit, with its observations when it broke (`None`: no step could begin)."""

    def __init__(
        self, line: str, memory: MemoryObservations | None, workload: Workload, environment: Environment
    ) -> None:
        super().__init__(line)
        self.memory = memory
        self.workload = workload
        self.environment = environment


class _Traceback(Exception):  # no error but the text of one's traceback
    """The text of the traceback of a failure whose frames are freed."""


def observations_of_failure(
    error: BaseException,
    stepper: Stepper,
    module: torch.nn.Module,
    snapshots: Snapshots,
    *,
    compiled: bool = False,
    checkpointing: bool = False,
) -> MemoryObservations:
    """Let the step that broke with `error` break again under the memory profiler; return the observations.

    The second try begins as the first did: without gradients, and without the optimizer state that the broken update
    began to make. If it does not run out of memory, `failure.seen` is false and the observations are of that step, or
    of the state after the failure.
    """
    failure = _failure_of(error, stepper.phase, seen=False)
    _let_go(error, stepper)
    if stepper.device == "cpu" and not could_have(PROFILER_BYTES):
        return replace(_without_profiler(stepper, module, snapshots), failure=failure)
    try:
        observed = observe_step(stepper, module, snapshots, compiled=compiled, checkpointing=checkpointing)
    except Exception:  # the profiler may not get the threads and the memory that it needs
        stepper.start_again(fresh=False)
        return replace(_without_profiler(stepper, module, snapshots), failure=failure)
    again = observed.error
    if again is not None:
        if is_out_of_memory(again):
            failure = _failure_of(again, observed.observations.broken_in or Phase.OTHER, seen=True)
        _let_go(again, stepper)
    step = observed.observations
    parameters = on_device(module.parameters(), step.device)
    return MemoryObservations(
        device=step.device,
        parameter_bytes=element_bytes(parameters),
        trainable_bytes=element_bytes(parameter for parameter in parameters if parameter.requires_grad),
        snapshots=snapshots.taken,
        other_devices=other_devices(module, step.device),
        notes=tuple(snapshots.notes),
        step=step,
        failure=failure,
    )


def _without_profiler(stepper: Stepper, module: torch.nn.Module, snapshots: Snapshots) -> MemoryObservations:
    """Return saved tensors and other storages at the failure; temporary buffers stay unknown."""
    known = [*module.parameters(), *module.buffers(), *tensors_in(stepper.micro_batches)]
    saves = ForwardSaves(known, snapshots)
    outer, stepper.watch = stepper.watch, saves
    try:
        stepper.run()
    except Exception as error:
        observations = storages_observed(holders_of(stepper, module), saves.bytes, saves.cast_bytes)
        _let_go(error, stepper)
    else:
        observations = storages_observed(holders_of(stepper, module), saves.bytes, saves.cast_bytes)
    finally:
        stepper.watch = outer
    return replace(observations, measured_by=_WITHOUT_PROFILER)


def _failure_of(error: BaseException, phase: Phase, *, seen: bool) -> MemoryFailure:
    return MemoryFailure(
        phase=phase, message=first_line(error, 300), requested_bytes=requested_bytes(str(error)), seen=seen
    )


def _let_go(error: BaseException, stepper: Stepper) -> None:
    """Free the frames of the failure; its traceback stays as text."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    traceback.clear_frames(error.__traceback__)
    # A frame keeps its function and the closure of that: in `Module._call_impl` the arguments of the module.
    error.__traceback__ = error.__context__ = None
    error.__cause__ = _Traceback(f'\n"""\n{text}"""')
    stepper.start_again(fresh=False)
    gc.collect()
    if accelerators.is_accelerator(stepper.device):
        accelerators.empty_cache(stepper.device)
    else:
        give_back()
