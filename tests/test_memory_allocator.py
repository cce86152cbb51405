"""The replay of a step on a device against the allocator's own figures: recordings in torch's formats, faults planted
in them, backends that tell less."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch._C._profiler import _EventType

from opanatomy.analysis.checks import check_memory, require_agreement
from opanatomy.capture.device import nvml
from opanatomy.capture.memory.events import observed_events
from opanatomy.capture.memory.measurement import (
    AllocatedBlock,
    DeviceAllocator,
    Snapshots,
    why_no_blocks,
    workspace_sizes,
)
from opanatomy.capture.memory.observer import Before, StepSettings, block_columns, observations_of, storage_columns
from opanatomy.capture.silence import quiet_libraries
from opanatomy.errors import GateError
from opanatomy.memory.components import COMPONENTS
from opanatomy.memory.observed import Held, held_of, warnings_of
from opanatomy.records.anatomy import Check
from opanatomy.records.memory import AllocatorFigures, Memory
from opanatomy.records.workload import AllocatorObservation, StepObservations
from opanatomy.report import terminal_report
from opanatomy.trace.read import read_trace
from tests import anatomies, memory_steps
from tests.allocator import TELLING, Recording, load
from tests.allocator.record import recorded

MIB = 1 << 20
SHARED = Path(__file__).parents[2] / "shared" / "traces"


def observed(recording: Recording) -> StepObservations:
    """As `observe_step` puts it together, of a recording in place of a step."""
    allocator = DeviceAllocator(recording.device)
    earlier = Before(
        storages=recording.storages, blocks=allocator.blocks(), allocated_bytes=allocator.allocated_bytes(),
        workspaces=allocator.workspaces(),
    )  # fmt: skip
    assert earlier.blocks is not None
    events = observed_events(recording.roots(), recording.device, frozenset())
    return observations_of(events, earlier, StepSettings(), recording.device)


def memory_of(recording: Recording) -> Memory:
    return memory_steps.memory_of(observed(recording))


def parts_of(held: Held) -> list[tuple[tuple[str, int], ...]]:
    """The components and bytes in each block."""
    return [
        tuple(
            (COMPONENTS[component], size)
            for component, size in zip(
                held.part_component[held.part_block == block].tolist(),
                held.part_bytes[held.part_block == block].tolist(), strict=True,
            )
        )
        for block in range(len(held.address))
    ]  # fmt: skip


def sizes_of(held: Held) -> dict[str, int]:
    return {component: held.component_bytes(component) for component in COMPONENTS}


def hand_made(name: str) -> pytest.MarkDecorator:
    """For a test with the figures of the hand-made recording of that name, which a device's does not have."""
    return pytest.mark.skipif(not load(name).content["hand_made"], reason="the recording is a device's own")


def checks_of(memory: Memory) -> dict[str, Check]:
    return {check.quantity: check for check in check_memory(memory)}


