"""Memory that runs out: known by its words, in each phase left with a report, and with advice that fits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

import opanatomy
from opanatomy.__main__ import main
from opanatomy.records.memory import is_out_of_memory, requested_bytes
from opanatomy.report import terminal_report
from tests.support import anatomies
from tests.support.command import run
from tests.support.tiny import BERT, tiny

GPT2 = "openai-community/gpt2"
GIB = 1 << 30
#: As `c10/cuda/CUDACachingAllocator.cpp` writes it.
CUDA = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB of which 1.12 GiB is free."
    " Of the allocated memory 13.90 GiB is allocated by PyTorch, and 121.09 MiB is reserved by PyTorch but unallocated."
)


# ---------------------------------------------------------------------------------------------------- by their words


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (CUDA, 2 * GIB),
        ("CUDA out of memory. Tried to allocate more than 1EB memory.", None),
        ("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other call", None),
        ("CUDA driver error: out of memory", None),
        ("HIP out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 287.98 GiB", 2 << 20),
        ("XPU out of memory. Tried to allocate 4.50 GiB. GPU 0 has a total capacity of 5.65 GiB", 4.5 * GIB),
        ("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", None),
        ("NPU out of memory. Tried to allocate 138.00 MiB (NPU 0; 32.00 GiB total)", 138 << 20),
        (
            "MPS backend out of memory (MPS allocated: 6.04 GB, max allowed: 6.77 GB). Tried to allocate 459.07 MB on"
            " private pool.",
            481369784,
        ),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", None),
        ("CUDA error: rocblas_status_memory_error when calling `rocblas_create_handle(handle)`", None),
        ("CUDA error: resource allocation failed when calling `cusparseCreate(handle)`", None),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", None),
        (
            "MIOpen Error: /MIOpen/src/hip/handlehip.cpp:70: Memory not available to allocate buffer: 655360000",
            655_360_000,
        ),
        ("NCCL error in: ProcessGroupNCCL.cpp:1331\nLast error:\nCuda failure 2 'out of memory'", None),
        (
            "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
            "Failed to CUDA calloc async 2432 bytes",
            2432,
        ),
        ("Triton Error [CUDA]: out of memory", None),
        (
            "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"
            " allocate 4194304 bytes. Error code 12 (Cannot allocate memory)",
            4194304,
        ),
        (
            "[enforce fail at alloc_cpu.cpp:82] DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes.",
            8,
        ),
        ("std::bad_alloc", None),
    ],
)
def test_a_failed_allocation_is_known_by_its_words(message: str, size: float | None) -> None:
    assert is_out_of_memory(RuntimeError(message))
    assert requested_bytes(message) == size


def test_a_failed_allocation_is_known_by_its_class_and_below_another_error() -> None:
    for error in (MemoryError(), torch.OutOfMemoryError(""), OSError(12, "Cannot allocate memory")):
        assert is_out_of_memory(error)
    outer = RuntimeError("layer 3 failed")
    assert not is_out_of_memory(outer)
    outer.__cause__ = torch.OutOfMemoryError(CUDA)
    assert is_out_of_memory(outer)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned (pinned memory)"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: too many resources requested for launch"),
        RuntimeError("out of resource: shared memory, Required: 131072, Hardware limit: 101376. Reducing block sizes"),
        ImportError("libgomp.so.1: cannot allocate memory in static TLS block"),
        ValueError("chunk_size=None may run out of memory - give a number"),
        NotImplementedError("offload: out of memory optimizers are not supported"),
        KeyError("out of memory"),
    ],
)
def test_an_error_that_only_speaks_of_memory_is_another(error: Exception) -> None:
    assert not is_out_of_memory(error)


# ------------------------------------------------------------------------------------------------------- in every phase

#: A model whose memory is full in PHASE of every step from the one numbered STEP on. The optimizer makes a part of its
#: state before.
BREAKS = f"""
import torch
from torch.utils._python_dispatch import TorchDispatchMode

class FailsAt(TorchDispatchMode):
    left = 5

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.left -= 1
        if not self.left:
            full()
        return func(*args, **(kwargs or {{}}))

def full():
    raise torch.OutOfMemoryError({CUDA!r})

class InBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        if Breaks.steps > STEP and "PHASE" == "backward":
            full()
        return gradient

class Breaks(torch.nn.Module):
    steps = 0

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16))

    def forward(self, values):
        Breaks.steps += 1
        values = self.layers(values)
        if Breaks.steps > STEP and "PHASE" == "forward":
            full()
        return InBackward.apply(values).sum()

step = torch.optim.AdamW.step

def limited(*args, **options):
    if Breaks.steps > STEP and "PHASE" == "optimizer":
        with FailsAt():
            return step(*args, **options)
    return step(*args, **options)

torch.optim.AdamW.step = limited

def make():
    return Breaks(), torch.ones(4, 64)
