"""Memory of a live step: saved tensors against the allocator, sums, snapshots, torch's own profile, running out."""

from __future__ import annotations

import gc
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import Struct

from opanatomy.capture.memory.measurement import Snapshots
from opanatomy.capture.memory.observer import ObservedStep, observe_step
from opanatomy.capture.model.workload import Prepared, prepare
from opanatomy.capture.run.recorder import record_step
from opanatomy.capture.silence import quiet_libraries
from opanatomy.capture.step.stepper import Stepper, make_optimizer
from opanatomy.capture.subject import Subject
from opanatomy.memory.allocations import alike
from opanatomy.memory.components import ACTIVATIONS, CHECKPOINT_ARGUMENTS, COMPONENTS, OUTPUTS, RNG_STATES, WEIGHT_CASTS
from opanatomy.memory.observed import memory_of_observations, outside_the_allocator
from opanatomy.options import RunOptions
from opanatomy.records.memory import Memory, MemorySnapshot, requested_bytes
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import MarkKind, Workload
from opanatomy.trace.read import read_trace
from tests.command import run_code
from tests.memory_steps import curve, measured, memory_of_observed
from tests.tiny import tiny_request

BERT, GPT2, LLAMA = "google-bert/bert-base-uncased", "openai-community/gpt2", "meta-llama/Llama-3.1-8B"
TEXT = (
    BERT, GPT2, LLAMA, "FacebookAI/roberta-base", "microsoft/deberta-v3-base", "distilbert/distilbert-base-uncased",
    "Qwen/Qwen3-0.6B", "mistralai/Mistral-7B-v0.1", "mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-30B-A3B",
    "state-spaces/mamba-130m-hf", "google-t5/t5-base", "facebook/bart-base",
)  # fmt: skip
#: What lives through forward because of backward.
SAVED = (ACTIVATIONS, WEIGHT_CASTS, RNG_STATES, CHECKPOINT_ARGUMENTS)


class Seen(Struct, frozen=True):
    prepared: Prepared
    observed: ObservedStep
    memory: Memory

    def component(self, name: str) -> int | None:
        return next((row.measured_bytes for row in self.memory.components if row.component == name), None)


def freeze_half(module: torch.nn.Module) -> None:
    parameters = list(module.parameters())
    for parameter in parameters[: len(parameters) // 2]:
        parameter.requires_grad_(False)


def biases_only(module: torch.nn.Module) -> None:
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))


def seen(
    name: str, *, change: Callable[[torch.nn.Module], None] | None = None, amp: str | None = None,
    optimizer: str | None = "adamw", steps_before: int = 1, **request: Any,
) -> Seen:  # fmt: skip
    prepared = prepare(tiny_request(name, **request))
    if change:
        change(prepared.module)
    made = make_optimizer(optimizer, prepared.module) if optimizer else None
    stepper = Stepper(
        module=prepared.module, parameters=tuple(prepared.module.parameters()), inputs=prepared.inputs, device="cpu",
        amp=amp, optimizer=made,
    )  # fmt: skip
    with quiet_libraries():
        for _ in range(steps_before):
            stepper.run()
        checkpointing = request.get("checkpointing") is not None
        observed = observe_step(stepper, prepared.module, Snapshots("cpu"), checkpointing=checkpointing)
    if observed.error:
        raise observed.error
    return Seen(prepared, observed, memory_of_observed(observed))


