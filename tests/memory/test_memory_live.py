"""Memory of a live step: saved tensors against the allocator, sums, theory, torch's own profile, redaction."""

from __future__ import annotations

import gc
import json
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch import nn

import opanatomy
from opanatomy.capture.model.workload import prepare
from opanatomy.capture.silence import quiet_libraries
from opanatomy.memory.observed import outside_the_allocator
from opanatomy.records.memory import Memory, MemorySnapshot
from opanatomy.records.taxonomy import Phase
from opanatomy.report.formats.json import json_report
from opanatomy.results import Anatomy
from tests.support.tiny import BERT, profiled, tiny, tiny_request

GPT2, LLAMA, T5 = "openai-community/gpt2", "meta-llama/Llama-3.1-8B", "google-t5/t5-base"
MB = 1 << 20


@cache
def in_depth(name: str, *words: str) -> Anatomy:
    return profiled(*tiny(name, "--memory", *words))


def sizes(memory: Memory) -> dict[str, int]:
    return {row.component: row.measured_bytes or 0 for row in memory.components}


def at_peak(memory: Memory) -> dict[str, int]:
    return {row.component: row.at_peak_bytes or 0 for row in memory.components}


# ------------------------------------------------------------------------------------- what is saved is what lives

ADAMW = ("--optimizer", "adamw")
EAGER, SDPA, HALF, AUTOCAST = ("--attention", "eager"), ("--attention", "sdpa"), ("--dtype", "bf16"), ("--amp", "bf16")
#: What lives through forward because of backward.
SAVED = ("forward_activations", "autocast_weight_casts", "rng_states", "checkpoint_arguments")
#: Without a closed formula: other architectures, and checkpointing.
SAVED_ALONE = [
    (BERT, ("--checkpointing", "non-reentrant", *AUTOCAST)),
    (BERT, ("--checkpointing", "reentrant")),
    (GPT2, ("--checkpointing", "non-reentrant")),  # tied weights
    ("microsoft/deberta-v3-base", ("--checkpointing", "non-reentrant")),
    (T5, ("--checkpointing", "non-reentrant")),
    *((name, HALF) for name in (T5, "mistralai/Mixtral-8x7B-v0.1", "state-spaces/mamba-130m-hf", "facebook/bart-base")),
]
WIDE = {
    BERT: (
        "--set",
        "hidden_size=128",
        "--set",
        "num_attention_heads=4",
        "--set",
        "intermediate_size=512",
        "--set",
        "max_position_embeddings=128",
    ),
    GPT2: ("--set", "n_embd=128", "--set", "n_head=4", "--set", "n_positions=128"),
}
WITH_THEORY = [
    *(
        (name, words)
        for name in (BERT, GPT2)
        for words in (
            EAGER,
            (*EAGER, *HALF),
            (*EAGER, *AUTOCAST),
            SDPA,
            (*SDPA, *AUTOCAST),
            (*SDPA, "--dtype", "float64"),
            (*EAGER, *WIDE[name], "--seq", "64", "--batch", "3"),
        )
    ),
    (BERT, (*SDPA, "--set", "attention_probs_dropout_prob=0", "--set", "hidden_dropout_prob=0")),
    (BERT, (*EAGER, "--task", "sequence-classification")),
    (LLAMA, SDPA),
    (LLAMA, (*SDPA, *HALF)),
]


@pytest.mark.parametrize(("name", "words"), [*SAVED_ALONE, *WITH_THEORY], ids=str)
def test_components_are_the_allocators_bytes_and_those_of_theory(name: str, words: tuple[str, ...]) -> None:
    memory = in_depth(name, *words, *ADAMW).memory
    points, size = {point.name: point.allocated_bytes for point in memory.snapshots}, sizes(memory)
    before = ("weights", "buffers", "inputs", "optimizer_state", "optimizer_step_counters")
    assert points["after_forward"] == sum(size.get(part, 0) for part in (*before, *SAVED, "outputs"))
    assert points["weights"] == size["weights"] + size.get("buffers", 0)
    assert points["peak"] == memory.peak_bytes == sum(at_peak(memory).values())
    assert ("rng_states" in size) == ("--checkpointing" in words)
    assert ("autocast_weight_casts" in size) == ("--amp" in words)
    terms = sum(term.bytes for term in memory.terms)
    assert terms == (pytest.approx(size["forward_activations"], rel=0.01) if (name, words) in WITH_THEORY else 0)
    for row in memory.components:
        if row.component in ("weights", "gradients", "optimizer_state"):
            assert row.theory_bytes == row.measured_bytes