"""
WEIGHTS = 4 * (64 * 32 + 32 + 32 * 16 + 16)


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
@pytest.mark.parametrize("step", [0, 6], ids=["first", "later"])
def test_memory_that_runs_out_leaves_a_report(phase: str, step: int, tmp_path: Path) -> None:
    (tmp_path / "breaks.py").write_text(BREAKS.replace("PHASE", phase).replace("STEP", str(step)))
    words = ("breaks.py:make", "--device", "cpu", "--optimizer", "adamw-loop", "--memory", "-f", "json")
    done = run("profile", *words, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"opanatomy: out of memory in the {phase} phase; ")
    memory = json.loads(done.stdout)["memory"]
    failure = memory["failure"]
    assert (failure["phase"], failure["requested_bytes"], failure["seen"]) == (phase, 2 * GIB, True)
    assert failure["allocated_bytes"] == memory["peak_bytes"]
    parts = {part["component"]: part["at_peak_bytes"] for part in memory["components"] if part["at_peak_bytes"]}
    assert sum(parts.values()) == memory["peak_bytes"]
    assert parts["weights"] == WEIGHTS
    assert parts.get("gradients", 0) == (WEIGHTS if phase == "optimizer" else 0)
    # The second try begins without the state that the first began.
    state = parts.get("optimizer_state", 0)
    assert state == 2 * WEIGHTS if step else (0 < state < 2 * WEIGHTS) == (phase == "optimizer")
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".json"]


def test_a_step_beyond_a_limit_of_the_host_is_reported(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("RLIMIT_DATA counts private pages on Linux only")
    limit = 1_600_000_000
    words = tiny(BERT, "--batch", "65536", "--optimizer", "adamw", "-f", "json")
    done = run("profile", *words, cwd=tmp_path, data_bytes=limit)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("opanatomy: out of memory in the forward phase")
    assert "; peak memory use was " in last
    assert "--batch" in last
    report = json.loads(done.stdout)
    memory = report["memory"]
    assert memory["failure"]["requested_bytes"] > 1_000_000
    assert memory["needed_bytes"] > limit
    assert {each["tries"][0] for each in report["advice"]} >= {"--checkpointing", "--accumulate 4"}
    assert report["workload"]["batch"] == 65536
    assert list(tmp_path.iterdir()) == []
    text = terminal_report(replace(anatomies.nothing(), memory=opanatomy.report.read_anatomy(done.stdout).memory))
    assert "out of memory in forward" in text
    assert "failed request" in text
    assert text.splitlines()[1].startswith("The step does not fit")


# -------------------------------------------------------------------------------------------------------------- advice


def full(*_: Any) -> None:
    raise torch.OutOfMemoryError(CUDA)


# Asking a model of transformers 5 whether it checkpoints warns of the name that it is asked by.
@pytest.mark.parametrize(
    ("model", "words", "expected"),
    [
        (
            BERT,
            "",
            "lower --batch or --seq, add --accumulate 2, add --checkpointing, add --amp bf16, use fewer"
            " --layers or use --dtype bfloat16",
        ),
        (
            BERT,
            "--accumulate 2 --checkpointing --amp bf16",
            "lower --batch or --seq, use fewer --layers or use --dtype bfloat16",
        ),
        (BERT, "--inference --dtype bf16 --batch 1", "lower --seq or use fewer --layers"),
        (
            GPT2,
            "--generate 8 --beams 4 --dtype bf16",
            "lower --batch or --seq, use --beams 1 or use fewer --layers",
        ),
        (BERT, "--optimizer adafactor", "use fewer --layers or use --dtype bfloat16"),
        (BERT, "--optimizer sgd --dtype bf16", "use --optimizer adafactor or use fewer --layers"),
    ],
)
def test_the_advice_fits_the_phase_and_the_options(
    model: str, words: str, expected: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    in_update = "--optimizer" in words
    handle = (register_optimizer_step_pre_hook if in_update else register_module_forward_pre_hook)(full)
    try:
        assert main(["profile", *tiny(model, *words.split())]) == 1
    finally:
        handle.remove()
    phase = "optimizer" if in_update else "prefill" if "--generate" in words else "forward"
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"opanatomy: out of memory in the {phase} phase; ")
    assert f" - {expected} (CUDA out of memory." in last


def test_the_python_entry_speaks_of_its_own_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.SGD, "step", full)
    with pytest.raises(opanatomy.OutOfMemory) as caught:
        opanatomy.profile(torch.nn.Linear(64, 16), torch.ones(4, 64), optimizer="sgd")
    assert 'optimizer="adafactor", pass a smaller module or call module.to(torch.bfloat16) (CUDA out' in str(
        caught.value
    )
    assert "--" not in str(caught.value)


def test_a_model_that_does_not_fit_is_no_fault_of_the_batch(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No limit says exactly where in a build memory ends: the place is patched."""

    def full_host(*_: Any, **__: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("opanatomy.capture.model.workload.build_on_meta", full_host)
    assert main(["profile", "gpt2", "--device", "cpu", "--layers", "1"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "opanatomy: out of memory while gpt2 was being built - use fewer --layers or use --dtype bfloat16"
    )