@pytest.fixture(params=TELLING)
def recording(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Recording:
    return load(request.param).installed(monkeypatch)


# -------------------------------------------------------------------------------------------------- what is recorded


def test_the_replayed_peak_is_the_allocators(recording: Recording) -> None:
    """Before, blocks held before the step were never freed: 3,002,368 B too much on the native allocator."""
    memory = memory_of(recording)
    assert memory.peak_bytes == recording.done["max_memory_allocated"]
    assert sum(row.at_peak_bytes or 0 for row in memory.components) == memory.peak_bytes
    for check in checks_of(memory).values():
        assert check.compared == check.equal > 0
        assert not check.differences
    assert checks_of(memory)["allocated bytes"].compared == sum(
        event["device_index"] == 0 for event in recording.events
    )


@hand_made("native")
def test_a_free_of_a_block_from_before_lowers_the_total(monkeypatch: pytest.MonkeyPatch) -> None:
    step = memory_steps.measured(observed(load("native").installed(monkeypatch)))
    ended = np.flatnonzero(step.blocks.from_before & (step.blocks.free < step.blocks.events))
    parts = parts_of(step.held)
    assert [parts[block] for block in ended] == [
        (("buffers", 2_000), ("allocator_rounding", 48)), (("held_before", 3_000_320),),
    ]  # fmt: skip
    assert step.reported[ended].all()
    assert len(step.blocks.unmatched) == 0


@hand_made("native")
def test_blocks_before_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = sizes_of(held_of(observed(load("native").installed(monkeypatch))))
    rounding = (12_582_912 - 12_000_000) + (512 - 96) + (2_048 - 2_000) + (1_024 - 1_000)
    assert sizes["weights"] == 12_000_096
    assert sizes["blas_workspace"] == 8_519_680
    assert sizes["held_before"] == 3_000_320
    assert sizes["allocator_rounding"] == rounding
    # A block that waits for a stream (1,536 B) is no longer handed out, and the segment of cuda:1 is not ours.
    assert sum(sizes.values()) == 24_106_496


@hand_made("hip")
def test_the_workspaces_of_rocm_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, only sizes of cuBLAS were known: 213,909,504 B of hipBLAS and hipBLASLt were `held_before`."""
    sizes = sizes_of(held_of(observed(load("hip").installed(monkeypatch))))
    assert sizes["blas_workspace"] == 128 * MIB + 76 * MIB
    assert sizes["held_before"] == 3_000_320


def test_events_of_rocm_are_of_the_device_that_torch_calls_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, none of its events was found."""
    recording = load("hip").installed(monkeypatch)
    assert {event["device_type"] for event in recording.events} == {"hip", "cpu"}
    assert observed_events(recording.roots(), "cuda:0", frozenset()).allocations == len(recording.events) - 1
    assert observed_events(recording.roots(), "cuda:1", frozenset()).allocations == 0
    assert memory_of(recording).measured_by == "HIP caching allocator of cuda:0, every allocation of one step"


# ------------------------------------------------------------------------------------------------------ planted faults


def largest_freed(recording: Recording) -> tuple[int, int, int]:
    """The places of the allocation and the free of the largest block that comes and goes in the step, and its bytes."""
    pairs = []
    given: dict[int, tuple[int, int]] = {}
    for place, event in enumerate(recording.events):
        if event["device_index"] == 0 and event["alloc_size"] > 0:
            given[event["ptr"]] = place, event["alloc_size"]
        elif event["device_index"] == 0 and event["ptr"] in given:
            begin, size = given.pop(event["ptr"])
            pairs.append((size, begin, place))
    size, begin, end = max(pairs)
    return begin, end, size


def without(recording: Recording, place: int) -> Recording:
    """The recording less the event there."""
    return replace(recording, events=[*recording.events[:place], *recording.events[place + 1 :]])


def test_a_lost_allocation_is_told(recording: Recording) -> None:
    place, _, size = largest_freed(recording)
    memory = memory_of(without(recording, place))
    (difference,) = checks_of(memory)["allocated bytes"].unexplained
    assert abs((difference.other or 0) - (difference.ours or 0)) == size
    assert memory.allocator is not None
    assert memory.allocator.largest_difference_bytes == size
    assert memory.allocator.equal_events < memory.allocator.checked_events


def test_a_lost_free_is_told_and_shows_in_the_peak(recording: Recording) -> None:
    _, place, size = largest_freed(recording)
    memory = memory_of(without(recording, place))
    assert checks_of(memory)["allocated bytes"].unexplained
    (peak,) = checks_of(memory)["memory peak"].unexplained
    own, replayed_peak = recording.done["max_memory_allocated"], memory.peak_bytes
    assert (peak.ours, peak.other) == (replayed_peak, own)
    assert (replayed_peak or 0) - own == size
    assert warnings_of(memory)[0] == (
        f"memory of cuda:0: the allocator's own peak of the step is {own:,} B, its replayed allocations have"
        f" {replayed_peak:,} B: components and curve are off by the difference"
    )


def test_a_peak_that_is_not_the_allocators_stands_before_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = load("native").installed(monkeypatch)
    memory = memory_of(without(recording, largest_freed(recording)[1]))
    text = terminal_report(replace(anatomies.nothing(), memory=memory, checks=check_memory(memory)), width=100)
    row = next(line for line in text.splitlines() if "memory peak" in line)
    assert f"{(memory.peak_bytes or 0) / 1e6:.1f} MB here" in row
    assert f"{recording.done['max_memory_allocated'] / 1e6:.1f} MB by torch.cuda.max_memory_allocated" in row
    with pytest.raises(GateError, match=r"check: 2 figures are not confirmed; the first: allocated bytes of cuda:0"):
        require_agreement(replace(anatomies.nothing(), checks=check_memory(memory)))


@hand_made("native")
def test_a_block_before_that_the_snapshot_lacks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = load("native").installed(monkeypatch)
    segments = recording.content["before"]["segments"]
    fewer = [segment for segment in segments if segment["total_size"] != 12_582_912]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: fewer)
    memory = memory_of(recording)
    (before,) = checks_of(memory)["allocated before the step"].unexplained
    assert (before.other or 0) - (before.ours or 0) == 12_582_912
    (peak,) = checks_of(memory)["memory peak"].unexplained
    assert (peak.other or 0) - (peak.ours or 0) == 12_582_912
    assert "12,000,000 B of the model, its state and inputs are not from the allocator" in memory.notes[0]


