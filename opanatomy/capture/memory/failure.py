"""A step that ran out of memory: what was allocated when it broke, and the request that could not be met."""

from __future__ import annotations

import gc
import traceback
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from opanatomy.capture.device import accelerators
from opanatomy.capture.memory.measurement import could_have, give_back, memory_of
from opanatomy.capture.memory.record import measured_memory
from opanatomy.capture.memory.saved import ForwardSaves
from opanatomy.capture.memory.snapshots import Snapshots
from opanatomy.capture.memory.step import PROFILER_BYTES, Observed, observe_step
from opanatomy.capture.memory.storages import tensors_in
from opanatomy.capture.model.quiet import first_line
from opanatomy.capture.step.stepper import Stepper
from opanatomy.errors import OutOfMemory
from opanatomy.records.memory import Memory, MemoryFailure
from opanatomy.records.out_of_memory import is_out_of_memory, requested_bytes
from opanatomy.records.workload import Environment, Workload

if TYPE_CHECKING:
    import torch

_WITHOUT_PROFILER: Final = "storages of tensors where it broke; the profiler could not run under the limit"


class StepOutOfMemory(OutOfMemory):
    """A step that does not fit, with the memory as it was when it broke (`None`: no step could begin)."""

    def __init__(self, line: str, memory: Memory | None, workload: Workload, environment: Environment) -> None:
        super().__init__(line)
        self.memory = memory
        self.workload = workload
        self.environment = environment


class _Traceback(Exception):  # no error but the text of one's traceback
    """What is left of the traceback of a failure whose frames are freed."""


def memory_report_of(
    error: BaseException, stepper: Stepper, module: torch.nn.Module, snapshots: Snapshots, *,
    compiled: bool = False, checkpointing: bool = False,
) -> Memory:  # fmt: skip
    """The memory when the step broke with `error`: it is let break once more, under the memory profiler.

    The second try begins as the first did: without gradients, and without what the broken update began to make of the
    optimizer's state. Where it does not run out of memory, `failure.seen` is false and the components are those of that
    step's peak, or of what is left after the failure.
    """
    failure = MemoryFailure(
        phase=stepper.phase, message=first_line(error, 300), requested_bytes=requested_bytes(str(error)), seen=False
    )
    _let_go(error, stepper)
    if stepper.device == "cpu" and not could_have(PROFILER_BYTES):
        return replace(_without_profiler(stepper, module, snapshots), failure=failure)
    try:
        observed = observe_step(stepper, module, snapshots, compiled=compiled, checkpointing=checkpointing)
    except Exception:  # the profiler may not get the threads and the memory that it needs
        stepper.start_again(fresh=False)
        return replace(_without_profiler(stepper, module, snapshots), failure=failure)
    memory = measured_memory(observed, snapshots)
    if observed.error is not None:
        if is_out_of_memory(observed.error):
            failure = _failure_of(observed, observed.error, memory)
        _let_go(observed.error, stepper)
    return replace(memory, failure=failure)


def _without_profiler(stepper: Stepper, module: torch.nn.Module, snapshots: Snapshots) -> Memory:
    """What autograd has saved, and the storages of the rest, where the step breaks; temporary buffers stay unknown."""
    known = [*module.parameters(), *module.buffers(), *tensors_in(stepper.inputs)]
    watch = ForwardSaves(known, snapshots)
    before, stepper.watch = stepper.watch, watch
    try:
        stepper.run()
    except Exception as error:
        found = memory_of(module, stepper.optimizer, watch, None, _WITHOUT_PROFILER, stepper.device)
        _let_go(error, stepper)
        return found
    finally:
        stepper.watch = before
    return memory_of(module, stepper.optimizer, watch, None, _WITHOUT_PROFILER, stepper.device)


def _failure_of(observed: Observed, error: Exception, memory: Memory) -> MemoryFailure:
    return MemoryFailure(
        phase=observed.phase, message=first_line(error, 300), requested_bytes=requested_bytes(str(error)),
        allocated_bytes=memory.peak_bytes, seen=True,
    )  # fmt: skip


def _let_go(error: BaseException, stepper: Stepper) -> None:
    """Free what the frames of the failure hold; its traceback stays as text."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    traceback.clear_frames(error.__traceback__)
    # A frame keeps its function, and that what it closes over: in `Module._call_impl` the arguments of the module.
    error.__traceback__ = error.__context__ = None
    error.__cause__ = _Traceback(f'\n"""\n{text}"""')
    stepper.start_again(fresh=False)
    gc.collect()
    if accelerators.is_accelerator(stepper.device):
        accelerators.empty_cache(stepper.device)
    else:
        give_back()
