"""The wall time of steps without profiler, hooks or observers."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from msgspec.structs import replace

from opanatomy.capture.device.devices import current_device
from opanatomy.capture.device.environment import choose_device
from opanatomy.capture.memory.measurement import limited_to_available
from opanatomy.capture.model.quiet import quiet_libraries
from opanatomy.capture.model.workload import prepare, workload_of
from opanatomy.capture.step.loss_scale import prepared_loss_scale
from opanatomy.capture.step.progress_hooks import NullProgress
from opanatomy.capture.step.recorder import make_stepper
from opanatomy.capture.step.restore import Kept
from opanatomy.capture.step.subject import Subject
from opanatomy.options import RunOptions

#: Steps are repeated until there are so many, or until they have taken so long.
_LEAST_STEPS, _MOST_STEPS, _LONG_NS = 3, 50, 2 * 10**9
#: Steps before, where no number is asked for: the first makes the optimizer's state, the second settles.
_WARMUP: Final = 2


def step_times(options: RunOptions) -> tuple[int, ...]:
    """Times of single steps in nanoseconds, after the warm-up; the model is made anew."""
    device = choose_device(options.device)
    options = replace(options, device=device)
    guard: AbstractContextManager[None] = limited_to_available() if device == "cpu" else nullcontext()
    with current_device(device), guard, quiet_libraries():
        prepared = prepare(options)
        subject = Subject(module=prepared.module, inputs=prepared.inputs, workload=workload_of(prepared, options))
        stepper = make_stepper(subject, options)
        kept = Kept.of(subject.module, subject.inputs, device, weights=options.amp == "fp16")
        prepared_loss_scale(stepper, kept, NullProgress())
        for _ in range(_WARMUP if options.warmup is None else options.warmup):
            stepper.run()
        times: list[int] = []
        while len(times) < _LEAST_STEPS or (sum(times) < _LONG_NS and len(times) < _MOST_STEPS):
            begin = time.perf_counter_ns()
            stepper.run()
            times.append(time.perf_counter_ns() - begin)
    return tuple(times)