@hand_made("native")
def test_an_address_given_again_ends_the_block_that_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the bytes of the block that was there stayed for ever: 2,048 B of a buffer that every step makes."""
    recording = load("native").installed(monkeypatch)
    lost = without(recording, [event["alloc_size"] for event in recording.events].index(-2_048))
    step = memory_steps.measured(observed(lost))
    (again,) = np.flatnonzero(step.blocks.from_before & (step.blocks.free < step.blocks.events) & ~step.reported)
    assert step.blocks.bytes[again] == 2_048
    assert memory_of(lost).peak_bytes == recording.done["max_memory_allocated"]


# ------------------------------------------------------------------------------------------------- real devices' events

REAL = {
    "infer_h100_bert_small.json.gz": ("cuda:0", 1, 218),
    "infer_mi300_qwen1.5_0.5b.json.gz": ("cuda:0", 6, 2_588),
    "train_mi300_normalization_layers.json.gz": ("cuda:0", 6, 415),
    "train_v100_ddp_rank1of2_memory.json.gz": ("cuda:1", 1, 26_770),
}  # fmt: skip


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared traces are not here")
@pytest.mark.parametrize("name", REAL)
def test_what_real_devices_recorded_is_replayed_to_their_totals(name: str) -> None:
    """The events of H100, MI300 (type `hip`) and V100, read from traces: every total of theirs is ours."""
    device, kind, count = REAL[name]
    events = read_trace(SHARED / name).memory
    number = int(device[-1])
    rows = np.flatnonzero((events.device_type == kind) & (events.device == number))
    rows = rows[np.argsort(events.time_ns[rows], kind="stable")].tolist()
    called = SimpleNamespace(type={1: "cuda", 6: "hip"}[kind], index=number)
    roots = [
        SimpleNamespace(
            name="[memory]", tag=_EventType.Allocation, start_time_ns=int(events.time_ns[row]), children=[],
            extra_fields=SimpleNamespace(
                device=called, ptr=int(events.address[row]), alloc_size=int(events.bytes[row]),
                total_allocated=int(events.total_allocated[row]), total_reserved=int(events.total_reserved[row]),
            ),
        )
        for row in rows
    ]  # fmt: skip
    before = int(events.total_allocated[rows[0]] - events.bytes[rows[0]])
    earlier = Before(storages={}, blocks=(AllocatedBlock(address=1, bytes=before),), allocated_bytes=before)
    found = observed_events(roots, device, frozenset())
    memory = memory_steps.memory_of(observations_of(found, earlier, StepSettings(), device))
    assert memory.allocator is not None
    assert (memory.allocator.checked_events, memory.allocator.equal_events) == (count, count)
    assert memory.peak_bytes == max(int(events.total_allocated[rows].max()), before)
    assert sum(row.at_peak_bytes or 0 for row in memory.components) == memory.peak_bytes


# -------------------------------------------------------------------------------------------------- blocks and storages


def held_in(blocks: tuple[AllocatedBlock, ...], storages: dict[str, dict[int, int]], workspace: int) -> Held:
    nothing = observed_events((), "cuda:0", frozenset())
    allocator = AllocatorObservation(name="", workspace_bytes=(workspace,))
    step = StepObservations(
        device="cuda:0", events=nothing.events, contexts=nothing.contexts, marks=nothing.marks, phases=(),
        storages=storage_columns(storages), blocks=block_columns(blocks), allocator=allocator,
    )  # fmt: skip
    return held_of(step)


def test_storages_that_share_a_block_and_those_in_none() -> None:
    blocks = (AllocatedBlock(address=1_000, bytes=512), AllocatedBlock(address=4_096, bytes=1_024, requested_bytes=900))
    storages = {"weights": {1_000: 100, 1_200: 300, 9_000: 70}, "buffers": {4_096: 900, 4_100: 800}}
    held = held_in(blocks, storages, 900)
    assert parts_of(held) == [
        (("weights", 100), ("weights", 300), ("allocator_rounding", 112)), (("buffers", 900), ("buffers", 124)),
    ]  # fmt: skip
    assert held.outside_bytes == 70


def test_a_workspace_is_known_by_what_was_asked_for() -> None:
    """A block reused for it can be larger than it: the remainder below 1 MiB is not split off."""
    block = AllocatedBlock(address=0, bytes=33 * MIB, requested_bytes=32 * MIB)
    assert parts_of(held_in((block,), {}, 32 * MIB)) == [(("blas_workspace", 33 * MIB),)]


# ---------------------------------------------------------------------------------------------------------- workspaces


@pytest.mark.parametrize(
    ("architecture", "environment", "sizes"),
    [
        (8, {}, {8_519_680, MIB}),
        (7, {}, {8_519_680, MIB}),
        (9, {}, {32 * MIB, MIB}),
        (10, {}, {32 * MIB, MIB}),
        (12, {}, {32 * MIB, MIB}),
        (None, {}, {8_519_680, MIB}),
        (8, {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, {32 * MIB, MIB}),
        (9, {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, {128 << 10, MIB}),
        (8, {"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"}, {8_519_680, MIB}),
        (8, {"CUBLAS_WORKSPACE_CONFIG": "nonsense"}, {8_519_680, MIB}),
        (8, {"CUBLAS_WORKSPACE_CONFIG": ":0:0"}, {MIB}),
        (9, {"CUBLASLT_WORKSPACE_SIZE": "4096"}, {32 * MIB, 4 * MIB}),
        (9, {"CUBLASLT_WORKSPACE_SIZE": "64 KiB"}, {32 * MIB, 64 << 10}),
        (9, {"CUBLASLT_WORKSPACE_SIZE": "large"}, {32 * MIB, MIB}),
        (9, {"HIPBLASLT_WORKSPACE_SIZE": "4096"}, {32 * MIB, MIB}),
        ("gfx90a:sramecc+:xnack-", {}, {32 * MIB, 76 * MIB, MIB}),
        ("gfx942", {}, {128 * MIB, 76 * MIB, 32 * MIB, MIB}),
        ("gfx950", {"HIPBLASLT_WORKSPACE_SIZE": "1024"}, {128 * MIB, MIB}),
        ("gfx942", {"ROCBLAS_WORKSPACE_CONFIG": ":1024:2"}, {2 * MIB, 76 * MIB, 32 * MIB, MIB}),
        ("gfx942", {"HIPBLAS_WORKSPACE_CONFIG": ":1024:1", "ROCBLAS_WORKSPACE_CONFIG": ":9:9"},
         {MIB, 76 * MIB, 32 * MIB}),
    ],
)  # fmt: skip
def test_sizes_of_workspaces_are_torchs_rules(
    architecture: str | int | None, environment: dict[str, str], sizes: set[int]
) -> None:
    assert workspace_sizes(architecture, environment) == sizes


def test_torch_is_asked_where_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.backends.cuda.cublas_workspace_size(size)` sets another one, which no variable says."""
    load("native").installed(monkeypatch)
    monkeypatch.setattr(torch.backends.cuda, "cublas_workspace_size", lambda: 5 * MIB)
    monkeypatch.setattr(torch.backends.cuda, "cublaslt_workspace_size", lambda: 3 * MIB)
    assert DeviceAllocator("cuda:0").workspaces() == {5 * MIB, 3 * MIB}