def test_components_sum_to_every_point_of_the_curve() -> None:
    memory = in_depth(BERT, *EAGER, *ADAMW).memory
    size, peak = sizes(memory), at_peak(memory)
    assert min(peak.values()) >= 0
    assert max(point.allocated_bytes for point in memory.timeline) == memory.peak_bytes
    assert all(sum(point.components.values()) == point.allocated_bytes for point in memory.timeline)
    assert [point.time_ns for point in memory.timeline] == sorted(point.time_ns for point in memory.timeline)
    assert {point.phase for point in memory.timeline} >= {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
    assert memory.peak_at == Phase.BACKWARD
    assert size["temporary_buffers"] == peak["temporary_buffers"]
    base = ("weights", "buffers", "inputs", "optimizer_state", "optimizer_step_counters")
    listed = sum(block.bytes for block in memory.blocks) + memory.unlisted_bytes
    assert listed + sum(peak[name] for name in base) == memory.peak_bytes
    assert size["weights"] + size["gradients"] + size["optimizer_state"] == 4 * size["weights"]
    assert all(point.rss_bytes and point.nvml_used_bytes is None for point in memory.snapshots[:-1])


def test_activations_are_named_by_module_and_operator() -> None:
    memory = in_depth(BERT, *EAGER, *ADAMW).memory
    row = next(row for row in memory.activations if row.operator == "aten::_softmax" and len(row.shape) == 4)
    assert (row.module, row.shape, row.blocks) == ("bert.encoder.layer.*.attention.self", (2, 2, 16, 16), 2)
    assert (row.bytes, row.saved_by) == (2 * (2 * 2 * 16 * 16) * 4, ("aten::_softmax",))
    assert sum(row.bytes for row in memory.activations) == sizes(memory)["forward_activations"]


def test_recomputed_activations_are_named() -> None:
    size = sizes(in_depth(GPT2, "--checkpointing", "non-reentrant", *ADAMW).memory)
    assert size["recomputed_activations"] > 0
    assert size["forward_activations"] < 0.4 * sizes(in_depth(GPT2, *EAGER, *ADAMW).memory)["forward_activations"]
    assert size["rng_states"] == 2 * torch.get_rng_state().numel()


@pytest.mark.parametrize(("optimizer", "each"), [("sgd", 4), ("adam", 8), ("adamw-foreach", 8)])
def test_bytes_of_the_optimizer(optimizer: str, each: int) -> None:
    size = sizes(in_depth(BERT, *EAGER, "--optimizer", optimizer).memory)
    assert size["optimizer_state"] == each * size["weights"] // 4


def test_eight_bit_state_is_unpacked_with_its_scales() -> None:
    pytest.importorskip("bitsandbytes")
    anatomy = in_depth(BERT, *EAGER, *WIDE[BERT], "--optimizer", "adamw8bit")
    # Of small parameters the state stays in float32.
    assert 2.0 <= sizes(anatomy.memory)["optimizer_state"] / (anatomy.workload.parameters or 0) <= 2.6


def test_inference_has_no_gradients() -> None:
    assert set(sizes(in_depth(BERT, "--inference").memory)) == {"weights", "buffers", "inputs", "temporary_buffers"}


# ------------------------------------------------------------------------------------------------ a module of one's own

WIDTH = 64
#: A square matrix and a vector of float32.
MATRIX, VECTOR = 4 * WIDTH * WIDTH, 4 * WIDTH


class Own(nn.Module):
    """Two linear layers; `prepare` is what a forward does before them."""

    def __init__(self, prepare: Callable[[Any], None] = lambda module: None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.prepare = prepare

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.prepare(self)
        return self.second(torch.relu(self.first(x))).sum()


def new_weight(module: Any) -> None:
    module.second.weight.data = module.second.weight.data.clone()


def new_buffer(module: Any) -> None:
    module.mean = torch.ones(WIDTH)


def memory_of(module: nn.Module, x: torch.Tensor, **options: Any) -> Memory:
    anatomy = opanatomy.profile(module, x, memory=True, **options)
    assert not [check for check in anatomy.checks if check.unexplained]
    return anatomy.memory


@pytest.mark.parametrize("prepare", [lambda module: None, new_weight, new_buffer], ids=["plain", "weight", "buffer"])
def test_a_replaced_weight_or_buffer_is_one(prepare: Callable[[Any], None]) -> None:
    """Also where autograd saves the new tensor."""
    memory = memory_of(Own(prepare), torch.randn(8, WIDTH))
    assert sizes(memory)["forward_activations"] == 8 * VECTOR
    assert (at_peak(memory)["weights"], at_peak(memory)["buffers"]) == (2 * (MATRIX + VECTOR), VECTOR)
    assert "held_by_model" not in at_peak(memory)
    assert memory.timeline[-1].components["buffers"] == VECTOR


def test_gradients_of_inputs_are_gradients() -> None:
    memory = memory_of(Own(), torch.randn(8, WIDTH, requires_grad=True))
    assert sizes(memory)["gradients"] == 2 * (MATRIX + VECTOR) + 8 * VECTOR


def test_frozen_parameters_have_no_gradients() -> None:
    module = Own()
    module.first.requires_grad_(False)
    size = sizes(memory_of(module, torch.randn(8, WIDTH), optimizer="adamw"))
    assert (size["gradients"], size["optimizer_state"]) == (MATRIX + VECTOR, 2 * (MATRIX + VECTOR))
    assert size["forward_activations"] == 8 * VECTOR  # what the second layer multiplies


class Shrinking(nn.Module):
    """Inference that replaces a buffer of 8 MB by one of 4 MB and then needs 16 MB for a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(8 * MB, dtype=torch.uint8))
        self.inner = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache = torch.zeros(4 * MB, dtype=torch.uint8)
        return self.inner(x) + torch.zeros(4 * MB).sum()


class OnAThread(Shrinking):
    """The same, its modules run by a thread that the profiler does not see."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache = torch.zeros(4 * MB, dtype=torch.uint8)
        thread = Thread(target=self.inner, args=(x,))
        thread.start()
        thread.join()
        return x


@pytest.mark.parametrize(("kind", "buffers", "temporary"), [(Shrinking, 4 * MB, 16 * MB), (OnAThread, 8 * MB, 0)])
def test_a_replaced_buffer_is_gone_while_forward_goes_on(kind: type[Shrinking], buffers: int, temporary: int) -> None:
    memory = memory_of(kind(), torch.zeros(1), inference=True)
    assert memory.timeline[-1].components["buffers"] == 4 * MB
    assert at_peak(memory)["buffers"] == buffers
    assert at_peak(memory).get("temporary_buffers", 0) // MB * MB == temporary


# -------------------------------------------------------------------------------------------- what the trace has of it


@pytest.mark.parametrize("memory", [True, False])
def test_profile_and_analyze_of_its_trace_say_the_same_of_memory(memory: bool, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 16))
    path = tmp_path / "step.json.gz"
    anatomy = opanatomy.profile(module, torch.ones(4, 64), optimizer="adamw", memory=memory, trace=path)
    sections = [json.loads(json_report(one)) for one in (anatomy, opanatomy.analyze(path))]
    assert sections[0]["memory"] == sections[1]["memory"]
    assert sections[0]["checks"] == sections[1]["checks"]
    weights, size = 4 * (64 * 32 + 32 + 32 * 16 + 16), sizes(anatomy.memory)
    assert (size["weights"], size["gradients"], size["optimizer_state"]) == (weights, weights, 2 * weights)
    assert bool(anatomy.memory.timeline) == memory


@pytest.mark.parametrize(
    ("column", "value"), [("events.bytes", ""), ("events.address", "AAAA"), ("marks.kind", ""), ("storages.bytes", "")]
)
def test_a_memory_step_that_cannot_be_read_is_a_warning_and_the_storages_stay(
    column: str, value: str, tmp_path: Path
) -> None:
    path = tmp_path / "step.json"
    opanatomy.profile(nn.Linear(8, 8), torch.ones(2, 8), memory=True, trace=path)
    trace = json.loads(path.read_text())
    table, _, name = column.partition(".")
    trace["opanatomy"]["memory"]["step"][table][name] = value
    path.write_text(json.dumps(trace))
    anatomy = opanatomy.analyze(path)
    assert any(
        warning.startswith("opanatomy's record of the step's memory in the trace is damaged")
        for warning in anatomy.warnings
    )
    assert sizes(anatomy.memory)["weights"] == 4 * 72
    assert anatomy.memory.timeline == ()


# --------------------------------------------------------------------------------------- outside of the allocator


def at(name: str, **bytes_: int) -> MemorySnapshot:
    return MemorySnapshot(name=name, **{key: size * 10**6 for key, size in bytes_.items()})


START = at("before_the_device", allocated_bytes=0, reserved_bytes=0, nvml_used_bytes=400)


@pytest.mark.parametrize(
    ("points", "context", "note"),
    [
        # Another process took 900 MB meanwhile: what the whole device uses has grown by 1,400 MB.
        ((START, at("weights", reserved_bytes=100, nvml_used_bytes=1_800, nvml_process_bytes=500)), 400, ""),
        (
            (START, at("weights", reserved_bytes=100, nvml_used_bytes=1_800)),
            1_300,
            "what other processes allocated on the device",
        ),
        ((at("weights", reserved_bytes=100, nvml_used_bytes=5_400),), None, "the device's context was not measured"),
        (
            (START, at("weights", reserved_bytes=100, nvml_used_bytes=450)),
            None,
            "-50,000,000 B, which is implausible for a context",
        ),
        ((at("weights", allocated_bytes=90, rss_bytes=5),), None, ""),  # the CPU
    ],
    ids=["process", "device", "not-before", "none-has", "cpu"],
)
def test_the_context_of_a_device(points: tuple[MemorySnapshot, ...], context: int | None, note: str) -> None:
    """Snapshots of a device, which is not here."""
    outside = outside_the_allocator(points)
    rows = {row.component: row.measured_bytes for row in outside.components}
    assert rows == ({} if context is None else {"device_context": context * 10**6})
    assert note in " ".join(outside.notes)


# ---------------------------------------------------------------------------------- next to torch's own memory profile


def torch_categories(name: str) -> dict[str, int]:
    """Torch's categories of the same kind of step: the most of each over the step, activations after forward.

    During forward torch calls what dies within it an activation too (the logits), so its most is no measure of them.
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    prepared = prepare(tiny_request(name, attention="eager"))
    module, inputs = prepared.module, prepared.inputs
    assert isinstance(inputs, dict)
    optimizer = torch.optim.AdamW(module.parameters(), foreach=False)
    with quiet_libraries():
        module(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        gc.collect()
        with profile(
            activities=[ProfilerActivity.CPU],
            record_shapes=True,
            profile_memory=True,
            with_stack=True,
            with_modules=True,
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
        if action.name in ("PREEXISTING", "CREATE"):
            now[label] += size
        elif action.name == "DESTROY":
            now[label] -= size
        if label != "ACTIVATION" or time_ns < done_ns:
            most[label] = now[label] if label == "ACTIVATION" else max(most[label], now[label])
    return dict(most)


@pytest.mark.parametrize("name", [BERT, GPT2])
def test_torch_finds_the_same(name: str) -> None:
    theirs, ours = torch_categories(name), sizes(in_depth(name, *EAGER, *ADAMW).memory)
    assert theirs["PARAMETER"] == ours["weights"]
    assert theirs["GRADIENT"] == ours["gradients"]
    assert theirs["OPTIMIZER_STATE"] == ours["optimizer_state"] + ours["optimizer_step_counters"]
    assert theirs["ACTIVATION"] == pytest.approx(ours["forward_activations"], rel=0.02)
