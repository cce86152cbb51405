"""A step that was observed -> its memory, as a capture and its analysis have it."""

from __future__ import annotations

import msgspec
import torch

from opanatomy.capture.memory.measurement import Snapshots
from opanatomy.capture.memory.observer import ObservedStep
from opanatomy.capture.memory.storages import other_devices
from opanatomy.memory.allocations import Curve, curve_of
from opanatomy.memory.observed import MeasuredStep, held_of, measured_step, memory_of_observations, table_of
from opanatomy.records.memory import Memory
from opanatomy.records.workload import MemoryObservations, StepObservations


def memory_of(
    step: StepObservations, snapshots: Snapshots | None = None, module: torch.nn.Module | None = None
) -> Memory:
    """The memory of the step, its observations written and read as in a trace."""
    observations = MemoryObservations(
        device=step.device,
        snapshots=() if snapshots is None else snapshots.taken,
        notes=() if snapshots is None else tuple(snapshots.notes),
        other_devices=() if module is None else other_devices(module, step.device),
        step=step,
    )
    return memory_of_observations(msgspec.json.decode(msgspec.json.encode(observations), type=MemoryObservations))


def memory_of_observed(observed: ObservedStep) -> Memory:
    """The memory of a step that ran through."""
    assert observed.error is None
    return memory_of(observed.observations)


def measured(step: StepObservations) -> MeasuredStep:
    """The blocks of the step."""
    return measured_step(step, table_of(step), held_of(step))


def curve(of_step: MeasuredStep) -> Curve:
    """The bytes of each component over the step."""
    time_ns = of_step.table.events.time_ns
    return curve_of(of_step.blocks, of_step.shares(), time_ns, (0, int(time_ns.max(initial=0))))