# ------------------------------------------------------------------------------------------ backends that tell less


def _refuse(*_: Any) -> Any:
    raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.")


@pytest.mark.parametrize("variable", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_cuda_malloc_async_tells_its_totals_alone(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, its refusal of a snapshot ended the capture."""
    recording = load("cuda_malloc_async").installed(monkeypatch)
    allocator = DeviceAllocator("cuda:0")
    assert allocator.blocks() is None
    assert allocator.backend == "cudaMallocAsync"
    assert allocator.peak_bytes() == recording.done["max_memory_allocated"]
    unknown = "what is live at the peak of cuda:0 is not known: cudaMallocAsync reports no blocks - "
    assert why_no_blocks(allocator) == f"{unknown}run with the native backend"
    monkeypatch.setenv(variable, "max_split_size_mb:64,backend:cudaMallocAsync")
    assert why_no_blocks(allocator) == f"{unknown}take backend:cudaMallocAsync out of {variable}"


def test_a_plugged_in_allocator_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    load("native").installed(monkeypatch)
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "memory_snapshot"):
        monkeypatch.setattr(torch.cuda, name, _refuse)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "pluggable")
    allocator = DeviceAllocator("cuda:0")
    assert (allocator.allocated_bytes(), allocator.peak_bytes(), allocator.blocks()) == (None, None, None)
    assert "plugged into torch" in why_no_blocks(allocator)
    points = Snapshots("cuda:0")
    points.take("weights")
    assert points.taken[0].reserved_bytes is None


def test_without_caching_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, a peak of 0 B: c10's `uncached_allocate` counts nothing."""
    load("native").installed(monkeypatch)
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 0)
    allocator = DeviceAllocator("cuda:0")
    assert allocator.backend == "uncached"
    assert (allocator.allocated_bytes(), allocator.peak_bytes(), allocator.blocks()) == (None, None, None)
    assert "unset PYTORCH_NO_CUDA_MEMORY_CACHING" in why_no_blocks(allocator)


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="torch is built with CUDA")
def test_a_build_without_cuda_has_no_figures_of_0() -> None:
    """`torch.cuda.memory_allocated` is 0 there."""
    allocator = DeviceAllocator("cuda:0")
    assert (allocator.backend, allocator.allocated_bytes(), allocator.peak_bytes()) == (None, None, None)
    assert allocator.blocks() is None
    assert why_no_blocks(allocator).endswith("torch has no snapshot of its allocator")


