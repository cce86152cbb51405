"""What looking at memory costs a step: ratio of step times, and bytes added to its peak (must be 0)."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("KINETO_LOG_LEVEL", "6")


from opanatomy.capture.memory.measurement import Snapshots
from opanatomy.capture.memory.observer import observe_step
from opanatomy.capture.memory.saved import ForwardSaves
from opanatomy.capture.memory.storages import tensors_in
from opanatomy.capture.model.workload import prepare
from opanatomy.capture.silence import quiet_libraries
from opanatomy.capture.step.stepper import StepObserver, Stepper, make_optimizer
from opanatomy.memory.observed import memory_of_observations
from opanatomy.options import RunOptions
from opanatomy.records.workload import MemoryObservations

ROUNDS = 15
SETTINGS = (("vocab_size", "500"), ("num_hidden_layers", "2"))


def clocked(step: Callable[[], None]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def main() -> None:
    prepared = prepare(
        RunOptions(device="cpu", model="google-bert/bert-base-uncased", batch=4, seq=64, settings=SETTINGS)
    )
    module = prepared.module
    stepper = Stepper(
        module=module,
        parameters=tuple(module.parameters()),
        inputs=prepared.inputs,
        device="cpu",
        optimizer=make_optimizer("adamw", module),
    )
    known = [*module.parameters(), *module.buffers(), *tensors_in(prepared.inputs)]
    plain, watched = StepObserver(), ForwardSaves(known, Snapshots("cpu"))
    times: dict[str, list[float]] = {"plain": [], "hooks and snapshots": []}
    with quiet_libraries():
        stepper.run()
        for _ in range(ROUNDS):
            for name, watch in (("plain", plain), ("hooks and snapshots", watched)):
                stepper.watch = watch
                times[name].append(clocked(stepper.run))
        stepper.watch = plain
        peaks = []
        for hooked in (True, False):
            observed = observe_step(stepper, module, Snapshots("cpu"), compiled=not hooked)
            peaks.append(memory_of_observations(MemoryObservations(step=observed.observations)).peak_bytes or 0)
        deep = clocked(lambda: void(observe_step(stepper, module, Snapshots("cpu"))))
    base = min(times["plain"])
    for name, values in times.items():
        print(f"{name:24} least {min(values) / base:.3f} x, median {statistics.median(values) / base:.3f} x")
    print(f"{'memory step (--memory)':24} {deep / base:.3f} x, without its analysis, once")
    print(f"bytes that hooks and snapshots add to the peak: {peaks[0] - peaks[1]}")


def void(_: object) -> None:
    """Let the result go."""


if __name__ == "__main__":
    main()