VARIANTS: dict[str, dict[str, Any]] = {
    "sdpa": {"attention": "sdpa"},
    "eager": {"attention": "eager"},
    "bf16": {"dtype": "bfloat16"},
    "autocast": {"amp": "bf16"},
    "frozen layers": {"change": freeze_half},
    "biases only": {"change": biases_only},
    "checkpointing": {"checkpointing": "non-reentrant"},
    "reentrant checkpointing": {"checkpointing": "reentrant"},
    "checkpointing in autocast": {"checkpointing": "non-reentrant", "amp": "bf16"},
}
#: DeBERTa shares a tensor between segments, which reentrant checkpointing cannot do.
CASES = [
    *((BERT, variant) for variant in VARIANTS),
    *((GPT2, variant) for variant in ("eager", "autocast", "checkpointing")),  # tied weights
    *((name, "bf16") for name in TEXT[2:]),
    *((name, "checkpointing") for name in (LLAMA, "microsoft/deberta-v3-base", "google-t5/t5-base")),
    (LLAMA, "reentrant checkpointing"),
]


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_what_is_saved_is_what_lives_after_forward(name: str, variant: str) -> None:
    one = seen(name, **VARIANTS[variant])
    step = measured(one.observed.observations)
    states = curve(step).by_component
    place = (step.place_of(MarkKind.AFTER_FORWARD) or 0) + 1
    added = {component: int(states[row, place] - states[row, 0]) for row, component in enumerate(COMPONENTS)}
    live = sum(added.values()) - added[OUTPUTS]
    own = step.own_bytes
    hooked = sum(int(own[block]) for block in step.blocks.live_after(place) if step.labels.saved_by[block])
    saved = sum(added[component] for component in SAVED)
    assert live == saved
    # What no hook saw has a name: numbers, states of random generators, keyword arguments, casts of biases.
    named = added[RNG_STATES] + added[CHECKPOINT_ARGUMENTS]
    numbers = added[ACTIVATIONS] + added[WEIGHT_CASTS] - hooked
    assert 0 <= numbers <= 0.001 * live
    assert hooked + named == pytest.approx(live, rel=0.001)
    assert (added[RNG_STATES] > 0) == ("checkpointing" in variant)
    assert (added[WEIGHT_CASTS] > 0) == ("autocast" in variant)
    assert not step.labels.unseen_saved_bytes
    assert sum(row.at_peak_bytes or 0 for row in one.memory.components) == one.memory.peak_bytes


