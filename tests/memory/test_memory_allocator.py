"""The replay of a step on a device against the allocator's own figures, which is not here: recordings in torch's
formats, faults planted in them, backends that tell less."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from msgspec.structs import replace

from opanatomy.capture.device import nvml
from opanatomy.capture.memory.events import observed_events
from opanatomy.capture.memory.measurement import DeviceAllocator, Snapshots, why_no_blocks, workspace_sizes
from opanatomy.capture.memory.observer import Before, StepSettings, observations_of
from opanatomy.checks.counts import check_memory, require_agreement
from opanatomy.errors import GateError
from opanatomy.memory.observed import memory_of_observations, warnings_of
from opanatomy.records.anatomy import Check
from opanatomy.records.memory import Memory
from opanatomy.records.workload import MemoryObservations
from opanatomy.report import terminal_report
from opanatomy.report.units import size as size_text
from tests.allocator import TELLING, Recording, load
from tests.support import anatomies

MIB = 1 << 20


def memory_of(recording: Recording) -> Memory:
    """The memory of the step, its observations put together, written and read as those of a capture."""
    allocator = DeviceAllocator(recording.device)
    before = Before(
        storages=recording.storages,
        blocks=allocator.blocks(),
        allocated_bytes=allocator.allocated_bytes(),
        workspaces=allocator.workspaces(),
    )
    events = observed_events(recording.roots(), recording.device, frozenset())
    step = observations_of(events, before, StepSettings(), recording.device)
    observations = MemoryObservations(device=recording.device, step=step)
    return memory_of_observations(msgspec.json.decode(msgspec.json.encode(observations), type=MemoryObservations))


def checks_of(memory: Memory) -> dict[str, Check]:
    return {check.quantity: check for check in check_memory(memory)}


def at_peak(memory: Memory) -> dict[str, int | None]:
    return {row.component: row.at_peak_bytes for row in memory.components}


@pytest.fixture(params=TELLING)
def recording(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Recording:
    return load(request.param).installed(monkeypatch)


# ------------------------------------------------------------------------------------------------------- the replay


def test_the_replayed_peak_is_the_allocators(recording: Recording) -> None:
    memory = memory_of(recording)
    assert memory.peak_bytes == recording.done["max_memory_allocated"]
    assert sum(row.at_peak_bytes or 0 for row in memory.components) == memory.peak_bytes
    for check in checks_of(memory).values():
        assert check.compared == check.equal > 0
        assert not check.differences
    on_device = [event for event in recording.events if event["device_index"] == 0]
    assert checks_of(memory)["allocated bytes"].compared == len(on_device)
    assert warnings_of(memory) == ()


@pytest.mark.parametrize(
    ("name", "workspaces", "held"), [("native", 8_519_680, 3_000_320), ("hip", 204 * MIB, 3_000_320)]
)
def test_blocks_before_are_told_apart(name: str, workspaces: int, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The totals of hipBLAS and hipBLASLt are not those of cuBLAS."""
    recording = load(name).installed(monkeypatch)
    if not recording.content["hand_made"]:
        pytest.skip("the recording is a device's own")
    memory = memory_of(recording)
    first = memory.timeline[0].components
    assert (first["blas_workspace"], first["held_before"]) == (workspaces, held)
    assert "held_before" not in {name for name, size in memory.timeline[-1].components.items() if size}
    if name == "native":
        rounding = (12_582_912 - 12_000_000) + (512 - 96) + (2_048 - 2_000) + (1_024 - 1_000)
        assert (first["weights"], first["allocator_rounding"]) == (12_000_096, rounding)
        # A block that waits for a stream (1,536 B) is no longer handed out, and the segment of cuda:1 is not ours.
        assert sum(first.values()) == 24_106_496
    else:
        assert memory.measured_by == "all allocations in the HIP caching allocator of cuda:0 during one step"


# ------------------------------------------------------------------------------------------------------ planted faults


def largest_freed(recording: Recording) -> tuple[int, int, int]:
    """The places of the allocation and the free of the largest block that comes and goes in the step, and its bytes."""
    pairs = []
    given: dict[int, tuple[int, int]] = {}
    for index, event in enumerate(recording.events):
        if event["device_index"] == 0 and event["alloc_size"] > 0:
            given[event["ptr"]] = index, event["alloc_size"]
        elif event["device_index"] == 0 and event["ptr"] in given:
            begin, size = given.pop(event["ptr"])
            pairs.append((size, begin, index))
    size, begin, end = max(pairs)
    return begin, end, size


