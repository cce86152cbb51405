"""A whole step observed as on a device, and on the CPU what it holds from before: blocks that go, parts elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from opanatomy.analysis.checks import check_memory
from opanatomy.capture.memory.events import observed_events
from opanatomy.capture.memory.measurement import Snapshots, storages_observed
from opanatomy.capture.memory.observer import Before, ObservedStep, StepSettings, observations_of, observe_step
from opanatomy.capture.memory.saved import saved_tensors
from opanatomy.capture.memory.storages import Holders, optimizer_tensors, tensors_in
from opanatomy.capture.model.workload import prepare
from opanatomy.capture.run import step_runner
from opanatomy.capture.run.recorder import record_step
from opanatomy.capture.silence import quiet_libraries
from opanatomy.capture.step.stepper import Stepper, make_optimizer
from opanatomy.capture.subject import Subject
from opanatomy.memory.observed import memory_of_observations, warnings_of
from opanatomy.options import RunOptions
from opanatomy.records.anatomy import Check
from opanatomy.records.memory import Memory
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import PHASE_RANGE, AllocatorObservation, Workload
from opanatomy.trace.read import read_trace
from tests.allocator import allocation, range_of
from tests.allocator.standin import DEVICE, WORKSPACE, Standin
from tests.memory_steps import memory_of
from tests.tiny import tiny_request

BERT = "google-bert/bert-base-uncased"
VARIANTS: tuple[dict[str, Any], ...] = ({}, {"checkpointing": "non-reentrant"}, {"checkpointing": "reentrant"})


def on_device(
    patch: pytest.MonkeyPatch, *, kind: str = "cuda", lost: tuple[int, ...] = (), **request: Any
) -> tuple[Memory, Standin]:
    """The memory of a tiny model's step as `profile --memory` has it."""
    prepared = prepare(tiny_request(BERT, **request))
    module = prepared.module
    optimizer = make_optimizer("adamw", module)
    stepper = Stepper(
        module=module, parameters=tuple(module.parameters()), inputs=prepared.inputs, device="cpu", optimizer=optimizer
    )

    def held() -> list[torch.Tensor]:
        state, counters = optimizer_tensors(optimizer)
        return [*module.parameters(), *module.buffers(), *tensors_in(prepared.inputs), *state, *counters]

    standin = Standin(held, kind=kind, lost=frozenset(lost))
    with quiet_libraries():
        stepper.run()
        stepper.device = DEVICE
        standin.install(patch)
        observed = observe_step(stepper, module, Snapshots("cpu"), checkpointing=bool(request))
    assert observed.error is None
    return memory_of(observed.observations), standin


def checks_of(memory: Memory) -> dict[str, Check]:
    return {check.quantity: check for check in check_memory(memory)}


