"""A model and what steps it, made anew, for steps that nothing watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from msgspec.structs import replace

from opanatomy.capture.device.devices import current_device
from opanatomy.capture.device.environment import choose_device
from opanatomy.capture.memory.measurement import limited_to_available
from opanatomy.capture.model.quiet import quiet_libraries
from opanatomy.capture.model.workload import Prepared, prepare, workload_of
from opanatomy.capture.step.loss_scale import prepared_loss_scale
from opanatomy.capture.step.progress_hooks import NullProgress
from opanatomy.capture.step.recorder import make_stepper
from opanatomy.capture.step.restore import Kept
from opanatomy.capture.step.stepper import Stepper
from opanatomy.capture.step.subject import Subject
from opanatomy.run_options import RunOptions

if TYPE_CHECKING:
    import torch


@contextmanager
def ready_to_step(
    options: RunOptions, change: Callable[[torch.nn.Module], None] = lambda module: None
) -> Iterator[tuple[Prepared, Stepper]]:
    """The model, after `change`, and its stepper, the loss scale found; on the CPU within the memory that there is."""
    device = choose_device(options.device)
    options = replace(options, device=device)
    guard: AbstractContextManager[None] = limited_to_available() if device == "cpu" else nullcontext()
    with current_device(device), guard, quiet_libraries():
        prepared = prepare(options)
        change(prepared.module)
        subject = Subject(module=prepared.module, inputs=prepared.inputs, workload=workload_of(prepared, options))
        stepper = make_stepper(subject, options)
        kept = Kept.of(subject.module, subject.inputs, device, weights=options.amp == "fp16")
        prepared_loss_scale(stepper, kept, NullProgress())
        yield prepared, stepper