def without(recording: Recording, index: int) -> Recording:
    return replace(recording, events=[*recording.events[:index], *recording.events[index + 1 :]])


def test_a_lost_allocation_is_told(recording: Recording) -> None:
    index, _, size = largest_freed(recording)
    memory = memory_of(without(recording, index))
    (difference,) = checks_of(memory)["allocated bytes"].unexplained
    assert abs((difference.other or 0) - (difference.ours or 0)) == size
    assert any("the allocator's total differs from the replayed blocks" in text for text in warnings_of(memory))


def test_a_lost_free_stands_before_all_else(recording: Recording) -> None:
    _, index, size = largest_freed(recording)
    memory = memory_of(without(recording, index))
    (peak,) = checks_of(memory)["memory peak"].unexplained
    own, replayed = recording.done["max_memory_allocated"], memory.peak_bytes or 0
    assert (peak.ours, peak.other, replayed - own) == (replayed, own, size)
    assert warnings_of(memory)[0].startswith(
        f"memory of cuda:0: the allocator's own peak for the step is {own:,} B, but its replayed allocations"
        f" peak at {replayed:,} B"
    )
    anatomy = replace(anatomies.nothing(), memory=memory, checks=check_memory(memory))
    row = next(line for line in terminal_report(anatomy, width=100).splitlines() if "memory peak" in line)
    assert f"{size_text(replayed)} here, {size_text(own)} according to" in row
    with pytest.raises(
        GateError,
        match=r"check: 2 numbers are not confirmed, the largest difference being in allocated bytes of cuda:0",
    ):
        require_agreement(anatomy)


def test_a_block_before_that_the_snapshot_lacks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = load("native").installed(monkeypatch)
    segments = recording.content["before"]["segments"]
    fewer = [segment for segment in segments if segment["total_size"] != 12_582_912]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: fewer)
    memory = memory_of(recording)
    for quantity in ("allocated before the step", "memory peak"):
        (difference,) = checks_of(memory)[quantity].unexplained
        assert (difference.other or 0) - (difference.ours or 0) == 12_582_912
    assert "12,000,000 B of the model, its state and inputs come from another process" in memory.notes[0]


def test_an_address_given_again_ends_the_block_that_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = load("native").installed(monkeypatch)
    lost = without(recording, [event["alloc_size"] for event in recording.events].index(-2_048))
    assert memory_of(lost).peak_bytes == recording.done["max_memory_allocated"]