def test_components_sum_to_the_peak_and_to_every_point_of_the_curve() -> None:
    memory = seen(BERT).memory
    rows = {row.component: row for row in memory.components}
    assert all((row.at_peak_bytes or 0) >= 0 for row in memory.components)
    assert max(point.allocated_bytes for point in memory.timeline) == memory.peak_bytes
    assert all(sum(point.components.values()) == point.allocated_bytes for point in memory.timeline)
    assert [point.time_ns for point in memory.timeline] == sorted(point.time_ns for point in memory.timeline)
    assert {point.phase for point in memory.timeline} >= {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
    assert memory.peak_at == Phase.BACKWARD
    assert rows["temporary_buffers"].measured_bytes == rows["temporary_buffers"].at_peak_bytes
    base = sum(rows[name].at_peak_bytes or 0 for name in ("weights", "buffers", "inputs", "optimizer_state"))
    counters = rows["optimizer_step_counters"].at_peak_bytes or 0
    listed = sum(block.bytes for block in memory.blocks) + memory.unlisted_bytes
    assert listed + base + counters == memory.peak_bytes


def test_bytes_a_parameter_with_adamw_are_sixteen() -> None:
    one = seen(BERT)
    parameters = sum(parameter.numel() for parameter in one.prepared.module.parameters())
    total = sum(one.component(name) or 0 for name in ("weights", "gradients", "optimizer_state"))
    assert total == 16 * parameters


@pytest.mark.parametrize(("optimizer", "each"), [("sgd", 4), ("adam", 8), ("adamw-foreach", 8)])
def test_bytes_of_the_optimizer(optimizer: str, each: int) -> None:
    one = seen(BERT, optimizer=optimizer)
    parameters = sum(parameter.numel() for parameter in one.prepared.module.parameters())
    assert one.component("optimizer_state") == each * parameters


def test_eight_bit_state_is_unpacked_with_its_scales() -> None:
    pytest.importorskip("bitsandbytes")
    wide = (*tiny_request(BERT).settings, ("hidden_size", "256"), ("intermediate_size", "1024"))
    one = seen(BERT, optimizer="adamw8bit", settings=wide)
    parameters = list(one.prepared.module.parameters())
    small = sum(parameter.numel() for parameter in parameters if parameter.numel() < 4096)
    large = sum(parameter.numel() for parameter in parameters) - small
    state = (one.component("optimizer_state") or 0) - 8 * small
    assert 2.0 <= state / large <= 2.1


def test_state_made_in_the_step_is_state() -> None:
    first, later = seen(BERT, steps_before=0), seen(BERT)
    assert first.component("optimizer_state") == later.component("optimizer_state")
    rows = {row.component: row for row in first.memory.components}
    assert rows["optimizer_state"].at_peak_bytes in (0, rows["optimizer_state"].measured_bytes)


def test_recomputed_activations_are_named() -> None:
    one = seen(BERT, checkpointing="non-reentrant")
    plain = seen(BERT)
    assert (one.component("recomputed_activations") or 0) > 0
    assert (one.component(ACTIVATIONS) or 0) < 0.4 * (plain.component(ACTIVATIONS) or 0)
    assert one.component(RNG_STATES) == 2 * torch.get_rng_state().numel()


def test_activations_are_told_by_module_and_operator() -> None:
    memory = seen(BERT, attention="eager").memory
    row = next(row for row in memory.activations if row.operator == "aten::_softmax" and len(row.shape) == 4)
    assert (row.module, row.shape, row.blocks) == ("bert.encoder.layer.*.attention.self", (2, 2, 16, 16), 2)
    assert row.bytes == 2 * (2 * 2 * 16 * 16) * 4
    assert row.saved_by == ("aten::_softmax",)
    total = next(row.measured_bytes for row in memory.components if row.component == ACTIVATIONS)
    assert sum(row.bytes for row in memory.activations) == total


def test_like_modules_are_one() -> None:
    assert alike("bert.encoder.layer.11.attention") == "bert.encoder.layer.*.attention"
    assert alike("h.0") == "h.*"
    assert alike("conv1.2d") == "conv1.2d"


def test_frozen_and_inference_have_no_gradients(tmp_path: Path) -> None:
    assert recorded(tmp_path, inference=True) == {"weights", "buffers", "inputs", "temporary_buffers"}


def recorded(folder: Path, **options: Any) -> set[str]:
    prepared = prepare(tiny_request(BERT, inference=options.get("inference", False)))
    path = folder / "step.json"
    record_step(
        Subject(module=prepared.module, inputs=prepared.inputs, workload=Workload()),
        RunOptions(memory=True, **options), path,
    )  # fmt: skip
    capture = read_trace(path).capture
    assert capture is not None
    memory = memory_of_observations(capture.memory)
    assert [snapshot.name for snapshot in memory.snapshots][-1] == "peak"
    return {row.component for row in memory.components}


def test_the_record_survives_the_trace(tmp_path: Path) -> None:
    prepared = prepare(tiny_request(BERT))
    path = tmp_path / "step.json.gz"
    subject = Subject(module=prepared.module, inputs=prepared.inputs, workload=Workload())
    record_step(subject, RunOptions(memory=True, optimizer="adamw"), path)
    capture = read_trace(path).capture
    assert capture is not None
    memory = memory_of_observations(capture.memory)
    points = {snapshot.name: snapshot for snapshot in memory.snapshots}
    assert list(points) == ["weights", "after_forward", "after_backward", "after_optimizer", "peak"]
    sizes = {row.component: row.measured_bytes for row in memory.components}
    assert points["weights"].allocated_bytes == (sizes["weights"] or 0) + (sizes["buffers"] or 0)
    assert points["peak"].allocated_bytes == memory.peak_bytes
    assert all(point.nvml_used_bytes is None for point in memory.snapshots)
    assert all(point.rss_bytes for point in memory.snapshots[:-1])
    before = sizes["weights"] + sizes["buffers"] + sizes["inputs"]  # type: ignore[operator]
    state = sizes["optimizer_state"] + sizes["optimizer_step_counters"]  # type: ignore[operator]
    kept = sizes["forward_activations"] + sizes["outputs"]  # type: ignore[operator]
    assert points["after_forward"].allocated_bytes == before + state + kept
    assert memory.shape is not None
    assert memory.shape.kind == "bert"


MB = 10**6


def context_of(*points: MemorySnapshot) -> tuple[dict[str, int | None], str]:
    outside = outside_the_allocator(points)
    return {row.component: row.measured_bytes for row in outside.components}, " ".join(outside.notes)


def at(name: str, **bytes_: int) -> MemorySnapshot:
    return MemorySnapshot(name=name, **bytes_)


def test_context_is_what_nvml_says_of_this_process_beyond_the_allocator() -> None:
    start = at("before_the_device", allocated_bytes=0, reserved_bytes=0, nvml_used_bytes=4_000 * MB)
    # Another process took 900 MB meanwhile: what the whole device uses has grown by 1,400 MB.
    weights = at("weights", reserved_bytes=100 * MB, nvml_used_bytes=5_400 * MB, nvml_process_bytes=500 * MB)
    peak = at("peak", allocated_bytes=150 * MB, reserved_bytes=200 * MB)
    assert context_of(start, weights, peak) == ({"device_context": 400 * MB, "allocator_cache": 50 * MB}, "")


def test_context_without_the_bytes_of_this_process_is_what_the_device_grew_by_and_says_so() -> None:
    start = at("before_the_device", allocated_bytes=0, reserved_bytes=0, nvml_used_bytes=400 * MB)
    weights = at("weights", allocated_bytes=90 * MB, reserved_bytes=100 * MB, nvml_used_bytes=1_800 * MB)
    sizes, notes = context_of(start, weights)
    assert sizes == {"device_context": 1_300 * MB}
    assert "what others took of the device meanwhile counts as context" in notes


@pytest.mark.parametrize("first", [None, at("before_the_device", reserved_bytes=0)])
def test_context_is_left_out_where_the_device_was_not_seen_before(first: MemorySnapshot | None) -> None:
    """Before, all that others use of the device was called context: 5,300 MB here."""
    weights = at("weights", reserved_bytes=100 * MB, nvml_used_bytes=5_400 * MB)
    sizes, notes = context_of(*((first,) if first else ()), weights)
    assert sizes == {}
    assert "the device context is not measured" in notes


@pytest.mark.parametrize(("used", "found"), [(350 * MB, -50 * MB), (9_000 * MB, 8_600 * MB), (401 * MB, MB)])
def test_a_context_that_none_has_is_left_out(used: int, found: int) -> None:
    start = at("before_the_device", reserved_bytes=0, nvml_used_bytes=300 * MB)
    sizes, notes = context_of(start, at("weights", reserved_bytes=100 * MB, nvml_used_bytes=used))
    assert sizes == {}
    assert f"is {found:,} B, which no context has" in notes


def test_the_cpu_has_neither_context_nor_cache() -> None:
    assert context_of(at("weights", allocated_bytes=90, rss_bytes=5)) == ({}, "")


def test_hooks_and_marks_add_no_byte_to_the_peak() -> None:
    prepared = prepare(tiny_request(BERT))
    stepper = Stepper(
        module=prepared.module, parameters=tuple(prepared.module.parameters()), inputs=prepared.inputs, device="cpu"
    )
    peaks = []
    with quiet_libraries():
        stepper.run()
        for hooked in (True, False):
            observed = observe_step(stepper, prepared.module, Snapshots("cpu"), compiled=not hooked)
            peaks.append(memory_of_observed(observed).peak_bytes)
    assert peaks[0] == peaks[1]


# ---------------------------------------------------------------------------------- next to torch's own memory profile


def torch_categories(name: str) -> tuple[dict[str, int], Seen]:
    """Torch's categories of the same kind of step: the most of each over the step, activations after forward.

    During forward torch calls what dies within it an activation too (the logits), so its most is no measure of them.
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    one = seen(name)
    module, inputs = one.prepared.module, one.prepared.inputs
    assert isinstance(inputs, dict)
    optimizer = make_optimizer("adamw-loop", module)
    activities = [ProfilerActivity.CPU]
    with quiet_libraries():
        module(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        gc.collect()
        with profile(
            activities=activities, record_shapes=True, profile_memory=True, with_stack=True, with_modules=True
        ) as profiler:
            loss = module(**inputs).loss
            with record_function("forward is done"):
                pass
            loss.backward()
            optimizer.step()
        memory: Any = profiler._memory_profile()
    waiting = list(profiler.profiler.kineto_results.experimental_event_tree())
    while waiting[-1].name != "forward is done":
        waiting.extend(waiting.pop().children)
    done_ns = waiting[-1].start_time_ns
    now: dict[Any, int] = defaultdict(int)
    most: dict[str, int] = defaultdict(int)
    for time_ns, action, (key, version), size in memory.timeline:
        category = memory._categories.get(key, version)
        label = category.name if category else "NONE"
        kind = action.name
        if kind in ("PREEXISTING", "CREATE"):
            now[label] += size
        elif kind == "DESTROY":
            now[label] -= size
        if label != "ACTIVATION" or time_ns < done_ns:
            most[label] = now[label] if label == "ACTIVATION" else max(most[label], now[label])
    return dict(most), one


@pytest.mark.parametrize("name", [BERT, GPT2])
def test_torch_finds_the_same(name: str) -> None:
    theirs, one = torch_categories(name)
    assert theirs["PARAMETER"] == one.component("weights")
    assert theirs["GRADIENT"] == one.component("gradients")
    state = (one.component("optimizer_state") or 0) + (one.component("optimizer_step_counters") or 0)
    assert theirs["OPTIMIZER_STATE"] == state
    assert theirs["ACTIVATION"] == pytest.approx(one.component(ACTIVATIONS), rel=0.02)


# --------------------------------------------------------------------------------------------------- running out


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4194304 bytes. Error code 12", 4194304),
        ("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 15.77 GiB", 2684354560),
        ("HIP out of memory. Tried to allocate 20.00 MiB.", 20 << 20),
        ("std::bad_alloc", None),
    ],
)
def test_the_request_that_failed_is_read(message: str, size: int | None) -> None:
    assert requested_bytes(message) == size


LIMITED = """
import os, pathlib, resource, sys
import torch
os.environ["KINETO_LOG_LEVEL"] = "6"
from tests.tiny import TINY, on_cpu
from opanatomy.capture.memory.measurement import held_bytes
from opanatomy.capture.model.workload import prepare
from opanatomy.capture.run.recorder import Subject, record_step
from opanatomy.errors import OutOfMemory
from opanatomy.options import RunOptions
from opanatomy.memory.observed import memory_of_observations
from opanatomy.records.workload import Workload
name = "google-bert/bert-base-uncased"
wide = (("hidden_size", "128"), ("max_position_embeddings", "128"), ("intermediate_size", "512"))
prepared = prepare(on_cpu(model=name, batch=64, seq=128, attention="eager", settings=(*TINY[name], *wide)))
small = Subject(module=torch.nn.Linear(4, 4), inputs=(torch.ones(2, 4),), workload=Workload())
record_step(small, RunOptions(optimizer="adamw", warmup=1), pathlib.Path(sys.argv[3] + ".small.json"))  # loads the rest
limit = held_bytes() + int(sys.argv[1])
hard = resource.RLIM_INFINITY if sys.argv[2] == "soft" else limit
resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
try:
    subject = Subject(module=prepared.module, inputs=prepared.inputs, workload=Workload())
    record_step(subject, RunOptions(optimizer="adamw", warmup=1), pathlib.Path(sys.argv[3]))
except OutOfMemory as error:
    memory = memory_of_observations(error.memory)
    for row in memory.components:
        print(row.component, row.measured_bytes, row.at_peak_bytes)
    print("failure", memory.failure.phase, memory.failure.requested_bytes, memory.failure.allocated_bytes)
    print("peak", memory.peak_bytes, memory.failure.seen)
    sys.exit(error.exit_code)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts private pages on Linux only")
@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_a_step_that_does_not_fit_leaves_its_memory(kind: str, tmp_path: Path) -> None:
    done = run_code(LIMITED, "200000000", kind, str(tmp_path / "step.json"))
    assert done.returncode == 1, done.stderr[-500:]
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert int(rows["weights"][0]) == 1_803_392
    assert rows["failure"][0] == "forward"
    assert int(rows["failure"][1]) > 0
    assert int(rows["forward_activations"][0]) > 10_000_000
    if kind == "soft":
        assert rows["peak"][1] == "True"
        parts = [values for name, values in rows.items() if name not in ("failure", "peak")]
        assert sum(int(values[1]) for values in parts) == int(rows["peak"][0]) == int(rows["failure"][2])
