"""The options of a run -> what one of its steps would call and allocate, without its weights and without running it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from opanatomy.capture.device.environment import choose_device
from opanatomy.capture.memory.before import Before, components_before
from opanatomy.capture.memory.events import Mark
from opanatomy.capture.memory.holders import holders_of
from opanatomy.capture.memory.measurement import element_bytes
from opanatomy.capture.memory.snapshots import Snapshots
from opanatomy.capture.memory.step import MemoryObserver, StepSettings, observations_of, rng_bytes
from opanatomy.capture.memory.storages import Storages, storages_of
from opanatomy.capture.model.quiet import quiet_libraries
from opanatomy.capture.model.shape import shape_of
from opanatomy.capture.model.user_file import said_by
from opanatomy.capture.model.workload import prepare, workload_of
from opanatomy.capture.step.recorder import make_stepper
from opanatomy.capture.step.stepper import Stepper
from opanatomy.capture.step.subject import Subject
from opanatomy.errors import EstimateError, OpanatomyError
from opanatomy.estimate.fake import fake_tensors
from opanatomy.estimate.recording import Recording, recording
from opanatomy.records.memory_observations import AllocatorObservation, MarkKind, MemoryObservations, TensorType
from opanatomy.records.simulated import SimulatedCall, SimulatedStep
from opanatomy.run_options import RunOptions

if TYPE_CHECKING:
    import torch

#: The allocator that the observations name.
ALLOCATOR: Final = "fake tensors"


def simulate(options: RunOptions) -> SimulatedStep:
    """The second step of the run, on fake tensors: the first makes what later ones find (the optimizer's state).

    Raises `EstimateError` where the step cannot run without values, and says why.
    """
    if options.compile:
        raise EstimateError("what torch.compile calls and keeps is decided when it compiles - measure it")
    device = choose_device(options.device)
    options = replace(options, device=device)
    try:
        with fake_tensors(), quiet_libraries():
            return _simulated(options)
    except OpanatomyError:
        raise
    except Exception as error:
        raise EstimateError(f"the step cannot run on fake tensors: {said_by(error)} - see --debug") from error


def _simulated(options: RunOptions) -> SimulatedStep:
    prepared = prepare(options)
    module = prepared.module
    subject = Subject(module=module, inputs=prepared.inputs, workload=workload_of(prepared, options))
    stepper = make_stepper(subject, options)
    with recording(module, options.device, lambda: stepper.phase) as record:
        for tensor in _there(stepper, module):
            record.hold(tensor)
        stepper.run()
        stepper.free_gradients()
        if prepared.texts is not None:
            stepper.take(prepared.texts.longest)
        memory = _second_step(stepper, module, record, options)
        calls = record.simulated_calls()
        batches: tuple[tuple[SimulatedCall, ...], ...] = ()
        if prepared.texts is not None:
            batches = tuple(_calls_on(batch, stepper, record) for batch in prepared.texts.batches)
            calls = batches[prepared.texts.observed.profiled]
    return SimulatedStep(workload=subject.workload, device=options.device, calls=calls, memory=memory, batches=batches)


def _calls_on(batch: dict[str, Any], stepper: Stepper, record: Recording) -> tuple[SimulatedCall, ...]:
    """The calls of a step on another batch."""
    stepper.take(batch)
    record.start_calls()
    stepper.run()
    return record.simulated_calls()


def _there(stepper: Stepper, module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """What is allocated before the first step."""
    for tensors in components_before(holders_of(stepper, module)).values():
        yield from tensors


def _second_step(
    stepper: Stepper, module: torch.nn.Module, record: Recording, options: RunOptions
) -> MemoryObservations:
    """Run the step and note its memory as the observation of a real one does."""
    tensors = components_before(holders_of(stepper, module))
    earlier = Before(storages={name: storages_of(some, options.device) for name, some in tensors.items()})
    observer = SimulatedObserver(
        lambda: holders_of(stepper, module), options.device, Snapshots(options.device),
        hooked=not options.inference, record=record,
    )  # fmt: skip
    stepper.watch = observer
    record.start(frozenset(earlier.storages["weights"]))
    stepper.run()
    observer.end()
    settings = StepSettings(
        autocast=options.amp is not None,
        checkpointing=bool(options.checkpointing),
        rng_bytes=rng_bytes(options.device) if options.checkpointing else None,
    )
    allocator = AllocatorObservation(name=ALLOCATOR)
    parameters = list(module.parameters())
    return MemoryObservations(
        device=options.device,
        parameter_bytes=element_bytes(parameters),
        trainable_bytes=element_bytes(parameter for parameter in parameters if parameter.requires_grad),
        shape=shape_of(module, options.device),
        step=observations_of(record.events(), earlier, settings, options.device, allocator),
    )


class SimulatedObserver(MemoryObserver):
    """Notes its marks in a recording, not in a profile."""

    def __init__(self, *args: Any, record: Recording, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.record = record

    def saved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note what autograd saves; what is asked of it for that is no call of the step."""
        self.record.paused = True
        try:
            return super().saved(tensor)
        finally:
            self.record.paused = False

    def _mark(self, kind: MarkKind, storages: Storages | None = None, tensor: TensorType | None = None) -> None:
        self.record.mark(Mark(kind=kind, storages=storages or {}, tensor=tensor))