def test_without_an_event_no_component_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `torch.cuda.caching_allocator_enable(False)`."""
    recording = load("native").installed(monkeypatch)
    memory = memory_of(replace(recording, events=[]))
    assert memory.peak_bytes == recording.done["max_memory_allocated"]
    assert memory.timeline == memory.blocks == ()
    assert set(at_peak(memory).values()) == {None}
    assert memory.notes[0].startswith("cannot tell what is live at the peak of cuda:0: torch's allocator reported no")
    assert checks_of(memory)["allocated bytes"].not_checked == "no event of the step reports the allocator's total"


# ---------------------------------------------------------------------------------------------------------- workspaces


@pytest.mark.parametrize(
    ("architecture", "environment", "sizes"),
    [
        (8, {}, {8_519_680, MIB}),
        (9, {}, {32 * MIB, MIB}),
        (None, {}, {8_519_680, MIB}),
        (8, {"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"}, {8_519_680, MIB}),
        (9, {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, {128 << 10, MIB}),
        (8, {"CUBLAS_WORKSPACE_CONFIG": "nonsense"}, {8_519_680, MIB}),
        (9, {"CUBLASLT_WORKSPACE_SIZE": "4096"}, {32 * MIB, 4 * MIB}),
        (9, {"CUBLASLT_WORKSPACE_SIZE": "64 KiB"}, {32 * MIB, 64 << 10}),
        ("gfx90a:sramecc+:xnack-", {}, {32 * MIB, 76 * MIB, MIB}),
        ("gfx942", {}, {128 * MIB, 76 * MIB, 32 * MIB, MIB}),
        ("gfx950", {"HIPBLASLT_WORKSPACE_SIZE": "1024"}, {128 * MIB, MIB}),
        (
            "gfx942",
            {"HIPBLAS_WORKSPACE_CONFIG": ":1024:1", "ROCBLAS_WORKSPACE_CONFIG": ":9:9"},
            {MIB, 76 * MIB, 32 * MIB},
        ),
    ],
)
def test_sizes_of_workspaces_are_torchs_rules(
    architecture: str | int | None, environment: dict[str, str], sizes: set[int]
) -> None:
    assert workspace_sizes(architecture, environment) == sizes


# ------------------------------------------------------------------------------------------ backends that tell less


def refuse(*_: Any) -> Any:
    raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.")


@pytest.mark.parametrize(
    ("name", "variables", "answers", "peak", "why"),
    [
        ("cuda_malloc_async", {}, {}, True, "cudaMallocAsync reports no blocks - run with the native backend"),
        (
            "cuda_malloc_async",
            {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64,backend:cudaMallocAsync"},
            {},
            True,
            "remove backend:cudaMallocAsync from PYTORCH_ALLOC_CONF",
        ),
        (
            "native",
            {},
            {
                **dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_snapshot"), refuse),
                "get_allocator_backend": lambda: "pluggable",
            },
            False,
            "a pluggable allocator is in use",
        ),
        (
            "native",
            {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            dict.fromkeys(("memory_allocated", "max_memory_allocated"), lambda device: 0),
            False,
            "unset PYTORCH_NO_CUDA_MEMORY_CACHING",
        ),
    ],
    ids=["async", "async-by-variable", "plugged-in", "uncached"],
)
def test_backends_that_tell_no_blocks(
    name: str, variables: dict[str, str], answers: dict[str, Any], peak: bool, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = load(name).installed(monkeypatch)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    for function, answer in answers.items():
        monkeypatch.setattr(torch.cuda, function, answer)
    allocator = DeviceAllocator("cuda:0")
    assert allocator.blocks() is None
    assert allocator.peak_bytes() == (recording.done["max_memory_allocated"] if peak else None)
    assert why in why_no_blocks(allocator)


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="torch is built with CUDA")
def test_a_build_without_cuda_has_no_figures_of_0() -> None:
    """`torch.cuda.memory_allocated` is 0 there."""
    allocator = DeviceAllocator("cuda:0")
    assert (allocator.backend, allocator.allocated_bytes(), allocator.peak_bytes()) == (None, None, None)
    assert why_no_blocks(allocator).endswith("torch cannot take a snapshot of its allocator")


# ---------------------------------------------------------------------------------------------------------------- NVML

A100 = nvml.NvmlDevice(uuid="GPU-1", name="A100", used_bytes=9_000, total_bytes=10_000, process_bytes=3_000, mig=False)


@pytest.mark.parametrize(
    ("answer", "context", "points", "notes"),
    [
        (nvml.Answer(device=A100), False, [("before_the_device", 9_000, 3_000), ("context", 9_000, 3_000)], []),
        (nvml.Answer(device=A100), True, [("context", 9_000, 3_000)], []),
        (
            nvml.Answer(why_not="NVML does not support AMD devices"),
            False,
            [("before_the_device", None, None), ("context", None, None)],
            [("cannot tell the memory use or context size of cuda:1: NVML does not support AMD devices")],
        ),
    ],
    ids=["process", "context-there", "no-answer"],
)
def test_nvml_is_asked_by_the_device_of_torch(
    answer: nvml.Answer, context: bool, points: Any, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    # NVML as it answers on machines that are not here.
    monkeypatch.setattr(nvml, "answer", lambda index: (asked.append(index), answer)[1])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda index: context, raising=False)
    for name in ("synchronize", "empty_cache", "memory_allocated", "memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: 512)
    monkeypatch.setattr(torch, "empty", lambda *_, device: None)
    snapshots = Snapshots("cuda:1")
    snapshots.start()
    assert set(asked) == {1}
    assert [(one.name, one.nvml_used_bytes, one.nvml_process_bytes) for one in snapshots.taken] == points
    assert snapshots.notes == notes