@pytest.mark.parametrize(("kind", "variant"), [("hip", {}), *(("cuda", variant) for variant in VARIANTS)])
def test_a_step_on_a_device_is_replayed_to_the_byte(
    kind: str, variant: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a step of ROCm's had no allocation at all."""
    memory, standin = on_device(monkeypatch, kind=kind, **variant)
    sizes = {row.component: row.measured_bytes for row in memory.components}
    assert memory.peak_bytes == standin.peak
    assert sum(row.at_peak_bytes or 0 for row in memory.components) == standin.peak
    assert sizes["blas_workspace"] == WORKSPACE[1]
    assert (sizes["forward_activations"] or 0) > 0
    for check in checks_of(memory).values():
        assert (check.equal, check.not_checked) == (check.compared, None)
    assert checks_of(memory)["allocated bytes"].compared > 100
    assert warnings_of(memory) == ()


@pytest.mark.parametrize("number", [0, 41, 90])
def test_an_event_that_the_profiler_loses_is_told(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, _ = on_device(monkeypatch, lost=(number,))
    assert checks_of(memory)["allocated bytes"].unexplained
    assert any("the allocator's total differs from the replayed blocks" in doubt for doubt in warnings_of(memory))


def test_no_event_at_all_is_said_and_no_component_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `torch.cuda.caching_allocator_enable(False)`: before, a step that allocated nothing."""
    memory, standin = on_device(monkeypatch, lost=tuple(range(100_000)))
    assert memory.peak_bytes == standin.peak
    assert memory.timeline == memory.blocks == ()
    assert {row.at_peak_bytes for row in memory.components} == {None}
    assert memory.notes == (
        "what is live at the peak of cuda:0 is not known: torch's allocator reported no allocation of cuda:0 to the"
        " profiler",
    )
    assert checks_of(memory)["allocated bytes"].not_checked == "no event of the step says the allocator's total"


def test_a_capture_without_blocks_keeps_what_is_known_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a backend that refuses its snapshot ended the capture."""
    allocator = AllocatorObservation(
        name="memory pool", backend="cudaMallocAsync", peak_bytes=7, why_no_blocks="cudaMallocAsync reports no blocks"
    )

    def untold(*arguments: Any, **options: Any) -> ObservedStep:
        step = observe_step(*arguments, **options).observations
        return ObservedStep(observations=replace(step, device="cuda:0", allocator=allocator))

    monkeypatch.setattr(step_runner, "observe_step", untold)
    prepared = prepare(tiny_request(BERT))
    subject = Subject(module=prepared.module, inputs=prepared.inputs, workload=Workload())
    record_step(subject, RunOptions(memory=True, optimizer="adamw", steps=1), tmp_path / "step.json.gz")
    capture = read_trace(tmp_path / "step.json.gz").capture
    assert capture is not None
    memory = memory_of_observations(capture.memory)
    assert {row.component for row in memory.components} >= {"weights", "gradients", "forward_activations"}
    assert memory.measured_by == "resident set of the process"
    assert memory.allocator is not None
    assert (memory.allocator.device, memory.allocator.backend) == ("cuda:0", "cudaMallocAsync")
    assert (memory.allocator.peak_bytes, memory.allocator.before_blocks_bytes) == (7, None)
    assert memory.notes == ("cudaMallocAsync reports no blocks",)
    assert checks_of(memory)["memory peak"].compared == 0


# ----------------------------------------------------------------------------------------------------------- on the CPU


class Remembers(torch.nn.Module):
    """Keeps what it was given last in a buffer, in the place of what it was given before."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("last", torch.zeros(1_000, 8))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        doubled = self.linear(values)
        self.last = doubled.detach().clone()
        return doubled


def of_module(module: torch.nn.Module, *inputs: torch.Tensor, steps: int = 2) -> Memory:
    stepper = Stepper(module=module, parameters=tuple(module.parameters()), inputs=inputs, device="cpu", inference=True)
    with quiet_libraries():
        for _ in range(steps):
            stepper.run()
        observed = observe_step(stepper, module, Snapshots("cpu"))
    assert observed.error is None
    return memory_of(observed.observations, module=module)


def test_a_buffer_that_each_step_replaces_is_freed() -> None:
    """Before, the step seemed to leave 32,000 B more than it found."""
    memory = of_module(Remembers(), torch.ones(1_000, 8))
    assert memory.timeline[-1].allocated_bytes == memory.timeline[0].allocated_bytes
    assert memory.timeline[-1].components["buffers"] == memory.timeline[0].components["buffers"] == 32_000
    assert all(check.equal == check.compared for check in check_memory(memory))


def test_what_another_thread_frees_is_ended_when_its_address_is_given_again() -> None:
    """Before, all blocks were live: 300 B. The CPU does not count that free, so that its total differs for a cause."""
    forward = range_of(PHASE_RANGE + Phase.FORWARD, 0, 40)
    forward.children += [
        allocation(
            {"start_time_ns": at, "device_type": "cpu", "device_index": -1, "ptr": 4_096, "alloc_size": 100,
             "total_allocated": total, "total_reserved": 0}
        )
        for at, total in ((10, 100), (20, 200), (30, 300))
    ]  # fmt: skip
    events = observed_events([forward], "cpu", frozenset())
    memory = memory_of(observations_of(events, Before(storages={}), StepSettings(), "cpu"))
    assert memory.peak_bytes == 100
    assert memory.allocator is not None
    assert memory.allocator.unseen_frees == 2
    (difference,) = checks_of(memory)["allocated bytes"].differences
    assert difference.cause is not None
    assert [doubt for doubt in warnings_of(memory) if "2 blocks of the step were freed without" not in doubt] == []


def test_parts_of_a_module_elsewhere_are_named() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4, device="meta"))
    module.forward = module[0].forward  # type: ignore[method-assign]
    memory = of_module(module, torch.ones(2, 4))
    assert memory.uncovered_devices == ("meta",)
    assert "parts of the module are on meta: the memory is that of cpu alone" in memory.notes
    assert next(row for row in memory.components if row.component == "weights").measured_bytes == 80


def test_components_are_those_of_the_device_of_the_peak() -> None:
    """Before, the weights of all devices stood next to the peak of one: 160 B and 40 B of buffers."""
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4, device="meta"))
    module.register_buffer("here", torch.zeros(5))
    module.register_buffer("there", torch.zeros(5, device="meta"))
    observations = storages_observed(Holders(device="cpu", modules=(module,)))
    assert observations.storage_bytes == {"weights": 80, "buffers": 20}
    assert (observations.parameter_bytes, observations.trainable_bytes) == (80, 80)


def test_what_is_saved_elsewhere_is_not_saved_here() -> None:
    values = torch.ones(4, 4, requires_grad=True)
    elsewhere = torch.ones(4, 4, device="meta", requires_grad=True)
    with saved_tensors((values, elsewhere), "cpu") as saved:
        kept = (values.exp(), elsewhere.exp())
    assert saved.storages.live_bytes() == 64
    del kept