def test_a_peak_that_was_not_replayed_is_not_compared() -> None:
    figures = AllocatorFigures(device="cuda:0", backend="cudaMallocAsync", peak_bytes=100, before_bytes=10)
    checks = checks_of(Memory(peak_bytes=100, allocator=figures))
    assert checks["memory peak"].compared == 0
    assert checks["memory peak"].not_checked == "the allocator of cuda:0 (cudaMallocAsync) reports no blocks to replay"
    assert checks["allocated bytes"].not_checked == "no event of the step says the allocator's total"
    assert "allocated before the step" not in checks


def test_the_cpus_allocator_keeps_no_peak() -> None:
    figures = AllocatorFigures(device="cpu", backend="cpu", checked_events=7, equal_events=7)
    checks = checks_of(Memory(peak_bytes=100, allocator=figures))
    assert checks["memory peak"].not_checked == "torch's CPU allocator keeps no peak of its own"
    assert (checks["allocated bytes"].compared, checks["allocated bytes"].equal) == (7, 7)


# --------------------------------------------------------------------------------------------------- renewing, NVML


def _keys(rows: list[dict[str, Any]]) -> set[str]:
    return {key for row in rows for key in row}


def test_what_a_device_would_record_has_the_form_of_the_hand_made(monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = load("native").installed(monkeypatch)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a device")
    with quiet_libraries():
        content = json.loads(json.dumps(recorded("cpu")))
    assert content.keys() == by_hand.content.keys()
    assert content["before"].keys() == by_hand.content["before"].keys()
    assert content["storages"].keys() == by_hand.content["storages"].keys()
    assert _keys(content["events"]) == _keys(by_hand.events)
    assert [name for name, _, _ in content["phases"]] == ["forward", "backward", "optimizer"]
    events = observed_events(Recording(content, content["events"]).roots(), "cpu", frozenset())
    assert events.allocations == len(content["events"]) > 10


def points_of(
    patch: pytest.MonkeyPatch, answer: nvml.Answer, *, context: bool = False, device: str = "cuda:1"
) -> Snapshots:
    asked: list[int] = []
    patch.setattr(nvml, "answer", lambda index: (asked.append(index), answer)[1])
    patch.setattr(torch.cuda, "is_initialized", lambda: True)
    patch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda index: context, raising=False)
    for name in ("synchronize", "empty_cache"):
        patch.setattr(torch.cuda, name, lambda *_: None)
    for name, size in (("memory_allocated", 512), ("memory_reserved", 2_097_152)):
        patch.setattr(torch.cuda, name, lambda device, size=size: size)
    patch.setattr(torch, "empty", lambda *_, device: None)
    points = Snapshots(device)
    points.start()
    assert set(asked) == {1}
    return points


def test_nvml_is_asked_by_the_device_of_torch_and_tells_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, by NVML's own number, which is another card where CUDA orders them otherwise."""
    device = nvml.NvmlDevice(
        uuid="GPU-1", name="A100", used_bytes=9_000, total_bytes=10_000, process_bytes=3_000, mig=False
    )
    points = points_of(monkeypatch, nvml.Answer(device=device))
    assert [(one.name, one.nvml_used_bytes, one.nvml_process_bytes) for one in points.taken] == [
        ("before_the_device", 9_000, 3_000), ("context", 9_000, 3_000),
    ]  # fmt: skip
    assert points.notes == []


def test_a_context_that_is_there_already_is_not_what_others_used(monkeypatch: pytest.MonkeyPatch) -> None:
    device = nvml.NvmlDevice(uuid="GPU-1", name="A100", used_bytes=9, total_bytes=10, process_bytes=None, mig=False)
    points = points_of(monkeypatch, nvml.Answer(device=device), context=True)
    assert [one.name for one in points.taken] == ["context"]


def test_why_nvml_does_not_answer_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    points = points_of(monkeypatch, nvml.Answer(why_not="NVML knows no AMD device"))
    assert points.notes == [
        "what of cuda:1 is occupied is not known, nor the device's context: NVML knows no AMD device"
    ]
    assert {one.nvml_used_bytes for one in points.taken} == {None}
